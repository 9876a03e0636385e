//! What is worth telling about a member: the one stream that logs, screens and the simulator share.

use std::fmt;
use std::time::Duration;

use quorate_protocol::{
    ConfigVersion, ElectionReason, MemberId, MemberState, OpTime, ServerAddress, Term, Veto,
};

use crate::input::Unreachable;
use crate::output::Fatal;
use crate::sync_source::Leave;

/// Why a primary is one no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StepDownReason {
    /// Another member is in a higher term.
    HigherTerm(Term),
    /// A majority of voters was not heard of for the election timeout.
    LostMajority,
    /// `replSetStepDown`.
    Command,
    /// The new configuration leaves this member out, or makes it unelectable.
    Reconfig,
    /// The process ends.
    Shutdown,
}

impl fmt::Display for StepDownReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HigherTerm(term) => write!(f, "{term:?} has begun"),
            Self::LostMajority => f.write_str("a majority of voters is silent"),
            Self::Command => f.write_str("it was asked to"),
            Self::Reconfig => f.write_str("the configuration no longer lets it lead"),
            Self::Shutdown => f.write_str("the process ends"),
        }
    }
}

/// How catching up ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CatchUpEnd {
    /// No reachable member had anything newer.
    NothingNewer,
    /// The target was reached.
    Reached,
    /// `catchUpTimeoutMillis` passed, or it is 0.
    TimedOut,
    /// The newer entries could not be copied.
    SourceFailed,
}

/// Why a source was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SourceLost {
    /// By the rules, after a batch.
    Left(Leave),
    /// Nothing came for 30 seconds.
    Silent,
    /// The connection failed.
    Failed,
    /// The source lacks our last entry.
    Behind,
    /// The source has dropped the entries that we need.
    TooStale,
    /// The source rolled back.
    RolledBack,
    /// Its entries do not follow ours: its oplog was trimmed past our last entry.
    Gap,
    /// This member changed its role or was told another source.
    NoLongerWanted,
}

