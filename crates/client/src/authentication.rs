//! Proving to a server who we are: SCRAM-SHA-256, SCRAM-SHA-1 and X.509.
//!
//! Owns the conversations of the authentication specification (`source/auth/auth.md`), the first
//! step of which rides on the handshake where the server takes it ("speculative authentication"),
//! and the choice of mechanism where the user made none. The arithmetic of SCRAM is in `scram`.

mod scram;

use std::fmt;
use std::sync::Arc;

use bson::raw::{RawDocument, RawDocumentBuf};
use bson::spec::BinarySubtype;
use bson::{Binary, RawBsonRef, rawdoc};
use quorate_connection_string::{Credential, EXTERNAL, Mechanism};
use quorate_protocol::ServerAddress;
use quorate_wire::{CommandError, command_error};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::connection::{Connection, ConnectionError, Request};

pub use scram::{
    KeyCache, MAX_ITERATIONS, MIN_ITERATIONS, ScramClient, ScramError, ScramHash, ScramKeys,
    ServerFirst, ServerSignature,
};

/// How many messages a SASL conversation may take. SCRAM takes three.
const MAX_SASL_STEPS: usize = 5;

/// Authenticates the connections of one client. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Authenticator {
    credential: Arc<Credential>,
    cache: Arc<KeyCache>,
}

/// The first step, made before the handshake that carries it.
#[derive(Debug)]
pub struct Attempt {
    method: Method,
}

#[derive(Debug)]
enum Method {
    Scram(ScramClient),
    X509,
}

impl Authenticator {
    /// An authenticator for a credential.
    ///
    /// # Errors
    ///
    /// If its mechanism is not supported.
    pub fn new(credential: Credential) -> Result<Self, UnsupportedMechanism> {
        match credential.mechanism {
            None | Some(Mechanism::ScramSha1 | Mechanism::ScramSha256 | Mechanism::X509) => {
                Ok(Self { credential: Arc::new(credential), cache: Arc::default() })
            }
            Some(mechanism) => Err(UnsupportedMechanism(mechanism)),
        }
    }

    /// `saslSupportedMechs` of the handshake, if the mechanism is still to be found out.
    pub fn mechanism_question(&self) -> Option<String> {
        let user = self.credential.user_name.as_ref()?;
        self.credential.mechanism.is_none().then(|| format!("{}.{user}", self.credential.source))
    }

    /// Makes the first step.
    ///
    /// # Errors
    ///
    /// If there is no randomness for a nonce.
    pub fn begin(&self) -> Result<Attempt, ScramError> {
        let hash = match self.credential.mechanism {
            Some(Mechanism::X509) => return Ok(Attempt { method: Method::X509 }),
            Some(Mechanism::ScramSha1) => ScramHash::Sha1,
            _ => ScramHash::Sha256,
        };
        let client = ScramClient::new(hash, self.user())?;
        Ok(Attempt { method: Method::Scram(client) })
    }

    /// `speculativeAuthenticate` of the handshake.
    pub fn speculative_command(&self, attempt: &Attempt) -> RawDocumentBuf {
        let mut command = self.first_command(attempt);
        command.append(bson::raw::cstr!("db"), self.source(attempt));
        command
    }

