//! Two collections take the same random commands: one has indexes, the other has none. They must answer the same.
//!
//! `PROPTEST_CASES` runs more of them.

#![allow(clippy::unwrap_used, reason = "a panic is the report")]

mod support;

use bson::{Bson, Document, doc};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use quorate_protocol::{MemberState, OpTime};
use support::set::{entries, hash, position, primary, secondary, show};
use support::{Member, now};

const INDEXED: &str = "indexed";
const PLAIN: &str = "plain";

/// Few values of many types, some of which are equal, so that documents and commands meet.
fn scalar() -> impl Strategy<Value = Bson> {
    prop_oneof![
        24 => (0_i32..5).prop_map(Bson::Int32),
        1 => (0_i64..3).prop_map(Bson::Int64),
        1 => select(vec![-0.0, 0.5, 1.0, 2.0, f64::NAN, f64::INFINITY]).prop_map(Bson::Double),
        1 => select(vec!["1", "1.5", "NaN"]).prop_map(|text| Bson::Decimal128(text.parse().unwrap())),
        2 => Just(Bson::Null),
        2 => select(vec!["", "a", "ab", "b"]).prop_map(Bson::from),
        1 => any::<bool>().prop_map(Bson::Boolean),
        1 => (0_i64..2).prop_map(|time| Bson::DateTime(bson::DateTime::from_millis(time))),
        1 => select(vec![Bson::MinKey, Bson::MaxKey]),
        1 => Just(Bson::Timestamp(bson::Timestamp { time: 1, increment: 1 })),
    ]
}

fn value() -> impl Strategy<Value = Bson> {
    scalar().prop_recursive(3, 8, 3, |inner| {
        prop_oneof![
            4 => prop::collection::vec(inner.clone(), 0..4).prop_map(Bson::Array),
            1 => prop::collection::vec((0_i32..5).prop_map(Bson::Int32), 2..4).prop_map(Bson::Array),
            2 => prop::collection::vec((select(vec!["a", "b", "0"]), inner), 0..3).prop_map(|fields| {
                let fields = fields.into_iter().map(|(name, value)| (name.to_owned(), value));
                Bson::Document(fields.collect())
            }),
        ]
    })
}

fn document() -> impl Strategy<Value = Document> {
    prop::collection::vec((select(vec!["a", "b", "c"]), value()), 0..4).prop_map(|fields| {
        fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    })
}

fn path() -> impl Strategy<Value = &'static str> {
    select(vec![
        "a", "a", "a", "a", "a", "b", "b", "c", "a.b", "a.b", "a.b", "a.a", "a.0", "a.0.b", "b.a",
        "_id",
    ])
}

fn condition() -> impl Strategy<Value = Bson> {
    let comparison = select(vec!["$eq", "$gt", "$gte", "$lt", "$lte", "$ne"]);
    let any_value = prop_oneof![4 => scalar(), 1 => value()].boxed();
    let operators = prop_oneof![
        5 => (comparison.clone(), any_value.clone()).prop_map(|(name, value)| doc! { name: value }),
        4 => (any_value.clone(), any_value.clone()).prop_map(|(low, high)| doc! { "$gte": low, "$lt": high }),
        1 => (comparison, any_value.clone(), any_value.clone())
            .prop_map(|(name, one, two)| doc! { "$gt": one, name: two }),
        3 => prop::collection::vec(any_value.clone(), 0..4).prop_map(|list| doc! { "$in": list }),
        1 => prop::collection::vec(any_value.clone(), 0..3).prop_map(|list| doc! { "$nin": list }),
        1 => prop::collection::vec(any_value.clone(), 0..3).prop_map(|list| doc! { "$all": list }),
        2 => any::<bool>().prop_map(|wanted| doc! { "$exists": wanted }),
        1 => (0..3).prop_map(|size| doc! { "$size": size }),
        1 => select(vec!["number", "string", "array", "null", "object", "int"]).prop_map(|kind| doc! { "$type": kind }),
        1 => select(vec!["^a", "a", "^ab?", "b$", "^$", "^a|b"]).prop_map(|regex| doc! { "$regex": regex }),
        1 => (1..3, 0..2).prop_map(|(by, rest)| doc! { "$mod": [by, rest] }),
    ]
    .boxed();
    prop_oneof![
        3 => any_value,
        6 => operators.clone().prop_map(Bson::Document),
        1 => operators.clone().prop_map(|inner| Bson::Document(doc! { "$elemMatch": inner })),
        1 => operators.clone().prop_map(|inner| Bson::Document(doc! { "$elemMatch": { "b": inner } })),
        1 => operators.prop_map(|inner| Bson::Document(doc! { "$not": inner })),
    ]
}

