//! The client against scripted servers on real sockets.

// A panic in the functions that the tests share is a report, as it is in the tests.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use bson::raw::RawDocumentBuf;
use bson::{doc, rawdoc};
use quorate_client::pool::PoolEventKind;
use quorate_client::{
    Client, ClientEvent, ClientOptions, CommandEventKind, ErrorKind, RETRYABLE_ERROR,
    RETRYABLE_WRITE_ERROR, SYSTEM_OVERLOADED_ERROR,
};
use quorate_protocol::{MonotonicTime, ObjectId, ServerAddress};
use quorate_server_discovery::{
    DiscoveryEvent, Input, Output, RecordedInput, RecordingStart, ServerType, TopologyType,
};
use quorate_test_support::{FailPoint, FakeServer, primary_hello};
use quorate_wire::{MsgFlags, MsgWriter, RequestId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::broadcast::Receiver;

/// Nothing here takes long; what does is stuck.
const PATIENCE: Duration = Duration::from_secs(20);

async fn soon<T>(work: impl IntoFuture<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("it takes too long")
}

fn ping() -> RawDocumentBuf {
    rawdoc! { "ping": 1 }
}

fn fail(command: &str, times: i32, data: RawDocumentBuf) -> Option<FailPoint> {
    let mut point = data;
    point.append(bson::raw::cstr!("failCommands"), bson::RawArrayBuf::from_iter([command]));
    let configure = rawdoc! {
        "configureFailPoint": "failCommand", "mode": { "times": times }, "data": point,
    };
    FailPoint::from_command(&configure).unwrap()
}

/// Waits for the event that `want` picks.
async fn event<T>(
    events: &mut Receiver<ClientEvent>,
    want: impl Fn(&DiscoveryEvent) -> Option<T>,
) -> T {
    loop {
        if let ClientEvent::Discovery(event) = soon(events.recv()).await.unwrap()
            && let Some(found) = want(&event)
        {
            return found;
        }
    }
}

async fn primary_becomes(events: &mut Receiver<ClientEvent>, address: &ServerAddress) {
    event(events, |event| match event {
        DiscoveryEvent::TopologyDescriptionChanged { new, .. } => {
            (new.primary()?.address() == address).then_some(())
        }
        _ => None,
    })
    .await;
}

fn secondary_hello(set: &str, me: &FakeServer, members: &[ServerAddress]) -> RawDocumentBuf {
    let hosts = bson::RawArrayBuf::from_iter(members.iter().map(ServerAddress::as_str));
    rawdoc! {
        "ismaster": false, "secondary": true, "setName": set, "setVersion": 1, "hosts": hosts,
        "me": me.address().as_str(), "minWireVersion": 0, "maxWireVersion": 21,
        "logicalSessionTimeoutMinutes": 30,
    }
}

/// A set of two whose first member is primary.
async fn set_of_two() -> (FakeServer, FakeServer, Vec<ServerAddress>) {
    let (first, second) = (FakeServer::start().await.unwrap(), FakeServer::start().await.unwrap());
    let members = vec![first.address().clone(), second.address().clone()];
    first.set_hello(primary_hello("rs", first.address(), &members, 1));
    second.set_hello(secondary_hello("rs", &second, &members));
    (first, second, members)
}

#[tokio::test]
async fn a_command_runs_and_carries_a_session() {
    let server = FakeServer::start().await.unwrap();
    let client = Client::with_uri(&server.uri()).unwrap();
    let reply = soon(client.run_command("admin", &ping())).await.unwrap();
    assert_eq!(reply.get_f64("ok").unwrap(), 1.0);
    assert_eq!(client.topology().topology_type(), TopologyType::Single);
    let commands = server.commands();
    let sent = commands.iter().find(|command| command.get("ping").unwrap().is_some()).unwrap();
    assert!(sent.get_document("lsid").is_ok());
    assert_eq!(sent.get_str("$db").unwrap(), "admin");
    soon(client.close()).await;
}

#[tokio::test]
async fn closing_says_goodbye_and_leaves_no_socket() {
    let (first, second, _) = set_of_two().await;
    let client = Client::with_uri(&format!("{}?replicaSet=rs", first.uri())).unwrap();
    soon(client.run_command("admin", &ping())).await.unwrap();
    soon(client.close()).await;
    assert!(first.command_names().contains(&"endSessions".to_owned()));
    soon(first.wait_for_open_connections(0)).await;
    soon(second.wait_for_open_connections(0)).await;
    let error = soon(client.run_command("admin", &ping())).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Closed), "{error}");
}

