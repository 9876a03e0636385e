//! Dependencies between transactions, and the shortest cycles among them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Why one transaction comes before another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Relation {
    /// The second overwrites what the first wrote.
    WriteWrite,
    /// The second reads what the first wrote.
    WriteRead,
    /// The second overwrites what the first read.
    ReadWrite,
    /// The first ended before the second began.
    RealTime,
}

/// Transactions by number, and for each pair the relations between them.
#[derive(Default)]
pub(crate) struct Graph {
    edges: BTreeMap<usize, BTreeMap<usize, BTreeSet<Relation>>>,
}

/// A cycle: each transaction with its relation to the next.
pub(crate) type Cycle = Vec<(usize, Relation)>;

impl Graph {
    pub(crate) fn add(&mut self, from: usize, to: usize, relation: Relation) {
        if from != to {
            self.edges.entry(from).or_default().entry(to).or_default().insert(relation);
        }
    }

    fn out(&self, from: usize) -> impl Iterator<Item = (usize, Relation)> + '_ {
        let targets = self.edges.get(&from).into_iter().flatten();
        targets.flat_map(|(to, relations)| relations.iter().map(move |relation| (*to, *relation)))
    }

    /// The strongly connected parts of more than one transaction, along the allowed relations.
    pub(crate) fn components(&self, allowed: &dyn Fn(Relation) -> bool) -> Vec<BTreeSet<usize>> {
        Tarjan {
            graph: self,
            allowed,
            next: 0,
            found: BTreeMap::new(),
            stack: Vec::new(),
            parts: Vec::new(),
        }
        .run()
    }

    /// The shortest cycle within a part that begins with a relation of `first` and goes on along `rest`.
    pub(crate) fn cycle(
        &self,
        part: &BTreeSet<usize>,
        first: &dyn Fn(Relation) -> bool,
        rest: &dyn Fn(Relation) -> bool,
    ) -> Option<Cycle> {
        let mut best: Option<Cycle> = None;
        for from in part {
            for (to, relation) in
                self.out(*from).filter(|(to, relation)| part.contains(to) && first(*relation))
            {
                let Some(path) = self.path(part, to, *from, rest) else { continue };
                if best.as_ref().is_none_or(|best| path.len() + 1 < best.len()) {
                    let mut cycle = vec![(*from, relation)];
                    cycle.extend(path);
                    best = Some(cycle);
                }
            }
        }
        best
    }

    /// The shortest way from one transaction to another; empty if they are the same.
    fn path(
        &self,
        part: &BTreeSet<usize>,
        from: usize,
        to: usize,
        allowed: &dyn Fn(Relation) -> bool,
    ) -> Option<Cycle> {
        let steps = |(node, ()): (usize, ())| {
            let out = self
                .out(node)
                .filter(move |(next, relation)| part.contains(next) && allowed(*relation));
            out.map(|(next, relation)| ((next, ()), relation)).collect()
        };
        shortest((from, ()), |(node, ())| node == to, steps)
            .map(|path| path.into_iter().map(|((node, ()), relation)| (node, relation)).collect())
    }

    /// The shortest cycle with several read-write relations, of which no two follow each other. Snapshot isolation
    /// allows no such cycle.
    pub(crate) fn nonadjacent_cycle(&self, part: &BTreeSet<usize>) -> Option<Cycle> {
        let mut best: Option<Cycle> = None;
        for from in part {
            let first = self
                .out(*from)
                .filter(|(to, relation)| part.contains(to) && *relation == Relation::ReadWrite);
            for (to, relation) in first {
                // The state knows whether the last relation was read-write. The cycle ends with another one, since
                // it began with one.
                let steps = |(node, was): (usize, bool)| {
                    let out = self.out(node).filter(|(next, _)| part.contains(next));
                    let out = out.filter(|(_, relation)| {
                        *relation != Relation::RealTime
                            && !(was && *relation == Relation::ReadWrite)
                    });
                    out.map(|(next, relation)| ((next, relation == Relation::ReadWrite), relation))
                        .collect()
                };
                let Some(path) = shortest((to, true), |state| state == (*from, false), steps)
                else {
                    continue;
                };
                if best.as_ref().is_none_or(|best| path.len() + 1 < best.len()) {
                    let mut cycle = vec![(*from, relation)];
                    cycle.extend(path.into_iter().map(|((node, _), relation)| (node, relation)));
                    best = Some(cycle);
                }
            }
        }
        best
    }
}

