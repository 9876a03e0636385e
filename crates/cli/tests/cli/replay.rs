//! `quorate replay`.

use crate::support::{folder, quorate, quorate_with_input};

#[test]
fn a_failover_is_told_step_by_step() {
    quorate(&["replay", "recordings/failover.jsonl"]).snapshot("replay-failover");
    quorate(&["replay", "recordings/failover.jsonl", "--json"]).snapshot("replay-failover-json");
}

#[test]
fn json_topology_lines_keep_the_contract() {
    let events = quorate(&["replay", "--json", "recordings/failover.jsonl"]).events();
    for event in &events {
        assert!(event["t_ns"].is_u64() && event["event"].is_string(), "{event}");
    }
    let topologies: Vec<_> = events.iter().filter(|e| e["event"] == "topology").collect();
    assert!(topologies.len() > 3);
    for topology in &topologies {
        assert!(topology["type"].is_string() && topology["servers"].is_u64(), "{topology}");
        assert!(topology["primary"].is_string() || topology["primary"].is_null(), "{topology}");
    }
    let primaries: Vec<_> = topologies.iter().filter_map(|t| t["primary"].as_str()).collect();
    assert_eq!(primaries.first(), Some(&"db0.example:27017"));
    assert_eq!(primaries.last(), Some(&"db1.example:27017"));
}

#[test]
fn stdin_is_a_file_too() {
    let file = std::fs::read_to_string(folder("tests/recordings/failover.jsonl")).unwrap();
    let piped = quorate_with_input(&["replay", "-"], &file);
    assert_eq!(piped.stdout(), quorate(&["replay", "recordings/failover.jsonl"]).stdout());
    assert_eq!(piped.code(), 0);
}

#[test]
fn what_cannot_be_replayed_is_told_with_its_line() {
    for (name, file, code) in [
        ("replay-damaged", "recordings/damaged.jsonl", 1),
        ("replay-out-of-order", "recordings/out-of-order.jsonl", 1),
        ("replay-other-version", "recordings/other-version.jsonl", 1),
        ("replay-empty", "recordings/empty.jsonl", 1),
        ("replay-no-such-file", "recordings/none.jsonl", 2),
        ("replay-directory", "recordings", 2),
    ] {
        let run = quorate(&["replay", file]);
        assert_eq!(run.code(), code, "{file}");
        run.snapshot(name);
    }
    let told = quorate(&["replay", "recordings/damaged.jsonl"]).stderr();
    assert!(told.contains("damaged.jsonl, line 4: "), "{told}");
}

#[test]
fn errors_are_events_too_where_events_are_wanted() {
    let run = quorate(&["replay", "--json", "recordings/damaged.jsonl"]);
    let last = run.events().pop().unwrap();
    assert_eq!(last["event"], "error");
    assert!(last["message"].as_str().unwrap().contains("line 4"), "{last}");
    assert_eq!(run.code(), 1);
}
