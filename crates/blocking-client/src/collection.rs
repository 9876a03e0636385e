//! Thin typed wrappers for the commands of ordinary work.
//!
//! Each builds one command, sends it through `operation`, and reads the reply. Reads use the
//! client's read preference and are retried once; writes use its write concern and are never sent
//! twice: without implicit sessions nothing makes that safe.

use bson::raw::{RawArrayBuf, RawBson, RawDocument, RawDocumentBuf, cstr};
use bson::rawdoc;
use quorate_client_session::{Role, SessionState, count, read_concern, with_id, write_errors};
use quorate_connection_string::WriteAcknowledgement;
use quorate_protocol::{ReadPreference, ServerAddress};
use quorate_server_discovery::SelectionRequest;
use quorate_wire::{AppendSome, ConnectionLimits, WriteConcernError, command_error};

use crate::client::Client;
use crate::cursor::{Cursor, Paging};
use crate::error::{OperationError, WriteFailure};
use crate::operation::{Answer, Operation};

/// Room for the command and the frame of a message, beside its documents.
const COMMAND_ALLOWANCE: usize = 16 * 1024;

/// A database and a collection in it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Namespace {
    database: String,
    collection: String,
}

impl Namespace {
    /// The collection of this name in the database of that name.
    ///
    /// # Errors
    ///
    /// If one of them is empty, or the database's name holds a dot.
    pub fn new(database: &str, collection: &str) -> Result<Self, OperationError> {
        if database.is_empty() || database.contains('.') || collection.is_empty() {
            return Err(OperationError::Misuse(format!(
                "{database:?} and {collection:?} name no collection; both must not be empty, and a \
                 database has no dot"
            )));
        }
        Ok(Self { database: database.to_owned(), collection: collection.to_owned() })
    }

    /// The database.
    pub fn database(&self) -> &str {
        &self.database
    }

    /// The collection.
    pub fn collection(&self) -> &str {
        &self.collection
    }
}

/// What to find, beside the filter. The default is everything.
#[derive(Clone, Debug, Default)]
pub struct FindOptions {
    /// `sort`.
    pub sort: Option<RawDocumentBuf>,
    /// `projection`.
    pub projection: Option<RawDocumentBuf>,
    /// `skip`: how many results to leave out.
    pub skip: Option<u32>,
    /// `limit`: how many to return; `None` or 0 is all of them.
    pub limit: Option<u32>,
    /// `batchSize`: how many to fetch at a time.
    pub batch_size: Option<u32>,
    /// Another read preference than the client's.
    pub read_preference: Option<ReadPreference>,
}

/// One update.
#[derive(Clone, Debug)]
pub struct UpdateStatement {
    /// `q`: which documents.
    pub filter: RawDocumentBuf,
    /// `u`: what to do to them: operators, or a replacement.
    pub update: RawDocumentBuf,
    /// `multi`: all of them, not just the first.
    pub multi: bool,
    /// `upsert`: if there is none, make one.
    pub upsert: bool,
}

/// What an update did.
#[derive(Clone, Debug, PartialEq)]
pub struct UpdateOutcome {
    /// How many documents matched.
    pub matched: u64,
    /// How many are different now.
    pub modified: u64,
    /// The `_id` of the document that was made.
    pub upserted_id: Option<RawBson>,
}

/// Which documents of those that match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// The first one.
    One,
    /// All of them.
    All,
}

