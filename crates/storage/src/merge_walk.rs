//! Walks through a range that several layers of a tree hold, and shows the newest version of each key.
//!
//! ```text
//!   newest   memtable that is written to     k ──── m ───────── t
//!            memtable that is flushed          l ───────── s
//!            runs of the first level         k ──────── n ───────── u
//!   oldest   the run of the last level     a ─ b ─ c ─ … ───────── y ─ z
//! ```
//!
//! A key is taken from the newest layer that has it; the others pass over it. This is the order in which the engine looks a
//! key up. The layers are few, so the least of their keys is found by comparing all of them.
//!
//! Which layers there are is `table_walk`'s.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::Arc;

use lsm_tree::{InternalValue, Memtable, SeqNo, Table, ValueType};

use crate::store::{Bytes, KeyRange, ReadError};
use crate::table_walk::{TableWalk, is_behind};
use crate::trees::Tree;
use crate::walk::{Value, Walk};

/// Layers that are merged here. With more the engine, which has a heap, does better.
const MAX_LAYERS: usize = 16;

/// Pairs that are taken from a memtable at once, at first and at most.
const FIRST_TAKEN: usize = 32;
const MOST_TAKEN: usize = 256;

/// The start of a key that is compared first.
const HEAD: usize = 16;

/// A walk through layers, the newest first.
pub(crate) struct MergeWalk {
    layers: Vec<Layer>,
    /// Layers whose key was shown or passed over, a bit for each.
    passed: u32,
    /// The layer whose pair is lent.
    lent: Option<usize>,
}

/// A layer, and the start of the key that it has come to.
struct Layer {
    source: Source,
    /// None after its last key.
    head: Option<u128>,
}

/// Pairs of one layer, with those that say that a key was removed.
pub(crate) enum Source {
    Memory(MemoryWalk),
    Run(Box<RunWalk>),
}

const _: () = assert!(MAX_LAYERS <= u32::BITS as usize);

impl MergeWalk {
    /// The newest of the sources comes first. None if they are more than [`MAX_LAYERS`].
    pub(crate) fn new(sources: impl Iterator<Item = Source>) -> Option<Self> {
        let layers = sources.take(MAX_LAYERS + 1).map(|source| Layer { source, head: None });
        let layers: Vec<Layer> = layers.collect();
        // No layer has come to a key.
        let passed = ((1_u64 << layers.len()) - 1) as u32;
        (layers.len() <= MAX_LAYERS).then_some(Self { layers, passed, lent: None })
    }

    /// Goes on where a key was passed.
    fn go_on(&mut self) -> Result<(), ReadError> {
        while self.passed != 0 {
            let place = self.passed.trailing_zeros() as usize;
            self.layers[place].advance()?;
            self.passed &= self.passed - 1;
        }
        Ok(())
    }

    /// The newest layer of those that have the least key, and all of them.
    fn least(&self) -> Option<(usize, u32)> {
        let mut least: Option<(usize, u32)> = None;
        for (place, layer) in self.layers.iter().enumerate() {
            if layer.head.is_none() {
                continue;
            }
            let order =
                least.map_or(Ordering::Less, |(first, _)| layer.compare(&self.layers[first]));
            match (order, &mut least) {
                (Ordering::Equal, Some((_, all))) => *all |= 1 << place,
                (Ordering::Greater, _) => {}
                _ => least = Some((place, 1 << place)),
            }
        }
        least
    }
}

impl Walk for MergeWalk {
    fn advance(&mut self) -> Result<bool, ReadError> {
        loop {
            self.go_on()?;
            self.lent = None;
            let Some((newest, all)) = self.least() else { return Ok(false) };
            self.passed = all;
            if self.layers[newest].source.pair().is_some_and(|(_, value)| value.is_some()) {
                self.lent = Some(newest);
                return Ok(true);
            }
        }
    }

    fn lent(&self) -> Option<(&[u8], Value<'_>)> {
        let (key, value) = self.layers[self.lent?].source.pair()?;
        Some((key, value?))
    }
}

impl Layer {
    fn advance(&mut self) -> Result<(), ReadError> {
        let has_come = match &mut self.source {
            Source::Memory(memory) => memory.advance(),
            Source::Run(run) => run.advance()?,
        };
        self.head = has_come.then(|| self.source.pair().map_or(0, |(key, _)| head_of(key)));
        Ok(())
    }

    fn compare(&self, other: &Self) -> Ordering {
        self.head.cmp(&other.head).then_with(|| self.source.key().cmp(&other.source.key()))
    }
}

