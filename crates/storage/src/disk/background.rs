//! What a store on disk does besides commits: flushing memtables, merging tables, preparing segments
//! and dropping those that are not needed.
//!
//! Two threads, both asleep while there is nothing to do: one flushes and looks after segments, one
//! merges.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::{Shared, lock};
use crate::journal::{self, Shortage};
use crate::manifest::Kind;
use crate::store::{Bytes, CommitError, KeyRange, ReplayPoint, check_key, check_rising};
use crate::trees::{Rewriting, Tree};

/// A tree whose oldest unflushed record is further back than this in the journal is flushed.
const MAX_REPLAY_BYTES: u64 = 64 << 20;

/// How long a flush that found the disk full, or no descriptor left, waits before it is tried again.
const RETRY_AFTER: Duration = Duration::from_millis(500);

/// How long nothing is committed until memtables that are worth it are flushed.
const QUIET_AFTER: Duration = Duration::from_secs(3);

/// The part of a memtable that is worth flushing while nothing is committed.
pub(super) const QUIET_PART: u64 = 4;

/// What the background threads are told, and tell.
#[derive(Default)]
pub(super) struct Work {
    state: Mutex<State>,
    /// For the flushing thread.
    wanted: Condvar,
    /// For the merging thread.
    merge_wanted: Condvar,
    /// For writers that wait.
    progressed: Condvar,
    stop: AtomicBool,
    /// Whether writers must wait.
    behind: AtomicBool,
    /// Whether the flushing thread looks from time to time whether commits have ceased.
    watches: AtomicBool,
}

#[derive(Default)]
struct State {
    wanted: bool,
    merges: BTreeSet<u32>,
    /// Merges that found no room.
    put_off: BTreeSet<u32>,
    /// Whether nothing was committed for a while before the flush at hand or the last one, so that merges need not wait until they are worth it.
    is_quiet: bool,
    /// What a flush that was tried last found used up.
    shortage: Option<Shortage>,
}

impl Work {
    /// Writers wait until the flushing thread has looked again.
    pub(super) fn hold_writers(&self) {
        self.behind.store(true, Ordering::Release);
    }

    /// A memtable is worth flushing once nothing is committed for a while.
    pub(super) fn watch(&self) {
        let watches = &self.watches;
        if !watches.load(Ordering::Acquire) && !watches.swap(true, Ordering::AcqRel) {
            self.wake();
        }
    }

    pub(super) fn wake(&self) {
        lock(&self.state).wanted = true;
        self.wanted.notify_one();
    }

    fn stops(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }
}

/// What a thread does until the store goes.
type Loop = fn(&Shared);

