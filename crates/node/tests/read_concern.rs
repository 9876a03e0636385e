//! Read concerns: which data a read sees, and what a rollback does to it.

#![allow(clippy::unwrap_used)]

mod support;

use std::sync::{Arc, Mutex};

use bson::{Document, doc};
use quorate_node::{MAX_PENDING_VIEWS, Standing};
use quorate_protocol::{MemberState, OpTime, OpTimeAndWallTime, Term};
use quorate_storage::Store;
use support::set::{OPLOG_BYTES, commit, position, primary, secondary, show};
use support::{Member, now};

fn majority() -> Document {
    doc! {"level": "majority"}
}

fn after(level: &str, time: OpTimeAndWallTime) -> Document {
    let time = quorate_wire::to_bson_timestamp(time.op_time.timestamp);
    doc! {"level": level, "afterClusterTime": time}
}

fn count(member: &Member, concern: Document) -> i32 {
    member.ok(doc! {"count": "a", "readConcern": concern}).get_i32("n").unwrap()
}

/// The manual, read concern "majority": what a majority has acknowledged, at once.
#[test]
fn majority_reads_see_the_commit_point_and_not_what_follows_it() {
    let member = primary();
    member.insert("a", vec![doc! {"_id": 1, "n": 1}]);
    let first = position(&member);
    commit(&member, first);
    member.insert("a", vec![doc! {"_id": 2, "n": 2}]);
    member.ok(doc! {"update": "a", "updates": [{"q": {"_id": 1}, "u": {"$set": {"n": 9}}}]});
    member.ok(doc! {"createIndexes": "a", "indexes": [{"key": {"n": 1}, "name": "n_1"}]});
    member.ok(doc! {"renameCollection": "db.a", "to": "db.b", "$db": "admin"});
    let second = position(&member);

    assert_eq!(member.node.standing().majority, first.op_time);
    assert_eq!(member.ids(doc! {"find": "a", "readConcern": majority()}), [1]);
    let old = doc! {"find": "a", "filter": {"n": 1}, "readConcern": majority()};
    assert_eq!(member.ids(old), [1], "the document as it was");
    assert_eq!(count(&member, majority()), 1);
    let values = member.ok(doc! {"distinct": "a", "key": "n", "readConcern": majority()});
    assert_eq!(values.get_array("values").unwrap(), &vec![bson::Bson::from(1)]);
    assert!(!values.contains_key("atClusterTime"), "only snapshots tell their time");
    let pipeline = doc! {
        "aggregate": "a", "pipeline": [{"$match": {}}], "cursor": {}, "readConcern": majority(),
    };
    assert_eq!(member.drain(member.ok(pipeline), "a"), [doc! {"_id": 1, "n": 1}]);
    assert_eq!(member.ids(doc! {"find": "b"}), [1, 2], "local reads see the newest");

    commit(&member, second);
    assert_eq!(member.ids(doc! {"find": "b", "readConcern": majority()}), [1, 2]);
    assert_eq!(member.ids(doc! {"find": "a", "readConcern": majority()}), [] as [i32; 0]);
}

#[test]
fn the_majority_view_is_the_newest_at_or_below_the_commit_point() {
    let member = primary();
    let mut places = vec![position(&member)];
    for id in 0..4 {
        member.insert("a", vec![doc! {"_id": id}]);
        places.push(position(&member));
    }
    for (place, at) in places.iter().enumerate().skip(1) {
        commit(&member, *at);
        assert_eq!(member.node.standing().majority, at.op_time);
        assert_eq!(count(&member, majority()), place as i32);
    }
    // An older commit point takes nothing back.
    commit(&member, places[1]);
    assert_eq!(count(&member, majority()), 4);
}

#[test]
fn views_that_wait_for_the_commit_point_are_bounded_and_the_newest_is_among_them() {
    let member = primary();
    let many = 3 * MAX_PENDING_VIEWS as i32;
    let mut places = Vec::new();
    for id in 0..many {
        member.insert("a", vec![doc! {"_id": id}]);
        places.push(position(&member));
    }
    let middle = many as usize / 2;
    commit(&member, places[middle]);
    let shown = member.node.standing().majority;
    assert!(shown <= places[middle].op_time);
    assert!(shown > places[middle / 2].op_time, "the view is close to the commit point");
    assert!(count(&member, majority()) <= middle as i32 + 1);
    commit(&member, *places.last().unwrap());
    assert_eq!(count(&member, majority()), many);
}

