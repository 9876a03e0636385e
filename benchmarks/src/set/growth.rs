//! How members keep up and what they need: lag under load, catching up, copying everything, memory.

use std::time::Instant;

use bson::{Bson, doc};
use rustix::process::Signal;

use crate::Effort;
use crate::dialects::Dialect;
use crate::load;
use crate::members::{Set, Talk, wait};
use crate::table::{Figures, line};

/// Clients that write while the lag is measured.
const BUSY_CLIENTS: usize = 16;
/// Clients that write beside few and beside many documents.
const MANY_CLIENTS: usize = 64;
/// Bytes of the records that a new member copies.
const COPIED_BYTES: usize = 1000;

pub async fn run(effort: Effort) {
    memory(effort).await;
    lag(effort).await;
    apply_rate(effort).await;
    initial_sync(effort).await;
    size(effort).await;
}

/// Writes beside few documents and beside sixty times as many, in turns.
async fn size(effort: Effort) {
    let sizes = [effort.records / 10, effort.records * 6];
    let sets = [Set::ready().await, Set::ready().await];
    let mut addresses = Vec::new();
    for (set, records) in sets.iter().zip(sizes) {
        set.fill("load", records, 200).await;
        addresses.push(set.address(set.primary().await));
    }
    let mut rates = [Figures::default(), Figures::default()];
    for _ in 0..effort.rounds {
        for (rate, to) in rates.iter_mut().zip(&addresses) {
            let outcome = load::run(Dialect::Quorate, *to, MANY_CLIENTS, effort.load).await;
            rate.push(outcome.per_second);
        }
    }
    let [few, many] = &rates;
    let measure = format!("durable majority writes/s, {MANY_CLIENTS} clients");
    line(&measure, &format!("beside {} documents", sizes[1]), many, None);
    line(&measure, &format!("beside {} documents", sizes[0]), few, Some(many));
}

async fn memory(effort: Effort) {
    let set = Set::ready().await;
    let all = |set: &Set| (0..3).map(|place| set.process(place).resident()).collect::<Figures>();
    line("memory of an idle member, MiB", "ours", &all(&set), None);
    set.fill("records", effort.records, 200).await;
    set.insert_until_acknowledged(3).await;
    let measure = format!("memory after {} records of 200 bytes, MiB", effort.records);
    line(&measure, "ours", &all(&set), None);
}

/// From the acknowledgement by the primary alone to the moment a secondary shows the record.
async fn lag(effort: Effort) {
    let set = Set::ready().await;
    let primary = set.primary().await;
    let busy = tokio::spawn(load::run(
        Dialect::Quorate,
        set.address(primary),
        BUSY_CLIENTS,
        effort.load * effort.rounds as u32,
    ));
    let mut writer = Talk::open(set.address(primary)).await.unwrap();
    let mut reader = Talk::open(set.address((primary + 1) % 3)).await.unwrap();
    let (mut lags, mut number) = (Vec::new(), 0);
    while !busy.is_finished() {
        number += 1;
        let insert = doc! {
            "insert": "probes", "documents": [{ "_id": number }], "$db": "bench",
            "writeConcern": { "w": 1 },
        };
        writer.run(insert).await.unwrap();
        let start = Instant::now();
        wait("the probe", async || {
            let find = doc! {
                "find": "probes", "filter": { "_id": number }, "$db": "bench",
                "$readPreference": { "mode": "nearest" },
            };
            let reply = reader.run(find).await.unwrap();
            let batch = reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
            (!batch.is_empty()).then_some(())
        })
        .await;
        lags.push(start.elapsed().as_secs_f64() * 1e3);
    }
    busy.await.unwrap();
    lags.sort_by(f64::total_cmp);
    let at = |share: f64| lags[(lags.len() as f64 * share) as usize];
    let one = |figure: f64| [figure].into_iter().collect::<Figures>();
    let what = format!("replication lag under {BUSY_CLIENTS} majority writers, ms");
    line(&format!("{what}, p50"), "ours", &one(at(0.5)), None);
    line(&format!("{what}, p99"), "ours", &one(at(0.99)), None);
}

/// A secondary that was frozen while records were written applies them all.
async fn apply_rate(effort: Effort) {
    let mut rates = Figures::default();
    for _ in 0..effort.rounds.min(3) {
        let set = Set::ready().await;
        let frozen = (set.primary().await + 1) % 3;
        set.process(frozen).signal(Signal::STOP);
        set.fill("records", effort.records, 200).await;
        let start = Instant::now();
        set.process(frozen).signal(Signal::CONT);
        wait_for_count(&set, frozen, effort.records).await;
        rates.push(effort.records as f64 / start.elapsed().as_secs_f64());
    }
    line("records of 200 bytes applied per second when catching up", "ours", &rates, None);
}

async fn wait_for_count(set: &Set, place: usize, count: usize) {
    wait("all records", async || {
        let command = doc! {
            "count": "records", "$db": "bench", "$readPreference": { "mode": "nearest" },
        };
        let reply = set.run(place, command).await.ok()?;
        (reply.get_i32("n").ok()? as usize >= count).then_some(())
    })
    .await;
}

async fn initial_sync(effort: Effort) {
    let mut rates = Figures::default();
    for _ in 0..effort.rounds.min(3) {
        let mut set = Set::ready().await;
        set.fill("records", effort.records, COPIED_BYTES).await;
        let added = set.add();
        let primary = set.primary().await;
        let start = Instant::now();
        let host = set.host(added);
        wait("the reconfiguration", async || {
            let mut reply = set.run(primary, doc! { "replSetGetConfig": 1 }).await.ok()?;
            let config = reply.get_document_mut("config").ok()?;
            let version = config.get_i32("version").ok()?;
            config.insert("version", version + 1);
            let member = doc! { "_id": 3, "host": &host, "priority": 0, "votes": 0 };
            config.get_array_mut("members").ok()?.push(Bson::from(member));
            set.run(primary, doc! { "replSetReconfig": config.clone() }).await.ok().map(drop)
        })
        .await;
        wait("the new member to follow", async || {
            let hello = set.run(added, doc! { "hello": 1 }).await.ok()?;
            hello.get_bool("secondary").ok()?.then_some(())
        })
        .await;
        let megabytes = (effort.records * COPIED_BYTES) as f64 / 1e6;
        rates.push(megabytes / start.elapsed().as_secs_f64());
    }
    line("initial sync, MB/s", "ours", &rates, None);
}
