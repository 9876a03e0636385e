//! The member itself: its state, its five methods, and where each input goes.
//!
//! Owns dispatch. What each input means is said in the module of its subject; what belongs together is
//! kept in a value with rules of its own: the term and the vote ([`Ballot`]), tries to be elected
//! ([`Candidacy`]), configurations ([`Configuration`]), positions ([`OwnLog`]), copying ([`Sync`], [`Copies`]), orders
//! ([`Outbox`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use quorate_protocol::{
    MemberConfig, MemberId, MonotonicTime, OpTime, ReplicaSetConfig, ReplicaSetSettings,
    ServerAddress, Term,
};

use crate::ballot::Ballot;
use crate::candidacy::Candidacy;
use crate::commit_point::Acknowledged;
use crate::config_check::find_self;
use crate::error::RequestError;
use crate::event::{Event, StepDownReason};
use crate::initial_sync::Copies;
use crate::input::{
    Input, MemberOptions, Recovered, Reply, Request, RequestId, RequestToken, Ticket, Unreachable,
};
use crate::memory::Recollection;
use crate::outbox::{AfterPersist, Asked, Outbox};
use crate::output::{Change, Output};
use crate::own_log::OwnLog;
use crate::peer::Peer;
use crate::primary::OtherPrimary;
use crate::random::SeededRandom;
use crate::reconfiguring::Configuration;
use crate::role::Role;
use crate::status::Status;
use crate::syncing::Sync;
use crate::timers::{Timer, TimerTable};
use crate::waiting::Waiters;

/// Deadlines handled in one tick; more are left to the next, which is due at once.
const MAX_TIMERS_PER_TICK: usize = 1024;

/// One member of a replica set, without I/O.
///
/// The host calls [`handle`](Self::handle) with whatever happened and the time, then drains
/// [`poll_output`](Self::poll_output) until it is empty, before the next input. It calls `handle`
/// with [`Input::Tick`] at [`next_deadline`](Self::next_deadline). A new member has outputs already.
/// Between two inputs, [`status`](Self::status) answers questions.
///
/// The host's duties:
///
/// 1. `Persist` is carried out in order, synced, and reported by `Persisted`. A failure to sync ends
///    the process.
/// 2. A client's write is appended only while `status().is_writable()`, in the term the status shows,
///    with a timestamp above every earlier one; `EntriesAppended` follows before the next input.
/// 3. `EntriesDurable` and `Applied` (or `LogMoved`, for all three at once) follow as far as they are true; they need not be prompt, but
///    speak of the log as it is: after `RolledBack`, nothing is said of entries that were undone.
/// 4. Requests of others are answered only by `Respond`.
/// 5. A fetch begins with the entry at `after`, and copies on until it is cancelled or has failed.
#[derive(Clone, Debug)]
pub struct Member {
    pub(crate) options: MemberOptions,
    pub(crate) random: SeededRandom,
    pub(crate) now: MonotonicTime,
    pub(crate) presence: Presence,
    pub(crate) ballot: Ballot,
    pub(crate) recollection: Recollection,
    /// The data may lack indexes that the set has.
    pub(crate) indexes_left_out: bool,
    pub(crate) candidacy: Candidacy,
    pub(crate) config: Configuration,
    pub(crate) role: Role,
    pub(crate) peers: BTreeMap<MemberId, Peer>,
    pub(crate) log: OwnLog,
    pub(crate) other_primary: Option<OtherPrimary>,
    pub(crate) sync: Sync,
    pub(crate) copies: Copies,
    pub(crate) waiters: Waiters,
    pub(crate) maintenance: u32,
    pub(crate) rollback_id: i32,
    pub(crate) timers: TimerTable,
    pub(crate) outbox: Outbox,
    pub(crate) topology_counter: i64,
    pub(crate) shutting_down: bool,
    pub(crate) halted: bool,
}

/// Since when this process takes part in elections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Presence {
    started: MonotonicTime,
    /// When the process started, or was found in the configuration that it started with.
    takes_part_since: MonotonicTime,
    /// The process started with a configuration in which it has not found itself yet.
    is_sought: bool,
}

impl Presence {
    fn new(now: MonotonicTime) -> Self {
        Self { started: now, takes_part_since: now, is_sought: false }
    }

    pub(crate) fn started(&self) -> MonotonicTime {
        self.started
    }

    pub(crate) fn takes_part_since(&self) -> MonotonicTime {
        self.takes_part_since
    }

    /// The member is in its configuration after all. Until now it could not take part: as far as elections
    /// go, it starts only now. Says whether it was sought.
    fn found(&mut self, now: MonotonicTime) -> bool {
        let was_sought = std::mem::take(&mut self.is_sought);
        if was_sought {
            self.takes_part_since = now;
        }
        was_sought
    }
}