/// The start of a key as a number, with zeros behind a short one.
fn head_of(key: &[u8]) -> u128 {
    match key.first_chunk() {
        Some(head) => u128::from_be_bytes(*head),
        None => {
            let mut head = [0; HEAD];
            head[..key.len()].copy_from_slice(key);
            u128::from_be_bytes(head)
        }
    }
}

impl Source {
    fn key(&self) -> Option<&[u8]> {
        self.pair().map(|(key, _)| key)
    }

    /// The pair that it has come to. There is no value if the key was removed.
    fn pair(&self) -> Option<(&[u8], Option<Value<'_>>)> {
        match self {
            Self::Memory(memory) => memory.pair(),
            Self::Run(run) => run.at.as_ref()?.pair(),
        }
    }
}

/// A walk through tables that do not overlap, one after the other.
pub(crate) struct RunWalk {
    tree: Arc<Tree>,
    range: KeyRange,
    below: SeqNo,
    /// Those that come next.
    tables: VecDeque<Table>,
    at: Option<TableWalk>,
}

impl RunWalk {
    pub(crate) fn new(
        tree: Arc<Tree>,
        range: KeyRange,
        below: SeqNo,
        tables: VecDeque<Table>,
    ) -> Self {
        Self { tree, range, below, tables, at: None }
    }

    fn advance(&mut self) -> Result<bool, ReadError> {
        loop {
            if let Some(at) = &mut self.at
                && at.advance()?
            {
                return Ok(true);
            }
            self.at = None;
            let Some(table) = self.tables.pop_front() else { return Ok(false) };
            let walk =
                TableWalk::begin(Arc::clone(&self.tree), table, self.range.clone(), self.below)?;
            self.at = Some(walk.with_removed());
        }
    }
}

/// A walk through a memtable, which may be written to meanwhile.
pub(crate) struct MemoryWalk {
    memtable: Arc<Memtable>,
    range: KeyRange,
    below: SeqNo,
    /// What was taken last, without a value where the key was removed.
    taken: Vec<(Bytes, Option<Bytes>)>,
    /// The next pair of what was taken.
    next: usize,
    /// How many pairs are taken next.
    wanted: usize,
    /// The last key that was taken, and its sequence.
    last: Option<(Bytes, SeqNo)>,
    is_over: bool,
}

impl MemoryWalk {
    pub(crate) fn new(memtable: Arc<Memtable>, range: KeyRange, below: SeqNo) -> Self {
        let (taken, next, wanted) = (Vec::new(), 0, FIRST_TAKEN);
        Self { memtable, range, below, taken, next, wanted, last: None, is_over: false }
    }

    fn advance(&mut self) -> bool {
        if self.next == self.taken.len() && !self.is_over {
            self.take();
        }
        let has_come = self.next < self.taken.len();
        self.next += usize::from(has_come);
        if !has_come {
            self.taken.clear();
            self.next = 0;
        }
        has_come
    }

    fn pair(&self) -> Option<(&[u8], Option<Value<'_>>)> {
        let (key, value) = self.taken.get(self.next.checked_sub(1)?)?;
        Some((key, value.as_ref().map(Value::shared)))
    }

    /// Takes the next pairs that are shown.
    fn take(&mut self) {
        self.taken.clear();
        self.taken.reserve(self.wanted);
        self.next = 0;
        self.is_over = true;
        let place = |key: &[u8], sequence| {
            InternalValue::from_components(key, b"", sequence, ValueType::Value).key
        };
        // Versions of a key follow each other, the newest first.
        let start = match (&self.last, &self.range.start) {
            (Some((key, sequence)), _) => Bound::Excluded(place(key, *sequence)),
            (None, Bound::Included(key)) if !key.is_empty() => {
                Bound::Included(place(key, SeqNo::MAX))
            }
            (None, Bound::Excluded(key)) if !key.is_empty() => Bound::Excluded(place(key, 0)),
            (None, _) => Bound::Unbounded,
        };
        for entry in self.memtable.items.range((start, Bound::Unbounded)) {
            let key = entry.key();
            if is_behind(&key.user_key, &self.range.end) {
                return;
            }
            let is_older = self.last.as_ref().is_some_and(|(last, _)| **last == *key.user_key);
            if key.seqno >= self.below || is_older {
                continue;
            }
            if self.taken.len() == self.wanted {
                self.wanted = (self.wanted * 2).min(MOST_TAKEN);
                self.is_over = false;
                return;
            }
            let user_key = Bytes(key.user_key.clone().into());
            let value =
                (!key.value_type.is_tombstone()).then(|| Bytes(entry.value().clone().into()));
            self.last = Some((user_key.clone(), key.seqno));
            self.taken.push((user_key, value));
        }
    }
}
