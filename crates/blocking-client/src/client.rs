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

use bson::raw::RawDocumentBuf;
use quorate_authentication::Authenticator;
use quorate_client_session::{IdleSessions, SessionState};
use quorate_connection_string::{ConnectionString, Seeds};
use quorate_protocol::{MonotonicTime, ServerAddress, SplitMix64};
use quorate_server_discovery::{
    CheckFailureKind, DiscoveryEvent, DiscoveryOptions, Input, MonitorCommand, Output, PoolCommand,
    Threading, Topology, TopologyDescription, TopologyId,
};
use quorate_tls_config::client_config;
use quorate_tls_config::rustls::ClientConfig;

use crate::check::CheckOrder;
use crate::clock::{Clock, SystemClock};
use crate::connection::Connection;
use crate::options::{ClientOptions, StartError};
use crate::session::MAX_IDLE_SESSIONS;

/// The listener for events.
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
    pub(crate) random: SplitMix64,
    pub(crate) tls: Option<Arc<ClientConfig>>,
    pub(crate) authenticator: Option<Authenticator>,
    /// The session that operations run in now.
    pub(crate) active: Option<Box<SessionState>>,
    /// Sessions that servers know and no operation uses.
    pub(crate) idle_sessions: IdleSessions,
    /// The latest `$clusterTime` that a server has told in a session.
    pub(crate) cluster_time: Option<RawDocumentBuf>,
    listener: EventListener,
    /// The check that the core waits for.
    ordered: Option<CheckOrder>,
    /// Known servers whose connection was found broken by the check under way.
    check_again: Vec<ServerAddress>,
}

impl Client {
    /// A client for a `mongodb://` string. Does no I/O, but for reading the files that it names.
    /// [`connect`](Self::connect) takes `mongodb+srv://` as well.
    ///
    /// # Errors
    ///
    /// If the string cannot be read, contradicts itself, or asks for what this client does not have.
    pub fn for_uri(uri: &str) -> Result<Self, StartError> {
        let string = ConnectionString::parse(uri)?;
        if matches!(string.seeds(), Seeds::Srv(_)) {
            return Err(StartError::UnresolvedSrv);
        }
        Self::new(ClientOptions::from_connection_string(&string)?)
    }

    /// A client with these options, the system's clock and no subscriber. Does no I/O.
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
        let next_step = "use the asynchronous client";
        if discovery.load_balanced {
            return Err(StartError::Missing { feature: "load balancer mode", next_step });
        }
        if discovery.stable_api {
            return Err(StartError::Missing { feature: "stable API versions", next_step });
        }
        let tls = options.tls.as_ref().map(client_config).transpose()?;
        let authenticator = options.credential.clone().map(Authenticator::new).transpose()?;
        let mut random = SplitMix64::new(options.seed);
        let id = TopologyId(random.next_u64());
        let topology = Topology::new(&discovery, id, random.next_u64(), clock.now())?;
        let mut client = Self {
            topology,
            connections: BTreeMap::new(),
            options,
            clock,
            random,
            tls,
            authenticator,
            active: None,
            idle_sessions: IdleSessions::new(MAX_IDLE_SESSIONS),
            cluster_time: None,
            listener,
            ordered: None,
            check_again: Vec::new(),
        };
        client.carry_out();
        assert!(client.ordered.is_none(), "a single-threaded topology begins without a check");
        Ok(client)
    }

    /// The current topology description. Does no I/O.
    pub fn topology(&self) -> &Arc<TopologyDescription> {
        self.topology.description()
    }

    /// How many sockets are open: at most one for each server.
    pub fn connection_count(&self) -> usize {
        self.connections.len()
    }

    /// Looks at every server, whether that is due or not, but not sooner than
    /// `minHeartbeatFrequencyMS` (500 ms) after the last time.
    pub fn scan(&mut self) {
        let pause = self.topology.earliest_scan().since(self.now());
        if !pause.is_zero() {
            self.clock.sleep(pause);
        }
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

    fn handle_once(&mut self, input: Input) {
        // A listener that panicked, and was caught, may have left something to do.
        self.settle();
        self.topology.handle(self.clock.now(), input);
        self.settle();
    }

    /// Does everything that the core wants done. Ends, because the core checks each server at most
    /// twice in a scan.
    fn settle(&mut self) {
        self.carry_out();
        while let Some(check) = self.ordered.take() {
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
            self.carry_out();
            if let Some(connection) = outcome.kept {
                self.keep(server, connection);
            }
        }
    }

    /// Does what the core wants done, in its order, except for the check, which is noted.
    fn carry_out(&mut self) {
        while let Some(output) = self.topology.poll_output() {
            match output {
                // The core holds the latest description, and no operation selects in the meantime.
                Output::Publish(_) => {}
                Output::Event(event) => (self.listener)(&event),
                Output::Monitor { server, command } => self.follow_monitor_command(server, command),
                Output::Pool { server, command } => match command {
                    PoolCommand::Open | PoolCommand::MarkReady => {}
                    PoolCommand::Clear { .. } | PoolCommand::Close => {
                        self.connections.remove(&server);
                    }
                },
            }
        }
    }

    fn follow_monitor_command(&mut self, server: ServerAddress, command: MonitorCommand) {
        match command {
            MonitorCommand::Check { check, hello, timeout, .. } => {
                assert!(self.ordered.is_none(), "a single-threaded topology checks one by one");
                self.ordered = Some(CheckOrder { server, check, hello, timeout });
            }
            MonitorCommand::Cancel | MonitorCommand::Stop => {
                self.connections.remove(&server);
            }
            // A monitor is its connection, which the first check opens. Round trips are measured by
            // the checks themselves: nothing streams.
            MonitorCommand::Start
            | MonitorCommand::MeasureRoundTrip { .. }
            | MonitorCommand::StopMeasuring => {}
        }
    }

    /// "Handling of backpressure labels": the connection stays, although the core has cleared the
    /// pool.
    fn keep(&mut self, server: ServerAddress, mut connection: Connection) {
        if let Some(generation) = self.topology.pool_generation(&server, None) {
            connection.generation = generation;
            self.connections.insert(server, connection);
        }
    }

    fn is_known(&self, server: &ServerAddress) -> bool {
        self.topology().server(server).is_some_and(|server| server.server_type().is_known())
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // The sockets close by themselves. Telling a listener that may just have panicked would
        // end the process.
        if std::thread::panicking() {
            return;
        }
        // Whatever is left to do is not done any more: closing sends nothing.
        while self.topology.poll_output().is_some() {}
        self.topology.handle(self.clock.now(), Input::Close);
        self.carry_out();
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
