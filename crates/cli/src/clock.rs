//! The operating system's monotonic clock.
//!
//! `t_ns` is CLOCK_MONOTONIC itself, not the time since this program began, so that lines of
//! several programs on one machine can be put in order.

use quorate_protocol::MonotonicTime;
use rustix::time::{ClockId, clock_gettime};

/// CLOCK_MONOTONIC, now.
pub(crate) fn now() -> MonotonicTime {
    let time = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    MonotonicTime::from_nanos(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_runs_and_never_goes_back() {
        let earlier = now();
        assert!(earlier > MonotonicTime::ZERO);
        assert!(now() >= earlier);
    }
}
