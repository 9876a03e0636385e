//! One operation from selection to reply, retries included.
//!
//! Owns the path that every command takes: select a server, check a connection out, add what the
//! session, the read preference and the stable API ask for, send, read, and tell discovery what an
//! error means, before anything is tried again. Whether and when it is tried again is decided by
//! [`OperationLoop`].

use std::borrow::Cow;
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bson::raw::{CStr, RawDocument, RawDocumentBuf, cstr};
use bson::rawdoc;
use quorate_client_session::{
    Next, OperationKind, OperationLoop, RetryRules, SYSTEM_OVERLOADED_ERROR, SelectedServer,
    SessionUse, add_read_preference,
};
use quorate_protocol::{Lock, MonotonicTime, ReadPreference, ServerAddress};
use quorate_server_discovery::{
    ApplicationError, HandshakeProgress, Input, ServerType, TopologyDescription, TopologyType,
};
use quorate_wire::{BodyWriter, CommandError, CommandFields, MsgFlags, command_error, find_field};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tracing::Instrument;

use crate::client::Inner;
use crate::command_event::{OperationId, UnderWay};
use crate::connection::ConnectionError;
use crate::discovery::Selected;
use crate::error::{Error, ErrorKind};
use crate::establish::ServerEstablisher;
use crate::handshake::{ConnectionFacts, EstablishError};
use crate::logging;
use crate::pool::{CheckOutError, PooledConnection};
use crate::reauthentication::wants_login;
use crate::selection::Chosen;
use crate::session::{Session, SessionInUse};

pub(crate) use quorate_client_session::{Purpose, Retry, Role};

/// Room in a message for its header and for the fields added to the command.
const MESSAGE_MARGIN: usize = 16 * 1024;

/// Where an operation goes.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    /// A server that takes writes.
    Write,
    /// A server that this read preference admits.
    Read(ReadPreference),
    /// The same for a pipeline that writes, unless a server is too old to send it on.
    WritingPipeline(ReadPreference),
    /// This server and no other: the one that holds the cursor.
    Server(ServerAddress),
}

/// When `timeoutMS` is over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    at: Instant,
    limit: Duration,
}

impl Deadline {
    pub(crate) fn after(limit: Duration) -> Self {
        Self { at: Instant::now() + limit, limit }
    }

    pub(crate) fn error(self) -> Error {
        Error::new(ErrorKind::Timeout(self.limit))
    }

    pub(crate) fn limit(self) -> Duration {
        self.limit
    }

    pub(crate) fn is_over(self) -> bool {
        self.left().is_zero()
    }

    fn left(self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    /// `maxTimeMS` for a command that is sent now: the remaining time minus the round-trip time.
    pub(crate) fn max_time_ms(self, round_trip: Option<Duration>) -> Result<i64, Error> {
        let left = self.left().saturating_sub(round_trip.unwrap_or_default());
        match i64::try_from(left.as_millis()) {
            Ok(0) => Err(self.error()),
            Ok(millis) => Ok(millis),
            Err(_) => Ok(i64::MAX),
        }
    }
}

/// A command and how to run it.
#[derive(Debug)]
pub(crate) struct Operation<'a> {
    pub(crate) purpose: Purpose,
    pub(crate) database: &'a str,
    /// The command, its name first, without what this module adds.
    pub(crate) body: Cow<'a, RawDocument>,
    /// An argument sent beside the body. As much of it is sent as the connection takes at once.
    pub(crate) sequence: Option<(&'a CStr, &'a [RawDocumentBuf])>,
    pub(crate) target: Target,
    pub(crate) retry: Retry,
    pub(crate) role: Role,
    /// The level if the command is ours to add read concerns to; empty for the server's default,
    /// which writes take too, to come after what their session has seen.
    pub(crate) read_concern: Option<&'a str>,
    /// Whether a reply is wanted.
    pub(crate) acknowledged: bool,
    /// When it must be over.
    pub(crate) deadline: Option<Deadline>,
    /// Whether the command carries the deadline.
    pub(crate) tells_deadline: bool,
    /// What the logs call it; a number of its own if absent.
    pub(crate) id: Option<OperationId>,
    /// The connection that its cursor stays on.
    pub(crate) pin: Option<&'a ConnectionPin>,
}

/// The connection of a cursor behind a load balancer, where any other may lead to another service. Empty
/// before the first command, during each, and after one that was given up.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConnectionPin(Arc<Lock<Option<PooledConnection<ServerEstablisher>>>>);

