//! Isolation of transactions that append to lists and read them.
//!
//! A read of a list shows every append before it, in order, so a history tells most of what the database did: which
//! transaction wrote which version, who read it, and who overwrote it. From these relations follows a graph; a cycle
//! in it is an execution that the isolation level forbids. The names are Adya's:
//!
//! | name | meaning | allowed by |
//! |---|---|---|
//! | G1a | a transaction read what an aborted one wrote | none |
//! | G1b | a transaction read a version in the middle of another | none |
//! | internal | a transaction does not see its own writes, or sees two states of one list | none |
//! | duplicate | an append took effect twice | none |
//! | incompatible-order | two reads show the same list in different orders | none |
//! | lost-append | an acknowledged append is missing from a later read of its list | none |
//! | G0 | a cycle of overwrites | none |
//! | G1c | a cycle of overwrites and reads | none |
//! | G-single | a cycle with one anti-dependency: read skew, lost update | none |
//! | G-nonadjacent | a cycle with several anti-dependencies, none after another | none |
//! | G2 | a cycle with two anti-dependencies in a row: write skew | snapshot isolation |
//! | …-realtime | the same with "ended before the other began" among its relations | all but strict serializability |

use std::collections::{BTreeMap, BTreeSet};

use crate::graph::{Cycle, Graph, Relation};
use crate::history::{Action, History, MicroOperation, Operation, Outcome};
use crate::verdict::{Anomaly, Step, Verdict};

/// The promised guarantees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    /// All reads of a transaction see one moment; of two that write the same list, one fails.
    SnapshotIsolation,
    /// Some serial order explains everything.
    Serializable,
    /// Some serial order explains everything and agrees with the clock.
    StrictSerializable,
}

/// Checks the transactions of a history. Other operations are not judged.
pub fn check(history: &History, model: Model) -> Verdict {
    let transactions: Vec<Transaction<'_>> =
        history.operations().iter().filter_map(Transaction::of).collect();
    let mut verdict = Verdict { operations: transactions.len(), ..Verdict::default() };
    let writers = Writers::of(&transactions);
    for transaction in &transactions {
        check_internal(transaction, &mut verdict);
    }
    let orders = orders(&transactions, &mut verdict);
    check_reads(&transactions, &writers, &mut verdict);
    check_losses(&transactions, &orders, &mut verdict);
    let graph = graph(&transactions, &writers, &orders, model == Model::StrictSerializable);
    find_cycles(&graph, &transactions, model, &mut verdict);
    verdict
}

struct Transaction<'a> {
    operation: &'a Operation,
    steps: &'a [MicroOperation],
}

impl<'a> Transaction<'a> {
    fn of(operation: &'a Operation) -> Option<Self> {
        match &operation.action {
            Action::Transaction(steps) => Some(Self { operation, steps }),
            _ => None,
        }
    }

    fn name(&self) -> String {
        format!("T{}", self.operation.index)
    }

    fn is_ok(&self) -> bool {
        self.operation.outcome == Outcome::Ok
    }

    fn appends(&self) -> impl Iterator<Item = (i64, i64)> + '_ {
        self.steps.iter().filter_map(|step| match step {
            MicroOperation::Append { key, value } => Some((*key, *value)),
            MicroOperation::Read { .. } => None,
        })
    }

    /// What it read, if it was acknowledged: otherwise the client has no reply.
    fn reads(&self) -> impl Iterator<Item = (i64, &'a [i64])> + '_ {
        let ok = self.is_ok();
        self.steps.iter().filter(move |_| ok).filter_map(|step| match step {
            MicroOperation::Read { key, list: Some(list) } => Some((*key, list.as_slice())),
            _ => None,
        })
    }

    /// What it read of others: lists without its own appends, which stand at the end.
    fn reads_of_others(&self) -> Vec<(i64, &'a [i64])> {
        let own: BTreeSet<(i64, i64)> = self.appends().collect();
        let without = |(key, list): (i64, &'a [i64])| {
            let theirs = list
                .iter()
                .rposition(|value| !own.contains(&(key, *value)))
                .map_or(0, |last| last + 1);
            (key, &list[..theirs])
        };
        self.reads().map(without).collect()
    }
}

/// Which transaction appended a value, and whether it appended to the list again afterwards.
struct Writers(BTreeMap<(i64, i64), Writer>);

