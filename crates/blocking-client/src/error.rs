//! Why an operation failed, with the component at fault and the next step.

use std::fmt;
use std::time::Duration;

use quorate_client_session::{Failure, SessionError, TransactionError, WriteError};
use quorate_protocol::ServerAddress;
use quorate_server_discovery::{SelectionError, SelectionFailure};
use quorate_wire::{CommandError, WriteConcernError};

use crate::authentication::{AuthenticationCause, AuthenticationError};
use crate::connection::ConnectionError;

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OperationError {
    /// No server was suitable. The failure tells about each server, and what to do.
    #[error("{0}")]
    NoServer(Box<SelectionFailure>),
    /// No server can ever be suitable: the read preference or the deployment is wrong.
    #[error(transparent)]
    Impossible(#[from] SelectionError),
    /// A server was selected, and selected again, and each time could not be talked to.
    #[error(
        "{server} was selected but cannot be used: {reason}; see whether it is restarting, then \
         try again"
    )]
    Unreachable {
        /// The server.
        server: ServerAddress,
        /// What is known about it.
        reason: String,
    },
    /// The connection failed during the operation. Whether the server has done it is not known.
    #[error("{server}: {source}; whether the operation was carried out is not known")]
    Connection {
        /// The server.
        server: ServerAddress,
        /// What went wrong.
        source: ConnectionError,
    },
    /// The server does not accept us. Nothing was sent but the login.
    #[error("{0}")]
    Authentication(Box<AuthenticationError>),
    /// The server refused the command.
    #[error("{server} answered: {error}")]
    Command {
        /// The server.
        server: ServerAddress,
        /// What it said.
        error: Box<CommandError>,
    },
    /// The server carried out a write in part.
    #[error("{server} wrote in part: {failure}")]
    Write {
        /// The server.
        server: ServerAddress,
        /// What was left undone.
        failure: Box<WriteFailure>,
    },
    /// The server's reply to a command lacks what such replies have.
    #[error("{server} sent a reply to {command} that cannot be used: {reason}")]
    BadReply {
        /// The server.
        server: ServerAddress,
        /// The command.
        command: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The server that holds the cursor is no longer part of the deployment.
    #[error("the cursor was on {server}, which is gone; run the query again")]
    CursorLost {
        /// The server.
        server: ServerAddress,
    },
    /// The session is in no state for this. Nothing was sent.
    #[error(transparent)]
    Transaction(#[from] TransactionError),
    /// An error of a transaction, with the labels that this client has found for it.
    #[error("{error}")]
    Labelled {
        /// The error.
        error: Box<OperationError>,
        /// The labels, beside those of the server.
        labels: Vec<&'static str>,
    },
    /// The commit's write concern was not met. The transaction is committed.
    #[error("{server}: the write concern of the commit was not met: {}", .error.message)]
    CommitConcern {
        /// The server.
        server: ServerAddress,
        /// What it said.
        error: Box<WriteConcernError>,
    },
    /// The caller asked for something that cannot be sent. Nothing was sent.
    #[error("{0}")]
    Misuse(String),
}

impl OperationError {
    /// The server that the error came from.
    pub fn server(&self) -> Option<&ServerAddress> {
        match self {
            Self::Unreachable { server, .. }
            | Self::Connection { server, .. }
            | Self::Command { server, .. }
            | Self::Write { server, .. }
            | Self::BadReply { server, .. }
            | Self::CommitConcern { server, .. }
            | Self::CursorLost { server } => Some(server),
            Self::Authentication(error) => Some(&error.address),
            Self::Labelled { error, .. } => error.server(),
            Self::NoServer(_) | Self::Impossible(_) | Self::Transaction(_) | Self::Misuse(_) => {
                None
            }
        }
    }

    /// Whether the error has this label, of the server's or of ours.
    pub fn has_label(&self, label: &str) -> bool {
        match self {
            Self::Command { error, .. } => error.has_label(label),
            Self::Labelled { error, labels } => labels.contains(&label) || error.has_label(label),
            _ => false,
        }
    }

    /// The server's code, if it gave one.
    pub fn code(&self) -> Option<i32> {
        match self {
            Self::Command { error, .. } => error.code,
            Self::CommitConcern { error, .. } => error.code,
            Self::Write { failure, .. } => match failure.errors.first() {
                Some(error) => error.code,
                None => failure.write_concern_error.as_ref().and_then(|error| error.code),
            },
            Self::Labelled { error, .. } => error.code(),
            _ => None,
        }
    }
}

impl Failure for OperationError {
    fn is_network(&self) -> bool {
        match self {
            Self::Connection { .. } | Self::Unreachable { .. } => true,
            Self::Authentication(error) => {
                matches!(&error.cause, AuthenticationCause::Connection(cause) if cause.is_network())
            }
            Self::Labelled { error, .. } => error.is_network(),
            _ => false,
        }
    }

    fn is_selection(&self) -> bool {
        match self {
            Self::NoServer(_) | Self::CursorLost { .. } => true,
            Self::Labelled { error, .. } => error.is_selection(),
            _ => false,
        }
    }

    /// `timeoutMS` is not this client's.
    fn is_timeout(&self) -> bool {
        false
    }

    fn is_unsent(&self) -> bool {
        match self {
            Self::NoServer(_)
            | Self::Impossible(_)
            | Self::Unreachable { .. }
            | Self::Authentication(_)
            | Self::CursorLost { .. }
            | Self::Transaction(_)
            | Self::Misuse(_) => true,
            Self::Labelled { error, .. } => error.is_unsent(),
            _ => false,
        }
    }

    fn is_write_concern_failure(&self) -> bool {
        match self {
            Self::CommitConcern { .. } => true,
            Self::Labelled { error, .. } => error.is_write_concern_failure(),
            _ => false,
        }
    }

    fn code(&self) -> Option<i32> {
        Self::code(self)
    }

    fn has_label(&self, label: &str) -> bool {
        Self::has_label(self, label)
    }

    fn add_label(&mut self, label: &'static str) {
        if self.has_label(label) {
            return;
        }
        if let Self::Labelled { labels, .. } = self {
            labels.push(label);
            return;
        }
        // Any value does for the moment in which the error moves into its box.
        let error = Box::new(std::mem::replace(self, Self::Misuse(String::new())));
        *self = Self::Labelled { error, labels: vec![label] };
    }

    fn base_backoff(&self) -> Option<Duration> {
        match self {
            Self::Command { error, .. } => error.base_backoff(),
            Self::Labelled { error, .. } => error.base_backoff(),
            _ => None,
        }
    }
}

impl From<SessionError> for OperationError {
    fn from(error: SessionError) -> Self {
        match error {
            SessionError::Transaction(error) => error.into(),
            error => Self::Misuse(error.to_string()),
        }
    }
}

/// What a write left undone, in a command that was otherwise carried out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WriteFailure {
    /// How many documents were written, matched or removed all the same.
    pub done: u64,
    /// The statements that failed.
    pub errors: Vec<WriteError>,
    /// The write was done, but not as widely as was asked for.
    pub write_concern_error: Option<WriteConcernError>,
}

