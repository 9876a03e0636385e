//! Our server in a process of its own, and callers that speak to it over bare connections, so that
//! the server is measured and not a client's pool.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use bson::raw::cstr;
use bson::{Document, RawDocumentBuf, doc};
use quorate_server::{Place, StartOptions};
use quorate_wire::{Decoder, MsgFlags, MsgWriter, Payload, RequestId};

use crate::{BATCH, Caller, GROUPS, RANGE, Request, Store, TEXT, TOP, any_key};

/// Threads that open connections at the same time.
const OPENERS: usize = 100;

/// How long after the connections are closed the server's memory is looked at: it gives memory back from
/// time to time.
const SETTLING: Duration = Duration::from_secs(8);

/// What a caller reads at once.
const PIECE: usize = 64 * 1024;

/// Serves until the process is ended.
pub fn serve(directory: &str) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let options = StartOptions::new(Place::Directory(directory.into()));
        let mut running = quorate_server::Server::start(listener, options).await.unwrap();
        println!("{}", running.address());
        running.ended().await.unwrap();
    });
}

/// The server's process, ended when dropped.
pub struct Server {
    process: Child,
    address: SocketAddr,
    records: i64,
    next: Arc<AtomicI64>,
}

impl Server {
    pub fn start(directory: &Path, records: i64) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .arg("serve")
            .arg(directory)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().parse().unwrap();
        let server = Self { process, address, records, next: Arc::new(AtomicI64::new(records)) };
        let mut connection = server.caller();
        let indexes = vec![doc! {"key": {"n": 1}, "name": "n_1"}];
        connection.run(doc! {"createIndexes": "c", "indexes": indexes, "$db": "bench"});
        server
    }

    /// What the process holds in memory.
    pub fn resident_kib(&self) -> u64 {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    /// What a connection that has said hello and then rests costs.
    pub fn idle_connection_kib(&self, connections: usize) -> f64 {
        let before = self.resident_kib();
        let open: Vec<Connection> = (0..connections)
            .map(|_| {
                let mut connection = self.caller();
                connection.run(doc! {"hello": 1, "$db": "admin"});
                connection
            })
            .collect();
        let after = self.resident_kib();
        after.saturating_sub(before) as f64 / open.len() as f64
    }
}

/// What many connections at once cost.
pub struct Storm {
    /// Connections that were opened and had their first answer, a second.
    pub a_second: f64,
    /// Processor time of the server for each.
    pub cpu: Duration,
    /// Memory with all of them open, and some seconds after they were closed.
    pub open_kib: u64,
    pub closed_kib: u64,
}

impl Server {
    /// Opens many connections at once, as clients do that come back after a failover, and closes them.
    pub fn storm(&self, connections: usize) -> Storm {
        let (before, started) = (self.cpu(), Instant::now());
        let open: Vec<Connection> = std::thread::scope(|scope| {
            let some = || {
                let greeted = |_| {
                    let mut connection = self.caller();
                    connection.run(doc! {"hello": 1, "$db": "admin"});
                    connection.piece = Vec::new();
                    connection
                };
                (0..connections.div_ceil(OPENERS)).map(greeted).collect::<Vec<_>>()
            };
            let openers = OPENERS.min(connections);
            let openers: Vec<_> = (0..openers).map(|_| scope.spawn(some)).collect();
            openers.into_iter().flat_map(|opener| opener.join().unwrap()).collect()
        });
        let elapsed = started.elapsed().as_secs_f64();
        let (count, cpu) = (open.len(), self.cpu() - before);
        let open_kib = self.resident_kib();
        drop(open);
        std::thread::sleep(SETTLING);
        let a_second = count as f64 / elapsed;
        Storm { a_second, cpu: cpu / count as u32, open_kib, closed_kib: self.resident_kib() }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Store for Server {
    type Caller = Connection;

    fn caller(&self) -> Connection {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_nodelay(true).unwrap();
        Connection {
            stream,
            decoder: Decoder::new(),
            piece: vec![0; PIECE],
            records: self.records,
            next: Arc::clone(&self.next),
        }
    }

    fn cpu(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.process.id())).unwrap();
        // After the name, which is in parentheses: the twelfth and the thirteenth are user and system.
        let (_, fields) = stat.rsplit_once(')').unwrap();
        let ticks = fields.split_whitespace().skip(11).take(2).map(|n| n.parse::<u64>().unwrap());
        let a_second = rustix::param::clock_ticks_per_second();
        Duration::from_millis(ticks.sum::<u64>() * 1000 / a_second)
    }

