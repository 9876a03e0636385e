//! Why an authentication failed: the user, the server, the cause and the next step.

use std::fmt;

use quorate_connection_string::Mechanism;
use quorate_protocol::ServerAddress;
use quorate_wire::CommandError;

use crate::scram::ScramError;

/// A mechanism that is not spoken here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "authMechanism={} is not supported; use SCRAM-SHA-256, SCRAM-SHA-1 or MONGODB-X509",
    .0.name()
)]
pub struct UnsupportedMechanism(pub Mechanism);

/// Why a conversation came to a bad end. The server or the credential is at fault.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConversationError {
    /// The server says no.
    #[error("{0}")]
    Refused(Box<CommandError>),
    /// SCRAM went wrong.
    #[error("{0}")]
    Scram(#[from] ScramError),
    /// A reply without what it must hold.
    #[error("the server's reply has no usable {0}")]
    Malformed(String),
    /// The server never says that it is done.
    #[error("the server does not come to an end")]
    Endless,
}

/// Authentication failed: the user, the server, and the cause. `C` is what a connection fails with.
#[derive(Clone, Debug)]
pub struct AuthenticationError<C> {
    /// The server.
    pub address: ServerAddress,
    /// The user; `None` if a certificate names it.
    pub user: Option<String>,
    /// The mechanism.
    pub mechanism: &'static str,
    /// `authSource`: the database that knows the user.
    pub source_database: String,
    /// The cause.
    pub cause: AuthenticationCause<C>,
}

impl<C: fmt::Display> fmt::Display for AuthenticationError<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.user {
            Some(user) => write!(f, "authentication failed for user {user:?}")?,
            None => f.write_str("authentication failed for the client certificate")?,
        }
        write!(
            f,
            " ({}, database {}) at {}: {}",
            self.mechanism, self.source_database, self.address, self.cause
        )?;
        match (&self.cause, &self.user) {
            (AuthenticationCause::Conversation(ConversationError::Refused(_)), Some(_)) => {
                f.write_str("; check the user, the password and authSource")
            }
            (AuthenticationCause::Conversation(ConversationError::Refused(_)), None) => f
                .write_str(
                    "; create a user in $external that is named like the certificate's subject",
                ),
            _ => Ok(()),
        }
    }
}

impl<C: fmt::Debug + fmt::Display> std::error::Error for AuthenticationError<C> {}

/// Why authentication failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuthenticationCause<C> {
    /// The conversation came to a bad end.
    #[error("{0}")]
    Conversation(#[from] ConversationError),
    /// The connection broke.
    #[error("{0}")]
    Connection(C),
    /// `connectTimeoutMS` passed.
    #[error("no answer within connectTimeoutMS")]
    TimedOut,
    /// Our side ended first.
    #[error("the client is shutting down")]
    ShuttingDown,
}
