//! `createUser`, `updateUser`, `dropUser`, `usersInfo` and their kin.

use std::sync::Arc;

use bson::{Bson, Document, doc};
use quorate_authentication::scram::StoredCredentials;
use quorate_query::diff::ToldAs;
use quorate_query::matcher::Matcher;

use super::common::{WriteConcern, reply};
use super::roles::Details;
use crate::context::{Command, Interrupt, Outcome};
use crate::dispatch::Request;
use crate::error::{CommandError, ErrorCode, Result};
use crate::fields::{Fields, check_known, to_raw};
use crate::finder::{Found, InterruptSlot};
use crate::namespace::Namespace;
use crate::select::Selection;
use crate::users::{
    AUTHENTICATION_SCHEMA, AskedUsers, EXTERNAL, Mechanism, Role, UserName, VERSIONS, check_grant,
    credentials_to_document, find_users, scram_refused, users_namespace,
};
use crate::writer::Writer;

pub(super) fn create_user(request: &Request<'_>, command: Command) -> Result<Outcome> {
    let fields = Fields::new(&command.body, "createUser");
    let name = fields.required_string("createUser")?;
    refuse_if!(name.is_empty() || request.database == "local" => BAD_VALUE,
        "users need a name and a database that is replicated");
    let password = fields.string("pwd")?;
    let concern = WriteConcern::parse(&command)?;
    let roles = roles(request, &fields)?
        .ok_or_else(|| fail!(BAD_VALUE, "\"createUser\" command requires a \"roles\" array"))?;
    let credentials = match password {
        None if request.database == EXTERNAL => doc! { "external": true },
        Some(_) if request.database == EXTERNAL => {
            refuse!(
                BAD_VALUE,
                "Cannot set the password for users defined on the '$external' database"
            );
        }
        Some(password) => credentials(request, &fields, name, password)?,
        None => {
            refuse!(
                BAD_VALUE,
                "Must provide a 'pwd' field for all user documents, except those with '$external' \
                 as the user's source db"
            );
        }
    };
    let mut writer = request.node.write(request.context.now);
    let mut document = doc! {
        "_id": format!("{}.{name}", request.database),
        "userId": writer.generator().uuid(),
        "user": name,
        "db": request.database,
        "credentials": credentials,
        "roles": roles,
    };
    if let Some(custom) = fields.document("customData")? {
        document.insert("customData", custom.clone());
    }
    note_schema(&mut writer)?;
    insert_user(&mut writer, &document).map_err(|error| match error.code {
        ErrorCode::DUPLICATE_KEY => {
            fail!(51003, "User \"{name}@{}\" already exists", request.database)
        }
        _ => error,
    })?;
    Ok(concern.reply(to_raw(&doc! { "ok": 1.0 })?, writer.last_commit()))
}

pub(super) fn insert_user(writer: &mut Writer<'_>, document: &Document) -> Result<()> {
    let mut collection = writer.collection_or_create(&users_namespace())?;
    writer.insert(&mut collection, vec![to_raw(document)?], true, true)?.into_iter().collect()
}

/// Writes down in which form users are stored, before the first one is: a dump of them is worth nothing to
/// mongorestore without it.
pub(super) fn note_schema(writer: &mut Writer<'_>) -> Result<()> {
    let namespace =
        Namespace { database: VERSIONS.0.to_owned(), collection: VERSIONS.1.to_owned() };
    let id = "authSchema";
    if !stored(writer, &namespace, &doc! { "_id": id })?.is_empty() {
        return Ok(());
    }
    let document = to_raw(&doc! { "_id": id, "currentVersion": AUTHENTICATION_SCHEMA })?;
    let mut collection = writer.collection_or_create(&namespace)?;
    writer.insert(&mut collection, vec![document], true, true)?.into_iter().collect()
}

