//! Deltas as the oplog carries them.

use crate::support::assert_same;
use bson::{Document, doc};
use quorate_query::diff::{OplogUpdate, apply_oplog_update, oplog_update};

fn entry(before: &Document, after: &Document) -> Document {
    match oplog_update(before, after) {
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
    assert_eq!(oplog_update(&before, &before), OplogUpdate::Unchanged);
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
