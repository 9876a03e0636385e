//! Multi-document transactions on a member driven by hand.

#![allow(clippy::unwrap_used, reason = "a panic is the report")]

mod durable;
#[path = "../support/mod.rs"]
mod support;

mod old_rules;
mod waiting;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bson::spec::BinarySubtype;
use bson::{Binary, Bson, Document, doc};
use quorate_node::{Context, Interrupt, Interruption, Now, Outcome};
use quorate_protocol::{MonotonicTime, OpTime};
use quorate_storage::Store;
use support::set::{entries, position, primary, secondary, show};
use support::{Member, context, now};

const DB: &str = "db";

/// One session's transactions.
struct Session<'m> {
    member: &'m Member,
    id: u8,
    number: i64,
    begun: bool,
}

impl<'m> Session<'m> {
    fn start(member: &'m Member, id: u8, number: i64) -> Self {
        Self { member, id, number, begun: false }
    }

    fn fields(&self, mut command: Document) -> Document {
        let id = Binary { subtype: BinarySubtype::Uuid, bytes: vec![self.id; 16] };
        command
            .extend(doc! { "lsid": { "id": id }, "txnNumber": self.number, "autocommit": false });
        if !command.contains_key("$db") {
            command.insert("$db", DB);
        }
        command
    }

    fn run(&mut self, command: Document) -> Document {
        let mut command = self.fields(command);
        if !self.begun {
            command.insert("startTransaction", true);
            self.begun = true;
        }
        run(self.member, command)
    }

    fn ok(&mut self, command: Document) -> Document {
        let reply = self.run(command);
        assert_eq!(reply.get_f64("ok").ok(), Some(1.0), "{reply}");
        assert!(!reply.contains_key("writeErrors"), "{reply}");
        reply
    }

    fn fails(&mut self, command: Document, code: i32, labels: &[&str]) {
        let reply = self.run(command);
        assert_failed(&reply, code, labels);
    }

    fn end(&self, name: &str) -> Document {
        run(self.member, self.fields(doc! { name: 1, "$db": "admin" }))
    }

    fn commit(&self) {
        let reply = self.end("commitTransaction");
        assert_eq!(reply.get_f64("ok").ok(), Some(1.0), "{reply}");
    }

    fn values(&mut self, name: &str, filter: Document) -> Vec<Document> {
        first_batch(&self.ok(doc! { "find": name, "filter": filter, "sort": { "_id": 1 } }))
    }
}

const TRANSIENT: &[&str] = &["TransientTransactionError"];

fn assert_failed(reply: &Document, code: i32, labels: &[&str]) {
    assert_eq!(reply.get_i32("code").ok(), Some(code), "{reply}");
    let found = reply.get_array("errorLabels").map(Vec::as_slice).unwrap_or_default();
    let expected: Vec<_> = labels.iter().map(|label| Bson::from(*label)).collect();
    assert_eq!(found, expected, "{reply}");
}

fn run(member: &Member, command: Document) -> Document {
    run_in(member, &context(), command)
}

fn run_in(member: &Member, context: &Context, command: Document) -> Document {
    match member.node.run(context, quorate_node::Command::new(command)) {
        Outcome::Reply(reply) => Document::try_from(&*reply.body).unwrap(),
        Outcome::Wait { .. } | Outcome::Long => panic!("it waits"),
    }
}

fn first_batch(reply: &Document) -> Vec<Document> {
    let batch = reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
    batch.iter().map(|item| item.as_document().unwrap().clone()).collect()
}

fn plain(member: &Member, mut command: Document) -> Document {
    command.insert("$db", DB);
    let reply = run(member, command);
    assert_eq!(reply.get_f64("ok").ok(), Some(1.0), "{reply}");
    reply
}

fn find(member: &Member, name: &str) -> Vec<Document> {
    first_batch(&plain(member, doc! { "find": name, "sort": { "_id": 1 } }))
}

fn insert(member: &Member, name: &str, documents: Vec<Document>) {
    let reply = plain(member, doc! { "insert": name, "documents": documents });
    assert!(!reply.contains_key("writeErrors"), "{reply}");
}

fn update(id: i32, change: Document) -> Document {
    doc! { "update": "c", "updates": [{ "q": { "_id": id }, "u": change }] }
}

fn set(id: i32, x: i32) -> Document {
    update(id, doc! { "$set": { "x": x } })
}

