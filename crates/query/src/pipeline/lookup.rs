//! `$lookup`: an array of documents of another collection in each document.

use std::sync::Arc;

use bson::{Bson, Document};

use super::memory::Memory;
use super::stage::Stage;
use super::unwind::set;
use super::{Documents, Pipeline, Run};
use crate::error::QueryError;
use crate::expression::{Expression, FieldPath, Variables};
use crate::matcher::Matcher;

/// A `$lookup` stage.
#[derive(Clone, Debug)]
pub(super) struct Lookup {
    /// The other collection; `None` if the inner pipeline brings its own documents.
    pub(super) from: Option<String>,
    pub(super) into: FieldPath,
    /// The field here and the field there that must be equal.
    pub(super) equality: Option<(FieldPath, String)>,
    /// What the inner pipeline sees of the document.
    pub(super) variables: Vec<(String, Expression)>,
    pub(super) pipeline: Option<Pipeline>,
}

impl Lookup {
    fn apply(&self, mut document: Document, run: &Run) -> Result<Document, QueryError> {
        let found = self.find(&document, run)?;
        let mut memory = Memory::new("$lookup", run.memory_limit);
        let mut elements = Vec::new();
        for other in found {
            let other = other?;
            memory.hold_document(&other)?;
            elements.push(Bson::Document(other));
        }
        set(&mut document, self.into.components(), Bson::Array(elements));
        Ok(document)
    }

    fn find(&self, document: &Document, run: &Run) -> Result<Documents, QueryError> {
        let filter = self
            .equality
            .as_ref()
            .map(|(local, foreign)| equal_to(local.follow_document(document).or_null(), foreign));
        let mut others: Documents = match &self.from {
            Some(from) => run.environment.read(from, filter.as_ref())?,
            None => Box::new(std::iter::empty()),
        };
        if let Some(filter) = &filter {
            let matcher = Matcher::parse(filter)?;
            others = Box::new(others.filter_map(move |other| match other {
                Ok(other) => {
                    matcher.matches(&other).map(|found| found.then_some(other)).transpose()
                }
                Err(error) => Some(Err(error)),
            }));
        }
        let Some(pipeline) = &self.pipeline else { return Ok(others) };
        let mut variables: Variables = (*run.variables).clone();
        for (name, expression) in &self.variables {
            match expression.evaluate(document, &run.variables)? {
                Some(value) => variables.set(name.as_str(), value),
                None => variables.set_missing(name.as_str()),
            }
        }
        let inner = Run { variables: Arc::new(variables), ..run.clone() };
        Ok(pipeline.chain(others, &inner))
    }
}

/// The query for documents whose field equals the value, or one of its elements if it is an array;
/// null also for those without the field.
fn equal_to(value: &Bson, foreign: &str) -> Document {
    let equal = |value: &Bson| {
        let mut condition = Document::new();
        condition.insert("$eq", value.clone());
        let mut query = Document::new();
        query.insert(foreign, condition);
        query
    };
    let Bson::Array(elements) = value else { return equal(value) };
    let mut query = Document::new();
    if elements.is_empty()
        || elements.iter().any(|value| matches!(value, Bson::RegularExpression(_)))
    {
        // In `$in` a regular expression would be a pattern; here it is a value. An empty `$or` is
        // not allowed, and an array without elements matches nothing.
        if elements.is_empty() {
            query.insert("$alwaysFalse", 1);
        } else {
            let any: Vec<Bson> =
                elements.iter().map(|value| Bson::Document(equal(value))).collect();
            query.insert("$or", any);
        }
        return query;
    }
    let mut condition = Document::new();
    condition.insert("$in", elements.clone());
    query.insert(foreign, condition);
    query
}

pub(super) fn run(stage: Arc<Stage>, input: Documents, run: &Run) -> Documents {
    let run = run.clone();
    Box::new(input.map(move |document| match &*stage {
        Stage::Lookup(lookup) => lookup.apply(document?, &run),
        _ => document,
    }))
}
