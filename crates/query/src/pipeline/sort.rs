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
use crate::value::{LeafArrays, Path, ValueRef, compare};

/// The most fields of one sort.
const MAX_SORT_FIELDS: usize = 32;

/// By which fields, and how many documents are wanted at most.
#[derive(Clone, Debug)]
pub(super) struct SortStage {
    /// As it was written, for whoever can use an index.
    pub(super) spec: Document,
    pub(super) keys: SortKeys,
    pub(super) limit: Option<u64>,
}

/// The fields of a sort and their directions.
#[derive(Clone, Debug)]
pub(super) struct SortKeys(Vec<(Path, bool)>);

impl SortStage {
    pub(super) fn parse(spec: &Bson) -> Result<Self, QueryError> {
        let Bson::Document(spec) = spec else {
            return Err(fail(15973, "the $sort key specification must be an object"));
        };
        Ok(Self { spec: spec.clone(), keys: SortKeys::parse(spec)?, limit: None })
    }
}

impl SortKeys {
    pub(super) fn parse(spec: &Document) -> Result<Self, QueryError> {
        if spec.is_empty() {
            return Err(fail(15976, "$sort stage must have at least one sort key"));
        }
        if spec.len() > MAX_SORT_FIELDS {
            return Err(fail(
                13103,
                format!("too many compound keys: more than {MAX_SORT_FIELDS}"),
            ));
        }
        let mut keys = Vec::with_capacity(spec.len());
        for (path, order) in spec {
            if let Bson::Document(_) = order {
                return Err(fail(
                    17312,
                    "$meta is the only expression supported by $sort right now, and there is no \
                     text index to take it from",
                ));
            }
            let descending = match crate::expression::operators::as_i64(order) {
                Some(1) => false,
                Some(-1) => true,
                _ => {
                    return Err(fail(
                        15975,
                        "$sort key ordering must be 1 (for ascending) or -1 (for descending)",
                    ));
                }
            };
            crate::expression::FieldPath::parse(path)?;
            keys.push((Path::parse(path)?, descending));
        }
        Ok(Self(keys))
    }

    /// What a document is sorted by, one value for each field.
    pub(super) fn of(&self, document: &Document) -> Vec<Bson> {
        self.0.iter().map(|(path, descending)| sort_value(path, *descending, document)).collect()
    }

    /// The order of two documents by what they are sorted by.
    pub(super) fn compare(&self, left: &[Bson], right: &[Bson]) -> Ordering {
        self.0
            .iter()
            .zip(left.iter().zip(right))
            .map(|((_, descending), (left, right))| {
                let order = compare(left, right);
                if *descending { order.reverse() } else { order }
            })
            .find(|order| order.is_ne())
            .unwrap_or(Ordering::Equal)
    }
}

/// An array counts as its smallest element, or its largest when descending; an empty one as
/// undefined, nothing as null.
fn sort_value(path: &Path, descending: bool, document: &Document) -> Bson {
    let mut best: Option<ValueRef<'_>> = None;
    path.any(document.into(), LeafArrays::Whole, &mut |value, _| {
        let mut offer = |value| {
            let better = match best {
                None => true,
                Some(best) => {
                    let order = compare(value, best);
                    if descending { order.is_gt() } else { order.is_lt() }
                }
            };
            if better {
                best = Some(value);
            }
        };
        match value {
            None => offer(ValueRef::Null),
            Some(ValueRef::Array(elements)) if elements.is_empty() => offer(ValueRef::Undefined),
            Some(ValueRef::Array(elements)) => elements.iter().for_each(offer),
            Some(value) => offer(value),
        }
        false
    });
    best.map_or(Bson::Null, ValueRef::to_bson)
}

/// A document with what it is sorted by and where it stood, so that equal ones keep their order.
struct Entry {
    stage: Arc<Stage>,
    key: Vec<Bson>,
    position: u64,
    document: Document,
}

impl Entry {
    fn order(&self, other: &Self) -> Ordering {
        let Stage::Sort(sort) = &*self.stage else { return Ordering::Equal };
        sort.keys.compare(&self.key, &other.key).then(self.position.cmp(&other.position))
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
                key: sort.keys.of(&document),
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
