//! Change streams: what happens in a collection, a database or the deployment, as it happens.
//!
//! Follows the Change Streams specification: a stream is an `aggregate` with `$changeStream` first,
//! and is opened again, once, after an error that it survives. Where it goes on is decided by
//! `quorate-client-session`.

use std::sync::Arc;
use std::time::Duration;

use bson::Timestamp;
use bson::raw::{RawBson, RawDocumentBuf, cstr};
use futures_util::Stream;
use quorate_client_session::{ChangeStreamStart, ResumePoint, is_resumable_change_stream_error};
use quorate_protocol::{ReadPreference, ServerAddress};

use crate::action::{Arguments, Draft, HasDraft, HasStatement, action, setters};
use crate::client::Client;
use crate::cursor::{Cursor, CursorSettings};
use crate::error::{Error, ErrorKind};
use crate::operation::{Deadline, Operation, Purpose, Retry, Target};
use crate::session::Session;
use crate::value::IntoRaw;

action! {
    /// Opens a change stream.
    Watch<'a> {
        draft: Draft<'a>,
        pipeline: Vec<RawDocumentBuf>,
        /// The options of the `$changeStream` stage, apart from where it begins.
        stage: Arguments,
        start: ChangeStreamStart,
        subject: RawBson,
    } => ChangeStream,
    draft: draft, options: max_await_time, session, read_preference, timeout, comment, batch_size,
        collation
}

impl<'a> Watch<'a> {
    pub(crate) fn new(
        mut draft: Draft<'a>,
        subject: impl Into<RawBson>,
        pipeline: impl IntoIterator<Item = impl IntoRaw>,
    ) -> Self {
        let mut stages = Vec::new();
        for stage in pipeline {
            match stage.into_raw() {
                Ok(stage) => stages.push(stage),
                Err(error) => draft.arguments.fail(error),
            }
        }
        let (stage, start) = (Arguments::default(), ChangeStreamStart::Now);
        Self { draft, pipeline: stages, stage, start, subject: subject.into() }
    }

    /// The same for all databases.
    pub(crate) fn of_deployment(mut self) -> Self {
        self.stage.set(cstr!("allChangesForCluster"), true);
        self
    }

    setters! {
        /// `fullDocument`: `updateLookup`, `whenAvailable` or `required`.
        full_document(which: &str) |watch| watch.stage.set(cstr!("fullDocument"), which);

        /// `fullDocumentBeforeChange`: `off`, `whenAvailable` or `required`.
        full_document_before_change(which: &str)
            |watch| watch.stage.set(cstr!("fullDocumentBeforeChange"), which);

        /// `showExpandedEvents`: whether events about collections and indexes are told as well.
        show_expanded_events(show: bool) |watch| watch.stage.set(cstr!("showExpandedEvents"), show);
    }

    /// Begins after the event of this token.
    pub fn resume_after(mut self, token: impl IntoRaw) -> Self {
        match token.into_raw() {
            Ok(token) => self.start = ChangeStreamStart::ResumeAfter(token),
            Err(error) => self.draft.arguments.fail(error),
        }
        self
    }

    /// The same, also after an event that ended its stream.
    pub fn start_after(mut self, token: impl IntoRaw) -> Self {
        match token.into_raw() {
            Ok(token) => self.start = ChangeStreamStart::StartAfter(token),
            Err(error) => self.draft.arguments.fail(error),
        }
        self
    }

    setters! {
        /// Begins with what happened at this time or later.
        start_at_operation_time(time: Timestamp) |watch| watch.start = ChangeStreamStart::At(time);
    }

    async fn run(mut self) -> Result<ChangeStream, Error> {
        self.draft.check()?;
        let timeout = self.draft.defaults.timeout;
        if let (Some(whole), Some(wait)) = (timeout, self.draft.cursor.max_time)
            && wait >= whole
        {
            return Err(Error::bad_command("maxAwaitTimeMS must be less than timeoutMS"));
        }
        let mut arguments = RawDocumentBuf::new();
        std::mem::take(&mut self.draft.arguments).append_to(&mut arguments)?;
        let mut stage = RawDocumentBuf::new();
        self.stage.append_to(&mut stage)?;
        let session = match self.draft.session() {
            Some(session) => session.share(),
            None => Session::implicit(Arc::clone(&self.draft.client.inner().sessions)),
        };
        let plan = Plan {
            database: self.draft.database().to_owned(),
            subject: self.subject,
            pipeline: self.pipeline,
            stage,
            arguments,
            read_preference: self.draft.read_preference(),
            read_concern: self.draft.defaults.read_concern.clone(),
            timeout,
            cursor: CursorSettings { tails: true, ..self.draft.cursor.clone() },
            session,
        };
        let client = self.draft.client.clone();
        let mut stream = ChangeStream {
            client,
            plan,
            point: ResumePoint::new(self.start),
            cursor: None,
            wire_version: 0,
            lost: true,
        };
        stream.open(stream.plan.deadline()).await?;
        Ok(stream)
    }
}

