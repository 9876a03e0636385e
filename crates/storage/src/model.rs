//! The store in memory, with writes that can be lost on purpose.
//!
//! This file owns a small multi-version map. Every key keeps its versions from the oldest state
//! that can still be asked for: by a living snapshot, or after a crash that loses everything behind
//! the last sync. The store draws no random numbers: the caller that simulates a crash says what is lost.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::group_commit::GroupCommit;
use crate::store::{
    Batch, Bytes, Change, CommitError, CommitSequence, Damage, Direction, KeyRange, KeyspaceError,
    KeyspaceId, LogEnd, LogTotals, ReadError, Scan, Snapshot, Store, StoreStatistics, SyncError,
    check_keyspace_name,
};

/// How many more outdated keys a commit cleans up than it writes itself, so that the store keeps pace.
const CLEANED_BEYOND: usize = 64;

/// How many pairs a scan copies while it holds the lock, so that it does not block writers.
const SCAN_CHUNK: usize = 64;

/// A deterministic store in memory.
pub struct ModelStore {
    state: Arc<Mutex<State>>,
    group: GroupCommit,
    fail_next_sync: Arc<AtomicBool>,
    ignore_syncs: Arc<AtomicBool>,
}

#[derive(Default)]
struct State {
    keyspaces: BTreeMap<KeyspaceId, Keyspace>,
    next_keyspace: u64,
    last_committed: CommitSequence,
    last_synced: CommitSequence,
    /// How many living snapshots see the state after each sequence.
    snapshots: BTreeMap<CommitSequence, usize>,
    /// Keys with versions that are of no use once the horizon has passed the sequence, oldest first. One
    /// for each write since then.
    outdated: VecDeque<(CommitSequence, KeyspaceId, Bytes)>,
}

struct Keyspace {
    name: String,
    is_log: bool,
    /// A dropped keyspace stays while a snapshot taken before may read it.
    dropped_after: Option<CommitSequence>,
    versions: BTreeMap<Bytes, Vec<Version>>,
}

#[derive(Clone)]
struct Version {
    since: CommitSequence,
    value: Option<Bytes>,
}

impl Default for ModelStore {
    fn default() -> Self {
        Self::new()
    }
}

