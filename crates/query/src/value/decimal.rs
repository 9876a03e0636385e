//! Decimal128 numbers by value: decoding, exact comparison and arithmetic.
//!
//! The BSON library keeps a Decimal128 as sixteen bytes and reads and prints them. This module owns
//! what they mean: IEEE 754-2008 decimal128 in the binary-integer form, 34 digits, results rounded
//! half to even. Transcendental functions are left to callers, through `to_f64`.

use std::cmp::Ordering;

use bson::Decimal128;

use super::decimal_wide::{U256, pow10};

/// The number of decimal digits a coefficient can have.
pub(crate) const MAX_DIGITS: u32 = 34;
/// The smallest exponent.
pub(crate) const MIN_EXPONENT: i32 = -6176;
/// The largest exponent.
pub(crate) const MAX_EXPONENT: i32 = 6111;

const BIAS: i32 = 6176;
const COEFFICIENT_BITS: u32 = 113;
const SIGN_BIT: u128 = 1 << 127;
const INFINITY_BITS: u128 = 0b11110 << 122;
const NAN_BITS: u128 = 0b11111 << 122;

/// The significant digits that a double keeps when arithmetic turns it into a decimal.
const DIGITS_FROM_DOUBLE: usize = 15;
/// No double needs more significant decimal digits than this to be written exactly.
const EXACT_DOUBLE_DIGITS: usize = 767;

/// A decoded Decimal128.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decimal {
    /// Not a number.
    NaN,
    /// An infinity.
    Infinity {
        /// Whether it is the negative one.
        negative: bool,
    },
    /// `coefficient × 10^exponent`, negated if `negative`.
    Finite {
        /// The sign; zero has one too.
        negative: bool,
        /// At most 34 digits.
        coefficient: u128,
        /// Between `MIN_EXPONENT` and `MAX_EXPONENT`.
        exponent: i32,
    },
}

/// How a decimal is cut to fewer digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rounding {
    /// To the nearest; a tie goes to the even digit.
    HalfEven,
    /// Towards zero.
    Truncate,
    /// Towards negative infinity.
    Floor,
    /// Towards positive infinity.
    Ceiling,
}

impl Decimal {
    /// Positive zero with exponent zero.
    pub const ZERO: Self = Self::Finite { negative: false, coefficient: 0, exponent: 0 };

    /// Reads the sixteen bytes.
    pub fn decode(value: Decimal128) -> Self {
        let bits = u128::from_le_bytes(value.bytes());
        let negative = bits & SIGN_BIT != 0;
        if bits & NAN_BITS == NAN_BITS {
            return Self::NaN;
        }
        if bits & NAN_BITS == INFINITY_BITS {
            return Self::Infinity { negative };
        }
        // The second form starts its coefficient beyond 34 digits: always non-canonical, so zero.
        if (bits >> 125) & 0b11 == 0b11 {
            let exponent = ((bits >> 111) & 0x3fff) as i32 - BIAS;
            return Self::Finite { negative, coefficient: 0, exponent };
        }
        let exponent = ((bits >> COEFFICIENT_BITS) & 0x3fff) as i32 - BIAS;
        let coefficient = bits & ((1 << COEFFICIENT_BITS) - 1);
        let coefficient = if coefficient < pow10(MAX_DIGITS) { coefficient } else { 0 };
        Self::Finite { negative, coefficient, exponent }
    }

    /// Writes the sixteen bytes.
    pub fn encode(self) -> Decimal128 {
        let bits = match self {
            Self::NaN => NAN_BITS,
            Self::Infinity { negative } => INFINITY_BITS | sign_bits(negative),
            Self::Finite { negative, coefficient, exponent } => {
                sign_bits(negative)
                    | (((exponent + BIAS) as u128) << COEFFICIENT_BITS)
                    | coefficient
            }
        };
        Decimal128::from_bytes(bits.to_le_bytes())
    }

    /// An integer, exactly.
    pub(crate) fn from_i64(value: i64) -> Self {
        Self::Finite { negative: value < 0, coefficient: value.unsigned_abs().into(), exponent: 0 }
    }

