//! A collection that is read to its end, through failovers where its order allows it.

use bson::doc;
use bson::raw::{RawBson, RawDocumentBuf, cstr};
use quorate_client::{Collection, Cursor, Error, ErrorKind};
use quorate_protocol::ErrorCode;

/// How often in a row a collection is asked for again without a single new document.
const MAX_ATTEMPTS: u32 = 5;

/// `CursorNotFound` and `QueryPlanKilled`: the cursor ended with its server's leadership.
const CURSOR_GONE: [i32; 2] = [ErrorCode::CURSOR_NOT_FOUND.0, ErrorCode::QUERY_PLAN_KILLED.0];

/// In which order documents come.
#[derive(Clone, Debug)]
pub(crate) enum Order {
    /// By `_id`: reading can go on after any document.
    Id,
    /// As they are stored.
    Stored,
    /// As the server likes, as of a view.
    Any,
    /// As this document says.
    Sorted(RawDocumentBuf),
}

/// The documents of a collection.
pub(crate) struct Reading {
    collection: Collection,
    order: Order,
    filter: RawDocumentBuf,
    limit: Option<u64>,
    cursor: Option<Cursor>,
    /// The `_id` of the last one, where they come in that order.
    last: Option<RawBson>,
    read: u64,
}

impl Reading {
    /// All documents.
    pub(crate) fn new(collection: Collection, order: Order) -> Self {
        let filter = RawDocumentBuf::new();
        Self { collection, order, filter, limit: None, cursor: None, last: None, read: 0 }
    }

    /// Only those that match, and at most so many.
    pub(crate) fn only(mut self, filter: RawDocumentBuf, limit: Option<u64>) -> Self {
        self.filter = filter;
        self.limit = limit;
        self
    }

    /// The next one; `None` after the last. Fails if the server refuses, or reading cannot go on
    /// after a failure.
    pub(crate) async fn next(&mut self) -> Result<Option<RawDocumentBuf>, Error> {
        if self.limit.is_some_and(|limit| self.read >= limit) {
            return Ok(None);
        }
        let mut attempts = 0;
        loop {
            match self.try_next().await {
                Err(error) if attempts < MAX_ATTEMPTS && self.can_go_on(&error) => {
                    self.cursor = None;
                    attempts += 1;
                }
                outcome => {
                    self.read += 1;
                    return outcome;
                }
            }
        }
    }

    async fn try_next(&mut self) -> Result<Option<RawDocumentBuf>, Error> {
        loop {
            let cursor = match &mut self.cursor {
                Some(cursor) => cursor,
                None => {
                    let opened = self.open().await?;
                    self.cursor.insert(opened)
                }
            };
            let Some(document) = cursor.next().await? else { return Ok(None) };
            if matches!(self.order, Order::Id) {
                let id = document.get("_id").ok().flatten().map(RawBson::from);
                // A new cursor begins with the last one, which was read already.
                if self.last.is_some() && self.last == id {
                    continue;
                }
                self.last = id;
            }
            return Ok(Some(document));
        }
    }

    async fn open(&self) -> Result<Cursor, Error> {
        let find = self.collection.find(self.filter.clone()).no_cursor_timeout(true);
        match (&self.order, &self.last) {
            (Order::Id, None) => find.hint(doc! { "_id": 1 }).await,
            (Order::Id, Some(last)) => {
                let mut min = RawDocumentBuf::new();
                min.append(cstr!("_id"), last.clone());
                find.hint(doc! { "_id": 1 }).min(min).await
            }
            (Order::Stored, _) => find.sort(doc! { "$natural": 1 }).await,
            (Order::Any, _) => find.await,
            (Order::Sorted(order), _) => find.sort(order.clone()).await,
        }
    }

    /// Whether another cursor can go on after this error.
    fn can_go_on(&self, error: &Error) -> bool {
        let is_gone = error.code().is_some_and(|code| CURSOR_GONE.contains(&code))
            || matches!(error.kind(), ErrorKind::ServerGone(_));
        let is_worth_it = error.is_network() || error.is_retryable_read() || is_gone;
        is_worth_it && (matches!(self.order, Order::Id) || self.read == 0)
    }
}
