//! The history of a member, and writes that may be repeated: both in the batch of the change.

#![allow(clippy::unwrap_used, reason = "a panic is the report")]

mod support;

use bson::spec::BinarySubtype;
use bson::{Binary, Bson, Document, doc};
use quorate_protocol::{MemberState, OpTime, OpTimeAndWallTime, Term};
use quorate_replication::NoopReason;
use quorate_storage::{ModelStore, Store};
use support::{Member, now, set};

const PLENTY: u64 = 1 << 20;

fn entries(member: &Member) -> Vec<Document> {
    let reply = member.ok(doc! {"find": "oplog.rs", "$db": "local", "batchSize": 1000});
    let batch = reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
    batch.iter().map(|entry| entry.as_document().unwrap().clone()).collect()
}

fn retryable(mut command: Document, number: i64) -> Document {
    let id = Binary { subtype: BinarySubtype::Uuid, bytes: vec![9; 16] };
    command.insert("lsid", doc! {"id": id});
    command.insert("txnNumber", number);
    command
}

#[test]
fn every_change_has_an_entry_and_timestamps_rise() {
    let member = Member::with_history(ModelStore::new(), PLENTY);
    member.insert("c", vec![doc! {"_id": 1, "a": 1}, doc! {"_id": 2}]);
    member.ok(doc! {"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"a": 2}}}]});
    member.ok(doc! {"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"a": 2}}}]});
    member.ok(doc! {"delete": "c", "deletes": [{"q": {"_id": 2}, "limit": 1}]});
    member.ok(doc! {"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a"}]});
    member.ok(doc! {"drop": "c"});
    let entries = entries(&member);
    let kinds: Vec<_> = entries.iter().map(|entry| entry.get_str("op").unwrap()).collect();
    assert_eq!(kinds, ["c", "i", "i", "u", "d", "c", "c"], "an update of nothing leaves no trace");
    let times: Vec<_> = entries.iter().map(|entry| entry.get_timestamp("ts").unwrap()).collect();
    assert!(times.is_sorted() && times.windows(2).all(|pair| pair[0] != pair[1]));
    assert!(entries.iter().all(|entry| entry.get_i64("t").unwrap() == -1), "no election was held");
    assert_eq!(entries[0].get_str("ns").unwrap(), "db.$cmd");
    assert_eq!(entries[1].get_document("o").unwrap(), &doc! {"_id": 1, "a": 1});
    assert_eq!(entries[3].get_document("o2").unwrap(), &doc! {"_id": 1});
    assert_eq!(entries[4].get_document("o").unwrap(), &doc! {"_id": 2});
}

#[test]
fn a_change_and_its_entry_survive_a_crash_together() {
    let member = Member::with_history(ModelStore::new(), PLENTY);
    let mut moments = vec![member.store.last_committed()];
    for number in 0..5 {
        member.insert("c", vec![doc! {"_id": number}]);
        moments.push(member.store.last_committed());
    }
    for moment in moments {
        let restarted = Member::with_history(member.store.crash(moment), PLENTY);
        let documents = restarted.find(doc! {"find": "c"}).len();
        let entries = entries(&restarted);
        let inserts = entries.iter().filter(|entry| entry.get_str("op").unwrap() == "i");
        assert_eq!(inserts.count(), documents);
    }
}

#[test]
fn timestamps_go_on_after_a_restart() {
    let member = Member::with_history(ModelStore::new(), PLENTY);
    member.insert("c", vec![doc! {"_id": 1}]);
    let restarted = Member::with_history(member.store.crash(member.store.last_committed()), PLENTY);
    restarted.insert("c", vec![doc! {"_id": 2}]);
    let entries = entries(&restarted);
    let times: Vec<_> = entries.iter().map(|entry| entry.get_timestamp("ts").unwrap()).collect();
    assert!(times.len() == 3 && times.is_sorted() && times[1] != times[2]);
}

#[test]
fn the_history_is_trimmed_from_its_old_end() {
    let member = Member::with_history(ModelStore::new(), 4096);
    for number in 0..100 {
        member.insert("c", vec![doc! {"_id": number, "text": "x".repeat(100)}]);
    }
    while member.node.maintain(now()).unwrap() {}
    let entries = entries(&member);
    assert!((5..40).contains(&entries.len()), "{} entries", entries.len());
    let newest = entries.last().unwrap().get_document("o").unwrap();
    assert_eq!(newest.get_i32("_id").unwrap(), 99);
    assert_eq!(member.find(doc! {"find": "c"}).len(), 100, "documents are not trimmed");
}

#[test]
fn a_repeated_write_happens_once() {
    let member = Member::with_history(ModelStore::new(), PLENTY);
    let insert = retryable(doc! {"insert": "c", "documents": [{"_id": 1}, {"_id": 2}]}, 1);
    for retried in [None, Some(bson::bson!([0, 1]))] {
        let reply = member.ok(insert.clone());
        assert_eq!(reply.get_i32("n").unwrap(), 2, "{reply}");
        assert!(!reply.contains_key("writeErrors"));
        assert_eq!(reply.get("retriedStmtIds"), retried.as_ref(), "{reply}");
    }
    let update = doc! {"update": "c", "updates": [
        {"q": {"_id": 1}, "u": {"$inc": {"n": 1}}},
        {"q": {"_id": 7}, "u": {"$inc": {"n": 1}}, "upsert": true},
    ]};
    let update = retryable(update, 2);
    let (first, mut second) = (member.ok(update.clone()), member.ok(update));
    assert_eq!(second.remove("retriedStmtIds"), Some(bson::bson!([0, 1])));
    assert_eq!(first, second);
    let modify = doc! {"findAndModify": "c", "query": {"_id": 1}, "update": {"$inc": {"n": 1}}};
    let modify = retryable(modify, 3);
    let (first, second) = (member.ok(modify.clone()), member.ok(modify));
    assert_eq!(first.get("value"), second.get("value"));
    assert_eq!(first.get("retriedStmtId"), None);
    assert_eq!(second.get_i32("retriedStmtId").unwrap(), 0);
    let delete = retryable(doc! {"delete": "c", "deletes": [{"q": {}, "limit": 1}]}, 4);
    for retried in [None, Some(bson::bson!([0]))] {
        let reply = member.ok(delete.clone());
        assert_eq!(reply.get_i32("n").unwrap(), 1);
        assert_eq!(reply.get("retriedStmtIds"), retried.as_ref(), "{reply}");
    }
    let left = member.find(doc! {"find": "c"});
    assert_eq!(left, [doc! {"_id": 2}, doc! {"_id": 7, "n": 1}]);
    let logged = entries(&member).iter().filter(|entry| entry.contains_key("txnNumber")).count();
    assert_eq!(logged, 2 + 2 + 1 + 1);
    member.validate("c");
}

/// A repetition does nothing that was done before, so it does not make a collection either.
#[test]
fn a_repeated_insert_does_not_bring_a_dropped_collection_back() {
    let member = Member::with_history(ModelStore::new(), PLENTY);
    let insert = retryable(doc! {"insert": "c", "documents": [{"_id": 1}, {"_id": 2}]}, 1);
    member.ok(insert.clone());
    member.ok(doc! {"drop": "c"});
    assert_eq!(member.ok(insert).get_i32("n").unwrap(), 2);
    let listed = member.ok(doc! {"listCollections": 1});
    let batch = listed.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
    assert!(batch.is_empty(), "{batch:?}");
}

#[test]
fn a_repeated_write_is_recognised_after_a_crash() {
    let member = Member::with_history(ModelStore::new(), PLENTY);
    member.insert("c", vec![doc! {"_id": 1, "n": 0}]);
    let update = doc! {"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"n": 1}}}]};
    let update = retryable(update, 1);
    member.ok(update.clone());
    let kept = member.store.crash(member.store.last_committed());
    let restarted = Member::with_history(kept, PLENTY);
    assert_eq!(restarted.ok(update).get_i32("nModified").unwrap(), 1);
    assert_eq!(restarted.find(doc! {"find": "c"}), [doc! {"_id": 1, "n": 1}]);
}

#[test]
fn older_numbers_and_wrong_uses_are_refused() {
    let member = Member::with_history(ModelStore::new(), PLENTY);
    let insert = |id: i32| doc! {"insert": "c", "documents": [{"_id": id}]};
    member.ok(retryable(insert(1), 5));
    assert_eq!(member.code(retryable(insert(2), 4)), 225);
    assert_eq!(member.code(retryable(doc! {"find": "c"}, 6)), 72);
    let mut without_session = insert(3);
    without_session.insert("txnNumber", 6_i64);
    assert_eq!(member.code(without_session), 72);
    let mut transaction = retryable(insert(4), 7);
    transaction.insert("startTransaction", Bson::Boolean(true));
    assert_eq!(member.code(transaction), 72, "without autocommit it is no transaction");
    let many = doc! {"update": "c", "updates": [{"q": {}, "u": {"$set": {"a": 1}}, "multi": true}]};
    let reply = member.ok(retryable(many, 8));
    let errors = reply.get_array("writeErrors").unwrap();
    assert_eq!(errors[0].as_document().unwrap().get_i32("code").unwrap(), 72);
    assert_eq!(Member::new().code(retryable(insert(1), 1)), 20, "only members of a set");
}

/// A member with a small history and one document, whose client then commits a transaction of several entries.
fn with_long_transaction() -> (Member, OpTimeAndWallTime) {
    let member = Member::with_history(ModelStore::new(), 2048);
    member.node.join_replica_set(now()).unwrap();
    set::show(&member.node, MemberState::Primary, true);
    member.node.append_noop(NoopReason::NewPrimary, Term(1), now()).unwrap();
    member.node.split_transactions_at(1);
    member.insert("c", vec![doc! {"_id": 0}]);
    let before = set::position(&member);
    let documents: Vec<_> = (1..=20).map(|id| doc! {"_id": id, "text": "x".repeat(200)}).collect();
    let in_transaction = |mut command: Document| {
        command.insert("autocommit", false);
        retryable(command, 1)
    };
    let mut insert = in_transaction(doc! {"insert": "c", "documents": documents});
    insert.insert("startTransaction", true);
    member.ok(insert);
    member.ok(in_transaction(doc! {"commitTransaction": 1, "$db": "admin"}));
    (member, before)
}

fn trim(member: &Member) {
    while member.node.maintain(now()).unwrap() {}
}

/// A follower applies a transaction with its last entry, and reads the others from its own log: they stay, however
/// small the log may be and however many members have them.
#[test]
fn the_entries_of_an_unfinished_transaction_are_not_trimmed() {
    let (member, _) = with_long_transaction();
    let all = set::entries(&member);
    let follower = Member::with_history(ModelStore::new(), 2048);
    follower.node.join_replica_set(now()).unwrap();
    set::show(&follower.node, MemberState::Secondary, false);
    let last = all.len() - 1;
    let mut previous = OpTime::NULL;
    for entry in &all[..last] {
        follower.node.apply(previous, vec![entry.clone()], now()).unwrap();
        set::commit(&follower, set::position(&follower));
        previous = set::position(&follower).op_time;
        trim(&follower);
    }
    follower.node.apply(previous, &all[last..], now()).unwrap();
    assert_eq!(set::hash(&follower), set::hash(&member));
    set::commit(&follower, set::position(&follower));
    trim(&follower);
    assert!(set::entries(&follower).len() < 10, "what is finished is trimmed");
}

/// The commit point of a primary may stand within a transaction whose last entry is then rolled back.
#[test]
fn a_transaction_whose_first_entries_are_committed_can_be_rolled_back() {
    let (member, before) = with_long_transaction();
    let all = set::entries(&member);
    let within = quorate_node::entry_position(&all[all.len() - 3]).unwrap();
    assert!(within.op_time > before.op_time);
    set::commit(&member, within);
    trim(&member);
    member.node.roll_back_to(within, now(), &mut |_| Ok(())).unwrap();
    assert_eq!(member.ids(doc! {"find": "c"}), [0]);
}

/// A member whose newest entries are documents with the fields of a transaction that goes on.
fn with_documents_like_transactions() -> Member {
    let (member, _) = with_long_transaction();
    let text = "x".repeat(200);
    let document = |id: i32| doc! {"_id": id, "applyOps": [], "partialTxn": true, "text": &text};
    let documents: Vec<_> = (100..120).map(document).collect();
    member.ok(retryable(doc! {"insert": "c", "documents": documents}, 2));
    member
}

/// Entries are told apart by their operation, not by what a document holds.
#[test]
fn documents_with_the_fields_of_a_transaction_keep_no_entries() {
    let member = with_documents_like_transactions();
    set::commit(&member, set::position(&member));
    trim(&member);
    assert!(set::entries(&member).len() < 10, "{}", set::entries(&member).len());
}

#[test]
fn a_new_primary_ends_no_transaction_for_a_document_with_its_fields() {
    let member = with_documents_like_transactions();
    let count = set::entries(&member).len();
    member.node.append_noop(NoopReason::NewPrimary, Term(2), now()).unwrap();
    let more = set::entries(&member).split_off(count);
    let more: Vec<_> = more.iter().map(|entry| entry.get_str("op").unwrap()).collect();
    assert_eq!(more, ["n"]);
}
