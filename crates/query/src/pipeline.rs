//! Aggregation pipelines: parsed once, run as a stream of documents.
//!
//! Owns the stages and how they follow each other. What they need from outside (other collections,
//! statistics) comes through [`Environment`]; writing the result of `$out` and `$merge` is left to
//! the caller, which finds what to do in [`Pipeline::output`]. A stage pulls from the one before it,
//! one document at a time. Everything that grows (stages that must see everything first, computed
//! fields, joined arrays) is charged to the one [`Meter`](crate::Meter) of the variables.
//!
//! ```text
//! caller's documents ─▶ $match ─▶ $group ─▶ $sort ─▶ caller (or $out, by the caller)
//!                                   ▲
//!                Environment::read ─┘ only $lookup and $unionWith
//! ```

mod accumulator;
mod bucket;
mod chain;
mod count;
mod densify;
mod depend;
mod facet;
mod fill;
mod graph_lookup;
mod group;
mod lookup;
mod memory;
mod output;
mod parse;
mod pushdown;
mod redact;
mod sample;
mod sort;
mod stage;
mod system;
mod unwind;
mod window;
mod window_frame;
mod window_numbers;

#[cfg(test)]
mod tests;

use std::ops::Deref;
use std::sync::Arc;

use bson::{Bson, Document, RawDocument};

pub use self::depend::Decoder;
pub use self::output::{Merge, Output, WhenMatched, WhenNotMatched};
pub use self::pushdown::Pushdown;
use self::stage::Stage;
pub use self::system::SystemStage;
use crate::error::Result;
use crate::expression::{Compiler, ParseContext, Variables};
use crate::value::measure;

/// The most stages of one pipeline.
pub(crate) const MAX_STAGES: usize = 1000;

/// The deepest nesting of pipelines in `$lookup`, `$facet` and `$unionWith`.
pub(crate) const MAX_PIPELINE_DEPTH: usize = 20;

/// A stream of documents. After an error nothing more comes.
pub type Documents = Box<dyn Iterator<Item = Result<Document>> + Send>;

/// A stream of documents as they are stored.
pub type StoredDocuments<D> = Box<dyn Iterator<Item = Result<D>> + Send>;

/// What stages need from outside.
pub trait Environment: Send + Sync {
    /// The documents of another collection, in no particular order. Every document that matches the
    /// filter must be among them; those that do not may be left out, which is what an index is for.
    /// A collection that does not exist is empty.
    ///
    /// # Errors
    ///
    /// If the collection cannot be read.
    fn read(&self, collection: &str, filter: Option<&Document>) -> Result<Documents>;

    /// Whether [`read`](Self::read) finds documents by this field without looking at all of them.
    /// If not, `$lookup` reads the collection once and keeps it.
    fn has_index(&self, _collection: &str, _field: &str) -> bool {
        false
    }

    /// Whether [`set_aside`](Self::set_aside) can do it.
    fn sets_aside(&self) -> bool {
        false
    }

    /// Puts sorted documents aside, for instance on disk, to be read back in the same order. If that is not possible or
    /// not allowed, a `$sort` fails at its memory limit.
    ///
    /// # Errors
    ///
    /// If they cannot be written.
    fn set_aside(&self, documents: Vec<Document>) -> Result<Documents> {
        Ok(Box::new(documents.into_iter().map(Ok)))
    }

    /// The documents that a stage about the server itself starts from.
    ///
    /// # Errors
    ///
    /// If the stage is not available here.
    fn system(&self, stage: &SystemStage) -> Result<Vec<Document>>;
}

/// What a run of a pipeline shares.
#[derive(Clone)]
struct Run {
    environment: Arc<dyn Environment>,
    variables: Arc<Variables>,
}

/// A parsed pipeline.
#[derive(Clone, Debug, Default)]
pub struct Pipeline {
    stages: Vec<Arc<Stage>>,
}

impl Pipeline {
    /// Reads a pipeline whose expressions see these variables.
    ///
    /// # Errors
    ///
    /// If a stage is unknown, malformed, or in a place where it may not be.
    pub fn parse(stages: &[Bson], variables: &Variables) -> Result<Self> {
        parse::parse(stages, parse::Place::Command, variables, &ParseContext::of(variables))
    }

    /// Reads the pipeline of an update, which turns one document into one.
    pub(crate) fn parse_update(stages: &[Bson], compiler: &Compiler) -> Result<Self> {
        parse::parse(stages, parse::Place::Update, compiler.variables(), compiler.context())
    }

