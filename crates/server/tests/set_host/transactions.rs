//! What becomes of transactions when members restart, and when they copy everything.

use bson::spec::BinarySubtype;
use bson::{Binary, Bson, Document, doc};

use crate::set::Set;

/// A statement of a transaction of one session.
fn statement(number: i64, command: Document) -> Document {
    statement_of(7, number, command)
}

fn statement_of(session: u8, number: i64, mut command: Document) -> Document {
    let id = Binary { subtype: BinarySubtype::Uuid, bytes: vec![session; 16] };
    command.extend(doc! { "lsid": { "id": id }, "txnNumber": number, "autocommit": false });
    command.entry("$db".to_owned()).or_insert("db".into());
    command
}

fn first(number: i64, command: Document) -> Document {
    let mut command = statement(number, command);
    command.insert("startTransaction", true);
    command
}

fn commit(number: i64) -> Document {
    let concern = doc! { "w": "majority" };
    statement(number, doc! { "commitTransaction": 1, "writeConcern": concern, "$db": "admin" })
}

fn update(id: i32, x: i32) -> Document {
    doc! { "update": "c", "updates": [{ "q": { "_id": id }, "u": { "$set": { "x": x } } }] }
}

fn values(set: &Set, place: usize) -> Vec<i32> {
    let reply = set.ok(place, doc! { "find": "c", "sort": { "_id": 1 }, "$db": "db" });
    let batch = reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
    batch.iter().map(|found| found.as_document().unwrap().get_i32("x").unwrap()).collect()
}

#[test]
fn a_restarted_member_knows_what_was_committed_and_nothing_of_what_was_open() {
    let mut set = Set::initiated(1);
    let primary = set.primary();
    for id in 0..2 {
        set.insert(primary, doc! { "_id": id, "x": 0 }, Bson::from("majority")).unwrap();
    }
    set.ok(primary, first(1, update(0, 1)));
    set.ok(primary, commit(1));
    set.ok(primary, first(2, update(1, 1)));
    set.kill(primary);
    set.restart(primary);
    let primary = set.primary();
    assert_eq!(values(&set, primary), [1, 0]);
    // The commit of the one is known, the other is gone, and holds nothing up.
    set.ok(primary, commit(1));
    let reply = set.run(primary, commit(2)).unwrap();
    assert_eq!(reply.get_i32("code").ok(), Some(251), "{reply}");
    let mut plain = update(1, 5);
    plain.insert("$db", "db");
    set.ok(primary, plain);
    assert_eq!(values(&set, primary), [1, 5]);
}

#[test]
fn a_member_that_copies_everything_begins_before_a_transaction_of_several_entries() {
    let mut set = Set::initiated(3);
    let primary = set.primary();
    set.insert(primary, doc! { "_id": 0, "x": 0 }, Bson::from("majority")).unwrap();
    let wiped = set.others(primary)[0];
    set.kill(wiped);
    std::fs::remove_dir_all(set.data(wiped)).unwrap();
    // Two entries, the last of which is the newest of the log when the copy begins.
    for id in 1..=3 {
        let documents = vec![doc! { "_id": id, "x": id, "text": "x".repeat(7 * 1024 * 1024) }];
        let insert = doc! { "insert": "c", "documents": documents };
        set.ok(primary, if id == 1 { first(1, insert) } else { statement(1, insert) });
    }
    set.ok(primary, commit(1));
    set.restart(wiped);
    set.wait_for_state(wiped, "SECONDARY");
    assert_eq!(set.wait_until_identical(), 4);
    // It never had to begin again.
    let counted =
        set.ok(wiped, doc! { "count": "c", "$db": "db", "$readPreference": { "mode": "nearest" } });
    assert_eq!(counted.get_i32("n").ok(), Some(4));
}

