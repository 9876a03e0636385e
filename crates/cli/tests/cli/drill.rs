//! Measured failovers: on sets of our own, on foreign ones, and on a scripted server for what a real
//! one does not show.

use std::process::Command;

use bson::rawdoc;
use quorate_protocol::ServerAddress;
use quorate_test_support::{FakeServer, primary_hello};
use serde_json::Value;

use crate::down::RunDirectory;
use crate::live::{Living, ready_set};
use crate::support::{Run, quorate};

/// A set of three of our own, and its connection string.
fn own_set(run: &RunDirectory) -> (Living, String) {
    let mut set = run.start(&["up", "--port", "0", "--json"]);
    let (_, uri) = ready_set(&mut set, 3);
    (set, uri)
}

/// The last event, which is the verdict.
fn verdict(drill: &Run) -> Value {
    let verdict = drill.events().pop().expect("a verdict");
    assert_eq!(verdict["event"], "drill", "{} {}", drill.stdout(), drill.stderr());
    verdict
}

fn moments(verdict: &Value) -> Vec<&str> {
    let moments = verdict["timeline"].as_array().unwrap().iter();
    moments.map(|moment| moment["event"].as_str().unwrap()).collect()
}

#[test]
fn a_killed_primary_is_replaced_nothing_is_lost_and_the_set_is_whole_again() {
    let run = RunDirectory::new();
    let (mut set, uri) = own_set(&run);
    let drill = run.quorate(&["drill", "--kill", "--max-gap", "2m", "--json", &uri]);
    assert_eq!(drill.code(), 0, "{} {}", drill.stdout(), drill.stderr());
    let verdict = verdict(&drill);
    assert_eq!(verdict["passed"], true, "{verdict}");
    assert_eq!((&verdict["lost"], &verdict["mended"]), (&0.into(), &true.into()), "{verdict}");
    assert!(verdict["gap_ms"].as_f64().unwrap() > 0.0, "{verdict}");
    assert!(verdict["acknowledged"].as_u64().unwrap() >= 40, "{verdict}");
    assert_ne!(verdict["target"], verdict["new_primary"], "{verdict}");
    let moments = moments(&verdict);
    assert_eq!((moments[0], moments[moments.len() - 1]), ("fault", "first_write"), "{verdict}");
    // Each moment was told when it came, too.
    let told: Vec<_> = drill.events().iter().map(|event| event["event"].clone()).collect();
    assert_eq!(told[..told.len() - 1], moments[..]);
    // The keeper saw it die, and started it again.
    let gone = set.wait_for("member_exited", |_| true);
    assert_eq!(gone["host"], verdict["target"]);
    let back = set.wait_for("member_mended", |_| true);
    assert_eq!(back["host"], verdict["target"]);
    assert_eq!(set.terminate(), Some(0));
}

/// A keeper that had no time to look finds the death of a member and the order to mend it at once, in either order. A
/// member that was not mended then would stay away, and a drill would wait a minute for it.
#[test]
fn a_keeper_that_was_held_up_mends_what_was_killed_meanwhile() {
    let run = RunDirectory::new();
    let mut set = run.start(&["up", "--members", "1", "--memory", "--port", "0", "--json"]);
    let (mut members, _) = ready_set(&mut set, 1);
    let keeper = set.pid().to_string();
    let signal = |name: &str, pid: &str| {
        assert!(Command::new("kill").args([name, pid]).status().unwrap().success());
    };
    let mut member = members.remove(0).1.to_string();
    for _ in 0..8 {
        signal("-STOP", &keeper);
        signal("-KILL", &member);
        // It is over when its parent could know of it.
        let is_over = || {
            let stat = std::fs::read_to_string(format!("/proc/{member}/stat")).unwrap();
            stat.contains(") Z ")
        };
        while !is_over() {
            std::thread::yield_now();
        }
        signal("-USR2", &keeper);
        signal("-CONT", &keeper);
        let exited = set.wait_for("member_exited", |_| true);
        let back = set.wait_for("member_mended", |_| true);
        assert_eq!(exited["id"], back["id"]);
        member = back["pid"].to_string();
    }
    assert_eq!(set.terminate(), Some(0));
}

#[test]
fn a_step_down_is_measured_and_a_gap_past_the_limit_fails() {
    let run = RunDirectory::new();
    let (set, uri) = own_set(&run);
    let drill = run.quorate(&["drill", "--step-down", "--max-gap", "0ms", "--json", &uri]);
    assert_eq!(drill.code(), 1, "{} {}", drill.stdout(), drill.stderr());
    let verdict = verdict(&drill);
    assert_eq!((&verdict["passed"], &verdict["within_limit"]), (&false.into(), &false.into()));
    assert_eq!((&verdict["lost"], &verdict["mended"]), (&0.into(), &Value::Null), "{verdict}");
    // What people read.
    let drill = run.quorate(&["drill", "--step-down", &uri]);
    assert_eq!(drill.code(), 0, "{}", drill.stderr());
    for sentence in ["is told to step down", "is primary in term 3", "was read back"] {
        assert!(drill.stdout().contains(sentence), "{sentence}: {}", drill.stdout());
    }
    assert_eq!(set.terminate(), Some(0));
}

