//! `$bitsAllSet`, `$bitsAnySet`, `$bitsAllClear`, `$bitsAnyClear`.
//!
//! A mask is a list of bit positions. Numbers are read as 64-bit two's complement whose sign bit
//! goes on for ever; binary values are little-endian bit strings followed by zeros.

use bson::Bson;

use crate::error::QueryError;
use crate::value::{Number, ValueRef, type_name_of};

/// The highest position that a list may name.
const MAX_POSITION: i64 = i32::MAX as i64;

/// A bit test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BitTest {
    positions: Vec<u32>,
    want_set: bool,
    all: bool,
}

impl BitTest {
    /// Parses the argument of one of the four operators.
    pub(crate) fn parse(operator: &str, argument: &Bson) -> Result<Self, QueryError> {
        let (want_set, all) = match operator {
            "$bitsAllSet" => (true, true),
            "$bitsAnySet" => (true, false),
            "$bitsAllClear" => (false, true),
            _ => (false, false),
        };
        let positions = match argument {
            Bson::Array(items) => {
                items.iter().map(|item| position(operator, item)).collect::<Result<_, _>>()?
            }
            Bson::Binary(binary) => (0..binary.bytes.len() * 8)
                .filter(|bit| binary.bytes[bit / 8] >> (bit % 8) & 1 == 1)
                .map(|bit| bit as u32)
                .collect(),
            number => {
                let mask = mask(operator, number)?;
                (0..64).filter(|bit| mask >> bit & 1 == 1).collect()
            }
        };
        Ok(Self { positions, want_set, all })
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
        let mut wanted = self.positions.iter().map(|&bit| is_set(bit) == self.want_set);
        if self.all { wanted.all(|good| good) } else { wanted.any(|good| good) }
    }
}

fn position(operator: &str, item: &Bson) -> Result<u32, QueryError> {
    let number = Number::from_value(item).and_then(Number::to_i64_exact).ok_or_else(|| {
        QueryError::failed_to_parse(format!(
            "bit positions in {operator} must be an integer but got: {item}"
        ))
    })?;
    if !(0..=MAX_POSITION).contains(&number) {
        return Err(QueryError::failed_to_parse(format!(
            "bit positions in {operator} must be >= 0 and fit 32 bits but got: {number}"
        )));
    }
    Ok(number as u32)
}

fn mask(operator: &str, argument: &Bson) -> Result<i64, QueryError> {
    let Some(number) = Number::from_value(argument) else {
        return Err(QueryError::bad_value(format!(
            "{operator} takes an Array, a number, or a BinData but received: {}",
            type_name_of(argument)
        )));
    };
    let mask = number.to_i64_exact().ok_or_else(|| {
        QueryError::failed_to_parse(format!("Expected an integer: {operator}: {argument}"))
    })?;
    if mask < 0 {
        return Err(QueryError::failed_to_parse(format!(
            "Expected a non-negative number in: {operator}: {argument}"
        )));
    }
    Ok(mask)
}