/// Commands that the process or the host of the set answers never come to the member's own check.
#[test]
fn no_command_of_the_process_or_the_set_is_part_of_a_transaction() {
    let set = Set::initiated(1);
    let primary = set.primary();
    for command in [
        doc! { "replSetGetStatus": 1 },
        doc! { "replSetGetConfig": 1 },
        doc! { "replSetStepDown": 1, "force": true },
        doc! { "getLog": "global" },
        doc! { "fsync": 1, "lock": true },
        doc! { "setDefaultRWConcern": 1, "defaultWriteConcern": { "w": 1 } },
        doc! { "shutdown": 1, "force": true },
    ] {
        let mut command = command;
        command.insert("$db", "admin");
        let reply = set.run(primary, first(1, command.clone())).unwrap();
        assert_eq!(reply.get_i32("code").ok(), Some(263), "{command} answered {reply}");
    }
    assert_eq!(set.primary(), primary);
    set.insert(primary, doc! { "_id": 1 }, Bson::from("majority")).unwrap();
}

/// The members of this test have two workers each.
#[test]
fn statements_that_let_a_drop_go_first_keep_no_worker_from_other_clients() {
    let set = Set::initiated(1);
    let primary = set.primary();
    set.insert(primary, doc! { "_id": 0, "x": 0 }, Bson::from("majority")).unwrap();
    set.ok(primary, doc! { "setParameter": 1, "maxTransactionLockRequestTimeoutMillis": -1 });
    set.ok(primary, first(1, update(0, 1)));
    let waiting = || {
        let status = set.ok(primary, doc! { "serverStatus": 1 });
        status.get_document("transactions").unwrap().get_i64("waitingWrites").unwrap()
    };
    std::thread::scope(|threads| {
        let dropped = threads.spawn(|| set.ok(primary, doc! { "drop": "c", "$db": "db" }));
        set.wait("the drop to wait", || (waiting() == 1).then_some(()));
        let reads: Vec<_> = (1..=4)
            .map(|session| {
                let find = doc! { "find": "c", "filter": { "_id": 0 }, "startTransaction": true };
                let find = statement_of(session, 1, find);
                let abort = doc! { "abortTransaction": 1, "$db": "admin" };
                let abort = statement_of(session, 1, abort);
                threads.spawn(|| {
                    let reply = set.run(primary, find).unwrap();
                    // One that came before the drop holds it up, and with it those that let it go first.
                    set.run(primary, abort).unwrap();
                    reply
                })
            })
            .collect();
        set.wait("the statements to wait", || (waiting() == 5).then_some(()));
        set.ok(primary, commit(1));
        for read in reads {
            // It came before the drop, or there is nothing left for it to read.
            let reply = read.join().unwrap();
            let code = reply.get_i32("code").ok();
            assert!(code.is_none_or(|code| code == 246), "{reply}");
        }
        dropped.join().unwrap();
    });
}

/// As many as long commands run at once, and so many more that some would wait for them.
const LONG_WRITES: usize = 130;

/// Each of them scans, and waits for the transaction. The transaction scans as well, and must come to its end.
#[test]
fn writes_that_scan_and_wait_for_a_transaction_keep_it_from_no_scan_of_its_own() {
    let set = Set::initiated(1);
    let primary = set.primary();
    set.insert(primary, doc! { "_id": 0, "x": 0 }, Bson::from("majority")).unwrap();
    set.ok(primary, first(1, update(0, 1)));
    let waiting = || {
        let status = set.ok(primary, doc! { "serverStatus": 1 });
        status.get_document("transactions").unwrap().get_i64("waitingWrites").unwrap()
    };
    let scan = || doc! { "find": "c", "filter": { "y": 1 }, "$db": "db" };
    std::thread::scope(|threads| {
        for _ in 0..LONG_WRITES {
            let all = doc! { "q": {}, "u": { "$inc": { "x": 1 } }, "multi": true };
            let write = doc! { "update": "c", "updates": [all], "$db": "db" };
            threads.spawn(|| set.run(primary, write).unwrap());
        }
        set.wait("the writes to wait", || (waiting() >= 128).then_some(()));
        set.ok(primary, scan());
        set.ok(primary, statement(1, scan()));
        set.ok(primary, commit(1));
    });
    assert_eq!(values(&set, primary), [1 + LONG_WRITES as i32]);
}
