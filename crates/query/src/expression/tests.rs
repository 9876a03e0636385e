//! Behaviour of expressions, one file per family of operators.

mod arithmetic;
mod arrays;
mod dates;
mod language;
mod properties;
mod strings;
mod types;

use std::sync::Arc;

use bson::{Bson, DateTime, Document, Timestamp, doc};

use super::{Expression, ParseContext, UserRoles, Variables};
use crate::error::Result;

fn variables() -> Variables {
    Variables::new(7)
        .with_now(DateTime::from_millis(1_000))
        .with_cluster_time(Timestamp { time: 9, increment: 1 })
        .with_user_roles(Arc::new(UserRoles::new(vec![("read".to_owned(), "shop".to_owned())])))
        .with_variable("given", Bson::Int32(5))
}

fn sample() -> Document {
    doc! {
        "a": 1, "b": { "c": 2, "d": [{ "e": 3 }, { "e": 4 }, 5, [{ "e": 6 }], {}] },
        "text": "héllo", "list": [3, 1, 2], "nothing": Bson::Null, "long": 1_i64 << 40,
    }
}

fn try_evaluate(expression: Bson) -> Result<Option<Bson>> {
    let context = ParseContext::of(&variables());
    Expression::parse(&expression, &context)?.evaluate(&sample(), &variables())
}

/// The value of an expression that must have one.
#[track_caller]
fn evaluate(expression: impl Into<Bson>) -> Bson {
    let expression = expression.into();
    match try_evaluate(expression.clone()) {
        Ok(Some(value)) => value,
        other => panic!("{expression} gave {other:?}"),
    }
}

/// Checks each expression against its value, types included.
#[track_caller]
fn check(cases: Vec<(Bson, Bson)>) {
    for (expression, expected) in cases {
        let found = try_evaluate(expression.clone());
        assert_eq!(found, Ok(Some(expected)), "{expression}");
    }
}

/// Checks that each expression is refused with this code.
#[track_caller]
fn refuse(cases: Vec<(Bson, i32)>) {
    for (expression, code) in cases {
        match try_evaluate(expression.clone()) {
            Err(error) => assert_eq!(error.code().0, code, "{expression}: {error}"),
            Ok(value) => panic!("{expression} gave {value:?} instead of error {code}"),
        }
    }
}

/// Checks that each expression yields nothing at all.
#[track_caller]
fn missing(cases: Vec<Bson>) {
    for expression in cases {
        assert_eq!(try_evaluate(expression.clone()), Ok(None), "{expression}");
    }
}

fn decimal(text: &str) -> Bson {
    Bson::Decimal128(text.parse().unwrap())
}

fn date(millis: i64) -> Bson {
    Bson::DateTime(DateTime::from_millis(millis))
}
