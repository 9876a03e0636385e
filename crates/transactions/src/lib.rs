//! What a primary knows about multi-document transactions, as a value.
//!
//! The crate owns the state of every session's newest transaction, which transaction holds which key
//! ([`Transactions::claim`]), which keys were changed since the oldest open snapshot, how long a
//! transaction may live and how much it may hold, and which labels go with which error
//! ([`labels`]). Documents, snapshots, the log and the clock belong to the host. Calls come under the
//! host's write lock; the time is an argument and every map is ordered.
//!
//! ```text
//!                       begin                       commit
//!   (number unknown) ───────────▶  in progress  ─────────────▶  committed
//!                                   │   ▲   │                   (in the log: the host remembers it)
//!                    statement ends │   │   │ any error, abort, greater number,
//!                                   └───┘   │ lifetime, killed session, step-down
//!                                           ▼
//!                                        aborted
//!                                        (in memory only; forgotten by a step-down)
//! ```
//!
//! What is *logged* about a session (its last retryable write or committed transaction) is stored by the
//! host and passed to [`Transactions::arrive`]; what never reached the log lives here. A step-down
//! clears this value ([`Transactions::step_down`]), so that a member that becomes primary again decides
//! by the log alone: it may see a number again that it has seen before (SERVER-47645).
//!
//! Conflicts are decided by keys and by the order of commits, never by comparing values: a value that
//! was changed and changed back is a conflict. The first updater wins: the second transaction is told in
//! its statement, not when it commits.
//!
//! Specification: `transactions/transactions.md`. `docs/transactions.md` states the guarantees.

mod keys;
mod labels;
mod table;
mod verdict;

pub use keys::Conflict;
pub use labels::{Label, Place, labels};
pub use table::{
    Limits, Listed, MAX_RECENT_BYTES, MAX_TRANSACTION_BYTES, Statistics, TransactionId,
    Transactions,
};
pub use verdict::{AbortReason, Arrival, Kind, Refusal, Stored, StoredState, Verdict};

/// The examples of the README are run as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
