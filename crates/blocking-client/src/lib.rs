#![doc = include_str!("../README.md")]
//!
//! Servers are checked inside the application's own calls, one after the other, when an operation needs to know. Everything
//! about which server is what, and which suits an operation, is decided by the same core that the asynchronous client uses
//! (`quorate-server-discovery`).
//!
//! # What to expect
//!
//! - **One connection for each server**, opened by the first look at it, and used for checks and
//!   operations alike. [`Client`] is not shared: give each thread its own.
//! - **Scans happen inside calls**: before the first operation, when `heartbeatFrequencyMS` (60 s by
//!   default) have passed since the last one, and when the topology is known to be out of date. With
//!   servers that do not answer, a scan takes up to twice `connectTimeoutMS` for each of them;
//!   one that failed is left alone for 5 s, unless it had answered before. Keep the seed list short.
//! - **Selection tries once** (`serverSelectionTryOnce`, on by default): it takes as long as one
//!   scan at most. Switched off, it goes on for `serverSelectionTimeoutMS` plus the time of one scan.
//! - **A connection idle for 5 s is pinged** before it is used; if it is dead, another server is
//!   selected, once.
//! - **Logins** (SCRAM, X.509) are made before the first operation on a connection. Checks need none,
//!   so that a wrong password hides no server and the operation that needs it reports it.
//! - **Reads are retried once** after an error that a failover may explain; writes never are, but
//!   for the commit and the abort of a transaction.
//! - **What an overloaded server turned away is sent again**, after a pause that grows, as often as
//!   `maxAdaptiveRetries` says, which is twice at most by default.
//! - **Sessions are explicit**: [`Client::in_session`] lends one to the client, for transactions
//!   ([`InSession::with_transaction`]), causal consistency and snapshots.
//! - **Change streams** ([`Client::watch`]) are iterators that wait for the next change and go on
//!   with another server when theirs is lost.
//! - **Errors explain**: a failed selection tells about each server what speaks against it, and what
//!   to do ([`OperationError::NoServer`]).
//!
//! # What it is not
//!
//! Connection strings that ask for what would be unsafe to ignore are refused. Names
//! are resolved by the operating system without a time limit. `mongodb+srv://` needs the feature
//! `srv`, whose resolver runs a private runtime on the calling thread for as long as it asks, and
//! [`Client::connect`]; the list is asked for once.

mod authentication;
mod check;
mod client;
#[expect(clippy::disallowed_methods, reason = "the one place that reads the clock")]
mod clock;
mod collection;
mod connection;
mod cursor;
mod error;
mod handshake;
#[expect(clippy::disallowed_types, reason = "the one place that opens sockets")]
mod net;
mod operation;
mod options;
mod select;
mod session;
mod srv;
mod watch;

pub use authentication::{AuthenticationCause, AuthenticationError};
pub use client::{Client, EventListener};
pub use clock::{Clock, SystemClock};
pub use collection::{Extent, FindOptions, Namespace, UpdateOutcome, UpdateStatement};
pub use connection::ConnectionError;
pub use cursor::{Cursor, MAX_EMPTY_BATCHES, ParkedCursor};
pub use error::{OperationError, WriteFailure};
pub use net::DialError;
pub use options::{ClientOptions, StartError};
pub use session::{InSession, Session, TransactionFailure};
pub use watch::{ChangeStream, WatchOptions, Watched};

pub use quorate_client_session::{
    ChangeStreamStart, DEFAULT_SERVER_SELECTION_TIMEOUT, Phase as TransactionPhase, SessionOptions,
    TRANSIENT_TRANSACTION_ERROR, TransactionError, TransactionOptions,
    UNKNOWN_TRANSACTION_COMMIT_RESULT, WriteConcern, WriteError,
};
pub use quorate_server_discovery::DiscoveryEvent;
pub use quorate_tls_config::{TlsError, TlsOptions};
