//! Which documents around a document its window holds.

use bson::{Bson, DateTime, Document};

use crate::error::Result;
use crate::expression::operators::{as_i64, date_math};
use crate::sort::{Direction, SortPattern};
use crate::typed::unknown_field;
use crate::value::{Number, compare};

/// The documents around a document.
#[derive(Clone, Debug)]
pub(super) enum Window {
    /// By position.
    Documents(Bound<i64>, Bound<i64>),
    /// By what documents are sorted by, as distances from the document's own value.
    Range(Box<Range>),
}

/// A window by value; the unit makes distances of dates.
#[derive(Clone, Debug)]
pub(super) struct Range {
    low: Bound<Bson>,
    high: Bound<Bson>,
    unit: Option<String>,
}

/// One end of a window.
#[derive(Clone, Debug)]
pub(super) enum Bound<T> {
    Unbounded,
    Current,
    Offset(T),
}

impl Window {
    /// Reads a window; none given is the whole partition.
    pub(super) fn parse(spec: Option<&Bson>, sort: &SortPattern) -> Result<Self> {
        let spec = match spec {
            None => return Ok(Self::Documents(Bound::Unbounded, Bound::Unbounded)),
            Some(Bson::Document(spec)) => spec,
            Some(_) => refuse!(FAILED_TO_PARSE, "'window' field must be an object"),
        };
        if let Some(unknown) = unknown_field(spec, &["documents", "range", "unit"]) {
            refuse!(
                FAILED_TO_PARSE,
                "'window' field that is not 'documents', 'range' or 'unit': {unknown}"
            );
        }
        match (spec.get("documents"), spec.get("range")) {
            (Some(bounds), None) => Self::documents(bounds, spec, sort),
            (None, Some(bounds)) => Self::range(bounds, spec, sort),
            (None, None) => Ok(Self::Documents(Bound::Unbounded, Bound::Unbounded)),
            (Some(_), Some(_)) => Err(fail!(
                FAILED_TO_PARSE,
                "Window bounds can specify either 'documents' or 'range', not both."
            )),
        }
    }

    fn documents(bounds: &Bson, spec: &Document, sort: &SortPattern) -> Result<Self> {
        refuse_if!(spec.contains_key("unit") => FAILED_TO_PARSE,
            "Window bounds can only specify 'unit' with range-based bounds.");
        let (low, high) = pair(bounds, |value| {
            as_i64(value).filter(|number| i32::try_from(*number).is_ok()).ok_or_else(|| {
                fail!(FAILED_TO_PARSE, "Numeric document-based bounds must be an integer")
            })
        })?;
        let offset = |bound: &Bound<i64>| match bound {
            Bound::Unbounded => None,
            Bound::Current => Some(0),
            Bound::Offset(offset) => Some(*offset),
        };
        if let (Some(low), Some(high)) = (offset(&low), offset(&high))
            && low > high
        {
            refuse!(5339900, "Lower bound must not exceed upper bound");
        }
        let whole = matches!((&low, &high), (Bound::Unbounded, Bound::Unbounded));
        refuse_if!(!whole && sort.is_empty() => 5339901, "Document-based bounds require a sortBy");
        Ok(Self::Documents(low, high))
    }

    fn range(bounds: &Bson, spec: &Document, sort: &SortPattern) -> Result<Self> {
        let mut fields = sort.fields();
        let ascending = matches!(fields.next(), Some((_, Direction::Ascending)));
        refuse_if!(!ascending || fields.next().is_some() => 5339902,
            "Range-based bounds require sortBy a single field, ascending");
        let (low, high) = pair(bounds, |value| {
            Number::from_value(value)
                .map(Bson::from)
                .ok_or_else(|| fail!(FAILED_TO_PARSE, "Range-based bounds must be numbers"))
        })?;
        let unit = match spec.get("unit") {
            None => None,
            Some(Bson::String(unit)) => {
                // Refuses a unit that does not exist before any document is seen.
                date_math::shift_by("$setWindowFields", 0, unit, 0)?;
                Some(unit.clone())
            }
            Some(_) => refuse!(FAILED_TO_PARSE, "'unit' must be a string"),
        };
        let offset = |bound: &Bound<Bson>| match bound {
            Bound::Unbounded => None,
            Bound::Current => Some(Bson::Int32(0)),
            Bound::Offset(offset) => Some(offset.clone()),
        };
        if let (Some(low), Some(high)) = (offset(&low), offset(&high))
            && compare(&low, &high).is_gt()
        {
            refuse!(5339900, "Lower bound must not exceed upper bound");
        }
        Ok(Self::Range(Box::new(Range { low, high, unit })))
    }

