//! Events, and the view that follows from them.

use super::difference::Aspect;
use super::member::{PoolPhase, Process};
use super::reply::{Explanation, InitialSync};
use super::summary::{Health, MemberSummary};
use super::test_view::{Stage, address, hello, primary_hello, status};
use super::*;
use quorate_protocol::{MemberState, WallTime};

const MEMBERS: [&str; 3] = ["a:27017", "b:27017", "c:27017"];

fn member<'a>(view: &'a View, name: &str) -> MemberSummary<'a> {
    let members = view.members();
    members.into_iter().find(|member| *member.address == address(name)).unwrap()
}

fn texts(view: &View, kind: Kind) -> Vec<String> {
    let entries = view.log().entries().filter(|entry| entry.kind == kind);
    entries.map(|entry| entry.text.clone()).collect()
}

#[test]
fn a_healthy_set_is_shown_whole() {
    let stage = Stage::healthy();
    let facts = stage.view.facts(stage.now);
    assert_eq!(facts.topology_type, TopologyType::ReplicaSetWithPrimary);
    assert_eq!(facts.primary, Some(&address("a:27017")));
    assert_eq!((facts.up, facts.members, facts.term), (3, 3, Some(1)));
    assert_eq!((facts.votes, facts.votes_up, facts.votes_needed), (Some(3), Some(3), Some(2)));
    assert_eq!(facts.has_majority(), Some(true));
    let b = member(&stage.view, "b:27017");
    assert_eq!(b.client_type, Some(ServerType::RsSecondary));
    assert_eq!((b.state, b.health), (Some(MemberState::Secondary), Health::Up));
    assert_eq!(b.round_trip, Some(Duration::from_millis(2)));
    assert_eq!(b.lag, Some(Duration::ZERO));
    assert_eq!((b.votes, b.priority), (Some(1), Some(1.0)));
    assert_eq!(b.sync_source, Some(address("a:27017")));
    assert_eq!(b.pool.phase, PoolPhase::Ready);
    assert_eq!(b.peers.map(|peers| (peers.up, peers.asked)), Some((2, 2)));
    assert!(b.differences.is_empty() && b.trouble.is_none() && b.recovered);
}

#[test]
fn an_unknown_has_a_reason_and_an_age() {
    let mut stage = Stage::healthy();
    stage.lose("b:27017", "connection reset; check the host");
    stage.after(200);
    assert_eq!(texts(&stage.view, Kind::Lost), ["marked Unknown: connection reset"]);
    let entry = stage.view.log().entries().find(|entry| entry.kind == Kind::Lost).unwrap();
    assert_eq!(entry.age(stage.now), Duration::from_millis(200));
    let b = member(&stage.view, "b:27017");
    assert_eq!((b.health, b.client_type), (Health::Down, Some(ServerType::Unknown)));
    let trouble = b.trouble.unwrap();
    assert_eq!(trouble.reason, "connection reset; check the host");
    assert_eq!(stage.now.since(trouble.at), Duration::from_millis(200));
    assert!(!b.recovered);
    assert_eq!(b.pool.phase, PoolPhase::Paused);
    assert_eq!(stage.view.facts(stage.now).votes_up, Some(2));
}

#[test]
fn a_reason_does_not_repeat_the_address() {
    let mut stage = Stage::healthy();
    stage.lose("b:27017", "cannot connect to b:27017: Connection refused");
    assert_eq!(texts(&stage.view, Kind::Lost), ["marked Unknown: Connection refused"]);
    let lines = stage.view.comparison(&address("b:27017"));
    assert_eq!(lines[0].client.as_deref(), Some("Connection refused"));
    assert_eq!(lines[0].member.as_deref(), Some("Connection refused"));
    assert!(!lines[0].differs);
}

#[test]
fn a_pool_that_is_older_than_the_view_is_counted() {
    let mut stage = Stage::healthy();
    let counts = PoolCounts { total: 3, available: 2, pending: 0, waiting: 0 };
    let before = member(&stage.view, "a:27017").pool.phase;
    stage.view.handle(stage.now, Input::Pools(vec![(address("a:27017"), counts)]));
    let pool = member(&stage.view, "a:27017").pool;
    assert_eq!((before, pool.phase, pool.in_use()), (PoolPhase::Ready, PoolPhase::Ready, 1));
    // One whose making the view did not see.
    let mut late = View::new(stage.now, String::new());
    let topology = stage.view.topology.clone().unwrap();
    let changed = DiscoveryEvent::TopologyDescriptionChanged {
        previous: Arc::clone(&topology),
        new: topology,
    };
    late.handle(stage.now, Input::Client(Box::new(ClientEvent::Discovery(changed))));
    late.handle(stage.now, Input::Pools(vec![(address("a:27017"), counts)]));
    assert_eq!(member(&late, "a:27017").pool.phase, PoolPhase::Ready);
}

