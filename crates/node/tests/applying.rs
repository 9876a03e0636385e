//! Applying entries that another member wrote: in order, whole, and over a copy.

#![allow(clippy::unwrap_used)]

mod support;

use std::sync::{Arc, Mutex};

use bson::{Document, RawDocumentBuf, doc};
use quorate_node::{MAX_APPLY_ENTRIES, entry_position};
use quorate_protocol::{MemberState, OpTime};
use support::set::{
    commit, entries, hash, images, position, primary, secondary, show, transact, uuid_of,
    write_everything,
};
use support::{Member, now};

/// A hole in the log is refused wherever it is: before the batch, inside it, and between two parts of
/// one that is too large for one hold of the write lock.
#[test]
fn entries_that_do_not_follow_the_log_are_refused() {
    let (from, to) = (primary(), secondary());
    from.insert("a", (0..20).map(|i| doc! {"_id": i}).collect());
    let all = entries(&from);
    let at = |index: usize| entry_position(&all[index]).unwrap().op_time;
    to.node.apply(OpTime::NULL, &all[..5], now()).unwrap();
    let refused = |previous, entries: Vec<RawDocumentBuf>| {
        let error = to.node.apply(previous, entries, now()).unwrap_err();
        assert_eq!(position(&to).op_time, at(4), "nothing was appended: {error}");
    };
    refused(at(5), all[6..].to_vec());
    refused(OpTime::NULL, all[6..].to_vec());
    refused(at(3), all[5..].to_vec());
    // The same entry twice, and two that have changed places.
    refused(at(4), vec![all[5].clone(), all[5].clone(), all[6].clone()]);
    refused(at(4), vec![all[5].clone(), all[7].clone(), all[6].clone()]);
    to.node.apply(at(4), &all[5..], now()).unwrap();
    assert_eq!(entries(&to), all);
    assert_eq!(hash(&to), hash(&from));
}

/// The log is looked at again under the lock: a batch of which a part was applied before goes on
/// where that part ended.
#[test]
fn entries_that_are_there_already_are_left_out() {
    let (from, to) = (primary(), secondary());
    from.insert("a", (0..10).map(|i| doc! {"_id": i}).collect());
    let all = entries(&from);
    to.node.apply(OpTime::NULL, &all[..7], now()).unwrap();
    to.node.apply(OpTime::NULL, all.clone(), now()).unwrap();
    assert_eq!(entries(&to), all);
    assert_eq!(hash(&to), hash(&from));
}

/// A stream asks for what follows the last entry that it sent. Once that entry is trimmed or undone,
/// nothing follows it.
#[test]
fn nothing_follows_an_entry_that_the_oplog_does_not_hold() {
    let member = Member::with_history(quorate_storage::ModelStore::new(), 200_000);
    member.node.join_replica_set(now()).unwrap();
    show(&member.node, MemberState::Primary, true);
    // More than the newest megabyte, which is kept in memory.
    let large = "x".repeat(40_000);
    for i in 0..40 {
        member.insert("a", vec![doc! {"_id": i, "large": &large}]);
    }
    let all = entries(&member);
    let at = |index: usize| entry_position(&all[index]).unwrap().op_time;
    let after = |previous| member.node.read_oplog_after(previous, 100, usize::MAX).unwrap();
    assert_eq!(after(at(3)).unwrap().entries, all[4..]);
    assert_eq!(after(at(all.len() - 1)).unwrap().entries.len(), 0, "nothing new is no loss");
    commit(&member, position(&member));
    while member.node.maintain(now()).unwrap() {}
    let oldest = member.node.oldest_entry().unwrap();
    assert!(oldest > at(10), "the oplog was trimmed");
    assert!(after(at(3)).is_none(), "its place is gone");
    let other_term = OpTime::new(at(20).term + 1, at(20).timestamp);
    assert!(after(other_term).is_none(), "an entry of another branch");
    assert!(after(oldest).is_some());
}

