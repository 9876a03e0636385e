//! Every row of the session table, and what transactions may hold.

#![allow(clippy::unwrap_used, reason = "a panic is the report")]

use std::time::Duration;

use quorate_protocol::{MonotonicTime, OpTime, Timestamp};
use quorate_transactions::{
    AbortReason, Arrival, Conflict, Kind, Limits, Refusal, Stored, StoredState, TransactionId,
    Transactions, Verdict,
};

const NOW: MonotonicTime = MonotonicTime::ZERO;
const AT: OpTime = OpTime::new(1, Timestamp::new(10, 1));
const ALL: [Kind; 5] =
    [Kind::RetryableWrite, Kind::Start, Kind::Continue, Kind::Commit, Kind::Abort];

fn arrive(table: &mut Transactions<u8>, number: i64, kind: Kind) -> Verdict {
    arrive_with(table, number, kind, None)
}

fn arrive_with(
    table: &mut Transactions<u8>,
    number: i64,
    kind: Kind,
    stored: Option<Stored>,
) -> Verdict {
    table.arrive(&7, Arrival { number, kind }, stored, AT, NOW)
}

fn begin(table: &mut Transactions<u8>, session: u8, number: i64) -> TransactionId {
    let arrival = Arrival { number, kind: Kind::Start };
    match table.arrive(&session, arrival, None, AT, NOW) {
        Verdict::Begin(id) => id,
        other => panic!("{other:?}"),
    }
}

fn begun(number: i64) -> (Transactions<u8>, TransactionId) {
    let mut table = Transactions::default();
    let id = begin(&mut table, 7, number);
    table.finish(id, true).unwrap();
    (table, id)
}

fn stored(number: i64, state: StoredState) -> Option<Stored> {
    Some(Stored { number, state })
}

#[test]
fn a_smaller_number_is_too_old_wherever_the_greater_one_is_known() {
    let (mut table, _) = begun(5);
    let before = table.clone();
    for kind in ALL {
        let refusal = Refusal::TooOld { number: 4, newest: 5 };
        assert_eq!(arrive(&mut table, 4, kind), Verdict::Refuse(refusal));
        let known = stored(9, StoredState::Committed(AT));
        let refusal = Refusal::TooOld { number: 6, newest: 9 };
        assert_eq!(arrive_with(&mut table, 6, kind, known), Verdict::Refuse(refusal));
    }
    assert_eq!(table, before, "a refused command changes nothing");
    assert_eq!(Refusal::TooOld { number: 4, newest: 5 }.code(), 225);
}

#[test]
fn a_greater_number_that_starts_ends_the_open_one_silently() {
    let (mut table, first) = begun(5);
    table.claim(first, b"k").unwrap();
    let second = begin(&mut table, 7, 6);
    assert!(!table.is_open(first) && table.is_open(second));
    assert_eq!(table.holder(b"k"), None);
}

#[test]
fn a_greater_number_that_goes_on_or_ends_is_not_in_progress() {
    let (mut table, open) = begun(4);
    let refusal = Refusal::NoSuch { number: 5, newest: 4 };
    assert_eq!(arrive(&mut table, 5, Kind::Continue), Verdict::Refuse(refusal));
    assert_eq!(arrive(&mut table, 5, Kind::Abort), Verdict::Refuse(refusal));
    assert_eq!(arrive(&mut table, 5, Kind::Commit), Verdict::CommitUnknown(refusal));
    assert!(table.is_open(open), "the open one is left as it was");
    assert_eq!(refusal.code(), 251);
    assert_eq!(
        refusal.to_string(),
        "Given transaction number 5 does not match any in-progress transactions. The active \
         transaction number is 4"
    );
}

#[test]
fn a_greater_number_of_a_retryable_write_ends_the_open_transaction() {
    let (mut table, open) = begun(4);
    assert_eq!(arrive(&mut table, 5, Kind::RetryableWrite), Verdict::RetryableWrite);
    assert!(!table.is_open(open));
}

#[test]
fn what_has_ended_is_told_once_however_it_ended() {
    let (mut table, first) = begun(4);
    assert!(table.has_open(&7, 4) && !table.has_open(&7, 5) && !table.has_open(&8, 4));
    assert_eq!(table.take_ended(), []);
    let second = begin(&mut table, 7, 5);
    assert_eq!(table.take_ended(), [first], "a greater number has begun");
    table.finish(second, false).unwrap();
    let third = begin(&mut table, 7, 6);
    table.committed(third);
    assert_eq!(table.take_ended(), [second, third]);
    assert!(!table.has_open(&7, 6));
    let left = begin(&mut table, 8, 1);
    table.step_down();
    assert_eq!(table.take_ended(), [left]);
    assert_eq!(table.take_ended(), []);
}

