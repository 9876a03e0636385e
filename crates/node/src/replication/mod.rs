//! What a member of a replica set keeps besides its data: the oplog, a few facts, and how to undo.
//!
//! ```text
//!   client's write ─▶ Writer ─▶ one batch: document, index entries, oplog entry, undo row
//!   copied entries ─▶ apply  ─▶ the same, with the entry as its primary wrote it
//! ```
//!
//! Owns the order of entries, what is persisted for `quorate-replication`, and which commands may
//! run in which state. It decides nothing about the set: a host drives a
//! [`quorate_replication::Member`] and tells this module whether clients may write
//! ([`Node::set_writable`]) and what to show ([`Node::publish`]).
//!
//! An entry and its effect are one atomic batch, so after a crash the data is exactly what the oplog
//! says. Digest §7, §9, §11.

mod apply;
mod clone;
mod facts;
mod oplog;
mod recent;
mod role;
mod rollback;
mod writing;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

use quorate_protocol::{MemberState, OpTimeAndWallTime, Term, TopologyVersion};
use quorate_replication::{MemberHello, NoopReason};
use quorate_storage::{Bytes, CommitSequence, KeyspaceId};

use crate::catalog::Ident;
use crate::context::Now;
use crate::error::{CommandError, ErrorCode};
use crate::node::Node;

pub use apply::MAX_APPLY_ENTRIES;
pub use oplog::{OplogEntries, entry_position};
use recent::Recent;
pub use rollback::{RolledBack, Undo};

pub(crate) use role::{append_hello, check_role};
pub(crate) use rollback::takes_back;
pub(crate) use writing::{Commit, LogState};

/// Commits whose position is remembered until they are on disk. One more only delays the report of
/// the ones before it.
const MAX_UNSYNCED: usize = 65_536;

/// What a member shows to clients and decides commands by. Replaced as a whole by the host.
#[derive(Clone, Debug)]
pub struct Published {
    /// The reply to `hello`, without what belongs to the process or moves with every write.
    pub hello: MemberHello,
    /// `topologyVersion`.
    pub topology_version: TopologyVersion,
    /// The state.
    pub state: MemberState,
    /// Whether clients may write.
    pub writable: bool,
}

/// How far the log of this member is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogPositions {
    /// The last entry, which is also the last applied one.
    pub written: OpTimeAndWallTime,
    /// The last entry that survives a crash.
    pub durable: OpTimeAndWallTime,
}

/// Who wrote the entries of an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Author {
    /// A client of this member, or the member itself. Somebody has to force them to disk.
    Here,
    /// Another member. Whoever applies them forces them to disk, many at once.
    Elsewhere,
}

/// Called after every append, under the write lock: must not block.
pub type AppendListener = Box<dyn Fn(OpTimeAndWallTime, Author) + Send + Sync>;

pub(crate) struct Replication {
    /// Facts and undo rows.
    pub(crate) keyspace: KeyspaceId,
    /// The records of `local.oplog.rs`, by timestamp.
    pub(crate) oplog: Ident,
    published: RwLock<Option<Arc<Published>>>,
    /// The term in which clients may write. Changed under the write lock only.
    gate: Mutex<Option<Term>>,
    log: Mutex<Log>,
    /// The newest entries, so that those who follow closely need not read the store.
    recent: Mutex<Recent>,
    commit_point: Mutex<OpTimeAndWallTime>,
    listener: OnceLock<AppendListener>,
}

#[derive(Default)]
struct Log {
    positions: LogPositions,
    unsynced: VecDeque<(CommitSequence, OpTimeAndWallTime)>,
}

impl Replication {
    /// The term in which a client's write is logged.
    pub(crate) fn writable_term(&self) -> Option<Term> {
        *guard(&self.gate)
    }

    pub(crate) fn last(&self) -> OpTimeAndWallTime {
        guard(&self.log).positions.written
    }

    pub(crate) fn commit_point(&self) -> OpTimeAndWallTime {
        *guard(&self.commit_point)
    }

    /// The log has grown by these entries, in this commit. For holders of the write lock.
    pub(crate) fn appended(
        &self,
        sequence: CommitSequence,
        entries: Vec<(OpTimeAndWallTime, Bytes)>,
        author: Author,
    ) {
        let Some(last) = entries.last().map(|(position, _)| *position) else { return };
        guard(&self.recent).extend(entries);
        let mut log = guard(&self.log);
        log.positions.written = last;
        if log.unsynced.len() >= MAX_UNSYNCED {
            log.unsynced.pop_back();
        }
        log.unsynced.push_back((sequence, last));
        drop(log);
        if let Some(listener) = self.listener.get() {
            listener(last, author);
        }
    }

