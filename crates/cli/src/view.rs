//! The value that the terminal screen and the web page draw, fed with events.
//!
//! ```text
//!   client events ─┐
//!   own hellos ────┼─▶ View::handle(now, Input) ─▶ members(now), facts(now), log(), to_json(now)
//!   status replies ┘
//! ```
//!
//! [`View`] does no I/O and reads no clock, so that a screen in any state can be made by a test. The
//! `collector` feeds it from a client and from a connection to each member; `actions` is what can be
//! done to a set that we started. What a client believes is decided by `quorate-server-discovery`;
//! here it is only put beside what the members say.

pub(crate) mod actions;
pub(crate) mod collector;
pub(crate) mod comparison;
pub(crate) mod difference;
mod json;
pub(crate) mod log;
pub(crate) mod member;
pub(crate) mod reply;
pub(crate) mod ring;
pub(crate) mod summary;
#[cfg(test)]
pub(crate) mod test_view;
pub(crate) mod writes;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use quorate_client::pool::{PoolCounts, PoolEvent, PoolEventKind};
use quorate_client::{ClientEvent, CommandEvent, CommandEventKind};
use quorate_protocol::{ElectionId, HelloReply, MonotonicTime, ServerAddress, Timestamp};
use quorate_server_discovery::{
    DiscoveryEvent, ServerDescription, ServerType, TopologyDescription, TopologyType,
};

use crate::words::{Foreign, Span};
use difference::{Difference, differences};
use log::{Kind, Log};
use member::{Member, Own, Process, Trouble};
use reply::{Counters, Explanation, SetSettings, SetStatus};
use ring::Ring;
use writes::Writes;

/// How many members are shown; a set has at most 50, and a few may have left it.
pub(crate) const MAX_MEMBERS: usize = 128;

/// How many elections are kept.
const MAX_ELECTIONS: usize = 50;

/// How long a difference must last to be worth an entry: news travels, and one side hears it first.
const SETTLED: Duration = Duration::from_secs(2);

/// Commands that write, in lower case.
const WRITES: [&str; 5] = ["insert", "update", "delete", "findandmodify", "bulkwrite"];

/// Something that happened.
#[derive(Clone, Debug)]
pub(crate) enum Input {
    /// In the client that watches.
    Client(Box<ClientEvent>),
    /// The client's pools, counted.
    Pools(Vec<(ServerAddress, PoolCounts)>),
    /// A member was asked for its own hello.
    Hello {
        member: ServerAddress,
        /// Its reply and the round trip, or the reason why there is none.
        outcome: Result<(Arc<HelloReply>, Duration), String>,
    },
    /// A member answered another question.
    Told {
        member: ServerAddress,
        /// What it said.
        told: Told,
    },
    /// The state of a process that `up` started.
    Process { member: ServerAddress, pid: u32, process: Process },
    /// A user acted on the set, here.
    Done {
        member: ServerAddress,
        /// What, in words.
        text: String,
    },
    /// Something to know that is about no member.
    Note(String),
}

/// A reply of a member besides hello.
#[derive(Clone, Debug)]
pub(crate) enum Told {
    /// `replSetGetStatus`.
    Status(SetStatus),
    /// `replSetGetConfig`.
    Settings(SetSettings),
    /// `quorateExplainElection`.
    Explanation(Explanation),
    /// `serverStatus`.
    Counters(Counters),
    /// The oldest entry of its oplog.
    OldestEntry(Timestamp),
    /// Whether it is locked by `fsync`.
    Locked(bool),
    /// Why it tells less than it could: the login was refused, or there is none.
    Login(String),
}

/// A change of primary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Election {
    /// When the client saw the new primary.
    pub(crate) at: MonotonicTime,
    /// The winner.
    pub(crate) primary: ServerAddress,
    /// The primary before it.
    pub(crate) previous: Option<ServerAddress>,
    /// In which term, if the election id tells.
    pub(crate) term: Option<i64>,
    /// How long the client knew no primary.
    pub(crate) without_primary: Option<Duration>,
    /// How long no write was acknowledged, if there was a writer.
    pub(crate) write_gap: Option<Duration>,
}

/// The primary as the client knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Primary {
    address: ServerAddress,
    election_id: Option<ElectionId>,
}

/// Everything there is to show.
#[derive(Clone, Debug)]
pub(crate) struct View {
    began: MonotonicTime,
    uri: String,
    topology: Option<Arc<TopologyDescription>>,
    members: BTreeMap<ServerAddress, Member>,
    settings: Option<SetSettings>,
    log: Log,
    writes: Writes,
    elections: Ring<Election>,
    primary: Option<Primary>,
    /// The last primary and when it was lost.
    lost: Option<(ServerAddress, MonotonicTime)>,
}

