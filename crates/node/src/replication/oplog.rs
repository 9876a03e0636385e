//! `local.oplog.rs`: building entries, reading them from a position, dropping the oldest.
//!
//! The collection has no index; the record id of an entry is its timestamp, so that any position is
//! one seek away. Digest §7.

use std::ops::Bound;

use bson::raw::cstr;
use bson::{Binary, Document, RawDocument, RawDocumentBuf, doc, rawdoc};
use quorate_protocol::{OpTime, OpTimeAndWallTime, Term, Timestamp, WallTime};
use quorate_storage::key::RecordId;
use quorate_storage::{Batch, Direction, KeyRange};
use quorate_wire::{date_time_from, timestamp_from, to_bson_date_time, to_bson_timestamp};

use super::diff::diff;
use super::{Replication, not_writable};
use crate::catalog::{Collection, Ident};
use crate::context::Now;
use crate::error::{CommandError, ErrorCode};
use crate::fields::to_raw;
use crate::namespace::Namespace;
use crate::node::Node;
use crate::records::{parse_record, record_key};
use crate::writer::Writer;

/// Oldest entries removed in one step of maintenance.
const TRIM_STEP: usize = 1000;

/// The first byte of undo rows among the facts.
pub(super) const UNDO_ROW: u8 = b'u';

/// A change that is logged.
pub(crate) enum Operation<'a> {
    Insert {
        collection: &'a Collection,
        document: &'a RawDocument,
    },
    Update {
        collection: &'a Collection,
        old: &'a RawDocument,
        new: &'a RawDocument,
    },
    Delete {
        collection: &'a Collection,
        document: &'a RawDocument,
    },
    /// A command on a database, and how to take it back.
    Command {
        namespace: &'a Namespace,
        uuid: &'a Binary,
        command: Document,
        undo: Document,
    },
    Noop {
        message: &'a str,
        term: Term,
    },
}

/// The retryable write that an entry belongs to.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub(crate) lsid: Document,
    pub(crate) txn_number: i64,
    pub(crate) statement: i32,
}

/// Entries read in one go, in order.
#[derive(Clone, Debug, Default)]
pub struct OplogEntries {
    /// The entries, as BSON.
    pub entries: Vec<RawDocumentBuf>,
    /// The position of the last one.
    pub last: Option<OpTimeAndWallTime>,
}

/// The position of an entry.
///
/// # Errors
///
/// If the entry has none.
pub fn entry_position(entry: &RawDocument) -> Result<OpTimeAndWallTime, CommandError> {
    let timestamp = entry.get_timestamp("ts").map_err(|_| damaged("ts"))?;
    let term = entry.get_i64("t").map_err(|_| damaged("t"))?;
    let wall = entry.get_datetime("wall").map_err(|_| damaged("wall"))?;
    Ok(OpTimeAndWallTime {
        op_time: OpTime::new(term, timestamp_from(timestamp)),
        wall_time: date_time_from(wall),
    })
}

pub(super) fn damaged(field: &str) -> CommandError {
    CommandError::new(
        ErrorCode::INTERNAL_ERROR,
        format!("an oplog entry has no usable field {field}; resync this member"),
    )
}

impl Node {
    /// Entries from this timestamp on, at most so many and about so many bytes.
    ///
    /// # Errors
    ///
    /// If the store fails or an entry is damaged.
    pub fn read_oplog(
        &self,
        from: Bound<Timestamp>,
        most: usize,
        most_bytes: usize,
    ) -> Result<OplogEntries, CommandError> {
        let Some(replication) = self.replication() else { return Ok(OplogEntries::default()) };
        let view = self.view();
        let key =
            |timestamp: Timestamp| record_key(replication.oplog, RecordId(timestamp.as_u64()));
        let whole = KeyRange::prefix(&replication.oplog.prefix());
        let start = match from {
            Bound::Included(from) => Bound::Included(key(from)),
            Bound::Excluded(from) => Bound::Excluded(key(from)),
            Bound::Unbounded => whole.start,
        };
        let range = KeyRange { start, end: whole.end };
        let scan = view.snapshot.scan(view.keyspaces.records, range, Direction::Forward)?;
        let mut found = OplogEntries::default();
        let mut bytes = 0;
        for pair in scan.take(most) {
            let entry = parse_record(&pair?.1)?;
            bytes += entry.as_bytes().len();
            found.last = Some(entry_position(&entry)?);
            found.entries.push(entry);
            if bytes >= most_bytes {
                break;
            }
        }
        Ok(found)
    }

