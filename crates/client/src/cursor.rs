//! The results of a query, fetched batch by batch from the server that holds them.
//!
//! Follows the find, getMore and killCursors commands. A cursor stays with its server and its
//! session; one that is dropped early is killed in the background, so that the server need not wait
//! for its timeout.

use std::time::Duration;

use bson::raw::{CString, RawBson, RawDocument, RawDocumentBuf, cstr};
use quorate_client_session::{CursorState, SYSTEM_OVERLOADED_ERROR};
use quorate_protocol::ServerAddress;
use quorate_wire::AppendSome;

use crate::client::Client;
use crate::error::{Error, ErrorKind};
use crate::operation::{ConnectionPin, Deadline, Operation, Purpose, Reply, Role, Target};
use crate::session::Session;

/// What every `getMore` of a cursor says.
#[derive(Clone, Debug, Default)]
pub(crate) struct CursorSettings {
    pub(crate) batch_size: Option<u32>,
    /// `maxTimeMS`, which on tailable cursors is how long the server waits for more.
    pub(crate) max_time: Option<Duration>,
    pub(crate) comment: Option<RawBson>,
    /// Whether the cursor waits at its end, so that `timeoutMS` bounds each call instead of its life.
    pub(crate) tails: bool,
}

/// How `timeoutMS` bounds what a cursor sends.
#[derive(Clone, Copy, Debug)]
enum Bound {
    /// The command that opened the cursor and every `getMore` together.
    Life(Deadline),
    /// Each call.
    Call(Duration),
}

impl Bound {
    fn of_call(self) -> Deadline {
        match self {
            Self::Life(deadline) => deadline,
            Self::Call(limit) => Deadline::after(limit),
        }
    }

    /// "`timeoutMS` MUST be refreshed for the `killCursors` command."
    fn of_kill(self) -> Deadline {
        match self {
            Self::Life(deadline) => Deadline::after(deadline.limit()),
            Self::Call(limit) => Deadline::after(limit),
        }
    }
}

/// The results of a query.
///
/// With `timeoutMS`, all of them must be fetched within that time, from when the query began; on a
/// tailable cursor, each call may take that long.
#[derive(Debug)]
pub struct Cursor {
    client: Client,
    server: ServerAddress,
    /// `maxWireVersion` of the connection that brought the latest batch.
    max_wire_version: i32,
    state: CursorState,
    settings: CursorSettings,
    bound: Option<Bound>,
    /// Behind a load balancer, the connection that leads to the service which has the cursor.
    pin: Option<ConnectionPin>,
    /// Given back as soon as the server has no more.
    session: Option<Session>,
    /// Whether a `getMore` was sent, or was about to be, and its reply has not arrived. If the caller
    /// drops the future, it stays so: what the server answered then is lost.
    in_flight: bool,
}

impl Cursor {
    /// Runs the command that opens the cursor, in the session that it goes on in.
    pub(crate) async fn open(
        client: &Client,
        session: Session,
        operation: Operation<'_>,
        settings: CursorSettings,
    ) -> Result<(Self, Reply), Error> {
        let deadline = operation.deadline;
        let pin = client.inner().options.discovery.load_balanced.then(ConnectionPin::default);
        let operation = Operation { pin: pin.as_ref(), ..operation };
        let reply = client.inner().execute(&operation, Some(&session)).await?;
        let state =
            CursorState::open(&reply.body).map_err(|reason| malformed(&reply.server, reason))?;
        let session = state.id().map(|_| session);
        let (server, max_wire_version) = (reply.server.clone(), reply.max_wire_version);
        let bound = deadline.map(|deadline| match settings.tails {
            true => Bound::Call(deadline.limit()),
            false => Bound::Life(deadline),
        });
        let pin = pin.filter(|_| state.id().is_some());
        let client = client.clone();
        let cursor = Self {
            client,
            server,
            max_wire_version,
            state,
            settings,
            bound,
            pin,
            session,
            in_flight: false,
        };
        Ok((cursor, reply))
    }

    /// The next result; `None` after the last one. On a tailable cursor, waits for one.
    ///
    /// A call that is dropped before it returns, as by a timeout of the caller's, may lose the batch
    /// that it waited for. The next call fails then; run the query again. To wait for a limited time,
    /// use `timeoutMS`, or [`try_next`](Self::try_next) on a tailable cursor.
    ///
    /// # Errors
    ///
    /// If fetching the next batch fails, or a call before was dropped while it did. The cursor is at
    /// its end then.
    pub async fn next(&mut self) -> Result<Option<RawDocumentBuf>, Error> {
        let deadline = self.bound.map(Bound::of_call);
        // A server may answer with empty batches, as tailable cursors do; each is one round trip.
        while self.state.is_drained() && self.state.id().is_some() {
            self.get_more(deadline).await?;
        }
        Ok(self.state.pop())
    }

    /// The next result if there is one at hand or the server has one now: asks at most once.
    ///
    /// # Errors
    ///
    /// As [`next`](Self::next).
    pub async fn try_next(&mut self) -> Result<Option<RawDocumentBuf>, Error> {
        if self.state.is_drained() && self.state.id().is_some() {
            self.get_more(self.bound.map(Bound::of_call)).await?;
        }
        Ok(self.state.pop())
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
        let killer = self.killer();
        // `killCursors` is sent once.
        self.state.forget_id();
        killer.kill().await;
    }

    /// Whether the server has no more results.
    pub fn is_exhausted(&self) -> bool {
        self.state.id().is_none() && self.state.is_drained()
    }

    /// The server that holds the results.
    pub fn server(&self) -> &ServerAddress {
        &self.server
    }

