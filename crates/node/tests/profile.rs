//! What is told of commands: the profiler and the counters.

#![allow(clippy::unwrap_used)]

mod support;

use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use bson::{Bson, Document, doc};
use quorate_node::{Client, Command, Context};
use quorate_storage::ModelStore;
use support::{Member, context, now};

/// Runs a command as a shell does, and says that it took so long. Gives its reply, and whether it is
/// worth a line in the log.
fn run(member: &Member, command: Document, millis: u64) -> (Document, bool) {
    let metadata = doc! {"application": {"name": "shop"}};
    let client = Client { address: "10.0.0.7:1234".to_owned(), metadata, ..Client::default() };
    let context = Context { client: Arc::new(client), ..context() };
    let mut command = command;
    command.insert("$db", "db");
    let registered = member.node.register(&context, &Command::new(command.clone()));
    let reply = member.run_as(&context, command);
    let raw = bson::RawDocumentBuf::try_from(&reply).unwrap();
    let took = Duration::from_millis(millis);
    if !member.node.may_be_told(took) {
        return (reply, false);
    }
    let logged = member.node.finish(&registered, now(), took, &raw, true).unwrap();
    (reply, logged)
}

fn profile(member: &Member) -> Vec<Document> {
    member.find(doc! {"find": "system.profile"})
}

fn with_documents() -> Member {
    let member = Member::with_history(ModelStore::new(), 1 << 30);
    member.insert("c", (0..20).map(|n| doc! {"_id": n, "n": n % 4}).collect());
    member.ok(doc! {"createIndexes": "c", "indexes": [{"key": {"n": 1}, "name": "n_1"}]});
    member
}

#[test]
fn the_command_that_switches_the_profiler_on_is_not_told_of() {
    let member = with_documents();
    run(&member, doc! {"profile": 2}, 7);
    assert_eq!(profile(&member), []);
    run(&member, doc! {"profile": 0}, 7);
    assert_eq!(profile(&member), [], "nothing is told of while it is off");
    run(&member, doc! {"profile": 2}, 7);
    run(&member, doc! {"profile": 1, "slowms": 5}, 7);
    assert_eq!(profile(&member).len(), 1, "the next one is");
}

#[test]
fn updates_and_deletes_are_told_of_by_their_statement() {
    let member = with_documents();
    member.ok(doc! {"profile": 2});
    let update = doc! {"q": {"_id": 1}, "u": {"$set": {"x": 1}}, "multi": false};
    run(&member, doc! {"update": "c", "updates": [update.clone()]}, 7);
    let delete = doc! {"q": {"_id": 99}, "limit": 1};
    run(&member, doc! {"delete": "c", "deletes": [delete.clone()]}, 7);
    let told = profile(&member);
    let commands: Vec<_> = told.iter().map(|told| told.get_document("command").unwrap()).collect();
    assert_eq!(commands, [&update, &delete]);
    assert_eq!(told[0].get_str("ns").unwrap(), "db.c");
}

