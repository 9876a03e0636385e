//! Ranges of a tree that removals have emptied, so that scans do not pass over what was removed.
//!
//! A removed key stays in its tree, as a mark, until the tree has merged it away. A scan passes over every
//! such mark on its way to the first key that is left: taking thousands of jobs from the front of a queue
//! would make each next one slower. A scan that finds its first key beyond many removed ones tells so here,
//! and later scans start behind the range.
//!
//! ```text
//!   scan    learn ─▶ a range that is empty for its snapshot and all later ones
//!   insert  fill  ─▶ the range ends before the new key
//!   scan    skip  ─▶ starts at the end of the range
//! ```
//!
//! The holder of the commit lock calls [`Emptied::fill`] and [`Emptied::note_removed`] before a commit
//! becomes visible. Scans run at any time, at any snapshot.

use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::store::KeyRange;

/// How many of the last removed keys are kept.
const MAX_REMOVED: usize = 64;

/// How many of them a range must cover to be worth knowing.
const MIN_COVERED: usize = 16;

/// How many ranges are known at a time; the oldest goes first.
const MAX_RANGES: usize = 16;

/// The emptied ranges of one tree.
#[derive(Default)]
pub(crate) struct Emptied {
    /// Whether there is a range. Inserts look at this alone while there is none.
    any: AtomicBool,
    /// How many removed keys are kept. Scans look at this alone while there are few.
    removed: AtomicUsize,
    /// The sequence of the last insert.
    last_insert: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    removed: VecDeque<Vec<u8>>,
    ranges: Vec<Emptiness>,
}

/// No key from `start` on and below `end` is there, for snapshots that see sequences below `since` or more.
struct Emptiness {
    start: Vec<u8>,
    end: Vec<u8>,
    since: u64,
}

impl Emptied {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A key is inserted.
    pub(crate) fn fill(&self, key: &[u8], sequence: u64) {
        // Either this sees the flag of a scan that is learning, or that scan sees this sequence.
        self.last_insert.store(sequence, Ordering::SeqCst);
        if !self.any.load(Ordering::SeqCst) {
            return;
        }
        let mut state = self.state();
        for range in &mut state.ranges {
            if range.covers(key) {
                range.end = key.to_vec();
            }
        }
        state.ranges.retain(|range| range.start < range.end);
        self.any.store(!state.ranges.is_empty(), Ordering::SeqCst);
    }

    /// Keys are going to be inserted at a sequence. Whether [`fill`](Self::fill) must be told of each: without a range now
    /// there will be none that a key of them is in, since a scan that learns sees the sequence.
    pub(crate) fn begin_filling(&self, sequence: u64) -> bool {
        self.last_insert.store(sequence, Ordering::SeqCst);
        self.any.load(Ordering::SeqCst)
    }

    /// Keys from the first to the last are inserted; readers look for them after this.
    pub(crate) fn fill_span(&self, first: &[u8], last: &[u8], sequence: u64) {
        self.last_insert.fetch_max(sequence, Ordering::SeqCst);
        let mut state = self.state();
        for range in &mut state.ranges {
            if &*range.start <= last && first < &*range.end {
                range.end = first.to_vec();
            }
        }
        state.ranges.retain(|range| range.start < range.end);
        self.any.store(!state.ranges.is_empty(), Ordering::SeqCst);
    }

    /// A key is removed.
    pub(crate) fn note_removed(&self, key: &[u8]) {
        let mut state = self.state();
        let is_full = state.removed.len() == MAX_REMOVED;
        // A copy: the key may be a part of something large. Its room is used again.
        let mut kept = is_full.then(|| state.removed.pop_front()).flatten().unwrap_or_default();
        kept.clear();
        kept.extend_from_slice(key);
        state.removed.push_back(kept);
        self.removed.store(state.removed.len(), Ordering::Relaxed);
    }

    /// Whether so many keys were removed that a scan should tell where its first key is.
    pub(crate) fn wants_to_learn(&self) -> bool {
        self.removed.load(Ordering::Relaxed) >= MIN_COVERED
    }

    /// A scan of a range found its first key there, or none. The snapshot of the scan sees sequences below
    /// this one.
    pub(crate) fn learn(&self, range: &KeyRange, first: Option<&[u8]>, below: u64) {
        let Some(start) = first_key(&range.start) else { return };
        let end = match (first, &range.end) {
            (Some(first), _) => first.to_vec(),
            (None, Bound::Excluded(end)) => end.clone(),
            (None, Bound::Included(last)) => next_key(last),
            (None, Bound::Unbounded) => return,
        };
        let mut state = self.state();
        let found = Emptiness { start, end, since: below };
        if state.removed.iter().filter(|key| found.covers(key)).count() < MIN_COVERED {
            return;
        }
        self.any.store(true, Ordering::SeqCst);
        // An insert that the scan did not see may be in the range. A later scan learns it.
        if self.last_insert.load(Ordering::SeqCst) < below {
            state.removed.retain(|key| !found.covers(key));
            self.removed.store(state.removed.len(), Ordering::Relaxed);
            state.add(found);
        }
        self.any.store(!state.ranges.is_empty(), Ordering::SeqCst);
    }

