//! What happened, for subscribers.
//!
//! Follows "Events API" in the SDAM Logging and Monitoring specification, whose names these are. The
//! structured log messages of that specification are made from the same events, in `log.rs`.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use quorate_protocol::{HelloReply, ServerAddress};

use crate::fault::CheckFailure;
use crate::removal::RemovalReason;
use crate::server_description::ServerDescription;
use crate::topology_description::TopologyDescription;

/// Tells topologies of one process apart. Chosen by the code that makes the topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct TopologyId(pub u64);

impl fmt::Display for TopologyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Tells the monitoring connections of one topology apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MonitorConnectionId(pub u64);

impl fmt::Display for MonitorConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Something that happened. Events come in the order in which the changes were made.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum DiscoveryEvent {
    /// The topology exists. Always the first.
    TopologyOpening,
    /// The topology differs in something that counts.
    TopologyDescriptionChanged {
        /// What it was.
        previous: Arc<TopologyDescription>,
        /// What it is.
        new: Arc<TopologyDescription>,
    },
    /// The topology is gone. Always the last.
    TopologyClosed,
    /// A server became part of the topology; it was not contacted yet.
    ServerOpening {
        /// The server.
        address: ServerAddress,
    },
    /// A server's description differs in a field that counts.
    ServerDescriptionChanged {
        /// What it was.
        previous: Arc<ServerDescription>,
        /// What it is.
        new: Arc<ServerDescription>,
    },
    /// A server is no longer part of the topology.
    ServerClosed {
        /// The server.
        address: ServerAddress,
        /// The reason.
        reason: RemovalReason,
    },
    /// A check began; a new connection was not opened yet.
    ServerHeartbeatStarted {
        /// Which check of which server.
        heartbeat: Heartbeat,
    },
    /// A check ended in a reply.
    ServerHeartbeatSucceeded {
        /// Which check of which server.
        heartbeat: Heartbeat,
        /// How long it took. Awaited replies do not measure the round trip.
        duration: Duration,
        /// What the server said.
        reply: Arc<HelloReply>,
    },
    /// A check ended in an error.
    ServerHeartbeatFailed {
        /// Which check of which server.
        heartbeat: Heartbeat,
        /// How long it took.
        duration: Duration,
        /// What went wrong.
        failure: Arc<CheckFailure>,
    },
    /// Something that a person should look at.
    Warning(Warning),
}

/// Which check an event is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// The server.
    pub address: ServerAddress,
    /// The monitoring connection.
    pub connection: MonitorConnectionId,
    /// Whether the server was asked to wait for news before it answers.
    pub awaited: bool,
}

/// Something that a person should look at.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Warning {
    /// The seed list was empty from the start.
    NoSeeds,
    /// The seed list is longer than any replica set.
    ManySeeds {
        /// How many seeds there are.
        count: usize,
    },
    /// The last server was dropped. Nothing can ever be added again.
    LastServerRemoved {
        /// The server.
        address: ServerAddress,
        /// Why it was dropped.
        reason: RemovalReason,
    },
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSeeds => f.write_str(
                "the seed list is empty, so no server can ever be found; name at least one host in \
                 the connection string",
            ),
            Self::ManySeeds { count } => write!(
                f,
                "the seed list names {count} hosts, each of which is connected to at the start; name \
                 two or three members of the set, which tell about the others"
            ),
            Self::LastServerRemoved { address, reason } => write!(
                f,
                "the last server, {address}, was removed ({reason}); no server can ever be found \
                 again: correct the connection string and reconnect"
            ),
        }
    }
}

impl fmt::Display for DiscoveryEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TopologyOpening => f.write_str("topology opening"),
            Self::TopologyDescriptionChanged { previous, new } => {
                write!(f, "topology changed: {previous} -> {new}")
            }
            Self::TopologyClosed => f.write_str("topology closed"),
            Self::ServerOpening { address } => write!(f, "server opening: {address}"),
            Self::ServerDescriptionChanged { previous, new } => {
                write!(f, "server changed: {} -> {new}", previous.server_type())
            }
            Self::ServerClosed { address, reason } => {
                write!(f, "server closed: {address}: {reason}")
            }
            Self::ServerHeartbeatStarted { heartbeat } => {
                write!(f, "heartbeat started: {heartbeat}")
            }
            Self::ServerHeartbeatSucceeded { heartbeat, duration, .. } => {
                write!(f, "heartbeat succeeded: {heartbeat} in {duration:?}")
            }
            Self::ServerHeartbeatFailed { heartbeat, duration, failure } => {
                write!(f, "heartbeat failed: {heartbeat} in {duration:?}: {failure}")
            }
            Self::Warning(warning) => write!(f, "warning: {warning}"),
        }
    }
}

impl fmt::Display for Heartbeat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let awaited = if self.awaited { ", awaited" } else { "" };
        write!(f, "{} on connection {}{awaited}", self.address, self.connection)
    }
}
