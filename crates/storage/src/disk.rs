//! The store on disk: one journal, and trees that are recovered from it.
//!
//! ```text
//!   commit ─▶ encode ─▶ [commit lock: sequence, append, memtables, logs, publish] ─▶ visible
//! ```
//!
//! This file owns the order of commits and what snapshots see. Bytes are in `journal`, trees in
//! `trees`, and what happens in the background in `background`. The design is in
//! `docs/storage-format.md`.

mod background;
mod opening;

use std::any::Any;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use self::background::{Background, QUIET_PART};
pub(crate) use self::opening::TREES_DIRECTORY;
use crate::files::Files;
use crate::format::DataDirectory;
use crate::group_commit::GroupCommit;
use crate::journal::log::{Last, LogState, LogView};
use crate::journal::record::{self, Encoded};
use crate::journal::recovery::TornTail;
use crate::journal::segment::{Item, Location, Mark, Segment};
use crate::journal::{self, AppendError, Shortage};
use crate::manifest::{Described, Kind, Manifest};
use crate::store::{
    Batch, Bytes, Change, CommitError, CommitSequence, Damage, Direction, KeyRange, KeyspaceError,
    KeyspaceId, LogEnd, LogTotals, Operation, ReadError, ReplayPoint, Scan, Snapshot, Store,
    StoreStatistics, SyncError, check_keyspace_name,
};
use crate::trees::{MAX_MEMTABLES, Snapshots, Stamp, Tree, TreeContext, Writing};
use crate::walk::{ScanWalk, Walk};

/// Operations from which on a batch looks up the memtables of its trees once.
const LONG_BATCH: usize = 16;

/// How much memory a store may use, and how large its files are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskOptions {
    /// For blocks read from disk, filled as they are read.
    pub cache_bytes: u64,
    /// For writes to one keyspace before they move to a table on disk.
    pub memtable_bytes: u64,
    /// The size that the segments of the journal grow to.
    pub segment_bytes: u32,
}

impl Default for DiskOptions {
    fn default() -> Self {
        Self {
            cache_bytes: 32 * 1024 * 1024,
            memtable_bytes: 8 * 1024 * 1024,
            segment_bytes: 64 * 1024 * 1024,
        }
    }
}

/// A store on disk. See the module's opening comment for how it keeps the contract.
pub struct DiskStore {
    shared: Arc<Shared>,
    /// Ends its threads when the store goes.
    _background: Background,
    torn_tail: Option<TornTail>,
    /// Behind those, so that the lock outlives the background threads.
    directory: DataDirectory,
    /// Dropped when the directory is free.
    at_close: Option<Box<dyn Any + Send + Sync>>,
}

/// What the store has in common with its background threads.
struct Shared {
    files: Arc<dyn Files>,
    /// The directory of the manifest.
    root: std::path::PathBuf,
    context: TreeContext,
    group: GroupCommit,
    journal: Arc<journal::Shared>,
    /// Taken before `commit`, and that before `published`.
    manifest: Mutex<Manifest>,
    commit: Mutex<CommitState>,
    published: Arc<Mutex<Published>>,
    /// Held by a thread that seals memtables and flushes them. Taken before `commit`.
    flushing: Mutex<()>,
    work: background::Work,
}

/// What only the holder of the commit lock changes.
struct CommitState {
    writer: journal::Writer,
    logs: BTreeMap<u32, LogState>,
}

/// What a snapshot is made of.
struct Published {
    /// Readers see sequences below this.
    visible: u64,
    /// Where the journal ends.
    end: Location,
    logs: Arc<BTreeMap<u32, LogState>>,
    segments: Arc<[Arc<Segment>]>,
    keyspaces: Arc<Keyspaces>,
    snapshots: Living,
    /// The snapshot that was taken last, shared by all callers until something changes.
    newest: Weak<DiskSnapshot>,
}

