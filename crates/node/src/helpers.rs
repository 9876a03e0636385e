//! Threads that the host lends to a command that runs long.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of documents that all scans together hold ahead of their readers.
const MAX_READ_AHEAD: usize = 64 * 1024 * 1024;

/// Work for another thread.
pub type Job = Box<dyn FnOnce() + Send>;

/// Starts jobs on other threads. A member starts none itself: without helpers every command runs on
/// the thread that its host gave it.
pub struct Helpers {
    start: Box<dyn Fn(Job) -> bool + Send + Sync>,
    /// Bytes of documents that were read ahead and not taken yet.
    read_ahead: AtomicUsize,
}

impl Helpers {
    /// `start` runs a job on an idle thread soon, or drops it and returns false.
    pub fn new(start: impl Fn(Job) -> bool + Send + Sync + 'static) -> Self {
        Self { start: Box::new(start), read_ahead: AtomicUsize::new(0) }
    }

    pub(crate) fn start(&self, job: Job) -> bool {
        (self.start)(job)
    }

    pub(crate) fn may_read_ahead(&self) -> bool {
        self.read_ahead.load(Ordering::Relaxed) < MAX_READ_AHEAD
    }

    #[cfg(test)]
    pub(crate) fn held(&self) -> usize {
        self.read_ahead.load(Ordering::Relaxed)
    }

    pub(crate) fn hold(&self, bytes: usize) {
        self.read_ahead.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn release(&self, bytes: usize) {
        self.read_ahead.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl fmt::Debug for Helpers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Helpers").field("read_ahead", &self.read_ahead).finish_non_exhaustive()
    }
}
