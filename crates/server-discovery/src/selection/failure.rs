//! What to say when no server was found in time.
//!
//! "Server selection timed out" hides its cause. This error tells what was wanted and how long it
//! was waited for, then about each server what speaks against it, why, and how old that knowledge
//! is, then a verdict with a next step; and all of it again as data. What the verdict is, decides
//! `verdict.rs`.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use quorate_protocol::{MonotonicTime, ReadPreference, ServerAddress, TagSet};
use serde_json::{Map, Value, json};

use super::suitable::{Shortcoming, StalenessClock, shortcoming};
use super::text::{Interval, OneLine};
use super::verdict::{Verdict, known_otherwise};
use super::{SelectionCriteria, SelectionRequest};
use crate::fault::ServerError;
use crate::removal::Removal;
use crate::server_description::ServerDescription;
use crate::topology_description::TopologyDescription;
use crate::types::ServerType;

/// How many servers the text and the JSON describe; the rest are counted.
pub const MAX_REPORTED_SERVERS: usize = 20;

/// How many characters of a server's last error are shown.
pub const MAX_CAUSE_LENGTH: usize = 300;

/// A server that answered, but not for this many heartbeats, has a monitor that no longer runs: one
/// check may be late, three are not.
const STALLED_AFTER_HEARTBEATS: u32 = 3;

/// No server was found in time: what was wanted, what was known, and what to do about it.
///
/// Keeps the description it was made from, so making one copies no server.
#[derive(Clone, Debug)]
pub struct SelectionFailure {
    topology: Arc<TopologyDescription>,
    /// `None` for writes.
    read_preference: Option<ReadPreference>,
    now: MonotonicTime,
    waited: Duration,
    verdict: Verdict,
}

/// What is known about one server at the time of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerReport<'a> {
    /// Its address.
    pub address: &'a ServerAddress,
    /// What it is believed to be.
    pub server_type: ServerType,
    /// What speaks against it; `None` if it would do, which only a custom selector can hide.
    pub shortcoming: Option<Shortcoming>,
    /// Its last error.
    pub cause: Option<&'a ServerError>,
    /// How long ago this was learned; `None` if never.
    pub age: Option<Duration>,
    /// Whether checks of it seem to have ceased.
    pub is_stalled: bool,
}

impl SelectionFailure {
    /// Explains why `request` found nothing in `topology`, after waiting until `now`.
    pub fn new(
        topology: Arc<TopologyDescription>,
        request: &SelectionRequest<'_>,
        now: MonotonicTime,
        waited: Duration,
    ) -> Self {
        let verdict = Verdict::of(&topology, request);
        let read_preference = request.criteria.read_preference().cloned();
        Self { topology, read_preference, now, waited, verdict }
    }

