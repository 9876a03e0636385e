//! How often a member asks for memory: counts that do not depend on the machine.
//!
//! Only the thread that runs the command is counted. The bounds are a little above what it takes today
//! (50, 2, 11, 18, 60 and 73, 62 and 7 in a session; 49, 241 and 99 for scans, 6 for a hello), so that a change that adds
//! much to it is seen.

#![allow(clippy::unwrap_used, reason = "a panic is this test's report")]

mod support;

use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use bson::{RawDocumentBuf, rawdoc};
use quorate_node::{Command, Context, Node, NodeOptions, Outcome};
use quorate_protocol::{MemberState, OpTime, Term};
use quorate_replication::NoopReason;
use quorate_storage::{DiskOptions, DiskStore};
use quorate_test_support::CountingAllocator;
use support::set::{OPLOG_BYTES, show};
use support::{context, now};

/// Allocations and reallocations of one insert of one document at a primary, those of the test that
/// makes the command among them.
const MOST_FOR_INSERT: u64 = 51;

/// The same of one entry of such an insert, of many that a secondary applies together.
const MOST_FOR_APPLIED_ENTRY: u64 = 3;

/// The same of an insert and of an applied entry in a session, as drivers send them.
const MOST_IN_SESSION: [u64; 2] = [63, 8];

/// The same of an entry of an update of one field.
const MOST_FOR_APPLIED_UPDATE: u64 = 11;

/// The same of reading one document by its `_id`.
const MOST_FOR_POINT_READ: u64 = 19;

/// The same of changing one field of a document that is named by its `_id`.
const MOST_FOR_UPDATE: u64 = 61;

/// The same of one with a session and a number, whose results are kept.
const MOST_FOR_RETRYABLE_UPDATE: u64 = 74;

/// The same of a count with a filter, a `$group` into ten groups and a sort with a limit, each of
/// [`SCANNED`] documents: no document costs one.
const MOST_FOR_SCANS: [u64; 3] = [55, 260, 105];

/// The same of a `hello` that another client asked for before.
const MOST_FOR_HELLO: u64 = 7;

/// Documents that a scan looks at.
const SCANNED: usize = 1000;

/// How many operations are averaged, after as many that fill what is kept.
const ROUNDS: u64 = 100;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn member(directory: &Path, state: MemberState) -> Node {
    let store = Arc::new(DiskStore::open(directory, DiskOptions::default()).unwrap());
    let options = NodeOptions { oplog_bytes: Some(OPLOG_BYTES), ..NodeOptions::default() };
    let node = Node::open(store, options, now()).unwrap();
    node.join_replica_set(now()).unwrap();
    show(&node, state, state == MemberState::Primary);
    if state == MemberState::Primary {
        node.append_noop(NoopReason::NewPrimary, Term(1), now()).unwrap();
    }
    node
}

fn run(node: &Node, context: &Context, command: Command) {
    let Outcome::Reply(reply) = node.run(context, command) else { panic!("it waits") };
    assert_eq!(reply.body.get_f64("ok").unwrap(), 1.0, "{:?}", reply.body);
}

