//! Arrays as sets: order and duplicates do not count, and equality is that of BSON values.

use std::collections::BTreeSet;

use bson::Bson;

use super::{Evaluated, Positional, exactly, metered, metered_exactly};
use crate::expression::operand::{Operand, is_true};
use crate::expression::{ExpressionError, cost, fail};
use crate::meter::{Charge, Kept, Meter, push, steps_to_copy};
use crate::sorting::sorted;
use crate::value::{GroupKey, compare};

pub(super) static OPERATORS: &[Positional] = &[
    metered(0, "$setUnion", union),
    metered(0, "$setIntersection", intersection),
    metered_exactly(2, "$setDifference", difference),
    metered(2, "$setEquals", equals),
    metered_exactly(2, "$setIsSubset", is_subset),
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

/// The different values of arrays. They are many small allocations, which take long to free.
type Keys = Kept<BTreeSet<GroupKey>>;

fn no_keys(meter: &Meter) -> Keys {
    Kept::new(BTreeSet::new(), meter)
}

fn keys(operator: &str, elements: &[Bson], charge: &mut Charge) -> Result<Keys, ExpressionError> {
    let mut keys = no_keys(charge.meter());
    for element in elements {
        charge.meter().step()?;
        let key = GroupKey::of(element);
        let size = key.size();
        if keys.insert(key) {
            charge.grow(operator, size)?;
        }
    }
    Ok(keys)
}

/// Adds the elements whose keys are not among these; each key joins them.
fn add_new(
    operator: &str,
    elements: &[Bson],
    keys: &mut Keys,
    added: &mut Vec<Bson>,
    charge: &mut Charge,
) -> Result<(), ExpressionError> {
    for element in elements {
        charge.meter().step()?;
        let key = GroupKey::of(element);
        let size = key.size();
        if keys.insert(key) {
            let bytes = cost(element)?;
            charge.grow(operator, size + bytes)?;
            charge.meter().steps(steps_to_copy(bytes))?;
            push(added, element.clone());
        }
    }
    Ok(())
}

fn in_order(elements: Vec<Bson>, meter: &Meter) -> Evaluated {
    Ok(Some(Bson::Array(sorted(elements, |left, right| compare(left, right), meter)?)))
}

fn union(args: &[Operand<'_>], meter: &Meter) -> Evaluated {
    let mut seen = no_keys(meter);
    let mut charge = meter.charge();
    let mut result = Kept::new(Vec::new(), meter);
    for arg in args {
        if arg.is_nullish() {
            return Ok(Some(Bson::Null));
        }
        let here = elements(arg, 17043, |kind| all_operands("$setUnion", kind))?;
        add_new("$setUnion", here, &mut seen, &mut result, &mut charge)?;
    }
    in_order(result.into_inner(), meter)
}

fn intersection(args: &[Operand<'_>], meter: &Meter) -> Evaluated {
    const NAME: &str = "$setIntersection";
    let mut common: Option<Kept<Vec<Bson>>> = None;
    let mut charge = meter.charge();
    for arg in args {
        if arg.is_nullish() {
            return Ok(Some(Bson::Null));
        }
        let here = elements(arg, 17047, |kind| all_operands(NAME, kind))?;
        common = Some(match common {
            None => {
                let mut added = Kept::new(Vec::new(), meter);
                add_new(NAME, here, &mut no_keys(meter), &mut added, &mut charge)?;
                added
            }
            Some(common) => {
                let here = keys(NAME, here, &mut charge)?;
                let mut both = Kept::new(Vec::new(), meter);
                let mut rest = common.into_inner().into_iter();
                for element in rest.by_ref() {
                    if let Err(error) = meter.step() {
                        meter.leave(rest);
                        return Err(error);
                    }
                    if here.contains(&GroupKey::of(&element)) {
                        push(&mut both, element);
                    }
                }
                both
            }
        });
    }
    in_order(common.map(Kept::into_inner).unwrap_or_default(), meter)
}

fn difference(args: &[Operand<'_>], meter: &Meter) -> Evaluated {
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
    let mut charge = meter.charge();
    let mut seen = keys("$setDifference", right, &mut charge)?;
    let mut kept = Kept::new(Vec::new(), meter);
    add_new("$setDifference", left, &mut seen, &mut kept, &mut charge)?;
    Ok(Some(Bson::Array(kept.into_inner())))
}

fn equals(args: &[Operand<'_>], meter: &Meter) -> Evaluated {
    let mut first: Option<Keys> = None;
    let mut charge = meter.charge();
    let mut equal = true;
    for arg in args {
        let here = elements(arg, 17044, |kind| all_operands("$setEquals", kind))?;
        let here = keys("$setEquals", here, &mut charge)?;
        match &first {
            None => first = Some(here),
            Some(first) => equal &= **first == *here,
        }
    }
    Ok(Some(Bson::Boolean(equal)))
}

fn is_subset(args: &[Operand<'_>], meter: &Meter) -> Evaluated {
    let message = |which: &str, kind: &str| {
        format!("both operands of $setIsSubset must be arrays. {which} argument is of type: {kind}")
    };
    let left = elements(&args[0], 17046, |kind| message("First", kind))?;
    let right = elements(&args[1], 17042, |kind| message("Second", kind))?;
    let mut charge = meter.charge();
    let left = keys("$setIsSubset", left, &mut charge)?;
    let right = keys("$setIsSubset", right, &mut charge)?;
    Ok(Some(Bson::Boolean(left.is_subset(&right))))
}
