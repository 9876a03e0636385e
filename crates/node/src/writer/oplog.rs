//! The history of a member: an entry per change, in the batch of the change.
//!
//! The history is the capped collection `local.oplog.rs`, whose record ids are the timestamps of
//! its entries: it can be queried and tailed like any collection, and reading on from a timestamp
//! is one seek. A member without a set keeps none; its writes take the same path.

use bson::raw::cstr;
use bson::{Document, RawBinaryRef, RawBsonRef, RawDocument, RawDocumentBuf};
use quorate_protocol::{OpTime, OpTimeAndWallTime};
use quorate_query::diff::{Told, ToldAs, told};
use quorate_storage::key::RecordId;
use quorate_storage::{Batch, Bytes};
use quorate_wire::{timestamp_from, to_bson_date_time};

use super::Writer;
use crate::catalog::Collection;
use crate::default_concerns::is_settings;
use crate::error::Result;
use crate::fields::to_raw;
use crate::namespace::Namespace;
use crate::records::{DocumentBytes, EMPTY_DOCUMENT};
use crate::repeated_fields;
use crate::replication::takes_back;

/// The database whose changes are its member's own business.
const LOCAL_DATABASE: &str = "local";

/// The version of the entry format.
pub(crate) const ENTRY_VERSION: i64 = 2;

/// What kind of change an entry describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Insert,
    Update,
    Delete,
    Command,
    /// A command that concerns a database as a whole.
    DatabaseCommand,
    Noop,
}

impl Operation {
    pub(crate) fn letter(self) -> &'static str {
        match self {
            Self::Insert => "i",
            Self::Update => "u",
            Self::Delete => "d",
            Self::Command | Self::DatabaseCommand => "c",
            Self::Noop => "n",
        }
    }
}

/// The part of an entry that depends on the change.
pub(crate) struct Entry<'a> {
    pub(crate) operation: Operation,
    /// The collection it concerns; none for an entry that changes nothing.
    pub(crate) collection: Option<&'a Collection>,
    /// The database of a command that concerns no collection.
    pub(crate) database: Option<&'a str>,
    pub(crate) object: &'a RawDocument,
    /// The `_id` of the document that an update changes, or the specification of a dropped index.
    pub(crate) target: Option<&'a RawDocument>,
    /// The number of the statement within a retryable write.
    pub(crate) statement: Option<i32>,
}

/// How an entry tells of an update, and what the update may have changed.
#[derive(Clone, Copy)]
pub(crate) struct Telling<'a> {
    pub(crate) account: Account<'a>,
    /// Whether a field may differ; none if any may.
    pub(crate) touches: Option<&'a dyn Fn(&str) -> bool>,
}

/// Where the field `o` of an entry comes from.
#[derive(Clone, Copy)]
pub(crate) enum Account<'a> {
    /// It is known; none if it is the whole document.
    Known(Option<&'a RawDocument>),
    /// The document before is compared with the one after.
    Compared {
        told_as: &'a ToldAs,
        /// Both, where they have been read already; of operators, the touched fields are enough.
        versions: Option<(&'a Document, &'a Document)>,
    },
}