fn filter() -> impl Strategy<Value = Document> {
    let leaf = prop::collection::vec((path(), condition()), 0..3).prop_map(|parts| {
        parts
            .into_iter()
            .map(|(path, condition)| (path.to_owned(), condition))
            .collect::<Document>()
    });
    leaf.prop_recursive(2, 6, 3, |inner| {
        prop_oneof![
            (
                select(vec!["$and", "$or", "$or", "$nor"]),
                prop::collection::vec(inner.clone(), 1..4)
            )
                .prop_map(|(name, branches)| doc! { name: branches }),
            (inner, path(), condition()).prop_map(|(mut filter, path, condition)| {
                filter.insert(path, condition);
                filter
            }),
        ]
    })
}

/// An order in which every document has its place.
fn sort() -> impl Strategy<Value = Document> {
    let field = (select(vec!["a", "a", "b", "c", "a.b", "b.a"]), select(vec![1, -1]));
    (prop::collection::vec(field, 0..3), select(vec![1, -1])).prop_map(|(fields, last)| {
        let mut sort: Document =
            fields.into_iter().map(|(name, way)| (name.to_owned(), Bson::Int32(way))).collect();
        sort.insert("_id", last);
        sort
    })
}

fn projection() -> impl Strategy<Value = Document> {
    select(vec![
        doc! {},
        doc! {},
        doc! { "a": 1 },
        doc! { "a": 1, "_id": 0 },
        doc! { "a": 1, "b": 1, "_id": 0 },
        doc! { "_id": 1 },
        doc! { "a.b": 1, "_id": 0 },
        doc! { "b": 0 },
    ])
}

