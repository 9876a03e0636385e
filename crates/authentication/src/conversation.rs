//! The commands that carry an authentication from a client to a server, as a state machine.
//!
//! Follows `source/auth/auth.md`: the first step may ride on the handshake ("speculative
//! authentication"), and where the user names no mechanism, the server's answer about the user
//! decides between SHA-256 and SHA-1.
//!
//! ```text
//!            reply                    keys                       reply, done
//!   First ───────────▶ Deriving ─────────────▶ Proving ─────────────────────▶ Done
//!     │                   │ keys remembered       ▲  │ reply, not done          ▲
//!     │                   └───────────────────────┘  └─▶ Proving (an empty      │
//!     │ reply (X.509)                                     message)              │
//!     └─────────────────────────────────────────────────────────────────────────┘
//! ```

use std::fmt;
use std::sync::Arc;

use bson::raw::{RawDocument, RawDocumentBuf, cstr};
use bson::spec::BinarySubtype;
use bson::{Binary, RawBsonRef, rawdoc};
use quorate_connection_string::{Credential, EXTERNAL, Mechanism};
use quorate_protocol::ServerAddress;
use quorate_wire::{AppendSome, command_error};

use crate::error::{
    AuthenticationCause, AuthenticationError, ConversationError, UnsupportedMechanism,
};
use crate::scram::{
    KeyCache, ScramClient, ScramError, ScramKeys, ScramMechanism, ServerFirst, ServerSignature,
};

/// How many messages a SASL conversation may take after the first. SCRAM takes two.
const MAX_SASL_STEPS: usize = 5;

/// The random part of a nonce, in bytes.
const NONCE_LENGTH: usize = 24;

/// How many random bytes one authentication takes: a nonce, and another one should the server not
/// take the first guess.
pub const RANDOMNESS_LENGTH: usize = 2 * NONCE_LENGTH;

/// Random bytes for one authentication. Never use them twice.
#[derive(Clone)]
pub struct Randomness(pub [u8; RANDOMNESS_LENGTH]);

impl fmt::Debug for Randomness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Randomness")
    }
}

/// Authenticates the connections of one credential. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Authenticator {
    credential: Arc<Credential>,
    cache: Arc<KeyCache>,
}

/// The first step, made before the handshake that carries it.
#[derive(Clone, Debug)]
pub struct Attempt {
    method: Method,
    randomness: Randomness,
}

#[derive(Clone, Debug)]
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
    pub fn begin(&self, randomness: &Randomness) -> Attempt {
        let method = match self.credential.mechanism {
            Some(Mechanism::X509) => Method::X509,
            Some(Mechanism::ScramSha1) => self.scram(ScramMechanism::ScramSha1, randomness, 0),
            _ => self.scram(ScramMechanism::ScramSha256, randomness, 0),
        };
        Attempt { method, randomness: randomness.clone() }
    }

    /// `speculativeAuthenticate` of the handshake.
    pub fn speculative_command(&self, attempt: &Attempt) -> RawDocumentBuf {
        let mut command = self.first_command(&attempt.method);
        command.append(cstr!("db"), self.source(&attempt.method));
        command
    }

    /// Goes on after the handshake. `speculative` is the server's answer to the first step,
    /// `mechanisms` its answer to the question.
    ///
    /// # Errors
    ///
    /// If the server's answer to the first step is none.
    pub fn converse(
        &self,
        attempt: Attempt,
        speculative: Option<&RawDocument>,
        mechanisms: Option<&[String]>,
    ) -> Result<Conversation, ConversationError> {
        let method = match speculative {
            Some(_) => attempt.method,
            None => self.renegotiate(attempt, mechanisms),
        };
        let mut conversation =
            Conversation { authenticator: self.clone(), method, state: State::First };
        if let Some(reply) = speculative {
            conversation.on_first_reply(reply)?;
        }
        Ok(conversation)
    }

    /// The error of this credential at a server.
    pub fn error<C>(
        &self,
        address: &ServerAddress,
        mechanism: &'static str,
        cause: AuthenticationCause<C>,
    ) -> AuthenticationError<C> {
        AuthenticationError {
            address: address.clone(),
            user: self.credential.user_name.clone(),
            mechanism,
            source_database: self.credential.source.clone(),
            cause,
        }
    }

    /// The mechanism that is tried first.
    pub fn preferred_mechanism(&self) -> &'static str {
        self.credential.mechanism.unwrap_or(Mechanism::ScramSha256).name()
    }

    /// Chooses the mechanism by what the server said of the user: SHA-256 if it is there, SHA-1
    /// otherwise.
    fn renegotiate(&self, attempt: Attempt, mechanisms: Option<&[String]>) -> Method {
        let sha256 = ScramMechanism::ScramSha256.name();
        let offered = mechanisms.is_some_and(|names| names.iter().any(|name| name == sha256));
        match self.credential.mechanism {
            // The first nonce may have been sent already, so another one is taken.
            None if offered => self.scram(ScramMechanism::ScramSha256, &attempt.randomness, 1),
            None => self.scram(ScramMechanism::ScramSha1, &attempt.randomness, 1),
            Some(Mechanism::ScramSha1) => {
                self.scram(ScramMechanism::ScramSha1, &attempt.randomness, 1)
            }
            Some(Mechanism::ScramSha256) => {
                self.scram(ScramMechanism::ScramSha256, &attempt.randomness, 1)
            }
            Some(_) => attempt.method,
        }
    }

    fn scram(&self, mechanism: ScramMechanism, randomness: &Randomness, half: usize) -> Method {
        let nonce = &randomness.0[half * NONCE_LENGTH..][..NONCE_LENGTH];
        let user = self.credential.user_name.as_deref().unwrap_or_default();
        Method::Scram(ScramClient::new(mechanism, user, nonce))
    }

    fn first_command(&self, method: &Method) -> RawDocumentBuf {
        match method {
            Method::Scram(client) => rawdoc! {
                "saslStart": 1,
                "mechanism": client.mechanism().name(),
                "payload": binary(&client.first_message()),
                "autoAuthorize": 1,
                "options": { "skipEmptyExchange": true },
            },
            Method::X509 => {
                let mut command =
                    rawdoc! { "authenticate": 1, "mechanism": Mechanism::X509.name() };
                command.append_some(cstr!("user"), self.credential.user_name.as_deref());
                command
            }
        }
    }

    fn source(&self, method: &Method) -> &str {
        match method {
            Method::X509 => EXTERNAL,
            Method::Scram(_) => &self.credential.source,
        }
    }
}

