//! Cursors: batches from the server that has them, and an end to them.

use bson::raw::RawDocumentBuf;
use bson::rawdoc;
use quorate_blocking_client::{Cursor, FindOptions, Namespace, OperationError};
use quorate_protocol::{ReadPreference, ReadPreferenceMode};

use crate::Bench;
use crate::fake::{FakeSet, Reaction};

fn things() -> Namespace {
    Namespace::new("d", "things").unwrap()
}

fn batch(id: i64, name: &str, numbers: &[i32]) -> Reaction {
    let mut documents = bson::raw::RawArrayBuf::new();
    for number in numbers {
        documents.push(rawdoc! { "n": *number });
    }
    let mut cursor = rawdoc! { "id": id, "ns": "d.things" };
    cursor.append(<&bson::raw::CStr>::try_from(name).unwrap(), documents);
    Reaction::Reply(rawdoc! { "ok": 1, "cursor": cursor })
}

fn numbers(cursor: Cursor<'_>) -> Vec<i32> {
    cursor.map(|document| document.unwrap().get_i32("n").unwrap()).collect()
}

fn ready(set: &FakeSet) -> Bench {
    let mut bench = Bench::new(&set.uri(&[0], ""));
    bench.client.ping(None).unwrap();
    set.journal.take();
    bench
}

fn bodies(set: &FakeSet) -> Vec<RawDocumentBuf> {
    set.journal.take().into_iter().map(|received| received.body).collect()
}

#[test]
fn batches_follow_each_other_to_the_end() {
    let set = FakeSet::start(1);
    let mut bench = ready(&set);
    set.members[0].next("find", batch(7, "firstBatch", &[1, 2]));
    set.members[0].next("getMore", batch(7, "nextBatch", &[]));
    set.members[0].next("getMore", batch(0, "nextBatch", &[3]));
    let options = FindOptions { batch_size: Some(2), ..FindOptions::default() };
    let cursor = bench.client.find(&things(), &rawdoc! {}, &options).unwrap();
    assert_eq!(numbers(cursor), [1, 2, 3]);
    let more = rawdoc! {
        "getMore": 7_i64, "collection": "things", "batchSize": 2_i64, "$db": "d",
    };
    let seen = bodies(&set);
    assert_eq!(seen[1..], [more.clone(), more], "and no killCursors");
}

/// "Cursor operations must be sent to the original server", whatever the topology has become.
#[test]
fn a_cursor_stays_on_its_server() {
    let set = FakeSet::start(3);
    let mut bench = ready(&set);
    set.members[0].next("find", batch(7, "firstBatch", &[1]));
    set.members[0].next("getMore", batch(0, "nextBatch", &[2]));
    let mut cursor = bench.client.find(&things(), &rawdoc! {}, &FindOptions::default()).unwrap();
    assert_eq!(cursor.server(), set.members[0].address());
    cursor.next().unwrap().unwrap();
    let parked = cursor.park();

    set.elect(1, 2);
    bench.clock.advance(crate::seconds(60));
    bench.client.ping(None).unwrap();
    assert_eq!(bench.client.topology().primary().unwrap().address(), set.members[1].address());
    assert_eq!(numbers(parked.resume(&mut bench.client)), [2]);
}

#[test]
fn a_cursor_whose_server_left_the_set_is_lost() {
    let set = FakeSet::start(2);
    let mut bench = ready(&set);
    set.members[1].next("find", batch(7, "firstBatch", &[]));
    let options = FindOptions {
        read_preference: Some(ReadPreference::new(ReadPreferenceMode::Secondary)),
        ..FindOptions::default()
    };
    let parked = bench.client.find(&things(), &rawdoc! {}, &options).unwrap().park();
    let alone = rawdoc! {
        "ok": 1, "helloOk": true, "isWritablePrimary": true, "setName": "rs", "setVersion": 2,
        "electionId": bson::oid::ObjectId::from_bytes([9; 12]),
        "hosts": [set.members[0].address().as_str()], "minWireVersion": 0, "maxWireVersion": 21,
    };
    set.members[0].set_hello(alone);
    bench.clock.advance(crate::seconds(1));
    bench.client.scan();
    let error = parked.resume(&mut bench.client).next().unwrap().unwrap_err();
    assert!(matches!(error, OperationError::CursorLost { .. }), "{error}");
    assert!(error.to_string().ends_with("run the query again"), "{error}");
}

