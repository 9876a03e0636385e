use bson::{RawDocumentBuf, rawdoc};

use super::*;
use crate::labels::tests::Said;
use crate::{Ending, SessionOptions, TransactionOptions};

const RULES: RetryRules =
    RetryRules { reads: true, writes: true, max_adaptive_retries: 2, retarget_overloaded: false };
const SERVER: SelectedServer =
    SelectedServer { max_wire_version: 21, takes_retryable_writes: true, is_router: false };
const OVERLOAD: &str = "SystemOverloadedError RetryableError";

fn at(millis: u64) -> MonotonicTime {
    MonotonicTime::from_millis(millis)
}

fn address() -> ServerAddress {
    "a:1".parse().unwrap()
}

fn kind(retry: Retry) -> OperationKind {
    let purpose = match retry {
        Retry::Never => Purpose::Any,
        Retry::Read => Purpose::Read,
        Retry::Write => Purpose::Write,
    };
    OperationKind { purpose, retry, role: Role::Statement, acknowledged: true }
}

fn begin(kind: OperationKind, rules: RetryRules) -> OperationLoop<Said> {
    let mut attempts = OperationLoop::new(kind, rules, None);
    select(&mut attempts, None);
    attempts
}

fn select(attempts: &mut OperationLoop<Said>, session: Option<&SessionState>) {
    assert_eq!(attempts.selected(SERVER, session), Next::Send);
}

fn network() -> Said {
    Said { network: true, ..Said::default() }
}

fn session() -> SessionState {
    SessionState::new(SessionOptions::default(), &TransactionOptions::default()).unwrap()
}

fn usage(role: Role) -> SessionUse<'static> {
    SessionUse {
        role,
        acknowledged: true,
        now: at(0),
        lifetime: Some(Duration::from_secs(1800)),
        load_balanced: false,
        router: None,
        max_wire_version: 21,
        read_concern: None,
        continues_cursor: false,
    }
}

fn fresh(_: Duration) -> Option<ServerSession> {
    Some(ServerSession::new([1; 16], at(0)))
}

/// "For sharded clusters, the server address on which the operation failed MUST be provided as a member
/// of the deprioritized server address list. For all other topologies only if the error is labelled with
/// `SystemOverloadedError`."
#[test]
fn a_read_is_sent_once_more_to_another_router_or_to_any_member() {
    let mut sharded: OperationLoop<Said> = OperationLoop::new(kind(Retry::Read), RULES, None);
    let router = SelectedServer { is_router: true, ..SERVER };
    assert_eq!(sharded.selected(router, None), Next::Send);
    assert_eq!(sharded.failed(&address(), Said::coded(91), at(0), 0.5, None), Next::Select);
    assert_eq!(sharded.deprioritized(), [address()]);
    let mut attempts = begin(kind(Retry::Read), RULES);
    assert_eq!(attempts.failed(&address(), Said::coded(91), at(0), 0.5, None), Next::Select);
    assert_eq!((attempts.deprioritized(), attempts.retries()), (&[][..], 1));
    select(&mut attempts, None);
    assert_eq!(attempts.failed(&address(), network(), at(0), 0.5, None), Next::Fail(network()));
}

#[test]
fn what_no_failover_explains_is_not_sent_again() {
    for (kind, rules, error) in [
        (kind(Retry::Read), RULES, Said::coded(11000)),
        (kind(Retry::Never), RULES, network()),
        (kind(Retry::Read), RetryRules { reads: false, ..RULES }, network()),
        (kind(Retry::Write), RetryRules { writes: false, ..RULES }, network()),
        (OperationKind { acknowledged: false, ..kind(Retry::Write) }, RULES, network()),
    ] {
        let next = begin(kind, rules).failed(&address(), error, at(0), 0.5, None);
        assert!(matches!(next, Next::Fail(_)), "{kind:?} {error:?}");
    }
}

#[test]
fn a_server_that_cannot_be_selected_again_does_not_hide_the_first_error() {
    let mut attempts = begin(kind(Retry::Read), RULES);
    assert_eq!(attempts.failed(&address(), network(), at(0), 0.5, None), Next::Select);
    let none = Said { selection: true, ..Said::default() };
    assert_eq!(attempts.not_selected(none), Next::Fail(network()));
    let mut first: OperationLoop<Said> = OperationLoop::new(kind(Retry::Read), RULES, None);
    assert_eq!(first.not_selected(none), Next::Fail(none));
}

#[test]
fn an_attempt_that_did_nothing_does_not_hide_one_that_may_have() {
    let mut attempts = begin(kind(Retry::Write), RULES);
    assert_eq!(attempts.failed(&address(), network(), at(0), 0.5, None), Next::Select);
    select(&mut attempts, None);
    let nothing = Said::labelled("RetryableWriteError NoWritesPerformed");
    let Next::Fail(told) = attempts.failed(&address(), nothing, at(0), 0.5, None) else { panic!() };
    assert!(told.network);
}

