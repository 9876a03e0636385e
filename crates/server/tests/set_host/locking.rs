//! `fsync` with `lock` on a follower: it stands still, and catches up.

use bson::spec::BinarySubtype;
use bson::{Binary, Bson, Document, doc};

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
        let writes = || {
            let status = set.ok(primary, doc! { "serverStatus": 1 });
            let transactions = status.get_document("transactions").unwrap();
            transactions.get_i64("waitingWrites").unwrap()
        };
        std::thread::scope(|threads| {
            let plain = threads.spawn(|| set.ok(primary, increment()));
            set.wait("the write to wait", || (writes() == 1 || plain.is_finished()).then_some(()));
            let lock = threads.spawn(|| set.ok(primary, doc! { "fsync": 1, "lock": true }));
            set.wait("the lock to keep writes out", || {
                let late = doc! {
                    "insert": "d", "documents": [{}], "maxTimeMS": 20, "$db": "db",
                    "writeConcern": { "w": 1 },
                };
                let code = set.run(primary, late).unwrap().get_i32("code").ok();
                (code == Some(50) || lock.is_finished()).then_some(())
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
