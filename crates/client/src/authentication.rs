//! Carries an authentication over a connection.
//!
//! What to say is decided by `quorate-authentication`, which knows no sockets; this file sends it,
//! and computes keys on a thread that may block.

use std::time::Duration;

use quorate_authentication::{Action, Attempt, Conversation, Randomness};
use quorate_protocol::ServerAddress;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;

use crate::connection::{Connection, ConnectionError, Request};

pub use quorate_authentication::{Authenticator, ConversationError, UnsupportedMechanism};

/// Authentication failed: the user, the server, and the cause.
pub type AuthenticationError = quorate_authentication::AuthenticationError<ConnectionError>;

/// Why authentication failed.
pub type AuthenticationCause = quorate_authentication::AuthenticationCause<ConnectionError>;

/// What the handshake told about an authentication that it carried along.
#[derive(Clone, Copy, Debug, Default)]
pub struct HandshakeAnswers<'a> {
    /// `speculativeAuthenticate`: the answer to the first step.
    pub speculative: Option<&'a bson::raw::RawDocument>,
    /// `saslSupportedMechs`: the answer to the question.
    pub mechanisms: Option<&'a [String]>,
}

/// Random bytes for one authentication; `None` if the operating system has none.
pub(crate) fn randomness() -> Option<Randomness> {
    let mut bytes = [0; quorate_authentication::RANDOMNESS_LENGTH];
    getrandom::fill(&mut bytes).ok()?;
    Some(Randomness(bytes))
}

/// Ends the authentication of a connection after its handshake. Each answer of the server may take
/// as long as `limit` says. Fails if the server refuses, misbehaves, or the connection breaks. The
/// error names the user and the server.
pub(crate) async fn authenticate<S: AsyncRead + AsyncWrite + Unpin>(
    authenticator: &Authenticator,
    connection: &mut Connection<S>,
    address: &ServerAddress,
    attempt: Attempt,
    answers: HandshakeAnswers<'_>,
    limit: Option<Duration>,
) -> Result<(), AuthenticationError> {
    let begun = authenticator.converse(attempt, answers.speculative, answers.mechanisms);
    let mut conversation = begun.map_err(|error| {
        authenticator.error(address, authenticator.preferred_mechanism(), error.into())
    })?;
    converse(connection, &mut conversation, limit)
        .await
        .map_err(|cause| authenticator.error(address, conversation.mechanism(), cause))
}

/// Bounded by the conversation, which refuses a server that does not come to an end.
async fn converse<S: AsyncRead + AsyncWrite + Unpin>(
    connection: &mut Connection<S>,
    conversation: &mut Conversation,
    limit: Option<Duration>,
) -> Result<(), AuthenticationCause> {
    loop {
        match conversation.next_action() {
            Action::Send(command) => {
                let exchange = connection.round_trip(Request::new(&command));
                // Deriving keys is our own work and not limited, however long it takes.
                let reply = match limit {
                    None => exchange.await,
                    Some(limit) => {
                        timeout(limit, exchange).await.map_err(|_| AuthenticationCause::TimedOut)?
                    }
                };
                let reply = reply.map_err(AuthenticationCause::Connection)?;
                conversation.on_reply(reply.body())?;
            }
            Action::Derive(derivation) => {
                let keys = tokio::task::spawn_blocking(move || derivation.run()).await;
                let keys = keys.map_err(|_| AuthenticationCause::ShuttingDown)?;
                conversation.on_keys(&keys.map_err(ConversationError::from)?);
            }
            Action::Done => return Ok(()),
        }
    }
}
