//! Arithmetic on numbers and dates, with the server's promotion: int to long to double to decimal.
//!
//! Integers that overflow their type widen (int to long, long to double) instead of wrapping.
//! Decimals stay exact except for roots, powers and logarithms, which go through doubles.

use bson::{Bson, DateTime};

use super::{Evaluated, Positional, at_least, between, exactly};
use crate::error::{ErrorCode, QueryError, Result};
use crate::expression::operand::Operand;
use crate::meter::Meter;
use crate::typed::Typed;
use crate::value::{Decimal, Number, Rounding};

pub(super) static OPERATORS: &[Positional] = &[
    at_least(0, "$add", add),
    exactly(2, "$subtract", subtract).null_if_any(),
    at_least(0, "$multiply", multiply),
    exactly(2, "$divide", divide).null_if_any(),
    exactly(2, "$mod", modulo).null_if_any(),
    exactly(1, "$abs", |args, _| unary("$abs", args, absolute)),
    exactly(1, "$ceil", |args, _| {
        unary("$ceil", args, |number| Ok(round_whole(number, f64::ceil, Rounding::Ceiling)))
    }),
    exactly(1, "$floor", |args, _| {
        unary("$floor", args, |number| Ok(round_whole(number, f64::floor, Rounding::Floor)))
    }),
    between(1, 2, "$round", |args, _| round_or_trunc("$round", args, Rounding::HalfEven))
        .null_if_any(),
    between(1, 2, "$trunc", |args, _| round_or_trunc("$trunc", args, Rounding::Truncate))
        .null_if_any(),
    exactly(1, "$exp", |args, _| {
        unary("$exp", args, |number| Ok(through_double(number, f64::exp)))
    }),
    exactly(1, "$ln", |args, _| {
        unary("$ln", args, |number| logarithm("$ln", 28766, number, f64::ln))
    }),
    exactly(2, "$log", log).null_if_any(),
    exactly(1, "$log10", |args, _| {
        unary("$log10", args, |number| logarithm("$log10", 28761, number, f64::log10))
    }),
    exactly(2, "$pow", pow).null_if_any(),
    exactly(1, "$sqrt", |args, _| unary("$sqrt", args, square_root)),
];

/// Applies a function of doubles; a decimal comes back as a decimal of 15 digits.
pub(super) fn through_double(number: Number, function: fn(f64) -> f64) -> Number {
    match number {
        Number::Decimal(number) => Number::Decimal(Decimal::from_f64(function(number.to_f64()))),
        other => Number::Double(function(other.to_f64())),
    }
}

fn integer(number: Number) -> Option<i64> {
    match number {
        Number::Int32(number) => Some(i64::from(number)),
        Number::Int64(number) => Some(number),
        _ => None,
    }
}

/// The result of integer arithmetic: an int if it may be one and fits.
pub(crate) fn narrow(result: i64, may_be_int: bool) -> Number {
    match i32::try_from(result) {
        Ok(small) if may_be_int => Number::Int32(small),
        _ => Number::Int64(result),
    }
}

