//! A member of a replica set as one driven value: the rules of `quorate-replication` joined to the
//! data of `quorate-node`.
//!
//! ```text
//!   inputs, fetched batches, ended jobs, time ─▶ Replica ─▶ orders: send, fetch, persist, change
//!                                                  │        data, copy, answer, show
//!                                                  └─▶ Node: gate, standing, hello
//! ```
//!
//! [`Replica`] starts no thread, opens no file or socket and reads no clock. A host carries its orders
//! out: `quorate-server` with threads and sockets, `quorate-simulator` in a world of its own. What a
//! job does to the data is here as well ([`DataChange::make`], [`Copying`], [`EntrySource`],
//! [`CommonPointSearch`]), so both
//! hosts run the same code and differ in threads and clock.

mod change;
mod common_point;
mod copying;
mod progress;
mod replica;
mod source;
mod view;

pub use change::{ChangeEnded, DataChange, Entries};
pub use common_point::{COMPARED_AT_ONCE, CommonPointSearch, SearchAsk};
pub use copying::{Ask, CopyFailure, CopyWork, Copying, apply_copied, batch_of};
pub use progress::CloneProgress;
pub use replica::{Fetched, Order, Replica};
pub use source::{EntrySource, MAX_BATCH_BYTES, MAX_BATCH_ENTRIES, SentBatch};
pub use view::{RoleView, SetView};

/// The examples of the README are run as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
