//! Logical sessions: what makes retried writes safe, reads follow one's own writes, and several
//! operations one transaction.
//!
//! Follows the Driver Sessions specification: server sessions are pooled last in, first out, and
//! dropped when the server is about to forget them or when the network failed under them. Causal
//! consistency and snapshot reads follow their own specifications. What a session's commands carry is
//! decided by `quorate-client-session`; committing and aborting are in `transaction`.

mod in_use;

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use bson::Timestamp;
use bson::raw::RawDocumentBuf;
use quorate_client_session::{
    IdleSessions, ServerSession, SessionOptions, SessionState, TransactionOptions,
};
use quorate_protocol::{Lock, MonotonicTime};

use crate::client::Client;
use crate::error::Error;
use crate::operation::Deadline;

pub(crate) use in_use::SessionInUse;

/// How many server sessions are kept for later.
const MAX_POOLED_SESSIONS: usize = 10_000;

fn new_server_session(now: MonotonicTime) -> Option<ServerSession> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).ok()?;
    Some(ServerSession::new(random, now))
}

/// The idle server sessions of one client.
#[derive(Debug)]
pub(crate) struct SessionPool {
    idle: Lock<IdleSessions>,
}

impl Default for SessionPool {
    fn default() -> Self {
        Self { idle: Lock::new(IdleSessions::new(MAX_POOLED_SESSIONS)) }
    }
}

impl SessionPool {
    pub(crate) fn take(&self, now: MonotonicTime, lifetime: Duration) -> Option<ServerSession> {
        let idle = self.idle.lock().take(now, lifetime);
        idle.or_else(|| new_server_session(now))
    }

    pub(crate) fn put(&self, session: ServerSession) {
        self.idle.lock().put(session);
    }

    /// The ids of all idle sessions, for `endSessions`. They are not used again.
    pub(crate) fn drain(&self) -> Vec<RawDocumentBuf> {
        self.idle.lock().drain()
    }
}

/// A session of the application's, or the one that a cursor makes for itself.
///
/// Dropped with an open transaction, it aborts it in the background; [`end`](Self::end) does so and
/// waits.
#[derive(Debug)]
pub struct Session {
    pub(crate) state: Arc<Lock<State>>,
}

#[derive(Debug)]
pub(crate) struct State {
    pool: Arc<SessionPool>,
    /// `None` in the session that a cursor makes for itself.
    client: Option<Client>,
    shared: SessionState,
    pub(crate) default_timeout: Option<Duration>,
    /// When the call of `with_transaction` under way must be over.
    pub(crate) deadline: Option<Deadline>,
    /// How long that call may take.
    pub(crate) limit: Option<Duration>,
}

impl Session {
    /// The session that a cursor makes for itself.
    pub(crate) fn implicit(pool: Arc<SessionPool>) -> Self {
        let state = State {
            pool,
            client: None,
            shared: SessionState::default(),
            default_timeout: None,
            deadline: None,
            limit: None,
        };
        Self { state: Arc::new(Lock::new(state)) }
    }

    /// A session of the application's.
    pub(crate) fn explicit(client: Client, options: SessionOptions) -> Result<Self, Error> {
        let inherited = {
            let own = &client.inner().options;
            TransactionOptions {
                read_concern: own.read_concern.clone(),
                write_concern: Some(own.write_concern.clone()),
                read_preference: Some(own.read_preference.clone()),
                max_commit_time: None,
            }
        };
        let default_timeout = options.default_timeout.or(client.inner().options.timeout);
        let shared = SessionState::new(options, &inherited)
            .map_err(|error| Error::bad_command(error.to_string()))?;
        let session = Self::implicit(Arc::clone(&client.inner().sessions));
        {
            let mut state = session.lock();
            state.shared = shared;
            state.default_timeout = default_timeout;
            state.client = Some(client);
        }
        Ok(session)
    }

    /// The same session for a cursor, which goes on in it after the call that opened it.
    pub(crate) fn share(&self) -> Self {
        Self { state: Arc::clone(&self.state) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// The client that the session was started on.
    ///
    /// # Panics
    ///
    /// Never for a session of the application's.
    pub fn client(&self) -> Client {
        self.lock().client.clone().expect("a session of the application's has its client")
    }

    /// Whether the session was started on the client with this pool, or is a cursor's own.
    pub(crate) fn belongs_to(&self, pool: &Arc<SessionPool>) -> bool {
        Arc::ptr_eq(&self.lock().pool, pool)
    }

    /// The session's id as commands carry it (`lsid`); `None` before its first use.
    pub fn id(&self) -> Option<RawDocumentBuf> {
        self.lock().id().map(ToOwned::to_owned)
    }

    /// When the latest operation of this session happened, by the deployment's clock.
    pub fn operation_time(&self) -> Option<Timestamp> {
        self.lock().operation_time()
    }

    /// The moment that all reads of a snapshot session see; `None` before the first read, and in
    /// other sessions.
    pub fn snapshot_time(&self) -> Option<Timestamp> {
        self.lock().snapshot_time()
    }

    /// Lets this session see what another one has seen.
    pub fn advance_operation_time(&self, time: Timestamp) {
        self.lock().advance_operation_time(time);
    }

    /// Whether the network failed under the session, so that its server session is not used again.
    pub fn is_dirty(&self) -> bool {
        self.lock().is_dirty()
    }
}

impl Deref for State {
    type Target = SessionState;

    fn deref(&self) -> &SessionState {
        &self.shared
    }
}

impl DerefMut for State {
    fn deref_mut(&mut self) -> &mut SessionState {
        &mut self.shared
    }
}

impl Drop for State {
    fn drop(&mut self) {
        let Self { pool, client, shared, .. } = self;
        let Some(server) = shared.take_server_session() else { return };
        match (client, shared.transaction.is_open()) {
            (Some(client), true) => {
                let transaction = std::mem::take(&mut shared.transaction);
                crate::transaction::abort_later(client, transaction, server, pool);
            }
            _ => pool.put(server),
        }
    }
}

#[cfg(test)]
mod tests {
    use quorate_client_session::{Role, SessionUse};

    use super::*;

    const LIFETIME: Duration = Duration::from_secs(30 * 60);

    /// The id that a command sent now carries.
    fn used(session: &Session, now: MonotonicTime) -> RawDocumentBuf {
        let usage = SessionUse {
            role: Role::Beside,
            acknowledged: true,
            now,
            lifetime: Some(LIFETIME),
            load_balanced: false,
            router: None,
            max_wire_version: 21,
            read_concern: None,
            continues_cursor: false,
        };
        let mut state = session.lock();
        let State { pool, shared, .. } = &mut *state;
        let take = |lifetime| pool.take(now, lifetime);
        shared.add_to(&mut RawDocumentBuf::new(), &usage, take).unwrap();
        shared.id().unwrap().to_owned()
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
        session.lock().mark_dirty();
        drop(session);
        assert!(pool.drain().is_empty());
    }

    #[test]
    fn transaction_numbers_rise_within_a_server_session() {
        let pool = Arc::new(SessionPool::default());
        let session = Session::implicit(Arc::clone(&pool));
        assert_eq!(session.lock().next_transaction_number(), None);
        used(&session, at(0));
        assert_eq!(session.lock().next_transaction_number(), Some(1));
        drop(session);
        let session = Session::implicit(pool);
        used(&session, at(0));
        assert_eq!(session.lock().next_transaction_number(), Some(2));
    }
}
