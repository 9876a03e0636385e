//! A member over the store on disk: what a write costs, what `validate` finds, and a data directory that
//! release 0.1 wrote.

#![allow(clippy::unwrap_used, reason = "a panic is the report")]

mod support;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bson::spec::BinarySubtype;
use bson::{Binary, Bson, Document, doc};
use quorate_node::{Command, Node, NodeOptions, Outcome};
use quorate_storage::{Direction, DiskOptions, DiskStore, KeyRange, Store};
use support::{context, now};

const KEPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/format-1");

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &target);
        } else {
            fs::copy(&path, &target).unwrap();
        }
    }
}

fn open(directory: &Path) -> (Arc<DiskStore>, Node) {
    let store = Arc::new(DiskStore::open(directory, DiskOptions::default()).unwrap());
    let options = NodeOptions { oplog_bytes: Some(1 << 20), ..NodeOptions::default() };
    let node = Node::open(Arc::clone(&store) as Arc<dyn Store>, options, now()).unwrap();
    (store, node)
}

fn run(node: &Node, command: Document) -> Document {
    match node.run(&context(), Command::new(command)) {
        Outcome::Reply(reply) => Document::try_from(&*reply.body).unwrap(),
        other => panic!("the command is not done: {other:?}"),
    }
}

fn first_batch(node: &Node, command: Document) -> Vec<Document> {
    let reply = run(node, command);
    let cursor = reply.get_document("cursor").unwrap_or_else(|_| panic!("{reply}"));
    let documents = cursor.get_array("firstBatch").unwrap();
    documents.iter().map(|document| document.as_document().unwrap().clone()).collect()
}

fn history(node: &Node) -> Vec<Document> {
    first_batch(node, doc! {"find": "oplog.rs", "batchSize": 1000, "$db": "local"})
}

fn check(node: &Node) {
    let people = first_batch(node, doc! {"find": "people", "batchSize": 1000, "$db": "admin"});
    assert_eq!(people.len(), 39);
    let by_index =
        doc! {"find": "people", "filter": {"name": "changed"}, "hint": "name_1", "$db": "admin"};
    let changed = first_batch(node, by_index);
    assert_eq!(changed.len(), 1);
    assert_eq!(changed[0].get("_id"), Some(&Bson::Int32(3)));
    let validated = run(node, doc! {"validate": "people", "$db": "admin"});
    assert!(validated.get_bool("valid").unwrap(), "{validated}");
    let entries = history(node);
    let count = |letter: &str, namespace: &str| {
        let is = |entry: &&Document| {
            entry.get_str("op").unwrap() == letter && entry.get_str("ns").unwrap() == namespace
        };
        entries.iter().filter(is).count()
    };
    assert_eq!(count("i", "admin.people"), 40);
    assert_eq!((count("u", "admin.people"), count("d", "admin.people")), (1, 1));
    assert_eq!(count("i", "admin.retried"), 1);
    let timestamps: Vec<_> = entries.iter().map(|e| e.get_timestamp("ts").unwrap()).collect();
    assert!(timestamps.is_sorted() && timestamps.len() >= 43, "{timestamps:?}");
}

#[test]
fn a_directory_of_release_0_1_opens_with_all_it_holds() {
    let directory = tempfile::tempdir().unwrap();
    copy(Path::new(KEPT), directory.path());
    let (store, node) = open(directory.path());
    check(&node);
    let before = history(&node);
    // The history has moved: no row of it is left among the records.
    let keyspaces = store.keyspaces();
    let records = keyspaces.iter().find(|(name, _)| name == "records").unwrap().1;
    let rows = store.snapshot().scan(records, KeyRange::all(), Direction::Forward).unwrap().count();
    let (documents, bookkeeping) = (39 + 1, rows - 40);
    assert!(bookkeeping < 10, "{rows} rows for {documents} documents");
    drop((store, node));
    let (store, node) = open(directory.path());
    check(&node);
    assert_eq!(history(&node), before);
    let inserted =
        run(&node, doc! {"insert": "people", "documents": [{"_id": 100}], "$db": "admin"});
    assert_eq!(inserted.get_i32("n").unwrap(), 1, "{inserted}");
    assert_eq!(history(&node).len(), before.len() + 1);
    assert_eq!(store.verify().unwrap(), []);
}

/// How much of the journal is written: what is reserved behind it is zero.
fn journal_bytes(directory: &Path) -> usize {
    let written = |path: std::path::PathBuf| {
        let bytes = fs::read(path).unwrap();
        bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1)
    };
    let entries = fs::read_dir(directory.join("journal")).unwrap();
    entries.map(|entry| written(entry.unwrap().path())).sum()
}

