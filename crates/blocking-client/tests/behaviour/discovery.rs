//! Discovery and scanning: "Single-threaded monitoring" in the Server Monitoring specification.

use bson::rawdoc;
use quorate_protocol::ReadPreference;
use quorate_server_discovery::{ServerType, TopologyType};

use crate::fake::{FakeSet, Reaction};
use crate::{Bench, seconds};

/// "Single-threaded clients do no I/O in the constructor."
#[test]
fn making_a_client_connects_to_no_server() {
    let set = FakeSet::start(1);
    let bench = Bench::new(&set.uri(&[0], ""));
    assert_eq!(bench.client.connection_count(), 0);
    let events = bench.take_events();
    assert_eq!(events[0], "topology opening");
    assert!(events.iter().all(|event| !event.contains("heartbeat")), "{events:?}");
    drop(bench);
    assert_eq!(set.members[0].accepted(), 0);
}

#[test]
fn one_seed_is_enough_to_find_a_set() {
    let set = FakeSet::start(3);
    let mut bench = Bench::new(&set.uri(&[1], ""));
    bench.client.ping(None).unwrap();

    let topology = bench.client.topology();
    assert_eq!(topology.topology_type(), TopologyType::ReplicaSetWithPrimary);
    assert_eq!(topology.servers().len(), 3);
    assert_eq!(topology.primary().unwrap().address(), set.members[0].address());
    assert!(topology.servers().iter().all(|server| server.server_type().is_data_bearing()));
    assert!(set.members.iter().all(|member| member.accepted() == 1), "one connection for each");
    assert_eq!(bench.client.connection_count(), 3);
}

/// "Scanning order": the seed names the primary, which is asked before the member that only the
/// primary's list tells of.
#[test]
fn the_supposed_primary_is_checked_before_other_members() {
    let set = FakeSet::start(3);
    let mut bench = Bench::new(&set.uri(&[2], ""));
    bench.client.ping(None).unwrap();
    let seen = set.journal.take_names(&set.members);
    let expected = [(2, "isMaster"), (0, "isMaster"), (1, "isMaster"), (0, "ping")];
    assert_eq!(seen, expected.map(|(place, name)| (place, name.to_owned())));
}

/// "Before each operation, the client checks if heartbeatFrequencyMS has passed since the previous
/// scan ended"; the primary comes first, then the one that was not looked at for longest.
#[test]
fn a_scan_is_due_after_the_heartbeat_frequency_and_not_before() {
    let set = FakeSet::start(3);
    let mut bench = Bench::new(&set.uri(&[2], ""));
    bench.client.ping(None).unwrap();
    set.journal.take();

    bench.clock.advance(seconds(4));
    bench.client.ping(None).unwrap();
    assert_eq!(set.journal.take_names(&set.members), [(0, "ping".to_owned())]);

    bench.clock.advance(seconds(56));
    bench.client.ping(None).unwrap();
    let seen = set.journal.take();
    let names: Vec<_> = seen.iter().map(|received| &*received.name).collect();
    // Modern servers are asked by `hello` once they have said that they know it.
    assert_eq!(names, ["hello", "hello", "hello", "ping"]);
    assert_eq!(&seen[0].member, set.members[0].address());
    assert!(seen.iter().all(|received| received.connection == 1), "the connections are the same");
    assert!(seen.iter().all(|received| received.body.get("client").unwrap().is_none()));
}

/// "cooldownMS": a server that failed is left alone for five seconds, and no longer.
#[test]
fn a_server_that_failed_is_left_alone_during_its_cooldown() {
    let mut set = FakeSet::start(2);
    set.members[1].stop();
    let mut bench = Bench::new(&set.uri(&[0, 1], ""));
    bench.client.ping(None).unwrap();
    let events = bench.take_events();
    let failed: Vec<_> =
        events.iter().filter(|event| event.starts_with("heartbeat failed")).collect();
    assert_eq!(failed.len(), 1, "{events:?}");
    assert!(failed[0].contains("refused"), "{failed:?}");

    bench.clock.advance(seconds(4));
    bench.client.scan();
    assert_eq!(bench.checks_begun(), 1, "the one that answers");

    bench.clock.advance(seconds(2));
    bench.client.scan();
    assert_eq!(bench.checks_begun(), 2, "both");
}

/// "Network or command error during server check", step 4, although the cooldown would forbid it.
#[test]
fn a_known_server_that_restarted_is_found_again_at_once() {
    let mut set = FakeSet::start(1);
    let mut bench = Bench::new(&set.uri(&[0], ""));
    bench.client.ping(None).unwrap();
    set.members[0].restart();

    bench.clock.advance(seconds(60));
    bench.client.ping(None).unwrap();
    assert_eq!(set.members[0].accepted(), 2);
    let events = bench.take_events();
    assert!(events.iter().any(|event| event.starts_with("heartbeat failed")), "{events:?}");
}

/// "Topology type: Single": whatever is there is used, and told that it may answer.
#[test]
fn a_direct_connection_uses_whatever_is_there() {
    let set = FakeSet::start(2);
    let secondary = set.members[1].address();
    let mut bench = Bench::new(&format!("mongodb://{secondary}/?directConnection=true"));
    bench.client.ping(Some(&ReadPreference::PRIMARY)).unwrap();
    assert_eq!(bench.client.topology().topology_type(), TopologyType::Single);
    let server = bench.client.topology().server(secondary).unwrap().server_type();
    assert_eq!(server, ServerType::RsSecondary);
    let seen = set.journal.take();
    let told = seen[1].body.get_document("$readPreference").unwrap();
    assert_eq!(told.get_str("mode").unwrap(), "primaryPreferred");
    assert_eq!(set.members[0].accepted(), 0);
}

/// "Handling of backpressure labels": such a connection is not closed.
#[test]
fn a_server_too_busy_to_be_checked_keeps_its_connection() {
    let set = FakeSet::start(1);
    let mut bench = Bench::new(&set.uri(&[0], ""));
    bench.client.ping(None).unwrap();
    set.members[0].next(
        "hello",
        Reaction::Reply(rawdoc! {
            "ok": 0,
            "code": 462,
            "errmsg": "busy",
            "errorLabels": ["SystemOverloadedError"],
        }),
    );
    bench.clock.advance(seconds(1));
    bench.client.scan();
    let address = set.members[0].address();
    let server = bench.client.topology().server(address).unwrap();
    assert_eq!(server.server_type(), ServerType::Unknown);
    assert!(server.error().unwrap().to_string().contains("busy"));

    bench.clock.advance(seconds(6));
    bench.client.ping(None).unwrap();
    assert_eq!(set.members[0].accepted(), 1);

    // The connection counts as one of the pool as it is now: its failures are news.
    set.members[0].next("count", Reaction::HangUp);
    bench.client.run_command("d", &rawdoc! { "count": "c" }, None).unwrap_err();
    let server = bench.client.topology().server(address).unwrap();
    assert_eq!(server.server_type(), ServerType::Unknown);
}
