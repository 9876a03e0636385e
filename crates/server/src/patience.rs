//! When to give up on a command: its time is over, or another command stops it.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use quorate_node::{CommandError, Interrupt, Interruption};

use crate::deadlines::Deadline;
use crate::server::Shared;

/// How long a command may go on: until its `maxTimeMS` has passed or another command stops it, while it runs
/// and while it waits.
pub(crate) struct Patience<'s> {
    pub(crate) shared: &'s Arc<Shared>,
    interrupt: Arc<Interrupt>,
    until: Option<Instant>,
    /// A running command checks the interrupt; only this sets its time limit.
    _deadline: Option<Deadline>,
}

impl<'s> Patience<'s> {
    pub(crate) fn start(
        shared: &'s Arc<Shared>,
        limit: Option<Duration>,
        interrupt: &Arc<Interrupt>,
    ) -> Self {
        let interrupt = Arc::clone(interrupt);
        if limit == Some(Duration::ZERO) {
            interrupt.set(Interruption::MaxTime);
        }
        // A limit beyond all time is none.
        let until = limit.and_then(|limit| Instant::now().checked_add(limit));
        let deadline = until.map(|until| shared.deadlines.add(until, Arc::clone(&interrupt)));
        Self { shared, interrupt, until, _deadline: deadline }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.interrupt.check().is_err()
    }

    /// Waits for something, or until the command should stop.
    pub(crate) async fn wait<T>(
        &self,
        what: impl Future<Output = Result<T, CommandError>>,
    ) -> Result<T, CommandError> {
        let mut what = std::pin::pin!(what);
        // Most of what is waited for is there already.
        let there = poll_fn(|context| match what.as_mut().poll(context) {
            Poll::Ready(result) => Poll::Ready(Some(result)),
            Poll::Pending => Poll::Ready(None),
        });
        if let Some(result) = there.await {
            return result;
        }
        let mut kills = self.shared.kills.subscribe();
        loop {
            tokio::select! {
                biased;
                result = &mut what => return result,
                // It was stopped before this subscribed.
                () = std::future::ready(()), if self.is_over() => {}
                () = reached(self.until) => self.interrupt.set(Interruption::MaxTime),
                _ = kills.changed() => {}
            }
            self.interrupt.check()?;
        }
    }
}

/// Returns at this time; never, if there is none.
pub(crate) async fn reached(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}
