//! Both clocks of the machine, as the values that a member is told.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use quorate_node::Now;
use quorate_protocol::{MonotonicTime, WallTime};

/// Reads the machine's clocks. The monotonic one starts at zero when this value is made. Clones are the same clock.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    origin: Instant,
    /// By how many milliseconds a fail point moves the calendar.
    moved: Arc<AtomicI64>,
}

impl Clock {
    /// A clock that starts now.
    pub(crate) fn new() -> Self {
        Self { origin: Instant::now(), moved: Arc::default() }
    }

    /// Moves the calendar by so many milliseconds from the machine's. The monotonic clock goes on.
    pub(crate) fn move_calendar(&self, millis: i64) {
        self.moved.store(millis, Ordering::Relaxed);
    }

    /// The time on both clocks.
    pub(crate) fn now(&self) -> Now {
        let since_epoch = match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(after) => i64::try_from(after.as_millis()).unwrap_or(i64::MAX),
            Err(before) => -i64::try_from(before.duration().as_millis()).unwrap_or(i64::MAX),
        };
        let wall = since_epoch.saturating_add(self.moved.load(Ordering::Relaxed));
        Now { wall: WallTime(wall), monotonic: self.monotonic() }
    }

    /// The time on the clock for timeouts alone.
    pub(crate) fn monotonic(&self) -> MonotonicTime {
        MonotonicTime::ZERO + self.origin.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moved_calendar_is_moved_for_every_clone_and_the_other_clock_goes_on() {
        const HOUR: i64 = 3_600_000;
        let clock = Clock::new();
        let clone = clock.clone();
        let before = clone.now();
        clock.move_calendar(-HOUR);
        let after = clone.now();
        assert!(after.wall.as_millis() < before.wall.as_millis() - HOUR / 2);
        assert!(after.monotonic >= before.monotonic);
        clock.move_calendar(0);
        assert!(clone.now().wall >= before.wall);
    }
}
