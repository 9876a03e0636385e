//! Updates: parsed once, applied to any number of documents.
//!
//! Owns the three forms of an update (operators, a replacement, a pipeline), array filters, and the
//! document that an upsert starts from. Finding documents and writing them is left to others, and so
//! are the clock and new identifiers: they come in as arguments.

mod array_operators;
mod modify;
mod operators;
mod parse;
mod path;
mod plain;
mod splice;
mod upsert;
mod walk;

use std::sync::Arc;

use bson::{Bson, DateTime, Document, Timestamp};

use crate::diff::{Places, ToldAs};
use crate::error::Result;
use crate::expression::{Compiler, Variables};
use crate::meter::Meter;
use crate::pipeline::Pipeline;
use crate::value::size::Growth;
use crate::value::{equal, measure};

pub use self::plain::{PlainChange, PlainUpdate};
pub(crate) use self::plain::{document_of, usual_depth, usual_document};
pub(crate) use self::splice::{begin as begin_document, end as end_document};
pub use self::upsert::check_id_type;

use self::modify::Modification;
use self::path::ArrayFilters;

/// A parsed update.
#[derive(Debug, Clone)]
pub struct Update {
    form: Form,
}

#[derive(Debug, Clone)]
enum Form {
    Operators { modifications: Vec<Modification>, filters: ArrayFilters, meter: Meter },
    Replacement(Document),
    Pipeline { stages: Pipeline, variables: Arc<Variables> },
}

/// What an update makes of a document.
#[derive(Debug, Clone)]
pub struct Change {
    /// The document after the update.
    pub after: Document,
    /// How the oplog tells of it.
    pub told_as: ToldAs,
}

/// What an update needs to know besides the document.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct UpdateContext {
    /// What `$currentDate` writes as a date.
    pub now: DateTime,
    /// What `$currentDate` writes as a timestamp, and what replaces empty timestamps.
    pub timestamp: Timestamp,
    /// The array position that the query matched, for the positional operator `$`.
    pub array_index: Option<usize>,
    /// Whether the document is about to be inserted by an upsert.
    pub inserting: bool,
    /// Whether empty timestamps of a replacement stay as they are.
    pub keep_empty_timestamps: bool,
    /// Whether a change of fields is told as a delta. Without it a plain update takes a document for told as a whole.
    pub tells_delta: bool,
}

impl UpdateContext {
    /// A context for an update of an existing document.
    pub fn new(now: DateTime, timestamp: Timestamp) -> Self {
        Self {
            now,
            timestamp,
            array_index: None,
            inserting: false,
            keep_empty_timestamps: false,
            tells_delta: true,
        }
    }

    /// The same, with the position that the query matched.
    #[must_use]
    pub fn with_array_index(self, array_index: Option<usize>) -> Self {
        Self { array_index, ..self }
    }
}

impl Update {
    /// Parses an update without array filters or expressions.
    pub fn parse(update: &Bson) -> Result<Self> {
        Self::parse_with(update, &[], &Compiler::refusing())
    }

    /// Parses an update: a document of operators, a replacement, or an array of stages.
    pub fn parse_with(
        update: &Bson,
        array_filters: &[Document],
        compiler: &Compiler,
    ) -> Result<Self> {
        let form = match update {
            Bson::Document(document) => {
                let operators = document.keys().next().is_some_and(|key| key.starts_with('$'));
                if operators {
                    let filters = ArrayFilters::parse(array_filters, compiler)?;
                    let modifications = parse::parse_operators(document, compiler)?;
                    filters.check_use(&modifications)?;
                    let meter = compiler.meter().clone();
                    Form::Operators { modifications, filters, meter }
                } else {
                    refuse_array_filters(array_filters, "replacement-style")?;
                    check_replacement(document)?;
                    Form::Replacement(document.clone())
                }
            }
            Bson::Array(stages) => {
                refuse_array_filters(array_filters, "pipeline-style")?;
                Form::Pipeline {
                    stages: Pipeline::parse_update(stages, compiler)?,
                    variables: Arc::clone(compiler.variables()),
                }
            }
            _ => {
                refuse!(FAILED_TO_PARSE, "Update argument must be either an object or an array");
            }
        };
        Ok(Self { form })
    }

    /// Whether the update replaces the whole document. Such an update cannot be a multi-update.
    pub fn is_replacement(&self) -> bool {
        matches!(self.form, Form::Replacement(_))
    }

