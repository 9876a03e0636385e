//! The gate before all writes, which `fsync` with `lock` closes until `fsyncUnlock`.
//!
//! Clients' writes wait at it, each for as long as its client lets it; entries of other members wait,
//! and so does what the member removes on its own. Votes, terms and configurations pass: a member that
//! is locked still takes part in its set. The gate closes when the writes that have passed it are done, and none
//! passes it from then on.
//!
//! A write that has passed may wait for an open transaction. While the gate is closing, what brings open transactions
//! to their end still passes, so that the gate comes to close.

use std::sync::{Condvar, PoisonError};
use std::time::Duration;

use quorate_node::{CommandError, ErrorCode, Node};
use quorate_protocol::Lock;
use tokio::sync::{Mutex, Notify};

/// How long `fsync` waits for running writes to end; the manual's `fsyncLockAcquisitionTimeoutMillis`.
const PATIENCE: Duration = Duration::from_secs(90);

/// Write permit, released on drop.
pub(crate) struct Entered<'a>(&'a WriteGate);

/// The gate. The holder of what [`enter`](Self::enter) gives may write.
#[derive(Default)]
pub(crate) struct WriteGate {
    door: Lock<Door>,
    /// Signals a change of the door's state, to tasks and to threads.
    news: Notify,
    has_news: Condvar,
    /// How often `fsyncUnlock` is to be called.
    locks: Mutex<u64>,
    disk: Lock<DiskRoom>,
    has_room: Condvar,
}

#[derive(Default)]
struct Door {
    state: DoorState,
    /// Writes that have passed and are not done. There are some as long as the door is closing.
    passed: usize,
    /// Whether the server ends: no thread waits from then on.
    ended: bool,
}

/// ```text
///   Open ── fsync ──▶ Closing ── the last write is done ──▶ Closed
///    ▲                   │ fsync gives up                     │
///    └───────────────────┴────────── fsyncUnlock ─────────────┘
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum DoorState {
    #[default]
    Open,
    Closing,
    Closed,
}

/// What a write does for those that have passed the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passage {
    /// Nothing: it can wait until the gate is open again.
    New,
    /// It goes on with an open transaction, or ends one, which they may wait for.
    OfOpenTransaction,
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

/// Opens the door again when dropped: `fsync` has given up.
struct Closing<'a>(&'a WriteGate);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.set_door(&mut self.0.door.lock(), DoorState::Open);
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut door = self.0.door.lock();
        door.passed -= 1;
        if door.passed == 0 && door.state == DoorState::Closing {
            self.0.set_door(&mut door, DoorState::Closed);
        }
    }
}

impl WriteGate {
    fn set_door(&self, door: &mut Door, state: DoorState) {
        door.state = state;
        self.news.notify_waiters();
        self.has_news.notify_all();
    }

