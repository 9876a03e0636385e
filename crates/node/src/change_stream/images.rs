//! Images of documents: before a change, kept beside the oplog where a collection asks for it, and as
//! they are now.
//!
//! A row under [`IMAGE_ROW`], the time of the entry and the place of the operation in its transaction
//! holds the document before the change. It is written in the batch of the change, on every member, and
//! goes with its entry. Clients read the rows as `config.system.preimages`.

use std::cell::RefCell;
use std::ops::Bound;

use bson::{Bson, Document, RawDocument, RawDocumentBuf, Timestamp, rawdoc};
use quorate_change_events::{Images, ResumeToken};
use quorate_protocol::OpTimeAndWallTime;
use quorate_query::diff::apply_oplog_update;
use quorate_storage::{Batch, Direction, KeyRange};
use quorate_wire::{to_bson_date_time, to_bson_timestamp};

use crate::catalog::{Catalog, Collection};
use crate::commands::image_expiry;
use crate::context::Now;
use crate::error::{CommandError, Result};
use crate::fields::to_raw;
use crate::namespace::Namespace;
use crate::node::Node;
use crate::writer::Writer;

/// The first byte of rows with images among a member's facts.
pub(crate) const IMAGE_ROW: u8 = b'i';

/// Where the image of one change is.
fn image_key(timestamp: u64, transaction_index: i64) -> Vec<u8> {
    let mut key = vec![IMAGE_ROW];
    key.extend(timestamp.to_be_bytes());
    key.extend(transaction_index.to_be_bytes());
    key
}

/// The images of all changes of one entry.
fn images_at(timestamp: u64) -> KeyRange {
    let mut prefix = vec![IMAGE_ROW];
    prefix.extend(timestamp.to_be_bytes());
    KeyRange::prefix(&prefix)
}

/// The images of all entries.
pub(crate) fn image_rows() -> KeyRange {
    KeyRange::prefix(&[IMAGE_ROW])
}

/// Whether the documents of a collection are kept as they were before a change.
pub(crate) fn keeps_images(collection: &Collection) -> bool {
    let setting = collection.options.get("changeStreamPreAndPostImages");
    let enabled = setting.and_then(Bson::as_document).and_then(|setting| setting.get("enabled"));
    enabled.and_then(Bson::as_bool).unwrap_or(false)
}

/// What a member has of documents.
pub(super) struct StoredImages<'a> {
    node: &'a Node,
    /// Up to where the client has seen the events; unbounded if it has seen none of those that are looked at.
    seen: Bound<String>,
    failure: RefCell<Option<CommandError>>,
}

impl<'a> StoredImages<'a> {
    pub(super) fn of(node: &'a Node, seen: Bound<String>) -> Self {
        Self { node, seen, failure: RefCell::default() }
    }

    /// Whether everything that was asked for could be read.
    pub(super) fn check(&self) -> Result<()> {
        self.failure.borrow_mut().take().map_or(Ok(()), Err)
    }

    fn read(&self, read: impl FnOnce() -> Result<Option<Document>>) -> Option<Document> {
        read().unwrap_or_else(|error| {
            *self.failure.borrow_mut() = Some(error);
            None
        })
    }
}

impl Images for StoredImages<'_> {
    fn is_seen(&self, token: &ResumeToken) -> bool {
        match &self.seen {
            Bound::Included(last) => token.to_hex() <= *last,
            Bound::Excluded(next) => token.to_hex() < *next,
            Bound::Unbounded => false,
        }
    }

    fn before(
        &self,
        _: Option<[u8; 16]>,
        timestamp: Timestamp,
        transaction_index: i64,
    ) -> Option<Document> {
        let timestamp = quorate_wire::timestamp_from(timestamp).as_u64();
        self.read(|| {
            let Some(keyspace) = self.node.facts_keyspace() else { return Ok(None) };
            let key = image_key(timestamp, transaction_index);
            match self.node.view().snapshot.get(keyspace, &key)? {
                Some(row) => {
                    let row = Document::from_reader(&row[..])?;
                    Ok(row.get_document("preImage").ok().cloned())
                }
                None => Ok(None),
            }
        })
    }

    fn after(&self, before: &Document, change: &Document) -> Option<Document> {
        self.read(|| Ok(Some(apply_oplog_update(before, change)?)))
    }

    fn current(&self, database: &str, collection: &str, key: &Document) -> Option<Document> {
        self.read(|| {
            let namespace = Namespace::new(database, collection)?;
            let (collection, view) = match self.node.majority_view() {
                Some(moment) => moment.read(&namespace),
                None => self.node.read(&namespace),
            };
            let Some(collection) = collection else { return Ok(None) };
            match view.by_id(&collection, &to_raw(key)?)? {
                Some((_, document)) => Ok(Some(Document::try_from(&*document)?)),
                None => Ok(None),
            }
        })
    }
}

