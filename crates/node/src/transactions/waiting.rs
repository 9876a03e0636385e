//! Plain writes that meet a key of an open transaction wait until that transaction ends.
//!
//! A waiting writer gives the write lock back and sleeps until the transaction ends. Between two looks at
//! its time limit it is woken by nothing else: there is no spinning, and the ends of other transactions cost it nothing.
//! It holds no keys, and transactions never wait, so there is no deadlock.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, PoisonError};
use std::time::Duration;

use quorate_transactions::TransactionId;

use quorate_protocol::Lock;

use super::refused;
use crate::catalog::{Collection, Ident};
use crate::context::Interrupt;
use crate::error::{CommandError, Result};
use crate::namespace::Namespace;
use crate::node::Block;
use crate::writer::{Worker, Writer};

/// The most writes and statements that wait at once; each keeps a thread.
const MAX_WAITING: usize = 256;

/// How often a waiting write looks whether it has been told to stop.
const INTERRUPT_INTERVAL: Duration = Duration::from_millis(20);

/// Where writers wait for the end of transactions.
#[derive(Default)]
pub(crate) struct EndQueue {
    /// The open transactions that writes wait for.
    waited_for: Lock<BTreeMap<TransactionId, Waited>>,
    waiting: AtomicUsize,
    /// `maxTransactionLockRequestTimeoutMillis`.
    lock_request: LockRequest,
    /// The collections whose description a command waits to change, and how many such commands.
    wanted: Lock<BTreeMap<Ident, usize>>,
    passed: Condvar,
}

/// A transaction that writes wait for.
#[derive(Default)]
struct Waited {
    writes: usize,
    ended: Arc<Condvar>,
}

/// A write that waits for a transaction, from the moment on in which it was seen to be open.
struct Waiting<'q> {
    queue: &'q EndQueue,
    holder: TransactionId,
    ended: Arc<Condvar>,
    _place: Place<'q>,
}

/// One of the places for writes that wait, until it is dropped.
struct Place<'q>(&'q AtomicUsize);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
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
        block: Block,
        ident: Ident,
        interrupt: &Interrupt,
    ) -> Result<()> {
        if !self.wanted.lock().contains_key(&ident) {
            return Ok(());
        }
        let _place = self.take_place()?;
        let mut passed = Ok(());
        (block.0)(&mut || passed = self.wait_for_changes(ident, interrupt));
        passed
    }

    fn wait_for_changes(&self, ident: Ident, interrupt: &Interrupt) -> Result<()> {
        let limit = u64::try_from(self.lock_request_millis()).ok();
        let mut waited = Duration::ZERO;
        let mut wanted = self.wanted.lock();
        while wanted.contains_key(&ident) {
            let left = limit.map(|limit| Duration::from_millis(limit).saturating_sub(waited));
            refuse_if!(left.is_some_and(|left| left.is_zero()) => LOCK_TIMEOUT,
                "Unable to acquire lock within a max lock request timeout: a command waits to \
                 change the collection; repeat the transaction");
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
        let mut wanted = self.wanted.lock();
        let count = wanted.entry(ident).or_default();
        *count = if wants { *count + 1 } else { count.saturating_sub(1) };
        if *count == 0 {
            wanted.remove(&ident);
            self.passed.notify_all();
        }
    }

    fn take_place(&self) -> Result<Place<'_>> {
        let taken = self.waiting.fetch_add(1, Ordering::SeqCst);
        let place = Place(&self.waiting);
        refuse_if!(taken >= MAX_WAITING => WRITE_CONFLICT,
            "{MAX_WAITING} writes wait for transactions to end already; write again later");
        Ok(place)
    }

    /// A write is about to wait for an open transaction. The caller holds the write lock, under which transactions end.
    fn enter(&self, holder: TransactionId) -> Result<Waiting<'_>> {
        let place = self.take_place()?;
        let mut waited_for = self.waited_for.lock();
        let waited = waited_for.entry(holder).or_default();
        waited.writes += 1;
        Ok(Waiting { queue: self, holder, ended: Arc::clone(&waited.ended), _place: place })
    }

    /// Wakes the writes that wait for these transactions.
    pub(super) fn transactions_ended(&self, ended: &[TransactionId]) {
        let mut waited_for = self.waited_for.lock();
        for waited in ended.iter().filter_map(|id| waited_for.remove(id)) {
            waited.ended.notify_all();
        }
    }
}

