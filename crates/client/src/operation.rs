//! One operation from selection to reply, retries included.
//!
//! Owns the path that every command takes: select a server, check a connection out, add what the
//! session, the read preference and the stable API ask for, send, read, and tell discovery what an
//! error means, before anything is tried again. Follows the retryable reads and retryable writes
//! specifications, which allow one retry unless `timeoutMS` bounds the whole, and the client
//! back-pressure specification, which sends anything again that an overloaded server turned away.

use std::sync::Arc;
use std::time::Duration;

use bson::raw::{CStr, RawArrayBuf, RawDocument, RawDocumentBuf, cstr};
use bson::rawdoc;
use quorate_client_session::TransactionError;
use quorate_protocol::{ReadPreference, ReadPreferenceMode, ServerAddress};
use quorate_server_discovery::{
    ApplicationError, CommandError as DiscoveryCommandError, HandshakeProgress, Input,
    ReadPreferenceArgument, ServerDescription, ServerType, TopologyDescription, TopologyType,
    read_preference_for_op_msg,
};
use quorate_wire::{CommandError, command_error};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tracing::Instrument;

use crate::client::Inner;
use crate::command_event::{OperationId, UnderWay};
use crate::connection::{ConnectionError, Request};
use crate::discovery::ServerHandle;
use crate::error::{Error, ErrorKind, NO_WRITES_PERFORMED, SYSTEM_OVERLOADED_ERROR};
use crate::establish::ServerEstablisher;
use crate::handshake::ConnectionFacts;
use crate::logging;
use crate::pool::{CheckOutError, PooledConnection};
use crate::reauthentication::wants_login;
use crate::session::Session;
use crate::transaction;

/// How often an operation is sent again, unless `timeoutMS` says how long.
const MAX_RETRIES: u32 = 1;

/// How often an operation is sent again within `timeoutMS`. The specification has no bound; nothing
/// that fails this often will succeed.
const MAX_RETRIES_WITHIN_TIMEOUT: u32 = 100;

/// `BASE_BACKOFF` and `MAX_BACKOFF` of the client back-pressure specification.
const BASE_BACKOFF: Duration = Duration::from_millis(100);
const MAX_BACKOFF: Duration = Duration::from_secs(10);

/// Room in a message for its header and what is added to the command on its way.
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

/// Whether an operation may be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retry {
    Never,
    Read,
    Write,
}

impl Retry {
    /// Whether an error is worth another attempt.
    fn admits(self, error: &Error) -> bool {
        match self {
            Self::Never => false,
            Self::Read => error.is_retryable_read(),
            Self::Write => error.is_retryable_write(),
        }
    }
}

/// What an operation is to the transaction of its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Part of it, if one is open.
    Statement,
    /// Its commit or abort.
    Ending,
    /// Neither: it tidies up.
    Beside,
}

/// What kind of command it is: `retryReads` and `retryWrites` decide whether it is sent again to an
/// overloaded server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Read,
    Write,
    /// Not known: the application's own command.
    Any,
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

    /// `maxTimeMS` for a command that is sent now: what is left, less the time on the wire.
    pub(crate) fn max_time_ms(self, round_trip: Option<Duration>) -> Result<i64, Error> {
        let left = self.at.saturating_duration_since(Instant::now());
        let left = left.saturating_sub(round_trip.unwrap_or_default());
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
    pub(crate) body: RawDocumentBuf,
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
    /// Whether the server is told the deadline.
    pub(crate) tells_deadline: bool,
    /// What the logs call it; a number of its own if absent.
    pub(crate) id: Option<OperationId>,
}

impl<'a> Operation<'a> {
    /// A command for the primary, sent once as it is.
    pub(crate) fn new(database: &'a str, body: RawDocumentBuf) -> Self {
        Self {
            purpose: Purpose::Any,
            database,
            body,
            sequence: None,
            target: Target::Read(ReadPreference::PRIMARY),
            retry: Retry::Never,
            role: Role::Statement,
            read_concern: None,
            acknowledged: true,
            deadline: None,
            tells_deadline: true,
            id: None,
        }
    }

