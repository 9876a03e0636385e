//! `quorate doctor URI` against servers on real sockets that show every kind of trouble.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use bson::raw::RawDocumentBuf;
use bson::{RawArrayBuf, rawdoc};
use quorate_protocol::ServerAddress;
use quorate_test_support::{FakeServer, primary_hello, standalone_hello};

use crate::support::{Run, quorate};

/// Several scripted servers.
pub(crate) struct Fakes(pub(crate) Vec<FakeServer>);

impl Fakes {
    pub(crate) async fn start(count: usize) -> Self {
        let mut servers = Vec::new();
        for _ in 0..count {
            servers.push(FakeServer::start().await.unwrap());
        }
        servers.sort_by(|a, b| a.address().cmp(b.address()));
        Self(servers)
    }

    pub(crate) fn address(&self, which: usize) -> ServerAddress {
        self.0[which].address().clone()
    }

    pub(crate) fn addresses(&self) -> Vec<ServerAddress> {
        self.0.iter().map(|server| server.address().clone()).collect()
    }

    /// Makes them a set whose first member leads.
    pub(crate) fn form_set(&self, name: &str) {
        let all = self.addresses();
        self.0[0].set_hello(primary_hello(name, &all[0], &all, 1));
        for (server, me) in self.0.iter().zip(&all).skip(1) {
            server.set_hello(secondary_hello(name, me, &all, Some(&all[0])));
        }
    }

    /// Compares with a snapshot, ports replaced by letters and times by one.
    pub(crate) fn snapshot(&self, run: &Run, name: &str) {
        let texts: Vec<(String, String)> = self
            .0
            .iter()
            .zip(["A", "B", "C", "D"])
            .map(|(server, letter)| {
                (server.address().port().unwrap().to_string(), letter.to_owned())
            })
            .collect();
        let replace: Vec<_> = texts.iter().map(|(from, to)| (from.as_str(), to.as_str())).collect();
        run.snapshot_with(name, &replace);
    }
}

pub(crate) fn secondary_hello(
    name: &str,
    me: &ServerAddress,
    members: &[ServerAddress],
    primary: Option<&ServerAddress>,
) -> RawDocumentBuf {
    let hosts = RawArrayBuf::from_iter(members.iter().map(ServerAddress::as_str));
    let mut hello = rawdoc! {
        "ismaster": false, "isWritablePrimary": false, "secondary": true, "setName": name,
        "setVersion": 1, "hosts": hosts, "me": me.as_str(), "minWireVersion": 0,
        "maxWireVersion": 21, "logicalSessionTimeoutMinutes": 30,
    };
    if let Some(primary) = primary {
        hello.append(bson::raw::cstr!("primary"), primary.as_str());
    }
    hello
}

/// The codes of the findings, and everything said.
pub(crate) fn findings(uri: &str) -> (Vec<String>, String, i32) {
    let run = quorate(&["doctor", "--json", uri]);
    let events = run.events();
    for event in &events {
        assert!(event["t_ns"].is_u64() && event["event"].is_string(), "{event}");
    }
    assert_eq!(events.first().unwrap()["event"], "verdict", "the verdict comes first");
    for field in ["works", "why", "first"] {
        assert!(events[0][field].is_string(), "{}", events[0]);
    }
    let told: Vec<_> = events.iter().filter(|event| event["event"] == "finding").collect();
    for finding in &told {
        assert!(!finding["why"].as_str().unwrap().is_empty(), "{finding}");
        assert!(!finding["fixes"].as_array().unwrap().is_empty(), "{finding}");
    }
    let codes = told.iter().map(|event| event["code"].as_str().unwrap().to_owned()).collect();
    (codes, told.iter().map(|event| event.to_string()).collect(), run.code())
}

/// An address on which nothing listens.
pub(crate) fn closed_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// Answers every connection with these bytes and closes it. Ends with the test's process.
pub(crate) fn blunt_server(answer: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut stream = stream;
            let mut asked = [0; 1024];
            let read = stream.read(&mut asked).unwrap_or(0);
            if read > 0 {
                let _ = stream.write_all(answer);
            }
        }
    });
    address
}