impl ConnectionPin {
    fn take(&self) -> Option<PooledConnection<ServerEstablisher>> {
        self.0.lock().take()
    }

    fn keep(&self, connection: PooledConnection<ServerEstablisher>) {
        *self.0.lock() = Some(connection);
    }

    /// Whether there is no connection on which the server would know the cursor.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().is_none()
    }
}

impl<'a> Operation<'a> {
    /// A command for the primary, sent once as it is.
    pub(crate) fn new(database: &'a str, body: impl Into<Cow<'a, RawDocument>>) -> Self {
        Self {
            purpose: Purpose::Any,
            database,
            body: body.into(),
            sequence: None,
            target: Target::Read(ReadPreference::PRIMARY),
            retry: Retry::Never,
            role: Role::Statement,
            read_concern: None,
            acknowledged: true,
            deadline: None,
            tells_deadline: true,
            id: None,
            pin: None,
        }
    }

    fn kind(&self) -> OperationKind {
        OperationKind {
            purpose: self.purpose,
            retry: self.retry,
            role: self.role,
            acknowledged: self.acknowledged,
        }
    }

    /// The name of the command.
    pub(crate) fn name(&self) -> &str {
        let first = self.body.iter_elements().next().and_then(Result::ok);
        first.map(|element| element.key().as_str()).unwrap_or_default()
    }
}

/// A reply and its server.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) body: RawDocumentBuf,
    pub(crate) server: ServerAddress,
    /// `maxWireVersion` of the server when the connection was made.
    pub(crate) max_wire_version: i32,
    /// How many documents of the sequence it answers.
    pub(crate) sent: usize,
}

/// One attempt of an operation.
#[derive(Clone, Copy)]
struct Attempt<'a> {
    operation: &'a Operation<'a>,
    id: OperationId,
    selected: &'a Selected,
}

impl Inner {
    /// Runs an operation, in a session of its own if it was given none.
    pub(crate) async fn execute(
        &self,
        operation: &Operation<'_>,
        session: Option<&Session>,
    ) -> Result<Reply, Error> {
        if session.is_some() && !operation.acknowledged {
            return Err(Error::bad_command("an unacknowledged write cannot be part of a session"));
        }
        if let Some(session) = session {
            self.admit(operation, session)?;
        }
        let mut session = SessionInUse::new(session, &self.sessions);
        let outcome = {
            // Pinned first: the future is large, and what wraps it would copy it.
            let attempts = pin!(self.attempt(operation, &mut session));
            let attempts = attempts.instrument(logging::span(operation));
            match operation.deadline {
                None => attempts.await,
                Some(deadline) => match timeout_at(deadline.at, attempts).await {
                    Ok(result) => result,
                    Err(_) => Err(deadline.error()),
                },
            }
        };
        // The labels are about what the server said.
        outcome.map_err(|error| {
            session.labelled(operation.role, error).within(operation.deadline.map(Deadline::limit))
        })
    }

    /// Whether an operation may run in this session of the application's now.
    fn admit(&self, operation: &Operation<'_>, session: &Session) -> Result<(), Error> {
        if !session.belongs_to(&self.sessions) {
            return Err(Error::bad_command("the session was started on another client"));
        }
        if operation.role != Role::Statement {
            return Ok(());
        }
        let mut state = session.lock();
        state.transaction.begin_operation();
        let preference = match &operation.target {
            Target::Read(preference) | Target::WritingPipeline(preference) => Some(preference),
            Target::Write | Target::Server(_) => None,
        };
        Ok(state.check_statement(preference, &operation.body)?)
    }

