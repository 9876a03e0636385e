//! Commands as servers see them, and replies as callers see them.

use bson::raw::RawBson;
use bson::rawdoc;
use quorate_blocking_client::{Extent, FindOptions, Namespace, OperationError, UpdateStatement};
use quorate_protocol::{ReadPreference, ReadPreferenceMode};

use crate::Bench;
use crate::fake::{FakeSet, Reaction};

fn things() -> Namespace {
    Namespace::new("d", "things").unwrap()
}

fn ready(set: &FakeSet, options: &str) -> Bench {
    let mut bench = Bench::new(&set.uri(&[0], options));
    bench.client.ping(None).unwrap();
    set.journal.take();
    bench
}

/// "Connection handshake": legacy hello with `helloOk`, by OP_MSG, with client metadata.
#[test]
fn the_handshake_says_who_we_are() {
    let set = FakeSet::start(1);
    let mut bench = Bench::new(&set.uri(&[0], "appname=shop"));
    bench.client.ping(None).unwrap();
    let seen = set.journal.take();
    let hello = &seen[0].body;
    assert_eq!(hello.get_i32("isMaster").unwrap(), 1);
    assert!(hello.get_bool("helloOk").unwrap());
    assert_eq!(hello.get_str("$db").unwrap(), "admin");
    let application = hello.get_document("client").unwrap().get_document("application").unwrap();
    assert_eq!(application.get_str("name").unwrap(), "shop");
}

#[test]
fn a_command_carries_its_database_and_read_preference() {
    let set = FakeSet::start(2);
    let mut bench = ready(&set, "");
    for member in &set.members {
        member.always("dbStats", Reaction::Reply(rawdoc! { "ok": 1, "objects": 3 }));
    }
    let command = rawdoc! { "dbStats": 1 };
    let reply = bench.client.run_command("shop", &command, None).unwrap();
    assert_eq!(reply.get_i32("objects").unwrap(), 3);
    let secondary = ReadPreference::new(ReadPreferenceMode::Secondary);
    bench.client.run_command("shop", &command, Some(&secondary)).unwrap();
    let seen = set.journal.take();
    assert_eq!(seen[0].body, rawdoc! { "dbStats": 1, "$db": "shop" });
    assert_eq!(&seen[1].member, set.members[1].address());
    let expected =
        rawdoc! { "dbStats": 1, "$db": "shop", "$readPreference": { "mode": "secondary" } };
    assert_eq!(seen[1].body, expected);
}

#[test]
fn a_refused_command_is_told_in_the_servers_words() {
    let set = FakeSet::start(1);
    let mut bench = ready(&set, "");
    let error = bench.client.run_command("d", &rawdoc! { "frobnicate": 1 }, None).unwrap_err();
    let address = set.members[0].address();
    assert_eq!(error.to_string(), format!("{address} answered: no such command (code 59)"));
    assert!(bench.client.topology().primary().is_some(), "that says nothing about the server");
}

#[test]
fn commands_that_cannot_be_sent_are_refused_before_anything_is() {
    let set = FakeSet::start(1);
    let mut bench = ready(&set, "");
    for command in [rawdoc! {}, rawdoc! { "ping": 1, "$db": "d" }] {
        let error = bench.client.run_command("d", &command, None).unwrap_err();
        assert!(matches!(error, OperationError::Misuse(_)), "{error}");
    }
    let huge = rawdoc! { "count": "x".repeat(49_000_000) };
    let error = bench.client.run_command("d", &huge, None).unwrap_err();
    assert!(error.to_string().contains("the peer accepts 48000000"), "{error}");
    assert!(set.journal.take().is_empty());
    // The connection is as it was.
    bench.client.ping(None).unwrap();
    assert_eq!(set.members[0].accepted(), 1);
}

