//! Where documents and index entries lie in the store.
//!
//! ```text
//!   records   <ident> <record id>             →  the document, as BSON
//!   indexes   <ident> <key> <record id>       →  empty        (not unique)
//!             <ident> <key>                   →  record id    (unique)
//!   oplog     <record id>                     →  the entry of local.oplog.rs, as BSON
//! ```
//!
//! `oplog` is a log: see `docs/storage-format.md`. All reads of records go through [`View`], which
//! knows where those of a collection lie.
//!
//! A unique index keeps the record id in the value, so that looking a key up is a point read and
//! two documents cannot have the same key.

use std::ops::{Bound, Deref};
use std::sync::Arc;

use bson::{RawDocument, RawDocumentBuf};
use quorate_storage::key::RecordId;
use quorate_storage::{Bytes, Direction, KeyRange, KeyspaceId, Scan, Snapshot, Value, Walk};

use crate::catalog::{Collection, Ident, Index};
use crate::error::{CommandError, Result};
use crate::index_keys::{append_id_key, first_key};
use crate::places::Places;

/// The keyspaces of a member.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keyspaces {
    pub(crate) catalog: KeyspaceId,
    pub(crate) records: KeyspaceId,
    pub(crate) indexes: KeyspaceId,
    pub(crate) sessions: KeyspaceId,
    /// A log: the entries of the history.
    pub(crate) oplog: KeyspaceId,
    /// The collection whose records are the entries of the log.
    pub(crate) history: Option<Ident>,
}

impl Keyspaces {
    /// Where the records of a collection lie.
    fn keyspace_of(&self, collection: Ident) -> KeyspaceId {
        if self.history == Some(collection) { self.oplog } else { self.records }
    }

    /// The same, and the keys of all of them.
    fn records_of(&self, collection: Ident) -> (KeyspaceId, KeyRange) {
        let keys = match self.history == Some(collection) {
            true => KeyRange::all(),
            false => KeyRange::prefix(&collection.prefix()),
        };
        (self.keyspace_of(collection), keys)
    }

    /// The key of a record where [`keyspace_of`](Self::keyspace_of) says.
    fn key_of(&self, collection: Ident, record: RecordId) -> Bytes {
        if self.history == Some(collection) {
            Bytes::from(&record.to_bytes())
        } else {
            record_key(collection, record)
        }
    }
}

pub(crate) fn record_key(collection: Ident, record: RecordId) -> Bytes {
    Bytes::joined([&collection.prefix(), &record.to_bytes()])
}

/// The key and the value of an index entry.
pub(crate) fn index_entry(index: &Index, key: &[u8], record: RecordId) -> (Bytes, Bytes) {
    let record = record.to_bytes();
    let (end, value): (&[u8], &[u8]) = if index.unique { (&[], &record) } else { (&record, &[]) };
    (Bytes::joined([&index.ident.prefix(), key, end]), Bytes::from(value))
}

/// Appends the key of an index entry.
pub(crate) fn append_index_entry(out: &mut Vec<u8>, index: &Index, key: &[u8], record: RecordId) {
    out.extend(index.ident.prefix());
    out.extend(key);
    if !index.unique {
        out.extend(record.to_bytes());
    }
}

/// The record that an index entry names.
pub(crate) fn record_of_entry(index: &Index, key: &[u8], value: &[u8]) -> Result<RecordId> {
    let bytes = if index.unique { value } else { key };
    RecordId::from_suffix(bytes).ok_or_else(damaged)
}

/// The store at one moment, and where things lie in it.
#[derive(Clone)]
pub(crate) struct View {
    pub(crate) snapshot: Arc<dyn Snapshot>,
    pub(crate) keyspaces: Keyspaces,
    /// Guesses at the records of documents, in any snapshot.
    pub(crate) places: Arc<Places>,
}

