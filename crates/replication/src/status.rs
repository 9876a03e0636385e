//! What a member knows and is, between two inputs.
//!
//! A view without state of its own: `replSetGetStatus` and the host's own decisions read it. Why there
//! is or is not a primary is told by `explain`. Nothing here changes anything.

use std::sync::Arc;
use std::time::Duration;

use quorate_protocol::{
    ConfigVersion, ElectionReason, HelloReply, MemberId, MemberState, MonotonicTime,
    OpTimeAndWallTime, ReplicaSetConfig, ServerAddress, Term, Timestamp, TopologyVersion,
};

use crate::election::LastVote;
use crate::event::Event;
use crate::hello::{MemberHello, hello};
use crate::initial_sync::InitialSyncStage;
use crate::member::Member;
use crate::peer::Contact;
use crate::quorum::{Counts, is_acknowledged};
use crate::role::{LeaderMode, Role};
use crate::write_concern::Acknowledgements;

/// What a member knows and is.
#[derive(Clone, Copy, Debug)]
pub struct Status<'a> {
    pub(crate) member: &'a Member,
}

/// What clients see change: each difference raises the topology version by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) state: MemberState,
    writable: bool,
    stepping_down: bool,
    config: Option<ConfigVersion>,
    /// `primary` in `hello`: clients follow it.
    primary: Option<MemberId>,
    shutting_down: bool,
}

impl Member {
    pub(crate) fn shown(&self) -> Shown {
        Shown {
            state: self.state(),
            writable: matches!(&self.role, Role::Leader(leader) if leader.is_writable()),
            stepping_down: matches!(self.leader_mode(), Some(LeaderMode::AttemptingStepDown(_))),
            config: self.config.config().map(|config| config.config_version()),
            primary: self.primary(),
            shutting_down: self.shutting_down,
        }
    }
}

impl<'a> Status<'a> {
    pub(crate) fn new(member: &'a Member) -> Self {
        Self { member }
    }

    /// `myState`.
    pub fn state(&self) -> MemberState {
        self.member.state()
    }

    /// `term`.
    pub fn term(&self) -> Term {
        self.member.term()
    }

    /// The vote that was last given.
    pub fn last_vote(&self) -> Option<LastVote> {
        self.member.ballot.last_vote()
    }

    /// Whether clients may write: a primary that has written its first entry and does not step down.
    pub fn is_writable(&self) -> bool {
        self.member.shown().writable
    }

