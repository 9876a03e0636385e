//! Arrays, sets and objects.

use bson::{Bson, bson, doc};

use std::sync::Arc;

use super::super::{Expression, Interrupt, ParseContext, Variables};
use super::{check, missing, refuse};
use crate::error::Result;

#[test]
fn elements_and_slices() {
    check(vec![
        (bson!({ "$arrayElemAt": ["$list", 0] }), bson!(3)),
        (bson!({ "$arrayElemAt": ["$list", -1] }), bson!(2)),
        (bson!({ "$first": "$list" }), bson!(3)),
        (bson!({ "$last": "$list" }), bson!(2)),
        (bson!({ "$arrayElemAt": ["$nothing", 0] }), Bson::Null),
        (bson!({ "$slice": ["$list", 2] }), bson!([3, 1])),
        (bson!({ "$slice": ["$list", -2] }), bson!([1, 2])),
        (bson!({ "$slice": ["$list", 1, 1] }), bson!([1])),
        (bson!({ "$slice": ["$list", -9, 1] }), bson!([3])),
        (bson!({ "$slice": ["$list", 9, 1] }), bson!([])),
        (bson!({ "$size": "$list" }), bson!(3)),
        (bson!({ "$isArray": "$list" }), bson!(true)),
        (bson!({ "$isArray": ["$a"] }), bson!(false)),
        (bson!({ "$reverseArray": "$list" }), bson!([2, 1, 3])),
    ]);
    missing(vec![
        bson!({ "$arrayElemAt": ["$list", 3] }),
        bson!({ "$arrayElemAt": ["$list", -4] }),
        bson!({ "$first": [[]] }),
    ]);
    refuse(vec![
        (bson!({ "$arrayElemAt": [1, 0] }), 28689),
        (bson!({ "$arrayElemAt": ["$list", "x"] }), 28690),
        (bson!({ "$arrayElemAt": ["$list", 1.5] }), 28691),
        (bson!({ "$first": 1 }), 28689),
        (bson!({ "$size": "$absent" }), 17124),
        (bson!({ "$slice": [1, 1] }), 28724),
        (bson!({ "$slice": ["$list", "x"] }), 28725),
        (bson!({ "$slice": ["$list", 1.5] }), 28726),
        (bson!({ "$slice": ["$list", 0, 0] }), 28729),
        (bson!({ "$reverseArray": 1 }), 34435),
    ]);
}

#[test]
fn joining_searching_and_ranges() {
    check(vec![
        (bson!({ "$concatArrays": ["$list", [9]] }), bson!([3, 1, 2, 9])),
        (bson!({ "$concatArrays": ["$list", "$nothing"] }), Bson::Null),
        (bson!({ "$in": [1.0, "$list"] }), bson!(true)),
        (bson!({ "$in": ["x", "$list"] }), bson!(false)),
        (bson!({ "$indexOfArray": ["$list", 2] }), bson!(2)),
        (bson!({ "$indexOfArray": ["$list", 2, 0, 1] }), bson!(-1)),
        (bson!({ "$indexOfArray": ["$list", 2, 5] }), bson!(-1)),
        (bson!({ "$range": [0, 5, 2] }), bson!([0, 2, 4])),
        (bson!({ "$range": [5, 0, -2] }), bson!([5, 3, 1])),
        (bson!({ "$range": [0, 5, -1] }), bson!([])),
        (bson!({ "$zip": { "inputs": ["$list", ["a"]] } }), bson!([[3, "a"]])),
        (
            bson!({ "$zip": { "inputs": [[1, 2], ["a"]], "useLongestLength": true, "defaults": [0, "z"] } }),
            bson!([[1, "a"], [2, "z"]]),
        ),
    ]);
    refuse(vec![
        (bson!({ "$concatArrays": [1] }), 28664),
        (bson!({ "$in": [1, 2] }), 40081),
        (bson!({ "$indexOfArray": [1, 2] }), 40090),
        (bson!({ "$range": [0, 5, 0] }), 34449),
        (bson!({ "$range": ["x", 5] }), 34443),
        (bson!({ "$range": [0, 1.5] }), 34446),
        (bson!({ "$range": [0, i32::MAX] }), 292),
        (bson!({ "$zip": { "inputs": [] } }), 34465),
        (bson!({ "$zip": { "inputs": [[1]], "defaults": [1] } }), 34466),
        (bson!({ "$zip": { "inputs": [1] } }), 34468),
    ]);
}