    /// What was wanted.
    pub fn criteria(&self) -> SelectionCriteria<'_> {
        self.read_preference.as_ref().map_or(SelectionCriteria::Write, SelectionCriteria::Read)
    }

    /// What was known when time ran out.
    pub fn topology(&self) -> &Arc<TopologyDescription> {
        &self.topology
    }

    /// How long it was waited for.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// The conclusion.
    pub fn verdict(&self) -> &Verdict {
        &self.verdict
    }

    /// Every server, those that answer first: they are few where it matters, and tell most.
    pub fn servers(&self) -> impl Iterator<Item = ServerReport<'_>> {
        let clock = StalenessClock::of(&self.topology);
        let answering = |server: &&Arc<ServerDescription>| server.server_type().is_known();
        let servers = || self.topology.servers.iter();
        servers()
            .filter(answering)
            .chain(servers().filter(move |server| !answering(server)))
            .map(move |server| self.report(&clock, server))
    }

    /// The servers that were dropped lately and have not come back, with their reasons.
    pub fn removals(&self) -> impl Iterator<Item = &Removal> {
        let dropped = |removal: &&Removal| !self.topology.servers.contains(&removal.address);
        self.topology.removals().iter().filter(dropped)
    }

    /// The failure as one JSON object.
    pub fn to_json(&self) -> String {
        let servers = self.servers().take(MAX_REPORTED_SERVERS).map(ServerReport::to_json);
        let removal = |removal: &Removal| {
            json!({
                "address": text(&removal.address),
                "reason": text(&Dropped(removal)),
                "age_ms": millis(self.now.since(removal.at)),
            })
        };
        let mut json = Map::new();
        let mut put = |name: &str, value| json.insert(name.to_owned(), value);
        put("waited_ms", millis(self.waited));
        match &self.read_preference {
            Some(preference) => {
                put("operation", json!("read"));
                put("read_preference", preference_to_json(preference));
            }
            None => _ = put("operation", json!("write")),
        }
        put("topology_type", text(&self.topology.topology_type));
        put("set_name", json!(self.topology.set_name()));
        put("servers", servers.collect());
        put("servers_omitted", json!(self.omitted()));
        put("removed", self.removals().map(removal).collect());
        put("verdict", text(&self.verdict.name()));
        put("message", text(&self.verdict));
        Value::Object(json).to_string()
    }

    fn omitted(&self) -> usize {
        self.topology.servers.len().saturating_sub(MAX_REPORTED_SERVERS)
    }

    fn report<'a>(
        &'a self,
        clock: &StalenessClock,
        server: &'a ServerDescription,
    ) -> ServerReport<'a> {
        // A failed operation is news between two checks.
        let learned = server.error().map(ServerError::at).max(server.last_update_time());
        let age = learned.map(|learned| self.now.since(learned));
        let stalled_after =
            self.topology.selection.heartbeat_frequency.saturating_mul(STALLED_AFTER_HEARTBEATS);
        ServerReport {
            address: server.address(),
            server_type: server.server_type(),
            shortcoming: shortcoming(&self.topology, clock, self.criteria(), server),
            cause: server.error(),
            age,
            is_stalled: server.server_type().is_known() && age > Some(stalled_after),
        }
    }
}

impl ServerReport<'_> {
    fn to_json(self) -> Value {
        let cause = self.cause.map(|cause| OneLine { value: cause, limit: MAX_CAUSE_LENGTH });
        let mut json = json!({
            "address": text(self.address),
            "type": text(&self.server_type),
            "shortcoming": self.shortcoming.map(Shortcoming::name),
        });
        if let Some(Shortcoming::TooStale { estimate: Some(stale) }) = self.shortcoming {
            json["staleness_ms"] = millis(stale);
        }
        json["cause"] = json!(cause.map(|cause| text(&cause)));
        json["age_ms"] = json!(self.age.map(millis));
        json["stalled"] = json!(self.is_stalled);
        json
    }
}

fn preference_to_json(preference: &ReadPreference) -> Value {
    let mut json = json!({ "mode": text(&preference.mode) });
    if !preference.tag_sets.is_empty() {
        let tags = |tags: &TagSet| tags.iter().collect::<Value>();
        json["tags"] = preference.tag_sets.iter().map(tags).collect();
    }
    if let Some(staleness) = preference.max_staleness {
        json["max_staleness_ms"] = millis(staleness);
    }
    json
}

fn text(value: &impl fmt::Display) -> Value {
    Value::String(value.to_string())
}

fn millis(interval: Duration) -> Value {
    json!(interval.as_millis() as u64)
}

impl fmt::Display for ServerReport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: ", self.address, self.server_type)?;
        match (self.shortcoming, self.cause) {
            (Some(Shortcoming::Failing), Some(cause)) => {
                OneLine { value: cause, limit: MAX_CAUSE_LENGTH }.fmt(f)?;
            }
            (Some(Shortcoming::Failing), None) => f.write_str("answered without ok: 1")?,
            (Some(shortcoming), _) => shortcoming.fmt(f)?,
            (None, _) => f.write_str("suitable")?,
        }
        let Some(age) = self.age else { return Ok(()) };
        match self.is_stalled {
            true => write!(f, "; no check completed for {}: monitor stalled", Interval(age)),
            false => write!(f, "; {} ago", Interval(age)),
        }
    }
}

