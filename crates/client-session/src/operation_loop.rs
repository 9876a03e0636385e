//! One operation from its first attempt to its outcome.
//!
//! Follows the Retryable Reads and Retryable Writes specifications, which allow one retry unless
//! `timeoutMS` bounds the whole, and the Client Backpressure specification, which sends anything
//! again that an overloaded server turned away.
//!
//! ```text
//!            selected             failed, worth another attempt
//!   Select ───────────▶ Send ──────────────────────────────────▶ Select
//!     ▲  │               │ │
//!     │  │ not selected  │ │ failed, the server is overloaded
//!     │  ▼               │ ▼
//!     │ Fail ◀───────────┘ Wait ─┐
//!     └──────────────────────────┘ waited
//! ```
//!
//! The client selects, sends and waits; it reads the clock and draws the chance.

use std::time::Duration;

use bson::raw::cstr;
use quorate_protocol::{ErrorCode, MonotonicTime, ServerAddress};
use quorate_wire::{AppendSome, CommandFields};

use crate::ServerSession;
use crate::labels::{Failure, RETRYABLE_WRITE_ERROR};
use crate::session::{SessionError, SessionState, SessionUse, add_own};

/// The server had too much to do.
pub const SYSTEM_OVERLOADED_ERROR: &str = "SystemOverloadedError";

/// Nothing was done yet, so that anything may be sent again.
pub const RETRYABLE_ERROR: &str = "RetryableError";

/// The attempt that failed changed nothing.
pub const NO_WRITES_PERFORMED: &str = "NoWritesPerformed";

/// `maxAdaptiveRetries`, if the connection string does not say otherwise.
pub const DEFAULT_MAX_ADAPTIVE_RETRIES: u32 = 2;

/// How often an operation is sent again, unless `timeoutMS` says how long.
const MAX_RETRIES: u32 = 1;

/// How often an operation is sent again within `timeoutMS`. The specification has no bound; nothing
/// that fails this often will succeed.
const MAX_RETRIES_WITHIN_TIMEOUT: u32 = 100;

/// `BASE_BACKOFF` and `MAX_BACKOFF` of the client back-pressure specification.
const BASE_BACKOFF: Duration = Duration::from_millis(100);
const MAX_BACKOFF: Duration = Duration::from_secs(10);

/// The pause stops doubling after this many retries: by then it is above `MAX_BACKOFF`.
const LAST_DOUBLING: u32 = 16;

/// From this `maxWireVersion` on (MongoDB 4.4), servers label errors themselves.
const LABELLING_WIRE_VERSION: i32 = 9;

/// Whether an operation may be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// Never, except to an overloaded server that turned it away.
    Never,
    /// After an error that a failover may explain.
    Read,
    /// After an error that is labelled so, with the same `txnNumber`.
    Write,
}

/// What an operation is to the transaction of its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Part of it, if one is open.
    Statement,
    /// Its commit or abort.
    Ending,
    /// Neither: it tidies up.
    Beside,
}

/// What kind of command it is: `retryReads` and `retryWrites` decide whether it is sent again to an
/// overloaded server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The command reads.
    Read,
    /// The command writes.
    Write,
    /// Not known: the application's own command.
    Any,
}

/// What an operation is, as far as retries depend on it.
#[derive(Clone, Copy, Debug)]
pub struct OperationKind {
    /// Whether it reads or writes.
    pub purpose: Purpose,
    /// Whether it may be sent again.
    pub retry: Retry,
    /// What it is to the session's transaction.
    pub role: Role,
    /// Whether a reply is wanted.
    pub acknowledged: bool,
}

/// What the client's options say about retries.
#[derive(Clone, Copy, Debug)]
pub struct RetryRules {
    /// `retryReads`.
    pub reads: bool,
    /// `retryWrites`.
    pub writes: bool,
    /// `maxAdaptiveRetries`.
    pub max_adaptive_retries: u32,
    /// `enableOverloadRetargeting`: whether a retry avoids the server that was overloaded.
    pub retarget_overloaded: bool,
}

/// The server that was selected for an attempt.
#[derive(Clone, Copy, Debug)]
pub struct SelectedServer {
    /// Its `maxWireVersion`.
    pub max_wire_version: i32,
    /// Whether it takes `txnNumber`: it is no standalone, and knows sessions.
    pub takes_retryable_writes: bool,
    /// Whether it is one of several routers, any of which can be asked.
    pub is_router: bool,
}