/// What every `aggregate` of a stream is made of.
#[derive(Debug)]
struct Plan {
    database: String,
    subject: RawBson,
    pipeline: Vec<RawDocumentBuf>,
    stage: RawDocumentBuf,
    /// The fields of the command beside its pipeline.
    arguments: RawDocumentBuf,
    read_preference: ReadPreference,
    read_concern: Option<String>,
    timeout: Option<Duration>,
    cursor: CursorSettings,
    /// The same for every `aggregate`, as the specification wants it.
    session: Session,
}

impl Plan {
    fn deadline(&self) -> Option<Deadline> {
        self.timeout.map(Deadline::after)
    }

    fn body(&self, start: &ChangeStreamStart) -> RawDocumentBuf {
        let (stage, size) = (self.stage.clone(), self.cursor.batch_size);
        let mut body = start.command(self.subject.clone(), stage, &self.pipeline, size);
        for (key, value) in self.arguments.iter().flatten() {
            body.append(key, value);
        }
        body
    }
}

/// What happens, as it happens.
///
/// A stream that loses its server goes on with another one, where it was. To go on after a restart
/// of the application, store [`resume_token`](Self::resume_token) after each change, and after
/// [`next_if_any`](Self::next_if_any) returned none as well: the token moves on while nothing
/// happens, so that a quiet stream can still be resumed.
///
/// A call that is dropped before it returns, as by a timeout of the caller's, loses nothing: the next
/// one resumes the stream.
///
/// With `timeoutMS`, each call may take that long. A call that times out leaves the stream usable:
/// the next one resumes it. If that happens before any change has arrived, open a new stream with a
/// larger `timeoutMS`.
#[derive(Debug)]
pub struct ChangeStream {
    client: Client,
    plan: Plan,
    point: ResumePoint,
    /// `None` when the stream is over.
    cursor: Option<Cursor>,
    /// The version of the connection that answered last. The topology may know another one by now.
    wire_version: i32,
    /// Whether the stream must be opened again before it goes on. Set while an answer is waited for:
    /// if the caller drops the future, the changes in it would be missing.
    lost: bool,
}

/// The result of one step.
enum Step {
    Change(RawDocumentBuf),
    Nothing,
    Over,
}

impl ChangeStream {
    /// The next change. Waits for one; `None` when the stream is over, as after an `invalidate`
    /// event.
    ///
    /// # Errors
    ///
    /// An error that resuming once does not cure. The stream is over then, except after a timeout.
    pub async fn next(&mut self) -> Result<Option<RawDocumentBuf>, Error> {
        let deadline = self.plan.deadline();
        loop {
            match self.step(deadline).await? {
                Step::Change(change) => return Ok(Some(change)),
                Step::Over => return Ok(None),
                // Each round is a `getMore`, for which the server waits.
                Step::Nothing => {}
            }
        }
    }

    /// The next change, if there is one at hand or the server has one within `maxAwaitTimeMS`: asks
    /// at most once. [`is_over`](Self::is_over) tells whether more can come.
    ///
    /// # Errors
    ///
    /// As [`next`](Self::next).
    pub async fn next_if_any(&mut self) -> Result<Option<RawDocumentBuf>, Error> {
        match self.step(self.plan.deadline()).await? {
            Step::Change(change) => Ok(Some(change)),
            Step::Nothing | Step::Over => Ok(None),
        }
    }

    /// Where the stream would go on: the token to store.
    pub fn resume_token(&self) -> Option<RawDocumentBuf> {
        self.point.token().cloned()
    }

    /// Whether no change can come any more.
    pub fn is_over(&self) -> bool {
        self.cursor.is_none() && !self.lost
    }