fn waits(member: &Member) -> i64 {
    let status = run(member, doc! { "serverStatus": 1, "$db": "admin" });
    let metrics = status.get_document("metrics").unwrap().get_document("operation").unwrap();
    metrics.get_i64("writeConflicts").unwrap()
}

fn apply(from: &Member, to: &Member) {
    let all = entries(from);
    to.node.apply(OpTime::NULL, all, now()).unwrap();
}

/// After a restart the newest document is deleted while a transaction still shows it; what the transaction inserts
/// takes another place than that.
#[test]
fn a_document_that_only_a_snapshot_shows_keeps_its_place() {
    let before = primary();
    insert(&before, "c", vec![doc! { "_id": 1, "old": true }]);
    let kept = before.store.crash(before.store.last_committed());
    let member = Member::with_history(kept, support::set::OPLOG_BYTES);
    member.node.join_replica_set(now()).unwrap();
    show(&member.node, quorate_protocol::MemberState::Primary, true);
    let mut session = Session::start(&member, 1, 1);
    assert_eq!(session.values("c", doc! {}).len(), 1);
    plain(&member, doc! { "delete": "c", "deletes": [{ "q": { "_id": 1 }, "limit": 1 }] });
    session.ok(doc! { "insert": "c", "documents": [{ "_id": 0, "old": false }] });
    let expected = [doc! { "_id": 0, "old": false }, doc! { "_id": 1, "old": true }];
    assert_eq!(session.values("c", doc! {}), expected);
    session.commit();
    assert_eq!(find(&member, "c"), expected[..1]);
}

#[test]
fn own_writes_are_seen_in_records_indexes_and_unique_keys_and_by_no_other_client() {
    let member = primary();
    let indexes = [
        doc! { "key": { "x": 1 }, "name": "x" },
        doc! { "key": { "u": 1 }, "name": "u", "unique": true },
    ];
    plain(&member, doc! { "createIndexes": "c", "indexes": indexes.to_vec() });
    insert(
        &member,
        "c",
        vec![doc! { "_id": 1, "x": 1, "u": 1 }, doc! { "_id": 2, "x": 2, "u": 2 }],
    );
    let before = find(&member, "c");
    let mut session = Session::start(&member, 1, 1);
    session.ok(doc! { "insert": "c", "documents": [{ "_id": 3, "x": 1, "u": 3 }] });
    session.ok(set(2, 1));
    session.ok(doc! { "delete": "c", "deletes": [{ "q": { "_id": 1 }, "limit": 1 }] });
    let ids = |found: Vec<Document>| -> Vec<i32> {
        found.iter().map(|found| found.get_i32("_id").unwrap()).collect()
    };
    assert_eq!(ids(session.values("c", doc! { "x": 1 })), [2, 3], "by an index");
    assert_eq!(ids(session.values("c", doc! { "u": { "$gte": 2 } })), [2, 3], "by a unique index");
    assert_eq!(ids(session.values("c", doc! {})), [2, 3], "by scanning");
    assert!(session.values("c", doc! { "_id": 1 }).is_empty());
    assert_eq!(find(&member, "c"), before);
    // The key of the removed document is free inside.
    session.ok(doc! { "insert": "c", "documents": [{ "_id": 1, "x": 9, "u": 1 }] });
    session.commit();
    let after = find(&member, "c");
    assert_eq!(after.len(), 3);
    assert_eq!(after[0], doc! { "_id": 1, "x": 9, "u": 1 });
    let count = plain(&member, doc! { "count": "c" });
    assert_eq!(count.get_i32("n").ok(), Some(3));
}

#[test]
fn all_statements_read_one_snapshot() {
    let member = primary();
    insert(&member, "c", vec![doc! { "_id": 1, "x": 1 }]);
    let mut session = Session::start(&member, 1, 1);
    assert_eq!(session.values("c", doc! {}).len(), 1);
    insert(&member, "c", vec![doc! { "_id": 2 }]);
    plain(&member, set(1, 5));
    let seen = session.values("c", doc! {});
    assert_eq!(seen, [doc! { "_id": 1, "x": 1 }]);
    session.commit();
}

#[test]
fn the_first_updater_wins_and_the_second_hears_so_at_once() {
    let member = primary();
    insert(&member, "c", vec![doc! { "_id": 1, "x": 0 }]);
    let (mut first, mut second) = (Session::start(&member, 1, 1), Session::start(&member, 2, 1));
    first.ok(set(1, 1));
    second.fails(set(1, 2), 112, TRANSIENT);
    assert_failed(&second.end("commitTransaction"), 251, TRANSIENT);
    first.commit();
    assert_eq!(find(&member, "c"), [doc! { "_id": 1, "x": 1 }]);
}

