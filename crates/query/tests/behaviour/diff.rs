//! Deltas as the oplog carries them.

use crate::support::assert_same;
use bson::{Document, doc};
use quorate_query::diff::{OplogUpdate, ToldAs, apply_oplog_update, changed_fields, oplog_update};

fn entry(before: &Document, after: &Document) -> Document {
    match oplog_update(before, after, &ToldAs::default()) {
        OplogUpdate::Entry(entry) => entry,
        OplogUpdate::Unchanged => panic!("{before} and {after} differ"),
    }
}

/// A field that makes documents long enough for a delta to pay.
fn long() -> String {
    "x".repeat(300)
}

fn delta(mut before: Document, mut after: Document, wanted: Document) {
    before.insert("pad", long());
    after.insert("pad", long());
    let (before_first, after_first) = (pad_first(before), pad_first(after));
    let found = entry(&before_first, &after_first);
    assert_same(&found, &doc! { "$v": 2, "diff": wanted });
    let once = apply_oplog_update(&before_first, &found).unwrap();
    assert_same(&once, &after_first);
    assert_same(&apply_oplog_update(&once, &found).unwrap(), &after_first);
}

fn pad_first(mut document: Document) -> Document {
    let pad = document.remove("pad").unwrap();
    let mut ordered = doc! { "pad": pad };
    ordered.extend(document);
    ordered
}

#[test]
fn fields_are_deleted_updated_and_inserted() {
    delta(doc! { "a": 1 }, doc! { "a": 2 }, doc! { "u": { "a": 2 } });
    delta(doc! { "a": 1, "b": 2 }, doc! { "b": 2 }, doc! { "d": { "a": false } });
    delta(doc! { "a": 1 }, doc! { "a": 1, "b": 2 }, doc! { "i": { "b": 2 } });
    delta(
        doc! { "a": 1, "b": 2, "c": 3 },
        doc! { "b": 5, "c": 3, "d": 4 },
        doc! { "d": { "a": false }, "u": { "b": 5 }, "i": { "d": 4 } },
    );
    delta(doc! { "a": 1 }, doc! { "a": 1.0 }, doc! { "u": { "a": 1.0 } });
}

#[test]
fn a_new_order_is_a_new_insertion() {
    delta(doc! { "a": 1, "b": 2 }, doc! { "b": 2, "a": 1 }, doc! { "i": { "a": 1 } });
    delta(
        doc! { "a": 1, "b": 2, "c": 3 },
        doc! { "c": 3, "a": 1, "b": 9 },
        doc! { "i": { "a": 1, "b": 9 } },
    );
}

#[test]
fn embedded_documents_have_deltas_of_their_own() {
    delta(
        doc! { "s": { "p": long(), "a": 1, "t": { "p": long(), "b": 1 } } },
        doc! { "s": { "p": long(), "a": 2, "t": { "p": long() } } },
        doc! { "ss": { "u": { "a": 2 }, "st": { "d": { "b": false } } } },
    );
    delta(doc! { "s": { "a": 1 } }, doc! { "s": {} }, doc! { "u": { "s": {} } });
}

#[test]
fn arrays_have_deltas_by_position() {
    delta(
        doc! { "l": [long(), 1, { "p": long(), "a": 1 }] },
        doc! { "l": [long(), 2, { "p": long(), "a": 2 }, 7] },
        doc! { "sl": { "a": true, "u1": 2, "s2": { "u": { "a": 2 } }, "u3": 7 } },
    );
    delta(
        doc! { "l": [long(), 1, 2, 3] },
        doc! { "l": [long(), 9] },
        doc! { "sl": { "a": true, "l": 2, "u1": 9 } },
    );
    delta(doc! { "l": [1, 2] }, doc! { "l": [] }, doc! { "u": { "l": [] } });
}

#[test]
fn a_delta_that_does_not_pay_is_a_replacement() {
    let (before, after) = (doc! { "_id": 1, "a": long() }, doc! { "_id": 1, "b": 1 });
    let found = entry(&before, &after);
    assert_same(&found, &after);
    assert_same(&apply_oplog_update(&before, &found).unwrap(), &after);
    assert_eq!(oplog_update(&before, &before, &ToldAs::default()), OplogUpdate::Unchanged);
}

/// Stored documents begin with `_id`, and deltas with `$v`.
#[test]
fn a_whole_document_may_have_the_fields_of_a_delta() {
    let before = doc! { "_id": 1, "a": 1 };
    let after = doc! { "_id": 1, "$v": 2, "diff": { "d": { "a": false } } };
    let found = entry(&before, &after);
    assert_same(&found, &after);
    assert_same(&apply_oplog_update(&before, &found).unwrap(), &after);
    assert_eq!(changed_fields(&found), None, "any field may have changed");
    let delta = doc! { "$v": 2, "diff": { "d": { "a": false } } };
    assert_eq!(changed_fields(&delta), Some(vec!["a"]));
}

