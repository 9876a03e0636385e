//! The signal that ends an operation whose server was lost.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use quorate_protocol::Lock;

/// Tells an operation that its connection is to be given up.
#[derive(Debug, Default)]
pub(super) struct Interrupt {
    fired: AtomicBool,
    /// The task that waits on the connection.
    waiting: Lock<Option<Waker>>,
}

impl Interrupt {
    pub(super) fn fire(&self) {
        self.fired.store(true, Ordering::SeqCst);
        if let Some(waker) = self.waiting.lock().take() {
            waker.wake();
        }
    }

    pub(super) fn has_fired(&self) -> bool {
        self.fired.load(Ordering::SeqCst)
    }

    /// The output of `work`, or `None` if the signal comes first.
    pub(super) async fn unless_fired<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        let mut waits = false;
        poll_fn(|context| self.poll(&mut waits, context, |context| work.as_mut().poll(context)))
            .await
    }

    /// Polls `work` once, unless the signal came before. `waits` says whether this is where the signal is heard.
    pub(super) fn poll<T>(
        &self,
        waits: &mut bool,
        context: &mut Context<'_>,
        work: impl FnOnce(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<Option<T>> {
        let output = match self.has_fired() {
            true => None,
            false => match work(context) {
                Poll::Ready(output) => Some(output),
                Poll::Pending => {
                    *waits = true;
                    self.waiting
                        .lock()
                        .get_or_insert_with(|| context.waker().clone())
                        .clone_from(context.waker());
                    // Looked at again once it can be heard, so that no signal falls in between.
                    if !self.has_fired() {
                        return Poll::Pending;
                    }
                    None
                }
            },
        };
        if std::mem::take(waits) {
            // A connection that is idle keeps no task.
            self.waiting.lock().take();
        }
        Poll::Ready(output)
    }
}
