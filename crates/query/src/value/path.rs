//! Dotted paths and what a query or an expression sees through them.
//!
//! Owns the three ways of following a path: a query looks into every element of the arrays on the
//! way and may address an element by number; an expression maps over arrays and knows no numbers;
//! the plain walk follows documents only.

use super::MAX_NESTING;
use super::view::{ArrayRef, DocumentRef, ValueRef};
use crate::error::Result;
use bson::Bson;

/// A dotted path, parsed once.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Path {
    text: String,
    components: Vec<PathComponent>,
}

/// One part of a dotted path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathComponent {
    /// The text between the dots.
    pub name: String,
    /// The array position it can stand for: digits without a leading zero.
    pub index: Option<usize>,
}

/// What a query sees when its path ends at an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeafArrays {
    /// Every element, then the array itself: comparisons, `$type`, `$regex`.
    Elements,
    /// Only the array itself: `$size`, `$elemMatch`.
    Whole,
}

/// What an expression finds at a path.
#[derive(Debug, Clone)]
pub enum PathValue<'a> {
    /// A value of the document.
    Borrowed(ValueRef<'a>),
    /// The values collected from the elements of an array on the way.
    Collected(Vec<Bson>),
}

impl PathValue<'_> {
    /// An owned copy.
    pub(crate) fn into_bson(self) -> Bson {
        match self {
            Self::Borrowed(value) => value.to_bson(),
            Self::Collected(values) => Bson::Array(values),
        }
    }
}

impl PathComponent {
    /// Reads one part of a path.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), index: parse_index(name) }
    }
}

/// Reads a component as an array position.
pub(crate) fn parse_index(name: &str) -> Option<usize> {
    let plain = name.bytes().all(|byte| byte.is_ascii_digit())
        && (name.len() == 1 || !name.starts_with('0'));
    if plain { name.parse().ok() } else { None }
}

/// Called with each value a query sees (`None`: the path is missing there) and the position within
/// the outermost array that was passed on the way. Returns true to stop.
pub(crate) type Visitor<'v, 'a> = dyn FnMut(Option<ValueRef<'a>>, Option<usize>) -> bool + 'v;

impl Path {
    /// Splits at the dots. Refuses a path with more parts than a document can have levels.
    pub fn parse(text: &str) -> Result<Self> {
        let components: Vec<_> =
            text.split('.').take(MAX_NESTING + 1).map(PathComponent::new).collect();
        refuse_if!(components.len() > MAX_NESTING => OVERFLOW,
            "a field path may have at most {MAX_NESTING} components");
        Ok(Self { text: text.to_owned(), components })
    }

    /// The path as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The parts between the dots.
    pub fn components(&self) -> &[PathComponent] {
        &self.components
    }

    /// The first part: the top-level field.
    pub fn head(&self) -> &str {
        self.components.first().map_or("", |component| &component.name)
    }

    /// Whether this path is `other` or leads through it: `a.b` starts with `a`, `ab` does not.
    pub fn starts_with(&self, other: &Self) -> bool {
        self.components.starts_with(&other.components)
    }

    /// Follows the path as a query does and calls `visit` with everything it sees, until `visit`
    /// returns true. Returns whether it did.
    pub fn any<'a>(
        &self,
        document: DocumentRef<'a>,
        leaf: LeafArrays,
        visit: &mut Visitor<'_, 'a>,
    ) -> bool {
        walk_document(document, &self.components, leaf, None, visit)
    }

    /// Follows the path as an expression does: arrays on the way are mapped over, elements that
    /// are not documents or lack the rest of the path are left out.
    pub fn evaluate<'a>(&self, document: DocumentRef<'a>) -> Option<PathValue<'a>> {
        evaluate_document(document, &self.components)
    }

    /// Follows the path through documents only.
    pub fn get<'a>(&self, document: DocumentRef<'a>) -> Option<ValueRef<'a>> {
        let (first, rest) = self.components.split_first()?;
        let mut value = document.get(&first.name)?;
        for component in rest {
            value = value.as_document()?.get(&component.name)?;
        }
        Some(value)
    }
}

