//! Every interleaving of two sessions, two keys and up to two failovers, over the production table.
//!
//! The model owns what a host owns: logs, elections, replication and rollback, and a driver that
//! repeats commits and transactions as `withTransaction` does. Three bugs that MongoDB has had are
//! planted one by one, and found.

#![allow(clippy::print_stdout, reason = "the number of states is part of the result")]

mod model;

use std::collections::BTreeSet;

use model::{Bug, Script, Set};
use stateright::{Checker, HasDiscoveries, Model};

/// The transaction of each session. Both update both lists, in opposite orders.
const WRITERS: [&[Script]; 2] = [
    &[Script::Read(0), Script::Append(0), Script::Append(1)],
    &[Script::Read(1), Script::Append(1), Script::Append(0)],
];

/// One writes, one only reads.
const READER: [&[Script]; 2] =
    [&[Script::Append(0), Script::Append(1)], &[Script::Read(0), Script::Read(1)]];

fn set(scripts: [&'static [Script]; 2], elections: u8, bug: Option<Bug>) -> Set {
    Set { scripts, elections, bug }
}

fn check(name: &str, set: Set) {
    let checker = set.checker().threads(2).spawn_dfs().join();
    println!("{name}: {} states", checker.unique_state_count());
    assert!(checker.unique_state_count() > 1000, "the model is trivial");
    checker.assert_properties();
}

/// Checks that the planted bug breaks this property.
fn catches(property: &'static str, set: Set) {
    let finish = HasDiscoveries::AllOf(BTreeSet::from([property]));
    let checker = set.checker().threads(2).finish_when(finish).spawn_bfs().join();
    let found = checker.discovery(property);
    println!("{property}: {} states until it was found", checker.unique_state_count());
    assert!(found.is_some(), "the planted bug was not caught");
}

#[test]
fn two_writers_and_a_failover_show_no_anomaly() {
    check("writers, one failover", set(WRITERS, 1, None));
}

#[test]
fn a_writer_a_reader_and_two_failovers_show_no_anomaly() {
    check("writer and reader, two failovers", set(READER, 2, None));
}

#[test]
fn a_commit_that_comes_back_is_caught() {
    // SERVER-37179, SERVER-38850: an unknown commit is refused at once, without a no-op entry.
    catches(
        "no attempt commits after its client heard that it did not",
        set(READER, 2, Some(Bug::RefusesUnknownCommitAtOnce)),
    );
}

#[test]
fn a_transaction_that_survives_a_step_down_is_caught() {
    // SERVER-47645: a member keeps what was never logged when it steps down.
    catches(
        "no anomaly below snapshot isolation",
        set(WRITERS, 2, Some(Bug::KeepsStateWhenSteppingDown)),
    );
}

#[test]
fn a_read_only_commit_that_does_not_wait_is_caught() {
    // SERVER-35814: what was read may be lost after the client heard of it.
    catches(
        "no anomaly below snapshot isolation",
        set(READER, 2, Some(Bug::ReadOnlyCommitDoesNotWait)),
    );
}
