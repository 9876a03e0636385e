//! Type names, type numbers and the brackets within which values are compared.
//!
//! Owns the aliases that `$type` and `bsonType` accept and the canonical order of the brackets.
//! The numbers are those of the BSON specification.

use super::ValueRef;
use crate::error::Result;
use bson::Bson;

/// The groups of types in their comparison order. Values of one bracket are compared with each
/// other by value; values of different brackets by bracket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
#[repr(u8)]
pub enum TypeBracket {
    MinKey,
    Undefined,
    Null,
    Number,
    String,
    Object,
    Array,
    Binary,
    ObjectId,
    Boolean,
    Date,
    Timestamp,
    RegularExpression,
    DbPointer,
    JavaScriptCode,
    JavaScriptCodeWithScope,
    MaxKey,
}

impl TypeBracket {
    /// The bracket of a value.
    pub fn of(value: ValueRef<'_>) -> Self {
        match value {
            ValueRef::MinKey => Self::MinKey,
            ValueRef::Undefined => Self::Undefined,
            ValueRef::Null => Self::Null,
            ValueRef::Double(_)
            | ValueRef::Int32(_)
            | ValueRef::Int64(_)
            | ValueRef::Decimal128(_) => Self::Number,
            ValueRef::String(_) | ValueRef::Symbol(_) => Self::String,
            ValueRef::Document(_) => Self::Object,
            ValueRef::Array(_) => Self::Array,
            ValueRef::Binary { .. } => Self::Binary,
            ValueRef::ObjectId(_) => Self::ObjectId,
            ValueRef::Boolean(_) => Self::Boolean,
            ValueRef::DateTime(_) => Self::Date,
            ValueRef::Timestamp(_) => Self::Timestamp,
            ValueRef::RegularExpression { .. } => Self::RegularExpression,
            ValueRef::DbPointer(_) => Self::DbPointer,
            ValueRef::JavaScriptCode(_) => Self::JavaScriptCode,
            ValueRef::JavaScriptCodeWithScope { .. } => Self::JavaScriptCodeWithScope,
            ValueRef::MaxKey => Self::MaxKey,
        }
    }
}

/// The type numbers that `$type` takes, with their names.
const ALIASES: [(i32, &str); 21] = [
    (1, "double"),
    (2, "string"),
    (3, "object"),
    (4, "array"),
    (5, "binData"),
    (6, "undefined"),
    (7, "objectId"),
    (8, "bool"),
    (9, "date"),
    (10, "null"),
    (11, "regex"),
    (12, "dbPointer"),
    (13, "javascript"),
    (14, "symbol"),
    (15, "javascriptWithScope"),
    (16, "int"),
    (17, "timestamp"),
    (18, "long"),
    (19, "decimal"),
    (-1, "minKey"),
    (127, "maxKey"),
];

/// The number that the BSON specification gives a type.
pub(crate) fn type_number(value: ValueRef<'_>) -> i32 {
    match value {
        ValueRef::Double(_) => 1,
        ValueRef::String(_) => 2,
        ValueRef::Document(_) => 3,
        ValueRef::Array(_) => 4,
        ValueRef::Binary { .. } => 5,
        ValueRef::Undefined => 6,
        ValueRef::ObjectId(_) => 7,
        ValueRef::Boolean(_) => 8,
        ValueRef::DateTime(_) => 9,
        ValueRef::Null => 10,
        ValueRef::RegularExpression { .. } => 11,
        ValueRef::DbPointer(_) => 12,
        ValueRef::JavaScriptCode(_) => 13,
        ValueRef::Symbol(_) => 14,
        ValueRef::JavaScriptCodeWithScope { .. } => 15,
        ValueRef::Int32(_) => 16,
        ValueRef::Timestamp(_) => 17,
        ValueRef::Int64(_) => 18,
        ValueRef::Decimal128(_) => 19,
        ValueRef::MinKey => -1,
        ValueRef::MaxKey => 127,
    }
}

/// The alias of a value's type, as the `$type` expression returns it and errors name it.
pub fn type_name(value: ValueRef<'_>) -> &'static str {
    let number = type_number(value);
    ALIASES.iter().find(|(candidate, _)| *candidate == number).map_or("missing", |(_, name)| name)
}

/// The type name of an owned value.
pub fn type_name_of(value: &Bson) -> &'static str {
    type_name(value.into())
}

