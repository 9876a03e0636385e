//! Everything that can happen to a member.
//!
//! Time is no input of its own: every call of [`Member::handle`](crate::Member::handle) carries it.

use std::time::Duration;

use quorate_protocol::{
    HeartbeatReply, HeartbeatRequest, ObjectId, OpTime, OpTimeAndWallTime, PositionReport,
    ReplicaSetConfig, ServerAddress, Term, VoteReply, VoteRequest,
};

use crate::config_check::Allowances;
use crate::election::LastVote;
use crate::memory::Memory;
use crate::write_concern::WriteConcern;

macro_rules! identifier {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);
    };
}

identifier!(
    /// A request of this member to another. Numbered by the member.
    RequestId
);
identifier!(
    /// A request to this member. Numbered by the host.
    RequestToken
);
identifier!(
    /// A write that the member asked for. Numbered by the member.
    Ticket
);
identifier!(
    /// One run of copying entries from one source. Numbered by the member.
    FetchId
);
identifier!(
    /// A client that waits for its write to be acknowledged. Numbered by the host.
    WaiterId
);

/// What a member is started with and keeps until it ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberOptions {
    /// The set it was started for.
    pub set_name: String,
    /// The addresses by which others may list it.
    pub own_addresses: Vec<ServerAddress>,
    /// This process, for `topologyVersion`. New at every start.
    pub process_id: ObjectId,
    /// The `replicaSetId` of a set that is initiated here.
    pub new_replica_set_id: ObjectId,
    /// What the administrator allows beyond the defaults.
    pub allowances: Allowances,
}

/// What a member finds on its disk when it starts.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Recovered {
    /// `local.system.replset`.
    pub config: Option<ReplicaSetConfig>,
    /// The highest term that was stored.
    pub term: Term,
    /// `local.replset.election`.
    pub last_vote: Option<LastVote>,
    /// The last entry of the oplog after recovery; everything up to it is durable and applied.
    pub last: OpTimeAndWallTime,
    /// The commit point that storage remembers; null if it remembers none.
    pub commit_point: OpTimeAndWallTime,
    /// Data below this is not consistent.
    pub min_valid: OpTime,
    /// An initial sync was under way.
    pub initial_sync: bool,
    /// How many rollbacks there were.
    pub rollback_id: i32,
    /// What is still known of the votes that were given.
    pub memory: Memory,
    /// The data may lack indexes that the set has: the member was configured to build none.
    pub indexes_left_out: bool,
    /// There are documents that would be copied to others, whatever the oplog says.
    pub has_documents: bool,
}

/// What is asked of a member by another member, an administrator, or a primary that hands over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// `replSetHeartbeat`.
    Heartbeat(HeartbeatRequest),
    /// `replSetRequestVotes`.
    Vote(VoteRequest),
    /// `replSetUpdatePosition`.
    UpdatePosition(PositionReport),
    /// `replSetInitiate`; `None` is the empty document: a set of this member alone.
    Initiate(Option<Box<ReplicaSetConfig>>),
    /// `replSetReconfig`.
    Reconfig {
        /// The proposed configuration.
        config: Box<ReplicaSetConfig>,
        /// `force`.
        force: bool,
        /// `maxTimeMS`: how long to wait for a majority to install it.
        max_time: Option<Duration>,
    },
    /// `replSetStepDown`.
    StepDown {
        /// For how long the member will not stand again.
        period: Duration,
        /// `secondaryCatchUpPeriodSecs`.
        catch_up_period: Duration,
        /// `force`.
        force: bool,
    },
    /// `replSetStepUp`.
    StepUp {
        /// The sender is the primary that steps down and has already looked.
        skip_dry_run: bool,
    },
    /// `replSetFreeze`; zero unfreezes.
    Freeze(Duration),
    /// `replSetSyncFrom`.
    SyncFrom(ServerAddress),
    /// `replSetMaintenance`.
    Maintenance(bool),
}

impl Request {
    /// The name of the command.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Heartbeat(_) => "replSetHeartbeat",
            Self::Vote(_) => "replSetRequestVotes",
            Self::UpdatePosition(_) => "replSetUpdatePosition",
            Self::Initiate(_) => "replSetInitiate",
            Self::Reconfig { .. } => "replSetReconfig",
            Self::StepDown { .. } => "replSetStepDown",
            Self::StepUp { .. } => "replSetStepUp",
            Self::Freeze(_) => "replSetFreeze",
            Self::SyncFrom(_) => "replSetSyncFrom",
            Self::Maintenance(_) => "replSetMaintenance",
        }
    }
}

/// The answer to a [`Request`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// To a heartbeat.
    Heartbeat(Box<HeartbeatReply>),
    /// To a request for a vote.
    Vote(VoteReply),
    /// `ok: 1`.
    Done,
    /// To `replSetSyncFrom`.
    SyncFrom {
        /// `prevSyncTarget`.
        previous: Option<ServerAddress>,
        /// `warning`.
        warning: Option<String>,
    },
    /// `ok: 0`, from another member.
    Refused {
        /// `code`.
        code: i32,
        /// `errmsg`.
        message: String,
    },
}

/// Why a request got no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unreachable {
    /// Nothing came in time.
    TimedOut,
    /// The port refuses connections: no process listens there.
    Refused,
    /// The connection was reset while the request was under way.
    Reset,
    /// The name does not resolve, the route is missing, TLS failed.
    Other,
}

impl std::fmt::Display for Unreachable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::TimedOut => "timed out",
            Self::Refused => "connection refused",
            Self::Reset => "connection reset",
            Self::Other => "unreachable",
        })
    }
}

