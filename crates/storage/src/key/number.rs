//! Numbers as keys: integers, doubles and decimals on one line, ordered by value.
//!
//! Every number is taken as a decimal of at most 34 significant digits, the precision of
//! Decimal128. Integers and decimals are exact in it. A double is rounded to it, which never makes
//! two doubles equal (they differ in the first 17 digits) and is the rule by which the server
//! compares a double with a decimal.
//!
//! ```text
//!   NaN  01
//!   −∞   02
//!   < 0  03, then every byte of what a positive number would have, inverted
//!   0    04
//!   > 0  05, exponent (2 bytes), digit pairs plus one (1 byte each), 00
//!   +∞   06
//! ```
//!
//! A positive number is `0.d₁d₂d₃… × 10^e` with d₁ ≠ 0. The exponent is stored as e + 8192, most
//! significant byte first; trailing zeros are dropped; an odd last digit is paired with zero.

const NAN: u8 = 0x01;
const NEGATIVE_INFINITY: u8 = 0x02;
const NEGATIVE: u8 = 0x03;
const ZERO: u8 = 0x04;
const POSITIVE: u8 = 0x05;
const INFINITY: u8 = 0x06;

const EXPONENT_BIAS: i32 = 8192;
const DIGITS_END: u8 = 0x00;

/// The significant digits of Decimal128.
const MAX_DIGITS: usize = 34;
const MAX_COEFFICIENT: u128 = 10_u128.pow(MAX_DIGITS as u32) - 1;
const DECIMAL_EXPONENT_BIAS: i32 = 6176;

/// Integers of so many digits, and with a zero behind them, fit into 64 bits.
const SHORT_DIGITS: usize = 18;
const SHORT_INTEGERS: u64 = 10_u64.pow(SHORT_DIGITS as u32);

/// Doubles below this magnitude that have no fraction are exact as integers.
const EXACT_INTEGER_LIMIT: f64 = 9_007_199_254_740_992.0;

pub(super) fn append_integer(key: &mut Vec<u8>, number: i64) {
    match number.unsigned_abs() {
        magnitude @ 1..SHORT_INTEGERS => append_short(key, number < 0, magnitude),
        magnitude => append_scaled(key, number < 0, u128::from(magnitude), 0),
    }
}

/// Appends an integer that is not zero, pair of digits by pair: what [`append_scaled`] appends, in fewer steps.
fn append_short(key: &mut Vec<u8>, negative: bool, magnitude: u64) {
    let digits = magnitude.ilog10() as usize + 1;
    let mut rest = if digits.is_multiple_of(2) { magnitude } else { magnitude * 10 };
    let mut pairs = digits.div_ceil(2);
    // The sign, the exponent and the end are around them.
    let mut bytes = [DIGITS_END; SHORT_DIGITS / 2 + 4];
    while rest.is_multiple_of(100) {
        rest /= 100;
        pairs -= 1;
    }
    for place in (3..3 + pairs).rev() {
        bytes[place] = (rest % 100) as u8 + 1;
        rest /= 100;
    }
    bytes[1..3].copy_from_slice(&((digits as i32 + EXPONENT_BIAS) as u16).to_be_bytes());
    let bytes = &mut bytes[..3 + pairs + 1];
    if negative {
        bytes.iter_mut().for_each(|byte| *byte = !*byte);
    }
    bytes[0] = if negative { NEGATIVE } else { POSITIVE };
    key.extend_from_slice(bytes);
}

pub(super) fn append_double(key: &mut Vec<u8>, number: f64) {
    if number.is_nan() {
        key.push(NAN);
    } else if number.is_infinite() {
        key.push(if number < 0.0 { NEGATIVE_INFINITY } else { INFINITY });
    } else if number.abs() < EXACT_INTEGER_LIMIT && number.fract() == 0.0 {
        append_integer(key, number as i64);
    } else {
        let (coefficient, exponent) = to_decimal(number.abs());
        append_scaled(key, number < 0.0, coefficient, exponent);
    }
}

/// Takes the sixteen bytes of a Decimal128, least significant first (the BID encoding).
pub(super) fn append_decimal(key: &mut Vec<u8>, bytes: &[u8; 16]) {
    let bits = u128::from_le_bytes(*bytes);
    let negative = bits >> 127 == 1;
    let combination = bits >> 122 & 0x1F;
    if combination == 0x1F {
        key.push(NAN);
    } else if combination == 0x1E {
        key.push(if negative { NEGATIVE_INFINITY } else { INFINITY });
    } else {
        // With both leading bits set the coefficient would exceed 34 digits; the standard reads
        // every such coefficient as zero.
        let (coefficient, exponent) = if bits >> 125 & 0b11 == 0b11 {
            (0, 0)
        } else {
            (bits & ((1 << 113) - 1), (bits >> 113 & 0x3FFF) as i32 - DECIMAL_EXPONENT_BIAS)
        };
        let canonical = if coefficient > MAX_COEFFICIENT { 0 } else { coefficient };
        append_scaled(key, negative, canonical, exponent);
    }
}

/// Rounds a positive double to 34 digits.
fn to_decimal(number: f64) -> (u128, i32) {
    // "d.ddd…e±x": correctly rounded by the standard library, whatever the magnitude.
    let text = format!("{number:.*e}", MAX_DIGITS - 1);
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let coefficient = digits
        .bytes()
        .filter(u8::is_ascii_digit)
        .fold(0_u128, |sum, digit| sum * 10 + u128::from(digit - b'0'));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    (coefficient, exponent - (MAX_DIGITS as i32 - 1))
}

