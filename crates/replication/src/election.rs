//! How a voter judges a candidate, and how a candidate reads the answers.
//!
//! Pure: what the voter knows comes in, a judgement comes out. docs/replication-rules.md#elections.
//! Safety rests on the plain
//! refusals alone (one vote per term, no vote for a shorter log or an older configuration); the
//! vetoes of the Replica Set Internals manual live in the dry run, where they can delay but never split.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use quorate_protocol::{
    ConfigVersion, ElectionReason, MemberConfig, MemberId, OpTime, OpTimeAndWallTime, Priority,
    ReplicaSetConfig, Term, Veto, VoteReply, VoteRequest,
};

use crate::quorum::Counts;

/// How near to the newest entry a better-priority member must be for others to wait for it.
pub(crate) const PRIORITY_PATIENCE_SECS: u32 = 10;
/// How near to the newest entry a member must be to take over by priority.
pub(crate) const TAKEOVER_FRESHNESS_SECS: u32 = 2;
/// The same, counted in entries, when both were written within one second.
pub(crate) const TAKEOVER_FRESHNESS_INCREMENTS: u32 = 1000;
/// After so many vetoed dry runs without a primary, the vetoes are ignored: a member that hears
/// others but is not heard must not keep the set without a primary for ever.
pub(crate) const MAX_VETOED_DRY_RUNS: u32 = 3;

/// A vote that was given, as stored in `local.replset.election`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastVote {
    /// In which term.
    pub term: Term,
    /// The candidate.
    pub candidate: MemberId,
}

/// What a voter knows of another reachable member that holds data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Visible {
    /// The member.
    pub id: MemberId,
    /// How far it is.
    pub applied: OpTime,
    /// Its priority.
    pub priority: Priority,
    /// Whether it is in a state to be elected, or is primary now.
    pub can_lead: bool,
}

/// What a voter knows when it is asked.
#[derive(Clone, Debug)]
pub(crate) struct Voter<'a> {
    /// Its configuration.
    pub config: &'a ReplicaSetConfig,
    /// Its term, after having seen the candidate's.
    pub term: Term,
    /// Its id.
    pub me: MemberId,
    /// Its vote of the highest term it voted in.
    pub last_vote: Option<LastVote>,
    /// The end of its log; the commit point, if it is an arbiter.
    pub last_written: OpTime,
    /// The primary of its term, if it is reachable or is the voter itself.
    pub primary: Option<MemberId>,
    /// The other reachable members that hold data, and itself unless it is an arbiter.
    pub visible: Vec<Visible>,
}

/// Why a vote is refused, in either round.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    /// Another set.
    #[error("the candidate's set is {found:?}, mine is {expected:?}")]
    SetName {
        /// The candidate's.
        found: String,
        /// The voter's.
        expected: String,
    },
    #[error("the candidate's {found:?} is behind mine ({expected:?})")]
    OldTerm {
        /// The candidate's.
        found: Term,
        /// The voter's.
        expected: Term,
    },
    /// An older configuration.
    #[error("the candidate's configuration {found} is older than mine ({expected})")]
    OldConfig {
        /// The candidate's.
        found: ConfigVersion,
        /// The voter's.
        expected: ConfigVersion,
    },
    /// A shorter log.
    #[error("the candidate's last entry {found} is behind mine ({expected})")]
    Behind {
        /// The candidate's.
        found: OpTime,
        /// The voter's.
        expected: OpTime,
    },
    /// Its disk was replaced: it may have voted in this term before.
    #[error("my disk was replaced, and I may have voted in this term before")]
    MemoryLost,
    /// The vote of this term is given.
    #[error("already voted for {candidate} in {term:?}")]
    AlreadyVoted { term: Term, candidate: MemberId },
    /// Votes given earlier are not on disk yet.
    #[error("my disk is too far behind to store a vote")]
    DiskBehind,
    /// No vote can be stored.
    #[error("my disk has failed, so that I can store no vote")]
    DiskFailed,
    /// An arbiter sees a good primary.
    #[error("I am an arbiter and see a healthy primary {0} of no lower priority")]
    ArbiterSeesPrimary(MemberId),
}

