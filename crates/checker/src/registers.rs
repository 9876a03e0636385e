//! Linearizability of registers, key by key.
//!
//! Each acknowledged operation must seem to take effect at one moment between its beginning and its end. The search
//! is that of Wing and Gong with Lowe's memory of visited states: it places one operation after another, each time
//! one that could be next, and goes back when none fits. An operation of unknown outcome may take effect at any time
//! after its beginning, or never. Linearizability is local: a history is linearizable if each key is.

use std::collections::{BTreeMap, BTreeSet};

use crate::history::{Action, History, Operation, Outcome};
use crate::verdict::{Anomaly, Step, Verdict};

/// States that the search visits for one key before it gives up.
pub const MAX_STATES: usize = 2_000_000;

/// Operations named in an explanation.
const MAX_EXPLAINED: usize = 12;

/// What an operation does to a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    Read(Option<i64>),
    Write(i64),
    CompareAndSet(Option<i64>, i64),
}

impl Effect {
    /// The register afterwards; none if the operation cannot happen now.
    fn on(self, register: Option<i64>) -> Option<Option<i64>> {
        match self {
            Self::Read(value) => (value == register).then_some(register),
            Self::Write(value) => Some(Some(value)),
            Self::CompareAndSet(expected, value) => (expected == register).then_some(Some(value)),
        }
    }

    fn written(self) -> Option<i64> {
        match self {
            Self::Read(_) => None,
            Self::Write(value) | Self::CompareAndSet(_, value) => Some(value),
        }
    }

    fn needed(self) -> Option<i64> {
        match self {
            Self::Read(value) => value,
            Self::Write(_) => None,
            Self::CompareAndSet(expected, _) => expected,
        }
    }
}

struct Placed<'a> {
    operation: &'a Operation,
    effect: Effect,
    /// When it must have taken effect.
    latest: u64,
}

/// Checks every key of a history. Operations other than those of registers are not judged.
pub fn check(history: &History) -> Verdict {
    let mut keys: BTreeMap<i64, Vec<Placed<'_>>> = BTreeMap::new();
    let mut verdict = Verdict::default();
    for operation in history.operations() {
        let (key, effect) = match operation.action {
            Action::Read { key, value } => (key, Effect::Read(value)),
            Action::Write { key, value } => (key, Effect::Write(value)),
            Action::CompareAndSet { key, expected, value } => {
                (key, Effect::CompareAndSet(expected, value))
            }
            _ => continue,
        };
        verdict.operations += 1;
        let latest = match (operation.outcome, effect) {
            (Outcome::Fail, _) | (Outcome::Unknown, Effect::Read(_)) => continue,
            (Outcome::Ok, _) => operation.completed.unwrap_or(u64::MAX),
            (Outcome::Unknown, _) => u64::MAX,
        };
        keys.entry(key).or_default().push(Placed { operation, effect, latest });
    }
    for (key, operations) in keys {
        match search(relevant(operations)) {
            Found::Order => {}
            Found::TooMany => {
                verdict.undecided = Some(format!(
                    "key {key} has more than {MAX_STATES} states to visit: use more keys, fewer clients, or shorter runs"
                ));
            }
            Found::None(deepest) => verdict.add(explain(key, &deepest)),
        }
    }
    verdict
}

/// Leaves out writes of unknown outcome that no acknowledged operation saw: they may never have happened.
fn relevant(operations: Vec<Placed<'_>>) -> Vec<Placed<'_>> {
    let seen: BTreeSet<i64> =
        operations.iter().filter_map(|placed| placed.effect.needed()).collect();
    let keep = |placed: &Placed<'_>| {
        placed.operation.outcome == Outcome::Ok
            || placed.effect.written().is_some_and(|value| seen.contains(&value))
    };
    operations.into_iter().filter(keep).collect()
}

enum Found<'a> {
    Order,
    TooMany,
    None(Deepest<'a>),
}

