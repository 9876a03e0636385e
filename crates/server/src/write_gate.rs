//! The gate before all writes, which `fsync` with `lock` closes until `fsyncUnlock`.
//!
//! Clients' writes wait at it, each for as long as its client lets it; entries of other members wait,
//! and so does what the member removes on its own. Votes, terms and configurations pass: a member that
//! is locked still takes part in its set. The gate closes when the writes that have passed it are done, and none
//! passes it from then on.

use std::sync::{Arc, Condvar, PoisonError};
use std::time::Duration;

use quorate_node::{CommandError, ErrorCode, Node};
use quorate_protocol::Lock;
use tokio::sync::{Mutex, OwnedRwLockWriteGuard, RwLock, RwLockReadGuard};

/// How long `fsync` waits for running writes to end; the manual's `fsyncLockAcquisitionTimeoutMillis`.
const PATIENCE: Duration = Duration::from_secs(90);

/// Write permit, released on drop.
pub(crate) type Entered<'a> = RwLockReadGuard<'a, ()>;

/// The gate. The holder of what [`enter`](Self::enter) gives may write.
#[derive(Default)]
pub(crate) struct WriteGate {
    gate: Arc<RwLock<()>>,
    locks: Mutex<Locks>,
    disk: Lock<DiskRoom>,
    has_room: Condvar,
}

/// What is known of the room on the disk.
#[derive(Default)]
struct DiskRoom {
    /// Whether entries of others wait for room.
    full: bool,
    /// Whether a write has failed for want of room since the last check of the disk.
    met_end: bool,
    /// Whether the server ends: nothing waits from then on.
    ended: bool,
}

#[derive(Default)]
struct Locks {
    count: u64,
    closed: Option<OwnedRwLockWriteGuard<()>>,
}

impl WriteGate {
    /// Waits until writes may pass.
    pub(crate) async fn enter(&self) -> Entered<'_> {
        self.gate.read().await
    }

    /// The same for a thread that applies entries of other members, which wait for room on the disk as
    /// well. Clients' writes are refused without it, and what is removed makes some.
    pub(crate) fn blocking_enter(&self) -> Entered<'_> {
        let waited = self.has_room.wait_while(self.disk.lock(), |disk| disk.full);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        self.gate.blocking_read()
    }

    /// Passes with entries of other members if nothing keeps them out.
    pub(crate) fn try_enter_to_apply(&self) -> Option<Entered<'_>> {
        let full = self.disk.lock().full;
        if full { None } else { self.try_enter() }
    }

    /// Says whether the disk is full.
    pub(crate) fn set_disk_full(&self, full: bool) {
        self.disk.lock().full = full;
        self.has_room.notify_all();
    }

    /// A write has failed for want of room before the check of the disk. From now on entries wait for room.
    /// False if they cannot, because the server ends.
    pub(crate) fn meet_end_of_disk(&self) -> bool {
        let mut disk = self.disk.lock();
        disk.met_end = true;
        disk.full = !disk.ended;
        disk.full
    }

    /// Whether a write has failed for want of room since the last call.
    pub(crate) fn has_met_end_of_disk(&self) -> bool {
        std::mem::take(&mut self.disk.lock().met_end)
    }

    /// The server ends: entries that wait for room wait no longer.
    pub(crate) fn end(&self) {
        self.disk.lock().ended = true;
        self.set_disk_full(false);
    }

    /// Whether the server ends.
    pub(crate) fn has_ended(&self) -> bool {
        self.disk.lock().ended
    }

    /// Waits for so long, unless the server ends.
    pub(crate) fn pause(&self, time: Duration) {
        let waited = self.has_room.wait_timeout_while(self.disk.lock(), time, |disk| !disk.ended);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// A permit if the gate is open, for work that can be done another time.
    pub(crate) fn try_enter(&self) -> Option<Entered<'_>> {
        self.gate.try_read().ok()
    }

    /// Closes the gate once more. Returns how often it must be opened.
    pub(crate) async fn lock(&self, node: &Node) -> Result<u64, CommandError> {
        let mut locks = self.locks.lock().await;
        if locks.closed.is_none() {
            let closing = tokio::time::timeout(PATIENCE, Arc::clone(&self.gate).write_owned());
            let closed = closing.await.map_err(|_| {
                CommandError::new(
                    ErrorCode::LOCK_TIMEOUT,
                    "writes are still running; end them with killOp, or lock again later",
                )
            })?;
            locks.closed = Some(closed);
        }
        locks.count += 1;
        node.show_write_locks(locks.count);
        Ok(locks.count)
    }

    /// Takes one lock back. Returns how many are left; the last one opens the gate.
    pub(crate) async fn unlock(&self, node: &Node) -> Result<u64, CommandError> {
        let mut locks = self.locks.lock().await;
        if locks.count == 0 {
            return Err(CommandError::new(
                ErrorCode::ILLEGAL_OPERATION,
                "fsyncUnlock called when not locked",
            ));
        }
        locks.count -= 1;
        if locks.count == 0 {
            locks.closed = None;
        }
        node.show_write_locks(locks.count);
        Ok(locks.count)
    }
}
