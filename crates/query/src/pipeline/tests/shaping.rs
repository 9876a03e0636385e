//! Stages that work on one document at a time, and those that cut the stream.

use bson::{Bson, bson, doc};

use super::{refuse, run, try_run};

#[test]
fn project_includes_excludes_and_computes() {
    let input =
        || vec![doc! { "_id": 1, "a": 1, "b": { "c": 2, "d": 3 }, "l": [{ "x": 1, "y": 2 }, 5] }];
    let cases = vec![
        (bson!({ "a": 1 }), doc! { "_id": 1, "a": 1 }),
        (bson!({ "a": 1, "_id": 0 }), doc! { "a": 1 }),
        (
            bson!({ "_id": 0 }),
            doc! { "a": 1, "b": { "c": 2, "d": 3 }, "l": [{ "x": 1, "y": 2 }, 5] },
        ),
        (bson!({ "_id": 1 }), doc! { "_id": 1 }),
        (bson!({ "b.c": 1 }), doc! { "_id": 1, "b": { "c": 2 } }),
        (bson!({ "b": { "d": true } }), doc! { "_id": 1, "b": { "d": 3 } }),
        (bson!({ "l.x": 1, "_id": 0 }), doc! { "l": [{ "x": 1 }] }),
        (bson!({ "l": 0, "b.c": 0 }), doc! { "_id": 1, "a": 1, "b": { "d": 3 } }),
        (bson!({ "l.x": 0, "a": 0, "b": 0 }), doc! { "_id": 1, "l": [{ "y": 2 }, 5] }),
        (bson!({ "n": { "$add": ["$a", 1] } }), doc! { "_id": 1, "n": 2 }),
        (bson!({ "n": "$b.c", "a": 1 }), doc! { "_id": 1, "a": 1, "n": 2 }),
        (bson!({ "n": { "m": "$a" } }), doc! { "_id": 1, "n": { "m": 1 } }),
        (bson!({ "b.z": "$a", "b.c": 1 }), doc! { "_id": 1, "b": { "c": 2, "z": 1 } }),
        (bson!({ "n": "$absent", "a": 1 }), doc! { "_id": 1, "a": 1 }),
        (bson!({ "_id": "$a", "n": ["$a", "$absent"] }), doc! { "_id": 1, "n": [1, Bson::Null] }),
        (bson!({ "n": { "$literal": 1 } }), doc! { "_id": 1, "n": 1 }),
        // A scalar gives way to the computed fields, as SERVER-26066 shows.
        (bson!({ "l.z": "$a", "_id": 0 }), doc! { "l": [{ "z": 1 }, { "z": 1 }] }),
        (bson!({ "a.z": "$b.c", "_id": 0 }), doc! { "a": { "z": 2 } }),
    ];
    for (spec, expected) in cases {
        let found = run(bson!([{ "$project": spec.clone() }]), input());
        assert_eq!(found, vec![expected], "{spec}");
    }
    refuse(vec![
        (bson!({ "$project": 1 }), 15969),
        (bson!({ "$project": {} }), 51272),
        (bson!({ "$project": { "a": 1, "b": 0 } }), 31254),
        (bson!({ "$project": { "a": 0, "b": 1 } }), 31253),
        (bson!({ "$project": { "a": 0, "b": "$a" } }), 31310),
        (bson!({ "$project": { "a": 0, "b": { "$add": [1, 2] } } }), 31252),
        (bson!({ "$project": { "a": 1, "a.b": 1 } }), 31249),
        (bson!({ "$project": { "a.b": 1, "a": 1 } }), 31250),
        (bson!({ "$project": { "l.$": 1 } }), 31324),
        (bson!({ "$project": { "l": { "$elemMatch": {} } } }), 168),
        (bson!({ "$project": { "a": {} } }), 51270),
        (bson!({ "$project": { "a": { "$foo": 1 } } }), 168),
    ]);
}

