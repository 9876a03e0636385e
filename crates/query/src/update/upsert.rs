//! The document that an upsert inserts when nothing matched.
//!
//! It starts from the values that the query demands by equality, then the update is applied. A new
//! `_id`, if none came of that, is the caller's to draw.

use bson::{Bson, Document};

use super::{Form, Update, UpdateContext, with_id_of};
use crate::diff::Places;
use crate::error::Result;
use crate::matcher::{Comparison, Condition, Matcher, Node, Predicate};
use crate::value::{Path, measure};

impl Update {
    /// The document to insert. It has `_id` first if the query or the update gave one.
    pub fn upsert_document(&self, query: &Matcher, context: &UpdateContext) -> Result<Document> {
        let context = UpdateContext { inserting: true, ..*context };
        let mut equalities = Vec::new();
        collect_equalities(query.root(), &mut equalities);
        if self.is_replacement() {
            equalities.retain(|(path, _)| path.head() == "_id");
        }
        let base = document_from(&equalities)?;
        let after = match &self.form {
            Form::Pipeline { stages, variables } => stages.update(base.clone(), variables)?,
            _ => self.compute(&base, &context, &mut Places::default())?,
        };
        super::check_id_unchanged(&base, &after)?;
        let after = with_id_of(&base, after);
        if let Some(id) = after.get("_id") {
            check_id_type(id)?;
        }
        measure(&after).check()?;
        Ok(after)
    }
}

/// Refuses values that cannot identify a document.
pub fn check_id_type(id: &Bson) -> Result<()> {
    let kind = match id {
        Bson::Array(_) => "array",
        Bson::RegularExpression(_) => "regex",
        Bson::Undefined => "undefined",
        Bson::Document(document) => {
            return match document.keys().find(|key| key.starts_with('$')) {
                Some(key) if !matches!(key.as_str(), "$ref" | "$id" | "$db") => Err(fail!(
                    DOLLAR_PREFIXED_FIELD_NAME,
                    "_id fields may not contain '$'-prefixed fields: {key} is not valid for storage."
                )),
                _ => Ok(()),
            };
        }
        _ => return Ok(()),
    };
    Err(fail!(INVALID_ID_FIELD, "The '_id' value cannot be of type {kind}"))
}

fn collect_equalities<'a>(node: &'a Node, found: &mut Vec<(&'a Path, &'a Bson)>) {
    match node {
        Node::And(children) => {
            for child in children {
                collect_equalities(child, found);
            }
        }
        Node::Or(children) => {
            if let [only] = children.as_slice() {
                collect_equalities(only, found);
            }
        }
        Node::Field { path, condition } => collect_condition(path, condition, found),
        _ => {}
    }
}

fn collect_condition<'a>(
    path: &'a Path,
    condition: &'a Condition,
    found: &mut Vec<(&'a Path, &'a Bson)>,
) {
    match condition {
        Condition::And(children) => {
            for child in children {
                collect_condition(path, child, found);
            }
        }
        Condition::Leaf(Predicate::Compare(Comparison::Equal, value)) => found.push((path, value)),
        Condition::Leaf(Predicate::In(list)) => {
            found.extend(list.only.iter().map(|value| (path, value)));
        }
        _ => {}
    }
}

fn document_from(equalities: &[(&Path, &Bson)]) -> Result<Document> {
    // In this order a path is followed at once by those that lead through it.
    let mut paths: Vec<Vec<&str>> = equalities
        .iter()
        .map(|(path, _)| path.components().iter().map(|part| part.name.as_str()).collect())
        .collect();
    paths.sort_unstable();
    for pair in paths.windows(2) {
        let (shorter, longer) = (pair[0].join("."), pair[1].join("."));
        refuse_if!(pair[0] == pair[1] => NOT_SINGLE_VALUE_FIELD,
            "cannot infer query fields to set, path '{shorter}' is matched twice");
        refuse_if!(pair[1].starts_with(&pair[0]) => NOT_SINGLE_VALUE_FIELD,
            "cannot infer query fields to set, both paths '{shorter}' and '{longer}' are \
             matched");
    }
    let mut document = Document::new();
    for (path, value) in equalities {
        insert(&mut document, path, value);
    }
    Ok(document)
}

/// Inserts at a path through documents; the check above made sure that nothing is in the way.
fn insert(document: &mut Document, path: &Path, value: &Bson) {
    let Some((last, parents)) = path.components().split_last() else { return };
    let mut target = document;
    for parent in parents {
        let entry =
            target.entry(parent.name.clone()).or_insert_with(|| Bson::Document(Document::new()));
        let Bson::Document(inner) = entry else { return };
        target = inner;
    }
    target.insert(&last.name, value.clone());
}
