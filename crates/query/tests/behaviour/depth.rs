//! The deepest documents, queries and updates that are allowed fit the stack of a thread.

use crate::support::{assert_same, compiler, context};
use bson::{Bson, Document, RawDocumentBuf, bson, doc};
use quorate_query::diff::{OplogUpdate, ToldAs, apply_oplog_update, oplog_update};
use quorate_query::value::{GroupKey, compare_documents};
use quorate_query::{Matcher, Projection, SortPattern, Update};

const DEEPEST: usize = 200;

fn nested(levels: usize, innermost: Bson) -> Document {
    let inner = (1..levels).fold(innermost, |inner, _| bson!({ "a": inner }));
    doc! { "a": inner }
}

fn path(levels: usize) -> String {
    vec!["a"; levels].join(".")
}

#[test]
fn deep_documents_compare_match_and_sort() {
    let document = nested(DEEPEST, bson!(1));
    let raw = RawDocumentBuf::try_from(&document).unwrap();
    assert!(compare_documents(&document, &raw).is_eq());
    let matcher = Matcher::parse(&doc! { path(DEEPEST): 1 }).unwrap();
    assert!(matcher.matches(&raw).unwrap() && matcher.matches(&document).unwrap());
    let equality = Matcher::parse(&document).unwrap();
    assert!(equality.matches(&raw).unwrap());
    let pattern = SortPattern::parse(&doc! { path(DEEPEST): 1 }).unwrap();
    assert_eq!(pattern.key(&raw).unwrap().values(), [bson!(1)]);
    let (left, right) = (Bson::Document(document.clone()), Bson::Document(document));
    assert_eq!(GroupKey::of(&left), GroupKey::of(&right));
}

#[test]
fn deep_arrays_match_deep_queries() {
    let array = (0..190).fold(bson!(1), |inner, _| bson!([inner]));
    let condition = (0..190).fold(bson!({ "$eq": 1 }), |inner, _| bson!({ "$elemMatch": inner }));
    let matcher = Matcher::parse(&doc! { "a": condition }).unwrap();
    assert!(matcher.matches(&doc! { "a": array }).unwrap());
    let not = (0..190).fold(bson!({ "$eq": 1 }), |inner, _| bson!({ "$not": inner }));
    let matcher = Matcher::parse(&doc! { "a": not }).unwrap();
    assert!(matcher.matches(&doc! { "a": 1 }).unwrap());
    let or = (0..190).fold(doc! { "a": 1 }, |inner, _| doc! { "$or": [inner] });
    let matcher = Matcher::parse(&or).unwrap();
    assert!(matcher.matches(&doc! { "a": 1 }).unwrap() && matcher.bounds("a", true).is_some());
    let schema = (0..190).fold(doc! { "bsonType": "int" }, |inner, _| {
        doc! { "properties": { "a": inner } }
    });
    let matcher = Matcher::parse(&doc! { "$jsonSchema": schema }).unwrap();
    assert!(matcher.matches(&nested(190, bson!(1))).unwrap());
    assert!(!matcher.matches(&nested(190, bson!("x"))).unwrap());
}

#[test]
fn deep_updates_deltas_and_projections() {
    let before = nested(DEEPEST, bson!(1));
    let update = Update::parse(&doc! { "$set": { path(DEEPEST): 2 } }.into()).unwrap();
    let after = update.apply(&before, &context()).unwrap().unwrap();
    assert_same(&after, &nested(DEEPEST, bson!(2)));
    let created = update.apply(&doc! {}, &context()).unwrap().unwrap();
    assert_same(&created, &after);
    let OplogUpdate::Entry(entry) = oplog_update(&before, &after, &ToldAs::default()) else {
        panic!("a change")
    };
    assert_same(&apply_oplog_update(&before, &entry).unwrap(), &after);
    let deep = Projection::parse_find_with(
        &nested(DEEPEST, bson!("$b")),
        &Matcher::match_all(),
        &compiler(),
    )
    .unwrap();
    assert_same(&deep.apply(&doc! { "b": 7 }, None).unwrap(), &nested(DEEPEST, bson!(7)));
}
