//! The session that one operation runs in.
//!
//! Most operations are given none and make their own, which lives as long as they do: it takes a server
//! session when its command is composed, and gives it back when the operation ends. It takes no lock
//! and no memory. What either kind adds to commands is decided by `quorate-client-session`.

use bson::raw::{RawDocument, RawDocumentBuf};
use quorate_client_session::{
    Next, OperationLoop, Role, SelectedServer, ServerSession, SessionUse,
};
use quorate_protocol::{MonotonicTime, ServerAddress};
use quorate_wire::CommandFields;

use super::{Session, SessionPool};
use crate::error::Error;

/// The session that one operation runs in.
pub(crate) enum SessionInUse<'a> {
    /// The application's, or that of a cursor.
    Given(&'a Session),
    /// The operation's own.
    Own(OwnSession<'a>),
}

/// A session that an operation makes for itself.
pub(crate) struct OwnSession<'a> {
    pool: &'a SessionPool,
    server: Option<ServerSession>,
}

impl Drop for OwnSession<'_> {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            self.pool.put(server);
        }
    }
}

impl<'a> SessionInUse<'a> {
    pub(crate) fn new(given: Option<&'a Session>, pool: &'a SessionPool) -> Self {
        match given {
            Some(session) => Self::Given(session),
            None => Self::Own(OwnSession { pool, server: None }),
        }
    }

    /// The router that the session's transaction runs on.
    pub(crate) fn pinned(&self, role: Role) -> Option<ServerAddress> {
        match (self, role) {
            (Self::Own(_), _) | (_, Role::Beside) => None,
            (Self::Given(session), Role::Statement | Role::Ending) => {
                session.lock().transaction.pinned().cloned()
            }
        }
    }

    /// The commit or abort of the session's transaction.
    pub(crate) fn ending(&self, limited: bool) -> RawDocumentBuf {
        match self {
            Self::Given(session) => session.lock().transaction.ending(limited),
            Self::Own(_) => unreachable!("a session that an operation makes has no transaction"),
        }
    }

    /// A server was selected for the next attempt.
    pub(crate) fn selected(
        &self,
        attempts: &mut OperationLoop<Error>,
        server: SelectedServer,
    ) -> Next<Error> {
        match self {
            Self::Given(session) => attempts.selected(server, Some(&session.lock())),
            Self::Own(_) => attempts.selected(server, None),
        }
    }

    /// Adds to the command of this attempt what the session asks for.
    pub(crate) fn add_to(
        &mut self,
        attempts: &mut OperationLoop<Error>,
        body: &mut impl CommandFields,
        usage: &SessionUse<'_>,
        pool: &SessionPool,
    ) -> Result<(), Error> {
        let take = |lifetime| pool.take(usage.now, lifetime);
        match self {
            Self::Given(session) => {
                Ok(attempts.add_session(body, &mut session.lock(), usage, take)?)
            }
            Self::Own(own) => {
                attempts.add_own_session(body, &mut own.server, usage, take);
                Ok(())
            }
        }
    }

    /// The attempt at this server failed.
    pub(crate) fn failed(
        &mut self,
        attempts: &mut OperationLoop<Error>,
        server: &ServerAddress,
        error: Error,
        now: MonotonicTime,
        chance: f64,
    ) -> Next<Error> {
        match self {
            Self::Given(session) => {
                attempts.failed(server, error, now, chance, Some(&mut session.lock()))
            }
            Self::Own(own) => {
                attempts.failed_in_own_session(server, error, now, chance, &mut own.server)
            }
        }
    }

    /// An exchange begins. If it is given up, by a time limit or by the caller, the server may still be
    /// busy with the command, and its session is not used again.
    pub(crate) fn begin_exchange(&mut self) -> Exchanging<'_, 'a> {
        Exchanging(Some(self))
    }

    fn mark_dirty(&mut self) {
        match self {
            Self::Given(session) => session.lock().mark_dirty(),
            Self::Own(own) => {
                if let Some(server) = &mut own.server {
                    server.mark_dirty();
                }
            }
        }
    }

    /// Learns from a reply. A session of the operation's own ends with it.
    pub(crate) fn learn(&self, reply: &RawDocument) {
        if let Self::Given(session) = self {
            session.lock().learn(reply);
        }
    }

    /// The operation's error with the labels that a client finds by itself: all of them are of
    /// transactions.
    pub(crate) fn labelled(&self, role: Role, error: Error) -> Error {
        match self {
            Self::Given(session) => session.lock().labelled(role, error),
            Self::Own(_) => error,
        }
    }
}

/// Marks the session as dirty when it is dropped before the exchange has ended.
#[must_use = "dropped, it marks the session as dirty"]
pub(crate) struct Exchanging<'s, 'a>(Option<&'s mut SessionInUse<'a>>);

impl Exchanging<'_, '_> {
    /// There is a reply, or an error that says what became of the command.
    pub(crate) fn ended(mut self) {
        self.0 = None;
    }
}

impl Drop for Exchanging<'_, '_> {
    fn drop(&mut self) {
        if let Some(session) = self.0.take() {
            session.mark_dirty();
        }
    }
}
