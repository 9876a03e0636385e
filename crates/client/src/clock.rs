//! The monotonic clock of one client.

use quorate_protocol::MonotonicTime;
use tokio::time::Instant;

/// Turns the runtime's instants into the values that the sans-I/O parts compare, and back.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
}

impl Clock {
    /// A clock that begins now.
    pub fn start() -> Self {
        Self { origin: Instant::now() }
    }

    /// The time.
    pub fn now(&self) -> MonotonicTime {
        let nanos = self.origin.elapsed().as_nanos();
        MonotonicTime::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// The runtime's instant for a time on this clock.
    pub fn instant(&self, time: MonotonicTime) -> Instant {
        self.origin + time.since(MonotonicTime::ZERO)
    }
}