    /// A double rounded to 15 significant digits, as arithmetic and `$toDecimal` see it.
    pub fn from_f64(value: f64) -> Self {
        if value.is_nan() {
            return Self::NaN;
        }
        if value.is_infinite() {
            return Self::Infinity { negative: value < 0.0 };
        }
        if value == 0.0 {
            return Self::Finite {
                negative: value.is_sign_negative(),
                coefficient: 0,
                exponent: 0,
            };
        }
        let expansion = DoubleDigits::new(value, DIGITS_FROM_DOUBLE);
        Self::from_parts(value < 0.0, U256::from(expansion.leading), expansion.exponent, false)
    }

    /// The nearest double; beyond its range an infinity.
    pub(crate) fn to_f64(self) -> f64 {
        match self {
            Self::NaN => f64::NAN,
            Self::Infinity { negative: false } => f64::INFINITY,
            Self::Infinity { negative: true } => f64::NEG_INFINITY,
            Self::Finite { negative, coefficient, exponent } => {
                let magnitude: f64 =
                    format!("{coefficient}e{exponent}").parse().unwrap_or(f64::NAN);
                if negative { -magnitude } else { magnitude }
            }
        }
    }

    /// The integer part, if it fits.
    pub(crate) fn to_i64(self) -> Option<i64> {
        match self.round_to(0, Rounding::Truncate) {
            Self::Finite { negative, coefficient, exponent } => {
                if coefficient == 0 {
                    return Some(0);
                }
                let scale = u32::try_from(exponent).ok().filter(|&scale| scale <= 18)?;
                let magnitude = i128::try_from(coefficient.checked_mul(pow10(scale))?).ok()?;
                i64::try_from(if negative { -magnitude } else { magnitude }).ok()
            }
            _ => None,
        }
    }

    /// Whether this is NaN.
    pub fn is_nan(self) -> bool {
        self == Self::NaN
    }

    /// Whether this is neither NaN nor an infinity.
    pub fn is_finite(self) -> bool {
        matches!(self, Self::Finite { .. })
    }

    /// Whether this is a zero of either sign.
    pub fn is_zero(self) -> bool {
        matches!(self, Self::Finite { coefficient: 0, .. })
    }

    /// Whether the sign is negative; false for NaN.
    pub(crate) fn is_negative(self) -> bool {
        match self {
            Self::NaN => false,
            Self::Infinity { negative } | Self::Finite { negative, .. } => negative,
        }
    }

    /// Whether there is nothing after the decimal point.
    pub(crate) fn is_integral(self) -> bool {
        match self.normalized() {
            Self::Finite { exponent, coefficient, .. } => exponent >= 0 || coefficient == 0,
            _ => false,
        }
    }

    /// The same value without trailing zeros, zero as plain positive zero.
    pub(crate) fn normalized(self) -> Self {
        match self {
            Self::Finite { coefficient: 0, .. } => Self::ZERO,
            Self::Finite { negative, mut coefficient, mut exponent } => {
                while coefficient.is_multiple_of(10) {
                    coefficient /= 10;
                    exponent += 1;
                }
                Self::Finite { negative, coefficient, exponent }
            }
            other => other,
        }
    }

    /// Compares by value. NaN equals itself and is below everything.
    pub fn compare(self, other: Self) -> Ordering {
        match (self, other) {
            (Self::NaN, Self::NaN) => Ordering::Equal,
            (Self::NaN, _) => Ordering::Less,
            (_, Self::NaN) => Ordering::Greater,
            _ => self.sign_class().cmp(&other.sign_class()).then_with(|| {
                let magnitudes = self.compare_magnitude(other);
                if self.is_negative() { magnitudes.reverse() } else { magnitudes }
            }),
        }
    }

    /// Compares with a double by exact value. NaN equals NaN and is below everything.
    pub(crate) fn compare_f64(self, other: f64) -> Ordering {
        if other.is_nan() {
            return if self.is_nan() { Ordering::Equal } else { Ordering::Greater };
        }
        if other.is_infinite() || other == 0.0 || !self.is_finite() || self.is_zero() {
            return self.compare(Self::from_f64(other));
        }
        let expansion = DoubleDigits::new(other, EXACT_DOUBLE_DIGITS);
        let negative = other < 0.0;
        if self.is_negative() != negative {
            return if negative { Ordering::Greater } else { Ordering::Less };
        }
        let magnitudes = self
            .compare_aligned(expansion.leading, expansion.exponent)
            .then(if expansion.rest { Ordering::Less } else { Ordering::Equal });
        if negative { magnitudes.reverse() } else { magnitudes }
    }

