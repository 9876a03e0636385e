//! Pipelines inside pipelines: `$facet` runs several over the same documents, `$unionWith` adds the
//! documents of another collection.

use std::sync::Arc;

use bson::{Bson, Document};

use super::memory::Memory;
use super::stage::{Made, deferred, failed};
use super::{Documents, Pipeline, Run};
use crate::error::Result;
use crate::meter::{Kept, push};

/// A `$unionWith` stage.
#[derive(Clone, Debug)]
pub(super) struct UnionWith {
    /// The other collection; `None` if the pipeline brings its own documents.
    pub(super) collection: Option<String>,
    pub(super) pipeline: Pipeline,
}

impl UnionWith {
    /// What can be left out when the other collection is read.
    fn filter(&self) -> Option<Document> {
        self.pipeline.constant_filter()
    }
}

pub(super) fn run_union(union: Arc<UnionWith>, input: Documents, run: &Run) -> Documents {
    Box::new(Union { own: Some(input), others: None, union, run: run.clone() })
}

/// First the own documents, then those of the other collection, which is opened only when the first
/// are exhausted.
struct Union {
    own: Option<Documents>,
    others: Option<Documents>,
    union: Arc<UnionWith>,
    run: Run,
}

impl Union {
    fn open(&self) -> Result<Documents> {
        let documents = match &self.union.collection {
            Some(collection) => {
                self.run.environment.read(collection, self.union.filter().as_ref())?
            }
            None => Box::new(std::iter::empty()),
        };
        Ok(self.union.pipeline.chain(documents, &self.run))
    }
}

impl Iterator for Union {
    type Item = Result<Document>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(own) = &mut self.own {
            let next = own.next();
            if next.is_some() {
                return next;
            }
            self.own = None;
            self.others = Some(self.open().unwrap_or_else(failed));
        }
        self.others.as_mut()?.next()
    }
}

pub(super) fn run_facet(
    facets: Arc<Vec<(String, Pipeline)>>,
    input: Documents,
    run: &Run,
) -> Documents {
    let run = run.clone();
    deferred(move || {
        let mut memory = Memory::new("$facet", &run);
        let mut documents = Kept::new(Vec::<Document>::new(), run.variables.meter());
        for document in input {
            let document = document?;
            memory.hold_document(&document)?;
            push(&mut documents, document);
        }
        let documents = Arc::new(documents);
        let mut result = Document::new();
        for (name, pipeline) in facets.iter() {
            let shared = Arc::clone(&documents);
            let mut next = 0;
            let input = std::iter::from_fn(move || {
                let document = shared.get(next).cloned();
                next += 1;
                document.map(Ok)
            });
            let mut found = Kept::new(Vec::new(), run.variables.meter());
            for document in pipeline.chain(Box::new(input), &run) {
                let document = document?;
                memory.hold_document(&document)?;
                push(&mut found, Bson::Document(document));
            }
            result.insert(name.as_str(), found.into_inner());
        }
        Ok(Made { documents: vec![result], memory: Some(memory) })
    })
}