    /// The document that the pipeline of an update makes of one.
    pub(crate) fn update(&self, mut document: Document, variables: &Variables) -> Result<Document> {
        let mut charge = variables.meter().charge();
        for stage in &self.stages {
            document = stage.change(document, variables, &mut charge)?;
            // A later stage must not multiply what is already too large.
            measure(&document).check()?;
        }
        Ok(document)
    }

    /// Runs the pipeline over the caller's documents. A pipeline that does not read a collection
    /// (see [`reads_collection`](Self::reads_collection)) ignores them.
    pub fn run(
        &self,
        input: Documents,
        environment: Arc<dyn Environment>,
        variables: &Variables,
    ) -> Documents {
        let run = Run { environment, variables: Arc::new(variables.clone()) };
        Box::new(UntilError { documents: Some(self.chain(input, &run)) })
    }

    /// The same over documents as they are stored, reading no more of them than the pipeline needs.
    pub fn run_stored<D>(
        &self,
        input: StoredDocuments<D>,
        environment: Arc<dyn Environment>,
        variables: &Variables,
    ) -> Documents
    where
        D: Deref<Target = RawDocument> + 'static,
    {
        let run = Run { environment, variables: Arc::new(variables.clone()) };
        let decoder = self.decoder();
        let documents = match self.stages.split_first().map(|(first, rest)| (&**first, rest)) {
            Some((Stage::Group(group), rest)) if decoder.is_partial() => {
                let grouped = group::run_stored(Arc::clone(group), input, decoder, &run);
                chain::chain(rest, grouped, &run)
            }
            _ => self.chain(Box::new(input.map(move |stored| decoder.decode(&stored?))), &run),
        };
        Box::new(UntilError { documents: Some(documents) })
    }

    fn chain(&self, input: Documents, run: &Run) -> Documents {
        chain::chain(&self.stages, input, run)
    }

    /// Whether the pipeline starts from the documents of its collection.
    pub fn reads_collection(&self) -> bool {
        !self.stages.first().is_some_and(|stage| stage.is_source())
    }

    /// Whether the pipeline starts from the documents that its first stage lists.
    pub fn starts_from_documents(&self) -> bool {
        matches!(self.stages.first().map(|stage| &**stage), Some(Stage::Documents(_)))
    }

    /// Where the result goes, if the pipeline ends in `$out` or `$merge`.
    pub fn output(&self) -> Option<&Output> {
        match self.stages.last().map(|stage| &**stage) {
            Some(Stage::Output(output)) => Some(output),
            _ => None,
        }
    }

    /// Whether the first stage is a `$match` that this document does not pass. A stage whose expressions see variables
    /// is not asked.
    ///
    /// # Errors
    ///
    /// If the document cannot be compared.
    pub fn refuses(&self, document: &Document) -> Result<bool> {
        match self.stages.first().map(|stage| &**stage) {
            Some(Stage::Match { matcher, computes: false, .. }) => {
                matcher.matches(document).map(|passes| !passes)
            }
            _ => Ok(false),
        }
    }

    /// Whether there is no stage.
    pub fn is_empty(&self) -> bool {
        self.stages.is_empty()
    }

    /// The collections that the pipeline reads besides its own, each once.
    pub fn other_collections(&self) -> Vec<&str> {
        let mut names = Vec::new();
        for stage in &self.stages {
            stage.other_collections(&mut names);
        }
        names.sort_unstable();
        names.dedup();
        names
    }

    /// What turns stored bytes into this pipeline's input, decoding no more than it reads.
    pub fn decoder(&self) -> Decoder {
        Decoder::of(self)
    }

    /// The leading `$match` stages as a query, as far as they hold no expressions.
    fn constant_filter(&self) -> Option<Document> {
        let constant =
            |stage: &&Arc<Stage>| matches!(&***stage, Stage::Match { computes: false, .. });
        let stages = self.stages.iter().take_while(constant).cloned().collect();
        pushdown::split(&Self { stages }).filter
    }

    /// Separates what an index can do: leading `$match`, `$sort`, `$skip` and `$limit`.
    pub fn push_down(&self) -> Pushdown {
        pushdown::split(self)
    }
}

/// Ends a stream at its first error, so that no stage has to.
struct UntilError {
    documents: Option<Documents>,
}

impl Iterator for UntilError {
    type Item = Result<Document>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.documents.as_mut()?.next();
        if !matches!(next, Some(Ok(_))) {
            self.documents = None;
        }
        next
    }
}
