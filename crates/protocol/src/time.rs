//! The two clocks, as values handed in by the owner of a real one.

use std::fmt;
use std::ops::Add;
use std::time::Duration;

/// A point on a clock that never goes back, in nanoseconds since an origin of the caller's choice.
///
/// The shells read it from the operating system, the simulator makes it up; the cores only compare
/// and add.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct MonotonicTime(u64);

impl MonotonicTime {
    /// The clock's origin.
    pub const ZERO: Self = Self(0);

    /// The given number of nanoseconds after the origin.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// The given number of milliseconds after the origin.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// Nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// How long after `earlier` this is; zero if it is not after it.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for MonotonicTime {
    type Output = Self;

    /// Saturates at the end of the clock, some 584 years after its origin.
    fn add(self, interval: Duration) -> Self {
        let nanos = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos))
    }
}

impl fmt::Debug for MonotonicTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", Duration::from_nanos(self.0))
    }
}

/// Calendar time as BSON dates carry it: milliseconds since the Unix epoch, possibly negative.
///
/// Only ever compared with other wall times that the *servers* reported; no core decides anything
/// by the local wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct WallTime(pub i64);

impl WallTime {
    /// Milliseconds since the Unix epoch.
    pub const fn as_millis(self) -> i64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adding_past_the_end_of_the_clock_saturates() {
        assert_eq!(
            MonotonicTime::from_nanos(u64::MAX - 1) + Duration::from_secs(1),
            MonotonicTime::from_nanos(u64::MAX)
        );
        assert_eq!(MonotonicTime::ZERO + Duration::MAX, MonotonicTime::from_nanos(u64::MAX));
    }

    #[test]
    fn since_never_underflows() {
        assert_eq!(MonotonicTime::ZERO.since(MonotonicTime::from_millis(5)), Duration::ZERO);
        assert_eq!(
            MonotonicTime::from_millis(7).since(MonotonicTime::from_millis(5)),
            Duration::from_millis(2)
        );
    }
}
