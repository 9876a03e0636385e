//! Sessions: whose they are, and what ends with them.

#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use bson::spec::BinarySubtype;
use bson::{Binary, Document, doc};
use quorate_node::{Command, Context, Now};
use quorate_storage::{Batch, Direction, KeyRange, Store};
use sha2::{Digest, Sha256};
use support::{Member, context};

fn lsid(number: u8) -> Document {
    doc! {"id": Binary { subtype: BinarySubtype::Uuid, bytes: vec![number; 16] }}
}

/// Opens a cursor in a session.
fn open(member: &Member, context: &Context, session: u8) -> i64 {
    let find = doc! {"find": "c", "batchSize": 1, "lsid": lsid(session)};
    member.expect(context, find).get_document("cursor").unwrap().get_i64("id").unwrap()
}

fn is_open(member: &Member, context: &Context, session: u8, cursor: i64) -> bool {
    let more = doc! {"getMore": cursor, "collection": "c", "batchSize": 1, "lsid": lsid(session)};
    let reply = member.run_as(context, more);
    match reply.get_i32("code") {
        Ok(code) => {
            assert_eq!(code, 43, "{reply}");
            false
        }
        Err(_) => true,
    }
}

fn with_documents() -> Member {
    let member = Member::new();
    member.insert("c", (0..50).map(|n| doc! {"_id": n}).collect());
    member
}

#[test]
fn cursors_end_with_their_session_and_only_with_theirs() {
    let member = with_documents();
    let own = context();
    for ending in [
        doc! {"endSessions": [lsid(1)]},
        doc! {"killSessions": [lsid(1)]},
        doc! {"killAllSessionsByPattern": [{"lsid": lsid(1)}]},
    ] {
        let (ended, other) = (open(&member, &own, 1), open(&member, &own, 2));
        member.ok(ending);
        assert!(!is_open(&member, &own, 1, ended));
        assert!(is_open(&member, &own, 2, other));
    }
    for all in ["killSessions", "killAllSessions", "killAllSessionsByPattern"] {
        let (first, second) = (open(&member, &own, 1), open(&member, &own, 2));
        member.ok(doc! {all: []});
        assert!(!is_open(&member, &own, 1, first) && !is_open(&member, &own, 2, second));
    }
    assert_eq!(member.code(doc! {"killSessions": 1}), 14);
    assert_eq!(member.code(doc! {"killAllSessions": [{"user": "ada"}]}), 40414);
}

/// A connection so long after the first.
fn later(minutes: u64) -> Context {
    let now = support::now();
    let monotonic = now.monotonic + Duration::from_secs(60 * minutes);
    Context { now: Now { monotonic, ..now }, ..context() }
}

fn open_cursors(member: &Member) -> i64 {
    let status = member.ok(doc! {"serverStatus": 1, "$db": "admin"});
    let cursors = status.get_document("metrics").unwrap().get_document("cursor").unwrap();
    cursors.get_document("open").unwrap().get_i64("total").unwrap()
}

/// `driver-sessions.md`: a session that was not used for half an hour has ended, and its cursors with it.
#[test]
fn cursors_end_with_a_session_that_was_not_used_for_too_long() {
    let member = with_documents();
    open(&member, &later(0), 1);
    // A command that runs as long in the other session keeps it alive.
    let running = later(0);
    let command = Command::new(doc! {"count": "c", "lsid": lsid(2), "$db": "db"});
    let registered = member.node.register(&running, &command);
    let used = open(&member, &running, 2);
    member.node.maintain(later(29).now).unwrap();
    assert_eq!(open_cursors(&member), 2);
    member.node.maintain(later(31).now).unwrap();
    assert_eq!(open_cursors(&member), 1);
    assert!(is_open(&member, &later(31), 2, used));
    drop(registered);
    member.node.maintain(later(62).now).unwrap();
    assert_eq!(open_cursors(&member), 0);
}