/// The member that was cut off last is the one that the next majority needs. It follows the new primary as soon
/// as that calls on it, not when the heartbeats that the cut swallowed time out, which takes half a minute
/// here.
#[test]
fn the_first_majority_write_after_a_second_cut_does_not_wait_for_lost_heartbeats() {
    let run = RunDirectory::new();
    let mut set = run.start(&["up", "--port", "0", "--election-timeout", "2s", "--json"]);
    let (_, uri) = ready_set(&mut set, 3);
    let asked = run.quorate(&["run", "--json", &uri, "{replSetGetConfig: 1}"]).events();
    let mut config = asked[0]["reply"]["config"].clone();
    config["version"] = (config["version"].as_i64().unwrap() + 1).into();
    config["settings"]["heartbeatTimeoutSecs"] = 90.into();
    let command = format!("{{replSetReconfig: {config}}}");
    let taken = run.quorate(&["run", "--json", &uri, &command]);
    assert_eq!(taken.code(), 0, "{} {}", taken.stdout(), taken.stderr());
    for round in 0..2 {
        let drill = run.quorate(&["drill", "--partition", "--json", &uri]);
        assert_eq!(drill.code(), 0, "{} {}", drill.stdout(), drill.stderr());
        let verdict = verdict(&drill);
        let moment = |name: &str| {
            let moments = verdict["timeline"].as_array().unwrap();
            let moment = moments.iter().rfind(|moment| moment["event"] == name);
            moment.and_then(|moment| moment["after_fault_ms"].as_f64()).unwrap()
        };
        let waited = moment("first_write") - moment("elected");
        assert!(waited < 15_000.0, "round {round}: {waited} ms: {verdict}");
    }
    assert_eq!(set.terminate(), Some(0));
}

#[test]
fn a_primary_that_is_cut_off_is_replaced_and_joins_again() {
    let run = RunDirectory::new();
    let (set, uri) = own_set(&run);
    let drill = run.quorate(&["drill", "--partition", "--json", &uri]);
    assert_eq!(drill.code(), 0, "{} {}", drill.stdout(), drill.stderr());
    let verdict = verdict(&drill);
    assert_eq!((&verdict["lost"], &verdict["mended"]), (&0.into(), &true.into()), "{verdict}");
    assert_ne!(verdict["target"], verdict["new_primary"], "{verdict}");
    assert_eq!(set.terminate(), Some(0));
}

/// A set of one has no other member to elect, so the drill waits until it is stopped.
#[test]
fn a_drill_that_is_stopped_mends_what_it_broke() {
    let run = RunDirectory::new();
    let data = tempfile::tempdir().unwrap();
    let data = data.path().to_str().unwrap();
    let mut set = run.start(&["up", "--members", "1", "--port", "0", "--data", data, "--json"]);
    let (_, uri) = ready_set(&mut set, 1);
    let mut drill = run.start(&["drill", "--kill", "--json", &uri]);
    drill.wait_for("fault", |_| true);
    set.wait_for("member_exited", |_| true);
    assert_eq!(drill.terminate(), Some(1));
    set.wait_for("member_mended", |_| true);
    assert_eq!(run.quorate(&["run", &uri, "{ping: 1}"]).code(), 0);
    assert_eq!(set.terminate(), Some(0));
}

/// A set is ours if our files say so, not because it runs on this machine.
#[test]
fn a_foreign_set_is_never_killed_and_steps_down_only_after_a_yes() {
    let theirs = RunDirectory::new();
    let ours = RunDirectory::new();
    let (set, uri) = own_set(&theirs);
    let hello = quorate(&["run", "--json", &uri, "{hello: 1}"]).events().remove(0);
    let primary = hello["reply"]["me"].as_str().unwrap();
    let replace = [(uri.as_str(), "URI"), (primary, "PRIMARY")];
    let kill = ours.quorate(&["drill", "--kill", "--yes", &uri]);
    assert_eq!(kill.code(), 2);
    kill.snapshot_with("drill-foreign-kill", &replace);
    let cut = ours.quorate(&["drill", "--partition", "--yes", &uri]);
    assert_eq!(cut.code(), 2);
    assert!(cut.stderr().contains("not ours to partition"), "{}", cut.stderr());
    let unasked = ours.quorate(&["drill", "--step-down", &uri]);
    assert_eq!(unasked.code(), 2);
    unasked.snapshot_with("drill-foreign-step-down", &replace);
    let again = quorate(&["run", "--json", &uri, "{hello: 1}"]).events().remove(0);
    assert_eq!(again["reply"]["electionId"], hello["reply"]["electionId"], "nothing was done");

    let drill = ours.quorate(&["drill", "--step-down", "--yes", "--json", &uri]);
    assert_eq!(drill.code(), 0, "{} {}", drill.stdout(), drill.stderr());
    assert_ne!(verdict(&drill)["new_primary"], primary);
    assert_eq!(set.terminate(), Some(0));
}

