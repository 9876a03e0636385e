//! The results of a query, fetched batch by batch from the server that holds them.
//!
//! Follows the find, getMore and killCursors commands. A cursor stays with its server and its
//! session; one that is dropped early is killed in the background, so that the server need not wait
//! for its timeout.

use std::collections::VecDeque;

use bson::raw::{CString, RawBsonRef, RawDocument, RawDocumentBuf, cstr};
use bson::rawdoc;
use quorate_protocol::ServerAddress;

use crate::client::Client;
use crate::error::{Error, ErrorKind};
use crate::operation::{Operation, Reply, Retry, Target};
use crate::session::Session;

/// The results of a query.
#[derive(Debug)]
pub struct Cursor {
    client: Client,
    server: ServerAddress,
    database: String,
    collection: String,
    /// 0 when the server has no more.
    id: i64,
    batch: VecDeque<RawDocumentBuf>,
    batch_size: Option<u32>,
    session: Session,
}

impl Cursor {
    /// Reads the reply that opened the cursor.
    pub(crate) fn open(
        client: Client,
        session: Session,
        reply: &Reply,
        batch_size: Option<u32>,
    ) -> Result<Self, Error> {
        let malformed = |reason: &str| malformed(&reply.server, reason);
        let cursor =
            reply.body.get_document("cursor").map_err(|_| malformed("there is no cursor"))?;
        let namespace = cursor.get_str("ns").map_err(|_| malformed("the cursor has no ns"))?;
        let (database, collection) =
            namespace.split_once('.').ok_or_else(|| malformed("the cursor's ns has no dot"))?;
        let (id, batch) = read_batch(cursor, "firstBatch").map_err(malformed)?;
        Ok(Self {
            database: database.to_owned(),
            collection: collection.to_owned(),
            client,
            server: reply.server.clone(),
            id,
            batch,
            batch_size,
            session,
        })
    }

    /// The next result; `None` after the last one.
    ///
    /// # Errors
    ///
    /// If fetching the next batch fails. The cursor is at its end then.
    pub async fn next(&mut self) -> Result<Option<RawDocumentBuf>, Error> {
        // A server may answer with empty batches, as tailable cursors do; each is one round trip.
        while self.batch.is_empty() && self.id != 0 {
            self.get_more().await?;
        }
        Ok(self.batch.pop_front())
    }

    /// All results that are left.
    ///
    /// # Errors
    ///
    /// As [`next`](Self::next).
    pub async fn collect(mut self) -> Result<Vec<RawDocumentBuf>, Error> {
        let mut all = Vec::new();
        while let Some(document) = self.next().await? {
            all.push(document);
        }
        Ok(all)
    }

    /// The server that holds the results.
    pub fn server(&self) -> &ServerAddress {
        &self.server
    }

    async fn get_more(&mut self) -> Result<(), Error> {
        // If this fails the cursor is gone, or its server is.
        let id = std::mem::take(&mut self.id);
        let mut body = rawdoc! { "getMore": id, "collection": self.collection.as_str() };
        if let Some(size) = self.batch_size {
            body.append(cstr!("batchSize"), i64::from(size));
        }
        let operation = Operation {
            database: &self.database,
            body,
            sequence: None,
            target: Target::Server(self.server.clone()),
            retry: Retry::Never,
            read_concern: None,
            acknowledged: true,
        };
        let reply = self.client.inner().execute(&operation, Some(&mut self.session)).await?;
        let malformed = |reason: &str| malformed(&reply.server, reason);
        let cursor =
            reply.body.get_document("cursor").map_err(|_| malformed("there is no cursor"))?;
        (self.id, self.batch) = read_batch(cursor, "nextBatch").map_err(malformed)?;
        Ok(())
    }
}

impl Drop for Cursor {
    fn drop(&mut self) {
        let id = std::mem::take(&mut self.id);
        if id == 0 {
            return;
        }
        let client = self.client.clone();
        let (server, database) = (self.server.clone(), self.database.clone());
        let body = rawdoc! { "killCursors": self.collection.as_str(), "cursors": [id] };
        self.client.inner().discovery.spawn(async move {
            let operation = Operation {
                database: &database,
                body,
                sequence: None,
                target: Target::Server(server),
                retry: Retry::Never,
                read_concern: None,
                acknowledged: true,
            };
            // Best effort: the server forgets idle cursors by itself.
            let _ = client.inner().execute(&operation, None).await;
        });
    }
}

fn read_batch(
    cursor: &RawDocument,
    field: &'static str,
) -> Result<(i64, VecDeque<RawDocumentBuf>), &'static str> {
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
    Ok((id, batch))
}

fn malformed(server: &ServerAddress, reason: &str) -> Error {
    Error::new(ErrorKind::Reply { address: server.clone(), reason: reason.to_owned() })
}

/// A text as a key, for whoever builds commands from names given by the application.
pub(crate) fn key(text: &str) -> Result<CString, Error> {
    CString::try_from(text.to_owned())
        .map_err(|_| Error::new(ErrorKind::BadCommand(format!("{text:?} holds a zero byte"))))
}
