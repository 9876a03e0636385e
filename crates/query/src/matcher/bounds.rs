//! What a query says about the values of a field, for the planner of index use.
//!
//! Bounds are always a superset: every matching document has, for the path, at least one index key
//! within them. The planner therefore keeps the matcher as a filter behind the index scan. A
//! multikey index holds one key per array element, so two predicates on one path may be satisfied
//! by two different keys; then only one of them can bound the scan.

use std::cmp::Ordering;
use std::ops::Bound;

use bson::spec::BinarySubtype;
use bson::{Bson, Document, Timestamp, oid::ObjectId};

use super::{Comparison, Condition, Matcher, Node, Predicate, RegexMatcher};
use crate::value::compact::Compact;
use crate::value::path::parse_index;
use crate::value::{Number, TypeBracket, ValueRef, compare};

/// A range in the total order of BSON values.
#[derive(Debug, Clone, PartialEq)]
pub struct Interval(Ends);

/// A long `$in` is very many points, and few queries have more than one range.
#[derive(Debug, Clone, PartialEq)]
enum Ends {
    Point(Compact),
    Range(Box<(Bound<Bson>, Bound<Bson>)>),
}

/// The ranges that a query allows a field, ascending and apart from each other.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Bounds {
    intervals: Vec<Interval>,
}

impl Interval {
    fn new(lower: Bound<Bson>, upper: Bound<Bson>) -> Self {
        Self(Ends::Range(Box::new((lower, upper))))
    }

    fn point(value: impl Into<Compact>) -> Self {
        Self(Ends::Point(value.into()))
    }

    /// Where it starts; never unbounded.
    pub fn lower(&self) -> Bound<ValueRef<'_>> {
        match &self.0 {
            Ends::Point(value) => Bound::Included(value.into()),
            Ends::Range(ends) => ends.0.as_ref().map(ValueRef::from),
        }
    }

    /// Where it ends; never unbounded.
    pub fn upper(&self) -> Bound<ValueRef<'_>> {
        match &self.0 {
            Ends::Point(value) => Bound::Included(value.into()),
            Ends::Range(ends) => ends.1.as_ref().map(ValueRef::from),
        }
    }

    /// The same with another start or end.
    fn beginning_at(self, lower: Bound<Bson>) -> Self {
        Self::new(lower, owned(self.upper()))
    }

    fn ending_at(self, upper: Bound<Bson>) -> Self {
        Self::new(owned(self.lower()), upper)
    }

    /// The value, if the interval holds exactly one.
    pub(crate) fn as_point(&self) -> Option<ValueRef<'_>> {
        match (self.lower(), self.upper()) {
            (Bound::Included(lower), Bound::Included(upper)) => {
                compare(lower, upper).is_eq().then_some(lower)
            }
            _ => None,
        }
    }

    /// Whether a value lies within.
    pub fn contains(&self, value: &Bson) -> bool {
        let above = match self.lower() {
            Bound::Included(lower) => compare(value, lower).is_ge(),
            Bound::Excluded(lower) => compare(value, lower).is_gt(),
            Bound::Unbounded => true,
        };
        above
            && match self.upper() {
                Bound::Included(upper) => compare(value, upper).is_le(),
                Bound::Excluded(upper) => compare(value, upper).is_lt(),
                Bound::Unbounded => true,
            }
    }

    fn is_empty(&self) -> bool {
        match (self.lower(), self.upper()) {
            (Bound::Included(lower), Bound::Included(upper)) => compare(lower, upper).is_gt(),
            (Bound::Included(lower) | Bound::Excluded(lower), Bound::Excluded(upper))
            | (Bound::Excluded(lower), Bound::Included(upper)) => compare(lower, upper).is_ge(),
            _ => false,
        }
    }

    fn intersect(&self, other: &Self) -> Self {
        let lower = if compare_lower(self.lower(), other.lower()).is_ge() { self } else { other };
        let upper = if compare_upper(self.upper(), other.upper()).is_le() { self } else { other };
        match (std::ptr::eq(lower, upper), lower.as_point(), upper.as_point()) {
            (true, ..) => lower.clone(),
            // Many points meet a range: each stays what it is.
            (_, Some(point), Some(same)) if compare(point, same).is_eq() => lower.clone(),
            _ => Self::new(owned(lower.lower()), owned(upper.upper())),
        }
    }

    fn is_within(&self, other: &Self) -> bool {
        compare_lower(self.lower(), other.lower()).is_ge()
            && compare_upper(self.upper(), other.upper()).is_le()
    }
}