impl ModelStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::from_state(State::default())
    }

    /// Makes the next sync fail, after which the store refuses to write.
    pub fn fail_next_sync(&self) {
        self.fail_next_sync.store(true, Ordering::SeqCst);
    }

    /// From now on syncs do nothing, as if the program had forgotten them or the power had failed in
    /// the middle of its work.
    pub fn ignore_syncs(&self, ignore: bool) {
        self.ignore_syncs.store(ignore, Ordering::SeqCst);
    }

    /// The commit that is synced, and the newest one: a crash keeps the first for sure, and anything
    /// after it up to the second.
    pub fn unsynced(&self) -> (CommitSequence, CommitSequence) {
        let state = self.lock();
        (state.last_synced, state.last_committed)
    }

    /// The same as [`crash`](Self::crash), by the number of the last commit that survives.
    #[must_use]
    pub fn crash_after(&self, commits: u64) -> Self {
        self.crash(CommitSequence(commits))
    }

    /// What a restart finds after a crash that kept the commits up to `survivor`.
    ///
    /// Anything between the last synced and the last commit may survive: the operating system
    /// writes back when it likes, but always in the order of the log. A survivor outside of that
    /// span is moved to its nearer end.
    pub fn crash(&self, survivor: CommitSequence) -> Self {
        let state = self.lock();
        let survivor = survivor.clamp(state.last_synced, state.last_committed);
        let mut restarted = State { next_keyspace: state.next_keyspace, ..State::default() };
        let surviving = state.keyspaces.iter().filter(|(_, k)| k.dropped_after.is_none());
        for (&id, keyspace) in surviving {
            let at_survivor = |(key, versions): (&Bytes, &Vec<Version>)| {
                let value = visible(versions, survivor)?.clone();
                let version = Version { since: CommitSequence::ZERO, value: Some(value) };
                Some((key.clone(), vec![version]))
            };
            let versions = keyspace.versions.iter().filter_map(at_survivor).collect();
            let (name, is_log) = (keyspace.name.clone(), keyspace.is_log);
            let dropped_after = None;
            restarted.keyspaces.insert(id, Keyspace { name, is_log, dropped_after, versions });
        }
        drop(state);
        Self::from_state(restarted)
    }

    fn from_state(state: State) -> Self {
        let fail_next_sync = Arc::new(AtomicBool::new(false));
        let ignore_syncs = Arc::new(AtomicBool::new(false));
        let state = Arc::new(Mutex::new(state));
        let sync_log = {
            let (fail, state) = (Arc::clone(&fail_next_sync), Arc::clone(&state));
            let ignore = Arc::clone(&ignore_syncs);
            move || {
                if fail.swap(false, Ordering::SeqCst) {
                    return Err(io::Error::other("the simulated disk failed to sync"));
                }
                if !ignore.load(Ordering::SeqCst) {
                    let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
                    state.last_synced = state.last_committed;
                }
                Ok(())
            }
        };
        Self { state, group: GroupCommit::new(Box::new(sync_log)), fail_next_sync, ignore_syncs }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn create(&self, name: &str, is_log: bool) -> Result<KeyspaceId, KeyspaceError> {
        check_keyspace_name(name)?;
        let mut state = self.lock();
        let live = |keyspace: &Keyspace| keyspace.dropped_after.is_none() && keyspace.name == name;
        if let Some((&id, found)) = state.keyspaces.iter().find(|(_, keyspace)| live(keyspace)) {
            return if found.is_log == is_log {
                Ok(id)
            } else {
                Err(KeyspaceError::WrongKind { name: name.to_owned() })
            };
        }
        if self.group.has_failed() {
            return Err(KeyspaceError::Poisoned);
        }
        let id = KeyspaceId(state.next_keyspace);
        state.next_keyspace += 1;
        let (name, versions) = (name.to_owned(), BTreeMap::new());
        state.keyspaces.insert(id, Keyspace { name, is_log, dropped_after: None, versions });
        Ok(id)
    }
}

impl Keyspace {
    /// Writes a value, or that there is none. Whether that outdates a version which must be kept for now.
    fn put(
        &mut self,
        key: Bytes,
        value: Option<Bytes>,
        at: CommitSequence,
        horizon: CommitSequence,
    ) -> bool {
        let versions = self.versions.entry(key.clone()).or_default();
        prune(versions, horizon);
        if versions.last().is_some_and(|last| last.since == at) {
            versions.pop();
        }
        versions.push(Version { since: at, value });
        let outdates = versions.len() > 1;
        if versions.iter().all(|version| version.value.is_none()) {
            self.versions.remove(&key);
            return false;
        }
        outdates
    }

    /// What there is in a range of positions.
    fn keys(&self, range: impl std::ops::RangeBounds<Bytes>) -> Vec<Bytes> {
        let is_there = |versions: &[Version]| versions.last().is_some_and(|l| l.value.is_some());
        let found = self.versions.range(range).filter(|(_, versions)| is_there(versions));
        found.map(|(key, _)| key.clone()).collect()
    }

    /// Drops the versions of a key that nothing can read any more.
    fn clean_up(&mut self, key: &Bytes, horizon: CommitSequence) {
        if let Some(versions) = self.versions.get_mut(key) {
            prune(versions, horizon);
            if versions.is_empty() {
                self.versions.remove(key);
            }
        }
    }

    /// The last position that has an entry, below a limit if there is one.
    fn last_position(&self, below: Option<u64>) -> Option<u64> {
        let end = below.map_or(Bound::Unbounded, |below| Bound::Excluded(key_of(below)));
        let mut keys = self.versions.range((Bound::Unbounded, end)).rev();
        let (key, _) =
            keys.find(|(_, versions)| versions.last().is_some_and(|last| last.value.is_some()))?;
        key.first_chunk().map(|position| u64::from_be_bytes(*position))
    }
}

