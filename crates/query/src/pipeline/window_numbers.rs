//! Window functions of two columns of numbers: `$derivative`, `$integral`, `$covariancePop` and `$covarianceSamp`.

use bson::{Bson, Document};

use super::output::check_known;
use super::window::Rows;
use super::window_frame::Window;
use crate::error::{ErrorCode, Result};
use crate::expression::{Dependencies, Expression, ParseContext};
use crate::sort::SortPattern;
use crate::typed::Typed;
use crate::value::Number;

/// A function of the rows of a window.
#[derive(Clone, Debug)]
pub(super) struct OfNumbers {
    kind: Kind,
    window: Window,
}

#[derive(Clone, Debug)]
enum Kind {
    /// From the first row to the last, by the sort key.
    Derivative {
        input: Expression,
        unit: Option<i64>,
    },
    /// The area below the rows, by trapezoids.
    Integral {
        input: Expression,
        unit: Option<i64>,
    },
    Covariance {
        first: Expression,
        second: Expression,
        is_sample: bool,
    },
}

/// The milliseconds of a unit that has always the same length.
fn milliseconds(unit: &str) -> Option<i64> {
    Some(match unit {
        "week" => 7 * 86_400_000,
        "day" => 86_400_000,
        "hour" => 3_600_000,
        "minute" => 60_000,
        "second" => 1_000,
        "millisecond" => 1,
        _ => return None,
    })
}

impl OfNumbers {
    /// Reads such a function; none if the name is another one's.
    pub(super) fn parse(
        name: &str,
        argument: &Bson,
        window: Option<&Bson>,
        sort: &SortPattern,
        context: &ParseContext,
    ) -> Result<Option<Self>> {
        let kind = match name {
            "$derivative" | "$integral" => {
                refuse_if!(sort.fields().count() != 1 => 5371602,
                    "{name} requires a sortBy of one field");
                refuse_if!(name == "$derivative" && window.is_none() => FAILED_TO_PARSE,
                    "$derivative requires explicit window bounds");
                let (input, unit) = input_and_unit(name, argument, context)?;
                match name {
                    "$derivative" => Kind::Derivative { input, unit },
                    _ => Kind::Integral { input, unit },
                }
            }
            "$covariancePop" | "$covarianceSamp" => {
                let Some([first, second]) = argument.as_array().map(Vec::as_slice) else {
                    refuse!(FAILED_TO_PARSE, "{name} requires an array of two expressions");
                };
                Kind::Covariance {
                    first: Expression::parse(first, context)?,
                    second: Expression::parse(second, context)?,
                    is_sample: name == "$covarianceSamp",
                }
            }
            _ => return Ok(None),
        };
        Ok(Some(Self { kind, window: Window::parse(window, sort)? }))
    }

    /// Counts what the function reads.
    pub(super) fn depend(&self, needed: &mut Dependencies) {
        match &self.kind {
            Kind::Derivative { input, .. } | Kind::Integral { input, .. } => {
                needed.expression(input)
            }
            Kind::Covariance { first, second, .. } => {
                needed.expression(first);
                needed.expression(second);
            }
        }
    }

    /// The value for each row.
    pub(super) fn compute(&self, rows: &Rows<'_>) -> Result<Vec<Option<Bson>>> {
        let keys = rows.sorted_by();
        let (left, right): (Vec<_>, Vec<_>) = match &self.kind {
            Kind::Derivative { input, unit } | Kind::Integral { input, unit } => {
                let places = keys.iter().map(|key| place(key, *unit)).collect::<Result<_, _>>()?;
                (places, numbers(rows.values(input)?))
            }
            Kind::Covariance { first, second, .. } => {
                (numbers(rows.values(first)?), numbers(rows.values(second)?))
            }
        };
        let mut column = Vec::with_capacity(keys.len());
        for row in 0..keys.len() {
            let (low, high) = self.window.around(row, &keys)?;
            // A window beyond the last row is empty.
            let left = left.get(low..high).unwrap_or_default();
            let right = right.get(low..high).unwrap_or_default();
            let pairs = left.iter().zip(right);
            rows.steps(pairs.len())?;
            let value = match &self.kind {
                Kind::Derivative { unit, .. } => slope(pairs, *unit),
                Kind::Integral { unit, .. } => area(pairs, *unit),
                Kind::Covariance { is_sample, .. } => covariance(pairs, *is_sample),
            };
            column.push(Some(value.map_or(Bson::Null, Bson::from)));
        }
        Ok(column)
    }
}

