//! What comes in and what is answered.

use std::fmt;

use quorate_protocol::{ErrorCode, OpTime};

use crate::table::TransactionId;

/// What a command with a transaction number wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A write outside of transactions that the driver may repeat.
    RetryableWrite,
    /// The first statement of a transaction: `startTransaction: true`.
    Start,
    /// A later statement.
    Continue,
    /// `commitTransaction`.
    Commit,
    /// `abortTransaction`.
    Abort,
}

/// A command with a transaction number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Arrival {
    /// `txnNumber`.
    pub number: i64,
    /// What it wants.
    pub kind: Kind,
}

/// What the log has told about a session last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stored {
    /// The number.
    pub number: i64,
    /// What became of it.
    pub state: StoredState,
}

/// What the log says about a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StoredState {
    /// It was a retryable write.
    RetryableWrite,
    /// It was a transaction, committed by this entry.
    Committed(OpTime),
}

/// What the host does with a command.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Run the write; its statements are remembered by the host.
    RetryableWrite,
    /// Run the statement as the first of this new transaction, over a snapshot that the host takes
    /// before it gives the write lock back.
    Begin(TransactionId),
    /// Run the statement in this transaction.
    Proceed(TransactionId),
    /// Commit this transaction, then [`committed`](crate::Transactions::committed).
    Commit {
        /// The transaction.
        transaction: TransactionId,
        /// The newest entry that it may have read: a commit that wrote nothing is acknowledged once
        /// this entry satisfies the write concern (SERVER-35814).
        read_at: OpTime,
    },
    /// The transaction was committed by this entry before: wait for the write concern of this
    /// command, then answer as the first time.
    CommittedBefore(OpTime),
    /// Nothing is known that could be committed. Write an entry that changes nothing, wait for the
    /// write concern, then refuse: an older primary may hold the commit, and only a majority that
    /// has a newer entry keeps it from coming back (SERVER-37179, SERVER-38850).
    CommitUnknown(Refusal),
    /// The transaction has been aborted.
    Aborted(TransactionId),
    /// Refuse the command. Nothing has changed.
    Refuse(Refusal),
}

/// Why a transaction was aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum AbortReason {
    /// The client said so.
    Asked,
    /// A statement failed.
    Failed,
    /// A greater number arrived.
    Superseded,
    /// It lived too long.
    Lifetime,
    /// Its session was killed or has ended.
    Killed,
    /// Too many keys had changed since its snapshot.
    TooFarBehind,
}

/// A command is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Refusal {
    /// The session has used a greater number.
    TooOld {
        /// The number that came.
        number: i64,
        /// The session's number.
        newest: i64,
    },
    /// No transaction with this number is in progress.
    NoSuch {
        /// The number that came.
        number: i64,
        /// The session's number; −1 if there is none.
        newest: i64,
    },
    /// The transaction has been aborted.
    Aborted {
        /// Its number.
        number: i64,
    },
    /// It was aborted during this statement, because it lived too long.
    ExceededLifetime {
        /// Its number.
        number: i64,
    },
    /// It has been committed; only the commit can be repeated.
    Committed {
        /// Its number.
        number: i64,
    },
    /// The number has been started before.
    StartedBefore {
        /// Its number.
        number: i64,
    },
    /// Another statement of the transaction is running.
    Busy {
        /// Its number.
        number: i64,
    },
    /// The number belongs to a retryable write, or to a transaction if a retryable write came.
    OtherUse {
        /// Its number.
        number: i64,
    },
    /// Another transaction has written a key, or has committed one since the snapshot.
    WriteConflict,
    /// The transaction would hold too many bytes.
    TooLarge {
        /// The most it may hold.
        limit: usize,
    },
    /// All open transactions together would hold too many bytes.
    NoRoom {
        /// The most they may hold.
        limit: usize,
    },
}

impl Refusal {
    /// The documented code.
    pub const fn code(self) -> i32 {
        match self {
            Self::WriteConflict => ErrorCode::WRITE_CONFLICT,
            Self::StartedBefore { .. } | Self::Busy { .. } | Self::OtherUse { .. } => {
                ErrorCode::CONFLICTING_OPERATION_IN_PROGRESS
            }
            Self::TooOld { .. } => ErrorCode::TRANSACTION_TOO_OLD,
            Self::NoSuch { .. } | Self::Aborted { .. } | Self::NoRoom { .. } => {
                ErrorCode::NO_SUCH_TRANSACTION
            }
            Self::Committed { .. } => ErrorCode::TRANSACTION_COMMITTED,
            Self::ExceededLifetime { .. } => ErrorCode::TRANSACTION_EXCEEDED_LIFETIME,
            Self::TooLarge { .. } => ErrorCode::TRANSACTION_TOO_LARGE_FOR_CACHE,
        }
        .0
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooOld { number, newest } => write!(
                f,
                "Cannot start transaction {number} on this session because a newer transaction \
                 {newest} has already started"
            ),
            Self::NoSuch { number, newest } => write!(
                f,
                "Given transaction number {number} does not match any in-progress transactions. The \
                 active transaction number is {newest}"
            ),
            Self::Aborted { number } => write!(f, "Transaction {number} has been aborted."),
            Self::ExceededLifetime { number } => write!(
                f,
                "operation was interrupted because transaction {number} exceeded \
                 transactionLifetimeLimitSeconds; repeat the transaction, with fewer or shorter \
                 statements"
            ),
            Self::Committed { number } => write!(f, "Transaction {number} has been committed."),
            Self::StartedBefore { number } => write!(
                f,
                "Transaction {number} has already started on this session; startTransaction belongs \
                 to its first statement only"
            ),
            Self::Busy { number } => write!(
                f,
                "another statement of transaction {number} is running; a transaction runs one at a \
                 time"
            ),
            Self::OtherUse { number } => write!(
                f,
                "transaction number {number} is in use by a retryable write or a transaction of this \
                 session; use a greater number"
            ),
            Self::WriteConflict => f.write_str(
                "WriteConflict error: this operation conflicted with another operation. Please retry \
                 your operation or multi-document transaction.",
            ),
            Self::TooLarge { limit } => write!(
                f,
                "transaction is too large: it may hold {limit} bytes of changes until it commits; \
                 split it into smaller ones"
            ),
            Self::NoRoom { limit } => write!(
                f,
                "the open transactions of this member hold {limit} bytes of changes, which is the \
                 most; repeat the transaction when others have ended"
            ),
        }
    }
}
