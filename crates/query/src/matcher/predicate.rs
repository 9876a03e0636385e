//! The predicates at the leaves of a query and what each says about one value.
//!
//! Follows the documented semantics: values are compared within their type bracket, null also
//! matches missing, NaN equals only NaN, and MinKey and MaxKey bound every type.

use std::cmp::Ordering;

use bson::{Bson, Document};

use super::bits::BitTest;
use super::{Node, Progress, RegexMatcher};
use crate::error::Result;
use crate::value::compact::Compact;
use crate::value::{
    ArrayRef, DocumentRef, LeafArrays, Number, Path, TypeBracket, TypeSet, ValueRef, compare,
};

/// A predicate on a field, or several of them combined.
#[derive(Debug, Clone)]
pub(crate) enum Condition {
    Leaf(Predicate),
    And(Vec<Condition>),
    Not(Box<Condition>),
}

/// One predicate on one value.
#[derive(Debug, Clone)]
pub(crate) enum Predicate {
    Compare(Comparison, Bson),
    In(InList),
    Regex(RegexMatcher),
    Exists,
    Type(TypeSet),
    Mod { divisor: i64, remainder: i64 },
    Size(i64),
    ElemMatchObject(Box<Node>),
    ElemMatchValue(Box<Condition>),
    Bits(BitTest),
    Nothing,
}

/// The five comparisons.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Comparison {
    Equal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// The argument of `$in`: values in comparison order, and regular expressions.
#[derive(Debug, Clone)]
pub(crate) struct InList {
    pub(crate) values: Vec<Compact>,
    pub(crate) regexes: Vec<RegexMatcher>,
    /// The value, if there is nothing else.
    pub(crate) only: Option<Bson>,
    has_null: bool,
}

impl InList {
    pub(crate) fn new(mut values: Vec<Compact>, regexes: Vec<RegexMatcher>) -> Self {
        values.sort_by(|left, right| compare(left, right));
        values.dedup_by(|left, right| compare(&*left, &*right).is_eq());
        let has_null = values.iter().any(|value| matches!(ValueRef::from(value), ValueRef::Null));
        let only = match (values.as_slice(), regexes.is_empty()) {
            ([value], true) => Some(ValueRef::from(value).to_bson()),
            _ => None,
        };
        Self { values, regexes, only, has_null }
    }