fn nothing_at(keys: Vec<Bytes>) -> Vec<(Bytes, Option<Bytes>)> {
    keys.into_iter().map(|key| (key, None)).collect()
}

fn key_of(position: u64) -> Bytes {
    Bytes::from(&position.to_be_bytes())
}

/// Whether all operations fit their keyspaces.
fn check(state: &State, batch: &Batch) -> Result<(), CommitError> {
    let mut ends: BTreeMap<KeyspaceId, LogEnd> = BTreeMap::new();
    for operation in &batch.operations {
        let keyspace = state.keyspaces.get(&operation.keyspace);
        let keyspace = keyspace
            .filter(|keyspace| keyspace.dropped_after.is_none())
            .ok_or(CommitError::UnknownKeyspace)?;
        if keyspace.is_log != operation.change.is_of_log() {
            return Err(CommitError::WrongKind);
        }
        let new = || LogEnd::new(keyspace.last_position(None));
        let end = match operation.change {
            Change::Put(..) | Change::Remove(_) => continue,
            _ => ends.entry(operation.keyspace).or_insert_with(new),
        };
        match operation.change {
            Change::Append(position, _) => end.append(position)?,
            Change::Trim(below) => end.trim(below)?,
            Change::Cut(from) => end.cut(keyspace.last_position(Some(from)))?,
            Change::Put(..) | Change::Remove(_) => {}
        }
    }
    Ok(())
}

impl State {
    /// The oldest sequence whose state may still be read.
    fn horizon(&self) -> CommitSequence {
        let oldest_snapshot = self.snapshots.keys().next().copied();
        oldest_snapshot.unwrap_or(self.last_synced).min(self.last_synced)
    }

    /// Drops versions that nothing can read any more, of this many keys at most.
    fn clean_up(&mut self, horizon: CommitSequence, most: usize) {
        for _ in 0..most {
            if self.outdated.front().is_none_or(|(at, ..)| *at > horizon) {
                return;
            }
            let Some((_, id, key)) = self.outdated.pop_front() else { return };
            if let Some(keyspace) = self.keyspaces.get_mut(&id) {
                keyspace.clean_up(&key, horizon);
            }
        }
    }

    fn forget_dropped_keyspaces(&mut self) {
        let oldest = self.snapshots.keys().next().copied();
        self.keyspaces.retain(|_, keyspace| match (keyspace.dropped_after, oldest) {
            (None, _) => true,
            (Some(dropped_after), Some(oldest)) => oldest <= dropped_after,
            (Some(_), None) => false,
        });
    }
}

fn visible(versions: &[Version], at: CommitSequence) -> Option<&Bytes> {
    versions.iter().rev().find(|version| version.since <= at)?.value.as_ref()
}

/// Drops what no snapshot can ask for: every version older than the one seen at the horizon.
fn prune(versions: &mut Vec<Version>, horizon: CommitSequence) {
    if let Some(seen) = versions.iter().rposition(|version| version.since <= horizon) {
        let gone = if versions[seen].value.is_none() { seen + 1 } else { seen };
        versions.drain(..gone);
    }
}

impl Store for ModelStore {
    fn create_keyspace(&self, name: &str) -> Result<KeyspaceId, KeyspaceError> {
        self.create(name, false)
    }

    fn create_log(&self, name: &str) -> Result<KeyspaceId, KeyspaceError> {
        self.create(name, true)
    }

    fn drop_keyspace(&self, keyspace: KeyspaceId) -> Result<(), KeyspaceError> {
        let mut state = self.lock();
        let now = state.last_committed;
        match state.keyspaces.get_mut(&keyspace) {
            Some(found) if found.dropped_after.is_none() => {
                if self.group.has_failed() {
                    return Err(KeyspaceError::Poisoned);
                }
                found.dropped_after = Some(now);
            }
            _ => return Err(KeyspaceError::Unknown),
        }
        state.forget_dropped_keyspaces();
        Ok(())
    }

