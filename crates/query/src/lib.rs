//! Queries, updates, projections and sorts over BSON documents.
//!
//! Everything here is a pure function of its arguments: no clock, no randomness, no I/O. Text that
//! a client sent is parsed once into a value (`Matcher`, `Update`, …) and that value is then
//! applied to any number of documents. Storage, indexes and the wire belong to other crates.

pub mod diff;
pub mod error;
pub mod evaluate;
pub mod matcher;
pub mod projection;
pub mod sort;
pub mod update;
pub mod value;

pub use error::{ErrorCode, QueryError};
pub use evaluate::{Expression, ExpressionCompiler, NoExpressions};
pub use matcher::Matcher;
pub use projection::Projection;
pub use sort::SortPattern;
pub use update::{Update, UpdateContext};

pub mod expression;
pub mod pipeline;
