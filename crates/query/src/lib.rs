#![doc = include_str!("../README.md")]
//!
//! Text that a client sent is parsed once into a value ([`Matcher`], [`Update`], …), which is then applied to any number of
//! documents.
//!
//! | module | what it answers |
//! |---|---|
//! | [`value`] | which of two values comes first, what a path leads to, what numbers add up to |
//! | [`matcher`] | whether a document matches, and which index keys could |
//! | [`update`] | what a document becomes, and what an upsert inserts |
//! | [`Projection`] | what a find shows of a document |
//! | [`SortPattern`] | which of two documents comes first |
//! | [`expression`] | what an aggregation expression computes from a document |
//! | [`pipeline`] | what the stages of an aggregation make of documents |
//! | [`Meter`] | how long an operation may go on, and how much memory it may hold |
//! | [`diff`] | what the oplog says about a change |

#[macro_use]
mod error;

pub mod diff;
pub mod expression;
mod external_sort;
pub mod matcher;
mod meter;
mod part;
pub mod pipeline;
mod plain_delta;
mod projection;
mod regex;
mod sort;
mod sorting;
mod typed;
pub mod update;
pub mod value;

pub use error::{ErrorCode, QueryError, Result};
pub use external_sort::{SortRoom, Sorter};
pub use matcher::Matcher;
pub use meter::{Charge, Interrupt, Kept, Meter, ProcessMemory};
pub use part::Part;
pub use plain_delta::PlainDelta;
pub use projection::Projection;
pub use sort::SortPattern;
pub use update::{PlainChange, PlainUpdate, Update, UpdateContext};
