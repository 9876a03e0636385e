//! The log of a member: what is written, applied elsewhere, and undone.

#![allow(clippy::unwrap_used)]

mod support;

use std::ops::Bound;

use bson::{Document, RawDocumentBuf, doc};
use quorate_node::{Node, Published};
use quorate_protocol::{
    HelloReply, MemberState, ObjectId, OpTime, OpTimeAndWallTime, Term, Timestamp, TopologyVersion,
};
use quorate_replication::{MemberHello, NoopReason};
use quorate_storage::ModelStore;
use support::{Member, now};

const OPLOG_BYTES: u64 = 1 << 30;

fn show(node: &Node, state: MemberState, writable: bool) {
    let hello = MemberHello {
        reply: HelloReply { set_name: Some("rs0".into()), ..HelloReply::default() },
        secondary_delay_secs: None,
        builds_no_indexes: false,
        majority: None,
        info: None,
    };
    let topology_version =
        TopologyVersion { process_id: ObjectId::from_bytes([1; 12]), counter: 3 };
    let horizons = quorate_node::Horizons::default();
    node.publish(Published { hello, topology_version, state, writable, horizons });
    node.set_writable(writable.then_some(Term(1)), now());
}

fn primary() -> Member {
    let member = Member::with_history(ModelStore::new(), OPLOG_BYTES);
    member.node.join_replica_set(now()).unwrap();
    show(&member.node, MemberState::Primary, true);
    member.node.append_noop(NoopReason::NewPrimary, Term(1), now()).unwrap();
    member
}

fn secondary() -> Member {
    let member = Member::with_history(ModelStore::new(), OPLOG_BYTES);
    member.node.join_replica_set(now()).unwrap();
    show(&member.node, MemberState::Secondary, false);
    member
}

fn entries(member: &Member) -> Vec<RawDocumentBuf> {
    member.node.read_oplog(Bound::Unbounded, usize::MAX, usize::MAX).unwrap().entries
}

fn hash(member: &Member) -> Document {
    let mut reply = member.ok(doc! {
        "dbHash": 1, "$readPreference": {"mode": "nearest"},
    });
    reply.remove("timeMillis");
    reply
}

/// One of everything that is logged.
fn write_everything(member: &Member) {
    let long = "x".repeat(100);
    member.insert("a", (0..5).map(|i| doc! {"_id": i, "n": 1, "l": &long}).collect());
    member.ok(doc! {"update": "a", "updates": [
        {"q": {"_id": 1}, "u": {"$inc": {"n": 5}, "$set": {"sub": {"x": 1}}}},
        {"q": {"_id": 2}, "u": {"other": true}},
        {"q": {"_id": 9}, "u": {"$set": {"born": "by upsert"}}, "upsert": true},
    ]});
    member.ok(doc! {"delete": "a", "deletes": [{"q": {"_id": 0}, "limit": 1}]});
    member.ok(doc! {"createIndexes": "a", "indexes": [{"key": {"n": 1}, "name": "n_1"}]});
    member.ok(doc! {"createIndexes": "a", "indexes": [{"key": {"l": 1}, "name": "l_1"}]});
    member.ok(doc! {"dropIndexes": "a", "index": "l_1"});
    member.ok(doc! {"collMod": "a", "validator": {"n": {"$exists": true}}});
    member.ok(doc! {"create": "c", "capped": true, "size": 4096, "max": 2});
    member.insert("c", (0..4).map(|i| doc! {"_id": i}).collect());
    member.insert("doomed", vec![doc! {"_id": 1}]);
    member.ok(doc! {"drop": "doomed"});
    member.insert("old", vec![doc! {"_id": 1}]);
    member.ok(doc! {"renameCollection": "db.old", "to": "db.new", "$db": "admin"});
}

fn write_more(member: &Member) {
    member.insert("a", vec![doc! {"_id": "more", "n": 1}]);
}

fn position(member: &Member) -> OpTimeAndWallTime {
    member.node.log_positions().written
}

#[test]
fn every_write_makes_an_entry_and_timestamps_rise() {
    let member = primary();
    write_everything(&member);
    let entries = entries(&member);
    let timestamps: Vec<_> = entries.iter().map(|e| e.get_timestamp("ts").unwrap()).collect();
    assert!(timestamps.is_sorted_by(|a, b| a < b), "{timestamps:?}");
    let kinds: Vec<&str> = entries.iter().map(|e| e.get_str("op").unwrap()).collect();
    for kind in ["i", "u", "d", "c", "n"] {
        assert!(kinds.contains(&kind), "no {kind} in {kinds:?}");
    }
    let diffs = entries
        .iter()
        .filter(|e| e.get_document("o").is_ok_and(|o| o.get_document("diff").is_ok()));
    assert_eq!(diffs.count(), 1, "the small change of a long document");
    let visible = member.find(doc! {"find": "oplog.rs", "$db": "local", "batchSize": 1000});
    assert_eq!(visible.len(), entries.len(), "clients can read the oplog");
}

#[test]
fn applied_entries_make_the_same_data_and_twice_is_once() {
    let (from, to) = (primary(), secondary());
    write_everything(&from);
    let last = to.node.apply(OpTime::NULL, entries(&from), now()).unwrap();
    assert_eq!(last, position(&from));
    assert_eq!(hash(&to), hash(&from));
    to.node.apply(OpTime::NULL, entries(&from), now()).unwrap();
    assert_eq!(hash(&to), hash(&from));
    assert_eq!(entries(&to), entries(&from), "the logs are the same bytes");
    show(&to.node, MemberState::Primary, true);
    to.insert("a", (10..15).map(|id| doc! {"_id": id, "n": 1}).collect());
    let previous = position(&from).op_time;
    write_more(&from);
    let more = entries(&from).split_off(entries(&from).len() - 1);
    assert!(to.node.apply(previous, more, now()).is_err(), "the log has another end");
    for collection in ["a", "c", "new"] {
        to.validate(collection);
    }
}

