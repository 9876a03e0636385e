//! The trees of a store on disk: one `lsm-tree` per keyspace, driven by us.
//!
//! Owns what a tree has taken in since its last flush. A tree has no journal of its own: what is not
//! flushed is recovered from ours. How its tables come and go is in `tables`.

mod leftovers;
mod rewriting;
mod tables;

use std::fs;
use std::io;
use std::ops::Bound;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use lsm_tree::config::{BlockSizePolicy, PinningPolicy, RestartIntervalPolicy};
use lsm_tree::file_accessor::FileAccessor;
use lsm_tree::table::block::BlockType;
use lsm_tree::table::{BlockHandle, IndexBlock};
use lsm_tree::{
    AbstractTree, AnyTree, Cache, Config, DescriptorTable, GlobalTableId, Guard,
    SequenceNumberCounter, Table,
};

use self::leftovers::Leftovers;
use self::rewriting::Looked;
pub(crate) use self::rewriting::Rewriting;
use crate::disk::DiskOptions;
use crate::emptied::Emptied;
use crate::files::{DIRECTORY_MODE, FILE_MODE};
use crate::memtable::{Memtable, Version};
use crate::merge_scan::MergeScan;
use crate::store::{Bytes, Damage, Direction, KeyRange, MAX_KEY_LENGTH, ReadError, Scan};
use crate::table_look_up::Tables;
use crate::table_walk::{Layer, TreeWalk, is_before, is_behind};
use crate::walk::{ScanWalk, Walk};

/// Open table files kept at hand. Far below the usual limit of 1,024 descriptors per process.
const MAX_CACHED_FILES: usize = 256;

/// A memtable may grow to this many times its size while the one before it is flushed; then writers
/// wait.
pub(crate) const MAX_MEMTABLES: u64 = 4;

/// Keys of a block of which the first is stored whole, and the others without what they share with it. A look-up walks
/// through half of them: with 4 in place of the engine's 16 it takes 3,300 instructions fewer of 37,500, and a table is 1 % larger.
const RESTART_INTERVAL: u8 = 4;

/// Bytes of keys and values from which on a block of a table ends. With its last pair, its heads and its header it takes
/// one page of memory at most if its pairs are small; what is larger takes a quarter more than it has, as the allocator's
/// next size.
const BLOCK_BYTES: u32 = 3584;

/// Runs of the first level beyond which writers wait for the merge.
const MAX_FIRST_LEVEL_RUNS: usize = 32;

/// What all trees share.
#[derive(Clone)]
pub(crate) struct TreeContext {
    pub(crate) directory: PathBuf,
    pub(crate) options: DiskOptions,
    /// Hands out the sequences of records and of versions of trees.
    pub(crate) sequences: SequenceNumberCounter,
    cache: Arc<Cache>,
    descriptors: Arc<DescriptorTable>,
}

impl TreeContext {
    pub(crate) fn new(directory: PathBuf, options: DiskOptions) -> Self {
        Self {
            directory,
            options,
            sequences: SequenceNumberCounter::new(1),
            cache: Arc::new(Cache::with_capacity_bytes(options.cache_bytes)),
            descriptors: Arc::new(DescriptorTable::new(MAX_CACHED_FILES)),
        }
    }

    pub(crate) fn path(&self, number: u32) -> PathBuf {
        self.directory.join(number.to_string())
    }

    /// Opens or makes the tree of a keyspace.
    pub(crate) fn open(&self, number: u32, name: &str) -> Result<Arc<Tree>, lsm_tree::Error> {
        let path = self.path(number);
        // What a tree considers visible plays no part: snapshots have their sequences from us.
        let listed = SequenceNumberCounter::default();
        let tree = Config::new(&path, self.sequences.clone(), listed.clone())
            .use_cache(Arc::clone(&self.cache))
            .use_descriptor_table(Some(Arc::clone(&self.descriptors)))
            .data_block_size_policy(BlockSizePolicy::all(BLOCK_BYTES))
            .data_block_restart_interval_policy(RestartIntervalPolicy::all(RESTART_INTERVAL))
            // Pinned blocks are outside the cache's limit: only the small, hot first level may be.
            .index_block_pinning_policy(PinningPolicy::new([true, false]))
            .filter_block_pinning_policy(PinningPolicy::new([true, false]))
            .open()?;
        close_to_others(&path)?;
        let persisted = tree.get_highest_persisted_seqno().unwrap_or(0);
        self.sequences.fetch_max(persisted + 1);
        let memory = Memory::above(Tables::of(&tree, self.sequences.get()));
        Ok(Arc::new(Tree {
            number,
            name: name.to_owned(),
            persisted,
            path,
            tree,
            listed,
            memtable_bytes: self.options.memtable_bytes,
            files: FileAccessor::DescriptorTable(Arc::clone(&self.descriptors)),
            descriptors: Arc::clone(&self.descriptors),
            sequences: self.sequences.clone(),
            memory: RwLock::new(memory),
            emptied: Emptied::default(),
            removals: AtomicU64::new(0),
            looked: Mutex::new(None),
            merging: Mutex::new(()),
            leftovers: Leftovers::default(),
            dropped: AtomicBool::new(false),
        }))
    }
}

