//! Change streams of one member: what is shown, from where, and how a stream ends.

#![allow(clippy::unwrap_used, reason = "a panic is the report")]

#[path = "../support/mod.rs"]
mod support;

mod images;
mod odd_entries;
mod waiting;

use std::sync::{Arc, Mutex};

use bson::{Bson, Document, doc};
use quorate_node::{Awaited, StreamWait};
use support::Member;
use support::set::{images, position, primary, transact};

/// A majority has everything.
fn commit(member: &Member) {
    support::set::commit(member, position(member));
}

/// A stream that a test reads.
struct Stream<'a> {
    member: &'a Member,
    database: String,
    collection: String,
    id: i64,
    token: Document,
    first: Vec<Document>,
}

fn aggregate(target: Bson, stages: Vec<Document>) -> Document {
    doc! { "aggregate": target, "pipeline": stages, "cursor": {} }
}

fn watch<'a>(member: &'a Member, target: impl Into<Bson>, options: Document) -> Stream<'a> {
    open(member, aggregate(target.into(), vec![doc! { "$changeStream": options }]))
}

fn open(member: &Member, command: Document) -> Stream<'_> {
    commit(member);
    let reply = member.ok(command);
    let cursor = reply.get_document("cursor").unwrap();
    let (database, collection) = cursor.get_str("ns").unwrap().split_once('.').unwrap();
    let first = cursor.get_array("firstBatch").unwrap();
    Stream {
        member,
        database: database.to_owned(),
        collection: collection.to_owned(),
        id: cursor.get_i64("id").unwrap(),
        token: cursor.get_document("postBatchResumeToken").unwrap().clone(),
        first: first.iter().map(|event| event.as_document().unwrap().clone()).collect(),
    }
}

impl Stream<'_> {
    fn get_more(&self) -> Document {
        let mut command = doc! { "getMore": self.id, "collection": &self.collection };
        command.insert("$db", &self.database);
        let context = quorate_node::Context { may_wait: false, ..support::context() };
        self.member.run_as(&context, command)
    }

    /// Everything there is now.
    fn events(&mut self) -> Vec<Document> {
        commit(self.member);
        let mut events = std::mem::take(&mut self.first);
        while self.id != 0 {
            let reply = self.get_more();
            assert_eq!(reply.get_f64("ok").unwrap(), 1.0, "{reply}");
            let cursor = reply.get_document("cursor").unwrap();
            self.id = cursor.get_i64("id").unwrap();
            self.token = cursor.get_document("postBatchResumeToken").unwrap().clone();
            let batch = cursor.get_array("nextBatch").unwrap();
            events.extend(batch.iter().map(|event| event.as_document().unwrap().clone()));
            if batch.is_empty() {
                break;
            }
        }
        events
    }

    fn types(&mut self) -> Vec<String> {
        let events = self.events();
        events.iter().map(|event| event.get_str("operationType").unwrap().to_owned()).collect()
    }
}

fn update(member: &Member, change: Document) {
    member.ok(doc! { "update": "c", "updates": [{ "q": { "_id": 1 }, "u": change }] });
}

#[test]
fn every_kind_of_change_is_told_in_order() {
    let member = primary();
    let mut stream = watch(&member, "c", doc! {});
    member.insert("other", vec![doc! { "_id": 9 }]);
    member.insert("c", vec![doc! { "_id": 1, "a": 1, "b": 1 }]);
    update(&member, doc! { "$set": { "a": 2 }, "$unset": { "b": 1 } });
    update(&member, doc! { "a": 2, "z": 1 });
    member.ok(doc! { "delete": "c", "deletes": [{ "q": { "_id": 1 }, "limit": 1 }] });
    let events = stream.events();
    let types: Vec<_> = events.iter().map(|it| it.get_str("operationType").unwrap()).collect();
    assert_eq!(types, ["insert", "update", "replace", "delete"]);
    let told = events[1].get_document("updateDescription").unwrap();
    let expected =
        doc! { "updatedFields": { "a": 2 }, "removedFields": ["b"], "truncatedArrays": [] };
    assert_eq!(told, &expected);
    assert_eq!(events[2].get_document("fullDocument").unwrap(), &doc! { "_id": 1, "a": 2, "z": 1 });
    assert!(!events[3].contains_key("fullDocument"));
    assert_eq!(events[3].get("_id").unwrap().as_document().unwrap(), &stream.token);
}

