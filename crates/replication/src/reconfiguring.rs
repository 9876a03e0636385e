//! Initiating, reconfiguring, and taking over a configuration from others.
//!
//! Owns the poll of the members, the storing before the installing, the wait for a majority and the
//! `newlyAdded` mark. Which configuration may follow which is `reconfig_check`'s to say.
//! docs/replication-rules.md#reconfiguration.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use quorate_protocol::{
    ConfigVersion, MemberConfig, MemberId, MemberState, MonotonicTime, OpTimeAndWallTime,
    ReplicaSetConfig, ServerAddress, Term,
};

use crate::config_check::{validate, validate_for_initiate};
use crate::error::RequestError;
use crate::event::{Event, StepDownReason};
use crate::input::{MemberOptions, Reply, Request, RequestToken};
use crate::member::Member;
use crate::outbox::{AfterPersist, Asked};
use crate::output::Change;
use crate::peer::Peer;
use crate::quorum::is_vote_majority;
use crate::reconfig_check::{
    Proposal, ReconfigError, SetState, check_documents, check_settled,
    voters_gained_beside_arbiters,
};
use crate::role::Role;
use crate::timers::Timer;

/// A forced configuration's version rises by this much, and by up to [`FORCE_VERSION_RANDOM`] more,
/// so that two forced on two sides of a partition do not meet.
const FORCE_VERSION_STEP: i64 = 10_000;
const FORCE_VERSION_RANDOM: u64 = 100_000;
/// A member that is to vote beside arbiters is at most this much behind what is committed.
const MAX_SECONDS_BEHIND: u32 = 2;
/// How long nothing is committed while such a member gets what is.
const MAX_HOLD: Duration = Duration::from_secs(2);
/// Administrators that can wait for a configuration to spread.
const MAX_CONFIG_WAITS: usize = 64;

/// The configuration in force, and what is to become of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Configuration {
    installed: Option<Installed>,
    /// One is being stored: no election, no other configuration until it is installed.
    installing: bool,
    under_way: Option<Reconfiguring>,
    waits: Vec<ConfigWait>,
    default_write_concern_set: bool,
    /// The last one that another member told of and that lists no name known to be this member's.
    told: Option<Arc<ReplicaSetConfig>>,
}

#[derive(Clone, Debug)]
struct Installed {
    config: Arc<ReplicaSetConfig>,
    me: Option<MemberId>,
    /// What was committed when it was installed: the next one waits until this is committed again,
    /// under this one.
    committed_before: OpTimeAndWallTime,
}

impl Configuration {
    /// The configuration in force.
    pub(crate) fn config(&self) -> Option<&Arc<ReplicaSetConfig>> {
        self.installed.as_ref().map(|installed| &installed.config)
    }

    /// Which member of it this is.
    pub(crate) fn me(&self) -> Option<MemberId> {
        self.installed.as_ref().and_then(|installed| installed.me)
    }

    pub(crate) fn is_installing(&self) -> bool {
        self.installing
    }

    /// Whether one is being stored, or the members of a new one are being asked.
    pub(crate) fn is_changing(&self) -> bool {
        self.installing || self.under_way.is_some()
    }

    /// Whether nothing is to be committed until the new configuration is in force.
    pub(crate) fn holds_commits(&self) -> bool {
        self.under_way.as_ref().is_some_and(|under_way| !under_way.awaited.is_empty())
    }

    pub(crate) fn set_default_write_concern(&mut self, is_set: bool) {
        self.default_write_concern_set = is_set;
    }

    /// The configuration that lists no name known to be this member's: the one in force, or while there is
    /// none, the last one that another member told of.
    pub(crate) fn strange(&self) -> Option<&Arc<ReplicaSetConfig>> {
        match &self.installed {
            Some(installed) => Some(&installed.config).filter(|_| installed.me.is_none()),
            None => self.told.as_ref(),
        }
    }

