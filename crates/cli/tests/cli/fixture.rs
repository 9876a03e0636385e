//! `quorate up` as a fixture: a command that has the set, logins, certificates, timing, and what is
//! told at once instead of after a timeout.

use std::process::{Command, Stdio};

use serde_json::Value;

use crate::down::RunDirectory;

const ONE: [&str; 5] = ["up", "--members", "1", "--port", "0"];

fn with<'a>(more: &[&'a str]) -> Vec<&'a str> {
    ONE.iter().copied().chain(more.iter().copied()).collect()
}

fn ready_uri(events: &[Value]) -> String {
    let ready = events.iter().find(|event| event["event"] == "ready").expect("ready");
    ready["uri"].as_str().unwrap().to_owned()
}

/// The set lives as long as the command, which finds it in its environment.
#[test]
fn a_command_has_the_set_and_its_exit_code_is_ours() {
    let run = RunDirectory::new();
    let program = env!("CARGO_BIN_EXE_quorate");
    let script = format!(
        "test \"$QUORATE_URI\" = \"$MONGODB_URI\" && {program} run \"$QUORATE_URI\" \
         '{{insert: \"c\", documents: [{{_id: 1}}], writeConcern: {{w: \"majority\"}}}}' \
         --database test && exit 7"
    );
    let ended = run.quorate(&with(&["--", "sh", "-c", &script]));
    assert_eq!(ended.code(), 7, "{}{}", ended.stdout(), ended.stderr());
    // Stdout is the command's alone.
    let reply: Value = serde_json::from_str(&ended.stdout()).expect("only the reply");
    assert_eq!(reply["ok"], 1.0);
    assert!(ended.stderr().contains("ready"), "{}", ended.stderr());
    assert!(run.files().is_empty(), "nothing is left behind: {:?}", run.files());
    assert_eq!(run.quorate(&with(&["--", "true"])).code(), 0);
    let killed = run.quorate(&with(&["--", "sh", "-c", "kill -9 $$"]));
    assert_eq!(killed.code(), 137);
    let missing = run.quorate(&with(&["--", "no-such-program-anywhere"]));
    assert_eq!(missing.code(), 127);
    assert!(missing.stderr().contains("no-such-program-anywhere cannot be run"));
    let directory = run.quorate(&with(&["--", "/"]));
    assert_eq!(directory.code(), 126);
}

/// Tests compare the databases that they find with those that they made.
#[test]
fn a_fresh_set_has_no_databases_but_its_own() {
    let run = RunDirectory::new();
    let program = env!("CARGO_BIN_EXE_quorate");
    let script = format!("{program} run \"$QUORATE_URI\" '{{listDatabases: 1, nameOnly: true}}'");
    let ended = run.quorate(&with(&["--", "sh", "-c", &script]));
    assert_eq!(ended.code(), 0, "{}", ended.stderr());
    let reply: Value = serde_json::from_str(&ended.stdout()).expect("only the reply");
    let names: Vec<&str> = reply["databases"]
        .as_array()
        .unwrap()
        .iter()
        .map(|database| database["name"].as_str().unwrap())
        .collect();
    assert!(names.iter().all(|name| ["admin", "config", "local"].contains(name)), "{names:?}");
}

/// The name of a set is any text; that of its files is not.
#[test]
fn a_set_may_have_a_long_name() {
    let run = RunDirectory::new();
    let name = "x".repeat(300);
    let ended = run.quorate(&with(&["--name", &name, "--", "true"]));
    assert_eq!(ended.code(), 0, "{}", ended.stderr());
    assert!(run.files().is_empty(), "{:?}", run.files());
}

