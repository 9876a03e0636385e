//! Walks the bytes of a document and parses only the fields asked for.
//!
//! A query reads few of the fields it passes. This scanner steps over values by their length and
//! reads only the one that is wanted. It trusts nothing: a length that does not fit ends the
//! document. Layout per the BSON specification, version 1.1.

use bson::spec::BinarySubtype;
use bson::{DateTime, Decimal128, RawBsonRef, RawDocument, Timestamp, oid::ObjectId};
use quorate_protocol::bson_length::{length_prefix, value_length};

use super::view::{ArrayRef, DbPointerRef, DocumentRef, ValueRef};

/// The unread elements of a document.
#[derive(Debug, Clone, Copy)]
pub struct RawScan<'a> {
    document: &'a RawDocument,
    position: usize,
}

/// One element: where it is, and nothing read yet.
#[derive(Debug, Clone, Copy)]
pub struct RawField<'a> {
    document: &'a RawDocument,
    kind: u8,
    key: &'a [u8],
    value: &'a [u8],
}

impl<'a> RawScan<'a> {
    /// The elements of a document, from the first.
    pub fn new(document: &'a RawDocument) -> Self {
        Self { document, position: 4 }
    }

    /// The value of the first field of a name.
    pub fn find(document: &'a RawDocument, key: &str) -> Option<ValueRef<'a>> {
        Self::new(document).find(|field| field.key == key.as_bytes())?.value()
    }

    /// The same as the library finds it, which reads every name on its way and is asked only for what is
    /// rare or malformed.
    ///
    /// # Errors
    ///
    /// If the document is malformed before the field's end.
    pub fn find_raw(
        document: &'a RawDocument,
        key: &str,
    ) -> Result<Option<RawBsonRef<'a>>, bson::error::Error> {
        let mut scan = Self::new(document);
        match scan.find(|field| field.key == key.as_bytes()) {
            Some(field) => match field.value().and_then(ValueRef::as_raw) {
                Some(value) => Ok(Some(value)),
                None => document.get(key),
            },
            None if scan.is_at_end() => Ok(None),
            None => document.get(key),
        }
    }

    /// Where the next element begins.
    pub(crate) fn position(&self) -> usize {
        self.position
    }

    /// Whether nothing but the end of the document is left.
    pub(crate) fn is_at_end(&self) -> bool {
        self.document.as_bytes().get(self.position..) == Some(&[0])
    }
}

impl<'a> Iterator for RawScan<'a> {
    type Item = RawField<'a>;

    fn next(&mut self) -> Option<RawField<'a>> {
        let rest = self.document.as_bytes().get(self.position..)?;
        let (&kind, rest) = rest.split_first()?;
        if kind == 0 {
            return None;
        }
        let key_length = rest.iter().position(|&byte| byte == 0)?;
        let (key, rest) = (&rest[..key_length], &rest[key_length + 1..]);
        let length = value_length(kind, rest)?;
        let value = rest.get(..length)?;
        self.position += 1 + key_length + 1 + length;
        Some(RawField { document: self.document, kind, key, value })
    }
}

fn fixed<const N: usize>(bytes: &[u8]) -> Option<[u8; N]> {
    bytes.first_chunk::<N>().copied()
}