    fn begin_storing(&mut self) {
        assert!(!self.installing, "one configuration is stored at a time");
        self.installing = true;
    }

    fn put_in_force(&mut self, installed: Installed) {
        self.installed = Some(installed);
        self.told = None;
    }

    /// What decides what happens next, for the comparison of states in the model check.
    #[cfg(test)]
    pub(crate) fn decisive(&self) -> impl std::fmt::Debug {
        let installed = self.installed.as_ref();
        let installed = installed.map(|i| (i.config.config_version(), i.committed_before.op_time));
        (self.installing, installed)
    }
}

/// A configuration that is about to be stored here first.
#[derive(Clone, Debug)]
struct Reconfiguring {
    token: Option<RequestToken>,
    config: Arc<ReplicaSetConfig>,
    stage: Stage,
    max_time: Option<Duration>,
    /// Members that are to vote beside arbiters. They must have what is committed first, and nothing more is
    /// committed until they vote.
    awaited: Vec<MemberId>,
}

#[derive(Clone, Debug)]
enum Stage {
    /// The members of the new configuration are being asked whether they are there.
    Polling { initiate: bool, waiting: BTreeSet<MemberId>, answers: BTreeMap<MemberId, Answer> },
    /// It is being written to disk.
    Storing { initiate: bool },
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Answer {
    Fine,
    HasData(ServerAddress),
    Refused(String),
    Silent,
}

/// An administrator that waits for a configuration to be on a majority.
#[derive(Clone, Copy, Debug)]
struct ConfigWait {
    token: RequestToken,
    version: ConfigVersion,
    deadline: Option<MonotonicTime>,
}

impl Member {
    // -- Commands --------------------------------------------------------------------------------

    pub(crate) fn on_initiate(
        &mut self,
        token: RequestToken,
        config: Option<Box<ReplicaSetConfig>>,
    ) {
        if self.config.config().is_some() {
            return self.respond(token, Err(RequestError::AlreadyInitialized));
        }
        if self.config.is_changing() {
            return self.respond(token, Err(RequestError::ConfigurationInProgress));
        }
        let Some(own) = self.options.own_addresses.first().cloned() else {
            let error = RequestError::InvalidOptions("this member does not know its own address");
            return self.respond(token, Err(error));
        };
        if !self.log.is_empty() {
            return self.respond(token, Err(RequestError::CannotInitializeNodeWithData(own)));
        }
        let name = self.options.set_name.clone();
        let mut config = config.map_or_else(
            || ReplicaSetConfig::new(name, vec![MemberConfig::new(MemberId(0), own)]),
            |config| *config,
        );
        let checked = validate_for_initiate(
            &config, &self.options.set_name, self.options.allowances, &self.options.own_addresses,
        );
        if let Err(error) = checked {
            return self.respond(token, Err(error.into()));
        }
        config.term = Some(Term::default());
        config.settings.replica_set_id = Some(self.options.new_replica_set_id);
        for member in &mut config.members {
            member.newly_added = false;
        }
        self.begin_poll(Some(token), config, true, None, Vec::new());
    }

    pub(crate) fn on_reconfig(
        &mut self,
        token: RequestToken,
        config: ReplicaSetConfig,
        force: bool,
        max_time: Option<Duration>,
    ) {
        let result = if force {
            self.force_reconfig(token, config)
        } else {
            self.safe_reconfig(Some(token), config, max_time)
        };
        if let Err(error) = result {
            self.respond(token, Err(error.into()));
        }
    }

