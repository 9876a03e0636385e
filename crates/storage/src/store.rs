//! The contract between a member and whatever keeps its bytes.
//!
//! This file owns the [`Store`] and [`Snapshot`] traits and the values they exchange. How commits
//! reach a disk is left to the implementations, which must all pass `tests/conformance`.

use std::fmt;
use std::io;
use std::ops::{Bound, Deref, Range};
use std::path::PathBuf;
use std::sync::Arc;

use byteview::ByteView;

use crate::walk::{ScanWalk, Walk};

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
/// - After a failed sync what the disk holds is unknown, so every later write and sync is refused.
///   Reads go on.
/// - Creating and dropping a keyspace is durable on return and not part of any batch.
/// - A keyspace is a tree or a log, as it was created. A log is written with
///   [`Batch::append_to_log`], [`Batch::trim_log`] and [`Batch::cut_log`] only, and read like a tree
///   whose keys are positions of eight bytes, most significant first.
pub trait Store: Send + Sync + 'static {
    /// The keyspace of this name, made if it does not exist.
    fn create_keyspace(&self, name: &str) -> Result<KeyspaceId, KeyspaceError>;

    /// The log of this name, made if it does not exist.
    fn create_log(&self, name: &str) -> Result<KeyspaceId, KeyspaceError>;

    /// Removes a keyspace and all it holds. Snapshots taken before still read it.
    fn drop_keyspace(&self, keyspace: KeyspaceId) -> Result<(), KeyspaceError>;

    /// Every keyspace, by name.
    fn keyspaces(&self) -> Vec<(String, KeyspaceId)>;

    /// All keyspaces as they are now, for as long as the snapshot lives. Never blocks writers.
    fn snapshot(&self) -> Arc<dyn Snapshot>;

    /// Applies a batch atomically. An empty batch commits too, and takes a sequence.
    fn commit(&self, batch: Batch) -> Result<CommitSequence, CommitError>;

    /// Puts pairs into a tree besides all commits, in the order of their keys: cheaper than a commit for many pairs.
    /// They survive a crash once this returns; a crash before may keep some of them. Blocks the calling thread for long.
    ///
    /// The caller sees to it that nothing reads or writes these keys before it returns.
    ///
    /// # Panics
    ///
    /// If the keys do not rise.
    fn ingest(
        &self,
        keyspace: KeyspaceId,
        pairs: &mut dyn Iterator<Item = (Bytes, Bytes)>,
    ) -> Result<(), CommitError> {
        let mut last = None;
        loop {
            let mut batch = Batch::new();
            for (key, value) in pairs.take(INGESTED_AT_ONCE) {
                check_rising(&mut last, &key);
                batch.insert(keyspace, key, value);
            }
            let is_over = batch.is_empty();
            let sequence = self.commit(batch)?;
            if is_over {
                return self.sync_through(sequence).map_err(CommitError::from);
            }
        }
    }

    /// Gives back the room of keys of a tree that nothing reads or writes any more, as far as files hold nothing else.
    /// What is left the caller removes. Snapshots that were taken before still see the keys. Blocks the calling thread for
    /// long.
    ///
    /// A start after a crash may find the keys again until the store is [settled](Self::is_settled) at a point after this
    /// has returned.
    fn discard(&self, _: KeyspaceId, _: &KeyRange) -> Result<(), CommitError> {
        Ok(())
    }

    /// Says whether the disk has little room left. Then the store takes none for later writes.
    fn set_short_of_room(&self, _: bool) {}

    /// Gives back the room of keys that were removed or replaced, for a disk that has little left, and takes at most `room`
    /// bytes on the way. Returns how many bytes become free; what a snapshot reads stays until it is gone. Nothing is looked
    /// at twice without a reason, so that this may be called again and again. Blocks the calling thread for long, unless
    /// it is told to stop.
    fn reclaim(&self, _room: u64, _stops: &dyn Fn() -> bool) -> Result<u64, CommitError> {
        Ok(0)
    }

    /// A point after everything that was done so far.
    fn replay_point(&self) -> ReplayPoint {
        ReplayPoint(0)
    }

    /// Whether a start after a crash would find all that was done before a point as it is, without doing any of it again.
    fn is_settled(&self, _: ReplayPoint) -> bool {
        true
    }

    /// Returns once every commit up to this one would survive the end of the process, though not that of the machine. Returns how many commits were written
    /// for that: none if they were before.
    fn write_out_through(&self, _: CommitSequence) -> Result<u64, SyncError> {
        Ok(0)
    }

    /// Returns once every commit up to this one would survive a crash. Blocks the calling thread.
    fn sync_through(&self, sequence: CommitSequence) -> Result<(), SyncError>;

    /// The newest commit.
    fn last_committed(&self) -> CommitSequence;

    /// The newest commit known to survive a crash.
    fn last_synced(&self) -> CommitSequence;

    /// How much has been done since the store was opened.
    fn statistics(&self) -> StoreStatistics;

    /// Reads everything that is stored and compares it with its checksums. Returns what is damaged;
    /// an error means that a file could not be read at all. Blocks the calling thread for long.
    fn verify(&self) -> Result<Vec<Damage>, ReadError>;
}