impl<'a> From<&'a ToldAs> for Telling<'a> {
    fn from(told_as: &'a ToldAs) -> Self {
        Self { account: Account::Compared { told_as, versions: None }, touches: None }
    }
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
    ) -> Result<()> {
        let (operation, target) = (Operation::Insert, None);
        let collection = Some(collection);
        let entry =
            Entry { operation, collection, database: None, object: document, target, statement };
        // An insert is taken back by its entry alone.
        self.log(batch, &entry, None)
    }

    pub(super) fn log_update(
        &mut self,
        batch: &mut Batch,
        collection: &Collection,
        old: &RawDocument,
        new: &RawDocument,
        telling: Telling<'_>,
    ) -> Result<()> {
        if !self.logs(Some(collection)) {
            return Ok(());
        }
        let before = as_before(old)?;
        if self.log_otherwise(batch, Some(&before), Some(collection))? {
            return Ok(());
        }
        let made;
        let delta = match telling.account {
            Account::Known(delta) => delta,
            Account::Compared { told_as, versions } => {
                let told = match versions {
                    Some((old, new)) => told(old, new, told_as),
                    None => {
                        told(&repeated_fields::parse(old)?, &repeated_fields::parse(new)?, told_as)
                    }
                };
                match told {
                    Told::Nothing => return Ok(()),
                    Told::Whole => None,
                    Told::Delta(delta) => {
                        made = to_raw(&delta)?;
                        Some(&*made)
                    }
                }
            }
        };
        let (object, target) = (delta.unwrap_or(new), id_document(new));
        let entry = Entry {
            operation: Operation::Update,
            collection: Some(collection),
            database: None,
            object,
            target: Some(&target),
            statement: self.current_statement(),
        };
        self.append(batch, &entry, Some(&before))
    }

    pub(super) fn log_delete(
        &mut self,
        batch: &mut Batch,
        collection: &Collection,
        record: RecordId,
        document: &RawDocument,
    ) -> Result<()> {
        let object = id_document(document);
        let entry = Entry {
            operation: Operation::Delete,
            collection: Some(collection),
            database: None,
            object: &object,
            target: None,
            statement: self.current_statement(),
        };
        let mut undo = as_before(document)?;
        if collection.capped.is_some() {
            // Its documents have an order, in which this one has its place.
            let mut with_place = (*undo).to_owned();
            with_place.append(cstr!("record"), record.0 as i64);
            undo = with_place.into();
        }
        self.log(batch, &entry, Some(&undo))
    }

    /// Logs a change of the catalog.
    pub(super) fn log_command(
        &mut self,
        batch: &mut Batch,
        collection: &Collection,
        command: &Document,
    ) -> Result<()> {
        let undo = to_raw(&takes_back::of(command, collection, &self.node.catalog()))?;
        let undo = DocumentBytes::from(undo);
        let entry = Entry {
            operation: Operation::Command,
            collection: Some(collection),
            database: None,
            object: &to_raw(command)?,
            // An index that is dropped is built anew to take that back; change streams tell what it was.
            target: undo.get_document("spec").ok(),
            statement: None,
        };
        self.log(batch, &entry, Some(&undo))
    }

    fn logs(&mut self, collection: Option<&Collection>) -> bool {
        self.touches_settings |= collection.is_some_and(|known| is_settings(&known.namespace));
        self.node.oplog().is_some()
            && collection.is_none_or(|known| !known.namespace.is_unreplicated())
    }

    /// Adds an entry, and on a member of a set how to take it back.
    pub(crate) fn log(
        &mut self,
        batch: &mut Batch,
        entry: &Entry<'_>,
        undo: Option<&DocumentBytes>,
    ) -> Result<()> {
        if !self.logs(entry.collection) {
            return Ok(());
        }
        if self.log_otherwise(batch, undo, entry.collection)? {
            return Ok(());
        }
        self.append(batch, entry, undo)
    }

    fn append(
        &mut self,
        batch: &mut Batch,
        entry: &Entry<'_>,
        undo: Option<&DocumentBytes>,
    ) -> Result<()> {
        if self.stage_operation(entry, undo.map(|undo| &**undo))? {
            return Ok(());
        }
        let term = self.term_of_entry()?;
        let timestamp = self.next_timestamp();
        let size = entry.object.as_bytes().len() + AROUND_OBJECT + self.retry_bytes();
        let mut document = with_room_for(size);
        self.append_retry(&mut document, entry.statement);
        document.append(cstr!("op"), entry.operation.letter());
        match (entry.operation, entry.collection) {
            (Operation::DatabaseCommand, _) => {
                document
                    .append(cstr!("ns"), format!("{}.$cmd", entry.database.unwrap_or_default()));
            }
            (Operation::Noop, _) | (_, None) => document.append(cstr!("ns"), ""),
            (Operation::Command, Some(collection)) => {
                document.append(cstr!("ns"), format!("{}.$cmd", collection.namespace.database));
            }
            (_, Some(collection)) => {
                document.append(cstr!("ns"), collection.namespace.full_name());
            }
        }
        if let Some(collection) = entry.collection {
            let (subtype, bytes) = (collection.uuid.subtype, &collection.uuid.bytes[..]);
            document.append(cstr!("ui"), RawBsonRef::Binary(RawBinaryRef { subtype, bytes }));
        }
        document.append(cstr!("o"), entry.object);
        if let Some(target) = entry.target {
            document.append(cstr!("o2"), target);
        }
        document.append(cstr!("ts"), timestamp);
        document.append(cstr!("t"), term);
        document.append(cstr!("v"), ENTRY_VERSION);
        document.append(cstr!("wall"), to_bson_date_time(self.now.wall));
        let op_time = OpTime::new(term, timestamp_from(timestamp));
        let position = OpTimeAndWallTime { op_time, wall_time: self.now.wall };
        let document = document.into_bytes().into();
        self.put_entry(batch, document, position, undo, entry.collection);
        self.retry_logged(entry.statement, position);
        Ok(())
    }
}

/// What an entry holds besides its object, unless its names are long or it belongs to a session.
const AROUND_OBJECT: usize = 192;

/// What of `{before: …}` comes before the embedded document, and behind the length.
const BEFORE: &[u8] = b"\x03before\0";

/// What a document with nothing but a usual `_id` takes.
const USUAL_ID_BYTES: usize = 64;

/// An empty document that grows to so many bytes without moving.
pub(crate) fn with_room_for(bytes: usize) -> RawDocumentBuf {
    let mut empty = Vec::with_capacity(bytes);
    empty.extend(EMPTY_DOCUMENT);
    RawDocumentBuf::from_bytes(empty).unwrap_or_default()
}

/// `{before: …}` of a document.
fn as_before(document: &RawDocument) -> Result<DocumentBytes> {
    let document = document.as_bytes();
    let length = size_of::<i32>() + BEFORE.len() + document.len() + 1;
    let length = i32::try_from(length).unwrap_or(i32::MAX).to_le_bytes();
    DocumentBytes::stored(Bytes::joined([&length, BEFORE, document, &[0]]))
}

/// `{_id: …}` of a document.
fn id_document(document: &RawDocument) -> RawDocumentBuf {
    let mut only_id = with_room_for(USUAL_ID_BYTES);
    if let Ok(Some(id)) = document.get("_id") {
        only_id.append(cstr!("_id"), id);
    }
    only_id
}
