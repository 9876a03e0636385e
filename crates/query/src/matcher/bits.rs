//! `$bitsAllSet`, `$bitsAnySet`, `$bitsAllClear`, `$bitsAnyClear`.
//!
//! A mask is a list of bit positions. Numbers are read as 64-bit two's complement whose sign bit
//! goes on for ever; binary values are little-endian bit strings followed by zeros.

use bson::Bson;

use crate::error::Result;
use crate::value::{Number, ValueRef};

/// The highest position that a list may name.
const MAX_POSITION: i64 = i32::MAX as i64;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BitTest {
    mask: Mask,
    want_set: bool,
    all: bool,
}

/// Which bits are tested. A binary argument can name millions of them, so it stays as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Mask {
    Positions(Vec<u32>),
    Bytes(Vec<u8>),
}

impl BitTest {
    /// Parses the argument of one of the four operators.
    pub(crate) fn parse(field: &str, operator: &str, argument: &Bson) -> Result<Self> {
        let (want_set, all) = match operator {
            "$bitsAllSet" => (true, true),
            "$bitsAnySet" => (true, false),
            "$bitsAllClear" => (false, true),
            _ => (false, false),
        };
        let mask = match argument {
            Bson::Array(items) => Mask::Positions(
                items
                    .iter()
                    .enumerate()
                    .map(|(index, item)| position(index, item))
                    .collect::<Result<_, _>>()?,
            ),
            Bson::Binary(binary) => Mask::Bytes(binary.bytes.clone()),
            number => Mask::Bytes(mask(field, operator, number)?.to_le_bytes().to_vec()),
        };
        Ok(Self { mask, want_set, all })
    }

    /// Whether the bits of a value pass the test.
    pub(crate) fn matches(&self, value: ValueRef<'_>) -> bool {
        match value {
            ValueRef::Binary { bytes, .. } => self.passes(|bit| {
                bytes.get((bit / 8) as usize).is_some_and(|byte| byte >> (bit % 8) & 1 == 1)
            }),
            value => match Number::from_value(value).and_then(Number::to_i64_exact) {
                Some(number) => self.passes(|bit| number >> bit.min(63) & 1 == 1),
                None => false,
            },
        }
    }

    fn passes(&self, is_set: impl Fn(u32) -> bool) -> bool {
        let good = |bit: u32| is_set(bit) == self.want_set;
        match &self.mask {
            Mask::Positions(positions) => self.judge(positions.iter().map(|&bit| good(bit))),
            Mask::Bytes(bytes) => {
                let bits = bytes.iter().enumerate().flat_map(|(place, byte)| {
                    (0..8).filter(move |bit| byte >> bit & 1 == 1).map(move |bit| place * 8 + bit)
                });
                self.judge(bits.map(|bit| good(bit as u32)))
            }
        }
    }

    fn judge(&self, mut results: impl Iterator<Item = bool>) -> bool {
        if self.all { results.all(|good| good) } else { results.any(|good| good) }
    }
}

fn position(index: usize, item: &Bson) -> Result<u32> {
    let refused =
        |reason: &str| fail!(BAD_VALUE, "Failed to parse bit position. {reason} {index}: {item}");
    let number = Number::from_value(item).ok_or_else(|| refused("Expected a number in:"))?;
    let number = number.to_i64_exact().ok_or_else(|| refused("Expected an integer:"))?;
    if number < 0 {
        return Err(refused("Expected a non-negative number in:"));
    }
    u32::try_from(number)
        .ok()
        .filter(|number| i64::from(*number) <= MAX_POSITION)
        .ok_or_else(|| refused("Cannot be represented as a 32-bit signed integer:"))
}

fn mask(field: &str, operator: &str, argument: &Bson) -> Result<i64> {
    let Some(number) = Number::from_value(argument) else {
        refuse!(
            BAD_VALUE,
            "{field} takes an Array, a number, or a BinData but received: {operator}: {argument}"
        );
    };
    let mask = number
        .to_i64_exact()
        .ok_or_else(|| fail!(FAILED_TO_PARSE, "Expected an integer: {operator}: {argument}"))?;
    refuse_if!(mask < 0 => FAILED_TO_PARSE,
        "Expected a non-negative number in: {operator}: {argument}");
    Ok(mask)
}