impl fmt::Display for SelectionFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let topology = &self.topology;
        write!(f, "no server for {} after {}", self.criteria(), Interval(self.waited))?;
        write!(f, " (topology {}", topology.topology_type)?;
        if let Some(name) = topology.set_name() {
            write!(f, " {name}")?;
        }
        match topology.servers.len() {
            1 => f.write_str(", 1 server)")?,
            count => write!(f, ", {count} servers)")?,
        }
        for server in self.servers().take(MAX_REPORTED_SERVERS) {
            write!(f, "\n  {server}")?;
        }
        match self.omitted() {
            0 => {}
            omitted => write!(f, "\n  and {omitted} more")?,
        }
        for removal in self.removals() {
            let age = Interval(self.now.since(removal.at));
            write!(f, "\n  {} removed: {}; {age} ago", removal.address, Dropped(removal))?;
        }
        write!(f, "\n{}", self.verdict)
    }
}

impl std::error::Error for SelectionFailure {}

/// Why a server was dropped. Where it is the primary that does not list itself, what matters is the
/// name it goes by.
struct Dropped<'a>(&'a Removal);

impl fmt::Display for Dropped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match known_otherwise(self.0) {
            Some((_, me)) => write!(f, "it answered, but the set knows it as {me}"),
            None => OneLine { value: &self.0.reason, limit: MAX_CAUSE_LENGTH }.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_topology::{address, failed, member, topology};
    use super::*;
    use crate::fault::CheckFailureKind;
    use crate::removal::RemovalReason;
    use crate::types::TopologyType;
    use quorate_protocol::ReadPreferenceMode;

    const WAITED: Duration = Duration::from_secs(30);

    fn failure(
        servers: Vec<ServerDescription>,
        request: &SelectionRequest<'_>,
    ) -> SelectionFailure {
        let mut topology = topology(TopologyType::ReplicaSetNoPrimary, servers);
        topology.set_name = Some("rs0".into());
        let now = MonotonicTime::from_millis(60_000);
        SelectionFailure::new(Arc::new(topology), request, now, WAITED)
    }

    fn three() -> Vec<ServerDescription> {
        vec![
            failed("a", CheckFailureKind::Network, "connection refused", 58),
            member("b", ServerType::Unknown).build(),
            member("c", ServerType::RsSecondary).updated(59).build(),
        ]
    }

    #[test]
    fn the_text_tells_the_wish_each_server_and_a_verdict() {
        let told = failure(three(), &SelectionRequest::WRITE).to_string();
        let expected = "\
no server for a write after 30 s (topology ReplicaSetNoPrimary rs0, 3 servers)
  c:27017 RSSecondary: not the primary; 1 s ago
  a:27017 Unknown: connection refused; 2 s ago
  b:27017 Unknown: never checked
no primary: 1 of 3 members answer, and an election needs 2 votes if each has one; start the others, \
                        or make them reachable from here and from each other";
        assert_eq!(told, expected);
    }

