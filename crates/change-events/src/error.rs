//! Why an event cannot be shown, or a token cannot be read.

use quorate_protocol::ErrorCode;

/// A refusal, with the code that clients know.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct EventError {
    /// The numeric code of the reply.
    pub code: i32,
    /// The text of the reply.
    pub message: String,
}

/// What is read of an entry or a token, unless it is refused.
pub type Result<T, E = EventError> = std::result::Result<T, E>;

impl EventError {
    /// A token that this server did not make, or not for this stream.
    pub const INVALID_RESUME_TOKEN: i32 = ErrorCode::INVALID_RESUME_TOKEN.0;
    /// A stream that cannot go on.
    pub const CHANGE_STREAM_FATAL: i32 = ErrorCode::CHANGE_STREAM_FATAL.0;
    /// An image was required, and none was kept.
    pub const NO_MATCHING_DOCUMENT: i32 = ErrorCode::NO_MATCHING_DOCUMENT.0;
    /// An event is larger than a document may be.
    pub const BSON_OBJECT_TOO_LARGE: i32 = ErrorCode::BSON_OBJECT_TOO_LARGE.0;

    /// A refusal with any code.
    pub fn new(code: i32, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    pub(crate) fn token(reason: impl std::fmt::Display) -> Self {
        Self::new(
            Self::INVALID_RESUME_TOKEN,
            format!(
                "The resume token cannot be read: {reason}. Pass the _id of an event as it came"
            ),
        )
    }

    pub(crate) fn entry(reason: impl std::fmt::Display) -> Self {
        Self::new(Self::CHANGE_STREAM_FATAL, format!("An oplog entry cannot be read: {reason}"))
    }
}
