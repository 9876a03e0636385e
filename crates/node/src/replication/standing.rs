//! Where the log of this member stands, published as one immutable value, and the view of the data
//! that majority reads see.
//!
//! Owns the end of the log, the commit point, the rollback id, the term and writability together:
//! a decision reads one [`Standing`] and never two numbers of two moments. Owns the queue of views
//! that wait for the commit point as well. Publishing is synchronous: the listener runs under the
//! lock of the value, so that it sees the values in their order.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};

use quorate_protocol::{OpTime, OpTimeAndWallTime, Term, Timestamp};
use quorate_storage::CommitSequence;

use super::flow::FlowControl;
use super::{LogPositions, MAX_UNSYNCED, Replication};
use crate::moments::Moment;
use crate::node::Node;

/// Views of entries that are not committed yet. When there are more, every second one is given up:
/// the majority view then moves in larger steps.
pub const MAX_PENDING_VIEWS: usize = 256;

/// Where the log of a member stands at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// The last entry of the log, which is also the last applied one. While a rollback undoes
    /// entries this is the common point already.
    pub last: OpTimeAndWallTime,
    /// The newest entry that no election can lose.
    pub commit_point: OpTimeAndWallTime,
    /// The entry that majority reads see; null before the first one is known to be committed.
    pub majority: OpTime,
    /// How often the log was cut or replaced since the process began. Changes before the first
    /// entry is undone.
    pub cuts: u64,
    /// The rollback id that is sent to other members.
    pub rollback_id: i32,
    /// The term of the member.
    pub term: Term,
    /// The term in which clients may write; none if they may not.
    pub writable: Option<Term>,
}

impl Standing {
    /// Whether a read that began at `began` must end: the member stepped down, or the log was cut.
    pub fn ends_reads_of(&self, began: &Self) -> bool {
        self.cuts != began.cuts
            || self.rollback_id != began.rollback_id
            || (began.writable.is_some() && self.writable != began.writable)
    }
}

/// What the host of a member knows about its standing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decided {
    /// The term.
    pub term: Term,
    /// The rollback id.
    pub rollback_id: i32,
    /// The commit point.
    pub commit_point: OpTimeAndWallTime,
    /// Whether enough members are in sight for the commit point to move.
    pub can_commit: bool,
}

/// Called with every new value, in their order, under a lock: must neither block nor ask the node.
pub type StandingListener = Box<dyn Fn(&Standing) + Send + Sync>;

/// The value that is published, and what moves it.
#[derive(Default)]
pub(super) struct Log {
    standing: Standing,
    durable: OpTimeAndWallTime,
    unsynced: VecDeque<(CommitSequence, OpTimeAndWallTime)>,
    /// Views of entries after the commit point, oldest first.
    pending: VecDeque<(OpTime, Arc<Moment>)>,
    /// What majority reads see.
    majority: Option<Arc<Moment>>,
    /// The pace of clients' writes, by what no majority has.
    pub(super) flow: FlowControl,
}

impl Log {
    pub(super) fn positions(&self) -> LogPositions {
        LogPositions { written: self.standing.last, durable: self.durable }
    }

    /// Entries were appended; the view shows the data after the last of them.
    fn append(&mut self, sequence: CommitSequence, last: OpTimeAndWallTime, view: Arc<Moment>) {
        self.standing.last = last;
        if self.unsynced.len() >= MAX_UNSYNCED {
            self.unsynced.pop_back();
        }
        self.unsynced.push_back((sequence, last));
        self.push_view(last.op_time, view);
    }

    fn push_view(&mut self, at: OpTime, view: Arc<Moment>) {
        if self.pending.len() >= MAX_PENDING_VIEWS {
            keep_every_second(&mut self.pending);
        }
        self.pending.push_back((at, view));
        self.show_committed();
    }

    /// The newest view at or below the commit point is what majority reads see.
    fn show_committed(&mut self) {
        let committed = self.standing.commit_point.op_time;
        if committed.is_null() {
            return;
        }
        while self.pending.front().is_some_and(|(at, _)| *at <= committed) {
            let Some((at, view)) = self.pending.pop_front() else { return };
            self.standing.majority = at;
            self.majority = Some(view);
        }
    }

    /// The log ends here from now on. Views of what follows are gone.
    fn cut(&mut self, last: OpTimeAndWallTime) {
        self.standing.last = last;
        self.standing.cuts += 1;
        self.flow.cut(last.op_time);
        self.durable = self.durable.min(last);
        self.unsynced.clear();
        self.pending.clear();
        if self.standing.majority > last.op_time {
            self.standing.majority = OpTime::NULL;
            self.majority = None;
        }
    }
}

