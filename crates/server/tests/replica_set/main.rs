//! Replica sets of real processes: elections, replication, crashes, copies.
//!
//! This file holds what needs neither load nor faults. `processes` kills, freezes and replaces members
//! under load, `faults` breaks the network between them by a proxy, `separation` by real network
//! namespaces; `drivers` has official clients live through it.

#![allow(clippy::unwrap_used, reason = "a panic is the report")]

mod client;
mod drivers;
mod faults;
mod flow;
mod hardship;
mod load;
mod machine_faults;
mod processes;
mod separation;
mod set;

use std::time::Instant;

use bson::{Bson, doc};
use client::{Client, TIMEOUT};
use set::{Set, impatient};

const PRIMARY_ONLY: Bson = Bson::Int32(1);

fn majority() -> Bson {
    Bson::from("majority")
}

fn remove_member(config: &mut bson::Document, place: usize) {
    config.get_array_mut("members").unwrap().retain(|member| {
        member.as_document().and_then(|member| member.get_i32("_id").ok()) != Some(place as i32)
    });
}

#[test]
fn a_member_is_a_ghost_until_it_is_initiated_and_primary_afterwards() {
    let set = Set::start(1);
    let ghost = set.ok(0, doc! { "hello": 1 });
    assert_eq!(ghost.get_bool("isreplicaset").ok(), Some(true));
    assert!(!ghost.contains_key("setName"), "{ghost}");
    let refused = set.run(0, doc! { "replSetGetStatus": 1 }).unwrap();
    assert_eq!(refused.get_i32("code").ok(), Some(94));
    assert_eq!(
        set.insert(0, doc! { "_id": 1 }, PRIMARY_ONLY).unwrap_err().matches("10107").count(),
        1
    );

    let initiated = set.ok(0, doc! { "replSetInitiate": {} });
    assert!(initiated.contains_key("info2"), "{initiated}");
    assert_eq!(initiated.get_str("me").unwrap(), set.host(0));
    assert_eq!(set.primary(), 0);
    let hello = set.ok(0, doc! { "hello": 1 });
    assert_eq!(hello.get_str("setName").ok(), Some("rs0"));
    assert_eq!(hello.get_str("me").unwrap(), hello.get_str("primary").unwrap());
    assert!(hello.get_object_id("electionId").is_ok());
    assert!(hello.get_document("lastWrite").unwrap().contains_key("majorityOpTime"));
    set.insert(0, doc! { "_id": 1 }, majority()).unwrap();
    let again = set.run(0, doc! { "replSetInitiate": {} }).unwrap();
    assert_eq!(again.get_i32("code").ok(), Some(23));
}

/// More than one message of the oplog's stream holds: its source must come to rest afterwards.
#[test]
fn an_insert_of_many_megabytes_reaches_a_majority() {
    let set = Set::initiated(3);
    let primary = set.primary();
    let documents: Vec<_> = (0..9).map(|id| doc! { "_id": id, "x": "x".repeat(1 << 20) }).collect();
    let reply = set.ok(
        primary,
        doc! {
            "insert": "big", "documents": documents, "$db": "db",
            "writeConcern": { "w": 3, "wtimeout": 60_000 },
        },
    );
    assert_eq!(reply.get_i32("n").ok(), Some(9));
    assert!(!reply.contains_key("writeConcernError"), "{reply}");
    set.insert(primary, doc! { "_id": 1 }, majority()).unwrap();
}

/// Every document is a statement of its own to the members that copy it.
#[test]
fn a_retryable_insert_of_many_documents_reaches_every_member() {
    let set = Set::initiated(3);
    let primary = set.primary();
    let session =
        Bson::Binary(bson::Binary { subtype: bson::spec::BinarySubtype::Uuid, bytes: vec![7; 16] });
    for number in [1_i64, 2] {
        let documents: Vec<_> = (0..8000).map(|id| doc! { "_id": id * 10 + number }).collect();
        let reply = set.ok(
            primary,
            doc! {
                "insert": "many", "documents": documents, "$db": "db",
                "lsid": { "id": session.clone() }, "txnNumber": number,
                "writeConcern": { "w": 3, "wtimeout": 60_000 },
            },
        );
        assert_eq!(reply.get_i32("n").ok(), Some(8000));
        assert!(!reply.contains_key("writeConcernError"), "{reply}");
    }
}

