//! `quorate prove`: against a set of our own under faults, and on histories that were kept.

#![allow(clippy::unwrap_used, reason = "a panic is the report")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use quorate_testing::ReplicaSet;
use serde_json::Value;

/// What is run under faults.
const WORKLOADS: [&str; 6] = ["registers", "set", "counter", "sessions", "append", "bank"];

fn quorate(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_quorate")).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn prove(uri: &str, histories: &Path, more: &[&str]) -> Output {
    let directory = histories.to_str().unwrap();
    let mut arguments = vec!["prove", "--history", directory, "--json"];
    arguments.extend(more);
    arguments.push(uri);
    quorate(&arguments)
}

fn events(output: &Output) -> Vec<Value> {
    text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_set_keeps_its_promises_while_members_are_broken() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("set");
    let set =
        ReplicaSet::builder().program(env!("CARGO_BIN_EXE_quorate")).data(&data).start().unwrap();
    let histories = directory.path().join("histories");
    let mut arguments = vec!["--minutes", "0.25", "--seed", "7"];
    arguments.extend(WORKLOADS.iter().flat_map(|name| ["--workload", name]));
    let output = prove(set.uri(), &histories, &arguments);
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    let events = events(&output);
    let verdict = events.iter().find(|event| event["event"] == "verdict").unwrap();
    assert_eq!(verdict["valid"], true);
    assert_ne!(verdict["faults"], 0, "something was broken: {verdict}");
    let workloads: Vec<&Value> =
        events.iter().filter(|event| event["event"] == "workload").collect();
    assert_eq!(workloads.len(), WORKLOADS.len());
    for workload in workloads {
        assert_ne!(workload["ok"], 0, "clients were at work: {workload}");
        let file = histories.join(format!("{}.jsonl", workload["workload"].as_str().unwrap()));
        let judged = quorate(&[
            "prove",
            "--check",
            file.to_str().unwrap(),
            "--workload",
            workload["workload"].as_str().unwrap(),
        ]);
        assert!(judged.status.success(), "{}", text(&judged.stdout));
    }
}

/// What members of a set are, by host: priority and votes.
fn parts(set: &ReplicaSet) -> Vec<(String, f64, i64)> {
    let told = quorate(&["run", "--json", set.uri(), "{replSetGetConfig: 1}"]);
    assert!(told.status.success(), "{}", text(&told.stderr));
    let told = &events(&told)[0]["reply"];
    let members = told["config"]["members"].as_array().unwrap().iter();
    let part = |member: &Value| {
        let host = member["host"].as_str().unwrap().to_owned();
        (host, member["priority"].as_f64().unwrap(), member["votes"].as_i64().unwrap())
    };
    let mut parts: Vec<_> = members.map(part).collect();
    parts.sort_by(|left, right| left.0.cmp(&right.0));
    parts
}

#[test]
fn disks_clocks_and_configurations_are_broken_and_mended() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("set");
    let set =
        ReplicaSet::builder().program(env!("CARGO_BIN_EXE_quorate")).data(&data).start().unwrap();
    let before = parts(&set);
    for (fault, name) in
        [("disk", "full disk"), ("clock", "moved clock"), ("reconfigure", "reconfiguration")]
    {
        let histories = directory.path().join(fault);
        let arguments = ["--minutes", "0.1", "--seed", "3", "--fault", fault];
        let workloads = ["--workload", "set", "--workload", "registers", "--workload", "bank"];
        let output = prove(set.uri(), &histories, &[&arguments[..], &workloads[..]].concat());
        assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
        let events = events(&output);
        let verdict = events.iter().find(|event| event["event"] == "verdict").unwrap();
        assert_eq!(verdict["valid"], true, "{verdict}");
        assert_ne!(verdict["kinds"][name], 0, "{fault}: {verdict}");
        assert_eq!(verdict["kinds"][name], verdict["faults"], "{fault} alone: {verdict}");
    }
    assert_eq!(parts(&set), before, "the configuration is as it was");
}

