//! Stages that reach beyond their input: joins, unions, facets, literal documents, the server.

use std::sync::Arc;

use bson::{Bson, bson, doc};

use super::{Indexed, environment, refuse, run, run_in, try_run};
use crate::meter::MAX_OPERATION_BYTES;

#[test]
fn lookup_by_equality() {
    let input = vec![
        doc! { "_id": 1, "sku": "a" },
        doc! { "_id": 2, "sku": ["a", "b"] },
        doc! { "_id": 3 },
        doc! { "_id": 4, "sku": "zzz" },
        doc! { "_id": 5, "sku": [] },
    ];
    let stages = bson!([
        { "$lookup": { "from": "stock", "localField": "sku", "foreignField": "sku", "as": "found" } },
        { "$project": { "found": "$found._id" } },
    ]);
    assert_eq!(
        run(stages, input),
        vec![
            doc! { "_id": 1, "found": [1] },
            doc! { "_id": 2, "found": [1, 2] },
            doc! { "_id": 3, "found": [3] },
            doc! { "_id": 4, "found": [] },
            doc! { "_id": 5, "found": [] },
        ]
    );
    // An array over there matches by its elements.
    let tags = bson!([{ "$lookup": { "from": "stock", "localField": "t", "foreignField": "tags", "as": "deep.found" } }]);
    let found = run(tags, vec![doc! { "t": "y" }]);
    assert_eq!(found[0].get_document("deep").unwrap().get_array("found").unwrap().len(), 1);
}

#[test]
fn every_way_to_join_finds_the_same() {
    let input: Vec<_> = [
        bson!("a"),
        bson!("x"),
        Bson::Null,
        Bson::Undefined,
        bson!([]),
        bson!(["a", Bson::Null]),
        bson!(10),
        bson!(10.0),
        bson!([["x", "y"]]),
        bson!({ "a": 1 }),
        Bson::RegularExpression(bson::Regex {
            pattern: "a".try_into().unwrap(),
            options: "".try_into().unwrap(),
        }),
    ]
    .into_iter()
    .map(|value| doc! { "v": value })
    .collect();
    for field in ["sku", "tags", "count", "absent", "tags.x"] {
        let stages = bson!([{ "$lookup": { "from": "stock", "localField": "v", "foreignField": field, "as": "found" } }]);
        let table = run(stages.clone(), input.clone());
        let indexed = Arc::new(Indexed(environment()));
        let read = run_in(stages.clone(), input.clone(), indexed, MAX_OPERATION_BYTES).unwrap();
        assert_eq!(table, read, "{field}");
        // Too little memory for a table, and enough for what is found.
        let again = run_in(stages, input.clone(), environment(), 3500).unwrap();
        assert_eq!(table, again, "{field}");
    }
}

#[test]
fn lookup_by_pipeline_sees_its_variables() {
    let stages = bson!([{ "$lookup": {
        "from": "stock", "as": "found", "let": { "least": "$n", "gone": "$absent" },
        "pipeline": [
            { "$match": { "$expr": { "$gte": ["$count", "$$least"] } } },
            { "$project": { "c": { "$add": ["$count", "$$given"] }, "g": "$$gone" } },
        ],
    } }]);
    assert_eq!(
        run(stages, vec![doc! { "n": 15 }, doc! { "n": 30 }]),
        vec![
            doc! { "n": 15, "found": [{ "_id": 2, "c": 25 }, { "_id": 3, "c": 35 }] },
            doc! { "n": 30, "found": [{ "_id": 3, "c": 35 }] },
        ]
    );
    let both = bson!([{ "$lookup": {
        "from": "stock", "localField": "sku", "foreignField": "sku", "as": "found",
        "pipeline": [{ "$project": { "_id": 0, "count": 1 } }],
    } }]);
    assert_eq!(
        run(both, vec![doc! { "sku": "b" }]),
        vec![doc! { "sku": "b", "found": [{ "count": 20 }] }]
    );
    let literal =
        bson!([{ "$lookup": { "as": "found", "pipeline": [{ "$documents": [{ "x": 1 }] }] } }]);
    assert_eq!(run(literal, vec![doc! {}]), vec![doc! { "found": [{ "x": 1 }] }]);
    refuse(vec![
        (bson!({ "$lookup": 1 }), 9),
        (bson!({ "$lookup": { "from": "x" } }), 9),
        (bson!({ "$lookup": { "from": "x", "as": "y" } }), 9),
        (bson!({ "$lookup": { "from": "x", "as": "y", "localField": "z" } }), 9),
        (bson!({ "$lookup": { "from": "x", "as": "y", "pipeline": [{ "$out": "z" }] } }), 51047),
        (
            bson!({ "$lookup": { "from": "x", "as": "y", "pipeline": [], "let": { "X": 1 } } }),
            16867,
        ),
        (
            bson!({ "$lookup": { "from": "x", "as": "y", "pipeline": [{ "$match": { "$expr": "$$no" } }] } }),
            17276,
        ),
        (bson!({ "$lookup": { "from": "broken", "as": "y", "pipeline": [] } }), 2),
    ]);
}

