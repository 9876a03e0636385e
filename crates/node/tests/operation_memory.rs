//! What operations allocate beside what they charge: the memory budgets bound the process only as far as each
//! operator and stage charges what it makes, before it makes it.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

mod support;

use std::sync::Arc;

use bson::{Bson, Document, bson, doc};
use quorate_query::expression::Variables;
use quorate_query::pipeline::{Documents, Environment, Pipeline, SystemStage};
use quorate_query::{Meter, QueryError};
use quorate_test_support::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Much less than a server's limit, so that the tests are quick.
const LIMIT: usize = 8 << 20;

/// What an operation may allocate: a quarter more than its limit, and half a megabyte.
const MOST: usize = LIMIT + LIMIT / 4 + (512 << 10);

/// One collection of small documents.
struct Collection;

impl Environment for Collection {
    fn read(&self, _: &str, _: Option<&Document>) -> Result<Documents, QueryError> {
        Ok(input(1000, 1000))
    }

    fn system(&self, stage: &SystemStage) -> Result<Vec<Document>, QueryError> {
        Err(QueryError::location(40602, format!("no {} here", stage.name())))
    }
}

/// Documents that are made when they are asked for, as a scan makes them.
fn input(count: i32, text: usize) -> Documents {
    Box::new((0..count).map(move |n| Ok(doc! { "_id": n, "k": 1, "text": "x".repeat(text) })))
}

/// The most that a pipeline allocates at a time, and whether it ends at the limit.
#[track_caller]
fn peak(stages: &Bson, documents: Documents) -> (usize, bool) {
    let Bson::Array(stages) = stages else { panic!("{stages} is no pipeline") };
    let variables = Variables::new(1).with_meter(Meter::new(LIMIT));
    let pipeline = Pipeline::parse(stages, &variables).unwrap();
    let (error, peak) = CountingAllocator::peak_of(|| {
        let mut results = pipeline.run(documents, Arc::new(Collection), &variables);
        results.find_map(Result::err)
    });
    (peak, error.is_some_and(|error| error.code().0 == 292))
}

