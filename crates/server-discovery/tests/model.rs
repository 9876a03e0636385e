//! The shipped core, model-checked: a monitor, two operations that fail and a step-down, in every
//! order.
//!
//! The world has two members. At first `a` is primary. It steps down once, and `b` is elected. Two
//! operations were begun on connections to `a` and fail at any later moment: one is told that `a` is
//! no longer primary, the other loses its connection. Monitors are answered, with what the members
//! are at that moment or with what they were when the check began (a reply under way), or their
//! connection breaks once. `stateright` visits every reachable state; the bounds are the number of
//! answers and the number of times that the clock is moved.

#![allow(clippy::unwrap_used, reason = "a panic is this test's report")]

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use quorate_connection_string::ConnectionString;
use quorate_protocol::{
    ElectionId, HelloReply, MonotonicTime, ObjectId, ServerAddress, SetVersion, TopologyVersion,
    WireVersionRange,
};
use quorate_server_discovery::{
    ApplicationError, CheckFailure, CheckFailureKind, CheckId, CommandError, DiscoveryOptions,
    HandshakeProgress, Input, MonitorCommand, Output, PoolCommand, PoolGeneration, ServerType,
    Topology, TopologyId,
};
use stateright::{Checker, Model, Property};

/// How many checks are answered in one history.
const MAX_ANSWERS: usize = 6;

/// How often the clock is moved to the next deadline.
const MAX_TICKS: usize = 2;

/// `NotWritablePrimary`.
const NOT_WRITABLE_PRIMARY: i32 = 10107;

fn address(name: &str) -> ServerAddress {
    format!("{name}:1").parse().unwrap()
}

/// What a check under way would be answered with, if the reply was sent when it began.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Asked {
    check: CheckId,
    stepped_down: bool,
}

/// The members, the core, and what the core has ordered so far.
#[derive(Clone, Debug)]
struct World {
    topology: Topology,
    now: MonotonicTime,
    stepped_down: bool,
    checks: BTreeMap<ServerAddress, Asked>,
    /// Whether each pool is open for check-outs.
    ready: BTreeMap<ServerAddress, bool>,
    /// How often the pool of `a` was cleared for an error.
    cleared: usize,
    /// How often operations on `a` were interrupted.
    interrupted: usize,
    told_not_primary: bool,
    lost_connection: bool,
    monitor_broken: bool,
    answers: usize,
    ticks: usize,
    /// The first broken rule, in words.
    broken: Option<&'static str>,
}

impl World {
    /// All that decides what can happen next. Times are left out of nothing: the clock moves by
    /// deadlines alone, so there are few.
    fn text(&self) -> String {
        format!("{self:?}")
    }
}

impl PartialEq for World {
    fn eq(&self, other: &Self) -> bool {
        self.text() == other.text()
    }
}

impl Hash for World {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text().hash(state);
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Step {
    /// `a` steps down and `b` is elected.
    Depose,
    /// A member answers its check as it is now.
    AnswerNow(ServerAddress),
    /// A member's reply from the moment it was asked arrives.
    AnswerLate(ServerAddress),
    /// The monitoring connection to a member breaks.
    Break(ServerAddress),
    /// An operation on `a` is told that it is no longer primary.
    NotPrimary,
    /// An operation on `a` loses its connection.
    LoseConnection,
    /// The time moves to the next deadline.
    Tick,
}

struct Discovery;

impl Discovery {
    fn reply(name: &str, stepped_down: bool) -> HelloReply {
        let leads = (name == "b") == stepped_down;
        let hosts = vec![address("a"), address("b")];
        let counter = i64::from(stepped_down) + 1;
        HelloReply {
            ok: true,
            hello_ok: true,
            is_writable_primary: leads,
            secondary: !leads,
            set_name: Some("rs".to_owned()),
            set_version: Some(SetVersion(1)),
            election_id: leads.then(|| ElectionId::from_term(counter)),
            hosts: hosts.into(),
            me: Some(address(name)),
            topology_version: Some(version(name, counter)),
            wire_versions: WireVersionRange { min: 0, max: 21 },
            ..HelloReply::default()
        }
    }
}

fn version(name: &str, counter: i64) -> TopologyVersion {
    TopologyVersion { process_id: ObjectId::from_bytes([name.as_bytes()[0]; 12]), counter }
}

impl World {
    fn begin() -> Self {
        let uri = ConnectionString::parse("mongodb://a:1,b:1/?replicaSet=rs").unwrap();
        let options = DiscoveryOptions::from_connection_string(&uri);
        let now = MonotonicTime::from_millis(1);
        let mut world = Self {
            topology: Topology::new(&options, TopologyId(1), 1, now).unwrap(),
            now,
            stepped_down: false,
            checks: BTreeMap::new(),
            ready: BTreeMap::new(),
            cleared: 0,
            interrupted: 0,
            told_not_primary: false,
            lost_connection: false,
            monitor_broken: false,
            answers: 0,
            ticks: 0,
            broken: None,
        };
        world.drain();
        // Both members are known before anything goes wrong.
        world.answer(&address("a"), false);
        world.answer(&address("b"), false);
        world.answers = 0;
        world
    }