    /// Does what the operation loop says, until there is a reply or an error.
    async fn attempt(
        &self,
        operation: &Operation<'_>,
        session: &mut SessionInUse<'_>,
    ) -> Result<Reply, Error> {
        let id = operation.id.unwrap_or_else(|| self.next_operation_id());
        let clock = self.discovery.clock();
        let deadline = operation.deadline.map(|deadline| clock.now() + deadline.left());
        let mut attempts = OperationLoop::new(operation.kind(), self.retry_rules(), deadline);
        let mut target = None;
        let mut sent = None;
        let mut next = Next::Select;
        loop {
            next = match next {
                Next::Select => {
                    let pinned = session.pinned(operation.role);
                    let deprioritized = attempts.deprioritized();
                    let choice = match self.select_at_once(operation, id, deprioritized, pinned) {
                        Ok(Chosen::Server(selected)) => Ok(selected),
                        // Rare, and large: no other operation carries its future.
                        Ok(Chosen::None(choice)) => Box::pin(choice.wait(deprioritized)).await,
                        Err(error) => Err(error),
                    };
                    match choice {
                        Ok(selected) => {
                            let server = self.as_target(&selected);
                            let next = session.selected(&mut attempts, server);
                            target = Some(selected);
                            next
                        }
                        Err(error) => attempts.not_selected(error),
                    }
                }
                Next::Send => {
                    if attempts.retries() > 0 {
                        self.discovery.counters().command_retried();
                    }
                    let selected = target.as_ref().expect("a server is selected before sending");
                    let attempt = Attempt { operation, id, selected };
                    match self.once(attempt, session, &mut attempts, &mut sent).await {
                        Ok(reply) => return Ok(reply),
                        Err(error) => {
                            let (now, chance) = (clock.now(), self.random_fraction());
                            let server = selected.server().address();
                            session.failed(&mut attempts, server, error, now, chance)
                        }
                    }
                }
                Next::Wait(pause) => {
                    Box::pin(sleep(pause)).await;
                    attempts.waited()
                }
                Next::Fail(error) => return Err(error),
            };
        }
    }

    fn retry_rules(&self) -> RetryRules {
        RetryRules {
            reads: self.options.retry_reads,
            writes: self.options.retry_writes,
            max_adaptive_retries: self.options.max_adaptive_retries,
            retarget_overloaded: self.options.enable_overload_retargeting,
        }
    }

    fn as_target(&self, selected: &Selected) -> SelectedServer {
        SelectedServer {
            max_wire_version: selected.server().wire_versions().max,
            takes_retryable_writes: selected.server().server_type() != ServerType::Standalone
                && session_lifetime(selected.description()).is_some(),
            is_router: selected.description().topology_type() == TopologyType::Sharded,
        }
    }

    /// Sends an operation to the selected server, and judges the reply. `sent` is how many documents
    /// of the sequence go along, once that is known.
    async fn once(
        &self,
        attempt: Attempt<'_>,
        session: &mut SessionInUse<'_>,
        attempts: &mut OperationLoop<Error>,
        sent: &mut Option<usize>,
    ) -> Result<Reply, Error> {
        let Attempt { operation, id, selected } = attempt;
        let _running = selected.handle().begin_operation();
        let pool = selected.handle().pool();
        let mut connection = match operation.pin.and_then(ConnectionPin::take) {
            Some(pinned) => pinned,
            None => match pool.check_out_idle() {
                Some(idle) => idle,
                // Rare, and large: no other operation carries its future.
                None => Box::pin(pool.check_out()).await.map_err(|e| self.no_connection(e))?,
            },
        };
        self.compose(attempt, &mut connection, session, attempts)?;
        let sequence = match operation.sequence {
            Some((name, documents)) => {
                let count = match *sent {
                    Some(sent) => sent,
                    None => {
                        let body = connection.connection.composed_length();
                        fitting(documents, &connection.facts, body)?
                    }
                };
                *sent = Some(count);
                Some((name, &documents[..count]))
            }
            None => None,
        };
        let under_way = UnderWay::begin(self, operation, id, &connection, sequence);
        let may_repeat = self.options.credential.is_some();
        let stays = sequence.is_none() && connection.connection.keeps_composed();
        let kept = match may_repeat && !stays {
            true => connection.connection.composed().ok().map(ToOwned::to_owned),
            false => None,
        };
        let exchanging = session.begin_exchange();
        let mut outcome = self.exchange(operation, &mut connection, sequence).await;
        if may_repeat && outcome.as_ref().is_ok_and(|reply| wants_login(reply)) {
            // Rare, and large: no other operation carries its future.
            let again = Box::pin(self.exchange_again(operation, &mut connection, kept, sequence));
            outcome = again.await.unwrap_or(outcome);
        }
        exchanging.ended();
        let reply = outcome.as_ref().ok().filter(|_| under_way.is_told()).cloned();
        let sent = sequence.map_or(0, |(_, documents)| documents.len());
        let result = match outcome {
            Ok(reply) => self.judge(&connection, session, selected.server().address(), reply, sent),
            Err(kind) => {
                self.report(&connection, &kind);
                Err(Error::new(*kind))
            }
        };
        under_way.end(reply, &result);
        // A query that failed may be sent again, to another service.
        let opens = !matches!(operation.target, Target::Server(_));
        if let Some(pin) = operation.pin.filter(|_| result.is_ok() || !opens) {
            pin.keep(connection);
        }
        result
    }

