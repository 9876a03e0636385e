//! The only way documents change: one atomic batch of document, index entries, oplog entry and
//! session row.
//!
//! Owns the write lock and everything that must change together. A writer sees its own commits:
//! it reads the newest snapshot, and no other writer commits while it lives. Waiting for the disk
//! happens after the lock is gone, so that one sync serves many writers.

mod announcement;
mod build;
mod capped;
mod catalog;
mod check;
mod judging;
mod lock;
mod oplog;
mod purge;
mod retry;
mod totals;
mod unique;
mod worker;

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use bson::{RawDocument, RawDocumentBuf, Timestamp};
use quorate_storage::key::RecordId;
use quorate_storage::{Batch, Bytes, CommitSequence, Direction, KeyRange};
use quorate_transactions::TransactionId;
use quorate_wire::to_bson_timestamp;

use self::announcement::Announcement;
use self::build::Build;
pub(crate) use self::check::{ChangedKeys, changed_keys, check_document, index_keys_of, keys_of};
use self::check::{duplicate_key, only_key_of};
use self::judging::Judging;
pub(crate) use self::lock::{Held, WriteLock};
pub(crate) use self::oplog::{
    Account, ENTRY_VERSION, Entry, Operation, Telling, oplog_namespace, with_room_for,
};
use self::purge::Discarded;
use self::retry::Retry;
pub(crate) use self::retry::{RetryableWrite, StatementIds};
pub(crate) use self::totals::{Growth, Totals};
pub(crate) use self::worker::Worker;
use crate::catalog::{Collection, Ident, Index};
use crate::context::{Interrupt, Now};
use crate::error::Result;
use crate::generator::Generator;
use crate::index_keys::{DocumentKeys, leading_id};
use crate::namespace::Namespace;
use crate::node::Node;
use crate::records::{DocumentBytes, EMPTY_DOCUMENT, View, index_entry, record_key};
use crate::replication::LogState;
use crate::structure::malformed;
use crate::transactions::{Ongoing, Staging};

/// Inserts are joined into batches of about this size.
const MAX_BATCH_BYTES: usize = 4 * 1024 * 1024;

/// Documents of a command for which room is made before they are looked at.
const MAX_ROOM: usize = 1024;

/// Entries of the history that are moved with one commit.
const MOVE_STEP: usize = 1000;

/// What only the holder of the write lock may touch.
pub(crate) struct WriterState {
    pub(crate) generator: Generator,
    collections: BTreeMap<Ident, CollectionState>,
    pub(crate) last_timestamp: Timestamp,
    /// Indexes that are being built.
    builds: Vec<Build>,
    /// What was dropped and may have lost tables, by its ident.
    discarded: BTreeMap<Ident, Discarded>,
    /// Of unique indexes that were written to: no key of theirs is greater.
    greatest_keys: BTreeMap<Ident, Vec<u8>>,
    /// Open transactions, and the keys that they hold.
    pub(crate) transactions: Ongoing,
}

impl WriterState {
    pub(crate) fn new(seed: u64) -> Self {
        let last_timestamp = Timestamp { time: 0, increment: 0 };
        Self {
            generator: Generator::new(seed),
            collections: BTreeMap::new(),
            last_timestamp,
            builds: Vec::new(),
            discarded: BTreeMap::new(),
            greatest_keys: BTreeMap::new(),
            transactions: Ongoing::default(),
        }
    }
}

/// What is known about a collection without looking at the store. Filled when first needed.
#[derive(Clone, Copy, Debug, Default)]
struct CollectionState {
    next_record: Option<RecordId>,
    totals: Option<Totals>,
    /// By how much it has grown since the start.
    grown: Growth,
    /// How often documents were changed since the start.
    changes: u64,
}