#[test]
fn nothing_is_read_at_majority_before_anything_is_known_to_be_committed() {
    let member = primary();
    member.insert("a", vec![doc! {"_id": 1}]);
    assert_eq!(member.code(doc! {"find": "a", "readConcern": majority()}), 134);
    assert_eq!(member.node.standing().majority, OpTime::NULL);
    commit(&member, position(&member));
    assert_eq!(member.ids(doc! {"find": "a", "readConcern": majority()}), [1]);
}

#[test]
fn a_restarted_member_shows_its_log_at_majority_once_that_is_committed() {
    let member = primary();
    member.insert("a", vec![doc! {"_id": 1}]);
    let last = position(&member);
    member.store.sync_through(member.store.last_committed()).unwrap();
    let again =
        Member::with_history(member.store.crash(member.store.last_committed()), OPLOG_BYTES);
    again.node.join_replica_set(now()).unwrap();
    show(&again.node, MemberState::Primary, true);
    commit(&again, last);
    assert_eq!(again.ids(doc! {"find": "a", "readConcern": majority()}), [1]);
}

#[test]
fn a_follower_shows_what_is_committed_of_what_it_has_applied() {
    let (from, to) = (primary(), secondary());
    from.insert("a", vec![doc! {"_id": 1}]);
    let first = position(&from);
    let log = |from: &Member| {
        from.node.read_oplog(std::ops::Bound::Unbounded, 100, usize::MAX).unwrap().entries
    };
    to.node.apply(OpTime::NULL, log(&from), now()).unwrap();
    from.insert("a", vec![doc! {"_id": 2}]);
    to.node.apply(OpTime::NULL, log(&from), now()).unwrap();
    commit(&to, first);
    let read = doc! {
        "find": "a", "readConcern": majority(), "$readPreference": {"mode": "secondary"},
    };
    assert_eq!(to.ids(read.clone()), [1]);
    commit(&to, position(&from));
    assert_eq!(to.ids(read), [1, 2]);
}

/// A rollback undoes nothing that is committed, and the view of that stays.
#[test]
fn a_rollback_leaves_the_majority_view_and_ends_what_came_after_undone_entries() {
    let member = primary();
    member.insert("a", vec![doc! {"_id": 1}]);
    let common_point = position(&member);
    commit(&member, common_point);
    member.insert("a", vec![doc! {"_id": 2}]);
    let undone = position(&member);
    assert_eq!(member.ids(doc! {"find": "a", "readConcern": after("local", undone)}), [1, 2]);
    member.node.roll_back_to(common_point, now(), &mut |_| Ok(())).unwrap();
    assert_eq!(member.ids(doc! {"find": "a", "readConcern": majority()}), [1]);
    for level in ["local", "majority"] {
        let read = doc! {"find": "a", "readConcern": after(level, undone)};
        assert_eq!(member.code(read), 11602, "{level}: what was acknowledged is gone");
        let read = doc! {"find": "a", "readConcern": after(level, common_point)};
        assert_eq!(member.ids(read), [1]);
    }
    // What is written next has a new view.
    member.insert("a", vec![doc! {"_id": 3}]);
    commit(&member, position(&member));
    assert_eq!(member.ids(doc! {"find": "a", "readConcern": majority()}), [1, 3]);
}

/// The log's end is told to be the common point before the first entry is undone: a read that came
/// after an undone entry must not see the data in between.
#[test]
fn a_cut_is_told_before_the_first_entry_is_undone_and_as_one_value() {
    let member = primary();
    member.insert("a", vec![doc! {"_id": 1}]);
    let common_point = position(&member);
    commit(&member, common_point);
    let told: Arc<Mutex<Vec<Standing>>> = Arc::default();
    let listener = Arc::clone(&told);
    member.node.on_standing(Box::new(move |standing| listener.lock().unwrap().push(*standing)));
    member.insert("a", vec![doc! {"_id": 2}, doc! {"_id": 3}]);
    let before = *told.lock().unwrap().last().unwrap();
    assert_eq!(before, member.node.standing());
    assert_eq!((before.last, before.commit_point), (position(&member), common_point));
    assert_eq!(before.writable, Some(Term(1)));
    let mut seen = Vec::new();
    let watched = Arc::clone(&told);
    member
        .node
        .roll_back_to(common_point, now(), &mut |_| {
            seen.push(*watched.lock().unwrap().last().unwrap());
            Ok(())
        })
        .unwrap();
    assert_eq!(seen.len(), 2, "documents that were undone");
    for standing in seen {
        assert_eq!((standing.last, standing.cuts), (common_point, before.cuts + 1));
        assert!(standing.ends_reads_of(&before));
    }
    show(&member.node, MemberState::Secondary, false);
    let last = *told.lock().unwrap().last().unwrap();
    assert_eq!(last.writable, None);
    assert!(last.ends_reads_of(&Standing { cuts: last.cuts, ..before }), "a step-down does too");
}