/// Something worth telling.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the Display text of each variant is its documentation")]
#[non_exhaustive]
pub enum Event {
    StateChanged { from: MemberState, to: MemberState },
    TermRaised(Term),
    ConfigInstalled { version: ConfigVersion, members: usize },
    ConfigIgnored { version: ConfigVersion, why: String },
    PeerUp { peer: MemberId },
    PeerDown { peer: MemberId, cause: Unreachable },
    PrimaryCrashed { primary: MemberId },
    AllRestarted,
    PrimaryKnown { primary: MemberId, term: Term },
    DryRunStarted { reason: ElectionReason, term: Term },
    DryRunVetoed { by: MemberId, veto: Veto, count: u32 },
    DryRunLost { why: String },
    GaveWay { to: MemberId },
    VetoesIgnored { count: u32 },
    ElectionStarted { reason: ElectionReason, term: Term },
    ElectionWon { term: Term, votes: usize },
    ElectionLost { term: Term, why: String },
    CannotStand { why: &'static str },
    VoteGranted { candidate: MemberId, term: Term, dry_run: bool },
    VoteRefused { candidate: MemberId, term: Term, dry_run: bool, why: String },
    Vetoed { candidate: MemberId, veto: Veto },
    CatchUpStarted { target: OpTime, source: MemberId },
    CatchUpEnded(CatchUpEnd),
    Writable { term: Term, first: OpTime },
    StepDownAttempted { wait: Duration },
    StepDownAbandoned,
    SteppedDown { term: Term, reason: StepDownReason },
    HandedOff { to: MemberId },
    Frozen { period: Duration },
    Unfrozen,
    SourceChosen { source: MemberId, after: OpTime },
    SourceLost { source: MemberId, why: SourceLost },
    TooStale { last: OpTime, source_oldest: OpTime },
    CommitPointAdvanced(OpTime),
    RollbackStarted { source: MemberId, last: OpTime },
    RollbackFound { common_point: OpTime },
    CommonPointBeforeCopy { common_point: OpTime, consistent_from: OpTime },
    NoCommonPoint { source: MemberId, last: OpTime, source_oldest: OpTime },
    RolledBack { last: OpTime },
    InitialSyncStarted { source: MemberId, attempt: u32 },
    InitialSyncFailed { attempt: u32 },
    InitialSyncFinished { at: OpTime },
    AuthenticationFailed { peer: ServerAddress },
    MemoryLost,
    IndexesLacking,
    MemoryRegained { since: Term },
    ShuttingDown,
    Fatal(Fatal),
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StateChanged { from, to } => write!(f, "{from} -> {to}"),
            Self::TermRaised(term) => write!(f, "now in {term:?}"),
            Self::ConfigInstalled { version, members } => {
                write!(f, "installed configuration {version} of {members} members")
            }
            Self::ConfigIgnored { version, why } => {
                write!(f, "ignored configuration {version}: {why}")
            }
            Self::PeerUp { peer } => write!(f, "{peer} answers"),
            Self::PeerDown { peer, cause } => write!(f, "{peer} is down: {cause}"),
            Self::PrimaryCrashed { primary } => {
                write!(
                    f,
                    "the primary {primary} crashed: its connection was reset, its port refuses"
                )
            }
            Self::AllRestarted => f.write_str(
                "sees a majority and no primary after its start: stands without waiting",
            ),
            Self::PrimaryKnown { primary, term } => write!(f, "{primary} is primary of {term:?}"),
            Self::DryRunStarted { reason, term } => {
                write!(f, "asks all members for a dry run in {term:?} ({reason})")
            }
            Self::DryRunVetoed { by, veto, count } => {
                write!(f, "dry run {count} vetoed by {by}: {veto}")
            }
            Self::DryRunLost { why } => write!(f, "dry run lost: {why}"),
            Self::GaveWay { to } => write!(f, "gives way to {to}, which stands too"),
            Self::VetoesIgnored { count } => {
                write!(f, "ignores vetoes after {count} vetoed dry runs without a primary")
            }
            Self::ElectionStarted { reason, term } => {
                write!(f, "stands for election in {term:?} ({reason})")
            }
            Self::ElectionWon { term, votes } => write!(f, "won {term:?} with {votes} votes"),
            Self::ElectionLost { term, why } => write!(f, "lost {term:?}: {why}"),
            Self::CannotStand { why } => write!(f, "cannot stand: {why}"),
            Self::VoteGranted { candidate, term, dry_run } => {
                let what = if *dry_run { "would vote" } else { "votes" };
                write!(f, "{what} for {candidate} in {term:?}")
            }
            Self::VoteRefused { candidate, term, dry_run, why } => {
                let what = if *dry_run { "would refuse" } else { "refuses" };
                write!(f, "{what} {candidate} in {term:?}: {why}")
            }
            Self::Vetoed { candidate, veto } => write!(f, "vetoes {candidate}: {veto}"),
            Self::CatchUpStarted { target, source } => {
                write!(f, "catches up to {target} from {source}")
            }
            Self::CatchUpEnded(end) => f.write_str(match end {
                CatchUpEnd::NothingNewer => "caught up: no member has newer entries",
                CatchUpEnd::Reached => "caught up",
                CatchUpEnd::TimedOut => "stopped catching up: out of time",
                CatchUpEnd::SourceFailed => {
                    "stopped catching up: the newer entries are out of reach"
                }
            }),
            Self::Writable { term, first } => write!(f, "writable in {term:?} from {first}"),
            Self::StepDownAttempted { wait } => {
                write!(f, "stops writes to step down; waits up to {wait:?} for a successor")
            }
            Self::StepDownAbandoned => f.write_str("stays primary: no successor caught up"),
            Self::SteppedDown { term, reason } => write!(f, "steps down from {term:?}: {reason}"),
            Self::HandedOff { to } => write!(f, "asks {to} to take over"),
            Self::Frozen { period } => write!(f, "will not stand for {period:?}"),
            Self::Unfrozen => f.write_str("may stand again"),
            Self::SourceChosen { source, after } => write!(f, "copies from {source} after {after}"),
            Self::SourceLost { source, why } => write!(f, "leaves source {source}: {why}"),
            Self::TooStale { last, source_oldest } if source_oldest <= last => write!(
                f,
                "too stale: no member has the entries that are needed to undo its last ones (up to \
                 {last}); wipe its data directory to copy everything anew, or enlarge the oplog"
            ),
            Self::TooStale { last, source_oldest } => write!(
                f,
                "too stale: last entry {last}, every source begins at {source_oldest} or later, {} s \
                 on; wipe its data directory to copy everything anew, or enlarge the oplog",
                source_oldest.timestamp.seconds.saturating_sub(last.timestamp.seconds)
            ),
            Self::CommitPointAdvanced(op_time) => write!(f, "committed through {op_time}"),
            Self::RollbackStarted { source, last } => {
                write!(f, "its last entry {last} is not in {source}'s history: rolls back")
            }
            Self::RollbackFound { common_point } => {
                write!(f, "histories part after {common_point}")
            }
            Self::CommonPointBeforeCopy { common_point, consistent_from } => write!(
                f,
                "cannot roll back to {common_point}: its data was copied and is consistent from \
                 {consistent_from} on only; unless another member shares a later entry, wipe this \
                 member's data directory to copy everything anew"
            ),
            Self::NoCommonPoint { source, last, source_oldest } => write!(
                f,
                "cannot roll back: its log (last entry {last}) shares no entry with the oplog of \
                 {source}, which begins at {source_oldest}; unless another member has a longer \
                 oplog, wipe this member's data directory to copy everything anew"
            ),
            Self::RolledBack { last } => write!(f, "rolled back to {last}"),
            Self::InitialSyncStarted { source, attempt } => {
                write!(f, "initial sync, attempt {attempt}, from {source}")
            }
            Self::InitialSyncFailed { attempt } => {
                write!(f, "initial sync attempt {attempt} failed")
            }
            Self::InitialSyncFinished { at } => write!(f, "initial sync finished at {at}"),
            Self::AuthenticationFailed { peer } => {
                write!(f, "{peer} refuses our credentials; give all members one keyfile")
            }
            Self::IndexesLacking => f.write_str(
                "its data was copied without indexes, and the configuration wants them: copies \
                 everything anew",
            ),
            Self::MemoryLost => f.write_str(
                "joins with an empty disk: it gives no vote, and its copies count for no majority, \
                 until every other voter has answered it (it may have voted before)",
            ),
            Self::MemoryRegained { since } => {
                write!(f, "every other voter has answered: it votes in terms after {since:?}")
            }
            Self::ShuttingDown => f.write_str("shuts down"),
            Self::Fatal(fatal) => write!(f, "must end: {fatal}"),
        }
    }
}

impl fmt::Display for SourceLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Left(Leave::NotUsable) => f.write_str("it is gone or not readable"),
            Self::Left(Leave::ChainingForbidden) => f.write_str("only the primary may be a source"),
            Self::Left(Leave::DeadEnd) => f.write_str("it has no source and nothing new"),
            Self::Left(Leave::FarBehind(id)) => write!(f, "it is over 30 s behind {id}"),
            Self::Left(Leave::CloserSource(id)) => write!(f, "{id} is closer"),
            Self::Silent => f.write_str("silent for 30 s"),
            Self::Failed => f.write_str("the connection failed"),
            Self::Behind => f.write_str("it lacks our last entry"),
            Self::TooStale => f.write_str("it no longer has what we need next"),
            Self::RolledBack => f.write_str("it rolled back"),
            Self::Gap => f.write_str("its entries do not follow ours"),
            Self::NoLongerWanted => f.write_str("not wanted any more"),
        }
    }
}
