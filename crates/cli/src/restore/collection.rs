//! One collection: made, filled, indexed.

use std::collections::BTreeMap;
use std::sync::Arc;

use bson::raw::{RawBsonRef, RawDocument, RawDocumentBuf, cstr};
use bson::{Bson, Document, doc, rawdoc};
use quorate_client::{Client, Error, ErrorKind};

use super::{RestoreArguments, administer};
use crate::connect;
use crate::screen::{Failure, Result};
use crate::transfer::bson_file::Documents;
use crate::transfer::layout::{Metadata, Place};
use crate::transfer::tally::Tally;
use crate::transfer::{BATCH_BYTES, BATCH_DOCUMENTS};
use crate::words::Foreign;
use quorate_protocol::ErrorCode;

/// What became of a collection's documents.
#[derive(Debug, Default)]
pub(crate) struct Filled {
    pub(crate) inserted: usize,
    /// Documents that were there already, and equal.
    pub(crate) present: usize,
    /// Documents that were there already, and differ.
    pub(crate) conflicts: usize,
    /// The `_id` of the first of them.
    pub(crate) first_conflict: Option<String>,
}

/// Makes the collection or the view, if it is not there.
pub(super) async fn prepare(
    client: &Client,
    place: &Place,
    metadata: &Metadata,
    arguments: &RestoreArguments,
) -> Result<()> {
    let failed = |error: Error| refused(place, &error, arguments.uri());
    if arguments.drop {
        let collection = client.collection(&place.database, &place.collection);
        collection.drop_collection().await.map_err(failed)?;
    }
    let mut command = rawdoc! { "create": place.collection.as_str() };
    for (key, value) in &metadata.options {
        // Identifiers and the index of _id are the server's own.
        if matches!(key.as_str(), "uuid" | "idIndex" | "autoIndexId" | "temp") {
            continue;
        }
        let (Ok(key), Ok(value)) =
            (bson::raw::CString::try_from(key.as_str()), bson::RawBson::try_from(value.clone()))
        else {
            continue;
        };
        command.append(key, value);
    }
    match administer(client, &place.database, command).await {
        Err(error) if error.code() == Some(ErrorCode::NAMESPACE_EXISTS.0) => Ok(()),
        outcome => outcome.map_err(failed),
    }
}

/// Makes the indexes of a collection, except that of `_id`, which is there.
pub(super) async fn make_indexes(
    client: &Client,
    place: &Place,
    indexes: &[Document],
    uri: &str,
) -> Result<()> {
    let mut wanted = bson::RawArrayBuf::new();
    for index in indexes {
        if index.get_document("key").is_ok_and(|key| key.len() == 1 && key.contains_key("_id")) {
            continue;
        }
        let mut index = index.clone();
        index.remove("ns");
        index.remove("background");
        // The versions before 2 are those of servers that are gone.
        if index.get("v").and_then(Bson::as_i32) != Some(2) {
            index.remove("v");
        }
        if let Ok(index) = RawDocumentBuf::try_from(&index) {
            wanted.push(index);
        }
    }
    if wanted.is_empty() {
        return Ok(());
    }
    let command = rawdoc! { "createIndexes": place.collection.as_str(), "indexes": wanted };
    administer(client, &place.database, command).await.map_err(|error| refused(place, &error, uri))
}

fn refused(place: &Place, error: &Error, uri: &str) -> Failure {
    match error.kind() {
        ErrorKind::Command { .. } | ErrorKind::Write(_) => problem!(
            "{} cannot be restored: {}; correct its metadata.json, or drop what is there with \
             --drop, and restore again",
            Foreign(place),
            Foreign(error)
        ),
        _ => connect::failed(error, uri),
    }
}

/// Documents on their way into a collection.
pub(crate) struct Filling {
    client: Client,
    place: Place,
    tally: Arc<Tally>,
    uri: String,
    batch: Vec<RawDocumentBuf>,
    bytes: usize,
    filled: Filled,
}

impl Filling {
    pub(crate) fn new(client: &Client, place: Place, tally: &Arc<Tally>, uri: &str) -> Self {
        Self {
            client: client.clone(),
            place,
            tally: Arc::clone(tally),
            uri: uri.to_owned(),
            batch: Vec::new(),
            bytes: 0,
            filled: Filled::default(),
        }
    }

