//! How one member of a replica set votes, leads, follows and commits, without I/O.
#![cfg_attr(test, allow(clippy::unwrap_used))]
pub mod commit_point;
pub mod config_check;
pub mod election;
pub mod quorum;
mod random;
pub mod reconfig_check;
pub mod sync_source;
#[cfg(test)]
mod testing;
mod write_concern;
pub use random::SeededRandom;
pub use write_concern::{
    Acknowledgements, UnsatisfiableWriteConcern, WriteConcern, WriteConcernError,
};
