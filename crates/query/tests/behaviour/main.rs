//! The documented behaviour of queries, updates, projections and sorts, one operator at a time.

// A panic in a test is its report.
#![allow(clippy::unwrap_used)]

mod bounds;
mod matcher;
mod matcher_errors;
mod schema;
mod support;
