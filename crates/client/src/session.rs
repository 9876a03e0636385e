//! Logical sessions: what makes retried writes safe, reads follow one's own writes, and several
//! operations one transaction.
//!
//! Follows the Driver Sessions specification: server sessions are pooled last in, first out, and
//! dropped when the server is about to forget them or when the network failed under them. Causal
//! consistency and snapshot reads follow their own specifications. What a transaction's commands
//! carry is decided by `quorate-client-session`; committing and aborting are in `transaction`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bson::Timestamp;
use bson::raw::{RawDocument, RawDocumentBuf, cstr};
use quorate_client_session::{
    ServerSession, Snapshot, SnapshotError, Transaction, TransactionOptions,
};
use quorate_protocol::MonotonicTime;

use crate::client::Client;
use crate::error::{Error, ErrorKind};
use crate::operation::Deadline;

/// How many server sessions are kept for later.
const MAX_POOLED_SESSIONS: usize = 10_000;

fn new_server_session(now: MonotonicTime) -> Option<ServerSession> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).ok()?;
    Some(ServerSession::new(random, now))
}

/// The idle server sessions of one client.
#[derive(Debug, Default)]
pub(crate) struct SessionPool {
    idle: Mutex<Vec<ServerSession>>,
}

impl SessionPool {
    fn lock(&self) -> MutexGuard<'_, Vec<ServerSession>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, now: MonotonicTime, lifetime: Duration) -> Option<ServerSession> {
        let mut idle = self.lock();
        while let Some(session) = idle.pop() {
            if !session.is_expiring(now, lifetime) {
                return Some(session);
            }
        }
        drop(idle);
        new_server_session(now)
    }

    pub(crate) fn put(&self, session: ServerSession) {
        let mut idle = self.lock();
        if !session.is_dirty() && idle.len() < MAX_POOLED_SESSIONS {
            idle.push(session);
        }
    }

    /// The ids of all idle sessions, for `endSessions`. They are not used again.
    pub(crate) fn drain(&self) -> Vec<RawDocumentBuf> {
        self.lock().drain(..).map(|session| session.lsid().to_owned()).collect()
    }
}

/// How a session behaves.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SessionOptions {
    /// `causalConsistency`: whether reads follow the session's earlier operations. They do unless
    /// this or `snapshot` says otherwise.
    pub causal_consistency: Option<bool>,
    /// `snapshot`: whether all reads of the session see one moment.
    pub snapshot: bool,
    /// `snapshotTime`: the moment; the first read chooses it if this is `None`.
    pub snapshot_time: Option<Timestamp>,
    /// `defaultTransactionOptions`.
    pub default_transaction_options: TransactionOptions,
    /// `defaultTimeoutMS`: the `timeoutMS` of commits, aborts and `with_transaction`; the client's if
    /// this is `None`.
    pub default_timeout: Option<Duration>,
}

/// A session of the application's, or the one that an operation makes for itself.
///
/// Dropped with an open transaction, it aborts it in the background; [`end`](Self::end) does so and
/// waits.
#[derive(Debug)]
pub struct Session {
    pub(crate) state: Arc<Mutex<State>>,
}

#[derive(Debug)]
pub(crate) struct State {
    pool: Arc<SessionPool>,
    /// `None` in the session that an operation makes for itself.
    client: Option<Client>,
    /// Made when it is first used: only then is it known what the server supports.
    server: Option<ServerSession>,
    causal: bool,
    operation_time: Option<Timestamp>,
    pub(crate) snapshot: Option<Snapshot>,
    pub(crate) transaction: Transaction,
    pub(crate) transaction_defaults: TransactionOptions,
    pub(crate) default_timeout: Option<Duration>,
    /// When the call of `with_transaction` under way must be over.
    pub(crate) deadline: Option<Deadline>,
    /// How long that call may take.
    pub(crate) limit: Option<Duration>,
}

