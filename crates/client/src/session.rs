//! Logical sessions: what makes retried writes safe and reads follow one's own writes.
//!
//! Follows the Driver Sessions specification: server sessions are pooled last in, first out, and
//! dropped when the server is about to forget them or when the network failed under them. Causal
//! consistency follows its own specification. Transactions are left for later.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bson::raw::RawDocumentBuf;
use bson::spec::BinarySubtype;
use bson::{Binary, Timestamp, rawdoc};
use quorate_protocol::MonotonicTime;

/// How many server sessions are kept for later.
const MAX_POOLED_SESSIONS: usize = 10_000;

/// A session this close to its end is not used again.
const EXPIRY_MARGIN: Duration = Duration::from_secs(60);

/// A session as the server knows it.
#[derive(Debug)]
pub(crate) struct ServerSession {
    id: [u8; 16],
    last_use: MonotonicTime,
    transaction_number: i64,
    /// The network failed while it was in use: the server may still be busy with it.
    dirty: bool,
}

impl ServerSession {
    fn new(now: MonotonicTime) -> Option<Self> {
        let mut id = [0; 16];
        getrandom::fill(&mut id).ok()?;
        // Version 4, variant 1: a random UUID.
        id[6] = id[6] & 0x0f | 0x40;
        id[8] = id[8] & 0x3f | 0x80;
        Some(Self { id, last_use: now, transaction_number: 0, dirty: false })
    }

    fn is_expiring(&self, now: MonotonicTime, lifetime: Duration) -> bool {
        now.since(self.last_use) + EXPIRY_MARGIN >= lifetime
    }

    fn lsid(&self) -> RawDocumentBuf {
        let bytes = self.id.to_vec();
        rawdoc! { "id": Binary { subtype: BinarySubtype::Uuid, bytes } }
    }
}

/// The server sessions of one client that nobody uses.
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
        ServerSession::new(now)
    }

    fn put(&self, session: ServerSession) {
        let mut idle = self.lock();
        if !session.dirty && idle.len() < MAX_POOLED_SESSIONS {
            idle.push(session);
        }
    }

    /// The ids of all idle sessions, for `endSessions`. They are not used again.
    pub(crate) fn drain(&self) -> Vec<RawDocumentBuf> {
        self.lock().drain(..).map(|session| session.lsid()).collect()
    }
}

/// How a session behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionOptions {
    /// `causalConsistency`: whether reads follow the session's earlier operations.
    pub causal_consistency: bool,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self { causal_consistency: true }
    }
}

/// A session of the application's, or the one that an operation makes for itself.
#[derive(Debug)]
pub struct Session {
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    pool: Arc<SessionPool>,
    /// Made when it is first used: only then is it known what the server supports.
    server: Option<ServerSession>,
    causal: bool,
    operation_time: Option<Timestamp>,
}

impl Session {
    pub(crate) fn new(pool: Arc<SessionPool>, causal: bool) -> Self {
        let state = State { pool, server: None, causal, operation_time: None };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// The same session for a cursor, which goes on in it after the call that opened it.
    pub(crate) fn share(&self) -> Self {
        Self { state: Arc::clone(&self.state) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session's id as commands carry it (`lsid`); `None` before its first use.
    pub fn id(&self) -> Option<RawDocumentBuf> {
        self.lock().server.as_ref().map(ServerSession::lsid)
    }

    /// When the latest operation of this session happened, by the deployment's clock.
    pub fn operation_time(&self) -> Option<Timestamp> {
        self.lock().operation_time
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
        self.lock().server.as_ref().is_some_and(|server| server.dirty)
    }

    /// `afterClusterTime` of the next read, if reads follow earlier operations.
    pub(crate) fn after_cluster_time(&self) -> Option<Timestamp> {
        let state = self.lock();
        state.operation_time.filter(|_| state.causal)
    }

    /// `lsid` for a command that is sent now. `lifetime` is the deployment's
    /// `logicalSessionTimeoutMinutes`.
    pub(crate) fn lsid(&self, now: MonotonicTime, lifetime: Duration) -> Option<RawDocumentBuf> {
        let mut state = self.lock();
        if state.server.is_none() {
            state.server = state.pool.take(now, lifetime);
        }
        let server = state.server.as_mut()?;
        server.last_use = now;
        Some(server.lsid())
    }

    /// A fresh number for a write that may be sent twice.
    pub(crate) fn next_transaction_number(&self) -> Option<i64> {
        let mut state = self.lock();
        let server = state.server.as_mut()?;
        server.transaction_number += 1;
        Some(server.transaction_number)
    }

    pub(crate) fn mark_dirty(&self) {
        if let Some(server) = &mut self.lock().server {
            server.dirty = true;
        }
    }
}

impl Drop for State {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            self.pool.put(server);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFETIME: Duration = Duration::from_secs(30 * 60);

    fn at(seconds: u64) -> MonotonicTime {
        MonotonicTime::from_millis(seconds * 1000)
    }

    #[test]
    fn server_sessions_are_reused_last_in_first_out() {
        let pool = Arc::new(SessionPool::default());
        let first = Session::new(Arc::clone(&pool), false);
        let second = Session::new(Arc::clone(&pool), false);
        let one = first.lsid(at(0), LIFETIME).unwrap();
        let two = second.lsid(at(0), LIFETIME).unwrap();
        assert_ne!(one, two);
        drop(first);
        drop(second);
        let third = Session::new(Arc::clone(&pool), false);
        assert_eq!(third.lsid(at(1), LIFETIME), Some(two));
    }

    #[test]
    fn old_and_dirty_sessions_are_not_reused() {
        let pool = Arc::new(SessionPool::default());
        let session = Session::new(Arc::clone(&pool), false);
        let old = session.lsid(at(0), LIFETIME).unwrap();
        drop(session);
        let session = Session::new(Arc::clone(&pool), false);
        assert_ne!(session.lsid(at(29 * 60), LIFETIME), Some(old));
        session.mark_dirty();
        drop(session);
        assert!(pool.drain().is_empty());
    }

    #[test]
    fn transaction_numbers_rise_within_a_server_session() {
        let pool = Arc::new(SessionPool::default());
        let session = Session::new(Arc::clone(&pool), false);
        assert_eq!(session.next_transaction_number(), None);
        session.lsid(at(0), LIFETIME);
        assert_eq!(session.next_transaction_number(), Some(1));
        drop(session);
        let session = Session::new(pool, false);
        session.lsid(at(0), LIFETIME);
        assert_eq!(session.next_transaction_number(), Some(2));
    }

    #[test]
    fn only_causal_sessions_wait_for_their_own_past() {
        let time = Timestamp { time: 5, increment: 1 };
        for (causal, expected) in [(true, Some(time)), (false, None)] {
            let session = Session::new(Arc::default(), causal);
            session.advance_operation_time(time);
            session.advance_operation_time(Timestamp { time: 4, increment: 9 });
            assert_eq!(session.after_cluster_time(), expected);
        }
    }
}
