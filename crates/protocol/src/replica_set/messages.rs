//! What members say to each other: heartbeats, votes, progress.

use std::fmt;
use std::sync::Arc;

use super::{ConfigVersion, MemberId, MemberState, ReplicaSetConfig, Term};
use crate::{ObjectId, OpTime, ServerAddress, Timestamp, WallTime};

/// A position in the oplog, and when the entry there was written by its primary's calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct OpTimeAndWallTime {
    /// `opTime`.
    pub op_time: OpTime,
    /// `wallTime`.
    pub wall_time: WallTime,
}

impl fmt::Display for OpTimeAndWallTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.op_time.fmt(f)
    }
}

/// `replSetHeartbeat`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeartbeatRequest {
    /// The set the sender was started for.
    pub set_name: String,
    /// The sender's configuration; `None` (−2 on the wire) before it has one.
    pub config: Option<ConfigVersion>,
    /// `from`: where the sender listens.
    pub from: Option<ServerAddress>,
    /// `fromId`.
    pub from_id: Option<MemberId>,
    /// `term`.
    pub term: Term,
    /// `primaryId`: the primary, as the sender believes.
    pub primary_id: Option<MemberId>,
    /// `checkEmpty`: asks whether the receiver holds data, before initiation.
    pub check_empty: bool,
}

/// The reply to `replSetHeartbeat`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeartbeatReply {
    /// `set`.
    pub set_name: String,
    /// `state`.
    pub state: MemberState,
    /// `v` and `configTerm`; `None` before the member has a configuration.
    pub config_version: Option<ConfigVersion>,
    /// `term`.
    pub term: Term,
    /// `primaryId`.
    pub primary_id: Option<MemberId>,
    /// `syncingTo`.
    pub syncing_to: Option<ServerAddress>,
    /// `electable`.
    pub electable: bool,
    /// `writtenOpTime` and `writtenWallTime`.
    pub written: OpTimeAndWallTime,
    /// `opTime` and `wallTime`.
    pub applied: OpTimeAndWallTime,
    /// `durableOpTime` and `durableWallTime`.
    pub durable: OpTimeAndWallTime,
    /// `lastOpCommitted` of `$replData`.
    pub commit_point: OpTimeAndWallTime,
    /// `electionTime`, of a primary.
    pub election_time: Option<Timestamp>,
    /// `config`, if the caller's is older.
    pub config: Option<Arc<ReplicaSetConfig>>,
    /// `hasData`, if the caller asked with `checkEmpty`.
    pub has_data: bool,
    /// `replicaSetId` of the member's configuration.
    pub replica_set_id: Option<ObjectId>,
}

crate::named! {
    /// Why a member stands for election. Decides which vetoes are waived.
    ///
    /// [`name`](Self::name) is the name in `electionCandidateMetrics.lastElectionReason` and in messages.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum ElectionReason {
        /// No primary was heard of for the election timeout.
        ElectionTimeout = "electionTimeout",
        /// The primary's connection was reset and its port refuses: its process is gone.
        PrimaryCrashed = "primaryCrashed",
        /// The set was initiated here, and its members have received the configuration.
        Initiated = "initiated",
        /// The member is the only one that can be elected.
        SingleNode = "singleNode",
        /// The primary has a lower priority.
        PriorityTakeover = "priorityTakeover",
        /// The primary was elected with older entries and does not catch up.
        CatchUpTakeover = "catchupTakeover",
        /// An administrator asked with `replSetStepUp`.
        StepUpRequest = "stepUpRequest",
        /// The primary that steps down asked, having checked that this member has everything.
        Handoff = "stepUpRequestSkipDryRun",
    }
}

/// `replSetRequestVotes`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VoteRequest {
    /// `setName`.
    pub set_name: String,
    /// `dryRun`: would you vote for me? Binds no voter.
    pub dry_run: bool,
    /// The term the candidate stands in; its present one in a dry run.
    pub term: Term,
    /// The candidate. The server sends an index into its configuration; an id stays true when the
    /// voter's configuration lists its members in another order.
    pub candidate: MemberId,
    /// The reason.
    pub reason: ElectionReason,
    /// `configVersion` and `configTerm`.
    pub config: ConfigVersion,
    /// `lastWrittenOpTime`.
    pub last_written: OpTime,
    /// `lastAppliedOpTime`.
    pub last_applied: OpTime,
}

/// The reply to `replSetRequestVotes`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VoteReply {
    /// The voter's term.
    pub term: Term,
    /// `voteGranted`.
    pub vote_granted: bool,
    /// `reason`: why not, for people.
    pub reason: String,
    /// A veto, in a dry run only.
    pub veto: Option<Veto>,
}

/// Why a member objects to a candidate, whatever the others think.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Veto {
    /// The candidate is not in the voter's configuration.
    NotAMember,
    /// A reachable member has newer entries.
    FresherMember(MemberId),
    /// A reachable member of priority 0 has newer entries; the candidate can copy them first.
    FresherSecondaryOnlyMember(MemberId),
    /// The voter sees a primary with newer entries.
    FresherPrimary(MemberId),
    /// The voter is the primary, and its entries are at least as new.
    IAmPrimary,
    /// A reachable electable member has a higher priority and is nearly as fresh as the freshest.
    BetterPriority(MemberId),
}

impl fmt::Display for Veto {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAMember => f.write_str("the candidate is not a member of my configuration"),
            Self::FresherMember(id) => write!(f, "{id} has newer entries than the candidate"),
            Self::FresherSecondaryOnlyMember(id) => {
                write!(f, "{id}, which cannot be primary, has newer entries to copy first")
            }
            Self::FresherPrimary(id) => write!(f, "the primary {id} has newer entries"),
            Self::IAmPrimary => f.write_str("I am primary and not behind the candidate"),
            Self::BetterPriority(id) => {
                write!(
                    f,
                    "{id} has a higher priority and is within ten seconds of the newest entry"
                )
            }
        }
    }
}

/// `replSetUpdatePosition`: how far members have come, told to the sync source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PositionReport {
    /// The sender's term. Looked at before the positions.
    pub term: Term,
    /// `optimes`: the sender's own position and those it forwards.
    pub positions: Vec<MemberPosition>,
}

/// How far one member has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberPosition {
    /// `memberId`.
    pub member: MemberId,
    /// `cfgver`.
    pub config_version: i64,
    /// `writtenOpTime`: in its oplog.
    pub written: OpTimeAndWallTime,
    /// `appliedOpTime`: in its data.
    pub applied: OpTimeAndWallTime,
    /// `durableOpTime`: on its disk.
    pub durable: OpTimeAndWallTime,
}