#[tokio::test]
async fn a_client_that_is_dropped_leaves_no_socket_either() {
    let server = FakeServer::start().await.unwrap();
    let client = Client::with_uri(&server.uri()).unwrap();
    soon(client.run_command("admin", &ping())).await.unwrap();
    assert!(server.open_connections() >= 2);
    drop(client);
    soon(server.wait_for_open_connections(0)).await;
}

#[tokio::test]
async fn the_members_of_a_set_are_discovered_and_a_new_primary_is_heard_of_at_once() {
    let (first, second, members) = set_of_two().await;
    // A heartbeat every minute: what is heard sooner was streamed.
    let uri = format!("{}?replicaSet=rs&heartbeatFrequencyMS=60000", first.uri());
    let client = Client::with_uri(&uri).unwrap();
    let mut events = client.events();
    primary_becomes(&mut events, first.address()).await;
    event(&mut events, |event| match event {
        DiscoveryEvent::ServerDescriptionChanged { new, .. } => {
            (new.server_type() == ServerType::RsSecondary).then_some(())
        }
        _ => None,
    })
    .await;
    // Both stream now; one more poll of each may be under way, so the change comes after.
    first.set_hello(secondary_hello("rs", &first, &members));
    second.set_hello(primary_hello("rs", second.address(), &members, 2));
    primary_becomes(&mut events, second.address()).await;
    soon(client.run_command("admin", &ping())).await.unwrap();
    assert!(second.command_names().contains(&"ping".to_owned()));
    soon(client.close()).await;
}

#[tokio::test]
async fn servers_that_cannot_stream_are_polled() {
    let server = FakeServer::start().await.unwrap();
    server.set_streaming(false);
    let client = Client::with_uri(&format!("{}?heartbeatFrequencyMS=500", server.uri())).unwrap();
    let mut events = client.events();
    for _ in 0..2 {
        let awaited = event(&mut events, |event| match event {
            DiscoveryEvent::ServerHeartbeatSucceeded { heartbeat, .. } => Some(heartbeat.awaited),
            _ => None,
        })
        .await;
        assert!(!awaited);
    }
    soon(client.close()).await;
}

#[tokio::test]
async fn reads_are_retried_once_after_a_network_error() {
    let server = FakeServer::start().await.unwrap();
    let found = rawdoc! { "cursor": { "id": 0_i64, "ns": "d.c", "firstBatch": [{ "a": 1 }] } };
    server.set_reply("find", found);
    let client = Client::with_uri(&server.uri()).unwrap();
    let collection = client.collection("d", "c");
    server.set_fail_point(fail("find", 1, rawdoc! { "closeConnection": true }));
    let document = soon(collection.find_one(doc! {})).await.unwrap().unwrap();
    assert_eq!(document.get_i32("a").unwrap(), 1);
    server.set_fail_point(fail("find", 2, rawdoc! { "closeConnection": true }));
    let error = soon(collection.find_one(doc! {})).await.unwrap_err();
    assert!(error.is_network(), "{error}");
    soon(client.close()).await;
}

