//! Standing for election: when, the dry run, the vote, and answering other candidates.
//!
//! Owns the triggers and the two rounds. What a voter thinks of a candidate is `election`'s to say;
//! what a winner does is `leading`'s. docs/replication-rules.md#elections.

use std::time::Duration;

use quorate_protocol::{
    ElectionReason, MemberConfig, MemberId, MemberState, OpTimeAndWallTime, Priority,
    ReplicaSetConfig, Term, Veto, VoteReply, VoteRequest,
};

use crate::candidacy::VetoRecord;
use crate::election::{
    Refusal, Tally, Visible, Voter, is_fresh_enough_for_takeover, judge, may_take_over_to_catch_up,
    priority_takeover_delay, veto,
};
use crate::error::RequestError;
use crate::event::Event;
use crate::explain::CampaignRecord;
use crate::input::{Reply, Request, RequestToken};
use crate::member::Member;
use crate::outbox::{AfterPersist, Asked};
use crate::output::Change;
use crate::peer::{Contact, Peer};
use crate::quorum::{Counts, is_vote_majority};
use crate::role::{LeaderMode, Role};
use crate::timers::Timer;

/// The random part of the election timeout: up to this share of it.
const ELECTION_JITTER_PERCENT: u32 = 15;
/// After a crash, each member that others should be preferred to waits so much longer.
const CRASH_STAGGER: Duration = Duration::from_millis(60);
/// And a random bit, so that two that both think themselves first part soon.
const CRASH_JITTER: Duration = Duration::from_millis(20);
/// How long a member that gave way to another candidate leaves it the field, at least.
const GIVE_WAY: Duration = Duration::from_millis(120);
/// How long a process that has just started waits for the members that have not answered yet.
const RESTART_PATIENCE: Duration = Duration::from_secs(1);
/// How long a dry run waits for the last answers once it has a majority.
const DRY_RUN_PATIENCE: Duration = Duration::from_millis(500);

/// An election under way.
#[derive(Clone, Debug)]
pub(crate) struct Campaign {
    pub(crate) reason: ElectionReason,
    pub(crate) round: Round,
    /// The administrator or the former primary that waits for the outcome.
    pub(crate) asked_by: Option<RequestToken>,
}

#[derive(Clone, Debug)]
pub(crate) enum Round {
    DryRun {
        term: Term,
        tally: Tally,
        ignore_vetoes: bool,
    },
    /// The own vote is being stored.
    Storing {
        term: Term,
    },
    Vote {
        term: Term,
        tally: Tally,
    },
}

impl Member {
    // -- When to stand ---------------------------------------------------------------------------

    pub(crate) fn reset_election_timer(&mut self) {
        if self.shutting_down {
            return;
        }
        let timeout = self.election_timeout();
        let jitter = self.random.duration_up_to(timeout * ELECTION_JITTER_PERCENT / 100);
        self.candidacy.await_silence();
        self.timers.set(Timer::Election, self.now + timeout + jitter);
    }

    /// Whether it could lead, leaving reachability aside: what `electable` in a heartbeat says.
    pub(crate) fn is_electable_now(&self) -> bool {
        self.own_config().is_some_and(MemberConfig::is_electable)
            && self.state() == MemberState::Secondary
            && !self.candidacy.is_barred(self.now)
            && !self.log.is_empty()
            && !self.recollection.is_lost()
            && !self.shutting_down
    }

