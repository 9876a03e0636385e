//! What the core is told, and what it wants done.
//!
//! [`Input`] and [`Output`] are the whole contract between [`Topology`](crate::Topology) and the
//! shell that owns sockets, pools and the clock.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use quorate_protocol::{HelloCommand, HelloReply, ObjectId, ServerAddress, TopologyVersion};

use crate::event::{DiscoveryEvent, MonitorConnectionId};
use crate::fault::{ApplicationError, CheckFailure};
use crate::topology_description::TopologyDescription;

/// Tells checks apart, so that a late reply to a cancelled one is recognised and dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CheckId(pub u64);

impl fmt::Display for CheckId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How often a pool was cleared. Connections carry the generation they were made in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PoolGeneration(pub u64);

impl fmt::Display for PoolGeneration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Something that happened to the shell.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// A check ended in a reply.
    HelloReceived {
        /// The server.
        server: ServerAddress,
        /// The check.
        check: CheckId,
        /// What the server said.
        reply: Arc<HelloReply>,
        /// How long it took, counted from sending the command; on a new connection without the time
        /// it took to connect.
        round_trip: Duration,
        /// The reply had `moreToCome`: another one follows unasked.
        more_to_come: bool,
    },
    /// A check ended without a usable reply. The shell has closed the monitoring connection.
    CheckFailed {
        /// The server.
        server: ServerAddress,
        /// The check.
        check: CheckId,
        /// What went wrong.
        failure: CheckFailure,
    },
    /// A round trip was measured, or could not be.
    RoundTripMeasured {
        /// The server.
        server: ServerAddress,
        /// The measurement that was asked for.
        check: CheckId,
        /// How long it took; `None` if it failed, which says nothing about the server.
        round_trip: Option<Duration>,
    },
    /// A pooled connection was established, and its handshake brought a reply.
    HandshakeReceived {
        /// The server.
        server: ServerAddress,
        /// What the server said.
        reply: Arc<HelloReply>,
    },
    /// An operation, or the establishment of a pooled connection, failed.
    ApplicationFailed {
        /// The server.
        server: ServerAddress,
        /// The generation of the connection; of the pool when establishing began, if it failed
        /// before there was a connection.
        generation: PoolGeneration,
        /// The service behind a load balancer, once the handshake has told it.
        service_id: Option<ObjectId>,
        /// How far the connection was.
        handshake: HandshakeProgress,
        /// The `maxWireVersion` of the connection; 0 if it has not told any.
        max_wire_version: i32,
        /// The error carries the `SystemOverloadedError` label.
        overloaded: bool,
        /// What went wrong.
        cause: ApplicationError,
    },
    /// Selection found nothing suitable.
    CheckWanted,
    /// Single-threaded clients: scan every server.
    ScanWanted,
    /// Single-threaded clients: check this one server.
    ServerCheckWanted {
        /// The server.
        server: ServerAddress,
    },
    /// The seed list was resolved again.
    SeedsResolved(Vec<ServerAddress>),
    /// Time has passed: [`next_deadline`](crate::Topology::next_deadline) was reached.
    Tick,
    /// The client closes.
    Close,
}

quorate_protocol::named! {
    /// How far a connection was when it failed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum HandshakeProgress {
        /// Connecting, or waiting for the reply to its hello.
        Connecting = "connecting",
        /// Authenticating.
        Authenticating = "authenticating",
        /// In use.
        Complete = "complete",
    }
}

/// Something that the shell has to do, in this order.
#[derive(Clone, Debug)]
pub enum Output {
    /// Publish this description for selection.
    ///
    /// A pool is made ready before the description that makes its server usable, and cleared after
    /// the one that makes it Unknown.
    Publish(Arc<TopologyDescription>),
    /// Tell the subscribers.
    Event(DiscoveryEvent),
    /// Do something about a server's monitor.
    Monitor {
        /// The server.
        server: ServerAddress,
        /// What to do.
        command: MonitorCommand,
    },
    /// Do something about a server's pool.
    Pool {
        /// The server.
        server: ServerAddress,
        /// What to do.
        command: PoolCommand,
    },
}

