//! How long a command goes on after it was told to stop, by what it does at that moment.
//!
//! `maxTimeMS`, `killOp`, a client that leaves and a server that ends all set the same interrupt. This
//! sets it at different moments of each command and prints the longest time until the command ended:
//!
//! ```text
//! cargo run --release --example interrupts
//! ```

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a measuring program")]

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bson::{Bson, Document, RawDocumentBuf, bson, doc};
use quorate_node::{
    Client, Command, Context, Interrupt, Interruption, Node, NodeOptions, Now, Outcome, Scratch,
    ScratchFile,
};
use quorate_protocol::{MonotonicTime, WallTime};
use quorate_storage::ModelStore;

/// The allocator of members: much of the time after an interrupt goes into freeing.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Documents in the collection.
const DOCUMENTS: i32 = 400_000;

/// Values of the long array.
const LONG: i32 = 200_000;

/// How often each command is stopped, each time a little later.
const TIMES: u32 = 25;

/// Where sorts put what they cannot hold.
#[derive(Debug)]
struct Temporary;

impl Scratch for Temporary {
    fn create(&self) -> io::Result<Box<dyn ScratchFile>> {
        Ok(Box::new(tempfile::tempfile()?))
    }
}

fn now() -> Now {
    Now { wall: WallTime(1_700_000_000_000), monotonic: MonotonicTime::from_millis(1000) }
}

fn run(node: &Node, command: Document, interrupt: Arc<Interrupt>) -> RawDocumentBuf {
    let client = Arc::new(Client { connection_id: 1, ..Client::default() });
    let context = Context { now: now(), client, may_wait: true, may_look_at: None, interrupt };
    match node.run(&context, Command::new(command)) {
        Outcome::Reply(reply) => reply.body,
        _ => RawDocumentBuf::new(),
    }
}

/// An array of small documents: what takes longest to copy and to free, byte for byte.
fn pairs(count: i32) -> Bson {
    bson!({ "$map": { "input": { "$range": [0, count] }, "in": {
        "a": "$$this", "b": { "c": "$$this", "d": ["$$this"] },
    } } })
}