    fn safe_reconfig(
        &mut self,
        token: Option<RequestToken>,
        mut new: ReplicaSetConfig,
        max_time: Option<Duration>,
    ) -> Result<(), ReconfigError> {
        let Some(old) = self.installed_config() else {
            return Err(ReconfigError::NotYetInitialized);
        };
        let writable = matches!(&self.role, Role::Leader(leader) if leader.is_writable());
        let (true, Some(first_of_term)) = (writable, self.first_of_term()) else {
            return Err(ReconfigError::NotWritablePrimary);
        };
        if self.config.is_changing() {
            return Err(ReconfigError::InProgress);
        }
        new.term = Some(self.term());
        if token.is_some() {
            Self::mark_newly_added(&old, &mut new);
        }
        let proposal = Proposal {
            old: &old,
            new: &new,
            force: false,
            default_write_concern_set: self.config.default_write_concern_set,
        };
        self.check_proposal(proposal)?;
        self.check_settled(&old, first_of_term)?;
        let awaited = voters_gained_beside_arbiters(&old, &new);
        // Others wait while commits are held back: only for those that are nearly there.
        let behind = awaited.iter().find(|id| self.seconds_behind(**id) > MAX_SECONDS_BEHIND);
        if let Some(id) = behind {
            return Err(ReconfigError::NewVoterBehind(*id, self.log.commit_point().op_time));
        }
        self.begin_poll(token, new, false, max_time, awaited);
        Ok(())
    }

    /// How far the copy of a member is behind what is committed.
    fn seconds_behind(&self, id: MemberId) -> u32 {
        let has = self.acknowledged(id).durable.op_time.timestamp.seconds;
        self.log.commit_point().op_time.timestamp.seconds.saturating_sub(has)
    }

    fn check_proposal(&self, proposal: Proposal<'_>) -> Result<(), ReconfigError> {
        let MemberOptions { set_name, allowances, own_addresses, .. } = &self.options;
        check_documents(proposal, set_name, *allowances, own_addresses)
    }

    fn check_settled(
        &self,
        config: &ReplicaSetConfig,
        first_of_term: quorate_protocol::OpTime,
    ) -> Result<(), ReconfigError> {
        let Some(installed) = &self.config.installed else {
            return Err(ReconfigError::NotYetInitialized);
        };
        let state = SetState {
            config,
            term: self.term(),
            committed_at_install: installed.committed_before,
            first_of_term,
        };
        let own = config.config_version();
        check_settled(
            &state,
            |id| {
                if Some(id) == installed.me {
                    return Some((own, self.term()));
                }
                let peer = self.peers.get(&id).filter(|peer| peer.is_up())?;
                peer.config_version.map(|version| (version, peer.term))
            },
            |id| self.acknowledged(id),
        )
    }

    // A member that is new to the set and asks for a vote gets none before it has copied the data:
    // until then it would be counted in majorities that it cannot help to make.
    fn mark_newly_added(old: &ReplicaSetConfig, new: &mut ReplicaSetConfig) {
        for member in &mut new.members {
            let before = old.member(member.id).filter(|before| before.host == member.host);
            member.newly_added = match before {
                Some(before) => before.newly_added && member.votes > 0,
                None => member.votes > 0 && !member.arbiter_only,
            };
        }
    }

    fn force_reconfig(
        &mut self,
        token: RequestToken,
        mut new: ReplicaSetConfig,
    ) -> Result<(), ReconfigError> {
        let Some(old) = self.installed_config() else {
            return Err(ReconfigError::NotYetInitialized);
        };
        if self.config.is_changing() {
            return Err(ReconfigError::InProgress);
        }
        let jump = i64::try_from(self.random.below(FORCE_VERSION_RANDOM)).unwrap_or(0);
        new.term = None;
        new.version = new.version.max(old.version).saturating_add(FORCE_VERSION_STEP + jump);
        for member in &mut new.members {
            member.newly_added = false;
        }
        let proposal =
            Proposal { old: &old, new: &new, force: true, default_write_concern_set: true };
        self.check_proposal(proposal)?;
        self.end_campaign("the configuration is being forced");
        let config = Arc::new(new);
        self.config.under_way = Some(Reconfiguring {
            token: Some(token),
            config: Arc::clone(&config),
            stage: Stage::Storing { initiate: false },
            max_time: None,
            awaited: Vec::new(),
        });
        self.store_config(config);
        Ok(())
    }

