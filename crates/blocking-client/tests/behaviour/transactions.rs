//! Sessions, transactions and change streams: what is sent, what is labelled and what is tried
//! again.

use bson::raw::RawDocumentBuf;
use bson::{Timestamp, rawdoc};
use quorate_blocking_client::{
    ChangeStreamStart, Extent, Namespace, OperationError, SessionOptions,
    TRANSIENT_TRANSACTION_ERROR, TransactionOptions, UNKNOWN_TRANSACTION_COMMIT_RESULT,
    UpdateStatement, WatchOptions, Watched,
};

use crate::fake::{FakeSet, Reaction, Received};
use crate::{Bench, seconds};

fn things() -> Namespace {
    Namespace::new("d", "things").unwrap()
}

fn ready() -> (FakeSet, Bench) {
    let set = FakeSet::start(1);
    set.members[0].always("insert", Reaction::Reply(rawdoc! { "ok": 1, "n": 1 }));
    set.members[0].always("commitTransaction", Reaction::Reply(rawdoc! { "ok": 1 }));
    set.members[0].always("abortTransaction", Reaction::Reply(rawdoc! { "ok": 1 }));
    let mut bench = Bench::new(&set.uri(&[0], "w=majority&readConcernLevel=local"));
    bench.client.ping(None).unwrap();
    set.journal.take();
    (set, bench)
}

fn named<'r>(received: &'r [Received], name: &str) -> Vec<&'r RawDocumentBuf> {
    let named = received.iter().filter(|received| received.name == name);
    named.map(|received| &received.body).collect()
}

fn transient() -> Reaction {
    Reaction::Reply(rawdoc! {
        "ok": 0, "code": 112, "errmsg": "conflict", "errorLabels": ["TransientTransactionError"],
    })
}

#[test]
fn a_transaction_carries_its_fields_and_commits_with_its_concern() {
    let (set, mut bench) = ready();
    let mut session = bench.client.start_session(SessionOptions::default()).unwrap();
    let mut lent = bench.client.in_session(&mut session);
    lent.start_transaction(TransactionOptions::default()).unwrap();
    lent.insert(&things(), [rawdoc! { "_id": 1 }]).unwrap();
    lent.insert(&things(), [rawdoc! { "_id": 2 }]).unwrap();
    lent.commit_transaction().unwrap();
    drop(lent);
    bench.client.insert(&things(), [rawdoc! { "_id": 3 }]).unwrap();
    let received = set.journal.take();
    let [first, second, plain] = named(&received, "insert")[..] else { panic!("three inserts") };
    assert!(first.get_bool("startTransaction").unwrap());
    assert_eq!(first.get_document("readConcern").unwrap().get_str("level").unwrap(), "local");
    assert!(first.get("writeConcern").unwrap().is_none());
    assert!(second.get("startTransaction").unwrap().is_none());
    assert!(second.get("readConcern").unwrap().is_none());
    assert_eq!(second.get_i64("txnNumber").unwrap(), 1);
    assert!(!second.get_bool("autocommit").unwrap());
    assert!(plain.get("lsid").unwrap().is_none(), "the session was given back");
    assert_eq!(plain.get_document("writeConcern").unwrap().get_str("w").unwrap(), "majority");
    let commit = named(&received, "commitTransaction")[0];
    assert_eq!(commit.get_document("lsid").unwrap(), first.get_document("lsid").unwrap());
    assert_eq!(commit.get_document("writeConcern").unwrap().get_str("w").unwrap(), "majority");
    assert_eq!(commit.get_str("$db").unwrap(), "admin");
}

#[test]
fn a_session_inside_another_one_leaves_it_as_it_was() {
    let (set, mut bench) = ready();
    let mut outer = bench.client.start_session(SessionOptions::default()).unwrap();
    let mut inner = bench.client.start_session(SessionOptions::default()).unwrap();
    let mut lent = bench.client.in_session(&mut outer);
    lent.start_transaction(TransactionOptions::default()).unwrap();
    lent.insert(&things(), [rawdoc! { "_id": 1 }]).unwrap();
    let mut nested = lent.in_session(&mut inner);
    nested.insert(&things(), [rawdoc! { "_id": 2 }]).unwrap();
    drop(nested);
    lent.end_session(inner);
    assert!(lent.in_transaction());
    lent.insert(&things(), [rawdoc! { "_id": 3 }]).unwrap();
    lent.commit_transaction().unwrap();
    drop(lent);
    let received = set.journal.take();
    let [first, beside, second] = named(&received, "insert")[..] else { panic!("three inserts") };
    let commit = named(&received, "commitTransaction")[0];
    let lsid = |command: &RawDocumentBuf| command.get_document("lsid").unwrap().to_owned();
    assert_eq!([lsid(second), lsid(commit)], [lsid(first), lsid(first)]);
    assert_ne!(lsid(beside), lsid(first));
    assert!(beside.get("autocommit").unwrap().is_none());
}

