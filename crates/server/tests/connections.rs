//! Bytes on a real socket: framing, streaming, injected faults, limits and the end.

#![allow(clippy::unwrap_used, reason = "a panic is the report")]

mod support;

use std::time::Duration;

use bson::{Document, RawDocumentBuf, doc};
use quorate_server::ServerOptions;
use quorate_wire::{
    Compressor, CompressorId, Decoder, MsgFlags, MsgWriter, OpQuery, Payload, QueryFlags, RequestId,
};
use support::TestServer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// How long a client waits for the server.
const DEADLINE: Duration = Duration::from_secs(60);

struct TestClient {
    stream: TcpStream,
    decoder: Decoder,
    next_request: i32,
}

struct Answer {
    body: Document,
    more_to_come: bool,
    compressed: bool,
    request_id: i32,
    response_to: i32,
}

impl TestClient {
    async fn connect(server: &TestServer) -> Self {
        let stream = TcpStream::connect(server.address).await.unwrap();
        Self { stream, decoder: Decoder::new(), next_request: 100 }
    }

    async fn send(&mut self, body: Document, flags: MsgFlags, compressor: Option<&mut Compressor>) {
        self.next_request += 1;
        let id = RequestId(self.next_request);
        let raw = RawDocumentBuf::try_from(&body).unwrap();
        let mut bytes = Vec::new();
        MsgWriter::new(&mut bytes, id, RequestId(0), flags, &raw).finish(compressor).unwrap();
        self.stream.write_all(&bytes).await.unwrap();
    }

    /// Whether the server closes the connection instead of answering, at the latest when it has read
    /// the whole message.
    async fn is_cut_off(&mut self, body: Document, compressor: Option<&mut Compressor>) -> bool {
        let raw = RawDocumentBuf::try_from(&body).unwrap();
        let mut bytes = Vec::new();
        MsgWriter::new(&mut bytes, RequestId(1), RequestId(0), MsgFlags::NONE, &raw)
            .finish(compressor)
            .unwrap();
        let mut reply = [0; 1];
        self.stream.write_all(&bytes).await.is_err()
            || !matches!(self.stream.read(&mut reply).await, Ok(1))
    }

    /// The next reply; none if the server closed the connection.
    async fn receive(&mut self) -> Option<Answer> {
        loop {
            if let Some(message) = self.decoder.next_message().unwrap() {
                let header = message.header;
                let (body, more_to_come) = match message.payload {
                    Payload::Msg(msg) => {
                        let body = Document::try_from(msg.body()).unwrap();
                        (body, msg.flags().contains(MsgFlags::MORE_TO_COME))
                    }
                    Payload::Reply(reply) => {
                        let first = reply.documents().next().unwrap();
                        (Document::try_from(first).unwrap(), false)
                    }
                    Payload::Query(_) => panic!("servers do not ask"),
                };
                return Some(Answer {
                    body,
                    more_to_come,
                    compressed: message.compressed,
                    request_id: header.request_id.0,
                    response_to: header.response_to.0,
                });
            }
            let reading = self.stream.read_buf(self.decoder.input());
            let read = tokio::time::timeout(DEADLINE, reading).await;
            if read.expect("the server answers or closes").unwrap_or(0) == 0 {
                return None;
            }
        }
    }

    /// Sends a `hello` that waits for a change of what the server is now, this many milliseconds at most.
    async fn await_change(&mut self, millis: i64, flags: MsgFlags) {
        let hello = self.run(doc! {"hello": 1, "$db": "admin"}).await;
        let version = hello.get_document("topologyVersion").unwrap().clone();
        let waiting = doc! {
            "hello": 1, "$db": "admin", "topologyVersion": version, "maxAwaitTimeMS": millis,
        };
        self.send(waiting, flags, None).await;
    }