/// The holder of the write lock.
pub(crate) struct Writer<'n> {
    pub(crate) node: &'n Node,
    pub(crate) state: Held<'n>,
    now: Now,
    /// What it reads, once it has been asked for: see [`view`](Self::view).
    view: OnceCell<View>,
    pub(crate) last_sequence: Option<CommitSequence>,
    /// How changes are logged.
    pub(crate) log_state: LogState,
    /// The retryable write that the changes belong to.
    retry: Option<Retry>,
    /// The one that the entry applied last belongs to; the next one is likely to as well.
    replayed: Option<Retry>,
    /// Changes that wait to be committed together. The view does not show them.
    deferred: Option<Batch>,
    /// Whether what is about to be committed may change the set's default concerns.
    pub(crate) touches_settings: bool,
    /// Where changes go if not to the store.
    pub(crate) staging: Option<Staging>,
    /// The command that the writer works for, if that may wait.
    pub(crate) interrupt: Option<Arc<Interrupt>>,
    /// The command whose expressions are evaluated under the lock.
    pub(crate) worker: Option<Worker>,
    /// The transaction that the last refused change has to wait for.
    pub(crate) blocked: Option<TransactionId>,
    /// Whether the command waits where it is held up, at once or once it has given up a step.
    pub(crate) waits: bool,
    pub(crate) judging: Judging,
    /// Keys that the next commit changes, for open transactions.
    pub(crate) reserved: Vec<Vec<u8>>,
    /// Dropped after the write lock, which is declared above it.
    pub(crate) announcement: Announcement<'n>,
}

/// A document that is about to be inserted.
struct Staged {
    document: DocumentBytes,
    place: Placed,
    /// The number of its statement within a retryable write.
    statement: Option<i32>,
}

/// Where a document goes.
struct Placed {
    record: RecordId,
    /// Which of the pending entries are its own.
    entries: Range<usize>,
    /// Indexes that see an array for the first time.
    multikey: Vec<usize>,
}

impl<'n> Writer<'n> {
    pub(crate) fn new(node: &'n Node, state: Held<'n>, now: Now) -> Self {
        let log_state = LogState::default();
        Self {
            node,
            state,
            now,
            view: OnceCell::new(),
            last_sequence: None,
            log_state,
            retry: None,
            replayed: None,
            deferred: None,
            touches_settings: false,
            staging: None,
            interrupt: None,
            worker: None,
            blocked: None,
            waits: false,
            judging: Judging::default(),
            reserved: Vec::new(),
            announcement: Announcement::new(node),
        }
    }

