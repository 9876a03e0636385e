//! Ordered keyspaces with snapshots, atomic batches and explicit durability.
//!
//! ```text
//!   Batch ──commit──▶ visible to new snapshots ──sync_through──▶ survives a crash
//! ```
//!
//! The crate owns the [`Store`] trait, its two implementations ([`DiskStore`] on disk and
//! [`ModelStore`] in memory, with writes that can be lost on purpose), and the order-preserving
//! encoding of BSON values into keys ([`key`]). What the keys and values mean is left to the
//! member built on top. Nothing here reads a clock or draws a random number; only `DiskStore`
//! touches files, those of its journal through [`Files`]. Every byte on disk is accounted for in
//! `docs/storage-format.md`.

mod block_items;
mod block_search;
mod copying;
mod disk;
mod emptied;
mod files;
mod fillable_files;
mod format;
mod group_commit;
mod journal;
pub mod key;
mod manifest;
mod memtable;
mod merge_scan;
mod merge_walk;
mod migration;
mod model;
mod simulated_files;
mod store;
mod table_look_up;
mod table_walk;
mod trees;
mod walk;

pub use copying::{CopyError, CopyReader, CopyWriter};
pub use disk::{DiskOptions, DiskStore};
pub use files::{FileHandle, Files, RealFiles};
pub use fillable_files::FillableFiles;
pub use format::{FORMAT_VERSION, OpenError};
pub use journal::recovery::TornTail;
pub use model::ModelStore;
pub use simulated_files::{Fate, SimulatedFiles};
pub use store::{
    Batch, Bytes, CommitError, CommitSequence, Damage, Direction, KeyRange, KeyspaceError,
    KeyspaceId, LogTotals, MAX_KEY_LENGTH, MAX_KEYSPACE_NAME_LENGTH, ReadError, ReplayPoint, Scan,
    Snapshot, Store, StoreStatistics, SyncError,
};
pub use walk::{ScanWalk, Value, Walk};

/// The examples of the README are run as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
