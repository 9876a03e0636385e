//! The results of a query, fetched batch by batch from the server that holds them.
//!
//! Follows the find, getMore and killCursors commands. A cursor stays with its server and its
//! session; one that is dropped early is killed in the background, so that the server need not wait
//! for its timeout.

use std::collections::VecDeque;
use std::time::Duration;

use bson::raw::{CString, RawBson, RawBsonRef, RawDocument, RawDocumentBuf, cstr};
use bson::rawdoc;
use quorate_client_session::SYSTEM_OVERLOADED_ERROR;
use quorate_protocol::ServerAddress;

use crate::client::Client;
use crate::error::{Error, ErrorKind};
use crate::operation::{Deadline, Operation, Purpose, Reply, Role, Target};
use crate::session::Session;

/// What every `getMore` of a cursor says.
#[derive(Clone, Debug, Default)]
pub(crate) struct CursorSettings {
    pub(crate) batch_size: Option<u32>,
    /// `maxTimeMS`, which on tailable cursors is how long the server waits for more.
    pub(crate) max_time: Option<Duration>,
    pub(crate) comment: Option<RawBson>,
}

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
    /// `postBatchResumeToken` of a change stream.
    post_batch_token: Option<RawDocumentBuf>,
    settings: CursorSettings,
    /// Given back as soon as the server has no more.
    session: Option<Session>,
}