#[test]
fn an_awaited_hello_is_answered_when_the_state_changes() {
    let set = Set::start(1);
    let hello = set.ok(0, doc! { "hello": 1 });
    let version = hello.get_document("topologyVersion").unwrap().clone();
    let start = Instant::now();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            set.ok(
                0,
                doc! {
                    "hello": 1, "topologyVersion": version.clone(), "maxAwaitTimeMS": 15_000,
                },
            )
        });
        set.ok(0, doc! { "replSetInitiate": {} });
        let reply = waiting.join().unwrap();
        let counter = reply.get_document("topologyVersion").unwrap().get_i64("counter").unwrap();
        assert!(counter > version.get_i64("counter").unwrap(), "{reply}");
    });
    assert!(start.elapsed().as_secs() < 10, "it did not wait out its time");
}

/// docs/replication-rules.md#elections: connections outlive a step-down, but for writers that would never
/// learn of it.
#[test]
fn an_unacknowledged_write_to_a_secondary_closes_its_connection_and_no_other() {
    let set = Set::initiated(3);
    let secondary = set.others(set.primary())[0];
    let connect = || Client::connect(set.members[secondary].address, TIMEOUT).unwrap();
    let (mut writer, mut reader) = (connect(), connect());
    let hello = doc! { "hello": 1, "$db": "admin" };
    assert!(writer.run(&hello, TIMEOUT).is_ok() && reader.run(&hello, TIMEOUT).is_ok());
    let write = doc! {
        "insert": "c", "documents": [{ "_id": 1 }], "writeConcern": { "w": 0 }, "$db": "db",
    };
    writer.send(&write, quorate_wire::MsgFlags::MORE_TO_COME).unwrap();
    assert!(writer.run(&hello, TIMEOUT).is_err(), "the connection is closed");
    assert!(reader.run(&hello, TIMEOUT).is_ok());
}

#[test]
fn three_members_survive_kill_9_of_their_primary_without_losing_a_majority_write() {
    let mut set = Set::initiated(3);
    let first = set.primary();
    for id in 0..200 {
        set.insert(first, doc! { "_id": id }, majority()).unwrap();
    }
    let secondary = (first + 1) % 3;
    let refusal = set.insert(secondary, doc! { "_id": "no" }, PRIMARY_ONLY).unwrap_err();
    assert!(refusal.contains("10107") && refusal.contains("topologyVersion"), "{refusal}");

    set.kill(first);
    let start = Instant::now();
    let second = set.primary();
    let gap = start.elapsed();
    assert_ne!(second, first);
    assert!(gap.as_millis() < 2_000, "the crash shortcut was not taken: {gap:?}");
    for id in 200..300 {
        set.insert(second, doc! { "_id": id }, majority()).unwrap();
    }
    set.restart(first);
    set.wait_for_state(first, "SECONDARY");
    assert_eq!(set.wait_until_identical(), 300);
    let status = set.ok(second, doc! { "replSetGetStatus": 1 });
    assert_eq!(status.get_array("members").unwrap().len(), 3);
}

#[test]
fn a_write_that_a_majority_does_not_have_is_an_error_beside_the_write() {
    let mut set = Set::initiated(3);
    let primary = set.primary();
    set.insert(primary, doc! { "_id": 0 }, majority()).unwrap();
    for place in (0..3).filter(|place| *place != primary) {
        set.kill(place);
    }
    let command = doc! {
        "insert": "c", "documents": [{ "_id": 1 }], "$db": "db",
        "writeConcern": { "w": "majority", "wtimeout": 100 },
    };
    let reply = set.ok(primary, command);
    assert_eq!(reply.get_i32("n").ok(), Some(1));
    let error = reply.get_document("writeConcernError").unwrap();
    assert_eq!(error.get_i32("code").ok(), Some(64), "{reply}");
    // A local read sees the write, a majority read what a majority has, and a linearizable one waits in vain.
    let read = |level: &str| {
        doc! {
            "find": "c", "filter": { "_id": 1 }, "$db": "db", "maxTimeMS": 200,
            "readConcern": { "level": level },
        }
    };
    let shown = |level: &str| {
        let reply = set.ok(primary, read(level));
        reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap().clone()
    };
    assert_eq!(shown("local"), [doc! { "_id": 1 }.into()]);
    assert_eq!(shown("majority"), []);
    let reply = set.run(primary, read("linearizable")).unwrap();
    assert_eq!(reply.get_i32("code").ok(), Some(50), "{reply}");
    let command = doc! {
        "insert": "c", "documents": [{ "_id": 2 }], "$db": "db", "writeConcern": { "w": 5 },
    };
    let reply = set.ok(primary, command);
    let error = reply.get_document("writeConcernError").unwrap();
    assert_eq!(error.get_i32("code").ok(), Some(100), "{reply}");
}

