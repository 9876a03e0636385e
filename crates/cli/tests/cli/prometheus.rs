//! The metrics as a real Prometheus sees them: over TLS, with the token, with the repository's rules and
//! the queries of its dashboard.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use quorate_test_support::Authority;
use serde_json::Value;

use crate::down::RunDirectory;
use crate::http::request;
use crate::live::{Living, ready_set};
use crate::support::folder;

const PATIENCE: Duration = Duration::from_secs(120);

const TOKEN: &str = "0123456789abcdef0123456789";

fn monitoring(name: &str) -> PathBuf {
    folder("../../monitoring").join(name)
}

/// Prometheus with a database of its own, ended when dropped.
struct Prometheus {
    child: Child,
    address: String,
}

impl Prometheus {
    /// Scrapes this endpoint every second, and loads the rules of the repository.
    fn start(folder: &Path, target: &str, ca: &Path, token: &Path) -> Self {
        let config = folder.join("prometheus.yml");
        let text = format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\n\
             rule_files: [{:?}]\n\
             scrape_configs:\n\
             - job_name: quorate\n  scheme: https\n  tls_config: {{ca_file: {ca:?}}}\n  \
             authorization: {{credentials_file: {token:?}}}\n  \
             static_configs: [{{targets: [{target:?}]}}]\n",
            monitoring("alerts.yaml")
        );
        std::fs::write(&config, text).unwrap();
        let checked = Command::new("promtool").args(["check", "config"]).arg(&config).output();
        let checked = checked.unwrap();
        assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
        let mut child = Command::new("prometheus")
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
            .arg("--web.listen-address=127.0.0.1:0")
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut says = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let address = says.find_map(|line| {
            line.split("msg=\"Listening on\" address=").nth(1).map(str::trim).map(str::to_owned)
        });
        // What it says later is read by no thread; a full pipe would stop it.
        std::thread::spawn(move || says.for_each(drop));
        Self { child, address: address.expect("Prometheus says where it listens") }
    }

    fn ask(&self, path: &str) -> Value {
        let headers = [("host", self.address.as_str())];
        let reply = request(&self.address, "GET", path, &headers, "");
        match reply.status {
            503 => Value::Null,
            _ => reply.json(),
        }
    }

    /// The samples that a query finds now.
    fn query(&self, expression: &str) -> Vec<Value> {
        let told = self.ask(&format!("/api/v1/query?query={}", encoded(expression)));
        if told.is_null() {
            return Vec::new();
        }
        assert_eq!(told["status"], "success", "{expression}: {told}");
        told["data"]["result"].as_array().unwrap().clone()
    }

    /// The rules, once they were evaluated.
    fn rules(&self) -> Vec<Value> {
        let told = self.ask("/api/v1/rules");
        let groups = told["data"]["groups"].as_array().cloned().unwrap_or_default();
        let rules = groups.iter().flat_map(|group| group["rules"].as_array().cloned());
        rules.flatten().filter(|rule| rule["health"] != "unknown").collect()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Everything but letters and digits as `%XX`.
fn encoded(text: &str) -> String {
    let shown = |byte: u8| match byte {
        b if b.is_ascii_alphanumeric() => char::from(b).to_string(),
        b => format!("%{b:02X}"),
    };
    text.bytes().map(shown).collect()
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "never saw that {what}");
        std::thread::yield_now();
    }
}

/// The expressions of the dashboard.
fn dashboard_queries() -> Vec<String> {
    let text = std::fs::read_to_string(monitoring("grafana-dashboard.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    targets.map(|target| target["expr"].as_str().unwrap().to_owned()).collect()
}

/// The endpoint of a watcher, with TLS and the token.
fn watcher(uri: &str, authority: &Authority, token: &Path) -> (Living, String) {
    let certificate = authority.issue("metrics", "quorate");
    let certificate = certificate.to_str().unwrap();
    let mut watch = Living::start(&[
        "watch",
        "--json",
        "--metrics",
        "127.0.0.1:0",
        "--metrics-token",
        token.to_str().unwrap(),
        "--metrics-cert",
        certificate,
        "--metrics-key",
        certificate,
        uri,
    ]);
    let told = watch.wait_for("metrics", |_| true);
    let url = told["url"].as_str().unwrap();
    let address = url.strip_prefix("https://").expect(url).trim_end_matches("/metrics").to_owned();
    (watch, address)
}

#[test]
fn a_real_prometheus_finds_what_the_rules_and_the_dashboard_ask_for() {
    quorate_provision::debian(&["prometheus"]).unwrap();
    let run = RunDirectory::new();
    let up = ["up", "--members", "2", "--arbiters", "1", "--port", "0", "--json"];
    let mut set = run.start(&[&up[..], &["--election-timeout", "2s"]].concat());
    let (members, uri) = ready_set(&mut set, 3);
    let directory = tempfile::tempdir().unwrap();
    let token = directory.path().join("token");
    std::fs::write(&token, TOKEN).unwrap();
    let authority = Authority::new();
    let (watch, address) = watcher(&uri, &authority, &token);
    let prometheus = Prometheus::start(directory.path(), &address, &authority.ca(), &token);

    let queries = dashboard_queries();
    assert!(queries.len() > 10, "{queries:?}");
    for query in &queries {
        until(&format!("{query} finds something"), || !prometheus.query(query).is_empty());
    }
    for query in [
        "quorate_member_state{state=\"ARBITER\"} == 1",
        "quorate_member_is_arbiter == 1",
        "quorate_member_oplog_window_seconds >= 0",
        "count(quorate_member_votes == 1) == 3",
        "count(quorate_member_priority == 0) == 1",
    ] {
        until(&format!("{query} holds"), || !prometheus.query(query).is_empty());
    }
    until("the rules were evaluated", || prometheus.rules().len() > 6);
    for rule in prometheus.rules() {
        assert_eq!(rule["health"], "ok", "{rule}");
    }
    // No primary: the figures are right, and the rule says so.
    for (host, _) in &members[..2] {
        assert_eq!(run.quorate(&["stop", host]).code(), 0);
    }
    let waits = |name: &str| {
        let rules = prometheus.rules();
        let rule = rules.iter().find(|rule| rule["name"] == name).cloned();
        rule.is_some_and(|rule| rule["state"] != "inactive")
    };
    until("the loss of the primary is noticed", || waits("ReplicaSetWithoutPrimary"));
    until("the loss of the majority is noticed", || waits("ReplicaSetWithoutMajority"));
    until("an arbiter that is left is still one", || {
        !prometheus.query("quorate_member_is_arbiter == 1 and quorate_member_up == 1").is_empty()
    });
    assert_eq!(watch.terminate(), Some(0));
    assert_eq!(set.terminate(), Some(0));
}
