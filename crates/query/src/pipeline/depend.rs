//! Which fields of its documents a pipeline reads.
//!
//! Counting stops at the first stage whose output does not depend on the other fields (`$group`, an
//! including `$project`, …). A pipeline without such a stage needs the whole documents.

use std::collections::BTreeSet;

use bson::{Bson, Document, RawDocument};

use super::Pipeline;
use super::stage::Stage;
use crate::error::Result;
use crate::expression::{Dependencies, Expression, ParseContext};
use crate::value::raw_scan::RawScan;

/// The most fields that are read into a document that is there already.
const MAX_REFILLED: usize = 64;

/// The top-level fields that a pipeline reads; `None` if it may need all.
pub(super) fn needed_fields(pipeline: &Pipeline) -> Option<BTreeSet<String>> {
    let mut needed = Dependencies::default();
    for stage in &pipeline.stages {
        let last = count(stage, &mut needed);
        if needed.whole {
            return None;
        }
        if last {
            return Some(needed.fields);
        }
    }
    None
}

/// Turns stored bytes into the documents that a pipeline takes in, leaving out what it never reads.
#[derive(Clone, Debug)]
pub struct Decoder {
    needed: Option<BTreeSet<String>>,
}

impl Decoder {
    pub(super) fn of(pipeline: &Pipeline) -> Self {
        Self { needed: needed_fields(pipeline) }
    }

    /// Whether the pipeline reads some fields only.
    pub(super) fn is_partial(&self) -> bool {
        self.needed.is_some()
    }

    /// Reads another document into one that this decoder has made. Where both have all the fields that
    /// the pipeline reads, no name and no table of the document is made again.
    pub(super) fn refill(&self, document: &mut Document, raw: &RawDocument) -> Result<()> {
        if !self.refill_in_place(document, raw) {
            *document = self.decode(raw)?;
        }
        Ok(())
    }

    /// Whether that could be done without making the document anew.
    fn refill_in_place(&self, document: &mut Document, raw: &RawDocument) -> bool {
        let Some(needed) = &self.needed else { return false };
        if document.len() != needed.len() || needed.len() > MAX_REFILLED {
            return false;
        }
        if needed.is_empty() {
            return true;
        }
        // A field that comes twice is left to the decoder.
        let (mut seen, all) = (0_u64, u64::MAX >> (MAX_REFILLED - needed.len()));
        for field in RawScan::new(raw) {
            let Some(place) = needed.iter().position(|name| name.as_bytes() == field.key()) else {
                continue;
            };
            let (Some(name), Some(value)) = (field.name(), field.value()) else { return false };
            let Some(held) = document.get_mut(name) else { return false };
            if seen & (1 << place) != 0 {
                return false;
            }
            *held = value.to_bson();
            seen |= 1 << place;
            if seen == all {
                return true;
            }
        }
        false
    }

    /// The document, as far as the pipeline reads it.
    ///
    /// # Errors
    ///
    /// If the bytes are not valid BSON.
    pub fn decode(&self, raw: &RawDocument) -> Result<Document> {
        self.decode_fields(raw)
            .map_err(|_| fail!(FAILED_TO_PARSE, "a stored document is malformed; run validate"))
    }

    fn decode_fields(&self, raw: &RawDocument) -> Result<Document, bson::error::Error> {
        let Some(needed) = &self.needed else { return Document::try_from(raw) };
        let mut document = Document::new();
        if needed.is_empty() {
            return Ok(document);
        }
        for element in raw.iter_elements() {
            let element = element?;
            let name = element.key().as_str();
            if needed.contains(name) {
                document.insert(name, Bson::try_from(element.value()?)?);
                if document.len() == needed.len() {
                    break;
                }
            }
        }
        Ok(document)
    }
}

/// Counts what a stage reads; true if nothing behind it can read more.
fn count(stage: &Stage, needed: &mut Dependencies) -> bool {
    match stage {
        Stage::Match { reads, .. } => {
            needed.whole |= reads.whole;
            needed.fields.extend(reads.fields.iter().cloned());
            false
        }
        Stage::Project(projection) => projection.depend(needed),
        Stage::AddFields(fields) => {
            fields.depend(needed);
            false
        }
        Stage::ReplaceRoot { expression, .. } => {
            needed.expression(expression);
            true
        }
        Stage::Limit(_) | Stage::Skip(_) | Stage::Sample(_) | Stage::UnionWith(_) => false,
        Stage::Count(_) | Stage::Documents(_) | Stage::System(_) => true,
        Stage::Unwind(unwind) => {
            needed.path(&unwind.path.dotted());
            if let Some(index) = &unwind.index {
                needed.path(&index.dotted());
            }
            false
        }
        Stage::Sort(sort) => {
            sort.pattern.fields().for_each(|(path, _)| needed.path(path.head()));
            false
        }
        Stage::Group(group) => {
            group.depend(needed);
            true
        }
        Stage::BucketAuto(bucket) => {
            bucket.depend(needed);
            true
        }
        Stage::Window(window) => {
            window.depend(needed);
            false
        }
        Stage::Densify(densify) => {
            densify.depend(needed);
            false
        }
        Stage::GraphLookup(lookup) => {
            lookup.depend(needed);
            false
        }
        Stage::Lookup(lookup) => {
            lookup.depend(needed);
            false
        }
        Stage::Facet(facets) => {
            for (_, pipeline) in facets.iter() {
                match needed_fields(pipeline) {
                    Some(fields) => needed.fields.extend(fields),
                    None => needed.whole = true,
                }
            }
            true
        }
        Stage::Redact(_) | Stage::Output(_) => {
            needed.whole = true;
            true
        }
    }
}

/// The fields that a query reads.
pub(super) fn of_query(query: &Document, context: &ParseContext) -> Dependencies {
    let mut needed = Dependencies::default();
    count_query(query, context, &mut needed);
    needed
}

fn count_query(query: &Document, context: &ParseContext, needed: &mut Dependencies) {
    for (name, value) in query {
        match (name.as_str(), value) {
            ("$comment", _) => {}
            ("$and" | "$or" | "$nor", Bson::Array(parts)) => {
                let parts = parts.iter().filter_map(Bson::as_document);
                parts.for_each(|part| count_query(part, context, needed));
            }
            ("$expr", value) => match Expression::parse(value, context) {
                Ok(expression) => needed.expression(&expression),
                Err(_) => needed.whole = true,
            },
            (operator, _) if operator.starts_with('$') => needed.whole = true,
            (path, _) => needed.path(path),
        }
    }
}
