//! What an operation can fail with, and what that means for trying again.
//!
//! Follows the retryable reads and retryable writes specifications for which errors are worth a
//! second attempt. Each error says where it happened and what to do.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bson::raw::{RawDocument, RawDocumentBuf, cstr};
use bson::rawdoc;
use quorate_client_session::{
    RETRYABLE_ERROR, RETRYABLE_WRITE_ERROR, SYSTEM_OVERLOADED_ERROR, SessionError,
    TransactionError, WriteError, is_retryable_read,
};
use quorate_protocol::{ErrorCode, ServerAddress};
use quorate_server_discovery::{OptionsError, SelectionError, SelectionFailure};
use quorate_wire::{AppendSome, CommandError, WriteConcernError};

use crate::authentication::UnsupportedMechanism;
use crate::bulk::BulkWriteResult;
use crate::connection::ConnectionError;
use crate::handshake::EstablishError;
use crate::pool::{CheckOutError, Interrupted, PoolOptionsError};
use crate::tls::TlsError;

/// Replaces text that may contain a secret.
const REDACTED: &str = "(redacted)";

/// Why an operation failed.
#[derive(Clone, Debug)]
pub struct Error {
    kind: Arc<ErrorKind>,
    labels: Vec<String>,
    /// What a bulk had done before it failed as a whole.
    partial_result: Option<Box<BulkWriteResult>>,
}

/// The kinds of failures.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// No suitable server was found in time.
    #[error("{0}")]
    Selection(SelectionFailure),
    /// No server can ever be suitable.
    #[error("{0}")]
    ImpossibleSelection(SelectionError),
    /// No connection could be had.
    #[error("{0}")]
    CheckOut(CheckOutError<EstablishError>),
    /// The connection broke, or the server did not keep to the protocol.
    #[error("the operation on {address} failed: {cause}")]
    Connection {
        /// The server.
        address: ServerAddress,
        /// The cause.
        cause: ConnectionError,
    },
    /// `socketTimeoutMS` passed.
    #[error("{address} did not answer within {} ms (socketTimeoutMS)", .limit.as_millis())]
    SocketTimeout {
        /// The server.
        address: ServerAddress,
        /// The limit.
        limit: Duration,
    },
    /// `timeoutMS` passed.
    #[error("the operation did not end within {} ms (timeoutMS)", .0.as_millis())]
    Timeout(Duration),
    /// The server had no more time (`MaxTimeMSExpired`) while `timeoutMS` bounded the operation.
    #[error("the operation did not end within {} ms (timeoutMS): {cause}", .limit.as_millis())]
    ServerTimeout {
        /// `timeoutMS`.
        limit: Duration,
        /// What the server said.
        cause: Box<Error>,
    },
    /// The application stopped waiting for the operation. Only events tell it.
    #[error("the application stopped waiting for the operation")]
    GivenUp,
    /// The pool was cleared under the operation.
    #[error("{0}")]
    Interrupted(Interrupted),
    /// The server refused.
    #[error("{address}: {error}")]
    Command {
        /// The server.
        address: ServerAddress,
        /// What it said.
        error: Box<CommandError>,
        /// The whole reply.
        reply: RawDocumentBuf,
        /// How many documents it was about.
        sent: usize,
    },
    /// Some writes failed, or are not known widely enough.
    #[error("{0}")]
    Write(Box<WriteFailure>),
    /// The server's reply cannot be read.
    #[error("the reply of {address} cannot be read: {reason}")]
    Reply {
        /// The server.
        address: ServerAddress,
        /// The reason.
        reason: String,
    },
    /// The server that holds a cursor is no longer part of the deployment.
    #[error(
        "{0}, which holds the cursor, is no longer part of the deployment; run the query again"
    )]
    ServerGone(ServerAddress),
    /// An earlier call on the cursor was dropped while its server fetched the next batch.
    #[error(
        "an earlier call on the cursor was given up while {0} fetched results, which are lost; run \
         the query again"
    )]
    BatchLost(ServerAddress),
    /// The client was closed.
    #[error("the client is closed")]
    Closed,
    /// The session is in no state for this.
    #[error("{0}")]
    Transaction(TransactionError),
    /// `with_transaction` had no time left for another attempt.
    #[error(
        "the transaction did not succeed within {} ms; the last attempt: {last}", .limit.as_millis()
    )]
    TransactionTimeout {
        /// The limit.
        limit: Duration,
        /// The error of the last attempt.
        last: Box<Error>,
    },
    /// The application's command or arguments cannot be sent.
    #[error("the command cannot be sent: {0}")]
    BadCommand(String),
}

