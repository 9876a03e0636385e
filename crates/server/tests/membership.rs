//! Members that know each other by key file or certificate, and strangers who are turned away.

#![allow(clippy::unwrap_used, reason = "a panic is the report")]

mod support;

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use bson::{Document, RawDocumentBuf, Timestamp, doc, rawdoc};
use quorate_client::Client;
use quorate_protocol::SetVersion;
use quorate_server::{
    Listeners, Membership, Place, Running, Server, StartError, StartOptions, TlsMode, TlsOptions,
};
use quorate_test_support::Authority;
use quorate_wire::{Decoder, MsgFlags, MsgWriter, Payload, RequestId};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const PATIENCE: Duration = Duration::from_secs(120);

/// Between two looks at something that is waited for: each look is a new client.
const BREATH: Duration = Duration::from_millis(200);

async fn soon<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.unwrap_or_else(|_| panic!("waited in vain: {what}"))
}

/// Files that vanish with the test.
struct Keys(TempDir);

impl Keys {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn file(&self, name: &str, text: &str) -> Membership {
        let path: PathBuf = self.0.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        Membership::KeyFile(path)
    }
}

async fn member(change: impl FnOnce(&mut StartOptions)) -> Running {
    let mut options = StartOptions::new(Place::Memory);
    options.replica_set = Some("rs0".to_owned());
    change(&mut options);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    Server::start(listener, options).await.unwrap()
}

/// One command to one member, without or with a login (`user:password@`), and further URI options.
async fn run(to: &Running, login: &str, options: &str, command: Document) -> Result<Document, i32> {
    let address = to.address();
    let uri = format!("mongodb://{login}{address}/?directConnection=true{options}");
    let client = Client::with_uri(&uri).unwrap();
    let raw = RawDocumentBuf::try_from(&command).unwrap();
    let reply = soon("a reply", client.run_command("admin", &raw)).await;
    client.close().await;
    reply
        .map(|reply| Document::try_from(&*reply).unwrap())
        .map_err(|error| error.code().unwrap_or_else(|| panic!("{command}: {error}")))
}

/// A set that only its first member can lead, so that tests know whom to talk to.
fn config(members: &[&Running]) -> Document {
    let members: Vec<bson::Bson> = (0..)
        .zip(members)
        .map(|(id, member): (i32, _)| {
            let priority = i32::from(id == 0);
            doc! { "_id": id, "host": member.address().to_string(), "priority": priority }.into()
        })
        .collect();
    doc! { "_id": "rs0", "version": 1, "members": members }
}

/// Lists one more member, who has no say.
async fn list(primary: &Running, options: &str, stranger: &Running) {
    let reply = run(primary, ADMIN, options, doc! { "replSetGetConfig": 1 }).await.unwrap();
    let mut config = reply.get_document("config").unwrap().clone();
    config.insert("version", config.get_i32("version").unwrap() + 1);
    let members = config.get_array_mut("members").unwrap();
    members.truncate(2);
    let host = stranger.address().to_string();
    members.push(doc! { "_id": 2, "host": host, "votes": 0, "priority": 0 }.into());
    let reconfig = doc! { "replSetReconfig": config, "force": true };
    run(primary, ADMIN, options, reconfig).await.unwrap();
}

/// Waits until `replSetGetStatus` shows a member in a state.
async fn wait_for_state(asked: &Running, login: &str, options: &str, id: usize, state: &str) {
    soon(state, async {
        loop {
            let status = run(asked, login, options, doc! { "replSetGetStatus": 1 }).await.unwrap();
            let members = status.get_array("members").unwrap();
            let found = members[id].as_document().unwrap().get_str("stateStr").unwrap();
            if found == state {
                return;
            }
            tokio::time::sleep(BREATH).await;
        }
    })
    .await;
}

const UNAUTHORIZED: i32 = 13;
const ADMIN: &str = "admin:secret@";