fn owned(bound: Bound<ValueRef<'_>>) -> Bound<Bson> {
    bound.map(ValueRef::to_bson)
}

fn compare_lower(left: Bound<ValueRef<'_>>, right: Bound<ValueRef<'_>>) -> Ordering {
    match (left, right) {
        (Bound::Unbounded, Bound::Unbounded) => Ordering::Equal,
        (Bound::Unbounded, _) => Ordering::Less,
        (_, Bound::Unbounded) => Ordering::Greater,
        (Bound::Included(a) | Bound::Excluded(a), Bound::Included(b) | Bound::Excluded(b)) => {
            let excluded = |bound: Bound<ValueRef<'_>>| matches!(bound, Bound::Excluded(_));
            compare(a, b).then(excluded(left).cmp(&excluded(right)))
        }
    }
}

fn compare_upper(left: Bound<ValueRef<'_>>, right: Bound<ValueRef<'_>>) -> Ordering {
    match (left, right) {
        (Bound::Unbounded, Bound::Unbounded) => Ordering::Equal,
        (Bound::Unbounded, _) => Ordering::Greater,
        (_, Bound::Unbounded) => Ordering::Less,
        (Bound::Included(a) | Bound::Excluded(a), Bound::Included(b) | Bound::Excluded(b)) => {
            let included = |bound: Bound<ValueRef<'_>>| matches!(bound, Bound::Included(_));
            compare(a, b).then(included(left).cmp(&included(right)))
        }
    }
}

impl Bounds {
    fn new(mut intervals: Vec<Interval>) -> Self {
        intervals.retain(|interval| !interval.is_empty());
        intervals.sort_by(|left, right| compare_lower(left.lower(), right.lower()));
        intervals.dedup_by(|next, last| {
            let joins = touches(last, next);
            if joins && compare_upper(next.upper(), last.upper()).is_gt() {
                *last = Interval::new(owned(last.lower()), owned(next.upper()));
            }
            joins
        });
        Self { intervals }
    }

    /// The ranges, ascending. None at all means that nothing can match.
    pub fn intervals(&self) -> &[Interval] {
        &self.intervals
    }

    /// How many values there are, if every range is a single one: an equality or an `$in`.
    pub fn point_count(&self) -> Option<usize> {
        let is_point = |interval: &Interval| interval.as_point().is_some();
        self.intervals.iter().all(is_point).then_some(self.intervals.len())
    }

    /// The values of ranges that are a single one.
    pub fn points(&self) -> impl Iterator<Item = Bson> {
        self.intervals.iter().filter_map(|interval| Some(interval.as_point()?.to_bson()))
    }

    /// Whether documents without the field may match. A sparse index must not be used then.
    pub fn may_match_missing(&self) -> bool {
        self.intervals.iter().any(|interval| interval.contains(&Bson::Null))
    }

    fn intersect(&self, other: &Self) -> Self {
        // Both sides are sorted, so whichever interval ends first meets nothing further.
        let mut intervals = Vec::new();
        let (mut left, mut right) = (self.intervals.iter(), other.intervals.iter());
        let (mut next_left, mut next_right) = (left.next(), right.next());
        while let (Some(a), Some(b)) = (next_left, next_right) {
            intervals.push(a.intersect(b));
            if compare_upper(a.upper(), b.upper()).is_le() {
                next_left = left.next();
            } else {
                next_right = right.next();
            }
        }
        Self::new(intervals)
    }

    fn is_within(&self, other: &Self) -> bool {
        self.intervals.iter().all(|interval| {
            // Only the last interval that starts no later can hold this one.
            let after = other
                .intervals
                .partition_point(|outer| compare_lower(outer.lower(), interval.lower()).is_le());
            after.checked_sub(1).is_some_and(|found| interval.is_within(&other.intervals[found]))
        })
    }

    /// A rough order of how much is left to scan: points before ranges, few before many.
    fn cost(&self) -> (usize, usize) {
        let points = self.intervals.iter().filter(|i| i.as_point().is_some()).count();
        (self.intervals.len() - points, points)
    }
}

/// Whether the second interval starts within the first or right at its end.
fn touches(first: &Interval, second: &Interval) -> bool {
    match (first.upper(), second.lower()) {
        (Bound::Included(end), Bound::Included(start) | Bound::Excluded(start))
        | (Bound::Excluded(end), Bound::Included(start)) => compare(start, end).is_le(),
        (Bound::Excluded(end), Bound::Excluded(start)) => compare(start, end).is_lt(),
        _ => true,
    }
}

