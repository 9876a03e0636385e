//! A canonical key under which equal values fall together.
//!
//! `$group`, `$addToSet`, `distinct` and `uniqueItems` need hashing where `compare` says equal: an
//! int32 one, a double one and a decimal one are the same key. The bytes are for equality only;
//! they do not sort like the values do.

use super::MAX_NESTING;
use super::decimal::Decimal;
use super::number::Number;
use super::types::TypeBracket;
use super::view::{DocumentRef, ValueRef};

/// Deeper parts do not take part in the key; see `compare` for why that is harmless.
const MAX_KEYED_NESTING: usize = 2 * MAX_NESTING;

/// How many parts keys fall into; a power of two.
pub(crate) const PARTS: usize = 64;

/// What a key costs besides its bytes: its header, its allocation, and its place in a table or tree that is not
/// full.
const KEY_OVERHEAD: usize = 72;

/// A hashable stand-in for a value. Two keys are equal exactly when the values compare as equal.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupKey(Vec<u8>);

impl GroupKey {
    /// The key of a value.
    pub fn of<'a>(value: impl Into<ValueRef<'a>>) -> Self {
        let mut bytes = Vec::new();
        write_value(value.into(), &mut bytes, 0);
        Self(bytes)
    }

    /// Makes this the key of another value.
    pub fn refill<'a>(&mut self, value: impl Into<ValueRef<'a>>) {
        self.0.clear();
        write_value(value.into(), &mut self.0, 0);
    }

    /// One of 64 parts that keys fall into, so that a large table of them can be many small ones.
    pub(crate) fn part(&self) -> usize {
        const FACTOR: u64 = 0x517c_c1b7_2722_0a95;
        let mixed = self.0.iter().fold(0_u64, |mixed, byte| {
            (mixed.rotate_left(5) ^ u64::from(*byte)).wrapping_mul(FACTOR)
        });
        (mixed >> (u64::BITS - PARTS.trailing_zeros())) as usize
    }

    /// How many bytes the key takes, for callers that bound their memory.
    pub fn size(&self) -> usize {
        KEY_OVERHEAD + self.0.capacity()
    }
}

fn write_value(value: ValueRef<'_>, out: &mut Vec<u8>, depth: usize) {
    out.push(TypeBracket::of(value) as u8);
    if depth > MAX_KEYED_NESTING {
        return;
    }
    if let Some(number) = Number::from_value(value) {
        return write_number(number, out);
    }
    match value {
        ValueRef::String(text) | ValueRef::Symbol(text) | ValueRef::JavaScriptCode(text) => {
            write_bytes(text.as_bytes(), out);
        }
        ValueRef::Document(document) => write_document(document, out, depth),
        ValueRef::Array(array) => {
            for element in array.iter() {
                out.push(1);
                write_value(element, out, depth + 1);
            }
            out.push(0);
        }
        ValueRef::Binary { subtype, bytes } => {
            out.push(subtype.into());
            write_bytes(bytes, out);
        }
        ValueRef::ObjectId(id) => out.extend(id.bytes()),
        ValueRef::Boolean(flag) => out.push(flag.into()),
        ValueRef::DateTime(date) => out.extend(date.timestamp_millis().to_le_bytes()),
        ValueRef::Timestamp(timestamp) => {
            out.extend(timestamp.time.to_le_bytes());
            out.extend(timestamp.increment.to_le_bytes());
        }
        ValueRef::RegularExpression { pattern, options } => {
            write_bytes(pattern.as_bytes(), out);
            write_bytes(options.as_bytes(), out);
        }
        ValueRef::DbPointer(pointer) => write_bytes(&pointer.encoded(), out),
        ValueRef::JavaScriptCodeWithScope { code, scope } => {
            write_bytes(code.as_bytes(), out);
            write_document(scope, out, depth);
        }
        _ => {}
    }
}

fn write_document(document: DocumentRef<'_>, out: &mut Vec<u8>, depth: usize) {
    for (name, value) in document.iter() {
        out.push(1);
        write_bytes(name.as_bytes(), out);
        write_value(value, out, depth + 1);
    }
    out.push(0);
}