/// "If an error has been encountered which indicates that a write was attempted, this error is
/// returned"; a connection that cannot be checked out is no attempt.
#[test]
fn an_attempt_that_was_not_sent_does_not_hide_one_that_was() {
    for kind in [kind(Retry::Write), OperationKind { role: Role::Ending, ..kind(Retry::Write) }] {
        let mut attempts = begin(kind, RULES);
        assert_eq!(attempts.failed(&address(), network(), at(0), 0.5, None), Next::Select);
        select(&mut attempts, None);
        let unsent = Said { unsent: true, ..Said::default() };
        let Next::Fail(told) = attempts.failed(&address(), unsent, at(0), 0.5, None) else {
            panic!("{kind:?}")
        };
        assert!(told.network && !told.unsent, "{kind:?}");
    }
}

#[test]
fn every_attempt_of_a_write_has_the_same_number() {
    let mut session = session();
    let mut attempts = begin(kind(Retry::Write), RULES);
    let number = |attempts: &mut OperationLoop<Said>, session: &mut SessionState| {
        let mut body = RawDocumentBuf::new();
        attempts.add_session(&mut body, session, &usage(Role::Statement), fresh).unwrap();
        body.get_i64("txnNumber").unwrap()
    };
    assert_eq!(number(&mut attempts, &mut session), 1);
    let next = attempts.failed(&address(), network(), at(0), 0.5, Some(&mut session));
    assert_eq!(next, Next::Select);
    assert!(session.is_dirty());
    select(&mut attempts, None);
    assert_eq!(number(&mut attempts, &mut session), 1);
    let mut next = begin(kind(Retry::Write), RULES);
    assert_eq!(number(&mut next, &mut session), 2);
}

/// "If the selected server does not support retryable writes, retrying is not possible and drivers MUST
/// raise the retryable error from the previous attempt."
#[test]
fn a_write_with_a_number_is_not_sent_again_without_it() {
    let plain = SelectedServer { takes_retryable_writes: false, ..SERVER };
    let mut session = session();
    let mut attempts = begin(kind(Retry::Write), RULES);
    let mut body = RawDocumentBuf::new();
    attempts.add_session(&mut body, &mut session, &usage(Role::Statement), fresh).unwrap();
    let next = attempts.failed(&address(), network(), at(0), 0.5, Some(&mut session));
    assert_eq!(next, Next::Select);
    let Next::Fail(told) = attempts.selected(plain, Some(&session)) else { panic!("it is sent") };
    assert!(told.network);
    // A write that never had a number goes to such a server.
    let mut first: OperationLoop<Said> = OperationLoop::new(kind(Retry::Write), RULES, None);
    assert_eq!(first.selected(plain, Some(&session)), Next::Send);
}

/// An operation's own session adds what a session does that has no options and was not used.
#[test]
fn an_operation_in_a_session_of_its_own_carries_what_a_fresh_session_adds() {
    let bodies = [
        rawdoc! { "ping": 1 },
        rawdoc! { "find": "c", "lsid": { "id": 7 } },
        rawdoc! { "find": "c", "readConcern": { "level": "local" } },
    ];
    let mut compared = 0;
    for retry in [Retry::Never, Retry::Read, Retry::Write] {
        for role in [Role::Statement, Role::Beside] {
            for read_concern in [None, Some(""), Some("majority")] {
                for (acknowledged, lifetime) in [(true, 1800), (false, 1800), (true, 0)] {
                    let lifetime = Some(Duration::from_secs(lifetime)).filter(|l| !l.is_zero());
                    let usage = SessionUse { acknowledged, lifetime, read_concern, ..usage(role) };
                    let kind = OperationKind { role, acknowledged, ..kind(retry) };
                    for body in &bodies {
                        let (mut fresh_state, mut own) = (SessionState::default(), None);
                        let (mut general, mut short) = (body.clone(), body.clone());
                        let mut attempts = begin(kind, RULES);
                        attempts
                            .add_session(&mut general, &mut fresh_state, &usage, fresh)
                            .unwrap();
                        let mut attempts = begin(kind, RULES);
                        attempts.add_own_session(&mut short, &mut own, &usage, fresh);
                        assert_eq!(short, general);
                        compared += 1;
                    }
                }
            }
        }
    }
    assert_eq!(compared, 162);
}

/// "If a driver gets a network error, the session is dirty": it is not used again.
#[test]
fn a_network_error_makes_an_operations_own_session_dirty() {
    let mut own = fresh(Duration::ZERO);
    let mut attempts = begin(kind(Retry::Write), RULES);
    let code = Said::coded(91);
    attempts.failed_in_own_session(&address(), code, at(0), 0.5, &mut own);
    assert!(!own.as_ref().unwrap().is_dirty());
    attempts.failed_in_own_session(&address(), network(), at(0), 0.5, &mut own);
    assert!(own.unwrap().is_dirty());
}