impl View {
    pub(crate) fn record(
        &self,
        collection: &Collection,
        record: RecordId,
    ) -> Result<Option<DocumentBytes>> {
        let key = self.keyspaces.key_of(collection.ident, record);
        let keyspace = self.keyspaces.keyspace_of(collection.ident);
        // An index names it, or did.
        let stored = self.snapshot.get_known(keyspace, &key)?;
        stored.map(DocumentBytes::stored).transpose()
    }

    pub(crate) fn scan_records(&self, ident: Ident, direction: Direction) -> Result<Scan> {
        let (keyspace, range) = self.keyspaces.records_of(ident);
        Ok(self.snapshot.scan(keyspace, range, direction)?)
    }

    /// The records from this one on, in either direction.
    pub(crate) fn scan_records_from(
        &self,
        ident: Ident,
        record: RecordId,
        direction: Direction,
    ) -> Result<Scan> {
        let (keyspace, whole) = self.keyspaces.records_of(ident);
        let from = Bound::Included(self.keyspaces.key_of(ident, record).to_vec());
        let range = match direction {
            Direction::Forward => KeyRange { start: from, ..whole },
            Direction::Backward => KeyRange { end: from, ..whole },
        };
        Ok(self.snapshot.scan(keyspace, range, direction)?)
    }

    /// The records from one bound to another, each lent until the next is asked for.
    pub(crate) fn walk_records(
        &self,
        ident: Ident,
        (start, end): (Bound<RecordId>, Bound<RecordId>),
    ) -> Result<Box<dyn Walk>> {
        let (keyspace, whole) = self.keyspaces.records_of(ident);
        let key = |bound: Bound<RecordId>, of_all| match bound {
            Bound::Unbounded => of_all,
            bound => bound.map(|record| self.keyspaces.key_of(ident, record).to_vec()),
        };
        let range = KeyRange { start: key(start, whole.start), end: key(end, whole.end) };
        Ok(self.snapshot.walk(keyspace, range)?)
    }

    /// The last record of a collection.
    pub(crate) fn last_record(&self, ident: Ident) -> Result<Option<RecordId>> {
        let last = self.scan_records(ident, Direction::Backward)?.next().transpose()?;
        Ok(last.and_then(|(key, _)| RecordId::from_suffix(&key)))
    }

    /// Whether the records of a collection are the entries of the history.
    pub(crate) fn is_history(&self, ident: Ident) -> bool {
        self.keyspaces.history == Some(ident)
    }

    /// Entries of the history from one bound to another.
    pub(crate) fn scan_oplog(
        &self,
        (start, end): (Bound<RecordId>, Bound<RecordId>),
        direction: Direction,
    ) -> Result<Scan> {
        let key = |bound: Bound<RecordId>| bound.map(|record| record.to_bytes().to_vec());
        let range = KeyRange { start: key(start), end: key(end) };
        Ok(self.snapshot.scan(self.keyspaces.oplog, range, direction)?)
    }

    pub(crate) fn scan_index(&self, range: KeyRange, direction: Direction) -> Result<Scan> {
        Ok(self.snapshot.scan(self.keyspaces.indexes, range, direction)?)
    }

    /// The record and the document with the same `_id`.
    pub(crate) fn by_id(
        &self,
        collection: &Collection,
        document: &RawDocument,
    ) -> Result<Option<(RecordId, DocumentBytes)>> {
        let Some(index) = collection.id_index() else {
            return Ok(None);
        };
        // The index is unique: its entries end with the key.
        let mut entry = Vec::with_capacity(Ident::LENGTH + USUAL_KEY_BYTES);
        entry.extend(index.ident.prefix());
        append_id_key(document, &index.fields, &mut entry)?;
        Ok(match self.by_id_entry(collection, index, &entry, Some(document))? {
            Some((record, Some(found))) => Some((record, found)),
            Some((record, None)) => self.record(collection, record)?.map(|found| (record, found)),
            None => None,
        })
    }