/// How many living snapshots there are of each sequence, in the order of these. There are few at a time, and a new one is
/// the newest.
#[derive(Default)]
struct Living(VecDeque<(u64, usize)>);

impl Living {
    fn all(&self) -> impl Iterator<Item = u64> {
        self.0.iter().map(|(below, _)| *below)
    }

    fn add(&mut self, below: u64) {
        match self.0.back_mut() {
            Some((newest, count)) if *newest == below => *count += 1,
            newest => {
                debug_assert!(newest.is_none_or(|(newest, _)| *newest < below));
                self.0.push_back((below, 1));
            }
        }
    }

    fn remove(&mut self, below: u64) {
        let Ok(place) = self.0.binary_search_by_key(&below, |(below, _)| *below) else { return };
        let count = &mut self.0[place].1;
        *count -= 1;
        if *count == 0 {
            self.0.remove(place);
        }
    }
}

impl Published {
    /// No snapshot, one to come included, sees a state before this sequence.
    fn oldest_snapshot(&self) -> u64 {
        self.snapshots.all().next().unwrap_or(self.visible)
    }
}

type Keyspaces = BTreeMap<KeyspaceId, (String, Keyspace)>;

#[derive(Clone)]
enum Keyspace {
    Tree(Arc<Tree>),
    Log(u32),
}

impl DiskStore {
    /// The directory it lives in.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Drops a value when the store is closed and its directory is free for another.
    pub fn drop_at_close(&mut self, value: impl Send + Sync + 'static) {
        self.at_close = Some(Box::new(value));
    }

    /// The end of the journal that a crash left unfinished, if one was cut off by the opening.
    pub fn torn_tail(&self) -> Option<&TornTail> {
        self.torn_tail.as_ref()
    }
}

fn tree_of((_, keyspace): &(String, Keyspace)) -> Option<&Arc<Tree>> {
    match keyspace {
        Keyspace::Tree(tree) => Some(tree),
        Keyspace::Log(_) => None,
    }
}

