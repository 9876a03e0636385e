//! The displayed state of each member and of the set, computed on every draw.

use std::borrow::Cow;
use std::time::Duration;

use quorate_protocol::{MemberState, MonotonicTime, OpTime, ServerAddress, Timestamp, WallTime};
use quorate_server_discovery::{ServerType, TopologyType};

use super::difference::Difference;
use super::member::{Member, Own, Pool, Process, Rates, Transactions, Trouble};
use super::reply::{InitialSync, MemberStatus, SetStatus};
use super::ring::Ring;
use super::{Election, View};
use crate::explain::{Reason, explain, sentence};

quorate_protocol::named! {
    /// Whether a member answers us.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub(crate) enum Health {
        /// The member answers.
        Up = "up",
        /// The member was not asked yet.
        NotAsked = "asking",
        /// The member does not answer.
        Down = "down",
    }
}

/// How many of the other members that answer us say that a member is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeersSeeing {
    /// Say that it is up.
    pub(crate) up: usize,
    /// Say anything about it.
    pub(crate) asked: usize,
}

/// One member, as it is shown.
#[derive(Clone, Debug)]
pub(crate) struct MemberSummary<'a> {
    pub(crate) address: &'a ServerAddress,
    /// What the client believes it is; `None` if the client dropped it.
    pub(crate) client_type: Option<ServerType>,
    /// What its own hello says it is.
    pub(crate) own_type: Option<ServerType>,
    /// The state that it, or else the others, give it; safe to show.
    pub(crate) state: Option<MemberState>,
    /// Whether it answers us.
    pub(crate) health: Health,
    /// Whether it answers the others.
    pub(crate) peers: Option<PeersSeeing>,
    /// The latest round trip.
    pub(crate) round_trip: Option<Duration>,
    /// The round trips before it; `None` where it did not answer.
    pub(crate) round_trips: &'a Ring<Option<Duration>>,
    /// How far its data goes.
    pub(crate) op_time: Option<OpTime>,
    /// How far behind the most advanced member that is.
    pub(crate) lag: Option<Duration>,
    /// From the oldest entry of its oplog to its newest.
    pub(crate) oplog_window: Option<Duration>,
    pub(crate) votes: Option<u32>,
    pub(crate) priority: Option<f64>,
    /// Whether it only votes; by the configuration, or else by its state.
    pub(crate) is_arbiter: Option<bool>,
    /// Whether the member is hidden from clients.
    pub(crate) hidden: bool,
    pub(crate) sync_source: Option<ServerAddress>,
    /// The client's pool for it.
    pub(crate) pool: Pool,
    /// What its counters say.
    pub(crate) rates: Rates,
    /// The last error, with its time.
    pub(crate) trouble: Option<&'a Trouble>,
    /// Whether the trouble is over: it answers again, or the client knows it again.
    pub(crate) recovered: bool,
    /// Why the client dropped it.
    pub(crate) dropped: Option<&'a Trouble>,
    /// Where the client and the member disagree.
    pub(crate) differences: &'a [Difference],
    pub(crate) initial_sync: Option<&'a InitialSync>,
    /// Its process, if we started it.
    pub(crate) process: Option<(u32, &'a Process)>,
    /// When its own hello came.
    pub(crate) hello_at: Option<MonotonicTime>,
    /// Since when it does not answer.
    pub(crate) silent_since: Option<MonotonicTime>,
}

impl MemberSummary<'_> {
    /// What it is called in one word: the client's opinion, or else its own.
    pub(crate) fn shown_type(&self) -> ServerType {
        self.client_type.unwrap_or_default()
    }
}

/// The set as a whole.
#[derive(Clone, Debug)]
pub(crate) struct Facts<'a> {
    /// The type of the topology, as the client sees it.
    pub(crate) topology_type: TopologyType,
    /// The set's name.
    pub(crate) set_name: Option<&'a str>,
    /// The primary as the client knows it.
    pub(crate) primary: Option<&'a ServerAddress>,
    /// How long the client has known no primary, if it once knew one.
    pub(crate) without_primary: Option<Duration>,
    /// The highest term that any member tells.
    pub(crate) term: Option<i64>,
    /// Members that answer, of all that are shown.
    pub(crate) up: usize,
    /// Members in all.
    pub(crate) members: usize,
    /// Votes of members that answer us.
    pub(crate) votes_up: Option<u32>,
    /// Votes that make a majority.
    pub(crate) votes_needed: Option<u32>,
    /// Votes in all.
    pub(crate) votes: Option<u32>,
    /// Why there is no primary, as a member explains it, or as follows from what members say.
    pub(crate) explanation: Option<Cow<'a, str>>,
    /// Why the client cannot talk to this deployment.
    pub(crate) incompatible: Option<&'a str>,
    /// Writes of all clients, from the members' counters.
    pub(crate) writes_per_second: Option<f64>,
    /// Reads of all clients.
    pub(crate) reads_per_second: Option<f64>,
    /// The transactions of the primary.
    pub(crate) transactions: Option<Transactions>,
    /// The last change of primary.
    pub(crate) last_election: Option<&'a Election>,
    /// Why the primary called the election that it won.
    pub(crate) election_reason: Option<&'a str>,
    /// How long our own writes have gone without acknowledgement, if that is too long.
    pub(crate) open_gap: Option<Duration>,
    /// A member that is locked by `fsync`.
    pub(crate) locked: Option<&'a ServerAddress>,
    /// Why members tell less than they could: the login.
    pub(crate) login: Option<&'a str>,
    /// How long the primary has not answered, while the client still takes it for one.
    pub(crate) primary_silent: Option<Duration>,
}

