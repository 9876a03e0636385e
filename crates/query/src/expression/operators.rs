//! The operators that compute all their arguments, by family, and the tables they are found in.

pub(crate) mod accumulate;
mod arithmetic;
mod array;
mod bitwise;
pub(crate) mod calendar;
mod comparison;
mod convert;
mod convert_text;
mod date;
mod date_format;
pub(crate) mod date_math;
mod date_parse;
mod object;
mod regex;
mod set;
mod string;
mod string_search;
pub(crate) mod timezone;
mod trigonometry;

use bson::Bson;

use super::cost;
use super::operand::{Operand, SMALL};
use crate::error::Result;
use crate::meter::{Meter, steps_to_copy};
use crate::value::Number;

pub(super) use array::{SortBy, copy, sort_array};
pub(super) use convert::{CONVERSION_FAILURE, Target, convert};
pub(super) use object::{GET_FIELD, SET_FIELD};
pub(super) use regex::{Compiled, RegexKind};

/// The result of an operator; `None` is missing.
pub(super) type Evaluated = Result<Option<Bson>>;

/// An operator whose arguments are a list.
pub(super) struct Positional {
    pub(super) name: &'static str,
    pub(super) arity: Arity,
    /// Whether the result is null as soon as one argument is null or missing, whatever the others are.
    null_if_any: bool,
    compute: Compute,
}

