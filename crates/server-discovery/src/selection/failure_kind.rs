//! The ways in which a server fails, and a remedy for each.
//!
//! Errors differ in their words (they name the address they concern) where the remedy is the same, so
//! the verdict counts kinds instead of comparing texts.

use crate::fault::{ApplicationError, CheckFailureKind, ServerFault};

/// The ways in which a server fails, as far as they call for different remedies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum FailureKind {
    /// The server refuses or drops connections.
    Unreachable,
    /// The server does not answer in time.
    Silent,
    /// The server answers with an error.
    Rejecting,
    /// The server sends bytes that are no reply.
    Malformed,
    /// Its name, its certificate or our credentials are wrong.
    Unestablished,
    /// The server was primary by an election that is over.
    Superseded,
    /// The server belongs to another set.
    WrongSetName,
}

impl FailureKind {
    /// The kind of a server's last error. Without one, the server answered but not `ok: 1`.
    pub(super) fn of(fault: Option<&ServerFault>) -> Self {
        match fault {
            None => Self::Rejecting,
            Some(ServerFault::Check(failure)) => match failure.kind {
                CheckFailureKind::Network | CheckFailureKind::Cancelled => Self::Unreachable,
                CheckFailureKind::NetworkTimeout => Self::Silent,
                CheckFailureKind::Command => Self::Rejecting,
                CheckFailureKind::Malformed => Self::Malformed,
            },
            Some(ServerFault::Application(error)) => match error {
                ApplicationError::Network(_) => Self::Unreachable,
                ApplicationError::NetworkTimeout(_) => Self::Silent,
                ApplicationError::Command(_) => Self::Rejecting,
                ApplicationError::Establishment(_) => Self::Unestablished,
            },
            Some(ServerFault::StalePrimary { .. } | ServerFault::NewerPrimary { .. }) => {
                Self::Superseded
            }
            Some(ServerFault::SetNameMismatch { .. }) => Self::WrongSetName,
        }
    }

    /// What such a server does, after its name.
    pub(super) const fn symptom(self) -> &'static str {
        match self {
            Self::Unreachable => "cannot be reached",
            Self::Silent => "does not answer in time",
            Self::Rejecting => "answers with an error",
            Self::Malformed => "sends no valid reply",
            Self::Unestablished => "cannot be connected to",
            Self::Superseded => "lost an election",
            Self::WrongSetName => "belongs to another replica set",
        }
    }

    /// What to try.
    pub(super) const fn remedy(self) -> &'static str {
        match self {
            Self::Unreachable => {
                "check that it runs and listens on that host and port; if it requires TLS, add \
                 tls=true"
            }
            Self::Silent => {
                "check routes and firewalls between here and there; if the network is slow, raise \
                 connectTimeoutMS"
            }
            Self::Rejecting => "this is no network problem: read the error above and its log",
            Self::Malformed => {
                "something else seems to listen there: check the port, and whether it requires TLS"
            }
            Self::Unestablished => "check its name, the certificates and the credentials",
            Self::Superseded => "the next check of the set finds the new primary: try again",
            Self::WrongSetName => "correct replicaSet in the connection string",
        }
    }
}
