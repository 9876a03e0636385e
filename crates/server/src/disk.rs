//! Room on the disk: a member that runs out of it steps down in time, and goes on when there is room.
//!
//! The disk is looked at again and again. Below a reserve the member takes no more writes: what it has
//! can still be compacted, synced and removed, and it is not damaged by a write that was cut short. The
//! primary hands over, entries of others wait, and clients are told with a code that drivers retry at
//! the next primary. Above twice the reserve all of it ends.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::statvfs;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::server::Shared;

/// How often the disk is looked at.
const INTERVAL: Duration = Duration::from_millis(250);

/// The most bytes that are kept free: a journal that is being sealed beside one that begins.
const MAX_RESERVE: u64 = 128 * 1024 * 1024;

/// The part of a small disk that is kept free.
const RESERVED_PART: u64 = 8;

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
}

/// Looks at the disk until dropped.
pub(crate) async fn watch(directory: PathBuf, shared: Arc<Shared>) {
    let mut due = interval(INTERVAL);
    due.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut full = false;
    let mut told = Instant::now();
    loop {
        due.tick().await;
        let place = directory.clone();
        // A disk that hangs must not hold a worker.
        let looked = tokio::task::spawn_blocking(move || Room::of(&place)).await;
        let Ok(Ok(room)) = looked else { continue };
        let is_full = room.is_full(full);
        if is_full != full {
            full = is_full;
            tell(&directory, room, full);
            shared.node.set_disk_full(full);
            shared.gate.set_disk_full(full);
        } else if !full || told.elapsed() < INELIGIBLE / 2 {
            continue;
        }
        told = Instant::now();
        if let Some(set) = &shared.replica_set {
            set.disk_is_full(full).await;
        }
    }
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
}
