//! Starting, refreshing, ending and killing sessions. Specification: `sessions/driver-sessions.md`.

use std::collections::BTreeSet;

use bson::{Bson, Document, doc};

use super::common::reply;
use crate::context::{Command, Outcome};
use crate::dispatch::Request;
use crate::error::Result;
use crate::fields::Fields;
use crate::sessions::{SESSION_TIMEOUT_MINUTES, SessionId};
use crate::users::{LoggedIn, session_owner};

/// The most sessions that one command may name, the server's own limit for `endSessions`.
const MAX_SESSIONS_PER_COMMAND: usize = 10_000;

pub(super) fn start(request: &Request<'_>, _: Command) -> Result<Outcome> {
    let now = request.context.now;
    let id = request.node.write(now).generator().uuid_bytes();
    let session = SessionId::from_bytes(id);
    request.node.sessions().refresh(session, owner(request), now.monotonic)?;
    reply(&doc! {
        "id": session.to_lsid(),
        "timeoutMinutes": SESSION_TIMEOUT_MINUTES as i32,
        "ok": 1.0,
    })
}

pub(super) fn refresh(request: &Request<'_>, command: Command) -> Result<Outcome> {
    let now = request.context.now.monotonic;
    for session in named_sessions(request, &command)? {
        request.node.sessions().refresh(session, owner(request), now)?;
    }
    reply(&doc! { "ok": 1.0 })
}

/// Ends sessions and their cursors. What runs in them may finish: the client that ends its sessions
/// on its way out has had its answers.
pub(super) fn end(request: &Request<'_>, command: Command) -> Result<Outcome> {
    let named: BTreeSet<_> = named_sessions(request, &command)?.into_iter().collect();
    let own = owner(request);
    let ends = |session: &SessionId, who: Option<&LoggedIn>| {
        named.contains(session) && who == own.as_ref()
    };
    let ended = request.node.sessions().end(ends);
    request.node.write(request.context.now).end_transactions(|session| ended.contains(session));
    request.node.cursors().kill_sessions(|session| ended.contains(session));
    reply(&doc! { "ok": 1.0 })
}

/// Ends sessions of the own user, all of them if none is named, with all that runs in them.
pub(super) fn kill(request: &Request<'_>, command: Command) -> Result<Outcome> {
    let named: BTreeSet<_> = named_sessions(request, &command)?.into_iter().collect();
    let own = owner(request);
    kill_where(request, |session, who| {
        (named.is_empty() || named.contains(session)) && who == own.as_ref()
    })
}

/// Ends the sessions of some users, or of all.
pub(super) fn kill_all(request: &Request<'_>, command: Command) -> Result<Outcome> {
    let mut users = Vec::new();
    for item in items(request, &command)? {
        users.push(user(&Fields::new(item, request.name))?);
    }
    kill_where(request, |_, who| users.is_empty() || who.is_some_and(|who| users.contains(who)))
}

/// Ends the sessions that one of the patterns describes, or all.
pub(super) fn kill_by_pattern(request: &Request<'_>, command: Command) -> Result<Outcome> {
    let mut patterns = Vec::new();
    for item in items(request, &command)? {
        patterns.push(Pattern::parse(&Fields::new(item, request.name))?);
    }
    kill_where(request, |session, who| {
        patterns.is_empty() || patterns.iter().any(|pattern| pattern.matches(session, who))
    })
}

/// Which sessions are meant: every part that is given must fit.
struct Pattern {
    session: Option<SessionId>,
    uid: Option<Vec<u8>>,
    users: Option<Vec<LoggedIn>>,
}