/// The state under a lock stays whole when its holder panics, but for the commit lock: see `commit`.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn published(&self) -> MutexGuard<'_, Published> {
        lock(&self.published)
    }

    fn keyspaces(&self) -> Arc<Keyspaces> {
        Arc::clone(&self.published().keyspaces)
    }

    fn trees(&self) -> Vec<Arc<Tree>> {
        self.keyspaces().values().filter_map(tree_of).cloned().collect()
    }

    /// No snapshot sees a state before this sequence.
    fn oldest_snapshot(&self) -> u64 {
        self.published().oldest_snapshot()
    }

    fn snapshots(&self) -> Snapshots {
        let published = self.published();
        Snapshots { below: published.snapshots.all().collect(), next: published.visible }
    }

    /// The keyspace of this name and kind, made if it does not exist.
    fn create(&self, name: &str, kind: Kind) -> Result<KeyspaceId, KeyspaceError> {
        check_keyspace_name(name)?;
        let mut manifest = lock(&self.manifest);
        let keyspaces = self.keyspaces();
        if let Some((&id, (_, found))) = keyspaces.iter().find(|(_, (known, _))| known == name) {
            return match (found, kind) {
                (Keyspace::Tree(_), Kind::Tree) | (Keyspace::Log(_), Kind::Log { .. }) => Ok(id),
                _ => Err(KeyspaceError::WrongKind { name: name.to_owned() }),
            };
        }
        if self.group.has_failed() {
            return Err(KeyspaceError::Poisoned);
        }
        let number = manifest.next_keyspace;
        let keyspace = match kind {
            Kind::Tree => Keyspace::Tree(self.context.open(number, name).map_err(tree_error)?),
            Kind::Log { .. } => Keyspace::Log(number),
        };
        let mut altered = manifest.clone();
        altered.next_keyspace += 1;
        altered.keyspaces.insert(number, Described { name: name.to_owned(), kind });
        self.write_manifest(&altered)?;
        *manifest = altered;
        let id = KeyspaceId(u64::from(number));
        let mut commit = lock(&self.commit);
        let mut published = self.published();
        if let Keyspace::Log(log) = &keyspace {
            commit.logs.insert(*log, LogState::new(0));
            published.logs = Arc::new(commit.logs.clone());
        }
        Arc::make_mut(&mut published.keyspaces).insert(id, (name.to_owned(), keyspace));
        Ok(id)
    }

    /// Writes the manifest, or leaves the one that there is. If neither is certain the store stops: a keyspace that is
    /// dropped on the disk and written to in memory would lose what is written.
    fn write_manifest(&self, manifest: &Manifest) -> Result<(), KeyspaceError> {
        manifest.write(&*self.files, &self.root).map_err(|error| {
            if Shortage::of(&error).is_none() {
                self.group.fail();
            }
            io_error(error)
        })
    }

    fn drop_keyspace(&self, keyspace: KeyspaceId) -> Result<(), KeyspaceError> {
        let mut manifest = lock(&self.manifest);
        let keyspaces = self.keyspaces();
        let Some((_, found)) = keyspaces.get(&keyspace) else {
            return Err(KeyspaceError::Unknown);
        };
        if self.group.has_failed() {
            return Err(KeyspaceError::Poisoned);
        }
        let mut altered = manifest.clone();
        altered.keyspaces.retain(|&number, _| u64::from(number) != keyspace.0);
        self.write_manifest(&altered)?;
        *manifest = altered;
        let mut commit = lock(&self.commit);
        let mut published = self.published();
        match found {
            Keyspace::Tree(tree) => tree.make_dropped(),
            Keyspace::Log(log) => {
                commit.logs.remove(log);
                published.logs = Arc::new(commit.logs.clone());
            }
        }
        Arc::make_mut(&mut published.keyspaces).remove(&keyspace);
        Ok(())
    }

    /// A batch may only do to a keyspace what its kind allows.
    fn check_kinds(&self, batch: &Batch, keyspaces: &Keyspaces) -> Result<(), CommitError> {
        // Operations on the same keyspace often follow each other.
        let mut last = None;
        for Operation { keyspace, change } in &batch.operations {
            let is_log = match last {
                Some((known, is_log)) if known == *keyspace => is_log,
                _ => match keyspaces.get(keyspace) {
                    Some((_, found)) => matches!(found, Keyspace::Log(_)),
                    None => return Err(CommitError::UnknownKeyspace),
                },
            };
            if is_log != change.is_of_log() {
                return Err(CommitError::WrongKind);
            }
            last = Some((*keyspace, is_log));
        }
        Ok(())
    }

    fn commit(&self, batch: Batch) -> Result<CommitSequence, CommitError> {
        batch.check_keys()?;
        let (keyspaces, shown) = {
            let published = self.published();
            (Arc::clone(&published.keyspaces), published.oldest_snapshot())
        };
        self.check_kinds(&batch, &keyspaces)?;
        let mut record = Encoded::new(&batch).ok_or(CommitError::TooLarge)?;
        self.wait_for_flush()?;
        // A writer that panicked may have left the journal and the trees at odds.
        let mut commit = self.commit.lock().map_err(|_| {
            self.group.fail();
            CommitError::Poisoned
        })?;
        if self.group.has_failed() {
            return Err(CommitError::Poisoned);
        }
        self.check_logs(&mut commit, &batch)?;
        let begun = commit.writer.make_room(&record).map_err(|error| match error {
            AppendError::Short(shortage) => shortage.into(),
            AppendError::Failed(error) => {
                self.group.fail();
                CommitError::Engine(Box::new(error))
            }
        })?;
        let has_begun = begun.is_some();
        if let Some(segment) = begun {
            let mut published = self.published();
            let segments = published.segments.iter().cloned().chain([segment]).collect();
            published.segments = segments;
        }
        let sequence = self.context.sequences.next();
        let at = commit.writer.append(&mut record, sequence).map_err(|error| {
            self.group.fail();
            CommitError::Engine(Box::new(error))
        })?;
        let applied = self.apply(&mut commit, batch, &keyspaces, at, Stamp { sequence, shown });
        let mut published = self.published();
        published.visible = sequence + 1;
        published.end = commit.writer.end();
        if applied.changed_logs {
            published.logs = Arc::new(commit.logs.clone());
        }
        drop(published);
        let committed = self.group.committed();
        drop(commit);
        if has_begun || applied.filled_tree {
            self.work.wake();
        }
        if applied.is_worth_flushing {
            self.work.watch();
        }
        Ok(committed)
    }

    /// Refuses what would not keep the positions of a log rising.
    fn check_logs(&self, commit: &mut CommitState, batch: &Batch) -> Result<(), CommitError> {
        let mut ends: BTreeMap<u32, LogEnd> = BTreeMap::new();
        for operation in batch.operations.iter().filter(|operation| operation.change.is_of_log()) {
            let log = operation.keyspace.0 as u32;
            let end = match ends.entry(log) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(place) => {
                    place.insert(LogEnd::new(self.last_position(commit, log, None)?))
                }
            };
            match operation.change {
                Change::Append(position, _) => end.append(position)?,
                Change::Trim(below) => end.trim(below)?,
                Change::Cut(from) => end.cut(self.last_position(commit, log, Some(from))?)?,
                Change::Put(..) | Change::Remove(_) => {}
            }
        }
        Ok(())
    }

    /// The last position of a log, below a limit if there is one.
    fn last_position(
        &self,
        commit: &mut CommitState,
        log: u32,
        below: Option<u64>,
    ) -> Result<Option<u64>, CommitError> {
        let Some(state) = commit.logs.get(&log) else { return Err(CommitError::UnknownKeyspace) };
        match (state.last, below) {
            (Last::Known(last), None) => return Ok(last),
            (Last::Known(last), Some(below)) if last.is_none_or(|last| last < below) => {
                return Ok(last);
            }
            _ => {}
        }
        let (segments, end) = (Arc::clone(&self.published().segments), commit.writer.end());
        self.journal.write_out().map_err(|error| CommitError::Engine(Box::new(error)))?;
        let view = LogView { log, segments, state: state.clone(), end };
        let mut scan = view.scan(0, below, Direction::Backward);
        let last = match scan.next() {
            Some(pair) => {
                let (key, _) = pair.map_err(|error| CommitError::Engine(Box::new(error)))?;
                Some(key.first_chunk().map_or(0, |position| u64::from_be_bytes(*position)))
            }
            None => None,
        };
        if below.is_none()
            && let Some(state) = commit.logs.get_mut(&log)
        {
            state.last = Last::Known(last);
        }
        Ok(last)
    }

    /// Does what a record says. It is in the journal.
    fn apply(
        &self,
        commit: &mut CommitState,
        batch: Batch,
        keyspaces: &Keyspaces,
        at: Location,
        stamp: Stamp,
    ) -> Applied {
        let mut applied = Applied::default();
        let memtable_bytes = self.context.options.memtable_bytes;
        let is_long = batch.len() >= LONG_BATCH;
        let writings = if is_long { begin_writing(&batch, keyspaces, stamp) } else { Vec::new() };
        let writing = |id: KeyspaceId| writings.iter().find(|(known, _)| *known == id);
        for Operation { keyspace, change } in batch.operations {
            let (key, value) = match change {
                Change::Put(key, value) => (key, Some(value)),
                Change::Remove(key) => (key, None),
                change => {
                    if let Some((_, Keyspace::Log(log))) = keyspaces.get(&keyspace) {
                        applied.changed_logs = true;
                        commit.change_log(*log, &change, at);
                    }
                    continue;
                }
            };
            let size = match writing(keyspace) {
                Some((_, writing)) => writing.put(key, value),
                None => match keyspaces.get(&keyspace) {
                    Some((_, Keyspace::Tree(tree))) => tree.put(key, value, stamp),
                    _ => 0,
                },
            };
            applied.filled_tree |= size > memtable_bytes;
            applied.is_worth_flushing |= size > memtable_bytes / QUIET_PART;
            if size > memtable_bytes * MAX_MEMTABLES {
                self.work.hold_writers();
            }
        }
        applied
    }
}