/// Readers and other writers wait for one part of a large batch at most.
#[test]
fn at_most_five_thousand_entries_are_applied_under_one_hold_of_the_write_lock() {
    let (from, to) = (primary(), secondary());
    let total = 2 * MAX_APPLY_ENTRIES + 100;
    for some in (0..total as i64).collect::<Vec<_>>().chunks(1000) {
        from.insert("a", some.iter().map(|id| doc! {"_id": id}).collect());
    }
    let all = entries(&from);
    to.node.apply(OpTime::NULL, &all[..3], now()).unwrap();
    let begin = position(&to).op_time;
    let ends = Arc::new(Mutex::new(vec![begin]));
    let told = Arc::clone(&ends);
    // Called at every commit: documents that do not touch each other share one, but never more than
    // one hold of the lock.
    to.node.on_append(Box::new(move |last, _| told.lock().unwrap().push(last.op_time)));
    to.node.apply(begin, &all[3..], now()).unwrap();
    assert_eq!(position(&to), position(&from));
    let places: Vec<usize> = {
        let ends = ends.lock().unwrap();
        let place =
            |end| all.iter().position(|entry| entry_position(entry).unwrap().op_time == end);
        ends.iter().map(|end| place(*end).unwrap()).collect()
    };
    let largest = places.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
    assert!(largest <= MAX_APPLY_ENTRIES, "{largest} entries in one commit");
    assert!(largest > MAX_APPLY_ENTRIES / 2, "they were applied together: {places:?}");
}

/// Every kind of entry, applied over data that has it already: nothing changes.
#[test]
fn applying_entries_over_their_own_result_changes_nothing() {
    let from = primary();
    write_everything(&from);
    let all = entries(&from);
    // The log of this member begins anew, its data stays: what a copy of the very end looks like.
    let to = copy_of(&from, &["a", "c", "new"]);
    assert_eq!(hash(&to), hash(&from));
    let last = to.node.apply_cloned(all.clone(), now()).unwrap();
    assert_eq!(last, position(&from));
    assert_eq!(hash(&to), hash(&from));
    assert_eq!(entries(&to), all);
    show(&to.node, MemberState::Primary, true);
    for collection in ["a", "c", "new"] {
        to.validate(collection);
    }
}

/// A copy ends with the entry at which its data is consistent, or not at all.
#[test]
fn a_copy_that_ends_before_its_stop_point_is_not_finished() {
    let from = primary();
    from.insert("a", (0..5).map(|i| doc! {"_id": i}).collect());
    let all = entries(&from);
    let to = copy_of(&from, &["a"]);
    to.node.apply_cloned(all[..all.len() - 1].to_vec(), now()).unwrap();
    assert!(to.node.finish_clone(position(&from), now()).is_err());
    to.node.apply_cloned(all[all.len() - 1..].to_vec(), now()).unwrap();
    to.node.finish_clone(position(&from), now()).unwrap();
}

/// A member with a copy of these collections, their indexes among it, and no log.
fn copy_of(from: &Member, names: &[&str]) -> Member {
    let to = secondary();
    to.node.wipe(now()).unwrap();
    for name in names {
        let listed = from.ok(doc! {"listCollections": 1, "filter": {"name": name}});
        let listed = listed.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
        let options = listed[0].as_document().unwrap().get_document("options").unwrap().clone();
        let namespace = quorate_node::Namespace::new("db", name).unwrap();
        to.node.clone_collection(&namespace, uuid_of(from, name), options, now()).unwrap();
        to.node.copied_whole(&uuid_of(from, name));
        let documents = from.find(doc! {"find": name});
        let documents = documents.iter().map(|d| RawDocumentBuf::try_from(d).unwrap()).collect();
        to.node.clone_documents(&namespace, documents, now()).unwrap();
        let listed = from.ok(doc! {"listIndexes": name});
        for spec in listed.get_document("cursor").unwrap().get_array("firstBatch").unwrap() {
            let spec = spec.as_document().unwrap().clone();
            to.node.clone_index(&namespace, spec, now()).unwrap();
        }
    }
    to
}