#[test]
fn a_profiled_command_tells_what_it_looked_at_and_who_sent_it() {
    let member = with_documents();
    member.ok(doc! {"profile": 2});
    let find = doc! {"find": "c", "filter": {"n": 3}, "batchSize": 2};
    let (reply, logged) = run(&member, find.clone(), 7);
    assert!(logged, "level 2 tells of everything");
    let [told] = &profile(&member)[..] else { panic!("one document") };
    assert_eq!(told.get_str("op").unwrap(), "query");
    assert_eq!(told.get_str("ns").unwrap(), "db.c");
    assert_eq!(told.get_document("command").unwrap().get("filter"), find.get("filter"));
    assert_eq!(told.get_str("planSummary").unwrap(), "IXSCAN { \"n\": 1 }");
    assert_eq!(told.get_i64("docsExamined").unwrap(), 2);
    assert_eq!(told.get_i64("keysExamined").unwrap(), 2);
    assert_eq!(told.get_i32("nreturned").unwrap(), 2);
    assert_eq!(told.get_i32("millis").unwrap(), 7);
    assert_eq!(told.get_str("client").unwrap(), "10.0.0.7");
    assert_eq!(told.get_str("appName").unwrap(), "shop");
    assert_eq!(told.get_str("user").unwrap(), "");
    assert!(told.get_i32("responseLength").unwrap() > 100 && told.get_datetime("ts").is_ok());

    let id = reply.get_document("cursor").unwrap().get_i64("id").unwrap();
    run(&member, doc! {"getMore": id, "collection": "c"}, 0);
    run(&member, doc! {"update": "c", "updates": [{"q": {}, "u": {"$set": {"x": 1}}}]}, 0);
    run(&member, doc! {"delete": "c", "deletes": [{"q": {"_id": 99}, "limit": 1}]}, 0);
    run(&member, doc! {"insert": "c", "documents": [{"_id": 100}, {"_id": 101}]}, 0);
    run(&member, doc! {"find": "c", "filter": {"$nonsense": 1}}, 0);
    let told = profile(&member);
    let of = |kind: &str, field: &str| {
        let told = told.iter().rev().find(|told| told.get_str("op").is_ok_and(|op| op == kind));
        told.unwrap().get(field).cloned()
    };
    assert_eq!(of("getmore", "nreturned"), Some(Bson::Int32(3)));
    assert_eq!(of("getmore", "docsExamined"), Some(Bson::Int64(3)), "and not those of the find");
    assert_eq!(of("getmore", "planSummary"), Some("IXSCAN { \"n\": 1 }".into()));
    assert_eq!(of("update", "nModified"), Some(Bson::Int32(1)));
    assert_eq!(of("remove", "ndeleted"), Some(Bson::Int32(0)));
    assert_eq!(of("insert", "ninserted"), Some(Bson::Int32(2)));
    assert_eq!(of("query", "errCode"), Some(Bson::Int32(2)));

    let stats = member.ok(doc! {"collStats": "system.profile"});
    assert!(stats.get_bool("capped").unwrap());
    assert_eq!(member.code(doc! {"drop": "system.profile"}), 20);
    assert_eq!(member.code(doc! {"insert": "system.profile", "documents": [{}]}), 73);
    // The profile is the member's own: neither the history nor the fingerprint knows it.
    let entries = member.node.read_oplog(Bound::Unbounded, usize::MAX, usize::MAX).unwrap().entries;
    let mentions = |entry: &Document| entry.to_string().contains("system.profile");
    assert!(!entries.iter().any(|entry| mentions(&Document::try_from(&**entry).unwrap())));
    let hash = member.ok(doc! {"dbHash": 1});
    assert!(!hash.get_document("collections").unwrap().contains_key("system.profile"));
    member.ok(doc! {"profile": 0});
    member.ok(doc! {"drop": "system.profile"});
}

#[test]
fn slow_commands_are_told_as_far_as_the_limit_the_share_and_the_filter_say() {
    let member = with_documents();
    let find = || doc! {"find": "c"};
    assert!(run(&member, find(), 100).1, "the log tells of slow commands at level 0");
    assert!(!run(&member, find(), 99).1);
    assert!(!member.ok(doc! {"listCollections": 1}).to_string().contains("system.profile"));
    let was = member.ok(doc! {"profile": 1, "slowms": 20, "sampleRate": 0.5});
    assert_eq!((was.get_i32("was").unwrap(), was.get_i64("slowms").unwrap()), (0, 100));
    let told = (0..100).filter(|_| run(&member, find(), 20).1).count();
    assert!((20..80).contains(&told), "about half: {told}");
    assert_eq!(profile(&member).len(), told);
    run(&member, find(), 19);
    assert_eq!(profile(&member).len(), told);

    member.ok(doc! {"profile": 1, "filter": {"docsExamined": {"$gte": 20}}});
    assert!(run(&member, find(), 0).1);
    assert!(!run(&member, doc! {"find": "c", "filter": {"n": 1}}, 5000).1);
    assert_eq!(profile(&member).len(), told + 1);
    let is = member.ok(doc! {"profile": -1});
    assert_eq!(is.get_document("filter").unwrap(), &doc! {"docsExamined": {"$gte": 20}});
    member.ok(doc! {"profile": 1, "filter": "unset", "sampleRate": 1.0});
    assert!(run(&member, doc! {"find": "c", "filter": {"n": 1}}, 5000).1);
    for wrong in [
        doc! {"profile": 3},
        doc! {"profile": 1, "slowms": -1},
        doc! {"profile": 1, "sampleRate": 1.5},
        doc! {"profile": 1, "filter": {"a": {"$nonsense": 1}}},
        doc! {"profile": 1, "$db": "local"},
    ] {
        assert_eq!(member.code(wrong), 2);
    }
}

