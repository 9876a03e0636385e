//! `server_selection`: which servers are suitable, which are near, how often each is chosen, and how
//! round trips are averaged.
//!
//! Three kinds of files lie in as many folders. Whatever a file says that this runner does not know
//! is a failure, so that no expectation goes unread.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use quorate_protocol::{
    HelloReply, LastWrite, MonotonicTime, ReadPreference, ReadPreferenceMode, ServerAddress,
    SplitMix64, TagSet, WallTime,
};
use quorate_server_discovery::{
    RoundTripEstimator, RoundTrips, SelectionCriteria, SelectionRequest, SelectionSettings,
    ServerDescription, ServerType, TopologyDescription, latency_window,
};
use serde_json::{Map, Value};

use crate::discovery_and_monitoring::list;
use crate::harness::address;
use crate::{Result, ScenarioFile, ensure};

/// Where the random numbers start; any other number would do.
const SEED: u64 = 0x5175_6f72_6174_6521;

/// How often a server is drawn in scenarios that only say which may be.
const DRAWS: usize = 64;

pub(crate) fn check(file: &ScenarioFile) -> Result<()> {
    if file.name.contains("in_window") {
        check_frequencies(&file.json)
    } else if file.name.contains("rtt") {
        check_average(&file.json)
    } else {
        check_selection(&file.json)
    }
}

/// A scenario of `server_selection/server_selection` or of `max_staleness`.
pub(crate) fn check_selection(json: &Value) -> Result<()> {
    let known = [
        "topology_description", "operation", "read_preference", "deprioritized_servers",
        "heartbeatFrequencyMS", "suitable_servers", "in_latency_window", "error",
    ];
    only(object(json)?, &known)?;
    let topology = topology(json)?;
    let preference = read_preference(json.get("read_preference"))?;
    let criteria = match json.get("operation").and_then(Value::as_str) {
        Some("write") => SelectionCriteria::Write,
        Some("read") | None => SelectionCriteria::Read(&preference),
        Some(other) => bail!("an operation {other:?}"),
    };
    let deprioritized = addresses(list(json, "deprioritized_servers"))?;
    let request = SelectionRequest { criteria, deprioritized: &deprioritized, selector: None };

    if json.get("error").and_then(Value::as_bool) == Some(true) {
        let selected = topology.select(&request, 0, |_| 0);
        return match (selected, topology.suitable_servers(&request)) {
            (Err(_), Err(_)) => Ok(()),
            _ => Err("selection is expected to fail".into()),
        };
    }
    let suitable = topology.suitable_servers(&request)?;
    let window = latency_window(&suitable, topology.selection_settings().local_threshold);
    same_servers("suitable_servers", json, &suitable)?;
    same_servers("in_latency_window", json, &window)?;

    let mut random = SplitMix64::new(SEED);
    for _ in 0..DRAWS {
        let chosen = topology.select(&request, random.next_u64(), |_| 0)?;
        let is_near = |chosen| window.iter().any(|server| Arc::ptr_eq(server, chosen));
        match chosen {
            Some(chosen) if is_near(chosen) => {}
            None if window.is_empty() => {}
            other => bail!("{other:?} was chosen from {window:?}"),
        }
    }
    Ok(())
}