#[test]
fn only_committed_changes_are_shown() {
    let member = primary();
    let mut stream = watch(&member, "c", doc! {});
    member.insert("c", vec![doc! { "_id": 1 }]);
    let reply = stream.get_more();
    let batch = reply.get_document("cursor").unwrap().get_array("nextBatch").unwrap();
    assert!(batch.is_empty(), "{batch:?}");
    assert_eq!(stream.types(), ["insert"]);
}

#[test]
fn tokens_resume_and_move_on() {
    let member = primary();
    let mut stream = watch(&member, "c", doc! {});
    let start = stream.token.clone();
    member.insert("c", (1..4).map(|id| doc! { "_id": id }).collect());
    let events = stream.events();
    let id = |event: &Document| event.get_document("_id").unwrap().clone();
    for (place, event) in events.iter().enumerate() {
        for option in ["resumeAfter", "startAfter"] {
            let mut resumed = watch(&member, "c", doc! { option: id(event) });
            assert_eq!(resumed.events(), events[place + 1..], "{option} {place}");
        }
    }
    let mut again = watch(&member, "c", doc! { "resumeAfter": start });
    assert_eq!(again.events(), events);
    let time = events[1].get_timestamp("clusterTime").unwrap();
    let mut timed = watch(&member, "c", doc! { "startAtOperationTime": time });
    assert_eq!(timed.events(), events[1..]);
    // Nothing matches any more, and yet the token moves on.
    let before = stream.token.clone();
    member.insert("other", vec![doc! { "_id": 1 }]);
    assert!(stream.events().is_empty());
    let data = |token: &Document| token.get_str("_data").unwrap().to_owned();
    assert!(data(&stream.token) > data(&before));
    let elsewhere = doc! { "$changeStream": { "resumeAfter": id(&events[0]) } };
    assert_eq!(member.code(aggregate("other".into(), vec![elsewhere])), 280);
}

#[test]
fn the_end_of_a_collection_ends_its_stream_and_start_after_goes_on() {
    let member = primary();
    member.insert("c", vec![doc! { "_id": 1 }]);
    let mut stream = watch(&member, "c", doc! {});
    let mut of_database = watch(&member, 1, doc! {});
    member.ok(doc! { "drop": "c" });
    let events = stream.events();
    let types: Vec<_> = events.iter().map(|it| it.get_str("operationType").unwrap()).collect();
    assert_eq!(types, ["drop", "invalidate"]);
    assert_eq!(stream.id, 0);
    assert_eq!(of_database.types(), ["drop"]);
    let token = events[1].get_document("_id").unwrap().clone();
    let refused =
        aggregate("c".into(), vec![doc! { "$changeStream": { "resumeAfter": token.clone() } }]);
    assert_eq!(member.code(refused), 260);
    let quiet = watch(&member, "c", doc! { "startAfter": token.clone() });
    assert_eq!(quiet.token, token, "the client does not meet the invalidate again");
    member.insert("c", vec![doc! { "_id": 2 }]);
    let mut after = watch(&member, "c", doc! { "startAfter": token });
    assert_eq!(after.types(), ["insert"]);
    member.ok(doc! { "dropDatabase": 1 });
    assert_eq!(of_database.types().split_off(1).last().unwrap(), "invalidate");
}

#[test]
fn a_deployment_is_watched_from_admin() {
    let member = primary();
    let whole = doc! { "$changeStream": { "allChangesForCluster": true } };
    let mut command = aggregate(1.into(), vec![whole.clone()]);
    command.insert("$db", "admin");
    let mut stream = open(&member, command);
    member.insert("c", vec![doc! { "_id": 1 }]);
    member.ok(doc! { "insert": "x", "documents": [{ "_id": 1 }], "$db": "another" });
    member.ok(doc! { "insert": "x", "documents": [{ "_id": 1 }], "$db": "admin" });
    member.ok(doc! { "dropDatabase": 1 });
    assert_eq!(stream.types(), ["insert", "insert", "drop", "dropDatabase"]);
    assert_eq!(member.code(aggregate(1.into(), vec![whole])), 72);
}