    /// The name of the command.
    pub(crate) fn name(&self) -> &str {
        let first = self.body.iter_elements().next().and_then(Result::ok);
        first.map(|element| element.key().as_str()).unwrap_or_default()
    }
}

/// A reply and who sent it.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) body: RawDocumentBuf,
    pub(crate) server: ServerAddress,
    /// How many documents of the sequence it answers.
    pub(crate) sent: usize,
}

pub(crate) struct Selected {
    pub(crate) description: Arc<TopologyDescription>,
    pub(crate) server: Arc<ServerDescription>,
    pub(crate) handle: Arc<ServerHandle>,
}

/// What must stay the same when an operation is sent again.
#[derive(Default)]
struct Repeated {
    transaction_number: Option<i64>,
    /// How many documents of the sequence were sent.
    sent: Option<usize>,
    /// Whether the last attempt was the first command of a transaction.
    first: bool,
}

impl Inner {
    /// Runs an operation, in a session of its own if it was given none.
    pub(crate) async fn execute(
        &self,
        operation: &Operation<'_>,
        session: Option<&Session>,
    ) -> Result<Reply, Error> {
        if session.is_some() && !operation.acknowledged {
            let reason = "an unacknowledged write cannot be part of a session".to_owned();
            return Err(Error::new(ErrorKind::BadCommand(reason)));
        }
        let own;
        let session = match session {
            Some(session) => session,
            None => {
                own = Session::implicit(Arc::clone(&self.sessions));
                &own
            }
        };
        self.admit(operation, session)?;
        let attempts = self.attempt(operation, session).instrument(logging::span(operation));
        let outcome = match operation.deadline {
            None => attempts.await,
            Some(deadline) => match timeout_at(deadline.at, attempts).await {
                Ok(result) => result,
                Err(_) => Err(deadline.error()),
            },
        };
        outcome.map_err(|error| transaction::label(session, operation.role, error))
    }

    /// Whether an operation may run in this session now.
    fn admit(&self, operation: &Operation<'_>, session: &Session) -> Result<(), Error> {
        if !session.belongs_to(&self.sessions) {
            let reason = "the session was started on another client".to_owned();
            return Err(Error::new(ErrorKind::BadCommand(reason)));
        }
        if operation.role != Role::Statement {
            return Ok(());
        }
        let mut state = session.lock();
        state.transaction.begin_operation();
        if !state.transaction.is_open() {
            return Ok(());
        }
        if let Target::Read(preference) | Target::WritingPipeline(preference) = &operation.target {
            state.transaction.check_read()?;
            if preference.mode != ReadPreferenceMode::Primary {
                return Err(TransactionError::ReadPreference.into());
            }
        }
        if !matches!(operation.body.get("readConcern"), Ok(None)) {
            return Err(TransactionError::ReadConcern.into());
        }
        Ok(())
    }

    async fn attempt(&self, operation: &Operation<'_>, session: &Session) -> Result<Reply, Error> {
        let id = operation.id.unwrap_or_else(|| self.next_operation_id());
        let mut deprioritized: Vec<ServerAddress> = Vec::new();
        let mut repeated = Repeated::default();
        let mut retries = 0;
        let mut allowed = match operation.deadline {
            None => MAX_RETRIES,
            Some(_) => MAX_RETRIES_WITHIN_TIMEOUT,
        };
        let mut worst: Option<Error> = None;
        loop {
            let pinned = self.pinned(operation, session);
            let selected = match self.select(operation, id, &deprioritized, pinned).await {
                Ok(selected) => selected,
                // What went wrong first tells more than that nothing was found afterwards.
                Err(error) => return Err(worst.unwrap_or(error)),
            };
            let may_retry = self.may_retry(operation, session, &selected);
            let outcome =
                self.once(operation, id, session, &selected, may_retry, &mut repeated).await;
            let mut error = match outcome {
                Ok(reply) => return Ok(reply),
                Err(error) => error,
            };
            if error.is_network() {
                session.mark_dirty();
            }
            if operation.retry == Retry::Write && may_retry {
                error.label_for_retryable_write(selected.server.wire_versions().max);
            }
            let overload = error.has_label(SYSTEM_OVERLOADED_ERROR);
            if operation.role == Role::Ending {
                ending_failed(session, overload && error.is_retryable_overload());
            }
            let retryable = (overload && self.may_retry_overload(operation, &error))
                || (may_retry && operation.retry.admits(&error));
            if overload {
                allowed = self.options.max_adaptive_retries;
            }
            retries += 1;
            let pause = overload.then(|| self.backoff(retries, error.base_backoff()));
            // An attempt that did nothing says nothing about the one before, which may have.
            let error = match worst {
                Some(earlier) if error.has_label(NO_WRITES_PERFORMED) => earlier,
                _ => error,
            };
            if !retryable || retries > allowed {
                return Err(error);
            }
            if !overload || self.options.enable_overload_retargeting {
                deprioritized.push(selected.server.address().clone());
            }
            if let Some(pause) = pause {
                if operation.deadline.is_some_and(|end| Instant::now() + pause >= end.at) {
                    return Err(error);
                }
                sleep(pause).await;
            }
            if overload && repeated.first {
                session.lock().transaction.first_turned_away();
            }
            self.discovery.counters().command_retried();
            worst = Some(error);
        }
    }

