//! What a member must remember across a crash besides its data: the configuration, votes, terms.
//!
//! Rows of the `replication` keyspace, one BSON document each under `f<name>`. Digest §2, §5.

use bson::{Document, doc};
use quorate_protocol::{MemberId, OpTimeAndWallTime, Term};
use quorate_replication::election::LastVote;
use quorate_replication::{Change, Recovered};
use quorate_storage::{Batch, KeyspaceId};
use quorate_wire::replica_set::{config_document, optime_document, parse_config, parse_optime};
use quorate_wire::timestamp_from;

use super::oplog::initiating_entry;
use crate::context::Now;
use crate::error::{CommandError, ErrorCode};
use crate::fields::to_raw;
use crate::namespace::Namespace;
use crate::node::Node;
use crate::writer::Writer;

const CONFIG: &[u8] = b"fconfig";
/// Where tools such as mongosh's `rs.add` look for the configuration.
const CONFIG_COLLECTION: &str = "local.system.replset";
const ELECTION: &[u8] = b"felection";
const INITIAL_SYNC: &[u8] = b"finitialSync";
const ROLLBACK_ID: &[u8] = b"frollbackId";
const MIN_VALID: &[u8] = b"fminValid";

impl Node {
    /// Stores a change and forces it to disk. Blocks.
    ///
    /// # Errors
    ///
    /// If the disk fails; the process should end then.
    pub fn persist(&self, change: &Change, now: Now) -> Result<(), CommandError> {
        let sequence = {
            let mut writer = self.write(now);
            writer.persist(change)?
        };
        self.sync_through(sequence)
    }
}

impl Writer<'_> {
    fn persist(
        &mut self,
        change: &Change,
    ) -> Result<quorate_storage::CommitSequence, CommandError> {
        let node = self.node();
        let replication = node.replication().ok_or_else(|| {
            CommandError::new(ErrorCode::ILLEGAL_OPERATION, "this member is in no replica set")
        })?;
        let keyspace = replication.keyspace;
        if let Change::Config(config) | Change::Initiate(config) = change {
            self.show_config(&config_document(config))?;
        }
        let mut batch = Batch::new();
        let mut put = |key: &[u8], document: &Document| -> Result<(), CommandError> {
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
                self.replay([entry].into())?;
                self.log_otherwise(&mut batch, None)?;
            }
            Change::InitialSync(on) => put(INITIAL_SYNC, &doc! { "on": *on })?,
            Change::RollbackId(id) => put(ROLLBACK_ID, &doc! { "id": *id })?,
        }
        self.commit(batch)?;
        Ok(node.durability().0)
    }

    /// Keeps the configuration where administrators' tools read it. The row among the facts counts.
    fn show_config(&mut self, config: &Document) -> Result<(), CommandError> {
        let namespace = Namespace::parse(CONFIG_COLLECTION)?;
        let mut collection = self.collection_or_create(&namespace)?;
        self.put(&mut collection, to_raw(config)?)
    }

    /// Remembers from where on the data is consistent, in the batch that makes it so.
    pub(super) fn put_min_valid(
        &self,
        batch: &mut Batch,
        min_valid: OpTimeAndWallTime,
    ) -> Result<(), CommandError> {
        if let Some(replication) = self.node().replication() {
            let document = optime_document(min_valid.op_time);
            batch.insert(replication.keyspace, MIN_VALID, to_raw(&document)?.into_bytes());
        }
        Ok(())
    }
}

fn read(node: &Node, keyspace: KeyspaceId, key: &[u8]) -> Result<Option<Document>, CommandError> {
    match node.view().snapshot.get(keyspace, key)? {
        Some(bytes) => Ok(Some(Document::from_reader(&bytes[..])?)),
        None => Ok(None),
    }
}

pub(super) fn recover(
    node: &Node,
    keyspace: KeyspaceId,
    last: OpTimeAndWallTime,
) -> Result<Recovered, CommandError> {
    let damaged = |what: &dyn std::fmt::Display| {
        CommandError::new(
            ErrorCode::INTERNAL_ERROR,
            format!("the stored replica set state is damaged: {what}; resync this member"),
        )
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
    let initial_sync = read(node, keyspace, INITIAL_SYNC)?;
    let rollback_id = read(node, keyspace, ROLLBACK_ID)?;
    Ok(Recovered {
        config,
        term: Term(election.get_i64("term").unwrap_or(0)),
        last_vote,
        last,
        commit_point: OpTimeAndWallTime::default(),
        min_valid,
        initial_sync: initial_sync.is_some_and(|row| row.get_bool("on").unwrap_or(false)),
        rollback_id: rollback_id.map_or(1, |row| row.get_i32("id").unwrap_or(1)),
    })
}
