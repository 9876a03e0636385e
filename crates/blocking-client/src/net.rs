//! Sockets: names to addresses, addresses to streams, and streams with a time limit.
//!
//! The only file that opens sockets. A limit is kept over a whole message, not per read: a server
//! that sends one byte now and then does not hold the client for ever. Two things have no limit,
//! because the standard library offers none: asking the resolver for a name, and connecting to a
//! unix domain socket, which only waits while the server's queue of new connections is full.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
#[cfg(unix)]
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use quorate_protocol::ServerAddress;
use quorate_tls_config::rustls::{self, ClientConfig, ClientConnection, Error as TlsError};
use quorate_tls_config::server_name;

use crate::clock::{Clock, Deadline, Expired};

/// How many addresses of one name are tried.
pub(crate) const MAX_ADDRESSES: usize = 16;

/// Why there is no connection. The network, the name or the server is at fault.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DialError {
    /// The name has no address.
    #[error("the name {host} cannot be resolved: {source}; check its spelling and the resolver")]
    Resolve {
        /// The name.
        host: String,
        /// What the resolver said.
        source: io::Error,
    },
    /// No address of the name took the connection.
    #[error("no connection to {server}: {}", Attempts(.server, .attempts))]
    Refused {
        /// The server.
        server: ServerAddress,
        /// Every address that was tried, and its error.
        attempts: Vec<(String, io::Error)>,
    },
    /// Time ran out before an address took the connection.
    #[error("no connection to {server} within connectTimeoutMS: {}", Attempts(.server, .attempts))]
    TimedOut {
        /// The server.
        server: ServerAddress,
        /// Every address that was tried, and its error.
        attempts: Vec<(String, io::Error)>,
    },
    /// The TLS handshake failed for a reason of its own: a certificate, a name, a version.
    #[error(
        "the TLS handshake with {server} failed: {reason}; check tlsCAFile and the server's \
         certificate"
    )]
    Tls {
        /// The server.
        server: ServerAddress,
        /// What is wrong.
        reason: String,
    },
    /// The stream broke during the TLS handshake.
    #[error(
        "the connection to {server} broke during the TLS handshake: {source}; does the server \
         speak TLS?"
    )]
    TlsBroken {
        /// The server.
        server: ServerAddress,
        /// What happened.
        source: io::Error,
    },
    /// The system has no unix domain sockets.
    #[error("{0} is a unix domain socket, which this system does not have; name a host and a port")]
    NoUnixSockets(ServerAddress),
}

impl DialError {
    /// Whether the only thing known is that nothing came in time.
    pub fn is_timeout(&self) -> bool {
        match self {
            Self::TimedOut { .. } => true,
            Self::TlsBroken { source, .. } => is_timeout(source),
            _ => false,
        }
    }
}

struct Attempts<'a>(&'a ServerAddress, &'a [(String, io::Error)]);

impl std::fmt::Display for Attempts<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self(server, attempts) = self;
        match attempts {
            [] => f.write_str("the name has no addresses"),
            [(address, error)] if address == server.as_str() => write!(f, "{error}"),
            attempts => {
                for (position, (address, error)) in attempts.iter().enumerate() {
                    let separator = if position == 0 { "" } else { "; " };
                    write!(f, "{separator}{address}: {error}")?;
                }
                Ok(())
            }
        }
    }
}

/// A stream to a server, in plain text or under TLS.
#[derive(Debug)]
pub(crate) struct Socket {
    transport: Transport,
    tls: Option<Box<ClientConnection>>,
}

#[derive(Debug)]
enum Transport {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(UnixStream),
}

impl Socket {
    /// Connects to the first address that takes the connection, all of them within `timeout`, and
    /// shakes hands if there is a TLS configuration, within the same time again.
    pub(crate) fn dial(
        server: &ServerAddress,
        tls: Option<&Arc<ClientConfig>>,
        clock: &dyn Clock,
        timeout: Option<Duration>,
    ) -> Result<Self, DialError> {
        let Some(port) = server.port() else { return Self::dial_unix(server) };
        let resolved = (server.host(), port)
            .to_socket_addrs()
            .map_err(|source| DialError::Resolve { host: server.host().to_owned(), source })?;
        let addresses: Vec<SocketAddr> = resolved.take(MAX_ADDRESSES).collect();
        let mut socket = Self::dial_first(server, &addresses, clock, timeout)?;
        if let Some(config) = tls {
            socket.secure(server, config, clock, Deadline::after(clock, timeout))?;
        }
        Ok(socket)
    }