/// Begins to write to the trees that a batch changes.
fn begin_writing<'k>(
    batch: &Batch,
    keyspaces: &'k Keyspaces,
    stamp: Stamp,
) -> Vec<(KeyspaceId, Writing<'k>)> {
    let mut writings: Vec<(KeyspaceId, Writing<'k>)> = Vec::new();
    for Operation { keyspace, .. } in &batch.operations {
        if writings.iter().all(|(known, _)| known != keyspace)
            && let Some((_, Keyspace::Tree(tree))) = keyspaces.get(keyspace)
        {
            writings.push((*keyspace, tree.begin_batch(stamp)));
        }
    }
    writings
}

#[derive(Default)]
struct Applied {
    changed_logs: bool,
    /// Whether a memtable is to be flushed.
    filled_tree: bool,
    /// Whether one is to be flushed if nothing else is committed.
    is_worth_flushing: bool,
}

impl CommitState {
    fn change_log(&mut self, log: u32, change: &Change, at: Location) {
        let Some(state) = self.logs.get_mut(&log) else { return };
        let operation = match change {
            Change::Append(position, entry) => {
                record::Operation::Append { log, position: *position, entry }
            }
            Change::Trim(below) => record::Operation::Trim { log, below: *below },
            Change::Cut(from) => record::Operation::Cut { log, from: *from },
            Change::Put(..) | Change::Remove(_) => return,
        };
        if let Some((_, Mark::Item(item))) = self.writer.summary.note(at.offset(), &operation) {
            state.item(item.position);
            let item = Item { before: state.appended, ..item };
            self.writer.segment().items().entry(log).or_default().push(item);
        }
        match operation {
            record::Operation::Append { position, entry, .. } => {
                state.append(position, entry.len())
            }
            record::Operation::Trim { below, .. } => state.trim(below),
            record::Operation::Cut { from, .. } => state.cut(at, from),
            record::Operation::Put { .. } | record::Operation::Remove { .. } => {}
        }
    }
}

fn tree_error(error: lsm_tree::Error) -> KeyspaceError {
    match error {
        lsm_tree::Error::Io(error) => io_error(error),
        other => KeyspaceError::Engine(Box::new(other)),
    }
}

fn io_error(error: std::io::Error) -> KeyspaceError {
    let shortage = Shortage::of(&error);
    shortage.map_or_else(|| KeyspaceError::Engine(Box::new(error)), KeyspaceError::from)
}

impl Store for DiskStore {
    fn create_keyspace(&self, name: &str) -> Result<KeyspaceId, KeyspaceError> {
        self.shared.create(name, Kind::Tree)
    }

    fn create_log(&self, name: &str) -> Result<KeyspaceId, KeyspaceError> {
        self.shared.create(name, Kind::Log { trimmed: 0 })
    }

    fn drop_keyspace(&self, keyspace: KeyspaceId) -> Result<(), KeyspaceError> {
        self.shared.drop_keyspace(keyspace)
    }

    fn keyspaces(&self) -> Vec<(String, KeyspaceId)> {
        let keyspaces = self.shared.keyspaces();
        let mut listed: Vec<_> =
            keyspaces.iter().map(|(&id, (name, _))| (name.clone(), id)).collect();
        listed.sort();
        listed
    }

    fn snapshot(&self) -> Arc<dyn Snapshot> {
        let mut published = self.shared.published();
        let newest = published.newest.upgrade();
        if let Some(newest) = &newest
            && newest.is_of(&published)
        {
            return Arc::clone(newest) as Arc<dyn Snapshot>;
        }
        let below = published.visible;
        published.snapshots.add(below);
        let moment = Moment { below, published: Arc::clone(&self.shared.published) };
        let taken = Arc::new(DiskSnapshot {
            moment: Arc::new(moment),
            end: published.end,
            journal: Arc::clone(&self.shared.journal),
            logs: Arc::clone(&published.logs),
            segments: Arc::clone(&published.segments),
            keyspaces: Arc::clone(&published.keyspaces),
        });
        published.newest = Arc::downgrade(&taken);
        // Its end takes the lock, if this was the last that held it.
        drop(published);
        drop(newest);
        taken
    }

    fn commit(&self, batch: Batch) -> Result<CommitSequence, CommitError> {
        self.shared.commit(batch)
    }

    fn ingest(
        &self,
        keyspace: KeyspaceId,
        pairs: &mut dyn Iterator<Item = (Bytes, Bytes)>,
    ) -> Result<(), CommitError> {
        match self.shared.keyspaces().get(&keyspace) {
            Some((_, Keyspace::Tree(tree))) => self.shared.ingest(tree, pairs),
            Some((_, Keyspace::Log(_))) => Err(CommitError::WrongKind),
            None => Err(CommitError::UnknownKeyspace),
        }
    }

    fn discard(&self, keyspace: KeyspaceId, range: &KeyRange) -> Result<(), CommitError> {
        match self.shared.keyspaces().get(&keyspace) {
            Some((_, Keyspace::Tree(tree))) if !range.is_empty() => {
                self.shared.discard(tree, range)
            }
            Some((_, Keyspace::Tree(_))) => Ok(()),
            Some((_, Keyspace::Log(_))) => Err(CommitError::WrongKind),
            None => Err(CommitError::UnknownKeyspace),
        }
    }

    fn set_short_of_room(&self, is_short: bool) {
        self.shared.journal.set_short(is_short);
        self.shared.work.wake();
    }

    fn reclaim(&self, room: u64, stops: &dyn Fn() -> bool) -> Result<u64, CommitError> {
        self.shared.reclaim(room, stops)
    }

    fn replay_point(&self) -> ReplayPoint {
        ReplayPoint(self.shared.context.sequences.get())
    }

    fn is_settled(&self, point: ReplayPoint) -> bool {
        self.shared.is_settled(point)
    }

    fn write_out_through(&self, sequence: CommitSequence) -> Result<u64, SyncError> {
        let Some(committed) = self.shared.group.unwritten(sequence) else { return Ok(0) };
        match self.shared.journal.write_out() {
            Ok(_) => Ok(self.shared.group.written(committed)),
            Err(error) => {
                self.shared.group.fail();
                Err(SyncError::Failed(Arc::new(error)))
            }
        }
    }

    fn sync_through(&self, sequence: CommitSequence) -> Result<(), SyncError> {
        self.shared.group.sync_through(sequence)
    }

    fn last_committed(&self) -> CommitSequence {
        self.shared.group.last_committed()
    }

    fn last_synced(&self) -> CommitSequence {
        self.shared.group.last_synced()
    }

    fn statistics(&self) -> StoreStatistics {
        let group = &self.shared.group;
        StoreStatistics {
            commits: group.last_committed().as_u64(),
            syncs: group.syncs(),
            journal_bytes: self.shared.journal.disk_bytes(),
            table_bytes: self.shared.trees().iter().map(|tree| tree.disk_bytes()).sum(),
        }
    }

    fn verify(&self) -> Result<Vec<Damage>, ReadError> {
        self.shared.journal.write_out().map_err(|error| ReadError::Engine(Box::new(error)))?;
        let published = self.shared.published();
        let (segments, end) = (Arc::clone(&published.segments), published.end);
        drop(published);
        let mut damages = Vec::new();
        for segment in segments.iter() {
            let end = if segment.number == end.segment() { end.offset() } else { segment.end() };
            damages.extend(opening::verify_segment(segment, end)?);
        }
        for tree in self.shared.trees() {
            damages.extend(tree.verify()?);
        }
        Ok(damages)
    }
}

/// Keeps what was visible at one sequence.
struct Moment {
    below: u64,
    published: Arc<Mutex<Published>>,
}

impl Drop for Moment {
    fn drop(&mut self) {
        let mut published = lock(&self.published);
        published.snapshots.remove(self.below);
    }
}

struct DiskSnapshot {
    moment: Arc<Moment>,
    end: Location,
    journal: Arc<journal::Shared>,
    logs: Arc<BTreeMap<u32, LogState>>,
    segments: Arc<[Arc<Segment>]>,
    keyspaces: Arc<Keyspaces>,
}

impl DiskSnapshot {
    /// Whether a snapshot that is taken now would show the same.
    fn is_of(&self, published: &Published) -> bool {
        self.moment.below == published.visible
            && self.end == published.end
            && Arc::ptr_eq(&self.logs, &published.logs)
            && Arc::ptr_eq(&self.segments, &published.segments)
            && Arc::ptr_eq(&self.keyspaces, &published.keyspaces)
    }

    fn keyspace(&self, id: KeyspaceId) -> Result<&Keyspace, ReadError> {
        self.keyspaces.get(&id).map(|(_, keyspace)| keyspace).ok_or(ReadError::UnknownKeyspace)
    }

    fn look_up(
        &self,
        keyspace: KeyspaceId,
        key: &[u8],
        is_known: bool,
    ) -> Result<Option<Bytes>, ReadError> {
        match self.keyspace(keyspace)? {
            Keyspace::Tree(tree) => tree.get(key, self.moment.below, is_known),
            Keyspace::Log(log) => match key.try_into() {
                Ok(position) => self.log(*log)?.get(u64::from_be_bytes(position)),
                Err(_) => Ok(None),
            },
        }
    }

    fn log(&self, log: u32) -> Result<LogView, ReadError> {
        let state = self.logs.get(&log).ok_or(ReadError::UnknownKeyspace)?.clone();
        let written = self.journal.write_out_through(self.end);
        written.map_err(|error| ReadError::Engine(Box::new(error)))?;
        Ok(LogView { log, segments: Arc::clone(&self.segments), state, end: self.end })
    }
}

impl Snapshot for DiskSnapshot {
    fn get(&self, keyspace: KeyspaceId, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        self.look_up(keyspace, key, false)
    }

    fn get_known(&self, keyspace: KeyspaceId, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        self.look_up(keyspace, key, true)
    }

    fn scan(
        &self,
        keyspace: KeyspaceId,
        range: KeyRange,
        direction: Direction,
    ) -> Result<Scan, ReadError> {
        let keyspace = self.keyspace(keyspace)?;
        if range.is_empty() {
            return Ok(Box::new(std::iter::empty()));
        }
        match keyspace {
            Keyspace::Tree(tree) => {
                let held = Arc::clone(&self.moment);
                Ok(tree.scan(range, direction, self.moment.below, held))
            }
            Keyspace::Log(log) => {
                let (start, end) = range.positions();
                Ok(Box::new(self.log(*log)?.scan(start, end, direction)))
            }
        }
    }

    fn walk(&self, keyspace: KeyspaceId, range: KeyRange) -> Result<Box<dyn Walk>, ReadError> {
        match self.keyspace(keyspace)? {
            Keyspace::Tree(tree) if !range.is_empty() => {
                Ok(tree.walk(range, self.moment.below, Arc::clone(&self.moment)))
            }
            _ => Ok(Box::new(ScanWalk::from(self.scan(keyspace, range, Direction::Forward)?))),
        }
    }

    fn log_totals(&self, log: KeyspaceId) -> Result<LogTotals, ReadError> {
        match self.keyspace(log)? {
            Keyspace::Log(log) => self.log(*log)?.totals(),
            Keyspace::Tree(_) => Err(ReadError::NotALog),
        }
    }
}