    /// The log was cut or replaced, durably. For holders of the write lock.
    pub(crate) fn reset(&self, last: OpTimeAndWallTime) {
        guard(&self.recent).clear();
        let mut log = guard(&self.log);
        log.unsynced.clear();
        log.positions = LogPositions { written: last, durable: last };
    }

    fn synced(&self, sequence: CommitSequence) -> LogPositions {
        let mut log = guard(&self.log);
        while let Some(&(commit, position)) = log.unsynced.front()
            && commit <= sequence
        {
            log.positions.durable = position;
            log.unsynced.pop_front();
        }
        log.positions
    }

    pub(crate) fn published(&self) -> Option<Arc<Published>> {
        self.published.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Node {
    /// Makes this a member of a set, and says what it remembers, before it serves anybody: from now on every write is logged and
    /// only allowed while [`set_writable`](Self::set_writable) says so.
    ///
    /// # Errors
    ///
    /// If the store fails or what it holds is damaged.
    pub fn join_replica_set(
        &self,
        now: Now,
    ) -> Result<quorate_replication::Recovered, CommandError> {
        let keyspace = self.store().create_keyspace("replication")?;
        let oplog = self.oplog().ok_or_else(|| {
            CommandError::new(
                ErrorCode::ILLEGAL_OPERATION,
                "a member of a replica set keeps a history; open it with a size for that",
            )
        })?;
        let last = oplog::last_position(self, oplog)?;
        let replication = Replication {
            keyspace,
            oplog,
            published: RwLock::new(None),
            gate: Mutex::new(None),
            log: Mutex::default(),
            recent: Mutex::default(),
            commit_point: Mutex::default(),
            listener: OnceLock::new(),
        };
        replication.reset(last);
        self.write(now).advance_timestamp(last.op_time.timestamp);
        let recovered = facts::recover(self, keyspace, last)?;
        if !self.set_replication(replication) {
            return Err(CommandError::new(
                ErrorCode::ILLEGAL_OPERATION,
                "this member has joined a replica set before; open it again",
            ));
        }
        Ok(recovered)
    }

    /// What to call after every append. Given once.
    pub fn on_append(&self, listener: AppendListener) {
        if let Some(replication) = self.replication() {
            // A second listener would mean two hosts.
            assert!(replication.listener.set(listener).is_ok(), "one host drives a member");
        }
    }

    /// Opens or closes the log for clients' writes. Returns when no write of before is under way.
    pub fn set_writable(&self, term: Option<Term>, now: Now) {
        let Some(replication) = self.replication() else { return };
        let _no_writer = self.write(now);
        *guard(&replication.gate) = term;
    }

    /// Shows this to clients from now on. The caller wakes waiting `hello` commands.
    pub fn publish(&self, published: Published) {
        if let Some(replication) = self.replication() {
            *replication.published.write().unwrap_or_else(PoisonError::into_inner) =
                Some(Arc::new(published));
        }
    }

    /// The newest entry that no election can lose.
    pub fn set_commit_point(&self, commit_point: OpTimeAndWallTime) {
        if let Some(replication) = self.replication() {
            *guard(&replication.commit_point) = commit_point;
        }
    }

    /// How far the log is.
    pub fn log_positions(&self) -> LogPositions {
        self.replication().map(|known| guard(&known.log).positions).unwrap_or_default()
    }

    /// Forces everything committed so far to disk and says how far the log is. Blocks.
    ///
    /// # Errors
    ///
    /// If the disk fails.
    pub fn sync_log(&self) -> Result<LogPositions, CommandError> {
        let (committed, _) = self.durability();
        self.sync_through(committed)?;
        Ok(self.replication().map(|known| known.synced(committed)).unwrap_or_default())
    }

    /// Appends an entry that changes nothing, as a client's write would be: whoever sees it
    /// acknowledged knows that this member is the primary.
    ///
    /// # Errors
    ///
    /// If this member takes no writes, or the store fails.
    pub fn append_proof(&self, now: Now) -> Result<OpTimeAndWallTime, CommandError> {
        let mut writer = self.write(now);
        writer.log_noop("linearizable read")?;
        Ok(self.log_positions().written)
    }

    /// Appends an entry that changes nothing.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub fn append_noop(
        &self,
        reason: NoopReason,
        term: Term,
        now: Now,
    ) -> Result<OpTimeAndWallTime, CommandError> {
        let message = match reason {
            NoopReason::NewPrimary => "new primary",
            NoopReason::Periodic => "periodic noop",
        };
        self.write(now).append_noop(message, term)
    }
}

fn guard<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The error for a write where none may happen.
pub(crate) fn not_writable() -> CommandError {
    CommandError::new(ErrorCode::NOT_WRITABLE_PRIMARY, "not primary")
}
