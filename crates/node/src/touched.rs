//! The namespaces that a command touches, and the right that each takes.
//!
//! Entries of the command table name one of the functions below. They read the command's document and
//! show every namespace it reads or changes: source and target of a rename, the output of a pipeline,
//! what a view stands on, the command inside an `explain`. Rights and protection are decided from what
//! they show, so both cover the same namespaces.

use bson::Bson;

use crate::body::CommandBody;
use crate::command_table::{Access, CommandFacts, Effect, find};
use crate::error::Result;
use crate::fields::whole_number;
use crate::namespace::PROFILE_COLLECTION;
use crate::users::{AskedUsers, Role, USERS, VERSIONS};

/// Stands for all databases: only roles that reach beyond one database give rights on it.
pub(crate) const EVERY_DATABASE: &str = "";

/// A namespace that a command touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Touch<'a> {
    pub(crate) database: &'a str,
    /// None for the database as a whole.
    pub(crate) collection: Option<&'a str>,
    pub(crate) access: Access,
    /// Whether the command changes it.
    pub(crate) changes: bool,
}

impl Touch<'_> {
    /// The right that it takes, which for some collections is another than for their database.
    pub(crate) fn needed(&self) -> Access {
        if matches!(self.access, Access::Public | Access::LoggedIn | Access::Internal) {
            return self.access;
        }
        let reads = matches!(self.access, Access::Read | Access::Look | Access::Measure);
        match self.collection {
            Some(name) if is_users(self.database, name) && reads => Access::ReadCredentials,
            Some(name) if is_users(self.database, name) => Access::UserAdmin,
            Some(PROFILE_COLLECTION) if reads => Access::ReadProfile,
            Some(PROFILE_COLLECTION) => Access::DatabaseAdmin,
            _ => self.access,
        }
    }
}

/// Whether it is the collection of the users.
pub(crate) fn is_users(database: &str, collection: &str) -> bool {
    (database, collection) == USERS
}

/// Whether it is the collection that says in which form users are stored.
pub(crate) fn is_versions(database: &str, collection: &str) -> bool {
    (database, collection) == VERSIONS
}

/// A command, and the database that it is for.
#[derive(Clone, Copy)]
pub(crate) struct Asked<'a> {
    pub(crate) facts: &'a CommandFacts,
    pub(crate) body: &'a CommandBody,
    pub(crate) database: &'a str,
}

pub(crate) type Visit<'v> = dyn FnMut(Touch<'_>) -> Result<()> + 'v;

fn touch<'a>(facts: &CommandFacts, database: &'a str, collection: Option<&'a str>) -> Touch<'a> {
    Touch { database, collection, access: facts.access, changes: facts.effect == Effect::Writes }
}

/// The database as a whole, or nothing in particular.
pub(crate) fn database(asked: Asked<'_>, visit: &mut Visit<'_>) -> Result<()> {
    let Asked { facts, database, .. } = asked;
    visit(touch(facts, database, None))
}

/// The collection that the first field names.
pub(crate) fn named(asked: Asked<'_>, visit: &mut Visit<'_>) -> Result<()> {
    let Asked { facts, body, database } = asked;
    visit(touch(facts, database, body.first_text()))
}

/// The collection of a cursor. Cursors of commands such as `listCollections` belong to none.
pub(crate) fn cursor(asked: Asked<'_>, visit: &mut Visit<'_>) -> Result<()> {
    let Asked { facts, body, database } = asked;
    let collection = body.get_str("collection").ok();
    let access = match collection {
        Some(name) if name.starts_with("$cmd.list") => Access::Look,
        Some(name) if name.starts_with("$cmd") => Access::LoggedIn,
        _ => facts.access,
    };
    visit(Touch { access, ..touch(facts, database, collection) })
}

/// Whether a pipeline is a change stream on the whole deployment.
fn watches_every_database(stages: &[Bson]) -> bool {
    let first = stages.first().and_then(Bson::as_document);
    let options = first.and_then(|stage| stage.get_document("$changeStream").ok());
    options.is_some_and(|options| options.get_bool("allChangesForCluster").unwrap_or(false))
}

