//! A broken network between members, by a proxy: cut, cut one way, halved, delayed, reset.
//!
//! After each story: nothing that a majority acknowledged is lost, no term had two primaries, and all
//! members are identical.

use std::panic::AssertUnwindSafe;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use bson::{Bson, Document, Timestamp, doc};
use quorate_test_support::Flow;

use crate::load::Load;
use crate::set::Set;

/// Acknowledged writes between two misfortunes.
const A_WHILE: usize = 30;

const PRIMARY_ONLY: Bson = Bson::Int32(1);

#[test]
fn writes_of_an_isolated_primary_end_in_rollback_files() {
    for silence in [Flow::Held, Flow::Dropped] {
        let set = Set::proxied(3);
        let load = Load::start(&set);
        load.wait_for(A_WHILE);
        let isolated = set.primary();
        let others = set.others(isolated);
        set.faults().between(&[isolated], &others, silence);
        // It takes writes until it misses its majority.
        let mut lost = 0;
        while set.insert(isolated, doc! { "_id": 1_000_000 + lost }, PRIMARY_ONLY).is_ok() {
            lost += 1;
        }
        assert!(lost > 0, "the isolated primary took nothing");
        set.primary_among(&others);
        load.wait_for(A_WHILE);
        set.faults().heal();
        set.wait_for_state(isolated, "SECONDARY");
        load.wait_for(A_WHILE);
        load.judge(&set);
        let ids: Vec<i64> = set
            .rolled_back(isolated)
            .iter()
            .filter_map(|document| document.get_i64("_id").ok())
            .filter(|id| *id >= 1_000_000)
            .collect();
        assert_eq!(ids.len() as i64, lost, "{ids:?}");
    }
}

/// The newest value that a majority acknowledged, and when.
type Newest = Mutex<Option<(i32, Timestamp)>>;

/// Sets the counter, and notes what was acknowledged.
fn write_counter(set: &Set, primary: usize, value: i32, newest: &Newest) {
    let command = doc! {
        "update": "c", "$db": "db", "writeConcern": { "w": "majority", "wtimeout": 10_000 },
        "updates": [{ "q": { "_id": "n" }, "u": { "$set": { "n": value } }, "upsert": true }],
    };
    let reply = set.ok(primary, command);
    assert!(!reply.contains_key("writeConcernError"), "{reply}");
    *newest.lock().unwrap() = Some((value, reply.get_timestamp("operationTime").unwrap()));
}

/// Reads the counter after the newest acknowledged write. Returns whether the member answered.
fn read_counter(set: &Set, place: usize, level: &str, newest: &Newest) -> bool {
    let Some((written, time)) = *newest.lock().unwrap() else { return false };
    let command = doc! {
        "find": "c", "filter": { "_id": "n" }, "$db": "db", "maxTimeMS": 2_000,
        "readConcern": { "level": level, "afterClusterTime": time },
        "$clusterTime": { "clusterTime": time },
        "$readPreference": { "mode": "nearest" },
    };
    let Ok(reply) = set.run(place, command) else { return false };
    let Ok(cursor) = reply.get_document("cursor") else { return false };
    let found = cursor.get_array("firstBatch").unwrap()[0].as_document().unwrap();
    let read = found.get_i32("n").unwrap();
    assert!(read >= written, "{level}: {read} was read after {written} was acknowledged");
    true
}

#[test]
fn causal_reads_never_go_backwards_through_a_rollback() {
    let (set, newest) = (Set::proxied(3), Newest::default());
    write_counter(&set, set.primary(), 1, &newest);
    set.wait_until_identical();
    let isolated = set.primary();
    let others = set.others(isolated);
    set.faults().between(&[isolated], &others, Flow::Held);
    // What is undone is later than everything that the others acknowledge.
    let last = newest.lock().unwrap().unwrap().1;
    let ahead = Timestamp { time: last.time + 3_600, increment: 1 };
    let undone = doc! {
        "update": "c", "$db": "db", "writeConcern": { "w": 1 },
        "updates": [{ "q": { "_id": "n" }, "u": { "$set": { "n": -1 } } }],
        "$clusterTime": { "clusterTime": ahead },
    };
    let mut taken = 0;
    let is_fine = |reply: Document| reply.get_f64("ok").ok() == Some(1.0);
    while set.run(isolated, undone.clone()).is_ok_and(is_fine) {
        taken += 1;
    }
    assert!(taken > 0, "the isolated primary took nothing");
    let primary = set.primary_among(&others);
    write_counter(&set, primary, 2, &newest);
    let rollbacks = || set.run(isolated, doc! { "replSetGetRBID": 1 }).ok()?.get_i32("rbid").ok();
    let before = rollbacks().unwrap();
    let (ended, reads) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // A panic of a reader ends the scope.
            for value in 3.. {
                write_counter(&set, primary, value, &newest);
                if ended.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let readers = ["majority", "local"].map(|level| {
            let (set, newest, ended, reads, rollbacks) =
                (&set, &newest, &ended, &reads, &rollbacks);
            scope.spawn(move || {
                while !ended.load(Ordering::Relaxed) {
                    let has_rolled_back = rollbacks().is_some_and(|now| now != before);
                    // Before, a local read may return what is yet to be undone.
                    if level == "local" && !has_rolled_back {
                        continue;
                    }
                    let answered = read_counter(set, isolated, level, newest);
                    reads.fetch_add(usize::from(answered && has_rolled_back), Ordering::Relaxed);
                }
            })
        });
        set.faults().heal();
        let enough = || {
            let failed = readers.iter().any(ScopedJoinHandle::is_finished);
            (failed || reads.load(Ordering::Relaxed) >= 200).then_some(())
        };
        let waited = std::panic::catch_unwind(AssertUnwindSafe(|| set.wait("reads", enough)));
        ended.store(true, Ordering::Relaxed);
        waited.unwrap();
    });
    assert_ne!(rollbacks(), Some(before));
    set.wait_until_identical();
}

