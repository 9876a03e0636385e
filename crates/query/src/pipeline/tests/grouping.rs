//! Stages that must see everything: grouping, buckets, sorting, sampling; and their bound.

use std::sync::Arc;

use bson::{Bson, Document, bson, doc};

use super::{Spacious, environment, refuse, run, run_in, run_within};

fn sales() -> Vec<Document> {
    vec![
        doc! { "_id": 1, "item": "a", "price": 10, "n": 2 },
        doc! { "_id": 2, "item": "b", "price": 20, "n": 1 },
        doc! { "_id": 3, "item": "a", "price": 5, "n": 10 },
        doc! { "_id": 4, "price": 1.5 },
    ]
}

#[test]
fn group_with_every_accumulator() {
    let stages = bson!([
        { "$group": {
            "_id": "$item",
            "sum": { "$sum": "$price" }, "avg": { "$avg": "$price" }, "min": { "$min": "$price" },
            "max": { "$max": "$n" }, "first": { "$first": "$_id" }, "last": { "$last": "$n" },
            "all": { "$push": "$n" }, "set": { "$addToSet": "$item" }, "count": { "$count": {} },
            "dev": { "$stdDevPop": "$price" }, "samp": { "$stdDevSamp": "$price" },
            "merged": { "$mergeObjects": { "i": "$_id" } },
            "firsts": { "$firstN": { "n": 1, "input": "$_id" } },
            "lasts": { "$lastN": { "n": 1, "input": "$_id" } },
            "least": { "$minN": { "n": 1, "input": "$price" } },
            "most": { "$maxN": { "n": 2, "input": "$price" } },
            "top": { "$top": { "sortBy": { "price": -1 }, "output": "$_id" } },
            "tops": { "$topN": { "n": 2, "sortBy": { "price": 1 }, "output": ["$_id", "$price"] } },
            "bottom": { "$bottom": { "sortBy": { "price": -1 }, "output": "$_id" } },
            "bottoms": { "$bottomN": { "n": 1, "sortBy": { "price": 1 }, "output": "$_id" } },
        } },
        { "$match": { "_id": "a" } },
    ]);
    assert_eq!(
        run(stages, sales()),
        vec![doc! {
            "_id": "a", "sum": 15, "avg": 7.5, "min": 5, "max": 10, "first": 1, "last": 10,
            "all": [2, 10], "set": ["a"], "count": 2, "dev": 2.5, "samp": 3.535_533_905_932_737_6,
            "merged": { "i": 3 }, "firsts": [1], "lasts": [3], "least": [5], "most": [10, 5],
            "top": 1, "tops": [[3, 5], [1, 10]], "bottom": 3, "bottoms": [1],
        }]
    );
}

#[test]
fn groups_are_by_value_and_missing_is_null() {
    let input = vec![
        doc! { "k": 1 },
        doc! { "k": 1.0 },
        doc! { "k": 1_i64 },
        doc! {},
        doc! { "k": Bson::Null },
    ];
    assert_eq!(
        run(bson!([{ "$group": { "_id": "$k", "n": { "$sum": 1 } } }]), input),
        vec![doc! { "_id": 1, "n": 3 }, doc! { "_id": Bson::Null, "n": 2 }]
    );
    assert_eq!(
        run(bson!([{ "$group": { "_id": { "i": "$item" }, "n": { "$sum": "$n" } } }]), sales()),
        vec![
            doc! { "_id": { "i": "a" }, "n": 12 },
            doc! { "_id": { "i": "b" }, "n": 1 },
            doc! { "_id": {}, "n": 0 },
        ]
    );
    // A null group over nothing is still nothing.
    assert_eq!(run(bson!([{ "$group": { "_id": Bson::Null } }]), vec![]), vec![]);
    refuse(vec![
        (bson!({ "$group": 1 }), 15947),
        (bson!({ "$group": {} }), 15955),
        (bson!({ "$group": { "_id": 1, "a": 1 } }), 40234),
        (bson!({ "$group": { "_id": 1, "a.b": { "$sum": 1 } } }), 40235),
        (bson!({ "$group": { "_id": 1, "$a": { "$sum": 1 } } }), 40236),
        (bson!({ "$group": { "_id": 1, "a": {} } }), 40238),
        (bson!({ "$group": { "_id": 1, "a": { "$foo": 1 } } }), 15952),
        (bson!({ "$group": { "_id": 1, "a": { "$sum": [1, 2] } } }), 40237),
        (bson!({ "$group": { "_id": 1, "a": { "$firstN": { "n": 0, "input": 1 } } } }), 5787908),
        (bson!({ "$group": { "_id": 1, "a": { "$mergeObjects": "$a" } } }), 40400),
    ]);
}

