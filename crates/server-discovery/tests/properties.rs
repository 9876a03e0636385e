//! What must hold whatever happens, in whatever order.
//!
//! A small world of five servers answers, fails, lies and reconfigures at random, while a shell that
//! knows the contract by heart carries out the outputs and objects to every breach.

#![allow(clippy::unwrap_used, reason = "a panic is this test's report")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use quorate_protocol::{
    ElectionId, HelloReply, MonotonicTime, ObjectId, ServerAddress, SetVersion, TopologyVersion,
    WireVersionRange,
};
use quorate_server_discovery::{
    ApplicationError, CheckFailure, CheckFailureKind, CheckId, CommandError, DiscoveryEvent,
    DiscoveryOptions, HandshakeProgress, Input, MonitorCommand, Output, PoolCommand,
    PoolGeneration, RecordedInput, RecordingStart, ServerType, Threading, Topology,
    TopologyDescription, TopologyId, TopologyType,
};

const SERVERS: usize = 5;

#[derive(Clone, Debug)]
enum Step {
    Hello {
        server: usize,
        reply: Reply,
        more: bool,
    },
    Late {
        server: usize,
        reply: Reply,
    },
    Handshake {
        server: usize,
        reply: Reply,
    },
    Fail {
        server: usize,
        kind: usize,
    },
    RoundTrip {
        server: usize,
        millis: Option<u64>,
    },
    Application {
        server: usize,
        cause: usize,
        phase: usize,
        behind: u64,
        tv: Option<i64>,
        old: bool,
    },
    CheckWanted,
    ScanWanted,
    CheckOne {
        server: usize,
    },
    Resolved {
        servers: Vec<usize>,
    },
    Advance {
        millis: u64,
    },
    ToDeadline,
}

#[derive(Clone, Debug)]
struct Reply {
    kind: usize,
    hosts: Vec<usize>,
    primary: Option<usize>,
    me: Option<usize>,
    other_set: bool,
    term: Option<i64>,
    version: Option<i64>,
    tv: Option<i64>,
    process: u8,
    wire: i32,
}

fn replies() -> impl Strategy<Value = Reply> {
    let hosts = prop::collection::vec(0..SERVERS, 0..SERVERS);
    let me = prop_oneof![6 => Just(None), 1 => (0..SERVERS).prop_map(Some)];
    (
        (0..9usize, hosts, prop::option::of(0..SERVERS), me),
        (prop::bool::weighted(0.1), prop::option::of(1..4i64), prop::option::of(1..3i64)),
        (
            prop::option::of(0..5i64),
            0..2u8,
            prop_oneof![1 => Just(7), 4 => Just(17), 4 => Just(21)],
        ),
    )
        .prop_map(
            |((kind, hosts, primary, me), (other_set, term, version), (tv, process, wire))| Reply {
                kind,
                hosts,
                primary,
                me,
                other_set,
                term,
                version,
                tv,
                process,
                wire,
            },
        )
}

fn steps() -> impl Strategy<Value = Step> {
    let server = 0..SERVERS;
    prop_oneof![
        8 => (server.clone(), replies(), any::<bool>())
            .prop_map(|(server, reply, more)| Step::Hello { server, reply, more }),
        1 => (server.clone(), replies()).prop_map(|(server, reply)| Step::Late { server, reply }),
        1 => (server.clone(), replies())
            .prop_map(|(server, reply)| Step::Handshake { server, reply }),
        2 => (server.clone(), 0..4usize).prop_map(|(server, kind)| Step::Fail { server, kind }),
        1 => (server.clone(), prop::option::of(0..50u64))
            .prop_map(|(server, millis)| Step::RoundTrip { server, millis }),
        3 => (server.clone(), 0..8usize, 0..3usize, 0..2u64, prop::option::of(0..5i64), any::<bool>())
            .prop_map(|(server, cause, phase, behind, tv, old)| {
                Step::Application { server, cause, phase, behind, tv, old }
            }),
        1 => Just(Step::CheckWanted),
        1 => Just(Step::ScanWanted),
        1 => server.clone().prop_map(|server| Step::CheckOne { server }),
        1 => prop::collection::vec(server, 0..4).prop_map(|servers| Step::Resolved { servers }),
        2 => (0..3000u64).prop_map(|millis| Step::Advance { millis }),
        2 => Just(Step::ToDeadline),
    ]
}