    /// Where a scan of the range may start instead, at a snapshot that sees sequences below this one.
    pub(crate) fn skip(&self, range: &KeyRange, below: u64) -> Option<Vec<u8>> {
        if !self.any.load(Ordering::SeqCst) {
            return None;
        }
        let start = first_key(&range.start)?;
        let state = self.state();
        let empty =
            state.ranges.iter().filter(|range| range.since <= below && range.covers(&start));
        empty.map(|range| &range.end).max().cloned()
    }
}

impl State {
    fn add(&mut self, found: Emptiness) {
        let continued = self
            .ranges
            .iter_mut()
            .find(|range| range.start <= found.start && found.start <= range.end);
        if let Some(range) = continued {
            range.since = range.since.max(found.since);
            range.end = found.end.max(std::mem::take(&mut range.end));
            return;
        }
        if self.ranges.len() == MAX_RANGES {
            self.ranges.remove(0);
        }
        self.ranges.push(found);
    }
}

impl Emptiness {
    fn covers(&self, key: &[u8]) -> bool {
        self.start.as_slice() <= key && key < self.end.as_slice()
    }
}

/// The first key that is not below a bound.
fn first_key(start: &Bound<Vec<u8>>) -> Option<Vec<u8>> {
    match start {
        Bound::Included(key) => Some(key.clone()),
        Bound::Excluded(key) => Some(next_key(key)),
        Bound::Unbounded => None,
    }
}

/// The key that follows a key.
fn next_key(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u32) -> Vec<u8> {
        [b"q".as_slice(), &number.to_be_bytes()].concat()
    }

    fn all() -> KeyRange {
        KeyRange::prefix(b"q")
    }

    /// Keys 0 to 99 are inserted by sequences 0 to 99, and some of them removed by the sequences from 100 on.
    fn with_removed(removed: std::ops::Range<u32>) -> Emptied {
        let emptied = Emptied::default();
        (0..100).for_each(|number| emptied.fill(&key(number), number.into()));
        removed.for_each(|number| emptied.note_removed(&key(number)));
        emptied
    }

    #[test]
    fn a_scan_starts_behind_what_an_earlier_one_found_empty() {
        let emptied = with_removed(0..40);
        assert!(emptied.wants_to_learn());
        assert_eq!(emptied.skip(&all(), 200), None);
        emptied.learn(&all(), Some(&key(40)), 200);
        assert_eq!(emptied.skip(&all(), 200), Some(key(40)));
        assert_eq!(
            emptied.skip(&KeyRange { start: Bound::Excluded(key(7)), ..all() }, 201),
            Some(key(40))
        );
        assert_eq!(emptied.skip(&KeyRange { start: Bound::Included(key(40)), ..all() }, 200), None);
        assert!(!emptied.wants_to_learn(), "what is known counts no more");
    }

    #[test]
    fn an_older_snapshot_sees_what_was_removed_since() {
        let emptied = with_removed(0..40);
        emptied.learn(&all(), Some(&key(40)), 200);
        assert_eq!(emptied.skip(&all(), 199), None);
    }

    #[test]
    fn a_range_ends_before_a_key_that_is_inserted_into_it() {
        let emptied = with_removed(0..40);
        emptied.learn(&all(), Some(&key(40)), 200);
        emptied.fill(&key(30), 200);
        assert_eq!(emptied.skip(&all(), 201), Some(key(30)));
        emptied.fill(&all_start(), 201);
        assert_eq!(emptied.skip(&all(), 202), None);
    }

    fn all_start() -> Vec<u8> {
        b"q".to_vec()
    }

    #[test]
    fn an_insert_that_the_scan_did_not_see_leaves_nothing_to_learn() {
        let emptied = with_removed(0..40);
        emptied.fill(&key(3), 200);
        emptied.learn(&all(), Some(&key(40)), 200);
        assert_eq!(emptied.skip(&all(), 201), None);
        emptied.learn(&all(), Some(&key(3)), 201);
        assert_eq!(emptied.skip(&all(), 201), None, "too few removed keys are before it");
    }

    #[test]
    fn a_range_grows_while_its_end_is_removed() {
        let emptied = with_removed(0..40);
        emptied.learn(&all(), Some(&key(40)), 200);
        (40..60).for_each(|number| emptied.note_removed(&key(number)));
        let rest = KeyRange { start: Bound::Included(key(40)), ..all() };
        emptied.learn(&rest, None, 300);
        assert_eq!(emptied.skip(&all(), 300), Some(b"r".to_vec()), "nothing is left");
        assert_eq!(emptied.skip(&all(), 299), None);
        assert_eq!(emptied.state().ranges.len(), 1);
    }

    #[test]
    fn few_removed_keys_and_many_ranges_are_not_kept() {
        let emptied = with_removed(0..10);
        assert!(!emptied.wants_to_learn());
        emptied.learn(&all(), Some(&key(10)), 200);
        assert_eq!(emptied.skip(&all(), 200), None);
        for first in 0..3 * MAX_RANGES as u32 {
            let numbers = first * 100..first * 100 + MIN_COVERED as u32;
            numbers.for_each(|number| emptied.note_removed(&key(number)));
            let start = Bound::Included(key(first * 100));
            emptied.learn(&KeyRange { start, ..all() }, Some(&key(first * 100 + 50)), 200);
        }
        assert_eq!(emptied.state().ranges.len(), MAX_RANGES);
        assert!(emptied.state().removed.len() <= MAX_REMOVED);
    }
}