    /// Waits until the write may pass.
    pub(crate) async fn enter(&self, passage: Passage) -> Entered<'_> {
        loop {
            let news = self.news.notified();
            if let Some(entered) = self.try_enter_as(passage) {
                return entered;
            }
            news.await;
        }
    }

    /// The same for a thread that applies entries of other members, which wait for room on the disk as
    /// well. Clients' writes are refused without it, and what is removed makes some. None if the gate is closed when the
    /// server ends.
    pub(crate) fn blocking_enter(&self) -> Option<Entered<'_>> {
        let waited = self.has_room.wait_while(self.disk.lock(), |disk| disk.full);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        let is_shut = |door: &mut Door| door.state != DoorState::Open && !door.ended;
        let waited = self.has_news.wait_while(self.door.lock(), is_shut);
        let mut door = waited.unwrap_or_else(PoisonError::into_inner);
        let is_open = door.state == DoorState::Open;
        door.passed += usize::from(is_open);
        is_open.then(|| Entered(self))
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

    /// The server ends: entries wait no longer, neither for room nor for the gate to open.
    pub(crate) fn end(&self) {
        self.door.lock().ended = true;
        self.has_news.notify_all();
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
        self.try_enter_as(Passage::New)
    }

    /// A permit if the write need not wait.
    pub(crate) fn try_enter_as(&self, passage: Passage) -> Option<Entered<'_>> {
        let mut door = self.door.lock();
        let passes = match door.state {
            DoorState::Open => true,
            DoorState::Closing => passage == Passage::OfOpenTransaction,
            DoorState::Closed => false,
        };
        door.passed += usize::from(passes);
        passes.then(|| Entered(self))
    }

    /// Closes the gate once more. Returns how often it must be opened.
    pub(crate) async fn lock(&self, node: &Node) -> Result<u64, CommandError> {
        let mut locks = self.locks.lock().await;
        if *locks == 0 {
            tokio::time::timeout(PATIENCE, self.close()).await.map_err(|_| {
                CommandError::new(
                    ErrorCode::LOCK_TIMEOUT,
                    "writes are still running; end them with killOp, or lock again later",
                )
            })?;
        }
        *locks += 1;
        node.show_write_locks(*locks);
        Ok(*locks)
    }

    /// Returns when the gate is closed. It opens again if this is given up before.
    async fn close(&self) {
        let closing = self.begin_to_close();
        loop {
            let news = self.news.notified();
            if self.door.lock().state == DoorState::Closed {
                std::mem::forget(closing);
                return;
            }
            news.await;
        }
    }

    fn begin_to_close(&self) -> Closing<'_> {
        let mut door = self.door.lock();
        let is_busy = door.passed > 0;
        self.set_door(&mut door, if is_busy { DoorState::Closing } else { DoorState::Closed });
        Closing(self)
    }

    /// Takes one lock back. Returns how many are left; the last one opens the gate.
    pub(crate) async fn unlock(&self, node: &Node) -> Result<u64, CommandError> {
        let mut locks = self.locks.lock().await;
        if *locks == 0 {
            return Err(CommandError::new(
                ErrorCode::ILLEGAL_OPERATION,
                "fsyncUnlock called when not locked",
            ));
        }
        *locks -= 1;
        if *locks == 0 {
            self.set_door(&mut self.door.lock(), DoorState::Open);
        }
        node.show_write_locks(*locks);
        Ok(*locks)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::{Pin, pin};
    use std::task::Poll;

    use super::*;

    async fn is_ready(mut future: Pin<&mut impl Future>) -> bool {
        poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_ready())).await
    }

    #[tokio::test]
    async fn a_gate_that_closes_lets_open_transactions_pass_until_no_write_is_within() {
        let gate = WriteGate::default();
        let within = gate.try_enter().unwrap();
        let mut closing = pin!(gate.close());
        assert!(!is_ready(closing.as_mut()).await, "a write is within");
        assert!(gate.try_enter().is_none());
        let mut new = pin!(gate.enter(Passage::New));
        assert!(!is_ready(new.as_mut()).await);
        let commit = gate.try_enter_as(Passage::OfOpenTransaction).unwrap();
        drop(within);
        assert!(!is_ready(closing.as_mut()).await, "the commit is within");
        drop(commit);
        assert!(gate.try_enter_as(Passage::OfOpenTransaction).is_none(), "it is closed at once");
        assert!(is_ready(closing.as_mut()).await);
        assert!(!is_ready(new.as_mut()).await);
        gate.set_door(&mut gate.door.lock(), DoorState::Open);
        assert!(is_ready(new.as_mut()).await);
    }

    #[tokio::test]
    async fn a_gate_that_is_no_longer_waited_to_close_is_open() {
        let gate = WriteGate::default();
        let within = gate.try_enter().unwrap();
        {
            let mut closing = pin!(gate.close());
            assert!(!is_ready(closing.as_mut()).await);
            assert!(gate.try_enter().is_none());
        }
        assert!(gate.try_enter().is_some());
        drop(within);
        assert!(gate.blocking_enter().is_some());
    }
}
