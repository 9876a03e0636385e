//! Reading one field of a parsed document as the type it should have.

use bson::spec::ElementType;
use bson::{Bson, Document};
use quorate_protocol::{AddressError, ServerAddress};

use crate::field::FieldError;

/// A document of the replica set that cannot be read. Its sender is at fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReplicaSetDocumentError {
    /// A field is not what it should be.
    #[error(transparent)]
    Field(#[from] FieldError),
    /// An unknown field.
    #[error("the field {field} is unknown in {within}; remove it or correct its name")]
    Unknown {
        /// The field.
        field: String,
        /// Where it stands.
        within: &'static str,
    },
    /// A host that one could not connect to.
    #[error("the field {field} is no address: {source}")]
    Address {
        /// The field.
        field: &'static str,
        /// What is wrong with it.
        source: AddressError,
    },
}

/// The fields of one document. The full name of a field is for messages, its last part is the key.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a> {
    document: &'a Document,
}

type Read<T> = Result<T, ReplicaSetDocumentError>;

impl<'a> Reader<'a> {
    pub(super) fn new(document: &'a Document) -> Self {
        Self { document }
    }

    /// Refuses fields that are not in the list.
    pub(super) fn only(&self, known: &[&str], within: &'static str) -> Read<()> {
        match self.document.keys().find(|key| !known.contains(&key.as_str())) {
            Some(field) => Err(ReplicaSetDocumentError::Unknown { field: field.clone(), within }),
            None => Ok(()),
        }
    }

    fn get(&self, name: &'static str) -> Option<&'a Bson> {
        let key = name.rsplit('.').next().unwrap_or(name);
        self.document.get(key).filter(|value| !matches!(value, Bson::Null | Bson::Undefined))
    }

    /// The field as a type; `expected` names the type in the error.
    fn typed<T>(
        &self,
        name: &'static str,
        expected: &'static str,
        read: impl FnOnce(&'a Bson) -> Option<T>,
    ) -> Read<Option<T>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| wrong(name, expected, value))
    }

    pub(super) fn integer(&self, name: &'static str) -> Read<Option<i64>> {
        self.typed(name, "a whole number", whole)
    }

    pub(super) fn int32(&self, name: &'static str) -> Read<Option<i32>> {
        let Some(number) = self.integer(name)? else { return Ok(None) };
        let out_of_range = |_| FieldError::OutOfRange {
            field: name,
            expected: "a 32-bit number",
            found: number.to_string(),
        };
        Ok(Some(i32::try_from(number).map_err(out_of_range)?))
    }

    pub(super) fn double(&self, name: &'static str) -> Read<Option<f64>> {
        self.typed(name, "a number", |value| match value {
            Bson::Double(number) => Some(*number),
            Bson::Int32(number) => Some(f64::from(*number)),
            Bson::Int64(number) => Some(*number as f64),
            _ => None,
        })
    }

    pub(super) fn flag(&self, name: &'static str) -> Read<Option<bool>> {
        self.typed(name, "a boolean", |value| {
            value.as_bool().or_else(|| whole(value).map(|number| number != 0))
        })
    }

    pub(super) fn text(&self, name: &'static str) -> Read<Option<&'a str>> {
        self.typed(name, "a string", Bson::as_str)
    }

    pub(super) fn document(&self, name: &'static str) -> Read<Option<&'a Document>> {
        self.typed(name, "a document", Bson::as_document)
    }

    /// The documents of an array.
    pub(super) fn documents(&self, name: &'static str) -> Read<Option<Vec<&'a Document>>> {
        let Some(items) = self.typed(name, "an array", Bson::as_array)? else { return Ok(None) };
        let document = |item: &'a Bson| match item {
            Bson::Document(document) => Ok(document),
            other => Err(wrong(name, "an array of documents", other)),
        };
        items.iter().map(document).collect::<Read<_>>().map(Some)
    }

    pub(super) fn object_id(&self, name: &'static str) -> Read<Option<bson::oid::ObjectId>> {
        self.typed(name, "an ObjectId", Bson::as_object_id)
    }

    pub(super) fn timestamp(&self, name: &'static str) -> Read<Option<bson::Timestamp>> {
        self.typed(name, "a timestamp", Bson::as_timestamp)
    }

    pub(super) fn date_time(&self, name: &'static str) -> Read<Option<bson::DateTime>> {
        self.typed(name, "a date", |value| value.as_datetime().copied())
    }

    /// An address; the empty string is none.
    pub(super) fn address(&self, name: &'static str) -> Read<Option<ServerAddress>> {
        match self.text(name)? {
            None | Some("") => Ok(None),
            Some(text) => parse_address(name, text).map(Some),
        }
    }
}

pub(super) fn parse_address(name: &'static str, text: &str) -> Read<ServerAddress> {
    text.parse().map_err(|source| ReplicaSetDocumentError::Address { field: name, source })
}

pub(super) fn missing(field: &'static str) -> ReplicaSetDocumentError {
    FieldError::Missing { field }.into()
}

pub(super) fn wrong(
    field: &'static str,
    expected: &'static str,
    found: &Bson,
) -> ReplicaSetDocumentError {
    let found: ElementType = found.element_type();
    FieldError::WrongType { field, expected, found }.into()
}

pub(super) fn whole(value: &Bson) -> Option<i64> {
    match value {
        Bson::Int32(number) => Some(i64::from(*number)),
        Bson::Int64(number) => Some(*number),
        Bson::Double(number) if number.fract() == 0.0 && number.abs() < 9.0e15 => {
            Some(*number as i64)
        }
        _ => None,
    }
}