impl std::fmt::Display for Path {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

fn walk_document<'a>(
    document: DocumentRef<'a>,
    components: &[PathComponent],
    leaf: LeafArrays,
    outer: Option<usize>,
    visit: &mut Visitor<'_, 'a>,
) -> bool {
    let Some((first, rest)) = components.split_first() else { return false };
    let Some(value) = document.get(&first.name) else { return visit(None, outer) };
    if rest.is_empty() {
        return visit_leaf(value, leaf, outer, visit);
    }
    match value {
        ValueRef::Document(inner) => walk_document(inner, rest, leaf, outer, visit),
        ValueRef::Array(array) => walk_array(array, rest, leaf, outer, visit),
        _ => visit(None, outer),
    }
}

fn visit_leaf<'a>(
    value: ValueRef<'a>,
    leaf: LeafArrays,
    outer: Option<usize>,
    visit: &mut Visitor<'_, 'a>,
) -> bool {
    if let (ValueRef::Array(array), LeafArrays::Elements) = (value, leaf) {
        for (position, element) in array.iter().enumerate() {
            if visit(Some(element), outer.or(Some(position))) {
                return true;
            }
        }
    }
    visit(Some(value), outer)
}

/// Documents in the array are looked into; the element that the next component numbers is taken
/// itself. Other elements are passed over without counting as missing.
fn walk_array<'a>(
    array: ArrayRef<'a>,
    components: &[PathComponent],
    leaf: LeafArrays,
    outer: Option<usize>,
    visit: &mut Visitor<'_, 'a>,
) -> bool {
    let Some((first, rest)) = components.split_first() else { return false };
    for (position, element) in array.iter().enumerate() {
        if let ValueRef::Document(inner) = element
            && walk_document(inner, components, leaf, outer.or(Some(position)), visit)
        {
            return true;
        }
        if first.index != Some(position) {
            continue;
        }
        // The path names the position itself, so it is not one that `$` could stand for.
        let found = match element {
            element if rest.is_empty() => visit(Some(element), outer),
            ValueRef::Document(inner) => walk_document(inner, rest, leaf, outer, visit),
            ValueRef::Array(inner) => walk_array(inner, rest, leaf, outer, visit),
            _ => false,
        };
        if found {
            return true;
        }
    }
    false
}

