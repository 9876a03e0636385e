//! Every edge of the state diagram, and what is sent on it.

use super::*;

fn started() -> Transaction {
    let mut transaction = Transaction::default();
    transaction.start(TransactionOptions::default()).unwrap();
    transaction
}

fn in_progress() -> Transaction {
    let mut transaction = started();
    transaction.statement(None, || Some(7)).unwrap();
    transaction
}

fn majority() -> Option<WriteConcern> {
    Some(WriteConcern::MAJORITY)
}

#[test]
fn the_first_command_starts_it_and_later_ones_go_on() {
    let options = TransactionOptions {
        read_concern: Some("snapshot".to_owned()),
        ..TransactionOptions::default()
    };
    let mut transaction = Transaction::default();
    transaction.start(options).unwrap();
    assert_eq!(transaction.phase(), Phase::Starting);
    let time = Timestamp { time: 4, increment: 2 };
    let seen = Some(time);
    let mut body = rawdoc! { "insert": "c" };
    transaction.statement(seen, || Some(7)).unwrap().append_to(&mut body);
    let expected = rawdoc! {
        "insert": "c",
        "readConcern": { "level": "snapshot", "afterClusterTime": time },
        "txnNumber": 7_i64, "startTransaction": true, "autocommit": false,
    };
    assert_eq!(body, expected);
    assert_eq!(transaction.phase(), Phase::InProgress);
    let mut body = rawdoc! { "find": "c" };
    transaction.statement(seen, || Some(8)).unwrap().append_to(&mut body);
    assert_eq!(body, rawdoc! { "find": "c", "txnNumber": 7_i64, "autocommit": false });
}

#[test]
fn a_first_command_that_was_turned_away_is_sent_as_the_first_again() {
    let mut transaction = in_progress();
    transaction.first_turned_away();
    let again = transaction.statement(None, || Some(9)).unwrap();
    assert_eq!((again.first, again.number), (true, 7));
}

#[test]
fn outside_of_a_transaction_nothing_is_added() {
    let mut transaction = Transaction::default();
    assert_eq!(transaction.statement(None, || Some(1)), None);
    let mut ended = in_progress();
    ended.commit().unwrap();
    assert_eq!(ended.statement(None, || Some(1)), None);
    assert_eq!(ended.phase(), Phase::Committed);
}

#[test]
fn every_wrong_step_is_told_in_the_specifications_words_and_changes_nothing() {
    let text = |error: TransactionError| error.to_string();
    let mut none = Transaction::default();
    assert!(text(none.commit().unwrap_err()).starts_with("No transaction started"));
    assert!(text(none.abort().unwrap_err()).starts_with("No transaction started"));
    for mut open in [started(), in_progress()] {
        let phase = open.phase();
        let error = open.start(TransactionOptions::default()).unwrap_err();
        assert!(text(error).starts_with("Transaction already in progress"));
        assert_eq!(open.phase(), phase);
    }
    let mut aborted = in_progress();
    aborted.abort().unwrap();
    let expected = "Cannot call commitTransaction after calling abortTransaction";
    assert_eq!(text(aborted.commit().unwrap_err()), expected);
    assert_eq!(text(aborted.abort().unwrap_err()), "Cannot call abortTransaction twice");
    assert_eq!(aborted.phase(), Phase::Aborted);
    let mut committed = in_progress();
    committed.commit().unwrap();
    let expected = "Cannot call abortTransaction after calling commitTransaction";
    assert_eq!(text(committed.abort().unwrap_err()), expected);
    assert_eq!(committed.phase(), Phase::Committed);
}

#[test]
fn an_empty_transaction_ends_without_a_command() {
    let mut transaction = started();
    assert_eq!(transaction.commit(), Ok(Ending::Nothing));
    assert_eq!(transaction.commit(), Ok(Ending::Nothing));
    let mut transaction = started();
    assert_eq!(transaction.abort(), Ok(Ending::Nothing));
}

#[test]
fn unacknowledged_write_concerns_are_refused_at_the_start() {
    let mut transaction = Transaction::default();
    let concern =
        WriteConcern { w: Some(WriteAcknowledgement::Members(0)), ..WriteConcern::default() };
    let options =
        TransactionOptions { write_concern: Some(concern), ..TransactionOptions::default() };
    assert_eq!(transaction.start(options), Err(TransactionError::Unacknowledged));
    assert_eq!(transaction.phase(), Phase::None);
}

#[test]
fn only_a_commit_that_may_have_begun_is_repeated_with_majority() {
    let mut transaction = in_progress();
    transaction.commit().unwrap();
    let plain = rawdoc! { "commitTransaction": 1, "txnNumber": 7_i64, "autocommit": false };
    assert_eq!(transaction.ending(false), plain);
    let repeated = rawdoc! {
        "commitTransaction": 1, "txnNumber": 7_i64, "autocommit": false,
        "writeConcern": { "w": "majority", "wtimeout": 10_000_i64 },
    };
    let mut failed = transaction.clone();
    failed.commit_failed();
    assert_eq!(failed.ending(false), repeated);
    assert_eq!(transaction.commit(), Ok(Ending::Send));
    assert_eq!(transaction.ending(false), repeated);
}

