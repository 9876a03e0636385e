//! Text as dates: `$dateFromString`, with a format or by recognising ISO 8601 and a few everyday
//! spellings.

use bson::{Bson, DateTime};

use super::calendar::{Civil, iso_year_start, millis_of};
use super::convert::CONVERSION_FAILURE;
use super::date::as_timezone;
use super::date_format::{MONTHS, format_argument};
use super::timezone::{TimeZone, parse_offset};
use super::{Evaluated, Named, named_of, optional, required};
use crate::error::{QueryError, Result};
use crate::expression::operand::Operand;
use crate::meter::Meter;
use crate::typed::Typed;

pub(super) static NAMED: &[Named] = &[named_of(
    "$dateFromString",
    [40540, 40541],
    &[
        required("dateString", 40542),
        optional("format"),
        optional("timezone"),
        optional("onNull"),
        optional("onError"),
    ],
    date_from_string,
)];

fn date_from_string(args: &[Option<Operand<'_>>], _: &Meter) -> Evaluated {
    let text = args[0].as_ref().unwrap_or(&Operand::MISSING);
    if text.is_nullish() {
        return Ok(match &args[3] {
            Some(on_null) => on_null.get().cloned(),
            None => Some(Bson::Null),
        });
    }
    if args[1].as_ref().is_some_and(Operand::is_nullish) {
        return Ok(Some(Bson::Null));
    }
    let format = format_argument("$dateFromString", 40684, args[1].as_ref())?;
    let Some(zone) = as_timezone(args[2].as_ref())? else { return Ok(Some(Bson::Null)) };
    let zone = args[2].is_some().then_some(zone);
    let parsed = match text.get() {
        Some(Bson::String(text)) => match format {
            Some(format) => parse_format(text, format, zone.as_ref()),
            None => parse_text(text, zone.as_ref()),
        },
        _ => Err(fail!(
            CONVERSION_FAILURE,
            "$dateFromString requires that 'dateString' be a string, found: {} with value {}",
            text.type_name(),
            text.shown()
        )),
    };
    match (parsed, &args[4]) {
        (Ok(millis), _) => Ok(Some(Bson::DateTime(DateTime::from_millis(millis)))),
        (Err(error), Some(on_error)) if error.code() == CONVERSION_FAILURE => {
            Ok(on_error.get().cloned())
        }
        (Err(error), _) => Err(error),
    }
}

/// The parts of a date that have been read so far.
#[derive(Default)]
struct Parts {
    year: Option<i64>,
    month: Option<i64>,
    day: Option<i64>,
    iso_year: Option<i64>,
    iso_week: Option<i64>,
    iso_day: Option<i64>,
    day_of_year: Option<i64>,
    time: [i64; 4],
    zone: Option<TimeZone>,
}

impl Parts {
    /// The moment, if the parts name one that exists.
    fn moment(&self, zone: Option<&TimeZone>) -> Result<i64, &'static str> {
        let zone = match (&self.zone, zone) {
            (Some(_), Some(_)) => {
                return Err(
                    "you cannot pass in a date/time string with time zone information together \
                     with a timezone argument",
                );
            }
            (own, given) => own.as_ref().or(given).unwrap_or(&TimeZone::UTC),
        };
        let local = if let Some(year) = self.iso_year {
            let week = self.iso_week.unwrap_or(1) - 1;
            let day = iso_year_start(year) + week * 7 + self.iso_day.unwrap_or(1) - 1;
            millis_of(1970, 1, day + 1, self.time)
        } else if let (Some(year), Some(day)) = (self.year, self.day_of_year) {
            millis_of(year, 1, day, self.time)
        } else {
            let year = self.year.ok_or("an incomplete date/time string has been found")?;
            let (month, day) = (self.month.unwrap_or(1), self.day.unwrap_or(1));
            let local = millis_of(year, month, day, self.time);
            let [hour, minute, second, _] = self.time;
            let exists = local.map(Civil::from_millis).is_some_and(|date| {
                date.month == month && date.day == day && date.minute == minute
            });
            if !exists || hour > 23 || second > 59 {
                return Err("the parsed date was invalid");
            }
            local
        };
        local.map(|local| zone.to_utc(local)).ok_or("the parsed date is out of range")
    }
}