/// What failed among several writes, and what did not.
#[derive(Clone, Debug)]
pub struct WriteFailure {
    /// The server that was asked last.
    pub address: ServerAddress,
    /// The writes that failed, in the order in which the servers told.
    pub write_errors: Vec<WriteError>,
    /// Write concerns that were not met. The writes are done.
    pub write_concern_errors: Vec<WriteConcernError>,
    /// What was done all the same.
    pub result: BulkWriteResult,
}

impl fmt::Display for WriteFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let code = |code: Option<i32>| code.map(|code| format!(" (code {code})"));
        let address = &self.address;
        match (self.write_errors.as_slice(), self.write_concern_errors.first()) {
            ([first, rest @ ..], _) => {
                let WriteError { index, message, .. } = first;
                let code = code(first.code).unwrap_or_default();
                write!(f, "{address}: write {index} failed: {message}{code}")?;
                match rest.len() {
                    0 => Ok(()),
                    more => write!(f, ", and {more} more failed"),
                }
            }
            ([], Some(error)) => {
                let code = code(error.code).unwrap_or_default();
                write!(f, "{address}: the write concern was not met: {}{code}", error.message)
            }
            ([], None) => write!(f, "{address}: some writes failed"),
        }
    }
}

impl Error {
    pub(crate) fn new(kind: ErrorKind) -> Self {
        let labels = match &kind {
            ErrorKind::Command { error, .. } => error.labels.clone(),
            ErrorKind::ServerTimeout { cause, .. } => cause.labels.clone(),
            ErrorKind::CheckOut(CheckOutError::NotEstablished(error)) if error.is_overload() => {
                vec![SYSTEM_OVERLOADED_ERROR.to_owned(), RETRYABLE_ERROR.to_owned()]
            }
            _ => Vec::new(),
        };
        Self { kind: Arc::new(kind), labels, partial_result: None }
    }

    /// The application's command or arguments cannot be sent.
    pub(crate) fn bad_command(reason: impl Into<String>) -> Self {
        Self::new(ErrorKind::BadCommand(reason.into()))
    }

    /// The same with the labels of the error that it was made from.
    pub(crate) fn with_labels(mut self, labels: &[String]) -> Self {
        for label in labels {
            self.add_label(label);
        }
        self
    }

    /// Adds a label, unless it is there.
    pub(crate) fn add_label(&mut self, label: &str) {
        if !self.has_label(label) {
            self.labels.push(label.to_owned());
        }
    }

    /// The same with what a bulk had done before.
    pub(crate) fn with_partial_result(mut self, result: BulkWriteResult) -> Self {
        self.partial_result = Some(Box::new(result));
        self
    }

    /// "Error Transformations": where `timeoutMS` bounds the operation, a server that had no more time
    /// is a timeout as well.
    pub(crate) fn within(self, limit: Option<Duration>) -> Self {
        match limit.filter(|_| self.is_max_time_expired()) {
            Some(limit) => Self::new(ErrorKind::ServerTimeout { limit, cause: Box::new(self) }),
            None => self,
        }
    }

    /// Whether a server had no more time, for the command or for a part of it.
    fn is_max_time_expired(&self) -> bool {
        let expired = |code| code == Some(ErrorCode::MAX_TIME_MS_EXPIRED.0);
        match &*self.kind {
            ErrorKind::Command { .. } => expired(self.code()),
            ErrorKind::Write(failure) => {
                failure.write_errors.iter().any(|error| expired(error.code))
                    || failure.write_concern_errors.iter().any(|error| expired(error.code))
            }
            _ => false,
        }
    }

    /// What a bulk write did all the same.
    pub fn partial_result(&self) -> Option<&BulkWriteResult> {
        match &*self.kind {
            ErrorKind::Write(failure) => Some(&failure.result),
            ErrorKind::ServerTimeout { cause, .. } if self.partial_result.is_none() => {
                cause.partial_result()
            }
            _ => self.partial_result.as_deref(),
        }
    }

    /// What happened.
    pub fn kind(&self) -> &ErrorKind {
        &self.kind
    }

    /// The error labels, the server's and ours.
    pub fn labels(&self) -> &[String] {
        &self.labels
    }

    /// Whether the error has this label.
    pub fn has_label(&self, label: &str) -> bool {
        self.labels.iter().any(|own| own == label)
    }

