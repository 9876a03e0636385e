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
use std::sync::Arc;

use lsm_tree::{SeqNo, Table};

use crate::memtable::{Head, Memtable, Place, Version};
use crate::store::{KeyRange, ReadError};
use crate::table_walk::{TableWalk, is_behind};
use crate::trees::Tree;
use crate::walk::{Value, Walk};

/// Layers that are merged here. With more the engine, which has a heap, does better.
const MAX_LAYERS: usize = 16;

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
    head: Option<Head>,
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
        self.head = has_come.then(|| Head::of(self.source.key().unwrap_or_default()));
        Ok(())
    }

    fn compare(&self, other: &Self) -> Ordering {
        self.head.cmp(&other.head).then_with(|| self.source.key().cmp(&other.source.key()))
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
    /// None before the first key.
    at: Option<Place>,
    is_over: bool,
}

impl MemoryWalk {
    pub(crate) fn new(memtable: Arc<Memtable>, range: KeyRange, below: SeqNo) -> Self {
        Self { memtable, range, below, at: None, is_over: false }
    }

    /// Goes to the newest version that is shown of the next key. False after the last one.
    pub(crate) fn advance(&mut self) -> bool {
        if self.is_over {
            return false;
        }
        let mut next = match self.at.take() {
            None => self.memtable.first(&self.range.start),
            Some(at) => self.memtable.after_key(at),
        };
        while let Some(at) = next {
            let version = at.version();
            if is_behind(&version.key, &self.range.end) {
                break;
            }
            if version.sequence < self.below {
                self.at = Some(at);
                return true;
            }
            // An older version of the key may be shown.
            next = self.memtable.after(at);
        }
        self.is_over = true;
        false
    }

    /// The version that it has come to.
    pub(crate) fn version(&self) -> Option<&Version> {
        self.at.as_ref().map(Place::version)
    }

    /// The pair that it has come to. There is no value if the key was removed.
    fn pair(&self) -> Option<(&[u8], Option<Value<'_>>)> {
        let version = self.version()?;
        Some((&version.key, version.value.as_ref().map(Value::shared)))
    }
}
