//! Reading the fields of a command, with the errors that clients expect.
//!
//! Owns which BSON types stand for which Rust types: whole doubles pass for integers, numbers pass
//! for booleans, null passes for absence. A field of another type is named in the error.

use std::sync::Arc;

use bson::{Bson, Document, RawDocumentBuf};
use quorate_query::value::type_name_of;

use crate::body::CommandBody;
use crate::error::{CommandError, Result};

/// Where fields are read from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source<'a> {
    /// A command or a statement.
    Body(&'a CommandBody),
    /// A part of one.
    Document(&'a Document),
}

impl<'a> From<&'a CommandBody> for Source<'a> {
    fn from(body: &'a CommandBody) -> Self {
        Self::Body(body)
    }
}

impl<'a> From<&'a Arc<CommandBody>> for Source<'a> {
    fn from(body: &'a Arc<CommandBody>) -> Self {
        Self::Body(body)
    }
}

impl<'a> From<&'a Document> for Source<'a> {
    fn from(document: &'a Document) -> Self {
        Self::Document(document)
    }
}

/// The fields of a command or of a part of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<'a> {
    source: Source<'a>,
    /// Where the fields are, for messages: `find`, or `update.updates`.
    path: &'a str,
}

impl<'a> Fields<'a> {
    pub(crate) fn new(source: impl Into<Source<'a>>, path: &'a str) -> Self {
        Self { source: source.into(), path }
    }

    // Most fields are absent, which costs nothing where the name is known.
    #[inline]
    pub(crate) fn raw(&self, name: &str) -> Option<&'a Bson> {
        match self.source {
            Source::Body(body) if !body.may_have(name) => None,
            _ => self.given(name),
        }
    }

    fn given(&self, name: &str) -> Option<&'a Bson> {
        let value = match self.source {
            Source::Body(body) => body.get(name),
            Source::Document(document) => document.get(name),
        };
        value.filter(|value| !matches!(value, Bson::Null | Bson::Undefined))
    }

    #[inline]
    pub(crate) fn has(&self, name: &str) -> bool {
        match self.source {
            Source::Body(body) => body.has_value(name),
            Source::Document(_) => self.raw(name).is_some(),
        }
    }

    /// A value that must be of one type.
    #[inline]
    fn typed<T>(
        &self,
        name: &str,
        expected: &str,
        read: impl FnOnce(&'a Bson) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.raw(name) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| self.wrong_type(name, value, expected))
    }

    #[inline]
    pub(crate) fn string(&self, name: &str) -> Result<Option<&'a str>> {
        self.typed(name, "string", Bson::as_str)
    }

    pub(crate) fn required_string(&self, name: &str) -> Result<&'a str> {
        self.string(name)?.ok_or_else(|| self.missing(name))
    }

    #[inline]
    pub(crate) fn document(&self, name: &str) -> Result<Option<&'a Document>> {
        self.typed(name, "object", Bson::as_document)
    }

    pub(crate) fn array(&self, name: &str) -> Result<Option<&'a [Bson]>> {
        self.typed(name, "array", |value| value.as_array().map(Vec::as_slice))
    }

    /// An array whose items are all documents.
    pub(crate) fn documents(&self, name: &str) -> Result<Option<Vec<Document>>> {
        let Some(items) = self.array(name)? else { return Ok(None) };
        let as_document = |item: &Bson| match item {
            Bson::Document(document) => Ok(document.clone()),
            other => Err(self.wrong_type(name, other, "object")),
        };
        items.iter().map(as_document).collect::<Result<_, _>>().map(Some)
    }

    #[inline]
    pub(crate) fn boolean(&self, name: &str) -> Result<Option<bool>> {
        if let Source::Body(body) = self.source
            && let Some(truth) = body.get_truth(name)
        {
            return Ok(Some(truth));
        }
        self.typed(name, "bool", |value| match value {
            Bson::Boolean(truth) => Some(*truth),
            Bson::Double(number) => Some(*number != 0.0),
            other => whole_number(other).map(|number| number != 0),
        })
    }

    #[inline]
    pub(crate) fn flag(&self, name: &str) -> Result<bool> {
        Ok(self.boolean(name)?.unwrap_or(false))
    }

    /// Refuses values of fields that are no truths, whether or not anything reads them.
    pub(crate) fn check_flags(&self, names: &[&str]) -> Result<()> {
        names.iter().try_for_each(|name| self.boolean(name).map(drop))
    }

    /// A text that must be one of these.
    pub(crate) fn one_of(&self, name: &str, known: &[&str]) -> Result<Option<&'a str>> {
        match self.string(name)? {
            Some(text) if !known.contains(&text) => Err(fail!(
                BAD_VALUE,
                "Enumeration value '{}' for field '{}.{name}' is not a valid value; use one of {}",
                text.chars().take(MAX_SHOWN_FIELD).collect::<String>(),
                self.path,
                known.join(", ")
            )),
            found => Ok(found),
        }
    }

    #[inline]
    pub(crate) fn integer(&self, name: &str) -> Result<Option<i64>> {
        if let Source::Body(body) = self.source
            && let Some(number) = body.get_whole(name)
        {
            return Ok(Some(number));
        }
        self.typed(name, "number", |value| match value {
            // The server truncates fractions of counts.
            Bson::Double(number) if number.is_finite() => Some(*number as i64),
            other => whole_number(other),
        })
    }

    /// A number that must be given as 64 bits.
    #[inline]
    pub(crate) fn long(&self, name: &str) -> Result<Option<i64>> {
        if let Source::Body(body) = self.source
            && let Some(number) = body.get_long(name)
        {
            return Ok(Some(number));
        }
        self.typed(name, "long", Bson::as_i64)
    }

    /// A count that must not be negative.
    #[inline]
    pub(crate) fn count(&self, name: &str) -> Result<Option<u64>> {
        match self.integer(name)? {
            None => Ok(None),
            Some(number) => u64::try_from(number).map(Some).map_err(|_| {
                fail!(51024, "BSON field '{name}' value must be >= 0, actual value '{number}'")
            }),
        }
    }

    fn missing(&self, name: &str) -> CommandError {
        fail!(MISSING_FIELD, "BSON field '{}.{name}' is missing but a required field", self.path)
    }

    pub(crate) fn wrong_type(&self, name: &str, value: &Bson, expected: &str) -> CommandError {
        fail!(
            TYPE_MISMATCH,
            "BSON field '{}.{name}' is the wrong type '{}', expected type '{expected}'",
            self.path,
            type_name_of(value)
        )
    }
}