/// What the client does next.
#[derive(Debug, PartialEq, Eq)]
pub enum Next<E> {
    /// Select a server, then call [`selected`](OperationLoop::selected) or
    /// [`not_selected`](OperationLoop::not_selected).
    Select,
    /// Send the command to the selected server; call [`failed`](OperationLoop::failed) if that
    /// fails.
    Send,
    /// Wait, then go on with [`waited`](OperationLoop::waited).
    Wait(Duration),
    /// Tell the application.
    Fail(E),
}

/// An operation under way. See the module's drawing.
#[derive(Debug)]
pub struct OperationLoop<E> {
    kind: OperationKind,
    rules: RetryRules,
    deadline: Option<MonotonicTime>,
    /// How often it failed so far, and how often it may.
    failures: u32,
    allowed: u32,
    deprioritized: Vec<ServerAddress>,
    /// The error to tell if no further attempt succeeds.
    worst: Option<E>,
    /// Of the server of this attempt.
    max_wire_version: i32,
    is_router: bool,
    /// Whether this attempt may be followed by another.
    may_retry: bool,
    /// The `txnNumber` of all attempts.
    transaction_number: Option<i64>,
    /// Whether this attempt is the first command of a transaction.
    first: bool,
}

impl<E: Failure> OperationLoop<E> {
    /// An operation that begins with [`Next::Select`]. `deadline` is when `timeoutMS` is over.
    pub fn new(kind: OperationKind, rules: RetryRules, deadline: Option<MonotonicTime>) -> Self {
        let allowed = match deadline {
            None => MAX_RETRIES,
            Some(_) => MAX_RETRIES_WITHIN_TIMEOUT,
        };
        Self {
            kind,
            rules,
            deadline,
            failures: 0,
            allowed,
            deprioritized: Vec::new(),
            worst: None,
            max_wire_version: 0,
            is_router: false,
            may_retry: false,
            transaction_number: None,
            first: false,
        }
    }

    /// The servers that are selected only if there is no other: routers that failed, and servers that were
    /// overloaded.
    pub fn deprioritized(&self) -> &[ServerAddress] {
        &self.deprioritized
    }

    /// How often the command was sent again so far.
    pub fn retries(&self) -> u32 {
        self.failures
    }

    /// A server was selected. `session` is the one that the operation runs in, if any.
    pub fn selected(&mut self, server: SelectedServer, session: Option<&SessionState>) -> Next<E> {
        // Without its number, a write that may be done already could be done twice.
        if self.transaction_number.is_some()
            && !server.takes_retryable_writes
            && let Some(earlier) = self.worst.take()
        {
            return Next::Fail(earlier);
        }
        let in_transaction = session.is_some_and(|session| session.transaction.is_open());
        self.max_wire_version = server.max_wire_version;
        self.is_router = server.is_router;
        self.may_retry = match self.kind.retry {
            Retry::Never => false,
            // Commits and aborts are retried whatever `retryWrites` says.
            _ if self.kind.role == Role::Ending => true,
            // Nothing else in a transaction is, except for what an overloaded server turned away.
            _ if self.kind.role == Role::Statement && in_transaction => false,
            Retry::Read => self.rules.reads,
            Retry::Write => {
                self.rules.writes && self.kind.acknowledged && server.takes_retryable_writes
            }
        };
        Next::Send
    }

    /// No server was selected.
    pub fn not_selected(&mut self, error: E) -> Next<E> {
        // What went wrong first tells more than that nothing was found afterwards.
        Next::Fail(self.worst.take().unwrap_or(error))
    }

    /// Adds to the command of this attempt what its session asks for, `txnNumber` included, which
    /// stays the same in every attempt. `take` gives a server session to a session that has none.
    ///
    /// # Errors
    ///
    /// As [`SessionState::add_to`].
    pub fn add_session(
        &mut self,
        body: &mut impl CommandFields,
        session: &mut SessionState,
        usage: &SessionUse<'_>,
        take: impl FnOnce(Duration) -> Option<ServerSession>,
    ) -> Result<(), SessionError> {
        self.first = session.add_to(body, usage, take)?;
        self.number(body, || session.next_transaction_number());
        Ok(())
    }

    /// The same for an operation in a session of its own, of which `server` is the server's part.
    pub fn add_own_session(
        &mut self,
        body: &mut impl CommandFields,
        server: &mut Option<ServerSession>,
        usage: &SessionUse<'_>,
        take: impl FnOnce(Duration) -> Option<ServerSession>,
    ) {
        add_own(body, server, usage, take);
        self.number(body, || server.as_mut().map(ServerSession::next_transaction_number));
    }

    /// Adds `txnNumber` to a write that may be sent twice.
    fn number(&mut self, body: &mut impl CommandFields, next: impl FnOnce() -> Option<i64>) {
        if self.may_retry && self.kind.retry == Retry::Write && self.kind.role == Role::Statement {
            if self.transaction_number.is_none() {
                self.transaction_number = next();
            }
            body.append_some(cstr!("txnNumber"), self.transaction_number);
        }
    }

