//! What a member must remember across a crash besides its data: the configuration, votes, terms.
//!
//! Rows of the `replication` keyspace, one BSON document each under `f<name>`.
//! docs/replication-rules.md#configuration and #elections.

use std::time::Duration;

use bson::{Document, doc};
use quorate_protocol::{MemberId, OpTimeAndWallTime, ReplicaSetConfig, Term};
use quorate_replication::{Change, LastVote, Memory, Recovered};
use quorate_storage::{Batch, Direction, KeyspaceId};
use quorate_wire::replica_set::{config_document, optime_document, parse_config, parse_optime};
use quorate_wire::{date_time_from, timestamp_from, to_bson_date_time};

use super::entry::LoggedEntry;
use super::oplog::initiating_entry;
use crate::context::Now;
use crate::error::Result;
use crate::fields::to_raw;
use crate::namespace::Namespace;
use crate::node::Node;
use crate::writer::Writer;

const CONFIG: &[u8] = b"fconfig";
const ELECTION: &[u8] = b"felection";
const INITIAL_SYNC: &[u8] = b"finitialSync";
const ROLLBACK_ID: &[u8] = b"frollbackId";
const MIN_VALID: &[u8] = b"fminValid";
const RETENTION: &[u8] = b"foplogRetention";
const COMMIT_POINT: &[u8] = b"fcommitPoint";
const MEMORY: &[u8] = b"fmemory";
const INDEXES_LEFT_OUT: &[u8] = b"findexes";

impl Node {
    /// Stores a change and forces it to disk. Blocks.
    ///
    /// # Errors
    ///
    /// If the disk fails; the process should end then.
    pub fn persist(&self, change: &Change, now: Now) -> Result<()> {
        let sequence = {
            let mut writer = self.write(now);
            writer.persist(change)?
        };
        self.sync_through(sequence)
    }
}

impl Writer<'_> {
    fn persist(&mut self, change: &Change) -> Result<quorate_storage::CommitSequence> {
        let node = self.node();
        let replication = node
            .replication()
            .ok_or_else(|| fail!(ILLEGAL_OPERATION, "this member is in no replica set"))?;
        let keyspace = replication.keyspace;
        let mut batch = Batch::new();
        let mut put = |key: &[u8], document: &Document| -> Result<()> {
            batch.insert(keyspace, key, to_raw(document)?.into_bytes());
            Ok(())
        };
        match change {
            Change::LastVote(vote) => {
                let vote = doc! { "term": vote.term.0, "candidateId": vote.candidate.0 };
                put(ELECTION, &doc! { "term": vote.get_i64("term").unwrap_or(0), "vote": vote })?;
            }
            Change::Term(term) => {
                let mut known = read(node, keyspace, ELECTION)?.unwrap_or_default();
                known.insert("term", term.0);
                put(ELECTION, &known)?;
            }
            Change::Config(config) => put(CONFIG, &config_document(config))?,
            Change::Initiate(config) => {
                put(CONFIG, &config_document(config))?;
                let timestamp = timestamp_from(self.next_timestamp());
                let entry = initiating_entry(timestamp, self.now().wall);
                self.replay([LoggedEntry::read(&entry)?].into());
                self.log_otherwise(&mut batch, None, None)?;
            }
            Change::InitialSync(on) => put(INITIAL_SYNC, &doc! { "on": *on })?,
            Change::RollbackId(id) => put(ROLLBACK_ID, &doc! { "id": *id })?,
            Change::Memory(memory) => put(MEMORY, &memory_document(*memory))?,
            Change::IndexesLeftOut(left_out) => {
                put(INDEXES_LEFT_OUT, &doc! { "leftOut": *left_out })?;
            }
        }
        self.commit(batch)?;
        match change {
            Change::Config(config) | Change::Initiate(config) => self.show_config(config)?,
            Change::LastVote(vote) => self.show_vote(*vote)?,
            _ => {}
        }
        Ok(node.durability().0)
    }

    /// Shows what was found on disk in the collections that tools read.
    pub(super) fn show_facts(&mut self, recovered: &Recovered) -> Result<()> {
        if let Some(config) = &recovered.config {
            self.show_config(config)?;
        }
        recovered.last_vote.map_or(Ok(()), |vote| self.show_vote(vote))
    }

    /// `local.system.replset` is a copy for readers; the row is what counts.
    fn show_config(&mut self, config: &ReplicaSetConfig) -> Result<()> {
        self.show("system.replset", &config_document(config))
    }

    /// `local.replset.election`, likewise.
    fn show_vote(&mut self, vote: LastVote) -> Result<()> {
        let document =
            doc! { "_id": "lastVote", "term": vote.term.0, "candidateId": vote.candidate.0 };
        self.show("replset.election", &document)
    }

    fn show(&mut self, collection: &str, document: &Document) -> Result<()> {
        let namespace = Namespace::new("local", collection)?;
        let mut collection = self.collection_or_create(&namespace)?;
        self.put(&mut collection, to_raw(document)?)
    }

    /// Remembers for how long entries of the oplog are kept.
    pub(crate) fn keep_min_retention(&mut self, retention: Duration) -> Result<()> {
        let Some(replication) = self.node().replication() else { return Ok(()) };
        let document = doc! { "seconds": retention.as_secs_f64() };
        let mut batch = Batch::new();
        batch.insert(replication.keyspace, RETENTION, to_raw(&document)?.into_bytes());
        self.commit(batch)?;
        replication.set_min_retention(retention);
        Ok(())
    }

    /// Remembers what is committed, now and then: after a restart this member refuses to undo it. It
    /// goes to disk with whatever is written next, and an older one is merely less to hold on to.
    pub(crate) fn keep_commit_point(&mut self) -> Result<()> {
        let Some(replication) = self.node().replication() else { return Ok(()) };
        let committed = replication.commit_point();
        if committed.op_time.is_null() || !replication.is_commit_point_news(committed) {
            return Ok(());
        }
        let mut document = optime_document(committed.op_time);
        document.insert("wall", to_bson_date_time(committed.wall_time));
        let mut batch = Batch::new();
        batch.insert(replication.keyspace, COMMIT_POINT, to_raw(&document)?.into_bytes());
        self.commit(batch)
    }

    /// Nothing is committed in a log that is being replaced.
    pub(super) fn forget_commit_point(&self, batch: &mut Batch) {
        if let Some(replication) = self.node().replication() {
            batch.remove(replication.keyspace, COMMIT_POINT);
        }
    }

    /// Remembers from where on the data is consistent, in the batch that makes it so.
    pub(super) fn put_min_valid(
        &self,
        batch: &mut Batch,
        min_valid: OpTimeAndWallTime,
    ) -> Result<()> {
        if let Some(replication) = self.node().replication() {
            let document = optime_document(min_valid.op_time);
            batch.insert(replication.keyspace, MIN_VALID, to_raw(&document)?.into_bytes());
        }
        Ok(())
    }
}

