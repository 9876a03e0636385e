//! What each query operator matches.

use crate::support::{binary, check, date, decimal, regex};
use bson::{Bson, doc};
use quorate_query::Matcher;
use quorate_query::expression::{Compiler, Variables};

const NULL: Bson = Bson::Null;

#[test]
fn an_empty_query_matches_everything() {
    check(doc! {}, &[doc! {}, doc! { "a": 1 }], &[]);
    assert!(Matcher::parse(&doc! {}).unwrap().matches_everything());
    assert!(Matcher::match_all().matches_everything());
}

#[test]
fn equality_compares_numbers_by_value() {
    for one in [Bson::Int32(1), Bson::Int64(1), Bson::Double(1.0), decimal("1.0")] {
        check(
            doc! { "a": one },
            &[doc! { "a": 1 }, doc! { "a": 1_i64 }, doc! { "a": 1.0 }, doc! { "a": decimal("1") }],
            &[doc! { "a": "1" }, doc! { "a": true }, doc! { "a": 1.5 }, doc! {}],
        );
    }
}

#[test]
fn equality_looks_into_arrays() {
    check(
        doc! { "a": 2 },
        &[doc! { "a": [1, 2] }, doc! { "a": 2 }, doc! { "a": ["x", 2.0] }],
        &[doc! { "a": [[2]] }, doc! { "a": [] }, doc! { "a": [1, 3] }],
    );
}

#[test]
fn equality_with_an_array_means_the_array_or_an_element() {
    check(
        doc! { "a": [1, 2] },
        &[doc! { "a": [1, 2] }, doc! { "a": [[1, 2], 5] }],
        &[doc! { "a": [2, 1] }, doc! { "a": [1, 2, 3] }, doc! { "a": 1 }],
    );
    check(doc! { "a": [] }, &[doc! { "a": [] }, doc! { "a": [[]] }], &[doc! { "a": [1] }, doc! {}]);
}

#[test]
fn equality_with_a_document_is_exact_and_ordered() {
    check(
        doc! { "a": { "b": 1, "c": 2 } },
        &[doc! { "a": { "b": 1, "c": 2 } }, doc! { "a": [{ "b": 1.0, "c": 2 }] }],
        &[
            doc! { "a": { "c": 2, "b": 1 } },
            doc! { "a": { "b": 1 } },
            doc! { "a": { "b": 1, "c": 2, "d": 3 } },
        ],
    );
    check(doc! { "a": {} }, &[doc! { "a": {} }], &[doc! { "a": { "b": 1 } }, doc! {}]);
}

#[test]
fn a_database_reference_is_a_value() {
    let reference = doc! { "$ref": "c", "$id": 1 };
    check(doc! { "a": reference.clone() }, &[doc! { "a": reference }], &[doc! { "a": 1 }]);
}

#[test]
fn null_matches_null_and_missing() {
    check(
        doc! { "a": NULL },
        &[doc! {}, doc! { "a": NULL }, doc! { "a": [1, NULL] }, doc! { "a": Bson::Undefined }],
        &[doc! { "a": 1 }, doc! { "a": [] }, doc! { "a": false }, doc! { "a": {} }],
    );
}

#[test]
fn null_through_a_dotted_path_follows_the_documented_cases() {
    check(
        doc! { "a.b": NULL },
        &[
            doc! {},
            doc! { "a": NULL },
            doc! { "a": 4 },
            doc! { "a": {} },
            doc! { "a": { "b": NULL } },
            doc! { "a": [{ "b": 1 }, {}] },
            doc! { "a": [{ "b": NULL }] },
        ],
        &[
            doc! { "a": { "b": 1 } },
            doc! { "a": [] },
            doc! { "a": [1, 2] },
            doc! { "a": [{ "b": 1 }] },
            doc! { "a": { "b": [] } },
            doc! { "a": [[]] },
        ],
    );
}

