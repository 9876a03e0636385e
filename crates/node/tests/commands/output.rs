//! `$out` and `$merge`.

use std::thread;

use bson::{Bson, Document, doc};
use quorate_storage::{ModelStore, Store};

use super::support::Member;

fn out(from: &str, to: &str) -> Document {
    doc! {"aggregate": from, "pipeline": [{"$out": to}], "cursor": {}}
}

#[test]
fn out_leaves_capped_collections_alone() {
    let member = Member::new();
    member.insert("c", vec![doc! {"_id": 1}]);
    member.ok(doc! {"create": "capped", "capped": true, "size": 4096});
    assert_eq!(member.code(out("c", "capped")), 17152);
    assert_eq!(member.ids(doc! {"find": "capped"}), [] as [i32; 0]);
}

/// An index that is made while `$out` runs is there afterwards, or `$out` says that it could not replace the collection.
#[test]
fn out_loses_no_index_that_is_made_meanwhile() {
    let member = Member::new();
    member.insert("c", (0..20_000).map(|n| doc! {"_id": n}).collect());
    member.insert("target", vec![doc! {"_id": 1, "u": 1}]);
    let reply = thread::scope(|threads| {
        let running = threads.spawn(|| member.run(out("c", "target")));
        let names =
            || member.ok(doc! {"listCollections": 1, "filter": {"name": {"$regex": "^tmp"}}});
        let is_filling = || {
            let listed = names();
            let cursor = listed.get_document("cursor").unwrap();
            !cursor.get_array("firstBatch").unwrap().is_empty()
        };
        while !is_filling() && !running.is_finished() {
            thread::yield_now();
        }
        let index = doc! {"key": {"u": 1}, "name": "u_1"};
        member.ok(doc! {"createIndexes": "target", "indexes": [index]});
        running.join().unwrap()
    });
    let indexes = member.drain(member.ok(doc! {"listIndexes": "target"}), "target");
    assert_eq!(indexes.len(), 2, "{indexes:?} after {reply}");
    match reply.get_i32("code") {
        Ok(code) => assert_eq!((code, member.ids(doc! {"find": "target"})), (28768, vec![1])),
        Err(_) => assert_eq!(member.ids(doc! {"find": "target"}).len(), 20_000),
    }
    let listed = member.drain(member.ok(doc! {"listCollections": 1}), "$cmd.listCollections");
    assert_eq!(listed.len(), 2, "{listed:?}");
}

/// A process that ends while `$out` runs leaves a collection behind, which goes when the next one begins.
#[test]
fn what_out_left_behind_goes() {
    let member = Member::new();
    let names = ["tmp.agg_out.0123456789abcdef", "tmp.agg_out.mine"];
    names.iter().for_each(|name| member.insert(name, vec![doc! {"_id": 1}]));
    let all = member.store.last_committed().as_u64();
    let store: ModelStore = member.store.crash_after(all);
    let again = Member::over(store);
    let listed = again.drain(again.ok(doc! {"listCollections": 1}), "$cmd.listCollections");
    let left: Vec<_> = listed.iter().map(|known| known.get_str("name").unwrap()).collect();
    assert_eq!(left, ["tmp.agg_out.mine"]);
}

/// Whatever finds the document, and whatever becomes of it, its `_id` stays.
#[test]
fn merge_alters_no_id() {
    let member = Member::new();
    let index = doc! {"key": {"k": 1}, "name": "k_1", "unique": true};
    member.ok(doc! {"createIndexes": "target", "indexes": [index]});
    member.insert("target", vec![doc! {"_id": 1, "k": 7}]);
    member.insert("c", vec![doc! {"_id": 2, "k": 7, "n": 1}]);
    let merge = |unset: &str, when_matched: Bson| {
        let into = doc! {"into": "target", "on": "k", "whenMatched": when_matched};
        doc! {"aggregate": "c", "pipeline": [{"$unset": unset}, {"$merge": into}], "cursor": {}}
    };
    let pipeline = |value: i32| Bson::from(vec![doc! {"$set": {"_id": value, "n": 2}}]);
    for when_matched in ["replace".into(), "merge".into(), pipeline(3)] {
        assert_eq!(member.code(merge("none", when_matched)), 66);
    }
    // It stays the first field, too.
    let found = |n: i32| {
        let found = member.find(doc! {"find": "target"});
        let found: Vec<_> = found.into_iter().map(Vec::from_iter).collect();
        assert_eq!(found, [Vec::from_iter(doc! {"_id": 1, "k": 7, "n": n})]);
    };
    member.ok(merge("_id", "replace".into()));
    found(1);
    member.ok(merge("none", pipeline(1)));
    found(2);
    member.ok(merge("_id", "merge".into()));
    found(1);
}