    fn keyspaces(&self) -> Vec<(String, KeyspaceId)> {
        let state = self.lock();
        let live = state.keyspaces.iter().filter(|(_, keyspace)| keyspace.dropped_after.is_none());
        let mut listed: Vec<_> = live.map(|(&id, keyspace)| (keyspace.name.clone(), id)).collect();
        listed.sort();
        listed
    }

    fn snapshot(&self) -> Arc<dyn Snapshot> {
        let mut state = self.lock();
        let at = state.last_committed;
        *state.snapshots.entry(at).or_default() += 1;
        let live = state.keyspaces.iter().filter(|(_, keyspace)| keyspace.dropped_after.is_none());
        let keyspaces = live.map(|(&id, _)| id).collect();
        drop(state);
        let moment = Arc::new(Moment { at, state: Arc::clone(&self.state) });
        Arc::new(ModelSnapshot { moment, keyspaces })
    }

    fn commit(&self, batch: Batch) -> Result<CommitSequence, CommitError> {
        batch.check_keys()?;
        let mut state = self.lock();
        if self.group.has_failed() {
            return Err(CommitError::Poisoned);
        }
        check(&state, &batch)?;
        let sequence = self.group.committed();
        let horizon = state.horizon();
        state.last_committed = sequence;
        let mut written = 0;
        for operation in batch.operations {
            let State { keyspaces, outdated, .. } = &mut *state;
            let Some(keyspace) = keyspaces.get_mut(&operation.keyspace) else { continue };
            let changes = match operation.change {
                Change::Put(key, value) => vec![(key, Some(value))],
                Change::Remove(key) => vec![(key, None)],
                Change::Append(position, entry) => vec![(key_of(position), Some(entry))],
                Change::Trim(below) => nothing_at(keyspace.keys(..key_of(below))),
                Change::Cut(from) => nothing_at(keyspace.keys(key_of(from)..)),
            };
            written += changes.len();
            for (key, value) in changes {
                if keyspace.put(key.clone(), value, sequence, horizon) {
                    outdated.push_back((sequence, operation.keyspace, key));
                }
            }
        }
        state.clean_up(horizon, written + CLEANED_BEYOND);
        Ok(sequence)
    }

    fn sync_through(&self, sequence: CommitSequence) -> Result<(), SyncError> {
        self.group.sync_through(sequence)
    }

    fn last_committed(&self) -> CommitSequence {
        self.group.last_committed()
    }

    fn last_synced(&self) -> CommitSequence {
        self.group.last_synced()
    }

    fn statistics(&self) -> StoreStatistics {
        let (commits, syncs) = (self.group.last_committed().as_u64(), self.group.syncs());
        StoreStatistics { commits, syncs, ..StoreStatistics::default() }
    }

    fn verify(&self) -> Result<Vec<Damage>, ReadError> {
        // Memory keeps what is written to it.
        Ok(Vec::new())
    }
}

/// Keeps the versions that were visible at one sequence from being pruned.
struct Moment {
    at: CommitSequence,
    state: Arc<Mutex<State>>,
}

impl Drop for Moment {
    fn drop(&mut self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = state.snapshots.get_mut(&self.at) {
            *count -= 1;
            if *count == 0 {
                state.snapshots.remove(&self.at);
            }
        }
        state.forget_dropped_keyspaces();
    }
}

struct ModelSnapshot {
    moment: Arc<Moment>,
    keyspaces: Vec<KeyspaceId>,
}

impl Snapshot for ModelSnapshot {
    fn get(&self, keyspace: KeyspaceId, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        if !self.keyspaces.contains(&keyspace) {
            return Err(ReadError::UnknownKeyspace);
        }
        let state = self.moment.state.lock().unwrap_or_else(PoisonError::into_inner);
        let keyspace = state.keyspaces.get(&keyspace).ok_or(ReadError::UnknownKeyspace)?;
        let versions = keyspace.versions.get(&Bytes::from(key));
        Ok(versions.and_then(|versions| visible(versions, self.moment.at)).cloned())
    }

