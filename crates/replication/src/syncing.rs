//! Copying entries from a source, and telling it how far we are.
//!
//! Owns the fetch under way, the list of members that failed us, and progress reports. `sync_source`
//! chooses the sync source and judges its first batch. docs/replication-rules.md#commit-point and #sync-source.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use quorate_protocol::{
    MemberConfig, MemberId, MemberPosition, MonotonicTime, OpTime, OpTimeAndWallTime,
    PositionReport, ServerAddress,
};

use crate::commit_point::Teller;
use crate::error::RequestError;
use crate::event::{Event, SourceLost};
use crate::input::{FetchFailure, FetchId, FetchedBatch, Reply, Request, RequestToken};
use crate::member::Member;
use crate::outbox::Asked;
use crate::output::Output;
use crate::role::{LeaderMode, Role};
use crate::sync_source::{
    Candidate, Choice, Chooser, FetchVerdict, FirstBatch, Leave, Stay, choose, judge_first_batch,
    may_serve, should_leave,
};
use crate::timers::Timer;

/// Nothing from the source for so long ends the fetch.
pub(crate) const SOURCE_SILENCE: Duration = Duration::from_secs(30);
/// A source that failed is not asked again for so long.
pub(crate) const DENY_AFTER_FAILURE: Duration = Duration::from_secs(10);
/// A source that threw away what we need is not asked again for so long.
pub(crate) const DENY_WHEN_STALE: Duration = Duration::from_secs(60);
/// Between two searches for a source.
pub(crate) const SOURCE_RETRY: Duration = Duration::from_secs(1);
/// The window in which changes to closer sources are counted.
const CHANGE_WINDOW: Duration = Duration::from_secs(3600);
/// `replSetSyncFrom` warns about a target this far behind.
const SYNC_FROM_WARNING_SECS: u32 = 10;

/// What belongs to copying.
#[derive(Clone, Debug)]
pub(crate) struct Sync {
    fetch: Option<Fetch>,
    /// The last entry that was ordered to be applied. At least our last written one.
    last_fetched: OpTime,
    /// A commit point on our branch that our log has not reached yet.
    pending_commit_point: Option<OpTimeAndWallTime>,
    forced: Option<MemberId>,
    denied: BTreeMap<MemberId, MonotonicTime>,
    /// The oldest entry of each source that was too new for us.
    stale: BTreeMap<MemberId, OpTime>,
    /// A source has shown that our last entries are not the set's, and cannot help to undo them.
    diverged: bool,
    /// When we changed to closer sources. At most as many as count.
    changes: VecDeque<MonotonicTime>,
    report: Report,
    /// When the last report was sent, if it may have arrived.
    reported_at: Option<MonotonicTime>,
}

#[derive(Clone, Copy, Debug)]
struct Fetch {
    id: FetchId,
    source: MemberId,
    asked: OpTime,
    /// Known after the first batch.
    rollback_id: Option<i32>,
    forced: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Report {
    Idle,
    UnderWay { more: bool },
}

impl Sync {
    pub(crate) fn new(last_fetched: OpTime) -> Self {
        Self {
            fetch: None,
            last_fetched,
            pending_commit_point: None,
            forced: None,
            denied: BTreeMap::new(),
            stale: BTreeMap::new(),
            diverged: false,
            changes: VecDeque::new(),
            report: Report::Idle,
            reported_at: None,
        }
    }

    /// The last entry that was ordered to be applied, or that this member has written.
    pub(crate) fn last_fetched(&self) -> OpTime {
        self.last_fetched
    }

    /// The log has an entry of this position.
    pub(crate) fn note_written(&mut self, last: OpTime) {
        self.last_fetched = self.last_fetched.max(last);
    }

    /// Whether our last entries are not the set's, and no source can help to undo them.
    pub(crate) fn has_diverged(&self) -> bool {
        self.diverged
    }

