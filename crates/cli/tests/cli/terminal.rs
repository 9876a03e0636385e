//! The screen on a real terminal: tmux runs the program, types, and tells what is shown.

use std::process::Command;

use quorate_protocol::ServerAddress;
use quorate_test_support::{FakeServer, Tmux, primary_hello};

use crate::down::RunDirectory;

/// The primary on the second line of the screen.
fn primary(shown: &str) -> Option<String> {
    let line = shown.lines().find(|line| line.starts_with("primary "))?;
    line.split_whitespace().nth(1).map(str::to_owned)
}

fn program(arguments: &str) -> String {
    format!("{} {arguments}", env!("CARGO_BIN_EXE_quorate"))
}

#[test]
fn a_set_is_shown_steps_down_on_a_key_and_gives_the_terminal_back() {
    let run = tempfile::tempdir().unwrap();
    let tmux = Tmux::start(100, 30);
    // Other sets may have the usual ports; this one moves past them.
    let environment = format!("XDG_RUNTIME_DIR={}", run.path().display());
    tmux.enter(&format!("{environment} {}; echo code $?", program("")));
    let shown = tmux.wait_for("primary", |shown| primary(shown).is_some());
    let first = primary(&shown).unwrap();
    tmux.wait_for("three members", |shown| shown.contains("3 of 3 up"));
    tmux.wait_for("page", |shown| shown.contains("see this on a page: http://127.0.0.1:"));
    tmux.press("c");
    tmux.wait_for("copy", |shown| shown.contains("sent to the clipboard"));
    let uri = tmux.clipboard();
    assert!(uri.starts_with("mongodb://") && uri.contains(&first), "{uri}");
    tmux.press("D");
    let another = |shown: &str| primary(shown).is_some_and(|second| second != first);
    tmux.wait_for("other primary", another);
    tmux.wait_for("measured gap", |shown| shown.contains("write gap"));
    // A broken member is seen, and mended.
    tmux.press("K");
    tmux.wait_for("question", |shown| shown.contains("Sure?"));
    tmux.press("y");
    tmux.wait_for("member that is gone", |shown| shown.contains("GONE"));
    tmux.press("R");
    tmux.wait_for("member that is back", |shown| !shown.contains("GONE"));
    tmux.press("q");
    tmux.wait_for("end", |shown| shown.contains("code 0"));
    assert!(tmux.is_restored());
    assert!(tmux.shown().contains("every member has stopped"), "{}", tmux.shown());
}