/// The manual, "$merge": `on` names fields by their paths.
#[test]
fn merge_finds_documents_by_a_dotted_path() {
    let member = Member::new();
    let index = doc! {"key": {"a.b": 1}, "name": "a.b_1", "unique": true};
    member.ok(doc! {"createIndexes": "target", "indexes": [index]});
    member.insert("target", vec![doc! {"_id": 1}, doc! {"_id": 2, "a": {"b": 7}}]);
    let given = |id: i32, b: i32| doc! {"_id": id, "a": {"b": b}, "n": 5};
    member.insert("c", vec![given(8, 7), given(9, 8)]);
    let merge = |stages: Vec<Document>, matched: &str| {
        let into = doc! {"into": "target", "on": "a.b", "whenMatched": matched};
        let stages = [stages, vec![doc! {"$merge": into}]].concat();
        doc! {"aggregate": "c", "pipeline": stages, "cursor": {}}
    };
    let without_id = vec![doc! {"$unset": "_id"}];
    member.ok(merge(without_id.clone(), "merge"));
    let mut found = member.find(doc! {"find": "target"});
    let inserted = found.pop().unwrap();
    assert!(inserted.get_object_id("_id").is_ok(), "{inserted}");
    assert_eq!(inserted.get_document("a").unwrap(), &doc! {"b": 8});
    assert_eq!(found, [doc! {"_id": 1}, doc! {"_id": 2, "a": {"b": 7}, "n": 5}]);
    let refused = member.run(merge(without_id, "fail"));
    assert_eq!(refused.get_i32("code").unwrap(), 11000, "{refused}");
    assert_eq!(refused.get_document("keyValue").unwrap(), &doc! {"a.b": 7});
}

/// The manual, "$merge": the fields of `on` must have values other than null and arrays. An `_id` is made if there is none.
#[test]
fn merge_refuses_documents_without_a_value_to_find_others_by() {
    let member = Member::new();
    let index = doc! {"key": {"a.b": 1}, "name": "a.b_1", "unique": true};
    member.ok(doc! {"createIndexes": "target", "indexes": [index]});
    member.insert("target", vec![doc! {"_id": Bson::Null}]);
    let merge = |on: &str| {
        let stages = vec![doc! {"$unset": "_id"}, doc! {"$merge": {"into": "target", "on": on}}];
        doc! {"aggregate": "c", "pipeline": stages, "cursor": {}}
    };
    for (given, code) in [
        (doc! {"n": 1}, 51132),
        (doc! {"a": {"b": Bson::Null}}, 51132),
        (doc! {"a": {"b": Bson::Undefined}}, 51132),
        (doc! {"a": [{"b": 1}]}, 51132),
        (doc! {"a": {"b": [1]}}, 51185),
    ] {
        member.ok(doc! {"drop": "c"});
        member.insert("c", vec![given.clone()]);
        assert_eq!(member.code(merge("a.b")), code, "{given}");
        assert_eq!(member.find(doc! {"find": "target"}), [doc! {"_id": Bson::Null}], "{given}");
    }
    let null = doc! {"aggregate": "target", "pipeline": [{"$merge": "target"}], "cursor": {}};
    assert_eq!(member.code(null), 51132);
    member.ok(merge("_id"));
    let found = member.find(doc! {"find": "target"});
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[1].get_object_id("_id").is_ok(), "{found:?}");
}