#[tokio::test]
async fn a_retried_write_has_the_same_transaction_number() {
    let (first, _second, _) = set_of_two().await;
    // A real server would stream its change of state; this one has none to tell.
    first.set_streaming(false);
    first.set_reply("insert", rawdoc! { "n": 1 });
    let client = Client::with_uri(&format!("{}?replicaSet=rs", first.uri())).unwrap();
    let labels = rawdoc! { "errorCode": 91, "errorLabels": [RETRYABLE_WRITE_ERROR] };
    first.set_fail_point(fail("insert", 1, labels));
    soon(client.collection("d", "c").insert_one(doc! { "a": 1 })).await.unwrap();
    let commands = first.commands();
    let inserts: Vec<_> =
        commands.iter().filter(|command| command.get("insert").unwrap().is_some()).collect();
    assert_eq!(inserts.len(), 2);
    let number = |position: usize| inserts[position].get_i64("txnNumber").unwrap();
    assert_eq!((number(0), number(1)), (1, 1));
    assert_eq!(inserts[0].get("lsid").unwrap(), inserts[1].get("lsid").unwrap());
    soon(client.close()).await;
}

/// "If an error has been encountered which indicates that a write was attempted, this error is
/// returned": the retry needs a new connection, whose login fails.
#[tokio::test]
async fn a_retry_without_a_connection_does_not_hide_that_a_write_was_attempted() {
    let (first, _second, _) = set_of_two().await;
    first.set_reply("authenticate", rawdoc! { "ok": 1 });
    first.set_reply("insert", rawdoc! { "n": 1 });
    let uri =
        format!("{}?replicaSet=rs&authMechanism=MONGODB-X509&tls=true&maxPoolSize=1", first.uri());
    let mut options = ClientOptions::from_connection_string(&uri.parse().unwrap());
    options.tls = None;
    let client = Client::with_options(options).unwrap();
    let collection = client.collection("d", "c");
    soon(collection.insert_one(doc! { "_id": 1 })).await.unwrap();
    first.set_reply("authenticate", rawdoc! { "ok": 0, "code": 18, "errmsg": "no" });
    first.set_fail_point(fail("insert", 1, rawdoc! { "closeConnection": true }));
    let error = soon(collection.insert_one(doc! { "_id": 2 })).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Connection { .. }), "{error}");
    assert!(error.is_network() && error.has_label(RETRYABLE_WRITE_ERROR), "{error}");
    soon(client.close()).await;
}

#[tokio::test]
async fn standalone_writes_are_not_retried() {
    let server = FakeServer::start().await.unwrap();
    server.set_reply("insert", rawdoc! { "n": 1 });
    let client = Client::with_uri(&server.uri()).unwrap();
    server.set_fail_point(fail("insert", 1, rawdoc! { "closeConnection": true }));
    let error = soon(client.collection("d", "c").insert_one(doc! {})).await.unwrap_err();
    assert!(error.is_network() && !error.is_retryable_write(), "{error}");
    soon(client.close()).await;
}

#[tokio::test]
async fn a_failed_write_says_which_one() {
    let server = FakeServer::start().await.unwrap();
    let failed = rawdoc! {
        "n": 1, "writeErrors": [{ "index": 1, "code": 11000, "errmsg": "duplicate key" }],
    };
    server.set_reply("insert", failed);
    let client = Client::with_uri(&server.uri()).unwrap();
    let documents = [doc! { "_id": 1 }, doc! { "_id": 1 }];
    let error = soon(client.collection("d", "c").insert_many(documents)).await.unwrap_err();
    assert_eq!(error.code(), Some(11000));
    assert!(error.to_string().contains("write 1 failed: duplicate key"), "{error}");
    soon(client.close()).await;
}