#[test]
fn accumulators_that_keep_several_keep_the_right_ones() {
    let input: Vec<_> = [5, 3, 9, 1, 7, 3, 8, 2].map(|n| doc! { "n": n }).to_vec();
    let stages = bson!([{ "$group": {
        "_id": 1,
        "last": { "$lastN": { "n": 3, "input": "$n" } }, "first": { "$firstN": { "n": 3, "input": "$n" } },
        "min": { "$minN": { "n": 3, "input": "$n" } }, "max": { "$maxN": { "n": 3, "input": "$n" } },
        "median": { "$median": { "input": "$n", "method": "approximate" } },
        "shares": { "$percentile": { "input": "$n", "p": [0.25, 1], "method": "approximate" } },
    } }]);
    assert_eq!(
        run(stages, input),
        vec![
            doc! { "_id": 1, "last": [3, 8, 2], "first": [5, 3, 9], "min": [1, 2, 3], "max": [9, 8, 7], "median": 3.0, "shares": [2.0, 9.0] }
        ]
    );
}

#[test]
fn sort_orders_types_arrays_and_missing_fields_and_is_stable() {
    let input = vec![
        doc! { "_id": 1, "k": [5, 1] },
        doc! { "_id": 2, "k": 3 },
        doc! { "_id": 3 },
        doc! { "_id": 4, "k": "x" },
        doc! { "_id": 5, "k": [] },
        doc! { "_id": 6, "k": 3.0 },
    ];
    let ids = |documents: Vec<Document>| {
        documents.iter().map(|document| document.get_i32("_id").unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(ids(run(bson!([{ "$sort": { "k": 1 } }]), input.clone())), [5, 3, 1, 2, 6, 4]);
    assert_eq!(ids(run(bson!([{ "$sort": { "k": -1 } }]), input.clone())), [4, 1, 2, 6, 3, 5]);
    assert_eq!(
        ids(run(bson!([{ "$sort": { "k": 1 } }, { "$skip": 1 }, { "$limit": 2 }]), input.clone())),
        [3, 1]
    );
    assert_eq!(ids(run(bson!([{ "$sort": { "x.y": 1, "_id": -1 } }]), input)), [6, 5, 4, 3, 2, 1]);
    refuse(vec![
        (bson!({ "$sort": 1 }), 15973),
        (bson!({ "$sort": {} }), 15976),
        (bson!({ "$sort": { "a": 2 } }), 15975),
        (bson!({ "$sort": { "a": "x" } }), 15974),
    ]);
}

#[test]
fn a_sort_that_outgrows_memory_merges_what_it_put_aside() {
    let input: Vec<_> = (0..500).map(|n| doc! { "_id": n, "k": (n * 7919) % 50 }).collect();
    for stages in [
        bson!([{ "$sort": { "k": 1 } }]),
        bson!([{ "$sort": { "k": -1, "_id": 1 } }]),
        bson!([{ "$sort": { "k": 1 } }, { "$skip": 100 }, { "$limit": 150 }]),
    ] {
        let spacious = Arc::new(Spacious(environment()));
        let merged = run_in(stages.clone(), input.clone(), spacious, 30_000).unwrap();
        assert_eq!(merged, run(stages.clone(), input.clone()), "{stages}");
    }
    let cramped = run_within(bson!([{ "$sort": { "k": 1 } }]), input, 30_000);
    assert_eq!(cramped.unwrap_err().code().0, 292);
}

#[test]
fn buckets() {
    let stages = bson!([{ "$bucket": {
        "groupBy": "$price", "boundaries": [0, 6, 15], "default": "other",
        "output": { "n": { "$sum": 1 }, "ids": { "$push": "$_id" } },
    } }]);
    assert_eq!(
        run(stages, sales()),
        vec![
            doc! { "_id": 0, "n": 2, "ids": [3, 4] },
            doc! { "_id": 6, "n": 1, "ids": [1] },
            doc! { "_id": "other", "n": 1, "ids": [2] },
        ]
    );
    assert_eq!(
        run(bson!([{ "$bucketAuto": { "groupBy": "$price", "buckets": 2 } }]), sales()),
        vec![
            doc! { "_id": { "min": 1.5, "max": 10 }, "count": 2 },
            doc! { "_id": { "min": 10, "max": 20 }, "count": 2 },
        ]
    );
    let same = vec![doc! { "k": 1 }, doc! { "k": 1 }, doc! { "k": 1 }];
    assert_eq!(
        run(bson!([{ "$bucketAuto": { "groupBy": "$k", "buckets": 3 } }]), same),
        vec![doc! { "_id": { "min": 1, "max": 1 }, "count": 3 }]
    );
    assert_eq!(
        run(bson!([{ "$sortByCount": "$item" }, { "$limit": 1 }]), sales()),
        vec![doc! { "_id": "a", "count": 2 }]
    );
    refuse(vec![
        (bson!({ "$bucket": { "groupBy": "$a", "boundaries": [5, 6] } }), 40066),
        (bson!({ "$bucket": { "groupBy": "$a", "boundaries": [5] } }), 40192),
        (bson!({ "$bucket": { "groupBy": "$a", "boundaries": [5, "x"] } }), 40193),
        (bson!({ "$bucket": { "groupBy": "$a", "boundaries": [5, 4] } }), 40194),
        (bson!({ "$bucket": { "groupBy": "a", "boundaries": [5, 6] } }), 40202),
        (bson!({ "$bucket": { "groupBy": "$a", "boundaries": [1, 6], "default": 3 } }), 40199),
        (bson!({ "$bucket": { "groupBy": "$a" } }), 40198),
        (bson!({ "$bucketAuto": { "groupBy": "$a", "buckets": 0 } }), 40243),
        (bson!({ "$bucketAuto": { "groupBy": "$a" } }), 40246),
        (bson!({ "$sortByCount": "a" }), 40148),
        (bson!({ "$sortByCount": 1 }), 40149),
    ]);
}

#[test]
fn samples_come_from_the_seed_and_have_no_duplicates() {
    let input = || (0..100).map(|n| doc! { "_id": n }).collect::<Vec<_>>();
    let ids = |documents: Vec<Document>| {
        documents.iter().map(|document| document.get_i32("_id").unwrap()).collect::<Vec<_>>()
    };
    let first = ids(run(bson!([{ "$sample": { "size": 10 } }]), input()));
    assert_eq!(first, ids(run(bson!([{ "$sample": { "size": 10 } }]), input())));
    let mut unique = first.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), 10);
    assert_ne!(unique, (0..10).collect::<Vec<_>>());
    assert_eq!(run(bson!([{ "$sample": { "size": 1000 } }]), input()).len(), 100);
    refuse(vec![
        (bson!({ "$sample": 1 }), 28745),
        (bson!({ "$sample": {} }), 28749),
        (bson!({ "$sample": { "size": "x" } }), 28746),
        (bson!({ "$sample": { "size": -1 } }), 28747),
        (bson!({ "$sample": { "size": 1, "x": 1 } }), 28748),
    ]);
}