impl Matcher {
    /// The bounds that the query puts on a path, or `None` if it puts none. Pass `multikey` as true
    /// when any document of the index has an array on that path.
    pub fn bounds(&self, path: &str, multikey: bool) -> Option<Bounds> {
        // A number may be a position and a field name at once, so a query sees several values
        // through it even where the index has one key.
        node_bounds(self.root(), path, multikey || is_numbered(path))
    }

    /// The bounds for the fields of a compound index, in its order. In a multikey index two fields
    /// that share their first component may come from different elements of the same array, so
    /// only the first of them is bounded.
    pub fn compound_bounds(&self, paths: &[&str], multikey: bool) -> Vec<Option<Bounds>> {
        let head = |path: &str| path.split('.').next().unwrap_or("").to_owned();
        let mut bounded_heads = Vec::new();
        paths
            .iter()
            .map(|path| {
                if (multikey || is_numbered(path)) && bounded_heads.contains(&head(path)) {
                    return None;
                }
                let bounds = self.bounds(path, multikey)?;
                bounded_heads.push(head(path));
                Some(bounds)
            })
            .collect()
    }

    /// Whether every document that this query matches certainly matches `filter` too. A partial
    /// index may only be used then. A wrong "no" costs speed, a wrong "yes" would lose documents,
    /// so anything unclear is "no".
    pub fn implies(&self, filter: &Matcher) -> bool {
        self.implies_node(filter.root())
    }

    fn implies_node(&self, filter: &Node) -> bool {
        match filter {
            Node::And(children) => children.iter().all(|child| self.implies_node(child)),
            Node::Or(children) => children.iter().any(|child| self.implies_node(child)),
            Node::Constant(value) => *value,
            Node::Field { path, condition } => self.implies_condition(path.as_str(), condition),
            _ => false,
        }
    }

    fn implies_condition(&self, path: &str, condition: &Condition) -> bool {
        let predicate = match condition {
            Condition::And(children) => {
                return children.iter().all(|child| self.implies_condition(path, child));
            }
            Condition::Not(_) => return false,
            Condition::Leaf(predicate) => predicate,
        };
        if contains_leaf(self.root(), path, predicate) {
            return true;
        }
        let Some(own) = self.bounds(path, true) else { return false };
        match predicate {
            Predicate::Exists => !own.may_match_missing(),
            Predicate::Compare(_, operand) if !is_special(operand) => {
                predicate_bounds(predicate).is_some_and(|wanted| own.is_within(&wanted))
            }
            Predicate::In(list)
                if list.regexes.is_empty() && !list.values.iter().any(is_special) =>
            {
                predicate_bounds(predicate).is_some_and(|wanted| own.is_within(&wanted))
            }
            _ => false,
        }
    }
}

/// Whether a part of the path is a number.
fn is_numbered(path: &str) -> bool {
    path.split('.').any(|part| parse_index(part).is_some())
}

/// Values whose bounds are wider than what they match.
fn is_special<'v>(value: impl Into<ValueRef<'v>>) -> bool {
    match value.into() {
        ValueRef::Null
        | ValueRef::Undefined
        | ValueRef::Array(_)
        | ValueRef::MinKey
        | ValueRef::MaxKey => true,
        value => Number::from_value(value).is_some_and(Number::is_nan),
    }
}

/// Whether the very same predicate is one of the conjuncts.
fn contains_leaf(node: &Node, path: &str, wanted: &Predicate) -> bool {
    match node {
        Node::And(children) => children.iter().any(|child| contains_leaf(child, path, wanted)),
        Node::Field { path: own, condition } if own.as_str() == path => {
            condition_contains(condition, wanted)
        }
        _ => false,
    }
}

fn condition_contains(condition: &Condition, wanted: &Predicate) -> bool {
    match condition {
        Condition::And(children) => children.iter().any(|c| condition_contains(c, wanted)),
        Condition::Not(_) => false,
        Condition::Leaf(own) => match (own, wanted) {
            (Predicate::Exists, Predicate::Exists) => true,
            (Predicate::Type(own), Predicate::Type(wanted)) => own == wanted,
            (Predicate::Compare(own, value), Predicate::Compare(wanted, other)) => {
                own == wanted && compare(value, other).is_eq()
            }
            _ => false,
        },
    }
}

