//! Renames that replace a collection: `renameCollection` with `dropTarget`, and `$out`.

#![allow(clippy::unwrap_used, reason = "a panic is the report")]

mod support;

use bson::{Document, doc};
use quorate_protocol::OpTime;
use quorate_storage::Store;
use support::set::{OPLOG_BYTES, entries, hash, position, primary, secondary, uuid_of};
use support::{Member, now};

fn rename(from: &str, to: &str) -> Document {
    doc! {"renameCollection": from, "to": to, "dropTarget": true, "$db": "admin"}
}

fn out(from: &str, to: &str) -> Document {
    doc! {"aggregate": from, "pipeline": [{"$out": to}], "cursor": {}}
}

/// A primary with a source and a target, and the commands that replace the target's documents by 1.
fn replacing() -> [(Member, Document); 2] {
    [rename("db.source", "db.target"), out("source", "target")].map(|command| {
        let member = primary();
        member.insert("source", vec![doc! {"_id": 1}]);
        member.insert("target", vec![doc! {"_id": 2}]);
        (member, command)
    })
}

/// Whatever a crash keeps of the command, the old documents or the new ones are there.
#[test]
fn a_crash_leaves_the_target_as_it_was_or_replaced() {
    for (member, command) in replacing() {
        member.store.sync_through(member.store.last_committed()).unwrap();
        let first = member.store.last_committed().as_u64();
        member.ok(command.clone());
        for survivor in first..=member.store.last_committed().as_u64() {
            let after = Member::with_history(member.store.crash_after(survivor), OPLOG_BYTES);
            let ids = after.ids(doc! {"find": "target"});
            assert!(ids == [1] || ids == [2], "{command} leaves {ids:?}");
        }
    }
}

/// A member that has applied any part of the log may be the next primary.
#[test]
fn a_failover_leaves_the_target_as_it_was_or_replaced() {
    for (member, command) in replacing() {
        let first = entries(&member).len();
        member.ok(command.clone());
        let log = entries(&member);
        for end in first..=log.len() {
            let follower = secondary();
            follower.node.apply(OpTime::NULL, &log[..end], now()).unwrap();
            let find = doc! {"find": "target", "$readPreference": {"mode": "nearest"}};
            let ids = follower.ids(find);
            assert!(ids == [1] || ids == [2], "{command} leaves {ids:?}");
        }
    }
}

/// MongoDB tells such a rename by one entry too (SERVER-28285): `dropTarget` is the UUID of the collection that goes, and
/// `ui` that of the renamed one.
#[test]
fn the_entry_of_a_rename_names_what_it_replaces_as_that_of_mongodb_does() {
    let member = primary();
    member.insert("source", vec![doc! {"_id": 1}]);
    member.insert("target", vec![doc! {"_id": 2}]);
    let (source, target) = (uuid_of(&member, "source"), uuid_of(&member, "target"));
    member.ok(rename("db.source", "db.target"));
    member.ok(doc! {"renameCollection": "db.target", "to": "db.free", "$db": "admin"});
    let log = entries(&member);
    let told = |entry: &bson::RawDocumentBuf| Document::try_from(&**entry).unwrap();
    let [replacing, plain] = [told(&log[log.len() - 2]), told(&log[log.len() - 1])];
    assert_eq!(replacing.get("ui").unwrap(), &source.clone().into());
    assert_eq!(replacing.get_str("ns").unwrap(), "db.$cmd");
    let wanted = doc! {
        "renameCollection": "db.source", "to": "db.target", "stayTemp": false, "dropTarget": target,
    };
    assert_eq!(replacing.get_document("o").unwrap(), &wanted);
    let wanted = doc! {"renameCollection": "db.target", "to": "db.free", "stayTemp": false};
    assert_eq!(plain.get_document("o").unwrap(), &wanted);
}

