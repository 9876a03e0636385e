//! `discovery_and_monitoring` without `unified`: replies and errors in, a topology description out.

use std::collections::BTreeSet;

use quorate_protocol::{ElectionId, SetVersion, TopologyVersion};
use quorate_server_discovery::{ServerDescription, ServerType};
use serde_json::{Map, Value};

use crate::harness::{Harness, address};
use crate::{Context, Result, ScenarioFile, ensure};

pub(crate) fn check(file: &ScenarioFile) -> Result<()> {
    play(file, |harness, outcome| {
        topology_is(harness, outcome.as_object().ok_or("the outcome is no document")?)
    })
}

/// Plays the phases of a scenario one after the other, and judges the outcome of each.
pub(crate) fn play(
    file: &ScenarioFile,
    judge: impl Fn(&mut Harness, &Value) -> Result<()>,
) -> Result<()> {
    let uri = file.json.get("uri").and_then(Value::as_str).ok_or("no uri")?;
    let phases = file.json.get("phases").and_then(Value::as_array).ok_or("no phases")?;
    let mut harness = Harness::new(uri)?;
    for (number, phase) in phases.iter().enumerate() {
        for response in list(phase, "responses") {
            harness.respond(response)?;
        }
        for error in list(phase, "applicationErrors") {
            harness.fail_application(error)?;
        }
        let outcome = phase.get("outcome").ok_or("no outcome")?;
        judge(&mut harness, outcome).context(format_args!("phase {number}"))?;
    }
    Ok(())
}

pub(crate) fn list<'v>(value: &'v Value, key: &str) -> &'v [Value] {
    value.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn topology_is(harness: &Harness, outcome: &Map<String, Value>) -> Result<()> {
    let description = harness.topology.description();
    for (key, expected) in outcome {
        match key.as_str() {
            "topologyType" => same(key, description.topology_type().name(), text(expected))?,
            "setName" => same(key, description.set_name(), expected.as_str())?,
            "logicalSessionTimeoutMinutes" => {
                same(key, description.logical_session_timeout_minutes(), expected.as_i64())?;
            }
            "maxSetVersion" => {
                same(key, description.max_set_version(), expected.as_i64().map(SetVersion))?;
            }
            "maxElectionId" => same(key, description.max_election_id(), election_id(expected)?)?,
            "compatible" => same(key, Some(description.is_compatible()), expected.as_bool())?,
            "servers" => {
                let expected = expected.as_object().ok_or("servers is no document")?;
                let names: BTreeSet<&str> = expected.keys().map(String::as_str).collect();
                let found = description.servers().addresses().iter();
                same(key, found.map(|address| address.as_str()).collect(), names)?;
                for (name, expected) in expected {
                    let address = address(Some(&Value::String(name.clone())))?;
                    let server = description.server(&address).ok_or("a server is missing")?;
                    server_is(harness, server, expected).context(name)?;
                }
            }
            other => bail!("an outcome with the unknown key {other}"),
        }
    }
    Ok(())
}

fn server_is(harness: &Harness, server: &ServerDescription, expected: &Value) -> Result<()> {
    for (key, expected) in expected.as_object().ok_or("a server that is no document")? {
        match key.as_str() {
            // To a client that checks servers in parallel, a rumoured primary is an Unknown server.
            "type" if server.server_type() == ServerType::PossiblePrimary => {
                same(key, "Unknown", text(expected)).or(same(
                    key,
                    "PossiblePrimary",
                    text(expected),
                ))?;
            }
            "type" => same(key, server.server_type().name(), text(expected))?,
            "error" => {
                let error = server.error().map(ToString::to_string).unwrap_or_default();
                if !error.contains(text(expected)) {
                    bail!("error {error:?} does not contain {expected}");
                }
            }
            "setName" => same(key, server.set_name(), expected.as_str())?,
            "setVersion" => same(key, server.set_version(), expected.as_i64().map(SetVersion))?,
            "electionId" => same(key, server.election_id(), election_id(expected)?)?,
            "logicalSessionTimeoutMinutes" => {
                same(key, server.logical_session_timeout_minutes(), expected.as_i64())?;
            }
            // Null is what a server that never answers, a load balancer, is expected to have.
            "minWireVersion" | "maxWireVersion" if expected.is_null() => {
                same(key, server.reply().is_none(), true)?;
            }
            "minWireVersion" => {
                same(key, Some(i64::from(server.wire_versions().min)), expected.as_i64())?;
            }
            "maxWireVersion" => {
                same(key, Some(i64::from(server.wire_versions().max)), expected.as_i64())?;
            }
            "topologyVersion" => {
                same(key, server.topology_version(), topology_version(expected)?)?;
            }
            "pool" => {
                let generation = harness.topology.pool_generation(server.address(), None);
                let expected = expected.get("generation").and_then(Value::as_u64);
                same(key, generation.map(|generation| generation.0), expected)?;
            }
            other => bail!("a server with the unknown key {other}"),
        }
    }
    Ok(())
}

fn same<T: PartialEq + std::fmt::Debug>(key: &str, found: T, expected: T) -> Result<()> {
    ensure(found == expected, || format!("{key} is {found:?}, expected {expected:?}"))
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn election_id(value: &Value) -> Result<Option<ElectionId>> {
    match value {
        Value::Null => Ok(None),
        value => {
            let id = text(&value["$oid"]).parse()?;
            Ok(Some(ElectionId(id)))
        }
    }
}

fn topology_version(value: &Value) -> Result<Option<TopologyVersion>> {
    if value.is_null() {
        return Ok(None);
    }
    let process_id = text(&value["processId"]["$oid"]).parse();
    let counter = text(&value["counter"]["$numberLong"]).parse();
    Ok(Some(TopologyVersion { process_id: process_id?, counter: counter? }))
}
