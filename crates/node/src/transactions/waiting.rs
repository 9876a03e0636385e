//! Plain writes that meet a key of an open transaction wait until one ends.
//!
//! A waiting writer gives the write lock back and sleeps until a transaction ends. Between two looks at
//! its time limit it is woken by nothing else: there is no spinning. It holds no keys, and transactions
//! never wait, so there is no deadlock.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use quorate_transactions::TransactionId;

use super::refused;
use crate::catalog::{Collection, Ident};
use crate::context::Interrupt;
use crate::error::{CommandError, ErrorCode};
use crate::namespace::Namespace;
use crate::node::Node;
use crate::writer::Writer;

/// The most writes that wait at once; each keeps a thread.
const MAX_WAITING: usize = 256;

/// How often a waiting write looks whether it has been told to stop.
const INTERRUPT_INTERVAL: Duration = Duration::from_millis(20);

/// Where writers wait for the end of transactions.
#[derive(Default)]
pub(crate) struct EndQueue {
    /// How often transactions have ended.
    ends: Mutex<u64>,
    woken: Condvar,
    waiting: AtomicUsize,
    /// `maxTransactionLockRequestTimeoutMillis`.
    lock_request: LockRequest,
    /// The collections whose description a command waits to change, and how many such commands.
    wanted: Mutex<BTreeMap<Ident, usize>>,
    passed: Condvar,
}

/// How long a transaction waits, in milliseconds: −1 for as long as its statement may take.
struct LockRequest(AtomicI32);

impl Default for LockRequest {
    fn default() -> Self {
        Self(AtomicI32::new(5))
    }
}

impl EndQueue {
    /// How many writes wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    pub(crate) fn lock_request_millis(&self) -> i32 {
        self.lock_request.0.load(Ordering::Relaxed)
    }

    /// Returns what it was.
    pub(crate) fn set_lock_request_millis(&self, millis: i32) -> i32 {
        self.lock_request.0.swap(millis, Ordering::Relaxed)
    }

    /// A transaction uses a collection for the first time. If a command waits to change the
    /// collection's description, the transaction lets it go first, for a short while.
    pub(super) fn let_changes_pass(
        &self,
        ident: Ident,
        interrupt: &Interrupt,
    ) -> Result<(), CommandError> {
        let limit = u64::try_from(self.lock_request_millis()).ok();
        let mut waited = Duration::ZERO;
        let mut wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        while wanted.contains_key(&ident) {
            let left = limit.map(|limit| Duration::from_millis(limit).saturating_sub(waited));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(CommandError::new(
                    ErrorCode::LOCK_TIMEOUT,
                    "Unable to acquire lock within a max lock request timeout: a command waits to \
                     change the collection; repeat the transaction",
                ));
            }
            let step = left.unwrap_or(INTERRUPT_INTERVAL).min(INTERRUPT_INTERVAL);
            let (guard, timeout) =
                self.passed.wait_timeout(wanted, step).unwrap_or_else(PoisonError::into_inner);
            wanted = guard;
            if timeout.timed_out() {
                waited += step;
            }
            interrupt.check()?;
        }
        Ok(())
    }

    fn want(&self, ident: Ident, wants: bool) {
        let mut wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        let count = wanted.entry(ident).or_default();
        *count = if wants { *count + 1 } else { count.saturating_sub(1) };
        if *count == 0 {
            wanted.remove(&ident);
            self.passed.notify_all();
        }
    }

    fn count(&self) -> u64 {
        *self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a transaction ends after this count, or until the interrupt says to stop.
    fn wait(&self, count: u64, interrupt: &Interrupt) -> Result<(), CommandError> {
        if self.waiting.fetch_add(1, Ordering::SeqCst) >= MAX_WAITING {
            self.waiting.fetch_sub(1, Ordering::SeqCst);
            return Err(CommandError::new(
                ErrorCode::WRITE_CONFLICT,
                format!(
                    "{MAX_WAITING} writes wait for transactions to end already; write again later"
                ),
            ));
        }
        interrupt.set_waiting(true);
        let mut ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        let mut result = interrupt.check();
        while *ends == count && result.is_ok() {
            let waited = self.woken.wait_timeout(ends, INTERRUPT_INTERVAL);
            ends = waited.unwrap_or_else(PoisonError::into_inner).0;
            result = interrupt.check();
        }
        drop(ends);
        interrupt.set_waiting(false);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        result
    }
}

