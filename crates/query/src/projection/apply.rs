//! Applies a projection tree to a document.
//!
//! Stored fields keep their order; computed ones follow in the order they were written. Arrays on a
//! path are mapped over. Recursion goes no deeper than the projection itself, plus arrays directly
//! within arrays.

use std::cell::RefCell;

use bson::{Bson, Document};

use super::{Child, Kind, Slice, Tree};
use crate::error::{QueryError, fail};
use crate::matcher::Matcher;
use crate::value::size::{Growth, value_size};

/// One document being projected.
pub(super) struct Application<'a> {
    pub(super) root: &'a Document,
    pub(super) array_index: Option<usize>,
    pub(super) growth: RefCell<Growth>,
}

impl Application<'_> {
    pub(super) fn project(&self, kind: Kind, tree: &Tree) -> Result<Document, QueryError> {
        self.document(kind, self.root, tree)
    }

    fn document(
        &self,
        kind: Kind,
        document: &Document,
        tree: &Tree,
    ) -> Result<Document, QueryError> {
        let mut projected = Document::new();
        for (name, value) in document {
            let kept = match tree.get(name) {
                None => (kind == Kind::Exclusion).then(|| value.clone()),
                Some(child) => self.field(kind, value, child)?,
            };
            if let Some(value) = kept {
                projected.insert(name, value);
            }
        }
        self.add_computed(tree, &mut projected)?;
        Ok(projected)
    }

    /// The projected form of a stored value; `None` leaves it out. Computed fields come later.
    fn field(&self, kind: Kind, value: &Bson, child: &Child) -> Result<Option<Bson>, QueryError> {
        Ok(match child {
            Child::Include => Some(value.clone()),
            Child::Exclude | Child::Expression(_) | Child::ElemMatch(_) => None,
            Child::Slice(slice) => Some(slice.apply(value)),
            Child::Positional => Some(self.positional(value)?),
            Child::Nested(tree) => self.nested(kind, value, tree)?,
        })
    }

    fn nested(&self, kind: Kind, value: &Bson, tree: &Tree) -> Result<Option<Bson>, QueryError> {
        match value {
            Bson::Document(inner) => Ok(Some(Bson::Document(self.document(kind, inner, tree)?))),
            Bson::Array(items) => {
                let mut kept = Vec::with_capacity(items.len());
                for item in items {
                    kept.extend(self.nested(kind, item, tree)?);
                }
                Ok(Some(Bson::Array(kept)))
            }
            scalar if kind == Kind::Exclusion => Ok(Some(scalar.clone())),
            _ if tree.computes() => Ok(Some(self.computed_only(tree)?)),
            _ => Ok(None),
        }
    }

    fn computed_only(&self, tree: &Tree) -> Result<Bson, QueryError> {
        let mut document = Document::new();
        self.add_computed(tree, &mut document)?;
        Ok(Bson::Document(document))
    }

    fn add_computed(&self, tree: &Tree, projected: &mut Document) -> Result<(), QueryError> {
        for (name, child) in &tree.children {
            let computed = match child {
                Child::Expression(expression) => expression.evaluate(self.root.into())?,
                Child::ElemMatch(matcher) => self.elem_match(name, matcher)?,
                Child::Nested(inner) if inner.computes() && !projected.contains_key(name) => {
                    Some(self.computed_only(inner)?)
                }
                _ => None,
            };
            if let Some(value) = computed {
                self.growth.borrow_mut().charge(value_size(&value))?;
                projected.insert(name, value);
            }
        }
        Ok(())
    }

    /// The first element that matches, alone in its array.
    fn elem_match(&self, name: &str, matcher: &Matcher) -> Result<Option<Bson>, QueryError> {
        let Some(Bson::Array(items)) = self.root.get(name) else { return Ok(None) };
        let index =
            matcher.matches_with_details(self.root)?.and_then(|details| details.array_index);
        Ok(index.and_then(|index| items.get(index)).map(|item| Bson::Array(vec![item.clone()])))
    }

    fn positional(&self, value: &Bson) -> Result<Bson, QueryError> {
        let Bson::Array(items) = value else { return Ok(value.clone()) };
        let index = self.array_index.ok_or_else(|| {
            fail(51246, "positional operator '.$' couldn't find a matching element in the array")
        })?;
        // The position belongs to another array than the one that is shown.
        let element = items
            .get(index)
            .ok_or_else(|| fail(51247, "positional operator '.$' element mismatch"))?;
        Ok(Bson::Array(vec![element.clone()]))
    }
}

impl Slice {
    fn apply(self, value: &Bson) -> Bson {
        let Bson::Array(items) = value else { return value.clone() };
        let length = items.len();
        let magnitude = |number: i64| usize::try_from(number.unsigned_abs()).unwrap_or(usize::MAX);
        let (start, count) = match self.skip {
            Some(skip) if skip >= 0 => (magnitude(skip).min(length), magnitude(self.limit)),
            Some(skip) => (length.saturating_sub(magnitude(skip)), magnitude(self.limit)),
            None if self.limit >= 0 => (0, magnitude(self.limit)),
            None => (length.saturating_sub(magnitude(self.limit)), length),
        };
        Bson::Array(items.iter().skip(start).take(count).cloned().collect())
    }
}
