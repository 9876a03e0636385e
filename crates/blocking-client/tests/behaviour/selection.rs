//! "Single-threaded server selection" and "Checking an Idle Socket After socketCheckIntervalMS" in
//! the Server Selection specification.

use std::time::Duration;

use bson::rawdoc;
use quorate_blocking_client::OperationError;
use quorate_protocol::{ReadPreference, ReadPreferenceMode, TagSet};
use quorate_server_discovery::{SelectionError, ServerType};

use crate::fake::{FakeSet, Reaction};
use crate::{Bench, seconds};

/// "serverSelectionTryOnce": one scan, then an error that explains.
#[test]
fn trying_once_scans_once_and_explains() {
    let mut set = FakeSet::start(2);
    set.depose();
    set.members[1].stop();
    let mut bench = Bench::new(&set.uri(&[0, 1], ""));
    let error = bench.client.ping(None).unwrap_err();
    assert_eq!(bench.checks_begun(), 2, "each server once");
    assert_eq!(bench.clock.take_slept(), Duration::ZERO);

    let OperationError::NoServer(failure) = &error else { panic!("{error}") };
    assert_eq!(failure.waited(), Duration::ZERO);
    let text = error.to_string();
    let (up, down) = (set.members[0].address(), set.members[1].address());
    for part in [up.as_str(), down.as_str(), "RSSecondary", "refused", "primary"] {
        assert!(text.contains(part), "{part:?} is missing in {text}");
    }
    assert_eq!(text, failure.to_string(), "the core's own words");
}

/// A second operation right after waits out `minHeartbeatFrequencyMS`, then scans what is not
/// cooling down.
#[test]
fn scans_are_at_least_half_a_second_apart() {
    let set = FakeSet::start(1);
    set.depose();
    let mut bench = Bench::new(&set.uri(&[0], ""));
    bench.client.ping(None).unwrap_err();
    bench.take_events();
    bench.clock.take_slept();

    bench.client.ping(None).unwrap_err();
    assert_eq!(bench.clock.take_slept(), Duration::from_millis(500));
    assert_eq!(bench.checks_begun(), 1);

    // Also for an application that asks for one.
    bench.client.scan();
    assert_eq!(bench.clock.take_slept(), Duration::from_millis(500));
    assert_eq!(bench.checks_begun(), 1);
}

/// "When serverSelectionTryOnce is false, then the server selection loops until a server is
/// successfully selected or until the selection timeout is exceeded."
#[test]
fn without_try_once_it_goes_on_until_the_timeout() {
    let set = FakeSet::start(1);
    set.depose();
    let options = "serverSelectionTryOnce=false&serverSelectionTimeoutMS=2200";
    let mut bench = Bench::new(&set.uri(&[0], options));
    let error = bench.client.ping(None).unwrap_err();
    assert!(matches!(error, OperationError::NoServer(_)));
    // At 0, 500, 1000, 1500 and 2000 ms; the next scan would come after the end.
    assert_eq!(bench.checks_begun(), 5);
    assert_eq!(bench.clock.take_slept(), Duration::from_millis(2000));
}

#[test]
fn a_primary_that_appears_in_time_is_used() {
    let set = FakeSet::start(1);
    let secondary = set.hello(0, None, 0);
    for _ in 0..2 {
        set.members[0].next("hello", Reaction::Reply(secondary.clone()));
    }
    let mut bench = Bench::new(&set.uri(&[0], "serverSelectionTryOnce=false"));
    bench.client.ping(None).unwrap();
    assert_eq!(bench.clock.take_slept(), Duration::from_millis(1000));
}

#[test]
fn a_request_that_can_never_be_met_is_refused() {
    let set = FakeSet::start(1);
    let mut bench = Bench::new(&set.uri(&[0], ""));
    let tagged = ReadPreference {
        tag_sets: vec![[("dc", "ny")].into_iter().collect::<TagSet>()],
        ..ReadPreference::PRIMARY
    };
    let error = bench.client.ping(Some(&tagged)).unwrap_err();
    assert!(matches!(error, OperationError::Impossible(SelectionError::TagsWithPrimary)));
    assert!(!bench.client.topology().is_stale(), "a scan would not help");
}

#[test]
fn a_server_of_a_future_protocol_is_told_apart() {
    let set = FakeSet::start(1);
    set.members[0].set_hello(rawdoc! {
        "ok": 1, "isWritablePrimary": true, "setName": "rs", "setVersion": 1,
        "hosts": [set.members[0].address().as_str()],
        "minWireVersion": 900, "maxWireVersion": 999,
    });
    let mut bench = Bench::new(&set.uri(&[0], ""));
    let error = bench.client.ping(None).unwrap_err();
    assert!(
        matches!(error, OperationError::Impossible(SelectionError::Incompatible(_))),
        "{error}"
    );
    // It may have been replaced: the next operation looks again.
    set.elect(0, 1);
    bench.client.ping(None).unwrap();
}