impl Waiting<'_> {
    /// Waits until the transaction has ended, or until the interrupt says to stop.
    fn wait(&self, interrupt: &Interrupt) -> Result<()> {
        interrupt.set_waiting(true);
        let mut waited_for = self.queue.waited_for.lock();
        let mut result = interrupt.check();
        while waited_for.contains_key(&self.holder) && result.is_ok() {
            let woken = self.ended.wait_timeout(waited_for, INTERRUPT_INTERVAL);
            waited_for = woken.unwrap_or_else(PoisonError::into_inner).0;
            result = interrupt.check();
        }
        drop(waited_for);
        interrupt.set_waiting(false);
        result
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut waited_for = self.queue.waited_for.lock();
        // It is not there any more once the transaction has ended.
        if let Some(waited) = waited_for.get_mut(&self.holder) {
            waited.writes -= 1;
            if waited.writes == 0 {
                waited_for.remove(&self.holder);
            }
        }
    }
}

impl Writer<'_> {
    /// The command that this writer works for, so that it may wait for transactions.
    pub(crate) fn work_for(&mut self, interrupt: &Arc<Interrupt>) {
        self.interrupt = Some(Arc::clone(interrupt));
        self.waits = true;
        self.worker = Some(Worker::new(interrupt));
    }

    /// An error if the command that is worked for is to stop. Asked between steps that take long with large
    /// documents.
    pub(crate) fn check_interrupt(&self) -> Result<()> {
        self.interrupt.as_ref().map_or(Ok(()), |interrupt| interrupt.check())
    }

    /// Notes that a transaction is in the way. The error is for commands that cannot wait.
    pub(crate) fn blocked_by(&mut self, holder: TransactionId) -> CommandError {
        self.blocked = Some(holder);
        refused(quorate_transactions::Refusal::WriteConflict)
    }

    /// Whether the last error came from something that is waited for.
    pub(crate) fn is_held_up(&self) -> bool {
        self.blocked.is_some() || self.judging.is_open()
    }

    /// If the last error came from a key that a transaction holds: commits what was deferred, gives
    /// the lock back and waits until that transaction has ended. The same if it came from rules of the collection that
    /// take long, which are evaluated. Then returns true, and nothing that was looked up before need be as it was.
    pub(crate) fn wait_if_blocked(&mut self) -> Result<bool> {
        if self.is_staging() || self.is_replaying() {
            return Ok(false);
        }
        let Some(interrupt) = self.interrupt.clone() else { return Ok(false) };
        if self.judge_aside()? {
            return Ok(true);
        }
        let Some(holder) = self.blocked.take() else { return Ok(false) };
        self.flush()?;
        self.node.counters().write_conflict();
        interrupt.count_conflict();
        if self.state.transactions.table.is_open(holder) {
            let waiting = self.node.end_queue().enter(holder)?;
            self.announcement.tell();
            self.state.let_go();
            self.note_lock(false);
            let mut waited = Ok(());
            (self.node.options().block.0)(&mut || waited = waiting.wait(&interrupt));
            self.state.take_again();
            self.note_lock(true);
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
        run: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
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
    ) -> Result<Option<Arc<Collection>>> {
        let found = |writer: &Self| writer.collection(namespace).into_iter().collect();
        Ok(self.unused_collections(found)?.pop())
    }

    /// The same for all collections that are found, at one moment.
    pub(crate) fn unused_collections(
        &mut self,
        find: impl Fn(&Self) -> Vec<Arc<Collection>>,
    ) -> Result<Vec<Arc<Collection>>> {
        loop {
            let wanted = find(self);
            let mut waited = false;
            for collection in &wanted {
                waited |= self.wait_for_users(collection.ident)?;
            }
            if !waited {
                return Ok(wanted);
            }
        }
    }

    /// A description of a collection is about to change: waits for the transactions that use it.
    pub(crate) fn wait_for_users(&mut self, ident: Ident) -> Result<bool> {
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

    fn wait_until_unused(&mut self, ident: Ident) -> Result<bool> {
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
