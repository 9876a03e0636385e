//! Commands that look at the server: ping, buildInfo and their kin.

use std::sync::Arc;

use bson::{Bson, Document, doc};
use quorate_query::matcher::Matcher;

use super::common::reply;
use crate::command_table::{Access, Effect};
use crate::context::{Command, Durable, Outcome, Reply};
use crate::dispatch::Request;
use crate::error::Result;
use crate::fields::{Fields, to_raw, whole_number};
use crate::generic_arguments::is_generic;
use crate::operations::OperationId;
use crate::profile::Profile;
use crate::users::{Rights, session_owner};

/// The version that replies to clients name, for those that decide by it. It goes with wire version 21.
const COMPATIBLE_VERSION: &str = "7.0.0";
const COMPATIBLE_VERSION_ARRAY: [i32; 4] = [7, 0, 0, 0];

pub(super) fn ok(_: &Request<'_>, _: Command) -> Result<Outcome> {
    reply(&doc! { "ok": 1.0 })
}

pub(super) fn ping(request: &Request<'_>, command: Command) -> Result<Outcome> {
    ok(request, command)
}

pub(super) fn build_info(request: &Request<'_>, _: Command) -> Result<Outcome> {
    let mut answer = doc! {
        "version": COMPATIBLE_VERSION,
        "gitVersion": env!("CARGO_PKG_VERSION"),
        "modules": ["quorate"],
        "javascriptEngine": "none",
        "sysInfo": "deprecated",
        "versionArray": COMPATIBLE_VERSION_ARRAY.map(Bson::from).to_vec(),
        "bits": 64,
        "debug": cfg!(debug_assertions),
        "maxBsonObjectSize": quorate_wire::MAX_BSON_OBJECT_SIZE as i32,
        "storageEngines": ["lsm"],
        "quorateVersion": env!("CARGO_PKG_VERSION"),
    };
    if let Some(allocator) = request.node.options().allocator {
        answer.insert("allocator", allocator);
    }
    answer.insert("ok", 1.0);
    reply(&answer)
}

pub(super) fn whats_my_uri(request: &Request<'_>, _: Command) -> Result<Outcome> {
    reply(&doc! { "you": &request.context.client.address, "ok": 1.0 })
}

pub(super) fn list_commands(request: &Request<'_>, _: Command) -> Result<Outcome> {
    let mut commands = Document::new();
    let tests = request.node.options().test_commands;
    for facts in super::TABLE.iter().filter(|facts| tests || !facts.test_only) {
        commands.insert(
            facts.name,
            doc! {
                "help": facts.help,
                "requiresAuth": facts.access != Access::Public,
                "role": facts.access.role(),
                "secondaryOk": facts.effect == Effect::Inspects,
                "secondaryOverrideOk": facts.effect == Effect::Reads,
                "adminOnly": facts.admin_only,
                "apiVersions": if facts.in_stable_api { vec!["1"] } else { vec![] },
                "deprecatedApiVersions": [],
            },
        );
    }
    reply(&doc! { "commands": commands, "ok": 1.0 })
}

pub(super) fn get_command_line(request: &Request<'_>, _: Command) -> Result<Outcome> {
    let options = request.node.options();
    let parsed = doc! {
        "net": {
            "bindIp": options.host.rsplit_once(':').map_or("", |(host, _)| host),
            "compression": { "compressors": options.compressors.join(",") },
        },
        // Drivers' tests look here to learn whether fail points can be set.
        "setParameter": { "enableTestCommands": if options.test_commands { "1" } else { "0" } },
    };
    reply(&doc! { "argv": ["quorate", "serve"], "parsed": parsed, "ok": 1.0 })
}

pub(super) fn fsync(request: &Request<'_>, command: Command) -> Result<Outcome> {
    if Fields::new(&command.body, "fsync").flag("lock")? {
        return super::outside::needs_a_process(request, command);
    }
    let body = to_raw(&doc! { "numFiles": 1, "ok": 1.0 })?;
    Ok(Outcome::Reply(Reply { body, durable: Some(Durable::All), op_time: None }))
}

/// Filters of `currentOp` that are no fields of what it shows.
const CURRENT_OP_OPTIONS: [&str; 5] = ["currentOp", "$all", "$ownOps", "$local", "$truncateOps"];

pub(super) fn current_operations(request: &Request<'_>, command: Command) -> Result<Outcome> {
    let own_only = Fields::new(&command.body, "currentOp").flag("$ownOps")?;
    let filter: Document = command
        .body
        .iter()
        .filter(|(name, _)| !is_generic(name.as_bytes()) && !CURRENT_OP_OPTIONS.contains(name))
        .map(|(name, value)| (name.to_owned(), value.clone()))
        .collect();
    let matcher = Matcher::parse(&filter)?;
    let mut shown = Vec::new();
    for operation in running_operations(request, own_only) {
        if matcher.matches(&*to_raw(&operation)?)? {
            shown.push(Bson::from(operation));
        }
    }
    let mut answer = doc! { "inprog": shown };
    if request.node.write_locks() > 0 {
        answer.insert("fsyncLock", true);
        answer.insert("info", "use db.fsyncUnlock() to terminate the fsync write/snapshot lock");
    }
    answer.insert("ok", 1.0);
    reply(&answer)
}

