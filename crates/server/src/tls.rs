//! TLS for clients that arrive and for other members that are called.
//!
//! Owns which connections must be encrypted and what a certificate says about its holder; reading
//! the files is left to `quorate-tls-config`. By rustls with the ring provider.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use quorate_tls_config::{
    FileError, Subject, SubjectError, read_authorities, read_certificates, read_key,
};
use tokio::io::AsyncReadExt;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{ClientConfig, Error, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::net::{Socket, Stream, TcpStream};

/// How long a client may take to agree on TLS, or to say that it wants none.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The length of a message's header, which tells whether a client speaks without TLS.
const HEADER_LENGTH: usize = 16;

/// The kinds of message that a client may begin with: OP_QUERY, OP_COMPRESSED and OP_MSG.
const OPENING_CODES: [i32; 3] = [2004, 2012, 2013];

/// Which connections are encrypted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsMode {
    /// None, whatever files are given.
    Disabled,
    /// Clients choose; other members are called without TLS.
    Allow,
    /// Clients choose; other members are called with TLS.
    Prefer,
    /// All of them.
    #[default]
    Require,
}

impl TlsMode {
    /// The modes by the names that users write.
    pub const NAMED: [(&str, Self); 4] = [
        ("disabled", Self::Disabled),
        ("allow", Self::Allow),
        ("prefer", Self::Prefer),
        ("require", Self::Require),
    ];
}

/// How a server encrypts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsOptions {
    /// The file of the server's certificate, with those that vouch for it after it.
    pub certificate: PathBuf,
    /// The file of its private key.
    pub key: PathBuf,
    /// The file of the authorities that vouch for clients and other members.
    pub authority: Option<PathBuf>,
    /// Which connections are encrypted.
    pub mode: TlsMode,
    /// Whether clients without a certificate are turned away.
    pub require_client_certificate: bool,
}

/// TLS could not be set up. The files or options are at fault.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file is of no use.
    #[error(transparent)]
    File(#[from] FileError),
    /// The own certificate has no name.
    #[error(transparent)]
    Subject(#[from] SubjectError),
    /// Certificates are required, and no authority is given to check them.
    #[error("client certificates cannot be checked without authorities; give --tls-ca as well")]
    NoAuthority,
    /// rustls refused.
    #[error("certificate and key do not work: {0}; check that they belong together")]
    Config(#[from] Error),
}

/// What TLS tells about a client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Peer {
    /// The subject of its certificate, if it presented one that was verified.
    pub(crate) subject: Option<Subject>,
    /// The name by which it called this server.
    pub(crate) server_name: Option<String>,
}

/// An accepted connection.
pub(crate) enum Arrival {
    /// It may be served.
    Welcome(Stream, Peer),
    /// It speaks without TLS, which is not allowed. The refusal can still be sent.
    WithoutTls(Stream),
}

/// TLS, configured.
pub(crate) struct Tls {
    mode: TlsMode,
    acceptor: TlsAcceptor,
    connector: Option<TlsConnector>,
    subject: Subject,
}

impl Tls {
    /// Reads the files; none if TLS is disabled.
    pub(crate) fn new(options: &TlsOptions) -> Result<Option<Self>, TlsError> {
        if options.mode == TlsMode::Disabled {
            return Ok(None);
        }
        let chain = read_certificates(&options.certificate)?;
        let key = read_key(&options.key)?;
        let subject = chain.first().map(Subject::of).transpose()?.unwrap_or_default();
        let authorities = options.authority.as_deref().map(read_authorities).transpose()?;
        let authorities = authorities.map(Arc::new);
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()?;
        let builder = match &authorities {
            None if options.require_client_certificate => return Err(TlsError::NoAuthority),
            None => builder.with_no_client_auth(),
            Some(authorities) => {
                let verifier = WebPkiClientVerifier::builder_with_provider(
                    Arc::clone(authorities),
                    Arc::clone(&provider),
                );
                let verifier = match options.require_client_certificate {
                    true => verifier,
                    false => verifier.allow_unauthenticated(),
                };
                let verifier =
                    verifier.build().map_err(|error| Error::General(error.to_string()))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let acceptor = builder.with_single_cert(chain.clone(), key.clone_key())?;
        let connector = authorities.map(|authorities: Arc<RootCertStore>| {
            ClientConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()?
                .with_root_certificates(authorities)
                .with_client_auth_cert(chain, key)
                .map(|config| TlsConnector::from(Arc::new(config)))
        });
        Ok(Some(Self {
            mode: options.mode,
            acceptor: TlsAcceptor::from(Arc::new(acceptor)),
            connector: connector.transpose()?,
            subject,
        }))
    }

    /// The subject of the own certificate.
    pub(crate) fn subject(&self) -> &Subject {
        &self.subject
    }

    /// Whether clients must use TLS.
    pub(crate) fn is_required(&self) -> bool {
        self.mode == TlsMode::Require
    }

    /// Whether other members are called with TLS.
    pub(crate) fn calls_encrypted(&self) -> bool {
        matches!(self.mode, TlsMode::Prefer | TlsMode::Require)
    }

    /// Whether a certificate authority vouches for other members.
    pub(crate) fn has_authority(&self) -> bool {
        self.connector.is_some()
    }

    /// Makes the TLS handshake, if the client begins one.
    pub(crate) async fn accept(&self, socket: TcpStream) -> io::Result<Arrival> {
        let arriving = async {
            let (socket, plain) = look(socket).await?;
            if plain {
                let stream: Stream = Box::new(socket);
                return Ok(match self.mode {
                    TlsMode::Require => Arrival::WithoutTls(stream),
                    _ => Arrival::Welcome(stream, Peer::default()),
                });
            }
            let stream = self.acceptor.accept(socket).await?;
            let (_, session) = stream.get_ref();
            let certificate = session.peer_certificates().and_then(<[_]>::first);
            let subject = certificate.map(Subject::of).transpose().map_err(io::Error::other)?;
            let server_name = session.server_name().map(str::to_owned);
            let peer = Peer { subject, server_name };
            Ok(Arrival::Welcome(Box::new(stream), peer))
        };
        let arrived = tokio::time::timeout(HANDSHAKE_TIMEOUT, arriving).await;
        arrived.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
    }

    /// Encrypts a connection to another member, and makes sure that it is the one called.
    pub(crate) async fn call(&self, host: &str, socket: TcpStream) -> io::Result<Stream> {
        let Some(connector) = self.connector.as_ref().filter(|_| self.calls_encrypted()) else {
            return Ok(socket.into());
        };
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        let stream = connector.connect(name, socket).await?;
        Ok(Box::new(stream))
    }
}

/// Reads the first bytes, which are a message's header if the client speaks without TLS.
/// They are read again from the socket that it returns.
async fn look(mut socket: TcpStream) -> io::Result<(impl Socket, bool)> {
    let mut header = [0; HEADER_LENGTH];
    socket.read_exact(&mut header).await?;
    let [.., a, b, c, d] = header;
    let plain = OPENING_CODES.contains(&i32::from_le_bytes([a, b, c, d]));
    let (reader, writer) = socket.into_split();
    Ok((tokio::io::join(io::Cursor::new(header).chain(reader), writer), plain))
}
