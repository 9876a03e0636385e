//! A state change told to many clients at once: how long until the last one has it, and what a client
//! that waits costs.

use std::time::{Duration, Instant};

use bson::doc;
use quorate_wire::MsgFlags;

use crate::Effort;
use crate::members::{Set, Talk};
use crate::table::{Figures, line};

/// Between the last connection and the change.
const SETTLING: Duration = Duration::from_millis(500);
/// Connections that are made at the same time.
const AT_ONCE: usize = 100;

pub async fn run(effort: Effort) {
    for watchers in effort.watchers {
        let (mut last, mut spread, mut cost) =
            (Figures::default(), Figures::default(), Figures::default());
        let mut cpu = Figures::default();
        for _ in 0..effort.rounds.min(3) {
            let set = Set::ready().await;
            let primary = set.primary().await;
            let before = set.process(primary).resident();
            let waiting = gather(&set, primary, *watchers).await;
            cost.push((set.process(primary).resident() - before) * 1024.0 / *watchers as f64);
            let start = Instant::now();
            let tasks: Vec<_> = waiting
                .into_iter()
                .map(|mut talk| {
                    tokio::spawn(async move {
                        talk.receive_version().await.unwrap();
                        // Kept open: to close it would cost the member more than to tell it the news.
                        (Instant::now(), talk)
                    })
                })
                .collect();
            let (told, cpu_before) = (Instant::now(), set.process(primary).processor_time());
            set.run(primary, doc! { "replSetStepDown": 60, "force": true }).await.unwrap();
            let (mut times, mut open) = (Vec::new(), Vec::new());
            for task in tasks {
                let (heard, talk) = task.await.unwrap();
                times.push(heard);
                open.push(talk);
            }
            assert!(start <= told);
            let spent = set.process(primary).processor_time() - cpu_before;
            cpu.push(spent.as_secs_f64() * 1e6 / *watchers as f64);
            let (first, latest) = (times.iter().min().unwrap(), times.iter().max().unwrap());
            last.push(millis(latest.duration_since(told)));
            spread.push(millis(latest.duration_since(*first)));
        }
        line(&format!("state change → last of {watchers} clients, ms"), "ours", &last, None);
        line(&format!("first → last of {watchers} clients, ms"), "ours", &spread, None);
        line(&format!("CPU µs for each of {watchers} clients, primary"), "ours", &cpu, None);
        line(&format!("memory per waiting connection of {watchers}, KiB"), "ours", &cost, None);
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Connections that all await the next change of a member.
async fn gather(set: &Set, place: usize, count: usize) -> Vec<Talk> {
    let address = set.address(place);
    let mut waiting = Vec::with_capacity(count);
    while waiting.len() < count {
        let tasks: Vec<_> = (0..AT_ONCE.min(count - waiting.len()))
            .map(|_| {
                tokio::spawn(async move {
                    let mut talk = Talk::open(address).await.unwrap();
                    let hello = talk.run(doc! { "hello": 1 }).await.unwrap();
                    let version = hello.get_document("topologyVersion").unwrap().clone();
                    let await_change = doc! {
                        "hello": 1, "topologyVersion": version, "maxAwaitTimeMS": 600_000,
                    };
                    talk.send(await_change, MsgFlags::EXHAUST_ALLOWED).await.unwrap();
                    talk
                })
            })
            .collect();
        for task in tasks {
            waiting.push(task.await.unwrap());
        }
    }
    // The last ones are read by the member while this passes.
    tokio::time::sleep(SETTLING).await;
    waiting
}