/// Pairs that a store without tables commits at once.
const INGESTED_AT_ONCE: usize = 1000;

/// Pairs are ingested in the order of their keys.
pub(crate) fn check_rising(last: &mut Option<Bytes>, key: &Bytes) {
    assert!(last.as_ref().is_none_or(|last| last < key), "keys that are ingested must rise");
    *last = Some(key.clone());
}

/// All keyspaces at one moment.
pub trait Snapshot: Send + Sync {
    /// The value under a key.
    fn get(&self, keyspace: KeyspaceId, key: &[u8]) -> Result<Option<Bytes>, ReadError>;

    /// The same of a key that is there as far as the caller knows: what would tell sooner that it is not is not asked.
    fn get_known(&self, keyspace: KeyspaceId, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        self.get(keyspace, key)
    }

    /// The pairs of a range, in either direction. The scan keeps the snapshot alive.
    fn scan(
        &self,
        keyspace: KeyspaceId,
        range: KeyRange,
        direction: Direction,
    ) -> Result<Scan, ReadError>;

    /// The pairs of a range, each lent until the next is asked for. The walk keeps the snapshot alive.
    fn walk(&self, keyspace: KeyspaceId, range: KeyRange) -> Result<Box<dyn Walk>, ReadError> {
        Ok(Box::new(ScanWalk::from(self.scan(keyspace, range, Direction::Forward)?)))
    }

    /// How much a log holds.
    fn log_totals(&self, log: KeyspaceId) -> Result<LogTotals, ReadError>;
}

/// How much a log holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct LogTotals {
    /// How many entries.
    pub entries: u64,
    /// Their bytes, without what the store adds.
    pub bytes: u64,
}

/// A place whose bytes do not have the checksum they were written with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The file.
    pub file: PathBuf,
    /// Where in the file, as far as it is known.
    pub offset: Option<u64>,
    /// The keyspace, if the file is that of one.
    pub keyspace: Option<String>,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is damaged", self.file.display())?;
        if let Some(offset) = self.offset {
            write!(f, " at byte {offset}")?;
        }
        match &self.keyspace {
            Some(keyspace) => write!(f, " (keyspace {keyspace})"),
            None => Ok(()),
        }
    }
}

/// Pairs in key order. After an error the scan is over.
pub type Scan = Box<dyn Iterator<Item = Result<(Bytes, Bytes), ReadError>> + Send>;

/// An immutable run of bytes, cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub(crate) ByteView);

impl Bytes {
    /// These parts behind one another.
    pub fn joined<const N: usize>(parts: [&[u8]; N]) -> Self {
        let mut joined = ByteView::builder(parts.iter().map(|part| part.len()).sum());
        let mut rest = &mut *joined;
        for part in parts {
            let (place, behind) = rest.split_at_mut(part.len());
            place.copy_from_slice(part);
            rest = behind;
        }
        Self(joined.freeze())
    }

