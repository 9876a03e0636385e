//! The update operators on arrays: `$push`, `$addToSet`, `$pop`, `$pull`, `$pullAll`.
//!
//! Owns their arguments and effects. `$push` inserts, then sorts, then cuts, whatever the order in
//! which its modifiers are written.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use bson::{Bson, Document};

use super::operators::PopEnd;
use crate::error::Result;
use crate::expression::Compiler;
use crate::matcher::Matcher;
use crate::matcher::is_operator_document;
use crate::meter::{Kept, Meter};
use crate::sorting::sorted;
use crate::value::size::{Growth, value_size};
use crate::value::{GroupKey, Number, Path, ValueRef, compare, equal, type_name_of};

/// The argument of `$push`.
#[derive(Debug, Clone, Default)]
pub(super) struct Push {
    values: Vec<Bson>,
    position: Option<i64>,
    sort: Option<ElementSort>,
    slice: Option<i64>,
}

/// How `$push` sorts.
#[derive(Debug, Clone)]
enum ElementSort {
    Whole { descending: bool },
    Fields(Vec<(Path, bool)>),
}

/// What `$pull` removes.
#[derive(Debug, Clone)]
pub(super) enum PullCondition {
    /// Elements equal to a value.
    Equal(Bson),
    /// Documents that match a query.
    Documents(Matcher),
    /// Elements that match operators; the query is about the empty field name.
    Values(Matcher),
}

impl Push {
    pub(super) fn modify(&self, value: &mut Bson, path: &str, growth: &mut Growth) -> Result<()> {
        let Bson::Array(items) = value else {
            refuse!(
                BAD_VALUE,
                "The field '{path}' must be an array but is of type {} in the document",
                type_name_of(value)
            );
        };
        let items = std::mem::take(items);
        *value = Bson::Array(self.applied_to(items, growth)?);
        Ok(())
    }

    pub(super) fn applied_to(
        &self,
        mut items: Vec<Bson>,
        growth: &mut Growth,
    ) -> Result<Vec<Bson>> {
        growth.charge(self.values.iter().map(|value| value_size(value) + 2).sum())?;
        growth.meter().check()?;
        let position = match self.position {
            None => items.len(),
            Some(position) => from_either_end(position, items.len()),
        };
        items.splice(position..position, self.values.iter().cloned());
        if let Some(sort) = &self.sort {
            items = sorted(items, |left, right| sort.compare(left, right), growth.meter())?;
        }
        match self.slice {
            None => {}
            Some(slice) if slice >= 0 => {
                items.truncate(usize::try_from(slice).unwrap_or(usize::MAX));
            }
            Some(slice) => {
                let keep = usize::try_from(slice.unsigned_abs()).unwrap_or(usize::MAX);
                let drop = items.len().saturating_sub(keep);
                items.drain(..drop);
            }
        }
        Ok(items)
    }
}

/// A position counted from the end if it is negative, and never beyond either end.
fn from_either_end(position: i64, length: usize) -> usize {
    let distance = usize::try_from(position.unsigned_abs()).unwrap_or(usize::MAX);
    if position >= 0 { distance.min(length) } else { length.saturating_sub(distance) }
}

impl ElementSort {
    fn compare(&self, left: &Bson, right: &Bson) -> Ordering {
        match self {
            Self::Whole { descending: false } => compare(left, right),
            Self::Whole { descending: true } => compare(right, left),
            Self::Fields(fields) => {
                for (path, descending) in fields {
                    let (left, right) = (field_of(left, path), field_of(right, path));
                    let order = compare(left, right);
                    if order.is_ne() {
                        return if *descending { order.reverse() } else { order };
                    }
                }
                Ordering::Equal
            }
        }
    }
}

fn field_of<'a>(element: &'a Bson, path: &Path) -> ValueRef<'a> {
    element.as_document().and_then(|document| path.get(document.into())).unwrap_or(ValueRef::Null)
}

