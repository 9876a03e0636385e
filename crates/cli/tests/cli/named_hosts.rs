//! Members on hosts of their own, in network namespaces, known to each other and to clients by names alone:
//! certificates for these names, and addresses that change between restarts.

use std::process::Command;
use std::time::Instant;

use quorate_test_support::{Authority, Namespaces};
use serde_json::Value;

use crate::live::Living;

const NAMES: [&str; 3] = ["one.quorate.test", "two.quorate.test", "three.quorate.test"];

const PORT: &str = "27017";

/// Three hosts and the certificates of their members.
struct Hosts {
    namespaces: Namespaces,
    authority: Authority,
    data: tempfile::TempDir,
}

impl Hosts {
    fn new() -> Option<Self> {
        let mut namespaces = Namespaces::new()?;
        for _ in NAMES {
            namespaces.add();
        }
        namespaces.name_hosts(&NAMES);
        let data = tempfile::tempdir().unwrap();
        Some(Self { namespaces, authority: Authority::new(), data })
    }

    fn command(&self, place: usize, arguments: &[&str]) -> Command {
        let mut command = self.namespaces.command(place, env!("CARGO_BIN_EXE_quorate"));
        command.args(arguments);
        command
    }

    fn start(&self, place: usize) -> Living {
        let certificate = self.authority.issue_for(NAMES[place], "quorate");
        let mut command =
            self.command(place, &["serve", "--json", "--insecure", "--replset", "rs0"]);
        command.args(["--bind", "0.0.0.0", "--port", PORT]);
        command.arg("--data").arg(self.data.path().join(NAMES[place]));
        command.arg("--tls-cert").arg(certificate).arg("--tls-ca").arg(self.authority.ca());
        let mut member = Living::start_by(&mut command);
        member.wait_for("ready", |_| true);
        member
    }

    /// Side by side, as after a loss of power.
    fn start_all(&self) -> Vec<Living> {
        std::thread::scope(|scope| {
            let starts: Vec<_> =
                (0..NAMES.len()).map(|place| scope.spawn(move || self.start(place))).collect();
            starts.into_iter().map(|start| start.join().unwrap()).collect()
        })
    }

    /// Runs a command from the first host.
    fn ask(&self, hosts: &str, options: &str, command: &str) -> Result<Value, String> {
        let authority = self.authority.ca().display().to_string();
        let database = if command.starts_with("{repl") { "admin" } else { "shop" };
        let uri = format!("mongodb://{hosts}/?tls=true&tlsCAFile={authority}&{options}");
        let output = self
            .command(0, &["run", "--json", "--database", database, &uri, command])
            .output()
            .unwrap();
        let line = String::from_utf8(output.stdout).unwrap();
        if !output.status.success() {
            return Err(format!("{line}{}", String::from_utf8_lossy(&output.stderr)));
        }
        Ok(serde_json::from_str::<Value>(line.lines().next().unwrap()).unwrap()["reply"].take())
    }

    fn ask_set(&self, command: &str) -> Result<Value, String> {
        let hosts = NAMES.map(|name| format!("{name}:{PORT}")).join(",");
        self.ask(&hosts, "replicaSet=rs0&serverSelectionTimeoutMS=60000", command)
    }

    fn initiate(&self) {
        let members: Vec<String> = NAMES
            .iter()
            .enumerate()
            .map(|(id, name)| format!("{{_id: {id}, host: '{name}:{PORT}'}}"))
            .collect();
        let initiate =
            format!("{{replSetInitiate: {{_id: 'rs0', members: [{}]}}}}", members.join(", "));
        let first = format!("{}:{PORT}", NAMES[0]);
        self.ask(&first, "directConnection=true", &initiate).unwrap();
    }

    /// Waits until a write is on all three members, and returns why the primary stood.
    fn write_everywhere(&self, id: i32) -> String {
        let insert = format!(
            "{{insert: 'c', documents: [{{_id: {id}}}], writeConcern: {{w: 3, wtimeout: 60000}}}}"
        );
        let written = self.ask_set(&insert).unwrap();
        assert!(written["writeConcernError"].is_null(), "{written}");
        let status = self.ask_set("{replSetGetStatus: 1}").unwrap();
        status["electionCandidateMetrics"]["lastElectionReason"].as_str().unwrap().to_owned()
    }
}

/// Every connection is checked against a certificate that has nothing but the name of its host.
#[test]
fn a_set_under_host_names_outlives_restarts_and_new_addresses() {
    let Some(mut hosts) = Hosts::new() else { return };
    let members = hosts.start_all();
    hosts.initiate();
    hosts.write_everywhere(1);

    // All of them start again, and find themselves by their names before they elect.
    for member in members {
        assert_eq!(member.terminate(), Some(0));
    }
    let begun = Instant::now();
    let mut members = hosts.start_all();
    let reason = hosts.write_everywhere(2);
    assert_ne!(reason, "electionTimeout", "the whole set was down ({:?})", begun.elapsed());

    // One comes back at another address while the others go on.
    assert_eq!(members.remove(1).terminate(), Some(0));
    hosts.namespaces.move_to_another_address(1);
    hosts.namespaces.name_hosts(&NAMES);
    members.insert(1, hosts.start(1));
    hosts.write_everywhere(3);

    // Then all of them do at once.
    for member in members {
        assert_eq!(member.terminate(), Some(0));
    }
    for place in [0, 2] {
        hosts.namespaces.move_to_another_address(place);
    }
    hosts.namespaces.name_hosts(&NAMES);
    let begun = Instant::now();
    let members = hosts.start_all();
    let reason = hosts.write_everywhere(4);
    assert_ne!(reason, "electionTimeout", "the whole set was down ({:?})", begun.elapsed());
    assert_eq!(hosts.ask_set("{count: 'c'}").unwrap()["n"], 4);
    drop(members);
}
