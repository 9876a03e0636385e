//! Moving, comparing and rounding dates by units: `$dateAdd`, `$dateSubtract`, `$dateDiff` and
//! `$dateTrunc`.
//!
//! Days and longer units follow the calendar of the time zone; hours and shorter ones are lengths
//! of time.

use bson::{Bson, DateTime};

use super::calendar::{Civil, DAY, days_in_month, days_of, millis_of};
use super::date::{as_date, as_timezone, date_and_zone};
use super::timezone::TimeZone;
use super::{ByName, Evaluated, Field, Named, as_i64, named_of, optional, required};
use crate::error::{QueryError, Result};
use crate::expression::operand::Operand;
use crate::meter::Meter;
use crate::typed::Typed;

pub(super) static NAMED: &[Named] = &[
    mover("$dateAdd", |args, _| add("$dateAdd", args, 1)),
    mover("$dateSubtract", |args, _| add("$dateSubtract", args, -1)),
    named_of(
        "$dateDiff",
        [5166301, 5166302],
        &[
            required("startDate", 5166303),
            required("endDate", 5166304),
            required("unit", 5166305),
            optional("timezone"),
            optional("startOfWeek"),
        ],
        diff,
    ),
    named_of(
        "$dateTrunc",
        [5439007, 5439008],
        &[
            required("date", 5439009),
            required("unit", 5439010),
            optional("binSize"),
            optional("timezone"),
            optional("startOfWeek"),
        ],
        trunc,
    ),
];

const MOVER_FIELDS: &[Field] = &[
    required("startDate", 5166402),
    required("unit", 5166402),
    required("amount", 5166402),
    optional("timezone"),
];

const fn mover(name: &'static str, evaluate: ByName) -> Named {
    named_of(name, [5166400, 5166401], MOVER_FIELDS, evaluate)
}

/// The unit that dates are counted in: months of the calendar, days of the calendar, or milliseconds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unit {
    Months(i64),
    Week,
    Day,
    Millis(i64),
}

fn unit(name: &str, arg: &Operand<'_>) -> Result<Option<Unit>> {
    if arg.is_nullish() {
        return Ok(None);
    }
    let Some(text) = arg.as_str() else {
        return Err(
            arg.wrong_type(5439013, format_args!("{name} requires 'unit' to be a string, but got"))
        );
    };
    Ok(Some(match text {
        "year" => Unit::Months(12),
        "quarter" => Unit::Months(3),
        "month" => Unit::Months(1),
        "week" => Unit::Week,
        "day" => Unit::Day,
        "hour" => Unit::Millis(3_600_000),
        "minute" => Unit::Millis(60_000),
        "second" => Unit::Millis(1000),
        "millisecond" => Unit::Millis(1),
        _ => {
            refuse!(
                FAILED_TO_PARSE,
                "{name} parameter 'unit' value cannot be recognized as a time unit: {text}"
            );
        }
    }))
}

/// The first day of the week, 1 for Monday to 7 for Sunday; Sunday unless told otherwise.
fn start_of_week(name: &str, arg: Option<&Operand<'_>>) -> Result<Option<i64>> {
    const DAYS: [&str; 7] =
        ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];
    let Some(arg) = arg else { return Ok(Some(7)) };
    if arg.is_nullish() {
        return Ok(None);
    }
    let text = arg.as_str().map(str::to_ascii_lowercase).unwrap_or_default();
    let known = |day: &&str| **day == text || (text.len() == 3 && day.starts_with(&text));
    match DAYS.iter().position(known) {
        Some(position) => Ok(Some(position as i64 + 1)),
        None => Err(fail!(
            FAILED_TO_PARSE,
            "{name} parameter 'startOfWeek' value cannot be recognized as a day of a week: {}",
            arg.shown()
        )),
    }
}

fn overflow(name: &str) -> QueryError {
    fail!(OVERFLOW, "{name} overflowed: the result is no date")
}

fn date(millis: i64) -> Bson {
    Bson::DateTime(DateTime::from_millis(millis))
}

/// The local time of day of a local moment, as [`millis_of`] takes it.
fn time_of(local: &Civil) -> [i64; 4] {
    [local.hour, local.minute, local.second, local.millis]
}

