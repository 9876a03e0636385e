//! Judges what clients of a database were told.
//!
//! A [`History`] is a list of operations: when each began, when it ended, and what the client learnt. A checker looks
//! at a history alone, never at the database, and says whether the promised guarantee explains all of it:
//!
//! | checker | operations | guarantee |
//! |---|---|---|
//! | [`registers`] | read, write, compare-and-set | linearizability of each key |
//! | [`list_append`] | transactions that append to and read lists | snapshot isolation, serializability, strict serializability |
//! | [`bank`] | transfers, reads of all balances | the total never changes |
//! | [`sets`] | insertions, a read of everything | nothing acknowledged is lost, nothing appears from nowhere |
//! | [`counters`] | increments, reads | every read lies between acknowledged and attempted |
//! | [`sessions`] | reads and writes of rising versions | monotonic reads and reading one's own writes |
//! | [`change_events`] | what consumers of a change stream saw | every event, once beyond the stored token, in order |
//!
//! The crate does no I/O and reads no clock. Histories are JSON lines ([`History::from_lines`]) in the form that
//! Jepsen's Elle reads, so that other checkers can look at them as well.
//!
//! ```
//! use quorate_checker::{History, list_append};
//!
//! // Two transactions read the same version of key 1 and both append to it: one update is lost.
//! let history = History::from_lines(
//!     r#"{"type":"invoke","process":0,"time":1,"f":"txn","value":[["r",1,null],["append",1,10]]}
//!        {"type":"invoke","process":1,"time":2,"f":"txn","value":[["r",1,null],["append",1,20]]}
//!        {"type":"ok","process":0,"time":3,"f":"txn","value":[["r",1,[]],["append",1,10]]}
//!        {"type":"ok","process":1,"time":4,"f":"txn","value":[["r",1,[]],["append",1,20]]}
//!        {"type":"invoke","process":0,"time":5,"f":"txn","value":[["r",1,null]]}
//!        {"type":"ok","process":0,"time":6,"f":"txn","value":[["r",1,[10,20]]]}"#,
//! )?;
//! let verdict = list_append::check(&history, list_append::Model::SnapshotIsolation);
//! assert_eq!(verdict.anomalies[0].name, "G-single");
//! # Ok::<(), quorate_checker::HistoryError>(())
//! ```

pub mod bank;
pub mod change_events;
pub mod counters;
mod graph;
mod history;
pub mod list_append;
mod picture;
pub mod registers;
pub mod sessions;
pub mod sets;
mod verdict;

pub use history::{
    Action, History, HistoryError, MAX_OPERATIONS, MicroOperation, Operation, Outcome,
};
pub use verdict::{Anomaly, Step, Verdict};
