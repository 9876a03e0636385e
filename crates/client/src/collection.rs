//! Typed helpers for ordinary work: insert, find, update, delete, aggregate, count, indexes.
//!
//! Follows the CRUD specification in what they send and when they retry. Every helper is one
//! command (inserting many may be several); transactions and change streams are left for later.

use bson::oid::ObjectId;
use bson::raw::{CStr, RawArrayBuf, RawBson, RawBsonRef, RawDocument, RawDocumentBuf, cstr};
use bson::{Document, rawdoc};
use quorate_protocol::ReadPreference;
use quorate_wire::{DEFAULT_MAX_WRITE_BATCH_SIZE, MAX_MESSAGE_SIZE};

use crate::client::Client;
use crate::cursor::{Cursor, key};
use crate::error::{Error, ErrorKind, WriteFailure};
use crate::operation::{Operation, Reply, Retry, Target};
use crate::session::Session;

/// Room for the command around a batch of documents.
const BATCH_MARGIN: usize = 16 * 1024;

/// A document in either of the `bson` crate's forms.
pub trait IntoRaw {
    /// The document as bytes.
    ///
    /// # Errors
    ///
    /// If a key holds a zero byte.
    fn into_raw(self) -> Result<RawDocumentBuf, Error>;
}

impl IntoRaw for RawDocumentBuf {
    fn into_raw(self) -> Result<RawDocumentBuf, Error> {
        Ok(self)
    }
}

impl IntoRaw for &RawDocument {
    fn into_raw(self) -> Result<RawDocumentBuf, Error> {
        Ok(self.to_owned())
    }
}

impl IntoRaw for Document {
    fn into_raw(self) -> Result<RawDocumentBuf, Error> {
        (&self).into_raw()
    }
}

impl IntoRaw for &Document {
    fn into_raw(self) -> Result<RawDocumentBuf, Error> {
        RawDocumentBuf::try_from(self)
            .map_err(|error| Error::new(ErrorKind::BadCommand(error.to_string())))
    }
}

/// What an update did.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct UpdateResult {
    /// How many documents matched.
    pub matched_count: u64,
    /// How many documents changed.
    pub modified_count: u64,
    /// The `_id` of the document that was inserted because none matched.
    pub upserted_id: Option<RawBson>,
}

/// How to find.
#[derive(Clone, Debug, Default)]
pub struct FindOptions {
    /// The order.
    pub sort: Option<RawDocumentBuf>,
    /// The fields to return.
    pub projection: Option<RawDocumentBuf>,
    /// How many results to leave out.
    pub skip: Option<u64>,
    /// How many results to return.
    pub limit: Option<u64>,
    /// How many results to fetch at once.
    pub batch_size: Option<u32>,
    /// Which servers may answer; the client's choice if absent.
    pub read_preference: Option<ReadPreference>,
}

/// A collection of one deployment.
#[derive(Clone, Debug)]
pub struct Collection {
    client: Client,
    database: String,
    name: String,
}

impl Client {
    /// A collection. Nothing is sent.
    pub fn collection(&self, database: &str, name: &str) -> Collection {
        Collection { client: self.clone(), database: database.to_owned(), name: name.to_owned() }
    }

    /// Runs a command that opens a cursor.
    ///
    /// # Errors
    ///
    /// As [`run_command`](Self::run_command), or if the reply holds no cursor.
    pub async fn run_cursor_command(
        &self,
        database: &str,
        command: &RawDocument,
        read_preference: &ReadPreference,
    ) -> Result<Cursor, Error> {
        let target = Target::Read(read_preference.clone());
        self.open_cursor(database, command.to_owned(), target, Retry::Never, None, None).await
    }

    async fn open_cursor(
        &self,
        database: &str,
        body: RawDocumentBuf,
        target: Target,
        retry: Retry,
        read_concern: Option<&str>,
        batch_size: Option<u32>,
    ) -> Result<Cursor, Error> {
        let mut session = Session::new(std::sync::Arc::clone(&self.inner().sessions), false);
        let operation = Operation {
            database,
            body,
            sequence: None,
            target,
            retry,
            read_concern,
            acknowledged: true,
        };
        let reply = self.inner().execute(&operation, Some(&mut session)).await?;
        Cursor::open(self.clone(), session, &reply, batch_size)
    }
}

