//! Reads: find, aggregate, distinct and the counts.
//!
//! Follows the CRUD specification in what is sent, and the retryable reads specification in what is
//! sent again.

use bson::raw::{RawBson, RawBsonRef, RawDocumentBuf, cstr};
use bson::rawdoc;

use super::{Draft, HasDraft, HasStatement, action, long, setters};
use crate::bulk::number;
use crate::cursor::{Cursor, malformed};
use crate::error::Error;
use crate::operation::{Operation, Purpose, Retry, Target};
use crate::value::{IntoRaw, array};
use quorate_protocol::ErrorCode;
use quorate_wire::AppendSome;

/// How long a cursor waits at the end of its results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum CursorType {
    /// The cursor ends with the last document.
    #[default]
    NonTailable,
    /// The cursor of a capped collection stays open for documents that are inserted later.
    Tailable,
    /// The same, and the server waits a while for more.
    TailableAwait,
}

action! {
    /// `find`.
    Find<'a> { draft: Draft<'a>, limit: Option<i64> } => Cursor,
    draft: draft, options: projection, skip, allow_disk_use, max_await_time, session,
        read_preference, timeout, max_time, comment, let_vars, batch_size, sort, collation, hint
}

impl<'a> Find<'a> {
    pub(crate) fn new(mut draft: Draft<'a>, filter: impl IntoRaw) -> Self {
        draft.set_document(cstr!("filter"), filter);
        Self { draft, limit: None }
    }

    setters! {
        /// How many results to return; 0 is without limit. A negative number also asks for a single
        /// batch.
        limit(count: i64) |action| action.limit = Some(count);

        /// How long the cursor waits at the end.
        cursor_type(kind: CursorType) |action| {
            action.draft.cursor.tails = kind != CursorType::NonTailable;
            action.draft.arguments.set(cstr!("tailable"), kind != CursorType::NonTailable);
            action.draft.arguments.set(cstr!("awaitData"), kind == CursorType::TailableAwait);
        };

        /// The first index key to return.
        min(keys: impl IntoRaw) |action| action.draft.set_document(cstr!("min"), keys);

        /// The index key to stop before.
        max(keys: impl IntoRaw) |action| action.draft.set_document(cstr!("max"), keys);

        /// Whether to return what some shards have when others are down.
        allow_partial_results(allow: bool)
            |action| action.draft.arguments.set(cstr!("allowPartialResults"), allow);

        /// Whether the cursor stays open however long the client does not ask for more.
        no_cursor_timeout(stay: bool)
            |action| action.draft.arguments.set(cstr!("noCursorTimeout"), stay);

        /// Whether to return index keys only.
        return_key(only: bool) |action| action.draft.arguments.set(cstr!("returnKey"), only);

        /// Whether to add `$recordId`.
        show_record_id(show: bool) |action| action.draft.arguments.set(cstr!("showRecordId"), show);
    }

    async fn run(mut self) -> Result<Cursor, Error> {
        let limit = self.limit.filter(|&limit| limit != 0);
        let single = limit.is_some_and(|limit| limit < 0);
        let limit = limit.map(|limit| long(limit.unsigned_abs()));
        if let Some(limit) = limit {
            self.draft.arguments.set(cstr!("limit"), limit);
        }
        if single {
            self.draft.arguments.set(cstr!("singleBatch"), true);
        }
        if let Some(size) = self.draft.cursor.batch_size {
            // A batch of exactly the limit would leave a cursor behind with nothing in it.
            let size = i64::from(size);
            let size = if limit == Some(size) { size.saturating_add(1) } else { size };
            self.draft.arguments.set(cstr!("batchSize"), size);
        }
        self.draft.open_read(Target::Read(self.draft.read_preference())).await
    }
}

action! {
    /// The first result of a [`Find`].
    FindOne<'a> { find: Find<'a> } => Option<RawDocumentBuf>,
    draft: find.draft, options: projection, skip, session, read_preference, timeout, max_time,
        comment, let_vars, sort, collation, hint
}

impl<'a> FindOne<'a> {
    pub(crate) fn new(find: Find<'a>) -> Self {
        Self { find: find.limit(-1) }
    }

    async fn run(self) -> Result<Option<RawDocumentBuf>, Error> {
        self.find.run().await?.next().await
    }
}

action! {
    /// `aggregate`. A pipeline that writes (`$out`, `$merge`) is sent once.
    Aggregate<'a> { draft: Draft<'a>, writes: bool } => Cursor,
    draft: draft, options: allow_disk_use, max_await_time, session, read_preference,
        write_concern, timeout, max_time, comment, let_vars, batch_size, bypass_document_validation,
        collation, hint
}

impl<'a> Aggregate<'a> {
    pub(crate) fn new(
        mut draft: Draft<'a>,
        pipeline: impl IntoIterator<Item = impl IntoRaw>,
    ) -> Self {
        let mut writes = false;
        match array(pipeline) {
            Ok(stages) => {
                if let Some(Ok(RawBsonRef::Document(last))) = stages.into_iter().last() {
                    let name = last.iter_elements().next().and_then(Result::ok);
                    writes =
                        name.is_some_and(|name| matches!(name.key().as_str(), "$out" | "$merge"));
                }
                draft.arguments.set(cstr!("pipeline"), stages);
            }
            Err(error) => draft.arguments.fail(error),
        }
        Self { draft, writes }
    }

