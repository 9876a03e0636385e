//! How the documents of a query are reached: through an index, or by looking at all of them.
//!
//! Owns the choice and the key ranges. The bounds come from the query crate and are a superset, so
//! every document found is checked against the query again; a poor choice costs time, never
//! correctness.

use std::ops::Bound;
use std::sync::Arc;

use bson::{Bson, Document};
use quorate_query::matcher::{Bounds, Interval, Matcher};
use quorate_query::value::ValueRef;
use quorate_storage::key::{FieldOrder, KeyError, RecordId, append_value};
use quorate_storage::{Direction, KeyRange};

use crate::catalog::{Collection, Index};
use crate::error::Result;
use crate::fields::whole_number;
use crate::index_keys::IndexField;

/// The most ranges of an index one plan reads. More points than this are read as one range, unless they are `_id`s: a
/// write to documents that are named finds each of them, and a query has no more than fit into a command.
const MAX_RANGES: usize = 1024;

/// The most documents that are looked up one by one in little time.
const MAX_SHORT_POINTS: usize = 64;

/// How the documents are reached.
#[derive(Clone, Debug)]
pub(crate) enum Access {
    /// Every document, in the order of insertion or against it.
    Collection(Direction),
    /// The documents inserted after this one, in the order of insertion.
    After(RecordId),
    /// The documents of some ranges of an index.
    Index(IndexAccess),
}

#[derive(Clone, Debug)]
pub(crate) struct IndexAccess {
    pub(crate) index: Arc<Index>,
    pub(crate) keys: IndexKeys,
    pub(crate) direction: Direction,
    /// What the query says about each field, for `explain`.
    pub(crate) bounds: Vec<Option<Bounds>>,
}

impl IndexAccess {
    /// Whether it looks one document up by its `_id`.
    pub(crate) fn is_by_id(&self) -> bool {
        self.index.is_id() && matches!(&self.keys, IndexKeys::Points(keys) if keys.len() == 1)
    }
}

/// The keys of an index that are read, in the order in which they are read.
#[derive(Clone, Debug)]
pub(crate) enum IndexKeys {
    /// Whole keys of a unique index, each of which names one record at most.
    Points(Vec<Vec<u8>>),
    Ranges(Vec<KeyRange>),
}

impl IndexKeys {
    fn reverse(&mut self) {
        match self {
            Self::Points(keys) => keys.reverse(),
            Self::Ranges(ranges) => ranges.reverse(),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) access: Access,
    /// Whether the documents come out in the order asked for.
    pub(crate) sorted: bool,
}

impl Plan {
    /// Whether it looks up documents that the query names.
    pub(crate) fn has_points(&self) -> bool {
        matches!(&self.access, Access::Index(IndexAccess { keys: IndexKeys::Points(_), .. }))
    }

    /// Whether it looks up a few documents that the query names.
    pub(crate) fn is_point(&self) -> bool {
        let Access::Index(access) = &self.access else { return false };
        matches!(&access.keys, IndexKeys::Points(keys) if keys.len() <= MAX_SHORT_POINTS)
    }
}

/// What the planner is asked.
pub(crate) struct Question<'a> {
    pub(crate) collection: &'a Collection,
    pub(crate) matcher: &'a Matcher,
    pub(crate) sort: Option<&'a Document>,
    pub(crate) hint: Option<&'a Bson>,
    pub(crate) min: Option<&'a Document>,
    pub(crate) max: Option<&'a Document>,
}

/// Chooses how to reach the documents.
pub(crate) fn choose(question: &Question<'_>) -> Result<Plan> {
    if question.min.is_some() || question.max.is_some() {
        return within(question);
    }
    match question.hint {
        Some(Bson::Document(hint)) if hint.contains_key("$natural") => natural(hint),
        Some(hint) => {
            let index = hinted_index(question.collection, hint)?;
            candidate(question, index, true).map_or_else(|| Ok(collection_scan()), Candidate::plan)
        }
        None => match question.sort {
            Some(sort) if sort.contains_key("$natural") => natural(sort),
            _ => best(question),
        },
    }
}

/// The keys of the hinted index from `min` up to, not including, `max`.
fn within(question: &Question<'_>) -> Result<Plan> {
    let hint =
        question.hint.ok_or_else(|| fail!(51173, "a query with min or max must have a hint"))?;
    let index = hinted_index(question.collection, hint)?;
    let bound = |values: &Document| {
        if !values.keys().eq(index.paths.iter().map(|path| path.as_str())) {
            refuse!(51174, "min and max must have the fields of the hinted index, in its order");
        }
        let mut key = index.ident.prefix().to_vec();
        for (value, field) in values.values().zip(&index.fields) {
            append_value(&mut key, value, field.order)?;
        }
        Ok(key)
    };
    let mut range = KeyRange::prefix(&index.ident.prefix());
    if let Some(min) = question.min {
        range.start = Bound::Included(bound(min)?);
    }
    if let Some(max) = question.max {
        range.end = Bound::Excluded(bound(max)?);
    }
    let bounds = vec![None; index.fields.len()];
    let direction = question.sort.and_then(|sort| sort_direction(index, &bounds, sort));
    let access = IndexAccess {
        index: Arc::clone(index),
        keys: IndexKeys::Ranges(vec![range]),
        direction: direction.unwrap_or(Direction::Forward),
        bounds,
    };
    Ok(Plan { access: Access::Index(access), sorted: direction.is_some() })
}

