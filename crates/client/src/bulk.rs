//! Many writes in few commands.
//!
//! Owns the models of writes, how they are put into commands, and how the replies are put together
//! again. Follows "Bulk Write" of the CRUD specification: ordered writes are sent in runs of one
//! kind and stop at the first failure; unordered ones are grouped by kind and go on. How many fit in
//! one message is decided where the connection is known.

use std::collections::BTreeMap;

use bson::oid::ObjectId;
use bson::raw::{CStr, RawBson, RawBsonRef, RawDocument, RawDocumentBuf, cstr};
use quorate_client_session::{WriteError, count, with_id, write_errors};
use quorate_protocol::ServerAddress;
use quorate_wire::{WriteConcernError, command_error};

use crate::action::{Arguments, HasStatement, option};
use crate::error::{Error, ErrorKind, WriteFailure};
use crate::operation::{Deadline, Reply};
use crate::value::{IntoRaw, IntoValue};

/// What several writes did.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct BulkWriteResult {
    /// Whether the server was asked for a reply. If not, the counts say nothing.
    pub acknowledged: bool,
    /// How many documents were inserted.
    pub inserted_count: u64,
    /// How many documents matched updates.
    pub matched_count: u64,
    /// How many documents changed.
    pub modified_count: u64,
    /// How many documents were deleted.
    pub deleted_count: u64,
    /// How many documents were inserted by updates that matched nothing.
    pub upserted_count: u64,
    /// The `_id`s of inserted documents, by the position of the write.
    pub inserted_ids: BTreeMap<usize, RawBson>,
    /// The `_id`s of upserted documents, by the position of the write.
    pub upserted_ids: BTreeMap<usize, RawBson>,
}

/// One write of a bulk.
#[derive(Clone, Debug)]
#[must_use = "a write is done by a bulk"]
pub struct WriteModel {
    kind: Kind,
    /// The document to insert, or the fields of the update or delete.
    pub(crate) statement: Arguments,
    document: Option<RawDocumentBuf>,
    multi: bool,
}

/// The commands that write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Insert,
    Update,
    Delete,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Insert, Self::Update, Self::Delete];

    pub(crate) fn command(self) -> &'static CStr {
        match self {
            Self::Insert => cstr!("insert"),
            Self::Update => cstr!("update"),
            Self::Delete => cstr!("delete"),
        }
    }

    pub(crate) fn sequence(self) -> &'static CStr {
        match self {
            Self::Insert => cstr!("documents"),
            Self::Update => cstr!("updates"),
            Self::Delete => cstr!("deletes"),
        }
    }
}

impl WriteModel {
    fn new(kind: Kind, multi: bool) -> Self {
        Self { kind, statement: Arguments::default(), document: None, multi }
    }

    /// Inserts a document, with an `_id` if it has none.
    pub fn insert_one(document: impl IntoRaw) -> Self {
        let mut model = Self::new(Kind::Insert, false);
        match document.into_raw() {
            Ok(document) => model.document = Some(document),
            Err(error) => model.statement.fail(error),
        }
        model
    }

    /// Changes the first document that matches.
    pub fn update_one(filter: impl IntoRaw, update: impl IntoValue) -> Self {
        Self::update(filter, update, false)
    }

    /// Changes every document that matches. Not retried: a server cannot tell what was done already.
    pub fn update_many(filter: impl IntoRaw, update: impl IntoValue) -> Self {
        Self::update(filter, update, true)
    }

    /// Replaces the first document that matches.
    pub fn replace_one(filter: impl IntoRaw, replacement: impl IntoRaw) -> Self {
        let mut model = Self::new(Kind::Update, false);
        model.statement.set_document(cstr!("q"), filter);
        match replacement.into_raw().and_then(checked_replacement) {
            Ok(replacement) => model.statement.set(cstr!("u"), replacement),
            Err(error) => model.statement.fail(error),
        }
        model
    }

    /// Deletes the first document that matches.
    pub fn delete_one(filter: impl IntoRaw) -> Self {
        Self::delete(filter, 1)
    }

    /// Deletes every document that matches.
    pub fn delete_many(filter: impl IntoRaw) -> Self {
        Self::delete(filter, 0)
    }

    fn update(filter: impl IntoRaw, update: impl IntoValue, multi: bool) -> Self {
        let mut model = Self::new(Kind::Update, multi);
        model.statement.set_document(cstr!("q"), filter);
        match update.into_value().and_then(checked_update) {
            Ok(update) => model.statement.set(cstr!("u"), update),
            Err(error) => model.statement.fail(error),
        }
        if multi {
            model.statement.set(cstr!("multi"), true);
        }
        model
    }

    fn delete(filter: impl IntoRaw, limit: i32) -> Self {
        let mut model = Self::new(Kind::Delete, limit == 0);
        model.statement.set_document(cstr!("q"), filter);
        model.statement.set(cstr!("limit"), limit);
        model
    }

