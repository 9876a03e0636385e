//! Long commands keep no other client waiting, and end when they should.

#![allow(clippy::unwrap_used, reason = "a panic is the report")]

mod support;

use std::time::Duration;

use bson::spec::BinarySubtype;
use bson::{Binary, Document, RawDocumentBuf, doc};
use quorate_wire::{Decoder, MsgFlags, MsgWriter, Payload, RequestId};
use support::TestServer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// How long a test waits for what must happen.
const DEADLINE: Duration = Duration::from_secs(20);

struct Client {
    stream: TcpStream,
    decoder: Decoder,
}

impl Client {
    async fn connect(server: &TestServer) -> Self {
        let stream = TcpStream::connect(server.address).await.unwrap();
        Self { stream, decoder: Decoder::new() }
    }

    async fn send(&mut self, mut body: Document) {
        if !body.contains_key("$db") {
            body.insert("$db", "db");
        }
        let raw = RawDocumentBuf::try_from(&body).unwrap();
        let mut bytes = Vec::new();
        let writer = MsgWriter::new(&mut bytes, RequestId(1), RequestId(0), MsgFlags::NONE, &raw);
        writer.finish(None).unwrap();
        self.stream.write_all(&bytes).await.unwrap();
    }

    async fn receive(&mut self) -> Document {
        loop {
            if let Some(message) = self.decoder.next_message().unwrap() {
                let Payload::Msg(msg) = &message.payload else { panic!("no OP_MSG") };
                return Document::try_from(msg.body()).unwrap();
            }
            let read = self.stream.read_buf(self.decoder.input()).await.unwrap();
            assert!(read > 0, "the server closed the connection");
        }
    }

    async fn run(&mut self, body: Document) -> Document {
        self.send(body).await;
        tokio::time::timeout(DEADLINE, self.receive()).await.unwrap()
    }

    async fn ok(&mut self, body: Document) -> Document {
        let reply = self.run(body.clone()).await;
        assert_eq!(reply.get_f64("ok").ok(), Some(1.0), "{body} answered {reply}");
        reply
    }

    /// The commands in progress that carry this comment.
    async fn running(&mut self, comment: &str) -> usize {
        let asked = doc! {"currentOp": 1, "command.comment": comment, "$db": "admin"};
        self.ok(asked).await.get_array("inprog").unwrap().len()
    }