#[test]
fn two_inserts_of_one_id_conflict_and_are_no_duplicate() {
    let member = primary();
    insert(&member, "c", vec![doc! { "_id": 0 }]);
    let (mut first, mut second) = (Session::start(&member, 1, 1), Session::start(&member, 2, 1));
    let one = doc! { "insert": "c", "documents": [{ "_id": 1 }] };
    first.ok(one.clone());
    second.fails(one, 112, TRANSIENT);
}

#[test]
fn a_value_that_was_changed_and_changed_back_is_a_conflict() {
    let member = primary();
    insert(&member, "c", vec![doc! { "_id": 1, "x": 0 }]);
    let mut session = Session::start(&member, 1, 1);
    session.values("c", doc! {});
    plain(&member, set(1, 1));
    plain(&member, set(1, 0));
    session.fails(set(1, 2), 112, TRANSIENT);
}

#[test]
fn any_error_aborts_and_a_duplicate_key_has_no_label() {
    let member = primary();
    insert(&member, "c", vec![doc! { "_id": 1 }]);
    let mut session = Session::start(&member, 1, 1);
    session.ok(doc! { "insert": "c", "documents": [{ "_id": 2 }] });
    let reply = session.run(doc! { "insert": "c", "documents": [{ "_id": 1 }] });
    let errors = reply.get_array("writeErrors").unwrap();
    assert_eq!(errors[0].as_document().unwrap().get_i32("code").ok(), Some(11000));
    assert!(!reply.contains_key("errorLabels"));
    session.fails(doc! { "insert": "c", "documents": [{ "_id": 3 }] }, 251, TRANSIENT);
    assert_eq!(find(&member, "c").len(), 1);
}

#[test]
fn a_repeated_commit_is_answered_again_and_other_statements_are_too_late() {
    let member = primary();
    let mut session = Session::start(&member, 1, 4);
    session.ok(doc! { "insert": "c", "documents": [{ "_id": 1 }] });
    session.commit();
    let written = position(&member);
    session.commit();
    assert_eq!(position(&member), written, "nothing is written again");
    session.fails(doc! { "find": "c" }, 256, &[]);
    let mut old = Session::start(&member, 1, 3);
    old.fails(doc! { "find": "c" }, 225, &[]);
    assert_eq!(find(&member, "c").len(), 1);
}

#[test]
fn the_commit_of_an_unknown_number_writes_before_it_is_refused() {
    let member = primary();
    let session = Session::start(&member, 1, 7);
    let before = position(&member);
    let command = session.fields(doc! { "commitTransaction": 1, "$db": "admin" });
    let outcome = member.node.run(&context(), quorate_node::Command::new(command));
    let Outcome::Reply(reply) = outcome else { panic!("it waits") };
    assert_failed(&Document::try_from(&*reply.body).unwrap(), 251, TRANSIENT);
    assert!(position(&member) > before);
    assert_eq!(reply.op_time, Some(position(&member).op_time), "the write concern waits for it");
}

#[test]
fn a_read_only_commit_waits_for_what_was_read() {
    let member = primary();
    insert(&member, "c", vec![doc! { "_id": 1 }]);
    let read_at = position(&member).op_time;
    let mut session = Session::start(&member, 1, 1);
    session.values("c", doc! {});
    insert(&member, "c", vec![doc! { "_id": 2 }]);
    let command = session.fields(doc! { "commitTransaction": 1, "$db": "admin" });
    let outcome = member.node.run(&context(), quorate_node::Command::new(command));
    let Outcome::Reply(reply) = outcome else { panic!("it waits") };
    assert_eq!(reply.op_time, Some(read_at));
    session.commit();
}

