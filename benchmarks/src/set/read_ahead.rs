//! What reading ahead saves a secondary that catches up: `replIndexPrefetch` none, `_id_only` and all, in turns.

use std::time::Instant;

use bson::{Bson, Document, doc};
use rustix::process::Signal;

use crate::Effort;
use crate::members::{Set, Talk, wait};
use crate::table::{Figures, line};

/// What the setting may be.
const SETTINGS: [&str; 3] = ["none", "_id_only", "all"];

/// The indexes besides that of `_id`.
const INDEXES: [&str; 3] = ["a", "b", "c"];

/// Updates in one command.
const BATCH: usize = 1000;

pub async fn run(effort: Effort) {
    let set = Set::ready().await;
    let primary = set.primary().await;
    let follower = (primary + 1) % 3;
    set.fill("ahead", effort.records, 200).await;
    let specs: Vec<Bson> =
        INDEXES.iter().map(|field| doc! { "key": { *field: 1 }, "name": *field }.into()).collect();
    let create = doc! { "createIndexes": "ahead", "indexes": specs, "$db": "bench" };
    set.run(primary, create).await.unwrap();
    set.insert_until_acknowledged(3).await;
    let updates = effort.records * 6 / 10;
    let mut rates = SETTINGS.map(|_| Figures::default());
    for round in 0..effort.rounds.min(5) {
        for (place, (setting, rates)) in SETTINGS.iter().zip(&mut rates).enumerate() {
            // Values that no run before has written: an update that changes nothing makes no entry.
            let salt = round * SETTINGS.len() + place + 1;
            let parameter = doc! { "setParameter": 1, "replIndexPrefetch": *setting };
            set.run(follower, parameter).await.unwrap();
            set.process(follower).signal(Signal::STOP);
            update(&set, primary, effort.records, updates, salt).await;
            let end = position(&set, primary).await.expect("the primary tells its position");
            let start = Instant::now();
            set.process(follower).signal(Signal::CONT);
            wait("the follower to catch up", async || {
                (position(&set, follower).await? >= end).then_some(())
            })
            .await;
            rates.push(updates as f64 / start.elapsed().as_secs_f64());
        }
    }
    let what = format!("updates of {} indexes applied per second when catching up", INDEXES.len());
    for (setting, rates) in SETTINGS.iter().zip(&rates) {
        line(&format!("{what}, replIndexPrefetch {setting}"), "ours", rates, None);
    }
}

/// Updates documents all over the collection, with new keys in every index.
async fn update(set: &Set, primary: usize, records: usize, updates: usize, salt: usize) {
    let mut talk = Talk::open(set.address(primary)).await.unwrap();
    for first in (0..updates).step_by(BATCH) {
        let statements: Vec<Bson> = (first..updates.min(first + BATCH))
            .map(|number| {
                let id = (number * 7919 + salt) % records;
                let fields: Document = INDEXES
                    .iter()
                    .map(|field| ((*field).to_owned(), Bson::from((number * 31 + salt) as i64)))
                    .collect();
                doc! { "q": { "_id": id as i64 }, "u": { "$set": fields } }.into()
            })
            .collect();
        let command = doc! {
            "update": "ahead", "updates": statements, "$db": "bench",
            "writeConcern": { "w": "majority" },
        };
        let reply = talk.run(command).await.unwrap();
        assert!(!reply.contains_key("writeErrors"), "{reply}");
    }
}

/// How far a member has applied.
async fn position(set: &Set, place: usize) -> Option<(u32, u32)> {
    let status = set.run(place, doc! { "replSetGetStatus": 1 }).await.ok()?;
    let applied = status.get_document("optimes").ok()?.get_document("appliedOpTime").ok()?;
    applied.get_timestamp("ts").ok().map(|time| (time.time, time.increment))
}
