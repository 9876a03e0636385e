//! The prose tests of the specifications, and what must hold when a client is gone.
//!
//! "Server Discovery And Monitoring: Test Plan" (streaming, RTT and heartbeat tests), the monitoring
//! rules that have no published scenario, and the prose tests of "Connection Monitoring and Pooling".
//! Times are compared with the core's own clock, never with the machine's.

// A panic in the functions that the tests share is a report, as it is in the tests.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bson::raw::RawDocumentBuf;
use bson::{RawArrayBuf, rawdoc};
use quorate_client::pool::{CheckOutFailureReason, PoolEventKind};
use quorate_client::{Client, ClientEvent, ClientOptions, ErrorKind, Tap};
use quorate_protocol::{MonotonicTime, ServerAddress};
use quorate_server_discovery::{DiscoveryEvent, Input, RecordingStart, ServerType};
use quorate_test_support::{FailPoint, FakeServer, primary_hello, standalone_hello};
use quorate_wire::{Decoder, MsgFlags, MsgWriter, Payload, RequestId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::broadcast::Receiver;

/// Nothing here takes long; what does is stuck.
const PATIENCE: Duration = Duration::from_secs(90);

/// How often a condition is polled that raises no event.
const GLANCE: Duration = Duration::from_millis(10);

async fn soon<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("it takes too long")
}

async fn until(condition: impl Fn() -> bool) {
    soon(async {
        while !condition() {
            tokio::time::sleep(GLANCE).await;
        }
    })
    .await;
}

fn ping() -> RawDocumentBuf {
    rawdoc! { "ping": 1 }
}

fn fail_point(mode: RawDocumentBuf, data: RawDocumentBuf) -> Option<FailPoint> {
    let configure = rawdoc! { "configureFailPoint": "failCommand", "mode": mode, "data": data };
    FailPoint::from_command(&configure).unwrap()
}

fn client_with(uri: &str, change: impl FnOnce(&mut ClientOptions)) -> Client {
    let mut options = ClientOptions::from_connection_string(&uri.parse().unwrap());
    change(&mut options);
    Client::with_options(options).unwrap()
}

/// Keeps every event in order.
fn listening() -> (quorate_client::EventListener, Arc<Mutex<Vec<ClientEvent>>>) {
    let events = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&events);
    (Arc::new(move |event| heard.lock().unwrap().push(event)), events)
}

/// "Streaming protocol Tests", 1: replies come as often as `heartbeatFrequencyMS` says.
#[tokio::test]
async fn a_shorter_heartbeat_makes_streamed_replies_more_frequent() {
    let server = FakeServer::start().await.unwrap();
    let client = Client::with_uri(&format!("{}?heartbeatFrequencyMS=500", server.uri())).unwrap();
    let mut events = client.events();
    let mut streamed = 0;
    while streamed < 3 {
        if let ClientEvent::Discovery(DiscoveryEvent::ServerHeartbeatSucceeded {
            heartbeat, ..
        }) = soon(events.recv()).await.unwrap()
        {
            streamed += usize::from(heartbeat.awaited);
        }
    }
    let asked = server.commands();
    let awaited = asked.iter().find_map(|hello| hello.get_i64("maxAwaitTimeMS").ok());
    assert_eq!(awaited, Some(500));
    soon(client.close()).await;
}

/// "RTT Tests", 1: a stream says nothing about distance, so it is measured beside it.
#[tokio::test]
async fn the_round_trip_time_is_updated_while_streaming() {
    let server = FakeServer::start().await.unwrap();
    let uri = format!("{}?heartbeatFrequencyMS=500&appName=streamingRttTest", server.uri());
    let (listener, events) = listening();
    let client = client_with(&uri, |options| options.listener = Some(listener));
    soon(client.run_command("admin", &ping())).await.unwrap();
    for event in events.lock().unwrap().iter() {
        if let ClientEvent::Discovery(DiscoveryEvent::ServerDescriptionChanged { new, .. }) = event
        {
            assert!(new.round_trip_time().is_some_and(|time| !time.is_zero()), "{new}");
        }
    }
    server.set_fail_point(fail_point(
        rawdoc! { "times": 1000 },
        rawdoc! {
            "failCommands": ["hello", "isMaster"], "blockConnection": true, "blockTimeMS": 500,
            "appName": "streamingRttTest",
        },
    ));
    until(|| {
        let topology = client.topology();
        let server = topology.server(server.address()).unwrap();
        server.round_trip_time().is_some_and(|time| time > Duration::from_millis(250))
    })
    .await;
    server.set_fail_point(None);
    soon(client.close()).await;
}