#[test]
fn blocking_stages_hold_no_more_than_they_may() {
    let input = || (0..1000).map(|n| doc! { "_id": n, "pad": "x".repeat(100) }).collect::<Vec<_>>();
    let limit = 50_000;
    for stages in [
        bson!([{ "$sort": { "_id": -1 } }]),
        bson!([{ "$group": { "_id": "$_id" } }]),
        bson!([{ "$group": { "_id": 1, "all": { "$push": "$pad" } } }]),
        bson!([{ "$group": { "_id": 1, "all": { "$addToSet": "$_id" } } }]),
        bson!([{ "$bucketAuto": { "groupBy": "$_id", "buckets": 2 } }]),
        bson!([{ "$facet": { "a": [] } }]),
        bson!([{ "$sample": { "size": 900 } }]),
    ] {
        let error = run_within(stages.clone(), input(), limit).unwrap_err();
        assert_eq!(error.code().0, 292, "{stages}");
    }
    // What is not kept does not count: a limit makes the sort small, a sum holds one number.
    let small = run_within(bson!([{ "$sort": { "_id": -1 } }, { "$limit": 2 }]), input(), limit);
    assert_eq!(small.unwrap()[0].get_i32("_id").unwrap(), 999);
    let sum =
        bson!([{ "$group": { "_id": 1, "n": { "$sum": "$_id" }, "last": { "$last": "$pad" } } }]);
    assert!(run_within(sum, input(), limit).is_ok());
}