impl Facts<'_> {
    /// Whether the members that answer us are a majority; `None` if the votes are not known.
    pub(crate) fn has_majority(&self) -> Option<bool> {
        Some(self.votes_up? >= self.votes_needed?)
    }
}

impl View {
    /// Every member, by address.
    pub(crate) fn members(&self) -> Vec<MemberSummary<'_>> {
        let newest = self.newest_date();
        self.members.values().map(|member| self.summary(member, newest)).collect()
    }

    /// The set as a whole.
    pub(crate) fn facts(&self, now: MonotonicTime) -> Facts<'_> {
        let topology = self.topology.as_deref();
        let statuses = || self.members.values().filter_map(Member::own_status);
        let up = |member: &&Member| member.hello().is_some();
        let settings = self.settings.as_ref();
        let total = settings
            .map(|settings| settings.members.values().map(|settings| settings.votes).sum::<u32>());
        let votes_up = settings.map(|settings| {
            let votes = self.members.values().filter(up);
            votes.filter_map(|member| settings.members.get(&member.address)).map(|s| s.votes).sum()
        });
        let primary = topology.and_then(|topology| topology.primary());
        let sum = |rate: fn(&Member) -> Option<f64>| {
            self.members.values().filter_map(rate).reduce(|left, right| left + right)
        };
        let explained = self.members.values().filter(up);
        let explanation = explained.filter_map(|member| member.explanation.as_ref()).max_by_key(
            // The member that sees most knows best.
            |explanation| explanation.votes_visible,
        );
        Facts {
            topology_type: topology.map(|topology| topology.topology_type()).unwrap_or_default(),
            set_name: topology.and_then(|topology| topology.set_name()),
            primary: primary.map(|primary| primary.address()),
            without_primary: self.lost.as_ref().map(|(_, at)| now.since(*at)),
            term: statuses().filter_map(|status| status.term).max(),
            up: self.members.values().filter(up).count(),
            members: self.members.len(),
            votes_up,
            votes_needed: statuses()
                .filter_map(|status| status.majority_votes)
                .max()
                .or_else(|| total.map(|total| total / 2 + 1)),
            votes: total,
            explanation: match (primary, explanation) {
                (Some(_), _) => None,
                (None, Some(explanation)) => Some(explanation.text.as_str().into()),
                (None, None) => self.explained().map(Cow::Owned),
            },
            incompatible: topology.and_then(|topology| topology.compatibility_error()),
            // Secondaries count what they apply apart, so that nothing is counted twice.
            writes_per_second: sum(|member| member.rates.writes),
            reads_per_second: sum(|member| member.rates.reads),
            transactions: primary
                .and_then(|primary| self.members.get(primary.address())?.rates.transactions),
            last_election: self.elections.last(),
            election_reason: primary
                .and_then(|primary| self.members.get(primary.address())?.own_status())
                .and_then(|status| status.election_reason.as_deref()),
            open_gap: self.writes.open_gap(now),
            locked: self.members.values().find(|member| member.locked).map(|m| &m.address),
            login: self.members.values().find_map(|member| member.login.as_deref()),
            primary_silent: primary
                .and_then(|primary| self.members.get(primary.address()))
                .and_then(|member| match &member.own {
                    Own::Silent { since, .. } => Some(now.since(*since)),
                    _ => None,
                }),
        }
    }

    /// Why there is no primary, by what any server tells.
    fn explained(&self) -> Option<String> {
        let own_word = |address: &ServerAddress| {
            let hello = self.members.get(address)?.hello()?;
            state_of(ServerType::from_reply(hello))
        };
        let election = explain(self.judge()?, self.settings.as_ref(), own_word)?;
        (!matches!(election.reason, Reason::Led(_))).then(|| sentence(&election))
    }

    /// The status to believe about others: the primary's, or else the newest one.
    fn judge(&self) -> Option<&SetStatus> {
        let told = self.members.values().filter(|member| member.hello().is_some());
        let told = told.filter_map(|member| member.status.as_ref());
        let is_primary = |status: &SetStatus| status.state == Some(MemberState::Primary);
        told.max_by_key(|(at, status)| (is_primary(status), status.term, *at)).map(|(_, s)| s)
    }

    /// The date of the newest entry that any member is said to have.
    fn newest_date(&self) -> Option<WallTime> {
        self.judge()?.members.iter().filter_map(|member| member.op_time_date).max()
    }

    fn summary<'a>(&'a self, member: &'a Member, newest: Option<WallTime>) -> MemberSummary<'a> {
        let judged = self.judge().and_then(|status| of(status, &member.address));
        let own_status = member.own_status();
        let own = own_status.and_then(|status| of(status, &member.address));
        let own_type = member.hello().map(ServerType::from_reply);
        let (health, hello_at) = match &member.own {
            Own::NotAsked => (Health::NotAsked, None),
            Own::Answered { at, .. } => (Health::Up, Some(*at)),
            Own::Silent { .. } => (Health::Down, None),
        };
        // Hello is newer than the status, and says less: only these states can be told from it.
        let state = match health {
            Health::Up => {
                own_type.and_then(state_of).or_else(|| own_status.and_then(|status| status.state))
            }
            _ => judged.and_then(|judged| judged.state),
        };
        let settings = self.settings.as_ref();
        let settings = settings.and_then(|settings| settings.members.get(&member.address));
        let holds_data = own_type != Some(ServerType::RsArbiter)
            && !settings.is_some_and(|settings| settings.arbiter_only);
        let belief = member.belief.as_deref();
        // Positions in one member's reply are comparable; positions of separate hellos are not.
        let told = judged.filter(|_| holds_data);
        let lag = told.and_then(|told| {
            let behind = newest?.as_millis().saturating_sub(told.op_time_date?.as_millis());
            u64::try_from(behind).ok().map(Duration::from_millis)
        });
        let last = own.or(told).and_then(|told| told.op_time);
        let hello_op_time = member.hello().and_then(|hello| hello.last_write?.op_time);
        MemberSummary {
            address: &member.address,
            client_type: belief.map(|belief| belief.server_type()),
            own_type,
            state,
            health,
            peers: self.peers_seeing(&member.address),
            round_trip: member.round_trips.last().copied().flatten(),
            round_trips: &member.round_trips,
            oplog_window: last.zip(member.oldest_entry).map(window),
            op_time: last.or(hello_op_time).filter(|at| holds_data && !at.is_null()),
            lag,
            votes: settings.map(|settings| settings.votes),
            priority: settings.map(|settings| settings.priority),
            is_arbiter: settings
                .map(|settings| settings.arbiter_only)
                .or_else(|| state.map(|state| state == MemberState::Arbiter)),
            hidden: settings.is_some_and(|settings| settings.hidden),
            sync_source: match own_status {
                Some(status) => status.sync_source.clone(),
                None if health == Health::Down => None,
                None => judged.and_then(|judged| judged.sync_source.clone()),
            },
            pool: member.pool,
            rates: member.rates,
            trouble: member.trouble.as_ref(),
            recovered: health == Health::Up
                && belief.is_some_and(|belief| belief.server_type().is_known()),
            dropped: member.dropped.as_ref().filter(|_| belief.is_none()),
            differences: &member.differences,
            initial_sync: own_status.and_then(|status| status.initial_sync.as_ref()),
            process: member.process.as_ref().map(|(pid, process)| (*pid, process)),
            hello_at,
            silent_since: match &member.own {
                Own::Silent { since, .. } => Some(*since),
                _ => None,
            },
        }
    }

    fn peers_seeing(&self, address: &ServerAddress) -> Option<PeersSeeing> {
        let others = self.members.values().filter(|member| member.address != *address);
        let told = others.filter_map(Member::own_status);
        let told: Vec<_> = told.filter_map(|status| of(status, address)).collect();
        let up = told.iter().filter(|told| told.is_up).count();
        (!told.is_empty()).then_some(PeersSeeing { up, asked: told.len() })
    }
}

/// From the oldest entry of an oplog to its last one.
fn window((last, oldest): (OpTime, Timestamp)) -> Duration {
    Duration::from_secs(u64::from(last.timestamp.seconds.saturating_sub(oldest.seconds)))
}

fn of<'a>(status: &'a SetStatus, address: &ServerAddress) -> Option<&'a MemberStatus> {
    status.members.iter().find(|member| member.address == *address)
}

/// The state that a type stands for, where it stands for one.
fn state_of(kind: ServerType) -> Option<MemberState> {
    match kind {
        ServerType::RsPrimary => Some(MemberState::Primary),
        ServerType::RsSecondary => Some(MemberState::Secondary),
        ServerType::RsArbiter => Some(MemberState::Arbiter),
        _ => None,
    }
}
