//! Logging in and out: `saslStart`, `saslContinue`, `logout`, and what `hello` says about it.
//!
//! Specification: `auth/auth.md`. One conversation per connection at a time.

use bson::spec::BinarySubtype;
use bson::{Binary, Bson, Document, doc};
use quorate_authentication::scram::{ClientFirst, ServerConversation, StoredCredentials};

use super::common::reply;
use crate::context::{Command, Outcome};
use crate::dispatch::Request;
use crate::error::Result;
use crate::fields::Fields;
use crate::users::{
    EXTERNAL, LoggedIn, Mechanism, Pending, User, UserId, decoy_credentials, failed,
    find_user_evenly, privileges, roles_of, scram_refused,
};

/// Random bytes in a server's nonce.
const NONCE_LENGTH: usize = 24;

pub(super) fn sasl_start(request: &Request<'_>, command: Command) -> Result<Outcome> {
    let opening = Opening::read(request, &command.body.to_document(), request.database)?;
    let mut answer = opening.start(request)?;
    answer.insert("ok", 1.0);
    reply(&answer)
}

/// The client's first message, and what its proof may be checked against.
struct Opening {
    who: LoggedIn,
    id: Option<UserId>,
    first: ClientFirst,
    skip_empty_exchange: bool,
    /// One for a user, one for each key of the set for a member.
    credentials: Vec<StoredCredentials>,
    /// Whether the user is known and has no key of this mechanism.
    lacks_mechanism: bool,
}

impl Opening {
    fn read(request: &Request<'_>, body: &Document, database: &str) -> Result<Self> {
        let fields = Fields::new(body, "saslStart");
        let name = fields.required_string("mechanism")?;
        let mechanism = Mechanism::from_name(name).ok_or_else(|| {
            fail!(
                MECHANISM_UNAVAILABLE,
                "Unsupported mechanism '{name}'; use SCRAM-SHA-256 or SCRAM-SHA-1"
            )
        })?;
        let options = fields.document("options")?;
        let skip_empty_exchange =
            options.is_some_and(|options| options.get_bool("skipEmptyExchange").unwrap_or(false));
        let first = ClientFirst::parse(payload(body)?).map_err(scram_refused)?;
        let who = LoggedIn { name: first.user.clone(), database: database.to_owned() };
        let (id, credentials, lacks_mechanism) = if who == LoggedIn::member() {
            let keys = request.node.member_credentials().iter();
            (None, keys.filter(|key| key.mechanism == mechanism).cloned().collect(), false)
        } else {
            let (user, stand_in) = find_user_evenly(request.node, &who.database, &who.name)?;
            let decoy = decoy_credentials(request.node, &who, mechanism);
            let is_known = user.is_some();
            let read = user.or(stand_in);
            let id = read.as_ref().and_then(User::id).filter(|_| is_known);
            let read = read.and_then(|user| user.credentials(mechanism));
            let known = read.filter(|_| is_known);
            let lacks_mechanism = is_known && known.is_none();
            (id, vec![known.unwrap_or(decoy)], lacks_mechanism)
        };
        Ok(Self { who, id, first, skip_empty_exchange, credentials, lacks_mechanism })
    }

    /// Begins the conversation and returns the server's first message.
    fn start(self, request: &Request<'_>) -> Result<Document> {
        let Self { who, id, first, skip_empty_exchange, credentials, .. } = self;
        let random = request.node.random_bytes(NONCE_LENGTH);
        // One conversation for each key that may be right; they differ in nothing that the client
        // sees.
        let started = credentials
            .into_iter()
            .map(|credentials| ServerConversation::start(first.clone(), credentials, &random));
        let (conversations, answers): (Vec<_>, Vec<_>) = started.unzip();
        let answer = answers.into_iter().next().ok_or_else(failed)?;
        request.context.client.login.state().conversation =
            Some(Pending { who, id, conversations, skip_empty_exchange });
        Ok(step(false, answer.into_bytes()))
    }
}

/// Answers the first message that a client sent along with its hello. A user without the mechanism
/// gets no answer: `saslSupportedMechs` has named the user's mechanisms, and a conversation that
/// cannot succeed would keep the client from choosing among them. A failure is no error: the client
/// logs in as usual afterwards.
fn speculate(request: &Request<'_>, body: &Document, database: &str) -> Option<Document> {
    let opening = Opening::read(request, body, database).ok()?;
    if opening.lacks_mechanism { None } else { opening.start(request).ok() }
}