impl Cursor {
    /// Reads the reply that opened the cursor.
    pub(crate) fn open(
        client: Client,
        session: Session,
        reply: &Reply,
        settings: CursorSettings,
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
            post_batch_token: post_batch_token(cursor),
            settings,
            session: (id != 0).then_some(session),
        })
    }

    /// The next result; `None` after the last one. On a tailable cursor, waits for one.
    ///
    /// # Errors
    ///
    /// If fetching the next batch fails. The cursor is at its end then.
    pub async fn next(&mut self) -> Result<Option<RawDocumentBuf>, Error> {
        // A server may answer with empty batches, as tailable cursors do; each is one round trip.
        while self.batch.is_empty() && self.id != 0 {
            self.get_more(None).await?;
        }
        Ok(self.batch.pop_front())
    }

    /// The next result if there is one at hand or the server has one now: asks at most once.
    ///
    /// # Errors
    ///
    /// As [`next`](Self::next).
    pub async fn try_next(&mut self) -> Result<Option<RawDocumentBuf>, Error> {
        if self.batch.is_empty() && self.id != 0 {
            self.get_more(None).await?;
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

    /// Tells the server that nothing more is wanted, and waits until it knows. Dropping the cursor
    /// does the same in the background.
    pub async fn close(mut self) {
        if let Some((id, session)) = self.give_up() {
            kill(&self.client, &self.server, &self.database, &self.collection, id, session).await;
        }
    }

    /// Whether the server has no more results.
    pub fn is_exhausted(&self) -> bool {
        self.id == 0 && self.batch.is_empty()
    }

    /// The server that holds the results.
    pub fn server(&self) -> &ServerAddress {
        &self.server
    }

    /// The next result at hand.
    pub(crate) fn pop(&mut self) -> Option<RawDocumentBuf> {
        self.batch.pop_front()
    }

    /// Whether no result is at hand.
    pub(crate) fn is_drained(&self) -> bool {
        self.batch.is_empty()
    }

    /// `postBatchResumeToken` of the latest reply.
    pub(crate) fn post_batch_token(&self) -> Option<&RawDocument> {
        self.post_batch_token.as_deref()
    }

    /// What kills the cursor later, whatever became of it here.
    pub(crate) fn killer(&self) -> Killer {
        Killer {
            client: self.client.clone(),
            server: self.server.clone(),
            database: self.database.clone(),
            collection: self.collection.clone(),
            id: self.id,
            session: self.session.as_ref().map(Session::share),
        }
    }

    /// Fetches the next batch. With a deadline, the server waits no longer than is left of it.
    pub(crate) async fn get_more(&mut self, deadline: Option<Deadline>) -> Result<(), Error> {
        // If this fails the cursor is gone, or its server is.
        let Some((id, session)) = self.give_up() else { return Ok(()) };
        let mut body = rawdoc! { "getMore": id, "collection": self.collection.as_str() };
        if let Some(size) = self.settings.batch_size.filter(|&size| size > 0) {
            body.append(cstr!("batchSize"), i64::from(size));
        }
        if let Some(limit) = self.settings.max_time {
            let mut millis = i64::try_from(limit.as_millis()).unwrap_or(i64::MAX);
            if let Some(deadline) = deadline {
                let topology = self.client.topology();
                let server = topology.server(&self.server);
                let round_trip = server.and_then(|server| server.min_round_trip_time());
                millis = millis.min(deadline.max_time_ms(round_trip)?);
            }
            body.append(cstr!("maxTimeMS"), millis);
        }
        if let Some(comment) = &self.settings.comment {
            body.append(cstr!("comment"), comment.clone());
        }
        let operation = Operation {
            purpose: Purpose::Read,
            target: Target::Server(self.server.clone()),
            tells_deadline: false,
            deadline,
            ..Operation::new(&self.database, body)
        };
        let reply = match self.client.inner().execute(&operation, session.as_ref()).await {
            Ok(reply) => reply,
            Err(error) => {
                if error.has_label(SYSTEM_OVERLOADED_ERROR) {
                    // The server turned the request away; its cursor is still open.
                    let (client, server) = (&self.client, &self.server);
                    kill(client, server, &self.database, &self.collection, id, session).await;
                }
                return Err(error);
            }
        };
        let malformed = |reason: &str| malformed(&reply.server, reason);
        let cursor =
            reply.body.get_document("cursor").map_err(|_| malformed("there is no cursor"))?;
        (self.id, self.batch) = read_batch(cursor, "nextBatch").map_err(malformed)?;
        self.post_batch_token = post_batch_token(cursor);
        self.session = session.filter(|_| self.id != 0);
        Ok(())
    }

    /// What the server knows the cursor by, which this side forgets.
    fn give_up(&mut self) -> Option<(i64, Option<Session>)> {
        let id = std::mem::take(&mut self.id);
        (id != 0).then(|| (id, self.session.take()))
    }
}

impl Drop for Cursor {
    fn drop(&mut self) {
        if self.id != 0 {
            self.killer().kill_later();
        }
    }
}

/// All that it takes to kill a cursor.
#[derive(Debug)]
pub(crate) struct Killer {
    client: Client,
    server: ServerAddress,
    database: String,
    collection: String,
    /// 0 if there is nothing to kill.
    id: i64,
    session: Option<Session>,
}

impl Killer {
    /// Kills the cursor in the background.
    pub(crate) fn kill_later(self) {
        if self.id == 0 {
            return;
        }
        let client = self.client.clone();
        client.inner().discovery.spawn(async move {
            let Self { client, server, database, collection, id, session } = self;
            kill(&client, &server, &database, &collection, id, session).await;
        });
    }
}

/// Best effort: a server forgets idle cursors by itself.
async fn kill(
    client: &Client,
    server: &ServerAddress,
    database: &str,
    collection: &str,
    id: i64,
    session: Option<Session>,
) {
    let body = rawdoc! { "killCursors": collection, "cursors": [id] };
    let operation = Operation {
        target: Target::Server(server.clone()),
        role: Role::Beside,
        ..Operation::new(database, body)
    };
    let _ = client.inner().execute(&operation, session.as_ref()).await;
}

fn post_batch_token(cursor: &RawDocument) -> Option<RawDocumentBuf> {
    cursor.get_document("postBatchResumeToken").ok().map(RawDocument::to_owned)
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

pub(crate) fn malformed(server: &ServerAddress, reason: &str) -> Error {
    Error::new(ErrorKind::Reply { address: server.clone(), reason: reason.to_owned() })
}

/// A text as a key, for commands built from names given by the application.
pub(crate) fn key(text: &str) -> Result<CString, Error> {
    CString::try_from(text.to_owned())
        .map_err(|_| Error::new(ErrorKind::BadCommand(format!("{text:?} holds a zero byte"))))
}