    fn scan(
        &self,
        keyspace: KeyspaceId,
        range: KeyRange,
        direction: Direction,
    ) -> Result<Scan, ReadError> {
        if !self.keyspaces.contains(&keyspace) {
            return Err(ReadError::UnknownKeyspace);
        }
        Ok(Box::new(ModelScan {
            moment: Arc::clone(&self.moment),
            keyspace,
            rest: (!range.is_empty()).then_some(range),
            direction,
            chunk: Vec::new().into_iter(),
        }))
    }

    fn log_totals(&self, log: KeyspaceId) -> Result<LogTotals, ReadError> {
        if !self.keyspaces.contains(&log) {
            return Err(ReadError::UnknownKeyspace);
        }
        let state = self.moment.state.lock().unwrap_or_else(PoisonError::into_inner);
        let keyspace = state.keyspaces.get(&log).ok_or(ReadError::UnknownKeyspace)?;
        if !keyspace.is_log {
            return Err(ReadError::NotALog);
        }
        let mut totals = LogTotals::default();
        let entries = keyspace.versions.values().filter_map(|found| visible(found, self.moment.at));
        for entry in entries {
            totals.entries += 1;
            totals.bytes += entry.len() as u64;
        }
        Ok(totals)
    }
}

struct ModelScan {
    moment: Arc<Moment>,
    keyspace: KeyspaceId,
    /// What has not been copied yet.
    rest: Option<KeyRange>,
    direction: Direction,
    chunk: std::vec::IntoIter<(Bytes, Bytes)>,
}

impl ModelScan {
    fn refill(&mut self, rest: KeyRange) {
        let state = self.moment.state.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(keyspace) = state.keyspaces.get(&self.keyspace) else { return };
        let bytes = |bound: &Bound<Vec<u8>>| bound.as_ref().map(|key| Bytes::from(key.as_slice()));
        let pairs = keyspace.versions.range((bytes(&rest.start), bytes(&rest.end)));
        let at = self.moment.at;
        let visible_pair = |(key, versions): (&Bytes, &Vec<Version>)| {
            visible(versions, at).map(|value| (key.clone(), value.clone()))
        };
        let chunk: Vec<_> = match self.direction {
            Direction::Forward => pairs.filter_map(visible_pair).take(SCAN_CHUNK).collect(),
            Direction::Backward => pairs.rev().filter_map(visible_pair).take(SCAN_CHUNK).collect(),
        };
        if chunk.len() == SCAN_CHUNK
            && let Some((last, _)) = chunk.last()
        {
            let after = Bound::Excluded(last.to_vec());
            let rest = match self.direction {
                Direction::Forward => KeyRange { start: after, end: rest.end },
                Direction::Backward => KeyRange { start: rest.start, end: after },
            };
            self.rest = (!rest.is_empty()).then_some(rest);
        }
        self.chunk = chunk.into_iter();
    }
}

impl Iterator for ModelScan {
    type Item = Result<(Bytes, Bytes), ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.chunk.as_slice().is_empty()
            && let Some(rest) = self.rest.take()
        {
            self.refill(rest);
        }
        self.chunk.next().map(Ok)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(
        store: &ModelStore,
        keyspace: KeyspaceId,
        key: &[u8; 1],
        value: &[u8],
    ) -> CommitSequence {
        let mut batch = Batch::new();
        batch.insert(keyspace, key, value);
        store.commit(batch).unwrap()
    }

    fn read(store: &ModelStore, keyspace: KeyspaceId, key: &[u8]) -> Option<Bytes> {
        store.snapshot().get(keyspace, key).unwrap()
    }

    #[test]
    fn a_crash_keeps_what_was_synced_and_any_prefix_of_the_rest() {
        let store = ModelStore::new();
        let keyspace = store.create_keyspace("k").unwrap();
        let first = put(&store, keyspace, b"a", b"1");
        store.sync_through(first).unwrap();
        let second = put(&store, keyspace, b"a", b"2");
        let third = put(&store, keyspace, b"b", b"3");

        let none_kept = store.crash(CommitSequence::ZERO);
        assert_eq!(read(&none_kept, keyspace, b"a").as_deref(), Some(&b"1"[..]));
        assert_eq!(read(&none_kept, keyspace, b"b"), None);
        let one_kept = store.crash(second);
        assert_eq!(read(&one_kept, keyspace, b"a").as_deref(), Some(&b"2"[..]));
        assert_eq!(read(&one_kept, keyspace, b"b"), None);
        let all_kept = store.crash(third);
        assert_eq!(read(&all_kept, keyspace, b"b").as_deref(), Some(&b"3"[..]));
    }

