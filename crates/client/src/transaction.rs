//! Transactions of the application's: starting, committing, aborting, and trying again.
//!
//! Follows the Transactions and the Convenient API for Transactions specifications. The states and
//! the spacing of attempts are decided by `quorate-client-session`; how a command is run is in
//! `operation`.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bson::raw::cstr;
use bson::rawdoc;
use quorate_client_session::{
    Attempts, Ending, Failure, OutOfTime, Phase, ServerSession, Transaction, TransactionOptions,
    retried_transaction,
};
use quorate_protocol::{MonotonicTime, ServerAddress};
use tokio::time::sleep;

use crate::client::{Client, Inner};
use crate::error::{Error, ErrorKind};
use crate::operation::{Deadline, Operation, Purpose, Retry, Role, Target};
use crate::session::{Session, SessionPool};

/// How long the abort of a session that was dropped may take.
const BACKGROUND_ABORT_LIMIT: Duration = Duration::from_secs(10);

/// An error of the work inside [`Session::with_transaction`]: this client's, or one that holds it.
pub trait TransactionFailure: From<Error> {
    /// The error of this client that it comes from. `None` is never tried again.
    fn client_error(&self) -> Option<&Error>;
}

impl TransactionFailure for Error {
    fn client_error(&self) -> Option<&Error> {
        Some(self)
    }
}

impl TransactionFailure for Box<dyn std::error::Error + Send + Sync> {
    fn client_error(&self) -> Option<&Error> {
        self.downcast_ref()
    }
}

impl Session {
    /// Starts a transaction with the session's default options.
    ///
    /// # Errors
    ///
    /// As [`start_transaction_with`](Self::start_transaction_with).
    pub fn start_transaction(&mut self) -> Result<(), Error> {
        self.start_transaction_with(TransactionOptions::default())
    }

    /// Starts a transaction. All further operations in this session are part of it, until it is
    /// committed or aborted. An error of one of them may have aborted it on the server.
    ///
    /// # Errors
    ///
    /// If one is open, the session reads a snapshot, or the write concern is unacknowledged.
    pub fn start_transaction_with(&mut self, options: TransactionOptions) -> Result<(), Error> {
        Ok(self.lock().start_transaction(options)?)
    }

    /// How far the session's transaction has come.
    pub fn transaction_phase(&self) -> Phase {
        self.lock().transaction.phase()
    }

    /// The router that the session's transaction runs on, in a sharded cluster.
    pub fn pinned_server(&self) -> Option<ServerAddress> {
        self.lock().transaction.pinned().cloned()
    }

    /// Whether operations of this session are part of a transaction.
    pub fn in_transaction(&self) -> bool {
        self.lock().transaction.is_open()
    }

    /// Commits the transaction. After an error with the label `UnknownTransactionCommitResult` it
    /// may be called again.
    ///
    /// # Errors
    ///
    /// If there is nothing to commit, the server refuses, or the write concern is not met.
    pub async fn commit_transaction(&mut self) -> Result<(), Error> {
        let deadline = self.ending_deadline();
        self.commit_until(deadline).await
    }

    /// The same within this time, retries included (`timeoutMS`).
    ///
    /// # Errors
    ///
    /// As [`commit_transaction`](Self::commit_transaction), and if the time is up.
    pub async fn commit_transaction_within(&mut self, limit: Duration) -> Result<(), Error> {
        self.commit_until(Some(Deadline::after(limit))).await
    }

    async fn commit_until(&mut self, deadline: Option<Deadline>) -> Result<(), Error> {
        let ending = self.lock().transaction.commit()?;
        match ending {
            Ending::Nothing => Ok(()),
            Ending::Send => self.end_transaction(deadline).await,
        }
    }

    /// Aborts the transaction. What the server says about it does not matter: it forgets a
    /// transaction that it does not hear of.
    ///
    /// # Errors
    ///
    /// If there is nothing to abort.
    pub async fn abort_transaction(&mut self) -> Result<(), Error> {
        // A fresh limit, even inside a call of `with_transaction` whose time is up.
        let limit = {
            let state = self.lock();
            state.limit.or(state.default_timeout)
        };
        self.abort_until(limit.map(Deadline::after)).await
    }

