//! Hardships of members that copy: an oplog that has moved on, a network that breaks during a copy,
//! disks that are replaced; and readers that live through a change of primary.

use std::collections::BTreeSet;
use std::time::Duration;

use bson::{Bson, Document, Timestamp, doc};
use quorate_test_support::{FaultNetwork, Flow};

use crate::client::{Client, TIMEOUT};
use crate::load::Load;
use crate::set::{Network, Set, impatient};
use crate::{PRIMARY_ONLY, majority};

/// Acknowledged writes between two misfortunes.
const A_WHILE: usize = 50;

/// An oplog that a few hundred entries fill.
const SMALL_OPLOG: [&str; 2] = ["--oplog-bytes", "30000"];

fn first_batch(reply: &Document) -> Vec<Document> {
    let batch = reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
    batch.iter().filter_map(Bson::as_document).cloned().collect()
}

/// The oldest or the newest entry of a member's log.
fn end_of_log(set: &Set, place: usize, direction: i32) -> Timestamp {
    let find = doc! {
        "find": "oplog.rs", "sort": { "$natural": direction }, "limit": 1,
        "$db": "local", "$readPreference": { "mode": "nearest" },
    };
    first_batch(&set.ok(place, find))[0].get_timestamp("ts").unwrap()
}

/// Writes documents from this number on, as many as fill a small oplog several times.
fn write_much(set: &Set, primary: usize, from: i32) {
    for part in 0..10 {
        let documents: Vec<Bson> = (0..100)
            .map(|i| doc! { "_id": from + part * 100 + i, "text": "x".repeat(100) }.into())
            .collect();
        let reply = set.ok(
            primary,
            doc! {
                "insert": "c", "documents": documents, "$db": "db",
                "writeConcern": { "w": "majority", "wtimeout": 60_000 },
            },
        );
        assert!(!reply.contains_key("writeConcernError"), "{reply}");
    }
}

#[test]
fn a_member_that_was_down_for_too_long_says_by_how_much_and_heals_when_it_is_wiped() {
    let mut set = Set::start_with(3, &SMALL_OPLOG).initiate(doc! {});
    let primary = set.primary();
    set.insert(primary, doc! { "_id": -1 }, Bson::Int32(3)).unwrap();
    let stale = set.others(primary)[0];
    set.terminate(stale);
    // The primary may have followed the stale member's death with a change of its own.
    let primary = set.primary();
    let last = end_of_log(&set, primary, -1);
    write_much(&set, primary, 0);
    for place in set.running() {
        set.wait("the oplog to forget", || (end_of_log(&set, place, 1) > last).then_some(()));
    }
    set.restart(stale);
    set.wait_for_state(stale, "RECOVERING");
    let told = set.wait("the reason", || {
        let own = set.own_status(stale)?;
        own.get_str("infoMessage").ok().filter(|told| !told.is_empty()).map(str::to_owned)
    });
    assert!(told.contains("too stale") && told.contains(" s on"), "{told}");
    assert!(told.contains("wipe its data directory") && told.contains("enlarge"), "{told}");
    let refused =
        set.run(stale, doc! { "find": "c", "$db": "db", "$readPreference": { "mode": "nearest" } });
    assert_eq!(refused.unwrap().get_i32("code").ok(), Some(13436));

    set.kill(stale);
    set.wipe(stale);
    set.restart(stale);
    set.wait_for_state(stale, "SECONDARY");
    assert_eq!(set.wait_until_identical(), 1001);
}

#[test]
fn young_entries_are_kept_by_members_that_were_told_to() {
    let set = Set::start_with(3, &SMALL_OPLOG).initiate(doc! {});
    let primary = set.primary();
    set.insert(primary, doc! { "_id": -1 }, Bson::Int32(3)).unwrap();
    let keeper = set.others(primary)[0];
    set.ok(keeper, doc! { "replSetResizeOplog": 1, "minRetentionHours": 1.0 });
    let first = end_of_log(&set, keeper, 1);
    let last = end_of_log(&set, primary, -1);
    write_much(&set, primary, 0);
    assert_eq!(set.wait_until_identical(), 1001);
    // Once the others have forgotten, the keeper has had its chance to.
    for place in set.others(keeper) {
        set.wait("the oplog to forget", || (end_of_log(&set, place, 1) > last).then_some(()));
    }
    set.insert(primary, doc! { "_id": -2 }, Bson::Int32(3)).unwrap();
    assert_eq!(end_of_log(&set, keeper, 1), first);
}

/// Many small collections over a slow link, so that a copy takes its time.
const COLLECTIONS: i32 = 40;

/// Starts a member anew, without its data: it copies everything over a slow link.
fn begin_slow_copy(set: &mut Set, delay: Duration) -> usize {
    let primary = set.primary();
    for number in 0..COLLECTIONS {
        let documents: Vec<Bson> = (0..20).map(|id| doc! { "_id": id }.into()).collect();
        let name = format!("part{number}");
        set.ok(primary, doc! { "insert": name, "documents": documents, "$db": "db" });
    }
    set.insert(primary, doc! { "_id": 0 }, Bson::Int32(3)).unwrap();
    let wiped = set.others(primary)[0];
    set.kill(wiped);
    std::fs::remove_dir_all(set.data(wiped)).unwrap();
    set.faults().between(&[wiped], &set.others(wiped), Flow::Delayed(delay));
    set.restart(wiped);
    wiped
}

/// Breaks every connection of a member once.
fn break_connections(set: &Set, of: usize, delay: Duration) {
    let others = set.others(of);
    set.faults().between(&[of], &others, Flow::Reset);
    set.faults().between(&[of], &others, Flow::Delayed(delay));
}

