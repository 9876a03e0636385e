//! Paths, variables, conditions, comparison, and what the parser refuses.

use bson::{Bson, DateTime, Timestamp, bson, doc};

use super::super::{Expression, MAX_EXPRESSION_DEPTH, ParseContext, Variables};
use super::{check, evaluate, missing, refuse, sample, try_evaluate};

#[test]
fn paths_are_read_in_each_document_of_an_array() {
    check(vec![
        (bson!("$a"), bson!(1)),
        (bson!("$b.c"), bson!(2)),
        (bson!("$b.d.e"), bson!([3, 4])),
        (bson!("$$ROOT.b.c"), bson!(2)),
        (bson!("$$CURRENT.a"), bson!(1)),
        (bson!("$list.x"), bson!([])),
        (bson!("$$ROOT"), Bson::Document(sample())),
        (bson!("plain"), bson!("plain")),
    ]);
    missing(vec![
        bson!("$absent"),
        bson!("$a.b"),
        bson!("$$REMOVE"),
        bson!("$$REMOVE.x"),
        bson!("$$NOW.x"),
    ]);
    // An index is not an array position.
    check(vec![(bson!("$list.0"), bson!([]))]);
}

#[test]
fn variables() {
    check(vec![
        (bson!("$$NOW"), Bson::DateTime(DateTime::from_millis(1_000))),
        (bson!("$$CLUSTER_TIME"), Bson::Timestamp(Timestamp { time: 9, increment: 1 })),
        (bson!("$$given"), bson!(5)),
        (
            bson!({ "$let": { "vars": { "x": 2, "y": "$a" }, "in": { "$add": ["$$x", "$$y"] } } }),
            bson!(3),
        ),
        (bson!({ "$let": { "vars": { "x": "$b" }, "in": "$$x.c" } }), bson!(2)),
        (bson!({ "$let": { "vars": { "CURRENT": "$b" }, "in": "$c" } }), bson!(2)),
        (
            bson!({ "$let": { "vars": { "x": 1 }, "in": { "$let": { "vars": { "x": 2, "y": "$$x" }, "in": ["$$x", "$$y"] } } } }),
            bson!([2, 1]),
        ),
        (bson!({ "$literal": "$a" }), bson!("$a")),
        (bson!({ "$literal": { "$add": [1] } }), bson!({ "$add": [1] })),
    ]);
    refuse(vec![
        (bson!("$$unknown"), 17276),
        (bson!({ "$let": { "vars": { "X": 1 }, "in": 1 } }), 16867),
        (bson!({ "$let": { "vars": { "x-y": 1 }, "in": 1 } }), 16868),
        (bson!({ "$let": { "in": 1 } }), 16876),
        (bson!({ "$let": { "vars": {} } }), 16877),
        (bson!({ "$let": 1 }), 16874),
        (bson!({ "$let": { "vars": {}, "in": 1, "z": 1 } }), 16875),
        (bson!("$$KEEP"), 17276),
    ]);
    check(vec![
        (bson!("$$USER_ROLES"), bson!([{ "_id": "shop.read", "role": "read", "db": "shop" }])),
        (bson!({ "$in": ["read", "$$USER_ROLES.role"] }), bson!(true)),
    ]);
    let without_user = Expression::parse(&bson!("$$USER_ROLES"), &ParseContext::new()).unwrap();
    assert_eq!(without_user.evaluate(&doc! {}, &Variables::new(7)).unwrap(), Some(bson!([])));
    let now = Expression::parse(&bson!("$$NOW"), &ParseContext::new()).unwrap();
    let error = now.evaluate(&doc! {}, &Variables::new(0)).unwrap_err();
    assert_eq!(error.code().0, 51144);
}

#[test]
fn objects_leave_missing_fields_out_and_arrays_hold_null() {
    assert_eq!(evaluate(bson!({ "x": "$a", "y": "$absent" })), bson!({ "x": 1 }));
    assert_eq!(evaluate(bson!(["$a", "$absent"])), bson!([1, Bson::Null]));
    assert_eq!(evaluate(bson!({ "x": { "y": "$a" } })), bson!({ "x": { "y": 1 } }));
}

#[test]
fn conditions_compute_only_what_they_need() {
    let broken = bson!({ "$divide": [1, { "$subtract": ["$a", 1] }] });
    check(vec![
        (bson!({ "$cond": [true, 1, broken.clone()] }), bson!(1)),
        (bson!({ "$cond": { "if": "$absent", "then": broken.clone(), "else": 2 } }), bson!(2)),
        (bson!({ "$ifNull": ["$nothing", "$absent", 7] }), bson!(7)),
        (bson!({ "$ifNull": ["$a", broken.clone()] }), bson!(1)),
        (bson!({ "$and": [false, broken.clone()] }), bson!(false)),
        (bson!({ "$or": [1, broken.clone()] }), bson!(true)),
        (bson!({ "$and": [] }), bson!(true)),
        (bson!({ "$or": [] }), bson!(false)),
        (bson!({ "$not": ["$absent"] }), bson!(true)),
        (
            bson!({ "$switch": { "branches": [{ "case": false, "then": broken.clone() }, { "case": "$a", "then": 2 }] } }),
            bson!(2),
        ),
        (
            bson!({ "$switch": { "branches": [{ "case": false, "then": 1 }], "default": 3 } }),
            bson!(3),
        ),
        (bson!({ "$convert": { "input": 1, "to": "int", "onError": broken.clone() } }), bson!(1)),
    ]);
    refuse(vec![
        (broken, 2),
        (bson!({ "$switch": { "branches": [{ "case": "$absent", "then": 1 }] } }), 40066),
        (bson!({ "$switch": { "branches": [] } }), 40068),
        (bson!({ "$switch": { "branches": [{ "case": 1 }] } }), 40065),
        (bson!({ "$switch": { "branches": 1 } }), 40061),
        (bson!({ "$switch": 1 }), 40060),
        (bson!({ "$cond": { "if": 1, "then": 1 } }), 17082),
        (bson!({ "$cond": { "if": 1, "then": 1, "else": 1, "z": 1 } }), 17083),
        (bson!({ "$cond": [1, 2] }), 16020),
        (bson!({ "$ifNull": [1] }), 1257300),
    ]);
}

