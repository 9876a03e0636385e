//! What a refused command tells its client.
//!
//! Drivers decide by the numeric code and by the labels; people read the message.

use bson::{Bson, Document, doc};
pub use quorate_protocol::ErrorCode;
use quorate_query::QueryError;
use quorate_storage::key::KeyError;
use quorate_storage::{CommitError, KeyspaceError, ReadError, SyncError};

/// A command was refused or failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct CommandError {
    /// What drivers decide by.
    pub code: ErrorCode,
    /// What people read.
    pub message: String,
    /// Labels that tell drivers what they may do next.
    pub labels: Vec<String>,
    /// Further fields of the reply, such as `keyPattern`.
    pub details: Box<Document>,
}

/// What comes of a command, unless it fails.
pub type Result<T, E = CommandError> = std::result::Result<T, E>;

/// The error with a code and a text as of `format!`. The code is a name in [`ErrorCode`], a number, or an
/// expression in parentheses.
macro_rules! fail {
    ($code:ident, $($message:tt)+) => { fail!($crate::error::ErrorCode::$code, $($message)+) };
    (($code:expr), $($message:tt)+) => { fail!($code, $($message)+) };
    ($code:expr, $($message:tt)+) => {
        $crate::error::CommandError::new($code.into(), std::fmt::format(format_args!($($message)+)))
    };
}

/// Returns with an error, as of `fail!`.
macro_rules! refuse {
    ($($error:tt)+) => { return Err(fail!($($error)+)) };
}

/// Returns with an error, as of `fail!`, if a condition holds: `refuse_if!(condition => code, text)`.
macro_rules! refuse_if {
    ($condition:expr => $($error:tt)+) => { if $condition { refuse!($($error)+) } };
}

impl CommandError {
    /// An error with a code and a message.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), labels: Vec::new(), details: Box::default() }
    }

    /// A value of the command that is not allowed.
    pub fn bad_value(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::BAD_VALUE, message)
    }

    /// A field of the command that has the wrong type.
    pub fn type_mismatch(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::TYPE_MISMATCH, message)
    }

    /// The reply that carries this error.
    pub fn reply(&self) -> Document {
        let mut reply = doc! {
            "ok": 0.0,
            "errmsg": &self.message,
            "code": self.code.0,
            "codeName": self.code.name(),
        };
        if !self.labels.is_empty() {
            let labels = self.labels.iter().map(|label| Bson::from(label.as_str()));
            reply.insert("errorLabels", labels.collect::<Vec<_>>());
        }
        reply.extend((*self.details).clone());
        reply
    }

    /// The entry of `writeErrors` that carries this error for one statement.
    pub(crate) fn write_error(&self, index: usize) -> Document {
        let mut error = doc! {
            "index": i32::try_from(index).unwrap_or(i32::MAX),
            "code": self.code.0,
        };
        error.extend((*self.details).clone());
        error.insert("errmsg", &self.message);
        error
    }
}

impl From<CommandError> for QueryError {
    fn from(error: CommandError) -> Self {
        Self::new(error.code, error.message)
    }
}

impl From<QueryError> for CommandError {
    fn from(error: QueryError) -> Self {
        Self::new(error.code(), error.message())
    }
}

impl From<KeyError> for CommandError {
    fn from(error: KeyError) -> Self {
        Self::bad_value(error.to_string())
    }
}

impl From<ReadError> for CommandError {
    fn from(error: ReadError) -> Self {
        Self::new(code_of_store(&error), with_source(&error))
    }
}

impl From<KeyspaceError> for CommandError {
    fn from(error: KeyspaceError) -> Self {
        let code = match error {
            KeyspaceError::Poisoned => ErrorCode::FILE_STREAM_FAILED,
            KeyspaceError::DiskFull => ErrorCode::OUT_OF_DISK_SPACE,
            KeyspaceError::TooManyFiles => ErrorCode::TOO_MANY_FILES_OPEN,
            _ => code_of_store(&error),
        };
        Self::new(code, with_source(&error))
    }
}

impl From<SyncError> for CommandError {
    fn from(error: SyncError) -> Self {
        let code = match error {
            SyncError::Poisoned => ErrorCode::FILE_STREAM_FAILED,
            _ => code_of_store(&error),
        };
        Self::new(code, with_source(&error))
    }
}

impl From<CommitError> for CommandError {
    fn from(error: CommitError) -> Self {
        let code = match error {
            CommitError::KeyLength { .. } => ErrorCode::KEY_TOO_LONG,
            CommitError::Poisoned => ErrorCode::FILE_STREAM_FAILED,
            CommitError::DiskFull => ErrorCode::OUT_OF_DISK_SPACE,
            CommitError::TooManyFiles => ErrorCode::TOO_MANY_FILES_OPEN,
            _ => code_of_store(&error),
        };
        Self::new(code, with_source(&error))
    }
}

/// Values from the wire and from disk have been checked before; this guards against our mistakes.
impl From<bson::error::Error> for CommandError {
    fn from(error: bson::error::Error) -> Self {
        Self::new(ErrorCode::FAILED_TO_PARSE, format!("a BSON value is malformed: {error}"))
    }
}

/// Whether the system failed the store, or the store itself.
fn code_of_store(error: &(dyn std::error::Error + 'static)) -> ErrorCode {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(system) = error.downcast_ref::<std::io::Error>() {
            return match system.kind() {
                std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
                    ErrorCode::OUT_OF_DISK_SPACE
                }
                _ if system.raw_os_error().is_some() => ErrorCode::FILE_STREAM_FAILED,
                _ => ErrorCode::INTERNAL_ERROR,
            };
        }
        cause = error.source();
    }
    ErrorCode::INTERNAL_ERROR
}

fn with_source(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_carry_what_drivers_decide_by() {
        let mut error = CommandError::new(ErrorCode::DUPLICATE_KEY, "E11000 duplicate key");
        error.labels.push("RetryableWriteError".to_owned());
        let reply = error.reply();
        assert_eq!(reply.get_f64("ok").unwrap(), 0.0);
        assert_eq!(reply.get_i32("code").unwrap(), 11000);
        assert_eq!(reply.get_str("codeName").unwrap(), "DuplicateKey");
        assert_eq!(reply.get_array("errorLabels").unwrap().len(), 1);
        assert_eq!(error.write_error(3).get_i32("index").unwrap(), 3);
    }

    #[test]
    fn a_batch_that_finds_no_room_is_told_from_a_failing_disk() {
        assert_eq!(CommandError::from(CommitError::DiskFull).code, ErrorCode::OUT_OF_DISK_SPACE);
        assert_eq!(CommandError::from(CommitError::Poisoned).code, ErrorCode::FILE_STREAM_FAILED);
    }
}