#[test]
fn map_filter_reduce() {
    check(vec![
        (
            bson!({ "$map": { "input": "$list", "in": { "$add": ["$$this", 1] } } }),
            bson!([4, 2, 3]),
        ),
        (
            bson!({ "$map": { "input": "$list", "as": "x", "in": ["$$x", "$a"] } }),
            bson!([[3, 1], [1, 1], [2, 1]]),
        ),
        (
            bson!({ "$map": { "input": "$list", "in": "$$this.z" } }),
            bson!([Bson::Null, Bson::Null, Bson::Null]),
        ),
        (bson!({ "$map": { "input": "$nothing", "in": 1 } }), Bson::Null),
        (
            bson!({ "$filter": { "input": "$list", "cond": { "$gt": ["$$this", 1] } } }),
            bson!([3, 2]),
        ),
        (bson!({ "$filter": { "input": "$list", "cond": true, "limit": 1 } }), bson!([3])),
        (
            bson!({ "$reduce": { "input": "$list", "initialValue": 10, "in": { "$subtract": ["$$value", "$$this"] } } }),
            bson!(4),
        ),
        (
            bson!({ "$map": { "input": [1, 2], "as": "x", "in": { "$map": { "input": [10], "as": "y", "in": { "$add": ["$$x", "$$y"] } } } } }),
            bson!([[11], [12]]),
        ),
    ]);
    refuse(vec![
        (bson!({ "$map": { "input": 1, "in": 1 } }), 16883),
        (bson!({ "$map": { "in": 1 } }), 16880),
        (bson!({ "$map": { "input": [] } }), 16882),
        (bson!({ "$map": { "input": [], "in": 1, "as": "X" } }), 16867),
        (bson!({ "$filter": { "input": 1, "cond": 1 } }), 28651),
        (bson!({ "$filter": { "input": [1], "cond": 1, "limit": 0 } }), 327392),
        (bson!({ "$reduce": { "input": 1, "initialValue": 1, "in": 1 } }), 40080),
        (bson!({ "$reduce": { "input": [], "in": 1 } }), 40078),
        (bson!({ "$map": { "input": [1], "as": "x", "in": "$$this" } }), 17276),
    ]);
}

#[test]
fn growth_inside_reduce_is_bounded() {
    let many: Vec<Bson> = (0..300).map(Bson::Int32).collect();
    refuse(vec![
        (
            bson!({ "$reduce": { "input": many.clone(), "initialValue": "xy", "in": { "$concat": ["$$value", "$$value"] } } }),
            292,
        ),
        (
            bson!({ "$reduce": { "input": many.clone(), "initialValue": [1], "in": { "$concatArrays": ["$$value", "$$value"] } } }),
            292,
        ),
        (bson!({ "$reduce": { "input": many, "initialValue": 1, "in": ["$$value"] } }), 15),
    ]);
}

/// Ends the operation at the nth question.
#[derive(Debug)]
struct Patience(std::sync::atomic::AtomicU64);

impl Interrupt for Patience {
    fn check(&self) -> Result<()> {
        match self.0.fetch_sub(1, std::sync::atomic::Ordering::Relaxed) {
            0 => Err(fail!(50, "operation exceeded time limit")),
            _ => Ok(()),
        }
    }
}

#[test]
fn loops_within_loops_can_be_interrupted() {
    let thousand = bson!({ "$range": [0, "$thousand"] });
    let mut nested = bson!(true);
    for _ in 0..5 {
        nested = bson!({ "$size": [{ "$filter": { "input": thousand.clone(), "cond": nested } }] });
    }
    let endless = Expression::parse(&nested, &ParseContext::new()).unwrap();
    let patience = Arc::new(Patience(3.into()));
    let variables = Variables::new(0).with_interrupt(patience);
    let error = endless.evaluate(&doc! { "thousand": 1000 }, &variables).unwrap_err();
    assert_eq!(error.code().0, 50);
}

#[test]
fn sorting() {
    check(vec![
        (bson!({ "$sortArray": { "input": "$list", "sortBy": 1 } }), bson!([1, 2, 3])),
        (bson!({ "$sortArray": { "input": "$list", "sortBy": -1 } }), bson!([3, 2, 1])),
        (
            bson!({ "$sortArray": { "input": [{ "a": { "b": 2 } }, { "a": { "b": 1 } }, {}], "sortBy": { "a.b": 1 } } }),
            bson!([{}, { "a": { "b": 1 } }, { "a": { "b": 2 } }]),
        ),
        (bson!({ "$sortArray": { "input": "$nothing", "sortBy": 1 } }), Bson::Null),
    ]);
    refuse(vec![
        (bson!({ "$sortArray": { "input": 1, "sortBy": 1 } }), 2942504),
        (bson!({ "$sortArray": { "input": [], "sortBy": 2 } }), 2942505),
        (bson!({ "$sortArray": { "input": [], "sortBy": { "a": 2 } } }), 15975),
    ]);
}

