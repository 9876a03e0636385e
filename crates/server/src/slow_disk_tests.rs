//! A server whose disk does not come to the end of a sync until it is told to.

#![allow(clippy::unwrap_used, reason = "a panic is the report")]

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use bson::spec::BinarySubtype;
use bson::{Binary, Document, RawDocumentBuf, doc};
use quorate_node::{Block, Node, NodeOptions};
use quorate_storage::{DiskOptions, DiskStore, FileHandle, Files, FillableFiles, RealFiles};
use quorate_wire::{Decoder, MsgFlags, MsgWriter, Payload, RequestId};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::time::error::Elapsed;
use tokio::time::timeout;

use crate::clock::Clock;
use crate::replica_set::ReplicaSetOptions;
use crate::security::{Membership, Security};
use crate::server::{Machine, Server, ServerOptions};
use crate::write_turns;

/// A test that waits for this long has failed.
const PATIENCE: Duration = Duration::from_secs(20);

/// Long enough that nothing is synced for which no client waits.
const NEVER: Duration = Duration::from_secs(3600);

#[derive(Default)]
struct Events {
    is_held: bool,
    is_defective: bool,
    waiting_syncs: usize,
    answers: Vec<Document>,
}

/// A disk whose syncs can be held, and what happens meanwhile.
#[derive(Clone, Default)]
struct SlowDisk(Arc<(Mutex<Events>, Condvar)>);

impl SlowDisk {
    fn tell<T>(&self, change: impl FnOnce(&mut Events) -> T) -> T {
        let changed = change(&mut self.0.0.lock().unwrap());
        self.0.1.notify_all();
        changed
    }

    fn wait_until(&self, is_so: impl Fn(&Events) -> bool) {
        let events = self.0.0.lock().unwrap();
        let waited = self.0.1.wait_timeout_while(events, PATIENCE, |events| !is_so(events));
        assert!(!waited.unwrap().1.timed_out());
    }

    fn slow(&self, file: Arc<dyn FileHandle>) -> Arc<dyn FileHandle> {
        Arc::new(SlowFile(file, self.clone()))
    }
}

struct SlowFile(Arc<dyn FileHandle>, SlowDisk);

impl FileHandle for SlowFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_at(bytes, offset)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_at(buffer, offset)
    }

    fn length(&self) -> io::Result<u64> {
        self.0.length()
    }

    fn set_length(&self, length: u64) -> io::Result<()> {
        self.0.set_length(length)
    }

    fn sync(&self) -> io::Result<()> {
        self.1.tell(|events| events.waiting_syncs += 1);
        self.1.wait_until(|events| !events.is_held);
        assert!(!self.1.tell(|events| events.is_defective), "this is meant");
        self.1.tell(|events| events.waiting_syncs -= 1);
        // Quick, whatever disk this is.
        Ok(())
    }
}

impl Files for SlowDisk {
    fn create_directory(&self, path: &Path) -> io::Result<()> {
        RealFiles.create_directory(path)
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        RealFiles.list(directory)
    }

    fn create(&self, path: &Path, zeros: u64) -> io::Result<Arc<dyn FileHandle>> {
        RealFiles.create(path, zeros).map(|file| self.slow(file))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn FileHandle>> {
        RealFiles.open(path).map(|file| self.slow(file))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealFiles.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        RealFiles.remove(path)
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        RealFiles.sync_directory(path)
    }
}

/// The set that a member belongs to.
const SET: &str = "rs";

/// Whether a set is around a member.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Around {
    Nothing,
    ASetOfOne,
}

/// A member with a history.
fn server_on(disk: SlowDisk, directory: &Path, address: SocketAddr, around: Around) -> Server {
    let clock = Clock::new();
    let store = DiskStore::open_on(Arc::new(disk), directory, DiskOptions::default()).unwrap();
    let node_options = NodeOptions {
        host: address.to_string(),
        oplog_bytes: Some(1 << 20),
        block: Block(write_turns::block),
        ..NodeOptions::default()
    };
    let node = Arc::new(Node::open(Arc::new(store), node_options, clock.now()).unwrap());
    let security = Security::new(None, &Membership::Unchecked, false).unwrap();
    let machine = Machine { clock, files: FillableFiles::default() };
    let options = ServerOptions { journal_interval: NEVER, ..ServerOptions::default() };
    let set = (around == Around::ASetOfOne).then(|| ReplicaSetOptions {
        set_name: SET.to_owned(),
        own_addresses: vec![address.to_string().parse().unwrap()],
        rollback_directory: None,
    });
    Server::prepare(node, machine, options, security, set).unwrap()
}

