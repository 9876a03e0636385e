//! Accepts connections, and refuses those that are not allowed.
//!
//! Owns the limit on connections, and each connection up to its first message. A refused client
//! gets the reason as the reply to its first message, as far as that costs little.

use std::fs;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use quorate_node::{Client, CommandError, ErrorCode};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

use crate::connection::Connection;
use crate::net::{TcpListener, TcpStream};
use crate::server::Shared;
use crate::tls::{Arrival, Peer};

/// Pause after a failed accept, for instance without free descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Refusals that are sent at the same time. Connections beyond that are closed without one.
const MAX_REFUSALS: usize = 128;

/// Time limit for sending one refusal.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(5);

/// Connections that the system keeps until they are accepted. It cuts this down to its own limit
/// (`net.core.somaxconn`).
const BACKLOG: i32 = 16_384;

/// With a limit below this the system drops connections when all clients of a set connect at once.
/// A dropped client tries again after a second.
const FEW_WAITING: i32 = 4096;

/// The file in which Linux states its limit.
const SYSTEM_BACKLOG: &str = "/proc/sys/net/core/somaxconn";

/// Listening sockets: of the server's own address, and of the ports of horizons.
pub struct Listeners {
    pub(crate) main: TcpListener,
    /// Further addresses of the server.
    more: Vec<TcpListener>,
    horizons: Vec<(String, TcpListener)>,
}

impl From<TcpListener> for Listeners {
    fn from(main: TcpListener) -> Self {
        Self { main, more: Vec::new(), horizons: Vec::new() }
    }
}

impl Listeners {
    /// Listens on another address as well.
    #[must_use]
    pub fn with_address(mut self, listener: TcpListener) -> Self {
        self.more.push(listener);
        self
    }

