//! A background task that ends with its owner.

use std::future::Future;

use tokio::task::AbortHandle;

/// Aborts its task when it is dropped.
pub(crate) struct Task(AbortHandle);

impl Task {
    /// Starts the task on the current runtime. Its result is not used.
    pub(crate) fn spawn<F>(work: F) -> Self
    where
        F: Future<Output: Send> + Send + 'static,
    {
        Self(tokio::spawn(work).abort_handle())
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}