/// What a pipeline reads, and where its documents go.
pub(crate) fn pipeline(asked: Asked<'_>, visit: &mut Visit<'_>) -> Result<()> {
    let Asked { facts, body, database } = asked;
    let source = body.first();
    let stages = body.get_array("pipeline").ok();
    let is_of_database = source.and_then(whole_number) == Some(1);
    let opening = stages.and_then(|stages| stages.first()?.as_document()?.keys().next());
    let access = match opening.map(String::as_str) {
        // These show what belongs to the client, unless a further right is given; the stage asks for it.
        Some("$currentOp" | "$listLocalSessions") if is_of_database => Access::LoggedIn,
        Some("$collStats" | "$indexStats") => Access::Measure,
        _ => facts.access,
    };
    visit(Touch { access, ..touch(facts, database, source.and_then(Bson::as_str)) })?;
    if stages.is_some_and(|stages| watches_every_database(stages)) {
        visit(Touch { collection: None, ..touch(facts, EVERY_DATABASE, None) })?;
    }
    joined(stages.map_or(&[], Vec::as_slice), &mut |collection| {
        let (collection, access) = (Some(collection), Access::Read);
        visit(Touch { database, collection, access, changes: false })
    })?;
    let explains = body.get_bool("explain").unwrap_or(false);
    match stages.and_then(|stages| output(stages, database)) {
        Some((database, collection)) => visit(Touch {
            database,
            collection: Some(collection),
            access: Access::Write,
            changes: !explains,
        }),
        None => Ok(()),
    }
}

