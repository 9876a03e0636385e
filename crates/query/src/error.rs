//! The error that a refused query, update, projection or expression carries to the client.
//!
//! Drivers decide by the numeric code, people read the message. Both are part of the server's
//! documented behaviour, so one struct with a code serves every operation of this crate.

pub use quorate_protocol::ErrorCode;

/// The longest message, in bytes, before it is cut.
const MAX_MESSAGE_LENGTH: usize = 4_096;

/// A refusal: the client asked for something that cannot be done, and the message says what.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct QueryError {
    code: ErrorCode,
    message: String,
}

/// What comes of evaluating, unless it is refused.
pub type Result<T, E = QueryError> = std::result::Result<T, E>;

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
        Self::new(code.into(), message)
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

/// The refusal with a code and a text as of `format!`. The code is a name in [`ErrorCode`], a number, or an
/// expression in parentheses.
macro_rules! fail {
    ($code:ident, $($message:tt)+) => { fail!($crate::error::ErrorCode::$code, $($message)+) };
    (($code:expr), $($message:tt)+) => { fail!($code, $($message)+) };
    ($code:expr, $($message:tt)+) => {
        $crate::error::QueryError::new($code.into(), std::fmt::format(format_args!($($message)+)))
    };
}

/// Returns with a refusal, as of `fail!`.
macro_rules! refuse {
    ($($refusal:tt)+) => { return Err(fail!($($refusal)+)) };
}

/// Returns with a refusal, as of `fail!`, if a condition holds: `refuse_if!(condition => code, text)`.
macro_rules! refuse_if {
    ($condition:expr => $($refusal:tt)+) => { if $condition { refuse!($($refusal)+) } };
}

/// The same refusal with the place it arose in put before its text.
pub(crate) fn caused_by(error: &QueryError, place: &str) -> QueryError {
    fail!((error.code()), "{place} :: caused by :: {}", error.message())
}

#[cfg(test)]
mod tests {

    #[test]
    fn long_messages_are_cut_between_characters() {
        let error = fail!(BAD_VALUE, "{}", "é".repeat(100_000));
        assert!(error.message().len() < 5_000 && error.message().ends_with("é…"));
        assert_eq!(fail!(BAD_VALUE, "short").message(), "short");
    }
}
