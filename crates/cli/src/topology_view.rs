//! A topology as the fields of an event, alike in every command that tells of one.
//!
//! Scripts rely on `type`, `primary` and `servers`: these fields keep their names.

use quorate_server_discovery::{ServerDescription, TopologyDescription};
use serde_json::{Value, json};

/// The fields of a `topology` event.
pub(crate) fn topology_to_json(topology: &TopologyDescription) -> Value {
    let servers = topology.servers().iter();
    json!({
        "type": topology.topology_type().name(),
        "primary": topology.primary().map(|primary| primary.address().as_str()),
        "servers": topology.servers().len(),
        "setName": topology.set_name(),
        "members": servers.map(|server| server_to_json(server)).collect::<Value>(),
    })
}

/// The fields of an event about a server.
pub(crate) fn server_to_json(server: &ServerDescription) -> Value {
    json!({
        "address": server.address().as_str(),
        "type": server.server_type().name(),
        "rtt_ms": server.round_trip_time().map(|round_trip| round_trip.as_secs_f64() * 1e3),
        "error": server.error().map(ToString::to_string),
    })
}