#[test]
fn a_commit_is_one_entry_and_followers_apply_and_undo_it_whole() {
    let member = primary();
    insert(&member, "c", vec![doc! { "_id": 1, "x": 0 }]);
    let follower = secondary();
    apply(&member, &follower);
    let common = position(&member);
    let before = find_on(&follower, "c");
    let mut session = Session::start(&member, 1, 1);
    session.ok(doc! { "create": "new" });
    session.ok(doc! { "insert": "new", "documents": [{ "_id": 1 }, { "_id": 2 }] });
    session.ok(set(1, 5));
    session.ok(set(1, 6));
    session.ok(doc! { "delete": "new", "deletes": [{ "q": { "_id": 2 }, "limit": 1 }] });
    let logged = entries(&member).len();
    session.commit();
    let all = entries(&member);
    assert_eq!(all.len(), logged + 1);
    let entry = Document::try_from(&**all.last().unwrap()).unwrap();
    assert_eq!(entry.get_str("ns").ok(), Some("admin.$cmd"));
    assert_eq!(entry.get_document("o").unwrap().get_array("applyOps").unwrap().len(), 6);
    apply(&member, &follower);
    assert_eq!(find_on(&follower, "c"), find(&member, "c"));
    assert_eq!(find_on(&follower, "new"), [doc! { "_id": 1 }]);
    // The follower becomes primary and knows the commit.
    let rows = first_batch(&run(&member, doc! { "find": "transactions", "$db": "config" }));
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0].get_str("state").ok(), Some("committed"));
    let mut kept = 0;
    follower
        .node
        .roll_back_to(common, now(), &mut |_| {
            kept += 1;
            Ok(())
        })
        .unwrap();
    assert_eq!(find_on(&follower, "c"), before);
    assert!(find_on(&follower, "new").is_empty());
    assert!(kept > 0);
    // The session's row is gone with it: the commit is unknown.
    show(&follower.node, quorate_protocol::MemberState::Primary, true);
    let retried = Session::start(&follower, 1, 1);
    assert_failed(&retried.end("commitTransaction"), 251, TRANSIENT);
}

fn find_on(member: &Member, name: &str) -> Vec<Document> {
    let read = doc! {
        "find": name, "sort": { "_id": 1 }, "$db": DB, "$readPreference": { "mode": "secondary" },
    };
    first_batch(&run(member, read))
}

fn count_on(member: &Member, name: &str) -> i32 {
    let mode = doc! { "mode": "secondary" };
    let reply = run(member, doc! { "count": name, "$db": DB, "$readPreference": mode });
    reply.get_i32("n").unwrap()
}

#[test]
fn a_large_transaction_is_several_entries_that_are_applied_with_the_last() {
    let member = primary();
    insert(&member, "c", vec![doc! { "_id": 0 }]);
    let mut session = Session::start(&member, 1, 1);
    for id in 1..=3 {
        let large = "x".repeat(8 * 1024 * 1024);
        session.ok(doc! { "insert": "c", "documents": [{ "_id": id, "x": large }] });
    }
    let logged = entries(&member).len();
    session.commit();
    let all = entries(&member);
    assert_eq!(all.len(), logged + 3);
    assert!(all.iter().all(|entry| entry.as_bytes().len() < 16 * 1024 * 1024));
    let follower = secondary();
    let last = all.len() - 1;
    follower.node.apply(OpTime::NULL, &all[..last], now()).unwrap();
    assert_eq!(count_on(&follower, "c"), 1, "a part is never shown");
    let common = position(&follower);
    follower.node.apply(common.op_time, &all[last..], now()).unwrap();
    assert_eq!(count_on(&follower, "c"), 4);
    follower.node.roll_back_to(common, now(), &mut |_| Ok(())).unwrap();
    assert_eq!(count_on(&follower, "c"), 1, "and undone whole");
}

/// All entries may come in one batch, with and without other entries before them.
#[test]
fn a_transaction_whose_entries_come_in_one_batch_is_applied() {
    let member = primary();
    member.node.split_transactions_at(1);
    let mut first = Session::start(&member, 1, 1);
    first.ok(doc! { "insert": "c", "documents": [{ "_id": 1 }, { "_id": 2 }, { "_id": 3 }] });
    first.commit();
    insert(&member, "c", vec![doc! { "_id": 4 }]);
    let mut second = Session::start(&member, 2, 1);
    second.ok(doc! { "delete": "c", "deletes": [{ "q": {}, "limit": 0 }] });
    second.ok(doc! { "insert": "c", "documents": [{ "_id": 5 }] });
    second.commit();
    let follower = secondary();
    follower.node.apply(OpTime::NULL, entries(&member), now()).unwrap();
    assert_eq!(find_on(&follower, "c"), [doc! { "_id": 5 }]);
}