impl Client {
    /// Inserts documents in order, in as many messages as the server's limits need. A document
    /// without `_id` is given one. Returns the `_id` of each.
    ///
    /// # Errors
    ///
    /// If a document cannot be inserted, those behind it are not. The failure counts what was done
    /// in all messages.
    pub fn insert(
        &mut self,
        namespace: &Namespace,
        documents: impl IntoIterator<Item = RawDocumentBuf>,
    ) -> Result<Vec<RawBson>, OperationError> {
        let mut ids = Vec::new();
        let mut ready = Vec::new();
        for document in documents {
            let (id, document) = with_id(document, bson::oid::ObjectId::new).map_err(|error| {
                OperationError::Misuse(format!("a document to insert is no BSON: {error}"))
            })?;
            ready.push(document);
            ids.push(id);
        }
        if ready.is_empty() {
            return Err(OperationError::Misuse("there is no document to insert".to_owned()));
        }
        let mut command = rawdoc! { "insert": namespace.collection(), "ordered": true };
        self.append_write_concern(&mut command);
        let mut sent = 0;
        let mut lagging = None;
        while sent < ready.len() {
            let server = self
                .server_for(Role::Statement, &SelectionRequest::WRITE)
                .map_err(|error| self.labelled(Role::Statement, error))?;
            if sent == 0 {
                self.refuse_too_long(&server, &ready)?;
            }
            let count = self.fitting(&server, &ready[sent..]);
            let operation = Operation {
                sequence: Some((cstr!("documents"), &ready[sent..sent + count])),
                ..Operation::write(namespace.database(), &command)
            };
            let answer = self.run(operation)?;
            let server = answer.server.clone();
            match self.read_write_reply(&answer, "insert", sent)?.1 {
                Some(mut failure) if !failure.errors.is_empty() => {
                    failure.done += sent as u64;
                    let failure = Box::new(failure);
                    return Err(OperationError::Write { server, failure });
                }
                Some(failure) => lagging = Some((server, failure.write_concern_error)),
                None => {}
            }
            sent += count;
        }
        match lagging {
            None => Ok(ids),
            Some((server, write_concern_error)) => {
                let done = sent as u64;
                let failure = WriteFailure { done, errors: Vec::new(), write_concern_error };
                Err(OperationError::Write { server, failure: Box::new(failure) })
            }
        }
    }