#[test]
fn only_administrators_read_what_others_asked_for() {
    let member = Member::guarded();
    let admin = member.log_in("ada", &[("dbAdmin", "db")]);
    let reader = member.log_in("bob", &[("read", "db")]);
    member.expect(&admin, doc! {"profile": 1});
    member.expect(&admin, doc! {"find": "system.profile"});
    let refused = |command: Document| member.run_as(&reader, command).get_i32("code").unwrap();
    assert_eq!(refused(doc! {"find": "system.profile"}), 13);
    let join = doc! {"$unionWith": "system.profile"};
    assert_eq!(refused(doc! {"aggregate": "c", "pipeline": [join], "cursor": {}}), 13);
}

#[test]
fn counters_count_what_clients_asked_for() {
    let member = with_documents();
    let before = member.ok(doc! {"serverStatus": 1});
    member.insert("c", vec![doc! {"_id": "a"}, doc! {"_id": "b"}]);
    let change = doc! {"q": {"_id": "a"}, "u": {"$set": {"n": 9}}};
    member.ok(doc! {"update": "c", "updates": [change.clone(), change]});
    member.ok(doc! {"delete": "c", "deletes": [{"q": {"_id": "b"}, "limit": 1}]});
    let found = member.find(doc! {"find": "c", "hint": {"$natural": 1}});
    assert_eq!(found.len(), 21);
    member.code(doc! {"count": "c", "query": {"$nonsense": 1}});
    member.node.count_received(100);
    member.node.count_sent(50);
    let after = member.ok(doc! {"serverStatus": 1});
    let number = |status: &Document, path: &[&str]| {
        let (last, path) = path.split_last().unwrap();
        let section = path.iter().try_fold(status, |inner, name| inner.get_document(name));
        section.map_or(0, |section| section.get_i64(last).unwrap_or(0))
    };
    let grown = |path: &[&str]| number(&after, path) - number(&before, path);
    for (path, by) in [
        (&["opcounters", "insert"][..], 2),
        (&["opcounters", "update"], 2),
        (&["opcounters", "delete"], 1),
        (&["opcounters", "query"], 1),
        (&["opcounters", "getmore"], 7),
        (&["network", "numRequests"], 1),
        (&["network", "bytesIn"], 100),
        (&["network", "bytesOut"], 50),
        (&["metrics", "commands", "count", "total"], 1),
        (&["metrics", "commands", "count", "failed"], 1),
        (&["metrics", "commands", "find", "failed"], 0),
        (&["metrics", "document", "inserted"], 2),
        (&["metrics", "document", "updated"], 1),
        (&["metrics", "document", "deleted"], 1),
        (&["metrics", "document", "returned"], 21),
        (&["metrics", "queryExecutor", "scannedObjects"], 21 + 2 + 1),
        (&["metrics", "cursor", "totalOpened"], 1),
        (&["asserts", "user"], 1),
    ] {
        assert_eq!(grown(path), by, "{path:?} in {after}");
    }
    for section in ["connections", "globalLock", "mem", "extra_info", "opcountersRepl"] {
        assert!(after.get_document(section).is_ok(), "{section} in {after}");
    }
}

/// Runs a command as a shell does, and counts that it took so long.
fn timed(member: &Member, command: Document, millis: u64) -> Document {
    let mut command = command;
    command.entry("$db".to_owned()).or_insert("db".into());
    let parsed = Command::new(command.clone());
    let registered = member.node.register(&context(), &parsed);
    let reply = member.run_as(&context(), command);
    member.node.count_time(&registered, parsed.facts(), Duration::from_millis(millis));
    reply
}

/// What `top` tells of a collection: time in milliseconds and number, of each kind that is not 0.
fn top(member: &Member, namespace: &str) -> Vec<(String, i64, i64)> {
    let reply = member.ok(doc! {"top": 1, "$db": "admin"});
    let totals = reply.get_document("totals").unwrap();
    assert_eq!(totals.get_str("note").unwrap(), "all times in microseconds");
    let Ok(of) = totals.get_document(namespace) else { return Vec::new() };
    assert_eq!(of.len(), 9, "{of}");
    let figures = of.iter().map(|(name, figures)| {
        let number = |field: &str| figures.as_document().unwrap().get_i64(field).unwrap();
        (name.clone(), number("time") / 1000, number("count"))
    });
    figures.filter(|(_, time, count)| (*time, *count) != (0, 0)).collect()
}