#[test]
fn a_commit_is_sent_once_more_and_then_left_to_the_caller() {
    let (set, mut bench) = ready();
    let mut session = bench.client.start_session(SessionOptions::default()).unwrap();
    let mut lent = bench.client.in_session(&mut session);
    lent.start_transaction(TransactionOptions::default()).unwrap();
    lent.insert(&things(), [rawdoc! { "_id": 1 }]).unwrap();
    for _ in 0..2 {
        set.members[0].next("commitTransaction", Reaction::HangUp);
    }
    let error = lent.commit_transaction().unwrap_err();
    assert!(error.has_label(UNKNOWN_TRANSACTION_COMMIT_RESULT), "{error}");
    assert!(!error.has_label(TRANSIENT_TRANSACTION_ERROR), "{error}");
    let received = set.journal.take();
    let commits = named(&received, "commitTransaction");
    let limits = commits
        .iter()
        .map(|commit| commit.get_document("writeConcern").unwrap().get_i64("wtimeout").ok());
    assert_eq!(limits.collect::<Vec<_>>(), [None, Some(10_000)]);
}

/// "When a transaction is started on a sharded cluster, all commands of it MUST go to one mongos", until
/// it has ended.
#[test]
fn a_transaction_stays_with_its_router() {
    let set = FakeSet::start(2);
    for router in &set.members {
        router.set_hello(rawdoc! {
            "ok": 1, "msg": "isdbgrid", "minWireVersion": 0, "maxWireVersion": 21,
            "logicalSessionTimeoutMinutes": 30,
        });
        for command in ["insert", "commitTransaction", "abortTransaction"] {
            router.always(command, Reaction::Reply(rawdoc! { "ok": 1, "n": 1 }));
        }
    }
    let routers: Vec<_> = set.members.iter().map(|router| router.address().as_str()).collect();
    let mut first_routers = std::collections::BTreeSet::new();
    for seed in 0..8 {
        let uri = format!("mongodb://{}/?retryWrites=false", routers.join(","));
        let mut bench = Bench::with(&uri, |options| options.seed = seed);
        let mut session = bench.client.start_session(SessionOptions::default()).unwrap();
        let mut lent = bench.client.in_session(&mut session);
        for commits in [true, false] {
            lent.start_transaction(TransactionOptions::default()).unwrap();
            for number in 0..4 {
                lent.insert(&things(), [rawdoc! { "_id": number }]).unwrap();
            }
            match commits {
                true => lent.commit_transaction().unwrap(),
                false => lent.abort_transaction().unwrap(),
            }
            let seen = set.journal.take();
            let of_it = seen.iter().filter(|one| !matches!(&*one.name, "hello" | "isMaster"));
            let asked: Vec<_> = of_it.map(|one| one.member.clone()).collect();
            assert_eq!(asked.len(), 5);
            assert!(asked.iter().all(|router| *router == asked[0]), "seed {seed}: {asked:?}");
            first_routers.insert(asked[0].clone());
        }
    }
    assert_eq!(first_routers.len(), 2, "another transaction may go elsewhere");
}

#[test]
fn a_lost_connection_in_a_transaction_is_transient_and_not_retried() {
    let (set, mut bench) = ready();
    let mut session = bench.client.start_session(SessionOptions::default()).unwrap();
    let mut lent = bench.client.in_session(&mut session);
    lent.start_transaction(TransactionOptions::default()).unwrap();
    set.members[0].next("find", Reaction::HangUp);
    let error = lent.find_one(&things(), &rawdoc! {}).unwrap_err();
    assert!(error.has_label(TRANSIENT_TRANSACTION_ERROR), "{error}");
    assert_eq!(named(&set.journal.take(), "find").len(), 1);
    lent.abort_transaction().unwrap();
    assert!(lent.abort_transaction().is_err());
    drop(lent);
    bench.client.end_session(session);
}

