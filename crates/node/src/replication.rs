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
//! says. docs/replication-rules.md#oplog, #applying, #rollback.

mod apply;
mod clone;
mod copy_buffer;
mod entry;
mod facts;
mod flow;
mod oplog;
mod prefetch;
mod prepare;
mod recent;
mod role;
mod rollback;
mod standing;
mod trim;
mod writing;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use quorate_protocol::{
    Lock, MemberState, OpTimeAndWallTime, ReplicaSetConfig, ServerAddress, Term, TopologyVersion,
};
use quorate_replication::{MemberHello, NoopReason};
use quorate_storage::{Bytes, CommitSequence, KeyspaceId};

use self::recent::Recent;
use self::standing::Log;
use self::trim::Trimmed;
use crate::catalog::Ident;
use crate::context::{Client, Interrupt, Interruption, Now};
use crate::error::{CommandError, Result};
use crate::hello_replies::{HelloReplies, Told};
use crate::moments::Moment;
use crate::node::Node;
use crate::transactions::MAX_ENTRY_BYTES;

pub use apply::MAX_APPLY_ENTRIES;
pub use copy_buffer::CopyBuffer;
pub use entry::entry_position;
pub use oplog::OplogEntries;
pub use rollback::{RolledBack, Undo};
pub use standing::{Decided, MAX_PENDING_VIEWS, Standing, StandingListener};

pub(crate) use entry::{LoggedOperation, object_of, session_in};
pub(crate) use oplog::last_in;
pub use prefetch::IndexPrefetch;
pub(crate) use prefetch::PrefetchSetting;
pub use role::tells_of_state_change;
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
    /// Whether writes wait for a majority if neither they nor the set's defaults say otherwise.
    pub majority_by_default: bool,
    /// The addresses by which clients of other networks know the members.
    pub horizons: Horizons,
}

/// For each horizon, by which address it knows the member that others know by this one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Horizons(BTreeMap<String, BTreeMap<ServerAddress, ServerAddress>>);

impl Horizons {
    /// The horizons of a configuration, which has checked that all members have the same.
    pub fn of(config: &ReplicaSetConfig) -> Self {
        let mut horizons: BTreeMap<String, BTreeMap<_, _>> = BTreeMap::new();
        for member in &config.members {
            for (name, address) in &member.horizons {
                let horizon = horizons.entry(name.clone()).or_default();
                horizon.insert(member.host.clone(), address.clone());
            }
        }
        Self(horizons)
    }

    /// What a client sees: the horizon of the port that it came by, otherwise the one whose name for
    /// this member is the name that the client asked TLS for.
    pub(crate) fn seen_by(
        &self,
        client: &Client,
        me: Option<&ServerAddress>,
    ) -> Option<&BTreeMap<ServerAddress, ServerAddress>> {
        if let Some(horizon) = &client.horizon {
            return self.0.get(horizon);
        }
        let (called, me) = (client.server_name.as_deref()?, me?);
        self.0.values().find(|horizon| horizon.get(me).is_some_and(|own| own.host() == called))
    }
}

/// How far the log of this member is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogPositions {
    /// The last entry, which is also the last applied one.
    pub written: OpTimeAndWallTime,
    /// The last entry that survives a crash.
    pub durable: OpTimeAndWallTime,
}

/// The origin of the entries of an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Author {
    /// A client of this member, or the member itself. The server has to force them to disk.
    Here,
    /// Another member. The applier forces them to disk, many at once.
    Elsewhere,
}

/// Called after appends, by the thread that made them: must not block. Threads may call it in another order than that
/// of their entries.
pub type AppendListener = Box<dyn Fn(OpTimeAndWallTime, Author) + Send + Sync>;

/// Learns why the store has stopped writing.
pub type FailureListener = Box<dyn Fn(&str) + Send + Sync>;

pub(crate) struct Replication {
    /// Facts and undo rows.
    pub(crate) keyspace: KeyspaceId,
    /// The records of `local.oplog.rs`, by timestamp.
    pub(crate) oplog: Ident,
    published: RwLock<Option<Arc<Published>>>,
    /// What clients were told of it last.
    pub(crate) hello_replies: HelloReplies,
    /// The writes under way, which end early when the member steps down.
    writers: Lock<Vec<Arc<Interrupt>>>,
    /// What is read ahead of applying.
    pub(crate) prefetch: PrefetchSetting,
    /// Batches of so many entries or more are prepared by threads.
    prepares_from: AtomicUsize,
    /// The most bytes of a transaction's operations in one entry.
    pub(crate) transaction_entry_bytes: AtomicUsize,
    /// Whether clients' connections end when the member steps down.
    pub(crate) closes_on_step_down: AtomicBool,
    /// For how long entries are kept, however many there are.
    min_retention: Lock<Duration>,
    /// Where the log stands. Its end and writability change under the write lock only.
    log: Lock<Log>,
    /// The time of its last entry, for reads that need to know no more.
    newest: AtomicU64,
    /// The newest entries, so that a follower near the end of the log needs no reads from the store.
    recent: Lock<Recent>,
    /// The commit point that was stored last.
    kept_commit_point: Lock<OpTimeAndWallTime>,
    /// How far undo rows and images were removed.
    pub(crate) trimmed: Trimmed,
    /// Unique indexes of a copy that is not consistent yet, by the collection's uuid.
    deferred_indexes: Lock<Vec<(bson::Binary, bson::Document)>>,
    /// Collections of a copy that are not known to be copied whole.
    partial_copies: Lock<Vec<bson::Binary>>,
    /// Collections that the log renames and the copy does not hold. The log has to drop them, or the copy lacks them.
    missing_copies: Lock<Vec<bson::Binary>>,
    listener: OnceLock<AppendListener>,
    standing_listener: OnceLock<StandingListener>,
    failure_listener: OnceLock<FailureListener>,
}

