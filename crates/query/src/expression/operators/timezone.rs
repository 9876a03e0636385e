//! Time zones: UTC, fixed offsets such as `+05:30`, and Olson names such as `Europe/Berlin`.
//!
//! The rules of the names are those compiled into the program (the IANA database that `jiff` bundles), so that
//! answers do not depend on the machine.

use crate::error::{QueryError, Result};
use jiff::Timestamp;
use jiff::tz::TimeZoneDatabase;

#[derive(Clone, Debug)]
pub(crate) enum TimeZone {
    /// Seconds east of UTC.
    Fixed(i32),
    /// A zone of the database.
    Named(jiff::tz::TimeZone),
}

impl TimeZone {
    pub(crate) const UTC: Self = Self::Fixed(0);

    /// Reads an identifier.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        if text.starts_with(['+', '-']) {
            return parse_offset(text).map(Self::Fixed).ok_or_else(|| unknown(text));
        }
        if matches!(text, "UTC" | "GMT" | "Z" | "Etc/UTC") {
            return Ok(Self::UTC);
        }
        // The database is searched without regard to case; identifiers are not.
        match TimeZoneDatabase::bundled().get(text) {
            Ok(zone) if zone.iana_name() == Some(text) && !zone.is_unknown() => {
                Ok(Self::Named(zone))
            }
            _ => Err(unknown(text)),
        }
    }

    /// Whether the zone is UTC itself.
    pub(crate) fn is_utc(&self) -> bool {
        matches!(self, Self::Fixed(0))
    }

    /// Seconds east of UTC at a moment.
    pub(crate) fn offset_at(&self, millis: i64) -> i64 {
        match self {
            Self::Fixed(offset) => i64::from(*offset),
            Self::Named(zone) => {
                i64::from(zone.to_offset(timestamp(millis.div_euclid(1000))).seconds())
            }
        }
    }

    /// The local time, in milliseconds as if it were UTC.
    pub(crate) fn to_local(&self, millis: i64) -> i64 {
        millis.saturating_add(self.offset_at(millis) * 1000)
    }

    /// The moment at which a clock there shows this. Where the clock is put back the earlier
    /// moment, where it is put forward the one after the gap.
    pub(crate) fn to_utc(&self, local: i64) -> i64 {
        let at = |offset: i64| local.saturating_sub(offset * 1000);
        let before = self.offset_at(local.saturating_sub(super::calendar::DAY));
        let early = at(before);
        if self.offset_at(early) == before {
            return early;
        }
        let after = self.offset_at(local.saturating_add(super::calendar::DAY));
        let late = at(after);
        if self.offset_at(late) == after { late } else { early }
    }
}

fn unknown(text: &str) -> QueryError {
    fail!(40485, "unrecognized time zone identifier: \"{text}\"")
}

/// Seconds of `+hh`, `+hhmm` or `+hh:mm`.
pub(crate) fn parse_offset(text: &str) -> Option<i32> {
    let (sign, digits) = match text.split_at_checked(1)? {
        ("+", digits) => (1, digits),
        ("-", digits) => (-1, digits),
        _ => return None,
    };
    let (hours, minutes) = match digits.split_once(':') {
        Some((hours, minutes)) if hours.len() == 2 && minutes.len() == 2 => (hours, minutes),
        Some(_) => return None,
        None if digits.len() == 2 => (digits, "0"),
        None if digits.len() == 4 => digits.split_at_checked(2)?,
        None => return None,
    };
    let number = |text: &str| -> Option<i32> {
        text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
    };
    Some(sign * (number(hours)? * 3600 + number(minutes)? * 60))
}

/// The moment from which on offsets repeat: the beginning of the year 2400, in seconds.
const REPEATED_FROM: i64 = 13_569_465_600;

/// The Gregorian calendar repeats after 400 years, weekdays included, in seconds.
const CYCLE: i64 = 146_097 * 86_400;