fn input_and_unit(
    name: &str,
    argument: &Bson,
    context: &ParseContext,
) -> Result<(Expression, Option<i64>)> {
    let options: &Document = argument.document(
        ErrorCode::FAILED_TO_PARSE,
        format_args!("{name} takes an object with 'input' and perhaps 'unit', found"),
    )?;
    check_known(name, options, &["input", "unit"])?;
    let input = options
        .get("input")
        .ok_or_else(|| fail!(FAILED_TO_PARSE, "{name} requires an 'input' expression"))?;
    let unit = match options.get("unit") {
        None => None,
        Some(unit) => Some(unit.as_str().and_then(milliseconds).ok_or_else(|| {
            fail!(
                5490704,
                "unit must be 'week' or smaller: week, day, hour, minute, second or millisecond"
            )
        })?),
    };
    Ok((Expression::parse(input, context)?, unit))
}

fn numbers(values: Vec<Bson>) -> Vec<Option<Number>> {
    values.iter().map(Number::from_value).collect()
}

/// Where a row stands: its number, or the milliseconds of its date.
fn place(key: &Bson, unit: Option<i64>) -> Result<Option<Number>> {
    match (key, unit) {
        (Bson::DateTime(date), Some(_)) => Ok(Some(Number::Int64(date.timestamp_millis()))),
        (Bson::DateTime(_), None) => {
            Err(fail!(5624901, "a sortBy of dates requires a 'unit' for the window function"))
        }
        (Bson::Null, _) => Ok(None),
        (key, None) => match Number::from_value(key) {
            Some(number) => Ok(Some(number)),
            None => Err(fail!(5624902, "the sortBy must be a number, or a date with a 'unit'")),
        },
        (_, Some(_)) => {
            Err(fail!(5624900, "a window function with a 'unit' requires a sortBy of dates"))
        }
    }
}

/// The same in units.
fn in_units(number: Number, unit: Option<i64>) -> Number {
    unit.map_or(number, |unit| number.divide(Number::Int64(unit)))
}

fn slope<'a>(
    mut pairs: impl DoubleEndedIterator<Item = (&'a Option<Number>, &'a Option<Number>)>,
    unit: Option<i64>,
) -> Option<Number> {
    let ((from, low), (to, high)) = (pairs.next()?, pairs.next_back()?);
    let run = in_units((*to)?.subtract((*from)?), unit);
    (!run.is_zero()).then_some((*high)?.subtract((*low)?).divide(run))
}

fn area<'a>(
    pairs: impl Iterator<Item = (&'a Option<Number>, &'a Option<Number>)>,
    unit: Option<i64>,
) -> Option<Number> {
    let mut points = pairs.filter_map(|(place, value)| Some(((*place)?, (*value)?)));
    let (mut from, mut low) = points.next()?;
    let mut sum = Number::Int32(0);
    for (to, high) in points {
        let width = in_units(to.subtract(from), unit);
        sum = sum.plus(width.multiply(low.plus(high)).divide(Number::Int32(2)));
        (from, low) = (to, high);
    }
    Some(sum)
}

fn covariance<'a>(
    pairs: impl Iterator<Item = (&'a Option<Number>, &'a Option<Number>)>,
    is_sample: bool,
) -> Option<Number> {
    let (mut count, mut mean_left, mut mean_right, mut sum) = (0_u32, 0.0, 0.0, 0.0);
    // Of West and Welford: the mean moves with each pair, so that large numbers cancel nothing.
    for (left, right) in pairs.filter_map(|(left, right)| Some(((*left)?, (*right)?))) {
        count += 1;
        let from_mean = left.to_f64() - mean_left;
        mean_left += from_mean / f64::from(count);
        mean_right += (right.to_f64() - mean_right) / f64::from(count);
        sum += from_mean * (right.to_f64() - mean_right);
    }
    let divisor = if is_sample { count.checked_sub(1)? } else { count };
    (divisor > 0).then(|| Number::Double(sum / f64::from(divisor)))
}