#[tokio::test]
async fn cursors_stay_with_their_server_and_are_killed_when_dropped() {
    let server = FakeServer::start().await.unwrap();
    let batch = |name: &str, id: i64| {
        let mut cursor = rawdoc! { "id": id, "ns": "d.c" };
        let name = bson::raw::CString::try_from(name.to_owned()).unwrap();
        cursor.append(name, bson::RawArrayBuf::from_iter([rawdoc! { "a": 1 }]));
        rawdoc! { "cursor": cursor }
    };
    server.set_reply("find", batch("firstBatch", 77));
    server.set_reply("getMore", batch("nextBatch", 77));
    let client = Client::with_uri(&server.uri()).unwrap();
    let collection = client.collection("d", "c");
    let mut cursor = soon(collection.find(doc! {})).await.unwrap();
    for _ in 0..3 {
        assert!(soon(cursor.next()).await.unwrap().is_some());
    }
    drop(cursor);
    server.set_reply("getMore", batch("nextBatch", 0));
    let rest = soon(collection.find(doc! {})).await.unwrap();
    assert_eq!(soon(rest.collect()).await.unwrap().len(), 2);
    let names = server.command_names();
    assert_eq!(names.iter().filter(|name| *name == "getMore").count(), 3);
    // It was spawned before the last query began, on a runtime with one thread.
    assert!(names.contains(&"killCursors".to_owned()), "{names:?}");
    soon(client.close()).await;
}

#[tokio::test]
async fn an_operation_that_is_given_up_takes_its_connection_with_it() {
    let server = FakeServer::start().await.unwrap();
    let client = Client::with_uri(&server.uri()).unwrap();
    soon(client.run_command("admin", &ping())).await.unwrap();
    let block = rawdoc! { "blockConnection": true, "blockTimeMS": 60_000 };
    server.set_fail_point(fail("ping", 1, block));
    let command = ping();
    let slow = client.run_command("admin", &command);
    assert!(tokio::time::timeout(Duration::from_millis(50), slow).await.is_err());
    let (_, counts) = client.pools().pop().unwrap();
    assert_eq!(counts.total, 0);
    soon(client.run_command("admin", &ping())).await.unwrap();
    soon(client.close()).await;
}

#[tokio::test]
async fn when_nothing_is_found_the_error_says_why() {
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let uri = format!("mongodb://{gone}/?serverSelectionTimeoutMS=200");
    let client = Client::with_uri(&uri).unwrap();
    let error = soon(client.run_command("admin", &ping())).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Selection(_)));
    assert!(error.to_string().contains(&gone.to_string()), "{error}");
    soon(client.close()).await;
}

/// A server that answers every request with the same bytes and hangs up.
async fn mad_server(answer: impl Fn(i32) -> Vec<u8> + Send + 'static) -> ServerAddress {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string().parse().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut header = [0; 16];
            if stream.read_exact(&mut header).await.is_ok() {
                let id = i32::from_le_bytes([header[4], header[5], header[6], header[7]]);
                let _ = stream.write_all(&answer(id)).await;
                // All of the request is read, so that closing does not reset the connection.
                let length = i32::from_le_bytes([header[0], header[1], header[2], header[3]]);
                let mut rest = vec![0; usize::try_from(length).unwrap() - 16];
                let _ = stream.read_exact(&mut rest).await;
            }
        }
    });
    address
}

fn reply_to(id: i32, flags: MsgFlags) -> Vec<u8> {
    let mut out = Vec::new();
    let body = rawdoc! { "ok": 1, "ismaster": true, "maxWireVersion": 21 };
    MsgWriter::new(&mut out, RequestId(1), RequestId(id), flags, &body).finish(None).unwrap();
    out
}