/// Breadth-first search. The path has each state with the relation to the next one; the last state is the goal's
/// predecessor.
fn shortest<S: Copy + Ord>(
    from: S,
    is_goal: impl Fn(S) -> bool,
    steps: impl Fn(S) -> Vec<(S, Relation)>,
) -> Option<Vec<(S, Relation)>> {
    if is_goal(from) {
        return Some(Vec::new());
    }
    let mut came: BTreeMap<S, (S, Relation)> = BTreeMap::new();
    let mut queue = VecDeque::from([from]);
    while let Some(state) = queue.pop_front() {
        for (next, relation) in steps(state) {
            if next == from || came.contains_key(&next) {
                continue;
            }
            came.insert(next, (state, relation));
            if is_goal(next) {
                let mut path = Vec::new();
                let mut at = next;
                while let Some((previous, relation)) = came.get(&at) {
                    path.push((*previous, *relation));
                    at = *previous;
                }
                path.reverse();
                return Some(path);
            }
            queue.push_back(next);
        }
    }
    None
}

/// Tarjan's search for strongly connected parts, without recursion.
struct Tarjan<'a> {
    graph: &'a Graph,
    allowed: &'a dyn Fn(Relation) -> bool,
    next: usize,
    found: BTreeMap<usize, Mark>,
    stack: Vec<usize>,
    parts: Vec<BTreeSet<usize>>,
}

#[derive(Clone, Copy)]
struct Mark {
    number: usize,
    low: usize,
    on_stack: bool,
}

impl Tarjan<'_> {
    fn run(mut self) -> Vec<BTreeSet<usize>> {
        let roots: Vec<usize> = self.graph.edges.keys().copied().collect();
        for root in roots {
            if !self.found.contains_key(&root) {
                self.visit(root);
            }
        }
        self.parts
    }

    fn targets(&self, node: usize) -> std::vec::IntoIter<usize> {
        let out = self.graph.out(node).filter(|(_, relation)| (self.allowed)(*relation));
        let targets: BTreeSet<usize> = out.map(|(to, _)| to).collect();
        targets.into_iter().collect::<Vec<_>>().into_iter()
    }

    fn enter(&mut self, node: usize) -> (usize, std::vec::IntoIter<usize>) {
        self.found.insert(node, Mark { number: self.next, low: self.next, on_stack: true });
        self.next += 1;
        self.stack.push(node);
        (node, self.targets(node))
    }

    fn lower(&mut self, node: usize, to: usize) {
        if let Some(mark) = self.found.get_mut(&node) {
            mark.low = mark.low.min(to);
        }
    }

    fn visit(&mut self, root: usize) {
        let mut path = vec![self.enter(root)];
        while let Some((node, targets)) = path.last_mut() {
            let node = *node;
            match targets.next() {
                Some(target) => match self.found.get(&target).copied() {
                    None => path.push(self.enter(target)),
                    Some(mark) if mark.on_stack => self.lower(node, mark.number),
                    Some(_) => {}
                },
                None => {
                    path.pop();
                    let Some(mark) = self.found.get(&node).copied() else { continue };
                    if let Some((parent, _)) = path.last() {
                        self.lower(*parent, mark.low);
                    }
                    if mark.low == mark.number {
                        self.close(node);
                    }
                }
            }
        }
    }

    fn close(&mut self, root: usize) {
        let mut part = BTreeSet::new();
        while let Some(node) = self.stack.pop() {
            if let Some(mark) = self.found.get_mut(&node) {
                mark.on_stack = false;
            }
            part.insert(node);
            if node == root {
                break;
            }
        }
        if part.len() > 1 {
            self.parts.push(part);
        }
    }
}