fn unparsable(text: &str, reason: &str) -> QueryError {
    fail!(CONVERSION_FAILURE, "Error parsing date string '{text}'; {reason}")
}

/// Reads a date in one of the recognised spellings.
pub(super) fn parse_text(text: &str, zone: Option<&TimeZone>) -> Result<i64> {
    recognise(text).and_then(|parts| parts.moment(zone)).map_err(|reason| unparsable(text, reason))
}

/// The characters of a text that are still to be read.
struct Reader<'a>(&'a str);

impl<'a> Reader<'a> {
    fn take(&mut self, character: char) -> bool {
        self.0.strip_prefix(character).map(|rest| self.0 = rest).is_some()
    }

    fn skip_spaces(&mut self) {
        self.0 = self.0.trim_start();
    }

    /// Between `least` and `most` digits.
    fn number(&mut self, least: usize, most: usize) -> Option<i64> {
        let digits = self.0.bytes().take(most).take_while(u8::is_ascii_digit).count();
        if digits < least {
            return None;
        }
        let (number, rest) = self.0.split_at(digits);
        self.0 = rest;
        number.parse().ok()
    }

    fn word(&mut self, belongs: impl Fn(char) -> bool) -> &'a str {
        let end = self.0.find(|c| !belongs(c)).unwrap_or(self.0.len());
        let (word, rest) = self.0.split_at(end);
        self.0 = rest;
        word
    }

    /// A month's name in full or its first three letters.
    fn month(&mut self) -> Option<i64> {
        let word = self.word(|c| c.is_ascii_alphabetic());
        let known =
            |name: &str| name.eq_ignore_ascii_case(word) || name[..3].eq_ignore_ascii_case(word);
        MONTHS.iter().position(|name| known(name)).map(|position| position as i64 + 1)
    }

    /// `hh:mm[:ss[.fff]]`.
    fn time(&mut self) -> Option<[i64; 4]> {
        let hour = self.number(1, 2)?;
        self.take(':').then_some(())?;
        let minute = self.number(2, 2)?;
        let second = if self.take(':') { self.number(2, 2)? } else { 0 };
        let millis = if self.take('.') { self.fraction()? } else { 0 };
        Some([hour, minute, second, millis])
    }

    /// Digits after the point, of which the first three count.
    fn fraction(&mut self) -> Option<i64> {
        let digits = self.word(|c| c.is_ascii_digit());
        if digits.is_empty() {
            return None;
        }
        format!("{digits:0<3}")[..3].parse().ok()
    }

    fn zone(&mut self) -> Option<TimeZone> {
        if self.take('Z') || self.take('z') {
            return Some(TimeZone::UTC);
        }
        if self.0.starts_with(['+', '-']) {
            let text = self.word(|c| matches!(c, '+' | '-' | ':') || c.is_ascii_digit());
            return parse_offset(text).map(TimeZone::Fixed);
        }
        let text = self.word(|c| c.is_ascii_alphanumeric() || matches!(c, '/' | '_' | '-' | '+'));
        TimeZone::parse(text).ok()
    }
}

fn recognise(text: &str) -> Result<Parts, &'static str> {
    const UNREADABLE: &str = "the date has no recognised form; try 2017-02-08T12:10:40.787Z";
    let mut reader = Reader(text.trim());
    let mut parts = Parts::default();
    read_day(&mut reader, &mut parts).ok_or(UNREADABLE)?;
    if reader.take('T') || reader.take('t') || reader.0.starts_with(' ') {
        reader.skip_spaces();
        if reader.0.starts_with(|c: char| c.is_ascii_digit()) {
            parts.time = reader.time().ok_or(UNREADABLE)?;
        }
        reader.skip_spaces();
    }
    if !reader.0.is_empty() {
        parts.zone = Some(reader.zone().ok_or(UNREADABLE)?);
    }
    if reader.0.is_empty() { Ok(parts) } else { Err(UNREADABLE) }
}

