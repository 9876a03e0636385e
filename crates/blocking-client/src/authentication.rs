//! Logging in on a connection, before the first operation that uses it.
//!
//! What to say is decided by `quorate-authentication`; this file sends it. Checks need no login, so
//! that a wrong password hides no server: the operation that needs the login reports it. Nothing
//! is sent along with the handshake but the question for the user's mechanisms, for most connections
//! that a scan opens are never used by an operation. An arbiter has no users, so that no client logs in
//! there.

use std::time::Duration;

use quorate_authentication::{
    Action, Authenticator, ConversationError, RANDOMNESS_LENGTH, Randomness,
};
use quorate_protocol::ServerAddress;
use quorate_server_discovery::{
    ApplicationError, CommandError, HandshakeProgress, Input, ServerType,
};

use crate::client::Client;
use crate::clock::Clock;
use crate::connection::{Connection, ConnectionError, Request};
use crate::error::OperationError;

/// Authentication failed: the user, the server, and the cause.
pub type AuthenticationError = quorate_authentication::AuthenticationError<ConnectionError>;

/// Why authentication failed.
pub type AuthenticationCause = quorate_authentication::AuthenticationCause<ConnectionError>;

impl Client {
    /// Logs in on the connection to a server, unless that was done or need not be.
    pub(crate) fn log_in(&mut self, server: &ServerAddress) -> Result<(), OperationError> {
        let Some(authenticator) = self.authenticator.clone() else { return Ok(()) };
        if self.topology().server(server).map(|found| found.server_type())
            == Some(ServerType::RsArbiter)
        {
            return Ok(());
        }
        let timeout = self.options.discovery.connect_timeout;
        let Some(connection) = self.connections.get_mut(server) else { return Ok(()) };
        if connection.logged_in {
            return Ok(());
        }
        match converse(&authenticator, connection, &*self.clock, timeout) {
            Ok(()) => {
                connection.logged_in = true;
                Ok(())
            }
            Err((mechanism, cause)) => {
                let error = authenticator.error(server, mechanism, cause);
                self.login_failed(server, &error);
                Err(OperationError::Authentication(Box::new(error)))
            }
        }
    }

    /// Closes the connection, whose login is in an unknown state, and tells the core.
    fn login_failed(&mut self, server: &ServerAddress, error: &AuthenticationError) {
        let Some(connection) = self.connections.remove(server) else { return };
        let message = error.to_string();
        let cause = match &error.cause {
            AuthenticationCause::Conversation(ConversationError::Refused(refusal)) => {
                ApplicationError::Command(Box::new(CommandError {
                    message,
                    ..refusal.of_server().unwrap_or_default()
                }))
            }
            AuthenticationCause::Connection(cause) if cause.is_timeout() => {
                ApplicationError::NetworkTimeout(message)
            }
            AuthenticationCause::Connection(cause) if cause.is_network() => {
                ApplicationError::Network(message)
            }
            _ => ApplicationError::Establishment(message),
        };
        self.handle(Input::ApplicationFailed {
            server: server.clone(),
            generation: connection.generation,
            service_id: None,
            handshake: HandshakeProgress::Authenticating,
            max_wire_version: connection.max_wire_version,
            overloaded: false,
            cause,
        });
    }
}

type Failed = (&'static str, AuthenticationCause);

/// Each message within `timeout`. Bounded by the conversation, which refuses a server that does not
/// come to an end.
fn converse(
    authenticator: &Authenticator,
    connection: &mut Connection,
    clock: &dyn Clock,
    timeout: Option<Duration>,
) -> Result<(), Failed> {
    let preferred = authenticator.preferred_mechanism();
    let randomness = randomness().map_err(|cause| (preferred, cause))?;
    let attempt = authenticator.begin(&randomness);
    let mechanisms = connection.mechanisms.take();
    let mut conversation = authenticator
        .converse(attempt, None, mechanisms.as_deref())
        .map_err(|error| (preferred, error.into()))?;
    let mechanism = conversation.mechanism();
    let failed = |cause: AuthenticationCause| (mechanism, cause);
    loop {
        match conversation.next_action() {
            Action::Send(command) => {
                let reply = connection
                    .round_trip(Request::new(&command), clock, timeout)
                    .map_err(|error| failed(AuthenticationCause::Connection(error)))?;
                conversation.on_reply(&reply).map_err(|error| failed(error.into()))?;
            }
            Action::Derive(derivation) => {
                let keys = derivation.run().map_err(ConversationError::from);
                conversation.on_keys(&keys.map_err(|error| failed(error.into()))?);
            }
            Action::Done => return Ok(()),
        }
    }
}

fn randomness() -> Result<Randomness, AuthenticationCause> {
    let mut bytes = [0; RANDOMNESS_LENGTH];
    match getrandom::fill(&mut bytes) {
        Ok(()) => Ok(Randomness(bytes)),
        Err(error) => Err(AuthenticationCause::Connection(ConnectionError::Broken(
            std::io::Error::other(format!("the operating system has no random numbers: {error}")),
        ))),
    }
}
