//! Change streams beside the bare tail of the oplog: how soon after the acknowledgement an event arrives, how many
//! events a second one stream gives and what they cost, and how the cost grows with the number of streams.
//!
//! Every stream has a filter; each write fits one stream.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bson::{Bson, Document, Timestamp, doc};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::Effort;
use crate::members::{Set, Talk};
use crate::table::{Figures, line};

/// What a `getMore` of a stream waits for at most, as drivers have it by default.
const AWAIT_MILLIS: i32 = 1000;

/// How many streams there are besides one.
const MANY: usize = 1000;

/// A cursor that is read in a task of its own.
struct Consumer {
    /// When the document of a number arrived.
    arrivals: Arc<Mutex<Vec<(i64, Instant)>>>,
    task: JoinHandle<()>,
    /// Its cursor.
    id: i64,
}

/// What is followed.
#[derive(Clone, Copy)]
enum Source {
    Stream { filter: i64 },
    Oplog,
}

/// The time after everything so far.
async fn next_time(talk: &mut Talk) -> Timestamp {
    let reply = talk.run(doc! { "ping": 1 }).await.unwrap();
    let mut time = reply.get_timestamp("operationTime").unwrap();
    time.increment += 1;
    time
}

impl Source {
    fn name(self) -> &'static str {
        match self {
            Self::Stream { .. } => "change stream",
            Self::Oplog => "oplog tail",
        }
    }

    async fn open(self, talk: &mut Talk, since: Option<Timestamp>) -> (i64, Vec<Bson>, Document) {
        let command = match self {
            Self::Stream { filter } => {
                let mut stage = doc! {};
                if let Some(since) = since {
                    stage.insert("startAtOperationTime", since);
                }
                doc! {
                    "aggregate": "watched", "$db": "bench", "cursor": {},
                    "pipeline": [
                        { "$changeStream": stage }, { "$match": { "fullDocument.stream": filter } },
                    ],
                }
            }
            Self::Oplog => {
                let since = match since {
                    Some(since) => since,
                    None => next_time(talk).await,
                };
                doc! {
                    "find": "oplog.rs", "$db": "local", "tailable": true, "awaitData": true,
                    "filter": { "ts": { "$gte": since }, "ns": "bench.watched" },
                }
            }
        };
        let reply = talk.run(command).await.unwrap();
        let mut cursor = reply.get_document("cursor").unwrap().clone();
        let batch = match cursor.remove("firstBatch") {
            Some(Bson::Array(batch)) => batch,
            _ => Vec::new(),
        };
        let collection = cursor.get_str("ns").unwrap().split_once('.').unwrap().1.to_owned();
        let database = cursor.get_str("ns").unwrap().split_once('.').unwrap().0.to_owned();
        let id = cursor.get_i64("id").unwrap();
        let more = doc! { "getMore": id, "collection": collection, "$db": database, "maxTimeMS": AWAIT_MILLIS };
        (id, batch, more)
    }

    /// The number of the document that an event or an entry is about.
    fn number(self, event: &Bson) -> Option<i64> {
        let event = event.as_document()?;
        let document = match self {
            Self::Stream { .. } => event.get_document("fullDocument"),
            Self::Oplog => event.get_document("o"),
        };
        document.ok()?.get_i64("_id").ok()
    }
}

impl Consumer {
    async fn start(source: Source, to: SocketAddr, mut stop: watch::Receiver<bool>) -> Self {
        let arrivals = Arc::new(Mutex::new(Vec::new()));
        let mut talk = Talk::open(to).await.unwrap();
        let (id, first, more) = source.open(&mut talk, None).await;
        let kept = Arc::clone(&arrivals);
        let keep = move |batch: &[Bson]| {
            let now = Instant::now();
            let numbers = batch.iter().filter_map(|event| source.number(event));
            kept.lock().unwrap().extend(numbers.map(|number| (number, now)));
        };
        keep(&first);
        let task = tokio::spawn(async move {
            loop {
                let reply = tokio::select! {
                    reply = talk.run(more.clone()) => reply.unwrap(),
                    _ = stop.changed() => return,
                };
                keep(reply.get_document("cursor").unwrap().get_array("nextBatch").unwrap());
            }
        });
        Self { arrivals, task, id }
    }