/// `2017-02-08`, `2017/02/08`, `20170208`, `02/08/2017`, `8 Feb 2017`, `Feb 8, 2017`.
fn read_day(reader: &mut Reader<'_>, parts: &mut Parts) -> Option<()> {
    if reader.0.starts_with(|c: char| c.is_ascii_alphabetic()) {
        parts.month = Some(reader.month()?);
        reader.skip_spaces();
        parts.day = Some(reader.number(1, 2)?);
        reader.take(',');
        reader.skip_spaces();
        parts.year = Some(reader.number(4, 4)?);
        return Some(());
    }
    let start = reader.0;
    let first = reader.number(1, 8)?;
    match start.len() - reader.0.len() {
        8 => {
            parts.year = Some(first / 10_000);
            parts.month = Some(first / 100 % 100);
            parts.day = Some(first % 100);
        }
        4 => {
            parts.year = Some(first);
            let separator = if reader.0.starts_with('/') { '/' } else { '-' };
            reader.take(separator).then_some(())?;
            parts.month = Some(reader.number(1, 2)?);
            if reader.take(separator) {
                parts.day = Some(reader.number(1, 2)?);
            }
        }
        1 | 2 if reader.take('/') => {
            parts.month = Some(first);
            parts.day = Some(reader.number(1, 2)?);
            reader.take('/').then_some(())?;
            parts.year = Some(reader.number(4, 4)?);
        }
        1 | 2 => {
            parts.day = Some(first);
            reader.take('-');
            reader.skip_spaces();
            parts.month = Some(reader.month()?);
            reader.take('-');
            reader.skip_spaces();
            parts.year = Some(reader.number(4, 4)?);
        }
        _ => return None,
    }
    Some(())
}

fn parse_format(text: &str, format: &str, zone: Option<&TimeZone>) -> Result<i64> {
    let mut reader = Reader(text);
    let mut parts = Parts::default();
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            if !reader.take(character) {
                return Err(unparsable(text, "Format literal not found"));
            }
            continue;
        }
        let Some(specifier) = characters.next() else {
            refuse!(18535, "Unmatched '%' at end of format string");
        };
        refuse_if!(!"%YmdHMSLjuVGbBzZ".contains(specifier) => 18536,
            "Invalid format character '%{specifier}' in format string");
        read_specifier(&mut reader, specifier, &mut parts)
            .ok_or_else(|| unparsable(text, &format!("nothing suitable found for %{specifier}")))?;
    }
    if !reader.0.is_empty() {
        return Err(unparsable(text, "Trailing data"));
    }
    parts.moment(zone).map_err(|reason| unparsable(text, reason))
}

fn read_specifier(reader: &mut Reader<'_>, specifier: char, parts: &mut Parts) -> Option<()> {
    match specifier {
        'Y' => parts.year = Some(reader.number(4, 4)?),
        'm' => parts.month = Some(reader.number(1, 2)?),
        'd' => parts.day = Some(reader.number(1, 2)?),
        'H' => parts.time[0] = reader.number(1, 2)?,
        'M' => parts.time[1] = reader.number(1, 2)?,
        'S' => parts.time[2] = reader.number(1, 2)?,
        'L' => parts.time[3] = reader.fraction()?,
        'j' => parts.day_of_year = Some(reader.number(1, 3)?),
        'G' => parts.iso_year = Some(reader.number(4, 4)?),
        'V' => parts.iso_week = Some(reader.number(1, 2)?),
        'u' => parts.iso_day = Some(reader.number(1, 1)?),
        'b' | 'B' => parts.month = Some(reader.month()?),
        'z' => parts.zone = Some(reader.zone()?),
        'Z' => {
            let sign = if reader.take('-') { -1 } else { 1 };
            reader.take('+');
            let minutes = i32::try_from(reader.number(1, 3)?).ok()?;
            parts.zone = Some(TimeZone::Fixed(sign * minutes * 60));
        }
        _ => reader.take('%').then_some(())?,
    }
    Some(())
}