impl View {
    /// Nothing is known yet. The connection string is shown, so it must hold no secret.
    pub(crate) fn new(began: MonotonicTime, uri: String) -> Self {
        Self {
            began,
            uri,
            topology: None,
            members: BTreeMap::new(),
            settings: None,
            log: Log::default(),
            writes: Writes::default(),
            elections: Ring::new(MAX_ELECTIONS),
            primary: None,
            lost: None,
        }
    }

    /// Takes note of what happened.
    pub(crate) fn handle(&mut self, now: MonotonicTime, input: Input) {
        self.writes.advance(now);
        match input {
            Input::Client(event) => match *event {
                ClientEvent::Discovery(event) => self.on_discovery(now, &event),
                ClientEvent::Pool(event) => self.on_pool(now, &event),
                ClientEvent::Command(event) => self.on_command(now, &event),
                _ => {}
            },
            Input::Pools(pools) => {
                for (address, counts) in pools {
                    if let Some(member) = self.members.get_mut(&address) {
                        member.on_pool_counts(counts);
                    }
                }
            }
            Input::Hello { member, outcome } => self.on_hello(now, &member, outcome),
            Input::Told { member, told } => self.on_told(now, &member, told),
            Input::Process { member, pid, process } => self.on_process(now, &member, pid, process),
            Input::Done { member, text } => {
                self.log.add(now, Kind::Action, Some(&member), text);
            }
            Input::Note(text) => self.log.add(now, Kind::Action, None, text),
        }
    }

    /// The connection string.
    pub(crate) fn uri(&self) -> &str {
        &self.uri
    }

    /// When watching began.
    pub(crate) fn began(&self) -> MonotonicTime {
        self.began
    }

    /// What happened.
    pub(crate) fn log(&self) -> &Log {
        &self.log
    }

    /// The writes of the client that watches.
    pub(crate) fn writes(&self) -> &Writes {
        &self.writes
    }

    /// The changes of primary, the oldest first.
    pub(crate) fn elections(&self) -> impl DoubleEndedIterator<Item = &Election> {
        self.elections.iter()
    }

    /// The servers to ask directly: each server that the client or the configuration calls a member. Behind a load
    /// balancer no server can be asked for itself.
    pub(crate) fn addresses_to_ask(&self) -> BTreeSet<ServerAddress> {
        let balanced = self
            .topology
            .as_ref()
            .is_some_and(|topology| topology.topology_type() == TopologyType::LoadBalanced);
        if balanced {
            return BTreeSet::new();
        }
        let listed = self.settings.iter().flat_map(|settings| settings.members.keys());
        self.members.keys().chain(listed).take(MAX_MEMBERS).cloned().collect()
    }

    fn member_mut(&mut self, address: &ServerAddress) -> Option<&mut Member> {
        if !self.members.contains_key(address) && self.members.len() >= MAX_MEMBERS {
            return None;
        }
        let member = self.members.entry(address.clone());
        Some(member.or_insert_with(|| Member::new(address.clone())))
    }

    fn on_discovery(&mut self, now: MonotonicTime, event: &DiscoveryEvent) {
        match event {
            DiscoveryEvent::TopologyDescriptionChanged { new, .. } => {
                self.on_topology(now, new);
            }
            DiscoveryEvent::ServerDescriptionChanged { previous, new } => {
                self.on_server(now, previous, new);
            }
            DiscoveryEvent::ServerOpening { address } => {
                if let Some(member) = self.member_mut(address) {
                    member.dropped = None;
                }
                self.log.add(now, Kind::Found, Some(address), "found");
            }
            DiscoveryEvent::ServerClosed { address, reason } => {
                let reason = Foreign(reason).to_string();
                self.log.add(now, Kind::Dropped, Some(address), format_args!("dropped: {reason}"));
                if let Some(member) = self.members.get_mut(address) {
                    member.belief = None;
                    member.dropped = Some(Trouble { at: now, reason });
                }
            }
            DiscoveryEvent::ServerHeartbeatFailed { heartbeat, failure, .. } => {
                let reason = without_address(failure, &heartbeat.address);
                if let Some(member) = self.members.get_mut(&heartbeat.address) {
                    member.trouble = Some(Trouble { at: now, reason });
                }
            }
            DiscoveryEvent::Warning(warning) => self.log.add(now, Kind::Warning, None, warning),
            // The beginning and the end of the topology, and checks that bring no news.
            _ => {}
        }
    }

