//! Ordered keyspaces with snapshots, atomic batches and explicit durability.
//!
//! ```text
//!   Batch ──commit──▶ visible to new snapshots ──sync_through──▶ survives a crash
//! ```
//!
//! The crate owns the [`Store`] trait, its two implementations ([`LsmStore`] on disk and
//! [`ModelStore`] in memory, with writes that can be lost on purpose), and the order-preserving
//! encoding of BSON values into keys ([`key`]). What the keys and values mean is left to the
//! member built on top. Nothing here reads a clock or draws a random number; only `LsmStore`
//! touches files. Every byte on disk is accounted for in `docs/storage-format.md`.

mod format;
mod group_commit;
pub mod key;
mod lsm;
mod model;
mod store;
mod torn;

pub use format::{FORMAT_VERSION, OpenError};
pub use lsm::{LsmOptions, LsmStore};
pub use model::ModelStore;
pub use store::{
    Batch, Bytes, CommitError, CommitSequence, Direction, KeyRange, KeyspaceError, KeyspaceId,
    MAX_KEY_LENGTH, MAX_KEYSPACE_NAME_LENGTH, ReadError, Scan, Snapshot, Store, StoreStatistics,
    SyncError,
};
pub use torn::TornTail;
