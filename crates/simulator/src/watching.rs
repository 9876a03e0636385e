//! Clients that only watch: the discovery core of every driver, inside the world.
//!
//! Each watcher sits beside one of the machines and shares its luck with the network. Its checks are
//! asked, awaited, answered, refused, reset and timed out as sockets would; what it believes comes
//! from `quorate-server-discovery`. Once the world is calm it must believe in the true primary.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use quorate_protocol::{
    HelloReply, MemberConfig, MonotonicTime, ReplicaSetConfig, ServerAddress, ServerMonitoringMode,
    TopologyVersion, WireVersionRange,
};
use quorate_replication::SeededRandom;
use quorate_server_discovery::{
    CheckFailure, CheckFailureKind, CheckId, CheckKind, DiscoveryOptions, Input, MonitorCommand,
    Output, ServerType, Topology, TopologyId, TopologyType,
};

use crate::judges::{Life, Verdict};
use crate::world::{Happening, World, address_of};

/// Watchers in a world.
const WATCHERS: usize = 3;
/// Between a watcher and a machine, one way, at most.
const JITTER: Duration = Duration::from_millis(5);
/// Makes the watchers' luck another one than the world's, so that a world is the same with them.
const LUCK: u64 = 0x0057_4154_4348_4552;

/// What happens to watchers.
#[derive(Clone, Debug)]
pub(crate) enum Watching {
    Tick(usize),
    Asked(Question),
    Answered(Question, Result<Arc<HelloReply>, CheckFailureKind>),
    /// An awaited hello has waited long enough.
    AwaitOver(Life, Question),
    TimedOut(Question),
    Measured {
        watcher: usize,
        server: ServerAddress,
        check: CheckId,
    },
}

/// A hello on its way, or waiting at a machine.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Question {
    watcher: usize,
    node: usize,
    check: CheckId,
    sent: MonotonicTime,
    /// The process at the other end; none before there is a connection.
    connection: Option<Life>,
    past: Option<(TopologyVersion, Duration)>,
}

/// One watching client.
pub(crate) struct Watcher {
    topology: Topology,
    tick_at: Option<MonotonicTime>,
    waiting: BTreeMap<usize, CheckId>,
    connections: BTreeMap<usize, Life>,
}

/// All of them, and their luck.
pub(crate) struct Watchers {
    watchers: Vec<Watcher>,
    random: SeededRandom,
}

impl Watchers {
    /// Watchers of a world's machines, which all of them know from the start.
    pub(crate) fn new(seed: u64, nodes: usize) -> Self {
        let mut random = SeededRandom::new(seed ^ LUCK);
        let watchers = (0..WATCHERS).map(|number| {
            let mut options = DiscoveryOptions::with_seeds((0..nodes).map(address_of));
            options.set_name = Some("rs0".to_owned());
            options.server_monitoring_mode = match number {
                0 => ServerMonitoringMode::Poll,
                _ => ServerMonitoringMode::Stream,
            };
            let heartbeat = Duration::from_millis(1_000 + random.below(5_000));
            options.heartbeat_frequency = Some(heartbeat);
            options.connect_timeout = Some(Duration::from_secs(2));
            let id = TopologyId(number as u64);
            let topology = Topology::new(&options, id, random.next_u64(), MonotonicTime::ZERO)
                .unwrap_or_else(|error| unreachable!("the options are fixed and fine: {error}"));
            Watcher {
                topology,
                tick_at: None,
                waiting: BTreeMap::new(),
                connections: BTreeMap::new(),
            }
        });
        Self { watchers: watchers.collect(), random }
    }
}

impl Watching {
    /// The process that acts, if one does.
    pub(crate) fn process(&self) -> Option<usize> {
        match self {
            Self::Asked(question) => Some(question.node),
            Self::AwaitOver(life, _) => Some(life.node),
            _ => None,
        }
    }
}

impl World {
    /// Lets every watcher begin.
    pub(crate) fn begin_watching(&mut self) {
        for watcher in 0..self.watchers.watchers.len() {
            self.carry_out_watching(watcher);
        }
    }