    pub(crate) fn node(&self) -> &'n Node {
        self.node
    }

    /// The state after the last commit, with the changes of the stage if there is one. Taken when it is first asked
    /// for: no other writer commits meanwhile, and many holders of the lock read nothing.
    pub(crate) fn view(&self) -> &View {
        self.view.get_or_init(|| match &self.staging {
            Some(staging) => staging.view(self.node),
            None => self.node.view(),
        })
    }

    /// The state is still, or again, what this view shows.
    pub(crate) fn keep_view(&mut self, view: View) {
        self.view = OnceCell::from(view);
    }

    /// The state is another one than the view shows.
    pub(crate) fn forget_view(&mut self) {
        self.view = OnceCell::new();
    }

    pub(crate) fn generator(&mut self) -> &mut Generator {
        &mut self.state.generator
    }

    pub(crate) fn now(&self) -> Now {
        self.now
    }

    /// A timestamp after every other that this member gave out.
    pub(crate) fn next_timestamp(&mut self) -> Timestamp {
        let seconds = (self.now.wall.as_millis() / 1000) as u32;
        let seen = to_bson_timestamp(self.node.cluster_time());
        let last = &mut self.state.last_timestamp;
        *last = (*last).max(seen);
        *last = match last.increment.checked_add(1) {
            _ if seconds > last.time => Timestamp { time: seconds, increment: 1 },
            Some(increment) => Timestamp { time: last.time, increment },
            None => Timestamp { time: last.time + 1, increment: 1 },
        };
        *last
    }

    pub(crate) fn collection(&self, namespace: &Namespace) -> Option<Arc<Collection>> {
        self.catalog().get(namespace).cloned()
    }

    /// Inserts documents in order. The result has one entry per document that was tried; an
    /// ordered insert ends at the first error.
    pub(crate) fn insert(
        &mut self,
        collection: &mut Arc<Collection>,
        documents: Vec<impl Into<DocumentBytes>>,
        ordered: bool,
        bypass_validation: bool,
    ) -> Result<Vec<Result<()>>> {
        let documents = documents.into_iter().map(|document| (document.into(), None));
        self.insert_with_keys(collection, documents, ordered, bypass_validation)
    }

    /// Inserts documents, some of whose keys are known, as [`insert`](Self::insert) does.
    pub(crate) fn insert_with_keys(
        &mut self,
        collection: &mut Arc<Collection>,
        documents: impl ExactSizeIterator<Item = (DocumentBytes, Option<Vec<DocumentKeys>>)>,
        ordered: bool,
        bypass_validation: bool,
    ) -> Result<Vec<Result<()>>> {
        let mut results = Vec::with_capacity(documents.len());
        let mut pending = PendingInserts::default();
        pending.staged.reserve(documents.len().min(MAX_ROOM));
        pending.is_load = documents.len() >= LOAD;
        pending.entries.reserve(documents.len().min(MAX_ROOM) * collection.indexes.len());
        for (place, (document, keys)) in documents.enumerate() {
            // Known keys stay right: callers that have made them evaluate nothing, and never give way here.
            if place > 0 && self.has_evaluated_for_long() {
                self.commit_inserts(collection, &mut pending)?;
                self.give_way_if_long()?;
                *collection = self.collection_or_create(&collection.namespace)?;
            }
            let upsert = self.current_statement();
            if self.is_retryable() && upsert.is_none() && self.earlier_result(place).is_some() {
                results.push(Ok(()));
                continue;
            }
            let document = match self.with_id(document) {
                Ok(document) => document,
                Err(error) => {
                    results.push(Err(error));
                    if ordered {
                        break;
                    }
                    continue;
                }
            };
            let mut placed =
                self.place_insert(collection, &document, keys, &mut pending, bypass_validation);
            while placed.is_err() && self.is_held_up() {
                self.commit_inserts(collection, &mut pending)?;
                if !self.wait_if_blocked()? {
                    break;
                }
                *collection = self.collection_or_create(&collection.namespace)?;
                if upsert.is_none() && self.earlier_result(place).is_some() {
                    break;
                }
                placed =
                    self.place_insert(collection, &document, None, &mut pending, bypass_validation);
            }
            if placed.is_err() && upsert.is_none() && self.earlier_result(place).is_some() {
                // A repetition of the command was faster.
                results.push(Ok(()));
                continue;
            }
            let failed = placed.is_err();
            let statement = upsert.or_else(|| self.statement_id(place));
            results.push(placed.map(|place| pending.add(Staged { document, place, statement })));
            if pending.bytes > MAX_BATCH_BYTES || collection.capped.is_some() {
                self.commit_inserts(collection, &mut pending)?;
            }
            if failed && ordered {
                break;
            }
        }
        self.commit_inserts(collection, &mut pending)?;
        Ok(results)
    }

    /// Checks a document that is to be inserted, and finds its place. One that has none changes nothing.
    fn place_insert(
        &mut self,
        collection: &Collection,
        document: &RawDocument,
        keys: Option<Vec<DocumentKeys>>,
        pending: &mut PendingInserts,
        bypass_validation: bool,
    ) -> Result<Placed> {
        let (reserved, entries) = (self.reserved.len(), pending.entries.len());
        let placed = self.try_place_insert(collection, document, keys, pending, bypass_validation);
        if placed.is_err() {
            self.reserved.truncate(reserved);
            pending.entries.truncate(entries);
        }
        placed
    }

    fn try_place_insert(
        &mut self,
        collection: &Collection,
        document: &RawDocument,
        keys: Option<Vec<DocumentKeys>>,
        pending: &mut PendingInserts,
        bypass_validation: bool,
    ) -> Result<Placed> {
        check_document(document)?;
        if !bypass_validation {
            self.check_validator(collection, document, None)?;
        }
        let record = self.next_record(collection)?;
        let (first, mut multikey) = (pending.entries.len(), Vec::new());
        let mut known = keys.map(Vec::into_iter);
        for (place, index) in collection.indexes.iter().enumerate() {
            let known = known.as_mut().and_then(Iterator::next);
            if known.is_none() && only_key_of(index, document, &mut pending.key)? {
                let entry = index_entry(index, &pending.key, record);
                if index.is_id() {
                    match pending.is_load || self.is_replaying() {
                        true => self.node.places().learn_if_asked(&entry.0, record),
                        false => self.node.places().learn(&entry.0, record),
                    }
                }
                self.add_entry((collection, index), entry, document, pending)?;
                continue;
            }
            let keys = known.map_or_else(|| index_keys_of(index, document), Ok)?;
            if keys.multikey && !index.multikey && !pending.multikey.contains(&place) {
                multikey.push(place);
            }
            for key in &keys.keys {
                let entry = index_entry(index, key, record);
                self.add_entry((collection, index), entry, document, pending)?;
            }
        }
        self.advance_record(collection, record);
        Ok(Placed { record, entries: first..pending.entries.len(), multikey })
    }

    /// Adds an entry of a document, unless the index is unique and has it already.
    fn add_entry(
        &mut self,
        (collection, index): (&Collection, &Index),
        (entry, value): (Bytes, Bytes),
        document: &RawDocument,
        pending: &mut PendingInserts,
    ) -> Result<()> {
        if index.unique {
            self.reserve(&entry)?;
            let rises = self.raise_greatest(index, &entry)?;
            // Entries of the log were checked by the primary that wrote them.
            let is_free = rises || self.log_state.fits_exactly();
            if !is_free
                && (pending.has_unique(&entry) || self.view().unique_entry(&entry)?.is_some())
            {
                return Err(duplicate_key(collection, index, document));
            }
        }
        pending.entries.push((entry, value));
        Ok(())
    }

    fn commit_inserts(
        &mut self,
        collection: &mut Arc<Collection>,
        pending: &mut PendingInserts,
    ) -> Result<()> {
        if pending.staged.is_empty() {
            return Ok(());
        }
        let pending = std::mem::take(pending);
        self.note_multikey(collection, &pending.multikey)?;
        let keyspaces = self.node.keyspaces();
        // Each document with its place in the log, and its entries in indexes.
        let operations = 2 * pending.staged.len() + pending.entries.len();
        let mut batch = Batch::with_room_for(operations);
        let mut added = Totals::default();
        let mut all = pending.entries.into_iter();
        for staged in pending.staged {
            let Placed { record, entries, .. } = staged.place;
            added.documents += 1;
            added.bytes += staged.document.as_bytes().len() as u64;
            self.log_insert(&mut batch, collection, &staged.document, staged.statement)?;
            if let Some(statement) = staged.statement
                && self.current_statement().is_none()
            {
                self.record(&mut batch, statement, &EMPTY_DOCUMENT)?;
            }
            self.note_change(collection.ident, record);
            let key = record_key(collection.ident, record);
            batch.insert(keyspaces.records, key, self.stored_document(staged.document));
            for (entry, value) in all.by_ref().take(entries.len()) {
                batch.insert(keyspaces.indexes, entry, value);
            }
        }
        self.commit_and_trim(batch, collection, added)
    }

    /// Replaces a stored document by another with the same `_id`.
    pub(crate) fn replace(
        &mut self,
        collection: &mut Arc<Collection>,
        record: RecordId,
        old: &RawDocument,
        new: RawDocumentBuf,
        telling: Telling<'_>,
        bypass_validation: bool,
    ) -> Result<()> {
        self.check_interrupt()?;
        match telling.account {
            // It was put together of what is stored and of what was checked when it arrived.
            Account::Known(_) => debug_assert!(check_document(&new).is_ok(), "{new:?}"),
            Account::Compared { .. } => check_document(&new)?,
        }
        if !bypass_validation {
            self.check_validator(collection, &new, Some(old))?;
        }
        let keys = changed_keys(collection, (old, &new), telling.touches)?;
        self.check_interrupt()?;
        self.replace_with_keys(collection, record, (old, new), keys, telling)
    }

    /// Replaces a document by one that was checked before. With them come the keys that may differ.
    pub(crate) fn replace_with_keys(
        &mut self,
        collection: &mut Arc<Collection>,
        record: RecordId,
        (old, new): (&RawDocument, RawDocumentBuf),
        keys: Vec<ChangedKeys>,
        telling: Telling<'_>,
    ) -> Result<()> {
        let keyspaces = self.node.keyspaces();
        let mut batch = Batch::new();
        let mut multikey = BTreeSet::new();
        self.reserved.clear();
        self.reserve(&record_key(collection.ident, record))?;
        for ChangedKeys { place, before, after } in keys {
            let Some(index) = collection.indexes.get(place) else { continue };
            if after.multikey && !index.multikey {
                multikey.insert(place);
            }
            for key in before.keys.difference(&after.keys) {
                let (entry, _) = index_entry(index, key, record);
                if index.unique {
                    self.reserve(&entry)?;
                }
                batch.remove(keyspaces.indexes, entry);
            }
            for key in after.keys.difference(&before.keys) {
                let (entry, value) = index_entry(index, key, record);
                if index.unique {
                    self.reserve(&entry)?;
                    if self.is_taken(index, &entry)? {
                        return Err(duplicate_key(collection, index, &new));
                    }
                }
                batch.insert(keyspaces.indexes, entry, value);
            }
        }
        self.note_change(collection.ident, record);
        self.note_multikey(collection, &multikey)?;
        self.log_update(&mut batch, collection, old, &new, telling)?;
        let growth = new.as_bytes().len() as i64 - old.as_bytes().len() as i64;
        let stored = match telling.account {
            // The entry does not hold it.
            Account::Known(Some(_)) => DocumentBytes::from(new).into(),
            _ => self.stored_document(new),
        };
        batch.insert(keyspaces.records, record_key(collection.ident, record), stored);
        self.commit(batch)?;
        self.grow_totals(collection.ident, 0, growth);
        Ok(())
    }

    /// Removes a stored document.
    pub(crate) fn remove(
        &mut self,
        collection: &Collection,
        record: RecordId,
        document: &RawDocument,
    ) -> Result<()> {
        let keys = keys_of(collection, document)?;
        self.remove_with_keys(collection, record, document, keys)
    }

    /// Removes a stored document whose keys are known.
    pub(crate) fn remove_with_keys(
        &mut self,
        collection: &Collection,
        record: RecordId,
        document: &RawDocument,
        keys: Vec<DocumentKeys>,
    ) -> Result<()> {
        self.reserved.clear();
        let mut batch = Batch::new();
        self.stage_removal(&mut batch, collection, record, document, keys)?;
        self.commit(batch)?;
        self.grow_totals(collection.ident, -1, -(document.as_bytes().len() as i64));
        Ok(())
    }

    /// Puts the removal of a document and its index entries into a batch.
    fn stage_removal(
        &mut self,
        batch: &mut Batch,
        collection: &Collection,
        record: RecordId,
        document: &RawDocument,
        keys: Vec<DocumentKeys>,
    ) -> Result<()> {
        // Open snapshots still show the record: its number must not be given to another one.
        self.next_record(collection)?;
        self.reserve(&record_key(collection.ident, record))?;
        for (index, keys) in collection.indexes.iter().zip(&keys).filter(|(index, _)| index.unique)
        {
            for key in &keys.keys {
                self.reserve(&index_entry(index, key, record).0)?;
            }
        }
        self.note_change(collection.ident, record);
        let keyspaces = self.node.keyspaces();
        self.log_delete(batch, collection, record, document)?;
        batch.remove(keyspaces.records, record_key(collection.ident, record));
        for (index, keys) in collection.indexes.iter().zip(keys) {
            for key in &keys.keys {
                batch.remove(keyspaces.indexes, index_entry(index, key, record).0);
            }
        }
        Ok(())
    }

    pub(crate) fn commit(&mut self, mut batch: Batch) -> Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        if self.is_staging() {
            return self.stage(batch);
        }
        self.tell_changed();
        self.record_current(&mut batch)?;
        self.commit_or_defer(batch)
    }

    /// Commits a batch by itself, or with others if changes are deferred.
    pub(crate) fn commit_or_defer(&mut self, batch: Batch) -> Result<()> {
        if let Some(deferred) = &mut self.deferred {
            deferred.append(batch);
            return if deferred.byte_size() > MAX_BATCH_BYTES { self.flush() } else { Ok(()) };
        }
        let sequence = self.node.commit(batch)?;
        self.after_commit(sequence);
        Ok(())
    }

    /// From now on changes are committed together, by [`flush`](Self::flush). The caller sees to it
    /// that no change looks at what an earlier one touched.
    pub(crate) fn defer(&mut self) {
        if self.is_staging() {
            return;
        }
        self.deferred = Some(Batch::new());
    }

    /// Commits what was deferred.
    pub(crate) fn flush(&mut self) -> Result<()> {
        let Some(deferred) = &mut self.deferred else { return Ok(()) };
        let batch = std::mem::take(deferred);
        if batch.is_empty() {
            return Ok(());
        }
        let sequence = self.node.commit(batch)?;
        self.after_commit(sequence);
        Ok(())
    }

    /// Commits what was deferred; from now on every change is committed by itself again.
    pub(crate) fn settle(&mut self) -> Result<()> {
        let flushed = self.flush();
        self.deferred = None;
        flushed
    }

    /// Commits what was deferred and lets other writers go first. Afterwards the view is the newest, nothing that was
    /// looked up before need be as it was, and a retryable write knows what a repetition of it did meanwhile.
    pub(crate) fn give_way(&mut self) -> Result<()> {
        self.flush()?;
        self.announcement.tell();
        self.state.give_way();
        self.note_lock(true);
        if !self.is_staging() {
            self.forget_view();
        }
        self.look_for_repetition()
    }

    /// How often documents of a collection were changed; two equal answers mean that none was between.
    pub(crate) fn changes_of(&self, ident: Ident) -> u64 {
        self.state.collections.get(&ident).map_or(0, |state| state.changes)
    }

    /// Moves the entries of the history from the records, where format 1 kept them, to the log.
    pub(crate) fn move_history(&mut self, oplog: Ident) -> Result<()> {
        let keyspaces = self.node.keyspaces();
        loop {
            let range = KeyRange::prefix(&oplog.prefix());
            let rows = self.view().snapshot.scan(keyspaces.records, range, Direction::Forward)?;
            let mut batch = Batch::new();
            for pair in rows.take(MOVE_STEP) {
                let (key, entry) = pair?;
                let Some(record) = RecordId::from_suffix(&key) else { continue };
                batch.append_to_log(keyspaces.oplog, record.0, entry);
                batch.remove(keyspaces.records, key);
            }
            if batch.is_empty() {
                return Ok(());
            }
            self.commit(batch)?;
        }
    }

    /// A history that is made begins with no entry.
    pub(crate) fn clear_history(&mut self) -> Result<()> {
        let mut batch = Batch::new();
        batch.cut_log(self.node.keyspaces().oplog, 0);
        self.commit(batch)
    }

    /// Goes on from the newest entry of the history.
    pub(crate) fn resume_timestamps(&mut self, oplog: Ident) -> Result<()> {
        if let Some(pair) = self.view().scan_records(oplog, Direction::Backward)?.next() {
            let packed = RecordId::from_suffix(&pair?.0).map_or(0, |record| record.0);
            self.state.last_timestamp =
                Timestamp { time: (packed >> 32) as u32, increment: packed as u32 };
        }
        Ok(())
    }

    fn next_record(&mut self, collection: &Collection) -> Result<RecordId> {
        let known = self.state.collections.get(&collection.ident).and_then(|s| s.next_record);
        if let Some(next) = known {
            return Ok(next);
        }
        let view = self.newest_view();
        let last = view.scan_records(collection.ident, Direction::Backward)?.next();
        let last = match last {
            Some(pair) => RecordId::from_suffix(&pair?.0).map_or(0, |record| record.0),
            None => 0,
        };
        let next = RecordId(last + 1);
        self.state.collections.entry(collection.ident).or_default().next_record = Some(next);
        Ok(next)
    }

    fn advance_record(&mut self, collection: &Collection, used: RecordId) {
        let state = self.state.collections.entry(collection.ident).or_default();
        state.next_record = Some(RecordId(used.0 + 1));
    }

    /// The document with an `_id` as its first field, made up if there is none.
    fn with_id(&mut self, document: DocumentBytes) -> Result<DocumentBytes> {
        if leading_id(&document).is_some() {
            return Ok(document);
        }
        let mut completed = RawDocumentBuf::new();
        match document.get("_id") {
            Ok(Some(id)) => completed.append(bson::raw::cstr!("_id"), id),
            _ => {
                let id = self.state.generator.object_id(self.now.wall);
                completed.append(bson::raw::cstr!("_id"), id);
            }
        }
        for element in &*document {
            let (name, value) = element.map_err(|_| malformed())?;
            if name != "_id" {
                completed.append(name, value);
            }
        }
        Ok(completed.into())
    }
}

