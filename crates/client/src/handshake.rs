//! The first exchange on every connection.
//!
//! Owns the `hello` document of the MongoDB Handshake specification: metadata, compression,
//! stable API, load balancing, and the authentication that rides on it. Monitors shake hands too,
//! without authentication and without asking for mechanisms.

use std::sync::Arc;
use std::time::Duration;

use bson::raw::{RawDocumentBuf, cstr};
use quorate_authentication::Attempt;
use quorate_protocol::{HelloCommand, HelloReply, ServerAddress};
use quorate_server_discovery::{ApplicationError, HandshakeProgress};
use quorate_wire::{
    AppendSome, CommandError, CommandFields, CompressorId, ConnectionLimits, FieldError,
    FirstHello, HelloError, KnownMembers, command_error, later_hello, parse_handshake_of,
    parse_hello_of,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;

use crate::authentication::{
    AuthenticationCause, AuthenticationError, Authenticator, ConversationError, HandshakeAnswers,
    UnsupportedMechanism, authenticate, randomness,
};
use crate::connection::{Connection, ConnectionError, Request};
use crate::metadata::{DriverInfo, Environment, client_metadata};
use crate::net::{ConnectError, Connector, Stream};
use crate::options::ClientOptions;

/// The version of the client back-pressure specification that we follow.
const BACKPRESSURE: &str = "2";

/// `apiVersion` and its companions: what the application declares to depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerApi {
    /// `apiVersion`.
    pub version: String,
    /// `apiStrict`.
    pub strict: Option<bool>,
    /// `apiDeprecationErrors`.
    pub deprecation_errors: Option<bool>,
}

impl ServerApi {
    /// Adds the declaration to a command.
    pub fn append_to(&self, command: &mut impl CommandFields) {
        command.append(cstr!("apiVersion"), self.version.as_str());
        command.append_some(cstr!("apiStrict"), self.strict);
        command.append_some(cstr!("apiDeprecationErrors"), self.deprecation_errors);
    }
}

/// What a client says on every new connection.
#[derive(Clone, Debug)]
pub struct Handshake {
    /// The `client` document.
    pub metadata: RawDocumentBuf,
    /// `compressors`, the preferred one first.
    pub compressors: Vec<CompressorId>,
    /// `zlibCompressionLevel`.
    pub zlib_level: Option<i32>,
    /// `loadBalanced`.
    pub load_balanced: bool,
    /// The stable API, if it is declared.
    pub server_api: Option<ServerApi>,
    /// Authenticates the connection, if the server asks for it.
    pub authenticator: Option<Authenticator>,
    /// The lists of members that the replies have shown.
    pub known_members: Arc<KnownMembers>,
}

/// What a connection is good for, learnt in its handshake.
#[derive(Clone, Debug)]
pub struct ConnectionFacts {
    /// The reply, as news about the server.
    pub hello: HelloReply,
    /// What the server takes.
    pub limits: ConnectionLimits,
    /// `connectionId`: what the server calls the connection.
    pub server_connection_id: Option<i64>,
    /// `saslSupportedMechs`: what the server said of the user's mechanisms, if it was asked.
    pub mechanisms: Option<Vec<String>>,
}

impl Handshake {
    /// Says who we are, and no more.
    pub fn new(app_name: Option<&str>, wrappers: &[DriverInfo], environment: &Environment) -> Self {
        Self {
            metadata: client_metadata(app_name, wrappers, environment),
            compressors: Vec::new(),
            zlib_level: None,
            load_balanced: false,
            server_api: None,
            authenticator: None,
            known_members: Arc::default(),
        }
    }

    /// What a client with these options says, without compression.
    ///
    /// # Errors
    ///
    /// If its mechanism is not supported.
    pub fn of(
        options: &ClientOptions,
        environment: &Environment,
    ) -> Result<Self, UnsupportedMechanism> {
        Ok(Self {
            load_balanced: options.discovery.load_balanced,
            server_api: options.server_api.clone(),
            authenticator: options.credential.clone().map(Authenticator::new).transpose()?,
            ..Self::new(options.app_name.as_deref(), &options.wrappers, environment)
        })
    }

    /// Which command begins a connection: `hello` where the server is sure to know it.
    pub fn first_command(&self) -> HelloCommand {
        HelloCommand::first(self.server_api.is_some() || self.load_balanced)
    }