/// docs/replication-rules.md#commit-point: that nothing had to be changed is true only once what made it so
/// is replicated.
#[test]
fn a_write_that_changes_nothing_waits_for_what_was_before_it() {
    let mut set = Set::initiated(3);
    let primary = set.primary();
    set.insert(primary, doc! { "_id": 0 }, majority()).unwrap();
    for place in set.others(primary) {
        set.kill(place);
    }
    let delete = |place: usize, w: Bson| {
        let deletes = [doc! { "q": { "_id": "nothing" }, "limit": 1 }];
        let command = doc! {
            "delete": "c", "deletes": deletes, "$db": "db",
            "writeConcern": { "w": w, "wtimeout": 100 },
        };
        set.ok(place, command)
    };
    set.insert(primary, doc! { "_id": 1 }, PRIMARY_ONLY).unwrap();
    let reply = delete(primary, majority());
    assert_eq!(reply.get_i32("n").ok(), Some(0));
    let error = reply.get_document("writeConcernError").unwrap();
    assert_eq!(error.get_i32("code").ok(), Some(64), "{reply}");
    assert!(!delete(primary, PRIMARY_ONLY).contains_key("writeConcernError"));
}

#[test]
fn a_secondary_that_is_told_not_to_copy_holds_up_only_those_who_wait_for_it() {
    let set = Set::initiated(3);
    let (primary, secondary) = (set.primary(), set.others(set.primary())[0]);
    let fail_point =
        |mode: &str| doc! { "configureFailPoint": "stopReplProducer", "mode": mode.to_owned() };
    set.ok(secondary, fail_point("alwaysOn"));
    set.insert(primary, doc! { "_id": 1 }, majority()).unwrap();
    let command = doc! {
        "insert": "c", "documents": [{ "_id": 2 }], "$db": "db",
        "writeConcern": { "w": 3, "wtimeout": 50 },
    };
    let error = set.ok(primary, command).get_document("writeConcernError").unwrap().clone();
    assert_eq!(error.get_i32("code").ok(), Some(64), "{error}");
    set.ok(secondary, fail_point("off"));
    set.insert(primary, doc! { "_id": 3 }, Bson::Int32(3)).unwrap();
    assert_eq!(set.wait_until_identical(), 3);
}

/// The first read is told its time; the member that answered it can read that again.
#[test]
fn a_snapshot_of_a_member_shows_what_a_majority_had_when_it_began() {
    let set = Set::initiated(3);
    let primary = set.primary();
    set.insert(primary, doc! { "_id": 1 }, majority()).unwrap();
    for place in [primary, set.others(primary)[0]] {
        let find = |concern: bson::Document| {
            doc! {
                "find": "c", "$db": "db", "readConcern": concern,
                "$readPreference": { "mode": "secondaryPreferred" },
            }
        };
        let count = |reply: &bson::Document| {
            let cursor = reply.get_document("cursor").unwrap();
            (
                cursor.get_array("firstBatch").unwrap().len(),
                cursor.get_timestamp("atClusterTime").ok(),
            )
        };
        set.wait_until_identical();
        let (before, time) = count(&set.ok(place, find(doc! { "level": "snapshot" })));
        let time = time.expect("a snapshot tells its time");
        let insert = doc! {
            "insert": "c", "documents": [{ "_id": before as i32 + 1 }], "$db": "db",
            "writeConcern": { "w": 3 },
        };
        let written = set.ok(primary, insert).get_timestamp("operationTime").unwrap();
        let again = find(doc! { "level": "snapshot", "atClusterTime": time });
        assert_eq!(count(&set.ok(place, again)), (before, Some(time)));
        // A secondary learns of the commit point a moment later.
        let after = doc! { "level": "majority", "afterClusterTime": written };
        let (now, _) = count(&set.ok(place, find(after)));
        assert_eq!(now, before + 1);
    }
}

