//! Histories with every known anomaly: each is found under its own name.

use quorate_checker::change_events::{self, Delivery};
use quorate_checker::list_append::{self, Model};
use quorate_checker::{
    Action, History, HistoryError, MicroOperation, Operation, Outcome, Verdict, bank, counters,
    registers, sessions, sets,
};

/// An operation that takes from one time to another.
fn operation(
    process: u64,
    (invoked, completed): (u64, u64),
    outcome: Outcome,
    action: Action,
) -> Operation {
    Operation { index: 0, process, invoked, completed: Some(completed), outcome, action }
}

fn ok(process: u64, span: (u64, u64), action: Action) -> Operation {
    operation(process, span, Outcome::Ok, action)
}

fn append(key: i64, value: i64) -> MicroOperation {
    MicroOperation::Append { key, value }
}

fn read(key: i64, list: &[i64]) -> MicroOperation {
    MicroOperation::Read { key, list: Some(list.to_vec()) }
}

/// Transactions that all run at the same time, so that only their contents order them.
fn concurrent(transactions: &[&[MicroOperation]]) -> History {
    let operations = transactions.iter().enumerate().map(|(process, steps)| {
        ok(process as u64, (process as u64, 1000), Action::Transaction(steps.to_vec()))
    });
    History::new(operations.collect())
}

fn names(verdict: &Verdict) -> Vec<&'static str> {
    verdict.anomalies.iter().map(|anomaly| anomaly.name).collect()
}

fn snapshot(transactions: &[&[MicroOperation]]) -> Vec<&'static str> {
    names(&list_append::check(&concurrent(transactions), Model::SnapshotIsolation))
}

#[test]
fn a_cycle_of_overwrites_is_g0() {
    let found = snapshot(&[
        &[append(1, 1), append(2, 1)],
        &[append(1, 2), append(2, 2)],
        &[read(1, &[1, 2]), read(2, &[2, 1])],
    ]);
    assert!(found.contains(&"G0"), "{found:?}");
}

#[test]
fn reading_what_was_aborted_is_g1a() {
    let history = History::new(vec![
        operation(0, (0, 10), Outcome::Fail, Action::Transaction(vec![append(1, 1)])),
        ok(1, (0, 10), Action::Transaction(vec![read(1, &[1])])),
    ]);
    assert_eq!(names(&list_append::check(&history, Model::SnapshotIsolation)), ["G1a"]);
}

#[test]
fn what_may_have_committed_may_be_read() {
    let history = History::new(vec![
        operation(0, (0, 10), Outcome::Unknown, Action::Transaction(vec![append(1, 1)])),
        ok(1, (0, 10), Action::Transaction(vec![read(1, &[1])])),
    ]);
    assert!(list_append::check(&history, Model::StrictSerializable).is_valid());
}

#[test]
fn reading_the_middle_of_a_transaction_is_g1b() {
    let found = snapshot(&[&[append(1, 1), append(1, 2)], &[read(1, &[1])], &[read(1, &[1, 2])]]);
    assert!(found.contains(&"G1b"), "{found:?}");
}

#[test]
fn circular_information_flow_is_g1c() {
    let found = snapshot(&[&[append(1, 1), read(2, &[2])], &[append(2, 2), read(1, &[1])]]);
    assert_eq!(found, ["G1c"]);
}

#[test]
fn read_skew_is_g_single() {
    // The reader sees the old list 1 and the new list 2 of one writer.
    let found = snapshot(&[
        &[append(1, 1), append(2, 1)],
        &[read(1, &[]), read(2, &[1])],
        &[read(1, &[1])],
    ]);
    assert_eq!(found, ["G-single"]);
}

#[test]
fn a_lost_update_is_g_single() {
    let found = snapshot(&[
        &[read(1, &[]), append(1, 1)],
        &[read(1, &[]), append(1, 2)],
        &[read(1, &[1, 2])],
    ]);
    assert_eq!(found, ["G-single"]);
}