impl Replication {
    /// The term in which a client's write is logged.
    pub(crate) fn writable_term(&self) -> Option<Term> {
        self.standing().writable
    }

    pub(crate) fn commit_point(&self) -> OpTimeAndWallTime {
        self.standing().commit_point
    }

    /// A write failed: what the disk holds is unknown.
    pub(crate) fn tell_disk_failed(&self, why: &str) {
        if let Some(listener) = self.failure_listener.get() {
            listener(why);
        }
    }

    /// Notes a write under way, until the guard is dropped.
    pub(crate) fn writer_runs(&self, interrupt: &Arc<Interrupt>) -> RunningWriter<'_> {
        self.writers.lock().push(Arc::clone(interrupt));
        RunningWriter { replication: self, interrupt: Arc::clone(interrupt) }
    }

    fn prepares_from(&self) -> usize {
        self.prepares_from.load(Ordering::Relaxed)
    }

    pub(crate) fn min_retention(&self) -> Duration {
        *self.min_retention.lock()
    }

    pub(crate) fn set_min_retention(&self, retention: Duration) {
        *self.min_retention.lock() = retention;
    }

    /// Whether this commit point is not the one that was stored last. Notes it as stored.
    fn is_commit_point_news(&self, committed: OpTimeAndWallTime) -> bool {
        std::mem::replace(&mut *self.kept_commit_point.lock(), committed) != committed
    }

    /// The log has grown by these entries, in this commit, after which the data is as in this view.
    /// For holders of the write lock.
    pub(crate) fn appended(
        &self,
        sequence: CommitSequence,
        entries: Vec<(OpTimeAndWallTime, Bytes)>,
        view: Arc<Moment>,
    ) {
        let Some(last) = entries.last().map(|(position, _)| *position) else { return };
        let bytes = entries.iter().map(|(_, entry)| entry.len() as u64).sum();
        let first = entries[0].0;
        self.recent.lock().extend(entries);
        self.grown(sequence, first, last, bytes, view);
    }

    /// Tells the host of entries that were appended, the last of which is this.
    pub(crate) fn tell_appended(&self, last: OpTimeAndWallTime, author: Author) {
        if let Some(listener) = self.listener.get() {
            listener(last, author);
        }
    }

    /// Whether writers are slowed while a majority falls behind.
    pub(crate) fn has_flow_control(&self) -> bool {
        self.log.lock().flow.is_enabled()
    }

    pub(crate) fn set_flow_control(&self, enabled: bool) {
        self.log.lock().flow.set_enabled(enabled);
    }

    /// The oplog may have so many bytes.
    pub(crate) fn set_oplog_size(&self, bytes: u64) {
        self.log.lock().flow.set_oplog_size(bytes);
    }

    /// `flowControl` of `serverStatus`.
    pub(crate) fn flow_statistics(&self, now: Now) -> bson::Document {
        self.log.lock().flow.statistics(now)
    }

    pub(crate) fn published(&self) -> Option<Arc<Published>> {
        self.published.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What a `hello` tells of the member.
    pub(crate) fn told(&self) -> Option<Told> {
        Some(Told { published: self.published()?, standing: self.standing() })
    }
}

/// A write under way.
pub(crate) struct RunningWriter<'a> {
    replication: &'a Replication,
    interrupt: Arc<Interrupt>,
}

impl Drop for RunningWriter<'_> {
    fn drop(&mut self) {
        self.replication.writers.lock().retain(|known| !Arc::ptr_eq(known, &self.interrupt));
    }
}

