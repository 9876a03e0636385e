//! How large and how deep a document is, and whether two values are the same bytes.
//!
//! Updates must not leave a document beyond the limits of the format, and must know whether they
//! changed anything. Neither question should cost an encoding.

use bson::{Bson, Document};

use super::{MAX_DOCUMENT_SIZE, MAX_NESTING};
use crate::error::{QueryError, Result};
use crate::meter::Meter;

/// What one operation may add to a document before its size is checked. Twice the largest document
/// leaves room for values that a `$slice` takes away again.
const MAX_GROWTH: usize = 2 * MAX_DOCUMENT_SIZE;

/// The bytes an operation has added so far. A value set in every element of an array is multiplied
/// by its length, so the sum must be watched while it grows.
#[derive(Debug)]
pub(crate) struct Growth {
    bytes: usize,
    /// The steps of the operation are counted here.
    meter: Meter,
}

impl Growth {
    /// Nothing added yet, by an operation that counts its steps here.
    pub(crate) fn of(meter: &Meter) -> Self {
        Self { bytes: 0, meter: meter.clone() }
    }

    /// The meter of the operation.
    pub(crate) fn meter(&self) -> &Meter {
        &self.meter
    }

    /// Counts one step, and asks from time to time whether to go on.
    pub(crate) fn step(&self) -> Result<()> {
        self.meter.step()
    }

    pub(crate) fn charge(&mut self, bytes: usize) -> Result<()> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > MAX_GROWTH {
            return Err(too_large());
        }
        Ok(())
    }
}

fn too_large() -> QueryError {
    fail!(17419, "Resulting document after update is larger than {MAX_DOCUMENT_SIZE}")
}

/// The size and depth of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Measure {
    /// The bytes it takes when encoded.
    pub bytes: usize,
    /// The levels of documents and arrays, one for the document itself.
    pub depth: usize,
}

impl Measure {
    /// Refuses a document that is too large or too deep to be stored.
    pub fn check(self) -> Result<()> {
        if self.bytes > MAX_DOCUMENT_SIZE {
            return Err(too_large());
        }
        refuse_if!(self.depth > MAX_NESTING => OVERFLOW,
            "Document exceeds maximum nested object depth of {MAX_NESTING}");
        Ok(())
    }
}

/// Measures a document without encoding it.
pub fn measure(document: &Document) -> Measure {
    let mut depth = 0;
    let bytes = document_size(document, 1, &mut depth);
    Measure { bytes, depth }
}

/// The bytes that a value takes within a document, without its name.
pub(crate) fn value_size(value: &Bson) -> usize {
    size_at(value, 0, &mut 0)
}

fn document_size(document: &Document, depth: usize, deepest: &mut usize) -> usize {
    *deepest = depth.max(*deepest);
    let fields: usize =
        document.iter().map(|(name, value)| 2 + name.len() + size_at(value, depth, deepest)).sum();
    5 + fields
}

fn size_at(value: &Bson, depth: usize, deepest: &mut usize) -> usize {
    match value {
        Bson::Double(_) | Bson::Int64(_) | Bson::DateTime(_) | Bson::Timestamp(_) => 8,
        Bson::Int32(_) => 4,
        Bson::Boolean(_) => 1,
        Bson::Null | Bson::Undefined | Bson::MinKey | Bson::MaxKey => 0,
        Bson::ObjectId(_) => 12,
        Bson::Decimal128(_) => 16,
        Bson::String(text) | Bson::Symbol(text) | Bson::JavaScriptCode(text) => 5 + text.len(),
        Bson::Binary(binary) => {
            let repeated = binary.subtype == bson::spec::BinarySubtype::BinaryOld;
            5 + binary.bytes.len() + if repeated { 4 } else { 0 }
        }
        Bson::RegularExpression(regex) => {
            2 + regex.pattern.as_str().len() + regex.options.as_str().len()
        }
        Bson::JavaScriptCodeWithScope(code) => {
            9 + code.code.len() + document_size(&code.scope, depth + 1, deepest)
        }
        Bson::Document(inner) => document_size(inner, depth + 1, deepest),
        Bson::Array(items) => {
            *deepest = (depth + 1).max(*deepest);
            let elements: usize = items
                .iter()
                .enumerate()
                .map(|(index, item)| 2 + decimal_digits(index) + size_at(item, depth + 1, deepest))
                .sum();
            5 + elements
        }
        // The library hides the parts; only the encoding tells.
        Bson::DbPointer(_) => {
            let mut holder = Document::new();
            holder.insert("", value.clone());
            holder.to_vec().map_or(0, |bytes| bytes.len().saturating_sub(7))
        }
    }
}