    pub(crate) fn watch(&mut self, watching: Watching) {
        match watching {
            Watching::Tick(watcher) => {
                self.watchers.watchers[watcher].tick_at = None;
                self.tell_watcher(watcher, Input::Tick);
            }
            Watching::Asked(question) => self.hello_asked(question),
            Watching::Answered(question, answer) => self.hello_answered(question, answer),
            Watching::AwaitOver(life, question) => {
                if self.is_alive(life) {
                    let awaiting = &mut self.nodes[life.node].awaiting;
                    if let Some(place) = awaiting.iter().position(|known| *known == question) {
                        awaiting.swap_remove(place);
                        self.answer_hello(question);
                    }
                }
            }
            Watching::TimedOut(question) => {
                self.hello_answered(question, Err(CheckFailureKind::NetworkTimeout));
            }
            Watching::Measured { watcher, server, check } => {
                let round_trip = Some(JITTER);
                self.tell_watcher(watcher, Input::RoundTripMeasured { server, check, round_trip });
            }
        }
    }

    fn tell_watcher(&mut self, watcher: usize, input: Input) {
        let now = self.now;
        self.watchers.watchers[watcher].topology.handle(now, input);
        self.carry_out_watching(watcher);
    }

    fn carry_out_watching(&mut self, number: usize) {
        while let Some(output) = self.watchers.watchers[number].topology.poll_output() {
            match output {
                Output::Monitor { server, command } => self.monitor(number, server, command),
                Output::Publish(description) => {
                    let primaries = description
                        .servers()
                        .iter()
                        .filter(|server| server.server_type() == ServerType::RsPrimary);
                    if primaries.count() > 1 {
                        self.verdict = Err(Verdict(format!(
                            "a client believes in one primary: watcher {number} has {description}"
                        )));
                    }
                    self.figures.published += 1;
                    self.note(None, || format!("watcher {number} believes {description}"));
                }
                Output::Event(_) | Output::Pool { .. } => {}
            }
        }
        let watcher = &mut self.watchers.watchers[number];
        if let Some(deadline) = watcher.topology.next_deadline()
            && watcher.tick_at.is_none_or(|at| deadline < at)
        {
            watcher.tick_at = Some(deadline);
            self.schedule_at(deadline.max(self.now), Happening::Watch(Watching::Tick(number)));
        }
    }

    fn monitor(&mut self, watcher: usize, server: ServerAddress, command: MonitorCommand) {
        let Some(node) = self.nodes.iter().position(|node| node.address == server) else { return };
        let known = &mut self.watchers.watchers[watcher];
        match command {
            MonitorCommand::Check { check, kind, timeout, .. } => {
                known.waiting.insert(node, check);
                let connection = match kind {
                    CheckKind::Connect => None,
                    _ => known.connections.get(&node).copied(),
                };
                let past = match kind {
                    CheckKind::Await { topology_version, max_await_time } => {
                        Some((topology_version, max_await_time))
                    }
                    _ => None,
                };
                let sent = self.now;
                let question = Question { watcher, node, check, sent, connection, past };
                if let Some(timeout) = timeout {
                    let over = Happening::Watch(Watching::TimedOut(question.clone()));
                    self.schedule(timeout, over);
                }
                if !self.is_cut_off(watcher, node) {
                    let delay = self.watchers.random.duration_up_to(JITTER);
                    self.schedule(delay, Happening::Watch(Watching::Asked(question)));
                }
            }
            MonitorCommand::MeasureRoundTrip { check, .. } => {
                let measured = Watching::Measured { watcher, server, check };
                self.schedule(JITTER, Happening::Watch(measured));
            }
            MonitorCommand::Cancel | MonitorCommand::Stop => {
                known.waiting.remove(&node);
                known.connections.remove(&node);
            }
            MonitorCommand::Start | MonitorCommand::StopMeasuring => {}
        }
    }

    /// Whether the network lets nothing pass between a watcher and a machine.
    fn is_cut_off(&self, watcher: usize, node: usize) -> bool {
        let beside = watcher % self.nodes.len();
        self.network.is_cut(beside, node) || self.network.is_cut(node, beside)
    }

    fn hello_asked(&mut self, question: Question) {
        let node = &self.nodes[question.node];
        let known = question.connection.is_none_or(|life| life == node.life);
        let Some(member) = node.member.as_ref().filter(|_| known) else {
            return self.reply_to_watcher(question, Err(CheckFailureKind::Network));
        };
        let now = member.status().topology_version();
        let news = question.past.is_none_or(|(past, _)| is_newer(now, past));
        if news {
            return self.answer_hello(question);
        }
        let life = node.life;
        let patience = question.past.map_or(Duration::ZERO, |(_, patience)| patience);
        self.nodes[question.node].awaiting.push(question.clone());
        self.schedule(patience, Happening::Watch(Watching::AwaitOver(life, question)));
    }