impl Collection {
    /// Inserts a document and returns its `_id`, which is made if there is none.
    ///
    /// # Errors
    ///
    /// If the server refuses, or no server can be reached.
    pub async fn insert_one(&self, document: impl IntoRaw) -> Result<RawBson, Error> {
        let mut ids = self.insert_many([document]).await?;
        ids.pop().ok_or_else(|| Error::new(ErrorKind::BadCommand("nothing to insert".to_owned())))
    }

    /// Inserts documents in order and returns their `_id`s. The first one that fails ends it.
    ///
    /// # Errors
    ///
    /// If the server refuses, or no server can be reached. Documents before the failing one are
    /// inserted.
    pub async fn insert_many(
        &self,
        documents: impl IntoIterator<Item = impl IntoRaw>,
    ) -> Result<Vec<RawBson>, Error> {
        let mut ids = Vec::new();
        let mut prepared = Vec::new();
        for document in documents {
            let (id, document) = with_id(document.into_raw()?)?;
            ids.push(id);
            prepared.push(document);
        }
        let mut sent = 0;
        for batch in batches(&prepared) {
            let body = rawdoc! { "insert": self.name.as_str(), "ordered": true };
            let reply = self.write(body, cstr!("documents"), batch, Retry::Write).await?;
            check_writes(&reply, sent)?;
            sent += batch.len();
        }
        Ok(ids)
    }

    /// Changes the first document that matches.
    ///
    /// # Errors
    ///
    /// If the server refuses, or no server can be reached.
    pub async fn update_one(
        &self,
        filter: impl IntoRaw,
        update: impl IntoRaw,
        upsert: bool,
    ) -> Result<UpdateResult, Error> {
        self.update(filter.into_raw()?, update.into_raw()?, upsert, false).await
    }

    /// Changes every document that matches. Not retried: a server cannot tell what was done already.
    ///
    /// # Errors
    ///
    /// If the server refuses, or no server can be reached.
    pub async fn update_many(
        &self,
        filter: impl IntoRaw,
        update: impl IntoRaw,
        upsert: bool,
    ) -> Result<UpdateResult, Error> {
        self.update(filter.into_raw()?, update.into_raw()?, upsert, true).await
    }

    /// Deletes the first document that matches; returns how many were deleted.
    ///
    /// # Errors
    ///
    /// If the server refuses, or no server can be reached.
    pub async fn delete_one(&self, filter: impl IntoRaw) -> Result<u64, Error> {
        self.delete(filter.into_raw()?, 1).await
    }

    /// Deletes every document that matches; returns how many were deleted.
    ///
    /// # Errors
    ///
    /// If the server refuses, or no server can be reached.
    pub async fn delete_many(&self, filter: impl IntoRaw) -> Result<u64, Error> {
        self.delete(filter.into_raw()?, 0).await
    }

    /// The documents that match.
    ///
    /// # Errors
    ///
    /// If the server refuses, or no server can be reached.
    pub async fn find(&self, filter: impl IntoRaw, options: FindOptions) -> Result<Cursor, Error> {
        let mut body = rawdoc! { "find": self.name.as_str(), "filter": filter.into_raw()? };
        if let Some(sort) = options.sort {
            body.append(cstr!("sort"), sort);
        }
        if let Some(projection) = options.projection {
            body.append(cstr!("projection"), projection);
        }
        for (key, value) in [
            (cstr!("skip"), options.skip),
            (cstr!("limit"), options.limit),
            (cstr!("batchSize"), options.batch_size.map(u64::from)),
        ] {
            if let Some(value) = value {
                body.append(key, i64::try_from(value).unwrap_or(i64::MAX));
            }
        }
        self.read(body, options.read_preference, options.batch_size).await
    }