    /// The log ends here now, and no source has shown anything against it.
    pub(crate) fn restart_at(&mut self, last: OpTime) {
        self.last_fetched = last;
        self.diverged = false;
    }

    pub(crate) fn source(&self) -> Option<MemberId> {
        self.fetch.map(|fetch| fetch.source)
    }
}

impl Member {
    // -- Choosing --------------------------------------------------------------------------------

    pub(crate) fn sync_candidates(&self) -> Vec<Candidate> {
        let Some(config) = self.installed_config() else { return Vec::new() };
        let candidates = self.peers.values().filter_map(|peer| {
            let member = config.member(peer.id)?;
            Some(Candidate {
                id: peer.id,
                up: peer.is_up(),
                state: peer.shown_state(),
                applied: peer.applied.op_time,
                ping: peer.ping,
                pings: peer.pings,
                voter: member.is_voter(),
                hidden: member.hidden,
                build_indexes: member.build_indexes,
                delay: member.secondary_delay(),
                denied: self.sync.denied.get(&peer.id).is_some_and(|until| *until > self.now),
                primary: self.primary() == Some(peer.id),
                has_source: peer.syncing_to.is_some(),
            })
        });
        candidates.filter(|c| !config.member(c.id).is_some_and(|m| m.arbiter_only)).collect()
    }

    pub(crate) fn chooser(&self) -> Option<Chooser> {
        let own = self.own_config()?;
        Some(Chooser {
            last_fetched: self.sync.last_fetched,
            voter: own.is_voter(),
            build_indexes: own.build_indexes,
            delay: own.secondary_delay(),
            chaining_allowed: self.settings().chaining_allowed,
            forced: self.sync.forced,
            rescue: self.primary().is_none() && self.may_keep_others_from_a_primary(own),
            copies_everything: self.copies_everything(),
        })
    }

    /// Whether it has no data yet. Where its vote is needed no primary comes before it has copied.
    fn copies_everything(&self) -> bool {
        matches!(self.role, Role::InitialSync(_))
    }

    /// Whether the set may have no primary because of what this member lacks: it is the one that could lead, or its
    /// vote is needed and it gives none before it has copied.
    fn may_keep_others_from_a_primary(&self, own: &MemberConfig) -> bool {
        self.copies_everything() || self.recollection.is_lost() || self.is_refused(own)
    }

    /// Whether others keep it from office because of what it lacks.
    fn is_refused(&self, own: &MemberConfig) -> bool {
        own.is_electable() && self.candidacy.is_vetoed_too_often()
    }

    pub(crate) fn look_for_source(&mut self) {
        if !matches!(self.role, Role::Follower(_)) || self.sync.fetch.is_some() {
            return;
        }
        let Some(chooser) = self.chooser() else { return };
        match choose(chooser, &self.sync_candidates()) {
            Choice::Source(source) => self.fetch_from(source),
            choice @ (Choice::WaitForPings | Choice::NoSource) => {
                self.timers.set(Timer::SyncSource, self.now + SOURCE_RETRY);
                if choice == Choice::WaitForPings {
                    self.measure_distances();
                }
                self.check_too_stale();
            }
        }
    }

    pub(crate) fn fetch_from(&mut self, source: MemberId) {
        let Some(peer) = self.peers.get(&source) else { return };
        let address = peer.address.clone();
        let after = self.sync.last_fetched;
        let id = self.outbox.next_fetch_id();
        let forced = self.sync.forced.take() == Some(source);
        self.sync.reported_at = None;
        self.sync.fetch = Some(Fetch { id, source, asked: after, rollback_id: None, forced });
        self.emit(Event::SourceChosen { source, after });
        self.outbox.push(Output::FetchFrom { fetch: id, source: address, after });
        self.timers.set(Timer::FetchSilence, self.now + SOURCE_SILENCE);
        self.timers.cancel(Timer::SyncSource);
        self.timers.set(Timer::PositionReport, self.now + self.election_timeout() / 2);
        self.report_progress();
    }

