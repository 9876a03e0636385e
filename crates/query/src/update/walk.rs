//! Follows the path of one modification into the document and applies the operator at its end.
//!
//! Owns which paths can be created: missing fields of documents can, fields of anything else
//! cannot, and an array grows by nulls up to a limit.

use bson::{Bson, Document};

use super::UpdateContext;
use super::modify::Touched;
use super::operators::Operator;
use super::path::{ArrayFilters, Component};
use crate::diff::Places;
use crate::error::Result;
use crate::value::PathComponent;
use crate::value::size::Growth;

/// The most nulls that may be put into an array to reach a position.
pub(super) const MAX_BACKFILL: usize = 1_500_000;
/// What one such null is charged; it bounds the nulls of one update to little more than that.
const BACKFILL_CHARGE: usize = 20;

/// One modification on its way.
pub(super) struct Walk<'a> {
    pub(super) filters: &'a ArrayFilters,
    pub(super) context: &'a UpdateContext,
    pub(super) operator: &'a Operator,
    pub(super) path: &'a str,
    pub(super) trail: Vec<String>,
    pub(super) touched: Option<&'a mut Touched>,
    /// Where the oplog is told what was done.
    pub(super) places: &'a mut Places,
    pub(super) growth: &'a mut Growth,
}

impl Walk<'_> {
    /// Applies the operator to whatever the components stand for below a value.
    pub(super) fn visit(&mut self, container: &mut Bson, components: &[Component]) -> Result<()> {
        let Some((first, rest)) = components.split_first() else { return Ok(()) };
        match (first, container) {
            (Component::Field(field), Bson::Document(document)) => {
                self.visit_field(document, field, rest)
            }
            (Component::Field(field), Bson::Array(items)) => {
                self.visit_position(items, field, rest)
            }
            (Component::Field(field), scalar) => self.not_viable(&field.name, scalar),
            (selector, Bson::Array(items)) => self.visit_elements(items, selector, rest),
            (_, other) => Err(fail!(
                BAD_VALUE,
                "Cannot apply array updates to non-array element {}: {other}",
                self.trail.last().map_or("", String::as_str)
            )),
        }
    }

    fn visit_field(
        &mut self,
        document: &mut Document,
        field: &PathComponent,
        rest: &[Component],
    ) -> Result<()> {
        self.trail.push(field.name.clone());
        if rest.is_empty() {
            self.touch()?;
            if matches!(self.operator, Operator::Unset) {
                document.remove(&field.name);
            } else if let Some(value) = document.get_mut(&field.name) {
                self.operator.modify(value, self.path, self.context, self.growth)?;
            } else if let Some(value) = self.created(rest)? {
                document.insert(&field.name, value);
            }
        } else if let Some(value) = document.get_mut(&field.name) {
            self.visit(value, rest)?;
        } else if let Some(value) = self.created(rest)? {
            self.places.record(&self.trail, false);
            document.insert(&field.name, value);
        }
        self.trail.pop();
        Ok(())
    }

    fn visit_position(
        &mut self,
        items: &mut Vec<Bson>,
        field: &PathComponent,
        rest: &[Component],
    ) -> Result<()> {
        let Some(index) = field.index else {
            return self.not_viable(&field.name, &Bson::Array(Vec::new()));
        };
        if index < items.len() {
            return self.visit_element(items, index, rest);
        }
        self.trail.push(field.name.clone());
        self.touch()?;
        if let Some(value) = self.created(rest)? {
            let missing = index - items.len();
            refuse_if!(missing > MAX_BACKFILL => CANNOT_BACKFILL_ARRAY,
                "can't backfill more than {MAX_BACKFILL} elements");
            self.growth.charge(missing * BACKFILL_CHARGE)?;
            items.resize(index, Bson::Null);
            items.push(value);
        }
        self.trail.pop();
        Ok(())
    }

    fn visit_elements(
        &mut self,
        items: &mut [Bson],
        selector: &Component,
        rest: &[Component],
    ) -> Result<()> {
        for index in 0..items.len() {
            self.growth.step()?;
            let selected = match selector {
                Component::Filtered(name) => self.filters.matches(name, &items[index])?,
                _ => true,
            };
            if selected {
                self.visit_element(items, index, rest)?;
            }
        }
        Ok(())
    }

    fn visit_element(
        &mut self,
        items: &mut [Bson],
        index: usize,
        rest: &[Component],
    ) -> Result<()> {
        let Some(element) = items.get_mut(index) else { return Ok(()) };
        self.trail.push(index.to_string());
        if !rest.is_empty() {
            self.visit(element, rest)?;
        } else {
            self.touch()?;
            if matches!(self.operator, Operator::Unset) {
                *element = Bson::Null;
            } else {
                self.operator.modify(element, self.path, self.context, self.growth)?;
            }
        }
        self.trail.pop();
        Ok(())
    }

    fn touch(&mut self) -> Result<()> {
        self.places.record(&self.trail, self.operator.works_on_elements());
        match &mut self.touched {
            Some(touched) => touched.record(&self.trail),
            None => Ok(()),
        }
    }

    /// The value to put where the path ends before the components do: the operator's value within
    /// as many documents as there are components left. `None` if the operator creates nothing.
    fn created(&mut self, rest: &[Component]) -> Result<Option<Bson>> {
        let array_selector = rest.iter().any(|part| !matches!(part, Component::Field(_)));
        refuse_if!(array_selector => BAD_VALUE,
            "The path '{}' must exist in the document in order to apply array updates.",
            self.trail.join("."));
        let Some(value) = self.operator.create(self.context, self.growth)? else {
            return Ok(None);
        };
        Ok(Some(rest.iter().rev().fold(value, |inner, component| {
            let mut outer = Document::new();
            outer.insert(component.text(), inner);
            Bson::Document(outer)
        })))
    }

    fn not_viable(&self, field: &str, element: &Bson) -> Result<()> {
        // Only `$unset` may name what cannot exist.
        if matches!(self.operator, Operator::Unset) {
            return Ok(());
        }
        Err(fail!(
            PATH_NOT_VIABLE,
            "Cannot create field '{field}' in element {{{}: {element}}}",
            self.trail.last().map_or("", String::as_str)
        ))
    }
}
