//! Histories with each anomaly, and random ones that are legal.

use proptest::prelude::*;
use quorate_checker::{Anomaly, Isolation, Operation, Outcome, Transaction, list_append};

fn a(key: u64, value: u64) -> Operation {
    Operation::Append { key, value }
}

fn r(key: u64, list: &[u64]) -> Operation {
    Operation::Read { key, list: list.to_vec() }
}

fn committed(operations: &[Operation]) -> Transaction {
    Transaction { operations: operations.to_vec(), outcome: Outcome::Committed }
}

fn found(history: &[Transaction]) -> Vec<Anomaly> {
    list_append(history, false)
}

#[test]
fn writes_in_a_circle_are_g0() {
    let history = [
        committed(&[a(1, 1), a(2, 1)]),
        committed(&[a(1, 2), a(2, 2)]),
        committed(&[r(1, &[1, 2]), r(2, &[2, 1])]),
    ];
    assert_eq!(found(&history), [Anomaly::G0 { cycle: vec![0, 1] }]);
}

#[test]
fn reading_what_was_aborted_is_g1a() {
    let aborted = Transaction { operations: vec![a(1, 1)], outcome: Outcome::Aborted };
    let history = [aborted, committed(&[r(1, &[1])])];
    assert_eq!(found(&history), [Anomaly::AbortedRead { reader: 1, writer: 0 }]);
}

#[test]
fn reading_half_a_transaction_is_g1b() {
    let history = [committed(&[a(1, 1), a(1, 2)]), committed(&[r(1, &[1])])];
    assert!(found(&history).contains(&Anomaly::IntermediateRead { reader: 1, writer: 0 }));
}

#[test]
fn information_in_a_circle_is_g1c() {
    let history = [committed(&[a(1, 1), r(2, &[1])]), committed(&[a(2, 1), r(1, &[1])])];
    assert_eq!(found(&history), [Anomaly::G1c { cycle: vec![0, 1] }]);
}

#[test]
fn read_skew_is_g_single() {
    let history = [committed(&[a(1, 1), a(2, 1)]), committed(&[r(1, &[]), r(2, &[1])])];
    // The order of list 1 is known from a later read.
    let history = [history.as_slice(), &[committed(&[r(1, &[1])])]].concat();
    assert_eq!(found(&history), [Anomaly::GSingle { cycle: vec![1, 0] }]);
}

#[test]
fn a_lost_update_is_g_single() {
    // Both read the empty list, and both append.
    let history = [
        committed(&[r(1, &[]), a(1, 1)]),
        committed(&[r(1, &[]), a(1, 2)]),
        committed(&[r(1, &[1, 2])]),
    ];
    assert!(matches!(found(&history)[..], [Anomaly::GSingle { .. }]));
}

#[test]
fn write_skew_is_g2_and_snapshot_isolation_bears_it() {
    let history = [
        committed(&[r(1, &[]), a(2, 1)]),
        committed(&[r(2, &[]), a(1, 1)]),
        committed(&[r(1, &[1]), r(2, &[1])]),
    ];
    let found = found(&history);
    assert_eq!(found, [Anomaly::G2 { cycle: vec![0, 1] }]);
    assert!(found[0].is_allowed_by(Isolation::Snapshot));
    assert!(!found[0].is_allowed_by(Isolation::Serializable));
}

#[test]
fn a_long_fork_is_not_allowed_by_snapshot_isolation() {
    let history = [
        committed(&[a(1, 1)]),
        committed(&[a(2, 1)]),
        committed(&[r(1, &[1]), r(2, &[])]),
        committed(&[r(1, &[]), r(2, &[1])]),
    ];
    let found = found(&history);
    assert!(matches!(found[..], [Anomaly::GNonadjacent { .. }]), "{found:?}");
    assert!(!found[0].is_allowed_by(Isolation::Snapshot));
}

#[test]
fn a_transaction_sees_its_own_writes_and_one_state() {
    let internal = [Anomaly::Internal { transaction: 0, key: 1 }];
    assert_eq!(found(&[committed(&[a(1, 1), r(1, &[])])]), internal);
    let history = [committed(&[r(1, &[]), r(1, &[1])]), committed(&[a(1, 1)])];
    assert!(found(&history).contains(&internal[0]));
}

