//! The monotonic clock of one client.

use std::sync::{Arc, Weak};

use quorate_protocol::MonotonicTime;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// Turns the runtime's instants into the values that the sans-I/O parts compare, and back.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
    /// What the time was at the origin.
    began: MonotonicTime,
}

impl Clock {
    /// A clock that begins now.
    pub fn start() -> Self {
        Self::starting_at(MonotonicTime::ZERO)
    }

    /// A clock by which it is this time now, to compare times with another clock's.
    pub fn starting_at(began: MonotonicTime) -> Self {
        Self { origin: Instant::now(), began }
    }

    /// The time when the clock began.
    pub fn began(&self) -> MonotonicTime {
        self.began
    }

    /// The time.
    pub fn now(&self) -> MonotonicTime {
        self.began + self.origin.elapsed()
    }

    /// The runtime's instant for a time on this clock.
    pub fn instant(&self, time: MonotonicTime) -> Instant {
        self.origin + time.since(self.began)
    }
}

/// Wakes a value at its deadlines until it is gone, without keeping it alive. `next` says when, and is asked again
/// after each notification.
pub(crate) async fn wake_at_deadlines<T>(
    owner: Weak<T>,
    changed: Arc<Notify>,
    next: impl Fn(&T) -> Option<Instant>,
    wake: impl Fn(&Arc<T>),
) {
    loop {
        let Some(deadline) = owner.upgrade().map(|owner| next(&owner)) else { return };
        let due = async {
            match deadline {
                Some(deadline) => sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = due => match owner.upgrade() {
                Some(owner) => wake(&owner),
                None => return,
            },
            () = changed.notified() => {}
        }
    }
}