/// A signal goes to the command first, which may end as it likes.
#[test]
fn a_signal_reaches_the_command_before_the_set_ends() {
    let run = RunDirectory::new();
    let script = "trap 'echo told; exit 5' TERM; echo begun; while :; do sleep 0.05; done";
    let mut up = Command::new(env!("CARGO_BIN_EXE_quorate"))
        .args(with(&["--", "sh", "-c", script]))
        .envs(run.variables())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(up.stdout.take().unwrap()));
    assert_eq!(lines.next().unwrap().unwrap(), "begun");
    let pid = up.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    assert_eq!(lines.next().unwrap().unwrap(), "told");
    assert_eq!(up.wait().unwrap().code(), Some(5));
    assert!(run.files().is_empty(), "{:?}", run.files());
}

/// `--auth`: no login, nothing; with the printed connection string, everything.
#[test]
fn a_set_with_logins_is_opened_by_its_connection_string_only() {
    let run = RunDirectory::new();
    let data = tempfile::tempdir().unwrap();
    let data = data.path().join("set");
    let data = data.to_str().unwrap();
    let up = ["up", "--detach", "--members", "2", "--port", "0", "--auth", "--json"];
    let begun = run.quorate(&[&up[..], &["--data", data]].concat());
    assert_eq!(begun.code(), 0, "{}{}", begun.stdout(), begun.stderr());
    let uri = ready_uri(&begun.events());
    let opened = run.quorate(&["run", &uri, "{listDatabases: 1}"]);
    assert_eq!(opened.code(), 0, "{}", opened.stderr());
    let (_, rest) = uri.split_once('@').expect("a login");
    let stranger = format!("mongodb://{}", rest.replace("&authSource=admin", ""));
    let refused = run.quorate(&["run", &stranger, "{listDatabases: 1}"]);
    assert_eq!(refused.code(), 1, "{}", refused.stdout());
    assert_eq!(run.quorate(&["down"]).code(), 0);
    // The set remembers that it asks, and whom it knows.
    let again = run.quorate(&["up", "--detach", "--members", "2", "--json", "--data", data]);
    assert_eq!(again.code(), 0, "{}{}", again.stdout(), again.stderr());
    assert_eq!(ready_uri(&again.events()), uri);
    assert_eq!(run.quorate(&["run", &stranger, "{listDatabases: 1}"]).code(), 1);
    assert_eq!(run.quorate(&["run", &uri, "{listDatabases: 1}"]).code(), 0);
}

/// `--tls`: every member speaks TLS and nothing else, under a certificate of this set's own.
#[test]
fn a_set_with_certificates_is_encrypted() {
    let run = RunDirectory::new();
    let up = ["up", "--detach", "--members", "2", "--port", "0", "--tls", "--json"];
    let begun = run.quorate(&up);
    assert_eq!(begun.code(), 0, "{}{}", begun.stdout(), begun.stderr());
    let uri = ready_uri(&begun.events());
    assert!(uri.contains("tls=true&tlsCAFile="), "{uri}");
    let opened = run.quorate(&["run", &uri, "{ping: 1}"]);
    assert_eq!(opened.code(), 0, "{}", opened.stderr());
    let (plain, _) = uri.split_once("&tls=true").unwrap();
    let plain = format!("{plain}&serverSelectionTimeoutMS=1000");
    assert_eq!(run.quorate(&["run", &plain, "{ping: 1}"]).code(), 1);
    assert_eq!(run.quorate(&["down"]).code(), 0);
    assert!(run.files().is_empty(), "the certificates are gone as well: {:?}", run.files());
}

#[test]
fn the_election_timeout_is_that_of_the_configuration() {
    let run = RunDirectory::new();
    let up = run.quorate(&with(&["--detach", "--election-timeout", "1500ms", "--json"]));
    assert_eq!(up.code(), 0, "{}", up.stderr());
    let uri = ready_uri(&up.events());
    let config = run.quorate(&["run", &uri, "{replSetGetConfig: 1}"]).stdout();
    let config: Value = serde_json::from_str(&config).unwrap();
    assert_eq!(config["config"]["settings"]["electionTimeoutMillis"], 1500);
    assert_eq!(config["config"]["settings"]["heartbeatIntervalMillis"], 750);
    let wrong = run.quorate(&["up", "--election-timeout", "10ms"]);
    assert_eq!(wrong.code(), 2);
    assert!(wrong.stderr().contains("100ms"), "{}", wrong.stderr());
}