async fn create_admin(on: &Running, options: &str) {
    let user = doc! {
        "createUser": "admin", "pwd": "secret", "roles": ["root"],
        "writeConcern": { "w": "majority" },
    };
    soon("a primary for the first user", async {
        // Only a primary can take it, which the member becomes in a moment.
        while let Err(code) = run(on, "", options, user.clone()).await {
            assert_eq!(code, 10107);
            tokio::time::sleep(BREATH).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn members_with_one_key_form_a_set_and_an_intruder_stays_out() {
    let keys = Keys::new();
    let first = member(|options| options.membership = keys.file("a", "c2hhcmVk\na2V5")).await;
    let second = member(|options| options.membership = keys.file("b", "c2hhcmVka2V5\n")).await;
    let intruder = member(|options| options.membership = keys.file("c", "b3RoZXJrZXk")).await;
    let careless = member(|_| {}).await;
    for command in [
        doc! { "replSetGetStatus": 1 },
        doc! { "replSetGetConfig": 1 },
        doc! { "replSetHeartbeat": "rs0", "configVersion": 1, "term": 1 },
        doc! { "replSetRequestVotes": 1, "term": 99, "candidateIndex": 0, "dryRun": true },
        doc! { "replSetUpdatePosition": 1, "optimes": [] },
        doc! { "replSetStepDown": 1 },
        doc! { "shutdown": 1 },
    ] {
        assert_eq!(run(&first, "", "", command.clone()).await, Err(UNAUTHORIZED), "{command}");
    }
    // The localhost exception: the first on the machine makes the set and its first user.
    let initiate = doc! { "replSetInitiate": config(&[&first, &second]) };
    run(&first, "", "", initiate).await.unwrap();
    create_admin(&first, "").await;
    wait_for_state(&first, ADMIN, "", 1, "SECONDARY").await;
    // The user has come to the secondary, and the exception has gone.
    let nearest = doc! { "usersInfo": 1, "$readPreference": { "mode": "nearest" } };
    run(&second, ADMIN, "", nearest).await.unwrap();
    let another = doc! { "createUser": "eve", "pwd": "x", "roles": ["root"] };
    assert_eq!(run(&first, "", "", another).await, Err(UNAUTHORIZED));
    // Users are not members, whatever their roles.
    let heartbeat = doc! { "replSetHeartbeat": "rs0", "configVersion": 1, "term": 1 };
    assert_eq!(run(&first, ADMIN, "", heartbeat).await, Err(UNAUTHORIZED));
    for stranger in [&intruder, &careless] {
        list(&first, "", stranger).await;
        wait_for_state(&first, ADMIN, "", 2, "DOWN").await;
        let hello = run(stranger, "", "", doc! { "hello": 1 }).await.unwrap();
        assert!(!hello.contains_key("setName"), "it has learnt nothing: {hello}");
    }
    for running in [first, second, intruder, careless] {
        running.stop().await.unwrap();
    }
}

/// The oplog is pushed to members alone: it holds the keys of all users.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_stranger_that_asks_for_the_oplog_as_members_do_is_refused_and_stays_a_client() {
    let keys = Keys::new();
    let first = member(|options| options.membership = keys.file("a", "c2hhcmVka2V5")).await;
    run(&first, "", "", doc! { "replSetInitiate": config(&[&first]) }).await.unwrap();
    create_admin(&first, "").await;
    let mut socket = TcpStream::connect(first.address()).await.unwrap();
    let null = doc! { "ts": Timestamp { time: 0, increment: 0 }, "t": -1_i64 };
    let follow = rawdoc! {
        "find": "oplog.rs", "$db": "local", "$oplogQueryData": 1,
        "$replData": RawDocumentBuf::try_from(&null).unwrap(),
    };
    for (flags, body, code) in [
        (MsgFlags::EXHAUST_ALLOWED, follow, Some(UNAUTHORIZED)),
        (MsgFlags::NONE, rawdoc! { "hello": 1, "$db": "admin" }, None),
    ] {
        let mut bytes = Vec::new();
        MsgWriter::new(&mut bytes, RequestId(1), RequestId(0), flags, &body).finish(None).unwrap();
        socket.write_all(&bytes).await.unwrap();
        let mut decoder = Decoder::new();
        let reply = soon("a reply", async {
            loop {
                if let Some(message) = decoder.next_message().unwrap() {
                    let Payload::Msg(msg) = &message.payload else { panic!("no OP_MSG") };
                    return msg.body().to_owned();
                }
                assert_ne!(socket.read_buf(decoder.input()).await.unwrap(), 0, "it was closed");
            }
        })
        .await;
        assert_eq!(reply.get_i32("code").ok(), code, "{reply:?}");
    }
    first.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_key_is_changed_one_member_at_a_time() {
    let keys = Keys::new();
    let both = "- bmV3a2V5\n- b2xka2V5\n";
    let old = member(|options| options.membership = keys.file("old", "b2xka2V5")).await;
    let changed = member(|options| options.membership = keys.file("both", both)).await;
    run(&old, "", "", doc! { "replSetInitiate": config(&[&old, &changed]) }).await.unwrap();
    create_admin(&old, "").await;
    wait_for_state(&old, ADMIN, "", 1, "SECONDARY").await;
    old.stop().await.unwrap();
    changed.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn members_know_each_other_by_certificates_of_one_organisation() {
    let authority = Authority::new();
    let tls = |name: &str, organisation: &str| {
        let certificate = authority.issue(name, organisation);
        TlsOptions {
            key: certificate.clone(),
            certificate,
            authority: Some(authority.ca()),
            mode: TlsMode::Require,
            require_client_certificate: false,
        }
    };
    let start = |name: &'static str, organisation: &'static str| {
        let tls = tls(name, organisation);
        member(move |options| {
            options.tls = Some(tls);
            options.membership = Membership::Certificate;
        })
    };
    let (first, second) = (start("a", "Quorate").await, start("b", "Quorate").await);
    let intruder = start("c", "Elsewhere").await;
    let options = format!("&tls=true&tlsCAFile={}", authority.ca().display());
    let initiate = doc! { "replSetInitiate": config(&[&first, &second]) };
    run(&first, "", &options, initiate).await.unwrap();
    create_admin(&first, &options).await;
    wait_for_state(&first, ADMIN, &options, 1, "SECONDARY").await;
    list(&first, &options, &intruder).await;
    wait_for_state(&first, ADMIN, &options, 2, "DOWN").await;
    for running in [first, second, intruder] {
        running.stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_asks_for_logins_needs_to_know_the_others() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut options = StartOptions::new(Place::Memory);
    options.replica_set = Some("rs0".to_owned());
    options.authentication = true;
    let started = Server::start(listener, options).await;
    assert!(matches!(started.err(), Some(StartError::MembersUnknown)));
}

/// Split horizons: by the port that the client dialled.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn clients_of_a_horizon_see_its_addresses_and_the_set_keeps_time() {
    let bind = || async { TcpListener::bind("127.0.0.1:0").await.unwrap() };
    let (main, outside) = (bind().await, bind().await);
    let (port, outside_port) =
        (main.local_addr().unwrap().port(), outside.local_addr().unwrap().port());
    let mut options = StartOptions::new(Place::Memory);
    options.replica_set = Some("rs0".to_owned());
    let listeners = Listeners::from(main).with_horizon("outside", outside);
    let running = Server::start(listeners, options).await.unwrap();
    let own = format!("127.0.0.1:{port}");
    let far = format!("localhost:{outside_port}");
    let config = doc! {
        "_id": "rs0", "version": 1,
        "members": [{ "_id": 0, "host": &own, "horizons": { "outside": &far } }],
    };
    run(&running, "", "", doc! { "replSetInitiate": config }).await.unwrap();
    // A client that discovers the set from outside stays outside.
    let client = Client::with_uri(&format!("mongodb://{far}/?replicaSet=rs0")).unwrap();
    let ask = async |command: Document| {
        let raw = RawDocumentBuf::try_from(&command).unwrap();
        let reply = soon("a reply", client.run_command("admin", &raw)).await.unwrap();
        Document::try_from(&*reply).unwrap()
    };
    let hello = ask(doc! { "hello": 1 }).await;
    assert_eq!(hello.get_str("me").unwrap(), far);
    assert_eq!(hello.get_str("primary").unwrap(), far);
    assert_eq!(hello.get_array("hosts").unwrap(), &vec![bson::Bson::from(far)]);
    let hello = run(&running, "", "", doc! { "hello": 1 }).await.unwrap();
    assert_eq!(hello.get_str("me").unwrap(), own);

    let insert = ask(doc! { "insert": "c", "documents": [{ "x": 1 }] }).await;
    let time = insert.get_timestamp("operationTime").unwrap();
    let cluster = insert.get_document("$clusterTime").unwrap();
    assert_eq!(cluster.get_timestamp("clusterTime").unwrap(), time);
    assert!(cluster.get_document("signature").unwrap().contains_key("keyId"));
    let after = doc! { "find": "c", "readConcern": { "afterClusterTime": time } };
    ask(after).await;
    let future = bson::Timestamp { time: time.time + 10_000, increment: 1 };
    let mut read = doc! {
        "find": "c", "readConcern": { "afterClusterTime": future }, "maxTimeMS": 50,
    };
    // No member has told this time. Once the client says that one has, the read waits for it.
    assert_eq!(run(&running, "", "", read.clone()).await, Err(72));
    read.insert("$clusterTime", doc! { "clusterTime": future });
    assert_eq!(run(&running, "", "", read).await, Err(50));
    client.close().await;
    running.stop().await.unwrap();
}

/// A client that is only told of changes (streamed replies) must be told its own addresses too.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn news_that_are_streamed_to_a_horizon_have_its_addresses() {
    let bind = || async { TcpListener::bind("127.0.0.1:0").await.unwrap() };
    let (main, outside) = (bind().await, bind().await);
    let own = main.local_addr().unwrap().to_string();
    let far = format!("localhost:{}", outside.local_addr().unwrap().port());
    let mut options = StartOptions::new(Place::Memory);
    options.replica_set = Some("rs0".to_owned());
    let listeners = Listeners::from(main).with_horizon("outside", outside);
    let running = Server::start(listeners, options).await.unwrap();
    let member = doc! { "_id": 0, "host": &own, "horizons": { "outside": &far } };
    let config = doc! { "_id": "rs0", "version": 1, "members": [member] };
    run(&running, "", "", doc! { "replSetInitiate": config }).await.unwrap();
    // Nothing but a change makes the server speak.
    let uri = format!("mongodb://{far}/?replicaSet=rs0&heartbeatFrequencyMS=600000");
    let client = Client::with_uri(&uri).unwrap();
    let ping = RawDocumentBuf::try_from(&doc! { "ping": 1 }).unwrap();
    soon("a reply", client.run_command("admin", &ping)).await.unwrap();
    let reply = run(&running, "", "", doc! { "replSetGetConfig": 1 }).await.unwrap();
    let mut config = reply.get_document("config").unwrap().clone();
    config.insert("version", 2);
    run(&running, "", "", doc! { "replSetReconfig": config }).await.unwrap();
    let address = far.parse().unwrap();
    soon("news of the reconfiguration", async {
        loop {
            let topology = client.topology();
            let server = topology.server(&address).expect("the client dropped its only server");
            if server.set_version() == Some(SetVersion(2)) {
                assert_eq!(server.me(), Some(&address));
                assert_eq!(server.hosts(), std::slice::from_ref(&address));
                break;
            }
            tokio::time::sleep(BREATH).await;
        }
    })
    .await;
    client.close().await;
    running.stop().await.unwrap();
}

/// Split horizons: by the name that the client asks TLS for, on the same port.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn clients_that_ask_tls_for_the_name_of_a_horizon_see_its_addresses() {
    let authority = Authority::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let own = listener.local_addr().unwrap().to_string();
    let far = format!("localhost:{}", listener.local_addr().unwrap().port());
    let mut options = StartOptions::new(Place::Memory);
    options.replica_set = Some("rs0".to_owned());
    let certificate = authority.issue("server", "Quorate");
    options.tls = Some(TlsOptions {
        key: certificate.clone(),
        certificate,
        authority: Some(authority.ca()),
        mode: TlsMode::Require,
        require_client_certificate: false,
    });
    let running = Server::start(listener, options).await.unwrap();
    let tls = format!("&tls=true&tlsCAFile={}", authority.ca().display());
    let member = doc! { "_id": 0, "host": &own, "horizons": { "outside": &far } };
    let config = doc! { "_id": "rs0", "version": 1, "members": [member] };
    run(&running, "", &tls, doc! { "replSetInitiate": config }).await.unwrap();
    for address in [&own, &far] {
        let uri = format!("mongodb://{address}/?replicaSet=rs0{tls}");
        let client = Client::with_uri(&uri).unwrap();
        let raw = RawDocumentBuf::try_from(&doc! { "hello": 1 }).unwrap();
        let reply = soon("a reply", client.run_command("admin", &raw)).await.unwrap();
        let hello = Document::try_from(&*reply).unwrap();
        assert_eq!(hello.get_str("me").unwrap(), address);
        assert_eq!(hello.get_array("hosts").unwrap(), &vec![bson::Bson::from(address)]);
        client.close().await;
    }
    running.stop().await.unwrap();
}