#[test]
fn comparison_is_across_types() {
    check(vec![
        (bson!({ "$cmp": [1, 2] }), bson!(-1)),
        (bson!({ "$cmp": ["a", 1] }), bson!(1)),
        (bson!({ "$eq": [1, 1.0] }), bson!(true)),
        (bson!({ "$ne": ["$absent", Bson::Null] }), bson!(true)),
        (bson!({ "$lt": ["$absent", Bson::Null] }), bson!(true)),
        (bson!({ "$gt": [{ "x": 1 }, "z"] }), bson!(true)),
        (bson!({ "$gte": [[1, 2], [1]] }), bson!(true)),
        (bson!({ "$lte": [true, false] }), bson!(false)),
    ]);
}

#[test]
fn what_the_parser_refuses() {
    refuse(vec![
        (bson!({ "$foo": 1 }), 168),
        (bson!({ "$add": [1], "$subtract": [1, 2] }), 15983),
        (bson!({ "a.b": 1 }), 16405),
        (bson!({ "a": 1, "$add": [] }), 16410),
        (bson!("$"), 16872),
        (bson!("$a..b"), 15998),
        (bson!("$a."), 40353),
        (bson!("$a.$b"), 16410),
        (bson!("$$"), 16866),
    ]);
}

#[test]
fn nesting_is_bounded_and_the_deepest_allowed_works() {
    let nest =
        |levels: usize| (0..levels).fold(bson!("$a"), |inner, _| bson!({ "$add": [inner, 1] }));
    let deepest = MAX_EXPRESSION_DEPTH - 1;
    assert_eq!(evaluate(nest(deepest)), bson!(deepest as i32 + 1));
    refuse(vec![(nest(MAX_EXPRESSION_DEPTH), 15)]);
    let path = format!("${}", vec!["a"; 300].join("."));
    refuse(vec![(bson!(path), 15)]);
}

#[test]
fn every_kind_of_nesting_fits_the_stack() {
    type Wrap = fn(Bson) -> Bson;
    let wraps: [Wrap; 14] = [
        |inner| bson!([inner]),
        |inner| bson!({ "x": inner }),
        |inner| bson!({ "$cond": ["$a", inner, 1] }),
        |inner| bson!({ "$ifNull": [inner, 1] }),
        |inner| bson!({ "$and": [inner] }),
        |inner| bson!({ "$let": { "vars": { "v": inner }, "in": "$$v" } }),
        |inner| bson!({ "$let": { "vars": { "v": 1 }, "in": inner } }),
        |inner| bson!({ "$map": { "input": [1], "in": inner } }),
        |inner| bson!({ "$filter": { "input": [1], "cond": inner } }),
        |inner| bson!({ "$reduce": { "input": [1], "initialValue": 1, "in": inner } }),
        |inner| bson!({ "$switch": { "branches": [{ "case": "$a", "then": inner }] } }),
        |inner| bson!({ "$convert": { "input": inner, "to": "string" } }),
        |inner| bson!({ "$regexFind": { "input": inner, "regex": "$text", "options": "i" } }),
        |inner| bson!({ "$dateToString": { "date": "$nothing", "onNull": inner } }),
    ];
    for wrap in wraps {
        let nested = (0..MAX_EXPRESSION_DEPTH - 1).fold(bson!("$text"), |inner, _| wrap(inner));
        // Some refuse the value of the inner one; none may exhaust the stack.
        let _ = try_evaluate(nested.clone());
        let deeper = (0..MAX_EXPRESSION_DEPTH).fold(nested, |inner, _| wrap(inner));
        assert_eq!(try_evaluate(deeper).unwrap_err().code().0, 15);
    }
}

#[test]
fn constants_are_computed_once() {
    let context = ParseContext::new();
    let folded = Expression::parse(&bson!({ "$add": [1, { "$multiply": [2, 3] }] }), &context);
    assert_eq!(folded.unwrap().constant(), Some(&bson!(7)));
    let random = Expression::parse(&bson!([{ "$rand": {} }]), &context).unwrap();
    assert_eq!(random.constant(), None);
    let path = Expression::parse(&bson!("$a.b"), &context).unwrap();
    assert_eq!(path.constant(), None);
    // A constant that fails is refused only where it is reached.
    assert_eq!(
        try_evaluate(bson!({ "$cond": [true, 1, { "$divide": [1, 0] }] })),
        Ok(Some(bson!(1)))
    );
}