#[test]
fn not_equal_is_the_exact_opposite() {
    check(
        doc! { "a": { "$ne": 2 } },
        &[doc! { "a": 1 }, doc! {}, doc! { "a": [1, 3] }, doc! { "a": "2" }],
        &[doc! { "a": 2 }, doc! { "a": [1, 2] }, doc! { "a": 2.0 }],
    );
    check(
        doc! { "a": { "$ne": NULL } },
        &[doc! { "a": 1 }, doc! { "a": [] }],
        &[doc! {}, doc! { "a": NULL }, doc! { "a": [NULL] }],
    );
}

#[test]
fn ranges_stay_within_their_type() {
    check(
        doc! { "a": { "$gt": 5 } },
        &[
            doc! { "a": 6 },
            doc! { "a": 5.1 },
            doc! { "a": decimal("5.0001") },
            doc! { "a": [1, 9] },
        ],
        &[doc! { "a": 5 }, doc! { "a": "6" }, doc! { "a": NULL }, doc! {}, doc! { "a": date(9) }],
    );
    check(
        doc! { "a": { "$lt": "m" } },
        &[doc! { "a": "a" }, doc! { "a": "" }, doc! { "a": ["z", "b"] }],
        &[doc! { "a": 1 }, doc! { "a": "m" }, doc! { "a": NULL }],
    );
    check(
        doc! { "a": { "$gte": date(5) } },
        &[doc! { "a": date(5) }, doc! { "a": date(6) }],
        &[
            doc! { "a": date(4) },
            doc! { "a": 6 },
            doc! { "a": Bson::Timestamp(bson::Timestamp { time: 9, increment: 0 }) },
        ],
    );
    check(
        doc! { "a": { "$lte": true } },
        &[doc! { "a": false }, doc! { "a": true }],
        &[doc! { "a": 0 }, doc! {}],
    );
}

#[test]
fn each_bound_of_a_range_may_be_met_by_another_element() {
    check(
        doc! { "a": { "$gt": 5, "$lt": 3 } },
        &[doc! { "a": [1, 9] }],
        &[doc! { "a": 4 }, doc! { "a": [4] }],
    );
}

#[test]
fn ranges_with_null_match_null_and_missing() {
    for operator in ["$gte", "$lte"] {
        check(
            doc! { "a": { operator: NULL } },
            &[doc! { "a": NULL }, doc! {}],
            &[doc! { "a": 0 }, doc! { "a": "" }],
        );
    }
    for operator in ["$gt", "$lt"] {
        check(
            doc! { "a": { operator: NULL } },
            &[],
            &[doc! { "a": NULL }, doc! {}, doc! { "a": 1 }],
        );
    }
}

#[test]
fn nan_equals_only_nan() {
    let nan = f64::NAN;
    check(
        doc! { "a": nan },
        &[doc! { "a": nan }, doc! { "a": decimal("NaN") }],
        &[doc! { "a": 0 }, doc! {}],
    );
    check(doc! { "a": { "$lt": nan } }, &[], &[doc! { "a": nan }, doc! { "a": -1 }]);
    check(doc! { "a": { "$gte": nan } }, &[doc! { "a": nan }], &[doc! { "a": 1 }]);
    check(doc! { "a": { "$lt": 5 } }, &[doc! { "a": f64::NEG_INFINITY }], &[doc! { "a": nan }]);
}

#[test]
fn min_and_max_key_bound_every_type() {
    check(
        doc! { "a": { "$lt": Bson::MaxKey } },
        &[doc! { "a": 1 }, doc! { "a": "x" }, doc! { "a": NULL }, doc! {}],
        &[doc! { "a": Bson::MaxKey }],
    );
    check(
        doc! { "a": { "$gt": Bson::MinKey } },
        &[doc! { "a": 1 }, doc! { "a": Bson::MaxKey }],
        &[doc! { "a": Bson::MinKey }],
    );
    check(
        doc! { "a": { "$gte": Bson::MaxKey } },
        &[doc! { "a": Bson::MaxKey }],
        &[doc! { "a": 1 }],
    );
    check(
        doc! { "a": Bson::MinKey },
        &[doc! { "a": Bson::MinKey }],
        &[doc! {}, doc! { "a": NULL }],
    );
}