/// The tree of one keyspace.
pub(crate) struct Tree {
    pub(crate) number: u32,
    pub(crate) name: String,
    /// The highest sequence in its tables when it was opened.
    pub(crate) persisted: u64,
    path: PathBuf,
    tree: AnyTree,
    /// Rises with each list of tables that the engine has in memory, behind that list.
    listed: SequenceNumberCounter,
    memtable_bytes: u64,
    /// The same for the engine.
    files: FileAccessor,
    descriptors: Arc<DescriptorTable>,
    sequences: SequenceNumberCounter,
    memory: RwLock<Memory>,
    pub(crate) emptied: Emptied,
    /// The keys that were removed since it was opened.
    removals: AtomicU64,
    looked: Mutex<Option<Looked>>,
    /// Held by the thread that merges, rewrites or drops its tables.
    merging: Mutex<()>,
    pub(crate) leftovers: Leftovers,
    /// Its directory goes with the last reader.
    dropped: AtomicBool,
}

/// The memtables of a tree, and the tables below them.
struct Memory {
    /// The one that is written to.
    active: Arc<Memtable>,
    /// The one that is being flushed.
    sealed: Option<Arc<Memtable>>,
    /// Those that were flushed, the oldest first. Snapshots that show no sequence from this one on may not see the tables, and
    /// read them.
    flushed: Vec<(Arc<Memtable>, u64)>,
    tables: Arc<Tables>,
}

/// The snapshots that there are.
pub(crate) struct Snapshots {
    /// The sequences below which they show everything, in their order.
    pub(crate) below: Vec<u64>,
    /// The same of those to come, at least.
    pub(crate) next: u64,
}

impl Snapshots {
    /// No snapshot sees a state before this sequence.
    pub(crate) fn oldest(&self) -> u64 {
        self.below.first().copied().unwrap_or(self.next)
    }

    /// Whether one shows a version from this sequence on, and may not see the tables of another sequence.
    fn is_between(&self, oldest: u64, until: u64) -> bool {
        let first = self.below.partition_point(|&below| below <= oldest);
        self.next < until || self.below.get(first).is_some_and(|&below| below < until)
    }
}

impl Memory {
    fn above(tables: Tables) -> Self {
        let active = Arc::default();
        Self { active, sealed: None, flushed: Vec::new(), tables: Arc::new(tables) }
    }

    /// The memtables that a snapshot reads, the newest first.
    fn shown(&self, below: u64) -> impl Iterator<Item = &Arc<Memtable>> {
        let flushed = self.flushed.iter().rev().filter(move |(_, until)| below < *until);
        let flushed = flushed.map(|(memtable, _)| memtable);
        [&self.active].into_iter().chain(&self.sealed).chain(flushed)
    }

    /// Drops the flushed memtables that no snapshot reads. A snapshot that is older than all of a memtable's versions does not
    /// keep it: otherwise one that lives long would keep in memory all that is written meanwhile.
    fn forget_flushed(&mut self, snapshots: &Snapshots) {
        self.flushed.retain(|(memtable, until)| {
            memtable.oldest().is_some_and(|oldest| snapshots.is_between(oldest, *until))
        });
    }
}

impl Tree {
    /// Puts a version into its memtable, the size of which it returns.
    pub(crate) fn put(&self, key: Bytes, value: Option<Bytes>, stamp: Stamp) -> u64 {
        let fills = value.is_some() && self.emptied.begin_filling(stamp.sequence);
        self.put_into(&self.memory().active, fills, (key, value), stamp)
    }

    fn put_into(
        &self,
        memtable: &Memtable,
        fills: bool,
        (key, value): (Bytes, Option<Bytes>),
        Stamp { sequence, shown }: Stamp,
    ) -> u64 {
        match value {
            Some(_) if fills => self.emptied.fill(&key, sequence),
            Some(_) => {}
            None => {
                self.removals.fetch_add(1, Ordering::Relaxed);
                self.emptied.note_removed(&key);
            }
        }
        memtable.put(Version { key, sequence, value }, shown)
    }

