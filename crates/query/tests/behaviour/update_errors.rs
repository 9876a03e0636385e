//! Which updates are refused, and with which code.

use crate::support::{apply, context, leaves, update_refusal};
use bson::{Bson, Document, bson, doc};
use quorate_query::diff::{OplogUpdate, ToldAs, apply_oplog_update, oplog_update};
use quorate_query::{Matcher, Projection, Update};

#[test]
fn unknown_operators_and_mixed_forms() {
    assert_eq!(update_refusal(doc! { "$foo": { "a": 1 } }, doc! {}), 9);
    assert_eq!(update_refusal(doc! { "$pushAll": { "a": [1] } }, doc! {}), 9);
    assert_eq!(update_refusal(doc! { "$set": { "a": 1 }, "b": 1 }, doc! {}), 9);
    assert_eq!(update_refusal(doc! { "$set": 1 }, doc! {}), 9);
    assert_eq!(update_refusal(doc! { "a": 1, "$set": { "b": 1 } }, doc! {}), 52);
    assert_eq!(Update::parse(&bson!(1)).unwrap_err().code().0, 9);
}

#[test]
fn paths_that_cannot_be() {
    assert_eq!(update_refusal(doc! { "$set": { "": 1 } }, doc! {}), 56);
    assert_eq!(update_refusal(doc! { "$set": { "a.": 1 } }, doc! {}), 56);
    assert_eq!(update_refusal(doc! { "$set": { ".a": 1 } }, doc! {}), 56);
    assert_eq!(update_refusal(doc! { "$set": { "a..b": 1 } }, doc! {}), 56);
    assert_eq!(update_refusal(doc! { "$set": { "$a": 1 } }, doc! {}), 52);
    assert_eq!(update_refusal(doc! { "$set": { "$[]": 1 } }, doc! {}), 2);
    assert_eq!(update_refusal(doc! { "$set": { "$": 1 } }, doc! {}), 2);
    assert_eq!(update_refusal(doc! { "$set": { "a.$.b.$": 1 } }, doc! {}), 2);
    let long = vec!["a"; 300].join(".");
    assert_eq!(update_refusal(doc! { "$set": { long: 1 } }, doc! {}), 15);
}

#[test]
fn paths_that_do_not_fit_the_document() {
    assert_eq!(update_refusal(doc! { "$set": { "a.b": 1 } }, doc! { "a": 5 }), 28);
    assert_eq!(update_refusal(doc! { "$set": { "a.b": 1 } }, doc! { "a": Bson::Null }), 28);
    assert_eq!(update_refusal(doc! { "$set": { "a.b": 1 } }, doc! { "a": [1] }), 28);
    assert_eq!(update_refusal(doc! { "$inc": { "a.b.c": 1 } }, doc! { "a": { "b": "x" } }), 28);
    assert_eq!(update_refusal(doc! { "$pull": { "a.b": 1 } }, doc! { "a": 5 }), 28);
    assert_eq!(update_refusal(doc! { "$pop": { "a.b": 1 } }, doc! { "a": 5 }), 28);
    assert_eq!(update_refusal(doc! { "$set": { "a.$[]": 1 } }, doc! {}), 2);
    assert_eq!(update_refusal(doc! { "$set": { "a.$[]": 1 } }, doc! { "a": 5 }), 2);
    assert_eq!(update_refusal(doc! { "$set": { "a.$": 1 } }, doc! { "a": [5] }), 2);
}

#[test]
fn conflicting_paths() {
    assert_eq!(update_refusal(doc! { "$set": { "a": 1 }, "$inc": { "a": 1 } }, doc! {}), 40);
    assert_eq!(update_refusal(doc! { "$set": { "a": 1, "a.b": 1 } }, doc! {}), 40);
    assert_eq!(
        update_refusal(doc! { "$set": { "a.b.c": 1 }, "$unset": { "a.b": 1 } }, doc! {}),
        40
    );
    assert_eq!(update_refusal(doc! { "$rename": { "a": "b" }, "$set": { "a": 1 } }, doc! {}), 40);
    assert_eq!(update_refusal(doc! { "$rename": { "a": "b" }, "$set": { "b.c": 1 } }, doc! {}), 40);
    assert_eq!(update_refusal(doc! { "$set": { "a.0": 1, "a.$[]": 2 } }, doc! { "a": [1] }), 40);
    assert_eq!(
        update_refusal(doc! { "$setOnInsert": { "a": 1 }, "$set": { "a": 1 } }, doc! {}),
        40
    );
    leaves(doc! { "$set": { "a": 1, "ab": 1, "a-b": 1 } }, doc! { "a": 1, "ab": 1, "a-b": 1 });
}

