//! One member as a plain value: a catalog over a store, and command execution.
//!
//! ```text
//!   Command ──▶ dispatch ──▶ commands/* ──▶ plan, finder   (reads: a snapshot)
//!                                      └──▶ writer         (writes: one atomic batch)
//! ```
//!
//! A [`Node`] has no sockets and no clock. The shell around it reads commands from connections,
//! passes the time in a [`Context`], sends the [`Reply`], and does the waiting: for the disk
//! ([`Reply::durable`]), for events ([`Outcome::Wait`]), for fail points ([`Injection`]).
//! Queries, updates and aggregation are evaluated by `quorate-query`; bytes are kept by
//! `quorate-storage`.

#[macro_use]
mod error;

mod body;
mod catalog;
mod change_stream;
mod client_metadata;
mod command_table;
mod commands;
mod context;
mod counters;
mod cursors;
mod default_concerns;
mod dispatch;
mod durations;
mod fail_points;
mod fields;
mod finder;
mod generator;
mod generic_arguments;
mod hello_replies;
mod helpers;
mod index_keys;
mod index_sizes;
mod moments;
mod namespace;
mod node;
mod not_offered;
mod operations;
mod places;
mod plan;
mod profile;
mod protected;
mod record_scan;
mod records;
mod repeated_fields;
mod replication;
mod scheduling;
mod scratch;
mod select;
mod sessions;
mod sort;
mod structure;
mod tail;
#[cfg(test)]
mod test_support;
mod touched;
mod transactions;
mod ttl;
mod usage;
mod users;
mod writer;

pub use body::{CommandBody, NoSuchValue};
pub use change_stream::{Awaited, StreamWait, Wake};
pub use client_metadata::check_client_metadata;
pub use command_table::{Answerer, CommandFacts, InTransaction};
pub use commands::StreamedHello;
pub use context::{
    Certificate, Client, Command, Context, Durable, Interrupt, Interruption, MAX_SHORT_BYTES, Now,
    Outcome, Remains, Reply, WaitFor, check_document_count,
};
pub use cursors::{CURSOR_TIMEOUT, MAX_OPEN_CURSORS};
pub use default_concerns::DefaultConcerns;
pub use durations::tell_duration;
pub use error::{CommandError, ErrorCode, Result};
pub use fail_points::{Injection, MachineFaults};
pub use helpers::{Helpers, Job};
pub use namespace::{
    MAX_DATABASE_NAME_LENGTH, MAX_NAMESPACE_LENGTH, Namespace, check_database_name,
};
pub use node::{Block, DiskRoom, Node, NodeOptions};
pub use operations::{Connected, OperationId, Progress, Registered};
pub use records::DocumentBytes;
pub use replication::{
    AppendListener, Author, CopyBuffer, Decided, FailureListener, Horizons, IndexPrefetch,
    LogPositions, MAX_APPLY_ENTRIES, MAX_PENDING_VIEWS, OplogEntries, Published, RolledBack,
    Standing, StandingListener, Undo, entry_position, tells_of_state_change,
};
pub use scratch::{Scratch, ScratchFile};
pub use sessions::{MAX_SESSIONS, SESSION_TIMEOUT_MINUTES};
pub use users::Login;

/// The examples of the README are run as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