    #[test]
    fn a_synced_removal_stays_removed_after_a_crash() {
        let store = ModelStore::new();
        let keyspace = store.create_keyspace("k").unwrap();
        put(&store, keyspace, b"a", b"1");
        let mut batch = Batch::new();
        batch.remove(keyspace, b"a");
        let removal = store.commit(batch).unwrap();
        let unsynced = store.crash(CommitSequence::ZERO);
        assert_eq!(read(&unsynced, keyspace, b"a"), None);
        store.sync_through(removal).unwrap();
        put(&store, keyspace, b"a", b"2");
        assert_eq!(read(&store.crash(removal), keyspace, b"a"), None);
    }

    /// Keys that never come back, as those of an oplog, must not stay for ever.
    #[test]
    fn what_was_removed_or_replaced_takes_no_room_once_nothing_can_read_it() {
        let store = ModelStore::new();
        let (keyspace, log) = (store.create_keyspace("k").unwrap(), store.create_log("l").unwrap());
        let kept = store.snapshot();
        let write = |number: u64| {
            let mut batch = Batch::new();
            batch.insert(keyspace, &number.to_be_bytes(), b"1");
            batch.insert(keyspace, b"same", &number.to_be_bytes());
            if let Some(old) = number.checked_sub(10) {
                batch.remove(keyspace, &old.to_be_bytes());
                batch.trim_log(log, old);
            }
            batch.append_to_log(log, number, b"entry");
            store.sync_through(store.commit(batch).unwrap()).unwrap();
        };
        let versions = || {
            let state = store.lock();
            let all = state.keyspaces.values().flat_map(|keyspace| keyspace.versions.values());
            (all.map(Vec::len).sum::<usize>(), state.outdated.len())
        };
        (1..1000).for_each(write);
        assert!(versions().0 > 1000, "a snapshot keeps what it may read");
        drop(kept);
        (1000..2000).for_each(write);
        let (held, waiting) = versions();
        assert!(held < 60 && waiting < 60, "{held} versions, {waiting} to be cleaned up");
        assert_eq!(read(&store, keyspace, b"same").as_deref(), Some(&1999_u64.to_be_bytes()[..]));
        assert_eq!(store.snapshot().log_totals(log).unwrap().entries, 11);
    }

    #[test]
    fn a_failed_sync_stops_writes_and_a_restart_recovers() {
        let store = ModelStore::new();
        let keyspace = store.create_keyspace("k").unwrap();
        let sequence = put(&store, keyspace, b"a", b"1");
        store.fail_next_sync();
        assert!(matches!(store.sync_through(sequence), Err(SyncError::Failed(_))));
        assert!(matches!(store.commit(Batch::new()), Err(CommitError::Poisoned)));
        assert!(matches!(store.create_keyspace("other"), Err(KeyspaceError::Poisoned)));
        assert_eq!(read(&store, keyspace, b"a").as_deref(), Some(&b"1"[..]));

        let restarted = store.crash(CommitSequence::ZERO);
        assert_eq!(read(&restarted, keyspace, b"a"), None);
        let sequence = put(&restarted, keyspace, b"a", b"2");
        restarted.sync_through(sequence).unwrap();
    }

    #[test]
    fn old_versions_are_forgotten_when_no_reader_can_ask_for_them() {
        let store = ModelStore::new();
        let keyspace = store.create_keyspace("k").unwrap();
        for _ in 0..100 {
            let sequence = put(&store, keyspace, b"a", b"1");
            store.sync_through(sequence).unwrap();
        }
        let kept = store.lock().keyspaces[&keyspace].versions[&Bytes::from(b"a")].len();
        assert!(kept <= 2, "{kept} versions kept");
    }
}
