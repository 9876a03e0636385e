//! The entries of a transaction in the log.
//!
//! ```text
//!   small   {op: "c", ns: "admin.$cmd", lsid, txnNumber, o: {applyOps: […]}, prevOpTime: none}
//!   large   o: {applyOps: […], partialTxn: true}     prevOpTime: none
//!           o: {applyOps: […], partialTxn: true}     prevOpTime: the one before
//!           o: {applyOps: […], count: all}           prevOpTime: the one before
//! ```
//!
//! A primary writes all entries of a transaction in one batch, so nothing stands between them. Members
//! keep partial entries in the log and apply the transaction with its last entry, in one batch.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::atomic::Ordering;

use bson::raw::cstr;
use bson::spec::BinarySubtype;
use bson::{Binary, Document, RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};
use quorate_change_events::TransactionPart;
use quorate_protocol::{OpTime, OpTimeAndWallTime, Term};
use quorate_storage::key::RecordId;
use quorate_storage::{Batch, Direction};
use quorate_wire::{
    AROUND_ITEM, raw_document, timestamp_from, to_bson_date_time, to_bson_timestamp,
};

use super::rows::{SessionRow, number_key};
use super::stage::Stage;
use crate::error::{CommandError, Result};
use crate::node::Node;
use crate::records::{DocumentBytes, EMPTY_DOCUMENT, parse_record};
use crate::replication::{entry_position, object_of, session_in};
use crate::sessions::SessionId;
use crate::writer::{ENTRY_VERSION, Writer, with_room_for};

/// The most bytes of operations in one entry, which with the rest of it stays below 16 MB unless a
/// single document is as large.
pub(crate) const MAX_ENTRY_BYTES: usize = 15 * 1024 * 1024;

/// What an entry holds besides its object.
const AROUND_OPERATIONS: usize = 256;

/// The most entries of one transaction.
const MAX_ENTRIES: usize = 4096;

/// An operation and how to take it back.
pub(crate) type Undoable = (RawDocumentBuf, Option<RawDocumentBuf>);

/// Whether the object of a command entry holds operations of a transaction.
pub(crate) fn is_apply_ops(object: &RawDocument) -> bool {
    matches!(object.get("applyOps"), Ok(Some(RawBsonRef::Array(_))))
}

/// Whether the object of a command entry ends a transaction without its changes.
pub(crate) fn is_abort(object: &RawDocument) -> bool {
    matches!(object.get("abortTransaction"), Ok(Some(_)))
}

/// Whether more entries of the transaction follow.
pub(crate) fn is_partial(object: &RawDocument) -> bool {
    object.get_bool("partialTxn").unwrap_or(false)
}

impl Node {
    /// Lets an entry hold so many bytes of a transaction's operations, for tests of small transactions with
    /// several entries.
    pub fn split_transactions_at(&self, bytes: usize) {
        if let Some(replication) = self.replication() {
            replication.transaction_entry_bytes.store(bytes, Ordering::Relaxed);
        }
    }
}