    /// The server that the changes come from.
    pub fn server(&self) -> Option<&ServerAddress> {
        self.cursor.as_ref().map(Cursor::server)
    }

    /// The changes as a stream, which ends after the first error.
    pub fn into_stream(self) -> impl Stream<Item = Result<RawDocumentBuf, Error>> + Send {
        futures_util::stream::unfold(Some(self), async |stream| {
            let mut stream = stream?;
            match stream.next().await {
                Ok(Some(change)) => Some((Ok(change), Some(stream))),
                Ok(None) => None,
                Err(error) => Some((Err(error), None)),
            }
        })
    }

    /// Tells the server that nothing more is wanted, and waits until it knows. Dropping the stream
    /// does the same in the background.
    pub async fn close(mut self) {
        if let Some(cursor) = self.cursor.take() {
            cursor.close().await;
        }
    }

    async fn step(&mut self, deadline: Option<Deadline>) -> Result<Step, Error> {
        if self.lost {
            // Dropping a cursor kills it, unless it has ended.
            self.cursor = None;
            self.open(deadline).await?;
        }
        let Some(cursor) = &mut self.cursor else { return Ok(Step::Over) };
        if let Some(change) = cursor.pop() {
            return self.give(change);
        }
        if cursor.is_exhausted() {
            self.cursor = None;
            return Ok(Step::Over);
        }
        let killer = cursor.killer();
        self.lost = true;
        match cursor.get_more(deadline).await {
            Ok(()) => {
                self.lost = false;
                self.point.batch_arrived(cursor.is_drained(), cursor.post_batch_token());
                self.wire_version = cursor.max_wire_version();
                match cursor.pop() {
                    Some(change) => self.give(change),
                    None => Ok(Step::Nothing),
                }
            }
            Err(error) if error.is_timeout() => {
                self.cursor = None;
                Err(error)
            }
            Err(error) if self.survives(&error) => {
                self.cursor = None;
                match error.is_from_server() {
                    true => killer.kill_later(),
                    // It holds the connection of a cursor behind a load balancer, which may be the only one.
                    false => drop(killer),
                }
                self.open(deadline).await?;
                Ok(Step::Nothing)
            }
            Err(error) => {
                self.cursor = None;
                self.lost = false;
                Err(error)
            }
        }
    }

    fn give(&mut self, change: RawDocumentBuf) -> Result<Step, Error> {
        let cursor = self.cursor.as_ref();
        let last = cursor.filter(|cursor| cursor.is_drained()).and_then(Cursor::post_batch_token);
        match self.point.returns(&change, last) {
            Ok(()) => Ok(Step::Change(change)),
            Err(error) => {
                self.cursor = None;
                Err(Error::bad_command(error.to_string()))
            }
        }
    }

    /// Runs the `aggregate`, from where the stream is.
    async fn open(&mut self, deadline: Option<Deadline>) -> Result<(), Error> {
        let operation = Operation {
            purpose: Purpose::Read,
            target: Target::Read(self.plan.read_preference.clone()),
            retry: Retry::Read,
            read_concern: Some(self.plan.read_concern.as_deref().unwrap_or_default()),
            deadline,
            ..Operation::new(&self.plan.database, self.plan.body(&self.point.start()))
        };
        let settings = self.plan.cursor.clone();
        let opening = Cursor::open(&self.client, self.plan.session.share(), operation, settings);
        let (cursor, reply) = match opening.await {
            Ok(opened) => opened,
            Err(error) => {
                self.lost = error.is_timeout();
                return Err(error);
            }
        };
        self.lost = false;
        self.wire_version = reply.max_wire_version;
        let time = reply.body.get_timestamp("operationTime").ok();
        let (empty, token) = (cursor.is_drained(), cursor.post_batch_token());
        self.point.opened(self.wire_version, empty, token, time);
        self.cursor = Some(cursor);
        Ok(())
    }

    fn survives(&self, error: &Error) -> bool {
        let ours = matches!(
            error.kind(),
            ErrorKind::BadCommand(_) | ErrorKind::Closed | ErrorKind::Transaction(_)
        );
        let not_from_server = !error.is_from_server() && !ours;
        is_resumable_change_stream_error(
            not_from_server,
            error.code(),
            |label| error.has_label(label),
            self.wire_version,
        )
    }
}