/// `replIndexPrefetch`: a parameter, and no effect on what is applied.
#[test]
fn what_is_read_ahead_can_be_set_and_changes_no_data() {
    let from = primary();
    from.ok(doc! {"createIndexes": "a", "indexes": [{"key": {"n": 1}, "name": "n_1"}]});
    from.insert("a", (0..400).map(|i| doc! {"_id": i, "n": i % 7}).collect());
    from.ok(doc! {"update": "a", "updates": [{"q": {}, "u": {"$inc": {"n": 1}}, "multi": true}]});
    for setting in ["none", "_id_only", "all"] {
        let to = secondary();
        let set = |value: &str| {
            to.run(doc! {"setParameter": 1, "replIndexPrefetch": value, "$db": "admin"})
        };
        assert_eq!(set(setting).get_str("was").unwrap(), "all");
        assert_eq!(set("some").get_i32("code").unwrap(), 2);
        let shown = to.ok(doc! {"getParameter": 1, "replIndexPrefetch": 1, "$db": "admin"});
        assert_eq!(shown.get_str("replIndexPrefetch").unwrap(), setting);
        to.node.apply(OpTime::NULL, entries(&from), now()).unwrap();
        assert_eq!(hash(&to), hash(&from));
        show(&to.node, MemberState::Primary, true);
        to.validate("a");
    }
}

/// How much was read ahead of a batch of updates to documents with one more index than `_id`.
#[test]
fn what_is_read_ahead_is_what_the_setting_says() {
    let from = primary();
    from.ok(doc! {"createIndexes": "a", "indexes": [{"key": {"n": 1}, "name": "n_1"}]});
    from.insert("a", (0..600).map(|i| doc! {"_id": i, "n": i}).collect());
    let before = entries(&from);
    let last = position(&from);
    from.ok(doc! {"update": "a", "updates": [{"q": {}, "u": {"$inc": {"n": 1}}, "multi": true}]});
    let updates = entries(&from).split_off(before.len());
    for (setting, expected) in [("none", 0), ("_id_only", 600), ("all", 1200)] {
        let to = secondary();
        to.node.apply(OpTime::NULL, before.clone(), now()).unwrap();
        to.ok(doc! {"setParameter": 1, "replIndexPrefetch": setting, "$db": "admin"});
        let read = || {
            let status = to.ok(doc! {"serverStatus": 1, "$db": "admin"});
            let ahead = status.get_document("metrics").unwrap().get_document("repl").unwrap();
            let ahead = ahead.get_document("preload").unwrap().get_document("indexes").unwrap();
            ahead.get_i64("num").unwrap()
        };
        let start = read();
        to.node.apply(last.op_time, updates.clone(), now()).unwrap();
        assert_eq!(read() - start, expected, "{setting}");
    }
}

/// Threads work out the changes of a batch, each its own documents; the result is that of one entry
/// after the other, also where documents come again, collections change in between, and a unique key
/// passes from one document to another. The collections are there before the batch: what is made
/// inside it is prepared by no thread.
#[test]
fn a_batch_prepared_by_threads_is_applied_as_one_entry_after_the_other() {
    let from = primary();
    let index = |name: &str, spec: Document| doc! {"createIndexes": name, "indexes": [spec]};
    from.ok(index("a", doc! {"key": {"n": 1}, "name": "n"}));
    from.ok(index("u", doc! {"key": {"k": 1}, "name": "k", "unique": true}));
    from.insert("a", (0..40).map(|id| doc! {"_id": id, "n": -1, "list": []}).collect());
    from.insert("u", (0..4).map(|id| doc! {"_id": id, "k": id}).collect());
    let before = entries(&from);
    let mut random = random();
    for step in 0..1200_i64 {
        let id = random(40) as i64;
        let update = |change: Document| doc! {"update": "a", "updates": [change]};
        let command = match random(9) {
            0 | 1 => update(doc! {"q": {"_id": id}, "u": {"n": step, "list": []}, "upsert": true}),
            2 => update(doc! {"q": {"_id": id}, "u": {"$inc": {"n": 1}}}),
            3 => update(doc! {"q": {"_id": id}, "u": {"$push": {"list": step}}}),
            4 => doc! {"delete": "a", "deletes": [{"q": {"_id": id}, "limit": 1}]},
            5 => {
                pass_a_unique_key_on(&from, id % 4, step);
                continue;
            }
            _ => doc! {"insert": "a", "documents": [{"_id": 10_000 + step, "n": step}]},
        };
        from.ok(command);
        match step {
            700 => drop(from.ok(index("a", doc! {"key": {"list": 1}, "name": "list"}))),
            800 => drop(from.ok(doc! {"dropIndexes": "a", "index": "n"})),
            900 => {
                let partial = doc! {"n": {"$gt": 100}};
                let spec = doc! {"key": {"n": -1}, "name": "p", "partialFilterExpression": partial};
                from.ok(index("a", spec));
            }
            _ => {}
        }
    }
    let batch = entries(&from).split_off(before.len());
    assert!(batch.len() > 512, "threads take part from there on");
    let (together, apart) = (secondary(), secondary());
    for to in [&together, &apart] {
        to.node.apply(OpTime::NULL, before.clone(), now()).unwrap();
    }
    let begin = position(&together).op_time;
    together.node.apply(begin, batch.clone(), now()).unwrap();
    let mut previous = begin;
    for entry in batch {
        let at = quorate_node::entry_position(&entry).unwrap().op_time;
        apart.node.apply(previous, vec![entry], now()).unwrap();
        previous = at;
    }
    for to in [together, apart] {
        assert_eq!(hash(&to), hash(&from));
        show(&to.node, MemberState::Primary, true);
        to.validate("a");
        to.validate("u");
    }
}

