//! Commands against a member in memory: shapes, codes, and that indexes change nothing but speed.

#![allow(clippy::unwrap_used, reason = "a panic is the report")]

mod figures;
mod indexes;
mod odd_documents;
mod output;
mod refusals;
#[path = "../support/mod.rs"]
mod support;
mod validators;
mod views;

use bson::{Bson, Document, doc};
use proptest::prelude::*;
use quorate_node::{Certificate, Client, Command, Context, Outcome, WaitFor};
use quorate_storage::Store;
use support::{Member, context, now};

#[test]
fn hello_tells_what_drivers_need() {
    let member = Member::new();
    let reply = member.ok(doc! {"hello": 1, "compression": ["snappy", "zstd"], "$db": "admin"});
    assert!(reply.get_bool("isWritablePrimary").unwrap());
    assert_eq!(reply.get_i32("maxWireVersion").unwrap(), 21);
    assert_eq!(reply.get_i32("logicalSessionTimeoutMinutes").unwrap(), 30);
    assert_eq!(reply.get_array("compression").unwrap(), &[Bson::from("zstd")]);
    let legacy = member.ok(doc! {"isMaster": 1, "helloOk": true, "$db": "admin"});
    assert!(legacy.get_bool("ismaster").unwrap());
    assert!(legacy.get_bool("helloOk").unwrap());
}

#[test]
fn hello_waits_only_while_nothing_is_new() {
    let member = Member::new();
    let version = member.ok(doc! {"hello": 1}).get_document("topologyVersion").unwrap().clone();
    let waiting = doc! {"hello": 1, "topologyVersion": version.clone(), "maxAwaitTimeMS": 500};
    let outcome = member.node.run(&context(), Command::new(waiting.clone()));
    let Outcome::Wait { until, at_most } = outcome else { panic!("it should wait") };
    assert_eq!((until, at_most.as_millis()), (WaitFor::TopologyChange, 500));
    member.node.raise_topology_version();
    member.ok(waiting);
    assert_eq!(member.code(doc! {"hello": 1, "topologyVersion": version}), 31368);
    assert_eq!(member.code(doc! {"hello": 1, "maxAwaitTimeMS": 1}), 51759);
}

#[test]
fn unknown_commands_and_wrong_databases_are_refused() {
    let member = Member::new();
    assert_eq!(member.code(doc! {"frobnicate": 1}), 59);
    assert_eq!(member.code(doc! {"listDatabases": 1}), 13);
    assert_eq!(member.code(doc! {"find": "c", "$db": "a.b"}), 73);
    assert_eq!(member.code(doc! {"find": 1}), 73);
    assert_eq!(member.code(doc! {"ping": 1, "apiVersion": "2"}), 322);
}

#[test]
fn documents_come_back_in_the_order_of_insertion() {
    let member = Member::new();
    member.insert("c", (0..10).rev().map(|n| doc! {"_id": n}).collect());
    assert_eq!(member.ids(doc! {"find": "c"}), (0..10).rev().collect::<Vec<_>>());
    assert_eq!(member.ids(doc! {"find": "c", "sort": {"$natural": -1}, "limit": 2}), [0, 1]);
    assert_eq!(member.ids(doc! {"find": "c", "sort": {"_id": -1}, "skip": 1, "limit": 2}), [8, 7]);
    assert_eq!(member.ids(doc! {"find": "c", "filter": {"_id": {"$gt": 7}}}), [8, 9]);
    assert_eq!(member.ids(doc! {"find": "missing"}), [] as [i32; 0]);
}

/// A find by `_id` alone is looked up without a plan. It finds what a scan that compares finds.
#[test]
fn a_document_is_found_by_its_id_as_a_scan_finds_it() {
    let member = Member::new();
    let binary = |bytes: &[u8]| bson::Binary {
        subtype: bson::spec::BinarySubtype::Generic,
        bytes: bytes.to_vec(),
    };
    let ids: Vec<Bson> = vec![
        1.into(),
        (1_i64 << 60).into(),
        2.5.into(),
        f64::NAN.into(),
        "a".into(),
        "a\0b".into(),
        "".into(),
        Bson::Symbol("s".into()),
        bson::oid::ObjectId::from_bytes([7; 12]).into(),
        bson::DateTime::from_millis(1).into(),
        bson::Timestamp { time: 1, increment: 0 }.into(),
        binary(b"a").into(),
        binary(b"").into(),
        true.into(),
        Bson::Null,
        Bson::MinKey,
        doc! { "a": 1 }.into(),
        doc! { "$ref": "c", "$id": 1 }.into(),
    ];
    member.insert("c", ids.iter().map(|id| doc! { "_id": id, "n": 1 }).collect());
    let mut asked = ids.clone();
    asked.extend([1.0.into(), 1_i64.into(), 3.into(), "b".into(), "s".into()]);
    asked.extend(["1".parse::<bson::Decimal128>().unwrap().into(), ((1_i64 << 60) as f64).into()]);
    asked.extend([doc! { "$gt": 1 }.into(), doc! { "$in": [1, "a"] }.into(), Bson::Array(vec![])]);
    asked.push(
        bson::Regex { pattern: "a".try_into().unwrap(), options: "".try_into().unwrap() }.into(),
    );
    for id in asked {
        let filter = doc! { "_id": &id };
        let found = member.find(doc! { "find": "c", "filter": &filter, "limit": 100 });
        let scanned = doc! { "find": "c", "filter": &filter, "hint": { "$natural": 1 } };
        let shown = |documents: Vec<Document>| {
            let mut shown: Vec<_> = documents.iter().map(|found| format!("{found:?}")).collect();
            shown.sort();
            shown
        };
        assert_eq!(shown(found), shown(member.find(scanned)), "{id}");
    }
    let by_id = |more: Document| {
        let mut command = doc! { "find": "c", "filter": { "_id": "a" } };
        command.extend(more);
        member.find(command)
    };
    assert_eq!(by_id(doc! { "skip": 1 }), [] as [Document; 0]);
    assert_eq!(by_id(doc! { "projection": { "n": 1, "_id": 0 } }), [doc! { "n": 1 }]);
    assert_eq!(by_id(doc! { "batchSize": 0 }), [doc! { "_id": "a", "n": 1 }]);
    assert_eq!(by_id(doc! { "batchSize": 1, "singleBatch": true }).len(), 1);
    assert_eq!(member.find(doc! { "find": "c", "filter": { "_id": "a", "n": 2 } }).len(), 0);
    let wrong = |more: Document| {
        let mut command = doc! { "find": "c", "filter": { "_id": 1 } };
        command.extend(more);
        member.code(command)
    };
    assert_eq!(wrong(doc! { "limit": -1 }), 51024);
    assert_eq!(wrong(doc! { "singleBatch": "yes" }), 14);
    assert_eq!(wrong(doc! { "batchSize": -1 }), 51024);
    assert_eq!(member.find(doc! { "find": "none", "filter": { "_id": 1 } }).len(), 0);
}

