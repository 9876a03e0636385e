//! Change streams: what happens in a collection, a database or the deployment, as it happens.
//!
//! Follows the Change Streams specification: a stream is an `aggregate` with `$changeStream` first,
//! and is opened again, once, after an error that it survives. Where it goes on is decided by
//! `quorate-client-session`.

use std::time::Duration;

use bson::raw::{RawBson, RawDocumentBuf, cstr};
use quorate_client_session::{
    ChangeStreamStart, Failure, ResumePoint, is_resumable_change_stream_error,
};
use quorate_protocol::ReadPreference;
use quorate_wire::AppendSome;

use crate::client::Client;
use crate::collection::Namespace;
use crate::cursor::{Cursor, Paging, ParkedCursor};
use crate::error::OperationError;
use crate::operation::{Answer, Operation};

/// What a change stream watches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Watched {
    /// One collection, which need not exist.
    Collection(Namespace),
    /// The collections of a database.
    Database(String),
    /// All databases but `admin`, `config` and `local`.
    Deployment,
}

/// How to watch. The default is from now on, as the server has it.
#[derive(Clone, Debug, Default)]
pub struct WatchOptions {
    /// Where to begin.
    pub start: ChangeStreamStart,
    /// `fullDocument`: `updateLookup`, `whenAvailable` or `required`.
    pub full_document: Option<String>,
    /// `fullDocumentBeforeChange`: `off`, `whenAvailable` or `required`.
    pub full_document_before_change: Option<String>,
    /// `showExpandedEvents`: whether events about collections and indexes are told as well.
    pub show_expanded_events: Option<bool>,
    /// `batchSize`.
    pub batch_size: Option<u32>,
    /// `maxAwaitTimeMS`: how long the server waits for a change before it answers. Keep it below
    /// `socketTimeoutMS`.
    pub max_await_time: Option<Duration>,
    /// Another read preference than the client's.
    pub read_preference: Option<ReadPreference>,
}

/// What happens, as it happens: an iterator that waits for the next change. The first error ends it,
/// except for those that it survives by going on with another server.
///
/// To go on after a restart of the application, store [`resume_token`](Self::resume_token) after
/// each change, and after [`next_if_any`](Self::next_if_any) returned none as well: the token moves
/// on while nothing happens, so that a quiet stream can still be resumed.
#[derive(Debug)]
pub struct ChangeStream<'c> {
    client: &'c mut Client,
    plan: Plan,
    point: ResumePoint,
    /// `None` when the stream is over.
    cursor: Option<ParkedCursor>,
    /// The version of the server that answered last.
    wire_version: i32,
}

/// What every `aggregate` of a stream is made of.
#[derive(Debug)]
struct Plan {
    watched: Watched,
    pipeline: Vec<RawDocumentBuf>,
    options: WatchOptions,
}

/// The result of one step.
enum Step {
    Change(RawDocumentBuf),
    Nothing,
    Over,
}

impl Client {
    /// Watches what happens. The pipeline filters and shapes the changes; their `_id` must stay.
    ///
    /// # Errors
    ///
    /// As [`run_command`](Self::run_command), after one retry.
    pub fn watch(
        &mut self,
        watched: Watched,
        pipeline: impl IntoIterator<Item = RawDocumentBuf>,
        options: WatchOptions,
    ) -> Result<ChangeStream<'_>, OperationError> {
        let point = ResumePoint::new(options.start.clone());
        let plan = Plan { watched, pipeline: pipeline.into_iter().collect(), options };
        let mut stream = ChangeStream { client: self, plan, point, cursor: None, wire_version: 0 };
        stream.open()?;
        Ok(stream)
    }
}

impl Plan {
    fn database(&self) -> &str {
        match &self.watched {
            Watched::Collection(namespace) => namespace.database(),
            Watched::Database(name) => name,
            Watched::Deployment => "admin",
        }
    }

    fn command(&self, start: &ChangeStreamStart) -> RawDocumentBuf {
        let mut stage = RawDocumentBuf::new();
        stage.append_some(cstr!("fullDocument"), self.options.full_document.as_deref());
        stage.append_some(
            cstr!("fullDocumentBeforeChange"),
            self.options.full_document_before_change.as_deref(),
        );
        stage.append_some(cstr!("showExpandedEvents"), self.options.show_expanded_events);
        if self.watched == Watched::Deployment {
            stage.append(cstr!("allChangesForCluster"), true);
        }
        let watched = match &self.watched {
            Watched::Collection(namespace) => RawBson::from(namespace.collection()),
            Watched::Database(_) | Watched::Deployment => RawBson::Int32(1),
        };
        start.command(watched, stage, &self.pipeline, self.options.batch_size)
    }
}

