#![doc = include_str!("../README.md")]
//!
//! Every rule here takes what happened, the time and the chance as arguments and returns what to do.
//!
//! - [`OperationLoop`]: what to do next with an operation: select a server, send, wait, or give up
//!   (Retryable Reads, Retryable Writes and Client Backpressure specifications).
//! - [`SessionState`]: a session as the application knows it, and what its commands carry.
//! - [`ServerSession`]: a session as the server knows it (Driver Sessions specification).
//! - [`Transaction`]: the states of a transaction in one session, and the fields that its commands
//!   carry (Transactions specification).
//! - [`Attempts`]: how often and how soon `with_transaction` tries again (Convenient API for
//!   Transactions specification).
//! - [`Snapshot`]: the one moment that all reads of a snapshot session see (Snapshot Reads
//!   specification).
//! - [`write_errors`] and [`with_id`]: failed writes in a reply, and the `_id` of documents to insert (CRUD specification).
//! - [`ResumePoint`]: where a change stream goes on after an error (Change Streams specification).

use std::time::Duration;

use quorate_connection_string::Options;
use quorate_wire::CompressorId;

mod attempts;
mod change_stream;
mod cursor;
mod labels;
mod operation_loop;
mod read_preference;
mod server_session;
mod session;
mod snapshot;
mod transaction;
mod write_concern;
mod writes;

pub use attempts::{
    Attempts, BACKOFF_INITIAL, BACKOFF_MAX, OutOfTime, WITH_TRANSACTION_LIMIT, retried_transaction,
};
pub use change_stream::{
    ChangeStreamStart, MissingToken, RESUMABLE_CHANGE_STREAM_ERROR, ResumePoint,
    is_resumable_change_stream_error,
};
pub use cursor::CursorState;
pub use labels::{
    Failure, RETRYABLE_WRITE_ERROR, TRANSIENT_TRANSACTION_ERROR, UNKNOWN_TRANSACTION_COMMIT_RESULT,
    is_transient, is_unknown_commit,
};
pub use operation_loop::{
    DEFAULT_MAX_ADAPTIVE_RETRIES, NO_WRITES_PERFORMED, Next, OperationKind, OperationLoop, Purpose,
    RETRYABLE_ERROR, Retry, RetryRules, Role, SYSTEM_OVERLOADED_ERROR, SelectedServer,
    is_retryable_read, label_for_retryable_write,
};
pub use read_preference::add_read_preference;
pub use server_session::ServerSession;
pub use session::{
    IdleSessions, SessionError, SessionOptions, SessionState, SessionUse, read_concern,
};
pub use snapshot::{SNAPSHOT_WIRE_VERSION, Snapshot, SnapshotError};
pub use transaction::{
    COMMIT_RETRY_W_TIMEOUT, Ending, Phase, Statement, Transaction, TransactionError,
    TransactionOptions,
};
pub use write_concern::WriteConcern;
pub use writes::{WriteError, count, with_id, write_errors};

/// `serverSelectionTimeoutMS` unless told otherwise.
pub const DEFAULT_SERVER_SELECTION_TIMEOUT: Duration = Duration::from_secs(30);

/// `compressors` of a connection string, the preferred one first.
pub fn compressors(options: &Options) -> Vec<CompressorId> {
    let given = options.compressors.iter().flatten();
    given.filter_map(|compressor| CompressorId::from_name(compressor.name())).collect()
}