    fn sign_class(self) -> i8 {
        match self {
            Self::NaN => -3,
            Self::Infinity { negative } => {
                if negative {
                    -2
                } else {
                    2
                }
            }
            Self::Finite { coefficient: 0, .. } => 0,
            Self::Finite { negative, .. } => {
                if negative {
                    -1
                } else {
                    1
                }
            }
        }
    }

    fn compare_magnitude(self, other: Self) -> Ordering {
        match other {
            Self::Finite { coefficient, exponent, .. } => {
                self.compare_aligned(coefficient, exponent)
            }
            _ => Ordering::Equal,
        }
    }

    /// Compares the magnitude of a finite number with `coefficient × 10^exponent`.
    fn compare_aligned(self, coefficient: u128, exponent: i32) -> Ordering {
        let Self::Finite { coefficient: own, exponent: own_exponent, .. } = self else {
            return Ordering::Equal;
        };
        if own == 0 || coefficient == 0 {
            return own.cmp(&coefficient);
        }
        let (own_digits, digits) = (digit_count(own), digit_count(coefficient));
        let leading = (own_digits as i32 + own_exponent).cmp(&(digits as i32 + exponent));
        leading.then_with(|| {
            let own = own * pow10(MAX_DIGITS - own_digits);
            own.cmp(&(coefficient * pow10(MAX_DIGITS - digits)))
        })
    }