    /// The first document that matches.
    ///
    /// # Errors
    ///
    /// If the server refuses, or no server can be reached.
    pub async fn find_one(&self, filter: impl IntoRaw) -> Result<Option<RawDocumentBuf>, Error> {
        let options = FindOptions { limit: Some(1), ..FindOptions::default() };
        self.find(filter, options).await?.next().await
    }

    /// Runs a pipeline. One that writes (`$out`, `$merge`) goes to the primary, once.
    ///
    /// # Errors
    ///
    /// If the server refuses, or no server can be reached.
    pub async fn aggregate(
        &self,
        pipeline: impl IntoIterator<Item = impl IntoRaw>,
    ) -> Result<Cursor, Error> {
        let stages =
            pipeline.into_iter().map(IntoRaw::into_raw).collect::<Result<Vec<_>, Error>>()?;
        let writes = stages.last().is_some_and(|stage| {
            let name = stage.iter_elements().next().and_then(Result::ok);
            name.is_some_and(|element| matches!(element.key().as_str(), "$out" | "$merge"))
        });
        let body = rawdoc! {
            "aggregate": self.name.as_str(),
            "pipeline": RawArrayBuf::from_iter(stages),
            "cursor": {},
        };
        if !writes {
            return self.read(body, None, None).await;
        }
        let concern = self.client.inner().options.write_concern.document();
        let mut body = body;
        if let Some(concern) = concern {
            body.append(cstr!("writeConcern"), concern);
        }
        let level = self.client.inner().options.read_concern.clone();
        let (target, retry) = (Target::Write, Retry::Never);
        let level = level.as_deref();
        self.client.open_cursor(&self.database, body, target, retry, level, None).await
    }

    /// How many documents match, counted.
    ///
    /// # Errors
    ///
    /// If the server refuses, or no server can be reached.
    pub async fn count_documents(&self, filter: impl IntoRaw) -> Result<u64, Error> {
        let pipeline = [
            rawdoc! { "$match": filter.into_raw()? },
            rawdoc! { "$group": { "_id": 1, "n": { "$sum": 1 } } },
        ];
        let counted = self.aggregate(pipeline).await?.next().await?;
        Ok(counted.map_or(0, |counted| number(&counted, "n")))
    }

    /// How many documents there are, by the collection's metadata.
    ///
    /// # Errors
    ///
    /// If the server refuses, or no server can be reached.
    pub async fn estimated_document_count(&self) -> Result<u64, Error> {
        let inner = self.client.inner();
        let operation = Operation {
            database: &self.database,
            body: rawdoc! { "count": self.name.as_str() },
            sequence: None,
            target: Target::Read(inner.options.read_preference.clone()),
            retry: Retry::Read,
            read_concern: inner.options.read_concern.as_deref(),
            acknowledged: true,
        };
        Ok(number(&inner.execute(&operation, None).await?.body, "n"))
    }

    /// Makes an index and returns its name.
    ///
    /// # Errors
    ///
    /// If the server refuses, or no server can be reached.
    pub async fn create_index(&self, keys: impl IntoRaw, unique: bool) -> Result<String, Error> {
        let keys = keys.into_raw()?;
        let name = index_name(&keys)?;
        let mut index = rawdoc! { "key": keys, "name": name.as_str() };
        if unique {
            index.append(cstr!("unique"), true);
        }
        let body = rawdoc! { "createIndexes": self.name.as_str(), "indexes": [index] };
        self.administer(body).await?;
        Ok(name)
    }

    /// Removes an index by its name.
    ///
    /// # Errors
    ///
    /// If the server refuses, or no server can be reached.
    pub async fn drop_index(&self, name: &str) -> Result<(), Error> {
        let body = rawdoc! { "dropIndexes": self.name.as_str(), "index": name };
        self.administer(body).await.map(drop)
    }

    /// The indexes.
    ///
    /// # Errors
    ///
    /// If the server refuses, or no server can be reached.
    pub async fn list_indexes(&self) -> Result<Cursor, Error> {
        let body = rawdoc! { "listIndexes": self.name.as_str(), "cursor": {} };
        let target = Target::Read(ReadPreference::PRIMARY);
        self.client.open_cursor(&self.database, body, target, Retry::Read, None, None).await
    }