#[test]
fn a_rollback_restores_exactly_what_was_there() {
    let member = primary();
    write_everything(&member);
    let (common_point, before) = (position(&member), hash(&member));
    let log = entries(&member);
    member.ok(doc! {"update": "a", "updates": [{"q": {}, "u": {"$set": {"n": 7}}, "multi": true}]});
    member.ok(doc! {"delete": "a", "deletes": [{"q": {"_id": 3}, "limit": 1}]});
    member.ok(doc! {"drop": "new"});
    member.ok(doc! {"dropIndexes": "a", "index": "n_1"});
    member.ok(doc! {"collMod": "a", "validator": {}});
    member.insert("fresh", vec![doc! {"_id": 1, "lost": true}]);
    member.ok(doc! {"renameCollection": "db.c", "to": "db.d", "$db": "admin"});
    // Garbage is not collected before its drop is committed.
    while member.node.maintain(now()).unwrap() {}
    assert_ne!(hash(&member), before);
    let mut kept = Vec::new();
    let done = member
        .node
        .roll_back_to(common_point, now(), &mut |undo| {
            kept.push((undo.namespace.to_owned(), undo.document.to_owned()));
            Ok(())
        })
        .unwrap();
    assert_eq!(done.last, common_point);
    assert_eq!(position(&member), common_point);
    assert_eq!(hash(&member), before);
    assert_eq!(entries(&member), log);
    for collection in ["a", "c", "new"] {
        member.validate(collection);
    }
    assert!(kept.iter().any(|(ns, d)| ns == "db.fresh" && d.get_bool("lost").unwrap()));
}

#[test]
fn what_is_committed_is_forgotten_by_undo_and_the_oldest_by_the_oplog() {
    let member = Member::with_history(ModelStore::new(), 2_000);
    member.node.join_replica_set(now()).unwrap();
    show(&member.node, MemberState::Primary, true);
    for i in 0..50 {
        member.insert("a", vec![doc! {"_id": i}]);
    }
    while member.node.maintain(now()).unwrap() {}
    assert!(entries(&member).len() > 50, "nothing is committed yet");
    member.node.set_commit_point(position(&member));
    while member.node.maintain(now()).unwrap() {}
    let left = entries(&member);
    assert!((1..40).contains(&left.len()), "{} entries are left", left.len());
    assert_eq!(member.node.read_oplog_backward(None, 1).unwrap(), [position(&member)]);
    assert!(member.node.oldest_entry().unwrap().timestamp > Timestamp::new(0, 0));
}

#[test]
fn other_members_than_a_primary_refuse_writes_and_secondaries_reads_without_leave() {
    let member = secondary();
    assert_eq!(member.code(doc! {"insert": "a", "documents": [{}]}), 10107);
    assert_eq!(member.code(doc! {"find": "a"}), 13435);
    member.ok(doc! {"find": "a", "$readPreference": {"mode": "secondary"}});
    show(&member.node, MemberState::Recovering, false);
    let read = doc! {"find": "a", "$readPreference": {"mode": "secondary"}};
    assert_eq!(member.code(read.clone()), 13436);
    let reply = member.run(read);
    let version = reply.get_document("topologyVersion").unwrap();
    assert_eq!(version.get_i64("counter").unwrap(), 3);
}

fn retryable(session: u8, number: i64, mut command: Document) -> Document {
    let id = bson::Binary { subtype: bson::spec::BinarySubtype::Uuid, bytes: vec![session; 16] };
    command.insert("lsid", doc! { "id": id });
    command.insert("txnNumber", number);
    command
}

#[test]
fn a_repeated_write_is_known_to_followers_and_forgotten_by_a_rollback() {
    let (from, to) = (primary(), secondary());
    from.insert("a", vec![doc! {"_id": 1, "n": 0}]);
    let common_point = position(&from);
    let modify = doc! {
        "findAndModify": "a", "query": {"_id": 1}, "update": {"$inc": {"n": 1}}, "new": true,
    };
    let first = from.ok(retryable(5, 7, modify.clone()));
    assert_eq!(first.get_document("value").unwrap().get_i32("n").unwrap(), 1);

    // The follower takes over; the client repeats its write there.
    to.node.apply(OpTime::NULL, entries(&from), now()).unwrap();
    show(&to.node, MemberState::Primary, true);
    let again = to.ok(retryable(5, 7, modify.clone()));
    assert_eq!(again.get_document("value").unwrap(), first.get_document("value").unwrap());
    assert_eq!(to.find(doc! {"find": "a"}), [doc! {"_id": 1, "n": 1}]);

    // A session's next writes are applied, however many of its statements are known.
    show(&to.node, MemberState::Secondary, false);
    let end = position(&to).op_time;
    for number in 8..12 {
        let document = doc! {"_id": number};
        from.ok(retryable(6, number, doc! {"insert": "b", "documents": [document]}));
    }
    to.node.apply(end, entries(&from), now()).unwrap();
    assert_eq!(hash(&to), hash(&from));

    // Where the write is undone, repeating it does it.
    from.node.roll_back_to(common_point, now(), &mut |_| Ok(())).unwrap();
    assert_eq!(from.find(doc! {"find": "a"}), [doc! {"_id": 1, "n": 0}]);
    from.ok(retryable(5, 7, modify));
    assert_eq!(from.find(doc! {"find": "a"}), [doc! {"_id": 1, "n": 1}]);
}