#[tokio::test]
async fn servers_that_break_the_protocol_are_told_apart_and_leave_the_others_alone() {
    let mad = [
        (mad_server(|_| vec![0xee; 64]).await, "too short for a header"),
        (mad_server(|_| [0x7f; 64].to_vec()).await, "at most 48000000 are accepted"),
        (mad_server(|id| reply_to(id, MsgFlags::NONE)[..30].to_vec()).await, "inside a message"),
        (mad_server(|id| reply_to(id + 1, MsgFlags::NONE)).await, "the server answered request"),
        (mad_server(|id| reply_to(id, MsgFlags::MORE_TO_COME)).await, "announced further replies"),
        (mad_server(|_| Vec::new()).await, "the server closed the connection"),
    ];
    let sane = FakeServer::start().await.unwrap();
    let mut members = vec![sane.address().clone()];
    members.extend(mad.iter().map(|(address, _)| address.clone()));
    sane.set_hello(primary_hello("rs", sane.address(), &members, 1));
    let client = Client::with_uri(&format!("{}?replicaSet=rs", sane.uri())).unwrap();
    let mut events = client.events();
    let mut failures = std::collections::BTreeMap::new();
    while failures.len() < mad.len() {
        let (address, failure) = event(&mut events, |event| match event {
            DiscoveryEvent::ServerHeartbeatFailed { heartbeat, failure, .. } => {
                Some((heartbeat.address.clone(), failure.to_string()))
            }
            _ => None,
        })
        .await;
        failures.entry(address).or_insert(failure);
    }
    for (address, expected) in mad {
        let failure = &failures[&address];
        assert!(failure.contains(expected), "{failure}");
    }
    soon(client.run_command("admin", &ping())).await.unwrap();
    soon(client.close()).await;
}

/// "heartbeat started is emitted before the socket is opened": a prose test of the specification.
#[tokio::test]
async fn a_heartbeat_starts_before_its_socket() {
    let server = FakeServer::start().await.unwrap();
    let accepted_at_start = std::sync::Arc::new(std::sync::Mutex::new(None));
    let string = quorate_connection_string::ConnectionString::parse(&server.uri()).unwrap();
    let mut options = quorate_client::ClientOptions::from_connection_string(&string);
    let server = std::sync::Arc::new(server);
    let (seen, watched) =
        (std::sync::Arc::clone(&accepted_at_start), std::sync::Arc::clone(&server));
    options.listener = Some(std::sync::Arc::new(move |event| {
        if let ClientEvent::Discovery(DiscoveryEvent::ServerHeartbeatStarted { .. }) = event {
            seen.lock().unwrap().get_or_insert(watched.accepted_connections());
        }
    }));
    let client = Client::with_options(options).unwrap();
    soon(client.run_command("admin", &ping())).await.unwrap();
    assert_eq!(*accepted_at_start.lock().unwrap(), Some(0));
    soon(client.close()).await;
}

/// A stale pool is cleared and its server Unknown after a failover, before the operation returns.
#[tokio::test]
async fn a_state_change_error_marks_the_server_before_the_operation_returns() {
    let (first, _second, _) = set_of_two().await;
    let client = Client::with_uri(&format!("{}?replicaSet=rs", first.uri())).unwrap();
    soon(client.run_command("admin", &ping())).await.unwrap();
    let block = rawdoc! { "blockConnection": true, "blockTimeMS": 60_000 };
    // The monitor must not set the record straight before we look.
    first.set_fail_point(fail("hello", 100, block));
    first.set_reply("ping", rawdoc! { "ok": 0, "code": 10107, "errmsg": "not primary" });
    let error = soon(client.run_command("admin", &ping())).await.unwrap_err();
    assert_eq!(error.code(), Some(10107));
    let topology = client.topology();
    let server = topology.server(first.address()).unwrap();
    assert_eq!(server.server_type(), ServerType::Unknown);
    soon(client.close()).await;
}

/// Seeds that never answer must not delay those that do.
#[tokio::test]
async fn silent_seeds_do_not_keep_the_set_from_being_found() {
    const SILENT: usize = 100;
    // They accept connections into their backlog and say nothing, ever.
    let mut silent = Vec::new();
    for _ in 0..SILENT {
        silent.push(TcpListener::bind("127.0.0.1:0").await.unwrap());
    }
    let (first, _second, _) = set_of_two().await;
    let mut seeds: Vec<_> =
        silent.iter().map(|listener| listener.local_addr().unwrap().to_string()).collect();
    seeds.push(first.address().to_string());
    let begun = std::time::Instant::now();
    let uri = format!("mongodb://{}/?replicaSet=rs", seeds.join(","));
    let client = Client::with_uri(&uri).unwrap();
    soon(client.run_command("admin", &ping())).await.unwrap();
    // Far below connectTimeoutMS, which is what one silent seed costs if it is waited for.
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    // The primary lists two members; the silent seeds are no part of the set.
    assert_eq!(client.topology().servers().iter().count(), 2);
    soon(client.close()).await;
}

