//! One operation from selection to reply, with at most one retry.
//!
//! Owns the path that every command takes: select a server, check a connection out, add what the
//! session, the read preference and the stable API ask for, send, read, and tell discovery what an
//! error means, before anything is tried again. Follows the retryable reads and retryable writes
//! specifications; both allow one retry, unless `timeoutMS` bounds the whole.

use std::sync::Arc;
use std::time::Duration;

use bson::raw::{CStr, RawArrayBuf, RawDocument, RawDocumentBuf, cstr};
use bson::rawdoc;
use quorate_protocol::{ReadPreference, ServerAddress};
use quorate_server_discovery::{
    ApplicationError, CommandError as DiscoveryCommandError, HandshakeProgress, Input,
    ReadPreferenceArgument, SelectionFailure, SelectionRequest, ServerDescription, ServerType,
    TopologyDescription, TopologyType, read_preference_for_op_msg,
};
use quorate_wire::{CommandError, command_error};
use tokio::time::{Instant, timeout, timeout_at};

use crate::client::Inner;
use crate::command_event::{CommandEvent, CommandEventKind, is_sensitive, told_command};
use crate::connection::{ConnectionError, Request};
use crate::discovery::ServerHandle;
use crate::error::{Error, ErrorKind, SYSTEM_OVERLOADED_ERROR};
use crate::establish::ServerEstablisher;
use crate::pool::{CheckOutError, PooledConnection};
use crate::session::Session;

/// How often an operation is sent at most.
const MAX_ATTEMPTS: usize = 2;

/// Where an operation goes.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    /// A server that takes writes.
    Write,
    /// A server that this read preference admits.
    Read(ReadPreference),
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

/// A command and how to run it.
#[derive(Debug)]
pub(crate) struct Operation<'a> {
    pub(crate) database: &'a str,
    /// The command, its name first, without what this module adds.
    pub(crate) body: RawDocumentBuf,
    /// An argument sent beside the body.
    pub(crate) sequence: Option<(&'a CStr, &'a [RawDocumentBuf])>,
    pub(crate) target: Target,
    pub(crate) retry: Retry,
    /// Whether the command is ours to add read concerns to.
    pub(crate) read_concern: Option<&'a str>,
    /// Whether a reply is wanted.
    pub(crate) acknowledged: bool,
}

/// A reply and who sent it.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) body: RawDocumentBuf,
    pub(crate) server: ServerAddress,
}

struct Selected {
    description: Arc<TopologyDescription>,
    server: Arc<ServerDescription>,
    handle: Arc<ServerHandle>,
}

impl Inner {
    /// Runs an operation, in a session of its own if it was given none.
    pub(crate) async fn execute(
        &self,
        operation: &Operation<'_>,
        session: Option<&mut Session>,
    ) -> Result<Reply, Error> {
        let mut own;
        let session = match session {
            Some(session) => session,
            None => {
                own = Session::new(Arc::clone(&self.sessions), false);
                &mut own
            }
        };
        let attempts = self.attempt(operation, session);
        match self.options.timeout {
            None => attempts.await,
            Some(limit) => match timeout(limit, attempts).await {
                Ok(result) => result,
                Err(_) => Err(Error::new(ErrorKind::Timeout(limit))),
            },
        }
    }

    async fn attempt(
        &self,
        operation: &Operation<'_>,
        session: &mut Session,
    ) -> Result<Reply, Error> {
        let mut failed: Vec<ServerAddress> = Vec::new();
        let mut transaction_number = None;
        let mut first_error: Option<Error> = None;
        loop {
            let selected = match self.select(operation, &failed).await {
                Ok(selected) => selected,
                // What went wrong first tells more than that nothing was found afterwards.
                Err(error) => return Err(first_error.unwrap_or(error)),
            };
            let retries = self.may_retry(operation, &selected);
            let address = selected.server.address().clone();
            let outcome =
                self.once(operation, session, &selected, retries, &mut transaction_number).await;
            let mut error = match outcome {
                Ok(reply) => return Ok(reply),
                Err(error) => error,
            };
            if error.is_network() {
                session.mark_dirty();
            }
            if operation.retry == Retry::Write && retries {
                error.label_for_retryable_write(selected.server.wire_versions().max);
            }
            let retryable = retries
                && match operation.retry {
                    Retry::Never => false,
                    Retry::Read => error.is_retryable_read(),
                    Retry::Write => error.is_retryable_write(),
                };
            failed.push(address);
            if !retryable || failed.len() >= MAX_ATTEMPTS {
                return Err(error);
            }
            first_error = Some(error);
        }
    }

