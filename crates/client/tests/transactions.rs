//! Transactions, snapshot sessions and change streams against a scripted server: what is sent, what
//! is labelled and what is tried again.

// A panic in the functions that the tests share is a report, as it is in the tests.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bson::raw::{RawDocumentBuf, cstr};
use bson::{Timestamp, doc, rawdoc};
use quorate_client::pool::PoolEventKind;
use quorate_client::{
    Client, ClientEvent, ClientOptions, Error, ErrorKind, Pace, Pause, SessionOptions,
    TRANSIENT_TRANSACTION_ERROR, TransactionOptions, TransactionPhase,
    UNKNOWN_TRANSACTION_COMMIT_RESULT, WriteConcern,
};
use quorate_connection_string::ConnectionString;
use quorate_protocol::MonotonicTime;
use quorate_test_support::{FailPoint, FakeServer, primary_hello};

/// Nothing here takes long; what does is stuck.
const PATIENCE: Duration = Duration::from_secs(20);

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

/// A set of one member that takes every write.
async fn member() -> FakeServer {
    let server = FakeServer::start().await.unwrap();
    let address = server.address().clone();
    server.set_hello(primary_hello("rs", &address, std::slice::from_ref(&address), 1));
    server.set_reply("insert", rawdoc! { "ok": 1, "n": 1 });
    for command in ["commitTransaction", "abortTransaction", "killCursors"] {
        server.set_reply(command, rawdoc! { "ok": 1 });
    }
    server
}

fn uri(server: &FakeServer) -> String {
    format!("{}?replicaSet=rs", server.uri())
}

fn client(server: &FakeServer) -> Client {
    Client::with_uri(&uri(server)).unwrap()
}

fn sent(server: &FakeServer, name: &str) -> Vec<RawDocumentBuf> {
    let commands = server.commands().into_iter();
    commands.filter(|command| command.get(name).unwrap().is_some()).collect()
}

async fn insert(client: &Client, session: &mut quorate_client::Session) -> Result<(), Error> {
    let collection = client.collection("db", "c");
    soon(collection.insert_one(doc! { "_id": 1 }).session(session)).await.map(drop)
}

#[tokio::test]
async fn the_commands_of_a_transaction_share_a_number_and_the_commit_ends_it() {
    let server = member().await;
    let client = client(&server);
    let mut session = client.start_session();
    for _ in 0..2 {
        session.start_transaction().unwrap();
        insert(&client, &mut session).await.unwrap();
        insert(&client, &mut session).await.unwrap();
        soon(session.commit_transaction()).await.unwrap();
    }
    let inserts = sent(&server, "insert");
    let numbers: Vec<i64> =
        inserts.iter().map(|command| command.get_i64("txnNumber").unwrap()).collect();
    assert_eq!(numbers, [1, 1, 2, 2]);
    let starts: Vec<bool> =
        inserts.iter().map(|command| command.get_bool("startTransaction").is_ok()).collect();
    assert_eq!(starts, [true, false, true, false]);
    for commit in sent(&server, "commitTransaction") {
        assert!(!commit.get_bool("autocommit").unwrap());
        assert_eq!(commit.get_str("$db").unwrap(), "admin");
        assert!(commit.get("writeConcern").unwrap().is_none());
        let (own, first) = (commit.get_document("lsid"), inserts[0].get_document("lsid"));
        assert_eq!(own.unwrap(), first.unwrap());
    }
    soon(client.close()).await;
}

#[tokio::test]
async fn concerns_of_a_collection_do_not_reach_the_commands_of_a_transaction() {
    let server = member().await;
    let client = client(&server);
    let zero = WriteConcern {
        w: Some(quorate_connection_string::WriteAcknowledgement::Members(0)),
        ..WriteConcern::default()
    };
    let collection =
        client.collection("db", "c").with_write_concern(zero).with_read_concern("linearizable");
    let mut session = client.start_session();
    let options = TransactionOptions {
        read_concern: Some("snapshot".to_owned()),
        write_concern: Some(WriteConcern::MAJORITY),
        ..TransactionOptions::default()
    };
    session.start_transaction_with(options).unwrap();
    soon(collection.insert_one(doc! { "_id": 1 }).session(&mut session)).await.unwrap();
    let action = collection.insert_one(doc! { "_id": 2 }).write_concern(WriteConcern::MAJORITY);
    let error = soon(action.session(&mut session)).await.unwrap_err();
    assert!(error.to_string().contains("Cannot set write concern"), "{error}");
    assert_eq!(session.transaction_phase(), TransactionPhase::InProgress);
    soon(session.commit_transaction()).await.unwrap();
    let [insert] = &sent(&server, "insert")[..] else { panic!("one insert is sent") };
    assert_eq!(insert.get_document("readConcern").unwrap().get_str("level").unwrap(), "snapshot");
    assert!(insert.get("writeConcern").unwrap().is_none());
    let commit = &sent(&server, "commitTransaction")[0];
    assert_eq!(commit.get_document("writeConcern").unwrap().get_str("w").unwrap(), "majority");
    soon(client.close()).await;
}