    /// The sum.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        use Decimal::{Finite, Infinity, NaN};
        match (self, other) {
            (NaN, _) | (_, NaN) => NaN,
            (Infinity { negative: a }, Infinity { negative: b }) if a != b => NaN,
            (Infinity { negative }, _) | (_, Infinity { negative }) => Infinity { negative },
            (
                Finite { negative: a_neg, coefficient: a, exponent: a_exp },
                Finite { negative: b_neg, coefficient: b, exponent: b_exp },
            ) => {
                if a_exp >= b_exp {
                    add_finite((a_neg, a, a_exp), (b_neg, b, b_exp))
                } else {
                    add_finite((b_neg, b, b_exp), (a_neg, a, a_exp))
                }
            }
        }
    }

    /// The negated value.
    #[must_use]
    pub(crate) fn negate(self) -> Self {
        match self {
            Self::NaN => Self::NaN,
            Self::Infinity { negative } => Self::Infinity { negative: !negative },
            Self::Finite { negative, coefficient, exponent } => {
                Self::Finite { negative: !negative, coefficient, exponent }
            }
        }
    }

    /// The absolute value.
    #[must_use]
    pub fn abs(self) -> Self {
        if self.is_negative() { self.negate() } else { self }
    }

    /// The difference.
    #[must_use]
    pub fn subtract(self, other: Self) -> Self {
        self.plus(other.negate())
    }

    /// The product.
    #[must_use]
    pub fn multiply(self, other: Self) -> Self {
        use Decimal::{Finite, Infinity, NaN};
        let negative = self.is_negative() != other.is_negative();
        match (self, other) {
            (NaN, _) | (_, NaN) => NaN,
            (Infinity { .. }, value) | (value, Infinity { .. }) => {
                if value.is_zero() {
                    NaN
                } else {
                    Infinity { negative }
                }
            }
            (
                Finite { coefficient: a, exponent: a_exp, .. },
                Finite { coefficient: b, exponent: b_exp, .. },
            ) => Self::from_parts(negative, U256::multiply(a, b), a_exp + b_exp, false),
        }
    }

    /// The quotient. A finite number by zero is an infinity, zero by zero is NaN.
    #[must_use]
    pub fn divide(self, other: Self) -> Self {
        use Decimal::{Finite, Infinity, NaN};
        let negative = self.is_negative() != other.is_negative();
        match (self, other) {
            (NaN, _) | (_, NaN) | (Infinity { .. }, Infinity { .. }) => NaN,
            (Infinity { .. }, _) => Infinity { negative },
            (_, Infinity { .. }) => Finite { negative, coefficient: 0, exponent: MIN_EXPONENT },
            (value, divisor) if divisor.is_zero() => {
                if value.is_zero() {
                    NaN
                } else {
                    Infinity { negative }
                }
            }
            (
                Finite { coefficient: a, exponent: a_exp, .. },
                Finite { coefficient: b, exponent: b_exp, .. },
            ) => divide_finite(negative, (a, a_exp), (b, b_exp)),
        }
    }

    /// The remainder of truncated division: it has the sign of the dividend.
    #[must_use]
    pub(crate) fn remainder(self, other: Self) -> Self {
        use Decimal::{Finite, Infinity, NaN};
        match (self, other) {
            (NaN, _) | (_, NaN) | (Infinity { .. }, _) => NaN,
            (_, divisor) if divisor.is_zero() => NaN,
            (value, Infinity { .. }) => value,
            (
                Finite { negative, coefficient: a, exponent: a_exp },
                Finite { coefficient: b, exponent: b_exp, .. },
            ) => {
                let exponent = a_exp.min(b_exp);
                // a·10^x mod b·10^y, one digit at a time, so that nothing outgrows 256 bits.
                if b_exp > exponent {
                    let shift = (b_exp - exponent) as u32;
                    if shift >= MAX_DIGITS {
                        return self;
                    }
                    let divisor = U256::multiply(b, pow10(shift));
                    let remainder = match divisor.to_u128() {
                        Some(divisor) => a % divisor,
                        None => a,
                    };
                    return Finite { negative, coefficient: remainder, exponent };
                }
                let mut remainder = a % b;
                for _ in 0..(a_exp - exponent) {
                    if remainder == 0 {
                        break;
                    }
                    remainder = (remainder * 10) % b;
                }
                Finite { negative, coefficient: remainder, exponent }
            }
        }
    }

    /// Keeps `places` digits after the decimal point (negative: before it).
    #[must_use]
    pub(crate) fn round_to(self, places: i32, rounding: Rounding) -> Self {
        let Self::Finite { negative, coefficient, exponent } = self else { return self };
        let wanted = places.saturating_neg();
        if exponent >= wanted {
            return self;
        }
        let drop = wanted.saturating_sub(exponent).unsigned_abs();
        let (quotient, half) = if drop > MAX_DIGITS {
            (0, if coefficient == 0 { Ordering::Equal } else { Ordering::Less })
        } else {
            let divisor = pow10(drop);
            let rest = coefficient % divisor;
            (coefficient / divisor, (rest * 2).cmp(&divisor))
        };
        let inexact = match drop {
            0 => false,
            drop if drop > MAX_DIGITS => coefficient != 0,
            drop => !coefficient.is_multiple_of(pow10(drop)),
        };
        let up = match rounding {
            Rounding::Truncate => false,
            Rounding::Floor => inexact && negative,
            Rounding::Ceiling => inexact && !negative,
            Rounding::HalfEven => match half {
                Ordering::Less => false,
                Ordering::Greater => true,
                Ordering::Equal => inexact && quotient % 2 == 1,
            },
        };
        let wanted = wanted.min(MAX_EXPONENT);
        Self::from_parts(negative, U256::from(quotient + u128::from(up)), wanted, false)
    }

    /// Rounds a wide coefficient to 34 digits and the exponent into its range. `sticky` says that
    /// something non-zero was already cut off below the last digit.
    fn from_parts(negative: bool, wide: U256, exponent: i32, sticky: bool) -> Self {
        let excess = wide.digit_count().saturating_sub(MAX_DIGITS);
        let below = u32::try_from(MIN_EXPONENT - exponent).unwrap_or(0);
        let drop = excess.max(below);
        let (mut coefficient, mut exponent) = (wide, exponent);
        if drop > 0 {
            coefficient = wide.round_off(drop, sticky);
            exponent = exponent.saturating_add(drop as i32);
        }
        let mut coefficient = coefficient.to_u128().unwrap_or(u128::MAX);
        if coefficient >= pow10(MAX_DIGITS) {
            // Rounding carried into a 35th digit, which is then a one followed by zeros.
            coefficient /= 10;
            exponent += 1;
        }
        while exponent > MAX_EXPONENT && coefficient != 0 && coefficient < pow10(MAX_DIGITS - 1) {
            coefficient *= 10;
            exponent -= 1;
        }
        if exponent > MAX_EXPONENT {
            if coefficient != 0 {
                return Self::Infinity { negative };
            }
            exponent = MAX_EXPONENT;
        }
        Self::Finite { negative, coefficient, exponent: exponent.max(MIN_EXPONENT) }
    }
}

