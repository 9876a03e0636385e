//! The history as clients and tools read it: `local.oplog.rs`, `local.system.replset`, and what
//! `rs.printReplicationInfo()` asks. docs/replication-rules.md#oplog and #tools.

use bson::{Bson, Document, doc};

use crate::set::Set;

fn first_batch(reply: &Document) -> Vec<Document> {
    let batch = reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
    batch.iter().filter_map(Bson::as_document).cloned().collect()
}

#[test]
fn tools_read_the_history_and_its_limits_on_every_member() {
    let set = Set::initiated(3);
    let primary = set.primary();
    // Whenever a copy ended, it holds at least the second of these.
    for id in 0..2 {
        set.insert(primary, doc! { "_id": id }, Bson::Int32(3)).unwrap();
    }
    for place in 0..3 {
        let nearest = doc! { "mode": "nearest" };
        let listed = set.ok(
            place,
            doc! { "listCollections": 1, "$db": "local", "$readPreference": nearest.clone() },
        );
        let names: Vec<String> = first_batch(&listed)
            .iter()
            .map(|collection| collection.get_str("name").unwrap().to_owned())
            .collect();
        for name in ["oplog.rs", "system.replset"] {
            assert!(names.iter().any(|known| known == name), "{name} is not in {names:?}");
        }
        let figures = set.ok(
            place,
            doc! {
                "aggregate": "oplog.rs", "pipeline": [{ "$collStats": { "storageStats": {} } }],
                "cursor": {}, "$db": "local", "$readPreference": nearest.clone(),
            },
        );
        let figures = first_batch(&figures)[0].get_document("storageStats").unwrap().clone();
        assert!(figures.get_bool("capped").unwrap() && figures.get_i64("maxSize").unwrap() > 0);
        let end = |direction: i32| {
            let find = doc! {
                "find": "oplog.rs", "sort": { "$natural": direction }, "limit": 1,
                "$db": "local", "$readPreference": nearest.clone(),
            };
            first_batch(&set.ok(place, find))[0].get_timestamp("ts").unwrap()
        };
        assert!(end(1) < end(-1));
        let config = set.ok(
            place,
            doc! { "find": "system.replset", "$db": "local", "$readPreference": nearest },
        );
        let config = first_batch(&config);
        assert_eq!(config.len(), 1);
        assert_eq!(config[0].get_str("_id").unwrap(), "rs0");
        assert_eq!(config[0].get_array("members").unwrap().len(), 3);
    }
}

/// A set with so many hundred documents of a kilobyte, its primary, and a member that copies them anew.
fn with_a_wiped_member(hundreds: i32) -> (Set, usize, usize) {
    let mut set = Set::initiated(3);
    let primary = set.primary();
    for part in 0..hundreds {
        let documents: Vec<Bson> = (0..100)
            .map(|i| doc! { "_id": part * 100 + i, "text": "x".repeat(1000) }.into())
            .collect();
        set.ok(primary, doc! { "insert": "c", "documents": documents, "$db": "db" });
    }
    let wiped = (primary + 1) % 3;
    set.kill(wiped);
    std::fs::remove_dir_all(set.data(wiped)).unwrap();
    set.restart(wiped);
    (set, primary, wiped)
}

#[test]
fn a_fresh_member_shows_how_far_its_copy_is_and_ends_identical() {
    let (set, primary, wiped) = with_a_wiped_member(20);
    // Entries that are written during the copy belong to it too.
    let mut seen = None;
    let mut id = 10_000;
    set.wait("the copy to end", || {
        id += 1;
        set.insert(primary, doc! { "_id": id }, Bson::Int32(1)).unwrap();
        let status = set.run(wiped, doc! { "replSetGetStatus": 1 }).ok()?;
        if let Ok(progress) = status.get_document("initialSyncStatus") {
            seen = Some(progress.clone());
        }
        (status.get_i32("myState").ok()? == 2).then_some(())
    });
    if let Some(progress) = seen {
        for field in ["percent", "megabytesPerSecond"] {
            assert!(progress.get_f64(field).is_ok(), "{field}: {progress}");
        }
        for field in ["approxTotalDataSize", "approxTotalBytesCopied", "collectionsCopied"] {
            assert!(progress.get_i64(field).is_ok(), "{field}: {progress}");
        }
    }
    let count = set.wait_until_identical();
    assert!(count > 2000, "{count}");
}

#[test]
fn the_vote_is_shown_to_tools() {
    let set = Set::initiated(3);
    let primary = set.primary();
    let find = doc! {
        "find": "replset.election", "$db": "local", "$readPreference": { "mode": "nearest" },
    };
    let shown = first_batch(&set.ok(primary, find));
    let vote = shown[0].get_document("lastVote").unwrap_or(&shown[0]);
    assert!(matches!(vote.get("term"), Some(Bson::Int64(1) | Bson::Int32(1))), "{shown:?}");
}

/// `$out` makes a collection and renames it, over and over while a member copies everything.
#[test]
fn an_out_stage_during_a_copy_is_copied_too() {
    let (set, primary, wiped) = with_a_wiped_member(10);
    let mut round = 0;
    set.wait("the copy to end", || {
        round += 1;
        let few = doc! { "$match": { "_id": { "$lt": 20 } } };
        let mark = doc! { "$addFields": { "round": round } };
        let pipeline = vec![few, mark, doc! { "$out": "latest" }];
        set.ok(primary, doc! { "aggregate": "c", "pipeline": pipeline, "cursor": {}, "$db": "db" });
        let status = set.run(wiped, doc! { "replSetGetStatus": 1 }).ok()?;
        (status.get_i32("myState").ok()? == 2).then_some(())
    });
    set.wait_until_identical();
    let count = doc! {
        "count": "latest", "query": { "round": round }, "$db": "db",
        "$readPreference": { "mode": "nearest" },
    };
    assert_eq!(set.ok(wiped, count).get_i32("n").ok(), Some(20));
}