    fn handle(&mut self, input: Input) {
        let before = self.topology.description().clone();
        self.topology.handle(self.now, input);
        self.drain();
        self.judge(&before);
        self.judge_interruptions();
    }

    fn drain(&mut self) {
        while let Some(output) = self.topology.poll_output() {
            match output {
                Output::Monitor { server, command } => match command {
                    MonitorCommand::Check { check, .. } => {
                        let stepped_down = self.stepped_down;
                        self.checks.insert(server, Asked { check, stepped_down });
                    }
                    MonitorCommand::Cancel | MonitorCommand::Stop => {
                        self.checks.remove(&server);
                    }
                    _ => {}
                },
                Output::Pool { server, command } => match command {
                    PoolCommand::MarkReady => {
                        self.ready.insert(server, true);
                    }
                    PoolCommand::Clear { interrupt_in_use, .. } => {
                        match (server == address("a"), interrupt_in_use) {
                            (true, true) => self.interrupted += 1,
                            (true, false) => self.cleared += 1,
                            (false, _) => self.broken = Some("the pool of b was cleared"),
                        }
                        self.ready.insert(server, false);
                    }
                    PoolCommand::Open | PoolCommand::Close => {
                        self.ready.insert(server, false);
                    }
                },
                Output::Publish(_) | Output::Event(_) => {}
            }
        }
    }

    /// The rules that every step keeps.
    fn judge(&mut self, before: &quorate_server_discovery::TopologyDescription) {
        let after = self.topology.description();
        let primaries =
            after.servers().iter().filter(|server| server.server_type() == ServerType::RsPrimary);
        if primaries.count() > 1 {
            self.broken = Some("two primaries at once");
        }
        for server in after.servers().iter() {
            let known = server.server_type() != ServerType::Unknown;
            if !known {
                continue;
            }
            let old = before.server(server.address()).and_then(|old| old.topology_version());
            if let (Some(old), Some(new)) = (old, server.topology_version())
                && old.process_id == new.process_id
                && old.counter > new.counter
            {
                self.broken = Some("a description went back in time");
            }
            if self.ready.get(server.address()) != Some(&true) {
                self.broken = Some("a known data-bearing member cannot be used");
            }
        }
        // Both operations were begun on connections of one generation: what the second tells was
        // dealt with when the first cleared the pool. The monitor may clear it once more.
        if self.cleared > 1 + usize::from(self.monitor_broken) {
            self.broken = Some("the pool was cleared again for connections that were gone");
        }
    }

    /// The rules about interrupted operations: only of a primary that a newer one has displaced, and
    /// once.
    fn judge_interruptions(&mut self) {
        if self.interrupted > 1 || (self.interrupted == 1 && !self.stepped_down) {
            self.broken = Some("operations were interrupted for no reason");
        }
    }

    fn answer(&mut self, server: &ServerAddress, stepped_down: bool) {
        let Some(asked) = self.checks.remove(server) else { return };
        self.answers += 1;
        let name = &server.as_str()[..1];
        let reply = Arc::new(Discovery::reply(name, stepped_down));
        self.handle(Input::HelloReceived {
            server: server.clone(),
            check: asked.check,
            reply,
            round_trip: Duration::from_millis(1),
            more_to_come: false,
        });
    }