/// Told at once and rightly: the directory is in use, or holds a set with another name, on other
/// ports, or of another size.
#[test]
fn data_of_another_set_is_told_at_once() {
    let run = RunDirectory::new();
    let data = tempfile::tempdir().unwrap();
    let data = data.path().to_str().unwrap();
    let up = with(&["--detach", "--name", "mine", "--data", data, "--json"]);
    assert_eq!(run.quorate(&up).code(), 0);
    let told = |more: &[&str]| {
        let refused = run.quorate(&[&["up", "--members", "1", "--data", data][..], more].concat());
        (refused.code(), refused.stderr())
    };
    let (code, text) = told(&[]);
    assert_eq!(code, 1);
    assert!(text.contains("is in use: its set mine runs already"), "{text}");
    assert!(text.contains(&format!("quorate down --data {data}")), "{text}");
    assert_eq!(run.quorate(&["down", "--data", data]).code(), 0);
    let (code, text) = told(&["--name", "other"]);
    assert_eq!(code, 2);
    assert!(text.contains("holds the set mine, not other"), "{text}");
    let (code, text) = told(&["--port", "1"]);
    assert_eq!(code, 2);
    assert!(text.contains("leave out --port"), "{text}");
    let (code, text) = told(&["--arbiters", "1"]);
    assert_eq!(code, 2);
    assert!(text.contains("holds a set of 1 members, not of 2"), "{text}");
    let crowded = run.quorate(&["up", "--members", "7", "--arbiters", "1"]);
    assert_eq!(crowded.code(), 2);
    assert!(crowded.stderr().contains("at most 7 votes"), "{}", crowded.stderr());
}

/// Another process has the port that the set needs.
#[test]
fn a_taken_port_of_existing_data_is_told_at_once() {
    let run = RunDirectory::new();
    let data = tempfile::tempdir().unwrap();
    let data = data.path().to_str().unwrap();
    let up = with(&["--detach", "--data", data, "--json"]);
    let begun = run.quorate(&up);
    let uri = ready_uri(&begun.events());
    assert_eq!(run.quorate(&["down"]).code(), 0);
    let port = uri.split(':').nth(2).unwrap().split('/').next().unwrap();
    let _taken = std::net::TcpListener::bind(("127.0.0.1", port.parse().unwrap())).unwrap();
    let refused = run.quorate(&["up", "--members", "1", "--data", data]);
    assert_eq!(refused.code(), 1);
    let text = refused.stderr();
    assert!(text.contains(&format!("port {port} is taken")) && text.contains("ss -ltnp"), "{text}");
}

#[test]
fn two_sets_of_one_name_are_told_apart_and_stopped() {
    let run = RunDirectory::new();
    let ports: Vec<String> = (0..2)
        .map(|_| {
            let up = run.quorate(&with(&["--detach", "--json"]));
            assert_eq!(up.code(), 0, "{}", up.stderr());
            let events = up.events();
            let stop = events.iter().find(|event| event["event"] == "detached").unwrap();
            stop["stop"].as_str().unwrap().strip_prefix("quorate down --port ").unwrap().to_owned()
        })
        .collect();
    let unclear = run.quorate(&["down", "--name", "rs0"]);
    assert_eq!(unclear.code(), 2);
    for port in &ports {
        let command = format!("quorate down --port {port}");
        assert!(unclear.stderr().contains(&command), "{}", unclear.stderr());
    }
    let down = run.quorate(&["down", "--port", &ports[0]]);
    assert_eq!(down.code(), 0, "{}", down.stderr());
    let other = run.quorate(&["down", "--port", &ports[0]]);
    assert_eq!(other.code(), 1);
    assert!(other.stderr().contains(&format!("quorate down --port {}", ports[1])));
    assert_eq!(run.quorate(&["down"]).code(), 0);
}