/// Notes when checks were started, by the core's clock.
#[derive(Default)]
struct Starts(Mutex<Vec<MonotonicTime>>);

impl Tap for Starts {
    fn on_start(&self, _: &RecordingStart) {}

    fn on_input(&self, _: MonotonicTime, _: &Input) {}

    fn on_event(&self, at: MonotonicTime, event: &DiscoveryEvent) {
        if matches!(event, DiscoveryEvent::ServerHeartbeatStarted { .. }) {
            self.0.lock().unwrap().push(at);
        }
    }
}

/// "Monitors sleep at least minHeartbeatFrequencyMS between checks": even while an operation wants
/// to know at once.
#[tokio::test]
async fn monitors_rest_for_half_a_second_between_checks() {
    const FAILURES: i32 = 3;
    let server = FakeServer::start().await.unwrap();
    server.set_fail_point(fail_point(
        rawdoc! { "times": FAILURES },
        rawdoc! { "failCommands": ["isMaster", "hello"], "errorCode": 1234 },
    ));
    let starts = Arc::new(Starts::default());
    let tap = Arc::clone(&starts);
    let client = client_with(&server.uri(), |options| options.tap = Some(tap));
    soon(client.run_command("admin", &ping())).await.unwrap();
    let starts = starts.0.lock().unwrap()[..=FAILURES as usize].to_vec();
    for pair in starts.windows(2) {
        let rest = pair[1].since(pair[0]);
        assert!(rest >= Duration::from_millis(500), "{rest:?}");
    }
    soon(client.close()).await;
}

/// "Connection Pool Management": a pool is ready before its server is told of, is cleared after a
/// check failed, and is ready again after the next success.
#[tokio::test]
async fn a_pool_follows_the_checks_of_its_server() {
    let server = FakeServer::start().await.unwrap();
    let (listener, events) = listening();
    let client = client_with(&server.uri(), |options| options.listener = Some(listener));
    soon(client.run_command("admin", &ping())).await.unwrap();
    events.lock().unwrap().clear();
    server.kill_connections();
    let told = || {
        let events = events.lock().unwrap();
        let names = events.iter().filter_map(|event| match event {
            ClientEvent::Discovery(DiscoveryEvent::ServerDescriptionChanged { new, .. }) => {
                Some(new.server_type().name())
            }
            ClientEvent::Pool(event) => match event.kind {
                PoolEventKind::PoolCleared { .. } => Some("cleared"),
                PoolEventKind::PoolReady => Some("ready"),
                _ => None,
            },
            _ => None,
        });
        names.collect::<Vec<_>>()
    };
    until(|| told().len() >= 4).await;
    assert_eq!(told(), ["Unknown", "cleared", "ready", "Standalone"]);
    soon(client.run_command("admin", &ping())).await.unwrap();
    soon(client.close()).await;
}

/// Pooling prose tests 1 to 4: every option is the client's, can be given in the connection string,
/// is the same for all pools, and events can be listened to.
#[tokio::test]
async fn every_pool_has_the_options_of_the_connection_string() {
    let servers = [FakeServer::start().await.unwrap(), FakeServer::start().await.unwrap()];
    let members: Vec<ServerAddress> = servers.iter().map(|one| one.address().clone()).collect();
    servers[0].set_hello(primary_hello("rs", &members[0], &members, 1));
    let hosts = RawArrayBuf::from_iter(members.iter().map(ServerAddress::as_str));
    servers[1].set_hello(rawdoc! {
        "ismaster": false, "secondary": true, "setName": "rs", "setVersion": 1, "hosts": hosts,
        "me": members[1].as_str(), "minWireVersion": 0, "maxWireVersion": 21,
    });
    let uri = format!(
        "{}?replicaSet=rs&maxPoolSize=7&minPoolSize=1&maxIdleTimeMS=60000&maxConnecting=3\
         &waitQueueTimeoutMS=5000",
        servers[0].uri()
    );
    let (listener, events) = listening();
    let client = client_with(&uri, |options| options.listener = Some(listener));
    let created = || {
        let events = events.lock().unwrap();
        let created = events.iter().filter_map(|event| match event {
            ClientEvent::Pool(event) => match &event.kind {
                PoolEventKind::PoolCreated { options } => Some(options.clone()),
                _ => None,
            },
            _ => None,
        });
        created.collect::<Vec<_>>()
    };
    until(|| created().len() == 2).await;
    for options in created() {
        assert_eq!((options.max_pool_size, options.min_pool_size), (Some(7), 1));
        assert_eq!(options.max_idle_time, Some(Duration::from_secs(60)));
        assert_eq!(options.max_connecting, 3);
        assert_eq!(options.wait_queue_timeout, Some(Duration::from_secs(5)));
    }
    soon(client.close()).await;
}