#[test]
fn a_failover_is_measured() {
    let mut stage = Stage::healthy();
    stage.wrote("a:27017");
    stage.after(10).lose("a:27017", "connection reset");
    assert_eq!(stage.view.facts(stage.now).primary, None);
    stage.after(100).write_fails("a:27017");
    let facts = stage.view.facts(stage.now);
    assert_eq!(facts.without_primary, Some(Duration::from_millis(100)));
    assert_eq!(facts.open_gap, Some(Duration::from_millis(110)));
    stage.after(100);
    let reply = primary_hello("b:27017", &MEMBERS, 2);
    stage.client_hears("b:27017", reply);
    stage.after(40).wrote("b:27017");
    let election = stage.view.elections().next().unwrap();
    assert_eq!(
        (&election.primary, election.previous.as_ref(), election.term),
        (&address("b:27017"), Some(&address("a:27017")), Some(2))
    );
    assert_eq!(election.without_primary, Some(Duration::from_millis(200)));
    assert_eq!(election.write_gap, Some(Duration::from_millis(250)));
    assert_eq!(
        texts(&stage.view, Kind::Elected),
        ["is the primary in term 1", "elected primary in term 2, 200 ms without a primary"]
    );
    assert_eq!(texts(&stage.view, Kind::WriteGap), ["writes go on after a gap of 250 ms"]);
    stage.own_hello("b:27017", primary_hello("b:27017", &MEMBERS, 2), 1);
    let mut told = status("b:27017", &MEMBERS, "b:27017", 2);
    told.election_reason = Some("electionTimeout".to_owned());
    stage.tell("b:27017", Told::Status(told));
    assert_eq!(stage.view.facts(stage.now).election_reason, Some("electionTimeout"));
}

#[test]
fn the_client_and_the_member_may_differ() {
    let mut stage = Stage::healthy();
    // The old primary still believes in itself after b won; the client no longer does.
    stage.client_hears("b:27017", primary_hello("b:27017", &MEMBERS, 2));
    stage.own_hello("a:27017", primary_hello("a:27017", &MEMBERS, 1), 1);
    stage.after(3000);
    stage.own_hello("a:27017", primary_hello("a:27017", &MEMBERS, 1), 1);
    let a = member(&stage.view, "a:27017");
    let aspects: Vec<_> = a.differences.iter().map(|difference| difference.aspect).collect();
    assert_eq!(aspects, [Aspect::Type, Aspect::Primary]);
    assert_eq!(
        (a.differences[0].client.as_str(), a.differences[0].member.as_str()),
        ("Unknown", "RSPrimary")
    );
    assert_eq!(stage.now.since(a.differences[0].since), Duration::from_secs(3));
    // What lasts is put into the log, once.
    stage.own_hello("a:27017", primary_hello("a:27017", &MEMBERS, 1), 1);
    assert_eq!(
        texts(&stage.view, Kind::Differs),
        [
            "type: the client says Unknown, it says RSPrimary",
            "primary: the client says b:27017, it says a:27017",
        ]
    );
}

#[test]
fn a_member_that_the_client_reaches_and_we_do_not_differs() {
    let mut stage = Stage::healthy();
    stage.own_silence("c:27017", "no answer to hello within 2 s");
    let c = member(&stage.view, "c:27017");
    assert_eq!(c.differences.len(), 1);
    assert_eq!(c.differences[0].aspect, Aspect::Answers);
}

#[test]
fn a_dropped_server_stays_with_its_reason() {
    let mut stage = Stage::new(&["a:27017", "x:27017"]);
    stage.client_hears("a:27017", primary_hello("a:27017", &MEMBERS, 1));
    let x = member(&stage.view, "x:27017");
    assert_eq!(x.client_type, None);
    assert!(x.dropped.unwrap().reason.contains("does not list it"), "{:?}", x.dropped);
    assert_eq!(texts(&stage.view, Kind::Dropped).len(), 1);
}

#[test]
fn lag_is_taken_from_one_observer() {
    let mut stage = Stage::healthy();
    let mut told = status("a:27017", &MEMBERS, "a:27017", 1);
    told.members[0].op_time_date = Some(WallTime(1_700_000_005_000));
    stage.tell("a:27017", Told::Status(told));
    assert_eq!(member(&stage.view, "a:27017").lag, Some(Duration::ZERO));
    assert_eq!(member(&stage.view, "c:27017").lag, Some(Duration::from_secs(5)));
}

#[test]
fn others_tell_the_state_of_a_member_that_is_silent() {
    let mut stage = Stage::healthy();
    stage.lose("c:27017", "refused");
    let mut told = status("a:27017", &MEMBERS, "a:27017", 1);
    told.members[2].state = Some(MemberState::Down);
    told.members[2].is_up = false;
    stage.tell("a:27017", Told::Status(told));
    let c = member(&stage.view, "c:27017");
    assert_eq!(c.state, Some(MemberState::Down));
    assert_eq!(c.peers.map(|peers| (peers.up, peers.asked)), Some((1, 2)));
}

#[test]
fn an_arbiter_has_no_data_to_lag_with() {
    let mut stage = Stage::healthy();
    let mut reply = hello("c:27017", &MEMBERS, Some("a:27017"));
    (reply.secondary, reply.arbiter_only) = (false, true);
    stage.client_hears("c:27017", reply.clone());
    stage.own_hello("c:27017", reply, 1);
    let c = member(&stage.view, "c:27017");
    assert_eq!(c.client_type, Some(ServerType::RsArbiter));
    assert_eq!((c.lag, c.op_time), (None, None));
}