    fn no_connection(&self, error: CheckOutError<EstablishError>) -> Error {
        Error::new(match error {
            CheckOutError::PoolClosed { .. } if self.discovery.is_closed() => ErrorKind::Closed,
            error => ErrorKind::CheckOut(error),
        })
    }

    /// The command with what every command carries.
    fn compose(
        &self,
        attempt: Attempt<'_>,
        connection: &mut PooledConnection<ServerEstablisher>,
        session: &mut SessionInUse<'_>,
        attempts: &mut OperationLoop<Error>,
    ) -> Result<(), Error> {
        let Attempt { operation, selected, .. } = attempt;
        let now = connection.since();
        let command = match operation.role {
            Role::Ending => Cow::Owned(session.ending(operation.deadline.is_some())),
            Role::Statement | Role::Beside => Cow::Borrowed(&*operation.body),
        };
        connection.connection.compose(&command, |body| {
            self.add_fields(operation, selected, now, session, attempts, body)
        })
    }

    /// What every command carries.
    fn add_fields(
        &self,
        operation: &Operation<'_>,
        selected: &Selected,
        now: MonotonicTime,
        session: &mut SessionInUse<'_>,
        attempts: &mut OperationLoop<Error>,
        body: &mut BodyWriter<'_>,
    ) -> Result<(), Error> {
        let topology_type = selected.description().topology_type();
        let usage = SessionUse {
            role: operation.role,
            acknowledged: operation.acknowledged,
            now,
            lifetime: session_lifetime(selected.description()),
            load_balanced: topology_type == TopologyType::LoadBalanced,
            router: (topology_type == TopologyType::Sharded).then(|| selected.server().address()),
            max_wire_version: selected.server().wire_versions().max,
            read_concern: operation.read_concern,
            continues_cursor: matches!(operation.target, Target::Server(_)),
        };
        session.add_to(attempts, body, &usage, &self.sessions)?;
        self.cluster_time.append_to(body);
        let preference = match &operation.target {
            Target::Write => None,
            Target::Read(preference) | Target::WritingPipeline(preference) => {
                Some(Some(preference))
            }
            Target::Server(_) => Some(None),
        };
        if let Some(preference) = preference {
            let server_type = selected.server().server_type();
            add_read_preference(body, topology_type, server_type, preference);
        }
        if let Some(deadline) = operation.deadline.filter(|_| operation.tells_deadline)
            && !body.has("maxTimeMS")
        {
            let millis = deadline.max_time_ms(selected.server().min_round_trip_time())?;
            body.append(cstr!("maxTimeMS"), millis);
        }
        if let Some(api) = &self.options.server_api {
            api.append_to(body);
        }
        body.append(cstr!("$db"), operation.database);
        Ok(())
    }

    /// Reads what a reply says went wrong, and tells discovery.
    fn judge(
        &self,
        connection: &PooledConnection<ServerEstablisher>,
        session: &SessionInUse<'_>,
        server: &ServerAddress,
        reply: RawDocumentBuf,
        sent: usize,
    ) -> Result<Reply, Error> {
        self.learn(session, &reply);
        let server = server.clone();
        let max_wire_version = connection.facts.hello.wire_versions.max;
        match command_error(&reply) {
            Ok(None) => Ok(Reply { body: reply, server, max_wire_version, sent }),
            Ok(Some(error)) => {
                self.report_command(connection, &error);
                // The caller reads failed writes in the reply.
                if error.ok && error.write_concern_error.is_none() {
                    return Ok(Reply { body: reply, server, max_wire_version, sent });
                }
                let error = Box::new(error);
                Err(Error::new(ErrorKind::Command { address: server, error, reply, sent }))
            }
            Err(error) => {
                let reason = error.to_string();
                Err(Error::new(ErrorKind::Reply { address: server, reason }))
            }
        }
    }

