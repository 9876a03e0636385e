//! What monitors and load balancers ask, and what a watcher says of logins and locks.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quorate_test_support::Authority;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::down::RunDirectory;
use crate::http::{Reply, request};
use crate::live::{Living, ready_set};
use crate::support::quorate;

const PATIENCE: Duration = Duration::from_secs(90);

fn until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "never saw that {what}");
        std::thread::yield_now();
    }
}

fn exporter(uri: &str, more: &[&str]) -> (Living, String) {
    let mut watch =
        Living::start(&[&["watch", "--json", "--metrics", "127.0.0.1:0"], more, &[uri]].concat());
    let told = watch.wait_for("metrics", |_| true);
    let url = told["url"].as_str().unwrap();
    let (_, address) = url.split_once("://").unwrap();
    (watch, address.trim_end_matches("/metrics").to_owned())
}

fn get(address: &str, path: &str, token: Option<&str>) -> Reply {
    let bearer = token.map(|token| format!("Bearer {token}"));
    let mut headers = vec![("host", address)];
    if let Some(bearer) = &bearer {
        headers.push(("authorization", bearer));
    }
    request(address, "GET", path, &headers, "")
}

#[test]
fn monitors_and_load_balancers_are_answered() {
    let run = RunDirectory::new();
    let mut set = run.start(&["up", "--port", "0", "--json", "--election-timeout", "2s"]);
    let (members, uri) = ready_set(&mut set, 3);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    std::fs::write(&file, "0123456789abcdef0123456789\n").unwrap();
    let token = Some("0123456789abcdef0123456789");
    let (watch, address) = exporter(&uri, &["--metrics-token", file.to_str().unwrap()]);
    assert_eq!(get(&address, "/metrics", None).status, 401);
    assert_eq!(get(&address, "/metrics", Some("wrong")).status, 401);
    until("the set is healthy", || get(&address, "/healthz", token).status == 200);
    let primary = get(&address, "/primary", token);
    assert_eq!(primary.status, 200);
    let leader = primary.body.trim().to_owned();
    let other = &members.iter().find(|(host, _)| *host != leader).unwrap().0;
    let asked =
        |role: &str, member: &str| get(&address, &format!("/{role}?member={member}"), token).status;
    assert_eq!((asked("primary", &leader), asked("primary", other)), (200, 503));
    assert_eq!((asked("secondary", other), asked("secondary", &leader)), (200, 503));
    until("votes and states are told", || {
        let text = get(&address, "/metrics", token).body;
        ["quorate_member_votes", "quorate_member_priority", "quorate_member_is_arbiter"]
            .iter()
            .all(|name| text.lines().any(|line| line.starts_with(&format!("{name}{{"))))
    });
    // Two members less: no primary, and the endpoint still answers, rightly.
    for (host, _) in members.iter().filter(|(host, _)| host != other) {
        assert_eq!(run.quorate(&["stop", host]).code(), 0);
    }
    // The last member may lead for a moment, until it misses its majority.
    until("there is no primary", || {
        let text = get(&address, "/metrics", token).body;
        get(&address, "/healthz", token).status == 503
            && get(&address, "/primary", token).status == 503
            && text.contains("quorate_set_has_primary{set=\"rs0\"} 0")
    });
    assert_eq!(watch.terminate(), Some(0));
    assert_eq!(set.terminate(), Some(0));
}

#[test]
fn metrics_beyond_this_machine_take_a_token() {
    let run = quorate(&["watch", "--metrics", "0.0.0.0:0", "mongodb://127.0.0.1:1/"]);
    assert_eq!(run.code(), 2, "{}", run.stderr());
    assert!(run.stderr().contains("--metrics-token"), "{}", run.stderr());
}

/// What the endpoint answers over TLS to a client with this certificate, or why it does not.
fn ask_with_tls(address: &str, ca: &Path, own: Option<&Path>) -> Result<String, std::io::Error> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(ca).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match own {
        None => builder.with_no_client_auth(),
        Some(own) => {
            let certificate = CertificateDer::from_pem_file(own).unwrap();
            let key = PrivateKeyDer::from_pem_file(own).unwrap();
            builder.with_client_auth_cert(vec![certificate], key).unwrap()
        }
    };
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let mut stream = StreamOwned::new(connection, socket);
    write!(stream, "GET /metrics HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n")?;
    let mut told = String::new();
    stream.read_to_string(&mut told)?;
    Ok(told)
}

