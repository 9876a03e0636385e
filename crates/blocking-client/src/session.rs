//! Sessions and transactions.
//!
//! A [`Session`] is the application's; while it is lent to a client ([`Client::in_session`]), every
//! operation of that client runs in it. Follows the Driver Sessions, Causal Consistency, Snapshot
//! Reads, Transactions and Convenient API for Transactions specifications; the rules are in
//! `quorate-client-session`.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use bson::Timestamp;
use bson::raw::{RawDocument, RawDocumentBuf, cstr};
use quorate_client_session::{
    Attempts, Ending, Failure, OutOfTime, Phase, ServerSession, Snapshot, SnapshotError,
    TRANSIENT_TRANSACTION_ERROR, Transaction, TransactionError, TransactionOptions,
    UNKNOWN_TRANSACTION_COMMIT_RESULT, is_transient, is_unknown_commit, retried_transaction,
};
use quorate_protocol::{ReadPreference, ReadPreferenceMode, ServerAddress};

use crate::client::Client;
use crate::error::OperationError;
use crate::operation::Operation;

/// How many idle server sessions are kept.
const MAX_IDLE_SESSIONS: usize = 100;

/// A write with this label may be sent again.
const RETRYABLE_WRITE_ERROR: &str = "RetryableWriteError";

/// How often a commit or an abort is sent: once more after an error that allows it.
const MAX_ENDING_ATTEMPTS: usize = 2;

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
}

/// A session of the application's. Give it back with [`Client::end_session`]: dropped with an open
/// transaction, the server ends that transaction by its own time limit.
#[derive(Debug)]
pub struct Session {
    /// `None` while it is lent to a client.
    state: Option<Box<SessionState>>,
}

/// What a session remembers.
#[derive(Debug)]
pub(crate) struct SessionState {
    server: Option<ServerSession>,
    causal: bool,
    operation_time: Option<Timestamp>,
    snapshot: Option<Snapshot>,
    pub(crate) transaction: Transaction,
    defaults: TransactionOptions,
}

impl SessionState {
    pub(crate) fn has_snapshot(&self) -> bool {
        self.snapshot.is_some()
    }

    /// `afterClusterTime` of the next read.
    pub(crate) fn after_cluster_time(&self) -> Option<Timestamp> {
        self.operation_time.filter(|_| self.causal)
    }
}

impl Session {
    fn state(&self) -> Option<&SessionState> {
        self.state.as_deref()
    }

    /// When its latest operation happened, by the deployment's clock.
    pub fn operation_time(&self) -> Option<Timestamp> {
        self.state()?.operation_time
    }

    /// The moment that all reads of a snapshot session see, once it is known.
    pub fn snapshot_time(&self) -> Option<Timestamp> {
        self.state()?.snapshot.as_ref()?.time()
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
}

impl Client {
    /// A session. Nothing is sent.
    ///
    /// # Errors
    ///
    /// If the options contradict each other.
    pub fn start_session(&mut self, options: SessionOptions) -> Result<Session, OperationError> {
        let refused = |error: SnapshotError| OperationError::Misuse(error.to_string());
        if options.snapshot && options.causal_consistency == Some(true) {
            return Err(refused(SnapshotError::Causal));
        }
        if options.snapshot_time.is_some() && !options.snapshot {
            return Err(refused(SnapshotError::TimeAlone));
        }
        let inherited = TransactionOptions {
            read_concern: self.options.read_concern_level.clone(),
            write_concern: Some(self.options.write_concern.clone()),
            read_preference: Some(self.options.read_preference.clone()),
            max_commit_time: None,
        };
        let state = SessionState {
            server: None,
            causal: options.causal_consistency.unwrap_or(!options.snapshot),
            operation_time: None,
            snapshot: options.snapshot.then(|| Snapshot::new(options.snapshot_time)),
            transaction: Transaction::default(),
            defaults: options.default_transaction_options.or(&inherited),
        };
        Ok(Session { state: Some(Box::new(state)) })
    }

    /// Lets all operations run in this session, as long as the returned value lives.
    pub fn in_session<'c>(&'c mut self, session: &'c mut Session) -> InSession<'c> {
        self.active = session.state.take();
        InSession { client: self, session }
    }

