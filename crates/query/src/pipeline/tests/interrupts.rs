//! Commands that are told to end: they ask often enough, and free nothing that takes long themselves.

use std::any::Any;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use bson::{Bson, Document, bson, doc};

use super::environment;
use super::planning::Patience;
use crate::error::Result;
use crate::expression::{Interrupt, Variables};
use crate::meter::{Meter, ProcessMemory};
use crate::pipeline::Pipeline;

/// Says no after some questions, and counts what is left to it.
#[derive(Debug)]
struct Heir(Patience, AtomicU32);

impl Interrupt for Heir {
    fn check(&self) -> Result<()> {
        Interrupt::check(&self.0)
    }

    fn leave(&self, _: Box<dyn Any + Send>) {
        self.1.fetch_add(1, Ordering::Relaxed);
    }
}

/// The client of a command that is stopped does not wait until what its stages held is freed.
#[test]
fn stages_that_hold_much_leave_it_when_they_are_interrupted() {
    let group = bson!({ "$group": { "_id": "$a", "n": { "$sum": { "$add": ["$a", 1] } } } });
    let bucket = bson!({ "$bucketAuto": { "groupBy": "$a", "buckets": 100 } });
    let window = bson!({ "$setWindowFields": { "sortBy": { "a": 1 }, "output": {
        "sum": { "$sum": "$a", "window": { "documents": ["unbounded", "current"] } },
    } } });
    let facet = bson!({ "$facet": { "all": [{ "$sort": { "a": 1 } }] } });
    for stage in [group, bson!({ "$sort": { "a": 1 } }), bucket, window, facet] {
        // From the first document, while documents come, and when they are made into the result.
        for patience in [1, 3, 8] {
            let heir = Arc::new(Heir(Patience(patience.into()), 0.into()));
            let variables = Variables::new(0).with_interrupt(heir.clone());
            let stages = [bson!({ "$set": { "c": { "$add": ["$a", 1] } } }), stage.clone()];
            let pipeline = Pipeline::parse(&stages, &variables).unwrap();
            let input = (0..5000).map(|a| Ok(doc! { "a": a * 7919 % 5000, "b": 1 }));
            let mut documents = pipeline.run(Box::new(input), environment(), &variables);
            assert!(documents.find_map(Result::err).is_some(), "{stage} {patience}");
            let left = heir.1.load(Ordering::Relaxed);
            assert!(left > 0, "{stage} after {patience} questions");
        }
    }
}

/// Counts the questions, and never says no.
#[derive(Debug, Default)]
struct Counter(AtomicU32);

