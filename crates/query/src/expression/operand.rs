//! The result of an expression while it is being computed: a BSON value, borrowed where possible, or
//! nothing at all.
//!
//! "Missing" differs from null: a missing field leaves no trace in the document that is built from
//! it. Comparison itself belongs to [`crate::value`]; this file only adds where "missing" stands.

use std::cmp::Ordering;
use std::fmt::Write;

use bson::Bson;

use super::bounds::{approximate_value_size, cost};
use super::operators::copy;
use crate::error::Result;
use crate::meter::{Charge, Kept, Meter};
use crate::typed::Typed;
use crate::value;

/// Values that cost less than this are not charged one by one: a scope or a list of arguments holds
/// few of them, and longer lists are charged as a whole.
pub(super) const SMALL: usize = 1024;

/// Values that cost at least this are freed with questions in between.
const LARGE: usize = 256 * 1024;

/// A value or its absence, and what it holds of the operation's memory.
#[derive(Debug)]
pub(crate) struct Operand<'a>(Option<Held<'a>>);

#[derive(Debug)]
enum Held<'a> {
    Borrowed(&'a Bson),
    /// Not charged: small, or charged by its holder.
    Owned(Bson),
    Charged(Charged),
}

/// A value that is charged to the operation for as long as it lives.
#[derive(Debug)]
struct Charged(Bson, Charge);

impl Drop for Charged {
    fn drop(&mut self) {
        if self.1.bytes() >= LARGE {
            self.1.meter().free_value(std::mem::replace(&mut self.0, Bson::Null));
        }
    }
}

impl Charged {
    fn into_bson(mut self) -> Bson {
        std::mem::replace(&mut self.0, Bson::Null)
    }
}

impl Held<'_> {
    fn get(&self) -> &Bson {
        match self {
            Self::Borrowed(value) => value,
            Self::Owned(value) | Self::Charged(Charged(value, _)) => value,
        }
    }
}

static NULL: Bson = Bson::Null;

impl<'a> Operand<'a> {
    /// No value.
    pub(crate) const MISSING: Operand<'static> = Operand(None);

    /// A value that lives elsewhere.
    pub(crate) fn borrowed(value: &'a Bson) -> Self {
        Self(Some(Held::Borrowed(value)))
    }

    /// A value made here.
    pub(crate) fn owned(value: Bson) -> Operand<'static> {
        Operand(Some(Held::Owned(value)))
    }

    /// The value, if there is one.
    pub(crate) fn get(&self) -> Option<&Bson> {
        self.0.as_ref().map(Held::get)
    }

    /// The value, with null standing for absence.
    pub(crate) fn or_null(&self) -> &Bson {
        self.get().unwrap_or(&NULL)
    }

    /// The bytes of the value if it is held here and not charged yet.
    pub(crate) fn own_cost(&self) -> usize {
        match &self.0 {
            Some(Held::Owned(value)) => size_of::<Self>() + approximate_value_size(value),
            _ => size_of::<Self>(),
        }
    }

    /// Whether there is no value.
    pub(crate) fn is_missing(&self) -> bool {
        self.0.is_none()
    }

    /// Whether this is null, undefined or missing: what most operators answer with null.
    pub(crate) fn is_nullish(&self) -> bool {
        matches!(self.get(), None | Some(Bson::Null | Bson::Undefined))
    }

    /// The value as a message shows it: the beginning, if it is long.
    pub(crate) fn shown(&self) -> String {
        let mut shown = Beginning(String::new());
        // An error only says that the beginning is full.
        let _ = write!(shown, "{}", self.or_null());
        shown.0
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
        self.0.map(|held| match held {
            Held::Borrowed(value) => value.clone(),
            Held::Owned(value) => value,
            Held::Charged(charged) => charged.into_bson(),
        })
    }

    /// Whether an operator may take long over this value: one that is nested or long.
    pub(crate) fn is_long(&self) -> bool {
        match self.get() {
            Some(Bson::Array(elements)) => !elements.is_empty(),
            Some(Bson::Document(document)) => !document.is_empty(),
            Some(Bson::String(text) | Bson::Symbol(text)) => text.len() >= SMALL,
            _ => false,
        }
    }

    /// A value that an operator made, charged to the operation.
    pub(crate) fn charged(value: Bson, operator: &str, meter: &Meter) -> Result<Operand<'static>> {
        let bytes = cost(&value)?;
        if bytes < SMALL {
            return Ok(Self::owned(value));
        }
        let mut charge = meter.charge();
        match meter.check().and_then(|()| charge.grow(operator, bytes)) {
            Ok(()) => Ok(Self::built(value, charge)),
            Err(error) => {
                meter.free_value(value);
                Err(error)
            }
        }
    }

    /// A value with the charge of the bytes that it took while it was built.
    pub(crate) fn built(value: Bson, charge: Charge) -> Operand<'static> {
        Operand(Some(Held::Charged(Charged(value, charge))))
    }

    /// The same, no longer tied to anything; a copy is charged to the operation.
    pub(crate) fn into_static(self, operator: &str, meter: &Meter) -> Result<Operand<'static>> {
        match self.0 {
            None => Ok(Operand::MISSING),
            Some(Held::Borrowed(Bson::Array(elements))) => {
                let (mut copied, mut charge) = (Kept::new(Vec::new(), meter), meter.charge());
                copy(operator, elements, &mut copied, &mut charge)?;
                Ok(Self::built(Bson::Array(copied.into_inner()), charge))
            }
            Some(Held::Borrowed(value)) => {
                let bytes = cost(value)?;
                if bytes < SMALL {
                    return Ok(Self::owned(value.clone()));
                }
                let mut charge = meter.charge();
                charge.grow(operator, bytes)?;
                Ok(Self::built(value.clone(), charge))
            }
            Some(Held::Owned(value)) => Ok(Self::owned(value)),
            Some(Held::Charged(charged)) => Ok(Operand(Some(Held::Charged(charged)))),
        }
    }

    /// Whether the value counts as true: not false, zero, null, undefined or missing.
    pub(crate) fn is_true(&self) -> bool {
        self.get().is_some_and(value::is_truthy)
    }

    /// The order of the two; missing stands with undefined, above `MinKey` and below null.
    pub(crate) fn compare(&self, other: &Operand<'_>) -> Ordering {
        compare_options(self.get(), other.get())
    }
}

impl Typed for Operand<'_> {
    fn found(&self) -> Option<&Bson> {
        self.get()
    }
}

/// Takes the beginning of a text that is written to it, and refuses the rest.
struct Beginning(String);

impl Write for Beginning {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let room = SMALL.saturating_sub(self.0.len());
        let part = text.char_indices().take_while(|(at, _)| *at < room);
        self.0.extend(part.map(|(_, character)| character));
        if text.len() > room { Err(std::fmt::Error) } else { Ok(()) }
    }
}

/// The order of two values of which either may be absent.
pub(crate) fn compare_options(left: Option<&Bson>, right: Option<&Bson>) -> Ordering {
    value::compare(left.unwrap_or(&Bson::Undefined), right.unwrap_or(&Bson::Undefined))
}