/// The threads.
pub(super) struct Background {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Background {
    pub(super) fn start(shared: &Arc<Shared>) -> io::Result<Self> {
        let mut background = Self { shared: Arc::clone(shared), threads: Vec::new() };
        let loops: [(&str, Loop); 2] =
            [("storage-flush", Shared::flush_loop), ("storage-merge", Shared::merge_loop)];
        for (name, run) in loops {
            let watched = Watched(Arc::clone(shared));
            let thread =
                thread::Builder::new().name(name.to_owned()).spawn(move || run(&watched.0))?;
            background.threads.push(thread);
        }
        Ok(background)
    }
}

/// What a thread has of the store. Writers wait for both threads: if one panics, they are refused.
struct Watched(Arc<Shared>);

impl Drop for Watched {
    fn drop(&mut self) {
        if !thread::panicking() {
            return;
        }
        self.0.group.fail();
        // Under the lock, so that no writer is between its look and its sleep.
        drop(lock(&self.0.work.state));
        self.0.work.progressed.notify_all();
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let work = &self.shared.work;
        work.stop.store(true, Ordering::Release);
        // Under the lock, so that no thread is between its look at `stop` and its sleep.
        drop(lock(&work.state));
        work.wanted.notify_all();
        work.merge_wanted.notify_all();
        work.progressed.notify_all();
        for thread in self.threads.drain(..) {
            // A thread that panicked has nothing to give back.
            let _ = thread.join();
        }
    }
}

/// A background step failed.
enum Failure {
    /// A file could not be made. Nothing has changed, and the step is tried again.
    Short(Shortage),
    Other,
}

impl Failure {
    fn worse(self, other: Self) -> Self {
        if let Self::Short(_) = self { other } else { self }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Shortage::of(&error).map_or(Self::Other, Self::Short)
    }
}

impl From<lsm_tree::Error> for Failure {
    fn from(error: lsm_tree::Error) -> Self {
        match error {
            // Whether the engine has changed its list of tables is looked at before the next attempt.
            lsm_tree::Error::Io(error) => error.into(),
            _ => Self::Other,
        }
    }
}

impl Shared {
    /// Waits while the trees are too far behind to take more.
    pub(super) fn wait_for_flush(&self) -> Result<(), CommitError> {
        let work = &self.work;
        if !work.behind.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut state = lock(&work.state);
        while work.behind.load(Ordering::Acquire) && !work.stops() {
            if self.group.has_failed() {
                return Err(CommitError::Poisoned);
            }
            if let Some(shortage) = state.shortage {
                return Err(shortage.into());
            }
            state = work.progressed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        Ok(())
    }

    fn flush_loop(&self) {
        loop {
            let work = &self.work;
            let mut state = lock(&work.state);
            let mut last = self.group.last_committed();
            let mut is_quiet = false;
            while !state.wanted && !work.stops() {
                let watches = work.watches.load(Ordering::Acquire);
                let patience = match (state.shortage.is_some(), watches) {
                    (true, _) => RETRY_AFTER,
                    (false, true) => QUIET_AFTER,
                    (false, false) => {
                        state = work.wanted.wait(state).unwrap_or_else(PoisonError::into_inner);
                        continue;
                    }
                };
                let waited = work.wanted.wait_timeout(state, patience);
                let (next, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
                state = next;
                let before = std::mem::replace(&mut last, self.group.last_committed());
                is_quiet = timeout.timed_out() && watches && before == last;
                state.wanted |= is_quiet || timeout.timed_out() && state.shortage.is_some();
            }
            state.wanted = false;
            state.is_quiet = is_quiet;
            drop(state);
            if work.stops() {
                return;
            }
            let shortage = match self.flush_round(is_quiet) {
                Ok(()) => None,
                Err(Failure::Short(shortage)) => Some(shortage),
                Err(Failure::Other) => {
                    // What a tree or the manifest holds is unknown.
                    self.group.fail();
                    None
                }
            };
            self.judge();
            let mut state = lock(&work.state);
            state.shortage = shortage;
            let put_off = std::mem::take(&mut state.put_off);
            state.merges.extend(put_off);
            if is_quiet {
                let trees = self.trees();
                let waiting = trees.iter().filter(|tree| tree.has_merge_put_off());
                state.merges.extend(waiting.map(|tree| tree.number));
            }
            drop(state);
            work.merge_wanted.notify_one();
            work.progressed.notify_all();
        }
    }

    /// Whether writers must wait is known from the trees.
    fn judge(&self) {
        let memtable_bytes = self.context.options.memtable_bytes;
        let behind = self.trees().iter().any(|tree| tree.is_behind(memtable_bytes));
        self.work.behind.store(behind, Ordering::Release);
    }

    fn flush_round(&self, is_quiet: bool) -> Result<(), Failure> {
        if self.group.has_failed() {
            return Ok(());
        }
        // Writers may have to wait from here on, until the flush is done.
        self.judge();
        let prepared = self.journal.prepare().map_err(Failure::from);
        self.journal.write_summaries();
        // On a disk without room for a segment there may be some for a table, and what is given back makes more.
        let flushed = self.flush_trees(is_quiet);
        let given_back = self.drop_segments();
        let failures = [prepared, flushed, given_back].into_iter().filter_map(Result::err);
        failures.reduce(Failure::worse).map_or(Ok(()), Err)
    }

    fn flush_trees(&self, is_quiet: bool) -> Result<(), Failure> {
        let far_back = self.far_back();
        let mut memtable_bytes = self.context.options.memtable_bytes;
        if is_quiet {
            self.work.watches.store(false, Ordering::Release);
            memtable_bytes /= QUIET_PART;
        }
        for tree in self.trees() {
            let flushing = lock(&self.flushing);
            tree.remove_leftovers(&self.snapshots())?;
            // One that could not be flushed before goes first, so that no more than one is sealed.
            if tree.has_sealed() {
                self.flush_sealed(&tree, None)?;
            }
            let oldest = tree.oldest_unflushed();
            let is_old = oldest.is_some_and(|oldest| oldest <= far_back);
            if is_old || tree.is_full(memtable_bytes) {
                let commit = lock(&self.commit);
                tree.seal();
                drop(commit);
                self.flush_sealed(&tree, None)?;
            }
            drop(flushing);
            // The snapshots that kept a memtable may have gone.
            if tree.count_flushed() > 0 {
                self.show_tables(&tree)?;
            }
        }
        Ok(())
    }

    /// Puts pairs into a tree by tables of their own, at a sequence that no commit has.
    ///
    /// Recovery takes what is above the highest sequence in the tables of a tree from the journal: so all that is below
    /// the sequence of the new tables is flushed before they are added. What the journal says about the keys is synced,
    /// since a tree must not keep what the journal may lose.
    pub(super) fn ingest(
        &self,
        tree: &Tree,
        pairs: &mut dyn Iterator<Item = (Bytes, Bytes)>,
    ) -> Result<(), CommitError> {
        let sequence = self.flush_now(tree, None)?;
        let (mut refused, mut last) = (None, None);
        let pairs = pairs.map(|(key, value)| {
            check_rising(&mut last, &key);
            match check_key(&key) {
                Ok(()) => Ok((key, value)),
                Err(error) => {
                    refused = Some(error);
                    Err(io::Error::from(io::ErrorKind::InvalidInput).into())
                }
            }
        });
        let ingested = tree.ingest(pairs, sequence, self.oldest_snapshot());
        if let Some(refused) = refused {
            return Err(refused);
        }
        ingested.map_err(|error| self.refusal(error.into()))?;
        self.show_tables(tree).map_err(|failure| self.refusal(failure))?;
        lock(&self.work.state).merges.insert(tree.number);
        self.work.merge_wanted.notify_one();
        Ok(())
    }

    /// Drops tables all of whose keys nothing reads or writes any more.
    ///
    /// Recovery may replay what put the keys there: the caller keeps in mind that they are garbage until the journal has
    /// gone on. That it is so must be on the disk before.
    pub(super) fn discard(&self, tree: &Tree, range: &KeyRange) -> Result<(), CommitError> {
        if tree.has_in_memory(range) {
            self.flush_now(tree, Some(range))?;
        } else {
            self.group.sync_through(self.group.last_committed())?;
        }
        tree.drop_tables(range).map_err(|error| self.refusal(error.into()))?;
        self.show_tables(tree).map_err(|failure| self.refusal(failure))
    }

    /// Gives back what removed keys hold, with at most this many bytes on the way. Returns how much.
    pub(super) fn reclaim(&self, room: u64, stops: &dyn Fn() -> bool) -> Result<u64, CommitError> {
        let mut gained = 0;
        for tree in self.trees() {
            let flushing = lock(&self.flushing);
            if self.group.has_failed() {
                return Err(CommitError::Poisoned);
            }
            // What says that a key was removed is on the disk before the key goes.
            let commit = lock(&self.commit);
            let (below, last) = (self.published().visible, self.group.last_committed());
            drop(commit);
            self.group.sync_through(last)?;
            let leftovers = tree.remove_leftovers(&self.snapshots());
            leftovers.map_err(|error| self.refusal(error.into()))?;
            drop(flushing);
            let rewriting = Rewriting { room, below, oldest_snapshot: self.oldest_snapshot() };
            let rewritten = tree.rewrite(rewriting, || lock(&self.flushing), stops);
            gained += rewritten.map_err(|error| self.refusal(error.into()))?;
            self.show_tables(&tree).map_err(|failure| self.refusal(failure))?;
        }
        Ok(gained)
    }

    /// Whether the journal is replayed from a place after a point.
    pub(super) fn is_settled(&self, point: ReplayPoint) -> bool {
        let replay_from = lock(&self.manifest).replay_from;
        let segments = Arc::clone(&self.published().segments);
        let first = segments.iter().find(|segment| segment.number >= replay_from);
        first.is_some_and(|segment| segment_after(segment) >= point.0)
    }

    /// Flushes all that a tree has in memory, but for keys that nothing reads any more, and syncs the journal. No commit has
    /// the sequence that is returned; those before it are flushed.
    fn flush_now(&self, tree: &Tree, without: Option<&KeyRange>) -> Result<u64, CommitError> {
        let _flushing = lock(&self.flushing);
        if self.group.has_failed() {
            return Err(CommitError::Poisoned);
        }
        if tree.has_sealed() {
            self.flush_sealed(tree, without).map_err(|failure| self.refusal(failure))?;
        }
        let commit = lock(&self.commit);
        let sequence = self.context.sequences.next();
        tree.seal();
        drop(commit);
        match tree.has_sealed() {
            true => self.flush_sealed(tree, without).map_err(|failure| self.refusal(failure))?,
            false => self.group.sync_through(self.group.last_committed())?,
        }
        Ok(sequence)
    }

    /// Why a write is refused after a flush that it needs has failed.
    fn refusal(&self, failure: Failure) -> CommitError {
        match failure {
            Failure::Short(shortage) => shortage.into(),
            Failure::Other => {
                self.group.fail();
                CommitError::Poisoned
            }
        }
    }

    fn flush_sealed(&self, tree: &Tree, without: Option<&KeyRange>) -> Result<(), Failure> {
        // A tree must not keep what the journal may lose.
        let last = self.group.last_committed();
        self.group.sync_through(last).map_err(|_| Failure::Other)?;
        if let Err(error) = tree.flush(self.oldest_snapshot(), without) {
            // Others may need the room meanwhile.
            tree.remove_leftovers(&self.snapshots())?;
            return Err(error.into());
        }
        self.show_tables(tree)?;
        lock(&self.work.state).merges.insert(tree.number);
        self.work.merge_wanted.notify_one();
        Ok(())
    }

    /// Lets snapshots see what was flushed and merged. New tables have a sequence, and until the next commit a snapshot
    /// would read those before them, which stay as long as it can.
    fn show_tables(&self, tree: &Tree) -> Result<(), Failure> {
        let commit = lock(&self.commit);
        let mut published = self.published();
        published.visible = published.visible.max(self.context.sequences.get());
        drop(published);
        drop(commit);
        tree.forget_older(&self.snapshots())?;
        if tree.count_flushed() > 0 {
            // Dropping a snapshot wakes no thread, so the flushing thread looks again after a while.
            self.work.watch();
        }
        Ok(())
    }

    /// Records up to this sequence are too far back to be in memory only.
    fn far_back(&self) -> u64 {
        let segments = Arc::clone(&self.published().segments);
        let mut bytes = 0;
        let mut newer = None;
        for segment in segments.iter().rev() {
            if bytes > MAX_REPLAY_BYTES {
                return newer.unwrap_or(0);
            }
            bytes += u64::from(segment.end());
            newer = Some(segment.after);
        }
        0
    }

    /// Gives back the segments that neither a tree nor a log needs.
    fn drop_segments(&self) -> Result<(), Failure> {
        let mut manifest = lock(&self.manifest);
        let commit = lock(&self.commit);
        let segments = Arc::clone(&self.published().segments);
        let newest = commit.writer.segment().number;
        let oldest = self.trees().iter().filter_map(|tree| tree.oldest_unflushed()).min();
        let replay_from = oldest.map_or(newest, |oldest| {
            let holds = |segment: &&Arc<_>| segment_after(segment) < oldest;
            segments.iter().rev().find(holds).map_or(0, |segment| segment.number)
        });
        let oldest_of_log =
            |(&log, state): (&u32, &journal::log::LogState)| state.oldest_segment(log, &segments);
        let history_from = commit.logs.iter().filter_map(oldest_of_log).min().unwrap_or(newest);
        let first_segment = replay_from.min(history_from).min(newest);
        let trimmed: Vec<_> =
            commit.logs.iter().map(|(&log, state)| (log, state.trimmed)).collect();
        let (last, sequence) = (self.group.last_committed(), self.published().visible);
        drop(commit);
        if replay_from <= manifest.replay_from && first_segment <= manifest.first_segment {
            return Ok(());
        }
        // The manifest must not be ahead of the journal: a trim may not be on the disk yet.
        self.group.sync_through(last).map_err(|_| Failure::Other)?;
        let mut altered = manifest.clone();
        altered.replay_from = replay_from.max(manifest.replay_from);
        altered.first_segment = first_segment.max(manifest.first_segment);
        altered.sequence = sequence;
        for (log, position) in trimmed {
            if let Some(described) = altered.keyspaces.get_mut(&log) {
                described.kind = Kind::Log { trimmed: position };
            }
        }
        altered.write(&*self.files, &self.root)?;
        *manifest = altered;
        drop(manifest);
        let mut published = self.published();
        let (gone, kept): (Vec<_>, Vec<_>) =
            published.segments.iter().cloned().partition(|segment| segment.number < first_segment);
        published.segments = kept.into();
        drop(published);
        gone.iter().for_each(|segment| segment.make_obsolete());
        Ok(())
    }

    fn merge_loop(&self) {
        let work = &self.work;
        loop {
            let mut state = lock(&work.state);
            let (number, is_quiet) = loop {
                if work.stops() {
                    return;
                }
                if let Some(number) = state.merges.pop_first() {
                    break (number, state.is_quiet);
                }
                state = work.merge_wanted.wait(state).unwrap_or_else(PoisonError::into_inner);
            };
            drop(state);
            let Some(tree) = self.trees().into_iter().find(|tree| tree.number == number) else {
                continue;
            };
            let oldest_snapshot = || self.oldest_snapshot();
            let merged = tree.compact(oldest_snapshot, is_quiet, &work.stop).map_err(Failure::from);
            let merged = self.show_tables(&tree).and(merged);
            if tree.has_merge_put_off() && !is_quiet {
                // It is done when commits cease.
                work.watch();
            }
            self.judge();
            // The lock also sees to it that no writer is between its look and its sleep.
            let mut state = lock(&work.state);
            match merged {
                Ok(()) => {}
                Err(Failure::Short(shortage)) => {
                    // The flushing thread tries again in a while.
                    state.put_off.insert(number);
                    state.shortage = Some(shortage);
                    work.wanted.notify_one();
                }
                Err(Failure::Other) => self.group.fail(),
            }
            drop(state);
            work.progressed.notify_all();
        }
    }
}

fn segment_after(segment: &journal::segment::Segment) -> u64 {
    segment.after
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Instant;

    use super::*;
    use crate::store::{Batch, KeyspaceId, Store};
    use crate::{DiskOptions, DiskStore};

    fn store() -> (tempfile::TempDir, DiskStore, KeyspaceId) {
        let directory = tempfile::tempdir().unwrap();
        let store = DiskStore::open(directory.path(), DiskOptions::default()).unwrap();
        let keyspace = store.create_keyspace("k").unwrap();
        (directory, store, keyspace)
    }

    fn put(store: &DiskStore, keyspace: KeyspaceId, key: u8, value: u8) {
        let mut batch = Batch::new();
        batch.insert(keyspace, &[key], vec![value]);
        store.commit(batch).unwrap();
    }

    fn tree(store: &DiskStore) -> Arc<Tree> {
        store.shared.trees().remove(0)
    }

    fn flush(store: &DiskStore) {
        store.shared.flush_now(&tree(store), None).unwrap();
    }

    /// A cursor may live for minutes, in which much is written. What it reads of a memtable is in the first one alone.
    #[test]
    fn a_snapshot_keeps_no_memtable_that_was_begun_after_it() {
        let (_directory, store, keyspace) = store();
        put(&store, keyspace, 0, 1);
        let old = store.snapshot();
        for round in 1..20 {
            put(&store, keyspace, 0, round);
            put(&store, keyspace, round, round);
            let recent = store.snapshot();
            flush(&store);
            assert_eq!(recent.get(keyspace, &[round]).unwrap().as_deref(), Some(&[round][..]));
            // That of the old snapshot, and that of the recent one.
            assert!(tree(&store).count_flushed() <= 2, "round {round}");
            assert_eq!(old.get(keyspace, &[0]).unwrap().as_deref(), Some(&[1][..]));
            assert_eq!(old.get(keyspace, &[round]).unwrap(), None);
        }
    }

    #[test]
    fn a_flushed_memtable_goes_after_its_last_snapshot_though_nothing_is_written() {
        let (_directory, store, keyspace) = store();
        put(&store, keyspace, 0, 1);
        let old = store.snapshot();
        flush(&store);
        assert_eq!(tree(&store).count_flushed(), 1);
        let watches = || store.shared.work.watches.load(Ordering::Acquire);
        assert!(watches(), "the flushing thread looks again");
        let is_quiet = true;
        assert!(store.shared.flush_round(is_quiet).is_ok());
        assert!(watches() && tree(&store).count_flushed() == 1, "the snapshot is still there");
        drop(old);
        assert!(store.shared.flush_round(is_quiet).is_ok());
        assert_eq!(tree(&store).count_flushed(), 0);
    }

    /// Memtables of a thousand bytes.
    fn crowded() -> (tempfile::TempDir, DiskStore) {
        let directory = tempfile::tempdir().unwrap();
        let options = DiskOptions { memtable_bytes: 1_000, ..DiskOptions::default() };
        let store = DiskStore::open(directory.path(), options).unwrap();
        (directory, store)
    }

    /// Commits more than writers need not wait for.
    fn put_many(store: &DiskStore, keyspace: KeyspaceId) -> Result<(), CommitError> {
        (0..100).try_for_each(|key: u8| {
            let mut batch = Batch::new();
            batch.insert(keyspace, &[key], vec![7; 100]);
            store.commit(batch).map(drop)
        })
    }

    /// An index that is built ingests for minutes, and a flush of the same tree has found no descriptor meanwhile.
    #[test]
    fn trees_are_flushed_after_a_failure_while_tables_are_written() {
        let (_directory, store) = crowded();
        let keyspaces = ["a", "b"].map(|name| store.create_keyspace(name).unwrap());
        let first = store.shared.trees().remove(0);
        first.leftovers.note_failure();
        let ingests = first.leftovers.keep_all();
        for keyspace in keyspaces {
            put_many(&store, keyspace).unwrap();
        }
        assert!(store.shared.flush_round(true).is_ok());
        for tree in store.shared.trees() {
            assert!(tree.disk_bytes() > 0 && !tree.has_sealed(), "{}", tree.name);
        }
        drop(ingests);
    }

    /// A panic of the engine leaves a lock poisoned, and the next flush panics too.
    #[test]
    fn writers_are_refused_after_a_background_thread_has_panicked() {
        let (_directory, store) = crowded();
        let keyspace = store.create_keyspace("k").unwrap();
        tree(&store).poison_engine();
        let (tell, told) = mpsc::channel();
        thread::spawn(move || tell.send(put_many(&store, keyspace)));
        let refused = told.recv_timeout(Duration::from_secs(60)).expect("the writer waits");
        assert!(matches!(refused, Err(CommitError::Poisoned)), "{refused:?}");
    }

    fn first_level(store: &DiskStore) -> usize {
        tree(store).first_level_runs()
    }

    /// What was not worth a merge among writers is merged when there are none.
    #[test]
    fn merges_that_were_put_off_are_done_when_commits_cease() {
        let (_directory, store, keyspace) = store();
        let mut batch = Batch::new();
        for key in 0..=u8::MAX {
            batch.insert(keyspace, &[key], vec![7; 1_000]);
        }
        store.commit(batch).unwrap();
        flush(&store);
        let deadline = Instant::now() + Duration::from_secs(60);
        let wait_until = |is_so: &dyn Fn() -> bool| {
            while !is_so() {
                assert!(Instant::now() < deadline);
                thread::yield_now();
            }
        };
        wait_until(&|| first_level(&store) == 0);
        for value in 0..4 {
            put(&store, keyspace, 0, value);
            put(&store, keyspace, u8::MAX, value);
            flush(&store);
        }
        wait_until(&|| first_level(&store) == 0);
        assert_eq!(store.snapshot().get(keyspace, &[0]).unwrap().as_deref(), Some(&[3][..]));
    }
}
