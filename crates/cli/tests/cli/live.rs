//! The commands that live for a while: serve, run against it, and watch.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use quorate_protocol::ServerAddress;
use quorate_test_support::{FakeServer, primary_hello};
use serde_json::Value;

use crate::down::RunDirectory;
use crate::support::quorate;

/// A program that prints nothing for so long has failed its test.
const SILENCE: Duration = Duration::from_secs(120);

/// A running `quorate`, stopped when dropped.
pub(crate) struct Living {
    child: Child,
    /// What it prints, by a thread that ends with it.
    lines: Receiver<String>,
}

impl Living {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::start_with(arguments, &[])
    }

    /// The same with these variables in its environment.
    pub(crate) fn start_with(arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_quorate"));
        Self::start_by(command.args(arguments).envs(variables.iter().copied()))
    }

    /// The same by a command of the test's own.
    pub(crate) fn start_by(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            let mut lines = stdout.lines().map_while(Result::ok);
            lines.try_for_each(|line| sender.send(line))
        });
        Self { child, lines }
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next line as JSON.
    pub(crate) fn event(&mut self) -> Value {
        let line = self.line();
        serde_json::from_str(&line).expect(&line)
    }

    /// The next line.
    fn line(&mut self) -> String {
        match self.lines.recv_timeout(SILENCE) {
            Ok(line) => line,
            Err(RecvTimeoutError::Disconnected) => {
                panic!("it has ended; another line was expected")
            }
            Err(RecvTimeoutError::Timeout) => panic!("it prints nothing more; a line was expected"),
        }
    }

    /// The next line that tells this event and satisfies the condition.
    pub(crate) fn wait_for(&mut self, name: &str, accepts: impl Fn(&Value) -> bool) -> Value {
        loop {
            let event = self.event();
            if event["event"] == name && accepts(&event) {
                return event;
            }
        }
    }

    /// Kills it, and returns what it had still printed: whole lines, as JSON.
    pub(crate) fn kill(mut self) -> Vec<Value> {
        self.child.kill().unwrap();
        let lines = self.lines.iter();
        lines.map_while(|line| serde_json::from_str(&line).ok()).collect()
    }

    /// Asks it to end, and returns the code it ends with.
    pub(crate) fn terminate(mut self) -> Option<i32> {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
        self.child.wait().unwrap().code()
    }
}

impl Drop for Living {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_member_is_served_and_commands_run_on_it() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let data = data.to_str().unwrap();
    let mut served = Living::start(&["serve", "--port", "0", "--json", "--data", data]);
    let ready = served.event();
    assert_eq!(ready["event"], "ready");
    assert!(ready["t_ns"].is_u64() && ready["pid"].is_u64(), "{ready}");
    let uri = ready["uri"].as_str().unwrap();

    let ping = quorate(&["run", uri, "{ping: 1}"]);
    assert_eq!(ping.code(), 0, "{}", ping.stderr());
    let reply: Value = serde_json::from_str(&ping.stdout()).unwrap();
    assert_eq!(reply["ok"], 1.0);

    let shop = format!("{uri}shop");
    let insert = "{insert: 'orders', documents: [{_id: 1, paid: false}, {_id: 2, paid: true}]}";
    assert_eq!(quorate(&["run", &shop, insert]).code(), 0);
    let find = ["run", "--json", &shop, "{find: 'orders', filter: {paid: true}}"];
    let found = quorate(&find).events().remove(0);
    assert_eq!(found["event"], "reply");
    assert_eq!(
        found["reply"]["cursor"]["firstBatch"],
        serde_json::json!([{"_id": 2, "paid": true}])
    );

    assert_eq!(quorate(&["doctor", uri]).code(), 0);
    assert_eq!(served.terminate(), Some(0));

    // What was acknowledged is there again.
    let mut served = Living::start(&["serve", "--port", "0", "--json", "--data", data]);
    let uri = format!("{}shop", served.event()["uri"].as_str().unwrap());
    let found = quorate(&["run", "--json", &uri, "{count: 'orders'}"]).events().remove(0);
    assert_eq!(found["reply"]["n"], 2);
}