#[tokio::test]
async fn a_commit_is_retried_once_with_majority_and_its_error_is_labelled() {
    let server = member().await;
    let mut options = ClientOptions::from_connection_string(
        &ConnectionString::parse(&format!("{}&retryWrites=false", uri(&server))).unwrap(),
    );
    options.pace = None;
    let client = Client::with_options(options).unwrap();
    let mut session = client.start_session();
    session.start_transaction().unwrap();
    insert(&client, &mut session).await.unwrap();
    server.set_fail_point(fail("commitTransaction", 2, rawdoc! { "closeConnection": true }));
    let error = soon(session.commit_transaction()).await.unwrap_err();
    assert!(error.has_label(UNKNOWN_TRANSACTION_COMMIT_RESULT), "{error}");
    assert!(!error.has_label(TRANSIENT_TRANSACTION_ERROR), "{error}");
    soon(session.commit_transaction()).await.unwrap();
    let concerns: Vec<Option<i64>> = sent(&server, "commitTransaction")
        .iter()
        .map(|commit| Some(commit.get_document("writeConcern").ok()?.get_i64("wtimeout").unwrap()))
        .collect();
    assert_eq!(concerns, [None, Some(10_000), Some(10_000)]);
    soon(client.close()).await;
}

#[tokio::test]
async fn statements_are_not_retried_and_lost_connections_are_transient() {
    let server = member().await;
    let client = client(&server);
    let mut session = client.start_session();
    session.start_transaction().unwrap();
    server.set_fail_point(fail("insert", 1, rawdoc! { "closeConnection": true }));
    let error = insert(&client, &mut session).await.unwrap_err();
    assert!(error.has_label(TRANSIENT_TRANSACTION_ERROR), "{error}");
    assert!(!error.has_label("RetryableWriteError"), "{error}");
    assert_eq!(sent(&server, "insert").len(), 1);
    soon(session.abort_transaction()).await.unwrap();
    assert_eq!(sent(&server, "abortTransaction").len(), 1);
    soon(client.close()).await;
}

#[tokio::test]
async fn reads_need_the_primary_and_writes_do_not_look() {
    let server = member().await;
    let client = Client::with_uri(&format!("{}&readPreference=nearest", uri(&server))).unwrap();
    let mut session = client.start_session();
    session.start_transaction().unwrap();
    insert(&client, &mut session).await.unwrap();
    let collection = client.collection("db", "c");
    let error = soon(collection.find_one(doc! {}).session(&mut session)).await.unwrap_err();
    assert_eq!(error.to_string(), "read preference in a transaction must be primary");
    assert!(sent(&server, "find").is_empty());
    soon(client.close()).await;
}

