//! Users: who may log in, how that is checked, and what they may do then.
//!
//! Owns the documents of `admin.system.users`, the state of a connection's login, and the decision
//! whether a command may run. Without `authentication` in the options every client may do everything,
//! and users can still log in.

mod asked;
#[cfg(test)]
mod page;
mod privileges;
mod roles;
mod scram;

use std::sync::{Arc, MutexGuard};

use bson::{Bson, Document, doc};
use quorate_authentication::scram::{ServerConversation, StoredCredentials};
use quorate_authentication::{INTERNAL_DATABASE, INTERNAL_USER};
use quorate_query::expression::UserRoles;
use quorate_query::matcher::Matcher;
use sha2::{Digest, Sha256};

pub(crate) use quorate_authentication::ScramMechanism as Mechanism;

pub(crate) use self::asked::{AskedUsers, UserName};
pub(crate) use self::privileges::privileges;
pub(crate) use self::roles::Role;
pub(crate) use self::scram::{credentials_to_document, decoy_credentials, failed, scram_refused};
use quorate_protocol::Lock;

use crate::command_table::{Access, CommandFacts};
use crate::context::{Client, Command, Interrupt};
use crate::error::{CommandError, Result};
use crate::finder::InterruptSlot;
use crate::namespace::Namespace;
use crate::node::Node;
use crate::select::Selection;
use crate::sessions::UUID_BYTES;
use crate::touched::{Asked, EVERY_DATABASE, Touch};

/// A user as it is stored.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) database: String,
    pub(crate) document: Document,
}

impl User {
    pub(crate) fn from_document(document: Document) -> Option<Self> {
        Some(Self {
            name: document.get_str("user").ok()?.to_owned(),
            database: document.get_str("db").ok()?.to_owned(),
            document,
        })
    }

    /// What tells it from other users that had the same name.
    pub(crate) fn id(&self) -> Option<UserId> {
        let id = self.document.get("userId")?;
        let Bson::Binary(id) = id else { return None };
        id.bytes.as_slice().try_into().ok().map(UserId)
    }

    pub(crate) fn roles(&self) -> Vec<Role> {
        let Ok(roles) = self.document.get_array("roles") else { return Vec::new() };
        roles.iter().filter_map(|role| Role::parse(role, &self.database)).collect()
    }

    pub(crate) fn mechanisms(&self) -> Vec<Mechanism> {
        Mechanism::ALL.into_iter().filter(|m| self.credentials(*m).is_some()).collect()
    }

    pub(crate) fn credentials(&self, mechanism: Mechanism) -> Option<StoredCredentials> {
        let stored = self.document.get_document("credentials").ok()?;
        scram::credentials_from_document(mechanism, stored.get_document(mechanism.name()).ok()?)
    }

    /// The user without secrets, as `usersInfo` shows it.
    pub(crate) fn public(&self, with_credentials: bool) -> Document {
        let mut shown = self.document.clone();
        if !with_credentials {
            shown.remove("credentials");
        }
        let mechanisms = self.mechanisms();
        let names: Vec<_> =
            mechanisms.iter().map(|mechanism| Bson::from(mechanism.name())).collect();
        shown.insert("mechanisms", names);
        shown
    }
}

/// The database of users that certificates name.
pub(crate) const EXTERNAL: &str = "$external";

/// The database and the collection of the users.
pub(crate) const USERS: (&str, &str) = ("admin", "system.users");

/// The database and the collection that say in which form users are stored.
pub(crate) const VERSIONS: (&str, &str) = ("admin", "system.version");

/// The form in which users are stored: that of MongoDB since 3.0. Tools compare it before they move users.
pub(crate) const AUTHENTICATION_SCHEMA: i32 = 5;

/// Where users are stored.
pub(crate) fn users_namespace() -> Namespace {
    Namespace { database: USERS.0.to_owned(), collection: USERS.1.to_owned() }
}

/// The stored users that match a query.
pub(crate) fn find_users(node: &Node, query: &Document) -> Result<Vec<User>> {
    users_of(node, query, None)
}

fn users_of(node: &Node, query: &Document, limit: Option<u64>) -> Result<Vec<User>> {
    let (collection, view) = node.read(&users_namespace());
    let Some(collection) = collection else { return Ok(Vec::new()) };
    let matcher = Arc::new(Matcher::parse(query)?);
    let interrupt = InterruptSlot::new(Arc::new(Interrupt::default()));
    let mut users = Vec::new();
    let selection = Selection { limit, ..Selection::new(collection, view, matcher, interrupt) };
    for found in selection.run()? {
        users.extend(User::from_document(Document::try_from(&*found?.document)?));
    }
    Ok(users)
}

