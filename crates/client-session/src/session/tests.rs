use bson::rawdoc;

use super::*;
use crate::labels::tests::Said;

const LIFETIME: Duration = Duration::from_secs(30 * 60);
const NOON: Timestamp = Timestamp { time: 12, increment: 1 };

fn usage(role: Role) -> SessionUse<'static> {
    SessionUse {
        role,
        acknowledged: true,
        now: MonotonicTime::ZERO,
        lifetime: Some(LIFETIME),
        load_balanced: false,
        router: None,
        max_wire_version: 21,
        read_concern: Some(""),
        continues_cursor: false,
    }
}

fn fresh(_: Duration) -> Option<ServerSession> {
    Some(ServerSession::new([1; 16], MonotonicTime::ZERO))
}

fn session(options: SessionOptions) -> SessionState {
    SessionState::new(options, &TransactionOptions::default()).unwrap()
}

/// The names of the fields that a command gets.
fn fields(session: &mut SessionState, usage: &SessionUse<'_>) -> Vec<String> {
    let mut body = RawDocumentBuf::new();
    session.add_to(&mut body, usage, fresh).unwrap();
    body.iter().map(|element| element.unwrap().0.to_string()).collect()
}

#[test]
fn options_that_contradict_each_other_are_refused() {
    let refused = |options| SessionState::new(options, &TransactionOptions::default()).unwrap_err();
    let causal =
        SessionOptions { snapshot: true, causal_consistency: Some(true), ..Default::default() };
    assert_eq!(refused(causal), SnapshotError::Causal);
    let alone = SessionOptions { snapshot_time: Some(NOON), ..Default::default() };
    assert_eq!(refused(alone), SnapshotError::TimeAlone);
}

#[test]
fn only_causal_sessions_wait_for_their_own_past() {
    for (causal_consistency, expected) in [(None, Some(NOON)), (Some(false), None)] {
        let mut session = session(SessionOptions { causal_consistency, ..Default::default() });
        session.learn(&rawdoc! { "operationTime": NOON });
        session.advance_operation_time(Timestamp { time: 4, increment: 9 });
        assert_eq!(session.after_cluster_time(), expected);
        let waits = fields(&mut session, &usage(Role::Statement)).contains(&"readConcern".into());
        assert_eq!(waits, expected.is_some());
    }
}

#[test]
fn a_command_keeps_the_session_and_the_read_concern_that_it_brings() {
    let mut session = session(SessionOptions::default());
    session.learn(&rawdoc! { "operationTime": NOON });
    let own = rawdoc! { "ping": 1, "lsid": { "id": 1 }, "readConcern": { "level": "local" } };
    let mut body = own.clone();
    session.add_to(&mut body, &usage(Role::Statement), fresh).unwrap();
    assert_eq!(body, own);
}

#[test]
fn statements_of_a_transaction_carry_its_fields_and_its_ending_does_not() {
    let mut session = session(SessionOptions::default());
    session.start_transaction(TransactionOptions::default()).unwrap();
    let statement = usage(Role::Statement);
    let first = ["lsid", "txnNumber", "startTransaction", "autocommit"];
    assert_eq!(fields(&mut session, &statement), first);
    assert_eq!(fields(&mut session, &statement), ["lsid", "txnNumber", "autocommit"]);
    session.transaction.commit().unwrap();
    assert_eq!(fields(&mut session, &usage(Role::Ending)), ["lsid"]);
}

#[test]
fn transactions_need_sessions_and_servers_that_are_reached_themselves() {
    let mut session = session(SessionOptions::default());
    session.start_transaction(TransactionOptions::default()).unwrap();
    let mut refused = |usage: SessionUse<'_>| {
        session.add_to(&mut RawDocumentBuf::new(), &usage, fresh).unwrap_err()
    };
    let usage = usage(Role::Statement);
    assert_eq!(
        refused(SessionUse { load_balanced: true, ..usage }),
        TransactionError::LoadBalanced.into()
    );
    assert_eq!(
        refused(SessionUse { lifetime: None, ..usage }),
        TransactionError::NoSessions.into()
    );
}

#[test]
fn a_snapshot_is_read_by_every_command_but_those_of_its_cursors() {
    let mut session = session(SessionOptions { snapshot: true, ..Default::default() });
    let statement = usage(Role::Statement);
    assert_eq!(fields(&mut session, &statement), ["lsid", "readConcern"]);
    let on = SessionUse { continues_cursor: true, ..statement };
    assert_eq!(fields(&mut session, &on), ["lsid"]);
    let old = SessionUse { max_wire_version: 12, ..statement };
    let refused = session.add_to(&mut RawDocumentBuf::new(), &old, fresh);
    assert_eq!(refused, Err(SnapshotError::OldServer.into()));
    let transaction = session.start_transaction(TransactionOptions::default());
    assert_eq!(transaction, Err(TransactionError::Snapshot));
}

#[test]
fn errors_get_the_label_of_their_place_in_the_transaction() {
    let network = Said { network: true, ..Said::default() };
    let mut session = session(SessionOptions::default());
    assert_eq!(session.labelled(Role::Statement, network).added, None);
    session.start_transaction(TransactionOptions::default()).unwrap();
    let router: ServerAddress = "a:1".parse().unwrap();
    fields(&mut session, &SessionUse { router: Some(&router), ..usage(Role::Statement) });
    assert_eq!(session.transaction.pinned(), Some(&router));
    let label = session.labelled(Role::Statement, network).added;
    assert_eq!(label, Some(TRANSIENT_TRANSACTION_ERROR));
    assert_eq!(session.transaction.pinned(), None, "another router may go on");
    session.transaction.commit().unwrap();
    let label = session.labelled(Role::Ending, network).added;
    assert_eq!(label, Some(UNKNOWN_TRANSACTION_COMMIT_RESULT));
}

#[test]
fn idle_sessions_are_reused_last_in_first_out_while_servers_know_them() {
    let at = |seconds: u64| MonotonicTime::from_millis(seconds * 1000);
    let of = |number: u8| ServerSession::new([number; 16], at(0));
    let mut idle = IdleSessions::new(2);
    let mut dirty = of(9);
    dirty.mark_dirty();
    idle.put(dirty);
    for number in 1..=3 {
        idle.put(of(number));
    }
    assert_eq!(idle.take(at(1), LIFETIME).unwrap().lsid(), of(2).lsid());
    assert!(idle.take(at(29 * 60), LIFETIME).is_none());
    assert!(idle.drain().is_empty());
}