/// Computes the result of an operator. An operator that goes over any number of large values counts its steps, and
/// charges a result that may be large before it is made. All other operators take one pass over two values at most;
/// if an argument is long, the caller asks the interrupt before the pass.
type Compute = fn(&[Operand<'_>], &Meter) -> Evaluated;

impl Positional {
    /// The same, with null for every null or missing argument.
    const fn null_if_any(mut self) -> Self {
        self.null_if_any = true;
        self
    }

    /// Computes the result of the arguments, whose number has been checked.
    pub(super) fn evaluate(&self, arguments: &[Operand<'_>], meter: &Meter) -> Evaluated {
        if self.null_if_any && arguments.iter().any(Operand::is_nullish) {
            return Ok(Some(Bson::Null));
        }
        (self.compute)(arguments, meter)
    }
}

impl std::fmt::Debug for Positional {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// How many arguments an operator takes.
#[derive(Clone, Copy)]
pub(super) enum Arity {
    Exactly(usize),
    Between(usize, usize),
    AtLeast(usize),
}

impl Arity {
    /// Refuses a number of arguments that does not fit; past this, indexing up to the minimum is
    /// safe.
    pub(super) fn check(self, name: &str, given: usize) -> Result<()> {
        match self {
            Self::Exactly(wanted) if given != wanted => Err(fail!(
                16020,
                "Expression {name} takes exactly {wanted} arguments. {given} were passed in."
            )),
            Self::Between(least, most) if given < least || given > most => Err(fail!(
                28667,
                "Expression {name} takes at least {least} arguments, and at most {most}, but \
                     {given} were passed in."
            )),
            Self::AtLeast(least) if given < least => Err(fail!(
                28667,
                "Expression {name} takes at least {least} arguments, but {given} were passed \
                     in."
            )),
            _ => Ok(()),
        }
    }
}

/// An operator whose arguments have names.
pub(super) struct Named {
    pub(super) name: &'static str,
    /// Whether the first field may be given alone, without a name.
    pub(super) bare: bool,
    /// The error code for an argument that is no object.
    pub(super) not_an_object: i32,
    /// The error code for a field that is not in `fields`.
    pub(super) unknown_field: i32,
    pub(super) fields: &'static [Field],
    pub(super) evaluate: ByName,
}

/// Computes the result of an operator with named arguments. A result that may be large is charged before it is made.
pub(super) type ByName = fn(&[Option<Operand<'_>>], &Meter) -> Evaluated;

/// Takes room for a result that is about to be made, and gives it back at once: the result is charged when it
/// is there. A result that does not fit is never made.
pub(super) fn room(operator: &str, bytes: usize, meter: &Meter) -> Result<()> {
    if bytes < SMALL {
        return Ok(());
    }
    meter.steps(steps_to_copy(bytes))?;
    meter.charge().grow(operator, bytes)
}

/// A copy of a part of a value, for which there is room.
pub(super) fn part(operator: &str, value: &Bson, meter: &Meter) -> Result<Bson> {
    room(operator, cost(value)?, meter)?;
    Ok(value.clone())
}

impl std::fmt::Debug for Named {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// A named argument.
pub(super) struct Field {
    pub(super) name: &'static str,
    /// The error code for leaving it out, if it may not be.
    pub(super) required: Option<i32>,
}

const fn required(name: &'static str, code: i32) -> Field {
    Field { name, required: Some(code) }
}

const fn optional(name: &'static str) -> Field {
    Field { name, required: None }
}

/// An operator with these named arguments. The codes are those for an argument that is no object, and for a field
/// that is not among these.
const fn named_of(
    name: &'static str,
    [not_an_object, unknown_field]: [i32; 2],
    fields: &'static [Field],
    evaluate: ByName,
) -> Named {
    Named { name, bare: false, not_an_object, unknown_field, fields, evaluate }
}

const fn positional_of(name: &'static str, arity: Arity, compute: Compute) -> Positional {
    Positional { name, arity, null_if_any: false, compute }
}

const fn exactly(count: usize, name: &'static str, compute: Compute) -> Positional {
    positional_of(name, Arity::Exactly(count), compute)
}

const fn between(least: usize, most: usize, name: &'static str, compute: Compute) -> Positional {
    positional_of(name, Arity::Between(least, most), compute)
}

const fn at_least(least: usize, name: &'static str, compute: Compute) -> Positional {
    positional_of(name, Arity::AtLeast(least), compute)
}

/// Every family of operators with a list of arguments.
static POSITIONAL: &[&[Positional]] = &[
    accumulate::OPERATORS,
    arithmetic::OPERATORS,
    array::OPERATORS,
    bitwise::OPERATORS,
    comparison::OPERATORS,
    convert::OPERATORS,
    object::OPERATORS,
    set::OPERATORS,
    string::OPERATORS,
    string_search::OPERATORS,
    trigonometry::OPERATORS,
];

/// Every family of operators with named arguments.
static NAMED: &[&[Named]] = &[
    accumulate::NAMED,
    date::NAMED,
    date_format::NAMED,
    date_math::NAMED,
    date_parse::NAMED,
    object::NAMED,
    string::NAMED,
];

/// The operator of a name, if it takes a list of arguments.
pub(super) fn positional(name: &str) -> Option<&'static Positional> {
    POSITIONAL.iter().copied().flatten().find(|operator| operator.name == name)
}

/// The operator of a name, if its arguments have names.
pub(super) fn named(name: &str) -> Option<&'static Named> {
    NAMED.iter().copied().flatten().find(|operator| operator.name == name)
}

/// The names of all operators in the tables, for tests that try every one.
#[cfg(test)]
pub(super) fn names() -> impl Iterator<Item = (&'static str, Vec<&'static str>)> {
    let positional =
        POSITIONAL.iter().copied().flatten().map(|operator| (operator.name, Vec::new()));
    let named =
        NAMED.iter().copied().flatten().map(|operator| {
            (operator.name, operator.fields.iter().map(|field| field.name).collect())
        });
    positional.chain(named)
}

/// The number as a 32-bit integer, if it is one without loss.
pub(super) fn as_i32(value: &Bson) -> Option<i32> {
    as_i64(value).and_then(|number| i32::try_from(number).ok())
}

/// The number as a 64-bit integer, if it is one without loss.
pub(crate) fn as_i64(value: &Bson) -> Option<i64> {
    Number::from_value(value).and_then(Number::to_i64_exact)
}

/// Whether the value is of one of the four number types.
pub(super) fn is_number(value: &Bson) -> bool {
    matches!(value, Bson::Int32(_) | Bson::Int64(_) | Bson::Double(_) | Bson::Decimal128(_))
}