/// Speaks TLS only, in front of a scripted server, with a certificate that no authority vouches for.
async fn tls_front(behind: ServerAddress) -> SocketAddr {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    tls_front_with(behind, made.cert.der().clone(), made.signing_key.serialize_der()).await
}

/// The same with this certificate and its key.
pub(crate) async fn tls_front_with(
    behind: ServerAddress,
    certificate: tokio_rustls::rustls::pki_types::CertificateDer<'static>,
    key: Vec<u8>,
) -> SocketAddr {
    use tokio_rustls::rustls::ServerConfig;
    use tokio_rustls::rustls::crypto::ring;
    let key = tokio_rustls::rustls::pki_types::PrivateKeyDer::try_from(key).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, behind) = (acceptor.clone(), behind.clone());
            tokio::spawn(async move {
                let Ok(mut stream) = acceptor.accept(stream).await else { return };
                let mut inner = tokio::net::TcpStream::connect(behind.as_str()).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut stream, &mut inner).await;
            });
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_healthy_set_has_nothing_wrong() {
    let set = Fakes::start(3).await;
    set.form_set("rs0");
    let uri = format!("mongodb://{}/?replicaSet=rs0", set.address(0));
    let run = quorate(&["doctor", &uri]);
    assert_eq!((run.code(), run.stderr().as_str()), (0, ""), "{}", run.stdout());
    set.snapshot(&run, "doctor-healthy");
    assert_eq!(findings(&uri).0, Vec::<String>::new());
}