/// What `up` leaves in its directory is enough to know the set as ours.
#[test]
fn watch_breaks_and_mends_a_set_that_runs_in_the_background() {
    let run = RunDirectory::new();
    let up = run.quorate(&["up", "--detach", "--port", "0", "--json"]);
    assert_eq!(up.code(), 0, "{}", up.stderr());
    let events = up.events();
    let uri = events.iter().find_map(|event| event["uri"].as_str()).unwrap();
    let [(name, directory)] = run.variables();
    let tmux = Tmux::start(80, 24);
    let line = program(&format!("watch '{uri}'"));
    tmux.enter(&format!("{name}={directory} {line}; echo code $?"));
    tmux.wait_for("three members", |shown| shown.contains("3 of 3 up"));
    for (key, word) in [("Z", "PAUSED"), ("X", "CUT OFF"), ("K", "GONE")] {
        tmux.press(key);
        tmux.wait_for("question", |shown| shown.contains("Sure?"));
        tmux.press("y");
        tmux.wait_for(word, |shown| shown.contains(word));
        tmux.press("R");
        tmux.wait_for("mended member", |shown| {
            !shown.contains(word) && shown.contains("3 of 3 up")
        });
    }
    tmux.press("q");
    tmux.wait_for("end", |shown| shown.contains("code 0"));
    assert!(tmux.is_restored());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_shows_what_our_own_set_never_would() {
    let (a, b) = (FakeServer::start().await.unwrap(), FakeServer::start().await.unwrap());
    let (first, second) = (a.address().clone(), b.address().clone());
    let members = [first.clone(), second.clone()];
    a.set_hello(primary_hello("rs0", &first, &members, 1));
    b.set_hello(crate::doctor_uri::secondary_hello("rs0", &second, &members, Some(&first)));
    let uri = format!("mongodb://{first}/?replicaSet=rs0&heartbeatFrequencyMS=500");
    tokio::task::spawn_blocking(move || {
        let tmux = Tmux::start(80, 24);
        tmux.enter(&format!("{}; echo code $?", program(&format!("watch '{uri}'"))));
        let expected = format!("primary {first}");
        tmux.wait_for("primary", |shown| shown.contains(&expected));
        tmux.wait_for("both members", |shown| shown.contains("2 of 2 up"));
        // Two members call themselves primary: the client believes the newer one.
        b.set_hello(primary_hello("rs0", &second, &members, 2));
        let expected = format!("primary {second}");
        tmux.wait_for("newer primary", |shown| shown.contains(&expected));
        let stale = |shown: &str| shown.lines().any(|line| line.starts_with("≠ ? "));
        tmux.wait_for("stale primary", stale);
        // No member answers any more.
        a.stop();
        b.stop();
        tmux.wait_for("silence", |shown| shown.contains("no member answers"));
        tmux.press("?");
        tmux.wait_for("help", |shown| shown.contains("Help"));
        tmux.press("q");
        tmux.press("q");
        tmux.wait_for("end", |shown| shown.contains("code 0"));
        assert!(tmux.is_restored());
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signal_gives_the_terminal_back_as_well() {
    let server = FakeServer::start().await.unwrap();
    let me: ServerAddress = server.address().clone();
    server.set_hello(primary_hello("rs0", &me, std::slice::from_ref(&me), 1));
    let uri = format!("mongodb://{me}/?replicaSet=rs0");
    tokio::task::spawn_blocking(move || {
        let tmux = Tmux::start(80, 24);
        let pid = tmux.directory().join("pid");
        let line = program(&format!("watch {uri:?}"));
        tmux.enter(&format!("sh -c 'echo $$ > {}; exec {line}'; echo code $?", pid.display()));
        tmux.wait_for("primary", |shown| shown.contains("primary "));
        let pid = std::fs::read_to_string(pid).unwrap();
        assert!(Command::new("kill").args(["-TERM", pid.trim()]).status().unwrap().success());
        tmux.wait_for("end", |shown| shown.contains("code 0"));
        assert!(tmux.is_restored());
    })
    .await
    .unwrap();
}

/// Typed, completed, repeated and left: the terminal is as it was.
#[test]
fn a_shell_completes_remembers_and_gives_the_terminal_back() {
    let run = RunDirectory::new();
    let up = run.quorate(&["up", "--detach", "--members", "1", "--port", "0", "--json"]);
    assert_eq!(up.code(), 0, "{}", up.stderr());
    let events = up.events();
    let uri = events.iter().find_map(|event| event["uri"].as_str()).unwrap();
    let state = tempfile::tempdir().unwrap();
    let tmux = Tmux::start(100, 30);
    let line = program(&format!("shell --database shop '{uri}'"));
    let begin = format!("XDG_STATE_HOME={} {line}; echo code $?", state.path().display());
    tmux.enter(&begin);
    let has_prompt = |shown: &str| shown.lines().any(|line| line.trim_end() == "shop>");
    tmux.wait_for("prompt", has_prompt);
    tmux.press("{dbSt");
    tmux.press("Tab");
    tmux.wait_for("completion", |shown| shown.contains("shop> {dbStats"));
    tmux.enter(": 1}");
    tmux.wait_for("reply", |shown| shown.contains("\"db\": \"shop\""));
    tmux.press("C-c");
    tmux.enter("exit");
    tmux.wait_for("end", |shown| shown.contains("code 0"));
    // The prompts and commands of the first shell must not pass for those of the second.
    tmux.enter("clear");
    tmux.wait_for("an empty screen", |shown| !shown.contains("shop>"));
    tmux.enter(&begin);
    tmux.wait_for("prompt", has_prompt);
    tmux.press("Up");
    tmux.press("Up");
    tmux.wait_for("history", |shown| shown.contains("shop> {dbStats: 1}"));
    tmux.press("C-u");
    tmux.press("C-d");
    tmux.wait_for("end", |shown| shown.contains("code 0"));
}