    fn on_server(
        &mut self,
        now: MonotonicTime,
        previous: &ServerDescription,
        new: &Arc<ServerDescription>,
    ) {
        let address = new.address();
        let (was, is) = (previous.server_type(), new.server_type());
        if let Some(error) = new.error() {
            let reason = without_address(error, address);
            let text = format!("marked {is}: {}", brief(&reason));
            self.log.add(now, Kind::Lost, Some(address), text);
            if let Some(member) = self.member_mut(address) {
                // The error's own time is on the client's clock, which has another origin.
                member.trouble = Some(Trouble { at: now, reason });
            }
        } else if was != is {
            self.log.add(now, Kind::Changed, Some(address), format_args!("{was} → {is}"));
        }
    }

    fn on_topology(&mut self, now: MonotonicTime, new: &Arc<TopologyDescription>) {
        self.topology = Some(Arc::clone(new));
        for server in new.servers().iter() {
            if let Some(member) = self.member_mut(server.address()) {
                member.belief = Some(Arc::clone(server));
            }
        }
        for member in self.members.values_mut() {
            if new.server(&member.address).is_none() {
                member.belief = None;
            }
        }
        self.on_primary(now, new);
        let addresses: Vec<_> = self.members.keys().cloned().collect();
        for address in addresses {
            self.compare(now, &address);
        }
    }

    fn on_primary(&mut self, now: MonotonicTime, topology: &TopologyDescription) {
        let new = topology.primary().map(|primary| Primary {
            address: primary.address().clone(),
            election_id: primary.election_id(),
        });
        if new == self.primary {
            return;
        }
        let before = std::mem::replace(&mut self.primary, new.clone());
        let Some(new) = new else {
            self.writes.on_primary_changed();
            if let Some(before) = before {
                self.log.add(now, Kind::NoPrimary, Some(&before.address), "no primary any more");
                self.lost = Some((before.address, now));
            }
            return;
        };
        let lost = self.lost.take();
        let term = new.election_id.and_then(term_of);
        let in_term = term.map(|term| format!(" in term {term}")).unwrap_or_default();
        let previous = match (before, &lost) {
            (Some(before), _) => before.address,
            (None, Some((address, _))) => address.clone(),
            (None, None) => {
                let text = format!("is the primary{in_term}");
                self.log.add(now, Kind::Elected, Some(&new.address), text);
                return;
            }
        };
        self.writes.on_primary_changed();
        let without_primary = lost.map(|(_, at)| now.since(at));
        let after = match without_primary {
            Some(span) => format!(", {} without a primary", Span(span)),
            None => String::new(),
        };
        let how = if previous == new.address { "is primary again" } else { "elected primary" };
        let text = format!("{how}{in_term}{after}");
        self.log.add(now, Kind::Elected, Some(&new.address), text);
        self.elections.push(Election {
            at: now,
            primary: new.address,
            previous: Some(previous),
            term,
            without_primary,
            write_gap: None,
        });
    }

    fn on_process(
        &mut self,
        now: MonotonicTime,
        address: &ServerAddress,
        pid: u32,
        process: Process,
    ) {
        let Some(member) = self.member_mut(address) else { return };
        let before = member.process.replace((pid, process.clone()));
        let Some(before) = before.filter(|before| *before != (pid, process.clone())) else {
            return;
        };
        let text = match process {
            Process::Gone(how) => format!("process {pid} is gone: {how}"),
            Process::Paused => format!("process {pid} is paused: it hangs, its sockets open"),
            Process::Partitioned => format!("process {pid} is cut off from the other members"),
            Process::Running if before.0 == pid => format!("process {pid} takes part again"),
            Process::Running => format!("started again, process {pid}"),
        };
        self.log.add(now, Kind::Action, Some(address), text);
    }

    fn on_pool(&mut self, now: MonotonicTime, event: &PoolEvent) {
        if matches!(event.kind, PoolEventKind::PoolCleared { .. }) {
            self.log.add(now, Kind::PoolCleared, Some(&event.address), "pool cleared");
        }
        if let Some(member) = self.members.get_mut(&event.address) {
            member.pool.on_event(&event.kind);
        }
    }

    fn on_command(&mut self, now: MonotonicTime, event: &CommandEvent) {
        if !WRITES.contains(&event.command_name.to_ascii_lowercase().as_str()) {
            return;
        }
        match &event.kind {
            CommandEventKind::Failed { .. } => self.writes.on_failed(),
            CommandEventKind::Succeeded { reply, .. } => {
                let has = |name| !matches!(reply.get(name), Ok(None));
                if has("writeErrors") || has("writeConcernError") {
                    self.writes.on_failed();
                } else if let Some(gap) = self.writes.on_acknowledged(now) {
                    let length = gap.length();
                    let text = format!("writes go on after a gap of {}", Span(length));
                    self.log.add(now, Kind::WriteGap, Some(&event.address), text);
                    if let Some(election) = self.elections.last_mut()
                        && election.write_gap.is_none()
                        && election.at >= gap.from
                    {
                        election.write_gap = Some(length);
                    }
                }
            }
            _ => {}
        }
    }