/// Reads spread over the members within the latency window.
#[test]
fn secondaries_share_the_reads() {
    let set = FakeSet::start(3);
    let mut bench = Bench::new(&set.uri(&[0], ""));
    let secondary = ReadPreference::new(ReadPreferenceMode::Secondary);
    for _ in 0..32 {
        bench.client.ping(Some(&secondary)).unwrap();
    }
    let seen = set.journal.take();
    let pings = |place: usize| {
        let member = set.members[place].address();
        seen.iter().filter(|one| one.name == "ping" && one.member == *member).count()
    };
    assert_eq!(pings(0), 0);
    assert!(pings(1) > 0 && pings(2) > 0, "{} and {}", pings(1), pings(2));
    let last = seen.last().unwrap();
    let told = last.body.get_document("$readPreference").unwrap();
    assert_eq!(told.get_str("mode").unwrap(), "secondary");
}

#[test]
fn a_connection_idle_for_five_seconds_is_pinged_before_use() {
    let set = FakeSet::start(1);
    set.members[0].always("count", Reaction::Reply(rawdoc! { "ok": 1, "n": 0 }));
    let mut bench = Bench::new(&set.uri(&[0], ""));
    let count = rawdoc! { "count": "c" };
    let names = |bench: &mut Bench| {
        set.journal.take();
        bench.client.run_command("d", &count, None).unwrap();
        set.journal.take().into_iter().map(|received| received.name).collect::<Vec<_>>()
    };
    bench.client.ping(None).unwrap();
    bench.clock.advance(Duration::from_millis(4999));
    assert_eq!(names(&mut bench), ["count"]);
    bench.clock.advance(Duration::from_millis(5000));
    assert_eq!(names(&mut bench), ["ping", "count"]);
}

/// "mark server Unknown …, attempt once more to select": the application notices nothing.
#[test]
fn an_idle_connection_that_died_is_replaced_without_an_error() {
    let set = FakeSet::start(2);
    let mut bench = Bench::new(&set.uri(&[0], ""));
    bench.client.ping(None).unwrap();
    set.members[0].hang_up();
    set.members[0].wait_for_ended_connections(1);

    bench.clock.advance(seconds(5));
    bench.take_events();
    bench.client.ping(None).unwrap();
    assert_eq!(set.members[0].accepted(), 2);
    assert_eq!(set.members[1].accepted(), 1);
    let events = bench.take_events();
    assert!(events.iter().any(|event| event.contains("a ping after")), "{events:?}");
}

/// A ping takes no time: one that is not answered says that the server is gone, where the timeout of
/// an operation would say nothing.
#[test]
fn an_idle_connection_that_went_silent_is_replaced_as_well() {
    let set = FakeSet::start(1);
    let mut bench = Bench::new(&set.uri(&[0], "connectTimeoutMS=50"));
    bench.client.ping(None).unwrap();
    set.members[0].next("ping", Reaction::Stall);
    bench.clock.advance(seconds(5));
    bench.client.ping(None).unwrap();
    assert_eq!(set.members[0].accepted(), 2);
    set.members[0].wait_for_ended_connections(1);
}

/// The ping comes through, and its answer says that the server is about to go.
#[test]
fn a_ping_that_is_answered_with_a_state_change_leads_to_another_server() {
    let set = FakeSet::start(2);
    let mut bench = Bench::new(&set.uri(&[0], ""));
    bench.client.ping(None).unwrap();
    let going = rawdoc! { "ok": 0, "code": 91, "errmsg": "shutting down" };
    set.members[0].next("ping", Reaction::Reply(going));
    set.elect(1, 2);
    bench.clock.advance(seconds(5));
    set.journal.take();
    bench.client.ping(None).unwrap();
    assert_eq!(&set.journal.take().last().unwrap().member, set.members[1].address());
}

/// The ping fails, and the new selection finds that there is no primary any more.
#[test]
fn an_idle_connection_to_a_dead_primary_ends_in_the_cores_words() {
    let mut set = FakeSet::start(2);
    let mut bench = Bench::new(&set.uri(&[0], ""));
    bench.client.ping(None).unwrap();
    set.members[0].stop();

    bench.clock.advance(seconds(5));
    let error = bench.client.ping(None).unwrap_err();
    let OperationError::NoServer(failure) = error else { panic!("{error}") };
    let dead = failure.topology().server(set.members[0].address()).unwrap();
    assert_eq!(dead.server_type(), ServerType::Unknown);
    assert!(failure.to_string().contains("refused"), "{failure}");
}
