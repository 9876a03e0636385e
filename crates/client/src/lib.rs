#![doc = include_str!("../README.md")]
//!
//! All decisions about servers are made by `quorate-server-discovery`, which knows no sockets; this crate carries them out.
//!
//! ```text
//!   Client ─▶ operation ─▶ Discovery (the core and its published description)
//!                │              │ commands          ▲ replies, failures
//!                ▼              ▼                   │
//!              Pool ─▶ Connection ◀──────────── monitor checks
//!                          │
//!                    net, tls, handshake, authentication
//! ```

mod action;
mod authentication;
mod bulk;
mod client;
mod clock;
mod collection;
mod command_event;
mod connection;
mod cursor;
mod database;
pub mod dial;
mod discovery;
mod error;
mod establish;
mod extended_json;
mod handshake;
mod listeners;
mod logging;
mod metadata;
mod metrics;
mod monitor;
mod net;
mod operation;
mod options;
mod pace;
pub mod pool;
mod reauthentication;
mod selection;
mod session;
mod srv;
mod tap;
mod tls;
mod transaction;
mod value;
mod watch;

pub use action::admin::{
    CreateCollection, CreateIndex, Drop, List, ListDatabases, RunCommand, RunCursorCommand,
};
pub use action::read::{Aggregate, Count, CountDocuments, CursorType, Distinct, Find, FindOne};
pub use action::write::{
    BulkWrite, Delete, FindAndModify, InsertMany, InsertOne, ReturnDocument, Update, UpdateResult,
};
pub use bulk::{BulkWriteResult, WriteModel};
pub use client::{Client, EVENT_BUFFER};
pub use clock::Clock;
pub use collection::Collection;
pub use command_event::{CommandEvent, CommandEventKind, OperationId, is_sensitive};
pub use cursor::Cursor;
pub use database::Database;
pub use discovery::{ClientEvent, EventListener};
pub use error::{ClientError, Error, ErrorKind, WriteFailure};
pub use handshake::ServerApi;
pub use metadata::DriverInfo;
pub use metrics::{Metrics, ServerMetrics};
pub use options::{ClientOptions, DEFAULT_LOGGED_DOCUMENT_LENGTH};
pub use pace::{Pace, Pause};
pub use quorate_client_session::{
    DEFAULT_MAX_ADAPTIVE_RETRIES, DEFAULT_SERVER_SELECTION_TIMEOUT, NO_WRITES_PERFORMED,
    Phase as TransactionPhase, RETRYABLE_ERROR, RETRYABLE_WRITE_ERROR, SYSTEM_OVERLOADED_ERROR,
    SessionOptions, TRANSIENT_TRANSACTION_ERROR, TransactionError, TransactionOptions,
    UNKNOWN_TRANSACTION_COMMIT_RESULT, WriteConcern, WriteError,
};
pub use quorate_protocol::PROMETHEUS_CONTENT_TYPE;
pub use session::Session;
pub use tap::Tap;
pub use tls::{TlsError, TlsOptions};
pub use transaction::{TransactionFailure, WithTransaction, Work};
pub use value::{IntoRaw, IntoValue};
pub use watch::{ChangeStream, Watch};
