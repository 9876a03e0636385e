//! What a client knows of a cursor: its name on the server, and the results at hand.
//!
//! Follows the replies of the find, aggregate, getMore and killCursors commands.

use std::collections::VecDeque;

use bson::raw::{RawBsonRef, RawDocument, RawDocumentBuf};
use bson::rawdoc;

/// A cursor as its client knows it. The default has no results, and its server knows nothing of it.
#[derive(Debug, Default)]
pub struct CursorState {
    database: String,
    collection: String,
    /// 0 when the server has no more.
    id: i64,
    batch: VecDeque<RawDocumentBuf>,
    post_batch_token: Option<RawDocumentBuf>,
}

impl CursorState {
    /// Reads the reply that opened the cursor.
    ///
    /// # Errors
    ///
    /// What the reply lacks.
    pub fn open(reply: &RawDocument) -> Result<Self, &'static str> {
        let cursor = reply.get_document("cursor").map_err(|_| "there is no cursor")?;
        let namespace = cursor.get_str("ns").map_err(|_| "the cursor has no ns")?;
        let (database, collection) =
            namespace.split_once('.').ok_or("the cursor's ns has no dot")?;
        let mut opened = Self {
            database: database.to_owned(),
            collection: collection.to_owned(),
            ..Self::default()
        };
        opened.read(cursor, "firstBatch")?;
        Ok(opened)
    }

    /// Reads the reply to a `getMore`.
    ///
    /// # Errors
    ///
    /// What the reply lacks.
    pub fn refill(&mut self, reply: &RawDocument) -> Result<(), &'static str> {
        let cursor = reply.get_document("cursor").map_err(|_| "there is no cursor")?;
        self.read(cursor, "nextBatch")
    }

    fn read(&mut self, cursor: &RawDocument, field: &'static str) -> Result<(), &'static str> {
        let id = match cursor.get("id") {
            Ok(Some(RawBsonRef::Int64(id))) => id,
            Ok(Some(RawBsonRef::Int32(id))) => id.into(),
            _ => return Err("the cursor has no id"),
        };
        let array = cursor.get_array(field).map_err(|_| "the cursor has no batch")?;
        let mut batch = VecDeque::new();
        for element in array {
            match element {
                Ok(RawBsonRef::Document(document)) => batch.push_back(document.to_owned()),
                _ => return Err("the batch holds something that is no document"),
            }
        }
        let token = cursor.get_document("postBatchResumeToken").ok();
        self.post_batch_token = token.map(RawDocument::to_owned);
        (self.id, self.batch) = (id, batch);
        Ok(())
    }

    /// The database that its commands go to.
    pub fn database(&self) -> &str {
        &self.database
    }

    /// The collection that its commands name.
    pub fn collection(&self) -> &str {
        &self.collection
    }

    /// What the server knows it by; `None` once the server has no more.
    pub fn id(&self) -> Option<i64> {
        (self.id != 0).then_some(self.id)
    }

    /// What the server knew it by, which this side forgets.
    pub fn forget_id(&mut self) -> Option<i64> {
        let id = std::mem::take(&mut self.id);
        (id != 0).then_some(id)
    }

    /// Drops the results at hand.
    pub fn clear(&mut self) {
        self.batch.clear();
    }

    /// The next result at hand.
    pub fn pop(&mut self) -> Option<RawDocumentBuf> {
        self.batch.pop_front()
    }

    /// Whether no result is at hand.
    pub fn is_drained(&self) -> bool {
        self.batch.is_empty()
    }

    /// `postBatchResumeToken` of the latest reply, in a change stream.
    pub fn post_batch_token(&self) -> Option<&RawDocument> {
        self.post_batch_token.as_deref()
    }

    /// The command that fetches the next batch.
    pub fn get_more(&self, id: i64) -> RawDocumentBuf {
        rawdoc! { "getMore": id, "collection": self.collection.as_str() }
    }

    /// The command that lets the server forget the cursor.
    pub fn kill(&self, id: i64) -> RawDocumentBuf {
        rawdoc! { "killCursors": self.collection.as_str(), "cursors": [id] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_goes_on_until_its_server_has_no_more() {
        let first =
            rawdoc! { "cursor": { "id": 7_i64, "ns": "a.b.c", "firstBatch": [{ "x": 1 }] } };
        let mut cursor = CursorState::open(&first).unwrap();
        assert_eq!((cursor.database(), cursor.collection(), cursor.id()), ("a", "b.c", Some(7)));
        assert_eq!(cursor.pop(), Some(rawdoc! { "x": 1 }));
        assert!(cursor.is_drained());
        let token = rawdoc! { "_data": "8" };
        let last = rawdoc! { "cursor": { "id": 0, "nextBatch": [], "postBatchResumeToken": token.clone() } };
        cursor.refill(&last).unwrap();
        assert_eq!((cursor.id(), cursor.post_batch_token()), (None, Some(&*token)));
        assert_eq!(cursor.forget_id(), None);
    }

    #[test]
    fn replies_without_a_usable_cursor_are_refused() {
        for bad in [
            rawdoc! { "ok": 1 },
            rawdoc! { "cursor": { "ns": "a.b", "firstBatch": [] } },
            rawdoc! { "cursor": { "id": "7", "ns": "a.b", "firstBatch": [] } },
            rawdoc! { "cursor": { "id": 7_i64, "firstBatch": [] } },
            rawdoc! { "cursor": { "id": 7_i64, "ns": "ab", "firstBatch": [] } },
            rawdoc! { "cursor": { "id": 7_i64, "ns": "a.b", "nextBatch": [] } },
            rawdoc! { "cursor": { "id": 7_i64, "ns": "a.b", "firstBatch": [3] } },
        ] {
            assert!(CursorState::open(&bad).is_err(), "{bad:?}");
        }
    }
}
