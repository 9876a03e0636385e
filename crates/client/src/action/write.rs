//! Writes: insert, update, replace, delete, bulks, and find-and-modify.
//!
//! Follows the CRUD specification in what is sent and returned, and the retryable writes
//! specification in what is sent again. Every write but find-and-modify is a bulk of its own.

use bson::raw::{RawBson, RawBsonRef, RawDocumentBuf, cstr};
use quorate_wire::AppendSome;

use super::{Draft, HasDraft, HasStatement, action, setters};
use crate::bulk::{
    BulkWriteResult, Run, Tally, WriteModel, checked_replacement, checked_update, runs,
};
use crate::cursor::malformed;
use crate::error::{Error, ErrorKind};
use crate::operation::{Operation, Purpose, Reply, Retry, Target};
use crate::value::{IntoRaw, IntoValue};

/// What an update did.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct UpdateResult {
    /// Whether the server was asked for a reply. If not, the counts say nothing.
    pub acknowledged: bool,
    /// How many documents matched.
    pub matched_count: u64,
    /// How many documents changed.
    pub modified_count: u64,
    /// The `_id` of the document that was inserted because none matched.
    pub upserted_id: Option<RawBson>,
}

/// Many writes. The command of the draft is chosen when they are sent.
#[derive(Debug)]
struct Writes<'a> {
    draft: Draft<'a>,
    collection: &'a str,
    models: Vec<WriteModel>,
    ordered: bool,
}

impl<'a> Writes<'a> {
    fn new(draft: Draft<'a>, collection: &'a str, models: Vec<WriteModel>) -> Self {
        Self { draft, collection, models, ordered: true }
    }

    async fn run(mut self) -> Result<BulkWriteResult, Error> {
        if self.models.is_empty() {
            return Err(Error::bad_command("there is nothing to write"));
        }
        self.draft.check()?;
        let concern = self.draft.write_concern();
        let runs = runs(std::mem::take(&mut self.models), self.ordered)?;
        let client = self.draft.client.inner();
        let acknowledged = concern.is_acknowledged();
        let deadline = self.draft.deadline();
        let id = client.next_operation_id();
        let arguments = std::mem::take(&mut self.draft.arguments);
        let mut tally = Tally::new(acknowledged);
        for run in &runs {
            let mut body = RawDocumentBuf::new();
            body.append(run.kind.command(), self.collection);
            body.append(cstr!("ordered"), self.ordered);
            arguments.clone().append_to(&mut body)?;
            body.append_some(cstr!("writeConcern"), concern.document());
            let mut start = 0;
            while start < run.statements.len() {
                let operation = Operation {
                    purpose: Purpose::Write,
                    target: Target::Write,
                    retry: retry_of(run),
                    sequence: Some((run.kind.sequence(), &run.statements[start..])),
                    read_concern: Some(""),
                    acknowledged,
                    deadline,
                    id: Some(id),
                    ..Operation::new(self.draft.database(), &*body)
                };
                let reply = client.execute(&operation, self.draft.session()).await;
                let reply = match reply.or_else(written_all_the_same) {
                    Ok(reply) => reply,
                    Err(error) => return Err(error.with_partial_result(tally.result)),
                };
                let sent = reply.sent;
                tally.add(run, start, reply, self.ordered);
                if self.ordered && tally.has_failed_writes() {
                    return tally.finish(deadline);
                }
                start += sent;
            }
        }
        tally.finish(deadline)
    }
}

fn retry_of(run: &Run) -> Retry {
    if run.multi { Retry::Never } else { Retry::Write }
}

/// A write concern that was not met is an error beside writes that are done.
fn written_all_the_same(error: Error) -> Result<Reply, Error> {
    let said = match error.kind() {
        ErrorKind::ServerTimeout { cause, .. } => cause.kind(),
        said => said,
    };
    match said {
        ErrorKind::Command { address, error: told, reply, sent } if told.ok => {
            let (body, server) = (reply.clone(), address.clone());
            // Only change streams look at the version.
            Ok(Reply { body, server, max_wire_version: 0, sent: *sent })
        }
        _ => Err(error),
    }
}

action! {
    /// Inserts one document.
    InsertOne<'a> { writes: Writes<'a> } => RawBson,
    draft: writes.draft, options: session, write_concern, timeout, comment,
        bypass_document_validation
}

impl<'a> InsertOne<'a> {
    pub(crate) fn new(draft: Draft<'a>, collection: &'a str, document: impl IntoRaw) -> Self {
        Self { writes: Writes::new(draft, collection, vec![WriteModel::insert_one(document)]) }
    }

    async fn run(self) -> Result<RawBson, Error> {
        let mut result = self.writes.run().await?;
        Ok(result.inserted_ids.remove(&0).unwrap_or(RawBson::Null))
    }
}

action! {
    /// Inserts documents.
    InsertMany<'a> { writes: Writes<'a> } => Vec<RawBson>,
    draft: writes.draft, options: ordered, session, write_concern, timeout, comment,
        bypass_document_validation
}

impl<'a> InsertMany<'a> {
    pub(crate) fn new(
        draft: Draft<'a>,
        collection: &'a str,
        documents: impl IntoIterator<Item = impl IntoRaw>,
    ) -> Self {
        let models = documents.into_iter().map(WriteModel::insert_one).collect();
        Self { writes: Writes::new(draft, collection, models) }
    }