#[test]
fn the_long_fork_is_g_nonadjacent() {
    // Two readers see two independent writes in opposite orders.
    let long_fork: &[&[MicroOperation]] = &[
        &[append(1, 1)],
        &[append(2, 2)],
        &[read(1, &[1]), read(2, &[])],
        &[read(1, &[]), read(2, &[2])],
    ];
    assert_eq!(snapshot(long_fork), ["G-nonadjacent"]);
}

#[test]
fn write_skew_is_g2_and_snapshot_isolation_allows_it() {
    let skew: &[&[MicroOperation]] = &[
        &[read(1, &[]), read(2, &[]), append(1, 1)],
        &[read(1, &[]), read(2, &[]), append(2, 2)],
        &[read(1, &[1]), read(2, &[2])],
    ];
    assert!(snapshot(skew).is_empty());
    let found = list_append::check(&concurrent(skew), Model::Serializable);
    assert_eq!(names(&found), ["G2"]);
}

#[test]
fn a_stale_read_breaks_strict_serializability_alone() {
    let history = History::new(vec![
        ok(0, (0, 10), Action::Transaction(vec![append(1, 1)])),
        ok(1, (20, 30), Action::Transaction(vec![read(1, &[])])),
        ok(1, (40, 50), Action::Transaction(vec![read(1, &[1])])),
    ]);
    assert!(list_append::check(&history, Model::Serializable).is_valid());
    assert_eq!(
        names(&list_append::check(&history, Model::StrictSerializable)),
        ["G-single-realtime"]
    );
}

#[test]
fn a_transaction_that_misses_its_own_write_is_internally_inconsistent() {
    let found = snapshot(&[&[append(1, 1), read(1, &[])], &[read(1, &[1])]]);
    assert!(found.contains(&"internal"), "{found:?}");
}

#[test]
fn a_transaction_that_sees_its_future_write_is_internally_inconsistent() {
    let found = snapshot(&[&[read(1, &[1]), append(1, 1)]]);
    assert!(found.contains(&"internal"), "{found:?}");
}

#[test]
fn an_append_that_took_effect_twice_is_a_duplicate() {
    let found = snapshot(&[&[append(1, 1)], &[read(1, &[1, 1])]]);
    assert!(found.contains(&"duplicate"), "{found:?}");
}

#[test]
fn two_orders_of_one_list_are_incompatible() {
    let found =
        snapshot(&[&[append(1, 1)], &[append(1, 2)], &[read(1, &[1, 2])], &[read(1, &[2])]]);
    assert!(found.contains(&"incompatible-order"), "{found:?}");
}

#[test]
fn an_acknowledged_append_that_no_read_shows_is_lost() {
    let history = History::new(vec![
        ok(0, (0, 10), Action::Transaction(vec![append(1, 1)])),
        ok(1, (20, 30), Action::Transaction(vec![append(1, 2)])),
        ok(1, (40, 50), Action::Transaction(vec![read(1, &[2])])),
    ]);
    let found = list_append::check(&history, Model::SnapshotIsolation);
    assert_eq!(names(&found), ["lost-append"]);
}

#[test]
fn a_value_that_no_client_wrote_is_a_phantom() {
    assert!(snapshot(&[&[read(1, &[7])]]).contains(&"phantom-value"));
}

#[test]
fn the_shortest_cycle_is_told_in_sentences_and_drawn() {
    let skew = concurrent(&[
        &[append(1, 1), append(2, 1)],
        &[read(1, &[]), read(2, &[1])],
        &[read(1, &[1])],
    ]);
    let verdict = list_append::check(&skew, Model::SnapshotIsolation);
    let told = verdict.to_string();
    assert!(told.contains("T1 does not see what T0 appends"), "{told}");
    assert!(told.contains("T0 appends what T1 reads"), "{told}");
    let svg = verdict.anomalies[0].to_svg();
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
    assert_eq!(svg.matches("marker-end").count(), 2, "{svg}");
    assert_eq!(svg.matches("<circle").count(), 2, "{svg}");
}

fn read_register(key: i64, value: Option<i64>) -> Action {
    Action::Read { key, value }
}

