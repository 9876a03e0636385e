//! What a member is at the moment, and the only doors from one role to another.
//!
//! ```text
//!                    config with me
//!   Startup ───────────────┬───────────────┬─────────────────┐
//!      ▲ (never back)      │ arbiterOnly   │ empty or wiped  │ has entries
//!                          ▼               ▼                 ▼
//!   Removed ◄── any     Arbiter       InitialSync ──────► Follower ◄────────┐
//!      │  config                           ▲   copied       │  ▲  │         │
//!      │  without me                       │                │  │  │ diverged│ undone
//!      └── config with me again ───────────┴────────────────┤  │  ▼         │
//!                                                      won  │  │ RollBack ──┘
//!                                                           ▼  │ stepped down
//!                                                         Leader
//! ```
//!
//! A follower's candidacy is part of the follower: a candidate that loses has not changed its role.

use std::collections::BTreeSet;
use std::time::Duration;

use quorate_protocol::{
    ElectionReason, MemberId, MemberState, MonotonicTime, OpTime, Term, Timestamp,
};

use crate::campaign::Campaign;
use crate::event::{Event, SourceLost, StepDownReason};
use crate::initial_sync::InitialSync;
use crate::input::{FetchId, RequestToken};
use crate::member::Member;
use crate::output::{Fatal, Output};
use crate::timers::Timer;

#[derive(Clone, Debug)]
pub(crate) enum Role {
    /// No configuration.
    Startup,
    /// A configuration without this member.
    Removed,
    /// Votes, holds no data.
    Arbiter,
    /// Copies all data.
    InitialSync(InitialSync),
    /// SECONDARY or RECOVERING.
    Follower(Follower),
    /// Undoes entries.
    RollBack(RollBack),
    /// PRIMARY.
    Leader(Leader),
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Follower {
    pub(crate) campaign: Option<Campaign>,
    /// Every source begins after our last entry: at this one, at the earliest.
    pub(crate) too_stale: Option<OpTime>,
    /// This member initiated the set and stands as soon as the others have the configuration.
    pub(crate) initiated: bool,
    /// The process has just started: it stands at once if the others have no primary either.
    pub(crate) restarted: bool,
    /// The member stepped down in this term before a successor had all entries, and asks the first that has them to stand.
    pub(crate) owes_hand_off: Option<Term>,
}

#[derive(Clone, Debug)]
pub(crate) struct RollBack {
    pub(crate) source: MemberId,
    pub(crate) stage: RollBackStage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RollBackStage {
    /// The logs are being compared.
    Searching(FetchId),
    /// The rollback id is being stored, then the entries are being removed.
    Undoing,
}

#[derive(Clone, Debug)]
pub(crate) struct Leader {
    pub(crate) mode: LeaderMode,
    pub(crate) reason: ElectionReason,
    pub(crate) elected_at: MonotonicTime,
    /// The new-primary no-op. Nothing commits before it is there.
    pub(crate) first_of_term: Option<OpTime>,
}

/// The inner mode of a primary.
///
/// ```text
///   CatchingUp ─► Draining ─► BumpingConfig ─► AwaitingNoop ─► Writable ◄─► AttemptingStepDown
/// ```
///
/// Only `Writable` takes clients' writes; every mode can end in a step-down.
#[derive(Clone, Debug)]
pub(crate) enum LeaderMode {
    /// Asks every member how far it is, then copies what is newer.
    CatchingUp { heard: BTreeSet<MemberId>, target: Option<OpTime>, hopeless: BTreeSet<MemberId> },
    /// Applies what was copied.
    Draining,
    /// Stores the configuration under the new term.
    BumpingConfig,
    /// Waits for its first entry.
    AwaitingNoop,
    /// Takes writes.
    Writable,
    /// Takes no writes; steps down as soon as a successor has everything.
    AttemptingStepDown(StepDownAttempt),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct StepDownAttempt {
    pub(crate) token: RequestToken,
    pub(crate) period: Duration,
    pub(crate) force: bool,
    pub(crate) deadline: MonotonicTime,
}

impl Leader {
    pub(crate) fn is_writable(&self) -> bool {
        matches!(self.mode, LeaderMode::Writable)
    }

    /// Whether it has written its first entry: what makes it a full primary in the others' eyes.
    pub(crate) fn has_begun(&self) -> bool {
        self.first_of_term.is_some()
    }

