//! Judges histories of transactions from outside, by what clients saw.
//!
//! Two workloads are understood. In *list append* every transaction reads lists and appends values
//! that no other transaction appends; from the lists that were read follow the order of the writes and
//! who read what ([`list_append`]). In *bank* every transaction moves money between accounts; every
//! read of all accounts must add up ([`bank`]).
//!
//! Anomalies have the names of Adya's thesis, "Weak Consistency: A Generalized Theory and Optimistic
//! Implementations for Distributed Transactions" (1999); [`Anomaly::is_allowed_by`] says which of them an
//! isolation level bears. The crate runs nothing and reads no clock: histories go in, anomalies come out.

mod bank;
mod graph;
mod list_append;

pub use bank::{BankAnomaly, BankRead, bank};
pub use graph::Edge;
pub use list_append::{Anomaly, Isolation, Operation, Outcome, Transaction, list_append};