type Named = (&'static str, Document);

fn aggregate(pipeline: Vec<Bson>) -> Document {
    doc! { "aggregate": "c", "pipeline": pipeline, "cursor": {}, "$db": "db" }
}

fn compute(value: Bson) -> Document {
    aggregate(vec![bson!({ "$limit": 1 }), bson!({ "$project": { "v": value } })])
}

fn commands() -> Vec<Named> {
    let mut all = scans();
    all.extend(arrays());
    all.extend(stages());
    all.extend(writes_and_joins());
    all
}

fn scans() -> Vec<Named> {
    let endless = bson!({ "$reduce": {
        "input": { "$range": [0, 1_000_000] }, "initialValue": 0,
        "in": { "$add": ["$$value", { "$size": { "$range": [0, 100] } }] },
    } });
    let missing = doc! { "n": -1 };
    let other = bson!({ "$mod": [{ "$multiply": ["$n", 7919] }, 999_983] });
    vec![
        ("scan", doc! { "count": "c", "query": missing.clone(), "$db": "db" }),
        ("sort of a find", doc! { "find": "c", "sort": { "text": -1, "n": 1 }, "$db": "db" }),
        (
            "$sort",
            aggregate(vec![
                bson!({ "$addFields": { "m": other.clone() } }),
                bson!({ "$sort": { "m": 1 } }),
            ]),
        ),
        (
            "$sort that may not use the disk",
            doc! { "aggregate": "c", "pipeline": [
                { "$addFields": { "m": other.clone() } }, { "$sort": { "m": 1 } },
            ], "cursor": {}, "allowDiskUse": false, "$db": "db" },
        ),
        ("$group", aggregate(vec![bson!({ "$group": { "_id": other, "n": { "$sum": 1 } } })])),
        ("expression", compute(endless)),
    ]
}

/// Operators that make long arrays.
fn arrays() -> Vec<Named> {
    vec![
        (
            "$sortArray",
            compute(bson!({ "$size": { "$sortArray": {
                "input": { "$map": { "input": { "$range": [0, 250_000] }, "in": {
                    "$mod": [{ "$multiply": ["$$this", 7919] }, 999_983],
                } } },
                "sortBy": 1,
            } } })),
        ),
        (
            "$setUnion",
            compute(bson!({ "$size": { "$setUnion": [{ "$range": [0, 400_000] }, []] } })),
        ),
        (
            "$setIntersection",
            compute(bson!({ "$size": { "$setIntersection": [
                { "$range": [0, 400_000] }, { "$range": [200_000, 600_000] },
            ] } })),
        ),
        (
            "$setDifference",
            compute(bson!({ "$size": { "$setDifference": [
                { "$range": [0, 400_000] }, { "$range": [200_000, 600_000] },
            ] } })),
        ),
        ("$map to documents", compute(bson!({ "$size": pairs(100_000) }))),
        (
            "$concatArrays",
            compute(bson!({ "$let": { "vars": { "a": pairs(50_000) }, "in": {
                "$size": { "$concatArrays": ["$$a", "$$a"] },
            } } })),
        ),
        (
            "$filter and $reverseArray",
            compute(bson!({ "$size": { "$reverseArray": { "$filter": {
                "input": pairs(50_000), "cond": { "$gt": ["$$this.a", 3] },
            } } } })),
        ),
        (
            "$zip",
            compute(bson!({ "$let": { "vars": { "a": pairs(40_000) }, "in": {
                "$size": { "$zip": { "inputs": ["$$a", "$$a"] } },
            } } })),
        ),
        (
            "$reduce that grows",
            compute(bson!({ "$size": { "$reduce": {
                "input": { "$range": [0, 2_000] }, "initialValue": [],
                "in": { "$concatArrays": ["$$value", pairs(10)] },
            } } })),
        ),
        (
            "$reduce of texts",
            compute(bson!({ "$strLenBytes": { "$reduce": {
                "input": { "$range": [0, 4_000] }, "initialValue": "",
                "in": { "$concat": ["$$value", "a".repeat(4_000)] },
            } } })),
        ),
    ]
}

/// Stages that hold or make many documents.
fn stages() -> Vec<Named> {
    vec![
        (
            "$unwind",
            aggregate(vec![
                bson!({ "$limit": 1 }),
                bson!({ "$project": { "v": pairs(50_000) } }),
                bson!({ "$unwind": "$v" }),
                bson!({ "$match": { "v.a": -1 } }),
            ]),
        ),
        (
            "$push",
            aggregate(vec![
                bson!({ "$limit": 100_000 }),
                bson!({ "$group": { "_id": null, "all": { "$push": { "n": "$n", "m": { "o": "$n" } } } } }),
            ]),
        ),
        (
            "$bucketAuto",
            aggregate(vec![bson!({ "$bucketAuto": {
            "groupBy": { "$mod": [{ "$multiply": ["$n", 7919] }, 999_983] }, "buckets": 5000,
        } })]),
        ),
        (
            "$setWindowFields",
            aggregate(vec![
                bson!({ "$limit": 150_000 }),
                bson!({ "$setWindowFields": {
                "partitionBy": { "$mod": ["$n", 10] },
                "sortBy": { "n": -1 },
                "output": { "sum": { "$sum": "$n", "window": { "documents": ["unbounded", "current"] } } },
            } }),
            ]),
        ),
        (
            "$graphLookup",
            aggregate(vec![
                bson!({ "$limit": 1 }),
                bson!({ "$graphLookup": {
                "from": "c", "startWith": 0, "connectFromField": "next", "connectToField": "back",
                "as": "all",
            } }),
                bson!({ "$project": { "n": { "$size": "$all" } } }),
            ]),
        ),
        (
            "$lookup by a field",
            aggregate(vec![
                bson!({ "$lookup": {
                "from": "c", "as": "others", "localField": "n", "foreignField": "n",
            } }),
                bson!({ "$match": { "others.n": -1 } }),
            ]),
        ),
        (
            "$facet",
            aggregate(vec![
                bson!({ "$facet": {
            "a": [{ "$limit": 100_000 }, { "$group": { "_id": "$n" } }, { "$count": "n" }],
            "b": [{ "$limit": 60_000 }, { "$project": { "n": 1 } }],
        } }),
                bson!({ "$project": { "a": 1 } }),
            ]),
        ),
    ]
}

fn writes_and_joins() -> Vec<Named> {
    let missing = doc! { "n": -1 };
    vec![
        (
            "regular expression",
            doc! { "find": "c", "filter": { "text": { "$regex": "(a|aa)+(?=b)\\1$" } }, "$db": "db" },
        ),
        (
            "update that searches",
            doc! { "update": "c", "updates": [
                { "q": missing.clone(), "u": { "$set": { "x": 1 } } },
            ], "$db": "db" },
        ),
        (
            "update of many",
            doc! { "update": "c", "updates": [
                { "q": {}, "u": { "$inc": { "x": 1 } }, "multi": true },
            ], "$db": "db" },
        ),
        ("$addToSet", of_the_long_array(bson!({ "$addToSet": { "a": { "$each": some() } } }))),
        ("$pullAll", of_the_long_array(bson!({ "$pullAll": { "a": some() } }))),
        (
            "$push and sort",
            of_the_long_array(bson!({ "$push": { "a": { "$each": some(), "$sort": -1 } } })),
        ),
        (
            "$lookup",
            aggregate(vec![bson!({ "$lookup": {
                "from": "c", "as": "others", "let": { "n": "$n" },
                "pipeline": [{ "$match": { "$expr": { "$eq": ["$n", { "$add": ["$$n", -1.5] }] } } }],
            } })]),
        ),
    ]
}

/// Half as many values as the long array has.
fn some() -> Bson {
    Bson::Array((0..LONG / 2).map(|n| Bson::Int32(n * 7919 % LONG + LONG / 2)).collect())
}

fn of_the_long_array(update: Bson) -> Document {
    doc! { "update": "long", "updates": [{ "q": {}, "u": update }], "$db": "db" }
}

fn main() {
    let options = NodeOptions { scratch: Some(Arc::new(Temporary)), ..NodeOptions::default() };
    let node = Node::open(Arc::new(ModelStore::new()), options, now()).unwrap();
    let long = Bson::Array((0..LONG).map(Bson::Int32).collect());
    let insert = doc! { "insert": "long", "documents": [{ "_id": 1, "a": long }], "$db": "db" };
    assert_eq!(run(&node, insert, Arc::default()).get_f64("ok").ok(), Some(1.0));
    let text = "a".repeat(60);
    for first in (0..DOCUMENTS).step_by(10_000) {
        let documents = (first..first + 10_000).map(|n| {
            doc! { "_id": n, "n": n, "text": &text, "back": n / 1000, "next": n % 1000 }
        });
        let documents: Vec<_> = documents.collect();
        let insert = doc! { "insert": "c", "documents": documents, "$db": "db" };
        assert_eq!(run(&node, insert, Arc::default()).get_f64("ok").ok(), Some(1.0));
    }
    println!(
        "| command | whole, ms | processor time after the interrupt, longest of {TIMES}, ms | by the clock, ms | freed after the answer, ms |\n\
         |---|---|---|---|---|"
    );
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    for (name, command) in commands() {
        if !wanted.is_empty() && !wanted.iter().any(|wanted| name.contains(wanted.as_str())) {
            continue;
        }
        measure(&node, name, &command);
    }
}

/// The processor time of a thread of this process.
fn processor_time(thread: &str) -> Duration {
    let path = format!("/proc/self/task/{thread}/schedstat");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let nanos = text.split(' ').next().and_then(|first| first.parse().ok());
    Duration::from_nanos(nanos.unwrap_or_default())
}

fn this_thread() -> String {
    let link = std::fs::read_link("/proc/thread-self").unwrap_or_default();
    link.file_name().map_or(String::new(), |name| name.to_string_lossy().into_owned())
}

fn measure(node: &Node, name: &str, command: &Document) {
    let start = Instant::now();
    let patience = Arc::new(Interrupt::default());
    let whole = std::thread::scope(|threads| {
        let worker = threads.spawn(|| run(node, command.clone(), Arc::clone(&patience)));
        while !worker.is_finished() && start.elapsed() < Duration::from_secs(4) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let whole = worker.is_finished().then(|| start.elapsed());
        patience.set(Interruption::Killed);
        whole
    });
    drop(patience.take_remains());
    let length = whole.unwrap_or(Duration::from_secs(4));
    let (mut longest, mut by_clock, mut freed) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
    for time in 1..=TIMES {
        let interrupt = Arc::new(Interrupt::default());
        std::thread::scope(|threads| {
            let (tell, told) = std::sync::mpsc::channel();
            let worker = threads.spawn({
                let interrupt = Arc::clone(&interrupt);
                move || {
                    let thread = this_thread();
                    let _ = tell.send(thread.clone());
                    run(node, command.clone(), interrupt);
                    processor_time(&thread)
                }
            });
            let thread = told.recv().unwrap_or_default();
            std::thread::sleep(length * time / (TIMES + 1));
            interrupt.set(Interruption::Killed);
            let (told, used) = (Instant::now(), processor_time(&thread));
            let ended = worker.join().unwrap_or_default();
            by_clock = by_clock.max(told.elapsed());
            longest = longest.max(ended.saturating_sub(used).min(told.elapsed()));
        });
        // The server frees it on another thread, when it has answered.
        let freeing = Instant::now();
        drop(interrupt.take_remains());
        freed = freed.max(freeing.elapsed());
    }
    let whole = whole.map_or("more than 4000".to_owned(), |time| time.as_millis().to_string());
    let millis = |time: Duration| time.as_secs_f64() * 1000.0;
    println!(
        "| {name} | {whole} | {:.1} | {:.1} | {:.1} |",
        millis(longest),
        millis(by_clock),
        millis(freed)
    );
}