    async fn read(
        &self,
        body: RawDocumentBuf,
        read_preference: Option<ReadPreference>,
        batch_size: Option<u32>,
    ) -> Result<Cursor, Error> {
        let options = &self.client.inner().options;
        let preference = read_preference.unwrap_or_else(|| options.read_preference.clone());
        let level = options.read_concern.as_deref();
        let target = Target::Read(preference);
        self.client.open_cursor(&self.database, body, target, Retry::Read, level, batch_size).await
    }

    async fn update(
        &self,
        filter: RawDocumentBuf,
        update: RawDocumentBuf,
        upsert: bool,
        many: bool,
    ) -> Result<UpdateResult, Error> {
        let mut statement = rawdoc! { "q": filter, "u": update };
        if many {
            statement.append(cstr!("multi"), true);
        }
        if upsert {
            statement.append(cstr!("upsert"), true);
        }
        let retry = if many { Retry::Never } else { Retry::Write };
        let body = rawdoc! { "update": self.name.as_str(), "ordered": true };
        let reply = self.write(body, cstr!("updates"), &[statement], retry).await?;
        check_writes(&reply, 0)?;
        let upserted = reply.body.get_array("upserted").ok().and_then(|all| {
            let first = all.get_document(0).ok()?;
            first.get("_id").ok().flatten().map(RawBson::from)
        });
        let touched = number(&reply.body, "n");
        Ok(UpdateResult {
            matched_count: touched.saturating_sub(u64::from(upserted.is_some())),
            modified_count: number(&reply.body, "nModified"),
            upserted_id: upserted,
        })
    }

    async fn delete(&self, filter: RawDocumentBuf, limit: i32) -> Result<u64, Error> {
        let statement = rawdoc! { "q": filter, "limit": limit };
        let retry = if limit == 1 { Retry::Write } else { Retry::Never };
        let body = rawdoc! { "delete": self.name.as_str(), "ordered": true };
        let reply = self.write(body, cstr!("deletes"), &[statement], retry).await?;
        check_writes(&reply, 0)?;
        Ok(number(&reply.body, "n"))
    }

    async fn write(
        &self,
        mut body: RawDocumentBuf,
        name: &CStr,
        documents: &[RawDocumentBuf],
        retry: Retry,
    ) -> Result<Reply, Error> {
        let inner = self.client.inner();
        let concern = &inner.options.write_concern;
        if let Some(concern) = concern.document() {
            body.append(cstr!("writeConcern"), concern);
        }
        let operation = Operation {
            database: &self.database,
            body,
            sequence: Some((name, documents)),
            target: Target::Write,
            retry,
            read_concern: None,
            acknowledged: concern.is_acknowledged(),
        };
        inner.execute(&operation, None).await
    }

    async fn administer(&self, mut body: RawDocumentBuf) -> Result<Reply, Error> {
        let inner = self.client.inner();
        if let Some(concern) = inner.options.write_concern.document() {
            body.append(cstr!("writeConcern"), concern);
        }
        let operation = Operation {
            database: &self.database,
            body,
            sequence: None,
            target: Target::Write,
            retry: Retry::Never,
            read_concern: None,
            acknowledged: true,
        };
        inner.execute(&operation, None).await
    }
}

/// The `_id` of a document, and the document with it in the first place.
fn with_id(document: RawDocumentBuf) -> Result<(RawBson, RawDocumentBuf), Error> {
    let unreadable = |error: bson::error::Error| {
        Error::new(ErrorKind::BadCommand(format!("a document cannot be read: {error}")))
    };
    if let Some(id) = document.get("_id").map_err(unreadable)? {
        return Ok((RawBson::from(id), document));
    }
    let id = ObjectId::new();
    let mut with_id = rawdoc! { "_id": id };
    for element in &document {
        let (name, value) = element.map_err(unreadable)?;
        with_id.append(name, value);
    }
    Ok((RawBson::ObjectId(id), with_id))
}