fn options() -> impl Strategy<Value = DiscoveryOptions> {
    let kind = 0..5usize;
    (kind, 1..3usize, any::<bool>(), any::<bool>()).prop_map(|(kind, seeds, single, poll)| {
        let seeds = if kind < 2 { 1 } else { seeds };
        let mut options = DiscoveryOptions::with_seeds((0..seeds).map(address));
        match kind {
            0 => options.direct_connection = true,
            1 => options.load_balanced = true,
            2 => options.set_name = Some("rs".to_owned()),
            _ => {}
        }
        if single {
            options.threading = Threading::Single;
        }
        if poll {
            options.server_monitoring_mode = quorate_protocol::ServerMonitoringMode::Poll;
        }
        options
    })
}

fn address(number: usize) -> ServerAddress {
    format!("host{number}").parse().unwrap()
}

fn version(counter: i64, process: u8) -> TopologyVersion {
    TopologyVersion { process_id: ObjectId::from_bytes([process; 12]), counter }
}

fn hello(server: usize, script: &Reply) -> HelloReply {
    let mut reply = HelloReply {
        ok: script.kind != 8,
        hello_ok: true,
        set_name: Some(if script.other_set { "other" } else { "rs" }.to_owned()),
        me: Some(address(script.me.unwrap_or(server))),
        hosts: script.hosts.iter().copied().map(address).collect(),
        primary: script.primary.map(address),
        election_id: script.term.map(ElectionId::from_term),
        set_version: script.version.map(SetVersion),
        topology_version: script.tv.map(|counter| version(counter, script.process)),
        wire_versions: WireVersionRange { min: 0, max: script.wire },
        logical_session_timeout_minutes: Some(30),
        ..HelloReply::default()
    };
    match script.kind {
        0 | 1 => reply.is_writable_primary = true,
        2 | 3 => reply.secondary = true,
        4 => reply.arbiter_only = true,
        5 => reply.hidden = true,
        6 => {
            reply.is_replica_set = true;
            reply.set_name = None;
        }
        7 => {
            reply.set_name = None;
            reply.is_dbgrid = script.term.is_some();
        }
        _ => {}
    }
    reply
}

/// Carries out the outputs and remembers enough to object.
struct Shell {
    topology: Topology,
    now: MonotonicTime,
    balanced: bool,
    log: Vec<String>,
    recording: Vec<String>,
    checks: BTreeMap<ServerAddress, CheckId>,
    measurements: BTreeMap<ServerAddress, CheckId>,
    heartbeats: BTreeSet<ServerAddress>,
    monitors: BTreeSet<ServerAddress>,
    pools: BTreeMap<ServerAddress, (bool, PoolGeneration)>,
    ids: BTreeSet<CheckId>,
    published: Arc<TopologyDescription>,
    new_rule_only: bool,
    max_election: Option<ElectionId>,
    closed: bool,
}

impl Shell {
    fn new(start: &RecordingStart, new_rule_only: bool) -> Self {
        let topology = start.topology().unwrap();
        let mut shell = Self {
            published: Arc::clone(topology.description()),
            topology,
            now: start.at,
            balanced: start.options.load_balanced,
            log: Vec::new(),
            recording: Vec::new(),
            checks: BTreeMap::new(),
            measurements: BTreeMap::new(),
            heartbeats: BTreeSet::new(),
            monitors: BTreeSet::new(),
            pools: BTreeMap::new(),
            ids: BTreeSet::new(),
            new_rule_only,
            max_election: None,
            closed: false,
        };
        shell.drain();
        shell
    }

    fn handle(&mut self, input: Input) {
        let recorded = RecordedInput { at: self.now, input };
        self.recording.push(recorded.to_line());
        self.topology.handle(self.now, recorded.input);
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(output) = self.topology.poll_output() {
            self.log.push(output.to_string());
            assert!(!self.closed, "nothing follows the topology's closing: {output}");
            match output {
                Output::Publish(description) => self.publish(description),
                Output::Event(event) => self.event(&event),
                Output::Monitor { server, command } => self.monitor(server, command),
                Output::Pool { server, command } => self.pool(server, command),
            }
        }
        assert!(self.published.is_equal(self.topology.description()));
    }

