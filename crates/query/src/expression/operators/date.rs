//! Parts of dates: `$year` and its kin, `$dateToParts`, `$dateFromParts`.

use bson::{Bson, DateTime, Document};

use super::calendar::{Civil, iso_year_start, millis_of};
use super::timezone::TimeZone;
use super::{ByName, Evaluated, Field, Named, as_i64, named_of, optional, required};
use crate::error::Result;
use crate::expression::operand::Operand;
use crate::meter::Meter;
use crate::typed::Typed;

pub(super) static NAMED: &[Named] = &[
    part("$year", |args, _| of(args, |date| int(date.year))),
    part("$month", |args, _| of(args, |date| int(date.month))),
    part("$dayOfMonth", |args, _| of(args, |date| int(date.day))),
    part("$dayOfYear", |args, _| of(args, |date| int(date.day_of_year()))),
    part("$dayOfWeek", |args, _| of(args, |date| int(date.iso_weekday() % 7 + 1))),
    part("$week", |args, _| of(args, |date| int(date.week()))),
    part("$hour", |args, _| of(args, |date| int(date.hour))),
    part("$minute", |args, _| of(args, |date| int(date.minute))),
    part("$second", |args, _| of(args, |date| int(date.second))),
    part("$millisecond", |args, _| of(args, |date| int(date.millis))),
    part("$isoWeek", |args, _| of(args, |date| int(date.iso_week().1))),
    part("$isoWeekYear", |args, _| of(args, |date| Bson::Int64(date.iso_week().0))),
    part("$isoDayOfWeek", |args, _| of(args, |date| int(date.iso_weekday()))),
    of_moment("$tsSecond", TIMESTAMP, |args, _| {
        timestamp_part("$tsSecond", args, |time| time.time)
    }),
    of_moment("$tsIncrement", TIMESTAMP, |args, _| {
        timestamp_part("$tsIncrement", args, |time| time.increment)
    }),
    named_of(
        "$dateToParts",
        [40524, 40520],
        &[required("date", 40522), optional("timezone"), optional("iso8601")],
        to_parts,
    ),
    named_of("$dateFromParts", [40519, 40518], FROM_PARTS, from_parts),
];

const TIMESTAMP: &[Field] = &[required("timestamp", 40539)];
const PART_FIELDS: &[Field] = &[required("date", 40539), optional("timezone")];

/// An operator that takes a moment alone, or as the first of these fields.
const fn of_moment(name: &'static str, fields: &'static [Field], evaluate: ByName) -> Named {
    Named { name, bare: true, not_an_object: 40539, unknown_field: 40535, fields, evaluate }
}

const fn part(name: &'static str, evaluate: ByName) -> Named {
    of_moment(name, PART_FIELDS, evaluate)
}

fn int(number: i64) -> Bson {
    i32::try_from(number).map_or(Bson::Int64(number), Bson::Int32)
}

/// The milliseconds of what counts as a date; `None` for nothing.
pub(super) fn as_date(arg: Option<&Operand<'_>>) -> Result<Option<i64>> {
    let arg = arg.unwrap_or(&Operand::MISSING);
    match arg.get() {
        None | Some(Bson::Null | Bson::Undefined) => Ok(None),
        Some(Bson::DateTime(date)) => Ok(Some(date.timestamp_millis())),
        Some(Bson::Timestamp(time)) => Ok(Some(i64::from(time.time) * 1000)),
        Some(Bson::ObjectId(id)) => Ok(Some(id.timestamp().timestamp_millis())),
        Some(_) => Err(fail!(16006, "can't convert from BSON type {} to Date", arg.type_name())),
    }
}

/// The time zone of an optional argument; `None` if it is there and null.
pub(super) fn as_timezone(arg: Option<&Operand<'_>>) -> Result<Option<TimeZone>> {
    let Some(arg) = arg else { return Ok(Some(TimeZone::UTC)) };
    if arg.is_nullish() {
        return Ok(None);
    }
    TimeZone::parse(arg.string(40517, "timezone must evaluate to a string, found")?).map(Some)
}

/// A date and its zone, or `None` if either is null.
pub(super) fn date_and_zone(
    date: Option<&Operand<'_>>,
    zone: Option<&Operand<'_>>,
) -> Result<Option<(i64, TimeZone)>> {
    let Some(zone) = as_timezone(zone)? else { return Ok(None) };
    Ok(as_date(date)?.map(|date| (date, zone)))
}

