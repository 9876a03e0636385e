//! Situations of docs/doctor.md#situations that the doctor got wrong before: each is provoked, against real
//! processes, namespaces and certificates where they can show it, against scripted servers otherwise.

use std::process::Command;

use bson::raw::RawDocumentBuf;
use bson::{RawArrayBuf, rawdoc};
use quorate_protocol::ServerAddress;
use quorate_test_support::{Authority, primary_hello};

use crate::doctor_uri::{
    Fakes, blunt_server, closed_port, findings, secondary_hello, tls_front_with,
};
use crate::live::Living;
use crate::real_faults::{Set, until};
use crate::support::{folder, quorate, quorate_with_input};

/// The reply to `replSetGetStatus` of a set in these states.
fn status(members: &[(&ServerAddress, i32, bool)]) -> RawDocumentBuf {
    let mut list = RawArrayBuf::new();
    for (member, state, up) in members {
        list.push(rawdoc! {
            "name": member.as_str(), "state": *state, "health": i32::from(*up),
        });
    }
    rawdoc! { "set": "rs0", "myState": 2, "term": 3_i64, "members": list }
}

/// The reply to `replSetGetConfig` with these priorities.
fn config(members: &[(&ServerAddress, f64)]) -> RawDocumentBuf {
    let mut list = RawArrayBuf::new();
    for (number, (member, priority)) in (0_i32..).zip(members) {
        list.push(rawdoc! { "_id": number, "host": member.as_str(), "priority": *priority });
    }
    rawdoc! { "config": { "_id": "rs0", "version": 1, "members": list, "settings": {
        "getLastErrorModes": { "twoSites": { "site": 2 } },
    } } }
}

