//! Counters of one client, and their text for Prometheus.
//!
//! Counting is an atomic addition; nothing is formatted before a reader asks. The names and help
//! texts are stable: dashboards are built on them. Counters only rise while the client lives; those of
//! a server end when it is dropped from the topology.

mod text;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quorate_protocol::ServerAddress;
use quorate_server_discovery::{DiscoveryEvent, TopologyDescription};

use crate::discovery::Discovery;
use crate::pool::{PoolCounts, PoolEventKind};

/// A number that only rises.
#[derive(Debug, Default)]
struct Counter(AtomicU64);

impl Counter {
    fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    fn add_time(&self, time: Duration) {
        self.add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn time(&self) -> Duration {
        Duration::from_nanos(self.get())
    }
}

/// What a client counts about itself.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    commands_started: Counter,
    commands_succeeded: Counter,
    commands_failed: Counter,
    commands_retried: Counter,
    selections: Counter,
    selections_waited: Counter,
    selections_failed: Counter,
    selection_wait: Counter,
    topology_changes: Counter,
}

impl Counters {
    pub(crate) fn command_started(&self) {
        self.commands_started.add(1);
    }

    pub(crate) fn command_ended(&self, succeeded: bool) {
        let counter = if succeeded { &self.commands_succeeded } else { &self.commands_failed };
        counter.add(1);
    }

    pub(crate) fn command_retried(&self) {
        self.commands_retried.add(1);
    }

    /// A server was found, or not, after so much waiting.
    pub(crate) fn selection_ended(&self, waited: Option<Duration>, succeeded: bool) {
        self.selections.add(1);
        if let Some(waited) = waited {
            self.selections_waited.add(1);
            self.selection_wait.add_time(waited);
        }
        if !succeeded {
            self.selections_failed.add(1);
        }
    }
}

/// The counters of one server.
#[derive(Debug, Default)]
pub(crate) struct ServerCounters {
    checks_started: Counter,
    checks_succeeded: Counter,
    checks_failed: Counter,
    connections_created: Counter,
    connections_closed: Counter,
    check_outs: Counter,
    check_outs_failed: Counter,
    check_out_wait: Counter,
    pool_cleared: Counter,
}

impl ServerCounters {
    /// A connection was checked out without a wait.
    pub(crate) fn check_out_at_once(&self) {
        self.check_outs.add(1);
    }

    pub(crate) fn on_pool_event(&self, event: &PoolEventKind) {
        match event {
            PoolEventKind::ConnectionCreated { .. } => self.connections_created.add(1),
            PoolEventKind::ConnectionClosed { .. } => self.connections_closed.add(1),
            PoolEventKind::CheckedOut { duration, .. } => {
                self.check_outs.add(1);
                // Most callers do not wait.
                if !duration.is_zero() {
                    self.check_out_wait.add_time(*duration);
                }
            }
            PoolEventKind::CheckOutFailed { duration, .. } => {
                self.check_outs_failed.add(1);
                self.check_out_wait.add_time(*duration);
            }
            PoolEventKind::PoolCleared { .. } => self.pool_cleared.add(1),
            PoolEventKind::PoolCreated { .. }
            | PoolEventKind::PoolReady
            | PoolEventKind::PoolClosed
            | PoolEventKind::ConnectionReady { .. }
            | PoolEventKind::CheckOutStarted
            | PoolEventKind::CheckedIn { .. } => {}
        }
    }
}

/// The counters of the servers in the topology, and no others.
#[derive(Debug, Default)]
pub(crate) struct ServerTable(BTreeMap<ServerAddress, Arc<ServerCounters>>);

impl ServerTable {
    pub(crate) fn of(&mut self, address: &ServerAddress) -> &Arc<ServerCounters> {
        // Two look-ups where the server is known, and no copy of its name.
        if !self.0.contains_key(address) {
            self.0.insert(address.clone(), Arc::default());
        }
        &self.0[address]
    }

