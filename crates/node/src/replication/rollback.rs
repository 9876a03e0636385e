//! Undoing entries that the set did not keep.
//!
//! Every entry that changes something leaves a row that says what was there before. The rows are
//! kept until the entry is committed. Undoing goes backwards, one entry and one batch at a time: a
//! crash in between leaves a shorter log and the data that belongs to it.
//! docs/replication-rules.md#rollback.

use std::collections::BTreeSet;
use std::ops::Bound;

use bson::{Bson, Document, RawDocument, RawDocumentBuf, doc};
use quorate_protocol::{OpTime, OpTimeAndWallTime, Timestamp};
use quorate_storage::key::RecordId;
use quorate_storage::{Batch, Direction, KeyRange};
use quorate_wire::find_field;

use super::apply::altered;
use super::entry::{
    damaged, entry_position, namespace_of, object_of, operation_of, session_in, target_of,
};
use super::oplog::{UNDO_ROW, undo_key};
use crate::catalog::{Catalog, Collection, Ident};
use crate::context::Now;
use crate::error::Result;
use crate::namespace::Namespace;
use crate::node::Node;
use crate::records::parse_record;
use crate::sessions::SessionId;
use crate::transactions::{is_abort, is_apply_ops};
use crate::writer::{RetryableWrite, StatementIds, Writer};

/// A document that a rollback takes away.
#[derive(Clone, Debug)]
pub struct Undo<'a> {
    /// Its collection.
    pub namespace: &'a str,
    /// The document as it was before the rollback.
    pub document: &'a RawDocument,
}

/// The outcome of a rollback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RolledBack {
    /// The last entry now.
    pub last: OpTimeAndWallTime,
    /// How many entries were undone.
    pub entries: u64,
}

