//! Shapes that multiply what a client wrote: each ends at the operation's memory limit, and the
//! refusal names the stage or operator.

use bson::{Bson, Document, bson, doc};

use super::{environment, run_in};
use crate::expression::Variables;
use crate::meter::Meter;
use crate::pipeline::Pipeline;

/// Much less than a server's limit, so that the tests are quick.
const LIMIT: usize = 4 * 1024 * 1024;

fn input(count: i32) -> Vec<Document> {
    (0..count).map(|n| doc! { "_id": n, "k": 1, "text": "x".repeat(1000) }).collect()
}

/// Repeats `wrap` around a value.
fn nested(times: usize, start: Bson, wrap: impl Fn(Bson) -> Bson) -> Bson {
    (0..times).fold(start, |inner, _| wrap(inner))
}

#[track_caller]
fn exceeds(stages: Bson, documents: Vec<Document>, holder: &str) {
    let error = run_in(stages.clone(), documents, environment(), LIMIT).unwrap_err();
    assert_eq!(error.code().0, 292, "{error}");
    assert!(error.message().contains(holder), "{error}");
}

#[test]
fn expressions_that_multiply_values_are_refused() {
    let numbers = || bson!({ "$range": [0, 10_000] });
    let doubled = |operator: &str| {
        nested(
            12,
            numbers(),
            |inner| bson!({ "$let": { "vars": { "v": inner }, "in": { operator: ["$$v", "$$v"] } } }),
        )
    };
    let many = |times: usize| Bson::Array((0..times).map(|_| numbers()).collect());
    for (expression, holder) in [
        (bson!({ "$range": [0, 100_000] }), "$range"),
        (many(100), "an array expression"),
        (doubled("$concatArrays"), "$concatArrays"),
        (bson!({ "$zip": { "inputs": many(3) } }), "$zip"),
        (bson!({ "$setUnion": [numbers(), { "$range": [10_000, 25_000] }] }), "$setUnion"),
        (
            bson!({ "$let": { "vars": { "a": numbers(), "b": numbers(), "c": numbers(), "d": numbers() }, "in": 1 } }),
            "$range",
        ),
        (
            bson!({ "$map": { "input": { "$range": [0, 100] }, "in": { "$range": [0, 1000] } } }),
            "$map",
        ),
        (
            bson!({ "$reduce": { "input": { "$range": [0, 100] }, "initialValue": ["x"], "in": { "$concatArrays": ["$$value", "$$value"] } } }),
            "$concatArrays",
        ),
        (
            bson!({ "$reduce": { "input": { "$range": [0, 100] }, "initialValue": "xy", "in": { "$concat": ["$$value", "$$value"] } } }),
            "$concat",
        ),
        (
            bson!({ "$replaceAll": { "input": "$text", "find": "x", "replacement": { "$concat": ["$text", "$text", "$text", "$text", "$text"] } } }),
            "$replaceAll",
        ),
        (
            bson!({ "$regexFindAll": { "input": { "$reduce": { "input": { "$range": [0, 4] }, "initialValue": "$text", "in": { "$concat": ["$$value", "$$value"] } } }, "regex": "x" } }),
            "$regexFindAll",
        ),
    ] {
        exceeds(bson!([{ "$project": { "v": expression } }]), input(1), holder);
    }
}

/// The parts of a text take a hundred times as much as the text: one operator stops before it has made them all.
#[test]
fn a_text_that_is_split_into_its_letters_is_refused_on_the_way() {
    let text = bson!({ "$reduce": {
        "input": { "$range": [0, 10] }, "initialValue": "$text", "in": { "$concat": ["$$value", "$$value"] },
    } });
    exceeds(
        bson!([{ "$project": { "v": { "$split": [text, "x"] } } }]),
        input(1),
        "$split exceeded",
    );
}

#[test]
fn constants_are_not_multiplied_before_the_operation_runs() {
    let expression = Bson::Array((0..1000).map(|_| bson!({ "$range": [0, 500_000] })).collect());
    let stages = [bson!({ "$project": { "v": expression } })];
    // Parsing holds nothing large; running is refused.
    let variables = Variables::new(0).with_meter(Meter::new(LIMIT));
    let pipeline = Pipeline::parse(&stages, &variables).unwrap();
    let documents = Box::new(input(1).into_iter().map(Ok));
    let refused = pipeline.run(documents, environment(), &variables).next().unwrap().unwrap_err();
    assert_eq!(refused.code().0, 292);
    assert_eq!(variables.meter().used(), 0);
}

#[test]
fn stages_that_multiply_documents_are_refused() {
    let grow = || bson!({ "$addFields": { "a": ["$a", "$a"] } });
    let mut chained = vec![bson!({ "$addFields": { "a": "$text" } })];
    chained.extend((0..30).map(|_| grow()));
    exceeds(Bson::Array(chained), input(1), "an array expression");
    let facets: Document = (0..10).map(|n| (format!("f{n}"), bson!([{ "$match": {} }]))).collect();
    exceeds(bson!([{ "$facet": facets }]), input(1000), "$facet");
    exceeds(
        bson!([{ "$group": { "_id": "$k", "all": { "$push": "$$ROOT" } } }]),
        input(5000),
        "$group",
    );
    exceeds(
        bson!([{ "$group": { "_id": "$_id", "t": { "$first": "$text" } } }]),
        input(5000),
        "$group",
    );
    exceeds(
        bson!([{ "$bucketAuto": { "groupBy": "$_id", "buckets": 2 } }]),
        input(5000),
        "$bucketAuto",
    );
    let window = bson!([{ "$setWindowFields": { "sortBy": { "_id": 1 }, "output": {
        "seen": { "$push": "$_id", "window": { "documents": ["unbounded", "current"] } },
    } } }]);
    exceeds(window, input(1000), "$setWindowFields");
    let joined = bson!([{ "$lookup": { "from": "stock", "as": "j", "pipeline": [
        { "$addFields": { "many": { "$range": [0, 1000] } } },
        { "$unwind": "$many" },
    ] } }, { "$unwind": "$j" }, { "$group": { "_id": Bson::Null, "j": { "$push": "$j" } } }]);
    exceeds(joined, input(50), "$");
    let sample = bson!([{ "$sample": { "size": 5000 } }]);
    exceeds(sample, input(5000), "$sample");
}

#[test]
fn what_one_stage_gave_back_another_may_hold() {
    // Each group takes more than half of the limit; one after the other they fit.
    let stages = bson!([
        { "$group": { "_id": "$_id", "t": { "$first": "$text" } } },
        { "$match": { "_id": { "$lt": 10 } } },
        { "$group": { "_id": Bson::Null, "n": { "$sum": 1 } } },
        { "$addFields": { "r": { "$size": { "$range": [0, 20_000] } } } },
    ]);
    let found = run_in(stages, input(1800), environment(), LIMIT).unwrap();
    assert_eq!(found, [doc! { "_id": Bson::Null, "n": 10, "r": 20_000 }]);
}