#[test]
fn a_number_starts_once() {
    let (mut table, open) = begun(4);
    let refusal = Refusal::StartedBefore { number: 4 };
    assert_eq!(arrive(&mut table, 4, Kind::Start), Verdict::Refuse(refusal));
    assert_eq!(refusal.code(), 117);
    assert!(table.is_open(open));
}

#[test]
fn one_statement_runs_at_a_time() {
    let (mut table, open) = begun(4);
    assert_eq!(arrive(&mut table, 4, Kind::Continue), Verdict::Proceed(open));
    let refusal = Verdict::Refuse(Refusal::Busy { number: 4 });
    assert_eq!(arrive(&mut table, 4, Kind::Continue), refusal);
    assert_eq!(arrive(&mut table, 4, Kind::Commit), refusal);
    table.finish(open, true).unwrap();
    assert_eq!(arrive(&mut table, 4, Kind::Continue), Verdict::Proceed(open));
}

#[test]
fn any_error_of_a_statement_aborts() {
    let (mut table, open) = begun(2);
    assert_eq!(arrive(&mut table, 2, Kind::Continue), Verdict::Proceed(open));
    table.finish(open, false).unwrap();
    let refusal = Refusal::Aborted { number: 2 };
    for kind in [Kind::Start, Kind::Continue, Kind::Abort] {
        assert_eq!(arrive(&mut table, 2, kind), Verdict::Refuse(refusal));
    }
    assert_eq!(arrive(&mut table, 2, Kind::Commit), Verdict::CommitUnknown(refusal));
    assert_eq!(
        (refusal.code(), refusal.to_string().as_str()),
        (251, "Transaction 2 has been aborted.")
    );
}

#[test]
fn a_commit_is_answered_again_and_nothing_else_is() {
    let mut table = Transactions::default();
    let known = stored(3, StoredState::Committed(AT));
    assert_eq!(arrive_with(&mut table, 3, Kind::Commit, known), Verdict::CommittedBefore(AT));
    for kind in [Kind::Start, Kind::Continue, Kind::Abort] {
        let refusal = Refusal::Committed { number: 3 };
        assert_eq!(arrive_with(&mut table, 3, kind, known), Verdict::Refuse(refusal));
        assert_eq!(refusal.code(), 256);
    }
}

#[test]
fn a_commit_that_changed_nothing_is_answered_again_without_the_log() {
    let (mut table, open) = begun(3);
    let commit = Verdict::Commit { transaction: open, read_at: AT };
    assert_eq!(arrive(&mut table, 3, Kind::Commit), commit);
    table.committed(open);
    assert_eq!(arrive(&mut table, 3, Kind::Commit), Verdict::CommittedBefore(AT));
    let refusal = Refusal::Committed { number: 3 };
    assert_eq!(arrive(&mut table, 3, Kind::Continue), Verdict::Refuse(refusal));
    table.step_down();
    let unknown = Refusal::NoSuch { number: 3, newest: -1 };
    assert_eq!(arrive(&mut table, 3, Kind::Commit), Verdict::CommitUnknown(unknown));
}

#[test]
fn a_number_has_one_use() {
    let mut table = Transactions::default();
    let known = stored(3, StoredState::RetryableWrite);
    let refusal = Verdict::Refuse(Refusal::OtherUse { number: 3 });
    for kind in [Kind::Start, Kind::Continue, Kind::Commit, Kind::Abort] {
        assert_eq!(arrive_with(&mut table, 3, kind, known), refusal);
    }
    let again = arrive_with(&mut table, 3, Kind::RetryableWrite, known);
    assert_eq!(again, Verdict::RetryableWrite);
    let known = stored(3, StoredState::Committed(AT));
    assert_eq!(arrive_with(&mut table, 3, Kind::RetryableWrite, known), refusal);
    let (mut table, _) = begun(3);
    assert_eq!(arrive(&mut table, 3, Kind::RetryableWrite), refusal);
}

#[test]
fn an_abort_during_a_statement_is_told_to_the_statement() {
    let (mut table, open) = begun(3);
    assert_eq!(arrive(&mut table, 3, Kind::Continue), Verdict::Proceed(open));
    assert_eq!(arrive(&mut table, 3, Kind::Abort), Verdict::Aborted(open));
    assert_eq!(table.claim(open, b"k"), Err(Refusal::Aborted { number: 3 }));
    assert_eq!(table.finish(open, true), Err(Refusal::Aborted { number: 3 }));
}

#[test]
fn a_step_down_forgets_what_was_never_logged() {
    let (mut table, open) = begun(3);
    table.claim(open, b"k").unwrap();
    assert_eq!(table.step_down(), [open]);
    assert!(!table.is_open(open) && table.is_idle(), "a transaction does not outlive its primary");
    assert_eq!(table.holder(b"k"), None);
    begin(&mut table, 7, 3);
}

