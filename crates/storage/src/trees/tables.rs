//! How the tables of a tree come and go: flushes, ingested pairs, merges, discarded ranges.
//!
//! The first eight bytes of a key say which collection or index it belongs to, its owner. A flush gives an owner of many keys
//! tables of its own: rising keys then make tables that overlap with none, which move to the last level as they are, and what is
//! dropped takes its tables with it.

use std::iter::Peekable;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lsm_tree::compaction::{Leveled, MoveDown};
use lsm_tree::{AbstractTree, InternalValue, SeqNo, Slice, Table, ValueType};

use super::{Snapshots, Tree, close_to_others};
use crate::memtable::{Memtable, Version};
use crate::store::{Bytes, KeyRange};
use crate::table_walk::{Span, is_before, is_behind};

/// The bytes of a key that tell whose it is.
const OWNER_LENGTH: usize = 8;

/// The part of a memtable from which on an owner has tables of its own, if there are few owners and if there are many: small
/// tables cost more than merging.
const PART_OF_FEW: u64 = 2048;
const PART_OF_MANY: u64 = 32;

/// What an owner must have in any case.
const MIN_BYTES: u64 = 1024;

/// Owners in a memtable up to which they are few.
const FEW_OWNERS: usize = 16;

/// Tables that a level may have before no more are moved there, and one more for so many bytes in it.
const MOVED_TABLES: u64 = 64;
const MOVED_BYTES: u64 = 4 * 1024 * 1024;

/// Tables, and runs of them, that the first level has before it is merged with the next one.
const MIN_TABLES: usize = 4;
const MIN_RUNS: usize = 4;

/// Runs and tables from which on it is merged in any case: a search looks at each run, and each table takes memory.
const MAX_RUNS: usize = 12;
const MAX_TABLES: usize = 64;

/// A merge rewrites the next level: it waits until the first one has this part of its bytes.
const PART_OF_NEXT: u64 = 2;

impl Tree {
    /// Writes the sealed memtable to tables, but for keys of a range that nothing reads any more. The journal is synced through
    /// its records.
    pub(crate) fn flush(
        &self,
        oldest_snapshot: u64,
        without: Option<&KeyRange>,
    ) -> Result<(), lsm_tree::Error> {
        let sealed = self.memory().sealed.clone();
        let Some(memtable) = sealed else { return Ok(()) };
        self.change_tables(|| {
            let tables = self.write_tables(&memtable, oldest_snapshot, without)?;
            let _lock = self.tree.get_flush_lock();
            match tables.is_empty() {
                true => Ok(()),
                false => self.tree.register_tables(&tables, None, None, &[], oldest_snapshot),
            }
        })?;
        self.note_tables();
        // After the tables are there: a reader looks for them last.
        let mut memory = self.change_memory();
        let until = self.sequences.get();
        memory.sealed = None;
        memory.flushed.push((memtable, until));
        drop(memory);
        close_to_others(&self.path)?;
        Ok(())
    }

    fn write_tables(
        &self,
        memtable: &Memtable,
        oldest_snapshot: u64,
        without: Option<&KeyRange>,
    ) -> Result<Vec<Table>, lsm_tree::Error> {
        let mut flushed = Flushed {
            items: memtable.versions().map(item).peekable(),
            oldest_snapshot,
            without,
            large: large_owners(memtable, self.memtable_bytes),
            last: None,
        };
        let mut tables = Vec::new();
        while flushed.items.peek().is_some() {
            let written = self.tree.flush_to_tables(&mut flushed)?;
            flushed.last = None;
            tables.extend(written.into_iter().flat_map(|(tables, _)| tables));
        }
        Ok(tables)
    }

    /// Writes pairs to tables of their own and adds them. No older record is in memory only.
    pub(crate) fn ingest(
        &self,
        pairs: impl Iterator<Item = Result<(Bytes, Bytes), lsm_tree::Error>>,
        sequence: u64,
        oldest_snapshot: u64,
    ) -> Result<(), lsm_tree::Error> {
        let mut span: Option<Span> = None;
        let items = pairs.map(|pair| {
            let (key, value) = pair?;
            match &mut span {
                Some((_, last)) => last.clone_from(&key),
                None => span = Some((key.clone(), key.clone())),
            }
            Ok(item(Version { key, sequence, value: Some(value) }))
        });
        self.change_tables(|| {
            let written = self.tree.flush_to_tables(items)?;
            let Some((tables, _)) = written else { return Ok(()) };
            let _lock = self.tree.get_flush_lock();
            self.tree.register_tables(&tables, None, None, &[], oldest_snapshot)
        })?;
        let Some((first, last)) = span else { return Ok(()) };
        self.emptied.fill_span(&first, &last, self.sequences.get());
        self.note_tables();
        close_to_others(&self.path)?;
        Ok(())
    }

