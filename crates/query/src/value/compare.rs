//! The total order over BSON values.
//!
//! Follows the documented comparison order: brackets of types first, then the value. Field names
//! take part when documents are compared. Collation is simple binary comparison.

use std::cmp::Ordering;

use bson::spec::BinarySubtype;

use super::MAX_NESTING;
use super::number::Number;
use super::types::TypeBracket;
use super::view::{ArrayRef, DocumentRef, ValueRef};

/// Beyond this depth values count as equal. Stored documents are refused long before it, so it
/// only keeps hostile bytes from exhausting the stack.
const MAX_COMPARED_NESTING: usize = 2 * MAX_NESTING;

/// Compares two values in the order that sorts, indexes and expressions use.
pub fn compare<'a>(left: impl Into<ValueRef<'a>>, right: impl Into<ValueRef<'a>>) -> Ordering {
    compare_at(left.into(), right.into(), 0)
}

/// Compares two documents field by field: type bracket, then name, then value.
pub fn compare_documents<'a>(
    left: impl Into<DocumentRef<'a>>,
    right: impl Into<DocumentRef<'a>>,
) -> Ordering {
    documents_at(left.into(), right.into(), 0)
}

/// Whether two values are the same to a query: equal in the total order.
pub fn equal<'a>(left: impl Into<ValueRef<'a>>, right: impl Into<ValueRef<'a>>) -> bool {
    compare(left, right).is_eq()
}

fn compare_at(left: ValueRef<'_>, right: ValueRef<'_>, depth: usize) -> Ordering {
    if depth > MAX_COMPARED_NESTING {
        return Ordering::Equal;
    }
    TypeBracket::of(left)
        .cmp(&TypeBracket::of(right))
        .then_with(|| compare_in_bracket(left, right, depth))
}

fn compare_in_bracket(left: ValueRef<'_>, right: ValueRef<'_>, depth: usize) -> Ordering {
    use ValueRef as V;
    if let (Some(left), Some(right)) = (Number::from_value(left), Number::from_value(right)) {
        return left.compare(right);
    }
    match (left, right) {
        (V::String(a) | V::Symbol(a), V::String(b) | V::Symbol(b)) => a.cmp(b),
        (V::Document(a), V::Document(b)) => documents_at(a, b, depth + 1),
        (V::Array(a), V::Array(b)) => arrays_at(a, b, depth + 1),
        (V::Binary { subtype: a_type, bytes: a }, V::Binary { subtype: b_type, bytes: b }) => {
            binary_length(a_type, a)
                .cmp(&binary_length(b_type, b))
                .then_with(|| u8::from(a_type).cmp(&u8::from(b_type)))
                .then_with(|| a.cmp(b))
        }
        (V::ObjectId(a), V::ObjectId(b)) => a.bytes().cmp(&b.bytes()),
        (V::Boolean(a), V::Boolean(b)) => a.cmp(&b),
        (V::DateTime(a), V::DateTime(b)) => a.cmp(&b),
        (V::Timestamp(a), V::Timestamp(b)) => (a.time, a.increment).cmp(&(b.time, b.increment)),
        (
            V::RegularExpression { pattern: a, options: a_options },
            V::RegularExpression { pattern: b, options: b_options },
        ) => a.cmp(b).then_with(|| a_options.cmp(b_options)),
        (V::DbPointer(a), V::DbPointer(b)) => {
            let (a, b) = (a.encoded(), b.encoded());
            a.len().cmp(&b.len()).then_with(|| a.cmp(&b))
        }
        (V::JavaScriptCode(a), V::JavaScriptCode(b)) => a.cmp(b),
        (
            V::JavaScriptCodeWithScope { code: a, scope: a_scope },
            V::JavaScriptCodeWithScope { code: b, scope: b_scope },
        ) => a.cmp(b).then_with(|| documents_at(a_scope, b_scope, depth + 1)),
        _ => Ordering::Equal,
    }
}

/// The old binary subtype stores its length a second time, and that counts.
fn binary_length(subtype: BinarySubtype, bytes: &[u8]) -> usize {
    bytes.len() + if subtype == BinarySubtype::BinaryOld { 4 } else { 0 }
}

fn documents_at(left: DocumentRef<'_>, right: DocumentRef<'_>, depth: usize) -> Ordering {
    let (mut left, mut right) = (left.iter(), right.iter());
    loop {
        let ((left_name, left_value), (right_name, right_value)) = match (left.next(), right.next())
        {
            (None, None) => return Ordering::Equal,
            (None, Some(_)) => return Ordering::Less,
            (Some(_), None) => return Ordering::Greater,
            (Some(left), Some(right)) => (left, right),
        };
        let order = TypeBracket::of(left_value)
            .cmp(&TypeBracket::of(right_value))
            .then_with(|| left_name.cmp(right_name))
            .then_with(|| compare_at(left_value, right_value, depth));
        if order.is_ne() {
            return order;
        }
    }
}

