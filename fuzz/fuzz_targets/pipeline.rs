//! Any pipeline over a few documents: bounded in what it holds and in what it gives, and the same
//! result when only the fields it says it needs are read.
#![no_main]

use std::sync::Arc;

use bson::{Bson, Document, RawDocumentBuf, doc};
use libfuzzer_sys::fuzz_target;
use quorate_fuzz::{Choices, words};
use quorate_query::expression::Variables;
use quorate_query::pipeline::{Documents, Environment, Pipeline, SystemStage};
use quorate_query::{Meter, QueryError};

/// What the stages may hold together.
const MEMORY: usize = 1 << 20;

/// How many documents are asked for.
const OUTPUT: usize = 500;

struct Elsewhere(Vec<Document>);

impl Environment for Elsewhere {
    fn read(&self, _collection: &str, _: Option<&Document>) -> Result<Documents, QueryError> {
        Ok(Box::new(self.0.clone().into_iter().map(Ok)))
    }

    fn system(&self, _: &SystemStage) -> Result<Vec<Document>, QueryError> {
        Ok(vec![doc! {"a": 1}])
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut choices = Choices::new(bytes);
    let input: Vec<Document> = (0..choices.byte() % 5).map(|_| choices.stored()).collect();
    let elsewhere =
        Arc::new(Elsewhere((0..choices.byte() % 4).map(|_| choices.stored()).collect()));
    let vocabulary =
        [words::STAGES, words::STAGE_FIELDS, words::EXPRESSIONS, words::ARGUMENTS, words::QUERY];
    let stages: Vec<Bson> = choices.list(&vocabulary);
    let variables = Variables::new(1);
    let Ok(pipeline) = Pipeline::parse(&stages, &variables) else { return };
    let run = |documents: Vec<Document>| {
        let environment: Arc<dyn Environment> = elsewhere.clone();
        let documents: Documents = Box::new(documents.into_iter().map(Ok));
        // A run draws its own chances, from the same seed.
        let variables = Variables::new(1).with_meter(Meter::new(MEMORY));
        let results = pipeline.run(documents, environment, &variables);
        results.take(OUTPUT).collect::<Result<Vec<Document>, QueryError>>()
    };
    let whole = run(input.clone());
    let decoder = pipeline.decoder();
    let read: Result<Vec<Document>, _> = input
        .iter()
        .map(|document| {
            let raw = RawDocumentBuf::try_from(document).expect("names hold no zero byte");
            decoder.decode(&raw)
        })
        .collect();
    let (Ok(whole), Ok(read)) = (whole, read) else { return };
    if let Ok(read) = run(read) {
        assert_eq!(format!("{whole:?}"), format!("{read:?}"), "{stages:?}");
    }
});
