//! Fields that any command may have: the version of the API, time limits and read concerns. Every
//! command's own fields are checked here too.

use bson::{Bson, Document};
use quorate_protocol::Timestamp;
use quorate_wire::{raw_fields, timestamp_from};

use crate::body::{CommandBody, mark_of};
use crate::command_table::{CommandFacts, Effect, KnownFields};
use crate::context::Command;
use crate::error::Result;
use crate::fields::{Fields, unknown_field, whole_number};
use crate::node::Node;
use crate::touched::writing_stage;

/// Whether every command may have this field.
///
/// Those that clients send are documented with `runCommand`; the others come from routers and members
/// of MongoDB deployments, and are left unread.
pub(crate) fn is_generic(field: &[u8]) -> bool {
    matches!(
        field,
        b"$db"
            | b"$readPreference"
            | b"$clusterTime"
            | b"lsid"
            | b"txnNumber"
            | b"autocommit"
            | b"startTransaction"
            | b"maxTimeMS"
            | b"maxTimeMSOpOnly"
            | b"readConcern"
            | b"writeConcern"
            | b"comment"
            | b"apiVersion"
            | b"apiStrict"
            | b"apiDeprecationErrors"
            | b"rawData"
            | b"$audit"
            | b"$client"
            | b"$configServerState"
            | b"$configTime"
            | b"$topologyTime"
            | b"$oplogQueryData"
            | b"$queryOptions"
            | b"$replData"
            | b"allowImplicitCollectionCreation"
            | b"clientOperationKey"
            | b"coordinator"
            | b"databaseVersion"
            | b"mayBypassWriteBlocking"
            | b"shardVersion"
            | b"help"
    )
}

/// Refuses fields that the command does not have: a misspelt filter would match everything.
pub(crate) fn check_fields(facts: &CommandFacts, body: &CommandBody) -> Result<()> {
    let KnownFields::Only(known) = facts.fields else { return Ok(()) };
    let is_one_of =
        |field: &[u8], names: &[&str]| names.iter().any(|name| name.as_bytes() == field);
    for field in body.raw_keys().skip(1) {
        if is_generic(field) || is_one_of(field, known) {
            continue;
        }
        let is_not_offered = is_one_of(field, facts.not_offered);
        let field = std::str::from_utf8(field).unwrap_or_default();
        if is_not_offered {
            if body.get(field).is_some_and(is_absent) {
                continue;
            }
            refuse!(
                COMMAND_NOT_SUPPORTED,
                "{} with {field} is not supported; leave it out",
                facts.name
            );
        }
        return Err(unknown_field(facts.name, field, known));
    }
    if !body.may_have_one(NESTED_MARKS) {
        return Ok(());
    }
    NESTED.iter().try_for_each(|(field, known)| match body.get_raw_document(field) {
        Some(nested) => {
            let names = raw_fields(nested).map(|field| field.key());
            match names.into_iter().find(|name| !is_one_of(name, known)) {
                Some(name) => {
                    let name = std::str::from_utf8(name).unwrap_or_default();
                    Err(unknown_field(field, name, known))
                }
                None => Ok(()),
            }
        }
        None => Ok(()),
    })
}

/// Documents that many commands take, and their fields. A misspelt level would read what no majority has, a
/// misspelt timeout would wait without end.
const NESTED: [(&str, &[&str]); 4] = [
    ("readConcern", &["level", "afterClusterTime", "atClusterTime", "afterOpTime", "provenance"]),
    (
        "writeConcern",
        &["w", "j", "wtimeout", "fsync", "provenance", "getLastError", "wElectionId", "wOpTime"],
    ),
    ("$readPreference", &["mode", "tags", "maxStalenessSeconds", "hedge"]),
    ("cursor", &["batchSize"]),
];

/// The marks of their names.
const NESTED_MARKS: u64 = {
    let (mut marks, mut place) = (0, 0);
    while place < NESTED.len() {
        marks |= 1 << mark_of(NESTED[place].0.as_bytes());
        place += 1;
    }
    marks
};