/// What to do next.
#[derive(Debug)]
pub enum Action {
    /// Send this command, and pass the reply to [`Conversation::on_reply`].
    Send(RawDocumentBuf),
    /// Compute the keys, on a thread that may block for milliseconds, and pass them to
    /// [`Conversation::on_keys`].
    Derive(KeyDerivation),
    /// Nothing: we are who we say we are.
    Done,
}

/// The costly part, to be done anywhere.
#[derive(Clone, Debug)]
pub struct KeyDerivation {
    credential: Arc<Credential>,
    cache: Arc<KeyCache>,
    first: ServerFirst,
}

impl KeyDerivation {
    /// Computes the keys. Takes milliseconds.
    ///
    /// # Errors
    ///
    /// If the password holds characters that SASLprep forbids.
    pub fn run(&self) -> Result<ScramKeys, ScramError> {
        let user = self.credential.user_name.as_deref().unwrap_or_default();
        let password = self.credential.password.as_ref().map_or("", |secret| secret.expose());
        self.first.compute_keys(user, password, &self.cache)
    }
}

/// An authentication under way: ask what to do, do it, tell the outcome.
#[derive(Debug)]
pub struct Conversation {
    authenticator: Authenticator,
    method: Method,
    state: State,
}

#[derive(Debug)]
enum State {
    First,
    Deriving { first: ServerFirst, id: i32 },
    Proving { message: String, signature: Option<ServerSignature>, id: i32, steps: usize },
    Done,
}

impl Conversation {
    /// What to do next. Asking again gives the same answer.
    pub fn next_action(&self) -> Action {
        match &self.state {
            State::First => Action::Send(self.in_source(self.first_command())),
            State::Deriving { first, .. } => Action::Derive(KeyDerivation {
                credential: Arc::clone(&self.authenticator.credential),
                cache: Arc::clone(&self.authenticator.cache),
                first: first.clone(),
            }),
            State::Proving { message, id, .. } => Action::Send(self.in_source(rawdoc! {
                "saslContinue": 1,
                "conversationId": *id,
                "payload": binary(message),
            })),
            State::Done => Action::Done,
        }
    }

    /// Takes the reply to what was sent.
    ///
    /// # Errors
    ///
    /// If the server refuses or misbehaves. The conversation is of no use then.
    pub fn on_reply(&mut self, reply: &RawDocument) -> Result<(), ConversationError> {
        match command_error(reply) {
            Ok(None) => {}
            Ok(Some(error)) => return Err(ConversationError::Refused(Box::new(error))),
            Err(error) => return Err(ConversationError::Malformed(error.to_string())),
        }
        match &mut self.state {
            State::First => self.on_first_reply(reply),
            State::Proving { message, signature, steps, .. } => {
                let step = SaslStep::read(reply)?;
                if let Some(signature) = signature.take() {
                    signature.verify(step.payload)?;
                }
                *steps += 1;
                if step.done {
                    self.state = State::Done;
                } else if *steps >= MAX_SASL_STEPS {
                    return Err(ConversationError::Endless);
                } else {
                    // Servers that know no `skipEmptyExchange` want one more message, an empty one.
                    message.clear();
                }
                Ok(())
            }
            State::Deriving { .. } | State::Done => {
                unreachable!("there is a reply only to what was sent")
            }
        }
    }

    /// Takes the keys that were computed.
    pub fn on_keys(&mut self, keys: &ScramKeys) {
        if let State::Deriving { first, id } = &self.state {
            self.state = proving(first, keys, *id);
        }
    }

    /// The mechanism.
    pub fn mechanism(&self) -> &'static str {
        match &self.method {
            Method::Scram(client) => client.mechanism().name(),
            Method::X509 => Mechanism::X509.name(),
        }
    }

    fn on_first_reply(&mut self, reply: &RawDocument) -> Result<(), ConversationError> {
        let Method::Scram(client) = &self.method else {
            self.state = State::Done;
            return Ok(());
        };
        let step = SaslStep::read(reply)?;
        let first = client.on_server_first(step.payload)?;
        let id = step.conversation_id;
        self.state = match first.cached_keys(&self.authenticator.cache) {
            Some(keys) => proving(&first, &keys, id),
            None => State::Deriving { first, id },
        };
        Ok(())
    }

    fn first_command(&self) -> RawDocumentBuf {
        self.authenticator.first_command(&self.method)
    }

    fn in_source(&self, mut command: RawDocumentBuf) -> RawDocumentBuf {
        command.append(cstr!("$db"), self.authenticator.source(&self.method));
        command
    }
}

fn proving(first: &ServerFirst, keys: &ScramKeys, id: i32) -> State {
    let (message, signature) = first.final_message(keys);
    State::Proving { message, signature: Some(signature), id, steps: 0 }
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
    fn read(reply: &'a RawDocument) -> Result<Self, ConversationError> {
        let malformed = |field: &str| ConversationError::Malformed(field.to_owned());
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

#[cfg(test)]
mod tests;