/// The answer to a command, over a connection of its own.
fn ask(server: SocketAddr, command: &Document) -> Document {
    let mut stream = TcpStream::connect(server).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let body = RawDocumentBuf::try_from(command).unwrap();
    let mut bytes = Vec::new();
    MsgWriter::new(&mut bytes, RequestId(1), RequestId(0), MsgFlags::NONE, &body)
        .finish(None)
        .unwrap();
    stream.write_all(&bytes).unwrap();
    let mut decoder = Decoder::new();
    loop {
        if let Some(message) = decoder.next_message().unwrap() {
            let Payload::Msg(msg) = &message.payload else { panic!("a reply is an OP_MSG") };
            return Document::try_from(msg.body()).unwrap();
        }
        let mut chunk = [0; 4096];
        let read = stream.read(&mut chunk).unwrap();
        assert!(read > 0, "the connection was closed");
        decoder.feed(&chunk[..read]);
    }
}

/// Makes a set of one member, and waits until it is the primary.
fn initiate(address: SocketAddr) {
    let members = [doc! { "_id": 0, "host": address.to_string() }];
    let config = doc! { "_id": SET, "members": members };
    let initiated = ask(address, &doc! { "replSetInitiate": config, "$db": "admin" });
    assert_eq!(initiated.get_f64("ok").ok(), Some(1.0), "{initiated}");
    let hello = doc! { "hello": 1, "$db": "admin" };
    let deadline = Instant::now() + PATIENCE;
    while !ask(address, &hello).get_bool("isWritablePrimary").unwrap() {
        assert!(Instant::now() < deadline, "no primary");
    }
}

/// How a server has ended; not at all if it did not end in time.
type Ended = Result<Result<(), String>, Elapsed>;

/// Runs a server with two workers while a test speaks to it.
fn serve_meanwhile(disk: &SlowDisk, around: Around, test: impl FnOnce(SocketAddr)) {
    let ended = serve_until_end(disk, around, |address, stop| {
        test(address);
        stop.send(()).unwrap();
    });
    ended.unwrap().unwrap();
}

/// The same until the server has ended, told to or by itself.
fn serve_until_end(
    disk: &SlowDisk,
    around: Around,
    test: impl FnOnce(SocketAddr, oneshot::Sender<()>),
) -> Ended {
    let directory = tempfile::tempdir().unwrap();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let entered = runtime.enter();
    let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).unwrap();
    let address = listener.local_addr().unwrap();
    let server = server_on(disk.clone(), directory.path(), address, around);
    let (stop, stopped) = oneshot::channel::<()>();
    let running = runtime.spawn(server.run(listener, async { drop(stopped.await) }));
    test(address, stop);
    let ended = runtime.block_on(async { timeout(PATIENCE, running).await });
    drop(entered);
    // What still waits for the disk must not hold the test up.
    runtime.shutdown_background();
    ended.map(|ended| ended.unwrap().map_err(|error| error.to_string()))
}

/// Sees others served while the disk holds back what clients wait for, and lets the disk go on.
fn serve_others(address: SocketAddr, disk: &SlowDisk) {
    for _ in 0..20 {
        let answer = ask(address, &doc! { "ping": 1, "$db": "admin" });
        assert_eq!(answer.get_f64("ok").ok(), Some(1.0), "{answer}");
    }
    disk.tell(|events| {
        assert_eq!(events.answers, [], "the disk has yet to sync");
        events.is_held = false;
    });
}

/// The manual, "Write Concern": with `j: true` the answer comes when the write is in the journal on the disk. The first
/// answer may have been lost while the disk stood still.
#[test]
fn a_repeated_write_is_answered_when_the_disk_has_what_the_first_one_wrote() {
    let disk = SlowDisk::default();
    let insert = |journal: bool| {
        let id = Binary { subtype: BinarySubtype::Uuid, bytes: vec![7; 16] };
        doc! {
            "insert": "c", "documents": [{ "_id": 1 }], "lsid": { "id": id }, "txnNumber": 1_i64,
            "writeConcern": { "w": 1, "j": journal }, "$db": "db",
        }
    };
    serve_meanwhile(&disk, Around::Nothing, |address| {
        let first = ask(address, &insert(false));
        assert_eq!(first.get_i32("n").ok(), Some(1), "{first}");
        disk.tell(|events| events.is_held = true);
        let client = std::thread::spawn({
            let (disk, again) = (disk.clone(), insert(true));
            move || {
                let answer = ask(address, &again);
                disk.tell(|events| events.answers.push(answer));
            }
        });
        disk.wait_until(|events| events.waiting_syncs > 0 || !events.answers.is_empty());
        let early = disk.tell(|events| std::mem::take(&mut events.answers));
        disk.tell(|events| events.is_held = false);
        assert_eq!(early, [], "the disk has yet to sync");
        client.join().unwrap();
        let answers = disk.tell(|events| std::mem::take(&mut events.answers));
        assert!(answers[0].contains_key("retriedStmtIds"), "{answers:?}");
    });
}

