//! Rules of the specification, each with a test that fails if the rule is broken.
//!
//! The stories in `scenarios/` show whole outputs; here, one rule is looked at by itself.

#![allow(clippy::unwrap_used, reason = "a panic is this test's report")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use quorate_connection_string::ConnectionString;
use quorate_protocol::{
    ElectionId, HelloReply, MonotonicTime, ObjectId, ServerAddress, SetVersion, TopologyVersion,
    WireVersionRange,
};
use quorate_server_discovery::{
    CheckFailure, CheckFailureKind, CheckId, DiscoveryEvent, DiscoveryOptions, Input,
    MonitorCommand, Output, PoolCommand, ServerType, Topology, TopologyId, TopologyType, Warning,
};

/// A topology, the time, and the checks that its servers owe an answer to.
struct Watch {
    topology: Topology,
    now: MonotonicTime,
    checks: BTreeMap<ServerAddress, CheckId>,
    measurements: BTreeMap<ServerAddress, CheckId>,
    warnings: Vec<Warning>,
    /// Servers whose pools were cleared, and whether operations in flight were interrupted.
    cleared: Vec<(ServerAddress, bool)>,
}

fn address(name: &str) -> ServerAddress {
    format!("{name}:1").parse().unwrap()
}

impl Watch {
    fn new(uri: &str) -> Self {
        Self::with(uri, |_| ())
    }

    fn with(uri: &str, change: impl FnOnce(&mut DiscoveryOptions)) -> Self {
        let string = ConnectionString::parse(uri).unwrap();
        let mut options = DiscoveryOptions::from_connection_string(&string);
        change(&mut options);
        let now = MonotonicTime::from_millis(1);
        let topology = Topology::new(&options, TopologyId(1), 1, now).unwrap();
        let (checks, measurements) = (BTreeMap::new(), BTreeMap::new());
        let mut watch =
            Self { topology, now, checks, measurements, warnings: Vec::new(), cleared: Vec::new() };
        watch.drain();
        watch
    }

    fn handle(&mut self, input: Input) {
        self.topology.handle(self.now, input);
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(output) = self.topology.poll_output() {
            match output {
                Output::Monitor { server, command } => match command {
                    MonitorCommand::Check { check, .. } => {
                        self.checks.insert(server, check);
                    }
                    MonitorCommand::MeasureRoundTrip { check, .. } => {
                        self.measurements.insert(server, check);
                    }
                    _ => {}
                },
                Output::Pool { server, command: PoolCommand::Clear { interrupt_in_use, .. } } => {
                    self.cleared.push((server, interrupt_in_use))
                }
                Output::Event(DiscoveryEvent::Warning(warning)) => self.warnings.push(warning),
                _ => {}
            }
        }
    }

    /// The server answers its check, after this many milliseconds on the way.
    fn answer_after(&mut self, name: &str, reply: HelloReply, millis: u64) {
        let server = address(name);
        let check = self.checks.remove(&server).expect("the server is being checked");
        self.handle(Input::HelloReceived {
            server,
            check,
            reply: Arc::new(reply),
            round_trip: Duration::from_millis(millis),
            more_to_come: false,
        });
    }

    fn answer(&mut self, name: &str, reply: HelloReply) {
        self.answer_after(name, reply, 1);
    }

    fn fail(&mut self, name: &str) {
        let server = address(name);
        let check = self.checks.remove(&server).expect("the server is being checked");
        let failure = CheckFailure::new(CheckFailureKind::Network, "reset");
        self.handle(Input::CheckFailed { server, check, failure });
    }

    /// Lets time pass until a server is checked again.
    fn until_checked(&mut self, name: &str) {
        let server = address(name);
        for _ in 0..100 {
            if self.checks.contains_key(&server) {
                return;
            }
            self.now = self.topology.next_deadline().expect("a check is due some day");
            self.handle(Input::Tick);
        }
        panic!("{name} is never checked");
    }