#[test]
fn a_drill_needs_one_fault_a_limit_it_can_read_and_a_set() {
    quorate(&["drill", "mongodb://a/?replicaSet=rs0"]).snapshot("drill-no-fault");
    quorate(&["drill", "--kill", "--max-gap", "soon", "mongodb://a"]).snapshot("drill-no-time");
}

/// A primary that says yes to everything.
async fn scripted_primary() -> (FakeServer, ServerAddress, String) {
    let server = FakeServer::start().await.unwrap();
    let address = server.address().clone();
    server.set_hello(primary_hello("rs0", &address, std::slice::from_ref(&address), 1));
    server.set_reply("insert", rawdoc! { "n": 1 });
    server.set_reply("drop", rawdoc! {});
    let uri = format!("mongodb://{address}/?replicaSet=rs0&heartbeatFrequencyMS=500");
    (server, address, uri)
}

/// Nothing is waited for where the client may not write, and what is missing is named.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_drill_that_may_not_write_says_so() {
    let (server, address, uri) = scripted_primary().await;
    let refusal = "Command insert requires authentication";
    server.set_reply("insert", rawdoc! { "ok": 0, "code": 13, "errmsg": refusal });
    let drill = drill_beside(RunDirectory::new(), step_down(&uri)).await;
    assert_eq!(drill.code(), 1);
    assert!(drill.stderr().contains(refusal), "{}", drill.stderr());
    assert!(drill.stderr().contains("log in with mongodb://USER"), "{}", drill.stderr());
    let told =
        |command: &str| server.commands().iter().any(|sent| sent.get(command).unwrap().is_some());
    assert!(told("insert") && !told("replSetStepDown"), "{address} was left alone");
}

/// Without a secondary there is no other choice to offer.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_switchover_without_a_secondary_says_so() {
    let (_server, _, uri) = scripted_primary().await;
    let arguments = ["switchover", "--to", "127.0.0.1:1", "--yes", &uri].map(str::to_owned);
    let switchover = drill_beside(RunDirectory::new(), arguments.to_vec()).await;
    assert_eq!(switchover.code(), 1, "{}", switchover.stderr());
    assert!(switchover.stderr().contains("no member is a secondary"), "{}", switchover.stderr());
    assert!(switchover.stderr().contains("quorate doctor"), "{}", switchover.stderr());
}

/// Runs the drill beside the scripted server, which needs this thread's runtime.
async fn drill_beside(run: RunDirectory, arguments: Vec<String>) -> Run {
    tokio::task::spawn_blocking(move || {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        run.quorate(&arguments)
    })
    .await
    .unwrap()
}

fn step_down(uri: &str) -> Vec<String> {
    ["drill", "--step-down", "--yes", "--json", uri].map(str::to_owned).to_vec()
}

/// No set of ours loses an acknowledged write, so a server that only pretends to store them does.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_lost_write_is_found_whatever_the_gap() {
    let (server, address, uri) = scripted_primary().await;
    server.set_reply("replSetStepDown", rawdoc! {});
    let cursor = rawdoc! { "id": 0_i64, "ns": "quorate.x", "firstBatch": [{ "_id": 0_i64 }] };
    server.set_reply("find", rawdoc! { "cursor": cursor });
    let drill = tokio::spawn(drill_beside(RunDirectory::new(), step_down(&uri)));
    while !server.command_names().iter().any(|name| name == "replSetStepDown") {
        assert!(!drill.is_finished(), "the drill ended without a fault");
        tokio::task::yield_now().await;
    }
    server.set_hello(primary_hello("rs0", &address, std::slice::from_ref(&address), 2));
    let drill = drill.await.unwrap();
    assert_eq!(drill.code(), 1, "{} {}", drill.stdout(), drill.stderr());
    let verdict = verdict(&drill);
    assert_eq!((&verdict["passed"], &verdict["within_limit"]), (&false.into(), &true.into()));
    let acknowledged = verdict["acknowledged"].as_u64().unwrap();
    assert_eq!(verdict["lost"], acknowledged - 1, "only _id 0 is there: {verdict}");
    assert_eq!(verdict["lost_ids"][0], 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_primary_that_will_not_step_down_is_reported() {
    let (server, _, uri) = scripted_primary().await;
    let refusal =
        rawdoc! { "ok": 0.0, "code": 262, "errmsg": "no electable secondaries caught up" };
    server.set_reply("replSetStepDown", refusal);
    let drill = drill_beside(RunDirectory::new(), step_down(&uri)).await;
    assert_eq!(drill.code(), 1);
    assert!(drill.stderr().contains("did not step down"), "{}", drill.stderr());
    assert!(drill.stderr().contains("no electable secondaries"), "{}", drill.stderr());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn what_is_no_set_is_not_broken() {
    let server = FakeServer::start().await.unwrap();
    let drill = drill_beside(RunDirectory::new(), step_down(&server.uri())).await;
    assert_eq!(drill.code(), 2);
    assert!(drill.stderr().contains("a drill needs a replica set"), "{}", drill.stderr());
    assert!(!server.command_names().iter().any(|name| name == "insert"), "nothing was written");
}