/// A refused login is no network problem, and its password is not shown.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn logins_that_are_refused() {
    let set = Fakes::start(1).await;
    let no = rawdoc! {
        "ok": 0.0, "code": 18, "codeName": "AuthenticationFailed",
        "errmsg": "Authentication failed.",
    };
    set.0[0].set_reply("saslStart", no);
    let uri = format!("mongodb://ada:s3cret@{}/?authMechanism=SCRAM-SHA-256", set.address(0));
    let (codes, said, code) = findings(&uri);
    assert_eq!((codes, code), (vec!["authentication_failed".to_owned()], 1), "{said}");
    assert!(said.contains("for user ada (SCRAM-SHA-256, database admin)"), "{said}");
    assert!(!said.contains("authSource=admin"), "it is admin already: {said}");
    let (_, said, _) = findings(&uri.replace("/?", "/shop?"));
    assert!(said.contains("authSource=admin"), "{said}");
    let run = quorate(&["doctor", &uri]);
    assert!(!run.stdout().contains("s3cret") && run.stdout().contains("ada:***@"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn what_a_server_says_behind_hello() {
    let set = Fakes::start(1).await;
    let uri = set.0[0].uri();
    let no = rawdoc! { "ok": 0.0, "code": 13, "errmsg": "Command requires authentication" };
    set.0[0].set_reply("serverStatus", no);
    let (codes, said, code) = findings(&uri);
    assert_eq!((codes, code), (vec!["login_needed".to_owned()], 1), "{said}");
    let status =
        rawdoc! { "connections": { "current": 950, "available": 50, "totalCreated": 9_i64 } };
    set.0[0].set_reply("serverStatus", status);
    let (codes, said, code) = findings(&format!("{uri}?maxPoolSize=20"));
    assert_eq!((codes, code), (vec!["connections_scarce".to_owned()], 0), "{said}");
    assert!(said.contains("may open 22 (2 monitors + 20 pooled): 2 more of them fit"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn what_waits_inside_a_server() {
    let set = Fakes::start(1).await;
    let uri = set.0[0].uri();
    let status = |micros: i64, left: i64| {
        rawdoc! {
            "transactions": { "waitingWrites": 3_i64, "oldestOpenMicros": micros },
            "changeStreams": { "open": 2_i64, "mostSecondsBehind": 2460_i64, "leastSecondsLeft": left },
            "flowControl": { "isLagged": left < 1000, "targetRateLimit": 100_i64 },
        }
    };
    set.0[0].set_reply("serverStatus", status(4_000_000, 5400));
    let (codes, said, code) = findings(&uri);
    assert_eq!((codes, code), (vec![], 0), "{said}");
    set.0[0].set_reply("serverStatus", status(41_000_000, 600));
    let (codes, said, code) = findings(&uri);
    let expected = ["transaction_holds_others_up", "flow_control", "change_stream_falls_behind"];
    assert_eq!((codes, code), (expected.map(str::to_owned).to_vec(), 0), "{said}");
    assert!(
        said.contains("3 writes wait for transactions, the oldest of which is open for 41 s"),
        "{said}"
    );
    assert!(said.contains("slows its writers to 100 writes a second"), "{said}");
    assert!(said.contains("2460 s behind, and the oplog reaches back 600 s before it"), "{said}");
}

/// The set advertises names that mean nothing here.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn advertised_names_that_do_not_resolve() {
    let set = Fakes::start(1).await;
    let advertised: ServerAddress = "508be0425c52.invalid:27017".parse().unwrap();
    let hello = primary_hello("rs0", &advertised, std::slice::from_ref(&advertised), 1);
    set.0[0].set_hello(hello);
    let uri = format!("mongodb://{}/?replicaSet=rs0", set.address(0));
    let (codes, said, code) = findings(&uri);
    assert_eq!((codes, code), (vec!["advertised_name_not_found".to_owned()], 1));
    assert!(
        said.contains(
            "answered (rs0, RSPrimary), but the set advertises 508be0425c52.invalid:27017"
        ),
        "{said}"
    );
    assert!(said.contains("echo '127.0.0.1 508be0425c52.invalid'"), "{said}");
    set.snapshot(&quorate(&["doctor", &uri]), "doctor-advertised-name");
}

/// On Linux, 0.0.0.0 leads to this machine without being a loopback address.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn loopback_advertised_while_another_address_was_dialled() {
    let set = Fakes::start(1).await;
    set.form_set("rs0");
    let port = set.address(0).port().unwrap();
    let (codes, said, code) = findings(&format!("mongodb://0.0.0.0:{port}/?replicaSet=rs0"));
    assert_eq!(code, 1);
    assert_eq!(codes, ["loopback_advertised", "seed_called_otherwise"], "{said}");
    assert!(
        said.contains(&format!(
            "you dialled 0.0.0.0:{port}; the set advertises 127.0.0.1:{port}, which is this machine"
        )),
        "{said}"
    );
}

/// IPv6, as far as this machine knows IPv6.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn every_address_of_localhost_is_tried() {
    let set = Fakes::start(1).await;
    let port = set.address(0).port().unwrap();
    let run = quorate(&["doctor", "--json", &format!("mongodb://localhost:{port}")]);
    assert_eq!(run.code(), 0, "{}", run.stdout());
    let events = run.events();
    let tcp: Vec<_> = events.iter().filter(|event| event["stage"] == "tcp").collect();
    assert!(tcp.iter().any(|stage| stage["ok"] == true), "{tcp:?}");
    if tcp.len() > 1 {
        let finding = events.iter().find(|event| event["code"] == "some_addresses_closed").unwrap();
        let seen = finding["seen"].as_str().unwrap();
        assert!(seen.contains("::1 (refused)") && seen.contains("127.0.0.1 (open)"), "{seen}");
    }
}

#[test]
fn nothing_listens() {
    let address = closed_port();
    let (codes, said, code) = findings(&format!("mongodb://{address}"));
    assert_eq!((codes, code), (vec!["refused".to_owned()], 1), "{said}");
    assert!(said.contains("127.0.0.1 (refused)"), "{said}");
}

/// A client takes a load balancer on trust; a doctor does not.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn load_balancers_are_asked_too() {
    let set = Fakes::start(1).await;
    let (codes, said, code) = findings(&format!("{}?loadBalanced=true", set.0[0].uri()));
    assert_eq!((codes, code), (vec![], 0), "{said}");
    let (codes, said, code) = findings(&format!("mongodb://{}/?loadBalanced=true", closed_port()));
    assert_eq!((codes, code), (vec!["refused".to_owned()], 1), "{said}");
}

#[test]
fn a_socket_path_that_is_not_there() {
    let (codes, said, code) = findings("mongodb://%2Fnowhere%2Fmongodb-27017.sock");
    assert_eq!((codes, code), (vec!["connect_failed".to_owned()], 1), "{said}");
    assert!(said.contains("/nowhere/mongodb-27017.sock: No such file"), "{said}");
}

/// Plain is closed, TLS is answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_server_that_takes_tls_only() {
    let set = Fakes::start(1).await;
    let front = tls_front(set.address(0)).await;
    let (codes, said, code) = findings(&format!("mongodb://{front}"));
    assert_eq!((codes, code), (vec!["tls_required".to_owned()], 1), "{said}");
    assert!(said.contains("TCP ✓, plain hello ✗") && said.contains("TLS hello ✓"), "{said}");
    assert!(said.contains("add tls=true"), "{said}");
    // The other way round it works, as far as the certificate goes.
    let (codes, said, _) = findings(&format!("mongodb://{front}/?tls=true"));
    assert_eq!(codes, ["certificate_issuer"], "{said}");
    let (codes, said, code) = findings(&format!("mongodb://{front}/?tls=true&tlsInsecure=true"));
    assert_eq!((codes, code), (vec![], 0), "{said}");
}