#[test]
fn killing_a_session_stops_what_runs_in_it_and_ending_it_does_not() {
    let member = with_documents();
    let run = |session: u8| {
        let context = context();
        let command = Command::new(doc! {"find": "c", "lsid": lsid(session), "$db": "db"});
        let registered = member.node.register(&context, &command);
        member.expect(&context, command.body.to_document());
        (context, registered)
    };
    let (first, second) = (run(1), run(2));
    member.ok(doc! {"endSessions": [lsid(1)]});
    assert!(first.0.interrupt.check().is_ok());
    let (first, _registered) = run(1);
    member.ok(doc! {"killSessions": [lsid(1)]});
    assert_eq!(first.interrupt.check().unwrap_err().code.0, 11601);
    assert!(second.0.interrupt.check().is_ok());
    // The command that ends everything comes to its own end.
    let (own, _registered) = run(3);
    member.expect(&own, doc! {"killAllSessions": [], "lsid": lsid(3)});
    assert!(own.interrupt.check().is_ok());
    assert!(second.0.interrupt.check().is_err());
}

#[test]
fn users_end_their_own_sessions_and_administrators_those_of_others() {
    let member = Member::guarded();
    let writer = member.connect("CN=member", true);
    let documents: Vec<_> = (0..50).map(|n| doc! {"_id": n}).collect();
    member.expect(&writer, doc! {"insert": "c", "documents": documents});
    let ada = member.log_in("ada", &[("read", "db")]);
    let bob = member.log_in("bob", &[("read", "db"), ("clusterAdmin", "admin")]);
    let of_ada = open(&member, &ada, 1);
    let other = member.run_as(&bob, doc! {"find": "c", "lsid": lsid(1)});
    assert_eq!(other.get_i32("code").unwrap(), 13, "a session has one user: {other}");

    member.expect(&bob, doc! {"killSessions": []});
    member.expect(&bob, doc! {"endSessions": [lsid(1)]});
    assert!(is_open(&member, &ada, 1, of_ada), "sessions of others are not one's own to end");
    let refused = member.run_as(&ada, doc! {"killAllSessions": []});
    assert_eq!(refused.get_i32("code").unwrap(), 13, "{refused}");
    let uid = |name: &str| {
        let bytes = Sha256::digest(format!("CN={name}@$external")).to_vec();
        Binary { subtype: BinarySubtype::Generic, bytes }
    };
    let user = |name: &str| doc! {"user": format!("CN={name}"), "db": "$external"};
    for ending in [
        doc! {"killAllSessions": [user("ada")]},
        doc! {"killAllSessionsByPattern": [{"users": [user("ada")]}]},
        doc! {"killAllSessionsByPattern": [{"uid": uid("ada")}]},
    ] {
        let (of_ada, of_bob) = (open(&member, &ada, 1), open(&member, &bob, 2));
        let mut admin = ending;
        admin.insert("$db", "admin");
        member.expect(&bob, admin);
        assert!(!is_open(&member, &ada, 1, of_ada));
        assert!(is_open(&member, &bob, 2, of_bob));
    }
    let listed = |context: &Context, options: Document| {
        let pipeline = [doc! {"$listLocalSessions": options}];
        let command = doc! {"aggregate": 1, "pipeline": pipeline.to_vec(), "cursor": {}};
        member.run_as(context, command)
    };
    let count = |reply: Document| {
        reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap().len()
    };
    open(&member, &ada, 1);
    assert_eq!(count(listed(&ada, doc! {})), 1);
    assert_eq!(listed(&ada, doc! {"allUsers": true}).get_i32("code").unwrap(), 13);
    assert_eq!(count(listed(&bob, doc! {"allUsers": true})), 2);
}