    /// Waits for the ends of consumers that were told to stop, and closes their cursors: a member keeps those of
    /// a connection that is gone for ten minutes, and has room for 10,000.
    async fn end_all(consumers: Vec<Self>, to: SocketAddr) {
        let mut ids = Vec::new();
        for consumer in consumers {
            consumer.task.await.unwrap();
            ids.push(Bson::from(consumer.id));
        }
        if ids.is_empty() {
            return;
        }
        let mut talk = Talk::open(to).await.unwrap();
        let kill = doc! { "killCursors": "watched", "cursors": ids, "$db": "bench" };
        talk.run(kill).await.unwrap();
    }
}

/// Writes documents one after the other, each for a stream; gives when each was acknowledged.
async fn write(to: SocketAddr, first: i64, count: i64, streams: i64) -> Vec<(i64, Instant)> {
    let mut talk = Talk::open(to).await.unwrap();
    let mut acknowledged = Vec::new();
    for number in first..first + count {
        let document = doc! { "_id": number, "stream": number % streams, "text": "x".repeat(100) };
        let insert = doc! {
            "insert": "watched", "$db": "bench", "documents": [document],
            "writeConcern": { "w": "majority" },
        };
        talk.run(insert).await.unwrap();
        acknowledged.push((number, Instant::now()));
    }
    acknowledged
}

/// A set with a collection to watch.
async fn watched() -> (Set, usize) {
    let set = Set::ready().await;
    let primary = set.primary().await;
    let create = doc! { "create": "watched", "$db": "bench", "writeConcern": { "w": 3 } };
    set.run(primary, create).await.unwrap();
    (set, primary)
}

/// What more and more streams cost.
pub async fn run_growth(effort: Effort) {
    let (set, primary) = watched().await;
    growth(effort, &set, primary, &mut 0).await;
}

pub async fn run(effort: Effort) {
    let (set, primary) = watched().await;
    let to = set.address(primary);
    let mut next = 0;
    for streams in [1, MANY] {
        latency(effort, to, streams, &mut next).await;
    }
    drain(effort, &set, primary, &mut next).await;
}