impl Session {
    /// The session that an operation makes for itself.
    pub(crate) fn implicit(pool: Arc<SessionPool>) -> Self {
        let state = State {
            pool,
            client: None,
            server: None,
            causal: false,
            operation_time: None,
            snapshot: None,
            transaction: Transaction::default(),
            transaction_defaults: TransactionOptions::default(),
            default_timeout: None,
            deadline: None,
            limit: None,
        };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// A session of the application's.
    pub(crate) fn explicit(client: Client, options: SessionOptions) -> Result<Self, Error> {
        let refused = |error: SnapshotError| Error::new(ErrorKind::BadCommand(error.to_string()));
        if options.snapshot && options.causal_consistency == Some(true) {
            return Err(refused(SnapshotError::Causal));
        }
        if options.snapshot_time.is_some() && !options.snapshot {
            return Err(refused(SnapshotError::TimeAlone));
        }
        let inherited = {
            let own = &client.inner().options;
            TransactionOptions {
                read_concern: own.read_concern.clone(),
                write_concern: Some(own.write_concern.clone()),
                read_preference: Some(own.read_preference.clone()),
                max_commit_time: None,
            }
        };
        let session = Self::implicit(Arc::clone(&client.inner().sessions));
        {
            let mut state = session.lock();
            state.causal = options.causal_consistency.unwrap_or(!options.snapshot);
            state.snapshot = options.snapshot.then(|| Snapshot::new(options.snapshot_time));
            state.transaction_defaults = options.default_transaction_options.or(&inherited);
            state.default_timeout = options.default_timeout.or(client.inner().options.timeout);
            state.client = Some(client);
        }
        Ok(session)
    }

    /// The same session for a cursor, which goes on in it after the call that opened it.
    pub(crate) fn share(&self) -> Self {
        Self { state: Arc::clone(&self.state) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The client that the session was started on.
    ///
    /// # Panics
    ///
    /// Never for a session of the application's.
    pub fn client(&self) -> Client {
        self.lock().client.clone().expect("a session of the application's has its client")
    }

    /// Whether the session was started on the client with this pool, or is an operation's own.
    pub(crate) fn belongs_to(&self, pool: &Arc<SessionPool>) -> bool {
        Arc::ptr_eq(&self.lock().pool, pool)
    }

    /// The session's id as commands carry it (`lsid`); `None` before its first use.
    pub fn id(&self) -> Option<RawDocumentBuf> {
        self.lock().server.as_ref().map(|server| server.lsid().to_owned())
    }

    /// When the latest operation of this session happened, by the deployment's clock.
    pub fn operation_time(&self) -> Option<Timestamp> {
        self.lock().operation_time
    }

    /// The moment that all reads of a snapshot session see; `None` before the first read, and in
    /// other sessions.
    pub fn snapshot_time(&self) -> Option<Timestamp> {
        self.lock().snapshot.as_ref().and_then(Snapshot::time)
    }

    /// Lets this session see what another one has seen.
    pub fn advance_operation_time(&self, time: Timestamp) {
        let mut state = self.lock();
        if state.operation_time.is_none_or(|own| own < time) {
            state.operation_time = Some(time);
        }
    }

    /// Whether the network failed under the session, so that its server session is not used again.
    pub fn is_dirty(&self) -> bool {
        self.lock().server.as_ref().is_some_and(ServerSession::is_dirty)
    }

    /// `afterClusterTime` of the next read, if reads follow earlier operations.
    pub(crate) fn after_cluster_time(&self) -> Option<Timestamp> {
        self.lock().after_cluster_time()
    }

    /// Adds `lsid` to a command that is sent now; whether there is one. `lifetime` is the
    /// deployment's `logicalSessionTimeoutMinutes`.
    pub(crate) fn add_lsid(
        &self,
        now: MonotonicTime,
        lifetime: Duration,
        body: &mut RawDocumentBuf,
    ) -> bool {
        let mut state = self.lock();
        if state.server.is_none() {
            state.server = state.pool.take(now, lifetime);
        }
        let Some(server) = &mut state.server else { return false };
        server.used(now);
        body.append(cstr!("lsid"), server.lsid());
        true
    }

    /// A fresh number for a write that may be sent twice.
    pub(crate) fn next_transaction_number(&self) -> Option<i64> {
        self.lock().server.as_mut().map(ServerSession::next_transaction_number)
    }

    /// Adds what the transaction's next command carries. `Some` says whether it is the first; `None`
    /// that no transaction is open.
    pub(crate) fn add_statement(&self, body: &mut RawDocumentBuf) -> Option<bool> {
        let mut state = self.lock();
        let after = state.after_cluster_time();
        let State { transaction, server, .. } = &mut *state;
        let number = || server.as_mut().map(ServerSession::next_transaction_number);
        let statement = transaction.statement(after, number)?;
        statement.append_to(body);
        Some(statement.first)
    }

    /// Learns from a reply.
    pub(crate) fn learn(&self, reply: &RawDocument) {
        let mut state = self.lock();
        if let Ok(time) = reply.get_timestamp("operationTime")
            && state.operation_time.is_none_or(|own| own < time)
        {
            state.operation_time = Some(time);
        }
        if let Some(snapshot) = &mut state.snapshot {
            snapshot.learn(reply);
        }
        if state.client.is_some() {
            state.transaction.learn(reply);
        }
    }

    pub(crate) fn mark_dirty(&self) {
        if let Some(server) = &mut self.lock().server {
            server.mark_dirty();
        }
    }
}

impl State {
    fn after_cluster_time(&self) -> Option<Timestamp> {
        self.operation_time.filter(|_| self.causal)
    }
}

impl Drop for State {
    fn drop(&mut self) {
        let Some(server) = self.server.take() else { return };
        match (&self.client, self.transaction.is_open()) {
            (Some(client), true) => {
                let transaction = std::mem::take(&mut self.transaction);
                crate::transaction::abort_later(client, transaction, server, &self.pool);
            }
            _ => self.pool.put(server),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFETIME: Duration = Duration::from_secs(30 * 60);

    /// The id that a command sent now carries.
    fn used(session: &Session, now: MonotonicTime) -> RawDocumentBuf {
        assert!(session.add_lsid(now, LIFETIME, &mut RawDocumentBuf::new()));
        session.id().unwrap()
    }

    fn at(seconds: u64) -> MonotonicTime {
        MonotonicTime::from_millis(seconds * 1000)
    }

    #[test]
    fn server_sessions_are_reused_last_in_first_out() {
        let pool = Arc::new(SessionPool::default());
        let first = Session::implicit(Arc::clone(&pool));
        let second = Session::implicit(Arc::clone(&pool));
        let one = used(&first, at(0));
        let two = used(&second, at(0));
        assert_ne!(one, two);
        drop(first);
        drop(second);
        let third = Session::implicit(Arc::clone(&pool));
        assert_eq!(used(&third, at(1)), two);
    }

    #[test]
    fn old_and_dirty_sessions_are_not_reused() {
        let pool = Arc::new(SessionPool::default());
        let session = Session::implicit(Arc::clone(&pool));
        let old = used(&session, at(0));
        drop(session);
        let session = Session::implicit(Arc::clone(&pool));
        assert_ne!(used(&session, at(29 * 60)), old);
        session.mark_dirty();
        drop(session);
        assert!(pool.drain().is_empty());
    }

    #[test]
    fn transaction_numbers_rise_within_a_server_session() {
        let pool = Arc::new(SessionPool::default());
        let session = Session::implicit(Arc::clone(&pool));
        assert_eq!(session.next_transaction_number(), None);
        used(&session, at(0));
        assert_eq!(session.next_transaction_number(), Some(1));
        drop(session);
        let session = Session::implicit(pool);
        used(&session, at(0));
        assert_eq!(session.next_transaction_number(), Some(2));
    }

    #[test]
    fn only_causal_sessions_wait_for_their_own_past() {
        let time = Timestamp { time: 5, increment: 1 };
        for (causal, expected) in [(true, Some(time)), (false, None)] {
            let session = Session::implicit(Arc::default());
            session.lock().causal = causal;
            session.advance_operation_time(time);
            session.advance_operation_time(Timestamp { time: 4, increment: 9 });
            assert_eq!(session.after_cluster_time(), expected);
        }
    }
}
