//! The client: one topology, one connection for each server, and the loop between them.
//!
//! Owns what the core's commands mean here. A check is made inline, as soon as the outputs that
//! asked for it are drained, and its outcome is the next input. The pool of a server has one place,
//! for the connection that also monitors it, so opening and readying it is nothing and clearing it
//! is closing that connection. Which server to use is decided in `select`, what to send in
//! `operation`.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use quorate_connection_string::ConnectionString;
use quorate_protocol::{MonotonicTime, ServerAddress};
use quorate_server_discovery::{
    CheckFailureKind, DiscoveryEvent, DiscoveryOptions, Input, MonitorCommand, Output, PoolCommand,
    Threading, Topology, TopologyDescription, TopologyId,
};

use crate::check::CheckOrder;
use crate::clock::{Clock, SystemClock};
use crate::connection::Connection;
use crate::options::{ClientOptions, StartError};
use crate::random::Random;

/// Who wants to know what happens.
pub type EventListener = Box<dyn FnMut(&DiscoveryEvent)>;

/// A client of a deployment, used by one thread at a time.
///
/// It starts no thread: every check of a server happens inside a call of the application's. Making
/// one does no I/O; dropping it closes every socket and tells the closing events.
pub struct Client {
    pub(crate) topology: Topology,
    pub(crate) connections: BTreeMap<ServerAddress, Connection>,
    pub(crate) options: ClientOptions,
    pub(crate) clock: Box<dyn Clock>,
    pub(crate) random: Random,
    listener: EventListener,
    /// Known servers whose connection was found broken by the check under way.
    check_again: Vec<ServerAddress>,
}

impl Client {
    /// A client for a connection string. Does no I/O.
    ///
    /// # Errors
    ///
    /// If the string cannot be read, contradicts itself, or asks for what this client does not have.
    pub fn for_uri(uri: &str) -> Result<Self, StartError> {
        let string = ConnectionString::parse(uri)?;
        Self::new(ClientOptions::from_connection_string(&string)?)
    }

    /// A client with these options, the system's clock and nobody listening. Does no I/O.
    ///
    /// # Errors
    ///
    /// If the options contradict each other.
    pub fn new(options: ClientOptions) -> Result<Self, StartError> {
        Self::with(options, Box::new(SystemClock::new()), Box::new(|_| ()))
    }

    /// A client with these options, this clock and this listener, which is called in the middle of
    /// operations, in the order of the events. Does no I/O.
    ///
    /// # Errors
    ///
    /// If the options contradict each other.
    pub fn with(
        options: ClientOptions,
        clock: Box<dyn Clock>,
        listener: EventListener,
    ) -> Result<Self, StartError> {
        let discovery =
            DiscoveryOptions { threading: Threading::Single, ..options.discovery.clone() };
        if discovery.load_balanced {
            let next_step = "use the asynchronous client";
            return Err(StartError::Missing { feature: "load balancer mode", next_step });
        }
        let mut random = Random::new(options.seed);
        let id = TopologyId(random.next_bits());
        let topology = Topology::new(&discovery, id, random.next_bits(), clock.now())?;
        let mut client = Self {
            topology,
            connections: BTreeMap::new(),
            options,
            clock,
            random,
            listener,
            check_again: Vec::new(),
        };
        let order = client.carry_out();
        assert!(order.is_none(), "a single-threaded topology begins without a check");
        Ok(client)
    }

    /// What is believed about the deployment now. Does no I/O.
    pub fn topology(&self) -> &Arc<TopologyDescription> {
        self.topology.description()
    }

    /// How many sockets are open: at most one for each server.
    pub fn connection_count(&self) -> usize {
        self.connections.len()
    }

    /// Looks at every server now, whether that is due or not.
    pub fn scan(&mut self) {
        self.handle(Input::ScanWanted);
    }

    /// Closes every socket and tells the closing events; sends nothing. Dropping does the same.
    pub fn close(self) {}

    pub(crate) fn now(&self) -> MonotonicTime {
        self.clock.now()
    }

    /// Passes an input to the core and does what follows from it, checks included.
    pub(crate) fn handle(&mut self, input: Input) {
        self.handle_once(input);
        // "Network or command error during server check", step 4: a known server whose connection
        // turns out broken is checked again at once, for it may just have restarted. Not after a
        // timeout, which would be spent a second time. A second failure adds nothing here, since
        // it comes on a new connection.
        for server in std::mem::take(&mut self.check_again) {
            self.handle_once(Input::ServerCheckWanted { server });
        }
    }

    /// Ends, because the core checks each server at most twice in a scan.
    fn handle_once(&mut self, input: Input) {
        self.topology.handle(self.clock.now(), input);
        let mut order = self.carry_out();
        while let Some(check) = order {
            let server = check.server.clone();
            let known = self.is_known(&server);
            let outcome = self.make_check(check);
            if let Input::CheckFailed { failure, .. } = &outcome.input
                && failure.kind == CheckFailureKind::Network
                && outcome.on_used_connection
                && known
            {
                self.check_again.push(server.clone());
            }
            self.topology.handle(self.clock.now(), outcome.input);
            order = self.carry_out();
            if let Some(connection) = outcome.kept {
                self.keep(server, connection);
            }
        }
    }

    /// Does what the core wants done, in its order, except for the check, which is returned.
    fn carry_out(&mut self) -> Option<CheckOrder> {
        let mut order = None;
        while let Some(output) = self.topology.poll_output() {
            match output {
                // The core holds the latest description, and nobody selects in the meantime.
                Output::Publish(_) => {}
                Output::Event(event) => (self.listener)(&event),
                Output::Monitor { server, command } => {
                    if let Some(check) = self.follow_monitor_command(server, command) {
                        assert!(order.is_none(), "a single-threaded topology checks one by one");
                        order = Some(check);
                    }
                }
                Output::Pool { server, command } => match command {
                    PoolCommand::Open | PoolCommand::MarkReady => {}
                    PoolCommand::Clear { .. } | PoolCommand::Close => {
                        self.connections.remove(&server);
                    }
                },
            }
        }
        order
    }

    fn follow_monitor_command(
        &mut self,
        server: ServerAddress,
        command: MonitorCommand,
    ) -> Option<CheckOrder> {
        match command {
            MonitorCommand::Check { check, kind, hello, timeout, .. } => {
                Some(CheckOrder { server, check, kind, hello, timeout })
            }
            MonitorCommand::Cancel | MonitorCommand::Stop => {
                self.connections.remove(&server);
                None
            }
            // A monitor is its connection, which the first check opens. Round trips are measured by
            // the checks themselves: nothing streams.
            MonitorCommand::Start
            | MonitorCommand::MeasureRoundTrip { .. }
            | MonitorCommand::StopMeasuring => None,
        }
    }

    /// "Handling of backpressure labels": the connection stays, although the core has cleared the
    /// pool.
    fn keep(&mut self, server: ServerAddress, mut connection: Connection) {
        if let Some(generation) = self.topology.pool_generation(&server, None) {
            connection.generation = generation;
            connection.kept_in_overload = true;
            self.connections.insert(server, connection);
        }
    }

    fn is_known(&self, server: &ServerAddress) -> bool {
        self.topology().server(server).is_some_and(|server| server.server_type().is_known())
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // A listener that panicked may have left outputs behind; the sockets close by themselves.
        if !std::thread::panicking() {
            self.handle(Input::Close);
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("topology", &format_args!("{}", self.topology()))
            .field("connections", &self.connections.len())
            .finish_non_exhaustive()
    }
}
