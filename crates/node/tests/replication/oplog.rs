//! What the oplog says of a write, how it is trimmed, and what a restart keeps of it.

use bson::{Document, doc};
use quorate_node::Now;
use quorate_protocol::{MemberState, Term, Timestamp, WallTime};
use quorate_replication::NoopReason;
use quorate_storage::{ModelStore, Store};

use crate::support::set::{
    OPLOG_BYTES, commit, entries, position, primary, show, write_everything,
};
use crate::support::{Member, now};

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

/// docs/replication-rules.md#oplog: entries can be applied anywhere, since they say what came of a
/// write.
#[test]
fn entries_say_what_came_of_a_write_one_for_each_document() {
    let member = primary();
    let begin = entries(&member).len();
    member.insert("a", vec![doc! {"_id": 1, "n": 1}, doc! {"_id": 2, "n": 1}]);
    let change = doc! {"q": {}, "u": {"$inc": {"n": 5}}, "multi": true};
    member.ok(doc! {"update": "a", "updates": [change]});
    member.ok(doc! {"delete": "a", "deletes": [{"q": {}, "limit": 0}]});
    let logged: Vec<Document> = entries(&member)
        .split_off(begin)
        .iter()
        .map(|entry| Document::try_from(&**entry).unwrap())
        .collect();
    let kinds: Vec<&str> = logged.iter().map(|entry| entry.get_str("op").unwrap()).collect();
    assert_eq!(kinds, ["c", "i", "i", "u", "u", "d", "d"], "the collection by itself, first");
    for entry in &logged {
        assert!(!entry.contains_key("_id"), "{entry}");
        assert_eq!(entry.get_i64("t").unwrap(), 1);
        assert_eq!(entry.get("v").and_then(|v| v.as_i64().or(v.as_i32().map(i64::from))), Some(2));
        assert!(entry.get_timestamp("ts").is_ok() && entry.get_datetime("wall").is_ok());
        assert!(matches!(entry.get("ui"), Some(bson::Bson::Binary(_))), "{entry}");
    }
    assert_eq!(logged[0].get_str("ns").unwrap(), "db.$cmd");
    for update in &logged[3..5] {
        assert_eq!(update.get_str("ns").unwrap(), "db.a");
        assert!(update.get_document("o2").unwrap().contains_key("_id"));
        let changed = update.get_document("o").unwrap();
        assert!(!changed.to_string().contains("$inc"), "the result, not the way there: {changed}");
        assert!(changed.to_string().contains('6'), "{changed}");
    }
}

/// A client that has seen a later time writes after it, whatever the clock of this member says.
#[test]
fn entries_come_after_the_times_that_clients_have_seen() {
    let member = primary();
    let seconds = (now().wall.as_millis() / 1000) as u32;
    let ahead = Timestamp::new(seconds + 100, u32::MAX);
    member.node.advance_cluster_time(ahead, now()).unwrap();
    member.node.advance_cluster_time(Timestamp::new(seconds, 1), now()).unwrap();
    assert_eq!(member.node.cluster_time(), ahead, "it never goes back");
    member.insert("a", vec![doc! {"_id": 1}]);
    assert_eq!(position(&member).op_time.timestamp, Timestamp::new(seconds + 101, 2));
    let absurd = Timestamp::new(seconds + 31_536_001, 1);
    let refusal = member.node.advance_cluster_time(absurd, now()).unwrap_err();
    assert_eq!(refusal.code.0, 209);
    assert_eq!(member.node.cluster_time(), ahead);
}

/// Documents go with the one that takes their place, so that no reader and no crash finds too many.
#[test]
fn a_capped_collection_is_trimmed_with_the_insert() {
    let member = primary();
    member.ok(doc! {"create": "c", "capped": true, "size": 1 << 20, "max": 2});
    member.insert("c", (0..2).map(|i| doc! {"_id": i}).collect());
    let before = member.store.last_committed().as_u64();
    member.insert("c", vec![doc! {"_id": 2}]);
    assert_eq!(member.store.last_committed().as_u64(), before + 1);
    assert_eq!(member.ids(doc! {"find": "c"}), [1, 2]);
    // One large document takes the place of thousands.
    member.ok(doc! {"create": "d", "capped": true, "size": 1 << 20});
    for first in [0, 1] {
        member.insert("d", (0..2_000).map(|i| doc! {"_id": i * 2 + first}).collect());
    }
    member.insert("d", vec![doc! {"_id": -1, "s": "x".repeat((1 << 20) - 100)}]);
    assert_eq!(member.ids(doc! {"find": "d"}), [3991, 3993, 3995, 3997, 3999, -1]);
    member.validate("d");
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
    commit(&member, position(&member));
    while member.node.maintain(now()).unwrap() {}
    let left = entries(&member);
    assert!((1..40).contains(&left.len()), "{} entries are left", left.len());
    assert_eq!(member.node.read_oplog_backward(None, 1).unwrap(), [position(&member)]);
    assert!(member.node.oldest_entry().unwrap().timestamp > Timestamp::new(0, 0));
}