impl Writer<'_> {
    /// Adds the entries of a transaction to its batch, with the row that takes all of it back and the
    /// row of its session. Returns the place of the last entry.
    pub(super) fn log_transaction(
        &mut self,
        batch: &mut Batch,
        session: &SessionId,
        number: i64,
        stage: &Stage,
    ) -> Result<OpTimeAndWallTime> {
        let operations = &stage.operations;
        let undo = DocumentBytes::from(self.undo_of(Some(session), operations)?);
        let limit = self.node.replication().map_or(MAX_ENTRY_BYTES, |replication| {
            replication.transaction_entry_bytes.load(Ordering::Relaxed)
        });
        let chunks = chunks(operations, limit);
        let mut previous = OpTime::NULL;
        let last = chunks.len().saturating_sub(1);
        let mut position = OpTimeAndWallTime::default();
        let mut index = 0;
        for (place, chunk) in chunks.iter().enumerate() {
            let chunk_operations = chunk.iter().map(|(operation, _)| &**operation);
            let mut object = document_with_array("applyOps", chunk_operations);
            if place < last {
                object.append(cstr!("partialTxn"), true);
            } else if last > 0 {
                object.append(cstr!("count"), operations.len() as i64);
            }
            let (entry, at) = self.transaction_entry(session, number, object, previous)?;
            let entry = entry.into_bytes().into();
            self.put_entry(batch, entry, at, (place == last).then_some(&undo), None);
            for operation in chunk.iter().filter(|_| stage.keeps_images) {
                self.keep_image_of_operation(batch, &stage.catalog, operation, at, index)?;
                index += 1;
            }
            (previous, position) = (at.op_time, at);
        }
        self.put_session_row(batch, session, number, position);
        Ok(position)
    }

    pub(super) fn transaction_entry(
        &mut self,
        session: &SessionId,
        number: i64,
        object: RawDocumentBuf,
        previous: OpTime,
    ) -> Result<(RawDocumentBuf, OpTimeAndWallTime)> {
        let term = self.term_of_entry()?;
        let timestamp = self.next_timestamp();
        let wall_time = self.now().wall;
        let mut entry = with_room_for(object.as_bytes().len() + AROUND_OPERATIONS);
        session.append_to(&mut entry);
        entry.append(cstr!("txnNumber"), number);
        entry.append(cstr!("op"), "c");
        entry.append(cstr!("ns"), "admin.$cmd");
        entry.append(cstr!("o"), object);
        entry.append(cstr!("ts"), timestamp);
        entry.append(cstr!("t"), term);
        entry.append(cstr!("v"), ENTRY_VERSION);
        entry.append(cstr!("wall"), to_bson_date_time(wall_time));
        let previous_time = to_bson_timestamp(previous.timestamp);
        entry.append(cstr!("prevOpTime"), rawdoc! { "ts": previous_time, "t": previous.term });
        let op_time = OpTime::new(term, timestamp_from(timestamp));
        Ok((entry, OpTimeAndWallTime { op_time, wall_time }))
    }

    pub(super) fn put_session_row(
        &self,
        batch: &mut Batch,
        session: &SessionId,
        number: i64,
        at: OpTimeAndWallTime,
    ) {
        let row = SessionRow { number, committed: Some(at), written: None, has_rows: true };
        batch.insert(self.node.keyspaces().sessions, &number_key(session), row.to_bytes());
    }

    /// How to take a whole transaction back: what to do for each operation, and the row that its
    /// session had.
    fn undo_of(
        &self,
        session: Option<&SessionId>,
        operations: &[Undoable],
    ) -> Result<RawDocumentBuf> {
        let nothing = RawDocument::from_bytes(&EMPTY_DOCUMENT)?;
        let steps = operations.iter().map(|(_, undo)| undo.as_deref().unwrap_or(nothing));
        let mut row = document_with_array("transaction", steps);
        if let Some(session) = session
            && let Some(before) = self.session_row(session)?
        {
            let before = Binary { subtype: BinarySubtype::Generic, bytes: before.to_vec() };
            row.append(cstr!("session"), before);
        }
        Ok(row)
    }

    /// All operations of the transaction whose last entry this is, with the places of their entries.
    fn chain_operations(
        &self,
        entry: &RawDocument,
    ) -> Result<Vec<(RawDocumentBuf, OpTimeAndWallTime)>> {
        let mut parts = vec![operations_of(entry)?];
        let mut previous = previous_of(entry);
        while let Some(timestamp) = previous {
            if parts.len() >= MAX_ENTRIES {
                return Err(broken("it has too many entries"));
            }
            let earlier = self.chain_entry(timestamp)?;
            let earlier = earlier.ok_or_else(|| broken("an earlier entry of it is missing"))?;
            parts.push(operations_of(&earlier)?);
            previous = previous_of(&earlier);
        }
        parts.reverse();
        Ok(parts.into_iter().flatten().collect())
    }

    /// When the first entry of a transaction was written, of those that the log holds before this one of its entries.
    pub(crate) fn first_of_chain(&self, entry: &RawDocument) -> Result<u64> {
        let mut first = entry_position(entry)?.op_time.timestamp.as_u64();
        let mut previous = previous_of(entry);
        for _ in 0..MAX_ENTRIES {
            let Some(timestamp) = previous else { break };
            let Some(found) = self.chain_entry(timestamp)? else { break };
            (first, previous) = (timestamp, previous_of(&found));
        }
        Ok(first)
    }

    fn chain_entry(&self, timestamp: u64) -> Result<Option<RawDocumentBuf>> {
        let at = Bound::Included(RecordId(timestamp));
        let found = self.newest_view().scan_oplog((at, at), Direction::Forward)?.next();
        found.map(|pair| parse_record(&pair?.1)).transpose()
    }

    /// Applies a transaction that another member committed, whole, with its last entry.
    pub(crate) fn apply_transaction(
        &mut self,
        entry: &RawDocument,
        apply: impl Fn(&mut Self, &RawDocument) -> Result<()>,
    ) -> Result<()> {
        let object = object_of(entry)?;
        if is_partial(object) {
            return Ok(());
        }
        let operations = self.chain_operations(entry)?;
        let (before, committed) = (self.view().clone(), self.last_sequence);
        self.begin_stage();
        let applied = operations.iter().try_for_each(|(operation, _)| {
            self.replay_operation(operation);
            apply(self, operation).map(|()| self.stage_unapplied())
        });
        let staged = self.take_staged();
        applied?;
        if self.last_sequence == committed {
            self.keep_view(before);
        }
        let Some(stage) = staged else { return Ok(()) };
        let Some(entry) = self.take_replayed() else { return Ok(()) };
        let position = entry.position;
        let mut batch = stage.overlay.to_batch();
        let undo = match session_of(&entry)? {
            Some((session, number)) => {
                let undo = self.undo_of(Some(&session), &stage.operations)?;
                self.put_session_row(&mut batch, &session, number, position);
                undo
            }
            None => self.undo_of(None, &stage.operations)?,
        };
        self.put_entry(&mut batch, entry.bytes(), position, Some(&undo.into()), None);
        if stage.keeps_images && !self.log_state.is_over_copy() {
            for (index, (operation, (_, at))) in
                stage.operations.iter().zip(&operations).enumerate()
            {
                let catalog = &stage.catalog;
                self.keep_image_of_operation(&mut batch, catalog, operation, *at, index as i64)?;
            }
        }
        let changed = stage.changes_catalog.then(|| (*stage.catalog).clone());
        self.commit_staged(batch, changed, &stage)
    }

    /// Takes a whole transaction back, with its last entry. `undo` undoes one operation.
    pub(crate) fn undo_transaction(
        &mut self,
        entry: &RawDocument,
        row: Option<&Document>,
        mut undo: impl FnMut(&mut Self, &RawDocument, Option<Document>) -> Result<()>,
    ) -> Result<()> {
        let Some(row) = row else { return Ok(()) };
        let steps = row.get_array("transaction").map_err(|_| broken("its undo row is damaged"))?;
        let operations = self.chain_operations(entry)?;
        self.begin_stage();
        let pairs = operations.iter().zip(steps).rev();
        let undone = pairs.into_iter().try_for_each(|((operation, _), step)| {
            let step = step.as_document().filter(|step| !step.is_empty()).cloned();
            undo(self, operation, step)
        });
        let staged = self.take_staged();
        undone?;
        let Some(stage) = staged else { return Ok(()) };
        let mut batch = stage.overlay.to_batch();
        if let Some((session, number)) = session_of(entry)? {
            let (keyspace, key) = (self.node.keyspaces().sessions, number_key(&session));
            match row.get_binary_generic("session") {
                Ok(before) => {
                    let before = self.row_before(&mut batch, &session, number, before)?;
                    batch.insert(keyspace, &key, before);
                }
                Err(_) => batch.remove(keyspace, &key),
            }
        }
        if let Some(Some((at, statement))) = self.take_undone() {
            self.unlog(&mut batch, at, statement.as_ref())?;
            // They were kept with the last entry. The other entries may stay in the log.
            let places = operations.iter().map(|(_, place)| place.op_time.timestamp.as_u64());
            let places: BTreeSet<u64> = places.collect();
            for place in places.into_iter().filter(|place| *place != at.timestamp.as_u64()) {
                self.forget_images(&mut batch, place)?;
            }
        }
        let changed = stage.changes_catalog.then(|| (*stage.catalog).clone());
        self.commit_staged(batch, changed, &stage)
    }

    /// A new primary ends a transaction whose last entry it never got: no member has applied it. Such
    /// entries can only stand at the end of the log.
    pub(crate) fn abort_unfinished_chain(&mut self, term: Term) -> Result<()> {
        let whole = (Bound::Unbounded, Bound::Unbounded);
        let newest = self.view().scan_oplog(whole, Direction::Backward)?.next();
        let Some(pair) = newest else { return Ok(()) };
        let entry = parse_record(&pair?.1)?;
        let is_unfinished = TransactionPart::of_raw(&entry) == Some(TransactionPart::Partial);
        let (true, Some((session, number))) = (is_unfinished, session_of(&entry)?) else {
            return Ok(());
        };
        let previous = entry_position(&entry)?.op_time;
        self.log_state.write_as(Some(term));
        let object = rawdoc! { "abortTransaction": 1 };
        let made = self.transaction_entry(&session, number, object, previous);
        self.log_state.write_as(None);
        let (entry, position) = made?;
        let mut batch = Batch::new();
        self.put_entry(&mut batch, entry.into_bytes().into(), position, None, None);
        self.commit(batch)
    }
}

