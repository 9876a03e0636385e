//! What the update operators on single values do.

use crate::support::{apply, assert_same, compiler, context, date, decimal, leaves, updates};
use bson::{Bson, Document, Timestamp, bson, doc};
use quorate_query::Update;

#[test]
fn set_replaces_or_creates() {
    updates(doc! { "$set": { "a": 2 } }, doc! { "_id": 1, "a": 1 }, doc! { "_id": 1, "a": 2 });
    updates(doc! { "$set": { "b": 2 } }, doc! { "a": 1 }, doc! { "a": 1, "b": 2 });
    updates(doc! { "$set": { "a.b.c": 1 } }, doc! {}, doc! { "a": { "b": { "c": 1 } } });
    updates(doc! { "$set": { "a.0": 1 } }, doc! {}, doc! { "a": { "0": 1 } });
    updates(doc! { "$set": { "a.0": 9 } }, doc! { "a": [1, 2] }, doc! { "a": [9, 2] });
    updates(
        doc! { "$set": { "a.3": 9 } },
        doc! { "a": [1] },
        doc! { "a": [1, Bson::Null, Bson::Null, 9] },
    );
    updates(doc! { "$set": { "a.1.b": 9 } }, doc! { "a": [1] }, doc! { "a": [1, { "b": 9 }] });
    updates(doc! { "$set": { "a": { "b": 1 } } }, doc! { "a": [1, 2] }, doc! { "a": { "b": 1 } });
    updates(doc! { "$set": { "a.$id": 5 } }, doc! { "a": {} }, doc! { "a": { "$id": 5 } });
}

#[test]
fn set_of_the_same_bytes_changes_nothing_but_another_type_does() {
    leaves(doc! { "$set": { "a": 1 } }, doc! { "a": 1 });
    leaves(doc! { "$set": { "a": { "b": [1] } } }, doc! { "a": { "b": [1] } });
    leaves(doc! { "$set": { "a": f64::NAN } }, doc! { "a": f64::NAN });
    leaves(doc! { "$set": {} }, doc! { "a": 1 });
    updates(doc! { "$set": { "a": 1.0 } }, doc! { "a": 1 }, doc! { "a": 1.0 });
    updates(
        doc! { "$set": { "a": { "y": 1, "x": 1 } } },
        doc! { "a": { "x": 1, "y": 1 } },
        doc! { "a": { "y": 1, "x": 1 } },
    );
}

#[test]
fn new_fields_come_in_order_of_name_and_number() {
    updates(
        doc! { "$set": { "b": 1, "a": 2 }, "$inc": { "B": 1 } },
        doc! { "_id": 1 },
        doc! { "_id": 1, "B": 1, "a": 2, "b": 1 },
    );
    updates(
        doc! { "$set": { "x.10": 1, "x.9": 2 } },
        doc! { "x": {} },
        doc! { "x": { "9": 2, "10": 1 } },
    );
}

#[test]
fn unset_removes_fields_and_empties_elements() {
    updates(doc! { "$unset": { "a": "" } }, doc! { "a": 1, "b": 2 }, doc! { "b": 2 });
    updates(
        doc! { "$unset": { "a.b": 1 } },
        doc! { "a": { "b": 1, "c": 2 } },
        doc! { "a": { "c": 2 } },
    );
    updates(doc! { "$unset": { "a.0": 1 } }, doc! { "a": [1, 2] }, doc! { "a": [Bson::Null, 2] });
    leaves(doc! { "$unset": { "z": 1, "a.b.c": 1 } }, doc! { "a": 1 });
    leaves(doc! { "$unset": { "a.5": 1, "a.x": 1 } }, doc! { "a": [1] });
}

#[test]
fn inc_adds_with_promotion() {
    updates(doc! { "$inc": { "a": 2 } }, doc! { "a": 1 }, doc! { "a": 3 });
    updates(doc! { "$inc": { "a": -2 } }, doc! {}, doc! { "a": -2 });
    updates(doc! { "$inc": { "a": 1 } }, doc! { "a": i32::MAX }, doc! { "a": 2_147_483_648_i64 });
    updates(doc! { "$inc": { "a": 1_i64 } }, doc! { "a": 1 }, doc! { "a": 2_i64 });
    updates(doc! { "$inc": { "a": 0.5 } }, doc! { "a": 1 }, doc! { "a": 1.5 });
    updates(
        doc! { "$inc": { "a": decimal("0.1") } },
        doc! { "a": 1 },
        doc! { "a": decimal("1.1") },
    );
    updates(doc! { "$inc": { "a.b": 1 } }, doc! { "a": {} }, doc! { "a": { "b": 1 } });
    updates(doc! { "$inc": { "a.1": 1 } }, doc! { "a": [1, 2] }, doc! { "a": [1, 3] });
    leaves(doc! { "$inc": { "a": 0 } }, doc! { "a": 5 });
}