#[test]
fn a_cursor_dropped_early_is_killed() {
    let set = FakeSet::start(1);
    let mut bench = ready(&set);
    set.members[0].next("find", batch(7, "firstBatch", &[1, 2]));
    set.members[0].next("killCursors", Reaction::Reply(rawdoc! { "ok": 1 }));
    let mut cursor = bench.client.find(&things(), &rawdoc! {}, &FindOptions::default()).unwrap();
    cursor.next().unwrap().unwrap();
    drop(cursor);
    let seen = bodies(&set);
    assert_eq!(seen[1], rawdoc! { "killCursors": "things", "cursors": [7_i64], "$db": "d" });
    bench.client.ping(None).unwrap();
    assert_eq!(set.members[0].accepted(), 1);
}

#[test]
fn a_parked_or_finished_cursor_is_not_killed() {
    let set = FakeSet::start(1);
    let mut bench = ready(&set);
    set.members[0].next("find", batch(7, "firstBatch", &[1]));
    let cursor = bench.client.find(&things(), &rawdoc! {}, &FindOptions::default()).unwrap();
    let parked = cursor.park();
    assert_eq!(bodies(&set).len(), 1);
    drop(parked);
    set.members[0].next("find", batch(0, "firstBatch", &[1]));
    let cursor = bench.client.find(&things(), &rawdoc! {}, &FindOptions::default()).unwrap();
    assert!(cursor.is_exhausted());
    drop(cursor);
    assert_eq!(bodies(&set).len(), 1);
}

/// "the limit field is a hard limit on the total number of documents returned", also where the
/// server leaves the cursor open.
#[test]
fn the_limit_holds_over_batches_and_ends_the_cursor() {
    let set = FakeSet::start(1);
    let mut bench = ready(&set);
    set.members[0].next("find", batch(7, "firstBatch", &[1, 2, 3]));
    set.members[0].next("getMore", batch(7, "nextBatch", &[4]));
    set.members[0].next("killCursors", Reaction::Reply(rawdoc! { "ok": 1 }));
    let options = FindOptions { batch_size: Some(3), limit: Some(4), ..FindOptions::default() };
    let mut cursor = bench.client.find(&things(), &rawdoc! {}, &options).unwrap();
    assert_eq!(cursor.by_ref().map(Result::unwrap).count(), 4);
    let seen = bodies(&set);
    assert_eq!(seen[1].get_i64("batchSize").unwrap(), 1);
    assert_eq!(seen.len(), 3, "and the cursor is killed");
    drop(cursor);
    assert!(bodies(&set).is_empty(), "once");
}

/// getMore is not retried: the batch that was lost would be missing.
#[test]
fn an_error_ends_the_cursor() {
    let set = FakeSet::start(1);
    let mut bench = ready(&set);
    set.members[0].next("find", batch(7, "firstBatch", &[1]));
    set.members[0].next("getMore", Reaction::HangUp);
    let mut cursor = bench.client.find(&things(), &rawdoc! {}, &FindOptions::default()).unwrap();
    cursor.next().unwrap().unwrap();
    let error = cursor.next().unwrap().unwrap_err();
    assert!(matches!(error, OperationError::Connection { .. }), "{error}");
    assert!(cursor.next().is_none());
    drop(cursor);
    let sent = bodies(&set);
    assert_eq!(sent.len(), 2, "{sent:?}");
}

#[test]
fn a_server_that_never_sends_a_document_is_found_out() {
    let set = FakeSet::start(1);
    let mut bench = ready(&set);
    set.members[0].next("find", batch(7, "firstBatch", &[]));
    set.members[0].always("getMore", batch(7, "nextBatch", &[]));
    let mut cursor = bench.client.find(&things(), &rawdoc! {}, &FindOptions::default()).unwrap();
    let error = cursor.next().unwrap().unwrap_err();
    assert!(error.to_string().contains("1000 batches"), "{error}");
}

#[test]
fn a_reply_without_cursor_is_told() {
    let set = FakeSet::start(1);
    let mut bench = ready(&set);
    set.members[0].next("listCollections", Reaction::Reply(rawdoc! { "ok": 1 }));
    let command = rawdoc! { "listCollections": 1, "cursor": {} };
    let error = bench.client.run_cursor_command("d", &command, None).unwrap_err();
    assert!(matches!(error, OperationError::BadReply { .. }), "{error}");

    set.members[0].next("aggregate", batch(0, "firstBatch", &[5]));
    let pipeline = [rawdoc! { "$match": { "x": 1 } }];
    let cursor = bench.client.aggregate(&things(), pipeline, Some(10)).unwrap();
    assert_eq!(numbers(cursor), [5]);
    let seen = bodies(&set);
    let expected = rawdoc! {
        "aggregate": "things", "pipeline": [{ "$match": { "x": 1 } }],
        "cursor": { "batchSize": 10_i64 }, "$db": "d",
    };
    assert_eq!(seen[1], expected);
}