    /// The configuration in force.
    pub fn config(&self) -> Option<&'a Arc<ReplicaSetConfig>> {
        self.member.config.config()
    }

    /// The counts of that configuration.
    pub fn counts(&self) -> Option<Counts> {
        self.config().map(|config| Counts::of(config))
    }

    /// Which member of the configuration this is.
    pub fn me(&self) -> Option<MemberId> {
        self.member.me()
    }

    /// The configuration that lists no name known to be this member's: its own, or while it has none, the
    /// last one that another member told of.
    pub fn strange_config(&self) -> Option<&Arc<ReplicaSetConfig>> {
        self.member.config.strange()
    }

    /// Whether one of the names in a configuration is known to be this member's.
    pub fn finds_itself_in(&self, config: &ReplicaSetConfig) -> bool {
        self.member.find_self(config).is_some()
    }

    /// The primary of the present term, if known.
    pub fn primary(&self) -> Option<MemberId> {
        self.member.primary()
    }

    /// Where a member listens.
    pub fn address_of(&self, id: MemberId) -> Option<&'a ServerAddress> {
        self.config()?.member(id).map(|member| &member.host)
    }

    /// The newest entry that no election can lose, as far as this member knows.
    pub fn commit_point(&self) -> OpTimeAndWallTime {
        self.member.log.commit_point()
    }

    /// The last entry in the oplog.
    pub fn written(&self) -> OpTimeAndWallTime {
        self.member.log.written()
    }

    /// The last entry in the data.
    pub fn applied(&self) -> OpTimeAndWallTime {
        self.member.log.applied()
    }

    /// The last entry on disk.
    pub fn durable(&self) -> OpTimeAndWallTime {
        self.member.log.durable()
    }

    /// The sync source.
    pub fn sync_source(&self) -> Option<ServerAddress> {
        self.member.sync_source_address().or_else(|| self.member.initial_sync_source())
    }

    /// Where the initial sync is, its attempt, and when this one began.
    pub fn initial_sync(&self) -> Option<(InitialSyncStage, u32)> {
        match &self.member.role {
            Role::InitialSync(sync) => Some((sync.stage, sync.attempt)),
            _ => None,
        }
    }

    /// What keeps this member from being a whole secondary, by how much, and what to do.
    pub fn trouble(&self) -> Option<String> {
        match &self.member.role {
            Role::Follower(follower) => match follower.too_stale {
                Some(source_oldest) => {
                    let last = self.member.sync.last_fetched();
                    Some(Event::TooStale { last, source_oldest }.to_string())
                }
                None => self.member.doubt_about_votes(),
            },
            _ => None,
        }
    }

    /// How many rollbacks there were: `replSetGetRBID`.
    pub fn rollback_id(&self) -> i32 {
        self.member.rollback_id
    }

    /// `topologyVersion`.
    pub fn topology_version(&self) -> TopologyVersion {
        TopologyVersion {
            process_id: self.member.options.process_id,
            counter: self.member.topology_counter,
        }
    }

    /// When and why the present primary was elected, if it is this member.
    pub fn election(&self) -> Option<(ElectionReason, Option<Timestamp>)> {
        match &self.member.role {
            Role::Leader(leader) => Some((leader.reason, leader.election_time())),
            _ => None,
        }
    }

    /// How long this process has run.
    pub fn uptime(&self, now: MonotonicTime) -> Duration {
        now.since(self.member.presence.started())
    }

    /// Whether the commit point can move: this member leads, and enough members that hold data are in
    /// sight.
    pub fn can_commit(&self) -> bool {
        let Some(config) = self.config() else { return false };
        let is_in_sight = |id| {
            Some(id) == self.me() || self.member.peers.get(&id).is_some_and(|peer| peer.is_up())
        };
        self.is_writable()
            && is_acknowledged(config, &Acknowledgements::Majority, is_in_sight) == Ok(true)
    }

    /// The reply to `hello`: `base` brings what belongs to the process (wire versions, sessions), the
    /// member fills in the rest, with names as seen on `horizon`.
    pub fn hello(&self, base: HelloReply, horizon: Option<&str>) -> MemberHello {
        hello(*self, base, horizon)
    }

    /// `members` of `replSetGetStatus`, this member among them, in the configuration's order.
    pub fn members(&self) -> Vec<MemberView> {
        let Some(config) = self.config() else { return Vec::new() };
        let member = self.member;
        let views = config.members.iter().filter_map(|listed| {
            if Some(listed.id) == self.me() {
                let (_, applied, durable) = member.reported_positions();
                return Some(MemberView {
                    id: listed.id,
                    address: listed.host.clone(),
                    is_self: true,
                    state: self.state(),
                    contact: Contact::Up,
                    last_heard: None,
                    last_heartbeat_received: None,
                    applied,
                    durable,
                    ping: None,
                    config_version: Some(config.config_version()),
                    sync_source: self.sync_source(),
                    election_time: self.election().and_then(|(_, time)| time),
                });
            }
            let peer = member.peers.get(&listed.id)?;
            Some(MemberView {
                id: listed.id,
                address: listed.host.clone(),
                is_self: false,
                state: peer.shown_state(),
                contact: peer.contact,
                last_heard: peer.last_heard,
                last_heartbeat_received: peer.last_heartbeat_received,
                applied: peer.applied,
                durable: peer.durable,
                ping: peer.ping,
                config_version: peer.config_version,
                sync_source: peer.syncing_to.clone(),
                election_time: peer.election_time,
            })
        });
        views.collect()
    }
}

/// One element of `members` in `replSetGetStatus`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberView {
    /// `_id`.
    pub id: MemberId,
    /// `name`.
    pub address: ServerAddress,
    /// `self`.
    pub is_self: bool,
    /// `state` and `stateStr`.
    pub state: MemberState,
    /// `health`, and why not.
    pub contact: Contact,
    /// `lastHeartbeat`.
    pub last_heard: Option<MonotonicTime>,
    /// `lastHeartbeatRecv`.
    pub last_heartbeat_received: Option<MonotonicTime>,
    /// `optime` and `optimeDate`.
    pub applied: OpTimeAndWallTime,
    /// `optimeDurable` and `optimeDurableDate`.
    pub durable: OpTimeAndWallTime,
    /// `pingMs`.
    pub ping: Option<Duration>,
    /// `configVersion` and `configTerm`.
    pub config_version: Option<ConfigVersion>,
    /// `syncSourceHost`.
    pub sync_source: Option<ServerAddress>,
    /// `electionTime`.
    pub election_time: Option<Timestamp>,
}
