//! The mutex of everything that threads share.

use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// A mutex that stays usable after a thread panicked while it held the lock.
///
/// What is guarded is whole after every statement of its holders, and a panic is reported where it happens: to refuse
/// the lock to all others would only turn one failure into many.
#[derive(Debug, Default)]
pub struct Lock<T: ?Sized>(Mutex<T>);

impl<T> Lock<T> {
    /// A lock of this value.
    pub const fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }
}

impl<T: ?Sized> Lock<T> {
    /// Waits for the lock, which is released when the guard is dropped.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lock, if no other thread holds it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(guard)) => Some(guard.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_panic_of_one_holder_leaves_the_lock_to_the_others() {
        let lock = Lock::new(1);
        let panicked = thread::scope(|scope| {
            let holder = scope.spawn(|| {
                let mut guard = lock.lock();
                *guard = 2;
                panic!("while the lock is held");
            });
            holder.join().is_err()
        });
        assert!(panicked);
        assert_eq!(lock.try_lock().map(|guard| *guard), Some(2));
        let held = lock.lock();
        assert!(lock.try_lock().is_none());
        assert_eq!(*held, 2);
    }
}