#[test]
fn a_missing_id_is_made_up_and_put_first() {
    let member = Member::new();
    member.insert("c", vec![doc! {"a": 1}, doc! {"b": 2, "_id": 5}]);
    let found = member.find(doc! {"find": "c"});
    assert!(matches!(found[0].iter().next().unwrap(), (name, Bson::ObjectId(_)) if name == "_id"));
    assert_eq!(found[1].keys().collect::<Vec<_>>(), ["_id", "b"]);
}

#[test]
fn duplicate_keys_stop_an_ordered_insert_and_not_an_unordered_one() {
    let member = Member::new();
    let documents = vec![doc! {"_id": 1}, doc! {"_id": 1.0}, doc! {"_id": 2}];
    let reply = member.ok(doc! {"insert": "c", "documents": documents.clone()});
    assert_eq!(reply.get_i32("n").unwrap(), 1);
    let errors = reply.get_array("writeErrors").unwrap();
    let error = errors[0].as_document().unwrap();
    assert_eq!((error.get_i32("index").unwrap(), error.get_i32("code").unwrap()), (1, 11000));
    assert!(error.get_str("errmsg").unwrap().contains("index: _id_ dup key: { _id: 1"));
    let reply = member.ok(doc! {"insert": "d", "documents": documents, "ordered": false});
    assert_eq!(reply.get_i32("n").unwrap(), 2);
    member.validate("c");
    member.validate("d");
}

#[test]
fn a_refused_document_leaves_no_entry_to_the_next() {
    let member = Member::new();
    member.ok(doc! {"createIndexes": "c", "indexes": [
        {"key": {"u": 1}, "name": "u", "unique": true}, {"key": {"v": 1}, "name": "v"},
    ]});
    // Its `_id` is free, and the unique key behind that is taken.
    let documents = vec![
        doc! {"_id": 1, "u": 1, "v": 1},
        doc! {"_id": 2, "u": 1, "v": 2},
        doc! {"_id": 3, "u": 3, "v": 3},
    ];
    let reply = member.ok(doc! {"insert": "c", "documents": documents, "ordered": false});
    assert_eq!(reply.get_i32("n").unwrap(), 2);
    member.validate("c");
    assert_eq!(member.find(doc! {"find": "c", "filter": {"u": 3}}).len(), 1);
    member.ok(doc! {"insert": "c", "documents": [{"_id": 2, "u": 2, "v": 2}]});
    member.validate("c");
    assert_eq!(member.find(doc! {"find": "c", "filter": {"v": 2}}).len(), 1);
}

#[test]
fn refused_documents_change_nothing() {
    let member = Member::new();
    let nested = (0..220).fold(doc! {"leaf": 1}, |inner, _| doc! {"a": inner});
    for (document, code) in [
        (doc! {"_id": [1]}, 53),
        (doc! {"a": nested}, 15),
        (doc! {"a": "x".repeat(17 * 1024 * 1024)}, 10334),
    ] {
        let reply = member.ok(doc! {"insert": "c", "documents": [document]});
        let errors = reply.get_array("writeErrors").unwrap();
        assert_eq!(errors[0].as_document().unwrap().get_i32("code").unwrap(), code);
    }
    assert_eq!(member.ok(doc! {"count": "c"}).get_i32("n").unwrap(), 0);
    assert_eq!(member.code(doc! {"insert": "c", "documents": []}), 16);
    let many = vec![doc! {"q": {}, "u": {}, "limit": 1}; 100_001];
    for (command, field) in [("insert", "documents"), ("update", "updates"), ("delete", "deletes")]
    {
        assert_eq!(member.code(doc! {command: "c", field: many.clone()}), 16, "{command}");
    }
    assert_eq!(member.code(doc! {"insert": "system.x", "documents": [{}]}), 73);
}