/// The furthest that the search came.
struct Deepest<'a> {
    register: Option<i64>,
    placed: usize,
    stuck: Vec<(&'a Operation, Effect)>,
}

/// Which operations are placed, as bits.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Bits(Vec<u64>);

impl Bits {
    fn has(&self, place: usize) -> bool {
        self.0[place / 64] >> (place % 64) & 1 == 1
    }

    fn set(&mut self, place: usize, on: bool) {
        let bit = 1 << (place % 64);
        if on {
            self.0[place / 64] |= bit;
        } else {
            self.0[place / 64] &= !bit;
        }
    }
}

/// One operation that was placed, and what to try if that leads nowhere.
struct Choice {
    place: usize,
    before: Option<i64>,
    others: std::vec::IntoIter<usize>,
}

fn search(operations: Vec<Placed<'_>>) -> Found<'_> {
    let mut placed = Bits(vec![0; operations.len().div_ceil(64)]);
    let mut register = None;
    let mut required =
        operations.iter().filter(|placed| placed.operation.outcome == Outcome::Ok).count();
    let mut visited: BTreeSet<(Bits, Option<i64>)> = BTreeSet::new();
    let mut path: Vec<Choice> = Vec::new();
    let mut deepest = Deepest { register, placed: 0, stuck: Vec::new() };
    let mut options = candidates(&operations, &placed).into_iter();
    loop {
        if required == 0 {
            return Found::Order;
        }
        if visited.len() > MAX_STATES {
            return Found::TooMany;
        }
        let next = options.find_map(|place| {
            let after = operations[place].effect.on(register)?;
            placed.set(place, true);
            if visited.insert((placed.clone(), after)) {
                return Some((place, after));
            }
            placed.set(place, false);
            None
        });
        if let Some((place, after)) = next {
            required -= usize::from(operations[place].operation.outcome == Outcome::Ok);
            path.push(Choice { place, before: register, others: options });
            register = after;
            options = candidates(&operations, &placed).into_iter();
            continue;
        }
        if path.len() >= deepest.placed {
            let stuck = candidates(&operations, &placed).into_iter();
            let stuck = stuck.map(|place| (operations[place].operation, operations[place].effect));
            deepest = Deepest { register, placed: path.len(), stuck: stuck.collect() };
        }
        let Some(Choice { place, before, others }) = path.pop() else {
            return Found::None(deepest);
        };
        placed.set(place, false);
        required += usize::from(operations[place].operation.outcome == Outcome::Ok);
        (register, options) = (before, others);
    }
}

/// The operations that may take effect next: those that began before any other has to have taken effect.
fn candidates(operations: &[Placed<'_>], placed: &Bits) -> Vec<usize> {
    let mut found = Vec::new();
    let mut latest = u64::MAX;
    for (place, operation) in operations.iter().enumerate() {
        if placed.has(place) {
            continue;
        }
        if operation.operation.invoked > latest {
            break;
        }
        latest = latest.min(operation.latest);
        found.push(place);
    }
    found
}

fn explain(key: i64, deepest: &Deepest<'_>) -> Anomaly {
    let value = |value: Option<i64>| value.map_or("nothing".to_owned(), |value| value.to_string());
    let stuck = deepest.stuck.iter().take(MAX_EXPLAINED).map(|(operation, effect)| {
        let did = match effect {
            Effect::Read(read) => format!("reads {}", value(*read)),
            Effect::Write(written) => format!("writes {written}"),
            Effect::CompareAndSet(expected, new) => {
                format!("replaces {} by {new}", value(*expected))
            }
        };
        let name = format!("operation {}", operation.index);
        let sentence = format!(
            "{name} of process {} {did}, from {} ns on",
            operation.process, operation.invoked
        );
        Step::fact(name, sentence)
    });
    Anomaly::new(
        "not-linearizable",
        format!(
            "no order of the operations on key {key} explains what clients were told; after {} of them the register \
             holds {}, and none of these can be next",
            deepest.placed,
            value(deepest.register)
        ),
        stuck.collect(),
    )
}
