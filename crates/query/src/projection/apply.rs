//! Applies a projection tree to a document.
//!
//! Stored fields keep their order; computed ones follow in the order they were written. Arrays on a
//! path are mapped over. Recursion goes no deeper than the projection itself, plus arrays directly
//! within arrays.

use bson::{Bson, Document};

use super::{Child, Slice, Tree};
use crate::error::Result;
use crate::expression::{Frame, cost};
use crate::matcher::Matcher;
use crate::meter::Charge;

/// The name of computed fields in errors about memory.
pub(super) const COMPUTED: &str = "a computed field of $addFields, $set or $project";

impl Tree {
    /// The document without the fields that are named here and inside.
    pub(super) fn exclude(&self, document: Document) -> Document {
        let mut shown = Document::new();
        for (name, value) in document {
            let kept = match self.get(&name) {
                None | Some(Child::Include) => Some(value),
                Some(Child::Slice(slice)) => Some(slice.apply(value)),
                Some(Child::Nested(inner)) => Some(inner.exclude_inside(value)),
                Some(_) => None,
            };
            if let Some(value) = kept {
                shown.insert(name, value);
            }
        }
        shown
    }

    fn exclude_inside(&self, value: Bson) -> Bson {
        match value {
            Bson::Document(inner) => Bson::Document(self.exclude(inner)),
            Bson::Array(items) => {
                Bson::Array(items.into_iter().map(|item| self.exclude_inside(item)).collect())
            }
            scalar => scalar,
        }
    }
}

/// One document being projected.
pub(super) struct Application<'a> {
    /// The document as it was, and the variables.
    pub(super) frame: Frame<'a>,
    pub(super) array_index: Option<usize>,
    pub(super) charge: &'a mut Charge,
}

impl Application<'_> {
    /// The fields that the tree names, then those it computes.
    pub(super) fn include(&mut self, document: &Document, tree: &Tree) -> Result<Document> {
        let mut shown = Document::new();
        for (name, value) in document {
            let kept = match tree.get(name) {
                None | Some(Child::Exclude | Child::Computed(_) | Child::ElemMatch(_)) => None,
                Some(Child::Include) => Some(value.clone()),
                Some(Child::Slice(slice)) => Some(slice.apply(value.clone())),
                Some(Child::Positional) => Some(self.positional(value)?),
                Some(Child::Nested(inner)) => self.include_inside(value, inner)?,
            };
            if let Some(value) = kept {
                shown.insert(name.as_str(), value);
            }
        }
        self.add_computed(tree, &mut shown)?;
        Ok(shown)
    }

    /// A scalar has none of the fields; it gives way to a document of the computed ones, in an array too.
    fn include_inside(&mut self, value: &Bson, tree: &Tree) -> Result<Option<Bson>> {
        self.frame.variables.step()?;
        match value {
            Bson::Document(inner) => Ok(Some(Bson::Document(self.include(inner, tree)?))),
            Bson::Array(items) => {
                let mut kept = Vec::with_capacity(items.len());
                for item in items {
                    kept.extend(self.include_inside(item, tree)?);
                }
                Ok(Some(Bson::Array(kept)))
            }
            _ if tree.computes => Ok(Some(self.computed_only(tree)?)),
            _ => Ok(None),
        }
    }

    fn computed_only(&mut self, tree: &Tree) -> Result<Bson> {
        let mut document = Document::new();
        self.add_computed(tree, &mut document)?;
        Ok(Bson::Document(document))
    }

    /// Adds the fields that are not stored under their name: computed ones and the finds of `$elemMatch`.
    pub(super) fn add_computed(&mut self, tree: &Tree, shown: &mut Document) -> Result<()> {
        for (name, child) in &tree.children {
            let computed = match child {
                Child::Computed(expression) => expression.operand(self.frame)?.into_bson(),
                Child::ElemMatch(matcher) => self.elem_match(name, matcher)?,
                Child::Nested(inner) if inner.computes && !shown.contains_key(name) => {
                    let inner = self.computed_only(inner)?;
                    shown.insert(name.as_str(), inner);
                    continue;
                }
                _ => continue,
            };
            if let Some(value) = computed {
                self.charge.grow(COMPUTED, cost(&value)?)?;
                shown.insert(name.as_str(), value);
            }
        }
        Ok(())
    }

    /// The first element that matches, alone in its array.
    fn elem_match(&self, name: &str, matcher: &Matcher) -> Result<Option<Bson>> {
        let root = self.frame.root;
        let Some(Bson::Array(items)) = root.get(name) else { return Ok(None) };
        let index = matcher.matches_with_details(root)?.and_then(|details| details.array_index);
        Ok(index.and_then(|index| items.get(index)).map(|item| Bson::Array(vec![item.clone()])))
    }

    fn positional(&self, value: &Bson) -> Result<Bson> {
        let Bson::Array(items) = value else { return Ok(value.clone()) };
        let index = self.array_index.ok_or_else(|| {
            fail!(51246, "positional operator '.$' couldn't find a matching element in the array")
        })?;
        // The position belongs to another array than the one that is shown.
        let element = items
            .get(index)
            .ok_or_else(|| fail!(51247, "positional operator '.$' element mismatch"))?;
        Ok(Bson::Array(vec![element.clone()]))
    }
}

impl Slice {
    fn apply(self, value: Bson) -> Bson {
        let Bson::Array(items) = value else { return value };
        let length = items.len();
        let magnitude = |number: i64| usize::try_from(number.unsigned_abs()).unwrap_or(usize::MAX);
        let (start, count) = match self.skip {
            Some(skip) if skip >= 0 => (magnitude(skip).min(length), magnitude(self.limit)),
            Some(skip) => (length.saturating_sub(magnitude(skip)), magnitude(self.limit)),
            None if self.limit >= 0 => (0, magnitude(self.limit)),
            None => (length.saturating_sub(magnitude(self.limit)), length),
        };
        Bson::Array(items.into_iter().skip(start).take(count).collect())
    }
}
