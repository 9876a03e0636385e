//! The states of a transaction in one session, and the fields that its commands carry.
//!
//! Follows the Transactions specification.
//!
//! ```text
//!            start                first command              commit
//!   None ───────────▶ Starting ───────────────▶ InProgress ──────────▶ Committed ─┐ commit again
//!    ▲ ▲                  │                         │                   │  ▲──────┘
//!    │ │                  │ abort                   │ abort             │ start
//!    │ │                  ▼                         ▼                   ▼
//!    │ └──────────────  Aborted ◀───────────────────┘               Starting
//!    └── any other operation in the session, after Committed or Aborted
//! ```

use std::time::Duration;

use bson::raw::{RawDocument, RawDocumentBuf, cstr};
use bson::{Timestamp, rawdoc};
use quorate_connection_string::WriteAcknowledgement;
use quorate_protocol::{ReadPreference, ReadPreferenceMode, ServerAddress};
use quorate_wire::{AppendSome, CommandFields};

use crate::WriteConcern;
use crate::session::read_concern;

/// `wtimeout` of a commit that is sent again, where the transaction has none: without a limit a
/// majority that cannot be reached would hold the client up forever.
pub const COMMIT_RETRY_W_TIMEOUT: Duration = Duration::from_secs(10);

/// How a transaction behaves. What is `None` is taken from the session's defaults, then from the
/// client.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TransactionOptions {
    /// The level of `readConcern`, sent with the first command.
    pub read_concern: Option<String>,
    /// The write concern of the commit and the abort.
    pub write_concern: Option<WriteConcern>,
    /// The read preference of all reads, which must be primary.
    pub read_preference: Option<ReadPreference>,
    /// `maxCommitTimeMS`: how long the server may work on a single commit.
    pub max_commit_time: Option<Duration>,
}

impl TransactionOptions {
    /// These options, and those of `defaults` where there is none.
    #[must_use]
    pub fn or(self, defaults: &Self) -> Self {
        Self {
            read_concern: self.read_concern.or_else(|| defaults.read_concern.clone()),
            write_concern: self.write_concern.or_else(|| defaults.write_concern.clone()),
            read_preference: self.read_preference.or_else(|| defaults.read_preference.clone()),
            max_commit_time: self.max_commit_time.or(defaults.max_commit_time),
        }
    }
}

/// How far a transaction has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// There is none.
    #[default]
    None,
    /// It was started, and no command was sent.
    Starting,
    /// At least one command was sent.
    InProgress,
    /// The application asked for the commit, whatever became of it.
    Committed,
    /// The application asked for the abort.
    Aborted,
}

/// The application asked for something that the state of its session does not allow. Nothing was
/// sent, and the state is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TransactionError {
    /// Started twice.
    #[error("Transaction already in progress; commit or abort it first")]
    AlreadyInProgress,
    /// Ended without a start.
    #[error("No transaction started; call start_transaction first")]
    NotStarted,
    /// Committed after an abort.
    #[error("Cannot call commitTransaction after calling abortTransaction")]
    CommitAfterAbort,
    /// Aborted after a commit.
    #[error("Cannot call abortTransaction after calling commitTransaction")]
    AbortAfterCommit,
    /// Aborted twice.
    #[error("Cannot call abortTransaction twice")]
    AbortTwice,
    /// The write concern asks for no reply.
    #[error("transactions do not support unacknowledged write concerns; use at least w: 1")]
    Unacknowledged,
    /// A read of a transaction whose read preference is not primary.
    #[error("read preference in a transaction must be primary")]
    ReadPreference,
    /// A read concern for one command.
    #[error("Cannot set read concern after starting a transaction; give it to start_transaction")]
    ReadConcern,
    /// A write concern for one command.
    #[error("Cannot set write concern after starting a transaction; give it to start_transaction")]
    WriteConcern,
    /// A transaction in a session that reads one moment.
    #[error("Transactions are not supported in snapshot sessions; use another session")]
    Snapshot,
    /// The deployment has no sessions.
    #[error("transactions need sessions, which this deployment does not support")]
    NoSessions,
    /// A command of a transaction behind a load balancer.
    #[error(
        "transactions behind a load balancer are not supported; connect to the servers themselves"
    )]
    LoadBalanced,
}