    fn may_retry(&self, operation: &Operation<'_>, selected: &Selected) -> bool {
        match operation.retry {
            Retry::Never => false,
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
        session: &mut Session,
        selected: &Selected,
        retries: bool,
        transaction_number: &mut Option<i64>,
    ) -> Result<Reply, Error> {
        let _running = selected.handle.begin_operation();
        let mut connection = selected.handle.pool().check_out().await.map_err(|error| {
            Error::new(match error {
                CheckOutError::PoolClosed { .. } if self.discovery.is_closed() => ErrorKind::Closed,
                error => ErrorKind::CheckOut(error),
            })
        })?;
        let mut body = operation.body.clone();
        self.add_session(operation, session, selected, &mut body);
        if retries && operation.retry == Retry::Write {
            if transaction_number.is_none() {
                *transaction_number = session.next_transaction_number();
            }
            if let Some(number) = *transaction_number {
                body.append(cstr!("txnNumber"), number);
            }
        }
        let preference = match &operation.target {
            Target::Read(preference) => Some(preference),
            Target::Write | Target::Server(_) => None,
        };
        if !matches!(operation.target, Target::Write)
            && let Some(argument) = read_preference_for_op_msg(
                selected.description.topology_type(),
                selected.server.server_type(),
                preference,
            )
        {
            body.append(cstr!("$readPreference"), read_preference_document(&argument));
        }
        if let Some(api) = &self.options.server_api {
            api.append_to(&mut body);
        }
        body.append(cstr!("$db"), operation.database);
        let told = Told::begin(self, operation, &connection, &body);
        let outcome = self.exchange(operation, &mut connection, &body).await;
        let reply = outcome.as_ref().ok().filter(|_| told.is_some()).cloned();
        let result = match outcome {
            Ok(reply) => self.judge(&connection, session, selected.server.address(), reply),
            Err(kind) => {
                self.report(&connection, &kind);
                Err(Error::new(kind))
            }
        };
        if let Some(told) = told {
            told.end(self, reply, &result);
        }
        result
    }

    /// Reads what a reply says went wrong, and tells discovery.
    fn judge(
        &self,
        connection: &PooledConnection<ServerEstablisher>,
        session: &mut Session,
        server: &ServerAddress,
        reply: RawDocumentBuf,
    ) -> Result<Reply, Error> {
        self.learn(session, &reply);
        let server = server.clone();
        match command_error(&reply) {
            Ok(None) => Ok(Reply { body: reply, server }),
            Ok(Some(error)) => {
                self.report_command(connection, &error);
                // Failed writes are in the reply; who asked for them reads them there.
                if error.ok && error.write_concern_error.is_none() {
                    return Ok(Reply { body: reply, server });
                }
                Err(Error::new(ErrorKind::Command { address: server, error: Box::new(error) }))
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
    ) -> Result<RawDocumentBuf, ErrorKind> {
        let sequences: &[_] = operation.sequence.as_slice();
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

    fn add_session(
        &self,
        operation: &Operation<'_>,
        session: &mut Session,
        selected: &Selected,
        body: &mut RawDocumentBuf,
    ) {
        let after = session.after_cluster_time().filter(|_| {
            operation.read_concern.is_some() || matches!(operation.target, Target::Read(_))
        });
        let ours = !matches!(operation.body.get("readConcern"), Ok(Some(_)));
        if ours
            && (operation.read_concern.is_some_and(|level| !level.is_empty()) || after.is_some())
        {
            let mut concern = RawDocumentBuf::new();
            if let Some(level) = operation.read_concern.filter(|level| !level.is_empty()) {
                concern.append(cstr!("level"), level);
            }
            if let Some(time) = after {
                concern.append(cstr!("afterClusterTime"), time);
            }
            body.append(cstr!("readConcern"), concern);
        }
        let own_lsid = matches!(operation.body.get("lsid"), Ok(Some(_)));
        if operation.acknowledged
            && !own_lsid
            && let Some(lifetime) = self.session_lifetime(&selected.description)
            && let Some(lsid) = session.lsid(self.discovery.clock().now(), lifetime)
        {
            body.append(cstr!("lsid"), lsid);
        }
        if let Some(time) = self.cluster_time.document() {
            body.append(cstr!("$clusterTime"), time);
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

    fn learn(&self, session: &mut Session, reply: &RawDocument) {
        if let Ok(time) = reply.get_timestamp("operationTime") {
            session.advance_operation_time(time);
        }
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

    /// The server that holds a cursor, whatever it is now: nobody else can go on.
    fn find(&self, address: &ServerAddress) -> Result<Selected, Error> {
        let description = self.discovery.description();
        match (description.server(address).cloned(), self.discovery.server(address)) {
            (Some(server), Some(handle)) => Ok(Selected { description, server, handle }),
            _ => Err(Error::new(ErrorKind::ServerGone(address.clone()))),
        }
    }

    /// Selects a server, waiting for one for `serverSelectionTimeoutMS`.
    async fn select(
        &self,
        operation: &Operation<'_>,
        deprioritized: &[ServerAddress],
    ) -> Result<Selected, Error> {
        let request = match &operation.target {
            Target::Write => SelectionRequest { deprioritized, ..SelectionRequest::WRITE },
            Target::Read(preference) => {
                SelectionRequest { deprioritized, ..SelectionRequest::read(preference) }
            }
            Target::Server(address) => return self.find(address),
        };
        let begun = Instant::now();
        let deadline = begun + self.options.server_selection_timeout;
        let mut revisions = None;
        loop {
            let description = self.discovery.description();
            let random = self.random_bits();
            let counts = |address: &ServerAddress| self.discovery.operation_count(address);
            let server = description
                .select(&request, random, counts)
                .map_err(|error| Error::new(ErrorKind::ImpossibleSelection(error)))?
                .cloned();
            if let Some(server) = server
                && let Some(handle) = self.discovery.server(server.address())
            {
                return Ok(Selected { description, server, handle });
            }
            if self.discovery.is_closed() {
                return Err(Error::new(ErrorKind::Closed));
            }
            let Some(revisions) = &mut revisions else {
                // Once more with the subscription in place: nothing is missed in between.
                revisions = Some(self.discovery.subscribe());
                continue;
            };
            self.discovery.handle(Input::CheckWanted);
            if !matches!(timeout_at(deadline, revisions.changed()).await, Ok(Ok(()))) {
                let now = self.discovery.clock().now();
                let failure = SelectionFailure::new(description, &request, now, begun.elapsed());
                return Err(Error::new(ErrorKind::Selection(failure)));
            }
        }
    }
}

/// The events of one command, between the first and the last.
struct Told {
    event: CommandEvent,
    sensitive: bool,
    begun: Instant,
}

impl Told {
    /// Tells that a command is sent; `None` if nobody listens.
    fn begin(
        client: &Inner,
        operation: &Operation<'_>,
        connection: &PooledConnection<ServerEstablisher>,
        body: &RawDocument,
    ) -> Option<Self> {
        if !client.has_listener() {
            return None;
        }
        let first = body.iter_elements().next().and_then(Result::ok);
        let name = first.map(|element| element.key().as_str().to_owned()).unwrap_or_default();
        let command = told_command(&name, body, operation.sequence);
        let event = CommandEvent {
            address: connection.address().clone(),
            connection: connection.id(),
            server_connection_id: connection.facts.server_connection_id,
            service_id: connection.service_id(),
            request_id: client.next_request_id(),
            database: operation.database.to_owned(),
            command_name: name,
            kind: CommandEventKind::Started { command },
        };
        let sensitive = is_sensitive(&event.command_name, body);
        client.tell_listeners(event.clone());
        Some(Self { event, sensitive, begun: Instant::now() })
    }

    /// Tells how the command ended. `ok: 1` is a success, whatever the write concern says.
    fn end(mut self, client: &Inner, reply: Option<RawDocumentBuf>, result: &Result<Reply, Error>) {
        let duration = self.begun.elapsed();
        let failure = result.as_ref().err().filter(|error| match error.kind() {
            ErrorKind::Command { error, .. } => !error.ok,
            _ => true,
        });
        self.event.kind = match failure {
            Some(failure) => CommandEventKind::Failed { duration, failure: failure.clone() },
            None => {
                let reply = reply.filter(|_| !self.sensitive).unwrap_or_default();
                CommandEventKind::Succeeded { duration, reply }
            }
        };
        client.tell_listeners(self.event);
    }
}

/// Behind a load balancer no hello is read, and every service supports sessions.
const LOAD_BALANCED_SESSION_LIFETIME: Duration = Duration::from_secs(30 * 60);

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
