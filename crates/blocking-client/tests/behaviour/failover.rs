//! What an operation meets when a member changes its state or goes away: "Application errors" in the
//! Server Discovery And Monitoring specification, and the Retryable Reads specification.

use bson::rawdoc;
use quorate_blocking_client::{FindOptions, Namespace, OperationError};
use quorate_server_discovery::{ServerType, TopologyType};

use crate::Bench;
use crate::fake::{FakeSet, Reaction, not_primary};

fn things() -> Namespace {
    Namespace::new("d", "things").unwrap()
}

fn written() -> Reaction {
    Reaction::Reply(rawdoc! { "ok": 1, "n": 1 })
}

fn found(text: &str) -> Reaction {
    Reaction::Reply(rawdoc! {
        "ok": 1,
        "cursor": { "id": 0_i64, "ns": "d.things", "firstBatch": [{ "x": text }] },
    })
}

/// "For single-threaded clients, in the case of a 'not writable primary' …, the client MUST mark the
/// topology as 'stale' so the next server selection scans all servers."
#[test]
fn writes_follow_the_primary_after_it_says_that_it_is_none() {
    let set = FakeSet::start(3);
    let mut bench = Bench::new(&set.uri(&[0], ""));
    bench.client.ping(None).unwrap();
    set.elect(2, 2);
    set.members[0].next("insert", not_primary());
    set.members[2].always("insert", written());

    let error = bench.client.insert(&things(), [rawdoc! { "x": 1 }]).unwrap_err();
    let OperationError::Command { server, error } = &error else { panic!("{error}") };
    assert_eq!((server, error.code), (set.members[0].address(), Some(10107)));
    let topology = bench.client.topology();
    assert!(topology.is_stale());
    assert_eq!(topology.server(server).unwrap().server_type(), ServerType::Unknown);
    assert_eq!(topology.topology_type(), TopologyType::ReplicaSetNoPrimary);

    set.journal.take();
    bench.client.insert(&things(), [rawdoc! { "x": 1 }]).unwrap();
    let seen = set.journal.take();
    assert_eq!(&seen.last().unwrap().member, set.members[2].address());
    // "the client MUST clear the pool if and only if the error is 'node is shutting down'".
    assert!(set.members.iter().all(|member| member.accepted() == 1), "no connection was closed");
}

#[test]
fn a_member_that_shuts_down_loses_its_connection() {
    let set = FakeSet::start(1);
    let mut bench = Bench::new(&set.uri(&[0], ""));
    bench.client.ping(None).unwrap();
    let reply = rawdoc! { "ok": 0, "code": 91, "errmsg": "shutting down" };
    set.members[0].next("insert", Reaction::Reply(reply));
    bench.client.insert(&things(), [rawdoc! { "x": 1 }]).unwrap_err();
    assert_eq!(bench.client.connection_count(), 0);
    set.members[0].wait_for_ended_connections(1);
    assert!(bench.client.topology().is_stale());
}

/// "For a 'node is recovering' error, single-threaded clients MUST NOT mark the topology as
/// 'stale'."
#[test]
fn a_member_that_recovers_does_not_cause_a_scan() {
    let set = FakeSet::start(1);
    let mut bench = Bench::new(&set.uri(&[0], ""));
    bench.client.ping(None).unwrap();
    let reply = rawdoc! { "ok": 0, "code": 13436, "errmsg": "recovering" };
    set.members[0].next("insert", Reaction::Reply(reply));
    bench.client.insert(&things(), [rawdoc! { "x": 1 }]).unwrap_err();
    assert!(!bench.client.topology().is_stale());
    let server = bench.client.topology().server(set.members[0].address()).unwrap();
    assert_eq!(server.server_type(), ServerType::Unknown);
}

/// "the code and message of the write concern error MUST be checked the same way", and "errors
/// contained within the writeErrors field MUST NOT be checked".
#[test]
fn write_concern_errors_count_and_write_errors_do_not() {
    let set = FakeSet::start(1);
    let mut bench = Bench::new(&set.uri(&[0], ""));
    bench.client.ping(None).unwrap();
    let errors = rawdoc! {
        "ok": 1, "n": 0,
        "writeErrors": [{ "index": 0, "code": 10107, "errmsg": "not primary" }],
    };
    set.members[0].next("insert", Reaction::Reply(errors));
    let error = bench.client.insert(&things(), [rawdoc! { "x": 1 }]).unwrap_err();
    assert!(matches!(error, OperationError::Write { .. }), "{error}");
    assert!(!bench.client.topology().is_stale());

    let concern = rawdoc! {
        "ok": 1, "n": 1,
        "writeConcernError": { "code": 11600, "errmsg": "interrupted at shutdown" },
    };
    set.members[0].next("insert", Reaction::Reply(concern));
    let error = bench.client.insert(&things(), [rawdoc! { "x": 1 }]).unwrap_err();
    assert!(error.to_string().contains("interrupted at shutdown"), "{error}");
    assert!(bench.client.topology().is_stale());
}

