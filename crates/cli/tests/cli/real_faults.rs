//! Faults that users report, provoked against real members, and the finding that the doctor gives.
//!
//! docs/doctor.md#situations lists them. States that our members cannot show (a server too old, a clock that is
//! off, a load balancer) are in `doctor_uri`, with scripted servers. Measured failovers are in `drill`.

use std::process::Command;
use std::time::{Duration, Instant};

use quorate_protocol::ServerAddress;
use quorate_server::{Place, Running, Server, StartOptions};

use crate::doctor_uri::findings;
use crate::live::{Living, ready_set};
use crate::support::quorate;

/// How long a condition may take to hold. Far longer than an election on a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);

/// A member in this process.
pub(crate) async fn start(change: impl FnOnce(&mut StartOptions, u16)) -> (Running, u16) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut options = StartOptions::new(Place::Memory);
    change(&mut options, port);
    (Server::start(listener, options).await.unwrap(), port)
}

/// Runs a command on this member alone; it must succeed.
pub(crate) fn run_on(port: u16, command: &str) {
    let uri = format!("mongodb://127.0.0.1:{port}/?directConnection=true");
    let run = quorate(&["run", &uri, command]);
    assert_eq!(run.code(), 0, "{command}: {}", run.stderr());
}

/// What this member says about itself.
pub(crate) fn hello_of(address: &str) -> serde_json::Value {
    let uri = format!("mongodb://{address}/?directConnection=true");
    quorate(&["run", "--json", &uri, "{hello: 1}"]).events().remove(0)["reply"].take()
}

/// Where `quorate serve` listens, once it says so.
pub(crate) fn port_of(served: &mut Living) -> u16 {
    let ready = served.event();
    let address = ready["uri"].as_str().unwrap().rsplit_once(':').unwrap().1;
    let digits: String = address.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

/// Makes a set of one member by this name, and waits until it leads.
pub(crate) fn initiate(port: u16, host: &str) {
    run_on(
        port,
        &format!("{{replSetInitiate: {{_id: 'rs0', members: [{{_id: 0, host: '{host}'}}]}}}}"),
    );
    let address = format!("127.0.0.1:{port}");
    until(&format!("{host} leads"), || hello_of(&address)["isWritablePrimary"] == true);
}

/// Asks until it holds. Bounded, so that a test that hangs says what it waits for.
#[track_caller]
pub(crate) fn until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "never saw that {what}");
    }
}

pub(crate) fn signal(name: &str, pid: u64) {
    assert!(Command::new("kill").args([name, &pid.to_string()]).status().unwrap().success());
}

/// A set of processes, and who leads it.
pub(crate) struct Set {
    pub(crate) up: Living,
    pub(crate) members: Vec<(String, u64)>,
    pub(crate) uri: String,
    pub(crate) primary: String,
}

/// The states of a primary, a secondary and an arbiter.
const PLACES: [i64; 3] = [1, 2, 7];

impl Set {
    pub(crate) fn start(arguments: &[&str], members: usize) -> Self {
        let mut up = Living::start(&[&["up", "--port", "0", "--json"], arguments].concat());
        let (members, uri) = ready_set(&mut up, members);
        let hello = quorate(&["run", "--json", &uri, "{hello: 1}"]).events().remove(0);
        let primary = hello["reply"]["me"].as_str().unwrap().to_owned();
        // It is ready with a majority; forecasts and findings are about all members.
        until("every member has its place", || {
            let status = quorate(&["run", "--json", &uri, "{replSetGetStatus: 1}"]);
            let reply = status.events().remove(0)["reply"].take();
            let members = reply["members"].as_array().unwrap();
            members.iter().all(|member| PLACES.contains(&member["state"].as_i64().unwrap_or(0)))
        });
        Self { up, members, uri, primary }
    }

    pub(crate) fn others(&self) -> impl Iterator<Item = &(String, u64)> {
        self.members.iter().filter(|(host, _)| *host != self.primary)
    }

    pub(crate) fn kill(&mut self, host: &str) {
        let (_, pid) = *self.members.iter().find(|(known, _)| known == host).unwrap();
        signal("-9", pid);
        self.up.wait_for("member_exited", |event| event["host"] == host);
    }