#[test]
fn ranges_over_arrays_and_documents_compare_whole_values() {
    check(
        doc! { "a": { "$gt": [1, 2] } },
        &[doc! { "a": [1, 3] }, doc! { "a": [2] }, doc! { "a": [[9]] }],
        &[doc! { "a": [1, 2] }, doc! { "a": 5 }, doc! { "a": [1] }],
    );
    check(
        doc! { "a": { "$gte": { "b": 2 } } },
        &[doc! { "a": { "b": 2 } }, doc! { "a": { "b": 3 } }, doc! { "a": { "c": 0 } }],
        &[doc! { "a": { "b": 1 } }, doc! { "a": {} }],
    );
}

#[test]
fn in_matches_any_of_its_values() {
    check(
        doc! { "a": { "$in": [1, "x", [5, 6]] } },
        &[doc! { "a": 1.0 }, doc! { "a": "x" }, doc! { "a": [9, "x"] }, doc! { "a": [5, 6] }],
        &[doc! { "a": 2 }, doc! { "a": [5] }, doc! {}, doc! { "a": NULL }],
    );
    check(doc! { "a": { "$in": [] } }, &[], &[doc! {}, doc! { "a": 1 }, doc! { "a": [] }]);
}

#[test]
fn in_knows_null_and_regular_expressions() {
    check(
        doc! { "a": { "$in": [NULL, 7] } },
        &[doc! {}, doc! { "a": NULL }, doc! { "a": 7 }, doc! { "a": Bson::Undefined }],
        &[doc! { "a": 8 }, doc! { "a": [] }],
    );
    check(
        doc! { "a": { "$in": [regex("^b", "i"), "c"] } },
        &[doc! { "a": "Bx" }, doc! { "a": "c" }, doc! { "a": regex("^b", "i") }],
        &[doc! { "a": "ab" }, doc! { "a": 1 }],
    );
}

#[test]
fn nin_is_the_opposite_of_in() {
    check(
        doc! { "a": { "$nin": [1, NULL] } },
        &[doc! { "a": 2 }, doc! { "a": [] }, doc! { "a": [2, 3] }],
        &[doc! { "a": 1 }, doc! {}, doc! { "a": NULL }, doc! { "a": [1, 2] }],
    );
}

#[test]
fn logical_operators_combine_queries() {
    check(
        doc! { "$or": [{ "a": 1 }, { "b": 2 }] },
        &[doc! { "a": 1 }, doc! { "b": 2 }, doc! { "a": 1, "b": 2 }],
        &[doc! { "a": 2 }, doc! {}],
    );
    check(
        doc! { "$and": [{ "a": { "$gt": 1 } }, { "a": { "$lt": 5 } }] },
        &[doc! { "a": 3 }, doc! { "a": [0, 9] }],
        &[doc! { "a": 1 }, doc! { "a": 5 }],
    );
    check(
        doc! { "$nor": [{ "a": 1 }, { "b": 2 }] },
        &[doc! {}, doc! { "a": 2 }],
        &[doc! { "a": 1 }, doc! { "b": 2, "a": 5 }],
    );
    check(
        doc! { "a": 1, "$or": [{ "b": 1 }, { "$and": [{ "b": 2 }, { "c": 3 }] }] },
        &[doc! { "a": 1, "b": 1 }, doc! { "a": 1, "b": 2, "c": 3 }],
        &[doc! { "a": 1, "b": 2 }, doc! { "a": 2, "b": 1 }],
    );
}

#[test]
fn not_negates_over_the_whole_array() {
    check(
        doc! { "a": { "$not": { "$gt": 5 } } },
        &[doc! { "a": 5 }, doc! {}, doc! { "a": "x" }, doc! { "a": [1, 2] }],
        &[doc! { "a": 6 }, doc! { "a": [1, 6] }],
    );
    check(
        doc! { "a": { "$not": regex("^x", "") } },
        &[doc! { "a": "y" }, doc! {}],
        &[doc! { "a": "xy" }],
    );
    check(
        doc! { "a": { "$not": { "$regex": "^x" } } },
        &[doc! { "a": "y" }],
        &[doc! { "a": "xy" }],
    );
    check(
        doc! { "a": { "$not": { "$gt": 1, "$lt": 5 } } },
        &[doc! { "a": 5 }, doc! { "a": 1 }],
        &[doc! { "a": 3 }],
    );
    check(
        doc! { "a": { "$not": { "$not": { "$eq": 1 } } } },
        &[doc! { "a": 1 }],
        &[doc! { "a": 2 }],
    );
}