    fn publish(&mut self, description: Arc<TopologyDescription>) {
        let direct = description.topology_type() == TopologyType::Single;
        for server in description.servers().iter() {
            let usable = server.server_type().is_data_bearing()
                || (direct && server.server_type().is_known());
            if usable && server.server_type() != ServerType::Unknown {
                let ready = self.pools.get(server.address()).is_some_and(|(ready, _)| *ready);
                assert!(ready, "{} is published before its pool is ready", server.address());
                assert_eq!(server.round_trip_time().is_some(), !self.balanced);
            }
            if !server.server_type().is_known() {
                assert_eq!(server.round_trip_time(), None);
            }
        }
        assert!(!direct || description.servers().len() == 1, "Single has one server");
        let primaries =
            description.servers().iter().filter(|s| s.server_type() == ServerType::RsPrimary);
        assert!(primaries.count() <= 1, "{description}");
        if self.new_rule_only && !description.servers().is_empty() {
            assert!(description.max_election_id() >= self.max_election, "{description}");
            self.max_election = description.max_election_id();
        }
        self.published = description;
    }

    fn event(&mut self, event: &DiscoveryEvent) {
        match event {
            DiscoveryEvent::ServerHeartbeatStarted { heartbeat } => {
                assert!(self.heartbeats.insert(heartbeat.address.clone()), "two at once");
            }
            DiscoveryEvent::ServerHeartbeatSucceeded { heartbeat, .. }
            | DiscoveryEvent::ServerHeartbeatFailed { heartbeat, .. } => {
                assert!(self.heartbeats.remove(&heartbeat.address), "ended without a start");
            }
            DiscoveryEvent::TopologyDescriptionChanged { previous, new } => {
                assert!(!previous.is_equal(new));
            }
            DiscoveryEvent::ServerDescriptionChanged { previous, new } => {
                assert!(!previous.is_equal(new));
                assert_eq!(previous.address(), new.address());
            }
            DiscoveryEvent::TopologyClosed => {
                assert!(self.published.servers().is_empty());
                assert!(self.heartbeats.is_empty(), "every heartbeat ends");
                assert!(self.monitors.is_empty() && self.pools.is_empty(), "all is stopped");
                self.closed = true;
            }
            _ => {}
        }
    }

    fn monitor(&mut self, server: ServerAddress, command: MonitorCommand) {
        if command == MonitorCommand::Start {
            assert!(self.published.server(&server).is_some());
            assert!(self.monitors.insert(server), "started twice");
            return;
        }
        assert!(self.monitors.contains(&server), "{command} for {server}, which is not monitored");
        match command {
            MonitorCommand::Start => unreachable!("handled above"),
            MonitorCommand::Check { check, .. } => {
                assert!(self.ids.insert(check), "ids are used once");
                assert!(self.heartbeats.contains(&server), "told before it begins");
                assert!(self.checks.insert(server, check).is_none(), "one check at a time");
            }
            MonitorCommand::MeasureRoundTrip { check, .. } => {
                assert!(self.ids.insert(check), "ids are used once");
                self.measurements.insert(server, check);
            }
            MonitorCommand::StopMeasuring => {
                self.measurements.remove(&server);
            }
            MonitorCommand::Cancel => {
                self.checks.remove(&server);
            }
            MonitorCommand::Stop => {
                self.checks.remove(&server);
                self.measurements.remove(&server);
                self.monitors.remove(&server);
                assert!(self.published.server(&server).is_none());
            }
        }
    }

    fn pool(&mut self, server: ServerAddress, command: PoolCommand) {
        match command {
            PoolCommand::Open => {
                let fresh = (false, PoolGeneration(0));
                assert!(self.pools.insert(server, fresh).is_none(), "opened twice");
            }
            PoolCommand::MarkReady => {
                let pool = self.pools.get_mut(&server).expect("ready, but never opened");
                assert!(!std::mem::replace(&mut pool.0, true), "made ready twice");
            }
            PoolCommand::Clear { generation, service_id, .. } => {
                let pool = self.pools.get_mut(&server).expect("cleared, but never opened");
                if service_id.is_none() {
                    assert_eq!(generation.0, pool.1.0 + 1, "generations rise by one");
                    *pool = (false, generation);
                    let known = self.published.server(&server).unwrap().server_type().is_known();
                    assert!(!known, "a pool is cleared after its server turned Unknown");
                }
            }
            PoolCommand::Close => {
                assert!(self.pools.remove(&server).is_some(), "closed, but never opened");
            }
        }
    }