    /// A part of it that shares its memory.
    ///
    /// # Panics
    ///
    /// If the range is not within it.
    pub fn slice(&self, range: Range<usize>) -> Self {
        Self(self.0.slice(range))
    }
}

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

/// A point of the journal of one opened store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReplayPoint(pub(crate) u64);

/// Writes that take effect together. A later write to the same key wins.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    pub(crate) operations: Vec<Operation>,
}

#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(crate) keyspace: KeyspaceId,
    pub(crate) change: Change,
}

/// What an operation does to its keyspace.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// Of a tree: a value under a key.
    Put(Bytes, Bytes),
    /// Of a tree: no value under a key.
    Remove(Bytes),
    /// Of a log: one more entry.
    Append(u64, Bytes),
    /// Of a log: no entry below this position.
    Trim(u64),
    /// Of a log: no entry at or above this position.
    Cut(u64),
}

impl Batch {
    /// A batch that changes nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same, with room for so many operations.
    pub fn with_room_for(operations: usize) -> Self {
        Self { operations: Vec::with_capacity(operations) }
    }

    /// Puts a value under a key of a tree, in place of any other.
    ///
    /// A value that is a [`slice`](Bytes::slice) of the entry appended last costs the journal only a
    /// reference to it.
    pub fn insert(&mut self, keyspace: KeyspaceId, key: impl Into<Bytes>, value: impl Into<Bytes>) {
        self.push(keyspace, Change::Put(key.into(), value.into()));
    }

    /// Removes a key of a tree, if it is there.
    pub fn remove(&mut self, keyspace: KeyspaceId, key: impl Into<Bytes>) {
        self.push(keyspace, Change::Remove(key.into()));
    }

    /// Appends an entry to a log. Its position must be above those of all other entries.
    pub fn append_to_log(&mut self, log: KeyspaceId, position: u64, entry: impl Into<Bytes>) {
        self.push(log, Change::Append(position, entry.into()));
    }

    /// Removes the entries of a log below a position.
    pub fn trim_log(&mut self, log: KeyspaceId, below: u64) {
        self.push(log, Change::Trim(below));
    }

    /// Removes the entries of a log from a position on. Comes before what the same batch appends.
    pub fn cut_log(&mut self, log: KeyspaceId, from: u64) {
        self.push(log, Change::Cut(from));
    }

    fn push(&mut self, keyspace: KeyspaceId, change: Change) {
        self.operations.push(Operation { keyspace, change });
    }

    /// Adds the operations of another batch after its own.
    pub fn append(&mut self, other: Self) {
        self.operations.extend(other.operations);
    }

    /// Its changes of trees, in order: a keyspace, a key, and the value to put there; none to remove
    /// it. What it does to logs is left out.
    pub fn into_tree_changes(self) -> impl Iterator<Item = (KeyspaceId, Bytes, Option<Bytes>)> {
        self.operations.into_iter().filter_map(|operation| match operation.change {
            Change::Put(key, value) => Some((operation.keyspace, key, Some(value))),
            Change::Remove(key) => Some((operation.keyspace, key, None)),
            Change::Append(..) | Change::Trim(_) | Change::Cut(_) => None,
        })
    }

    /// Its changes of one tree, in order: a key and the value to put there; none to remove it.
    pub fn tree_changes(
        &self,
        keyspace: KeyspaceId,
    ) -> impl Iterator<Item = (&Bytes, Option<&Bytes>)> {
        let changes = self.operations.iter().filter(move |found| found.keyspace == keyspace);
        changes.filter_map(|operation| match &operation.change {
            Change::Put(key, value) => Some((key, Some(value))),
            Change::Remove(key) => Some((key, None)),
            Change::Append(..) | Change::Trim(_) | Change::Cut(_) => None,
        })
    }

    /// How many operations it holds.
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    /// Whether it would change nothing.
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// The bytes of its keys, values and entries.
    pub fn byte_size(&self) -> usize {
        let size = |operation: &Operation| match &operation.change {
            Change::Put(key, value) => key.len() + value.len(),
            Change::Remove(key) => key.len(),
            Change::Append(_, entry) => POSITION_LENGTH + entry.len(),
            Change::Trim(_) | Change::Cut(_) => POSITION_LENGTH,
        };
        self.operations.iter().map(size).sum()
    }