#[test]
fn pipelines_filter_and_shape_events_and_keep_the_token() {
    let member = primary();
    let stages = |more: Vec<Document>| {
        let mut stages = vec![doc! { "$changeStream": {} }];
        stages.extend(more);
        aggregate("c".into(), stages)
    };
    let filter = doc! { "$match": { "fullDocument.a": { "$gt": 1 } } };
    let shape = doc! { "$project": { "a": "$fullDocument.a" } };
    let mut stream = open(&member, stages(vec![filter, shape]));
    let mut broken = open(&member, stages(vec![doc! { "$project": { "_id": 0 } }]));
    member.insert("c", (1..4).map(|a| doc! { "_id": a, "a": a }).collect());
    let found = stream.events();
    assert_eq!(found.iter().map(|it| it.get_i32("a").unwrap()).collect::<Vec<_>>(), [2, 3]);
    commit(&member);
    let reply = broken.get_more();
    assert_eq!(reply.get_i32("code").unwrap(), 280, "{reply}");
    let labels = reply.get_array("errorLabels").unwrap();
    assert_eq!(labels, &[Bson::from("NonResumableChangeStreamError")]);
    broken.id = 0;
    assert_eq!(member.code(stages(vec![doc! { "$unsupported": {} }])), 40324);
    assert_eq!(member.code(stages(vec![doc! { "$group": { "_id": 1 } }])), 20);
    assert_eq!(member.code(stages(vec![doc! { "$changeStream": {} }])), 40602);
}

#[test]
fn the_stage_comes_first_in_the_commands_own_pipeline_or_not_at_all() {
    let member = primary();
    let stream = || doc! { "$changeStream": {} };
    let lookup = doc! { "from": "d", "as": "d", "pipeline": [stream()] };
    for stages in [
        vec![doc! { "$match": {} }, stream()],
        vec![doc! { "$facet": { "a": [stream()] } }],
        vec![doc! { "$lookup": lookup }],
        vec![doc! { "$unionWith": { "coll": "d", "pipeline": [stream()] } }],
    ] {
        assert_eq!(member.code(aggregate("c".into(), stages.clone())), 40602, "{stages:?}");
    }
    assert_eq!(member.code(doc! { "create": "v", "viewOn": "c", "pipeline": [stream()] }), 40602);
    let unknown = doc! { "create": "v", "viewOn": "c", "pipeline": [{ "$unknown": 1 }] };
    assert_eq!(member.code(unknown), 40324);
    member.ok(doc! { "create": "v", "viewOn": "c", "pipeline": [{ "$match": {} }] });
    assert_eq!(member.code(doc! { "collMod": "v", "viewOn": "c", "pipeline": [stream()] }), 40602);
}

#[test]
fn a_stream_is_explained_without_being_opened() {
    let member = primary();
    let stages = || vec![doc! { "$changeStream": {} }, doc! { "$match": { "a": 1 } }];
    for target in [Bson::from("c"), Bson::from(1)] {
        let explained = member.ok(doc! { "explain": aggregate(target, stages()) });
        let listed = explained.get_array("stages").unwrap();
        assert_eq!(listed, &stages().into_iter().map(Bson::from).collect::<Vec<_>>());
    }
    let mut flag = aggregate("c".into(), stages());
    flag.insert("explain", true);
    assert_eq!(member.ok(flag).get_array("stages").unwrap().len(), 2);
    let wrong = aggregate("c".into(), vec![doc! { "$changeStream": { "unknown": 1 } }]);
    assert_eq!(member.code(doc! { "explain": wrong }), 40415);
    let status = member.ok(doc! { "serverStatus": 1, "$db": "admin" });
    let streams = status.get_document("changeStreams").unwrap();
    assert_eq!(streams.get_i64("open").ok(), Some(0), "{streams}");
}

#[test]
fn options_are_checked() {
    let member = primary();
    commit(&member);
    let code = |options: Document| {
        member.code(aggregate("c".into(), vec![doc! { "$changeStream": options }]))
    };
    assert_eq!(code(doc! { "fullDocument": "never" }), 2);
    assert_eq!(code(doc! { "unknown": 1 }), 40415);
    assert_eq!(code(doc! { "resumeAfter": { "_data": "nonsense" } }), 260);
    let time = bson::Timestamp { time: 1, increment: 1 };
    let mark = "8263515EAC000000022B0429296E1404";
    let two = doc! { "startAtOperationTime": time, "resumeAfter": { "_data": mark } };
    assert_eq!(code(two), 40674);
    assert_eq!(code(doc! { "startAtOperationTime": time }), 286);
    let mut local = aggregate("c".into(), vec![doc! { "$changeStream": {} }]);
    local.insert("$db", "config");
    assert_eq!(member.code(local), 73);
    let mut local = aggregate("c".into(), vec![doc! { "$changeStream": {} }]);
    local.insert("readConcern", doc! { "level": "local" });
    assert_eq!(member.code(local), 72);
    let alone = Member::new();
    assert_eq!(alone.code(aggregate("c".into(), vec![doc! { "$changeStream": {} }])), 40573);
}

