//! Heartbeats: who is there, in which term, with which configuration.
//!
//! Owns sending, answering and giving up heartbeats, the crash shortcut of the rulings, and what
//! follows from knowing the primary. docs/replication-rules.md#heartbeats.

use std::time::Duration;

use quorate_protocol::{
    ErrorCode, HeartbeatReply, HeartbeatRequest, MemberConfig, MemberId, MemberState,
    MonotonicTime, OpTimeAndWallTime, ServerAddress,
};

use crate::commit_point::{Teller, follower_commit_point};
use crate::error::RequestError;
use crate::event::{Event, StepDownReason};
use crate::input::{Reply, Request, RequestId, RequestToken, Unreachable};
use crate::member::Member;
use crate::outbox::Asked;
use crate::peer::{Contact, HeartbeatRound, Peer};
use crate::quorum::Counts;
use crate::role::{LeaderMode, Role};
use crate::sync_source::PINGS_BEFORE_CHOOSING;
use crate::timers::Timer;

/// How often a heartbeat is sent again within its budget before the member is called down.
pub(crate) const MAX_HEARTBEAT_RETRIES: u32 = 2;
/// A heartbeat without an answer for so long was probably lost, if its receiver calls on us since.
const LOST_AFTER: Duration = Duration::from_millis(500);
/// The codes by which a member refuses our credentials.
const AUTHENTICATION_CODES: [i32; 2] =
    [ErrorCode::UNAUTHORIZED.0, ErrorCode::AUTHENTICATION_FAILED.0];

impl Member {
    // -- Sending ---------------------------------------------------------------------------------

    pub(crate) fn on_heartbeat_timer(&mut self, id: MemberId) {
        let Some(peer) = self.peers.get(&id) else { return };
        match peer.round {
            // The host did not tell us in time: the budget of the round is spent.
            Some(round) => {
                self.outbox.give_up(round.request);
                self.on_heartbeat_failed(id, Unreachable::TimedOut);
            }
            None => self.send_heartbeat(id),
        }
    }

    pub(crate) fn heartbeat_all_now(&mut self) {
        let ids: Vec<MemberId> = self.peers.keys().copied().collect();
        for id in ids {
            self.heartbeat_now(id);
        }
    }

    /// A choice by distance needs two pings of each member: the second need not wait for its turn.
    pub(crate) fn measure_distances(&mut self) {
        let unmeasured = |peer: &&Peer| peer.is_up() && peer.pings < PINGS_BEFORE_CHOOSING;
        let ids: Vec<MemberId> = self.peers.values().filter(unmeasured).map(|p| p.id).collect();
        for id in ids {
            self.heartbeat_now(id);
        }
    }

    /// Sends a heartbeat unless one is under way.
    pub(crate) fn heartbeat_now(&mut self, id: MemberId) {
        if self.peers.get(&id).is_some_and(|peer| peer.round.is_none()) {
            self.send_heartbeat(id);
        }
    }

