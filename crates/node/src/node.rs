//! One member as a plain value.
//!
//! Owns the parts that commands share: the store, the catalog in memory, the write lock, cursors,
//! sessions and fail points. There are no sockets and no clock here: the caller passes
//! the time in a [`Context`], and waits for disks and events on the member's behalf.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use bson::RawDocumentBuf;
use bson::oid::ObjectId;
use quorate_authentication::KeyFile;
use quorate_authentication::scram::StoredCredentials;
use quorate_protocol::{Lock, MonotonicTime, Timestamp, TopologyVersion};
use quorate_query::ProcessMemory;
use quorate_storage::{
    Batch, Bytes, CommitError, CommitSequence, Damage, KeyRange, KeyspaceId, Snapshot, Store,
};
use sha2::{Digest, Sha256};

use crate::body::CommandBody;
use crate::catalog::{Catalog, Collection, Ident};
use crate::change_stream::Feed;
use crate::commands::StreamedHello;
use crate::context::{Client, Command, Context, Now, Outcome, Reply};
use crate::counters::Counters;
use crate::cursors::Cursors;
use crate::default_concerns::DefaultsCache;
use crate::dispatch;
use crate::error::{CommandError, Result};
use crate::fail_points::{FailPoints, Injection, MachineFaults};
use crate::generator::Generator;
use crate::index_sizes::IndexSizes;
use crate::moments::{Moment, Moments, not_committed, not_kept};
use crate::namespace::Names;
use crate::operations::{Connected, Operations, Progress, Registered};
use crate::places::Places;
use crate::profile::Profiler;
use crate::records::{Keyspaces, View};
use crate::replication::{self, IndexPrefetch, Replication};
use crate::scheduling::LongWrite;
use crate::scratch::Scratch;
use crate::sessions::{SessionId, Sessions};
use crate::transactions::{self, ChangedRows, EndQueue, KnownRows};
use crate::usage::Usage;
use crate::users::{Mechanism, scram_refused};
use crate::writer::{WriteLock, Writer, WriterState, oplog_namespace};

/// How far ahead of the clock a cluster time may be; the manual's
/// `maxAcceptableLogicalClockDriftSecs`.
pub(crate) const MAX_CLOCK_DRIFT_SECS: i64 = 31_536_000;

/// The options of a member, fixed at its start.
#[derive(Clone, Debug, Default)]
pub struct NodeOptions {
    /// Where identifiers come from. The same seed gives the same identifiers.
    pub seed: u64,
    /// The address under which clients reach it.
    pub host: String,
    /// The compressors it offers, best first.
    pub compressors: Vec<String>,
    /// Whether clients must log in, and may do only what their roles allow.
    pub authentication: bool,
    /// The secrets by which other members of the set prove who they are.
    pub member_keys: Vec<KeyFile>,
    /// How many bytes of history to keep; `None` for a member without a set, which keeps none.
    pub oplog_bytes: Option<u64>,
    /// Where sorts put what they cannot hold in memory; without it they fail at their limit.
    pub scratch: Option<Arc<dyn Scratch>>,
    /// Whether the commands that are for tests can be run: fail points.
    pub test_commands: bool,
    /// The most connections it is meant to have, for `serverStatus`.
    pub max_connections: usize,
    /// What is read ahead of applying, until `setParameter` says otherwise.
    pub index_prefetch: IndexPrefetch,
    /// The allocator of the program, where it is known.
    pub allocator: Option<&'static str>,
    /// Runs what keeps its thread for long: a write that waits for a transaction to end. A host whose
    /// threads serve many clients lets another thread take over meanwhile.
    pub block: Block,
}

/// How a host runs what keeps its thread for long.
#[derive(Clone, Copy, Debug)]
pub struct Block(pub fn(&mut dyn FnMut()));

impl Default for Block {
    fn default() -> Self {
        Self(|run| run())
    }
}

