//! `_mergeAuthzCollections`: puts the users of a dump in place.
//!
//! mongorestore loads the users of a dump into a collection of its own and names it here, since no client may
//! write to `admin.system.users`. All users are checked before one is stored.

use std::collections::BTreeSet;

use bson::{Bson, Document, doc};

use super::common::WriteConcern;
use super::users::{insert_user, note_schema, replace_user, stored};
use crate::context::{Command, Outcome};
use crate::dispatch::Request;
use crate::error::Result;
use crate::fields::{Fields, check_known, to_raw};
use crate::namespace::Namespace;
use crate::users::{EXTERNAL, Role, User, users_namespace};
use crate::writer::Writer;

/// The most users that one command puts in place: they are held in memory.
const MAX_USERS: usize = 100_000;

/// The fields of a stored user.
const STORED: [&str; 8] = [
    "_id", "userId", "user", "db", "credentials", "roles", "customData",
    "authenticationRestrictions",
];

pub(super) fn merge(request: &Request<'_>, command: Command) -> Result<Outcome> {
    let fields = Fields::new(&command.body, "_mergeAuthzCollections");
    let concern = WriteConcern::parse(&command)?;
    let named = |name: &str| -> Result<Option<Namespace>> {
        let Some(name) = fields.string(name)?.filter(|name| !name.is_empty()) else {
            return Ok(None);
        };
        match name.split_once('.') {
            Some(("admin", collection)) => Namespace::new("admin", collection).map(Some),
            _ => Err(fail!(BAD_VALUE, "'{name}' is no collection of the database admin")),
        }
    };
    let (users, roles) = (named("tempUsersCollection")?, named("tempRolesCollection")?);
    refuse_if!(users.is_none() && roles.is_none() => BAD_VALUE,
        "_mergeAuthzCollections takes tempUsersCollection, tempRolesCollection or both");
    let of = fields.string("db")?.filter(|database| !database.is_empty());
    let drops = fields.flag("drop")?;
    let mut writer = request.write();
    if let Some(roles) = roles
        && !stored(&writer, &roles, &Document::new())?.is_empty()
    {
        refuse!(
            COMMAND_NOT_SUPPORTED,
            "there are only the built-in roles; restore without admin.system.roles"
        );
    }
    if let Some(users) = users {
        put_in_place(&mut writer, &users, of, drops)?;
    }
    Ok(concern.reply(to_raw(&doc! { "ok": 1.0 })?, writer.last_commit()))
}

/// Stores the users of a collection, those of one database or all. With `drops` the others go.
fn put_in_place(
    writer: &mut Writer<'_>,
    from: &Namespace,
    of: Option<&str>,
    drops: bool,
) -> Result<()> {
    let query = of.map_or_else(Document::new, |database| doc! { "db": database });
    let found = stored(writer, from, &query)?;
    refuse_if!(found.len() > MAX_USERS => BAD_VALUE,
        "{} users are more than {MAX_USERS}", found.len());
    let checked = found.iter().map(|user| check(Document::try_from(&*user.document)?));
    let users: Vec<Document> = checked.collect::<Result<_>>()?;
    note_schema(writer)?;
    let mut kept = BTreeSet::new();
    for mut user in users {
        let id = user.get("_id").cloned().unwrap_or(Bson::Null);
        kept.extend(id.as_str().map(str::to_owned));
        if !user.contains_key("userId") {
            let drawn = writer.generator().uuid();
            user.insert("userId", drawn);
        }
        match stored(writer, &users_namespace(), &doc! { "_id": id })?.first() {
            Some(known) => replace_user(writer, known, &user)?,
            None => insert_user(writer, &user)?,
        }
    }
    let others = if drops { stored(writer, &users_namespace(), &query)? } else { Vec::new() };
    let Some(collection) = writer.collection(&users_namespace()) else { return Ok(()) };
    for other in others {
        let is_kept = other.document.get_str("_id").is_ok_and(|id| kept.contains(id));
        if !is_kept {
            writer.remove(&collection, other.record, &other.document)?;
        }
    }
    Ok(())
}

/// A user as it will be stored. One that this member would take for another, or let do more, is refused.
fn check(document: Document) -> Result<Document> {
    let id = document.get_str("_id").unwrap_or_default().to_owned();
    let wrong = |what: &str| fail!(BAD_VALUE, "the user '{id}' of the dump {what}");
    check_known(document.keys(), "user", &STORED)?;
    let mut user = User::from_document(document).ok_or_else(|| wrong("has no name"))?;
    if id != format!("{}.{}", user.database, user.name) || user.name.is_empty() {
        return Err(wrong("has another name than its _id says"));
    }
    let is_external = user.database == EXTERNAL;
    if user.database == "local" || !is_external && user.mechanisms().is_empty() {
        return Err(wrong("has no credentials for SCRAM-SHA-1 or SCRAM-SHA-256"));
    }
    let restrictions = user.document.remove("authenticationRestrictions");
    if restrictions.as_ref().and_then(Bson::as_array).is_some_and(|them| !them.is_empty()) {
        return Err(wrong("has authenticationRestrictions, which are not offered here"));
    }
    let listed = user.document.get_array("roles").map_err(|_| wrong("has no roles"))?;
    for role in listed {
        let role = Role::parse(role, &user.database).filter(Role::exists);
        role.ok_or_else(|| {
            wrong("has a role that there is not here; use updateUser before the dump")
        })?;
    }
    Ok(user.document)
}
