//! Applies the changes of `oplog.bson` to the restored data.
//!
//! A dump reads its collections one after the other while they change. Applying the changes of that
//! time in their order brings all of them to the moment at which the dump ended. Documents are written
//! as they are in the end of a run of changes: inserted or replaced whole, or deleted, so that applying
//! twice gives the same.

use std::collections::{BTreeMap, BTreeSet};

use bson::raw::{RawDocument, RawDocumentBuf};
use bson::{Bson, Document, Timestamp, doc};
use quorate_client::{Client, Error, WriteModel};
use quorate_protocol::ErrorCode;
use quorate_query::diff::apply_oplog_update;

use super::collection::id_key;
use super::{administer, is_restorable};
use crate::connect;
use crate::screen::{Failure, Result};
use crate::transfer::layout::Place;
use crate::transfer::{BATCH_BYTES, BATCH_DOCUMENTS, Selection};
use crate::words::Foreign;

/// `NamespaceNotFound`, `NamespaceExists`: the change was applied before.
const DONE_BEFORE: [i32; 2] = [ErrorCode::NAMESPACE_NOT_FOUND.0, ErrorCode::NAMESPACE_EXISTS.0];

/// The most operations of transactions whose end has not been read.
const MAX_OPEN_OPERATIONS: usize = 10_000_000;

/// The changes on their way.
pub(super) struct Replay<'a> {
    client: &'a Client,
    selection: &'a Selection,
    limit: Option<Timestamp>,
    /// The indexes that the collections have in the end.
    indexes: &'a mut BTreeMap<Place, Vec<Document>>,
    uri: &'a str,
    /// The changes of documents that are not written yet, of one collection.
    pending: Vec<Change>,
    pending_place: Option<Place>,
    pending_bytes: usize,
    /// Operations of transactions that go on in later entries, by session and number.
    transactions: BTreeMap<Vec<u8>, Vec<Document>>,
    open_operations: usize,
    applied: usize,
    is_over: bool,
}

/// What an entry does to a document.
enum Change {
    /// The whole document.
    Whole(Document),
    /// What differs from the one before.
    Difference {
        id: Bson,
        update: Document,
    },
    Deleted {
        id: Bson,
    },
}

impl Change {
    fn id(&self) -> Bson {
        match self {
            Self::Whole(document) => document.get("_id").cloned().unwrap_or(Bson::Null),
            Self::Difference { id, .. } | Self::Deleted { id } => id.clone(),
        }
    }
}

impl<'a> Replay<'a> {
    pub(super) fn new(
        client: &'a Client,
        selection: &'a Selection,
        limit: Option<Timestamp>,
        indexes: &'a mut BTreeMap<Place, Vec<Document>>,
        uri: &'a str,
    ) -> Self {
        Self {
            client,
            selection,
            limit,
            indexes,
            uri,
            pending: Vec::new(),
            pending_place: None,
            pending_bytes: 0,
            transactions: BTreeMap::new(),
            open_operations: 0,
            applied: 0,
            is_over: false,
        }
    }

    /// Applies an entry, sooner or later.
    pub(super) async fn apply(&mut self, entry: &RawDocument) -> Result<()> {
        let entry = Document::try_from(entry).map_err(|error| broken(&error.to_string()))?;
        let time = entry.get_timestamp("ts").map_err(|_| broken("an entry has no time"))?;
        if self.is_over || self.limit.is_some_and(|limit| time >= limit) {
            self.is_over = true;
            return Ok(());
        }
        match (entry.get_str("op"), entry.get_document("o")) {
            (Ok("c"), Ok(change)) if change.contains_key("applyOps") => {
                self.operations(&entry, change).await
            }
            (Ok("c"), Ok(change)) if change.contains_key("commitTransaction") => {
                let operations = self.transactions.remove(&transaction(&entry)).unwrap_or_default();
                self.each(operations).await
            }
            (Ok("c"), Ok(change)) if change.contains_key("abortTransaction") => {
                self.transactions.remove(&transaction(&entry));
                Ok(())
            }
            _ => self.one(&entry).await,
        }
    }

    /// An entry with several operations: a transaction, or a part of one.
    async fn operations(&mut self, entry: &Document, change: &Document) -> Result<()> {
        let operations =
            change.get_array("applyOps").map_err(|_| broken("applyOps is no array"))?;
        let operations = operations.iter().filter_map(Bson::as_document).cloned();
        let key = transaction(entry);
        let mut all = self.transactions.remove(&key).unwrap_or_default();
        all.extend(operations);
        let goes_on =
            ["partialTxn", "prepare"].iter().any(|flag| change.get_bool(flag).unwrap_or(false));
        if !goes_on {
            return self.each(all).await;
        }
        self.open_operations = self.transactions.values().map(Vec::len).sum::<usize>() + all.len();
        if self.open_operations > MAX_OPEN_OPERATIONS {
            return Err(broken("its transactions have too many operations"));
        }
        self.transactions.insert(key, all);
        Ok(())
    }