#[test]
fn deletes_take_one_or_all() {
    let member = Member::new();
    member.insert("c", (0..6).map(|n| doc! {"_id": n, "even": n % 2 == 0}).collect());
    let delete = |limit: i32| {
        let reply =
            member.ok(doc! {"delete": "c", "deletes": [{"q": {"even": true}, "limit": limit}]});
        reply.get_i32("n").unwrap()
    };
    assert_eq!((delete(1), delete(0)), (1, 2));
    assert_eq!(member.ids(doc! {"find": "c"}), [1, 3, 5]);
    member.validate("c");
}

#[test]
fn counts_know_skip_and_limit() {
    let member = Member::new();
    member.insert("c", (0..10).map(|n| doc! {"_id": n}).collect());
    let count = |command: Document| member.ok(command).get_i32("n").unwrap();
    assert_eq!(count(doc! {"count": "c"}), 10);
    assert_eq!(count(doc! {"count": "c", "query": {"_id": {"$lt": 7}}, "skip": 2}), 5);
    assert_eq!(count(doc! {"count": "c", "limit": 4, "skip": 8}), 2);
    assert_eq!(count(doc! {"count": "c", "query": {"_id": {"$gte": 0}}, "limit": 4}), 4);
}

#[test]
fn distinct_flattens_arrays_and_joins_equal_numbers() {
    let member = Member::new();
    member.insert("c", vec![doc! {"a": [2, 1]}, doc! {"a": 1.0}, doc! {"a": "x"}, doc! {}]);
    let values = member.ok(doc! {"distinct": "c", "key": "a"});
    assert_eq!(
        values.get_array("values").unwrap(),
        &[Bson::from(1), Bson::from(2), Bson::from("x")]
    );
}

#[test]
fn collections_are_created_listed_renamed_and_dropped() {
    let member = Member::new();
    member.ok(doc! {"create": "plain"});
    member.ok(doc! {"create": "plain"});
    member.ok(doc! {"create": "round", "capped": true, "size": 4096, "max": 3});
    assert_eq!(member.code(doc! {"create": "plain", "capped": true, "size": 4096}), 48);
    let listed = member.drain(member.ok(doc! {"listCollections": 1}), "$cmd.listCollections");
    let names: Vec<_> = listed.iter().map(|found| found.get_str("name").unwrap()).collect();
    assert_eq!(names, ["plain", "round"]);
    member.insert("round", (0..5).map(|n| doc! {"_id": n}).collect());
    assert_eq!(member.ids(doc! {"find": "round"}), [2, 3, 4]);
    member.validate("round");

    let rename = doc! {"renameCollection": "db.round", "to": "db.plain", "$db": "admin"};
    assert_eq!(member.code(rename.clone()), 48);
    let mut forced = rename;
    forced.insert("dropTarget", true);
    member.ok(forced);
    assert_eq!(member.ids(doc! {"find": "plain"}), [2, 3, 4]);
    member.ok(doc! {"dropDatabase": 1});
    assert_eq!(member.ids(doc! {"find": "plain"}), [] as [i32; 0]);
    while member.node.maintain(now()).unwrap() {}
}

/// To read an index whole takes long; until a tenth of the collection has changed its size is estimated.
#[test]
fn the_size_of_an_index_is_measured_once_and_estimated_until_much_has_changed() {
    let member = Member::new();
    let index = doc! {"key": {"s": 1}, "name": "s"};
    member.ok(doc! {"createIndexes": "c", "indexes": [index]});
    member.insert("c", (0..200).map(|n| doc! {"_id": n, "s": "short"}).collect());
    let sizes = || {
        let stats = member.ok(doc! {"collStats": "c"});
        let of_index = stats.get_document("indexSizes").unwrap().get_i64("s").unwrap();
        let database = member.ok(doc! {"dbStats": 1}).get_f64("indexSize").unwrap();
        assert_eq!(database as i64, stats.get_i64("totalIndexSize").unwrap());
        of_index
    };
    let first = sizes();
    assert!(first > 200 * 5, "{first}");
    // Longer keys are not noticed before the index is measured again; documents are.
    let update = doc! {"q": {"_id": 0}, "u": {"$set": {"s": "much longer than before"}}};
    member.ok(doc! {"update": "c", "updates": [update.clone()]});
    assert_eq!(sizes(), first);
    member.ok(doc! {"delete": "c", "deletes": [{"q": {"_id": {"$lt": 2}}, "limit": 0}]});
    assert_eq!(sizes(), first * 198 / 200);
    member
        .insert("c", (300..340).map(|n| doc! {"_id": n, "s": "much longer than before"}).collect());
    assert!(sizes() > first * 238 / 200, "it is measured again");
}

/// As MongoDB: on some disks both would be one directory.
#[test]
fn a_database_that_differs_from_another_only_by_case_is_refused() {
    let member = Member::new();
    member.insert("c", vec![doc! {"_id": 1}]);
    for command in [
        doc! {"insert": "c", "documents": [{"_id": 1}], "$db": "DB"},
        doc! {"create": "c", "$db": "Db"},
        doc! {"create": "c", "$db": "LOCAL"},
        doc! {"renameCollection": "db.c", "to": "dB.c", "$db": "admin"},
        doc! {"aggregate": "c", "pipeline": [{"$out": {"db": "DB", "coll": "c"}}], "cursor": {}, "$db": "db"},
        doc! {"update": "c", "updates": [{"q": {}, "u": {"a": 1}, "upsert": true}], "$db": "DB"},
        doc! {"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a"}], "$db": "DB"},
    ] {
        let reply = member.run(command.clone());
        let code = reply.get_i32("code").ok().or_else(|| {
            let errors = reply.get_array("writeErrors").ok()?;
            errors.first()?.as_document()?.get_i32("code").ok()
        });
        assert_eq!(code, Some(13297), "{command}: {reply}");
    }
    member.ok(doc! {"find": "c", "$db": "DB"});
    member.ok(doc! {"dropDatabase": 1, "$db": "db"});
    member.ok(doc! {"create": "c", "$db": "DB"});
}