/// The session and the number of an entry.
pub(super) fn session_of(entry: &RawDocument) -> Result<Option<(SessionId, i64)>> {
    let Some((lsid, number)) = session_in(entry) else { return Ok(None) };
    Ok(Some((SessionId::from_entry(lsid)?, number)))
}

fn operations_of(entry: &RawDocument) -> Result<Vec<(RawDocumentBuf, OpTimeAndWallTime)>> {
    let at = entry_position(entry)?;
    let object = object_of(entry)?;
    let operations = object.get_array("applyOps").map_err(|_| broken("it has no operations"))?;
    let mut found = Vec::new();
    for operation in operations {
        match operation {
            Ok(RawBsonRef::Document(operation)) => found.push((operation.to_owned(), at)),
            _ => return Err(broken("an operation is no document")),
        }
    }
    Ok(found)
}

/// Where the entry before is in the log.
pub(crate) fn previous_of(entry: &RawDocument) -> Option<u64> {
    let previous = entry.get_document("prevOpTime").ok()?.get_timestamp("ts").ok()?;
    let packed = timestamp_from(previous).as_u64();
    (packed > 0).then_some(packed)
}

fn broken(why: &str) -> CommandError {
    fail!(
        INTERNAL_ERROR,
        "the entries of a transaction do not fit together: {why}; resync this member"
    )
}

