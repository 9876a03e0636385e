//! Gives back the room of keys that were removed or replaced, on a disk that has little left.
//!
//! A merge rewrites a whole level, for which a full disk has no room. Here one table at a time is written again without the
//! versions that nothing reads, and needs no room at all if none is left:
//!
//! ```text
//!   memtable          x     x  x  x  x  x       removed keys: in the journal, and synced
//!   other tables    ├─────x────────────┤
//!   the table             ├a──b──c──d──e┤       ─▶  ├a┤ and a fence, or nothing
//! ```
//!
//! The engine drops tables by a range, the keys of the table at hand, and with it all other tables inside that range. What they
//! hold is written to the new table as well. The new table has one key more, behind the range, so that it is not dropped
//! itself: the *fence*, a removal of a key that does not exist. A crash before the tables are dropped leaves the same versions
//! twice.
//!
//! Versions keep their sequences: recovery takes from the journal what is above the highest sequence in the tables, so nothing
//! is written here that is in memory only.

use std::cmp::Reverse;
use std::iter::Peekable;
use std::ops::Bound;

use lsm_tree::{AbstractTree, BoxedIterator, InternalValue, SeqNo, Slice, Table, TableId};

use super::{Tree, close_to_others};
use crate::store::{Bytes, MAX_KEY_LENGTH};

/// The most bytes that a table is rewritten to. The engine begins another table at twice of that, which would be inside of the
/// range that is dropped.
const MAX_REWRITTEN: u64 = 32 * 1024 * 1024;

/// What a pair takes in a table beside its key and its value, at most.
const PAIR_BYTES: u64 = 24;

/// A table is looked at if at least one key was removed for so many in it.
const KEYS_PER_REMOVAL: u64 = 16;

/// The part of its bytes that a table must lose to be rewritten.
const LEAST_GAIN: u64 = 2;

/// What a look at all tables found. It is not repeated until there is reason to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Looked {
    removals: u64,
    /// The room that there was, if there was too little of it for a table.
    lacked: Option<u64>,
}

/// What a round of rewriting may do.
#[derive(Clone, Copy)]
pub(crate) struct Rewriting {
    /// The bytes that may be taken before any are given back.
    pub(crate) room: u64,
    /// Commits below this sequence are on the disk.
    pub(crate) below: SeqNo,
    pub(crate) oldest_snapshot: SeqNo,
}

/// A round of rewriting, from one table to the next.
struct Round {
    /// Its room is what is left.
    rewriting: Rewriting,
    room_at_first: u64,
    /// The keys that were removed and are in memory only.
    removed: Vec<Bytes>,
    gained: u64,
    /// The room that there was, if there was too little of it for a table.
    lacked: Option<u64>,
    /// Tables that it has rewritten or dropped.
    dropped: Vec<TableId>,
    /// Whether a merge took a table before the round came to it. What it was merged to was not looked at.
    has_missed: bool,
}

/// What a table would become.
enum Outcome {
    /// Too little is given back.
    Stays,
    LacksRoom,
    /// Its bytes, how much of them is not needed any more, and what comes behind the rest if there is any.
    Shrinks {
        rest: u64,
        gain: u64,
        fence: Option<Slice>,
    },
}

impl Tree {
    /// Rewrites or drops tables of which at least half is not needed any more. Returns the bytes that are given back, once no
    /// snapshot reads them. Nothing is flushed while what `keep_flushes_off` returns is held: flushes and merges go on between
    /// one table and the next.
    pub(crate) fn rewrite<G>(
        &self,
        rewriting: Rewriting,
        keep_flushes_off: impl Fn() -> G,
        stops: &dyn Fn() -> bool,
    ) -> Result<u64, lsm_tree::Error> {
        let removals = self.removals();
        let looked = *self.looked();
        if looked.is_some_and(|looked| !looked.is_outdated(removals, rewriting.room)) {
            return Ok(0);
        }
        let version = self.tree.current_version();
        let mut tables: Vec<(u64, TableId)> =
            version.iter_tables().map(|table| (table.metadata.file_size, table.id())).collect();
        drop(version);
        // The old tables go with the list of the whole round, so the new ones share the room. Small ones first: most of them fit.
        tables.sort_unstable();
        let mut round = Round {
            rewriting,
            room_at_first: rewriting.room,
            removed: self.removed_in_memory(rewriting.below),
            gained: 0,
            lacked: None,
            dropped: Vec::new(),
            has_missed: false,
        };
        for (_, id) in tables {
            if stops() {
                return Ok(round.gained);
            }
            // A merge may take long, so flushes are kept off after it.
            let _merging = self.begin_merging();
            let _flushing = keep_flushes_off();
            self.rewrite_table(id, &mut round)?;
        }
        if !round.has_missed {
            *self.looked() = Some(Looked { removals, lacked: round.lacked });
        }
        Ok(round.gained)
    }