/// Threads work out what a batch changes before any of it is applied. What a transaction changes may stand in earlier
/// entries: all that follows it in the batch is worked out again.
#[test]
fn changes_prepared_before_a_transaction_of_the_same_batch_are_worked_out_again() {
    let create = doc! {"create": "made"};
    for (several_entries, also) in [(true, None), (false, Some(create))] {
        let from = primary();
        if several_entries {
            from.node.split_transactions_at(1);
        }
        from.ok(doc! {"createIndexes": "a", "indexes": [{"key": {"n": 1}, "name": "n"}]});
        from.insert("a", (0..6).map(|id| doc! {"_id": id, "n": 0}).collect());
        let before = entries(&from);
        let update = |filter: Document, change: Document| {
            doc! {"update": "a", "updates": [{"q": filter, "u": change, "multi": true}]}
        };
        let delete = |id: i32| doc! {"delete": "a", "deletes": [{"q": {"_id": id}, "limit": 1}]};
        let new = doc! {"insert": "a", "documents": [{"_id": 10, "n": 0}, {"_id": 11, "n": 0}]};
        let change = update(doc! {}, doc! {"$inc": {"n": 1}, "$set": {"x": 1}});
        transact(&from, 1, also.into_iter().chain([new, change, delete(5)]).collect());
        from.ok(update(doc! {"_id": {"$in": [0, 10]}}, doc! {"$inc": {"n": 1}}));
        from.ok(delete(1));
        from.ok(delete(11));
        from.insert("a", vec![doc! {"_id": 5, "n": 7}]);
        from.ok(update(doc! {"_id": 5}, doc! {"$inc": {"n": 1}}));
        let batch = entries(&from).split_off(before.len());
        assert_eq!(batch.len() > 8, several_entries);
        let to = secondary();
        let begin = to.node.apply(OpTime::NULL, before, now()).unwrap().op_time;
        to.node.prepare_from(2);
        to.node.apply(begin, batch, now()).unwrap();
        assert_eq!(hash(&to), hash(&from));
        show(&to.node, MemberState::Primary, true);
        to.validate("a");
    }
}

/// One document gives up its unique key, and another takes it.
fn pass_a_unique_key_on(from: &Member, giver: i64, step: i64) {
    let found = from.find(doc! {"find": "u", "filter": {"_id": giver}});
    let key = found[0].get("k").unwrap().clone();
    let taker = (giver + 1) % 4;
    from.ok(doc! {"update": "u", "updates": [
        {"q": {"_id": giver}, "u": {"$set": {"k": 1_000 + step}}},
        {"q": {"_id": taker}, "u": {"$set": {"k": key}}},
    ]});
}

/// Numbers below a bound, the same in every run.
fn random() -> impl FnMut(u64) -> u64 {
    let mut state = 7_u64;
    move |below| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    }
}

