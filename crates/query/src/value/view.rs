//! One borrowed view over parsed (`bson::Bson`) and raw (`bson::RawBsonRef`) values.
//!
//! Queries run over stored bytes without parsing them first, updates run over parsed documents.
//! Writing every rule once against `ValueRef` keeps the two from drifting apart. Raw documents are
//! expected to have been validated on receipt: a malformed element ends the
//! iteration of its document instead of raising an error.

use bson::spec::BinarySubtype;
use bson::{Bson, DbPointer, Decimal128, Document, RawBsonRef, RawDocument, Timestamp};

use super::raw_scan::RawScan;

/// A borrowed BSON value, parsed or raw.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)]
pub enum ValueRef<'a> {
    Double(f64),
    String(&'a str),
    Array(ArrayRef<'a>),
    Document(DocumentRef<'a>),
    Boolean(bool),
    Null,
    RegularExpression { pattern: &'a str, options: &'a str },
    JavaScriptCode(&'a str),
    JavaScriptCodeWithScope { code: &'a str, scope: DocumentRef<'a> },
    Int32(i32),
    Int64(i64),
    Timestamp(Timestamp),
    Binary { subtype: BinarySubtype, bytes: &'a [u8] },
    ObjectId(bson::oid::ObjectId),
    DateTime(bson::DateTime),
    Symbol(&'a str),
    Decimal128(Decimal128),
    Undefined,
    MaxKey,
    MinKey,
    DbPointer(DbPointerRef<'a>),
}

/// A borrowed document, parsed or raw.
#[derive(Debug, Clone, Copy)]
pub enum DocumentRef<'a> {
    /// A document held as a map.
    Parsed(&'a Document),
    /// A document held as bytes.
    Raw(&'a RawDocument),
}

/// A borrowed array, parsed or raw.
#[derive(Debug, Clone, Copy)]
pub enum ArrayRef<'a> {
    /// An array held as a vector.
    Parsed(&'a [Bson]),
    /// An array held as bytes, which are those of a document keyed by position.
    Raw(&'a RawDocument),
}

/// A borrowed database pointer, a deprecated type whose parts the BSON library hides.
#[derive(Debug, Clone, Copy)]
pub enum DbPointerRef<'a> {
    /// Parsed.
    Parsed(&'a DbPointer),
    /// Raw.
    Raw(bson::raw::RawDbPointerRef<'a>),
}

impl DbPointerRef<'_> {
    fn to_bson(self) -> Bson {
        match self {
            Self::Parsed(pointer) => Bson::DbPointer(pointer.clone()),
            Self::Raw(pointer) => {
                Bson::try_from(RawBsonRef::DbPointer(pointer)).unwrap_or(Bson::Null)
            }
        }
    }

    /// The bytes of the namespace and the identifier, as BSON writes them.
    pub fn encoded(self) -> Vec<u8> {
        let mut holder = Document::new();
        holder.insert("", self.to_bson());
        holder.to_vec().unwrap_or_default()
    }
}

impl<'a> ValueRef<'a> {
    /// The array, if this is one.
    pub fn as_array(self) -> Option<ArrayRef<'a>> {
        match self {
            Self::Array(array) => Some(array),
            _ => None,
        }
    }

    /// The embedded document, if this is one.
    pub fn as_document(self) -> Option<DocumentRef<'a>> {
        match self {
            Self::Document(document) => Some(document),
            _ => None,
        }
    }

    /// Whether this is null or the deprecated undefined.
    pub(crate) fn is_nullish(self) -> bool {
        matches!(self, Self::Null | Self::Undefined)
    }

    /// The value as the library's raw one, for the kinds that need nothing of the library's own.
    pub(crate) fn as_raw(self) -> Option<RawBsonRef<'a>> {
        Some(match self {
            Self::Double(value) => RawBsonRef::Double(value),
            Self::String(value) => RawBsonRef::String(value),
            Self::Document(DocumentRef::Raw(value)) => RawBsonRef::Document(value),
            Self::Boolean(value) => RawBsonRef::Boolean(value),
            Self::Null => RawBsonRef::Null,
            Self::Int32(value) => RawBsonRef::Int32(value),
            Self::Int64(value) => RawBsonRef::Int64(value),
            Self::Timestamp(value) => RawBsonRef::Timestamp(value),
            Self::ObjectId(value) => RawBsonRef::ObjectId(value),
            Self::DateTime(value) => RawBsonRef::DateTime(value),
            Self::Decimal128(value) => RawBsonRef::Decimal128(value),
            Self::Undefined => RawBsonRef::Undefined,
            Self::MaxKey => RawBsonRef::MaxKey,
            Self::MinKey => RawBsonRef::MinKey,
            _ => return None,
        })
    }

    /// An owned copy.
    pub fn to_bson(self) -> Bson {
        match self {
            Self::Double(value) => Bson::Double(value),
            Self::String(value) => Bson::String(value.to_owned()),
            Self::Array(value) => Bson::Array(value.to_vec()),
            Self::Document(value) => Bson::Document(value.to_document()),
            Self::Boolean(value) => Bson::Boolean(value),
            Self::Null => Bson::Null,
            Self::RegularExpression { pattern, options } => regex_to_bson(pattern, options),
            Self::JavaScriptCode(value) => Bson::JavaScriptCode(value.to_owned()),
            Self::JavaScriptCodeWithScope { code, scope } => {
                Bson::JavaScriptCodeWithScope(bson::JavaScriptCodeWithScope {
                    code: code.to_owned(),
                    scope: scope.to_document(),
                })
            }
            Self::Int32(value) => Bson::Int32(value),
            Self::Int64(value) => Bson::Int64(value),
            Self::Timestamp(value) => Bson::Timestamp(value),
            Self::Binary { subtype, bytes } => {
                Bson::Binary(bson::Binary { subtype, bytes: bytes.to_vec() })
            }
            Self::ObjectId(value) => Bson::ObjectId(value),
            Self::DateTime(value) => Bson::DateTime(value),
            Self::Symbol(value) => Bson::Symbol(value.to_owned()),
            Self::Decimal128(value) => Bson::Decimal128(value),
            Self::Undefined => Bson::Undefined,
            Self::MaxKey => Bson::MaxKey,
            Self::MinKey => Bson::MinKey,
            Self::DbPointer(value) => value.to_bson(),
        }
    }
}

/// Both parts came out of C strings, so the conversions back cannot fail.
fn regex_to_bson(pattern: &str, options: &str) -> Bson {
    match (pattern.try_into(), options.try_into()) {
        (Ok(pattern), Ok(options)) => Bson::RegularExpression(bson::Regex { pattern, options }),
        _ => Bson::Null,
    }
}

impl<'a> From<&'a Bson> for ValueRef<'a> {
    fn from(value: &'a Bson) -> Self {
        match value {
            Bson::Double(value) => Self::Double(*value),
            Bson::String(value) => Self::String(value),
            Bson::Array(value) => Self::Array(ArrayRef::Parsed(value)),
            Bson::Document(value) => Self::Document(DocumentRef::Parsed(value)),
            Bson::Boolean(value) => Self::Boolean(*value),
            Bson::Null => Self::Null,
            Bson::RegularExpression(value) => Self::RegularExpression {
                pattern: value.pattern.as_str(),
                options: value.options.as_str(),
            },
            Bson::JavaScriptCode(value) => Self::JavaScriptCode(value),
            Bson::JavaScriptCodeWithScope(value) => Self::JavaScriptCodeWithScope {
                code: &value.code,
                scope: DocumentRef::Parsed(&value.scope),
            },
            Bson::Int32(value) => Self::Int32(*value),
            Bson::Int64(value) => Self::Int64(*value),
            Bson::Timestamp(value) => Self::Timestamp(*value),
            Bson::Binary(value) => Self::Binary { subtype: value.subtype, bytes: &value.bytes },
            Bson::ObjectId(value) => Self::ObjectId(*value),
            Bson::DateTime(value) => Self::DateTime(*value),
            Bson::Symbol(value) => Self::Symbol(value),
            Bson::Decimal128(value) => Self::Decimal128(*value),
            Bson::Undefined => Self::Undefined,
            Bson::MaxKey => Self::MaxKey,
            Bson::MinKey => Self::MinKey,
            Bson::DbPointer(value) => Self::DbPointer(DbPointerRef::Parsed(value)),
        }
    }
}

impl<'a> From<&'a Document> for DocumentRef<'a> {
    fn from(value: &'a Document) -> Self {
        Self::Parsed(value)
    }
}

impl<'a> From<&'a RawDocument> for DocumentRef<'a> {
    fn from(value: &'a RawDocument) -> Self {
        Self::Raw(value)
    }
}

impl<'a> From<&'a bson::RawDocumentBuf> for DocumentRef<'a> {
    fn from(value: &'a bson::RawDocumentBuf) -> Self {
        Self::Raw(value)
    }
}

impl<'a> DocumentRef<'a> {
    /// The value of a top-level field.
    pub fn get(self, key: &str) -> Option<ValueRef<'a>> {
        match self {
            Self::Parsed(document) => document.get(key).map(ValueRef::from),
            Self::Raw(document) => RawScan::find(document, key),
        }
    }

    /// The fields in their stored order.
    pub fn iter(self) -> FieldIter<'a> {
        match self {
            Self::Parsed(document) => FieldIter::Parsed(document.iter()),
            Self::Raw(document) => FieldIter::Raw(RawScan::new(document)),
        }
    }

    /// Whether there is no field.
    pub fn is_empty(self) -> bool {
        match self {
            Self::Parsed(document) => document.is_empty(),
            Self::Raw(document) => document.is_empty(),
        }
    }

    /// An owned copy.
    pub fn to_document(self) -> Document {
        match self {
            Self::Parsed(document) => document.clone(),
            Self::Raw(_) => {
                self.iter().map(|(key, value)| (key.to_owned(), value.to_bson())).collect()
            }
        }
    }
}