    fn kind(&self, name: &str) -> Option<ServerType> {
        self.topology.description().server(&address(name)).map(|server| server.server_type())
    }

    fn names(&self) -> Vec<String> {
        let description = self.topology.description();
        description.servers().iter().map(|server| server.address().to_string()).collect()
    }
}

fn member(me: &str, hosts: &[&str]) -> HelloReply {
    HelloReply {
        ok: true,
        hello_ok: true,
        set_name: Some("rs".to_owned()),
        set_version: Some(SetVersion(1)),
        hosts: hosts.iter().map(|host| address(host)).collect(),
        me: Some(address(me)),
        wire_versions: WireVersionRange { min: 0, max: 21 },
        ..HelloReply::default()
    }
}

fn secondary(me: &str, hosts: &[&str]) -> HelloReply {
    HelloReply { secondary: true, ..member(me, hosts) }
}

fn primary(me: &str, hosts: &[&str], term: i64) -> HelloReply {
    HelloReply {
        is_writable_primary: true,
        election_id: Some(ElectionId::from_term(term)),
        ..member(me, hosts)
    }
}

/// "Using electionId and setVersion to detect stale primaries": the order of the two changed with
/// wire version 17, neither before nor after.
#[test]
fn primaries_are_ordered_by_election_from_wire_version_17_on() {
    for (wire, newer_election_wins) in [(16, false), (17, true), (18, true)] {
        let mut watch = Watch::new("mongodb://a:1,b:1/?replicaSet=rs");
        let wire_versions = WireVersionRange { min: 0, max: wire };
        let early = HelloReply {
            set_version: Some(SetVersion(2)),
            wire_versions,
            ..primary("a", &["a", "b"], 1)
        };
        let late = HelloReply {
            set_version: Some(SetVersion(1)),
            wire_versions,
            ..primary("b", &["a", "b"], 2)
        };
        watch.answer("a", early);
        watch.answer("b", late);
        let kinds = (watch.kind("a"), watch.kind("b"));
        let (unknown, primary) = (Some(ServerType::Unknown), Some(ServerType::RsPrimary));
        let expected = match newer_election_wins {
            true => (unknown, primary),
            false => (primary, unknown),
        };
        assert_eq!(kinds, expected, "wire version {wire}");
    }
}

/// "updateRSWithPrimaryFromMember": a member that is called otherwise is not the one we asked for.
#[test]
fn a_member_under_a_primary_that_is_called_otherwise_is_removed() {
    let mut watch = Watch::new("mongodb://a:1,b:1/?replicaSet=rs");
    watch.answer("a", primary("a", &["a", "b"], 1));
    watch.answer("b", secondary("c", &["a", "b"]));
    assert_eq!(watch.names(), ["a:1"]);
    assert_eq!(watch.topology.description().topology_type(), TopologyType::ReplicaSetWithPrimary);
}

/// "updateRSWithPrimaryFromMember", "updateRSWithoutPrimary" and "updateRSFromPrimary": a server of
/// another set is removed and what it says about members is not believed; one of this set stays.
#[test]
fn only_members_of_the_set_are_believed() {
    let other = |reply: HelloReply| HelloReply { set_name: Some("other".to_owned()), ..reply };
    for first in [None, Some(primary("a", &["a", "b"], 1))] {
        let with_primary = first.is_some();
        let mut watch = Watch::new("mongodb://a:1,b:1/?replicaSet=rs");
        if let Some(first) = first {
            watch.answer("a", first);
        }
        let mut believed = watch.topology.clone();
        let check = watch.checks[&address("b")];
        watch.answer("b", other(secondary("b", &["b", "z"])));
        assert_eq!(watch.names(), ["a:1"], "with primary: {with_primary}");

        believed.handle(
            watch.now,
            Input::HelloReceived {
                server: address("b"),
                check,
                reply: Arc::new(secondary("b", &["a", "b", "y"])),
                round_trip: Duration::from_millis(1),
                more_to_come: false,
            },
        );
        let knows = believed.description().server(&address("y")).is_some();
        assert_eq!(knows, !with_primary, "a primary alone says who is a member, if there is one");
        let kind = believed.description().server(&address("b")).unwrap().server_type();
        assert_eq!(kind, ServerType::RsSecondary, "with primary: {with_primary}");
    }
    let mut watch = Watch::new("mongodb://a:1,b:1/?replicaSet=rs");
    watch.answer("b", other(primary("b", &["b", "z"], 9)));
    assert_eq!(watch.names(), ["a:1"]);
    assert_eq!(watch.topology.description().topology_type(), TopologyType::ReplicaSetNoPrimary);
}

