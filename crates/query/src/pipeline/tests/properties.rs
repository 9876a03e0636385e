//! Whatever stages follow each other, a run ends in documents or an error; and the shortcuts change
//! nothing.

use bson::raw::cstr;
use bson::{Bson, Document, RawDocument, RawDocumentBuf, bson, doc};
use proptest::prelude::*;

use super::super::Pipeline;
use super::{environment, try_run};
use crate::expression::Variables;

fn input() -> Vec<Document> {
    (0..30)
        .map(|n| {
            let value = match n % 5 {
                0 => Bson::Null,
                1 => bson!([n, "x", { "a": n }]),
                2 => bson!({ "a": n, "b": [n] }),
                3 => bson!(f64::from(n) / 2.0),
                _ => bson!("text"),
            };
            doc! { "_id": n, "a": value, "b": n % 3 }
        })
        .collect()
}

fn odd_spec() -> impl Strategy<Value = Bson> {
    prop::sample::select(vec![
        bson!("$a"),
        bson!("$b"),
        bson!("a"),
        bson!(1),
        bson!(-1),
        bson!(0),
        Bson::Null,
        bson!({}),
        bson!([]),
        bson!({ "a": 1 }),
        bson!({ "a": 0, "b": 0 }),
        bson!({ "_id": "$a", "n": { "$sum": "$b" } }),
        bson!({ "_id": Bson::Null, "n": { "$push": "$$ROOT" } }),
        bson!({ "a": "$b", "c.d": { "$size": "$a" } }),
        bson!({ "path": "$a", "includeArrayIndex": "i", "preserveNullAndEmptyArrays": true }),
        bson!({ "groupBy": "$b", "boundaries": [0, 1, 2], "default": 9 }),
        bson!({ "groupBy": "$a", "buckets": 3 }),
        bson!({ "newRoot": "$a" }),
        bson!({ "size": 4 }),
        bson!({ "from": "stock", "localField": "a", "foreignField": "count", "as": "a" }),
        bson!({ "coll": "stock", "pipeline": [{ "$sort": { "count": -1 } }] }),
        bson!({ "x": [{ "$group": { "_id": "$b" } }], "y": [] }),
        bson!({ "$cond": ["$b", "$$DESCEND", "$$PRUNE"] }),
        bson!([{ "a": 1 }]),
        bson!({ "a": { "$gt": 3 } }),
        bson!({ "partitionBy": "$b", "sortBy": { "_id": 1 }, "output": {
            "a": { "$push": "$a", "window": { "documents": [-1, "current"] } }, "r": { "$rank": {} },
        } }),
        bson!({ "sortBy": { "b": 1 }, "output": {
            "s": { "$sum": "$_id", "window": { "range": [-1, 1] } }, "l": { "$linearFill": "$a" },
        } }),
        bson!({ "from": "staff", "startWith": "$a", "connectFromField": "boss", "connectToField": "name", "as": "b" }),
        bson!({ "_id": "$b", "t": { "$topN": { "n": 2, "sortBy": { "a": 1 }, "output": "$a" } }, "l": { "$lastN": { "n": "$_id", "input": "$a" } } }),
    ])
}

fn any_stage() -> impl Strategy<Value = Bson> {
    let names = prop::sample::select(vec![
        "$match", "$project", "$addFields", "$set", "$unset", "$group", "$sort", "$limit", "$skip",
        "$count", "$unwind", "$lookup", "$facet", "$bucket", "$bucketAuto", "$sortByCount",
        "$replaceRoot", "$replaceWith", "$sample", "$unionWith", "$redact", "$setWindowFields",
        "$graphLookup", "$documents", "$out", "$merge", "$collStats", "$indexStats",
    ]);
    (names, odd_spec()).prop_map(|(name, spec)| {
        let mut stage = Document::new();
        stage.insert(name, spec);
        Bson::Document(stage)
    })
}

fn cutting_stage() -> impl Strategy<Value = Bson> {
    prop_oneof![
        (1..8_i32).prop_map(|n| bson!({ "$limit": n })),
        (0..8_i32).prop_map(|n| bson!({ "$skip": n })),
        Just(bson!({ "$sort": { "b": 1 } })),
        Just(bson!({ "$sort": { "a": -1, "_id": 1 } })),
        (0..3_i32).prop_map(|n| bson!({ "$match": { "b": n } })),
        Just(bson!({ "$match": { "a": { "$exists": true } } })),
    ]
}

/// The stages one after the other, each on its own, so that no stage knows of another.
fn one_by_one(stages: &[Bson]) -> Vec<Document> {
    stages.iter().fold(input(), |documents, stage| {
        try_run(Bson::Array(vec![stage.clone()]), documents).unwrap()
    })
}

/// A stored document.
struct RawBox(RawDocumentBuf);

impl RawBox {
    fn of(document: &Document) -> Self {
        Self(RawDocumentBuf::try_from(document).unwrap())
    }
}

impl std::ops::Deref for RawBox {
    type Target = RawDocument;

    fn deref(&self) -> &RawDocument {
        &self.0
    }
}