    fn matches(&self, value: Option<ValueRef<'_>>) -> Result<bool> {
        let Some(value) = value else { return Ok(self.has_null) };
        if value.is_nullish() && self.has_null {
            return Ok(true);
        }
        if self.values.binary_search_by(|candidate| compare(candidate, value)).is_ok() {
            return Ok(true);
        }
        for regex in &self.regexes {
            if regex.matches(value)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Condition {
    /// Whether the values that the path shows in a document satisfy the condition.
    pub(crate) fn matches_path(
        &self,
        document: DocumentRef<'_>,
        path: &Path,
        details: &mut Progress<'_>,
    ) -> Result<bool> {
        match self {
            Self::And(children) => {
                for child in children {
                    if !child.matches_path(document, path, details)? {
                        details.array_index = None;
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            Self::Not(child) => Ok(!child.matches_path(document, path, &mut details.fresh())?),
            Self::Leaf(predicate) => {
                let mut failure = None;
                let matched =
                    path.any(
                        document,
                        predicate.leaf_arrays(),
                        &mut |value, outer| match predicate.matches(value, details) {
                            Ok(true) => {
                                if outer.is_some() {
                                    details.array_index = outer;
                                }
                                true
                            }
                            Ok(false) => false,
                            Err(error) => {
                                failure = Some(error);
                                true
                            }
                        },
                    );
                failure.map_or(Ok(matched), Err)
            }
        }
    }

    /// Whether one value satisfies the condition by itself.
    pub(crate) fn matches_value(
        &self,
        value: Option<ValueRef<'_>>,
        details: &mut Progress<'_>,
    ) -> Result<bool> {
        match self {
            Self::And(children) => {
                for child in children {
                    if !child.matches_value(value, details)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            Self::Not(child) => Ok(!child.matches_value(value, details)?),
            Self::Leaf(predicate) => predicate.matches(value, details),
        }
    }
}

impl Predicate {
    fn leaf_arrays(&self) -> LeafArrays {
        match self {
            Self::Size(_) | Self::ElemMatchObject(_) | Self::ElemMatchValue(_) => LeafArrays::Whole,
            _ => LeafArrays::Elements,
        }
    }

    fn matches(&self, value: Option<ValueRef<'_>>, details: &mut Progress<'_>) -> Result<bool> {
        details.step()?;
        Ok(match self {
            Self::Compare(comparison, operand) => comparison.holds(value, operand.into()),
            Self::In(list) => list.matches(value)?,
            Self::Regex(regex) => match value {
                Some(value) => regex.matches(value)?,
                None => false,
            },
            Self::Exists => value.is_some(),
            Self::Type(types) => value.is_some_and(|value| types.contains(value)),
            Self::Mod { divisor, remainder } => value
                .and_then(Number::from_value)
                .and_then(Number::to_i64_truncated)
                .is_some_and(|number| number.wrapping_rem(*divisor) == *remainder),
            Self::Size(size) => value
                .and_then(ValueRef::as_array)
                .is_some_and(|array| array.len() as u64 == size.unsigned_abs()),
            Self::ElemMatchObject(node) => match value.and_then(ValueRef::as_array) {
                Some(array) => any_element_matches(array, node, details)?,
                None => false,
            },
            Self::ElemMatchValue(condition) => match value.and_then(ValueRef::as_array) {
                Some(array) => any_value_matches(array, condition, details)?,
                None => false,
            },
            Self::Bits(test) => value.is_some_and(|value| test.matches(value)),
            Self::Nothing => false,
        })
    }
}

fn any_element_matches(
    array: ArrayRef<'_>,
    node: &Node,
    details: &mut Progress<'_>,
) -> Result<bool> {
    for (position, element) in array.iter().enumerate() {
        let matched = match element {
            ValueRef::Document(document) => node.matches(document, &mut details.fresh())?,
            // An array within the array is searched as a document keyed by position.
            ValueRef::Array(inner) => {
                let document = keyed_by_position(inner);
                node.matches((&document).into(), &mut details.fresh())?
            }
            _ => false,
        };
        if matched {
            details.array_index = Some(position);
            return Ok(true);
        }
    }
    Ok(false)
}

fn keyed_by_position(array: ArrayRef<'_>) -> Document {
    array
        .iter()
        .enumerate()
        .map(|(position, element)| (position.to_string(), element.to_bson()))
        .collect()
}

fn any_value_matches(
    array: ArrayRef<'_>,
    condition: &Condition,
    details: &mut Progress<'_>,
) -> Result<bool> {
    for (position, element) in array.iter().enumerate() {
        if condition.matches_value(Some(element), &mut details.fresh())? {
            details.array_index = Some(position);
            return Ok(true);
        }
    }
    Ok(false)
}

impl Comparison {
    /// Whether `value` stands in this relation to `operand`. A missing value is compared as null
    /// is, except that null also equals it.
    #[inline]
    pub(crate) fn holds(self, value: Option<ValueRef<'_>>, operand: ValueRef<'_>) -> bool {
        use ValueRef as V;
        // Neither null nor NaN has a part in these, and a scan asks for little else.
        let order = match (value, operand) {
            (Some(V::Int64(value)), V::Int64(operand)) => value.cmp(&operand),
            (Some(V::Int32(value)), V::Int32(operand)) => value.cmp(&operand),
            (Some(V::Int32(value)), V::Int64(operand)) => i64::from(value).cmp(&operand),
            (Some(V::Int64(value)), V::Int32(operand)) => value.cmp(&i64::from(operand)),
            (Some(V::String(value)), V::String(operand)) => value.cmp(operand),
            (value, operand) => return self.holds_in_general(value, operand),
        };
        self.allows(order)
    }

    fn holds_in_general(self, value: Option<ValueRef<'_>>, operand: ValueRef<'_>) -> bool {
        let allows_equal = matches!(self, Self::Equal | Self::LessOrEqual | Self::GreaterOrEqual);
        let nullish = value.is_none_or(ValueRef::is_nullish);
        if nullish && operand.is_nullish() {
            return allows_equal;
        }
        let same_bracket =
            value.filter(|value| TypeBracket::of(*value) == TypeBracket::of(operand));
        let Some(value) = same_bracket else {
            return match operand {
                ValueRef::MaxKey => matches!(self, Self::Less | Self::LessOrEqual),
                ValueRef::MinKey => matches!(self, Self::Greater | Self::GreaterOrEqual),
                _ => false,
            };
        };
        let is_nan = |value| Number::from_value(value).is_some_and(Number::is_nan);
        match (is_nan(value), is_nan(operand)) {
            (true, true) => return allows_equal,
            (true, false) | (false, true) => return false,
            (false, false) => {}
        }
        self.allows(compare(value, operand))
    }

    fn allows(self, order: Ordering) -> bool {
        match order {
            Ordering::Equal => {
                matches!(self, Self::Equal | Self::LessOrEqual | Self::GreaterOrEqual)
            }
            Ordering::Less => matches!(self, Self::Less | Self::LessOrEqual),
            Ordering::Greater => matches!(self, Self::Greater | Self::GreaterOrEqual),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The short way for numbers and strings says what the long one says.
    #[test]
    fn comparisons_of_common_types_hold_as_all_others_do() {
        let values: Vec<Bson> = vec![
            Bson::Null,
            Bson::Int32(i32::MIN),
            Bson::Int32(-1),
            Bson::Int32(7),
            Bson::Int64(i64::MIN),
            Bson::Int64(-1),
            Bson::Int64(7),
            Bson::Int64(i64::from(i32::MAX) + 8),
            Bson::Double(7.0),
            Bson::Double(f64::NAN),
            Bson::String(String::new()),
            Bson::String("a".to_owned()),
            Bson::String("ab".to_owned()),
            Bson::String("b".to_owned()),
            Bson::String("b\u{e4}".to_owned()),
            Bson::Symbol("a".to_owned()),
            Bson::MaxKey,
        ];
        let all = [
            Comparison::Equal,
            Comparison::Less,
            Comparison::LessOrEqual,
            Comparison::Greater,
            Comparison::GreaterOrEqual,
        ];
        for comparison in all {
            for value in values.iter().map(Some).chain([None]) {
                for operand in &values {
                    let (left, right) = (value.map(ValueRef::from), ValueRef::from(operand));
                    assert_eq!(
                        comparison.holds(left, right),
                        comparison.holds_in_general(left, right),
                        "{value:?} {comparison:?} {operand:?}"
                    );
                }
            }
        }
    }
}