    pub(crate) fn on_event(&mut self, event: &DiscoveryEvent, counters: &Counters) {
        match event {
            DiscoveryEvent::ServerHeartbeatStarted { heartbeat } => {
                self.of(&heartbeat.address).checks_started.add(1);
            }
            DiscoveryEvent::ServerHeartbeatSucceeded { heartbeat, .. } => {
                self.of(&heartbeat.address).checks_succeeded.add(1);
            }
            DiscoveryEvent::ServerHeartbeatFailed { heartbeat, .. } => {
                self.of(&heartbeat.address).checks_failed.add(1);
            }
            DiscoveryEvent::ServerClosed { address, .. } => {
                self.0.remove(address);
            }
            DiscoveryEvent::TopologyDescriptionChanged { .. } => counters.topology_changes.add(1),
            _ => {}
        }
    }

    fn snapshot(&self, address: &ServerAddress) -> Option<Arc<ServerCounters>> {
        self.0.get(address).cloned()
    }
}

/// The counters of a client at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Metrics {
    /// Commands sent.
    pub commands_started: u64,
    /// Commands that a server answered with `ok: 1`.
    pub commands_succeeded: u64,
    /// Commands that a server refused, or whose connection failed.
    pub commands_failed: u64,
    /// Commands sent again after an error.
    pub commands_retried: u64,
    /// Server selections that ended.
    pub selections: u64,
    /// Server selections that had to wait for a suitable server.
    pub selections_waited: u64,
    /// Server selections that ended without a server.
    pub selections_failed: u64,
    /// The time spent waiting for suitable servers.
    pub selection_wait: Duration,
    /// Changes of the topology.
    pub topology_changes: u64,
    /// The counters of each server.
    pub servers: Vec<ServerMetrics>,
}

/// The counters of one server, and its current state.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerMetrics {
    /// The server.
    pub address: ServerAddress,
    /// What it is now, in the specification's word.
    pub server_type: &'static str,
    /// The average round trip time.
    pub round_trip_time: Option<Duration>,
    /// The pool now.
    pub pool: PoolCounts,
    /// Operations that run on it now.
    pub operations: u64,
    /// Checks started.
    pub checks_started: u64,
    /// Checks answered.
    pub checks_succeeded: u64,
    /// Checks that failed.
    pub checks_failed: u64,
    /// Pooled connections made.
    pub connections_created: u64,
    /// Pooled connections closed.
    pub connections_closed: u64,
    /// Connections handed out.
    pub check_outs: u64,
    /// Callers that got none.
    pub check_outs_failed: u64,
    /// The time that callers waited for connections.
    pub check_out_wait: Duration,
    /// How often the pool was cleared.
    pub pool_cleared: u64,
}

impl Metrics {
    pub(crate) fn take(
        counters: &Counters,
        servers: &ServerTable,
        description: &TopologyDescription,
        discovery: &Discovery,
    ) -> Self {
        let servers = description.servers().iter().filter_map(|server| {
            let counted = servers.snapshot(server.address())?;
            let handle = discovery.server(server.address());
            Some(ServerMetrics {
                address: server.address().clone(),
                server_type: server.server_type().name(),
                round_trip_time: server.round_trip_time(),
                pool: handle.as_ref().map(|handle| handle.pool().counts()).unwrap_or_default(),
                operations: handle.map_or(0, |handle| handle.operation_count()),
                checks_started: counted.checks_started.get(),
                checks_succeeded: counted.checks_succeeded.get(),
                checks_failed: counted.checks_failed.get(),
                connections_created: counted.connections_created.get(),
                connections_closed: counted.connections_closed.get(),
                check_outs: counted.check_outs.get(),
                check_outs_failed: counted.check_outs_failed.get(),
                check_out_wait: counted.check_out_wait.time(),
                pool_cleared: counted.pool_cleared.get(),
            })
        });
        Self {
            commands_started: counters.commands_started.get(),
            commands_succeeded: counters.commands_succeeded.get(),
            commands_failed: counters.commands_failed.get(),
            commands_retried: counters.commands_retried.get(),
            selections: counters.selections.get(),
            selections_waited: counters.selections_waited.get(),
            selections_failed: counters.selections_failed.get(),
            selection_wait: counters.selection_wait.time(),
            topology_changes: counters.topology_changes.get(),
            servers: servers.collect(),
        }
    }
}