/// A set of types, as `$type` and `bsonType` describe one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TypeSet {
    /// Bit 0 is minKey, bit 31 is maxKey, the others are the type numbers.
    bits: u32,
}

impl TypeSet {
    /// All four number types.
    pub(crate) const NUMBERS: Self = Self { bits: 1 << 1 | 1 << 16 | 1 << 18 | 1 << 19 };

    /// A set of one type, by its number.
    pub fn from_number(number: i32) -> Option<Self> {
        ALIASES
            .iter()
            .any(|(candidate, _)| *candidate == number)
            .then(|| Self { bits: 1 << bit_of(number) })
    }

    /// The set that a name stands for; `number` stands for four types.
    pub(crate) fn from_alias(alias: &str) -> Option<Self> {
        if alias == "number" {
            return Some(Self::NUMBERS);
        }
        let (number, _) = ALIASES.iter().find(|(_, name)| *name == alias)?;
        Self::from_number(*number)
    }

    /// Reads the argument of `$type`: a number, an alias, or a non-empty array of them.
    pub fn parse(argument: &Bson) -> Result<Self> {
        match argument {
            Bson::Array(items) if items.is_empty() => {
                Err(fail!(FAILED_TO_PARSE, "$type must match at least one type"))
            }
            Bson::Array(items) => items
                .iter()
                .try_fold(Self::default(), |set, item| Ok(set.union(Self::parse_one(item)?))),
            single => Self::parse_one(single),
        }
    }

    fn parse_one(argument: &Bson) -> Result<Self> {
        let number = match argument {
            Bson::String(alias) => {
                return Self::from_alias(alias)
                    .ok_or_else(|| fail!(BAD_VALUE, "Unknown type name alias: {alias}"));
            }
            Bson::Int32(value) => i64::from(*value),
            Bson::Int64(value) => *value,
            Bson::Double(value) if value.fract() == 0.0 => *value as i64,
            Bson::Decimal128(value) => {
                let decimal = super::Decimal::decode(*value);
                decimal.to_i64().filter(|_| decimal.is_integral()).unwrap_or(i64::MAX)
            }
            Bson::Double(_) => i64::MAX,
            other => {
                refuse!(
                    TYPE_MISMATCH,
                    "type must be represented as a number or a string, got {}",
                    type_name_of(other)
                );
            }
        };
        refuse_if!(number == 0 => BAD_VALUE,
            "Invalid numerical type code: 0. Instead use {{$exists:false}}.");
        i32::try_from(number)
            .ok()
            .and_then(Self::from_number)
            .ok_or_else(|| fail!(BAD_VALUE, "Invalid numerical type code: {argument}"))
    }

    /// The types in either set.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self { bits: self.bits | other.bits }
    }

    /// Whether the type of a value is in the set.
    pub fn contains(self, value: ValueRef<'_>) -> bool {
        self.bits & (1 << bit_of(type_number(value))) != 0
    }
}

fn bit_of(number: i32) -> u32 {
    match number {
        -1 => 0,
        127 => 31,
        other => other.unsigned_abs() & 31,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aliases_and_numbers_name_the_same_types() {
        for (number, alias) in ALIASES {
            assert_eq!(TypeSet::from_number(number), TypeSet::from_alias(alias), "{alias}");
        }
        assert!(TypeSet::from_alias("number").unwrap().contains(ValueRef::Int64(1)));
        assert!(!TypeSet::from_alias("number").unwrap().contains(ValueRef::Boolean(true)));
        assert_eq!(type_name(ValueRef::MinKey), "minKey");
    }

    #[test]
    fn unknown_types_are_refused_with_their_codes() {
        let code = |value: Bson| TypeSet::parse(&value).unwrap_err().code().0;
        assert_eq!(code(Bson::from("strnig")), 2);
        assert_eq!(code(Bson::Int32(20)), 2);
        assert_eq!(code(Bson::Int32(0)), 2);
        assert_eq!(code(Bson::Double(1.5)), 2);
        assert_eq!(code(Bson::Boolean(true)), 14);
        assert_eq!(code(Bson::Array(vec![])), 9);
        assert!(TypeSet::parse(&Bson::Double(2.0)).unwrap().contains(ValueRef::String("")));
        assert!(TypeSet::parse(&Bson::Int32(-1)).unwrap().contains(ValueRef::MinKey));
    }
}
