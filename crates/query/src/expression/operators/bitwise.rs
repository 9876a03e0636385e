//! `$bitAnd`, `$bitOr`, `$bitXor` and `$bitNot`, on ints and longs only.

use bson::Bson;

use super::arithmetic::narrow;
use super::{Evaluated, Positional, exactly, variadic};
use crate::expression::fail;
use crate::expression::operand::Operand;

pub(super) static OPERATORS: &[Positional] = &[
    variadic("$bitAnd", |args| combine("$bitAnd", args, -1, |a, b| a & b)),
    variadic("$bitOr", |args| combine("$bitOr", args, 0, |a, b| a | b)),
    variadic("$bitXor", |args| combine("$bitXor", args, 0, |a, b| a ^ b)),
    exactly(1, "$bitNot", not),
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
                return Err(fail(
                    14,
                    format!("{name} only supports int and long, not: {}.", arg.type_name()),
                ));
            }
        }
    }
    Ok(Some(narrow(result, all_int).into()))
}

fn not(args: &[Operand<'_>]) -> Evaluated {
    match args[0].get() {
        None | Some(Bson::Null | Bson::Undefined) => Ok(Some(Bson::Null)),
        Some(Bson::Int32(number)) => Ok(Some(Bson::Int32(!number))),
        Some(Bson::Int64(number)) => Ok(Some(Bson::Int64(!number))),
        Some(_) => Err(fail(
            28765,
            format!("$bitNot only supports int and long, not {}", args[0].type_name()),
        )),
    }
}
