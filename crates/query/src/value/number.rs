//! Numbers of four types with BSON's promotion rules.
//!
//! Owns comparison by mathematical value and the arithmetic that updates and expressions share:
//! int32 grows into int64, int64 into double, and anything meeting a decimal becomes decimal.

use std::cmp::Ordering;

use bson::Bson;

use super::decimal::Decimal;
use super::view::ValueRef;

/// 2^63, the first double beyond every int64.
const TWO_TO_63: f64 = 9_223_372_036_854_775_808.0;

/// A BSON number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Number {
    /// 32-bit integer.
    Int32(i32),
    /// 64-bit integer.
    Int64(i64),
    /// Binary floating point.
    Double(f64),
    /// Decimal floating point.
    Decimal(Decimal),
}

impl From<Number> for Bson {
    fn from(number: Number) -> Self {
        match number {
            Number::Int32(value) => Bson::Int32(value),
            Number::Int64(value) => Bson::Int64(value),
            Number::Double(value) => Bson::Double(value),
            Number::Decimal(value) => Bson::Decimal128(value.encode()),
        }
    }
}

impl Number {
    /// The number in a value, if it is one.
    pub fn from_value<'a>(value: impl Into<ValueRef<'a>>) -> Option<Self> {
        match value.into() {
            ValueRef::Int32(value) => Some(Self::Int32(value)),
            ValueRef::Int64(value) => Some(Self::Int64(value)),
            ValueRef::Double(value) => Some(Self::Double(value)),
            ValueRef::Decimal128(value) => Some(Self::Decimal(Decimal::decode(value))),
            _ => None,
        }
    }

    /// Compares by mathematical value; NaN equals NaN and is below everything.
    pub fn compare(self, other: Self) -> Ordering {
        match (self.as_integer(), other.as_integer()) {
            (Some(left), Some(right)) => return left.cmp(&right),
            (Some(left), None) => return other.compare_integer(left).reverse(),
            (None, Some(right)) => return self.compare_integer(right),
            (None, None) => {}
        }
        match (self, other) {
            (Self::Double(left), Self::Double(right)) => compare_doubles(left, right),
            (Self::Decimal(left), Self::Decimal(right)) => left.compare(right),
            (Self::Decimal(left), Self::Double(right)) => left.compare_f64(right),
            (Self::Double(left), Self::Decimal(right)) => right.compare_f64(left).reverse(),
            _ => Ordering::Equal,
        }
    }

    fn as_integer(self) -> Option<i64> {
        match self {
            Self::Int32(value) => Some(value.into()),
            Self::Int64(value) => Some(value),
            _ => None,
        }
    }

    fn compare_integer(self, integer: i64) -> Ordering {
        match self {
            Self::Double(value) => compare_double_with_integer(value, integer),
            Self::Decimal(value) => value.compare(Decimal::from_i64(integer)),
            Self::Int32(value) => i64::from(value).cmp(&integer),
            Self::Int64(value) => value.cmp(&integer),
        }
    }

    /// Whether this is a NaN of either kind.
    pub fn is_nan(self) -> bool {
        match self {
            Self::Double(value) => value.is_nan(),
            Self::Decimal(value) => value.is_nan(),
            _ => false,
        }
    }

    /// Whether this is zero.
    pub fn is_zero(self) -> bool {
        match self {
            Self::Int32(value) => value == 0,
            Self::Int64(value) => value == 0,
            Self::Double(value) => value == 0.0,
            Self::Decimal(value) => value.is_zero(),
        }
    }

    /// The nearest double.
    pub(crate) fn to_f64(self) -> f64 {
        match self {
            Self::Int32(value) => value.into(),
            Self::Int64(value) => value as f64,
            Self::Double(value) => value,
            Self::Decimal(value) => value.to_f64(),
        }
    }

    /// As a decimal; a double keeps 15 significant digits.
    pub fn to_decimal(self) -> Decimal {
        match self {
            Self::Int32(value) => Decimal::from_i64(value.into()),
            Self::Int64(value) => Decimal::from_i64(value),
            Self::Double(value) => Decimal::from_f64(value),
            Self::Decimal(value) => value,
        }
    }

    /// The value as an int64 if it is a whole number in range.
    pub fn to_i64_exact(self) -> Option<i64> {
        match self {
            Self::Int32(value) => Some(value.into()),
            Self::Int64(value) => Some(value),
            Self::Double(value) => (value.fract() == 0.0).then(|| double_to_i64(value)).flatten(),
            Self::Decimal(value) => value.is_integral().then(|| value.to_i64()).flatten(),
        }
    }

    /// The value cut towards zero, if that fits an int64.
    pub(crate) fn to_i64_truncated(self) -> Option<i64> {
        match self {
            Self::Double(value) => double_to_i64(value.trunc()),
            Self::Decimal(value) => value.to_i64(),
            Self::Int32(value) => Some(value.into()),
            Self::Int64(value) => Some(value),
        }
    }

    /// The sum; an int64 that would overflow becomes a double.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        self.checked_add(other).unwrap_or_else(|| Self::Double(self.to_f64() + other.to_f64()))
    }

    /// The difference; an int64 that would overflow becomes a double.
    #[must_use]
    pub fn subtract(self, other: Self) -> Self {
        self.checked_subtract(other).unwrap_or_else(|| Self::Double(self.to_f64() - other.to_f64()))
    }

    /// The product; an int64 that would overflow becomes a double.
    #[must_use]
    pub fn multiply(self, other: Self) -> Self {
        self.checked_multiply(other).unwrap_or_else(|| Self::Double(self.to_f64() * other.to_f64()))
    }

    /// The quotient: a double, or a decimal if either side is one. Division by zero follows IEEE;
    /// operators that refuse it check `is_zero` first.
    #[must_use]
    pub fn divide(self, other: Self) -> Self {
        match (self, other) {
            (Self::Decimal(_), _) | (_, Self::Decimal(_)) => {
                Self::Decimal(self.to_decimal().divide(other.to_decimal()))
            }
            _ => Self::Double(self.to_f64() / other.to_f64()),
        }
    }

    /// The remainder with the sign of the dividend, `None` for division by zero.
    #[must_use]
    pub(crate) fn remainder(self, other: Self) -> Option<Self> {
        if other.is_zero() {
            return None;
        }
        Some(match (self, other) {
            (Self::Decimal(_), _) | (_, Self::Decimal(_)) => {
                Self::Decimal(self.to_decimal().remainder(other.to_decimal()))
            }
            (Self::Double(_), _) | (_, Self::Double(_)) => {
                Self::Double(self.to_f64() % other.to_f64())
            }
            (Self::Int32(left), Self::Int32(right)) => Self::Int32(left.wrapping_rem(right)),
            _ => Self::Int64(
                self.as_integer().unwrap_or(0).wrapping_rem(other.as_integer().unwrap_or(1)),
            ),
        })
    }

    /// The sum, `None` where two integers overflow int64.
    pub fn checked_add(self, other: Self) -> Option<Self> {
        self.combine(other, i64::checked_add, |a, b| a + b, Decimal::plus)
    }

    /// The difference, `None` where two integers overflow int64.
    pub(crate) fn checked_subtract(self, other: Self) -> Option<Self> {
        self.combine(other, i64::checked_sub, |a, b| a - b, Decimal::subtract)
    }

    /// The product, `None` where two integers overflow int64.
    pub(crate) fn checked_multiply(self, other: Self) -> Option<Self> {
        self.combine(other, i64::checked_mul, |a, b| a * b, Decimal::multiply)
    }

    fn combine(
        self,
        other: Self,
        integers: fn(i64, i64) -> Option<i64>,
        doubles: fn(f64, f64) -> f64,
        decimals: fn(Decimal, Decimal) -> Decimal,
    ) -> Option<Self> {
        match (self, other) {
            (Self::Decimal(_), _) | (_, Self::Decimal(_)) => {
                Some(Self::Decimal(decimals(self.to_decimal(), other.to_decimal())))
            }
            (Self::Double(_), _) | (_, Self::Double(_)) => {
                Some(Self::Double(doubles(self.to_f64(), other.to_f64())))
            }
            _ => {
                let both_small = matches!((self, other), (Self::Int32(_), Self::Int32(_)));
                let value = integers(self.as_integer()?, other.as_integer()?)?;
                match i32::try_from(value) {
                    Ok(small) if both_small => Some(Self::Int32(small)),
                    _ => Some(Self::Int64(value)),
                }
            }
        }
    }
}