impl Member {
    /// A member that starts with what it found on its disk.
    pub fn new(
        options: MemberOptions,
        recovered: Recovered,
        seed: u64,
        now: MonotonicTime,
    ) -> Self {
        let Recovered { config, term, last_vote, last, commit_point, min_valid, .. } = recovered;
        let configured = config.as_ref().and_then(|config| config.term).unwrap_or_default();
        let term = term.max(configured).max(Term(last.op_time.term));
        let unfinished_copy = recovered.initial_sync;
        let strange_documents =
            recovered.has_documents && !unfinished_copy && last.op_time.is_null();
        let mut member = Self {
            options,
            random: SeededRandom::new(seed),
            now,
            presence: Presence::new(now),
            ballot: Ballot::recovered(term, last_vote),
            recollection: Recollection::new(recovered.memory, now),
            indexes_left_out: recovered.indexes_left_out,
            candidacy: Candidacy::default(),
            config: Configuration::default(),
            role: Role::Startup,
            peers: BTreeMap::new(),
            log: OwnLog::recovered(last, commit_point, min_valid),
            other_primary: None,
            sync: Sync::new(last.op_time),
            copies: Copies::new(strange_documents),
            waiters: Waiters::default(),
            maintenance: 0,
            rollback_id: recovered.rollback_id,
            timers: TimerTable::default(),
            outbox: Outbox::default(),
            topology_counter: 0,
            shutting_down: false,
            halted: false,
        };
        if unfinished_copy {
            // Whatever is there is an unfinished copy.
            member.log = OwnLog::default();
            member.sync = Sync::new(OpTime::NULL);
        }
        if let Some(config) = config {
            member.install(Arc::new(config));
            member.presence.is_sought = member.me().is_none();
            member.note_restart();
        }
        member.check_invariants();
        member
    }

    /// Takes one input. Drain [`poll_output`](Self::poll_output) afterwards.
    pub fn handle(&mut self, now: MonotonicTime, input: Input) {
        self.now = self.now.max(now);
        if self.halted {
            return;
        }
        let before = self.shown();
        self.dispatch(input);
        let after = self.shown();
        if before != after {
            self.topology_counter += 1;
            if before.state != after.state {
                self.emit(Event::StateChanged { from: before.state, to: after.state });
            }
        }
        self.check_invariants();
    }