/// An operator of one number. A missing argument gives null, and any other type is refused.
pub(super) fn unary(
    name: &str,
    args: &[Operand<'_>],
    compute: impl Fn(Number) -> Result<Number>,
) -> Evaluated {
    let arg = &args[0];
    if arg.is_nullish() {
        return Ok(Some(Bson::Null));
    }
    let number = arg.number(28765, format_args!("{name} only supports numeric types, not"))?;
    compute(number).map(|result| Some(Bson::from(result)))
}

/// The milliseconds that a number added to a date stands for.
fn millis(number: Number) -> Result<i64> {
    match number {
        Number::Int32(number) => Ok(i64::from(number)),
        Number::Int64(number) => Ok(number),
        Number::Double(number) => {
            Number::Double(number.round()).to_i64_exact().ok_or_else(date_overflow)
        }
        Number::Decimal(number) => {
            number.round_to(0, Rounding::HalfEven).to_i64().ok_or_else(date_overflow)
        }
    }
}

fn date_plus(date: DateTime, delta: i64) -> Result<Bson> {
    date.timestamp_millis()
        .checked_add(delta)
        .map(|sum| Bson::DateTime(DateTime::from_millis(sum)))
        .ok_or_else(date_overflow)
}

fn date_overflow() -> QueryError {
    fail!(OVERFLOW, "date overflow")
}

fn add(args: &[Operand<'_>], _: &Meter) -> Evaluated {
    let mut total = Number::Int32(0);
    let mut date = None;
    for arg in args {
        match arg.get() {
            None | Some(Bson::Null | Bson::Undefined) => return Ok(Some(Bson::Null)),
            Some(Bson::DateTime(value)) => {
                refuse_if!(date.replace(*value).is_some() => 16612,
                    "only one date allowed in an $add expression");
            }
            Some(value) => {
                let wanted = "$add only supports numeric or date types, not";
                total = total.plus(value.number(16554, wanted)?);
            }
        }
    }
    match date {
        Some(date) => date_plus(date, millis(total)?).map(Some),
        None => Ok(Some(Bson::from(total))),
    }
}

fn subtract(args: &[Operand<'_>], _: &Meter) -> Evaluated {
    let (left, right) = (args[0].or_null(), args[1].or_null());
    match (left, right, Number::from_value(left), Number::from_value(right)) {
        (_, _, Some(left), Some(right)) => Ok(Some(left.subtract(right).into())),
        (Bson::DateTime(left), Bson::DateTime(right), _, _) => left
            .timestamp_millis()
            .checked_sub(right.timestamp_millis())
            .map(|difference| Some(Bson::Int64(difference)))
            .ok_or_else(date_overflow),
        (Bson::DateTime(date), _, _, Some(number)) => {
            let delta = millis(number)?.checked_neg().ok_or_else(date_overflow)?;
            date_plus(*date, delta).map(Some)
        }
        _ => Err(left.wrong_type(
            ErrorCode::TYPE_MISMATCH,
            format_args!("can't $subtract {} from", right.type_name()),
        )),
    }
}

fn multiply(args: &[Operand<'_>], _: &Meter) -> Evaluated {
    let mut product = Number::Int32(1);
    for arg in args {
        if arg.is_nullish() {
            return Ok(Some(Bson::Null));
        }
        let number = arg.number(16555, "$multiply only supports numeric types, not")?;
        product = product.multiply(number);
    }
    Ok(Some(Bson::from(product)))
}

fn pair(name: &str, code: impl Into<ErrorCode>, args: &[Operand<'_>]) -> Result<(Number, Number)> {
    let (left, right) = (args[0].or_null(), args[1].or_null());
    match (Number::from_value(left), Number::from_value(right)) {
        (Some(left), Some(right)) => Ok((left, right)),
        _ => Err(right.wrong_type(
            code,
            format_args!("{name} only supports numeric types, not {} and", left.type_name()),
        )),
    }
}

fn divide(args: &[Operand<'_>], _: &Meter) -> Evaluated {
    let (left, right) = pair("$divide", ErrorCode::TYPE_MISMATCH, args)?;
    refuse_if!(right.is_zero() => BAD_VALUE, "can't $divide by zero");
    Ok(Some(left.divide(right).into()))
}

fn modulo(args: &[Operand<'_>], _: &Meter) -> Evaluated {
    let (left, right) = pair("$mod", 16611, args)?;
    match left.remainder(right) {
        Some(remainder) => Ok(Some(remainder.into())),
        None => Err(fail!(16610, "can't $mod by zero")),
    }
}

fn absolute(number: Number) -> Result<Number> {
    match number {
        Number::Int32(number) => Ok(narrow(i64::from(number).abs(), true)),
        Number::Int64(number) => number
            .checked_abs()
            .map(Number::Int64)
            .ok_or_else(|| fail!(28680, "can't take $abs of long long min")),
        Number::Double(number) => Ok(Number::Double(number.abs())),
        Number::Decimal(number) => Ok(Number::Decimal(number.abs())),
    }
}

fn round_whole(number: Number, double: fn(f64) -> f64, rounding: Rounding) -> Number {
    match number {
        Number::Double(number) => Number::Double(double(number)),
        Number::Decimal(number) => Number::Decimal(number.round_to(0, rounding)),
        whole => whole,
    }
}

/// How many places `$round` and `$trunc` may be asked for.
const PLACES: std::ops::RangeInclusive<i64> = -20..=100;

fn round_or_trunc(name: &str, args: &[Operand<'_>], rounding: Rounding) -> Evaluated {
    let number = args[0].number(51081, format_args!("{name} only supports numeric types, not"))?;
    let places = match args.get(1) {
        None => 0,
        Some(places) => super::as_i64(places.or_null()).ok_or_else(|| {
            fail!(51082, "precision argument to  {name} must be a integral value")
        })?,
    };
    refuse_if!(!PLACES.contains(&places) => 51083,
        "cannot apply {name} with precision value {places} value must be in [-20, 100]");
    Ok(Some(round_to(number, places as i32, rounding)?.into()))
}

fn round_to(number: Number, places: i32, rounding: Rounding) -> Result<Number> {
    match number {
        Number::Double(number) => Ok(Number::Double(round_double(number, places, rounding))),
        Number::Decimal(number) => Ok(Number::Decimal(number.round_to(places, rounding))),
        whole if places >= 0 => Ok(whole),
        Number::Int32(number) => {
            round_integer(i64::from(number), places, rounding).map(|rounded| narrow(rounded, true))
        }
        Number::Int64(number) => round_integer(number, places, rounding).map(Number::Int64),
    }
}

fn round_integer(number: i64, places: i32, rounding: Rounding) -> Result<i64> {
    let unit = 10_i128.pow(places.unsigned_abs());
    let number = i128::from(number);
    let (quotient, rest) = (number / unit, number % unit);
    let up = rounding == Rounding::HalfEven
        && (rest.abs() * 2 > unit || (rest.abs() * 2 == unit && quotient % 2 != 0));
    let rounded = (quotient + if up { number.signum() } else { 0 }) * unit;
    i64::try_from(rounded).map_err(|_| {
        fail!(51080, "invalid conversion from Decimal128 result in $round resulting from arguments")
    })
}

/// Cuts a double at a decimal place by its exact decimal expansion, so that 2.675, which is a
/// little less than it looks, rounds to 2.67.
fn round_double(number: f64, places: i32, rounding: Rounding) -> f64 {
    /// Past this many digits after the point nothing is left to cut that could matter.
    const EXPANSION: usize = 120;
    if !number.is_finite() {
        return number;
    }
    if places == 0 {
        return if rounding == Rounding::Truncate {
            number.trunc()
        } else {
            number.round_ties_even()
        };
    }
    if places < 0 {
        let unit = 10_f64.powi(-places);
        let scaled = number / unit;
        let cut =
            if rounding == Rounding::Truncate { scaled.trunc() } else { scaled.round_ties_even() };
        return cut * unit;
    }
    let places = places as usize;
    let text = if rounding == Rounding::Truncate {
        let expanded = format!("{number:.EXPANSION$}");
        let end = expanded.find('.').map_or(expanded.len(), |point| point + 1 + places);
        expanded[..end.min(expanded.len())].to_owned()
    } else {
        format!("{number:.places$}")
    };
    text.parse().unwrap_or(number)
}

fn logarithm(name: &str, code: i32, number: Number, function: fn(f64) -> f64) -> Result<Number> {
    // NaN is let through: its logarithm is NaN.
    refuse_if!(number.to_f64() <= 0.0 => (code),
        "{name}'s argument must be a positive number, but is {}", Bson::from(number));
    Ok(through_double(number, function))
}

fn log(args: &[Operand<'_>], _: &Meter) -> Evaluated {
    let argument = args[0].number(28756, "$log's argument must be numeric, not")?;
    let base = args[1].number(28757, "$log's base must be numeric, not")?;
    refuse_if!(argument.to_f64() <= 0.0 => 28758,
        "$log's argument must be a positive number, but is {}", Bson::from(argument));
    refuse_if!(base.to_f64() <= 0.0 || base.to_f64() == 1.0 => 28759,
        "$log's base must be a positive number not equal to 1, but is {}", Bson::from(base));
    Ok(Some(of_doubles(argument, base, argument.to_f64().ln() / base.to_f64().ln())))
}

fn any_decimal(left: Number, right: Number) -> bool {
    matches!((left, right), (Number::Decimal(_), _) | (_, Number::Decimal(_)))
}

/// The result that doubles give for two numbers: a decimal if one of them is.
pub(super) fn of_doubles(left: Number, right: Number, result: f64) -> Bson {
    if any_decimal(left, right) {
        Number::Decimal(Decimal::from_f64(result)).into()
    } else {
        Bson::Double(result)
    }
}

fn pow(args: &[Operand<'_>], _: &Meter) -> Evaluated {
    let base = args[0].number(28762, "$pow's base must be numeric, not")?;
    let exponent = args[1].number(28763, "$pow's exponent must be numeric, not")?;
    refuse_if!(base.is_zero() && exponent.to_f64() < 0.0 => 28764,
        "$pow cannot take a base of 0 and a negative exponent");
    if any_decimal(base, exponent) {
        let power = decimal_power(base.to_decimal(), exponent.to_decimal());
        return Ok(Some(Number::Decimal(power).into()));
    }
    if let (Some(whole), Some(times)) = (integer(base), integer(exponent)) {
        let both_int = matches!((base, exponent), (Number::Int32(_), Number::Int32(_)));
        let power = match (whole, u32::try_from(times)) {
            (1, _) => Some(1),
            (-1, _) => Some(if times % 2 == 0 { 1 } else { -1 }),
            (0, _) if times > 0 => Some(0),
            (_, Ok(times)) => whole.checked_pow(times),
            _ => None,
        };
        if let Some(power) = power {
            return Ok(Some(narrow(power, both_int).into()));
        }
    }
    Ok(Some(Bson::Double(base.to_f64().powf(exponent.to_f64()))))
}

/// Whole exponents by repeated squaring, others through doubles.
fn decimal_power(base: Decimal, exponent: Decimal) -> Decimal {
    /// Beyond this every power of anything but one is infinite or zero anyway.
    const LARGEST_EXACT_EXPONENT: u64 = 1 << 16;
    let times = if exponent.is_integral() { exponent.to_i64() } else { None };
    let Some(times) = times.filter(|times| times.unsigned_abs() <= LARGEST_EXACT_EXPONENT) else {
        return Decimal::from_f64(base.to_f64().powf(exponent.to_f64()));
    };
    let mut left = times.unsigned_abs();
    let (mut square, mut power) = (base, Decimal::from_i64(1));
    while left > 0 {
        if left % 2 == 1 {
            power = power.multiply(square);
        }
        square = square.multiply(square);
        left /= 2;
    }
    if times < 0 { Decimal::from_i64(1).divide(power) } else { power }
}

fn square_root(number: Number) -> Result<Number> {
    refuse_if!(number.to_f64() < 0.0 => 28714,
        "$sqrt's argument must be greater than or equal to 0");
    let Number::Decimal(radicand) = number else {
        return Ok(through_double(number, f64::sqrt));
    };
    // Two Newton steps double the 15 digits of the double's root to what a decimal holds.
    let mut root = Decimal::from_f64(radicand.to_f64().sqrt());
    if root.is_finite() && !root.is_zero() {
        let half = Decimal::from_f64(0.5);
        for _ in 0..2 {
            root = root.plus(radicand.divide(root)).multiply(half);
        }
    }
    Ok(Number::Decimal(root.normalized()))
}