/// Letters that may differ between a field and the one it is taken for.
const MAX_TYPING_ERRORS: usize = 2;

/// Characters of an unknown field that an error shows.
const MAX_SHOWN_FIELD: usize = 100;

/// The error for a field that a command or statement does not have. Names the nearest one that it has.
pub(crate) fn unknown_field(path: &str, field: &str, known: &[&str]) -> CommandError {
    let shown: String = field.chars().take(MAX_SHOWN_FIELD).collect();
    let nearest = known
        .iter()
        .map(|name| (strsim::osa_distance(&shown, name), name))
        .min()
        .filter(|(distance, name)| *distance <= MAX_TYPING_ERRORS && *distance < name.len());
    let hint = nearest.map(|(_, name)| format!(" Did you mean '{name}'?")).unwrap_or_default();
    fail!(UNKNOWN_FIELD, "BSON field '{path}.{shown}' is an unknown field.{hint}")
}

/// Refuses fields that a statement does not have.
pub(crate) fn check_known(
    names: impl IntoIterator<Item: AsRef<str>>,
    path: &str,
    known: &[&str],
) -> Result<()> {
    match names.into_iter().find(|name| !known.contains(&name.as_ref())) {
        Some(field) => Err(unknown_field(path, field.as_ref(), known)),
        None => Ok(()),
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
pub(crate) fn to_raw(document: &Document) -> Result<RawDocumentBuf> {
    Ok(RawDocumentBuf::try_from(document)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorCode;
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
    fn an_unknown_field_is_named_with_the_nearest_known_one() {
        let known = ["filter", "sort", "q"];
        let message = |field: &str| unknown_field("find", field, &known).message;
        assert_eq!(
            message("fitler"),
            "BSON field 'find.fitler' is an unknown field. Did you mean 'filter'?"
        );
        assert_eq!(message("projection"), "BSON field 'find.projection' is an unknown field.");
        assert_eq!(message("x"), "BSON field 'find.x' is an unknown field.");
        assert!(message(&"x".repeat(1 << 20)).len() < 200);
    }

    #[test]
    fn a_missing_required_field_is_named() {
        let document = doc! {};
        let error = Fields::new(&document, "find").required_string("filter").unwrap_err();
        assert_eq!(error.code, ErrorCode::MISSING_FIELD);
        assert!(error.message.contains("find.filter"));
    }
}
