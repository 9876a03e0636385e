//! Cursors: the results of a query, batch by batch, from the server that has them.
//!
//! Follows the specification of the find, getMore and killCursors commands. A cursor does not go
//! through server selection again, and getMore is never sent twice: the batch that got lost would be
//! missing.

use std::time::Duration;

use bson::raw::{RawDocument, RawDocumentBuf, cstr};
use quorate_client_session::CursorState;
use quorate_protocol::ServerAddress;
use quorate_wire::AppendSome;

use crate::client::Client;
use crate::connection::Request;
use crate::error::OperationError;
use crate::operation::{Answer, Operation};

/// How many batches without a document a server may send one after another. A server may send a few
/// when time runs out between two documents; one that never stops is broken.
pub const MAX_EMPTY_BATCHES: usize = 1000;

/// How a cursor goes on after its first batch.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Paging {
    /// How many documents to ask for at a time.
    pub(crate) batch_size: Option<u32>,
    /// How many documents to return in all.
    pub(crate) limit: Option<u64>,
    /// How long the server waits for more, in a change stream.
    pub(crate) max_await: Option<Duration>,
}

/// The results of a query. An iterator; the first error ends it.
///
/// Dropped early, it tells the server to forget about it, which takes a round trip (at most
/// `connectTimeoutMS`). To use the client for something else in between, [`park`](Self::park) it.
#[derive(Debug)]
pub struct Cursor<'c> {
    client: &'c mut Client,
    state: ParkedCursor,
}

/// A cursor without its client: go on with [`resume`](Self::resume).
///
/// Dropped, it stays open on the server until the server's own timeout, ten minutes as a rule.
#[derive(Debug)]
#[must_use = "a parked cursor stays open on its server"]
pub struct ParkedCursor {
    server: ServerAddress,
    cursor: CursorState,
    paging: Paging,
    returned: u64,
}

impl<'c> Cursor<'c> {
    /// A cursor over what a reply brought.
    pub(crate) fn begin(
        client: &'c mut Client,
        answer: Answer,
        command: &'static str,
        paging: Option<Paging>,
    ) -> Result<Self, OperationError> {
        let Answer { server, reply } = answer;
        match CursorState::open(&reply) {
            Ok(cursor) => {
                let paging = paging.unwrap_or_default();
                Ok(Self { client, state: ParkedCursor { server, cursor, paging, returned: 0 } })
            }
            Err(reason) => {
                Err(OperationError::BadReply { server, command, reason: reason.to_owned() })
            }
        }
    }

    /// The server that has the results.
    pub fn server(&self) -> &ServerAddress {
        &self.state.server
    }

    /// Whether the server has told that there is no more.
    pub fn is_exhausted(&self) -> bool {
        self.state.is_exhausted()
    }

    /// Gives the client back, and keeps the place in the results.
    pub fn park(mut self) -> ParkedCursor {
        let ParkedCursor { server, cursor, paging, returned } = &mut self.state;
        // Nothing is left here that dropping would kill.
        let cursor = std::mem::take(cursor);
        ParkedCursor { server: server.clone(), cursor, paging: *paging, returned: *returned }
    }

    /// Fetches the next batch, if there can be one.
    pub(crate) fn fetch(&mut self) -> Result<(), OperationError> {
        match self.state.cursor.id() {
            Some(id) => self.get_more(id),
            None => Ok(()),
        }
    }

    fn advance(&mut self) -> Result<Option<RawDocumentBuf>, OperationError> {
        if self.limit_reached() {
            self.kill();
            return Ok(None);
        }
        for _ in 0..MAX_EMPTY_BATCHES {
            if let Some(document) = self.state.cursor.pop() {
                self.state.returned += 1;
                return Ok(Some(document));
            }
            let Some(id) = self.state.cursor.id() else { return Ok(None) };
            self.get_more(id)?;
        }
        let server = self.state.server.clone();
        let reason = format!("{MAX_EMPTY_BATCHES} batches one after another had no document");
        Err(OperationError::BadReply { server, command: "getMore", reason })
    }

    fn limit_reached(&self) -> bool {
        self.state.paging.limit.is_some_and(|limit| self.state.returned >= limit)
    }

