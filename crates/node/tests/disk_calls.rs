//! How often a member writes to its journal and syncs it, and how much: counts that do not depend on the
//! machine. The bounds are what it takes today, so that a change that adds to it is seen.

#![allow(clippy::unwrap_used, reason = "a panic is this test's report")]
#![allow(dead_code, reason = "the support is shared with other tests")]

mod support;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bson::{RawDocumentBuf, rawdoc};
use quorate_node::{Command, Node, NodeOptions, Outcome};
use quorate_protocol::{MemberState, Term};
use quorate_replication::NoopReason;
use quorate_storage::{DiskOptions, DiskStore, FileHandle, Files, RealFiles};
use support::set::{OPLOG_BYTES, show};
use support::{context, now};

/// Operations of each kind, of which the first ones, that make collections, are not counted.
const ROUNDS: u64 = 20;

/// How often the same is counted; the least counts.
const TRIES: i64 = 3;

/// Bytes of the journal for an insert of a document of 200 bytes at a primary: the document inside its
/// entry, the keys of the record, of `_id` and of one more index, and the row that undoes it.
const MOST_FOR_INSERT: u64 = 440;

/// The same for an update of one field.
const MOST_FOR_UPDATE: u64 = 750;

/// Calls to the file system.
#[derive(Debug, Default)]
struct Calls {
    writes: AtomicU64,
    bytes: AtomicU64,
    syncs: AtomicU64,
}

impl Calls {
    fn all(&self) -> [u64; 3] {
        [&self.writes, &self.bytes, &self.syncs].map(|count| count.load(Ordering::SeqCst))
    }
}

/// The file system, with every call counted.
struct CountedFiles(Arc<Calls>);

struct CountedFile(Arc<dyn FileHandle>, Arc<Calls>);

impl CountedFiles {
    fn counted(&self, file: Arc<dyn FileHandle>) -> Arc<dyn FileHandle> {
        Arc::new(CountedFile(file, Arc::clone(&self.0)))
    }
}

impl Files for CountedFiles {
    fn create_directory(&self, path: &Path) -> io::Result<()> {
        RealFiles.create_directory(path)
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        RealFiles.list(directory)
    }

    fn create(&self, path: &Path, zeros: u64) -> io::Result<Arc<dyn FileHandle>> {
        RealFiles.create(path, zeros).map(|file| self.counted(file))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn FileHandle>> {
        RealFiles.open(path).map(|file| self.counted(file))
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

impl FileHandle for CountedFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.1.writes.fetch_add(1, Ordering::SeqCst);
        self.1.bytes.fetch_add(bytes.len() as u64, Ordering::SeqCst);
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
        self.1.syncs.fetch_add(1, Ordering::SeqCst);
        self.0.sync()
    }
}

fn run(node: &Node, body: &RawDocumentBuf, documents: Vec<RawDocumentBuf>) {
    let sequences = match documents.is_empty() {
        true => Vec::new(),
        false => vec![("documents".to_owned(), documents)],
    };
    let command = Command::from_raw(body, sequences).unwrap();
    let Outcome::Reply(reply) = node.run(&context(), command) else { panic!("it waits") };
    assert_eq!(reply.body.get_f64("ok").unwrap(), 1.0, "{:?}", reply.body);
}

#[test]
fn many_writes_share_a_call_and_a_sync() {
    let directory = tempfile::tempdir().unwrap();
    let calls = Arc::new(Calls::default());
    let files = Arc::new(CountedFiles(Arc::clone(&calls)));
    let store = DiskStore::open_on(files, directory.path(), DiskOptions::default()).unwrap();
    let options = NodeOptions { oplog_bytes: Some(OPLOG_BYTES), ..NodeOptions::default() };
    let node = Node::open(Arc::new(store), options, now()).unwrap();
    node.join_replica_set(now()).unwrap();
    show(&node, MemberState::Primary, true);
    node.append_noop(NoopReason::NewPrimary, Term(1), now()).unwrap();
    let insert = rawdoc! { "insert": "c", "$db": "db" };
    let document = |id: i64| rawdoc! { "_id": id, "n": id, "text": "x".repeat(165) };
    run(&node, &insert, vec![document(-1)]);
    let index = rawdoc! { "key": { "n": 1 }, "name": "n_1" };
    run(&node, &rawdoc! { "createIndexes": "c", "indexes": [index], "$db": "db" }, Vec::new());
    let update = |id: i64| {
        let change = rawdoc! { "q": { "_id": id }, "u": { "$inc": { "n": 1 } } };
        rawdoc! { "update": "c", "updates": [change], "$db": "db" }
    };

    let cost = |what: &str, most: u64, operation: &dyn Fn(i64)| {
        // What the store does in the background, such as to make its next file, may fall into one try.
        let tries = (0..TRIES).map(|attempt| {
            node.write_out_through(node.durability().0).unwrap();
            let before = calls.all();
            (attempt * ROUNDS as i64..).take(ROUNDS as usize).for_each(operation);
            node.write_out_through(node.durability().0).unwrap();
            let after = calls.all();
            node.sync_through(node.durability().0).unwrap();
            let shared = calls.all()[2] - after[2];
            ([0, 1, 2].map(|place| after[place] - before[place]), shared)
        });
        let (tries, shared): (Vec<_>, Vec<_>) = tries.unzip();
        let [writes, bytes, syncs] =
            tries.into_iter().min_by_key(|[writes, _, syncs]| (*syncs, *writes)).unwrap();
        println!("{what}: {writes} writes, {} bytes each, {syncs} syncs", bytes / ROUNDS);
        assert_eq!((writes, syncs), (1, 0), "{what}: one write for all");
        assert!(bytes <= most * ROUNDS, "{what}: {} bytes of the journal", bytes / ROUNDS);
        assert_eq!(shared.into_iter().min(), Some(1), "{what}: one sync for all");
    };
    cost("insert", MOST_FOR_INSERT, &|id| run(&node, &insert, vec![document(id)]));
    cost("update", MOST_FOR_UPDATE, &|id| run(&node, &update(id), Vec::new()));
    let many: Vec<_> = (1000..2000).map(document).collect();
    let before = calls.all();
    run(&node, &insert, many);
    node.write_out_through(node.durability().0).unwrap();
    let after = calls.all();
    println!(
        "1,000 documents at once: {} writes, {} bytes",
        after[0] - before[0],
        after[1] - before[1]
    );
    assert!(after[0] - before[0] <= 2, "{} writes for 1,000 documents", after[0] - before[0]);
    assert!(after[1] - before[1] <= 1000 * MOST_FOR_INSERT);
}
