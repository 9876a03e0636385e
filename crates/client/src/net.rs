//! The one place that opens sockets.
//!
//! Owns resolving a server's name, racing its addresses, and the options of the sockets. All
//! addresses of a name are tried in the manner of "Happy Eyeballs" (RFC 8305): families alternate,
//! the next attempt starts when the last one has failed or has been silent for 250 ms, and the
//! first connection wins. TLS is configured by `tls`; the messages on a stream are left to
//! `connection`.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use quorate_protocol::ServerAddress;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use crate::tls::Tls;

/// How long an attempt may be silent before the next address is tried beside it ("Connection
/// Attempt Delay" in RFC 8305).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// How many addresses of one name are tried.
const MAX_ADDRESSES: usize = 32;

/// Opens streams to servers. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Connector {
    options: Arc<ConnectorOptions>,
}

/// How streams are opened.
#[derive(Clone, Debug, Default)]
pub struct ConnectorOptions {
    /// `connectTimeoutMS`: resolving, connecting and the TLS handshake together. `None` waits as
    /// long as the operating system does.
    pub connect_timeout: Option<Duration>,
    /// `hostMap`: where to connect instead of to the address a server advertises, for sets behind
    /// a port mapping or a tunnel. TLS still checks the advertised name.
    pub host_map: BTreeMap<ServerAddress, ServerAddress>,
    /// How to secure the stream; `None` for plain text.
    pub tls: Option<Tls>,
}

impl Connector {
    /// A connector with these options.
    pub fn new(options: ConnectorOptions) -> Self {
        Self { options: Arc::new(options) }
    }

    /// Opens a stream to a server. Dropping the future gives the attempt up.
    ///
    /// # Errors
    ///
    /// If the name does not resolve, no address answers, or TLS fails. The error names the
    /// address.
    pub async fn connect(&self, address: &ServerAddress) -> Result<Stream, ConnectError> {
        let reached = self.options.host_map.get(address).unwrap_or(address);
        let fail = |kind| ConnectError {
            address: address.clone(),
            via: (reached != address).then(|| reached.clone()),
            kind,
        };
        let attempt = self.connect_to(address, reached);
        match self.options.connect_timeout {
            None => attempt.await.map_err(fail),
            Some(limit) => match timeout(limit, attempt).await {
                Ok(result) => result.map_err(fail),
                Err(_) => Err(fail(ConnectErrorKind::TimedOut(limit))),
            },
        }
    }

    async fn connect_to(
        &self,
        advertised: &ServerAddress,
        reached: &ServerAddress,
    ) -> Result<Stream, ConnectErrorKind> {
        let Some(port) = reached.port() else {
            let stream = UnixStream::connect(reached.host()).await;
            return stream
                .map(|stream| Box::new(stream) as Stream)
                .map_err(ConnectErrorKind::connect);
        };
        let addresses = resolve(reached.host(), port).await?;
        let stream = race(addresses).await.map_err(ConnectErrorKind::connect)?;
        // Requests are written whole; waiting for more to fill a packet only delays them.
        stream.set_nodelay(true).map_err(ConnectErrorKind::connect)?;
        match &self.options.tls {
            None => Ok(Box::new(stream)),
            Some(tls) => Ok(Box::new(tls.connect(advertised.host(), stream).await?)),
        }
    }
}

async fn resolve(host: &str, port: u16) -> Result<VecDeque<SocketAddr>, ConnectErrorKind> {
    // A literal needs no resolver, and a scope ("fe80::1%2") only the resolver understands.
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(VecDeque::from([SocketAddr::new(ip, port)]));
    }
    let found = tokio::net::lookup_host((host, port))
        .await
        .map_err(|error| ConnectErrorKind::Resolve(Arc::new(error)))?;
    let addresses = alternate_families(found.take(MAX_ADDRESSES));
    if addresses.is_empty() {
        let error = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        return Err(ConnectErrorKind::Resolve(Arc::new(error)));
    }
    Ok(addresses)
}

/// Orders addresses as RFC 8305 has it: the family the resolver put first leads, then they take
/// turns, each family in the resolver's order.
fn alternate_families(addresses: impl Iterator<Item = SocketAddr>) -> VecDeque<SocketAddr> {
    let (mut first, mut second) = (VecDeque::new(), VecDeque::new());
    for address in addresses {
        match first.front() {
            Some(leader) if SocketAddr::is_ipv6(leader) != address.is_ipv6() => {
                second.push_back(address);
            }
            _ => first.push_back(address),
        }
    }
    let mut ordered = VecDeque::new();
    while let Some(address) = first.pop_front() {
        ordered.push_back(address);
        ordered.extend(second.pop_front());
    }
    ordered.extend(second);
    ordered
}

/// Connects to whichever address answers first. Bounded by the number of addresses.
async fn race(mut waiting: VecDeque<SocketAddr>) -> io::Result<TcpStream> {
    // The usual case needs no task: one address, one attempt.
    if let (Some(&only), 1) = (waiting.front(), waiting.len()) {
        return TcpStream::connect(only).await;
    }
    let mut attempts = JoinSet::new();
    let mut last_error = None;
    let mut next_attempt = Instant::now();
    loop {
        tokio::select! {
            biased;
            Some(outcome) = attempts.join_next() => match outcome {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => {
                    last_error = Some(error);
                    next_attempt = Instant::now();
                }
                Err(error) => last_error = Some(io::Error::other(error)),
            },
            () = sleep_until(next_attempt), if !waiting.is_empty() => {
                if let Some(address) = waiting.pop_front() {
                    attempts.spawn(TcpStream::connect(address));
                    next_attempt = Instant::now() + ATTEMPT_DELAY;
                }
            }
            else => {
                let none = || io::Error::new(io::ErrorKind::NotFound, "no address to try");
                return Err(last_error.unwrap_or_else(none));
            }
        }
    }
}

