//! Events in lines: what a server was, what it is, and why.

use std::io;

use quorate_protocol::{Counted, MonotonicTime, ServerAddress};
use quorate_server_discovery::{DiscoveryEvent, ServerDescription, TopologyDescription};
use serde_json::{Value, json};

use crate::clock;
use crate::screen::{QUIET, STRONG, Screen, WARNING};
use crate::topology_view::{server_to_json, topology_to_json};
use crate::words::{Foreign, Span};

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
        let told = |name: &str, mut fields: Value, screen: &mut Screen| {
            fields["time"] = clock::rfc3339(clock::wall_time(at)).into();
            screen.event_at(at, name, fields)
        };
        match event {
            DiscoveryEvent::TopologyDescriptionChanged { new, .. } => {
                self.line(at, &format!("{STRONG}{}{STRONG:#}", summary(new)), screen)?;
                told("topology", topology_to_json(new), screen)
            }
            DiscoveryEvent::ServerDescriptionChanged { previous, new } => {
                self.line(at, &change(previous, new), screen)?;
                let mut fields = server_to_json(new);
                fields["previous"] = previous.server_type().name().into();
                fields["changed"] = changes(previous, new).into();
                told("server", fields, screen)
            }
            DiscoveryEvent::ServerOpening { address } => {
                self.line(at, &format!("{address} found"), screen)?;
                told("server_found", json!({"address": address.as_str()}), screen)
            }
            DiscoveryEvent::ServerClosed { address, reason } => {
                let reason = Foreign(reason).to_string();
                self.line(at, &format!("{address} dropped: {reason}"), screen)?;
                let fields = json!({"address": address.as_str(), "reason": reason});
                told("server_dropped", fields, screen)
            }
            DiscoveryEvent::ServerHeartbeatFailed { heartbeat, duration, failure } => {
                let (address, failure) = (&heartbeat.address, Foreign(failure).to_string());
                let took = Span(*duration);
                let text =
                    format!("{QUIET}{address} check failed after {took}: {failure}{QUIET:#}");
                self.line(at, &text, screen)?;
                let fields = json!({"address": address.as_str(), "error": failure});
                told("check_failed", fields, screen)
            }
            DiscoveryEvent::Warning(warning) => {
                let text = format!("{WARNING}warning{WARNING:#} {}", Foreign(warning));
                self.line(at, &text, screen)?;
                told("warning", json!({"message": warning.to_string()}), screen)
            }
            // The beginning and the end of the topology, and checks that bring no news.
            _ => Ok(()),
        }
    }

    /// Tells that the login is refused.
    pub(super) fn tell_login(
        &self,
        at: MonotonicTime,
        why: &str,
        screen: &mut Screen,
    ) -> io::Result<()> {
        let why = Foreign(why).to_string();
        self.line(at, &format!("{WARNING}warning{WARNING:#} the login is refused: {why}"), screen)?;
        let time = clock::rfc3339(clock::wall_time(at));
        screen.event_at(at, "login_refused", json!({"reason": why, "time": time}))
    }

    fn line(&self, at: MonotonicTime, text: &str, screen: &mut Screen) -> io::Result<()> {
        let (clock, seconds) =
            (clock::time_of_day(clock::wall_time(at)), at.since(self.began).as_secs_f64());
        screen.line(format_args!("{QUIET}{clock} {seconds:>9.3} s{QUIET:#}  {text}"))?;
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
        true => {
            let changes = changes(previous, new);
            let what = if changes.is_empty() { "changed".to_owned() } else { changes.join(", ") };
            format!("{} {is}, {what}", new.address())
        }
        false => format!("{} {was} → {is}", new.address()),
    };
    if let Some(error) = new.error() {
        text.push_str(&format!(": {}", Foreign(error)));
    } else if let Some(round_trip) = new.round_trip_time() {
        text.push_str(&format!(", {}", Span(round_trip)));
    }
    text
}

/// The differences between two descriptions of one server, besides its type and its round trip.
fn changes(previous: &ServerDescription, new: &ServerDescription) -> Vec<String> {
    let mut changes = Vec::new();
    let mut compare = |what: &str, before: Option<String>, after: Option<String>| {
        if before != after {
            let shown = |text: Option<String>| text.unwrap_or_else(|| "none".to_owned());
            changes.push(format!("{what} {} → {}", shown(before), shown(after)));
        }
    };
    let listed = |addresses: &[ServerAddress]| {
        let texts: Vec<&str> = addresses.iter().map(ServerAddress::as_str).collect();
        Some(texts.join(","))
    };
    let name = |server: &ServerDescription| server.set_name().map(|name| Foreign(name).to_string());
    let version = |server: &ServerDescription| server.set_version().map(|v| v.0.to_string());
    let wire = |server: &ServerDescription| {
        let versions = server.wire_versions();
        Some(format!("{} to {}", versions.min, versions.max))
    };
    let tags = |server: &ServerDescription| {
        let texts = server.tags().iter().map(|(key, value)| format!("{key}:{value}"));
        Some(Foreign(texts.collect::<Vec<_>>().join(",")).to_string())
    };
    compare("set", name(previous), name(new));
    compare("set version", version(previous), version(new));
    compare(
        "primary",
        previous.primary().map(ToString::to_string),
        new.primary().map(ToString::to_string),
    );
    compare("hosts", listed(previous.hosts()), listed(new.hosts()));
    compare("passives", listed(previous.passives()), listed(new.passives()));
    compare("arbiters", listed(previous.arbiters()), listed(new.arbiters()));
    compare("me", previous.me().map(ToString::to_string), new.me().map(ToString::to_string));
    compare("tags", tags(previous), tags(new));
    compare("wire versions", wire(previous), wire(new));
    if previous.election_id() != new.election_id() {
        changes.push("another election".to_owned());
    }
    let error = |server: &ServerDescription| server.error().map(|e| Foreign(e).to_string());
    if error(previous) != error(new) && new.error().is_none() {
        changes.push("it answers again".to_owned());
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::rawdoc;
    use quorate_server_discovery::RoundTrips;
    use quorate_wire::parse_hello;
    use std::sync::Arc;

    #[test]
    fn what_changed_is_told() {
        let address: ServerAddress = "a:1".parse().expect("an address");
        let of = |hosts: &[&str]| {
            let hosts = bson::RawArrayBuf::from_iter(hosts.iter().copied());
            let hello = rawdoc! {
                "ismaster": false, "secondary": true, "setName": "rs0", "setVersion": 1,
                "hosts": hosts, "me": "a:1", "minWireVersion": 0, "maxWireVersion": 21,
                "ok": 1.0,
            };
            let reply = parse_hello(&hello).expect("a hello");
            ServerDescription::from_reply(
                address.clone(),
                Arc::new(reply),
                RoundTrips::default(),
                MonotonicTime::ZERO,
            )
        };
        let before = of(&["a:1"]);
        assert_eq!(changes(&before, &before), Vec::<String>::new());
        let after = of(&["a:1", "b:1"]);
        assert_eq!(changes(&before, &after), ["hosts a:1 → a:1,b:1"]);
    }
}
