//! What a planner learns from a query.

use std::ops::Bound;

use crate::support::regex;
use bson::{Bson, Document, bson, doc};
use quorate_query::Matcher;
use quorate_query::matcher::Bounds;
use quorate_query::value::ValueRef;

fn bounds(query: Document, path: &str) -> Option<Bounds> {
    Matcher::parse(&query).unwrap().bounds(path, false)
}

fn points(query: Document, path: &str) -> Option<Vec<Bson>> {
    let bounds = bounds(query, path)?;
    bounds.point_count().map(|_| bounds.points().collect())
}

fn lower(bounds: &Bounds) -> Bound<Bson> {
    bounds.intervals()[0].lower().map(ValueRef::to_bson)
}

fn upper(bounds: &Bounds) -> Bound<Bson> {
    bounds.intervals()[0].upper().map(ValueRef::to_bson)
}

#[test]
fn equalities_are_points() {
    assert_eq!(points(doc! { "a": 5 }, "a"), Some(vec![bson!(5)]));
    assert_eq!(points(doc! { "a": { "$eq": "x" } }, "a"), Some(vec![bson!("x")]));
    assert_eq!(points(doc! { "a": { "$in": [3, 1, 1.0] } }, "a"), Some(vec![bson!(1), bson!(3)]));
    assert_eq!(
        points(doc! { "$or": [{ "a": 1 }, { "a": 2 }] }, "a"),
        Some(vec![bson!(1), bson!(2)])
    );
    assert_eq!(points(doc! { "$and": [{ "a": 1 }, { "b": 2 }] }, "b"), Some(vec![bson!(2)]));
    assert_eq!(points(doc! { "a": { "$in": [] } }, "a"), Some(vec![]));
}

#[test]
fn no_bounds_where_anything_can_match() {
    assert_eq!(bounds(doc! { "a": 5 }, "b"), None);
    assert_eq!(bounds(doc! { "a": { "$ne": 5 } }, "a"), None);
    assert_eq!(bounds(doc! { "$or": [{ "a": 1 }, { "b": 2 }] }, "a"), None);
    assert_eq!(bounds(doc! { "a": { "$exists": true } }, "a"), None);
    assert_eq!(bounds(doc! { "$nor": [{ "a": 1 }] }, "a"), None);
    assert_eq!(bounds(doc! { "a": { "$gt": [1] } }, "a"), None);
}

#[test]
fn ranges_stay_within_the_type() {
    let found = bounds(doc! { "a": { "$gt": 5 } }, "a").unwrap();
    let interval = &found.intervals()[0];
    assert_eq!(lower(&found), Bound::Excluded(bson!(5)));
    assert!(interval.contains(&Bson::Double(f64::INFINITY)) && !interval.contains(&bson!("")));
    let found = bounds(doc! { "a": { "$lte": "m" } }, "a").unwrap();
    let interval = &found.intervals()[0];
    assert!(interval.contains(&bson!("")) && interval.contains(&bson!("m")));
    assert!(!interval.contains(&bson!(1)) && !interval.contains(&bson!("n")));
}

#[test]
fn two_bounds_meet_unless_arrays_are_involved() {
    let query = doc! { "a": { "$gt": 5, "$lt": 9 } };
    let plain = bounds(query.clone(), "a").unwrap();
    assert_eq!(lower(&plain), Bound::Excluded(bson!(5)));
    assert_eq!(upper(&plain), Bound::Excluded(bson!(9)));
    let multikey = Matcher::parse(&query).unwrap().bounds("a", true).unwrap();
    assert!(
        multikey.intervals()[0].contains(&bson!(100))
            || multikey.intervals()[0].contains(&bson!(-100))
    );
    let one_element = doc! { "a": { "$elemMatch": { "$gt": 5, "$lt": 9 } } };
    let multikey = Matcher::parse(&one_element).unwrap().bounds("a", true).unwrap();
    assert_eq!(upper(&multikey), Bound::Excluded(bson!(9)));
    assert_eq!(points(doc! { "a": 1, "$and": [{ "a": 2 }] }, "a"), Some(vec![]));
}