/// Against our own server: a login that is refused, and one that is not.
#[test]
fn logins_are_told_from_networks() {
    let mut served = Living::start(&["serve", "--memory", "--port", "0", "--auth", "--json"]);
    let uri = served.event()["uri"].as_str().unwrap().to_owned();
    let codes = |uri: &str| -> Vec<String> {
        let events = quorate(&["doctor", "--json", uri]).events();
        let codes = events.iter().filter_map(|event| event["code"].as_str());
        codes.map(str::to_owned).collect()
    };
    assert_eq!(codes(&uri), ["login_needed"]);
    // The connection string that is proposed names each option once.
    let told = quorate(&["doctor", "--json", &format!("{uri}?authSource=admin")]).stdout();
    assert_eq!(told.matches("USER:PASSWORD@").count(), 2, "{told}");
    assert!(!told.contains("authSource=admin&authSource"), "{told}");
    let create = "{createUser: 'ada', pwd: 'right', roles: ['root']}";
    let created = quorate(&["run", &uri, create]);
    assert_eq!(created.code(), 0, "{}", created.stderr());
    let stranger = quorate(&["run", &uri, "{listDatabases: 1}"]);
    assert!(stranger.stderr().contains("log in with mongodb://USER"), "{}", stranger.stderr());
    let host = uri.trim_start_matches("mongodb://");
    let (right, wrong) =
        (format!("mongodb://ada:right@{host}"), format!("mongodb://ada:wrong@{host}"));
    assert_eq!(codes(&wrong), ["authentication_failed"]);
    assert_eq!(codes(&right), Vec::<String>::new());
    assert_eq!(quorate(&["run", &right, "{listDatabases: 1}"]).code(), 0);
    let refused = quorate(&["run", &wrong, "{listDatabases: 1}"]);
    assert_eq!(refused.code(), 1);
    assert!(
        refused.stderr().contains("authentication failed for user \"ada\""),
        "{}",
        refused.stderr()
    );
    assert!(!refused.stderr().contains("wrong@"), "{}", refused.stderr());
    let create = "{createUser: 'bob', pwd: 'right', roles: []}";
    assert_eq!(quorate(&["run", &right, create]).code(), 0);
    let bob = quorate(&["run", &format!("mongodb://bob:right@{host}"), "{serverStatus: 1}"]);
    assert!(bob.stderr().contains("have a role granted"), "{}", bob.stderr());
}

#[test]
fn commands_that_fail_say_whose_fault_it_is() {
    let mut served = Living::start(&["serve", "--memory", "--port", "0", "--json"]);
    let uri = served.event()["uri"].as_str().unwrap().to_owned();
    let port = uri.trim_end_matches('/').rsplit(':').next().unwrap().to_owned();
    let replace = [(port.as_str(), "PORT")];
    quorate(&["run", &uri, "{noSuchCommand: 1}"]).snapshot_with("run-refused", &replace);
    quorate(&["run", &uri, "{ping 1}"]).snapshot_with("run-unreadable", &replace);
    quorate(&["run", &uri, "[1]"]).snapshot_with("run-no-document", &replace);
    let taken = quorate(&["serve", "--memory", "--port", &port]);
    assert_eq!(taken.code(), 1);
    taken.snapshot_with("serve-port-taken", &replace);
    drop(served);
    let unserved = quorate(&["run", &format!("{uri}?serverSelectionTimeoutMS=300"), "{ping: 1}"]);
    assert_eq!(unserved.code(), 1);
    assert!(
        unserved.stderr().contains("no server for a read from primary after"),
        "{}",
        unserved.stderr()
    );
    assert!(unserved.stderr().contains("refused"), "{}", unserved.stderr());
}

