//! The operating system's monotonic clock.
//!
//! `t_ns` is CLOCK_MONOTONIC itself, not the time since this program began, so that lines of
//! several programs on one machine can be put in order.

use std::time::{SystemTime, UNIX_EPOCH};

use quorate_protocol::{MonotonicTime, WallTime};
use rustix::time::{ClockId, clock_gettime};

/// CLOCK_MONOTONIC, now.
pub(crate) fn now() -> MonotonicTime {
    let time = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    MonotonicTime::from_nanos(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
}

/// The calendar's time, now.
pub(crate) fn wall_now() -> WallTime {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    WallTime(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// The calendar's time of a moment of the monotonic clock, by how far the two are apart now.
pub(crate) fn wall_time(at: MonotonicTime) -> WallTime {
    let (now, wall) = (now(), wall_now());
    let millis = |span: std::time::Duration| i64::try_from(span.as_millis()).unwrap_or(0);
    match at <= now {
        true => WallTime(wall.0 - millis(now.since(at))),
        false => WallTime(wall.0 + millis(at.since(now))),
    }
}

/// `2026-11-15T21:20:03.123Z`, as logs have it.
pub(crate) fn rfc3339(time: WallTime) -> String {
    let text = bson::DateTime::from_millis(time.0).try_to_rfc3339_string().unwrap_or_default();
    // A whole second has no fraction; lines are easier to compare if all have one.
    match text.strip_suffix('Z') {
        Some(whole) if !whole.contains('.') => format!("{whole}.000Z"),
        Some(part) => {
            let (seconds, fraction) = part.split_once('.').unwrap_or((part, ""));
            format!("{seconds}.{fraction:0<3}Z")
        }
        None => text,
    }
}

/// `21:20:03.123`, in UTC.
pub(crate) fn time_of_day(time: WallTime) -> String {
    let text = rfc3339(time);
    let clock = text.split_once('T').map_or("", |(_, clock)| clock);
    clock.trim_end_matches('Z').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calendar_times_have_milliseconds() {
        assert_eq!(rfc3339(WallTime(1_700_000_000_000)), "2023-11-14T22:13:20.000Z");
        assert_eq!(rfc3339(WallTime(1_700_000_000_120)), "2023-11-14T22:13:20.120Z");
        assert_eq!(time_of_day(WallTime(1_700_000_000_007)), "22:13:20.007");
    }

    #[test]
    fn a_moment_has_one_calendar_time() {
        let (at, wall) = (now(), wall_now());
        assert!((wall_time(at).0 - wall.0).abs() < 60_000);
    }

    #[test]
    fn the_clock_runs_and_never_goes_back() {
        let earlier = now();
        assert!(earlier > MonotonicTime::ZERO);
        assert!(now() >= earlier);
    }
}
