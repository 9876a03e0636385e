//! The document that an upsert inserts.

use crate::support::{assert_same, compiler, context, regex};
use bson::{Bson, Document, bson, doc};
use quorate_query::{Matcher, Update};

fn upsert(query: Document, update: impl Into<Bson>) -> Result<Document, i32> {
    let query = Matcher::parse(&query).unwrap();
    Update::parse_with(&update.into(), &[], &compiler())
        .and_then(|update| update.upsert_document(&query, &context()))
        .map_err(|error| error.code().0)
}

fn inserts(query: Document, update: impl Into<Bson>, wanted: Document) {
    assert_same(&upsert(query, update).unwrap(), &wanted);
}

#[test]
fn equalities_of_the_query_are_the_start() {
    inserts(doc! { "a": 1 }, doc! { "$set": { "b": 2 } }, doc! { "a": 1, "b": 2 });
    inserts(
        doc! { "a": { "$eq": 1 }, "c": { "$gt": 5 } },
        doc! { "$set": { "b": 2 } },
        doc! { "a": 1, "b": 2 },
    );
    inserts(
        doc! { "$and": [{ "a": 1 }, { "b.c": 2 }] },
        doc! { "$set": { "d": 3 } },
        doc! { "a": 1, "b": { "c": 2 }, "d": 3 },
    );
    inserts(doc! { "$or": [{ "a": 1 }] }, doc! { "$set": { "b": 2 } }, doc! { "a": 1, "b": 2 });
    inserts(doc! { "$or": [{ "a": 1 }, { "a": 2 }] }, doc! { "$set": { "b": 2 } }, doc! { "b": 2 });
    inserts(doc! { "a": { "$in": [1] } }, doc! { "$set": { "b": 2 } }, doc! { "a": 1, "b": 2 });
    inserts(doc! { "a": { "$in": [1, 2] } }, doc! { "$set": { "b": 2 } }, doc! { "b": 2 });
    inserts(doc! { "a": { "$all": [1] } }, doc! { "$set": { "b": 2 } }, doc! { "a": 1, "b": 2 });
    inserts(
        doc! { "a": regex("x", ""), "b": { "$not": { "$eq": 1 } } },
        doc! { "$set": { "c": 2 } },
        doc! { "c": 2 },
    );
    inserts(doc! { "a": { "b": 1 } }, doc! { "$inc": { "a.b": 1 } }, doc! { "a": { "b": 2 } });
}

#[test]
fn the_identifier_comes_first() {
    inserts(
        doc! { "a": 1, "_id": 7 },
        doc! { "$set": { "b": 2 } },
        doc! { "_id": 7, "a": 1, "b": 2 },
    );
    inserts(doc! { "a": 1 }, doc! { "$setOnInsert": { "_id": 9 } }, doc! { "_id": 9, "a": 1 });
    inserts(doc! { "_id": 7, "a": 1 }, doc! { "b": 2 }, doc! { "_id": 7, "b": 2 });
    inserts(doc! { "a": 1 }, doc! { "b": 2 }, doc! { "b": 2 });
    inserts(doc! { "a": 1 }, doc! { "b": 2, "_id": 5 }, doc! { "_id": 5, "b": 2 });
}

#[test]
fn set_on_insert_and_empty_updates_count() {
    inserts(
        doc! { "a": 1 },
        doc! { "$setOnInsert": { "b": 2 }, "$inc": { "n": 1 } },
        doc! { "a": 1, "b": 2, "n": 1 },
    );
    inserts(doc! { "a": 1 }, doc! { "$set": {} }, doc! { "a": 1 });
    inserts(doc! { "a": 1 }, doc! { "$unset": { "a": 1 } }, doc! {});
}

#[test]
fn pipelines_start_from_the_equalities_too() {
    inserts(
        doc! { "_id": 1, "a": 5 },
        bson!([{ "$set": { "b": "$a" } }]),
        doc! { "_id": 1, "a": 5, "b": 5 },
    );
}

#[test]
fn ambiguous_and_contradicting_queries_are_refused() {
    let set = doc! { "$set": { "z": 1 } };
    assert_eq!(upsert(doc! { "a": 1, "$and": [{ "a": 2 }] }, set.clone()), Err(54));
    assert_eq!(upsert(doc! { "a": {}, "a.b": 2 }, set.clone()), Err(54));
    assert_eq!(upsert(doc! { "_id": 1 }, doc! { "$set": { "_id": 2 } }), Err(66));
    assert_eq!(upsert(doc! { "_id": 1 }, doc! { "_id": 2 }), Err(66));
    assert_eq!(upsert(doc! { "_id": [1] }, set.clone()), Err(53));
    assert_eq!(upsert(doc! {}, doc! { "_id": regex("a", "") }), Err(53));
    assert_eq!(upsert(doc! { "a": 1 }, doc! { "$set": { "a.b": 1 } }), Err(28));
    assert_eq!(upsert(doc! { "a": 1 }, doc! { "$set": { "b.$": 1 } }), Err(2));
}

/// A document that is inserted may have such names; one that exists already gets none by this path.
#[test]
fn a_document_that_is_inserted_may_have_names_with_a_dollar_sign_at_the_top() {
    let update = doc! { "$set": { "phone": 1, "$hotel": 2 } };
    inserts(doc! { "a": 1 }, update.clone(), doc! { "a": 1, "$hotel": 2, "phone": 1 });
    inserts(doc! {}, doc! { "$setOnInsert": { "$hotel.$b": 2 } }, doc! { "$hotel": { "$b": 2 } });
    let update = Update::parse_with(&update.into(), &[], &compiler()).unwrap();
    let refused = update.apply(&doc! { "a": 1 }, &context()).unwrap_err();
    assert_eq!(refused.code().0, 52);
}