#[test]
fn documents_are_looked_up_and_kept_as_they_were() {
    let member = primary();
    member.ok(doc! { "create": "c", "changeStreamPreAndPostImages": { "enabled": true } });
    member.insert("c", vec![doc! { "_id": 1, "a": 1 }]);
    let looked = doc! { "fullDocument": "updateLookup" };
    let mut lookup = watch(&member, "c", looked);
    let both = doc! { "fullDocument": "required", "fullDocumentBeforeChange": "required" };
    let mut kept = watch(&member, "c", both.clone());
    update(&member, doc! { "$set": { "a": 2 } });
    update(&member, doc! { "$set": { "a": 3 } });
    let full = |event: &Document| event.get_document("fullDocument").unwrap().clone();
    let found = lookup.events();
    assert_eq!(full(&found[0]), doc! { "_id": 1, "a": 3 }, "as it is now");
    let found = kept.events();
    assert_eq!(full(&found[0]), doc! { "_id": 1, "a": 2 });
    let before = found[1].get_document("fullDocumentBeforeChange").unwrap();
    assert_eq!(before, &doc! { "_id": 1, "a": 2 });
    member.ok(doc! { "collMod": "c", "changeStreamPreAndPostImages": { "enabled": false } });
    update(&member, doc! { "$set": { "a": 4 } });
    commit(&member);
    let reply = kept.get_more();
    assert_eq!(reply.get_i32("code").unwrap(), 47, "{reply}");
    let available = doc! { "fullDocumentBeforeChange": "whenAvailable" };
    let mut available = watch(&member, "c", available);
    update(&member, doc! { "$set": { "a": 5 } });
    let found = available.events();
    assert_eq!(found[0].get("fullDocumentBeforeChange"), Some(&Bson::Null));
}

#[test]
fn a_fail_point_labels_errors_as_a_true_one_would() {
    let member = primary();
    let stream = watch(&member, "c", doc! {});
    for (code, labelled) in [(11600, true), (280, false)] {
        let data = doc! { "errorCode": code, "closeConnection": false };
        let configure = doc! {
            "configureFailPoint": "failGetMoreAfterCursorCheckout", "mode": { "times": 1 },
            "data": data, "$db": "admin",
        };
        member.ok(configure);
        let stream = watch(&member, "c", doc! {});
        let reply = stream.get_more();
        assert_eq!(reply.get_i32("code").unwrap(), code);
        let labels = reply.get_array("errorLabels").cloned().unwrap_or_default();
        let expected = Bson::from("ResumableChangeStreamError");
        assert_eq!(labels.contains(&expected), labelled, "{reply}");
    }
    assert_eq!(stream.get_more().get_f64("ok").unwrap(), 1.0);
}

#[test]
fn the_expiry_of_images_is_a_parameter_of_the_deployment() {
    let member = primary();
    let admin = |mut command: Document| {
        command.insert("$db", "admin");
        command
    };
    let value =
        doc! { "changeStreamOptions": { "preAndPostImages": { "expireAfterSeconds": 100 } } };
    member.ok(admin(doc! { "setClusterParameter": value }));
    let reply = member.ok(admin(doc! { "getClusterParameter": "changeStreamOptions" }));
    let found = reply.get_array("clusterParameters").unwrap()[0].as_document().unwrap().clone();
    let images = found.get_document("preAndPostImages").unwrap();
    assert_eq!(images.get_i64("expireAfterSeconds").unwrap(), 100);
    assert_eq!(member.code(admin(doc! { "getClusterParameter": "other" })), 72);
}

#[test]
fn watching_takes_the_right_to_read_what_is_watched() {
    let member = Member::guarded();
    let narrow = member.log_in("narrow", &[("read", "admin"), ("read", "d")]);
    let wide = member.log_in("wide", &[("readAnyDatabase", "admin")]);
    let code =
        |context: &quorate_node::Context, database: &str, target: Bson, options: Document| {
            let mut command = aggregate(target, vec![doc! { "$changeStream": options }]);
            command.insert("$db", database);
            member.run_as(context, command).get_i32("code").unwrap()
        };
    let all = || doc! { "allChangesForCluster": true };
    // 40573 is the answer of a member without a set, after rights were checked.
    assert_eq!(code(&narrow, "admin", 1.into(), all()), 13);
    assert_eq!(code(&wide, "admin", 1.into(), all()), 40573);
    assert_eq!(code(&narrow, "d", 1.into(), doc! {}), 40573);
    assert_eq!(code(&narrow, "d", "c".into(), doc! {}), 40573);
    assert_eq!(code(&narrow, "e", "c".into(), doc! {}), 13);
    assert_eq!(code(&narrow, "e", 1.into(), doc! {}), 13);
}

