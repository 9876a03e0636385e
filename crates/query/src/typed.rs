//! Reading a value that must be of one type.
//!
//! A refusal carries the server's code. Its text names the wanted type and ends with the name of the found type.

use std::fmt::Display;

use bson::{Bson, Document};

use crate::error::{ErrorCode, QueryError, Result};
use crate::value::Number;
use crate::value::types::type_name_of;

/// A value, or the absence of one, whose type is checked where it is read.
pub(crate) trait Typed {
    /// The value; `None` is "missing".
    fn found(&self) -> Option<&Bson>;

    /// The name of the type, `missing` for none.
    fn type_name(&self) -> &'static str {
        self.found().map_or("missing", type_name_of)
    }

    /// The refusal of this type.
    fn wrong_type(&self, code: impl Into<ErrorCode>, wanted: impl Display) -> QueryError {
        fail!(code.into(), "{wanted} {}", self.type_name())
    }

    fn array(&self, code: impl Into<ErrorCode>, wanted: impl Display) -> Result<&[Bson]> {
        match self.found() {
            Some(Bson::Array(elements)) => Ok(elements),
            _ => Err(self.wrong_type(code, wanted)),
        }
    }

    fn document(&self, code: impl Into<ErrorCode>, wanted: impl Display) -> Result<&Document> {
        match self.found() {
            Some(Bson::Document(document)) => Ok(document),
            _ => Err(self.wrong_type(code, wanted)),
        }
    }

    fn string(&self, code: impl Into<ErrorCode>, wanted: impl Display) -> Result<&str> {
        match self.found() {
            Some(Bson::String(text)) => Ok(text),
            _ => Err(self.wrong_type(code, wanted)),
        }
    }

    fn boolean(&self, code: impl Into<ErrorCode>, wanted: impl Display) -> Result<bool> {
        match self.found() {
            Some(Bson::Boolean(value)) => Ok(*value),
            _ => Err(self.wrong_type(code, wanted)),
        }
    }

    /// The number, of any of the four types.
    fn number(&self, code: impl Into<ErrorCode>, wanted: impl Display) -> Result<Number> {
        self.found().and_then(Number::from_value).ok_or_else(|| self.wrong_type(code, wanted))
    }
}

/// The first field whose name is not among these.
pub(crate) fn unknown_field<'a>(fields: &'a Document, known: &[&str]) -> Option<&'a str> {
    fields.keys().map(String::as_str).find(|key| !known.contains(key))
}

impl Typed for Bson {
    fn found(&self) -> Option<&Bson> {
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use bson::bson;

    use super::*;
    use crate::expression::Operand;

    #[test]
    fn a_refusal_ends_with_the_type_that_was_found() {
        let refused = bson!(1).array(28664, "only supports arrays, not").unwrap_err();
        assert_eq!(refused, fail!(28664, "only supports arrays, not int"));
        let code = ErrorCode::TYPE_MISMATCH;
        let refused = Operand::MISSING.string(code, "a string, found:").unwrap_err();
        assert_eq!(refused, fail!(TYPE_MISMATCH, "a string, found: missing"));
        assert_eq!(bson!({ "a": 1 }).document(1, ""), Ok(&bson::doc! { "a": 1 }));
        assert_eq!(bson!(true).boolean(1, ""), Ok(true));
        assert_eq!(bson!(2.5).number(1, ""), Ok(Number::Double(2.5)));
    }
}
