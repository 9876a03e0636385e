//! The line of a recording that is no input of the core: the calendar's time of its beginning.
//!
//! The core's own times begin anywhere. One line right after the first says which calendar time the
//! first moment had, so that an incident can be matched with logs.

use quorate_protocol::{MonotonicTime, WallTime};
use serde_json::{Value, json};

/// The line that says which calendar time this moment of the recording had.
pub(crate) fn wall_line(at: MonotonicTime, wall: WallTime) -> String {
    json!({"wall": {"at_ns": at.as_nanos(), "unix_ms": wall.0}}).to_string()
}

/// How far the calendar is ahead of the times of the recording, in milliseconds; none if the line
/// says something else.
pub(crate) fn parse_wall_line(line: &str) -> Option<i64> {
    if !line.starts_with("{\"wall\"") {
        return None;
    }
    let value: Value = serde_json::from_str(line).ok()?;
    let at = value["wall"]["at_ns"].as_u64()?;
    let unix_ms = value["wall"]["unix_ms"].as_i64()?;
    Some(unix_ms.saturating_sub(i64::try_from(at / 1_000_000).ok()?))
}

/// The calendar time of a moment of a recording whose calendar is so far ahead.
pub(crate) fn wall_at(ahead_ms: i64, at: MonotonicTime) -> WallTime {
    let millis = i64::try_from(at.as_nanos() / 1_000_000).unwrap_or(i64::MAX);
    WallTime(ahead_ms.saturating_add(millis))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_calendar_is_read_as_it_was_written() {
        let (at, wall) = (MonotonicTime::from_millis(5_000), WallTime(1_700_000_000_000));
        let ahead = parse_wall_line(&wall_line(at, wall)).expect("a line of ours");
        assert_eq!(wall_at(ahead, at), wall);
        assert_eq!(wall_at(ahead, MonotonicTime::from_millis(6_000)).0, wall.0 + 1_000);
        assert_eq!(parse_wall_line("{\"input\": 1}"), None);
    }
}