/// Shows the other collections that stages read, those of stages inside them too. They nest as deep as a command may.
pub(crate) fn joined<'a>(
    stages: &'a [Bson],
    visit: &mut dyn FnMut(&'a str) -> Result<()>,
) -> Result<()> {
    for (name, argument) in stages.iter().filter_map(Bson::as_document).flatten() {
        match (name.as_str(), argument) {
            ("$unionWith", Bson::String(from)) => visit(from)?,
            ("$lookup" | "$graphLookup" | "$unionWith", Bson::Document(join)) => {
                for from in ["from", "coll"].into_iter().filter_map(|name| join.get_str(name).ok())
                {
                    visit(from)?;
                }
                joined(join.get_array("pipeline").map_or(&[], Vec::as_slice), visit)?;
            }
            ("$facet", Bson::Document(facets)) => {
                for inner in facets.values().filter_map(Bson::as_array) {
                    joined(inner, visit)?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// The stage by which a pipeline writes.
pub(crate) fn writing_stage(command: &CommandBody) -> Option<&str> {
    let last = command.get("pipeline")?.as_array()?.last()?.as_document()?;
    last.keys().next().map(String::as_str).filter(|name| matches!(*name, "$out" | "$merge"))
}

/// Where a pipeline writes, if it does. A target that cannot be read is refused later.
fn output<'a>(stages: &'a [Bson], database: &'a str) -> Option<(&'a str, &'a str)> {
    let last = stages.last()?.as_document()?;
    let (stage, argument) = last.iter().next()?;
    let target = match (stage.as_str(), argument) {
        ("$merge", Bson::Document(merge)) => merge.get("into")?,
        ("$out" | "$merge", other) => other,
        _ => return None,
    };
    match target {
        Bson::String(collection) => Some((database, collection)),
        Bson::Document(target) => {
            Some((target.get_str("db").unwrap_or(database), target.get_str("coll").unwrap_or("")))
        }
        _ => Some((database, "")),
    }
}

/// The collection that goes, and the one that comes or is replaced.
pub(crate) fn rename(asked: Asked<'_>, visit: &mut Visit<'_>) -> Result<()> {
    whole_name(asked, asked.body.first(), visit)?;
    whole_name(asked, asked.body.get("to"), visit)
}

/// The collection that the first field names, with its database.
pub(crate) fn fully_named(asked: Asked<'_>, visit: &mut Visit<'_>) -> Result<()> {
    whole_name(asked, asked.body.first(), visit)
}

fn whole_name(asked: Asked<'_>, name: Option<&Bson>, visit: &mut Visit<'_>) -> Result<()> {
    let Asked { facts, database, .. } = asked;
    match name.and_then(Bson::as_str).and_then(|name| name.split_once('.')) {
        Some((database, collection)) => visit(touch(facts, database, Some(collection))),
        None => visit(touch(facts, database, None)),
    }
}

/// A collection or a view, and what the view stands on.
pub(crate) fn view(asked: Asked<'_>, visit: &mut Visit<'_>) -> Result<()> {
    let Asked { body, database, .. } = asked;
    named(asked, visit)?;
    let Ok(under) = body.get_str("viewOn") else { return Ok(()) };
    let mut reads = |collection| {
        let (collection, access) = (Some(collection), Access::Read);
        visit(Touch { database, collection, access, changes: false })
    };
    reads(under)?;
    joined(body.get_array("pipeline").map_or(&[], Vec::as_slice), &mut reads)
}

/// What the explained command would touch. Nothing is changed.
pub(crate) fn explained(asked: Asked<'_>, visit: &mut Visit<'_>) -> Result<()> {
    let Asked { facts, body, database } = asked;
    let inner = body.first().and_then(Bson::as_document);
    let inner = inner.and_then(|inner| Some((find(inner.keys().next()?)?, inner)));
    match inner {
        // One explain inside another is refused by the command itself.
        Some((known, inner)) if known.name != facts.name => {
            let asked = Asked { facts: known, body: &CommandBody::from(inner.clone()), database };
            (known.touching)(asked, &mut |touch| visit(Touch { changes: false, ..touch }))
        }
        _ => visit(touch(facts, database, None)),
    }
}

/// The database whose collections are listed; for their names alone none, if the client asks for what it may see.
pub(crate) fn listed(asked: Asked<'_>, visit: &mut Visit<'_>) -> Result<()> {
    let Asked { facts, body, database } = asked;
    let is_set = |name: &str| body.get_bool(name).unwrap_or(false);
    let is_own = is_set("nameOnly") && is_set("authorizedCollections");
    let access = if is_own { Access::LoggedIn } else { facts.access };
    visit(Touch { access, ..touch(facts, database, None) })
}

/// The databases whose users are asked for. What asks for no users is refused by the command.
pub(crate) fn users(asked: Asked<'_>, visit: &mut Visit<'_>) -> Result<()> {
    let Asked { facts, body, database } = asked;
    let mut one = |database: &str| visit(touch(facts, database, None));
    match AskedUsers::parse(body.first(), database) {
        Ok(AskedUsers::OfAllDatabases) => one(EVERY_DATABASE),
        Ok(AskedUsers::One(user)) => one(user.database),
        Ok(AskedUsers::Several(users)) if !users.is_empty() => {
            users.iter().try_for_each(|user| one(user.database))
        }
        Ok(AskedUsers::OfDatabase | AskedUsers::Several(_)) | Err(_) => one(database),
    }
}

/// The databases whose roles are asked for. What asks for no roles is refused by the command.
pub(crate) fn roles(asked: Asked<'_>, visit: &mut Visit<'_>) -> Result<()> {
    let Asked { facts, body, database } = asked;
    let mut one = |value: &Bson| {
        let role = Role::asked(value, database);
        visit(touch(facts, role.as_ref().map_or(database, |role| &role.database), None))
    };
    match body.first() {
        Some(Bson::Array(several)) if !several.is_empty() => several.iter().try_for_each(one),
        Some(single) => one(single),
        None => one(&Bson::Null),
    }
}

/// The users of a database or of all, and the collection that holds those of the dump.
pub(crate) fn merged(asked: Asked<'_>, visit: &mut Visit<'_>) -> Result<()> {
    let Asked { facts, body, .. } = asked;
    let of = body.get_str("db").unwrap_or(EVERY_DATABASE);
    visit(touch(facts, of, None))?;
    for name in ["tempUsersCollection", "tempRolesCollection"] {
        let Some((database, collection)) =
            body.get_str(name).ok().and_then(|it| it.split_once('.'))
        else {
            continue;
        };
        let (collection, access) = (Some(collection), Access::Read);
        visit(Touch { database, collection, access, changes: false })?;
    }
    Ok(())
}

/// The server; for `$ownOps` only what the client itself runs.
pub(crate) fn operations(asked: Asked<'_>, visit: &mut Visit<'_>) -> Result<()> {
    let Asked { facts, body, database } = asked;
    let own = match body.get("$ownOps") {
        Some(Bson::Boolean(own)) => *own,
        Some(number) => whole_number(number).is_some_and(|number| number != 0),
        None => false,
    };
    let access = if own { Access::LoggedIn } else { facts.access };
    visit(Touch { access, ..touch(facts, database, None) })
}

#[cfg(test)]
mod tests {
    use bson::{Document, doc};

    use super::*;

    fn touches(body: Document) -> Vec<(String, Option<String>, Access, bool)> {
        let facts = find(body.keys().next().unwrap()).unwrap();
        let mut seen = Vec::new();
        let asked = Asked { facts, body: &CommandBody::from(body), database: "db" };
        let done = (facts.touching)(asked, &mut |touch| {
            let collection = touch.collection.map(str::to_owned);
            seen.push((touch.database.to_owned(), collection, touch.needed(), touch.changes));
            Ok(())
        });
        done.unwrap();
        seen
    }

    fn seen(
        database: &str,
        name: &str,
        access: Access,
        changes: bool,
    ) -> (String, Option<String>, Access, bool) {
        (database.to_owned(), Some(name.to_owned()), access, changes)
    }

    #[test]
    fn a_rename_touches_source_and_target() {
        let command = doc! { "renameCollection": "a.x", "to": "b.y.z" };
        let expected = [seen("a", "x", Access::Shape, true), seen("b", "y.z", Access::Shape, true)];
        assert_eq!(touches(command), expected);
    }

    #[test]
    fn a_pipeline_touches_what_it_reads_and_where_it_writes() {
        let merge = doc! { "$merge": { "into": { "db": "other", "coll": "t" } } };
        let command = doc! { "aggregate": "c", "pipeline": [merge.clone()] };
        let read = seen("db", "c", Access::Read, false);
        assert_eq!(
            touches(command.clone()),
            [read.clone(), seen("other", "t", Access::Write, true)]
        );
        let explained = doc! { "explain": command };
        assert_eq!(touches(explained), [read.clone(), seen("other", "t", Access::Write, false)]);
        let command = doc! { "aggregate": "c", "pipeline": [{ "$out": "t" }] };
        assert_eq!(touches(command), [read, seen("db", "t", Access::Write, true)]);
    }

    #[test]
    fn a_pipeline_touches_what_it_joins() {
        let stages = [
            doc! { "$currentOp": {} },
            doc! { "$lookup": { "from": "a", "pipeline": [{ "$unionWith": "b" }], "as": "x" } },
            doc! { "$facet": { "f": [{ "$graphLookup": { "from": "c" } }], "g": 1 } },
            doc! { "$unionWith": { "coll": "d", "pipeline": [{ "$lookup": { "from": "e" } }] } },
        ];
        let command = doc! { "aggregate": 1, "pipeline": stages.to_vec() };
        let joined = ["a", "b", "c", "d", "e"].map(|name| seen("db", name, Access::Read, false));
        assert_eq!(touches(command.clone())[1..], joined);
        assert_eq!(touches(doc! { "explain": command })[1..], joined);
        let view = doc! { "create": "v", "viewOn": "a", "pipeline": stages[1..].to_vec() };
        assert_eq!(touches(view)[2..], joined);
    }

    #[test]
    fn an_explain_touches_what_its_command_does() {
        let find = doc! { "explain": { "find": "system.profile" } };
        assert_eq!(touches(find), [seen("db", "system.profile", Access::ReadProfile, false)]);
        let delete = doc! { "explain": { "delete": "c", "deletes": [] } };
        assert_eq!(touches(delete), [seen("db", "c", Access::Write, false)]);
    }

    #[test]
    fn a_view_touches_what_it_stands_on() {
        let create = doc! { "create": "v", "viewOn": "system.profile" };
        let expected = [
            seen("db", "v", Access::Shape, true),
            seen("db", "system.profile", Access::ReadProfile, false),
        ];
        assert_eq!(touches(create), expected);
    }

    #[test]
    fn asking_for_users_touches_their_databases() {
        let of = |whom: Bson| -> Vec<String> {
            touches(doc! { "usersInfo": whom }).into_iter().map(|touch| touch.0).collect()
        };
        assert_eq!(of("u".into()), ["db"]);
        assert_eq!(of(doc! { "user": "u", "db": "other" }.into()), ["other"]);
        assert_eq!(of(doc! { "forAllDBs": true }.into()), [EVERY_DATABASE]);
        let listed = Bson::Array(vec!["u".into(), doc! { "user": "u", "db": "other" }.into()]);
        assert_eq!(of(listed), ["db", "other"]);
    }
}