/// A moment that the library knows, which reaches to the year 9999, with the same offset as this one.
fn timestamp(seconds: i64) -> Timestamp {
    let seconds = match seconds.checked_sub(REPEATED_FROM) {
        Some(after) if after > 0 => REPEATED_FROM + after % CYCLE,
        _ => seconds,
    };
    Timestamp::from_second(seconds).unwrap_or(Timestamp::MIN)
}

#[cfg(test)]
mod tests {
    use super::super::calendar::{Civil, millis_of};
    use super::*;

    fn moment(year: i64, month: i64, day: i64, hour: i64) -> i64 {
        millis_of(year, month, day, [hour, 0, 0, 0]).unwrap()
    }

    #[test]
    fn offsets_have_three_spellings() {
        assert_eq!(parse_offset("+05:30"), Some(19_800));
        assert_eq!(parse_offset("-0345"), Some(-13_500));
        assert_eq!(parse_offset("+03"), Some(10_800));
        for wrong in ["+3", "+030", "03", "+0a:00", "+é1", ""] {
            assert_eq!(parse_offset(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn named_zones_follow_transitions_and_then_the_rule() {
        let berlin = TimeZone::parse("Europe/Berlin").unwrap();
        assert_eq!(berlin.offset_at(moment(2017, 1, 1, 0)), 3600);
        assert_eq!(berlin.offset_at(moment(2017, 7, 1, 0)), 7200);
        assert_eq!(berlin.offset_at(moment(2077, 7, 1, 0)), 7200);
        let sydney = TimeZone::parse("Australia/Sydney").unwrap();
        assert_eq!(sydney.offset_at(moment(2060, 1, 1, 0)), 39_600);
        assert_eq!(sydney.offset_at(moment(2060, 7, 1, 0)), 36_000);
        let kolkata = TimeZone::parse("Asia/Kolkata").unwrap();
        assert_eq!(kolkata.offset_at(moment(2017, 1, 1, 0)), 19_800);
        for wrong in ["Mars/Olympus", "europe/berlin", "Etc/Unknown"] {
            assert_eq!(TimeZone::parse(wrong).unwrap_err().code().0, 40485, "{wrong}");
        }
    }

    #[test]
    fn zones_reach_as_far_as_dates() {
        let berlin = TimeZone::parse("Europe/Berlin").unwrap();
        for year in [2399, 2400, 2401, 9999, 12_000, 250_000_000] {
            assert_eq!(berlin.offset_at(moment(year, 1, 1, 0)), 3600, "{year}");
            assert_eq!(berlin.offset_at(moment(year, 7, 1, 0)), 7200, "{year}");
            // The last Sunday of March, on which the clock is put forward at one o'clock.
            let day = (25..=31)
                .find(|day| Civil::from_millis(moment(year, 3, *day, 0)).iso_weekday() == 7)
                .unwrap();
            assert_eq!(berlin.offset_at(moment(year, 3, day, 1) - 1), 3600, "{year}");
            assert_eq!(berlin.offset_at(moment(year, 3, day, 1)), 7200, "{year}");
        }
        // Local mean time, before there were zones.
        assert_eq!(berlin.offset_at(i64::MIN), 3208);
        assert_eq!(berlin.offset_at(moment(2400, 1, 1, 0)), 3600);
        assert_eq!(moment(2400, 1, 1, 0) / 1000, REPEATED_FROM);
    }

    #[test]
    fn a_clock_that_jumps_still_names_a_moment() {
        let new_york = TimeZone::parse("America/New_York").unwrap();
        // 02:30 on 12 March 2017 never was; 01:30 on 5 November 2017 was twice.
        let gap = new_york.to_utc(moment(2017, 3, 12, 2) + 1_800_000);
        assert_eq!(gap, moment(2017, 3, 12, 7) + 1_800_000);
        let twice = new_york.to_utc(moment(2017, 11, 5, 1) + 1_800_000);
        assert_eq!(twice, moment(2017, 11, 5, 5) + 1_800_000);
        assert_eq!(new_york.to_local(twice), moment(2017, 11, 5, 1) + 1_800_000);
    }
}