    pub(crate) fn why_not_standing(&self) -> Option<&'static str> {
        let config = self.installed_config();
        let reachable = self.reachable_voters();
        if !matches!(self.role, Role::Follower(_)) || self.state() != MemberState::Secondary {
            Some("not a secondary")
        } else if !self.own_config().is_some_and(MemberConfig::is_electable) {
            Some("priority 0")
        } else if self.candidacy.is_barred(self.now) {
            Some("frozen or stepped down a short while ago")
        } else if self.log.is_empty() {
            Some("no data yet")
        } else if self.config.is_changing() {
            Some("a configuration is being installed")
        } else if !config.is_some_and(|c| is_vote_majority(&c, |m| reachable.contains(&m.id))) {
            Some("no majority of voters in sight")
        } else if self.recollection.is_lost() {
            Some("its disk was replaced, and not every voter has answered since")
        } else if self.outbox.is_disk_behind() {
            Some("the disk is too far behind to store a vote")
        } else if self.shutting_down {
            Some("shutting down")
        } else {
            None
        }
    }

    pub(crate) fn on_election_timer(&mut self) {
        // The primary was not heard of for the whole timeout.
        self.forget_primary();
        if self.is_campaigning() {
            return self.timers.set(Timer::Election, self.now + DRY_RUN_PATIENCE);
        }
        let reason = if self.candidacy.tries_quickly() {
            ElectionReason::PrimaryCrashed
        } else {
            ElectionReason::ElectionTimeout
        };
        self.stand_or_wait(reason);
    }

    fn stand_or_wait(&mut self, reason: ElectionReason) {
        match self.why_not_standing() {
            None => self.stand(reason, None),
            Some(why) => {
                if self.own_config().is_some_and(MemberConfig::is_electable) {
                    self.emit(Event::CannotStand { why });
                }
                self.reset_election_timer();
            }
        }
    }

    /// After a crash no member waits for silence. Members go one after another, the likeliest winner
    /// first, so that the first to ask finds every vote still free.
    pub(crate) fn stand_soon_after_crash(&mut self) {
        if !matches!(self.role, Role::Follower(_)) {
            return;
        }
        self.candidacy.begin_quick_tries();
        let delay = self.crash_delay();
        self.timers.set(Timer::Election, self.now + delay);
    }

    fn crash_delay(&mut self) -> Duration {
        let me = self.me();
        let key = |seen: &Visible| (seen.priority, seen.applied, std::cmp::Reverse(seen.id));
        let visible = self.visible();
        let own = visible.iter().find(|seen| Some(seen.id) == me).map(key);
        let ahead = visible.iter().filter(|seen| seen.can_lead && Some(key(seen)) > own).count();
        let rank = u32::try_from(ahead).unwrap_or(u32::MAX);
        CRASH_STAGGER.saturating_mul(rank) + self.random.duration_up_to(CRASH_JITTER)
    }

    /// The initiator stands as soon as enough members have the configuration to vote for it.
    pub(crate) fn stand_if_initiated(&mut self) {
        let Some(config) = self.installed_config() else { return };
        let wanted = Some(config.config_version());
        let me = self.me();
        let ready = is_vote_majority(&config, |member| {
            Some(member.id) == me
                || self.peers.get(&member.id).is_some_and(|p| p.config_version == wanted)
        });
        if ready && !self.is_campaigning() && self.why_not_standing().is_none() {
            if let Role::Follower(follower) = &mut self.role {
                follower.initiated = false;
            }
            let alone = config.voters().count() == 1;
            let reason = if alone { ElectionReason::SingleNode } else { ElectionReason::Initiated };
            self.stand(reason, None);
        }
    }

    /// A process that has just started waits for no silence if every member that it reaches, a
    /// majority with itself, has no primary either: then the whole set was down. It asks in the next
    /// term like any candidate, so that a primary which it does not see is replaced, not doubled.
    pub(crate) fn stand_if_all_restarted(&mut self) {
        let Some(config) = self.installed_config() else { return };
        let voters = || config.voters().filter_map(|member| self.peers.get(&member.id));
        let settled = voters().all(|peer| peer.contact != Contact::Unheard)
            || self.now.since(self.presence.takes_part_since()) >= RESTART_PATIENCE;
        let told = self.peers.values().any(|peer| peer.is_up() && peer.told_primary.is_some());
        let primary = self.primary().is_some() || told;
        if settled && !primary && !self.is_campaigning() && self.why_not_standing().is_none() {
            if let Role::Follower(follower) = &mut self.role {
                follower.restarted = false;
            }
            self.emit(Event::AllRestarted);
            self.stand_soon_after_crash();
        }
    }

    /// The only voter has no other to wait for.
    pub(crate) fn stand_if_alone(&mut self) {
        let alone = self.installed_config().is_some_and(|config| config.voters().count() == 1);
        if alone && self.why_not_standing().is_none() {
            self.timers.set(Timer::Election, self.now);
        }
    }

    /// Whether to replace the primary: it has a lower priority, or it does not catch up.
    pub(crate) fn consider_takeovers(&mut self) {
        let (Some(config), Some(me)) = (self.installed_config(), self.me()) else { return };
        let primary = self.primary().filter(|id| *id != me).and_then(|id| self.peers.get(&id));
        let Some(primary) = primary.filter(|peer| peer.is_up()) else {
            self.timers.cancel(Timer::PriorityTakeover);
            self.timers.cancel(Timer::CatchUpTakeover);
            return;
        };
        let (primary_id, primary_applied) = (primary.id, primary.applied);
        let priority =
            |id| config.member(id).map_or(Priority::ZERO, MemberConfig::effective_priority);
        let outranks = priority(me) > priority(primary_id) && self.is_electable_now();
        if !outranks {
            self.timers.cancel(Timer::PriorityTakeover);
        } else if !self.timers.is_set(Timer::PriorityTakeover) {
            let timeout = config.settings.election_timeout();
            let jitter = self.random.duration_up_to(timeout * ELECTION_JITTER_PERCENT / 100);
            let delay = priority_takeover_delay(&config, me, timeout) + jitter;
            self.timers.set(Timer::PriorityTakeover, self.now + delay);
        }
        let fresher = self.is_electable_now() && self.may_take_over_to_catch_up(primary_applied);
        match config.settings.catch_up_takeover_delay().filter(|_| fresher) {
            None => self.timers.cancel(Timer::CatchUpTakeover),
            Some(delay) => {
                if !self.timers.is_set(Timer::CatchUpTakeover) {
                    self.timers.set(Timer::CatchUpTakeover, self.now + delay);
                }
            }
        }
    }

    fn may_take_over_to_catch_up(&self, primary: OpTimeAndWallTime) -> bool {
        let freshest = self.visible().iter().map(|seen| seen.applied).max().unwrap_or_default();
        may_take_over_to_catch_up(self.log.applied(), primary, freshest, self.term())
    }

    pub(crate) fn on_priority_takeover_timer(&mut self) {
        let newest = self.visible().iter().map(|seen| seen.applied).max().unwrap_or_default();
        if is_fresh_enough_for_takeover(self.log.applied().op_time, newest)
            && !self.is_campaigning()
            && self.why_not_standing().is_none()
        {
            self.stand(ElectionReason::PriorityTakeover, None);
        }
        // Set again for the next try, as long as the primary is outranked.
        self.consider_takeovers();
    }

    pub(crate) fn on_catch_up_takeover_timer(&mut self) {
        let primary = self.primary().and_then(|id| self.peers.get(&id)).map(|peer| peer.applied);
        if primary.is_some_and(|applied| self.may_take_over_to_catch_up(applied))
            && !self.is_campaigning()
            && self.why_not_standing().is_none()
        {
            self.stand(ElectionReason::CatchUpTakeover, None);
        }
        self.consider_takeovers();
    }

    pub(crate) fn on_step_up(&mut self, token: RequestToken, skip_dry_run: bool) {
        if matches!(self.role, Role::Leader(_)) {
            return self.respond(token, Ok(Reply::Done));
        }
        if self.is_campaigning() {
            let why = "an election is already under way".to_owned();
            return self.respond(token, Err(RequestError::StepUpFailed(why)));
        }
        if let Some(why) = self.why_not_standing() {
            return self.respond(token, Err(RequestError::StepUpFailed(why.to_owned())));
        }
        let reason =
            if skip_dry_run { ElectionReason::Handoff } else { ElectionReason::StepUpRequest };
        self.stand(reason, Some(token));
    }

    // -- Standing --------------------------------------------------------------------------------

    pub(crate) fn is_campaigning(&self) -> bool {
        matches!(&self.role, Role::Follower(follower) if follower.campaign.is_some())
    }

    /// Whether the campaign under way is meant to replace a living primary.
    pub(crate) fn campaigns_against_primary(&self) -> bool {
        let Role::Follower(follower) = &self.role else { return false };
        follower.campaign.as_ref().is_some_and(|campaign| {
            matches!(
                campaign.reason,
                ElectionReason::PriorityTakeover
                    | ElectionReason::CatchUpTakeover
                    | ElectionReason::StepUpRequest
                    | ElectionReason::Handoff
            )
        })
    }

    fn stand(&mut self, reason: ElectionReason, asked_by: Option<RequestToken>) {
        let (Some(config), Some(me)) = (self.installed_config(), self.me()) else { return };
        if config.voters().count() == 1 {
            return self.stand_for_real(ElectionReason::SingleNode, asked_by);
        }
        if reason == ElectionReason::Handoff {
            return self.stand_for_real(reason, asked_by);
        }
        self.candidacy.begin_try();
        let term = self.term();
        let ignore_vetoes = self.candidacy.is_vetoed_too_often() && self.primary().is_none();
        self.emit(Event::DryRunStarted { reason, term });
        if ignore_vetoes {
            self.emit(Event::VetoesIgnored { count: self.candidacy.vetoed_dry_runs() });
        }
        let request = self.vote_request(reason, true, term, me);
        let round = Round::DryRun { term, tally: Tally::with_own_vote(me), ignore_vetoes };
        self.set_campaign(Campaign { reason, round, asked_by });
        // The candidate applies the veto rules to itself first: it sees what the others see.
        let own = self.voter().and_then(|voter| veto(&voter, &request)).filter(|_| !ignore_vetoes);
        if let Some(objection) = own {
            return self.lose_dry_run_to_veto(me, objection);
        }
        let others: Vec<MemberId> = self.peers.keys().copied().collect();
        for id in others {
            self.ask_for_vote(id, request.clone());
        }
        self.timers.set(Timer::Campaign, self.now + self.dry_run_patience());
        self.decide_campaign(false);
    }

    fn dry_run_patience(&self) -> Duration {
        DRY_RUN_PATIENCE.min(self.election_timeout() / 2)
    }

    fn stand_for_real(&mut self, reason: ElectionReason, asked_by: Option<RequestToken>) {
        let Some(me) = self.me() else { return };
        let vote = self.ballot.stand(me);
        let term = vote.term;
        self.emit(Event::ElectionStarted { reason, term });
        self.set_campaign(Campaign { reason, round: Round::Storing { term }, asked_by });
        self.timers.set(Timer::Campaign, self.now + self.election_timeout());
        self.outbox.persist(Change::LastVote(vote), AfterPersist::Candidacy { term });
    }

    pub(crate) fn on_candidacy_stored(&mut self, stored: Term) {
        let Role::Follower(follower) = &mut self.role else { return };
        let Some(campaign) = &mut follower.campaign else { return };
        if !matches!(campaign.round, Round::Storing { term } if term == stored) {
            return;
        }
        let reason = campaign.reason;
        let (Some(config), Some(me)) = (self.installed_config(), self.me()) else { return };
        let request = self.vote_request(reason, false, stored, me);
        let tally = Tally::with_own_vote(me);
        if let Role::Follower(follower) = &mut self.role
            && let Some(campaign) = &mut follower.campaign
        {
            campaign.round = Round::Vote { term: stored, tally };
        }
        for voter in config.voters().map(|member| member.id).filter(|id| *id != me) {
            self.ask_for_vote(voter, request.clone());
        }
        self.decide_campaign(false);
    }

    fn vote_request(
        &self,
        reason: ElectionReason,
        dry_run: bool,
        term: Term,
        candidate: MemberId,
    ) -> VoteRequest {
        let config = self.config.config().map(|config| config.config_version());
        VoteRequest {
            set_name: self.options.set_name.clone(),
            dry_run,
            term,
            candidate,
            reason,
            config: config.unwrap_or(quorate_protocol::ConfigVersion { term: None, version: 0 }),
            last_written: self.log.written().op_time,
            last_applied: self.log.applied().op_time,
        }
    }

    fn ask_for_vote(&mut self, id: MemberId, request: VoteRequest) {
        let Some(peer) = self.peers.get(&id) else { return };
        let address = peer.address.clone();
        let asked = Asked::Vote { peer: id, dry_run: request.dry_run, term: request.term };
        let timeout = self.election_timeout();
        self.outbox.send(address, asked, Request::Vote(request), timeout);
    }

    fn set_campaign(&mut self, campaign: Campaign) {
        if let Role::Follower(follower) = &mut self.role {
            follower.campaign = Some(campaign);
        }
    }

    // -- Counting --------------------------------------------------------------------------------

    pub(crate) fn on_vote_reply(
        &mut self,
        peer: MemberId,
        dry_run: bool,
        term: Term,
        reply: &VoteReply,
    ) {
        if reply.term > self.term() {
            return self.adopt_term(reply.term);
        }
        if let Some(tally) = self.tally_of(dry_run, term) {
            tally.record(peer, reply);
            if let (Some(veto), Some(me)) = (reply.veto, self.me()) {
                self.candidacy.note_veto(me, VetoRecord { by: peer, veto, at: self.now });
            }
            self.decide_campaign(false);
        }
    }

    pub(crate) fn on_no_vote(&mut self, peer: MemberId, dry_run: bool, term: Term) {
        if let Some(tally) = self.tally_of(dry_run, term) {
            tally.record_silence(peer);
            self.decide_campaign(false);
        }
    }

    fn tally_of(&mut self, was_dry_run: bool, asked_in: Term) -> Option<&mut Tally> {
        let Role::Follower(follower) = &mut self.role else { return None };
        match &mut follower.campaign.as_mut()?.round {
            Round::DryRun { term, tally, .. } if was_dry_run && *term == asked_in => Some(tally),
            Round::Vote { term, tally } if !was_dry_run && *term == asked_in => Some(tally),
            _ => None,
        }
    }

    pub(crate) fn on_campaign_timer(&mut self) {
        self.decide_campaign(true);
    }

    fn decide_campaign(&mut self, out_of_time: bool) {
        let Some(config) = self.installed_config() else { return };
        let Role::Follower(follower) = &self.role else { return };
        let Some(campaign) = &follower.campaign else { return };
        match &campaign.round {
            Round::DryRun { tally, ignore_vetoes, .. } => {
                let objection = tally.first_veto().filter(|_| !*ignore_vetoes);
                // A catch-up takeover is by the primary's leave.
                let primary_refuses = campaign.reason == ElectionReason::CatchUpTakeover
                    && self.primary().is_some_and(|id| !tally.said_yes(id));
                // Wait only for members that answered a recent heartbeat.
                let recent = config.settings.heartbeat_interval() * 2;
                let all_heard = self.peers.values().all(|peer| {
                    let lately = peer.last_heard.is_some_and(|at| self.now.since(at) < recent);
                    !peer.is_up() || !lately || tally.has_heard(peer.id)
                });
                if let Some((by, veto)) = objection {
                    self.lose_dry_run_to_veto(by, veto);
                } else if tally.has_majority(&config) && (all_heard || out_of_time) {
                    if primary_refuses {
                        return self.lose_campaign("the primary does not agree".to_owned());
                    }
                    let (reason, asked_by) = (campaign.reason, campaign.asked_by);
                    self.stand_for_real(reason, asked_by);
                } else if tally.is_lost(&config) || out_of_time {
                    self.lose_campaign(describe_loss(tally, &config));
                }
            }
            Round::Storing { .. } => {
                if out_of_time {
                    self.lose_campaign("the vote could not be stored in time".to_owned());
                }
            }
            Round::Vote { term, tally } => {
                if tally.has_majority(&config) {
                    let (term, votes) = (*term, tally.votes_for(&config));
                    self.win_campaign(term, votes);
                } else if tally.is_lost(&config) || out_of_time {
                    self.lose_campaign(describe_loss(tally, &config));
                }
            }
        }
    }

    fn win_campaign(&mut self, term: Term, votes: usize) {
        let Role::Follower(follower) = &mut self.role else { return };
        let Some(campaign) = follower.campaign.take() else { return };
        self.note_campaign(campaign.reason, format!("won with {votes} votes"));
        self.emit(Event::ElectionWon { term, votes });
        if let Some(token) = campaign.asked_by {
            self.respond(token, Ok(Reply::Done));
        }
        self.become_leader(campaign.reason, term);
    }

    fn lose_dry_run_to_veto(&mut self, by: MemberId, veto: Veto) {
        if let Some(me) = self.me() {
            self.candidacy.note_veto(me, VetoRecord { by, veto, at: self.now });
        }
        // Only a set without a primary has to fear being blocked; a veto by the primary itself proves
        // that there is one.
        let interval = self.settings().heartbeat_interval();
        if self.primary().is_none() && veto != Veto::IAmPrimary {
            self.candidacy.count_veto(self.now, interval);
        }
        if let Some(reason) = self.campaign_reason() {
            self.note_campaign(reason, format!("vetoed by {by}: {veto}"));
        }
        self.emit(Event::DryRunVetoed { by, veto, count: self.candidacy.vetoed_dry_runs() });
        // What the fresher member has is to be copied first: look at it now, not at the next beat.
        if let Veto::FresherMember(id) | Veto::FresherSecondaryOnlyMember(id) = veto {
            self.heartbeat_now(id);
        }
        let after_crash = self.candidacy.take_quick_try();
        let failure = RequestError::StepUpFailed(format!("vetoed by {by}: {veto}"));
        self.close_campaign(failure);
        let wait = if after_crash {
            CRASH_STAGGER + self.random.duration_up_to(CRASH_STAGGER)
        } else {
            interval + self.random.duration_up_to(interval / 2)
        };
        if self.primary().is_none() {
            self.timers.set(Timer::Election, self.now + wait);
        }
    }

    fn lose_campaign(&mut self, why: String) {
        let Role::Follower(follower) = &self.role else { return };
        let Some(campaign) = &follower.campaign else { return };
        let (reason, round) = (campaign.reason, campaign.round.clone());
        self.note_campaign(reason, format!("lost: {why}"));
        match round {
            Round::DryRun { .. } => self.emit(Event::DryRunLost { why: why.clone() }),
            Round::Storing { term } | Round::Vote { term, .. } => {
                self.emit(Event::ElectionLost { term, why: why.clone() });
            }
        }
        let after_crash = self.candidacy.take_quick_try();
        self.close_campaign(RequestError::StepUpFailed(why));
        if self.primary().is_some() {
            return;
        }
        if after_crash {
            let wait = CRASH_STAGGER + self.random.duration_up_to(CRASH_STAGGER * 4);
            self.timers.set(Timer::Election, self.now + wait);
        } else {
            self.reset_election_timer();
        }
    }

    /// Two members that miss the primary at the same moment would both win their dry run and then
    /// split the vote. So of two that are still asking, the worse one stops: the order is that of the
    /// likeliest winner, total, and both know it from the request. A candidate needs the other's
    /// answer, so a candidate that goes on has been told of no better one. A member that has said yes and was
    /// about to ask itself waits too, once before each try of its own: no candidate can hold it off for long.
    fn give_way_to(&mut self, other: &VoteRequest) {
        let Role::Follower(follower) = &self.role else { return };
        let (Some(me), Some(config)) = (self.me(), self.installed_config()) else { return };
        let wait = GIVE_WAY + self.random.duration_up_to(GIVE_WAY);
        let Some(campaign) = &follower.campaign else {
            if self.primary().is_none() && self.candidacy.give_way() {
                self.timers.set_no_earlier(Timer::Election, self.now + wait);
            }
            return;
        };
        let of_itself = matches!(
            campaign.reason,
            ElectionReason::ElectionTimeout | ElectionReason::PrimaryCrashed
        );
        let rank = |id, applied| {
            let priority = config.member(id).map(MemberConfig::effective_priority);
            (priority, applied, std::cmp::Reverse(id))
        };
        let better =
            rank(other.candidate, other.last_applied) > rank(me, self.log.applied().op_time);
        if !matches!(campaign.round, Round::DryRun { .. }) || !of_itself || !better {
            return;
        }
        let reason = campaign.reason;
        self.note_campaign(reason, format!("gave way to {}", other.candidate));
        self.emit(Event::GaveWay { to: other.candidate });
        let after_crash = self.candidacy.take_quick_try();
        self.close_campaign(RequestError::StepUpFailed("another member stands".to_owned()));
        let wait = if after_crash { wait } else { wait.max(self.dry_run_patience()) };
        self.timers.set(Timer::Election, self.now + wait);
    }

    fn campaign_reason(&self) -> Option<ElectionReason> {
        let Role::Follower(follower) = &self.role else { return None };
        follower.campaign.as_ref().map(|campaign| campaign.reason)
    }

    fn note_campaign(&mut self, reason: ElectionReason, outcome: String) {
        let (term, at) = (self.term(), self.now);
        self.candidacy.note_campaign(CampaignRecord { reason, term, outcome, at });
    }

    fn close_campaign(&mut self, failure: RequestError) {
        self.timers.cancel(Timer::Campaign);
        let Role::Follower(follower) = &mut self.role else { return };
        if let Some(token) = follower.campaign.take().and_then(|campaign| campaign.asked_by) {
            self.respond(token, Err(failure));
        }
    }

    /// Gives up the election under way, whatever stage it is in. A stored vote stays given.
    pub(crate) fn end_campaign(&mut self, why: &str) {
        if self.is_campaigning() {
            self.close_campaign(RequestError::StepUpFailed(why.to_owned()));
            // Standing took the timer: without it a member that is left alone would never try again.
            if !self.timers.is_set(Timer::Election) {
                self.reset_election_timer();
            }
        }
    }

    // -- Voting ----------------------------------------------------------------------------------

    pub(crate) fn on_vote_request(&mut self, token: RequestToken, request: &VoteRequest) {
        if self.me().is_none() {
            let error = if self.config.config().is_none() {
                RequestError::NotYetInitialized
            } else {
                RequestError::Removed
            };
            return self.respond(token, Err(error));
        }
        let (candidate, term, dry_run) = (request.candidate, request.term, request.dry_run);
        // Terms of another set do not count.
        if request.set_name == self.options.set_name {
            self.adopt_term(term);
        }
        let Some(voter) = self.voter() else { return };
        let judgement = if self.outbox.has_disk_failed() {
            Err(Refusal::DiskFailed)
        } else if self.outbox.is_disk_behind() {
            Err(Refusal::DiskBehind)
        } else if !self.recollection.allows_vote_in(term, dry_run) {
            Err(Refusal::MemoryLost)
        } else {
            judge(&voter, request)
        };
        let objection = veto(&voter, request);
        let own_term = self.term();
        let reply = |granted, reason: String| {
            Reply::Vote(VoteReply {
                term: own_term,
                vote_granted: granted,
                reason,
                veto: objection,
            })
        };
        if let Some(veto) = objection {
            self.emit(Event::Vetoed { candidate, veto });
            if let Some(me) = self.me() {
                self.candidacy.note_veto(candidate, VetoRecord { by: me, veto, at: self.now });
            }
        }
        match judgement {
            Err(refusal) => {
                let why = refusal.to_string();
                self.emit(Event::VoteRefused { candidate, term, dry_run, why: why.clone() });
                self.respond(token, Ok(reply(false, why)));
            }
            Ok(()) if dry_run => {
                let reply = reply(true, String::new());
                if objection.is_none() {
                    self.emit(Event::VoteGranted { candidate, term, dry_run });
                    self.give_way_to(request);
                }
                self.respond(token, Ok(reply));
            }
            Ok(()) => {
                // A candidate of this term has voted for itself; `judge` has refused already.
                self.emit(Event::VoteGranted { candidate, term, dry_run });
                let vote = self.ballot.vote_for(candidate);
                if matches!(self.role, Role::Follower(_)) {
                    self.reset_election_timer();
                }
                let reply = reply(true, String::new());
                self.outbox.persist(Change::LastVote(vote), AfterPersist::Vote { token, reply });
            }
        }
    }

    /// What this member knows as a voter.
    pub(crate) fn voter(&self) -> Option<Voter<'_>> {
        let (config, me) = (self.config.config()?, self.me()?);
        let primary = self.primary().filter(|id| {
            *id == me || self.peers.get(id).is_some_and(|peer| self.was_heard_lately(peer))
        });
        let last_written =
            if self.is_arbiter() { self.log.commit_point() } else { self.log.written() }.op_time;
        Some(Voter {
            config,
            term: self.term(),
            me,
            last_vote: self.ballot.last_vote(),
            last_written,
            primary,
            visible: self.visible(),
        })
    }

    /// The reachable members that show entries, this one among them.
    pub(crate) fn visible(&self) -> Vec<Visible> {
        let Some(config) = self.config.config() else { return Vec::new() };
        let mut visible = Vec::new();
        for member in config.members.iter().filter(|member| !member.arbiter_only) {
            let (shows, applied, can_lead) = if Some(member.id) == self.me() {
                let shows = matches!(self.role, Role::Follower(_) | Role::Leader(_));
                let leads = matches!(self.role, Role::Leader(_));
                (shows, self.log.applied(), leads || self.is_electable_now())
            } else {
                let Some(peer) = self.peers.get(&member.id) else { continue };
                let leads = peer.state == MemberState::Primary;
                let shows = peer.shows_entries() && self.was_heard_lately(peer);
                (shows, peer.applied, leads || peer.electable)
            };
            if shows {
                visible.push(Visible {
                    id: member.id,
                    applied: applied.op_time,
                    priority: member.effective_priority(),
                    can_lead: can_lead && member.is_electable(),
                });
            }
        }
        visible
    }

    // A member that is silent for the election timeout is no reason to wait, even if the heartbeat
    // that will call it down is still under way.
    fn was_heard_lately(&self, peer: &Peer) -> bool {
        let timeout = self.election_timeout();
        peer.is_up() && peer.last_heard.is_some_and(|at| self.now.since(at) < timeout)
    }

    /// Whether a leader has passed the stage in which configurations from others are ignored.
    pub(crate) fn is_writable_leader(&self) -> bool {
        matches!(self.leader_mode(), Some(LeaderMode::Writable | LeaderMode::AttemptingStepDown(_)))
    }
}

fn describe_loss(tally: &Tally, config: &ReplicaSetConfig) -> String {
    let needed = Counts::of(config).majority_vote;
    let mut text = format!("{} of {needed} votes", tally.votes_for(config));
    for (id, reason) in tally.refusals() {
        text.push_str(&format!("; {id}: {reason}"));
    }
    text
}