/// TLS is closed, plain is answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn tls_against_a_plain_server() {
    let set = Fakes::start(1).await;
    let (codes, said, code) =
        findings(&format!("mongodb://{}/?tls=true&connectTimeoutMS=500", set.address(0)));
    assert_eq!((codes, code), (vec!["tls_against_plain".to_owned()], 1), "{said}");
}

#[test]
fn something_else_listens() {
    let address = blunt_server(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    let (codes, said, code) = findings(&format!("mongodb://{address}"));
    assert_eq!((codes, code), (vec!["no_mongodb".to_owned()], 1), "{said}");
    let address = blunt_server(b"");
    let (codes, said, _) = findings(&format!("mongodb://{address}"));
    assert_eq!(codes, ["hello_unanswered"], "{said}");
}

/// The URI and the members name different sets.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn set_names_that_differ() {
    let set = Fakes::start(1).await;
    set.form_set("rs0");
    let uri = format!("mongodb://{}/?replicaSet=rs_dev", set.address(0));
    let (codes, said, code) = findings(&uri);
    assert_eq!((codes, code), (vec!["wrong_set_name".to_owned()], 1), "{said}");
    assert!(said.contains("the URI says rs_dev") && said.contains("says rs0"), "{said}");
    set.snapshot(&quorate(&["doctor", &uri]), "doctor-wrong-set-name");
    set.0[0].set_hello(standalone_hello());
    assert_eq!(findings(&uri).0, ["no_set"]);
}

/// Started with --replSet, never initiated.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_set_that_was_never_initiated() {
    let set = Fakes::start(2).await;
    for server in &set.0 {
        server.set_hello(rawdoc! {
            "ismaster": false, "isreplicaset": true, "minWireVersion": 0, "maxWireVersion": 21,
            "info": "Does not have a valid replica set config",
        });
    }
    let (a, b) = (set.address(0), set.address(1));
    let (codes, said, code) = findings(&format!("mongodb://{a},{b}/?replicaSet=rs7"));
    assert_eq!((codes, code), (vec!["never_initiated".to_owned()], 1), "{said}");
    let line = format!(
        "rs.initiate({{_id: \\\"rs7\\\", members: [{{_id: 0, host: \\\"{a}\\\"}}, {{_id: 1, host: \\\"{b}\\\"}}]}})"
    );
    assert!(said.contains(&line), "{said}");
    // The command names the server that was examined: it must not act on what listens on 27017.
    let whom = format!("mongosh 'mongodb://{a}/?directConnection=true' --eval");
    assert!(said.contains(&whom), "{said}");
}