    fn dial_first(
        server: &ServerAddress,
        addresses: &[SocketAddr],
        clock: &dyn Clock,
        timeout: Option<Duration>,
    ) -> Result<Self, DialError> {
        let deadline = Deadline::after(clock, timeout);
        let mut attempts = Vec::with_capacity(addresses.len());
        for (position, address) in addresses.iter().enumerate() {
            let Ok(remaining) = deadline.remaining(clock) else { break };
            let left = addresses.len() - position;
            match connect(address, remaining.map(|remaining| share(remaining, left))) {
                Ok(stream) => return Ok(Self { transport: Transport::Tcp(stream), tls: None }),
                Err(error) => attempts.push((address.to_string(), error)),
            }
        }
        let timed_out = |(_, error): &(String, io::Error)| is_timeout(error);
        let server = server.clone();
        if !attempts.is_empty() && attempts.iter().all(timed_out) {
            return Err(DialError::TimedOut { server, attempts });
        }
        Err(DialError::Refused { server, attempts })
    }

    #[cfg(unix)]
    fn dial_unix(server: &ServerAddress) -> Result<Self, DialError> {
        match UnixStream::connect(server.host()) {
            Ok(stream) => Ok(Self { transport: Transport::Unix(stream), tls: None }),
            Err(error) => Err(DialError::Refused {
                server: server.clone(),
                attempts: vec![(server.host().to_owned(), error)],
            }),
        }
    }

    #[cfg(not(unix))]
    fn dial_unix(server: &ServerAddress) -> Result<Self, DialError> {
        Err(DialError::NoUnixSockets(server.clone()))
    }

    /// The TLS handshake. Each round sends or receives something, or fails.
    fn secure(
        &mut self,
        server: &ServerAddress,
        config: &Arc<ClientConfig>,
        clock: &dyn Clock,
        deadline: Deadline,
    ) -> Result<(), DialError> {
        let refused = |reason: String| DialError::Tls { server: server.clone(), reason };
        let name = server_name(server.host()).map_err(|error| refused(error.to_string()))?;
        let mut tls = ClientConnection::new(Arc::clone(config), name)
            .map_err(|error| refused(error.to_string()))?;
        while tls.is_handshaking() {
            let mut limited = Limited { transport: &mut self.transport, clock, deadline };
            tls.complete_io(&mut limited).map_err(|error| {
                let own = error.get_ref().and_then(|inner| inner.downcast_ref::<TlsError>());
                match own {
                    Some(reason) => refused(reason.to_string()),
                    None => DialError::TlsBroken { server: server.clone(), source: error },
                }
            })?;
        }
        self.tls = Some(Box::new(tls));
        Ok(())
    }

    /// Sends all of it.
    pub(crate) fn write_all(
        &mut self,
        bytes: &[u8],
        clock: &dyn Clock,
        deadline: Deadline,
    ) -> io::Result<()> {
        let mut limited = Limited { transport: &mut self.transport, clock, deadline };
        match &mut self.tls {
            None => limited.write_all(bytes),
            Some(tls) => {
                let mut stream = rustls::Stream::new(&mut **tls, &mut limited);
                stream.write_all(bytes)?;
                stream.flush()
            }
        }
    }

    /// Reads what there is, at least one byte; 0 at the end of the stream.
    pub(crate) fn read(
        &mut self,
        buffer: &mut [u8],
        clock: &dyn Clock,
        deadline: Deadline,
    ) -> io::Result<usize> {
        let mut limited = Limited { transport: &mut self.transport, clock, deadline };
        match &mut self.tls {
            None => limited.read(buffer),
            Some(tls) => match rustls::Stream::new(&mut **tls, &mut limited).read(buffer) {
                // The server hung up without the farewell of TLS. Messages have lengths, so that
                // nothing can be cut off unnoticed.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(0),
                read => read,
            },
        }
    }
}

