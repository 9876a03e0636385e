//! What is left of cursors, change streams and sessions when a caller stops waiting, or `timeoutMS`
//! passes.

// A panic in the functions that the tests share is a report, as it is in the tests.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use bson::raw::{RawDocumentBuf, cstr};
use bson::{doc, rawdoc};
use quorate_client::{Client, CursorType, ErrorKind};
use quorate_test_support::{FailPoint, FakeServer, primary_hello};

/// Nothing here takes long; what does is stuck.
const PATIENCE: Duration = Duration::from_secs(20);

/// Longer than a test takes: a command that is blocked so long is not answered.
const FOR_EVER: i32 = 600_000;

async fn soon<T>(work: impl IntoFuture<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("it takes too long")
}

fn fail(command: &str, times: i32, data: RawDocumentBuf) -> Option<FailPoint> {
    let mut point = data;
    point.append(cstr!("failCommands"), bson::RawArrayBuf::from_iter([command]));
    let configure = rawdoc! {
        "configureFailPoint": "failCommand", "mode": { "times": times }, "data": point,
    };
    FailPoint::from_command(&configure).unwrap()
}

fn block(command: &str) -> Option<FailPoint> {
    fail(command, 1, rawdoc! { "blockConnection": true, "blockTimeMS": FOR_EVER })
}

/// A set of one member, whose cursors have a batch of one document and more to come.
async fn member() -> FakeServer {
    let server = FakeServer::start().await.unwrap();
    let address = server.address().clone();
    server.set_hello(primary_hello("rs", &address, std::slice::from_ref(&address), 1));
    server.set_reply("insert", rawdoc! { "n": 1 });
    server.set_reply("find", batch("firstBatch", 9, "a"));
    server.set_reply("aggregate", batch("firstBatch", 9, "a"));
    server.set_reply("getMore", batch("nextBatch", 9, "b"));
    server
}

fn client(server: &FakeServer) -> Client {
    Client::with_uri(&format!("{}?replicaSet=rs", server.uri())).unwrap()
}

fn batch(name: &str, id: i64, token: &str) -> RawDocumentBuf {
    let mut cursor = rawdoc! { "id": id, "ns": "db.c" };
    let name = bson::raw::CString::try_from(name).unwrap();
    let change = rawdoc! { "_id": { "_data": token }, "operationType": "insert" };
    cursor.append(&name, bson::RawArrayBuf::from_iter([change]));
    rawdoc! { "cursor": cursor }
}

fn token(change: Option<RawDocumentBuf>) -> String {
    change.unwrap().get_document("_id").unwrap().get_str("_data").unwrap().to_owned()
}

fn sent(server: &FakeServer, name: &str) -> Vec<RawDocumentBuf> {
    let commands = server.commands().into_iter();
    commands.filter(|command| command.get(name).unwrap().is_some()).collect()
}

