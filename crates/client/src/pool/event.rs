//! What a pool tells about itself, in the words of the pooling specification.

use std::fmt;
use std::time::Duration;

use quorate_protocol::{ObjectId, ServerAddress};

use super::options::PoolOptions;

/// The number of a connection within its pool: 1, 2, 3, in order of creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Something that happened in the pool of one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolEvent {
    /// The server.
    pub address: ServerAddress,
    /// What happened.
    pub kind: PoolEventKind,
    /// Why a connection could not be established, where the event comes from that.
    pub error: Option<String>,
}

/// What can happen in a pool. Each variant is one event of the specification.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PoolEventKind {
    /// `PoolCreated`.
    PoolCreated {
        /// How the pool is set up.
        options: Box<PoolOptions>,
    },
    /// `PoolReady`.
    PoolReady,
    /// `PoolCleared`.
    PoolCleared {
        /// The service behind a load balancer whose connections are stale now.
        service_id: Option<ObjectId>,
        /// Whether operations were interrupted.
        interrupt_in_use_connections: bool,
    },
    /// `PoolClosed`.
    PoolClosed,
    /// `ConnectionCreated`: it has a number, and no socket yet.
    ConnectionCreated {
        /// The connection.
        connection: ConnectionId,
    },
    /// `ConnectionReady`: it is established.
    ConnectionReady {
        /// The connection.
        connection: ConnectionId,
        /// How long that took.
        duration: Duration,
    },
    /// `ConnectionClosed`.
    ConnectionClosed {
        /// The connection.
        connection: ConnectionId,
        /// The reason.
        reason: CloseReason,
    },
    /// `ConnectionCheckOutStarted`.
    CheckOutStarted,
    /// `ConnectionCheckOutFailed`.
    CheckOutFailed {
        /// The reason.
        reason: CheckOutFailureReason,
        /// How long the caller waited.
        duration: Duration,
    },
    /// `ConnectionCheckedOut`.
    CheckedOut {
        /// The connection.
        connection: ConnectionId,
        /// How long the caller waited.
        duration: Duration,
    },
    /// `ConnectionCheckedIn`.
    CheckedIn {
        /// The connection.
        connection: ConnectionId,
    },
}

impl PoolEventKind {
    /// The sentence that the specification logs for this event.
    pub const fn message(&self) -> &'static str {
        match self {
            Self::PoolCreated { .. } => "Connection pool created",
            Self::PoolReady => "Connection pool ready",
            Self::PoolCleared { .. } => "Connection pool cleared",
            Self::PoolClosed => "Connection pool closed",
            Self::ConnectionCreated { .. } => "Connection created",
            Self::ConnectionReady { .. } => "Connection ready",
            Self::ConnectionClosed { .. } => "Connection closed",
            Self::CheckOutStarted => "Connection checkout started",
            Self::CheckOutFailed { .. } => "Connection checkout failed",
            Self::CheckedOut { .. } => "Connection checked out",
            Self::CheckedIn { .. } => "Connection checked in",
        }
    }

    /// How long what it tells about took.
    pub const fn duration(&self) -> Option<Duration> {
        match *self {
            Self::ConnectionReady { duration, .. }
            | Self::CheckOutFailed { duration, .. }
            | Self::CheckedOut { duration, .. } => Some(duration),
            _ => None,
        }
    }

    /// Whether the event may come from a connection that could not be established.
    pub const fn is_failure(&self) -> bool {
        matches!(
            self,
            Self::ConnectionClosed { reason: CloseReason::Error, .. }
                | Self::CheckOutFailed { reason: CheckOutFailureReason::ConnectionError, .. }
        )
    }

    /// The connection that the event is about.
    pub const fn connection(&self) -> Option<ConnectionId> {
        match *self {
            Self::ConnectionCreated { connection }
            | Self::ConnectionReady { connection, .. }
            | Self::ConnectionClosed { connection, .. }
            | Self::CheckedOut { connection, .. }
            | Self::CheckedIn { connection } => Some(connection),
            _ => None,
        }
    }
}

quorate_protocol::named! {
    /// Why a connection was closed.
    ///
    /// [`name`](Self::name) is the specification's word.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub enum CloseReason {
        /// The pool was cleared since the connection was made.
        Stale = "stale",
        /// The connection was idle for `maxIdleTimeMS`.
        Idle = "idle",
        /// The connection broke, or its operation was given up halfway.
        Error = "error",
        /// The pool was closed.
        PoolClosed = "poolClosed",
    }
}

impl CloseReason {
    /// The specification's sentence for logs.
    pub const fn message(self) -> &'static str {
        match self {
            Self::Stale => "Connection became stale because the pool was cleared",
            Self::Idle => {
                "Connection has been available but unused for longer than the configured max idle \
                 time"
            }
            Self::Error => "An error occurred while using the connection",
            Self::PoolClosed => "Connection pool was closed",
        }
    }
}

quorate_protocol::named! {
    /// Why no connection was checked out.
    ///
    /// [`name`](Self::name) is the specification's word.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub enum CheckOutFailureReason {
        /// The pool was closed.
        PoolClosed = "poolClosed",
        /// `waitQueueTimeoutMS` passed.
        Timeout = "timeout",
        /// The pool is paused or was cleared, or the connection could not be established.
        ConnectionError = "connectionError",
    }
}

impl CheckOutFailureReason {
    /// The specification's sentence for logs.
    pub const fn message(self) -> &'static str {
        match self {
            Self::PoolClosed => "Connection pool was closed",
            Self::Timeout => "Wait queue timeout elapsed without a connection becoming available",
            Self::ConnectionError => "An error occurred while trying to establish a new connection",
        }
    }
}
