//! `sdam_monitoring`: replies in, events out.

use quorate_protocol::ServerAddress;
use quorate_server_discovery::{DiscoveryEvent, ServerDescription, TopologyDescription};
use serde_json::{Value, json};

use crate::discovery_and_monitoring::{list, play};
use crate::{Result, ScenarioFile};

/// The topology id that the scenarios print; the harness gives it to its topology.
const TOPOLOGY_ID: &str = "42";

pub(crate) fn check(file: &ScenarioFile) -> Result<()> {
    play(file, |harness, outcome| {
        let expected = list(outcome, "events");
        // The scenarios do not speak of heartbeats.
        let found: Vec<Value> = harness.events.drain(..).filter_map(|event| told(&event)).collect();
        if found.len() != expected.len() {
            let found = found.len();
            bail!("{found} events, expected {}", expected.len());
        }
        for (place, (found, expected)) in found.iter().zip(expected).enumerate() {
            if !covers(found, expected) {
                bail!("event {place}: {found}, expected {expected}");
            }
        }
        Ok(())
    })
}

/// Whether everything that the scenario tells is there. Lists must have the same length.
fn covers(found: &Value, expected: &Value) -> bool {
    match (found, expected) {
        (Value::Object(found), Value::Object(expected)) => expected
            .iter()
            .all(|(key, expected)| covers(found.get(key).unwrap_or(&Value::Null), expected)),
        (Value::Array(found), Value::Array(expected)) => {
            found.len() == expected.len()
                && found.iter().zip(expected).all(|(found, expected)| covers(found, expected))
        }
        (found, expected) => found == expected,
    }
}

fn told(event: &DiscoveryEvent) -> Option<Value> {
    let id = TOPOLOGY_ID;
    Some(match event {
        DiscoveryEvent::TopologyOpening => json!({"topology_opening_event": {"topologyId": id}}),
        DiscoveryEvent::TopologyClosed => json!({"topology_closed_event": {"topologyId": id}}),
        DiscoveryEvent::TopologyDescriptionChanged { previous, new } => {
            json!({"topology_description_changed_event": {
                "topologyId": id,
                "previousDescription": topology(previous),
                "newDescription": topology(new),
            }})
        }
        DiscoveryEvent::ServerOpening { address } => {
            json!({"server_opening_event": {"topologyId": id, "address": address.as_str()}})
        }
        DiscoveryEvent::ServerClosed { address, .. } => {
            json!({"server_closed_event": {"topologyId": id, "address": address.as_str()}})
        }
        DiscoveryEvent::ServerDescriptionChanged { previous, new } => {
            json!({"server_description_changed_event": {
                "topologyId": id,
                "address": new.address().as_str(),
                "previousDescription": server(previous),
                "newDescription": server(new),
            }})
        }
        _ => return None,
    })
}

fn topology(description: &TopologyDescription) -> Value {
    let servers: Vec<Value> = description.servers().iter().map(|known| server(known)).collect();
    let mut told = json!({
        "topologyType": description.topology_type().name(),
        "servers": servers,
    });
    if let Some(name) = description.set_name() {
        told["setName"] = json!(name);
    }
    told
}

fn server(description: &ServerDescription) -> Value {
    let addresses =
        |list: &[ServerAddress]| list.iter().map(|a| a.as_str().to_owned()).collect::<Vec<_>>();
    let mut told = json!({
        "address": description.address().as_str(),
        "arbiters": addresses(description.arbiters()),
        "hosts": addresses(description.hosts()),
        "passives": addresses(description.passives()),
        "type": description.server_type().name(),
    });
    if let Some(primary) = description.primary() {
        told["primary"] = json!(primary.as_str());
    }
    if let Some(name) = description.set_name() {
        told["setName"] = json!(name);
    }
    told
}