    /// Rewrites or drops one table, if that is worth it. The caller is the only one to merge and to flush.
    fn rewrite_table(&self, id: TableId, round: &mut Round) -> Result<(), lsm_tree::Error> {
        // No table is added meanwhile.
        let _lock = self.tree.get_flush_lock();
        let version = self.tree.current_version();
        let Some(table) = version.iter_tables().find(|table| table.id() == id) else {
            round.has_missed |= !round.dropped.contains(&id);
            return Ok(());
        };
        let all: Vec<Table> = version.iter_tables().cloned().collect();
        let range = Range::new(table, &all);
        if !range.may_have_removed(&round.removed) {
            return Ok(());
        }
        match self.measure(&range, round.rewriting)? {
            Outcome::Stays => {}
            Outcome::LacksRoom => round.lacked = Some(round.room_at_first),
            Outcome::Shrinks { rest, gain, fence } => {
                self.change_tables(|| self.replace(&range, fence, round.rewriting))?;
                round.rewriting.room -= rest;
                round.gained += gain;
                round.dropped.extend(range.inside.iter().map(Table::id));
            }
        }
        Ok(())
    }

    /// The keys that were removed and are in memory only, in their order.
    fn removed_in_memory(&self, below: SeqNo) -> Vec<Bytes> {
        let memory = self.memory();
        let memtables: Vec<_> =
            [&memory.active].into_iter().chain(&memory.sealed).cloned().collect();
        drop(memory);
        let mut removed = Vec::new();
        for memtable in memtables {
            memtable.for_each(|version| {
                if version.value.is_none() && version.sequence < below {
                    removed.push(version.key.clone());
                }
            });
        }
        removed.sort_unstable();
        removed
    }

    fn measure(&self, range: &Range, rewriting: Rewriting) -> Result<Outcome, lsm_tree::Error> {
        let present = range.inside.iter().map(|table| table.metadata.file_size).sum::<u64>();
        let most = present - present / LEAST_GAIN;
        let mut rest = 0;
        for version in self.needed(range, rewriting.below) {
            let version = version?;
            let bytes = version.key.user_key.len() + version.value.len();
            rest += bytes as u64 + PAIR_BYTES;
            if rest > most.min(MAX_REWRITTEN) {
                return Ok(Outcome::Stays);
            }
        }
        if rest > rewriting.room {
            return Ok(Outcome::LacksRoom);
        }
        let fence = if rest > 0 { self.fence(&range.last)? } else { None };
        if rest > 0 && fence.is_none() {
            // The new table would be dropped with the range.
            return Ok(Outcome::Stays);
        }
        Ok(Outcome::Shrinks { rest, gain: present - rest, fence })
    }

    /// Puts what is needed of the tables inside a range in their place, with a fence behind it. Nothing is if there is none.
    fn replace(
        &self,
        range: &Range,
        fence: Option<Slice>,
        rewriting: Rewriting,
    ) -> Result<(), lsm_tree::Error> {
        if let Some(fence) = fence {
            let written = self
                .tree
                .flush_to_tables(with_fence(self.needed(range, rewriting.below), fence.clone()))?;
            let tables: Vec<Table> = written.into_iter().flat_map(|(tables, _)| tables).collect();
            let is_kept = |table: &Table| *table.metadata.key_range.max() == fence;
            assert!(tables.iter().all(is_kept), "a new table is inside of the range that goes");
            self.tree.register_tables(&tables, None, None, &[], rewriting.oldest_snapshot)?;
        }
        let bounds = (Bound::Included(&range.first[..]), Bound::Included(&range.last[..]));
        self.tree.drop_range::<&[u8], _>(bounds)?;
        self.note_tables();
        close_to_others(&self.path)?;
        Ok(())
    }

    /// The versions in the tables that go which are not superseded. Removals are among them if a table that stays may hold an
    /// older version.
    fn needed<'t>(
        &'t self,
        range: &'t Range,
        below: SeqNo,
    ) -> impl Iterator<Item = Result<InternalValue, lsm_tree::Error>> + 't {
        let mut newest = Newest::new(range);
        std::iter::from_fn(move || {
            loop {
                let (version, is_inside) = match newest.next()? {
                    Ok(found) => found,
                    Err(error) => return Some(Err(error)),
                };
                let hides_nothing = version.key.is_tombstone() && range.across.is_empty();
                let is_needed = is_inside && !hides_nothing;
                if is_needed && !self.has_newer_in_memory(&version.key.user_key, below) {
                    return Some(Ok(version));
                }
            }
        })
    }

    fn has_newer_in_memory(&self, key: &[u8], below: SeqNo) -> bool {
        let memory = self.memory();
        let mut memtables = [&memory.active].into_iter().chain(&memory.sealed);
        memtables.any(|memtable| memtable.get(key, below).is_some())
    }

    /// A key behind another that does not exist. There may be none behind one of the longest keys.
    fn fence(&self, last: &[u8]) -> Result<Option<Slice>, lsm_tree::Error> {
        let mut key = last.to_vec();
        while key.len() < MAX_KEY_LENGTH {
            key.push(0);
            let is_there = self.has_newer_in_memory(&key, SeqNo::MAX)
                || self.tree.get(&key, SeqNo::MAX)?.is_some();
            if !is_there {
                return Ok(Some(Slice::from(key)));
            }
        }
        Ok(None)
    }
}