#[test]
fn a_rollback_ends_the_snapshots_of_what_it_undoes() {
    let member = primary();
    member.insert("a", vec![doc! {"_id": 1}]);
    let common_point = position(&member);
    commit(&member, common_point);
    let reply = member.ok(doc! {"find": "a", "readConcern": {"level": "snapshot"}});
    let time = reply.get_document("cursor").unwrap().get_timestamp("atClusterTime").unwrap();
    member.insert("a", vec![doc! {"_id": 2}]);
    member.node.roll_back_to(common_point, now(), &mut |_| Ok(())).unwrap();
    let then = doc! {"level": "snapshot", "atClusterTime": time};
    assert_eq!(
        member.ids(doc! {"find": "a", "readConcern": then}),
        [1],
        "it is what a majority has"
    );
}

#[test]
fn snapshot_reads_see_one_moment_whatever_happens_later() {
    let member = primary();
    member.insert("a", vec![doc! {"_id": 1, "n": 1}]);
    member.insert("b", vec![doc! {"_id": 1, "name": "one"}]);
    commit(&member, position(&member));
    let now = doc! {"level": "snapshot"};
    let first = member.ok(doc! {"find": "a", "readConcern": &now});
    let time = first.get_document("cursor").unwrap().get_timestamp("atClusterTime").unwrap();
    assert_eq!(time, quorate_wire::to_bson_timestamp(position(&member).op_time.timestamp));
    member.insert("a", vec![doc! {"_id": 2, "n": 2}]);
    member.ok(doc! {"update": "b", "updates": [{"q": {}, "u": {"$set": {"name": "two"}}}]});
    member.ok(doc! {"renameCollection": "db.b", "to": "db.c", "$db": "admin"});
    commit(&member, position(&member));
    while member.node.maintain(support::now()).unwrap() {}

    let then = doc! {"level": "snapshot", "atClusterTime": time};
    assert_eq!(member.ids(doc! {"find": "a", "readConcern": &then}), [1]);
    let join =
        doc! {"$lookup": {"from": "b", "localField": "_id", "foreignField": "_id", "as": "b"}};
    let joined = member.ok(doc! {
        "aggregate": "a", "pipeline": [join], "cursor": {}, "readConcern": &then,
    });
    assert_eq!(
        joined.get_document("cursor").unwrap().get_timestamp("atClusterTime").unwrap(),
        time
    );
    let joined = member.drain(joined, "a");
    assert_eq!(joined, [doc! {"_id": 1, "n": 1, "b": [{"_id": 1, "name": "one"}]}]);
    let opened = member.ok(doc! {"find": "a", "batchSize": 0, "readConcern": &then});
    let id = opened.get_document("cursor").unwrap().get_i64("id").unwrap();
    member.ok(doc! {"getMore": id, "collection": "a", "readConcern": &then});
    let distinct = doc! {"distinct": "a", "key": "n"};
    let reply = member.ok(doc! {"distinct": "a", "key": "n", "readConcern": &then});
    assert_eq!(reply.get_array("values").unwrap().len(), 1);
    assert_eq!(reply.get_timestamp("atClusterTime").unwrap(), time);
    assert_eq!(member.ok(distinct).get_array("values").unwrap().len(), 2, "the present");
    let next = member.ok(doc! {"find": "a", "readConcern": &now});
    assert!(next.get_document("cursor").unwrap().get_timestamp("atClusterTime").unwrap() > time);
}

#[test]
fn snapshots_that_are_not_kept_and_commands_without_them_are_refused() {
    let member = primary();
    member.insert("a", vec![doc! {"_id": 1}]);
    let time = quorate_wire::to_bson_timestamp(position(&member).op_time.timestamp);
    member.insert("a", vec![doc! {"_id": 2}]);
    commit(&member, position(&member));
    let then = doc! {"level": "snapshot", "atClusterTime": time};
    assert_eq!(member.code(doc! {"find": "a", "readConcern": &then}), 239, "no reader kept it");
    let now = doc! {"level": "snapshot"};
    for command in [
        doc! {"insert": "a", "documents": [{"_id": 3}]},
        doc! {"count": "a"},
        doc! {"listCollections": 1},
        doc! {"aggregate": "a", "pipeline": [{"$out": "b"}], "cursor": {}},
    ] {
        let mut command = command;
        command.insert("readConcern", &now);
        assert_eq!(member.code(command), 72);
    }
    let wrong = doc! {"level": "local", "atClusterTime": time};
    assert_eq!(member.code(doc! {"find": "a", "readConcern": wrong}), 72);
    assert_eq!(member.ids(doc! {"find": "a"}), [1, 2]);
}