#[test]
fn run_and_serve_are_told_how_to_be_called() {
    quorate(&["run", "mongodb://a", "{}"]).snapshot("run-empty");
    quorate(&["run", "localhost:27017", "{ping: 1}"]).snapshot("run-no-uri");
    quorate(&["run", "mongodb://a", "{ping: 1}", "--read-preference", "any"])
        .snapshot("run-read-preference");
    quorate(&["serve"]).snapshot("serve-no-data");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_failover_is_watched() {
    let (a, b) = (FakeServer::start().await.unwrap(), FakeServer::start().await.unwrap());
    let (first, second) = (a.address().clone(), b.address().clone());
    let members = [first.clone(), second.clone()];
    let follower = |me: &ServerAddress, primary: &ServerAddress| {
        crate::doctor_uri::secondary_hello("rs0", me, &members, Some(primary))
    };
    a.set_hello(primary_hello("rs0", &first, &members, 1));
    b.set_hello(follower(&second, &first));
    let uri = format!("mongodb://{first}/?replicaSet=rs0&heartbeatFrequencyMS=500");
    let directory = tempfile::tempdir().unwrap();
    let recording = directory.path().join("seen.jsonl");
    let recording = recording.to_str().unwrap();
    let mut watched = Living::start(&["watch", "--json", "--record", recording, &uri]);
    let is_primary = |address: &ServerAddress| {
        let address = address.to_string();
        move |event: &Value| event["primary"] == address.as_str() && event["servers"] == 2
    };
    let event = watched.wait_for("topology", is_primary(&first));
    assert_eq!(event["type"], "ReplicaSetWithPrimary");
    assert!(event["t_ns"].is_u64());
    // The first primary is lost; the second is elected.
    a.stop();
    let lost = watched.wait_for("server", |event| event["type"] == "Unknown");
    assert_eq!(
        (&lost["address"], &lost["previous"]),
        (&first.to_string().into(), &"RSPrimary".into())
    );
    assert!(lost["error"].is_string(), "an Unknown has its reason: {lost}");
    b.set_hello(primary_hello("rs0", &second, &members, 2));
    watched.wait_for("topology", is_primary(&second));
    assert_eq!(watched.terminate(), Some(0));

    // Replaying it shows the same, twice, and ends well.
    let replayed = quorate(&["replay", "--json", recording]);
    assert_eq!(replayed.code(), 0, "{}", replayed.stderr());
    let events = replayed.events();
    let primaries: Vec<_> = events
        .iter()
        .filter(|event| event["event"] == "topology")
        .filter_map(|event| event["primary"].as_str())
        .collect();
    assert_eq!(primaries.first(), Some(&first.as_str()));
    assert_eq!(primaries.last(), Some(&second.as_str()));
    assert_eq!(replayed.stdout(), quorate(&["replay", "--json", recording]).stdout());
    let again = quorate(&["watch", "--record", recording, &uri]);
    assert_eq!(again.code(), 2, "a recording is never overwritten");
    assert!(again.stderr().contains("File exists"), "{}", again.stderr());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn people_read_lines() {
    let server = FakeServer::start().await.unwrap();
    let mut watched = Living::start(&["watch", &server.uri()]);
    let mut seen = Vec::new();
    while !seen.iter().any(|line: &String| line.contains("Single, 1 server")) {
        seen.push(watched.line());
    }
    let change = format!("{} Unknown → Standalone", server.address());
    assert!(seen.iter().any(|line| line.contains(&change)), "{seen:?}");
    assert_eq!(watched.terminate(), Some(0));
}

/// The set's members by host, and its connection string.
pub(crate) fn ready_set(set: &mut Living, members: usize) -> (Vec<(String, u64)>, String) {
    let mut told = Vec::new();
    for _ in 0..members {
        let member = set.event();
        assert_eq!(member["event"], "member", "{member}");
        let pid = member["pid"].as_u64().unwrap();
        told.push((member["host"].as_str().unwrap().to_owned(), pid));
    }
    let ready = set.event();
    assert_eq!(ready["event"], "ready", "{ready}");
    assert!(ready["elapsed_ms"].is_u64(), "{ready}");
    (told, ready["uri"].as_str().unwrap().to_owned())
}

fn insert(uri: &str, id: u32) {
    let command =
        format!("{{insert: 'kept', documents: [{{_id: {id}}}], writeConcern: {{w: 'majority'}}}}");
    let run = quorate(&["run", "--database", "test", uri, &command]);
    assert_eq!(run.code(), 0, "{}", run.stderr());
}

fn count(uri: &str) -> Value {
    let run = quorate(&["run", "--json", "--database", "test", uri, "{count: 'kept'}"]);
    assert_eq!(run.code(), 0, "{}", run.stderr());
    run.events().remove(0)["reply"]["n"].clone()
}

#[test]
fn a_set_survives_the_death_of_its_primary_and_ends_with_the_command() {
    let mut set = Living::start(&["up", "--port", "0", "--json"]);
    let (members, uri) = ready_set(&mut set, 3);
    insert(&uri, 1);
    let hello = quorate(&["run", "--json", &uri, "{hello: 1}"]).events().remove(0);
    let primary = hello["reply"]["me"].as_str().unwrap().to_owned();
    let (_, pid) = members.iter().find(|(host, _)| *host == primary).unwrap();
    assert!(Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap().success());
    let exit = set.wait_for("member_exited", |_| true);
    assert_eq!(exit["host"], primary.as_str());
    // Finds the new primary, however long the election takes.
    insert(&uri, 2);
    assert_eq!(count(&uri), 2);
    assert_eq!(set.terminate(), Some(0));
    assert_ne!(
        quorate(&["run", &format!("{uri}&serverSelectionTimeoutMS=200"), "{ping: 1}"]).code(),
        0
    );
}

/// A cut without rights over the network: the member itself stops talking to the others.
#[test]
fn a_primary_that_is_cut_off_is_replaced_and_follows_again() {
    let mut set = Living::start(&["up", "--port", "0", "--json"]);
    let (members, uri) = ready_set(&mut set, 3);
    let mut watched = Living::start(&["watch", "--json", &uri]);
    let led = |event: &Value| event["primary"].is_string();
    let first = watched.wait_for("topology", led)["primary"].as_str().unwrap().to_owned();
    let (_, pid) = members.iter().find(|(host, _)| *host == first).unwrap();
    let signal = |name: &str| {
        assert!(Command::new("kill").args([name, &pid.to_string()]).status().unwrap().success());
    };
    signal("-USR1");
    let replaced = |event: &Value| led(event) && event["primary"] != first.as_str();
    let second = watched.wait_for("topology", replaced)["primary"].clone();
    // It still answers clients, and knows no primary: no member tells it.
    let alone = format!("mongodb://{first}/?directConnection=true");
    let hello = quorate(&["run", "--json", &alone, "{hello: 1}"]).events().remove(0);
    assert_eq!(hello["reply"]["isWritablePrimary"], false, "{hello}");
    assert_eq!(hello["reply"]["primary"], Value::Null, "{hello}");
    insert(&uri, 1);
    signal("-USR2");
    loop {
        let hello = quorate(&["run", "--json", &alone, "{hello: 1}"]).events().remove(0);
        if hello["reply"]["primary"] == second && hello["reply"]["secondary"] == true {
            break;
        }
    }
    assert_eq!(set.terminate(), Some(0));
}

#[test]
fn a_set_with_a_data_directory_comes_back_with_its_data() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().to_str().unwrap();
    let up = ["up", "--port", "0", "--json", "--data", data];
    let mut set = Living::start(&up);
    let (_, first) = ready_set(&mut set, 3);
    insert(&first, 1);
    assert_eq!(set.terminate(), Some(0));

    let mut set = Living::start(&up);
    let (_, second) = ready_set(&mut set, 3);
    assert_eq!(second, first);
    assert_eq!(count(&second), 1);
    assert_eq!(set.terminate(), Some(0));

    let other = quorate(&["up", "--members", "1", "--data", data]);
    assert_eq!(other.code(), 2);
    assert!(other.stderr().contains("holds a set of 3 members, not of 1"), "{}", other.stderr());
}

#[test]
fn a_taken_port_is_moved_past() {
    // Below the ports that systems hand out, so that no process takes the next one by chance.
    let fixed = (20_000_u16..30_000).step_by(7).skip(std::process::id() as usize % 1000);
    let mut listeners =
        fixed.filter_map(|port| std::net::TcpListener::bind(("127.0.0.1", port)).ok());
    let taken = listeners.next().unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let mut set = Living::start(&["up", "--members", "1", "--port", &port, "--json"]);
    let moved = set.event();
    assert_eq!(moved["event"], "port_taken", "{moved}");
    assert!(moved["ports"].as_str().unwrap().starts_with(&port), "{moved}");
    let (members, _) = ready_set(&mut set, 1);
    assert!(!members[0].0.ends_with(&format!(":{port}")), "{members:?}");
    assert_eq!(set.terminate(), Some(0));
    // The sentence that people read.
    let up = ["up", "--detach", "--members", "1", "--port", &port];
    let run = crate::down::RunDirectory::new();
    let up = run.quorate(&up);
    assert_eq!(up.code(), 0, "{}", up.stderr());
    let sentence = format!("port {port} is taken, so the set moves past it");
    assert!(up.stderr().contains(&sentence), "{}", up.stderr());
}

#[test]
fn a_member_that_asks_for_logins_must_know_the_others() {
    let run = quorate(&["serve", "--memory", "--port", "0", "--replset", "rs0", "--auth"]);
    assert_eq!(run.code(), 1);
    assert!(run.stderr().contains("give --keyfile"), "{}", run.stderr());
}

#[test]
fn serving_wider_than_this_machine_takes_a_login_or_a_word() {
    let run = quorate(&["serve", "--memory", "--port", "0", "--bind", "0.0.0.0"]);
    assert_eq!(run.code(), 2);
    assert!(run.stderr().contains("--auth") && run.stderr().contains("--insecure"));
    let mut served = Living::start(&[
        "serve", "--memory", "--port", "0", "--bind", "0.0.0.0", "--auth", "--json",
    ]);
    assert_eq!(served.event()["event"], "ready");
    assert_eq!(served.terminate(), Some(0));
}

#[test]
fn options_come_from_a_file_and_the_command_line_wins() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("quorate.toml");
    let sample = quorate(&["serve", "--print-config"]);
    assert_eq!(sample.code(), 0);
    let file = format!("{}\nmemory = true\nport = 1\n", sample.stdout());
    std::fs::write(&path, file).unwrap();
    let config = path.to_str().unwrap();
    let mut served = Living::start(&["serve", "--config", config, "--port", "0", "--json"]);
    assert_eq!(served.event()["event"], "ready");
    assert_eq!(served.terminate(), Some(0));
    std::fs::write(&path, "memory = true\ntls-cret = \"x\"\n").unwrap();
    let run = quorate(&["serve", "--config", config]);
    assert_eq!(run.code(), 2);
    assert!(run.stderr().contains("did you mean tls-cert?"), "{}", run.stderr());
}

