//! Sessions and transactions.
//!
//! A [`Session`] is the application's; while it is lent to a client ([`Client::in_session`]), every
//! operation of that client runs in it. Follows the Driver Sessions, Causal Consistency, Snapshot
//! Reads, Transactions and Convenient API for Transactions specifications; the rules are in
//! `quorate-client-session`.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use bson::Timestamp;
use bson::raw::RawDocument;
use quorate_client_session::{
    Attempts, Ending, OutOfTime, Phase, Role, ServerSession, SessionOptions, SessionState,
    Transaction, TransactionOptions, retried_transaction,
};
use quorate_protocol::{MonotonicTime, ReadPreference};

use crate::client::Client;
use crate::error::OperationError;
use crate::operation::Operation;

/// How many idle server sessions are kept.
pub(crate) const MAX_IDLE_SESSIONS: usize = 100;

pub(crate) fn new_server_session(now: MonotonicTime) -> Option<ServerSession> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).ok()?;
    Some(ServerSession::new(random, now))
}

/// A session of the application's. Give it back with [`Client::end_session`]: dropped with an open
/// transaction, the server ends that transaction by its own time limit.
#[derive(Debug)]
pub struct Session {
    /// `None` while it is lent to a client.
    state: Option<Box<SessionState>>,
    default_timeout: Option<Duration>,
}

impl Session {
    fn state(&self) -> Option<&SessionState> {
        self.state.as_deref()
    }

    /// When its latest operation happened, by the deployment's clock.
    pub fn operation_time(&self) -> Option<Timestamp> {
        self.state()?.operation_time()
    }

    /// The moment that all reads of a snapshot session see, once it is known.
    pub fn snapshot_time(&self) -> Option<Timestamp> {
        self.state()?.snapshot_time()
    }
}

/// An error of the work inside [`InSession::with_transaction`]: this client's, or one that holds it.
pub trait TransactionFailure: From<OperationError> {
    /// The error of this client that it comes from. `None` is never tried again.
    fn client_error(&self) -> Option<&OperationError>;
}

impl TransactionFailure for OperationError {
    fn client_error(&self) -> Option<&OperationError> {
        Some(self)
    }
}

impl TransactionFailure for Box<dyn std::error::Error + Send + Sync> {
    fn client_error(&self) -> Option<&OperationError> {
        self.downcast_ref()
    }
}

/// A client whose operations all run in one session.
///
/// Everything that a [`Client`] can do is done in the session, until this value is dropped.
#[derive(Debug)]
pub struct InSession<'c> {
    client: &'c mut Client,
    session: &'c mut Session,
    /// The session that the client's operations ran in before, and run in again afterwards.
    outer: Option<Box<SessionState>>,
}

impl Client {
    /// A session. Nothing is sent.
    ///
    /// # Errors
    ///
    /// If the options contradict each other.
    pub fn start_session(&mut self, options: SessionOptions) -> Result<Session, OperationError> {
        let inherited = TransactionOptions {
            read_concern: self.options.read_concern_level.clone(),
            write_concern: Some(self.options.write_concern.clone()),
            read_preference: Some(self.options.read_preference.clone()),
            max_commit_time: None,
        };
        let default_timeout = options.default_timeout;
        let state = SessionState::new(options, &inherited)
            .map_err(|error| OperationError::Misuse(error.to_string()))?;
        Ok(Session { state: Some(Box::new(state)), default_timeout })
    }

    /// Lets all operations run in this session, as long as the returned value lives. If they run in another
    /// session now, they do so again afterwards.
    pub fn in_session<'c>(&'c mut self, session: &'c mut Session) -> InSession<'c> {
        let outer = std::mem::replace(&mut self.active, session.state.take());
        InSession { client: self, session, outer }
    }

    /// Aborts an open transaction, and keeps the server's part of the session for another one.
    pub fn end_session(&mut self, mut session: Session) {
        let mut lent = self.in_session(&mut session);
        if lent.in_transaction() {
            // Nothing but a wrong state is an error, and the state was checked.
            let _ = lent.abort_transaction();
        }
        drop(lent);
        if let Some(server) = session.state.and_then(|mut state| state.take_server_session()) {
            self.idle_sessions.put(server);
        }
    }

    /// Whether the operations of this client are part of a transaction now.
    pub fn in_transaction(&self) -> bool {
        self.active.as_ref().is_some_and(|session| session.transaction.is_open())
    }

    /// The read preference of reads that give none.
    pub(crate) fn default_read_preference(&self) -> Result<ReadPreference, OperationError> {
        match &self.active {
            Some(session) if session.transaction.is_open() => {
                session.transaction.check_read()?;
                Ok(ReadPreference::PRIMARY)
            }
            _ => Ok(self.options.read_preference.clone()),
        }
    }

    /// Whether a command of the application's own may be part of its transaction.
    pub(crate) fn check_own_command(
        &self,
        command: &RawDocument,
        preference: &ReadPreference,
    ) -> Result<(), OperationError> {
        match &self.active {
            Some(session) => Ok(session.check_statement(Some(preference), command)?),
            None => Ok(()),
        }
    }

    /// An operation begins. It leaves a transaction that has ended behind.
    pub(crate) fn begin_operation(&mut self, role: Role) {
        if let Some(session) = self.active.as_mut().filter(|_| role == Role::Statement) {
            session.transaction.begin_operation();
        }
    }