/// Documents in runs that fit in one message.
fn batches(documents: &[RawDocumentBuf]) -> Vec<&[RawDocumentBuf]> {
    let mut batches = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (position, document) in documents.iter().enumerate() {
        let length = document.as_bytes().len();
        let full = position - start == DEFAULT_MAX_WRITE_BATCH_SIZE
            || bytes + length > MAX_MESSAGE_SIZE - BATCH_MARGIN;
        if full && position > start {
            batches.push(&documents[start..position]);
            (start, bytes) = (position, 0);
        }
        bytes += length;
    }
    if start < documents.len() {
        batches.push(&documents[start..]);
    }
    batches
}

/// Whether every write of a batch was done. `before` is how many were sent in earlier batches.
fn check_writes(reply: &Reply, before: usize) -> Result<(), Error> {
    let Ok(errors) = reply.body.get_array("writeErrors") else { return Ok(()) };
    for error in errors {
        if let Ok(RawBsonRef::Document(error)) = error {
            let index = usize::try_from(number(error, "index")).unwrap_or(usize::MAX);
            return Err(Error::new(ErrorKind::Write(WriteFailure {
                address: reply.server.clone(),
                index: before.saturating_add(index),
                code: error.get_i32("code").ok(),
                message: error.get_str("errmsg").unwrap_or_default().to_owned(),
            })));
        }
    }
    Ok(())
}

/// A count in a reply; 0 if there is none.
fn number(document: &RawDocument, field: &str) -> u64 {
    match document.get(field) {
        Ok(Some(RawBsonRef::Int32(number))) => u64::try_from(number).unwrap_or(0),
        Ok(Some(RawBsonRef::Int64(number))) => u64::try_from(number).unwrap_or(0),
        Ok(Some(RawBsonRef::Double(number))) => number as u64,
        _ => 0,
    }
}

/// The name that every driver gives an index: `a_1_b_-1`.
fn index_name(keys: &RawDocument) -> Result<String, Error> {
    let mut parts = Vec::new();
    for element in keys {
        let unreadable = |error: bson::error::Error| {
            Error::new(ErrorKind::BadCommand(format!("the keys cannot be read: {error}")))
        };
        let (name, value) = element.map_err(unreadable)?;
        let direction = match value {
            RawBsonRef::Int32(number) => number.to_string(),
            RawBsonRef::Int64(number) => number.to_string(),
            RawBsonRef::Double(number) => number.to_string(),
            RawBsonRef::String(text) => text.to_owned(),
            _ => {
                let reason = format!("the direction of {:?} is no number or text", name.as_str());
                return Err(Error::new(ErrorKind::BadCommand(reason)));
            }
        };
        parts.push(format!("{}_{direction}", name.as_str()));
    }
    key(&parts.join("_")).map(|name| name.as_str().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_made_where_there_are_none_and_come_first() {
        let (id, document) = with_id(rawdoc! { "a": 1 }).unwrap();
        let first = document.iter_elements().next().unwrap().unwrap();
        assert_eq!(first.key().as_str(), "_id");
        assert!(matches!(id, RawBson::ObjectId(_)));
        let given = rawdoc! { "a": 1, "_id": 7 };
        assert_eq!(with_id(given.clone()).unwrap(), (RawBson::Int32(7), given));
    }

    #[test]
    fn batches_fit_in_a_message() {
        let large = rawdoc! { "a": "x".repeat(20_000_000) };
        let documents = vec![large.clone(), large.clone(), large];
        let lengths: Vec<_> = batches(&documents).iter().map(|batch| batch.len()).collect();
        assert_eq!(lengths, [2, 1]);
        assert!(batches(&[]).is_empty());
        let many = vec![rawdoc! {}; DEFAULT_MAX_WRITE_BATCH_SIZE + 1];
        let lengths: Vec<_> = batches(&many).iter().map(|batch| batch.len()).collect();
        assert_eq!(lengths, [DEFAULT_MAX_WRITE_BATCH_SIZE, 1]);
    }

    #[test]
    fn indexes_are_named_by_their_keys() {
        let name = index_name(&rawdoc! { "a": 1, "b": -1, "c": "text" });
        assert_eq!(name.unwrap(), "a_1_b_-1_c_text");
        assert!(index_name(&rawdoc! { "a": {} }).is_err());
    }
}