/// Adds two finite numbers, the first of which has the larger (or the same) exponent.
fn add_finite(high: (bool, u128, i32), low: (bool, u128, i32)) -> Decimal {
    let (high_neg, high_coefficient, high_exp) = high;
    let (low_neg, low_coefficient, low_exp) = low;
    if high_coefficient == 0 {
        let negative = if low_coefficient == 0 { high_neg && low_neg } else { low_neg };
        return Decimal::Finite { negative, coefficient: low_coefficient, exponent: low_exp };
    }
    // 38 digits put the high number beyond the 34 digits that count, so what the low number loses
    // by the rest of the gap can only tip the rounding.
    const MAX_SHIFT: i32 = 38;
    let gap = high_exp - low_exp;
    let shift = gap.min(MAX_SHIFT);
    let mut wide = U256::multiply(high_coefficient, pow10(shift as u32));
    let exponent = high_exp - shift;
    let mut kept_low = low_coefficient;
    let mut sticky = false;
    for _ in shift..gap {
        if kept_low == 0 {
            break;
        }
        sticky |= !kept_low.is_multiple_of(10);
        kept_low /= 10;
    }
    let low_wide = U256::from(kept_low);
    let negative;
    if high_neg == low_neg {
        negative = high_neg;
        wide = wide.add(low_wide);
    } else if wide.compare(low_wide) == Ordering::Less {
        negative = low_neg;
        wide = low_wide.subtract(wide);
    } else {
        negative = high_neg;
        wide = wide.subtract(low_wide);
        if sticky {
            // The true difference lies just below: borrow one unit and keep the remainder sticky.
            wide = wide.subtract(U256::from(1));
        }
        if wide.is_zero() {
            return Decimal::Finite { negative: false, coefficient: 0, exponent };
        }
    }
    Decimal::from_parts(negative, wide, exponent, sticky)
}

fn divide_finite(negative: bool, dividend: (u128, i32), divisor: (u128, i32)) -> Decimal {
    let (a, a_exp) = dividend;
    let (b, b_exp) = divisor;
    let ideal = a_exp - b_exp;
    if a == 0 {
        return Decimal::from_parts(negative, U256::from(0), ideal, false);
    }
    // Enough digits that the quotient has at least 35 of them.
    let shift = (MAX_DIGITS + 1 + digit_count(b)).saturating_sub(digit_count(a)).min(38);
    let second = (MAX_DIGITS + 1 + digit_count(b)).saturating_sub(digit_count(a)) - shift;
    let wide = U256::multiply(a, pow10(shift)).multiply_small(pow10(second));
    let (mut quotient, remainder) = wide.divide(b);
    let mut exponent = ideal - (shift + second) as i32;
    if remainder == 0 {
        while exponent < ideal {
            let (shorter, digit) = quotient.divide(10);
            if digit != 0 {
                break;
            }
            quotient = shorter;
            exponent += 1;
        }
    }
    Decimal::from_parts(negative, quotient, exponent, remainder != 0)
}

fn sign_bits(negative: bool) -> u128 {
    if negative { SIGN_BIT } else { 0 }
}

fn digit_count(value: u128) -> u32 {
    value.checked_ilog10().map_or(0, |log| log + 1)
}

/// The decimal digits of a double: at most 34 leading ones as a number, and whether more follow.
struct DoubleDigits {
    leading: u128,
    exponent: i32,
    rest: bool,
}

