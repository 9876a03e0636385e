//! The gate before all writes, which `fsync` with `lock` closes until `fsyncUnlock`.
//!
//! Clients' writes wait at it, each for as long as its client lets it; entries of other members wait,
//! and so does what the member removes on its own. Votes, terms and configurations pass: a member that
//! is locked still takes part in its set. The gate closes when whoever has passed it is done, and nobody
//! passes it from then on.

use std::sync::Arc;
use std::time::Duration;

use quorate_node::{CommandError, ErrorCode, Node};
use tokio::sync::{Mutex, OwnedRwLockWriteGuard, RwLock, RwLockReadGuard};

/// How long `fsync` waits for running writes to end; the manual's `fsyncLockAcquisitionTimeoutMillis`.
const PATIENCE: Duration = Duration::from_secs(90);

/// Leave to write, until it is dropped.
pub(crate) type Entered<'a> = RwLockReadGuard<'a, ()>;

/// The gate. Whoever holds what [`enter`](Self::enter) gives may write.
#[derive(Default)]
pub(crate) struct WriteGate {
    gate: Arc<RwLock<()>>,
    locks: Mutex<Locks>,
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

    /// The same for threads that run no tasks.
    pub(crate) fn blocking_enter(&self) -> Entered<'_> {
        self.gate.blocking_read()
    }

    /// Passes if nothing keeps writes out, for what can be done another time.
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