/// The newest version of each key of a range, and whether it is in a table that goes.
struct Newest<'r> {
    /// Those of the tables that go come first.
    scans: Vec<Peekable<BoxedIterator<'r>>>,
    inside: usize,
}

impl<'r> Newest<'r> {
    fn new(range: &'r Range) -> Self {
        let scan = |table: &Table| -> Peekable<BoxedIterator<'r>> {
            let keys = range.first.clone()..=range.last.clone();
            (Box::new(table.range(keys)) as BoxedIterator<'r>).peekable()
        };
        let scans = range.inside.iter().chain(&range.across).map(scan).collect();
        Self { scans, inside: range.inside.len() }
    }

    fn next(&mut self) -> Option<Result<(InternalValue, bool), lsm_tree::Error>> {
        let mut least: Option<(usize, (Slice, Reverse<SeqNo>))> = None;
        for (place, scan) in self.scans.iter_mut().enumerate() {
            let key = match scan.peek() {
                None => continue,
                Some(Ok(version)) => (version.key.user_key.clone(), Reverse(version.key.seqno)),
                Some(Err(_)) => {
                    return scan.next().map(|version| version.map(|found| (found, true)));
                }
            };
            if least.as_ref().is_none_or(|(_, found)| key < *found) {
                least = Some((place, key));
            }
        }
        let (place, (key, _)) = least?;
        let newest = self.scans[place].next()?;
        let is_older = |version: &Result<InternalValue, lsm_tree::Error>| {
            version.as_ref().is_ok_and(|version| version.key.user_key == key)
        };
        for scan in &mut self.scans {
            while scan.next_if(is_older).is_some() {}
        }
        Some(newest.map(|version| (version, place < self.inside)))
    }
}

/// Adds a removal of a key behind all others. It has the sequence of one of them: no table has a higher one because of it.
fn with_fence(
    versions: impl Iterator<Item = Result<InternalValue, lsm_tree::Error>>,
    fence: Slice,
) -> impl Iterator<Item = Result<InternalValue, lsm_tree::Error>> {
    let (mut versions, mut sequence, mut fence) = (versions, 0, Some(fence));
    std::iter::from_fn(move || match versions.next() {
        Some(Ok(version)) => {
            sequence = version.key.seqno;
            Some(Ok(version))
        }
        Some(Err(error)) => Some(Err(error)),
        None => fence.take().map(|fence| Ok(InternalValue::new_tombstone(fence, sequence))),
    })
}

impl Looked {
    fn is_outdated(self, removals: u64, room: u64) -> bool {
        let has_more_room = |lacked: u64| room > lacked + lacked / 4;
        self.removals != removals || self.lacked.is_some_and(has_more_room)
    }
}

/// The keys of a table, and the tables that hold some of them.
struct Range {
    first: Slice,
    last: Slice,
    /// Those that hold no others, the table itself among them.
    inside: Vec<Table>,
    across: Vec<Table>,
}

impl Range {
    fn new(table: &Table, all: &[Table]) -> Self {
        let keys = &table.metadata.key_range;
        let (first, last) = (keys.min().clone(), keys.max().clone());
        let keys = |table: &Table| {
            let keys = &table.metadata.key_range;
            (keys.min().clone(), keys.max().clone())
        };
        let overlapping = all.iter().filter(|table| {
            let (lowest, highest) = keys(table);
            lowest <= last && highest >= first
        });
        let (inside, across) = overlapping.cloned().partition(|table| {
            let (lowest, highest) = keys(table);
            lowest >= first && highest <= last
        });
        Self { first, last, inside, across }
    }

    /// Whether enough keys were removed for a look at the tables.
    fn may_have_removed(&self, in_memory: &[Bytes]) -> bool {
        let begun = in_memory.partition_point(|key| **key < *self.first);
        let ended = in_memory.partition_point(|key| **key <= *self.last);
        let tables = || self.inside.iter().chain(&self.across);
        let in_tables: u64 = tables().map(|table| table.metadata.tombstone_count).sum();
        let removals = (ended - begun) as u64 + in_tables;
        let keys: u64 = self.inside.iter().map(|table| table.metadata.item_count).sum();
        removals > 0 && removals * KEYS_PER_REMOVAL >= keys
    }
}
