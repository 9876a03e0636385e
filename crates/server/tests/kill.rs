//! A server is killed in the middle of a write load, again and again. Every write that it
//! acknowledged with `j: true` must be there after the restart, and documents and indexes agree.
//!
//! The test runs itself as the server: with `serve <directory>` it listens on port 0, prints the
//! port, and is killed by its parent.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test without the harness")]

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc;

use bson::{Bson, Document, RawDocumentBuf, doc};
use quorate_node::{Node, NodeOptions};
use quorate_server::{Clock, Server, ServerOptions};
use quorate_storage::{LsmOptions, LsmStore, Store};
use quorate_wire::{Decoder, MsgFlags, MsgWriter, Payload, RequestId};

const ROUNDS: usize = 20;
const WRITERS: i32 = 4;
/// Acknowledgements after which a round ends with the kill.
const ACKNOWLEDGED_PER_ROUND: usize = 40;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    match arguments.get(1).map(String::as_str) {
        Some("serve") => serve(Path::new(&arguments[2])),
        // Asked for the tests that it is to leave out, there is none.
        Some("--list") if arguments.iter().any(|argument| argument == "--ignored") => {}
        Some("--list") => println!("kill: test"),
        _ => survive_rounds(),
    }
}

fn serve(directory: &Path) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    runtime.block_on(async {
        let store: Arc<dyn Store> =
            Arc::new(LsmStore::open(directory, LsmOptions::default()).unwrap());
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let clock = Clock::new();
        let options = NodeOptions {
            seed: clock.now().wall.as_millis() as u64,
            host: "127.0.0.1".to_owned(),
            compressors: Vec::new(),
            // With a history, so that a batch has all its parts.
            authentication: false,
            oplog_bytes: Some(1 << 20),
            max_connections: 100,
            ..NodeOptions::default()
        };
        let node = Arc::new(Node::open(store, options, clock.now()).unwrap());
        println!("{}", listener.local_addr().unwrap().port());
        let server = Server::new(node, clock, ServerOptions::default()).unwrap();
        server.run(listener, std::future::pending()).await.unwrap();
    });
}

struct Victim {
    process: Child,
    port: u16,
}

impl Victim {
    fn start(directory: &Path) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .arg("serve")
            .arg(directory)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Self { process, port: line.trim().parse().unwrap() }
    }

    fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

struct Client {
    stream: TcpStream,
    decoder: Decoder,
}

impl Client {
    fn connect(port: u16) -> Self {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        Self { stream, decoder: Decoder::new() }
    }

    /// Runs a command; none once the server is gone.
    fn run(&mut self, mut command: Document) -> Option<Document> {
        command.insert("$db", "db");
        let raw = RawDocumentBuf::try_from(&command).unwrap();
        let mut bytes = Vec::new();
        MsgWriter::new(&mut bytes, RequestId(1), RequestId(0), MsgFlags::NONE, &raw)
            .finish(None)
            .unwrap();
        self.stream.write_all(&bytes).ok()?;
        let mut chunk = [0; 16 * 1024];
        loop {
            if let Some(message) = self.decoder.next_message().unwrap() {
                let Payload::Msg(msg) = message.payload else { panic!("not an OP_MSG") };
                return Some(Document::try_from(msg.body()).unwrap());
            }
            match self.stream.read(&mut chunk) {
                Ok(0) | Err(_) => return None,
                Ok(read) => self.decoder.feed(&chunk[..read]),
            }
        }
    }
}

fn survive_rounds() {
    let directory = tempfile::tempdir().unwrap();
    let mut acknowledged = BTreeSet::new();
    for round in 1..=ROUNDS {
        let victim = Victim::start(directory.path());
        let mut client = Client::connect(victim.port);
        let index = doc! {"key": {"tags": 1}, "name": "tags"};
        client.run(doc! {"createIndexes": "c", "indexes": [index]}).unwrap();
        let next = check(&mut client, &acknowledged);
        acknowledged.extend(load_until_killed(victim, next));
        println!("round {round}: {} writes acknowledged so far", acknowledged.len());
    }
    let victim = Victim::start(directory.path());
    check(&mut Client::connect(victim.port), &acknowledged);
    victim.kill();
    println!("kill: ok");
}

/// Writers insert until the server dies under them. Returns what was acknowledged.
fn load_until_killed(victim: Victim, first: i32) -> BTreeSet<i32> {
    let (acknowledge, acknowledgements) = mpsc::channel();
    let port = victim.port;
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let acknowledge = acknowledge.clone();
            std::thread::spawn(move || {
                let mut client = Client::connect(port);
                for number in (first + writer..).step_by(WRITERS as usize) {
                    let document = doc! {"_id": number, "tags": [number, -number, "x"]};
                    let insert = doc! {
                        "insert": "c", "documents": [document], "writeConcern": {"j": true},
                    };
                    let Some(reply) = client.run(insert) else { return };
                    assert_eq!(reply.get_i32("n").unwrap(), 1, "{reply}");
                    acknowledge.send(number).unwrap();
                }
            })
        })
        .collect();
    drop(acknowledge);
    let mut done: BTreeSet<i32> = acknowledgements.iter().take(ACKNOWLEDGED_PER_ROUND).collect();
    victim.kill();
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    done.extend(acknowledgements.iter());
    done
}

/// Checks a restarted server. Returns a number above all that it holds.
fn check(client: &mut Client, acknowledged: &BTreeSet<i32>) -> i32 {
    let reply = client.run(doc! {"validate": "c"}).unwrap();
    assert!(reply.get_bool("valid").unwrap(), "{reply}");
    let reply = client.run(doc! {"distinct": "c", "key": "_id"}).unwrap();
    let found: BTreeSet<i32> =
        reply.get_array("values").unwrap().iter().filter_map(Bson::as_i32).collect();
    let lost: Vec<_> = acknowledged.difference(&found).collect();
    assert!(lost.is_empty(), "acknowledged but lost: {lost:?}");
    found.last().map_or(0, |last| last + 1)
}