#[test]
fn a_stream_that_is_behind_answers_at_once_and_moves_on() {
    let member = primary();
    let stream = watch(&member, "c", doc! {});
    for _ in 0..3 {
        member.insert("other", (0..1000).map(|n| doc! { "n": n }).collect());
    }
    member.insert("c", vec![doc! { "_id": 1 }]);
    commit(&member);
    // May wait, and does not: there is more to look at.
    let command = doc! { "getMore": stream.id, "collection": "c" };
    let first = member.run(command.clone());
    let cursor = first.get_document("cursor").unwrap();
    assert!(cursor.get_array("nextBatch").unwrap().is_empty());
    let token = cursor.get_document("postBatchResumeToken").unwrap().get_str("_data").unwrap();
    assert!(token > stream.token.get_str("_data").unwrap());
    let second = member.run(command);
    let batch = second.get_document("cursor").unwrap().get_array("nextBatch").unwrap();
    assert_eq!(batch.len(), 1);
}

#[test]
fn the_first_token_of_a_stream_stands_after_what_was_there_before() {
    let member = primary();
    member.insert("c", vec![doc! { "_id": 1 }]);
    let stream = watch(&member, "c", doc! {});
    let mut resumed = watch(&member, "c", doc! { "resumeAfter": stream.token.clone() });
    assert_eq!(resumed.types(), [] as [&str; 0]);
    member.insert("c", vec![doc! { "_id": 2 }]);
    assert_eq!(resumed.types(), ["insert"]);
    let mut again = watch(&member, "c", doc! { "resumeAfter": stream.token.clone() });
    assert_eq!(again.types(), ["insert"]);
}

#[test]
fn a_stream_goes_on_within_a_transaction_of_several_entries() {
    let member = primary();
    let mut stream = watch(&member, "c", doc! {});
    let large = || "x".repeat(6 * 1024 * 1024);
    let inserts = (1..=4).map(|id| {
        doc! { "insert": "c", "documents": [{ "_id": id, "x": large() }] }
    });
    let before = support::set::entries(&member).len();
    transact(&member, 1, inserts.collect());
    let entries = support::set::entries(&member);
    assert_eq!(entries.len() - before, 2, "two entries");
    // A majority has the first of them only.
    let first = quorate_node::entry_position(&entries[before]).unwrap();
    support::set::commit(&member, first);
    let reply = stream.get_more();
    let cursor = reply.get_document("cursor").unwrap();
    assert!(cursor.get_array("nextBatch").unwrap().is_empty());
    let mark = cursor.get_document("postBatchResumeToken").unwrap().clone();
    let id = |event: &Document| event.get_document("_id").unwrap().clone();
    let key = |event: &Document| event.get_document("documentKey").unwrap().get_i32("_id").unwrap();
    let keys = |events: &[Document]| events.iter().map(key).collect::<Vec<_>>();
    let events = stream.events();
    assert_eq!(keys(&events), [1, 2, 3, 4]);
    let data = |token: &Document| token.get_str("_data").unwrap().to_owned();
    assert!(data(&mark) < data(&id(&events[0])), "nothing of it had been shown");
    assert_eq!(keys(&watch(&member, "c", doc! { "resumeAfter": mark }).events()), [1, 2, 3, 4]);
    for (place, event) in events.iter().enumerate() {
        let mut resumed = watch(&member, "c", doc! { "resumeAfter": id(event) });
        assert_eq!(keys(&resumed.events()), keys(&events[place + 1..]), "after {place}");
    }
    let time = events[2].get_timestamp("clusterTime").unwrap();
    assert!(time > events[1].get_timestamp("clusterTime").unwrap());
    let mut timed = watch(&member, "c", doc! { "startAtOperationTime": time });
    assert_eq!(keys(&timed.events()), [1, 2, 3, 4], "the transaction is committed as a whole");
}