/// What a pipeline yields can be stored: the refusal comes before the document is written out.
#[test]
fn a_result_that_is_too_large_is_refused() {
    let member = Member::new();
    member.insert("c", vec![doc! {"_id": 1, "text": "x".repeat(1_000_000)}]);
    let texts: Vec<_> = (0..20).map(|_| "$text").collect();
    let pipeline = bson::bson!([{ "$project": { "v": texts } }]);
    let aggregate = doc! {"aggregate": "c", "pipeline": pipeline, "cursor": {}};
    assert_eq!(member.code(aggregate), 10334);
}

#[test]
fn a_crash_leaves_documents_and_indexes_in_agreement() {
    let member = Member::new();
    let index = doc! {"key": {"a": 1}, "name": "a"};
    member.ok(doc! {"createIndexes": "c", "indexes": [index]});
    member.insert("c", (0..5).map(|n| doc! {"_id": n, "a": n}).collect());
    let kept = member.store.last_committed();
    member.node.sync_through(kept).unwrap();
    member.ok(doc! {"delete": "c", "deletes": [{"q": {}, "limit": 0}]});
    let committed = member.store.last_committed().as_u64();
    assert!(committed > kept.as_u64(), "the deletes are one step or more");
    let restarted = Member::over(member.store.crash(kept));
    assert_eq!(restarted.ids(doc! {"find": "c", "filter": {"a": {"$gte": 0}}}), [0, 1, 2, 3, 4]);
    restarted.validate("c");
}

#[test]
fn cursors_can_be_killed_and_outlive_what_happens_meanwhile() {
    let member = Member::new();
    member.insert("c", (0..10).map(|n| doc! {"_id": n}).collect());
    let first = member.ok(doc! {"find": "c", "batchSize": 2});
    let id = first.get_document("cursor").unwrap().get_i64("id").unwrap();
    member.ok(doc! {"delete": "c", "deletes": [{"q": {}, "limit": 0}]});
    assert_eq!(member.drain(first, "c").len(), 10, "a cursor reads the moment it was opened");
    assert_eq!(member.code(doc! {"getMore": id, "collection": "c"}), 43);

    member.insert("c", (0..10).map(|n| doc! {"_id": n}).collect());
    let open = member.ok(doc! {"find": "c", "batchSize": 0});
    let id = open.get_document("cursor").unwrap().get_i64("id").unwrap();
    let reply = member.ok(doc! {"killCursors": "c", "cursors": [id, 1_i64]});
    assert_eq!(reply.get_array("cursorsKilled").unwrap(), &[Bson::from(id)]);
    assert_eq!(reply.get_array("cursorsNotFound").unwrap(), &[Bson::from(1_i64)]);
}

#[test]
fn updates_change_replace_and_insert() {
    let member = Member::new();
    member.insert("c", (0..6).map(|n| doc! {"_id": n, "a": n % 2, "list": [1, n, 3]}).collect());
    let update = |statement: Document| {
        let reply = member.ok(doc! {"update": "c", "updates": [statement]});
        let number = |name: &str| reply.get_i32(name).unwrap();
        (number("n"), number("nModified"), reply.clone())
    };
    let (n, modified, _) = update(doc! {"q": {"a": 1}, "u": {"$inc": {"b": 1}}, "multi": true});
    assert_eq!((n, modified), (3, 3));
    let (n, modified, _) = update(doc! {"q": {"a": 1}, "u": {"$set": {"a": 1}}});
    assert_eq!((n, modified), (1, 0), "nothing changes");
    let (n, _, reply) = update(doc! {"q": {"_id": 9}, "u": {"$set": {"x": 1}}, "upsert": true});
    assert_eq!((n, reply.get_array("upserted").unwrap().len()), (1, 1));
    update(doc! {"q": {"list": 5}, "u": {"$set": {"list.$": "five"}}});
    update(doc! {"q": {"_id": 0}, "u": {"whole": true}});
    update(doc! {"q": {"_id": 1}, "u": [{"$set": {"sum": {"$add": ["$a", 41]}}}]});
    let found = member.find(doc! {"find": "c", "filter": {"_id": {"$in": [0, 1, 5, 9]}}});
    assert_eq!(found[0], doc! {"_id": 0, "whole": true});
    assert_eq!(found[1].get_i32("sum").unwrap(), 42);
    assert_eq!(found[2].get_array("list").unwrap()[1], Bson::from("five"));
    assert_eq!(found[3], doc! {"_id": 9, "x": 1});
    let refused = member.ok(doc! {"update": "c", "updates": [
        {"q": {}, "u": {"whole": 1}, "multi": true},
    ]});
    let errors = refused.get_array("writeErrors").unwrap();
    assert_eq!(errors[0].as_document().unwrap().get_i32("code").unwrap(), 9);
    member.validate("c");
}