/// `in_window`: how often each server is chosen, given how busy it is.
fn check_frequencies(json: &Value) -> Result<()> {
    let known =
        ["description", "topology_description", "mocked_topology_state", "iterations", "outcome"];
    only(object(json)?, &known)?;
    let topology = topology(json)?;
    let mut operation_counts = BTreeMap::new();
    for state in list(json, "mocked_topology_state") {
        let count = state.get("operation_count").and_then(Value::as_u64).ok_or("no count")?;
        operation_counts.insert(address(state.get("address"))?, count);
    }
    let preference = ReadPreference::new(ReadPreferenceMode::Nearest);
    let request = SelectionRequest::read(&preference);
    let iterations = json.get("iterations").and_then(Value::as_u64).ok_or("no iterations")?;
    let mut chosen: BTreeMap<ServerAddress, u64> = BTreeMap::new();
    let mut random = SplitMix64::new(SEED);
    for _ in 0..iterations {
        let server = topology
            .select(&request, random.next_u64(), |server| {
                operation_counts.get(server).copied().unwrap_or(0)
            })?
            .ok_or("nothing was chosen")?;
        *chosen.entry(server.address().clone()).or_default() += 1;
    }
    let outcome = json.get("outcome").ok_or("no outcome")?;
    only(object(outcome)?, &["tolerance", "expected_frequencies"])?;
    let tolerance = outcome.get("tolerance").and_then(Value::as_f64).ok_or("no tolerance")?;
    for (host, expected) in object(outcome.get("expected_frequencies").unwrap_or(&Value::Null))? {
        let server: ServerAddress = host.parse()?;
        let expected = expected.as_f64().ok_or("a bad frequency")?;
        let found = chosen.get(&server).copied().unwrap_or(0) as f64 / iterations as f64;
        // The specification makes both ends exact.
        let tolerance = if expected == 0.0 || expected == 1.0 { 0.0 } else { tolerance };
        if (found - expected).abs() > tolerance {
            bail!("{host} was chosen {found} of the time, expected {expected}");
        }
    }
    Ok(())
}

/// `rtt`: the moving average after one more sample.
fn check_average(json: &Value) -> Result<()> {
    only(object(json)?, &["avg_rtt_ms", "new_rtt_ms", "new_avg_rtt"])?;
    let mut estimator = RoundTripEstimator::new();
    match json.get("avg_rtt_ms") {
        Some(Value::String(null)) if null == "NULL" => {}
        average => estimator.record(millis(average)?),
    }
    estimator.record(millis(json.get("new_rtt_ms"))?);
    let (found, expected) = (estimator.average(), millis(json.get("new_avg_rtt"))?);
    ensure(found == Some(expected), || format!("the average is {found:?}, expected {expected:?}"))
}

fn topology(json: &Value) -> Result<TopologyDescription> {
    let described = json.get("topology_description").ok_or("no topology_description")?;
    only(object(described)?, &["type", "servers"])?;
    let kind = described.get("type").and_then(Value::as_str).ok_or("no topology type")?.parse()?;
    let servers = list(described, "servers").iter().map(server).collect::<Result<Vec<_>>>()?;
    let mut settings = SelectionSettings::default();
    if let Some(frequency) = json.get("heartbeatFrequencyMS") {
        settings.heartbeat_frequency = millis(Some(frequency))?;
    }
    Ok(TopologyDescription::assemble(kind, servers, settings))
}

fn server(json: &Value) -> Result<ServerDescription> {
    let known =
        ["address", "type", "avg_rtt_ms", "tags", "maxWireVersion", "lastWrite", "lastUpdateTime"];
    only(object(json)?, &known)?;
    let address = address(json.get("address"))?;
    let kind: ServerType =
        json.get("type").and_then(Value::as_str).ok_or("no server type")?.parse()?;
    let described = match kind {
        ServerType::Unknown => ServerDescription::unknown(address),
        ServerType::PossiblePrimary => ServerDescription::unknown(address).into_possible_primary(),
        ServerType::LoadBalancer => ServerDescription::load_balancer(address),
        kind => {
            let average = json.get("avg_rtt_ms").map(|rtt| millis(Some(rtt))).transpose()?;
            let updated = json.get("lastUpdateTime").map_or(Some(0), Value::as_u64);
            ServerDescription::from_reply(
                address,
                Arc::new(reply(json, kind)?),
                RoundTrips { average, minimum: average },
                MonotonicTime::from_millis(updated.ok_or("a bad lastUpdateTime")?),
            )
        }
    };
    match described.server_type() == kind {
        true => Ok(described),
        false => Err(format!("{} was to be of type {kind}", described.address()).into()),
    }
}