    pub(crate) fn end(self) {
        assert_eq!(self.up.terminate(), Some(0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn advertised_names_do_not_resolve() {
    let mut name = None;
    let (member, port) = start(|options, port| {
        let host = format!("508be0425c52.invalid:{port}");
        options.replica_set = Some("rs0".to_owned());
        options.own_addresses = vec![host.parse::<ServerAddress>().unwrap()];
        name = Some(host);
    })
    .await;
    let name = name.unwrap();
    initiate(port, &name);
    let (codes, said, code) = findings(&format!("mongodb://127.0.0.1:{port}/?replicaSet=rs0"));
    assert_eq!((codes, code), (vec!["advertised_name_not_found".to_owned()], 1), "{said}");
    assert!(said.contains(&format!("advertises {name}")), "{said}");
    assert!(said.contains("rs.reconfig(c)"), "{said}");
    assert!(said.contains("echo '127.0.0.1 508be0425c52.invalid'"), "{said}");
    assert!(said.contains("directConnection=true"), "{said}");
    member.stop().await.unwrap();
}

/// On Linux, 0.0.0.0 leads to this machine without being a loopback address.
#[tokio::test(flavor = "multi_thread")]
async fn members_advertise_loopback() {
    let (member, port) = start(|options, _| options.replica_set = Some("rs0".to_owned())).await;
    initiate(port, &format!("127.0.0.1:{port}"));
    let (codes, said, code) = findings(&format!("mongodb://0.0.0.0:{port}/?replicaSet=rs0"));
    assert_eq!(code, 1);
    assert_eq!(codes, ["loopback_advertised", "seed_called_otherwise"], "{said}");
    member.stop().await.unwrap();
}

/// A minority elects no member, and says so.
#[test]
fn the_error_of_a_selection_names_every_server() {
    let mut set = Set::start(&[], 3);
    let hosts: Vec<String> = set.others().map(|(host, _)| host.clone()).collect();
    for host in &hosts {
        set.kill(host);
    }
    let primary = set.primary.clone();
    until("the rest steps down", || hello_of(&primary)["isWritablePrimary"] == false);
    let uri = format!("{}&serverSelectionTimeoutMS=300", set.uri);
    let run = quorate(&["run", &uri, "{insert: 'c', documents: [{}]}"]);
    assert_eq!(run.code(), 1);
    let said = run.stderr();
    for host in &hosts {
        assert!(said.contains(&format!("{host} Unknown: ")), "{said}");
    }
    assert!(said.contains(&format!("{primary} RSSecondary")), "{said}");

    let (codes, said, code) = findings(&set.uri);
    assert_eq!(code, 1);
    assert!(codes.contains(&"no_majority".to_owned()), "{codes:?}");
    assert!(said.contains("votes visible 1 of 3, need 2"), "{said}");
    // Our own members know more than hello tells.
    assert!(codes.contains(&"election".to_owned()), "{said}");
    set.end();
}

/// A wrong name of the set is found as well.
#[test]
fn a_direct_connection_to_a_secondary() {
    let set = Set::start(&[], 3);
    let (secondary, _) = set.others().next().unwrap();
    let (codes, said, code) = findings(&format!("mongodb://{secondary}/?directConnection=true"));
    // The third member may still be copying, which is told too.
    assert_eq!((codes[0].as_str(), code), ("direct_to_other", 1), "{said}");
    assert!(said.contains(&set.primary), "{said}");

    let (codes, said, code) = findings(&format!("mongodb://{secondary}/?replicaSet=rs_dev"));
    assert_eq!((codes[0].as_str(), code), ("wrong_set_name", 1), "{said}");
    assert!(said.contains("the URI says rs_dev") && said.contains("says rs0"), "{said}");
    set.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn localhost_is_two_addresses() {
    let (member, port) = start(|_, _| ()).await;
    let run = quorate(&["doctor", "--json", &format!("mongodb://localhost:{port}")]);
    assert_eq!(run.code(), 0, "{}", run.stdout());
    let events = run.events();
    let reached = events.iter().any(|event| {
        event["stage"] == "tcp" && event["ok"] == true && event["server"].as_str().is_some()
    });
    assert!(reached, "{events:?}");
    let ping = quorate(&["run", &format!("mongodb://localhost:{port}"), "{ping: 1}"]);
    assert_eq!(ping.code(), 0, "{}", ping.stderr());
    member.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_login_is_no_timeout() {
    let (member, port) = start(|options, _| options.authentication = true).await;
    let (codes, said, code) = findings(&format!("mongodb://127.0.0.1:{port}"));
    assert_eq!((codes, code), (vec!["login_needed".to_owned()], 1), "{said}");
    let uri = format!("mongodb://ada:s3cret@127.0.0.1:{port}/?authMechanism=SCRAM-SHA-256");
    let (codes, said, code) = findings(&uri);
    assert_eq!((codes, code), (vec!["authentication_failed".to_owned()], 1), "{said}");
    assert!(said.contains("for user ada (SCRAM-SHA-256, database admin)"), "{said}");
    assert!(said.contains("not a network problem") && !said.contains("s3cret"), "{said}");
    member.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_wants_tls() {
    let key = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("server.pem");
    std::fs::write(&file, key.cert.pem() + &key.signing_key.serialize_pem()).unwrap();
    let (data, file) = (folder.path().join("data"), file.to_str().unwrap());
    let mut served = Living::start(&[
        "serve",
        "--port",
        "0",
        "--json",
        "--data",
        data.to_str().unwrap(),
        "--tls-cert",
        file,
        "--tls-mode",
        "require",
    ]);
    let port = port_of(&mut served);
    let (codes, said, code) = findings(&format!("mongodb://localhost:{port}"));
    assert_eq!(code, 1, "{said}");
    assert!(codes.contains(&"tls_required".to_owned()), "{said}");
    assert!(said.contains("add tls=true"), "{said}");
    let (codes, said, _) = findings(&format!("mongodb://localhost:{port}/?tls=true"));
    assert!(codes.contains(&"certificate_issuer".to_owned()), "{said}");
    let (codes, said, code) =
        findings(&format!("mongodb://localhost:{port}/?tls=true&tlsCAFile={file}"));
    assert_eq!((codes.contains(&"certificate_issuer".to_owned()), code), (false, 0), "{said}");
    assert_eq!(served.terminate(), Some(0));
}

/// A frozen host takes connections and says nothing: the client is told since when.
#[test]
fn a_member_that_is_frozen_is_told_with_its_age() {
    let set = Set::start(&[], 3);
    let uri = format!("{}&heartbeatFrequencyMS=500&connectTimeoutMS=500", set.uri);
    let mut watched = Living::start(&["watch", "--json", &uri]);
    watched.wait_for("topology", |event| event["type"] == "ReplicaSetWithPrimary");
    let (frozen, pid) = set.others().next().unwrap().clone();
    signal("-STOP", pid);
    let event = watched.wait_for("topology", |event| event.to_string().contains("Unknown"));
    signal("-CONT", pid);
    assert!(event.to_string().contains(&frozen), "{event}");
    drop(watched);
    set.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_set_that_was_never_initiated() {
    let (member, port) = start(|options, _| options.replica_set = Some("rs7".to_owned())).await;
    let (codes, said, code) = findings(&format!("mongodb://127.0.0.1:{port}/?replicaSet=rs7"));
    assert_eq!((codes, code), (vec!["never_initiated".to_owned()], 1), "{said}");
    assert!(said.contains(r#"rs.initiate({_id: \"rs7\""#), "{said}");
    member.stop().await.unwrap();
}

/// Ready means that a majority write went through: one of the tester's own goes through at once.
#[test]
fn ready_is_no_guess() {
    let set = Set::start(&["--members", "3"], 3);
    let write =
        "{insert: 'c', documents: [{_id: 1}], writeConcern: {w: 'majority', wtimeout: 1000}}";
    let run = quorate(&["run", &set.uri, write]);
    assert_eq!(run.code(), 0, "{}", run.stderr());
    set.end();
}

/// "Never checked" is not "check failed".
#[test]
fn never_checked_is_not_failed() {
    // A port that takes connections and never answers: no check completes.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let uri = format!("mongodb://{address}/?serverSelectionTimeoutMS=300&connectTimeoutMS=60000");
    let run = quorate(&["run", &uri, "{ping: 1}"]);
    assert_eq!(run.code(), 1);
    assert!(
        run.stderr().contains(&format!("{address} Unknown: never checked")),
        "{}",
        run.stderr()
    );
}

/// A function platform freezes between calls, which a stream does not survive. The client notices
/// where it runs; that the core polls there is a scenario of its own.
#[tokio::test(flavor = "multi_thread")]
async fn function_platforms_are_noticed() {
    let (member, port) = start(|_, _| ()).await;
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().join("seen.jsonl");
    let uri = format!("mongodb://127.0.0.1:{port}");
    let watch = ["watch", "--json", "--record", record.to_str().unwrap(), &uri];
    let lambda = [("AWS_EXECUTION_ENV", "AWS_Lambda_nodejs20.x")];
    let mut watched = Living::start_with(&watch, &lambda);
    watched.wait_for("topology", |event| event["type"] == "Single");
    assert_eq!(watched.terminate(), Some(0));
    let recorded = std::fs::read_to_string(&record).unwrap();
    assert!(recorded.contains(r#""functionPlatform":"aws.lambda""#), "{recorded}");
    member.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_budget_of_connections() {
    let (member, port) = start(|options, _| options.server.max_connections = 60).await;
    let (codes, said, code) = findings(&format!("mongodb://127.0.0.1:{port}/?maxPoolSize=20"));
    assert_eq!((codes, code), (Vec::new(), 0), "{said}");
    let (codes, said, code) = findings(&format!("mongodb://127.0.0.1:{port}"));
    assert_eq!((codes, code), (vec!["connections_scarce".to_owned()], 0), "{said}");
    assert!(said.contains("may open 102 (2 monitors + 100 pooled): 0 more of them fit"), "{said}");
    member.stop().await.unwrap();
}

#[test]
fn an_arbiter_keeps_a_primary_that_commits_nothing() {
    let mut set = Set::start(&["--members", "2", "--arbiters", "1"], 3);
    let (codes, said, code) = findings(&set.uri);
    assert_eq!((codes.contains(&"arbiter_trap".to_owned()), code), (true, 0), "{said}");
    let mut others = set.others().map(|(host, _)| host.clone());
    let secondary = others.find(|host| hello_of(host)["secondary"] == true);
    drop(others);
    set.kill(&secondary.unwrap());
    let (codes, said, code) = findings(&set.uri);
    assert_eq!(code, 1);
    assert!(codes.contains(&"majority_without_data".to_owned()), "{said}");
    assert!(said.contains("majority needs 2 data members, 1 answers here"), "{said}");
    set.end();
}

/// A member that comes back under another address is in no member's configuration.
#[test]
fn the_configuration_lost_its_own_member() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("member");
    let serve = ["serve", "--port", "0", "--json", "--replset", "rs0", "--data"];
    let serve = [&serve[..], &[data.to_str().unwrap()]].concat();
    let mut served = Living::start(&serve);
    let old = port_of(&mut served);
    initiate(old, &format!("127.0.0.1:{old}"));
    assert_eq!(served.terminate(), Some(0));
    // The old port stays taken, so that the member cannot come back to it.
    let _taken = std::net::TcpListener::bind(("127.0.0.1", old));
    let mut served = Living::start(&serve);
    let new = port_of(&mut served);
    assert_ne!(old, new);
    let (codes, said, code) = findings(&format!("mongodb://127.0.0.1:{new}/?replicaSet=rs0"));
    assert_eq!(code, 1, "{said}");
    assert!(codes.contains(&"never_initiated".to_owned()), "{said}");
    assert!(said.contains("its configuration no longer names this host"), "{said}");
    assert_eq!(served.terminate(), Some(0));
}

/// A member that held documents before it was in a set ends rather than lose them, and says why.
#[test]
fn a_member_with_documents_and_no_log_says_why_it_ends() {
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (old, new) = (place("old"), place("new"));
    let mut alone = Living::start(&["serve", "--port", "0", "--json", "--data", &old]);
    let port = port_of(&mut alone);
    run_on(port, "{insert: 'c', documents: [{_id: 1}]}");
    assert_eq!(alone.terminate(), Some(0));
    let serve = ["serve", "--port", "0", "--json", "--replset", "rs0", "--data"];
    let mut first = Living::start(&[&serve[..], &[&new]].concat());
    let leader = port_of(&mut first);
    initiate(leader, &format!("127.0.0.1:{leader}"));
    let member = Command::new(env!("CARGO_BIN_EXE_quorate"))
        .args(["serve", "--port", &port.to_string(), "--replset", "rs0", "--data", &old])
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let uri = format!("mongodb://127.0.0.1:{leader}/?directConnection=true");
    let shown = quorate(&["run", "--json", &uri, "{replSetGetConfig: 1}"]).events().remove(0);
    let mut config = shown["reply"]["config"].clone();
    config["version"] = 2.into();
    let added = serde_json::json!({
        "_id": 1, "host": format!("127.0.0.1:{port}"), "votes": 0, "priority": 0,
    });
    config["members"].as_array_mut().unwrap().push(added);
    run_on(leader, &format!("{{replSetReconfig: {config}}}"));
    let ended = member.wait_with_output().unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(1), "{said}");
    let last = said.trim_end().rsplit('\n').next().unwrap_or_default();
    assert!(last.contains("error: this member holds documents but no oplog"), "{said}");
    assert!(last.contains("quorate dump") && !said.contains("could not be synced"), "{said}");
    assert_eq!(first.terminate(), Some(0));
}

/// The oplog is full and reaches back for minutes only.
#[tokio::test(flavor = "multi_thread")]
async fn the_window_of_the_oplog() {
    const OPLOG_BYTES: u64 = 256 * 1024;
    let (member, port) = start(|options, _| {
        options.replica_set = Some("rs0".to_owned());
        options.oplog_bytes = OPLOG_BYTES;
    })
    .await;
    initiate(port, &format!("127.0.0.1:{port}"));
    let uri = format!("mongodb://127.0.0.1:{port}/?replicaSet=rs0");
    let (codes, said, code) = findings(&uri);
    assert_eq!((codes, code), (Vec::new(), 0), "a young oplog is no short one: {said}");
    let text = "x".repeat(8 * 1024);
    until("the oplog is full", || {
        let insert = format!("{{insert: 'c', documents: [{{t: '{text}'}}]}}");
        assert_eq!(quorate(&["run", &uri, &insert]).code(), 0);
        findings(&uri).0 == ["short_oplog"]
    });
    member.stop().await.unwrap();
}