#[test]
fn inserting_takes_as_many_messages_as_the_server_needs() {
    let set = FakeSet::start(1);
    let mut hello = set.hello(0, Some(0), 1);
    hello.append(bson::raw::cstr!("maxWriteBatchSize"), 2);
    set.members[0].set_hello(hello);
    let mut bench = ready(&set, "w=majority");
    for count in [2, 2, 1] {
        set.members[0].next("insert", Reaction::Reply(rawdoc! { "ok": 1, "n": count }));
    }
    let ids = bench.client.insert(&things(), (0..5).map(|n| rawdoc! { "_id": n })).unwrap();
    assert_eq!(ids, (0..5).map(RawBson::Int32).collect::<Vec<_>>());
    let seen = set.journal.take();
    let sizes: Vec<_> = seen.iter().map(|received| received.sequence.len()).collect();
    assert_eq!(sizes, [2, 2, 1]);
    assert_eq!(seen[2].sequence[0], rawdoc! { "_id": 4 });
    let concern = seen[0].body.get_document("writeConcern").unwrap();
    assert_eq!(concern.get_str("w").unwrap(), "majority");
    assert!(seen[0].body.get("$readPreference").unwrap().is_none());
}

#[test]
fn inserting_stops_at_the_first_document_that_fails() {
    let set = FakeSet::start(1);
    let mut hello = set.hello(0, Some(0), 1);
    hello.append(bson::raw::cstr!("maxWriteBatchSize"), 2);
    set.members[0].set_hello(hello);
    let mut bench = ready(&set, "");
    set.members[0].next("insert", Reaction::Reply(rawdoc! { "ok": 1, "n": 2 }));
    set.members[0].next(
        "insert",
        Reaction::Reply(rawdoc! {
            "ok": 1, "n": 1,
            "writeErrors": [{ "index": 1, "code": 11000, "errmsg": "duplicate key" }],
        }),
    );
    let error = bench.client.insert(&things(), (0..6).map(|n| rawdoc! { "_id": n })).unwrap_err();
    let OperationError::Write { failure, .. } = &error else { panic!("{error}") };
    assert_eq!((failure.done, failure.errors[0].index), (3, 3));
    assert!(error.to_string().contains("statement 3: duplicate key (code 11000)"), "{error}");
    assert_eq!(set.journal.take().len(), 2);
}

#[test]
fn documents_that_no_server_stores_are_refused_before_anything_is_sent() {
    let set = FakeSet::start(1);
    let mut hello = set.hello(0, Some(0), 1);
    hello.append(bson::raw::cstr!("maxBsonObjectSize"), 100);
    set.members[0].set_hello(hello);
    let mut bench = ready(&set, "");
    let documents = [rawdoc! { "_id": 1 }, rawdoc! { "_id": 2, "x": "x".repeat(200) }];
    let error = bench.client.insert(&things(), documents).unwrap_err();
    assert!(error.to_string().contains("document 1 is"), "{error}");
    assert!(bench.client.insert(&things(), []).is_err());
    assert!(set.journal.take().is_empty());
}

#[test]
fn updates_and_deletes_tell_what_they_did() {
    let set = FakeSet::start(1);
    let mut bench = ready(&set, "");
    let reply = rawdoc! {
        "ok": 1, "n": 1, "nModified": 0, "upserted": [{ "index": 0, "_id": 9 }],
    };
    set.members[0].next("update", Reaction::Reply(reply));
    let statement = UpdateStatement {
        filter: rawdoc! { "x": 1 },
        update: rawdoc! { "$set": { "y": 2 } },
        multi: false,
        upsert: true,
    };
    let outcome = bench.client.update(&things(), &statement).unwrap();
    assert_eq!((outcome.matched, outcome.modified), (0, 0));
    assert_eq!(outcome.upserted_id, Some(RawBson::Int32(9)));

    let reply = rawdoc! { "ok": 1, "n": 3, "nModified": 2 };
    set.members[0].next("update", Reaction::Reply(reply));
    let outcome = bench.client.update(&things(), &statement).unwrap();
    assert_eq!((outcome.matched, outcome.modified, outcome.upserted_id), (3, 2, None));

    set.members[0].next("delete", Reaction::Reply(rawdoc! { "ok": 1, "n": 4 }));
    let deleted = bench.client.delete(&things(), &rawdoc! { "x": 1 }, Extent::All).unwrap();
    assert_eq!(deleted, 4);
    let seen = set.journal.take();
    let update = rawdoc! {
        "q": { "x": 1 }, "u": { "$set": { "y": 2 } }, "multi": false, "upsert": true,
    };
    assert_eq!(seen[0].sequence, [update]);
    assert_eq!(seen[2].sequence, [rawdoc! { "q": { "x": 1 }, "limit": 0 }]);

    let reply = rawdoc! {
        "ok": 1, "n": 1, "writeConcernError": { "code": 64, "errmsg": "timed out" },
    };
    set.members[0].next("delete", Reaction::Reply(reply));
    let error = bench.client.delete(&things(), &rawdoc! {}, Extent::One).unwrap_err();
    assert!(error.to_string().contains("the write concern was not met: timed out"), "{error}");
}

