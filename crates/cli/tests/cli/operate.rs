//! What an operator does on a set: look once, list, stop and start members, let another one lead.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::doctor_uri::closed_port;
use crate::down::RunDirectory;
use crate::live::{Living, ready_set};
use crate::support::Run;

const PATIENCE: Duration = Duration::from_secs(90);

fn own_set(run: &RunDirectory, more: &[&str]) -> (Living, Vec<(String, u64)>, String) {
    let mut set = run.start(&[&["up", "--port", "0", "--json"], more].concat());
    let (members, uri) = ready_set(&mut set, 3);
    (set, members, uri)
}

fn status(run: &RunDirectory, uri: &str) -> (Value, i32) {
    let status = run.quorate(&["status", "--json", uri]);
    (status.events().remove(0), status.code())
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "never saw that {what}");
    }
}

fn verdict(drill: &Run) -> Value {
    let verdict = drill.events().pop().expect("a verdict");
    assert_eq!(verdict["event"], "drill", "{} {}", drill.stdout(), drill.stderr());
    verdict
}

#[test]
fn a_status_is_one_table_and_an_exit_code() {
    let run = RunDirectory::new();
    let (set, members, uri) = own_set(&run, &[]);
    // The set is ready with a majority: the third member may still be starting.
    until("all members are up", || status(&run, &uri).1 == 0);
    let (told, code) = status(&run, &uri);
    assert_eq!(code, 0, "{told}");
    assert_eq!((&told["healthy"], &told["writes"]), (&true.into(), &true.into()), "{told}");
    assert_eq!(told["votes"], serde_json::json!({"visible": 3, "all": 3, "needed": 2}));
    assert_eq!(told["members"].as_array().unwrap().len(), 3, "{told}");
    let primary = told["primary"].as_str().unwrap().to_owned();
    let people = run.quorate(&["status", &uri]);
    assert_eq!(people.code(), 0);
    assert!(people.stdout().contains(&format!("{primary} leads in term")), "{}", people.stdout());
    for word in ["MEMBER", "PRIORITY", "PRIMARY", "SECONDARY"] {
        assert!(people.stdout().contains(word), "{}", people.stdout());
    }
    // One member less: writes go on, and the monitor hears of it.
    let (gone, _) = members.iter().find(|(host, _)| *host != primary).unwrap();
    assert_eq!(run.quorate(&["stop", gone]).code(), 0);
    until("the member is missed", || status(&run, &uri).1 == 1);
    let (told, _) = status(&run, &uri);
    assert_eq!((&told["healthy"], &told["writes"]), (&false.into(), &true.into()), "{told}");
    let row = told["members"].as_array().unwrap().iter().find(|m| m["host"] == gone.as_str());
    assert_eq!(row.unwrap()["answers"], false, "{told}");
    assert_eq!(set.terminate(), Some(0));
}

#[test]
fn a_deployment_that_does_not_answer_has_a_status_too() {
    let run = RunDirectory::new();
    let uri = format!("mongodb://{}/?replicaSet=rs0", closed_port());
    let (told, code) = status(&run, &uri);
    assert_eq!((code, &told["healthy"], &told["primary"]), (1, &false.into(), &Value::Null));
    assert_eq!(told["members"][0]["state"], "UNREACHABLE", "{told}");
}

#[test]
fn sets_are_listed_and_single_members_stopped_and_started() {
    let run = RunDirectory::new();
    assert!(run.quorate(&["list"]).stderr().contains("no set of yours is running"));
    let (mut set, members, uri) = own_set(&run, &["--name", "mine"]);
    let listed = run.quorate(&["list", "--json"]).events().remove(0);
    assert_eq!((&listed["name"], &listed["uri"]), (&"mine".into(), &uri.as_str().into()));
    let (host, pid) = &members[2];
    let port = host.rsplit(':').next().unwrap();
    let stopped = run.quorate(&["stop", port, "--json"]);
    assert_eq!(stopped.code(), 0, "{}", stopped.stderr());
    set.wait_for("member_exited", |event| event["host"] == host.as_str());
    let listed = run.quorate(&["list", "--json"]).events().remove(0);
    assert_eq!(listed["members"][2]["runs"], false, "{listed}");
    let started = run.quorate(&["start", host, "--json"]);
    assert_eq!(started.code(), 0, "{}", started.stderr());
    let event = started.events().remove(0);
    assert_eq!(event["event"], "member_started", "{event}");
    assert_ne!(event["pid"], *pid, "{event}");
    assert!(run.quorate(&["start", host]).stderr().contains("runs already"));
    let again = run.quorate(&["restart", host, "--json"]);
    assert_eq!(again.code(), 0, "{}", again.stderr());
    until("every member serves", || status(&run, &uri).1 == 0);
    let wrong = run.quorate(&["stop", "1"]);
    assert_eq!(wrong.code(), 2);
    assert!(wrong.stderr().contains(host), "{}", wrong.stderr());
    assert_eq!(set.terminate(), Some(0));
    assert!(run.files().is_empty(), "{:?}", run.files());
}