/// A member that follows may have a part of a transaction only; none of it is committed before its last entry.
#[test]
fn a_stream_opened_within_a_transaction_shows_all_of_it() {
    let (member, follower) = (primary(), support::set::secondary());
    member.node.split_transactions_at(1);
    member.insert("c", vec![doc! { "_id": -1 }]);
    let before = support::set::entries(&member).len();
    let insert = |id: i32| doc! { "insert": "c", "documents": [{ "_id": id }] };
    transact(&member, 1, (1..=3).map(insert).collect());
    let mut known = support::set::entries(&member);
    let rest = known.split_off(before + 2);
    assert_eq!(rest.len(), 1, "three entries");
    let null = quorate_protocol::OpTime::NULL;
    let last = follower.node.apply(null, known, support::now()).unwrap().op_time;
    let open_on_follower = |options: Document| {
        let mut command = aggregate("c".into(), vec![doc! { "$changeStream": options }]);
        command.insert("$readPreference", doc! { "mode": "nearest" });
        open(&follower, command)
    };
    let shown_time = quorate_wire::to_bson_timestamp(last.timestamp);
    let mut now = open_on_follower(doc! {});
    let mut timed = open_on_follower(doc! { "startAtOperationTime": shown_time });
    let mut resumed = open_on_follower(doc! { "resumeAfter": now.token.clone() });
    follower.node.apply(last, rest, support::now()).unwrap();
    for stream in [&mut now, &mut timed, &mut resumed] {
        let id = |event: &Document| event.get_document("documentKey").unwrap().get_i32("_id");
        let ids: Vec<_> = stream.events().iter().map(|event| id(event).unwrap()).collect();
        assert_eq!(ids, [1, 2, 3]);
    }
}

#[test]
fn the_end_of_a_database_is_told_collection_by_collection() {
    let member = primary();
    member.insert("a", vec![doc! { "_id": 1 }]);
    member.insert("b", vec![doc! { "_id": 1 }]);
    let mut one = watch(&member, "a", doc! {});
    let mut all = watch(&member, 1, doc! {});
    let follower = support::set::secondary();
    member.ok(doc! { "dropDatabase": 1 });
    assert_eq!(one.types(), ["drop", "invalidate"]);
    assert_eq!(all.types(), ["drop", "drop", "dropDatabase", "invalidate"]);
    let entries = support::set::entries(&member);
    let last = Document::try_from(&**entries.last().unwrap()).unwrap();
    assert_eq!((last.get_str("op").unwrap(), last.get_str("ns").unwrap()), ("c", "db.$cmd"));
    assert_eq!(last.get_document("o").unwrap(), &doc! { "dropDatabase": 1 });
    let common = quorate_node::entry_position(&entries[entries.len() - 2]).unwrap();
    follower.node.apply(quorate_protocol::OpTime::NULL, entries.clone(), support::now()).unwrap();
    assert_eq!(support::set::entries(&follower), entries);
    let undone = follower.node.roll_back_to(common, support::now(), &mut |_| Ok(())).unwrap();
    assert_eq!(undone.entries, 1);
}

/// The manual, "drop Event": of a collection. Views are part of the expanded events.
#[test]
fn a_dropped_view_is_an_expanded_event() {
    let member = primary();
    member.insert("c", vec![doc! { "_id": 1 }]);
    let mut plain = watch(&member, 1, doc! {});
    let mut expanded = watch(&member, 1, doc! { "showExpandedEvents": true });
    let mut named = watch(&member, "v", doc! {});
    for _ in 0..2 {
        member.ok(doc! { "create": "v", "viewOn": "c", "pipeline": [] });
        member.ok(doc! { "drop": "v" });
    }
    member.ok(doc! { "create": "v", "viewOn": "c", "pipeline": [] });
    member.ok(doc! { "dropDatabase": 1 });
    assert_eq!(plain.types(), ["drop", "dropDatabase", "invalidate"]);
    let expected = ["create", "drop", "create", "drop", "create", "drop", "drop", "dropDatabase"];
    assert_eq!(expanded.types()[..expected.len()], expected);
    assert_eq!(named.types(), ["invalidate"]);
}

#[test]
fn a_modified_collection_is_told_with_what_it_was_before() {
    let member = primary();
    member.ok(doc! { "create": "c", "validationLevel": "moderate" });
    let index = doc! { "key": { "at": 1 }, "name": "at_1", "expireAfterSeconds": 60 };
    member.ok(doc! { "createIndexes": "c", "indexes": [index] });
    let mut stream = watch(&member, "c", doc! { "showExpandedEvents": true });
    let change = doc! { "name": "at_1", "expireAfterSeconds": 90 };
    let session = bson::Binary { subtype: bson::spec::BinarySubtype::Uuid, bytes: vec![5; 16] };
    member.ok(doc! {
        "collMod": "c", "validationLevel": "strict", "index": change.clone(),
        "lsid": { "id": session }, "comment": "why",
    });
    let events = stream.events();
    assert_eq!(events[0].get_str("operationType").unwrap(), "modify");
    let expected = doc! { "validationLevel": "strict", "index": change };
    assert_eq!(events[0].get_document("operationDescription").unwrap(), &expected);
    let before = events[0].get_document("stateBeforeChange").unwrap();
    let options = before.get_document("collectionOptions").unwrap();
    assert_eq!(options.get_str("validationLevel").unwrap(), "moderate");
    assert!(matches!(options.get("uuid"), Some(Bson::Binary(_))));
    assert_eq!(before.get_document("indexOptions").unwrap(), &doc! { "expireAfterSeconds": 60 });
}

