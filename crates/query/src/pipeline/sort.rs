//! `$sort`, which keeps only as many documents as a `$limit` behind it can use.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::sync::Arc;

use bson::{Bson, Document};

use super::memory::Memory;
use super::stage::{Stage, deferred};
use super::{Documents, Run};
use crate::error::QueryError;
use crate::expression::{approximate_size, fail};
use crate::sort::{SortKey, SortPattern};

/// By which fields, and how many documents are wanted at most.
#[derive(Clone, Debug)]
pub(super) struct SortStage {
    /// As it was written, for whoever can use an index.
    pub(super) spec: Document,
    pub(super) pattern: SortPattern,
    pub(super) limit: Option<u64>,
}

impl SortStage {
    pub(super) fn parse(spec: &Bson) -> Result<Self, QueryError> {
        let Bson::Document(spec) = spec else {
            return Err(fail(15973, "the $sort key specification must be an object"));
        };
        Ok(Self { spec: spec.clone(), pattern: parse_pattern(spec)?, limit: None })
    }
}

/// Reads what documents are sorted by, which may not be nothing.
pub(super) fn parse_pattern(spec: &Document) -> Result<SortPattern, QueryError> {
    if spec.is_empty() {
        return Err(fail(15976, "$sort stage must have at least one sort key"));
    }
    SortPattern::parse(spec)
}

/// A document with what it is sorted by and where it stood, so that equal ones keep their order.
struct Entry {
    stage: Arc<Stage>,
    key: SortKey,
    position: u64,
    document: Document,
}

impl Entry {
    fn order(&self, other: &Self) -> Ordering {
        let Stage::Sort(sort) = &*self.stage else { return Ordering::Equal };
        sort.pattern.compare(&self.key, &other.key).then(self.position.cmp(&other.position))
    }

    fn size(&self) -> usize {
        approximate_size(&self.document)
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

pub(super) fn run(stage: Arc<Stage>, input: Documents, run: &Run) -> Documents {
    let run = run.clone();
    deferred(move || {
        let Stage::Sort(sort) = &*stage else { return Ok(Vec::new()) };
        let limit =
            sort.limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
        let mut memory = Memory::new("$sort", run.memory_limit);
        // The last in order is on top of the heap, where the limit takes it from.
        let mut kept = BinaryHeap::new();
        for (position, document) in input.enumerate() {
            let document = document?;
            let entry = Entry {
                stage: Arc::clone(&stage),
                key: sort.pattern.key(&document)?,
                position: position as u64,
                document,
            };
            if kept.len() >= limit && kept.peek().is_none_or(|last| *last <= entry) {
                continue;
            }
            memory.hold(entry.size())?;
            kept.push(entry);
            if kept.len() > limit
                && let Some(last) = kept.pop()
            {
                memory.release(last.size());
            }
        }
        Ok(kept.into_sorted_vec().into_iter().map(|entry| entry.document).collect())
    })
}