fn node_bounds(node: &Node, path: &str, multikey: bool) -> Option<Bounds> {
    match node {
        Node::And(children) => {
            combine(children.iter().map(|child| node_bounds(child, path, multikey)), multikey)
        }
        Node::Or(children) => {
            let mut intervals = Vec::new();
            for child in children {
                intervals.extend(node_bounds(child, path, multikey)?.intervals);
            }
            Some(Bounds::new(intervals))
        }
        // Through `a.0` a query also looks for a field 0 in every element and finds it missing,
        // while the index holds the first element: null is then no bound.
        Node::Field { path: own, condition } if own.as_str() == path => {
            condition_bounds(condition, multikey)
                .filter(|bounds| !(is_numbered(path) && bounds.may_match_missing()))
        }
        Node::Field { path: own, condition } => {
            let inner = path.strip_prefix(own.as_str())?.strip_prefix('.')?;
            elem_match_bounds(condition, inner)
        }
        Node::Constant(false) => Some(Bounds::default()),
        _ => None,
    }
}

/// Several predicates that all hold: their intersection, or with arrays the most selective one.
fn combine(parts: impl Iterator<Item = Option<Bounds>>, multikey: bool) -> Option<Bounds> {
    parts.flatten().reduce(|all, next| match multikey {
        false => all.intersect(&next),
        true if next.cost() < all.cost() => next,
        true => all,
    })
}

fn condition_bounds(condition: &Condition, multikey: bool) -> Option<Bounds> {
    match condition {
        Condition::And(children) => {
            combine(children.iter().map(|child| condition_bounds(child, multikey)), multikey)
        }
        Condition::Not(_) => None,
        Condition::Leaf(predicate) => predicate_bounds(predicate),
    }
}

/// `{a: {$elemMatch: {b: 1}}}` bounds the path `a.b`, which is then within an array.
fn elem_match_bounds(condition: &Condition, inner: &str) -> Option<Bounds> {
    match condition {
        Condition::And(children) => {
            combine(children.iter().map(|child| elem_match_bounds(child, inner)), true)
        }
        Condition::Leaf(Predicate::ElemMatchObject(node)) => node_bounds(node, inner, true),
        _ => None,
    }
}

fn predicate_bounds(predicate: &Predicate) -> Option<Bounds> {
    match predicate {
        Predicate::Compare(comparison, operand) => comparison_bounds(*comparison, operand),
        Predicate::In(list) => {
            let mut intervals = Vec::with_capacity(list.values.len());
            for value in &list.values {
                match value {
                    Compact::Other(value) => intervals.extend(equality_intervals(value)),
                    value => intervals.push(Interval::point(value.clone())),
                }
            }
            for regex in &list.regexes {
                intervals.extend(regex_intervals(regex));
            }
            Some(Bounds::new(intervals))
        }
        Predicate::Regex(regex) => Some(Bounds::new(regex_intervals(regex))),
        Predicate::Mod { .. } => bracket_interval(TypeBracket::Number).map(single),
        // One element satisfies all of it, and an element is one key.
        Predicate::ElemMatchValue(condition) => condition_bounds(condition, false),
        Predicate::Nothing => Some(Bounds::default()),
        _ => None,
    }
}

fn single(interval: Interval) -> Bounds {
    Bounds::new(vec![interval])
}

fn comparison_bounds(comparison: Comparison, operand: &Bson) -> Option<Bounds> {
    if comparison == Comparison::Equal {
        return Some(Bounds::new(equality_intervals(operand)));
    }
    let bracket = TypeBracket::of(operand.into());
    match bracket {
        TypeBracket::Array | TypeBracket::MinKey | TypeBracket::MaxKey => return None,
        TypeBracket::Null | TypeBracket::Undefined => {
            return match comparison {
                Comparison::Less | Comparison::Greater => Some(Bounds::default()),
                _ => Some(Bounds::new(equality_intervals(operand))),
            };
        }
        _ => {}
    }
    if Number::from_value(operand).is_some_and(Number::is_nan) {
        return Some(Bounds::new(equality_intervals(operand)));
    }
    let whole = bracket_interval(bracket)?;
    let operand = operand.clone();
    Some(single(match comparison {
        Comparison::Less => whole.ending_at(Bound::Excluded(operand)),
        Comparison::LessOrEqual => whole.ending_at(Bound::Included(operand)),
        Comparison::Greater => whole.beginning_at(Bound::Excluded(operand)),
        Comparison::GreaterOrEqual | Comparison::Equal => {
            whole.beginning_at(Bound::Included(operand))
        }
    }))
}