#[test]
fn a_document_is_written_once_inside_its_entry() {
    const INSERTS: usize = 200;
    let directory = tempfile::tempdir().unwrap();
    let (_store, node) = open(directory.path());
    let insert = |number: usize| {
        let document = doc! {"_id": number as i64, "text": "x".repeat(200)};
        run(&node, doc! {"insert": "c", "documents": [document], "$db": "test"});
    };
    insert(0);
    node.write_out_through(node.durability().0).unwrap();
    let before = (journal_bytes(directory.path()), history(&node).len());
    (1..=INSERTS).for_each(insert);
    node.write_out_through(node.durability().0).unwrap();
    let written = journal_bytes(directory.path()) - before.0;
    let entries = &history(&node)[before.1..];
    assert_eq!(entries.len(), INSERTS);
    let logged: usize = entries
        .iter()
        .map(|entry| bson::RawDocumentBuf::try_from(entry).unwrap().as_bytes().len())
        .sum();
    let around = (written - logged) / INSERTS;
    // Two keys, the record and what marks its parts; a second copy of the document would not fit.
    assert!(around < 150, "{around} bytes besides an entry of {}", logged / INSERTS);
}

#[test]
fn validate_finds_a_flipped_bit_in_the_journal() {
    let directory = tempfile::tempdir().unwrap();
    let (_store, node) = open(directory.path());
    run(&node, doc! {"insert": "c", "documents": [{"_id": 1, "text": "find me"}], "$db": "test"});
    let validate = || run(&node, doc! {"validate": "c", "full": true, "$db": "test"});
    assert!(validate().get_bool("valid").unwrap());
    let journal = directory.path().join("journal/0000000000000001.seg");
    let mut bytes = fs::read(&journal).unwrap();
    let place = bytes.windows(7).position(|window| window == b"find me").unwrap();
    bytes[place] ^= 1;
    fs::write(&journal, bytes).unwrap();
    let reply = validate();
    assert!(!reply.get_bool("valid").unwrap(), "{reply}");
    let problem = reply.get_array("errors").unwrap()[0].as_str().unwrap();
    assert!(problem.contains("0000000000000001.seg is damaged at byte"), "{problem}");
}

/// A client may ask for a string of any length. No key of an index is as long.
#[test]
fn a_value_that_is_longer_than_any_key_is_compared_with_those_that_are_there() {
    let directory = tempfile::tempdir().unwrap();
    let (_store, node) = open(directory.path());
    let index = doc! {"key": {"a": 1}, "name": "a_1"};
    run(&node, doc! {"createIndexes": "c", "indexes": [index], "$db": "test"});
    let documents = [doc! {"_id": "x", "a": "x"}, doc! {"_id": "y", "a": "y"}];
    run(&node, doc! {"insert": "c", "documents": &documents, "$db": "test"});
    let long = "x".repeat(70_000);
    for field in ["a", "_id"] {
        let find = |filter: Document, order: i32| {
            let sort = doc! {field: order};
            first_batch(&node, doc! {"find": "c", "filter": filter, "sort": sort, "$db": "test"})
        };
        for order in [1, -1] {
            assert_eq!(find(doc! {field: &long}, order), Vec::<Document>::new());
            assert_eq!(find(doc! {field: {"$gte": &long}}, order), [documents[1].clone()]);
            assert_eq!(find(doc! {field: {"$lt": &long}}, order), [documents[0].clone()]);
        }
        let updates = [doc! {"q": {field: &long}, "u": {"$set": {"changed": 1}}}];
        let updated = run(&node, doc! {"update": "c", "updates": updates, "$db": "test"});
        assert_eq!(updated.get_i32("n").unwrap(), 0, "{updated}");
        let deletes = [doc! {"q": {field: {"$gt": &long, "$lt": "xy"}}, "limit": 0}];
        let deleted = run(&node, doc! {"delete": "c", "deletes": deletes, "$db": "test"});
        assert_eq!(deleted.get_i32("n").unwrap(), 0, "{deleted}");
    }
    assert_eq!(first_batch(&node, doc! {"find": "c", "$db": "test"}), documents);
}

