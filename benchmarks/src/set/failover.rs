//! How long clients wait: after `kill -9` of the primary, in a planned step-down, for a fresh set.
//!
//! Measured at default settings through our own client, which writes all the time with a majority:
//! the time from the misfortune to the next acknowledged write.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bson::doc;
use quorate_client::Client;

use crate::Effort;
use crate::members::{Set, wait};
use crate::table::{Figures, line};

pub async fn run(effort: Effort) {
    let mut set = Set::ready().await;
    let writer = Writer::start(&set.uri());
    let (mut killed, mut stepped) = (Figures::default(), Figures::default());
    for _ in 0..effort.rounds {
        writer.writes().await;
        let primary = set.primary().await;
        let start = Instant::now();
        set.kill(primary);
        killed.push(writer.next_after(start).await);
        set.restart(primary);
        set.insert_until_acknowledged(3).await;

        writer.writes().await;
        let primary = set.primary().await;
        let start = Instant::now();
        let command = doc! { "replSetStepDown": 60, "secondaryCatchUpPeriodSecs": 20 };
        set.run(primary, command).await.unwrap();
        stepped.push(writer.next_after(start).await);
        // It may stand again in the next round.
        set.run(primary, doc! { "replSetFreeze": 0 }).await.unwrap();
        set.insert_until_acknowledged(3).await;
    }
    let errors = writer.stop().await;
    line("kill -9 of the primary → next acknowledged write, ms", "ours", &killed, None);
    line("planned step-down → next acknowledged write, ms", "ours", &stepped, None);
    line("errors that the writer saw", "ours", &[errors as f64].into_iter().collect(), None);

    let mut fresh = Figures::default();
    for _ in 0..effort.rounds {
        let start = Instant::now();
        let set = Set::start(3);
        set.initiate().await;
        set.insert_until_acknowledged(2).await;
        fresh.push(start.elapsed().as_secs_f64() * 1e3);
    }
    line("fresh set → first majority write, ms", "ours", &fresh, None);
}

/// Writes one record after another until it is told to stop.
struct Writer {
    shared: Arc<Shared>,
    task: tokio::task::JoinHandle<()>,
    began: Instant,
}

struct Shared {
    /// Nanoseconds from the beginning to the start of the last write that was acknowledged, and to
    /// its acknowledgement.
    last: AtomicU64,
    written: AtomicU64,
    errors: AtomicU64,
    stop: AtomicBool,
}

impl Writer {
    fn start(uri: &str) -> Self {
        let shared = Arc::new(Shared {
            last: AtomicU64::new(0),
            written: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        });
        let client = Client::with_uri(uri).unwrap();
        let (state, began) = (Arc::clone(&shared), Instant::now());
        let task = tokio::spawn(async move {
            let records = client.collection("bench", "failover");
            while !state.stop.load(Ordering::Relaxed) {
                match records.insert_one(doc! { "text": "x".repeat(150) }).await {
                    Ok(_) => {
                        let at = began.elapsed().as_nanos() as u64;
                        state.last.store(at, Ordering::Release);
                        state.written.fetch_add(1, Ordering::Release);
                    }
                    Err(error) => {
                        eprintln!("the writer saw an error: {error}");
                        state.errors.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
            client.close().await;
        });
        Self { shared, task, began }
    }

    /// Waits for a few more writes.
    async fn writes(&self) {
        let goal = self.shared.written.load(Ordering::Acquire) + 50;
        wait("more writes", async || {
            (self.shared.written.load(Ordering::Acquire) >= goal).then_some(())
        })
        .await;
    }

    /// Milliseconds from a moment to the first acknowledgement that cannot be of the time before: the
    /// end of the longest wait that follows.
    async fn next_after(&self, moment: Instant) -> f64 {
        let moment = moment.duration_since(self.began).as_nanos() as u64;
        let mut previous = moment;
        let (mut longest, mut end) = (0, moment);
        let goal = self.shared.written.load(Ordering::Acquire) + 20;
        wait("the next write", async || {
            let last = self.shared.last.load(Ordering::Acquire);
            if last > previous {
                if last - previous > longest {
                    (longest, end) = (last - previous, last);
                }
                previous = last;
            }
            (self.shared.written.load(Ordering::Acquire) >= goal).then_some(())
        })
        .await;
        Duration::from_nanos(end - moment).as_secs_f64() * 1e3
    }

    async fn stop(self) -> u64 {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.task.await.unwrap();
        self.shared.errors.load(Ordering::Relaxed)
    }
}