/// What is applied over a copy may find the documents in any later state.
#[test]
fn entries_over_a_copy_fit_documents_of_a_later_time() {
    let from = primary();
    let unique = doc! {"key": {"n": 1}, "name": "n", "unique": true};
    from.insert("a", vec![doc! {"_id": 0, "n": 0}]);
    from.ok(doc! {"createIndexes": "a", "indexes": [unique]});
    let begin = entries(&from).len();
    from.insert("a", vec![doc! {"_id": 1, "n": 1}, doc! {"_id": 2, "n": 2}]);
    let change = doc! {"q": {"_id": 2}, "u": {"$set": {"n": 3}}};
    from.ok(doc! {"update": "a", "updates": [change]});
    from.ok(doc! {"delete": "a", "deletes": [{"q": {"_id": 1}, "limit": 1}]});
    // Its value is taken again, by another document.
    from.insert("a", vec![doc! {"_id": 4, "n": 1}]);
    let meanwhile = entries(&from).split_off(begin);

    // The copy already holds the end of the story; the entries begin before it.
    let to = secondary();
    to.node.wipe(now()).unwrap();
    let namespace = quorate_node::Namespace::new("db", "a").unwrap();
    to.node.clone_collection(&namespace, uuid_of(&from, "a"), Document::new(), now()).unwrap();
    to.node.copied_whole(&uuid_of(&from, "a"));
    let documents = from.find(doc! {"find": "a"});
    let documents = documents.iter().map(|d| RawDocumentBuf::try_from(d).unwrap()).collect();
    to.node.clone_documents(&namespace, documents, now()).unwrap();
    let unique = doc! {"v": 2, "key": {"n": 1}, "name": "n", "unique": true};
    to.node.clone_index(&namespace, unique, now()).unwrap();
    let last = to.node.apply_cloned(meanwhile, now()).unwrap();
    to.node.finish_clone(last, now()).unwrap();
    assert_eq!(last, position(&from));
    assert_eq!(hash(&to), hash(&from));
}

/// Collections are copied by their names; a rename meanwhile must not cost documents.
#[test]
fn a_copy_of_a_collection_that_is_renamed_is_whole_or_begins_again() {
    let from = primary();
    from.insert("a", vec![doc! {"_id": 0}]);
    from.insert("b", vec![doc! {"_id": "old"}]);
    let (a, old) = (uuid_of(&from, "a"), uuid_of(&from, "b"));
    let begin = entries(&from).len();
    // Not a document of the collection that will have the name.
    from.insert("b", vec![doc! {"_id": "doomed"}]);
    from.ok(doc! {
        "renameCollection": "db.a", "to": "db.b", "dropTarget": true, "$db": "admin",
    });
    // As `$out` does: a collection that comes into being and is renamed, all of it in the log.
    from.insert("fresh", vec![doc! {"_id": 1}]);
    from.ok(doc! {"renameCollection": "db.fresh", "to": "db.final", "$db": "admin"});
    let meanwhile = entries(&from).split_off(begin);
    let copy = |names: &[(&str, &bson::Binary)], in_part: bool| {
        let to = secondary();
        to.node.wipe(now()).unwrap();
        for (name, uuid) in names {
            let namespace = quorate_node::Namespace::new("db", name).unwrap();
            to.node.clone_collection(&namespace, (*uuid).clone(), Document::new(), now()).unwrap();
            let documents = if in_part { vec![] } else { vec![bson::rawdoc! {"_id": 0}] };
            to.node.clone_documents(&namespace, documents, now()).unwrap();
            if !in_part {
                to.node.copied_whole(uuid);
            }
        }
        let last = to.node.apply_cloned(meanwhile.clone(), now()).unwrap();
        to.node.finish_clone(last, now()).is_ok().then(|| hash(&to) == hash(&from))
    };
    assert_eq!(copy(&[("a", &a), ("b", &old)], false), Some(true), "copied before the rename");
    assert_eq!(copy(&[("b", &a)], false), Some(true), "listed after it");
    assert_eq!(copy(&[("a", &a)], true), None, "its name was gone when its turn came");
}

