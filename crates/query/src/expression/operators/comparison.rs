//! Comparison by the order of BSON values, and `$not`. Missing stands below null.

use std::cmp::Ordering;

use bson::Bson;

use super::{Evaluated, Positional, exactly};
use crate::expression::operand::Operand;

pub(super) static OPERATORS: &[Positional] = &[
    exactly(2, "$cmp", |args, _| Ok(Some(Bson::Int32(args[0].compare(&args[1]) as i32)))),
    exactly(2, "$eq", |args, _| test(args, Ordering::is_eq)),
    exactly(2, "$ne", |args, _| test(args, Ordering::is_ne)),
    exactly(2, "$gt", |args, _| test(args, Ordering::is_gt)),
    exactly(2, "$gte", |args, _| test(args, Ordering::is_ge)),
    exactly(2, "$lt", |args, _| test(args, Ordering::is_lt)),
    exactly(2, "$lte", |args, _| test(args, Ordering::is_le)),
    exactly(1, "$not", |args, _| Ok(Some(Bson::Boolean(!args[0].is_true())))),
];

fn test(args: &[Operand<'_>], holds: fn(Ordering) -> bool) -> Evaluated {
    Ok(Some(Bson::Boolean(holds(args[0].compare(&args[1])))))
}
