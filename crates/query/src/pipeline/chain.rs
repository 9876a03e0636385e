//! Stages one after the other.
//!
//! Stages that turn a document into at most one run in a loop over each document, and stages that
//! must see everything run to their end one after the other. Neither stands on the stack of the
//! next, so that the longest pipeline needs hardly more of it than the shortest.

use std::sync::Arc;

use bson::Document;

use super::stage::{Flow, Stage, Step};
use super::{Documents, Run};
use crate::error::Result;
use crate::meter::{Charge, Meter};

/// The documents that come out of some stages. Nothing happens before the first is asked for.
pub(super) fn chain(stages: &[Arc<Stage>], input: Documents, run: &Run) -> Documents {
    let pending = Some((stages.to_vec(), run.clone()));
    Box::new(Chain { pending, current: Some(input), meter: run.variables.meter().clone() })
}

struct Chain {
    pending: Option<(Vec<Arc<Stage>>, Run)>,
    current: Option<Documents>,
    meter: Meter,
}

/// Stages keep documents that have not gone on yet. Those of an operation that was told to end are freed after
/// its answer.
impl Drop for Chain {
    fn drop(&mut self) {
        if self.meter.has_ended()
            && let Some(stages) = self.current.take()
        {
            self.meter.leave(stages);
        }
    }
}

impl Iterator for Chain {
    type Item = Result<Document>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some((stages, run)) = self.pending.take() {
            let built = self.current.take().map(|input| build(&stages, input, &run));
            match built.transpose() {
                Ok(documents) => self.current = documents,
                Err(error) => return Some(Err(error)),
            }
        }
        self.current.as_mut()?.next()
    }
}

fn build(stages: &[Arc<Stage>], input: Documents, run: &Run) -> Result<Documents> {
    let mut documents = input;
    let mut steps: Vec<Step> = Vec::new();
    for stage in stages {
        if let Some(step) = Stage::step(stage, run) {
            steps.push(step?);
            continue;
        }
        documents = watched(stepped(documents, std::mem::take(&mut steps), run), run);
        documents = stage.run(documents, run);
        if stage.is_blocking() {
            documents = started(documents)?;
        }
    }
    Ok(watched(stepped(documents, steps, run), run))
}

/// The same documents, for as long as the operation may go on. The supplier of the first ones asks
/// too, but a stage can make many out of one, and a `$lookup` meets many for one.
fn watched(documents: Documents, run: &Run) -> Documents {
    let variables = Arc::clone(&run.variables);
    Box::new(documents.map(move |document| variables.step().and(document)))
}

/// Asks a blocking stage for its first document, which makes it take in all of its input.
fn started(mut documents: Documents) -> Result<Documents> {
    match documents.next().transpose()? {
        Some(first) => Ok(Box::new(std::iter::once(Ok(first)).chain(documents))),
        None => Ok(Box::new(std::iter::empty())),
    }
}

fn stepped(input: Documents, steps: Vec<Step>, run: &Run) -> Documents {
    if steps.is_empty() {
        return input;
    }
    let charge = run.variables.meter().charge();
    Box::new(Stepped { input, steps, charge, ended: false })
}

/// Documents that go through steps, each through all of them before the next is asked for.
struct Stepped {
    input: Documents,
    steps: Vec<Step>,
    /// What the steps have added to the document that is on its way, until the next is asked for.
    charge: Charge,
    /// Set by a limit: nothing more is even asked for, so that whatever is behind can stop too.
    ended: bool,
}

impl Stepped {
    fn step(&mut self, mut document: Document) -> Result<Option<Document>> {
        self.charge.clear();
        for step in &mut self.steps {
            document = match step(document, &mut self.charge)? {
                Flow::Next(document) => document,
                Flow::Last(document) => {
                    self.ended = true;
                    document
                }
                Flow::Dropped => return Ok(None),
            };
        }
        Ok(Some(document))
    }
}

impl Iterator for Stepped {
    type Item = Result<Document>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.ended {
            let document = match self.input.next()? {
                Ok(document) => document,
                Err(error) => return Some(Err(error)),
            };
            if let Some(document) = self.step(document).transpose() {
                return Some(document);
            }
        }
        None
    }
}