#[test]
fn duplicates_losses_garbage_and_other_orders_are_found() {
    let twice = [committed(&[a(1, 1)]), committed(&[r(1, &[1, 1])])];
    assert!(found(&twice).contains(&Anomaly::Duplicate { key: 1, value: 1 }));
    let lost = [committed(&[a(1, 1)]), committed(&[r(1, &[])])];
    let missing = Anomaly::LostAppend { transaction: 0, key: 1, value: 1 };
    assert_eq!(list_append(&lost, true), [missing]);
    assert_eq!(list_append(&lost, false), []);
    let garbage = [committed(&[r(1, &[9])])];
    assert_eq!(found(&garbage), [Anomaly::Garbage { reader: 0, value: 9 }]);
    let orders = [
        committed(&[a(1, 1)]),
        committed(&[a(1, 2)]),
        committed(&[r(1, &[1, 2])]),
        committed(&[r(1, &[2])]),
    ];
    assert!(found(&orders).contains(&Anomaly::IncompatibleOrder { key: 1 }));
}

#[test]
fn what_nobody_heard_of_may_have_happened_or_not() {
    let unknown = Transaction { operations: vec![a(1, 1)], outcome: Outcome::Unknown };
    assert_eq!(list_append(&[unknown.clone(), committed(&[r(1, &[1])])], true), []);
    assert_eq!(list_append(&[unknown, committed(&[r(1, &[])])], true), []);
}

/// Runs transactions one after the other, or under snapshot isolation with the first updater winning.
fn legal(steps: &[(u8, bool, u8)], transactions: usize, serial: bool) -> Vec<Transaction> {
    let mut lists = vec![Vec::new(); 3];
    let mut changed = [0_usize; 3];
    let mut held: [Option<usize>; 3] = [None; 3];
    let mut history = Vec::new();
    let mut open: Vec<Option<Open>> = vec![None; transactions];
    let mut next = 1;
    let mut clock = 0;
    for &(who, write, key) in steps {
        let (mut who, key) = (usize::from(who) % transactions, usize::from(key) % 4);
        if serial {
            who = open.iter().position(Option::is_some).unwrap_or(who);
        }
        let known =
            open[who].get_or_insert_with(|| Open { lists: lists.clone(), clock, done: vec![] });
        if key == 3 {
            let Some(known) = open[who].take() else { continue };
            clock += 1;
            for key in 0..3 {
                if held[key] == Some(who) {
                    held[key] = None;
                    changed[key] = clock;
                    lists[key].clone_from(&known.lists[key]);
                }
            }
            history.push(committed(&known.done));
        } else if !write {
            known.done.push(r(key as u64, &known.lists[key]));
        } else if held[key].is_none_or(|holder| holder == who) && changed[key] <= known.clock {
            held[key] = Some(who);
            known.lists[key].push(next);
            known.done.push(a(key as u64, next));
            next += 1;
        } else {
            let Some(known) = open[who].take() else { continue };
            held.iter_mut()
                .filter(|holder| **holder == Some(who))
                .for_each(|holder| *holder = None);
            history.push(Transaction { operations: known.done, outcome: Outcome::Aborted });
        }
    }
    let rest = open.into_iter().flatten();
    history
        .extend(rest.map(|open| Transaction { operations: open.done, outcome: Outcome::Aborted }));
    let last: Vec<_> = (0..3).map(|key| r(key as u64, &lists[key])).collect();
    history.push(committed(&last));
    history
}

#[derive(Clone)]
struct Open {
    lists: Vec<Vec<u64>>,
    clock: usize,
    done: Vec<Operation>,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn serial_histories_are_without_fault(steps in prop::collection::vec(any::<(u8, bool, u8)>(), 1..60)) {
        prop_assert_eq!(list_append(&legal(&steps, 3, true), true), []);
    }

    #[test]
    fn snapshot_isolation_is_at_most_skewed(steps in prop::collection::vec(any::<(u8, bool, u8)>(), 1..80)) {
        let found = list_append(&legal(&steps, 3, false), true);
        let wrong: Vec<_> =
            found.iter().filter(|found| !found.is_allowed_by(Isolation::Snapshot)).collect();
        prop_assert!(wrong.is_empty(), "{:?}", wrong);
    }
}