    pub(crate) fn max_wire_version(&self) -> i32 {
        self.max_wire_version
    }

    /// The next result at hand.
    pub(crate) fn pop(&mut self) -> Option<RawDocumentBuf> {
        self.state.pop()
    }

    /// Whether no result is at hand.
    pub(crate) fn is_drained(&self) -> bool {
        self.state.is_drained()
    }

    /// `postBatchResumeToken` of the latest reply.
    pub(crate) fn post_batch_token(&self) -> Option<&RawDocument> {
        self.state.post_batch_token()
    }

    /// What kills the cursor later, whatever became of it here.
    pub(crate) fn killer(&self) -> Killer {
        Killer {
            client: self.client.clone(),
            server: self.server.clone(),
            database: self.state.database().to_owned(),
            command: self.state.id().map(|id| self.state.kill(id)),
            session: self.session.as_ref().map(Session::share),
            bound: self.bound,
            pin: self.pin.clone(),
        }
    }

    /// Fetches the next batch. With a deadline, the server waits at most for the remaining time.
    pub(crate) async fn get_more(&mut self, deadline: Option<Deadline>) -> Result<(), Error> {
        let Some(id) = self.state.id() else { return Ok(()) };
        let outcome = match self.in_flight {
            true => Err(Error::new(ErrorKind::BatchLost(self.server.clone()))),
            false => self.fetch(id, deadline).await,
        };
        let Err(error) = outcome else { return Ok(()) };
        // The cursor is gone, or its server is; unless the server turned the request away, or was not
        // waited for.
        if error.has_label(SYSTEM_OVERLOADED_ERROR) {
            self.killer().kill().await;
        } else if error.is_timeout() || matches!(error.kind(), ErrorKind::BatchLost(_)) {
            self.killer().kill_later();
        }
        self.state.forget_id();
        self.ended();
        Err(error)
    }

    /// The server has nothing more. What is held for it is given back.
    fn ended(&mut self) {
        self.session = None;
        self.pin = None;
    }

    async fn fetch(&mut self, id: i64, deadline: Option<Deadline>) -> Result<(), Error> {
        if let Some(deadline) = deadline.filter(|deadline| deadline.is_over()) {
            return Err(deadline.error());
        }
        let operation = Operation {
            purpose: Purpose::Read,
            target: Target::Server(self.server.clone()),
            tells_deadline: false,
            deadline,
            pin: self.pin.as_ref(),
            ..Operation::new(self.state.database(), self.get_more_body(id, deadline)?)
        };
        self.in_flight = true;
        let reply = self.client.inner().execute(&operation, self.session.as_ref()).await?;
        self.state.refill(&reply.body).map_err(|reason| malformed(&reply.server, reason))?;
        self.in_flight = false;
        self.max_wire_version = reply.max_wire_version;
        if self.state.id().is_none() {
            self.ended();
        }
        Ok(())
    }

    fn get_more_body(&self, id: i64, deadline: Option<Deadline>) -> Result<RawDocumentBuf, Error> {
        let mut body = self.state.get_more(id);
        body.append_some(
            cstr!("batchSize"),
            self.settings.batch_size.filter(|&size| size > 0).map(i64::from),
        );
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
        body.append_some(cstr!("comment"), self.settings.comment.as_ref());
        Ok(body)
    }
}

impl Drop for Cursor {
    fn drop(&mut self) {
        if self.state.id().is_some() {
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
    /// `None` if there is nothing to kill.
    command: Option<RawDocumentBuf>,
    session: Option<Session>,
    bound: Option<Bound>,
    pin: Option<ConnectionPin>,
}

impl Killer {
    /// Kills the cursor in the background.
    pub(crate) fn kill_later(self) {
        if self.command.is_some() {
            let client = self.client.clone();
            client.inner().discovery.spawn(self.kill());
        }
    }

    /// Best effort: a server forgets idle cursors by itself.
    async fn kill(self) {
        let Self { client, server, database, command, session, bound, pin } = self;
        let Some(body) = command else { return };
        // Another connection may lead to a service that has another cursor of this number.
        if pin.as_ref().is_some_and(ConnectionPin::is_empty) {
            return;
        }
        let operation = Operation {
            target: Target::Server(server),
            role: Role::Beside,
            deadline: bound.map(Bound::of_kill),
            pin: pin.as_ref(),
            ..Operation::new(&database, body)
        };
        let _ = client.inner().execute(&operation, session.as_ref()).await;
    }
}

pub(crate) fn malformed(server: &ServerAddress, reason: &str) -> Error {
    Error::new(ErrorKind::Reply { address: server.clone(), reason: reason.to_owned() })
}

/// A text as a key, for commands built from names given by the application.
pub(crate) fn key(text: &str) -> Result<CString, Error> {
    CString::try_from(text.to_owned())
        .map_err(|_| Error::bad_command(format!("{text:?} holds a zero byte")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "The `find` and all `getMore`s on the cursor must finish by time `T + timeoutMS`"; `killCursors` has
    /// a time of its own.
    #[tokio::test(start_paused = true)]
    async fn a_life_ends_once_and_a_call_begins_anew() {
        let limit = Duration::from_millis(100);
        let (life, call) = (Bound::Life(Deadline::after(limit)), Bound::Call(limit));
        assert!(!life.of_call().is_over() && !call.of_call().is_over());
        tokio::time::advance(limit).await;
        assert!(life.of_call().is_over() && !call.of_call().is_over());
        assert!(!life.of_kill().is_over() && !call.of_kill().is_over());
    }
}