    /// Every address on which the server itself listens.
    pub(crate) fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        [&self.main].into_iter().chain(&self.more).map(TcpListener::local_addr).collect()
    }

    /// Listens on a port of a horizon as well: its clients are shown the addresses that the set's
    /// configuration gives members under this name.
    #[must_use]
    pub fn with_horizon(mut self, name: impl Into<String>, listener: TcpListener) -> Self {
        self.horizons.push((name.into(), listener));
        self
    }

    /// Makes room for connections that arrive faster than they are accepted, such as those of clients
    /// that all come back after a failover.
    pub(crate) fn deepen(&self) -> io::Result<()> {
        let horizons = self.horizons.iter().map(|(_, listener)| listener);
        for listener in horizons.chain(&self.more).chain([&self.main]) {
            rustix::net::listen(listener, BACKLOG)?;
        }
        if let Some(allowed) = too_small(fs::read_to_string(SYSTEM_BACKLOG).ok().as_deref()) {
            tracing::warn!(
                allowed,
                "the system queues few connections until they are accepted, and clients that find no \
                 room come back a second later; raise net.core.somaxconn to {FEW_WAITING} or more"
            );
        }
        Ok(())
    }

    /// The next connection, and the horizon whose port it arrived at.
    async fn accept(&self) -> io::Result<(TcpStream, SocketAddr, Option<String>)> {
        poll_fn(|context| {
            for listener in [&self.main].into_iter().chain(&self.more) {
                if let Poll::Ready(accepted) = listener.poll_accept(context) {
                    return Poll::Ready(accepted.map(|(socket, address)| (socket, address, None)));
                }
            }
            for (name, listener) in &self.horizons {
                if let Poll::Ready(accepted) = listener.poll_accept(context) {
                    let named = |(socket, address)| (socket, address, Some(name.clone()));
                    return Poll::Ready(accepted.map(named));
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// The limit of the system, if it is known and small.
fn too_small(told: Option<&str>) -> Option<i32> {
    told?.trim().parse().ok().filter(|allowed| *allowed < FEW_WAITING)
}

/// Accepts connections until dropped.
pub(crate) async fn accept(
    shared: &Arc<Shared>,
    max_connections: usize,
    listeners: &Listeners,
    connections: &mut JoinSet<()>,
) {
    let places = Arc::new(Semaphore::new(max_connections));
    let refusals = Arc::new(Semaphore::new(MAX_REFUSALS));
    loop {
        let (socket, address, horizon) = match next(listeners, connections).await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // A reply is one write; waiting to join it with another would only delay it.
        if let Err(error) = socket.set_nodelay(true) {
            tracing::debug!(%address, %error, "cannot switch off Nagle's algorithm");
        }
        let shared = Arc::clone(shared);
        if let Ok(place) = Arc::clone(&places).try_acquire_owned() {
            connections.spawn(serve(shared, socket, address, horizon, place));
        } else if let Ok(place) = Arc::clone(&refusals).try_acquire_owned() {
            tracing::warn!(%address, max_connections, "too many connections; refusing the newest");
            connections.spawn(refuse(shared, socket, address, too_many(max_connections), place));
        }
    }
}

/// The next client. Meanwhile ended connections are forgotten: until then each keeps the memory of its
/// task, and after a storm no client may come for long.
async fn next(
    listeners: &Listeners,
    connections: &mut JoinSet<()>,
) -> io::Result<(TcpStream, SocketAddr, Option<String>)> {
    loop {
        tokio::select! {
            accepted = listeners.accept() => return accepted,
            Some(_) = connections.join_next() => while connections.try_join_next().is_some() {},
        }
    }
}

async fn serve(
    shared: Arc<Shared>,
    socket: TcpStream,
    address: SocketAddr,
    horizon: Option<String>,
    _place: OwnedSemaphorePermit,
) {
    let arrival = match &shared.security.tls {
        Some(tls) => tls.accept(socket).await,
        None => Ok(Arrival::Welcome(socket.into(), Peer::default())),
    };
    let id = shared.next_connection_id();
    let _counted = shared.node.count_connection();
    let address_text = address.to_string();
    let client = Client { connection_id: id, address: address_text, horizon, ..Client::default() };
    let connection = match arrival {
        Ok(Arrival::Welcome(stream, peer)) => {
            let certificate = peer.subject.map(|subject| shared.security.certificate(&subject));
            let server_name = peer.server_name;
            Connection::new(shared, stream, Client { certificate, server_name, ..client })
        }
        Ok(Arrival::WithoutTls(stream)) => {
            tracing::info!(%address, "a client came without TLS and is refused");
            let connection = Connection::new(shared, stream, client).refusing(without_tls());
            // The connection answers one message with the refusal and closes.
            let _ = tokio::time::timeout(REFUSAL_TIMEOUT, connection.run()).await;
            return;
        }
        Err(error) => {
            tracing::info!(%address, %error, "the TLS handshake failed");
            return;
        }
    };
    if let Err(error) = connection.run().await {
        tracing::debug!(connection = id, %error, "connection ended");
    }
}

async fn refuse(
    shared: Arc<Shared>,
    socket: TcpStream,
    address: SocketAddr,
    why: CommandError,
    _place: OwnedSemaphorePermit,
) {
    let hearing = async {
        let stream = match &shared.security.tls {
            Some(tls) => match tls.accept(socket).await {
                Ok(Arrival::Welcome(stream, _) | Arrival::WithoutTls(stream)) => stream,
                Err(_) => return,
            },
            None => socket.into(),
        };
        let client = Client { address: address.to_string(), ..Client::default() };
        // Ignore errors: the client may be gone.
        let _ = Connection::new(shared, stream, client).refusing(why).run().await;
    };
    let _ = tokio::time::timeout(REFUSAL_TIMEOUT, hearing).await;
}

/// Drivers that know the labels wait and retry.
fn too_many(limit: usize) -> CommandError {
    let mut error = CommandError::new(
        ErrorCode::TOO_MANY_CONNECTIONS,
        format!("this server has its {limit} connections; close some, or raise --max-connections"),
    );
    error.labels = ["SystemOverloadedError", "RetryableError"].map(str::to_owned).to_vec();
    error
}

fn without_tls() -> CommandError {
    CommandError::new(
        ErrorCode::SSL_HANDSHAKE_FAILED,
        "this server speaks TLS only; add tls=true to the connection string",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn ended_connections_are_forgotten_while_no_client_comes() {
        let listener = TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let listeners = Listeners::from(listener);
        let mut connections = JoinSet::new();
        (0..10).for_each(|_| drop(connections.spawn(async {})));
        let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
        while !connections.is_empty() {
            assert!(tokio::time::Instant::now() < deadline, "{} are kept", connections.len());
            let soon = Duration::from_millis(1);
            let accepted = tokio::time::timeout(soon, next(&listeners, &mut connections)).await;
            assert!(accepted.is_err(), "no client comes");
        }
    }

    #[test]
    fn a_small_queue_of_the_system_is_told() {
        assert_eq!(too_small(Some("128\n")), Some(128));
        assert_eq!(too_small(Some("4096\n")), None);
        assert_eq!(too_small(Some("unreadable")), None);
        assert_eq!(too_small(None), None);
    }
}