#[test]
fn a_set_in_memory_has_no_disk_to_fill() {
    let directory = tempfile::tempdir().unwrap();
    let set =
        ReplicaSet::builder().members(1).program(env!("CARGO_BIN_EXE_quorate")).start().unwrap();
    let refused = prove(set.uri(), directory.path(), &["--fault", "disk"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("quorate up --data"), "{}", text(&refused.stderr));
    let foreign = Command::new(env!("CARGO_BIN_EXE_quorate"))
        .args(["prove", "--fault", "kill", "--yes", set.uri()])
        .env("XDG_RUNTIME_DIR", directory.path())
        .output()
        .unwrap();
    assert_eq!(foreign.status.code(), Some(2));
    assert!(text(&foreign.stderr).contains("only steps down"), "{}", text(&foreign.stderr));
}

#[test]
fn a_set_that_is_not_ours_is_not_broken_without_a_yes() {
    let directory = tempfile::tempdir().unwrap();
    let set =
        ReplicaSet::builder().members(1).program(env!("CARGO_BIN_EXE_quorate")).start().unwrap();
    // Another directory for the files of running sets: this user runs none.
    let output = Command::new(env!("CARGO_BIN_EXE_quorate"))
        .args(["prove", "--minutes", "0.02", "--workload", "set", "--history"])
        .arg(directory.path().join("histories"))
        .arg(set.uri())
        .env("XDG_RUNTIME_DIR", directory.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("add --yes"), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("under 0 faults"), "{}", text(&output.stdout));
}

#[test]
fn an_anomaly_ends_in_code_1_and_is_told_in_sentences() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("lost.jsonl");
    let history = r#"{"type":"invoke","process":0,"time":1,"f":"add","value":1}
{"type":"ok","process":0,"time":2,"f":"add","value":1}
{"type":"invoke","process":0,"time":3,"f":"read-all","value":null}
{"type":"ok","process":0,"time":4,"f":"read-all","value":[]}
"#;
    fs::write(&file, history).unwrap();
    let file = file.to_str().unwrap();
    let judged = quorate(&["prove", "--check", file, "--workload", "set"]);
    assert_eq!(judged.status.code(), Some(1));
    assert!(text(&judged.stdout).contains("lost-write"), "{}", text(&judged.stdout));
    // A history without a single operation of the workload proves nothing.
    let other = quorate(&["prove", "--check", file, "--workload", "registers", "--json"]);
    assert_eq!(other.status.code(), Some(1), "{}", text(&other.stdout));
    let told = &events(&other)[0];
    assert_eq!(told["valid"], false, "{told}");
    assert!(told["undecided"].as_str().unwrap().contains("no operation of registers"), "{told}");
    let unnamed = quorate(&["prove", "--check", file]);
    assert_eq!(unnamed.status.code(), Some(2));
    assert!(text(&unnamed.stderr).contains("--workload"), "{}", text(&unnamed.stderr));
    fs::write(directory.path().join("half.jsonl"), "{\"type\":\"inv").unwrap();
    let half = directory.path().join("half.jsonl");
    let half = quorate(&["prove", "--check", half.to_str().unwrap(), "--workload", "set"]);
    assert_eq!(half.status.code(), Some(2));
    assert!(text(&half.stderr).contains("line 1"), "{}", text(&half.stderr));
}

/// The time that is over is not the cause; what each server did is.
#[test]
fn a_proof_on_nothing_says_so() {
    let uri = "mongodb://127.0.0.1:1/?replicaSet=rs0";
    let output = quorate(&["prove", uri]);
    assert_eq!(output.status.code(), Some(1));
    let told = text(&output.stderr);
    assert!(told.contains("127.0.0.1:1 Unknown") && told.contains("refused"), "{told}");
    assert!(told.contains("quorate doctor"), "{told}");
}
