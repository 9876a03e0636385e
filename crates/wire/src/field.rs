//! Reading one field of a reply as the type it should have.
//!
//! Servers differ in small ways: `ok` may be a double, an integer or a boolean, a version an int32
//! or an int64. What differs is listed here once. A null is an absent field.

use bson::raw::{RawArray, RawBsonRef, RawDocument, RawElement};
use bson::spec::ElementType;
use quorate_protocol::ObjectId;

use crate::conversions::object_id_from;

/// A field of a reply that is not what it should be. The peer is at fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FieldError {
    /// A value of another type.
    #[error("the field {field} should be {expected} and is a {found:?}")]
    WrongType {
        /// The field's name, dotted if it is nested.
        field: &'static str,
        /// What it should be.
        expected: &'static str,
        /// What it is.
        found: ElementType,
    },
    /// A number that is no whole number, or has no room in its type.
    #[error("the field {field} should be {expected} and is {found}")]
    OutOfRange {
        /// The field's name.
        field: &'static str,
        /// What it should be.
        expected: &'static str,
        /// The value, as text.
        found: String,
    },
    /// A text longer than we keep.
    #[error("the field {field} is {length} bytes long; at most {limit} are accepted")]
    TooLong {
        /// The field's name.
        field: &'static str,
        /// Its length.
        length: usize,
        /// The accepted length.
        limit: usize,
    },
    /// A field that must be there and is not.
    #[error("the field {field} is missing")]
    Missing {
        /// The field's name.
        field: &'static str,
    },
    /// Bytes that are no BSON.
    #[error("the document is broken at {field}: {reason}")]
    Malformed {
        /// The field's name, or where the reading stopped.
        field: &'static str,
        /// What the BSON reader said.
        reason: String,
    },
}

impl FieldError {
    pub(crate) fn malformed(field: &'static str, error: impl std::fmt::Display) -> Self {
        Self::Malformed { field, reason: error.to_string() }
    }
}

/// One field, its value not read yet.
#[derive(Clone)]
pub(crate) struct Field<'a> {
    name: &'static str,
    element: RawElement<'a>,
}

/// The next element of a document, or what is wrong with it.
pub(crate) fn elements<'a>(
    document: &'a RawDocument,
    name: &'static str,
) -> impl Iterator<Item = Result<RawElement<'a>, FieldError>> + use<'a> {
    document
        .iter_elements()
        .map(move |element| element.map_err(|error| FieldError::malformed(name, error)))
}

impl<'a> Field<'a> {
    pub(crate) fn new(name: &'static str, element: RawElement<'a>) -> Self {
        Self { name, element }
    }