fn of(args: &[Option<Operand<'_>>], part: fn(Civil) -> Bson) -> Evaluated {
    Ok(Some(match date_and_zone(args[0].as_ref(), args[1].as_ref())? {
        Some((date, zone)) => part(Civil::from_millis(zone.to_local(date))),
        None => Bson::Null,
    }))
}

fn timestamp_part(
    name: &str,
    args: &[Option<Operand<'_>>],
    part: fn(&bson::Timestamp) -> u32,
) -> Evaluated {
    let arg = args[0].as_ref().unwrap_or(&Operand::MISSING);
    match arg.get() {
        None | Some(Bson::Null | Bson::Undefined) => Ok(Some(Bson::Null)),
        Some(Bson::Timestamp(time)) => Ok(Some(Bson::Int64(i64::from(part(time))))),
        Some(_) => Err(
            arg.wrong_type(5687301, format_args!("Argument to {name} must be a timestamp, but is"))
        ),
    }
}

fn to_parts(args: &[Option<Operand<'_>>], _: &Meter) -> Evaluated {
    let iso = match &args[2] {
        None => false,
        Some(iso) if iso.is_nullish() => return Ok(Some(Bson::Null)),
        Some(iso) => iso.boolean(40521, "iso8601 must evaluate to a bool, found")?,
    };
    let Some((date, zone)) = date_and_zone(args[0].as_ref(), args[1].as_ref())? else {
        return Ok(Some(Bson::Null));
    };
    let civil = Civil::from_millis(zone.to_local(date));
    let mut parts = Document::new();
    if iso {
        let (year, week) = civil.iso_week();
        parts.insert("isoWeekYear", int(year));
        parts.insert("isoWeek", int(week));
        parts.insert("isoDayOfWeek", int(civil.iso_weekday()));
    } else {
        parts.insert("year", int(civil.year));
        parts.insert("month", int(civil.month));
        parts.insert("day", int(civil.day));
    }
    parts.insert("hour", int(civil.hour));
    parts.insert("minute", int(civil.minute));
    parts.insert("second", int(civil.second));
    parts.insert("millisecond", int(civil.millis));
    Ok(Some(Bson::Document(parts)))
}

const FROM_PARTS: &[Field] = &[
    optional("year"),
    optional("month"),
    optional("day"),
    optional("isoWeekYear"),
    optional("isoWeek"),
    optional("isoDayOfWeek"),
    optional("hour"),
    optional("minute"),
    optional("second"),
    optional("millisecond"),
    optional("timezone"),
];

fn from_parts(args: &[Option<Operand<'_>>], _: &Meter) -> Evaluated {
    let given = |position: usize| args[position].is_some();
    let iso = given(3);
    refuse_if!(!given(0) && !iso => 40516,
        "$dateFromParts requires either 'year' or 'isoWeekYear' to be present");
    refuse_if!(iso && (0..3).any(given) => 40489,
        "$dateFromParts does not allow mixing natural dates with ISO dates");
    refuse_if!(!iso && (4..6).any(given) => 40525,
        "$dateFromParts does not allow mixing natural dates with ISO dates");
    const DEFAULTS: [i64; 10] = [1970, 1, 1, 1970, 1, 1, 0, 0, 0, 0];
    let mut parts = DEFAULTS;
    for (position, part) in parts.iter_mut().enumerate() {
        let Some(arg) = &args[position] else { continue };
        if arg.is_nullish() {
            return Ok(Some(Bson::Null));
        }
        *part = number_part(FROM_PARTS[position].name, arg)?;
    }
    let Some(zone) = as_timezone(args[10].as_ref())? else { return Ok(Some(Bson::Null)) };
    let [year, month, day, iso_year, iso_week, iso_day, hour, minute, second, millis] = parts;
    let time = [hour, minute, second, millis];
    let local = if iso {
        let day = iso_year_start(iso_year) + (iso_week - 1) * 7 + iso_day - 1;
        millis_of(1970, 1, day + 1, time)
    } else {
        millis_of(year, month, day, time)
    };
    let local = local.ok_or_else(|| fail!(OVERFLOW, "$dateFromParts: date overflow"))?;
    Ok(Some(Bson::DateTime(DateTime::from_millis(zone.to_utc(local)))))
}

/// Years must be 1 to 9999; other parts may carry over into the next, within 16 bits.
fn number_part(name: &str, arg: &Operand<'_>) -> Result<i64> {
    let Some(number) = as_i64(arg.or_null()) else {
        refuse!(
            40515,
            "'{name}' must evaluate to an integer, found {} with value {}",
            arg.type_name(),
            arg.shown()
        );
    };
    let year = matches!(name, "year" | "isoWeekYear");
    refuse_if!(year && !(1..=9999).contains(&number) => 40523,
        "'{name}' must evaluate to an integer in the range 1 to 9999, found {number}");
    let wide = matches!(name, "second" | "millisecond");
    refuse_if!(!year && !wide && !(-32768..=32767).contains(&number) => 31034,
        "'{name}' must evaluate to a value in the range [-32768, 32767]; value {number} is \
         not in range");
    Ok(number)
}
