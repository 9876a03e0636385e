//! The disk of one simulated process, and the data on it: a real [`Node`] over a store that loses what
//! was not synced.
//!
//! Judges see the log as the node itself reads it back ([`Disk::refresh`]), never as the world believes
//! it to be.

use std::hash::{DefaultHasher, Hasher};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use quorate_node::{CommandError, ErrorCode, Node, NodeOptions, Now, entry_position};
use quorate_protocol::{OpTime, OpTimeAndWallTime};
use quorate_replication::{LastVote, Recovered, SeededRandom};
use quorate_storage::{DiskOptions, DiskStore, Fate, ModelStore, SimulatedFiles, Store};
use tempfile::TempDir;

use crate::upgrading::{copy_trees, write_first_format};

/// An entry of the log, as a judge remembers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Where it stands.
    pub position: OpTimeAndWallTime,
    /// What it says, in short.
    pub digest: u64,
}

impl Entry {
    /// Where it stands in the history.
    pub fn op_time(&self) -> OpTime {
        self.position.op_time
    }
}

/// What a disk is made of.
enum Medium {
    /// A store in memory that loses whole commits.
    Model(Arc<ModelStore>),
    /// The store of real servers, over files that lose, tear and reorder what was not synced.
    Files(OnFiles),
}

/// A store of real servers. Its trees are in a directory of the file system, and what a world writes to them stays in
/// memory as long as the world lasts: what survives a crash is in the simulated files, and in the tables that a
/// migration has left there.
struct OnFiles {
    files: SimulatedFiles,
    directory: TempDir,
}

/// More than a world writes, so that no thread flushes a tree at a time that is not the world's.
const MEMTABLE_BYTES: u64 = 256 << 20;

impl OnFiles {
    fn new(files: SimulatedFiles, from: Option<&Self>) -> Result<Self, CommandError> {
        let failed = |error: std::io::Error| {
            let what = format!("the world has no directory for a store: {error}");
            CommandError::new(ErrorCode::INTERNAL_ERROR, what)
        };
        let directory = tempfile::tempdir().map_err(failed)?;
        let files = match from {
            Some(from) => {
                copy_trees(from.directory.path(), directory.path()).map_err(failed)?;
                files.moved(from.directory.path(), directory.path())
            }
            None => files,
        };
        Ok(Self { files, directory })
    }

    fn open(&self) -> Result<DiskStore, CommandError> {
        let options = DiskOptions {
            cache_bytes: 1 << 20,
            memtable_bytes: MEMTABLE_BYTES,
            ..DiskOptions::default()
        };
        let files = Arc::new(self.files.clone());
        let store = DiskStore::open_on(files, self.directory.path(), options);
        let failed = |error: quorate_storage::OpenError| {
            CommandError::new(
                ErrorCode::INTERNAL_ERROR,
                format!("the store does not open: {error}"),
            )
        };
        store.map_err(failed)
    }
}

/// The disk of a process.
pub(crate) struct Disk {
    medium: Medium,
    /// How much history its member keeps.
    oplog_bytes: u64,
    log: Vec<Entry>,
    cuts: u64,
    /// Whether a sync was made to fail.
    fails: AtomicBool,
}

impl Disk {
    /// An empty disk: a store in memory, or that of real servers over simulated files.
    pub(crate) fn new(oplog_bytes: u64, on_files: bool) -> Self {
        let files = on_files.then(|| OnFiles::new(SimulatedFiles::new(), None).ok()).flatten();
        let medium = match files {
            Some(files) => Medium::Files(files),
            None => Medium::Model(Arc::new(ModelStore::new())),
        };
        let fails = AtomicBool::new(false);
        Self { medium, oplog_bytes, log: Vec::new(), cuts: 0, fails }
    }

    /// Takes the place of this one when it breaks.
    pub(crate) fn replacement(&self) -> Self {
        Self::new(self.oplog_bytes, matches!(self.medium, Medium::Files(_)))
    }

    /// A process starts on it.
    pub(crate) fn open(
        &mut self,
        seed: u64,
        now: Now,
    ) -> Result<(Arc<Node>, Recovered), CommandError> {
        let store: Arc<dyn Store> = match &self.medium {
            Medium::Model(store) => Arc::<ModelStore>::clone(store),
            Medium::Files(files) => Arc::new(files.open()?),
        };
        let (node, recovered) = open(store, self.oplog_bytes, seed, now)?;
        self.log = read_log(&node, Bound::Unbounded)?;
        self.cuts = node.standing().cuts;
        Ok((Arc::new(node), recovered))
    }