#[test]
fn project_and_unset_reach_into_documents_and_arrays() {
    let sample = || {
        vec![
            doc! { "_id": 1, "a": 2, "b": { "c": 3, "d": 4 }, "l": [{ "x": 1, "y": 2 }, 5, [{ "x": 6 }]] },
        ]
    };
    let found = |stage: Bson| run(bson!([stage]), sample());
    assert_eq!(
        found(bson!({ "$project": { "a": 1, "b.d": 1 } })),
        vec![doc! { "_id": 1, "a": 2, "b": { "d": 4 } }]
    );
    assert_eq!(found(bson!({ "$project": { "l": 0, "b": 0 } })), vec![doc! { "_id": 1, "a": 2 }]);
    assert_eq!(
        found(bson!({ "$unset": ["l", "b.c"] })),
        vec![doc! { "_id": 1, "a": 2, "b": { "d": 4 } }]
    );
    assert_eq!(found(bson!({ "$unset": "_id" }))[0].get("_id"), None);
}

#[test]
fn add_fields_sets_in_place_and_removes() {
    let input = || vec![doc! { "_id": 1, "a": 1, "b": { "c": 2 }, "l": [{ "x": 1 }, { "x": 2 }] }];
    let stages = bson!([{ "$addFields": {
        "a": { "$add": ["$a", 10] }, "n": "$a", "b.d": 3, "l.y": "$a", "gone": "$$REMOVE",
    } }]);
    assert_eq!(
        run(stages, input()),
        vec![doc! {
            "_id": 1, "a": 11, "b": { "c": 2, "d": 3 }, "l": [{ "x": 1, "y": 1 }, { "x": 2, "y": 1 }], "n": 1,
        }]
    );
    assert_eq!(
        run(bson!([{ "$set": { "a": { "deep": 1 } } }, { "$unset": ["b", "l.x"] }]), input()),
        vec![doc! { "_id": 1, "a": { "deep": 1 }, "l": [{}, {}] }]
    );
    assert_eq!(
        run(bson!([{ "$unset": "l" }, { "$set": { "b": "$$REMOVE" } }]), input()),
        vec![doc! { "_id": 1, "a": 1 }]
    );
    refuse(vec![
        (bson!({ "$addFields": 1 }), 40272),
        (bson!({ "$set": { "a": 1, "a.b": 1 } }), 40176),
        (bson!({ "$set": { "a.b": 1, "a": 1 } }), 40176),
        (bson!({ "$unset": 1 }), 31002),
        (bson!({ "$unset": [] }), 31119),
        (bson!({ "$unset": [1] }), 31120),
        (bson!({ "$unset": ["b", "b.c"] }), 31249),
        (bson!({ "$addFields": { "a": { "$divide": [1, 0] } } }), 2),
    ]);
}

#[test]
fn match_limit_skip_count() {
    let input = || (1..=5).map(|n| doc! { "_id": n }).collect::<Vec<_>>();
    assert_eq!(
        run(
            bson!([{ "$match": { "_id": { "$gt": 1 } } }, { "$skip": 1 }, { "$limit": 2 }]),
            input()
        ),
        vec![doc! { "_id": 3 }, doc! { "_id": 4 }]
    );
    assert_eq!(
        run(bson!([{ "$match": { "$expr": { "$eq": ["$_id", "$$given"] } } }]), input()),
        vec![doc! { "_id": 5 }]
    );
    assert_eq!(run(bson!([{ "$count": "n" }]), input()), vec![doc! { "n": 5 }]);
    assert_eq!(run(bson!([{ "$count": "n" }]), vec![]), vec![]);
    refuse(vec![
        (bson!({ "$match": 1 }), 15959),
        (bson!({ "$limit": 0 }), 15958),
        (bson!({ "$limit": -1 }), 5107201),
        (bson!({ "$limit": "x" }), 5107201),
        (bson!({ "$skip": -1 }), 5107200),
        (bson!({ "$count": "" }), 40157),
        (bson!({ "$count": 1 }), 40156),
        (bson!({ "$count": "$a" }), 40158),
        (bson!({ "$count": "a.b" }), 40160),
    ]);
}

