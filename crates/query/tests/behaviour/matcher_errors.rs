//! Which queries are refused, and with which code.

use crate::support::{refusal, regex};
use bson::{Bson, Document, bson, doc};
use quorate_query::Matcher;

#[test]
fn unknown_operators_are_bad_values() {
    assert_eq!(refusal(doc! { "a": { "$foo": 1 } }), 2);
    assert_eq!(refusal(doc! { "$foo": 1 }), 2);
    assert_eq!(refusal(doc! { "a": { "$gt": 1, "b": 2 } }), 2);
    // The first key decides: this is a value, not a list of operators.
    assert!(Matcher::parse(&doc! { "a": { "b": 2, "$gt": 1 } }).is_ok());
}

#[test]
fn logical_operators_want_arrays_of_documents() {
    for operator in ["$and", "$or", "$nor"] {
        assert_eq!(refusal(doc! { operator: 1 }), 2);
        assert_eq!(refusal(doc! { operator: [] }), 2);
        assert_eq!(refusal(doc! { operator: [1] }), 2);
    }
    assert_eq!(refusal(doc! { "a": { "$not": 1 } }), 2);
    assert_eq!(refusal(doc! { "a": { "$not": {} } }), 2);
    assert_eq!(refusal(doc! { "a": { "$not": { "b": 1 } } }), 2);
}

#[test]
fn malformed_arguments_are_refused() {
    for (operator, argument) in [
        ("$in", bson!(1)),
        ("$in", bson!([{ "$gt": 1 }])),
        ("$nin", bson!("x")),
        ("$all", bson!(1)),
        ("$all", bson!([{ "$gt": 1 }])),
        ("$all", bson!([{ "$elemMatch": {} }, 1])),
        ("$elemMatch", bson!(1)),
        ("$size", bson!("a")),
        ("$size", bson!(-1)),
        ("$size", bson!(1.5)),
        ("$mod", bson!(5)),
        ("$mod", bson!([1])),
        ("$mod", bson!([1, 2, 3])),
        ("$mod", bson!([0, 1])),
        ("$mod", bson!(["a", 1])),
        ("$mod", bson!([(f64::NAN), 1])),
        ("$ne", regex("a", "")),
        ("$gt", regex("a", "")),
        ("$gt", Bson::Undefined),
        ("$regex", bson!(1)),
        ("$options", bson!("i")),
        ("$type", bson!("nope")),
        ("$bitsAllSet", bson!("x")),
    ] {
        assert_eq!(
            refusal(doc! { "a": { operator: argument.clone() } }),
            2,
            "{operator}: {argument}"
        );
    }
    assert_eq!(refusal(doc! { "a": { "$bitsAllSet": -1 } }), 9);
    assert_eq!(refusal(doc! { "a": { "$bitsAllSet": [-1] } }), 2);
    assert_eq!(refusal(doc! { "a": { "$bitsAllSet": ["x"] } }), 2);
    assert_eq!(refusal(doc! { "a": { "$bitsAllSet": 1.5 } }), 9);
    assert_eq!(refusal(doc! { "a": { "$regex": "(" } }), 51091);
    assert_eq!(refusal(doc! { "a": { "$regex": "a", "$options": "q" } }), 51108);
    assert_eq!(refusal(doc! { "a": { "$regex": regex("a", "i"), "$options": "s" } }), 51075);
}

#[test]
fn features_that_do_not_exist_here_say_so() {
    for query in [
        doc! { "$where": "true" },
        doc! { "a": { "$geoWithin": {} } },
        doc! { "a": { "$near": [0, 0] } },
    ] {
        let error = Matcher::parse(&query).unwrap_err();
        assert_eq!(error.code().0, 2);
        assert!(error.message().contains("not supported"), "{error}");
    }
    for rate in [Bson::from(1.5), Bson::from(-1), Bson::from("1"), Bson::from(f64::NAN)] {
        assert_eq!(refusal(doc! { "$sampleRate": rate }), 2);
    }
    assert_eq!(refusal(doc! { "$text": { "$search": "x" } }), 27);
    assert_eq!(refusal(doc! { "a": { "$elemMatch": { "$expr": true } } }), 2);
}

#[test]
fn nesting_ends_at_the_limit_with_an_error() {
    let nested =
        |levels: usize| (0..levels).fold(doc! { "a": 1 }, |inner, _| doc! { "$and": [inner] });
    assert!(Matcher::parse(&nested(200)).is_ok());
    assert_eq!(refusal(nested(201)), 2);
    let mut not = doc! { "$eq": 1 };
    for _ in 0..300 {
        not = doc! { "$not": not };
    }
    assert_eq!(refusal(doc! { "a": not }), 2);
    assert_eq!(refusal(Document::from_iter([(vec!["a"; 300].join("."), Bson::Int32(1))])), 15);
}

#[test]
fn too_many_regular_expressions_are_refused() {
    let many: Vec<Bson> = (0..1_001).map(|n| regex(&format!("a{n}"), "")).collect();
    assert_eq!(refusal(doc! { "a": { "$in": many.clone() } }), 2);
    assert!(Matcher::parse(&doc! { "a": { "$in": many[..50].to_vec() } }).is_ok());
}