    /// Finds documents.
    ///
    /// # Errors
    ///
    /// As [`run_command`](Self::run_command), after one retry.
    pub fn find(
        &mut self,
        namespace: &Namespace,
        filter: &RawDocument,
        options: &FindOptions,
    ) -> Result<Cursor<'_>, OperationError> {
        let mut command = rawdoc! { "find": namespace.collection() };
        command.append(cstr!("filter"), filter);
        command.append_some(cstr!("sort"), options.sort.as_ref());
        command.append_some(cstr!("projection"), options.projection.as_ref());
        let given = |number: Option<u32>| number.filter(|number| *number > 0).map(i64::from);
        command.append_some(cstr!("skip"), given(options.skip));
        command.append_some(cstr!("limit"), given(options.limit));
        command.append_some(cstr!("batchSize"), given(options.batch_size));
        self.append_read_concern(&mut command);
        let paging = Paging {
            batch_size: options.batch_size,
            limit: options.limit.filter(|limit| *limit > 0).map(u64::from),
            max_await: None,
        };
        let answer = self.read_with(namespace, &command, options.read_preference.as_ref())?;
        Cursor::begin(self, answer, "find", Some(paging))
    }

    /// The first document that matches.
    ///
    /// # Errors
    ///
    /// As [`find`](Self::find).
    pub fn find_one(
        &mut self,
        namespace: &Namespace,
        filter: &RawDocument,
    ) -> Result<Option<RawDocumentBuf>, OperationError> {
        let options = FindOptions { limit: Some(1), ..FindOptions::default() };
        self.find(namespace, filter, &options)?.next().transpose()
    }

    /// Counts the documents that match.
    ///
    /// # Errors
    ///
    /// As [`run_command`](Self::run_command), after one retry.
    pub fn count(
        &mut self,
        namespace: &Namespace,
        filter: &RawDocument,
    ) -> Result<u64, OperationError> {
        let mut command = rawdoc! { "count": namespace.collection() };
        command.append(cstr!("query"), filter);
        self.append_read_concern(&mut command);
        let Answer { server, reply } = self.read_with(namespace, &command, None)?;
        count(&reply, "n").ok_or_else(|| bad_reply(&server, "count", "it has no n"))
    }

    /// Runs an aggregation pipeline. One that ends in `$out` or `$merge` goes to the primary, and
    /// is sent once.
    ///
    /// # Errors
    ///
    /// As [`run_command`](Self::run_command), after one retry.
    pub fn aggregate(
        &mut self,
        namespace: &Namespace,
        pipeline: impl IntoIterator<Item = RawDocumentBuf>,
        batch_size: Option<u32>,
    ) -> Result<Cursor<'_>, OperationError> {
        let mut stages = RawArrayBuf::new();
        let mut writes = false;
        for stage in pipeline {
            let first = stage.iter_elements().next().and_then(Result::ok);
            writes = first.is_some_and(|key| matches!(key.key().as_str(), "$out" | "$merge"));
            stages.push(stage);
        }
        let mut command = rawdoc! { "aggregate": namespace.collection() };
        command.append(cstr!("pipeline"), stages);
        let mut cursor = RawDocumentBuf::new();
        // A pipeline that writes would not write anything with a first batch of 0 documents.
        cursor.append_some(
            cstr!("batchSize"),
            batch_size.filter(|size| *size > 0 && !writes).map(i64::from),
        );
        command.append(cstr!("cursor"), cursor);
        self.append_read_concern(&mut command);
        let answer = if writes {
            self.append_write_concern(&mut command);
            self.run(Operation::write(namespace.database(), &command))?
        } else {
            self.read_with(namespace, &command, None)?
        };
        Cursor::begin(self, answer, "aggregate", Some(Paging { batch_size, ..Paging::default() }))
    }

    /// Updates documents.
    ///
    /// # Errors
    ///
    /// If the server cannot, or the write concern is not met.
    pub fn update(
        &mut self,
        namespace: &Namespace,
        statement: &UpdateStatement,
    ) -> Result<UpdateOutcome, OperationError> {
        let UpdateStatement { filter, update, multi, upsert } = statement;
        let mut one = RawDocumentBuf::new();
        one.append(cstr!("q"), filter);
        one.append(cstr!("u"), update);
        one.append(cstr!("multi"), *multi);
        one.append(cstr!("upsert"), *upsert);
        let answer = self.write_one(namespace, "update", cstr!("updates"), one)?;
        let touched = self.done(&answer, "update")?;
        let upserted = answer.reply.get_array("upserted").ok();
        let upserted = upserted.and_then(|upserted| upserted.get_document(0).ok());
        let upserted_id = upserted.and_then(|entry| entry.get("_id").ok().flatten());
        // The server counts the document that was made as well.
        let made = u64::from(upserted_id.is_some());
        Ok(UpdateOutcome {
            matched: touched.saturating_sub(made),
            modified: count(&answer.reply, "nModified").unwrap_or(0),
            upserted_id: upserted_id.map(RawBson::from),
        })
    }

    /// Deletes documents; how many.
    ///
    /// # Errors
    ///
    /// If the server cannot, or the write concern is not met.
    pub fn delete(
        &mut self,
        namespace: &Namespace,
        filter: &RawDocument,
        extent: Extent,
    ) -> Result<u64, OperationError> {
        let mut one = RawDocumentBuf::new();
        one.append(cstr!("q"), filter);
        one.append(cstr!("limit"), i32::from(extent == Extent::One));
        let answer = self.write_one(namespace, "delete", cstr!("deletes"), one)?;
        self.done(&answer, "delete")
    }

    fn write_one(
        &mut self,
        namespace: &Namespace,
        name: &'static str,
        argument: &bson::raw::CStr,
        statement: RawDocumentBuf,
    ) -> Result<Answer, OperationError> {
        let mut command = match name {
            "update" => rawdoc! { "update": namespace.collection() },
            _ => rawdoc! { "delete": namespace.collection() },
        };
        self.append_write_concern(&mut command);
        let operation = Operation {
            sequence: Some((argument, std::slice::from_ref(&statement))),
            ..Operation::write(namespace.database(), &command)
        };
        self.run(operation)
    }

    fn read_write_reply(
        &self,
        answer: &Answer,
        command: &'static str,
        offset: usize,
    ) -> Result<(u64, Option<WriteFailure>), OperationError> {
        let asked = self.options.write_concern.w != Some(WriteAcknowledgement::Members(0))
            || self.in_transaction();
        read_write_reply(answer, command, offset, asked)
    }

    /// How many documents a write was about, if all of it was done.
    fn done(&self, answer: &Answer, command: &'static str) -> Result<u64, OperationError> {
        match self.read_write_reply(answer, command, 0)? {
            (done, None) => Ok(done),
            (_, Some(failure)) => {
                let (server, failure) = (answer.server.clone(), Box::new(failure));
                Err(OperationError::Write { server, failure })
            }
        }
    }

    pub(crate) fn read_with(
        &mut self,
        namespace: &Namespace,
        command: &RawDocument,
        preference: Option<&ReadPreference>,
    ) -> Result<Answer, OperationError> {
        let default = self.default_read_preference()?;
        let preference = preference.unwrap_or(&default);
        self.run(Operation::read(namespace.database(), command, preference))
    }

    /// The read concern of a read. Those of transactions and snapshots are the session's to add.
    pub(crate) fn append_read_concern(&self, command: &mut RawDocumentBuf) {
        let session = self.active.as_deref();
        if session.is_some_and(|session| session.transaction.is_open() || session.has_snapshot()) {
            return;
        }
        let after = session.and_then(SessionState::after_cluster_time);
        let concern = read_concern(self.options.read_concern_level.as_deref(), after);
        command.append_some(cstr!("readConcern"), concern);
    }

    /// The write concern of a write. That of a transaction goes with its commit.
    fn append_write_concern(&self, command: &mut RawDocumentBuf) {
        if let Some(concern) = self.options.write_concern.document()
            && !self.in_transaction()
        {
            command.append(cstr!("writeConcern"), concern);
        }
    }

    /// Seen to before the first message, so that a refusal leaves nothing half done.
    fn refuse_too_long(
        &self,
        server: &ServerAddress,
        documents: &[RawDocumentBuf],
    ) -> Result<(), OperationError> {
        let Some(connection) = self.connections.get(server) else { return Ok(()) };
        let most = connection.limits.max_bson_object_size;
        let lengths = documents.iter().map(|document| document.as_bytes().len());
        match lengths.enumerate().find(|(_, length)| *length > most) {
            None => Ok(()),
            Some((position, length)) => Err(OperationError::Misuse(format!(
                "document {position} is {length} bytes long and {server} takes {most}; store less \
                 in one document"
            ))),
        }
    }

    /// How many of the documents go into one message to this server: at least one.
    fn fitting(&self, server: &ServerAddress, documents: &[RawDocumentBuf]) -> usize {
        let Some(connection) = self.connections.get(server) else { return documents.len() };
        let ConnectionLimits { max_message_size, max_write_batch_size, .. } = connection.limits;
        let mut room = max_message_size.saturating_sub(COMMAND_ALLOWANCE);
        let fits = |document: &&RawDocumentBuf| match room.checked_sub(document.as_bytes().len()) {
            Some(left) => {
                room = left;
                true
            }
            None => false,
        };
        documents.iter().take(max_write_batch_size).take_while(fits).count().max(1)
    }
}

