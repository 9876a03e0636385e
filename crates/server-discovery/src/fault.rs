//! Why a server is Unknown.
//!
//! Every Unknown that once was known has a reason and a time: `quorate doctor`, the client's
//! selection error and the event log all show these words.

use std::fmt;
use std::sync::Arc;

use quorate_protocol::{
    CommandError, ElectionId, ErrorCode, MonotonicTime, ServerAddress, SetVersion,
};

/// The last error related to a server, and when it was noticed.
///
/// Compared by what happened, not by when: the same failure twice is no change.
#[derive(Clone, Debug)]
pub struct ServerError {
    fault: Arc<ServerFault>,
    at: MonotonicTime,
}

impl ServerError {
    pub(crate) fn new(fault: ServerFault, at: MonotonicTime) -> Self {
        Self { fault: Arc::new(fault), at }
    }

    /// What happened.
    pub fn fault(&self) -> &ServerFault {
        &self.fault
    }

    /// When it was noticed.
    pub fn at(&self) -> MonotonicTime {
        self.at
    }
}

impl PartialEq for ServerError {
    fn eq(&self, other: &Self) -> bool {
        self.fault == other.fault
    }
}

impl Eq for ServerError {}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fault.fmt(f)
    }
}

/// What can be wrong with a server, worded to name the component at fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ServerFault {
    /// A check failed.
    #[error("{0}")]
    Check(CheckFailure),
    /// An operation or the handshake of a pooled connection failed.
    #[error("{0}")]
    Application(ApplicationError),
    /// The server claims to be primary by an election that is over.
    ///
    /// The specification prescribes the beginning of this text.
    #[error(
        "primary marked stale due to electionId/setVersion mismatch, \
         {reported} is stale compared to {newest}"
    )]
    StalePrimary {
        /// What it reported.
        reported: ElectionTuple,
        /// The newest that any primary has reported.
        newest: ElectionTuple,
    },
    /// Another member was found to be primary.
    ///
    /// The specification prescribes the beginning of this text.
    #[error("primary marked stale due to discovery of newer primary {newer}")]
    NewerPrimary {
        /// The new primary.
        newer: ServerAddress,
    },
    /// The connection string names another set.
    #[error(
        "the connection string says replicaSet={expected}, the server says {}; \
         correct replicaSet in the connection string or connect to a member of {expected}",
        found.as_deref().map_or("it belongs to no set".to_owned(), |name| format!("it is in {name}"))
    )]
    SetNameMismatch {
        /// The name in the connection string.
        expected: String,
        /// The name in the reply.
        found: Option<String>,
    },
}

/// What identifies an election, as the specification's error texts print it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElectionTuple {
    /// The election.
    pub election_id: Option<ElectionId>,
    /// The configuration.
    pub set_version: Option<SetVersion>,
}

impl fmt::Display for ElectionTuple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(")?;
        match &self.election_id {
            Some(id) => write!(f, "{id}, ")?,
            None => f.write_str("null, ")?,
        }
        match &self.set_version {
            Some(version) => write!(f, "{version})"),
            None => f.write_str("null)"),
        }
    }
}

/// Why a check did not end in a usable reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckFailure {
    /// What kind of failure it was; it decides what follows.
    pub kind: CheckFailureKind,
    /// What the shell knows about it.
    pub message: String,
}

impl CheckFailure {
    /// A failure of this kind.
    pub fn new(kind: CheckFailureKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }
}

impl fmt::Display for CheckFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

quorate_protocol::named! {
    /// The kinds of failed checks.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    #[non_exhaustive]
    pub enum CheckFailureKind {
        /// The connection could not be made, or broke.
        Network = "network",
        /// Nothing came in time.
        NetworkTimeout = "timeout",
        /// The server answered `ok: 0`.
        Command = "command",
        /// The server answered with something that is no reply to hello.
        Malformed = "malformed",
        /// We gave the check up because an operation found the server unreachable.
        Cancelled = "cancelled",
    }
}

impl CheckFailureKind {
    /// Whether the specification calls this a network error (a timeout is one).
    pub const fn is_network(self) -> bool {
        matches!(self, Self::Network | Self::NetworkTimeout)
    }
}

