//! Pipelines inside pipelines: `$facet` runs several over the same documents, `$unionWith` adds the
//! documents of another collection.

use std::sync::Arc;

use bson::{Bson, Document};

use super::memory::Memory;
use super::stage::{Stage, deferred, failed};
use super::{Documents, Pipeline, Run};

/// A `$unionWith` stage.
#[derive(Clone, Debug)]
pub(super) struct UnionWith {
    /// The other collection; `None` if the pipeline brings its own documents.
    pub(super) collection: Option<String>,
    pub(super) pipeline: Pipeline,
}

pub(super) fn run_union(stage: Arc<Stage>, input: Documents, run: &Run) -> Documents {
    let run = run.clone();
    // The other collection is opened only when the first is exhausted.
    let others = std::iter::once_with(move || {
        let Stage::UnionWith(union) = &*stage else { return nothing() };
        let documents = match &union.collection {
            Some(collection) => run.environment.read(collection, None),
            None => Ok(nothing()),
        };
        match documents {
            Ok(documents) => union.pipeline.chain(documents, &run),
            Err(error) => failed(error),
        }
    });
    Box::new(input.chain(others.flatten()))
}

fn nothing() -> Documents {
    Box::new(std::iter::empty())
}

pub(super) fn run_facet(stage: Arc<Stage>, input: Documents, run: &Run) -> Documents {
    let run = run.clone();
    deferred(move || {
        let Stage::Facet(facets) = &*stage else { return Ok(Vec::new()) };
        let mut memory = Memory::new("$facet", run.memory_limit);
        let mut documents: Vec<Document> = Vec::new();
        for document in input {
            let document = document?;
            memory.hold_document(&document)?;
            documents.push(document);
        }
        let documents = Arc::new(documents);
        let mut result = Document::new();
        for (name, pipeline) in facets {
            let shared = Arc::clone(&documents);
            let mut next = 0;
            let input = std::iter::from_fn(move || {
                let document = shared.get(next).cloned();
                next += 1;
                document.map(Ok)
            });
            let mut found = Vec::new();
            for document in pipeline.chain(Box::new(input), &run) {
                let document = document?;
                memory.hold_document(&document)?;
                found.push(Bson::Document(document));
            }
            result.insert(name.as_str(), found);
        }
        Ok(vec![result])
    })
}
