//! Fields that any command may have: the version of the API, time limits and read concerns.

use bson::{Bson, Document};
use quorate_protocol::Timestamp;
use quorate_wire::timestamp_from;

use crate::context::Command;
use crate::dispatch::{CommandFacts, Effect};
use crate::error::{CommandError, ErrorCode};
use crate::fields::Fields;
use crate::node::Node;

/// The commands of version 1 of the stable API.
const STABLE_COMMANDS: [&str; 22] = [
    "aggregate",
    "collMod",
    "count",
    "create",
    "createIndexes",
    "delete",
    "drop",
    "dropDatabase",
    "dropIndexes",
    "endSessions",
    "explain",
    "find",
    "findAndModify",
    "getMore",
    "hello",
    "insert",
    "killCursors",
    "listCollections",
    "listDatabases",
    "listIndexes",
    "ping",
    "update",
];

/// Commands of the stable API that drivers send on their own.
const STABLE_SESSION_COMMANDS: [&str; 3] = ["refreshSessions", "saslStart", "saslContinue"];

/// The commands that can read what was there at one time.
const SNAPSHOT_COMMANDS: [&str; 3] = ["aggregate", "distinct", "find"];

/// Stages about the server itself, which the stable API leaves out.
const UNSTABLE_STAGES: [&str; 4] =
    ["$currentOp", "$indexStats", "$listLocalSessions", "$listSessions"];

/// Refuses what a command may not ask for.
pub(crate) fn check(
    node: &Node,
    facts: &CommandFacts,
    command: &Command,
) -> Result<(), CommandError> {
    let fields = Fields::new(&command.body, facts.name);
    check_api(&fields, facts)?;
    if fields.integer("maxTimeMS")?.is_some_and(|limit| limit < 0) {
        return Err(CommandError::bad_value("maxTimeMS must not be negative"));
    }
    if facts.effect == Effect::Reads {
        check_read_concern(node, &command.body)?;
    }
    if reads_snapshots(facts) {
        return Ok(());
    }
    // A cursor has its moment already, whatever is said along with its id.
    if wanted_snapshot(&fields)?.is_some() && facts.name != "getMore" {
        return Err(CommandError::new(
            ErrorCode::INVALID_OPTIONS,
            format!(
                "{} does not support read concern 'snapshot'; use find, aggregate or distinct, or \
                 leave the session out",
                facts.name
            ),
        ));
    }
    Ok(())
}

/// There is one version of the stable API, and everything here follows it.
fn check_api(fields: &Fields<'_>, facts: &CommandFacts) -> Result<(), CommandError> {
    match fields.string("apiVersion")? {
        Some("1") => {}
        Some(other) => {
            return Err(CommandError::new(
                ErrorCode::API_VERSION_ERROR,
                format!("API version must be \"1\", not \"{other}\""),
            ));
        }
        None if fields.has("apiStrict") || fields.has("apiDeprecationErrors") => {
            return Err(CommandError::new(
                ErrorCode::API_VERSION_ERROR,
                "apiVersion is needed wherever apiStrict or apiDeprecationErrors is given",
            ));
        }
        None => {}
    }
    if !fields.flag("apiStrict")? {
        return Ok(());
    }
    let name = facts.name;
    if !STABLE_COMMANDS.contains(&name) && !STABLE_SESSION_COMMANDS.contains(&name) {
        return Err(CommandError::new(
            ErrorCode::API_STRICT_ERROR,
            format!("Provided apiStrict:true, but the command {name} is not in API Version 1"),
        ));
    }
    let stages = fields.raw("pipeline").and_then(|pipeline| pipeline.as_array());
    let first = stages.and_then(|stages| stages.first()?.as_document()?.keys().next());
    match first {
        Some(stage) if UNSTABLE_STAGES.contains(&stage.as_str()) => Err(CommandError::new(
            ErrorCode::API_STRICT_ERROR,
            format!("stage {stage} is not allowed with 'apiStrict: true' in API Version 1"),
        )),
        _ => Ok(()),
    }
}

/// The stage by which a pipeline writes.
pub(crate) fn writing_stage(command: &Document) -> Option<&str> {
    let last = command.get("pipeline")?.as_array()?.last()?.as_document()?;
    last.keys().next().map(String::as_str).filter(|name| matches!(*name, "$out" | "$merge"))
}