#[test]
fn a_retryable_write_whose_concern_fails_may_be_repeated_elsewhere() {
    let set = Set::initiated(1);
    let fail = doc! {
        "configureFailPoint": "failCommand", "mode": { "times": 2 },
        "data": { "failCommands": ["insert"], "writeConcernError": { "code": 91, "errmsg": "bye" } },
    };
    set.ok(0, fail);
    let session =
        Bson::Binary(bson::Binary { subtype: bson::spec::BinarySubtype::Uuid, bytes: vec![7; 16] });
    let insert = |id: i32| doc! { "insert": "c", "documents": [{ "_id": id }], "$db": "db" };
    let plain = set.ok(0, insert(1));
    assert!(
        plain.contains_key("writeConcernError") && !plain.contains_key("errorLabels"),
        "{plain}"
    );
    let mut retryable = insert(2);
    retryable.extend(doc! { "lsid": { "id": session }, "txnNumber": 1_i64 });
    let reply = set.ok(0, retryable);
    assert_eq!(reply.get_array("errorLabels").unwrap(), &[Bson::from("RetryableWriteError")]);
}

#[test]
fn a_step_down_hands_over_and_loses_nothing() {
    let set = Set::initiated(3);
    let first = set.primary();
    for id in 0..50 {
        set.insert(first, doc! { "_id": id }, majority()).unwrap();
    }
    set.ok(first, doc! { "replSetStepDown": 60 });
    let start = Instant::now();
    let second = set.primary();
    assert_ne!(second, first);
    // A new primary may know of an older commit point than the one before it, until it commits an entry of its
    // own, which a linearizable read waits for.
    for level in ["linearizable", "majority"] {
        let read = doc! { "count": "c", "$db": "db", "readConcern": { "level": level } };
        assert_eq!(set.ok(second, read).get_i32("n").ok(), Some(50), "{level}");
    }
    set.insert(second, doc! { "_id": 50 }, majority()).unwrap();
    assert!(start.elapsed().as_millis() < 3_000, "{:?}", start.elapsed());
    assert_eq!(set.wait_until_identical(), 51);
}

#[test]
fn writes_that_no_member_copied_are_rolled_back_into_files() {
    let mut set = Set::start(3).initiate(impatient());
    let first = set.primary();
    set.insert(first, doc! { "_id": "kept" }, Bson::Int32(3)).unwrap();
    let others = set.others(first);
    for place in &others {
        set.kill(*place);
    }
    // No other member hears of these.
    for id in 0..5 {
        set.insert(first, doc! { "_id": id, "lost": true }, PRIMARY_ONLY).unwrap();
    }
    set.kill(first);
    for place in &others {
        set.restart(*place);
    }
    let second = set.primary();
    set.insert(second, doc! { "_id": "after" }, majority()).unwrap();
    set.restart(first);
    set.wait_for_state(first, "SECONDARY");
    assert_eq!(set.wait_until_identical(), 2);
    let documents = set.rolled_back(first);
    assert_eq!(documents.len(), 5, "{documents:?}");
    assert!(documents.iter().all(|document| document.get_bool("lost").ok() == Some(true)));
}

#[test]
fn members_join_and_leave_a_live_set_and_a_wiped_one_copies_everything() {
    let mut set = Set::initiated(3);
    let primary = set.primary();
    for id in 0..500 {
        set.insert(primary, doc! { "_id": id, "text": "x".repeat(100) }, majority()).unwrap();
    }
    let index = doc! { "key": { "text": 1, "_id": 1 }, "name": "text" };
    set.ok(primary, doc! { "createIndexes": "c", "indexes": [index], "$db": "db" });

    let wiped = (primary + 1) % 3;
    set.kill(wiped);
    std::fs::remove_dir_all(set.data(wiped)).unwrap();
    set.restart(wiped);
    set.wait_for_state(wiped, "SECONDARY");
    assert_eq!(set.wait_until_identical(), 500);

    let added = set.add();
    let host = set.host(added);
    set.reconfigure(|config| {
        let members = config.get_array_mut("members").unwrap();
        members.push(doc! { "_id": 3, "host": &host }.into());
    });
    set.wait_for_state(added, "SECONDARY");
    set.insert(primary, doc! { "_id": "with four" }, Bson::Int32(4)).unwrap();
    assert_eq!(set.wait_until_identical(), 501);

    let gone = (primary + 2) % 3;
    set.wait("the newly added member to count", || {
        let status = set.ok(primary, doc! { "replSetGetStatus": 1 });
        (status.get_i32("votingMembersCount").ok() == Some(4)).then_some(())
    });
    set.reconfigure(|config| remove_member(config, gone));
    set.wait("the removed member to notice", || {
        let hello = set.run(gone, doc! { "hello": 1 }).ok()?;
        (hello.get_bool("isreplicaset").ok() == Some(true) && !hello.contains_key("setName"))
            .then_some(())
    });
}