    /// `None` for a null.
    fn value(&self) -> Result<Option<RawBsonRef<'a>>, FieldError> {
        match self.element.value() {
            Ok(RawBsonRef::Null | RawBsonRef::Undefined) => Ok(None),
            Ok(value) => Ok(Some(value)),
            Err(error) => Err(FieldError::malformed(self.name, error)),
        }
    }

    fn wrong_type<T>(&self, expected: &'static str) -> Result<T, FieldError> {
        let found = self.element.element_type();
        Err(FieldError::WrongType { field: self.name, expected, found })
    }

    fn out_of_range(&self, expected: &'static str, found: impl ToString) -> FieldError {
        FieldError::OutOfRange { field: self.name, expected, found: found.to_string() }
    }

    /// A boolean, or a number that is not zero.
    pub(crate) fn truth(&self) -> Result<bool, FieldError> {
        match self.value()? {
            None => Ok(false),
            Some(RawBsonRef::Boolean(value)) => Ok(value),
            Some(RawBsonRef::Int32(value)) => Ok(value != 0),
            Some(RawBsonRef::Int64(value)) => Ok(value != 0),
            Some(RawBsonRef::Double(value)) => Ok(value != 0.0),
            Some(_) => self.wrong_type("a boolean or a number"),
        }
    }

    /// A whole number of any numeric type.
    pub(crate) fn integer(&self) -> Result<Option<i64>, FieldError> {
        const EXPECTED: &str = "a whole number";
        match self.value()? {
            None => Ok(None),
            Some(RawBsonRef::Int32(value)) => Ok(Some(value.into())),
            Some(RawBsonRef::Int64(value)) => Ok(Some(value)),
            Some(RawBsonRef::Double(value)) => {
                // The bounds of i64 as doubles; the upper one is not itself an i64.
                let fits =
                    (-9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0).contains(&value);
                if fits && value.fract() == 0.0 {
                    Ok(Some(value as i64))
                } else {
                    Err(self.out_of_range(EXPECTED, value))
                }
            }
            Some(_) => self.wrong_type(EXPECTED),
        }
    }

    /// A whole number that fits in 32 bits.
    pub(crate) fn int32(&self) -> Result<Option<i32>, FieldError> {
        self.integer()?
            .map(|value| {
                i32::try_from(value).map_err(|_| self.out_of_range("a 32-bit number", value))
            })
            .transpose()
    }

    /// A whole number from 0 up.
    pub(crate) fn size(&self) -> Result<Option<usize>, FieldError> {
        self.integer()?
            .map(|value| usize::try_from(value).map_err(|_| self.out_of_range("a size", value)))
            .transpose()
    }

    /// Text of at most `limit` bytes.
    pub(crate) fn text(&self, limit: usize) -> Result<Option<&'a str>, FieldError> {
        match self.value()? {
            None => Ok(None),
            Some(RawBsonRef::String(text)) if text.len() > limit => {
                Err(FieldError::TooLong { field: self.name, length: text.len(), limit })
            }
            Some(RawBsonRef::String(text)) => Ok(Some(text)),
            Some(_) => self.wrong_type("a string"),
        }
    }

    /// The value as a type; `expected` names the type in the error.
    fn typed<T>(
        &self,
        expected: &'static str,
        read: impl FnOnce(RawBsonRef<'a>) -> Option<T>,
    ) -> Result<Option<T>, FieldError> {
        let Some(value) = self.value()? else { return Ok(None) };
        read(value).map_or_else(|| self.wrong_type(expected), |value| Ok(Some(value)))
    }

    pub(crate) fn object_id(&self) -> Result<Option<ObjectId>, FieldError> {
        self.typed("an ObjectId", |value| value.as_object_id().map(object_id_from))
    }

    pub(crate) fn timestamp(&self) -> Result<Option<bson::Timestamp>, FieldError> {
        self.typed("a timestamp", RawBsonRef::as_timestamp)
    }

    pub(crate) fn date_time(&self) -> Result<Option<bson::DateTime>, FieldError> {
        self.typed("a date", RawBsonRef::as_datetime)
    }

    pub(crate) fn document(&self) -> Result<Option<&'a RawDocument>, FieldError> {
        self.typed("a document", RawBsonRef::as_document)
    }

    fn raw_array(&self) -> Result<Option<&'a RawArray>, FieldError> {
        self.typed("an array", RawBsonRef::as_array)
    }

    pub(crate) fn array_bytes(&self) -> Result<Option<&'a [u8]>, FieldError> {
        Ok(self.raw_array()?.map(RawArray::as_bytes))
    }

    /// The elements of an array, each under the array's name.
    pub(crate) fn array(
        &self,
    ) -> Result<Option<impl Iterator<Item = Result<Field<'a>, FieldError>> + use<'a>>, FieldError>
    {
        let name = self.name;
        Ok(self.raw_array()?.map(|array| {
            array.iter_elements().map(move |element| match element {
                Ok(element) => Ok(Field { name, element }),
                Err(error) => Err(FieldError::malformed(name, error)),
            })
        }))
    }

    pub(crate) fn element_type(&self) -> ElementType {
        self.element.element_type()
    }
}