/// A direct connection sees one member only.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn direct_connections() {
    let set = Fakes::start(2).await;
    set.form_set("rs0");
    let (a, b) = (set.address(0), set.address(1));
    let (codes, said, code) = findings(&format!("mongodb://{b}/?directConnection=true"));
    assert_eq!((codes, code), (vec!["direct_to_other".to_owned()], 1), "{said}");
    let words = format!("{b} is RSSecondary, so writes fail; the primary is {a}");
    assert!(said.contains(&words), "{said}");
    assert!(said.contains(&format!("mongodb://{a},{b}/?replicaSet=rs0")), "{said}");
    // Every command that judges a deployment says the same of it.
    let direct = format!("mongodb://{b}/?directConnection=true");
    let verdict = quorate(&["doctor", "--json", &direct]).events().remove(0);
    assert_eq!((&verdict["reads"], &verdict["writes"]), (&true.into(), &false.into()), "{verdict}");
    assert_eq!(verdict["works"], "reads work, writes do not");
    let status = quorate(&["status", "--json", &direct]).events().remove(0);
    assert_eq!(status["writes"], false, "{status}");
    let refusal = rawdoc! { "ok": 0, "code": 10107, "errmsg": "not primary" };
    set.0[1].set_reply("insert", refusal);
    let written = quorate(&["run", &direct, "{insert: 'c', documents: [{}]}"]);
    assert_eq!(written.code(), 1);
    assert!(
        written.stderr().contains("write to the primary: name the set"),
        "{}",
        written.stderr()
    );
    let (codes, _, code) = findings(&format!("mongodb://{a}/?directConnection=true"));
    assert_eq!((codes, code), (vec!["direct_to_primary".to_owned()], 0));
}

/// Votes.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_minority_elects_no_member() {
    let set = Fakes::start(1).await;
    let (b, c) = (closed_port().to_string(), closed_port().to_string());
    let members = vec![set.address(0), b.parse().unwrap(), c.parse().unwrap()];
    set.0[0].set_hello(secondary_hello("rs0", &set.address(0), &members, None));
    let (codes, said, code) = findings(&format!("mongodb://{}/?replicaSet=rs0", set.address(0)));
    assert_eq!(code, 1);
    assert_eq!(codes, ["refused", "no_majority"], "{said}");
    assert!(said.contains("votes visible 1 of 3, need 2"), "{said}");
    assert!(said.contains(", and advertises "), "who told of them: {said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_majority_without_a_primary() {
    let set = Fakes::start(3).await;
    let all = set.addresses();
    for (server, me) in set.0.iter().zip(&all) {
        server.set_hello(secondary_hello("rs0", me, &all, None));
    }
    let (codes, said, code) = findings(&format!("mongodb://{}/?replicaSet=rs0", all[0]));
    assert_eq!((codes, code), (vec!["no_primary_elected".to_owned()], 1), "{said}");
}