#[test]
fn find_and_modify_returns_the_document_before_or_after() {
    let member = Member::new();
    member.insert("c", (0..4).map(|n| doc! {"_id": n, "a": n}).collect());
    let run = |mut command: Document| {
        let mut whole = doc! {"findAndModify": "c"};
        whole.extend(std::mem::take(&mut command));
        member.ok(whole)
    };
    let increment = doc! {"$inc": {"a": 10}};
    let reply =
        run(doc! {"query": {"a": {"$gt": 0}}, "sort": {"a": -1}, "update": increment.clone()});
    assert_eq!(reply.get_document("value").unwrap(), &doc! {"_id": 3, "a": 3});
    let reply = run(
        doc! {"query": {"_id": 3}, "update": increment, "new": true, "fields": {"a": 1, "_id": 0}},
    );
    assert_eq!(reply.get_document("value").unwrap(), &doc! {"a": 23});
    let reply = run(doc! {"query": {"_id": 1}, "remove": true});
    assert_eq!(reply.get_document("value").unwrap(), &doc! {"_id": 1, "a": 1});
    let reply = run(doc! {"query": {"_id": 7}, "update": {"b": 1}, "upsert": true, "new": true});
    assert_eq!(reply.get_document("value").unwrap(), &doc! {"_id": 7, "b": 1});
    let last = reply.get_document("lastErrorObject").unwrap();
    assert_eq!(last.get_i32("upserted").unwrap(), 7);
    let reply = run(doc! {"query": {"_id": 99}, "update": {"b": 1}});
    assert_eq!(reply.get("value"), Some(&Bson::Null));
    assert_eq!(member.code(doc! {"findAndModify": "c", "remove": true, "new": true}), 9);
    member.validate("c");
}

#[test]
fn projections_choose_fields() {
    let member = Member::new();
    member.insert("c", vec![doc! {"_id": 1, "a": {"b": 1, "c": 2}, "list": [1, 2, 3]}]);
    let project = |projection: Document| {
        member.find(doc! {"find": "c", "filter": {"list": 2}, "projection": projection}).remove(0)
    };
    assert_eq!(project(doc! {"a.b": 1}), doc! {"_id": 1, "a": {"b": 1}});
    assert_eq!(project(doc! {"a": 0, "_id": 0}), doc! {"list": [1, 2, 3]});
    assert_eq!(project(doc! {"list.$": 1, "_id": 0}), doc! {"list": [2]});
    assert_eq!(project(doc! {"_id": 0, "x": {"$add": ["$a.b", 1]}}), doc! {"x": 2});
}

#[test]
fn pipelines_read_join_and_write() {
    let member = Member::new();
    member.insert("c", (0..6).map(|n| doc! {"_id": n, "kind": n % 2, "n": n}).collect());
    member.insert("kinds", vec![doc! {"_id": 0, "name": "even"}, doc! {"_id": 1, "name": "odd"}]);
    let run = |stages: Vec<Document>| {
        let stages: Vec<_> = stages.into_iter().map(Bson::from).collect();
        let reply =
            member.ok(doc! {"aggregate": "c", "pipeline": stages, "cursor": {"batchSize": 1}});
        member.drain(reply, "c")
    };
    let grouped = run(vec![
        doc! {"$match": {"n": {"$gt": 0}}},
        doc! {"$group": {"_id": "$kind", "sum": {"$sum": "$n"}}},
        doc! {"$lookup": {"from": "kinds", "localField": "_id", "foreignField": "_id", "as": "k"}},
        doc! {"$project": {"sum": 1, "name": {"$first": "$k.name"}}},
        doc! {"$sort": {"_id": 1}},
    ]);
    assert_eq!(
        grouped,
        [doc! {"_id": 0, "sum": 6, "name": "even"}, doc! {"_id": 1, "sum": 9, "name": "odd"}]
    );
    assert_eq!(run(vec![doc! {"$match": {"kind": 1}}, doc! {"$count": "n"}]), [doc! {"n": 3}]);
    assert_eq!(run(vec![doc! {"$match": {"kind": 1}}, doc! {"$out": "odd"}]), []);
    assert_eq!(member.ids(doc! {"find": "odd"}), [1, 3, 5]);
    run(vec![doc! {"$set": {"seen": true}}, doc! {"$merge": "odd"}]);
    assert_eq!(member.find(doc! {"find": "odd", "filter": {"seen": true}}).len(), 6);
    member.validate("odd");
    let stats = run(vec![doc! {"$collStats": {"count": {}}}]);
    assert_eq!(stats[0].get_i64("count").unwrap(), 6);
    assert_eq!(member.code(doc! {"aggregate": "c", "pipeline": []}), 9);
}

#[test]
fn views_read_through() {
    let member = Member::new();
    member.insert("c", (0..6).map(|n| doc! {"_id": n, "kind": n % 2}).collect());
    member.ok(doc! {"create": "odd", "viewOn": "c", "pipeline": [{"$match": {"kind": 1}}]});
    assert_eq!(member.ids(doc! {"find": "odd", "filter": {"_id": {"$gt": 1}}}), [3, 5]);
    assert_eq!(member.ids(doc! {"find": "odd", "sort": {"_id": -1}, "limit": 1}), [5]);
    assert_eq!(member.ok(doc! {"count": "odd"}).get_i32("n").unwrap(), 3);
    let values = member.ok(doc! {"distinct": "odd", "key": "kind"});
    assert_eq!(values.get_array("values").unwrap(), &[Bson::from(1)]);
    assert_eq!(member.code(doc! {"insert": "odd", "documents": [{}]}), 166);
}

