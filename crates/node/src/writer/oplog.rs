//! The history of a member: an entry per change, in the batch of the change.
//!
//! The history is the capped collection `local.oplog.rs`, whose record ids are the timestamps of
//! its entries: it can be queried and tailed like any collection, and reading on from a timestamp
//! is one seek. A member without a set keeps none; its writes take the same path.

use bson::raw::cstr;
use bson::{Document, RawDocument, RawDocumentBuf};
use quorate_query::diff::{OplogUpdate, oplog_update};
use quorate_storage::Batch;
use quorate_storage::key::RecordId;
use quorate_wire::to_bson_date_time;

use super::Writer;
use crate::catalog::Collection;
use crate::error::CommandError;
use crate::fields::to_raw;
use crate::namespace::Namespace;
use crate::records::record_key;

/// The database whose changes are its member's own business.
const LOCAL_DATABASE: &str = "local";

/// The version of the entry format.
const ENTRY_VERSION: i64 = 2;

/// What kind of change an entry describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Insert,
    Update,
    Delete,
    Command,
}

impl Operation {
    fn letter(self) -> &'static str {
        match self {
            Self::Insert => "i",
            Self::Update => "u",
            Self::Delete => "d",
            Self::Command => "c",
        }
    }
}

/// The part of an entry that depends on the change.
struct Entry<'a> {
    operation: Operation,
    collection: &'a Collection,
    object: &'a RawDocument,
    /// The `_id` of the document that an update changes.
    target: Option<&'a RawDocument>,
    /// The number of the statement within a retryable write.
    statement: Option<i32>,
}

/// The name of the history.
pub(crate) fn oplog_namespace() -> Namespace {
    Namespace { database: LOCAL_DATABASE.to_owned(), collection: "oplog.rs".to_owned() }
}

impl Writer<'_> {
    pub(super) fn log_insert(
        &mut self,
        batch: &mut Batch,
        collection: &Collection,
        document: &RawDocument,
        statement: Option<i32>,
    ) {
        let operation = Operation::Insert;
        self.log(
            batch,
            &Entry { operation, collection, object: document, target: None, statement },
        );
    }

    pub(super) fn log_update(
        &mut self,
        batch: &mut Batch,
        collection: &Collection,
        old: &RawDocument,
        new: &RawDocument,
    ) -> Result<(), CommandError> {
        if !self.logs(collection) {
            return Ok(());
        }
        let change = oplog_update(&Document::try_from(old)?, &Document::try_from(new)?);
        let OplogUpdate::Entry(change) = change else { return Ok(()) };
        let (object, target) = (to_raw(&change)?, id_document(new));
        let statement = self.current_statement();
        self.log(
            batch,
            &Entry {
                operation: Operation::Update,
                collection,
                object: &object,
                target: Some(&target),
                statement,
            },
        );
        Ok(())
    }

    pub(super) fn log_delete(
        &mut self,
        batch: &mut Batch,
        collection: &Collection,
        document: &RawDocument,
    ) {
        let object = id_document(document);
        let statement = self.current_statement();
        let operation = Operation::Delete;
        self.log(batch, &Entry { operation, collection, object: &object, target: None, statement });
    }

    /// Logs a change of the catalog.
    pub(super) fn log_command(
        &mut self,
        batch: &mut Batch,
        collection: &Collection,
        command: &Document,
    ) -> Result<(), CommandError> {
        let object = to_raw(command)?;
        let operation = Operation::Command;
        self.log(
            batch,
            &Entry { operation, collection, object: &object, target: None, statement: None },
        );
        Ok(())
    }

    fn logs(&self, collection: &Collection) -> bool {
        self.node.oplog().is_some() && collection.namespace.database != LOCAL_DATABASE
    }

    fn log(&mut self, batch: &mut Batch, entry: &Entry<'_>) {
        let Some(oplog) = self.node.oplog() else { return };
        if !self.logs(entry.collection) {
            return;
        }
        let timestamp = self.next_timestamp();
        let namespace = match entry.operation {
            Operation::Command => format!("{}.$cmd", entry.collection.namespace.database),
            _ => entry.collection.namespace.to_string(),
        };
        let mut document = RawDocumentBuf::new();
        if let (Some(retry), Some(statement)) = (&self.retry, entry.statement) {
            if let Ok(lsid) = to_raw(&retry.session.to_lsid()) {
                document.append(cstr!("lsid"), lsid);
            }
            document.append(cstr!("txnNumber"), retry.number);
            document.append(cstr!("stmtId"), statement);
        }
        document.append(cstr!("op"), entry.operation.letter());
        document.append(cstr!("ns"), namespace);
        document.append(cstr!("ui"), entry.collection.uuid.clone());
        document.append(cstr!("o"), entry.object.to_owned());
        if let Some(target) = entry.target {
            document.append(cstr!("o2"), target.to_owned());
        }
        document.append(cstr!("ts"), timestamp);
        document.append(cstr!("t"), self.node.term());
        document.append(cstr!("v"), ENTRY_VERSION);
        document.append(cstr!("wall"), to_bson_date_time(self.now.wall));
        let size = document.as_bytes().len() as u64;
        let packed = u64::from(timestamp.time) << 32 | u64::from(timestamp.increment);
        let key = record_key(oplog, RecordId(packed));
        batch.insert(self.node.keyspaces().records, key, document.into_bytes());
        self.adjust_totals(oplog, |totals| {
            totals.documents += 1;
            totals.bytes += size;
        });
    }
}

/// `{_id: …}` of a document.
fn id_document(document: &RawDocument) -> RawDocumentBuf {
    let mut only_id = RawDocumentBuf::new();
    if let Ok(Some(id)) = document.get("_id") {
        only_id.append(cstr!("_id"), id);
    }
    only_id
}