/// A copy that is interrupted and goes on finds a collection under another name.
#[test]
fn what_an_interrupted_copy_left_of_a_renamed_collection_gives_way() {
    let from = primary();
    from.insert("a", vec![doc! {"_id": 0}, doc! {"_id": 1}]);
    let (a, begin) = (uuid_of(&from, "a"), entries(&from).len());
    from.insert("a", vec![doc! {"_id": 2}]);
    from.ok(doc! {"renameCollection": "db.a", "to": "db.c", "$db": "admin"});
    let meanwhile = entries(&from).split_off(begin);
    let name = |name: &str| quorate_node::Namespace::new("db", name).unwrap();
    let copy = |finds_it_again: bool| {
        let to = secondary();
        to.node.wipe(now()).unwrap();
        to.node.clone_collection(&name("a"), a.clone(), Document::new(), now()).unwrap();
        if finds_it_again {
            to.node.clone_collection(&name("c"), a.clone(), Document::new(), now()).unwrap();
            let documents = (0..3).map(|id| bson::rawdoc! {"_id": id}).collect();
            to.node.clone_documents(&name("c"), documents, now()).unwrap();
            to.node.copied_whole(&a);
        }
        let last = to.node.apply_cloned(meanwhile.clone(), now()).unwrap();
        to.node.finish_clone(last, now()).is_ok().then(|| hash(&to) == hash(&from))
    };
    assert_eq!(copy(true), Some(true));
    assert_eq!(copy(false), None, "nothing says that it is whole: the copy begins again");
}

/// A collection takes the name of another over while everything is copied. Its documents came before the log that is
/// applied over the copy; only its new name is in there.
#[test]
fn a_copied_collection_outlives_the_one_that_had_its_name_before() {
    let from = primary();
    from.insert("kept", vec![doc! {"_id": 1}]);
    let begin = entries(&from).len();
    from.insert("first", vec![doc! {"_id": 2}]);
    from.ok(doc! {"renameCollection": "db.first", "to": "db.a", "$db": "admin"});
    from.ok(doc! {
        "renameCollection": "db.kept", "to": "db.a", "dropTarget": true, "$db": "admin",
    });
    from.insert("a", vec![doc! {"_id": 3}]);
    let meanwhile = entries(&from).split_off(begin);
    let to = copy_of(&from, &["a"]);
    let last = to.node.apply_cloned(meanwhile, now()).unwrap();
    to.node.finish_clone(last, now()).unwrap();
    assert_eq!(hash(&to), hash(&from));

    // The name passes to one that is made while everything is copied.
    let from = primary();
    from.insert("first", vec![doc! {"_id": 1}]);
    let begin = entries(&from).len();
    from.ok(doc! {"renameCollection": "db.first", "to": "db.a", "$db": "admin"});
    from.ok(doc! {"drop": "a"});
    from.insert("a", vec![doc! {"_id": 2}]);
    let meanwhile = entries(&from).split_off(begin);
    let first = entries(&from)[begin].get_binary("ui").unwrap().bytes.to_vec();
    let to = copy_of(&from, &["a"]);
    let namespace = quorate_node::Namespace::new("db", "first").unwrap();
    let first = bson::Binary { subtype: bson::spec::BinarySubtype::Uuid, bytes: first };
    to.node.clone_collection(&namespace, first.clone(), Document::new(), now()).unwrap();
    to.node.copied_whole(&first);
    let last = to.node.apply_cloned(meanwhile, now()).unwrap();
    to.node.finish_clone(last, now()).unwrap();
    assert_eq!(hash(&to), hash(&from));
}

/// What a document was before an entry is not known over a copy, which may be newer.
#[test]
fn no_images_are_kept_over_a_copy() {
    let from = primary();
    from.ok(doc! {"create": "a", "changeStreamPreAndPostImages": {"enabled": true}});
    from.insert("a", vec![doc! {"_id": 1, "n": 1}]);
    let begin = entries(&from).len();
    let change =
        |n: i32| doc! {"update": "a", "updates": [{"q": {"_id": 1}, "u": {"$set": {"n": n}}}]};
    from.ok(change(2));
    let meanwhile = entries(&from).split_off(begin);
    let to = copy_of(&from, &["a"]);
    let last = to.node.apply_cloned(meanwhile, now()).unwrap();
    to.node.finish_clone(last, now()).unwrap();
    assert_eq!(images(&to), [] as [Document; 0]);
    // From there on it keeps them.
    from.ok(change(3));
    to.node.apply(last.op_time, entries(&from).split_off(begin + 1), now()).unwrap();
    assert_eq!(images(&to), images(&from).split_off(1));
    assert_eq!(images(&to)[0].get_document("preImage").unwrap(), &doc! {"_id": 1, "n": 2});
}