fn write_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    out.extend((bytes.len() as u64).to_le_bytes());
    out.extend(bytes);
}

/// Whole numbers within int64 are written as such; other numbers as a double when a double holds
/// them exactly; what is left are decimals, without their trailing zeros.
fn write_number(number: Number, out: &mut Vec<u8>) {
    const NAN: u8 = 0;
    const INTEGER: u8 = 1;
    const DOUBLE: u8 = 2;
    const DECIMAL: u8 = 3;
    if number.is_nan() {
        out.push(NAN);
    } else if let Some(integer) = number.to_i64_exact() {
        out.push(INTEGER);
        out.extend(integer.to_le_bytes());
    } else if let Number::Decimal(decimal) = number
        && decimal.compare_f64(decimal.to_f64()).is_ne()
    {
        out.push(DECIMAL);
        if let Decimal::Finite { negative, coefficient, exponent } = decimal.normalized() {
            out.push(negative.into());
            out.extend(coefficient.to_le_bytes());
            out.extend(exponent.to_le_bytes());
        }
    } else {
        out.push(DOUBLE);
        out.extend(number.to_f64().to_bits().to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::compare;
    use bson::{Bson, bson};
    use proptest::prelude::*;

    fn decimal(text: &str) -> Bson {
        Bson::Decimal128(text.parse().unwrap())
    }

    fn any_number() -> impl Strategy<Value = Bson> {
        prop_oneof![
            any::<i32>().prop_map(Bson::Int32),
            any::<i64>().prop_map(Bson::Int64),
            any::<f64>().prop_map(Bson::Double),
            (-8i32..8).prop_map(|value| Bson::Double(f64::from(value) / 4.0)),
            (-8i64..8, -3i32..3).prop_map(|(c, e)| decimal(&format!("{c}E{e}"))),
            (-8i64..8).prop_map(|value| decimal(&format!("{}", value as f64 / 4.0))),
            (-3i32..3).prop_map(Bson::Int32),
        ]
    }

    #[test]
    fn equal_numbers_share_a_key() {
        let one = GroupKey::of(&Bson::Int32(1));
        assert_eq!(one, GroupKey::of(&Bson::Double(1.0)));
        assert_eq!(one, GroupKey::of(&decimal("1.0")));
        assert_ne!(GroupKey::of(&decimal("0.1")), GroupKey::of(&Bson::Double(0.1)));
        assert_eq!(GroupKey::of(&decimal("0.50")), GroupKey::of(&Bson::Double(0.5)));
        assert_eq!(GroupKey::of(&Bson::Double(-0.0)), GroupKey::of(&Bson::Int64(0)));
        assert_eq!(GroupKey::of(&decimal("NaN")), GroupKey::of(&Bson::Double(f64::NAN)));
        assert_eq!(GroupKey::of(&decimal("Infinity")), GroupKey::of(&Bson::Double(f64::INFINITY)));
    }

    #[test]
    fn structure_is_part_of_the_key() {
        let distinct = [
            bson!([]),
            bson!([[]]),
            bson!([[], []]),
            bson!({}),
            bson!({ "a": 1 }),
            bson!({ "b": 1 }),
            bson!({ "a": { "b": 1 } }),
            bson!("a"),
            bson!(null),
            bson!(["ab"]),
            bson!(["a", "b"]),
        ];
        for (i, left) in distinct.iter().enumerate() {
            for (j, right) in distinct.iter().enumerate() {
                assert_eq!(GroupKey::of(left) == GroupKey::of(right), i == j);
            }
        }
    }

    proptest! {
        #[test]
        fn keys_are_equal_exactly_when_numbers_are(a in any_number(), b in any_number()) {
            prop_assert_eq!(GroupKey::of(&a) == GroupKey::of(&b), compare(&a, &b).is_eq());
            let mut refilled = GroupKey::of(&a);
            refilled.refill(&b);
            prop_assert_eq!(refilled, GroupKey::of(&b));
        }
    }
}
