//! Walks through the range of a tree, straight through its tables where one table alone holds the keys.
//!
//! ```text
//!   keys        a ────────────── f   h ──────────── m  n ─────────────── z
//!   tables      ├── one table ───┤   ├─ one table ──┤  ├─ table ─────┤
//!                                                            ├─ table ───┤  memtable
//!   read by      blocks in order      blocks in order   a merge of all of them
//! ```
//!
//! Merging costs the engine more than all else that a scan does: each pair passes a heap and a stream of versions,
//! and each block is searched for the ends of the range. Documents that are inserted one after the other come to lie
//! in tables that do not overlap, so that nearly all of a collection needs no merging. What does is merged by `merge_walk`.
//!
//! The order in which this looks matters. First what is in memory only, then the tables: what a flush moves in between
//! is found in both. The tables are the newest ones. A snapshot that is older than they are is read by the engine, which keeps
//! older tables for it.

use std::collections::VecDeque;
use std::fs::File;
use std::ops::{Bound, Range};
use std::sync::Arc;

use lsm_tree::coding::Decode;
use lsm_tree::file::read_exact;
use lsm_tree::table::BlockHandle;
use lsm_tree::table::block::{BlockType, Header};
use lsm_tree::{Checksum, CompressionType, SeqNo, Slice, Table};
use xxhash_rust::xxh3::xxh3_128;

use crate::block_items::{BlockItems, Malformed};
use crate::memtable::Memtable;
use crate::merge_walk::{MemoryWalk, MergeWalk, RunWalk, Source};
use crate::store::{Bytes, Direction, KeyRange, ReadError};
use crate::trees::Tree;
use crate::walk::{ScanWalk, Value, Walk};

/// The most bytes of a table that are read at once.
const MAX_READ_AHEAD: usize = 128 * 1024;

/// Keys from the first to the second, both included.
pub(crate) type Span = (Bytes, Bytes);

/// A walk through a range of a tree.
pub(crate) struct TreeWalk<T> {
    tree: Arc<Tree>,
    range: KeyRange,
    /// Pairs of this sequence and later ones are not shown.
    below: u64,
    /// The newest first.
    layers: Vec<Layer>,
    sections: VecDeque<Section>,
    at: At,
    /// Keeps the snapshot.
    held: T,
    /// Whether the tree is to be told where the first key of the range is.
    tells_first: bool,
}

/// A part of a tree in which each key stands once, but for its versions.
pub(crate) enum Layer {
    /// A memtable, and the keys that are in it at most.
    Memory(Arc<Memtable>, Span),
    /// Tables that do not overlap, in the order of their keys.
    Run(Vec<Table>),
}

/// Neighbouring keys, and where they are.
struct Section {
    first: Slice,
    last: Slice,
    /// The table that alone holds them; none if layers must be merged.
    table: Option<Table>,
}

/// Where a walk is.
enum At {
    Nowhere,
    Table(Box<TableWalk>),
    Merged(Box<MergeWalk>),
    /// There are more layers than are merged here.
    Scanned(ScanWalk),
}

impl<T: Clone + Send + 'static> TreeWalk<T> {
    /// `layers` are asked for the newest first, those in memory before the tables.
    pub(crate) fn new(
        tree: Arc<Tree>,
        range: KeyRange,
        (below, held): (u64, T),
        layers: Vec<Layer>,
    ) -> Self {
        let sections = layers.iter().flat_map(Layer::sections);
        let sections = join(sections.filter(|section| section.overlaps(&range)).collect());
        let tells_first = tree.emptied.wants_to_learn();
        Self { tree, range, below, layers, sections, at: At::Nowhere, held, tells_first }
    }

    /// Goes to the next pair, in this section or a later one.
    fn go_on(&mut self) -> Result<bool, ReadError> {
        loop {
            let has_come = match &mut self.at {
                At::Nowhere => false,
                At::Table(walk) => walk.advance()?,
                At::Merged(walk) => walk.advance()?,
                At::Scanned(walk) => walk.advance()?,
            };
            if has_come {
                return Ok(true);
            }
            self.at = At::Nowhere;
            let Some(section) = self.sections.pop_front() else { return Ok(false) };
            self.at = self.begin(section)?;
        }
    }

    fn begin(&self, section: Section) -> Result<At, ReadError> {
        match section.table {
            Some(table) => {
                let range = self.range.clone();
                let walk = TableWalk::begin(Arc::clone(&self.tree), table, range, self.below)?;
                Ok(At::Table(Box::new(walk)))
            }
            None => {
                let range = section.within(&self.range);
                let sources = self.layers.iter().filter_map(|layer| self.source(layer, &range));
                if let Some(walk) = MergeWalk::new(sources) {
                    return Ok(At::Merged(Box::new(walk)));
                }
                let scan = self.tree.scan(range, Direction::Forward, self.below, self.held.clone());
                Ok(At::Scanned(ScanWalk::from(scan)))
            }
        }
    }

    /// What a layer has of a range; none if it has nothing.
    fn source(&self, layer: &Layer, range: &KeyRange) -> Option<Source> {
        let sections = layer.sections().filter(|section| section.overlaps(range));
        match layer {
            Layer::Memory(memtable, _) => {
                let memtable = Arc::clone(memtable);
                let walk = || MemoryWalk::new(memtable, range.clone(), self.below);
                sections.last().map(|_| Source::Memory(walk()))
            }
            Layer::Run(_) => {
                let tables: VecDeque<_> = sections.filter_map(|section| section.table).collect();
                let (tree, is_empty) = (Arc::clone(&self.tree), tables.is_empty());
                let walk = || RunWalk::new(tree, range.clone(), self.below, tables);
                (!is_empty).then(|| Source::Run(Box::new(walk())))
            }
        }
    }
}