impl Interrupt for Counter {
    fn check(&self) -> Result<()> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// How often a pipeline asks whether to go on.
fn questions(stages: &[Bson], input: Vec<Document>) -> u32 {
    let counter = Arc::new(Counter::default());
    let variables = Variables::new(0).with_interrupt(counter.clone());
    let pipeline = Pipeline::parse(stages, &variables).unwrap();
    let documents = pipeline.run(Box::new(input.into_iter().map(Ok)), environment(), &variables);
    assert!(documents.filter_map(Result::err).next().is_none());
    counter.0.load(Ordering::Relaxed)
}

/// What counts as one step may look at a hundred thousand values.
#[test]
fn an_operator_over_a_long_value_asks_each_time() {
    let list = Bson::Array((0..10_000).map(Bson::Int32).collect());
    let each = |body: Bson| {
        let map = bson!({ "$map": { "input": { "$range": [0, 100] }, "in": body } });
        questions(&[bson!({ "$project": { "v": { "$size": map } } })], vec![doc! { "list": &list }])
    };
    for body in [
        bson!({ "$in": [-1, "$list"] }),
        bson!({ "$size": { "$range": [0, 10_000] } }),
        bson!({ "$eq": ["$list", "$list"] }),
        bson!({ "$size": { "$let": { "vars": {}, "in": "$list" } } }),
        bson!({ "$median": { "input": "$list", "method": "approximate" } }),
    ] {
        let asked = each(body.clone());
        assert!(asked >= 100, "{body} asks {asked} times");
    }
    assert!(each(bson!({ "$add": ["$$this", 1] })) < 10, "short values are not asked for each");
}

#[test]
fn accumulators_that_move_or_sort_many_values_ask_meanwhile() {
    for accumulator in [
        bson!({ "$minN": { "input": "$a", "n": 100_000 } }),
        bson!({ "$topN": { "output": "$a", "sortBy": { "a": 1 }, "n": 100_000 } }),
    ] {
        let falling = (0..4000).rev().map(|a| doc! { "a": a }).collect();
        let asked =
            questions(&[bson!({ "$group": { "_id": Bson::Null, "v": accumulator } })], falling);
        assert!(asked > 100, "asked {asked} times");
    }
    let stages = [
        bson!({ "$project": { "a": { "$range": [0, 200] } } }),
        bson!({ "$unwind": "$a" }),
        bson!({ "$group": { "_id": Bson::Null, "v": {
            "$median": { "input": "$a", "method": "approximate" },
        } } }),
    ];
    let (sorted, plain) = (questions(&stages, vec![doc! {}; 500]), 100_000 / 1024);
    assert!(sorted > 2 * plain, "asked {sorted} times");
}

/// A set is made of one small allocation for each value.
#[test]
fn sets_that_are_interrupted_leave_what_they_held() {
    for operator in
        ["$setUnion", "$setIntersection", "$setDifference", "$setEquals", "$setIsSubset"]
    {
        let sets = bson!({ operator: [{ "$range": [0, 5000] }, { "$range": [2000, 9000] }] });
        // Both arrays are made with two questions.
        for patience in [4, 6, 9] {
            let heir = Arc::new(Heir(Patience(patience.into()), 0.into()));
            let variables = Variables::new(0).with_interrupt(heir.clone());
            let stages = [bson!({ "$project": { "v": sets.clone() } })];
            let pipeline = Pipeline::parse(&stages, &variables).unwrap();
            let input = Box::new(std::iter::once(Ok(doc! {})));
            let mut documents = pipeline.run(input, environment(), &variables);
            assert!(documents.find_map(Result::err).is_some(), "{operator} {patience}");
            assert!(heir.1.load(Ordering::Relaxed) > 0, "{operator} after {patience} questions");
        }
    }
}

/// Keeps what is left to it, and says no after some questions.
#[derive(Debug)]
struct Keeper(Patience, Mutex<Vec<Box<dyn Any + Send>>>);

impl Interrupt for Keeper {
    fn check(&self) -> Result<()> {
        self.0.check()
    }

    fn leave(&self, remains: Box<dyn Any + Send>) {
        self.1.lock().unwrap().push(remains);
    }
}

/// Clients that stop large commands one after the other take no more memory than the process has for all.
#[test]
fn what_was_left_counts_for_the_process_until_it_is_freed() {
    let process = Arc::new(ProcessMemory::default());
    let keeper = Arc::new(Keeper(Patience(12.into()), Mutex::default()));
    let meter = Meter::default().with_interrupt(keeper.clone()).with_process(process.clone());
    let variables = Variables::new(0).with_meter(meter.clone());
    let pipeline = Pipeline::parse(&[bson!({ "$sort": { "a": 1 } })], &variables).unwrap();
    let input = (0..20_000).map(|a| Ok(doc! { "a": a, "text": "x".repeat(500) }));
    let mut documents = pipeline.run(Box::new(input), environment(), &variables);
    assert!(documents.find_map(Result::err).is_some());
    drop((documents, pipeline, variables, meter));
    let left = std::mem::take(&mut *keeper.1.lock().unwrap());
    assert!(process.used() > 1_000_000, "{} bytes are counted", process.used());
    drop(left);
    keeper.1.lock().unwrap().clear();
    assert_eq!(process.used(), 0);
}