/// Primary, secondary, arbiter.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn arbiters_are_traps() {
    let set = Fakes::start(3).await;
    let all = set.addresses();
    let with_arbiter = |mut hello: RawDocumentBuf| {
        let arbiters = RawArrayBuf::from_iter([all[2].as_str()]);
        hello.append(bson::raw::cstr!("arbiters"), arbiters);
        hello
    };
    let data = &all[..2];
    set.0[0].set_hello(with_arbiter(primary_hello("rs0", &all[0], data, 1)));
    set.0[1].set_hello(with_arbiter(secondary_hello("rs0", &all[1], data, Some(&all[0]))));
    set.0[2].set_hello(with_arbiter(rawdoc! {
        "ismaster": false, "arbiterOnly": true, "setName": "rs0", "setVersion": 1,
        "hosts": RawArrayBuf::from_iter(data.iter().map(ServerAddress::as_str)),
        "me": all[2].as_str(), "minWireVersion": 0, "maxWireVersion": 21,
    }));
    let uri = format!("mongodb://{}/?replicaSet=rs0", all[0]);
    let (codes, said, code) = findings(&uri);
    assert_eq!((codes, code), (vec!["arbiter_trap".to_owned()], 0), "{said}");
    set.snapshot(&quorate(&["doctor", &uri]), "doctor-arbiter-trap");
    // The secondary is gone: the primary stays, and commits nothing.
    let mut set = set;
    set.0.remove(1).stop();
    let (codes, said, code) = findings(&uri);
    assert_eq!((codes, code), (vec!["refused".to_owned(), "majority_without_data".to_owned()], 1));
    assert!(said.contains("majority needs 2 data members, 1 answers here"), "{said}");
    // Whether writes work depends on what they wait for.
    let writes = |uri: &str| {
        let verdict = quorate(&["doctor", "--json", uri]).events().remove(0);
        verdict["writes"].as_bool().unwrap()
    };
    assert!(writes(&uri) && !writes(&format!("{uri}&w=majority")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn read_preferences_that_nothing_satisfies() {
    let set = Fakes::start(3).await;
    set.form_set("rs0");
    let uri = format!("mongodb://{}/?replicaSet=rs0", set.address(0));
    let tags = format!("{uri}&readPreference=secondary&readPreferenceTags=dc:tokyo");
    let (codes, said, code) = findings(&tags);
    assert_eq!((codes, code), (vec!["read_preference_unsatisfied".to_owned()], 1), "{said}");
    assert!(said.contains("tokyo") && said.contains("correct the tags"), "{said}");
    assert_eq!(findings(&format!("{uri}&readPreference=secondary")).0, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn servers_too_old_for_any_driver() {
    let set = Fakes::start(1).await;
    set.0[0].set_hello(rawdoc! { "ismaster": true, "minWireVersion": 0, "maxWireVersion": 2 });
    let (codes, said, code) = findings(&set.0[0].uri());
    assert_eq!((codes, code), (vec!["wire_version".to_owned()], 1), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn clocks_and_lag() {
    let set = Fakes::start(3).await;
    set.form_set("rs0");
    let all = set.addresses();
    let wrote = |mut hello: RawDocumentBuf, millis: i64| {
        let last_write = rawdoc! { "lastWriteDate": bson::DateTime::from_millis(millis) };
        hello.append(bson::raw::cstr!("lastWrite"), last_write);
        hello.append(bson::raw::cstr!("localTime"), bson::DateTime::from_millis(millis));
        hello
    };
    set.0[0].set_hello(wrote(primary_hello("rs0", &all[0], &all, 1), 1_000_000_000_000));
    let late = wrote(secondary_hello("rs0", &all[1], &all, Some(&all[0])), 999_999_958_000);
    set.0[1].set_hello(late);
    let (codes, said, code) = findings(&format!("mongodb://{}/?replicaSet=rs0", all[0]));
    assert_eq!((codes, code), (["lag", "clock_skew"].map(str::to_owned).to_vec(), 0));
    assert!(said.contains(&format!("{} is 42 s behind the primary", all[1])), "{said}");
    assert!(said.contains("s behind this machine's"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn warnings_of_the_connection_string_are_told() {
    let set = Fakes::start(1).await;
    let (codes, said, code) = findings(&format!("{}?replicaSe=rs0", set.0[0].uri()));
    assert_eq!((codes, code), (vec!["connection_string".to_owned()], 0), "{said}");
    assert!(said.contains("replicaSe"), "{said}");
}

#[test]
fn what_is_no_connection_string_is_told_where() {
    let run = quorate(&["doctor", "mongodb://a@b@c/?x"]);
    assert_eq!(run.code(), 1);
    run.snapshot("doctor-bad-uri");
    quorate(&["doctor", "mongodb://a,b/?directConnection=true"]).snapshot("doctor-contradiction");
    // Names under .invalid never resolve, whatever the resolver is like.
    let (codes, said, code) = findings("mongodb+srv://db.example.invalid/");
    assert_eq!((codes, code), (vec!["srv_lookup_failed".to_owned()], 1), "{said}");
    let run = quorate(&["doctor"]);
    assert_eq!(run.code(), 2);
    run.snapshot("misuse-doctor");
}
