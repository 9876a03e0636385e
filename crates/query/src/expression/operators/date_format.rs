//! Dates as text: `$dateToString` and the plain ISO form.

use std::fmt::Write as _;

use bson::Bson;

use super::calendar::Civil;
use super::date::date_and_zone;
use super::timezone::TimeZone;
use super::{Evaluated, Named, named_of, optional, required};
use crate::error::Result;
use crate::expression::operand::Operand;
use crate::meter::Meter;
use crate::typed::Typed;

pub(super) static NAMED: &[Named] = &[named_of(
    "$dateToString",
    [18629, 18534],
    &[required("date", 18628), optional("format"), optional("timezone"), optional("onNull")],
    date_to_string,
)];

pub(super) const MONTHS: [&str; 12] = [
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
];

/// A moment as `2017-07-04T11:56:02.000Z`.
pub(super) fn iso(millis: i64) -> String {
    let date = Civil::from_millis(millis);
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z",
        date.year, date.month, date.day, date.hour, date.minute, date.second, date.millis
    )
}

fn date_to_string(args: &[Option<Operand<'_>>], _: &Meter) -> Evaluated {
    let zone = args[2].as_ref();
    if args[1].as_ref().is_some_and(Operand::is_nullish) {
        return Ok(Some(Bson::Null));
    }
    let chosen = format_argument("$dateToString", 18533, args[1].as_ref())?;
    if super::date::as_date(args[0].as_ref())?.is_none() {
        return Ok(match &args[3] {
            Some(on_null) => on_null.get().cloned(),
            None => Some(Bson::Null),
        });
    }
    let Some((date, zone)) = date_and_zone(args[0].as_ref(), zone)? else {
        return Ok(Some(Bson::Null));
    };
    let format = chosen.unwrap_or(if zone.is_utc() {
        "%Y-%m-%dT%H:%M:%S.%LZ"
    } else {
        "%Y-%m-%dT%H:%M:%S.%L"
    });
    write_date(format, date, &zone).map(|text| Some(Bson::String(text)))
}

/// The `format` of an operator, which must be a string if it is given. `code` is that of the refusal.
pub(super) fn format_argument<'a>(
    operator: &str,
    code: i32,
    format: Option<&'a Operand<'_>>,
) -> Result<Option<&'a str>> {
    let Some(format) = format else { return Ok(None) };
    match format.get() {
        Some(Bson::String(format)) => Ok(Some(format)),
        _ => Err(fail!(
            (code),
            "{operator} requires that 'format' be a string, found: {} with value {}",
            format.type_name(),
            format.shown()
        )),
    }
}

fn write_date(format: &str, millis: i64, zone: &TimeZone) -> Result<String> {
    let offset = zone.offset_at(millis);
    let date = Civil::from_millis(zone.to_local(millis));
    let mut text = String::with_capacity(format.len() * 2);
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            text.push(character);
            continue;
        }
        let Some(specifier) = characters.next() else {
            refuse!(18535, "Unmatched '%' at end of format string");
        };
        // Writing to a string cannot fail.
        let _ = match specifier {
            '%' => write!(text, "%"),
            'Y' => write!(text, "{:04}", year(date.year)?),
            'm' => write!(text, "{:02}", date.month),
            'd' => write!(text, "{:02}", date.day),
            'H' => write!(text, "{:02}", date.hour),
            'M' => write!(text, "{:02}", date.minute),
            'S' => write!(text, "{:02}", date.second),
            'L' => write!(text, "{:03}", date.millis),
            'j' => write!(text, "{:03}", date.day_of_year()),
            'w' => write!(text, "{}", date.iso_weekday() % 7 + 1),
            'u' => write!(text, "{}", date.iso_weekday()),
            'U' => write!(text, "{:02}", date.week()),
            'V' => write!(text, "{:02}", date.iso_week().1),
            'G' => write!(text, "{:04}", year(date.iso_week().0)?),
            'b' => write!(text, "{}", &month(&date)[..3]),
            'B' => write!(text, "{}", month(&date)),
            'z' => {
                let (sign, minutes) = (if offset < 0 { '-' } else { '+' }, offset.abs() / 60);
                write!(text, "{sign}{:02}{:02}", minutes / 60, minutes % 60)
            }
            'Z' => write!(text, "{}", offset / 60),
            other => {
                refuse!(18536, "Invalid format character '%{other}' in format string");
            }
        };
    }
    Ok(text)
}

fn month(date: &Civil) -> &'static str {
    MONTHS.get(date.month as usize - 1).copied().unwrap_or("January")
}

fn year(year: i64) -> Result<i64> {
    if (0..=9999).contains(&year) {
        return Ok(year);
    }
    Err(fail!(18537, "$dateToString is only defined on year 0-9999, tried to use year {year}"))
}