    option!('static upsert);
    option!('static hint);
    option!('static collation);
    option!('static array_filters);
    option!('static sort);
}

impl HasStatement for WriteModel {
    fn statement(&mut self) -> &mut Arguments {
        &mut self.statement
    }
}

/// An update by operators, or a pipeline of them.
pub(crate) fn checked_update(update: RawBson) -> Result<RawBson, Error> {
    let fits = match &update {
        RawBson::Document(document) => starts_with_dollar(document) == Some(true),
        RawBson::Array(_) => true,
        _ => false,
    };
    if fits {
        return Ok(update);
    }
    Err(Error::bad_command(
        "an update is made of operators such as $set; use replace to replace documents",
    ))
}

/// A whole document, without operators.
pub(crate) fn checked_replacement(document: RawDocumentBuf) -> Result<RawDocumentBuf, Error> {
    if starts_with_dollar(&document) != Some(true) {
        return Ok(document);
    }
    Err(Error::bad_command("a replacement has no operators such as $set; use update for those"))
}

fn starts_with_dollar(document: &RawDocument) -> Option<bool> {
    let first = document.iter_elements().next()?.ok()?;
    Some(first.key().as_str().starts_with('$'))
}

/// Writes of one kind that go into one command, or several if they are many.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) kind: Kind,
    /// Whether one of them may change several documents, so that none is sent again.
    pub(crate) multi: bool,
    pub(crate) statements: Vec<RawDocumentBuf>,
    /// The place of each among all writes.
    places: Vec<usize>,
    /// The `_id` of each, if it is an insert.
    ids: Vec<RawBson>,
}

/// Puts writes into runs.
pub(crate) fn runs(models: Vec<WriteModel>, ordered: bool) -> Result<Vec<Run>, Error> {
    let mut runs: Vec<Run> = Vec::new();
    for (place, model) in models.into_iter().enumerate() {
        let WriteModel { kind, statement, document, multi } = model;
        let mut written = document.unwrap_or_default();
        statement.append_to(&mut written)?;
        let id = match kind {
            Kind::Insert => {
                let id;
                (id, written) = with_id(written, ObjectId::new).map_err(|error| {
                    Error::bad_command(format!("a document cannot be read: {error}"))
                })?;
                Some(id)
            }
            _ => None,
        };
        let fits = |run: &&mut Run| run.kind == kind;
        let run = if ordered { runs.last_mut().filter(fits) } else { runs.iter_mut().find(fits) };
        let run = match run {
            Some(run) => run,
            None => {
                let (statements, places, ids) = (Vec::new(), Vec::new(), Vec::new());
                runs.push(Run { kind, multi: false, statements, places, ids });
                let last = runs.len() - 1;
                &mut runs[last]
            }
        };
        run.multi |= multi;
        run.statements.push(written);
        run.places.push(place);
        run.ids.extend(id);
    }
    if !ordered {
        runs.sort_by_key(|run| Kind::ALL.iter().position(|kind| *kind == run.kind));
    }
    Ok(runs)
}

/// What the replies so far add up to.
#[derive(Debug)]
pub(crate) struct Tally {
    pub(crate) result: BulkWriteResult,
    write_errors: Vec<WriteError>,
    write_concern_errors: Vec<WriteConcernError>,
    labels: Vec<String>,
    server: Option<ServerAddress>,
}

impl Tally {
    pub(crate) fn new(acknowledged: bool) -> Self {
        Self {
            result: BulkWriteResult { acknowledged, ..BulkWriteResult::default() },
            write_errors: Vec::new(),
            write_concern_errors: Vec::new(),
            labels: Vec::new(),
            server: None,
        }
    }

    /// Adds a reply about the statements of a run from `start` on.
    pub(crate) fn add(&mut self, run: &Run, start: usize, reply: Reply, ordered: bool) {
        self.server = Some(reply.server);
        let place = |index: usize| run.places.get(start + index).copied().unwrap_or(usize::MAX);
        let body = &reply.body;
        let mut failed = Vec::new();
        // An entry that cannot be read must not pass for a success.
        let unreadable = |reason: &str| {
            let message = reason.to_owned();
            vec![WriteError { index: 0, code: None, message, details: None }]
        };
        for error in write_errors(body).unwrap_or_else(unreadable) {
            failed.push(error.index);
            self.write_errors.push(WriteError { index: place(error.index), ..error });
        }
        if let Ok(Some(error)) = command_error(body) {
            self.write_concern_errors.extend(error.write_concern_error);
            self.labels.extend(error.labels);
        }
        let result = &mut self.result;
        match run.kind {
            Kind::Insert => {
                result.inserted_count += number(body, "n");
                let stop = failed.first().copied().filter(|_| ordered).unwrap_or(reply.sent);
                for index in (0..stop).filter(|index| !failed.contains(index)) {
                    if let Some(id) = run.ids.get(start + index) {
                        result.inserted_ids.insert(place(index), id.clone());
                    }
                }
            }
            Kind::Update => {
                let mut upserted = 0;
                for document in documents(body, "upserted") {
                    upserted += 1;
                    let index = usize::try_from(number(document, "index")).unwrap_or(usize::MAX);
                    if let Ok(Some(id)) = document.get("_id") {
                        result.upserted_ids.insert(place(index), RawBson::from(id));
                    }
                }
                result.upserted_count += upserted;
                result.matched_count += number(body, "n").saturating_sub(upserted);
                result.modified_count += number(body, "nModified");
            }
            Kind::Delete => result.deleted_count += number(body, "n"),
        }
    }

    pub(crate) fn has_failed_writes(&self) -> bool {
        !self.write_errors.is_empty()
    }

    /// The result, or what failed and the result beside it.
    pub(crate) fn finish(self, deadline: Option<Deadline>) -> Result<BulkWriteResult, Error> {
        let failed = self.has_failed_writes() || !self.write_concern_errors.is_empty();
        let Some(address) = self.server.filter(|_| failed) else { return Ok(self.result) };
        let failure = WriteFailure {
            address,
            write_errors: self.write_errors,
            write_concern_errors: self.write_concern_errors,
            result: self.result,
        };
        let error = Error::new(ErrorKind::Write(Box::new(failure))).with_labels(&self.labels);
        Err(error.within(deadline.map(Deadline::limit)))
    }
}

fn documents<'a>(body: &'a RawDocument, field: &str) -> impl Iterator<Item = &'a RawDocument> {
    let array = body.get_array(field).ok();
    array.into_iter().flatten().filter_map(|item| match item {
        Ok(RawBsonRef::Document(document)) => Some(document),
        _ => None,
    })
}

/// A field that counts something; 0 if it is absent.
pub(crate) fn number(document: &RawDocument, field: &str) -> u64 {
    count(document, field).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{doc, rawdoc};

    fn models() -> Vec<WriteModel> {
        vec![
            WriteModel::insert_one(doc! { "_id": 1 }),
            WriteModel::update_one(doc! {}, doc! { "$set": { "a": 1 } }).upsert(true),
            WriteModel::update_many(doc! {}, doc! { "$set": { "a": 1 } }),
            WriteModel::insert_one(doc! { "_id": 2 }),
            WriteModel::delete_one(doc! { "_id": 1 }),
        ]
    }

    fn shape(runs: &[Run]) -> Vec<(Kind, Vec<usize>)> {
        runs.iter().map(|run| (run.kind, run.places.clone())).collect()
    }

    #[test]
    fn ordered_writes_keep_their_order_and_unordered_ones_are_grouped() {
        let ordered = runs(models(), true).unwrap();
        assert_eq!(
            shape(&ordered),
            [
                (Kind::Insert, vec![0]),
                (Kind::Update, vec![1, 2]),
                (Kind::Insert, vec![3]),
                (Kind::Delete, vec![4])
            ]
        );
        assert!(ordered[1].multi && !ordered[3].multi);
        let unordered = runs(models(), false).unwrap();
        assert_eq!(
            shape(&unordered),
            [(Kind::Insert, vec![0, 3]), (Kind::Update, vec![1, 2]), (Kind::Delete, vec![4])]
        );
    }

    #[test]
    fn failures_are_told_by_the_place_of_the_write() {
        let runs = runs(models(), false).unwrap();
        let mut tally = Tally::new(true);
        let body = rawdoc! {
            "ok": 1, "n": 1,
            "writeErrors": [{ "index": 1, "code": 11000, "errmsg": "duplicate" }],
        };
        let server = || "a:1".parse().unwrap();
        let reply = Reply { body, server: server(), max_wire_version: 21, sent: 2 };
        tally.add(&runs[0], 0, reply, false);
        let body =
            rawdoc! { "ok": 1, "n": 3, "nModified": 2, "upserted": [{ "index": 0, "_id": 7 }] };
        let reply = Reply { body, server: server(), max_wire_version: 21, sent: 2 };
        tally.add(&runs[1], 0, reply, false);
        let error = tally.finish(None).unwrap_err();
        assert_eq!(error.code(), Some(11000));
        let ErrorKind::Write(failure) = error.kind() else { panic!("{error}") };
        assert_eq!(failure.write_errors[0].index, 3);
        assert_eq!(failure.result.inserted_ids, BTreeMap::from([(0, RawBson::Int32(1))]));
        assert_eq!(failure.result.upserted_ids, BTreeMap::from([(1, RawBson::Int32(7))]));
        assert_eq!((failure.result.matched_count, failure.result.modified_count), (2, 2));
    }

    #[test]
    fn updates_and_replacements_are_not_confused() {
        let replacing = WriteModel::update_one(doc! {}, doc! { "a": 1 });
        assert!(runs(vec![replacing], true).is_err());
        let updating = WriteModel::replace_one(doc! {}, doc! { "$set": { "a": 1 } });
        assert!(runs(vec![updating], true).is_err());
        let pipeline = WriteModel::update_one(doc! {}, [doc! { "$set": { "a": 1 } }]);
        assert!(runs(vec![pipeline], true).is_ok());
    }
}