    fn send_heartbeat(&mut self, id: MemberId) {
        // A removed member only answers; the primary that adds it again sends it a heartbeat.
        if matches!(self.role, Role::Removed) {
            return;
        }
        let budget = self.settings().heartbeat_timeout();
        let Some(peer) = self.peers.get(&id) else { return };
        let (address, now) = (peer.address.clone(), self.now);
        let (started, attempts) =
            peer.round.map_or((now, 1), |round| (round.started, round.attempts + 1));
        let message = Request::Heartbeat(self.heartbeat_request(false));
        let left = budget.saturating_sub(now.since(started)).max(Duration::from_millis(1));
        // The last attempt has all the rest. The others leave time for one on a new connection: after a
        // cut that healed, the old one may hang for as long as the cut lasted.
        let patience = match attempts {
            1..=MAX_HEARTBEAT_RETRIES => left.min(budget / (MAX_HEARTBEAT_RETRIES + 1)),
            _ => left,
        };
        let request = self.outbox.send(address, Asked::Heartbeat { peer: id }, message, patience);
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.round = Some(HeartbeatRound { request, started, sent: now, attempts });
        }
        self.timers.set(Timer::Heartbeat(id), now + patience);
    }

    pub(crate) fn heartbeat_request(&self, check_empty: bool) -> HeartbeatRequest {
        HeartbeatRequest {
            set_name: self.options.set_name.clone(),
            config: self.config.config().map(|config| config.config_version()),
            from: self.own_address(),
            from_id: self.me(),
            term: self.term(),
            primary_id: self.primary(),
            check_empty,
        }
    }

    /// Two seconds by default; shorter while it has no source and wants one, or to keep an arbiter
    /// from learning of a primary later than its election timeout.
    fn heartbeat_interval(&self) -> Duration {
        let settings = self.settings();
        let half_timeout = settings.election_timeout() / 2;
        let interval = settings.heartbeat_interval();
        match &self.role {
            Role::Follower(_) if self.sync.source().is_none() => half_timeout.min(interval / 4),
            Role::InitialSync(_) => half_timeout.min(interval / 4),
            Role::Arbiter => half_timeout.min(interval),
            _ => interval,
        }
    }

    // -- Hearing ---------------------------------------------------------------------------------

    pub(crate) fn on_heartbeat_reply(
        &mut self,
        id: MemberId,
        request: RequestId,
        reply: Reply,
        round_trip: Duration,
    ) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let Some(round) = peer.round.filter(|round| round.request == request) else { return };
        let reply = match reply {
            Reply::Heartbeat(reply) if reply.set_name == self.options.set_name => reply,
            Reply::Refused { code, .. } if AUTHENTICATION_CODES.contains(&code) => {
                let (peer_address, known) = (peer.address.clone(), peer.authentication_failed);
                peer.authentication_failed = true;
                if !known {
                    self.emit(Event::AuthenticationFailed { peer: peer_address });
                }
                return self.on_heartbeat_failed(id, Unreachable::Other);
            }
            _ => return self.on_heartbeat_failed(id, Unreachable::Other),
        };
        let was_up = peer.is_up();
        peer.round = None;
        peer.measure(round_trip);
        // The term comes before everything else the reply says.
        self.adopt_term(reply.term);
        let Some(peer) = self.peers.get_mut(&id) else { return };
        peer.hear(self.now, round.sent, &reply);
        if !was_up {
            self.emit(Event::PeerUp { peer: id });
        }
        self.hear_for_memory(id, round.sent, reply.written.op_time);
        let next = self.now + self.heartbeat_interval();
        self.timers.set(Timer::Heartbeat(id), next);
        self.note_primary(id, &reply);
        self.believe_commit_point(reply.commit_point, Teller::Heartbeat);
        if let Some(config) = &reply.config {
            self.consider_config(config);
        }
        self.after_news_of(id);
    }

    /// Whatever may follow from news of a member, good or bad.
    pub(crate) fn after_news_of(&mut self, id: MemberId) {
        match &self.role {
            Role::Leader(_) => {
                self.advance_commit_point();
                self.check_majority_alive();
                self.after_catch_up_news(id);
                self.check_step_down();
                self.check_config_spread();
                self.clear_newly_added(id);
            }
            Role::Follower(follower) => {
                let (initiated, restarted) = (follower.initiated, follower.restarted);
                if initiated {
                    self.stand_if_initiated();
                }
                if restarted {
                    self.stand_if_all_restarted();
                }
                self.hand_off_if_owed();
                self.consider_takeovers();
                self.leave_source_if_down();
                if self.sync.source().is_none() {
                    self.timers.set_no_later(Timer::SyncSource, self.now);
                }
            }
            Role::InitialSync(_) => self.continue_initial_sync(),
            Role::Startup | Role::Removed | Role::Arbiter | Role::RollBack(_) => {}
        }
    }

    fn note_primary(&mut self, id: MemberId, reply: &HeartbeatReply) {
        let leads = reply.state == MemberState::Primary && reply.term == self.term();
        if leads && self.me() != Some(id) && !matches!(self.role, Role::Leader(_)) {
            if self.hear_of_primary(id) {
                // A member that was no use as a source a moment ago is the best one since it leads:
                // the first majority write of its term waits for us.
                self.forgive(id);
            }
        } else if self.primary() == Some(id) {
            self.forget_primary();
        }
    }

    /// The primary is alive: postpones the election.
    pub(crate) fn hear_from_primary(&mut self) {
        self.candidacy.forget_vetoed_dry_runs();
        if let Role::Follower(follower) = &mut self.role {
            follower.restarted = false;
            if !self.campaigns_against_primary() {
                self.end_campaign("there is a primary");
            }
            self.reset_election_timer();
        }
    }

    pub(crate) fn believe_commit_point(&mut self, told: OpTimeAndWallTime, teller: Teller) {
        let last = match &self.role {
            // An arbiter has no log; it keeps the commit point to refuse candidates behind it.
            Role::Arbiter => told,
            Role::Follower(_) => self.log.written(),
            _ => return,
        };
        if let Some(believed) = follower_commit_point(self.log.commit_point(), told, teller, last) {
            self.log.note_committed(believed);
            self.emit(Event::CommitPointAdvanced(believed.op_time));
        }
    }

    pub(crate) fn on_heartbeat_failed(&mut self, id: MemberId, cause: Unreachable) {
        let budget = self.settings().heartbeat_timeout();
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let Some(round) = peer.round else { return };
        if cause == Unreachable::Reset {
            peer.was_reset = true;
        }
        let crashed = cause == Unreachable::Refused && peer.was_reset;
        let budget_left = self.now.since(round.started) < budget;
        if !crashed && budget_left && round.attempts <= MAX_HEARTBEAT_RETRIES {
            return self.send_heartbeat(id);
        }
        peer.round = None;
        let was_up = !matches!(peer.contact, Contact::Down { .. });
        if was_up {
            peer.contact = Contact::Down { since: self.now, cause };
            self.emit(Event::PeerDown { peer: id, cause });
        }
        let next = self.now + self.heartbeat_interval();
        self.timers.set(Timer::Heartbeat(id), next);
        if crashed {
            if let Some(peer) = self.peers.get_mut(&id) {
                peer.was_reset = false;
            }
            self.on_crash(id);
        }
        self.after_news_of(id);
    }

    /// A connection broke. Ask again at once: a refusal will mean that the process is gone, silence
    /// may mean anything and waits for the election timeout.
    pub(crate) fn on_connection_reset(&mut self, address: &ServerAddress) {
        let Some(peer) = self.peers.values_mut().find(|peer| peer.address == *address) else {
            return;
        };
        peer.was_reset = true;
        let id = peer.id;
        if let Some(round) = peer.round.take() {
            self.outbox.give_up(round.request);
        }
        self.send_heartbeat(id);
    }

    fn on_crash(&mut self, id: MemberId) {
        if self.primary() != Some(id) || matches!(self.role, Role::Leader(_)) {
            return;
        }
        self.forget_primary();
        self.emit(Event::PrimaryCrashed { primary: id });
        self.stand_soon_after_crash();
    }

    // -- Answering -------------------------------------------------------------------------------

    pub(crate) fn on_heartbeat(&mut self, token: RequestToken, request: &HeartbeatRequest) {
        if request.set_name != self.options.set_name {
            let expected = self.options.set_name.clone();
            let found = request.set_name.clone();
            let error = RequestError::InconsistentSetNames { expected, found };
            return self.respond(token, Err(error));
        }
        if let (Some(me), Some(from)) = (self.me(), request.from_id)
            && me == from
        {
            return self.respond(token, Err(RequestError::DuplicateMemberId(from)));
        }
        if self.config.config().is_some() {
            self.adopt_term(request.term);
        }
        match &self.role {
            Role::Startup | Role::Removed => self.introduce_ourselves(request),
            _ => self.hear_request(request),
        }
        if matches!(self.role, Role::Removed) {
            return self.respond(token, Err(RequestError::Removed));
        }
        let reply = self.heartbeat_reply(request);
        self.respond(token, Ok(Reply::Heartbeat(Box::new(reply))));
    }

    // Without a (useful) configuration of its own, a member asks the member that contacts it.
    fn introduce_ourselves(&mut self, request: &HeartbeatRequest) {
        let (Some(from), Some(_)) = (&request.from, request.config) else { return };
        let now = self.now;
        let answered_by = |asked: &Asked| match asked {
            Asked::Introduction { until } => Some(*until),
            _ => None,
        };
        // The answer to an earlier one may have been lost.
        self.outbox.give_up_all(|asked| answered_by(asked).is_some_and(|until| until <= now));
        let under_way = self.outbox.under_way().any(|asked| answered_by(asked).is_some());
        if self.config.is_installing() || under_way {
            return;
        }
        let timeout = self.settings().heartbeat_interval();
        let message = Request::Heartbeat(self.heartbeat_request(false));
        self.outbox.send(
            from.clone(),
            Asked::Introduction { until: now + timeout },
            message,
            timeout,
        );
    }

    pub(crate) fn on_introduction(&mut self, reply: &HeartbeatReply) {
        if let Some(config) = &reply.config {
            self.consider_config(config);
        }
    }

    fn hear_request(&mut self, request: &HeartbeatRequest) {
        let Some(id) = request.from_id else { return };
        let own = self.config.config().map(|config| config.config_version());
        let (now, primary) = (self.now, self.primary());
        let Some(peer) = self.peers.get_mut(&id) else {
            // A member of a configuration that we lack.
            return self.introduce_ourselves(request);
        };
        peer.last_heartbeat_received = Some(now);
        let theirs_is_newer = match (request.config, own) {
            (Some(theirs), Some(own)) => theirs.is_newer_than(own),
            _ => false,
        };
        // Something about the sender is not as we last heard it: ask at once, not at the next beat.
        let back = !peer.is_up();
        let leads = request.primary_id == Some(id) && request.term == self.ballot.term();
        let news = back
            || peer.config_version != request.config
            || theirs_is_newer
            || (leads && primary != Some(id));
        // A heartbeat that it never got need not be waited for. One that it may answer late is sent again
        // as often as one that failed.
        let lost = peer.round.filter(|round| now.since(round.sent) >= LOST_AFTER);
        match lost {
            Some(round) if back => {
                peer.round = None;
                self.outbox.give_up(round.request);
                self.send_heartbeat(id);
            }
            Some(round) if news && round.attempts <= MAX_HEARTBEAT_RETRIES => {
                self.outbox.give_up(round.request);
                self.send_heartbeat(id);
            }
            Some(_) => {}
            None if news => self.heartbeat_now(id),
            None => {}
        }
    }

    fn heartbeat_reply(&self, request: &HeartbeatRequest) -> HeartbeatReply {
        let config = self.installed_config();
        let version = config.as_ref().map(|config| config.config_version());
        let theirs_is_older = match (version, request.config) {
            (Some(own), Some(theirs)) => own.is_newer_than(theirs),
            (Some(_), None) => true,
            (None, _) => false,
        };
        let (written, applied, durable) = self.reported_positions();
        let election_time = match &self.role {
            Role::Leader(leader) => leader.election_time(),
            _ => None,
        };
        HeartbeatReply {
            set_name: self.options.set_name.clone(),
            state: self.state(),
            config_version: version,
            term: self.term(),
            primary_id: self.primary(),
            syncing_to: self.sync_source_address(),
            electable: self.is_electable_now(),
            written,
            applied,
            durable,
            commit_point: self.log.commit_point(),
            election_time,
            replica_set_id: config.as_ref().and_then(|c| c.settings.replica_set_id),
            config: config.filter(|_| theirs_is_older),
            has_data: request.check_empty && self.has_data(),
        }
    }

    /// What it tells others of its log. A member that copies everything has nothing to show; an
    /// arbiter shows the commit point as applied, and never anything durable.
    pub(crate) fn reported_positions(
        &self,
    ) -> (OpTimeAndWallTime, OpTimeAndWallTime, OpTimeAndWallTime) {
        match &self.role {
            Role::InitialSync(_) | Role::Startup => Default::default(),
            Role::Arbiter => {
                (self.log.commit_point(), self.log.commit_point(), OpTimeAndWallTime::default())
            }
            _ if self.recollection.is_lost() => {
                // A copy that counts is a promise about older terms too, which it may have broken.
                let journalled = self
                    .installed_config()
                    .is_none_or(|config| config.write_concern_majority_journal_default);
                let applied = if journalled { self.log.applied() } else { Default::default() };
                (self.log.written(), applied, OpTimeAndWallTime::default())
            }
            _ => (self.log.written(), self.log.applied(), self.log.durable()),
        }
    }

    pub(crate) fn has_data(&self) -> bool {
        self.config.config().is_some() || !self.log.is_empty()
    }

    pub(crate) fn sync_source_address(&self) -> Option<ServerAddress> {
        let source = self.sync.source()?;
        self.peers.get(&source).map(|peer| peer.address.clone())
    }

    // -- The primary's own liveness --------------------------------------------------------------

    /// Steps down if a majority of the voters was not heard of for the election timeout. Progress
    /// reports count: a member that reaches us only through others is still there.
    pub(crate) fn check_majority_alive(&mut self) {
        let (Role::Leader(leader), Some(config)) = (&self.role, self.installed_config()) else {
            return;
        };
        let grace = leader.elected_at + config.settings.election_timeout();
        let me = self.me();
        let mut alive_until: Vec<MonotonicTime> = config
            .voters()
            .filter(|member| Some(member.id) != me)
            .filter_map(|member| self.peers.get(&member.id))
            .map(|peer| Self::alive_until(peer, config.settings.election_timeout()).max(grace))
            .collect();
        alive_until.sort_unstable_by(|a, b| b.cmp(a));
        let own = usize::from(self.own_config().is_some_and(MemberConfig::is_voter));
        let needed = Counts::of(&config).majority_vote.saturating_sub(own);
        let Some(last_needed) = needed.checked_sub(1) else { return };
        match alive_until.get(last_needed) {
            Some(end) if *end > self.now => self.timers.set(Timer::Liveness, *end),
            _ => self.step_down(StepDownReason::LostMajority),
        }
    }

    // A member whose process is gone counts as gone at once, unless it was heard of through others
    // since. One that does not answer may still reach us through them.
    fn alive_until(peer: &Peer, timeout: Duration) -> MonotonicTime {
        match (peer.contact, peer.last_heard) {
            (_, None) => MonotonicTime::ZERO,
            (Contact::Down { since, cause: Unreachable::Refused }, Some(heard))
                if heard <= since =>
            {
                heard
            }
            (_, Some(heard)) => heard + timeout,
        }
    }

    pub(crate) fn leader_mode(&self) -> Option<&LeaderMode> {
        match &self.role {
            Role::Leader(leader) => Some(&leader.mode),
            _ => None,
        }
    }
}