    /// A write of a client came in while this member stepped down, after a fetch was ordered: the
    /// fetch begins again where the log ends now.
    pub(crate) fn restart_fetch_behind(&mut self, last: OpTime) {
        let Some(fetch) = self.sync.fetch else { return };
        let follows = matches!(self.role, Role::Follower(_));
        if follows && fetch.rollback_id.is_none() && fetch.asked < last {
            self.outbox.push(Output::CancelFetch { fetch: fetch.id });
            self.sync.fetch = None;
            self.fetch_from(fetch.source);
        }
    }

    /// Ends the fetch under way, if there is one, and tells the host.
    pub(crate) fn drop_fetch(&mut self, why: SourceLost) {
        let Some(fetch) = self.sync.fetch.take() else { return };
        self.timers.cancel(Timer::FetchSilence);
        self.timers.cancel(Timer::PositionReport);
        // A report to it that is still under way must not hold up those to the next source.
        self.on_position_report_silence();
        self.emit(Event::SourceLost { source: fetch.source, why });
        self.outbox.push(Output::CancelFetch { fetch: fetch.id });
        if matches!(self.role, Role::Follower(_)) {
            self.timers.set_no_later(Timer::SyncSource, self.now);
        }
    }

    pub(crate) fn deny(&mut self, source: MemberId, interval: Duration) {
        self.sync.denied.insert(source, self.now + interval);
    }

    /// The opposite of [`deny`](Self::deny).
    pub(crate) fn forgive(&mut self, source: MemberId) {
        self.sync.denied.remove(&source);
    }

    /// The source is out of question for a while; look for another.
    fn lose_source(&mut self, why: SourceLost, deny: Option<Duration>) {
        let Some(source) = self.sync.source() else { return };
        if let Some(interval) = deny {
            self.deny(source, interval);
        }
        self.drop_fetch(why);
        if matches!(self.leader_mode(), Some(LeaderMode::CatchingUp { .. })) {
            self.give_up_catch_up_source(source);
        }
    }

    pub(crate) fn on_fetch_silence(&mut self) {
        self.lose_source(SourceLost::Silent, Some(DENY_AFTER_FAILURE));
    }

    pub(crate) fn on_fetch_failed(&mut self, id: FetchId, cause: FetchFailure) {
        if self.sync.fetch.is_some_and(|fetch| fetch.id == id) {
            let deny = match cause {
                FetchFailure::Refused => DENY_AFTER_FAILURE,
                FetchFailure::Connection | FetchFailure::PlaceLost => SOURCE_RETRY,
            };
            let why = match cause {
                FetchFailure::PlaceLost => SourceLost::Gap,
                FetchFailure::Connection | FetchFailure::Refused => SourceLost::Failed,
            };
            self.lose_source(why, Some(deny));
        }
    }

    // -- Entries ---------------------------------------------------------------------------------

    pub(crate) fn on_entries_fetched(&mut self, id: FetchId, batch: FetchedBatch) {
        let Some(fetch) = self.sync.fetch.filter(|fetch| fetch.id == id) else { return };
        self.adopt_term(batch.term);
        if self.sync.fetch.is_none_or(|fetch| fetch.id != id) {
            return;
        }
        match fetch.rollback_id {
            None => {
                if !self.accept_first_batch(fetch, &batch) {
                    return;
                }
            }
            Some(known) if known != batch.rollback_id => {
                return self.lose_source(SourceLost::RolledBack, None);
            }
            // Entries that do not follow our last one would leave a hole: the next fetch begins with
            // our last entry again, which shows whether the source still has it.
            Some(_) if batch.last.is_some() && batch.previous != Some(self.sync.last_fetched) => {
                return self.lose_source(SourceLost::Gap, Some(SOURCE_RETRY));
            }
            Some(_) => {}
        }
        self.timers.set(Timer::FetchSilence, self.now + SOURCE_SILENCE);
        if let Role::Follower(follower) = &mut self.role {
            follower.too_stale = None;
            self.sync.stale.clear();
            self.sync.diverged = false;
        }
        if batch.source_is_primary && batch.term == self.term() {
            self.hear_of_primary(fetch.source);
        }
        if let Some(last) = batch.last.filter(|last| last.op_time > self.sync.last_fetched) {
            self.sync.last_fetched = last.op_time;
            let delay = self.own_config().map_or(Duration::ZERO, |own| own.secondary_delay());
            self.outbox.push(Output::ApplyThrough { through: last.op_time, delay });
        }
        self.learn_commit_point(&batch);
        self.reconsider_source();
    }

