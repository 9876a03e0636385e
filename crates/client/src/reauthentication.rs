//! Logging in again where the server asks for it.
//!
//! Follows "Reauthentication" in the authentication specification: after error 391 the same
//! connection is authenticated at once, without hello and without speculation, and the command is sent
//! once more, whether it could be retried or not. An error of either is the caller's.

use bson::raw::RawDocument;
use quorate_protocol::ErrorCode;
use quorate_wire::command_error;

use crate::authentication::{HandshakeAnswers, authenticate, randomness};
use crate::client::Inner;
use crate::error::ErrorKind;
use crate::establish::ServerEstablisher;
use crate::handshake::EstablishError;
use crate::pool::{CheckOutError, PooledConnection};

/// Whether a reply asks for another login.
pub(crate) fn wants_login(reply: &RawDocument) -> bool {
    matches!(command_error(reply), Ok(Some(error)) if error.code == Some(ErrorCode::REAUTHENTICATION_REQUIRED.0))
}

impl Inner {
    /// Logs in again on a connection. `Ok(false)` if there is no credential.
    pub(crate) async fn log_in_again(
        &self,
        connection: &mut PooledConnection<ServerEstablisher>,
    ) -> Result<bool, ErrorKind> {
        let Some(authenticator) = &self.discovery.settings().handshake.authenticator else {
            return Ok(false);
        };
        let Some(randomness) = randomness() else {
            let reason = "the operating system has no random numbers".to_owned();
            return Err(ErrorKind::BadCommand(reason));
        };
        let address = connection.address().clone();
        let facts = std::sync::Arc::clone(&connection.facts);
        let attempt = authenticator.begin(&randomness);
        let answers =
            HandshakeAnswers { speculative: None, mechanisms: facts.mechanisms.as_deref() };
        let limit = self.discovery.settings().connect_timeout;
        let work = connection.run(async |server| {
            server.login_lost = true;
            let stream = &mut server.connection;
            let proof = authenticate(authenticator, stream, &address, attempt, answers, limit);
            let proven = proof.await;
            server.login_lost = proven.is_err();
            proven.map_err(Box::new)
        });
        match work.await {
            Err(interrupted) => Err(ErrorKind::Interrupted(interrupted)),
            Ok(Ok(())) => Ok(true),
            Ok(Err(error)) => Err(ErrorKind::CheckOut(CheckOutError::NotEstablished(
                EstablishError::Authentication(error),
            ))),
        }
    }
}