/// Why an application's operation, or the handshake of its connection, failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ApplicationError {
    /// The connection broke.
    Network(String),
    /// Nothing came in time.
    NetworkTimeout(String),
    /// The server answered with an error: see [`CommandError::of_server`].
    Command(Box<CommandError>),
    /// Anything else that kept a connection from being established: a name that does not resolve,
    /// a certificate that does not convince.
    Establishment(String),
}

impl fmt::Display for ApplicationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(message)
            | Self::NetworkTimeout(message)
            | Self::Establishment(message) => f.write_str(message),
            Self::Command(error) => error.fmt(f),
        }
    }
}

/// What a command error says about the member that sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateChange {
    /// The member is up but takes no writes.
    NotWritablePrimary,
    /// The member can serve nothing at the moment.
    Recovering,
    /// The member is about to be gone.
    ShuttingDown,
}

/// Whether the member that sent an error has changed its state, by its code, or by its message if and
/// only if there is no code.
pub(crate) fn state_change(error: &CommandError) -> Option<StateChange> {
    let message = &error.message;
    match error.code.map(ErrorCode) {
        Some(ErrorCode::INTERRUPTED_AT_SHUTDOWN | ErrorCode::SHUTDOWN_IN_PROGRESS) => {
            Some(StateChange::ShuttingDown)
        }
        Some(
            ErrorCode::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE
            | ErrorCode::NOT_PRIMARY_OR_SECONDARY
            | ErrorCode::PRIMARY_STEPPED_DOWN,
        ) => Some(StateChange::Recovering),
        Some(
            ErrorCode::NOT_WRITABLE_PRIMARY
            | ErrorCode::NOT_PRIMARY_NO_SECONDARY_OK
            | ErrorCode::LEGACY_NOT_PRIMARY,
        ) => Some(StateChange::NotWritablePrimary),
        Some(_) => None,
        None if message.contains("not master or secondary")
            || message.contains("node is recovering") =>
        {
            Some(StateChange::Recovering)
        }
        None if message.contains("not master") => Some(StateChange::NotWritablePrimary),
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(code: Option<i32>, message: &str) -> CommandError {
        CommandError { code, message: message.to_owned(), ..CommandError::default() }
    }

    #[test]
    fn codes_alone_decide_when_there_is_one() {
        for code in [11600, 91] {
            assert_eq!(state_change(&error(Some(code), "")), Some(StateChange::ShuttingDown));
        }
        for code in [11602, 13436, 189] {
            assert_eq!(state_change(&error(Some(code), "")), Some(StateChange::Recovering));
        }
        for code in [10107, 13435, 10058] {
            assert_eq!(state_change(&error(Some(code), "")), Some(StateChange::NotWritablePrimary));
        }
        assert_eq!(state_change(&error(Some(1), "not master")), None);
        assert_eq!(state_change(&error(Some(0), "node is recovering")), None);
    }

    #[test]
    fn messages_decide_without_a_code() {
        let change = |message| state_change(&error(None, message));
        assert_eq!(change("not master"), Some(StateChange::NotWritablePrimary));
        assert_eq!(change("not master or secondary"), Some(StateChange::Recovering));
        assert_eq!(change("x node is recovering y"), Some(StateChange::Recovering));
        assert_eq!(change("not primary"), None);
    }

    #[test]
    fn the_same_failure_later_is_no_change() {
        let fault = ServerFault::Check(CheckFailure::new(CheckFailureKind::Network, "refused"));
        let early = ServerError::new(fault.clone(), MonotonicTime::ZERO);
        let late = ServerError::new(fault, MonotonicTime::from_millis(1));
        assert_eq!(early, late);
    }

    #[test]
    fn a_wrong_set_name_tells_both_names() {
        let fault = |found: Option<&str>| {
            let found = found.map(str::to_owned);
            ServerFault::SetNameMismatch { expected: "rs_dev".to_owned(), found }.to_string()
        };
        assert!(fault(Some("rs0")).contains("replicaSet=rs_dev, the server says it is in rs0"));
        assert!(fault(None).contains("belongs to no set"));
    }
}