impl<'a> RawField<'a> {
    /// The bytes of the name.
    pub fn key(self) -> &'a [u8] {
        self.key
    }

    /// The name, if it is text.
    pub fn name(self) -> Option<&'a str> {
        std::str::from_utf8(self.key).ok()
    }

    /// The number of the type.
    pub(crate) fn kind(self) -> u8 {
        self.kind
    }

    /// The bytes of the value.
    pub(crate) fn bytes(self) -> &'a [u8] {
        self.value
    }

    /// The embedded document, or the array as the document that it is written as.
    pub(crate) fn document(self) -> Option<&'a RawDocument> {
        matches!(self.kind, 0x03 | 0x04).then(|| document(self.value))?
    }

    /// How many bytes the element takes.
    pub(crate) fn length(self) -> usize {
        1 + self.key.len() + 1 + self.value.len()
    }

    /// Appends the element as it is.
    pub(crate) fn append_to(self, out: &mut Vec<u8>) {
        out.push(self.kind);
        out.extend_from_slice(self.key);
        out.push(0);
        out.extend_from_slice(self.value);
    }

    /// Reads the value; `None` if it is malformed.
    pub fn value(self) -> Option<ValueRef<'a>> {
        let value = self.value;
        Some(match self.kind {
            0x01 => ValueRef::Double(f64::from_le_bytes(fixed(value)?)),
            0x02 => ValueRef::String(text(value)?),
            0x03 => ValueRef::Document(DocumentRef::Raw(document(value)?)),
            0x04 => ValueRef::Array(ArrayRef::Raw(document(value)?)),
            0x05 => binary(value)?,
            0x06 => ValueRef::Undefined,
            0x07 => ValueRef::ObjectId(ObjectId::from_bytes(fixed(value)?)),
            0x08 => match value {
                [0] => ValueRef::Boolean(false),
                [1] => ValueRef::Boolean(true),
                _ => return None,
            },
            0x09 => ValueRef::DateTime(DateTime::from_millis(i64::from_le_bytes(fixed(value)?))),
            0x0a => ValueRef::Null,
            0x0b => {
                let (pattern, options) =
                    value.strip_suffix(&[0])?.split_at(value.iter().position(|&byte| byte == 0)?);
                ValueRef::RegularExpression {
                    pattern: std::str::from_utf8(pattern).ok()?,
                    options: std::str::from_utf8(options.get(1..)?).ok()?,
                }
            }
            // The library keeps this type to itself, so the library reads it.
            0x0c => match self.document.get(self.name()?).ok()?? {
                bson::RawBsonRef::DbPointer(pointer) => {
                    ValueRef::DbPointer(DbPointerRef::Raw(pointer))
                }
                _ => return None,
            },
            0x0d => ValueRef::JavaScriptCode(text(value)?),
            0x0e => ValueRef::Symbol(text(value)?),
            0x0f => {
                let code = value.get(4..)?;
                let code_end = 4 + length_prefix(code)?;
                ValueRef::JavaScriptCodeWithScope {
                    code: text(code.get(..code_end)?)?,
                    scope: DocumentRef::Raw(document(code.get(code_end..)?)?),
                }
            }
            0x10 => ValueRef::Int32(i32::from_le_bytes(fixed(value)?)),
            0x11 => ValueRef::Timestamp(Timestamp {
                increment: u32::from_le_bytes(fixed(value)?),
                time: u32::from_le_bytes(fixed(value.get(4..)?)?),
            }),
            0x12 => ValueRef::Int64(i64::from_le_bytes(fixed(value)?)),
            0x13 => ValueRef::Decimal128(Decimal128::from_bytes(fixed(value)?)),
            0x7f => ValueRef::MaxKey,
            0xff => ValueRef::MinKey,
            _ => return None,
        })
    }
}

/// A string: its length, its bytes, and a zero that the length counts.
fn text(value: &[u8]) -> Option<&str> {
    std::str::from_utf8(value.get(4..)?.strip_suffix(&[0])?).ok()
}

fn document(value: &[u8]) -> Option<&RawDocument> {
    RawDocument::from_bytes(value).ok()
}

fn binary(value: &[u8]) -> Option<ValueRef<'_>> {
    let (&subtype, bytes) = value.get(4..)?.split_first()?;
    let subtype = BinarySubtype::from(subtype);
    let bytes = match subtype {
        // The old subtype repeats its length within.
        BinarySubtype::BinaryOld => {
            let inner = bytes.get(4..)?;
            (length_prefix(bytes)? == inner.len()).then_some(inner)?
        }
        _ => bytes,
    };
    Some(ValueRef::Binary { subtype, bytes })
}

/// Whether the items of all arrays in a document are numbered. Those that are not are numbered when the document is written
/// again.
pub fn has_numbered_arrays(document: &RawDocument) -> bool {
    RawScan::new(document).all(has_numbered_items)
}

/// The same of a field.
pub(crate) fn has_numbered_items(field: RawField<'_>) -> bool {
    match (field.kind(), field.document()) {
        (0x03, Some(inner)) => has_numbered_arrays(inner),
        (0x04, Some(items)) => RawScan::new(items)
            .enumerate()
            .all(|(place, item)| is_position(item.key(), place) && has_numbered_items(item)),
        _ => true,
    }
}