/// Documents of a capped collection have an order, which a copy keeps although entries are applied again.
#[test]
fn a_copied_capped_collection_keeps_its_order() {
    let from = primary();
    from.ok(doc! {"create": "a", "capped": true, "size": 1 << 20, "max": 2});
    from.insert("a", vec![doc! {"_id": 0}]);
    let begin = entries(&from).len();
    from.ok(doc! {"delete": "a", "deletes": [{"q": {"_id": 0}, "limit": 1}]});
    from.insert("a", vec![doc! {"_id": 0}]);
    from.insert("a", vec![doc! {"_id": 1}]);
    let meanwhile = entries(&from).split_off(begin);
    let to = copy_of(&from, &["a"]);
    let last = to.node.apply_cloned(meanwhile, now()).unwrap();
    to.node.finish_clone(last, now()).unwrap();
    show(&to.node, MemberState::Primary, true);
    assert_eq!(to.ids(doc! {"find": "a"}), [0, 1]);
    to.validate("a");
}

/// Unique indexes are built at the end of a copy, as they are then.
#[test]
fn a_copied_unique_index_is_as_it_was_changed_meanwhile() {
    let from = primary();
    let index = doc! {"key": {"t": 1}, "name": "t", "unique": true, "expireAfterSeconds": 60};
    from.ok(doc! {"createIndexes": "a", "indexes": [index]});
    let begin = entries(&from).len();
    let to = copy_of(&from, &["a"]);
    from.ok(doc! {"collMod": "a", "index": {"name": "t", "expireAfterSeconds": 6_000}});
    let last = to.node.apply_cloned(entries(&from).split_off(begin), now()).unwrap();
    to.node.finish_clone(last, now()).unwrap();
    let indexes = |member: &Member| {
        let list = doc! {"listIndexes": "a", "$readPreference": {"mode": "nearest"}};
        member.drain(member.ok(list), "a")
    };
    assert_eq!(indexes(&to), indexes(&from));
    assert_eq!(indexes(&to)[1].get_i64("expireAfterSeconds").unwrap(), 6_000);
}

/// BSON allows a name twice, and MongoDB stores it so. An update leaves what it does not name as it was, on every member.
#[test]
fn an_update_keeps_both_fields_of_one_name() {
    let (from, to) = (primary(), secondary());
    let mut inner = bson::rawdoc! {"x": 1, "y": 2};
    inner.append(bson::raw::cstr!("x"), 3);
    let twice =
        bson::rawdoc! {"s": inner.clone(), "l": [inner.clone()], "n": 0, "long": "x".repeat(200)};
    for id in 0..4 {
        let mut document = bson::rawdoc! {"_id": id};
        document.append(bson::raw::cstr!("s"), twice.get_document("s").unwrap());
        document.append(bson::raw::cstr!("l"), twice.get_array("l").unwrap());
        document.append(bson::raw::cstr!("long"), twice.get_str("long").unwrap());
        let insert = bson::rawdoc! {"insert": "a", "$db": "db"};
        let documents = vec![("documents".to_owned(), vec![document])];
        let command = quorate_node::Command::from_raw(&insert, documents).unwrap();
        let quorate_node::Outcome::Reply(reply) = from.node.run(&support::context(), command)
        else {
            panic!("it waits");
        };
        assert_eq!(reply.body.get_i32("n").unwrap(), 1);
    }
    let update =
        |id: i32, u: Document| doc! {"update": "a", "updates": [{"q": {"_id": id}, "u": u}]};
    from.ok(update(0, doc! {"$set": {"n": 1}}));
    from.ok(update(1, doc! {"$set": {"s.y": 9, "l.0.y": 9}}));
    from.ok(doc! {"findAndModify": "a", "query": {"_id": 2}, "update": [{"$set": {"n": 1}}]});
    from.insert("b", vec![doc! {"_id": 3, "n": 1}]);
    let merge = doc! {"$merge": {"into": "a", "whenMatched": "merge"}};
    from.ok(doc! {"aggregate": "b", "pipeline": [merge], "cursor": {}});
    to.node.apply(OpTime::NULL, entries(&from), now()).unwrap();
    assert_eq!(hash(&to), hash(&from));
    for member in [&from, &to] {
        let find = bson::rawdoc! {
            "find": "a", "$db": "db", "$readPreference": {"mode": "nearest"}, "sort": {"_id": 1},
        };
        let command = quorate_node::Command::from_raw(&find, Vec::new()).unwrap();
        let quorate_node::Outcome::Reply(reply) = member.node.run(&support::context(), command)
        else {
            panic!("it waits");
        };
        let batch = reply.body.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
        for document in batch {
            let bson::RawBsonRef::Document(document) = document.unwrap() else { panic!() };
            let nested = document.get_document("s").unwrap();
            assert_eq!(nested.iter().count(), 3, "{document:?}");
            let bson::RawBsonRef::Document(item) =
                document.get_array("l").unwrap().get(0).unwrap().unwrap()
            else {
                panic!()
            };
            assert_eq!(item.iter().count(), 3, "{document:?}");
        }
    }
}