impl Layer {
    /// The tables of a run that may have keys of a range; none if there are none.
    pub(crate) fn of_run(run: &[Table], range: &KeyRange) -> Option<Self> {
        let begun =
            run.partition_point(|table| is_before(table.metadata.key_range.max(), &range.start));
        let tables = &run[begun..];
        let ended =
            tables.partition_point(|table| !is_behind(table.metadata.key_range.min(), &range.end));
        (ended > 0).then(|| Self::Run(tables[..ended].to_vec()))
    }

    /// The keys of its parts.
    fn sections(&self) -> impl Iterator<Item = Section> {
        let (memory, tables) = match self {
            Self::Memory(_, keys) => (Some(keys), [].as_slice()),
            Self::Run(tables) => (None, &**tables),
        };
        let memory = memory.into_iter().map(|(first, last)| Section {
            first: Slice::from(first.0.clone()),
            last: Slice::from(last.0.clone()),
            table: None,
        });
        let tables = tables.iter().map(|table| {
            let keys = &table.metadata.key_range;
            let (first, last) = (keys.min().clone(), keys.max().clone());
            Section { first, last, table: Some(table.clone()) }
        });
        memory.chain(tables)
    }
}

impl<T: Clone + Send + 'static> Walk for TreeWalk<T> {
    fn advance(&mut self) -> Result<bool, ReadError> {
        let has_come = self.go_on()?;
        if std::mem::take(&mut self.tells_first) {
            let first = self.lent().map(|(key, _)| key);
            self.tree.emptied.learn(&self.range, first, self.below);
        }
        Ok(has_come)
    }

    fn lent(&self) -> Option<(&[u8], Value<'_>)> {
        match &self.at {
            At::Nowhere => None,
            At::Table(walk) => walk.lent(),
            At::Merged(walk) => walk.lent(),
            At::Scanned(walk) => walk.lent(),
        }
    }
}

impl Section {
    fn overlaps(&self, range: &KeyRange) -> bool {
        let begins = match &range.end {
            Bound::Included(end) => *self.first <= **end,
            Bound::Excluded(end) => *self.first < **end,
            Bound::Unbounded => true,
        };
        begins && !is_before(&self.last, &range.start)
    }

    /// The part of a range that is in it.
    fn within(&self, range: &KeyRange) -> KeyRange {
        let start = match is_before(&self.first, &range.start) {
            true => range.start.clone(),
            false => Bound::Included(self.first.to_vec()),
        };
        let end = match is_behind(&self.last, &range.end) {
            true => range.end.clone(),
            false => Bound::Included(self.last.to_vec()),
        };
        KeyRange { start, end }
    }
}

pub(crate) fn is_before(key: &[u8], start: &Bound<Vec<u8>>) -> bool {
    match start {
        Bound::Included(start) => key < &**start,
        Bound::Excluded(start) => key <= &**start,
        Bound::Unbounded => false,
    }
}

pub(crate) fn is_behind(key: &[u8], end: &Bound<Vec<u8>>) -> bool {
    match end {
        Bound::Included(end) => key > &**end,
        Bound::Excluded(end) => key >= &**end,
        Bound::Unbounded => false,
    }
}