    /// The names of the fields that the update can touch; none if it can touch any.
    pub fn touched_fields(&self) -> Option<Vec<String>> {
        let Form::Operators { modifications, .. } = &self.form else { return None };
        let mut fields: Vec<_> = modifications.iter().flat_map(Modification::fields).collect();
        fields.sort_unstable();
        fields.dedup();
        Some(fields)
    }

    /// Whether a path contains the positional operator `$`, so that the matcher must be asked for
    /// the position.
    pub fn needs_array_index(&self) -> bool {
        match &self.form {
            Form::Operators { modifications, .. } => {
                modifications.iter().any(|modification| modification.path.is_positional())
            }
            _ => false,
        }
    }

    /// The document after the update, or `None` if nothing changes. A refused update changes
    /// nothing.
    pub fn apply(&self, before: &Document, context: &UpdateContext) -> Result<Option<Document>> {
        Ok(self.change(before, context)?.map(|change| change.after))
    }

    /// The document after the update and how the oplog tells of it, or `None` if nothing changes.
    pub fn change(&self, before: &Document, context: &UpdateContext) -> Result<Option<Change>> {
        let mut places = Places::default();
        let after = self.compute(before, context, &mut places)?;
        if crate::value::size::identical_documents(before, &after) {
            return Ok(None);
        }
        check_id_unchanged(before, &after)?;
        measure(&after).check()?;
        let told_as = match &self.form {
            Form::Operators { .. } => ToldAs::Places(places),
            Form::Replacement(_) => ToldAs::Replacement,
            Form::Pipeline { .. } => ToldAs::ShortestDifference,
        };
        Ok(Some(Change { after, told_as }))
    }

    fn compute(
        &self,
        before: &Document,
        context: &UpdateContext,
        places: &mut Places,
    ) -> Result<Document> {
        match &self.form {
            Form::Operators { modifications, filters, meter } => {
                let growth = Growth::of(meter);
                modify::apply(modifications, filters, before, context, places, growth)
            }
            Form::Replacement(replacement) => Ok(replace(before, replacement, context)),
            Form::Pipeline { stages, variables } => {
                let after = stages.update(before.clone(), variables)?;
                Ok(with_id_of(before, after))
            }
        }
    }
}

fn refuse_array_filters(filters: &[Document], style: &str) -> Result<()> {
    if filters.is_empty() {
        return Ok(());
    }
    Err(fail!(FAILED_TO_PARSE, "arrayFilters may not be specified for {style} updates"))
}

fn check_replacement(document: &Document) -> Result<()> {
    match document.keys().find(|key| key.starts_with('$')) {
        None => Ok(()),
        Some(key) => Err(fail!(
            DOLLAR_PREFIXED_FIELD_NAME,
            "The dollar ($) prefixed field '{key}' in '{key}' is not allowed in the context \
                 of an update's replacement document. Consider using an aggregation pipeline with \
                 $replaceWith."
        )),
    }
}

/// A replacement keeps the `_id`, first, and fills empty timestamps at the top level.
fn replace(before: &Document, replacement: &Document, context: &UpdateContext) -> Document {
    let empty = Bson::Timestamp(Timestamp { time: 0, increment: 0 });
    let mut after = replacement.clone();
    for (name, value) in after.iter_mut().filter(|_| !context.keep_empty_timestamps) {
        if name != "_id" && *value == empty {
            *value = Bson::Timestamp(context.timestamp);
        }
    }
    // An equal identifier of another number type would only look like a change.
    if let (Some(old), Some(new)) = (before.get("_id"), after.get_mut("_id"))
        && equal(old, &*new)
    {
        *new = old.clone();
    }
    with_id_of(before, after)
}

/// Puts `_id` first, taking it from the document before the update where it is absent after.
fn with_id_of(before: &Document, mut after: Document) -> Document {
    if after.keys().next().is_some_and(|key| key == "_id") {
        return after;
    }
    let Some(id) = after.remove("_id").or_else(|| before.get("_id").cloned()) else {
        return after;
    };
    let mut ordered = Document::new();
    ordered.insert("_id", id);
    ordered.extend(after);
    ordered
}

fn check_id_unchanged(before: &Document, after: &Document) -> Result<()> {
    let unchanged = match (before.get("_id"), after.get("_id")) {
        (Some(before), Some(after)) => equal(before, after),
        (None, _) => true,
        (Some(_), None) => false,
    };
    if unchanged {
        return Ok(());
    }
    let altered = match after.get("_id") {
        Some(id) => format!("altered to _id: {id}"),
        None => "removed".to_owned(),
    };
    Err(fail!(
        IMMUTABLE_FIELD,
        "After applying the update, the (immutable) field '_id' was found to have been \
             {altered}"
    ))
}
