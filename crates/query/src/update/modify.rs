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
use crate::error::{ErrorCode, QueryError};
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
}

/// The places that an update has touched, for paths whose meaning depends on the document.
#[derive(Debug, Default)]
pub(super) struct Touched {
    places: BTreeSet<Vec<String>>,
}

impl Touched {
    /// Records a place, unless it lies on the way to another one or the other way round.
    pub(super) fn record(&mut self, place: &[String]) -> Result<(), QueryError> {
        let leads_through = (1..=place.len()).any(|end| self.places.contains(&place[..end]));
        let leads_to = self
            .places
            .range(place.to_vec()..)
            .next()
            .is_some_and(|other| other.starts_with(place));
        if leads_through || leads_to {
            return Err(QueryError::new(
                ErrorCode::CONFLICTING_UPDATE_OPERATORS,
                format!("Update created a conflict at '{}'", place.join(".")),
            ));
        }
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
) -> Result<Document, QueryError> {
    let dynamic = modifications.iter().any(|modification| modification.path.is_dynamic());
    let mut touched = dynamic.then(Touched::default);
    let mut growth = Growth::default();
    let mut root = Bson::Document(before.clone());
    for modification in modifications {
        if matches!(modification.operator, Operator::SetOnInsert(_)) && !context.inserting {
            continue;
        }
        let components = with_position(&modification.path, context)?;
        let renamed;
        let operator = match &modification.operator {
            Operator::Rename { source } => match take_source(&mut root, source, &components)? {
                Some(value) => {
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

fn check_id(before: &Document, after: &Document) -> Result<(), QueryError> {
    let same = match (before.get("_id"), after.get("_id")) {
        (Some(before), Some(after)) => identical(before, after),
        (before, _) => before.is_none(),
    };
    if same {
        return Ok(());
    }
    Err(QueryError::new(
        ErrorCode::IMMUTABLE_FIELD,
        "Performing an update on the path '_id' would modify the immutable field '_id'",
    ))
}

/// Puts the matched position in the place of `$`.
fn with_position(path: &UpdatePath, context: &UpdateContext) -> Result<Vec<Component>, QueryError> {
    if !path.is_positional() {
        return Ok(path.components.clone());
    }
    let index = context.array_index.ok_or_else(|| {
        QueryError::bad_value(
            "The positional operator did not find the match needed from the query.",
        )
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
fn take_source(
    root: &mut Bson,
    source: &UpdatePath,
    target: &[Component],
) -> Result<Option<Bson>, QueryError> {
    refuse_arrays(root, &source.components, "source", source.as_str())?;
    let present = lookup(root, &source.components).is_some();
    if !present {
        return Ok(None);
    }
    let target_text: Vec<_> = target.iter().map(Component::text).collect();
    refuse_arrays(root, target, "destination", &target_text.join("."))?;
    Ok(remove(root, &source.components))
}

fn lookup<'a>(root: &'a Bson, components: &[Component]) -> Option<&'a Bson> {
    components.iter().try_fold(root, |value, component| match value {
        Bson::Document(document) => document.get(component.text()),
        _ => None,
    })
}

fn remove(root: &mut Bson, components: &[Component]) -> Option<Bson> {
    let (last, parents) = components.split_last()?;
    let mut value = root;
    for component in parents {
        value = value.as_document_mut()?.get_mut(component.text())?;
    }
    value.as_document_mut()?.remove(last.text())
}

fn refuse_arrays(
    root: &Bson,
    components: &[Component],
    role: &str,
    path: &str,
) -> Result<(), QueryError> {
    let mut value = root;
    for component in components {
        match value {
            Bson::Array(_) => {
                return Err(QueryError::bad_value(format!(
                    "The {role} field cannot be an array element, '{path}' in doc has an array \
                     field"
                )));
            }
            Bson::Document(document) => match document.get(component.text()) {
                Some(inner) => value = inner,
                None => return Ok(()),
            },
            _ => return Ok(()),
        }
    }
    Ok(())
}
