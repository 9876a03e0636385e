//! Our server in a process of its own, and callers that speak to it over bare connections, so that
//! the server is measured and not a client's pool.
//!
//! Requests about one record are written once for all callers; each puts its key in.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use bson::raw::cstr;
use bson::{Document, RawDocument, RawDocumentBuf, doc};
use quorate_server::{Place, StartOptions};
use quorate_wire::{MsgFlags, MsgWriter, RequestId};

use crate::measuring::{self, Turn, any_key};
use crate::programs::Process;
use crate::wire::Wire;
use crate::{BATCH, Caller, GROUPS, RANGE, Request, Store, TEXT, TOP};

/// How long after its work the server's memory is looked at: it gives memory back from time to time.
const SETTLING: Duration = Duration::from_secs(8);

/// Where the body of an answer starts: after its header, its flags and the kind of its section.
const BODY: usize = 21;

/// Serves until the process is ended.
pub fn serve(directory: &str) {
    let runtime = quorate_server::runtime().unwrap();
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let options = StartOptions::new(Place::Directory(directory.into()));
        let mut running = quorate_server::Server::start(listener, options).await.unwrap();
        println!("{}", running.address().port());
        running.ended().await.unwrap();
    });
}

/// The server's process, ended when dropped.
pub struct Server {
    process: Process,
    address: SocketAddr,
    records: i64,
    next: Arc<AtomicI64>,
    requests: Arc<Requests>,
}

/// What many connections at once cost.
pub struct Storm {
    /// Connections that were opened and had their first answer, a second.
    pub turn: Turn,
    /// Memory in MiB with all of them open, and some seconds after they were closed.
    pub open: f64,
    pub closed: f64,
}

impl Server {
    pub fn start(directory: &Path, records: i64) -> Self {
        let (process, port) = Process::of_this_program(&["serve", directory.to_str().unwrap()]);
        let server = Self {
            process,
            address: (Ipv4Addr::LOCALHOST, port).into(),
            records,
            next: Arc::new(AtomicI64::new(records)),
            requests: Arc::new(Requests::new()),
        };
        server.create();
        server
    }

    /// Creates the collection with its index, if it is not there.
    fn create(&self) {
        let indexes = vec![doc! {"key": {"n": 1}, "name": "n_1"}];
        self.connect().run(&doc! {"createIndexes": "c", "indexes": indexes, "$db": "bench"}, &[]);
    }

    fn connect(&self) -> Connection {
        Connection {
            wire: Wire::open(self.address).unwrap(),
            message: Vec::new(),
            records: self.records,
            next: Arc::clone(&self.next),
            requests: Arc::clone(&self.requests),
        }
    }

    /// What the process holds in memory, in MiB.
    pub fn resident(&self) -> f64 {
        self.process.resident()
    }

    /// The same once it had time to give memory back.
    pub fn resident_at_rest(&self) -> f64 {
        std::thread::sleep(SETTLING);
        self.resident()
    }

    /// What a connection that has said hello and then rests costs, in KiB.
    pub fn idle_connection(&self, connections: usize) -> f64 {
        let before = self.resident();
        let (_, open) = measuring::storm(self, connections);
        (self.resident() - before).max(0.0) * 1024.0 / open.len() as f64
    }

    /// Opens many connections at once and closes them.
    pub fn storm(&self, connections: usize) -> Storm {
        let (turn, connections) = measuring::storm(self, connections);
        let open = self.resident();
        drop(connections);
        Storm { turn, open, closed: self.resident_at_rest() }
    }
}

impl Store for Server {
    fn name(&self) -> &'static str {
        "ours"
    }

    fn answers(&self, _: Request) -> bool {
        true
    }

    fn caller(&self) -> Box<dyn Caller> {
        Box::new(self.connect())
    }

    /// Batches beside the command, as drivers send them. Only the last is synced, and with it all
    /// before it.
    fn load(&self, records: i64) {
        let mut connection = self.connect();
        let template = Template::new(raw(&record(KEY_MARK)).into_bytes());
        let mut documents = Vec::new();
        for first in (0..records).step_by(BATCH as usize) {
            let last = (first + BATCH).min(records);
            documents.clear();
            (first..last).for_each(|id| template.write(&mut documents, id));
            let documents: Vec<&RawDocument> = documents
                .chunks_exact(template.bytes.len())
                .map(|one| RawDocument::from_bytes(one).unwrap())
                .collect();
            let concern = doc! {"w": 1, "j": last == records};
            let command = doc! {"insert": "c", "writeConcern": concern, "$db": "bench"};
            connection.run(&command, &documents);
        }
    }

    fn clear(&self) {
        self.connect().run(&doc! {"drop": "c", "$db": "bench"}, &[]);
        self.create();
    }

    fn cpu(&self) -> Duration {
        self.process.processor_time()
    }
}

pub fn record(id: i64) -> Document {
    doc! {"_id": id, "n": id, "kind": id % GROUPS, "text": TEXT}
}