    #[test]
    fn the_same_is_one_json_object() {
        let preference = ReadPreference {
            tag_sets: vec![[("dc", "n\"y")].into_iter().collect()],
            max_staleness: Some(Duration::from_secs(90)),
            ..ReadPreference::new(ReadPreferenceMode::Secondary)
        };
        let mut servers = three();
        servers[0] = failed("a", CheckFailureKind::Network, "re\"fused\n", 58);
        let told = failure(servers, &SelectionRequest::read(&preference)).to_json();
        let expected = concat!(
            r#"{"waited_ms":30000,"operation":"read","read_preference":{"mode":"secondary","#,
            r#""tags":[{"dc":"n\"y"}],"max_staleness_ms":90000},"#,
            r#""topology_type":"ReplicaSetNoPrimary","set_name":"rs0","servers":["#,
            r#"{"address":"c:27017","type":"RSSecondary","shortcoming":"too_stale","cause":null,"#,
            r#""age_ms":1000,"stalled":false},"#,
            r#"{"address":"a:27017","type":"Unknown","shortcoming":"failing","#,
            r#""cause":"re\"fused\\n","age_ms":2000,"stalled":false},"#,
            r#"{"address":"b:27017","type":"Unknown","shortcoming":"never_checked","cause":null,"#,
            r#""age_ms":null,"stalled":false}],"servers_omitted":0,"removed":[],"#,
            r#""verdict":"too_stale","#,
            r#""message":"no member is known to be within 90 s of the primary, since none tells "#,
            r#"when it last wrote; drop maxStalenessSeconds"}"#,
        );
        assert_eq!(told, expected);
    }

    #[test]
    fn strings_are_escaped_for_json() {
        let preference = ReadPreference {
            tag_sets: vec![[("a\"b", "q\"b\\n\n\u{1}é")].into_iter().collect()],
            ..ReadPreference::new(ReadPreferenceMode::Secondary)
        };
        let told = failure(three(), &SelectionRequest::read(&preference)).to_json();
        assert!(told.contains(r#""tags":[{"a\"b":"q\"b\\n\n\u0001é"}]"#), "{told}");
    }

    #[test]
    fn a_thousand_servers_take_no_more_room_than_twenty() {
        let endless = "x".repeat(100_000);
        let many = (0..1000)
            .map(|n| failed(&format!("h{n:03}"), CheckFailureKind::Network, &endless, 59))
            .chain([member("z", ServerType::RsArbiter).build()]);
        let failure = failure(many.collect(), &SelectionRequest::WRITE);
        let text = failure.to_string();
        assert_eq!(text.lines().count(), 1 + MAX_REPORTED_SERVERS + 1 + 1);
        assert!(text.contains("\n  and 981 more\n"));
        assert!(text.contains("\n  z:27017 RSArbiter"), "those that answer come first");
        assert!(text.len() < 10_000, "{}", text.len());
        assert!(failure.to_json().len() < 10_000);
        assert_eq!(failure.servers().count(), 1001);
    }

    #[test]
    fn hosts_that_were_dropped_are_not_forgotten() {
        let mut topology = topology(TopologyType::ReplicaSetNoPrimary, three());
        let removal = |host: &str| Removal {
            address: address(host),
            reason: RemovalReason::CalledOtherwise { me: address("c") },
            at: MonotonicTime::from_millis(58_000),
        };
        // The second has come back.
        topology.removals = Arc::new([removal("seed"), removal("c")]);
        let now = MonotonicTime::from_millis(60_000);
        let failure =
            SelectionFailure::new(Arc::new(topology), &SelectionRequest::WRITE, now, WAITED);
        let line =
            "\n  seed:27017 removed: it answered, but the set knows it as c:27017; 2 s ago\n";
        assert!(failure.to_string().contains(line), "{failure}");
        assert_eq!(failure.removals().count(), 1);
        let json = concat!(
            r#""removed":[{"address":"seed:27017","#,
            r#""reason":"it answered, but the set knows it as c:27017","age_ms":2000}]"#,
        );
        assert!(failure.to_json().contains(json));
    }

    #[test]
    fn a_monitor_that_ceased_is_told() {
        let servers = vec![member("c", ServerType::RsSecondary).updated(12).build()];
        let failure = failure(servers, &SelectionRequest::WRITE);
        assert!(failure.servers().all(|server| server.is_stalled));
        let line = "c:27017 RSSecondary: not the primary; no check completed for 48 s: monitor \
                    stalled";
        assert!(failure.to_string().contains(line), "{failure}");
    }
}