#[test]
fn a_dropped_index_is_told_with_what_it_was() {
    let member = primary();
    let index = doc! { "key": { "at": 1 }, "name": "at_1", "unique": true };
    member.ok(doc! { "createIndexes": "c", "indexes": [index] });
    let mut stream = watch(&member, "c", doc! { "showExpandedEvents": true });
    member.ok(doc! { "dropIndexes": "c", "index": "at_1" });
    let events = stream.events();
    assert_eq!(events[0].get_str("operationType").unwrap(), "dropIndexes");
    let told = events[0].get_document("operationDescription").unwrap();
    let index = doc! { "v": 2, "key": { "at": 1 }, "name": "at_1", "unique": true };
    assert_eq!(told, &doc! { "indexes": [index] });
}

/// Drivers send null for what was not given; MongoDB takes it for absent.
#[test]
fn options_that_are_null_are_absent() {
    let member = primary();
    let names = [
        "fullDocument", "fullDocumentBeforeChange", "showExpandedEvents", "allChangesForCluster",
        "resumeAfter", "startAfter", "startAtOperationTime",
    ];
    let nulls: Document = names.iter().map(|name| ((*name).to_owned(), Bson::Null)).collect();
    let mut stream = watch(&member, "c", nulls);
    member.insert("c", vec![doc! { "_id": 1 }]);
    assert_eq!(stream.types(), ["insert"]);
    // Beside one that is given.
    let token = stream.token.clone();
    let mut again = watch(&member, "c", doc! { "resumeAfter": token, "startAfter": Bson::Null });
    member.insert("c", vec![doc! { "_id": 2 }]);
    assert_eq!(again.types(), ["insert"]);
    let wrong = aggregate("c".into(), vec![doc! { "$changeStream": { "resumeAfter": 1 } }]);
    assert_eq!(member.code(wrong), 14);
    let unknown = aggregate("c".into(), vec![doc! { "$changeStream": { "resume": Bson::Null } }]);
    assert_eq!(member.code(unknown), 40415);
}

/// Nothing is lost before the first entry of a set.
#[test]
fn a_stream_from_before_the_set_shows_everything_while_the_log_is_whole() {
    let member = Member::with_history(quorate_storage::ModelStore::new(), 1 << 30);
    member.node.join_replica_set(support::now()).unwrap();
    let config = doc! { "_id": "rs0", "version": 1, "members": [{ "_id": 0, "host": "a:1" }] };
    let config = Arc::new(quorate_wire::replica_set::parse_config(&config).unwrap());
    let initiate = quorate_replication::Change::Initiate(config);
    member.node.persist(&initiate, support::now()).unwrap();
    support::set::show(&member.node, quorate_protocol::MemberState::Primary, true);
    member.insert("c", vec![doc! { "_id": 1 }]);
    for time in [0, 1] {
        let early = Bson::Timestamp(bson::Timestamp { time, increment: time });
        let mut stream = watch(&member, "c", doc! { "startAtOperationTime": early });
        assert_eq!(stream.types(), ["insert"]);
    }
}

