//! Room on the disk: a member that runs out of it steps down in time, and goes on when there is room.
//!
//! The room on the disk is polled. Below a reserve the member takes no more writes: what it has
//! can still be compacted, synced and removed, and it is not damaged by a write that was cut short. The
//! primary hands over, entries of others wait, and clients are told with a code that drivers retry at
//! the next primary. What was removed is given back with the room that is left. Above twice the reserve all of it ends.
//!
//! Replicated entries can fill the disk between two checks. A commit that fails for want of room leaves
//! the store as it was; the disk counts as full from then on, until there is more room than there was.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use quorate_node::DiskRoom;
use rustix::fs::statvfs;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::server::Shared;

/// How often the room on the disk is polled.
const INTERVAL: Duration = Duration::from_millis(250);

/// The most bytes that are kept free: a journal that is being sealed beside one that begins.
const MAX_RESERVE: u64 = 128 * 1024 * 1024;

/// The part of a small disk that is kept free.
const RESERVED_PART: u64 = 8;

/// The part of the room that is left which may be taken to give back what was removed.
const RECLAIMING_PART: u64 = 2;

/// For how long a member without room does not stand. Told again before it is over.
pub(crate) const INELIGIBLE: Duration = Duration::from_secs(60);

/// How much room there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Room {
    free: u64,
    total: u64,
}

impl Room {
    fn of(directory: &Path) -> io::Result<Self> {
        let found = statvfs(directory)?;
        let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
        Ok(Self { free: bytes(found.f_bavail), total: bytes(found.f_blocks) })
    }

    fn reserve(self) -> u64 {
        MAX_RESERVE.min(self.total / RESERVED_PART)
    }

    /// Whether the disk counts as full, if it did before or did not.
    fn is_full(self, before: bool) -> bool {
        self.free < if before { self.reserve().saturating_mul(2) } else { self.reserve() }
    }

    /// How many bytes must be free before a write is tried again that did not fit.
    fn needed_again(self) -> u64 {
        self.free.saturating_add(self.free.clamp(1, MAX_RESERVE))
    }
}

/// What is known of a disk that is polled.
#[derive(Debug, Default)]
struct Disk {
    full: bool,
    /// How many bytes must be free before it has room again, since a write did not fit.
    needed: u64,
}

impl Disk {
    /// Whether it counts as full, now that this was seen and a write met its end or did not.
    fn look(&mut self, room: Room, met_end: bool) -> bool {
        if met_end {
            self.needed = room.needed_again();
        }
        let too_little = room.free < self.needed;
        self.full = met_end || room.is_full(self.full) || (self.full && too_little);
        self.full
    }
}

/// Looks at the disk until dropped.
pub(crate) async fn watch(directory: PathBuf, shared: Arc<Shared>) {
    let mut due = interval(INTERVAL);
    due.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut disk = Disk::default();
    let mut told = Instant::now();
    let mut reclaiming: Option<JoinHandle<()>> = None;
    loop {
        due.tick().await;
        let place = directory.clone();
        // A disk that hangs must not hold a worker.
        let looked = tokio::task::spawn_blocking(move || Room::of(&place)).await;
        let Ok(Ok(mut room)) = looked else { continue };
        shared.node.set_disk_room(DiskRoom { total: room.total, free: room.free });
        if shared.files.is_full() {
            room.free = 0;
        }
        let was_full = disk.full;
        let full = disk.look(room, shared.gate.has_met_end_of_disk());
        let has_changed = full != was_full;
        if has_changed {
            tell(&directory, room, full);
            shared.node.set_disk_full(full);
            shared.gate.set_disk_full(full);
        }
        if full && reclaiming.as_ref().is_none_or(JoinHandle::is_finished) {
            reclaiming = Some(reclaim(&shared, room.free / RECLAIMING_PART));
        }
        if !has_changed && (!full || told.elapsed() < INELIGIBLE / 2) {
            continue;
        }
        told = Instant::now();
        if let Some(set) = &shared.replica_set {
            set.disk_is_full(full).await;
        }
    }
}

/// Gives back what was removed, on a thread of its own.
fn reclaim(shared: &Arc<Shared>, room: u64) -> JoinHandle<()> {
    let shared = Arc::clone(shared);
    tokio::task::spawn_blocking(move || {
        match shared.node.reclaim_room(room, &|| shared.gate.has_ended()) {
            Ok(0) => {}
            Ok(bytes) => tracing::info!(bytes, "gave back what removed documents held"),
            Err(error) => tracing::warn!(%error, "removed documents keep their room"),
        }
    })
}

fn tell(directory: &Path, room: Room, full: bool) {
    let (directory, free, reserve) = (directory.display(), room.free, room.reserve());
    if full {
        tracing::error!(
            %directory, free, reserve,
            "the disk is full: this member takes no more writes; remove files or give it a larger disk"
        );
    } else {
        tracing::info!(%directory, free, reserve, "the disk has room again: writes go on");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_full_below_its_reserve_and_healthy_above_twice_that() {
        const MIB: u64 = 1024 * 1024;
        let room = |free, total| Room { free: free * MIB, total: total * MIB };
        assert!(room(127, 100_000).is_full(false));
        assert!(!room(129, 100_000).is_full(false));
        assert!(room(129, 100_000).is_full(true), "it stays full until there is more");
        assert!(!room(257, 100_000).is_full(true));
        assert!(room(7, 64).is_full(false), "of a small disk an eighth");
        assert!(!room(9, 64).is_full(false));
    }

    #[test]
    fn a_disk_whose_end_was_met_is_full_until_it_has_more_room_than_then() {
        const MIB: u64 = 1024 * 1024;
        let room = |free| Room { free: free * MIB, total: 64 * MIB };
        let mut disk = Disk::default();
        assert!(!disk.look(room(20), false));
        assert!(disk.look(room(20), true), "above the reserve, but a write did not fit");
        assert!(disk.look(room(20), false));
        assert!(disk.look(room(39), false));
        assert!(!disk.look(room(40), false));
        assert!(!disk.look(room(20), false), "it is looked at as before");
        assert!(disk.look(room(0), true) && disk.look(room(15), false));
        assert!(!disk.look(room(17), false), "the reserve decides on a disk that had nothing left");
    }
}