/// The verdict as JSON tells it.
fn verdict(uri: &str) -> serde_json::Value {
    quorate(&["doctor", "--json", uri]).events().remove(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn two_unrelated_sets_of_one_name() {
    let (first, second) = (Fakes::start(1).await, Fakes::start(1).await);
    first.form_set("rs0");
    second.form_set("rs0");
    let (a, b) = (first.address(0), second.address(0));
    let uri = format!("mongodb://{a},{b}/?replicaSet=rs0");
    let (codes, said, code) = findings(&uri);
    assert_eq!((codes, code), (vec!["two_sets".to_owned()], 1), "{said}");
    assert!(said.contains("two different sets that are both called rs0"), "{said}");
    let people = quorate(&["doctor", &uri]).stdout();
    assert!(!people.contains("its set calls it"), "{people}");
    assert!(people.contains("does not list it"), "{people}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn more_acknowledgements_than_members() {
    let set = Fakes::start(3).await;
    set.form_set("rs0");
    let uri = format!("mongodb://{}/?replicaSet=rs0", set.address(0));
    let (codes, said, code) = findings(&format!("{uri}&w=5"));
    assert_eq!((codes, code), (vec!["write_concern_too_high".to_owned()], 1), "{said}");
    assert!(said.contains("w=5 is wanted, and 3 members hold data"), "{said}");
    assert_eq!(findings(&format!("{uri}&w=3")).0, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_rule_for_w_that_no_configuration_has() {
    let set = Fakes::start(1).await;
    set.form_set("rs0");
    let a = set.address(0);
    set.0[0].set_reply("replSetGetConfig", config(&[(&a, 1.0)]));
    let uri = format!("mongodb://{a}/?replicaSet=rs0");
    let (codes, said, code) = findings(&format!("{uri}&w=threeSites"));
    assert_eq!((codes, code), (vec!["write_concern_unknown".to_owned()], 1), "{said}");
    assert!(said.contains("it has twoSites"), "{said}");
    assert_eq!(findings(&format!("{uri}&w=twoSites")).0, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn only_members_that_recover() {
    let set = Fakes::start(2).await;
    let all = set.addresses();
    for (server, me) in set.0.iter().zip(&all) {
        server.set_hello(rawdoc! {
            "ismaster": false, "secondary": false, "setName": "rs0", "setVersion": 1,
            "hosts": RawArrayBuf::from_iter(all.iter().map(ServerAddress::as_str)),
            "me": me.as_str(), "minWireVersion": 0, "maxWireVersion": 21,
        });
        server.set_reply("replSetGetStatus", status(&[(&all[0], 3, true), (&all[1], 3, true)]));
    }
    let (codes, said, code) = findings(&format!("mongodb://{}/?replicaSet=rs0", all[0]));
    assert_eq!(code, 1, "{said}");
    assert!(codes.contains(&"nobody_serves".to_owned()), "{codes:?} {said}");
    assert!(codes.contains(&"recovering".to_owned()), "{codes:?} {said}");
    assert!(codes.contains(&"nobody_electable".to_owned()), "{codes:?} {said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_placeholder_left_in_the_connection_string() {
    let set = Fakes::start(1).await;
    let uri = format!("mongodb://ada:%3Cpassword%3E@{}/", set.address(0));
    let (codes, said, code) = findings(&uri);
    assert_eq!(code, 1, "{said}");
    assert_eq!(codes.first().map(String::as_str), Some("placeholder"), "{codes:?}");
}

/// A certificate of an authority that the connection string names: only the certificate is at fault.
async fn certified(
    change: impl FnOnce(&mut rcgen::CertificateParams),
) -> (Fakes, Authority, std::net::SocketAddr) {
    let authority = Authority::new();
    let (certificate, key) = authority.issue_with(change);
    let set = Fakes::start(1).await;
    let front = tls_front_with(set.address(0), certificate.into(), key).await;
    (set, authority, front)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_certificate_that_has_expired() {
    let (_set, authority, front) = certified(|params| {
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(2021, 1, 1);
    })
    .await;
    let ca = authority.ca();
    let uri = format!("mongodb://{front}/?tls=true&tlsCAFile={}", ca.display());
    let (codes, said, code) = findings(&uri);
    assert_eq!((codes, code), (vec!["certificate_expired".to_owned()], 1), "{said}");
    assert!(!said.contains("add tlsCAFile"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_certificate_for_another_name() {
    let (_set, authority, front) = certified(|params| {
        params.subject_alt_names =
            vec![rcgen::SanType::DnsName("db.example.com".try_into().unwrap())];
    })
    .await;
    let ca = authority.ca();
    let uri = format!("mongodb://{front}/?tls=true&tlsCAFile={}", ca.display());
    let (codes, said, code) = findings(&uri);
    assert_eq!((codes, code), (vec!["certificate_name".to_owned()], 1), "{said}");
    assert!(said.contains("not for the name 127.0.0.1"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_certificate_of_an_unknown_authority() {
    let (_set, _authority, front) = certified(|_| {}).await;
    let (codes, said, code) = findings(&format!("mongodb://{front}/?tls=true"));
    assert_eq!((codes, code), (vec!["certificate_issuer".to_owned()], 1), "{said}");
    assert!(said.contains("tlsCAFile"), "{said}");
}

/// Our own server, which refuses a first message that is none instead of waiting for its end.
#[test]
fn tls_against_a_real_plain_server() {
    let mut served = Living::start(&["serve", "--memory", "--port", "0", "--json"]);
    let host = served.event()["host"].as_str().unwrap().to_owned();
    // Longer than the test may take: a server that only stays silent fails it.
    let (codes, said, code) =
        findings(&format!("mongodb://{host}/?tls=true&connectTimeoutMS=600000"));
    assert_eq!((codes, code), (vec!["tls_against_plain".to_owned()], 1), "{said}");
    assert_eq!(served.terminate(), Some(0));
}

/// Our own server, which turns away clients without a certificate.
#[test]
fn a_client_certificate_that_is_missing() {
    let authority = Authority::new();
    let (ca, server) = (authority.ca(), authority.issue("server", "Quorate"));
    let (ca, server) = (ca.to_str().unwrap(), server.to_str().unwrap());
    let mut served = Living::start(&[
        "serve",
        "--memory",
        "--port",
        "0",
        "--json",
        "--tls-cert",
        server,
        "--tls-ca",
        ca,
        "--tls-require-client-certificate",
    ]);
    let host = served.event()["host"].as_str().unwrap().to_owned();
    let uri = format!("mongodb://{host}/?tls=true&tlsCAFile={ca}");
    let (codes, said, code) = findings(&uri);
    assert_eq!((codes, code), (vec!["client_certificate_missing".to_owned()], 1), "{said}");
    assert!(said.contains("tlsCertificateKeyFile"), "{said}");
    let client = authority.issue("client", "Quorate");
    let shown = format!("{uri}&tlsCertificateKeyFile={}", client.display());
    assert_eq!(findings(&shown).0, Vec::<String>::new());
    assert_eq!(served.terminate(), Some(0));
}

/// A network namespace without a route: the network says no at once, not the host.
#[test]
fn a_network_that_says_no() {
    let program = env!("CARGO_BIN_EXE_quorate");
    let run = Command::new("unshare")
        .args(["-rn", program, "doctor", "--json", "mongodb://10.9.1.1:27017/"])
        .output()
        .expect("unshare of util-linux");
    let said = String::from_utf8(run.stdout).unwrap();
    assert_eq!(run.status.code(), Some(1), "{said}{}", String::from_utf8_lossy(&run.stderr));
    assert!(said.contains("\"code\":\"unreachable\""), "{said}");
    assert!(!said.contains("nothing listens"), "{said}");
}

/// Both data members are gone; the arbiter alone answers.
#[test]
fn only_the_arbiter_is_left() {
    let mut set = Set::start(&["--members", "2", "--arbiters", "1"], 3);
    let data: Vec<String> = set.members[..2].iter().map(|(host, _)| host.clone()).collect();
    let arbiter = set.members[2].0.clone();
    for host in &data {
        set.kill(host);
    }
    let uri = format!("mongodb://{},{arbiter}/?replicaSet=rs0", data.join(","));
    let (codes, said, code) = findings(&uri);
    assert_eq!(code, 1, "{said}");
    assert!(codes.contains(&"no_majority".to_owned()), "{codes:?} {said}");
    assert!(said.contains("no primary"), "{said}");
    assert!(!said.contains("w=1 is acknowledged"), "{said}");
    let verdict = verdict(&uri);
    assert_eq!((&verdict["reads"], &verdict["writes"]), (&false.into(), &false.into()));
    set.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_only_electable_member_is_down() {
    let set = Fakes::start(2).await;
    let gone: ServerAddress = closed_port().to_string().parse().unwrap();
    let (a, b) = (set.address(0), set.address(1));
    let all = [a.clone(), b.clone(), gone.clone()];
    for (server, me) in set.0.iter().zip(&all) {
        server.set_hello(secondary_hello("rs0", me, &all, None));
        server.set_reply("replSetGetConfig", config(&[(&a, 0.0), (&b, 0.0), (&gone, 1.0)]));
        let status = status(&[(&a, 2, true), (&b, 2, true), (&gone, 8, false)]);
        server.set_reply("replSetGetStatus", status);
    }
    let (codes, said, code) = findings(&format!("mongodb://{a}/?replicaSet=rs0"));
    assert_eq!(code, 1, "{said}");
    assert!(codes.contains(&"nobody_electable".to_owned()), "{codes:?} {said}");
    let words = format!("the only member that may be elected, {gone}, does not answer");
    assert!(said.contains(&words), "{said}");
    assert!(!said.contains("election is under way"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_mechanism_that_cannot_be_tried() {
    let set = Fakes::start(1).await;
    let uri = format!("mongodb://ada%40EXAMPLE.COM@{}/?authMechanism=GSSAPI", set.address(0));
    let (codes, said, code) = findings(&uri);
    assert_eq!((codes, code), (vec!["mechanism".to_owned()], 1), "{said}");
    assert_eq!(verdict(&uri)["writes"], false);
}

/// Two members whose names lead to one server, as container names in a hosts file do.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn names_that_all_lead_to_one_server() {
    let set = Fakes::start(1).await;
    let me = set.address(0);
    let port = me.port().unwrap();
    let other: ServerAddress = format!("localhost:{port}").parse().unwrap();
    let hello = primary_hello("rs0", &me, &[me.clone(), other.clone()], 1);
    set.0[0].set_hello(hello);
    let (codes, said, code) = findings(&format!("mongodb://{me}/?replicaSet=rs0"));
    assert_eq!(code, 1, "{said}");
    assert!(codes.contains(&"one_socket_for_several".to_owned()), "{codes:?} {said}");
    assert!(said.contains(&format!("which calls itself {me}")), "{said}");
}

#[test]
fn other_programs_are_named() {
    for (answer, name) in [
        (&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], "a web server (HTTP)"),
        (&b"SSH-2.0-OpenSSH_9.6\r\n"[..], "an SSH server"),
    ] {
        let address = blunt_server(answer);
        let (codes, said, code) = findings(&format!("mongodb://{address}"));
        assert_eq!((codes, code), (vec!["no_mongodb".to_owned()], 1), "{said}");
        assert!(said.contains(name) && !said.contains("bytes"), "{said}");
    }
}

/// Right after `up`, peers have not heard of each other yet: their stale word is no warning.
#[test]
fn a_set_that_just_started_has_nothing_wrong() {
    let set = Set::start(&[], 3);
    let (codes, said, code) = findings(&set.uri);
    assert_eq!((codes, code), (Vec::new(), 0), "{said}");
    set.end();
}

/// Peers that say DOWN of a member that answers here: the members are parted, and that is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_member_that_its_peers_do_not_hear() {
    let set = Fakes::start(3).await;
    set.form_set("rs0");
    let all = set.addresses();
    let status = status(&[(&all[0], 1, true), (&all[1], 2, true), (&all[2], 8, false)]);
    set.0[0].set_reply("replSetGetStatus", status);
    let (codes, said, code) = findings(&format!("mongodb://{}/?replicaSet=rs0", all[0]));
    assert_eq!((codes, code), (vec!["unheard_by_peers".to_owned()], 0), "{said}");
    // Monitors get the reason of their exit code as well.
    let table = quorate(&["status", &format!("mongodb://{}/?replicaSet=rs0", all[0])]);
    assert_eq!(table.code(), 1, "{}", table.stdout());
    assert!(table.stdout().contains("another member does not hear it"), "{}", table.stdout());
}

/// A server of our own, locked as a backup tool locks it: writes wait and no error says so.
#[test]
fn a_server_that_fsync_locked() {
    let mut served = Living::start(&["serve", "--memory", "--port", "0", "--json"]);
    let uri = served.event()["uri"].as_str().unwrap().to_owned();
    let locked = quorate(&["run", &uri, "{fsync: 1, lock: true}"]);
    assert_eq!(locked.code(), 0, "{}", locked.stderr());
    let (codes, said, code) = findings(&uri);
    assert_eq!((codes, code), (vec!["fsync_locked".to_owned()], 1), "{said}");
    assert!(said.contains("db.fsyncUnlock()"), "{said}");
    let verdict = verdict(&uri);
    assert_eq!((&verdict["reads"], &verdict["writes"]), (&true.into(), &false.into()));
    assert_eq!(quorate(&["run", &uri, "{fsyncUnlock: 1}"]).code(), 0);
    assert_eq!(findings(&uri).0, Vec::<String>::new());
    assert_eq!(served.terminate(), Some(0));
}

/// Nothing destructive is proposed on the word of a message alone: the names may only be unknown to
/// this client.
#[test]
fn a_pasted_message_never_proposes_force() {
    let java = "com.mongodb.MongoTimeoutException: Timed out after 30000 ms while waiting for a \
        server that matches WritableServerSelector. Client view of cluster state is \
        {type=REPLICA_SET, servers=[{address=mongo-0.mongo:27017, type=UNKNOWN, state=CONNECTING, \
        exception={com.mongodb.MongoSocketException: mongo-0.mongo: Name or service not known}, \
        caused by {java.net.UnknownHostException: mongo-0.mongo: Name or service not known}}, \
        {address=10.0.0.2:27017, type=REPLICA_SET_SECONDARY, roundTripTime=1.0 ms, \
        state=CONNECTED}]";
    let run = quorate_with_input(&["doctor", "--json", "--error", "-"], java);
    assert_eq!(run.code(), 0, "{}", run.stdout());
    assert!(run.stdout().contains("name_not_found"), "{}", run.stdout());
    assert!(!run.stdout().contains("force"), "{}", run.stdout());
}

/// The three lines come first, for people as for programs.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_verdict_comes_first() {
    let set = Fakes::start(1).await;
    let (b, c) = (closed_port().to_string(), closed_port().to_string());
    let members = vec![set.address(0), b.parse().unwrap(), c.parse().unwrap()];
    set.0[0].set_hello(secondary_hello("rs0", &set.address(0), &members, None));
    let uri = format!("mongodb://{}/?replicaSet=rs0", set.address(0));
    let told = quorate(&["doctor", &uri]).stdout();
    let lines: Vec<&str> = told.lines().take(3).collect();
    assert_eq!(
        lines[0],
        "verdict: neither reads nor writes work; reads with readPreference=secondaryPreferred would"
    );
    assert!(lines[1].trim_start().starts_with("why"), "{told}");
    assert!(lines[2].trim_start().starts_with("first"), "{told}");
    let verdict = verdict(&uri);
    assert!(lines[1].ends_with(verdict["why"].as_str().unwrap()), "{told} {verdict}");
    assert!(lines[2].ends_with(verdict["first"].as_str().unwrap()), "{told} {verdict}");
}

/// A member that really comes and goes: after it is back, nothing is wrong.
#[test]
fn a_member_that_was_paused_and_goes_on() {
    let set = Set::start(&["--election-timeout", "2s"], 3);
    let (host, pid) = set.others().next().unwrap().clone();
    crate::real_faults::signal("-STOP", pid);
    let uri = format!("{}&connectTimeoutMS=500", set.uri);
    until("the pause is noticed", || {
        let (codes, said, _) = findings(&uri);
        codes.contains(&"hello_unanswered".to_owned()) && said.contains(&host)
    });
    crate::real_faults::signal("-CONT", pid);
    until("nothing is wrong again", || findings(&set.uri).0.is_empty());
    set.end();
}

/// Each row of the table names the test that provokes it, and each of these tests is there.
#[test]
fn every_row_of_the_table_has_its_test() {
    let table = std::fs::read_to_string(folder("../../docs/doctor.md")).unwrap();
    let sources: String = std::fs::read_dir(folder("tests/cli"))
        .unwrap()
        .map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap())
        .collect();
    let rows: Vec<&str> =
        table.lines().filter(|line| line.starts_with("| ") && line.contains("::")).collect();
    assert!(rows.len() >= 45, "{} rows", rows.len());
    for row in rows {
        let cell = row.rsplit('|').nth(1).unwrap().trim().trim_matches('`');
        let name = cell.rsplit("::").next().unwrap();
        assert!(sources.contains(&format!("fn {name}(")), "no test {name}: {row}");
    }
}