#[tokio::test]
async fn commands_are_told_when_they_start_and_when_they_end() {
    let server = FakeServer::start().await.unwrap();
    server.set_reply("insert", rawdoc! { "n": 1 });
    let client = Client::with_uri(&server.uri()).unwrap();
    let mut events = client.events();
    soon(client.collection("d", "c").insert_one(doc! { "_id": 1 })).await.unwrap();
    soon(client.run_command("admin", &rawdoc! { "nonsense": 1 })).await.unwrap_err();
    let mut told = Vec::new();
    while told.len() < 4 {
        if let ClientEvent::Command(event) = soon(events.recv()).await.unwrap() {
            told.push(event);
        }
    }
    let CommandEventKind::Started { command } = &told[0].kind else { panic!("{told:?}") };
    assert_eq!(command.get_array("documents").unwrap().into_iter().count(), 1);
    assert!(matches!(&told[1].kind, CommandEventKind::Succeeded { .. }), "{told:?}");
    assert_eq!((told[0].request_id, &*told[0].command_name), (told[1].request_id, "insert"));
    assert!(matches!(&told[2].kind, CommandEventKind::Started { .. }), "{told:?}");
    let CommandEventKind::Failed { failure, .. } = &told[3].kind else { panic!("{told:?}") };
    assert_eq!(failure.code(), Some(59));
    assert_ne!(told[2].request_id, told[0].request_id);
    soon(client.close()).await;
}

/// The client back-pressure specification: two retries with a pause, then the error.
#[tokio::test]
async fn whatever_an_overloaded_server_turns_away_is_sent_again_twice() {
    let server = FakeServer::start().await.unwrap();
    let overload = || {
        rawdoc! {
            "errorCode": 462, "errorLabels": [SYSTEM_OVERLOADED_ERROR, RETRYABLE_ERROR],
        }
    };
    let pings = || server.command_names().iter().filter(|name| *name == "ping").count();
    let client = Client::with_uri(&server.uri()).unwrap();
    server.set_fail_point(fail("ping", 2, overload()));
    soon(client.run_command("admin", &ping())).await.unwrap();
    assert_eq!(pings(), 3);
    server.set_fail_point(fail("ping", 3, overload()));
    let error = soon(client.run_command("admin", &ping())).await.unwrap_err();
    assert_eq!((error.code(), pings()), (Some(462), 6));
    // Who switched retries off gets the error at once.
    let careful = Client::with_uri(&format!("{}?retryReads=false", server.uri())).unwrap();
    server.set_fail_point(fail("ping", 1, overload()));
    soon(careful.run_command("admin", &ping())).await.unwrap_err();
    assert_eq!(pings(), 7);
    soon(client.close()).await;
    soon(careful.close()).await;
}

/// Writes everything down.
#[derive(Default)]
struct Recording {
    lines: std::sync::Mutex<Vec<String>>,
    events: std::sync::Mutex<Vec<DiscoveryEvent>>,
}

impl quorate_client::Tap for Recording {
    fn on_start(&self, start: &RecordingStart) {
        self.lines.lock().unwrap().push(start.to_line());
    }

    fn on_input(&self, at: MonotonicTime, input: &Input) {
        self.lines.lock().unwrap().push(RecordedInput { at, input: input.clone() }.to_line());
    }

    fn on_event(&self, _: MonotonicTime, event: &DiscoveryEvent) {
        self.events.lock().unwrap().push(event.clone());
    }
}