    /// Learns from a reply in a session.
    pub(crate) fn learn(&mut self, reply: &RawDocument) {
        let Some(session) = &mut self.active else { return };
        session.learn(reply);
        if let Ok(told) = reply.get_document("$clusterTime")
            && let Ok(time) = told.get_timestamp("clusterTime")
        {
            let own = self.cluster_time.as_ref();
            let own = own.and_then(|own| own.get_timestamp("clusterTime").ok());
            if own.is_none_or(|own| own < time) {
                self.cluster_time = Some(told.to_owned());
            }
        }
    }

    /// An error with the labels that this side finds.
    pub(crate) fn labelled(&mut self, role: Role, error: OperationError) -> OperationError {
        match &mut self.active {
            Some(session) => session.labelled(role, error),
            None => error,
        }
    }

    /// A number that is evenly spread over `[0, 1)`. Fifty-three bits fill the fraction of a double.
    pub(crate) fn chance(&mut self) -> f64 {
        (self.random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub(crate) fn session_lifetime(&self) -> Option<Duration> {
        let minutes = self.topology().logical_session_timeout_minutes()?;
        Some(Duration::from_secs(u64::try_from(minutes).ok()?.saturating_mul(60)))
    }
}

impl InSession<'_> {
    fn transaction(&mut self) -> &mut Transaction {
        &mut self.state().transaction
    }

    fn state(&mut self) -> &mut SessionState {
        self.client.active.as_deref_mut().expect("the session is lent to the client")
    }

    /// Starts a transaction: all further operations are part of it, until it is committed or
    /// aborted. An error of one of them may have aborted it on the server.
    ///
    /// # Errors
    ///
    /// If one is open, the session reads a snapshot, or the write concern is unacknowledged.
    pub fn start_transaction(&mut self, options: TransactionOptions) -> Result<(), OperationError> {
        Ok(self.state().start_transaction(options)?)
    }

    /// Commits the transaction. After an error with the label `UnknownTransactionCommitResult` it
    /// may be called again.
    ///
    /// # Errors
    ///
    /// If there is nothing to commit, the server refuses, or the write concern is not met.
    pub fn commit_transaction(&mut self) -> Result<(), OperationError> {
        if self.transaction().commit()? == Ending::Nothing {
            return Ok(());
        }
        self.client.run(Operation::ending()).map(drop)
    }

    /// Aborts the transaction. What the server says about it does not matter: it forgets a
    /// transaction that it does not hear of.
    ///
    /// # Errors
    ///
    /// If there is nothing to abort.
    pub fn abort_transaction(&mut self) -> Result<(), OperationError> {
        if self.transaction().abort()? == Ending::Send {
            let _ = self.client.run(Operation::ending());
            self.transaction().unpin();
        }
        Ok(())
    }

    /// Runs work in a transaction, and commits it.
    ///
    /// The work **may run several times**: again after every error with the label
    /// `TransientTransactionError`, with growing pauses, for at most 120 s or the session's
    /// `default_timeout`. What it does outside of the transaction is done each time. It must pass on the errors of its operations: they may have
    /// aborted the transaction on the server, and committing it then fails for ever. Work that
    /// commits or aborts by itself ends the call.
    ///
    /// # Errors
    ///
    /// An error of the work or of the commit that another attempt does not cure, or the last error
    /// when the time is up.
    pub fn with_transaction<T, E: TransactionFailure>(
        &mut self,
        options: &TransactionOptions,
        mut work: impl FnMut(&mut Self) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut attempts = Attempts::new(self.client.now(), self.session.default_timeout);
        let mut last: Option<E> = None;
        loop {
            let now = self.client.now();
            let chance = self.client.chance();
            match (attempts.begin(now, chance), last.take()) {
                (Ok(pause), _) if pause.is_zero() => {}
                (Ok(pause), _) => self.client.clock.sleep(pause),
                (Err(OutOfTime), Some(error)) => return Err(error),
                (Err(OutOfTime), None) => unreachable!("the first attempt always begins"),
            }
            self.start_transaction(options.clone())?;
            let value = match work(self) {
                Ok(value) => value,
                Err(error) => {
                    if self.client.in_transaction() {
                        self.abort_transaction()?;
                    }
                    match error.client_error().is_some_and(retried_transaction) {
                        true => last = Some(error),
                        false => return Err(error),
                    }
                    continue;
                }
            };
            if !self.client.in_transaction() {
                return Ok(value);
            }
            match self.commit_until_known(&attempts) {
                Ok(()) => return Ok(value),
                Err(error) if retried_transaction(&error) => last = Some(error.into()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Commits, again and again while the result is not known and there is time.
    fn commit_until_known(&mut self, attempts: &Attempts) -> Result<(), OperationError> {
        loop {
            let Err(error) = self.commit_transaction() else { return Ok(()) };
            match attempts.repeats_commit(self.client.now(), &error) {
                Ok(true) => {}
                Ok(false) | Err(OutOfTime) => return Err(error),
            }
        }
    }

    /// How far the session's transaction has come.
    pub fn transaction_phase(&mut self) -> Phase {
        self.transaction().phase()
    }
}

impl Deref for InSession<'_> {
    type Target = Client;

    fn deref(&self) -> &Client {
        self.client
    }
}

impl DerefMut for InSession<'_> {
    fn deref_mut(&mut self) -> &mut Client {
        self.client
    }
}

impl Drop for InSession<'_> {
    fn drop(&mut self) {
        self.session.state = std::mem::replace(&mut self.client.active, self.outer.take());
    }
}