    fn get_more(&mut self, id: i64) -> Result<(), OperationError> {
        let state = &mut self.state;
        if self.client.topology().server(&state.server).is_none() {
            return Err(OperationError::CursorLost { server: state.server.clone() });
        }
        if !self.client.make_usable(&state.server) {
            return Err(self.client.unreachable(state.server.clone()));
        }
        let mut command = state.cursor.get_more(id);
        command.append_some(cstr!("batchSize"), state.paging.next_batch_size(state.returned));
        if let Some(limit) = state.paging.max_await {
            let millis = i64::try_from(limit.as_millis()).unwrap_or(i64::MAX);
            command.append(cstr!("maxTimeMS"), millis);
        }
        // As a write: no read preference goes along, for the server is settled.
        let write = Operation::write(state.cursor.database(), &command);
        let operation = Operation { follows_session: false, ..write };
        let answer = self.client.run_on(&state.server, operation)?;
        state.cursor.refill(&answer.reply).map_err(|reason| OperationError::BadReply {
            server: state.server.clone(),
            command: "getMore",
            reason: reason.to_owned(),
        })
    }

    /// Tells the server to forget about the cursor, if that can be done without connecting. "The
    /// result from the killCursors command MAY be safely ignored."
    fn kill(&mut self) {
        self.state.cursor.clear();
        let Some(id) = self.state.cursor.forget_id() else { return };
        let (client, state) = (&mut *self.client, &self.state);
        let mut command = state.cursor.kill(id);
        command.append(cstr!("$db"), state.cursor.database());
        let timeout = client.options.discovery.connect_timeout;
        let Some(connection) = client.connections.get_mut(&state.server) else { return };
        if connection.round_trip(Request::new(&command), &*client.clock, timeout).is_err() {
            // Half a reply must not meet the next operation, which opens a new connection.
            client.connections.remove(&state.server);
        }
    }
}

impl Iterator for Cursor<'_> {
    type Item = Result<RawDocumentBuf, OperationError>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.advance();
        if next.is_err() {
            // Killed, if the connection still stands: an error may have come from the client's side.
            self.kill();
        }
        next.transpose()
    }
}

impl Drop for Cursor<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.kill();
        }
    }
}

impl ParkedCursor {
    /// Goes on where [`Cursor::park`] left off. The client must be the one it came from, or one of
    /// the same deployment.
    pub fn resume(self, client: &mut Client) -> Cursor<'_> {
        Cursor { client, state: self }
    }

    /// The server that has the results.
    pub fn server(&self) -> &ServerAddress {
        &self.server
    }

    pub(crate) fn pop(&mut self) -> Option<RawDocumentBuf> {
        self.cursor.pop()
    }

    pub(crate) fn is_drained(&self) -> bool {
        self.cursor.is_drained()
    }

    pub(crate) fn is_exhausted(&self) -> bool {
        self.cursor.id().is_none()
    }

    pub(crate) fn post_batch_token(&self) -> Option<&RawDocument> {
        self.cursor.post_batch_token()
    }
}

impl Paging {
    /// "batchSize MUST be based on the remaining results" as the limit is approached.
    fn next_batch_size(self, returned: u64) -> Option<i64> {
        let wanted = self.batch_size.filter(|size| *size > 0).map(u64::from);
        let left = self.limit.map(|limit| limit.saturating_sub(returned));
        let size = match (wanted, left) {
            (Some(wanted), Some(left)) => Some(wanted.min(left)),
            (wanted, left) => wanted.or(left),
        };
        size.map(|size| i64::try_from(size).unwrap_or(i64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "If batchSize is zero, it MUST be omitted".
    #[test]
    fn batches_shrink_as_the_limit_comes_near() {
        let size = |batch_size, limit, returned| {
            Paging { batch_size, limit, max_await: None }.next_batch_size(returned)
        };
        assert_eq!(size(Some(3), Some(4), 3), Some(1));
        assert_eq!(size(Some(3), Some(40), 3), Some(3));
        assert_eq!(size(None, Some(4), 1), Some(3));
        assert_eq!(size(Some(3), None, 100), Some(3));
        assert_eq!(size(Some(0), None, 0), None);
        assert_eq!(size(None, None, 0), None);
    }
}