/// Reads the argument of `$push`: a value, or `$each` with modifiers.
pub(super) fn parse_push(argument: &Bson) -> Result<Push> {
    let modifiers = match argument {
        Bson::Document(document) if document.contains_key("$each") => document,
        value => return Ok(Push { values: vec![value.clone()], ..Push::default() }),
    };
    let mut push = Push::default();
    for (modifier, value) in modifiers {
        match modifier.as_str() {
            "$each" => match value {
                Bson::Array(values) => push.values.clone_from(values),
                other => {
                    refuse!(
                        BAD_VALUE,
                        "The argument to $each in $push must be an array but it was of type: {}",
                        type_name_of(other)
                    );
                }
            },
            "$position" => push.position = Some(whole_number("$position", value)?),
            "$slice" => push.slice = Some(whole_number("$slice", value)?),
            "$sort" => push.sort = Some(parse_sort(value)?),
            unknown => {
                refuse!(BAD_VALUE, "Unrecognized clause in $push: {unknown}");
            }
        }
    }
    Ok(push)
}

fn whole_number(modifier: &str, value: &Bson) -> Result<i64> {
    Number::from_value(value).and_then(Number::to_i64_exact).ok_or_else(|| {
        fail!(
            BAD_VALUE,
            "The value for {modifier} must be an integer value but was given type: {}",
            type_name_of(value)
        )
    })
}

fn parse_sort(value: &Bson) -> Result<ElementSort> {
    let refused = || {
        fail!(
            BAD_VALUE,
            "The $sort is invalid: use 1/-1 to sort the whole element, or {{field:1/-1}} to sort \
             embedded fields"
        )
    };
    let direction = |value: &Bson| match Number::from_value(value).and_then(Number::to_i64_exact) {
        Some(1) => Ok(false),
        Some(-1) => Ok(true),
        _ => Err(refused()),
    };
    match value {
        Bson::Document(pattern) if pattern.is_empty() => {
            Err(fail!(BAD_VALUE, "The $sort pattern is empty when it should be a set of fields."))
        }
        Bson::Document(pattern) => {
            let mut fields = Vec::with_capacity(pattern.len());
            for (field, order) in pattern {
                refuse_if!(field.is_empty() || field.split('.').any(str::is_empty) => BAD_VALUE,
                    "The $sort field is a dotted field but has an empty part: {field}");
                fields.push((Path::parse(field)?, direction(order)?));
            }
            Ok(ElementSort::Fields(fields))
        }
        order => Ok(ElementSort::Whole { descending: direction(order)? }),
    }
}

/// Reads the argument of `$addToSet`: a value, or `$each` with several.
pub(super) fn parse_add_to_set(argument: &Bson) -> Result<Vec<Bson>> {
    let document = match argument {
        Bson::Document(document) if document.keys().next().is_some_and(|key| key == "$each") => {
            document
        }
        value => return Ok(vec![value.clone()]),
    };
    refuse_if!(document.len() > 1 => BAD_VALUE,
        "Found unexpected fields after $each in $addToSet: {document}");
    match document.get("$each") {
        Some(Bson::Array(values)) => Ok(values.clone()),
        other => Err(fail!(
            TYPE_MISMATCH,
            "The argument to $each in $addToSet must be an array but it was of type {}",
            other.map_or("missing", type_name_of)
        )),
    }
}

/// Adds the values that are not there yet.
pub(super) fn add_to_set(
    value: &mut Bson,
    path: &str,
    values: &[Bson],
    growth: &mut Growth,
) -> Result<()> {
    let Bson::Array(items) = value else {
        refuse!(
            BAD_VALUE,
            "Cannot apply $addToSet to non-array field. Field named '{path}' has non-array type {}",
            type_name_of(value)
        );
    };
    let mut present = keys(items, growth.meter())?;
    for value in values {
        growth.step()?;
        if present.insert(GroupKey::of(value)) {
            growth.charge(value_size(value) + 2)?;
            items.push(value.clone());
        }
    }
    Ok(())
}

/// The keys of many values, asking now and then whether to go on.
fn keys(values: &[Bson], meter: &Meter) -> Result<Kept<BTreeSet<GroupKey>>> {
    let mut keys = Kept::new(BTreeSet::new(), meter);
    for value in values {
        meter.step()?;
        keys.insert(GroupKey::of(value));
    }
    Ok(keys)
}