#[test]
fn exists_asks_for_the_field_not_its_value() {
    check(
        doc! { "a": { "$exists": true } },
        &[doc! { "a": NULL }, doc! { "a": [] }, doc! { "a": 0 }],
        &[doc! {}, doc! { "b": 1 }],
    );
    check(doc! { "a": { "$exists": false } }, &[doc! {}], &[doc! { "a": NULL }]);
    check(doc! { "a": { "$exists": 1 } }, &[doc! { "a": 1 }], &[doc! {}]);
    check(doc! { "a": { "$exists": 0 } }, &[doc! {}], &[doc! { "a": 1 }]);
    check(
        doc! { "a.b": { "$exists": true } },
        &[doc! { "a": { "b": 1 } }, doc! { "a": [{}, { "b": 1 }] }],
        &[doc! { "a": [] }, doc! { "a": [1] }, doc! { "a": 1 }, doc! {}],
    );
    check(doc! { "a.1": { "$exists": true } }, &[doc! { "a": [1, 2] }], &[doc! { "a": [1] }]);
}

#[test]
fn type_matches_by_name_number_and_list() {
    check(
        doc! { "a": { "$type": "string" } },
        &[doc! { "a": "x" }, doc! { "a": [1, "x"] }],
        &[doc! { "a": 1 }, doc! {}, doc! { "a": [1] }],
    );
    check(
        doc! { "a": { "$type": 16 } },
        &[doc! { "a": 1 }],
        &[doc! { "a": 1_i64 }, doc! { "a": 1.0 }],
    );
    check(
        doc! { "a": { "$type": "number" } },
        &[doc! { "a": 1 }, doc! { "a": 1.5 }, doc! { "a": decimal("1") }],
        &[doc! { "a": "1" }, doc! { "a": true }],
    );
    check(
        doc! { "a": { "$type": ["null", "bool"] } },
        &[doc! { "a": NULL }, doc! { "a": true }],
        &[doc! {}, doc! { "a": 1 }],
    );
    check(
        doc! { "a": { "$type": "array" } },
        &[doc! { "a": [] }, doc! { "a": [1] }, doc! { "a": [[1]] }],
        &[doc! { "a": 1 }],
    );
}

#[test]
fn regular_expressions_search_strings() {
    check(
        doc! { "a": regex("^ab", "") },
        &[doc! { "a": "abc" }, doc! { "a": ["x", "ab"] }, doc! { "a": regex("^ab", "") }],
        &[doc! { "a": "cab" }, doc! { "a": 1 }, doc! {}, doc! { "a": "AB" }],
    );
    check(
        doc! { "a": { "$regex": "b.d", "$options": "is" } },
        &[doc! { "a": "aB\nDe" }],
        &[doc! { "a": "bd" }],
    );
    check(
        doc! { "a": { "$regex": regex("x", "i"), "$ne": "X" } },
        &[doc! { "a": "axb" }],
        &[doc! { "a": "X" }, doc! { "a": "b" }],
    );
    check(
        doc! { "a": { "$options": "i", "$regex": regex("x", "") } },
        &[doc! { "a": "X" }],
        &[doc! { "a": "y" }],
    );
    check(
        doc! { "a": { "$eq": regex("x", "") } },
        &[doc! { "a": regex("x", "") }],
        &[doc! { "a": "x" }],
    );
}

#[test]
fn mod_truncates_towards_zero() {
    check(
        doc! { "a": { "$mod": [4, 0] } },
        &[
            doc! { "a": 0 },
            doc! { "a": 12 },
            doc! { "a": 8.9 },
            doc! { "a": decimal("4.5") },
            doc! { "a": [1, 4] },
        ],
        &[
            doc! { "a": 6 },
            doc! { "a": "4" },
            doc! { "a": f64::INFINITY },
            doc! { "a": f64::NAN },
            doc! {},
        ],
    );
    check(
        doc! { "a": { "$mod": [3, -2] } },
        &[doc! { "a": -5 }],
        &[doc! { "a": 5 }, doc! { "a": 1 }],
    );
    check(doc! { "a": { "$mod": [2.9, 1.9] } }, &[doc! { "a": 3 }], &[doc! { "a": 4 }]);
    check(doc! { "a": { "$mod": [-1, 0] } }, &[doc! { "a": i64::MIN }], &[]);
}

