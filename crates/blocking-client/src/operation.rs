//! Commands: to the selected server, with its read preference, and what their errors say.
//!
//! Follows "Application errors" in the Server Discovery And Monitoring specification: the core judges,
//! this file reports. Whether and when a command is sent again is decided by [`OperationLoop`].

use std::sync::Arc;

use bson::raw::{CStr, RawDocument, RawDocumentBuf, cstr};
use bson::rawdoc;
use quorate_client_session::{
    Failure, Next, OperationKind, OperationLoop, Purpose, Retry, RetryRules, Role,
    SYSTEM_OVERLOADED_ERROR, SelectedServer, SessionUse, add_read_preference,
};
use quorate_protocol::{ReadPreference, ServerAddress};
use quorate_server_discovery::{
    ApplicationError, SelectionCriteria, SelectionRequest, TopologyType,
};
use quorate_wire::{AppendSome, command_error};

use crate::client::Client;
use crate::connection::{ConnectionError, Request};
use crate::cursor::Cursor;
use crate::error::OperationError;
use crate::session::new_server_session;

/// A document without elements.
const EMPTY: &[u8] = &[5, 0, 0, 0, 0];

/// A reply, and the server that sent it.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) server: ServerAddress,
    pub(crate) reply: RawDocumentBuf,
}

/// A command, and what it asks of a server.
#[derive(Clone, Copy)]
pub(crate) struct Operation<'a> {
    pub(crate) database: &'a str,
    pub(crate) command: &'a RawDocument,
    pub(crate) sequence: Option<(&'a CStr, &'a [RawDocumentBuf])>,
    pub(crate) criteria: SelectionCriteria<'a>,
    /// Whether it comes after what its session has seen. Reads bring their read concern.
    pub(crate) follows_session: bool,
    /// What retries depend on.
    pub(crate) kind: OperationKind,
}

impl<'a> Operation<'a> {
    /// A read, which is sent again after an error that a failover may explain.
    pub(crate) fn read(
        database: &'a str,
        command: &'a RawDocument,
        preference: &'a ReadPreference,
    ) -> Self {
        Self::new(
            database,
            command,
            SelectionCriteria::Read(preference),
            Purpose::Read,
            Retry::Read,
        )
    }

    /// A write. This client does not number its writes, so that they are sent once, unless an
    /// overloaded server turned them away.
    pub(crate) fn write(database: &'a str, command: &'a RawDocument) -> Self {
        let criteria = SelectionCriteria::Write;
        let operation = Self::new(database, command, criteria, Purpose::Write, Retry::Never);
        Self { follows_session: true, ..operation }
    }

    /// The commit or the abort of the session's transaction. Its command is made for each attempt.
    pub(crate) fn ending() -> Operation<'static> {
        let command = RawDocument::from_bytes(EMPTY).expect("an empty document");
        let criteria = SelectionCriteria::Write;
        let operation = Operation::new("admin", command, criteria, Purpose::Write, Retry::Write);
        Operation { kind: OperationKind { role: Role::Ending, ..operation.kind }, ..operation }
    }

    fn new(
        database: &'a str,
        command: &'a RawDocument,
        criteria: SelectionCriteria<'a>,
        purpose: Purpose,
        retry: Retry,
    ) -> Self {
        let kind = OperationKind { purpose, retry, role: Role::Statement, acknowledged: true };
        Self { database, command, sequence: None, criteria, follows_session: false, kind }
    }
}

impl Client {
    /// Runs a command on a server that suits the read preference; without one, on the primary.
    ///
    /// The reply is returned as it came; `$db` and `$readPreference` are added to the command. It is
    /// sent once, whatever it is, unless an overloaded server turned it away.
    ///
    /// # Errors
    ///
    /// If no server is suitable, the connection fails, or the server answers `ok: 0`.
    pub fn run_command(
        &mut self,
        database: &str,
        command: &RawDocument,
        preference: Option<&ReadPreference>,
    ) -> Result<RawDocumentBuf, OperationError> {
        self.run_once(database, command, preference).map(|answer| answer.reply)
    }

