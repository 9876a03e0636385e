//! The only way documents change: one atomic batch of document, index entries, oplog entry and
//! session row.
//!
//! Owns the write lock and everything that must change together. A writer sees its own commits:
//! it reads the newest snapshot, and nobody else commits while it lives. Waiting for the disk
//! happens after the lock is gone, so that one sync serves many writers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, MutexGuard};

use bson::{Bson, Document, RawBsonRef, RawDocument, RawDocumentBuf, Timestamp};
use quorate_query::value::{DocumentRef, MAX_NESTING};
use quorate_storage::key::RecordId;
use quorate_storage::{Batch, CommitSequence, Direction, KeyRange};

use crate::catalog::{Catalog, Collection, ID_INDEX, Ident, Index};
use crate::context::Now;
use crate::error::{CommandError, ErrorCode};
use crate::generator::Generator;
use crate::index_keys::{DocumentKeys, document_keys};
use crate::namespace::Namespace;
use crate::node::Node;
use crate::records::{View, index_entry, parse_record, record_key};

/// The largest document that may be stored.
pub(crate) const MAX_DOCUMENT_BYTES: usize = 16 * 1024 * 1024;

/// Inserts are joined into batches of about this size.
const MAX_BATCH_BYTES: usize = 4 * 1024 * 1024;

/// Levels that a command adds around the documents in it.
const COMMAND_WRAPPING: usize = 20;

/// Keys of dropped collections removed in one step of maintenance.
const PURGE_STEP: usize = 1000;

/// What only the holder of the write lock may touch.
pub(crate) struct WriterState {
    pub(crate) generator: Generator,
    collections: BTreeMap<Ident, CollectionState>,
    last_timestamp: Timestamp,
}

impl WriterState {
    pub(crate) fn new(seed: u64) -> Self {
        let last_timestamp = Timestamp { time: 0, increment: 0 };
        Self { generator: Generator::new(seed), collections: BTreeMap::new(), last_timestamp }
    }
}

/// What is known about a collection without looking at the store. Filled when first needed.
#[derive(Clone, Copy, Debug, Default)]
struct CollectionState {
    next_record: Option<RecordId>,
    totals: Option<Totals>,
}

/// How much a collection holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) documents: u64,
    pub(crate) bytes: u64,
}

/// The holder of the write lock.
pub(crate) struct Writer<'n> {
    node: &'n Node,
    state: MutexGuard<'n, WriterState>,
    now: Now,
    view: View,
    last_commit: Option<CommitSequence>,
}

/// A document that is about to be inserted.
struct Staged {
    record: RecordId,
    document: RawDocumentBuf,
    entries: Vec<(Vec<u8>, Vec<u8>)>,
    unique: Vec<Vec<u8>>,
    /// Indexes that see an array for the first time.
    multikey: Vec<usize>,
}

impl<'n> Writer<'n> {
    pub(crate) fn new(node: &'n Node, state: MutexGuard<'n, WriterState>, now: Now) -> Self {
        let view = node.view();
        Self { node, state, now, view, last_commit: None }
    }

    /// The newest commit of this writer: what a durable write waits for.
    pub(crate) fn last_commit(&self) -> Option<CommitSequence> {
        self.last_commit
    }

    /// The state after the last commit.
    pub(crate) fn view(&self) -> &View {
        &self.view
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
        let last = &mut self.state.last_timestamp;
        *last = if seconds > last.time {
            Timestamp { time: seconds, increment: 1 }
        } else {
            Timestamp { time: last.time, increment: last.increment + 1 }
        };
        *last
    }

    pub(crate) fn collection(&self, namespace: &Namespace) -> Option<Arc<Collection>> {
        self.node.catalog().get(namespace).cloned()
    }

    /// The collection of this name, created without options if it does not exist.
    pub(crate) fn collection_or_create(
        &mut self,
        namespace: &Namespace,
    ) -> Result<Arc<Collection>, CommandError> {
        match self.collection(namespace) {
            Some(collection) if collection.view.is_some() => Err(CommandError::new(
                ErrorCode::COMMAND_NOT_SUPPORTED_ON_VIEW,
                format!("Namespace {namespace} is a view, not a collection"),
            )),
            Some(collection) => Ok(collection),
            None => self.create_collection(namespace, Document::new()),
        }
    }