#[test]
fn with_arrays_the_most_selective_predicate_wins() {
    let query = Matcher::parse(&doc! { "a": { "$gt": 0, "$in": [1, 2], "$eq": 7 } }).unwrap();
    assert_eq!(query.bounds("a", true).unwrap().points().collect::<Vec<_>>(), [bson!(7)]);
}

#[test]
fn elem_match_bounds_the_inner_path() {
    let query = doc! { "a": { "$elemMatch": { "b": 5, "c": 6 } } };
    assert_eq!(points(query.clone(), "a.b"), Some(vec![bson!(5)]));
    assert_eq!(points(query, "a"), None);
}

#[test]
fn compound_multikey_indexes_bound_one_field_per_array() {
    let query = Matcher::parse(&doc! { "x.a": 1, "x.b": 2, "y": 3 }).unwrap();
    let count = |multikey| {
        let bounds = query.compound_bounds(&["x.a", "x.b", "y"], multikey);
        bounds.iter().map(Option::is_some).collect::<Vec<_>>()
    };
    assert_eq!(count(false), [true, true, true]);
    assert_eq!(count(true), [true, false, true]);
}

#[test]
fn null_and_missing_rule_out_sparse_indexes() {
    assert!(bounds(doc! { "a": Bson::Null }, "a").unwrap().may_match_missing());
    assert!(bounds(doc! { "a": { "$in": [1, Bson::Null] } }, "a").unwrap().may_match_missing());
    assert!(!bounds(doc! { "a": 1 }, "a").unwrap().may_match_missing());
    assert!(!bounds(doc! { "a": { "$lt": 5 } }, "a").unwrap().may_match_missing());
}

#[test]
fn null_is_no_bound_through_a_position() {
    assert_eq!(bounds(doc! { "a.0": Bson::Null }, "a.0"), None);
    assert_eq!(points(doc! { "a.0": 5 }, "a.0"), Some(vec![bson!(5)]));
}

#[test]
fn arrays_are_found_by_their_first_element() {
    let found = bounds(doc! { "a": [1, 2] }, "a").unwrap();
    assert_eq!(found.points().collect::<Vec<_>>(), [bson!(1), bson!([1, 2])]);
    let found = bounds(doc! { "a": [] }, "a").unwrap();
    assert!(found.intervals()[0].contains(&Bson::Undefined));
}

#[test]
fn an_anchored_regular_expression_is_a_range() {
    let found = bounds(doc! { "a": regex("^ab", "") }, "a").unwrap();
    assert!(found.intervals()[0].contains(&bson!("abz")));
    assert!(!found.intervals()[0].contains(&bson!("ac")));
    let found = bounds(doc! { "a": regex("ab", "") }, "a").unwrap();
    assert!(found.intervals()[0].contains(&bson!("zzz")));
}

#[test]
fn partial_indexes_need_the_filter_to_follow() {
    let implies = |query: Document, filter: Document| {
        Matcher::parse(&query).unwrap().implies(&Matcher::parse(&filter).unwrap())
    };
    assert!(implies(doc! { "a": 6 }, doc! { "a": { "$gt": 5 } }));
    assert!(implies(doc! { "a": { "$gte": 6 } }, doc! { "a": { "$gt": 5 } }));
    assert!(implies(doc! { "a": 6, "b": 1 }, doc! { "a": { "$exists": true } }));
    assert!(implies(doc! { "a": { "$in": [6, 7] } }, doc! { "a": { "$in": [5, 6, 7] } }));
    assert!(implies(doc! { "a": { "$exists": true } }, doc! { "a": { "$exists": true } }));
    assert!(implies(doc! { "a": 1 }, doc! {}));
    assert!(!implies(doc! { "a": 5 }, doc! { "a": { "$gt": 5 } }));
    assert!(!implies(doc! { "b": 6 }, doc! { "a": { "$gt": 5 } }));
    assert!(!implies(doc! { "a": Bson::Null }, doc! { "a": { "$exists": true } }));
    assert!(!implies(doc! {}, doc! { "a": 1 }));
    assert!(!implies(doc! { "$or": [{ "a": 6 }, { "b": 1 }] }, doc! { "a": { "$gt": 5 } }));
}
