//! Everything a member asks of its host.

use std::sync::Arc;
use std::time::Duration;

use quorate_protocol::{OpTime, OpTimeAndWallTime, ReplicaSetConfig, ServerAddress, Term};

use crate::election::LastVote;
use crate::error::RequestError;
use crate::event::Event;
use crate::input::{FetchId, Reply, Request, RequestId, RequestToken, Ticket, WaiterId};
use crate::memory::Memory;
use crate::write_concern::WriteConcernError;

/// A change to what the member must remember across a crash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// `local.replset.election`: the vote, and with it the term.
    LastVote(LastVote),
    /// The term alone.
    Term(Term),
    /// `local.system.replset`.
    Config(Arc<ReplicaSetConfig>),
    /// A new set, in one atomic write: its configuration, and a first oplog entry of term 0.
    /// `EntriesAppended`, `EntriesDurable` and `Applied` of that entry come before `Persisted`.
    Initiate(Arc<ReplicaSetConfig>),
    /// Whether an initial sync is under way.
    InitialSync(bool),
    /// One more rollback.
    RollbackId(i32),
    /// What is still known of the votes that were given.
    Memory(Memory),
    /// Whether the data was copied or written without indexes that the set has.
    IndexesLeftOut(bool),
}

/// Why the member wants an entry that changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoopReason {
    /// The first entry of a term.
    NewPrimary,
    /// Nothing was written for a while; the commit point should not look stale.
    Periodic,
}

/// A step of an initial sync, each answered by one `Input::InitialSync`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InitialSyncStep {
    /// Remove all data but `local`.
    Wipe,
    /// Read the source's rollback id and where to begin.
    ReadSource {
        /// The source.
        source: ServerAddress,
    },
    /// Buffer entries from `begin_fetching` on and copy all databases.
    Clone {
        /// The source.
        source: ServerAddress,
        /// Where the buffer starts.
        begin_fetching: OpTime,
        /// Where applying starts.
        begin_applying: OpTime,
    },
    /// Read the source's top.
    ReadStopPoint {
        /// The source.
        source: ServerAddress,
    },
    /// Apply the buffer through this entry and make it durable.
    ApplyThrough(OpTimeAndWallTime),
    /// Read the source's rollback id again.
    ReadRollbackId {
        /// The source.
        source: ServerAddress,
    },
    /// Forget the attempt.
    Cancel,
}

/// Why the process must end. Going on would lose what was promised.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fatal {
    /// The set's history does not contain what this member knows to be committed.
    #[error(
        "the common point {common_point} is older than the commit point {commit_point}: \
         committed writes were lost elsewhere; restore this member or the set from a backup"
    )]
    RollbackBeforeCommitPoint {
        /// Where the histories part.
        common_point: OpTime,
        /// What was committed.
        commit_point: OpTime,
    },
    /// An initial sync would remove documents that no log accounts for.
    #[error(
        "this member holds documents but no oplog, and the copy of the set's data would remove them; \
         to keep them, start it without --replset and dump them (quorate dump); to let it copy \
         everything from the set, empty its data directory and start it again"
    )]
    DocumentsWithoutLog,
}

/// Everything a member asks of its host.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Something worth telling. No duty follows from it.
    Event(Event),
    /// Store this, sync it, then say `Persisted(ticket)`. In the order given.
    Persist {
        /// What to say when it is done.
        ticket: Ticket,
        /// What to store.
        change: Change,
    },
    /// Send a request to another member.
    Send {
        /// Its number, for the answer.
        request: RequestId,
        /// The receiver.
        to: ServerAddress,
        /// The request.
        message: Request,
        /// The answer is of no use after this.
        timeout: Duration,
    },
    /// Answer a request.
    Respond {
        /// The request that is answered.
        token: RequestToken,
        /// The answer.
        reply: Result<Reply, RequestError>,
    },
    /// Copy entries from this source, beginning with the one at `after`, until told otherwise.
    FetchFrom {
        /// Its number.
        fetch: FetchId,
        /// The source.
        source: ServerAddress,
        /// Our last entry, which must be the first to come.
        after: OpTime,
    },
    /// Stop copying. Entries that were not ordered by `ApplyThrough` are forgotten.
    CancelFetch {
        /// The fetch.
        fetch: FetchId,
    },
    /// Append the copied entries up to here to the oplog, and apply them.
    ApplyThrough {
        /// The last one.
        through: OpTime,
        /// Hold each entry back until it is this old.
        delay: Duration,
    },
    /// Append an entry that changes nothing, in this term.
    AppendNoop {
        /// The reason.
        reason: NoopReason,
        /// Its term.
        term: Term,
    },
    /// Walk our log and the source's back to the last entry they share.
    FindCommonPoint {
        /// The number of the search.
        fetch: FetchId,
        /// The source.
        source: ServerAddress,
    },
    /// Undo everything after this entry, keeping what is removed in files.
    RollBackTo {
        /// The last entry to keep.
        common_point: OpTimeAndWallTime,
    },
    /// Do a step of the initial sync.
    InitialSync {
        /// The attempt it belongs to.
        attempt: u32,
        /// The step.
        step: InitialSyncStep,
    },
    /// A waiting client has its answer.
    Acknowledge {
        /// The waiting client.
        waiter: WaiterId,
        /// The answer.
        result: Result<(), WriteConcernError>,
    },
    /// Interrupt the writes under way (11602) and start no others until the status is writable again.
    StopWrites,
    /// End the process.
    Halt(Fatal),
}
