//! `$redact`: keeps, drops or looks into each level of a document.

use crate::error::Result;
use bson::{Bson, Document};

use crate::expression::{Expression, Frame, Variables};
use crate::value::MAX_NESTING;

/// The parts of a document that are kept; `None` if none is.
pub(super) fn apply(
    expression: &Expression,
    document: &Document,
    variables: &Variables,
) -> Result<Option<Document>> {
    level(expression, document, document, variables, 0)
}

fn level(
    expression: &Expression,
    root: &Document,
    current: &Document,
    variables: &Variables,
    depth: usize,
) -> Result<Option<Document>> {
    variables.step()?;
    let mut frame = Frame::new(root, variables);
    frame.current = current;
    let decision = expression.operand(frame)?;
    match decision.as_str() {
        Some("keep") => Ok(Some(current.clone())),
        Some("prune") => Ok(None),
        Some("descend") if depth >= MAX_NESTING => Ok(Some(current.clone())),
        Some("descend") => {
            let mut kept = Document::new();
            for (name, value) in current {
                if let Some(value) = below(expression, root, value, variables, depth + 1)? {
                    kept.insert(name.as_str(), value);
                }
            }
            Ok(Some(kept))
        }
        _ => Err(fail!(
            17053,
            "$redact's expression should not return anything aside from the variables \
                 $$KEEP, $$DESCEND, and $$PRUNE, but returned {}",
            decision.or_null()
        )),
    }
}

fn below(
    expression: &Expression,
    root: &Document,
    value: &Bson,
    variables: &Variables,
    depth: usize,
) -> Result<Option<Bson>> {
    match value {
        Bson::Document(document) => {
            Ok(level(expression, root, document, variables, depth)?.map(Bson::Document))
        }
        Bson::Array(elements) if depth < MAX_NESTING => {
            let mut kept = Vec::with_capacity(elements.len());
            for element in elements {
                kept.extend(below(expression, root, element, variables, depth + 1)?);
            }
            Ok(Some(Bson::Array(kept)))
        }
        other => Ok(Some(other.clone())),
    }
}
