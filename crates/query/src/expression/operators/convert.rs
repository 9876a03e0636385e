//! Types: asking for them and converting between them.
//!
//! `$toInt` and its kin are `$convert` with a fixed target. `$convert` itself computes `onError`
//! and `onNull` only when needed, so the expression tree drives it through [`convert`].

use bson::oid::ObjectId;
use bson::{Bson, DateTime};

use super::{Evaluated, Positional, as_i64, convert_text, date_format, date_parse, exactly};
use crate::error::{ErrorCode, QueryError, Result};
use crate::expression::operand::Operand;
use crate::typed::Typed;
use crate::value::{Number, TypeSet, is_truthy};

/// The refusal of a value that has no counterpart in the wanted type.
pub(in crate::expression) const CONVERSION_FAILURE: ErrorCode = ErrorCode::CONVERSION_FAILURE;

pub(super) static OPERATORS: &[Positional] = &[
    exactly(1, "$type", |args, _| Ok(Some(args[0].type_name().into()))),
    exactly(1, "$isNumber", |args, _| {
        Ok(Some(Bson::Boolean(args[0].get().is_some_and(super::is_number))))
    }),
    exactly(1, "$toBool", |args, _| to(args, Target::Bool)),
    exactly(1, "$toDate", |args, _| to(args, Target::Date)),
    exactly(1, "$toDecimal", |args, _| to(args, Target::Decimal)),
    exactly(1, "$toDouble", |args, _| to(args, Target::Double)),
    exactly(1, "$toInt", |args, _| to(args, Target::Int)),
    exactly(1, "$toLong", |args, _| to(args, Target::Long)),
    exactly(1, "$toObjectId", |args, _| to(args, Target::ObjectId)),
    exactly(1, "$toString", |args, _| to(args, Target::String)),
];