/// A certificate of the named authorities is as good as a token, and nothing else is.
#[test]
fn metrics_are_told_to_certificates_of_the_named_authorities_alone() {
    let mut served = Living::start(&["serve", "--memory", "--port", "0", "--json"]);
    let uri = served.event()["uri"].as_str().unwrap().to_owned();
    let (ours, theirs) = (Authority::new(), Authority::new());
    let certificate = ours.issue("metrics", "quorate");
    let (certificate, ca) = (certificate.to_str().unwrap(), ours.ca());
    let files = ["--metrics-cert", certificate, "--metrics-key", certificate];
    let proof = ["--metrics-ca", ca.to_str().unwrap()];
    let (watch, address) = exporter(&uri, &[&files[..], &proof].concat());

    let known = ours.issue("prometheus", "quorate");
    let told = ask_with_tls(&address, &ca, Some(&known)).unwrap();
    assert!(told.starts_with("HTTP/1.1 200"), "{told}");
    assert!(told.contains("quorate_member_up"), "{told}");
    for stranger in [None, Some(theirs.issue("prometheus", "quorate"))] {
        let told = ask_with_tls(&address, &ca, stranger.as_deref());
        assert!(told.is_err(), "{told:?}");
    }
    assert!(ask_with_tls(&address, &theirs.ca(), Some(&known)).is_err(), "a client checks as well");
    assert_eq!(watch.terminate(), Some(0));

    // With it, other machines may ask; without anything to prove they may not, TLS or not.
    let beyond = ["watch", "--json", "--metrics", "0.0.0.0:0"];
    let mut watch = Living::start(&[&beyond[..], &files, &proof, &[&uri]].concat());
    watch.wait_for("metrics", |_| true);
    assert_eq!(watch.terminate(), Some(0));
    let open = quorate(&[&beyond[..], &files, &[&uri]].concat());
    assert_eq!(open.code(), 2, "{}", open.stderr());
    assert!(open.stderr().contains("--metrics-ca"), "{}", open.stderr());
    assert_eq!(served.terminate(), Some(0));
}

/// Watching needs no login, so that a wrong one would go unnoticed.
#[test]
fn a_watcher_with_a_wrong_password_is_told_so() {
    let mut served = Living::start(&["serve", "--memory", "--port", "0", "--auth", "--json"]);
    let uri = served.event()["uri"].as_str().unwrap().to_owned();
    let create = "{createUser: 'ada', pwd: 'right', roles: ['root']}";
    assert_eq!(quorate(&["run", &uri, create]).code(), 0);
    let host = uri.trim_start_matches("mongodb://");
    let mut watch = Living::start(&["watch", "--json", &format!("mongodb://ada:wrong@{host}")]);
    let refused = watch.wait_for("login_refused", |_| true);
    assert!(refused["reason"].as_str().unwrap().contains("ada"), "{refused}");
    assert_eq!(watch.terminate(), Some(0));
    assert_eq!(served.terminate(), Some(0));
}

/// Several deployments in one process: each is told with its trouble, and again when it changes.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_fleet_is_watched_by_one_process() {
    let fine = quorate_test_support::FakeServer::start().await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("fleet.txt");
    let closed = crate::doctor_uri::closed_port();
    let text = format!("shop {}\n# gone\nstore mongodb://{closed}/\n", fine.uri());
    std::fs::write(&file, text).unwrap();
    let mut watch = Living::start(&["watch", "--json", "--fleet", file.to_str().unwrap()]);
    let told = |watch: &mut Living, name: &str, trouble: &str| {
        watch.wait_for("deployment", |event| event["name"] == name && event["trouble"] == trouble)
    };
    let (mut shop, mut store) = (false, false);
    while !(shop && store) {
        let event = watch.wait_for("deployment", |_| true);
        shop |= event["name"] == "shop" && event["trouble"] == "fine";
        store |= event["name"] == "store" && event["trouble"] == "silent";
    }
    fine.stop();
    let gone = told(&mut watch, "shop", "silent");
    assert!(gone["reason"].is_string() && gone["time"].is_string(), "{gone}");
    assert_eq!(watch.terminate(), Some(0));
}

/// Every query of the dashboard and of the alert rules asks for a name that the endpoint has.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_dashboard_and_the_rules_ask_for_what_there_is() {
    let server = quorate_test_support::FakeServer::start().await.unwrap();
    let (watch, address) = exporter(&server.uri(), &[]);
    let text = get(&address, "/metrics", None).body;
    let read = |name: &str| {
        let path = crate::support::folder("../../monitoring").join(name);
        std::fs::read_to_string(path).unwrap()
    };
    let names = regex_lite::Regex::new("quorate_[a-z_]+").unwrap();
    let mut asked = 0;
    for file in ["grafana-dashboard.json", "alerts.yaml"] {
        for name in names.find_iter(&read(file)) {
            let described = format!("# TYPE {} ", name.as_str());
            assert!(text.contains(&described), "{file} asks for {}", name.as_str());
            asked += 1;
        }
    }
    assert!(asked > 15, "{asked}");
    let dashboard: serde_json::Value =
        serde_json::from_str(&read("grafana-dashboard.json")).expect("JSON");
    assert!(dashboard["panels"].as_array().unwrap().len() > 8);
    assert_eq!(watch.terminate(), Some(0));
}
