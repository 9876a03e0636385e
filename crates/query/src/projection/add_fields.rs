//! `$addFields` and `$set`: computed fields over a document that otherwise stays as it is.

use bson::{Bson, Document};

use super::parse::add_at_path;
use super::{Child, Tree};
use crate::error::{ErrorCode, QueryError, fail};
use crate::evaluate::ExpressionCompiler;
use crate::value::MAX_NESTING;
use crate::value::size::{Growth, value_size};

/// The parsed fields.
#[derive(Debug, Clone)]
pub(crate) struct AddFields {
    root: Tree,
}

impl AddFields {
    /// Parses the argument of the stage.
    pub(crate) fn parse(
        fields: &Document,
        compiler: &dyn ExpressionCompiler,
    ) -> Result<Self, QueryError> {
        if fields.is_empty() {
            return Err(fail(
                40177,
                "Invalid $set :: caused by :: specification must have at least one field",
            ));
        }
        let mut root = Tree::default();
        for (field, value) in fields {
            add(&mut root, field, value, compiler, 0)?;
        }
        Ok(Self { root })
    }

    /// The document with the computed fields. Every expression sees the document as it was.
    pub(crate) fn apply(&self, document: &Document) -> Result<Document, QueryError> {
        let mut result = document.clone();
        set_fields(&self.root, &mut result, document, &mut Growth::default())?;
        Ok(result)
    }
}

fn add(
    tree: &mut Tree,
    field: &str,
    value: &Bson,
    compiler: &dyn ExpressionCompiler,
    depth: usize,
) -> Result<(), QueryError> {
    let Bson::Document(inner) = value else {
        return add_at_path(tree, field, Child::Expression(compiler.compile(value)?));
    };
    let is_expression =
        inner.is_empty() || inner.keys().next().is_some_and(|key| key.starts_with('$'));
    if is_expression {
        return add_at_path(tree, field, Child::Expression(compiler.compile(value)?));
    }
    if depth >= MAX_NESTING {
        return Err(fail(
            ErrorCode::OVERFLOW,
            format!("computed fields may be nested at most {MAX_NESTING} levels deep"),
        ));
    }
    let mut nested = Tree::default();
    for (name, value) in inner {
        add(&mut nested, name, value, compiler, depth + 1)?;
    }
    add_at_path(tree, field, Child::Nested(nested))
}

fn set_fields(
    tree: &Tree,
    target: &mut Document,
    root: &Document,
    growth: &mut Growth,
) -> Result<(), QueryError> {
    for (name, child) in &tree.children {
        match child {
            Child::Expression(expression) => match expression.evaluate(root.into())? {
                Some(value) => {
                    growth.charge(value_size(&value))?;
                    target.insert(name, value);
                }
                None => {
                    target.remove(name);
                }
            },
            Child::Nested(inner) => {
                let value = target.entry(name.clone()).or_insert(Bson::Null);
                set_nested(inner, value, root, growth)?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// Elements of an array each get the fields; a scalar gives way to a document.
fn set_nested(
    tree: &Tree,
    value: &mut Bson,
    root: &Document,
    growth: &mut Growth,
) -> Result<(), QueryError> {
    match value {
        Bson::Document(inner) => set_fields(tree, inner, root, growth),
        Bson::Array(items) => {
            items.iter_mut().try_for_each(|item| set_nested(tree, item, root, growth))
        }
        scalar => {
            let mut inner = Document::new();
            set_fields(tree, &mut inner, root, growth)?;
            *scalar = Bson::Document(inner);
            Ok(())
        }
    }
}