    /// The server's code, if it gave one.
    pub fn code(&self) -> Option<i32> {
        match &*self.kind {
            ErrorKind::Command { error, .. } if error.ok => {
                error.write_concern_error.as_ref().and_then(|concern| concern.code)
            }
            ErrorKind::Command { error, .. } => error.code,
            ErrorKind::Write(failure) => match failure.write_errors.first() {
                Some(error) => error.code,
                None => failure.write_concern_errors.first().and_then(|error| error.code),
            },
            ErrorKind::ServerTimeout { cause, .. } => cause.code(),
            ErrorKind::CheckOut(CheckOutError::NotEstablished(error)) => {
                error.command_error().and_then(|error| error.code)
            }
            _ => None,
        }
    }

    /// The server's reply, if it sent one and it is about this error alone.
    pub fn reply(&self) -> Option<&RawDocument> {
        match &*self.kind {
            ErrorKind::Command { reply, .. } => Some(reply),
            ErrorKind::ServerTimeout { cause, .. } => cause.reply(),
            _ => None,
        }
    }

    /// The same without what a server said in words, which may repeat a secret: its code, the name of
    /// that and the labels are left.
    pub(crate) fn redacted(&self) -> Self {
        let ErrorKind::Command { address, error, sent, .. } = &*self.kind else {
            return self.clone();
        };
        let mut reply = rawdoc! { "ok": 0 };
        reply.append_some(cstr!("code"), error.code);
        reply.append_some(cstr!("codeName"), error.code_name.as_deref());
        let told = CommandError {
            code: error.code,
            code_name: error.code_name.clone(),
            message: REDACTED.to_owned(),
            labels: error.labels.clone(),
            ..CommandError::default()
        };
        let (address, error) = (address.clone(), Box::new(told));
        Self::new(ErrorKind::Command { address, error, reply, sent: *sent })
    }

    /// Whether a server said so: otherwise the error was found on our side of the wire, or the wire
    /// itself failed.
    pub fn is_from_server(&self) -> bool {
        match &*self.kind {
            ErrorKind::Command { .. } | ErrorKind::Write(_) | ErrorKind::ServerTimeout { .. } => {
                true
            }
            ErrorKind::CheckOut(CheckOutError::NotEstablished(error)) => {
                error.command_error().is_some()
            }
            _ => false,
        }
    }

    /// Whether `timeoutMS` passed, here or on the server.
    pub fn is_timeout(&self) -> bool {
        matches!(
            &*self.kind,
            ErrorKind::Timeout(_)
                | ErrorKind::ServerTimeout { .. }
                | ErrorKind::TransactionTimeout { .. }
        )
    }

    /// Whether the network failed, or a pool was cleared because it had.
    pub fn is_network(&self) -> bool {
        match &*self.kind {
            ErrorKind::Connection { cause, .. } => cause.is_network(),
            ErrorKind::SocketTimeout { .. } | ErrorKind::Interrupted(_) => true,
            ErrorKind::CheckOut(CheckOutError::PoolCleared { .. }) => true,
            ErrorKind::CheckOut(CheckOutError::NotEstablished(error)) => {
                matches!(
                    error.to_application_error(),
                    quorate_server_discovery::ApplicationError::Network(_)
                        | quorate_server_discovery::ApplicationError::NetworkTimeout(_)
                )
            }
            _ => false,
        }
    }

    /// Whether a read may be sent again.
    pub fn is_retryable_read(&self) -> bool {
        is_retryable_read(self)
    }

    /// Whether a write with a transaction number may be sent again.
    pub fn is_retryable_write(&self) -> bool {
        self.has_label(RETRYABLE_WRITE_ERROR)
    }
}

impl From<SessionError> for Error {
    fn from(error: SessionError) -> Self {
        match error {
            SessionError::Transaction(error) => error.into(),
            error => Self::bad_command(error.to_string()),
        }
    }
}

impl From<TransactionError> for Error {
    fn from(error: TransactionError) -> Self {
        Self::new(ErrorKind::Transaction(error))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kind.fmt(f)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.kind)
    }
}