#[tokio::test]
async fn a_session_that_is_dropped_aborts_its_transaction() {
    let server = member().await;
    let client = client(&server);
    let mut session = client.start_session();
    session.start_transaction().unwrap();
    insert(&client, &mut session).await.unwrap();
    drop(session);
    soon(async {
        while sent(&server, "abortTransaction").is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let abort = &sent(&server, "abortTransaction")[0];
    assert_eq!(abort.get_i64("txnNumber").unwrap(), 1);
    let inserts = sent(&server, "insert");
    let (own, first) = (abort.get_document("lsid"), inserts[0].get_document("lsid"));
    assert_eq!(own.unwrap(), first.unwrap());
    soon(client.close()).await;
}

/// The next operation waits until the server is known again, and so until the abort has failed.
#[tokio::test]
async fn a_session_whose_abort_was_lost_is_not_used_again() {
    let server = member().await;
    let client = client(&server);
    let mut session = client.start_session();
    session.start_transaction().unwrap();
    insert(&client, &mut session).await.unwrap();
    server.set_fail_point(fail("abortTransaction", 1, rawdoc! { "closeConnection": true }));
    let mut events = client.events();
    drop(session);
    soon(async {
        loop {
            if let ClientEvent::Pool(event) = events.recv().await.unwrap()
                && matches!(event.kind, PoolEventKind::PoolCleared { .. })
            {
                break;
            }
        }
    })
    .await;
    soon(client.collection("db", "c").insert_one(doc! { "_id": 2 })).await.unwrap();
    let inserts = sent(&server, "insert");
    let lsid = |place: usize| inserts[place].get_document("lsid").unwrap().to_owned();
    assert_ne!(lsid(0), lsid(1));
    soon(client.close()).await;
}

#[tokio::test]
async fn a_session_of_another_client_is_refused() {
    let server = member().await;
    let (one, other) = (client(&server), client(&server));
    let mut session = one.start_session();
    let error = insert(&other, &mut session).await.unwrap_err();
    assert!(error.to_string().contains("another client"), "{error}");
}

/// A clock that moves by what is waited for on it, and a chance that is always the same.
#[derive(Debug)]
struct Scripted {
    now: Mutex<Duration>,
    /// How long each look at the clock takes.
    look: Duration,
    chance: f64,
    pauses: Mutex<Vec<Duration>>,
}

impl Scripted {
    fn new(look: Duration, chance: f64) -> Arc<Self> {
        Arc::new(Self { now: Mutex::default(), look, chance, pauses: Mutex::default() })
    }
}

impl Pace for Scripted {
    fn now(&self) -> MonotonicTime {
        let mut now = self.now.lock().unwrap();
        *now += self.look;
        MonotonicTime::ZERO + *now
    }

    fn chance(&self) -> f64 {
        self.chance
    }

    fn pause(&self, interval: Duration) -> Pause {
        *self.now.lock().unwrap() += interval;
        self.pauses.lock().unwrap().push(interval);
        Box::pin(std::future::ready(()))
    }
}

fn paced(server: &FakeServer, pace: &Arc<Scripted>) -> Client {
    let string = ConnectionString::parse(&uri(server)).unwrap();
    let mut options = ClientOptions::from_connection_string(&string);
    options.pace = Some(Arc::<Scripted>::clone(pace));
    Client::with_options(options).unwrap()
}

#[tokio::test]
async fn work_is_repeated_after_transient_errors_with_growing_pauses() {
    let server = member().await;
    let pace = Scripted::new(Duration::ZERO, 0.5);
    let client = paced(&server, &pace);
    let point = rawdoc! { "errorCode": 112, "errorLabels": ["TransientTransactionError"] };
    server.set_fail_point(fail("insert", 3, point));
    let mut session = client.start_session();
    let runs = AtomicU32::new(0);
    let value = soon(session.with_transaction(async |session| {
        runs.fetch_add(1, Ordering::SeqCst);
        insert(&client, session).await?;
        Ok::<_, Error>(7)
    }))
    .await
    .unwrap();
    assert_eq!((value, runs.load(Ordering::SeqCst)), (7, 4));
    let pauses: Vec<f64> =
        pace.pauses.lock().unwrap().iter().map(|pause| pause.as_secs_f64() * 1000.0).collect();
    assert_eq!(pauses, [3.75, 5.625, 8.4375]);
    assert_eq!(sent(&server, "abortTransaction").len(), 3);
    assert_eq!(sent(&server, "commitTransaction").len(), 1);
    soon(client.close()).await;
}

#[tokio::test]
async fn work_that_never_succeeds_ends_at_the_limit_with_its_last_error() {
    let server = member().await;
    let pace = Scripted::new(Duration::from_secs(9), 0.0);
    let client = paced(&server, &pace);
    let point = rawdoc! { "errorCode": 251, "errorLabels": ["TransientTransactionError"] };
    server.set_fail_point(fail("insert", 1000, point));
    let mut session = client.start_session();
    let outcome: Result<(), Error> =
        soon(session.with_transaction(async |session| insert(&client, session).await)).await;
    let error = outcome.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::TransactionTimeout { .. }), "{error}");
    assert!(error.has_label(TRANSIENT_TRANSACTION_ERROR) && error.is_timeout());
    assert!(error.to_string().contains("120000 ms"), "{error}");
    let attempts = sent(&server, "insert").len();
    assert!((10..=14).contains(&attempts), "{attempts} attempts of 9 s each");
    soon(client.close()).await;
}