fn insert(node: &Node, context: &Context, number: u64) {
    let body = rawdoc! { "insert": "c", "writeConcern": { "w": 1 }, "$db": "db" };
    let id = format!("{:x}", number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let document = rawdoc! { "_id": id, "text": "x".repeat(150) };
    let command = || Command::from_raw(&body, vec![("documents".to_owned(), vec![document])]);
    run(node, context, command().unwrap());
}

/// An insert as drivers send it: in a session, and with a number by which a repetition is known.
fn insert_in_session(node: &Node, context: &Context, number: u64) {
    let uuid = bson::Binary::from(bson::Uuid::from_bytes([(number % 16) as u8; 16]));
    let body = rawdoc! {
        "insert": "c", "lsid": { "id": uuid }, "txnNumber": number as i64,
        "writeConcern": { "w": 1 }, "$db": "db",
    };
    let id = format!("s{:x}", number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let document = rawdoc! { "_id": id, "text": "x".repeat(150) };
    let command = || Command::from_raw(&body, vec![("documents".to_owned(), vec![document])]);
    run(node, context, command().unwrap());
}

fn find(node: &Node, context: &Context, number: u64) {
    let id = format!("{:x}", number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let body = rawdoc! { "find": "c", "filter": { "_id": id }, "limit": 1, "$db": "db" };
    run(node, context, Command::from_raw(&body, Vec::new()).unwrap());
}

fn update(node: &Node, context: &Context, number: u64) {
    let id = format!("{:x}", number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let body = rawdoc! { "update": "c", "writeConcern": { "w": 1 }, "$db": "db" };
    let statement = rawdoc! { "q": { "_id": id }, "u": { "$inc": { "n": 1 } } };
    let command = || Command::from_raw(&body, vec![("updates".to_owned(), vec![statement])]);
    run(node, context, command().unwrap());
}

/// As drivers send it: in a session, with a number by which it can be repeated.
fn retryable_update(node: &Node, context: &Context, number: u64) {
    let id = format!("{:x}", number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let session = bson::Binary::from(bson::Uuid::from_bytes([0x77; 16]));
    let body = rawdoc! {
        "update": "c", "ordered": true, "lsid": { "id": session }, "txnNumber": number as i64 + 1,
        "writeConcern": { "w": 1 }, "$db": "db",
    };
    let statement = rawdoc! { "q": { "_id": id }, "u": { "$set": { "text": "new" } } };
    let command = || Command::from_raw(&body, vec![("updates".to_owned(), vec![statement])]);
    run(node, context, command().unwrap());
}

/// What the second half of so many calls takes each.
fn each(mut call: impl FnMut(u64)) -> u64 {
    (0..ROUNDS).for_each(&mut call);
    let before = CountingAllocator::count();
    (ROUNDS..2 * ROUNDS).for_each(&mut call);
    (CountingAllocator::count() - before) / ROUNDS
}

#[test]
fn commands_ask_for_memory_no_more_often_than_they_did() {
    let directory = tempfile::tempdir().unwrap();
    let primary = member(&directory.path().join("primary"), MemberState::Primary);
    let context = context();
    let inserted = each(|number| insert(&primary, &context, number));
    let read = each(|number| find(&primary, &context, number));

    let secondary = member(&directory.path().join("secondary"), MemberState::Secondary);
    let mut position = OpTime::default();
    let mut apply_last = || {
        let from = match position == OpTime::default() {
            true => Bound::Unbounded,
            false => Bound::Excluded(position.timestamp),
        };
        let mut entries = primary.read_oplog(from, usize::MAX, usize::MAX).unwrap().entries;
        let measured: Vec<RawDocumentBuf> = entries.split_off(entries.len() - ROUNDS as usize);
        let last = secondary.apply(position, entries, now()).unwrap();
        let before = CountingAllocator::count();
        position = secondary.apply(last.op_time, measured, now()).unwrap().op_time;
        (CountingAllocator::count() - before) / ROUNDS
    };
    let applied = apply_last();
    let inserted_in_session = each(|number| insert_in_session(&primary, &context, number));
    let applied_in_session = apply_last();

    let updated = each(|number| update(&primary, &context, number));
    let applied_update = apply_last();
    println!("allocations: {inserted} for an insert, {applied} for an entry, {read} for a read");
    println!("allocations in a session: {inserted_in_session} and {applied_in_session}");
    let retryable = each(|number| retryable_update(&primary, &context, number));
    println!("allocations: {updated} for an update, {retryable} for a retryable one");
    assert!(retryable <= MOST_FOR_RETRYABLE_UPDATE, "{retryable} for a retryable update");
    println!("allocations: {applied_update} for an entry of an update");
    assert!(applied_update <= MOST_FOR_APPLIED_UPDATE, "{applied_update} for an applied update");
    assert!(updated <= MOST_FOR_UPDATE, "{updated} allocations for an update");
    let in_session = [inserted_in_session, applied_in_session];
    assert!(in_session[0] <= MOST_IN_SESSION[0], "{in_session:?} allocations in a session");
    assert!(in_session[1] <= MOST_IN_SESSION[1], "{in_session:?} allocations in a session");
    assert!(inserted <= MOST_FOR_INSERT, "{inserted} allocations for an insert");
    assert!(applied <= MOST_FOR_APPLIED_ENTRY, "{applied} allocations for an applied entry");
    assert!(read <= MOST_FOR_POINT_READ, "{read} allocations for a point read");
}

#[test]
fn scans_ask_for_memory_as_often_whatever_the_number_of_documents() {
    let directory = tempfile::tempdir().unwrap();
    let node = member(&directory.path().join("member"), MemberState::Primary);
    let context = context();
    let documents: Vec<_> = (0..SCANNED as i64)
        .map(|id| rawdoc! { "_id": id, "kind": id % 10, "text": "x".repeat(150), "n": id })
        .collect();
    let body = rawdoc! { "insert": "c", "$db": "db" };
    run(
        &node,
        &context,
        Command::from_raw(&body, vec![("documents".to_owned(), documents)]).unwrap(),
    );
    let group = rawdoc! { "$group": { "_id": "$kind", "sum": { "$sum": "$n" } } };
    let scans = [
        rawdoc! { "count": "c", "query": { "kind": 3 }, "$db": "db" },
        rawdoc! { "aggregate": "c", "pipeline": [group], "cursor": {}, "$db": "db" },
        rawdoc! { "find": "c", "sort": { "kind": -1 }, "limit": 10, "$db": "db" },
    ];
    let ask = |body: &RawDocumentBuf| {
        each(|_| run(&node, &context, Command::from_raw(body, Vec::new()).unwrap()))
    };
    let counts = scans.each_ref().map(ask);
    let hello = ask(&rawdoc! { "hello": 1, "$db": "admin" });
    println!("allocations of scans of {SCANNED} documents: {counts:?}; of a hello: {hello}");
    for ((scan, count), most) in scans.iter().zip(counts).zip(MOST_FOR_SCANS) {
        assert!(count <= most, "{count} allocations for {scan:?}");
    }
    assert!(hello <= MOST_FOR_HELLO, "{hello} allocations for a hello");
}

/// A client that has not logged in must not learn from the time of an answer which users there are.
#[test]
fn asking_for_an_unknown_user_takes_the_work_of_asking_for_a_known_one() {
    let directory = tempfile::tempdir().unwrap();
    let primary = member(&directory.path().join("primary"), MemberState::Primary);
    let context = context();
    for name in ["anna", "bert"] {
        let user = rawdoc! {
            "createUser": name, "pwd": "x", "roles": ["read"], "writeConcern": { "w": 1 },
            "$db": "admin",
        };
        run(&primary, &context, Command::from_raw(&user, Vec::new()).unwrap());
    }
    let start = |name: &str| {
        let payload = format!("n,,n={name},r=0123456789").into_bytes();
        let payload = bson::Binary { subtype: bson::spec::BinarySubtype::Generic, bytes: payload };
        rawdoc! {
            "saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": payload, "$db": "admin",
        }
    };
    let hello = |name: &str| {
        rawdoc! { "hello": 1, "saslSupportedMechs": format!("admin.{name}"), "$db": "admin" }
    };
    let cost = |body: RawDocumentBuf| {
        each(|_| run(&primary, &context, Command::from_raw(&body, Vec::new()).unwrap()))
    };
    for known in ["anna", "bert"] {
        assert_eq!(cost(start(known)), cost(start("carl")), "saslStart of {known}");
        assert_eq!(cost(hello(known)), cost(hello("carl")), "saslSupportedMechs of {known}");
    }
}
