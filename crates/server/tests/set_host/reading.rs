//! Majority and causal reads of a member: what they see at once, and what ends those that wait.

use bson::{Bson, Document, doc};

use crate::client::{Client, TIMEOUT};
use crate::set::{Set, impatient, wait};

const PRIMARY_ONLY: Bson = Bson::Int32(1);

/// A set with one document that all members have, a second one that its primary alone has, and the
/// primary. The followers hang.
fn with_an_uncommitted_write(settings: Document) -> (Set, usize) {
    let set = Set::start(3).initiate(settings);
    let primary = set.primary();
    set.insert(primary, doc! { "_id": 1 }, Bson::from("majority")).unwrap();
    for place in set.others(primary) {
        set.freeze(place);
    }
    set.insert(primary, doc! { "_id": 2 }, PRIMARY_ONLY).unwrap();
    (set, primary)
}

fn find(concern: Document) -> Document {
    doc! { "find": "c", "$db": "db", "readConcern": concern, "maxTimeMS": 5000 }
}

fn ids(reply: &Document) -> Vec<i32> {
    let batch = reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
    batch.iter().map(|found| found.as_document().unwrap().get_i32("_id").unwrap()).collect()
}

/// The manual, read concern "majority".
#[test]
fn one_uncommitted_write_does_not_hold_majority_reads_up() {
    let (set, primary) = with_an_uncommitted_write(doc! {});
    let read = set.ok(primary, find(doc! { "level": "majority" }));
    assert_eq!(ids(&read), [1]);
    // A causal session goes on from what it has seen, not from what others wrote meanwhile.
    let seen = read.get_timestamp("operationTime").unwrap();
    let next = set.ok(primary, find(doc! { "level": "majority", "afterClusterTime": seen }));
    assert_eq!(ids(&next), [1]);
    let snapshot = set.ok(primary, find(doc! { "level": "snapshot" }));
    assert_eq!(ids(&snapshot), [1]);
    let local = set.ok(primary, find(doc! { "level": "local" }));
    assert_eq!(ids(&local), [1, 2]);
    let newest = local.get_timestamp("operationTime").unwrap();
    assert!(newest > seen);
    let late = find(doc! { "level": "majority", "afterClusterTime": newest });
    let mut hasty = late.clone();
    hasty.insert("maxTimeMS", 100);
    assert_eq!(set.run(primary, hasty).unwrap().get_i32("code").unwrap(), 50);
    for place in set.others(primary) {
        set.thaw(place);
    }
    assert_eq!(ids(&set.ok(primary, late)), [1, 2], "it waits for what its client has seen");
}

/// The rule of the design: a step-down ends a waiting read with its own code.
#[test]
fn a_step_down_ends_a_read_that_waits_for_a_majority() {
    let (set, primary) = with_an_uncommitted_write(impatient());
    let newest = set.ok(primary, find(doc! { "level": "local" }));
    let newest = newest.get_timestamp("operationTime").unwrap();
    let mut command = find(doc! { "level": "majority", "afterClusterTime": newest });
    command.remove("maxTimeMS");
    let address = set.members[primary].address;
    let reading = std::thread::spawn(move || {
        Client::connect(address, TIMEOUT).unwrap().run(&command, TIMEOUT).unwrap()
    });
    wait("the end of the read", || reading.is_finished().then_some(()));
    let reply = reading.join().unwrap();
    assert_eq!(reply.get_i32("code").ok(), Some(11602), "{reply}");
}