    /// Answers the clients that wait for a change of a member that has changed.
    pub(crate) fn answer_watchers(&mut self, index: usize) {
        if self.nodes[index].awaiting.is_empty() {
            return;
        }
        let Some(member) = self.nodes[index].member.as_ref() else { return };
        let now = member.status().topology_version();
        let (answered, waiting): (Vec<_>, Vec<_>) = std::mem::take(&mut self.nodes[index].awaiting)
            .into_iter()
            .partition(|question| question.past.is_some_and(|(past, _)| is_newer(now, past)));
        self.nodes[index].awaiting = waiting;
        for question in answered {
            self.answer_hello(question);
        }
    }

    /// A process that dies closes the connections of waiting clients.
    pub(crate) fn reset_watchers(&mut self, questions: Vec<Question>) {
        for question in questions {
            self.reply_to_watcher(question, Err(CheckFailureKind::Network));
        }
    }

    fn answer_hello(&mut self, question: Question) {
        let Some(member) = self.nodes[question.node].member.as_ref() else { return };
        let base = HelloReply {
            ok: true,
            hello_ok: true,
            wire_versions: WireVersionRange { min: 0, max: 21 },
            logical_session_timeout_minutes: Some(30),
            ..HelloReply::default()
        };
        let reply = member.status().hello(base, None).reply;
        self.reply_to_watcher(question, Ok(Arc::new(reply)));
    }

    fn reply_to_watcher(
        &mut self,
        mut question: Question,
        answer: Result<Arc<HelloReply>, CheckFailureKind>,
    ) {
        if self.is_cut_off(question.watcher, question.node) {
            return;
        }
        question.connection = Some(self.nodes[question.node].life);
        let delay = self.watchers.random.duration_up_to(JITTER);
        self.schedule(delay, Happening::Watch(Watching::Answered(question, answer)));
    }

    fn hello_answered(
        &mut self,
        question: Question,
        answer: Result<Arc<HelloReply>, CheckFailureKind>,
    ) {
        let Question { watcher, node, check, sent, connection, .. } = question;
        let known = &mut self.watchers.watchers[watcher];
        if known.waiting.get(&node) != Some(&check) {
            return;
        }
        known.waiting.remove(&node);
        let server = address_of(node);
        let input = match answer {
            Ok(reply) => {
                known.connections.extend(connection.map(|life| (node, life)));
                let round_trip = self.now.since(sent);
                Input::HelloReceived { server, check, reply, round_trip, more_to_come: false }
            }
            Err(kind) => {
                known.connections.remove(&node);
                let failure = CheckFailure::new(kind, "the world said so");
                Input::CheckFailed { server, check, failure }
            }
        };
        self.tell_watcher(watcher, input);
    }

    /// Why a watcher's topology is wrong, if one is.
    pub(crate) fn misbelief(&self, leader: usize, config: &ReplicaSetConfig) -> Option<String> {
        // A delayed member is shown to clients as little as a hidden one.
        let shown = |member: &&MemberConfig| !member.hidden && member.secondary_delay_secs == 0;
        let visible = config.members.iter().filter(shown);
        let visible: BTreeSet<&ServerAddress> = visible.map(|member| &member.host).collect();
        self.watchers.watchers.iter().enumerate().find_map(|(number, watcher)| {
            let description = watcher.topology.description();
            let believed: BTreeSet<&ServerAddress> =
                description.servers().addresses().iter().collect();
            // Cut off while all it knew left the set, a client has no way back.
            if believed.is_disjoint(&visible) {
                return None;
            }
            let primary = description.primary().map(|primary| primary.address().clone());
            let true_belief = description.topology_type() == TopologyType::ReplicaSetWithPrimary
                && primary == Some(address_of(leader))
                && believed == visible;
            (!true_belief).then(|| format!("watcher {number} believes {description}"))
        })
    }
}

fn is_newer(now: TopologyVersion, past: TopologyVersion) -> bool {
    now.process_id != past.process_id || now.counter > past.counter
}