    /// The primary saw a newly added member with its data in place: its vote counts from now on.
    pub(crate) fn clear_newly_added(&mut self, id: MemberId) {
        let Some(config) = self.installed_config() else { return };
        let ready = self.peers.get(&id).is_some_and(|peer| {
            peer.is_up()
                && matches!(
                    peer.state,
                    MemberState::Secondary | MemberState::Recovering | MemberState::Rollback
                )
        });
        if !ready || !config.member(id).is_some_and(|member| member.newly_added) {
            return;
        }
        let mut new = (*config).clone();
        new.version += 1;
        for member in new.members.iter_mut().filter(|member| member.id == id) {
            member.newly_added = false;
        }
        // If the set has not settled yet, the next heartbeat tries again.
        let _ = self.safe_reconfig(None, new, None);
    }

    // -- The poll --------------------------------------------------------------------------------

    fn begin_poll(
        &mut self,
        token: Option<RequestToken>,
        config: ReplicaSetConfig,
        initiate: bool,
        max_time: Option<Duration>,
        awaited: Vec<MemberId>,
    ) {
        let own = self.find_self(&config);
        let others: Vec<(MemberId, ServerAddress)> = config
            .members
            .iter()
            .filter(|member| Some(member.id) != own)
            .map(|member| (member.id, member.host.clone()))
            .collect();
        let timeout = config.settings.heartbeat_timeout();
        let timeout = if awaited.is_empty() { timeout } else { timeout.min(MAX_HOLD) };
        let waiting = others.iter().map(|(id, _)| *id).collect();
        self.config.under_way = Some(Reconfiguring {
            token,
            config: Arc::new(config),
            stage: Stage::Polling { initiate, waiting, answers: BTreeMap::new() },
            max_time,
            awaited,
        });
        for (id, address) in others {
            let message = Request::Heartbeat(self.heartbeat_request(initiate));
            self.outbox.send(address, Asked::Poll { member: id }, message, timeout);
        }
        self.timers.set(Timer::ReconfigPoll, self.now + timeout);
        self.decide_poll(false);
    }

    pub(crate) fn on_poll_reply(&mut self, id: MemberId, reply: &Reply) {
        if let Reply::Heartbeat(reply) = reply {
            self.adopt_term(reply.term);
        }
        let Some(Reconfiguring { stage: Stage::Polling { initiate, .. }, config, .. }) =
            &self.config.under_way
        else {
            return;
        };
        let address = config.member(id).map(|member| member.host.clone());
        let answer = match (reply, address) {
            (Reply::Heartbeat(reply), Some(address)) => {
                let foreign = match (reply.replica_set_id, config.settings.replica_set_id) {
                    (Some(theirs), Some(ours)) => !*initiate && theirs != ours,
                    _ => false,
                };
                if *initiate && (reply.has_data || reply.config_version.is_some()) {
                    Answer::HasData(address)
                } else if foreign {
                    Answer::Refused(format!("{address} belongs to another set of the same name"))
                } else {
                    Answer::Fine
                }
            }
            // A removed member says so, and is about to be a member again.
            (Reply::Refused { code, .. }, Some(_))
                if !*initiate && *code == RequestError::Removed.code() =>
            {
                Answer::Fine
            }
            (Reply::Refused { message, .. }, Some(address)) => {
                Answer::Refused(format!("{address}: {message}"))
            }
            _ => Answer::Silent,
        };
        self.take_poll_answer(id, answer);
    }

    pub(crate) fn on_poll_failed(&mut self, id: MemberId) {
        self.take_poll_answer(id, Answer::Silent);
    }

    fn take_poll_answer(&mut self, id: MemberId, answer: Answer) {
        if let Some(Reconfiguring { stage: Stage::Polling { waiting, answers, .. }, .. }) =
            &mut self.config.under_way
            && waiting.remove(&id)
        {
            answers.insert(id, answer);
            self.decide_poll(false);
        }
    }