    /// Whether an operation that an overloaded server turned away may be sent again.
    fn may_retry_overload(&self, operation: &Operation<'_>, error: &Error) -> bool {
        let options = &self.options;
        error.is_retryable_overload()
            && match operation.purpose {
                _ if operation.role == Role::Ending => true,
                Purpose::Read => options.retry_reads,
                Purpose::Write => options.retry_writes,
                Purpose::Any => options.retry_reads && options.retry_writes,
            }
    }

    /// A random part of a time that doubles with every retry.
    fn backoff(&self, retries: u32, base: Option<Duration>) -> Duration {
        let full = base.unwrap_or(BASE_BACKOFF).saturating_mul(1 << retries.min(16));
        full.min(MAX_BACKOFF).mul_f64(self.random_fraction())
    }

    /// The router that the session's transaction runs on.
    fn pinned(&self, operation: &Operation<'_>, session: &Session) -> Option<ServerAddress> {
        match operation.role {
            Role::Beside => None,
            Role::Statement | Role::Ending => session.lock().transaction.pinned().cloned(),
        }
    }

    fn may_retry(&self, operation: &Operation<'_>, session: &Session, selected: &Selected) -> bool {
        match operation.retry {
            Retry::Never => false,
            // Commits and aborts are retried whatever `retryWrites` says.
            _ if operation.role == Role::Ending => true,
            // Nothing else in a transaction is, except for what an overloaded server turned away.
            _ if operation.role == Role::Statement && session.in_transaction() => false,
            Retry::Read => self.options.retry_reads,
            Retry::Write => {
                self.options.retry_writes
                    && operation.acknowledged
                    && selected.server.server_type() != ServerType::Standalone
                    && self.session_lifetime(&selected.description).is_some()
            }
        }
    }