/// Whether a value asks for nothing.
fn is_absent(value: &Bson) -> bool {
    match value {
        Bson::Null | Bson::Boolean(false) => true,
        Bson::Array(items) => items.is_empty(),
        _ => false,
    }
}

/// Stages about the server itself, which the stable API leaves out.
const UNSTABLE_STAGES: [&str; 4] =
    ["$currentOp", "$indexStats", "$listLocalSessions", "$listSessions"];

/// Refuses what a command may not ask for.
pub(crate) fn check(node: &Node, facts: &CommandFacts, command: &Command) -> Result<()> {
    let fields = Fields::new(&command.body, facts.name);
    check_api(&fields, facts)?;
    check_time_limit(&fields)?;
    if let Some(preference) = fields.document("$readPreference")? {
        check_read_preference(preference)?;
    }
    if facts.effect == Effect::Reads {
        check_read_concern(node, command)?;
        refuse_write_concern(facts, command)?;
    }
    // A transaction reads a snapshot whatever its statements do.
    if facts.reads_snapshots || fields.has("autocommit") {
        return Ok(());
    }
    // A cursor has its moment already, whatever is said along with its id.
    refuse_if!(wanted_snapshot(command)?.is_some() && facts.name != "getMore" => INVALID_OPTIONS,
        "{} does not support read concern 'snapshot'; use find, aggregate or distinct, or \
         leave the session out", facts.name);
    Ok(())
}

/// The longest time limit, in milliseconds.
const MAX_TIME_LIMIT: i64 = i32::MAX as i64;

/// Refuses a time limit that is no whole number of milliseconds from 0 up.
fn check_time_limit(fields: &Fields<'_>) -> Result<()> {
    let Some(limit) = fields.raw("maxTimeMS") else { return Ok(()) };
    match whole_number(limit) {
        Some(0..=MAX_TIME_LIMIT) => Ok(()),
        Some(limit) => Err(fail!(
            BAD_VALUE,
            "{limit} value for maxTimeMS is out of range [0, {MAX_TIME_LIMIT}]"
        )),
        None => Err(fail!(BAD_VALUE, "maxTimeMS must be a whole number of milliseconds")),
    }
}

/// Refuses a write concern for what writes nothing: the client is not to think that it has waited for a majority.
fn refuse_write_concern(facts: &CommandFacts, command: &Command) -> Result<()> {
    // What is explained may be a write.
    let may_have_one = facts.name == "explain" || writing_stage(&command.body).is_some();
    if may_have_one || !command.body.contains_key("writeConcern") {
        return Ok(());
    }
    Err(fail!(
        INVALID_OPTIONS,
        "Command {} does not support writeConcern; leave it out",
        facts.name
    ))
}

/// The modes of a read preference.
const MODES: [&str; 5] =
    ["primary", "primaryPreferred", "secondary", "secondaryPreferred", "nearest"];

/// The least that `maxStalenessSeconds` may be.
const SMALLEST_MAX_STALENESS_SECONDS: i64 = 90;

/// Refuses a read preference that no client means: a misspelt mode would read from a secondary. Specification: server
/// selection, "Components of a Read Preference".
fn check_read_preference(preference: &Document) -> Result<()> {
    let fields = Fields::new(preference, "$readPreference");
    let mode = fields.string("mode")?.unwrap_or_default();
    refuse_if!(!MODES.contains(&mode) => FAILED_TO_PARSE,
        "Could not parse $readPreference mode '{mode}'; use one of {}", MODES.join(", "));
    let tags = fields.documents("tags")?.unwrap_or_default();
    refuse_if!(mode == "primary" && tags.iter().any(|set| !set.is_empty()) => BAD_VALUE,
        "Only empty tags are allowed with primary read preference");
    // -1 and 0 stand for no limit.
    match fields.integer("maxStalenessSeconds")?.filter(|&seconds| seconds != 0 && seconds != -1) {
        None => Ok(()),
        Some(_) if mode == "primary" => {
            Err(fail!(BAD_VALUE, "maxStalenessSeconds can not be set for the primary mode"))
        }
        Some(seconds) if seconds < SMALLEST_MAX_STALENESS_SECONDS => Err(fail!(
            MAX_STALENESS_OUT_OF_RANGE,
            "maxStalenessSeconds is {seconds}, but must be at least \
                 {SMALLEST_MAX_STALENESS_SECONDS}"
        )),
        Some(_) => Ok(()),
    }
}