/// The attempt of a copy under way, and how many collections are copied.
fn copied(set: &Set, place: usize) -> Option<(i32, i64)> {
    let status = set.run(place, doc! { "replSetGetStatus": 1 }).ok()?;
    let progress = status.get_document("initialSyncStatus").ok()?;
    Some((progress.get_i32("attempt").ok()?, progress.get_i64("collectionsCopied").ok()?))
}

#[test]
fn a_copy_that_is_interrupted_goes_on_where_it_was() {
    const DELAY: Duration = Duration::from_millis(20);
    let mut set = Set::start_on(Network::Proxied(FaultNetwork::new()), 3).initiate(doc! {});
    let wiped = begin_slow_copy(&mut set, DELAY);
    let mut attempts = BTreeSet::new();
    let mut before = 0;
    let mut blips = 0;
    set.wait("the copy to end", || {
        if let Some((attempt, now)) = copied(&set, wiped) {
            attempts.insert(attempt);
            assert!(now >= before, "from {before} back to {now} collections");
            // Three times, in the midst of it.
            if now > before && now > 3 && now < i64::from(COLLECTIONS) - 3 && blips < 3 {
                blips += 1;
                break_connections(&set, wiped, DELAY);
            }
            before = now;
        }
        let status = set.run(wiped, doc! { "replSetGetStatus": 1 }).ok()?;
        (status.get_i32("myState").ok()? == 2).then_some(())
    });
    assert!(blips > 0, "the copy was over before it could be interrupted");
    assert_eq!(attempts, BTreeSet::from([1]), "it began again instead of going on");
    set.faults().heal();
    set.wait_until_identical();
}

/// What is written during a copy is kept, also after an interruption: the source may trim it before its turn comes.
#[test]
fn a_copy_that_was_interrupted_keeps_what_its_source_trims() {
    const DELAY: Duration = Duration::from_millis(60);
    let network = Network::Proxied(FaultNetwork::new());
    let mut set = Set::launch(network, 3, &SMALL_OPLOG).initiate(doc! {});
    let wiped = begin_slow_copy(&mut set, DELAY);
    let passes = |least: i64| {
        set.wait("the copy to go on", || copied(&set, wiped).filter(|(_, now)| *now >= least))
    };
    let (_, before) = passes(3);
    break_connections(&set, wiped, DELAY);
    // It has gone on, and with it the stream of entries.
    passes(before + 3);
    let primary = set.primary();
    let last = end_of_log(&set, primary, -1);
    write_much(&set, primary, 1);
    for place in set.others(wiped) {
        set.wait("the oplog to forget", || (end_of_log(&set, place, 1) > last).then_some(()));
    }
    let (_, now) = copied(&set, wiped).expect("the copy goes on");
    assert!(now < i64::from(COLLECTIONS), "the copy was over before its source forgot");
    set.faults().heal();
    set.wait("the copy to end", || {
        if let Some((attempt, _)) = copied(&set, wiped) {
            assert_eq!(attempt, 1, "it began again instead of going on");
        }
        let status = set.run(wiped, doc! { "replSetGetStatus": 1 }).ok()?;
        (status.get_i32("myState").ok()? == 2).then_some(())
    });
    set.wait_until_identical();
}

/// The rest of a cursor's documents, and how many that were.
fn exhaust(client: &mut Client, mut reply: Document) -> usize {
    let mut count = 0;
    loop {
        assert_eq!(reply.get_f64("ok").ok(), Some(1.0), "{reply}");
        let cursor = reply.get_document("cursor").unwrap();
        let batch = cursor.get_array("firstBatch").or_else(|_| cursor.get_array("nextBatch"));
        count += batch.unwrap().len();
        let id = cursor.get_i64("id").unwrap();
        if id == 0 {
            return count;
        }
        let more = doc! { "getMore": id, "collection": "c", "batchSize": 100, "$db": "db" };
        reply = client.run(&more, TIMEOUT).unwrap();
    }
}

#[test]
fn open_cursors_are_read_to_their_end_through_a_step_down() {
    let set = Set::initiated(3);
    let primary = set.primary();
    write_much(&set, primary, 0);
    assert_eq!(set.wait_until_identical(), 1000);
    let mut readers: Vec<(Client, Document)> = (0..3)
        .map(|place| {
            let mut client = Client::connect(set.members[place].address, TIMEOUT).unwrap();
            let find = doc! {
                "find": "c", "batchSize": 10, "$db": "db",
                "$readPreference": { "mode": "secondaryPreferred" },
            };
            let reply = client.run(&find, TIMEOUT).unwrap();
            (client, reply)
        })
        .collect();
    set.step_down();
    let next = set.primary();
    assert_ne!(next, primary);
    set.insert(next, doc! { "_id": -1 }, majority()).unwrap();
    for (client, reply) in &mut readers {
        assert_eq!(exhaust(client, reply.clone()), 1000);
    }
    // The connections are still good for more.
    for (client, _) in &mut readers {
        assert!(client.run(&doc! { "hello": 1, "$db": "admin" }, TIMEOUT).is_ok());
    }
}

#[test]
fn voters_of_five_are_wiped_under_load_and_nothing_is_lost() {
    let mut set = Set::start(5).initiate(impatient());
    set.insert(set.primary(), doc! { "_id": 3_000_000 }, PRIMARY_ONLY).unwrap();
    let load = Load::start(&set);
    for _ in 0..3 {
        load.wait_for(A_WHILE);
        let wiped = set.others(set.primary())[1];
        set.kill(wiped);
        std::fs::remove_dir_all(set.data(wiped)).unwrap();
        load.wait_for(A_WHILE);
        set.restart(wiped);
        set.wait_for_state(wiped, "SECONDARY");
    }
    load.wait_for(A_WHILE);
    load.judge(&set);
}