/// An error that is older than what is known changes nothing.
#[test]
fn an_error_with_an_old_topology_version_is_ignored() {
    let set = FakeSet::start(1);
    let version = |counter: i64| {
        rawdoc! { "processId": bson::oid::ObjectId::from_bytes([1; 12]), "counter": counter }
    };
    let mut hello = set.hello(0, Some(0), 1);
    hello.append(bson::raw::cstr!("topologyVersion"), version(5));
    set.members[0].set_hello(hello);
    let mut bench = Bench::new(&set.uri(&[0], ""));
    bench.client.ping(None).unwrap();
    let reply =
        rawdoc! { "ok": 0, "code": 10107, "errmsg": "late news", "topologyVersion": version(4) };
    set.members[0].next("insert", Reaction::Reply(reply));
    bench.client.insert(&things(), [rawdoc! { "x": 1 }]).unwrap_err();
    assert!(bench.client.topology().primary().is_some());
}

/// "Network error when reading or writing": the server becomes Unknown, the others stay.
#[test]
fn a_connection_that_breaks_in_an_operation_costs_its_server_alone() {
    let set = FakeSet::start(2);
    let mut bench = Bench::new(&set.uri(&[0], ""));
    bench.client.ping(None).unwrap();
    set.members[0].next("insert", Reaction::HangUp);
    let error = bench.client.insert(&things(), [rawdoc! { "x": 1 }]).unwrap_err();
    assert!(error.to_string().contains("whether the operation was carried out"), "{error}");
    assert_eq!(error.server(), Some(set.members[0].address()));
    let kind = |bench: &Bench, place: usize| {
        let server = bench.client.topology().server(set.members[place].address());
        server.unwrap().server_type()
    };
    assert_eq!(kind(&bench, 0), ServerType::Unknown);
    assert_eq!(kind(&bench, 1), ServerType::RsSecondary);
    assert_eq!(bench.client.connection_count(), 1);

    // Not a failed check, so there is no cooldown: the next operation finds it again.
    set.members[0].always("insert", written());
    bench.client.insert(&things(), [rawdoc! { "x": 1 }]).unwrap();
    assert_eq!((set.members[0].accepted(), set.members[1].accepted()), (2, 1));
}

/// "the client MUST NOT mark the server Unknown" on a timeout after the handshake; but the reply
/// that is still to come must not meet the next operation.
#[test]
fn a_reply_that_comes_too_late_costs_the_connection_alone() {
    let set = FakeSet::start(1);
    let mut bench = Bench::new(&set.uri(&[0], "socketTimeoutMS=50"));
    bench.client.ping(None).unwrap();
    set.members[0].next("insert", Reaction::Stall);
    let error = bench.client.insert(&things(), [rawdoc! { "x": 1 }]).unwrap_err();
    assert!(error.to_string().contains("no reply within 50 ms"), "{error}");
    set.members[0].wait_for_ended_connections(1);
    assert!(bench.client.topology().primary().is_some());

    set.journal.take();
    bench.client.ping(None).unwrap();
    let seen = set.journal.take();
    let names: Vec<_> = seen.iter().map(|received| &*received.name).collect();
    assert_eq!(names, ["isMaster", "ping"], "a new connection begins with a handshake");
    assert!(seen[0].body.get_document("client").is_ok());
}

#[test]
fn a_selected_server_that_cannot_be_connected_to_is_not_used() {
    let mut set = FakeSet::start(1);
    let mut bench = Bench::new(&set.uri(&[0], "socketTimeoutMS=50"));
    bench.client.ping(None).unwrap();
    set.members[0].next("insert", Reaction::Stall);
    bench.client.insert(&things(), [rawdoc! { "x": 1 }]).unwrap_err();
    set.members[0].stop();
    let error = bench.client.ping(None).unwrap_err();
    let OperationError::NoServer(failure) = error else { panic!("{error}") };
    assert!(failure.to_string().contains("refused"), "{failure}");
}

#[test]
fn a_read_is_tried_again_on_the_new_primary() {
    let set = FakeSet::start(2);
    let mut bench = Bench::new(&set.uri(&[0], ""));
    bench.client.ping(None).unwrap();
    set.elect(1, 2);
    set.members[0].next("find", not_primary());
    set.members[1].next("find", found("new"));
    let document = bench.client.find_one(&things(), &rawdoc! {}).unwrap().unwrap();
    assert_eq!(document.get_str("x").unwrap(), "new");
}

#[test]
fn a_read_is_tried_again_after_a_broken_connection() {
    let set = FakeSet::start(1);
    let mut bench = Bench::new(&set.uri(&[0], ""));
    bench.client.ping(None).unwrap();
    set.members[0].next("find", Reaction::HangUp);
    set.members[0].next("find", found("again"));
    let document = bench.client.find_one(&things(), &rawdoc! {}).unwrap().unwrap();
    assert_eq!(document.get_str("x").unwrap(), "again");
    assert_eq!(set.members[0].accepted(), 2);
}