    fn step(&mut self, step: &Step) {
        let input = match step {
            Step::Advance { millis } => {
                self.now = self.now + Duration::from_millis(*millis);
                return;
            }
            Step::ToDeadline => {
                if let Some(deadline) = self.topology.next_deadline() {
                    self.now = self.now.max(deadline);
                }
                self.handle(Input::Tick);
                assert!(self.topology.next_deadline().is_none_or(|next| next > self.now));
                return;
            }
            Step::Hello { server, reply, more } => {
                let Some(check) = self.checks.remove(&address(*server)) else { return };
                Input::HelloReceived {
                    server: address(*server),
                    check,
                    reply: Arc::new(hello(*server, reply)),
                    round_trip: Duration::from_millis(3),
                    more_to_come: *more && reply.kind != 8,
                }
            }
            Step::Late { server, reply } => {
                let before = self.log.len();
                self.handle(Input::HelloReceived {
                    server: address(*server),
                    check: CheckId(0),
                    reply: Arc::new(hello(*server, reply)),
                    round_trip: Duration::from_millis(3),
                    more_to_come: false,
                });
                assert_eq!(self.log.len(), before, "an answer without a request is dropped");
                return;
            }
            Step::Handshake { server, reply } => Input::HandshakeReceived {
                server: address(*server),
                reply: Arc::new(hello(*server, reply)),
            },
            Step::Fail { server, kind } => {
                let Some(check) = self.checks.remove(&address(*server)) else { return };
                let kind = [
                    CheckFailureKind::Network,
                    CheckFailureKind::NetworkTimeout,
                    CheckFailureKind::Command,
                    CheckFailureKind::Malformed,
                ][*kind];
                let failure = CheckFailure::new(kind, "scripted");
                Input::CheckFailed { server: address(*server), check, failure }
            }
            Step::RoundTrip { server, millis } => {
                let Some(check) = self.measurements.remove(&address(*server)) else { return };
                let round_trip = millis.map(Duration::from_millis);
                Input::RoundTripMeasured { server: address(*server), check, round_trip }
            }
            Step::Application { server, cause, phase, behind, tv, old } => {
                self.application(*server, *cause, *phase, *behind, *tv, *old)
            }
            Step::CheckWanted => Input::CheckWanted,
            Step::ScanWanted => Input::ScanWanted,
            Step::CheckOne { server } => Input::ServerCheckWanted { server: address(*server) },
            Step::Resolved { servers } => {
                Input::SeedsResolved(servers.iter().copied().map(address).collect())
            }
        };
        self.handle(input);
    }

    fn application(
        &self,
        server: usize,
        cause: usize,
        phase: usize,
        behind: u64,
        tv: Option<i64>,
        old: bool,
    ) -> Input {
        let server = address(server);
        let service_id = self.balanced.then(|| ObjectId::from_bytes([9; 12]));
        let generation = self.topology.pool_generation(&server, service_id).unwrap_or_default();
        let command = |code: i32| {
            ApplicationError::Command(Box::new(CommandError {
                code: Some(code),
                message: "scripted".to_owned(),
                topology_version: tv.map(|counter| version(counter, 0)),
                ..CommandError::default()
            }))
        };
        Input::ApplicationFailed {
            generation: PoolGeneration(generation.0.saturating_sub(behind)),
            service_id,
            handshake: [
                HandshakeProgress::Connecting,
                HandshakeProgress::Authenticating,
                HandshakeProgress::Complete,
            ][phase],
            max_wire_version: if old { 7 } else { 21 },
            overloaded: cause == 7,
            cause: match cause {
                0 | 7 => ApplicationError::Network("scripted".to_owned()),
                1 => ApplicationError::NetworkTimeout("scripted".to_owned()),
                2 => command(10107),
                3 => command(11602),
                4 => command(91),
                5 => command(11000),
                _ => ApplicationError::Establishment("scripted".to_owned()),
            },
            server,
        }
    }
}

proptest! {
    // 256 cases unless PROPTEST_CASES says otherwise.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_contract_holds_whatever_happens(
        options in options(),
        steps in prop::collection::vec(steps(), 0..60),
        seed in any::<u64>(),
    ) {
        let new_rule_only = steps.iter().all(|step| match step {
            Step::Hello { reply, .. } | Step::Handshake { reply, .. } => reply.wire >= 17,
            _ => true,
        });
        let start = RecordingStart { options, id: TopologyId(1), seed, at: MonotonicTime::ZERO };
        let mut shell = Shell::new(&start, new_rule_only);
        steps.iter().for_each(|step| shell.step(step));
        shell.handle(Input::Close);
        prop_assert!(shell.closed);
        shell.handle(Input::CheckWanted);

        // The recording, read back, gives the same outputs to the byte.
        let start = RecordingStart::from_line(&start.to_line()).unwrap();
        let mut again = Shell::new(&start, new_rule_only);
        for line in &shell.recording {
            let recorded = RecordedInput::from_line(line).unwrap();
            again.now = recorded.at;
            again.checks.clear();
            again.handle(recorded.input);
        }
        prop_assert_eq!(again.log, shell.log);
    }
}
