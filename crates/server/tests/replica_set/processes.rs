//! Processes that are killed, frozen, restarted, replaced, added and removed while clients write.
//!
//! After each story: nothing that a majority acknowledged is lost, no term had two primaries, and all
//! members are identical.

use bson::spec::BinarySubtype;
use bson::{Binary, Bson, Document, doc};

use crate::load::Load;
use crate::set::{Set, impatient};
use crate::{majority, remove_member};

/// Acknowledged writes between two misfortunes.
const A_WHILE: usize = 50;

#[test]
fn five_members_survive_kill_9_of_two_primaries_in_a_row() {
    let mut set = Set::initiated(5);
    let load = Load::start(&set);
    load.wait_for(A_WHILE);
    let first = set.primary();
    set.kill(first);
    load.wait_for(A_WHILE);
    let second = set.primary();
    set.kill(second);
    load.wait_for(A_WHILE);
    set.restart(first);
    set.restart(second);
    load.wait_for(A_WHILE);
    load.judge(&set);
}

#[test]
fn a_power_cut_of_all_members_loses_nothing_that_was_acknowledged() {
    let mut set = Set::start(3).initiate(impatient());
    let load = Load::start(&set);
    for _ in 0..2 {
        load.wait_for(A_WHILE);
        for place in 0..3 {
            set.kill(place);
        }
        for place in 0..3 {
            set.restart(place);
        }
    }
    load.wait_for(A_WHILE);
    load.judge(&set);
}

/// All members were down: the first that sees a majority and no primary stands at once. With the default
/// election timeout of ten seconds, the reason of the election tells that none waited for it.
#[test]
fn members_that_all_restart_wait_for_no_election_timeout() {
    let mut set = Set::initiated(3);
    let primary = set.primary();
    set.insert(primary, doc! { "_id": 0 }, majority()).unwrap();
    for killed in [false, true] {
        for place in 0..3 {
            if killed {
                set.kill(place);
            } else {
                set.terminate(place);
            }
        }
        for place in 0..3 {
            set.restart(place);
        }
        let began = std::time::Instant::now();
        let primary = set.primary();
        println!("a primary {:?} after the last start (killed: {killed})", began.elapsed());
        let explained = set.ok(primary, doc! { "quorateExplainElection": 1 });
        let campaign = explained.get_document("lastCampaign").unwrap();
        assert_eq!(campaign.get_str("reason").unwrap(), "primaryCrashed", "{explained}");
        set.insert(primary, doc! { "_id": format!("{killed}") }, majority()).unwrap();
    }
    assert_eq!(set.wait_until_identical(), 3);
}

#[test]
fn a_frozen_primary_is_replaced_and_follows_when_it_thaws() {
    let set = Set::start(3).initiate(impatient());
    let load = Load::start(&set);
    load.wait_for(A_WHILE);
    let frozen = set.primary();
    set.freeze(frozen);
    let next = set.primary_among(&set.others(frozen));
    load.wait_for(A_WHILE);
    set.thaw(frozen);
    set.wait_for_state(frozen, "SECONDARY");
    load.wait_for(A_WHILE);
    assert_ne!(next, frozen);
    load.judge(&set);
}

#[test]
fn a_frozen_secondary_of_five_hinders_no_other_and_catches_up() {
    let set = Set::start(5).initiate(impatient());
    let load = Load::start(&set);
    let frozen = set.others(set.primary())[0];
    set.freeze(frozen);
    load.wait_for(4 * A_WHILE);
    set.thaw(frozen);
    load.judge(&set);
}

#[test]
fn every_member_in_turn_is_restarted_cleanly() {
    let mut set = Set::initiated(3);
    let load = Load::start(&set);
    for place in 0..3 {
        load.wait_for(A_WHILE);
        set.terminate(place);
        load.wait_for(A_WHILE);
        set.restart(place);
        set.wait("the member to be back", || {
            let status = set.own_status(place)?;
            ["PRIMARY", "SECONDARY"].contains(&status.get_str("stateStr").ok()?).then_some(())
        });
    }
    load.judge(&set);
}

