//! Keys compare as their values do: random values against a plain comparison written from the rules.
//!
//! The reference here is slow and simple on purpose: numbers are compared by their full decimal
//! expansion, documents by walking them.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a panic is the report")]

use std::cmp::Ordering;
use std::str::FromStr;

use bson::spec::BinarySubtype;
use bson::{Binary, Bson, DateTime, Decimal128, Document, Regex, Timestamp, oid::ObjectId};
use proptest::prelude::*;
use quorate_storage::key::{FieldOrder, append_raw_value, append_value, class_of, value_key};

fn compare(left: &Bson, right: &Bson) -> Ordering {
    class_of(left).cmp(&class_of(right)).then_with(|| match (left, right) {
        (Bson::String(a) | Bson::Symbol(a), Bson::String(b) | Bson::Symbol(b)) => a.cmp(b),
        (Bson::JavaScriptCode(a), Bson::JavaScriptCode(b)) => a.cmp(b),
        (Bson::Document(a), Bson::Document(b)) => compare_documents(a, b),
        (Bson::Array(a), Bson::Array(b)) => {
            let differing = a.iter().zip(b).map(|(x, y)| compare(x, y)).find(|o| o.is_ne());
            differing.unwrap_or(a.len().cmp(&b.len()))
        }
        (Bson::Binary(a), Bson::Binary(b)) => (a.bytes.len(), u8::from(a.subtype), &a.bytes)
            .cmp(&(b.bytes.len(), u8::from(b.subtype), &b.bytes)),
        (Bson::ObjectId(a), Bson::ObjectId(b)) => a.bytes().cmp(&b.bytes()),
        (Bson::Boolean(a), Bson::Boolean(b)) => a.cmp(b),
        (Bson::DateTime(a), Bson::DateTime(b)) => a.timestamp_millis().cmp(&b.timestamp_millis()),
        (Bson::Timestamp(a), Bson::Timestamp(b)) => {
            (a.time, a.increment).cmp(&(b.time, b.increment))
        }
        (Bson::RegularExpression(a), Bson::RegularExpression(b)) => {
            (a.pattern.as_str(), a.options.as_str()).cmp(&(b.pattern.as_str(), b.options.as_str()))
        }
        (a, b) => match (expansion(a), expansion(b)) {
            (Some(a), Some(b)) => a.cmp(&b),
            _ => Ordering::Equal,
        },
    })
}

fn compare_documents(left: &Document, right: &Document) -> Ordering {
    for ((left_name, left), (right_name, right)) in left.iter().zip(right) {
        let order = class_of(left)
            .cmp(&class_of(right))
            .then_with(|| left_name.cmp(right_name))
            .then_with(|| compare(left, right));
        if order.is_ne() {
            return order;
        }
    }
    left.len().cmp(&right.len())
}

/// A number as sign, place of its first digit and digits; greater numbers compare greater.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Expansion {
    NotANumber,
    Infinite { positive: bool },
    Finite { negative: bool, place: i64, digits: String },
}

impl Expansion {
    fn rank(&self) -> u8 {
        match self {
            Self::NotANumber => 0,
            Self::Infinite { positive: false } => 1,
            Self::Finite { negative, digits, .. } if !digits.is_empty() => {
                2 + 2 * u8::from(!negative)
            }
            Self::Finite { .. } => 3,
            Self::Infinite { positive: true } => 5,
        }
    }

    fn cmp(&self, other: &Self) -> Ordering {
        self.rank().cmp(&other.rank()).then_with(|| match (self, other) {
            (
                Self::Finite { negative, place, digits },
                Self::Finite { place: other_place, digits: other_digits, .. },
            ) => {
                let magnitude = place.cmp(other_place).then_with(|| digits.cmp(other_digits));
                if *negative { magnitude.reverse() } else { magnitude }
            }
            _ => Ordering::Equal,
        })
    }

    /// Reads `-ddd.ddd` or `-d.dddE±x`.
    fn parse(text: &str) -> Self {
        let (negative, text) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        match text {
            "NaN" => return Self::NotANumber,
            "inf" | "Infinity" => return Self::Infinite { positive: !negative },
            _ => {}
        }
        let (mantissa, exponent) = text.split_once('E').unwrap_or((text, "0"));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let all = format!("{whole}{fraction}");
        let leading = all.bytes().take_while(|&byte| byte == b'0').count();
        let digits = all.trim_start_matches('0').trim_end_matches('0').to_owned();
        let exponent: i64 = exponent.parse().unwrap();
        let place = whole.len() as i64 - leading as i64 + exponent;
        Self::Finite { negative, place: if digits.is_empty() { 0 } else { place }, digits }
    }
}

fn expansion(value: &Bson) -> Option<Expansion> {
    match value {
        Bson::Int32(number) => Some(Expansion::parse(&number.to_string())),
        Bson::Int64(number) => Some(Expansion::parse(&number.to_string())),
        // 1,100 places hold every double exactly.
        Bson::Double(number) => Some(Expansion::parse(&format!("{number:.1100}"))),
        Bson::Decimal128(number) => Some(Expansion::parse(&number.to_string())),
        _ => None,
    }
}

