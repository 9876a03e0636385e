//! The probes of one server: its name, its addresses, its ports, TLS and plain hello.
//!
//! Collects facts and judges nothing. Each stage is tried only if the one before it succeeded, and
//! each has the same bound on its time.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use quorate_client::TlsOptions;
use quorate_client::dial::{
    ConnectErrorKind, Connection, ConnectionError, Connector, ConnectorOptions, Request, Stream,
    Tls,
};
use quorate_protocol::{ErrorCode, HelloCommand, HelloReply, ServerAddress};
use quorate_wire::{command_error, later_hello, parse_hello};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// `SSLHandshakeFailed`: what our own server says to a client that does not encrypt.
pub(crate) const TLS_REQUIRED: i32 = ErrorCode::SSL_HANDSHAKE_FAILED.0;

/// How many addresses of one name are tried.
const MAX_ADDRESSES: usize = 16;

/// Everything that was learnt about a server by asking it.
#[derive(Clone, Debug)]
pub(crate) struct ServerProbe {
    pub(crate) address: ServerAddress,
    /// Its addresses, or why there are none. `None` for a unix socket.
    pub(crate) resolved: Option<Result<Vec<SocketAddr>, String>>,
    /// The result of connecting to each of them.
    pub(crate) ports: Vec<(SocketAddr, Result<Duration, PortFault>)>,
    /// The result of hello, with TLS as the connection string wants it.
    pub(crate) hello: Option<Result<Answer, HelloFault>>,
    /// The result of the other way (TLS instead of plain, or plain instead of TLS); tried if the wanted
    /// one failed.
    pub(crate) otherwise: Option<Result<Answer, HelloFault>>,
}

/// Why no server took a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PortFault {
    /// The host says no.
    Refused,
    /// Nothing comes back.
    Silent,
    /// Anything else.
    Other(String),
}

/// A reply to hello.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    /// The server's reply.
    pub(crate) reply: Arc<HelloReply>,
    /// How long it took.
    pub(crate) round_trip: Duration,
    /// How far its clock is ahead of ours, in milliseconds, if it told the time.
    pub(crate) clock_ahead_ms: Option<i64>,
}

/// Why there is no reply to hello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HelloFault {
    /// The server closed the connection without a word.
    Closed,
    /// Nothing came in time.
    Silent,
    /// The server answered with an error.
    Refused {
        /// Its number.
        code: Option<i32>,
        text: String,
    },
    /// The bytes are no reply.
    Malformed(String),
    /// The certificate or the handshake does not convince.
    Tls(String),
    /// The connection could not be made.
    Connect(String),
}

impl std::fmt::Display for HelloFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Closed => f.write_str("the server closed the connection without a word"),
            Self::Silent => f.write_str("no reply in time"),
            Self::Refused { text, .. } => write!(f, "the server answered with an error: {text}"),
            Self::Malformed(text) => write!(f, "what came is no reply: {text}"),
            Self::Tls(text) => write!(f, "the TLS handshake failed: {text}"),
            Self::Connect(text) => f.write_str(text),
        }
    }
}

/// How servers are asked.
#[derive(Clone, Debug)]
pub(crate) struct Prober {
    /// The bound of each stage.
    pub(crate) limit: Duration,
    /// As the connection string wants it; `None` for plain.
    pub(crate) tls: Option<Tls>,
    /// TLS that takes any certificate, to see whether a server speaks it at all.
    pub(crate) any_tls: Tls,
}

impl Prober {
    /// A prober that uses TLS with these options, or none. Fails if a certificate file cannot be
    /// used.
    pub(crate) fn new(limit: Duration, tls: Option<&TlsOptions>) -> Result<Self, String> {
        let any = TlsOptions { allow_invalid_certificates: true, ..TlsOptions::default() };
        Ok(Self {
            limit,
            tls: tls.map(Tls::new).transpose().map_err(|error| error.to_string())?,
            any_tls: Tls::new(&any).map_err(|error| error.to_string())?,
        })
    }

