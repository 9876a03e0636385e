//! Starting, refreshing, ending and killing sessions. Specification: `sessions/driver-sessions.md`.

use bson::{Bson, doc};

use super::common::reply;
use crate::context::{Command, Outcome};
use crate::dispatch::Request;
use crate::error::CommandError;
use crate::fields::Fields;
use crate::sessions::{SESSION_TIMEOUT_MINUTES, SessionId};

/// The most sessions that one command may name, the server's own limit for `endSessions`.
const MAX_SESSIONS_PER_COMMAND: usize = 10_000;

pub(super) fn start(request: &Request<'_>, _: Command) -> Result<Outcome, CommandError> {
    let now = request.context.now;
    let id = request.node.write(now).generator().uuid();
    let session = SessionId::from_bytes(id.bytes);
    request.node.sessions().refresh(session.clone(), now.monotonic)?;
    reply(&doc! {
        "id": session.to_lsid(),
        "timeoutMinutes": SESSION_TIMEOUT_MINUTES as i32,
        "ok": 1.0,
    })
}

pub(super) fn refresh(request: &Request<'_>, command: Command) -> Result<Outcome, CommandError> {
    let now = request.context.now.monotonic;
    for session in named_sessions(request, &command)? {
        request.node.sessions().refresh(session, now)?;
    }
    reply(&doc! { "ok": 1.0 })
}

pub(super) fn end(request: &Request<'_>, command: Command) -> Result<Outcome, CommandError> {
    end_named(request, &command)
}

pub(super) fn kill(request: &Request<'_>, command: Command) -> Result<Outcome, CommandError> {
    if named_sessions(request, &command)?.is_empty() {
        return kill_all(request, command);
    }
    end_named(request, &command)
}

pub(super) fn kill_all(request: &Request<'_>, _: Command) -> Result<Outcome, CommandError> {
    request.node.sessions().end_all();
    request.node.cursors().kill_sessions(|_| true);
    reply(&doc! { "ok": 1.0 })
}

fn end_named(request: &Request<'_>, command: &Command) -> Result<Outcome, CommandError> {
    let named = named_sessions(request, command)?;
    for session in &named {
        request.node.sessions().end(session);
    }
    request.node.cursors().kill_sessions(|session| named.contains(session));
    reply(&doc! { "ok": 1.0 })
}

fn named_sessions(
    request: &Request<'_>,
    command: &Command,
) -> Result<Vec<SessionId>, CommandError> {
    let fields = Fields::new(&command.body, &request.name);
    let items = fields.array(&request.name)?.unwrap_or_default();
    if items.len() > MAX_SESSIONS_PER_COMMAND {
        return Err(CommandError::bad_value(format!(
            "{} names more than {MAX_SESSIONS_PER_COMMAND} sessions; send several commands",
            request.name
        )));
    }
    let session = |item: &Bson| match item {
        Bson::Document(lsid) => SessionId::from_lsid(lsid),
        other => Err(fields.wrong_type(&request.name, other, "object")),
    };
    items.iter().map(session).collect()
}
