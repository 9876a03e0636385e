//! How often the client asks for memory: counts that do not depend on the machine.
//!
//! The client runs on the test's own thread and the server on another one; only the former is
//! counted. The bounds are what an operation takes today, so that a change that adds to it is seen.

#![allow(clippy::unwrap_used, reason = "a panic is this test's report")]

use bson::{doc, rawdoc};
use quorate_client::Client;
use quorate_test_support::{CountingAllocator, FakeServer};

/// Allocations and reallocations of one `run_command` of `ping`.
const MOST_FOR_PING: u64 = 8;

/// The same of one `find_one`.
const MOST_FOR_FIND_ONE: u64 = 27;

/// How many operations are averaged, after as many that warm the pool up.
const ROUNDS: u64 = 200;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// A scripted server on a thread of its own; it ends when the guard is dropped.
struct Elsewhere {
    uri: String,
    end: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Elsewhere {
    fn start() -> Self {
        let (told, uri) = tokio::sync::oneshot::channel();
        let (end, ended) = tokio::sync::oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let server = FakeServer::start().await.unwrap();
                let cursor = rawdoc! { "id": 0_i64, "ns": "db.c", "firstBatch": [{ "_id": 1 }] };
                server.set_reply("find", rawdoc! { "ok": 1, "cursor": cursor });
                told.send(server.uri()).unwrap();
                let _ = ended.await;
            });
        });
        Self { uri: uri.blocking_recv().unwrap(), end: Some(end), thread: Some(thread) }
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        if let Some(end) = self.end.take() {
            let _ = end.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[test]
fn an_operation_asks_for_memory_no_more_often_than_it_did() {
    let server = Elsewhere::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = Client::with_uri(&server.uri).unwrap();
        let collection = client.collection("db", "c");
        let ping = rawdoc! { "ping": 1 };
        let mut counts = Vec::new();
        for _ in 0..2 {
            let before = CountingAllocator::count();
            for _ in 0..ROUNDS {
                client.run_command("admin", &ping).await.unwrap();
            }
            let between = CountingAllocator::count();
            for _ in 0..ROUNDS {
                collection.find_one(doc! { "_id": 1 }).await.unwrap();
            }
            counts =
                vec![(between - before) / ROUNDS, (CountingAllocator::count() - between) / ROUNDS];
        }
        println!("allocations: {} for ping, {} for find_one", counts[0], counts[1]);
        assert!(counts[0] <= MOST_FOR_PING, "{} allocations for a ping", counts[0]);
        assert!(counts[1] <= MOST_FOR_FIND_ONE, "{} allocations for a find_one", counts[1]);
        client.close().await;
    });
}
