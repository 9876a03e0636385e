//! Numbers to text and back, as conversions write and read them.

use bson::Bson;

use crate::value::Decimal;

/// Writes a number; empty for what is none.
pub(super) fn number(value: &Bson) -> String {
    match value {
        Bson::Int32(number) => number.to_string(),
        Bson::Int64(number) => number.to_string(),
        Bson::Double(number) => double(*number),
        Bson::Decimal128(number) => number.to_string(),
        _ => String::new(),
    }
}

/// Writes a double with the fewest digits that read back the same, in powers of ten only when the
/// plain form would be long.
pub(super) fn double(number: f64) -> String {
    if number.is_nan() {
        return "NaN".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let magnitude = number.abs();
    if magnitude != 0.0 && !(1e-5..1e17).contains(&magnitude) {
        let text = format!("{number:e}");
        return match text.split_once('e') {
            Some((digits, power)) if !power.starts_with('-') => format!("{digits}e+{power}"),
            _ => text,
        };
    }
    number.to_string()
}

/// Reads a whole number in base ten.
pub(super) fn parse_integer<T: std::str::FromStr>(text: &str) -> Result<T, &'static str> {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    if digits.is_empty() {
        return Err("No digits");
    }
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("Did not consume whole string.");
    }
    text.parse().map_err(|_| "Overflow")
}

/// Reads a double. White space, hexadecimal and empty text are refused.
pub(super) fn parse_double(text: &str) -> Result<f64, &'static str> {
    if text.is_empty() {
        return Err("Empty string");
    }
    if text.starts_with(char::is_whitespace) {
        return Err("Leading whitespace");
    }
    if text.to_ascii_lowercase().contains("0x") {
        return Err("Hexadecimal input is not supported");
    }
    let number: f64 = text.parse().map_err(|_| "Did not consume whole string.")?;
    if number.is_infinite() && text.bytes().any(|byte| byte.is_ascii_digit()) {
        return Err("Out of range");
    }
    Ok(number)
}

/// Reads a decimal.
pub(super) fn parse_decimal(text: &str) -> Result<Decimal, &'static str> {
    text.parse::<bson::Decimal128>()
        .map(Decimal::decode)
        .map_err(|_| "Failed to parse string to decimal")
}
