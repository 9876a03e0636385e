//! What the round-trip time of a server is made of.
//! Specification: `server-discovery-and-monitoring/server-monitoring.md`, "Measuring RTT".

#![allow(clippy::unwrap_used, reason = "a panic is this test's report")]

use std::sync::Arc;
use std::time::Duration;

use quorate_protocol::{HelloReply, MonotonicTime, ObjectId, TopologyVersion};
use quorate_server_discovery::{
    CheckKind, DiscoveryOptions, Input, MonitorCommand, Output, Topology, TopologyId,
};

const FIRST: Duration = Duration::from_millis(5);

/// The next check that the core asks for.
fn next_check(topology: &mut Topology) -> MonitorCommand {
    let mut asked = None;
    while let Some(output) = topology.poll_output() {
        if let Output::Monitor { command: command @ MonitorCommand::Check { .. }, .. } = output {
            asked = Some(command);
        }
    }
    asked.expect("a check is asked for")
}

/// A streamed reply comes when the server has news or after ten seconds: its time says nothing about the
/// way to the server.
#[test]
fn streamed_replies_never_feed_the_round_trip_time() {
    let seed: quorate_protocol::ServerAddress = "db.example:27017".parse().unwrap();
    let options = DiscoveryOptions::with_seeds([seed.clone()]);
    let mut now = MonotonicTime::ZERO;
    let mut topology = Topology::new(&options, TopologyId(1), 42, now).unwrap();
    let process_id = ObjectId::from_bytes([7; 12]);
    let mut kinds = Vec::new();
    for counter in 0..5 {
        let MonitorCommand::Check { check, kind, .. } = next_check(&mut topology) else {
            panic!("a check")
        };
        // The handshake is quick; the awaited reply and those that are streamed after it are slow.
        let round_trip = if counter == 0 { FIRST } else { Duration::from_secs(10) };
        kinds.push(kind);
        now = now + round_trip;
        let topology_version = Some(TopologyVersion { process_id, counter });
        let reply = HelloReply { ok: true, topology_version, ..HelloReply::default() };
        let (server, reply, more_to_come) = (seed.clone(), Arc::new(reply), counter > 0);
        let received = Input::HelloReceived { server, check, reply, round_trip, more_to_come };
        topology.handle(now, received);
        let description = topology.description();
        let server = description.server(&seed).unwrap();
        assert_eq!(server.round_trip_time(), Some(FIRST), "after {kinds:?}");
    }
    assert!(matches!(kinds[0], CheckKind::Connect), "{kinds:?}");
    assert!(matches!(kinds[1], CheckKind::Await { .. }), "{kinds:?}");
    assert!(matches!(kinds[2..], [CheckKind::ReadNext, CheckKind::ReadNext, CheckKind::ReadNext]));
}

/// A server that answers every awaited hello at once must not have its clients do nothing else.
#[test]
fn a_server_that_answers_at_once_is_asked_a_bounded_number_of_times() {
    let seed: quorate_protocol::ServerAddress = "db.example:27017".parse().unwrap();
    let options = DiscoveryOptions::with_seeds([seed.clone()]);
    let mut now = MonotonicTime::ZERO;
    let mut topology = Topology::new(&options, TopologyId(1), 42, now).unwrap();
    let process_id = ObjectId::from_bytes([7; 12]);
    let end = now + Duration::from_secs(10);
    let (mut checks, mut counter) = (0, 0);
    while now < end {
        let Some(output) = topology.poll_output() else {
            // Nothing to do: the clock moves to the next deadline.
            let Some(deadline) = topology.next_deadline() else { break };
            now = deadline.max(now);
            topology.handle(now, Input::Tick);
            continue;
        };
        let Output::Monitor { command: MonitorCommand::Check { check, .. }, .. } = output else {
            continue;
        };
        checks += 1;
        assert!(checks < 2000, "it is asked without end, at {now:?}");
        counter += 1;
        let topology_version = Some(TopologyVersion { process_id, counter });
        let reply = HelloReply { ok: true, topology_version, ..HelloReply::default() };
        let (server, reply, round_trip) = (seed.clone(), Arc::new(reply), Duration::ZERO);
        let received =
            Input::HelloReceived { server, check, reply, round_trip, more_to_come: true };
        while topology.poll_output().is_some() {}
        topology.handle(now, received);
    }
    assert!((100..2000).contains(&checks), "{checks} checks in ten seconds");
}