fn arrays_at(left: ArrayRef<'_>, right: ArrayRef<'_>, depth: usize) -> Ordering {
    let (mut left, mut right) = (left.iter(), right.iter());
    loop {
        let order = match (left.next(), right.next()) {
            (None, None) => return Ordering::Equal,
            (None, Some(_)) => return Ordering::Less,
            (Some(_), None) => return Ordering::Greater,
            (Some(left), Some(right)) => compare_at(left, right, depth),
        };
        if order.is_ne() {
            return order;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{Bson, Decimal128, RawDocumentBuf, Timestamp, bson, doc, oid::ObjectId};

    fn decimal(text: &str) -> Bson {
        Bson::Decimal128(text.parse::<Decimal128>().unwrap())
    }

    fn order(left: impl Into<Bson>, right: impl Into<Bson>) -> Ordering {
        compare(&left.into(), &right.into())
    }

    /// One ascending line through every bracket.
    pub(crate) fn ascending() -> Vec<Bson> {
        let binary =
            |subtype, bytes: &[u8]| Bson::Binary(bson::Binary { subtype, bytes: bytes.to_vec() });
        let regex = |pattern: &str, options: &str| {
            Bson::RegularExpression(bson::Regex {
                pattern: pattern.try_into().unwrap(),
                options: options.try_into().unwrap(),
            })
        };
        vec![
            Bson::MinKey,
            Bson::Undefined,
            Bson::Null,
            Bson::Double(f64::NAN),
            Bson::Double(f64::NEG_INFINITY),
            decimal("-1E+400"),
            Bson::Int64(i64::MIN),
            Bson::Int32(-1),
            decimal("-0.5"),
            Bson::Int32(0),
            decimal("0.1"),
            Bson::Double(0.1),
            Bson::Int32(1),
            Bson::Double(9007199254740992.0),
            Bson::Int64(9007199254740993),
            Bson::Int64(i64::MAX),
            Bson::Double(9223372036854775808.0),
            Bson::Double(f64::INFINITY),
            Bson::from(""),
            Bson::from("A"),
            Bson::from("a"),
            Bson::from("ab"),
            Bson::from("é"),
            bson!({}),
            bson!({ "b": 0 }),
            bson!({ "a": "" }),
            bson!([]),
            bson!([1]),
            bson!([1, 1]),
            bson!([2]),
            binary(BinarySubtype::Generic, &[9]),
            binary(BinarySubtype::Generic, &[0, 0]),
            binary(BinarySubtype::Uuid, &[0, 0]),
            Bson::ObjectId(ObjectId::from_bytes([0; 12])),
            Bson::ObjectId(ObjectId::from_bytes([1; 12])),
            Bson::Boolean(false),
            Bson::Boolean(true),
            Bson::DateTime(bson::DateTime::from_millis(-1)),
            Bson::DateTime(bson::DateTime::from_millis(0)),
            Bson::Timestamp(Timestamp { time: 1, increment: 9 }),
            Bson::Timestamp(Timestamp { time: 2, increment: 0 }),
            regex("a", ""),
            regex("a", "i"),
            Bson::JavaScriptCode("f".into()),
            Bson::JavaScriptCodeWithScope(bson::JavaScriptCodeWithScope {
                code: "f".into(),
                scope: doc! {},
            }),
            Bson::MaxKey,
        ]
    }

    #[test]
    fn the_documented_order_holds_for_every_pair() {
        let values = ascending();
        for (i, left) in values.iter().enumerate() {
            for (j, right) in values.iter().enumerate() {
                assert_eq!(compare(left, right), i.cmp(&j), "{left:?} against {right:?}");
            }
        }
    }

    #[test]
    fn raw_and_parsed_values_compare_alike() {
        for left in ascending() {
            for right in ascending() {
                let raw = RawDocumentBuf::try_from(&doc! { "v": left.clone() }).unwrap();
                let raw = DocumentRef::from(&raw).get("v").unwrap();
                assert_eq!(compare(raw, &right), compare(&left, &right));
            }
        }
    }

    #[test]
    fn numbers_are_equal_across_types() {
        let ones = [Bson::Int32(1), Bson::Int64(1), Bson::Double(1.0), decimal("1.00")];
        for left in &ones {
            for right in &ones {
                assert!(equal(left, right));
            }
        }
        assert!(order(Bson::Double(f64::NAN), decimal("NaN")).is_eq());
        assert!(order(Bson::Double(-0.0), Bson::Int32(0)).is_eq());
        assert!(order(Bson::Symbol("a".into()), "a").is_eq());
    }

    #[test]
    fn field_order_matters_to_documents() {
        assert!(order(bson!({ "a": 1, "b": 2 }), bson!({ "b": 2, "a": 1 })).is_lt());
        assert!(order(bson!({ "a": 1 }), bson!({ "a": 1, "b": 1 })).is_lt());
        // The type of a field weighs more than its name.
        assert!(order(bson!({ "z": 1 }), bson!({ "a": "x" })).is_lt());
    }

    #[test]
    fn hostile_depth_does_not_exhaust_the_stack() {
        let mut bytes = doc! {}.to_vec().unwrap();
        for _ in 0..20_000 {
            let mut outer = ((bytes.len() + 8) as i32).to_le_bytes().to_vec();
            outer.extend([3, b'a', 0]);
            outer.extend(&bytes);
            outer.push(0);
            bytes = outer;
            if bytes.len() > 40_000 {
                break;
            }
        }
        let raw = RawDocumentBuf::from_bytes(bytes).unwrap();
        assert!(compare_documents(&raw, &raw).is_eq());
    }
}
