//! What the caller learns from a pipeline: pushdown, outputs, sources; and what parsing refuses.

use std::sync::Arc;

use bson::{Bson, bson, doc};

use super::super::{MAX_STAGES, Output, Pipeline, WhenMatched, WhenNotMatched};
use super::{array, environment, refuse, run};
use crate::error::Result;
use crate::expression::Variables;

fn parse(stages: Bson) -> Pipeline {
    Pipeline::parse(&array(stages), &Variables::new(0)).unwrap()
}

#[test]
fn leading_stages_become_a_query() {
    let down = parse(bson!([
        { "$match": { "a": 1 } }, { "$sort": { "b": 1 } }, { "$match": { "c": 2 } },
        { "$skip": 3 }, { "$limit": 4 }, { "$count": "n" },
    ]))
    .push_down();
    assert_eq!(down.filter, Some(doc! { "$and": [{ "a": 1 }, { "c": 2 }] }));
    assert_eq!(down.sort, Some(doc! { "b": 1 }));
    assert_eq!((down.skip, down.limit), (Some(3), Some(4)));
    assert!(!down.rest.is_empty());

    let down = parse(bson!([{ "$limit": 4 }, { "$skip": 1 }])).push_down();
    assert_eq!((down.skip, down.limit), (None, Some(4)));
    assert!(!down.rest.is_empty());

    let down = parse(bson!([{ "$group": { "_id": 1 } }, { "$match": { "a": 1 } }])).push_down();
    assert_eq!(down.filter, None);

    let down = parse(bson!([{ "$match": { "a": 1 } }])).push_down();
    assert_eq!(down.filter, Some(doc! { "a": 1 }));
    assert!(down.rest.is_empty());
}

#[test]
fn a_pipeline_knows_which_fields_it_reads() {
    let needed = |stages: Bson| {
        super::super::depend::needed_fields(&parse(stages))
            .map(|fields| fields.into_iter().collect::<Vec<_>>().join(" "))
    };
    let cases = vec![
        (bson!([]), None),
        (bson!([{ "$match": { "a": 1 } }, { "$limit": 1 }]), None),
        (
            bson!([{ "$match": { "a.b": 1, "$or": [{ "c": 1 }, { "$expr": "$d.e" }] } }, { "$count": "n" }]),
            Some("a c d"),
        ),
        (
            bson!([{ "$group": { "_id": "$k", "s": { "$sum": { "$add": ["$a.b", "$c"] } } } }]),
            Some("a c k"),
        ),
        (bson!([{ "$group": { "_id": "$k", "all": { "$push": "$$ROOT" } } }]), None),
        (
            bson!([{ "$group": { "_id": 1, "t": { "$top": { "sortBy": { "s.x": 1 }, "output": "$o" } } } }]),
            Some("o s"),
        ),
        (bson!([{ "$project": { "a.b": 1, "n": "$c.d" } }]), Some("_id a c")),
        (bson!([{ "$project": { "x": 0 } }]), None),
        (
            bson!([{ "$set": { "n": "$q" } }, { "$unwind": "$l" }, { "$sort": { "z": 1 } }, { "$replaceWith": { "v": "$l" } }]),
            Some("l q z"),
        ),
        (
            bson!([{ "$lookup": { "from": "x", "localField": "f", "foreignField": "g", "as": "h" } }, { "$count": "n" }]),
            Some("f h"),
        ),
        (
            bson!([{ "$facet": { "a": [{ "$sortByCount": "$t" }], "b": [{ "$count": "n" }] } }]),
            Some("t"),
        ),
        (bson!([{ "$facet": { "a": [] } }]), None),
        (bson!([{ "$bucketAuto": { "groupBy": "$p", "buckets": 2 } }]), Some("p")),
        (bson!([{ "$match": { "$jsonSchema": {} } }, { "$count": "n" }]), None),
    ];
    for (stages, expected) in cases {
        assert_eq!(needed(stages.clone()).as_deref(), expected, "{stages}");
    }
}

#[test]
fn only_what_is_read_is_decoded() {
    let raw =
        bson::RawDocumentBuf::try_from(&doc! { "_id": 1, "a": { "b": 2 }, "c": [1] }).unwrap();
    let counted = parse(bson!([{ "$group": { "_id": "$a.b" } }])).decoder();
    assert_eq!(counted.decode(&raw).unwrap(), doc! { "a": { "b": 2 } });
    let nothing = parse(bson!([{ "$count": "n" }])).decoder();
    assert_eq!(nothing.decode(&raw).unwrap(), doc! {});
    let whole = parse(bson!([{ "$limit": 1 }])).decoder();
    assert_eq!(whole.decode(&raw).unwrap(), doc! { "_id": 1, "a": { "b": 2 }, "c": [1] });
}