    /// The same within this time, retries included (`timeoutMS`).
    ///
    /// # Errors
    ///
    /// As [`abort_transaction`](Self::abort_transaction).
    pub async fn abort_transaction_within(&mut self, limit: Duration) -> Result<(), Error> {
        self.abort_until(Some(Deadline::after(limit))).await
    }

    async fn abort_until(&mut self, deadline: Option<Deadline>) -> Result<(), Error> {
        let ending = self.lock().transaction.abort()?;
        if ending == Ending::Send {
            let _ = self.end_transaction(deadline).await;
            self.lock().transaction.unpin();
        }
        Ok(())
    }

    /// Aborts an open transaction and gives the session back.
    pub async fn end(mut self) {
        if self.in_transaction() {
            // Nothing but a wrong state is an error, and the state was checked.
            let _ = self.abort_transaction().await;
        }
    }

    fn ending_deadline(&self) -> Option<Deadline> {
        let state = self.lock();
        state.deadline.or_else(|| state.default_timeout.map(Deadline::after))
    }

    async fn end_transaction(&self, deadline: Option<Deadline>) -> Result<(), Error> {
        let name = match self.lock().transaction.phase() {
            Phase::Committed => rawdoc! { "commitTransaction": 1 },
            _ => rawdoc! { "abortTransaction": 1 },
        };
        let client = self.client();
        let operation = Operation {
            purpose: Purpose::Write,
            target: Target::Write,
            retry: Retry::Write,
            role: Role::Ending,
            deadline,
            ..Operation::new("admin", name)
        };
        client.inner().execute(&operation, Some(self)).await.map(drop)
    }

    /// Runs work in a transaction, and commits it: [`transaction`](Self::transaction) with the
    /// default options. [`WithTransaction`] says what the work may do.
    ///
    /// ```no_run
    /// # async fn example(client: quorate_client::Client) -> Result<(), quorate_client::Error> {
    /// use bson::doc;
    ///
    /// let accounts = client.collection("bank", "accounts");
    /// let mut session = client.start_session();
    /// session
    ///     .with_transaction(async |session| {
    ///         let take = doc! { "$inc": { "balance": -5 } };
    ///         accounts.update_one(doc! { "_id": "ann" }, take).session(session).await?;
    ///         let give = doc! { "$inc": { "balance": 5 } };
    ///         accounts.update_one(doc! { "_id": "bob" }, give).session(session).await
    ///     })
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`WithTransaction::run`].
    pub async fn with_transaction<T, E: TransactionFailure>(
        &mut self,
        work: impl AsyncFnMut(&mut Session) -> Result<T, E>,
    ) -> Result<T, E> {
        self.transaction().run(work).await
    }

    /// A transaction to run work in, for which options can be set.
    pub fn transaction(&mut self) -> WithTransaction<'_> {
        let limit = self.lock().default_timeout;
        WithTransaction { session: self, options: TransactionOptions::default(), limit }
    }

    /// Commits, again and again while the result is not known and there is time.
    async fn commit_until_known(&mut self, attempts: &Attempts) -> Result<(), Error> {
        loop {
            let error = match self.commit_transaction().await {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            let now = self.client().inner().pace_now();
            match attempts.repeats_commit(now, &error) {
                Ok(true) => {}
                Ok(false) => return Err(error),
                Err(OutOfTime) => return Err(out_of_time(attempts, error)),
            }
        }
    }
}

/// Work in a transaction, tried again as long as that helps.
///
/// The work **may run several times**: again after every error with the label
/// `TransientTransactionError`, with growing pauses, for at most 120 s or `timeoutMS`. What it does
/// outside of the transaction is done each time. It must pass on the errors of its operations: they
/// may have aborted the transaction on the server, and committing it then fails for ever. It must
/// give the session to every operation that is to be part of the transaction, and may not set
/// `timeout` on them while `timeoutMS` bounds the whole; operations without the session are not
/// bounded by it. Work that commits or aborts by itself ends the call.
#[derive(Debug)]
#[must_use = "nothing happens before run"]
pub struct WithTransaction<'s> {
    session: &'s mut Session,
    options: TransactionOptions,
    limit: Option<Duration>,
}

