//! The update operators on single values, and the list of all operators.
//!
//! Owns `$set`, `$inc`, `$mul`, `$min`, `$max`, `$currentDate` and `$bit`; the operators on arrays
//! are in `array_operators`.

use bson::Bson;

use super::UpdateContext;
use super::array_operators::{PullCondition, Push};
use super::path::UpdatePath;
use crate::error::Result;
use crate::value::size::{Growth, value_size};
use crate::value::{Number, compare, type_name_of};

/// An operator with its argument.
#[derive(Debug, Clone)]
pub(super) enum Operator {
    Set(Bson),
    SetOnInsert(Bson),
    Unset,
    Increment(Number),
    Multiply(Number),
    Minimum(Bson),
    Maximum(Bson),
    Rename { source: UpdatePath },
    CurrentDate(CurrentDate),
    Bit(Vec<(BitOperation, Number)>),
    Push(Push),
    AddToSet(Vec<Bson>),
    Pop(PopEnd),
    Pull(PullCondition),
    PullAll(Vec<Bson>),
}

/// Which end `$pop` takes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PopEnd {
    First,
    Last,
}

/// What `$currentDate` writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CurrentDate {
    Date,
    Timestamp,
}

/// The operations of `$bit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BitOperation {
    And,
    Or,
    Xor,
}

impl Operator {
    /// Whether the operator adds and removes elements of an array rather than setting it.
    pub(super) fn works_on_elements(&self) -> bool {
        matches!(
            self,
            Self::Push(_) | Self::AddToSet(_) | Self::Pop(_) | Self::Pull(_) | Self::PullAll(_)
        )
    }

    /// The value for a place that does not exist yet; `None` if the operator leaves it so.
    pub(super) fn create(
        &self,
        context: &UpdateContext,
        growth: &mut Growth,
    ) -> Result<Option<Bson>> {
        Ok(match self {
            Self::Set(value)
            | Self::SetOnInsert(value)
            | Self::Minimum(value)
            | Self::Maximum(value) => {
                growth.charge(value_size(value))?;
                Some(value.clone())
            }
            Self::Increment(number) => Some((*number).into()),
            Self::Multiply(number) => Some(
                match number {
                    Number::Int32(_) => Number::Int32(0),
                    Number::Int64(_) => Number::Int64(0),
                    Number::Double(_) => Number::Double(0.0),
                    Number::Decimal(_) => Number::Decimal(crate::value::Decimal::ZERO),
                }
                .into(),
            ),
            Self::CurrentDate(kind) => Some(kind.value(context)),
            Self::Bit(operations) => Some(apply_bits(Number::Int32(0), operations).into()),
            Self::Push(push) => Some(Bson::Array(push.applied_to(Vec::new(), growth)?)),
            Self::AddToSet(values) => {
                let mut items = Bson::Array(Vec::new());
                Self::AddToSet(values.clone()).modify(&mut items, "", context, growth)?;
                Some(items)
            }
            Self::Unset | Self::Rename { .. } | Self::Pop(_) | Self::Pull(_) | Self::PullAll(_) => {
                None
            }
        })
    }

    /// Changes a value that exists.
    pub(super) fn modify(
        &self,
        value: &mut Bson,
        path: &str,
        context: &UpdateContext,
        growth: &mut Growth,
    ) -> Result<()> {
        match self {
            Self::Set(new) | Self::SetOnInsert(new) => replace_with(value, new, growth)?,
            Self::Minimum(new) if compare(new, &*value).is_lt() => {
                replace_with(value, new, growth)?;
            }
            Self::Maximum(new) if compare(new, &*value).is_gt() => {
                replace_with(value, new, growth)?;
            }
            Self::Increment(number) => {
                *value = arithmetic("$inc", value, path, *number, Number::checked_add)?;
            }
            Self::Multiply(number) => {
                *value = arithmetic("$mul", value, path, *number, Number::checked_multiply)?;
            }
            Self::CurrentDate(kind) => *value = kind.value(context),
            Self::Bit(operations) => *value = modify_bits(value, path, operations)?,
            Self::Push(push) => push.modify(value, path, growth)?,
            Self::AddToSet(values) => {
                super::array_operators::add_to_set(value, path, values, growth)?;
            }
            Self::Pop(end) => super::array_operators::pop(value, path, *end)?,
            Self::Pull(condition) => super::array_operators::pull(value, condition, growth)?,
            Self::PullAll(values) => super::array_operators::pull_all(value, values, growth)?,
            Self::Minimum(_) | Self::Maximum(_) | Self::Unset | Self::Rename { .. } => {}
        }
        Ok(())
    }
}

fn replace_with(value: &mut Bson, new: &Bson, growth: &mut Growth) -> Result<()> {
    growth.charge(value_size(new))?;
    *value = new.clone();
    Ok(())
}