#[test]
fn the_identifier_cannot_change() {
    let before = doc! { "_id": 1, "a": 3 };
    assert_eq!(update_refusal(doc! { "$set": { "_id": 2 } }, before.clone()), 66);
    assert_eq!(update_refusal(doc! { "$unset": { "_id": 1 } }, before.clone()), 66);
    assert_eq!(update_refusal(doc! { "$inc": { "_id": 1 } }, before.clone()), 66);
    assert_eq!(update_refusal(doc! { "$rename": { "_id": "b" } }, before.clone()), 66);
    assert_eq!(update_refusal(doc! { "$rename": { "a": "_id" } }, before.clone()), 66);
    assert_eq!(update_refusal(doc! { "$set": { "_id": 1.0 } }, before.clone()), 66);
    assert_eq!(update_refusal(doc! { "_id": 2 }, before), 66);
    assert_eq!(update_refusal(doc! { "$set": { "_id.x": 2 } }, doc! { "_id": { "x": 1 } }), 66);
}

#[test]
fn numbers_where_numbers_belong() {
    assert_eq!(update_refusal(doc! { "$inc": { "a": "x" } }, doc! {}), 14);
    assert_eq!(update_refusal(doc! { "$inc": { "a": 1 } }, doc! { "a": "x" }), 14);
    assert_eq!(update_refusal(doc! { "$inc": { "a": 1 } }, doc! { "a": Bson::Null }), 14);
    assert_eq!(update_refusal(doc! { "$mul": { "a": true } }, doc! {}), 14);
    assert_eq!(update_refusal(doc! { "$mul": { "a": 2 } }, doc! { "a": [] }), 14);
    assert_eq!(update_refusal(doc! { "$inc": { "a": 1 } }, doc! { "a": i64::MAX }), 2);
    assert_eq!(update_refusal(doc! { "$mul": { "a": 2 } }, doc! { "a": i64::MIN }), 2);
    assert_eq!(update_refusal(doc! { "$bit": { "a": { "and": 1 } } }, doc! { "a": 1.0 }), 2);
}

#[test]
fn malformed_arguments() {
    for (operator, argument) in [
        ("$bit", bson!(1)),
        ("$bit", bson!({})),
        ("$bit", bson!({ "nand": 1 })),
        ("$bit", bson!({ "and": 1.5 })),
        ("$currentDate", bson!(1)),
        ("$currentDate", bson!({ "$type": "year" })),
        ("$currentDate", bson!({ "x": 1 })),
        ("$rename", bson!(1)),
        ("$rename", bson!("a")),
        ("$rename", bson!("a.b")),
        ("$rename", bson!("b.$")),
        ("$push", bson!({ "$each": 1 })),
        ("$push", bson!({ "$each": [], "$foo": 1 })),
        ("$push", bson!({ "$each": [], "$slice": "x" })),
        ("$push", bson!({ "$each": [], "$slice": 1.5 })),
        ("$push", bson!({ "$each": [], "$position": "x" })),
        ("$push", bson!({ "$each": [], "$sort": 2 })),
        ("$push", bson!({ "$each": [], "$sort": {} })),
        ("$push", bson!({ "$each": [], "$sort": { "a": "x" } })),
        ("$addToSet", bson!({ "$each": [], "$slice": 1 })),
        ("$pullAll", bson!(1)),
        ("$pull", bson!({ "$foo": 1 })),
    ] {
        let code = update_refusal(doc! { operator: { "a": argument.clone() } }, doc! { "a": [] });
        assert_eq!(code, 2, "{operator}: {argument}");
    }
    assert_eq!(update_refusal(doc! { "$pop": { "a": 2 } }, doc! {}), 9);
    assert_eq!(update_refusal(doc! { "$pop": { "a": "x" } }, doc! {}), 9);
    assert_eq!(update_refusal(doc! { "$addToSet": { "a": { "$each": 1 } } }, doc! {}), 14);
}