/// Room for the fields that a document with an array gets besides it.
const MORE_FIELDS: usize = 64;

/// A document whose only field is an array of documents.
fn document_with_array<'d>(
    name: &str,
    documents: impl Iterator<Item = &'d RawDocument> + Clone,
) -> RawDocumentBuf {
    let size: usize = documents.clone().map(|item| item.as_bytes().len() + AROUND_ITEM).sum();
    raw_document(size + name.len() + MORE_FIELDS, |fields| fields.raw_documents(name, documents))
}

fn chunks(operations: &[Undoable], limit: usize) -> Vec<&[Undoable]> {
    let mut chunks = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (place, (operation, _)) in operations.iter().enumerate() {
        let size = operation.as_bytes().len() + 16;
        if place > start && bytes + size > limit {
            chunks.push(&operations[start..place]);
            (start, bytes) = (place, 0);
        }
        bytes += size;
    }
    chunks.push(&operations[start..]);
    chunks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_split_before_entries_grow_too_large() {
        let operation = |bytes: usize| (rawdoc! { "o": "x".repeat(bytes) }, None);
        let small = [operation(10), operation(10)];
        assert_eq!(chunks(&small, MAX_ENTRY_BYTES).len(), 1);
        let large: Vec<_> = (0..4).map(|_| operation(7 * 1024 * 1024)).collect();
        let sizes: Vec<_> =
            chunks(&large, MAX_ENTRY_BYTES).iter().map(|chunk| chunk.len()).collect();
        assert_eq!(sizes, [2, 2]);
        let huge = [operation(16 * 1024 * 1024), operation(10)];
        assert_eq!(chunks(&huge, MAX_ENTRY_BYTES).len(), 2);
        assert_eq!(chunks(&[], MAX_ENTRY_BYTES).len(), 1);
    }
}