    /// A hello that carries nothing of the handshake, for connections that have shaken hands.
    pub fn plain_hello(&self, command: HelloCommand) -> RawDocumentBuf {
        later_hello(command, |hello| self.declare(hello))
    }

    fn hello(&self, attempt: Option<&Attempt>) -> RawDocumentBuf {
        let proving = self.authenticator.as_ref().zip(attempt);
        let question = proving.and_then(|(authenticator, _)| authenticator.mechanism_question());
        let speculative =
            proving.map(|(authenticator, attempt)| authenticator.speculative_command(attempt));
        let first = FirstHello {
            backpressure: Some(BACKPRESSURE),
            client: Some(&self.metadata),
            compressors: Some(&self.compressors),
            load_balanced: self.load_balanced,
            mechanisms_of: question.as_deref(),
            speculative: speculative.as_deref(),
        };
        first.command(self.first_command(), |hello| self.declare(hello))
    }

    fn declare(&self, command: &mut RawDocumentBuf) {
        if let Some(api) = &self.server_api {
            api.append_to(command);
        }
    }

    /// Shakes hands on a monitoring connection: no authentication, and no compression, for all
    /// that follows is hello, which is never compressed.
    ///
    /// # Errors
    ///
    /// If the connection breaks or the reply is not one.
    pub async fn shake_as_monitor<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        connection: &mut Connection<S>,
    ) -> Result<HelloReply, HandshakeError> {
        let hello = self.hello(None);
        exchange_hello(connection, Request::new(&hello), &self.known_members).await
    }

    /// Opens a connection, shakes hands and authenticates. Each of the latter may take `limit`.
    ///
    /// # Errors
    ///
    /// If there is no stream, and as [`shake`](Self::shake).
    pub async fn open(
        &self,
        connector: &Connector,
        address: &ServerAddress,
        limit: Option<Duration>,
    ) -> Result<(Connection<Stream>, ConnectionFacts), EstablishError> {
        self.open_telling(connector, address, limit, |_| ()).await
    }

    /// [`open`](Self::open), which tells what the server is before it authenticates.
    pub(crate) async fn open_telling(
        &self,
        connector: &Connector,
        address: &ServerAddress,
        limit: Option<Duration>,
        told: impl FnOnce(&HelloReply),
    ) -> Result<(Connection<Stream>, ConnectionFacts), EstablishError> {
        let stream = connector.connect(address).await.map_err(EstablishError::Connect)?;
        let mut connection = Connection::new(stream);
        let facts = self.shake_telling(&mut connection, address, limit, told).await?;
        Ok((connection, facts))
    }

    /// Shakes hands and authenticates. Each of the two may take `limit`.
    ///
    /// # Errors
    ///
    /// If the connection breaks, the reply is not one, or the server does not accept us.
    pub async fn shake<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        connection: &mut Connection<S>,
        address: &ServerAddress,
        limit: Option<Duration>,
    ) -> Result<ConnectionFacts, EstablishError> {
        self.shake_telling(connection, address, limit, |_| ()).await
    }

    async fn shake_telling<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        connection: &mut Connection<S>,
        address: &ServerAddress,
        limit: Option<Duration>,
        told: impl FnOnce(&HelloReply),
    ) -> Result<ConnectionFacts, EstablishError> {
        let failed =
            |cause| EstablishError::Handshake { address: address.clone(), cause: Box::new(cause) };
        let attempt = match &self.authenticator {
            None => None,
            Some(authenticator) => {
                let none = || "the operating system has no random numbers".to_owned();
                let randomness =
                    randomness().ok_or_else(|| failed(HandshakeError::Unready(none())))?;
                Some(authenticator.begin(&randomness))
            }
        };
        let hello = self.hello(attempt.as_ref());
        let reply = {
            let exchange = async {
                let reply = connection.round_trip(Request::new(&hello)).await?;
                Ok(reply.body().to_owned())
            };
            within(limit, exchange, HandshakeError::TimedOut).await.map_err(failed)?
        };
        refuse_errors(&reply).map_err(failed)?;
        let handshake = parse_handshake_of(&reply, &self.known_members)
            .map_err(|error| failed(error.into()))?;
        if self.load_balanced && handshake.hello.service_id.is_none() {
            return Err(failed(HandshakeError::NoServiceId));
        }
        told(&handshake.hello);
        connection.set_max_message_size(handshake.limits.max_message_size);
        let compressor = handshake.compressor(&self.compressors, self.zlib_level);
        connection.set_compressor(
            compressor.map_err(|error| failed(HandshakeError::Unready(error.to_string())))?,
        );
        // An arbiter has no users, so that no client can authenticate there.
        if let (Some(authenticator), Some(attempt), false) =
            (&self.authenticator, attempt, handshake.hello.arbiter_only)
        {
            let answers = HandshakeAnswers {
                speculative: handshake.speculative_authenticate,
                mechanisms: handshake.sasl_supported_mechs.as_deref(),
            };
            let proof = authenticate(authenticator, connection, address, attempt, answers, limit);
            let proven = proof.await;
            proven.map_err(|error| EstablishError::Authentication(Box::new(error)))?;
        }
        Ok(ConnectionFacts {
            limits: handshake.limits,
            server_connection_id: handshake.connection_id,
            mechanisms: handshake.sasl_supported_mechs,
            hello: handshake.hello,
        })
    }
}