/// What to do about a server's monitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MonitorCommand {
    /// The server is new: make a monitor for it. No I/O yet.
    Start,
    /// Check the server, and answer with `HelloReceived` or `CheckFailed`.
    Check {
        /// To be given back with the answer.
        check: CheckId,
        /// The monitoring connection.
        connection: MonitorConnectionId,
        /// How to check.
        kind: CheckKind,
        /// Which command to send.
        hello: HelloCommand,
        /// How long each of connecting and waiting for the reply may take; `None` is without limit.
        timeout: Option<Duration>,
    },
    /// Measure a round trip on a connection of its own, and answer with `RoundTripMeasured`.
    MeasureRoundTrip {
        /// To be given back with the answer.
        check: CheckId,
        /// Which command to send once connected; a new connection begins like a check's.
        hello: HelloCommand,
        /// As for a check.
        timeout: Option<Duration>,
    },
    /// Close the connection that measures round trips; no answer is wanted any more.
    StopMeasuring,
    /// Close the monitoring connection at once; no answer to a check under way is wanted any more.
    Cancel,
    /// The server is gone: stop its monitor and close its connections. The last command for it.
    Stop,
}

/// How to check a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckKind {
    /// Open a new connection; the reply to its handshake is the check's.
    Connect,
    /// Send hello on the connection there is.
    Poll,
    /// Send an awaitable hello with `exhaustAllowed` on the connection there is.
    Await {
        /// The version the server is to improve upon.
        topology_version: TopologyVersion,
        /// `maxAwaitTimeMS`.
        max_await_time: Duration,
    },
    /// Read the next reply, which comes unasked.
    ReadNext,
}

impl CheckKind {
    /// Whether the server answers only when it has news.
    pub const fn is_awaited(self) -> bool {
        matches!(self, Self::Await { .. } | Self::ReadNext)
    }
}

/// What to do about a server's pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolCommand {
    /// Make a pool, paused, of generation 0.
    Open,
    /// Let connections be made and checked out.
    MarkReady,
    /// Close what is idle, pause, and take this generation from now on.
    Clear {
        /// The generation from now on.
        generation: PoolGeneration,
        /// Only connections to this service; such a pool is not paused.
        service_id: Option<ObjectId>,
        /// Close also what is in use.
        interrupt_in_use: bool,
    },
    /// Close everything.
    Close,
}

impl fmt::Display for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Publish(description) => write!(f, "publish {description}"),
            Self::Event(event) => write!(f, "event {event}"),
            Self::Monitor { server, command } => write!(f, "monitor {server} {command}"),
            Self::Pool { server, command } => write!(f, "pool {server} {command}"),
        }
    }
}

impl fmt::Display for MonitorCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start => f.write_str("start"),
            Self::Check { check, connection, kind, hello, timeout } => {
                write!(f, "check {check} on connection {connection}: {kind} {hello}")?;
                write_timeout(f, *timeout)
            }
            Self::MeasureRoundTrip { check, hello, timeout } => {
                write!(f, "measure {check}: {hello}")?;
                write_timeout(f, *timeout)
            }
            Self::StopMeasuring => f.write_str("stop measuring"),
            Self::Cancel => f.write_str("cancel"),
            Self::Stop => f.write_str("stop"),
        }
    }
}

fn write_timeout(f: &mut fmt::Formatter<'_>, timeout: Option<Duration>) -> fmt::Result {
    match timeout {
        Some(timeout) => write!(f, " within {timeout:?}"),
        None => f.write_str(" without limit"),
    }
}

impl fmt::Display for CheckKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect => f.write_str("connect"),
            Self::Poll => f.write_str("poll"),
            Self::Await { topology_version, max_await_time } => {
                write!(f, "await past {} for {max_await_time:?}", topology_version.counter)
            }
            Self::ReadNext => f.write_str("read next"),
        }
    }
}

impl fmt::Display for PoolCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open => f.write_str("open"),
            Self::MarkReady => f.write_str("ready"),
            Self::Clear { generation, service_id, interrupt_in_use } => {
                write!(f, "clear to generation {generation}")?;
                if let Some(service_id) = service_id {
                    write!(f, " for service {service_id}")?;
                }
                if *interrupt_in_use { f.write_str(", interrupting") } else { Ok(()) }
            }
            Self::Close => f.write_str("close"),
        }
    }
}