    /// Refuses keys that the engine on disk cannot hold, so that both stores agree.
    pub(crate) fn check_keys(&self) -> Result<(), CommitError> {
        self.operations.iter().try_for_each(|operation| match &operation.change {
            Change::Put(key, _) | Change::Remove(key) => check_key(key),
            Change::Append(..) | Change::Trim(_) | Change::Cut(_) => Ok(()),
        })
    }
}

/// Refuses a key that the engine on disk cannot hold.
pub(crate) fn check_key(key: &[u8]) -> Result<(), CommitError> {
    match key.len() {
        1..=MAX_KEY_LENGTH => Ok(()),
        length => Err(CommitError::KeyLength { length }),
    }
}

impl Change {
    /// Whether only a log can change in this way.
    pub(crate) fn is_of_log(&self) -> bool {
        matches!(self, Self::Append(..) | Self::Trim(_) | Self::Cut(_))
    }
}

/// Follows the end of a log through the operations of a batch, and refuses what would not keep its
/// positions rising.
pub(crate) struct LogEnd {
    /// The position of the last entry.
    pub(crate) last: Option<u64>,
    appended: bool,
}

impl LogEnd {
    pub(crate) fn new(last: Option<u64>) -> Self {
        Self { last, appended: false }
    }

    pub(crate) fn append(&mut self, position: u64) -> Result<(), CommitError> {
        match self.last {
            Some(last) if position <= last => Err(CommitError::NotAtEnd { position, last }),
            _ => {
                self.last = Some(position);
                self.appended = true;
                Ok(())
            }
        }
    }

    /// The entries before `from` end at `last`.
    pub(crate) fn cut(&mut self, last: Option<u64>) -> Result<(), CommitError> {
        if self.appended {
            return Err(CommitError::CutAfterAppend);
        }
        self.last = last;
        Ok(())
    }

    pub(crate) fn trim(&mut self, below: u64) -> Result<(), CommitError> {
        if self.appended {
            return Err(CommitError::CutAfterAppend);
        }
        self.last = self.last.filter(|&last| last >= below);
        Ok(())
    }
}

/// The bytes of a position in a log.
pub(crate) const POSITION_LENGTH: usize = 8;

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

    /// Shortens bounds that are longer than any key: the engine on disk panics on them. The range keeps its keys. A key
    /// compares with the first [`MAX_KEY_LENGTH`] bytes of such a bound as it does with the bound; the key that equals these
    /// bytes is in front of the bound. Returns whether a bound was shortened.
    pub(crate) fn shorten(&mut self) -> bool {
        let start = longest_start(&mut self.start).map(|start| self.start = Bound::Excluded(start));
        let end = longest_start(&mut self.end).map(|end| self.end = Bound::Included(end));
        start.is_some() || end.is_some()
    }
}

/// As many bytes of a bound as a key can have, if it has more.
fn longest_start(bound: &mut Bound<Vec<u8>>) -> Option<Vec<u8>> {
    match bound {
        Bound::Included(key) | Bound::Excluded(key) if key.len() > MAX_KEY_LENGTH => {
            key.truncate(MAX_KEY_LENGTH);
            Some(std::mem::take(key))
        }
        _ => None,
    }
}

impl KeyRange {
    /// The positions that are in it: from the first on, below the second, if the first is below it.
    pub(crate) fn positions(&self) -> (u64, Option<u64>) {
        // A key that is not of eight bytes lies between two positions, and so do its bounds.
        let (start, end) = (first_at(&self.start, false), first_at(&self.end, true));
        match start {
            Some(start) => (start, end),
            None => (u64::MAX, Some(0)),
        }
    }
}