    /// Begins to write what a batch has for it. The caller holds the commit lock until it is written.
    pub(crate) fn begin_batch(&self, stamp: Stamp) -> Writing<'_> {
        let fills = self.emptied.begin_filling(stamp.sequence);
        Writing { tree: self, memtable: Arc::clone(&self.memory().active), fills, stamp }
    }

    fn memory(&self) -> RwLockReadGuard<'_, Memory> {
        self.memory.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn change_memory(&self) -> RwLockWriteGuard<'_, Memory> {
        self.memory.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lowest sequence that is in memory only.
    pub(crate) fn oldest_unflushed(&self) -> Option<u64> {
        let memory = self.memory();
        memory.sealed.as_ref().unwrap_or(&memory.active).oldest()
    }

    /// Begins a new memtable, so that the present one can be flushed. The caller holds the commit
    /// lock, is the only one to flush, and has flushed the one before.
    pub(crate) fn seal(&self) {
        let mut memory = self.change_memory();
        if memory.sealed.is_none() && memory.active.oldest().is_some() {
            memory.sealed = Some(std::mem::take(&mut memory.active));
        }
    }

    /// Whether keys of a range may be in memory only.
    pub(crate) fn has_in_memory(&self, range: &KeyRange) -> bool {
        let memory = self.memory();
        let mut memtables = [&memory.active].into_iter().chain(&memory.sealed);
        memtables.any(|memtable| overlaps(memtable, range))
    }

    /// The newest tables.
    fn tables(&self) -> Arc<Tables> {
        Arc::clone(&self.memory().tables)
    }

    fn removals(&self) -> u64 {
        self.removals.load(Ordering::Relaxed)
    }

    fn looked(&self) -> MutexGuard<'_, Option<Looked>> {
        self.looked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin_merging(&self) -> MutexGuard<'_, ()> {
        self.merging.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// There may be other tables. Two threads come here, one that flushes and one that merges.
    fn note_tables(&self) {
        let mut memory = self.change_memory();
        if memory.tables.version != self.tree.current_version().id() {
            // They have a sequence below this one.
            memory.tables = Arc::new(Tables::of(&self.tree, self.sequences.get()));
        }
    }

    /// The memtables that were flushed and that snapshots keep.
    pub(crate) fn count_flushed(&self) -> usize {
        self.memory().flushed.len()
    }

    /// Whether a memtable was sealed and could not be flushed.
    pub(crate) fn has_sealed(&self) -> bool {
        self.memory().sealed.is_some()
    }

    pub(crate) fn is_full(&self, memtable_bytes: u64) -> bool {
        self.memory().active.bytes() > memtable_bytes
    }

    /// Whether writers must wait before they add more.
    pub(crate) fn is_behind(&self, memtable_bytes: u64) -> bool {
        self.memory().active.bytes() > memtable_bytes * MAX_MEMTABLES
            || self.tree.l0_run_count() > MAX_FIRST_LEVEL_RUNS
    }

    #[cfg(test)]
    pub(crate) fn first_level_runs(&self) -> usize {
        self.tree.l0_run_count()
    }

    /// Leaves a lock of the engine as a panic does.
    #[cfg(test)]
    pub(crate) fn poison_engine(&self) {
        let panics = std::panic::AssertUnwindSafe(|| {
            let _lock = self.tree.get_flush_lock();
            panic!("a defect of the engine");
        });
        std::panic::catch_unwind(panics).unwrap_err();
    }

    pub(crate) fn disk_bytes(&self) -> u64 {
        self.tree.disk_space()
    }

    pub(crate) fn make_dropped(&self) {
        self.dropped.store(true, Ordering::Release);
    }

    pub(crate) fn is_dropped(&self) -> bool {
        self.dropped.load(Ordering::Acquire)
    }

    /// The value of a key, which may be known to be there.
    pub(crate) fn get(
        &self,
        key: &[u8],
        below: u64,
        is_known: bool,
    ) -> Result<Option<Bytes>, ReadError> {
        // First what is in memory: what a flush moves meanwhile is found in both.
        let memory = self.memory();
        let found = memory.shown(below).find_map(|memtable| memtable.get(key, below));
        if let Some(value) = found {
            return Ok(value);
        }
        let tables = (below >= memory.tables.since).then(|| Arc::clone(&memory.tables));
        drop(memory);
        match tables.map(|tables| self.look_up(&tables, (key, is_known), below)) {
            Some(Ok(value)) => return Ok(value),
            None | Some(Err(lsm_tree::Error::Io(_))) => {}
            Some(Err(error)) => return Err(self.read_error(error)),
        }
        if key.len() > MAX_KEY_LENGTH {
            // The engine panics, and no such key is stored.
            return Ok(None);
        }
        let value = self.tree.get(key, below).map_err(|error| self.read_error(error))?;
        Ok(value.map(|value| Bytes(value.into())))
    }

    /// The pairs of a range that is not empty. The scan keeps the tree, and `held`, alive.
    pub(crate) fn scan<T: Send + 'static>(
        self: &Arc<Self>,
        mut range: KeyRange,
        direction: Direction,
        below: u64,
        held: T,
    ) -> Scan {
        if !self.narrow(&mut range, below) {
            return Box::new(std::iter::empty());
        }
        let learns = direction == Direction::Forward && self.emptied.wants_to_learn();
        let looked_at = learns.then(|| range.clone());
        let memory = self.memory();
        let memtables = memory.shown(below).filter(|memtable| overlaps(memtable, &range));
        let memtables: Vec<Arc<Memtable>> = memtables.cloned().collect();
        drop(memory);
        let bounds = (range.start.clone(), range.end.clone());
        let pairs = self.tree.range::<Vec<u8>, _>(bounds, below, None);
        let tree = Arc::clone(self);
        let read = move |guard: lsm_tree::IterGuardImpl| {
            let _held = &held;
            match guard.into_inner() {
                Ok((key, value)) => Ok((Bytes(key.into()), Bytes(value.into()))),
                Err(error) => Err(tree.read_error(error)),
            }
        };
        let tables: Scan = match direction {
            Direction::Forward => Box::new(pairs.map(read)),
            Direction::Backward => Box::new(pairs.rev().map(read)),
        };
        let pairs = match memtables.is_empty() {
            true => tables,
            false => Box::new(MergeScan::new(memtables, tables, range, direction, below)),
        };
        match looked_at {
            None => pairs,
            looked_at => Box::new(LearningScan { tree: Arc::clone(self), pairs, looked_at, below }),
        }
    }

    /// Walks through a range that is not empty. The walk keeps the tree, and `held`, alive.
    pub(crate) fn walk<T: Clone + Send + 'static>(
        self: &Arc<Self>,
        mut range: KeyRange,
        below: u64,
        held: T,
    ) -> Box<dyn Walk> {
        if !self.narrow(&mut range, below) {
            return Box::new(ScanWalk::from(Box::new(std::iter::empty()) as Scan));
        }
        let mut layers = self.layers_in_memory(below);
        let (version, newest) = (self.tree.current_version(), self.tables());
        if version.id() != newest.version || below < newest.since {
            return Box::new(ScanWalk::from(self.scan(range, Direction::Forward, below, held)));
        }
        let runs = version.iter_levels().flat_map(|level| level.iter());
        layers.extend(runs.filter_map(|run| Layer::of_run(run, &range)));
        Box::new(TreeWalk::new(Arc::clone(self), range, (below, held), layers))
    }

    /// Begins a range that is not empty behind what removals have emptied, and gives it bounds that the engine takes. False if
    /// no key can be in it any more.
    fn narrow(&self, range: &mut KeyRange, below: u64) -> bool {
        let first = self.emptied.skip(range, below).map(Bound::Included);
        let is_later = first.is_some();
        if let Some(first) = first {
            range.start = first;
        }
        // Keys are compared only for a range that is another one now.
        let is_other = range.shorten() || is_later;
        !(is_other && range.is_empty())
    }

    /// The memtables that a snapshot reads, the newest first.
    fn layers_in_memory(&self, below: u64) -> Vec<Layer> {
        let memory = self.memory();
        let layer = |memtable: &Arc<Memtable>| {
            memtable.span().map(|keys| Layer::Memory(Arc::clone(memtable), keys))
        };
        memory.shown(below).filter_map(layer).collect()
    }

    /// The file of a table, which stays open for the next reader.
    pub(crate) fn open_table(&self, table: &Table) -> io::Result<Arc<fs::File>> {
        let id = self.global_id(table);
        if let Some(file) = self.descriptors.access_for_table(&id) {
            return Ok(file);
        }
        let file = Arc::new(fs::File::open(&*table.path)?);
        self.descriptors.insert_for_table(id, Arc::clone(&file));
        Ok(file)
    }

    /// A block of the index of a table, from the cache if it is there.
    pub(crate) fn load_index(
        &self,
        table: &Table,
        handle: &BlockHandle,
    ) -> Result<IndexBlock, lsm_tree::Error> {
        self.load(table, handle, BlockType::Index).map(IndexBlock::new)
    }

    /// The files of tables, as the engine asks for them.
    pub(crate) fn files(&self) -> &FileAccessor {
        &self.files
    }

    pub(crate) fn global_id(&self, table: &Table) -> GlobalTableId {
        (self.tree.id(), table.id()).into()
    }

    pub(crate) fn read_error(&self, error: lsm_tree::Error) -> ReadError {
        match error {
            lsm_tree::Error::Io(_) => ReadError::Engine(Box::new(error)),
            _ => ReadError::Damaged(self.damage(self.path.clone())),
        }
    }

    fn damage(&self, file: PathBuf) -> Damage {
        Damage { file, offset: None, keyspace: Some(self.name.clone()) }
    }

    /// Compares every table file with the checksum that was taken when it was written.
    pub(crate) fn verify(&self) -> Result<Vec<Damage>, ReadError> {
        let mut damages = Vec::new();
        let _reading = self.leftovers.keep_all();
        // The version keeps the files of its tables.
        let version = self.tree.current_version();
        for table in version.iter_tables() {
            let file =
                fs::File::open(&*table.path).map_err(|error| ReadError::Engine(Box::new(error)))?;
            let found = hash(file).map_err(|error| ReadError::Engine(Box::new(error)))?;
            if found != table.checksum().into_u128() {
                damages.push(self.damage(table.path.to_path_buf()));
            }
        }
        Ok(damages)
    }
}

