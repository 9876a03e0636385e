//! Events in lines: what a server was, what it is, and why.

use std::io;

use quorate_protocol::MonotonicTime;
use quorate_server_discovery::{DiscoveryEvent, ServerDescription, TopologyDescription};
use serde_json::json;

use crate::screen::{QUIET, STRONG, Screen, WARNING};
use crate::topology_view::{server_to_json, topology_to_json};
use crate::words::{Counted, Foreign, Span};

/// Puts events into words.
pub(super) struct Teller {
    began: MonotonicTime,
}

impl Teller {
    pub(super) fn new(began: MonotonicTime) -> Self {
        Self { began }
    }

    /// Tells an event, if it is worth telling.
    pub(super) fn tell(
        &self,
        at: MonotonicTime,
        event: &DiscoveryEvent,
        screen: &mut Screen,
    ) -> io::Result<()> {
        match event {
            DiscoveryEvent::TopologyDescriptionChanged { new, .. } => {
                self.line(at, &format!("{STRONG}{}{STRONG:#}", summary(new)), screen)?;
                screen.event_at(at, "topology", topology_to_json(new))
            }
            DiscoveryEvent::ServerDescriptionChanged { previous, new } => {
                self.line(at, &change(previous, new), screen)?;
                let mut fields = server_to_json(new);
                fields["previous"] = previous.server_type().name().into();
                screen.event_at(at, "server", fields)
            }
            DiscoveryEvent::ServerOpening { address } => {
                self.line(at, &format!("{address} found"), screen)?;
                screen.event_at(at, "server_found", json!({"address": address.as_str()}))
            }
            DiscoveryEvent::ServerClosed { address, reason } => {
                let reason = Foreign(reason).to_string();
                self.line(at, &format!("{address} dropped: {reason}"), screen)?;
                let fields = json!({"address": address.as_str(), "reason": reason});
                screen.event_at(at, "server_dropped", fields)
            }
            DiscoveryEvent::ServerHeartbeatFailed { heartbeat, duration, failure } => {
                let (address, failure) = (&heartbeat.address, Foreign(failure).to_string());
                let took = Span(*duration);
                let told =
                    format!("{QUIET}{address} check failed after {took}: {failure}{QUIET:#}");
                self.line(at, &told, screen)?;
                let fields = json!({"address": address.as_str(), "error": failure});
                screen.event_at(at, "check_failed", fields)
            }
            DiscoveryEvent::Warning(warning) => {
                let told = format!("{WARNING}warning{WARNING:#} {}", Foreign(warning));
                self.line(at, &told, screen)?;
                screen.event_at(at, "warning", json!({"message": warning.to_string()}))
            }
            DiscoveryEvent::TopologyOpening
            | DiscoveryEvent::TopologyClosed
            | DiscoveryEvent::ServerHeartbeatStarted { .. }
            | DiscoveryEvent::ServerHeartbeatSucceeded { .. } => Ok(()),
        }
    }

    fn line(&self, at: MonotonicTime, text: &str, screen: &mut Screen) -> io::Result<()> {
        let seconds = at.since(self.began).as_secs_f64();
        screen.line(format_args!("{QUIET}{seconds:>9.3} s{QUIET:#}  {text}"))?;
        screen.flush()
    }
}

fn summary(topology: &TopologyDescription) -> String {
    let mut text = topology.topology_type().to_string();
    if let Some(name) = topology.set_name() {
        text.push_str(&format!(" {}", Foreign(name)));
    }
    text.push_str(&format!(", {}", Counted(topology.servers().len(), "server")));
    if let Some(primary) = topology.primary() {
        text.push_str(&format!(", primary {}", primary.address()));
    } else if topology.topology_type().is_replica_set() {
        text.push_str(", no primary");
    }
    if let Some(error) = topology.compatibility_error() {
        text.push_str(&format!(", incompatible: {}", Foreign(error)));
    }
    text
}

fn change(previous: &ServerDescription, new: &ServerDescription) -> String {
    let (was, is) = (previous.server_type(), new.server_type());
    let mut text = match was == is {
        true => format!("{} {is}, changed", new.address()),
        false => format!("{} {was} → {is}", new.address()),
    };
    if let Some(error) = new.error() {
        text.push_str(&format!(": {}", Foreign(error)));
    } else if let Some(round_trip) = new.round_trip_time() {
        text.push_str(&format!(", {}", Span(round_trip)));
    }
    text
}
