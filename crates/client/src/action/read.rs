//! Reads: find, aggregate, distinct and the counts.
//!
//! Follows the CRUD specification in what is sent, and the retryable reads specification in what is
//! sent again.

use std::pin::Pin;

use bson::raw::{RawBson, RawBsonRef, RawDocumentBuf, cstr};
use bson::rawdoc;

use super::{Arguments, Draft, HasDraft, HasStatement, awaited, options, plain};
use crate::bulk::number;
use crate::cursor::{Cursor, malformed};
use crate::error::{Error, ErrorKind};
use crate::operation::{Operation, Purpose, Retry, Target};
use crate::value::{IntoRaw, array};
use quorate_protocol::ErrorCode;

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

/// `find`.
#[derive(Debug)]
#[must_use = "an action runs when it is awaited"]
pub struct Find<'a> {
    draft: Draft<'a>,
    limit: Option<i64>,
}

impl<'a> Find<'a> {
    pub(crate) fn new(mut draft: Draft<'a>, filter: impl IntoRaw) -> Self {
        draft.set_document(cstr!("filter"), filter);
        Self { draft, limit: None }
    }

    /// How many results to return; 0 is without limit. A negative number also asks for a single
    /// batch.
    pub fn limit(mut self, count: i64) -> Self {
        self.limit = Some(count);
        self
    }

    /// How long the cursor waits at the end.
    pub fn cursor_type(mut self, kind: CursorType) -> Self {
        self.draft.arguments.set(cstr!("tailable"), kind != CursorType::NonTailable);
        self.draft.arguments.set(cstr!("awaitData"), kind == CursorType::TailableAwait);
        self
    }

    /// The first index key to return.
    pub fn min(mut self, keys: impl IntoRaw) -> Self {
        self.draft.set_document(cstr!("min"), keys);
        self
    }

    /// The index key to stop before.
    pub fn max(mut self, keys: impl IntoRaw) -> Self {
        self.draft.set_document(cstr!("max"), keys);
        self
    }

    /// Whether to return what some shards have when others are down.
    pub fn allow_partial_results(mut self, allow: bool) -> Self {
        self.draft.arguments.set(cstr!("allowPartialResults"), allow);
        self
    }

    /// Whether the cursor stays open however long the client does not ask for more.
    pub fn no_cursor_timeout(mut self, stay: bool) -> Self {
        self.draft.arguments.set(cstr!("noCursorTimeout"), stay);
        self
    }

    /// Whether to return index keys only.
    pub fn return_key(mut self, only: bool) -> Self {
        self.draft.arguments.set(cstr!("returnKey"), only);
        self
    }

    /// Whether to add `$recordId`.
    pub fn show_record_id(mut self, show: bool) -> Self {
        self.draft.arguments.set(cstr!("showRecordId"), show);
        self
    }

    async fn run(mut self) -> Result<Cursor, Error> {
        let limit = self.limit.filter(|&limit| limit != 0);
        let single = limit.is_some_and(|limit| limit < 0);
        let limit = limit.map(|limit| i64::try_from(limit.unsigned_abs()).unwrap_or(i64::MAX));
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

options!(Find: projection, skip, allow_disk_use, max_await_time, session, read_preference, timeout, max_time, comment, let_vars, batch_size, sort,
    collation, hint);

/// The first result of a [`Find`].
#[derive(Debug)]
#[must_use = "an action runs when it is awaited"]
pub struct FindOne<'a> {
    find: Find<'a>,
}

impl<'a> FindOne<'a> {
    pub(crate) fn new(find: Find<'a>) -> Self {
        Self { find: find.limit(-1) }
    }

    async fn run(self) -> Result<Option<RawDocumentBuf>, Error> {
        self.find.run().await?.next().await
    }
}

impl<'a> HasDraft<'a> for FindOne<'a> {
    fn draft(&mut self) -> &mut Draft<'a> {
        &mut self.find.draft
    }
}