/// "Clearing the round trip time": an average from before a failure says nothing about the server
/// that answers after it.
#[test]
fn round_trips_are_forgotten_with_the_connection() {
    let mut watch = Watch::new("mongodb://a:1/?replicaSet=rs&serverMonitoringMode=poll");
    watch.answer_after("a", primary("a", &["a"], 1), 100);
    let average = |watch: &Watch| {
        watch.topology.description().server(&address("a")).unwrap().round_trip_time()
    };
    assert_eq!(average(&watch), Some(Duration::from_millis(100)));
    watch.until_checked("a");
    watch.fail("a");
    assert_eq!(average(&watch), None);
    watch.until_checked("a");
    watch.answer_after("a", primary("a", &["a"], 1), 10);
    assert_eq!(average(&watch), Some(Duration::from_millis(10)), "no part of the old average");
}

/// "updateRSFromPrimary": a primary that turns out stale has no say in who is a member.
#[test]
fn the_members_that_a_stale_primary_lists_are_not_adopted() {
    let mut watch = Watch::new("mongodb://a:1,b:1/?replicaSet=rs");
    watch.answer("a", primary("a", &["a", "b"], 2));
    watch.answer("b", primary("b", &["b", "z"], 1));
    assert_eq!(watch.names(), ["a:1", "b:1"]);
    assert_eq!(watch.kind("b"), Some(ServerType::Unknown));
    assert_eq!(watch.kind("a"), Some(ServerType::RsPrimary));
}

/// "updateRSFromPrimary", before wire version 17: a primary without electionId still raises
/// maxSetVersion, so that one with an older configuration is stale afterwards.
#[test]
fn the_greatest_set_version_is_learned_from_a_primary_without_election_id() {
    let old = |reply: HelloReply, version: i64| HelloReply {
        set_version: Some(SetVersion(version)),
        wire_versions: WireVersionRange { min: 0, max: 16 },
        ..reply
    };
    let mut watch = Watch::new("mongodb://a:1,b:1,c:1/?replicaSet=rs");
    let hosts = ["a", "b", "c"];
    watch.answer("a", old(primary("a", &hosts, 1), 1));
    let without = HelloReply { election_id: None, ..primary("b", &hosts, 1) };
    watch.answer("b", old(without, 2));
    assert_eq!(watch.topology.description().max_set_version(), Some(SetVersion(2)));
    watch.answer("c", old(primary("c", &hosts, 3), 1));
    assert_eq!(watch.kind("c"), Some(ServerType::Unknown), "its configuration is older");
}

