//! What a client tells about the commands it sends.
//!
//! Follows the Command Logging and Monitoring specification: one event when a command is sent, one
//! when its reply arrives or it fails, with the same request id. Commands that carry secrets are reported
//! without their content. Nothing is built without a subscriber.

use std::fmt;
use std::time::Duration;

use bson::raw::{CStr, RawArrayBuf, RawDocument, RawDocumentBuf};
use quorate_protocol::{ObjectId, ServerAddress};
use tokio::time::Instant;

use crate::client::Inner;
use crate::error::{Error, ErrorKind};
use crate::establish::ServerEstablisher;
use crate::operation::{Deadline, Operation, Reply};
use crate::pool::{ConnectionId, PooledConnection};

/// Commands whose content is a secret, in lower case.
const SENSITIVE: [&str; 9] = [
    "authenticate", "saslstart", "saslcontinue", "getnonce", "createuser", "updateuser",
    "copydbgetnonce", "copydbsaslstart", "copydb",
];

/// What the events of one operation have in common: a bulk write may be several commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OperationId(pub u64);

impl fmt::Display for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A command was sent, answered, or failed.
#[derive(Clone, Debug)]
pub struct CommandEvent {
    /// The server.
    pub address: ServerAddress,
    /// The connection, by its number in the pool.
    pub connection: ConnectionId,
    /// The connection, as the server calls it.
    pub server_connection_id: Option<i64>,
    /// The service behind a load balancer.
    pub service_id: Option<ObjectId>,
    /// The same for all events of one command.
    pub request_id: u64,
    /// The same for all commands of one operation.
    pub operation_id: OperationId,
    /// The database.
    pub database: String,
    /// The name of the command.
    pub command_name: String,
    /// What happened.
    pub kind: CommandEventKind,
}

/// What happened to a command.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum CommandEventKind {
    /// `CommandStarted`.
    Started {
        /// The command; empty if it is sensitive.
        command: RawDocumentBuf,
    },
    /// `CommandSucceeded`.
    Succeeded {
        /// How long it took.
        duration: Duration,
        /// The reply; empty if the command is sensitive.
        reply: RawDocumentBuf,
    },
    /// `CommandFailed`.
    Failed {
        /// How long it took.
        duration: Duration,
        /// The error.
        failure: Error,
    },
}

/// Whether a command's content, and that of its reply, must not be told.
pub fn is_sensitive(command_name: &str, command: &RawDocument) -> bool {
    let is = |name: &str| command_name.eq_ignore_ascii_case(name);
    SENSITIVE.iter().any(|name| is(name))
        || ((is("hello") || is("ismaster"))
            && !matches!(command.get("speculativeAuthenticate"), Ok(None)))
}

/// The command as it would look without document sequences; empty if it is sensitive.
fn told_command(
    name: &str,
    body: &RawDocument,
    sequence: Option<(&CStr, &[RawDocumentBuf])>,
) -> RawDocumentBuf {
    if is_sensitive(name, body) {
        return RawDocumentBuf::new();
    }
    let mut command = body.to_owned();
    if let Some((field, documents)) = sequence {
        command.append(field, RawArrayBuf::from_iter(documents.iter().cloned()));
    }
    command
}

/// A command between its first event and its last. One that is given up, as its operation ran out of time
/// or the application no longer waits, has failed.
pub(crate) struct UnderWay<'c> {
    client: &'c Inner,
    told: Option<Told>,
    deadline: Option<Deadline>,
    ended: bool,
}

impl<'c> UnderWay<'c> {
    pub(crate) fn begin(
        client: &'c Inner,
        operation: &Operation<'_>,
        id: OperationId,
        connection: &PooledConnection<ServerEstablisher>,
        sequence: Option<(&CStr, &[RawDocumentBuf])>,
    ) -> Self {
        let told = match client.has_listener() {
            true => Told::begin(client, operation, id, connection, sequence),
            false => None,
        };
        client.discovery.counters().command_started();
        Self { client, told, deadline: operation.deadline, ended: false }
    }

    pub(crate) fn is_told(&self) -> bool {
        self.told.is_some()
    }

    pub(crate) fn end(mut self, reply: Option<RawDocumentBuf>, result: &Result<Reply, Error>) {
        self.tell_end(reply, result);
    }

    fn tell_end(&mut self, reply: Option<RawDocumentBuf>, result: &Result<Reply, Error>) {
        self.ended = true;
        self.client.discovery.counters().command_ended(result.is_ok());
        if let Some(told) = self.told.take() {
            told.end(self.client, reply, result);
        }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if !self.ended {
            let given_up = || Error::new(ErrorKind::GivenUp);
            let error = self.deadline.map_or_else(given_up, Deadline::error);
            self.tell_end(None, &Err(error));
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
    /// Tells that a command is sent. `None` if it is too long to be sent.
    #[cold]
    fn begin(
        client: &Inner,
        operation: &Operation<'_>,
        operation_id: OperationId,
        connection: &PooledConnection<ServerEstablisher>,
        sequence: Option<(&CStr, &[RawDocumentBuf])>,
    ) -> Option<Self> {
        let body = connection.connection.composed().ok()?;
        let name = operation.name().to_owned();
        let command = told_command(&name, body, sequence);
        let event = CommandEvent {
            address: connection.address().clone(),
            connection: connection.id(),
            server_connection_id: connection.facts.server_connection_id,
            service_id: connection.service_id(),
            request_id: client.next_request_id(),
            operation_id,
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
            Some(failure) => {
                let failure = if self.sensitive { failure.redacted() } else { failure.clone() };
                CommandEventKind::Failed { duration, failure }
            }
            None => {
                let reply = reply.filter(|_| !self.sensitive).unwrap_or_default();
                CommandEventKind::Succeeded { duration, reply }
            }
        };
        client.tell_listeners(self.event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::rawdoc;

    #[test]
    fn secrets_are_not_told() {
        for command in [
            rawdoc! { "saslStart": 1, "payload": "secret" },
            rawdoc! { "createUser": "ann", "pwd": "secret" },
            rawdoc! { "hello": 1, "speculativeAuthenticate": { "payload": "secret" } },
        ] {
            let name = command.iter_elements().next().unwrap().unwrap().key().as_str();
            assert!(told_command(name, &command, None).is_empty(), "{name}");
        }
        let hello = rawdoc! { "hello": 1 };
        assert_eq!(told_command("hello", &hello, None), hello);
    }

    #[test]
    fn sequences_are_told_as_arrays() {
        let body = rawdoc! { "insert": "c" };
        let documents = [rawdoc! { "_id": 1 }];
        let sequence = Some((bson::raw::cstr!("documents"), &documents[..]));
        let told = told_command("insert", &body, sequence);
        assert_eq!(told, rawdoc! { "insert": "c", "documents": [{ "_id": 1 }] });
    }
}