/// Whether the voter refuses, by the rules that hold in both rounds. The error is the reason for
/// the refusal.
pub(crate) fn judge(voter: &Voter<'_>, request: &VoteRequest) -> Result<(), Refusal> {
    if request.set_name != voter.config.set_name {
        let (found, expected) = (request.set_name.clone(), voter.config.set_name.clone());
        return Err(Refusal::SetName { found, expected });
    }
    if request.term < voter.term {
        return Err(Refusal::OldTerm { found: request.term, expected: voter.term });
    }
    let own_config = voter.config.config_version();
    if own_config.is_newer_than(request.config) {
        return Err(Refusal::OldConfig { found: request.config, expected: own_config });
    }
    if request.last_written < voter.last_written {
        let (found, expected) = (request.last_written, voter.last_written);
        return Err(Refusal::Behind { found, expected });
    }
    if !request.dry_run
        && let Some(LastVote { term, candidate }) = voter.last_vote
        && term >= request.term
    {
        return Err(Refusal::AlreadyVoted { term, candidate });
    }
    arbiter_prefers_primary(voter, request)
}

// An arbiter has no data of its own to protect it from being talked into replacing a good primary
// that only the candidate cannot see.
fn arbiter_prefers_primary(voter: &Voter<'_>, request: &VoteRequest) -> Result<(), Refusal> {
    let arbiter = voter.config.member(voter.me).is_some_and(|me| me.arbiter_only);
    if !arbiter || voter.config.config_version() != request.config {
        return Ok(());
    }
    let priority = |id| voter.config.member(id).map(MemberConfig::effective_priority);
    match voter.primary {
        Some(primary)
            if primary != request.candidate && priority(primary) >= priority(request.candidate) =>
        {
            Err(Refusal::ArbiterSeesPrimary(primary))
        }
        _ => Ok(()),
    }
}

/// The voter's veto, in a dry run.
pub(crate) fn veto(voter: &Voter<'_>, request: &VoteRequest) -> Option<Veto> {
    if !request.dry_run {
        return None;
    }
    let Some(candidate) = voter.config.member(request.candidate) else {
        return Some(Veto::NotAMember);
    };
    let others = || voter.visible.iter().filter(|seen| seen.id != request.candidate);
    let takes_over = matches!(
        request.reason,
        ElectionReason::PriorityTakeover | ElectionReason::Handoff | ElectionReason::StepUpRequest
    );
    let primary =
        voter.primary.and_then(|id| others().find(|seen| seen.id == id)).filter(|_| !takes_over);
    if let Some(primary) = primary {
        if primary.id == voter.me && primary.applied >= request.last_applied {
            return Some(Veto::IAmPrimary);
        }
        if primary.applied > request.last_applied {
            return Some(Veto::FresherPrimary(primary.id));
        }
    }
    // A takeover is from a primary that is ahead by nature: only the others are compared.
    let compared = || others().filter(|seen| !takes_over || voter.primary != Some(seen.id));
    if let Some(fresher) = compared()
        .filter(|seen| seen.applied > request.last_applied)
        .max_by_key(|seen| (seen.applied, seen.priority))
    {
        return Some(if fresher.priority.is_electable() {
            Veto::FresherMember(fresher.id)
        } else {
            Veto::FresherSecondaryOnlyMember(fresher.id)
        });
    }
    if takes_over || request.reason == ElectionReason::CatchUpTakeover {
        return None;
    }
    let newest = others().map(|seen| seen.applied).max().unwrap_or_default();
    let newest = newest.max(request.last_applied).timestamp.seconds;
    others()
        .filter(|seen| seen.can_lead && seen.priority > candidate.effective_priority())
        .filter(|seen| {
            newest.saturating_sub(seen.applied.timestamp.seconds) <= PRIORITY_PATIENCE_SECS
        })
        .max_by_key(|seen| seen.priority)
        .map(|seen| Veto::BetterPriority(seen.id))
}

/// The answers a candidate has so far.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct Tally {
    yes: BTreeSet<MemberId>,
    no: BTreeMap<MemberId, String>,
    silent: BTreeSet<MemberId>,
    vetoes: BTreeMap<MemberId, Veto>,
}

