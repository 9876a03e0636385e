//! The checks that the discovery core asks for, carried out on real sockets.
//!
//! The core decides when and how to check; each check is one short task. The connection moves into
//! the task and comes back with the answer, so that giving a check up means aborting its task, which
//! closes the socket at once. Follows the Server Monitoring specification.

use std::time::Duration;

use bson::raw::cstr;
use quorate_protocol::{HelloCommand, HelloReply, ServerAddress};
use quorate_server_discovery::{CheckFailure, CheckFailureKind, CheckKind};
use quorate_wire::{MsgFlags, topology_version_document};
use tokio::time::{Instant, timeout};

use crate::connection::{Connection, Request};
use crate::discovery::Settings;
use crate::handshake::{HandshakeError, exchange_hello, next_hello};
use crate::net::{ConnectError, Stream};

/// A check to be made.
pub(crate) struct Check {
    pub(crate) kind: CheckKind,
    pub(crate) hello: HelloCommand,
    /// How long each of connecting and waiting for the reply may take.
    pub(crate) limit: Option<Duration>,
    /// The monitoring connection, unless the check opens one.
    pub(crate) connection: Option<Connection<Stream>>,
}

/// A check that ended in a reply.
pub(crate) struct Checked {
    pub(crate) connection: Connection<Stream>,
    pub(crate) reply: HelloReply,
    pub(crate) round_trip: Duration,
}

/// Checks a server.
pub(crate) async fn check(
    settings: &Settings,
    server: &ServerAddress,
    check: Check,
) -> Result<Checked, CheckFailure> {
    let mut connection = match (check.kind, check.connection) {
        (CheckKind::Connect, _) => {
            let stream = settings.connector.connect(server).await.map_err(connect_failure)?;
            Connection::new(stream)
        }
        (_, Some(connection)) => connection,
        // The core polls only on connections that it knows to be open.
        (_, None) => {
            let message = format!("the monitoring connection to {server} is gone");
            return Err(CheckFailure::new(CheckFailureKind::Network, message));
        }
    };
    let begun = Instant::now();
    let known = &*settings.handshake.known_members;
    let exchange = async {
        match check.kind {
            CheckKind::Connect => settings.handshake.shake_as_monitor(&mut connection).await,
            CheckKind::Poll => {
                let hello = settings.handshake.plain_hello(check.hello);
                exchange_hello(&mut connection, Request::new(&hello), known).await
            }
            CheckKind::Await { topology_version, max_await_time } => {
                let mut hello = settings.handshake.plain_hello(check.hello);
                hello.append(cstr!("topologyVersion"), topology_version_document(topology_version));
                let millis = i64::try_from(max_await_time.as_millis()).unwrap_or(i64::MAX);
                hello.append(cstr!("maxAwaitTimeMS"), millis);
                let flags = MsgFlags::EXHAUST_ALLOWED;
                let request = Request { flags, ..Request::new(&hello) };
                exchange_hello(&mut connection, request, known).await
            }
            CheckKind::ReadNext => next_hello(&mut connection, known).await,
        }
    };
    let reply = match check.limit {
        None => exchange.await,
        Some(limit) => timeout(limit, exchange).await.unwrap_or(Err(HandshakeError::TimedOut)),
    };
    let reply = reply.map_err(|error| hello_failure(&error))?;
    Ok(Checked { connection, reply, round_trip: begun.elapsed() })
}

/// Measures a round trip on a connection of its own. Errors say nothing about the server.
pub(crate) async fn measure(
    settings: &Settings,
    server: &ServerAddress,
    hello: HelloCommand,
    limit: Option<Duration>,
    connection: Option<Connection<Stream>>,
) -> Option<(Connection<Stream>, Duration)> {
    let kind = if connection.is_some() { CheckKind::Poll } else { CheckKind::Connect };
    let checked = check(settings, server, Check { kind, hello, limit, connection }).await.ok()?;
    Some((checked.connection, checked.round_trip))
}

fn connect_failure(error: ConnectError) -> CheckFailure {
    let kind = if error.is_timeout() {
        CheckFailureKind::NetworkTimeout
    } else {
        CheckFailureKind::Network
    };
    CheckFailure::new(kind, error.to_string())
}

fn hello_failure(error: &HandshakeError) -> CheckFailure {
    let kind = match error {
        HandshakeError::TimedOut => CheckFailureKind::NetworkTimeout,
        HandshakeError::Refused(_) => CheckFailureKind::Command,
        error if error.is_network() => CheckFailureKind::Network,
        _ => CheckFailureKind::Malformed,
    };
    CheckFailure::new(kind, error.to_string())
}
