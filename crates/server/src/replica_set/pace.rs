//! One timer for all streams of the oplog: what gathers in a stream is sent in time though nothing else happens.
//!
//! A set under load moves its commit point all the time, and each time something gathers for a moment. The timer
//! therefore goes on while messages are sent: under load no thread has to wake a task to start it, and one task wakes
//! for all streams.
//!
//! ```text
//!          ask                no message was sent for an interval
//!   idle ──────▶ ticking ─────────────────────────────────────────▶ idle
//!                 │  ▲
//!                 └──┘ when the time of the oldest last message is up
//! ```

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

/// The longest that entries gather, for a message or for a sync, while earlier ones are not committed. A commit point
/// that moved waits as long for an entry to travel with.
pub(super) const GATHERING: Duration = Duration::from_millis(2);

/// The timer.
#[derive(Default)]
pub(super) struct Pace {
    is_ticking: AtomicBool,
    wake: Notify,
}

impl Pace {
    /// Something gathers.
    pub(super) fn ask(&self) {
        if !self.is_ticking.swap(true, Ordering::SeqCst) {
            self.wake.notify_one();
        }
    }

    /// Ticks once it is asked to. A tick sends what has gathered for long enough, and returns when the next one is
    /// due, if something gathers or may begin to.
    pub(super) async fn run(&self, mut tick: impl FnMut() -> Option<Duration>) -> Infallible {
        loop {
            self.wake.notified().await;
            while let Some(pause) = tick() {
                tokio::time::sleep(pause).await;
            }
            self.is_ticking.store(false, Ordering::SeqCst);
            // What began to gather before the flag was taken back has not woken this task.
            if tick().is_some() {
                self.ask();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::task::{Context, Waker};

    use super::*;

    /// Runs the timer until it stops, and counts its ticks. So many of them ask for another.
    async fn ticks(pace: &Pace, more: impl Fn(u32) -> bool) -> u32 {
        let count = Cell::new(0);
        let tick = || {
            count.set(count.get() + 1);
            more(count.get()).then_some(GATHERING / 2)
        };
        let stopped = async {
            while pace.is_ticking.load(Ordering::SeqCst) {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            biased;
            never = pace.run(tick) => match never {},
            stopped = tokio::time::timeout(Duration::from_secs(60), stopped) => stopped.unwrap(),
        }
        count.get()
    }

    #[tokio::test]
    async fn it_ticks_as_long_as_something_may_gather() {
        let pace = Pace::default();
        assert_eq!(ticks(&pace, |_| false).await, 0, "it was not asked");
        for _ in 0..2 {
            pace.ask();
            assert_eq!(ticks(&pace, |count| count < 5).await, 6, "the last look is after the end");
        }
    }

    #[tokio::test]
    async fn what_gathers_while_it_stops_is_not_forgotten() {
        let pace = Pace::default();
        pace.ask();
        // The first tick has nothing to do; the look after it finds something.
        assert_eq!(ticks(&pace, |count| count == 2 || count == 3).await, 5);
    }

    /// Under load no thread wakes the task to start it.
    #[tokio::test]
    async fn it_is_started_once() {
        let pace = Pace::default();
        let mut running = Box::pin(pace.run(|| Some(GATHERING)));
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..3 {
            pace.ask();
        }
        assert!(running.as_mut().poll(&mut context).is_pending());
        let mut woken = Box::pin(pace.wake.notified());
        pace.ask();
        assert!(woken.as_mut().poll(&mut context).is_pending(), "it is ticking already");
    }
}