#[test]
fn the_first_updater_wins_and_a_commit_after_the_snapshot_is_a_conflict() {
    let mut table = Transactions::default();
    let (first, second) = (begin(&mut table, 1, 1), begin(&mut table, 2, 1));
    table.claim(first, b"x").unwrap();
    table.claim(first, b"x").unwrap();
    assert_eq!(table.conflict(second, b"x"), Some(Conflict::HeldBy(first)));
    assert_eq!(table.claim(second, b"x"), Err(Refusal::WriteConflict));
    table.committed(first);
    assert_eq!(table.conflict(second, b"x"), Some(Conflict::ChangedSince));
    let third = begin(&mut table, 3, 1);
    table.claim(third, b"x").unwrap();
    table.abort(third, AbortReason::Asked);
    assert_eq!(table.claim(second, b"x"), Err(Refusal::WriteConflict), "still");
    assert_eq!(table.statistics().conflicts, 2);
}

#[test]
fn a_plain_write_after_the_snapshot_is_a_conflict_whatever_its_value() {
    let mut table = Transactions::default();
    let open = begin(&mut table, 1, 1);
    table.changed(b"x");
    table.changed(b"x");
    assert_eq!(table.claim(open, b"x"), Err(Refusal::WriteConflict));
    let later = begin(&mut table, 2, 1);
    table.claim(later, b"x").unwrap();
}

#[test]
fn old_transactions_end_and_a_running_statement_hears_why() {
    let mut table = Transactions::default();
    let first = begin(&mut table, 1, 4);
    let at = |seconds: u64| MonotonicTime::from_millis(seconds * 1000);
    assert_eq!(table.expire(at(59)), []);
    assert_eq!(table.expire(at(60)), [first]);
    let refusal = Refusal::ExceededLifetime { number: 4 };
    assert_eq!((table.finish(first, true), refusal.code()), (Err(refusal), 290));
    table.set_lifetime(Duration::from_secs(1));
    let second = begin(&mut table, 1, 5);
    assert_eq!(table.expire(at(1)), [second]);
}

#[test]
fn bytes_are_bounded_for_one_and_for_all() {
    let limits = Limits { transaction_bytes: 1000, open_bytes: 1500, ..Limits::default() };
    let mut table = Transactions::new(limits);
    let (first, second) = (begin(&mut table, 1, 1), begin(&mut table, 2, 1));
    table.grow(first, 900).unwrap();
    assert_eq!(table.grow(first, 200), Err(Refusal::TooLarge { limit: 1000 }));
    assert_eq!(table.grow(second, 700), Err(Refusal::NoRoom { limit: 1500 }));
    table.abort(first, AbortReason::Failed);
    table.grow(second, 700).unwrap();
    assert_eq!(Refusal::TooLarge { limit: 1 }.code(), 388);
}

#[test]
fn the_oldest_snapshot_ends_when_too_much_has_changed_since() {
    let limits = Limits { recent_bytes: 200, ..Limits::default() };
    let mut table = Transactions::new(limits);
    let first = begin(&mut table, 1, 1);
    assert_eq!(table.changed(b"a"), []);
    let second = begin(&mut table, 2, 1);
    assert_eq!(table.changed(b"b"), []);
    assert_eq!(table.changed(b"b"), [], "a key counts once");
    assert_eq!(table.changed(b"c"), []);
    assert_eq!(table.changed(b"d"), [first]);
    assert_eq!(table.claim(second, b"b"), Err(Refusal::WriteConflict));
}

#[test]
fn sessions_that_are_gone_are_forgotten() {
    let (mut table, open) = begun(3);
    assert_eq!(table.forget_sessions(|session| *session == 7), [open]);
    begin(&mut table, 7, 1);
}

#[test]
fn what_the_log_says_of_a_number_beats_what_this_member_remembers() {
    let (mut table, open) = begun(3);
    assert!(table.abort(open, AbortReason::Asked));
    let logged = stored(3, StoredState::Committed(AT));
    assert_eq!(arrive_with(&mut table, 3, Kind::Commit, logged), Verdict::CommittedBefore(AT));
}

#[test]
fn a_change_is_remembered_until_every_open_snapshot_shows_it() {
    let mut table = Transactions::default();
    let first = begin(&mut table, 1, 1);
    assert_eq!(table.changed(b"k"), []);
    // Each end of a transaction forgets what no open one needs.
    let second = begin(&mut table, 2, 1);
    assert!(table.abort(second, AbortReason::Asked));
    assert_eq!(table.conflict(first, b"k"), Some(Conflict::ChangedSince));
}