/// Reads the argument of `$pop`.
pub(super) fn parse_pop(path: &str, argument: &Bson) -> Result<PopEnd> {
    let number = Number::from_value(argument)
        .ok_or_else(|| fail!(FAILED_TO_PARSE, "Expected a number in: {path}: {argument}"))?;
    match number.to_i64_exact() {
        Some(1) => Ok(PopEnd::Last),
        Some(-1) => Ok(PopEnd::First),
        _ => Err(fail!(FAILED_TO_PARSE, "$pop expects 1 or -1, found: {argument}")),
    }
}

/// Removes the first or the last element.
pub(super) fn pop(value: &mut Bson, path: &str, end: PopEnd) -> Result<()> {
    let Bson::Array(items) = value else {
        refuse!(
            TYPE_MISMATCH,
            "Path '{path}' contains an element of non-array type '{}'",
            type_name_of(value)
        );
    };
    match end {
        PopEnd::Last => {
            items.pop();
        }
        PopEnd::First if !items.is_empty() => {
            items.remove(0);
        }
        PopEnd::First => {}
    }
    Ok(())
}

/// Reads the argument of `$pull`.
pub(super) fn parse_pull(argument: &Bson, compiler: &Compiler) -> Result<PullCondition> {
    match argument {
        Bson::Document(query) if !is_operator_document(query) => {
            Ok(PullCondition::Documents(Matcher::parse_element(query, compiler)?))
        }
        Bson::Document(query)
            if matches!(query.keys().next().map(String::as_str), Some("$and" | "$or" | "$nor")) =>
        {
            Ok(PullCondition::Documents(Matcher::parse_with(query, compiler)?))
        }
        Bson::Document(_) | Bson::RegularExpression(_) => {
            let mut query = Document::new();
            query.insert("", argument.clone());
            Ok(PullCondition::Values(Matcher::parse_with(&query, compiler)?))
        }
        value => Ok(PullCondition::Equal(value.clone())),
    }
}

/// Removes every element that the condition matches.
pub(super) fn pull(value: &mut Bson, condition: &PullCondition, growth: &Growth) -> Result<()> {
    remove_where(value, growth, |item| condition.matches(item))
}

/// Removes every element of which this is true; asks for each whether to go on.
fn remove_where(
    value: &mut Bson,
    growth: &Growth,
    unwanted: impl Fn(&Bson) -> Result<bool>,
) -> Result<()> {
    let Bson::Array(items) = value else {
        refuse!(BAD_VALUE, "Cannot apply $pull to a non-array value");
    };
    let mut failure = None;
    items.retain(|item| {
        if failure.is_some() {
            return true;
        }
        growth.step().and_then(|()| unwanted(item)).map_or_else(
            |error| {
                failure = Some(error);
                true
            },
            |matched| !matched,
        )
    });
    failure.map_or(Ok(()), Err)
}

impl PullCondition {
    fn matches(&self, item: &Bson) -> Result<bool> {
        match self {
            Self::Equal(value) => Ok(equal(value, item)),
            Self::Documents(matcher) => match item {
                Bson::Document(document) => matcher.matches(document),
                _ => Ok(false),
            },
            Self::Values(matcher) => {
                let mut holder = Document::new();
                holder.insert("", item.clone());
                matcher.matches(&holder)
            }
        }
    }
}

/// Reads the argument of `$pullAll`.
pub(super) fn parse_pull_all(argument: &Bson) -> Result<Vec<Bson>> {
    match argument {
        Bson::Array(values) => Ok(values.clone()),
        other => Err(fail!(
            BAD_VALUE,
            "$pullAll requires an array argument but was given a {}",
            type_name_of(other)
        )),
    }
}

/// Removes every element that equals one of the values.
pub(super) fn pull_all(value: &mut Bson, values: &[Bson], growth: &Growth) -> Result<()> {
    let unwanted = keys(values, growth.meter())?;
    remove_where(value, growth, |item| Ok(unwanted.contains(&GroupKey::of(item))))
}
