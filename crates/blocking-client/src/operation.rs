//! Commands: to the selected server, with its read preference, and what their errors say.
//!
//! Follows "Application errors" in the Server Discovery And Monitoring specification (the core
//! judges, this file reports), "Passing read preference" in the Server Selection specification, and
//! the Retryable Reads specification.

use bson::raw::{CStr, RawArrayBuf, RawDocument, RawDocumentBuf, cstr};
use bson::rawdoc;
use quorate_protocol::{ReadPreference, ServerAddress};
use quorate_server_discovery::{
    ApplicationError, ReadPreferenceArgument, SelectionCriteria, SelectionRequest, TopologyType,
    read_preference_for_op_msg,
};
use quorate_wire::command_error;

use crate::client::Client;
use crate::connection::{ConnectionError, Request};
use crate::cursor::Cursor;
use crate::error::{OVERLOADED, OperationError};

/// A reply, and who sent it.
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
    /// Whether it is the commit or the abort of the session's transaction.
    pub(crate) ending: bool,
}

impl<'a> Operation<'a> {
    pub(crate) fn read(
        database: &'a str,
        command: &'a RawDocument,
        preference: &'a ReadPreference,
    ) -> Self {
        let criteria = SelectionCriteria::Read(preference);
        Self { database, command, sequence: None, criteria, ending: false }
    }

    pub(crate) fn write(database: &'a str, command: &'a RawDocument) -> Self {
        Self {
            database,
            command,
            sequence: None,
            criteria: SelectionCriteria::Write,
            ending: false,
        }
    }
}

impl Client {
    /// Runs a command on a server that suits the read preference; without one, on the primary.
    ///
    /// The reply is returned as it came; `$db` and `$readPreference` are added to the command. It is
    /// never sent twice, whatever it is.
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
        self.attempt(Operation::read(database, command, preference), &[])
    }

    /// Runs a read, and once more after an error that a failover may explain.
    pub(crate) fn read(&mut self, operation: Operation<'_>) -> Result<Answer, OperationError> {
        let first = match self.attempt(operation, &[]) {
            Err(error)
                if self.options.retry_reads
                    && !self.in_transaction()
                    && error.is_retryable_read() =>
            {
                error
            }
            outcome => return outcome,
        };
        let sharded = self.topology().topology_type() == TopologyType::Sharded;
        let avoided = first.server().filter(|_| sharded || first.is_overload()).cloned();
        match self.attempt(operation, avoided.as_slice()) {
            // No second attempt was made: the caller is told about the first.
            Err(
                OperationError::NoServer(_)
                | OperationError::Impossible(_)
                | OperationError::Unreachable { .. },
            ) => Err(first),
            outcome => outcome,
        }
    }

    /// Selects a server and sends the command to it, once.
    pub(crate) fn attempt(
        &mut self,
        operation: Operation<'_>,
        deprioritized: &[ServerAddress],
    ) -> Result<Answer, OperationError> {
        let request = SelectionRequest {
            criteria: operation.criteria,
            deprioritized,
            ..SelectionRequest::WRITE
        };
        self.begin_operation(operation.ending);
        let server = self.select_usable(&request);
        let server = self.labelled(server)?;
        self.send(&server, operation)
    }

    /// Sends a command to a server whose connection was seen to.
    pub(crate) fn send(
        &mut self,
        server: &ServerAddress,
        operation: Operation<'_>,
    ) -> Result<Answer, OperationError> {
        let body = self.compose(server, operation)?;
        let request = Request { body: &body, sequence: operation.sequence };
        let reply = self.exchange(server, request);
        let reply = self.labelled(reply)?;
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
        }
        Ok(Answer { server: server.clone(), reply })
    }

    /// Tells the core about an error in a reply.
    pub(crate) fn command_failed(
        &mut self,
        server: &ServerAddress,
        error: &quorate_wire::CommandError,
    ) {
        // `writeErrors` say nothing about the server.
        let (code, message) = match (&error.write_concern_error, error.ok) {
            (Some(error), true) => (error.code, error.message.clone()),
            (None, true) if error.message.is_empty() => return,
            _ => (error.code, error.message.clone()),
        };
        let topology_version = error.topology_version;
        let cause = quorate_server_discovery::CommandError { code, message, topology_version };
        let overloaded = error.has_label(OVERLOADED);
        let Some(connection) = self.connections.get(server) else { return };
        let (generation, max_wire_version) = (connection.generation, connection.max_wire_version);
        self.tell_failure(
            server,
            generation,
            max_wire_version,
            overloaded,
            ApplicationError::Command(cause),
        );
    }

    /// The command with what every command carries.
    fn compose(
        &mut self,
        server: &ServerAddress,
        operation: Operation<'_>,
    ) -> Result<RawDocumentBuf, OperationError> {
        let mut body = operation.command.to_owned();
        self.add_session(server, operation.ending, &mut body)?;
        body.append(cstr!("$db"), operation.database);
        let SelectionCriteria::Read(preference) = operation.criteria else { return Ok(body) };
        // A command that brings its own keeps it: servers refuse a field that comes twice.
        if matches!(body.get("$readPreference"), Ok(Some(_))) {
            return Ok(body);
        }
        let topology = self.topology();
        let Some(description) = topology.server(server) else { return Ok(body) };
        let argument = read_preference_for_op_msg(
            topology.topology_type(),
            description.server_type(),
            Some(preference),
        );
        if let Some(argument) = argument {
            body.append(cstr!("$readPreference"), read_preference_document(argument));
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
            let reason = self.why_unusable(server);
            return Err(OperationError::Unreachable { server: server.clone(), reason });
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

fn read_preference_document(argument: ReadPreferenceArgument<'_>) -> RawDocumentBuf {
    let mut document = rawdoc! { "mode": argument.mode.name() };
    if !argument.tags.is_empty() {
        let mut sets = RawArrayBuf::new();
        for tags in argument.tags {
            let mut set = RawDocumentBuf::new();
            for (name, value) in tags.iter() {
                // A name with a zero byte cannot come from a connection string, nor be any tag's.
                if let Ok(name) = <&CStr>::try_from(name) {
                    set.append(name, value);
                }
            }
            sets.push(set);
        }
        document.append(cstr!("tags"), sets);
    }
    if let Some(seconds) = argument.max_staleness_seconds {
        let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
        document.append(cstr!("maxStalenessSeconds"), seconds);
    }
    if let Some(enabled) = argument.hedge {
        document.append(cstr!("hedge"), rawdoc! { "enabled": enabled });
    }
    document
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_protocol::{ReadPreferenceMode, TagSet};
    use quorate_server_discovery::ServerType;
    use std::time::Duration;

    /// "Document structure" of the Server Selection specification.
    #[test]
    fn every_part_of_a_read_preference_is_written() {
        let preference = ReadPreference {
            tag_sets: vec![[("dc", "ny"), ("rack", "2")].into_iter().collect(), TagSet::EMPTY],
            max_staleness: Some(Duration::from_secs(120)),
            hedge: Some(true),
            ..ReadPreference::new(ReadPreferenceMode::Secondary)
        };
        let (topology, server) = (TopologyType::ReplicaSetNoPrimary, ServerType::RsSecondary);
        let argument = read_preference_for_op_msg(topology, server, Some(&preference)).unwrap();
        assert_eq!(
            read_preference_document(argument),
            rawdoc! {
                "mode": "secondary",
                "tags": [{ "dc": "ny", "rack": "2" }, {}],
                "maxStalenessSeconds": 120_i64,
                "hedge": { "enabled": true },
            }
        );
    }
}