async fn within<T>(
    limit: Option<Duration>,
    work: impl Future<Output = Result<T, HandshakeError>>,
    late: HandshakeError,
) -> Result<T, HandshakeError> {
    match limit {
        None => work.await,
        Some(limit) => timeout(limit, work).await.unwrap_or(Err(late)),
    }
}

/// Sends a hello and reads the reply, which may be the first of several.
///
/// # Errors
///
/// If the connection breaks or the reply is not one.
pub async fn exchange_hello<S: AsyncRead + AsyncWrite + Unpin>(
    connection: &mut Connection<S>,
    request: Request<'_>,
    known: &KnownMembers,
) -> Result<HelloReply, HandshakeError> {
    let reply = connection.round_trip(request).await?;
    refuse_errors(reply.body())?;
    Ok(parse_hello_of(reply.body(), known)?)
}

/// Reads the next reply to a hello that allowed several. Fails as [`exchange_hello`].
pub(crate) async fn next_hello<S: AsyncRead + AsyncWrite + Unpin>(
    connection: &mut Connection<S>,
    known: &KnownMembers,
) -> Result<HelloReply, HandshakeError> {
    let reply = connection.next_reply().await?;
    refuse_errors(reply.body())?;
    Ok(parse_hello_of(reply.body(), known)?)
}

fn refuse_errors(reply: &bson::raw::RawDocument) -> Result<(), HandshakeError> {
    match command_error(reply)? {
        Some(error) => Err(HandshakeError::Refused(Box::new(error))),
        None => Ok(()),
    }
}

/// Why a hello brought no usable reply.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// The connection broke.
    #[error("{0}")]
    Connection(#[from] ConnectionError),
    /// `connectTimeoutMS` passed.
    #[error("no reply to hello within connectTimeoutMS")]
    TimedOut,
    /// `ok: 0`.
    #[error("the server refuses hello: {0}")]
    Refused(Box<CommandError>),
    /// The reply cannot be read.
    #[error("{0}")]
    Malformed(#[from] HelloError),
    /// The reply cannot even be read as an error.
    #[error("the server's hello reply cannot be read: {0}")]
    Broken(#[from] FieldError),
    /// Behind a load balancer, a server must say which service it is.
    #[error(
        "driver attempted to initialize in load balancing mode, but the server does not support \
         this mode; remove loadBalanced=true or connect through a load balancer"
    )]
    NoServiceId,
    /// Something on our side is missing.
    #[error("the handshake cannot be made: {0}")]
    Unready(String),
}

impl HandshakeError {
    /// Whether the stream broke or time ran out.
    pub fn is_network(&self) -> bool {
        match self {
            Self::Connection(error) => error.is_network(),
            Self::TimedOut => true,
            _ => false,
        }
    }
}

/// Why a pooled connection could not be established.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EstablishError {
    /// There is no stream.
    #[error("{0}")]
    Connect(ConnectError),
    /// The hello failed.
    #[error("the handshake with {address} failed: {cause}")]
    Handshake {
        /// The server.
        address: ServerAddress,
        /// The cause.
        cause: Box<HandshakeError>,
    },
    /// The server did not accept us.
    #[error("{0}")]
    Authentication(Box<AuthenticationError>),
}