    async fn run(&mut self, body: Document) -> Document {
        self.send(body, MsgFlags::NONE, None).await;
        let answer = self.receive().await.unwrap();
        assert_eq!(answer.response_to, self.next_request);
        answer.body
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_legacy_handshake_is_answered_in_kind() {
    let server = TestServer::start().await;
    let mut client = TestClient::connect(&server).await;
    let command = RawDocumentBuf::try_from(&doc! {"isMaster": 1, "helloOk": true}).unwrap();
    let mut bytes = Vec::new();
    let namespace = bson::raw::cstr!("admin.$cmd");
    OpQuery::append_command(&mut bytes, RequestId(9), QueryFlags::NONE, namespace, &command)
        .unwrap();
    client.stream.write_all(&bytes).await.unwrap();
    let answer = client.receive().await.unwrap();
    assert_eq!(answer.response_to, 9);
    assert!(answer.body.get_bool("ismaster").unwrap() && answer.body.get_bool("helloOk").unwrap());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_streaming_hello_goes_on_answering_until_the_client_leaves() {
    let server = TestServer::start().await;
    let mut client = TestClient::connect(&server).await;
    client.await_change(20, MsgFlags::EXHAUST_ALLOWED).await;
    let first = client.receive().await.unwrap();
    assert!(first.more_to_come, "{}", first.body);
    let second = client.receive().await.unwrap();
    assert!(second.more_to_come);
    assert_eq!(second.response_to, first.request_id, "each answers the one before");
    drop(client);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fail_point_hits_a_stream_of_hellos_that_has_begun() {
    let server = TestServer::start().await;
    let mut client = TestClient::connect(&server).await;
    client.await_change(20, MsgFlags::EXHAUST_ALLOWED).await;
    assert!(client.receive().await.unwrap().more_to_come);
    let mut other = TestClient::connect(&server).await;
    let data = doc! {"failCommands": ["hello"], "errorCode": 91};
    let mode = doc! {"times": 1};
    let fault =
        doc! {"configureFailPoint": "failCommand", "mode": mode, "data": data, "$db": "admin"};
    assert_eq!(other.run(fault).await.get_f64("ok").unwrap(), 1.0);
    let ended = tokio::time::timeout(Duration::from_secs(30), async {
        loop {
            let next = client.receive().await.unwrap();
            if !next.more_to_come {
                return next.body;
            }
        }
    });
    assert_eq!(ended.await.unwrap().get_i32("code").unwrap(), 91);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hello_streams_only_if_it_may_wait_and_the_client_allows_it() {
    let server = TestServer::start().await;
    let mut client = TestClient::connect(&server).await;
    let hello = doc! {"hello": 1, "$db": "admin"};
    client.send(hello.clone(), MsgFlags::EXHAUST_ALLOWED, None).await;
    let refused = client.receive().await.unwrap();
    assert_eq!(refused.body.get_i32("code").unwrap(), 51756, "{}", refused.body);
    let version = client.run(hello).await.get_document("topologyVersion").unwrap().clone();
    let waiting = doc! {
        "hello": 1, "$db": "admin", "topologyVersion": version, "maxAwaitTimeMS": 20,
    };
    client.send(waiting, MsgFlags::NONE, None).await;
    assert!(!client.receive().await.unwrap().more_to_come, "it was not allowed");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unacknowledged_message_gets_no_reply() {
    let server = TestServer::start().await;
    let mut client = TestClient::connect(&server).await;
    let insert = doc! {
        "insert": "c", "documents": [{"_id": 1}], "writeConcern": {"w": 0}, "$db": "db",
    };
    client.send(insert, MsgFlags::MORE_TO_COME, None).await;
    let count = client.run(doc! {"count": "c", "$db": "db"}).await;
    assert_eq!(count.get_i32("n").unwrap(), 1);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn compressed_requests_get_compressed_replies() {
    let server = TestServer::start().await;
    for (name, id) in [
        ("zstd", CompressorId::Zstd),
        ("snappy", CompressorId::Snappy),
        ("zlib", CompressorId::Zlib),
    ] {
        let mut client = TestClient::connect(&server).await;
        let hello = client.run(doc! {"hello": 1, "compression": [name], "$db": "admin"}).await;
        assert_eq!(hello.get_array("compression").unwrap()[0].as_str(), Some(name));
        let mut compressor = Compressor::new(id).unwrap();
        let ping = doc! {"ping": 1, "$db": "admin"};
        client.send(ping, MsgFlags::NONE, Some(&mut compressor)).await;
        let answer = client.receive().await.unwrap();
        assert!(answer.compressed, "{name}");
        assert_eq!(answer.body.get_f64("ok").unwrap(), 1.0);
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn injected_faults_hit_the_commands_they_name() {
    let server = TestServer::start().await;
    let mut client = TestClient::connect(&server).await;
    let configure = |data: Document| {
        doc! {
            "configureFailPoint": "failCommand", "mode": {"times": 1}, "data": data, "$db": "admin",
        }
    };
    let ping = doc! {"ping": 1, "$db": "admin"};
    client.run(configure(doc! {"failCommands": ["ping"], "errorCode": 91})).await;
    assert_eq!(client.run(ping.clone()).await.get_i32("code").unwrap(), 91);
    assert_eq!(client.run(ping.clone()).await.get_f64("ok").unwrap(), 1.0);

    let concern = doc! {"code": 64, "errmsg": "waiting for replication timed out"};
    let data = doc! {"failCommands": ["insert"], "writeConcernError": concern};
    client.run(configure(data)).await;
    let reply = client.run(doc! {"insert": "c", "documents": [{}], "$db": "db"}).await;
    assert_eq!(reply.get_i32("n").unwrap(), 1);
    assert_eq!(reply.get_document("writeConcernError").unwrap().get_i32("code").unwrap(), 64);

    client.run(configure(doc! {"failCommands": ["ping"], "closeConnection": true})).await;
    client.send(ping, MsgFlags::NONE, None).await;
    assert!(client.receive().await.is_none(), "the connection is closed without a reply");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_closes_the_connection_and_nothing_else() {
    let server = TestServer::start().await;
    let mut bystander = TestClient::connect(&server).await;
    let mut client = TestClient::connect(&server).await;
    client.stream.write_all(&[0xFF; 64]).await.unwrap();
    assert!(client.receive().await.is_none());
    assert_eq!(bystander.run(doc! {"ping": 1, "$db": "admin"}).await.get_f64("ok").unwrap(), 1.0);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_over_the_limit_are_told_so_and_closed() {
    let server =
        TestServer::start_with(ServerOptions { max_connections: 1, ..ServerOptions::default() })
            .await;
    let mut first = TestClient::connect(&server).await;
    first.run(doc! {"ping": 1, "$db": "admin"}).await;
    let mut second = TestClient::connect(&server).await;
    let refusal = second.run(doc! {"hello": 1, "$db": "admin"}).await;
    assert_eq!(refusal.get_i32("code").unwrap(), 462, "{refusal}");
    assert!(refusal.get_str("errmsg").unwrap().contains("--max-connections"));
    assert!(second.receive().await.is_none());
    first.run(doc! {"ping": 1, "$db": "admin"}).await;
    server.stop().await;
}

/// Specification: OP_MSG, "Global Command Arguments". A command without a database would run on another than meant.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_names_its_database() {
    let server = TestServer::start().await;
    let mut client = TestClient::connect(&server).await;
    assert_eq!(client.run(doc! {"ping": 1}).await.get_i32("code").unwrap(), 40571);
    assert_eq!(client.run(doc! {"ping": 1, "$db": 5}).await.get_i32("code").unwrap(), 14);
    let reply = client.run(doc! {"ping": 1, "$db": "db"}).await;
    assert_eq!(reply.get_f64("ok").unwrap(), 1.0, "{reply}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_is_stopped_when_its_time_is_over() {
    let server = TestServer::start().await;
    let mut client = TestClient::connect(&server).await;
    let batch: Vec<_> = (0..2000).map(|n| doc! {"n": n, "text": "x".repeat(200)}).collect();
    for _ in 0..10 {
        client.run(doc! {"insert": "c", "documents": batch.clone(), "$db": "db"}).await;
    }
    let pattern =
        bson::Regex { pattern: "^(x+x+)+y$".try_into().unwrap(), options: "".try_into().unwrap() };
    let slow = doc! {"count": "c", "query": {"text": pattern.clone()}, "maxTimeMS": 1, "$db": "db"};
    assert_eq!(client.run(slow).await.get_i32("code").unwrap(), 50);
    // A stage that makes much of little is stopped as well: this would take a week.
    let many = doc! {"$set": {"list": {"$range": [0, 10_000]}}};
    let unwound = [many, doc! {"$unwind": "$list"}];
    let grouped = [doc! {"$group": {"_id": "$list", "n": {"$sum": 1}}}];
    let mut counted = vec![doc! {"$limit": 1}];
    counted.extend(unwound.iter().cycle().take(6).chain(&grouped).cloned());
    let endless = doc! {
        "aggregate": "c", "pipeline": counted, "cursor": {}, "maxTimeMS": 20, "$db": "db",
    };
    assert_eq!(client.run(endless).await.get_i32("code").unwrap(), 50);
    // What a find has left of its time is all that its cursor gets.
    for (limit, code) in [(1, Some(50)), (0, None), (i64::from(i32::MAX), None)] {
        let find = doc! {
            "find": "c", "filter": {"text": pattern.clone()}, "batchSize": 0, "maxTimeMS": limit,
            "$db": "db",
        };
        let opened = client.run(find).await;
        let cursor = opened.get_document("cursor").unwrap().get_i64("id").unwrap();
        let more = client.run(doc! {"getMore": cursor, "collection": "c", "$db": "db"}).await;
        assert_eq!(more.get_i32("code").ok(), code, "{more}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn durable_writes_of_many_clients_share_syncs() {
    const CLIENTS: usize = 16;
    const WRITES: usize = 20;
    let options =
        ServerOptions { journal_interval: Duration::from_secs(3600), ..ServerOptions::default() };
    let server = TestServer::start_with(options).await;
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..CLIENTS {
        let mut client = TestClient::connect(&server).await;
        tasks.spawn(async move {
            for _ in 0..WRITES {
                let insert = doc! {
                    "insert": "c", "documents": [{}], "writeConcern": {"j": true}, "$db": "db",
                };
                assert_eq!(client.run(insert).await.get_i32("n").unwrap(), 1);
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    let (committed, synced) = server.node.durability();
    assert_eq!(committed, synced, "every acknowledged write is on disk");
    let statistics = server.node.store_statistics();
    assert!(statistics.commits >= (CLIENTS * WRITES) as u64);
    assert!(
        statistics.syncs < statistics.commits,
        "{} syncs for {} commits",
        statistics.syncs,
        statistics.commits
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_can_ask_the_server_to_end() {
    let server = TestServer::start().await;
    let mut client = TestClient::connect(&server).await;
    client.send(doc! {"shutdown": 1, "$db": "admin"}, MsgFlags::NONE, None).await;
    assert!(client.receive().await.is_none());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_ends_says_so_to_waiting_clients() {
    let options = ServerOptions { quiesce: Duration::from_millis(300), ..ServerOptions::default() };
    let server = TestServer::start_with(options).await;
    let mut watcher = TestClient::connect(&server).await;
    let mut other = TestClient::connect(&server).await;
    let hello = watcher.run(doc! {"hello": 1, "$db": "admin"}).await;
    let version = hello.get_document("topologyVersion").unwrap().clone();
    let waiting = doc! {
        "hello": 1, "$db": "admin", "topologyVersion": version.clone(), "maxAwaitTimeMS": 60_000,
    };
    watcher.send(waiting, MsgFlags::EXHAUST_ALLOWED, None).await;
    other.run(doc! {"ping": 1, "$db": "admin"}).await;
    let stopping = tokio::spawn(server.stop());
    let news = watcher.receive().await.unwrap();
    assert_eq!(news.body.get_i32("code").unwrap(), 91, "{}", news.body);
    assert!(!news.more_to_come, "an error ends the stream");
    let newer = news.body.get_document("topologyVersion").unwrap();
    assert!(newer.get_i64("counter").unwrap() > version.get_i64("counter").unwrap());
    // Commands in progress and new ones on open connections still run.
    assert_eq!(other.run(doc! {"ping": 1, "$db": "admin"}).await.get_f64("ok").unwrap(), 1.0);
    stopping.await.unwrap();
    assert!(other.receive().await.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_waits_is_seen_and_can_be_killed() {
    see_and_kill_a_waiting_hello(MsgFlags::NONE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_hellos_is_seen_and_can_be_killed() {
    see_and_kill_a_waiting_hello(MsgFlags::EXHAUST_ALLOWED).await;
}

async fn see_and_kill_a_waiting_hello(flags: MsgFlags) {
    let server = TestServer::start().await;
    let mut waiting = TestClient::connect(&server).await;
    waiting.await_change(600_000, flags).await;
    let mut watcher = TestClient::connect(&server).await;
    let question = doc! {
        "currentOp": 1, "waiting": true, "command.hello": {"$exists": true},
        // A command that came after the question has not run at all yet.
        "microsecs_running": {"$gt": 0}, "$db": "admin",
    };
    let operation = tokio::time::timeout(Duration::from_secs(30), async {
        loop {
            let reply = watcher.run(question.clone()).await;
            let found = reply.get_array("inprog").unwrap();
            if let Some(operation) = found.first() {
                return operation.as_document().unwrap().clone();
            }
        }
    })
    .await
    .unwrap();
    assert_eq!(operation.get_str("ns").unwrap(), "admin.$cmd");
    let own = watcher.run(doc! {"currentOp": 1, "$ownOps": true, "$db": "admin"}).await;
    let own = own.get_array("inprog").unwrap();
    assert_eq!(own.len(), 1, "{own:?}");
    assert_eq!(own[0].as_document().unwrap().get_str("op").unwrap(), "command");
    let stage =
        doc! {"aggregate": 1, "pipeline": [{"$currentOp": {}}], "cursor": {}, "$db": "admin"};
    let listed = watcher.run(stage).await;
    let listed = listed.get_document("cursor").unwrap().get_array("firstBatch").unwrap().len();
    assert_eq!(listed, 2);
    let id = operation.get("opid").unwrap().clone();
    watcher.run(doc! {"killOp": 1, "op": id, "$db": "admin"}).await;
    let answer = waiting.receive().await.unwrap();
    assert_eq!(answer.body.get_i32("code").unwrap(), 11601, "{}", answer.body);
    assert!(!answer.more_to_come, "an error ends a stream");
    assert_eq!(waiting.run(doc! {"ping": 1, "$db": "admin"}).await.get_f64("ok").unwrap(), 1.0);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_of_logins_are_not_shown_and_levels_are_kept() {
    let server = TestServer::start().await;
    let mut client = TestClient::connect(&server).await;
    let was = client.run(doc! {"profile": 2, "slowms": 5, "$db": "db"}).await;
    assert_eq!((was.get_i32("was").unwrap(), was.get_i64("slowms").unwrap()), (0, 100));
    let now = client.run(doc! {"profile": -1, "$db": "db"}).await;
    assert_eq!((now.get_i32("was").unwrap(), now.get_i64("slowms").unwrap()), (2, 5));
    assert_eq!(client.run(doc! {"profile": 3, "$db": "db"}).await.get_i32("code").unwrap(), 2);
    let names = client.run(doc! {"getLog": "*", "$db": "admin"}).await;
    assert_eq!(names.get_array("names").unwrap().len(), 2);
    let log = client.run(doc! {"getLog": "global", "$db": "admin"}).await;
    assert!(log.contains_key("totalLinesWritten"), "{log}");
    let no = client.run(doc! {"getLog": "nothing", "$db": "admin"}).await;
    assert_eq!(no.get_i32("code").unwrap(), 96);
    server.stop().await;
}

/// Every limit has its code: depth, size of a message, and what a client does not take.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_too_deep_or_too_long_is_refused() {
    let server = TestServer::start().await;
    let mut client = TestClient::connect(&server).await;
    let mut deep = doc! {"x": 1};
    for _ in 0..250 {
        deep = doc! {"x": deep};
    }
    let reply = client.run(doc! {"insert": "c", "documents": [deep], "$db": "db"}).await;
    assert_eq!(reply.get_f64("ok").unwrap(), 0.0, "{reply}");
    assert_eq!(reply.get_i32("code").unwrap(), 15, "{reply}");
    let statements: Vec<_> = (0..100_001).map(|n| doc! {"_id": n}).collect();
    let reply = client.run(doc! {"insert": "c", "documents": statements, "$db": "db"}).await;
    assert_eq!(reply.get_i32("code").unwrap(), 16, "{reply}");
    // A message longer than any may be is not even read.
    client.stream.write_all(&(48_000_001_i32 + 16 * 1024).to_le_bytes()).await.unwrap();
    client.stream.write_all(&[0; 12]).await.unwrap();
    assert!(client.receive().await.is_none());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_take_its_replies_is_cut_off() {
    let server = TestServer::start_with(ServerOptions {
        write_timeout: Duration::from_millis(200),
        ..ServerOptions::default()
    })
    .await;
    let mut client = TestClient::connect(&server).await;
    let long = "x".repeat(1 << 20);
    for id in 0..12 {
        let document = doc! {"_id": id, "text": &long};
        client.run(doc! {"insert": "c", "documents": [document], "$db": "db"}).await;
    }
    // The client does not read: the first replies fill the socket, and one of the next waits too long.
    for _ in 0..8 {
        client.send(doc! {"find": "c", "$db": "db"}, MsgFlags::NONE, None).await;
    }
    let mut watcher = TestClient::connect(&server).await;
    let gone = async {
        loop {
            let status = watcher.run(doc! {"serverStatus": 1, "$db": "admin"}).await;
            let connections = status.get_document("connections").unwrap();
            if connections.get_i32("current").unwrap() == 1 {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(30), gone).await.unwrap();
    server.stop().await;
}

/// Returns once `currentOp` shows an insert that waits for the lock to be taken back.
async fn until_an_insert_waits(client: &mut TestClient) {
    loop {
        let running = client.run(doc! {"currentOp": 1, "op": "insert", "$db": "admin"}).await;
        assert!(running.get_bool("fsyncLock").unwrap(), "{running}");
        let mut shown = running.get_array("inprog").unwrap().iter();
        if shown.any(|shown| shown.as_document().unwrap().get_bool("waiting").unwrap()) {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_wait_while_they_are_locked_out_and_reads_go_on() {
    let server = TestServer::start().await;
    let mut client = TestClient::connect(&server).await;
    let unlock = doc! {"fsyncUnlock": 1, "$db": "admin"};
    assert_eq!(client.run(unlock.clone()).await.get_i32("code").unwrap(), 20);
    let insert = |id: i32| doc! {"insert": "c", "documents": [{"_id": id}], "$db": "db"};
    client.run(insert(1)).await;
    for count in 1..=2_i64 {
        let locked = client.run(doc! {"fsync": 1, "lock": true, "$db": "admin"}).await;
        assert_eq!(locked.get_i64("lockCount").unwrap(), count, "{locked}");
    }
    let (committed, synced) = server.node.durability();
    assert_eq!(committed, synced);
    let mut late = insert(2);
    late.insert("maxTimeMS", 50);
    let late = client.run(late).await;
    assert_eq!(late.get_i32("code").unwrap(), 50, "{late}");
    let found =
        client.run(doc! {"aggregate": "c", "pipeline": [], "cursor": {}, "$db": "db"}).await;
    assert_eq!(found.get_document("cursor").unwrap().get_array("firstBatch").unwrap().len(), 1);

    let mut writer = TestClient::connect(&server).await;
    writer.send(insert(3), MsgFlags::NONE, None).await;
    until_an_insert_waits(&mut client).await;
    assert_eq!(client.run(unlock.clone()).await.get_i64("lockCount").unwrap(), 1);
    assert_eq!(server.node.durability().0, committed, "one lock is left");
    assert_eq!(client.run(unlock).await.get_i64("lockCount").unwrap(), 0);
    assert_eq!(writer.receive().await.unwrap().body.get_i32("n").unwrap(), 1);
    let running = client.run(doc! {"currentOp": 1, "$db": "admin"}).await;
    assert!(!running.contains_key("fsyncLock"));

    // Clients that wait when the server ends are told, and do not hold it up.
    client.run(doc! {"fsync": 1, "lock": true, "$db": "admin"}).await;
    writer.send(insert(4), MsgFlags::NONE, None).await;
    until_an_insert_waits(&mut client).await;
    server.stop().await;
    assert_eq!(writer.receive().await.unwrap().body.get_i32("code").unwrap(), 11600);
}

#[tokio::test(flavor = "multi_thread")]
async fn sorts_of_more_than_fits_into_memory_use_the_disk_unless_told_not_to() {
    const DOCUMENTS: i32 = 110;
    let server = TestServer::start().await;
    let mut client = TestClient::connect(&server).await;
    let text = "x".repeat(1 << 20);
    for chunk in (0..DOCUMENTS).collect::<Vec<_>>().chunks(10) {
        // Neither up nor down.
        let document = |n: &i32| doc! {"_id": n, "n": (n * 37) % DOCUMENTS, "text": &text};
        let documents: Vec<_> = chunk.iter().map(document).collect();
        client.run(doc! {"insert": "c", "documents": documents, "$db": "db"}).await;
    }
    let find = doc! {
        "find": "c", "sort": {"n": 1}, "projection": {"n": 1}, "batchSize": 1000, "$db": "db",
    };
    // It reads the long field as well, which would not even be decoded otherwise.
    let stages = [
        doc! {"$set": {"m": "$n", "length": {"$strLenBytes": "$text"}}},
        doc! {"$sort": {"m": 1}},
        doc! {"$project": {"n": 1}},
    ];
    let aggregate = doc! {
        "aggregate": "c", "pipeline": stages.to_vec(), "cursor": {"batchSize": 1000}, "$db": "db",
    };
    for command in [find, aggregate] {
        let reply = client.run(command.clone()).await;
        let found = reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap().clone();
        let found: Vec<_> =
            found.iter().map(|found| found.as_document().unwrap().get_i32("n").unwrap()).collect();
        assert_eq!(found, (0..DOCUMENTS).collect::<Vec<_>>());
        let mut forbidden = command;
        forbidden.insert("allowDiskUse", false);
        let refusal = client.run(forbidden).await;
        assert_eq!(refusal.get_i32("code").unwrap(), 292, "{refusal}");
    }
    server.stop().await;
}

/// A client that comes to a server where logins are required, and its server.
async fn stranger(patience: Duration) -> (TestServer, TestClient) {
    let server = TestServer::launch(|options| {
        options.authentication = true;
        options.server.stranger_timeout = patience;
    })
    .await;
    let client = TestClient::connect(&server).await;
    (server, client)
}

#[tokio::test(flavor = "multi_thread")]
async fn before_login_messages_are_short_as_they_come_and_decompressed() {
    const LIMIT: usize = 16 * 1024;
    let padded = |length: usize| doc! {"hello": 1, "padding": "x".repeat(length), "$db": "admin"};
    let (server, mut client) = stranger(Duration::from_secs(60)).await;
    assert_eq!(client.run(padded(LIMIT - 200)).await.get_f64("ok").unwrap(), 1.0);
    assert!(client.is_cut_off(padded(LIMIT), None).await, "a longer one closes the connection");
    for id in [CompressorId::Zstd, CompressorId::Snappy, CompressorId::Zlib] {
        let mut client = TestClient::connect(&server).await;
        let mut compressor = Compressor::new(id).unwrap();
        client.send(padded(100), MsgFlags::NONE, Some(&mut compressor)).await;
        assert!(client.receive().await.is_some());
        // A short message that would be a long one.
        assert!(client.is_cut_off(padded(40 * LIMIT), Some(&mut compressor)).await, "{id}");
    }
    // Without logins no client is a stranger.
    let open = TestServer::start().await;
    let mut client = TestClient::connect(&open).await;
    assert_eq!(client.run(padded(40 * LIMIT)).await.get_f64("ok").unwrap(), 1.0);
    open.stop().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn before_login_a_message_once_begun_is_finished_and_idle_clients_stay() {
    let (server, mut slow) = stranger(Duration::from_millis(50)).await;
    let mut idle = TestClient::connect(&server).await;
    assert!(idle.run(doc! {"hello": 1, "$db": "admin"}).await.contains_key("ok"));
    // The header of a message of 100 bytes, and nothing after it.
    slow.stream.write_all(&[100, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 221, 7, 0, 0]).await.unwrap();
    assert!(slow.receive().await.is_none(), "the server gives up on it");
    // More than the time of a message has passed; monitors never log in.
    assert!(idle.run(doc! {"hello": 1, "$db": "admin"}).await.contains_key("ok"));
    server.stop().await;
}