impl DoubleDigits {
    /// Formats with `digits` significant digits; Rust's formatting is exact and rounds correctly.
    fn new(value: f64, digits: usize) -> Self {
        let text = format!("{:.*e}", digits - 1, value.abs());
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let scale: i32 = exponent.parse().unwrap_or(0);
        let mut leading: u128 = 0;
        let mut taken = 0;
        let mut rest = false;
        for digit in mantissa.bytes().filter(u8::is_ascii_digit) {
            if taken < MAX_DIGITS as i32 {
                leading = leading * 10 + u128::from(digit - b'0');
                taken += 1;
            } else {
                rest |= digit != b'0';
            }
        }
        Self { leading, exponent: scale - (taken - 1), rest }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decimal(text: &str) -> Decimal {
        Decimal::decode(text.parse().unwrap())
    }

    fn text(value: Decimal) -> String {
        value.encode().to_string()
    }

    #[test]
    fn decoding_and_encoding_keep_every_digit() {
        for sample in
            ["0", "-0", "1.50", "-12345678901234567890.12345678901234", "1E+6111", "1E-6176"]
        {
            let bytes: Decimal128 = sample.parse().unwrap();
            assert_eq!(Decimal::decode(bytes).encode(), bytes, "{sample}");
        }
        assert_eq!(decimal("NaN"), Decimal::NaN);
        assert_eq!(decimal("-Infinity"), Decimal::Infinity { negative: true });
    }

    #[test]
    fn a_coefficient_beyond_34_digits_reads_as_zero() {
        let bits: u128 = (6176u128 << 113) | pow10(34);
        assert!(Decimal::decode(Decimal128::from_bytes(bits.to_le_bytes())).is_zero());
        let bits: u128 = (0b11 << 125) | 5;
        assert!(Decimal::decode(Decimal128::from_bytes(bits.to_le_bytes())).is_zero());
    }

    #[test]
    fn comparison_ignores_representation() {
        assert_eq!(decimal("1.0").compare(decimal("1.000")), Ordering::Equal);
        assert_eq!(decimal("-0").compare(decimal("0E+10")), Ordering::Equal);
        assert_eq!(decimal("-2").compare(decimal("-1")), Ordering::Less);
        assert_eq!(decimal("1E+6000").compare(decimal("9E+5999")), Ordering::Greater);
        assert_eq!(decimal("NaN").compare(decimal("-Infinity")), Ordering::Less);
        assert_eq!(decimal("Infinity").compare(decimal("9.9E+6144")), Ordering::Greater);
    }

    #[test]
    fn comparison_with_doubles_is_exact() {
        assert_eq!(decimal("0.1").compare_f64(0.1), Ordering::Less);
        assert_eq!(decimal("0.5").compare_f64(0.5), Ordering::Equal);
        assert_eq!(decimal("-0.1").compare_f64(-0.1), Ordering::Greater);
        assert_eq!(decimal("NaN").compare_f64(f64::NAN), Ordering::Equal);
        assert_eq!(decimal("1E+400").compare_f64(f64::MAX), Ordering::Greater);
        assert_eq!(decimal("1E-400").compare_f64(f64::from_bits(1)), Ordering::Less);
        assert_eq!(decimal("9007199254740993").compare_f64(9007199254740992.0), Ordering::Greater);
    }

    #[test]
    fn sums_and_differences() {
        assert_eq!(text(decimal("1.10").plus(decimal("2.2"))), "3.30");
        assert_eq!(text(decimal("1").subtract(decimal("1.0"))), "0.0");
        assert_eq!(
            text(decimal("1E+40").plus(decimal("1"))),
            "1.000000000000000000000000000000000E+40"
        );
        let nines = decimal("9999999999999999999999999999999999");
        assert_eq!(text(nines.plus(decimal("1"))), "1.000000000000000000000000000000000E+34");
        assert_eq!(text(nines.plus(decimal("0.5"))), "1.000000000000000000000000000000000E+34");
        assert_eq!(nines.subtract(decimal("1E-100")).compare(nines), Ordering::Equal);
        assert_eq!(decimal("Infinity").subtract(decimal("Infinity")), Decimal::NaN);
    }

    #[test]
    fn products_and_quotients() {
        assert_eq!(text(decimal("1.5").multiply(decimal("-2.0"))), "-3.00");
        assert_eq!(text(decimal("1").divide(decimal("3"))), "0.3333333333333333333333333333333333");
        assert_eq!(text(decimal("2").divide(decimal("3"))), "0.6666666666666666666666666666666667");
        assert_eq!(text(decimal("10").divide(decimal("4"))), "2.5");
        assert_eq!(text(decimal("100").divide(decimal("5"))), "20");
        assert_eq!(decimal("1").divide(decimal("0")), Decimal::Infinity { negative: false });
        assert_eq!(decimal("0").divide(decimal("0")), Decimal::NaN);
        assert_eq!(
            decimal("9E+6144").multiply(decimal("10")),
            Decimal::Infinity { negative: false }
        );
        assert!(decimal("1E-6176").multiply(decimal("0.1")).is_zero());
    }

    #[test]
    fn remainders_keep_the_sign_of_the_dividend() {
        assert_eq!(text(decimal("5").remainder(decimal("3"))), "2");
        assert_eq!(text(decimal("-5").remainder(decimal("3"))), "-2");
        assert_eq!(text(decimal("5.5").remainder(decimal("2"))), "1.5");
        assert_eq!(text(decimal("1E+20").remainder(decimal("7"))), "2");
        assert_eq!(decimal("1").remainder(decimal("0")), Decimal::NaN);
        assert_eq!(text(decimal("5").remainder(decimal("1E+100"))), "5");
    }

    #[test]
    fn rounding_to_places() {
        let round = |value, places, rounding| text(decimal(value).round_to(places, rounding));
        assert_eq!(round("2.5", 0, Rounding::HalfEven), "2");
        assert_eq!(round("3.5", 0, Rounding::HalfEven), "4");
        assert_eq!(round("-2.5", 0, Rounding::Floor), "-3");
        assert_eq!(round("-2.5", 0, Rounding::Ceiling), "-2");
        assert_eq!(round("2.1", 0, Rounding::Ceiling), "3");
        assert_eq!(round("19.25", 1, Rounding::Truncate), "19.2");
        assert_eq!(round("1234", -2, Rounding::HalfEven), "1.2E+3");
        assert_eq!(round("5", 3, Rounding::HalfEven), "5");
    }

    #[test]
    fn doubles_become_decimals_of_fifteen_digits() {
        assert_eq!(text(Decimal::from_f64(2.5)), "2.50000000000000");
        assert_eq!(text(Decimal::from_f64(0.1)), "0.100000000000000");
        assert_eq!(Decimal::from_f64(f64::NAN), Decimal::NaN);
        assert_eq!(decimal("123.9").to_i64(), Some(123));
        assert_eq!(decimal("-9223372036854775808").to_i64(), Some(i64::MIN));
        assert_eq!(decimal("9223372036854775808").to_i64(), None);
        assert_eq!(decimal("0.1").to_f64(), 0.1);
    }

    proptest! {
        #[test]
        fn integer_arithmetic_agrees_with_i128(a in any::<i64>(), b in any::<i64>()) {
            let (x, y) = (Decimal::from_i64(a), Decimal::from_i64(b));
            prop_assert_eq!(x.compare(y), a.cmp(&b));
            let sum = (i128::from(a) + i128::from(b)).to_string();
            prop_assert_eq!(x.plus(y).compare(decimal(&sum)), Ordering::Equal);
            if b != 0 {
                let remainder = (i128::from(a) % i128::from(b)).to_string();
                prop_assert_eq!(x.remainder(y).compare(decimal(&remainder)), Ordering::Equal);
            }
        }

        #[test]
        fn no_bytes_make_arithmetic_panic(a in any::<[u8; 16]>(), b in any::<[u8; 16]>()) {
            let x = Decimal::decode(Decimal128::from_bytes(a));
            let y = Decimal::decode(Decimal128::from_bytes(b));
            for result in [x.plus(y), x.subtract(y), x.multiply(y), x.divide(y), x.remainder(y)] {
                prop_assert_eq!(Decimal::decode(result.encode()), result);
            }
            prop_assert_eq!(x.compare(y), y.compare(x).reverse());
            let _ = (x.to_f64(), x.to_i64(), x.round_to(3, Rounding::HalfEven));
        }

        #[test]
        fn neighbours_of_an_exact_double_are_told_apart(units in any::<i32>()) {
            let exact = Decimal::from_i64(units.into()).divide(decimal("1024"));
            let double = f64::from(units) / 1024.0;
            prop_assert_eq!(exact.compare_f64(double), Ordering::Equal);
            prop_assert_eq!(exact.compare_f64(double.next_up()), Ordering::Less);
            prop_assert_eq!(exact.compare_f64(double.next_down()), Ordering::Greater);
        }
    }
}