    pub(crate) fn create_collection(
        &mut self,
        namespace: &Namespace,
        options: Document,
    ) -> Result<Arc<Collection>, CommandError> {
        let uuid = self.state.generator.uuid();
        let namespace = namespace.clone();
        self.change_catalog(move |catalog, keyspace, batch| {
            let ident = catalog.allocate_ident();
            let mut collection = Collection::new(namespace, ident, uuid, options)?;
            if collection.view.is_none() {
                let spec = bson::doc! { "v": 2, "key": { "_id": 1 }, "name": ID_INDEX };
                let index = Index::from_spec(catalog.allocate_ident(), spec)?;
                collection.indexes.push(Arc::new(index));
            }
            catalog.put(collection, keyspace, batch)
        })
    }

    /// Removes a collection. Its keys are purged later, by [`purge_step`](Self::purge_step).
    pub(crate) fn drop_collection(&mut self, collection: &Collection) -> Result<(), CommandError> {
        self.state.collections.remove(&collection.ident);
        self.change_catalog(|catalog, keyspace, batch| {
            catalog.take(&collection.namespace, keyspace, batch);
            catalog.discard(collection.ident, keyspace, batch);
            for index in &collection.indexes {
                catalog.discard(index.ident, keyspace, batch);
            }
            Ok(())
        })
    }

    /// Gives a collection another name, in place of any collection that has it.
    pub(crate) fn rename_collection(
        &mut self,
        collection: &Collection,
        target: &Namespace,
    ) -> Result<(), CommandError> {
        if let Some(existing) = self.collection(target) {
            self.drop_collection(&existing)?;
        }
        let renamed = Collection { namespace: target.clone(), ..collection.clone() };
        self.change_catalog(|catalog, keyspace, batch| {
            catalog.take(&collection.namespace, keyspace, batch);
            catalog.put(renamed, keyspace, batch).map(drop)
        })
    }

    /// Replaces the description of a collection: its options or indexes.
    pub(crate) fn alter_collection(
        &mut self,
        collection: Collection,
    ) -> Result<Arc<Collection>, CommandError> {
        self.change_catalog(|catalog, keyspace, batch| catalog.put(collection, keyspace, batch))
    }

    /// Changes the catalog in the store and in memory, or neither.
    fn change_catalog<T>(
        &mut self,
        change: impl FnOnce(
            &mut Catalog,
            quorate_storage::KeyspaceId,
            &mut Batch,
        ) -> Result<T, CommandError>,
    ) -> Result<T, CommandError> {
        let keyspace = self.node.keyspaces().catalog;
        let mut batch = Batch::new();
        let mut catalog = (*self.node.catalog()).clone();
        let result = change(&mut catalog, keyspace, &mut batch)?;
        self.last_commit = Some(self.node.commit_catalog(batch, catalog)?);
        self.view = self.node.view();
        Ok(result)
    }