    async fn run(mut self) -> Result<Cursor, Error> {
        let mut cursor = RawDocumentBuf::new();
        // A pipeline that writes has no results; a batch size of 0 would stop it short.
        let size = self.draft.cursor.batch_size.filter(|&size| !(self.writes && size == 0));
        cursor.append_some(cstr!("batchSize"), size.map(i64::from));
        self.draft.arguments.set(cstr!("cursor"), cursor);
        let preference = self.draft.read_preference();
        match self.writes {
            false => self.draft.open_read(Target::Read(preference)).await,
            true => self.draft.open_writing(Target::WritingPipeline(preference)).await,
        }
    }
}

action! {
    /// `distinct`.
    Distinct<'a> { draft: Draft<'a> } => Vec<RawBson>,
    draft: draft, options: session, read_preference, timeout, max_time, comment, collation, hint
}

impl<'a> Distinct<'a> {
    pub(crate) fn new(mut draft: Draft<'a>, field: &str, filter: impl IntoRaw) -> Self {
        draft.arguments.set(cstr!("key"), field);
        draft.set_document(cstr!("query"), filter);
        Self { draft }
    }

    async fn run(mut self) -> Result<Vec<RawBson>, Error> {
        let reply = self.draft.read().await?;
        let unreadable = |_| malformed(&reply.server, "there are no values");
        let values = reply.body.get_array("values").map_err(unreadable)?;
        values.into_iter().map(|value| value.map(RawBson::from).map_err(unreadable)).collect()
    }
}

action! {
    /// How many documents match, counted one by one.
    CountDocuments<'a> {
        draft: Draft<'a>,
        filter: Result<RawDocumentBuf, Error>,
        skip: Option<i64>,
        limit: Option<i64>,
    } => u64,
    draft: draft, options: session, read_preference, timeout, max_time, comment, collation, hint
}

impl<'a> CountDocuments<'a> {
    pub(crate) fn new(draft: Draft<'a>, filter: impl IntoRaw) -> Self {
        Self { draft, filter: filter.into_raw(), skip: None, limit: None }
    }

    setters! {
        /// How many to leave out.
        skip(count: u64) |action| action.skip = Some(long(count));

        /// Where to stop counting.
        limit(count: u64) |action| action.limit = Some(long(count));
    }

    async fn run(mut self) -> Result<u64, Error> {
        let mut pipeline = vec![rawdoc! { "$match": self.filter? }];
        pipeline.extend(self.skip.map(|skip| rawdoc! { "$skip": skip }));
        pipeline.extend(self.limit.map(|limit| rawdoc! { "$limit": limit }));
        pipeline.push(rawdoc! { "$group": { "_id": 1, "n": { "$sum": 1 } } });
        self.draft.arguments.set_array(cstr!("pipeline"), pipeline);
        self.draft.arguments.set(cstr!("cursor"), RawDocumentBuf::new());
        let target = Target::Read(self.draft.read_preference());
        let counted = self.draft.open_read(target).await?.next().await?;
        Ok(counted.map_or(0, |counted| number(&counted, "n")))
    }
}

action! {
    /// `count`: by the collection's metadata, or by the filter of the deprecated helper.
    Count<'a> { draft: Draft<'a> } => u64,
    draft: draft, options: skip, session, read_preference, timeout, max_time, comment, collation,
        hint
}

impl<'a> Count<'a> {
    pub(crate) fn new(draft: Draft<'a>) -> Self {
        Self { draft }
    }

    pub(crate) fn matching(mut draft: Draft<'a>, filter: impl IntoRaw) -> Self {
        draft.set_document(cstr!("query"), filter);
        Self { draft }
    }

    setters! {
        /// Where to stop counting.
        limit(count: u64) |action| action.draft.arguments.set(cstr!("limit"), long(count));
    }

    async fn run(mut self) -> Result<u64, Error> {
        match self.draft.read().await {
            Ok(reply) => Ok(number(&reply.body, "n")),
            // A view of a collection that does not exist holds nothing.
            Err(error) if error.code() == Some(ErrorCode::NAMESPACE_NOT_FOUND.0) => Ok(0),
            Err(error) => Err(error),
        }
    }
}

impl Draft<'_> {
    async fn open_read(&mut self, target: Target) -> Result<Cursor, Error> {
        let body = self.body()?;
        let operation = Operation {
            purpose: Purpose::Read,
            target,
            retry: Retry::Read,
            ..self.read_operation(body)
        };
        self.open(operation).await
    }

    async fn open_writing(&mut self, target: Target) -> Result<Cursor, Error> {
        let body = self.body_with_write_concern()?;
        if !self.write_concern().is_acknowledged() && self.session().is_some() {
            return Err(Error::bad_command("an unacknowledged write cannot be part of a session"));
        }
        let operation = Operation { purpose: Purpose::Write, target, ..self.read_operation(body) };
        self.open(operation).await
    }
}