/// What the versions of a batch have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stamp {
    pub(crate) sequence: u64,
    /// Every snapshot, those to come included, shows the sequences below this.
    pub(crate) shown: u64,
}

/// A batch on its way into the memtable of a tree.
pub(crate) struct Writing<'t> {
    tree: &'t Tree,
    memtable: Arc<Memtable>,
    /// Whether a range is known to be empty that a key may be in.
    fills: bool,
    stamp: Stamp,
}

impl Writing<'_> {
    /// Puts a version into the memtable, the size of which it returns.
    pub(crate) fn put(&self, key: Bytes, value: Option<Bytes>) -> u64 {
        self.tree.put_into(&self.memtable, self.fills, (key, value), self.stamp)
    }
}

/// Whether a memtable may have keys of a range.
fn overlaps(memtable: &Memtable, range: &KeyRange) -> bool {
    let keys = memtable.span();
    keys.is_some_and(|keys| !is_before(&keys.1, &range.start) && !is_behind(&keys.0, &range.end))
}

/// A scan that tells its tree where the first key of its range is.
struct LearningScan {
    tree: Arc<Tree>,
    pairs: Scan,
    /// The range, until its first key is known.
    looked_at: Option<KeyRange>,
    below: u64,
}

impl Iterator for LearningScan {
    type Item = Result<(Bytes, Bytes), ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.pairs.next();
        if let Some(range) = self.looked_at.take() {
            match &next {
                None => self.tree.emptied.learn(&range, None, self.below),
                Some(Ok((key, _))) => self.tree.emptied.learn(&range, Some(key), self.below),
                Some(Err(_)) => {}
            }
        }
        next
    }
}

/// The checksum that tables have over their whole file.
fn hash(mut file: fs::File) -> io::Result<u128> {
    let mut hasher = xxhash_rust::xxh3::Xxh3::new();
    io::copy(&mut file, &mut HashWriter(&mut hasher))?;
    Ok(hasher.digest128())
}

struct HashWriter<'h>(&'h mut xxhash_rust::xxh3::Xxh3);

impl io::Write for HashWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        if self.is_dropped() {
            // What cannot be removed now is removed by the next start.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Takes the rights of group and others from a directory and what is in it.
pub(crate) fn close_to_others(path: &Path) -> io::Result<()> {
    set_mode(path, DIRECTORY_MODE)?;
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let closed = match entry.file_type() {
            Ok(kind) if kind.is_dir() => close_to_others(&entry.path()),
            Ok(_) => set_mode(&entry.path(), FILE_MODE),
            Err(error) => Err(error),
        };
        match closed {
            // A merge removes files at any time.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            closed => closed?,
        }
    }
    Ok(())
}

fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    let present = fs::metadata(path)?.permissions();
    if present.mode() & 0o777 == mode {
        return Ok(());
    }
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}