#[test]
fn the_member_leads_that_was_named() {
    let run = RunDirectory::new();
    let (set, members, uri) = own_set(&run, &["--election-timeout", "2s"]);
    let primary = status(&run, &uri).0["primary"].as_str().unwrap().to_owned();
    for (to, _) in members.iter().rev().filter(|(host, _)| *host != primary) {
        // A set is ready with a majority; the last member may still copy.
        until("every member serves", || status(&run, &uri).1 == 0);
        let switched = run.quorate(&["switchover", &uri, "--to", to, "--json"]);
        assert_eq!(switched.code(), 0, "{} {}", switched.stdout(), switched.stderr());
        let verdict = verdict(&switched);
        assert_eq!(verdict["new_primary"], to.as_str(), "{verdict}");
        assert_eq!(verdict["lost"], 0, "{verdict}");
    }
    let leader = status(&run, &uri).0["primary"].as_str().unwrap().to_owned();
    let already = run.quorate(&["switchover", &uri, "--to", &leader]);
    assert_eq!(already.code(), 0);
    assert!(already.stderr().contains("leads already"), "{}", already.stderr());
    let unknown = run.quorate(&["switchover", &uri, "--to", "127.0.0.1:1"]);
    assert_eq!(unknown.code(), 2);
    assert!(unknown.stderr().contains("is no secondary of this set"), "{}", unknown.stderr());
    assert_eq!(set.terminate(), Some(0));
}

/// A client finds the primary before it has heard of every member.
#[test]
fn the_member_that_is_to_lead_is_waited_for() {
    let run = RunDirectory::new();
    let (set, members, uri) = own_set(&run, &[]);
    until("every member serves", || status(&run, &uri).1 == 0);
    let primary = status(&run, &uri).0["primary"].as_str().unwrap().to_owned();
    let (to, pid) = members.iter().find(|(host, _)| *host != primary).unwrap();
    let signal = |name: &str| {
        let sent = std::process::Command::new("kill").args([name, &pid.to_string()]).status();
        assert!(sent.unwrap().success());
    };
    signal("-STOP");
    let mut switching = run.start(&["switchover", &uri, "--to", to, "--json"]);
    let waiting = switching.wait_for("waiting", |_| true);
    assert_eq!(waiting["member"], to.as_str());
    signal("-CONT");
    let verdict = switching.wait_for("drill", |_| true);
    assert_eq!(verdict["new_primary"], to.as_str(), "{verdict}");
    assert_eq!(set.terminate(), Some(0));
}

/// Each step-down lets the old primary stand again, so that the third one finds a successor.
#[test]
fn three_step_downs_in_a_row_find_a_successor() {
    let run = RunDirectory::new();
    let (set, _, uri) = own_set(&run, &["--election-timeout", "2s"]);
    for round in 1..=3 {
        let drill = run.quorate(&["drill", "--step-down", "--json", &uri]);
        assert_eq!(drill.code(), 0, "round {round}: {} {}", drill.stdout(), drill.stderr());
        let verdict = verdict(&drill);
        // The gap is what lies between its two ends on the drill's own timeline.
        let field = |name: &str| verdict[name].as_f64().unwrap();
        let length = field("gap_ended_after_fault_ms") - field("gap_began_after_fault_ms");
        assert!((length - field("gap_ms")).abs() < 0.01, "{verdict}");
        let first = verdict["timeline"].as_array().unwrap().last().unwrap();
        assert!(
            first["after_fault_ms"].as_f64().unwrap() <= field("gap_ended_after_fault_ms") + 0.01
        );
    }
    assert_eq!(set.terminate(), Some(0));
}

/// The write in flight on the paused member is given up when another one leads, and repeated there. By its own limits
/// the client would wait for minutes.
#[test]
fn a_paused_primary_is_replaced_and_goes_on() {
    let run = RunDirectory::new();
    let (set, _, uri) = own_set(&run, &["--election-timeout", "1s"]);
    let patient = format!("{uri}&heartbeatFrequencyMS=300000&connectTimeoutMS=300000");
    let drill = run.quorate(&["drill", "--pause", "--json", "--max-gap", "100s", &patient]);
    assert_eq!(drill.code(), 0, "{} {}", drill.stdout(), drill.stderr());
    let verdict = verdict(&drill);
    assert_eq!((&verdict["fault"], &verdict["mended"]), (&"pause".into(), &true.into()));
    assert_ne!(verdict["target"], verdict["new_primary"], "{verdict}");
    assert_eq!(set.terminate(), Some(0));
}

/// Nothing answers: the drill says so, with what each server did, and does not wait half a minute.
#[test]
fn a_drill_on_nothing_says_so() {
    let run = RunDirectory::new();
    let uri = format!("mongodb://{}/?replicaSet=rs0", closed_port());
    let drill = run.quorate(&["drill", "--step-down", "--yes", &uri]);
    assert_eq!(drill.code(), 1);
    assert!(drill.stderr().contains("refused"), "{}", drill.stderr());
    assert!(drill.stderr().contains("quorate doctor"), "{}", drill.stderr());
    // The client tells its own time, not that of the machine.
    assert!(!drill.stderr().contains("min ago"), "{}", drill.stderr());
}
