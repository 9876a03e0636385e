//! Keys whose byte order is the comparison order of BSON values.
//!
//! This file owns how values become key bytes; numbers have a file of their own. The layout is in
//! `docs/storage-format.md` under "Keys". Three properties make it useful:
//!
//! - *Order*: comparing two encodings byte by byte compares the values as the server does, first by
//!   class (null, numbers, strings and so on), then by value.
//! - *Self-delimiting*: no encoding is a proper prefix of another, so encodings can be joined into
//!   compound keys, and inverting every byte of one reverses its order.
//! - *Equality*: two values that compare equal have the same bytes. `1`, `1.0` and
//!   `Decimal128("1.00")` are one key, so a key cannot be turned back into the value it came from.

mod number;

use bson::spec::BinarySubtype;
use bson::{Bson, Document, RawBsonRef, RawDocument};

/// How deep values may nest inside a key, the limit for documents as well.
pub const MAX_KEY_DEPTH: usize = 200;

/// Bytes that end a string. They sort before any continuation.
const STRING_END: [u8; 2] = [0x00, 0x00];
/// A zero byte inside a string. Sorts after [`STRING_END`] and before every other byte.
const STRING_ZERO: [u8; 2] = [0x00, 0xFF];
/// Ends a document or an array. Sorts before every class.
const ELEMENTS_END: u8 = 0x00;

/// The class of a value, the first byte of its key. Values of different classes never compare equal.
///
/// The gaps leave room for classes to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Class {
    MinKey = 0x08,
    Undefined = 0x0C,
    Null = 0x10,
    Number = 0x18,
    String = 0x20,
    Document = 0x28,
    Array = 0x30,
    Binary = 0x38,
    ObjectId = 0x40,
    Boolean = 0x48,
    Date = 0x50,
    Timestamp = 0x58,
    Regex = 0x60,
    DbPointer = 0x68,
    Code = 0x70,
    CodeWithScope = 0x78,
    MaxKey = 0xF0,
}

/// Which way a field of an index runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldOrder {
    /// From small to great.
    Ascending,
    /// From great to small.
    Descending,
}

/// A value that has no key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The value nests too deeply.
    #[error("a value nested more than {MAX_KEY_DEPTH} levels deep cannot be a key; flatten it")]
    TooDeep,
    /// The bytes are no valid BSON.
    #[error("a value cannot be a key because its BSON is malformed; send it again from a driver")]
    Malformed,
}

/// Appends the key of a value.
pub fn append_value(key: &mut Vec<u8>, value: &Bson, order: FieldOrder) -> Result<(), KeyError> {
    in_order(key, order, |key| append_bson(key, value, 0))
}

/// Appends the key of a value that has not been parsed.
pub fn append_raw_value(
    key: &mut Vec<u8>,
    value: RawBsonRef<'_>,
    order: FieldOrder,
) -> Result<(), KeyError> {
    in_order(key, order, |key| append_raw(key, value, 0))
}

/// The ascending key of one value.
pub fn value_key(value: &Bson) -> Result<Vec<u8>, KeyError> {
    let mut key = Vec::with_capacity(16);
    append_value(&mut key, value, FieldOrder::Ascending)?;
    Ok(key)
}

/// The class of a value.
pub fn class_of(value: &Bson) -> Class {
    match value {
        Bson::MinKey => Class::MinKey,
        Bson::Undefined => Class::Undefined,
        Bson::Null => Class::Null,
        Bson::Int32(_) | Bson::Int64(_) | Bson::Double(_) | Bson::Decimal128(_) => Class::Number,
        Bson::String(_) | Bson::Symbol(_) => Class::String,
        Bson::Document(_) => Class::Document,
        Bson::Array(_) => Class::Array,
        Bson::Binary(_) => Class::Binary,
        Bson::ObjectId(_) => Class::ObjectId,
        Bson::Boolean(_) => Class::Boolean,
        Bson::DateTime(_) => Class::Date,
        Bson::Timestamp(_) => Class::Timestamp,
        Bson::RegularExpression(_) => Class::Regex,
        Bson::DbPointer(_) => Class::DbPointer,
        Bson::JavaScriptCode(_) => Class::Code,
        Bson::JavaScriptCodeWithScope(_) => Class::CodeWithScope,
        Bson::MaxKey => Class::MaxKey,
    }
}

/// Where a document stands in its collection: eight bytes, most significant first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordId(pub u64);

impl RecordId {
    /// How many bytes it takes in a key.
    pub const LENGTH: usize = 8;

    /// The bytes, which order as the numbers do.
    pub const fn to_bytes(self) -> [u8; Self::LENGTH] {
        self.0.to_be_bytes()
    }

    /// The record id that these bytes end with; none if there are too few.
    pub fn from_suffix(bytes: &[u8]) -> Option<Self> {
        bytes.last_chunk().map(|bytes| Self(u64::from_be_bytes(*bytes)))
    }
}

fn in_order(
    key: &mut Vec<u8>,
    order: FieldOrder,
    append: impl FnOnce(&mut Vec<u8>) -> Result<(), KeyError>,
) -> Result<(), KeyError> {
    let start = key.len();
    append(key)?;
    if order == FieldOrder::Descending {
        key[start..].iter_mut().for_each(|byte| *byte = !*byte);
    }
    Ok(())
}

