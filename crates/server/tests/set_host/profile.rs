//! The profile and the counters of a member are its own.

use bson::{Bson, Document, doc};

use crate::set::Set;

fn first_batch(reply: &Document) -> Vec<Document> {
    let batch = reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
    batch.iter().filter_map(Bson::as_document).cloned().collect()
}

/// What a member's profile of `db` tells.
fn told(set: &Set, place: usize) -> Vec<Document> {
    let find = doc! {
        "find": "system.profile", "filter": { "ns": "db.c" }, "$db": "db",
        "$readPreference": { "mode": "nearest" },
    };
    first_batch(&set.ok(place, find))
}

#[test]
fn every_member_profiles_for_itself_and_no_other_copies_it() {
    let mut set = Set::initiated(1);
    set.ok(0, doc! { "profile": 2, "$db": "db" });
    set.insert(0, doc! { "_id": 1 }, Bson::Int32(1)).unwrap();
    assert_eq!(told(&set, 0).len(), 1);

    let new = set.add();
    let host = set.host(new);
    set.reconfigure(|config| {
        let member = doc! { "_id": 1, "host": host.as_str(), "priority": 0 };
        config.get_array_mut("members").unwrap().push(member.into());
    });
    set.wait_for_state(new, "SECONDARY");
    set.insert(0, doc! { "_id": 2 }, Bson::Int32(2)).unwrap();
    assert_eq!(told(&set, new), [], "what it copied is not the other's profile");

    set.ok(new, doc! { "profile": 2, "$db": "db" });
    let read = doc! { "find": "c", "$db": "db", "$readPreference": { "mode": "nearest" } };
    set.ok(new, read);
    let seen = told(&set, new);
    assert_eq!(seen.len(), 1, "{seen:?}");
    assert_eq!(seen[0].get_str("op").unwrap(), "query");
    set.insert(0, doc! { "_id": 3 }, Bson::Int32(2)).unwrap();
    set.wait_until_identical();

    let status = set.ok(new, doc! { "serverStatus": 1 });
    let applied = status.get_document("opcountersRepl").unwrap();
    assert!(applied.get_i64("insert").unwrap() >= 2, "{status}");
    assert_eq!(status.get_document("opcounters").unwrap().get_i64("insert").unwrap(), 0);
    let repl = status.get_document("repl").unwrap();
    assert_eq!(repl.get_str("setName").unwrap(), "rs0", "{status}");
    let network = status.get_document("network").unwrap();
    for name in ["bytesIn", "bytesOut", "numRequests"] {
        assert!(network.get_i64(name).unwrap() > 0, "{name} in {status}");
    }
}