    /// Inserts documents in order. The result has one entry per document that was tried; an
    /// ordered insert ends at the first error.
    pub(crate) fn insert(
        &mut self,
        collection: &mut Arc<Collection>,
        documents: Vec<RawDocumentBuf>,
        ordered: bool,
        bypass_validation: bool,
    ) -> Result<Vec<Result<(), CommandError>>, CommandError> {
        let mut results = Vec::with_capacity(documents.len());
        let mut pending = PendingInserts::default();
        for document in documents {
            let staged = self.stage_insert(collection, document, &pending, bypass_validation);
            let failed = staged.is_err();
            results.push(staged.map(|staged| pending.add(staged)));
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

    fn stage_insert(
        &mut self,
        collection: &Collection,
        document: RawDocumentBuf,
        pending: &PendingInserts,
        bypass_validation: bool,
    ) -> Result<Staged, CommandError> {
        let document = self.with_id(document)?;
        check_document(&document)?;
        if !bypass_validation {
            check_validator(collection, &document)?;
        }
        let record = self.next_record(collection)?;
        let mut staged = Staged {
            record,
            document,
            entries: Vec::new(),
            unique: Vec::new(),
            multikey: Vec::new(),
        };
        for (place, index) in collection.indexes.iter().enumerate() {
            let keys = index_keys_of(index, &staged.document)?;
            if keys.multikey && !index.multikey && !pending.multikey.contains(&place) {
                staged.multikey.push(place);
            }
            for key in &keys.keys {
                let (entry, value) = index_entry(index, key, record);
                if index.unique {
                    let taken = pending.unique.contains(&entry)
                        || self.view.unique_record(index, key)?.is_some();
                    if taken {
                        return Err(duplicate_key(collection, index, &staged.document));
                    }
                    staged.unique.push(entry.clone());
                }
                staged.entries.push((entry, value));
            }
        }
        self.advance_record(collection, record);
        Ok(staged)
    }

    fn commit_inserts(
        &mut self,
        collection: &mut Arc<Collection>,
        pending: &mut PendingInserts,
    ) -> Result<(), CommandError> {
        if pending.staged.is_empty() {
            return Ok(());
        }
        let pending = std::mem::take(pending);
        self.note_multikey(collection, &pending.multikey)?;
        let keyspaces = self.node.keyspaces();
        let mut batch = Batch::new();
        let mut added = Totals::default();
        for staged in pending.staged {
            added.documents += 1;
            added.bytes += staged.document.as_bytes().len() as u64;
            let key = record_key(collection.ident, staged.record);
            batch.insert(keyspaces.records, key, staged.document.into_bytes());
            for (entry, value) in staged.entries {
                batch.insert(keyspaces.indexes, entry, value);
            }
        }
        self.commit(batch)?;
        self.adjust_totals(collection, |totals| {
            totals.documents += added.documents;
            totals.bytes += added.bytes;
        });
        self.trim_capped(collection)
    }

    /// Replaces a stored document by another with the same `_id`.
    pub(crate) fn replace(
        &mut self,
        collection: &mut Arc<Collection>,
        record: RecordId,
        old: &RawDocument,
        new: RawDocumentBuf,
        bypass_validation: bool,
    ) -> Result<(), CommandError> {
        check_document(&new)?;
        if !bypass_validation {
            check_validator(collection, &new)?;
        }
        let keyspaces = self.node.keyspaces();
        let mut batch = Batch::new();
        let mut multikey = BTreeSet::new();
        for (place, index) in collection.indexes.iter().enumerate() {
            let before = index_keys_of(index, old)?;
            let after = index_keys_of(index, &new)?;
            if after.multikey && !index.multikey {
                multikey.insert(place);
            }
            for key in before.keys.difference(&after.keys) {
                batch.remove(keyspaces.indexes, index_entry(index, key, record).0);
            }
            for key in after.keys.difference(&before.keys) {
                if index.unique && self.view.unique_record(index, key)?.is_some() {
                    return Err(duplicate_key(collection, index, &new));
                }
                let (entry, value) = index_entry(index, key, record);
                batch.insert(keyspaces.indexes, entry, value);
            }
        }
        self.note_multikey(collection, &multikey)?;
        let (old_bytes, new_bytes) = (old.as_bytes().len() as u64, new.as_bytes().len() as u64);
        batch.insert(keyspaces.records, record_key(collection.ident, record), new.into_bytes());
        self.commit(batch)?;
        self.adjust_totals(collection, |totals| {
            totals.bytes = (totals.bytes + new_bytes).saturating_sub(old_bytes);
        });
        Ok(())
    }

    /// Removes a stored document.
    pub(crate) fn remove(
        &mut self,
        collection: &Collection,
        record: RecordId,
        document: &RawDocument,
    ) -> Result<(), CommandError> {
        let keyspaces = self.node.keyspaces();
        let mut batch = Batch::new();
        batch.remove(keyspaces.records, record_key(collection.ident, record));
        for index in &collection.indexes {
            for key in &index_keys_of(index, document)?.keys {
                batch.remove(keyspaces.indexes, index_entry(index, key, record).0);
            }
        }
        self.commit(batch)?;
        let bytes = document.as_bytes().len() as u64;
        self.adjust_totals(collection, |totals| {
            totals.documents = totals.documents.saturating_sub(1);
            totals.bytes = totals.bytes.saturating_sub(bytes);
        });
        Ok(())
    }

    /// Adds an index over the documents that are there.
    pub(crate) fn build_index(
        &mut self,
        collection: &mut Arc<Collection>,
        spec: Document,
        check: impl Fn() -> Result<(), CommandError>,
    ) -> Result<(), CommandError> {
        let ident = self.change_catalog(|catalog, keyspace, batch| {
            // Until the build is done its keys are garbage: a crash leaves nothing behind.
            let ident = catalog.allocate_ident();
            catalog.discard(ident, keyspace, batch);
            Ok(ident)
        })?;
        let mut index = Index::from_spec(ident, spec)?;
        let keyspaces = self.node.keyspaces();
        let mut batch = Batch::new();
        let mut pending = BTreeSet::new();
        for pair in self.view.scan_records(collection.ident, Direction::Forward)? {
            check()?;
            let (key, value) = pair?;
            let record = RecordId::from_suffix(&key).unwrap_or(RecordId(0));
            let document = parse_record(&value)?;
            let keys = index_keys_of(&index, &document)?;
            index.multikey |= keys.multikey;
            for key in &keys.keys {
                let (entry, value) = index_entry(&index, key, record);
                if index.unique {
                    let taken =
                        pending.contains(&entry) || self.view.unique_record(&index, key)?.is_some();
                    if taken {
                        return Err(duplicate_key(collection, &index, &document));
                    }
                    pending.insert(entry.clone());
                }
                batch.insert(keyspaces.indexes, entry, value);
            }
            if batch.byte_size() > MAX_BATCH_BYTES {
                self.commit(std::mem::take(&mut batch))?;
                pending.clear();
            }
        }
        self.commit(batch)?;
        let mut altered = (**collection).clone();
        altered.indexes.push(Arc::new(index));
        *collection = self.change_catalog(|catalog, keyspace, batch| {
            catalog.forget(ident, keyspace, batch);
            catalog.put(altered, keyspace, batch)
        })?;
        Ok(())
    }

    pub(crate) fn drop_index(
        &mut self,
        collection: &mut Arc<Collection>,
        name: &str,
    ) -> Result<(), CommandError> {
        let mut altered = (**collection).clone();
        let Some(place) = altered.indexes.iter().position(|index| index.name == name) else {
            return Ok(());
        };
        let index = altered.indexes.remove(place);
        *collection = self.change_catalog(|catalog, keyspace, batch| {
            catalog.discard(index.ident, keyspace, batch);
            catalog.put(altered, keyspace, batch)
        })?;
        Ok(())
    }

    /// How much the collection holds. The first call after a start looks at every record.
    pub(crate) fn totals(&mut self, collection: &Collection) -> Result<Totals, CommandError> {
        let known = self.state.collections.get(&collection.ident).and_then(|state| state.totals);
        if let Some(totals) = known {
            return Ok(totals);
        }
        let mut totals = Totals::default();
        for pair in self.view.scan_records(collection.ident, Direction::Forward)? {
            let (_, value) = pair?;
            totals.documents += 1;
            totals.bytes += value.len() as u64;
        }
        self.state.collections.entry(collection.ident).or_default().totals = Some(totals);
        Ok(totals)
    }

    /// Removes some keys of what was dropped. Returns whether there is more to do.
    pub(crate) fn purge_step(&mut self) -> Result<bool, CommandError> {
        let Some(ident) = self.node.catalog().first_dropped() else { return Ok(false) };
        let keyspaces = self.node.keyspaces();
        let mut batch = Batch::new();
        for keyspace in [keyspaces.records, keyspaces.indexes] {
            let range = KeyRange::prefix(&ident.prefix());
            let scan = self.view.snapshot.scan(keyspace, range, Direction::Forward)?;
            for pair in scan.take(PURGE_STEP - batch.len()) {
                batch.remove(keyspace, pair?.0);
            }
        }
        if batch.is_empty() {
            self.change_catalog(|catalog, keyspace, batch| {
                catalog.forget(ident, keyspace, batch);
                Ok(())
            })?;
        } else {
            self.commit(batch)?;
        }
        Ok(true)
    }

    fn commit(&mut self, batch: Batch) -> Result<(), CommandError> {
        if batch.is_empty() {
            return Ok(());
        }
        self.last_commit = Some(self.node.commit(batch)?);
        self.view = self.node.view();
        Ok(())
    }

    fn note_multikey(
        &mut self,
        collection: &mut Arc<Collection>,
        places: &BTreeSet<usize>,
    ) -> Result<(), CommandError> {
        if places.is_empty() {
            return Ok(());
        }
        let mut altered = (**collection).clone();
        for &place in places {
            Arc::make_mut(&mut altered.indexes[place]).multikey = true;
        }
        *collection = self.alter_collection(altered)?;
        Ok(())
    }

    /// Removes the oldest documents of a capped collection that is over its limits.
    fn trim_capped(&mut self, collection: &mut Arc<Collection>) -> Result<(), CommandError> {
        let Some(capped) = collection.capped else { return Ok(()) };
        loop {
            let totals = self.totals(collection)?;
            let over = totals.bytes > capped.bytes
                || capped.documents.is_some_and(|most| totals.documents > most);
            if !over || totals.documents <= 1 {
                return Ok(());
            }
            let oldest = self.view.scan_records(collection.ident, Direction::Forward)?.next();
            let Some(pair) = oldest else { return Ok(()) };
            let (key, value) = pair?;
            let Some(record) = RecordId::from_suffix(&key) else { return Ok(()) };
            self.remove(&Arc::clone(collection), record, &parse_record(&value)?)?;
        }
    }

    fn next_record(&mut self, collection: &Collection) -> Result<RecordId, CommandError> {
        let known = self.state.collections.get(&collection.ident).and_then(|s| s.next_record);
        if let Some(next) = known {
            return Ok(next);
        }
        let last = self.view.scan_records(collection.ident, Direction::Backward)?.next();
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

    fn adjust_totals(&mut self, collection: &Collection, adjust: impl FnOnce(&mut Totals)) {
        let state = self.state.collections.get_mut(&collection.ident);
        if let Some(totals) = state.and_then(|state| state.totals.as_mut()) {
            adjust(totals);
        }
    }

    /// The document with an `_id` as its first field, made up if there is none.
    fn with_id(&mut self, document: RawDocumentBuf) -> Result<RawDocumentBuf, CommandError> {
        let first = document.iter_elements().next();
        if first.is_some_and(|element| element.is_ok_and(|element| element.key() == "_id")) {
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
        Ok(completed)
    }
}

#[derive(Default)]
struct PendingInserts {
    staged: Vec<Staged>,
    unique: BTreeSet<Vec<u8>>,
    multikey: BTreeSet<usize>,
    bytes: usize,
}

impl PendingInserts {
    fn add(&mut self, mut staged: Staged) {
        self.bytes += staged.document.as_bytes().len();
        self.bytes += staged.entries.iter().map(|(key, _)| key.len()).sum::<usize>();
        self.unique.extend(std::mem::take(&mut staged.unique));
        self.multikey.extend(std::mem::take(&mut staged.multikey));
        self.staged.push(staged);
    }
}

/// The keys under which an index holds a document; none if the index leaves it out.
pub(crate) fn index_keys_of(
    index: &Index,
    document: &RawDocument,
) -> Result<DocumentKeys, CommandError> {
    if let Some(partial) = &index.partial
        && !partial.matches(document)?
    {
        return Ok(DocumentKeys::default());
    }
    if index.is_id() {
        // An `_id` is one value, whatever it is: an array is refused before it gets here.
        return document_keys(document, &index.fields);
    }
    let keys = document_keys(document, &index.fields)?;
    if index.sparse && keys.all_missing {
        return Ok(DocumentKeys::default());
    }
    Ok(keys)
}

/// Refuses what must not be stored: too large, too deep, malformed, or with an `_id` of a type
/// that cannot identify.
pub(crate) fn check_document(document: &RawDocument) -> Result<(), CommandError> {
    let size = document.as_bytes().len();
    if size > MAX_DOCUMENT_BYTES {
        return Err(CommandError::new(
            ErrorCode::BSON_OBJECT_TOO_LARGE,
            format!(
                "object to insert too large. size in bytes: {size}, max size: {MAX_DOCUMENT_BYTES}"
            ),
        ));
    }
    check_depth(document, 1, MAX_NESTING)?;
    match document.get("_id") {
        Ok(Some(RawBsonRef::Array(_))) => Err(invalid_id("array")),
        Ok(Some(RawBsonRef::RegularExpression(_))) => Err(invalid_id("regex")),
        Ok(Some(RawBsonRef::Undefined)) => Err(invalid_id("undefined")),
        _ => Ok(()),
    }
}

fn invalid_id(kind: &str) -> CommandError {
    CommandError::new(
        ErrorCode::INVALID_ID_FIELD,
        format!("The '_id' value cannot be of type {kind}"),
    )
}

/// A command may nest deeper than a document: an insert wraps documents, an update wraps operators.
pub(crate) fn check_command_nesting(command: &RawDocument) -> Result<(), CommandError> {
    check_depth(command, 1, MAX_NESTING + COMMAND_WRAPPING)
}

/// Visits every value, so that whoever reads the document later need not fear malformed bytes.
fn check_depth(document: &RawDocument, depth: usize, limit: usize) -> Result<(), CommandError> {
    for element in document {
        let (_, value) = element.map_err(|_| malformed())?;
        check_value_depth(value, depth, limit)?;
    }
    Ok(())
}

fn check_value_depth(
    value: RawBsonRef<'_>,
    depth: usize,
    limit: usize,
) -> Result<(), CommandError> {
    if depth > limit {
        return Err(CommandError::new(
            ErrorCode::OVERFLOW,
            format!("documents may nest at most {MAX_NESTING} levels deep"),
        ));
    }
    match value {
        RawBsonRef::Document(inner) => check_depth(inner, depth + 1, limit),
        RawBsonRef::Array(items) => {
            for item in items {
                check_value_depth(item.map_err(|_| malformed())?, depth + 1, limit)?;
            }
            Ok(())
        }
        RawBsonRef::JavaScriptCodeWithScope(code) => check_depth(code.scope, depth + 1, limit),
        _ => Ok(()),
    }
}

fn check_validator(collection: &Collection, document: &RawDocument) -> Result<(), CommandError> {
    let Some(validator) = &collection.validator else { return Ok(()) };
    let action = collection.options.get_str("validationAction").unwrap_or("error");
    if action == "error" && !validator.matches(DocumentRef::Raw(document))? {
        let mut error =
            CommandError::new(ErrorCode::DOCUMENT_VALIDATION_FAILURE, "Document failed validation");
        let id = document.get("_id").ok().flatten().and_then(|id| Bson::try_from(id).ok());
        error.details.insert("errInfo", bson::doc! { "failingDocumentId": id });
        return Err(error);
    }
    Ok(())
}

fn malformed() -> CommandError {
    CommandError::new(ErrorCode(22), "a document is malformed BSON")
}

fn duplicate_key(collection: &Collection, index: &Index, document: &RawDocument) -> CommandError {
    let pattern = index.key();
    let mut values = Document::new();
    for (name, path) in pattern.keys().zip(&index.paths) {
        let value = path.get(DocumentRef::Raw(document));
        values.insert(name, value.map_or(Bson::Null, |value| value.to_bson()));
    }
    let shown: Vec<_> = values.iter().map(|(name, value)| format!("{name}: {value}")).collect();
    let mut error = CommandError::new(
        ErrorCode::DUPLICATE_KEY,
        format!(
            "E11000 duplicate key error collection: {} index: {} dup key: {{ {} }}",
            collection.namespace,
            index.name,
            shown.join(", ")
        ),
    );
    error.details.insert("keyPattern", pattern);
    error.details.insert("keyValue", values);
    error
}
