//! `quorate doctor --error`.

use crate::support::{quorate, quorate_with_input};

const MIXED: &str = "\
pymongo.errors.ServerSelectionTimeoutError: No primary available for writes, Timeout: 30s, \
Topology Description: <TopologyDescription id: 65a0c1, topology_type: ReplicaSetNoPrimary, servers: \
[<ServerDescription ('mongo1', 27017) server_type: Unknown, rtt: None, \
error=AutoReconnect('mongo1:27017: [Errno -2] Name or service not known')>, \
<ServerDescription ('mongo2', 27017) server_type: Unknown, rtt: None, \
error=NetworkTimeout('mongo2:27017: timed out')>, \
<ServerDescription ('mongo3', 27017) server_type: RSSecondary, rtt: 0.0012>]>";

#[test]
fn a_message_is_explained() {
    let run = quorate(&["doctor", "--error", "getaddrinfo ENOTFOUND 508be0425c52"]);
    assert_eq!(run.code(), 0);
    run.snapshot("doctor-error-name");
    quorate(&["doctor", "--error", "connect ECONNREFUSED ::1:27017"]).snapshot("doctor-error-ipv6");
}

#[test]
fn several_servers_are_told_apart() {
    quorate_with_input(&["doctor", "--error", "-"], MIXED).snapshot("doctor-error-mixed");
}

#[test]
fn programs_get_one_object_for_each_finding() {
    let run = quorate_with_input(&["doctor", "--json", "--error", "-"], MIXED);
    assert_eq!((run.code(), run.stderr().as_str()), (0, ""));
    let events = run.events();
    assert!(events.iter().all(|event| event["t_ns"].is_u64()), "{events:?}");
    let named = |name: &str| events.iter().filter(|event| event["event"] == name).count();
    assert_eq!((named("server"), named("finding"), named("verdict")), (3, 3, 1));
    let finding = events.iter().find(|event| event["event"] == "finding").unwrap();
    assert_eq!(finding["code"], "name_not_found");
    assert!(!finding["fixes"].as_array().unwrap().is_empty());
    let verdict = events.first().unwrap();
    assert_eq!((&verdict["result"], &verdict["problems"]), (&"recognised".into(), &3.into()));
}

#[test]
fn what_is_not_recognised_is_said_so() {
    let run = quorate(&["doctor", "--error", "Segmentation fault"]);
    assert_eq!(run.code(), 1);
    run.snapshot("doctor-error-unknown");
}

#[test]
fn nothing_pasted_is_misuse() {
    let run = quorate_with_input(&["doctor", "--error", "-"], "  \n");
    assert_eq!(run.code(), 2);
    run.snapshot("doctor-error-empty");
}

#[test]
fn an_endless_log_is_read_and_its_end_counts() {
    let log = format!("{}connect ECONNREFUSED 10.0.0.1:27017\n", "noise ".repeat(100_000));
    let run = quorate_with_input(&["doctor", "--error", "-"], &log);
    assert_eq!(run.code(), 0);
    assert!(run.stdout().contains("10.0.0.1:27017 refuses"), "{}", run.stdout());
}

#[test]
fn text_from_outside_cannot_steer_the_terminal() {
    let run = quorate(&[
        "doctor",
        "--error",
        "replica set named '\u{1b}[2J' but this node belongs to a set named 'x'",
    ]);
    assert!(run.stdout().contains(r"replicaSet=\u{1b}[2J,"), "{:?}", run.stdout());
}
