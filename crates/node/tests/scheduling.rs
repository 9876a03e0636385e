//! Which commands leave the thread that many clients share to others.

#![allow(clippy::unwrap_used, reason = "a panic is the report")]

mod support;

use bson::spec::BinarySubtype;
use bson::{Binary, Document, RawDocumentBuf, doc};
use quorate_node::{Command, Context, Outcome};
use support::context;

/// Some millions of steps for one document.
fn costly() -> Document {
    let inner =
        doc! {"$size": {"$filter": {"input": "$a", "as": "f", "cond": {"$eq": ["$$e", "$$f"]}}}};
    doc! {"$sum": {"$map": {"input": "$a", "as": "e", "in": inner}}}
}

fn command(mut body: Document) -> Command {
    body.insert("$db", "db");
    Command::received(&RawDocumentBuf::try_from(&body).unwrap(), Vec::new()).unwrap()
}

/// One document is enough to keep a thread busy for as long as a client likes.
#[test]
fn a_read_that_evaluates_for_long_is_run_again_aside() {
    let member = support::set::primary();
    member.insert("c", vec![doc! {"_id": 1, "a": (0..1_000).collect::<Vec<i32>>()}]);
    let short = Context { may_look_at: Some(256), ..context() };
    let is_long = |body: Document| {
        assert!(!member.node.is_long(&command(body.clone())), "it begins on the shared thread");
        matches!(member.node.run(&short, command(body)), Outcome::Long)
    };
    let filter = doc! {"$expr": {"$gt": [costly(), 0]}};
    assert!(is_long(doc! {"find": "c", "filter": filter.clone()}));
    assert!(is_long(doc! {"find": "c", "filter": {"_id": 1}, "projection": {"x": costly()}}));
    assert!(is_long(doc! {"count": "c", "query": filter.clone()}));
    assert!(is_long(doc! {"distinct": "c", "key": "_id", "query": filter.clone()}));
    assert!(!is_long(doc! {"find": "c", "filter": {"$expr": {"$gt": ["$_id", 0]}}}));
    // Aside it ends as it should.
    let found = doc! {"find": "c", "filter": filter, "projection": {"_id": 1}};
    assert_eq!(member.find(found), [doc! {"_id": 1}]);
}

/// A write, or a statement of a transaction, cannot be run twice.
#[test]
fn what_cannot_be_run_again_is_known_to_be_long_before_it_begins() {
    let member = support::set::primary();
    member.insert("c", vec![doc! {"_id": 1, "a": 1}]);
    let is_long = |body: Document| member.node.is_long(&command(body));
    let update = |query: Document, change: bson::Bson| {
        doc! {"update": "c", "updates": [{"q": query, "u": change}]}
    };
    let set = |value: bson::Bson| bson::Bson::from(vec![doc! {"$set": {"x": value}}]);
    assert!(is_long(update(doc! {"_id": 1}, set(costly().into()))));
    assert!(is_long(update(doc! {"_id": 1, "$expr": costly()}, doc! {"$set": {"x": 1}}.into())));
    assert!(!is_long(update(doc! {"_id": 1}, set(1.into()))));
    let modify = |value: bson::Bson| {
        doc! {"findAndModify": "c", "query": {"_id": 1}, "update": set(value)}
    };
    assert!(is_long(modify(costly().into())) && !is_long(modify(1.into())));
    assert!(!is_long(doc! {"insert": "c", "documents": [{"_id": 2, "text": "$map"}]}));
    member.ok(doc! {"create": "ruled", "validator": {"$expr": {"$gte": [costly(), 0]}}});
    assert!(is_long(doc! {"insert": "ruled", "documents": [{"_id": 2}]}));
    let id = Binary { subtype: BinarySubtype::Uuid, bytes: vec![1; 16] };
    let statement = |filter: Document| {
        doc! {
            "find": "c", "filter": filter, "lsid": {"id": id.clone()}, "txnNumber": 1_i64,
            "autocommit": false,
        }
    };
    assert!(is_long(statement(doc! {"a": 1})) && is_long(statement(doc! {})));
    assert!(is_long(statement(doc! {"_id": 1, "$expr": costly()})));
    assert!(!is_long(statement(doc! {"_id": 1})));
    assert!(!is_long(doc! {"find": "c"}), "it begins on the shared thread");
}