impl Tally {
    /// A tally with the candidate's own vote.
    pub(crate) fn with_own_vote(candidate: MemberId) -> Self {
        Self { yes: [candidate].into(), ..Self::default() }
    }

    /// Takes an answer. The first one of a member stands.
    pub(crate) fn record(&mut self, from: MemberId, reply: &VoteReply) {
        if self.has_heard(from) {
            return;
        }
        if let Some(veto) = reply.veto {
            self.vetoes.insert(from, veto);
        }
        if reply.vote_granted {
            self.yes.insert(from);
        } else {
            self.no.insert(from, reply.reason.clone());
        }
    }

    /// Notes that a member did not answer.
    pub(crate) fn record_silence(&mut self, from: MemberId) {
        if !self.has_heard(from) {
            self.silent.insert(from);
        }
    }

    /// Whether a member has answered or failed to.
    pub(crate) fn has_heard(&self, from: MemberId) -> bool {
        self.yes.contains(&from) || self.no.contains_key(&from) || self.silent.contains(&from)
    }

    /// The voters that said yes.
    pub(crate) fn votes_for(&self, config: &ReplicaSetConfig) -> usize {
        config.voters().filter(|member| self.yes.contains(&member.id)).count()
    }

    /// Whether the yes votes are a majority.
    pub(crate) fn has_majority(&self, config: &ReplicaSetConfig) -> bool {
        self.votes_for(config) >= Counts::of(config).majority_vote
    }

    /// Whether the votes still out cannot make a majority.
    pub(crate) fn is_lost(&self, config: &ReplicaSetConfig) -> bool {
        let possible = config
            .voters()
            .filter(|member| self.yes.contains(&member.id) || !self.has_heard(member.id))
            .count();
        possible < Counts::of(config).majority_vote
    }

    /// The first veto, by member.
    pub(crate) fn first_veto(&self) -> Option<(MemberId, Veto)> {
        self.vetoes.iter().next().map(|(id, veto)| (*id, *veto))
    }

    pub(crate) fn said_yes(&self, id: MemberId) -> bool {
        self.yes.contains(&id)
    }

    /// The refusals, by member.
    pub(crate) fn refusals(&self) -> impl Iterator<Item = (MemberId, &str)> {
        self.no.iter().map(|(id, reason)| (*id, reason.as_str()))
    }
}

/// How long a member waits before it takes over by priority: longer the more members outrank it, so
/// that the highest goes first.
pub(crate) fn priority_takeover_delay(
    config: &ReplicaSetConfig,
    me: MemberId,
    election_timeout: Duration,
) -> Duration {
    let mine = config.member(me).map_or(Priority::ZERO, MemberConfig::effective_priority);
    let rank = config.members.iter().filter(|m| m.effective_priority() > mine).count();
    election_timeout.saturating_mul(u32::try_from(rank).unwrap_or(u32::MAX).saturating_add(1))
}

/// Whether a member is fresh enough to take over by priority.
pub(crate) fn is_fresh_enough_for_takeover(mine: OpTime, newest: OpTime) -> bool {
    if mine.term != newest.term {
        return false;
    }
    let (mine, newest) = (mine.timestamp, newest.timestamp);
    if mine >= newest {
        return true;
    }
    if mine.seconds == newest.seconds {
        return newest.increment - mine.increment <= TAKEOVER_FRESHNESS_INCREMENTS;
    }
    newest.seconds - mine.seconds <= TAKEOVER_FRESHNESS_SECS
}

/// Whether a member may take over from a primary that does not catch up: it is ahead of it, no member
/// it sees is ahead of itself, and no entry of the primary's term exists, or the primary would have it.
pub(crate) fn may_take_over_to_catch_up(
    mine: OpTimeAndWallTime,
    primary: OpTimeAndWallTime,
    freshest_visible: OpTime,
    term: Term,
) -> bool {
    mine.op_time > primary.op_time && mine.op_time >= freshest_visible && mine.op_time.term < term.0
}

#[cfg(test)]
#[path = "election_tests.rs"]
mod tests;