#[test]
fn a_stale_read_of_a_register_is_not_linearizable() {
    let history = History::new(vec![
        ok(0, (0, 10), Action::Write { key: 1, value: 1 }),
        ok(0, (20, 30), Action::Write { key: 1, value: 2 }),
        ok(1, (40, 50), read_register(1, Some(1))),
    ]);
    let verdict = registers::check(&history);
    assert_eq!(names(&verdict), ["not-linearizable"]);
    assert!(verdict.to_string().contains("operation 2 of process 1 reads 1"), "{verdict}");
}

#[test]
fn a_read_that_goes_backwards_during_one_write_is_not_linearizable() {
    let history = History::new(vec![
        ok(0, (0, 100), Action::Write { key: 1, value: 1 }),
        ok(1, (10, 20), read_register(1, Some(1))),
        ok(1, (30, 40), read_register(1, None)),
    ]);
    assert_eq!(names(&registers::check(&history)), ["not-linearizable"]);
}

#[test]
fn two_successes_of_one_comparison_are_not_linearizable() {
    let cas = |value| Action::CompareAndSet { key: 1, expected: None, value };
    let history = History::new(vec![ok(0, (0, 100), cas(1)), ok(1, (0, 100), cas(2))]);
    assert_eq!(names(&registers::check(&history)), ["not-linearizable"]);
}

#[test]
fn a_write_of_unknown_outcome_may_take_effect_late_or_never() {
    let unknown = operation(0, (0, 5), Outcome::Unknown, Action::Write { key: 1, value: 1 });
    let late = History::new(vec![
        unknown.clone(),
        ok(1, (10, 20), read_register(1, None)),
        ok(1, (30, 40), read_register(1, Some(1))),
    ]);
    assert!(registers::check(&late).is_valid());
    let never = History::new(vec![unknown.clone(), ok(1, (10, 20), read_register(1, None))]);
    assert!(registers::check(&never).is_valid());
    let and_back = History::new(vec![
        unknown,
        ok(1, (10, 20), read_register(1, Some(1))),
        ok(1, (30, 40), read_register(1, None)),
    ]);
    assert!(!registers::check(&and_back).is_valid());
}

#[test]
fn a_failed_write_must_not_be_read() {
    let history = History::new(vec![
        operation(0, (0, 5), Outcome::Fail, Action::Write { key: 1, value: 1 }),
        ok(1, (10, 20), read_register(1, Some(1))),
    ]);
    assert!(!registers::check(&history).is_valid());
}

#[test]
fn sets_tell_of_losses_phantoms_and_duplicates() {
    let all = |elements: &[i64]| ok(9, (100, 110), Action::ReadAll(Some(elements.to_vec())));
    let set = |read: Operation| {
        sets::check(&History::new(vec![
            ok(0, (0, 10), Action::Add(1)),
            operation(1, (0, 10), Outcome::Unknown, Action::Add(2)),
            operation(2, (0, 10), Outcome::Fail, Action::Add(3)),
            read,
        ]))
    };
    assert!(set(all(&[1])).is_valid() && set(all(&[1, 2])).is_valid());
    assert_eq!(names(&set(all(&[2]))), ["lost-write"]);
    assert_eq!(names(&set(all(&[1, 3]))), ["phantom-value"]);
    assert_eq!(names(&set(all(&[1, 4]))), ["phantom-value"]);
    assert_eq!(names(&set(all(&[1, 1]))), ["duplicate"]);
    let no_read = sets::check(&History::new(vec![ok(0, (0, 10), Action::Add(1))]));
    assert!(no_read.undecided.is_some());
}

#[test]
fn counters_lie_between_acknowledged_and_attempted() {
    let count = |shown| {
        counters::check(&History::new(vec![
            ok(0, (0, 10), Action::Increment(2)),
            operation(1, (0, 10), Outcome::Unknown, Action::Increment(3)),
            operation(2, (0, 10), Outcome::Fail, Action::Increment(5)),
            ok(3, (20, 30), Action::Count(Some(shown))),
        ]))
    };
    assert!(count(2).is_valid() && count(5).is_valid());
    assert_eq!(names(&count(1)), ["lost-increment"]);
    assert_eq!(names(&count(7)), ["excess-increment"]);
}