#[test]
fn a_read_is_tried_twice_and_not_three_times() {
    let set = FakeSet::start(1);
    let mut bench = Bench::new(&set.uri(&[0], ""));
    bench.client.ping(None).unwrap();
    set.members[0].always("find", Reaction::HangUp);
    let error = bench.client.find(&things(), &rawdoc! {}, &FindOptions::default()).unwrap_err();
    assert!(matches!(error, OperationError::Connection { .. }), "{error}");
    let finds = set.journal.take().iter().filter(|received| received.name == "find").count();
    assert_eq!(finds, 2);
}

/// "If the driver cannot select a server for a retry attempt, … drivers MUST raise the previous
/// retryable error."
#[test]
fn the_first_error_is_told_when_there_is_no_server_to_try_again_on() {
    let set = FakeSet::start(1);
    let mut bench = Bench::new(&set.uri(&[0], ""));
    bench.client.ping(None).unwrap();
    set.depose();
    set.members[0].next("count", not_primary());
    let error = bench.client.count(&things(), &rawdoc! {}).unwrap_err();
    assert!(matches!(error, OperationError::Command { .. }), "{error}");
}

/// "For sharded clusters, the server address on which the operation failed MUST be provided to the
/// server selection mechanism as a member of the deprioritized server address list."
#[test]
fn a_read_is_tried_again_on_another_router() {
    let set = FakeSet::start(2);
    let busy = Reaction::Reply(rawdoc! { "ok": 0, "code": 6, "errmsg": "a shard is away" });
    for router in &set.members {
        router.set_hello(rawdoc! {
            "ok": 1, "msg": "isdbgrid", "minWireVersion": 0, "maxWireVersion": 21,
        });
        router.always("find", busy.clone());
    }
    let routers: Vec<_> = set.members.iter().map(|router| router.address().as_str()).collect();
    for seed in 0..8 {
        let uri = format!("mongodb://{}/", routers.join(","));
        let mut bench = Bench::with(&uri, |options| options.seed = seed);
        bench.client.find_one(&things(), &rawdoc! {}).unwrap_err();
        let seen = set.journal.take();
        let asked: Vec<_> = seen.iter().filter(|received| received.name == "find").collect();
        assert_eq!(asked.len(), 2);
        assert_ne!(asked[0].member, asked[1].member);
    }
}

/// "Drivers MUST expose `maxAdaptiveRetries`"; and a write is sent again if `retryWrites` is enabled.
#[test]
fn the_options_say_how_often_an_overloaded_server_is_asked_again() {
    let set = FakeSet::start(1);
    let busy = rawdoc! {
        "ok": 0, "code": 462, "errmsg": "busy",
        "errorLabels": ["SystemOverloadedError", "RetryableError"],
    };
    set.members[0].always("insert", Reaction::Reply(busy));
    for (options, sent) in [
        ("", 3),
        ("maxAdaptiveRetries=4", 5),
        ("maxAdaptiveRetries=0", 1),
        ("retryWrites=false", 1),
    ] {
        let mut bench = Bench::new(&set.uri(&[0], options));
        bench.client.insert(&things(), [rawdoc! { "_id": 1 }]).unwrap_err();
        let inserts = set.journal.take().iter().filter(|one| one.name == "insert").count();
        assert_eq!(inserts, sent, "{options}");
    }
}

#[test]
fn what_is_not_to_be_retried_is_sent_once() {
    let set = FakeSet::start(1);
    let sent = |uri: String, act: fn(&mut Bench) -> bool| {
        set.members[0].always("find", Reaction::HangUp);
        set.members[0].always("aggregate", Reaction::HangUp);
        let mut bench = Bench::new(&uri);
        bench.client.ping(None).unwrap();
        set.journal.take();
        assert!(act(&mut bench), "it fails");
        set.journal
            .take()
            .iter()
            .filter(|one| one.name == "find" || one.name == "aggregate")
            .count()
    };
    let run_command = |bench: &mut Bench| {
        bench.client.run_command("d", &rawdoc! { "find": "things" }, None).is_err()
    };
    assert_eq!(sent(set.uri(&[0], ""), run_command), 1, "runCommand");
    let read = |bench: &mut Bench| bench.client.find_one(&things(), &rawdoc! {}).is_err();
    assert_eq!(sent(set.uri(&[0], "retryReads=false"), read), 1, "retryReads=false");
    let out = |bench: &mut Bench| {
        bench.client.aggregate(&things(), [rawdoc! { "$out": "other" }], None).is_err()
    };
    assert_eq!(sent(set.uri(&[0], ""), out), 1, "$out");
}