fn arithmetic(
    operator: &str,
    value: &Bson,
    path: &str,
    argument: Number,
    operation: fn(Number, Number) -> Option<Number>,
) -> Result<Bson> {
    let current = Number::from_value(value).ok_or_else(|| {
        fail!(
            TYPE_MISMATCH,
            "Cannot apply {operator} to a value of non-numeric type. The document has the field \
             '{path}' of non-numeric type {}",
            type_name_of(value)
        )
    })?;
    operation(current, argument).map(Bson::from).ok_or_else(|| {
        fail!(
            BAD_VALUE,
            "Failed to apply {operator} operations to current value ({value}) of field '{path}': \
             the result does not fit 64 bits"
        )
    })
}

/// Reads the argument of `$inc` or `$mul`.
pub(super) fn parse_number(verb: &str, path: &str, argument: &Bson) -> Result<Number> {
    Number::from_value(argument).ok_or_else(|| {
        fail!(TYPE_MISMATCH, "Cannot {verb} with non-numeric argument: {{{path}: {argument}}}")
    })
}

/// Reads the argument of `$currentDate`.
pub(super) fn parse_current_date(argument: &Bson) -> Result<CurrentDate> {
    match argument {
        Bson::Boolean(_) => Ok(CurrentDate::Date),
        Bson::Document(options) => {
            if let Some(unknown) = options.keys().find(|key| *key != "$type") {
                refuse!(BAD_VALUE, "Unrecognized $currentDate option: {unknown}");
            }
            match options.get("$type") {
                Some(Bson::String(kind)) if kind == "date" => Ok(CurrentDate::Date),
                Some(Bson::String(kind)) if kind == "timestamp" => Ok(CurrentDate::Timestamp),
                _ => Err(fail!(
                    BAD_VALUE,
                    "The '$type' string field is required to be 'date' or 'timestamp': \
                     {{$currentDate: {{field : {{$type: 'date'}}}}}}"
                )),
            }
        }
        other => Err(fail!(
            BAD_VALUE,
            "{} is not valid type for $currentDate. Please use a boolean ('true') or a $type \
             expression ({{$type: 'timestamp/date'}}).",
            type_name_of(other)
        )),
    }
}

impl CurrentDate {
    fn value(self, context: &UpdateContext) -> Bson {
        match self {
            Self::Date => Bson::DateTime(context.now),
            Self::Timestamp => Bson::Timestamp(context.timestamp),
        }
    }
}

/// Reads the argument of `$bit`.
pub(super) fn parse_bit(argument: &Bson) -> Result<Vec<(BitOperation, Number)>> {
    let Bson::Document(operations) = argument else {
        refuse!(
            BAD_VALUE,
            "The $bit modifier is not compatible with a {}. You must pass in an embedded \
             document: {{$bit: {{field: {{and/or/xor: #}}}}}}",
            type_name_of(argument)
        );
    };
    refuse_if!(operations.is_empty() => BAD_VALUE,
        "You must pass in at least one bitwise operation. The format is: {{$bit: {{field: \
         {{and/or/xor: #}}}}}}");
    operations
        .iter()
        .map(|(name, operand)| {
            let operation = match name.as_str() {
                "and" => BitOperation::And,
                "or" => BitOperation::Or,
                "xor" => BitOperation::Xor,
                unknown => {
                    refuse!(
                        BAD_VALUE,
                        "The $bit modifier only supports 'and', 'or', and 'xor', not '{unknown}' \
                         which is an unknown operator: {{{unknown}: {operand}}}"
                    );
                }
            };
            match operand {
                Bson::Int32(number) => Ok((operation, Number::Int32(*number))),
                Bson::Int64(number) => Ok((operation, Number::Int64(*number))),
                other => Err(fail!(
                    BAD_VALUE,
                    "The $bit modifier field must be an Integer(32/64 bit); a '{}' is not \
                     supported here: {{{name}: {other}}}",
                    type_name_of(other)
                )),
            }
        })
        .collect()
}

fn modify_bits(value: &Bson, path: &str, operations: &[(BitOperation, Number)]) -> Result<Bson> {
    match value {
        Bson::Int32(number) => Ok(apply_bits(Number::Int32(*number), operations).into()),
        Bson::Int64(number) => Ok(apply_bits(Number::Int64(*number), operations).into()),
        other => Err(fail!(
            BAD_VALUE,
            "Cannot apply $bit to a value of non-integral type: the field '{path}' is of type {}",
            type_name_of(other)
        )),
    }
}

/// Two int32 stay int32, anything with an int64 is int64.
fn apply_bits(start: Number, operations: &[(BitOperation, Number)]) -> Number {
    let combine = |operation, left: i64, right: i64| match operation {
        BitOperation::And => left & right,
        BitOperation::Or => left | right,
        BitOperation::Xor => left ^ right,
    };
    operations.iter().fold(start, |value, (operation, operand)| match (value, operand) {
        (Number::Int32(left), Number::Int32(right)) => {
            Number::Int32(combine(*operation, left.into(), (*right).into()) as i32)
        }
        (left, right) => Number::Int64(combine(
            *operation,
            left.to_i64_exact().unwrap_or(0),
            right.to_i64_exact().unwrap_or(0),
        )),
    })
}