/// Whether a name is that of an item of an array.
pub(crate) fn is_position(name: &[u8], place: usize) -> bool {
    let mut rest = place;
    for (left, &digit) in name.iter().enumerate().rev() {
        if usize::from(digit.wrapping_sub(b'0')) != rest % 10 {
            return false;
        }
        rest /= 10;
        if rest == 0 {
            return left == 0;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::compare_documents;
    use bson::{Bson, Document, RawDocumentBuf, doc};
    use proptest::prelude::*;

    fn every_type() -> Document {
        let mut document = doc! {
            "double": 1.5, "string": "héllo", "document": { "x": [1, { "y": 2 }] }, "array": [],
            "binary": bson::Binary { subtype: BinarySubtype::Uuid, bytes: vec![1; 16] },
            "old": bson::Binary { subtype: BinarySubtype::BinaryOld, bytes: vec![1, 2] },
            "undefined": Bson::Undefined, "id": ObjectId::from_bytes([3; 12]), "true": true,
            "date": DateTime::from_millis(-5), "null": Bson::Null,
            "regex": bson::Regex { pattern: "a.b".try_into().unwrap(), options: "im".try_into().unwrap() },
            "code": Bson::JavaScriptCode("f()".into()), "symbol": Bson::Symbol("s".into()),
            "scope": bson::JavaScriptCodeWithScope { code: "f".into(), scope: doc! { "v": 1 } },
            "int": 7, "timestamp": Timestamp { time: 9, increment: 2 }, "long": 8_i64,
            "decimal": "1.25".parse::<Decimal128>().unwrap(), "min": Bson::MinKey,
            "max": Bson::MaxKey, "empty regex": bson::Regex { pattern: "".try_into().unwrap(), options: "".try_into().unwrap() },
        };
        document.insert("", "empty name");
        document
    }

    #[test]
    fn every_type_reads_as_it_was_written() {
        let parsed = every_type();
        let raw = RawDocumentBuf::try_from(&parsed).unwrap();
        let read = DocumentRef::from(&raw).to_document();
        assert_eq!(read.to_vec().unwrap(), parsed.to_vec().unwrap());
        for (name, value) in &parsed {
            let found = RawScan::find(&raw, name).unwrap().to_bson();
            assert_eq!(found, *value, "{name}");
            let by_library = raw.get(name).unwrap();
            assert_eq!(RawScan::find_raw(&raw, name).unwrap(), by_library, "{name}");
        }
        assert!(RawScan::find(&raw, "absent").is_none());
        assert!(RawScan::find_raw(&raw, "absent").unwrap().is_none());
    }

    #[test]
    fn a_database_pointer_is_read_by_the_library() {
        let mut bytes = vec![0, 0, 0, 0, 0x0c, b'p', 0, 4, 0, 0, 0, b'd', b'.', b'c', 0];
        bytes.extend([5; 12]);
        bytes.push(0);
        bytes[0] = bytes.len() as u8;
        let raw = RawDocumentBuf::from_bytes(bytes).unwrap();
        assert!(matches!(RawScan::find(&raw, "p"), Some(ValueRef::DbPointer(_))));
        assert!(compare_documents(&raw, &raw).is_eq());
    }

    proptest! {
        #[test]
        fn damaged_bytes_end_the_document_instead_of_panicking(
            place in 4usize..400, byte in any::<u8>(),
        ) {
            let mut bytes = every_type().to_vec().unwrap();
            let place = place % (bytes.len() - 5) + 4;
            bytes[place] = byte;
            if let Ok(raw) = RawDocument::from_bytes(&bytes) {
                let view = DocumentRef::from(raw);
                let count = view.iter().count();
                prop_assert!(count <= bytes.len() / 2);
                let _ = view.to_document();
                let _ = view.get("scope");
                // What the library reads is read alike.
                for name in every_type().keys().map(String::as_str).chain(["absent"]) {
                    if let Ok(by_library) = raw.get(name) {
                        let found = RawScan::find_raw(raw, name).unwrap();
                        // As text, in which a NaN is equal to itself.
                        prop_assert_eq!(format!("{found:?}"), format!("{by_library:?}"));
                    }
                }
            }
        }
    }

    #[test]
    fn items_are_known_by_their_places() {
        for place in [0, 1, 9, 10, 11, 99, 100, 1234567] {
            assert!(is_position(place.to_string().as_bytes(), place), "{place}");
            assert!(!is_position(format!("0{place}").as_bytes(), place), "{place}");
            assert!(!is_position((place + 1).to_string().as_bytes(), place), "{place}");
            assert!(!is_position(b"", place) && !is_position(b"x", place));
        }
    }
}