    /// The process ends without warning. Of what was not synced, the first so many commits survive; of files any part
    /// of it, in sectors.
    pub(crate) fn crash(&mut self, random: &mut SeededRandom) -> Result<(), CommandError> {
        self.medium = match &self.medium {
            Medium::Model(store) => {
                let (from, to) = store.unsynced();
                let kept = from.as_u64() + random.below(to.as_u64() - from.as_u64() + 1);
                Medium::Model(Arc::new(store.crash_after(kept)))
            }
            Medium::Files(files) => {
                // All of it, nothing, or any part.
                let percent = [0, 100, 50, 90][random.below(4) as usize];
                // Luck of its own: how many writes are waiting depends on the threads of the store, and the world must
                // not.
                let mut luck = SeededRandom::new(random.below(u64::MAX));
                let fate = || if luck.chance(percent) { Fate::Kept } else { Fate::Lost };
                Medium::Files(OnFiles::new(files.files.crash(fate), Some(files))?)
            }
        };
        self.take_failure();
        Ok(())
    }

    /// The process that ended was one of the last release: what it left is in storage format 1. False if a store in
    /// memory has no format.
    pub(crate) fn age(&mut self) -> Result<bool, CommandError> {
        let Medium::Files(files) = &self.medium else { return Ok(false) };
        let aged = OnFiles::new(SimulatedFiles::new(), None)?;
        write_first_format(&files.open()?, aged.directory.path())?;
        self.medium = Medium::Files(aged);
        Ok(true)
    }

    /// From now on nothing that is written is forced to disk, however it is asked for: the process is
    /// about to end in the middle of its work.
    pub(crate) fn ignore_syncs(&self) {
        match &self.medium {
            Medium::Model(store) => store.ignore_syncs(true),
            Medium::Files(files) => files.files.fail_power_at_sync(),
        }
    }

    /// The next attempt to force something to disk fails.
    pub(crate) fn fail_next_sync(&self) {
        self.fails.store(true, Ordering::Relaxed);
        match &self.medium {
            Medium::Model(store) => store.fail_next_sync(),
            Medium::Files(files) => files.files.fail_syncs(true),
        }
    }

    /// Whether what went wrong is that failure, which is told once.
    pub(crate) fn take_failure(&self) -> bool {
        self.fails.swap(false, Ordering::Relaxed)
    }

    /// The vote that a process would find if this one ended now.
    pub(crate) fn vote_after_crash(&self, now: Now) -> Result<Option<LastVote>, CommandError> {
        let survivor = match &self.medium {
            Medium::Model(store) => Arc::new(store.crash_after(0)) as Arc<dyn Store>,
            Medium::Files(files) => {
                let survivor = OnFiles::new(files.files.survivor(|| Fate::Lost), Some(files))?;
                let (_, recovered) = open(Arc::new(survivor.open()?), self.oplog_bytes, 0, now)?;
                return Ok(recovered.last_vote);
            }
        };
        let (_, recovered) = open(survivor, self.oplog_bytes, 0, now)?;
        Ok(recovered.last_vote)
    }

    /// Reads what has changed in the log. Gives the entries that were appended.
    pub(crate) fn refresh(&mut self, node: &Node) -> Result<&[Entry], CommandError> {
        let standing = node.standing();
        if standing.cuts != self.cuts {
            self.cuts = standing.cuts;
            let log = read_log(node, Bound::Unbounded)?;
            let known = self.last().op_time;
            self.log = log;
            let news = self.log.partition_point(|entry| entry.op_time() <= known);
            return Ok(&self.log[news..]);
        }
        let before = self.log.len();
        if standing.last.op_time != self.last().op_time {
            let from = Bound::Excluded(self.last().op_time.timestamp);
            self.log.extend(read_log(node, from)?);
        }
        Ok(&self.log[before..])
    }

    /// The log as it was read last.
    pub(crate) fn log(&self) -> &[Entry] {
        &self.log
    }

    /// Its last entry.
    pub(crate) fn last(&self) -> OpTimeAndWallTime {
        self.log.last().map(|entry| entry.position).unwrap_or_default()
    }

    /// The entry before the first of so many last ones.
    pub(crate) fn before_last(&self, count: usize) -> OpTime {
        let place = self.log.len().checked_sub(count + 1);
        place.map_or(OpTime::NULL, |place| self.log[place].op_time())
    }
}

fn open(
    store: Arc<dyn Store>,
    oplog_bytes: u64,
    seed: u64,
    now: Now,
) -> Result<(Node, Recovered), CommandError> {
    let options = NodeOptions { seed, oplog_bytes: Some(oplog_bytes), ..NodeOptions::default() };
    let node = Node::open(store, options, now)?;
    let recovered = node.join_replica_set(now)?;
    Ok((node, recovered))
}

fn read_log(
    node: &Node,
    from: Bound<quorate_protocol::Timestamp>,
) -> Result<Vec<Entry>, CommandError> {
    let found = node.read_oplog(from, usize::MAX, usize::MAX)?;
    let entry = |entry: &bson::RawDocumentBuf| {
        let mut hasher = DefaultHasher::new();
        hasher.write(entry.as_bytes());
        Ok(Entry { position: entry_position(entry)?, digest: hasher.finish() })
    };
    found.entries.iter().map(entry).collect()
}