#[test]
fn primaries_step_down_again_and_again() {
    let set = Set::initiated(5);
    let load = Load::start(&set);
    for _ in 0..4 {
        load.wait_for(A_WHILE);
        set.step_down();
    }
    load.wait_for(A_WHILE);
    load.judge(&set);
}

/// A driver ignores an error whose topology version is not newer than what it knows of the member: it
/// would try the same member again, and give the second error to the application.
#[test]
fn a_refusal_is_newer_than_every_hello_that_said_primary() {
    let set = Set::initiated(3);
    for _ in 0..6 {
        let primary = set.primary();
        let (said, refused) = std::thread::scope(|scope| {
            let monitor = scope.spawn(|| last_said_primary(&set, primary));
            let writers: Vec<_> =
                (0..8).map(|_| scope.spawn(|| first_refusal(&set, primary))).collect();
            set.step_down();
            let refusals = writers.into_iter().map(|writer| writer.join().unwrap());
            (monitor.join().unwrap(), refusals.collect::<Vec<_>>())
        });
        for refusal in refused {
            assert!(counter(&refusal) > said, "hello said primary at {said}: {refusal}");
        }
    }
}

/// The newest topology version at which a member said that it is the primary.
fn last_said_primary(set: &Set, place: usize) -> i64 {
    let mut newest = 0;
    loop {
        let hello = set.ok(place, doc! { "hello": 1 });
        if !hello.get_bool("isWritablePrimary").unwrap() {
            return newest;
        }
        newest = counter(&hello);
    }
}

/// Inserts until the member refuses one.
fn first_refusal(set: &Set, place: usize) -> Document {
    loop {
        let insert = doc! { "insert": "orders", "documents": [{}], "$db": "shop" };
        let reply = set.run(place, insert).unwrap();
        if reply.get_f64("ok").unwrap() == 0.0 || reply.contains_key("writeConcernError") {
            return reply;
        }
    }
}

fn counter(reply: &Document) -> i64 {
    reply.get_document("topologyVersion").unwrap().get_i64("counter").unwrap()
}

/// Otherwise a driver that repeats a write is told of a majority that does not have it.
#[test]
fn a_repeated_write_waits_for_the_majority_that_its_entry_needs() {
    let set = Set::initiated(3);
    let primary = set.primary();
    set.insert(primary, doc! {}, "majority".into()).unwrap();
    set.others(primary).into_iter().for_each(|place| set.freeze(place));
    let session = Binary { subtype: BinarySubtype::Uuid, bytes: vec![7; 16] };
    let insert = doc! {
        "insert": "orders", "documents": [{ "_id": 1 }], "$db": "shop",
        "lsid": { "id": session }, "txnNumber": 1_i64,
    };
    let mut alone = insert.clone();
    alone.insert("writeConcern", doc! { "w": 1 });
    set.ok(primary, alone);
    let mut again = insert;
    again.insert("maxTimeMS", 300);
    let reply = set.run(primary, again).unwrap();
    set.others(primary).into_iter().for_each(|place| set.thaw(place));
    assert!(reply.contains_key("writeConcernError"), "{reply}");
}