/// Transactions share a commit with each other and with plain writes, unless one must see another's changes.
#[test]
fn a_follower_commits_what_concerns_different_documents_and_sessions_together() {
    let member = primary();
    insert(&member, "c", (0..8).map(|id| doc! { "_id": id, "x": 0 }).collect());
    let follower = secondary();
    apply(&member, &follower);
    let common = position(&follower);
    let commits = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&commits);
    follower.node.on_append(Box::new(move |_, _| {
        counted.fetch_add(1, Ordering::Relaxed);
    }));
    let transact = |session: u8, number: i64, changes: &[(i32, i32)]| {
        let mut session = Session::start(&member, session, number);
        for &(id, x) in changes {
            session.ok(set(id, x));
        }
        session.commit();
    };
    let plain = |id: i32, x: i32| {
        let mut command = set(id, x);
        command.insert("$db", DB);
        let reply = run(&member, command);
        assert_eq!(reply.get_i32("n").ok(), Some(1), "{reply}");
    };
    let applied_in = |expected: usize, why: &str| {
        commits.store(0, Ordering::Relaxed);
        apply(&member, &follower);
        assert_eq!(commits.load(Ordering::Relaxed), expected, "{why}");
        assert_eq!(find_on(&follower, "c"), find(&member, "c"), "{why}");
    };
    transact(1, 1, &[(0, 1), (1, 1), (0, 2)]);
    plain(2, 1);
    transact(2, 1, &[(3, 1), (4, 1)]);
    applied_in(1, "nothing in common");
    transact(1, 2, &[(0, 3), (1, 3)]);
    transact(2, 2, &[(1, 4), (2, 4)]);
    applied_in(2, "two transactions change one document");
    transact(1, 3, &[(0, 5)]);
    plain(0, 6);
    applied_in(2, "a plain write after a transaction");
    plain(3, 7);
    transact(1, 4, &[(2, 7), (3, 8)]);
    applied_in(2, "a transaction after a plain write");
    transact(1, 5, &[(0, 9)]);
    transact(1, 6, &[(1, 9)]);
    applied_in(2, "one session: the second must know the row that it replaces");
    follower.node.roll_back_to(common, now(), &mut |_| Ok(())).unwrap();
    assert!(find_on(&follower, "c").iter().all(|found| found.get_i32("x").ok() == Some(0)));
    follower.node.apply(common.op_time, entries(&member), now()).unwrap();
    assert_eq!(find_on(&follower, "c"), find(&member, "c"));
}

/// A write of several statements, a transaction and another write, of which the last two are undone.
#[test]
fn a_write_before_an_undone_transaction_is_not_done_again() {
    let member = primary();
    insert(&member, "c", (0..4).map(|id| doc! { "_id": id, "x": 0 }).collect());
    let write = |number: i64, ids: &[i32]| {
        let updates: Vec<_> =
            ids.iter().map(|id| doc! { "q": { "_id": id }, "u": { "$inc": { "x": 1 } } }).collect();
        let id = Binary { subtype: BinarySubtype::Uuid, bytes: vec![1; 16] };
        let command = doc! {
            "update": "c", "updates": updates, "lsid": { "id": id }, "txnNumber": number, "$db": DB,
        };
        let reply = run(&member, command);
        assert_eq!(reply.get_i32("nModified").ok(), Some(ids.len() as i32), "{reply}");
    };
    write(1, &[0, 1]);
    let common = position(&member);
    let before = find(&member, "c");
    let mut session = Session::start(&member, 1, 2);
    session.ok(set(2, 5));
    session.commit();
    write(3, &[3]);
    member.node.roll_back_to(common, now(), &mut |_| Ok(())).unwrap();
    show(&member.node, quorate_protocol::MemberState::Primary, true);
    write(1, &[0, 1]);
    assert_eq!(find(&member, "c"), before);
}

#[test]
fn a_new_primary_ends_a_chain_whose_last_entry_it_never_got() {
    let member = primary();
    let mut session = Session::start(&member, 1, 1);
    for id in 1..=2 {
        let large = "x".repeat(8 * 1024 * 1024);
        session.ok(doc! { "insert": "c", "documents": [{ "_id": id, "x": large }] });
    }
    session.commit();
    let all = entries(&member);
    let follower = secondary();
    follower.node.apply(OpTime::NULL, &all[..all.len() - 1], now()).unwrap();
    show(&follower.node, quorate_protocol::MemberState::Primary, true);
    let reason = quorate_replication::NoopReason::NewPrimary;
    follower.node.append_noop(reason, quorate_protocol::Term(1), now()).unwrap();
    let ended = entries(&follower);
    let abort = Document::try_from(&*ended[ended.len() - 2]).unwrap();
    assert!(abort.get_document("o").unwrap().contains_key("abortTransaction"), "{abort}");
    let third = secondary();
    apply(&follower, &third);
    assert!(find_on(&third, "c").is_empty());
}