#[test]
fn graph_lookup_follows_and_stops() {
    let chain = |extra: Bson| {
        let mut spec = doc! {
            "from": "staff", "startWith": "$boss", "connectFromField": "boss",
            "connectToField": "name", "as": "above",
        };
        spec.extend(extra.as_document().unwrap().clone());
        bson!([{ "$graphLookup": spec }, { "$project": { "names": "$above.name", "depths": "$above.d" } }])
    };
    let dot = || vec![doc! { "_id": 4, "boss": ["Cid", "Dot"] }];
    let names = |extra: Bson| run(chain(extra), dot())[0].get("names").unwrap().clone();
    // Dot is her own boss: a loop that must not turn for ever.
    assert_eq!(names(bson!({})), bson!(["Cid", "Dot", "Ben", "Ada"]));
    assert_eq!(names(bson!({ "maxDepth": 0 })), bson!(["Cid", "Dot"]));
    assert_eq!(
        names(bson!({ "restrictSearchWithMatch": { "name": { "$ne": "Ben" } } })),
        bson!(["Cid", "Dot"])
    );
    let found = run(chain(bson!({ "depthField": "d" })), dot());
    assert_eq!(found[0].get("depths").unwrap(), &bson!([0_i64, 0_i64, 1_i64, 2_i64]));
    refuse(vec![
        (bson!({ "$graphLookup": 1 }), 9),
        (bson!({ "$graphLookup": { "from": "x" } }), 40105),
        (bson!({ "$graphLookup": { "x": 1 } }), 40104),
        (bson!({ "$graphLookup": { "connectToField": 1 } }), 40103),
        (bson!({ "$graphLookup": { "from": "x", "maxDepth": -1 } }), 40101),
    ]);
}

#[test]
fn unions_come_after_and_lazily() {
    let stages = bson!([{ "$unionWith": { "coll": "stock", "pipeline": [{ "$match": { "count": { "$gt": 10 } } }] } }, { "$project": { "_id": 1 } }]);
    assert_eq!(
        run(stages, vec![doc! { "_id": 9 }]),
        vec![doc! { "_id": 9 }, doc! { "_id": 2 }, doc! { "_id": 3 }]
    );
    assert_eq!(run(bson!([{ "$unionWith": "stock" }]), vec![]).len(), 3);
    assert_eq!(run(bson!([{ "$unionWith": "nowhere" }]), vec![doc! {}]).len(), 1);
    // The limit is reached before the other collection is opened.
    let lazy = bson!([{ "$unionWith": "broken" }, { "$limit": 1 }]);
    assert_eq!(run(lazy, vec![doc! { "_id": 1 }]), vec![doc! { "_id": 1 }]);
    refuse(vec![
        (bson!({ "$unionWith": 1 }), 9),
        (bson!({ "$unionWith": { "pipeline": [] } }), 9),
        (bson!({ "$unionWith": { "coll": "x", "pipeline": [{ "$merge": "z" }] } }), 31441),
        (bson!({ "$unionWith": "broken" }), 2),
    ]);
}

#[test]
fn facets_share_their_input() {
    let input = vec![doc! { "_id": 1, "k": 1 }, doc! { "_id": 2, "k": 3 }];
    let stages = bson!([{ "$facet": {
        "sum": [{ "$group": { "_id": Bson::Null, "s": { "$sum": "$k" } } }],
        "first": [{ "$limit": 1 }, { "$project": { "_id": 1 } }],
        "none": [{ "$match": { "k": 99 } }],
    } }]);
    assert_eq!(
        run(stages, input),
        vec![doc! { "sum": [{ "_id": Bson::Null, "s": 4 }], "first": [{ "_id": 1 }], "none": [] }]
    );
    refuse(vec![
        (bson!({ "$facet": {} }), 40169),
        (bson!({ "$facet": { "a": 1 } }), 40170),
        (bson!({ "$facet": { "a": [{ "$facet": { "b": [] } }] } }), 40600),
        (bson!({ "$facet": { "a": [{ "$out": "b" }] } }), 40600),
        (
            bson!({ "$facet": { "a": [{ "$lookup": { "from": "x", "as": "y", "pipeline": [{ "$indexStats": {} }] } }] } }),
            40600,
        ),
    ]);
}

#[test]
fn sources_stand_first_and_ignore_the_collection() {
    assert_eq!(
        run(bson!([{ "$documents": [{ "a": 1 }, { "a": "$$given" }] }]), vec![doc! { "z": 1 }]),
        vec![doc! { "a": 1 }, doc! { "a": 5 }]
    );
    assert_eq!(run(bson!([{ "$indexStats": {} }]), vec![]), vec![doc! { "name": "_id_" }]);
    assert_eq!(try_run(bson!([{ "$currentOp": {} }]), vec![]).unwrap_err().code().0, 40602);
    refuse(vec![
        (bson!([{ "$limit": 1 }, { "$indexStats": {} }]), 40602),
        (bson!([{ "$limit": 1 }, { "$documents": [] }]), 40602),
        (bson!({ "$collStats": 1 }), 9),
        (bson!({ "$documents": 1 }), 5858203),
        (bson!({ "$documents": [1] }), 40228),
    ]);
}