    async fn run(self) -> Result<Vec<RawBson>, Error> {
        self.writes.run().await.map(|result| result.inserted_ids.into_values().collect())
    }
}

action! {
    /// Updates or replaces documents.
    Update<'a> { writes: Writes<'a>, model: WriteModel } => UpdateResult,
    draft: writes.draft, statement: model.statement, options: session, write_concern, timeout,
        comment, let_vars, bypass_document_validation, upsert, hint, collation, array_filters, sort
}

impl<'a> Update<'a> {
    pub(crate) fn new(draft: Draft<'a>, collection: &'a str, model: WriteModel) -> Self {
        Self { writes: Writes::new(draft, collection, Vec::new()), model }
    }

    async fn run(mut self) -> Result<UpdateResult, Error> {
        self.writes.models.push(self.model);
        let mut result = self.writes.run().await?;
        Ok(UpdateResult {
            acknowledged: result.acknowledged,
            matched_count: result.matched_count,
            modified_count: result.modified_count,
            upserted_id: result.upserted_ids.remove(&0),
        })
    }
}

action! {
    /// Deletes documents.
    Delete<'a> { writes: Writes<'a>, model: WriteModel } => u64,
    draft: writes.draft, statement: model.statement, options: session, write_concern, timeout,
        comment, let_vars, hint, collation
}

impl<'a> Delete<'a> {
    pub(crate) fn new(draft: Draft<'a>, collection: &'a str, model: WriteModel) -> Self {
        Self { writes: Writes::new(draft, collection, Vec::new()), model }
    }

    async fn run(mut self) -> Result<u64, Error> {
        self.writes.models.push(self.model);
        self.writes.run().await.map(|result| result.deleted_count)
    }
}

action! {
    /// Many writes of any kind.
    BulkWrite<'a> { writes: Writes<'a> } => BulkWriteResult,
    draft: writes.draft, options: ordered, session, write_concern, timeout, comment, let_vars,
        bypass_document_validation
}

impl<'a> BulkWrite<'a> {
    pub(crate) fn new(
        draft: Draft<'a>,
        collection: &'a str,
        models: impl IntoIterator<Item = WriteModel>,
    ) -> Self {
        Self { writes: Writes::new(draft, collection, models.into_iter().collect()) }
    }

    async fn run(self) -> Result<BulkWriteResult, Error> {
        self.writes.run().await
    }
}

/// Which document a find-and-modify returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ReturnDocument {
    /// As it was before.
    #[default]
    Before,
    /// As it is afterwards.
    After,
}

action! {
    /// `findAndModify`: changes, replaces or deletes a document and returns it.
    FindAndModify<'a> { draft: Draft<'a> } => Option<RawDocumentBuf>,
    draft: draft, options: session, write_concern, timeout, max_time, comment, let_vars,
        bypass_document_validation, sort, hint, collation, upsert, array_filters
}

impl<'a> FindAndModify<'a> {
    pub(crate) fn deleting(mut draft: Draft<'a>, filter: impl IntoRaw) -> Self {
        draft.set_document(cstr!("query"), filter);
        draft.arguments.set(cstr!("remove"), true);
        Self { draft }
    }

    pub(crate) fn updating(
        mut draft: Draft<'a>,
        filter: impl IntoRaw,
        update: impl IntoValue,
    ) -> Self {
        draft.set_document(cstr!("query"), filter);
        match update.into_value().and_then(checked_update) {
            Ok(update) => draft.arguments.set(cstr!("update"), update),
            Err(error) => draft.arguments.fail(error),
        }
        Self { draft }
    }

    pub(crate) fn replacing(
        mut draft: Draft<'a>,
        filter: impl IntoRaw,
        replacement: impl IntoRaw,
    ) -> Self {
        draft.set_document(cstr!("query"), filter);
        match replacement.into_raw().and_then(checked_replacement) {
            Ok(replacement) => draft.arguments.set(cstr!("update"), replacement),
            Err(error) => draft.arguments.fail(error),
        }
        Self { draft }
    }

    setters! {
        /// The fields to return.
        projection(projection: impl IntoRaw)
            |action| action.draft.set_document(cstr!("fields"), projection);

        /// Whether to return the document as it was or as it is.
        return_document(which: ReturnDocument)
            |action| action.draft.arguments.set(cstr!("new"), which == ReturnDocument::After);
    }

    async fn run(mut self) -> Result<Option<RawDocumentBuf>, Error> {
        let acknowledged = self.draft.write_concern().is_acknowledged();
        let operation = Operation {
            purpose: Purpose::Write,
            target: Target::Write,
            retry: Retry::Write,
            read_concern: Some(""),
            acknowledged,
            deadline: self.draft.deadline(),
            ..Operation::new(self.draft.database(), self.draft.body_with_write_concern()?)
        };
        let client = self.draft.client.inner();
        let reply = client.execute(&operation, self.draft.session()).await?;
        match reply.body.get("value") {
            Ok(Some(RawBsonRef::Document(document))) => Ok(Some(document.to_owned())),
            Ok(Some(RawBsonRef::Null)) => Ok(None),
            Ok(None) if !acknowledged => Ok(None),
            _ => Err(malformed(&reply.server, "there is no value")),
        }
    }
}