    /// Initiation needs every member, and each empty. A change needs a majority of the voters and
    /// an electable member, and stops listening when it has them.
    pub(crate) fn decide_poll(&mut self, out_of_time: bool) {
        let Some(Reconfiguring {
            stage: Stage::Polling { initiate, waiting, answers },
            config,
            awaited,
            ..
        }) = &self.config.under_way
        else {
            return;
        };
        let (initiate, config) = (*initiate, Arc::clone(config));
        let own = self.find_self(&config);
        let fine = |id: MemberId| Some(id) == own || answers.get(&id) == Some(&Answer::Fine);
        let enough = if initiate {
            config.members.iter().all(|member| fine(member.id))
        } else {
            is_vote_majority(&config, |member| fine(member.id))
                && config.members.iter().any(|member| member.is_electable() && fine(member.id))
        };
        let refusal = answers.values().find(|answer| match answer {
            Answer::HasData(_) | Answer::Refused(_) => true,
            Answer::Silent => initiate,
            Answer::Fine => false,
        });
        let committed = self.log.commit_point();
        let behind = awaited.iter().find(|id| self.acknowledged(**id).durable < committed).copied();
        match behind {
            None if enough => return self.store_polled(config, initiate),
            Some(_) if enough && !out_of_time => return,
            Some(id) if enough => {
                let error = ReconfigError::NewVoterBehind(id, committed.op_time);
                return self.abandon_reconfiguration(error.into());
            }
            _ => {}
        }
        if let Some(answer) = refusal.filter(|_| initiate) {
            let error = match answer {
                Answer::HasData(address) => {
                    RequestError::CannotInitializeNodeWithData(address.clone())
                }
                Answer::Refused(why) => RequestError::InitiateQuorum(why.clone()),
                Answer::Silent | Answer::Fine => {
                    RequestError::InitiateQuorum("a member does not answer".to_owned())
                }
            };
            return self.abandon_reconfiguration(error);
        }
        if waiting.is_empty() || out_of_time {
            let silent: Vec<String> = config
                .members
                .iter()
                .filter(|member| !fine(member.id))
                .map(|member| member.host.to_string())
                .collect();
            let why = format!("not enough members answered: no word from {}", silent.join(", "));
            let error = if initiate {
                RequestError::InitiateQuorum(why)
            } else {
                ReconfigError::QuorumNotFound(why).into()
            };
            self.abandon_reconfiguration(error);
        }
    }

    fn store_polled(&mut self, config: Arc<ReplicaSetConfig>, initiate: bool) {
        self.end_poll();
        // Another primary's configuration may have arrived during the poll.
        if self.config.is_installing() || (initiate && self.config.config().is_some()) {
            return self.abandon_reconfiguration(RequestError::ConfigurationInProgress);
        }
        if let Some(reconfiguring) = &mut self.config.under_way {
            reconfiguring.stage = Stage::Storing { initiate };
        }
        if initiate {
            self.config.begin_storing();
            let after = AfterPersist::Install { config: Arc::clone(&config) };
            self.outbox.persist(Change::Initiate(config), after);
        } else {
            self.store_config(config);
        }
    }

    fn end_poll(&mut self) {
        self.timers.cancel(Timer::ReconfigPoll);
        self.outbox.give_up_all(|asked| matches!(asked, Asked::Poll { .. }));
    }

    fn abandon_reconfiguration(&mut self, error: RequestError) {
        self.end_poll();
        if let Some(token) = self.config.under_way.take().and_then(|r| r.token) {
            self.respond(token, Err(error));
        }
    }

