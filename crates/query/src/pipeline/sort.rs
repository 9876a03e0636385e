//! `$sort`, which keeps only as many documents as a `$limit` behind it can use, and puts aside what
//! does not fit into memory.

use std::cmp::Ordering;
use std::sync::Arc;

use bson::{Bson, Document};

use super::stage::deferred_stream;
use super::{Documents, Environment, Run};
use crate::error::{ErrorCode, QueryError, Result};
use crate::expression::{approximate_size, approximate_value_size};
use crate::external_sort::{SortRoom, Sorter};
use crate::meter::{Kept, Meter};
use crate::sort::{SortKey, SortPattern};

/// By which fields, and how many documents are wanted at most.
#[derive(Clone, Debug)]
pub(super) struct SortStage {
    /// As it was written, for a planner that can use an index.
    pub(super) spec: Document,
    pub(super) pattern: SortPattern,
    pub(super) limit: Option<u64>,
}

impl SortStage {
    pub(super) fn parse(spec: &Bson) -> Result<Self> {
        let Bson::Document(spec) = spec else {
            refuse!(15973, "the $sort key specification must be an object");
        };
        Ok(Self { spec: spec.clone(), pattern: parse_pattern(spec)?, limit: None })
    }
}

/// Reads what documents are sorted by, which may not be nothing.
pub(super) fn parse_pattern(spec: &Document) -> Result<SortPattern> {
    refuse_if!(spec.is_empty() => 15976, "$sort stage must have at least one sort key");
    SortPattern::parse(spec)
}

/// A document with what it is sorted by and where it stood, so that equal ones keep their order.
struct Entry {
    sort: Arc<SortStage>,
    key: SortKey,
    position: u64,
    document: Document,
}

impl Entry {
    fn new(sort: &Arc<SortStage>, document: Document, position: u64) -> Result<Self> {
        let key = sort.pattern.key(&document)?;
        Ok(Self { sort: Arc::clone(sort), key, position, document })
    }

    fn order(&self, other: &Self) -> Ordering {
        let order = self.sort.pattern.compare(&self.key, &other.key);
        order.then(self.position.cmp(&other.position))
    }

    fn size(&self) -> usize {
        let key = self.key.values().iter().map(approximate_value_size).sum::<usize>();
        size_of::<Self>() + key + approximate_size(&self.document)
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.order(other).is_eq()
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        self.order(other)
    }
}

pub(super) fn run(stage: Arc<SortStage>, input: Documents, run: &Run) -> Documents {
    let run = run.clone();
    deferred_stream(move || sort(stage, input, run))
}

/// Sorts in memory. Documents that do not fit are put aside in sorted runs, if the environment allows it,
/// and merged at the end.
fn sort(stage: Arc<SortStage>, input: Documents, run: Run) -> Result<Documents> {
    let limit = stage.limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
    let room = Aside { sort: Arc::clone(&stage), environment: run.environment };
    let mut sorter = Sorter::new(room, limit, run.variables.meter());
    let taken = input.zip(0..).try_for_each(|(document, position)| {
        let entry = Entry::new(&stage, document?, position)?;
        if sorter.bar().is_some_and(|bar| *bar <= entry) { Ok(()) } else { sorter.take(entry) }
    });
    let sorted = sorter.finish(taken)?;
    Ok(Box::new(sorted.map(|entry| Ok(entry?.document))))
}

/// Where the documents of a sort go that do not fit.
struct Aside {
    sort: Arc<SortStage>,
    environment: Arc<dyn Environment>,
}

impl SortRoom<Entry> for Aside {
    type Error = QueryError;
    type Run = Box<dyn Iterator<Item = Result<Entry>> + Send>;
    const NAME: &'static str = "$sort";

    fn size(entry: &Entry) -> usize {
        entry.size()
    }

    fn sets_aside(&self) -> bool {
        self.environment.sets_aside()
    }

    fn set_aside(&self, entries: Vec<Entry>, meter: &Meter) -> Result<Self::Run> {
        let run = self.environment.set_aside(documents_of(entries, meter)?)?;
        let sort = Arc::clone(&self.sort);
        // Equal documents of two runs come in the order of the runs.
        Ok(Box::new(run.map(move |document| Entry::new(&sort, document?, 0))))
    }

    fn outgrown(&self, error: QueryError, limit: usize) -> QueryError {
        match error.code() {
            ErrorCode::QUERY_EXCEEDED_MEMORY_LIMIT => fail!(
                QUERY_EXCEEDED_MEMORY_LIMIT,
                "Sort exceeded memory limit of {limit} bytes, but did not opt in to external sorting; allowDiskUse: true does, on \
                 members that keep their data on disk"
            ),
            _ => error,
        }
    }
}

fn documents_of(entries: Vec<Entry>, meter: &Meter) -> Result<Vec<Document>> {
    let mut entries = entries.into_iter();
    let mut documents = Kept::new(Vec::with_capacity(entries.len()), meter);
    while let Some(entry) = entries.next() {
        documents.push(entry.document);
        if let Err(error) = meter.step() {
            meter.leave(entries);
            return Err(error);
        }
    }
    Ok(documents.into_inner())
}
