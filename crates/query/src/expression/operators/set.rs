//! Arrays as sets: order and duplicates do not count, and equality is that of BSON values.

use std::collections::BTreeSet;

use bson::Bson;

use super::{Evaluated, Positional, at_least, exactly};
use crate::error::Result;
use crate::expression::cost;
use crate::expression::operand::Operand;
use crate::meter::{Charge, Kept, Meter, push, steps_to_copy};
use crate::sorting::sorted;
use crate::typed::Typed;
use crate::value::{GroupKey, compare, is_truthy};

pub(super) static OPERATORS: &[Positional] = &[
    at_least(0, "$setUnion", union),
    at_least(0, "$setIntersection", intersection),
    exactly(2, "$setDifference", difference).null_if_any(),
    at_least(2, "$setEquals", equals),
    exactly(2, "$setIsSubset", is_subset),
    exactly(1, "$allElementsTrue", |args, _| {
        let wanted = "$allElementsTrue's argument must be an array, but is";
        Ok(Some(Bson::Boolean(args[0].array(17040, wanted)?.iter().all(is_truthy))))
    }),
    exactly(1, "$anyElementTrue", |args, _| {
        let wanted = "$anyElementTrue's argument must be an array, but is";
        Ok(Some(Bson::Boolean(args[0].array(17041, wanted)?.iter().any(is_truthy))))
    }),
];

/// The elements of one of any number of operands.
fn operand<'a>(operator: &str, code: i32, arg: &'a Operand<'_>) -> Result<&'a [Bson]> {
    arg.array(
        code,
        format_args!("All operands of {operator} must be arrays. One argument is of type:"),
    )
}

/// The elements of the two operands of an operator that takes two.
fn both<'a>(operator: &str, codes: [i32; 2], args: &'a [Operand<'_>]) -> Result<[&'a [Bson]; 2]> {
    let elements = |position: usize, which: &str| {
        args[position].array(
            codes[position],
            format_args!(
                "both operands of {operator} must be arrays. {which} argument is of type:"
            ),
        )
    };
    Ok([elements(0, "First")?, elements(1, "Second")?])
}

/// The different values of arrays. They are many small allocations, which take long to free.
type Keys = Kept<BTreeSet<GroupKey>>;

fn no_keys(meter: &Meter) -> Keys {
    Kept::new(BTreeSet::new(), meter)
}

fn keys(operator: &str, elements: &[Bson], charge: &mut Charge) -> Result<Keys> {
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
) -> Result<()> {
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
        let here = operand("$setUnion", 17043, arg)?;
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
        let here = operand(NAME, 17047, arg)?;
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
    let [left, right] = both("$setDifference", [17048, 17049], args)?;
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
        let here = operand("$setEquals", 17044, arg)?;
        let here = keys("$setEquals", here, &mut charge)?;
        match &first {
            None => first = Some(here),
            Some(first) => equal &= **first == *here,
        }
    }
    Ok(Some(Bson::Boolean(equal)))
}

fn is_subset(args: &[Operand<'_>], meter: &Meter) -> Evaluated {
    let [left, right] = both("$setIsSubset", [17046, 17042], args)?;
    let mut charge = meter.charge();
    let left = keys("$setIsSubset", left, &mut charge)?;
    let right = keys("$setIsSubset", right, &mut charge)?;
    Ok(Some(Bson::Boolean(left.is_subset(&right))))
}
