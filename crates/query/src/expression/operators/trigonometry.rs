//! Trigonometric and hyperbolic functions, in radians.

use super::arithmetic::{of_doubles, through_double, unary};
use super::{Evaluated, Positional, exactly};
use crate::expression::operand::Operand;
use crate::meter::Meter;
use crate::typed::Typed;

pub(super) static OPERATORS: &[Positional] = &[
    exactly(1, "$sin", |args, _| bounded("$sin", args, f64::sin, FINITE)),
    exactly(1, "$cos", |args, _| bounded("$cos", args, f64::cos, FINITE)),
    exactly(1, "$tan", |args, _| bounded("$tan", args, f64::tan, FINITE)),
    exactly(1, "$asin", |args, _| bounded("$asin", args, f64::asin, UNIT)),
    exactly(1, "$acos", |args, _| bounded("$acos", args, f64::acos, UNIT)),
    exactly(1, "$atan", |args, _| bounded("$atan", args, f64::atan, ANY)),
    exactly(1, "$sinh", |args, _| bounded("$sinh", args, f64::sinh, ANY)),
    exactly(1, "$cosh", |args, _| bounded("$cosh", args, f64::cosh, ANY)),
    exactly(1, "$tanh", |args, _| bounded("$tanh", args, f64::tanh, ANY)),
    exactly(1, "$asinh", |args, _| bounded("$asinh", args, f64::asinh, ANY)),
    exactly(1, "$acosh", |args, _| bounded("$acosh", args, f64::acosh, FROM_ONE)),
    exactly(1, "$atanh", |args, _| bounded("$atanh", args, f64::atanh, UNIT)),
    exactly(1, "$degreesToRadians", |args, _| {
        unary("$degreesToRadians", args, |number| Ok(through_double(number, f64::to_radians)))
    }),
    exactly(1, "$radiansToDegrees", |args, _| {
        unary("$radiansToDegrees", args, |number| Ok(through_double(number, f64::to_degrees)))
    }),
    exactly(2, "$atan2", atan2).null_if_any(),
];

/// The arguments for which a function is defined, ends included, and how they are written.
struct Domain {
    low: f64,
    high: f64,
    text: &'static str,
}

const ANY: Domain = Domain { low: f64::NEG_INFINITY, high: f64::INFINITY, text: "[-inf,inf]" };
const FINITE: Domain = Domain { low: f64::MIN, high: f64::MAX, text: "(-inf,inf)" };
const UNIT: Domain = Domain { low: -1.0, high: 1.0, text: "[-1,1]" };
const FROM_ONE: Domain = Domain { low: 1.0, high: f64::INFINITY, text: "[1,inf]" };

fn bounded(
    name: &str,
    args: &[Operand<'_>],
    function: fn(f64) -> f64,
    domain: Domain,
) -> Evaluated {
    unary(name, args, |number| {
        let value = number.to_f64();
        refuse_if!(!value.is_nan() && !(domain.low..=domain.high).contains(&value) => 50989,
            "cannot apply {name} to {}, value must be in {}",
            bson::Bson::from(number), domain.text);
        Ok(through_double(number, function))
    })
}

fn atan2(args: &[Operand<'_>], _: &Meter) -> Evaluated {
    let wanted = "$atan2 only supports numeric types, not";
    let (y, x) = (args[0].number(51044, wanted)?, args[1].number(51045, wanted)?);
    Ok(Some(of_doubles(y, x, y.to_f64().atan2(x.to_f64()))))
}