/// Whether a value counts as true: everything but false, zero, null and undefined.
pub fn is_truthy<'a>(value: impl Into<ValueRef<'a>>) -> bool {
    let value = value.into();
    match value {
        ValueRef::Boolean(flag) => flag,
        ValueRef::Null | ValueRef::Undefined => false,
        _ => Number::from_value(value).is_none_or(|number| !number.is_zero()),
    }
}

fn double_to_i64(value: f64) -> Option<i64> {
    (-TWO_TO_63..TWO_TO_63).contains(&value).then_some(value as i64)
}

fn compare_doubles(left: f64, right: f64) -> Ordering {
    left.partial_cmp(&right).unwrap_or_else(|| right.is_nan().cmp(&left.is_nan()))
}

fn compare_double_with_integer(double: f64, integer: i64) -> Ordering {
    if double.is_nan() || double < -TWO_TO_63 {
        Ordering::Less
    } else if double >= TWO_TO_63 {
        Ordering::Greater
    } else {
        let whole = double.trunc();
        (whole as i64)
            .cmp(&integer)
            .then_with(|| double.partial_cmp(&whole).unwrap_or(Ordering::Equal))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn integers_grow_before_they_overflow() {
        let max = Number::Int32(i32::MAX);
        assert_eq!(max.plus(Number::Int32(1)), Number::Int64(2_147_483_648));
        assert_eq!(Number::Int32(1).plus(Number::Int32(1)), Number::Int32(2));
        assert_eq!(Number::Int32(1).plus(Number::Int64(1)), Number::Int64(2));
        let max = Number::Int64(i64::MAX);
        assert_eq!(max.checked_add(Number::Int32(1)), None);
        assert_eq!(max.plus(Number::Int32(1)), Number::Double(TWO_TO_63));
        assert_eq!(
            Number::Int32(i32::MAX).multiply(Number::Int32(2)),
            Number::Int64(4_294_967_294)
        );
    }

    #[test]
    fn doubles_and_decimals_absorb_integers() {
        assert_eq!(Number::Int32(1).plus(Number::Double(0.5)), Number::Double(1.5));
        let half = Number::Decimal(Decimal::decode("0.5".parse().unwrap()));
        assert_eq!(
            Bson::from(Number::Int32(1).plus(half)),
            Bson::Decimal128("1.5".parse().unwrap())
        );
        assert_eq!(Number::Int32(7).divide(Number::Int32(2)), Number::Double(3.5));
    }

    #[test]
    fn remainders_refuse_zero_and_survive_the_smallest_integer() {
        assert_eq!(Number::Int32(5).remainder(Number::Int32(0)), None);
        assert_eq!(Number::Int32(i32::MIN).remainder(Number::Int32(-1)), Some(Number::Int32(0)));
        assert_eq!(Number::Int64(i64::MIN).remainder(Number::Int32(-1)), Some(Number::Int64(0)));
        assert_eq!(Number::Int32(-5).remainder(Number::Int32(3)), Some(Number::Int32(-2)));
    }

    proptest! {
        #[test]
        fn comparison_of_doubles_and_integers_is_exact(integer in any::<i64>(), offset in -2i64..=2) {
            let double = integer as f64;
            let exact = if double >= TWO_TO_63 { i128::from(i64::MAX) + 1 } else { i128::from(double as i64) };
            prop_assert_eq!(
                Number::Double(double).compare(Number::Int64(integer)),
                exact.cmp(&i128::from(integer))
            );
            let near = integer.saturating_add(offset);
            prop_assert_eq!(
                Number::Int64(near).compare(Number::Double(double)),
                i128::from(near).cmp(&exact)
            );
        }
    }
}