    async fn each(&mut self, operations: Vec<Document>) -> Result<()> {
        for operation in operations {
            self.one(&operation).await?;
        }
        Ok(())
    }

    async fn one(&mut self, entry: &Document) -> Result<()> {
        let (Ok(op), Ok(namespace), Ok(object)) =
            (entry.get_str("op"), entry.get_str("ns"), entry.get_document("o"))
        else {
            return Err(broken("an entry lacks op, ns or o"));
        };
        let Some((database, collection)) = namespace.split_once('.') else { return Ok(()) };
        if op == "c" {
            return self.command(database, object).await;
        }
        if op == "n" || !self.is_wanted(database, collection) {
            return Ok(());
        }
        let id = |from: &Document| {
            from.get("_id").cloned().ok_or_else(|| broken("an entry names no _id"))
        };
        let change = match op {
            "i" => Change::Whole(object.clone()),
            "d" => Change::Deleted { id: id(object)? },
            "u" => {
                let target = entry.get_document("o2").map_err(|_| broken("an update has no o2"))?;
                match object.keys().next().is_some_and(|key| key.starts_with('$')) {
                    true => Change::Difference { id: id(target)?, update: object.clone() },
                    false => Change::Whole(with_id(object, id(target)?)),
                }
            }
            other => return Err(broken(&format!("the operation {other:?} is not known"))),
        };
        self.put(Place::new(database, collection), change, object).await
    }

    fn is_wanted(&self, database: &str, collection: &str) -> bool {
        is_restorable(database, collection) && self.selection.has(database, collection)
    }

    async fn put(&mut self, place: Place, change: Change, told: &Document) -> Result<()> {
        let size = bson::RawDocumentBuf::try_from(told).map_or(0, |raw| raw.as_bytes().len());
        let is_full = self.pending.len() == BATCH_DOCUMENTS
            || self.pending_bytes + size > BATCH_BYTES
            || self.pending_place.as_ref() != Some(&place);
        if is_full {
            self.flush().await?;
        }
        self.pending_place = Some(place);
        self.pending_bytes += size;
        self.pending.push(change);
        self.applied += 1;
        Ok(())
    }

    /// Writes what the pending changes come to.
    async fn flush(&mut self) -> Result<()> {
        let changes = std::mem::take(&mut self.pending);
        self.pending_bytes = 0;
        let Some(place) = self.pending_place.take() else { return Ok(()) };
        if changes.is_empty() {
            return Ok(());
        }
        let uri = self.uri;
        let failed = |error: Error| connect::failed(&error, uri);
        let collection = self.client.collection(&place.database, &place.collection);
        let wanted: Vec<Bson> = changes
            .iter()
            .filter(|change| matches!(change, Change::Difference { .. }))
            .map(Change::id)
            .collect();
        let mut states: BTreeMap<Vec<u8>, (Bson, Option<Document>)> = BTreeMap::new();
        if !wanted.is_empty() {
            let found = collection.find(doc! { "_id": { "$in": wanted } }).await;
            let mut found = found.map_err(failed)?;
            while let Some(document) = found.next().await.map_err(failed)? {
                let key = id_key(&document);
                let document =
                    Document::try_from(document).map_err(|error| broken(&error.to_string()))?;
                let id = document.get("_id").cloned().unwrap_or(Bson::Null);
                states.insert(key, (id, Some(document)));
            }
        }
        let (mut order, mut seen) = (Vec::new(), BTreeSet::new());
        for change in changes {
            let id = change.id();
            let key = key_of(&id)?;
            let state = states.entry(key.clone()).or_insert((id, None));
            match change {
                Change::Whole(document) => state.1 = Some(document),
                Change::Deleted { .. } => state.1 = None,
                // A document that is not there is deleted by a later entry.
                Change::Difference { update, .. } => {
                    if let Some(document) = &state.1 {
                        state.1 = Some(differ(document, &update)?);
                    }
                }
            }
            if seen.insert(key.clone()) {
                order.push(key);
            }
        }
        let models = order.iter().filter_map(|key| states.remove(key)).map(|(id, state)| {
            let filter = doc! { "_id": id };
            match state {
                Some(document) => WriteModel::replace_one(filter, document).upsert(true),
                None => WriteModel::delete_one(filter),
            }
        });
        let models: Vec<WriteModel> = models.collect();
        collection.bulk_write(models).await.map(drop).map_err(failed)
    }

