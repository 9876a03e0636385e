//! Dotted field paths as aggregation reads them.
//!
//! Unlike a query's paths, a numeric component is never an array position: a path that meets an
//! array is read in each document of it and yields the array of the values found.

use bson::{Bson, Document};

use super::MAX_EXPRESSION_DEPTH;
use super::operand::Operand;
use crate::error::Result;

/// The components of a dotted path, possibly none.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct FieldPath(Box<[String]>);

impl FieldPath {
    /// Reads a dotted path such as `a.b.c`.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        refuse_if!(text.is_empty() => 40352, "FieldPath cannot be constructed with empty string");
        refuse_if!(text.ends_with('.') => 40353, "FieldPath must not end with a '.'.");
        let components: Box<[String]> = text.split('.').map(str::to_owned).collect();
        for component in &components {
            check_component(component)?;
        }
        refuse_if!(components.len() > MAX_EXPRESSION_DEPTH => OVERFLOW,
            "FieldPath has too many path components: {} exceeds the limit of {}",
            components.len(), MAX_EXPRESSION_DEPTH);
        Ok(Self(components))
    }

    /// Whether the path names the value itself.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The components in order.
    pub(crate) fn components(&self) -> &[String] {
        &self.0
    }

    /// The path as it was written.
    pub(crate) fn dotted(&self) -> String {
        self.0.join(".")
    }

    /// The value that the path leads to in a value.
    pub(super) fn follow<'a>(&self, value: &'a Bson) -> Operand<'a> {
        follow(value, &self.0)
    }

    /// The value that the path leads to in a document. Not for the empty path, which is the document itself.
    pub(crate) fn follow_document<'a>(&self, document: &'a Document) -> Operand<'a> {
        match self.0.split_first() {
            None => Operand::owned(Bson::Document(document.clone())),
            Some((first, rest)) => {
                document.get(first).map_or(Operand::MISSING, |value| follow(value, rest))
            }
        }
    }
}

/// Whether this is a field of a database reference, the only names that may start with a dollar sign
/// wherever paths are written.
pub(crate) fn is_reference_field(name: &str) -> bool {
    matches!(name, "$ref" | "$id" | "$db")
}

fn check_component(component: &str) -> Result<()> {
    refuse_if!(component.is_empty() => 15998, "FieldPath field names may not be empty strings.");
    if component.starts_with('$') && !is_reference_field(component) {
        refuse!(
            16410,
            "FieldPath field names may not start with '$'. Consider using $getField or $setField. (got '{component}')"
        );
    }
    refuse_if!(component.contains('\0') => 16411, "FieldPath field names may not contain '\\0'.");
    Ok(())
}

fn follow<'a>(value: &'a Bson, components: &[String]) -> Operand<'a> {
    let Some((first, rest)) = components.split_first() else {
        return Operand::borrowed(value);
    };
    match value {
        Bson::Document(document) => {
            document.get(first).map_or(Operand::MISSING, |value| follow(value, rest))
        }
        // Arrays directly inside arrays are not entered: the server does not either.
        Bson::Array(elements) => Operand::owned(Bson::Array(
            elements
                .iter()
                .filter(|element| matches!(element, Bson::Document(_)))
                .filter_map(|element| follow(element, components).into_bson())
                .collect(),
        )),
        _ => Operand::MISSING,
    }
}