    // Our log through `last_fetched` is a prefix of the source's: what it calls committed up to
    // there is committed for us too, once we have written it.
    fn learn_commit_point(&mut self, batch: &FetchedBatch) {
        let end = batch.last.unwrap_or(self.log.written());
        if end.op_time == self.sync.last_fetched {
            self.sync.pending_commit_point = Some(batch.commit_point.min(end));
        }
        self.believe_pending_commit_point();
    }

    pub(crate) fn believe_pending_commit_point(&mut self) {
        if let Some(pending) = self.sync.pending_commit_point {
            self.believe_commit_point(pending, Teller::SyncSource);
            if pending <= self.log.commit_point() {
                self.sync.pending_commit_point = None;
            }
        }
    }

    fn accept_first_batch(&mut self, fetch: Fetch, batch: &FetchedBatch) -> bool {
        let verdict = judge_first_batch(FirstBatch {
            asked: fetch.asked,
            first: batch.first,
            source_oldest: batch.source_oldest,
            source_last: batch.source_last.op_time,
        });
        let may_roll_back = matches!(self.role, Role::Follower(_));
        match verdict {
            FetchVerdict::Continue => {
                if let Some(fetch) = &mut self.sync.fetch {
                    fetch.rollback_id = Some(batch.rollback_id);
                }
                return true;
            }
            // A new primary keeps its branch: the set has just chosen it.
            FetchVerdict::RollBack if may_roll_back => {
                // Entries still being applied must settle before they can be undone.
                if self.log.applied().op_time < self.sync.last_fetched {
                    self.lose_source(SourceLost::Behind, Some(SOURCE_RETRY));
                } else {
                    self.roll_back_against(fetch.source);
                }
            }
            FetchVerdict::RollBack | FetchVerdict::SourceBehind => {
                self.lose_source(SourceLost::Behind, Some(SOURCE_RETRY));
            }
            FetchVerdict::TooStale => {
                self.sync.stale.insert(fetch.source, batch.source_oldest);
                self.lose_source(SourceLost::TooStale, Some(DENY_WHEN_STALE));
                self.check_too_stale();
            }
        }
        false
    }

    /// A source does not have what is needed to undo our last entries: as good as one that is too new.
    pub(crate) fn note_divergence(&mut self, source: MemberId, source_oldest: OpTime) {
        self.sync.diverged = true;
        self.sync.stale.insert(source, source_oldest);
        self.deny(source, DENY_WHEN_STALE);
        self.check_too_stale();
    }

    /// Too stale is a verdict about every source: as long as one might help, it is not final.
    fn check_too_stale(&mut self) {
        let last = self.sync.last_fetched;
        let Some(me) = self.chooser() else { return };
        let hope = self.sync_candidates().iter().any(|candidate| {
            may_serve(me, candidate) && !self.sync.stale.contains_key(&candidate.id)
        });
        let oldest = self.sync.stale.values().min().copied();
        if let (false, Some(source_oldest), Role::Follower(follower)) =
            (hope, oldest, &mut self.role)
            && follower.too_stale.is_none()
        {
            follower.too_stale = Some(source_oldest);
            self.end_campaign("the member is too stale");
            self.emit(Event::TooStale { last, source_oldest });
        }
    }