fn evaluate_document<'a>(
    document: DocumentRef<'a>,
    components: &[PathComponent],
) -> Option<PathValue<'a>> {
    let (first, rest) = components.split_first()?;
    let value = document.get(&first.name)?;
    if rest.is_empty() {
        return Some(PathValue::Borrowed(value));
    }
    match value {
        ValueRef::Document(inner) => evaluate_document(inner, rest),
        ValueRef::Array(array) => Some(PathValue::Collected(
            array
                .iter()
                .filter_map(|element| evaluate_document(element.as_document()?, rest))
                .map(PathValue::into_bson)
                .collect(),
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorCode;
    use bson::{Document, bson, doc};

    /// Everything a query sees, with `None` for missing.
    fn seen(document: &Document, path: &str, leaf: LeafArrays) -> Vec<Option<Bson>> {
        let mut values = Vec::new();
        Path::parse(path).unwrap().any(document.into(), leaf, &mut |value, _| {
            values.push(value.map(ValueRef::to_bson));
            false
        });
        values
    }

    fn elements(document: &Document, path: &str) -> Vec<Option<Bson>> {
        seen(document, path, LeafArrays::Elements)
    }

    #[test]
    fn a_leaf_array_shows_its_elements_and_itself() {
        let document = doc! { "a": [1, 2] };
        let array = bson!([1, 2]);
        assert_eq!(elements(&document, "a"), [Some(bson!(1)), Some(bson!(2)), Some(array.clone())]);
        assert_eq!(seen(&document, "a", LeafArrays::Whole), [Some(array)]);
    }

    #[test]
    fn documents_within_arrays_are_looked_into() {
        let document = doc! { "a": [{ "b": 1 }, 5, { "c": 2 }, [{ "b": 9 }]] };
        assert_eq!(elements(&document, "a.b"), [Some(bson!(1)), None]);
    }

    #[test]
    fn a_scalar_on_the_way_is_missing_but_an_empty_array_is_nothing() {
        assert_eq!(elements(&doc! { "a": 4 }, "a.b"), [None]);
        assert_eq!(elements(&doc! {}, "a.b"), [None]);
        assert!(elements(&doc! { "a": [] }, "a.b").is_empty());
        assert!(elements(&doc! { "a": [1, 2] }, "a.b").is_empty());
    }

    #[test]
    fn numbers_address_elements_and_also_fields() {
        let document = doc! { "a": [5, { "1": 4 }] };
        assert_eq!(elements(&document, "a.1"), [Some(bson!(4)), Some(bson!({ "1": 4 }))]);
        assert_eq!(elements(&doc! { "a": [[1, 2], 3] }, "a.0"), [Some(bson!([1, 2]))]);
        assert_eq!(elements(&doc! { "a": [[{ "b": 1 }]] }, "a.0.b"), [Some(bson!(1))]);
        assert_eq!(elements(&doc! { "a": [[5, 6]] }, "a.0.1"), [Some(bson!(6))]);
        assert_eq!(elements(&doc! { "a": { "0": 7 } }, "a.0"), [Some(bson!(7))]);
        assert!(elements(&doc! { "a": [5] }, "a.00").is_empty());
    }

    #[test]
    fn the_outermost_array_position_is_reported() {
        let document = doc! { "a": [{ "b": [1] }, { "b": [2, 3] }] };
        let mut positions = Vec::new();
        Path::parse("a.b").unwrap().any(
            (&document).into(),
            LeafArrays::Elements,
            &mut |value, outer| {
                positions.push((value.map(ValueRef::to_bson), outer));
                matches!(value, Some(ValueRef::Int32(3)))
            },
        );
        assert_eq!(positions.last(), Some(&(Some(bson!(3)), Some(1))));
    }

    #[test]
    fn expressions_map_over_arrays_and_know_no_positions() {
        let evaluate = |document: Document, path: &str| {
            Path::parse(path).unwrap().evaluate((&document).into()).map(PathValue::into_bson)
        };
        let document = doc! { "a": [{ "b": 1 }, 5, {}, { "b": [2] }], "c": 1 };
        assert_eq!(evaluate(document.clone(), "a.b"), Some(bson!([1, [2]])));
        assert_eq!(evaluate(document.clone(), "a.0"), Some(bson!([])));
        assert_eq!(evaluate(document.clone(), "c.d"), None);
        assert_eq!(evaluate(document, "c"), Some(bson!(1)));
    }

    #[test]
    fn the_plain_walk_stops_at_arrays() {
        let document = doc! { "a": { "b": 1 }, "c": [{ "d": 1 }] };
        let get =
            |path: &str| Path::parse(path).unwrap().get((&document).into()).map(ValueRef::to_bson);
        assert_eq!(get("a.b"), Some(bson!(1)));
        assert_eq!(get("c.d"), None);
    }

    #[test]
    fn a_path_beyond_the_nesting_limit_is_refused() {
        let text = vec!["a"; 201].join(".");
        assert_eq!(Path::parse(&text).unwrap_err().code(), ErrorCode::OVERFLOW);
        assert!(Path::parse(&vec!["a"; 200].join(".")).is_ok());
    }

    #[test]
    fn prefixes_are_whole_components() {
        let path = |text| Path::parse(text).unwrap();
        assert!(path("a.b").starts_with(&path("a")));
        assert!(!path("ab").starts_with(&path("a")));
    }
}