    async fn once(
        &self,
        operation: &Operation<'_>,
        id: OperationId,
        session: &Session,
        selected: &Selected,
        retries: bool,
        repeated: &mut Repeated,
    ) -> Result<Reply, Error> {
        let _running = selected.handle.begin_operation();
        let mut connection = selected.handle.pool().check_out().await.map_err(|error| {
            Error::new(match error {
                CheckOutError::PoolClosed { .. } if self.discovery.is_closed() => ErrorKind::Closed,
                error => ErrorKind::CheckOut(error),
            })
        })?;
        let mut body = match operation.role {
            Role::Ending => session.lock().transaction.ending(operation.deadline.is_some()),
            Role::Statement | Role::Beside => roomy(&operation.body),
        };
        let place = self.add_session(operation, session, selected, &mut body)?;
        repeated.first = place == Some(true);
        if retries && operation.retry == Retry::Write && operation.role == Role::Statement {
            if repeated.transaction_number.is_none() {
                repeated.transaction_number = session.next_transaction_number();
            }
            if let Some(number) = repeated.transaction_number {
                body.append(cstr!("txnNumber"), number);
            }
        }
        add_read_preference(operation, selected, &mut body);
        if let Some(deadline) = operation.deadline.filter(|_| operation.tells_deadline)
            && matches!(body.get("maxTimeMS"), Ok(None))
        {
            let millis = deadline.max_time_ms(selected.server.min_round_trip_time())?;
            body.append(cstr!("maxTimeMS"), millis);
        }
        if let Some(api) = &self.options.server_api {
            api.append_to(&mut body);
        }
        body.append(cstr!("$db"), operation.database);
        let sequence = match operation.sequence {
            Some((name, documents)) => {
                let sent = match repeated.sent {
                    Some(sent) => sent,
                    None => fitting(documents, &connection.facts, &body)?,
                };
                repeated.sent = Some(sent);
                Some((name, &documents[..sent]))
            }
            None => None,
        };
        let under_way = UnderWay::begin(self, operation, id, &connection, &body, sequence);
        let mut outcome = self.exchange(operation, &mut connection, &body, sequence).await;
        if outcome.as_ref().is_ok_and(|reply| wants_login(reply)) {
            match self.log_in_again(&mut connection).await {
                Ok(true) => {
                    outcome = self.exchange(operation, &mut connection, &body, sequence).await;
                }
                Ok(false) => {}
                Err(kind) => outcome = Err(kind),
            }
        }
        let reply = outcome.as_ref().ok().filter(|_| under_way.is_told()).cloned();
        let sent = sequence.map_or(0, |(_, documents)| documents.len());
        let result = match outcome {
            Ok(reply) => self.judge(&connection, session, selected.server.address(), reply, sent),
            Err(kind) => {
                self.report(&connection, &kind);
                Err(Error::new(kind))
            }
        };
        under_way.end(reply, &result);
        result
    }

