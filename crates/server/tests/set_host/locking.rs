//! `fsync` with `lock` on a follower: it stands still, and catches up.

use bson::{Bson, doc};

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