    /// Drops the tables all of whose keys are in a range. Snapshots that were taken before still read them.
    pub(crate) fn drop_tables(&self, range: &KeyRange) -> Result<(), lsm_tree::Error> {
        let _merging = self.begin_merging();
        self.change_tables(|| {
            self.tree.drop_range::<Vec<u8>, _>((range.start.clone(), range.end.clone()))
        })?;
        self.note_tables();
        close_to_others(&self.path)?;
        Ok(())
    }

    /// Merges tables until there is nothing to merge, or nothing that is worth it while there are writers.
    pub(crate) fn compact(
        &self,
        oldest_snapshot: impl Fn() -> u64,
        is_quiet: bool,
        stop: &AtomicBool,
    ) -> Result<(), lsm_tree::Error> {
        loop {
            let merging = self.begin_merging();
            let before = self.tree.current_version().id();
            if !self.move_down(oldest_snapshot())? && (is_quiet || self.is_worth_merging()) {
                let merge = || self.tree.compact(Arc::new(Leveled::default()), oldest_snapshot());
                self.change_tables(merge)?;
            }
            drop(merging);
            close_to_others(&self.path)?;
            self.note_tables();
            let is_over = self.tree.current_version().id() == before;
            if is_over || stop.load(Ordering::Acquire) || self.is_dropped() {
                return Ok(());
            }
        }
    }

    /// Whether the engine may merge: it would merge the first level as soon as that has a few tables, however many it rewrites
    /// for them. Keys in no order, such as those of many indexes, overlap with all of the next level.
    fn is_worth_merging(&self) -> bool {
        let version = self.tree.current_version();
        let first = version.l0();
        let (tables, runs) = (first.table_count(), first.run_count());
        if tables < MIN_TABLES || runs >= MAX_RUNS || tables >= MAX_TABLES {
            return true;
        }
        let next = version.iter_levels().skip(1).find(|level| !level.is_empty());
        let range = first.aggregate_key_range();
        let overlapping = next
            .into_iter()
            .flat_map(|level| level.iter())
            .flat_map(|run| run.get_overlapping(&range));
        let rewritten: u64 = overlapping.map(|table| table.metadata.file_size).sum();
        runs >= MIN_RUNS && first.size() * PART_OF_NEXT >= rewritten
    }

    /// Whether a merge was put off that the engine would do.
    pub(crate) fn has_merge_put_off(&self) -> bool {
        self.tree.current_version().l0().table_count() >= MIN_TABLES
    }

    /// Forgets tables and memtables that no snapshot reads any more: a flush or a merge, which cannot know that its outcome is
    /// shown, keeps those before it.
    pub(crate) fn forget_older(&self, snapshots: &Snapshots) -> Result<(), lsm_tree::Error> {
        self.change_memory().forget_flushed(snapshots);
        self.tree.get_version_history_lock().maintenance(&self.path, snapshots.oldest())
    }

    /// Moves the tables of the first level down if none overlaps with another. The engine by itself looks only at the first
    /// and the last key of all of them.
    fn move_down(&self, oldest_snapshot: u64) -> Result<bool, lsm_tree::Error> {
        // No table is added meanwhile.
        let _lock = self.tree.get_flush_lock();
        let version = self.tree.current_version();
        let first = version.l0();
        if first.run_count() != 1 {
            return Ok(false);
        }
        let lower = || version.iter_levels().enumerate().skip(1);
        let overlaps = |table: &Table| {
            let mut runs = lower().flat_map(|(_, level)| level.iter());
            runs.any(|run| !run.get_overlapping(&table.metadata.key_range).is_empty())
        };
        if first.iter().flat_map(|run| run.iter()).any(overlaps) {
            return Ok(false);
        }
        let filled = lower().find(|(_, level)| !level.is_empty()).map(|(place, _)| place);
        let target = filled.unwrap_or(version.level_count() - 1);
        // Merging makes few tables of many.
        let room = |(tables, bytes)| tables as u64 <= MOVED_TABLES + bytes / MOVED_BYTES;
        if !version.level(target).is_some_and(|level| room((level.table_count(), level.size()))) {
            return Ok(false);
        }
        let target = u8::try_from(target).unwrap_or(u8::MAX);
        self.change_tables(|| self.tree.compact(Arc::new(MoveDown(0, target)), oldest_snapshot))?;
        Ok(true)
    }
}

/// A version as the engine writes it.
fn item(Version { key, sequence, value }: Version) -> InternalValue {
    let key = Slice::from(key.0);
    match value {
        Some(value) => {
            let value = Slice::from(value.0);
            InternalValue::from_components(key, value, sequence, ValueType::Value)
        }
        None => InternalValue::new_tombstone(key, sequence),
    }
}

