//! What an expression yields while it is being computed: a BSON value, borrowed where possible, or
//! nothing at all.
//!
//! "Missing" differs from null: a missing field leaves no trace in the document that is built from
//! it. Comparison itself belongs to [`crate::value`]; this file only adds where "missing" stands.

use std::borrow::Cow;
use std::cmp::Ordering;

use bson::Bson;

use crate::value;

/// A value or its absence.
#[derive(Clone, Debug)]
pub(crate) struct Operand<'a>(Option<Cow<'a, Bson>>);

static NULL: Bson = Bson::Null;

impl<'a> Operand<'a> {
    /// No value.
    pub(crate) const MISSING: Operand<'static> = Operand(None);

    /// A value that lives elsewhere.
    pub(crate) fn borrowed(value: &'a Bson) -> Self {
        Self(Some(Cow::Borrowed(value)))
    }

    /// A value made here.
    pub(crate) fn owned(value: Bson) -> Operand<'static> {
        Operand(Some(Cow::Owned(value)))
    }

    /// The value, if there is one.
    pub(crate) fn get(&self) -> Option<&Bson> {
        self.0.as_deref()
    }

    /// The value, with null standing for absence.
    pub(crate) fn or_null(&self) -> &Bson {
        self.0.as_deref().unwrap_or(&NULL)
    }

    /// Whether there is no value.
    pub(crate) fn is_missing(&self) -> bool {
        self.0.is_none()
    }

    /// Whether this is null, undefined or missing: what most operators answer with null.
    pub(crate) fn is_nullish(&self) -> bool {
        matches!(self.get(), None | Some(Bson::Null | Bson::Undefined))
    }

    /// The name of the type, `missing` for none.
    pub(crate) fn type_name(&self) -> &'static str {
        self.get().map_or("missing", value::types::type_name_of)
    }

    /// The array, if it is one.
    pub(crate) fn as_array(&self) -> Option<&Vec<Bson>> {
        self.get().and_then(Bson::as_array)
    }

    /// The string (or symbol), if it is one.
    pub(crate) fn as_str(&self) -> Option<&str> {
        match self.get() {
            Some(Bson::String(text) | Bson::Symbol(text)) => Some(text),
            _ => None,
        }
    }

    /// The value, cloned only if it lives elsewhere.
    pub(crate) fn into_bson(self) -> Option<Bson> {
        self.0.map(Cow::into_owned)
    }

    /// The same, no longer tied to anything.
    pub(crate) fn into_static(self) -> Operand<'static> {
        Operand(self.0.map(|value| Cow::Owned(value.into_owned())))
    }

    /// Whether the value counts as true: not false, zero, null, undefined or missing.
    pub(crate) fn is_true(&self) -> bool {
        self.get().is_some_and(is_true)
    }

    /// The order of the two; missing stands with undefined, above `MinKey` and below null.
    pub(crate) fn compare(&self, other: &Operand<'_>) -> Ordering {
        compare_options(self.get(), other.get())
    }
}

/// The order of two values of which either may be absent.
pub(crate) fn compare_options(left: Option<&Bson>, right: Option<&Bson>) -> Ordering {
    value::compare(left.unwrap_or(&Bson::Undefined), right.unwrap_or(&Bson::Undefined))
}

/// Whether a value counts as true.
pub(crate) fn is_true(value: &Bson) -> bool {
    match value {
        Bson::Boolean(value) => *value,
        Bson::Null | Bson::Undefined => false,
        Bson::Int32(number) => *number != 0,
        Bson::Int64(number) => *number != 0,
        Bson::Double(number) => *number != 0.0,
        Bson::Decimal128(_) => {
            !value::Number::from_value(value).is_some_and(value::Number::is_zero)
        }
        _ => true,
    }
}