fn best(question: &Question<'_>) -> Result<Plan> {
    let mut best: Option<Candidate<'_>> = None;
    for index in question.collection.indexes.iter().filter(|index| !index.hidden) {
        let Some(candidate) = candidate(question, index, false) else { continue };
        if index.is_id() && candidate.score.unique_point {
            return candidate.plan();
        }
        if best.as_ref().is_none_or(|known| candidate.score > known.score) {
            best = Some(candidate);
        }
    }
    best.map_or_else(|| Ok(collection_scan()), Candidate::plan)
}

/// How promising a plan is; greater is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Score {
    /// One document at most.
    unique_point: bool,
    /// Leading fields that are fixed.
    fixed_fields: usize,
    /// Whether a range follows them.
    range: bool,
    sorted: bool,
}

/// A way through an index, whose keys are not worked out before it is chosen.
struct Candidate<'a> {
    index: &'a Arc<Index>,
    bounds: Vec<Option<Bounds>>,
    /// The direction that gives the order asked for, if one does.
    sorted: Option<Direction>,
    score: Score,
}

impl Candidate<'_> {
    fn plan(self) -> Result<Plan> {
        let mut keys = index_keys(self.index, &self.bounds)?;
        let direction = self.sorted.unwrap_or(Direction::Forward);
        if direction == Direction::Backward {
            keys.reverse();
        }
        let (index, bounds) = (Arc::clone(self.index), self.bounds);
        let access = IndexAccess { index, keys, direction, bounds };
        Ok(Plan { access: Access::Index(access), sorted: self.sorted.is_some() })
    }
}

/// A plan through this index, if it can give all documents and helps at all.
fn candidate<'a>(
    question: &Question<'_>,
    index: &'a Arc<Index>,
    hinted: bool,
) -> Option<Candidate<'a>> {
    if let Some(partial) = &index.partial
        && !question.matcher.implies(partial)
    {
        return None;
    }
    let paths: Vec<&str> = index.paths.iter().map(|path| path.as_str()).collect();
    let bounds = question.matcher.compound_bounds(&paths, index.multikey);
    let excludes_missing =
        |bounds: &Option<Bounds>| bounds.as_ref().is_some_and(|bounds| !bounds.may_match_missing());
    if index.sparse && !hinted && !bounds.iter().any(excludes_missing) {
        return None;
    }
    let leading_points = bounds
        .iter()
        .take_while(|bounds| bounds.as_ref().is_some_and(|bounds| bounds.point_count().is_some()))
        .count();
    let range = bounds.get(leading_points).is_some_and(Option::is_some);
    let sorted = question.sort.and_then(|sort| sort_direction(index, &bounds, sort));
    let score = Score {
        unique_point: index.unique && leading_points == index.fields.len(),
        fixed_fields: leading_points,
        range,
        sorted: sorted.is_some(),
    };
    if leading_points == 0 && !range && sorted.is_none() && !hinted {
        return None;
    }
    Some(Candidate { index, bounds, sorted, score })
}

/// The direction in which reading the index gives the order asked for, if there is one.
fn sort_direction(index: &Index, bounds: &[Option<Bounds>], sort: &Document) -> Option<Direction> {
    if index.multikey || sort.is_empty() {
        return None;
    }
    let single = |bounds: &Option<Bounds>| {
        bounds.as_ref().is_some_and(|bounds| bounds.point_count() == Some(1))
    };
    let (first, _) = sort.iter().next()?;
    let start = index.paths.iter().position(|path| path.as_str() == first)?;
    if !bounds[..start].iter().all(single) {
        return None;
    }
    let mut direction = None;
    let mut fields = index.paths.iter().zip(&index.fields).skip(start);
    for (name, order) in sort {
        let (path, IndexField { order: field_order, .. }) = fields.next()?;
        if path.as_str() != name {
            return None;
        }
        let wanted = match whole_number(order)? {
            number if number < 0 => FieldOrder::Descending,
            _ => FieldOrder::Ascending,
        };
        let needed = if wanted == *field_order { Direction::Forward } else { Direction::Backward };
        if *direction.get_or_insert(needed) != needed {
            return None;
        }
    }
    direction
}