#[test]
fn sets_ignore_order_duplicates_and_number_types() {
    check(vec![
        (bson!({ "$setUnion": [[1, 2], [2.0, 3]] }), bson!([1, 2, 3])),
        (bson!({ "$setIntersection": [[1, 2, 2], [2, 3]] }), bson!([2])),
        (bson!({ "$setDifference": [[1, 2, 1], [2]] }), bson!([1])),
        (bson!({ "$setEquals": [[1, 2], [2, 1, 1]] }), bson!(true)),
        (bson!({ "$setIsSubset": [[1], [2, 1]] }), bson!(true)),
        (bson!({ "$setIsSubset": [[1, 5], [2, 1]] }), bson!(false)),
        (bson!({ "$allElementsTrue": [[1, true]] }), bson!(true)),
        (bson!({ "$allElementsTrue": [[1, 0]] }), bson!(false)),
        (bson!({ "$anyElementTrue": [[0, Bson::Null]] }), bson!(false)),
        (bson!({ "$setUnion": [[1], "$nothing"] }), Bson::Null),
    ]);
    refuse(vec![
        (bson!({ "$setUnion": [1] }), 17043),
        (bson!({ "$setIntersection": [[1], 1] }), 17047),
        (bson!({ "$setDifference": [1, [1]] }), 17048),
        (bson!({ "$setEquals": [[1], 1] }), 17044),
        (bson!({ "$setIsSubset": [1, [1]] }), 17046),
        (bson!({ "$allElementsTrue": [1] }), 17040),
        (bson!({ "$anyElementTrue": [1] }), 17041),
    ]);
}

#[test]
fn objects_and_pairs() {
    check(vec![
        (bson!({ "$mergeObjects": ["$b", { "c": 9 }, "$nothing"] }).clone(), {
            let mut merged = super::sample().get_document("b").unwrap().clone();
            merged.insert("c", 9);
            Bson::Document(merged)
        }),
        (bson!({ "$mergeObjects": [[{ "a": 1 }, { "b": 2 }]] }), bson!({ "a": 1, "b": 2 })),
        (bson!({ "$objectToArray": { "x": 1 } }), bson!([{ "k": "x", "v": 1 }])),
        (bson!({ "$arrayToObject": [[["x", 1], ["y", 2]]] }), bson!({ "x": 1, "y": 2 })),
        (bson!({ "$arrayToObject": [[{ "k": "x", "v": 1 }]] }), bson!({ "x": 1 })),
        (bson!({ "$getField": "a" }), bson!(1)),
        (bson!({ "$getField": { "field": "c", "input": "$b" } }), bson!(2)),
        (
            bson!({ "$getField": { "field": { "$literal": "$x.y" }, "input": { "$setField": { "field": { "$literal": "$x.y" }, "input": {}, "value": 4 } } } }),
            bson!(4),
        ),
        (
            bson!({ "$unsetField": { "field": "x", "input": { "x": 1, "y": 2 } } }),
            bson!({ "y": 2 }),
        ),
        (bson!({ "$setField": { "field": "x", "input": Bson::Null, "value": 1 } }), Bson::Null),
        (
            bson!({ "$bsonSize": { "$literal": { "a": 1 } } }),
            bson!(doc! { "a": 1 }.to_vec().unwrap().len() as i32),
        ),
        (bson!({ "$binarySize": "$text" }), bson!(6)),
    ]);
    missing(vec![
        bson!({ "$getField": "zzz" }),
        bson!({ "$getField": { "field": "x", "input": "$a" } }),
    ]);
    refuse(vec![
        (bson!({ "$mergeObjects": [1] }), 40400),
        (bson!({ "$objectToArray": 1 }), 40390),
        (bson!({ "$arrayToObject": 1 }), 40386),
        (bson!({ "$arrayToObject": [[["x"]]] }), 40397),
        (bson!({ "$arrayToObject": [[[1, 2]]] }), 40395),
        (bson!({ "$arrayToObject": [[["x", 1], 2]] }), 40396),
        (bson!({ "$arrayToObject": [[{ "k": "x", "v": 1 }, 2]] }), 40391),
        (bson!({ "$arrayToObject": [[{ "k": "x" }]] }), 40392),
        (bson!({ "$arrayToObject": [[{ "k": "x", "w": 1 }]] }), 40393),
        (bson!({ "$arrayToObject": [[1]] }), 40398),
        (bson!({ "$bsonSize": 1 }), 31393),
        (bson!({ "$binarySize": 1 }), 51276),
    ]);
}
