//! Histories of transactions that read lists and append to them.

use std::collections::{BTreeMap, BTreeSet};

use crate::graph::{Allowed, Edge, Graph};

/// What a transaction did to one list.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Appended a value that nobody else appends.
    Append {
        /// The list.
        key: u64,
        /// The value.
        value: u64,
    },
    /// Read the list.
    Read {
        /// The list.
        key: u64,
        /// What was in it.
        list: Vec<u64>,
    },
}

/// What its client heard of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It was committed.
    Committed,
    /// It was not, for certain.
    Aborted,
    /// The answer to the commit never came.
    Unknown,
}

/// A transaction as its client saw it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Transaction {
    /// In order.
    pub operations: Vec<Operation>,
    /// What came of it.
    pub outcome: Outcome,
}

/// An isolation level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// One snapshot for all reads, the first of two writers wins.
    Snapshot,
    /// As if one after the other.
    Serializable,
}

/// Something that must not happen. Transactions are named by their places in the history.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Anomaly {
    /// A value is in a list twice.
    Duplicate {
        /// The list.
        key: u64,
        /// The value.
        value: u64,
    },
    /// A value was read that no transaction appended.
    Garbage {
        /// Who read it.
        reader: usize,
        /// The value.
        value: u64,
    },
    /// Two reads saw the same list in different orders.
    IncompatibleOrder {
        /// The list.
        key: u64,
    },
    /// A transaction missed its own writes, or its reads changed under it.
    Internal {
        /// Which one.
        transaction: usize,
        /// The list.
        key: u64,
    },
    /// A committed value is missing from a list that was read when all was over.
    LostAppend {
        /// Who appended it.
        transaction: usize,
        /// The list.
        key: u64,
        /// The value.
        value: u64,
    },
    /// An aborted write was read (G1a).
    AbortedRead {
        /// Who read it.
        reader: usize,
        /// Whose write it was.
        writer: usize,
    },
    /// A write was read that its own transaction changed later (G1b).
    IntermediateRead {
        /// Who read it.
        reader: usize,
        /// Whose write it was.
        writer: usize,
    },
    /// Writes depend on each other in a circle (G0).
    G0 {
        /// The circle.
        cycle: Vec<usize>,
    },
    /// Information flows in a circle (G1c).
    G1c {
        /// The circle.
        cycle: Vec<usize>,
    },
    /// Read skew: a circle with one anti-dependency (G-single).
    GSingle {
        /// The circle.
        cycle: Vec<usize>,
    },
    /// A circle with several anti-dependencies, of which no two are neighbours.
    GNonadjacent {
        /// The circle.
        cycle: Vec<usize>,
    },
    /// A circle with neighbouring anti-dependencies, such as write skew (G2).
    G2 {
        /// The circle.
        cycle: Vec<usize>,
    },
}

impl Anomaly {
    /// Whether an isolation level bears it.
    pub fn is_allowed_by(&self, isolation: Isolation) -> bool {
        isolation == Isolation::Snapshot && matches!(self, Self::G2 { .. })
    }
}

/// Judges a history. If the last transaction reads every list after all others have ended, pass
/// `complete`: then no committed append may be missing from what it read.
pub fn list_append(history: &[Transaction], complete: bool) -> Vec<Anomaly> {
    let mut judge = Judge::new(history);
    judge.check_internal();
    judge.order_versions();
    judge.check_reads();
    if complete {
        judge.check_complete();
    }
    let graph = judge.graph();
    judge.found.extend(cycles(&graph));
    judge.found
}

fn cycles(graph: &Graph) -> Vec<Anomaly> {
    let (ww, rw) = (Edge::WriteWrite, Edge::ReadWrite);
    if let Some(cycle) = graph.cycle(&[ww], Allowed::Writes) {
        return vec![Anomaly::G0 { cycle }];
    }
    if let Some(cycle) = graph.cycle(&[ww, Edge::WriteRead], Allowed::WritesAndReads) {
        return vec![Anomaly::G1c { cycle }];
    }
    if let Some(cycle) = graph.cycle(&[rw], Allowed::WritesAndReads) {
        return vec![Anomaly::GSingle { cycle }];
    }
    if let Some(cycle) = graph.cycle(&[rw], Allowed::NonAdjacent) {
        return vec![Anomaly::GNonadjacent { cycle }];
    }
    graph.cycle(&[rw], Allowed::All).map(|cycle| Anomaly::G2 { cycle }).into_iter().collect()
}

struct Judge<'h> {
    history: &'h [Transaction],
    /// Who appended what.
    writers: BTreeMap<(u64, u64), usize>,
    /// The longest read of each list.
    versions: BTreeMap<u64, Vec<u64>>,
    found: Vec<Anomaly>,
}

impl<'h> Judge<'h> {
    fn new(history: &'h [Transaction]) -> Self {
        let mut writers = BTreeMap::new();
        let mut found = Vec::new();
        for (place, transaction) in history.iter().enumerate() {
            for operation in &transaction.operations {
                if let Operation::Append { key, value } = operation
                    && writers.insert((*key, *value), place).is_some()
                {
                    found.push(Anomaly::Duplicate { key: *key, value: *value });
                }
            }
        }
        Self { history, writers, versions: BTreeMap::new(), found }
    }