/// The part of a key that tells whose it is.
fn owner(key: &[u8]) -> &[u8] {
    &key[..key.len().min(OWNER_LENGTH)]
}

/// The owners in a memtable that have tables of their own.
fn large_owners(memtable: &Memtable, memtable_bytes: u64) -> Vec<Slice> {
    let min_bytes = |part: u64| (memtable_bytes / part).max(MIN_BYTES);
    let mut least = min_bytes(PART_OF_FEW);
    let mut owners: Vec<(Slice, u64)> = Vec::new();
    memtable.for_each(|Version { key, value, .. }| {
        let bytes = (key.len() + value.as_ref().map_or(0, |value| value.len())) as u64;
        match owners.last_mut() {
            Some((last, sum)) if **last == *owner(key) => *sum += bytes,
            _ => {
                if owners.len() >= FEW_OWNERS {
                    least = min_bytes(PART_OF_MANY);
                    owners.retain(|(_, sum)| *sum >= least);
                }
                owners.push((Slice::from(owner(key)), bytes));
            }
        }
    });
    owners.into_iter().filter(|(_, sum)| *sum >= least).map(|(owner, _)| owner).collect()
}

/// The pairs of a memtable that are written to one table after the other.
struct Flushed<'r, I: Iterator<Item = InternalValue>> {
    items: Peekable<I>,
    /// Of versions below this only the newest is written.
    oldest_snapshot: SeqNo,
    without: Option<&'r KeyRange>,
    /// Owners that have tables of their own.
    large: Vec<Slice>,
    /// The key that was written last to the table at hand.
    last: Option<Slice>,
}

impl<I: Iterator<Item = InternalValue>> Flushed<'_, I> {
    /// Whether the next pair is the first of another table.
    fn is_cut(&self, next: &Slice) -> bool {
        let is_large = |key: &Slice| self.large.iter().any(|large| **large == *owner(key));
        self.last
            .as_ref()
            .is_some_and(|last| owner(last) != owner(next) && (is_large(last) || is_large(next)))
    }
}

impl<I: Iterator<Item = InternalValue>> Iterator for Flushed<'_, I> {
    type Item = Result<InternalValue, lsm_tree::Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let next = self.items.peek()?.key.user_key.clone();
            if self.is_cut(&next) {
                return None;
            }
            let item = self.items.next()?;
            let is_kept = self
                .without
                .is_none_or(|range| is_before(&next, &range.start) || is_behind(&next, &range.end));
            if !is_kept {
                continue;
            }
            let is_older = |older: &InternalValue| older.key.user_key == next;
            if self
                .items
                .peek()
                .is_some_and(|older| is_older(older) && older.key.seqno < self.oldest_snapshot)
            {
                while self.items.next_if(is_older).is_some() {}
            }
            self.last = Some(next);
            return Some(Ok(item));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::DiskOptions;
    use crate::trees::{Stamp, TreeContext};

    /// Each merge of keys in no order rewrites the whole next level.
    #[test]
    fn small_runs_are_merged_with_a_large_level_when_they_are_many() {
        let directory = tempfile::tempdir().unwrap();
        let context = TreeContext::new(directory.path().to_owned(), DiskOptions::default());
        let tree = context.open(1, "k").unwrap();
        let add = |keys: &[u32], length: usize| {
            let sequence = context.sequences.next();
            for key in keys {
                let (key, value) = (Bytes::from(&key.to_be_bytes()), Bytes::from(vec![7; length]));
                tree.put(key, Some(value), Stamp { sequence, shown: sequence });
            }
            tree.seal();
            tree.flush(sequence + 1, None).unwrap();
        };
        let merge = |is_quiet| {
            tree.compact(|| context.sequences.get(), is_quiet, &AtomicBool::new(false)).unwrap();
            tree.first_level_runs()
        };
        let all: Vec<u32> = (0..10_000).collect();
        let ends = [all[0], all[all.len() - 1]];
        add(&all, 50);
        assert_eq!(merge(false), 0, "a first run is moved down");
        for runs in 1..MAX_RUNS {
            add(&ends, 1);
            assert_eq!(merge(false), runs, "two keys are not worth ten thousand");
        }
        add(&ends, 1);
        assert_eq!(merge(false), 0, "a search would look at each run");
        for runs in 1..MIN_RUNS {
            add(&all, 30);
            assert_eq!(merge(false), runs);
        }
        add(&all, 30);
        assert_eq!(merge(false), 0, "they have more than what they are merged with");
        for _ in 0..MIN_RUNS {
            add(&ends, 1);
        }
        assert_eq!(merge(false), MIN_RUNS);
        assert_eq!(merge(true), 0, "no writer waits");
    }
}