    /// Asks a server everything.
    pub(crate) async fn probe(&self, address: &ServerAddress) -> ServerProbe {
        let mut probe = ServerProbe {
            address: address.clone(),
            resolved: None,
            ports: Vec::new(),
            hello: None,
            otherwise: None,
        };
        if let Some(port) = address.port() {
            let resolved = self.resolve(address.host(), port).await;
            for socket in resolved.iter().flatten() {
                probe.ports.push((*socket, self.dial(*socket).await));
            }
            probe.resolved = Some(resolved);
            if !probe.ports.iter().any(|(_, result)| result.is_ok()) {
                return probe;
            }
        }
        let hello = self.hello(address, self.tls.clone()).await;
        // A server that answers with an error was understood, and no other way would be better,
        // unless the error is that it wants the other way.
        let failed = match &hello {
            Err(HelloFault::Refused { code, .. }) => *code == Some(TLS_REQUIRED),
            other => other.is_err(),
        };
        probe.hello = Some(hello);
        if failed && !address.is_unix() {
            let other = if self.tls.is_some() { None } else { Some(self.any_tls.clone()) };
            probe.otherwise = Some(self.hello(address, other).await);
        }
        probe
    }

    async fn resolve(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
        if let Ok(ip) = host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(ip, port)]);
        }
        match timeout(self.limit, tokio::net::lookup_host((host, port))).await {
            Ok(Ok(found)) => {
                let mut addresses: Vec<SocketAddr> = Vec::new();
                for address in found.take(MAX_ADDRESSES) {
                    if !addresses.contains(&address) {
                        addresses.push(address);
                    }
                }
                match addresses.is_empty() {
                    true => Err("the name has no address".to_owned()),
                    false => Ok(addresses),
                }
            }
            Ok(Err(error)) => Err(plain(&error)),
            Err(_) => Err("the resolver does not answer".to_owned()),
        }
    }

    async fn dial(&self, socket: SocketAddr) -> Result<Duration, PortFault> {
        let began = Instant::now();
        match timeout(self.limit, TcpStream::connect(socket)).await {
            Ok(Ok(_)) => Ok(began.elapsed()),
            Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
                Err(PortFault::Refused)
            }
            Ok(Err(error)) => Err(PortFault::Other(plain(&error))),
            Err(_) => Err(PortFault::Silent),
        }
    }

    async fn hello(&self, address: &ServerAddress, tls: Option<Tls>) -> Result<Answer, HelloFault> {
        let connect_timeout = Some(self.limit);
        let options = ConnectorOptions { connect_timeout, tls, ..ConnectorOptions::default() };
        let stream =
            Connector::new(options).connect(address).await.map_err(|error| match error.kind {
                ConnectErrorKind::Tls(text) => HelloFault::Tls(text),
                ConnectErrorKind::TlsStream(_) => HelloFault::Closed,
                ConnectErrorKind::TimedOut(_) => HelloFault::Silent,
                other => HelloFault::Connect(other.to_string()),
            })?;
        match timeout(self.limit, exchange(stream)).await {
            Ok(result) => result,
            Err(_) => Err(HelloFault::Silent),
        }
    }
}

async fn exchange(stream: Stream) -> Result<Answer, HelloFault> {
    let mut connection = Connection::new(stream);
    let hello = later_hello(HelloCommand::Legacy, |_| {});
    let began = Instant::now();
    let reply = connection.round_trip(Request::new(&hello)).await.map_err(fault)?;
    let round_trip = began.elapsed();
    let document = reply.body();
    if let Ok(Some(error)) = command_error(document) {
        return Err(HelloFault::Refused { code: error.code, text: error.to_string() });
    }
    let reply = parse_hello(document).map_err(|error| HelloFault::Malformed(error.to_string()))?;
    let told = document.get_datetime("localTime").ok();
    let clock_ahead_ms = told.zip(wall_clock_ms()).map(|(told, ours)| {
        // The server read its clock about half a round trip ago.
        let travelled = i64::try_from(round_trip.as_millis() / 2).unwrap_or(0);
        told.timestamp_millis().saturating_add(travelled).saturating_sub(ours)
    });
    let answer = Answer { reply: Arc::new(reply), round_trip, clock_ahead_ms };
    connection.shut_down().await;
    Ok(answer)
}

fn fault(error: ConnectionError) -> HelloFault {
    match error {
        ConnectionError::Closed { .. } => HelloFault::Closed,
        ConnectionError::Io(error) => match error.kind() {
            io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::UnexpectedEof => HelloFault::Closed,
            // An alert after the TLS handshake, such as a missing client certificate.
            io::ErrorKind::InvalidData => HelloFault::Tls(plain(&error)),
            _ => HelloFault::Connect(plain(&error)),
        },
        other => HelloFault::Malformed(other.to_string()),
    }
}

fn wall_clock_ms() -> Option<i64> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    i64::try_from(since.as_millis()).ok()
}

/// An error of the operating system without its number, which says nothing to people.
fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or(&text);
    text.trim_start_matches("failed to lookup address information: ").to_owned()
}