/// What the next command of a transaction carries beside its own fields and the session's id.
#[derive(Clone, Debug, PartialEq)]
pub struct Statement {
    /// Whether it is the first.
    pub first: bool,
    /// `txnNumber`.
    pub number: i64,
    /// `readConcern`, of the first command alone.
    pub read_concern: Option<RawDocumentBuf>,
}

impl Statement {
    /// Adds the fields to a command.
    pub fn append_to(&self, body: &mut impl CommandFields) {
        body.append_some(cstr!("readConcern"), self.read_concern.as_ref());
        body.append(cstr!("txnNumber"), self.number);
        if self.first {
            body.append(cstr!("startTransaction"), true);
        }
        body.append(cstr!("autocommit"), false);
    }
}

/// What a commit or an abort comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// No command was sent in the transaction, so that the server knows nothing of it.
    Nothing,
    /// The command is sent.
    Send,
}

/// The transaction of one session.
#[derive(Clone, Debug, Default)]
pub struct Transaction {
    phase: Phase,
    options: TransactionOptions,
    /// `None` until the first command needs it.
    number: Option<i64>,
    /// Transactions before this one in which nothing was sent. They have numbers all the same.
    unused: u32,
    /// Whether a commit was tried before, in a way that the server may have begun it.
    commit_tried: bool,
    /// The router that the transaction runs on, in a sharded cluster.
    pinned: Option<ServerAddress>,
    recovery_token: Option<RawDocumentBuf>,
}

