//! What a primary does: catches up, drains, renews the configuration's term, writes its first entry,
//! and moves the commit point.
//!
//! docs/replication-rules.md#elections and #commit-point.

use std::sync::Arc;
use std::time::Duration;

use quorate_protocol::{MemberId, OpTime, OpTimeAndWallTime, ReplicaSetConfig};

use crate::commit_point::{majority_position, primary_commit_point};
use crate::event::{CatchUpEnd, Event, SourceLost};
use crate::member::Member;
use crate::output::{NoopReason, Output};
use crate::peer::{Contact, Peer};
use crate::quorum::{Counts, is_vote_majority};
use crate::role::{LeaderMode, Role};
use crate::timers::Timer;

/// A primary that wrote nothing for so long writes a no-op.
const PERIODIC_NOOP: Duration = Duration::from_secs(10);

impl Member {
    pub(crate) fn begin_leading(&mut self) {
        let timeout = self.settings().catch_up_timeout();
        if let Some(timeout) = timeout {
            self.timers.set(Timer::CatchUp, self.now + timeout);
        }
        self.heartbeat_all_now();
        self.check_majority_alive();
        if timeout == Some(Duration::ZERO) {
            self.end_catch_up(CatchUpEnd::TimedOut);
        } else {
            self.decide_catch_up();
        }
    }

    // -- Catching up -----------------------------------------------------------------------------

    /// A member answered or failed to.
    pub(crate) fn after_catch_up_news(&mut self, id: MemberId) {
        if let Role::Leader(leader) = &mut self.role
            && let LeaderMode::CatchingUp { heard, .. } = &mut leader.mode
        {
            heard.insert(id);
            self.decide_catch_up();
        }
    }

    pub(crate) fn on_catch_up_timer(&mut self) {
        if matches!(self.leader_mode(), Some(LeaderMode::CatchingUp { .. })) {
            self.end_catch_up(CatchUpEnd::TimedOut);
        }
    }

    /// The source we caught up from failed or is on another branch.
    pub(crate) fn give_up_catch_up_source(&mut self, source: MemberId) {
        if let Role::Leader(leader) = &mut self.role
            && let LeaderMode::CatchingUp { hopeless, target, .. } = &mut leader.mode
        {
            hopeless.insert(source);
            *target = None;
            self.decide_catch_up();
        }
    }

    pub(crate) fn decide_catch_up(&mut self) {
        let Some(LeaderMode::CatchingUp { heard, target, hopeless }) = self.leader_mode() else {
            return;
        };
        // Every member that might have more has spoken, or is known not to answer.
        let timeout = self.election_timeout();
        let is_silent = |peer: &Peer| {
            matches!(peer.contact, Contact::Down { .. })
                || peer.last_heard.is_none_or(|at| self.now.since(at) >= timeout)
        };
        let all_heard = self.peers.values().all(|peer| heard.contains(&peer.id) || is_silent(peer));
        if !all_heard {
            return;
        }
        let newest = self
            .peers
            .values()
            .filter(|peer| peer.shows_entries() && !is_silent(peer) && !hopeless.contains(&peer.id))
            .filter(|peer| peer.applied.op_time > self.sync.last_fetched())
            .max_by_key(|peer| (peer.applied.op_time, std::cmp::Reverse(peer.id)))
            .map(|peer| (peer.id, peer.applied.op_time));
        let (had_target, failed) = (target.is_some(), !hopeless.is_empty());
        match newest {
            None if self.sync.source().is_some()
                && self.log.applied().op_time < self.sync.last_fetched() => {}
            None if had_target => self.end_catch_up(CatchUpEnd::Reached),
            None if failed => self.end_catch_up(CatchUpEnd::SourceFailed),
            None => self.end_catch_up(CatchUpEnd::NothingNewer),
            Some((source, newest)) => {
                if self.sync.source().is_none() {
                    self.emit(Event::CatchUpStarted { target: newest, source });
                    self.fetch_from(source);
                }
                if let Role::Leader(leader) = &mut self.role
                    && let LeaderMode::CatchingUp { target, .. } = &mut leader.mode
                {
                    *target = Some(newest);
                }
            }
        }
    }

    fn end_catch_up(&mut self, end: CatchUpEnd) {
        self.timers.cancel(Timer::CatchUp);
        self.emit(Event::CatchUpEnded(end));
        self.drop_fetch(SourceLost::NoLongerWanted);
        self.set_leader_mode(LeaderMode::Draining);
        self.continue_drain();
    }

    fn set_leader_mode(&mut self, mode: LeaderMode) {
        if let Role::Leader(leader) = &mut self.role {
            leader.mode = mode;
        }
    }

    /// Everything that was copied must be applied before anything is written after it.
    pub(crate) fn continue_drain(&mut self) {
        let drained = self.log.applied().op_time >= self.sync.last_fetched();
        if !matches!(self.leader_mode(), Some(LeaderMode::Draining))
            || !drained
            || self.config.is_installing()
        {
            return;
        }
        let Some(config) = self.installed_config() else { return };
        self.set_leader_mode(LeaderMode::BumpingConfig);
        if config.term.is_none() || config.term == Some(self.term()) {
            return self.write_first_entry();
        }
        // Configurations of older terms stop being able to elect a primary once this one is on a
        // majority: without the bump they could, beside us.
        let mut renewed = (*config).clone();
        renewed.term = Some(self.term());
        self.store_config(Arc::new(renewed));
    }