#[test]
fn a_tailable_cursor_goes_on_where_it_ended() {
    let member = Member::new();
    assert_eq!(member.ids(doc! {"find": "log", "tailable": true}), [] as [i32; 0]);
    member.ok(doc! {"create": "log", "capped": true, "size": 4096});
    member.insert("log", vec![doc! {"_id": 1}, doc! {"_id": 2}]);
    let skipping = doc! {"find": "log", "tailable": true, "skip": 1, "limit": 1};
    assert_eq!(member.ids(skipping), [2]);
    let first = member.ok(doc! {"find": "log", "tailable": true, "awaitData": true});
    let cursor = first.get_document("cursor").unwrap();
    assert_eq!(cursor.get_array("firstBatch").unwrap().len(), 2);
    let id = cursor.get_i64("id").unwrap();
    let more = doc! {"getMore": id, "collection": "log", "maxTimeMS": 5, "$db": "db"};
    let outcome = member.node.run(&context(), Command::new(more.clone()));
    let Outcome::Wait { until, at_most } = outcome else { panic!("it should wait") };
    assert_eq!((until, at_most.as_millis()), (WaitFor::Commit, 5));
    member.insert("log", vec![doc! {"_id": 3}]);
    let next = member.ok(more.clone());
    let batch = next.get_document("cursor").unwrap().get_array("nextBatch").unwrap();
    assert_eq!(batch, &[Bson::from(doc! {"_id": 3})]);
    member.ok(doc! {"drop": "log"});
    assert_eq!(member.code(more), 175);
    member.ok(doc! {"create": "plain"});
    assert_eq!(member.code(doc! {"find": "plain", "tailable": true}), 2);
}

#[test]
fn find_can_be_bounded_by_keys_and_show_them() {
    let member = Member::new();
    member.insert("c", (0..10).map(|n| doc! {"_id": n, "a": n % 5, "b": n}).collect());
    let index = doc! {"key": {"a": 1, "b": -1}, "name": "ab"};
    member.ok(doc! {"createIndexes": "c", "indexes": [index]});
    let bounded =
        doc! {"find": "c", "hint": "ab", "min": {"a": 3, "b": 5}, "max": {"a": 4, "b": 4}};
    assert_eq!(member.ids(bounded.clone()), [3, 9]);
    let mut keys = bounded.clone();
    keys.extend(doc! {"returnKey": true, "showRecordId": true});
    let first = member.find(keys).remove(0);
    assert_eq!(first, doc! { "a": 3, "b": 3 });
    let mut unhinted = bounded;
    unhinted.remove("hint");
    assert_eq!(member.code(unhinted), 51173);
    assert_eq!(member.code(doc! {"find": "c", "hint": "ab", "min": {"b": 1}}), 51174);
    let dollars = member.ok(doc! {"insert": "c", "documents": [{"_id": {"$a": 1}}]});
    let errors = dollars.get_array("writeErrors").unwrap();
    assert_eq!(errors[0].as_document().unwrap().get_i32("code").unwrap(), 52);
}

#[test]
fn generic_arguments_are_checked_before_anything_is_done() {
    let member = Member::new();
    let concern = |level: &str| doc! {"find": "c", "readConcern": {"level": level}};
    member.ok(concern("majority"));
    assert_eq!(member.code(concern("snapshot")), 123);
    assert_eq!(member.code(concern("eventual")), 9);
    let strict = |mut command: Document| {
        command.extend(doc! {"apiVersion": "1", "apiStrict": true});
        command
    };
    member.ok(strict(doc! {"find": "c"}));
    assert_eq!(member.code(strict(doc! {"distinct": "c", "key": "a"})), 323);
    let own = doc! {"aggregate": 1, "pipeline": [{"$currentOp": {}}], "cursor": {}};
    assert_eq!(member.code(strict(own)), 323);
    assert_eq!(member.code(doc! {"ping": 1, "apiStrict": true}), 322);
    assert_eq!(member.code(doc! {"ping": 1, "maxTimeMS": -1}), 2);
}

/// The first documents are skipped, not what goes wrong with them.
#[test]
fn an_error_is_not_skipped() {
    let member = Member::new();
    member.insert("c", vec![doc! {"_id": 1}, doc! {"_id": 2, "a": [1]}]);
    let filter = doc! {"$expr": {"$size": "$a"}};
    assert_eq!(member.code(doc! {"find": "c", "filter": filter.clone(), "skip": 1}), 17124);
    let sorted = doc! {"find": "c", "filter": filter, "skip": 1, "sort": {"_id": 1}};
    assert_eq!(member.code(sorted), 17124);
}

#[test]
fn a_tailable_cursor_that_fell_behind_is_told() {
    let member = Member::new();
    member.ok(doc! {"create": "log", "capped": true, "size": 4096, "max": 2});
    member.insert("log", vec![doc! {"_id": 1}]);
    let first = member.ok(doc! {"find": "log", "tailable": true});
    let id = first.get_document("cursor").unwrap().get_i64("id").unwrap();
    member.insert("log", (2..6).map(|n| doc! {"_id": n}).collect());
    assert_eq!(member.code(doc! {"getMore": id, "collection": "log"}), 136);
    assert_eq!(member.code(doc! {"getMore": id, "collection": "log"}), 43);
    let shown = member.find(doc! {"find": "log", "showRecordId": true});
    assert_eq!(shown[0], doc! {"_id": 4, "$recordId": 4_i64});
    let sorted = doc! {"q": {}, "u": {"$set": {"a": 1}}, "sort": {"_id": 1}};
    assert_eq!(member.code(doc! {"update": "log", "updates": [sorted]}), 40415);
}