impl fmt::Display for WriteFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(first) = self.errors.first() {
            write!(f, "{first}")?;
            match self.errors.len() - 1 {
                0 => {}
                others => write!(f, ", and {others} more statements failed")?,
            }
        }
        if let Some(error) = &self.write_concern_error {
            let separator = if self.errors.is_empty() { "" } else { "; " };
            write!(f, "{separator}the write concern was not met: {}", error.message)?;
        }
        write!(f, " ({} done)", self.done)
    }
}

#[cfg(test)]
mod tests {
    use quorate_client_session::is_retryable_read;

    use super::*;

    fn command(code: Option<i32>, labels: &[&str]) -> OperationError {
        let error = CommandError {
            code,
            message: "no".to_owned(),
            labels: labels.iter().map(|label| (*label).to_owned()).collect(),
            ..CommandError::default()
        };
        OperationError::Command { server: "a:1".parse().unwrap(), error: Box::new(error) }
    }

    /// The table of "Retryable Error".
    #[test]
    fn errors_that_a_failover_may_explain_are_retryable() {
        for code in [6, 7, 89, 91, 134, 189, 262, 9001, 10107, 11600, 11602, 13435, 13436] {
            assert!(is_retryable_read(&command(Some(code), &[])), "{code}");
        }
        for code in [None, Some(1), Some(10058), Some(11000)] {
            assert!(!is_retryable_read(&command(code, &[])), "{code:?}");
        }
        let broken = OperationError::Connection {
            server: "a:1".parse().unwrap(),
            source: ConnectionError::Closed { within_message: false },
        };
        assert!(is_retryable_read(&broken));
    }

    #[test]
    fn a_partial_write_tells_the_first_statement_and_counts_the_rest() {
        let error = |index| WriteError {
            index,
            code: Some(11000),
            message: "twice".to_owned(),
            details: None,
        };
        let failure = WriteFailure {
            done: 2,
            errors: vec![error(2), error(4)],
            write_concern_error: Some(WriteConcernError {
                message: "too few".to_owned(),
                ..WriteConcernError::default()
            }),
        };
        assert_eq!(
            failure.to_string(),
            "statement 2: twice (code 11000), and 1 more statements failed; the write concern was \
             not met: too few (2 done)"
        );
    }
}