/// Clients have lost sight of it, and would have to find it first.
#[test]
fn a_planned_step_down_does_not_hand_over_to_a_member_that_has_just_come_back() {
    let mut set = Set::initiated(3);
    let leader = set.primary();
    set.wait("the primary to see every member ready", || {
        let status = set.ok(leader, doc! { "replSetGetStatus": 1 });
        let members = status.get_array("members").unwrap();
        let ready = |state: &str| ["PRIMARY", "SECONDARY"].contains(&state);
        let seen = members.iter().filter_map(Bson::as_document);
        seen.filter_map(|member| member.get_str("stateStr").ok()).all(ready).then_some(())
    });
    // The first of equals is preferred otherwise.
    let back = set.others(leader)[0];
    set.kill(back);
    let primary = set.primary();
    let known = *set.others(primary).iter().find(|place| **place != back).unwrap();
    set.insert(primary, doc! { "_id": 0 }, majority()).unwrap();
    set.restart(back);
    set.wait_for_state(back, "SECONDARY");
    set.insert(primary, doc! { "_id": 1 }, Bson::Int32(3)).unwrap();
    set.ok(primary, doc! { "replSetStepDown": 60, "secondaryCatchUpPeriodSecs": 20 });
    assert_eq!(set.primary_among(&set.others(primary)), known);
}

#[test]
fn a_reconfiguration_moves_the_primary_by_priority() {
    let set = Set::start(3).initiate(impatient());
    let load = Load::start(&set);
    load.wait_for(A_WHILE);
    let chosen = set.others(set.primary())[1];
    set.reconfigure(|config| {
        for member in config.get_array_mut("members").unwrap() {
            let member = member.as_document_mut().unwrap();
            let priority = if member.get_i32("_id").ok() == Some(chosen as i32) { 5 } else { 1 };
            member.insert("priority", priority);
        }
    });
    set.wait("the chosen one to lead", || (set.primary() == chosen).then_some(()));
    load.wait_for(A_WHILE);
    load.judge(&set);
}

#[test]
fn members_are_added_wiped_and_removed_under_load() {
    let mut set = Set::initiated(3);
    let load = Load::start(&set);
    load.wait_for(4 * A_WHILE);
    let added = set.add();
    load.knows(&set);
    let host = set.host(added);
    set.reconfigure(|config| {
        let members = config.get_array_mut("members").unwrap();
        members.push(doc! { "_id": 3, "host": &host }.into());
    });
    set.wait_for_state(added, "SECONDARY");
    load.wait_for(A_WHILE);

    let wiped = set.others(set.primary())[0];
    set.kill(wiped);
    std::fs::remove_dir_all(set.data(wiped)).unwrap();
    set.restart(wiped);
    set.wait_for_state(wiped, "SECONDARY");
    load.wait_for(A_WHILE);

    let removed = *set.others(set.primary()).iter().find(|place| **place != wiped).unwrap();
    set.reconfigure(|config| remove_member(config, removed));
    set.wait("the removed member to notice", || {
        let hello = set.run(removed, doc! { "hello": 1 }).ok()?;
        hello.get_bool("isreplicaset").ok().filter(|lonely| *lonely).map(drop)
    });
    load.wait_for(A_WHILE);
    load.judge_among(&set, &set.others(removed));
}

#[test]
fn a_member_that_was_down_for_long_catches_up_from_the_oplog() {
    let mut set = Set::initiated(3);
    let down = set.others(set.primary())[0];
    set.kill(down);
    let primary = set.primary();
    let documents: Vec<Bson> =
        (0..1000).map(|id| doc! { "_id": id, "text": "x".repeat(200) }.into()).collect();
    let command = doc! {
        "insert": "c", "documents": documents, "$db": "db", "writeConcern": { "w": "majority" },
    };
    set.ok(primary, command);
    let change = doc! { "q": { "_id": { "$lt": 500 } }, "u": { "$set": { "text": "y" } } };
    let mut change = change;
    change.insert("multi", true);
    set.ok(primary, doc! { "update": "c", "updates": [change], "$db": "db" });
    let delete = doc! { "q": { "_id": { "$gte": 900 } }, "limit": 0 };
    set.ok(primary, doc! { "delete": "c", "deletes": [delete], "$db": "db" });
    set.restart(down);
    set.insert(primary, doc! { "_id": "last" }, majority()).unwrap();
    assert_eq!(set.wait_until_identical(), 901);
}