impl Node {
    /// Makes this a member of a set, and says what it remembers, before it serves clients: from now on every write is logged and
    /// only allowed while [`set_writable`](Self::set_writable) says so.
    ///
    /// # Errors
    ///
    /// If the store fails or what it holds is damaged.
    pub fn join_replica_set(&self, now: Now) -> Result<quorate_replication::Recovered> {
        let keyspace = self.store().create_keyspace("replication")?;
        let oplog = self.oplog().ok_or_else(|| {
            fail!(
                ILLEGAL_OPERATION,
                "a member of a replica set keeps a history; open it with a size for that"
            )
        })?;
        self.drop_copy_buffer()?;
        let last = oplog::last_position(self, oplog)?;
        let replication = Replication {
            keyspace,
            oplog,
            published: RwLock::new(None),
            hello_replies: HelloReplies::default(),
            writers: Lock::default(),
            prefetch: PrefetchSetting::new(self.options().index_prefetch),
            prepares_from: AtomicUsize::new(prepare::MIN_ENTRIES),
            transaction_entry_bytes: AtomicUsize::new(MAX_ENTRY_BYTES),
            closes_on_step_down: AtomicBool::new(false),
            min_retention: Lock::new(facts::min_retention(self, keyspace)?),
            log: Lock::default(),
            newest: AtomicU64::default(),
            recent: Lock::default(),
            kept_commit_point: Lock::default(),
            trimmed: Trimmed::default(),
            deferred_indexes: Lock::default(),
            partial_copies: Lock::default(),
            missing_copies: Lock::default(),
            listener: OnceLock::new(),
            standing_listener: OnceLock::new(),
            failure_listener: OnceLock::new(),
        };
        let recovered = {
            let mut writer = self.write(now);
            replication.end_cut(last, Some(writer.moment(last.op_time)));
            writer.advance_timestamp(last.op_time.timestamp);
            let recovered = facts::recover(self, keyspace, last)?;
            writer.show_facts(&recovered)?;
            recovered
        };
        refuse_if!(!self.set_replication(replication) => ILLEGAL_OPERATION,
            "this member has joined a replica set before; open it again");
        Ok(recovered)
    }

    /// What to call after every append. Given once.
    pub fn on_append(&self, listener: AppendListener) {
        if let Some(replication) = self.replication() {
            // A second listener would mean two hosts.
            assert!(replication.listener.set(listener).is_ok(), "one host drives a member");
        }
    }

    /// What to call when the store has stopped writing, from under the write lock. Given once.
    pub fn on_disk_failure(&self, listener: FailureListener) {
        if let Some(replication) = self.replication() {
            let first = replication.failure_listener.set(listener).is_ok();
            assert!(first, "one host drives a member");
        }
    }

    /// Opens or closes the log for clients' writes. Returns when no earlier write is in
    /// flight: long ones are interrupted, with the error that tells their clients to go to the new primary.
    pub fn set_writable(&self, term: Option<Term>, now: Now) {
        let Some(replication) = self.replication() else { return };
        if term.is_none() {
            for writer in replication.writers.lock().iter() {
                writer.set(Interruption::StateChange);
            }
        }
        let mut writer = self.write(now);
        writer.forget_transactions();
        replication.set_gate(term);
    }

    /// How long a client's write that comes now is held back, because a majority has fallen behind.
    pub fn write_pause(&self, now: Now) -> Duration {
        self.replication().map_or(Duration::ZERO, |known| known.log.lock().flow.pause(now))
    }

    /// Whether the server is to close the connections of clients when the member steps down.
    pub fn closes_connections_on_step_down(&self) -> bool {
        self.replication().is_some_and(|known| known.closes_on_step_down.load(Ordering::Relaxed))
    }

    /// Shows this to clients from now on. The caller wakes waiting `hello` commands.
    pub fn publish(&self, published: Published) {
        if let Some(replication) = self.replication() {
            *replication.published.write().unwrap_or_else(PoisonError::into_inner) =
                Some(Arc::new(published));
        }
    }

    /// How far the log is.
    pub fn log_positions(&self) -> LogPositions {
        self.replication().map(|known| known.log.lock().positions()).unwrap_or_default()
    }

    /// Forces everything committed so far to disk and says how far the log is. Blocks.
    ///
    /// # Errors
    ///
    /// If the disk fails.
    pub fn sync_log(&self) -> Result<LogPositions> {
        let (committed, _) = self.durability();
        self.sync_through(committed)?;
        Ok(self.replication().map(|known| known.synced(committed)).unwrap_or_default())
    }

    /// Appends an entry that changes nothing, as a client's write would be: a member that sees it
    /// acknowledged knows that this member is the primary.
    ///
    /// # Errors
    ///
    /// If this member takes no writes, or the store fails.
    pub fn append_proof(&self, now: Now) -> Result<OpTimeAndWallTime> {
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
    ) -> Result<OpTimeAndWallTime> {
        let message = match reason {
            NoopReason::NewPrimary => "new primary",
            NoopReason::Periodic => "periodic noop",
        };
        let mut writer = self.write(now);
        if reason == NoopReason::NewPrimary {
            writer.abort_unfinished_chain(term)?;
        }
        let position = writer.append_noop(message, term)?;
        if reason == NoopReason::NewPrimary {
            writer.log_state.write_as(Some(term));
            let dropped = writer.drop_side_collections();
            writer.log_state.write_as(None);
            dropped?;
        }
        Ok(position)
    }
}

/// The error for a write where none may happen.
pub(crate) fn not_writable() -> CommandError {
    fail!(NOT_WRITABLE_PRIMARY, "not primary")
}