/// A member. See the module's opening comment.
pub struct Node {
    store: Arc<dyn Store>,
    keyspaces: Keyspaces,
    places: Arc<Places>,
    catalog: RwLock<Arc<Catalog>>,
    writer: WriteLock,
    end_queue: EndQueue,
    cursors: Lock<Cursors>,
    moments: Lock<Moments>,
    sessions: Lock<Sessions>,
    known_rows: Lock<KnownRows>,
    fail_points: Lock<FailPoints>,
    operations: Arc<Operations>,
    options: NodeOptions,
    started: Now,
    process_id: ObjectId,
    topology_counter: AtomicI64,
    /// Seeds for what commands draw, such as `$sample`. Apart from the write lock.
    seeds: Lock<Generator>,
    oplog: Option<Ident>,
    /// Keeps nonces and salts from being derived from the identifiers that clients see.
    secret: [u8; 32],
    /// What other members' proofs are checked against, all with one salt.
    member_credentials: Vec<StoredCredentials>,
    /// What a member of a set keeps besides its data and its history.
    replication: OnceLock<Replication>,
    defaults: DefaultsCache,
    counters: Counters,
    index_sizes: IndexSizes,
    profiler: Profiler,
    /// A time that others have seen, which new entries come after.
    cluster_time: AtomicU64,
    /// The memory that the operations of clients share.
    memory: Arc<ProcessMemory>,
    /// The newest committed entries, for change streams.
    change_feed: Feed,
    /// How often writes were locked out, less how often that was ended.
    write_locks: AtomicU64,
    /// Writes that run aside and may hold the write lock for long.
    long_writes: AtomicUsize,
    /// Whether there is no room for what clients want to add.
    disk_full: AtomicBool,
    usage: Usage,
    disk_room: Lock<Option<DiskRoom>>,
}

/// How much room a disk has, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskRoom {
    /// What it holds when it is full.
    pub total: u64,
    /// What can still be added.
    pub free: u64,
}

impl Node {
    /// Opens a member over a store, which may be empty.
    ///
    /// # Errors
    ///
    /// If the store cannot be read or its catalog is damaged.
    pub fn open(store: Arc<dyn Store>, options: NodeOptions, now: Now) -> Result<Self> {
        let mut keyspaces = Keyspaces {
            catalog: store.create_keyspace("catalog")?,
            records: store.create_keyspace("records")?,
            indexes: store.create_keyspace("indexes")?,
            sessions: store.create_keyspace("sessions")?,
            oplog: store.create_log("oplog")?,
            history: None,
        };
        let catalog = Catalog::load(&*store.snapshot(), keyspaces.catalog)?;
        keyspaces.history = catalog.get(&oplog_namespace()).map(|oplog| oplog.ident);
        let mut generator = Generator::new(options.seed);
        let process_id = generator.object_id(now.wall);
        let cursor_seed = generator.next_u64();
        let secret = Sha256::digest(options.seed.to_be_bytes()).into();
        let mut node = Self {
            store,
            keyspaces,
            places: Arc::default(),
            catalog: RwLock::new(Arc::new(catalog)),
            writer: WriteLock::new(WriterState::new(generator.next_u64())),
            end_queue: EndQueue::default(),
            cursors: Lock::new(Cursors::new(cursor_seed)),
            moments: Lock::default(),
            sessions: Lock::default(),
            known_rows: Lock::default(),
            fail_points: Lock::default(),
            operations: Arc::default(),
            options,
            started: now,
            process_id,
            topology_counter: AtomicI64::new(0),
            seeds: Lock::new(Generator::new(generator.next_u64())),
            oplog: None,
            secret,
            member_credentials: Vec::new(),
            replication: OnceLock::new(),
            defaults: DefaultsCache::new(now.wall),
            counters: Counters::default(),
            index_sizes: IndexSizes::default(),
            profiler: Profiler::default(),
            cluster_time: AtomicU64::new(0),
            memory: Arc::default(),
            change_feed: Feed::default(),
            write_locks: AtomicU64::new(0),
            long_writes: AtomicUsize::new(0),
            disk_full: AtomicBool::new(false),
            usage: Usage::default(),
            disk_room: Lock::default(),
        };
        node.write(now).note_dropped_before();
        let salt = node.random_bytes(Mechanism::ScramSha256.salt_length());
        for key in &node.options.member_keys {
            let credentials = key.stored_credentials(salt.clone()).map_err(scram_refused)?;
            node.member_credentials.push(credentials);
        }
        if let Some(oplog) = node.keyspaces.history {
            node.write(now).move_history(oplog)?;
        }
        if let Some(bytes) = node.options.oplog_bytes {
            let mut writer = node.write(now);
            let oplog = match writer.collection(&oplog_namespace()) {
                Some(oplog) => oplog.ident,
                None => {
                    writer.clear_history()?;
                    writer.create_oplog(bytes)?.ident
                }
            };
            drop(writer);
            node.keyspaces.history = Some(oplog);
            node.oplog = Some(oplog);
            node.write(now).resume_timestamps(oplog)?;
        } else if node.keyspaces.history.is_none() {
            // In a set the primary does that.
            node.write(now).drop_side_collections()?;
        }
        Ok(node)
    }

