//! Leaving office on request, and staying out of it.
//!
//! Owns `replSetStepDown`, the handoff, `replSetFreeze` and `replSetMaintenance`.
//! docs/replication-rules.md#elections.

use std::time::Duration;

use quorate_protocol::{MemberConfig, MemberId, MemberState, Term};

use crate::error::RequestError;
use crate::event::{Event, StepDownReason};
use crate::input::{Reply, Request, RequestToken};
use crate::member::Member;
use crate::outbox::Asked;
use crate::output::Output;
use crate::peer::Peer;
use crate::quorum::Counts;
use crate::role::{Follower, LeaderMode, Role, StepDownAttempt};
use crate::timers::Timer;

/// `replSetMaintenance` can be nested; deeper than this is a mistake.
pub(crate) const MAX_MAINTENANCE_DEPTH: u32 = 1000;

/// Of two successors the one that has answered for longer is better, up to this: clients look at a
/// member that they lost every ten seconds, and cannot follow a primary that they have not seen.
const SETTLED: Duration = Duration::from_secs(10);

impl Member {
    pub(crate) fn on_step_down(
        &mut self,
        token: RequestToken,
        period: Duration,
        catch_up_period: Duration,
        force: bool,
    ) {
        if period.is_zero() {
            let error = RequestError::BadValue("the step-down period must be above 0");
            return self.respond(token, Err(error));
        }
        if catch_up_period > period {
            let error = RequestError::BadValue(
                "secondaryCatchUpPeriodSecs must not be longer than the period",
            );
            return self.respond(token, Err(error));
        }
        let now = self.now;
        match &mut self.role {
            Role::Leader(leader) => match leader.mode {
                LeaderMode::Writable => {
                    leader.mode = LeaderMode::AttemptingStepDown(StepDownAttempt {
                        token,
                        period,
                        force,
                        deadline: now + catch_up_period,
                    });
                }
                LeaderMode::AttemptingStepDown(_) => {
                    return self.respond(token, Err(RequestError::StepDownInProgress));
                }
                _ => return self.respond(token, Err(RequestError::NotWritablePrimary)),
            },
            _ => return self.respond(token, Err(RequestError::NotWritablePrimary)),
        }
        self.emit(Event::StepDownAttempted { wait: catch_up_period });
        self.outbox.push(Output::StopWrites);
        self.timers.set(Timer::StepDown, now + catch_up_period);
        // Members that are behind learn of it now, not with the next heartbeat.
        self.heartbeat_all_now();
        self.check_step_down();
        self.abandon_step_down_if_due();
    }

    pub(crate) fn on_step_down_timer(&mut self) {
        self.check_step_down();
        self.abandon_step_down_if_due();
    }

    /// Steps down if a majority, and among it an electable member, has everything.
    pub(crate) fn check_step_down(&mut self) {
        let Some(LeaderMode::AttemptingStepDown(attempt)) = self.leader_mode() else { return };
        let attempt = *attempt;
        let due = self.now >= attempt.deadline;
        if self.successor_is_ready() || (due && attempt.force) {
            // The attempt is over before the office is left: its answer is given once, below.
            if let Role::Leader(leader) = &mut self.role {
                leader.mode = LeaderMode::Writable;
            }
            self.leave_office(StepDownReason::Command);
            self.make_ineligible(attempt.period);
            self.respond(attempt.token, Ok(Reply::Done));
        }
    }

    fn abandon_step_down_if_due(&mut self) {
        let Some(LeaderMode::AttemptingStepDown(attempt)) = self.leader_mode() else { return };
        let attempt = *attempt;
        if self.now < attempt.deadline {
            return;
        }
        if let Role::Leader(leader) = &mut self.role {
            leader.mode = LeaderMode::Writable;
        }
        self.emit(Event::StepDownAbandoned);
        self.respond(attempt.token, Err(RequestError::NoCaughtUpSecondary));
    }

    fn successor_is_ready(&self) -> bool {
        let Some(config) = self.installed_config() else { return false };
        let last = self.log.written().op_time;
        let caught_up = |id: MemberId| self.acknowledged(id).applied.op_time >= last;
        let copies = config.voters().filter(|m| !m.arbiter_only && caught_up(m.id)).count();
        copies >= Counts::of(&config).write_majority && self.best_successor(&[]).is_some()
    }

    fn best_successor(&self, tried: &[MemberId]) -> Option<MemberId> {
        let config = self.installed_config()?;
        let last = self.log.written().op_time;
        self.peers
            .values()
            .filter(|peer| peer.is_up() && peer.state == MemberState::Secondary && peer.electable)
            .filter(|peer| peer.applied.op_time >= last && !tried.contains(&peer.id))
            .filter_map(|peer| Some((config.member(peer.id)?, self.in_sight_for(peer))))
            .filter(|(member, _)| member.is_electable())
            .max_by_key(|(member, in_sight)| {
                (member.priority, *in_sight, std::cmp::Reverse(member.id))
            })
            .map(|(member, _)| member.id)
    }

