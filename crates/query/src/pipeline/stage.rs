//! One stage of a pipeline, and how it is put behind the documents of the one before.

use std::sync::Arc;

use bson::{Bson, Document};

use super::bucket::BucketAuto;
use super::densify::{self, Densify};
use super::facet::{self, UnionWith};
use super::graph_lookup::GraphLookup;
use super::group::{self, Group};
use super::lookup::{self, Lookup};
use super::memory::Memory;
use super::output::Output;
use super::redact;
use super::sample;
use super::sort::{self, SortStage};
use super::system::SystemStage;
use super::unwind::{self, Unwind};
use super::window::{self, WindowStage};
use super::{Documents, Pipeline, Run, bucket, count};
use crate::error::{QueryError, Result};
use crate::expression::{Compiler, Dependencies, Expression, Frame, Operand, Variables, cost};
use crate::matcher::Matcher;
use crate::meter::Charge;
use crate::projection::{AddFields, Fields};
use crate::typed::Typed;

/// A stage, ready to run. A stage that holds documents back shares itself with the stream that it makes.
#[derive(Clone, Debug)]
pub(super) enum Stage {
    Match {
        query: Document,
        matcher: Matcher,
        /// Whether expressions are in it, which see the variables of the run.
        computes: bool,
        /// The fields it reads.
        reads: Dependencies,
    },
    Project(Fields),
    AddFields(AddFields),
    ReplaceRoot {
        expression: Expression,
        stage: &'static str,
    },
    Redact(Expression),
    Limit(u64),
    Skip(u64),
    Count(String),
    Unwind(Unwind),
    Sort(Arc<SortStage>),
    Group(Arc<Group>),
    BucketAuto(Arc<BucketAuto>),
    Window(Arc<WindowStage>),
    Densify(Arc<Densify>),
    Sample(u64),
    Lookup(Arc<Lookup>),
    GraphLookup(GraphLookup),
    UnionWith(Arc<UnionWith>),
    Facet(Arc<Vec<(String, Pipeline)>>),
    Documents(Expression),
    System(SystemStage),
    Output(Output),
}

impl Stage {
    /// Whether the stage starts a pipeline and reads no collection.
    pub(super) fn is_source(&self) -> bool {
        matches!(self, Self::Documents(_) | Self::System(_))
    }

    /// Whether the stage must see every document before it gives one.
    pub(super) fn is_blocking(&self) -> bool {
        matches!(
            self,
            Self::Sort(_)
                | Self::Group(_)
                | Self::BucketAuto(_)
                | Self::Window(_)
                | Self::Densify(_)
                | Self::Sample(_)
                | Self::Facet(_)
                | Self::Count(_)
        )
    }

    /// The function of one document, if the stage turns each document into at most one.
    pub(super) fn step(stage: &Arc<Self>, run: &Run) -> Option<Result<Step>> {
        let (shared, run) = (Arc::clone(stage), run.clone());
        Some(Ok(match &**stage {
            Self::Match { query, matcher, computes, .. } => {
                let matcher = match computes {
                    false => matcher.clone(),
                    true => {
                        let compiler = Compiler::new((*run.variables).clone());
                        match Matcher::parse_with(query, &compiler) {
                            Ok(matcher) => matcher,
                            Err(error) => return Some(Err(error)),
                        }
                    }
                };
                Box::new(move |document, _| {
                    let found = matcher.matches(&document)?;
                    Ok(if found { Flow::Next(document) } else { Flow::Dropped })
                })
            }
            Self::Limit(limit) => {
                let mut left = *limit;
                Box::new(move |document, _| {
                    left = left.saturating_sub(1);
                    Ok(if left == 0 { Flow::Last(document) } else { Flow::Next(document) })
                })
            }
            Self::Skip(skip) => {
                let mut left = *skip;
                Box::new(move |document, _| {
                    if left == 0 {
                        return Ok(Flow::Next(document));
                    }
                    left -= 1;
                    Ok(Flow::Dropped)
                })
            }
            Self::Lookup(lookup) => lookup::step(Arc::clone(lookup), run),
            Self::Project(_)
            | Self::AddFields(_)
            | Self::ReplaceRoot { .. }
            | Self::Redact(_)
            | Self::GraphLookup(_) => Box::new(move |document, charge| {
                Ok(shared.apply(document, &run, charge)?.map_or(Flow::Dropped, Flow::Next))
            }),
            _ => return None,
        }))
    }

    /// Puts the stage behind the documents that it works on.
    pub(super) fn run(&self, input: Documents, run: &Run) -> Documents {
        match self {
            Self::Count(field) => count::run(field.clone(), input),
            Self::Unwind(unwind) => unwind::run(unwind.clone(), input, run),
            Self::Sort(sort) => sort::run(Arc::clone(sort), input, run),
            Self::Group(group) => group::run(Arc::clone(group), input, run),
            Self::BucketAuto(bucket) => bucket::run(Arc::clone(bucket), input, run),
            Self::Window(window) => window::run(Arc::clone(window), input, run),
            Self::Densify(densify) => densify::run(Arc::clone(densify), input, run),
            Self::Sample(size) => sample::run(*size, input, run),
            Self::UnionWith(union) => facet::run_union(Arc::clone(union), input, run),
            Self::Facet(facets) => facet::run_facet(Arc::clone(facets), input, run),
            Self::Documents(expression) => literal_documents(expression, run),
            Self::System(system) => match run.environment.system(system) {
                Ok(documents) => Box::new(documents.into_iter().map(Ok)),
                Err(error) => failed(error),
            },
            // The caller writes what comes out; everything else is a step.
            _ => input,
        }
    }