    fn load(&self, records: i64) {
        let mut connection = self.caller();
        for first in (0..records).step_by(BATCH as usize) {
            // As drivers send them.
            let documents: Vec<RawDocumentBuf> = (first..(first + BATCH).min(records))
                .map(|id| RawDocumentBuf::try_from(&record(id)).unwrap())
                .collect();
            connection.run_with(&doc! {"insert": "c", "$db": "bench"}, &documents);
        }
    }
}

pub fn record(id: i64) -> Document {
    doc! {"_id": id, "n": id, "kind": id % GROUPS, "text": TEXT}
}

pub struct Connection {
    stream: TcpStream,
    decoder: Decoder,
    piece: Vec<u8>,
    records: i64,
    next: Arc<AtomicI64>,
}

impl Connection {
    fn run(&mut self, command: Document) {
        self.run_with(&command, &[]);
    }

    /// Runs a command with documents beside it.
    fn run_with(&mut self, command: &Document, documents: &[RawDocumentBuf]) {
        let body = RawDocumentBuf::try_from(command).unwrap();
        let mut message = Vec::new();
        let mut writer =
            MsgWriter::new(&mut message, RequestId(1), RequestId(0), MsgFlags::NONE, &body);
        if !documents.is_empty() {
            writer = writer.sequence(cstr!("documents"), documents.iter().map(|one| &**one));
        }
        writer.finish(None).unwrap();
        self.stream.write_all(&message).unwrap();
        loop {
            if let Some(message) = self.decoder.next_message().unwrap() {
                let Payload::Msg(reply) = message.payload else { panic!("another opcode") };
                let ok = reply.body().get_f64("ok").unwrap();
                let clean = reply.body().get("writeErrors").unwrap().is_none();
                assert!(ok == 1.0 && clean, "{command} answered {:?}", reply.body());
                return;
            }
            let length = self.stream.read(&mut self.piece).unwrap();
            assert!(length > 0, "the server closed the connection");
            self.decoder.feed(&self.piece[..length]);
        }
    }
}

impl Caller for Connection {
    fn ask(&mut self, request: Request, chance: u64) {
        let (key, next) = (any_key(chance, self.records), Arc::clone(&self.next));
        let command =
            command_of(request, key, self.records, || next.fetch_add(1, Ordering::Relaxed));
        self.run(command);
    }
}

/// A request as a command about an existing record, or about one whose key comes next.
pub fn command_of(
    request: Request,
    key: i64,
    records: i64,
    next: impl FnOnce() -> i64,
) -> Document {
    let mut command = match request {
        Request::Insert { durable } => {
            let documents = vec![record(next())];
            doc! {"insert": "c", "documents": documents, "writeConcern": {"w": 1, "j": durable}}
        }
        Request::Read => doc! {"find": "c", "filter": {"_id": key}, "limit": 1},
        Request::Update { durable } => {
            let updates = vec![doc! {"q": {"_id": key}, "u": {"$inc": {"n": 1_i64}}}];
            doc! {"update": "c", "updates": updates, "writeConcern": {"w": 1, "j": durable}}
        }
        Request::Range => {
            let first = key.min(records - RANGE);
            doc! {
                "find": "c", "filter": {"n": {"$gte": first}}, "sort": {"n": 1},
                "limit": RANGE, "batchSize": RANGE, "singleBatch": true,
            }
        }
        Request::Aggregate => doc! {
            "aggregate": "c",
            "pipeline": [
                {"$group": {"_id": "$kind", "count": {"$sum": 1}, "sum": {"$sum": "$n"}}},
                {"$sort": {"_id": 1}},
            ],
            "cursor": {},
        },
        Request::Filter => {
            doc! {"find": "c", "filter": {"kind": key % GROUPS, "text": "none"}}
        }
        Request::Count => doc! {"count": "c", "query": {"kind": key % GROUPS}},
        Request::Top => doc! {"find": "c", "sort": {"kind": -1}, "limit": TOP},
    };
    command.insert("$db", "bench");
    command
}