fn append_bson(key: &mut Vec<u8>, value: &Bson, depth: usize) -> Result<(), KeyError> {
    key.push(class_of(value) as u8);
    append_payload(key, value, depth)
}

fn append_payload(key: &mut Vec<u8>, value: &Bson, depth: usize) -> Result<(), KeyError> {
    if depth > MAX_KEY_DEPTH {
        return Err(KeyError::TooDeep);
    }
    match value {
        Bson::MinKey | Bson::Undefined | Bson::Null | Bson::MaxKey => {}
        Bson::Int32(number) => number::append_integer(key, i64::from(*number)),
        Bson::Int64(number) => number::append_integer(key, *number),
        Bson::Double(number) => number::append_double(key, *number),
        Bson::Decimal128(number) => number::append_decimal(key, &number.bytes()),
        Bson::String(text) | Bson::Symbol(text) | Bson::JavaScriptCode(text) => {
            append_string(key, text);
        }
        Bson::Document(document) => append_document(key, document, depth)?,
        Bson::Array(items) => {
            for item in items {
                append_bson(key, item, depth + 1)?;
            }
            key.push(ELEMENTS_END);
        }
        Bson::Binary(binary) => append_binary(key, binary.subtype, &binary.bytes),
        Bson::ObjectId(id) => key.extend(id.bytes()),
        Bson::Boolean(truth) => key.push(u8::from(*truth)),
        Bson::DateTime(date) => append_signed(key, date.timestamp_millis()),
        Bson::Timestamp(stamp) => {
            key.extend(stamp.time.to_be_bytes());
            key.extend(stamp.increment.to_be_bytes());
        }
        Bson::RegularExpression(regex) => {
            append_string(key, regex.pattern.as_str());
            append_string(key, regex.options.as_str());
        }
        Bson::DbPointer(_) => return append_db_pointer(key, value),
        Bson::JavaScriptCodeWithScope(code) => {
            append_string(key, &code.code);
            append_document(key, &code.scope, depth)?;
        }
    }
    Ok(())
}

/// Documents compare element by element: by class, then by name, then by value.
fn append_document(key: &mut Vec<u8>, document: &Document, depth: usize) -> Result<(), KeyError> {
    for (name, value) in document {
        key.push(class_of(value) as u8);
        append_string(key, name);
        append_payload(key, value, depth + 1)?;
    }
    key.push(ELEMENTS_END);
    Ok(())
}

/// The fields of a pointer are private to the `bson` crate, so its bytes are taken from a document.
fn append_db_pointer(key: &mut Vec<u8>, value: &Bson) -> Result<(), KeyError> {
    let mut holder = Document::new();
    holder.insert("p", value.clone());
    let bytes = holder.to_vec().map_err(|_| KeyError::Malformed)?;
    // Length, type, name "p" with its zero; then a string and twelve bytes; then the final zero.
    let payload = bytes.get(7..bytes.len() - 1).ok_or(KeyError::Malformed)?;
    append_db_pointer_bytes(key, payload)
}

/// Longer pointers sort after shorter ones, whatever they point at.
fn append_db_pointer_bytes(key: &mut Vec<u8>, payload: &[u8]) -> Result<(), KeyError> {
    let length: [u8; 4] =
        payload.get(..4).and_then(|bytes| bytes.try_into().ok()).ok_or(KeyError::Malformed)?;
    key.extend(u32::from_le_bytes(length).to_be_bytes());
    key.extend(&payload[4..]);
    Ok(())
}

fn append_raw(key: &mut Vec<u8>, value: RawBsonRef<'_>, depth: usize) -> Result<(), KeyError> {
    key.push(class_of_raw(value) as u8);
    append_raw_payload(key, value, depth)
}

fn class_of_raw(value: RawBsonRef<'_>) -> Class {
    match value {
        RawBsonRef::MinKey => Class::MinKey,
        RawBsonRef::Undefined => Class::Undefined,
        RawBsonRef::Null => Class::Null,
        RawBsonRef::Int32(_)
        | RawBsonRef::Int64(_)
        | RawBsonRef::Double(_)
        | RawBsonRef::Decimal128(_) => Class::Number,
        RawBsonRef::String(_) | RawBsonRef::Symbol(_) => Class::String,
        RawBsonRef::Document(_) => Class::Document,
        RawBsonRef::Array(_) => Class::Array,
        RawBsonRef::Binary(_) => Class::Binary,
        RawBsonRef::ObjectId(_) => Class::ObjectId,
        RawBsonRef::Boolean(_) => Class::Boolean,
        RawBsonRef::DateTime(_) => Class::Date,
        RawBsonRef::Timestamp(_) => Class::Timestamp,
        RawBsonRef::RegularExpression(_) => Class::Regex,
        RawBsonRef::DbPointer(_) => Class::DbPointer,
        RawBsonRef::JavaScriptCode(_) => Class::Code,
        RawBsonRef::JavaScriptCodeWithScope(_) => Class::CodeWithScope,
        RawBsonRef::MaxKey => Class::MaxKey,
    }
}