/// Appends `coefficient × 10^exponent`.
fn append_scaled(key: &mut Vec<u8>, negative: bool, coefficient: u128, exponent: i32) {
    if coefficient == 0 {
        key.push(ZERO);
        return;
    }
    key.push(if negative { NEGATIVE } else { POSITIVE });
    let start = key.len();
    let mut digits = [0_u8; MAX_DIGITS + 6];
    let digits = decimal_digits(coefficient, &mut digits);
    let biased = (exponent + digits.len() as i32 + EXPONENT_BIAS) as u16;
    key.extend(biased.to_be_bytes());
    let significant = digits.iter().rposition(|&digit| digit != 0).map_or(0, |last| last + 1);
    for pair in digits[..significant].chunks(2) {
        key.push(pair[0] * 10 + pair.get(1).copied().unwrap_or(0) + 1);
    }
    key.push(DIGITS_END);
    if negative {
        key[start..].iter_mut().for_each(|byte| *byte = !*byte);
    }
}

/// Writes the digits of a number at the end of a buffer that is large enough for any `u128`.
fn decimal_digits(mut number: u128, buffer: &mut [u8; MAX_DIGITS + 6]) -> &[u8] {
    let mut start = buffer.len();
    // Wide division is slow, so most digits are taken from a narrow remainder.
    while number > 0 {
        if let Ok(mut narrow) = u64::try_from(number) {
            while narrow > 0 {
                start -= 1;
                buffer[start] = (narrow % 10) as u8;
                narrow /= 10;
            }
            break;
        }
        start -= 1;
        buffer[start] = (number % 10) as u8;
        number /= 10;
    }
    &buffer[start..]
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::Decimal128;
    use std::str::FromStr;

    fn integer(number: i64) -> Vec<u8> {
        let mut key = Vec::new();
        append_integer(&mut key, number);
        key
    }

    #[test]
    fn short_integers_have_the_keys_of_long_ones() {
        let mut numbers = vec![1, 9, 10, 99, 100, 101, 1000, 1010, 123_400];
        for exponent in 0..=SHORT_DIGITS as u32 {
            let power = 10_i64.pow(exponent);
            numbers.extend([
                power - 1,
                power,
                power + 1,
                (power / 7).wrapping_mul(100),
                i64::MAX / power,
            ]);
        }
        numbers.extend(numbers.clone().iter().map(|number: &i64| number.wrapping_neg()));
        numbers.extend([0, i64::MIN, i64::MAX]);
        for number in numbers {
            let mut expected = Vec::new();
            append_scaled(&mut expected, number < 0, u128::from(number.unsigned_abs()), 0);
            assert_eq!(integer(number), expected, "{number}");
        }
    }

    fn double(number: f64) -> Vec<u8> {
        let mut key = Vec::new();
        append_double(&mut key, number);
        key
    }

    fn decimal(text: &str) -> Vec<u8> {
        let mut key = Vec::new();
        append_decimal(&mut key, &Decimal128::from_str(text).unwrap().bytes());
        key
    }

    #[test]
    fn equal_values_of_different_types_have_one_key() {
        assert_eq!(integer(1), double(1.0));
        assert_eq!(integer(1), decimal("1.00"));
        assert_eq!(integer(1), decimal("0.1E1"));
        assert_eq!(integer(100), decimal("1E2"));
        assert_eq!(integer(0), double(-0.0));
        assert_eq!(integer(0), decimal("-0E+10"));
        assert_eq!(double(0.5), decimal("0.5"));
        assert_eq!(integer(1 << 60), double((1_i64 << 60) as f64));
        assert_eq!(double(f64::NAN), decimal("NaN"));
        assert_eq!(double(f64::INFINITY), decimal("Infinity"));
    }

    #[test]
    fn a_line_of_numbers_is_in_order() {
        let line = [
            double(f64::NAN),
            double(f64::NEG_INFINITY),
            decimal("-9.999999999999999999999999999999999E+6144"),
            double(f64::MIN),
            double(i64::MIN as f64 * 1.5),
            integer(i64::MIN),
            integer(i64::MIN + 1),
            integer(-101),
            integer(-100),
            decimal("-99.5"),
            integer(-11),
            integer(-10),
            double(-9.5),
            integer(-1),
            double(-f64::MIN_POSITIVE),
            decimal("-1E-6176"),
            integer(0),
            decimal("1E-6176"),
            double(5e-324),
            decimal("0.1"),
            // The double nearest to a tenth is a little more than a tenth.
            double(0.1),
            integer(9),
            integer(10),
            integer(99),
            integer(100),
            integer(9_007_199_254_740_992),
            integer(9_007_199_254_740_993),
            double(9_007_199_254_740_994.0),
            integer(i64::MAX),
            double(i64::MAX as f64),
            decimal("9223372036854775808.5"),
            double(f64::MAX),
            decimal("9.999999999999999999999999999999999E+6144"),
            decimal("Infinity"),
        ];
        for (place, pair) in line.windows(2).enumerate() {
            assert!(pair[0] < pair[1], "{place}: {:02x?} {:02x?}", pair[0], pair[1]);
        }
    }

    #[test]
    fn the_bytes_are_those_of_the_document() {
        assert_eq!(integer(1234), [POSITIVE, 0x20, 0x04, 13, 35, 0]);
        assert_eq!(integer(-7), [NEGATIVE, !0x20, !0x01, !71, 0xFF]);
        assert_eq!(double(0.25), [POSITIVE, 0x20, 0x00, 26, 0]);
    }
}