fn small_value() -> impl Strategy<Value = Bson> {
    let leaf = prop_oneof![
        (-2_i32..4).prop_map(Bson::from),
        Just(Bson::Null),
        Just(Bson::from("x")),
        Just(Bson::from(1.5)),
    ];
    leaf.prop_recursive(2, 6, 3, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..3).prop_map(Bson::Array),
            inner.prop_map(|inner| Bson::from(doc! {"b": inner})),
        ]
    })
}

fn small_query() -> impl Strategy<Value = Document> {
    let field = prop_oneof![Just("a"), Just("a.b"), Just("c")];
    let condition = prop_oneof![
        small_value(),
        (
            prop_oneof![Just("$gt"), Just("$gte"), Just("$lt"), Just("$lte"), Just("$ne")],
            small_value()
        )
            .prop_map(|(operator, value)| Bson::from(doc! {operator: value})),
        proptest::collection::vec(small_value(), 0..3)
            .prop_map(|values| Bson::from(doc! {"$in": values})),
        any::<bool>().prop_map(|truth| Bson::from(doc! {"$exists": truth})),
        (small_value(), small_value())
            .prop_map(|(low, high)| Bson::from(doc! {"$gte": low, "$lt": high})),
    ];
    proptest::collection::vec((field, condition), 1..3).prop_map(|parts| {
        let parts = parts.into_iter().map(|(field, condition)| doc! {field: condition});
        doc! {"$and": parts.map(Bson::from).collect::<Vec<_>>()}
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 200, failure_persistence: None, ..ProptestConfig::default()
    })]

    /// Bounds are a superset and the filter stays, so an index may never change a result.
    #[test]
    fn indexes_find_what_a_scan_finds(
        documents in proptest::collection::vec((small_value(), small_value()), 1..12),
        queries in proptest::collection::vec(small_query(), 1..6),
        keys in proptest::sample::subsequence(vec![
            doc! {"a": 1}, doc! {"a.b": -1}, doc! {"c": 1, "a": -1}, doc! {"a": 1, "c": 1},
        ], 1..3),
        sparse in any::<bool>(),
    ) {
        let member = Member::new();
        for (number, key) in keys.iter().enumerate() {
            member.ok(doc! {"createIndexes": "c", "indexes": [
                {"key": key, "name": number.to_string(), "sparse": sparse}]});
        }
        for (id, (a, c)) in documents.into_iter().enumerate() {
            let document = doc! {"_id": id as i32, "a": a, "c": c};
            // Parallel arrays are refused, which is fine.
            member.ok(doc! {"insert": "c", "documents": [document]});
        }
        for query in queries {
            let natural = doc! {"find": "c", "filter": query.clone(), "hint": {"$natural": 1}};
            let scanned = member.ids(natural);
            let mut found = member.ids(doc! {"find": "c", "filter": query.clone()});
            found.sort();
            prop_assert_eq!(&found, &scanned, "{}", query);
            for sort in [doc! {"a": 1}, doc! {"c": -1}] {
                let by_index =
                    member.ids(doc! {"find": "c", "filter": query.clone(), "sort": sort});
                let mut sorted = by_index.clone();
                sorted.sort();
                prop_assert_eq!(sorted, scanned.clone());
            }
        }
        member.validate("c");
    }
}

#[test]
fn a_certificate_logs_in_along_with_hello_without_naming_its_database() {
    let member = Member::new();
    let certificate = Certificate { subject: "CN=other".to_owned(), is_member: true };
    let client = Client { certificate: Some(certificate), ..Client::default() };
    let context = Context { client: client.into(), ..context() };
    let guess = doc! {"authenticate": 1, "mechanism": "MONGODB-X509"};
    let hello = doc! {"hello": 1, "speculativeAuthenticate": guess, "$db": "admin"};
    let Outcome::Reply(reply) = member.node.run(&context, Command::new(hello)) else { panic!() };
    let answer = reply.body.get_document("speculativeAuthenticate").unwrap();
    assert_eq!(answer.get_str("user").unwrap(), "CN=other");
}

#[test]
fn documents_in_a_command_and_beside_it_are_the_same() {
    let member = Member::new();
    let raw = |document: Document| bson::RawDocumentBuf::try_from(&document).unwrap();
    let run = |body: Document, sequences: Vec<(String, Vec<bson::RawDocumentBuf>)>| {
        let command = Command::from_raw(&raw(body), sequences).unwrap();
        match member.node.run(&context(), command) {
            Outcome::Reply(reply) => Document::try_from(&*reply.body).unwrap(),
            other => panic!("the command did not answer: {other:?}"),
        }
    };
    let beside = |name: &str, documents: &[Document]| {
        vec![(name.to_owned(), documents.iter().cloned().map(raw).collect())]
    };
    let documents = [doc! {"_id": 1}, doc! {"_id": 2}];
    let first = run(doc! {"insert": "a", "documents": &documents[..], "$db": "db"}, Vec::new());
    let second = run(doc! {"insert": "b", "$db": "db"}, beside("documents", &documents));
    assert_eq!((first.get_i32("n").unwrap(), &first), (2, &second));
    let updates = [doc! {"q": {}, "u": {"$set": {"x": 1}}, "multi": true}];
    let first = run(doc! {"update": "a", "updates": &updates[..], "$db": "db"}, Vec::new());
    let second = run(doc! {"update": "b", "$db": "db"}, beside("updates", &updates));
    assert_eq!((first.get_i32("nModified").unwrap(), &first), (2, &second));
    let deletes = [doc! {"q": {"_id": 1}, "limit": 1}];
    let first = run(doc! {"delete": "a", "deletes": &deletes[..], "$db": "db"}, Vec::new());
    let second = run(doc! {"delete": "b", "$db": "db"}, beside("deletes", &deletes));
    assert_eq!((first.get_i32("n").unwrap(), &first), (1, &second));
    // What is no document is refused and named, as ever.
    let refused = run(doc! {"insert": "a", "documents": [1], "$db": "db"}, Vec::new());
    assert_eq!(refused.get_i32("code").unwrap(), 14, "{refused}");
}

