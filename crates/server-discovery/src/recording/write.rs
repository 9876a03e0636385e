//! Values to JSON.

use std::time::Duration;

use quorate_protocol::{
    CommandError, HelloReply, ObjectId, OpTime, ServerAddress, TagSet, TopologyVersion,
};
use serde_json::{Map, Value, json};

use super::{RECORDING_VERSION, RecordedInput, RecordingStart};
use crate::command::Input;
use crate::fault::{ApplicationError, CheckFailure};
use crate::options::{DiscoveryOptions, Threading};

pub(super) fn start(start: &RecordingStart) -> Value {
    json!({
        "recording": RECORDING_VERSION,
        "topologyId": start.id.0,
        "seed": start.seed,
        "t_ns": start.at.as_nanos(),
        "options": options(&start.options),
    })
}

fn options(options: &DiscoveryOptions) -> Value {
    json!({
        "seeds": addresses(&options.seeds),
        "directConnection": options.direct_connection,
        "loadBalanced": options.load_balanced,
        "replicaSet": options.set_name,
        "singleThreaded": options.threading == Threading::Single,
        "heartbeatFrequency_ns": options.heartbeat_frequency.map(nanos),
        "connectTimeout_ns": options.connect_timeout.map(nanos),
        "serverMonitoringMode": options.server_monitoring_mode.name(),
        "functionPlatform": options.function_platform.map(|platform| platform.name()),
        "stableApi": options.stable_api,
        "displacedPatience_ns": options.displaced_patience.map(nanos),
        "localThreshold_ns": nanos(options.local_threshold),
        "srvMaxHosts": options.srv_max_hosts,
        "wireVersions": [options.wire_versions.start(), options.wire_versions.end()],
        "driverName": options.driver_name,
    })
}

pub(super) fn input(recorded: &RecordedInput) -> Value {
    let mut line = Map::new();
    line.insert("t_ns".to_owned(), json!(recorded.at.as_nanos()));
    let (name, fields) = fields(&recorded.input);
    line.insert("input".to_owned(), json!(name));
    if let Value::Object(fields) = fields {
        line.extend(fields);
    }
    Value::Object(line)
}

fn fields(input: &Input) -> (&'static str, Value) {
    match input {
        Input::HelloReceived { server, check, reply, round_trip, more_to_come } => (
            "helloReceived",
            json!({
                "server": server.as_str(),
                "check": check.0,
                "roundTrip_ns": nanos(*round_trip),
                "moreToCome": more_to_come,
                "reply": self::reply(reply),
            }),
        ),
        Input::CheckFailed { server, check, failure } => (
            "checkFailed",
            json!({
                "server": server.as_str(),
                "check": check.0,
                "failure": self::failure(failure),
            }),
        ),
        Input::RoundTripMeasured { server, check, round_trip } => (
            "roundTripMeasured",
            json!({
                "server": server.as_str(),
                "check": check.0,
                "roundTrip_ns": round_trip.map(nanos),
            }),
        ),
        Input::HandshakeReceived { server, reply } => {
            ("handshakeReceived", json!({"server": server.as_str(), "reply": self::reply(reply)}))
        }
        Input::ApplicationFailed {
            server,
            generation,
            service_id,
            handshake,
            max_wire_version,
            overloaded,
            cause,
        } => (
            "applicationFailed",
            json!({
                "server": server.as_str(),
                "generation": generation.0,
                "serviceId": service_id.map(|id| id.to_string()),
                "handshake": handshake.name(),
                "maxWireVersion": max_wire_version,
                "overloaded": overloaded,
                "cause": self::cause(cause),
            }),
        ),
        Input::CheckWanted => ("checkWanted", json!({})),
        Input::ScanWanted => ("scanWanted", json!({})),
        Input::ServerCheckWanted { server } => {
            ("serverCheckWanted", json!({"server": server.as_str()}))
        }
        Input::SeedsResolved(seeds) => ("seedsResolved", json!({"seeds": addresses(seeds)})),
        Input::Tick => ("tick", json!({})),
        Input::Close => ("close", json!({})),
    }
}