/// A reply that gives a server the type that the scenario says it has.
fn reply(json: &Value, kind: ServerType) -> Result<HelloReply> {
    let is_member = matches!(
        kind,
        ServerType::RsPrimary
            | ServerType::RsSecondary
            | ServerType::RsArbiter
            | ServerType::RsOther
    );
    let mut reply = HelloReply {
        ok: true,
        is_writable_primary: kind == ServerType::RsPrimary,
        secondary: kind == ServerType::RsSecondary,
        arbiter_only: kind == ServerType::RsArbiter,
        is_dbgrid: kind == ServerType::Mongos,
        is_replica_set: kind == ServerType::RsGhost,
        set_name: is_member.then(|| "rs".to_owned()),
        tags: tags(json.get("tags"))?,
        ..HelloReply::default()
    };
    if let Some(version) = json.get("maxWireVersion") {
        let version = version.as_i64().and_then(|version| i32::try_from(version).ok());
        reply.wire_versions.max = version.ok_or("a bad maxWireVersion")?;
    }
    if let Some(last_write) = json.get("lastWrite") {
        let date = last_write
            .get("lastWriteDate")
            .and_then(|date| date.get("$numberLong"))
            .and_then(Value::as_str)
            .and_then(|number| number.parse().ok())
            .ok_or("a bad lastWriteDate")?;
        reply.last_write = Some(LastWrite { op_time: None, last_write_date: Some(WallTime(date)) });
    }
    Ok(reply)
}

fn read_preference(json: Option<&Value>) -> Result<ReadPreference> {
    let Some(json) = json else { return Ok(ReadPreference::PRIMARY) };
    only(object(json)?, &["mode", "tag_sets", "maxStalenessSeconds"])?;
    let mode = match json.get("mode").and_then(Value::as_str) {
        Some(mode) => mode.parse()?,
        None => ReadPreferenceMode::Primary,
    };
    let tag_sets =
        list(json, "tag_sets").iter().map(|set| tags(Some(set))).collect::<Result<Vec<_>, _>>()?;
    let max_staleness = match json.get("maxStalenessSeconds") {
        Some(seconds) => {
            Some(Duration::from_secs(seconds.as_u64().ok_or("a bad maxStalenessSeconds")?))
        }
        None => None,
    };
    Ok(ReadPreference { tag_sets, max_staleness, ..ReadPreference::new(mode) })
}

fn tags(json: Option<&Value>) -> Result<TagSet> {
    let Some(json) = json else { return Ok(TagSet::EMPTY) };
    object(json)?
        .iter()
        .map(|(name, value)| Ok((name.clone(), value.as_str().ok_or("a bad tag")?.to_owned())))
        .collect()
}

/// Milliseconds with a fraction, exact to the nanosecond.
fn millis(json: Option<&Value>) -> Result<Duration> {
    let millis = json.and_then(Value::as_f64).filter(|millis| *millis >= 0.0);
    Ok(Duration::from_nanos((millis.ok_or("a bad duration")? * 1e6).round() as u64))
}

fn addresses(servers: &[Value]) -> Result<Vec<ServerAddress>> {
    servers.iter().map(|server| address(server.get("address"))).collect()
}

fn same_servers(key: &str, json: &Value, found: &[&Arc<ServerDescription>]) -> Result<()> {
    let expected = json.get(key).and_then(Value::as_array).ok_or_else(|| format!("no {key}"))?;
    let mut expected = addresses(expected)?;
    let mut found: Vec<_> = found.iter().map(|server| server.address().clone()).collect();
    expected.sort();
    found.sort();
    ensure(found == expected, || format!("{key} are {found:?}, expected {expected:?}"))
}

fn object(json: &Value) -> Result<&Map<String, Value>> {
    json.as_object().ok_or_else(|| format!("{json} is no object").into())
}

fn only(object: &Map<String, Value>, known: &[&str]) -> Result<()> {
    match object.keys().find(|key| !known.contains(&key.as_str())) {
        Some(key) => Err(format!("{key:?} is not understood").into()),
        None => Ok(()),
    }
}
