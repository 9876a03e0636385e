//! `$sort`, which keeps only as many documents as a `$limit` behind it can use, and puts aside what
//! does not fit into memory.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::sync::Arc;

use bson::{Bson, Document};

use super::memory::Memory;
use super::stage::{deferred_stream, held};
use super::{Documents, Run};
use crate::error::{QueryError, fail};
use crate::expression::{approximate_size, approximate_value_size};
use crate::meter::{Kept, Meter};
use crate::sort::{SortKey, SortPattern};
use crate::sorting::sorted;

/// By which fields, and how many documents are wanted at most.
#[derive(Clone, Debug)]
pub(super) struct SortStage {
    /// As it was written, for a planner that can use an index.
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
    sort: Arc<SortStage>,
    key: SortKey,
    position: u64,
    document: Document,
}

impl Entry {
    fn new(sort: &Arc<SortStage>, document: Document, position: u64) -> Result<Self, QueryError> {
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
    deferred_stream(move || sort(stage, input, &run))
}

/// Sorts in memory. Documents that do not fit are put aside in sorted runs, if the environment allows it,
/// and merged at the end.
fn sort(sort: Arc<SortStage>, input: Documents, run: &Run) -> Result<Documents, QueryError> {
    let limit = sort.limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    let mut sorter = Box::new(Sorter {
        sort,
        run: run.clone(),
        limit,
        memory: Memory::new("$sort", run),
        kept: BinaryHeap::new(),
        position: 0,
        runs: Vec::new(),
    });
    match sorter.take_all(input).and_then(|()| sorter.put_last_aside()) {
        Ok(last) => Ok(sorter.finish(last)),
        Err(error) => {
            run.variables.meter().leave(sorter);
            Err(error)
        }
    }
}

/// The documents that a sort has read so far.
struct Sorter {
    sort: Arc<SortStage>,
    run: Run,
    limit: usize,
    memory: Memory,
    /// The last in order is on top of the heap, where the limit takes it from.
    kept: BinaryHeap<Entry>,
    position: u64,
    runs: Vec<Documents>,
}

impl Sorter {
    fn take_all(&mut self, input: Documents) -> Result<(), QueryError> {
        for document in input {
            self.take(document?)?;
        }
        Ok(())
    }

    fn take(&mut self, document: Document) -> Result<(), QueryError> {
        let entry = Entry::new(&self.sort, document, self.position)?;
        self.position += 1;
        let full = self.kept.len() >= self.limit;
        if full && self.kept.peek().is_none_or(|last| *last <= entry) {
            return Ok(());
        }
        if let Err(outgrown) = self.memory.hold(entry.size()) {
            self.put_aside(outgrown)?;
            self.memory.hold(entry.size())?;
        }
        self.kept.push(entry);
        if self.kept.len() > self.limit
            && let Some(last) = self.kept.pop()
        {
            self.memory.release(last.size());
        }
        Ok(())
    }

    fn put_aside(&mut self, outgrown: QueryError) -> Result<(), QueryError> {
        if self.runs.len() >= MAX_RUNS || !self.run.environment.sets_aside() {
            return Err(outgrown);
        }
        let sorted = documents_of(std::mem::take(&mut self.kept), self.run.variables.meter())?;
        self.runs.push(self.run.environment.set_aside(sorted)?.ok_or(outgrown)?);
        self.memory.clear();
        Ok(())
    }

    /// The last documents in order, unless there are others: then they go where those are, since the first
    /// document of each run needs the room.
    fn put_last_aside(&mut self) -> Result<Vec<Document>, QueryError> {
        let last = documents_of(std::mem::take(&mut self.kept), self.run.variables.meter())?;
        if self.runs.is_empty() {
            return Ok(last);
        }
        self.runs.extend(self.run.environment.set_aside(last)?);
        self.memory.clear();
        Ok(Vec::new())
    }

    fn finish(self, last: Vec<Document>) -> Documents {
        let (sort, runs, memory) = (self.sort, self.runs, self.memory);
        if runs.is_empty() {
            return held(Box::new(last.into_iter().map(Ok)), Some(memory));
        }
        Box::new(Merged { sort, runs, memory, heads: BinaryHeap::new(), started: false })
    }
}

/// How many sorted runs one sort may put aside.
const MAX_RUNS: usize = 1000;

fn documents_of(kept: BinaryHeap<Entry>, meter: &Meter) -> Result<Vec<Document>, QueryError> {
    let mut entries = sorted(kept.into_vec(), Ord::cmp, meter)?.into_iter();
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

/// Sorted runs as one sorted stream. Equal documents come in the order of the runs, which is the
/// order they came in.
struct Merged {
    sort: Arc<SortStage>,
    runs: Vec<Documents>,
    /// The memory of the heads.
    memory: Memory,
    /// The first document of each run; its position is the number of the run.
    heads: BinaryHeap<Reverse<Entry>>,
    started: bool,
}

impl Merged {
    fn advance(&mut self, run: usize) -> Result<(), QueryError> {
        if let Some(document) = self.runs.get_mut(run).and_then(Iterator::next) {
            let entry = Entry::new(&self.sort, document?, run as u64)?;
            self.memory.hold(entry.size())?;
            self.heads.push(Reverse(entry));
        }
        Ok(())
    }

    fn step(&mut self) -> Result<Option<Document>, QueryError> {
        if !self.started {
            self.started = true;
            (0..self.runs.len()).try_for_each(|run| self.advance(run))?;
        }
        let Some(Reverse(first)) = self.heads.pop() else { return Ok(None) };
        self.memory.release(first.size());
        self.advance(first.position as usize)?;
        Ok(Some(first.document))
    }
}

impl Iterator for Merged {
    type Item = Result<Document, QueryError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step().transpose()
    }
}