/// An array is found by its first element, since an index holds its elements, or as itself when it
/// is an element. An empty array is indexed as undefined. Null stands for missing as well.
fn equality_intervals(value: &Bson) -> Vec<Interval> {
    match value {
        Bson::Array(items) => {
            let key = items.first().cloned().unwrap_or(Bson::Undefined);
            vec![Interval::point(key), Interval::point(value.clone())]
        }
        Bson::Null | Bson::Undefined => {
            vec![Interval::new(Bound::Included(Bson::Undefined), Bound::Included(Bson::Null))]
        }
        value => vec![Interval::point(value.clone())],
    }
}

fn regex_intervals(regex: &RegexMatcher) -> Vec<Interval> {
    let strings = regex
        .literal_prefix()
        .and_then(|prefix| {
            let end = string_after_prefix(&prefix)?;
            let end = Bound::Excluded(Bson::String(end));
            Some(Interval::new(Bound::Included(Bson::String(prefix)), end))
        })
        .or_else(|| bracket_interval(TypeBracket::String));
    strings.into_iter().chain(bracket_interval(TypeBracket::RegularExpression)).collect()
}

/// The least string above every string with the prefix: the last character replaced by its
/// successor.
fn string_after_prefix(prefix: &str) -> Option<String> {
    let mut characters: Vec<char> = prefix.chars().collect();
    while let Some(last) = characters.pop() {
        // The successor skips the gap of surrogates, which are not characters.
        let next = match last as u32 + 1 {
            0xd800 => Some('\u{e000}'),
            code => char::from_u32(code),
        };
        if let Some(next) = next {
            characters.push(next);
            return Some(characters.into_iter().collect());
        }
    }
    None
}

/// The range of all values of a bracket, or a little more where its end cannot be written down.
fn bracket_interval(bracket: TypeBracket) -> Option<Interval> {
    let binary = Bson::Binary(bson::Binary { subtype: BinarySubtype::Generic, bytes: Vec::new() });
    let scope = bson::JavaScriptCodeWithScope { code: String::new(), scope: Document::new() };
    let document = Bson::Document(Document::new());
    let smallest_regex = || {
        Some(Bson::RegularExpression(bson::Regex {
            pattern: "".try_into().ok()?,
            options: "".try_into().ok()?,
        }))
    };
    let (lower, upper) = match bracket {
        TypeBracket::Number => {
            (Bson::Double(f64::NAN), Bound::Included(Bson::Double(f64::INFINITY)))
        }
        TypeBracket::String => (Bson::String(String::new()), Bound::Excluded(document)),
        TypeBracket::Object => (document, Bound::Excluded(Bson::Array(Vec::new()))),
        TypeBracket::Array => (Bson::Array(Vec::new()), Bound::Excluded(binary)),
        TypeBracket::Binary => {
            (binary, Bound::Excluded(Bson::ObjectId(ObjectId::from_bytes([0; 12]))))
        }
        TypeBracket::ObjectId => (
            Bson::ObjectId(ObjectId::from_bytes([0; 12])),
            Bound::Included(Bson::ObjectId(ObjectId::from_bytes([0xff; 12]))),
        ),
        TypeBracket::Boolean => (Bson::Boolean(false), Bound::Included(Bson::Boolean(true))),
        TypeBracket::Date => (
            Bson::DateTime(bson::DateTime::from_millis(i64::MIN)),
            Bound::Included(Bson::DateTime(bson::DateTime::from_millis(i64::MAX))),
        ),
        TypeBracket::Timestamp => (
            Bson::Timestamp(Timestamp { time: 0, increment: 0 }),
            Bound::Included(Bson::Timestamp(Timestamp { time: u32::MAX, increment: u32::MAX })),
        ),
        TypeBracket::RegularExpression => {
            (smallest_regex()?, Bound::Excluded(Bson::JavaScriptCode(String::new())))
        }
        TypeBracket::JavaScriptCode => (
            Bson::JavaScriptCode(String::new()),
            Bound::Excluded(Bson::JavaScriptCodeWithScope(scope)),
        ),
        TypeBracket::JavaScriptCodeWithScope => {
            (Bson::JavaScriptCodeWithScope(scope), Bound::Excluded(Bson::MaxKey))
        }
        _ => return None,
    };
    debug_assert!(TypeBracket::of(ValueRef::from(&lower)) == bracket);
    Some(Interval::new(Bound::Included(lower), upper))
}