    /// The positions of the newest entries, newest first, from this timestamp down.
    ///
    /// # Errors
    ///
    /// If the store fails or an entry is damaged.
    pub fn read_oplog_backward(
        &self,
        below: Option<Timestamp>,
        most: usize,
    ) -> Result<Vec<OpTimeAndWallTime>, CommandError> {
        let Some(replication) = self.replication() else { return Ok(Vec::new()) };
        let view = self.view();
        let whole = KeyRange::prefix(&replication.oplog.prefix());
        let end = match below {
            Some(below) => Bound::Excluded(record_key(replication.oplog, RecordId(below.as_u64()))),
            None => whole.end,
        };
        let range = KeyRange { start: whole.start, end };
        let scan = view.snapshot.scan(view.keyspaces.records, range, Direction::Backward)?;
        scan.take(most).map(|pair| entry_position(&parse_record(&pair?.1)?)).collect()
    }

    /// The oldest entry; null if there is none.
    ///
    /// # Errors
    ///
    /// If the store fails or the entry is damaged.
    pub fn oldest_entry(&self) -> Result<OpTime, CommandError> {
        let first = self.read_oplog(Bound::Unbounded, 1, usize::MAX)?;
        Ok(first.last.map_or(OpTime::NULL, |position| position.op_time))
    }
}

/// `local.oplog.rs`, made if it is not there.
pub(super) fn ensure_collection(node: &Node, bytes: u64, now: Now) -> Result<Ident, CommandError> {
    let namespace = Namespace::new("local", "oplog.rs")?;
    let mut writer = node.write(now);
    let collection = match writer.collection(&namespace) {
        Some(collection) => collection,
        None => {
            let size = i64::try_from(bytes).unwrap_or(i64::MAX);
            writer.create_plain(&namespace, doc! { "capped": true, "size": size })?
        }
    };
    Ok(collection.ident)
}

pub(super) fn last_position(node: &Node, oplog: Ident) -> Result<OpTimeAndWallTime, CommandError> {
    match node.view().scan_records(oplog, Direction::Backward)?.next() {
        Some(pair) => entry_position(&parse_record(&pair?.1)?),
        None => Ok(OpTimeAndWallTime::default()),
    }
}

impl Writer<'_> {
    /// Adds the oplog entry and the undo row of a change to its batch; nothing on a member without a
    /// set, and nothing for what is local to a member.
    pub(crate) fn log(
        &mut self,
        batch: &mut Batch,
        operation: &Operation<'_>,
    ) -> Result<(), CommandError> {
        let node = self.node();
        let Some(replication) = node.replication() else { return Ok(()) };
        let namespace = match operation {
            Operation::Insert { collection, .. }
            | Operation::Update { collection, .. }
            | Operation::Delete { collection, .. } => Some(&collection.namespace),
            Operation::Command { namespace, .. } => Some(*namespace),
            Operation::Noop { .. } => None,
        };
        if self.is_cloning() || namespace.is_some_and(|namespace| namespace.database == "local") {
            return Ok(());
        }
        if let Some(undone) = self.take_undone() {
            if let Some(at) = undone {
                self.unlog(batch, at);
            }
            return Ok(());
        }
        let (entry, position) = match self.take_replayed()? {
            Some(replayed) => replayed,
            None => self.new_entry(replication, operation)?,
        };
        if let Some(undo) = undo_row(operation)? {
            batch.insert(replication.keyspace, undo_key(position.op_time.timestamp), undo);
        }
        let record = RecordId(position.op_time.timestamp.as_u64());
        self.note_oplog_bytes(replication.oplog, entry.as_bytes().len() as u64);
        let records = node.keyspaces().records;
        batch.insert(records, record_key(replication.oplog, record), entry.into_bytes());
        self.note_position(position);
        Ok(())
    }

    fn new_entry(
        &mut self,
        replication: &Replication,
        operation: &Operation<'_>,
    ) -> Result<(RawDocumentBuf, OpTimeAndWallTime), CommandError> {
        let term = match operation {
            Operation::Noop { term, .. } => *term,
            _ => replication.writable_term().ok_or_else(not_writable)?,
        };
        let timestamp = timestamp_from(self.next_timestamp());
        let op_time = OpTime::new(term.0, timestamp);
        let position = OpTimeAndWallTime { op_time, wall_time: self.now().wall };
        let session = self.take_statement();
        Ok((build(operation, position, session.as_ref())?, position))
    }

    pub(crate) fn append_noop(
        &mut self,
        message: &str,
        term: Term,
    ) -> Result<OpTimeAndWallTime, CommandError> {
        let mut batch = Batch::new();
        self.log(&mut batch, &Operation::Noop { message, term })?;
        self.commit_batch(batch)?;
        Ok(self.node().log_positions().written)
    }

    /// Removes the oldest entries of a log that is over its size, as far as they are committed.
    /// Returns whether there is more to do.
    pub(crate) fn trim_oplog(&mut self) -> Result<bool, CommandError> {
        let node = self.node();
        let Some(replication) = node.replication() else { return Ok(false) };
        let namespace = Namespace::new("local", "oplog.rs")?;
        let Some(collection) = self.collection(&namespace) else { return Ok(false) };
        let limit = collection.capped.map_or(u64::MAX, |capped| capped.bytes);
        let mut bytes = self.totals(&collection)?.bytes;
        if bytes <= limit {
            return Ok(false);
        }
        let committed = replication.commit_point().op_time.timestamp;
        let records = node.keyspaces().records;
        let mut batch = Batch::new();
        let scan = self.view().scan_records(replication.oplog, Direction::Forward)?;
        let (mut documents, mut removed) = (0, 0);
        for pair in scan.take(TRIM_STEP) {
            let (key, value) = pair?;
            let record = RecordId::from_suffix(&key).map_or(u64::MAX, |record| record.0);
            if bytes <= limit || record >= committed.as_u64() {
                break;
            }
            bytes -= value.len() as u64;
            removed += value.len() as u64;
            documents += 1;
            batch.remove(records, key);
        }
        let more = documents == TRIM_STEP as u64;
        self.commit_batch(batch)?;
        self.note_removed(&collection, documents, removed);
        Ok(more)
    }
}