/// `driver-sessions.md`: servers end sessions after half an hour. Strangers could keep all others out for as long.
#[test]
fn a_client_that_has_not_logged_in_starts_no_session() {
    let member = Member::guarded();
    let ada = member.log_in("ada", &[("clusterMonitor", "admin")]);
    let alive = || {
        let status = member.expect(&ada, doc! {"serverStatus": 1, "$db": "admin"});
        let records = status.get_document("logicalSessionRecordCache").unwrap();
        records.get_i32("activeSessionsCount").unwrap()
    };
    for (session, name) in (1..).zip(["ping", "hello", "buildInfo", "listCommands"]) {
        member.expect(&context(), doc! {name: 1, "lsid": lsid(session)});
    }
    assert_eq!(alive(), 0);
    let malformed = member.run_as(&context(), doc! {"ping": 1, "lsid": {"id": 1}});
    assert_eq!(malformed.get_i32("code").unwrap(), 40414, "{malformed}");
    member.expect(&ada, doc! {"ping": 1, "lsid": lsid(1)});
    assert_eq!(alive(), 1, "a user has sessions");
}

#[test]
fn a_cursor_with_an_end_takes_its_time_limit_from_the_command_that_opened_it() {
    let member = with_documents();
    let own = context();
    let cursor = open(&member, &own, 1);
    let more = doc! {"getMore": cursor, "collection": "c", "maxTimeMS": 5, "lsid": lsid(1)};
    let refused = member.run_as(&own, more);
    assert_eq!(refused.get_i32("code").unwrap(), 2, "{refused}");
    assert!(is_open(&member, &own, 1, cursor), "it is still of use");
}

/// The client of a cursor learns why it ended, once; the server's code is 175.
#[test]
fn a_cursor_whose_collection_is_gone_says_so() {
    let member = with_documents();
    let first = |member: &Member| {
        let opened = member.ok(doc! {"find": "c", "batchSize": 1});
        opened.get_document("cursor").unwrap().get_i64("id").unwrap()
    };
    let more = |cursor: i64| doc! {"getMore": cursor, "collection": "c"};
    for (ending, why) in [
        (doc! {"drop": "c"}, "collection dropped"),
        (
            doc! {"renameCollection": "db.c", "to": "db.d", "dropTarget": true, "$db": "admin"},
            "renamed",
        ),
        (doc! {"dropDatabase": 1}, "collection dropped"),
    ] {
        let cursor = first(&member);
        member.ok(ending.clone());
        let reply = member.run(more(cursor));
        assert_eq!(reply.get_i32("code").ok(), Some(175), "{ending}: {reply}");
        assert!(reply.get_str("errmsg").unwrap().contains(why), "{reply}");
        assert_eq!(member.code(more(cursor)), 43, "it is told once");
        member.insert("c", (0..50).map(|n| doc! {"_id": n}).collect());
    }
}

/// It counts over the whole life of a session: the server takes 64 bits and nothing else.
#[test]
fn a_transaction_number_has_64_bits() {
    let member = Member::with_history(quorate_storage::ModelStore::new(), 1 << 20);
    let insert = |id: i32, number: bson::Bson| {
        doc! {"insert": "c", "documents": [{"_id": id}], "lsid": lsid(1), "txnNumber": number}
    };
    for (id, number) in [bson::Bson::Int32(1), bson::Bson::Double(1.0)].into_iter().enumerate() {
        let code = member.code(insert(id as i32, number.clone()));
        assert_eq!(code, 14, "{number:?}");
    }
    member.ok(insert(9, 1_i64.into()));
}

/// How many rows the store has about sessions.
fn session_rows(member: &Member) -> usize {
    let keyspaces = member.store.keyspaces();
    let (_, sessions) = keyspaces.iter().find(|(name, _)| name == "sessions").unwrap();
    let scan = member.store.snapshot().scan(*sessions, KeyRange::all(), Direction::Forward);
    scan.unwrap().count()
}