#[derive(Clone, Copy)]
struct Writer {
    transaction: usize,
    is_last: bool,
}

impl Writers {
    fn of(transactions: &[Transaction<'_>]) -> Self {
        let mut writers = BTreeMap::new();
        for (transaction, known) in transactions.iter().enumerate() {
            let last: BTreeMap<i64, i64> = known.appends().collect();
            for (key, value) in known.appends() {
                let is_last = last.get(&key) == Some(&value);
                writers.insert((key, value), Writer { transaction, is_last });
            }
        }
        Self(writers)
    }

    fn get(&self, key: i64, value: i64) -> Option<Writer> {
        self.0.get(&(key, value)).copied()
    }
}

/// A transaction sees what it read and wrote before.
fn check_internal(transaction: &Transaction<'_>, verdict: &mut Verdict) {
    if !transaction.is_ok() {
        return;
    }
    // The known content of each list: all of it after a read, or only its end before one.
    let mut known: BTreeMap<i64, (bool, Vec<i64>)> = BTreeMap::new();
    let mut future: BTreeSet<(i64, i64)> = transaction.appends().collect();
    for step in transaction.steps {
        match step {
            MicroOperation::Append { key, value } => {
                future.remove(&(*key, *value));
                known.entry(*key).or_insert((false, Vec::new())).1.push(*value);
            }
            MicroOperation::Read { list: None, .. } => {}
            MicroOperation::Read { key, list: Some(list) } => {
                let (whole, expected) = known.get(key).cloned().unwrap_or_default();
                let agrees = if whole { *list == expected } else { list.ends_with(&expected) };
                if !agrees {
                    let ending = if whole { "" } else { "a list that ends in " };
                    let name = transaction.name();
                    let sentence = format!(
                        "{name} reads {list:?} from list {key} where its own steps before it give {ending}{expected:?}"
                    );
                    let summary = format!("{name} contradicts itself on list {key}");
                    verdict.add(Anomaly::new(
                        "internal",
                        summary,
                        vec![Step::fact(name, sentence)],
                    ));
                }
                if let Some(value) = list.iter().find(|value| future.contains(&(*key, **value))) {
                    let name = transaction.name();
                    let sentence =
                        format!("{name} reads {value} from list {key} before it appends it");
                    let summary = format!("{name} sees its own future on list {key}");
                    verdict.add(Anomaly::new(
                        "internal",
                        summary,
                        vec![Step::fact(name, sentence)],
                    ));
                }
                known.insert(*key, (true, list.clone()));
            }
        }
    }
}

/// The order of the versions of each list: the longest one that was read. All others must be its beginnings.
fn orders(transactions: &[Transaction<'_>], verdict: &mut Verdict) -> BTreeMap<i64, Vec<i64>> {
    let mut longest: BTreeMap<i64, (&[i64], &Transaction<'_>)> = BTreeMap::new();
    for transaction in transactions {
        for (key, list) in transaction.reads() {
            let unique: BTreeSet<i64> = list.iter().copied().collect();
            if unique.len() < list.len() {
                let name = transaction.name();
                let sentence = format!(
                    "{name} reads {list:?} from list {key}, where each value was appended once"
                );
                let summary = format!("an append to list {key} took effect twice");
                verdict.add(Anomaly::new("duplicate", summary, vec![Step::fact(name, sentence)]));
            }
            let best = longest.entry(key).or_insert((list, transaction));
            if list.len() > best.0.len() {
                *best = (list, transaction);
            }
        }
    }
    for transaction in transactions {
        for (key, list) in transaction.reads() {
            let Some((order, other)) = longest.get(&key) else { continue };
            if !order.starts_with(list) {
                let (name, other) = (transaction.name(), other.name());
                let steps = vec![
                    Step::fact(name.clone(), format!("{name} reads {list:?} from list {key}")),
                    Step::fact(
                        other.clone(),
                        format!("{other} reads {order:?}, of which that is no beginning"),
                    ),
                ];
                let summary = format!("two reads show list {key} in different orders");
                verdict.add(Anomaly::new("incompatible-order", summary, steps));
            }
        }
    }
    longest.into_iter().map(|(key, (order, _))| (key, order.to_vec())).collect()
}

/// A read shows only what committed transactions wrote, and only their last versions.
fn check_reads(transactions: &[Transaction<'_>], writers: &Writers, verdict: &mut Verdict) {
    for (number, reader) in transactions.iter().enumerate() {
        for (key, list) in reader.reads() {
            for (place, value) in list.iter().enumerate() {
                let name = reader.name();
                let Some(writer) = writers.get(key, *value) else {
                    let sentence = format!(
                        "{name} reads {value} from list {key}, which no transaction appended"
                    );
                    let summary = format!("list {key} holds a value from nowhere");
                    verdict.add(Anomaly::new(
                        "phantom-value",
                        summary,
                        vec![Step::fact(name, sentence)],
                    ));
                    continue;
                };
                if writer.transaction == number {
                    continue;
                }
                let author = &transactions[writer.transaction];
                if author.operation.outcome == Outcome::Fail {
                    let steps = vec![
                        Step::fact(
                            author.name(),
                            format!("{} appends {value} and aborts", author.name()),
                        ),
                        Step::fact(name.clone(), format!("{name} reads {value} from list {key}")),
                    ];
                    verdict.add(Anomaly::new(
                        "G1a",
                        "a transaction read what an aborted one wrote",
                        steps,
                    ));
                }
                if place + 1 == list.len() && !writer.is_last {
                    let steps = vec![
                        Step::fact(
                            author.name(),
                            format!(
                                "{} appends {value} and then more to list {key}",
                                author.name()
                            ),
                        ),
                        Step::fact(name.clone(), format!("{name} reads list {key} up to {value}")),
                    ];
                    verdict.add(Anomaly::new(
                        "G1b",
                        "a transaction read the middle of another",
                        steps,
                    ));
                }
            }
        }
    }
}

/// What was acknowledged is in every read that began afterwards.
fn check_losses(
    transactions: &[Transaction<'_>],
    orders: &BTreeMap<i64, Vec<i64>>,
    verdict: &mut Verdict,
) {
    let mut last_reads: BTreeMap<i64, (&Transaction<'_>, &[i64])> = BTreeMap::new();
    for transaction in transactions {
        for (key, list) in transaction.reads() {
            last_reads.insert(key, (transaction, list));
        }
    }
    for writer in transactions.iter().filter(|transaction| transaction.is_ok()) {
        for (key, value) in writer.appends() {
            let Some((reader, list)) = last_reads.get(&key) else { continue };
            let never_seen = orders.get(&key).is_none_or(|order| !order.contains(&value));
            if never_seen && writer.operation.precedes(reader.operation) {
                let (writer, reader) = (writer.name(), reader.name());
                let steps = vec![
                    Step::fact(
                        writer.clone(),
                        format!("{writer} appends {value} to list {key} and is acknowledged"),
                    ),
                    Step::fact(reader.clone(), format!("{reader} begins later and reads {list:?}")),
                ];
                let summary = format!("an acknowledged append to list {key} is in no read");
                verdict.add(Anomaly::new("lost-append", summary, steps));
            }
        }
    }
}

fn graph(
    transactions: &[Transaction<'_>],
    writers: &Writers,
    orders: &BTreeMap<i64, Vec<i64>>,
    real_time: bool,
) -> Graph {
    let mut graph = Graph::default();
    for (key, order) in orders {
        for pair in order.windows(2) {
            if let (Some(first), Some(second)) =
                (writers.get(*key, pair[0]), writers.get(*key, pair[1]))
            {
                graph.add(first.transaction, second.transaction, Relation::WriteWrite);
            }
        }
    }
    for (reader, transaction) in transactions.iter().enumerate() {
        for (key, list) in transaction.reads_of_others() {
            if let Some(writer) = list.last().and_then(|value| writers.get(key, *value)) {
                graph.add(writer.transaction, reader, Relation::WriteRead);
            }
            let next = orders
                .get(&key)
                .filter(|order| order.starts_with(list))
                .and_then(|order| order.get(list.len()));
            if let Some(writer) = next.and_then(|value| writers.get(key, *value)) {
                graph.add(reader, writer.transaction, Relation::ReadWrite);
            }
        }
    }
    if real_time {
        add_real_time(&mut graph, transactions);
    }
    graph
}

/// Adds "ended before the other began", without what follows from other such relations.
fn add_real_time(graph: &mut Graph, transactions: &[Transaction<'_>]) {
    let mut ends: Vec<(u64, usize)> = Vec::new();
    for (number, transaction) in transactions.iter().enumerate() {
        if let (true, Some(completed)) = (transaction.is_ok(), transaction.operation.completed) {
            ends.push((completed, number));
        }
    }
    ends.sort_unstable();
    let mut ended = ends.into_iter().peekable();
    // Ended transactions after whose end no other transaction has begun and ended.
    let mut frontier: BTreeSet<usize> = BTreeSet::new();
    for (number, transaction) in transactions.iter().enumerate() {
        while let Some((_, last)) =
            ended.next_if(|(completed, _)| *completed < transaction.operation.invoked)
        {
            let began = transactions[last].operation.invoked;
            frontier.retain(|earlier| {
                transactions[*earlier].operation.completed.is_none_or(|end| end >= began)
            });
            frontier.insert(last);
        }
        for earlier in &frontier {
            graph.add(*earlier, number, Relation::RealTime);
        }
    }
}

fn find_cycles(
    graph: &Graph,
    transactions: &[Transaction<'_>],
    model: Model,
    verdict: &mut Verdict,
) {
    use Relation::{ReadWrite, RealTime, WriteRead, WriteWrite};
    let anything = |_: Relation| true;
    let known = |relation: Relation| relation != RealTime;
    for part in graph.components(&known) {
        let g0 = graph
            .cycle(&part, &|relation| relation == WriteWrite, &|relation| relation == WriteWrite);
        let g1c = graph.cycle(&part, &|relation| relation == WriteRead, &|relation| {
            matches!(relation, WriteWrite | WriteRead)
        });
        let single = graph.cycle(&part, &|relation| relation == ReadWrite, &|relation| {
            matches!(relation, WriteWrite | WriteRead)
        });
        let nonadjacent = if single.is_none() { graph.nonadjacent_cycle(&part) } else { None };
        let g2 = match model {
            Model::SnapshotIsolation => None,
            _ if g0.is_some() || g1c.is_some() || single.is_some() || nonadjacent.is_some() => None,
            _ => graph.cycle(&part, &|relation| relation == ReadWrite, &known),
        };
        let found = [
            ("G0", g0),
            ("G1c", g1c),
            ("G-single", single),
            ("G-nonadjacent", nonadjacent),
            ("G2", g2),
        ];
        for (name, cycle) in found.into_iter().filter_map(|(name, cycle)| Some((name, cycle?))) {
            verdict.add(describe(name, &cycle, transactions));
        }
    }
    if model != Model::StrictSerializable || !verdict.anomalies.is_empty() {
        return;
    }
    for part in graph.components(&anything) {
        let shortest = graph.cycle(&part, &known, &anything);
        if let Some(cycle) = shortest {
            let anti = cycle.iter().filter(|(_, relation)| *relation == ReadWrite).count();
            let name = match anti {
                0 if cycle.iter().any(|(_, relation)| *relation == WriteRead) => "G1c-realtime",
                0 => "G0-realtime",
                1 => "G-single-realtime",
                _ => "G2-realtime",
            };
            verdict.add(describe(name, &cycle, transactions));
        }
    }
}

fn describe(name: &'static str, cycle: &Cycle, transactions: &[Transaction<'_>]) -> Anomaly {
    let steps = cycle.iter().enumerate().map(|(place, (number, relation))| {
        let next = cycle[(place + 1) % cycle.len()].0;
        let (from, to) = (transactions[*number].name(), transactions[next].name());
        let (relation, sentence) = match relation {
            Relation::WriteWrite => ("ww", format!("{from} appends what {to} appends after")),
            Relation::WriteRead => ("wr", format!("{from} appends what {to} reads")),
            Relation::ReadWrite => ("rw", format!("{from} does not see what {to} appends")),
            Relation::RealTime => ("rt", format!("{from} ends before {to} begins")),
        };
        Step { from, relation, to, sentence }
    });
    let steps: Vec<Step> = steps.collect();
    let names: Vec<&str> = steps.iter().map(|step| step.from.as_str()).collect();
    let summary = format!(
        "{} must each come before the next, and the last before the first",
        names.join(", ")
    );
    Anomaly::new(name, summary, steps)
}