#[test]
fn work_is_repeated_with_pauses_on_the_clients_clock() {
    let (set, mut bench) = ready();
    for _ in 0..3 {
        set.members[0].next("insert", transient());
    }
    let mut session = bench.client.start_session(SessionOptions::default()).unwrap();
    bench.clock.take_slept();
    let mut lent = bench.client.in_session(&mut session);
    let mut runs = 0;
    let value = lent.with_transaction(&TransactionOptions::default(), |client| {
        runs += 1;
        client.insert(&things(), [rawdoc! { "_id": 1 }])?;
        Ok::<_, OperationError>(runs)
    });
    assert_eq!(value.unwrap(), 4);
    drop(lent);
    let slept = bench.clock.take_slept();
    assert!(!slept.is_zero() && slept < std::time::Duration::from_millis(36), "{slept:?}");
    let received = set.journal.take();
    assert_eq!(named(&received, "abortTransaction").len(), 3);
    assert_eq!(named(&received, "commitTransaction").len(), 1);
}

#[test]
fn work_that_never_succeeds_ends_after_two_minutes() {
    let (set, mut bench) = ready();
    set.members[0].always("insert", transient());
    let mut session = bench.client.start_session(SessionOptions::default()).unwrap();
    let clock = bench.clock.clone();
    let mut lent = bench.client.in_session(&mut session);
    let mut runs = 0;
    let outcome = lent.with_transaction(&TransactionOptions::default(), |client| {
        runs += 1;
        clock.advance(seconds(25));
        client.insert(&things(), [rawdoc! { "_id": 1 }])
    });
    assert!(outcome.unwrap_err().has_label(TRANSIENT_TRANSACTION_ERROR));
    assert_eq!(runs, 5, "25 s each, and no sixth after 125 s");
}

/// "Require `afterClusterTime` on all write commands in causally-consistent sessions."
#[test]
fn a_write_of_a_session_comes_after_what_the_session_has_seen() {
    let (set, mut bench) = ready();
    let noon = Timestamp { time: 12, increment: 1 };
    for command in ["insert", "update", "delete"] {
        let reply = rawdoc! { "ok": 1, "n": 1, "nModified": 1, "operationTime": noon };
        set.members[0].always(command, Reaction::Reply(reply));
    }
    let write = |client: &mut quorate_blocking_client::Client| {
        client.insert(&things(), [rawdoc! { "_id": 1 }]).unwrap();
        let (filter, update) = (rawdoc! {}, rawdoc! { "$set": { "a": 1 } });
        let statement = UpdateStatement { filter, update, multi: false, upsert: false };
        client.update(&things(), &statement).unwrap();
        client.delete(&things(), &rawdoc! {}, Extent::One).unwrap();
    };
    let after = rawdoc! { "afterClusterTime": noon };
    for (causal, expected) in [(true, Some(&*after)), (false, None)] {
        let options =
            SessionOptions { causal_consistency: Some(causal), ..SessionOptions::default() };
        let mut session = bench.client.start_session(options).unwrap();
        write(&mut bench.client.in_session(&mut session));
        bench.client.end_session(session);
        let received = set.journal.take();
        let concern = |name: &str| named(&received, name)[0].get_document("readConcern").ok();
        assert_eq!(concern("insert"), None, "the session had seen nothing");
        assert_eq!([concern("update"), concern("delete")], [expected; 2], "{causal}");
    }
}