#[test]
fn a_session_keeps_the_results_of_its_last_retryable_write_alone() {
    let member = support::set::primary();
    let insert = |number: i64, ids: std::ops::Range<i32>| {
        let documents: Vec<_> = ids.map(|id| doc! {"_id": id}).collect();
        doc! {"insert": "c", "documents": documents, "lsid": lsid(1), "txnNumber": number}
    };
    member.ok(insert(1, 0..3));
    // The session's row holds the result of the first statement.
    assert_eq!(session_rows(&member), 1 + 2);
    for (number, id) in [(2, 11), (3, 12), (4, 13)] {
        member.ok(insert(number, id..id + 1));
        assert_eq!(session_rows(&member), 1, "{number}");
    }
    // The row of a transaction's commit takes the place of the write's; other results stay for a rollback.
    let mut first = insert(5, 4..6);
    first.extend(doc! {"autocommit": false, "startTransaction": true});
    member.ok(first);
    member.ok(doc! {
        "commitTransaction": 1, "lsid": lsid(1), "txnNumber": 5_i64, "autocommit": false, "$db": "admin",
    });
    assert_eq!(session_rows(&member), 1);
    member.ok(insert(6, 6..9));
    assert_eq!(session_rows(&member), 1 + 2);
    // Another session's are its own.
    let mut other = insert(1, 9..10);
    other.insert("lsid", lsid(0));
    member.ok(other);
    member.ok(insert(7, 10..11));
    assert_eq!(session_rows(&member), 2);
}