#[test]
fn what_the_write_concern_says_beside_w_is_kept_in_repeated_commits() {
    let concern = WriteConcern {
        w: Some(WriteAcknowledgement::Members(1)),
        journal: Some(true),
        w_timeout: Some(Duration::from_millis(5)),
    };
    let options = TransactionOptions {
        write_concern: Some(concern),
        max_commit_time: Some(Duration::from_millis(60)),
        ..TransactionOptions::default()
    };
    let mut transaction = Transaction::default();
    transaction.start(options).unwrap();
    transaction.statement(None, || Some(1)).unwrap();
    transaction.commit().unwrap();
    transaction.commit_failed();
    let expected = rawdoc! {
        "commitTransaction": 1, "txnNumber": 1_i64, "autocommit": false,
        "writeConcern": { "w": "majority", "j": true, "wtimeout": 5_i64 }, "maxTimeMS": 60_i64,
    };
    assert_eq!(transaction.ending(false), expected);
    let expected = rawdoc! {
        "commitTransaction": 1, "txnNumber": 1_i64, "autocommit": false,
        "writeConcern": { "w": "majority", "j": true },
    };
    assert_eq!(transaction.ending(true), expected);
}

#[test]
fn aborts_carry_the_write_concern_as_it_is() {
    let mut transaction = Transaction::default();
    let options = TransactionOptions { write_concern: majority(), ..TransactionOptions::default() };
    transaction.start(options).unwrap();
    transaction.statement(None, || Some(3)).unwrap();
    transaction.learn(&rawdoc! { "ok": 1, "recoveryToken": { "shard": 2 } });
    assert_eq!(transaction.abort(), Ok(Ending::Send));
    let expected = rawdoc! {
        "abortTransaction": 1, "txnNumber": 3_i64, "autocommit": false,
        "writeConcern": { "w": "majority" }, "recoveryToken": { "shard": 2 },
    };
    assert_eq!(transaction.ending(false), expected);
}

#[test]
fn an_operation_after_the_end_leaves_the_transaction_behind() {
    let mut transaction = in_progress();
    transaction.commit().unwrap();
    transaction.begin_operation();
    assert_eq!(transaction.phase(), Phase::None);
    let mut open = in_progress();
    open.begin_operation();
    assert_eq!(open.phase(), Phase::InProgress);
}

#[test]
fn a_new_transaction_has_a_new_number_and_no_router() {
    let mut transaction = in_progress();
    transaction.pin("a:1".parse().unwrap());
    transaction.pin("b:1".parse().unwrap());
    assert_eq!(transaction.pinned(), Some(&"a:1".parse().unwrap()));
    transaction.commit().unwrap();
    transaction.start(TransactionOptions::default()).unwrap();
    assert_eq!(transaction.pinned(), None);
    assert_eq!(transaction.statement(None, || Some(8)).unwrap().number, 8);
}

#[test]
fn reads_need_the_primary_while_a_transaction_is_open() {
    let nearest = Some(ReadPreference::new(ReadPreferenceMode::Nearest));
    let options = TransactionOptions { read_preference: nearest, ..TransactionOptions::default() };
    let mut transaction = Transaction::default();
    transaction.start(options).unwrap();
    assert_eq!(transaction.check_read(), Err(TransactionError::ReadPreference));
    transaction.abort().unwrap();
    assert_eq!(transaction.check_read(), Ok(()));
    assert_eq!(started().check_read(), Ok(()));
}

#[test]
fn options_fall_back_one_by_one() {
    let own = TransactionOptions { read_concern: Some("local".to_owned()), ..Default::default() };
    let defaults = TransactionOptions {
        read_concern: Some("majority".to_owned()),
        write_concern: majority(),
        ..Default::default()
    };
    let both = own.or(&defaults);
    assert_eq!(both.read_concern.as_deref(), Some("local"));
    assert_eq!(both.write_concern, majority());
}

#[test]
fn transactions_in_which_nothing_is_sent_have_numbers_too() {
    let mut transaction = Transaction::default();
    transaction.start(TransactionOptions::default()).unwrap();
    transaction.commit().unwrap();
    transaction.commit().unwrap();
    transaction.begin_operation();
    transaction.start(TransactionOptions::default()).unwrap();
    transaction.abort().unwrap();
    transaction.start(TransactionOptions::default()).unwrap();
    let mut last = 0;
    let mut next = || {
        last += 1;
        Some(last)
    };
    assert_eq!(transaction.statement(None, &mut next).unwrap().number, 3);
    assert_eq!(transaction.statement(None, &mut next).unwrap().number, 3);
}