    /// [`failed`](Self::failed) for an operation in a session of its own.
    pub fn failed_in_own_session(
        &mut self,
        server: &ServerAddress,
        error: E,
        now: MonotonicTime,
        chance: f64,
        own: &mut Option<ServerSession>,
    ) -> Next<E> {
        if let Some(own) = own.as_mut().filter(|_| error.is_network()) {
            own.mark_dirty();
        }
        self.failed(server, error, now, chance, None)
    }

    /// The attempt at this server failed. `chance` is evenly spread over `[0, 1)`.
    pub fn failed(
        &mut self,
        server: &ServerAddress,
        mut error: E,
        now: MonotonicTime,
        chance: f64,
        mut session: Option<&mut SessionState>,
    ) -> Next<E> {
        if let Some(session) = session.as_deref_mut().filter(|_| error.is_network()) {
            session.mark_dirty();
        }
        if self.kind.retry == Retry::Write && self.may_retry {
            label_for_retryable_write(&mut error, self.max_wire_version);
        }
        let overload = error.has_label(SYSTEM_OVERLOADED_ERROR);
        let turned_away = overload && error.has_label(RETRYABLE_ERROR);
        if let Some(session) = session.as_deref_mut().filter(|_| self.kind.role == Role::Ending) {
            // The next attempt may go to another router, and a commit that the server may have
            // begun asks for a majority.
            if !turned_away {
                session.transaction.commit_failed();
            }
            session.transaction.unpin();
        }
        let worth_it = (turned_away && self.may_retry_overload())
            || (self.may_retry && admits(self.kind.retry, &error));
        if overload {
            self.allowed = self.rules.max_adaptive_retries;
        }
        self.failures += 1;
        let pause = overload.then(|| backoff(self.failures, error.base_backoff(), chance));
        // An attempt that did nothing says nothing about the one before, which may have.
        let did_nothing = error.is_unsent() || error.has_label(NO_WRITES_PERFORMED);
        let error = match self.worst.take() {
            Some(earlier) if did_nothing => earlier,
            _ => error,
        };
        let too_late = self.deadline.is_some_and(|end| pause.is_some_and(|p| now + p >= end));
        if !worth_it || self.failures > self.allowed || too_late {
            return Next::Fail(error);
        }
        // A member of a set is avoided only for its load, or `primaryPreferred` would read from a
        // secondary, and `secondaryPreferred` from the primary, after every network error.
        if self.is_router || (overload && self.rules.retarget_overloaded) {
            self.deprioritized.push(server.clone());
        }
        if let Some(session) = session.filter(|_| overload && self.first) {
            session.transaction.first_turned_away();
        }
        self.worst = Some(error);
        pause.map_or(Next::Select, Next::Wait)
    }

    /// The pause is over.
    pub fn waited(&self) -> Next<E> {
        Next::Select
    }

    /// Whether an operation that an overloaded server turned away may be sent again.
    fn may_retry_overload(&self) -> bool {
        match self.kind.purpose {
            _ if self.kind.role == Role::Ending => true,
            Purpose::Read => self.rules.reads,
            Purpose::Write => self.rules.writes,
            Purpose::Any => self.rules.reads && self.rules.writes,
        }
    }
}

/// Whether an error is worth another attempt.
fn admits(retry: Retry, error: &impl Failure) -> bool {
    match retry {
        Retry::Never => false,
        Retry::Read => is_retryable_read(error),
        Retry::Write => error.has_label(RETRYABLE_WRITE_ERROR),
    }
}

/// "Retryable Error" of the Retryable Reads specification.
pub fn is_retryable_read(error: &impl Failure) -> bool {
    error.is_network() || error.code().is_some_and(|code| ErrorCode(code).is_retryable_read())
}

/// Adds the label that a server of this version would add, or that only a client can add.
pub fn label_for_retryable_write(error: &mut impl Failure, max_wire_version: i32) {
    let by_code = max_wire_version < LABELLING_WIRE_VERSION
        && error.code().is_some_and(|code| ErrorCode(code).is_retryable_write());
    if error.is_network() || by_code {
        error.add_label(RETRYABLE_WRITE_ERROR);
    }
}

/// A random part of a time that doubles with every retry.
fn backoff(failures: u32, base: Option<Duration>, chance: f64) -> Duration {
    let full = base.unwrap_or(BASE_BACKOFF).saturating_mul(1 << failures.min(LAST_DOUBLING));
    full.min(MAX_BACKOFF).mul_f64(chance)
}

#[cfg(test)]
mod tests;