    /// Ends the authentication of a connection. `speculative` is the server's answer to the first
    /// step, `mechanisms` its answer to the question.
    ///
    /// # Errors
    ///
    /// If the server refuses, misbehaves, or the connection breaks. The error says for whom and
    /// where.
    pub async fn finish<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        connection: &mut Connection<S>,
        address: &ServerAddress,
        attempt: Attempt,
        speculative: Option<&RawDocument>,
        mechanisms: Option<&[String]>,
    ) -> Result<(), AuthenticationError> {
        let attempt = match speculative {
            Some(_) => attempt,
            None => self.renegotiate(attempt, mechanisms).map_err(|error| {
                self.error(address, ScramHash::Sha256.mechanism(), error.into())
            })?,
        };
        let mechanism = match &attempt.method {
            Method::Scram(client) => client.hash().mechanism(),
            Method::X509 => Mechanism::X509.name(),
        };
        let first_reply = match speculative {
            Some(reply) => Ok(reply.to_owned()),
            None => self.send(connection, self.first_command(&attempt), &attempt).await,
        };
        let outcome = match (first_reply, &attempt.method) {
            (Err(cause), _) => Err(cause),
            (Ok(_), Method::X509) => Ok(()),
            (Ok(reply), Method::Scram(client)) => {
                self.converse(connection, client, &attempt, reply).await
            }
        };
        outcome.map_err(|cause| self.error(address, mechanism, cause))
    }

    /// Chooses the mechanism by what the server said of the user: SHA-256 if it is there, SHA-1
    /// otherwise.
    fn renegotiate(
        &self,
        attempt: Attempt,
        mechanisms: Option<&[String]>,
    ) -> Result<Attempt, ScramError> {
        let sha256 = ScramHash::Sha256.mechanism();
        let offered = mechanisms.is_some_and(|names| names.iter().any(|name| name == sha256));
        if self.credential.mechanism.is_some() || offered {
            return Ok(attempt);
        }
        let client = ScramClient::new(ScramHash::Sha1, self.user())?;
        Ok(Attempt { method: Method::Scram(client) })
    }

    async fn converse<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        connection: &mut Connection<S>,
        client: &ScramClient,
        attempt: &Attempt,
        reply: RawDocumentBuf,
    ) -> Result<(), AuthenticationCause> {
        let step = SaslStep::read(&reply)?;
        let first = client.on_server_first(step.payload)?;
        let keys = self.keys(&first).await?;
        let (message, signature) = first.final_message(&keys);
        let conversation = step.conversation_id;
        let mut message = message;
        let mut verified = false;
        for _ in 0..MAX_SASL_STEPS {
            let command = rawdoc! {
                "saslContinue": 1,
                "conversationId": conversation,
                "payload": binary(&message),
            };
            let reply = self.send(connection, command, attempt).await?;
            let step = SaslStep::read(&reply)?;
            if !verified {
                signature.verify(step.payload)?;
                verified = true;
            }
            if step.done {
                return Ok(());
            }
            // Servers that know no `skipEmptyExchange` want one more message, an empty one.
            message.clear();
        }
        Err(AuthenticationCause::Endless)
    }

    async fn keys(&self, first: &ServerFirst) -> Result<ScramKeys, AuthenticationCause> {
        if let Some(keys) = first.cached_keys(&self.cache) {
            return Ok(keys);
        }
        let (credential, cache) = (Arc::clone(&self.credential), Arc::clone(&self.cache));
        let first = first.clone();
        let computed = tokio::task::spawn_blocking(move || {
            let user = credential.user_name.as_deref().unwrap_or_default();
            let password = credential.password.as_ref().map_or("", |secret| secret.expose());
            first.compute_keys(user, password, &cache)
        });
        match computed.await {
            Ok(keys) => Ok(keys?),
            Err(_) => Err(AuthenticationCause::ShuttingDown),
        }
    }

    fn first_command(&self, attempt: &Attempt) -> RawDocumentBuf {
        match &attempt.method {
            Method::Scram(client) => rawdoc! {
                "saslStart": 1,
                "mechanism": client.hash().mechanism(),
                "payload": binary(&client.first_message()),
                "autoAuthorize": 1,
                "options": { "skipEmptyExchange": true },
            },
            Method::X509 => {
                let mut command =
                    rawdoc! { "authenticate": 1, "mechanism": Mechanism::X509.name() };
                if let Some(user) = &self.credential.user_name {
                    command.append(bson::raw::cstr!("user"), user.as_str());
                }
                command
            }
        }
    }

    async fn send<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        connection: &mut Connection<S>,
        mut command: RawDocumentBuf,
        attempt: &Attempt,
    ) -> Result<RawDocumentBuf, AuthenticationCause> {
        command.append(bson::raw::cstr!("$db"), self.source(attempt));
        let reply = connection.round_trip(Request::new(&command)).await?;
        match command_error(reply.body()) {
            Ok(None) => Ok(reply.body().to_owned()),
            Ok(Some(error)) => Err(AuthenticationCause::Refused(Box::new(error))),
            Err(error) => Err(AuthenticationCause::Malformed(error.to_string())),
        }
    }

    fn source(&self, attempt: &Attempt) -> &str {
        match attempt.method {
            Method::X509 => EXTERNAL,
            Method::Scram(_) => &self.credential.source,
        }
    }

    fn user(&self) -> &str {
        self.credential.user_name.as_deref().unwrap_or_default()
    }

    /// The error of a conversation that took too long.
    pub fn timed_out(&self, address: &ServerAddress) -> AuthenticationError {
        let mechanism = self.credential.mechanism.unwrap_or(Mechanism::ScramSha256);
        self.error(address, mechanism.name(), AuthenticationCause::TimedOut)
    }

    fn error(
        &self,
        address: &ServerAddress,
        mechanism: &'static str,
        cause: AuthenticationCause,
    ) -> AuthenticationError {
        AuthenticationError {
            address: address.clone(),
            user: self.credential.user_name.clone(),
            mechanism,
            source_database: self.credential.source.clone(),
            cause,
        }
    }
}