    /// Reads what a reply says went wrong, and tells discovery.
    fn judge(
        &self,
        connection: &PooledConnection<ServerEstablisher>,
        session: &Session,
        server: &ServerAddress,
        reply: RawDocumentBuf,
        sent: usize,
    ) -> Result<Reply, Error> {
        self.learn(session, &reply);
        let server = server.clone();
        match command_error(&reply) {
            Ok(None) => Ok(Reply { body: reply, server, sent }),
            Ok(Some(error)) => {
                self.report_command(connection, &error);
                // Failed writes are in the reply; who asked for them reads them there.
                if error.ok && error.write_concern_error.is_none() {
                    return Ok(Reply { body: reply, server, sent });
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

    async fn exchange(
        &self,
        operation: &Operation<'_>,
        connection: &mut PooledConnection<ServerEstablisher>,
        body: &RawDocument,
        sequence: Option<(&CStr, &[RawDocumentBuf])>,
    ) -> Result<RawDocumentBuf, ErrorKind> {
        let sequences: &[_] = sequence.as_slice();
        let request = Request { sequences, ..Request::new(body) };
        let address = connection.address().clone();
        let work = connection.run(async |server| {
            if operation.acknowledged {
                let reply = server.connection.round_trip(request).await?;
                Ok(reply.body().to_owned())
            } else {
                server.connection.send_unacknowledged(request).await?;
                Ok::<_, ConnectionError>(rawdoc! { "ok": 1 })
            }
        });
        let outcome = match self.options.socket_timeout {
            None => work.await,
            Some(limit) => match timeout(limit, work).await {
                Ok(outcome) => outcome,
                Err(_) => return Err(ErrorKind::SocketTimeout { address, limit }),
            },
        };
        match outcome {
            Err(interrupted) => Err(ErrorKind::Interrupted(interrupted)),
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(ConnectionError::Encode(error))) => {
                Err(ErrorKind::BadCommand(error.to_string()))
            }
            Ok(Err(cause)) => Err(ErrorKind::Connection { address, cause }),
        }
    }

    /// Adds what the session asks for. `Some` says that the command is part of a transaction, and
    /// whether it is its first.
    fn add_session(
        &self,
        operation: &Operation<'_>,
        session: &Session,
        selected: &Selected,
        body: &mut RawDocumentBuf,
    ) -> Result<Option<bool>, Error> {
        let own_lsid = matches!(operation.body.get("lsid"), Ok(Some(_)));
        let mut known = own_lsid;
        if operation.acknowledged
            && !own_lsid
            && let Some(lifetime) = self.session_lifetime(&selected.description)
        {
            known = session.add_lsid(self.discovery.clock().now(), lifetime, body);
        }
        let mut place = None;
        if operation.role == Role::Statement && session.in_transaction() {
            self.check_transaction(selected, known)?;
            place = session.add_statement(body);
            if selected.description.topology_type() == TopologyType::Sharded {
                session.lock().transaction.pin(selected.server.address().clone());
            }
        } else if operation.role == Role::Statement {
            add_read_concern(operation, session, selected, body)?;
        }
        self.cluster_time.append_to(body);
        Ok(place)
    }

    /// Whether the selected server can run a transaction for us.
    fn check_transaction(&self, selected: &Selected, has_session: bool) -> Result<(), Error> {
        if selected.description.topology_type() == TopologyType::LoadBalanced {
            return Err(TransactionError::LoadBalanced.into());
        }
        match has_session {
            true => Ok(()),
            false => Err(TransactionError::NoSessions.into()),
        }
    }

    /// How long servers remember sessions; `None` if they know none.
    fn session_lifetime(&self, description: &TopologyDescription) -> Option<Duration> {
        if description.topology_type() == TopologyType::LoadBalanced {
            return Some(LOAD_BALANCED_SESSION_LIFETIME);
        }
        let minutes = u64::try_from(description.logical_session_timeout_minutes()?).ok()?;
        Some(Duration::from_secs(minutes.saturating_mul(60)))
    }

    fn learn(&self, session: &Session, reply: &RawDocument) {
        session.learn(reply);
        if let Ok(time) = reply.get_document("$clusterTime") {
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
        let topology_version = error.topology_version;
        let told = match (&error.write_concern_error, error.ok) {
            (Some(concern), true) => DiscoveryCommandError {
                code: concern.code,
                message: concern.message.clone(),
                topology_version,
            },
            (None, true) => return,
            (_, false) => DiscoveryCommandError {
                code: error.code,
                message: error.message.clone(),
                topology_version,
            },
        };
        let overloaded = error.has_label(SYSTEM_OVERLOADED_ERROR);
        self.tell(connection, ApplicationError::Command(told), overloaded);
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

/// Behind a load balancer no hello is read, and every service supports sessions.
const LOAD_BALANCED_SESSION_LIFETIME: Duration = Duration::from_secs(30 * 60);

/// What is added to a command on its way, as a rule: session, cluster time, read preference, `$db`.
const ADDED_BYTES: usize = 256;

/// A copy of a command with room for what is added to it, so that it does not move as it grows.
fn roomy(body: &RawDocument) -> RawDocumentBuf {
    let mut bytes = Vec::with_capacity(body.as_bytes().len() + ADDED_BYTES);
    bytes.extend_from_slice(body.as_bytes());
    RawDocumentBuf::from_bytes(bytes).unwrap_or_else(|_| body.to_owned())
}

/// An attempt to commit or abort failed: the next may go to another router, and a commit that the
/// server may have begun asks for a majority.
fn ending_failed(session: &Session, turned_away: bool) {
    let mut state = session.lock();
    if !turned_away {
        state.transaction.commit_failed();
    }
    state.transaction.unpin();
}

/// `readConcern` of a command outside of transactions: the operation's level, and what the session
/// wants to have seen.
fn add_read_concern(
    operation: &Operation<'_>,
    session: &Session,
    selected: &Selected,
    body: &mut RawDocumentBuf,
) -> Result<(), Error> {
    if matches!(operation.body.get("readConcern"), Ok(Some(_))) {
        return Ok(());
    }
    // A cursor goes on in the snapshot that it was opened in.
    let goes_on = matches!(operation.target, Target::Server(_));
    if let Some(snapshot) = session.lock().snapshot.as_ref().filter(|_| !goes_on) {
        let concern = snapshot
            .read_concern(selected.server.wire_versions().max)
            .map_err(|error| Error::new(ErrorKind::BadCommand(error.to_string())))?;
        body.append(cstr!("readConcern"), concern);
        return Ok(());
    }
    let Some(level) = operation.read_concern else { return Ok(()) };
    let mut concern = RawDocumentBuf::new();
    if !level.is_empty() {
        concern.append(cstr!("level"), level);
    }
    if let Some(time) = session.after_cluster_time() {
        concern.append(cstr!("afterClusterTime"), time);
    }
    if !concern.is_empty() {
        body.append(cstr!("readConcern"), concern);
    }
    Ok(())
}

fn add_read_preference(operation: &Operation<'_>, selected: &Selected, body: &mut RawDocumentBuf) {
    // A command that brings its own keeps it: servers refuse a field that comes twice.
    if matches!(body.get("$readPreference"), Ok(Some(_))) {
        return;
    }
    let preference = match &operation.target {
        Target::Write => return,
        Target::Read(preference) | Target::WritingPipeline(preference) => Some(preference),
        Target::Server(_) => None,
    };
    if let Some(argument) = read_preference_for_op_msg(
        selected.description.topology_type(),
        selected.server.server_type(),
        preference,
    ) {
        body.append(cstr!("$readPreference"), read_preference_document(&argument));
    }
}

/// How many documents of a sequence go into one message on this connection: at least one, or none
/// if there are none.
fn fitting(
    documents: &[RawDocumentBuf],
    facts: &ConnectionFacts,
    body: &RawDocument,
) -> Result<usize, Error> {
    let room = facts.max_message_size.saturating_sub(MESSAGE_MARGIN + body.as_bytes().len());
    let mut bytes = 0;
    let mut count = 0;
    for document in documents.iter().take(facts.max_write_batch_size.max(1)) {
        bytes += document.as_bytes().len();
        if bytes > room {
            break;
        }
        count += 1;
    }
    if count == 0 && !documents.is_empty() {
        let reason = format!(
            "a document of {bytes} bytes does not fit in a message of {} bytes; split it",
            facts.max_message_size
        );
        return Err(Error::new(ErrorKind::BadCommand(reason)));
    }
    Ok(count)
}

fn read_preference_document(argument: &ReadPreferenceArgument<'_>) -> RawDocumentBuf {
    let mut document = rawdoc! { "mode": argument.mode.name() };
    if !argument.tags.is_empty() {
        let sets = argument.tags.iter().map(|tags| {
            let mut set = RawDocumentBuf::new();
            for (name, value) in tags.iter() {
                if let Ok(name) = <&CStr>::try_from(name) {
                    set.append(name, value);
                }
            }
            set
        });
        document.append(cstr!("tags"), RawArrayBuf::from_iter(sets));
    }
    if let Some(seconds) = argument.max_staleness_seconds {
        document.append(cstr!("maxStalenessSeconds"), i64::try_from(seconds).unwrap_or(i64::MAX));
    }
    if let Some(enabled) = argument.hedge {
        document.append(cstr!("hedge"), rawdoc! { "enabled": enabled });
    }
    document
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_protocol::HelloReply;

    fn facts(max_message_size: usize, max_write_batch_size: usize) -> ConnectionFacts {
        ConnectionFacts {
            hello: HelloReply::default(),
            max_bson_object_size: 16 << 20,
            max_message_size,
            max_write_batch_size,
            server_connection_id: None,
            mechanisms: None,
        }
    }

    #[test]
    fn a_message_holds_what_the_connection_allows() {
        let body = rawdoc! { "insert": "c" };
        let documents = vec![rawdoc! { "a": "x".repeat(1000) }; 10];
        assert_eq!(fitting(&documents, &facts(1 << 20, 7), &body).unwrap(), 7);
        assert_eq!(fitting(&documents, &facts(1 << 20, 100), &body).unwrap(), 10);
        let small = facts(MESSAGE_MARGIN + 3500, 100);
        assert_eq!(fitting(&documents, &small, &body).unwrap(), 3);
        assert_eq!(fitting(&[], &small, &body).unwrap(), 0);
        let tiny = facts(MESSAGE_MARGIN + 500, 100);
        let error = fitting(&documents, &tiny, &body).unwrap_err();
        assert!(error.to_string().contains("does not fit"), "{error}");
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
