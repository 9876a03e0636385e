//! The clock, as something that can be handed in.
//!
//! Everything that depends on time asks this trait: when to scan, how long a connection was idle,
//! how long an operation may still take. Tests hand in a clock of their own and need not wait.

use std::time::{Duration, Instant};

use quorate_protocol::MonotonicTime;

/// A clock that never goes back, and a way to let time pass on it.
pub trait Clock {
    /// The time.
    fn now(&self) -> MonotonicTime;

    /// Returns once this much time has passed on this clock.
    fn sleep(&self, interval: Duration);
}

/// The clock of the operating system, counted from its making.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    origin: Instant,
}

impl SystemClock {
    /// A clock that starts at zero now.
    pub fn new() -> Self {
        Self { origin: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> MonotonicTime {
        MonotonicTime::ZERO + self.origin.elapsed()
    }

    fn sleep(&self, interval: Duration) {
        std::thread::sleep(interval);
    }
}

/// When something has to be done; `None` is never.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(Option<MonotonicTime>);

impl Deadline {
    pub(crate) fn after(clock: &dyn Clock, timeout: Option<Duration>) -> Self {
        Self(timeout.map(|timeout| clock.now() + timeout))
    }

    /// How long there still is. `Err` if there is nothing left: the operating system takes a
    /// timeout of zero for none at all.
    pub(crate) fn remaining(self, clock: &dyn Clock) -> Result<Option<Duration>, Expired> {
        match self.0.map(|at| at.since(clock.now())) {
            Some(Duration::ZERO) => Err(Expired),
            remaining => Ok(remaining),
        }
    }
}

/// There is no time left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expired;

#[cfg(test)]
mod tests {
    use super::*;

    struct Still(MonotonicTime);

    impl Clock for Still {
        fn now(&self) -> MonotonicTime {
            self.0
        }

        fn sleep(&self, _interval: Duration) {}
    }

    #[test]
    fn a_deadline_is_never_handed_out_as_a_timeout_of_zero() {
        let early = Still(MonotonicTime::from_millis(10));
        let deadline = Deadline::after(&early, Some(Duration::from_millis(5)));
        assert_eq!(deadline.remaining(&early), Ok(Some(Duration::from_millis(5))));
        assert_eq!(deadline.remaining(&Still(MonotonicTime::from_millis(15))), Err(Expired));
        assert_eq!(deadline.remaining(&Still(MonotonicTime::from_millis(99))), Err(Expired));
        assert_eq!(Deadline::after(&early, None).remaining(&early), Ok(None));
    }

    #[test]
    fn the_system_clock_never_goes_back() {
        let clock = SystemClock::new();
        let first = clock.now();
        assert!(clock.now() >= first);
    }
}
