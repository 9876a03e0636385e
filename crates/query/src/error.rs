//! The error that a refused query, update, projection or expression carries to the client.
//!
//! Drivers decide by the numeric code, people read the message. Both are part of the server's
//! documented behaviour, so one struct with a code serves every operation of this crate.

use std::fmt;

/// The longest message, in bytes, before it is cut.
const MAX_MESSAGE_LENGTH: usize = 4_096;

/// A numeric error code as the server's clients know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ErrorCode(pub i32);

impl ErrorCode {
    /// The request holds a value that is not allowed there.
    pub const BAD_VALUE: Self = Self(2);
    /// The request could not be parsed.
    pub const FAILED_TO_PARSE: Self = Self(9);
    /// A value has the wrong BSON type.
    pub const TYPE_MISMATCH: Self = Self(14);
    /// Something is nested or repeated beyond the limit.
    pub const OVERFLOW: Self = Self(15);
    /// A path cannot be created in the document.
    pub const PATH_NOT_VIABLE: Self = Self(28);
    /// An array would have to be filled with too many nulls.
    pub const CANNOT_BACKFILL_ARRAY: Self = Self(34);
    /// Two parts of one update touch the same path.
    pub const CONFLICTING_UPDATE_OPERATORS: Self = Self(40);
    /// A field name starts with `$` where that is not allowed.
    pub const DOLLAR_PREFIXED_FIELD_NAME: Self = Self(52);
    /// An `_id` has a type that cannot be an identifier.
    pub const INVALID_ID_FIELD: Self = Self(53);
    /// A query gives a field more than one value where one is needed.
    pub const NOT_SINGLE_VALUE_FIELD: Self = Self(54);
    /// A path has an empty component.
    pub const EMPTY_FIELD_NAME: Self = Self(56);
    /// The update would change a field that must not change.
    pub const IMMUTABLE_FIELD: Self = Self(66);
    /// The options contradict each other.
    pub const INVALID_OPTIONS: Self = Self(72);
    /// The feature is known and not offered.
    pub const COMMAND_NOT_SUPPORTED: Self = Self(115);
    /// The operations of the process together hold all the memory they may.
    pub const EXCEEDED_MEMORY_LIMIT: Self = Self(146);
    /// The operation would hold more memory than it may, and cannot put anything on disk.
    pub const QUERY_EXCEEDED_MEMORY_LIMIT_NO_DISK_USE_ALLOWED: Self = Self(292);
    /// The resulting document would be larger than 16 MiB.
    pub const BSON_OBJECT_TOO_LARGE: Self = Self(10334);

    /// The name that goes with the number, as in the `codeName` field of a reply.
    pub fn name(self) -> String {
        let known = match self {
            Self::BAD_VALUE => "BadValue",
            Self::FAILED_TO_PARSE => "FailedToParse",
            Self::TYPE_MISMATCH => "TypeMismatch",
            Self::OVERFLOW => "Overflow",
            Self::PATH_NOT_VIABLE => "PathNotViable",
            Self::CANNOT_BACKFILL_ARRAY => "CannotBackfillArray",
            Self::NOT_SINGLE_VALUE_FIELD => "NotSingleValueField",
            Self::CONFLICTING_UPDATE_OPERATORS => "ConflictingUpdateOperators",
            Self::DOLLAR_PREFIXED_FIELD_NAME => "DollarPrefixedFieldName",
            Self::INVALID_ID_FIELD => "InvalidIdField",
            Self::EMPTY_FIELD_NAME => "EmptyFieldName",
            Self::IMMUTABLE_FIELD => "ImmutableField",
            Self::INVALID_OPTIONS => "InvalidOptions",
            Self::COMMAND_NOT_SUPPORTED => "CommandNotSupported",
            Self::EXCEEDED_MEMORY_LIMIT => "ExceededMemoryLimit",
            Self::QUERY_EXCEEDED_MEMORY_LIMIT_NO_DISK_USE_ALLOWED => {
                "QueryExceededMemoryLimitNoDiskUseAllowed"
            }
            Self::BSON_OBJECT_TOO_LARGE => "BSONObjectTooLarge",
            Self(other) => return format!("Location{other}"),
        };
        known.to_owned()
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A refusal: the client asked for something that cannot be done, and the message says what.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct QueryError {
    code: ErrorCode,
    message: String,
}

impl QueryError {
    /// A refusal with any code. A message that quotes a large value is cut short: it must fit a
    /// reply many times over.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        let mut message = message.into();
        if message.len() > MAX_MESSAGE_LENGTH {
            let cut = (0..=MAX_MESSAGE_LENGTH).rev().find(|&end| message.is_char_boundary(end));
            message.truncate(cut.unwrap_or(0));
            message.push('…');
            message.shrink_to_fit();
        }
        Self { code, message }
    }

    /// A refusal with one of the server's numbered locations, such as 31249.
    pub fn location(code: i32, message: impl Into<String>) -> Self {
        Self::new(ErrorCode(code), message)
    }

    /// A value that is not allowed where it stands.
    pub fn bad_value(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::BAD_VALUE, message)
    }

    /// A request that could not be parsed.
    pub fn failed_to_parse(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::FAILED_TO_PARSE, message)
    }

    /// A value of the wrong BSON type.
    pub fn type_mismatch(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::TYPE_MISMATCH, message)
    }

    /// The numeric code of the reply.
    pub fn code(&self) -> ErrorCode {
        self.code
    }

    /// The text of the reply.
    pub fn message(&self) -> &str {
        &self.message
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_messages_are_cut_between_characters() {
        let error = QueryError::bad_value("é".repeat(100_000));
        assert!(error.message().len() < 5_000 && error.message().ends_with("é…"));
        assert_eq!(QueryError::bad_value("short").message(), "short");
    }

    #[test]
    fn codes_carry_the_names_that_replies_show() {
        assert_eq!(ErrorCode::BAD_VALUE.name(), "BadValue");
        assert_eq!(ErrorCode(31249).name(), "Location31249");
        assert_eq!(QueryError::bad_value("x").code(), ErrorCode(2));
    }
}