/// A transport whose every call keeps a deadline, so that a server which sends one byte of a record
/// now and then does not hold the client for ever.
struct Limited<'a> {
    transport: &'a mut Transport,
    clock: &'a dyn Clock,
    deadline: Deadline,
}

impl Read for Limited<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let timeout = remaining(self.clock, self.deadline)?;
            let read = match self.transport {
                Transport::Tcp(stream) => {
                    stream.set_read_timeout(timeout)?;
                    stream.read(buffer)
                }
                #[cfg(unix)]
                Transport::Unix(stream) => {
                    stream.set_read_timeout(timeout)?;
                    stream.read(buffer)
                }
            };
            match read {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => return read,
            }
        }
    }
}

impl Write for Limited<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let timeout = remaining(self.clock, self.deadline)?;
        match self.transport {
            Transport::Tcp(stream) => {
                stream.set_write_timeout(timeout)?;
                stream.write(bytes)
            }
            #[cfg(unix)]
            Transport::Unix(stream) => {
                stream.set_write_timeout(timeout)?;
                stream.write(bytes)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether nothing came in time. Systems disagree on what to call that.
pub(crate) fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock)
}

fn connect(address: &SocketAddr, timeout: Option<Duration>) -> io::Result<TcpStream> {
    let stream = match timeout {
        Some(timeout) => TcpStream::connect_timeout(address, timeout)?,
        None => TcpStream::connect(address)?,
    };
    // Requests are written whole; waiting to fill a packet would only delay them.
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// The time for the next of so many addresses: one that swallows packets leaves time for the rest.
/// Never zero, which the operating system refuses.
fn share(remaining: Duration, addresses: usize) -> Duration {
    let addresses = u32::try_from(addresses).unwrap_or(u32::MAX).max(1);
    (remaining / addresses).max(Duration::from_millis(1))
}

fn remaining(clock: &dyn Clock, deadline: Deadline) -> io::Result<Option<Duration>> {
    match deadline.remaining(clock) {
        Ok(remaining) => Ok(remaining),
        Err(Expired) => Err(io::ErrorKind::TimedOut.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;
    use std::net::TcpListener;

    const TIMEOUT: Option<Duration> = Some(Duration::from_secs(5));

    #[test]
    fn names_are_resolved() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let server: ServerAddress = format!("localhost:{port}").parse().unwrap();
        assert!(Socket::dial(&server, None, &SystemClock::new(), TIMEOUT).is_ok());
    }

    #[test]
    fn every_address_of_a_name_is_tried() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let alive = listener.local_addr().unwrap();
        let server: ServerAddress = "name.example:1".parse().unwrap();
        let dial = |addresses: &[SocketAddr]| {
            Socket::dial_first(&server, addresses, &SystemClock::new(), TIMEOUT)
        };
        assert!(dial(&[gone, gone, alive]).is_ok());
        let text = dial(&[gone, gone]).unwrap_err().to_string();
        assert_eq!(text.matches(&gone.to_string()).count(), 2, "{text}");
        let text = dial(&[]).unwrap_err().to_string();
        assert_eq!(text, "no connection to name.example:1: the name has no addresses");
    }

    #[test]
    fn a_refusal_names_the_address_and_the_reason() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let server: ServerAddress = address.to_string().parse().unwrap();
        let error = Socket::dial(&server, None, &SystemClock::new(), TIMEOUT).unwrap_err();
        assert!(!error.is_timeout());
        let text = error.to_string();
        assert!(text.starts_with(&format!("no connection to {address}: Connection ref")), "{text}");
    }

    #[test]
    fn a_name_without_address_is_told() {
        let server: ServerAddress = "no-such-host.invalid:1".parse().unwrap();
        let error = Socket::dial(&server, None, &SystemClock::new(), TIMEOUT).unwrap_err();
        assert!(error.to_string().contains("no-such-host.invalid cannot be resolved"), "{error}");
    }

    #[test]
    fn every_address_has_its_share_of_the_time() {
        let second = Duration::from_secs(1);
        assert_eq!(share(second, 4), Duration::from_millis(250));
        assert_eq!(share(second, 1), second);
        assert_eq!(share(Duration::from_micros(1), 4), Duration::from_millis(1));
    }
}