#[tokio::test]
async fn commits_of_unknown_result_are_repeated_without_running_the_work_again() {
    let server = member().await;
    let client = paced(&server, &Scripted::new(Duration::ZERO, 0.0));
    let concern = rawdoc! { "writeConcernError": { "code": 64, "errmsg": "waiting timed out" } };
    server.set_fail_point(fail("commitTransaction", 2, concern));
    let mut session = client.start_session();
    let runs = AtomicU32::new(0);
    soon(session.with_transaction(async |session| {
        runs.fetch_add(1, Ordering::SeqCst);
        insert(&client, session).await
    }))
    .await
    .unwrap();
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    assert_eq!(sent(&server, "commitTransaction").len(), 3);
    soon(client.close()).await;
}

#[tokio::test]
async fn errors_of_the_application_are_passed_on_as_they_are() {
    let server = member().await;
    let client = client(&server);
    let mut session = client.start_session();
    let outcome: Result<(), Box<dyn std::error::Error + Send + Sync>> =
        soon(session.with_transaction(async |session| {
            insert(&client, session).await?;
            Err("no money".into())
        }))
        .await;
    assert_eq!(outcome.unwrap_err().to_string(), "no money");
    assert_eq!(sent(&server, "abortTransaction").len(), 1);
    let spawned = tokio::spawn(async move {
        let mut session = client.start_session();
        let work = session
            .transaction()
            .run_with(client, |session, client| Box::pin(insert(client, session)));
        work.await
    });
    soon(spawned).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_snapshot_session_reads_one_moment() {
    let server = member().await;
    let noon = Timestamp { time: 12, increment: 1 };
    let cursor = rawdoc! { "id": 0_i64, "ns": "db.c", "firstBatch": [], "atClusterTime": noon };
    server.set_reply("find", rawdoc! { "ok": 1, "cursor": cursor });
    let client = client(&server);
    let options = SessionOptions { snapshot: true, ..SessionOptions::default() };
    let mut session = client.start_session_with(options).unwrap();
    let collection = client.collection("db", "c");
    for _ in 0..2 {
        soon(collection.find_one(doc! {}).session(&mut session)).await.unwrap();
    }
    assert_eq!(session.snapshot_time(), Some(noon));
    let concerns: Vec<RawDocumentBuf> = sent(&server, "find")
        .iter()
        .map(|find| find.get_document("readConcern").unwrap().to_owned())
        .collect();
    let later = rawdoc! { "level": "snapshot", "atClusterTime": noon };
    assert_eq!(concerns, [rawdoc! { "level": "snapshot" }, later]);
    let error = session.start_transaction().unwrap_err();
    assert!(error.to_string().contains("not supported in snapshot sessions"), "{error}");
    let both = SessionOptions {
        snapshot: true,
        causal_consistency: Some(true),
        ..SessionOptions::default()
    };
    assert!(client.start_session_with(both).is_err());
    let time = SessionOptions { snapshot_time: Some(noon), ..SessionOptions::default() };
    assert!(client.start_session_with(time).is_err());
    soon(client.close()).await;
}

fn batch(name: &str, changes: &[&str], token: &str) -> RawDocumentBuf {
    let changes =
        changes.iter().map(|id| rawdoc! { "_id": { "_data": *id }, "operationType": "x" });
    let mut cursor =
        rawdoc! { "id": 9_i64, "ns": "db.c", "postBatchResumeToken": { "_data": token } };
    let name = bson::raw::CString::try_from(name).unwrap();
    cursor.append(&name, bson::RawArrayBuf::from_iter(changes));
    rawdoc! { "ok": 1, "cursor": cursor }
}

fn stage(aggregate: &RawDocumentBuf) -> RawDocumentBuf {
    let pipeline = aggregate.get_array("pipeline").unwrap();
    let first = pipeline.get_document(0).unwrap();
    first.get_document("$changeStream").unwrap().to_owned()
}

#[tokio::test]
async fn a_stream_goes_on_after_its_last_change_when_the_server_lets_go() {
    let server = member().await;
    server.set_reply("aggregate", batch("firstBatch", &["a", "b"], "p"));
    server.set_reply("getMore", batch("nextBatch", &["c"], "q"));
    let client = client(&server);
    let collection = client.collection("db", "c");
    let mut stream =
        soon(collection.watch(Vec::<RawDocumentBuf>::new()).full_document("updateLookup"))
            .await
            .unwrap();
    assert_eq!(stage(&sent(&server, "aggregate")[0]), rawdoc! { "fullDocument": "updateLookup" });
    soon(stream.next()).await.unwrap();
    assert_eq!(stream.resume_token(), Some(rawdoc! { "_data": "a" }));
    soon(stream.next()).await.unwrap();
    assert_eq!(stream.resume_token(), Some(rawdoc! { "_data": "p" }));
    let point = rawdoc! { "errorCode": 234, "errorLabels": ["ResumableChangeStreamError"] };
    server.set_fail_point(fail("getMore", 1, point));
    server.set_reply("aggregate", batch("firstBatch", &[], "r"));
    let change = soon(stream.next()).await.unwrap().unwrap();
    assert_eq!(change.get_document("_id").unwrap().get_str("_data").unwrap(), "c");
    let [_, resumed] = &sent(&server, "aggregate")[..] else { panic!("the stream is resumed") };
    let expected = rawdoc! { "fullDocument": "updateLookup", "resumeAfter": { "_data": "p" } };
    assert_eq!(stage(resumed), expected);
    let lsids: Vec<RawDocumentBuf> = sent(&server, "aggregate")
        .iter()
        .map(|aggregate| aggregate.get_document("lsid").unwrap().to_owned())
        .collect();
    assert_eq!(lsids[0], lsids[1]);
    soon(stream.close()).await;
    assert!(!sent(&server, "killCursors").is_empty());
    soon(client.close()).await;
}

#[tokio::test]
async fn an_error_without_the_label_ends_the_stream() {
    let server = member().await;
    server.set_reply("aggregate", batch("firstBatch", &[], "p"));
    let client = client(&server);
    let mut stream = soon(client.database("db").watch([doc! { "$match": {} }])).await.unwrap();
    server.set_fail_point(fail("getMore", 1, rawdoc! { "errorCode": 286 }));
    assert_eq!(soon(stream.next()).await.unwrap_err().code(), Some(286));
    assert!(stream.is_over());
    assert_eq!(soon(stream.next()).await.unwrap(), None);
    assert_eq!(sent(&server, "aggregate").len(), 1);
    soon(client.close()).await;
}

/// From MongoDB 4.4 on, the label says what a stream survives; before, the code. The server that answered
/// is what counts, not what the topology knows of it since.
#[tokio::test]
async fn the_connection_that_answered_decides_what_a_stream_survives() {
    let server = member().await;
    server.set_reply("aggregate", batch("firstBatch", &[], "p"));
    server.set_reply("getMore", batch("nextBatch", &["a"], "q"));
    let client = client(&server);
    let mut stream = soon(client.watch(Vec::<RawDocumentBuf>::new())).await.unwrap();
    let address = server.address().clone();
    let mut old = RawDocumentBuf::new();
    let hello = primary_hello("rs", &address, std::slice::from_ref(&address), 1);
    for (name, value) in hello.iter().flatten().filter(|(name, _)| *name != "maxWireVersion") {
        old.append(name, value);
    }
    old.append(cstr!("maxWireVersion"), 8);
    server.set_hello(old);
    soon(async {
        while client.topology().server(&address).unwrap().wire_versions().max != 8 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    soon(stream.next()).await.unwrap();
    server.set_fail_point(fail("getMore", 1, rawdoc! { "errorCode": 234 }));
    assert_eq!(soon(stream.next()).await.unwrap_err().code(), Some(234));
    assert!(stream.is_over());
    soon(client.close()).await;
}

#[tokio::test]
async fn a_change_without_its_token_is_an_error() {
    let server = member().await;
    let cursor = rawdoc! { "id": 0_i64, "ns": "db.c", "firstBatch": [{ "operationType": "x" }] };
    server.set_reply("aggregate", rawdoc! { "ok": 1, "cursor": cursor });
    let client = client(&server);
    let mut stream = soon(client.watch(Vec::<RawDocumentBuf>::new())).await.unwrap();
    let aggregate = &sent(&server, "aggregate")[0];
    assert_eq!(stage(aggregate), rawdoc! { "allChangesForCluster": true });
    assert_eq!(aggregate.get_str("$db").unwrap(), "admin");
    let error = soon(stream.next()).await.unwrap_err();
    assert!(error.to_string().contains("resume token is missing"), "{error}");
    soon(client.close()).await;
}