#[test]
fn mul_multiplies_and_creates_zero() {
    updates(doc! { "$mul": { "a": 3 } }, doc! { "a": 2 }, doc! { "a": 6 });
    updates(doc! { "$mul": { "a": 3 } }, doc! {}, doc! { "a": 0 });
    updates(doc! { "$mul": { "a": 3_i64 } }, doc! {}, doc! { "a": 0_i64 });
    updates(doc! { "$mul": { "a": 1.5 } }, doc! {}, doc! { "a": 0.0 });
    updates(doc! { "$mul": { "a": decimal("2") } }, doc! {}, doc! { "a": decimal("0") });
    updates(doc! { "$mul": { "a": 2 } }, doc! { "a": i32::MAX }, doc! { "a": 4_294_967_294_i64 });
    leaves(doc! { "$mul": { "a": 1 } }, doc! { "a": 5 });
}

#[test]
fn min_and_max_use_the_order_of_all_types() {
    updates(doc! { "$min": { "a": 1 } }, doc! { "a": 5 }, doc! { "a": 1 });
    leaves(doc! { "$min": { "a": 9 } }, doc! { "a": 5 });
    updates(doc! { "$max": { "a": 9 } }, doc! { "a": 5 }, doc! { "a": 9 });
    leaves(doc! { "$max": { "a": 1 } }, doc! { "a": 5 });
    updates(doc! { "$min": { "a": 1 }, "$max": { "b": 2 } }, doc! {}, doc! { "a": 1, "b": 2 });
    updates(doc! { "$max": { "a": "x" } }, doc! { "a": 5 }, doc! { "a": "x" });
    updates(doc! { "$min": { "a": Bson::Null } }, doc! { "a": 5 }, doc! { "a": Bson::Null });
    leaves(doc! { "$max": { "a": 5.0 } }, doc! { "a": 5 });
    updates(doc! { "$max": { "a": date(9) } }, doc! { "a": date(5) }, doc! { "a": date(9) });
}

#[test]
fn rename_moves_a_field() {
    updates(
        doc! { "$rename": { "a": "b" } },
        doc! { "_id": 1, "a": 5, "c": 1 },
        doc! { "_id": 1, "c": 1, "b": 5 },
    );
    updates(
        doc! { "$rename": { "a": "b" } },
        doc! { "a": 5, "b": 1, "c": 2 },
        doc! { "b": 5, "c": 2 },
    );
    updates(
        doc! { "$rename": { "a.x": "b.y" } },
        doc! { "a": { "x": 5 } },
        doc! { "a": {}, "b": { "y": 5 } },
    );
    leaves(doc! { "$rename": { "z": "b" } }, doc! { "b": 1 });
    updates(
        doc! { "$rename": { "a": "c" }, "$set": { "b": 1 } },
        doc! { "a": 1 },
        doc! { "b": 1, "c": 1 },
    );
}

#[test]
fn current_date_writes_the_given_time() {
    updates(doc! { "$currentDate": { "a": true } }, doc! {}, doc! { "a": date(1_000) });
    updates(doc! { "$currentDate": { "a": false } }, doc! { "a": 1 }, doc! { "a": date(1_000) });
    updates(
        doc! { "$currentDate": { "a": { "$type": "date" } } },
        doc! {},
        doc! { "a": date(1_000) },
    );
    updates(
        doc! { "$currentDate": { "a.b": { "$type": "timestamp" } } },
        doc! {},
        doc! { "a": { "b": Timestamp { time: 7, increment: 3 } } },
    );
}

#[test]
fn bit_combines_integers() {
    updates(doc! { "$bit": { "a": { "and": 10 } } }, doc! { "a": 13 }, doc! { "a": 8 });
    updates(doc! { "$bit": { "a": { "or": 5 } } }, doc! { "a": 3 }, doc! { "a": 7 });
    updates(doc! { "$bit": { "a": { "xor": 5 } } }, doc! { "a": 1 }, doc! { "a": 4 });
    updates(doc! { "$bit": { "a": { "or": 5 } } }, doc! {}, doc! { "a": 5 });
    updates(doc! { "$bit": { "a": { "or": 5_i64 } } }, doc! { "a": 2 }, doc! { "a": 7_i64 });
    updates(doc! { "$bit": { "a": { "and": 6, "or": 1 } } }, doc! { "a": 13 }, doc! { "a": 5 });
}

#[test]
fn set_on_insert_waits_for_an_insert() {
    leaves(doc! { "$setOnInsert": { "a": 1 } }, doc! { "b": 1 });
    updates(doc! { "$setOnInsert": { "a": 1 }, "$set": { "b": 2 } }, doc! {}, doc! { "b": 2 });
}