#[test]
fn a_step_down_ends_transactions_and_forgets_their_numbers() {
    let member = primary();
    insert(&member, "c", vec![doc! { "_id": 1, "x": 0 }]);
    let mut session = Session::start(&member, 1, 1);
    session.ok(set(1, 1));
    show(&member.node, quorate_protocol::MemberState::Secondary, false);
    session.fails(set(1, 2), 10107, TRANSIENT);
    show(&member.node, quorate_protocol::MemberState::Primary, true);
    let mut again = Session::start(&member, 1, 1);
    again.ok(set(1, 3));
    again.commit();
    assert_eq!(find(&member, "c"), [doc! { "_id": 1, "x": 3 }]);
}

#[test]
fn what_transactions_cannot_do_is_refused_and_leaves_the_session_as_it_was() {
    let member = primary();
    insert(&member, "c", vec![doc! { "_id": 1, "x": 0 }]);
    let mut session = Session::start(&member, 1, 1);
    session.ok(set(1, 1));
    session.fails(doc! { "count": "c" }, 263, &[]);
    session.fails(doc! { "listCollections": 1 }, 263, &[]);
    session.fails(doc! { "aggregate": "c", "pipeline": [{ "$out": "d" }], "cursor": {} }, 263, &[]);
    session.fails(doc! { "find": "c", "$db": "config" }, 263, &[]);
    session.fails(doc! { "find": "c", "readConcern": { "level": "local" } }, 72, &[]);
    let concern = doc! { "w": 1 };
    let mut write = set(1, 2);
    write.insert("writeConcern", concern);
    session.fails(write, 72, &[]);
    let mut twice = Session::start(&member, 1, 1);
    twice.fails(set(1, 2), 117, &[]);
    session.ok(set(1, 3));
    session.commit();
    let standalone = Member::new();
    let mut refused = Session::start(&standalone, 1, 1);
    refused.fails(doc! { "find": "c" }, 20, &[]);
}

#[test]
fn what_a_read_concern_does_not_go_with_is_refused() {
    let member = primary();
    plain(&member, doc! { "create": "capped", "capped": true, "size": 4096 });
    insert(&member, "capped", vec![doc! { "_id": 1 }]);
    let at = |mut command: Document, level: &str| {
        command.insert("readConcern", doc! { "level": level });
        command
    };
    let mut session = Session::start(&member, 1, 1);
    session.fails(at(doc! { "find": "capped" }, "snapshot"), 263, &[]);
    for (number, level) in [(2, "snapshot"), (3, "majority")] {
        let mut session = Session::start(&member, 1, number);
        session.fails(at(doc! { "create": "new" }, level), 263, &[]);
    }
    let mut session = Session::start(&member, 1, 4);
    session.ok(at(doc! { "find": "capped" }, "local"));
    session.ok(doc! { "create": "new" });
    session.commit();
}

#[test]
fn transactions_end_with_their_lifetime_and_their_sessions() {
    let member = primary();
    insert(&member, "c", vec![doc! { "_id": 1, "x": 0 }]);
    let mut session = Session::start(&member, 1, 1);
    session.ok(set(1, 1));
    let monotonic = now().monotonic + Duration::from_secs(59);
    member.node.maintain(Now { monotonic, ..now() }).unwrap();
    session.ok(set(1, 2));
    let later = MonotonicTime::from_millis(1000) + Duration::from_secs(60);
    member.node.maintain(Now { monotonic: later, ..now() }).unwrap();
    session.fails(set(1, 3), 251, TRANSIENT);
    let mut killed = Session::start(&member, 2, 1);
    killed.ok(set(1, 4));
    run(&member, doc! { "killAllSessions": [], "$db": "admin" });
    plain(&member, set(1, 5));
    assert_eq!(find(&member, "c"), [doc! { "_id": 1, "x": 5 }]);
}

#[test]
fn a_collection_that_came_or_went_after_the_snapshot_is_not_read() {
    let member = primary();
    insert(&member, "c", vec![doc! { "_id": 1 }]);
    insert(&member, "d", vec![doc! { "_id": 1 }]);
    let mut session = Session::start(&member, 1, 1);
    session.values("c", doc! {});
    plain(&member, doc! { "drop": "d" });
    session.fails(doc! { "find": "d" }, 246, TRANSIENT);
    let mut session = Session::start(&member, 1, 2);
    session.values("c", doc! {});
    insert(&member, "e", vec![doc! { "_id": 1 }]);
    session.fails(doc! { "insert": "e", "documents": [{ "_id": 2 }] }, 246, TRANSIENT);
}