impl HasStatement for FindOne<'_> {
    fn statement(&mut self) -> &mut Arguments {
        &mut self.find.draft.arguments
    }
}

options!(FindOne: projection, skip, session, read_preference, timeout, max_time, comment, let_vars, sort, collation,
    hint);

/// `aggregate`. A pipeline that writes (`$out`, `$merge`) is sent once.
#[derive(Debug)]
#[must_use = "an action runs when it is awaited"]
pub struct Aggregate<'a> {
    draft: Draft<'a>,
    writes: bool,
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
        if let Some(size) = size {
            cursor.append(cstr!("batchSize"), i64::from(size));
        }
        self.draft.arguments.set(cstr!("cursor"), cursor);
        let preference = self.draft.read_preference();
        match self.writes {
            false => self.draft.open_read(Target::Read(preference)).await,
            true => self.draft.open_writing(Target::WritingPipeline(preference)).await,
        }
    }
}

options!(Aggregate: allow_disk_use, max_await_time, session, read_preference, write_concern, timeout, max_time, comment, let_vars,
    batch_size, bypass_document_validation, collation, hint);

/// `distinct`.
#[derive(Debug)]
#[must_use = "an action runs when it is awaited"]
pub struct Distinct<'a> {
    draft: Draft<'a>,
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

options!(Distinct: session, read_preference, timeout, max_time, comment, collation, hint);

/// How many documents match, counted one by one.
#[derive(Debug)]
#[must_use = "an action runs when it is awaited"]
pub struct CountDocuments<'a> {
    draft: Draft<'a>,
    filter: Result<RawDocumentBuf, Error>,
    skip: Option<i64>,
    limit: Option<i64>,
}

impl<'a> CountDocuments<'a> {
    pub(crate) fn new(draft: Draft<'a>, filter: impl IntoRaw) -> Self {
        Self { draft, filter: filter.into_raw(), skip: None, limit: None }
    }

    /// How many to leave out.
    pub fn skip(mut self, count: u64) -> Self {
        self.skip = Some(i64::try_from(count).unwrap_or(i64::MAX));
        self
    }

    /// Where to stop counting.
    pub fn limit(mut self, count: u64) -> Self {
        self.limit = Some(i64::try_from(count).unwrap_or(i64::MAX));
        self
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

options!(CountDocuments: session, read_preference, timeout, max_time, comment, collation, hint);

/// `count`: by the collection's metadata, or by the filter of the deprecated helper.
#[derive(Debug)]
#[must_use = "an action runs when it is awaited"]
pub struct Count<'a> {
    draft: Draft<'a>,
}

impl<'a> Count<'a> {
    pub(crate) fn new(draft: Draft<'a>) -> Self {
        Self { draft }
    }

    pub(crate) fn matching(mut draft: Draft<'a>, filter: impl IntoRaw) -> Self {
        draft.set_document(cstr!("query"), filter);
        Self { draft }
    }

    /// Where to stop counting.
    pub fn limit(mut self, count: u64) -> Self {
        self.draft.arguments.set(cstr!("limit"), i64::try_from(count).unwrap_or(i64::MAX));
        self
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

options!(Count: skip, session, read_preference, timeout, max_time, comment, collation, hint);

plain!(Find, Aggregate, Distinct, CountDocuments, Count);

awaited! {
    Find => Cursor,
    FindOne => Option<RawDocumentBuf>,
    Aggregate => Cursor,
    Distinct => Vec<RawBson>,
    CountDocuments => u64,
    Count => u64,
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
        self.open(&operation).await
    }

    async fn open_writing(&mut self, target: Target) -> Result<Cursor, Error> {
        let body = self.body_with_write_concern()?;
        if !self.write_concern().is_acknowledged() && self.session().is_some() {
            let reason = "an unacknowledged write cannot be part of a session".to_owned();
            return Err(Error::new(ErrorKind::BadCommand(reason)));
        }
        let operation = Operation { purpose: Purpose::Write, target, ..self.read_operation(body) };
        self.open(&operation).await
    }
}
