//! Which server an operation goes to, and a connection to it that is alive.
//!
//! Follows "Single-threaded server selection" and "Checking an Idle Socket After
//! socketCheckIntervalMS" in the Server Selection specification. Which servers are suitable, and
//! when a scan is due, the core decides; here are the loop, the waiting and the ping.

use bson::rawdoc;
use quorate_client_session::Role;
use quorate_protocol::{MonotonicTime, ServerAddress};
use quorate_server_discovery::{
    ApplicationError, HandshakeProgress, Input, PoolGeneration, SelectionError, SelectionFailure,
    SelectionRequest,
};

use crate::client::Client;
use crate::connection::{ConnectionError, Request};
use crate::error::OperationError;

/// How often a server is selected for one attempt of an operation: "attempt once more to select".
const MAX_SELECTIONS: usize = 2;

impl Client {
    /// The server of an operation's next attempt, with a connection that can be used. A transaction that is
    /// pinned to a router goes there.
    pub(crate) fn server_for(
        &mut self,
        role: Role,
        request: &SelectionRequest<'_>,
    ) -> Result<ServerAddress, OperationError> {
        let session = self.active.as_ref().filter(|_| role != Role::Beside);
        match session.and_then(|session| session.transaction.pinned().cloned()) {
            None => self.select_usable(request),
            Some(router) if self.make_usable(&router) => Ok(router),
            Some(router) => Err(self.unreachable(router)),
        }
    }

    /// Selects a server and sees to it that its connection can be used.
    fn select_usable(
        &mut self,
        request: &SelectionRequest<'_>,
    ) -> Result<ServerAddress, OperationError> {
        let mut selections = 0;
        loop {
            let server = self.select(request)?;
            if self.make_usable(&server) && self.is_suitable(request, &server) {
                return Ok(server);
            }
            selections += 1;
            if selections == MAX_SELECTIONS {
                return Err(self.unreachable(server));
            }
        }
    }

    /// Sees to it that there is a connection which was alive lately; whether there is.
    pub(crate) fn make_usable(&mut self, server: &ServerAddress) -> bool {
        match self.connections.get(server) {
            None => self.handle(Input::ServerCheckWanted { server: server.clone() }),
            Some(connection) => {
                let idle = self.now().since(connection.last_used);
                if idle >= self.options.socket_check_interval {
                    self.check_socket(server);
                }
            }
        }
        self.connections.contains_key(server)
    }

    /// The error of an operation whose server cannot be talked to, and why.
    pub(crate) fn unreachable(&self, server: ServerAddress) -> OperationError {
        let reason = match self.topology().server(&server) {
            Some(description) => match description.error() {
                Some(error) => error.to_string(),
                None => format!("it is {} now", description.server_type()),
            },
            None => "it is no longer part of the deployment".to_owned(),
        };
        OperationError::Unreachable { server, reason }
    }

    /// Drops a connection that failed, and tells the core.
    pub(crate) fn connection_failed(&mut self, server: &ServerAddress, cause: ApplicationError) {
        if let Some(connection) = self.connections.remove(server) {
            let (generation, max_wire_version) =
                (connection.generation, connection.max_wire_version);
            drop(connection);
            self.tell_failure(server, generation, max_wire_version, false, cause);
        }
    }

    /// Tells the core what an operation met. Connections are opened by checks alone, so the
    /// handshake is always complete.
    pub(crate) fn tell_failure(
        &mut self,
        server: &ServerAddress,
        generation: PoolGeneration,
        max_wire_version: i32,
        overloaded: bool,
        cause: ApplicationError,
    ) {
        self.handle(Input::ApplicationFailed {
            server: server.clone(),
            generation,
            service_id: None,
            handshake: HandshakeProgress::Complete,
            max_wire_version,
            overloaded,
            cause,
        });
    }

    fn select(&mut self, request: &SelectionRequest<'_>) -> Result<ServerAddress, OperationError> {
        let started = self.now();
        let until = started + self.options.server_selection_timeout;
        let try_once = self.options.server_selection_try_once;
        let mut scanned = false;
        // With "try once", the second round scans and ends; otherwise each round but the first
        // takes `minHeartbeatFrequencyMS` of the time there is.
        loop {
            if self.topology.scan_is_due(self.now()) {
                if !try_once && self.topology.earliest_scan() > until {
                    return Err(self.no_server(request, started));
                }
                self.scan();
                scanned = true;
            }
            let bits = self.random.next_u64();
            // One thread has no operation under way elsewhere: every count is zero.
            match self.topology.description().select(request, bits, |_| 0) {
                Ok(Some(server)) => return Ok(server.address().clone()),
                Ok(None) => self.handle(Input::CheckWanted),
                Err(error) => {
                    // Servers may be replaced; a read preference stays as wrong as it is.
                    if matches!(error, SelectionError::Incompatible(_)) {
                        self.handle(Input::CheckWanted);
                    }
                    return Err(error.into());
                }
            }
            let over = if try_once { scanned } else { self.now() > until };
            if over {
                return Err(self.no_server(request, started));
            }
        }
    }

    fn is_suitable(&self, request: &SelectionRequest<'_>, server: &ServerAddress) -> bool {
        let suitable = self.topology.description().suitable_servers(request);
        suitable.is_ok_and(|suitable| suitable.iter().any(|one| one.address() == server))
    }

    /// Pings a server whose connection was idle, and tells the core if there is no answer.
    fn check_socket(&mut self, server: &ServerAddress) {
        let timeout = self.options.discovery.connect_timeout;
        let Some(connection) = self.connections.get_mut(server) else { return };
        let ping = rawdoc! { "ping": 1, "$db": "admin" };
        let outcome =
            connection.round_trip(Request::new(&ping), &*self.clock, timeout).and_then(|reply| {
                quorate_wire::command_error(&reply)
                    .map_err(|error| ConnectionError::BadReply(error.to_string()))
            });
        match outcome {
            Ok(None) => {}
            // The server answers; the core sees from the error whether its state has changed.
            Ok(Some(error)) => self.command_failed(server, &error),
            // A timeout too: a ping takes no time, so this one says that the server is gone.
            Err(error) => {
                let message = format!("a ping after the connection was idle failed: {error}");
                self.connection_failed(server, ApplicationError::Network(message));
            }
        }
    }

    fn no_server(&self, request: &SelectionRequest<'_>, started: MonotonicTime) -> OperationError {
        let now = self.now();
        let topology = std::sync::Arc::clone(self.topology.description());
        let failure = SelectionFailure::new(topology, request, now, now.since(started));
        OperationError::NoServer(Box::new(failure))
    }
}