#[test]
fn size_counts_the_elements_of_an_array() {
    check(
        doc! { "a": { "$size": 2 } },
        &[doc! { "a": [1, 2] }, doc! { "a": [[], NULL] }],
        &[doc! { "a": [1] }, doc! { "a": "ab" }, doc! {}, doc! { "a": [[1, 2]] }],
    );
    check(doc! { "a": { "$size": 0 } }, &[doc! { "a": [] }], &[doc! {}, doc! { "a": [1] }]);
    check(doc! { "a.b": { "$size": 1 } }, &[doc! { "a": [{ "b": [1] }] }], &[doc! { "a": [1] }]);
}

#[test]
fn all_wants_every_value_somewhere() {
    check(
        doc! { "a": { "$all": [1, 2] } },
        &[doc! { "a": [2, 3, 1] }],
        &[doc! { "a": [1] }, doc! { "a": 1 }, doc! {}],
    );
    check(
        doc! { "a": { "$all": [1] } },
        &[doc! { "a": 1 }, doc! { "a": [1, 2] }],
        &[doc! { "a": 2 }],
    );
    check(
        doc! { "a": { "$all": [[1, 2]] } },
        &[doc! { "a": [1, 2] }, doc! { "a": [[1, 2]] }],
        &[doc! { "a": [2, 1] }],
    );
    check(
        doc! { "a": { "$all": [regex("^x", ""), "y"] } },
        &[doc! { "a": ["y", "xx"] }],
        &[doc! { "a": ["y"] }],
    );
    check(doc! { "a": { "$all": [] } }, &[], &[doc! { "a": [] }, doc! {}, doc! { "a": 1 }]);
    check(doc! { "a": { "$all": [NULL] } }, &[doc! {}, doc! { "a": [NULL] }], &[doc! { "a": 1 }]);
    check(
        doc! { "a": { "$all": [{ "$elemMatch": { "x": 1 } }, { "$elemMatch": { "y": 2 } }] } },
        &[doc! { "a": [{ "x": 1 }, { "y": 2 }] }, doc! { "a": [{ "x": 1, "y": 2 }] }],
        &[doc! { "a": [{ "x": 1 }] }],
    );
}

#[test]
fn elem_match_wants_one_element_to_satisfy_everything() {
    check(
        doc! { "a": { "$elemMatch": { "$gt": 1, "$lt": 5 } } },
        &[doc! { "a": [0, 3] }],
        &[doc! { "a": [0, 9] }, doc! { "a": 3 }, doc! { "a": [] }, doc! {}],
    );
    check(
        doc! { "a": { "$elemMatch": { "x": 1, "y": { "$gt": 2 } } } },
        &[doc! { "a": [{ "x": 1, "y": 3 }] }, doc! { "a": [5, { "x": [1], "y": [0, 9] }] }],
        &[doc! { "a": [{ "x": 1 }, { "y": 3 }] }, doc! { "a": { "x": 1, "y": 3 } }],
    );
    check(
        doc! { "a": { "$elemMatch": { "$ne": 1 } } },
        &[doc! { "a": [1, 2] }],
        &[doc! { "a": [1] }],
    );
    check(
        doc! { "a": { "$elemMatch": { "$or": [{ "x": 1 }, { "x": 2 }] } } },
        &[doc! { "a": [{ "x": 2 }] }],
        &[doc! { "a": [{ "x": 3 }] }],
    );
    check(
        doc! { "a": { "$elemMatch": { "$elemMatch": { "$eq": 1 } } } },
        &[doc! { "a": [[1]] }],
        &[doc! { "a": [1] }],
    );
    check(
        doc! { "a": { "$elemMatch": { "0": 1 } } },
        &[doc! { "a": [[1]] }],
        &[doc! { "a": [[2, 1]] }],
    );
    check(doc! { "a": { "$elemMatch": {} } }, &[doc! { "a": [{}] }], &[doc! { "a": [1] }]);
    check(
        doc! { "a": { "$not": { "$elemMatch": { "x": 1 } } } },
        &[doc! {}, doc! { "a": [{ "x": 2 }] }],
        &[doc! { "a": [{ "x": 1 }] }],
    );
}