/// There is one version of the stable API, and everything here follows it.
fn check_api(fields: &Fields<'_>, facts: &CommandFacts) -> Result<()> {
    match fields.string("apiVersion")? {
        Some("1") => {}
        Some(other) => {
            refuse!(API_VERSION_ERROR, "API version must be \"1\", not \"{other}\"");
        }
        None if fields.has("apiStrict") || fields.has("apiDeprecationErrors") => {
            refuse!(
                API_VERSION_ERROR,
                "apiVersion is needed wherever apiStrict or apiDeprecationErrors is given"
            );
        }
        None => {}
    }
    if !fields.flag("apiStrict")? {
        return Ok(());
    }
    let name = facts.name;
    refuse_if!(!facts.in_stable_api => API_STRICT_ERROR,
        "Provided apiStrict:true, but the command {name} is not in API Version 1");
    let stages = fields.raw("pipeline").and_then(|pipeline| pipeline.as_array());
    let first = stages.and_then(|stages| stages.first()?.as_document()?.keys().next());
    match first {
        Some(stage) if UNSTABLE_STAGES.contains(&stage.as_str()) => Err(fail!(
            API_STRICT_ERROR,
            "stage {stage} is not allowed with 'apiStrict: true' in API Version 1"
        )),
        _ => Ok(()),
    }
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
pub(crate) fn reads_at(facts: &CommandFacts, command: &Command) -> Result<ReadsAt> {
    let snapshot = wanted_snapshot(command)?;
    if let Some(snapshot) = snapshot.filter(|_| facts.reads_snapshots) {
        return Ok(ReadsAt::Snapshot(snapshot.at));
    }
    let concern = command.read_concern()?;
    let Some(concern) = concern.filter(|_| facts.has_default_read_concern) else {
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

/// The snapshot that a command asks for, if it does.
pub(crate) fn wanted_snapshot(command: &Command) -> Result<Option<WantedSnapshot>> {
    let Some(concern) = command.read_concern()? else { return Ok(None) };
    let concern = Fields::new(concern, "readConcern");
    let at = match concern.raw("atClusterTime") {
        Some(Bson::Timestamp(time)) => Some(timestamp_from(*time)),
        Some(other) => return Err(concern.wrong_type("atClusterTime", other, "timestamp")),
        None => None,
    };
    match (concern.string("level")?, at) {
        (Some("snapshot"), at) => Ok(Some(WantedSnapshot { at })),
        (_, Some(_)) => {
            Err(fail!(INVALID_OPTIONS, "atClusterTime is for read concern level 'snapshot' only"))
        }
        (_, None) => Ok(None),
    }
}

/// Without a set there is one copy of the data, and every level but two reads it.
fn check_read_concern(node: &Node, command: &Command) -> Result<()> {
    let Some(concern) = command.read_concern()? else { return Ok(()) };
    let fields = Fields::new(concern, "readConcern");
    refuse_if!(fields.has("afterClusterTime") && fields.has("atClusterTime") => INVALID_OPTIONS,
        "afterClusterTime and atClusterTime cannot both be given");
    match fields.string("level")? {
        None | Some("local" | "available" | "majority") => Ok(()),
        Some(level @ ("linearizable" | "snapshot")) if writing_stage(&command.body).is_some() => {
            let stage = writing_stage(&command.body).unwrap_or_default();
            Err(fail!(
                INVALID_OPTIONS,
                "{stage} cannot be used with a '{level}' read concern level"
            ))
        }
        Some("linearizable" | "snapshot") if node.oplog().is_some() => Ok(()),
        Some(level @ ("linearizable" | "snapshot")) => Err(fail!(
            NOT_A_REPLICA_SET,
            "node needs to be a replica set member to use read concern '{level}'"
        )),
        Some(other) => Err(fail!(
            FAILED_TO_PARSE,
            "'{other}' is not a read concern level; use local, majority or available"
        )),
    }
}
