//! Forecasts for real sets, and drills that are compared with them.

use serde_json::Value;

use crate::live::Living;
use crate::real_faults::Set;
use crate::support::{Run, quorate};

fn event(run: &Run, name: &str) -> Value {
    let events = run.events();
    let found = events.into_iter().find(|event| event["event"] == name);
    found.unwrap_or_else(|| panic!("no {name} in {}{}", run.stdout(), run.stderr()))
}

fn what_if(uri: &str, more: &[&str]) -> Run {
    quorate(&[&["what-if", uri, "--futures", "20", "--json"], more].concat())
}

#[test]
fn a_forecast_names_leaders_gaps_and_write_concerns() {
    let set = Set::start(&[], 3);
    let one = what_if(&set.uri, &["--down", &set.primary]);
    assert_eq!(one.code(), 0, "{}{}", one.stdout(), one.stderr());
    let forecast = event(&one, "forecast");
    let leaders = forecast["leaders"].as_array().unwrap();
    let hosts: Vec<&str> = leaders.iter().map(|leader| leader["host"].as_str().unwrap()).collect();
    assert!(!hosts.is_empty() && !hosts.contains(&set.primary.as_str()), "{forecast}");
    let shares: f64 = leaders.iter().map(|leader| leader["share"].as_f64().unwrap()).sum();
    assert!((shares - 1.0).abs() < 1e-9, "{forecast}");
    assert!(forecast["gap_ms"]["p50"].as_f64().unwrap() > 0.0, "{forecast}");
    let concerns = event(&one, "write_concerns");
    assert_eq!((&concerns["w"], &concerns["majority"]), (&2.into(), &true.into()), "{concerns}");

    let other = set.others().next().unwrap().0.clone();
    let both = what_if(&set.uri, &["--down", &format!("{},{other}", set.primary)]);
    assert_eq!(both.code(), 1, "{}", both.stdout());
    assert_eq!(event(&both, "forecast")["stuck_share"], 1.0);
    assert_eq!(event(&both, "write_concerns")["majority"], false);

    let stranger = what_if(&set.uri, &["--down", "127.0.0.1:1"]);
    assert_eq!(stranger.code(), 2);
    assert!(stranger.stderr().contains("is no member of this set"), "{}", stranger.stderr());
    set.end();
}

/// What needs a set says so of a server that belongs to none.
#[test]
fn a_server_without_a_set_has_no_forecast_no_successor_and_no_feed() {
    let mut served = Living::start(&["serve", "--memory", "--port", "0", "--json"]);
    let uri = served.event()["uri"].as_str().unwrap().to_owned();
    let told = |arguments: &[&str]| {
        let run = quorate(arguments);
        (run.code(), run.stderr())
    };
    let (code, text) = told(&["what-if", &uri]);
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("a forecast needs a replica set, and this is Standalone"), "{text}");
    let (code, text) = told(&["switchover", &uri, "--to", "a:1"]);
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("a switchover needs a replica set"), "{text}");
    let (code, text) = told(&["tail", &uri]);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("quorate up starts one"), "{text}");
    assert_eq!(served.terminate(), Some(0));
}

#[test]
fn a_reconfiguration_is_judged_before_it_is_made() {
    let set = Set::start(&[], 3);
    let read = quorate(&["run", &set.uri, "{replSetGetConfig: 1}"]).stdout();
    let mut config: Value = serde_json::from_str::<Value>(&read).unwrap()["config"].take();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("new.json");
    let path = file.to_str().unwrap();
    config["version"] = (config["version"].as_i64().unwrap() + 1).into();
    std::fs::write(&file, config.to_string()).unwrap();
    let same = what_if(&set.uri, &["--reconfig", path]);
    assert_eq!(same.code(), 0, "{}{}", same.stdout(), same.stderr());
    assert_eq!(event(&same, "reconfig")["safe"], true);
    // Two voters less at once is one too many.
    config["members"].as_array_mut().unwrap().truncate(1);
    std::fs::write(&file, config.to_string()).unwrap();
    let two = what_if(&set.uri, &["--reconfig", path]);
    assert_eq!(two.code(), 1, "{}", two.stdout());
    assert_eq!(event(&two, "reconfig")["safe"], false);
    let added = what_if(&set.uri, &["--add", "127.0.0.1:1"]);
    assert_eq!(event(&added, "reconfig")["safe"], true, "{}", added.stdout());
    // Members at loopback and elsewhere: no member loads it, and no future is played.
    let mixed = what_if(&set.uri, &["--add", "elsewhere.example:1"]);
    assert_eq!(mixed.code(), 1, "{}", mixed.stdout());
    let events = mixed.events();
    assert!(matches!(&events[..], [told] if told["event"] == "reconfig" && told["safe"] == false));
    std::fs::write(&file, "{members: 3}").unwrap();
    assert_eq!(what_if(&set.uri, &["--reconfig", path]).code(), 2);
    set.end();
}

/// What `quorate run` prints is a file for --reconfig.
#[test]
fn the_reply_of_replsetgetconfig_is_a_configuration() {
    let set = Set::start(&[], 3);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("conf.json");
    let asked = quorate(&["run", &set.uri, "{replSetGetConfig: 1}"]);
    std::fs::write(&file, asked.stdout()).unwrap();
    let run = what_if(&set.uri, &["--reconfig", file.to_str().unwrap()]);
    assert!(event(&run, "reconfig")["safe"].is_boolean(), "{}{}", run.stdout(), run.stderr());
    set.end();
}

#[test]
fn a_drill_is_compared_with_the_forecast_made_before_it() {
    let set = Set::start(&["--election-timeout", "2s"], 3);
    let drill = quorate(&["drill", "--step-down", "--yes", "--json", &set.uri]);
    assert_eq!(drill.code(), 0, "{}{}", drill.stdout(), drill.stderr());
    let verdict = event(&drill, "drill");
    assert!(verdict["forecast"]["gap_ms"]["p95"].is_number(), "{verdict}");
    set.end();
}