fn number() -> impl Strategy<Value = Bson> {
    let near = prop_oneof![-20_i64..20, any::<i64>(), Just(i64::MAX), Just(1 << 53)];
    prop_oneof![
        (-20_i32..20).prop_map(Bson::Int32),
        any::<i32>().prop_map(Bson::Int32),
        near.clone().prop_map(Bson::Int64),
        near.prop_map(|number| Bson::Double(number as f64)),
        any::<f64>().prop_map(Bson::Double),
        (-40_i32..40).prop_map(|quarters| Bson::Double(f64::from(quarters) / 4.0)),
        (any::<i64>(), -30_i32..30).prop_map(|(digits, exponent)| decimal(digits, exponent)),
        (-30_i64..30, -3_i32..3).prop_map(|(digits, exponent)| decimal(digits, exponent)),
        Just(Bson::Double(f64::NAN)),
        Just(Bson::Decimal128(Decimal128::from_str("-Infinity").unwrap())),
    ]
}

fn decimal(digits: i64, exponent: i32) -> Bson {
    Bson::Decimal128(Decimal128::from_str(&format!("{digits}E{exponent}")).unwrap())
}

fn text() -> impl Strategy<Value = String> {
    "[\0\u{1}ab\u{ff}\u{ffff}]{0,4}"
}

/// Names and patterns are C strings.
fn name() -> impl Strategy<Value = String> {
    "[ab\u{ff}]{0,2}"
}

fn value() -> impl Strategy<Value = Bson> {
    let leaf = prop_oneof![
        3 => number(),
        1 => Just(Bson::Null),
        1 => Just(Bson::Undefined),
        1 => Just(Bson::MinKey),
        1 => Just(Bson::MaxKey),
        2 => text().prop_map(Bson::String),
        1 => text().prop_map(Bson::Symbol),
        1 => text().prop_map(Bson::JavaScriptCode),
        1 => (proptest::collection::vec(0_u8..3, 0..4), any::<bool>()).prop_map(|(bytes, user)| {
            let subtype =
                if user { BinarySubtype::UserDefined(0x80) } else { BinarySubtype::Generic };
            Bson::Binary(Binary { subtype, bytes })
        }),
        1 => (0_u8..3).prop_map(|byte| Bson::ObjectId(ObjectId::from_bytes([byte; 12]))),
        1 => any::<bool>().prop_map(Bson::Boolean),
        1 => prop_oneof![any::<i64>(), -2_i64..2]
            .prop_map(|millis| Bson::DateTime(DateTime::from_millis(millis))),
        1 => (0_u32..3, any::<u32>())
            .prop_map(|(time, increment)| Bson::Timestamp(Timestamp { time, increment })),
        1 => (name(), "[im]{0,1}").prop_map(|(pattern, options)| {
            Bson::RegularExpression(Regex {
                pattern: pattern.try_into().unwrap(),
                options: options.try_into().unwrap(),
            })
        }),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..3).prop_map(Bson::Array),
            proptest::collection::vec((name(), inner), 0..3)
                .prop_map(|fields| Bson::Document(fields.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2000, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn keys_compare_as_values_do(left in value(), right in value()) {
        let keys = value_key(&left).unwrap().cmp(&value_key(&right).unwrap());
        prop_assert_eq!(keys, compare(&left, &right), "{:?} against {:?}", left, right);
    }

    /// The planner takes bounds from the one and looks keys up by the other.
    #[test]
    fn keys_agree_with_the_order_of_queries(left in value(), right in value()) {
        let keys = value_key(&left).unwrap().cmp(&value_key(&right).unwrap());
        prop_assert_eq!(keys, quorate_query::value::compare(&left, &right), "{} {}", left, right);
    }

    #[test]
    fn numbers_compare_by_value_across_types(left in number(), right in number()) {
        let keys = value_key(&left).unwrap().cmp(&value_key(&right).unwrap());
        prop_assert_eq!(keys, compare(&left, &right), "{:?} against {:?}", left, right);
    }

    #[test]
    fn no_key_is_a_prefix_of_another(left in value(), right in value()) {
        let (left, right) = (value_key(&left).unwrap(), value_key(&right).unwrap());
        prop_assert!(left == right || !left.starts_with(&right));
    }

    #[test]
    fn compound_keys_compare_field_by_field(
        left in (value(), value()),
        right in (value(), value()),
    ) {
        let key = |(first, second): &(Bson, Bson)| {
            let mut key = Vec::new();
            append_value(&mut key, first, FieldOrder::Descending).unwrap();
            append_value(&mut key, second, FieldOrder::Ascending).unwrap();
            key
        };
        let expected =
            compare(&left.0, &right.0).reverse().then_with(|| compare(&left.1, &right.1));
        prop_assert_eq!(key(&left).cmp(&key(&right)), expected);
    }

    #[test]
    fn unparsed_values_have_the_same_keys(value in value()) {
        let document = Document::from_iter([("v".to_owned(), value.clone())]);
        let bytes = document.to_vec().unwrap();
        let raw = bson::RawDocument::from_bytes(&bytes).unwrap();
        let mut key = Vec::new();
        append_raw_value(&mut key, raw.get("v").unwrap().unwrap(), FieldOrder::Ascending).unwrap();
        prop_assert_eq!(key, value_key(&value).unwrap());
    }
}