/// The disk was quick before, so that the worker that has the write waits for it.
#[test]
fn others_are_served_while_the_disk_stands_still() {
    let disk = SlowDisk::default();
    let insert = |id: i32| {
        let concern = doc! { "w": 1, "j": true };
        doc! { "insert": "c", "documents": [{ "_id": id }], "writeConcern": concern, "$db": "db" }
    };
    serve_meanwhile(&disk, Around::Nothing, |address| {
        for id in 0..20 {
            assert_eq!(ask(address, &insert(id)).get_i32("n").ok(), Some(1));
        }
        disk.tell(|events| events.is_held = true);
        let clients = [20, 21, 22].map(|id| {
            let (disk, insert) = (disk.clone(), insert(id));
            std::thread::spawn(move || {
                let answer = ask(address, &insert);
                disk.tell(|events| events.answers.push(answer));
            })
        });
        disk.wait_until(|events| events.waiting_syncs > 0);
        serve_others(address, &disk);
        for client in clients {
            client.join().unwrap();
        }
        let answers = disk.tell(|events| std::mem::take(&mut events.answers));
        assert!(answers.iter().all(|answer| answer.get_i32("n").ok() == Some(1)), "{answers:?}");
    });
}

/// One connection forces its entry to disk for the other members, another one waits for the disk alone: two workers.
#[test]
fn a_worker_is_left_while_writes_of_two_kinds_wait_for_the_disk() {
    let disk = SlowDisk::default();
    let insert = |id: i32, concern: &Document| {
        doc! { "insert": "c", "documents": [{ "_id": id }], "writeConcern": concern, "$db": "db" }
    };
    let concerns = [doc! { "w": "majority" }, doc! { "w": 1, "j": true }];
    serve_meanwhile(&disk, Around::ASetOfOne, |address| {
        initiate(address);
        // The disk was quick for both.
        for id in 0..20 {
            let answer = ask(address, &insert(id, &concerns[usize::from(id < 10)]));
            assert_eq!(answer.get_i32("n").ok(), Some(1), "{answer}");
        }
        disk.tell(|events| events.is_held = true);
        let clients = [0, 1].map(|kind| {
            let insert = insert(100 + kind, &concerns[kind as usize]);
            let disk_of_client = disk.clone();
            let client = std::thread::spawn(move || {
                let answer = ask(address, &insert);
                disk_of_client.tell(|events| events.answers.push(answer));
            });
            disk.wait_until(|events| events.waiting_syncs > 0);
            let find = doc! { "count": "c", "query": { "_id": 100 + kind }, "$db": "db" };
            let deadline = Instant::now() + PATIENCE;
            while ask(address, &find).get_i32("n").unwrap() == 0 {
                assert!(Instant::now() < deadline, "the write is not there");
            }
            client
        });
        serve_others(address, &disk);
        for client in clients {
            client.join().unwrap();
        }
    });
}

/// A thread syncs for all, or the connection of a lone client does: either may meet a defect. What it did to the file is
/// unknown, and nothing waits for it.
#[test]
fn a_member_ends_when_a_sync_panics() {
    for writes_before in [0, 20] {
        let disk = SlowDisk::default();
        let insert = |id: i32| {
            let concern = doc! { "w": "majority" };
            doc! { "insert": "c", "documents": [{ "_id": id }], "writeConcern": concern, "$db": "db" }
        };
        let mut client = None;
        let ended = serve_until_end(&disk, Around::ASetOfOne, |address, stop| {
            initiate(address);
            for id in 0..writes_before {
                let answer = ask(address, &insert(id));
                assert_eq!(answer.get_i32("n").ok(), Some(1), "{answer}");
            }
            disk.tell(|events| events.is_defective = true);
            client = Some((std::thread::spawn(move || ask(address, &insert(100))), stop));
        });
        let error = ended.unwrap_or_else(|_| panic!("after {writes_before} writes it goes on"));
        assert!(error.is_err(), "after {writes_before} writes");
        // The connection is closed, or the answer tells of the end.
        let (client, _stop) = client.unwrap();
        let acknowledged =
            client.join().is_ok_and(|answer| !answer.contains_key("writeConcernError"));
        assert!(!acknowledged);
    }
}