fn append_raw_payload(
    key: &mut Vec<u8>,
    value: RawBsonRef<'_>,
    depth: usize,
) -> Result<(), KeyError> {
    if depth > MAX_KEY_DEPTH {
        return Err(KeyError::TooDeep);
    }
    match value {
        RawBsonRef::Document(document) => append_raw_document(key, document, depth)?,
        RawBsonRef::Array(items) => {
            for item in items {
                append_raw(key, item.map_err(|_| KeyError::Malformed)?, depth + 1)?;
            }
            key.push(ELEMENTS_END);
        }
        RawBsonRef::String(text) | RawBsonRef::Symbol(text) => append_string(key, text),
        RawBsonRef::Binary(binary) => append_binary(key, binary.subtype, binary.bytes),
        RawBsonRef::JavaScriptCodeWithScope(code) => {
            append_string(key, code.code);
            append_raw_document(key, code.scope, depth)?;
        }
        RawBsonRef::Int32(number) => number::append_integer(key, i64::from(number)),
        RawBsonRef::Int64(number) => number::append_integer(key, number),
        RawBsonRef::ObjectId(id) => key.extend(id.bytes()),
        // The rest is small, and rarely a key.
        small => {
            let parsed = Bson::try_from(small).map_err(|_| KeyError::Malformed)?;
            append_payload(key, &parsed, depth)?;
        }
    }
    Ok(())
}

fn append_raw_document(
    key: &mut Vec<u8>,
    document: &RawDocument,
    depth: usize,
) -> Result<(), KeyError> {
    for element in document {
        let (name, value) = element.map_err(|_| KeyError::Malformed)?;
        key.push(class_of_raw(value) as u8);
        append_string(key, name.as_str());
        append_raw_payload(key, value, depth + 1)?;
    }
    key.push(ELEMENTS_END);
    Ok(())
}

fn append_string(key: &mut Vec<u8>, text: &str) {
    let mut rest = text.as_bytes();
    while let Some(zero) = rest.iter().position(|&byte| byte == 0) {
        key.extend(&rest[..zero]);
        key.extend(STRING_ZERO);
        rest = &rest[zero + 1..];
    }
    key.extend(rest);
    key.extend(STRING_END);
}

/// Binary values compare by length, then subtype, then bytes.
fn append_binary(key: &mut Vec<u8>, subtype: BinarySubtype, bytes: &[u8]) {
    // BSON lengths fit in 31 bits.
    key.extend((bytes.len() as u32).to_be_bytes());
    key.push(subtype.into());
    key.extend(bytes);
}

fn append_signed(key: &mut Vec<u8>, number: i64) {
    // Flipping the sign bit puts negative numbers first.
    key.extend((number as u64 ^ 1 << 63).to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{bson, doc};

    fn key(value: impl Into<Bson>) -> Vec<u8> {
        value_key(&value.into()).unwrap()
    }

    #[test]
    fn strings_order_by_bytes_even_around_zero_bytes() {
        let texts = ["", "\0", "\0a", "a", "a\0", "a\0\0", "a\0b", "a\u{1}", "aa", "b"];
        assert!(texts.windows(2).all(|pair| key(pair[0]) < key(pair[1])));
    }

    #[test]
    fn elements_compare_by_class_then_name_then_value() {
        assert!(key(doc! {"b": 1}) < key(doc! {"a": "x"}), "class before name");
        assert!(key(doc! {"a": 2}) < key(doc! {"b": 1}), "name before value");
        assert!(key(doc! {"a": 1}) < key(doc! {"a": 1, "b": 0}), "shorter first");
        assert!(key(doc! {}) < key(doc! {"a": Bson::MinKey}));
    }

    #[test]
    fn inverted_fields_run_the_other_way_inside_compound_keys() {
        let compound = |first: &str, second: i32| {
            let mut key = Vec::new();
            append_value(&mut key, &bson!(first), FieldOrder::Descending).unwrap();
            append_value(&mut key, &bson!(second), FieldOrder::Ascending).unwrap();
            key
        };
        assert!(compound("b", 1) < compound("a", 1));
        assert!(compound("a\0", 1) < compound("a", 1));
        assert!(compound("a", 1) < compound("a", 2));
    }

    #[test]
    fn nesting_past_the_limit_is_refused_without_overflowing_the_stack() {
        let nested = |levels: usize| (0..levels).fold(bson!(1), |inner, _| bson!([inner]));
        assert!(value_key(&nested(MAX_KEY_DEPTH)).is_ok());
        assert_eq!(value_key(&nested(MAX_KEY_DEPTH + 1)), Err(KeyError::TooDeep));
    }

    #[test]
    fn record_ids_are_read_from_the_end_of_a_key() {
        let mut key = key("any");
        key.extend(RecordId(7).to_bytes());
        assert_eq!(RecordId::from_suffix(&key), Some(RecordId(7)));
        assert_eq!(RecordId::from_suffix(b"short"), None);
        assert!(RecordId(255).to_bytes() < RecordId(256).to_bytes());
    }
}
