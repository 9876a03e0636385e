//! Reading the fields of a command, with the errors that clients expect.
//!
//! Owns which BSON types stand for which Rust types: whole doubles pass for integers, numbers pass
//! for booleans, null passes for absence. A field of another type is named in the error.

use bson::{Bson, Document, RawDocumentBuf};
use quorate_query::value::type_name_of;

use crate::error::{CommandError, ErrorCode};

/// The fields of a command or of a part of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<'a> {
    document: &'a Document,
    /// Where the fields are, for messages: `find`, or `update.updates`.
    path: &'a str,
}

impl<'a> Fields<'a> {
    pub(crate) fn new(document: &'a Document, path: &'a str) -> Self {
        Self { document, path }
    }

    pub(crate) fn raw(&self, name: &str) -> Option<&'a Bson> {
        self.document.get(name).filter(|value| !matches!(value, Bson::Null | Bson::Undefined))
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.raw(name).is_some()
    }

    pub(crate) fn string(&self, name: &str) -> Result<Option<&'a str>, CommandError> {
        match self.raw(name) {
            None => Ok(None),
            Some(Bson::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong_type(name, other, "string")),
        }
    }

    pub(crate) fn required_string(&self, name: &str) -> Result<&'a str, CommandError> {
        self.string(name)?.ok_or_else(|| self.missing(name))
    }

    pub(crate) fn document(&self, name: &str) -> Result<Option<&'a Document>, CommandError> {
        match self.raw(name) {
            None => Ok(None),
            Some(Bson::Document(document)) => Ok(Some(document)),
            Some(other) => Err(self.wrong_type(name, other, "object")),
        }
    }

    pub(crate) fn array(&self, name: &str) -> Result<Option<&'a [Bson]>, CommandError> {
        match self.raw(name) {
            None => Ok(None),
            Some(Bson::Array(items)) => Ok(Some(items)),
            Some(other) => Err(self.wrong_type(name, other, "array")),
        }
    }

    /// An array whose items are all documents.
    pub(crate) fn documents(&self, name: &str) -> Result<Option<Vec<Document>>, CommandError> {
        let Some(items) = self.array(name)? else { return Ok(None) };
        let as_document = |item: &Bson| match item {
            Bson::Document(document) => Ok(document.clone()),
            other => Err(self.wrong_type(name, other, "object")),
        };
        items.iter().map(as_document).collect::<Result<_, _>>().map(Some)
    }

    pub(crate) fn boolean(&self, name: &str) -> Result<Option<bool>, CommandError> {
        match self.raw(name) {
            None => Ok(None),
            Some(Bson::Boolean(truth)) => Ok(Some(*truth)),
            Some(value) => match whole_number(value) {
                Some(number) => Ok(Some(number != 0)),
                None => match value {
                    Bson::Double(number) => Ok(Some(*number != 0.0)),
                    other => Err(self.wrong_type(name, other, "bool")),
                },
            },
        }
    }

    pub(crate) fn flag(&self, name: &str) -> Result<bool, CommandError> {
        Ok(self.boolean(name)?.unwrap_or(false))
    }

    pub(crate) fn integer(&self, name: &str) -> Result<Option<i64>, CommandError> {
        match self.raw(name) {
            None => Ok(None),
            Some(value) => match whole_number(value) {
                Some(number) => Ok(Some(number)),
                None => match value {
                    // The server truncates fractions of counts.
                    Bson::Double(number) if number.is_finite() => Ok(Some(*number as i64)),
                    other => Err(self.wrong_type(name, other, "number")),
                },
            },
        }
    }

    /// A count that must not be negative.
    pub(crate) fn count(&self, name: &str) -> Result<Option<u64>, CommandError> {
        match self.integer(name)? {
            None => Ok(None),
            Some(number) => u64::try_from(number).map(Some).map_err(|_| {
                CommandError::new(
                    ErrorCode(51024),
                    format!("BSON field '{name}' value must be >= 0, actual value '{number}'"),
                )
            }),
        }
    }

    fn missing(&self, name: &str) -> CommandError {
        CommandError::new(
            ErrorCode::MISSING_FIELD,
            format!("BSON field '{}.{name}' is missing but a required field", self.path),
        )
    }

    pub(crate) fn wrong_type(&self, name: &str, value: &Bson, expected: &str) -> CommandError {
        CommandError::type_mismatch(format!(
            "BSON field '{}.{name}' is the wrong type '{}', expected type '{expected}'",
            self.path,
            type_name_of(value),
        ))
    }
}

/// A number without a fraction that fits in 64 bits.
pub(crate) fn whole_number(value: &Bson) -> Option<i64> {
    match value {
        Bson::Int32(number) => Some(i64::from(*number)),
        Bson::Int64(number) => Some(*number),
        Bson::Double(number) if number.fract() == 0.0 && number.abs() < 9.2e18 => {
            Some(*number as i64)
        }
        Bson::Decimal128(_) => quorate_query::value::Number::from_value(value)?.to_i64_exact(),
        _ => None,
    }
}

/// A reply or a stored document as bytes.
pub(crate) fn to_raw(document: &Document) -> Result<RawDocumentBuf, CommandError> {
    Ok(RawDocumentBuf::try_from(document)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::doc;

    #[test]
    fn numbers_of_every_type_pass_for_each_other() {
        let document = doc! {"a": 5.0, "b": 5_i64, "c": 1, "d": 0.0, "e": Bson::Null, "f": "x"};
        let fields = Fields::new(&document, "find");
        assert_eq!(fields.integer("a").unwrap(), Some(5));
        assert_eq!(fields.integer("b").unwrap(), Some(5));
        assert_eq!(fields.boolean("c").unwrap(), Some(true));
        assert_eq!(fields.boolean("d").unwrap(), Some(false));
        assert_eq!(fields.integer("e").unwrap(), None);
        let error = fields.integer("f").unwrap_err();
        assert_eq!(error.code, ErrorCode::TYPE_MISMATCH);
        assert!(error.message.contains("find.f") && error.message.contains("'string'"));
    }

    #[test]
    fn a_missing_required_field_is_named() {
        let document = doc! {};
        let error = Fields::new(&document, "find").required_string("filter").unwrap_err();
        assert_eq!(error.code, ErrorCode::MISSING_FIELD);
        assert!(error.message.contains("find.filter"));
    }
}