    /// A change of collections and indexes.
    async fn command(&mut self, database: &str, command: &Document) -> Result<()> {
        let Some((name, value)) = command.iter().next() else { return Ok(()) };
        let place = Place::new(database, value.as_str().unwrap_or_default());
        let names_one = value.as_str().is_some();
        if names_one && name != "renameCollection" && !self.is_wanted(database, &place.collection) {
            return Ok(());
        }
        self.flush().await?;
        self.applied += 1;
        match name.as_str() {
            "create" => {
                self.indexes.entry(place).or_default();
                self.run(database, command, &["idIndex", "uuid", "autoIndexId", "temp"]).await
            }
            "collMod" => self.run(database, command, &[]).await,
            "drop" => {
                self.indexes.remove(&place);
                self.run(database, &doc! { "drop": place.collection }, &[]).await
            }
            "dropDatabase" if self.selection.is_everything() => {
                self.indexes.retain(|place, _| place.database != database);
                self.run(database, &doc! { "dropDatabase": 1 }, &[]).await
            }
            "createIndexes" => {
                let mut index = command.clone();
                index.remove("createIndexes");
                self.index(place, index);
                Ok(())
            }
            "commitIndexBuild" => {
                let built = command.get_array("indexes").cloned().unwrap_or_default();
                for index in built.iter().filter_map(Bson::as_document) {
                    self.index(place.clone(), index.clone());
                }
                Ok(())
            }
            "dropIndexes" | "deleteIndexes" => {
                let gone = command.get_str("index").unwrap_or_default().to_owned();
                if let Some(indexes) = self.indexes.get_mut(&place) {
                    indexes
                        .retain(|index| gone != "*" && index.get_str("name").ok() != Some(&gone));
                }
                Ok(())
            }
            "startIndexBuild" | "abortIndexBuild" | "dropDatabase" => Ok(()),
            other => Err(broken(&format!(
                "the change {} of {} cannot be applied",
                Foreign(other),
                Foreign(database)
            ))),
        }
    }

    fn index(&mut self, place: Place, index: Document) {
        let indexes = self.indexes.entry(place).or_default();
        indexes.retain(|other| other.get("name") != index.get("name"));
        indexes.push(index);
    }

    async fn run(&self, database: &str, command: &Document, without: &[&str]) -> Result<()> {
        let mut command = command.clone();
        for key in without {
            command.remove(key);
        }
        let command = RawDocumentBuf::try_from(&command).map_err(|e| broken(&e.to_string()))?;
        match administer(self.client, database, command).await {
            Err(error) if error.code().is_some_and(|code| DONE_BEFORE.contains(&code)) => Ok(()),
            outcome => outcome.map_err(|error| connect::failed(&error, self.uri)),
        }
    }

    /// Writes the pending changes. Returns how many were applied.
    pub(super) async fn finish(mut self) -> Result<usize> {
        self.flush().await?;
        Ok(self.applied)
    }
}

/// The document after an update of either version of the format.
fn differ(before: &Document, update: &Document) -> Result<Document> {
    if update.contains_key("diff") {
        return apply_oplog_update(before, update).map_err(|error| broken(&error.to_string()));
    }
    Err(broken("an update is in the format of servers before 5.0: use mongorestore for this dump"))
}

/// A replacement carries its `_id` first, whether the entry had it or not.
fn with_id(replacement: &Document, id: Bson) -> Document {
    let mut document = doc! { "_id": id };
    document.extend(replacement.clone());
    document
}

/// The session and the number of a transaction.
fn transaction(entry: &Document) -> Vec<u8> {
    let mut key = Document::new();
    for name in ["lsid", "txnNumber"] {
        if let Some(value) = entry.get(name) {
            key.insert(name, value.clone());
        }
    }
    RawDocumentBuf::try_from(&key).map(RawDocumentBuf::into_bytes).unwrap_or_default()
}

fn key_of(id: &Bson) -> Result<Vec<u8>> {
    let document = RawDocumentBuf::try_from(&doc! { "_id": id.clone() });
    document.map(|document| id_key(&document)).map_err(|error| broken(&error.to_string()))
}

fn broken(what: &str) -> Failure {
    problem!(
        "oplog.bson cannot be applied: {what}; dump again, or remove oplog.bson to restore without \
         the changes during the dump"
    )
}