/// The database that a pipeline writes to, if it does. A target that cannot be read is refused later.
pub(crate) fn output_database(command: &Command) -> Option<&str> {
    let stage = writing_stage(&command.body)?;
    let last = command.body.get_array("pipeline").ok()?.last()?.as_document()?;
    let target = match last.get(stage)? {
        Bson::Document(merge) if stage == "$merge" => merge.get("into")?,
        other => other,
    };
    let named = target.as_document().and_then(|target| target.get_str("db").ok());
    Some(named.unwrap_or(command.database()))
}

/// What a read with read concern `snapshot` asks for.
pub(crate) struct WantedSnapshot {
    /// The time; now, if there is none.
    pub(crate) at: Option<Timestamp>,
}

/// The data that a read sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadsAt {
    /// The newest, whenever it looks.
    Newest,
    /// The newest, which must show what had happened at this time.
    NewestAfter(Timestamp),
    /// What a majority has, which must show what had happened at this time, if one is given.
    Majority(Option<Timestamp>),
    /// One time, which later reads may come back to; a new one if none is given.
    Snapshot(Option<Timestamp>),
}

/// The data that a command asks to read. Commands that cannot read another read the newest.
pub(crate) fn reads_at(facts: &CommandFacts, fields: &Fields<'_>) -> Result<ReadsAt, CommandError> {
    let snapshot = wanted_snapshot(fields)?;
    if let Some(snapshot) = snapshot.filter(|_| reads_snapshots(facts)) {
        return Ok(ReadsAt::Snapshot(snapshot.at));
    }
    let concern = fields.document("readConcern")?;
    let Some(concern) = concern.filter(|_| reads_snapshots(facts) || facts.name == "count") else {
        return Ok(ReadsAt::Newest);
    };
    let concern = Fields::new(concern, "readConcern");
    let after = match concern.raw("afterClusterTime") {
        Some(Bson::Timestamp(time)) => Some(timestamp_from(*time)),
        Some(other) => return Err(concern.wrong_type("afterClusterTime", other, "timestamp")),
        None => None,
    };
    Ok(match (concern.string("level")?, after) {
        (Some("majority"), after) => ReadsAt::Majority(after),
        (_, Some(after)) => ReadsAt::NewestAfter(after),
        (_, None) => ReadsAt::Newest,
    })
}

/// Whether a command can read what was there at one time.
pub(crate) fn reads_snapshots(facts: &CommandFacts) -> bool {
    SNAPSHOT_COMMANDS.contains(&facts.name)
}

/// The snapshot that a command asks for, if it does.
pub(crate) fn wanted_snapshot(fields: &Fields<'_>) -> Result<Option<WantedSnapshot>, CommandError> {
    let Some(concern) = fields.document("readConcern")? else { return Ok(None) };
    let concern = Fields::new(concern, "readConcern");
    let at = match concern.raw("atClusterTime") {
        Some(Bson::Timestamp(time)) => Some(timestamp_from(*time)),
        Some(other) => return Err(concern.wrong_type("atClusterTime", other, "timestamp")),
        None => None,
    };
    match (concern.string("level")?, at) {
        (Some("snapshot"), at) => Ok(Some(WantedSnapshot { at })),
        (_, Some(_)) => Err(CommandError::new(
            ErrorCode::INVALID_OPTIONS,
            "atClusterTime is for read concern level 'snapshot' only",
        )),
        (_, None) => Ok(None),
    }
}

/// Without a set there is one copy of the data, and every level but two reads it.
fn check_read_concern(node: &Node, command: &Document) -> Result<(), CommandError> {
    let fields = Fields::new(command, "readConcern");
    let Some(concern) = fields.document("readConcern")? else { return Ok(()) };
    match Fields::new(concern, "readConcern").string("level")? {
        None | Some("local" | "available" | "majority") => Ok(()),
        Some(level @ ("linearizable" | "snapshot")) if writing_stage(command).is_some() => {
            let stage = writing_stage(command).unwrap_or_default();
            Err(CommandError::new(
                ErrorCode::INVALID_OPTIONS,
                format!("{stage} cannot be used with a '{level}' read concern level"),
            ))
        }
        Some("linearizable" | "snapshot") if node.oplog().is_some() => Ok(()),
        Some(level @ ("linearizable" | "snapshot")) => Err(CommandError::new(
            ErrorCode::NOT_A_REPLICA_SET,
            format!("node needs to be a replica set member to use read concern '{level}'"),
        )),
        Some(other) => Err(CommandError::new(
            ErrorCode::FAILED_TO_PARSE,
            format!("'{other}' is not a read concern level; use local, majority or available"),
        )),
    }
}
