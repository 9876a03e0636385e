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

/// One file that holds everything: nothing is fetched, and nothing in the data can end its script.
#[test]
fn a_recording_is_one_page_of_html() {
    let run = quorate(&["replay", "--html", "recordings/failover.jsonl"]);
    assert_eq!(run.code(), 0, "{}", run.stderr());
    let page = run.stdout();
    assert!(page.starts_with("<!doctype html>"), "{page}");
    assert!(page.contains("db1.example:27017"), "the data is in it");
    assert!(!page.contains("http://") && !page.contains("https://") && !page.contains("src="));
    let data = page.split("const data = ").nth(1).unwrap().split(";\n").next().unwrap();
    let data: serde_json::Value = serde_json::from_str(data).expect("JSON");
    let steps = data["steps"].as_array().unwrap();
    assert!(steps.len() > 5 && steps.iter().any(|step| step["c"] == true), "{data}");
    assert!(steps.iter().any(|step| step["b"]["p"] == "db1.example:27017"), "{data}");
}

/// What `watch --record` writes has the calendar's time, and a replay tells it.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_recording_has_the_time_of_the_calendar() {
    let server = quorate_test_support::FakeServer::start().await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("recording.jsonl");
    let path = file.to_str().unwrap().to_owned();
    let uri = server.uri();
    let mut watch = crate::live::Living::start(&["watch", "--json", "--record", &path, &uri]);
    let topology = watch.wait_for("topology", |event| event["type"] == "Single");
    let told = topology["time"].as_str().expect("a time of the calendar").to_owned();
    assert!(told.ends_with('Z') && told.starts_with("20"), "{told}");
    assert_eq!(watch.terminate(), Some(0));
    let events = quorate(&["replay", "--json", &path]).events();
    let input = events.iter().find(|event| event["event"] == "input" && event["step"] == 1);
    let replayed = input.unwrap()["time"].as_str().expect("a time").to_owned();
    assert_eq!(replayed[..13], told[..13], "the same hour: {replayed} {told}");
}
