//! Who must come before whom, and the shortest cycles among them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Why one transaction must come before another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Edge {
    /// The other wrote the next version (ww).
    WriteWrite,
    /// The other read what this one wrote (wr).
    WriteRead,
    /// The other wrote the version after the one that this one read (rw).
    ReadWrite,
}

/// Dependencies between transactions, by their places in the history.
#[derive(Clone, Debug, Default)]
pub(crate) struct Graph {
    edges: BTreeMap<usize, BTreeSet<(usize, Edge)>>,
}

/// Which edges a way may take.
#[derive(Clone, Copy)]
pub(crate) enum Allowed {
    Writes,
    WritesAndReads,
    /// No two anti-dependencies in a row.
    NonAdjacent,
    All,
}

impl Graph {
    pub(crate) fn add(&mut self, from: usize, to: usize, edge: Edge) {
        if from != to {
            self.edges.entry(from).or_default().insert((to, edge));
        }
    }

    fn of_kind(&self, kinds: &[Edge]) -> Vec<(usize, usize, Edge)> {
        let flat = self
            .edges
            .iter()
            .flat_map(|(&from, outgoing)| outgoing.iter().map(move |&(to, edge)| (from, to, edge)));
        flat.filter(|(_, _, edge)| kinds.contains(edge)).collect()
    }

    /// A shortest cycle that begins with an edge of one of these kinds and otherwise takes what is
    /// allowed: the transactions on it, in order.
    pub(crate) fn cycle(&self, first: &[Edge], rest: Allowed) -> Option<Vec<usize>> {
        let starts = self.of_kind(first);
        let cycles = starts.into_iter().filter_map(|(from, to, edge)| {
            let mut way = self.way(to, from, edge, rest)?;
            way.insert(0, from);
            way.pop();
            Some(way)
        });
        cycles.min_by_key(Vec::len)
    }

    /// A shortest way from one transaction to another, after an edge of this kind led to the first.
    fn way(&self, from: usize, to: usize, led_by: Edge, allowed: Allowed) -> Option<Vec<usize>> {
        let was_rw = led_by == Edge::ReadWrite;
        let start = (from, was_rw);
        let mut before = BTreeMap::from([(start, None)]);
        let mut queue = VecDeque::from([start]);
        while let Some(state) = queue.pop_front() {
            let (at, was_rw) = state;
            // A cycle closes with its first edge, which must not follow one that it may not follow.
            let closes = !(matches!(allowed, Allowed::NonAdjacent) && was_rw && state != start);
            if at == to && closes {
                return Some(walk_back(&before, state));
            }
            for &(next, edge) in self.edges.get(&at).into_iter().flatten() {
                let is_rw = edge == Edge::ReadWrite;
                let may = match allowed {
                    Allowed::Writes => edge == Edge::WriteWrite,
                    Allowed::WritesAndReads => !is_rw,
                    Allowed::NonAdjacent => !(is_rw && was_rw),
                    Allowed::All => true,
                };
                // Without rules about rows of edges it does not matter how a place was reached.
                let keeps = matches!(allowed, Allowed::NonAdjacent) && is_rw;
                if may && !before.contains_key(&(next, keeps)) {
                    before.insert((next, keeps), Some(state));
                    queue.push_back((next, keeps));
                }
            }
        }
        None
    }
}

type Place = (usize, bool);

fn walk_back(before: &BTreeMap<Place, Option<Place>>, last: Place) -> Vec<usize> {
    let mut way = vec![last.0];
    let mut at = last;
    while let Some(Some(previous)) = before.get(&at) {
        way.push(previous.0);
        at = *previous;
    }
    way.reverse();
    way
}