#[test]
fn empty_timestamps_are_filled_in_on_insert() {
    let member = Member::new();
    let empty = bson::Timestamp { time: 0, increment: 0 };
    member.insert("c", vec![doc! {"_id": empty, "a": empty, "b": {"c": empty}, "d": empty}]);
    let found = member.find(doc! {"find": "c"}).remove(0);
    assert_eq!(found.get_timestamp("_id").unwrap(), empty);
    assert_eq!(found.get_document("b").unwrap().get_timestamp("c").unwrap(), empty);
    let (a, d) = (found.get_timestamp("a").unwrap(), found.get_timestamp("d").unwrap());
    assert!(a > empty && d > a);
}

/// So they are in the documents that a pipeline inserts or replaces, as MongoDB's `$out` and `$merge` write them.
#[test]
fn empty_timestamps_are_filled_in_by_pipelines_that_insert() {
    let member = Member::new();
    let empty = bson::Timestamp { time: 0, increment: 0 };
    member.insert("c", vec![doc! {"_id": 1}]);
    let write = |stage: Document| {
        let stages = vec![doc! {"$set": {"a": empty}}, stage];
        member.ok(doc! {"aggregate": "c", "pipeline": stages, "cursor": {}});
        member.find(doc! {"find": "out"})[0].get_timestamp("a").unwrap()
    };
    let first = write(doc! {"$out": "out"});
    assert!(first > empty);
    let second = write(doc! {"$merge": {"into": "out", "whenMatched": "replace"}});
    assert!(second > first);
    member.ok(doc! {"drop": "out"});
    assert!(write(doc! {"$merge": {"into": "out", "whenMatched": "fail"}}) > second);
    // An update that sets a field leaves it as it is.
    assert_eq!(write(doc! {"$merge": {"into": "out"}}), empty);
}

/// The limit is one of the different values: the same one may come as often as it likes.
#[test]
fn distinct_counts_a_value_once_against_its_limit() {
    let member = Member::new();
    let text = "x".repeat(100_000);
    for place in 0..20 {
        member.insert("c", (0..10).map(|n| doc! {"_id": 10 * place + n, "t": &text}).collect());
    }
    let reply = member.ok(doc! {"distinct": "c", "key": "t"});
    assert_eq!(reply.get_array("values").unwrap().len(), 1);
}

/// A tool that copies documents asks for them to be stored as they are.
#[test]
fn empty_timestamps_are_kept_where_the_command_asks_for_it() {
    let member = Member::new();
    let empty = bson::Timestamp { time: 0, increment: 0 };
    let document = doc! {"_id": 1, "a": empty};
    let mut commands = [
        doc! {"insert": "c", "documents": [document.clone()]},
        doc! {"update": "c", "updates": [{"q": {"_id": 1}, "u": {"a": empty}}]},
        doc! {"findAndModify": "c", "query": {"_id": 1}, "update": {"a": empty}},
        doc! {"update": "c", "updates": [{"q": {"_id": 2}, "u": {"a": empty}, "upsert": true}]},
    ];
    for command in &mut commands {
        command.insert("bypassEmptyTsReplacement", true);
        member.ok(command.clone());
        for found in member.find(doc! {"find": "c"}) {
            assert_eq!(found.get_timestamp("a").unwrap(), empty, "{command}");
        }
    }
    member.ok(doc! {"findAndModify": "c", "query": {"_id": 1}, "update": {"a": empty}});
    assert!(member.find(doc! {"find": "c"})[0].get_timestamp("a").unwrap() > empty);
}

#[test]
fn a_replacement_by_the_same_document_modifies_nothing() {
    let member = Member::new();
    member.insert("c", vec![doc! {"_id": 1, "a": 1}]);
    let update = doc! {"q": {"_id": 1}, "u": {"a": 1}};
    let reply = member.ok(doc! {"update": "c", "updates": [update]});
    assert_eq!((reply.get_i32("n").unwrap(), reply.get_i32("nModified").unwrap()), (1, 0));
}

#[test]
fn an_aggregation_that_outgrows_its_memory_is_refused_and_gives_it_back() {
    let member = Member::new();
    member.insert("c", vec![doc! {"_id": 1}]);
    let half = doc! {"$range": [0, 500_000]};
    let expression: Vec<Document> = (0..4).map(|_| half.clone()).collect();
    let stage = doc! {"$project": {"v": expression}};
    let aggregate = doc! {"aggregate": "c", "pipeline": [stage.clone()], "cursor": {}};
    assert_eq!(member.code(aggregate), 292);
    let find = doc! {"find": "c", "projection": stage.get_document("$project").unwrap().clone()};
    assert_eq!(member.code(find), 292);
    let update = doc! {"q": {}, "u": [{"$set": stage.get_document("$project").unwrap().clone()}]};
    let reply = member.ok(doc! {"update": "c", "updates": [update]});
    let error = reply.get_array("writeErrors").unwrap()[0].as_document().unwrap().clone();
    assert_eq!(error.get_i32("code").unwrap(), 292);
    assert_eq!(member.node.memory().used(), 0);
}