async fn arrive(server: &FakeServer, name: &str, count: usize) {
    soon(async {
        while sent(server, name).len() < count {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// Polls a call until the server has the command, and drops it then.
async fn drop_when_sent<T>(server: &FakeServer, name: &str, call: impl Future<Output = T>) {
    let count = sent(server, name).len() + 1;
    tokio::select! {
        _ = call => panic!("the call is not answered"),
        () = arrive(server, name, count) => {}
    }
}

fn lsid(command: &RawDocumentBuf) -> RawDocumentBuf {
    command.get_document("lsid").unwrap().to_owned()
}

/// The batch that the server had begun to send would be missing.
#[tokio::test]
async fn a_cursor_whose_call_was_dropped_fails_instead_of_ending() {
    let server = member().await;
    let client = client(&server);
    let mut cursor = soon(client.collection("db", "c").find(doc! {})).await.unwrap();
    assert_eq!(token(soon(cursor.next()).await.unwrap()), "a");
    server.set_fail_point(block("getMore"));
    drop_when_sent(&server, "getMore", cursor.next()).await;
    assert!(!cursor.is_exhausted());
    let error = soon(cursor.next()).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::BatchLost(_)), "{error}");
    arrive(&server, "killCursors", 1).await;
    assert_eq!(soon(cursor.next()).await.unwrap(), None);
    drop(cursor);
    soon(client.close()).await;
    assert_eq!(sent(&server, "getMore").len(), 1);
    assert_eq!(sent(&server, "killCursors").len(), 1);
}

#[tokio::test]
async fn a_cursor_that_is_dropped_after_its_call_is_killed() {
    let server = member().await;
    let client = client(&server);
    let mut cursor = soon(client.collection("db", "c").find(doc! {})).await.unwrap();
    soon(cursor.next()).await.unwrap();
    server.set_fail_point(block("getMore"));
    drop_when_sent(&server, "getMore", cursor.next()).await;
    drop(cursor);
    arrive(&server, "killCursors", 1).await;
    soon(client.close()).await;
}

#[tokio::test]
async fn a_change_stream_goes_on_after_a_call_that_was_dropped() {
    let server = member().await;
    let client = client(&server);
    let mut stream =
        soon(client.collection("db", "c").watch(Vec::<RawDocumentBuf>::new())).await.unwrap();
    assert_eq!(token(soon(stream.next()).await.unwrap()), "a");
    server.set_fail_point(block("getMore"));
    drop_when_sent(&server, "getMore", stream.next()).await;
    assert!(!stream.is_over());
    server.set_reply("aggregate", batch("firstBatch", 10, "c"));
    // The call that resumes is dropped as well.
    server.set_fail_point(block("aggregate"));
    drop_when_sent(&server, "aggregate", stream.next()).await;
    assert!(!stream.is_over());
    assert_eq!(token(soon(stream.next()).await.unwrap()), "c");
    let aggregates = sent(&server, "aggregate");
    assert_eq!(aggregates.len(), 3);
    let pipeline = aggregates[2].get_array("pipeline").unwrap();
    let stage = pipeline.get_document(0).unwrap().get_document("$changeStream").unwrap();
    assert_eq!(stage.get_document("resumeAfter").unwrap(), &*rawdoc! { "_data": "a" });
    arrive(&server, "killCursors", 1).await;
    assert_eq!(
        sent(&server, "killCursors")[0].get_array("cursors").unwrap().get_i64(0).unwrap(),
        9
    );
    soon(stream.close()).await;
    soon(client.close()).await;
}

/// The server may still be busy with the command, and would refuse or hold up the next one of its
/// session.
#[tokio::test]
async fn a_session_whose_command_was_given_up_is_not_used_again() {
    let server = member().await;
    let client = client(&server);
    let collection = client.collection("db", "c");
    soon(collection.insert_one(doc! { "_id": 1 })).await.unwrap();
    server.set_fail_point(block("insert"));
    let write = collection.insert_one(doc! { "_id": 2 }).timeout(Duration::from_secs(1));
    assert!(soon(write).await.unwrap_err().is_timeout());
    soon(collection.insert_one(doc! { "_id": 3 })).await.unwrap();
    server.set_fail_point(block("insert"));
    drop_when_sent(&server, "insert", collection.insert_one(doc! { "_id": 4 }).into_future()).await;
    soon(collection.insert_one(doc! { "_id": 5 })).await.unwrap();
    let lsids: Vec<RawDocumentBuf> = sent(&server, "insert").iter().map(lsid).collect();
    assert_eq!(lsids.len(), 5);
    assert_eq!(lsids[0], lsids[1], "a session is used again as a rule");
    assert_ne!(lsids[1], lsids[2], "its time was up");
    assert_eq!(lsids[2], lsids[3]);
    assert_ne!(lsids[3], lsids[4], "its caller went away");
    let mut session = client.start_session();
    server.set_fail_point(block("insert"));
    let write = collection.insert_one(doc! { "_id": 6 }).session(&mut session);
    drop_when_sent(&server, "insert", write.into_future()).await;
    assert!(session.is_dirty());
    soon(client.close()).await;
}

/// "The `find` and all `getMore`s on the cursor must finish by time `T + timeoutMS`", without `maxTimeMS`
/// in a `getMore`; `killCursors` has the whole time again.
#[tokio::test]
async fn the_time_of_a_query_bounds_every_batch_of_its_cursor() {
    let server = member().await;
    let client = client(&server);
    let collection = client.collection("db", "c");
    let find = collection.find(doc! {}).timeout(Duration::from_secs(1));
    let mut cursor = soon(find).await.unwrap();
    for _ in 0..2 {
        soon(cursor.next()).await.unwrap();
    }
    server.set_fail_point(block("getMore"));
    assert!(soon(cursor.next()).await.unwrap_err().is_timeout());
    assert_eq!(soon(cursor.next()).await.unwrap(), None);
    arrive(&server, "killCursors", 1).await;
    assert!(sent(&server, "killCursors")[0].get_i64("maxTimeMS").unwrap() > 0);
    for get_more in sent(&server, "getMore") {
        assert!(get_more.get("maxTimeMS").unwrap().is_none());
    }
    soon(client.close()).await;
}

#[tokio::test]
async fn the_time_of_a_tailing_query_bounds_each_call() {
    let server = member().await;
    let client = client(&server);
    let collection = client.collection("db", "c");
    let find = collection.find(doc! {}).cursor_type(CursorType::TailableAwait);
    let mut cursor = soon(find.timeout(Duration::from_secs(1))).await.unwrap();
    soon(cursor.next()).await.unwrap();
    server.set_fail_point(block("getMore"));
    assert!(soon(cursor.next()).await.unwrap_err().is_timeout());
    soon(client.close()).await;
}

/// "Error Transformations" of the Client Side Operations Timeout specification.
#[tokio::test]
async fn a_server_that_had_no_more_time_is_a_timeout_within_timeout_ms() {
    let server = member().await;
    let client = client(&server);
    let collection = client.collection("db", "c");
    let expired = rawdoc! { "errorCode": 50 };
    server.set_fail_point(fail("find", 2, expired.clone()));
    let error = soon(collection.find_one(doc! {})).await.unwrap_err();
    assert!(!error.is_timeout() && error.code() == Some(50), "{error}");
    let error = soon(collection.find_one(doc! {}).timeout(PATIENCE)).await.unwrap_err();
    assert!(error.is_timeout() && error.code() == Some(50), "{error}");
    let concern = rawdoc! { "writeConcernError": { "code": 50, "errmsg": "late" } };
    server.set_fail_point(fail("insert", 1, concern));
    let write = collection.insert_one(doc! { "_id": 1 }).timeout(PATIENCE);
    let error = soon(write).await.unwrap_err();
    assert!(error.is_timeout(), "{error}");
    assert_eq!(error.partial_result().unwrap().inserted_count, 1);
    // Neither does it end a stream, when it goes on or when it is resumed.
    let watch = collection.watch(Vec::<RawDocumentBuf>::new()).timeout(PATIENCE);
    let mut stream = soon(watch).await.unwrap();
    soon(stream.next()).await.unwrap();
    for command in ["getMore", "aggregate"] {
        server.set_fail_point(fail(command, 1, expired.clone()));
        let error = soon(stream.next()).await.unwrap_err();
        assert!(error.is_timeout() && !stream.is_over(), "{command}: {error}");
    }
    assert_eq!(token(soon(stream.next()).await.unwrap()), "a");
    soon(stream.close()).await;
    soon(client.close()).await;
}
