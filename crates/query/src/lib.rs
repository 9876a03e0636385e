//! Queries, updates, projections and sorts over BSON documents.
//!
//! Everything here is a pure function of its arguments: no clock, no randomness, no I/O. Text that
//! a client sent is parsed once into a value (`Matcher`, `Update`, …) and that value is then
//! applied to any number of documents. Storage, indexes and the wire belong to other crates.
//!
//! | module | what it answers |
//! |---|---|
//! | [`value`] | which of two values comes first, what a path leads to, what numbers add up to |
//! | [`matcher`] | whether a document matches, and which index keys could |
//! | [`update`] | what a document becomes, and what an upsert inserts |
//! | [`projection`] | what of a document is shown |
//! | [`sort`] | which of two documents comes first |
//! | [`meter`] | how long an operation may go on, and how much memory it may hold |
//! | [`diff`] | what the oplog says about a change |
//!
//! ```
//! use bson::{DateTime, Timestamp, doc};
//! use quorate_query::{Matcher, Update, UpdateContext};
//!
//! let query = Matcher::parse(&doc! { "grades": { "$gte": 90 } })?;
//! let update = Update::parse(&doc! { "$set": { "grades.$": 100 } }.into())?;
//!
//! let student = doc! { "_id": 1, "grades": [85, 93] };
//! let details = query.matches_with_details(&student)?.expect("93 is enough");
//! let context = UpdateContext::new(DateTime::from_millis(0), Timestamp { time: 1, increment: 1 })
//!     .with_array_index(details.array_index);
//! let after = update.apply(&student, &context)?;
//! assert_eq!(after, Some(doc! { "_id": 1, "grades": [85, 100] }));
//! # Ok::<(), quorate_query::QueryError>(())
//! ```

pub mod diff;
mod error;
pub mod matcher;
mod meter;
mod part;
mod projection;
mod regex;
mod sort;
mod sorting;
mod typed;
pub mod update;
pub mod value;

pub use error::{ErrorCode, QueryError};
pub use matcher::Matcher;
pub use meter::{Charge, Interrupt, Kept, Meter, ProcessMemory};
pub use part::Part;
pub use projection::Projection;
pub use sort::SortPattern;
pub use sorting::sorted;
pub use update::{Update, UpdateContext};

pub mod expression;
pub mod pipeline;