/// The manual, "top": reads and writes of all kinds, by collection.
#[test]
fn collections_tell_how_often_and_for_how_long_they_were_used() {
    let member = Member::new();
    member.insert("idle", vec![doc! {"_id": 1}]);
    timed(&member, doc! {"insert": "c", "documents": [{"_id": 1}, {"_id": 2}]}, 1);
    let found = timed(&member, doc! {"find": "c", "batchSize": 1}, 2);
    let id = found.get_document("cursor").unwrap().get_i64("id").unwrap();
    timed(&member, doc! {"getMore": id, "collection": "c"}, 4);
    let update = doc! {"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"x": 1}}}]};
    timed(&member, update, 8);
    timed(&member, doc! {"delete": "c", "deletes": [{"q": {"_id": 1}, "limit": 1}]}, 16);
    timed(&member, doc! {"aggregate": "c", "pipeline": [], "cursor": {}}, 32);
    timed(&member, doc! {"findAndModify": "c", "query": {"_id": 2}, "remove": true}, 64);
    let index = doc! {"key": {"n": 1}, "name": "n_1"};
    timed(&member, doc! {"createIndexes": "c", "indexes": [index]}, 128);
    timed(&member, doc! {"collStats": "c"}, 256);
    // Of no collection: one is not there, one names a user, one is about the server.
    timed(&member, doc! {"find": "none"}, 1);
    timed(&member, doc! {"createUser": "c", "pwd": "p", "roles": []}, 1);
    timed(&member, doc! {"killCursors": "c", "cursors": [1_i64]}, 1);
    let told = |name: &str, time: i64, count: i64| (name.to_owned(), time, count);
    let expected = [
        told("total", 511, 9),
        told("readLock", 2 + 4 + 32 + 256, 4),
        told("writeLock", 1 + 8 + 16 + 64 + 128, 5),
        told("queries", 2, 1),
        told("getmore", 4, 1),
        told("insert", 1, 1),
        told("update", 8, 1),
        told("remove", 16, 1),
        told("commands", 32 + 64 + 128 + 256, 4),
    ];
    assert_eq!(top(&member, "db.c"), expected);
    assert_eq!(top(&member, "db.idle"), []);
    assert_eq!(top(&member, "db.none"), []);
    // Figures go with the collection, through any change of it but its end.
    member.ok(doc! {"renameCollection": "db.c", "to": "db.d", "$db": "admin"});
    assert_eq!(top(&member, "db.d"), expected);
    member.ok(doc! {"drop": "d"});
    member.insert("d", vec![doc! {"_id": 1}]);
    assert_eq!(top(&member, "db.d"), []);
}

/// The manual, "$collStats" and "serverStatus": latencies of reads, writes and other commands.
#[test]
fn latencies_are_told_of_a_collection_and_of_all() {
    let member = with_documents();
    for millis in [1, 1, 3] {
        timed(&member, doc! {"find": "c"}, millis);
    }
    timed(&member, doc! {"insert": "c", "documents": [{"_id": 99}]}, 5);
    timed(&member, doc! {"ping": 1}, 7);
    let stats = |collection: &str, options: Document| {
        let stage = doc! {"$collStats": {"latencyStats": options}};
        let reply = member.ok(doc! {"aggregate": collection, "pipeline": [stage], "cursor": {}});
        let cursor = reply.get_document("cursor").unwrap();
        let first = cursor.get_array("firstBatch").unwrap()[0].as_document().unwrap();
        first.get_document("latencyStats").unwrap().clone()
    };
    let of_c = doc! {
        "reads": {"latency": 5000_i64, "ops": 3_i64},
        "writes": {"latency": 5000_i64, "ops": 1_i64},
        "commands": {"latency": 0_i64, "ops": 0_i64},
    };
    assert_eq!(stats("c", doc! {}), of_c);
    let none = doc! {"latency": 0_i64, "ops": 0_i64};
    let idle = doc! {"reads": none.clone(), "writes": none.clone(), "commands": none};
    assert_eq!(stats("none", doc! {}), idle);
    let with_histogram = stats("c", doc! {"histograms": true});
    let buckets = with_histogram.get_document("reads").unwrap().get_array("histogram").unwrap();
    let expected =
        [doc! {"micros": 512_i64, "count": 2_i64}, doc! {"micros": 2048_i64, "count": 1_i64}];
    assert_eq!(*buckets, expected.map(Bson::from));
    let status = member.ok(doc! {"serverStatus": 1});
    let all = status.get_document("opLatencies").unwrap();
    let operations = |class: &str| all.get_document(class).unwrap().get_i64("ops").unwrap();
    assert_eq!([operations("reads"), operations("writes"), operations("commands")], [3, 1, 1]);
    assert!(!all.get_document("reads").unwrap().contains_key("histogram"));
    let status = member.ok(doc! {"serverStatus": 1, "opLatencies": {"histograms": true}});
    let all = status.get_document("opLatencies").unwrap();
    assert!(all.get_document("reads").unwrap().contains_key("histogram"));
}