#[test]
fn a_bank_keeps_its_total() {
    let read = |balances: [(i64, i64); 2]| {
        bank::check(
            &History::new(vec![ok(0, (0, 10), Action::Balances(Some(balances.into())))]),
            10,
        )
    };
    assert!(read([(1, 4), (2, 6)]).is_valid());
    assert_eq!(names(&read([(1, 4), (2, 5)])), ["wrong-total"]);
    assert_eq!(names(&read([(1, -1), (2, 11)])), ["negative-balance"]);
}

#[test]
fn sessions_never_go_backwards() {
    let write = |span, value| ok(0, span, Action::Write { key: 1, value });
    let read = |process, span, value| ok(process, span, read_register(1, value));
    let check = |operations| names(&sessions::check(&History::new(operations)));
    assert!(
        check(vec![write((0, 1), 1), read(0, (2, 3), Some(1)), read(1, (4, 5), None)]).is_empty()
    );
    assert_eq!(check(vec![write((0, 1), 1), read(0, (2, 3), None)]), ["own-write-not-seen"]);
    let backwards = vec![write((0, 1), 1), read(1, (2, 3), Some(1)), read(1, (4, 5), None)];
    assert_eq!(check(backwards), ["non-monotonic-read"]);
}

#[test]
fn change_events_come_once_and_in_order() {
    use Delivery::{Event, Restarted, Stored};
    let check = |deliveries: &[Delivery]| names(&change_events::check(&[1, 2, 3], deliveries));
    assert!(check(&[Event(1), Stored, Event(2), Restarted, Event(2), Event(3)]).is_empty());
    assert_eq!(check(&[Event(1), Event(3)]), ["missed-event"]);
    assert_eq!(check(&[Event(1), Event(2), Event(2), Event(3)]), ["repeated-event"]);
    assert_eq!(
        check(&[Event(1), Stored, Restarted, Event(1), Event(2), Event(3)]),
        ["repeated-event"]
    );
    assert_eq!(check(&[Event(1), Event(2)]), ["missed-event"]);
    assert_eq!(check(&[Event(1), Event(9), Event(2), Event(3)]), ["phantom-event"]);
}

#[test]
fn histories_come_back_from_their_lines() {
    let steps = vec![append(1, 1), read(2, &[5])];
    let history = History::new(vec![
        ok(0, (0, 10), Action::Transaction(steps)),
        operation(1, (1, 11), Outcome::Unknown, Action::Write { key: 1, value: 1 }),
        operation(
            2,
            (2, 12),
            Outcome::Fail,
            Action::CompareAndSet { key: 1, expected: None, value: 2 },
        ),
        ok(3, (3, 13), read_register(1, Some(4))),
        ok(4, (4, 14), Action::Balances(Some([(1, 4), (2, 6)].into()))),
        ok(5, (5, 15), Action::Transfer { from: 1, to: 2, amount: 3 }),
        ok(6, (6, 16), Action::ReadAll(Some(vec![1, 2]))),
        ok(7, (7, 17), Action::Add(1)),
        ok(8, (8, 18), Action::Increment(1)),
        ok(9, (9, 19), Action::Count(Some(1))),
    ]);
    assert_eq!(History::from_lines(&history.to_lines()), Ok(history));
}

#[test]
fn bad_lines_are_named() {
    assert!(matches!(History::from_lines("{}\nx"), Err(HistoryError::Malformed { line: 1, .. })));
    assert!(matches!(
        History::from_lines("\n{\"type\":"),
        Err(HistoryError::NotJson { line: 2, .. })
    ));
    let twice = r#"{"type":"invoke","process":0,"time":1,"f":"add","value":1}"#;
    let error = History::from_lines(&format!("{twice}\n{twice}")).unwrap_err();
    assert!(error.to_string().contains("line 2"), "{error}");
    let end = r#"{"type":"ok","process":0,"time":1,"f":"add","value":1}"#;
    assert!(History::from_lines(end).unwrap_err().to_string().contains("never began"));
    let odd = r#"{"type":"invoke","process":0,"time":1,"f":"dance","value":1}"#;
    assert!(History::from_lines(odd).unwrap_err().to_string().contains("dance"));
}