#[test]
fn a_snapshot_session_reads_one_moment() {
    let (set, mut bench) = ready();
    let noon = Timestamp { time: 12, increment: 1 };
    let cursor = rawdoc! { "id": 0_i64, "ns": "d.things", "firstBatch": [], "atClusterTime": noon };
    set.members[0].always("find", Reaction::Reply(rawdoc! { "ok": 1, "cursor": cursor }));
    let options = SessionOptions { snapshot: true, ..SessionOptions::default() };
    let mut session = bench.client.start_session(options).unwrap();
    let mut lent = bench.client.in_session(&mut session);
    for _ in 0..2 {
        lent.find_one(&things(), &rawdoc! {}).unwrap();
    }
    assert!(lent.start_transaction(TransactionOptions::default()).is_err());
    drop(lent);
    assert_eq!(session.snapshot_time(), Some(noon));
    let received = set.journal.take();
    let [first, second] = named(&received, "find")[..] else { panic!("two reads") };
    assert_eq!(first.get_document("readConcern").unwrap(), &*rawdoc! { "level": "snapshot" });
    let later = rawdoc! { "level": "snapshot", "atClusterTime": noon };
    assert_eq!(second.get_document("readConcern").unwrap(), &*later);
}

fn batch(name: &str, changes: &[&str], token: &str) -> Reaction {
    let mut documents = bson::raw::RawArrayBuf::new();
    for id in changes {
        documents.push(rawdoc! { "_id": { "_data": *id }, "operationType": "insert" });
    }
    let mut cursor =
        rawdoc! { "id": 9_i64, "ns": "d.things", "postBatchResumeToken": { "_data": token } };
    cursor.append(<&bson::raw::CStr>::try_from(name).unwrap(), documents);
    Reaction::Reply(rawdoc! { "ok": 1, "cursor": cursor })
}

fn stage(aggregate: &RawDocumentBuf) -> RawDocumentBuf {
    let pipeline = aggregate.get_array("pipeline").unwrap();
    pipeline.get_document(0).unwrap().get_document("$changeStream").unwrap().to_owned()
}

fn id(change: &RawDocumentBuf) -> String {
    change.get_document("_id").unwrap().get_str("_data").unwrap().to_owned()
}

#[test]
fn a_stream_goes_on_after_its_last_change_when_the_connection_breaks() {
    let (set, mut bench) = ready();
    set.members[0].next("aggregate", batch("firstBatch", &["a"], "p"));
    set.members[0].next("getMore", Reaction::HangUp);
    set.members[0].next("aggregate", batch("firstBatch", &[], "q"));
    set.members[0].next("getMore", batch("nextBatch", &["b"], "r"));
    let options = WatchOptions {
        start: ChangeStreamStart::StartAfter(rawdoc! { "_data": "0" }),
        max_await_time: Some(seconds(1)),
        ..WatchOptions::default()
    };
    let watched = Watched::Collection(things());
    let mut stream = bench.client.watch(watched, [], options).unwrap();
    assert_eq!(id(&stream.next().unwrap().unwrap()), "a");
    assert_eq!(stream.resume_token(), Some(&rawdoc! { "_data": "p" }));
    assert_eq!(stream.next_if_any().unwrap(), None, "the stream was opened again");
    assert_eq!(stream.resume_token(), Some(&rawdoc! { "_data": "q" }));
    assert_eq!(id(&stream.next().unwrap().unwrap()), "b");
    drop(stream);
    let received = set.journal.take();
    let [first, second] = named(&received, "aggregate")[..] else { panic!("opened twice") };
    assert_eq!(stage(first), rawdoc! { "startAfter": { "_data": "0" } });
    assert_eq!(stage(second), rawdoc! { "resumeAfter": { "_data": "p" } });
    assert_eq!(named(&received, "getMore")[0].get_i64("maxTimeMS").unwrap(), 1000);
    assert_eq!(named(&received, "killCursors").len(), 1, "the last cursor is not left behind");
}

#[test]
fn errors_that_are_not_labelled_end_a_stream() {
    let (set, mut bench) = ready();
    set.members[0].next("aggregate", batch("firstBatch", &[], "p"));
    let gone = rawdoc! { "ok": 0, "code": 286, "errmsg": "gone" };
    set.members[0].next("getMore", Reaction::Reply(gone));
    let mut stream = bench.client.watch(Watched::Deployment, [], WatchOptions::default()).unwrap();
    assert_eq!(stream.next().unwrap().unwrap_err().code(), Some(286));
    assert!(stream.is_over() && stream.next().is_none());
    drop(stream);
    let received = set.journal.take();
    let [aggregate] = named(&received, "aggregate")[..] else { panic!("opened once") };
    assert_eq!(stage(aggregate), rawdoc! { "allChangesForCluster": true });
    assert_eq!(aggregate.get_str("$db").unwrap(), "admin");
}
