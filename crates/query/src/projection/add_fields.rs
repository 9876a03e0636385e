//! `$addFields` and `$set`: computed fields over a document that otherwise stays as it is.

use bson::{Bson, Document};

use super::apply::COMPUTED;
use super::parse::{add_at_path, level_at};
use super::{Child, Tree};
use crate::error::{QueryError, Result, caused_by};
use crate::expression::{
    Dependencies, Expression, Frame, MAX_EXPRESSION_DEPTH, ParseContext, Variables, cost,
};
use crate::meter::Charge;
use crate::typed::Typed;

/// The parsed fields.
#[derive(Debug, Clone)]
pub(crate) struct AddFields {
    root: Tree,
}

impl AddFields {
    /// Parses the argument of the stage of this name.
    pub(crate) fn parse(name: &str, spec: &Bson, context: &ParseContext) -> Result<Self> {
        let spec = spec
            .document(40272, format_args!("{name} specification stage must be an object, got"))?;
        Self::read(spec, context).map_err(|error| caused_by(&error, &format!("Invalid {name}")))
    }

    fn read(spec: &Document, context: &ParseContext) -> Result<Self> {
        refuse_if!(spec.is_empty() => 40177, "specification must have at least one field");
        let mut root = Tree::default();
        for (path, value) in spec {
            add(&mut root, path, value, context, 0)?;
        }
        Ok(Self { root })
    }

    /// Counts what the stage reads.
    pub(crate) fn depend(&self, needed: &mut Dependencies) {
        self.root.depend(needed);
    }

    /// The document with the computed fields. Every expression sees the document as it was.
    pub(crate) fn apply(
        &self,
        mut document: Document,
        variables: &Variables,
        charge: &mut Charge,
    ) -> Result<Document> {
        if self.root.children.iter().any(|(_, child)| matches!(child, Child::Nested(_))) {
            let before = document.clone();
            self.root.set(&mut document, Frame::new(&before, variables), charge)?;
            return Ok(document);
        }
        // Every value is computed before the first one is set, so that the document needs no copy.
        let mut values = Vec::with_capacity(self.root.children.len());
        for (name, child) in &self.root.children {
            if let Child::Computed(expression) = child {
                let value = computed(expression, Frame::new(&document, variables), charge)?;
                values.push((name, value));
            }
        }
        for (name, value) in values {
            set(&mut document, name, value);
        }
        Ok(document)
    }
}

fn add(
    tree: &mut Tree,
    path: &str,
    value: &Bson,
    context: &ParseContext,
    depth: usize,
) -> Result<()> {
    refuse_if!(depth > MAX_EXPRESSION_DEPTH => OVERFLOW, "the fields to add are nested too deeply");
    if let Bson::Document(inner) = value
        && inner.keys().next().is_some_and(|key| !key.starts_with('$'))
    {
        let level = level_at(tree, path).map_err(conflict)?;
        return inner
            .iter()
            .try_for_each(|(name, value)| add(level, name, value, context, depth + 1));
    }
    let expression = Expression::parse(value, context)?;
    add_at_path(tree, path, Child::Computed(expression)).map_err(conflict)
}

/// The code that these stages have for what projections call a collision.
fn conflict(error: QueryError) -> QueryError {
    match error.code().0 {
        31249 | 31250 => {
            fail!(40176, "specification contains two conflicting paths. {}", error.message())
        }
        _ => error,
    }
}

fn computed(
    expression: &Expression,
    frame: Frame<'_>,
    charge: &mut Charge,
) -> Result<Option<Bson>> {
    let value = expression.operand(frame)?.into_bson();
    if let Some(value) = &value {
        charge.grow(COMPUTED, cost(value)?)?;
    }
    Ok(value)
}

/// Sets a field; a missing value takes it away.
fn set(document: &mut Document, name: &str, value: Option<Bson>) {
    match value {
        Some(value) => document.insert(name, value),
        None => document.remove(name),
    };
}

impl Tree {
    fn set(&self, document: &mut Document, frame: Frame<'_>, charge: &mut Charge) -> Result<()> {
        for (name, child) in &self.children {
            match child {
                Child::Computed(expression) => {
                    set(document, name, computed(expression, frame, charge)?);
                }
                Child::Nested(inner) => {
                    let value = document.entry(name.clone()).or_insert(Bson::Null);
                    inner.set_inside(value, frame, charge)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Elements of an array each get the fields; a scalar gives way to a document.
    fn set_inside(&self, value: &mut Bson, frame: Frame<'_>, charge: &mut Charge) -> Result<()> {
        frame.variables.step()?;
        match value {
            Bson::Document(inner) => self.set(inner, frame, charge),
            Bson::Array(items) => {
                items.iter_mut().try_for_each(|item| self.set_inside(item, frame, charge))
            }
            scalar => {
                let mut inner = Document::new();
                self.set(&mut inner, frame, charge)?;
                *scalar = Bson::Document(inner);
                Ok(())
            }
        }
    }
}