/// The key in a template, in whose place each request puts its own.
const KEY_MARK: i64 = 0x4b4b_4b4b_4b4b_4b4b;

/// What comes before the kind of a record: the type of a 64-bit number and the field's name.
const KIND: &[u8] = b"\x12kind\0";

/// Bytes with places for a record's key and its kind.
struct Template {
    bytes: Vec<u8>,
    keys: Vec<usize>,
    kind: Option<usize>,
}

impl Template {
    fn new(bytes: Vec<u8>) -> Self {
        let starts = |with: &[u8]| {
            let mut windows = bytes.windows(with.len()).enumerate().filter(|(_, it)| it == &with);
            std::iter::from_fn(move || windows.next().map(|(at, _)| at)).collect::<Vec<_>>()
        };
        let keys = starts(&KEY_MARK.to_le_bytes());
        let kind = starts(KIND).first().map(|at| at + KIND.len());
        Self { bytes, keys, kind }
    }

    fn of(request: Request) -> Self {
        let mut bytes = Vec::new();
        write_message(&mut bytes, &command_of(request, KEY_MARK, i64::MAX, || KEY_MARK), &[]);
        Self::new(bytes)
    }

    /// Appends the bytes for a record of this key.
    fn write(&self, out: &mut Vec<u8>, key: i64) {
        let start = out.len();
        out.extend_from_slice(&self.bytes);
        let mut put = |at: usize, number: i64| {
            out[start + at..start + at + 8].copy_from_slice(&number.to_le_bytes());
        };
        self.keys.iter().for_each(|at| put(*at, key));
        if let Some(at) = self.kind {
            put(at, key % GROUPS);
        }
    }
}

/// The requests that are about one record, or none.
struct Requests {
    hello: Template,
    read: Template,
    inserts: [Template; 2],
    updates: [Template; 2],
}

impl Requests {
    fn new() -> Self {
        Self {
            hello: Template::of(Request::Hello),
            read: Template::of(Request::Read),
            inserts: [false, true].map(|durable| Template::of(Request::Insert { durable })),
            updates: [false, true].map(|durable| Template::of(Request::Update { durable })),
        }
    }
}

struct Connection {
    wire: Wire,
    message: Vec<u8>,
    records: i64,
    next: Arc<AtomicI64>,
    requests: Arc<Requests>,
}

impl Connection {
    /// Runs a command with documents beside it.
    fn run(&mut self, command: &Document, documents: &[&RawDocument]) {
        self.message.clear();
        write_message(&mut self.message, command, documents);
        self.exchange(1);
    }

    /// Sends the message, whose answer is this long at least.
    fn exchange(&mut self, least: usize) {
        let whole = |bytes: &[u8]| {
            let length = u32::from_le_bytes(*bytes.first_chunk()?) as usize;
            (bytes.len() >= length).then_some(length)
        };
        let answer = self.wire.exchange(&self.message, whole).unwrap();
        let body = RawDocument::from_bytes(&answer[BODY..]).unwrap();
        let fine = body.get_f64("ok").unwrap() == 1.0
            && body.get("writeErrors").unwrap().is_none()
            && answer.len() >= least;
        assert!(fine, "the server answered {body:?}");
    }
}

impl Caller for Connection {
    fn ask(&mut self, request: Request, chance: u64) {
        let mut key = any_key(chance, self.records);
        let template = match request {
            Request::Hello => &self.requests.hello,
            Request::Read => &self.requests.read,
            Request::Update { durable } => &self.requests.updates[usize::from(durable)],
            Request::Insert { durable } => {
                key = self.next.fetch_add(1, Ordering::Relaxed);
                &self.requests.inserts[usize::from(durable)]
            }
            _ => {
                let command = command_of(request, key, self.records, || key);
                return self.run(&command, &[]);
            }
        };
        self.message.clear();
        template.write(&mut self.message, key);
        self.exchange(if matches!(request, Request::Read) { TEXT.len() } else { 1 });
    }
}

fn raw(document: &Document) -> RawDocumentBuf {
    RawDocumentBuf::try_from(document).unwrap()
}

/// Appends a command with documents beside it.
fn write_message(out: &mut Vec<u8>, command: &Document, documents: &[&RawDocument]) {
    let body = raw(command);
    let mut writer = MsgWriter::new(out, RequestId(1), RequestId(0), MsgFlags::NONE, &body);
    if !documents.is_empty() {
        writer = writer.sequence(cstr!("documents"), documents.iter().copied());
    }
    writer.finish(None).unwrap();
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
        Request::BuildIndex => {
            let indexes = vec![doc! {"key": {"kind": 1}, "name": "kind_1"}];
            doc! {"createIndexes": "c", "indexes": indexes, "writeConcern": {"w": 1, "j": true}}
        }
        Request::DropIndex => doc! {"dropIndexes": "c", "index": "kind_1"},
        Request::Hello => doc! {"hello": 1},
    };
    command.insert("$db", "bench");
    command
}
