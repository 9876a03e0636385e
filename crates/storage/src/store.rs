//! The contract between a member and whatever keeps its bytes.
//!
//! This file owns the [`Store`] and [`Snapshot`] traits and the values they exchange. How commits
//! reach a disk is left to the implementations, which must all pass `tests/conformance.rs`.

use std::fmt;
use std::io;
use std::ops::{Bound, Deref};
use std::sync::Arc;

/// The longest key a store accepts. The engine on disk counts key bytes in sixteen bits.
pub const MAX_KEY_LENGTH: usize = 65_535;

/// The longest name of a keyspace.
pub const MAX_KEYSPACE_NAME_LENGTH: usize = 255;

/// Ordered keyspaces that are written in atomic batches and read through snapshots.
///
/// # Contract
///
/// - [`commit`](Self::commit) applies all operations of a batch or none, across keyspaces, and
///   makes them visible to every snapshot taken after it returns.
/// - Sequences are handed out in the order of the log. After a crash the store holds a prefix of
///   that order which includes everything a successful [`sync_through`](Self::sync_through)
///   covered.
/// - One sync serves every caller that waits for it.
/// - After a failed sync nobody knows what the disk holds, so every later write and sync is
///   refused. Reads go on.
/// - Creating and dropping a keyspace is durable on return and not part of any batch.
pub trait Store: Send + Sync + 'static {
    /// The keyspace of this name, made if it does not exist.
    fn create_keyspace(&self, name: &str) -> Result<KeyspaceId, KeyspaceError>;

    /// Removes a keyspace and all it holds. Snapshots taken before still read it.
    fn drop_keyspace(&self, keyspace: KeyspaceId) -> Result<(), KeyspaceError>;

    /// Every keyspace, by name.
    fn keyspaces(&self) -> Vec<(String, KeyspaceId)>;

    /// All keyspaces as they are now, for as long as the snapshot lives. Never blocks writers.
    fn snapshot(&self) -> Arc<dyn Snapshot>;

    /// Applies a batch atomically. An empty batch commits too, and takes a sequence.
    fn commit(&self, batch: Batch) -> Result<CommitSequence, CommitError>;

    /// Returns once every commit up to this one would survive a crash. Blocks the calling thread.
    fn sync_through(&self, sequence: CommitSequence) -> Result<(), SyncError>;

    /// The newest commit.
    fn last_committed(&self) -> CommitSequence;

    /// The newest commit known to survive a crash.
    fn last_synced(&self) -> CommitSequence;

    /// How much has been done since the store was opened.
    fn statistics(&self) -> StoreStatistics;
}

/// All keyspaces at one moment.
pub trait Snapshot: Send + Sync {
    /// The value under a key.
    fn get(&self, keyspace: KeyspaceId, key: &[u8]) -> Result<Option<Bytes>, ReadError>;

    /// The pairs of a range, in either direction. The scan keeps the snapshot alive.
    fn scan(
        &self,
        keyspace: KeyspaceId,
        range: KeyRange,
        direction: Direction,
    ) -> Result<Scan, ReadError>;
}

/// Pairs in key order. After an error the scan is over.
pub type Scan = Box<dyn Iterator<Item = Result<(Bytes, Bytes), ReadError>> + Send>;

/// An immutable run of bytes, cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub(crate) fjall::Slice);

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes.into())
    }
}

impl From<&[u8]> for Bytes {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }
}

impl<const N: usize> From<&[u8; N]> for Bytes {
    fn from(bytes: &[u8; N]) -> Self {
        Self(bytes.as_slice().into())
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b\"{}\"", self.escape_ascii())
    }
}

/// A keyspace of one opened store. Not kept on disk: names are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyspaceId(pub(crate) u64);

/// Where a commit stands in the log since the store was opened, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct CommitSequence(pub(crate) u64);

impl CommitSequence {
    /// The position before every commit.
    pub const ZERO: Self = Self(0);

    /// How many commits there had been.
    pub const fn as_u64(self) -> u64 {
        self.0
    }
}

/// Writes that take effect together. A later write to the same key wins.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    pub(crate) operations: Vec<Operation>,
}

#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(crate) keyspace: KeyspaceId,
    pub(crate) key: Bytes,
    /// `None` removes the key.
    pub(crate) value: Option<Bytes>,
}

impl Batch {
    /// A batch that changes nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Puts a value under a key, in place of any other.
    pub fn insert(&mut self, keyspace: KeyspaceId, key: impl Into<Bytes>, value: impl Into<Bytes>) {
        self.operations.push(Operation { keyspace, key: key.into(), value: Some(value.into()) });
    }

    /// Removes a key, if it is there.
    pub fn remove(&mut self, keyspace: KeyspaceId, key: impl Into<Bytes>) {
        self.operations.push(Operation { keyspace, key: key.into(), value: None });
    }

    /// Adds the operations of another batch after its own.
    pub fn append(&mut self, other: Self) {
        self.operations.extend(other.operations);
    }

    /// Its operations in order: a keyspace, a key, and the value to put there; none to remove it.
    pub fn into_operations(self) -> impl Iterator<Item = (KeyspaceId, Bytes, Option<Bytes>)> {
        self.operations
            .into_iter()
            .map(|operation| (operation.keyspace, operation.key, operation.value))
    }

    /// How many operations it holds.
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    /// Whether it would change nothing.
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// The bytes of its keys and values.
    pub fn byte_size(&self) -> usize {
        let size = |operation: &Operation| {
            operation.key.len() + operation.value.as_ref().map_or(0, |value| value.len())
        };
        self.operations.iter().map(size).sum()
    }