#[test]
fn dotted_paths_reach_through_arrays_and_positions() {
    check(
        doc! { "a.b": 1 },
        &[doc! { "a": { "b": 1 } }, doc! { "a": [{ "b": 1 }] }, doc! { "a": [{ "b": [1] }] }],
        &[doc! { "a": [[{ "b": 1 }]] }, doc! { "a.b": 1 }, doc! { "a": 1 }],
    );
    check(
        doc! { "a.0": 1 },
        &[doc! { "a": [1, 2] }, doc! { "a": { "0": 1 } }, doc! { "a": [{ "0": 1 }] }],
        &[doc! { "a": [2, 1] }, doc! { "a": [[1]] }],
    );
    check(doc! { "a.1.b": 5 }, &[doc! { "a": [{}, { "b": 5 }] }], &[doc! { "a": [{ "b": 5 }] }]);
    check(
        doc! { "a.b.c": 1 },
        &[doc! { "a": [{ "b": [{ "c": 1 }] }] }],
        &[doc! { "a": [{ "c": 1 }] }],
    );
}

#[test]
fn bit_tests_on_numbers() {
    // 54 is 0b110110.
    let value = doc! { "a": 54 };
    check(
        doc! { "a": { "$bitsAllSet": [1, 5] } },
        std::slice::from_ref(&value),
        &[doc! { "a": 2 }],
    );
    check(doc! { "a": { "$bitsAllSet": 50 } }, std::slice::from_ref(&value), &[doc! { "a": 49 }]);
    check(
        doc! { "a": { "$bitsAnySet": [0, 1] } },
        std::slice::from_ref(&value),
        &[doc! { "a": 4 }],
    );
    check(
        doc! { "a": { "$bitsAllClear": [0, 3] } },
        std::slice::from_ref(&value),
        &[doc! { "a": 1 }],
    );
    check(
        doc! { "a": { "$bitsAnyClear": [1, 3] } },
        std::slice::from_ref(&value),
        &[doc! { "a": 10 }],
    );
    check(doc! { "a": { "$bitsAllSet": 0 } }, &[doc! { "a": 1 }], &[doc! { "a": "x" }, doc! {}]);
    check(doc! { "a": { "$bitsAnySet": 0 } }, &[], &[doc! { "a": 1 }]);
    check(doc! { "a": { "$bitsAllSet": [200] } }, &[doc! { "a": -1 }], &[doc! { "a": 1 }]);
    check(
        doc! { "a": { "$bitsAllSet": 1 } },
        &[doc! { "a": 3.0 }],
        &[doc! { "a": 3.5 }, doc! { "a": f64::NAN }],
    );
}

#[test]
fn bit_tests_on_binary_values() {
    let value = doc! { "a": binary(&[0b0000_0110, 0b1000_0000]) };
    check(
        doc! { "a": { "$bitsAllSet": [1, 2, 15] } },
        std::slice::from_ref(&value),
        &[doc! { "a": binary(&[6]) }],
    );
    check(doc! { "a": { "$bitsAllClear": [0, 100] } }, std::slice::from_ref(&value), &[]);
    check(
        doc! { "a": { "$bitsAnySet": binary(&[2]) } },
        std::slice::from_ref(&value),
        &[doc! { "a": binary(&[1]) }],
    );
}

#[test]
fn comments_and_constants() {
    check(
        doc! { "$comment": "why", "a": { "$eq": 1, "$comment": "x" } },
        &[doc! { "a": 1 }],
        &[doc! { "a": 2 }],
    );
    check(doc! { "$alwaysFalse": 1 }, &[], &[doc! {}]);
    check(doc! { "$alwaysTrue": 1 }, &[doc! {}], &[]);
}