/// docs/replication-rules.md#oplog: above its size the oplog drops only what is older than the
/// minimum retention.
#[test]
fn young_entries_stay_although_the_oplog_is_too_large() {
    let member = Member::with_history(ModelStore::new(), 2_000);
    member.node.join_replica_set(now()).unwrap();
    show(&member.node, MemberState::Primary, true);
    let keep = doc! {"replSetResizeOplog": 1, "minRetentionHours": 2.0, "$db": "admin"};
    assert_eq!(member.run(keep).get_f64("ok").unwrap(), 1.0);
    for i in 0..50 {
        member.insert("a", vec![doc! {"_id": i}]);
    }
    commit(&member, position(&member));
    let hours = |hours: i64| Now { wall: WallTime(now().wall.0 + hours * 3_600_000), ..now() };
    while member.node.maintain(hours(1)).unwrap() {}
    assert!(entries(&member).len() > 50, "they are an hour old");
    while member.node.maintain(hours(3)).unwrap() {}
    assert!(entries(&member).len() < 40, "{} entries are left", entries(&member).len());
}

/// docs/replication-rules.md#oplog: the oplog is resizable, and keeps what is younger than its
/// minimum retention.
#[test]
fn the_oplog_is_resized_and_its_retention_survives_a_restart() {
    let member = Member::with_history(ModelStore::new(), OPLOG_BYTES);
    member.node.join_replica_set(now()).unwrap();
    let resize = |command: Document| {
        let mut command = command;
        command.insert("$db", "admin");
        member.run(command)
    };
    let refused = resize(doc! {"replSetResizeOplog": 1, "size": 100.0});
    assert_eq!(refused.get_i32("code").unwrap(), 2, "{refused}");
    let refused = resize(doc! {"replSetResizeOplog": 1});
    assert_eq!(refused.get_i32("code").unwrap(), 72, "{refused}");
    let done = resize(doc! {"replSetResizeOplog": 1, "size": 1000.0, "minRetentionHours": 1.5});
    assert_eq!(done.get_f64("ok").unwrap(), 1.0, "{done}");
    let figures = member.ok(doc! {"collStats": "oplog.rs", "$db": "local"});
    assert_eq!(figures.get_i64("maxSize").unwrap(), 1000 * 1024 * 1024);
    assert!(figures.get_bool("capped").unwrap());

    let again =
        Member::with_history(member.store.crash(member.store.last_committed()), OPLOG_BYTES);
    again.node.join_replica_set(now()).unwrap();
    let figures = again.ok(doc! {"collStats": "oplog.rs", "$db": "local"});
    assert_eq!(figures.get_i64("maxSize").unwrap(), 1000 * 1024 * 1024);
}

/// docs/replication-rules.md#commit-point: what is committed is remembered, so that a restart cannot undo it.
#[test]
fn the_commit_point_survives_a_restart() {
    let member = Member::with_history(ModelStore::new(), OPLOG_BYTES);
    member.node.join_replica_set(now()).unwrap();
    show(&member.node, MemberState::Primary, true);
    let first = member.node.append_noop(NoopReason::NewPrimary, Term(1), now()).unwrap();
    commit(&member, first);
    member.insert("a", vec![doc! {"_id": 1}]);
    while member.node.maintain(now()).unwrap() {}
    let again =
        Member::with_history(member.store.crash(member.store.last_committed()), OPLOG_BYTES);
    let recovered = again.node.join_replica_set(now()).unwrap();
    assert_eq!(recovered.commit_point, first);
    assert!(recovered.last > first);
}