/// The tables of a large collection are dropped whole, which the journal does not tell. Recovery replays what put the keys
/// there: they must not show up under another name.
#[test]
fn what_was_dropped_does_not_come_back_in_what_is_made_later() {
    const DOCUMENTS: i32 = 5000;
    let directory = tempfile::tempdir().unwrap();
    let small = DiskOptions { memtable_bytes: 64 * 1024, ..DiskOptions::default() };
    let open = || {
        let store = Arc::new(DiskStore::open(directory.path(), small).unwrap());
        let node = Node::open(Arc::clone(&store) as Arc<dyn Store>, NodeOptions::default(), now());
        (store, node.unwrap())
    };
    for _ in 0..2 {
        let (store, node) = open();
        let index = doc! {"key": {"n": 1}, "name": "n_1"};
        let made = doc! {"createIndexes": "gone", "indexes": [&index], "$db": "test"};
        assert_eq!(run(&node, made).get_f64("ok").unwrap(), 1.0);
        for first in (0..DOCUMENTS).step_by(500) {
            let documents: Vec<_> = (first..first + 500).map(|n| doc! {"_id": n, "n": n}).collect();
            run(&node, doc! {"insert": "gone", "documents": documents, "$db": "test"});
        }
        run(&node, doc! {"drop": "gone", "$db": "test"});
        while node.maintain(now()).unwrap() {}
        let (records, indexes) = (rows(&store, "records"), rows(&store, "indexes"));
        assert!(records < 20 && indexes < 20, "{records} records and {indexes} entries are left");
        // Nothing is flushed when a store is closed: the next one recovers as after a crash.
        drop((node, store));
        let (store, node) = open();
        run(&node, doc! {"create": "later", "$db": "test"});
        run(&node, doc! {"createIndexes": "later", "indexes": [index], "$db": "test"});
        let found = doc! {"find": "later", "filter": {"n": {"$gte": 0}}, "$db": "test"};
        assert_eq!(first_batch(&node, found), Vec::<Document>::new());
        assert_eq!(
            first_batch(&node, doc! {"find": "later", "$db": "test"}),
            Vec::<Document>::new()
        );
        let validated = run(&node, doc! {"validate": "later", "full": true, "$db": "test"});
        assert!(validated.get_bool("valid").unwrap(), "{validated}");
        while node.maintain(now()).unwrap() {}
        let (records, indexes) = (rows(&store, "records"), rows(&store, "indexes"));
        assert!(records < 20 && indexes < 20, "{records} records and {indexes} entries are left");
        run(&node, doc! {"drop": "later", "$db": "test"});
        while node.maintain(now()).unwrap() {}
    }
}

fn rows(store: &DiskStore, keyspace: &str) -> usize {
    let keyspaces = store.keyspaces();
    let (_, found) = keyspaces.iter().find(|(name, _)| name == keyspace).unwrap();
    store.snapshot().scan(*found, KeyRange::all(), Direction::Forward).unwrap().count()
}

/// What the files below a directory take.
fn bytes_of(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let bytes = |path: std::path::PathBuf| match path.is_dir() {
        true => bytes_of(&path),
        // The store may remove it meanwhile.
        false => fs::metadata(&path).map_or(0, |file| file.len()),
    };
    entries.map(bytes).sum()
}

#[test]
fn the_status_tells_what_the_store_takes_on_disk() {
    let directory = tempfile::tempdir().unwrap();
    let (store, node) = open(directory.path());
    let text = "x".repeat(10_000);
    for batch in 0..30 {
        let documents: Vec<_> =
            (0..100).map(|n| doc! {"_id": batch * 100 + n, "text": &text}).collect();
        run(&node, doc! {"insert": "c", "documents": documents, "$db": "db"});
    }
    store.sync_through(store.last_committed()).unwrap();
    // Segments and tables are made in the background.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    loop {
        let status = run(&node, doc! {"serverStatus": 1, "$db": "admin"});
        let told = |section: &str| {
            status.get_document(section).unwrap().get_i64("diskBytes").unwrap() as u64
        };
        let (journal, all) = (told("journal"), told("storageEngine"));
        let trees = bytes_of(&directory.path().join("trees"));
        let is_journal = journal > 0 && journal == bytes_of(&directory.path().join("journal"));
        // Beside its tables a tree has some small files.
        let tables = all - journal;
        if is_journal && tables > 1 << 20 && tables <= trees && trees - tables < trees / 10 {
            break;
        }
        assert!(
            std::time::Instant::now() < deadline,
            "{journal} of {all}, trees {trees}: {status}"
        );
        std::thread::yield_now();
    }
}

/// A collection of few large documents gives its tables back as one of many does. Marks of their removal would stay in
/// memory, and on a full disk nothing could be written that moves them to the tables.
#[test]
fn large_documents_that_were_dropped_give_their_room_back() {
    const DOCUMENTS: i32 = 40;
    const BYTES: usize = 200_000;
    let directory = tempfile::tempdir().unwrap();
    let options = DiskOptions { memtable_bytes: 1 << 20, ..DiskOptions::default() };
    let store = Arc::new(DiskStore::open(directory.path(), options).unwrap());
    let node = Node::open(Arc::clone(&store) as Arc<dyn Store>, NodeOptions::default(), now());
    let node = node.unwrap();
    let mut random = 1_u64;
    let mut next = || {
        // Bytes that no table can hold in less.
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 56) as u8
    };
    for id in 0..DOCUMENTS {
        let bytes = (0..BYTES).map(|_| next()).collect();
        let data = Binary { subtype: BinarySubtype::Generic, bytes };
        run(&node, doc! {"insert": "c", "documents": [{"_id": id, "data": data}], "$db": "db"});
    }
    let trees = || bytes_of(&directory.path().join("trees"));
    let until = |what: &str, holds: &dyn Fn(u64) -> bool| {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !holds(trees()) {
            node.maintain(now()).unwrap();
            assert!(Instant::now() < deadline, "never saw {what}: {} bytes", trees());
            std::thread::yield_now();
        }
    };
    let half = DOCUMENTS as u64 * BYTES as u64 / 2;
    until("tables", &|bytes| bytes > half);
    run(&node, doc! {"drop": "c", "$db": "db"});
    until("room", &|bytes| bytes < half / 4);
}