/// A source tells no UUIDs of views.
#[test]
fn a_copy_has_the_views_of_its_source_as_they_became() {
    let from = primary();
    from.insert("c", vec![doc! {"_id": 1}]);
    let create = |name: &str, least: i32| {
        doc! {"create": name, "viewOn": "c", "pipeline": [{"$match": {"_id": {"$gte": least}}}]}
    };
    for name in ["kept", "changed", "dropped", "made_again"] {
        from.ok(create(name, 1));
    }
    let begin = entries(&from).len();
    let to = copy_of(&from, &["c"]);
    let nil = bson::Binary { subtype: bson::spec::BinarySubtype::Uuid, bytes: vec![0; 16] };
    for name in ["kept", "changed", "dropped", "made_again"] {
        let mut options = create(name, 1);
        options.remove("create");
        let namespace = quorate_node::Namespace::new("db", name).unwrap();
        to.node.clone_collection(&namespace, nil.clone(), options, now()).unwrap();
        to.node.copied_whole(&nil);
    }
    let mut change = create("changed", 2);
    change.remove("create");
    let mut collmod = doc! {"collMod": "changed"};
    collmod.extend(change);
    from.ok(collmod);
    from.ok(doc! {"drop": "dropped"});
    from.ok(doc! {"drop": "made_again"});
    from.ok(create("made_again", 3));
    let last = to.node.apply_cloned(entries(&from).split_off(begin), now()).unwrap();
    to.node.finish_clone(last, now()).unwrap();
    let listed = |member: &Member| {
        let list = doc! {"listCollections": 1, "$readPreference": {"mode": "nearest"}};
        member.drain(member.ok(list), "$cmd.listCollections")
    };
    assert_eq!(listed(&to), listed(&from));
}

/// Databases are listed one after the other. A collection that moves from one that is yet to be listed to one that was is
/// in neither list.
#[test]
fn a_copy_that_never_saw_a_moved_collection_begins_again() {
    for ending in [doc! {}, doc! {"drop": "target", "$db": "db"}] {
        let from = primary();
        from.ok(doc! {"insert": "moved", "documents": [{"_id": 1}], "$db": "other"});
        from.insert("target", vec![doc! {"_id": 2}]);
        let begin = entries(&from).len();
        let to = copy_of(&from, &["target"]);
        from.ok(doc! {
            "renameCollection": "other.moved", "to": "db.target", "dropTarget": true, "$db": "admin",
        });
        if !ending.is_empty() {
            from.ok(ending.clone());
        }
        let last = to.node.apply_cloned(entries(&from).split_off(begin), now()).unwrap();
        let finished = to.node.finish_clone(last, now());
        assert_eq!(finished.is_ok(), !ending.is_empty(), "{finished:?}");
        if finished.is_ok() {
            assert_eq!(hash(&to), hash(&from));
        }
    }
}