/// Why a client could not be made. The options are at fault.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The connection string cannot be read.
    #[error("{0}")]
    ConnectionString(#[from] quorate_connection_string::ParseError),
    /// Options of discovery contradict each other.
    #[error("{0}")]
    Discovery(#[from] OptionsError),
    /// Options of pools contradict each other.
    #[error("{0}")]
    Pool(#[from] PoolOptionsError),
    /// TLS cannot be set up.
    #[error("{0}")]
    Tls(#[from] TlsError),
    /// The mechanism is not spoken.
    #[error("{0}")]
    Mechanism(#[from] UnsupportedMechanism),
    /// DNS has no seeds to believe.
    #[error("{0}")]
    Resolve(#[from] quorate_seed_list::ResolveError),
    /// `with_uri` does no I/O, and the seeds of a `mongodb+srv://` string are in DNS.
    #[error("mongodb+srv:// needs DNS; use Client::connect")]
    UnresolvedSrv,
    /// An option that this client does not have, and that would be unsafe to ignore.
    #[error("{0} is not supported; remove it, or reach the servers through a tunnel and hostMap")]
    Unsupported(&'static str),
    /// The operating system has no randomness.
    #[error("the operating system has no random numbers")]
    NoRandomness,
}

#[cfg(test)]
mod tests {
    use quorate_client_session::label_for_retryable_write;

    use super::*;

    fn command(code: i32, labels: &[&str]) -> Error {
        let error = CommandError {
            code: Some(code),
            labels: labels.iter().map(|&label| label.to_owned()).collect(),
            ..CommandError::default()
        };
        let address = "a:1".parse().unwrap();
        let error = Box::new(error);
        Error::new(ErrorKind::Command { address, error, reply: RawDocumentBuf::new(), sent: 0 })
    }

    #[test]
    fn reads_are_retried_by_code_and_writes_by_label() {
        assert!(command(91, &[]).is_retryable_read());
        assert!(command(134, &[]).is_retryable_read());
        assert!(!command(11000, &[]).is_retryable_read());
        assert!(!command(91, &[]).is_retryable_write());
        assert!(command(1, &[RETRYABLE_WRITE_ERROR]).is_retryable_write());
    }

    /// "This error can be present in a top-level response document, as part of an error in the writeErrors
    /// array, or in a nested writeConcernError document."
    #[test]
    fn a_server_that_had_no_more_time_is_a_timeout_where_timeout_ms_is_set() {
        let concern = |code| WriteConcernError { code: Some(code), ..WriteConcernError::default() };
        let written = |code, concerned| {
            let write =
                WriteError { index: 0, code: Some(code), message: String::new(), details: None };
            Error::new(ErrorKind::Write(Box::new(WriteFailure {
                address: "a:1".parse().unwrap(),
                write_errors: vec![write],
                write_concern_errors: vec![concern(concerned)],
                result: BulkWriteResult::default(),
            })))
        };
        let limit = Duration::from_millis(7);
        for error in [command(50, &["Odd"]), written(50, 64), written(11000, 50)] {
            let (words, code) = (error.to_string(), error.code());
            assert!(!error.clone().within(None).is_timeout(), "{error}");
            let partial = error.partial_result().is_some();
            let error = error.within(Some(limit));
            assert!(error.is_timeout() && error.is_from_server(), "{error}");
            assert!(error.to_string().contains("7 ms") && error.to_string().contains(&words));
            assert_eq!((error.code(), error.partial_result().is_some()), (code, partial));
        }
        assert!(command(50, &["Odd"]).within(Some(limit)).has_label("Odd"));
        assert!(!command(91, &[]).within(Some(limit)).is_timeout());
    }

    #[test]
    fn a_redacted_error_keeps_its_code_and_labels_and_no_words() {
        let error = CommandError {
            code: Some(18),
            code_name: Some("AuthenticationFailed".to_owned()),
            message: "the password \"secret\" is wrong".to_owned(),
            labels: vec!["Odd".to_owned()],
            ..CommandError::default()
        };
        let (address, error) = ("a:1".parse().unwrap(), Box::new(error));
        let reply = rawdoc! { "ok": 0, "errmsg": "secret" };
        let error = Error::new(ErrorKind::Command { address, error, reply, sent: 0 }).redacted();
        assert_eq!(error.to_string(), "a:1: (redacted) (AuthenticationFailed, code 18)");
        assert!(error.has_label("Odd") && error.code() == Some(18));
        assert!(error.reply().unwrap().get("errmsg").unwrap().is_none());
    }

    #[test]
    fn codes_become_labels_only_for_servers_that_do_not_label() {
        for (version, expected) in [(8, true), (9, false)] {
            let mut error = command(91, &[]);
            label_for_retryable_write(&mut error, version);
            assert_eq!(error.is_retryable_write(), expected);
        }
        let address = "a:1".parse().unwrap();
        let cause = ConnectionError::Closed { inside_a_message: false };
        let mut error = Error::new(ErrorKind::Connection { address, cause });
        label_for_retryable_write(&mut error, 21);
        assert!(error.is_retryable_write());
    }

    #[test]
    fn a_cleared_pool_is_worth_another_attempt() {
        let address = "a:1".parse().unwrap();
        let error = Error::new(ErrorKind::CheckOut(CheckOutError::PoolCleared { address }));
        assert!(error.is_retryable_read());
    }
}
