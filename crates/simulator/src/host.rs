//! What a member needs of its host's storage, and a model of it that can lose writes.
//!
//! The model is an ordered log with optimes, of which a prefix is on disk, and the few facts a member
//! must remember. Documents are the replay of the log, so that undoing is replaying a shorter one.

use std::collections::BTreeMap;

use quorate_protocol::{OpTime, OpTimeAndWallTime, Timestamp, WallTime};
use quorate_replication::election::LastVote;
use quorate_replication::{Change, Recovered, SeededRandom};

/// What an entry does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Nothing.
    Noop,
    /// Sets a key.
    Set {
        /// The key.
        key: u64,
        /// Its new value; no two writes of a world have the same.
        value: u64,
    },
}

/// An entry of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Where it stands.
    pub position: OpTimeAndWallTime,
    /// What it does.
    pub operation: Operation,
}

impl Entry {
    /// Where it stands in the history.
    pub fn op_time(&self) -> OpTime {
        self.position.op_time
    }
}

/// The storage of one member, as the world drives it.
pub trait Host {
    /// What a process finds when it starts.
    fn recover(&mut self) -> Recovered;
    /// The process ends without warning. Of the log, some of what was not synced is lost.
    fn crash(&mut self, random: &mut SeededRandom);
    /// A change reaches the disk.
    fn store(&mut self, change: &Change);
    /// Appends an entry of a term, at about this time.
    fn write(&mut self, term: i64, wall: WallTime, operation: Operation) -> Entry;
    /// Appends copied entries.
    fn append(&mut self, entries: &[Entry]);
    /// Everything appended so far reaches the disk.
    fn sync(&mut self) -> OpTimeAndWallTime;
    /// Cuts the log after an entry, durably.
    fn truncate_after(&mut self, last_kept: OpTime);
    /// Removes all data, durably.
    fn wipe(&mut self);
    /// The log.
    fn log(&self) -> &[Entry];
    /// The rollback id on disk.
    fn rollback_id(&self) -> i32;
    /// The vote on disk.
    fn last_vote(&self) -> Option<LastVote>;
    /// Where in the log the entries begin that others can still copy.
    fn oldest(&self) -> usize;
    /// Drops the entries before this one from what others can copy.
    fn drop_before(&mut self, oldest: usize);

    /// The last entry.
    fn last(&self) -> OpTimeAndWallTime {
        self.log().last().map(|entry| entry.position).unwrap_or_default()
    }

    /// Where an entry is in the log.
    fn index_of(&self, op_time: OpTime) -> Option<usize> {
        self.log().binary_search_by(|entry| entry.op_time().cmp(&op_time)).ok()
    }

    /// The documents that the log makes.
    fn documents(&self) -> BTreeMap<u64, u64> {
        let sets = self.log().iter().filter_map(|entry| match entry.operation {
            Operation::Set { key, value } => Some((key, value)),
            Operation::Noop => None,
        });
        sets.collect()
    }
}

/// Storage in memory that loses what was not synced.
#[derive(Clone, Debug, Default)]
pub struct ModelHost {
    log: Vec<Entry>,
    synced: usize,
    /// Entries before it count as dropped. They stay, since documents are the replay of the log.
    oldest: usize,
    facts: Recovered,
}

impl Host for ModelHost {
    fn recover(&mut self) -> Recovered {
        Recovered { last: self.last(), ..self.facts.clone() }
    }

    fn crash(&mut self, random: &mut SeededRandom) {
        let unsynced = self.log.len() - self.synced;
        let kept = random.below(unsynced as u64 + 1) as usize;
        self.log.truncate(self.synced + kept);
        self.synced = self.log.len();
    }

    fn store(&mut self, change: &Change) {
        match change {
            Change::LastVote(vote) => {
                self.facts.last_vote = Some(*vote);
                self.facts.term = self.facts.term.max(vote.term);
            }
            Change::Term(term) => self.facts.term = self.facts.term.max(*term),
            Change::Config(config) => self.facts.config = Some((**config).clone()),
            Change::Initiate(config) => {
                self.facts.config = Some((**config).clone());
                self.write(0, WallTime(0), Operation::Noop);
                self.synced = self.log.len();
            }
            Change::InitialSync(on) => self.facts.initial_sync = *on,
            Change::RollbackId(id) => self.facts.rollback_id = *id,
            Change::Memory(memory) => self.facts.memory = *memory,
        }
    }

    fn write(&mut self, term: i64, wall: WallTime, operation: Operation) -> Entry {
        let last = self.last().op_time.timestamp;
        let seconds = u32::try_from(wall.0 / 1000).unwrap_or(0);
        let timestamp = if seconds > last.seconds {
            Timestamp::new(seconds, 1)
        } else {
            Timestamp::from_u64(last.as_u64() + 1)
        };
        let op_time = OpTime::new(term, timestamp);
        let entry = Entry { position: OpTimeAndWallTime { op_time, wall_time: wall }, operation };
        self.log.push(entry);
        entry
    }

    fn append(&mut self, entries: &[Entry]) {
        self.log.extend_from_slice(entries);
    }

    fn sync(&mut self) -> OpTimeAndWallTime {
        self.synced = self.log.len();
        self.last()
    }

    fn truncate_after(&mut self, last_kept: OpTime) {
        self.log.retain(|entry| entry.op_time() <= last_kept);
        self.synced = self.log.len();
    }

    fn wipe(&mut self) {
        self.log.clear();
        self.synced = 0;
        self.oldest = 0;
    }

    fn log(&self) -> &[Entry] {
        &self.log
    }

    fn rollback_id(&self) -> i32 {
        self.facts.rollback_id
    }

    fn last_vote(&self) -> Option<LastVote> {
        self.facts.last_vote
    }

    fn oldest(&self) -> usize {
        self.oldest.min(self.log.len())
    }

    fn drop_before(&mut self, oldest: usize) {
        self.oldest = oldest;
    }
}