pub(super) fn update_user(request: &Request<'_>, command: Command) -> Result<Outcome> {
    let fields = Fields::new(&command.body, "updateUser");
    let name = fields.required_string("updateUser")?;
    let mut changes = Document::new();
    if let Some(password) = fields.string("pwd")? {
        changes.insert("credentials", credentials(request, &fields, name, password)?);
    }
    if let Some(roles) = roles(request, &fields)? {
        changes.insert("roles", roles);
    }
    if let Some(custom) = fields.document("customData")? {
        changes.insert("customData", custom.clone());
    }
    refuse_if!(changes.is_empty() => BAD_VALUE,
        "Must specify at least one field to update in updateUser");
    change_user(request, &command, name, |user| user.extend(changes))
}

pub(super) fn grant_roles(request: &Request<'_>, command: Command) -> Result<Outcome> {
    change_roles(request, &command, |current, named| {
        current.retain(|role| !named.contains(role));
        current.extend(named);
    })
}

pub(super) fn revoke_roles(request: &Request<'_>, command: Command) -> Result<Outcome> {
    change_roles(request, &command, |current, named| current.retain(|role| !named.contains(role)))
}

fn change_roles(
    request: &Request<'_>,
    command: &Command,
    change: impl FnOnce(&mut Vec<Bson>, Vec<Bson>),
) -> Result<Outcome> {
    let fields = Fields::new(&command.body, request.name);
    let name = fields.required_string(request.name)?;
    let named = roles(request, &fields)?.unwrap_or_default();
    change_user(request, command, name, |user| {
        let mut current = user.get_array("roles").cloned().unwrap_or_default();
        change(&mut current, named);
        user.insert("roles", current);
    })
}

fn change_user(
    request: &Request<'_>,
    command: &Command,
    name: &str,
    change: impl FnOnce(&mut Document),
) -> Result<Outcome> {
    let concern = WriteConcern::parse(command)?;
    let id = format!("{}.{name}", request.database);
    let mut writer = request.node.write(request.context.now);
    let found = stored(&writer, &users_namespace(), &doc! { "_id": id })?;
    let found = found.into_iter().next().ok_or_else(|| unknown(request, name))?;
    let mut document = Document::try_from(&*found.document)?;
    change(&mut document);
    replace_user(&mut writer, &found, &document)?;
    Ok(concern.reply(to_raw(&doc! { "ok": 1.0 })?, writer.last_commit()))
}

pub(super) fn replace_user(
    writer: &mut Writer<'_>,
    found: &Found,
    document: &Document,
) -> Result<()> {
    let mut collection = writer.collection_or_create(&users_namespace())?;
    let (raw, told_as) = (to_raw(document)?, ToldAs::Replacement);
    writer.replace(&mut collection, found.record, &found.document, raw, (&told_as).into(), true)
}

pub(super) fn drop_user(request: &Request<'_>, command: Command) -> Result<Outcome> {
    let fields = Fields::new(&command.body, "dropUser");
    let name = fields.required_string("dropUser")?;
    let id = format!("{}.{name}", request.database);
    match remove_users(request, &doc! { "_id": id })? {
        0 => Err(unknown(request, name)),
        _ => reply(&doc! { "ok": 1.0 }),
    }
}

pub(super) fn drop_all_users(request: &Request<'_>, _: Command) -> Result<Outcome> {
    let removed = remove_users(request, &doc! { "db": request.database })?;
    reply(&doc! { "n": removed as i32, "ok": 1.0 })
}

fn remove_users(request: &Request<'_>, query: &Document) -> Result<usize> {
    let mut writer = request.node.write(request.context.now);
    let found = stored(&writer, &users_namespace(), query)?;
    if let Some(collection) = writer.collection(&users_namespace()) {
        for user in &found {
            writer.remove(&collection, user.record, &user.document)?;
        }
    }
    Ok(found.len())
}