#[test]
fn a_delta_skips_what_a_later_version_no_longer_has() {
    let entry = doc! { "$v": 2, "diff": { "u": { "a": 2 }, "ss": { "u": { "x": 1 } }, "sl": { "a": true, "u0": 1 } } };
    let later = doc! { "_id": 1, "s": 5, "l": { "k": 1 } };
    let found = apply_oplog_update(&later, &entry).unwrap();
    assert_same(&found, &doc! { "_id": 1, "s": 5, "l": { "k": 1 }, "a": 2 });
}

#[test]
fn malformed_entries_are_refused() {
    let code = |entry: Document| apply_oplog_update(&doc! { "l": [1] }, &entry).is_err();
    assert!(code(doc! { "$v": 1, "diff": {} }));
    assert!(code(doc! { "$v": 2 }));
    assert!(code(doc! { "$v": 2, "diff": { "x": 1 } }));
    assert!(code(doc! { "$v": 2, "diff": { "sl": { "a": true, "l": -1 } } }));
    assert!(code(doc! { "$v": 2, "diff": { "sl": { "a": true, "l": i64::MAX } } }));
    assert!(code(doc! { "$v": 2, "diff": { "sl": { "a": true, "u99999999999": 1 } } }));
    assert!(code(doc! { "$v": 2, "diff": { "sl": { "a": true, "ux": 1 } } }));
}

/// What the oplog says of an update.
fn told(update: bson::Bson, before: Document) -> Document {
    let compiler =
        quorate_query::expression::Compiler::new(quorate_query::expression::Variables::new(0));
    let update = quorate_query::Update::parse_with(&update, &[], &compiler).unwrap();
    let context = crate::support::context().with_array_index(Some(1));
    let change = update.change(&before, &context).unwrap().unwrap();
    let OplogUpdate::Entry(entry) = oplog_update(&before, &change.after, &change.told_as) else {
        panic!("a change");
    };
    assert_same(&apply_oplog_update(&before, &entry).unwrap(), &change.after);
    entry
}

#[test]
fn a_replacement_is_told_whole_however_little_it_changes() {
    let before = doc! { "_id": 1, "a": 1, "pad": long() };
    let replacement = doc! { "a": 2, "pad": long() };
    let after = doc! { "_id": 1, "a": 2, "pad": long() };
    assert_same(&told(replacement.into(), before), &after);
}

#[test]
fn operators_are_told_by_the_places_they_touched() {
    let diff = |update: Document, before: Document| {
        told(update.into(), before).get_document("diff").unwrap().clone()
    };
    let nested = doc! { "_id": 1, "m": { "x": 1, "y": 2, "z": 3 } };
    assert_same(
        &diff(doc! { "$set": { "a.1": 2 } }, doc! { "_id": 1, "a": { "1": 1 } }),
        &doc! { "sa": { "u": { "1": 2 } } },
    );
    assert_same(
        &diff(doc! { "$unset": { "m.x": 1, "m.y": 1 } }, nested.clone()),
        &doc! { "sm": { "d": { "x": false, "y": false } } },
    );
    assert_same(
        &diff(doc! { "$set": { "m": { "x": 1, "y": 2, "z": 4 } } }, nested.clone()),
        &doc! { "u": { "m": { "x": 1, "y": 2, "z": 4 } } },
    );
    assert_same(&diff(doc! { "$unset": { "m": 1 } }, nested), &doc! { "d": { "m": false } });
    assert_same(
        &diff(doc! { "$set": { "n.o": 1 } }, doc! { "_id": 1 }),
        &doc! { "i": { "n": { "o": 1 } } },
    );
    let array = doc! { "_id": 1, "a": [{ "b": 1 }, { "b": 2 }] };
    assert_same(
        &diff(doc! { "$set": { "a.$.b": 5 } }, array.clone()),
        &doc! { "sa": { "a": true, "s1": { "u": { "b": 5 } } } },
    );
    assert_same(
        &diff(doc! { "$push": { "a": 1 } }, array.clone()),
        &doc! { "sa": { "a": true, "u2": 1 } },
    );
    assert_same(
        &diff(doc! { "$rename": { "a": "c" } }, doc! { "_id": 1, "a": 1, "b": 2 }),
        &doc! { "d": { "a": false }, "i": { "c": 1 } },
    );
}

#[test]
fn a_pipeline_is_told_as_shortly_as_can_be() {
    let before = doc! { "_id": 1, "a": [1, 2, 3, long()], "pad": long() };
    let shrunk = bson::bson!([{ "$set": { "a": { "$slice": ["$a", 2] } } }]);
    let expected = doc! { "$v": 2, "diff": { "u": { "a": [1, 2] } } };
    let shorter = doc! { "$v": 2, "diff": { "sa": { "a": true, "l": 2 } } };
    let found = told(shrunk, before);
    assert!(found == expected || found == shorter, "{found}");
}