#[derive(Default)]
struct PendingInserts {
    staged: Vec<Staged>,
    /// The keys and values of their index entries, those of one document after the other's.
    entries: Vec<(Bytes, Bytes)>,
    /// The entries of unique indexes among them, once one was asked for: keys that rise are not.
    unique: Option<BTreeSet<Bytes>>,
    multikey: BTreeSet<usize>,
    bytes: usize,
    /// Room for the key of a document.
    key: Vec<u8>,
    /// Whether they are part of a load of many.
    is_load: bool,
}

/// So many documents of one command are a load: most of them are not asked for soon.
const LOAD: usize = 16;

impl PendingInserts {
    fn add(&mut self, mut staged: Staged) {
        self.bytes += staged.document.as_bytes().len();
        let entries = &self.entries[staged.place.entries.clone()];
        self.bytes += entries.iter().map(|(key, _)| key.len()).sum::<usize>();
        if let Some(unique) = &mut self.unique {
            unique.extend(unique_among(entries));
        }
        self.multikey.extend(std::mem::take(&mut staged.place.multikey));
        self.staged.push(staged);
    }

    /// Whether one of them has an entry of a unique index.
    fn has_unique(&mut self, entry: &Bytes) -> bool {
        let end = self.staged.last().map_or(0, |staged| staged.place.entries.end);
        let known = || unique_among(&self.entries[..end]).collect();
        self.unique.get_or_insert_with(known).contains(entry)
    }
}

/// The entries of unique indexes, which have the record as their value.
fn unique_among(entries: &[(Bytes, Bytes)]) -> impl Iterator<Item = Bytes> {
    entries.iter().filter(|(_, value)| !value.is_empty()).map(|(entry, _)| entry.clone())
}