fn to(args: &[Operand<'_>], target: Target) -> Evaluated {
    match args[0].get() {
        None | Some(Bson::Null | Bson::Undefined) => Ok(Some(Bson::Null)),
        Some(value) => convert(value, target).map(Some),
    }
}

/// The type that a value is converted to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Bool,
    Date,
    Decimal,
    Double,
    Int,
    Long,
    ObjectId,
    String,
    /// A type that exists and that nothing converts to.
    Other(&'static str),
}

impl Target {
    /// Reads the `to` of `$convert`: a type's name or number.
    pub(crate) fn parse(to: &Bson) -> Result<Self> {
        const KNOWN: [(i64, &str, Target); 8] = [
            (1, "double", Target::Double),
            (2, "string", Target::String),
            (7, "objectId", Target::ObjectId),
            (8, "bool", Target::Bool),
            (9, "date", Target::Date),
            (16, "int", Target::Int),
            (18, "long", Target::Long),
            (19, "decimal", Target::Decimal),
        ];
        if let Bson::String(name) = to {
            if let Some((_, _, target)) = KNOWN.iter().find(|(_, known, _)| known == name) {
                return Ok(*target);
            }
            refuse_if!(name == "missing" || TypeSet::from_alias(name).is_none() => BAD_VALUE,
                "Unknown type name: {name}");
            return Ok(Self::Other("that type"));
        }
        let Some(number) = as_i64(to) else {
            refuse!(
                FAILED_TO_PARSE,
                "$convert's 'to' argument must be a string or number that names a type"
            );
        };
        if let Some((_, _, target)) = KNOWN.iter().find(|(known, _, _)| *known == number) {
            return Ok(*target);
        }
        let known = i32::try_from(number).ok().and_then(TypeSet::from_number);
        match known {
            Some(_) => Ok(Self::Other("that type")),
            None => Err(fail!(
                FAILED_TO_PARSE,
                "In $convert, numeric 'to' argument does not correspond to a BSON type: {number}"
            )),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::Date => "date",
            Self::Decimal => "decimal",
            Self::Double => "double",
            Self::Int => "int",
            Self::Long => "long",
            Self::ObjectId => "objectId",
            Self::String => "string",
            Self::Other(name) => name,
        }
    }
}

fn failure(message: impl std::fmt::Display) -> QueryError {
    fail!((CONVERSION_FAILURE), "{message}")
}

fn unsupported(value: &Bson, target: Target) -> QueryError {
    failure(format!(
        "Unsupported conversion from {} to {} in $convert with no onError value",
        Operand::borrowed(value).type_name(),
        target.name()
    ))
}

fn unparsable(text: &str, reason: &str) -> QueryError {
    failure(format!("Failed to parse number '{text}' in $convert with no onError value: {reason}"))
}

/// Converts a value that is not null.
pub(crate) fn convert(value: &Bson, target: Target) -> Result<Bson> {
    match target {
        Target::Bool => Ok(Bson::Boolean(is_truthy(value))),
        Target::String => to_string(value),
        Target::Int | Target::Long => to_integer(value, target),
        Target::Double => to_double(value),
        Target::Decimal => to_decimal(value),
        Target::ObjectId => to_object_id(value),
        Target::Date => to_date(value),
        Target::Other(_) => Err(unsupported(value, target)),
    }
}

fn to_string(value: &Bson) -> Result<Bson> {
    Ok(Bson::String(match value {
        Bson::String(text) | Bson::Symbol(text) => text.clone(),
        Bson::Boolean(value) => value.to_string(),
        Bson::ObjectId(id) => id.to_hex(),
        Bson::DateTime(date) => date_format::iso(date.timestamp_millis()),
        number if super::is_number(number) => convert_text::number(number),
        other => return Err(unsupported(other, Target::String)),
    }))
}

fn to_integer(value: &Bson, target: Target) -> Result<Bson> {
    let whole = match value {
        Bson::Boolean(value) => i64::from(*value),
        Bson::DateTime(date) if target == Target::Long => date.timestamp_millis(),
        Bson::String(text) if target == Target::Int => convert_text::parse_integer::<i32>(text)
            .map(i64::from)
            .map_err(|reason| unparsable(text, reason))?,
        Bson::String(text) => {
            convert_text::parse_integer(text).map_err(|reason| unparsable(text, reason))?
        }
        _ => {
            let Some(number) = Number::from_value(value) else {
                return Err(unsupported(value, target));
            };
            let double = number.to_f64();
            if double.is_nan() || double.is_infinite() {
                return Err(failure(format!(
                    "Attempt to convert {} value to integer type in $convert with no onError value",
                    if double.is_nan() { "NaN" } else { "infinity" }
                )));
            }
            number.to_i64_truncated().ok_or_else(|| overflow(value))?
        }
    };
    if target == Target::Long {
        return Ok(Bson::Int64(whole));
    }
    i32::try_from(whole).map(Bson::Int32).map_err(|_| overflow(value))
}

fn overflow(value: &Bson) -> QueryError {
    failure(format!(
        "Conversion would overflow target type in $convert with no onError value: {value}"
    ))
}

fn to_double(value: &Bson) -> Result<Bson> {
    Ok(Bson::Double(match value {
        Bson::Boolean(value) => f64::from(u8::from(*value)),
        Bson::DateTime(date) => date.timestamp_millis() as f64,
        Bson::String(text) => {
            convert_text::parse_double(text).map_err(|reason| unparsable(text, reason))?
        }
        _ => {
            let Some(number) = Number::from_value(value) else {
                return Err(unsupported(value, Target::Double));
            };
            let double = number.to_f64();
            if let Number::Decimal(decimal) = number
                && double.is_infinite()
                && decimal.is_finite()
            {
                return Err(overflow(value));
            }
            double
        }
    }))
}

fn to_decimal(value: &Bson) -> Result<Bson> {
    let number = match value {
        Bson::Boolean(value) => Number::Int32(i32::from(*value)),
        Bson::DateTime(date) => Number::Int64(date.timestamp_millis()),
        Bson::String(text) => Number::Decimal(
            convert_text::parse_decimal(text).map_err(|reason| unparsable(text, reason))?,
        ),
        _ => Number::from_value(value).ok_or_else(|| unsupported(value, Target::Decimal))?,
    };
    Ok(Bson::Decimal128(number.to_decimal().encode()))
}

fn to_object_id(value: &Bson) -> Result<Bson> {
    match value {
        Bson::ObjectId(_) => Ok(value.clone()),
        Bson::String(text) => ObjectId::parse_str(text).map(Bson::ObjectId).map_err(|_| {
            failure(format!(
                "Failed to parse objectId '{text}' in $convert with no onError value: an ObjectId \
                 is 24 hexadecimal digits"
            ))
        }),
        other => Err(unsupported(other, Target::ObjectId)),
    }
}

fn to_date(value: &Bson) -> Result<Bson> {
    let millis = match value {
        Bson::DateTime(_) => return Ok(value.clone()),
        Bson::Int64(millis) => *millis,
        Bson::Double(_) | Bson::Decimal128(_) => Number::from_value(value)
            .and_then(Number::to_i64_truncated)
            .ok_or_else(|| overflow(value))?,
        Bson::Timestamp(time) => i64::from(time.time) * 1000,
        Bson::ObjectId(id) => id.timestamp().timestamp_millis(),
        Bson::String(text) => date_parse::parse_text(text, None)?,
        other => return Err(unsupported(other, Target::Date)),
    };
    Ok(Bson::DateTime(DateTime::from_millis(millis)))
}