fn binary(text: &str) -> Binary {
    Binary { subtype: BinarySubtype::Generic, bytes: text.as_bytes().to_vec() }
}

/// A reply to `saslStart` or `saslContinue`.
struct SaslStep<'a> {
    conversation_id: i32,
    payload: &'a str,
    done: bool,
}

impl<'a> SaslStep<'a> {
    fn read(reply: &'a RawDocument) -> Result<Self, AuthenticationCause> {
        let malformed = |field: &str| AuthenticationCause::Malformed(field.to_owned());
        let get =
            |field: &'static str| reply.get(field).ok().flatten().ok_or_else(|| malformed(field));
        let conversation_id = match get("conversationId")? {
            RawBsonRef::Int32(id) => id,
            RawBsonRef::Int64(id) => i32::try_from(id).map_err(|_| malformed("conversationId"))?,
            RawBsonRef::Double(id) => id as i32,
            _ => return Err(malformed("conversationId")),
        };
        let payload = match get("payload")? {
            RawBsonRef::Binary(binary) => {
                std::str::from_utf8(binary.bytes).map_err(|_| malformed("payload"))?
            }
            RawBsonRef::String(text) => text,
            _ => return Err(malformed("payload")),
        };
        let done = get("done")?.as_bool().ok_or_else(|| malformed("done"))?;
        Ok(Self { conversation_id, payload, done })
    }
}

/// A mechanism that this client does not speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "authMechanism={} is not supported; use SCRAM-SHA-256, SCRAM-SHA-1 or MONGODB-X509",
    .0.name()
)]
pub struct UnsupportedMechanism(pub Mechanism);

/// Authentication failed: for whom, where, and why.
#[derive(Clone, Debug)]
pub struct AuthenticationError {
    /// The server.
    pub address: ServerAddress,
    /// The user; `None` if a certificate names it.
    pub user: Option<String>,
    /// The mechanism.
    pub mechanism: &'static str,
    /// `authSource`: the database that knows the user.
    pub source_database: String,
    /// Why.
    pub cause: AuthenticationCause,
}

impl fmt::Display for AuthenticationError {
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
        match &self.cause {
            AuthenticationCause::Refused(_) => {
                f.write_str("; check the user, the password and authSource")
            }
            _ => Ok(()),
        }
    }
}

impl std::error::Error for AuthenticationError {}

/// Why authentication failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AuthenticationCause {
    /// The server says no.
    #[error("{0}")]
    Refused(Box<CommandError>),
    /// The conversation went wrong.
    #[error("{0}")]
    Scram(#[from] ScramError),
    /// The connection broke.
    #[error("{0}")]
    Connection(#[from] ConnectionError),
    /// `connectTimeoutMS` passed.
    #[error("no answer within connectTimeoutMS")]
    TimedOut,
    /// A reply without what it must hold.
    #[error("the server's reply has no usable {0}")]
    Malformed(String),
    /// The server never says that it is done.
    #[error("the server does not come to an end")]
    Endless,
    /// The runtime shuts down.
    #[error("the client is shutting down")]
    ShuttingDown,
}

#[cfg(test)]
mod tests;
