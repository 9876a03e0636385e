//! Whatever the operator and whatever it is given, the answer is a value or an error.

use bson::{Bson, DateTime, Document, bson, doc};
use proptest::prelude::*;

use super::super::{Expression, ParseContext, operators};
use super::{sample, variables};

/// Operators that the parser knows itself.
const SPECIAL: &[(&str, &[&str])] = &[
    ("$and", &[]),
    ("$or", &[]),
    ("$cond", &["if", "then", "else"]),
    ("$ifNull", &[]),
    ("$let", &["vars", "in"]),
    ("$map", &["input", "in"]),
    ("$filter", &["input", "cond", "limit"]),
    ("$reduce", &["input", "initialValue", "in"]),
    ("$zip", &["inputs", "useLongestLength", "defaults"]),
    ("$sortArray", &["input", "sortBy"]),
    ("$getField", &["field", "input"]),
    ("$unsetField", &["field", "input"]),
    ("$convert", &["input", "to", "onError", "onNull"]),
    ("$regexFind", &["input", "regex", "options"]),
    ("$regexFindAll", &["input", "regex", "options"]),
    ("$switch", &["branches", "default"]),
    ("$literal", &[]),
    ("$rand", &[]),
];

fn odd_value() -> impl Strategy<Value = Bson> {
    prop_oneof![
        prop::sample::select(vec![
            Bson::Null,
            Bson::Undefined,
            Bson::MinKey,
            Bson::MaxKey,
            bson!(0),
            bson!(-1),
            bson!(i32::MIN),
            bson!(i64::MAX),
            bson!(i64::MIN),
            bson!(f64::NAN),
            bson!(f64::INFINITY),
            bson!(-0.0),
            bson!(1.5),
            super::decimal("NaN"),
            super::decimal("-Infinity"),
            super::decimal("9.999999999999999999999999999999999E+6144"),
            super::decimal("1E-6176"),
            Bson::DateTime(DateTime::from_millis(i64::MAX)),
            Bson::DateTime(DateTime::from_millis(i64::MIN)),
            Bson::DateTime(DateTime::from_millis(0)),
            Bson::Timestamp(bson::Timestamp { time: u32::MAX, increment: u32::MAX }),
            bson!("UTC"),
            bson!("Europe/Berlin"),
            bson!("day"),
            bson!("year"),
            bson!("week"),
            bson!("%Y-%m-%d %H:%M:%S %z"),
            bson!("é€𝄞"),
            bson!("(a*)*"),
            bson!("2017-01-01"),
            bson!("int"),
            bson!("$list"),
            bson!("$text"),
            bson!("$b.d"),
            bson!("$$ROOT"),
            bson!("$$NOW"),
            bson!("$absent"),
            bson!([[1, 2], [3]]),
            bson!([]),
            bson!({}),
            bson!({ "k": "x", "v": 1 }),
        ]),
        any::<i64>().prop_map(Bson::Int64),
        any::<i32>().prop_map(Bson::Int32),
        any::<f64>().prop_map(Bson::Double),
        any::<i64>().prop_map(|millis| Bson::DateTime(DateTime::from_millis(millis))),
        ".{0,6}".prop_map(Bson::String),
    ]
}

fn every_operator() -> Vec<(&'static str, Vec<&'static str>)> {
    let special = SPECIAL.iter().map(|(name, fields)| (*name, fields.to_vec()));
    operators::names().chain(special).collect()
}

fn expression() -> impl Strategy<Value = Bson> {
    odd_value().prop_recursive(3, 24, 4, |inner| {
        let operators = prop::sample::select(every_operator());
        (operators, prop::collection::vec(inner, 0..5), any::<bool>()).prop_map(
            |((name, fields), values, by_name)| {
                let argument = if by_name && !fields.is_empty() {
                    let named = fields.iter().map(|field| (*field).to_owned()).zip(values);
                    Bson::Document(named.collect::<Document>())
                } else {
                    Bson::Array(values)
                };
                let mut operator = Document::new();
                operator.insert(name, argument);
                Bson::Document(operator)
            },
        )
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases * 2, ..ProptestConfig::default() })]

    #[test]
    fn no_expression_panics(expression in expression()) {
        let context = ParseContext::of(&variables());
        if let Ok(parsed) = Expression::parse(&expression, &context) {
            let first = parsed.evaluate(&sample(), &variables());
            // NaN is not equal to itself, so the two are compared as text.
            let second = parsed.evaluate(&sample(), &variables());
            prop_assert_eq!(format!("{first:?}"), format!("{second:?}"));
        }
    }

    #[test]
    fn every_operator_survives_every_pair_of_odd_values(left in odd_value(), right in odd_value()) {
        let context = ParseContext::of(&variables());
        for (name, fields) in every_operator() {
            let mut list = Document::new();
            list.insert(name, bson!([left.clone(), right.clone()]));
            let mut named = Document::new();
            let values = [&left, &right, &left, &right, &left];
            let argument: Document =
                fields.iter().zip(values).map(|(field, value)| ((*field).to_owned(), value.clone())).collect();
            named.insert(name, argument);
            for operator in [list, named] {
                if let Ok(parsed) = Expression::parse(&Bson::Document(operator), &context) {
                    let _ = parsed.evaluate(&doc! { "list": [1] }, &variables());
                }
            }
        }
    }
}