impl Node {
    /// Undoes every entry after the common point, newest first, and forces that to disk. Each
    /// document that is taken away or changed back is shown to `keep` before.
    ///
    /// # Errors
    ///
    /// If the store fails, `keep` fails, or an entry cannot be undone.
    pub fn roll_back_to(
        &self,
        common_point: OpTimeAndWallTime,
        now: Now,
        keep: &mut dyn FnMut(Undo<'_>) -> Result<()>,
    ) -> Result<RolledBack> {
        let mut entries = 0;
        let mut writer = self.write(now);
        let Some(replication) = self.replication() else {
            return Ok(RolledBack { last: common_point, entries });
        };
        replication.begin_cut(common_point);
        self.forget_moments();
        // Each search begins below the entry undone last. From the end of the log it would pass
        // over all removed entries, and a rollback would take the square of its length.
        let mut rest = Bound::Unbounded;
        loop {
            let view = writer.view();
            let newest = view.scan_oplog((Bound::Unbounded, rest), Direction::Backward)?.next();
            let Some(pair) = newest else { break };
            let (_, value) = pair?;
            let entry = parse_record(&value)?;
            let position = entry_position(&entry)?;
            if position.op_time <= common_point.op_time {
                break;
            }
            writer.undo(&entry, position.op_time, keep)?;
            rest = Bound::Excluded(RecordId(position.op_time.timestamp.as_u64()));
            entries += 1;
        }
        let (committed, _) = self.durability();
        self.sync_through(committed)?;
        replication.end_cut(common_point, Some(writer.moment(common_point.op_time)));
        Ok(RolledBack { last: common_point, entries })
    }
}

/// A statement of a retryable write.
pub(crate) type Statement = (RetryableWrite, i32);

/// The statement that an entry belongs to.
pub(super) fn statement_of(entry: &RawDocument) -> Result<Option<Statement>> {
    let Some((lsid, number)) = session_in(entry) else { return Ok(None) };
    let Some(statement) = find_field(entry, "stmtId").and_then(|field| field.int32()) else {
        return Ok(None);
    };
    let session = SessionId::from_entry(lsid)?;
    let write = RetryableWrite { session, number, statements: StatementIds::default() };
    Ok(Some((write, statement)))
}

/// Whether a command makes or removes an index.
fn is_about_index(command: &RawDocument) -> bool {
    ["createIndexes", "dropIndexes"].iter().any(|name| matches!(command.get(name), Ok(Some(_))))
}

impl Writer<'_> {
    fn undo(
        &mut self,
        entry: &RawDocument,
        at: OpTime,
        keep: &mut dyn FnMut(Undo<'_>) -> Result<()>,
    ) -> Result<()> {
        let row = self.undo_row(at.timestamp)?;
        self.begin_undo(at, statement_of(entry)?);
        let object = object_of(entry)?;
        match operation_of(entry)? {
            "c" if is_abort(object) => {}
            "c" if is_apply_ops(object) => {
                self.undo_transaction(entry, row.as_ref(), |writer, operation, row| {
                    writer.undo_change(operation, row, keep)
                })?;
            }
            _ => self.undo_change(entry, row, keep)?,
        }
        self.finish_undo()
    }

    /// Undoes one change, of an entry or of an operation of a transaction.
    fn undo_change(
        &mut self,
        entry: &RawDocument,
        row: Option<Document>,
        keep: &mut dyn FnMut(Undo<'_>) -> Result<()>,
    ) -> Result<()> {
        let object = object_of(entry)?;
        let namespace = namespace_of(entry)?;
        match operation_of(entry)? {
            "n" => {}
            "c" if object.get("dropDatabase").is_ok_and(|field| field.is_some()) => {}
            // A member that builds no indexes has none to bring back or to remove.
            "c" if row.is_none() && is_about_index(object) => {}
            "c" => self.undo_command(&row.unwrap_or_default())?,
            operation => {
                let id = if operation == "u" { target_of(entry)? } else { object };
                let parsed = Namespace::parse(namespace)?;
                if let Some(mut collection) = self.collection(&parsed) {
                    let found = self.find_by_id(&collection, id)?;
                    if let Some((_, document)) = &found {
                        keep(Undo { namespace, document })?;
                    }
                    let row = row.unwrap_or_default();
                    let before = row.get_document("before").ok().map(RawDocumentBuf::try_from);
                    let record = row.get_i64("record").ok().map(|record| RecordId(record as u64));
                    match (before.transpose()?, record, found) {
                        (Some(before), Some(record), None) => {
                            self.restore_at(&mut collection, record, before)?;
                        }
                        (Some(before), _, _) => self.put(&mut collection, before)?,
                        (None, _, Some((record, document))) => {
                            self.remove(&collection, record, &document)?;
                        }
                        (None, _, None) => {}
                    }
                }
            }
        }
        Ok(())
    }

    fn undo_row(&self, timestamp: Timestamp) -> Result<Option<Document>> {
        let Some(replication) = self.node().replication() else { return Ok(None) };
        match self.view().snapshot.get(replication.keyspace, &undo_key(timestamp))? {
            Some(bytes) => Ok(Some(Document::from_reader(&bytes[..])?)),
            None => Ok(None),
        }
    }

    fn undo_command(&mut self, undo: &Document) -> Result<()> {
        let text = |name: &str| undo.get_str(name).map_err(|_| damaged("undo"));
        let namespace = Namespace::parse(text("ns")?)?;
        let found = self.collection(&namespace);
        match (text("undo")?, found) {
            ("drop", Some(collection)) => self.drop_collection(&collection),
            ("restore", _) => {
                let row = undo.get_document("row").map_err(|_| damaged("undo"))?;
                self.restore_collection(Collection::from_row(row)?)
            }
            ("rename", Some(collection)) => {
                let replaced = undo.get_document("row").ok().map(Collection::from_row);
                let to = Namespace::parse(text("to")?)?;
                self.rename_back(&collection, &to, replaced.transpose()?)
            }
            ("alter", Some(collection)) => {
                let altered = altered(&collection, undo)?;
                self.alter_collection(altered, Some(Document::new())).map(drop)
            }
            ("dropIndex", Some(mut collection)) => self.drop_index(&mut collection, text("index")?),
            ("buildIndex", Some(mut collection)) => {
                let spec = undo.get_document("spec").map_err(|_| damaged("undo"))?.clone();
                self.build_index(&mut collection, spec, || Ok(()))
            }
            _ => Ok(()),
        }
    }

    /// The entry had no effect left to undo; it leaves the log all the same.
    fn finish_undo(&mut self) -> Result<()> {
        if self.is_undoing() {
            self.log_noop("")?;
        }
        Ok(())
    }

    /// The other half of undoing: takes the entry and its row out, with the change.
    pub(crate) fn unlog(
        &mut self,
        batch: &mut Batch,
        at: OpTime,
        statement: Option<&Statement>,
    ) -> Result<()> {
        let node = self.node();
        if let Some((write, number)) = statement
            && let Some(entry) = self.entry_at(at.timestamp.as_u64())?
        {
            self.forget_statement(batch, write, *number, &entry)?;
        }
        if let Some(replication) = node.replication() {
            batch.cut_log(node.keyspaces().oplog, at.timestamp.as_u64());
            batch.remove(replication.keyspace, undo_key(at.timestamp));
        }
        self.forget_images(batch, at.timestamp.as_u64())
    }

    /// Removes undo rows of entries that are committed. Returns whether there is more to do.
    pub(crate) fn trim_undo(&mut self) -> Result<bool> {
        let Some(replication) = self.node().replication() else { return Ok(false) };
        let committed = replication.commit_point().op_time.timestamp.as_u64();
        self.trim_rows(UNDO_ROW, &undo_key(Timestamp::from_u64(committed.saturating_add(1))))
    }

    /// What was dropped and may yet come back: its keys are no garbage.
    pub(crate) fn restorable(&self) -> Result<BTreeSet<Ident>> {
        let mut idents = BTreeSet::new();
        let Some(replication) = self.node().replication() else { return Ok(idents) };
        let range = KeyRange::prefix(&[UNDO_ROW]);
        let scan = self.view().snapshot.scan(replication.keyspace, range, Direction::Forward)?;
        for pair in scan {
            let (_, value) = pair?;
            let row = Document::from_reader(&value[..])?;
            let Ok(row) = row.get_document("row") else { continue };
            let collection = Collection::from_row(row)?;
            idents.insert(collection.ident);
            idents.extend(collection.indexes.iter().map(|index| index.ident));
        }
        Ok(idents)
    }
}

/// How to take the commands back that change the catalog.
pub(crate) mod takes_back {
    use super::*;

    /// The undo row of a command, given the catalog before it.
    pub(crate) fn of(command: &Document, collection: &Collection, before: &Catalog) -> Document {
        let namespace = &collection.namespace;
        let known = before.get(namespace);
        let ns = namespace.to_string();
        let text = |name: &str| command.get_str(name).unwrap_or_default();
        match (command.keys().next().map_or("", String::as_str), known) {
            ("create", _) => doc! { "undo": "drop", "ns": ns },
            ("drop", Some(known)) => doc! { "undo": "restore", "ns": ns, "row": known.to_row() },
            ("renameCollection", replaced) => {
                let to = text("renameCollection");
                let mut undo = doc! { "undo": "rename", "ns": text("to"), "to": to };
                // The collection that gave way has the name before.
                undo.extend(
                    replaced.map(|replaced| doc! { "row": replaced.to_row() }).unwrap_or_default(),
                );
                undo
            }
            ("collMod", Some(known)) => {
                let mut undo = doc! { "undo": "alter", "ns": ns };
                undo.extend(description(known));
                undo
            }
            ("createIndexes", _) => {
                doc! { "undo": "dropIndex", "ns": ns, "index": text("name") }
            }
            ("dropIndexes", Some(known)) => {
                let spec = known.index(text("index")).map(|index| index.spec.clone());
                doc! { "undo": "buildIndex", "ns": ns, "spec": spec.unwrap_or_default() }
            }
            _ => Document::new(),
        }
    }

    /// The options and index specifications of a collection.
    pub(crate) fn description(collection: &Collection) -> Document {
        let specs = collection.indexes.iter().map(|index| Bson::from(index.spec.clone()));
        let specs: Vec<Bson> = specs.collect();
        doc! { "options": &collection.options, "indexes": specs }
    }
}
