//! What a member of a set tells about itself and its log, asked of real processes.

#![allow(clippy::unwrap_used, reason = "a panic is the report")]
#![allow(dead_code, reason = "the set of processes is shared with other tests")]

#[path = "../replica_set/client.rs"]
mod client;
mod cluster_time;
mod config;
mod defaults;
mod explain;
mod locking;
mod oplog;
mod profile;
mod reading;
#[path = "../replica_set/set.rs"]
mod set;
mod step_down;
mod tools;
mod transactions;
mod waiting;