    /// The first row of the window and the one after its last.
    pub(super) fn around(&self, row: usize, keys: &[&Bson]) -> Result<(usize, usize)> {
        let count = keys.len();
        match self {
            Self::Documents(low, high) => {
                let place = |offset: i64| (row as i64 + offset).clamp(0, count as i64) as usize;
                let low = match low {
                    Bound::Unbounded => 0,
                    Bound::Current => row,
                    Bound::Offset(offset) => place(*offset),
                };
                let high = match high {
                    Bound::Unbounded => count,
                    Bound::Current => row + 1,
                    Bound::Offset(offset) => place(offset.saturating_add(1)),
                };
                Ok((low, high.max(low)))
            }
            Self::Range(range) => {
                let Range { low, high, unit } = &**range;
                let own = keys[row];
                let edge = |offset: &Bson| distant(own, offset, unit.as_deref());
                let low = match low {
                    Bound::Unbounded => 0,
                    Bound::Current => keys.partition_point(|key| compare(*key, own).is_lt()),
                    Bound::Offset(offset) => {
                        let edge = edge(offset)?;
                        keys.partition_point(|key| compare(*key, &edge).is_lt())
                    }
                };
                let high = match high {
                    Bound::Unbounded => count,
                    Bound::Current => keys.partition_point(|key| compare(*key, own).is_le()),
                    Bound::Offset(offset) => {
                        let edge = edge(offset)?;
                        keys.partition_point(|key| compare(*key, &edge).is_le())
                    }
                };
                Ok((low, high.max(low)))
            }
        }
    }
}

/// The value at a distance from another.
fn distant(own: &Bson, offset: &Bson, unit: Option<&str>) -> Result<Bson> {
    match (own, unit, Number::from_value(own), Number::from_value(offset)) {
        (_, None, Some(own), Some(offset)) => Ok(own.plus(offset).into()),
        (Bson::DateTime(date), Some(unit), _, Some(offset)) => {
            let amount = offset.to_i64_truncated().unwrap_or(i64::MAX);
            let moved =
                date_math::shift_by("$setWindowFields", date.timestamp_millis(), unit, amount)?;
            Ok(Bson::DateTime(DateTime::from_millis(moved)))
        }
        (_, None, _, _) => Err(fail!(
            5429414,
            "Invalid range: Expected the sortBy field to be a number; give a 'unit' for dates"
        )),
        (_, Some(_), _, _) => {
            Err(fail!(5429513, "Invalid range: Expected the sortBy field to be a Date"))
        }
    }
}

fn pair<T>(bounds: &Bson, number: impl Fn(&Bson) -> Result<T>) -> Result<(Bound<T>, Bound<T>)> {
    let bound = |value: &Bson| match value {
        Bson::String(text) if text == "unbounded" => Ok(Bound::Unbounded),
        Bson::String(text) if text == "current" => Ok(Bound::Current),
        other => number(other).map(Bound::Offset),
    };
    match bounds {
        Bson::Array(bounds) => match bounds.as_slice() {
            [low, high] => Ok((bound(low)?, bound(high)?)),
            _ => Err(fail!(FAILED_TO_PARSE, "Window bounds must be a 2-element array")),
        },
        _ => Err(fail!(FAILED_TO_PARSE, "Window bounds must be a 2-element array")),
    }
}