pub(super) fn sasl_continue(request: &Request<'_>, command: Command) -> Result<Outcome> {
    let mut login = request.context.client.login.state();
    let Some(mut pending) = login.conversation.take() else {
        refuse!(PROTOCOL_ERROR, "No SASL session state found; begin with saslStart");
    };
    let body = command.body.to_document();
    let message = payload(&body)?;
    let conversations = std::mem::take(&mut pending.conversations);
    let finished = conversations.iter().map(|conversation| conversation.finish(message));
    let mut answer = match finished.reduce(Result::or) {
        Some(own) => {
            let own = own.map_err(scram_refused)?;
            let done = pending.skip_empty_exchange;
            if done {
                login.complete(pending.who, pending.id);
            } else {
                login.conversation = Some(pending);
            }
            step(done, own.into_bytes())
        }
        None if message.is_empty() => {
            login.complete(pending.who, pending.id);
            step(true, Vec::new())
        }
        None => return Err(failed()),
    };
    answer.insert("ok", 1.0);
    reply(&answer)
}

fn step(done: bool, payload: Vec<u8>) -> Document {
    let payload = Binary { subtype: BinarySubtype::Generic, bytes: payload };
    doc! { "conversationId": 1, "done": done, "payload": payload }
}

fn payload(body: &Document) -> Result<&[u8]> {
    match body.get("payload") {
        Some(Bson::Binary(binary)) => Ok(&binary.bytes),
        Some(Bson::String(text)) => Ok(text.as_bytes()),
        _ => Err(fail!(TYPE_MISMATCH, "payload must be binary")),
    }
}

pub(super) fn logout(request: &Request<'_>, _: Command) -> Result<Outcome> {
    *request.context.client.login.state() = Default::default();
    reply(&doc! { "ok": 1.0 })
}

pub(super) fn connection_status(request: &Request<'_>, command: Command) -> Result<Outcome> {
    let who = request.context.client.login.state().user.clone();
    let (mut users, mut roles) = (Vec::new(), Vec::new());
    if let Some(who) = who {
        users.push(Bson::from(doc! { "user": &who.name, "db": &who.database }));
        roles = roles_of(request.node, &request.context.client, &who)?;
    }
    let named: Vec<_> = roles.iter().map(|role| Bson::from(role.to_document())).collect();
    let mut info = doc! { "authenticatedUsers": users, "authenticatedUserRoles": named };
    if Fields::new(&command.body, "connectionStatus").flag("showPrivileges")? {
        info.insert("authenticatedUserPrivileges", privileges(&roles));
    }
    reply(&doc! { "authInfo": info, "ok": 1.0 })
}

/// What a hello asks about logging in: the mechanisms of a user, and a first message sent along.
pub(super) fn append_to_hello(
    request: &Request<'_>,
    fields: &Fields<'_>,
    answer: &mut Document,
) -> Result<()> {
    if let Some(asked) = fields.string("saslSupportedMechs")?
        && let Some((database, name)) = asked.split_once('.')
    {
        // An unknown user looks like one with the usual mechanisms.
        let (user, stand_in) = find_user_evenly(request.node, database, name)?;
        let is_known = user.is_some();
        let read = user.or(stand_in).map(|user| user.mechanisms());
        let usual = Mechanism::ALL.to_vec();
        let mechanisms = read.filter(|_| is_known).unwrap_or(usual);
        let names = mechanisms.into_iter().map(|mechanism| Bson::from(mechanism.name()));
        answer.insert("saslSupportedMechs", names.collect::<Vec<_>>());
    }
    if let Some(first) = fields.document("speculativeAuthenticate")? {
        // Without a database it is the one that the mechanism is always or mostly used with.
        let database = |usual: &str| first.get_str("db").unwrap_or(usual).to_owned();
        let step = match first.keys().next().map(String::as_str) {
            Some("saslStart") => speculate(request, first, &database("admin")),
            Some("authenticate") => super::x509::log_in(request, first, &database(EXTERNAL)).ok(),
            _ => None,
        };
        if let Some(step) = step {
            answer.insert("speculativeAuthenticate", step);
        }
    }
    Ok(())
}
