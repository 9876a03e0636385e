//! A member of a set is killed in the middle of a write load, again and again. Every write that it
//! acknowledged must be there after the restart, one that did not wait for the disk too, since the machine goes on. Documents
//! and indexes agree.
//!
//! It is the only one of its set, so that a batch has all its parts: the document, its index entries,
//! the oplog entry and how to take it back.

#![allow(clippy::unwrap_used, reason = "a panic is the report")]

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use bson::{Bson, Document, RawDocumentBuf, doc};
use quorate_wire::{Decoder, MsgFlags, MsgWriter, Payload, RequestId};

/// How long a restarted member may take to lead its set.
const PATIENCE: Duration = Duration::from_secs(60);

const ROUNDS: usize = 20;
const WRITERS: i32 = 4;
/// Acknowledgements after which a round ends with the kill.
const ACKNOWLEDGED_PER_ROUND: usize = 40;

struct Victim {
    process: Child,
    port: u16,
}

impl Victim {
    /// Starts the member; at the port that it had before, by which its set knows it.
    fn start(directory: &Path, port: u16) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_quorate-member"))
            .args(["--replset", "rs0", "--leash", "--port", &port.to_string(), "--data"])
            .arg(directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Self { process, port: line.trim().parse().unwrap() }
    }

    /// A client of the member, once it takes writes.
    fn client(&self) -> Client {
        let mut client = Client::connect(self.port);
        let started = Instant::now();
        loop {
            let hello = client.run(doc! {"hello": 1}).unwrap();
            if hello.get_bool("isWritablePrimary").unwrap() {
                return client;
            }
            assert!(started.elapsed() < PATIENCE, "it does not lead: {hello}");
            std::thread::yield_now();
        }
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
        command.entry("$db".to_owned()).or_insert("db".into());
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

#[test]
fn what_was_acknowledged_survives_being_killed() {
    let directory = tempfile::tempdir().unwrap();
    let mut victim = Victim::start(directory.path(), 0);
    let port = victim.port;
    let host = format!("127.0.0.1:{port}");
    let config = doc! {"_id": "rs0", "members": [{"_id": 0, "host": host}]};
    let initiated = Client::connect(port).run(doc! {"replSetInitiate": config, "$db": "admin"});
    assert_eq!(initiated.unwrap().get_f64("ok").unwrap(), 1.0);
    let mut acknowledged = BTreeSet::new();
    for _ in 0..ROUNDS {
        let mut client = victim.client();
        let index = doc! {"key": {"tags": 1}, "name": "tags"};
        client.run(doc! {"createIndexes": "c", "indexes": [index]}).unwrap();
        let next = check(&mut client, &acknowledged);
        acknowledged.extend(load_until_killed(victim, next));
        victim = Victim::start(directory.path(), port);
    }
    check(&mut victim.client(), &acknowledged);
    victim.kill();
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
                let concern = match writer % 2 {
                    0 => doc! {"j": true},
                    _ => doc! {"w": 1, "j": false},
                };
                for number in (first + writer..).step_by(WRITERS as usize) {
                    let document = doc! {"_id": number, "tags": [number, -number, "x"]};
                    let insert = doc! {
                        "insert": "c", "documents": [document], "writeConcern": &concern,
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