#[test]
fn array_operators_want_arrays() {
    let before = doc! { "a": 5 };
    assert_eq!(update_refusal(doc! { "$push": { "a": 1 } }, before.clone()), 2);
    assert_eq!(update_refusal(doc! { "$addToSet": { "a": 1 } }, before.clone()), 2);
    assert_eq!(update_refusal(doc! { "$pull": { "a": 1 } }, before.clone()), 2);
    assert_eq!(update_refusal(doc! { "$pullAll": { "a": [1] } }, before.clone()), 2);
    assert_eq!(update_refusal(doc! { "$pop": { "a": 1 } }, before), 14);
}

#[test]
fn renames_stay_out_of_arrays() {
    let before = doc! { "a": [{ "x": 1 }], "b": 1 };
    assert_eq!(update_refusal(doc! { "$rename": { "a.0": "c" } }, before.clone()), 2);
    assert_eq!(update_refusal(doc! { "$rename": { "b": "a.0.y" } }, before.clone()), 2);
    assert_eq!(update_refusal(doc! { "$rename": { "a.-1": "c" } }, before.clone()), 28);
    assert_eq!(update_refusal(doc! { "$rename": { "b.c": "c" } }, before.clone()), 28);
    leaves(doc! { "$rename": { "a.9": "c" } }, before);
}

#[test]
fn growth_is_bounded() {
    assert_eq!(update_refusal(doc! { "$set": { "a.1500002": 1 } }, doc! { "a": [0] }), 34);
    assert_eq!(update_refusal(doc! { "$set": { "a.99999999999": 1 } }, doc! { "a": [] }), 34);
    let many: Document = (0..50).map(|n| (format!("a{n}.900000"), Bson::Int32(1))).collect();
    let before: Document = (0..50).map(|n| (format!("a{n}"), bson!([]))).collect();
    assert_eq!(update_refusal(doc! { "$set": many }, before), 17419);
    let long = "x".repeat(17 * 1024 * 1024);
    assert_eq!(update_refusal(doc! { "$set": { "a": long } }, doc! {}), 17419);
    let piece = "x".repeat(1024 * 1024);
    let before = doc! { "a": vec![0; 100_000] };
    assert_eq!(update_refusal(doc! { "$set": { "a.$[]": piece } }, before), 17419);
    let deep = (0..250).fold(bson!(1), |inner, _| bson!({ "a": inner }));
    assert_eq!(update_refusal(doc! { "$set": { "a": deep } }, doc! {}), 15);
}

#[test]
fn wide_input_takes_no_quadratic_time() {
    let names: Vec<String> = (0..30_000).map(|n| format!("f{n}")).collect();
    let wide: Document = names.iter().map(|name| (name.clone(), Bson::Int32(1))).collect();
    let narrow = apply(doc! { "$unset": wide.clone() }, &wide).unwrap();
    assert_eq!(narrow, Some(doc! {}));
    let reversed: Document =
        names.iter().rev().map(|name| (name.clone(), Bson::Int32(1))).collect();
    let OplogUpdate::Entry(entry) = oplog_update(&wide, &reversed, &ToldAs::default()) else {
        panic!("a change")
    };
    assert_eq!(apply_oplog_update(&wide, &entry).unwrap(), reversed);
    let projection = Projection::parse_find(&wide, &Matcher::match_all()).unwrap();
    assert_eq!(projection.apply(&wide, None).unwrap().len(), names.len());
    let points: Vec<Bson> = (0..30_000).map(Bson::Int32).collect();
    let both = Matcher::parse(
        &doc! { "a": { "$in": points.clone(), "$all": [1] }, "$and": [{ "a": { "$in": points.clone() } }] },
    );
    assert_eq!(both.unwrap().bounds("a", false).unwrap().intervals().len(), 1);
    let branches: Vec<Bson> = points.iter().map(|n| Bson::from(doc! { "a": n })).collect();
    let or = Matcher::parse(&doc! { "$or": branches }).unwrap();
    assert_eq!(or.bounds("a", true).unwrap().intervals().len(), points.len());
    let upsert = Update::parse(&doc! { "$set": { "x": 1 } }.into()).unwrap();
    let inserted = upsert.upsert_document(&Matcher::parse(&wide).unwrap(), &context()).unwrap();
    assert_eq!(inserted.len(), names.len() + 1);
}