fn failure(failure: &CheckFailure) -> Value {
    json!({"kind": failure.kind.name(), "message": failure.message})
}

fn cause(cause: &ApplicationError) -> Value {
    match cause {
        ApplicationError::Network(message) => json!({"kind": "network", "message": message}),
        ApplicationError::NetworkTimeout(message) => {
            json!({"kind": "timeout", "message": message})
        }
        ApplicationError::Establishment(message) => {
            json!({"kind": "establishment", "message": message})
        }
        ApplicationError::Command(error) => {
            let CommandError { code, message, topology_version: version, .. } = &**error;
            json!({
                "kind": "command",
                "code": code,
                "message": message,
                "topologyVersion": version.map(topology_version),
            })
        }
    }
}

/// A reply with the server's own names. Absent fields are left out.
pub(crate) fn reply(reply: &HelloReply) -> Value {
    let mut told = Map::new();
    let mut put = |name: &str, value: Value| {
        let absent = match &value {
            Value::Null | Value::Bool(false) => true,
            Value::Array(list) => list.is_empty(),
            Value::Object(document) => document.is_empty(),
            _ => false,
        };
        if !absent {
            told.insert(name.to_owned(), value);
        }
    };
    put("ok", json!(reply.ok));
    put("isWritablePrimary", json!(reply.is_writable_primary));
    put("helloOk", json!(reply.hello_ok));
    put("isdbgrid", json!(reply.is_dbgrid));
    put("isreplicaset", json!(reply.is_replica_set));
    put("secondary", json!(reply.secondary));
    put("arbiterOnly", json!(reply.arbiter_only));
    put("passive", json!(reply.passive));
    put("hidden", json!(reply.hidden));
    put("setName", json!(reply.set_name));
    put("setVersion", json!(reply.set_version.map(|version| version.0)));
    put("electionId", json!(reply.election_id.map(|id| id.to_string())));
    put("hosts", addresses(&reply.hosts));
    put("passives", addresses(&reply.passives));
    put("arbiters", addresses(&reply.arbiters));
    put("primary", json!(reply.primary.as_ref().map(ServerAddress::as_str)));
    put("me", json!(reply.me.as_ref().map(ServerAddress::as_str)));
    put("tags", tags(&reply.tags));
    put("minWireVersion", json!(reply.wire_versions.min));
    put("maxWireVersion", json!(reply.wire_versions.max));
    if let Some(write) = reply.last_write {
        // Always told, even when empty: the reply had one.
        let date = write.last_write_date.map(|date| date.as_millis());
        let value = json!({"opTime": write.op_time.map(op_time), "lastWriteDate_ms": date});
        put("lastWrite", value);
    }
    put("logicalSessionTimeoutMinutes", json!(reply.logical_session_timeout_minutes));
    put("topologyVersion", json!(reply.topology_version.map(topology_version)));
    put("iscryptd", json!(reply.iscryptd));
    put("serviceId", json!(reply.service_id.map(|id| id.to_string())));
    put("connectionId", json!(reply.connection_id));
    Value::Object(told)
}

fn tags(tags: &TagSet) -> Value {
    Value::Object(tags.iter().map(|(name, value)| (name.to_owned(), json!(value))).collect())
}

fn op_time(op_time: OpTime) -> Value {
    json!({"ts": op_time.timestamp.as_u64(), "t": op_time.term})
}

fn topology_version(version: TopologyVersion) -> Value {
    let process: ObjectId = version.process_id;
    json!({"processId": process.to_string(), "counter": version.counter})
}

fn addresses(addresses: &[ServerAddress]) -> Value {
    addresses.iter().map(ServerAddress::as_str).collect()
}

/// Durations are written in nanoseconds; those beyond the range, some 584 years, as the longest.
fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