    /// Refuses keys that the engine on disk cannot hold, so that both stores agree.
    pub(crate) fn check_keys(&self) -> Result<(), CommitError> {
        match self
            .operations
            .iter()
            .map(|operation| operation.key.len())
            .find(|length| !(1..=MAX_KEY_LENGTH).contains(length))
        {
            Some(length) => Err(CommitError::KeyLength { length }),
            None => Ok(()),
        }
    }
}

/// Which end a scan starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the smallest key up.
    Forward,
    /// From the greatest key down.
    Backward,
}

/// A run of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    /// Where it starts.
    pub start: Bound<Vec<u8>>,
    /// Where it ends.
    pub end: Bound<Vec<u8>>,
}

impl KeyRange {
    /// Every key.
    pub const fn all() -> Self {
        Self { start: Bound::Unbounded, end: Bound::Unbounded }
    }

    /// Every key that starts with these bytes.
    pub fn prefix(prefix: &[u8]) -> Self {
        Self {
            start: Bound::Included(prefix.to_vec()),
            end: successor_of_prefix(prefix).map_or(Bound::Unbounded, Bound::Excluded),
        }
    }

    /// Whether no key can be in it. The engines panic on such ranges, so they are cut off here.
    pub(crate) fn is_empty(&self) -> bool {
        match (&self.start, &self.end) {
            (Bound::Included(start), Bound::Included(end)) => start > end,
            (
                Bound::Included(start) | Bound::Excluded(start),
                Bound::Included(end) | Bound::Excluded(end),
            ) => start >= end,
            _ => false,
        }
    }
}

/// The smallest key greater than every key with this prefix; none if the prefix is all `0xFF`.
fn successor_of_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let kept = prefix.iter().rposition(|&byte| byte != u8::MAX)? + 1;
    let mut successor = prefix[..kept].to_vec();
    successor[kept - 1] += 1;
    Some(successor)
}

/// Counts since the store was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct StoreStatistics {
    /// Batches committed.
    pub commits: u64,
    /// Times the log was forced to disk on behalf of `sync_through`.
    pub syncs: u64,
}

/// A keyspace could not be created or dropped.
#[derive(Debug, thiserror::Error)]
pub enum KeyspaceError {
    /// The caller's name cannot be a keyspace.
    #[error(
        "{name:?} cannot name a keyspace; use 1 to {MAX_KEYSPACE_NAME_LENGTH} characters out of \
         letters, digits, '.', '_' and '-'"
    )]
    InvalidName {
        /// The name given.
        name: String,
    },
    /// The keyspace was dropped before.
    #[error("the keyspace does not exist; create it first")]
    Unknown,
    /// An earlier sync failed.
    #[error("the store stopped writing after a failed sync; restart to recover what was synced")]
    Poisoned,
    /// The engine refused.
    #[error("the storage engine could not change its keyspaces; check the disk and restart")]
    Engine(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// A batch was not applied.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// The batch names a keyspace that does not exist.
    #[error("the batch writes to a keyspace that does not exist; create it first")]
    UnknownKeyspace,
    /// A key is empty or too long.
    #[error("a key of {length} bytes cannot be stored; keys have 1 to {MAX_KEY_LENGTH} bytes")]
    KeyLength {
        /// The length of the key.
        length: usize,
    },
    /// An earlier sync or write failed.
    #[error("the store stopped writing after a failed sync; restart to recover what was synced")]
    Poisoned,
    /// The engine could not write its log.
    #[error("the storage engine could not write; check the disk and restart")]
    Engine(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// The log was not forced to disk, now or earlier.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SyncError {
    /// This sync failed. What reached the disk is unknown.
    #[error("the log could not be synced, so the store stops writing; check the disk and restart")]
    Failed(#[source] Arc<io::Error>),
    /// An earlier sync failed.
    #[error("the store stopped writing after a failed sync; restart to recover what was synced")]
    Poisoned,
    /// The sequence was never handed out by this store.
    #[error("no commit has this sequence; it belongs to another store or an earlier opening")]
    UnknownSequence,
}

/// A read failed.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The keyspace did not exist when the snapshot was taken.
    #[error("the keyspace does not exist in this snapshot; create it first")]
    UnknownKeyspace,
    /// The engine could not read its files.
    #[error("the storage engine could not read; check the disk")]
    Engine(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Names that are safe in every engine and in messages.
pub(crate) fn check_keyspace_name(name: &str) -> Result<(), KeyspaceError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if (1..=MAX_KEYSPACE_NAME_LENGTH).contains(&name.len()) && name.bytes().all(allowed) {
        Ok(())
    } else {
        Err(KeyspaceError::InvalidName { name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_range_ends_before_the_next_prefix() {
        let end = |prefix: &[u8]| KeyRange::prefix(prefix).end;
        assert_eq!(end(b"ab"), Bound::Excluded(b"ac".to_vec()));
        assert_eq!(end(&[1, 0xFF, 0xFF]), Bound::Excluded(vec![2]));
        assert_eq!(end(&[0xFF]), Bound::Unbounded);
        assert_eq!(end(b""), Bound::Unbounded);
    }

    #[test]
    fn ranges_that_hold_no_key_are_known_as_such() {
        let range = |start, end| KeyRange { start, end }.is_empty();
        let (a, b) = (|| b"a".to_vec(), || b"b".to_vec());
        assert!(range(Bound::Included(b()), Bound::Included(a())));
        assert!(range(Bound::Excluded(a()), Bound::Excluded(a())));
        assert!(!range(Bound::Included(a()), Bound::Included(a())));
        assert!(!range(Bound::Included(a()), Bound::Excluded(b())));
        assert!(!KeyRange::all().is_empty());
    }
}