#[tokio::test]
async fn what_a_tap_writes_down_can_be_replayed_to_the_same_events() {
    let (_first, second, members) = set_of_two().await;
    let string = format!("mongodb://{}/?replicaSet=rs", second.address()).parse().unwrap();
    let tap = std::sync::Arc::new(Recording::default());
    let mut options = ClientOptions::from_connection_string(&string);
    options.tap = Some(tap.clone());
    let client = Client::with_options(options).unwrap();
    let mut events = client.events();
    soon(client.run_command("admin", &ping())).await.unwrap();
    second.set_hello(primary_hello("rs", second.address(), &members, 2));
    primary_becomes(&mut events, second.address()).await;
    soon(client.close()).await;

    let lines = tap.lines.lock().unwrap().clone();
    let mut topology = RecordingStart::from_line(&lines[0]).unwrap().topology().unwrap();
    let mut replayed = Vec::new();
    let mut drain = |topology: &mut quorate_server_discovery::Topology| {
        while let Some(output) = topology.poll_output() {
            if let Output::Event(event) = output {
                replayed.push(event);
            }
        }
    };
    drain(&mut topology);
    for line in &lines[1..] {
        let RecordedInput { at, input } = RecordedInput::from_line(line).unwrap();
        topology.handle(at, input);
        drain(&mut topology);
    }
    assert_eq!(format!("{replayed:?}"), format!("{:?}", tap.events.lock().unwrap()));
    assert!(replayed.len() > 10, "{replayed:?}");
}