impl ChangeStream<'_> {
    /// The next change, if there is one at hand or the server has one within `maxAwaitTimeMS`: asks
    /// at most once. [`is_over`](Self::is_over) tells whether more can come.
    ///
    /// # Errors
    ///
    /// An error that resuming once does not cure. The stream is over then.
    pub fn next_if_any(&mut self) -> Result<Option<RawDocumentBuf>, OperationError> {
        match self.step()? {
            Step::Change(change) => Ok(Some(change)),
            Step::Nothing | Step::Over => Ok(None),
        }
    }

    /// Where the stream would go on: the token to store.
    pub fn resume_token(&self) -> Option<&RawDocumentBuf> {
        self.point.token()
    }

    /// Whether no change can come any more.
    pub fn is_over(&self) -> bool {
        self.cursor.is_none()
    }

    fn step(&mut self) -> Result<Step, OperationError> {
        let Some(mut parked) = self.cursor.take() else { return Ok(Step::Over) };
        if let Some(change) = parked.pop() {
            return self.give(parked, change);
        }
        if parked.is_exhausted() {
            return Ok(Step::Over);
        }
        let server = parked.server().clone();
        let mut cursor = parked.resume(self.client);
        let fetched = cursor.fetch();
        let Err(error) = fetched else {
            let mut parked = cursor.park();
            self.point.batch_arrived(parked.is_drained(), parked.post_batch_token());
            self.wire_version = self.version_of(&server);
            return match parked.pop() {
                Some(change) => self.give(parked, change),
                None => {
                    self.cursor = Some(parked);
                    Ok(Step::Nothing)
                }
            };
        };
        // Dropping a cursor kills it, on its own server and only if the connection stands.
        drop(cursor);
        if !self.survives(&error) {
            return Err(error);
        }
        self.open()?;
        Ok(Step::Nothing)
    }

    fn give(
        &mut self,
        parked: ParkedCursor,
        change: RawDocumentBuf,
    ) -> Result<Step, OperationError> {
        let last = parked.post_batch_token().filter(|_| parked.is_drained());
        match self.point.returns(&change, last) {
            Ok(()) => {
                self.cursor = Some(parked);
                Ok(Step::Change(change))
            }
            Err(error) => {
                drop(parked.resume(self.client));
                Err(OperationError::Misuse(error.to_string()))
            }
        }
    }

    /// Runs the `aggregate`, from where the stream is.
    fn open(&mut self) -> Result<(), OperationError> {
        let mut command = self.plan.command(&self.point.start());
        self.client.append_read_concern(&mut command);
        let default = self.client.default_read_preference()?;
        let preference = self.plan.options.read_preference.as_ref().unwrap_or(&default);
        let operation = Operation::read(self.plan.database(), &command, preference);
        let answer = self.client.run(operation)?;
        let Answer { server, reply } = &answer;
        let (server, time) = (server.clone(), reply.get_timestamp("operationTime").ok());
        let paging = Paging {
            batch_size: self.plan.options.batch_size,
            limit: None,
            max_await: self.plan.options.max_await_time,
        };
        let parked = Cursor::begin(self.client, answer, "a change stream", Some(paging))?.park();
        self.wire_version = self.version_of(&server);
        let (empty, token) = (parked.is_drained(), parked.post_batch_token());
        self.point.opened(self.wire_version, empty, token, time);
        self.cursor = Some(parked);
        Ok(())
    }

    fn survives(&self, error: &OperationError) -> bool {
        let not_from_server = error.is_network() || error.is_selection();
        is_resumable_change_stream_error(
            not_from_server,
            error.code(),
            |label| error.has_label(label),
            self.wire_version,
        )
    }

    fn version_of(&self, server: &quorate_protocol::ServerAddress) -> i32 {
        self.client.topology().server(server).map_or(0, |server| server.wire_versions().max)
    }
}

impl Iterator for ChangeStream<'_> {
    type Item = Result<RawDocumentBuf, OperationError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.step() {
                Ok(Step::Change(change)) => return Some(Ok(change)),
                Ok(Step::Over) => return None,
                // Each round is a `getMore`, for which the server waits.
                Ok(Step::Nothing) => {}
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

impl Drop for ChangeStream<'_> {
    fn drop(&mut self) {
        if let Some(parked) = self.cursor.take() {
            drop(parked.resume(self.client));
        }
    }
}