    fn in_sight_for(&self, peer: &Peer) -> Duration {
        peer.up_since.map_or(Duration::ZERO, |since| self.now.since(since)).min(SETTLED)
    }

    /// Steps down and asks the best successor to stand at once, so that no member waits for an election
    /// timeout. If none has everything yet, the first that has will be asked.
    pub(crate) fn leave_office(&mut self, why: StepDownReason) {
        let handed_off = self.hand_off_past(Vec::new());
        self.step_down(why);
        if let (false, Role::Follower(follower)) = (handed_off, &mut self.role) {
            follower.owes_hand_off = Some(self.ballot.term());
        }
    }

    /// Asks a successor that has everything by now, unless a later term has begun.
    pub(crate) fn hand_off_if_owed(&mut self) {
        let Role::Follower(Follower { owes_hand_off: Some(term), .. }) = &self.role else { return };
        let is_over = *term != self.term() || self.primary().is_some();
        if (is_over || self.hand_off_past(Vec::new()))
            && let Role::Follower(follower) = &mut self.role
        {
            follower.owes_hand_off = None;
        }
    }

    fn hand_off_past(&mut self, mut tried: Vec<MemberId>) -> bool {
        let Some(id) = self.best_successor(&tried) else { return false };
        let Some(peer) = self.peers.get(&id) else { return false };
        let address = peer.address.clone();
        self.emit(Event::HandedOff { to: id });
        tried.push(id);
        let asked = Asked::StepUp { tried, term: self.term() };
        let timeout = self.election_timeout();
        self.outbox.send(address, asked, Request::StepUp { skip_dry_run: true }, timeout);
        true
    }

    /// The successor cannot, whatever its last heartbeat said: it was frozen or killed since. As long
    /// as no member has stood, the next one is asked.
    pub(crate) fn on_hand_off_failed(&mut self, tried: Vec<MemberId>, term: Term) {
        if self.term() == term && self.primary().is_none() && matches!(self.role, Role::Follower(_))
        {
            self.hand_off_past(tried);
        }
    }

    /// Fails all requests that wait for this member to be primary.
    pub(crate) fn fail_everything_that_needs_a_primary(&mut self) {
        if let Some(LeaderMode::AttemptingStepDown(attempt)) = self.leader_mode() {
            let attempt = *attempt;
            // The office was lost otherwise, which is what the administrator wanted.
            self.make_ineligible(attempt.period);
            self.respond(attempt.token, Ok(Reply::Done));
        }
        self.fail_waiters();
        self.fail_reconfiguration();
    }

    fn make_ineligible(&mut self, period: Duration) {
        let until = self.now + period;
        self.candidacy.bar_until(until);
        self.timers.set(Timer::Unfreeze, until);
    }

    pub(crate) fn on_freeze(&mut self, token: RequestToken, period: Duration) {
        if !matches!(self.role, Role::Follower(_)) {
            let error = RequestError::NotSecondary(
                "only a secondary can be frozen; use replSetStepDown on the primary",
            );
            return self.respond(token, Err(error));
        }
        if period.is_zero() {
            self.unfreeze();
        } else {
            self.end_campaign("the member was frozen");
            self.make_ineligible(period);
            self.emit(Event::Frozen { period });
        }
        self.respond(token, Ok(Reply::Done));
    }

    pub(crate) fn on_unfreeze_timer(&mut self) {
        self.unfreeze();
    }

    fn unfreeze(&mut self) {
        self.timers.cancel(Timer::Unfreeze);
        if !self.candidacy.admit() {
            return;
        }
        self.emit(Event::Unfrozen);
        // A set that waits for this member alone should not wait any longer.
        let alone = self.installed_config().is_some_and(|config| {
            config.members.iter().filter(|member| member.is_electable()).count() == 1
        });
        if alone && self.own_config().is_some_and(MemberConfig::is_electable) {
            self.timers.set(Timer::Election, self.now);
        }
    }

    pub(crate) fn on_maintenance(&mut self, token: RequestToken, on: bool) {
        let refusal = match &self.role {
            Role::Follower(_) if on && self.maintenance >= MAX_MAINTENANCE_DEPTH => {
                Some(RequestError::BadValue("maintenance is nested too deeply; leave it first"))
            }
            Role::Follower(_) if !on && self.maintenance == 0 => {
                Some(RequestError::BadValue("the member is not in maintenance"))
            }
            Role::Follower(_) => None,
            _ => Some(RequestError::NotSecondary("only a secondary can be in maintenance")),
        };
        if let Some(error) = refusal {
            return self.respond(token, Err(error));
        }
        if on {
            self.end_campaign("the member is in maintenance");
            self.maintenance += 1;
        } else {
            self.maintenance -= 1;
        }
        self.respond(token, Ok(Reply::Done));
    }
}