#[test]
fn without_a_primary_the_best_explanation_is_told() {
    let mut stage = Stage::healthy();
    let explain = |text: &str, votes| {
        let text = text.to_owned();
        Told::Explanation(Explanation {
            text,
            votes_visible: Some(votes),
            votes_needed: Some(2),
            ..Explanation::default()
        })
    };
    stage.tell("b:27017", explain("no member is in sight", 1));
    stage.tell("c:27017", explain("b is not fresh", 2));
    assert_eq!(stage.view.facts(stage.now).explanation, None, "there is a primary");
    stage.lose("a:27017", "refused");
    let told = stage.view.facts(stage.now).explanation;
    assert_eq!(told.as_deref(), Some("b is not fresh"));
}

/// Servers of others explain nothing: it follows from what they say of each other.
#[test]
fn without_a_primary_any_deployment_is_explained() {
    let mut stage = Stage::healthy();
    assert_eq!(stage.view.facts(stage.now).explanation, None, "there is a primary");
    stage.lose("a:27017", "refused");
    stage.lose("b:27017", "refused");
    let mut told = status("c:27017", &MEMBERS, "c:27017", 1);
    for member in &mut told.members {
        member.is_up = member.address.as_str() == "c:27017";
        member.state = Some(if member.is_up { MemberState::Secondary } else { MemberState::Down });
    }
    stage.tell("c:27017", Told::Status(told));
    let told = stage.view.facts(stage.now).explanation.expect("an explanation");
    assert!(told.contains("votes visible 1 of 3, need 2"), "{told}");
    assert!(told.contains("a:27017 and b:27017 are not up"), "{told}");
}

#[test]
fn an_initial_sync_is_told_and_shown() {
    let mut stage = Stage::healthy();
    let mut told = status("b:27017", &MEMBERS, "a:27017", 1);
    let sync =
        InitialSync { copied_bytes: Some(1), total_bytes: Some(4), ..InitialSync::default() };
    told.initial_sync = Some(sync);
    stage.tell("b:27017", Told::Status(told));
    assert_eq!(member(&stage.view, "b:27017").initial_sync.unwrap().fraction(), Some(0.25));
    stage.tell("b:27017", Told::Status(status("b:27017", &MEMBERS, "a:27017", 1)));
    assert_eq!(texts(&stage.view, Kind::Syncing), ["initial sync begins", "initial sync is done"]);
}

#[test]
fn nothing_reachable_is_a_view_too() {
    let mut stage = Stage::new(&MEMBERS);
    for member in MEMBERS {
        stage.lose(member, "connection refused");
    }
    let facts = stage.view.facts(stage.now);
    assert_eq!((facts.up, facts.members, facts.has_majority()), (0, 3, None));
    assert_eq!(facts.topology_type, TopologyType::ReplicaSetNoPrimary);
    assert!(stage.view.members().iter().all(|member| member.health == Health::Down));
}

#[test]
fn hidden_members_are_found_in_the_configuration() {
    let mut stage = Stage::healthy();
    stage.settings(&[("a:27017", 1, 1.0), ("h:27017", 1, 0.0)]);
    assert!(stage.view.addresses_to_ask().contains(&address("h:27017")));
    let mut reply = hello("h:27017", &MEMBERS, Some("a:27017"));
    reply.hidden = true;
    stage.own_hello("h:27017", reply, 1);
    let h = member(&stage.view, "h:27017");
    assert!(h.differences.is_empty(), "{:?}", h.differences);
}

#[test]
fn members_are_bounded() {
    let mut stage = Stage::healthy();
    for number in 0..2 * MAX_MEMBERS {
        stage.own_silence(&format!("m{number}:1"), "refused");
    }
    assert_eq!(stage.view.members().len(), MAX_MEMBERS);
    assert_eq!(stage.view.addresses_to_ask().len(), MAX_MEMBERS);
}

#[test]
fn the_json_form_has_what_a_page_draws() {
    let mut stage = Stage::healthy();
    let process = Input::Process {
        member: address("b:27017"),
        pid: 42,
        process: Process::Gone("it was killed by signal 9".to_owned()),
    };
    stage.view.handle(stage.now, process);
    stage.lose("b:27017", "connection reset");
    stage.after(500);
    let json = stage.view.to_json(stage.now);
    assert_eq!(json["set"]["primary"], "a:27017");
    assert_eq!(json["set"]["has_majority"], true);
    let b = &json["members"][1];
    assert_eq!((&b["address"], &b["role"]), (&"b:27017".into(), &"unknown".into()));
    assert_eq!(b["process"]["state"], "gone");
    assert_eq!(b["error"]["age_ms"], 500.0);
    assert_eq!(b["rtt_history_ms"], serde_json::json!([2.0, null]));
    assert!(json["log"].as_array().unwrap().iter().any(|entry| entry["kind"] == "lost"));
    assert_eq!(json["uri"], stage.view.uri());
}