/// The user of this name, if there is one, and some other user that stands in if there is none.
///
/// Clients ask for users before they have logged in, and could tell from the time of the answer which users there
/// are. Both cases do the same work: one look-up that finds a user and one that finds none, in addition to
/// the one for the stand-in.
pub(crate) fn find_user_evenly(
    node: &Node,
    database: &str,
    name: &str,
) -> Result<(Option<User>, Option<User>)> {
    let some = users_of(node, &Document::new(), Some(1))?.pop();
    let found = find_user(node, database, name)?;
    let (database, name) = match &some {
        Some(some) if found.is_none() => (some.database.as_str(), some.name.as_str()),
        // There are no users of this database.
        _ => ("$none", name),
    };
    let other = find_user(node, database, name)?;
    Ok((found, other))
}

/// The user of this name, if there is one.
pub(crate) fn find_user(node: &Node, database: &str, name: &str) -> Result<Option<User>> {
    Ok(find_users(node, &doc! { "_id": format!("{database}.{name}") })?.pop())
}

/// Who a connection has proved to be. Shared by everything that speaks for the connection.
#[derive(Clone, Debug, Default)]
pub struct Login(Arc<Lock<LoginState>>);

#[derive(Debug, Default)]
pub(crate) struct LoginState {
    pub(crate) user: Option<LoggedIn>,
    /// The identifier that the user had at its login. Another user may have the name by now.
    user_id: Option<UserId>,
    pub(crate) conversation: Option<Pending>,
    /// The roles of the user by which the command in progress was let in; none if it needs no role.
    pub(crate) roles: Option<Arc<UserRoles>>,
}

impl LoginState {
    /// The client has proved who it is.
    pub(crate) fn complete(&mut self, user: LoggedIn, id: Option<UserId>) {
        (self.user, self.user_id) = (Some(user), id);
    }
}

/// The `userId` of a user: a UUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UserId([u8; UUID_BYTES]);

/// A user who has logged in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LoggedIn {
    pub(crate) name: String,
    pub(crate) database: String,
}

/// Whose sessions a client starts: its user's, where clients log in.
pub(crate) fn session_owner(node: &Node, client: &Client) -> Option<LoggedIn> {
    if node.options().authentication { client.login.state().user.clone() } else { None }
}

impl LoggedIn {
    /// How `lsid.uid` names a user: a digest of the full name.
    pub(crate) fn session_uid(&self) -> [u8; 32] {
        Sha256::digest(format!("{}@{}", self.name, self.database)).into()
    }

    /// Another member of the set, which may do everything.
    pub(crate) fn member() -> Self {
        Self { name: INTERNAL_USER.to_owned(), database: INTERNAL_DATABASE.to_owned() }
    }
}

/// A conversation in progress.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) who: LoggedIn,
    pub(crate) id: Option<UserId>,
    /// None once the proof was accepted and only an empty message is missing.
    pub(crate) conversations: Vec<ServerConversation>,
    /// Whether the client wants to be spared the empty message at the end.
    pub(crate) skip_empty_exchange: bool,
}