    fn operation_failed(&mut self, cause: ApplicationError) {
        self.handle(Input::ApplicationFailed {
            server: address("a"),
            generation: PoolGeneration(0),
            service_id: None,
            handshake: HandshakeProgress::Complete,
            max_wire_version: 21,
            overloaded: false,
            cause,
        });
    }

    fn primary(&self) -> Option<&ServerAddress> {
        self.topology.description().primary().map(|server| server.address())
    }
}

impl Model for Discovery {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![World::begin()]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        if world.broken.is_some() {
            return;
        }
        if !world.stepped_down {
            steps.push(Step::Depose);
        }
        if world.answers < MAX_ANSWERS {
            for (server, asked) in &world.checks {
                steps.push(Step::AnswerNow(server.clone()));
                if asked.stepped_down != world.stepped_down {
                    steps.push(Step::AnswerLate(server.clone()));
                }
            }
        }
        if !world.monitor_broken && world.checks.contains_key(&address("a")) {
            steps.push(Step::Break(address("a")));
        }
        if world.stepped_down && !world.told_not_primary {
            steps.push(Step::NotPrimary);
        }
        if !world.lost_connection {
            steps.push(Step::LoseConnection);
        }
        if world.ticks < MAX_TICKS && world.topology.next_deadline().is_some() {
            steps.push(Step::Tick);
        }
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        let mut world = world.clone();
        match step {
            Step::Depose => world.stepped_down = true,
            Step::AnswerNow(server) => {
                let stepped_down = world.stepped_down;
                world.answer(&server, stepped_down);
            }
            Step::AnswerLate(server) => {
                let stepped_down = world.checks.get(&server)?.stepped_down;
                world.answer(&server, stepped_down);
            }
            Step::Break(server) => {
                let asked = world.checks.remove(&server)?;
                world.monitor_broken = true;
                let failure = CheckFailure::new(CheckFailureKind::Network, "reset");
                world.handle(Input::CheckFailed { server, check: asked.check, failure });
            }
            Step::NotPrimary => {
                world.told_not_primary = true;
                world.operation_failed(ApplicationError::Command(Box::new(CommandError {
                    code: Some(NOT_WRITABLE_PRIMARY),
                    message: "not primary".to_owned(),
                    topology_version: Some(version("a", 2)),
                    ..CommandError::default()
                })));
            }
            Step::LoseConnection => {
                world.lost_connection = true;
                world.operation_failed(ApplicationError::Network("reset".to_owned()));
            }
            Step::Tick => {
                world.ticks += 1;
                world.now = world.topology.next_deadline()?;
                world.handle(Input::Tick);
            }
        }
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("every rule holds", |_, world: &World| world.broken.is_none()),
            Property::always("a known primary was elected", |_, world: &World| {
                world.primary() != Some(&address("b")) || world.stepped_down
            }),
            Property::sometimes("the new primary is known", |_, world: &World| {
                world.primary() == Some(&address("b"))
            }),
            Property::sometimes("the old primary is still believed", |_, world: &World| {
                world.stepped_down && world.primary() == Some(&address("a"))
            }),
            Property::sometimes("an error about an earlier pool is ignored", |_, world: &World| {
                world.told_not_primary && world.lost_connection && world.cleared == 1
            }),
            Property::sometimes(
                "an error about an earlier state is ignored",
                |_, world: &World| {
                    let description = world.topology.description();
                    let a = description.server(&address("a"));
                    world.told_not_primary
                        && a.is_some_and(|a| a.server_type() == ServerType::RsSecondary)
                },
            ),
            Property::sometimes("a silent old primary is given up", |_, world: &World| {
                world.interrupted == 1
            }),
            Property::sometimes("no server is primary", |_, world: &World| {
                world.stepped_down && world.primary().is_none()
            }),
        ]
    }
}

#[test]
fn every_order_of_two_errors_a_monitor_and_a_step_down_keeps_the_rules() {
    let checker = Discovery.checker().spawn_bfs().join();
    println!(
        "discovery: {} states, {} unique, depth {} (answers ≤ {MAX_ANSWERS}, ticks ≤ {MAX_TICKS})",
        checker.state_count(),
        checker.unique_state_count(),
        checker.max_depth(),
    );
    checker.assert_properties();
    assert!(checker.unique_state_count() > 1_000, "the model has shrunk to nothing");
}