impl EstablishError {
    /// Whether the error carries `SystemOverloadedError` and `RetryableError`: the network failed
    /// while connecting or saying hello, which is how an overloaded server looks.
    pub fn is_overload(&self) -> bool {
        match self {
            Self::Connect(error) => error.may_be_overload(),
            Self::Handshake { cause, .. } => cause.is_network(),
            Self::Authentication(_) => false,
        }
    }

    /// What the server said, if it refused.
    pub fn command_error(&self) -> Option<&CommandError> {
        match self {
            Self::Handshake { cause, .. } => match &**cause {
                HandshakeError::Refused(error) => Some(error),
                _ => None,
            },
            Self::Authentication(error) => match &error.cause {
                AuthenticationCause::Conversation(ConversationError::Refused(error)) => Some(error),
                _ => None,
            },
            Self::Connect(_) => None,
        }
    }

    /// How far the connection was.
    pub fn progress(&self) -> HandshakeProgress {
        match self {
            Self::Connect(_) | Self::Handshake { .. } => HandshakeProgress::Connecting,
            Self::Authentication(_) => HandshakeProgress::Authenticating,
        }
    }

    /// The same as the discovery core wants to hear it.
    pub fn to_application_error(&self) -> ApplicationError {
        let message = self.to_string();
        match self {
            Self::Connect(error) if error.is_timeout() => ApplicationError::NetworkTimeout(message),
            Self::Connect(error) if error.may_be_overload() => ApplicationError::Network(message),
            Self::Connect(_) => ApplicationError::Establishment(message),
            Self::Handshake { cause, .. } => match &**cause {
                HandshakeError::TimedOut => ApplicationError::NetworkTimeout(message),
                HandshakeError::Refused(error) => {
                    ApplicationError::Command(Box::new(error.of_server().unwrap_or_default()))
                }
                cause if cause.is_network() => ApplicationError::Network(message),
                _ => ApplicationError::Establishment(message),
            },
            Self::Authentication(error) => match &error.cause {
                AuthenticationCause::Conversation(ConversationError::Refused(refusal)) => {
                    let refusal = refusal.of_server().unwrap_or_default();
                    ApplicationError::Command(Box::new(CommandError { message, ..refusal }))
                }
                AuthenticationCause::TimedOut => ApplicationError::NetworkTimeout(message),
                AuthenticationCause::Connection(cause) if cause.is_network() => {
                    ApplicationError::Network(message)
                }
                _ => ApplicationError::Establishment(message),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::rawdoc;
    use quorate_connection_string::ConnectionString;
    use quorate_wire::{Decoder, MsgFlags, MsgWriter, Payload, RequestId};
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

    fn handshake(uri: &str) -> Handshake {
        let string = ConnectionString::parse(uri).unwrap();
        let authenticator =
            string.credential().map(|credential| Authenticator::new(credential.clone()).unwrap());
        Handshake {
            metadata: rawdoc! { "driver": { "name": "test" } },
            compressors: vec![CompressorId::Zstd, CompressorId::Snappy],
            zlib_level: None,
            load_balanced: string.options().load_balanced == Some(true),
            server_api: None,
            authenticator,
            known_members: Arc::default(),
        }
    }

    fn address() -> ServerAddress {
        "db.example:27017".parse().unwrap()
    }

    /// Answers each request by the next of these replies; returns the requests.
    async fn serve(mut stream: DuplexStream, replies: Vec<RawDocumentBuf>) -> Vec<RawDocumentBuf> {
        let mut decoder = Decoder::new();
        let mut seen = Vec::new();
        for reply in replies {
            let id = loop {
                if let Some(message) = decoder.next_message().unwrap() {
                    let Payload::Msg(msg) = message.payload else { panic!("{message:?}") };
                    seen.push(msg.body().to_owned());
                    break message.header.request_id;
                }
                assert_ne!(stream.read_buf(decoder.input()).await.unwrap(), 0);
            };
            let mut out = Vec::new();
            MsgWriter::new(&mut out, RequestId(1), id, MsgFlags::NONE, &reply)
                .finish(None)
                .unwrap();
            stream.write_all(&out).await.unwrap();
        }
        seen
    }

    async fn shake(
        handshake: &Handshake,
        replies: Vec<RawDocumentBuf>,
    ) -> (Result<ConnectionFacts, EstablishError>, Vec<RawDocumentBuf>) {
        let (client, server) = tokio::io::duplex(1 << 16);
        let mut connection = Connection::new(client);
        let address = address();
        tokio::join!(handshake.shake(&mut connection, &address, None), serve(server, replies))
    }

    #[tokio::test]
    async fn the_first_message_is_legacy_hello_with_everything_in_it() {
        let reply = rawdoc! { "ok": 1, "ismaster": true, "maxWriteBatchSize": 7, "helloOk": true };
        let (facts, seen) = shake(&handshake("mongodb://a"), vec![reply]).await;
        assert_eq!(facts.unwrap().limits.max_write_batch_size, 7);
        let hello = &seen[0];
        let keys: Vec<_> = hello.iter().map(|e| e.unwrap().0.as_str().to_owned()).collect();
        assert_eq!(keys, ["isMaster", "helloOk", "backpressure", "client", "compression", "$db"]);
        assert_eq!(hello.get_str("backpressure").unwrap(), "2");
    }

    #[tokio::test]
    async fn a_mechanism_is_asked_for_and_the_first_step_sent_along() {
        let (result, seen) = shake(
            &handshake("mongodb://ann:secret@a/?authSource=users"),
            vec![
                rawdoc! { "ok": 1, "saslSupportedMechs": ["SCRAM-SHA-256"] },
                rawdoc! { "ok": 0, "code": 18, "errmsg": "Authentication failed.",
                "codeName": "AuthenticationFailed" },
            ],
        )
        .await;
        assert_eq!(seen[0].get_str("saslSupportedMechs").unwrap(), "users.ann");
        let speculative = seen[0].get_document("speculativeAuthenticate").unwrap();
        assert_eq!(speculative.get_str("mechanism").unwrap(), "SCRAM-SHA-256");
        assert_eq!(speculative.get_str("db").unwrap(), "users");
        assert_eq!(seen[1].get_str("$db").unwrap(), "users");
        let error = result.unwrap_err();
        assert_eq!(
            error.to_string(),
            "authentication failed for user \"ann\" (SCRAM-SHA-256, database users) at \
             db.example:27017: Authentication failed. (AuthenticationFailed, code 18); check the \
             user, the password and authSource"
        );
        assert_eq!(error.progress(), HandshakeProgress::Authenticating);
        assert!(!error.is_overload());
    }

    #[tokio::test]
    async fn without_an_answer_about_mechanisms_sha_1_is_used() {
        let refusal = rawdoc! { "ok": 0, "errmsg": "no" };
        let replies = vec![rawdoc! { "ok": 1 }, refusal];
        let (_, seen) = shake(&handshake("mongodb://ann:secret@a"), replies).await;
        assert_eq!(seen[1].get_str("mechanism").unwrap(), "SCRAM-SHA-1");
    }

    #[tokio::test]
    async fn x509_says_nothing_of_a_user_it_was_not_given() {
        let uri = "mongodb://a/?authMechanism=MONGODB-X509&tls=true";
        let (result, seen) =
            shake(&handshake(uri), vec![rawdoc! { "ok": 1 }, rawdoc! { "ok": 1 }]).await;
        assert!(result.is_ok());
        assert_eq!(seen[1].get_str("mechanism").unwrap(), "MONGODB-X509");
        assert_eq!(seen[1].get_str("$db").unwrap(), "$external");
        assert!(seen[1].get("user").unwrap().is_none());
    }

    #[tokio::test]
    async fn arbiters_are_not_authenticated_with() {
        let reply = rawdoc! { "ok": 1, "setName": "rs", "arbiterOnly": true };
        let (result, seen) = shake(&handshake("mongodb://ann:secret@a"), vec![reply]).await;
        assert!(result.is_ok() && seen.len() == 1);
    }

    #[tokio::test]
    async fn a_load_balanced_server_must_name_its_service() {
        let balanced = handshake("mongodb://a/?loadBalanced=true");
        let (result, seen) = shake(&balanced, vec![rawdoc! { "ok": 1 }]).await;
        assert!(seen[0].get("hello").unwrap().is_some());
        assert!(result.unwrap_err().to_string().contains("load balancing mode"));
    }

    #[tokio::test]
    async fn a_server_that_hangs_up_looks_overloaded() {
        let (client, server) = tokio::io::duplex(1 << 16);
        drop(server);
        let mut connection = Connection::new(client);
        let shaken = handshake("mongodb://a").shake(&mut connection, &address(), None).await;
        let error = shaken.unwrap_err();
        assert!(error.is_overload());
        assert!(matches!(error.to_application_error(), ApplicationError::Network(_)));
    }
}