    /// Sends the command that was composed and reads the reply. What went wrong is boxed: it is far larger than a
    /// reply.
    async fn exchange(
        &self,
        operation: &Operation<'_>,
        connection: &mut PooledConnection<ServerEstablisher>,
        sequence: Option<(&CStr, &[RawDocumentBuf])>,
    ) -> Result<RawDocumentBuf, Box<ErrorKind>> {
        let flags = match operation.acknowledged {
            true => MsgFlags::NONE,
            false => MsgFlags::MORE_TO_COME,
        };
        let request = match connection.connection.begin(flags, sequence.as_slice()) {
            Ok(request) => request,
            Err(error) => return Err(failed_exchange(connection, error)),
        };
        let mut waits = false;
        let work = poll_fn(|context| {
            connection.poll_run(&mut waits, context, |server, context| {
                match operation.acknowledged {
                    true => server.connection.poll_round_trip(context),
                    false => server.connection.poll_send(context),
                }
            })
        });
        let outcome = match self.options.socket_timeout {
            None => work.await,
            Some(limit) => match timeout(limit, work).await {
                Ok(outcome) => outcome,
                Err(_) => {
                    let address = connection.address().clone();
                    return Err(Box::new(ErrorKind::SocketTimeout { address, limit }));
                }
            },
        };
        let result = match outcome {
            Ok(Ok(())) if operation.acknowledged => {
                let reply = connection.connection.take_reply(request, false);
                reply.map(|reply| reply.body().to_owned())
            }
            Ok(Ok(())) => {
                connection.connection.end_unacknowledged();
                Ok(rawdoc! { "ok": 1 })
            }
            Ok(Err(error)) => Err(error),
            Err(interrupted) => return Err(Box::new(ErrorKind::Interrupted(interrupted))),
        };
        result.map_err(|error| failed_exchange(connection, error))
    }

    /// The same once more, after another login. `None` if there is no credential.
    async fn exchange_again(
        &self,
        operation: &Operation<'_>,
        connection: &mut PooledConnection<ServerEstablisher>,
        kept: Option<RawDocumentBuf>,
        sequence: Option<(&CStr, &[RawDocumentBuf])>,
    ) -> Option<Result<RawDocumentBuf, Box<ErrorKind>>> {
        // Logging in uses the same connection.
        let body = match kept {
            Some(body) => body,
            None => connection.connection.composed().ok()?.to_owned(),
        };
        match self.log_in_again(connection).await {
            Ok(true) => {
                let Ok(()) = connection.connection.compose(&body, |_| Ok::<_, Infallible>(()));
                Some(self.exchange(operation, connection, sequence).await)
            }
            Ok(false) => None,
            Err(kind) => Some(Err(Box::new(kind))),
        }
    }

    fn learn(&self, session: &SessionInUse<'_>, reply: &RawDocument) {
        session.learn(reply);
        if let Some(time) = find_field(reply, "$clusterTime").and_then(|field| field.document()) {
            self.cluster_time.advance(time);
        }
    }

    /// Tells discovery about a connection that failed.
    fn report(&self, connection: &PooledConnection<ServerEstablisher>, kind: &ErrorKind) {
        let message = kind.to_string();
        let cause = match kind {
            ErrorKind::SocketTimeout { .. } => ApplicationError::NetworkTimeout(message),
            ErrorKind::Connection { cause, .. } if cause.is_network() => {
                ApplicationError::Network(message)
            }
            // A server that talks nonsense is as unreachable as one that hangs up.
            ErrorKind::Connection { .. } => ApplicationError::Network(message),
            _ => return,
        };
        self.tell(connection, cause, false);
    }

    /// Tells discovery about an error in a reply, which may mean that the server has changed.
    fn report_command(
        &self,
        connection: &PooledConnection<ServerEstablisher>,
        error: &CommandError,
    ) {
        let Some(told) = error.of_server() else { return };
        let overloaded = error.has_label(SYSTEM_OVERLOADED_ERROR);
        self.tell(connection, ApplicationError::Command(Box::new(told)), overloaded);
    }

    fn tell(
        &self,
        connection: &PooledConnection<ServerEstablisher>,
        cause: ApplicationError,
        overloaded: bool,
    ) {
        self.discovery.handle(Input::ApplicationFailed {
            server: connection.address().clone(),
            generation: connection.generation(),
            service_id: connection.service_id(),
            handshake: HandshakeProgress::Complete,
            max_wire_version: connection.facts.hello.wire_versions.max,
            overloaded,
            cause,
        });
    }
}

/// Behind a load balancer no hello is read, and every service supports sessions. How long it remembers
/// them is not known, so that none is taken for expired.
const LOAD_BALANCED_SESSION_LIFETIME: Duration = Duration::MAX;