    /// The record under a whole key of the index of `_id`, with its document if that was needed to find it. `like` is a
    /// document with the same `_id`, if there is one.
    pub(crate) fn by_id_entry(
        &self,
        collection: &Collection,
        index: &Index,
        entry: &[u8],
        like: Option<&RawDocument>,
    ) -> Result<Option<(RecordId, Option<DocumentBytes>)>> {
        if let Some((record, found)) = self.guessed(collection, index, entry, like)? {
            return Ok(Some((record, Some(found))));
        }
        let Some(record) = self.unique_entry(entry)? else { return Ok(None) };
        self.places.learn(entry, record);
        Ok(Some((record, None)))
    }

    /// The record and the document under a whole key of the index of `_id`, if they are where they were last found.
    fn guessed(
        &self,
        collection: &Collection,
        index: &Index,
        entry: &[u8],
        like: Option<&RawDocument>,
    ) -> Result<Option<(RecordId, DocumentBytes)>> {
        let Some(record) = self.places.guess(entry) else { return Ok(None) };
        let Some(document) = self.record(collection, record)? else { return Ok(None) };
        if like.is_some_and(|like| begins_like(document.as_bytes(), like.as_bytes())) {
            return Ok(Some((record, document)));
        }
        let mut key = Vec::with_capacity(USUAL_KEY_BYTES);
        first_key(&document, &index.fields, &mut key)?;
        let is_right = entry.strip_prefix(&index.ident.prefix()[..]) == Some(&key[..]);
        Ok(is_right.then_some((record, document)))
    }

    /// The record under a whole key of a unique index, the ident included.
    pub(crate) fn unique_entry(&self, entry: &[u8]) -> Result<Option<RecordId>> {
        match self.snapshot.get(self.keyspaces.indexes, entry)? {
            Some(value) => RecordId::from_suffix(&value).map(Some).ok_or_else(damaged),
            None => Ok(None),
        }
    }
}

/// Whether a document begins with all that another one holds, byte by byte: then both have the same `_id`. A filter
/// holds nothing else, and `_id` comes first in what is stored.
fn begins_like(document: &[u8], other: &[u8]) -> bool {
    match (document.get(4..), other.get(4..other.len() - 1)) {
        (Some(document), Some(other)) => !other.is_empty() && document.starts_with(other),
        _ => false,
    }
}

/// A document as bytes: those of the store, shared and not copied, or some of a command's own making.
#[derive(Clone, Debug)]
pub struct DocumentBytes(Holder);

#[derive(Clone, Debug)]
enum Holder {
    /// Looked at once, so that it is known to be a document.
    Stored(Bytes),
    Made(RawDocumentBuf),
}

/// Room for a key, so that most need not grow.
const USUAL_KEY_BYTES: usize = 32;

/// The document without fields.
pub(crate) const EMPTY_DOCUMENT: [u8; 5] = [5, 0, 0, 0, 0];

impl DocumentBytes {
    /// A document that was read from the store.
    pub(crate) fn stored(bytes: Bytes) -> Result<Self> {
        match RawDocument::from_bytes(&bytes) {
            Ok(_) => Ok(Self(Holder::Stored(bytes))),
            Err(_) => Err(damaged()),
        }
    }

    /// What [`RawDocument::as_bytes`] gives, without another look at whether they are a document.
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Holder::Stored(bytes) => bytes,
            Holder::Made(document) => document.as_bytes(),
        }
    }
}

/// A document that a walk lends.
#[derive(Clone, Copy)]
pub(crate) struct LentDocument<'w> {
    document: &'w RawDocument,
    value: Value<'w>,
}

impl<'w> LentDocument<'w> {
    pub(crate) fn new(value: Value<'w>) -> Result<Self> {
        let document = RawDocument::from_bytes(value.bytes()).map_err(|_| damaged())?;
        Ok(Self { document, value })
    }

    /// The document, for longer than the walk lends it.
    pub(crate) fn keep(&self) -> DocumentBytes {
        DocumentBytes(Holder::Stored(self.value.keep()))
    }
}