/// What work returns that can be moved between threads.
pub type Work<'w, T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send + 'w>>;

impl WithTransaction<'_> {
    /// The transaction's options, before the session's defaults.
    pub fn options(mut self, options: TransactionOptions) -> Self {
        self.options = options;
        self
    }

    /// `timeoutMS`: how long the whole may take, all attempts included.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.limit = Some(limit).filter(|limit| !limit.is_zero());
        self
    }

    /// Runs the work and commits.
    ///
    /// # Errors
    ///
    /// An error of the work or of the commit that another attempt does not cure. If there is no time
    /// left for another attempt, an error of the kind [`ErrorKind::TransactionTimeout`], which holds
    /// the last error and has its labels.
    pub async fn run<T, E: TransactionFailure>(
        self,
        mut work: impl AsyncFnMut(&mut Session) -> Result<T, E>,
    ) -> Result<T, E> {
        let session = self.session;
        let mut trying = Trying::begin(session, self.options, self.limit);
        loop {
            trying.start(session).await?;
            let outcome = work(session).await;
            if let Some(value) = trying.settle(session, outcome).await? {
                return Ok(value);
            }
        }
    }

    /// Runs the work and commits, in a future that can be moved between threads (`tokio::spawn`).
    /// What the work needs is handed to it as `context`, since a boxed future cannot borrow from
    /// its surroundings.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub async fn run_with<C, T, E>(
        self,
        mut context: C,
        mut work: impl for<'w> FnMut(&'w mut Session, &'w mut C) -> Work<'w, T, E>,
    ) -> Result<T, E>
    where
        E: TransactionFailure,
    {
        let session = self.session;
        let mut trying = Trying::begin(session, self.options, self.limit);
        loop {
            trying.start(session).await?;
            let outcome = work(session, &mut context).await;
            if let Some(value) = trying.settle(session, outcome).await? {
                return Ok(value);
            }
        }
    }
}

/// One call of `with_transaction`: what goes on around the work.
struct Trying {
    client: Client,
    options: TransactionOptions,
    attempts: Attempts,
    last: Option<Error>,
    _bounded: Bounded,
}

impl Trying {
    fn begin(session: &Session, options: TransactionOptions, limit: Option<Duration>) -> Self {
        let client = session.client();
        let attempts = Attempts::new(client.inner().pace_now(), limit);
        let _bounded = Bounded::begin(session, limit);
        Self { client, options, attempts, last: None, _bounded }
    }

    /// Waits, if this is not the first attempt, and starts the transaction.
    async fn start(&mut self, session: &mut Session) -> Result<(), Error> {
        let inner = self.client.inner();
        let now = inner.pace_now();
        match (self.attempts.begin(now, inner.chance()), self.last.take()) {
            (Ok(pause), _) if pause.is_zero() => {}
            (Ok(pause), _) => inner.pause(pause).await,
            (Err(OutOfTime), Some(error)) => return Err(out_of_time(&self.attempts, error)),
            (Err(OutOfTime), None) => unreachable!("the first attempt always begins"),
        }
        session.start_transaction_with(self.options.clone())
    }