    /// The office is lost. What is being stored will be installed; its success is not reported.
    pub(crate) fn fail_reconfiguration(&mut self) {
        if self.config.under_way.is_some() {
            self.abandon_reconfiguration(ReconfigError::SteppedDown.into());
        }
        for wait in std::mem::take(&mut self.config.waits) {
            self.respond(wait.token, Err(ReconfigError::SteppedDown.into()));
        }
        self.timers.cancel(Timer::ConfigSpread);
    }

    // -- Storing and installing ------------------------------------------------------------------

    /// Writes a configuration to disk; it is installed when it is there.
    pub(crate) fn store_config(&mut self, config: Arc<ReplicaSetConfig>) {
        self.config.begin_storing();
        self.outbox.persist(Change::Config(Arc::clone(&config)), AfterPersist::Install { config });
    }

    pub(crate) fn on_config_stored(&mut self, config: Arc<ReplicaSetConfig>) {
        self.config.installing = false;
        let initiate = matches!(
            &self.config.under_way,
            Some(Reconfiguring { stage: Stage::Storing { initiate: true }, .. })
        );
        if initiate {
            assert!(!self.log.is_empty(), "a new set begins with an entry");
        }
        let own = self.config.under_way.take_if(|r| Arc::ptr_eq(&r.config, &config));
        self.install(config);
        match own {
            Some(Reconfiguring { token: Some(token), .. }) if initiate => {
                self.respond(token, Ok(Reply::Done));
            }
            Some(Reconfiguring { token: Some(token), config, max_time, .. }) => {
                self.wait_for_spread(token, &config, max_time);
            }
            _ => {}
        }
        if initiate {
            if let Role::Follower(follower) = &mut self.role {
                follower.initiated = true;
            }
            self.stand_if_initiated();
        }
    }

    fn wait_for_spread(
        &mut self,
        token: RequestToken,
        config: &ReplicaSetConfig,
        max_time: Option<Duration>,
    ) {
        // A forced configuration is the administrator's word; no member is asked.
        let leads = matches!(self.role, Role::Leader(_));
        if config.term.is_none() || !leads || self.config.waits.len() >= MAX_CONFIG_WAITS {
            return self.respond(token, Ok(Reply::Done));
        }
        let deadline = max_time.map(|max_time| self.now + max_time);
        self.config.waits.push(ConfigWait { token, version: config.config_version(), deadline });
        self.check_config_spread();
    }

    pub(crate) fn check_config_spread(&mut self) {
        let Some(config) = self.installed_config() else { return };
        if self.config.waits.is_empty() {
            return;
        }
        let (me, now) = (self.me(), self.now);
        let mut waits = std::mem::take(&mut self.config.waits);
        let mut answers = Vec::new();
        waits.retain(|wait| {
            let spread = is_vote_majority(&config, |member| {
                Some(member.id) == me
                    || self.peers.get(&member.id).is_some_and(|peer| {
                        peer.config_version.is_some_and(|v| !wait.version.is_newer_than(v))
                    })
            });
            if spread {
                answers.push((wait.token, Ok(Reply::Done)));
            } else if wait.deadline.is_some_and(|deadline| deadline <= now) {
                answers.push((wait.token, Err(ReconfigError::MajorityInstallTimedOut.into())));
            }
            !spread && wait.deadline.is_none_or(|deadline| deadline > now)
        });
        match waits.iter().filter_map(|wait| wait.deadline).min() {
            Some(deadline) => self.timers.set(Timer::ConfigSpread, deadline),
            None => self.timers.cancel(Timer::ConfigSpread),
        }
        self.config.waits = waits;
        for (token, reply) in answers {
            self.respond(token, reply);
        }
    }

