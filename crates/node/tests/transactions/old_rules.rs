//! What a transaction may not do by the rules of its snapshot.

use super::*;

/// A collection whose options have changed since the snapshot is not written to as it was.
#[test]
fn a_transaction_does_not_write_by_rules_that_were_replaced() {
    let member = primary();
    insert(&member, "a", vec![doc! { "_id": 1 }]);
    insert(&member, "b", vec![doc! { "_id": 1, "x": 1 }]);
    let mut session = Session::start(&member, 1, 1);
    session.values("a", doc! {});
    plain(&member, doc! { "collMod": "b", "validator": { "x": { "$exists": true } } });
    session.fails(doc! { "insert": "b", "documents": [{ "_id": 2 }] }, 246, TRANSIENT);
    assert_eq!(find(&member, "b").len(), 1);
    // The next one knows the rule.
    let mut session = Session::start(&member, 1, 2);
    let reply = session.run(doc! { "insert": "b", "documents": [{ "_id": 2 }] });
    let errors = reply.get_array("writeErrors").unwrap();
    assert_eq!(errors[0].as_document().unwrap().get_i32("code").ok(), Some(121));
    // Nor does one that reads: what it has seen of the collection is no longer so.
    let mut session = Session::start(&member, 1, 3);
    session.values("a", doc! {});
    plain(&member, doc! { "collMod": "b", "validator": {} });
    session.fails(doc! { "find": "b" }, 246, TRANSIENT);
}

/// A tailable cursor shows what comes after the snapshot.
#[test]
fn a_transaction_opens_no_tailable_cursor() {
    let member = primary();
    plain(&member, doc! { "create": "capped", "capped": true, "size": 4096 });
    insert(&member, "capped", vec![doc! { "_id": 1 }]);
    let mut session = Session::start(&member, 1, 1);
    session.fails(doc! { "find": "capped", "tailable": true }, 72, &[]);
    let mut session = Session::start(&member, 1, 2);
    assert_eq!(session.values("capped", doc! {}), [doc! { "_id": 1 }]);
    plain(&member, doc! { "find": "capped", "tailable": true });
}