/// Pooling prose test 5.
#[tokio::test]
async fn a_connection_that_cannot_be_set_up_fails_the_check_out() {
    let server = FakeServer::start().await.unwrap();
    server.set_reply("authenticate", rawdoc! { "ok": 0, "code": 18, "errmsg": "no" });
    let uri = format!("mongodb://{}/?authMechanism=MONGODB-X509&tls=true", server.address());
    let (listener, events) = listening();
    let client = client_with(&uri, |options| {
        options.tls = None;
        options.listener = Some(listener);
    });
    let error = soon(client.run_command("admin", &ping())).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::CheckOut(_)), "{error}");
    let failed = events.lock().unwrap().iter().any(|event| {
        matches!(event, ClientEvent::Pool(event) if matches!(event.kind,
            PoolEventKind::CheckOutFailed { reason: CheckOutFailureReason::ConnectionError, .. }))
    });
    assert!(failed);
    soon(client.close()).await;
}

fn entries(folder: &str) -> usize {
    std::fs::read_dir(folder).unwrap().count()
}

/// A closed client leaves nothing: no task, no thread, no socket.
#[tokio::test]
async fn closing_leaves_no_task_no_thread_and_no_socket() {
    let servers = [FakeServer::start().await.unwrap(), FakeServer::start().await.unwrap()];
    let members: Vec<ServerAddress> = servers.iter().map(|one| one.address().clone()).collect();
    servers[0].set_hello(primary_hello("rs", &members[0], &members, 1));
    let runtime = tokio::runtime::Handle::current();
    let tasks = || runtime.metrics().num_alive_tasks();
    let before = (tasks(), entries("/proc/self/task"), entries("/proc/self/fd"));
    let uri = format!("{}?replicaSet=rs&minPoolSize=3&heartbeatFrequencyMS=500", servers[0].uri());
    let client = Client::with_uri(&uri).unwrap();
    soon(client.run_command("admin", &ping())).await.unwrap();
    // Its monitor, a pool of three, and a round trip beside the stream.
    until(|| servers[0].open_connections() >= 5).await;
    assert!(tasks() > before.0 && entries("/proc/self/fd") > before.2);
    soon(client.close()).await;
    // The servers notice when they are next scheduled, and their tasks and sockets end with that.
    for server in &servers {
        soon(server.wait_for_open_connections(0)).await;
    }
    until(|| (tasks(), entries("/proc/self/task"), entries("/proc/self/fd")) == before).await;
}

/// A thousand seeds, every second of which takes connections and says nothing: all others are found
/// before the first silent one is given up, which is what one `connectTimeoutMS` takes.
#[tokio::test]
async fn half_of_a_thousand_seeds_may_be_silent() {
    const SEEDS: usize = 1000;
    let mut silent = Vec::new();
    let mut seeds = Vec::new();
    // One listener for all that answer: each connection to it is served alike.
    let answering = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = answering.local_addr().unwrap().port();
    let mut known = BTreeSet::new();
    for number in 0..SEEDS / 2 {
        // The whole of 127.0.0.0/8 is this machine, and every address of it is a server of its own
        // to the client, which the host map leads to the one listener.
        let name: ServerAddress =
            format!("127.1.{}.{}:{port}", number / 200, number % 200 + 1).parse().unwrap();
        seeds.push(name.to_string());
        known.insert(name);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        seeds.push(listener.local_addr().unwrap().to_string());
        silent.push(listener);
    }
    tokio::spawn(serve_routers(answering));
    let (listener, events) = listening();
    let reachable: ServerAddress = format!("127.0.0.1:{port}").parse().unwrap();
    let uri = format!("mongodb://{}/?connectTimeoutMS=80000", seeds.join(","));
    let client = client_with(&uri, |options| {
        options.listener = Some(listener);
        options.host_map = known.iter().map(|name| (name.clone(), reachable.clone())).collect();
    });
    until(|| {
        let topology = client.topology();
        let found = topology.servers().iter().filter(|one| one.server_type() == ServerType::Mongos);
        found.count() == SEEDS / 2
    })
    .await;
    let failed = events.lock().unwrap().iter().any(|event| {
        matches!(event, ClientEvent::Discovery(DiscoveryEvent::ServerHeartbeatFailed { .. }))
    });
    assert!(!failed, "a silent seed was given up before the others were found");
    soon(client.close()).await;
}

