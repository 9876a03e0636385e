//! `fsync` with `lock` on a follower: it stands still, and catches up.

use bson::spec::BinarySubtype;
use bson::{Binary, Bson, Document, doc};

use quorate_wire::MsgFlags;

use crate::client::{Client, TIMEOUT};
use crate::set::Set;

#[test]
fn a_locked_follower_applies_nothing_and_still_votes() {
    let set = Set::initiated(3);
    let primary = set.primary();
    let [locked, other] = set.others(primary)[..] else { panic!("two others") };
    set.insert(primary, doc! { "_id": 0 }, Bson::Int32(3)).unwrap();
    set.ok(locked, doc! { "fsync": 1, "lock": true });
    // The majority is the other two; the locked one falls behind.
    set.insert(primary, doc! { "_id": 1 }, "majority".into()).unwrap();
    let late = doc! {
        "insert": "c", "documents": [{ "_id": 2 }], "$db": "db",
        "writeConcern": { "w": 3, "wtimeout": 200 },
    };
    let reply = set.ok(primary, late);
    let error = reply.get_document("writeConcernError").unwrap();
    assert_eq!(error.get_i32("code").unwrap(), 64, "{reply}");
    let count = doc! { "count": "c", "$db": "db", "$readPreference": { "mode": "nearest" } };
    assert_eq!(set.ok(locked, count).get_i32("n").unwrap(), 1);
    // Its vote counts: without it no member could lead after this.
    set.wait_until_alike(&[primary, other]);
    set.ok(primary, doc! { "replSetStepDown": 60, "secondaryCatchUpPeriodSecs": 20 });
    assert_eq!(set.primary_among(&[locked, other]), other);
    set.ok(locked, doc! { "fsyncUnlock": 1 });
    assert_eq!(set.wait_until_identical(), 3);
}

/// A statement of a transaction of this session.
fn statement(session: u8, mut command: Document) -> Document {
    let id = Binary { subtype: BinarySubtype::Uuid, bytes: vec![session; 16] };
    command.extend(doc! { "lsid": { "id": id }, "txnNumber": 1_i64, "autocommit": false });
    command
}

fn increment() -> Document {
    doc! { "update": "c", "updates": [{ "q": { "_id": 0 }, "u": { "$inc": { "n": 1 } } }], "$db": "db" }
}

/// Whether a write waits for a transaction.
fn has_waiting_write(set: &Set, primary: usize) -> bool {
    let status = set.ok(primary, doc! { "serverStatus": 1 });
    let transactions = status.get_document("transactions").unwrap();
    transactions.get_i64("waitingWrites").unwrap() > 0
}

/// Whether a write has to wait before it begins.
fn is_kept_out(set: &Set, primary: usize) -> bool {
    let write = doc! {
        "insert": "d", "documents": [{}], "maxTimeMS": 20, "$db": "db", "writeConcern": { "w": 1 },
    };
    set.run(primary, write).unwrap().get_i32("code").ok() == Some(50)
}

/// A plain write waits for a transaction, and `fsync` for the write: the transaction must come to its end, or none would.
#[test]
fn a_transaction_ends_while_the_lock_waits_for_a_write_that_waits_for_it() {
    let set = Set::initiated(1);
    let primary = set.primary();
    set.insert(primary, doc! { "_id": 0, "n": 0 }, "majority".into()).unwrap();
    set.ok(primary, doc! { "setParameter": 1, "transactionLifetimeLimitSeconds": 60 });
    let commit = doc! { "commitTransaction": 1, "$db": "admin" };
    // One is committed by its client, the time of the other passes.
    for (session, ends) in [(1, true), (2, false)] {
        if !ends {
            set.ok(primary, doc! { "setParameter": 1, "transactionLifetimeLimitSeconds": 1 });
        }
        let mut first = statement(session, increment());
        first.insert("startTransaction", true);
        set.ok(primary, first);
        std::thread::scope(|threads| {
            let plain = threads.spawn(|| set.ok(primary, increment()));
            set.wait("the write to wait", || {
                (has_waiting_write(&set, primary) || plain.is_finished()).then_some(())
            });
            let lock = threads.spawn(|| set.ok(primary, doc! { "fsync": 1, "lock": true }));
            set.wait("the lock to keep writes out", || {
                (is_kept_out(&set, primary) || lock.is_finished()).then_some(())
            });
            if ends {
                set.ok(primary, statement(session, commit.clone()));
            }
            assert_eq!(plain.join().unwrap().get_i32("nModified").ok(), Some(1));
            lock.join().unwrap();
        });
        set.ok(primary, doc! { "fsyncUnlock": 1 });
    }
    let found = set.ok(primary, doc! { "find": "c", "$db": "db" });
    let batch = found.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
    assert_eq!(batch[..], [Bson::from(doc! { "_id": 0, "n": 3 })]);
}

/// No other client knows of the lock, so that none would give it back.
#[test]
fn a_lock_that_waits_for_writes_ends_with_its_client() {
    let set = Set::initiated(1);
    let primary = set.primary();
    set.insert(primary, doc! { "_id": 0, "n": 0 }, "majority".into()).unwrap();
    let mut first = statement(1, increment());
    first.insert("startTransaction", true);
    set.ok(primary, first);
    std::thread::scope(|threads| {
        let plain = threads.spawn(|| set.ok(primary, increment()));
        set.wait("the write to wait", || has_waiting_write(&set, primary).then_some(()));
        let mut client = Client::connect(set.members[primary].address, TIMEOUT).unwrap();
        let lock = doc! { "fsync": 1, "lock": true, "$db": "admin" };
        client.send(&lock, MsgFlags::NONE).unwrap();
        set.wait("the lock to keep writes out", || is_kept_out(&set, primary).then_some(()));
        drop(client);
        set.wait("writes to go on", || (!is_kept_out(&set, primary)).then_some(()));
        set.ok(primary, statement(1, doc! { "commitTransaction": 1, "$db": "admin" }));
        assert_eq!(plain.join().unwrap().get_i32("nModified").ok(), Some(1));
    });
    let unlocked = set.run(primary, doc! { "fsyncUnlock": 1 }).unwrap();
    assert_eq!(unlocked.get_i32("code").ok(), Some(20), "{unlocked}");
}

/// It would be done when the lock is given back, however late, and its client may have repeated it elsewhere.
#[test]
fn a_write_that_waits_for_the_lock_ends_with_its_client() {
    let set = Set::initiated(1);
    let primary = set.primary();
    set.insert(primary, doc! { "_id": 0, "n": 0 }, "majority".into()).unwrap();
    set.ok(primary, doc! { "fsync": 1, "lock": true });
    let mut client = Client::connect(set.members[primary].address, TIMEOUT).unwrap();
    client.send(&increment(), MsgFlags::NONE).unwrap();
    let running = || {
        let reply = set.ok(primary, doc! { "currentOp": 1, "op": "update" });
        reply.get_array("inprog").unwrap().len()
    };
    set.wait("the write to wait", || (running() == 1).then_some(()));
    drop(client);
    set.wait("the write to end", || (running() == 0).then_some(()));
    set.ok(primary, doc! { "fsyncUnlock": 1 });
    let found = set.ok(primary, doc! { "find": "c", "$db": "db" });
    let batch = found.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
    assert_eq!(batch[..], [Bson::from(doc! { "_id": 0, "n": 0 })]);
}