    /// Aborts an open transaction, and keeps the server's part of the session for another one.
    pub fn end_session(&mut self, mut session: Session) {
        let mut lent = self.in_session(&mut session);
        if lent.in_transaction() {
            // Nothing but a wrong state is an error, and the state was looked at.
            let _ = lent.abort_transaction();
        }
        drop(lent);
        let server = session.state.and_then(|state| state.server);
        if let Some(server) = server.filter(|server| !server.is_dirty())
            && self.idle_sessions.len() < MAX_IDLE_SESSIONS
        {
            self.idle_sessions.push(server);
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
        let Some(session) = self.active.as_ref().filter(|session| session.transaction.is_open())
        else {
            return Ok(());
        };
        session.transaction.check_read()?;
        if preference.mode != ReadPreferenceMode::Primary {
            return Err(TransactionError::ReadPreference.into());
        }
        match command.get("readConcern") {
            Ok(None) => Ok(()),
            _ => Err(TransactionError::ReadConcern.into()),
        }
    }

    /// An operation begins. It leaves a transaction that has ended behind.
    pub(crate) fn begin_operation(&mut self, ending: bool) {
        if let Some(session) = self.active.as_mut().filter(|_| !ending) {
            session.transaction.begin_operation();
        }
    }

    /// Adds what the session asks for.
    pub(crate) fn add_session(
        &mut self,
        server: &ServerAddress,
        ending: bool,
        body: &mut RawDocumentBuf,
    ) -> Result<(), OperationError> {
        if self.active.is_none() {
            return Ok(());
        }
        let (now, lifetime) = (self.now(), self.session_lifetime());
        let max_wire_version =
            self.connections.get(server).map_or(0, |connection| connection.max_wire_version);
        let Some(session) = self.active.as_mut() else { return Ok(()) };
        if let Some(lifetime) = lifetime {
            if session.server.is_none() {
                while self.idle_sessions.pop_if(|idle| idle.is_expiring(now, lifetime)).is_some() {}
                session.server = self.idle_sessions.pop();
            }
            if session.server.is_none() {
                let mut random = [0; 16];
                if getrandom::fill(&mut random).is_ok() {
                    session.server = Some(ServerSession::new(random, now));
                }
            }
        }
        if let Some(server) = &mut session.server {
            server.used(now);
            body.append(cstr!("lsid"), server.lsid());
        }
        if session.transaction.is_open() && !ending {
            let after = session.after_cluster_time();
            let server = &mut session.server;
            let number = || server.as_mut().map(ServerSession::next_transaction_number);
            match session.transaction.statement(after, number) {
                Some(statement) => statement.append_to(body),
                None => return Err(TransactionError::NoSessions.into()),
            }
        } else if let Some(snapshot) = &session.snapshot
            && matches!(body.get("readConcern"), Ok(None))
            && matches!(body.get("getMore"), Ok(None))
        {
            let concern = snapshot
                .read_concern(max_wire_version)
                .map_err(|error| OperationError::Misuse(error.to_string()))?;
            body.append(cstr!("readConcern"), concern);
        }
        if let Some(time) = &self.cluster_time {
            body.append(cstr!("$clusterTime"), time);
        }
        Ok(())
    }

    /// Learns from a reply in a session.
    pub(crate) fn learn(&mut self, reply: &RawDocument) {
        let Some(session) = &mut self.active else { return };
        if let Ok(time) = reply.get_timestamp("operationTime")
            && session.operation_time.is_none_or(|own| own < time)
        {
            session.operation_time = Some(time);
        }
        if let Some(snapshot) = &mut session.snapshot {
            snapshot.learn(reply);
        }
        session.transaction.learn(reply);
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

    /// Adds the label that a failed statement of a transaction gets on this side.
    pub(crate) fn labelled<T>(
        &mut self,
        outcome: Result<T, OperationError>,
    ) -> Result<T, OperationError> {
        let Some(session) = &mut self.active else { return outcome };
        outcome.map_err(|error| {
            if error.is_network()
                && let Some(server) = &mut session.server
            {
                server.mark_dirty();
            }
            match session.transaction.is_open() && is_transient(&error) {
                true => error.labelled(TRANSIENT_TRANSACTION_ERROR),
                false => error,
            }
        })
    }

    fn session_lifetime(&self) -> Option<Duration> {
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
        let state = self.state();
        if state.snapshot.is_some() {
            return Err(TransactionError::Snapshot.into());
        }
        let options = options.or(&state.defaults);
        Ok(state.transaction.start(options)?)
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
        self.end_transaction().map_err(|error| match is_unknown_commit(&error) {
            true => error.labelled(UNKNOWN_TRANSACTION_COMMIT_RESULT),
            false => error,
        })
    }

    /// Aborts the transaction. What the server says about it does not matter: it forgets a
    /// transaction that it does not hear of.
    ///
    /// # Errors
    ///
    /// If there is nothing to abort.
    pub fn abort_transaction(&mut self) -> Result<(), OperationError> {
        if self.transaction().abort()? == Ending::Send {
            let _ = self.end_transaction();
        }
        Ok(())
    }

    /// Sends the commit or the abort, and once more after an error that allows it.
    fn end_transaction(&mut self) -> Result<(), OperationError> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            let command = self.transaction().ending(false);
            let operation = Operation { ending: true, ..Operation::write("admin", &command) };
            let error = match self.client.attempt(operation, &[]).and_then(checked) {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            self.transaction().commit_failed();
            let retryable = error.is_network() || error.has_label(RETRYABLE_WRITE_ERROR);
            if !retryable || attempts >= MAX_ENDING_ATTEMPTS {
                return Err(error);
            }
        }
    }

    /// Runs work in a transaction, and commits it.
    ///
    /// The work **may run several times**: again after every error with the label
    /// `TransientTransactionError`, with growing pauses, for at most 120 s. What it does outside of
    /// the transaction is done each time. It must pass on the errors of its operations: they may have
    /// aborted the transaction on the server, and committing it then fails for ever. Work that
    /// commits or aborts by itself ends the call.
    ///
    /// # Errors
    ///
    /// Those of the work and of the commit that another attempt does not cure, or the last one when
    /// the time is up.
    pub fn with_transaction<T, E: TransactionFailure>(
        &mut self,
        options: &TransactionOptions,
        mut work: impl FnMut(&mut Self) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut attempts = Attempts::new(self.client.now(), None);
        let mut last: Option<E> = None;
        loop {
            let now = self.client.now();
            let chance = (self.client.random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
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

/// Whether a commit's or an abort's write concern was met.
fn checked(answer: crate::operation::Answer) -> Result<(), OperationError> {
    let told = quorate_wire::command_error(&answer.reply).ok().flatten();
    match told.and_then(|told| told.write_concern_error) {
        None => Ok(()),
        Some(error) => {
            Err(OperationError::CommitConcern { server: answer.server, error: Box::new(error) })
        }
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
        self.session.state = self.client.active.take();
    }
}