impl Transaction {
    /// How far it has come.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Whether the next operation of the session is part of it.
    pub fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Starting | Phase::InProgress)
    }

    /// Its options.
    pub fn options(&self) -> &TransactionOptions {
        &self.options
    }

    /// The router that its commands must go to.
    pub fn pinned(&self) -> Option<&ServerAddress> {
        self.pinned.as_ref()
    }

    /// Lets all further commands go to this router.
    pub fn pin(&mut self, router: ServerAddress) {
        self.pinned.get_or_insert(router);
    }

    /// Lets the next command go to any router.
    pub fn unpin(&mut self) {
        self.pinned = None;
    }

    /// Starts one, with options whose defaults have been filled in.
    ///
    /// # Errors
    ///
    /// If one is open, or the write concern is unacknowledged.
    pub fn start(&mut self, options: TransactionOptions) -> Result<(), TransactionError> {
        if self.is_open() {
            return Err(TransactionError::AlreadyInProgress);
        }
        if options.write_concern.as_ref().is_some_and(|concern| !concern.is_acknowledged()) {
            return Err(TransactionError::Unacknowledged);
        }
        let unused = self.unused;
        *self = Self { phase: Phase::Starting, options, unused, ..Self::default() };
        Ok(())
    }

    /// Another operation of the session begins. It leaves a transaction that has ended behind.
    pub fn begin_operation(&mut self) {
        if matches!(self.phase, Phase::Committed | Phase::Aborted) {
            *self = Self { unused: self.unused, ..Self::default() };
        }
    }

    /// Whether a read may run now.
    ///
    /// # Errors
    ///
    /// If the transaction's read preference is not primary.
    pub fn check_read(&self) -> Result<(), TransactionError> {
        let preference = self.options.read_preference.as_ref();
        match preference.filter(|_| self.is_open()) {
            Some(other) if other.mode != ReadPreferenceMode::Primary => {
                Err(TransactionError::ReadPreference)
            }
            _ => Ok(()),
        }
    }

    /// What the command that is sent now carries; `None` outside of a transaction, or if there is no
    /// number to be had. `after` is what a causally consistent session has seen.
    pub fn statement(
        &mut self,
        after: Option<Timestamp>,
        mut next_number: impl FnMut() -> Option<i64>,
    ) -> Option<Statement> {
        if !self.is_open() {
            return None;
        }
        let first = self.phase == Phase::Starting;
        if self.number.is_none() {
            for _ in 0..std::mem::take(&mut self.unused) {
                next_number();
            }
            self.number = next_number();
        }
        let number = self.number?;
        self.phase = Phase::InProgress;
        let level = self.options.read_concern.as_deref();
        let read_concern = first.then(|| read_concern(level, after)).flatten();
        Some(Statement { first, number, read_concern })
    }

    /// The server turned the first command away before it did anything: the next attempt is the
    /// first again.
    pub(crate) fn first_turned_away(&mut self) {
        if self.phase == Phase::InProgress {
            self.phase = Phase::Starting;
        }
    }

    /// Learns from a reply to one of its commands.
    pub fn learn(&mut self, reply: &RawDocument) {
        if let Ok(token) = reply.get_document("recoveryToken") {
            self.recovery_token = Some(token.to_owned());
        }
    }

    /// The application asks for the commit.
    ///
    /// # Errors
    ///
    /// If there is nothing to commit.
    pub fn commit(&mut self) -> Result<Ending, TransactionError> {
        match self.phase {
            Phase::None => Err(TransactionError::NotStarted),
            Phase::Aborted => Err(TransactionError::CommitAfterAbort),
            Phase::Starting => {
                self.phase = Phase::Committed;
                self.unused += u32::from(self.number.is_none());
                Ok(Ending::Nothing)
            }
            Phase::InProgress => {
                self.phase = Phase::Committed;
                Ok(Ending::Send)
            }
            Phase::Committed if self.number.is_none() => Ok(Ending::Nothing),
            Phase::Committed => {
                self.commit_tried = true;
                Ok(Ending::Send)
            }
        }
    }

    /// The application asks for the abort.
    ///
    /// # Errors
    ///
    /// If there is nothing to abort.
    pub fn abort(&mut self) -> Result<Ending, TransactionError> {
        match self.phase {
            Phase::None => Err(TransactionError::NotStarted),
            Phase::Committed => Err(TransactionError::AbortAfterCommit),
            Phase::Aborted => Err(TransactionError::AbortTwice),
            Phase::Starting => {
                self.phase = Phase::Aborted;
                self.unused += u32::from(self.number.is_none());
                self.pinned = None;
                Ok(Ending::Nothing)
            }
            Phase::InProgress => {
                self.phase = Phase::Aborted;
                Ok(Ending::Send)
            }
        }
    }

    /// An attempt to commit failed, other than by an overloaded server's refusal.
    pub(crate) fn commit_failed(&mut self) {
        self.commit_tried = true;
    }

    /// The command that ends it, as far as the state decides it: no session id and no write concern
    /// of the server's own. `within` says that `timeoutMS` bounds the whole, which then takes the
    /// place of `maxCommitTimeMS` and `wtimeout`.
    pub fn ending(&self, within: bool) -> RawDocumentBuf {
        let commits = self.phase == Phase::Committed;
        let mut body = match commits {
            true => rawdoc! { "commitTransaction": 1 },
            false => rawdoc! { "abortTransaction": 1 },
        };
        body.append(cstr!("txnNumber"), self.number.unwrap_or_default());
        body.append(cstr!("autocommit"), false);
        body.append_some(
            cstr!("writeConcern"),
            self.ending_write_concern(commits, within).document(),
        );
        if let Some(limit) = self.options.max_commit_time.filter(|_| commits && !within) {
            let millis = i64::try_from(limit.as_millis()).unwrap_or(i64::MAX);
            body.append(cstr!("maxTimeMS"), millis);
        }
        body.append_some(cstr!("recoveryToken"), self.recovery_token.as_ref());
        body
    }

    fn ending_write_concern(&self, commits: bool, within: bool) -> WriteConcern {
        let mut concern = self.options.write_concern.clone().unwrap_or_default();
        if commits && self.commit_tried {
            concern.w = Some(WriteAcknowledgement::Majority);
            if !within {
                concern.w_timeout.get_or_insert(COMMIT_RETRY_W_TIMEOUT);
            }
        }
        if within {
            concern.w_timeout = None;
        }
        concern
    }
}

#[cfg(test)]
mod tests;