    /// The next thing the host has to do.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outbox.pop()
    }

    /// When the next [`Input::Tick`] is due.
    pub fn next_deadline(&self) -> Option<MonotonicTime> {
        if self.halted { None } else { self.timers.next() }
    }

    /// What the member knows and is.
    pub fn status(&self) -> Status<'_> {
        Status::new(self)
    }

    fn dispatch(&mut self, input: Input) {
        match input {
            Input::Tick => self.on_tick(),
            Input::RequestReceived { token, request } => self.on_request(token, request),
            Input::ReplyReceived { request, reply, round_trip } => {
                self.on_reply(request, reply, round_trip);
            }
            Input::PeerUnreachable { request, cause } => self.on_unreachable(request, cause),
            Input::ConnectionReset { peer } => self.on_connection_reset(&peer),
            Input::EntriesAppended { last } => self.on_entries_appended(last),
            Input::EntriesDurable { last } => self.on_entries_durable(last),
            Input::Applied { last } => self.on_applied(last),
            Input::LogMoved { written, applied, durable } => {
                self.on_log_moved(written, applied, durable);
            }
            Input::Persisted(ticket) => self.on_persisted(ticket),
            Input::EntriesFetched { fetch, batch } => self.on_entries_fetched(fetch, batch),
            Input::FetchFailed { fetch, cause } => self.on_fetch_failed(fetch, cause),
            Input::CommonPointFound { fetch, common_point } => {
                self.on_common_point_found(fetch, common_point);
            }
            Input::NoCommonPoint { fetch, source_oldest } => {
                self.on_no_common_point(fetch, source_oldest);
            }
            Input::CommonPointUnknown { fetch } => self.on_common_point_unknown(fetch),
            Input::RolledBack { last } => self.on_rolled_back(last),
            Input::InitialSync { attempt, outcome } => self.on_initial_sync(attempt, outcome),
            Input::AcknowledgementWanted { waiter, op_time, concern } => {
                self.on_acknowledgement_wanted(waiter, op_time, concern);
            }
            Input::AcknowledgementAbandoned { waiter } => {
                self.waiters.remove(waiter);
            }
            Input::DefaultWriteConcernSet(set) => self.config.set_default_write_concern(set),
            Input::ReachedUnder(name) => self.on_reached_under(name),
            Input::ShutdownWanted => self.on_shutdown_wanted(),
            Input::DiskFailed => self.on_disk_failed(),
        }
    }

    fn on_tick(&mut self) {
        for _ in 0..MAX_TIMERS_PER_TICK {
            let Some(timer) = self.timers.pop_due(self.now) else { return };
            match timer {
                Timer::Heartbeat(peer) => self.on_heartbeat_timer(peer),
                Timer::Election => self.on_election_timer(),
                Timer::Campaign => self.on_campaign_timer(),
                Timer::Liveness => self.check_majority_alive(),
                Timer::PriorityTakeover => self.on_priority_takeover_timer(),
                Timer::CatchUpTakeover => self.on_catch_up_takeover_timer(),
                Timer::CatchUp => self.on_catch_up_timer(),
                Timer::StepDown => self.on_step_down_timer(),
                Timer::Unfreeze => self.on_unfreeze_timer(),
                Timer::SyncSource => self.look_for_source(),
                Timer::FetchSilence => self.on_fetch_silence(),
                Timer::PositionReport => self.report_position_again(),
                Timer::PositionReportSilence => self.on_position_report_silence(),
                Timer::PeriodicNoop => self.on_periodic_noop_timer(),
                Timer::Waiters => self.on_waiters_timer(),
                Timer::ReconfigPoll => self.decide_poll(true),
                Timer::ConfigSpread => self.check_config_spread(),
                Timer::InitialSync => self.continue_initial_sync(),
            }
        }
    }

    fn on_request(&mut self, token: RequestToken, request: Request) {
        match request {
            Request::Heartbeat(request) => self.on_heartbeat(token, &request),
            Request::Vote(request) => self.on_vote_request(token, &request),
            Request::UpdatePosition(report) => self.on_update_position(token, &report),
            Request::Initiate(config) => self.on_initiate(token, config),
            Request::Reconfig { config, force, max_time } => {
                self.on_reconfig(token, *config, force, max_time);
            }
            Request::StepDown { period, catch_up_period, force } => {
                self.on_step_down(token, period, catch_up_period, force);
            }
            Request::StepUp { skip_dry_run } => self.on_step_up(token, skip_dry_run),
            Request::Freeze(period) => self.on_freeze(token, period),
            Request::SyncFrom(target) => self.on_sync_from(token, &target),
            Request::Maintenance(on) => self.on_maintenance(token, on),
        }
    }

    fn on_reply(&mut self, request: RequestId, reply: Reply, round_trip: Duration) {
        // A reply to a request that was given up is late: what it says may be long untrue.
        let Some(asked) = self.outbox.answered(request) else { return };
        match (asked, reply) {
            (Asked::Heartbeat { peer }, reply) => {
                self.on_heartbeat_reply(peer, request, reply, round_trip);
            }
            (Asked::Introduction { .. }, Reply::Heartbeat(reply)) => self.on_introduction(&reply),
            (Asked::Vote { peer, dry_run, term }, Reply::Vote(reply)) => {
                self.on_vote_reply(peer, dry_run, term, &reply);
            }
            (Asked::Vote { peer, dry_run, term }, _) => self.on_no_vote(peer, dry_run, term),
            (Asked::Poll { member }, reply) => self.on_poll_reply(member, &reply),
            (Asked::Position, _) => self.on_position_reported(),
            (Asked::StepUp { tried, term }, Reply::Refused { .. }) => {
                self.on_hand_off_failed(tried, term);
            }
            (Asked::Introduction { .. } | Asked::StepUp { .. }, _) => {}
        }
    }

    fn on_unreachable(&mut self, request: RequestId, cause: Unreachable) {
        let Some(asked) = self.outbox.answered(request) else { return };
        match asked {
            Asked::Heartbeat { peer } => self.on_heartbeat_failed(peer, cause),
            Asked::Vote { peer, dry_run, term } => self.on_no_vote(peer, dry_run, term),
            Asked::Poll { member } => self.on_poll_failed(member),
            Asked::Position => self.on_position_report_silence(),
            Asked::StepUp { tried, term } => self.on_hand_off_failed(tried, term),
            Asked::Introduction { .. } => {}
        }
    }

    fn on_persisted(&mut self, ticket: Ticket) {
        let Some(after) = self.outbox.persisted(ticket) else { return };
        match after {
            AfterPersist::Nothing => {}
            AfterPersist::Vote { token, reply } => self.respond(token, Ok(reply)),
            AfterPersist::Candidacy { term } => self.on_candidacy_stored(term),
            AfterPersist::Install { config } => self.on_config_stored(config),
            AfterPersist::InitialSyncFlagged => self.on_initial_sync_flagged(),
            AfterPersist::InitialSyncFinished => self.on_initial_sync_finished(),
            AfterPersist::RollBack { common_point } => {
                self.outbox.push(Output::RollBackTo { common_point });
            }
        }
    }

    /// A primary hands over. What would have to be stored first, such as a vote, is not said any more.
    fn on_disk_failed(&mut self) {
        self.outbox.fail_disk();
        self.on_shutdown_wanted();
    }

    fn on_shutdown_wanted(&mut self) {
        self.shutting_down = true;
        self.emit(Event::ShuttingDown);
        if matches!(self.role, Role::Leader(_)) {
            self.leave_office(StepDownReason::Shutdown);
        }
        self.end_campaign("the member shuts down");
        self.timers.cancel(Timer::Election);
    }

    // -- Small tools that every module uses -------------------------------------------------------

    pub(crate) fn emit(&mut self, event: Event) {
        self.outbox.emit(event);
    }

    pub(crate) fn respond(&mut self, token: RequestToken, reply: Result<Reply, RequestError>) {
        self.outbox.respond(token, reply);
    }

    pub(crate) fn term(&self) -> Term {
        self.ballot.term()
    }

    pub(crate) fn installed_config(&self) -> Option<Arc<ReplicaSetConfig>> {
        self.config.config().cloned()
    }

    pub(crate) fn me(&self) -> Option<MemberId> {
        self.config.me()
    }

    pub(crate) fn own_config(&self) -> Option<&MemberConfig> {
        self.config.config()?.member(self.config.me()?)
    }

    fn on_reached_under(&mut self, name: ServerAddress) {
        if self.options.own_addresses.contains(&name) {
            return;
        }
        self.options.own_addresses.push(name);
        // A configuration in which it did not find itself may list it after all.
        let lost = self.installed_config().filter(|_| self.me().is_none());
        if let Some(config) = lost
            && self.find_self(&config).is_some()
        {
            self.install(config);
            if self.presence.found(self.now) {
                self.note_restart();
            }
        }
    }

    fn note_restart(&mut self) {
        if let Role::Follower(follower) = &mut self.role {
            follower.restarted = true;
        }
    }

    pub(crate) fn find_self(&self, config: &ReplicaSetConfig) -> Option<MemberId> {
        find_self(config, &self.options.own_addresses).map(|member| member.id)
    }

    pub(crate) fn own_address(&self) -> Option<ServerAddress> {
        self.own_config()
            .map(|member| member.host.clone())
            .or_else(|| self.options.own_addresses.first().cloned())
    }

    pub(crate) fn settings(&self) -> ReplicaSetSettings {
        self.config.config().map(|config| config.settings.clone()).unwrap_or_default()
    }

    pub(crate) fn election_timeout(&self) -> Duration {
        self.config.config().map_or_else(
            || ReplicaSetSettings::default().election_timeout(),
            |config| config.settings.election_timeout(),
        )
    }

    pub(crate) fn is_arbiter(&self) -> bool {
        matches!(self.role, Role::Arbiter)
    }

    /// How far a member is, for commit points and write concerns.
    pub(crate) fn acknowledged(&self, id: MemberId) -> Acknowledged {
        if Some(id) == self.me() {
            Acknowledged { applied: self.log.applied(), durable: self.log.durable() }
        } else {
            self.peers.get(&id).map_or_else(Acknowledged::default, |peer| Acknowledged {
                applied: peer.applied,
                durable: peer.durable,
            })
        }
    }

    /// The voters (this member among them) that are up.
    pub(crate) fn reachable_voters(&self) -> BTreeSet<MemberId> {
        let Some(config) = self.config.config() else { return BTreeSet::new() };
        let me = self.me();
        config
            .voters()
            .map(|member| member.id)
            .filter(|id| Some(*id) == me || self.peers.get(id).is_some_and(Peer::is_up))
            .collect()
    }

    /// Goes to a higher term. A primary steps down first: nothing it still does belongs to the new one.
    pub(crate) fn adopt_term(&mut self, term: Term) {
        if term <= self.term() {
            return;
        }
        if matches!(self.role, Role::Leader(_)) {
            self.step_down(StepDownReason::HigherTerm(term));
        }
        self.end_campaign("a higher term has begun");
        self.ballot.raise(term);
        self.timers.cancel(Timer::PriorityTakeover);
        self.timers.cancel(Timer::CatchUpTakeover);
        self.emit(Event::TermRaised(term));
        // The term alone promises nothing; if the disk is far behind, the next vote stores it.
        if !self.outbox.is_disk_behind() {
            self.outbox.persist(Change::Term(term), AfterPersist::Nothing);
        }
    }
}