/// What is still known of the votes that were given: absent where it is everything.
fn memory_document(memory: Memory) -> Document {
    match memory {
        Memory::Whole => doc! {},
        Memory::Lost => doc! { "lost": true },
        Memory::Since(term) => doc! { "since": term.0 },
    }
}

fn parse_memory(row: &Document) -> Memory {
    match row.get_i64("since") {
        Ok(since) => Memory::Since(Term(since)),
        Err(_) if row.get_bool("lost").unwrap_or(false) => Memory::Lost,
        Err(_) => Memory::Whole,
    }
}

fn read(node: &Node, keyspace: KeyspaceId, key: &[u8]) -> Result<Option<Document>> {
    match node.view().snapshot.get(keyspace, key)? {
        Some(bytes) => Ok(Some(Document::from_reader(&bytes[..])?)),
        None => Ok(None),
    }
}

pub(super) fn min_retention(node: &Node, keyspace: KeyspaceId) -> Result<Duration> {
    let row = read(node, keyspace, RETENTION)?;
    let seconds = row.and_then(|row| row.get_f64("seconds").ok()).unwrap_or(0.0);
    Ok(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}

/// Whether any collection that members share holds a document.
fn has_documents(node: &Node) -> Result<bool> {
    let view = node.view();
    for collection in node.catalog().collections() {
        let shared = !collection.namespace.is_unreplicated();
        let holds = |ident| -> Result<bool> {
            Ok(view.scan_records(ident, Direction::Forward)?.next().transpose()?.is_some())
        };
        if shared && holds(collection.ident)? {
            return Ok(true);
        }
    }
    Ok(false)
}

pub(super) fn recover(
    node: &Node,
    keyspace: KeyspaceId,
    last: OpTimeAndWallTime,
) -> Result<Recovered> {
    let damaged = |what: &dyn std::fmt::Display| {
        fail!(INTERNAL_ERROR, "the stored replica set state is damaged: {what}; resync this member")
    };
    let config = match read(node, keyspace, CONFIG)? {
        Some(document) => Some(parse_config(&document).map_err(|error| damaged(&error))?),
        None => None,
    };
    let election = read(node, keyspace, ELECTION)?.unwrap_or_default();
    let last_vote = election.get_document("vote").ok().and_then(|vote| {
        let term = Term(vote.get_i64("term").ok()?);
        Some(LastVote { term, candidate: MemberId(vote.get_i32("candidateId").ok()?) })
    });
    let min_valid = match read(node, keyspace, MIN_VALID)? {
        Some(document) => parse_optime(&document).map_err(|error| damaged(&error))?,
        None => quorate_protocol::OpTime::NULL,
    };
    let commit_point = match read(node, keyspace, COMMIT_POINT)? {
        Some(document) => OpTimeAndWallTime {
            op_time: parse_optime(&document).map_err(|error| damaged(&error))?,
            wall_time: document
                .get_datetime("wall")
                .map(|wall| date_time_from(*wall))
                .map_err(|error| damaged(&error))?,
        },
        None => OpTimeAndWallTime::default(),
    };
    let initial_sync = read(node, keyspace, INITIAL_SYNC)?;
    let rollback_id = read(node, keyspace, ROLLBACK_ID)?;
    let indexes = read(node, keyspace, INDEXES_LEFT_OUT)?;
    let has_documents = has_documents(node)?;
    Ok(Recovered {
        config,
        term: Term(election.get_i64("term").unwrap_or(0)),
        last_vote,
        last,
        commit_point,
        min_valid,
        initial_sync: initial_sync.is_some_and(|row| row.get_bool("on").unwrap_or(false)),
        rollback_id: rollback_id.map_or(1, |row| row.get_i32("id").unwrap_or(1)),
        memory: read(node, keyspace, MEMORY)?.map_or(Memory::Whole, |row| parse_memory(&row)),
        indexes_left_out: indexes.is_some_and(|row| row.get_bool("leftOut").unwrap_or(false)),
        has_documents,
    })
}