/// Ours, beyond the specification: a primary that hangs while another is elected costs a write no
/// more than the election. The block is longer than the test's patience.
#[tokio::test]
async fn a_write_on_a_hung_primary_goes_to_the_new_one_when_that_is_known() {
    let (first, second, members) = set_of_two().await;
    let block = rawdoc! { "blockConnection": true, "blockTimeMS": 60_000 };
    first.set_fail_point(fail("insert", 1, block));
    second.set_reply("insert", rawdoc! { "ok": 1, "n": 1 });
    let client = Client::with_uri(&format!("{}?replicaSet=rs", first.uri())).unwrap();
    soon(client.run_command("admin", &ping())).await.unwrap();
    let collection = client.collection("db", "c");
    let write = tokio::spawn(async move { collection.insert_one(doc! { "_id": 1 }).await });
    soon(async {
        while !first.command_names().contains(&"insert".to_owned()) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    second.set_hello(primary_hello("rs", second.address(), &members, 2));
    soon(write).await.unwrap().unwrap();
    let number = |server: &FakeServer| {
        let mut commands = server.commands().into_iter();
        let insert = commands.find(|command| command.get("insert").unwrap().is_some());
        insert.unwrap().get_i64("txnNumber").unwrap()
    };
    assert_eq!(number(&first), number(&second), "the same write, sent again");
    soon(client.close()).await;
}

/// A monitor, a timer or a pool that ended with the panic would leave the whole client behind.
#[tokio::test]
async fn a_listener_that_panics_keeps_the_client_from_nothing() {
    let server = FakeServer::start().await.unwrap();
    let mut options = ClientOptions::from_connection_string(&server.uri().parse().unwrap());
    options.listener = Some(std::sync::Arc::new(|event| {
        if !matches!(event, ClientEvent::Command(_)) {
            // A panic without the report.
            std::panic::resume_unwind(Box::new("on purpose"));
        }
    }));
    let client = Client::with_options(options).unwrap();
    soon(client.run_command("admin", &ping())).await.unwrap();
    // Each change is an event in the task of the monitor.
    for version in [20, 19] {
        let mut hello =
            rawdoc! { "ismaster": true, "isWritablePrimary": true, "minWireVersion": 0 };
        hello.append(bson::raw::cstr!("maxWireVersion"), version);
        server.set_hello(hello);
        soon(async {
            let known = || client.topology().server(server.address()).unwrap().wire_versions().max;
            while known() != version {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
    soon(client.run_command("admin", &ping())).await.unwrap();
    soon(client.close()).await;
    soon(server.wait_for_open_connections(0)).await;
}

/// A server that says which service a load balancer led to.
async fn service() -> FakeServer {
    let server = FakeServer::start().await.unwrap();
    server.set_hello(rawdoc! {
        "ismaster": true, "isWritablePrimary": true, "msg": "isdbgrid", "minWireVersion": 0,
        "maxWireVersion": 21, "logicalSessionTimeoutMinutes": 30,
        "serviceId": bson::oid::ObjectId::from_bytes([7; 12]),
    });
    server
}

/// "Connection Pinning" of the Load Balancer Support specification: another connection may lead to a
/// service that does not have the cursor.
#[tokio::test]
async fn a_cursor_behind_a_load_balancer_stays_on_its_connection() {
    let server = service().await;
    let batch = |name: &str, id: i64| {
        let mut cursor = rawdoc! { "id": id, "ns": "d.c" };
        let name = bson::raw::CString::try_from(name.to_owned()).unwrap();
        cursor.append(name, bson::RawArrayBuf::from_iter([rawdoc! { "a": 1 }]));
        rawdoc! { "cursor": cursor }
    };
    server.set_reply("find", batch("firstBatch", 77));
    server.set_reply("getMore", batch("nextBatch", 77));
    let client = Client::with_uri(&format!("{}?loadBalanced=true", server.uri())).unwrap();
    let mut events = client.events();
    let collection = client.collection("d", "c");
    let in_use = || {
        let (_, counts) = client.pools().pop().unwrap();
        counts.total - counts.available
    };
    let mut killed = soon(collection.find(doc! {})).await.unwrap();
    let mut ended = soon(collection.find(doc! {})).await.unwrap();
    assert_eq!(in_use(), 2);
    soon(client.run_command("admin", &ping())).await.unwrap();
    for cursor in [&mut killed, &mut ended] {
        for _ in 0..2 {
            soon(cursor.next()).await.unwrap();
        }
    }
    soon(killed.close()).await;
    server.set_reply("getMore", batch("nextBatch", 0));
    soon(ended.next()).await.unwrap();
    assert_eq!(in_use(), 0, "an exhausted cursor gives its connection back");
    let mut used = Vec::new();
    while used.len() < 7 {
        if let ClientEvent::Command(event) = soon(events.recv()).await.unwrap()
            && matches!(event.kind, CommandEventKind::Started { .. })
        {
            used.push((event.command_name, event.connection));
        }
    }
    let connection = |place: usize| used[place].1;
    let names: Vec<&str> = used.iter().map(|(name, _)| &**name).collect();
    assert_eq!(names, ["find", "find", "ping", "getMore", "getMore", "killCursors", "getMore"]);
    assert_eq!([connection(3), connection(5)], [connection(0); 2]);
    assert_eq!([connection(4), connection(6)], [connection(1); 2]);
    assert!(connection(0) != connection(1) && connection(2) != connection(0));
    soon(client.close()).await;
}

/// "Any errors that occur during the rest of connection establishment (e.g. errors during authentication
/// commands) MUST only clear connections for the `serviceId`."
#[tokio::test]
async fn a_failed_login_behind_a_load_balancer_clears_its_service() {
    let server = service().await;
    server.set_reply("authenticate", rawdoc! { "ok": 0, "code": 18, "errmsg": "no" });
    let uri = format!("{}?loadBalanced=true&authMechanism=MONGODB-X509&tls=true", server.uri());
    let mut options = ClientOptions::from_connection_string(&uri.parse().unwrap());
    options.tls = None;
    let client = Client::with_options(options).unwrap();
    let mut events = client.events();
    let error = soon(client.run_command("admin", &ping())).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::CheckOut(_)), "{error}");
    let cleared = loop {
        if let ClientEvent::Pool(event) = soon(events.recv()).await.unwrap()
            && let PoolEventKind::PoolCleared { service_id, .. } = event.kind
        {
            break service_id;
        }
    };
    assert_eq!(cleared, Some(ObjectId::from_bytes([7; 12])));
    soon(client.close()).await;
}
