//! Behaviour of stages, over documents and collections held in memory.

mod densify;
mod grouping;
mod interrupts;
mod joining;
mod memory;
mod planning;
mod properties;
mod shaping;
mod windows;

use std::collections::BTreeMap;
use std::sync::Arc;

use bson::{Bson, Document, doc};

use super::{Documents, Environment, Pipeline, SystemStage};
use crate::error::Result;
use crate::expression::Variables;
use crate::meter::{MAX_OPERATION_BYTES, Meter};

/// Collections held in memory; one called `broken` cannot be read.
#[derive(Default)]
struct Collections(BTreeMap<String, Vec<Document>>);

impl Environment for Collections {
    fn read(&self, collection: &str, _filter: Option<&Document>) -> Result<Documents> {
        refuse_if!(collection == "broken" => BAD_VALUE, "the collection is broken");
        let documents = self.0.get(collection).cloned().unwrap_or_default();
        Ok(Box::new(documents.into_iter().map(Ok)))
    }

    fn system(&self, stage: &SystemStage) -> Result<Vec<Document>> {
        match stage {
            SystemStage::IndexStats => Ok(vec![doc! { "name": "_id_" }]),
            other => Err(fail!(40602, "no {} here", other.name())),
        }
    }
}

/// The same collections, with room to put documents aside.
struct Spacious(Arc<dyn Environment>);

impl Environment for Spacious {
    fn read(&self, collection: &str, filter: Option<&Document>) -> Result<Documents> {
        self.0.read(collection, filter)
    }

    fn sets_aside(&self) -> bool {
        true
    }

    fn system(&self, stage: &SystemStage) -> Result<Vec<Document>> {
        self.0.system(stage)
    }
}

/// The same collections, with every field indexed.
struct Indexed(Arc<dyn Environment>);

impl Environment for Indexed {
    fn read(&self, collection: &str, filter: Option<&Document>) -> Result<Documents> {
        assert!(filter.is_some(), "an index is of no use without a filter");
        self.0.read(collection, filter)
    }

    fn has_index(&self, _collection: &str, _field: &str) -> bool {
        true
    }

    fn system(&self, stage: &SystemStage) -> Result<Vec<Document>> {
        self.0.system(stage)
    }
}

fn environment() -> Arc<dyn Environment> {
    let mut collections = BTreeMap::new();
    collections.insert(
        "stock".to_owned(),
        vec![
            doc! { "_id": 1, "sku": "a", "count": 10, "tags": ["x", "y"] },
            doc! { "_id": 2, "sku": "b", "count": 20 },
            doc! { "_id": 3, "count": 30 },
        ],
    );
    let boss = |id: i32, name: &str, boss: Bson| doc! { "_id": id, "name": name, "boss": boss };
    collections.insert(
        "staff".to_owned(),
        vec![
            boss(1, "Ada", Bson::Null),
            boss(2, "Ben", "Ada".into()),
            boss(3, "Cid", "Ben".into()),
            boss(4, "Dot", vec!["Cid", "Dot"].into()),
        ],
    );
    Arc::new(Collections(collections))
}

fn array(stages: Bson) -> Vec<Bson> {
    match stages {
        Bson::Array(stages) => stages,
        single => vec![single],
    }
}

fn run_in(
    stages: Bson,
    input: Vec<Document>,
    environment: Arc<dyn Environment>,
    memory_limit: usize,
) -> Result<Vec<Document>> {
    let variables = Variables::new(11).with_variable("given", Bson::Int32(5));
    let pipeline = Pipeline::parse(&array(stages), &variables)?;
    let input = Box::new(input.into_iter().map(Ok));
    let variables = variables.with_meter(Meter::new(memory_limit));
    pipeline.run(input, environment, &variables).collect()
}

fn run_within(stages: Bson, input: Vec<Document>, memory_limit: usize) -> Result<Vec<Document>> {
    run_in(stages, input, environment(), memory_limit)
}

fn try_run(stages: Bson, input: Vec<Document>) -> Result<Vec<Document>> {
    run_within(stages, input, MAX_OPERATION_BYTES)
}

#[track_caller]
fn run(stages: Bson, input: Vec<Document>) -> Vec<Document> {
    match try_run(stages.clone(), input) {
        Ok(documents) => documents,
        Err(error) => panic!("{stages} failed: {} {error}", error.code()),
    }
}

/// Checks that each pipeline is refused with this code, over one document.
#[track_caller]
fn refuse(cases: Vec<(Bson, i32)>) {
    for (stages, code) in cases {
        match try_run(stages.clone(), vec![doc! { "_id": 1, "a": 1, "list": [1, 2] }]) {
            Err(error) => assert_eq!(error.code().0, code, "{stages}: {error}"),
            Ok(documents) => panic!("{stages} gave {documents:?} instead of error {code}"),
        }
    }
}