async fn serve_routers(listener: TcpListener) {
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(serve_router(stream));
    }
}

/// Answers every hello as a router that does not stream.
async fn serve_router(mut stream: TcpStream) -> Option<()> {
    let mut hello = standalone_hello();
    hello.append(bson::raw::cstr!("msg"), "isdbgrid");
    hello.append(bson::raw::cstr!("ok"), 1);
    let mut decoder = Decoder::new();
    loop {
        while let Some(message) = decoder.next_message().ok()? {
            let mut out = Vec::new();
            let id = message.header.request_id;
            MsgWriter::new(&mut out, RequestId(1), id, MsgFlags::NONE, &hello).finish(None).ok()?;
            stream.write_all(&out).await.ok()?;
        }
        if stream.read_buf(decoder.input()).await.ok()? == 0 {
            return None;
        }
    }
}

/// A server that answers one awaited hello with replies without end, as fast as it can, keeps
/// neither the others from being used nor the client from closing, on one thread.
#[tokio::test]
async fn endless_replies_starve_no_other_task() {
    let flooding = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let flooder: ServerAddress = flooding.local_addr().unwrap().to_string().parse().unwrap();
    let sane = FakeServer::start().await.unwrap();
    let members = vec![sane.address().clone(), flooder.clone()];
    sane.set_hello(primary_hello("rs", sane.address(), &members, 1));
    let flood = std::thread::spawn({
        let (members, me) = (members.clone(), flooder.clone());
        let listener = flooding.into_std().unwrap();
        move || flood(&listener, &members, &me)
    });
    let client = Client::with_uri(&format!("{}?replicaSet=rs", sane.uri())).unwrap();
    let mut events = client.events();
    soon(heartbeats_of(&mut events, &flooder, 500)).await;
    for _ in 0..20 {
        soon(client.run_command("admin", &ping())).await.unwrap();
    }
    let known = client.topology().server(&flooder).map(|server| server.server_type());
    assert_eq!(known, Some(ServerType::RsSecondary));
    soon(client.close()).await;
    // The last subscriber is gone, so that it ends.
    tokio::task::spawn_blocking(move || flood.join().unwrap()).await.unwrap();
}

async fn heartbeats_of(events: &mut Receiver<ClientEvent>, who: &ServerAddress, count: usize) {
    let mut heard = 0;
    while heard < count {
        // Falling behind is no wonder, and no error here.
        if let Ok(ClientEvent::Discovery(DiscoveryEvent::ServerHeartbeatSucceeded {
            heartbeat,
            ..
        })) = events.recv().await
        {
            heard += usize::from(heartbeat.address == *who);
        }
    }
}

/// Serves the first connection on a thread of its own, so that the client's has to hold out.
fn flood(listener: &std::net::TcpListener, members: &[ServerAddress], me: &ServerAddress) {
    use std::io::{Read, Write};
    listener.set_nonblocking(false).unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    let hosts = RawArrayBuf::from_iter(members.iter().map(ServerAddress::as_str));
    let hello = rawdoc! {
        "ok": 1, "helloOk": true, "secondary": true, "setName": "rs", "setVersion": 1,
        "hosts": hosts, "me": me.as_str(), "minWireVersion": 0, "maxWireVersion": 21,
        "topologyVersion": { "processId": bson::oid::ObjectId::from_bytes([3; 12]), "counter": 1_i64 },
    };
    let reply = |to, flags| {
        let mut out = Vec::new();
        MsgWriter::new(&mut out, RequestId(1), to, flags, &hello).finish(None).unwrap();
        out
    };
    let mut decoder = Decoder::new();
    let mut chunk = [0; 4096];
    loop {
        let Ok(read @ 1..) = stream.read(&mut chunk) else { return };
        decoder.input().extend_from_slice(&chunk[..read]);
        while let Some(message) = decoder.next_message().unwrap() {
            let id = message.header.request_id;
            let Payload::Msg(request) = message.payload else { return };
            if !request.flags().contains(MsgFlags::EXHAUST_ALLOWED) {
                stream.write_all(&reply(id, MsgFlags::NONE)).unwrap();
                continue;
            }
            if stream.write_all(&reply(id, MsgFlags::MORE_TO_COME)).is_err() {
                return;
            }
            let next = reply(RequestId(1), MsgFlags::MORE_TO_COME);
            while stream.write_all(&next).is_ok() {}
            return;
        }
    }
}