/// Fields that are missing, come twice, or come in another order do not show in the next document.
#[test]
fn a_document_takes_nothing_over_from_the_one_before() {
    let stages = bson!([{ "$group": { "_id": "$a", "b": { "$push": "$b" } } }]);
    let Bson::Array(stages) = stages else { unreachable!() };
    let variables = Variables::new(1);
    let pipeline = Pipeline::parse(&stages, &variables).unwrap();
    let twice = {
        let mut document = RawDocumentBuf::new();
        for (name, value) in [(cstr!("a"), 7), (cstr!("a"), 8), (cstr!("b"), 9)] {
            document.append(name, value);
        }
        document
    };
    let mut stored: Vec<RawBox> = [
        doc! { "a": 1, "b": 1 },
        doc! { "b": 2, "x": 0, "a": 2 },
        doc! { "a": 3 },
        doc! { "b": 4 },
        doc! {},
        doc! { "a": "five", "b": [5] },
    ]
    .iter()
    .map(RawBox::of)
    .collect();
    stored.push(RawBox(twice));
    stored.push(RawBox::of(&doc! { "a": 6, "b": 6 }));
    let alone: Vec<Document> = stored
        .iter()
        .flat_map(|one| {
            let parsed = pipeline.decoder().decode(one).unwrap();
            try_run(Bson::Array(stages.clone()), vec![parsed]).unwrap()
        })
        .collect();
    let ids: Vec<_> = alone.iter().map(|group| group.get("_id").cloned().unwrap()).collect();
    let together: Result<Vec<_>, _> = pipeline
        .run_stored(Box::new(stored.into_iter().map(Ok)), environment(), &variables)
        .collect();
    let together = together.unwrap();
    assert_eq!(ids.iter().filter(|id| **id == Bson::Null).count(), 2, "{ids:?}");
    assert_eq!(together.len(), alone.len() - 1, "two documents have no a");
    for group in together {
        let id = group.get("_id").unwrap();
        let values = alone.iter().filter(|one| one.get("_id") == Some(id));
        let values: Vec<_> = values.flat_map(|one| one.get_array("b").unwrap().clone()).collect();
        assert_eq!(group.get_array("b").unwrap(), &values, "{id}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases * 2, ..ProptestConfig::default() })]

    #[test]
    fn no_pipeline_panics(stages in prop::collection::vec(any_stage(), 0..4)) {
        let _ = try_run(Bson::Array(stages), input());
    }

    #[test]
    fn fields_that_are_not_needed_do_not_matter(stages in prop::collection::vec(any_stage(), 0..4)) {
        let variables = Variables::new(11);
        let Ok(pipeline) = Pipeline::parse(&stages, &variables) else { return Ok(()) };
        let Some(fields) = super::super::depend::needed_fields(&pipeline) else { return Ok(()) };
        let only = |document: Document| -> Document {
            document.into_iter().filter(|(name, _)| fields.contains(name)).collect()
        };
        let narrow: Vec<_> = input().into_iter().map(only).collect();
        let whole = try_run(Bson::Array(stages.clone()), input());
        let narrow = try_run(Bson::Array(stages), narrow);
        match (whole, narrow) {
            (Ok(whole), Ok(narrow)) => prop_assert_eq!(whole, narrow),
            // The texts may quote the document.
            (whole, narrow) => prop_assert_eq!(
                whole.map_err(|error| error.code()), narrow.map_err(|error| error.code())
            ),
        }
    }

    /// Stored documents, read into one another's place, give what parsed ones give.
    #[test]
    fn stored_documents_give_what_parsed_ones_give(stages in prop::collection::vec(any_stage(), 0..4)) {
        let variables = Variables::new(11);
        let Ok(pipeline) = Pipeline::parse(&stages, &variables) else { return Ok(()) };
        let stored = input().into_iter().map(|document| Ok(RawBox::of(&document)));
        let stored: Result<Vec<_>, _> =
            pipeline.run_stored(Box::new(stored), environment(), &variables).collect();
        match (stored, try_run(Bson::Array(stages), input())) {
            (Ok(stored), Ok(parsed)) => prop_assert_eq!(stored, parsed),
            (stored, parsed) => prop_assert_eq!(
                stored.map_err(|error| error.code()), parsed.map_err(|error| error.code())
            ),
        }
    }

    #[test]
    fn shortcuts_change_nothing(stages in prop::collection::vec(cutting_stage(), 0..6)) {
        let expected = one_by_one(&stages);
        prop_assert_eq!(try_run(Bson::Array(stages.clone()), input()).unwrap(), expected.clone());
        // The same through the query that is pushed down.
        let variables = Variables::new(11);
        let down = Pipeline::parse(&stages, &variables).unwrap().push_down();
        let mut query = Vec::new();
        query.extend(down.filter.map(|filter| bson!({ "$match": filter })));
        query.extend(down.sort.map(|sort| bson!({ "$sort": sort })));
        query.extend(down.skip.map(|skip| bson!({ "$skip": skip as i64 })));
        query.extend(down.limit.map(|limit| bson!({ "$limit": limit as i64 })));
        let found = one_by_one(&query);
        let rest: Result<Vec<_>, _> =
            down.rest.run(Box::new(found.into_iter().map(Ok)), environment(), &variables).collect();
        prop_assert_eq!(rest.unwrap(), expected);
    }
}