/// The first position that is not below a bound. `None` is beyond all positions.
fn first_at(bound: &Bound<Vec<u8>>, is_end: bool) -> Option<u64> {
    let (key, past_equal) = match bound {
        Bound::Unbounded => return if is_end { None } else { Some(0) },
        Bound::Included(key) => (key, is_end),
        Bound::Excluded(key) => (key, !is_end),
    };
    let mut position = [0; POSITION_LENGTH];
    let kept = key.len().min(POSITION_LENGTH);
    position[..kept].copy_from_slice(&key[..kept]);
    let position = u64::from_be_bytes(position);
    // A longer key lies above the position that it starts with, a shorter one below or at it.
    let above = key.len() > POSITION_LENGTH || key.len() == POSITION_LENGTH && past_equal;
    if above { position.checked_add(1) } else { Some(position) }
}

/// The smallest key greater than every key with this prefix; none if the prefix is all `0xFF`.
fn successor_of_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let kept = prefix.iter().rposition(|&byte| byte != u8::MAX)? + 1;
    let mut successor = prefix[..kept].to_vec();
    successor[kept - 1] += 1;
    Some(successor)
}

/// Counts since the store was opened, and what it takes on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct StoreStatistics {
    /// Batches committed.
    pub commits: u64,
    /// Times the log was forced to disk on behalf of `sync_through`.
    pub syncs: u64,
    /// What the files of the journal take on disk: the history, what is reserved for the next records, and the file that
    /// is kept to be written over. 0 in memory.
    pub journal_bytes: u64,
    /// What the tables take on disk. 0 in memory.
    pub table_bytes: u64,
}

/// A keyspace could not be created or dropped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
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
    /// A keyspace of this name is of the other kind.
    #[error("the keyspace {name} exists, and is a tree where a log is asked for or the reverse")]
    WrongKind {
        /// The name given.
        name: String,
    },
    /// The disk has no room for the files of a keyspace.
    #[error("the disk is full; free some space and try again")]
    DiskFull,
    /// The files of a keyspace cannot be opened.
    #[error("no more files can be opened; raise the limit of open files and try again")]
    TooManyFiles,
    /// An earlier sync failed.
    #[error("the store stopped writing after a failed sync; restart to recover what was synced")]
    Poisoned,
    /// The engine refused.
    #[error("the storage engine could not change its keyspaces; check the disk and restart")]
    Engine(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// A batch was not applied.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
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
    /// The batch writes to a log as if it were a tree, or the reverse.
    #[error("the batch treats a log as a tree or a tree as a log; use the operations of its kind")]
    WrongKind,
    /// An entry would not be the last of its log.
    #[error("position {position} is not above {last}, the last of the log; append in order")]
    NotAtEnd {
        /// The position of the entry.
        position: u64,
        /// The last position in the log.
        last: u64,
    },
    /// A log is shortened after the same batch appended to it.
    #[error("the batch shortens a log that it has appended to; shorten it first")]
    CutAfterAppend,
    /// The batch is longer than one record may be.
    #[error("the batch has more than a record can hold; split it")]
    TooLarge,
    /// The disk has no room for the batch. Nothing of it is stored, and the store goes on.
    #[error("the disk is full, and the batch is not stored; free some space and try again")]
    DiskFull,
    /// The journal needs another file and none can be opened. Nothing of the batch is stored, and the store goes on.
    #[error(
        "no more files can be opened, and the batch is not stored; raise the limit of open files"
    )]
    TooManyFiles,
    /// An earlier sync or write failed.
    #[error("the store stopped writing after a failed sync; restart to recover what was synced")]
    Poisoned,
    /// The engine could not write its log.
    #[error("the storage engine could not write; check the disk and restart")]
    Engine(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// The log was not forced to disk, now or earlier.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
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

impl From<SyncError> for CommitError {
    fn from(error: SyncError) -> Self {
        match error {
            SyncError::Poisoned => Self::Poisoned,
            failed => Self::Engine(Box::new(failed)),
        }
    }
}

/// A read failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The keyspace did not exist when the snapshot was taken.
    #[error("the keyspace does not exist in this snapshot; create it first")]
    UnknownKeyspace,
    /// What is stored does not have the checksum it was written with.
    #[error("{0}; restore the files from a copy or resync the member")]
    Damaged(Damage),
    /// The keyspace is not a log.
    #[error("the keyspace is not a log; ask for the totals of a log")]
    NotALog,
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