pub(super) fn undo_key(timestamp: Timestamp) -> Vec<u8> {
    let mut key = vec![UNDO_ROW];
    key.extend(timestamp.as_u64().to_be_bytes());
    key
}

/// What is needed to take a change back. An insert is taken back by its entry alone.
fn undo_row(operation: &Operation<'_>) -> Result<Option<Vec<u8>>, CommandError> {
    Ok(match operation {
        Operation::Insert { .. } | Operation::Noop { .. } => None,
        Operation::Update { old: before, .. } | Operation::Delete { document: before, .. } => {
            Some(rawdoc! { "before": (*before).to_owned() }.into_bytes())
        }
        Operation::Command { undo, .. } => Some(to_raw(undo)?.into_bytes()),
    })
}

fn build(
    operation: &Operation<'_>,
    position: OpTimeAndWallTime,
    session: Option<&Session>,
) -> Result<RawDocumentBuf, CommandError> {
    let mut entry = RawDocumentBuf::new();
    if let Some(session) = session {
        entry.append(cstr!("lsid"), to_raw(&session.lsid)?);
        entry.append(cstr!("txnNumber"), session.txn_number);
    }
    let head = |entry: &mut RawDocumentBuf, op: &str, collection: &Collection| {
        entry.append(cstr!("op"), op);
        entry.append(cstr!("ns"), collection.namespace.to_string());
        entry.append(cstr!("ui"), collection.uuid.clone());
    };
    match operation {
        Operation::Insert { collection, document } => {
            head(&mut entry, "i", collection);
            entry.append(cstr!("o"), (*document).to_owned());
            entry.append(cstr!("o2"), id_of(document)?);
        }
        Operation::Update { collection, old, new } => {
            head(&mut entry, "u", collection);
            let changed = diff(old, new)?;
            entry.append(cstr!("o"), changed.unwrap_or_else(|| (*new).to_owned()));
            entry.append(cstr!("o2"), id_of(old)?);
        }
        Operation::Delete { collection, document } => {
            head(&mut entry, "d", collection);
            entry.append(cstr!("o"), id_of(document)?);
        }
        Operation::Command { namespace, uuid, command, .. } => {
            entry.append(cstr!("op"), "c");
            entry.append(cstr!("ns"), format!("{}.$cmd", namespace.database));
            entry.append(cstr!("ui"), (*uuid).clone());
            entry.append(cstr!("o"), to_raw(command)?);
        }
        Operation::Noop { message, .. } => {
            entry.append(cstr!("op"), "n");
            entry.append(cstr!("ns"), "");
            entry.append(cstr!("o"), rawdoc! { "msg": *message });
        }
    }
    if let Some(session) = session {
        entry.append(cstr!("stmtId"), session.statement);
    }
    let OpTimeAndWallTime { op_time, wall_time } = position;
    entry.append(cstr!("ts"), to_bson_timestamp(op_time.timestamp));
    entry.append(cstr!("t"), op_time.term);
    entry.append(cstr!("v"), 2_i64);
    entry.append(cstr!("wall"), to_bson_date_time(wall_time));
    Ok(entry)
}

fn id_of(document: &RawDocument) -> Result<RawDocumentBuf, CommandError> {
    let mut id = RawDocumentBuf::new();
    match document.get("_id") {
        Ok(Some(value)) => id.append(cstr!("_id"), value),
        _ => return Err(damaged("_id")),
    }
    Ok(id)
}

/// The first entry of a set: written with its configuration.
pub(super) fn initiating_entry(timestamp: Timestamp, wall: WallTime) -> RawDocumentBuf {
    rawdoc! {
        "op": "n",
        "ns": "",
        "o": { "msg": "initiating set" },
        "ts": to_bson_timestamp(timestamp),
        "t": 0_i64,
        "v": 2_i64,
        "wall": to_bson_date_time(wall),
    }
}