fn decimal_digits(index: usize) -> usize {
    index.checked_ilog10().map_or(1, |log| log as usize + 1)
}

/// Whether two values would be encoded as the same bytes: same types, same field order, and a NaN
/// is itself.
pub fn identical(left: &Bson, right: &Bson) -> bool {
    match (left, right) {
        (Bson::Double(left), Bson::Double(right)) => left.to_bits() == right.to_bits(),
        (Bson::Document(left), Bson::Document(right)) => identical_documents(left, right),
        (Bson::Array(left), Bson::Array(right)) => {
            left.len() == right.len()
                && left.iter().zip(right).all(|(left, right)| identical(left, right))
        }
        (Bson::JavaScriptCodeWithScope(left), Bson::JavaScriptCodeWithScope(right)) => {
            left.code == right.code && identical_documents(&left.scope, &right.scope)
        }
        (left, right) => left == right,
    }
}

/// Whether two documents would be encoded as the same bytes.
pub(crate) fn identical_documents(left: &Document, right: &Document) -> bool {
    left.len() == right.len()
        && left.iter().zip(right).all(|((left_name, left), (right_name, right))| {
            left_name == right_name && identical(left, right)
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorCode;
    use bson::{bson, doc};

    #[test]
    fn the_measured_size_is_the_encoded_size() {
        let samples = [
            doc! {},
            doc! { "a": 1, "bc": 2_i64, "d": 1.5, "e": "héé", "f": true, "g": Bson::Null },
            doc! { "a": [1, [2, { "b": "x" }], []], "r": Bson::MinKey },
            doc! {
                "array": (0..120).collect::<Vec<i32>>(),
                "binary": bson::Binary { subtype: bson::spec::BinarySubtype::Generic, bytes: vec![1; 9] },
                "old": bson::Binary { subtype: bson::spec::BinarySubtype::BinaryOld, bytes: vec![1; 9] },
                "regex": bson::Regex { pattern: "ab".try_into().unwrap(), options: "i".try_into().unwrap() },
                "code": Bson::JavaScriptCode("f".into()),
                "scope": bson::JavaScriptCodeWithScope { code: "f".into(), scope: doc! { "x": 1 } },
                "id": bson::oid::ObjectId::from_bytes([7; 12]),
                "decimal": "1.5".parse::<bson::Decimal128>().unwrap(),
                "date": bson::DateTime::from_millis(0),
                "timestamp": bson::Timestamp { time: 1, increment: 1 },
            },
        ];
        for sample in samples {
            assert_eq!(measure(&sample).bytes, sample.to_vec().unwrap().len(), "{sample}");
        }
    }

    #[test]
    fn depth_counts_documents_and_arrays() {
        assert_eq!(measure(&doc! { "a": 1 }).depth, 1);
        assert_eq!(measure(&doc! { "a": [{}] }).depth, 3);
        let deep = (0..200).fold(doc! {}, |inner, _| doc! { "a": inner });
        assert_eq!(measure(&deep).check().unwrap_err().code(), ErrorCode::OVERFLOW);
    }

    #[test]
    fn identity_is_stricter_than_equality() {
        assert!(!identical(&bson!(1), &bson!(1.0)));
        assert!(identical(&bson!(f64::NAN), &bson!(f64::NAN)));
        assert!(!identical(&bson!(0.0), &bson!(-0.0)));
        assert!(!identical(&bson!({ "a": 1, "b": 2 }), &bson!({ "b": 2, "a": 1 })));
    }
}