impl<'a> ArrayRef<'a> {
    /// The element at a position.
    pub fn get(self, index: usize) -> Option<ValueRef<'a>> {
        match self {
            Self::Parsed(array) => array.get(index).map(ValueRef::from),
            Self::Raw(array) => RawScan::new(array).nth(index)?.value(),
        }
    }

    /// The elements in order.
    pub fn iter(self) -> ElementIter<'a> {
        match self {
            Self::Parsed(array) => ElementIter::Parsed(array.iter()),
            Self::Raw(array) => ElementIter::Raw(RawScan::new(array)),
        }
    }

    /// How many elements there are; walks a raw array to its end.
    pub fn len(self) -> usize {
        match self {
            Self::Parsed(array) => array.len(),
            Self::Raw(array) => RawScan::new(array).count(),
        }
    }

    /// Whether there is no element.
    pub fn is_empty(self) -> bool {
        match self {
            Self::Parsed(array) => array.is_empty(),
            Self::Raw(array) => array.is_empty(),
        }
    }

    /// An owned copy.
    pub fn to_vec(self) -> Vec<Bson> {
        self.iter().map(ValueRef::to_bson).collect()
    }
}

/// The fields of a document.
pub enum FieldIter<'a> {
    /// Over a map.
    Parsed(bson::document::Iter<'a>),
    /// Over bytes.
    Raw(RawScan<'a>),
}

impl<'a> Iterator for FieldIter<'a> {
    type Item = (&'a str, ValueRef<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Self::Parsed(iter) => iter.next().map(|(key, value)| (key.as_str(), value.into())),
            Self::Raw(iter) => {
                let field = iter.next()?;
                Some((field.name()?, field.value()?))
            }
        }
    }
}

