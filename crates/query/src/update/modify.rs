//! Applies a list of modifications to a document.
//!
//! Owns what concerns a whole update: the order, the limit on growth, the check that two paths with
//! array operators do not meet in one element, and `$rename`, which touches two places.

use std::collections::BTreeSet;

use bson::{Bson, Document};

use super::UpdateContext;
use super::operators::Operator;
use super::path::{ArrayFilters, Component, UpdatePath};
use super::walk::Walk;
use crate::diff::Places;
use crate::error::{QueryError, Result};
use crate::value::size::Growth;
use crate::value::{PathComponent, identical};

/// One operator on one path.
#[derive(Debug, Clone)]
pub(super) struct Modification {
    pub(super) path: UpdatePath,
    pub(super) operator: Operator,
}

impl Modification {
    pub(super) fn new(path: UpdatePath, operator: Operator) -> Self {
        Self { path, operator }
    }

    /// The fields in which what it reads and changes lies.
    pub(super) fn fields(&self) -> impl Iterator<Item = String> {
        let source = match &self.operator {
            Operator::Rename { source } => Some(source),
            _ => None,
        };
        let paths = std::iter::once(&self.path).chain(source);
        paths.filter_map(|path| path.components.first()).map(Component::text)
    }
}

/// The places that an update has touched, for paths whose meaning depends on the document.
#[derive(Debug, Default)]
pub(super) struct Touched {
    places: BTreeSet<Vec<String>>,
}

impl Touched {
    /// Records a place, unless it lies on the way to another one or the other way round.
    pub(super) fn record(&mut self, place: &[String]) -> Result<()> {
        let leads_through = (1..=place.len()).any(|end| self.places.contains(&place[..end]));
        let leads_to = self
            .places
            .range(place.to_vec()..)
            .next()
            .is_some_and(|other| other.starts_with(place));
        refuse_if!(leads_through || leads_to => CONFLICTING_UPDATE_OPERATORS,
            "Update created a conflict at '{}'", place.join("."));
        self.places.insert(place.to_vec());
        Ok(())
    }
}

/// Applies all modifications in order.
pub(super) fn apply(
    modifications: &[Modification],
    filters: &ArrayFilters,
    before: &Document,
    context: &UpdateContext,
    places: &mut Places,
    mut growth: Growth,
) -> Result<Document> {
    // Plain paths were compared when they were parsed, and one path cannot meet another.
    let dynamic = modifications.len() > 1
        && modifications.iter().any(|modification| modification.path.is_dynamic());
    let mut touched = dynamic.then(Touched::default);
    let mut root = Bson::Document(without_fields(before, modifications));
    for modification in modifications {
        if matches!(modification.operator, Operator::SetOnInsert(_)) && !context.inserting {
            continue;
        }
        modification.path.check_top_level_name(context.inserting)?;
        let components = with_position(&modification.path, context)?;
        let renamed;
        let operator = match &modification.operator {
            Operator::Rename { source } => match take_source(&mut root, source, &components)? {
                Some(value) => {
                    let source: Vec<_> = source.components.iter().map(Component::text).collect();
                    places.record(&source, false);
                    renamed = Operator::Set(value);
                    &renamed
                }
                None => continue,
            },
            operator => operator,
        };
        Walk {
            filters,
            context,
            operator,
            path: modification.path.as_str(),
            trail: Vec::new(),
            touched: touched.as_mut(),
            places,
            growth: &mut growth,
        }
        .visit(&mut root, &components)?;
    }
    match root {
        Bson::Document(after) => {
            check_id(before, &after)?;
            Ok(after)
        }
        _ => Ok(before.clone()),
    }
}

/// A copy of the document, without the fields that `$unset` names if they are many: removed one by
/// one, each would move all that follow it.
fn without_fields(before: &Document, modifications: &[Modification]) -> Document {
    const FEW: usize = 16;
    let unset: BTreeSet<&str> = modifications
        .iter()
        .filter(|modification| matches!(modification.operator, Operator::Unset))
        .filter(|modification| modification.path.components.len() == 1)
        .map(|modification| modification.path.as_str())
        .collect();
    if unset.len() <= FEW {
        return before.clone();
    }
    before
        .iter()
        .filter(|(name, _)| !unset.contains(name.as_str()))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

fn check_id(before: &Document, after: &Document) -> Result<()> {
    let same = match (before.get("_id"), after.get("_id")) {
        (Some(before), Some(after)) => identical(before, after),
        (before, _) => before.is_none(),
    };
    if same {
        return Ok(());
    }
    Err(fail!(
        IMMUTABLE_FIELD,
        "Performing an update on the path '_id' would modify the immutable field '_id'"
    ))
}

/// Puts the matched position in the place of `$`.
fn with_position(path: &UpdatePath, context: &UpdateContext) -> Result<Vec<Component>> {
    if !path.is_positional() {
        return Ok(path.components.clone());
    }
    let index = context.array_index.ok_or_else(|| {
        fail!(BAD_VALUE, "The positional operator did not find the match needed from the query.")
    })?;
    let position = PathComponent { name: index.to_string(), index: Some(index) };
    Ok(path
        .components
        .iter()
        .map(|component| match component {
            Component::Positional => Component::Field(position.clone()),
            other => other.clone(),
        })
        .collect())
}

/// Removes the source of a rename and returns it, after checking that neither end is in an array.
fn take_source(root: &mut Bson, source: &UpdatePath, target: &[Component]) -> Result<Option<Bson>> {
    match locate(root, &source.components, source.as_str())? {
        Located::Missing => return Ok(None),
        Located::InArray => return Err(array_element("source", source.as_str())),
        Located::InDocuments => {}
    }
    let target_path: Vec<_> = target.iter().map(Component::text).collect();
    // What is in the way of the target is the walk's to refuse.
    if leads_through_array(root, target) {
        return Err(array_element("destination", &target_path.join(".")));
    }
    Ok(remove(root, &source.components))
}

/// Where a path without array operators leads.
enum Located {
    Missing,
    InArray,
    InDocuments,
}

fn locate(root: &Bson, components: &[Component], path: &str) -> Result<Located> {
    let mut value = root;
    let mut located = Located::InDocuments;
    let mut reached = String::new();
    for component in components {
        let name = component.text();
        let next = match (value, component) {
            (Bson::Document(document), _) => document.get(&name),
            (Bson::Array(items), Component::Field(PathComponent { index: Some(index), .. })) => {
                located = Located::InArray;
                items.get(*index)
            }
            (blocking, _) => {
                refuse!(
                    PATH_NOT_VIABLE,
                    "cannot use the part ({reached} of {path}) to traverse the element \
                         ({{{reached}: {blocking}}})"
                );
            }
        };
        match next {
            Some(next) => value = next,
            None => return Ok(Located::Missing),
        }
        reached = name;
    }
    Ok(located)
}

fn leads_through_array(root: &Bson, components: &[Component]) -> bool {
    let mut value = root;
    for component in components {
        match value {
            Bson::Array(_) => return true,
            Bson::Document(document) => match document.get(component.text()) {
                Some(inner) => value = inner,
                None => return false,
            },
            _ => return false,
        }
    }
    false
}

fn array_element(role: &str, path: &str) -> QueryError {
    fail!(
        BAD_VALUE,
        "The {role} field cannot be an array element, '{path}' in the document has an array field"
    )
}

fn remove(root: &mut Bson, components: &[Component]) -> Option<Bson> {
    let (last, parents) = components.split_last()?;
    let mut value = root;
    for component in parents {
        value = value.as_document_mut()?.get_mut(component.text())?;
    }
    value.as_document_mut()?.remove(last.text())
}