/// Puts sections into their order, and joins those that overlap.
fn join(mut sections: Vec<Section>) -> VecDeque<Section> {
    sections.sort_by(|a, b| a.first.cmp(&b.first));
    let mut joined: VecDeque<Section> = VecDeque::with_capacity(sections.len());
    for section in sections {
        match joined.back_mut() {
            Some(last) if section.first <= last.last => {
                last.table = None;
                if section.last > last.last {
                    last.last = section.last;
                }
            }
            _ => joined.push_back(section),
        }
    }
    joined
}

/// A walk through one table, block after block.
pub(crate) struct TableWalk {
    tree: Arc<Tree>,
    table: Table,
    file: Arc<File>,
    range: KeyRange,
    below: SeqNo,
    /// Where the next block begins, and where the last one ends.
    unread: Range<u64>,
    /// How much is read next.
    read_ahead: usize,
    /// What was read and not walked through, from the next block on.
    chunk: Bytes,
    /// The pairs of the block at hand that are shown.
    pairs: Pairs,
    /// The pair that the walk has come to.
    place: Option<usize>,
    /// Whether the end of the range was met.
    is_over: bool,
}

/// Pairs of one block.
#[derive(Default)]
struct Pairs {
    block: Option<Bytes>,
    /// The keys, one behind the other.
    keys: Vec<u8>,
    places: Vec<Place>,
    /// Whether keys that were removed are among the pairs.
    with_removed: bool,
    /// Where among the keys the one is that was met last: its older versions may follow, in the next block as well.
    last: Range<usize>,
    /// Whether a key of the range was met.
    has_begun: bool,
}

/// Where the key and the value of a pair are. There is no value if the key was removed.
struct Place {
    key: Range<u32>,
    value: Option<Range<u32>>,
}

fn narrow(range: &Range<usize>) -> Range<u32> {
    // A block has less than 4 GiB.
    range.start as u32..range.end as u32
}

fn wide(range: &Range<u32>) -> Range<usize> {
    range.start as usize..range.end as usize
}

impl TableWalk {
    pub(crate) fn begin(
        tree: Arc<Tree>,
        table: Table,
        range: KeyRange,
        below: u64,
    ) -> Result<Self, ReadError> {
        let regions = &table.regions;
        let tables_end = *regions.tli.offset();
        let end = regions.index.map_or(tables_end, |index| tables_end.min(*index.offset()));
        let found = tree.open_table(&table).map_err(lsm_tree::Error::from).and_then(|file| {
            let first = first_block(&tree, &table, &range.start)?;
            Ok((file, first))
        });
        let (file, first) = found.map_err(|error| tree.read_error(error))?;
        let unread = first.map_or(end, |first| *first.offset())..end;
        Ok(Self {
            tree,
            table,
            file,
            range,
            below,
            unread,
            read_ahead: first.map_or(0, |first| first.size() as usize),
            chunk: Bytes::from(&[]),
            pairs: Pairs::default(),
            place: None,
            is_over: false,
        })
    }

    /// The same with keys that were removed.
    pub(crate) fn with_removed(mut self) -> Self {
        self.pairs.with_removed = true;
        self
    }

    /// The pair that it has come to. There is no value if the key was removed.
    pub(crate) fn pair(&self) -> Option<(&[u8], Option<Value<'_>>)> {
        let Place { key, value } = self.pairs.places.get(self.place?)?;
        let block = self.pairs.block.as_ref()?;
        let value = value.as_ref().map(|value| Value::copied(&block[wide(value)]));
        Some((&self.pairs.keys[wide(key)], value))
    }

    /// Reads on unless so many bytes of the next block are there. False if the table has ended.
    fn fill(&mut self, needed: usize) -> Result<bool, lsm_tree::Error> {
        if self.chunk.len() >= needed {
            return Ok(true);
        }
        let left = usize::try_from(self.unread.end - self.unread.start).unwrap_or(usize::MAX);
        if left == 0 {
            return Ok(false);
        }
        if left < needed {
            return Err(lsm_tree::Error::InvalidHeader("Block"));
        }
        let length = self.read_ahead.max(needed).min(left);
        self.chunk = Bytes(read_exact(&self.file, self.unread.start, length)?.into());
        self.read_ahead = (self.read_ahead * 2).min(MAX_READ_AHEAD);
        Ok(true)
    }

