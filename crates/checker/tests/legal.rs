//! Random legal histories: no checker raises a false alarm, and a planted fault is still found.

use std::collections::BTreeMap;

use quorate_checker::list_append::{self, Model};
use quorate_checker::{Action, History, MicroOperation, Operation, Outcome, registers};

/// How many random histories each test judges.
const HISTORIES: u64 = 10_000;

const KEYS: i64 = 3;

/// A small generator of chance: the same seed gives the same history.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u64) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % limit
    }
}

type Lists = BTreeMap<i64, Vec<i64>>;

/// A transaction under way in a database that keeps its promise.
struct Open {
    process: u64,
    invoked: u64,
    snapshot: Lists,
    began: u64,
    steps: Vec<MicroOperation>,
    appended: Lists,
}

/// Runs clients against a database with snapshot isolation, or one that runs a transaction at a time.
fn run(seed: u64, serial: bool) -> History {
    let mut chance = Chance(seed);
    let (mut clock, mut next_value) = (1, 1);
    let mut lists = Lists::new();
    // When each list was changed last, in commits.
    let mut changed: BTreeMap<i64, u64> = BTreeMap::new();
    let mut commits = 0;
    let mut open: Vec<Open> = Vec::new();
    let mut operations = Vec::new();
    let mut next_process = 0;
    for _ in 0..40 {
        clock += 1;
        let begin = open.is_empty() || (!serial && open.len() < 4 && chance.below(3) == 0);
        if begin {
            open.push(Open {
                process: next_process,
                invoked: clock,
                snapshot: lists.clone(),
                began: commits,
                steps: Vec::new(),
                appended: Lists::new(),
            });
            next_process += 1;
            continue;
        }
        let place = chance.below(open.len() as u64) as usize;
        let transaction = &mut open[place];
        let key = chance.below(KEYS as u64) as i64;
        match chance.below(4) {
            0 => {
                transaction.steps.push(MicroOperation::Append { key, value: next_value });
                transaction.appended.entry(key).or_default().push(next_value);
                next_value += 1;
            }
            1 | 2 => {
                let mut list = transaction.snapshot.get(&key).cloned().unwrap_or_default();
                list.extend(transaction.appended.get(&key).into_iter().flatten());
                transaction.steps.push(MicroOperation::Read { key, list: Some(list) });
            }
            _ => {
                let transaction = open.swap_remove(place);
                let conflict = transaction
                    .appended
                    .keys()
                    .any(|key| changed.get(key).is_some_and(|at| *at > transaction.began));
                let outcome = if conflict {
                    Outcome::Fail
                } else {
                    commits += 1;
                    for (key, values) in &transaction.appended {
                        lists.entry(*key).or_default().extend(values);
                        changed.insert(*key, commits);
                    }
                    // Sometimes the acknowledgement is lost.
                    if chance.below(8) == 0 { Outcome::Unknown } else { Outcome::Ok }
                };
                operations.push(Operation {
                    index: operations.len(),
                    process: transaction.process,
                    invoked: transaction.invoked,
                    completed: Some(clock),
                    outcome,
                    action: Action::Transaction(transaction.steps),
                });
            }
        }
    }
    History::new(operations)
}

#[test]
fn snapshot_isolated_histories_raise_no_alarm() {
    for seed in 0..HISTORIES {
        let history = run(seed, false);
        let verdict = list_append::check(&history, Model::SnapshotIsolation);
        assert!(verdict.is_valid(), "seed {seed}: {verdict}\n{}", history.to_lines());
    }
}

#[test]
fn serial_histories_raise_no_alarm_however_strict_the_model() {
    for seed in 0..HISTORIES {
        let history = run(seed, true);
        let verdict = list_append::check(&history, Model::StrictSerializable);
        assert!(verdict.is_valid(), "seed {seed}: {verdict}\n{}", history.to_lines());
    }
}

#[test]
fn snapshot_isolation_is_not_serializable_and_the_checker_sees_it() {
    let found = (0..HISTORIES).filter(|seed| {
        let verdict = list_append::check(&run(*seed, false), Model::Serializable);
        verdict.anomalies.iter().any(|anomaly| anomaly.name == "G2")
    });
    assert!(found.count() > 100, "write skew must show up in thousands of histories");
}

#[test]
fn a_value_taken_out_of_one_read_is_noticed() {
    let mut planted = 0;
    for seed in 0..HISTORIES {
        let mut operations = run(seed, true).operations().to_vec();
        // What an unacknowledged transaction wrote may legally be missing.
        if operations.iter().any(|operation| operation.outcome == Outcome::Unknown) {
            continue;
        }
        let list = operations
            .iter_mut()
            .filter(|operation| operation.outcome == Outcome::Ok)
            .find_map(|operation| {
                let Action::Transaction(steps) = &mut operation.action else { return None };
                steps.iter_mut().find_map(|step| match step {
                    MicroOperation::Read { list: Some(list), .. } if list.len() > 1 => Some(list),
                    _ => None,
                })
            });
        let Some(list) = list else { continue };
        planted += 1;
        list.remove(0);
        let verdict = list_append::check(&History::new(operations), Model::StrictSerializable);
        assert!(!verdict.is_valid(), "seed {seed}");
    }
    assert!(planted > 1_000);
}

/// Clients of one register that takes each operation at some moment of its span.
fn register_run(seed: u64) -> Vec<Operation> {
    let mut chance = Chance(seed);
    let mut register = None;
    let mut operations: Vec<Operation> = Vec::new();
    let mut free = [0_u64; 4];
    let mut moment = 0;
    for index in 0..30 {
        moment += 1 + chance.below(10);
        let process = chance.below(4);
        let earliest = free[process as usize];
        if earliest >= moment {
            continue;
        }
        let invoked = earliest + 1 + chance.below(moment - earliest);
        let completed = moment + 1 + chance.below(20);
        free[process as usize] = completed;
        let value = index + 1;
        let action = match chance.below(3) {
            0 => {
                register = Some(value);
                Action::Write { key: 1, value }
            }
            1 => Action::Read { key: 1, value: register },
            _ => {
                let expected = register;
                register = Some(value);
                Action::CompareAndSet { key: 1, expected, value }
            }
        };
        let unknown = !matches!(action, Action::Read { .. }) && chance.below(10) == 0;
        let outcome = if unknown { Outcome::Unknown } else { Outcome::Ok };
        operations.push(Operation {
            index: 0,
            process,
            invoked,
            completed: Some(completed),
            outcome,
            action,
        });
    }
    operations
}

#[test]
fn linearizable_histories_raise_no_alarm() {
    for seed in 0..HISTORIES {
        let history = History::new(register_run(seed));
        let verdict = registers::check(&history);
        assert!(verdict.is_valid(), "seed {seed}: {verdict}\n{}", history.to_lines());
    }
}

#[test]
fn a_read_of_a_value_never_written_is_noticed() {
    for seed in 0..1_000 {
        let mut operations = register_run(seed);
        let read = operations.iter_mut().find_map(|operation| match &mut operation.action {
            Action::Read { value, .. } => Some(value),
            _ => None,
        });
        let Some(value) = read else { continue };
        *value = Some(-1);
        assert!(!registers::check(&History::new(operations)).is_valid(), "seed {seed}");
    }
}