    /// The configuration in force changed while this member leads.
    pub(crate) fn after_install_as_leader(&mut self) {
        match self.leader_mode() {
            Some(LeaderMode::BumpingConfig) => {
                let term = self.config.config().and_then(|config| config.term);
                if term.is_none() || term == Some(self.term()) {
                    self.write_first_entry();
                }
            }
            Some(LeaderMode::CatchingUp { .. }) => self.decide_catch_up(),
            Some(LeaderMode::Draining) => self.continue_drain(),
            _ => {}
        }
    }

    fn write_first_entry(&mut self) {
        self.set_leader_mode(LeaderMode::AwaitingNoop);
        self.outbox.push(Output::AppendNoop { reason: NoopReason::NewPrimary, term: self.term() });
    }

    // -- Entries ---------------------------------------------------------------------------------

    pub(crate) fn on_entries_appended(&mut self, last: OpTimeAndWallTime) {
        if self.note_written(last) {
            self.report_progress();
        }
    }

    pub(crate) fn on_entries_durable(&mut self, last: OpTimeAndWallTime) {
        if self.log.note_durable(last) {
            self.after_own_progress();
        }
    }

    pub(crate) fn on_applied(&mut self, last: OpTimeAndWallTime) {
        if self.log.note_applied(last) {
            self.after_own_progress();
            self.decide_catch_up();
            self.continue_drain();
        }
    }

    /// All positions at once, so that one report tells all of them: a report that named the written
    /// entry alone would make the next one, which matters, wait for its answer.
    pub(crate) fn on_log_moved(
        &mut self,
        written: OpTimeAndWallTime,
        applied: OpTimeAndWallTime,
        durable: OpTimeAndWallTime,
    ) {
        let longer = self.note_written(written);
        let applied = self.log.note_applied(applied);
        let safer = self.log.note_durable(durable);
        if longer || applied || safer {
            self.after_own_progress();
        }
        if applied {
            self.decide_catch_up();
            self.continue_drain();
        }
    }

    fn note_written(&mut self, last: OpTimeAndWallTime) -> bool {
        if !self.log.note_written(last) {
            return false;
        }
        self.sync.note_written(last.op_time);
        let term = self.term();
        if let Role::Leader(leader) = &mut self.role {
            self.timers.set(Timer::PeriodicNoop, self.now + PERIODIC_NOOP);
            if matches!(leader.mode, LeaderMode::AwaitingNoop) && last.op_time.term == term.0 {
                leader.first_of_term = Some(last.op_time);
                leader.mode = LeaderMode::Writable;
                self.emit(Event::Writable { term, first: last.op_time });
                self.heartbeat_all_now();
            }
        }
        self.restart_fetch_behind(last.op_time);
        self.believe_pending_commit_point();
        true
    }

    fn after_own_progress(&mut self) {
        self.recollect();
        self.advance_commit_point();
        self.report_progress();
        self.check_step_down();
    }

    pub(crate) fn on_periodic_noop_timer(&mut self) {
        if matches!(self.leader_mode(), Some(LeaderMode::Writable)) {
            let output = Output::AppendNoop { reason: NoopReason::Periodic, term: self.term() };
            self.outbox.push(output);
            self.timers.set(Timer::PeriodicNoop, self.now + PERIODIC_NOOP);
        }
    }

    // -- The commit point ------------------------------------------------------------------------

    pub(crate) fn first_of_term(&self) -> Option<OpTime> {
        match &self.role {
            Role::Leader(leader) => leader.first_of_term,
            _ => None,
        }
    }

    fn is_config_on_a_majority(&self, config: &ReplicaSetConfig) -> bool {
        let (own, me) = (Some(config.config_version()), self.me());
        is_vote_majority(config, |member| {
            let peer = self.peers.get(&member.id);
            Some(member.id) == me
                || peer.is_some_and(|p| p.config_version == own && p.term == self.term())
        })
    }

    pub(crate) fn advance_commit_point(&mut self) {
        let (Role::Leader(_), Some(config)) = (&self.role, self.installed_config()) else { return };
        if self.config.holds_commits() {
            self.decide_poll(false);
            return self.settle_waiters();
        }
        // Where arbiters make fewer copies commit than votes elect, the copies alone do not keep the
        // configuration before this one from electing a member without them: voters that have this
        // one do, since they refuse older ones.
        let counts = Counts::of(&config);
        if counts.write_majority < counts.majority_vote && !self.is_config_on_a_majority(&config) {
            return self.settle_waiters();
        }
        let majority =
            majority_position(&config, |id| self.acknowledged(id)).min(self.log.written());
        let advanced =
            primary_commit_point(self.log.commit_point(), majority, self.first_of_term());
        if let Some(commit_point) = advanced {
            self.log.note_committed(commit_point);
            self.emit(Event::CommitPointAdvanced(commit_point.op_time));
        }
        self.settle_waiters();
    }
}