    /// Takes the pairs of the next block over. False if the table has ended.
    fn next_block(&mut self) -> Result<bool, lsm_tree::Error> {
        const HEADER: usize = Header::serialized_len();
        if !self.fill(HEADER)? {
            return Ok(false);
        }
        let header = Header::decode_from(&mut &self.chunk[..])?;
        let length = HEADER + header.data_length as usize;
        self.fill(length)?;
        let block = match self.table.metadata.data_block_compression {
            CompressionType::None => self.chunk.slice(HEADER..length),
        };
        let (got, expected) = (Checksum::from_raw(xxh3_128(&block)), header.checksum);
        if got != expected {
            return Err(lsm_tree::Error::ChecksumMismatch { got, expected });
        }
        if header.block_type != BlockType::Data {
            return Err(lsm_tree::Error::InvalidHeader("Block"));
        }
        self.chunk = self.chunk.slice(length..self.chunk.len());
        self.unread.start += length as u64;
        let below = self.below.saturating_sub(self.table.global_seqno());
        let taken = self.pairs.take(block, below, &self.range);
        self.is_over = taken.map_err(|Malformed| lsm_tree::Error::InvalidHeader("Block"))?;
        Ok(true)
    }
}

impl Walk for TableWalk {
    fn advance(&mut self) -> Result<bool, ReadError> {
        let mut next = self.place.map_or(0, |place| place + 1);
        while next >= self.pairs.places.len() {
            next = 0;
            let goes_on =
                !self.is_over && self.next_block().map_err(|error| self.tree.read_error(error))?;
            if !goes_on {
                self.place = None;
                self.is_over = true;
                self.pairs.places.clear();
                return Ok(false);
            }
        }
        self.place = Some(next);
        Ok(true)
    }

    fn lent(&self) -> Option<(&[u8], Value<'_>)> {
        let (key, value) = self.pair()?;
        Some((key, value?))
    }
}

impl Pairs {
    /// Takes over what of a block is shown. True if the range has ended.
    fn take(&mut self, block: Bytes, below: SeqNo, range: &KeyRange) -> Result<bool, Malformed> {
        let mut items = BlockItems::new(&block)?;
        self.keys.copy_within(self.last.clone(), 0);
        self.keys.truncate(self.last.len());
        self.last = 0..self.keys.len();
        self.places.clear();
        while let Some(item) = items.next()? {
            // Snapshots that are older than the tables are read by the engine.
            debug_assert!(
                item.sequence < below,
                "a snapshot walks through tables that it does not show"
            );
            let begins = self.keys.len();
            self.keys.extend_from_slice(&block[item.shared]);
            self.keys.extend_from_slice(&block[item.rest]);
            let (key, last) = (&self.keys[begins..], &self.keys[self.last.clone()]);
            // Versions of a key follow each other, the newest first. Neighbours differ in their last byte.
            let is_older = key.last() == last.last() && key == last;
            if is_older || !self.has_begun && is_before(key, &range.start) {
                self.keys.truncate(begins);
                continue;
            }
            self.has_begun = true;
            self.last = begins..self.keys.len();
            if item.value.is_some() || self.with_removed {
                let value = item.value.as_ref().map(narrow);
                self.places.push(Place { key: narrow(&self.last), value });
            }
        }
        self.block = Some(block);
        let is_over = is_behind(&self.keys[self.last.clone()], &range.end);
        if is_over {
            let keys = &self.keys;
            let shown = |place: &Place| !is_behind(&keys[wide(&place.key)], &range.end);
            let shown = self.places.partition_point(shown);
            self.places.truncate(shown);
        }
        Ok(is_over)
    }
}

/// The first block of a table that may hold a key from here on; none if there is none.
fn first_block(
    tree: &Tree,
    table: &Table,
    start: &Bound<Vec<u8>>,
) -> Result<Option<BlockHandle>, lsm_tree::Error> {
    let mut handle = table.regions.tli;
    // The top of an index of two levels leads to the block that leads to the pairs.
    for _ in 0..1 + usize::from(table.regions.index.is_some()) {
        let index = tree.load_index(table, &handle)?;
        let mut entries = index.iter();
        if let Bound::Included(start) | Bound::Excluded(start) = start
            && !entries.seek(start, SeqNo::MAX)
        {
            return Ok(None);
        }
        let Some(entry) = entries.next() else { return Ok(None) };
        handle = BlockHandle::new(entry.offset, entry.size);
    }
    Ok(Some(handle))
}