    /// Waits until as many commands with this comment run.
    async fn until_running(&mut self, comment: &str, count: usize) {
        let waiting = async {
            while self.running(comment).await != count {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(DEADLINE, waiting).await.expect("the commands begin or end");
    }
}

/// Fills a collection with documents that have no index but `_id`.
async fn fill(client: &mut Client, documents: i32) {
    for chunk in 0..documents / 1000 {
        let documents: Vec<_> = (0..1000).map(|n| doc! {"_id": chunk * 1000 + n, "n": n}).collect();
        client.ok(doc! {"insert": "c", "documents": documents}).await;
    }
}

/// A command that would take minutes.
fn endless(comment: &str) -> Document {
    let join = doc! {
        "from": "c", "as": "joined", "let": {"n": "$n"},
        "pipeline": [{"$match": {"$expr": {"$eq": [{"$add": ["$n", "$$n", 1]}, -1]}}}],
    };
    doc! {
        "aggregate": "c", "cursor": {}, "comment": comment,
        // A first batch would be there after some seconds.
        "pipeline": [{"$lookup": join}, {"$count": "n"}],
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn scans_leave_the_worker_to_others() {
    let server = TestServer::start().await;
    let mut client = Client::connect(&server).await;
    fill(&mut client, 60_000).await;
    let mut pinger = Client::connect(&server).await;
    pinger.ok(doc! {"ping": 1}).await;
    for scan in [
        doc! {"find": "c", "filter": {"n": -1}},
        doc! {"count": "c", "query": {"n": -1}},
        doc! {"distinct": "c", "key": "n", "query": {"n": -1}},
        doc! {"update": "c", "updates": [{"q": {"n": -1}, "u": {"$set": {"x": 1}}}]},
        doc! {"delete": "c", "deletes": [{"q": {"n": -1}, "limit": 1}]},
        doc! {"findAndModify": "c", "query": {"n": -1}, "remove": true},
    ] {
        let mut scanners = Vec::new();
        for _ in 0..2 {
            scanners.push(Client::connect(&server).await);
        }
        for scanner in &mut scanners {
            scanner.send(scan.clone()).await;
        }
        pinger.send(doc! {"ping": 1}).await;
        let [first, second] = &mut scanners[..] else { panic!("two scanners") };
        // The ping comes back while both scan: a worker that scans answers nothing.
        tokio::select! {
            biased;
            reply = pinger.receive() => assert_eq!(reply.get_f64("ok").ok(), Some(1.0)),
            _ = async { tokio::join!(first.receive(), second.receive()) } => {
                panic!("{scan} kept a ping waiting");
            }
        }
        for scanner in &mut scanners {
            let reply = tokio::time::timeout(DEADLINE, scanner.receive()).await;
            assert_eq!(reply.unwrap().get_f64("ok").ok(), Some(1.0), "{scan}");
        }
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_command_ends_when_its_client_leaves() {
    let server = TestServer::start().await;
    let mut client = Client::connect(&server).await;
    fill(&mut client, 10_000).await;
    let mut leaver = Client::connect(&server).await;
    leaver.send(endless("left")).await;
    client.until_running("left", 1).await;
    drop(leaver);
    client.until_running("left", 0).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_command_ends_when_it_is_killed_or_its_time_is_over() {
    let server = TestServer::start().await;
    let mut client = Client::connect(&server).await;
    fill(&mut client, 10_000).await;
    let mut limited = endless("limited");
    limited.insert("maxTimeMS", 50);
    assert_eq!(client.run(limited).await.get_i32("code").ok(), Some(50));
    let mut other = Client::connect(&server).await;
    other.send(endless("killed")).await;
    client.until_running("killed", 1).await;
    let asked = doc! {"currentOp": 1, "command.comment": "killed", "$db": "admin"};
    let found = client.ok(asked).await;
    let running = found.get_array("inprog").unwrap()[0].as_document().unwrap().clone();
    let id = running.get("opid").unwrap().clone();
    client.ok(doc! {"killOp": 1, "op": id, "$db": "admin"}).await;
    let reply = tokio::time::timeout(DEADLINE, other.receive()).await.unwrap();
    assert_eq!(reply.get_i32("code").ok(), Some(11601), "{reply}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_command_ends_when_the_server_does() {
    let server = TestServer::start().await;
    let mut client = Client::connect(&server).await;
    fill(&mut client, 10_000).await;
    let mut other = Client::connect(&server).await;
    other.send(endless("shutdown")).await;
    client.until_running("shutdown", 1).await;
    tokio::time::timeout(DEADLINE, server.stop()).await.expect("the server ends");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tailing_cursor_wakes_on_what_it_tails() {
    let server = TestServer::start().await;
    let mut client = Client::connect(&server).await;
    client.ok(doc! {"create": "log", "capped": true, "size": 100_000}).await;
    client.ok(doc! {"insert": "log", "documents": [{"_id": 0}]}).await;
    let mut tail = Client::connect(&server).await;
    let opened = tail.ok(doc! {"find": "log", "tailable": true, "awaitData": true}).await;
    let id = opened.get_document("cursor").unwrap().get_i64("id").unwrap();
    // A minute, which no other write cuts short.
    tail.send(doc! {"getMore": id, "collection": "log", "maxTimeMS": 60_000, "comment": "tail"})
        .await;
    client.until_running("tail", 1).await;
    for n in 0..20 {
        client.ok(doc! {"insert": "other", "documents": [{"_id": n}]}).await;
    }
    client.ok(doc! {"insert": "log", "documents": [{"_id": 1}]}).await;
    let reply = tokio::time::timeout(DEADLINE, tail.receive()).await.unwrap();
    let batch = reply.get_document("cursor").unwrap().get_array("nextBatch").unwrap();
    assert_eq!(batch.len(), 1, "{reply}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_locked_against_writes_says_so() {
    let server = TestServer::start().await;
    let mut client = Client::connect(&server).await;
    client.ok(doc! {"fsync": 1, "lock": true, "$db": "admin"}).await;
    let status = client.ok(doc! {"serverStatus": 1, "$db": "admin"}).await;
    let lock = status.get_document("fsyncLock").unwrap();
    assert!(lock.get_bool("locked").unwrap() && lock.get_i64("lockCount").unwrap() == 1);
    let current = client.ok(doc! {"currentOp": 1, "$db": "admin"}).await;
    assert!(current.get_bool("fsyncLock").unwrap());
    let mut writer = Client::connect(&server).await;
    writer.send(doc! {"insert": "c", "documents": [{"_id": 1}], "comment": "waits"}).await;
    client.until_running("waits", 1).await;
    client.ok(doc! {"fsyncUnlock": 1, "$db": "admin"}).await;
    let reply = tokio::time::timeout(DEADLINE, writer.receive()).await.unwrap();
    assert_eq!(reply.get_i32("n").ok(), Some(1), "{reply}");
    let log = client.ok(doc! {"getLog": "global", "$db": "admin"}).await;
    let log = log.get_array("log").unwrap();
    let says = |words: &str| log.iter().any(|line| line.as_str().unwrap().contains(words));
    assert!(log.is_empty() || says("fsync"), "{log:?}");
    let status = client.ok(doc! {"serverStatus": 1, "$db": "admin"}).await;
    assert!(!status.get_document("fsyncLock").unwrap().get_bool("locked").unwrap());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn writes_that_wait_for_a_transaction_leave_the_worker_to_others() {
    let server = TestServer::launch(|options| options.replica_set = Some("rs0".to_owned())).await;
    let mut client = Client::connect(&server).await;
    let members = vec![doc! {"_id": 0, "host": server.address.to_string()}];
    let config = doc! {"_id": "rs0", "members": members};
    client.ok(doc! {"replSetInitiate": config, "$db": "admin"}).await;
    let elected = async {
        while !client.ok(doc! {"hello": 1}).await.get_bool("isWritablePrimary").unwrap() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, elected).await.expect("a primary");
    client.ok(doc! {"insert": "c", "documents": [{"_id": 1, "n": 0}]}).await;
    let update = || doc! {"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"n": 1}}}]};
    let id = Binary { subtype: BinarySubtype::Uuid, bytes: vec![1; 16] };
    let fields = doc! {"lsid": {"id": id}, "txnNumber": 1_i64, "autocommit": false};
    let mut first = update();
    first.extend(fields.clone());
    first.insert("startTransaction", true);
    client.ok(first).await;
    let mut waiting = Vec::new();
    for _ in 0..5 {
        let mut writer = Client::connect(&server).await;
        let mut plain = update();
        plain.insert("comment", "waits");
        writer.send(plain).await;
        waiting.push(writer);
    }
    // The one worker still serves this connection.
    client.until_running("waits", 5).await;
    let mut commit = doc! {"commitTransaction": 1, "$db": "admin"};
    commit.extend(fields);
    client.ok(commit).await;
    for mut writer in waiting {
        let reply = tokio::time::timeout(DEADLINE, writer.receive()).await.unwrap();
        assert_eq!(reply.get_i32("nModified").ok(), Some(1), "{reply}");
    }
    let found = client.ok(doc! {"find": "c"}).await;
    let batch = found.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
    assert_eq!(batch[0].as_document().unwrap().get_i32("n").unwrap(), 6);
}