    /// A configuration heard from another member.
    pub(crate) fn consider_config(&mut self, new: &Arc<ReplicaSetConfig>) {
        let version = new.config_version();
        let current = self.config.config();
        let newer = current.is_none_or(|own| version.is_newer_than(own.config_version()));
        if !newer || self.config.is_installing() {
            return;
        }
        let foreign =
            current.is_some_and(|own| own.settings.replica_set_id != new.settings.replica_set_id);
        let not_yet_writable = matches!(self.role, Role::Leader(_)) && !self.is_writable_leader();
        let why = if let Err(error) = validate(new, &self.options.set_name, self.options.allowances)
        {
            Some(error.to_string())
        } else if foreign {
            Some("it is of another set of the same name".to_owned())
        } else if not_yet_writable && version.term.is_some() {
            Some("a new primary is about to install its own".to_owned())
        } else if self.config.config().is_none() && self.find_self(new).is_none() {
            self.config.told = Some(Arc::clone(new));
            Some("this member is not in it".to_owned())
        } else if self.config.config().is_none() && !self.log.is_empty() {
            Some("this member holds data but no configuration".to_owned())
        } else {
            None
        };
        if let Some(why) = why {
            return self.emit(Event::ConfigIgnored { version, why });
        }
        self.doubt_memory(new);
        // An election by the old configuration must not end under the new one.
        self.end_campaign("a newer configuration arrived");
        if self.config.under_way.is_some() {
            self.abandon_reconfiguration(RequestError::ConfigurationInProgress);
        }
        self.store_config(Arc::clone(new));
    }

    /// Puts a stored configuration in force.
    pub(crate) fn install(&mut self, config: Arc<ReplicaSetConfig>) {
        let me = self.find_self(&config);
        self.emit(Event::ConfigInstalled {
            version: config.config_version(),
            members: config.members.len(),
        });
        if let Some(term) = config.term {
            self.ballot.raise(term);
        }
        let mut known = std::mem::take(&mut self.peers);
        for member in config.members.iter().filter(|member| Some(member.id) != me) {
            let peer = known
                .remove(&member.id)
                .filter(|peer| peer.address == member.host)
                .unwrap_or_else(|| Peer::new(member.id, member.host.clone()));
            self.peers.insert(member.id, peer);
        }
        for gone in known.into_keys() {
            self.timers.cancel(Timer::Heartbeat(gone));
            self.candidacy.forget_member(gone);
        }
        let peers = &self.peers;
        self.outbox.give_up_all(|asked| match asked {
            Asked::Heartbeat { peer } | Asked::Vote { peer, .. } => !peers.contains_key(peer),
            _ => false,
        });
        if self.primary().is_some_and(|id| Some(id) != me && !self.peers.contains_key(&id)) {
            self.forget_primary();
        }
        let committed_before = self.log.commit_point();
        self.config.put_in_force(Installed { config, me, committed_before });
        self.note_left_out_indexes();
        self.take_the_role_of_the_config();
        // A lone voter has no other to ask for what it forgot.
        self.recollect();
        self.stand_if_alone();
        self.heartbeat_all_now();
        self.after_install_for_sync();
        self.after_install_as_leader();
        self.advance_commit_point();
    }

    fn take_the_role_of_the_config(&mut self) {
        let Some(own) = self.own_config() else {
            if !matches!(self.role, Role::Removed) {
                self.become_removed();
            }
            return;
        };
        let (arbiter, electable) = (own.arbiter_only, own.is_electable());
        match &self.role {
            Role::Startup | Role::Removed if arbiter => self.become_arbiter(),
            Role::Startup | Role::Removed => {
                if self.log.is_empty() {
                    self.become_initial_syncing();
                } else {
                    self.become_follower();
                }
            }
            // It was removed and added again as another kind, and missed what was in between.
            Role::Arbiter if !arbiter => self.become_initial_syncing(),
            Role::Arbiter => {}
            _ if arbiter => self.become_arbiter(),
            Role::Leader(_) if !electable => self.step_down(StepDownReason::Reconfig),
            // It was removed and added again while it was away.
            Role::Follower(_) if self.lacks_indexes() => self.copy_again_with_indexes(),
            Role::Follower(_) => {
                self.end_campaign("the configuration changed");
                self.reset_election_timer();
            }
            _ => {}
        }
    }
}