#[test]
fn the_matched_array_position_is_known() {
    let position = |query: bson::Document, document: bson::Document| {
        Matcher::parse(&query)
            .unwrap()
            .matches_with_details(&document)
            .unwrap()
            .unwrap()
            .array_index
    };
    assert_eq!(position(doc! { "a": 3 }, doc! { "a": [1, 3] }), Some(1));
    assert_eq!(position(doc! { "a": 3 }, doc! { "a": 3 }), None);
    assert_eq!(position(doc! { "a.b": 3 }, doc! { "a": [{ "b": 1 }, { "b": [3] }] }), Some(1));
    assert_eq!(
        position(doc! { "a": { "$elemMatch": { "b": 1 } } }, doc! { "a": [5, { "b": 1 }] }),
        Some(1)
    );
    assert_eq!(position(doc! { "a": 1, "b": 2 }, doc! { "a": [1], "b": [0, 0, 2] }), Some(2));
    assert_eq!(position(doc! { "a.0": 1 }, doc! { "a": [1] }), None);
}

/// Documents by name, so that a case can say which of them a query finds.
fn null_samples() -> Vec<(&'static str, bson::Document)> {
    vec![
        ("missing", doc! {}),
        ("null", doc! { "a": NULL }),
        ("number", doc! { "a": 4 }),
        ("object", doc! { "a": {} }),
        ("object with text", doc! { "a": { "b": "x" } }),
        ("object with null", doc! { "a": { "b": NULL } }),
        ("empty", doc! { "a": [] }),
        ("array in array", doc! { "a": [[]] }),
        ("numbers", doc! { "a": [1, 4] }),
        ("numbers and null", doc! { "a": [1, NULL] }),
        ("objects", doc! { "a": [{ "b": 1 }, { "b": 3 }] }),
        ("objects, one null", doc! { "a": [{ "b": NULL }, { "b": 3 }] }),
        ("objects, one without", doc! { "a": [{ "b": 3 }, {}] }),
    ]
}

fn found(query: &bson::Document) -> Vec<&'static str> {
    null_samples()
        .into_iter()
        .filter(|(_, document)| crate::support::matches(query, document))
        .map(|(name, _)| name)
        .collect()
}

#[test]
fn null_means_the_same_in_every_operator() {
    let null = ["missing", "null", "numbers and null"];
    let dotted = [
        "missing", "null", "number", "object", "object with null", "objects, one null",
        "objects, one without",
    ];
    let in_element = ["array in array", "objects, one null", "objects, one without"];
    for condition in [doc! { "$eq": NULL }, doc! { "$in": [NULL, 75] }, doc! { "$gte": NULL }] {
        assert_eq!(found(&doc! { "a": condition.clone() }), null, "{condition}");
        assert_eq!(found(&doc! { "a.b": condition.clone() }), dotted, "{condition}");
        assert_eq!(found(&doc! { "a": { "$elemMatch": condition.clone() } }), ["numbers and null"]);
        assert_eq!(found(&doc! { "a": { "$elemMatch": { "b": condition } } }), in_element);
    }
    let everything = null_samples().len();
    for condition in [doc! { "$ne": NULL }, doc! { "$nin": [NULL, 75] }] {
        assert_eq!(found(&doc! { "a": condition.clone() }).len(), everything - null.len());
        assert_eq!(found(&doc! { "a.b": condition }).len(), everything - dotted.len());
    }
    assert_eq!(found(&doc! { "a": { "$exists": false } }), ["missing"]);
    assert_eq!(
        found(&doc! { "a.b": { "$exists": true } }),
        [
            "object with text", "object with null", "objects", "objects, one null",
            "objects, one without"
        ]
    );
}

/// Specification: the manual's page on `$sampleRate`.
#[test]
fn a_sample_rate_matches_by_chance() {
    let matched = |rate: f64| {
        let compiler = Compiler::new(Variables::new(7));
        let matcher = Matcher::parse_with(&doc! { "$sampleRate": rate }, &compiler).unwrap();
        (0..1_000).filter(|n| matcher.matches(&doc! { "_id": n }).unwrap()).count()
    };
    assert_eq!((matched(0.0), matched(1.0)), (0, 1_000));
    assert!((200..400).contains(&matched(0.3)), "{}", matched(0.3));
}