#[test]
fn unwind_knows_empty_arrays_and_positions() {
    let input = || {
        vec![
            doc! { "_id": 1, "l": ["a", "b"] },
            doc! { "_id": 2, "l": [] },
            doc! { "_id": 3, "l": "c" },
            doc! { "_id": 4 },
            doc! { "_id": 5, "l": Bson::Null },
        ]
    };
    assert_eq!(
        run(bson!([{ "$unwind": "$l" }]), input()),
        vec![doc! { "_id": 1, "l": "a" }, doc! { "_id": 1, "l": "b" }, doc! { "_id": 3, "l": "c" }]
    );
    assert_eq!(
        run(
            bson!([{ "$unwind": { "path": "$l", "preserveNullAndEmptyArrays": true, "includeArrayIndex": "i" } }]),
            input()
        ),
        vec![
            doc! { "_id": 1, "l": "a", "i": 0_i64 },
            doc! { "_id": 1, "l": "b", "i": 1_i64 },
            doc! { "_id": 2, "i": Bson::Null },
            doc! { "_id": 3, "l": "c", "i": Bson::Null },
            doc! { "_id": 4, "i": Bson::Null },
            doc! { "_id": 5, "l": Bson::Null, "i": Bson::Null },
        ]
    );
    assert_eq!(
        run(bson!([{ "$unwind": "$a.b" }]), vec![doc! { "a": { "b": [1, 2], "c": 3 } }]),
        vec![doc! { "a": { "b": 1, "c": 3 } }, doc! { "a": { "b": 2, "c": 3 } }]
    );
    refuse(vec![
        (bson!({ "$unwind": 1 }), 15981),
        (bson!({ "$unwind": "l" }), 28818),
        (bson!({ "$unwind": {} }), 28812),
        (bson!({ "$unwind": { "path": 1 } }), 28808),
        (bson!({ "$unwind": { "path": "$l", "x": 1 } }), 28811),
        (bson!({ "$unwind": { "path": "$l", "includeArrayIndex": "$i" } }), 28822),
        (bson!({ "$unwind": { "path": "$l", "includeArrayIndex": "" } }), 28810),
        (bson!({ "$unwind": { "path": "$l", "preserveNullAndEmptyArrays": 1 } }), 28809),
    ]);
}

#[test]
fn replace_root_and_redact() {
    let input = || vec![doc! { "_id": 1, "b": { "c": 2 } }];
    assert_eq!(
        run(bson!([{ "$replaceRoot": { "newRoot": "$b" } }]), input()),
        vec![doc! { "c": 2 }]
    );
    assert_eq!(
        run(bson!([{ "$replaceWith": { "$mergeObjects": ["$b", { "d": 3 }] } }]), input()),
        vec![doc! { "c": 2, "d": 3 }]
    );
    let secret = vec![doc! {
        "_id": 1, "level": 1, "a": { "level": 5, "x": 1 }, "b": [{ "level": 2, "y": 1 }, { "level": 9 }, 7],
    }];
    let redact =
        bson!([{ "$redact": { "$cond": [{ "$gt": ["$level", 3] }, "$$PRUNE", "$$DESCEND"] } }]);
    assert_eq!(
        run(redact, secret),
        vec![doc! { "_id": 1, "level": 1, "b": [{ "level": 2, "y": 1 }, 7] }]
    );
    refuse(vec![
        (bson!({ "$replaceRoot": { "newRoot": "$a" } }), 40228),
        (bson!({ "$replaceWith": "$absent" }), 40228),
        (bson!({ "$replaceRoot": 1 }), 40229),
        (bson!({ "$replaceRoot": { "x": 1 } }), 40230),
        (bson!({ "$replaceRoot": {} }), 40231),
        (bson!({ "$redact": "keep it" }), 17053),
    ]);
    let error = try_run(bson!([{ "$replaceWith": "$a" }]), vec![doc! { "a": 1 }]).unwrap_err();
    assert!(error.message().contains("must evaluate to an object"), "{error}");
}
