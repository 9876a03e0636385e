#![doc = include_str!("../README.md")]
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
//! [`History::from_lines`] reads the JSON lines; other checkers can read them as well.

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