/// Servers answer such writes with `ok` alone.
#[test]
fn a_write_without_acknowledgement_is_no_error() {
    let set = FakeSet::start(1);
    let mut bench = ready(&set, "w=0");
    set.members[0].always("insert", Reaction::Reply(rawdoc! { "ok": 1 }));
    bench.client.insert(&things(), [rawdoc! { "_id": 1 }]).unwrap();
    let concern = set.journal.take()[0].body.get_document("writeConcern").unwrap().to_owned();
    assert_eq!(concern, rawdoc! { "w": 0_i64 });
}

#[test]
fn reads_use_the_clients_read_preference_and_concern() {
    let set = FakeSet::start(2);
    let mut bench = ready(&set, "readPreference=secondary&readConcernLevel=majority");
    set.members[1].next("count", Reaction::Reply(rawdoc! { "ok": 1, "n": 5 }));
    assert_eq!(bench.client.count(&things(), &rawdoc! { "x": 1 }).unwrap(), 5);
    let seen = set.journal.take();
    let expected = rawdoc! {
        "count": "things", "query": { "x": 1 }, "readConcern": { "level": "majority" },
        "$db": "d", "$readPreference": { "mode": "secondary" },
    };
    assert_eq!(seen[0].body, expected);

    set.members[1].next("count", Reaction::Reply(rawdoc! { "ok": 1 }));
    let error = bench.client.count(&things(), &rawdoc! {}).unwrap_err();
    assert!(error.to_string().contains("a reply to count that cannot be used"), "{error}");
}

#[test]
fn a_find_says_all_that_was_asked() {
    let set = FakeSet::start(1);
    let mut bench = ready(&set, "");
    let none = rawdoc! { "ok": 1, "cursor": { "id": 0_i64, "ns": "d.things", "firstBatch": [] } };
    set.members[0].always("find", Reaction::Reply(none));
    let options = FindOptions {
        sort: Some(rawdoc! { "x": -1 }),
        projection: Some(rawdoc! { "x": 1 }),
        skip: Some(2),
        limit: Some(7),
        batch_size: Some(3),
        read_preference: Some(ReadPreference::new(ReadPreferenceMode::Nearest)),
    };
    assert!(bench.client.find(&things(), &rawdoc! { "y": 1 }, &options).unwrap().next().is_none());
    let expected = rawdoc! {
        "find": "things", "filter": { "y": 1 }, "sort": { "x": -1 }, "projection": { "x": 1 },
        "skip": 2_i64, "limit": 7_i64, "batchSize": 3_i64,
        "$db": "d", "$readPreference": { "mode": "nearest" },
    };
    assert_eq!(set.journal.take()[0].body, expected);
}

/// Hello is never compressed; what follows is, once both sides know how.
#[test]
fn messages_are_compressed_when_both_sides_know_how() {
    let set = FakeSet::start(1);
    let mut hello = set.hello(0, Some(0), 1);
    hello.append(bson::raw::cstr!("compression"), {
        let mut names = bson::raw::RawArrayBuf::new();
        names.push("zlib");
        names
    });
    set.members[0].set_hello(hello);
    for (options, compressed) in [("compressors=zstd,zlib", true), ("", false)] {
        let mut bench = Bench::new(&set.uri(&[0], options));
        bench.client.ping(None).unwrap();
        let seen = set.journal.take();
        let told: Vec<_> = seen.iter().map(|one| (&*one.name, one.compressed)).collect();
        assert_eq!(told, [("isMaster", false), ("ping", compressed)]);
    }
}