impl Deref for LentDocument<'_> {
    type Target = RawDocument;

    fn deref(&self) -> &RawDocument {
        self.document
    }
}

impl From<RawDocumentBuf> for DocumentBytes {
    fn from(document: RawDocumentBuf) -> Self {
        Self(Holder::Made(document))
    }
}

/// One that was sent, in the form in which it is stored.
impl From<&RawDocument> for DocumentBytes {
    fn from(document: &RawDocument) -> Self {
        Self(Holder::Stored(Bytes::from(document.as_bytes())))
    }
}

impl From<DocumentBytes> for Bytes {
    fn from(document: DocumentBytes) -> Self {
        match document.0 {
            Holder::Stored(bytes) => bytes,
            Holder::Made(document) => document.into_bytes().into(),
        }
    }
}

impl Deref for DocumentBytes {
    type Target = RawDocument;

    fn deref(&self) -> &RawDocument {
        match &self.0 {
            Holder::Stored(bytes) => RawDocument::from_bytes(bytes)
                .or_else(|_| RawDocument::from_bytes(&EMPTY_DOCUMENT))
                .unwrap_or_else(|_| unreachable!("these are the bytes of an empty document")),
            Holder::Made(document) => document,
        }
    }
}

pub(crate) fn parse_record(bytes: &Bytes) -> Result<RawDocumentBuf> {
    RawDocumentBuf::from_bytes(bytes.to_vec()).map_err(|_| damaged())
}

fn damaged() -> CommandError {
    fail!(INTERNAL_ERROR, "a stored record is damaged; run validate")
}

#[cfg(test)]
mod tests {
    use bson::{doc, rawdoc};
    use quorate_storage::ModelStore;

    use super::*;
    use crate::namespace::Namespace;
    use crate::node::{Node, NodeOptions};
    use crate::test_support::{now, run};

    #[test]
    fn a_wrong_guess_at_a_record_gives_no_wrong_document() {
        let node = Node::open(Arc::new(ModelStore::new()), NodeOptions::default(), now()).unwrap();
        let run = |command: bson::Document| drop(run(&node, command));
        run(doc! { "insert": "c", "documents": [{ "_id": 1 }, { "_id": 2 }] });
        let (collection, before) = node.read(&Namespace::new("db", "c").unwrap());
        let collection = collection.unwrap();
        let index = collection.id_index().unwrap();
        let by_id = |view: &View, id: i32| {
            let found = view.by_id(&collection, &rawdoc! { "_id": id }).unwrap();
            found.map(|(record, document)| (record, document.get_i32("_id").unwrap()))
        };
        let first = by_id(&before, 1).unwrap().0;
        let mut key = Vec::new();
        first_key(&rawdoc! { "_id": 2 }, &index.fields, &mut key).unwrap();
        let entry = index_entry(index, &key, first).0;
        before.places.learn(&entry, first);
        assert_eq!(by_id(&before, 2).map(|found| found.1), Some(2), "the record of another");
        assert!(before.guessed(&collection, index, &entry, None).unwrap().is_some(), "learnt");
        let two = rawdoc! { "_id": 2 };
        before.places.learn(&entry, first);
        assert!(before.guessed(&collection, index, &entry, Some(&two)).unwrap().is_none());
        before.places.learn(&entry, RecordId(99));
        assert_eq!(by_id(&before, 2).map(|found| found.1), Some(2), "no record");
        // A document that came again lies elsewhere: each snapshot shows its own.
        run(doc! { "delete": "c", "deletes": [{ "q": { "_id": 1 }, "limit": 1 }] });
        assert_eq!(by_id(&node.view(), 1), None);
        run(doc! { "insert": "c", "documents": [{ "_id": 1 }] });
        let again = by_id(&node.view(), 1).unwrap();
        assert_ne!(again.0, first);
        assert_eq!(by_id(&before, 1), Some((first, 1)));
        assert_eq!(by_id(&node.view(), 1), Some(again));
    }
}