/// A stream to a server: TCP in plain text, a unix domain socket, or TLS over TCP.
pub type Stream = Box<dyn Duplex>;

/// A stream of bytes in both directions.
pub trait Duplex: AsyncRead + AsyncWrite + std::fmt::Debug + Send + Sync + Unpin {}

impl<T: AsyncRead + AsyncWrite + std::fmt::Debug + Send + Sync + Unpin> Duplex for T {}

/// Why no stream to a server could be opened.
#[derive(Clone, Debug)]
pub struct ConnectError {
    /// The server.
    pub address: ServerAddress,
    /// Where the `hostMap` option sent us instead.
    pub via: Option<ServerAddress>,
    /// What went wrong.
    pub kind: ConnectErrorKind,
}

impl ConnectError {
    /// Whether an overloaded server could be the cause, so that the error gets the back-pressure
    /// labels. A name that does not resolve and a certificate that does not convince are not.
    pub fn may_be_overload(&self) -> bool {
        match &self.kind {
            ConnectErrorKind::Resolve(_) | ConnectErrorKind::Tls(_) => false,
            ConnectErrorKind::Connect(_)
            | ConnectErrorKind::TlsStream(_)
            | ConnectErrorKind::TimedOut(_) => true,
        }
    }

    /// Whether time ran out.
    pub fn is_timeout(&self) -> bool {
        matches!(self.kind, ConnectErrorKind::TimedOut(_))
    }
}

impl std::fmt::Display for ConnectError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cannot connect to {}", self.address)?;
        if let Some(via) = &self.via {
            write!(f, " through {via} (hostMap)")?;
        }
        write!(f, ": {}", self.kind)
    }
}

impl std::error::Error for ConnectError {}

/// What went wrong while connecting.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectErrorKind {
    /// The name has no address.
    #[error("its name does not resolve: {0}; check the host and DNS")]
    Resolve(Arc<io::Error>),
    /// No address answered.
    #[error("{0}; check that the server runs and that no firewall is between")]
    Connect(Arc<io::Error>),
    /// The TLS handshake failed for a reason of its own: a certificate, a name, a version.
    #[error("the TLS handshake failed: {0}; check tlsCAFile and the server's certificate")]
    Tls(String),
    /// The stream broke during the TLS handshake.
    #[error("the connection broke during the TLS handshake: {0}; does the server speak TLS?")]
    TlsStream(Arc<io::Error>),
    /// `connectTimeoutMS` passed.
    #[error("no answer within {} ms (connectTimeoutMS)", .0.as_millis())]
    TimedOut(Duration),
}

impl ConnectErrorKind {
    fn connect(error: io::Error) -> Self {
        Self::Connect(Arc::new(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    fn socket(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn families_take_turns_beginning_with_the_resolvers_choice() {
        let found = ["[::1]:1", "[::2]:1", "[::3]:1", "1.1.1.1:1"].map(socket);
        let ordered = alternate_families(found.into_iter());
        assert_eq!(ordered, ["[::1]:1", "1.1.1.1:1", "[::2]:1", "[::3]:1"].map(socket));
        let ordered = alternate_families(["1.1.1.1:1", "[::1]:1"].map(socket).into_iter());
        assert_eq!(ordered, ["1.1.1.1:1", "[::1]:1"].map(socket));
    }

    #[tokio::test]
    async fn a_dead_address_does_not_hide_a_living_one() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let living = listener.local_addr().unwrap();
        // Nothing listens on the port of a listener that is gone.
        let dead = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let stream = race(VecDeque::from([dead, dead, living])).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), living);
    }

    #[tokio::test]
    async fn when_every_address_is_dead_the_last_error_is_told() {
        let dead = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let error = race(VecDeque::from([dead, dead])).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }

    #[tokio::test]
    async fn the_host_map_leads_elsewhere_and_errors_say_so() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let reachable = listener.local_addr().unwrap().to_string().parse().unwrap();
        let advertised: ServerAddress = "db0.invalid:27017".parse().unwrap();
        let options = ConnectorOptions {
            host_map: BTreeMap::from([(advertised.clone(), reachable)]),
            ..ConnectorOptions::default()
        };
        let connector = Connector::new(options);
        assert!(connector.connect(&advertised).await.is_ok());
        drop(listener);
        let error = connector.connect(&advertised).await.unwrap_err();
        let text = error.to_string();
        assert!(text.contains("db0.invalid:27017 through 127.0.0.1:"), "{text}");
        assert!(error.may_be_overload());
    }

    #[tokio::test]
    async fn unix_sockets_are_paths() {
        let path = std::env::temp_dir().join(format!("quorate-net-{}.sock", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener = tokio::net::UnixListener::bind(&path).unwrap();
        let address: ServerAddress = path.to_str().unwrap().parse().unwrap();
        let stream = Connector::default().connect(&address).await;
        std::fs::remove_file(&path).unwrap();
        assert!(stream.is_ok());
        listener.accept().await.unwrap();
    }
}