fn add(name: &str, args: &[Option<Operand<'_>>], sign: i64) -> Evaluated {
    let [Some(start), Some(unit_arg), Some(amount), zone] = args else { return Ok(None) };
    let Some(zone) = as_timezone(zone.as_ref())? else { return Ok(Some(Bson::Null)) };
    let Some(unit) = unit(name, unit_arg)? else { return Ok(Some(Bson::Null)) };
    if start.is_nullish() || amount.is_nullish() {
        return Ok(Some(Bson::Null));
    }
    let start = as_date(Some(start))
        .map_err(|_| fail!(5166403, "{name} requires startDate to be convertible to a date"))?;
    let Some(start) = start else { return Ok(Some(Bson::Null)) };
    let amount = as_i64(amount.or_null())
        .and_then(|amount| amount.checked_mul(sign))
        .ok_or_else(|| fail!(5166405, "{name} expects integer amount of time units"))?;
    shift(start, unit, amount, &zone).map(|moved| Some(date(moved))).ok_or_else(|| overflow(name))
}

fn shift(start: i64, unit: Unit, amount: i64, zone: &TimeZone) -> Option<i64> {
    let local = zone.to_local(start);
    let moved = match unit {
        Unit::Millis(length) => return start.checked_add(amount.checked_mul(length)?),
        Unit::Day => local.checked_add(amount.checked_mul(DAY)?)?,
        Unit::Week => local.checked_add(amount.checked_mul(7 * DAY)?)?,
        Unit::Months(length) => {
            let civil = Civil::from_millis(local);
            let month = civil.month.checked_add(amount.checked_mul(length)?)?;
            let first = Civil::from_millis(millis_of(civil.year, month, 1, [0; 4])?);
            // 31 January and one month is the last day of February.
            let day = civil.day.min(days_in_month(first.year, first.month));
            millis_of(first.year, first.month, day, time_of(&civil))?
        }
    };
    Some(zone.to_utc(moved))
}

/// Moves a date by a number of units, in UTC, for a stage.
pub(crate) fn shift_by(
    stage: &'static str,
    start: i64,
    unit_name: &str,
    amount: i64,
) -> Result<i64> {
    let name = Bson::String(unit_name.to_owned());
    match unit(stage, &Operand::borrowed(&name))? {
        Some(unit) => shift(start, unit, amount, &TimeZone::UTC).ok_or_else(|| overflow(stage)),
        None => Ok(start),
    }
}

/// How many units have begun up to a moment, counted from an origin that does not matter as long
/// as only differences are taken.
fn units_before(moment: i64, unit: Unit, week_start: i64, zone: &TimeZone) -> i64 {
    let local = zone.to_local(moment);
    let civil = Civil::from_millis(local);
    match unit {
        Unit::Months(length) => (civil.year * 12 + civil.month - 1).div_euclid(length),
        // 1970-01-01 was a Thursday, weekday 4.
        Unit::Week => (local.div_euclid(DAY) + 4 - week_start).div_euclid(7),
        Unit::Day => local.div_euclid(DAY),
        Unit::Millis(1) => moment,
        Unit::Millis(length) => local.div_euclid(length),
    }
}

fn diff(args: &[Option<Operand<'_>>], _: &Meter) -> Evaluated {
    let [Some(start), Some(end), Some(unit_arg), zone, week] = args else { return Ok(None) };
    let Some(zone) = as_timezone(zone.as_ref())? else { return Ok(Some(Bson::Null)) };
    let Some(unit) = unit("$dateDiff", unit_arg)? else { return Ok(Some(Bson::Null)) };
    let Some(week) = start_of_week("$dateDiff", week.as_ref())? else {
        return Ok(Some(Bson::Null));
    };
    let dates = (as_date(Some(start))?, as_date(Some(end))?);
    let (Some(start), Some(end)) = dates else { return Ok(Some(Bson::Null)) };
    let difference = units_before(end, unit, week, &zone)
        .checked_sub(units_before(start, unit, week, &zone))
        .ok_or_else(|| overflow("$dateDiff"))?;
    Ok(Some(Bson::Int64(difference)))
}

fn trunc(args: &[Option<Operand<'_>>], _: &Meter) -> Evaluated {
    let [date_arg, Some(unit_arg), bin, zone, week] = args else { return Ok(None) };
    let Some(unit) = unit("$dateTrunc", unit_arg)? else { return Ok(Some(Bson::Null)) };
    let bin = match bin {
        None => 1,
        Some(bin) if bin.is_nullish() => return Ok(Some(Bson::Null)),
        Some(bin) => match as_i64(bin.or_null()) {
            Some(size) if size > 0 => size,
            Some(_) => {
                refuse!(5439018, "$dateTrunc requires 'binSize' to be greater than 0");
            }
            None => {
                refuse!(
                    5439017,
                    "$dateTrunc requires 'binSize' to be a 64-bit integer, but got value '{}' \
                         of type {}",
                    bin.shown(),
                    bin.type_name()
                );
            }
        },
    };
    let Some(week) = start_of_week("$dateTrunc", week.as_ref())? else {
        return Ok(Some(Bson::Null));
    };
    let Some((moment, zone)) = date_and_zone(date_arg.as_ref(), zone.as_ref())? else {
        return Ok(Some(Bson::Null));
    };
    truncate(moment, unit, bin, week, &zone)
        .map(|start| Some(date(start)))
        .ok_or_else(|| overflow("$dateTrunc"))
}

/// The start of the bin that a moment lies in; bins are counted from the start of the year 2000.
fn truncate(moment: i64, unit: Unit, bin: i64, week_start: i64, zone: &TimeZone) -> Option<i64> {
    let origin = days_of(2000, 1, 1);
    let local = zone.to_local(moment);
    let floor = |number: i64, step: i64| number.div_euclid(step).checked_mul(step);
    let day_start = |day: i64| day.checked_mul(DAY).map(|local| zone.to_utc(local));
    match unit {
        Unit::Millis(length) => {
            let start = zone.to_utc(origin * DAY);
            start.checked_add(floor(moment.checked_sub(start)?, length.checked_mul(bin)?)?)
        }
        Unit::Day => day_start(origin + floor(local.div_euclid(DAY) - origin, bin)?),
        Unit::Week => {
            // The first such weekday of 2000, whose first day was a Saturday, weekday 6.
            let first = origin + (week_start - 6).rem_euclid(7);
            day_start(first + floor(local.div_euclid(DAY) - first, bin.checked_mul(7)?)?)
        }
        Unit::Months(length) => {
            let civil = Civil::from_millis(local);
            let months = (civil.year - 2000) * 12 + civil.month - 1;
            let start = floor(months, length.checked_mul(bin)?)?;
            millis_of(2000, start.checked_add(1)?, 1, [0; 4]).map(|local| zone.to_utc(local))
        }
    }
}