impl Node {
    /// Wakes the commands that wait for a transaction to end.
    pub(crate) fn transactions_ended(&self) {
        let queue = self.end_queue();
        *queue.ends.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        queue.woken.notify_all();
    }
}

impl Writer<'_> {
    /// The command that this writer works for, so that it may wait for transactions.
    pub(crate) fn work_for(&mut self, interrupt: &Arc<Interrupt>) {
        self.interrupt = Some(Arc::clone(interrupt));
    }

    /// An error if the command that is worked for is to stop. Asked between steps that take long with large
    /// documents.
    pub(crate) fn check_interrupt(&self) -> Result<(), CommandError> {
        self.interrupt.as_ref().map_or(Ok(()), |interrupt| interrupt.check())
    }

    /// Notes that a transaction is in the way. The error is for commands that cannot wait.
    pub(crate) fn blocked_by(&mut self, holder: TransactionId) -> CommandError {
        self.blocked = Some(holder);
        refused(quorate_transactions::Refusal::WriteConflict)
    }

    /// If the last error came from a key that a transaction holds: commits what was deferred, gives
    /// the lock back and waits until a transaction has ended. Then returns true, and nothing that was
    /// looked up before need be as it was.
    pub(crate) fn wait_if_blocked(&mut self) -> Result<bool, CommandError> {
        if self.is_staging() || self.is_replaying() {
            return Ok(false);
        }
        let Some(interrupt) = self.interrupt.clone() else { return Ok(false) };
        let Some(holder) = self.blocked.take() else { return Ok(false) };
        self.flush()?;
        self.node.counters().write_conflict();
        interrupt.count_conflict();
        let queue = self.node.end_queue();
        let count = queue.count();
        if self.state.transactions.table.is_open(holder) {
            self.state.let_go();
            let mut waited = Ok(());
            (self.node.options().block.0)(&mut || waited = queue.wait(count, &interrupt));
            self.state.take_again();
            waited?;
        }
        self.forget_view();
        self.look_for_repetition()?;
        Ok(true)
    }

    /// Runs something that gives up where it would wait for a transaction: the caller has to look again
    /// once it has waited.
    pub(crate) fn without_waiting<T>(
        &mut self,
        run: impl FnOnce(&mut Self) -> Result<T, CommandError>,
    ) -> Result<T, CommandError> {
        let interrupt = self.interrupt.take();
        self.blocked = None;
        let result = run(self);
        self.interrupt = interrupt;
        result
    }

    /// A collection whose description may be changed: transactions that used it have ended.
    pub(crate) fn unused_collection(
        &mut self,
        namespace: &Namespace,
    ) -> Result<Option<Arc<Collection>>, CommandError> {
        loop {
            let Some(collection) = self.collection(namespace) else { return Ok(None) };
            if !self.wait_for_users(collection.ident)? {
                return Ok(Some(collection));
            }
        }
    }

    /// A description of a collection is about to change: waits for the transactions that use it.
    pub(crate) fn wait_for_users(&mut self, ident: Ident) -> Result<bool, CommandError> {
        if self.is_staging() || self.is_replaying() {
            return Ok(false);
        }
        if self.state.transactions.bodies.is_empty() {
            return Ok(false);
        }
        self.node.end_queue().want(ident, true);
        let waited = self.wait_until_unused(ident);
        self.node.end_queue().want(ident, false);
        waited
    }

    fn wait_until_unused(&mut self, ident: Ident) -> Result<bool, CommandError> {
        let mut waited = false;
        loop {
            let bodies = self.state.transactions.bodies.values();
            let user = bodies.into_iter().find(|body| body.uses(ident)).map(|body| body.id);
            let Some(user) = user else { return Ok(waited) };
            self.blocked = Some(user);
            if !self.wait_if_blocked()? {
                return Err(refused(quorate_transactions::Refusal::WriteConflict));
            }
            waited = true;
        }
    }
}