#[test]
fn of_two_halves_the_larger_goes_on() {
    let set = Set::proxied(5);
    let load = Load::start(&set);
    load.wait_for(A_WHILE);
    // The primary is in the smaller half first, then in the larger one.
    for with_primary in [2, 3] {
        let primary = set.primary();
        let others = set.others(primary);
        let (friends, rest) = others.split_at(with_primary - 1);
        let own: Vec<usize> = friends.iter().copied().chain([primary]).collect();
        set.faults().between(&own, rest, Flow::Held);
        let (larger, smaller) = if with_primary == 3 { (&own[..], rest) } else { (rest, &own[..]) };
        set.primary_among(larger);
        load.wait_for(A_WHILE);
        set.wait("the smaller half to be without a primary", || {
            smaller
                .iter()
                .all(|place| {
                    set.own_status(*place)
                        .is_some_and(|own| own.get_str("stateStr").ok() == Some("SECONDARY"))
                })
                .then_some(())
        });
        set.faults().heal();
        load.wait_for(A_WHILE);
    }
    load.judge(&set);
}

#[test]
fn a_primary_that_is_not_heard_is_replaced() {
    let set = Set::proxied(3);
    let load = Load::start(&set);
    load.wait_for(A_WHILE);
    let mute = set.primary();
    let others = set.others(mute);
    for place in &others {
        set.faults().set(mute, *place, Flow::Held);
    }
    set.primary_among(&others);
    load.wait_for(A_WHILE);
    set.faults().heal();
    set.wait_for_state(mute, "SECONDARY");
    load.wait_for(A_WHILE);
    load.judge(&set);
}

#[test]
fn a_primary_that_hears_no_member_is_replaced() {
    let set = Set::proxied(3);
    let load = Load::start(&set);
    load.wait_for(A_WHILE);
    let deaf = set.primary();
    let others = set.others(deaf);
    for place in &others {
        set.faults().set(*place, deaf, Flow::Held);
    }
    set.primary_among(&others);
    load.wait_for(A_WHILE);
    set.faults().heal();
    load.wait_for(A_WHILE);
    load.judge(&set);
}

#[test]
fn a_secondary_without_a_way_to_the_primary_copies_from_another_secondary() {
    let set = Set::proxied(3);
    let primary = set.primary();
    let [cut_off, between] = set.others(primary)[..] else { panic!("two secondaries") };
    let load = Load::start(&set);
    load.wait_for(A_WHILE);
    set.faults().between(&[primary], &[cut_off], Flow::Reset);
    let source = set.host(between);
    set.wait("the source to change", || {
        let own = set.own_status(cut_off)?;
        (own.get_str("syncSourceHost").ok()? == source).then_some(())
    });
    // All three have what is written now, though one never heard it from the primary.
    set.wait("a write on all members", || {
        let id = 2_000_000 + load.acknowledged() as i64;
        let everywhere = doc! {
            "insert": "c", "documents": [{ "_id": id }], "$db": "db",
            "writeConcern": { "w": 3, "wtimeout": 5000 },
        };
        let reply = set.run(set.primary(), everywhere).ok()?;
        let fine = reply.get_f64("ok").ok() == Some(1.0)
            && !reply.contains_key("writeConcernError")
            && !reply.contains_key("writeErrors");
        fine.then_some(())
    });
    set.faults().heal();
    load.judge(&set);
}

#[test]
fn slow_links_slow_only_their_own_member() {
    let set = Set::proxied(3);
    let primary = set.primary();
    let slow = set.others(primary)[0];
    set.faults().between(&[slow], &set.others(slow), Flow::Delayed(Duration::from_millis(30)));
    let load = Load::start(&set);
    load.wait_for(4 * A_WHILE);
    set.faults().heal();
    load.judge(&set);
}

#[test]
fn connections_that_are_reset_over_and_over_lose_nothing() {
    let set = Set::proxied(5);
    let load = Load::start(&set);
    for round in 0..6 {
        let (one, other) = (round % 5, (round + 2) % 5);
        set.faults().between(&[one], &set.others(one), Flow::Reset);
        set.faults().set(other, (other + 1) % 5, Flow::Dropped);
        set.faults().heal();
        load.wait_for(A_WHILE / 2);
    }
    load.judge(&set);
}