    fn reconsider_source(&mut self) {
        let (Some(fetch), Some(me)) = (self.sync.fetch, self.chooser()) else { return };
        if !matches!(self.role, Role::Follower(_)) {
            return;
        }
        let now = self.now;
        self.sync.changes.retain(|at| now.since(*at) < CHANGE_WINDOW);
        let stay = Stay {
            me,
            source: fetch.source,
            source_was_forced: fetch.forced,
            changes_within_hour: self.sync.changes.len(),
        };
        if let Some(leave) = should_leave(stay, &self.sync_candidates()) {
            if matches!(leave, Leave::CloserSource(_)) {
                self.sync.changes.push_back(now);
            }
            self.drop_fetch(SourceLost::Left(leave));
        }
    }

    /// A source that does not answer heartbeats is left before its connection falls silent.
    pub(crate) fn leave_source_if_down(&mut self) {
        let Some(source) = self.sync.source() else { return };
        if self.peers.get(&source).is_none_or(|peer| !peer.is_up()) {
            self.lose_source(SourceLost::Left(Leave::NotUsable), None);
        }
    }

    /// The configuration changed: a source that is gone from it, or may not be one, is left.
    pub(crate) fn after_install_for_sync(&mut self) {
        let peers = &self.peers;
        self.sync.denied.retain(|id, _| peers.contains_key(id));
        self.sync.stale.retain(|id, _| peers.contains_key(id));
        if self.sync.source().is_some_and(|source| !self.peers.contains_key(&source)) {
            self.drop_fetch(SourceLost::Left(Leave::NotUsable));
        } else {
            self.reconsider_source();
        }
    }

    pub(crate) fn on_sync_from(&mut self, token: RequestToken, target: &ServerAddress) {
        let error = match &self.role {
            Role::Startup | Role::Removed => Some(RequestError::NotYetInitialized),
            Role::Leader(_) => Some(RequestError::NotSecondary("a primary has no sync source")),
            Role::Arbiter => Some(RequestError::NotSecondary("an arbiter holds no data to sync")),
            _ => None,
        };
        if let Some(error) = error {
            return self.respond(token, Err(error));
        }
        if self.own_address().as_ref() == Some(target) {
            let error = RequestError::InvalidOptions("a member cannot sync from itself");
            return self.respond(token, Err(error));
        }
        let Some(peer) = self.peers.values().find(|peer| peer.address == *target) else {
            return self.respond(token, Err(RequestError::UnknownHost(target.clone())));
        };
        let (id, up, applied) = (peer.id, peer.is_up(), peer.applied.op_time);
        let target_config = self.installed_config().and_then(|c| c.member(id).cloned());
        if target_config.as_ref().is_some_and(|member| member.arbiter_only) {
            let error = RequestError::InvalidOptions("an arbiter has nothing to sync from");
            return self.respond(token, Err(error));
        }
        if target_config.as_ref().is_some_and(|member| member.hidden) {
            let error = RequestError::InvalidOptions("a hidden member is no sync source");
            return self.respond(token, Err(error));
        }
        let own_builds = self.own_config().is_some_and(|own| own.build_indexes);
        if own_builds && target_config.is_some_and(|member| !member.build_indexes) {
            let error = RequestError::InvalidOptions(
                "a member that builds indexes cannot sync from one that does not",
            );
            return self.respond(token, Err(error));
        }
        if !up {
            return self.respond(token, Err(RequestError::HostUnreachable(target.clone())));
        }
        let lag =
            self.log.written().op_time.timestamp.seconds.saturating_sub(applied.timestamp.seconds);
        let warning = if applied.is_null() {
            Some(format!("{target} shows no entries yet; nothing will be copied from it so far"))
        } else {
            (lag > SYNC_FROM_WARNING_SECS).then(|| {
                format!("{target} is {lag} s behind this member; nothing will be copied yet")
            })
        };
        let previous = self.sync_source_address();
        self.drop_fetch(SourceLost::NoLongerWanted);
        self.sync.forced = Some(id);
        self.respond(token, Ok(Reply::SyncFrom { previous, warning }));
        self.look_for_source();
    }

