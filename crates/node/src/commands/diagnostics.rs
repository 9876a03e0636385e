//! Commands that look at the server: ping, buildInfo and their kin.

use bson::{Bson, Document, doc};
use quorate_wire::to_bson_date_time;

use super::common::reply;
use crate::context::{Command, Outcome, Reply};
use crate::dispatch::{Effect, Request};
use crate::error::{CommandError, ErrorCode};
use crate::fields::{Fields, to_raw};

/// The version that clients are told, for those that decide by it. It goes with wire version 21.
const COMPATIBLE_VERSION: &str = "7.0.0";
const COMPATIBLE_VERSION_ARRAY: [i32; 4] = [7, 0, 0, 0];

pub(super) fn ok(_: &Request<'_>, _: Command) -> Result<Outcome, CommandError> {
    reply(&doc! { "ok": 1.0 })
}

pub(super) fn ping(request: &Request<'_>, command: Command) -> Result<Outcome, CommandError> {
    ok(request, command)
}

pub(super) fn build_info(_: &Request<'_>, _: Command) -> Result<Outcome, CommandError> {
    reply(&doc! {
        "version": COMPATIBLE_VERSION,
        "gitVersion": env!("CARGO_PKG_VERSION"),
        "modules": ["quorate"],
        "allocator": "system",
        "javascriptEngine": "none",
        "sysInfo": "deprecated",
        "versionArray": COMPATIBLE_VERSION_ARRAY.map(Bson::from).to_vec(),
        "bits": 64,
        "debug": cfg!(debug_assertions),
        "maxBsonObjectSize": quorate_wire::MAX_BSON_OBJECT_SIZE as i32,
        "storageEngines": ["lsm"],
        "quorateVersion": env!("CARGO_PKG_VERSION"),
        "ok": 1.0,
    })
}

pub(super) fn host_info(request: &Request<'_>, _: Command) -> Result<Outcome, CommandError> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    reply(&doc! {
        "system": {
            "currentTime": to_bson_date_time(request.context.now.wall),
            "hostname": &request.node.options().host,
            "cpuAddrSize": 64,
            "numCores": cores as i32,
            "cpuArch": std::env::consts::ARCH,
        },
        "os": { "type": std::env::consts::OS, "name": std::env::consts::OS, "version": "" },
        "extra": {},
        "ok": 1.0,
    })
}

pub(super) fn whats_my_uri(request: &Request<'_>, _: Command) -> Result<Outcome, CommandError> {
    reply(&doc! { "you": &request.context.client.address, "ok": 1.0 })
}

pub(super) fn list_commands(_: &Request<'_>, _: Command) -> Result<Outcome, CommandError> {
    let mut commands = Document::new();
    for facts in super::TABLE {
        commands.insert(
            facts.name,
            doc! {
                "help": facts.help,
                "requiresAuth": facts.access != crate::dispatch::Access::Anybody,
                "role": facts.access.role(),
                "secondaryOk": facts.effect == Effect::Inspects,
                "adminOnly": facts.admin_only,
                "apiVersions": ["1"],
            },
        );
    }
    reply(&doc! { "commands": commands, "ok": 1.0 })
}

pub(super) fn get_command_line(request: &Request<'_>, _: Command) -> Result<Outcome, CommandError> {
    let options = request.node.options();
    let parsed = doc! {
        "net": {
            "bindIp": options.host.rsplit_once(':').map_or("", |(host, _)| host),
            "compression": { "compressors": options.compressors.join(",") },
        },
        // Drivers' tests look here to learn whether fail points can be set.
        "setParameter": { "enableTestCommands": "1" },
    };
    reply(&doc! { "argv": ["quorate", "serve"], "parsed": parsed, "ok": 1.0 })
}

/// Log lines go to `tracing`, which the shell owns; none are kept here.
pub(super) fn get_log(_: &Request<'_>, command: Command) -> Result<Outcome, CommandError> {
    match command.body.get("getLog") {
        Some(Bson::String(name)) if name == "*" => {
            reply(&doc! { "names": ["global", "startupWarnings"], "ok": 1.0 })
        }
        Some(Bson::String(name)) if name == "global" || name == "startupWarnings" => {
            reply(&doc! { "totalLinesWritten": 0, "log": [], "ok": 1.0 })
        }
        _ => Err(CommandError::new(
            ErrorCode::OPERATION_FAILED,
            "no such log; use getLog: '*' for their names",
        )),
    }
}

pub(super) fn fsync(request: &Request<'_>, command: Command) -> Result<Outcome, CommandError> {
    if Fields::new(&command.body, "fsync").flag("lock")? {
        return Err(CommandError::new(
            ErrorCode::COMMAND_NOT_SUPPORTED,
            "fsync with lock is not supported; copy a snapshot with a backup tool",
        ));
    }
    let (committed, _) = request.node.durability();
    let body = to_raw(&doc! { "numFiles": 1, "ok": 1.0 })?;
    Ok(Outcome::Reply(Reply { body, durable: Some(committed) }))
}

/// The shell knows what is running; a member alone knows only of this command.
pub(super) fn current_operations(
    request: &Request<'_>,
    command: Command,
) -> Result<Outcome, CommandError> {
    let operation = doc! {
        "type": "op",
        "host": &request.node.options().host,
        "client": &request.context.client.address,
        "connectionId": request.context.client.connection_id,
        "active": true,
        "op": "command",
        "ns": format!("{}.$cmd", request.database),
        "command": command.body,
    };
    reply(&doc! { "inprog": [operation], "ok": 1.0 })
}