#[test]
fn a_repeated_write_is_answered_as_before() {
    let member = support::set::primary();
    let text = "x".repeat(2_000);
    let writes = [
        doc! {"insert": "c", "documents": [{"_id": 1, "n": 0, "text": &text}, {"_id": 2}, {"_id": 3}]},
        doc! {"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"n": 1}}}]},
        doc! {"update": "c", "updates": [
            {"q": {"_id": 2}, "u": {"$inc": {"n": 1}}},
            {"q": {"_id": 4}, "u": {"$inc": {"n": 1}}, "upsert": true},
        ]},
        doc! {"delete": "c", "deletes": [{"q": {"_id": 3}, "limit": 1}]},
        // A short answer, and one that the row of the session does not hold.
        doc! {"findAndModify": "c", "query": {"_id": 2}, "update": {"$inc": {"n": 1}}},
        doc! {"findAndModify": "c", "query": {"_id": 1}, "update": {"$inc": {"n": 1}}},
    ];
    let found = || member.find(doc! {"find": "c"});
    let rows = [3, 1, 2, 1, 1, 2];
    for (number, (mut write, rows)) in writes.into_iter().zip(rows).enumerate() {
        write.extend(doc! {"lsid": lsid(1), "txnNumber": number as i64});
        let answer = member.ok(write.clone());
        let documents = found();
        let mut again = member.ok(write.clone());
        for told in ["retriedStmtIds", "retriedStmtId"] {
            again.remove(told);
        }
        assert_eq!((again, found()), (answer, documents), "{write}");
        assert_eq!(session_rows(&member), rows, "{write}");
    }
}

/// Commands that share a number are told apart by the numbers of their statements, which clients may give: a write that
/// was not done yet must not be answered as if it were.
#[test]
fn statements_of_one_number_are_told_apart_by_their_own_numbers() {
    let member = support::set::primary();
    let run = |mut write: Document, ids: Document| {
        write.extend(doc! {"lsid": lsid(1), "txnNumber": 1_i64});
        write.extend(ids);
        member.run(write)
    };
    let insert = |ids: &[i32]| {
        let documents: Vec<_> = ids.iter().map(|id| doc! {"_id": id}).collect();
        doc! {"insert": "c", "documents": documents}
    };
    let told = |reply: &Document| reply.get_array("retriedStmtIds").cloned().unwrap_or_default();
    assert_eq!(told(&run(insert(&[1]), doc! {"stmtIds": [5]})), []);
    assert_eq!(told(&run(insert(&[2, 3]), doc! {"stmtIds": [7, 6]})), []);
    assert_eq!(told(&run(insert(&[4, 5]), doc! {"stmtId": 8})), []);
    assert_eq!(member.find(doc! {"find": "c"}).len(), 5);
    assert_eq!(told(&run(insert(&[1, 6]), doc! {"stmtIds": [5, 10]})), [5.into()]);
    assert_eq!(told(&run(insert(&[4, 5]), doc! {"stmtId": 8})), [8.into(), 9.into()]);
    assert_eq!(member.find(doc! {"find": "c"}).len(), 6);
    let update = doc! {"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"n": 1}}}]};
    let modify = doc! {"findAndModify": "c", "query": {"_id": 1}, "update": {"$inc": {"n": 1}}};
    let delete = doc! {"delete": "c", "deletes": [{"q": {"_id": {"$gt": 3}}, "limit": 1}]};
    for (place, write) in [update, modify, delete].into_iter().enumerate() {
        for id in [20 + 2 * place as i32, 21 + 2 * place as i32] {
            let first = run(write.clone(), doc! {"stmtId": id});
            assert!(!first.contains_key("retriedStmtIds") && !first.contains_key("retriedStmtId"));
            let again = run(write.clone(), doc! {"stmtId": id});
            let one = again.get_i32("retriedStmtId").ok();
            assert_eq!(one.map_or_else(|| told(&again), |one| vec![one.into()]), [id.into()]);
        }
    }
    assert_eq!(member.find(doc! {"find": "c", "filter": {"_id": 1}}), [doc! {"_id": 1, "n": 4}]);
    assert_eq!(member.find(doc! {"find": "c"}).len(), 4);
    for (ids, code) in [
        (doc! {"stmtIds": [30, 31]}, 16),
        (doc! {"stmtIds": [30], "stmtId": 30}, 72),
        (doc! {"stmtIds": [-1]}, 2),
        (doc! {"stmtIds": ["x"]}, 14),
    ] {
        assert_eq!(run(insert(&[9]), ids.clone()).get_i32("code").unwrap(), code, "{ids}");
    }
}

/// Earlier versions kept every result in a row of its own.
#[test]
fn a_write_of_an_earlier_version_is_not_repeated() {
    let member = support::set::primary();
    member.ok(doc! {"insert": "c", "documents": [{"_id": 1, "n": 1}]});
    let update = doc! {
        "update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"n": 1}}}],
        "lsid": lsid(1), "txnNumber": 7_i64,
    };
    let keyspaces = member.store.keyspaces();
    let (_, sessions) = keyspaces.iter().find(|(name, _)| name == "sessions").unwrap();
    let session = [&[1; 16][..], &[0]].concat();
    let result = [&session[..16], &[1], &7_i64.to_be_bytes(), &0_i32.to_be_bytes()].concat();
    let mut batch = Batch::new();
    batch.insert(*sessions, session.clone(), 7_i64.to_be_bytes().to_vec());
    let answer = bson::rawdoc! {"n": 1, "nModified": 1};
    batch.insert(*sessions, result, answer.into_bytes());
    member.store.commit(batch).unwrap();
    assert_eq!(member.ok(update).get_i32("nModified").unwrap(), 1);
    assert_eq!(member.find(doc! {"find": "c"}), [doc! {"_id": 1, "n": 1}], "it was done before");
    member.ok(doc! {"insert": "c", "documents": [{"_id": 2}], "lsid": lsid(1), "txnNumber": 8_i64});
    assert_eq!(session_rows(&member), 1, "the old result is gone");
}

/// Each session that wrote leaves a row: they must not gather for ever.
#[test]
fn the_rows_of_a_session_go_when_it_has_not_written_for_as_long_as_it_lives() {
    let member = support::set::primary();
    let at = |minutes: u64| {
        let monotonic = support::now().monotonic + Duration::from_secs(minutes * 60);
        Now { monotonic, ..support::now() }
    };
    let run_at = |minutes: u64, session: u8, mut command: Document| {
        command.insert("lsid", lsid(session));
        let reply = member.run_as(&Context { now: at(minutes), ..context() }, command);
        assert_eq!(reply.get_f64("ok").unwrap(), 1.0, "{reply}");
        reply
    };
    let maintain_at = |minutes: u64| while member.node.maintain(at(minutes)).unwrap() {};
    let many: Vec<_> = (0..3_000).map(|id| doc! {"_id": id}).collect();
    let insert =
        |documents: Vec<Document>| doc! {"insert": "c", "documents": documents, "txnNumber": 1_i64};
    run_at(0, 1, insert(many));
    run_at(0, 2, insert(vec![doc! {"_id": "two"}]));
    run_at(0, 3, insert(vec![doc! {"_id": "three"}]));
    assert_eq!(session_rows(&member), 3_000 + 2);
    maintain_at(0);
    // One goes on writing, and this member does not hear of it again; one only reads.
    let update = doc! {
        "update": "c", "updates": [{"q": {"_id": "two"}, "u": {"$inc": {"n": 1}}}], "txnNumber": 2_i64,
    };
    run_at(20, 2, update.clone());
    member.ok(doc! {"endSessions": [lsid(2)], "$db": "admin"});
    run_at(20, 3, doc! {"find": "c", "limit": 1});
    maintain_at(29);
    assert_eq!(session_rows(&member), 3_000 + 2, "a session lives for half an hour");
    maintain_at(31);
    assert_eq!(session_rows(&member), 2);
    run_at(31, 2, update);
    assert_eq!(member.find(doc! {"find": "c", "filter": {"n": 1}}).len(), 1, "it is done once");
    maintain_at(62);
    assert_eq!(session_rows(&member), 0);
}

/// A row of the number of a session, and its key.
fn number_row(session: u32, number: i64) -> (Vec<u8>, Vec<u8>) {
    let mut key = vec![0; 16 + 1];
    key[..4].copy_from_slice(&session.to_be_bytes());
    (key, number.to_be_bytes().to_vec())
}

/// A row with the result of a statement, and its key.
fn result_row(session: u32, number: i64, statement: i32) -> (Vec<u8>, Vec<u8>) {
    let (mut key, _) = number_row(session, number);
    key[16] = 1;
    key.extend(number.to_be_bytes());
    key.extend(statement.to_be_bytes());
    (key, bson::rawdoc! {"n": 1}.into_bytes())
}

/// A member that has these rows of sessions.
fn with_rows(rows: impl IntoIterator<Item = (Vec<u8>, Vec<u8>)>) -> Member {
    let member = support::set::primary();
    let binary = |bytes| Binary { subtype: BinarySubtype::Generic, bytes };
    let rows = rows.into_iter().map(|(key, row)| doc! {"_id": binary(key), "row": binary(row)});
    member.node.clone_sessions(&rows.collect::<Vec<_>>(), support::now()).unwrap();
    member
}

fn on_config(mut command: Document) -> Document {
    command.insert("$db", "config");
    command
}

/// The numbers that a find on `config.transactions` shows, in its order.
fn numbers(member: &Member, direction: i32) -> Vec<i64> {
    let find = doc! {"find": "transactions", "sort": {"$natural": direction}, "batchSize": 10};
    let rows = member.find(on_config(find));
    rows.iter().map(|row| row.get_i64("txnNum").unwrap()).collect()
}

/// The manual, `config.transactions`: it is read as any collection is.
#[test]
fn every_command_that_reads_sees_the_rows_of_sessions() {
    let member = with_rows((1..=3).map(|session| number_row(session, i64::from(session))));
    assert_eq!(numbers(&member, 1), [1, 2, 3]);
    let ok = |command: Document| member.ok(on_config(command));
    let above = doc! {"txnNum": {"$gt": 1}};
    let count = |command: Document| ok(command).get_i32("n").unwrap();
    assert_eq!(count(doc! {"count": "transactions"}), 3);
    assert_eq!(count(doc! {"count": "transactions", "query": above.clone()}), 2);
    assert_eq!(count(doc! {"count": "transactions", "skip": 1, "limit": 1}), 1);
    let distinct = ok(doc! {"distinct": "transactions", "key": "txnNum", "query": above.clone()});
    assert_eq!(distinct.get_array("values").unwrap().len(), 2);
    let size = member.ok(doc! {"dataSize": "config.transactions"});
    assert_eq!(size.get_i64("numObjects").unwrap(), 3);
    assert_eq!(ok(doc! {"collStats": "transactions"}).get_i64("count").unwrap(), 3);
    let explained = ok(doc! {"explain": {"find": "transactions", "filter": above.clone()}});
    let stats = explained.get_document("executionStats").unwrap();
    assert_eq!(stats.get_i64("nReturned").unwrap(), 2);

    let found = |from: bson::Bson, stages: Vec<Document>| {
        let reply = ok(doc! {"aggregate": from, "pipeline": stages, "cursor": {}});
        let batch = reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap().clone();
        batch.into_iter().map(|row| row.as_document().unwrap().clone()).collect::<Vec<_>>()
    };
    assert_eq!(found("transactions".into(), Vec::new()).len(), 3);
    assert_eq!(found("transactions".into(), vec![doc! {"$match": above}]).len(), 2);
    let counted = vec![doc! {"$count": "n"}];
    assert_eq!(found("transactions".into(), counted.clone()), [doc! {"n": 3}]);
    let figures = found("transactions".into(), vec![doc! {"$collStats": {"count": {}}}]);
    assert_eq!(figures[0].get_i64("count").unwrap(), 3);
    let one = doc! {"$documents": [{"_id": 0}]};
    let union = vec![one.clone(), doc! {"$unionWith": "transactions"}, counted[0].clone()];
    assert_eq!(found(1.into(), union), [doc! {"n": 4}]);
    let join = doc! {"$lookup": {"from": "transactions", "pipeline": [], "as": "all"}};
    let joined = found(1.into(), vec![one, join]);
    assert_eq!(joined[0].get_array("all").unwrap().len(), 3);
    ok(doc! {"create": "v", "viewOn": "transactions", "pipeline": []});
    assert_eq!(member.find(on_config(doc! {"find": "v"})).len(), 3);
    assert_eq!(count(doc! {"count": "v"}), 3);
}

#[test]
fn no_session_is_left_out_of_what_is_shown() {
    /// More than one read was shown before.
    const SESSIONS: u32 = 100_001;
    let member = with_rows((0..SESSIONS).map(|session| number_row(session, i64::from(session))));
    let last = doc! {"find": "transactions", "skip": SESSIONS - 1};
    let last = member.find(on_config(last));
    assert_eq!(last.len(), 1);
    assert_eq!(last[0].get_i64("txnNum").unwrap(), i64::from(SESSIONS - 1));
    let counted = doc! {"count": "transactions", "query": {"txnNum": {"$gte": 0}}};
    let counted = member.ok(on_config(counted));
    assert_eq!(counted.get_i32("n").unwrap(), SESSIONS as i32);
}

#[test]
fn results_of_statements_are_passed_over_in_both_directions() {
    let mut rows = Vec::new();
    for (session, results) in [(0, 100), (1, 0), (2, 15), (3, 16), (4, 17), (u32::MAX, 40)] {
        rows.push(number_row(session, i64::from(session)));
        rows.extend((0..results).map(|statement| result_row(session, 1, statement)));
    }
    // The row of their session is gone.
    rows.extend((0..50).map(|statement| result_row(5, 1, statement)));
    let member = with_rows(rows);
    let last = i64::from(u32::MAX);
    assert_eq!(numbers(&member, 1), [0, 1, 2, 3, 4, last]);
    assert_eq!(numbers(&member, -1), [last, 4, 3, 2, 1, 0]);
}