    /// Runs a command. Errors become replies with `ok: 0`.
    pub fn run(&self, context: &Context, command: Command) -> Outcome {
        dispatch::run(self, context, command)
    }

    /// What a command is for, if that is all that its client asks.
    pub fn help(&self, command: &Command) -> Option<RawDocumentBuf> {
        dispatch::help(self, command)
    }

    /// How long a command may take: what its client allows, or for `getMore` what the command that
    /// opened the cursor has left of it.
    pub fn time_left(&self, command: &Command) -> Option<Duration> {
        match command.body.get("getMore") {
            Some(bson::Bson::Int64(id)) => self.cursors.lock().time_left(*id),
            _ => command.max_time(),
        }
    }

    /// Leaves the rest of a command's time to the cursor that its reply has opened or used.
    pub fn keep_time_left(&self, reply: &Reply, left: Duration) {
        let cursor = reply.body.get_document("cursor");
        if let Ok(id) = cursor.and_then(|cursor| cursor.get_i64("id")) {
            self.cursors.lock().keep_time_left(id, left);
        }
    }

    /// Notes that a command is in progress, until the value is dropped.
    pub fn register(&self, context: &Context, command: &Command) -> Registered {
        // A command that sets the level of the profiler is recorded by the level before it.
        let switches = command.name() == "profile";
        let precedes_profile = switches && self.profiler.lock().of(command.database()).level == 0;
        self.operations.register(context, command, precedes_profile)
    }

    /// Counts a connection, until the value is dropped.
    pub fn count_connection(&self) -> Connected {
        self.operations.count_connection()
    }

    /// The commands in progress that say how far they are.
    pub fn progress(&self) -> Vec<Progress> {
        self.operations.progress()
    }

    /// Counts a message that came, of so many bytes.
    pub fn count_received(&self, bytes: usize) {
        self.counters.received(bytes);
    }

    /// Counts a message that went, of so many bytes.
    pub fn count_sent(&self, bytes: usize) {
        self.counters.sent(bytes);
    }

    /// Entries written from now on come after this time, which a client has seen elsewhere.
    ///
    /// # Errors
    ///
    /// If it is so far ahead of the clock that the client cannot be right.
    pub fn advance_cluster_time(&self, seen: Timestamp, now: Now) -> Result<()> {
        let latest = now.wall.as_millis() / 1000 + MAX_CLOCK_DRIFT_SECS;
        refuse_if!(i64::from(seen.seconds) > latest => CLUSTER_TIME_FAILS_RATE_LIMITER,
            "New cluster time, {}, is too far from this node's wall clock time, {}",
            seen.seconds, now.wall.as_millis() / 1000);
        self.cluster_time.fetch_max(seen.as_u64(), Ordering::Relaxed);
        Ok(())
    }