    pub(crate) fn election_time(&self) -> Option<Timestamp> {
        self.first_of_term.map(|first| first.timestamp)
    }
}

impl Member {
    /// The state to show.
    pub(crate) fn state(&self) -> MemberState {
        match &self.role {
            Role::Startup => MemberState::Startup,
            Role::Removed => MemberState::Removed,
            Role::Arbiter => MemberState::Arbiter,
            Role::InitialSync(_) => MemberState::Startup2,
            Role::RollBack(_) => MemberState::Rollback,
            Role::Leader(_) => MemberState::Primary,
            Role::Follower(follower) => {
                let consistent = self.log.is_consistent();
                if follower.too_stale.is_some()
                    || self.sync.has_diverged()
                    || self.maintenance > 0
                    || !consistent
                    || self.is_shut_out()
                {
                    MemberState::Recovering
                } else {
                    MemberState::Secondary
                }
            }
        }
    }

    // Every peer refuses our credentials: nothing we hold can be called current.
    fn is_shut_out(&self) -> bool {
        !self.peers.is_empty() && self.peers.values().all(|peer| peer.authentication_failed)
    }

    pub(crate) fn become_removed(&mut self) {
        self.leave_role_or_office(StepDownReason::Reconfig);
        self.forget_primary();
        self.role = Role::Removed;
    }

    pub(crate) fn become_arbiter(&mut self) {
        self.leave_role_or_office(StepDownReason::Reconfig);
        // What it held as another kind of member no longer counts as a replica.
        self.log.discard();
        self.sync.restart_at(OpTime::NULL);
        self.role = Role::Arbiter;
    }

    pub(crate) fn become_initial_syncing(&mut self) {
        self.leave_role();
        self.role = Role::InitialSync(InitialSync::new(self.now, self.copies.next_attempt()));
        if self.copies.would_remove_strange_documents() {
            return self.halt(Fatal::DocumentsWithoutLog);
        }
        self.begin_initial_sync();
    }

    /// What was found lets the process do nothing more.
    pub(crate) fn halt(&mut self, fatal: Fatal) {
        self.emit(Event::Fatal(fatal.clone()));
        self.outbox.push(Output::Halt(fatal));
        self.halted = true;
    }

    /// The door from a start, a rollback and an initial sync.
    pub(crate) fn become_follower(&mut self) {
        if self.lacks_indexes() {
            return self.copy_again_with_indexes();
        }
        self.leave_role();
        self.follow();
    }

    /// The door from office.
    pub(crate) fn step_down(&mut self, why: StepDownReason) {
        self.leave_role_or_office(why);
        self.follow();
    }

    fn follow(&mut self) {
        self.role = Role::Follower(Follower::default());
        self.reset_election_timer();
        self.timers.set(Timer::SyncSource, self.now);
    }

    pub(crate) fn become_rolling_back(&mut self, source: MemberId, fetch: FetchId) {
        self.leave_role();
        self.role = Role::RollBack(RollBack { source, stage: RollBackStage::Searching(fetch) });
    }

    pub(crate) fn become_leader(&mut self, reason: ElectionReason, term: Term) {
        assert!(matches!(self.role, Role::Follower(_)), "only a follower is elected");
        assert!(self.ballot.elects(term, self.me()), "a leader has its own stored vote");
        self.leave_role();
        self.forget_primary();
        self.candidacy.forget_vetoed_dry_runs();
        self.role = Role::Leader(Leader {
            mode: LeaderMode::CatchingUp {
                heard: BTreeSet::new(),
                target: None,
                hopeless: BTreeSet::new(),
            },
            reason,
            elected_at: self.now,
            first_of_term: None,
        });
        self.begin_leading();
    }

    fn leave_role_or_office(&mut self, why: StepDownReason) {
        self.end_what_the_role_began();
        if matches!(self.role, Role::Leader(_)) {
            self.emit(Event::SteppedDown { term: self.term(), reason: why });
            self.outbox.push(Output::StopWrites);
            self.fail_everything_that_needs_a_primary();
        }
    }

    fn leave_role(&mut self) {
        assert!(!matches!(self.role, Role::Leader(_)), "an office is left for a reason");
        self.end_what_the_role_began();
    }

    fn end_what_the_role_began(&mut self) {
        self.end_campaign("the member changed its role");
        self.drop_fetch(SourceLost::NoLongerWanted);
        for timer in [
            Timer::Election,
            Timer::Campaign,
            Timer::Liveness,
            Timer::PriorityTakeover,
            Timer::CatchUpTakeover,
            Timer::CatchUp,
            Timer::StepDown,
            Timer::SyncSource,
            Timer::PositionReport,
            Timer::PeriodicNoop,
            Timer::InitialSync,
        ] {
            self.timers.cancel(timer);
        }
        self.cancel_initial_sync();
    }
}
