//! The documented behaviour of queries, updates, projections and sorts, one operator at a time.

// A panic in a test is its report.
#![allow(clippy::unwrap_used)]

mod bounds;
mod depth;
mod diff;
mod matcher;
mod matcher_errors;
mod plain_update;
mod projection;
mod properties;
mod schema;
mod support;
mod update;
mod update_arrays;
mod update_errors;
mod upsert;