    /// The newest time that others told of.
    pub fn cluster_time(&self) -> Timestamp {
        Timestamp::from_u64(self.cluster_time.load(Ordering::Relaxed))
    }

    /// The newest time that a member of a set knows of, which its clients are told as well. None without a set, or
    /// before anything has happened in it.
    pub fn newest_time(&self) -> Option<Timestamp> {
        let own = self.replication()?.newest();
        (own != Timestamp::default()).then(|| own.max(self.cluster_time()))
    }

    /// Says how often writes are locked out now, which the server enforces.
    pub fn show_write_locks(&self, locks: u64) {
        self.write_locks.store(locks, Ordering::Relaxed);
    }

    /// Says whether the disk is full: then commands that add something are refused.
    pub fn set_disk_full(&self, full: bool) {
        self.disk_full.store(full, Ordering::Relaxed);
        self.store.set_short_of_room(full);
    }

    /// Whether the disk is full.
    pub fn disk_is_full(&self) -> bool {
        self.disk_full.load(Ordering::Relaxed)
    }

    /// Gives back what removed documents hold on the disk, with at most this many bytes on the way, until it is
    /// told to stop. Returns how much. Blocks the calling thread for long.
    ///
    /// # Errors
    ///
    /// If the store has failed, or even this finds no room.
    pub fn reclaim_room(&self, room: u64, stops: &dyn Fn() -> bool) -> Result<u64> {
        Ok(self.store.reclaim(room, stops)?)
    }

    /// Tells how much room there is on the disk where the data is.
    pub fn set_disk_room(&self, room: DiskRoom) {
        *self.disk_room.lock() = Some(room);
    }

    pub(crate) fn disk_room(&self) -> Option<DiskRoom> {
        *self.disk_room.lock()
    }

    pub(crate) fn write_locks(&self) -> u64 {
        self.write_locks.load(Ordering::Relaxed)
    }

