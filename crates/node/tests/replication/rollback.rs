//! What is written is taken back.

use bson::{Document, doc};
use quorate_protocol::{MemberState, OpTime};
use quorate_storage::Store;

use crate::support::set::{
    OPLOG_BYTES, entries, hash, images, position, primary, secondary, show, show_without_indexes,
    transact, write_everything,
};
use crate::support::{Member, now};

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

/// The documents of a capped collection have an order, and go in that order.
#[test]
fn a_rollback_gives_documents_of_a_capped_collection_their_places_back() {
    let member = primary();
    member.ok(doc! {"create": "c", "capped": true, "size": 1 << 20, "max": 3});
    member.insert("c", (0..3).map(|i| doc! {"_id": i}).collect());
    let common_point = position(&member);
    member.insert("c", vec![doc! {"_id": 3}]);
    member.ok(doc! {"delete": "c", "deletes": [{"q": {"_id": 1}, "limit": 1}]});
    assert_eq!(member.ids(doc! {"find": "c"}), [2, 3]);
    member.node.roll_back_to(common_point, now(), &mut |_| Ok(())).unwrap();
    assert_eq!(member.ids(doc! {"find": "c"}), [0, 1, 2]);
    show(&member.node, MemberState::Primary, true);
    member.insert("c", vec![doc! {"_id": 4}]);
    assert_eq!(member.ids(doc! {"find": "c"}), [1, 2, 4]);
    member.validate("c");
}

#[test]
fn a_member_that_builds_no_indexes_rolls_back_past_those_of_others() {
    let (from, to) = (primary(), secondary());
    show_without_indexes(&to.node);
    from.insert("a", vec![doc! {"_id": 1, "n": 1}]);
    let first = to.node.apply(OpTime::NULL, entries(&from), now()).unwrap();
    let index = doc! {"key": {"n": 1}, "name": "n_1", "unique": true};
    from.ok(doc! {"createIndexes": "a", "indexes": [index]});
    from.ok(doc! {"dropIndexes": "a", "index": "n_1"});
    let all = entries(&from);
    let known = entries(&to).len();
    to.node.apply(first.op_time, &all[known..], now()).unwrap();
    assert_eq!(position(&to), position(&from));
    let done = to.node.roll_back_to(first, now(), &mut |_| Ok(())).unwrap();
    assert_eq!((done.last, position(&to)), (first, first));
    show(&to.node, MemberState::Primary, true);
    to.validate("a");
}

/// An index that is built inside a transaction is passed over; the operations after it are taken back each with its own
/// way, and each has its own image.
#[test]
fn a_member_that_builds_no_indexes_rolls_a_transaction_back_that_builds_one() {
    let (from, to) = (primary(), secondary());
    show_without_indexes(&to.node);
    from.ok(doc! {"create": "c", "changeStreamPreAndPostImages": {"enabled": true}});
    from.insert("c", vec![doc! {"_id": 1, "n": 1}]);
    let common_point = to.node.apply(OpTime::NULL, entries(&from), now()).unwrap();
    let (before, known) = (hash(&to), entries(&to).len());
    let index = doc! {"key": {"n": 1}, "name": "n_1"};
    let update = doc! {"q": {"_id": 1}, "u": {"$set": {"n": 2}}};
    transact(
        &from,
        1,
        vec![
            doc! {"create": "new"},
            doc! {"createIndexes": "new", "indexes": [index]},
            doc! {"insert": "new", "documents": [{"_id": 1, "n": 3}]},
            doc! {"update": "c", "updates": [update]},
        ],
    );
    to.node.apply(common_point.op_time, &entries(&from)[known..], now()).unwrap();
    assert_eq!((images(&to).len(), images(&to)), (1, images(&from)));
    to.node.roll_back_to(common_point, now(), &mut |_| Ok(())).unwrap();
    assert_eq!(hash(&to), before);
    assert_eq!(images(&to), [] as [Document; 0]);
    show(&to.node, MemberState::Primary, true);
    to.validate("c");
}

/// The concerns of commands that give none are data of the set: followers and a restart know them.
#[test]
fn default_concerns_reach_followers_and_survive_a_restart_and_a_rollback() {
    let (from, to) = (primary(), secondary());
    let admin = |member: &Member, mut command: Document| {
        command.insert("$db", "admin");
        member.run(command)
    };
    let get = |member: &Member| admin(member, doc! {"getDefaultRWConcern": 1, "inMemory": true});
    let before = get(&from);
    assert_eq!(before.get_str("defaultWriteConcernSource").unwrap(), "implicit", "{before}");
    assert_eq!(
        before.get_document("defaultWriteConcern").unwrap().get("w"),
        Some(&"majority".into())
    );
    assert!(!before.contains_key("updateOpTime"));
    let common_point = position(&from);

    let set = |member: &Member, mut concerns: Document| {
        let mut command = doc! {"setDefaultRWConcern": 1};
        command.extend(std::mem::take(&mut concerns));
        admin(member, command)
    };
    let write = doc! {"defaultWriteConcern": {"w": 1, "j": true}};
    assert_eq!(set(&to, write.clone()).get_i32("code").unwrap(), 10107);
    assert_eq!(set(&Member::new(), write.clone()).get_i32("code").unwrap(), 51300);
    assert_eq!(set(&from, doc! {}).get_i32("code").unwrap(), 2);
    let reply = set(&from, write);
    assert_eq!(reply.get_str("defaultWriteConcernSource").unwrap(), "global", "{reply}");
    assert_eq!(reply.get_str("defaultReadConcernSource").unwrap(), "implicit", "{reply}");
    set(&from, doc! {"defaultReadConcern": {"level": "majority"}});
    let unset = set(&from, doc! {"defaultWriteConcern": {}});
    assert_eq!(unset.get_i32("code").unwrap(), 20, "{unset}");

    let expected =
        (Some(doc! {"level": "majority"}), Some(doc! {"w": 1, "j": true, "wtimeout": 0}));
    let known = |member: &Member| {
        let defaults = member.node.default_concerns().unwrap().unwrap();
        (defaults.read.clone(), defaults.write.clone())
    };
    assert_eq!(known(&from), expected);
    assert_eq!(to.node.default_concerns().unwrap(), None);
    to.node.apply(OpTime::NULL, entries(&from), now()).unwrap();
    assert_eq!(known(&to), expected);
    let again = Member::with_history(to.store.crash(to.store.last_committed()), OPLOG_BYTES);
    again.node.join_replica_set(now()).unwrap();
    assert_eq!(known(&again), expected);
    // A read concern can be taken back.
    let reply = set(&from, doc! {"defaultReadConcern": {}});
    assert_eq!(reply.get_document("defaultReadConcern").unwrap(), &doc! {"level": "local"});
    assert_eq!(known(&from).0, None);

    show(&from.node, MemberState::Rollback, false);
    from.node.roll_back_to(common_point, now(), &mut |_| Ok(())).unwrap();
    assert_eq!(from.node.default_concerns().unwrap(), None, "what was undone does not hold");
}