/// "Measuring RTT": the time until a streamed or awaited reply says how long nothing happened, not
/// how far away the server is.
#[test]
fn replies_that_were_waited_for_never_feed_the_round_trip_time() {
    let mut watch = Watch::new("mongodb://a:1/?replicaSet=rs");
    let version =
        |counter| Some(TopologyVersion { process_id: ObjectId::from_bytes([1; 12]), counter });
    let reply =
        |counter| HelloReply { topology_version: version(counter), ..primary("a", &["a"], 1) };
    watch.answer_after("a", reply(1), 8);
    let average = |watch: &Watch| {
        let description = watch.topology.description();
        let server = description.server(&address("a")).unwrap();
        (server.round_trip_time(), server.min_round_trip_time())
    };
    let first = average(&watch);
    assert_eq!(first.0, Some(Duration::from_millis(8)));
    let server = address("a");
    for (counter, more_to_come) in [(2, true), (3, true), (4, false)] {
        let check = watch.checks[&server];
        watch.handle(Input::HelloReceived {
            server: server.clone(),
            check,
            reply: Arc::new(reply(counter)),
            round_trip: Duration::from_secs(10),
            more_to_come,
        });
        assert_eq!(average(&watch), first, "after awaited reply {counter}");
    }
    // The second connection measures instead.
    for _ in 0..100 {
        if watch.measurements.contains_key(&server) {
            break;
        }
        watch.now = watch.topology.next_deadline().expect("a measurement is due some day");
        watch.handle(Input::Tick);
    }
    let check = watch.measurements.remove(&server).expect("a streaming server is measured");
    let round_trip = Some(Duration::from_millis(13));
    watch.handle(Input::RoundTripMeasured { server, check, round_trip });
    assert_eq!(average(&watch).0, Some(Duration::from_millis(9)), "a fifth of the way to 13 ms");
}

#[test]
fn seed_lists_longer_than_any_set_are_warned_about() {
    let uri = |count: usize| {
        let hosts: Vec<String> = (0..count).map(|host| format!("h{host}")).collect();
        format!("mongodb://{}/?replicaSet=rs", hosts.join(","))
    };
    assert_eq!(Watch::new(&uri(50)).warnings, []);
    let warnings = Watch::new(&uri(51)).warnings;
    assert_eq!(warnings, [Warning::ManySeeds { count: 51 }]);
    assert!(warnings[0].to_string().contains("51 hosts"), "{}", warnings[0]);
}

/// A set of two whose second member becomes primary while the first says nothing. Time passes until
/// the core wants nothing before `until`.
fn displaced(patience: Option<Duration>, until: Duration, answers: bool) -> Watch {
    let mut watch = Watch::with("mongodb://a:1,b:1/?replicaSet=rs", |options| {
        options.displaced_patience = patience
    });
    let streaming = |reply: HelloReply, counter| HelloReply {
        topology_version: Some(TopologyVersion {
            process_id: ObjectId::from_bytes([1; 12]),
            counter,
        }),
        ..reply
    };
    watch.answer("a", streaming(primary("a", &["a", "b"], 1), 1));
    watch.answer("b", streaming(secondary("b", &["a", "b"]), 1));
    watch.answer("b", streaming(primary("b", &["a", "b"], 2), 2));
    assert_eq!(watch.kind("a"), Some(ServerType::Unknown));
    if answers {
        watch.answer("a", streaming(secondary("a", &["a", "b"]), 2));
    }
    let end = watch.now + until;
    while let Some(at) = watch.topology.next_deadline().filter(|at| *at <= end) {
        watch.now = at;
        watch.handle(Input::Tick);
    }
    watch
}

/// Ours, beyond the specification: see `docs/discovery.md`.
#[test]
fn operations_on_a_silent_displaced_primary_are_interrupted() {
    let patience = Duration::from_millis(250);
    let interrupted = [(address("a"), true)];
    assert_eq!(displaced(Some(patience), Duration::from_millis(249), false).cleared, []);
    assert_eq!(displaced(Some(patience), Duration::from_millis(250), false).cleared, interrupted);
}

#[test]
fn a_displaced_primary_that_answers_keeps_its_connections() {
    let patience = Some(Duration::from_millis(250));
    let watch = displaced(patience, Duration::from_secs(5), true);
    assert_eq!(watch.cleared, []);
    assert_eq!(watch.kind("a"), Some(ServerType::RsSecondary));
}

#[test]
fn without_the_option_operations_wait_for_the_check_to_fail() {
    assert_eq!(displaced(None, Duration::from_secs(5), false).cleared, []);
}