impl Login {
    /// Whether the client has proved who it is.
    pub fn is_complete(&self) -> bool {
        self.state().user.is_some()
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, LoginState> {
        self.0.lock()
    }
}

impl PartialEq for Login {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// Refuses a command that the connection's user may not run. Every namespace that the command touches
/// is looked at.
pub(crate) fn check_access(
    node: &Node,
    client: &Client,
    facts: &CommandFacts,
    command: &Command,
) -> Result<()> {
    if !node.options().authentication || facts.access == Access::Public {
        return Ok(());
    }
    let Some(who) = client.login.state().user.clone() else {
        let first = matches!(facts.name, "createUser" | "replSetInitiate");
        if first && command.database() == "admin" && first_user_may_come(node, client)? {
            return Ok(());
        }
        refuse!(UNAUTHORIZED, "Command {} requires authentication", facts.name);
    };
    if who == LoggedIn::member() {
        return Ok(());
    }
    // Looked up for each command: a role that was taken away is gone at once.
    let mut roles = None;
    let asked = Asked { facts, body: &command.body, database: command.database() };
    let access = (facts.touching)(asked, &mut |touch| {
        let needed = touch.needed();
        if needed == Access::LoggedIn {
            return Ok(());
        }
        let roles = match &mut roles {
            Some(known) => known,
            unknown => unknown.insert(roles_of(node, client, &who)?),
        };
        let is_allowed = |role: &Role| role.allows(needed, touch.database, touch.collection);
        if roles.iter().any(is_allowed)
            || asks_about_itself(facts, command, &who)
            || asks_about_own_roles(facts, command, roles)
        {
            return Ok(());
        }
        Err(refused(facts.name, needed, &touch))
    });
    let pair = |role: Role| (role.name, role.database);
    let of_command = |roles: Vec<Role>| UserRoles::new(roles.into_iter().map(pair).collect());
    client.login.state().roles = roles.map(|roles| Arc::new(of_command(roles)));
    access
}

/// Whether a user asks what it is itself, which needs no right. Credentials are for administrators.
fn asks_about_itself(facts: &CommandFacts, command: &Command, who: &LoggedIn) -> bool {
    if facts.name != "usersInfo" || command.body.contains_key("showCredentials") {
        return false;
    }
    let asked = AskedUsers::parse(command.body.first(), command.database());
    let own = UserName { name: &who.name, database: &who.database };
    asked.is_ok_and(|asked| asked == AskedUsers::One(own))
}

/// Whether a user asks for roles that it has, which needs no right.
fn asks_about_own_roles(facts: &CommandFacts, command: &Command, roles: &[Role]) -> bool {
    if facts.name != "rolesInfo" {
        return false;
    }
    let is_own = |value: &Bson| {
        Role::asked(value, command.database()).is_some_and(|asked| roles.contains(&asked))
    };
    match command.body.first() {
        Some(Bson::Array(several)) => !several.is_empty() && several.iter().all(is_own),
        Some(single) => is_own(single),
        None => false,
    }
}

fn refused(name: &str, needed: Access, touch: &Touch<'_>) -> CommandError {
    let place = match (touch.database, touch.collection) {
        (EVERY_DATABASE, _) => "all databases".to_owned(),
        (database, Some(collection)) if !collection.is_empty() => {
            format!("{database}.{collection}")
        }
        (database, _) => database.to_owned(),
    };
    fail!(
        UNAUTHORIZED,
        "not authorized on {place} to execute command {name}; it takes the role {}",
        needed.role()
    )
}

/// The roles of the user that a client has logged in as; none of a user that was dropped, although another may have its
/// name by now.
pub(crate) fn roles_of(node: &Node, client: &Client, who: &LoggedIn) -> Result<Vec<Role>> {
    let found = find_user(node, &who.database, &who.name)?;
    let id = client.login.state().user_id;
    Ok(found.filter(|user| user.id() == id).map_or(Vec::new(), |user| user.roles()))
}

/// What the client may do, for commands that show or do more with a further right.
pub(crate) enum Rights {
    /// Everything: there are no logins, or the client is another member.
    All,
    /// What these roles allow.
    Of(Vec<Role>),
}

impl Rights {
    pub(crate) fn of(node: &Node, client: &Client) -> Result<Self> {
        let who = client.login.state().user.clone().filter(|_| node.options().authentication);
        match who {
            None if node.options().authentication => Ok(Self::Of(Vec::new())),
            None => Ok(Self::All),
            Some(who) if who == LoggedIn::member() => Ok(Self::All),
            Some(who) => Ok(Self::Of(roles_of(node, client, &who)?)),
        }
    }

    pub(crate) fn allow(&self, access: Access, database: &str) -> bool {
        match self {
            Self::All => true,
            Self::Of(roles) => roles.iter().any(|role| role.allows(access, database, None)),
        }
    }

    /// Whether any right reaches this database.
    pub(crate) fn reach(&self, database: &str) -> bool {
        let kinds =
            [Access::Read, Access::Look, Access::Write, Access::DatabaseAdmin, Access::UserAdmin];
        kinds.into_iter().any(|access| self.allow(access, database))
    }
}

/// Refuses to give or take roles of a database whose users are not this client's to administer:
/// otherwise the administrator of one database's users could grant any role.
pub(crate) fn check_grant(node: &Node, client: &Client, database: &str) -> Result<()> {
    // No user exists to log in as when the first one is made.
    let who = client.login.state().user.clone().filter(|_| node.options().authentication);
    let Some(who) = who.filter(|who| *who != LoggedIn::member()) else { return Ok(()) };
    let roles = roles_of(node, client, &who)?;
    if roles.iter().any(|role| role.allows(Access::UserAdmin, database, None)) {
        return Ok(());
    }
    Err(fail!(
        UNAUTHORIZED,
        "not authorized to grant roles of {database}; it takes the role userAdmin there"
    ))
}

/// Refuses a client that has not proved to be another member.
pub(crate) fn check_member(node: &Node, client: &Client) -> Result<()> {
    let is_member = client.login.state().user.as_ref() == Some(&LoggedIn::member());
    if is_member || !node.options().authentication {
        return Ok(());
    }
    Err(fail!(
        UNAUTHORIZED,
        "only members of the set may follow its history; give this one the key file of the others"
    ))
}

/// The first user is created from the machine itself, without a login.
fn first_user_may_come(node: &Node, client: &Client) -> Result<bool> {
    let local = client.address.starts_with("127.") || client.address.starts_with("[::1]");
    Ok(local && find_users(node, &Document::new())?.is_empty())
}