fn index_keys(index: &Index, bounds: &[Option<Bounds>]) -> Result<IndexKeys> {
    let mut prefixes = vec![index.ident.prefix().to_vec()];
    let mut fixed = 0;
    for (field, bounds) in index.fields.iter().zip(bounds) {
        let Some(bounds) = bounds else { break };
        let count = bounds
            .point_count()
            .filter(|count| index.is_id() || count * prefixes.len() <= MAX_RANGES);
        match count {
            Some(count) => prefixes = extended(&prefixes, field.order, (bounds, count))?,
            None => {
                return interval_ranges(&prefixes, field.order, bounds).map(IndexKeys::Ranges);
            }
        }
        fixed += 1;
    }
    if index.unique && fixed == index.fields.len() {
        return Ok(IndexKeys::Points(prefixes));
    }
    Ok(IndexKeys::Ranges(prefixes.iter().map(|prefix| KeyRange::prefix(prefix)).collect()))
}

fn extended(
    prefixes: &[Vec<u8>],
    order: FieldOrder,
    (bounds, count): (&Bounds, usize),
) -> Result<Vec<Vec<u8>>, KeyError> {
    let mut result = Vec::with_capacity(prefixes.len() * count);
    for prefix in prefixes {
        for point in bounds.points() {
            let mut key = prefix.clone();
            append_value(&mut key, &point, order)?;
            result.push(key);
        }
    }
    // Points come in ascending order, the keys of a descending field in the other.
    result.sort();
    result.dedup();
    Ok(result)
}

fn interval_ranges(
    prefixes: &[Vec<u8>],
    order: FieldOrder,
    bounds: &Bounds,
) -> Result<Vec<KeyRange>> {
    let intervals = bounds.intervals();
    let mut ranges = Vec::new();
    for prefix in prefixes {
        if intervals.len() * prefixes.len() > MAX_RANGES {
            ranges.push(KeyRange::prefix(prefix));
            continue;
        }
        let ordered: Box<dyn Iterator<Item = &Interval>> = match order {
            FieldOrder::Ascending => Box::new(intervals.iter()),
            FieldOrder::Descending => Box::new(intervals.iter().rev()),
        };
        for interval in ordered {
            ranges.push(interval_range(prefix, order, interval)?);
        }
    }
    Ok(ranges)
}

/// Keys go on after the value, with further fields or the record id, so a bound that includes or
/// excludes a value includes or excludes every key that starts with it.
fn interval_range(
    prefix: &[u8],
    order: FieldOrder,
    interval: &Interval,
) -> Result<KeyRange, KeyError> {
    let (low, high) = match order {
        FieldOrder::Ascending => (interval.lower(), interval.upper()),
        FieldOrder::Descending => (interval.upper(), interval.lower()),
    };
    let whole = KeyRange::prefix(prefix);
    let key = |value: ValueRef<'_>| {
        let mut key = prefix.to_vec();
        append_value(&mut key, &value.to_bson(), order)?;
        Ok::<_, KeyError>(key)
    };
    let after = |value: ValueRef<'_>| Ok::<_, KeyError>(KeyRange::prefix(&key(value)?).end);
    let start = match low {
        Bound::Included(value) => Bound::Included(key(value)?),
        Bound::Excluded(value) => match after(value)? {
            Bound::Excluded(key) => Bound::Included(key),
            other => other,
        },
        Bound::Unbounded => whole.start,
    };
    let end = match high {
        Bound::Included(value) => after(value)?,
        Bound::Excluded(value) => Bound::Excluded(key(value)?),
        Bound::Unbounded => whole.end,
    };
    Ok(KeyRange { start, end })
}

fn hinted_index<'a>(collection: &'a Collection, hint: &Bson) -> Result<&'a Arc<Index>> {
    let found = match hint {
        Bson::String(name) => collection.index(name),
        Bson::Document(key) => collection.index_with_key(key)?,
        _ => {
            refuse!(FAILED_TO_PARSE, "hint must be the name of an index or its key pattern");
        }
    };
    found.ok_or_else(|| {
        fail!(
            BAD_VALUE,
            "error processing query: planner returned error: hint provided does not correspond to \
             an existing index"
        )
    })
}

/// Whether two key patterns name the same fields in the same directions.
pub(crate) fn same_key(left: &Document, right: &Document) -> bool {
    left.len() == right.len()
        && left.iter().zip(right).all(|((left_name, left), (right_name, right))| {
            let same_number = match (whole_number(left), whole_number(right)) {
                (Some(left), Some(right)) => left == right,
                _ => left == right,
            };
            left_name == right_name && same_number
        })
}

/// The order of insertion, or against it.
fn natural(order: &Document) -> Result<Plan> {
    let direction = match order.get("$natural").and_then(whole_number) {
        Some(1) => Direction::Forward,
        Some(-1) => Direction::Backward,
        _ => {
            refuse!(BAD_VALUE, "$natural sort cannot be set to a value other than -1 or 1.");
        }
    };
    refuse_if!(order.len() > 1 => BAD_VALUE,
        "$natural cannot be combined with other fields; sort by it alone");
    // A sort by `$natural` is fulfilled; with a hint there may be another sort to do.
    Ok(Plan { access: Access::Collection(direction), sorted: false })
}

fn collection_scan() -> Plan {
    Plan { access: Access::Collection(Direction::Forward), sorted: false }
}
