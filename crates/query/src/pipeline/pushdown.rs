//! What an index can do of a pipeline, and putting stages into an order that lets it do more.

use std::sync::Arc;

use bson::{Bson, Document};

use super::Pipeline;
use super::stage::Stage;

/// The beginning of a pipeline as a query, and the rest.
///
/// The parts apply in this order: filter, sort, skip, limit.
#[derive(Clone, Debug, Default)]
pub struct Pushdown {
    /// The leading `$match` stages, joined.
    pub filter: Option<Document>,
    /// The `$sort` behind them.
    pub sort: Option<Document>,
    /// The `$skip` behind that.
    pub skip: Option<u64>,
    /// The `$limit` behind that.
    pub limit: Option<u64>,
    /// What is left to be run over the documents that the query finds.
    pub rest: Pipeline,
}

/// Separates the leading stages that are a query.
pub(super) fn split(pipeline: &Pipeline) -> Pushdown {
    let mut down = Pushdown::default();
    let mut filters: Vec<&Document> = Vec::new();
    let mut stages = pipeline.stages.iter().peekable();
    while let Some(Stage::Match { query, .. }) = stages.peek().map(|stage| &***stage) {
        filters.push(query);
        stages.next();
    }
    down.filter = match filters.as_slice() {
        [] => None,
        [single] => Some((*single).clone()),
        several => {
            let all = several.iter().map(|query| Bson::Document((*query).clone())).collect();
            let mut joined = Document::new();
            joined.insert("$and", Bson::Array(all));
            Some(joined)
        }
    };
    if let Some(Stage::Sort(sort)) = stages.peek().map(|stage| &***stage) {
        down.sort = Some(sort.spec.clone());
        stages.next();
    }
    if let Some(Stage::Skip(skip)) = stages.peek().map(|stage| &***stage) {
        down.skip = Some(*skip);
        stages.next();
    }
    if let Some(Stage::Limit(limit)) = stages.peek().map(|stage| &***stage) {
        down.limit = Some(*limit);
        stages.next();
    }
    down.rest = Pipeline { stages: stages.cloned().collect() };
    down
}

/// Puts `$match` before `$sort`, and tells each `$sort` how many documents can be of use.
pub(super) fn optimise(mut stages: Vec<Stage>) -> Vec<Arc<Stage>> {
    // Each pass moves a `$match` by one place, and none moves back.
    for end in (1..stages.len()).rev() {
        for place in 0..end {
            if matches!(stages[place..=place + 1], [Stage::Sort(_), Stage::Match { .. }]) {
                stages.swap(place, place + 1);
            }
        }
    }
    for place in 0..stages.len() {
        let wanted = wanted_behind(&stages[place + 1..]);
        if let Some(Stage::Sort(sort)) = stages.get_mut(place) {
            Arc::make_mut(sort).limit = wanted;
        }
    }
    stages.into_iter().map(Arc::new).collect()
}

/// How many documents the stages behind a sort can take in, if they say.
fn wanted_behind(stages: &[Stage]) -> Option<u64> {
    let mut skipped: u64 = 0;
    for stage in stages {
        match stage {
            Stage::Skip(skip) => skipped = skipped.saturating_add(*skip),
            Stage::Limit(limit) => return Some(skipped.saturating_add(*limit)),
            _ => return None,
        }
    }
    None
}