    /// Commits what the work has done, or aborts. `None` asks for another attempt.
    async fn settle<T, E: TransactionFailure>(
        &mut self,
        session: &mut Session,
        outcome: Result<T, E>,
    ) -> Result<Option<T>, E> {
        let value = match outcome {
            Ok(value) => value,
            Err(error) => {
                if session.in_transaction() {
                    session.abort_transaction().await?;
                }
                return match error.client_error().filter(|&cause| retried_transaction(cause)) {
                    Some(cause) => {
                        self.last = Some(cause.clone());
                        Ok(None)
                    }
                    None => Err(error),
                };
            }
        };
        if !session.in_transaction() {
            return Ok(Some(value));
        }
        match session.commit_until_known(&self.attempts).await {
            Ok(()) => Ok(Some(value)),
            Err(error) if retried_transaction(&error) && !error.is_timeout() => {
                self.last = Some(error);
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// "Timeout Error propagation": an error that tells the limit, holds the last one, and has its
/// labels. One that is a timeout already is told as it is.
fn out_of_time(attempts: &Attempts, last: Error) -> Error {
    if last.is_timeout() {
        return last;
    }
    let labels = last.labels().to_vec();
    let limit = attempts.limit();
    Error::new(ErrorKind::TransactionTimeout { limit, last: Box::new(last) }).with_labels(&labels)
}

/// While it lives, the operations of a session share one deadline.
struct Bounded {
    session: Session,
}

impl Bounded {
    fn begin(session: &Session, limit: Option<Duration>) -> Self {
        let mut state = session.lock();
        state.deadline = limit.map(Deadline::after);
        state.limit = limit;
        drop(state);
        Self { session: session.share() }
    }
}

impl Drop for Bounded {
    fn drop(&mut self) {
        let mut state = self.session.lock();
        state.deadline = None;
        state.limit = None;
    }
}

/// Aborts the transaction of a session that was dropped, in the background, and gives its server
/// session back.
pub(crate) fn abort_later(
    client: &Client,
    mut transaction: Transaction,
    mut server: ServerSession,
    pool: &Arc<SessionPool>,
) {
    if transaction.abort() != Ok(Ending::Send) {
        pool.put(server);
        return;
    }
    let (client, pool) = (client.clone(), Arc::clone(pool));
    let mut body = transaction.ending(false);
    body.append(cstr!("lsid"), server.lsid());
    let spawner = client.clone();
    spawner.inner().discovery.spawn(async move {
        let operation = Operation {
            target: Target::Write,
            role: Role::Beside,
            deadline: Some(Deadline::after(BACKGROUND_ABORT_LIMIT)),
            tells_deadline: false,
            ..Operation::new("admin", body)
        };
        // The command brings its session, so that nothing else learns how it ended.
        let outcome = client.inner().execute(&operation, None).await;
        if outcome.is_err_and(|error| error.is_network() || error.is_timeout()) {
            server.mark_dirty();
        }
        pool.put(server);
    });
}

impl Failure for Error {
    fn is_network(&self) -> bool {
        Error::is_network(self)
    }

    fn is_selection(&self) -> bool {
        matches!(self.kind(), ErrorKind::Selection(_) | ErrorKind::ServerGone(_))
    }

    fn is_timeout(&self) -> bool {
        matches!(self.kind(), ErrorKind::Timeout(_))
    }

    fn is_unsent(&self) -> bool {
        matches!(
            self.kind(),
            ErrorKind::Selection(_)
                | ErrorKind::ImpossibleSelection(_)
                | ErrorKind::CheckOut(_)
                | ErrorKind::ServerGone(_)
                | ErrorKind::BatchLost(_)
                | ErrorKind::Closed
                | ErrorKind::Transaction(_)
                | ErrorKind::BadCommand(_)
        )
    }

    fn is_write_concern_failure(&self) -> bool {
        matches!(self.kind(), ErrorKind::Command { error, .. } if error.ok)
    }

    fn code(&self) -> Option<i32> {
        Error::code(self)
    }

    fn has_label(&self, label: &str) -> bool {
        Error::has_label(self, label)
    }

    fn add_label(&mut self, label: &'static str) {
        Error::add_label(self, label);
    }

    fn base_backoff(&self) -> Option<Duration> {
        match self.kind() {
            ErrorKind::Command { error, .. } => error.base_backoff(),
            _ => None,
        }
    }
}

impl Inner {
    fn pace_now(&self) -> MonotonicTime {
        match &self.options.pace {
            Some(pace) => pace.now(),
            None => self.discovery.clock().now(),
        }
    }

    fn chance(&self) -> f64 {
        match &self.options.pace {
            Some(pace) => pace.chance(),
            None => self.random_fraction(),
        }
    }

    async fn pause(&self, interval: Duration) {
        match &self.options.pace {
            Some(pace) => pace.pause(interval).await,
            None => sleep(interval).await,
        }
    }
}