impl Pattern {
    fn parse(fields: &Fields<'_>) -> Result<Self> {
        let uid_of = |fields: &Fields<'_>| match fields.raw("uid") {
            None => Ok(None),
            Some(Bson::Binary(uid)) => Ok(Some(uid.bytes.clone())),
            Some(other) => Err(fields.wrong_type("uid", other, "binData")),
        };
        let lsid = fields.document("lsid")?;
        let session = lsid.map(SessionId::from_lsid).transpose()?;
        let uid = match lsid {
            Some(lsid) => uid_of(&Fields::new(lsid, "lsid"))?,
            None => uid_of(fields)?,
        };
        let users = match fields.documents("users")? {
            None => None,
            Some(listed) => {
                let listed = listed.iter().map(|listed| user(&Fields::new(listed, "users")));
                Some(listed.collect::<Result<_, _>>()?)
            }
        };
        if fields.array("roles")?.is_some_and(|roles| !roles.is_empty()) {
            refuse!(COMMAND_NOT_SUPPORTED, "sessions are not found by roles; name their users");
        }
        Ok(Self { session, uid, users })
    }

    fn matches(&self, session: &SessionId, who: Option<&LoggedIn>) -> bool {
        let is_user = |uid: &Vec<u8>| who.is_some_and(|who| who.session_uid()[..] == uid[..]);
        self.session.as_ref().is_none_or(|wanted| wanted == session)
            && self.uid.as_ref().is_none_or(is_user)
            && self.users.as_ref().is_none_or(|users| who.is_some_and(|who| users.contains(who)))
    }
}

fn user(fields: &Fields<'_>) -> Result<LoggedIn> {
    Ok(LoggedIn {
        name: fields.required_string("user")?.to_owned(),
        database: fields.required_string("db")?.to_owned(),
    })
}

/// What `$listSessions` and `$listLocalSessions` start from: all users' sessions for users that may
/// see them and ask for them, otherwise the own user's.
pub(super) fn visible_sessions(request: &Request<'_>, stage: &Document) -> Result<Vec<Document>> {
    let options = stage.values().next().and_then(Bson::as_document);
    if options.is_some_and(|options| options.get_bool("allUsers").unwrap_or(false)) {
        let question = Command::new(doc! { "currentOp": 1, "$db": "admin" });
        request.node.authorize(&request.context.client, &question)?;
        return Ok(request.node.sessions().listed(|_| true));
    }
    let own = owner(request);
    Ok(request.node.sessions().listed(|who| who == own.as_ref()))
}

/// Whose sessions the client may end without being an administrator.
fn owner(request: &Request<'_>) -> Option<LoggedIn> {
    session_owner(request.node, &request.context.client)
}

/// Ends sessions, their cursors, and the commands that run in them; not the one that says so.
fn kill_where(
    request: &Request<'_>,
    ends: impl Fn(&SessionId, Option<&LoggedIn>) -> bool,
) -> Result<Outcome> {
    let ended = request.node.sessions().end(ends);
    request.node.operations().kill_sessions(&ended, &request.context.interrupt);
    request.node.write(request.context.now).end_transactions(|session| ended.contains(session));
    request.node.cursors().kill_sessions(|session| ended.contains(session));
    reply(&doc! { "ok": 1.0 })
}

fn named_sessions(request: &Request<'_>, command: &Command) -> Result<Vec<SessionId>> {
    items(request, command)?.into_iter().map(SessionId::from_lsid).collect()
}

/// The documents that a command lists.
fn items<'c>(request: &Request<'_>, command: &'c Command) -> Result<Vec<&'c Document>> {
    let fields = Fields::new(&command.body, request.name);
    let Some(Bson::Array(items)) = command.body.get(request.name) else {
        let given = command.body.get(request.name).unwrap_or(&Bson::Null);
        return Err(fields.wrong_type(request.name, given, "array"));
    };
    refuse_if!(items.len() > MAX_SESSIONS_PER_COMMAND => BAD_VALUE,
        "{} lists more than {MAX_SESSIONS_PER_COMMAND} items; send several commands", request.name);
    let document = |item: &'c Bson| match item {
        Bson::Document(document) => Ok(document),
        other => Err(fields.wrong_type(request.name, other, "object")),
    };
    items.iter().map(document).collect()
}