#[derive(Clone, Debug)]
enum Step {
    Insert(Document),
    Update { filter: Document, change: Bson, multi: bool, upsert: bool },
    Delete { filter: Document },
    Take { filter: Document, sort: Document, remove: bool },
    Find { filter: Document, sort: Option<Document>, skip: i32, limit: i32, projection: Document },
    Count { filter: Document, skip: i32, limit: i32 },
    Distinct { key: &'static str, filter: Document },
    Group { filter: Document, key: &'static str },
    SortAndGroup { filter: Document, sort: Document },
    Join { filter: Document, local: &'static str, foreign: &'static str, pipeline: bool },
}

fn change() -> impl Strategy<Value = Bson> {
    let operator =
        select(vec!["$set", "$set", "$unset", "$push", "$addToSet", "$pull", "$min", "$max"]);
    prop_oneof![
        8 => (operator, path(), value()).prop_map(|(name, path, value)| doc! { name: { path: value } }.into()),
        1 => (path(), -1..3).prop_map(|(path, by)| doc! { "$inc": { path: by } }.into()),
        1 => document().prop_map(Bson::from),
        2 => (path(), prop::collection::vec(value(), 0..3), -2..3, -3..4, select(vec![1, -1])).prop_map(
            |(path, each, position, slice, way)| {
                doc! { "$push": { path: { "$each": each, "$position": position, "$slice": slice, "$sort": way } } }
                    .into()
            }
        ),
        1 => (path(), select(vec![1, -1])).prop_map(|(path, end)| doc! { "$pop": { path: end } }.into()),
        1 => (path(), prop::collection::vec(scalar(), 0..3))
            .prop_map(|(path, list)| doc! { "$pullAll": { path: list } }.into()),
        1 => (path(), path()).prop_map(|(from, to)| doc! { "$rename": { from: to } }.into()),
        1 => (path(), value()).prop_map(|(path, value)| doc! { "$set": { format!("{path}.$[]"): value } }.into()),
        1 => (path(), value(), path(), value()).prop_map(|(one, first, two, second)| {
            doc! { "$set": { one: first, format!("{two}.1"): second }, "$unset": { "c": 1 } }.into()
        }),
        1 => (path(), path()).prop_map(|(to, from)| {
            vec![Bson::from(doc! { "$set": { to: format!("${from}") } })].into()
        }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => document().prop_map(Step::Insert),
        3 => (filter(), change(), any::<bool>()).prop_map(|(filter, change, upsert)| {
            let is_replacement = matches!(&change, Bson::Document(change)
                if !change.keys().next().is_some_and(|name| name.starts_with('$')));
            // Which of several documents is changed depends on the plan.
            let filter = if is_replacement { doc! { "_id": 1, "$and": [filter] } } else { filter };
            Step::Update { filter, change, multi: !is_replacement, upsert: upsert && is_replacement }
        }),
        1 => filter().prop_map(|filter| Step::Delete { filter }),
        1 => (filter(), sort(), any::<bool>())
            .prop_map(|(filter, sort, remove)| Step::Take { filter, sort, remove }),
        8 => (filter(), prop::option::of(sort()), 0..3, 0..4, projection()).prop_map(
            |(filter, sort, skip, limit, projection)| Step::Find { filter, sort, skip, limit, projection }
        ),
        4 => (select(vec!["a", "b", "a.b"]), condition(), select(vec![1, -1]), 0..4).prop_map(
            // An index may give the order, too.
            |(field, condition, way, limit)| Step::Find {
                filter: doc! { field: condition },
                sort: Some(doc! { field: way, "_id": way }),
                skip: 0,
                limit,
                projection: doc! {},
            }
        ),
        2 => (filter(), 0..3, 0..4).prop_map(|(filter, skip, limit)| Step::Count { filter, skip, limit }),
        2 => (path(), filter()).prop_map(|(key, filter)| Step::Distinct { key, filter }),
        2 => (filter(), path()).prop_map(|(filter, key)| Step::Group { filter, key }),
        1 => (filter(), sort()).prop_map(|(filter, sort)| Step::SortAndGroup { filter, sort }),
        2 => (filter(), path(), path(), any::<bool>()).prop_map(|(filter, local, foreign, pipeline)| {
            Step::Join { filter, local, foreign, pipeline }
        }),
    ]
}

impl Step {
    fn is_write(&self) -> bool {
        matches!(
            self,
            Self::Insert(_) | Self::Update { .. } | Self::Delete { .. } | Self::Take { .. }
        )
    }

    /// Whether the order of what it answers with is said.
    fn is_ordered(&self) -> bool {
        matches!(self, Self::Find { sort: Some(_), .. } | Self::SortAndGroup { .. })
    }

    fn command(&self, collection: &str, id: i32) -> Document {
        let pipeline = |stages: Vec<Document>| {
            doc! { "aggregate": collection, "pipeline": stages, "cursor": { "batchSize": 1_000 } }
        };
        match self {
            Self::Insert(document) => {
                let mut document = document.clone();
                document.insert("_id", id);
                doc! { "insert": collection, "documents": [document] }
            }
            Self::Update { filter, change, multi, upsert } => {
                doc! { "update": collection, "updates": [
                    { "q": filter, "u": change, "multi": *multi, "upsert": *upsert },
                ] }
            }
            Self::Delete { filter } => {
                doc! { "delete": collection, "deletes": [{ "q": filter, "limit": 0 }] }
            }
            Self::Take { filter, sort, remove } => {
                let mut command =
                    doc! { "findAndModify": collection, "query": filter, "sort": sort };
                match remove {
                    true => command.insert("remove", true),
                    false => command.insert("update", doc! { "$set": { "c": 7 } }),
                };
                command
            }
            Self::Find { filter, sort: Some(sort), skip, limit, projection } => doc! {
                "find": collection, "filter": filter, "sort": sort, "skip": *skip, "limit": *limit,
                "projection": projection, "batchSize": 1_000,
            },
            Self::Find { filter, projection, .. } => doc! {
                "find": collection, "filter": filter, "projection": projection, "batchSize": 1_000,
            },
            Self::Count { filter, skip, limit } => {
                doc! { "count": collection, "query": filter, "skip": *skip, "limit": *limit }
            }
            Self::Distinct { key, filter } => {
                doc! { "distinct": collection, "key": *key, "query": filter }
            }
            Self::Group { filter, key } => pipeline(vec![
                doc! { "$match": filter },
                doc! { "$group": { "_id": format!("${key}"), "n": { "$sum": 1 }, "ids": { "$sum": "$_id" } } },
            ]),
            Self::SortAndGroup { filter, sort } => pipeline(vec![
                doc! { "$match": filter },
                doc! { "$sort": sort },
                doc! { "$group": { "_id": null, "ids": { "$push": "$_id" } } },
            ]),
            Self::Join { filter, local, foreign, pipeline: is_pipeline } => {
                let mut lookup = doc! {
                    "from": collection, "localField": *local, "foreignField": *foreign, "as": "found",
                };
                if *is_pipeline {
                    lookup.insert("pipeline", vec![doc! { "$match": filter }]);
                }
                pipeline(vec![
                    doc! { "$match": if *is_pipeline { doc! {} } else { filter.clone() } },
                    doc! { "$lookup": lookup },
                    // The order in which they are found is not said.
                    doc! { "$set": { "found": { "$size": "$found" }, "sum": { "$sum": "$found._id" } } },
                ])
            }
        }
    }
}

/// The same text for values that are equal: which of them stands for a group depends on the order of the scan.
fn text_of(value: &Bson) -> String {
    match value {
        Bson::Int32(number) => text_of(&Bson::Double(f64::from(*number))),
        Bson::Int64(number) => text_of(&Bson::Double(*number as f64)),
        Bson::Double(number) => format!("{}", if *number == 0.0 { 0.0 } else { *number }),
        Bson::Decimal128(number) => text_of(&Bson::Double(number.to_string().parse().unwrap())),
        Bson::Array(items) => {
            let items: Vec<String> = items.iter().map(text_of).collect();
            format!("[{}]", items.join(","))
        }
        Bson::Document(document) => {
            let fields = document.iter().map(|(name, value)| format!("{name}:{}", text_of(value)));
            format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
        }
        other => format!("{other}"),
    }
}

/// What a reply says, without what differs between any two replies.
fn said(reply: &Document, ordered: bool) -> Vec<String> {
    if let Ok(cursor) = reply.get_document("cursor") {
        let mut batch: Vec<String> =
            cursor.get_array("firstBatch").unwrap().iter().map(text_of).collect();
        if !ordered {
            batch.sort();
        }
        return batch;
    }
    if let Ok(values) = reply.get_array("values") {
        let mut values: Vec<String> = values.iter().map(text_of).collect();
        values.sort();
        return values;
    }
    let mut said = Vec::new();
    for name in ["ok", "code", "n", "nModified", "value", "lastErrorObject"] {
        said.extend(reply.get(name).map(|value| format!("{name}: {}", text_of(value))));
    }
    let errors = reply.get_array("writeErrors").map(Vec::as_slice).unwrap_or_default();
    said.extend(errors.iter().map(|error| {
        format!("failed with {}", text_of(error.as_document().unwrap().get("code").unwrap()))
    }));
    said
}

fn all(member: &Member, collection: &str) -> Vec<Document> {
    member.find(doc! { "find": collection, "sort": { "_id": 1 }, "hint": { "$natural": 1 }, "batchSize": 1_000 })
}

fn keys() -> Vec<Document> {
    let name = |place: usize| format!("i{place}");
    let keys = [
        doc! { "a": 1 },
        doc! { "a": -1, "b": 1 },
        doc! { "a.b": 1 },
        doc! { "b": 1, "a": -1 },
        doc! { "b": "hashed" },
        doc! { "c": 1, "a.b": 1 },
        doc! { "a.0": 1 },
        doc! { "b.a": -1, "_id": 1 },
        doc! { "a": 1, "_id": 1 },
        doc! { "a": -1, "_id": 1 },
        doc! { "a.b": 1, "_id": -1 },
        doc! { "a": 1, "b": 1, "_id": 1 },
        doc! { "b": 1, "_id": 1 },
    ];
    let indexes = keys.into_iter().enumerate();
    indexes.map(|(place, key)| doc! { "key": key, "name": name(place) }).collect()
}

fn options() -> impl Strategy<Value = Document> {
    prop_oneof![
        4 => Just(doc! {}),
        1 => Just(doc! { "sparse": true }),
        1 => select(vec![
            doc! { "a": { "$gt": 0 } },
            doc! { "a": { "$exists": true } },
            doc! { "b": { "$lte": 1 }, "a": 1 },
            doc! { "c": { "$type": "string" } },
        ])
        .prop_map(|filter| doc! { "partialFilterExpression": filter }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    /// And a member that applies the log holds the same, also after a part of it was taken back.
    #[test]
    fn indexes_change_no_answer(
        before in prop::collection::vec(document(), 0..10),
        indexes in subsequence(keys(), 1..5),
        options in prop::collection::vec(options(), 4),
        steps in prop::collection::vec(step(), 1..25),
        undone in 0_usize..25,
    ) {
        let member = primary();
        let mut marks = Vec::new();
        let mut id = 0;
        let mut run = |step: &Step| {
            id += 1;
            let command = step.command(INDEXED, id);
            let indexed = member.run(command.clone());
            let failed = indexed.contains_key("writeErrors") || indexed.contains_key("code");
            if step.is_write() && failed {
                // An index refused it, or a part of it. Both have the same again.
                member.ok(doc! { "delete": PLAIN, "deletes": [{ "q": {}, "limit": 0 }] });
                let documents = all(&member, INDEXED);
                if !documents.is_empty() {
                    member.insert(PLAIN, documents);
                }
                return Ok(());
            }
            let plain = member.run(step.command(PLAIN, id));
            let ordered = step.is_ordered();
            prop_assert_eq!(said(&indexed, ordered), said(&plain, ordered), "{}", command);
            Ok(())
        };
        for document in before {
            run(&Step::Insert(document))?;
        }
        for (mut index, options) in indexes.into_iter().zip(options) {
            index.extend(options);
            // Arrays side by side, or in a hashed index, are refused; then it is not there.
            member.run(doc! { "createIndexes": INDEXED, "indexes": [index] });
        }
        for step in &steps {
            run(step)?;
            if step.is_write() {
                // Not a number is not equal to itself.
                let held = |collection| format!("{:?}", all(&member, collection));
                prop_assert_eq!(held(INDEXED), held(PLAIN), "{:?}", step);
            }
            marks.push((position(&member), hash(&member)));
        }
        member.validate(INDEXED);
        let follower = secondary();
        follower.node.apply(OpTime::NULL, entries(&member), now()).unwrap();
        prop_assert_eq!(hash(&follower), hash(&member));
        let (mark, before) = &marks[undone.min(marks.len() - 1)];
        follower.node.roll_back_to(*mark, now(), &mut |_| Ok(())).unwrap();
        prop_assert_eq!(&hash(&follower), before);
        show(&follower.node, MemberState::Primary, true);
        follower.validate(INDEXED);
    }
}

fn expression() -> impl Strategy<Value = Bson> {
    let field = path().prop_map(|path| Bson::from(format!("${path}")));
    let leaf =
        prop_oneof![4 => field, 1 => scalar().prop_map(|value| doc! { "$literal": value }.into())];
    leaf.prop_recursive(2, 6, 2, |inner| {
        let one = select(vec![
            "$type", "$isArray", "$size", "$first", "$toString", "$not", "$abs", "$sum", "$max",
        ]);
        let two = select(vec![
            "$add", "$eq", "$lt", "$cmp", "$ifNull", "$and", "$or", "$concatArrays", "$in",
        ]);
        prop_oneof![
            (one, inner.clone()).prop_map(|(name, of)| doc! { name: of }.into()),
            (two, inner.clone(), inner)
                .prop_map(|(name, one, two)| doc! { name: [one, two] }.into()),
        ]
    })
}

fn stage() -> impl Strategy<Value = Vec<Document>> {
    let accumulator = select(vec!["$sum", "$avg", "$min", "$max", "$addToSet", "$count"]);
    prop_oneof![
        4 => filter().prop_map(|filter| vec![doc! { "$match": filter }]),
        1 => expression().prop_map(|test| vec![doc! { "$match": { "$expr": test } }]),
        2 => (sort(), 1..5).prop_map(|(sort, limit)| vec![doc! { "$sort": sort }, doc! { "$limit": limit }]),
        1 => (sort(), 1..3).prop_map(|(sort, skip)| vec![doc! { "$sort": sort }, doc! { "$skip": skip }]),
        2 => (path(), expression()).prop_map(|(path, value)| vec![doc! { "$set": { path: value } }]),
        2 => (expression(), expression())
            .prop_map(|(one, two)| vec![doc! { "$project": { "a": one, "b": two } }]),
        1 => select(vec![doc! { "a": 1 }, doc! { "a": 0 }, doc! { "a.b": 1, "_id": 0 }, doc! { "a": { "b": 0 } }])
            .prop_map(|wanted| vec![doc! { "$project": wanted }]),
        1 => select(vec!["$a", "$b", "$a.b"]).prop_map(|path| vec![doc! { "$unwind": path }]),
        2 => (expression(), accumulator, expression()).prop_map(|(key, accumulator, value)| {
            let value = if accumulator == "$count" { doc! {}.into() } else { value };
            vec![doc! { "$group": { "_id": key, "a": { accumulator: value } } }]
        }),
        1 => Just(vec![doc! { "$count": "a" }]),
        1 => path().prop_map(|path| vec![doc! { "$sortByCount": format!("${path}") }]),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    /// Stages over stored bytes, and pushed down to where documents are found, are the same stages.
    #[test]
    fn stages_over_stored_documents_are_those_over_any(
        documents in prop::collection::vec(document(), 1..10),
        indexes in subsequence(keys(), 0..3),
        pipelines in prop::collection::vec(prop::collection::vec(stage(), 1..4), 1..10),
    ) {
        let member = Member::new();
        for (id, mut document) in documents.into_iter().enumerate() {
            document.insert("_id", id as i32);
            member.insert(PLAIN, vec![document]);
        }
        for index in indexes {
            member.run(doc! { "createIndexes": PLAIN, "indexes": [index] });
        }
        for stages in pipelines {
            let stages = stages.concat();
            let run = |stages: &[Document]| {
                let cursor = doc! { "batchSize": 1_000 };
                member.run(doc! { "aggregate": PLAIN, "pipeline": stages, "cursor": cursor })
            };
            // Documents that are no longer as they were stored.
            let mut changed = vec![doc! { "$set": { "zz": 1 } }, doc! { "$unset": "zz" }];
            changed.extend(stages.clone());
            let (stored, changed) = (run(&stages), run(&changed));
            if stored.contains_key("code") || changed.contains_key("code") {
                // A document that an expression fails for may not have been looked at.
                continue;
            }
            prop_assert_eq!(said(&stored, false), said(&changed, false), "{:?}", stages);
        }
    }
}