/// The log may be trimmed between the opening and a look: a stream must not pass over what is gone.
#[test]
fn a_stream_that_is_overtaken_by_the_trimming_of_the_oplog_is_told_so() {
    let member = Member::with_history(quorate_storage::ModelStore::new(), 20_000);
    member.node.join_replica_set(support::now()).unwrap();
    support::set::show(&member.node, quorate_protocol::MemberState::Primary, true);
    let (reason, term) = (quorate_replication::NoopReason::NewPrimary, quorate_protocol::Term(1));
    member.node.append_noop(reason, term, support::now()).unwrap();
    let behind = watch(&member, "c", doc! {});
    let oldest = || {
        let entries = support::set::entries(&member);
        entries[0].get_timestamp("ts").unwrap()
    };
    let first = oldest();
    for id in 0..400 {
        member.insert("c", vec![doc! { "_id": id, "text": "x".repeat(100) }]);
        commit(&member);
        while member.node.maintain(support::now()).unwrap() {}
    }
    assert!(oldest() > first, "the log was trimmed");
    let reply = behind.get_more();
    assert_eq!(reply.get_i32("code").unwrap(), 286, "{reply}");
    let labels = reply.get_array("errorLabels").unwrap();
    assert_eq!(labels, &[Bson::from("NonResumableChangeStreamError")]);
    // One that keeps up loses nothing, also while the log is trimmed.
    let mut close = watch(&member, "c", doc! {});
    for id in 400..800 {
        member.insert("c", vec![doc! { "_id": id, "text": "x".repeat(100) }]);
        assert_eq!(close.types(), ["insert"]);
        while member.node.maintain(support::now()).unwrap() {}
    }
}

#[test]
fn how_far_streams_are_behind_is_shown() {
    let member = primary();
    let status = |member: &Member| {
        let reply = member.ok(doc! { "serverStatus": 1, "$db": "admin" });
        let mut shown = reply.get_document("changeStreams").unwrap().clone();
        for figure in ["entriesRead", "filtersAsked", "wokenUp"] {
            shown.remove(figure);
        }
        shown
    };
    assert_eq!(status(&member), doc! { "open": 0_i64, "mostSecondsBehind": 0_i64 });
    let mut stream = watch(&member, "c", doc! {});
    // Thirty seconds later there is news that the stream has not looked at.
    let mut later = support::context();
    later.now.wall = quorate_protocol::WallTime(later.now.wall.as_millis() + 30_000);
    member.expect(&later, doc! { "insert": "c", "documents": [{ "_id": 1 }] });
    commit(&member);
    let expected = doc! { "open": 1_i64, "mostSecondsBehind": 30_i64, "leastSecondsLeft": 0_i64 };
    assert_eq!(status(&member), expected);
    let pipeline = vec![
        doc! { "$currentOp": { "idleCursors": true } },
        doc! { "$match": { "type": "idleCursor" } },
    ];
    let mut command = aggregate(1.into(), pipeline);
    command.insert("$db", "admin");
    let reply = member.ok(command);
    let batch = reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
    assert_eq!(batch.len(), 1);
    let shown = batch[0].as_document().unwrap();
    assert_eq!(shown.get_str("ns").unwrap(), "db.c");
    assert_eq!(shown.get_document("cursor").unwrap().get_i64("cursorId").unwrap(), stream.id);
    let standing = shown.get_document("changeStream").unwrap();
    assert_eq!(standing.get_i64("secondsBehind").unwrap(), 30);
    assert_eq!(stream.types(), ["insert"]);
    assert_eq!(status(&member), doc! { "open": 1_i64, "mostSecondsBehind": 0_i64 });
}

#[test]
fn a_role_that_was_taken_away_ends_the_streams_it_gave() {
    let member = support::set::guarded_primary();
    let admin = member.connect("CN=member", true);
    let reader = member.log_in("reader", &[("readAnyDatabase", "admin")]);
    commit(&member);
    let open = |database: &str, options: Document| {
        let mut command = aggregate(1.into(), vec![doc! { "$changeStream": options }]);
        command.insert("$db", database);
        let reply = member.expect(&reader, command);
        reply.get_document("cursor").unwrap().get_i64("id").unwrap()
    };
    let reader = quorate_node::Context { may_wait: false, ..reader.clone() };
    let more = |database: &str, id: i64| {
        let more = doc! { "getMore": id, "collection": "$cmd.aggregate", "$db": database };
        member.run_as(&reader, more).get_i32("code").ok()
    };
    let (of_database, of_all) =
        (open("d", doc! {}), open("admin", doc! { "allChangesForCluster": true }));
    assert_eq!((more("d", of_database), more("admin", of_all)), (None, None));
    let narrowed = doc! {
        "updateUser": "CN=reader", "roles": [{ "role": "read", "db": "d" }], "$db": "$external",
    };
    member.expect(&admin, narrowed);
    assert_eq!((more("d", of_database), more("admin", of_all)), (None, Some(13)));
    assert_eq!(more("admin", of_all), Some(43), "it is closed");
    let none = doc! { "updateUser": "CN=reader", "roles": [], "$db": "$external" };
    member.expect(&admin, none);
    assert_eq!(more("d", of_database), Some(13));
}