/// Asserts that none of these allocates more than the limit allows, and that nearly all of them meet it.
#[track_caller]
fn all_within(shapes: impl IntoIterator<Item = (&'static str, Bson, Documents)>) {
    let (mut beyond, mut fitting) = (Vec::new(), Vec::new());
    for (name, stages, documents) in shapes {
        let (peak, refused) = peak(&stages, documents);
        let line = format!("{name}: {} KiB", peak >> 10);
        println!("{line}{}", if refused { "" } else { ", not refused" });
        if peak > MOST {
            beyond.push(line);
        } else if !refused {
            fitting.push(line);
        }
    }
    assert!(beyond.is_empty(), "more than {} KiB: {beyond:#?}", MOST >> 10);
    assert!(fitting.len() <= 2, "too small to show anything: {fitting:#?}");
}

/// A text of a megabyte for each ten of a kilobyte.
fn doubled(times: i32, start: &str) -> Bson {
    bson!({ "$reduce": {
        "input": { "$range": [0, times] }, "initialValue": start, "in": { "$concat": ["$$value", "$$value"] },
    } })
}

fn many(value: &Bson, times: usize) -> Bson {
    Bson::Array(vec![value.clone(); times])
}

/// An object of so many fields, each with a text of 100 characters.
fn object(fields: i32) -> Bson {
    bson!({ "$arrayToObject": { "$map": { "input": { "$range": [0, fields] }, "in": {
        "k": { "$toString": "$$this" }, "v": doubled(6, "xy"),
    } } } })
}

fn numbers() -> Bson {
    bson!({ "$range": [0, 20_000] })
}

/// Texts of two and of four megabytes.
fn long() -> Bson {
    doubled(11, "$text")
}

fn half() -> Bson {
    doubled(12, "$text")
}

fn letters() -> Bson {
    bson!({ "$split": [doubled(7, "$text"), "x"] })
}

fn groups() -> String {
    format!("{}.*{}", "(".repeat(30), ")".repeat(30))
}

fn twice(operator: &str, start: Bson) -> Bson {
    (0..14).fold(start, |inner, _| {
        bson!({ "$let": { "vars": { "v": inner }, "in": { operator: ["$$v", "$$v"] } } })
    })
}

fn grown(step: Bson, start: Bson) -> Bson {
    bson!({ "$reduce": { "input": { "$range": [0, 100_000] }, "initialValue": start, "in": step } })
}

fn group(accumulator: Bson) -> Bson {
    bson!([{ "$group": { "_id": "$k", "v": accumulator } }])
}

/// Expressions by name.
type Expressions = Vec<(&'static str, Bson)>;

/// Pipelines by name, and what they run over.
type Pipelines = Vec<(&'static str, Bson, Documents)>;

fn of_arrays() -> Expressions {
    vec![
        ("$range", bson!({ "$range": [0, 400_000] })),
        ("$zip", bson!({ "$zip": { "inputs": many(&numbers(), 3) } })),
        (
            "$concatArrays",
            bson!({ "$reduce": {
            "input": { "$range": [0, 100] }, "initialValue": ["x"], "in": { "$concatArrays": ["$$value", "$$value"] },
        } }),
        ),
        ("$concatArrays of numbers", twice("$concatArrays", numbers())),
        ("$concat", twice("$concat", bson!("$text"))),
        ("$setUnion", bson!({ "$setUnion": [numbers(), { "$range": [20_000, 60_000] }] })),
        (
            "$setUnion of texts",
            bson!({ "$setUnion": [{ "$map": { "input": { "$range": [0, 30_000] }, "in": { "$toString": "$$this" } } }, [1]] }),
        ),
        (
            "$setIntersection",
            bson!({ "$setIntersection": [{ "$range": [0, 30_000] }, { "$range": [0, 30_000] }] }),
        ),
        (
            "$setDifference",
            bson!({ "$setDifference": [{ "$range": [0, 30_000] }, { "$range": [30_000, 60_000] }] }),
        ),
        (
            "$let",
            bson!({ "$let": { "vars": { "a": numbers(), "b": numbers(), "c": numbers(), "d": numbers() }, "in": 1 } }),
        ),
        (
            "$map",
            bson!({ "$map": { "input": { "$range": [0, 1000] }, "in": { "$range": [0, 1000] } } }),
        ),
        (
            "$map of objects",
            bson!({ "$map": { "input": { "$range": [0, 40_000] }, "in": { "a": "$$this" } } }),
        ),
        (
            "$map of texts",
            bson!({ "$map": { "input": { "$range": [0, 50_000] }, "in": { "$toString": "$$this" } } }),
        ),
        ("$filter", bson!({ "$filter": { "input": { "$range": [0, 50_000] }, "cond": true } })),
        ("array", many(&numbers(), 10)),
        ("object", Bson::Document((0..10).map(|n| (format!("f{n}"), numbers())).collect())),
    ]
}

fn of_texts() -> Expressions {
    vec![
        (
            "$replaceAll",
            bson!({ "$replaceAll": { "input": "$text", "find": "x", "replacement": { "$concat": many(&bson!("$text"), 10) } } }),
        ),
        ("$split", letters()),
        ("$toLower", bson!({ "a": half(), "b": { "$toLower": half() } })),
        ("$toUpper", bson!({ "$toUpper": { "$concat": [half(), long()] } })),
        ("$substrBytes", bson!({ "$substrBytes": [{ "$concat": [half(), long()] }, 0, -1] })),
        ("$substrCP", bson!({ "$substrCP": [{ "$concat": [half(), long()] }, 0, 100_000_000] })),
        ("$trim", bson!({ "$trim": { "input": { "$concat": [half(), long()] } } })),
        ("$reverseArray", bson!({ "$reverseArray": { "$range": [0, 50_000] } })),
        ("$slice", bson!({ "$slice": [{ "$range": [0, 50_000] }, 50_000] })),
    ]
}

fn of_parts() -> Expressions {
    vec![
        (
            "$sortArray",
            bson!({ "$sortArray": { "input": { "$range": [0, 50_000] }, "sortBy": -1 } }),
        ),
        ("$arrayElemAt", bson!({ "$arrayElemAt": [[{ "$range": [0, 45_000] }], 0] })),
        ("$first", bson!({ "$first": [[{ "$range": [0, 45_000] }]] })),
        ("$last", bson!({ "$last": [[{ "$range": [0, 45_000] }]] })),
        ("$max", bson!({ "$max": [[{ "$range": [0, 45_000] }]] })),
        ("$firstN", bson!({ "$firstN": { "n": 50_000, "input": { "$range": [0, 50_000] } } })),
        ("$lastN", bson!({ "$lastN": { "n": 50_000, "input": { "$range": [0, 50_000] } } })),
        ("$minN", bson!({ "$minN": { "n": 50_000, "input": { "$range": [0, 50_000] } } })),
        ("$maxN", bson!({ "$maxN": { "n": 2, "input": { "$range": [0, 50_000] } } })),
        (
            "$getField",
            bson!({ "$getField": { "field": "a", "input": { "a": { "$range": [0, 45_000] } } } }),
        ),
        (
            "$setField",
            bson!({ "$setField": { "field": "b", "input": { "a": { "$range": [0, 40_000] } }, "value": { "$range": [0, 10_000] } } }),
        ),
        ("$mergeObjects", bson!({ "$mergeObjects": [object(12_000), { "a": 1 }] })),
        (
            "$mergeObjects that grow",
            grown(
                bson!({ "$mergeObjects": ["$$value", { "$arrayToObject": [[[{ "$toString": "$$this" }, "$text"]]] }] }),
                bson!({}),
            ),
        ),
        ("$objectToArray", bson!({ "$objectToArray": object(8_000) })),
        ("$arrayToObject", object(60_000)),
        (
            "$regexFindAll",
            bson!({ "$regexFindAll": { "input": doubled(6, "$text"), "regex": "x" } }),
        ),
        (
            "$regexFind with groups",
            bson!({ "$regexFind": { "input": doubled(9, "$text"), "regex": groups() } }),
        ),
        ("$cond", bson!({ "$cond": [true, twice("$concatArrays", numbers()), 1] })),
        ("$ifNull", bson!({ "$ifNull": [Bson::Null, twice("$concatArrays", numbers())] })),
        (
            "$switch",
            bson!({ "$switch": { "branches": [{ "case": true, "then": twice("$concatArrays", numbers()) }] } }),
        ),
        (
            "a large refusal",
            bson!({ "$concatArrays": [{ "$trim": { "input": { "$range": [0, 30_000] } } }, numbers()] }),
        ),
    ]
}

#[test]
fn operators_allocate_no_more_than_they_charge() {
    let shapes = of_arrays().into_iter().chain(of_texts()).chain(of_parts());
    all_within(shapes.map(|(name, expression)| {
        (name, bson!([{ "$project": { "v": expression } }]), input(1, 1000))
    }));
}

fn of_documents() -> Pipelines {
    let grow = bson!({ "$addFields": { "a": ["$a", "$a"] } });
    let chained = std::iter::once(bson!({ "$addFields": { "a": "$text" } }))
        .chain((0..30).map(|_| grow.clone()))
        .collect::<Vec<_>>();
    let facets: Document = (0..10).map(|n| (format!("f{n}"), bson!([{ "$match": {} }]))).collect();
    let fields = |value: Bson| (0..10).map(move |n| (format!("f{n}"), value.clone()));
    let pushes: Document = std::iter::once(("_id".to_owned(), bson!("$k")))
        .chain(fields(bson!({ "$push": "$$ROOT" })))
        .collect();
    let sums: Document = std::iter::once(("_id".to_owned(), bson!("$_id")))
        .chain(fields(bson!({ "$sum": 1 })))
        .collect();
    vec![
        ("chained", Bson::Array(chained), input(1, 1000)),
        ("$facet", bson!([{ "$facet": facets }]), input(2000, 1000)),
        ("$push of documents", bson!([{ "$group": pushes }]), input(1000, 1000)),
        ("$group of many", bson!([{ "$group": { "_id": "$_id" } }]), input(200_000, 1)),
        ("$group with sums", bson!([{ "$group": sums }]), input(100_000, 1)),
        (
            "$group of texts",
            bson!([{ "$group": { "_id": "$_id", "t": { "$first": "$text" } } }]),
            input(50_000, 1000),
        ),
    ]
}

fn of_accumulators() -> Pipelines {
    vec![
        ("$push", group(bson!({ "$push": "$_id" })), input(200_000, 1)),
        ("$addToSet", group(bson!({ "$addToSet": "$_id" })), input(200_000, 1)),
        (
            "$mergeObjects",
            group(
                bson!({ "$mergeObjects": { "$arrayToObject": [[[{ "$toString": "$_id" }, 1]]] } }),
            ),
            input(100_000, 1),
        ),
        (
            "$minN",
            group(bson!({ "$minN": { "n": 1_000_000, "input": "$_id" } })),
            input(200_000, 1),
        ),
        (
            "$lastN",
            group(bson!({ "$lastN": { "n": 1_000_000, "input": "$_id" } })),
            input(200_000, 1),
        ),
        (
            "$topN",
            group(
                bson!({ "$bottomN": { "n": 1_000_000, "sortBy": { "_id": 1 }, "output": "$_id" } }),
            ),
            input(200_000, 1),
        ),
        (
            "$median",
            group(bson!({ "$median": { "input": "$_id", "method": "approximate" } })),
            input(1_500_000, 1),
        ),
    ]
}

fn of_more_documents() -> Pipelines {
    vec![
        (
            "$bucketAuto",
            bson!([{ "$bucketAuto": { "groupBy": "$_id", "buckets": 2 } }]),
            input(100_000, 100),
        ),
        ("$sort", bson!([{ "$sort": { "text": 1 } }]), input(100_000, 100)),
        ("$sample", bson!([{ "$sample": { "size": 100_000 } }]), input(100_000, 100)),
        (
            "$setWindowFields",
            bson!([{ "$setWindowFields": { "sortBy": { "_id": 1 }, "output": { "n": { "$sum": 1 } } } }]),
            input(100_000, 100),
        ),
        (
            "$setWindowFields that pushes",
            bson!([{ "$setWindowFields": { "sortBy": { "_id": 1 }, "output": {
            "all": { "$push": "$text", "window": { "documents": ["unbounded", "current"] } },
        } } }]),
            input(1000, 1000),
        ),
        (
            "$lookup",
            bson!([{ "$lookup": { "from": "c", "as": "j", "pipeline": [{ "$unionWith": "c" }, { "$unionWith": "c" }, { "$unionWith": "c" }, { "$unionWith": "c" }, { "$unionWith": "c" }, { "$unionWith": "c" }, { "$unionWith": "c" }] } }]),
            input(1, 1),
        ),
        (
            "$graphLookup",
            bson!([{ "$graphLookup": { "from": "c", "as": "j", "startWith": "$k", "connectFromField": "k", "connectToField": "k" } }, { "$addFields": { "k": ["$j", "$j", "$j", "$j", "$j", "$j", "$j", "$j", "$j"] } }]),
            input(1, 1),
        ),
        (
            "$unwind",
            bson!([{ "$addFields": { "each": { "$range": [0, 20_000] } } }, { "$unwind": "$each" }, { "$group": { "_id": "$k", "v": { "$push": "$$ROOT" } } }]),
            input(10, 100),
        ),
        (
            "$replaceRoot",
            bson!([{ "$replaceRoot": { "newRoot": { "a": { "$range": [0, 30_000] }, "b": { "$range": [0, 30_000] }, "c": { "$range": [0, 30_000] } } } }]),
            input(1, 1),
        ),
    ]
}

#[test]
fn stages_allocate_no_more_than_they_charge() {
    all_within(of_documents().into_iter().chain(of_accumulators()).chain(of_more_documents()));
}

/// What a member keeps for change streams is lent row by row, however much of it there is.
#[test]
fn a_read_of_images_holds_no_more_than_it_shows() {
    const IMAGES: usize = 64;
    const IMAGE_BYTES: usize = 256 << 10;
    let member = support::set::primary();
    member.ok(doc! { "create": "c", "changeStreamPreAndPostImages": { "enabled": true } });
    member.insert("c", vec![doc! { "_id": 0, "text": "x".repeat(IMAGE_BYTES) }]);
    for n in 0..IMAGES {
        let update = doc! { "q": { "_id": 0 }, "u": { "$set": { "n": n as i64 } } };
        member.ok(doc! { "update": "c", "updates": [update] });
    }
    let stages = bson!([{ "$count": "n" }]);
    for mut command in [
        doc! { "find": "system.preimages", "batchSize": 1 },
        doc! { "find": "system.preimages", "filter": { "_id": 1 } },
        doc! { "count": "system.preimages", "query": { "preImage.n": 2 } },
        doc! { "aggregate": "system.preimages", "pipeline": stages, "cursor": {} },
    ] {
        command.insert("$db", "config");
        let (_, peak) = CountingAllocator::peak_of(|| member.ok(command.clone()));
        assert!(peak < IMAGES * IMAGE_BYTES / 4, "{command}: {} KiB", peak >> 10);
    }
}