    /// Counts a long write, until the value is dropped.
    pub(crate) fn long_write_runs(&self) -> LongWrite<'_> {
        LongWrite::begin(&self.long_writes)
    }

    pub(crate) fn has_long_writes(&self) -> bool {
        self.long_writes.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    pub(crate) fn index_sizes(&self) -> &IndexSizes {
        &self.index_sizes
    }

    pub(crate) fn profiler(&self) -> &Profiler {
        &self.profiler
    }

    pub(crate) fn operations(&self) -> &Operations {
        &self.operations
    }

    /// Refuses a command that the client may not run, for shells that answer it themselves.
    ///
    /// # Errors
    ///
    /// If there is no such command, the client's roles do not allow it, or it is a statement of a transaction
    /// and never a part of one.
    pub fn authorize(&self, client: &Client, command: &Command) -> Result<()> {
        let facts = dispatch::admit(self, client, command)?;
        transactions::check_part(facts, command)
    }

    /// Refuses a client that has not proved to be another member of the set.
    ///
    /// # Errors
    ///
    /// If logins are asked for and the client's is not that of a member.
    pub fn authorize_member(&self, client: &Client) -> Result<()> {
        crate::users::check_member(self, client)
    }

    /// What an active fail point does to this command. Counts the command against its limit.
    pub fn intercept(&self, context: &Context, command: &Command) -> Option<Injection> {
        if !self.options.test_commands {
            return None;
        }
        let is_limited = || self.time_left(command).is_some();
        self.fail_points.lock().intercept(context, command, is_limited)
    }

    /// Whether a fail point may do something to a command.
    pub fn may_intercept(&self) -> bool {
        self.fail_points.lock().may_intercept()
    }

    /// How to answer a `hello` again in a stream of replies; none if it is to be run each time.
    pub fn streamed_hello(&self, command: &Command) -> Option<StreamedHello> {
        StreamedHello::of(command)
    }

    /// The next reply of a stream, and the topology version that it tells. None if no client has been
    /// answered in this form since the state changed: the command is to be run then.
    pub fn repeat_hello(
        &self,
        hello: &StreamedHello,
        client: &Client,
        now: Now,
    ) -> Option<(RawDocumentBuf, TopologyVersion)> {
        hello.reply(self, client, now)
    }

    /// Whether a fail point ends the connection of the command that this session has just run.
    pub fn take_cut_off(&self, command: &CommandBody) -> bool {
        self.fail_points.lock().take_cut_off(command)
    }

    /// Whether a fail point keeps this member from copying what others write.
    pub fn copying_is_stopped(&self) -> bool {
        self.fail_points.lock().copying_is_stopped()
    }

    /// What fail points do to the machine under this member.
    pub fn machine_faults(&self) -> MachineFaults {
        self.fail_points.lock().machine()
    }

    /// Sees to it that all commits up to this one survive the end of the process. Returns how many commits were written for
    /// that: none if they were before.
    ///
    /// # Errors
    ///
    /// If the disk failed, now or earlier. The store takes no more writes then.
    pub fn write_out_through(&self, sequence: CommitSequence) -> Result<u64> {
        Ok(self.store.write_out_through(sequence)?)
    }

    /// Blocks until a commit would survive a crash.
    ///
    /// # Errors
    ///
    /// If the disk failed, now or earlier. The store takes no more writes then.
    pub fn sync_through(&self, sequence: CommitSequence) -> Result<()> {
        Ok(self.store.sync_through(sequence)?)
    }

    /// The newest commit and the newest that would survive a crash.
    pub fn durability(&self) -> (CommitSequence, CommitSequence) {
        (self.store.last_committed(), self.store.last_synced())
    }

    /// How many commits and syncs there have been.
    pub fn store_statistics(&self) -> quorate_storage::StoreStatistics {
        self.store.statistics()
    }

    /// Background work that is due: cursors and sessions time out, expired documents and the keys
    /// of dropped collections go. Returns whether there is more to do at once.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub fn maintain(&self, now: Now) -> Result<bool> {
        self.cursors.lock().expire(now.monotonic);
        self.moments.lock().expire(now.monotonic);
        let ended = self.end_idle_sessions(now.monotonic);
        let mut writer = self.write(now);
        writer.expire_transactions();
        if !ended.is_empty() {
            writer.end_transactions(|session| ended.contains(session));
        }
        let trimmed = self.oplog.is_some() && writer.trim_oplog()?;
        let forgotten = writer.trim_undo()? | writer.trim_images(now)?;
        let expired = writer.expire_session_rows()?;
        writer.keep_commit_point()?;
        Ok(writer.purge_step()? || trimmed || forgotten || expired)
    }

    /// Ends the sessions that were not used for too long, and the cursors of sessions that have ended. Says which
    /// sessions ended. A command may leave a cursor to a session that ended while it ran.
    fn end_idle_sessions(&self, now: MonotonicTime) -> BTreeSet<SessionId> {
        let mut sessions = self.sessions.lock();
        let ended = sessions.expire(now, || self.operations.sessions());
        self.cursors.lock().keep_sessions(|session| sessions.is_alive(session));
        ended
    }

    /// Removes the documents that TTL indexes say are too old. Returns how many went.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub fn remove_expired(&self, now: Now) -> Result<u64> {
        // On a member of a set that is the primary's to do.
        if self.replication().is_some_and(|known| known.writable_term().is_none()) {
            return Ok(0);
        }
        crate::ttl::remove_expired(self, now)
    }

    /// How often something changed that clients care about.
    pub fn topology_version(&self) -> TopologyVersion {
        if let Some(published) = self.replication().and_then(Replication::published) {
            return published.topology_version;
        }
        TopologyVersion {
            process_id: quorate_wire::object_id_from(self.process_id),
            counter: self.topology_counter.load(Ordering::SeqCst),
        }
    }

    /// Makes waiting `hello` commands answer. The caller wakes them.
    pub fn raise_topology_version(&self) {
        self.topology_counter.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn oplog(&self) -> Option<Ident> {
        self.oplog
    }

    /// The options that the member was started with.
    pub fn options(&self) -> &NodeOptions {
        &self.options
    }

    pub(crate) fn started(&self) -> Now {
        self.started
    }

    /// The memory that the operations of clients share.
    pub fn memory(&self) -> &Arc<ProcessMemory> {
        &self.memory
    }

    /// The data as a majority has it; none before anything is known to be committed.
    pub(crate) fn majority_view(&self) -> Option<Arc<Moment>> {
        self.replication()?.majority_view()
    }

    /// Where a member of a set keeps rows beside its oplog.
    pub(crate) fn facts_keyspace(&self) -> Option<quorate_storage::KeyspaceId> {
        self.replication().map(Replication::facts_keyspace)
    }

    /// The newest committed entries, for change streams.
    pub(crate) fn change_feed(&self) -> &Feed {
        &self.change_feed
    }

    /// A number that no other command gets.
    pub(crate) fn next_seed(&self) -> u64 {
        self.seeds.lock().next_u64()
    }

    pub(crate) fn store(&self) -> &dyn Store {
        &*self.store
    }

    pub(crate) fn shared_store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store)
    }

    pub(crate) fn replication(&self) -> Option<&Replication> {
        self.replication.get()
    }

    /// Returns false if it was set before.
    pub(crate) fn set_replication(&self, replication: Replication) -> bool {
        self.replication.set(replication).is_ok()
    }

    /// Bytes that cannot be guessed without the seed: a keyed hash of a counter.
    pub(crate) fn random_bytes(&self, length: usize) -> Vec<u8> {
        let key = self.secret;
        let mut bytes = Vec::with_capacity(length + 32);
        while bytes.len() < length {
            let block = self.next_seed().to_be_bytes();
            bytes.extend(Sha256::new().chain_update(key).chain_update(block).finalize());
        }
        bytes.truncate(length);
        bytes
    }

    pub(crate) fn member_credentials(&self) -> &[StoredCredentials] {
        &self.member_credentials
    }

    pub(crate) fn defaults_cache(&self) -> &DefaultsCache {
        &self.defaults
    }

    pub(crate) fn keyspaces(&self) -> Keyspaces {
        self.keyspaces
    }

    pub(crate) fn catalog(&self) -> Arc<Catalog> {
        Arc::clone(&self.catalog.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Does something with a collection as it is, if it is there.
    pub(crate) fn with_collection(&self, namespace: &dyn Names, run: impl FnOnce(&Collection)) {
        let catalog = self.catalog.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(collection) = catalog.get(namespace) {
            run(collection);
        }
    }

    /// How long commands took, all together.
    pub(crate) fn usage(&self) -> &Usage {
        &self.usage
    }

    /// Compares all that the store holds with its checksums.
    pub(crate) fn verify_store(&self) -> Result<Vec<Damage>> {
        Ok(self.store.verify()?)
    }

    /// Guesses at the records of documents.
    pub(crate) fn places(&self) -> &Places {
        &self.places
    }

    pub(crate) fn view(&self) -> View {
        self.view_of(self.store.snapshot())
    }

    /// What a snapshot of the store, or one with changes over it, shows.
    pub(crate) fn view_of(&self, snapshot: Arc<dyn Snapshot>) -> View {
        View { snapshot, keyspaces: self.keyspaces, places: Arc::clone(&self.places) }
    }

    /// A collection and the store at one moment: no index of it appears or goes in between.
    pub(crate) fn read(&self, namespace: &dyn Names) -> (Option<Arc<Collection>>, View) {
        let catalog = self.catalog.read().unwrap_or_else(PoisonError::into_inner);
        (catalog.get(namespace).cloned(), self.view())
    }

    /// All collections and the store at one moment.
    pub(crate) fn present_view(&self) -> (Arc<Catalog>, View) {
        let catalog = self.catalog.read().unwrap_or_else(PoisonError::into_inner);
        (Arc::clone(&catalog), self.view())
    }

    /// The data at a time that is kept, or what a majority has now, which is kept from now on.
    pub(crate) fn moment(
        &self,
        time: Option<Timestamp>,
        now: MonotonicTime,
    ) -> Result<Arc<Moment>> {
        let kept = time.and_then(|time| self.moments.lock().at(time, now));
        if let Some(moment) = kept {
            return Ok(moment);
        }
        let present = match self.replication() {
            // Two majorities never see different data at one time.
            Some(replication) => replication.majority_view().ok_or_else(not_committed)?,
            None => {
                let (catalog, view) = self.present_view();
                let last = replication::last_in(&view, self.oplog)?;
                Arc::new(Moment { time: last.op_time.timestamp, catalog, view })
            }
        };
        match time {
            Some(time) if time != present.time => Err(not_kept(time)),
            _ => Ok(self.moments.lock().keep(present, now)),
        }
    }

    /// Entries of the log were undone: what was read of them is not to be shown again.
    pub(crate) fn forget_moments(&self) {
        self.moments.lock().clear();
    }

    /// Waits for the write lock.
    pub(crate) fn write(&self, now: Now) -> Writer<'_> {
        Writer::new(self, self.writer.hold(), now)
    }

    /// Where writes wait for transactions to end.
    pub(crate) fn end_queue(&self) -> &EndQueue {
        &self.end_queue
    }

    /// Sets identifiers of collections and indexes aside. Returns the first.
    pub(crate) fn reserve_idents(&self, count: u64) -> u64 {
        let mut catalog = self.catalog.write().unwrap_or_else(PoisonError::into_inner);
        Arc::make_mut(&mut catalog).reserve_idents(count)
    }

    pub(crate) fn cursors(&self) -> MutexGuard<'_, Cursors> {
        self.cursors.lock()
    }

    pub(crate) fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock()
    }

    pub(crate) fn fail_points(&self) -> MutexGuard<'_, FailPoints> {
        self.fail_points.lock()
    }

    /// Rows of sessions as the newest commit left them. For holders of the write lock only.
    pub(crate) fn known_rows(&self) -> MutexGuard<'_, KnownRows> {
        self.known_rows.lock()
    }

    /// For holders of the write lock only.
    pub(crate) fn commit(&self, batch: Batch) -> Result<CommitSequence> {
        let rows = ChangedRows::of(&batch, self.keyspaces.sessions);
        let sequence = self.store.commit(batch).map_err(|error| self.not_committed(error))?;
        self.known_rows().committed(rows);
        Ok(sequence)
    }

    /// Puts entries of an index that nothing looks at yet into the store, in the order of their keys.
    pub(crate) fn ingest_entries(
        &self,
        entries: &mut dyn Iterator<Item = (Bytes, Bytes)>,
    ) -> Result<()> {
        let ingested = self.store.ingest(self.keyspaces().indexes, entries);
        ingested.map_err(|error| self.not_committed(error))
    }

    /// Gives back the room of keys that nothing reads or writes any more, as far as that is easy.
    pub(crate) fn discard(&self, keyspace: KeyspaceId, range: &KeyRange) -> Result<()> {
        self.store.discard(keyspace, range).map_err(|error| self.not_committed(error))
    }

    /// Tells the host of the member if the store has stopped writing: what it wrote last is unknown.
    fn not_committed(&self, error: CommitError) -> CommandError {
        let stopped = matches!(error, CommitError::Poisoned | CommitError::Engine(_));
        let error = CommandError::from(error);
        if let Some(replication) = self.replication().filter(|_| stopped) {
            replication.tell_disk_failed(&error.message);
        }
        error
    }

    /// Commits a change of the catalog and shows it to readers at the same moment.
    pub(crate) fn commit_catalog(&self, batch: Batch, changed: Catalog) -> Result<CommitSequence> {
        let mut catalog = self.catalog.write().unwrap_or_else(PoisonError::into_inner);
        let sequence = self.commit(batch)?;
        *catalog = Arc::new(changed);
        Ok(sequence)
    }
}