#[test]
fn an_overloaded_server_is_left_alone_for_longer_and_longer() {
    let overload = Said::labelled(OVERLOAD);
    let mut attempts = begin(kind(Retry::Never), RULES);
    for pause in [100, 200] {
        let wait = Next::Wait(Duration::from_millis(pause));
        assert_eq!(attempts.failed(&address(), overload, at(0), 0.5, None), wait);
        assert_eq!(attempts.waited(), Next::Select);
        assert!(attempts.deprioritized().is_empty());
        select(&mut attempts, None);
    }
    assert_eq!(attempts.failed(&address(), overload, at(0), 0.5, None), Next::Fail(overload));
    let rules = RetryRules { retarget_overloaded: true, max_adaptive_retries: 1, ..RULES };
    let mut elsewhere = begin(kind(Retry::Read), rules);
    let slow = Said { backoff: Some(Duration::from_secs(1)), ..overload };
    assert_eq!(
        elsewhere.failed(&address(), slow, at(0), 0.5, None),
        Next::Wait(Duration::from_secs(1))
    );
    assert_eq!(elsewhere.deprioritized(), [address()]);
}

#[test]
fn overloaded_servers_are_asked_again_as_far_as_the_options_allow() {
    let overload = Said::labelled(OVERLOAD);
    let (reads, writes) = (kind(Retry::Read), kind(Retry::Write));
    for (kind, rules) in [
        (reads, RetryRules { reads: false, ..RULES }),
        (writes, RetryRules { writes: false, ..RULES }),
        (kind(Retry::Never), RetryRules { writes: false, ..RULES }),
        (reads, RetryRules { max_adaptive_retries: 0, ..RULES }),
    ] {
        let next = begin(kind, rules).failed(&address(), overload, at(0), 0.5, None);
        assert_eq!(next, Next::Fail(overload), "{kind:?} {rules:?}");
    }
    let ends = OperationKind { role: Role::Ending, ..writes };
    let rules = RetryRules { reads: false, writes: false, ..RULES };
    let next = begin(ends, rules).failed(&address(), overload, at(0), 0.5, None);
    assert!(matches!(next, Next::Wait(_)), "commits are retried whatever the options say");
    // Without the second label the server may have begun.
    let begun = Said::labelled(SYSTEM_OVERLOADED_ERROR);
    assert_eq!(
        begin(kind(Retry::Never), RULES).failed(&address(), begun, at(0), 0.5, None),
        Next::Fail(begun)
    );
}

#[test]
fn within_a_timeout_attempts_go_on_and_no_pause_outlives_it() {
    let mut attempts = OperationLoop::new(kind(Retry::Read), RULES, Some(at(150)));
    for _ in 0..MAX_RETRIES_WITHIN_TIMEOUT {
        select(&mut attempts, None);
        assert_eq!(attempts.failed(&address(), network(), at(0), 0.5, None), Next::Select);
    }
    select(&mut attempts, None);
    assert_eq!(attempts.failed(&address(), network(), at(0), 0.5, None), Next::Fail(network()));
    let overload = Said::labelled(OVERLOAD);
    let mut late = OperationLoop::new(kind(Retry::Read), RULES, Some(at(150)));
    select(&mut late, None);
    assert_eq!(late.failed(&address(), overload, at(50), 0.5, None), Next::Fail(overload));
}

#[test]
fn statements_of_a_transaction_are_only_sent_again_to_overloaded_servers() {
    let mut session = session();
    session.start_transaction(TransactionOptions::default()).unwrap();
    let mut attempts = OperationLoop::new(kind(Retry::Write), RULES, None);
    select(&mut attempts, Some(&session));
    assert_eq!(
        attempts.failed(&address(), network(), at(0), 0.5, Some(&mut session)),
        Next::Fail(network())
    );

    let mut attempts = OperationLoop::new(kind(Retry::Write), RULES, None);
    for _ in 0..2 {
        select(&mut attempts, Some(&session));
        let mut body = rawdoc! { "insert": "c" };
        attempts.add_session(&mut body, &mut session, &usage(Role::Statement), fresh).unwrap();
        assert!(body.get_bool("startTransaction").unwrap(), "it is the first again");
        let overload = Said::labelled(OVERLOAD);
        let next = attempts.failed(&address(), overload, at(0), 0.5, Some(&mut session));
        assert!(matches!(next, Next::Wait(_)));
    }
}

#[test]
fn a_commit_that_may_have_begun_asks_for_a_majority() {
    for (error, majority) in [(network(), true), (Said::labelled(OVERLOAD), false)] {
        let mut session = session();
        session.start_transaction(TransactionOptions::default()).unwrap();
        session.add_to(&mut RawDocumentBuf::new(), &usage(Role::Statement), fresh).unwrap();
        assert_eq!(session.transaction.commit(), Ok(Ending::Send));
        let ends = OperationKind { role: Role::Ending, ..kind(Retry::Write) };
        let mut attempts = begin(ends, RetryRules { writes: false, ..RULES });
        let next = attempts.failed(&address(), error, at(0), 0.5, Some(&mut session));
        assert!(!matches!(next, Next::Fail(_)));
        let again = session.transaction.ending(false);
        assert_eq!(again.get_document("writeConcern").is_ok(), majority);
    }
}

#[test]
fn codes_become_labels_only_for_servers_that_do_not_label() {
    for (version, expected) in [(8, Some(RETRYABLE_WRITE_ERROR)), (9, None)] {
        let mut error = Said::coded(91);
        label_for_retryable_write(&mut error, version);
        assert_eq!(error.added, expected);
    }
}