/// How long servers remember sessions; `None` if they know none.
fn session_lifetime(description: &TopologyDescription) -> Option<Duration> {
    if description.topology_type() == TopologyType::LoadBalanced {
        return Some(LOAD_BALANCED_SESSION_LIFETIME);
    }
    let minutes = u64::try_from(description.logical_session_timeout_minutes()?).ok()?;
    Some(Duration::from_secs(minutes.saturating_mul(60)))
}

/// What an exchange that failed on this connection means.
#[cold]
fn failed_exchange(
    connection: &PooledConnection<ServerEstablisher>,
    error: ConnectionError,
) -> Box<ErrorKind> {
    Box::new(match error {
        ConnectionError::Encode(error) => ErrorKind::BadCommand(error.to_string()),
        cause => ErrorKind::Connection { address: connection.address().clone(), cause },
    })
}

/// How many documents of a sequence go beside a body of this length into one message on this connection: at least one,
/// or none if there are none.
fn fitting(
    documents: &[RawDocumentBuf],
    facts: &ConnectionFacts,
    body: usize,
) -> Result<usize, Error> {
    let room = facts.limits.max_message_size.saturating_sub(MESSAGE_MARGIN + body);
    let mut bytes = 0;
    let mut count = 0;
    for document in documents.iter().take(facts.limits.max_write_batch_size.max(1)) {
        bytes += document.as_bytes().len();
        if bytes > room {
            break;
        }
        count += 1;
    }
    if count == 0 && !documents.is_empty() {
        let reason = format!(
            "a document of {bytes} bytes does not fit in a message of {} bytes; split it",
            facts.limits.max_message_size
        );
        return Err(Error::bad_command(reason));
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_protocol::HelloReply;
    use quorate_wire::ConnectionLimits;

    fn facts(max_message_size: usize, max_write_batch_size: usize) -> ConnectionFacts {
        ConnectionFacts {
            hello: HelloReply::default(),
            limits: ConnectionLimits {
                max_message_size,
                max_write_batch_size,
                ..ConnectionLimits::default()
            },
            server_connection_id: None,
            mechanisms: None,
        }
    }

    #[test]
    fn a_message_holds_what_the_connection_allows() {
        let body = rawdoc! { "insert": "c" }.as_bytes().len();
        let documents = vec![rawdoc! { "a": "x".repeat(1000) }; 10];
        assert_eq!(fitting(&documents, &facts(1 << 20, 7), body).unwrap(), 7);
        assert_eq!(fitting(&documents, &facts(1 << 20, 100), body).unwrap(), 10);
        let small = facts(MESSAGE_MARGIN + 3500, 100);
        assert_eq!(fitting(&documents, &small, body).unwrap(), 3);
        assert_eq!(fitting(&[], &small, body).unwrap(), 0);
        let tiny = facts(MESSAGE_MARGIN + 500, 100);
        let error = fitting(&documents, &tiny, body).unwrap_err();
        assert!(error.to_string().contains("does not fit"), "{error}");
    }

    /// "Drivers MUST ignore `logicalSessionTimeoutMinutes` and MUST NOT prune client sessions."
    #[test]
    fn no_session_expires_behind_a_load_balancer() {
        use quorate_server_discovery::{DiscoveryOptions, Topology, TopologyId};
        let mut options = DiscoveryOptions::with_seeds(["a:1".parse().unwrap()]);
        options.load_balanced = true;
        let topology = Topology::new(&options, TopologyId(1), 1, MonotonicTime::ZERO).unwrap();
        let lifetime = session_lifetime(topology.description()).unwrap();
        let pool = crate::session::SessionPool::default();
        let session = pool.take(MonotonicTime::ZERO, lifetime).unwrap();
        let lsid = session.lsid().to_owned();
        pool.put(session);
        let later = MonotonicTime::ZERO + Duration::from_secs(100 * 24 * 60 * 60);
        assert_eq!(pool.take(later, lifetime).unwrap().lsid(), &*lsid);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_is_told_what_is_left_less_the_way() {
        let deadline = Deadline::after(Duration::from_millis(100));
        assert_eq!(deadline.max_time_ms(None).unwrap(), 100);
        assert_eq!(deadline.max_time_ms(Some(Duration::from_millis(30))).unwrap(), 70);
        let error = deadline.max_time_ms(Some(Duration::from_millis(100))).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Timeout(_)), "{error}");
    }
}
