//! Both clocks of the machine, as the values that a member is told.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use quorate_node::Now;
use quorate_protocol::{MonotonicTime, WallTime};

/// Reads the machine's clocks. The monotonic one starts at zero when this value is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    origin: Instant,
}

impl Clock {
    /// A clock that starts now.
    pub(crate) fn new() -> Self {
        Self { origin: Instant::now() }
    }

    /// The time on both clocks.
    pub(crate) fn now(&self) -> Now {
        let since_epoch = match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(after) => i64::try_from(after.as_millis()).unwrap_or(i64::MAX),
            Err(before) => -i64::try_from(before.duration().as_millis()).unwrap_or(i64::MAX),
        };
        let elapsed: Duration = self.origin.elapsed();
        Now { wall: WallTime(since_epoch), monotonic: MonotonicTime::ZERO + elapsed }
    }
}