    fn on_hello(
        &mut self,
        now: MonotonicTime,
        address: &ServerAddress,
        outcome: Result<(Arc<HelloReply>, Duration), String>,
    ) {
        let outcome = outcome.map_err(|reason| without_address(reason, address));
        let Some(member) = self.member_mut(address) else { return };
        member.on_hello(now, outcome);
        self.compare(now, address);
    }

    fn on_told(&mut self, now: MonotonicTime, address: &ServerAddress, told: Told) {
        let Some(member) = self.member_mut(address) else { return };
        match told {
            Told::Status(status) => {
                let copying = status.initial_sync.is_some();
                if copying != std::mem::replace(&mut member.copying, copying) {
                    let text = if copying { "initial sync begins" } else { "initial sync is done" };
                    self.log.add(now, Kind::Syncing, Some(address), text);
                }
                if let Some(member) = self.members.get_mut(address) {
                    member.status = Some((now, status));
                }
            }
            Told::Explanation(explanation) => member.explanation = Some(explanation),
            Told::Counters(counters) => member.on_counters(now, counters),
            Told::OldestEntry(at) => member.oldest_entry = Some(at),
            Told::Locked(locked) => {
                if locked != std::mem::replace(&mut member.locked, locked) {
                    let text = match locked {
                        true => "locked by fsync: writes wait until db.fsyncUnlock()",
                        false => "no longer locked by fsync",
                    };
                    self.log.add(now, Kind::Warning, Some(address), text);
                }
            }
            Told::Login(why) => {
                if member.login.as_ref() != Some(&why) {
                    member.login = Some(why.clone());
                    self.log.add(now, Kind::Warning, Some(address), &why);
                }
            }
            Told::Settings(settings) => {
                // Members that lag behind tell an older one.
                if self.settings.as_ref().is_none_or(|own| own.version <= settings.version) {
                    self.settings = Some(settings);
                }
            }
        }
    }

    /// Puts the client's view of a member beside its own words.
    fn compare(&mut self, now: MonotonicTime, address: &ServerAddress) {
        let Some(topology) = &self.topology else { return };
        let Some(member) = self.members.get_mut(address) else { return };
        let own = match &member.own {
            Own::NotAsked => return,
            Own::Answered { hello, .. } => Ok(&**hello),
            Own::Silent { reason, .. } => Err(reason.as_str()),
        };
        let belief = member.belief.as_deref();
        let before = &member.differences;
        member.differences = differences(now, address, topology, belief, own, before);
        for difference in &mut member.differences {
            if !difference.told && now.since(difference.since) >= SETTLED {
                difference.told = true;
                let Difference { aspect, client, member, .. } = difference;
                let text = format!("{}: the client says {client}, it says {member}", aspect.name());
                self.log.add(now, Kind::Differs, Some(address), text);
            }
        }
    }
}

/// The term that an election id tells, where servers make it from the term.
pub(crate) fn term_of(id: ElectionId) -> Option<i64> {
    let bytes = id.0.bytes();
    let term = i64::from_be_bytes(bytes[4..].try_into().ok()?);
    (ElectionId::from_term(term) == id).then_some(term)
}

/// A reason that is safe to show beside the member's address, which it need not repeat.
pub(super) fn without_address(reason: impl std::fmt::Display, address: &ServerAddress) -> String {
    let reason = Foreign(reason).to_string();
    match reason.strip_prefix(&format!("cannot connect to {address}: ")) {
        Some(rest) => rest.to_owned(),
        None => reason,
    }
}

/// The first sentence: what to do about it is for `quorate doctor` to say.
pub(crate) fn brief(reason: &str) -> &str {
    reason.split(';').next().unwrap_or_default()
}

/// The role that a type of server stands for, in a word.
pub(crate) const fn role(kind: ServerType) -> &'static str {
    match kind {
        ServerType::RsPrimary => "primary",
        ServerType::RsSecondary => "secondary",
        ServerType::RsArbiter => "arbiter",
        ServerType::RsOther => "other",
        ServerType::RsGhost => "ghost",
        ServerType::Standalone => "standalone",
        ServerType::Mongos => "mongos",
        ServerType::LoadBalancer => "balancer",
        ServerType::PossiblePrimary | ServerType::Unknown => "unknown",
    }
}

#[cfg(test)]
mod tests;
