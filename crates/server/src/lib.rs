//! The shell around a member: listeners, connections, timers and shutdown.
//!
//! ```text
//!   TcpListener ──▶ Connection ──▶ Node::run ──▶ reply
//!                    │  │  waits for: the disk (one thread syncs for all), events, fail points
//!                    └──▶ MemberConnection ──▶ ReplicaSet    if another member is at the other end
//! ```
//!
//! Everything that needs a socket, a clock or a thread is here; what a command means is decided in
//! `quorate-node`. The listener and the end are given by the caller, so that tests use port 0 and
//! the program decides about signals. Needs a multi-thread runtime, because long commands hand
//! their worker over to other connections while they run.

mod accepting;
mod answering;
mod backup;
mod bounded_channel;
mod clock;
mod connection;
mod deadlines;
mod descriptors;
mod dialer;
mod disk;
mod durability;
mod hello_stream;
mod host_info;
mod key_files;
mod leaving;
mod logging;
mod member_connection;
mod memory;
mod net;
mod outgoing;
mod patience;
mod privacy;
mod replica_set;
mod scratch;
mod security;
mod server;
#[cfg(test)]
mod slow_disk_tests;
#[cfg(test)]
mod socket_calls_tests;
mod standby;
mod start;
mod tls;
mod write_gate;
mod write_turns;

pub use accepting::Listeners;
pub use backup::{Backup, BackupError, IncomingBackup, partial_of};
pub use key_files::KeyFilesError;
pub use logging::{LogFormat, log_to_stderr};
pub use memory::{Allocator, runtime};
pub use quorate_node::IndexPrefetch;
pub use replica_set::ReplicaSetOptions;
pub use security::{Membership, SecurityError};
pub use server::{MAX_CONNECTIONS, Server, ServerOptions};
pub use start::{Place, Running, StartError, StartOptions};
pub use tls::{TlsError, TlsMode, TlsOptions};

/// The examples of the README are run as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