/// From the acknowledgement to the arrival. An event may arrive before the acknowledgement: both wait for the same
/// commit point.
async fn latency(effort: Effort, to: SocketAddr, streams: usize, next: &mut i64) {
    let writes = (effort.load.as_millis() as i64 / 2).max(100);
    let mut told = Vec::new();
    for oplog in [false, true] {
        // A thousand tails of the oplog would each read everything: there is one, beside the streams' figures.
        if oplog && streams > 1 {
            continue;
        }
        let (mut p50, mut p99) = (Figures::default(), Figures::default());
        let name = if oplog { Source::Oplog.name() } else { Source::Stream { filter: 0 }.name() };
        for _ in 0..effort.rounds {
            let (stopper, stop) = watch::channel(false);
            let mut consumers = Vec::new();
            for filter in 0..streams as i64 {
                let source = if oplog { Source::Oplog } else { Source::Stream { filter } };
                consumers.push(Consumer::start(source, to, stop.clone()).await);
            }
            let acknowledged = write(to, *next, writes, streams as i64).await;
            *next += writes;
            let mut late = Vec::new();
            let deadline = Instant::now() + Duration::from_secs(30);
            let total =
                || consumers.iter().map(|one| one.arrivals.lock().unwrap().len()).sum::<usize>();
            while (total() as i64) < writes {
                assert!(Instant::now() < deadline, "{} of {writes} events arrived", total());
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            stopper.send(true).unwrap();
            for consumer in &consumers {
                for (number, arrived) in consumer.arrivals.lock().unwrap().iter() {
                    let (_, at) = acknowledged[(*number - acknowledged[0].0) as usize];
                    let behind = arrived.saturating_duration_since(at).as_secs_f64();
                    late.push(
                        (behind - at.saturating_duration_since(*arrived).as_secs_f64()) * 1e6,
                    );
                }
            }
            Consumer::end_all(consumers, to).await;
            late.sort_by(f64::total_cmp);
            p50.push(late[late.len() / 2]);
            p99.push(late[late.len() * 99 / 100]);
        }
        told.push((name, p50, p99));
    }
    for (what, second) in [("p50", false), ("p99", true)] {
        for (name, p50, p99) in &told {
            let measure =
                format!("event behind the acknowledgement, {what}, µs, {streams} streams");
            line(&measure, name, if second { p99 } else { p50 }, None);
        }
    }
}

/// Everything that was written so far and some more, read from the first entry on.
async fn drain(effort: Effort, set: &Set, primary: usize, next: &mut i64) {
    let to = set.address(primary);
    let mut talk = Talk::open(to).await.unwrap();
    let began = next_time(&mut talk).await;
    let count = effort.records as i64 / 2;
    for start in (0..count).step_by(1000) {
        let documents: Vec<Bson> = (start..count.min(start + 1000))
            .map(|id| doc! { "_id": *next + id, "stream": 0_i64, "text": "x".repeat(100) }.into())
            .collect();
        let insert = doc! {
            "insert": "watched", "$db": "bench", "documents": documents,
            "writeConcern": { "w": "majority" },
        };
        talk.run(insert).await.unwrap();
    }
    *next += count;
    let mut figures = [const { Vec::new() }; 2];
    for _ in 0..effort.rounds {
        for (place, source) in [Source::Stream { filter: 0 }, Source::Oplog].into_iter().enumerate()
        {
            let (before, start) = (set.process(primary).processor_time(), Instant::now());
            let (_, batch, more) = source.open(&mut talk, Some(began)).await;
            let mut seen = batch.iter().filter_map(|event| source.number(event)).count() as i64;
            while seen < count {
                let reply = talk.run(more.clone()).await.unwrap();
                let batch = reply.get_document("cursor").unwrap().get_array("nextBatch").unwrap();
                seen += batch.iter().filter_map(|event| source.number(event)).count() as i64;
            }
            let used = set.process(primary).processor_time() - before;
            let rate = seen as f64 / start.elapsed().as_secs_f64();
            figures[place].push((rate, used.as_secs_f64() * 1e6 / seen as f64));
        }
    }
    let [streams, tails] = figures;
    for (what, rate) in [("events/s through one cursor", true), ("CPU µs an event", false)] {
        let of = |all: &[(f64, f64)]| -> Figures {
            all.iter().map(|(first, second)| if rate { *first } else { *second }).collect()
        };
        let ours = of(&streams);
        line(what, "change stream", &ours, None);
        line(what, "oplog tail", &of(&tails), Some(&ours));
    }
}

/// What a write costs the primary beside more and more streams, and what a stream holds in memory.
async fn growth(effort: Effort, set: &Set, primary: usize, next: &mut i64) {
    let to = set.address(primary);
    let writes = (effort.load.as_millis() as i64 / 2).max(100);
    for streams in [0, 10, 100, MANY] {
        let (mut processor, mut memory) = (Figures::default(), Figures::default());
        for _ in 0..effort.rounds {
            let resident = set.process(primary).resident();
            let (stopper, stop) = watch::channel(false);
            let mut consumers = Vec::new();
            for filter in 0..streams as i64 {
                let source = Source::Stream { filter };
                consumers.push(Consumer::start(source, to, stop.clone()).await);
            }
            let before = set.process(primary).processor_time();
            write(to, *next, writes, streams.max(1) as i64).await;
            *next += writes;
            let used = set.process(primary).processor_time() - before;
            processor.push(used.as_secs_f64() * 1e6 / writes as f64);
            if streams > 0 {
                memory.push((set.process(primary).resident() - resident) * 1024.0 / streams as f64);
            }
            stopper.send(true).unwrap();
            Consumer::end_all(consumers, to).await;
        }
        let measure = format!("CPU µs a write, primary, {streams} streams");
        line(&measure, "ours", &processor, None);
        if streams == MANY {
            line("memory KiB a stream, with its connection", "ours", &memory, None);
        }
    }
}