    // -- Progress reports ------------------------------------------------------------------------

    /// Something moved here or downstream: tell the source, one report at a time.
    pub(crate) fn report_progress(&mut self) {
        if !matches!(self.role, Role::Follower(_)) {
            return;
        }
        let (Some(source), Some(_)) = (self.sync.source(), self.me()) else { return };
        if let Report::UnderWay { more } = &mut self.sync.report {
            *more = true;
            return;
        }
        let Some(peer) = self.peers.get(&source) else { return };
        let address = peer.address.clone();
        let report = PositionReport { term: self.term(), positions: self.known_positions() };
        self.sync.report = Report::UnderWay { more: false };
        self.sync.reported_at = Some(self.now);
        let timeout = self.election_timeout() / 2;
        self.outbox.send(address, Asked::Position, Request::UpdatePosition(report), timeout);
        self.timers.set(Timer::PositionReportSilence, self.now + timeout);
        self.timers.set(Timer::PositionReport, self.now + timeout);
    }

    fn known_positions(&self) -> Vec<MemberPosition> {
        let Some(config) = self.config.config() else { return Vec::new() };
        let config_version = config.version;
        let own = self.me().map(|member| {
            let (written, applied, durable) = self.reported_positions();
            MemberPosition { member, config_version, written, applied, durable }
        });
        // Only members heard of since the last report: the primary takes a repeated position as a
        // sign of life.
        let others = self.peers.values().filter(|peer| {
            !peer.written.op_time.is_null()
                && peer
                    .last_heard
                    .is_some_and(|heard| self.sync.reported_at.is_none_or(|at| heard >= at))
        });
        let others = others.map(|peer| MemberPosition {
            member: peer.id,
            config_version,
            written: peer.written,
            applied: peer.applied,
            durable: peer.durable,
        });
        own.into_iter().chain(others).collect()
    }

    pub(crate) fn on_position_reported(&mut self) {
        self.timers.cancel(Timer::PositionReportSilence);
        if let Report::UnderWay { more } = std::mem::replace(&mut self.sync.report, Report::Idle)
            && more
        {
            self.report_progress();
        }
    }

    pub(crate) fn on_position_report_silence(&mut self) {
        // The next progress, or the next keep-alive, sends everything again.
        self.timers.cancel(Timer::PositionReportSilence);
        self.outbox.give_up_all(|asked| matches!(asked, Asked::Position));
        self.sync.report = Report::Idle;
        self.sync.reported_at = None;
    }

    pub(crate) fn report_position_again(&mut self) {
        self.report_progress();
        if self.sync.source().is_some() {
            self.timers.set_no_later(Timer::PositionReport, self.now + self.election_timeout() / 2);
        }
    }

    pub(crate) fn on_update_position(&mut self, token: RequestToken, report: &PositionReport) {
        if self.me().is_none() {
            return self.respond(token, Err(RequestError::NotYetInitialized));
        }
        // The term first: a member that has voted in a later one must not be counted in ours.
        self.adopt_term(report.term);
        let (me, now) = (self.me(), self.now);
        let mut moved = false;
        let mut unknown = None;
        for position in &report.positions {
            if Some(position.member) == me {
                continue;
            }
            match self.peers.get_mut(&position.member) {
                Some(peer) => moved |= peer.hear_position(now, position),
                None => unknown = Some(position.member),
            }
        }
        let reply = unknown.map_or(Ok(Reply::Done), |id| Err(RequestError::UnknownMember(id)));
        self.respond(token, reply);
        if matches!(self.role, Role::Leader(_)) {
            self.advance_commit_point();
            self.check_majority_alive();
            self.check_step_down();
        } else if moved {
            self.hand_off_if_owed();
            self.report_progress();
        }
    }
}
