//! Arrays as sets: order and duplicates do not count, and equality is that of BSON values.

use std::collections::BTreeSet;

use bson::Bson;

use super::{Evaluated, Positional, exactly, metered};
use crate::expression::operand::{Operand, is_true};
use crate::expression::{ExpressionError, cost, fail};
use crate::meter::Meter;
use crate::sorting::sorted;
use crate::value::{GroupKey, compare};

pub(super) static OPERATORS: &[Positional] = &[
    metered(0, "$setUnion", union),
    metered(0, "$setIntersection", intersection),
    exactly(2, "$setDifference", difference),
    metered(2, "$setEquals", equals),
    exactly(2, "$setIsSubset", is_subset),
    exactly(1, "$allElementsTrue", |args| {
        let elements = elements(&args[0], 17040, |kind| {
            format!("$allElementsTrue's argument must be an array, but is {kind}")
        })?;
        Ok(Some(Bson::Boolean(elements.iter().all(is_true))))
    }),
    exactly(1, "$anyElementTrue", |args| {
        let elements = elements(&args[0], 17041, |kind| {
            format!("$anyElementTrue's argument must be an array, but is {kind}")
        })?;
        Ok(Some(Bson::Boolean(elements.iter().any(is_true))))
    }),
];

fn elements<'a>(
    arg: &'a Operand<'_>,
    code: i32,
    message: impl Fn(&str) -> String,
) -> Result<&'a Vec<Bson>, ExpressionError> {
    arg.as_array().ok_or_else(|| fail(code, message(arg.type_name())))
}

fn all_operands(operator: &str, kind: &str) -> String {
    format!("All operands of {operator} must be arrays. One argument is of type: {kind}")
}

fn keys(elements: &[Bson]) -> BTreeSet<GroupKey> {
    elements.iter().map(GroupKey::of).collect()
}

fn in_order(elements: Vec<Bson>, meter: &Meter) -> Evaluated {
    Ok(Some(Bson::Array(sorted(elements, |left, right| compare(left, right), meter)?)))
}

fn union(args: &[Operand<'_>], meter: &Meter) -> Evaluated {
    let mut seen = BTreeSet::new();
    let mut charge = meter.charge();
    let mut result = Vec::new();
    for arg in args {
        if arg.is_nullish() {
            return Ok(Some(Bson::Null));
        }
        for element in elements(arg, 17043, |kind| all_operands("$setUnion", kind))? {
            meter.step()?;
            let key = GroupKey::of(element);
            let size = key.size();
            if seen.insert(key) {
                charge.grow("$setUnion", size + cost(element)?)?;
                result.push(element.clone());
            }
        }
    }
    in_order(result, meter)
}

fn intersection(args: &[Operand<'_>], meter: &Meter) -> Evaluated {
    let mut common: Option<Vec<Bson>> = None;
    for arg in args {
        if arg.is_nullish() {
            return Ok(Some(Bson::Null));
        }
        let here = elements(arg, 17047, |kind| all_operands("$setIntersection", kind))?;
        meter.steps(here.len() as u64)?;
        common = Some(match common {
            None => {
                let mut seen = BTreeSet::new();
                here.iter().filter(|element| seen.insert(GroupKey::of(*element))).cloned().collect()
            }
            Some(common) => {
                let here = keys(here);
                common.into_iter().filter(|element| here.contains(&GroupKey::of(element))).collect()
            }
        });
    }
    in_order(common.unwrap_or_default(), meter)
}

fn difference(args: &[Operand<'_>]) -> Evaluated {
    if args.iter().any(Operand::is_nullish) {
        return Ok(Some(Bson::Null));
    }
    let message = |which: &str, kind: &str| {
        format!(
            "both operands of $setDifference must be arrays. {which} argument is of type: {kind}"
        )
    };
    let left = elements(&args[0], 17048, |kind| message("First", kind))?;
    let right = elements(&args[1], 17049, |kind| message("Second", kind))?;
    let mut seen = keys(right);
    let kept = left.iter().filter(|element| seen.insert(GroupKey::of(*element))).cloned();
    Ok(Some(Bson::Array(kept.collect())))
}

fn equals(args: &[Operand<'_>], meter: &Meter) -> Evaluated {
    let mut first: Option<BTreeSet<GroupKey>> = None;
    let mut equal = true;
    for arg in args {
        let here = elements(arg, 17044, |kind| all_operands("$setEquals", kind))?;
        meter.steps(here.len() as u64)?;
        let here = keys(here);
        match &first {
            None => first = Some(here),
            Some(first) => equal &= *first == here,
        }
    }
    Ok(Some(Bson::Boolean(equal)))
}

fn is_subset(args: &[Operand<'_>]) -> Evaluated {
    let message = |which: &str, kind: &str| {
        format!("both operands of $setIsSubset must be arrays. {which} argument is of type: {kind}")
    };
    let left = elements(&args[0], 17046, |kind| message("First", kind))?;
    let right = elements(&args[1], 17042, |kind| message("Second", kind))?;
    Ok(Some(Bson::Boolean(keys(left).is_subset(&keys(right)))))
}