/// Entries that came from the sync source. The host keeps the entries, the member their positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchedBatch {
    /// The first entry of the first batch of a fetch, which must be our last one. Ignored later.
    pub first: Option<OpTime>,
    /// The entry that stands right before the entries of this batch in the source's log, read from
    /// that log together with them. Ignored in the first batch of a fetch, which begins with it.
    pub previous: Option<OpTime>,
    /// The last entry, if there is any beyond what we have.
    pub last: Option<OpTimeAndWallTime>,
    /// The source's oldest entry.
    pub source_oldest: OpTime,
    /// The source's newest entry.
    pub source_last: OpTimeAndWallTime,
    /// The source's commit point.
    pub commit_point: OpTimeAndWallTime,
    /// The source's term.
    pub term: Term,
    /// Whether the source is primary in that term.
    pub source_is_primary: bool,
    /// The source's rollback id. A change means its log has been cut since.
    pub rollback_id: i32,
}

/// Why copying entries ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FetchFailure {
    /// The connection broke or could not be made.
    Connection,
    /// The source answered with an error.
    Refused,
    /// The source no longer has the entry that its stream had come to: its oplog was trimmed past it.
    PlaceLost,
}

/// What the host did for an initial sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InitialSyncOutcome {
    /// All data but `local` is gone.
    Wiped,
    /// The source's state at the start.
    SourceRead {
        /// Its rollback id.
        rollback_id: i32,
        /// Entries are fetched from here: the start of the oldest open transaction, or the top.
        begin_fetching: OpTime,
        /// Entries are applied from here: the top.
        begin_applying: OpTime,
    },
    /// Everything is copied.
    Cloned,
    /// The source's top when the copy was complete.
    StopPointRead(OpTimeAndWallTime),
    /// The buffered entries are applied through the stop point, and durable.
    AppliedThrough(OpTimeAndWallTime),
    /// The source's rollback id at the end.
    RollbackIdRead(i32),
    /// The step failed in a way that may pass: it is tried again.
    Interrupted,
    /// The attempt failed.
    Failed,
}

/// Everything that can happen to a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// Time has passed; deadlines are due.
    Tick,
    /// A request. Each one is answered by one `Respond`.
    RequestReceived {
        /// The host's number for it.
        token: RequestToken,
        /// What is asked.
        request: Request,
    },
    /// Another member answered.
    ReplyReceived {
        /// The request.
        request: RequestId,
        /// The answer.
        reply: Reply,
        /// How long it took.
        round_trip: Duration,
    },
    /// Another member did not answer.
    PeerUnreachable {
        /// The request.
        request: RequestId,
        /// The cause.
        cause: Unreachable,
    },
    /// An idle connection to another member was reset: its process may be gone.
    ConnectionReset {
        /// The member.
        peer: ServerAddress,
    },
    /// The oplog grew: a client's write, an ordered no-op, or copied entries.
    EntriesAppended {
        /// Its last entry now.
        last: OpTimeAndWallTime,
    },
    /// The oplog is on disk up to here.
    EntriesDurable {
        /// The last entry that survives a crash.
        last: OpTimeAndWallTime,
    },
    /// The data reflects the oplog up to here.
    Applied {
        /// The last applied entry.
        last: OpTimeAndWallTime,
    },
    /// The three before in one: one report then tells the source everything.
    LogMoved {
        /// The last entry of the oplog.
        written: OpTimeAndWallTime,
        /// The last applied entry.
        applied: OpTimeAndWallTime,
        /// The last entry that survives a crash.
        durable: OpTimeAndWallTime,
    },
    /// An ordered write is on disk.
    Persisted(Ticket),
    /// Entries came from the source.
    EntriesFetched {
        /// The fetch.
        fetch: FetchId,
        /// The batch.
        batch: FetchedBatch,
    },
    /// Copying ended.
    FetchFailed {
        /// The fetch.
        fetch: FetchId,
        /// The cause.
        cause: FetchFailure,
    },
    /// The last entry that our log and the source's share.
    CommonPointFound {
        /// The search.
        fetch: FetchId,
        /// The last shared entry.
        common_point: OpTimeAndWallTime,
    },
    /// The source's whole oplog was compared with ours, and they share no entry.
    NoCommonPoint {
        /// The search.
        fetch: FetchId,
        /// The source's oldest entry.
        source_oldest: OpTime,
    },
    /// The search for a common point could not be finished.
    CommonPointUnknown {
        /// The search.
        fetch: FetchId,
    },
    /// The entries after the common point are undone, durably.
    RolledBack {
        /// The last entry now.
        last: OpTimeAndWallTime,
    },
    /// A step of the initial sync ended.
    InitialSync {
        /// The attempt it belongs to.
        attempt: u32,
        /// How it ended.
        outcome: InitialSyncOutcome,
    },
    /// A client waits for its write.
    AcknowledgementWanted {
        /// The host's number for it.
        waiter: WaiterId,
        /// The write's position; the newest entry, for a write that changed nothing.
        op_time: OpTime,
        /// What it waits for.
        concern: WriteConcern,
    },
    /// The client is gone.
    AcknowledgementAbandoned {
        /// The waiting client.
        waiter: WaiterId,
    },
    /// Whether a cluster-wide default write concern is set.
    DefaultWriteConcernSet(bool),
    /// The host called this name and reached this very process: others may list the member by it.
    ReachedUnder(ServerAddress),
    /// The process is about to end: hand over, tell clients.
    ShutdownWanted,
    /// A write to the disk failed: what the disk holds is unknown, and nothing is stored on it any more.
    DiskFailed,
}