    /// The reads that count, with the place of their transaction: what an aborted transaction or one
    /// without an answer saw is of no use to its client.
    fn reads(&self) -> impl Iterator<Item = (usize, u64, &'h [u64])> + use<'h> {
        let committed = self.history.iter().enumerate();
        let committed = committed.filter(|(_, known)| known.outcome == Outcome::Committed);
        committed.flat_map(|(place, known)| {
            known.operations.iter().filter_map(move |operation| match operation {
                Operation::Read { key, list } => Some((place, *key, list.as_slice())),
                Operation::Append { .. } => None,
            })
        })
    }

    /// Within a transaction a list is what was read first, and what was appended since.
    fn check_internal(&mut self) {
        for (place, transaction) in self.history.iter().enumerate() {
            let mut known: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
            let mut appended: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
            for operation in &transaction.operations {
                match operation {
                    Operation::Append { key, value } => {
                        appended.entry(*key).or_default().push(*value);
                        if let Some(list) = known.get_mut(key) {
                            list.push(*value);
                        }
                    }
                    Operation::Read { key, list } => {
                        let own = appended.get(key).map_or(&[][..], Vec::as_slice);
                        let expected = known.get(key);
                        let fits = expected.map_or(list.ends_with(own), |known| known == list);
                        if !fits {
                            self.found.push(Anomaly::Internal { transaction: place, key: *key });
                        }
                        known.insert(*key, list.clone());
                    }
                }
            }
        }
    }

    /// Finds the order of the writes of each list.
    fn order_versions(&mut self) {
        let mut versions: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        let mut broken = BTreeSet::new();
        for (_, key, list) in self.reads() {
            let longest = versions.entry(key).or_default();
            let shared = longest.len().min(list.len());
            if longest[..shared] != list[..shared] {
                broken.insert(key);
            } else if list.len() > longest.len() {
                *longest = list.to_vec();
            }
        }
        self.found.extend(broken.into_iter().map(|key| Anomaly::IncompatibleOrder { key }));
        for (&key, list) in &versions {
            let mut seen = BTreeSet::new();
            let again = list.iter().find(|value| !seen.insert(**value));
            self.found.extend(again.map(|value| Anomaly::Duplicate { key, value: *value }));
        }
        self.versions = versions;
    }

    fn check_reads(&mut self) {
        let mut found = Vec::new();
        for (reader, key, list) in self.reads() {
            for value in list {
                match self.writers.get(&(key, *value)) {
                    None => found.push(Anomaly::Garbage { reader, value: *value }),
                    Some(&writer) if self.history[writer].outcome == Outcome::Aborted => {
                        found.push(Anomaly::AbortedRead { reader, writer });
                    }
                    Some(_) => {}
                }
            }
            let last = list.last().and_then(|value| self.writers.get(&(key, *value)));
            if let (Some(&writer), Some(last)) = (last, list.last())
                && writer != reader
                && self.last_append(writer, key) != Some(*last)
            {
                found.push(Anomaly::IntermediateRead { reader, writer });
            }
        }
        found.dedup();
        self.found.extend(found);
    }

    fn last_append(&self, writer: usize, key: u64) -> Option<u64> {
        let appends = self.history[writer].operations.iter().rev();
        let mut own = appends.filter_map(|operation| match operation {
            Operation::Append { key: list, value } if *list == key => Some(*value),
            _ => None,
        });
        own.next()
    }

    fn check_complete(&mut self) {
        let mut found = Vec::new();
        for (&(key, value), &writer) in &self.writers {
            let is_there = self.versions.get(&key).is_some_and(|list| list.contains(&value));
            if self.history[writer].outcome == Outcome::Committed && !is_there {
                found.push(Anomaly::LostAppend { transaction: writer, key, value });
            }
        }
        self.found.extend(found);
    }

    fn graph(&self) -> Graph {
        let mut graph = Graph::default();
        let writer = |key: u64, value: u64| self.writers.get(&(key, value)).copied();
        for (&key, list) in &self.versions {
            for pair in list.windows(2) {
                if let (Some(from), Some(to)) = (writer(key, pair[0]), writer(key, pair[1])) {
                    graph.add(from, to, Edge::WriteWrite);
                }
            }
        }
        for (reader, key, list) in self.reads() {
            // What it wrote itself is no news to it.
            let foreign = list.iter().rev().find(|value| writer(key, **value) != Some(reader));
            if let Some(from) = foreign.and_then(|value| writer(key, *value)) {
                graph.add(from, reader, Edge::WriteRead);
            }
            let order = &self.versions[&key];
            let next = order.get(list.len()..).unwrap_or_default();
            let next = next.iter().find(|value| writer(key, **value) != Some(reader));
            if let Some(to) = next.and_then(|value| writer(key, *value)) {
                graph.add(reader, to, Edge::ReadWrite);
            }
        }
        graph
    }
}