/// A follower whose target is another collection than the primary's lets it alone and says that it has diverged.
#[test]
fn a_rename_replaces_no_other_collection_than_its_entry_names() {
    let member = primary();
    member.insert("source", vec![doc! {"_id": 1}]);
    member.insert("target", vec![doc! {"_id": 2}]);
    let before = entries(&member).len();
    member.ok(rename("db.source", "db.target"));
    let log = entries(&member);
    let follower = secondary();
    follower.node.apply(OpTime::NULL, &log[..before], now()).unwrap();
    let mut entry = Document::try_from(&*log[before]).unwrap();
    entry.get_document_mut("o").unwrap().remove("dropTarget");
    let entry = bson::RawDocumentBuf::try_from(&entry).unwrap();
    let after = position(&follower).op_time;
    assert!(follower.node.apply(after, vec![entry], now()).is_err());
    let find = doc! {"find": "target", "$readPreference": {"mode": "nearest"}};
    assert_eq!(follower.ids(find), [2]);
}

#[test]
fn a_rollback_brings_both_collections_back() {
    for (member, command) in replacing() {
        let index = doc! {"key": {"n": 1}, "name": "n"};
        member.ok(doc! {"createIndexes": "target", "indexes": [index]});
        let (before, held) = (position(&member), hash(&member));
        member.ok(command.clone());
        while member.node.maintain(now()).unwrap() {}
        support::set::show(&member.node, quorate_protocol::MemberState::Secondary, false);
        member.node.roll_back_to(before, now(), &mut |_| Ok(())).unwrap();
        assert_eq!(hash(&member), held, "{command}");
        support::set::show(&member.node, quorate_protocol::MemberState::Primary, true);
        assert_eq!(member.ids(doc! {"find": "target"}), [2]);
        member.validate("target");
        member.validate("source");
    }
}

/// MongoDB's `dropTarget` is a flag or the UUID of the collection that may go (361, CollectionUUIDMismatch).
#[test]
fn a_uuid_as_drop_target_names_the_collection_that_may_go() {
    let member = primary();
    member.insert("source", vec![doc! {"_id": 1}]);
    member.insert("target", vec![doc! {"_id": 2}]);
    let mut command = rename("db.source", "db.target");
    command.insert("dropTarget", uuid_of(&member, "source"));
    assert_eq!(member.code(command.clone()), 361);
    assert_eq!(member.ids(doc! {"find": "target"}), [2]);
    let mut to_nothing = command.clone();
    to_nothing.insert("to", "db.nothing");
    assert_eq!(member.code(to_nothing), 361, "there is no such collection");
    command.insert("dropTarget", "yes");
    assert_eq!(member.code(command.clone()), 14);
    command.insert("dropTarget", uuid_of(&member, "target"));
    member.ok(command);
    assert_eq!(member.ids(doc! {"find": "target"}), [1]);
}

/// A cursor that goes on would show documents that are gone, and keep their snapshot.
#[test]
fn the_cursors_of_a_collection_that_is_replaced_end() {
    let open = |member: &Member, name: &str| {
        let find = doc! {"find": name, "batchSize": 1, "$readPreference": {"mode": "nearest"}};
        member.ok(find).get_document("cursor").unwrap().get_i64("id").unwrap()
    };
    let more = |cursor: i64, name: &str| {
        doc! {"getMore": cursor, "collection": name, "$readPreference": {"mode": "nearest"}}
    };
    for (member, command) in replacing() {
        member.insert("target", (3..9).map(|n| doc! {"_id": n}).collect());
        let follower = secondary();
        follower.node.apply(OpTime::NULL, entries(&member), now()).unwrap();
        let cursors = [&member, &follower].map(|member| open(member, "target"));
        let last = position(&member).op_time;
        let count = entries(&member).len();
        member.ok(command.clone());
        follower.node.apply(last, entries(&member).split_off(count), now()).unwrap();
        for (member, cursor) in [&member, &follower].into_iter().zip(cursors) {
            assert_eq!(member.code(more(cursor, "target")), 175, "{command}");
        }
    }
    // A follower ends cursors as the primary does.
    let member = primary();
    member.insert("c", (0..9).map(|n| doc! {"_id": n}).collect());
    let follower = secondary();
    follower.node.apply(OpTime::NULL, entries(&member), now()).unwrap();
    let cursor = open(&follower, "c");
    let (last, count) = (position(&member).op_time, entries(&member).len());
    member.ok(doc! {"drop": "c"});
    follower.node.apply(last, entries(&member).split_off(count), now()).unwrap();
    assert_eq!(follower.code(more(cursor, "c")), 175);
}
