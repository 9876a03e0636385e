//! The disk of one simulated process, and the data on it: a real [`Node`] over a store that loses what
//! was not synced.
//!
//! Judges see the log as the node itself reads it back ([`Disk::refresh`]), never as the world believes
//! it to be.

use std::hash::{DefaultHasher, Hasher};
use std::ops::Bound;
use std::sync::Arc;

use quorate_node::{CommandError, Node, NodeOptions, Now, entry_position};
use quorate_protocol::{OpTime, OpTimeAndWallTime};
use quorate_replication::election::LastVote;
use quorate_replication::{Recovered, SeededRandom};
use quorate_storage::{ModelStore, Store};

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

/// The disk of a process.
pub(crate) struct Disk {
    store: Arc<ModelStore>,
    /// How much history its member keeps.
    oplog_bytes: u64,
    log: Vec<Entry>,
    cuts: u64,
}

impl Disk {
    /// An empty disk.
    pub(crate) fn new(oplog_bytes: u64) -> Self {
        Self { store: Arc::new(ModelStore::new()), oplog_bytes, log: Vec::new(), cuts: 0 }
    }

    /// Takes the place of this one when it breaks.
    pub(crate) fn replacement(&self) -> Self {
        Self::new(self.oplog_bytes)
    }

    /// A process starts on it.
    pub(crate) fn open(
        &mut self,
        seed: u64,
        now: Now,
    ) -> Result<(Arc<Node>, Recovered), CommandError> {
        let (node, recovered) = open(Arc::clone(&self.store), self.oplog_bytes, seed, now)?;
        self.log = read_log(&node, Bound::Unbounded)?;
        self.cuts = node.standing().cuts;
        Ok((Arc::new(node), recovered))
    }

    /// The process ends without warning. Of what was not synced, the first so many commits survive.
    pub(crate) fn crash(&mut self, random: &mut SeededRandom) {
        let (from, to) = self.store.unsynced();
        let kept = from.as_u64() + random.below(to.as_u64() - from.as_u64() + 1);
        self.store = Arc::new(self.store.crash_after(kept));
    }

    /// From now on nothing that is written is forced to disk, however it is asked for: the process is
    /// about to end in the middle of its work.
    pub(crate) fn ignore_syncs(&self) {
        self.store.ignore_syncs(true);
    }

    /// The vote that a process would find if this one ended now.
    pub(crate) fn vote_after_crash(&self, now: Now) -> Result<Option<LastVote>, CommandError> {
        let survivor = self.store.crash_after(0);
        let (_, recovered) = open(Arc::new(survivor), self.oplog_bytes, 0, now)?;
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
    store: Arc<ModelStore>,
    oplog_bytes: u64,
    seed: u64,
    now: Now,
) -> Result<(Node, Recovered), CommandError> {
    let store: Arc<dyn Store> = store;
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
