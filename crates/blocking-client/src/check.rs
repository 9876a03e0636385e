//! Checking one server: a hello on its connection, or on a new one.
//!
//! Follows "Check" and "Single-threaded monitoring" in the Server Monitoring specification.
//! Connections are opened here and nowhere else, so every failure to open one is a failed check, and
//! its handshake is always news about the server.

use std::time::Duration;

use bson::raw::RawDocument;
use quorate_authentication::Authenticator;
use quorate_client_session::SYSTEM_OVERLOADED_ERROR;
use quorate_protocol::{HelloCommand, HelloReply, ServerAddress};
use quorate_server_discovery::{CheckFailure, CheckFailureKind, CheckId, Input};
use quorate_wire::{command_error, parse_hello};

use crate::client::Client;
use crate::connection::{Connection, ConnectionError, Request};
use crate::handshake::{first_hello, later_hello};

/// A check that the core wants made. Whether on a new connection is seen from whether there is one:
/// the core does not know of those that a timeout of the application's ended, nor of those that
/// outlived a failed check because the server was overloaded.
pub(crate) struct CheckOrder {
    pub(crate) server: ServerAddress,
    pub(crate) check: CheckId,
    pub(crate) hello: HelloCommand,
    pub(crate) timeout: Option<Duration>,
}

/// The result of the check.
pub(crate) struct CheckOutcome {
    pub(crate) input: Input,
    /// The connection had been used before.
    pub(crate) on_used_connection: bool,
    /// A connection that must not be closed although the check failed.
    pub(crate) kept: Option<Connection>,
}

struct Answer {
    reply: HelloReply,
    round_trip: Duration,
}

/// A check that failed, and whether that was for the load on the server.
struct Failed {
    failure: CheckFailure,
    overloaded: bool,
}

impl Client {
    /// Makes a check. The connection is among the client's afterwards if and only if it succeeded.
    pub(crate) fn make_check(&mut self, order: CheckOrder) -> CheckOutcome {
        let CheckOrder { server, check, hello, timeout } = order;
        let existing = self.connections.remove(&server);
        let on_used_connection = existing.is_some();
        let (connection, answer) = match existing {
            Some(mut connection) => {
                let answer = self.ask_again(&mut connection, hello, timeout);
                (Some(connection), answer)
            }
            None => match self.open_connection(&server, timeout) {
                Ok((connection, answer)) => (Some(connection), Ok(answer)),
                Err(failed) => (None, Err(failed)),
            },
        };
        let (input, kept) = match answer {
            Ok(Answer { reply, round_trip }) => {
                if let Some(connection) = connection {
                    self.connections.insert(server.clone(), connection);
                }
                let reply = reply.into();
                let more_to_come = false;
                (Input::HelloReceived { server, check, reply, round_trip, more_to_come }, None)
            }
            Err(Failed { failure, overloaded }) => {
                let kept = connection.filter(|_| overloaded);
                (Input::CheckFailed { server, check, failure }, kept)
            }
        };
        CheckOutcome { input, on_used_connection, kept }
    }

    fn ask_again(
        &self,
        connection: &mut Connection,
        hello: HelloCommand,
        timeout: Option<Duration>,
    ) -> Result<Answer, Failed> {
        let started = self.now();
        let body = later_hello(hello);
        let reply = connection
            .round_trip(Request::new(&body), &*self.clock, timeout)
            .map_err(|error| connection_failed(&error))?;
        let round_trip = self.now().since(started);
        refuse_failure(&reply)?;
        let reply = parse_hello(&reply).map_err(malformed)?;
        Ok(Answer { reply, round_trip })
    }

    /// Opens a connection and makes the handshake, each within `timeout`.
    fn open_connection(
        &self,
        server: &ServerAddress,
        timeout: Option<Duration>,
    ) -> Result<(Connection, Answer), Failed> {
        let generation = self.topology.pool_generation(server, None).unwrap_or_default();
        let clock = &*self.clock;
        let mut connection =
            Connection::open(server, self.tls.as_ref(), generation, clock, timeout)
                .map_err(|error| connection_failed(&error.into()))?;
        let options = &self.options;
        let user = self.authenticator.as_ref().and_then(Authenticator::mechanism_question);
        let body = first_hello(options.app_name.as_deref(), &options.compressors, user.as_deref());
        let started = self.now();
        let reply = connection
            .round_trip(Request::new(&body), clock, timeout)
            .map_err(|error| connection_failed(&error))?;
        let round_trip = self.now().since(started);
        refuse_failure(&reply).map_err(|failed| Failed { overloaded: false, ..failed })?;
        let handshake = quorate_wire::parse_handshake(&reply).map_err(malformed)?;
        connection.limits = handshake.limits;
        connection.max_wire_version = handshake.hello.wire_versions.max;
        let level = options.zlib_compression_level.map(i32::from);
        let compressor = handshake.compressor(&options.compressors, level).map_err(malformed)?;
        connection.set_compressor(compressor);
        connection.mechanisms = handshake.sasl_supported_mechs;
        Ok((connection, Answer { reply: handshake.hello, round_trip }))
    }
}

fn connection_failed(error: &ConnectionError) -> Failed {
    let kind = if error.is_timeout() {
        CheckFailureKind::NetworkTimeout
    } else if error.is_network() {
        CheckFailureKind::Network
    } else {
        CheckFailureKind::Malformed
    };
    Failed { failure: CheckFailure::new(kind, error.to_string()), overloaded: false }
}

fn malformed(error: impl ToString) -> Failed {
    let failure = CheckFailure::new(CheckFailureKind::Malformed, error.to_string());
    Failed { failure, overloaded: false }
}

/// A reply with `ok: 0` is a failed check, told in the server's words.
fn refuse_failure(reply: &RawDocument) -> Result<(), Failed> {
    match command_error(reply).map_err(malformed)? {
        Some(error) if !error.ok => {
            let overloaded = error.has_label(SYSTEM_OVERLOADED_ERROR);
            let failure = CheckFailure::new(CheckFailureKind::Command, error.to_string());
            Err(Failed { failure, overloaded })
        }
        _ => Ok(()),
    }
}
