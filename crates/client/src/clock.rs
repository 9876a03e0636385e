//! The monotonic clock of one client.

use quorate_protocol::MonotonicTime;
use tokio::time::Instant;

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