    /// The document that one document is turned into; `None` if it is dropped. Only for stages without memory.
    fn apply(
        &self,
        document: Document,
        run: &Run,
        charge: &mut Charge,
    ) -> Result<Option<Document>> {
        match self {
            Self::Redact(expression) => redact::apply(expression, &document, &run.variables),
            Self::GraphLookup(lookup) => lookup.apply(document, run, charge).map(Some),
            _ => self.change(document, &run.variables, charge).map(Some),
        }
    }

    /// The document that one document is turned into, by the stages that updates may have.
    pub(super) fn change(
        &self,
        document: Document,
        variables: &Variables,
        charge: &mut Charge,
    ) -> Result<Document> {
        match self {
            Self::Project(fields) => fields.apply(document, variables, charge),
            Self::AddFields(fields) => fields.apply(document, variables, charge),
            Self::ReplaceRoot { expression, stage } => {
                let root = expression.operand(Frame::new(&document, variables))?;
                charge.grow(stage, cost(root.or_null())?)?;
                replaced(&document, root, stage)
            }
            _ => Ok(document),
        }
    }

    pub(super) fn other_collections<'a>(&'a self, names: &mut Vec<&'a str>) {
        let mut inner = |pipeline: &'a Pipeline| names.extend(pipeline.other_collections());
        match self {
            Self::Lookup(lookup) => {
                if let Some(pipeline) = &lookup.pipeline {
                    inner(pipeline);
                }
                names.extend(lookup.from.as_deref());
            }
            Self::GraphLookup(lookup) => names.push(&lookup.from),
            Self::UnionWith(union) => {
                inner(&union.pipeline);
                names.extend(union.collection.as_deref());
            }
            Self::Facet(facets) => facets.iter().for_each(|(_, pipeline)| inner(pipeline)),
            _ => {}
        }
    }
}

/// The function of a stage on one document.
///
/// The charge lives as long as the document is on its way through the steps.
pub(super) type Step = Box<dyn FnMut(Document, &mut Charge) -> Result<Flow> + Send>;

/// The outcome for one document.
pub(super) enum Flow {
    /// The document goes to the next stage.
    Next(Document),
    /// The document goes to the next stage, and is the last one.
    Last(Document),
    /// The document is dropped.
    Dropped,
}

/// A stream of nothing but an error.
pub(super) fn failed(error: QueryError) -> Documents {
    Box::new(std::iter::once(Err(error)))
}

/// A stream whose documents are made when the first is asked for.
pub(super) fn deferred(make: impl FnOnce() -> Result<Made> + Send + 'static) -> Documents {
    deferred_stream(move || {
        let Made { documents, memory } = make()?;
        Ok(held(Box::new(documents.into_iter().map(Ok)), memory))
    })
}

/// Documents that a stage made, and what they hold until the last of them has been handed on.
#[derive(Default)]
pub(super) struct Made {
    pub(super) documents: Vec<Document>,
    pub(super) memory: Option<Memory>,
}

/// The same documents, whose memory is given back with the stream.
pub(super) fn held(mut documents: Documents, memory: Option<Memory>) -> Documents {
    Box::new(std::iter::from_fn(move || {
        let _held = &memory;
        documents.next()
    }))
}

/// A stream that is made when its first document is asked for.
pub(super) fn deferred_stream(
    make: impl FnOnce() -> Result<Documents> + Send + 'static,
) -> Documents {
    Box::new(Deferred { make: Some(Box::new(make)), made: None })
}

/// Makes a stream when it is first needed.
type Make = Box<dyn FnOnce() -> Result<Documents> + Send>;

struct Deferred {
    make: Option<Make>,
    made: Option<Documents>,
}

impl Iterator for Deferred {
    type Item = Result<Document>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(make) = self.make.take() {
            match make() {
                Ok(documents) => self.made = Some(documents),
                Err(error) => return Some(Err(error)),
            }
        }
        self.made.as_mut()?.next()
    }
}

fn replaced(document: &Document, root: Operand<'_>, stage: &str) -> Result<Document> {
    let kind = root.type_name();
    match root.into_bson() {
        Some(Bson::Document(root)) => Ok(root),
        other => {
            let field = if stage == "$replaceRoot" {
                "'newRoot' expression "
            } else {
                "'replacement document' "
            };
            Err(fail!(
                40228,
                "{field} must evaluate to an object, but resulting value was: {}. Type of \
                     resulting value: '{kind}'. Input document: {document}",
                other.map_or("MISSING".to_owned(), |value| value.to_string())
            ))
        }
    }
}

fn literal_documents(expression: &Expression, run: &Run) -> Documents {
    let value = match expression.evaluate(&Document::new(), &run.variables) {
        Ok(value) => value,
        Err(error) => return failed(error),
    };
    let Some(Bson::Array(elements)) = value else {
        return failed(fail!(5858203, "an array is expected as the argument of $documents"));
    };
    let mut memory = Memory::new("$documents", run);
    if let Err(error) = elements.iter().try_for_each(|element| memory.hold_value(element)) {
        return failed(error);
    }
    let documents = elements.into_iter().map(|element| match element {
        Bson::Document(document) => Ok(document),
        other => Err(fail!(40228, "$documents: each element must be an object, found {other}")),
    });
    held(Box::new(documents), Some(memory))
}
