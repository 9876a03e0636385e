//! Cluster times travel with clients from member to member.

use bson::{Document, Timestamp, doc};

use crate::set::Set;

fn time(reply: &Document) -> Timestamp {
    reply.get_document("$clusterTime").unwrap().get_timestamp("clusterTime").unwrap()
}

#[test]
fn a_member_goes_on_from_the_time_that_a_client_brings() {
    let set = Set::initiated(2);
    let primary = set.primary();
    set.insert(primary, doc! { "_id": 0 }, 2.into()).unwrap();
    let before = time(&set.ok(primary, doc! { "ping": 1 }));
    let ahead = Timestamp { time: before.time + 1000, increment: 7 };
    let ping = |ahead: Timestamp| doc! { "ping": 1, "$clusterTime": { "clusterTime": ahead } };
    let follower = set.others(primary)[0];
    for place in [primary, follower] {
        let reply = set.ok(place, ping(ahead));
        assert_eq!(time(&reply), ahead);
        assert!(reply.get_timestamp("operationTime").unwrap() < ahead, "nothing was written yet");
    }
    let insert = doc! { "insert": "c", "documents": [{ "_id": 1 }], "$db": "db" };
    let written = set.ok(primary, insert).get_timestamp("operationTime").unwrap();
    assert!(written > ahead, "{written}");
    set.wait_until_identical();

    let absurd = Timestamp { time: before.time + 40_000_000, increment: 1 };
    let refusal = set.run(primary, ping(absurd)).unwrap();
    assert_eq!(refusal.get_i32("code").unwrap(), 209, "{refusal}");
    let wrong = set.run(primary, doc! { "ping": 1, "$clusterTime": { "clusterTime": 1 } }).unwrap();
    assert_eq!(wrong.get_i32("code").unwrap(), 14, "{wrong}");
}
