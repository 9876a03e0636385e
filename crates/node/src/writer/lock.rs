//! The write lock: one writer at a time, and no writer waits for a long piece of work to end.
//!
//! A writer that works through many documents lets the lock go between two steps. A plain mutex
//! would then mostly be taken again by the same thread, which is awake, so it waits until one of
//! the waiting threads has held the lock. Short writes do not take turns: handing the lock from thread
//! to thread for each of them would cost more than the writes.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::WriterState;

/// Guards what only one writer may touch.
pub(crate) struct WriteLock {
    state: Mutex<WriterState>,
    /// How many threads want it.
    waiting: AtomicUsize,
    /// How often it was taken.
    taken: AtomicU64,
}

impl WriteLock {
    pub(crate) fn new(state: WriterState) -> Self {
        Self { state: Mutex::new(state), waiting: AtomicUsize::new(0), taken: AtomicU64::new(0) }
    }

    /// Waits for the lock.
    pub(crate) fn hold(&self) -> Held<'_> {
        Held { lock: self, guard: Some(self.take()) }
    }

    /// A command that panicked has changed nothing or committed a whole batch, and what is guarded
    /// is only ever ahead of the store, so the next command may go on.
    fn take(&self) -> MutexGuard<'_, WriterState> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let guard = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        self.taken.fetch_add(1, Ordering::SeqCst);
        guard
    }
}

/// The write lock, held.
pub(crate) struct Held<'n> {
    lock: &'n WriteLock,
    /// Empty only while it gives way.
    guard: Option<MutexGuard<'n, WriterState>>,
}

impl Held<'_> {
    /// How often the lock was taken.
    #[cfg(test)]
    pub(crate) fn times_taken(&self) -> u64 {
        self.lock.taken.load(Ordering::SeqCst)
    }

    /// Gives the lock back. Until [`take_again`](Self::take_again) the state must not be touched.
    pub(crate) fn let_go(&mut self) {
        self.guard = None;
    }

    /// Waits for the lock after [`let_go`](Self::let_go).
    pub(crate) fn take_again(&mut self) {
        self.guard = Some(self.lock.take());
    }

    /// Lets a waiting writer go first.
    pub(super) fn give_way(&mut self) {
        let before = self.lock.taken.load(Ordering::SeqCst);
        self.guard = None;
        // The lock is free and another thread wants it, so this ends as soon as that thread runs.
        while self.lock.waiting.load(Ordering::SeqCst) > 0
            && self.lock.taken.load(Ordering::SeqCst) == before
        {
            std::thread::yield_now();
        }
        self.guard = Some(self.lock.take());
    }
}

impl Deref for Held<'_> {
    type Target = WriterState;

    fn deref(&self) -> &WriterState {
        match &self.guard {
            Some(guard) => guard,
            None => unreachable!("the lock is held except within give_way"),
        }
    }
}

impl DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut WriterState {
        match &mut self.guard {
            Some(guard) => guard,
            None => unreachable!("the lock is held except within give_way"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn who_waits_goes_first_when_the_holder_gives_way() {
        let lock = WriteLock::new(WriterState::new(1));
        let (waits, waiting) = mpsc::channel();
        let (had, has_had) = mpsc::channel();
        std::thread::scope(|threads| {
            let mut held = lock.hold();
            threads.spawn(|| {
                waits.send(()).unwrap();
                drop(lock.hold());
                had.send(()).unwrap();
            });
            waiting.recv().unwrap();
            // It may not be in the queue yet; once it is, one time is enough.
            while has_had.try_recv().is_err() {
                held.give_way();
            }
        });
    }
}