/// The elements of an array.
pub enum ElementIter<'a> {
    /// Over a vector.
    Parsed(std::slice::Iter<'a, Bson>),
    /// Over bytes.
    Raw(RawScan<'a>),
}

impl<'a> Iterator for ElementIter<'a> {
    type Item = ValueRef<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Self::Parsed(iter) => iter.next().map(ValueRef::from),
            Self::Raw(iter) => iter.next()?.value(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{RawDocumentBuf, doc};

    #[test]
    fn raw_and_parsed_views_give_the_same_document() {
        let parsed = doc! {
            "a": 1, "b": [1, "x", { "c": Bson::Null }], "r": bson::Bson::MinKey,
            "bin": bson::Binary { subtype: BinarySubtype::Generic, bytes: vec![1, 2] },
        };
        let raw = RawDocumentBuf::try_from(&parsed).unwrap();
        assert_eq!(DocumentRef::from(&raw).to_document(), parsed);
        assert_eq!(DocumentRef::from(&parsed).to_document(), parsed);
        let array = DocumentRef::from(&raw).get("b").and_then(ValueRef::as_array).unwrap();
        assert_eq!(array.len(), 3);
        assert_eq!(array.get(1).unwrap().to_bson(), Bson::from("x"));
        assert!(array.get(3).is_none());
    }

    #[test]
    fn a_malformed_element_ends_the_iteration() {
        let mut bytes = doc! { "a": 1, "b": true }.to_vec().unwrap();
        let position = bytes.len() - 2;
        bytes[position] = 7; // not a boolean
        let raw = RawDocument::from_bytes(&bytes).unwrap();
        assert_eq!(DocumentRef::from(raw).iter().count(), 1);
    }
}