    /// Takes all documents of a file.
    pub(crate) async fn take_file(mut self, mut documents: Documents) -> Result<Filled> {
        while let Some(document) = documents.next()? {
            self.add(document).await?;
        }
        self.finish().await
    }

    /// Takes a document.
    pub(crate) async fn add(&mut self, document: RawDocumentBuf) -> Result<()> {
        let size = document.as_bytes().len();
        if self.bytes + size > BATCH_BYTES || self.batch.len() == BATCH_DOCUMENTS {
            self.send().await?;
        }
        self.bytes += size;
        self.batch.push(document);
        Ok(())
    }

    /// There are no more.
    pub(crate) async fn finish(mut self) -> Result<Filled> {
        self.send().await?;
        Ok(self.filled)
    }

    async fn send(&mut self) -> Result<()> {
        let batch = std::mem::take(&mut self.batch);
        self.bytes = 0;
        if batch.is_empty() {
            return Ok(());
        }
        let collection = self.client.collection(&self.place.database, &self.place.collection);
        let documents = batch.iter().map(|document| -> &RawDocument { document });
        let inserted = collection.insert_many(documents).ordered(false).await;
        self.tally.counted(batch.len());
        let error = match inserted {
            Ok(_) => {
                self.filled.inserted += batch.len();
                return Ok(());
            }
            Err(error) => error,
        };
        let ErrorKind::Write(failure) = error.kind() else {
            return Err(connect::failed(&error, &self.uri));
        };
        if let Some(error) = failure.write_concern_errors.first() {
            return Err(problem!(
                "a majority did not confirm the documents of {}: {}; see quorate status, and \
                 restore again",
                Foreign(&self.place),
                Foreign(&error.message)
            ));
        }
        if let Some(other) =
            failure.write_errors.iter().find(|e| e.code != Some(ErrorCode::DUPLICATE_KEY.0))
        {
            return Err(problem!(
                "the document with _id {} of {} is refused: {}; correct the options of the \
                 collection, and restore again",
                Foreign(batch.get(other.index).map(id_text).unwrap_or_default()),
                Foreign(&self.place),
                Foreign(&other.message)
            ));
        }
        let there: Vec<&RawDocumentBuf> =
            failure.write_errors.iter().filter_map(|error| batch.get(error.index)).collect();
        self.filled.inserted += batch.len() - there.len();
        self.compare(&there).await
    }

    /// Compares documents that could not be inserted with those that are there.
    async fn compare(&mut self, refused: &[&RawDocumentBuf]) -> Result<()> {
        let ids: Vec<Bson> = refused
            .iter()
            .filter_map(|document| document.get("_id").ok().flatten())
            .filter_map(|id| Bson::try_from(id).ok())
            .collect();
        let collection = self.client.collection(&self.place.database, &self.place.collection);
        let failed = |error: Error| connect::failed(&error, &self.uri);
        let mut there = BTreeMap::new();
        let mut found = collection.find(doc! { "_id": { "$in": ids } }).await.map_err(failed)?;
        while let Some(document) = found.next().await.map_err(failed)? {
            there.insert(id_key(&document), document);
        }
        for document in refused {
            if there.get(&id_key(document)).is_some_and(|found| found == *document) {
                self.filled.present += 1;
                continue;
            }
            self.filled.conflicts += 1;
            self.filled.first_conflict.get_or_insert_with(|| id_text(document));
        }
        Ok(())
    }
}

/// The bytes of a document's `_id`.
pub(super) fn id_key(document: &RawDocument) -> Vec<u8> {
    let mut key = RawDocumentBuf::new();
    if let Ok(Some(id)) = document.get("_id") {
        key.append(cstr!(""), bson::RawBson::from(id));
    }
    key.into_bytes()
}

fn id_text(document: &RawDocumentBuf) -> String {
    let id = document.get("_id").ok().flatten().unwrap_or(RawBsonRef::Null);
    Bson::try_from(id).map(|id| id.into_relaxed_extjson().to_string()).unwrap_or_default()
}