/// `n`, and what was left undone. `offset` is the place of the first statement among the caller's.
/// With `w: 0`, the client has not `asked` for more than `ok`, and servers leave out the rest.
fn read_write_reply(
    answer: &Answer,
    command: &'static str,
    offset: usize,
    asked: bool,
) -> Result<(u64, Option<WriteFailure>), OperationError> {
    let Answer { server, reply } = answer;
    let done = match count(reply, "n") {
        Some(done) => done,
        None if !asked => 0,
        None => return Err(bad_reply(server, command, "it has no n")),
    };
    let told = command_error(reply).map_err(|error| bad_reply(server, command, error))?;
    let write_concern_error: Option<WriteConcernError> =
        told.and_then(|error| error.write_concern_error);
    let mut errors = write_errors(reply).map_err(|reason| bad_reply(server, command, reason))?;
    errors.iter_mut().for_each(|error| error.index += offset);
    let failed = !errors.is_empty() || write_concern_error.is_some();
    Ok((done, failed.then_some(WriteFailure { done, errors, write_concern_error })))
}

fn bad_reply(
    server: &ServerAddress,
    command: &'static str,
    reason: impl ToString,
) -> OperationError {
    OperationError::BadReply { server: server.clone(), command, reason: reason.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_no_namespace_are_refused() {
        assert!(Namespace::new("shop", "orders.eu").is_ok());
        for (database, collection) in [("", "c"), ("d", ""), ("d.e", "c")] {
            assert!(Namespace::new(database, collection).is_err());
        }
    }

    #[test]
    fn failed_statements_keep_their_place_among_all() {
        let reply = rawdoc! {
            "ok": 1,
            "n": 1,
            "writeErrors": [{ "index": 2, "code": 11000, "errmsg": "twice" }],
            "writeConcernError": { "code": 64, "errmsg": "late" },
        };
        let answer = Answer { server: "a:1".parse().unwrap(), reply };
        let (done, failure) = read_write_reply(&answer, "insert", 10, true).unwrap();
        let failure = failure.unwrap();
        assert_eq!((done, failure.errors[0].index, failure.errors[0].code), (1, 12, Some(11000)));
        assert_eq!(failure.write_concern_error.unwrap().message, "late");

        let answer = Answer { reply: rawdoc! { "ok": 1 }, ..answer };
        assert!(read_write_reply(&answer, "insert", 0, true).is_err());
        assert_eq!(read_write_reply(&answer, "insert", 0, false).unwrap(), (0, None));
    }
}