#[test]
fn a_replacement_keeps_the_identifier() {
    updates(doc! { "b": 2 }, doc! { "_id": 1, "a": 1 }, doc! { "_id": 1, "b": 2 });
    updates(doc! { "b": 2, "_id": 1 }, doc! { "_id": 1, "a": 1 }, doc! { "_id": 1, "b": 2 });
    leaves(doc! { "_id": 1.0, "a": 1 }, doc! { "_id": 1, "a": 1 });
    updates(doc! {}, doc! { "_id": 1, "a": 1 }, doc! { "_id": 1 });
    updates(doc! { "a": { "$b": 1 } }, doc! { "_id": 1 }, doc! { "_id": 1, "a": { "$b": 1 } });
    updates(
        doc! { "t": Timestamp { time: 0, increment: 0 } },
        doc! { "_id": 1 },
        doc! { "_id": 1, "t": Timestamp { time: 7, increment: 3 } },
    );
}

#[test]
fn setting_the_same_identifier_is_allowed() {
    leaves(doc! { "$set": { "_id": 1 } }, doc! { "_id": 1 });
    updates(doc! { "$set": { "_id": 1, "a": 1 } }, doc! { "_id": 1 }, doc! { "_id": 1, "a": 1 });
}

#[test]
fn the_form_of_an_update_is_known() {
    let parse = |update: Bson| Update::parse_with(&update, &[], &compiler()).unwrap();
    assert!(parse(bson!({ "a": 1 })).is_replacement());
    assert!(!parse(bson!({ "$set": { "a": 1 } })).is_replacement());
    assert!(!parse(bson!([{ "$set": { "a": 1 } }])).is_replacement());
    assert!(parse(bson!({ "$set": { "a.$": 1 } })).needs_array_index());
    assert!(!parse(bson!({ "$set": { "a.$[]": 1 } })).needs_array_index());
}

fn pipeline(stages: Bson, before: Document) -> Result<Option<Document>, i32> {
    Update::parse_with(&stages, &[], &compiler())
        .and_then(|update| update.apply(&before, &context()))
        .map_err(|error| error.code().0)
}

#[test]
fn pipelines_compute_from_the_document() {
    let before = doc! { "_id": 1, "a": 5, "b": { "c": 6 }, "l": [{ "x": 1 }, 2] };
    let found = pipeline(bson!([{ "$set": { "d": "$b.c", "b.e": "$a" } }]), before.clone());
    let wanted = doc! { "_id": 1, "a": 5, "b": { "c": 6, "e": 5 }, "l": [{ "x": 1 }, 2], "d": 6 };
    assert_same(&found.unwrap().unwrap(), &wanted);
    let found = pipeline(
        bson!([{ "$unset": ["b", "l"] }, { "$addFields": { "a": "$missing" } }]),
        before.clone(),
    );
    assert_same(&found.unwrap().unwrap(), &doc! { "_id": 1 });
    let found = pipeline(bson!([{ "$replaceWith": "$b" }]), before.clone());
    assert_same(&found.unwrap().unwrap(), &doc! { "_id": 1, "c": 6 });
    let found = pipeline(bson!([{ "$replaceRoot": { "newRoot": "$b" } }]), before.clone());
    assert_same(&found.unwrap().unwrap(), &doc! { "_id": 1, "c": 6 });
    let found = pipeline(bson!([{ "$project": { "a": 1 } }]), before.clone());
    assert_same(&found.unwrap().unwrap(), &doc! { "_id": 1, "a": 5 });
    let found = pipeline(bson!([{ "$set": { "l.y": 3 } }]), before.clone());
    assert_same(
        found.unwrap().unwrap().get("l").map(|l| doc! { "l": l }).as_ref().unwrap(),
        &doc! { "l": [{ "x": 1, "y": 3 }, { "y": 3 }] },
    );
    assert_eq!(pipeline(bson!([]), before.clone()), Ok(None));
    assert_eq!(pipeline(bson!([{ "$set": { "_id": 2 } }]), before.clone()), Err(66));
    assert_eq!(pipeline(bson!([{ "$match": {} }]), before.clone()), Err(72));
    assert_eq!(pipeline(bson!([{ "$set": 1 }]), before.clone()), Err(40272));
    assert_eq!(pipeline(bson!([1]), before.clone()), Err(14));
    assert_eq!(pipeline(bson!([{}]), before.clone()), Err(40323));
    assert_eq!(pipeline(bson!([{ "$replaceWith": "$a" }]), before), Err(40228));
}

#[test]
fn a_refused_update_leaves_the_document_alone() {
    let before = doc! { "_id": 1, "a": 1, "s": "x" };
    let copy = before.clone();
    assert!(apply(doc! { "$set": { "a": 2 }, "$inc": { "s": 1 } }, &before).is_err());
    assert_same(&before, &copy);
}

#[test]
fn names_below_the_top_may_start_with_a_dollar_sign() {
    updates(doc! { "$set": { "a.$b": 1 } }, doc! { "a": {} }, doc! { "a": { "$b": 1 } });
    updates(doc! { "$inc": { "a.$b.c": 1 } }, doc! {}, doc! { "a": { "$b": { "c": 1 } } });
    updates(doc! { "$unset": { "a.$b": 1 } }, doc! { "a": { "$b": 1 } }, doc! { "a": {} });
}