/// Gives up every second element. The oldest stays.
pub(super) fn keep_every_second<T>(elements: &mut VecDeque<T>) {
    let mut keep = false;
    elements.retain(|_| {
        keep = !keep;
        keep
    });
}

impl Replication {
    pub(crate) fn standing(&self) -> Standing {
        self.log.lock().standing
    }

    /// The time of the last entry; zero before there is one.
    pub(crate) fn newest(&self) -> Timestamp {
        Timestamp::from_u64(self.newest.load(Ordering::Relaxed))
    }

    /// What majority reads see, and where that stands; none before anything is known to be committed.
    pub(crate) fn majority_view(&self) -> Option<Arc<Moment>> {
        self.log.lock().majority.clone()
    }

    /// Where a member keeps its facts, and rows beside its oplog.
    pub(crate) fn facts_keyspace(&self) -> quorate_storage::KeyspaceId {
        self.keyspace
    }

    /// Changes the value and publishes it.
    fn change<T>(&self, change: impl FnOnce(&mut Log) -> T) -> T {
        let mut log = self.log.lock();
        let before = log.standing;
        let result = change(&mut log);
        self.newest.store(log.standing.last.op_time.timestamp.as_u64(), Ordering::Relaxed);
        self.publish_standing(&log, &before);
        result
    }

    fn publish_standing(&self, log: &MutexGuard<'_, Log>, before: &Standing) {
        if log.standing != *before
            && let Some(listener) = self.standing_listener.get()
        {
            listener(&log.standing);
        }
    }

    /// The log has grown from the first to the last of these entries, which have so many bytes. For
    /// holders of the write lock.
    pub(super) fn grown(
        &self,
        sequence: CommitSequence,
        first: OpTimeAndWallTime,
        last: OpTimeAndWallTime,
        bytes: u64,
        view: Arc<Moment>,
    ) {
        self.change(|log| {
            log.flow.append(first, last.op_time, bytes);
            log.append(sequence, last, view);
        });
    }

    /// Entries after this one are about to be undone or removed: from now on reads that came after
    /// one of them are refused. For holders of the write lock.
    pub(crate) fn begin_cut(&self, last: OpTimeAndWallTime) {
        self.recent.lock().clear();
        self.change(|log| log.cut(last));
    }

    /// The log ends here, durably, and the view shows the data that belongs to it. For holders of
    /// the write lock.
    pub(crate) fn end_cut(&self, last: OpTimeAndWallTime, view: Option<Arc<Moment>>) {
        self.recent.lock().clear();
        self.change(|log| {
            log.standing.last = last;
            log.flow.cut(last.op_time);
            log.durable = last;
            log.unsynced.clear();
            log.pending.clear();
            if let Some(view) = view {
                log.push_view(last.op_time, view);
            }
        });
    }

    /// The data at the last entry is as in this view, and earlier views no longer hold.
    pub(super) fn replace_views(&self, last: OpTime, view: Arc<Moment>) {
        self.change(|log| {
            log.pending.clear();
            log.standing.majority = OpTime::NULL;
            log.majority = None;
            log.push_view(last, view);
        });
    }

    pub(super) fn decide(&self, decided: Decided) {
        self.change(|log| {
            let Decided { term, rollback_id, commit_point, can_commit } = decided;
            log.flow.decide(commit_point.op_time, can_commit);
            log.standing = Standing { term, rollback_id, commit_point, ..log.standing };
            log.show_committed();
        });
    }

    pub(super) fn set_gate(&self, term: Option<Term>) {
        self.change(|log| log.standing.writable = term);
    }

    pub(super) fn synced(&self, sequence: CommitSequence) -> LogPositions {
        let mut log = self.log.lock();
        while let Some(&(commit, position)) = log.unsynced.front()
            && commit <= sequence
        {
            log.durable = position;
            log.unsynced.pop_front();
        }
        log.positions()
    }
}

impl Node {
    /// Where the log of this member stands; all zero without a set.
    pub fn standing(&self) -> Standing {
        self.replication().map(Replication::standing).unwrap_or_default()
    }

    /// What to call whenever the standing changes. Given once, before anything is written.
    pub fn on_standing(&self, listener: StandingListener) {
        if let Some(replication) = self.replication() {
            let first = replication.standing_listener.set(listener).is_ok();
            assert!(first, "one host drives a member");
        }
    }

    /// What the host has decided: published with the end of the log as one value.
    pub fn decide(&self, decided: Decided) {
        if let Some(replication) = self.replication() {
            replication.decide(decided);
        }
    }
}
