//! `$bitAnd`, `$bitOr`, `$bitXor` and `$bitNot`, on ints and longs only.

use bson::Bson;

use super::arithmetic::narrow;
use super::{Evaluated, Positional, at_least, exactly};
use crate::expression::operand::Operand;
use crate::meter::Meter;
use crate::typed::Typed;

pub(super) static OPERATORS: &[Positional] = &[
    at_least(0, "$bitAnd", |args, _| combine("$bitAnd", args, -1, |a, b| a & b)),
    at_least(0, "$bitOr", |args, _| combine("$bitOr", args, 0, |a, b| a | b)),
    at_least(0, "$bitXor", |args, _| combine("$bitXor", args, 0, |a, b| a ^ b)),
    exactly(1, "$bitNot", not).null_if_any(),
];

fn combine(
    name: &str,
    args: &[Operand<'_>],
    identity: i64,
    step: fn(i64, i64) -> i64,
) -> Evaluated {
    let (mut result, mut all_int) = (identity, true);
    for arg in args {
        match arg.get() {
            None | Some(Bson::Null | Bson::Undefined) => return Ok(Some(Bson::Null)),
            Some(Bson::Int32(number)) => result = step(result, i64::from(*number)),
            Some(Bson::Int64(number)) => {
                all_int = false;
                result = step(result, *number);
            }
            Some(_) => {
                refuse!(
                    TYPE_MISMATCH,
                    "{name} only supports int and long, not: {}.",
                    arg.type_name()
                );
            }
        }
    }
    Ok(Some(narrow(result, all_int).into()))
}

fn not(args: &[Operand<'_>], _: &Meter) -> Evaluated {
    match args[0].get() {
        Some(Bson::Int32(number)) => Ok(Some(Bson::Int32(!number))),
        Some(Bson::Int64(number)) => Ok(Some(Bson::Int64(!number))),
        _ => Err(args[0].wrong_type(28765, "$bitNot only supports int and long, not")),
    }
}