#[test]
fn a_match_behind_a_sort_and_limit_stays_there() {
    let stages = bson!([{ "$sort": { "_id": 1 } }, { "$limit": 1 }, { "$match": { "_id": 2 } }]);
    assert_eq!(run(stages.clone(), vec![doc! { "_id": 1 }, doc! { "_id": 2 }]), vec![]);
    let down = parse(stages).push_down();
    assert_eq!((down.filter, down.limit), (None, Some(1)));
}

#[test]
fn sources_outputs_and_other_collections_are_known() {
    assert!(parse(bson!([{ "$match": {} }])).reads_collection());
    assert!(parse(bson!([])).reads_collection());
    assert!(!parse(bson!([{ "$documents": [] }])).reads_collection());
    let stats = parse(bson!([{ "$collStats": { "count": {} } }]));
    assert!(!stats.reads_collection());
    let joined = parse(bson!([
        { "$lookup": { "from": "b", "as": "x", "pipeline": [{ "$unionWith": "c" }] } },
        { "$facet": { "f": [{ "$unionWith": "a" }, { "$unionWith": "b" }] } },
    ]));
    assert_eq!(joined.other_collections(), ["a", "b", "c"]);
    assert!(joined.output().is_none());
    match parse(bson!([{ "$out": { "db": "d", "coll": "c" } }])).output() {
        Some(Output::Out { database: Some(database), collection }) => {
            assert_eq!((database.as_str(), collection.as_str()), ("d", "c"));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn merge_says_what_to_do() {
    let merge = |spec: Bson| match parse(bson!([{ "$merge": spec }])).output() {
        Some(Output::Merge(merge)) => merge.clone(),
        other => panic!("{other:?}"),
    };
    let environment = environment();
    let combine = |spec: Bson| {
        merge(spec)
            .combine(
                &doc! { "_id": 1, "a": 1 },
                &doc! { "_id": 1, "b": 2 },
                &environment,
                &Variables::new(0),
            )
            .unwrap()
    };
    let plain = merge(bson!("c"));
    assert_eq!((plain.collection.as_str(), plain.on), ("c", vec!["_id".to_owned()]));
    assert_eq!(plain.when_not_matched, WhenNotMatched::Insert);
    assert_eq!(combine(bson!("c")), Some(doc! { "_id": 1, "a": 1, "b": 2 }));
    assert_eq!(
        combine(bson!({ "into": "c", "whenMatched": "replace" })),
        Some(doc! { "_id": 1, "b": 2 })
    );
    assert_eq!(combine(bson!({ "into": "c", "whenMatched": "keepExisting" })), None);
    assert_eq!(
        combine(
            bson!({ "into": "c", "let": { "k": "$b" }, "whenMatched": [{ "$set": { "n": "$$new.b", "k": "$$k" } }] })
        ),
        Some(doc! { "_id": 1, "a": 1, "n": 2, "k": 2 })
    );
    let failing = merge(
        bson!({ "into": { "db": "d", "coll": "c" }, "on": ["x", "y"], "whenMatched": "fail", "whenNotMatched": "discard" }),
    );
    assert!(matches!(failing.when_matched, WhenMatched::Fail));
    assert_eq!(failing.when_not_matched, WhenNotMatched::Discard);
    assert_eq!(failing.on, ["x", "y"]);
    refuse(vec![
        (bson!({ "$merge": 1 }), 51182),
        (bson!({ "$merge": { "into": "c", "let": { "a": 1 } } }), 51199),
        (bson!({ "$merge": { "into": "c", "let": { "a": 1 }, "whenMatched": "replace" } }), 51199),
        (bson!({ "$merge": {} }), 51178),
        (bson!({ "$merge": { "into": "c", "x": 1 } }), 40415),
        (bson!({ "$merge": { "into": "c", "on": [] } }), 51187),
        (bson!({ "$merge": { "into": "c", "on": ["a", "a"] } }), 31465),
        (bson!({ "$merge": { "into": "c", "whenMatched": "x" } }), 2),
        (bson!({ "$merge": { "into": "c", "whenMatched": [{ "$limit": 1 }] } }), 72),
        (bson!({ "$out": 1 }), 16990),
        (bson!([{ "$out": "x" }, { "$limit": 1 }]), 40601),
    ]);
}

#[test]
fn what_parsing_refuses() {
    refuse(vec![
        (bson!({ "$nonsense": 1 }), 40324),
        (bson!({ "$limit": 1, "$skip": 1 }), 40323),
        (bson!({}), 40323),
        (bson!([1]), 14),
    ]);
    let error = Pipeline::parse(&[bson!({ "$x": 1 })], &Variables::new(0)).unwrap_err();
    assert_eq!(error.message(), "Unrecognized pipeline stage name: '$x'");
    let nested = (0..30)
        .fold(bson!([]), |inner, _| bson!([{ "$unionWith": { "coll": "x", "pipeline": inner } }]));
    assert_eq!(Pipeline::parse(&array(nested), &Variables::new(0)).unwrap_err().code().0, 232);
    let many: Vec<Bson> = (0..1001).map(|_| bson!({ "$skip": 1 })).collect();
    assert_eq!(Pipeline::parse(&many, &Variables::new(0)).unwrap_err().code().0, 7749501);
    // Stages count through all levels.
    let half = &many[..600];
    let inner = [half, &[bson!({ "$unionWith": { "coll": "x", "pipeline": half } })]].concat();
    assert_eq!(Pipeline::parse(&inner, &Variables::new(0)).unwrap_err().code().0, 7749501);
}

#[test]
fn the_longest_pipeline_of_any_stage_fits_the_stack() {
    let stages = vec![
        bson!({ "$set": { "n": { "$add": ["$n", 1] } } }),
        bson!({ "$project": { "n": 1 } }),
        bson!({ "$unwind": "$n" }),
        bson!({ "$match": { "n": { "$gte": 0 } } }),
        bson!({ "$match": { "$expr": true } }),
        bson!({ "$sort": { "n": 1 } }),
        bson!({ "$group": { "_id": "$_id", "n": { "$first": "$n" } } }),
        bson!({ "$bucketAuto": { "groupBy": "$n", "buckets": 1, "output": { "n": { "$first": "$n" } } } }),
        bson!({ "$setWindowFields": { "output": { "n": { "$sum": "$n" } } } }),
        bson!({ "$lookup": { "from": "x", "localField": "n", "foreignField": "n", "as": "l" } }),
        bson!({ "$graphLookup": { "from": "x", "startWith": "$n", "connectFromField": "n", "connectToField": "n", "as": "l" } }),
        bson!({ "$unionWith": "nowhere" }),
        bson!({ "$limit": 5 }),
        bson!({ "$skip": 0 }),
        bson!({ "$sample": { "size": 1 } }),
        bson!({ "$replaceWith": "$$ROOT" }),
        bson!({ "$redact": "$$KEEP" }),
    ];
    // A thread usually has 2 MiB; some of it belongs to the caller of the pipeline.
    let thread = std::thread::Builder::new().stack_size(7 << 18).spawn(move || {
        for stage in stages {
            let longest = vec![stage.clone(); MAX_STAGES];
            let found = run(Bson::Array(longest), vec![doc! { "_id": 1, "n": 0 }]);
            assert_eq!(found.len(), 1, "{stage}");
        }
    });
    thread.unwrap().join().unwrap();
}

#[test]
fn nothing_comes_after_an_error() {
    let variables = Variables::new(0);
    let pipeline = parse(bson!([{ "$set": { "x": { "$divide": [1, "$a"] } } }]));
    let input = [1, 0, 2].map(|a| Ok(doc! { "a": a }));
    let mut documents =
        pipeline.run(Box::new(input.into_iter()), Arc::clone(&environment()), &variables);
    assert!(documents.next().unwrap().is_ok());
    assert_eq!(documents.next().unwrap().unwrap_err().code().0, 2);
    assert!(documents.next().is_none());
}

#[derive(Debug)]
pub(super) struct Patience(pub(super) std::sync::atomic::AtomicU32);

impl crate::expression::Interrupt for Patience {
    fn check(&self) -> Result<()> {
        use std::sync::atomic::Ordering::Relaxed;
        let left = self.0.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
        left.map(drop).map_err(|_| fail!(50, "operation exceeded time limit"))
    }
}

/// The source is not asked for a second document here.
#[test]
fn stages_that_make_much_of_one_document_can_be_interrupted() {
    let list = bson!({ "$set": { "list": { "$range": [0, 1000] } } });
    let unwind = bson!({ "$unwind": "$list" });
    let mut stages = Vec::new();
    for _ in 0..5 {
        stages.extend([list.clone(), unwind.clone()]);
    }
    stages.push(bson!({ "$group": { "_id": null, "n": { "$sum": 1 } } }));
    let variables = Variables::new(0).with_interrupt(Arc::new(Patience(5.into())));
    let pipeline = Pipeline::parse(&stages, &variables).unwrap();
    let input = Box::new(std::iter::once(Ok(doc! {})));
    let mut documents = pipeline.run(input, environment(), &variables);
    assert_eq!(documents.next().unwrap().unwrap_err().code().0, 50);
}