    /// Runs a command whose reply is a cursor, such as `listCollections`. Sent once, like every
    /// command that is not known to be a read.
    ///
    /// # Errors
    ///
    /// As [`run_command`](Self::run_command), and if the reply has no cursor.
    pub fn run_cursor_command(
        &mut self,
        database: &str,
        command: &RawDocument,
        preference: Option<&ReadPreference>,
    ) -> Result<Cursor<'_>, OperationError> {
        let answer = self.run_once(database, command, preference)?;
        Cursor::begin(self, answer, "a cursor command", None)
    }

    /// Asks a server that suits the read preference for a sign of life.
    ///
    /// # Errors
    ///
    /// As [`run_command`](Self::run_command).
    pub fn ping(&mut self, preference: Option<&ReadPreference>) -> Result<(), OperationError> {
        self.run_command("admin", &rawdoc! { "ping": 1 }, preference).map(drop)
    }

    fn run_once(
        &mut self,
        database: &str,
        command: &RawDocument,
        preference: Option<&ReadPreference>,
    ) -> Result<Answer, OperationError> {
        if command.is_empty() || command.get("$db").is_ok_and(|found| found.is_some()) {
            let advice = "a command begins with its name and has no $db; the database is an \
                          argument of its own";
            return Err(OperationError::Misuse(advice.to_owned()));
        }
        let primary = ReadPreference::PRIMARY;
        let preference = preference.unwrap_or(&primary);
        self.check_own_command(command, preference)?;
        let read = Operation::read(database, command, preference);
        let kind = OperationKind { purpose: Purpose::Any, retry: Retry::Never, ..read.kind };
        self.run(Operation { kind, ..read })
    }

    /// Does what the operation loop says, until there is an answer or an error.
    pub(crate) fn run(&mut self, operation: Operation<'_>) -> Result<Answer, OperationError> {
        let mut attempts = OperationLoop::new(operation.kind, self.retry_rules(), None);
        let mut target = None;
        let mut next = Next::Select;
        self.begin_operation(operation.kind.role);
        loop {
            next = match next {
                Next::Select => {
                    let request = SelectionRequest {
                        criteria: operation.criteria,
                        deprioritized: attempts.deprioritized(),
                        ..SelectionRequest::WRITE
                    };
                    match self.server_for(operation.kind.role, &request) {
                        Ok(server) => {
                            let selected = SelectedServer {
                                max_wire_version: self.max_wire_version(&server),
                                takes_retryable_writes: false,
                                is_router: self.topology().topology_type() == TopologyType::Sharded,
                            };
                            let next = attempts.selected(selected, self.active.as_deref());
                            target = Some(server);
                            next
                        }
                        Err(error) => attempts.not_selected(error),
                    }
                }
                Next::Send => {
                    let server = target.as_ref().expect("a server is selected before sending");
                    match self.send(server, operation, &mut attempts) {
                        Ok(answer) => return Ok(answer),
                        Err(error) => {
                            let (now, chance) = (self.now(), self.chance());
                            attempts.failed(server, error, now, chance, self.active.as_deref_mut())
                        }
                    }
                }
                Next::Wait(pause) => {
                    self.clock.sleep(pause);
                    attempts.waited()
                }
                Next::Fail(error) => return Err(self.labelled(operation.kind.role, error)),
            };
        }
    }

    /// Sends a command to the server that holds its cursor, once: the batch that got lost would be
    /// missing.
    pub(crate) fn run_on(
        &mut self,
        server: &ServerAddress,
        operation: Operation<'_>,
    ) -> Result<Answer, OperationError> {
        let mut once = OperationLoop::new(operation.kind, self.retry_rules(), None);
        self.send(server, operation, &mut once).map_err(|error| {
            if let Some(session) = self.active.as_mut().filter(|_| error.is_network()) {
                session.mark_dirty();
            }
            self.labelled(operation.kind.role, error)
        })
    }

    fn retry_rules(&self) -> RetryRules {
        RetryRules {
            reads: self.options.retry_reads,
            writes: self.options.retry_writes,
            max_adaptive_retries: self.options.max_adaptive_retries,
            retarget_overloaded: self.options.enable_overload_retargeting,
        }
    }

    fn max_wire_version(&self, server: &ServerAddress) -> i32 {
        self.connections.get(server).map_or(0, |connection| connection.max_wire_version)
    }

    /// Sends a command to a server whose connection was seen to.
    fn send(
        &mut self,
        server: &ServerAddress,
        operation: Operation<'_>,
        attempts: &mut OperationLoop<OperationError>,
    ) -> Result<Answer, OperationError> {
        let body = self.compose(server, operation, attempts)?;
        let request = Request { body: &body, sequence: operation.sequence };
        let reply = self.exchange(server, request)?;
        self.learn(&reply);
        let failure = match command_error(&reply) {
            Ok(failure) => failure,
            Err(error) => {
                let error = ConnectionError::BadReply(error.to_string());
                return Err(self.exchange_failed(server, error));
            }
        };
        if let Some(error) = failure {
            self.command_failed(server, &error);
            if !error.ok {
                let (server, error) = (server.clone(), Box::new(error));
                return Err(OperationError::Command { server, error });
            }
            if let Some(error) = error.write_concern_error
                && operation.kind.role == Role::Ending
            {
                let (server, error) = (server.clone(), Box::new(error));
                return Err(OperationError::CommitConcern { server, error });
            }
        }
        Ok(Answer { server: server.clone(), reply })
    }

    /// Tells the core about an error in a reply.
    pub(crate) fn command_failed(
        &mut self,
        server: &ServerAddress,
        error: &quorate_wire::CommandError,
    ) {
        let Some(cause) = error.of_server() else { return };
        let overloaded = error.has_label(SYSTEM_OVERLOADED_ERROR);
        let Some(connection) = self.connections.get(server) else { return };
        let (generation, max_wire_version) = (connection.generation, connection.max_wire_version);
        self.tell_failure(
            server,
            generation,
            max_wire_version,
            overloaded,
            ApplicationError::Command(Box::new(cause)),
        );
    }

    /// The command with what every command carries.
    fn compose(
        &mut self,
        server: &ServerAddress,
        operation: Operation<'_>,
        attempts: &mut OperationLoop<OperationError>,
    ) -> Result<RawDocumentBuf, OperationError> {
        let role = operation.kind.role;
        let mut body = match &self.active {
            Some(session) if role == Role::Ending => session.transaction.ending(false),
            _ => operation.command.to_owned(),
        };
        let topology = Arc::clone(self.topology());
        let usage = SessionUse {
            role,
            acknowledged: true,
            now: self.now(),
            lifetime: self.session_lifetime(),
            load_balanced: false,
            router: (topology.topology_type() == TopologyType::Sharded).then_some(server),
            max_wire_version: self.max_wire_version(server),
            read_concern: operation.follows_session.then_some(""),
            continues_cursor: matches!(body.get("getMore"), Ok(Some(_))),
        };
        if let Some(session) = &mut self.active {
            let idle = &mut self.idle_sessions;
            let take =
                |lifetime| idle.take(usage.now, lifetime).or_else(|| new_server_session(usage.now));
            attempts.add_session(&mut body, session, &usage, take)?;
            body.append_some(cstr!("$clusterTime"), self.cluster_time.as_ref());
        }
        body.append(cstr!("$db"), operation.database);
        if let SelectionCriteria::Read(preference) = operation.criteria
            && let Some(description) = topology.server(server)
        {
            let (kind, server_type) = (topology.topology_type(), description.server_type());
            add_read_preference(&mut body, kind, server_type, Some(preference));
        }
        Ok(body)
    }

    fn exchange(
        &mut self,
        server: &ServerAddress,
        request: Request<'_>,
    ) -> Result<RawDocumentBuf, OperationError> {
        self.log_in(server)?;
        let timeout = self.options.socket_timeout;
        let Some(connection) = self.connections.get_mut(server) else {
            return Err(self.unreachable(server.clone()));
        };
        connection
            .round_trip(request, &*self.clock, timeout)
            .map_err(|error| self.exchange_failed(server, error))
    }

    fn exchange_failed(
        &mut self,
        server: &ServerAddress,
        error: ConnectionError,
    ) -> OperationError {
        if error.is_callers_fault() {
            return OperationError::Misuse(error.to_string());
        }
        let message = error.to_string();
        let cause = match error.is_timeout() {
            true => ApplicationError::NetworkTimeout(message),
            // A server that does not keep to the protocol is as good as gone.
            false => ApplicationError::Network(message),
        };
        self.connection_failed(server, cause);
        OperationError::Connection { server: server.clone(), source: error }
    }
}