/// People who come from another server type its options.
#[test]
fn options_of_other_servers_are_known_or_refused_with_the_better_way() {
    let data = tempfile::tempdir().unwrap();
    let data = data.path().join("data");
    let data = data.to_str().unwrap();
    let run = quorate(&["serve", "--memory", "--port", "0", "--fork"]);
    assert_eq!(run.code(), 2, "{}", run.stderr());
    assert!(run.stderr().contains("systemd"), "{}", run.stderr());
    let log = format!("{data}.log");
    std::fs::write(&log, "what was there\n").unwrap();
    let mut served = Living::start(&[
        "serve", "--json", "--port", "0", "--dbpath", data, "--replSet", "rs0", "--bind_ip",
        "localhost,127.0.0.1", "--oplogSize", "16", "--maxConns", "100", "--log-level", "info",
        "--logpath", &log, "--logappend",
    ]);
    let ready = served.event();
    assert!(ready["uri"].as_str().unwrap().ends_with("replicaSet=rs0"), "{ready}");
    assert_eq!(served.terminate(), Some(0));
    let log = std::fs::read_to_string(log).unwrap();
    assert!(log.starts_with("what was there\n") && log.lines().count() > 1, "{log}");
}

/// Behind `| head -1`: nothing is written that would tell it, and it ends.
#[test]
fn a_feed_whose_reader_has_gone_ends() {
    let run = RunDirectory::new();
    let mut set = run.start(&["up", "--members", "1", "--port", "0", "--json"]);
    let (_, uri) = ready_set(&mut set, 1);
    for command in ["watch", "tail"] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_quorate"))
            .args([command, "--json", &uri])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let awaited = if command == "watch" { "ReplicaSetWithPrimary" } else { "\"tail\"" };
        let mut line = String::new();
        while !line.contains(awaited) {
            line.clear();
            assert_ne!(out.read_line(&mut line).unwrap(), 0, "{command} has ended");
        }
        drop(out);
        let deadline = Instant::now() + SILENCE;
        let ended = loop {
            match child.try_wait().unwrap() {
                Some(ended) => break ended,
                None if Instant::now() > deadline => {
                    child.kill().unwrap();
                    panic!("{command} goes on without a reader");
                }
                None => std::thread::yield_now(),
            }
        };
        assert_eq!(ended.code(), Some(0), "{command}");
    }
    assert_eq!(set.terminate(), Some(0));
}
