//! How often the client asks for memory: counts that do not depend on the machine.
//!
//! The client runs on the test's own thread and the server on another one; only the former is
//! counted. The bounds are what an operation takes today, so that a change that adds to it is seen.

#![allow(clippy::unwrap_used, reason = "a panic is this test's report")]

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bson::{RawArrayBuf, RawDocumentBuf, doc, rawdoc};
use quorate_client::Client;
use quorate_protocol::{MonotonicTime, ServerAddress};
use quorate_server_discovery::{
    DiscoveryOptions, Input, MonitorCommand, Output, Topology, TopologyId, TopologyType,
};
use quorate_test_support::{CountingAllocator, FakeServer};
use quorate_wire::{KnownMembers, parse_hello_of};

/// Allocations and reallocations of one `run_command` of `ping`.
const MOST_FOR_PING: u64 = 1;

/// The same of one `find_one`.
const MOST_FOR_FIND_ONE: u64 = 21;

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

/// What the members of a set of this size say. The last one is its primary.
fn replies(size: usize) -> BTreeMap<ServerAddress, RawDocumentBuf> {
    let hosts: Vec<String> = (0..size).map(|place| format!("member{place:04}.example:1")).collect();
    let listed: RawArrayBuf = hosts.iter().map(String::as_str).collect();
    let reply = |(place, host): (usize, &String)| {
        let leads = place + 1 == size;
        let reply = rawdoc! {
            "ok": 1, "isWritablePrimary": leads, "secondary": !leads, "setName": "rs0",
            "setVersion": 1, "hosts": listed.clone(), "me": host.as_str(),
            "minWireVersion": 0, "maxWireVersion": 21, "logicalSessionTimeoutMinutes": 30,
        };
        (host.parse().unwrap(), reply)
    };
    hosts.iter().enumerate().map(reply).collect()
}

/// Allocations from the bytes of the first reply to the description of all servers.
fn allocations_of_discovery(size: usize) -> u64 {
    let replies = replies(size);
    let seed = replies.keys().next().cloned();
    let mut options = DiscoveryOptions::with_seeds(seed);
    options.set_name = Some("rs0".to_owned());
    let before = CountingAllocator::count();
    let known = KnownMembers::default();
    let now = MonotonicTime::ZERO;
    let mut topology = Topology::new(&options, TopologyId(1), 1, now).unwrap();
    let (mut checks, mut answered) = (VecDeque::new(), 0);
    loop {
        while let Some(output) = topology.poll_output() {
            if let Output::Monitor { server, command: MonitorCommand::Check { check, .. } } = output
            {
                checks.push_back((server, check));
            }
        }
        let Some((server, check)) = checks.pop_front() else { break };
        let reply = Arc::new(parse_hello_of(&replies[&server], &known).unwrap());
        let round_trip = Duration::from_millis(1);
        let more_to_come = false;
        topology
            .handle(now, Input::HelloReceived { server, check, reply, round_trip, more_to_come });
        answered += 1;
    }
    let count = CountingAllocator::count() - before;
    assert_eq!(answered, size, "each server is asked once");
    let description = topology.description();
    assert_eq!(description.topology_type(), TopologyType::ReplicaSetWithPrimary);
    assert_eq!(description.servers().len(), size);
    count
}

/// Every member lists all members. If each reply cost as much as there are members, 1,000 of them would
/// cost a hundred times what 100 cost.
#[test]
fn discovery_of_many_servers_does_not_cost_the_square() {
    let (small, large) = (allocations_of_discovery(100), allocations_of_discovery(1000));
    println!("allocations: {small} for 100 servers, {large} for 1,000");
    assert!(large < 12 * small, "{small} allocations for 100 servers, {large} for 1,000");
}