#[test]
fn indexes_are_created_on_new_collections_only() {
    let member = primary();
    insert(&member, "c", vec![doc! { "_id": 1 }]);
    let index = |name: &str| {
        doc! { "createIndexes": name, "indexes": [{ "key": { "u": 1 }, "name": "u", "unique": true }] }
    };
    let mut session = Session::start(&member, 1, 1);
    session.ok(index("new"));
    session.ok(doc! { "insert": "new", "documents": [{ "_id": 1, "u": 1 }] });
    session.commit();
    let reply = plain(&member, doc! { "insert": "new", "documents": [{ "_id": 2, "u": 1 }] });
    assert!(reply.contains_key("writeErrors"), "the index is there: {reply}");
    let mut session = Session::start(&member, 1, 2);
    session.fails(index("c"), 263, &[]);
    let follower = secondary();
    apply(&member, &follower);
    assert_eq!(find_on(&follower, "new").len(), 1);
}

#[test]
fn open_transactions_are_shown() {
    let member = primary();
    insert(&member, "c", vec![doc! { "_id": 1, "x": 0 }]);
    let mut session = Session::start(&member, 1, 1);
    session.ok(set(1, 1));
    let stage = doc! { "$currentOp": { "idleSessions": true } };
    let shown = first_batch(&run(
        &member,
        doc! { "aggregate": 1, "pipeline": [stage], "cursor": {}, "$db": "admin" },
    ));
    let idle =
        shown.iter().find(|shown| shown.get_str("desc").ok() == Some("inactive transaction"));
    let parameters = idle.unwrap().get_document("transaction").unwrap();
    let parameters = parameters.get_document("parameters").unwrap();
    assert_eq!(parameters.get_i64("txnNumber").ok(), Some(1));
    let status = run(&member, doc! { "serverStatus": 1, "$db": "admin" });
    let counts = status.get_document("transactions").unwrap();
    assert_eq!(counts.get_i64("currentOpen").ok(), Some(1));
    assert_eq!(counts.get_i64("totalStarted").ok(), Some(1));
    assert!(!counts.contains_key("lastCommittedTransaction"));
    session.commit();
    let status = run(&member, doc! { "serverStatus": 1, "$db": "admin" });
    let last = status.get_document("transactions").unwrap();
    let last = last.get_document("lastCommittedTransaction").unwrap();
    assert_eq!(last.get_i64("operationCount").ok(), Some(1));
    assert!(last.get_i64("oplogOperationBytes").unwrap() > 0 && last.contains_key("writeConcern"));
}

#[test]
fn a_cursor_belongs_to_its_transaction() {
    let member = primary();
    insert(&member, "c", (0..5).map(|id| doc! { "_id": id }).collect());
    let mut session = Session::start(&member, 1, 1);
    let reply = session.ok(doc! { "find": "c", "batchSize": 2 });
    let id = reply.get_document("cursor").unwrap().get_i64("id").unwrap();
    let lsid = session.fields(doc! {}).get_document("lsid").unwrap().clone();
    let outside = doc! { "getMore": id, "collection": "c", "lsid": lsid, "$db": DB };
    assert!(run(&member, outside.clone()).contains_key("code"));
    session.ok(doc! { "getMore": id, "collection": "c", "batchSize": 2 });
    session.commit();
    assert_failed(&run(&member, outside), 43, &[]);
}

#[test]
fn entries_after_one_that_is_larger_than_a_batch_are_read() {
    let member = primary();
    insert(&member, "c", vec![doc! { "_id": 1, "x": "x".repeat(5 * 1024 * 1024) }]);
    let large = position(&member).op_time;
    insert(&member, "c", vec![doc! { "_id": 2 }]);
    let found = member.node.read_oplog_after(large, 10, 4 * 1024 * 1024).unwrap().unwrap();
    assert_eq!(found.entries.len(), 1);
}

#[test]
fn a_collection_that_exists_is_not_created_again_inside() {
    let member = primary();
    insert(&member, "c", vec![doc! { "_id": 1 }]);
    let mut session = Session::start(&member, 1, 1);
    session.fails(doc! { "create": "c" }, 48, &[]);
}