impl Writer<'_> {
    /// Keeps the document before a change, if its collection asks for that.
    pub(crate) fn keep_image(
        &self,
        batch: &mut Batch,
        collection: &Collection,
        before: &RawDocument,
        at: OpTimeAndWallTime,
        transaction_index: i64,
    ) {
        let Some(keyspace) = self.node().facts_keyspace() else { return };
        if !keeps_images(collection) {
            return;
        }
        let timestamp = at.op_time.timestamp;
        let row = rawdoc! {
            "_id": {
                "nsUUID": collection.uuid.clone(),
                "ts": to_bson_timestamp(timestamp),
                "applyOpsIndex": transaction_index,
            },
            "operationTime": to_bson_date_time(at.wall_time),
            "preImage": before.to_owned(),
        };
        batch.insert(keyspace, image_key(timestamp.as_u64(), transaction_index), row.into_bytes());
    }

    /// Keeps the document before an operation of a transaction, if its collection asks for that. The
    /// operation is at a place in its transaction, and in the entry at a time.
    pub(crate) fn keep_image_of_operation(
        &self,
        batch: &mut Batch,
        catalog: &Catalog,
        (operation, undo): &(RawDocumentBuf, Option<RawDocumentBuf>),
        at: OpTimeAndWallTime,
        transaction_index: i64,
    ) -> Result<()> {
        let Some(Ok(before)) = undo.as_ref().map(|undo| undo.get_document("before")) else {
            return Ok(());
        };
        let Ok(namespace) = operation.get_str("ns") else { return Ok(()) };
        if let Some(collection) = catalog.get(&Namespace::parse(namespace)?) {
            self.keep_image(batch, collection, before, at, transaction_index);
        }
        Ok(())
    }

    /// Removes the images of an entry that is undone.
    pub(crate) fn forget_images(&self, batch: &mut Batch, timestamp: u64) -> Result<()> {
        let Some(keyspace) = self.node().facts_keyspace() else { return Ok(()) };
        let view = self.newest_view();
        for pair in view.snapshot.scan(keyspace, images_at(timestamp), Direction::Forward)? {
            batch.remove(keyspace, pair?.0);
        }
        Ok(())
    }

    /// Removes images whose entries are gone, and those older than the cluster parameter
    /// `changeStreamOptions` says. Returns whether there is more to do.
    pub(crate) fn trim_images(&mut self, now: Now) -> Result<bool> {
        let Some(replication) = self.node().replication() else { return Ok(false) };
        let range = replication.trimmed.rest(IMAGE_ROW);
        let mut rows =
            self.view().snapshot.scan(replication.keyspace, range, Direction::Forward)?;
        if rows.next().transpose()?.is_none() {
            return Ok(false);
        }
        let oldest = self.node().oldest_entry()?.timestamp.as_u64();
        let expired = match image_expiry(self.node())? {
            Some(seconds) => {
                let wall = now.wall.as_millis() / 1000 - seconds;
                u64::try_from(wall).unwrap_or(0) << 32
            }
            None => 0,
        };
        let limit = image_key(oldest.max(expired), 0);
        self.trim_rows(IMAGE_ROW, &limit)
    }
}

/// The value of `changeStreamPreAndPostImages`, checked.
pub(crate) fn check_images_option(value: &Bson) -> Result<()> {
    match value {
        Bson::Document(setting)
            if setting.len() == 1 && matches!(setting.get("enabled"), Some(Bson::Boolean(_))) =>
        {
            Ok(())
        }
        _ => Err(fail!(
            BAD_VALUE,
            "changeStreamPreAndPostImages must be {{enabled: true}} or {{enabled: false}}"
        )),
    }
}