pub(super) fn users_info(request: &Request<'_>, command: Command) -> Result<Outcome> {
    let fields = Fields::new(&command.body, "usersInfo");
    let id = |user: &UserName<'_>| format!("{}.{}", user.database, user.name);
    let query = match AskedUsers::parse(command.body.get("usersInfo"), request.database)? {
        AskedUsers::One(user) => doc! { "_id": id(&user) },
        AskedUsers::Several(users) => {
            doc! { "_id": { "$in": users.iter().map(id).collect::<Vec<_>>() } }
        }
        AskedUsers::OfDatabase => doc! { "db": request.database },
        AskedUsers::OfAllDatabases => doc! {},
    };
    let with_credentials = fields.flag("showCredentials")?;
    let with_custom_data = fields.boolean("showCustomData")?.unwrap_or(true);
    let details = Details::read(&fields)?;
    // MongoDB tells details of users that are named, for the sake of its caches; tools know that.
    if details.any() && !query.contains_key("_id") {
        refuse!(
            ILLEGAL_OPERATION,
            "Privilege or restriction details require exact-match usersInfo queries."
        );
    }
    let filter = fields.document("filter")?.map(Matcher::parse).transpose()?;
    let mut shown = Vec::new();
    for found in find_users(request.node, &query)? {
        let mut user = found.public(with_credentials);
        if !with_custom_data {
            user.remove("customData");
        }
        if details.any() {
            // No role has others.
            let roles = found.roles();
            let named = roles.iter().map(|role| Bson::from(role.to_document()));
            user.insert("inheritedRoles", named.collect::<Vec<_>>());
            details.append(&mut user, &roles);
        }
        if filter.as_ref().map_or(Ok(true), |filter| filter.matches(&user))? {
            shown.push(Bson::from(user));
        }
    }
    reply(&doc! { "users": shown, "ok": 1.0 })
}

fn credentials(
    request: &Request<'_>,
    fields: &Fields<'_>,
    name: &str,
    password: &str,
) -> Result<Document> {
    let wanted = match fields.array("mechanisms")? {
        None => Mechanism::ALL.to_vec(),
        Some([]) => refuse!(BAD_VALUE, "mechanisms field must not be empty"),
        Some(names) => names
            .iter()
            .map(|name| name.as_str().and_then(Mechanism::from_name))
            .collect::<Option<Vec<_>>>()
            .ok_or_else(|| fail!(BAD_VALUE, "mechanisms are SCRAM-SHA-1 and SCRAM-SHA-256"))?,
    };
    let mut stored = Document::new();
    for mechanism in wanted {
        let salt = request.node.random_bytes(mechanism.salt_length());
        let credentials = StoredCredentials::derive(mechanism, name, password, salt);
        let credentials = credentials.map_err(scram_refused)?;
        stored.insert(mechanism.name(), credentials_to_document(&credentials));
    }
    Ok(stored)
}

/// The roles a command names, if it names any. All must exist, and be the client's to give and take.
fn roles(request: &Request<'_>, fields: &Fields<'_>) -> Result<Option<Vec<Bson>>> {
    let Some(named) = fields.array("roles")? else { return Ok(None) };
    let mut roles = Vec::with_capacity(named.len());
    for value in named {
        if let Bson::Document(role) = value {
            check_known(role.keys(), "roles", &["role", "db"])?;
        }
        let role = Role::parse(value, request.database)
            .ok_or_else(|| fail!(BAD_VALUE, "a role is a name or {{role, db}}"))?;
        refuse_if!(!role.exists() => ROLE_NOT_FOUND,
            "Could not find role: {}@{}", role.name, role.database);
        check_grant(request.node, &request.context.client, &role.database)?;
        roles.push(Bson::from(role.to_document()));
    }
    Ok(Some(roles))
}

/// The documents of a collection that match a query, as the writer sees them.
pub(super) fn stored(
    writer: &Writer<'_>,
    namespace: &Namespace,
    query: &Document,
) -> Result<Vec<Found>> {
    let Some(collection) = writer.collection(namespace) else { return Ok(Vec::new()) };
    let matcher = Arc::new(Matcher::parse(query)?);
    let interrupt = InterruptSlot::new(Arc::new(Interrupt::default()));
    Selection::new(collection, writer.view().clone(), matcher, interrupt).run()?.collect()
}

fn unknown(request: &Request<'_>, name: &str) -> CommandError {
    fail!(USER_NOT_FOUND, "User '{name}@{}' not found", request.database)
}