/// What the stage `$currentOp` starts from: all users' commands for users that may see them, otherwise
/// those of the user.
pub(super) fn visible_operations(request: &Request<'_>, stage: &Document) -> Result<Vec<Document>> {
    let options = stage.get_document("$currentOp").ok();
    let asks_for = |name: &str, otherwise: bool| {
        options.map_or(otherwise, |options| options.get_bool(name).unwrap_or(otherwise))
    };
    let guarded = request.node.options().authentication;
    if guarded && !asks_for("allUsers", false) {
        return Ok(running_operations(request, true));
    }
    if guarded {
        let question = Command::new(doc! { "currentOp": 1, "$db": "admin" });
        request.node.authorize(&request.context.client, &question)?;
    }
    let mut operations = running_operations(request, false);
    if asks_for("idleSessions", true) {
        operations.extend(request.node.inactive_transactions(request.context.now));
    }
    if asks_for("idleCursors", false) {
        operations.extend(request.node.idle_streams(request.context.now)?);
    }
    Ok(operations)
}

/// The commands in progress, or those of the user who asks; without logins those of its connection.
fn running_operations(request: &Request<'_>, own_only: bool) -> Vec<Document> {
    let user = session_owner(request.node, &request.context.client).filter(|_| own_only);
    let (host, now) = (&request.node.options().host, request.context.now);
    let mut operations = request.node.operations().list(host, now, user.as_ref());
    if own_only && user.is_none() {
        let own = request.context.client.connection_id;
        operations.retain(|operation| operation.get_i64("connectionId").is_ok_and(|id| id == own));
    }
    operations
}

pub(super) fn kill_operation(request: &Request<'_>, command: Command) -> Result<Outcome> {
    let Some(id) = Fields::new(&command.body, "killOp").integer("op")? else {
        refuse!(MISSING_FIELD, "Did not provide \"op\" field; currentOp shows it as opid");
    };
    let client = &request.context.client;
    let kills_all = Rights::of(request.node, client)?.allow(Access::ClusterAdmin, request.database);
    // Users stop what they run themselves without a right.
    let by = session_owner(request.node, client).filter(|_| !kills_all);
    // An operation that is gone has stopped, which is all that was asked for.
    if request.node.operations().kill(OperationId(id), by.as_ref()) == Some(false) {
        refuse!(
            UNAUTHORIZED,
            "not authorized to kill what another user runs; it takes the role clusterAdmin"
        );
    }
    reply(&doc! { "info": "attempting to kill op", "ok": 1.0 })
}

pub(super) fn profile(request: &Request<'_>, command: Command) -> Result<Outcome> {
    let fields = Fields::new(&command.body, "profile");
    let level = match fields.integer("profile")? {
        Some(level @ 0..=2) => Some(level as i32),
        Some(-1) | None => None,
        Some(other) => {
            refuse!(BAD_VALUE, "profile takes 0, 1 or 2, or -1 to ask; not {other}");
        }
    };
    let slow = fields.integer("slowms")?;
    refuse_if!(slow.is_some_and(|slow| slow < 0) => BAD_VALUE, "slowms must not be negative");
    let rate = sample_rate(&fields)?;
    let filter = match fields.raw("filter") {
        None => None,
        Some(Bson::String(word)) if word == "unset" => Some(None),
        Some(Bson::Document(filter)) => {
            Some(Some((filter.clone(), Arc::new(Matcher::parse(filter)?))))
        }
        Some(other) => return Err(fields.wrong_type("filter", other, "object")),
    };
    let database = request.database;
    if level.is_some_and(|level| level > 0) {
        refuse_if!(database == "local" => BAD_VALUE, "the database local cannot be profiled");
        request.node.prepare_profile(database, request.context.now)?;
    }
    let mut answer = request.node.profiler().update(|state| {
        let before = state.of(database);
        let mut answer = doc! {
            "was": before.level, "slowms": state.slow_millis, "sampleRate": state.sample_rate,
        };
        if let Some((filter, _)) = &before.filter {
            answer.insert("filter", filter.clone());
            let note = "slowms and sampleRate count for nothing where there is a filter";
            answer.insert("note", note);
        }
        let level = level.unwrap_or(before.level);
        state.set(database, Profile { level, filter: filter.unwrap_or(before.filter) });
        state.slow_millis = slow.unwrap_or(state.slow_millis);
        state.sample_rate = rate.unwrap_or(state.sample_rate);
        answer
    });
    answer.insert("ok", 1.0);
    reply(&answer)
}

/// The share of slow commands that is recorded.
fn sample_rate(fields: &Fields<'_>) -> Result<Option<f64>> {
    let rate = match fields.raw("sampleRate") {
        None => return Ok(None),
        Some(Bson::Double(rate)) => *rate,
        Some(other) => match whole_number(other) {
            Some(rate) => rate as f64,
            None => return Err(fields.wrong_type("sampleRate", other, "double")),
        },
    };
    if (0.0..=1.0).contains(&rate) {
        return Ok(Some(rate));
    }
    Err(fail!(BAD_VALUE, "sampleRate is a share, from 0 to 1"))
}