#[test]
fn a_statement_whose_transaction_expires_is_told_so() {
    let member = primary();
    insert(&member, "c", vec![doc! { "_id": 1, "x": 0 }]);
    insert(&member, "other", vec![doc! { "_id": 1 }]);
    // Statements wait as long as it takes for a command that changes the collection.
    run(
        &member,
        doc! { "setParameter": 1, "maxTransactionLockRequestTimeoutMillis": -1, "$db": "admin" },
    );
    let mut holder = Session::start(&member, 1, 1);
    holder.ok(set(1, 1));
    let mut session = Session::start(&member, 2, 1);
    session.ok(doc! { "find": "other" });
    std::thread::scope(|threads| {
        let member = &member;
        let modify = doc! { "collMod": "c", "validationLevel": "moderate" };
        let modifying = threads.spawn(move || plain(member, modify));
        while waits(member) == 0 {
            std::thread::yield_now();
        }
        let waiting = threads.spawn(move || session.run(doc! { "find": "c" }));
        let is_running = || {
            let status = run(member, doc! { "serverStatus": 1, "$db": "admin" });
            let section = status.get_document("transactions").unwrap();
            section.get_i64("currentActive").unwrap() > 0
        };
        while !is_running() {
            std::thread::yield_now();
        }
        let late = now().monotonic + Duration::from_secs(61);
        member.node.maintain(Now { monotonic: late, ..now() }).unwrap();
        modifying.join().unwrap();
        assert_failed(&waiting.join().unwrap(), 290, TRANSIENT);
    });
}

#[test]
fn a_transaction_that_will_never_fit_is_told_so() {
    let member = primary();
    insert(&member, "c", vec![doc! { "_id": 1, "x": 0 }]);
    let mut large = Session::start(&member, 2, 1);
    let text = "x".repeat(15 * 1024 * 1024);
    let refused = (0..100).find_map(|id| {
        let statement = doc! { "insert": "c", "documents": [{ "_id": 100 + id, "x": &text }] };
        let reply = large.run(statement);
        reply.contains_key("code").then_some(reply)
    });
    assert_failed(&refused.unwrap(), 388, &[]);
    assert_eq!(find(&member, "c"), [doc! { "_id": 1, "x": 0 }]);
}

#[test]
fn writes_that_are_repeated_are_counted() {
    let member = primary();
    let id = Binary { subtype: BinarySubtype::Uuid, bytes: vec![9; 16] };
    let counted = || {
        let status = run(&member, doc! { "serverStatus": 1, "$db": "admin" });
        let section = status.get_document("transactions").unwrap();
        let count = |name: &str| section.get_i64(name).unwrap();
        (count("retriedCommandsCount"), count("retriedStatementsCount"))
    };
    let fields = |number: i64| doc! { "lsid": { "id": id.clone() }, "txnNumber": number };
    let mut write = doc! { "insert": "c", "documents": [{ "_id": 1 }, { "_id": 2 }] };
    write.extend(fields(1));
    plain(&member, write.clone());
    assert_eq!(counted(), (0, 0));
    plain(&member, write);
    assert_eq!(counted(), (1, 2));
    let mut modify = doc! { "findAndModify": "c", "query": { "_id": 1 }, "remove": true };
    modify.extend(fields(2));
    plain(&member, modify.clone());
    plain(&member, modify);
    assert_eq!(counted(), (2, 3));
}

#[test]
fn how_long_a_transaction_holds_others_up_is_shown() {
    let member = primary();
    insert(&member, "c", vec![doc! { "_id": 1, "x": 0 }]);
    let status = |context: &Context| {
        let status = run_in(&member, context, doc! { "serverStatus": 1, "$db": "admin" });
        let section = status.get_document("transactions").unwrap();
        let count = |name: &str| section.get_i64(name).unwrap();
        (count("waitingWrites"), count("oldestOpenMicros"))
    };
    assert_eq!(status(&context()), (0, 0));
    let mut session = Session::start(&member, 1, 1);
    session.ok(set(1, 1));
    let mut later = context();
    later.now.monotonic = now().monotonic + Duration::from_secs(7);
    assert_eq!(status(&later), (0, 7_000_000));
    std::thread::scope(|threads| {
        let member = &member;
        let waiting = threads.spawn(move || plain(member, set(1, 2)));
        while status(&later).0 == 0 {
            std::thread::yield_now();
        }
        session.commit();
        waiting.join().unwrap();
    });
    assert_eq!(status(&later), (0, 0));
}
