//! The configuration document of a replica set (`local.system.replset`).
//!
//! Numbers are kept as they were written, so that a document out of range can be named in a refusal;
//! the accessors that return a [`Duration`] expect a validated one.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::{ObjectId, ServerAddress, TagSet};

/// The most members of a set that vote.
pub const MAX_VOTERS: usize = 7;

/// `members[]._id`: which member of the configuration, for as long as it stays in the set.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub i32);

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "m{}", self.0)
    }
}

impl fmt::Debug for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The number of an election. Rises by one with each; at most one primary is elected in each.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Term(pub i64);

impl Term {
    /// The term after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "term {}", self.0)
    }
}

/// Which configuration: `version` and `term` of the document.
///
/// Deliberately not `Ord`: a forced configuration has no term and compares by version alone, which
/// is no total order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfigVersion {
    /// The term of the primary that installed it; `None` if it was forced (−1 in the document).
    pub term: Option<Term>,
    /// Rises with every change.
    pub version: i64,
}

impl ConfigVersion {
    /// Orders two configurations: by term, then version; by version alone if either was forced.
    pub fn compare(self, other: Self) -> Ordering {
        match (self.term, other.term) {
            (Some(mine), Some(theirs)) => mine.cmp(&theirs).then(self.version.cmp(&other.version)),
            _ => self.version.cmp(&other.version),
        }
    }

    /// Whether this one replaces the other.
    pub fn is_newer_than(self, other: Self) -> bool {
        self.compare(other) == Ordering::Greater
    }
}

impl fmt::Display for ConfigVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.term {
            Some(term) => write!(f, "v{}@{term}", self.version),
            None => write!(f, "v{}@forced", self.version),
        }
    }
}

/// How much a member wants to be primary. Only compared; 0 means never.
#[derive(Clone, Copy)]
pub struct Priority(pub f64);

impl Priority {
    /// Never primary.
    pub const ZERO: Self = Self(0.0);

    /// Whether a member of this priority may be elected.
    pub fn is_electable(self) -> bool {
        self.0 > 0.0
    }
}

// The total order of `f64` keeps the type usable as a key; NaN is refused by validation.
impl PartialEq for Priority {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Priority {}

impl PartialOrd for Priority {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Priority {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One element of `members[]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberConfig {
    /// `_id`.
    pub id: MemberId,
    /// `host`.
    pub host: ServerAddress,
    /// `arbiterOnly`: votes and holds no data.
    pub arbiter_only: bool,
    /// `buildIndexes`.
    pub build_indexes: bool,
    /// `hidden`: not shown to clients.
    pub hidden: bool,
    /// `priority`.
    pub priority: Priority,
    /// `tags`.
    pub tags: TagSet,
    /// `secondaryDelaySecs`.
    pub secondary_delay_secs: i64,
    /// `votes`.
    pub votes: i64,
    /// `newlyAdded`: votes and priority count as 0 until the member has copied its data.
    pub newly_added: bool,
    /// `horizons`: other names of the member, by the name of the network they are for.
    pub horizons: BTreeMap<String, ServerAddress>,
}

impl MemberConfig {
    /// An ordinary member: one vote, priority 1.
    pub fn new(id: MemberId, host: ServerAddress) -> Self {
        Self {
            id,
            host,
            arbiter_only: false,
            build_indexes: true,
            hidden: false,
            priority: Priority(1.0),
            tags: TagSet::EMPTY,
            secondary_delay_secs: 0,
            votes: 1,
            newly_added: false,
            horizons: BTreeMap::new(),
        }
    }

    /// A member that votes and holds no data.
    pub fn arbiter(id: MemberId, host: ServerAddress) -> Self {
        Self { arbiter_only: true, priority: Priority::ZERO, ..Self::new(id, host) }
    }

    /// Whether its vote counts now.
    pub fn is_voter(&self) -> bool {
        self.votes > 0 && !self.newly_added
    }

    /// The priority that counts now: 0 while newly added.
    pub fn effective_priority(&self) -> Priority {
        if self.newly_added { Priority::ZERO } else { self.priority }
    }

    /// Whether it may become primary.
    pub fn is_electable(&self) -> bool {
        !self.arbiter_only && self.effective_priority().is_electable()
    }

    /// `secondaryDelaySecs` of a validated member.
    pub fn secondary_delay(&self) -> Duration {
        Duration::from_secs(self.secondary_delay_secs.unsigned_abs())
    }
}

/// `settings` of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaSetSettings {
    /// `chainingAllowed`: secondaries may sync from secondaries.
    pub chaining_allowed: bool,
    /// `heartbeatIntervalMillis`.
    pub heartbeat_interval_millis: i64,
    /// `heartbeatTimeoutSecs`.
    pub heartbeat_timeout_secs: i64,
    /// `electionTimeoutMillis`.
    pub election_timeout_millis: i64,
    /// `catchUpTimeoutMillis`: −1 waits for ever, 0 does not catch up at all.
    pub catch_up_timeout_millis: i64,
    /// `catchUpTakeoverDelayMillis`: −1 never takes over.
    pub catch_up_takeover_delay_millis: i64,
    /// `getLastErrorModes`: named write concerns. Each tag must be seen with so many values.
    pub get_last_error_modes: BTreeMap<String, BTreeMap<String, i64>>,
    /// `replicaSetId`: made once, at initiation.
    pub replica_set_id: Option<ObjectId>,
}

impl Default for ReplicaSetSettings {
    fn default() -> Self {
        Self {
            chaining_allowed: true,
            heartbeat_interval_millis: 2_000,
            heartbeat_timeout_secs: 10,
            election_timeout_millis: 10_000,
            catch_up_timeout_millis: -1,
            catch_up_takeover_delay_millis: 30_000,
            get_last_error_modes: BTreeMap::new(),
            replica_set_id: None,
        }
    }
}

impl ReplicaSetSettings {
    /// `heartbeatIntervalMillis` of validated settings.
    pub fn heartbeat_interval(&self) -> Duration {
        Duration::from_millis(self.heartbeat_interval_millis.unsigned_abs())
    }

    /// `heartbeatTimeoutSecs` of validated settings.
    pub fn heartbeat_timeout(&self) -> Duration {
        Duration::from_secs(self.heartbeat_timeout_secs.unsigned_abs())
    }

    /// `electionTimeoutMillis` of validated settings.
    pub fn election_timeout(&self) -> Duration {
        Duration::from_millis(self.election_timeout_millis.unsigned_abs())
    }

    /// How long a new primary catches up; `None` is without limit.
    pub fn catch_up_timeout(&self) -> Option<Duration> {
        u64::try_from(self.catch_up_timeout_millis).ok().map(Duration::from_millis)
    }

    /// How long a fresher secondary waits before it takes over; `None` is never.
    pub fn catch_up_takeover_delay(&self) -> Option<Duration> {
        u64::try_from(self.catch_up_takeover_delay_millis).ok().map(Duration::from_millis)
    }
}

/// The configuration document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaSetConfig {
    /// `_id`: the name of the set.
    pub set_name: String,
    /// `version`.
    pub version: i64,
    /// `term`; `None` if forced (−1).
    pub term: Option<Term>,
    /// `protocolVersion`.
    pub protocol_version: i64,
    /// `writeConcernMajorityJournalDefault`: a majority acknowledges from disk.
    pub write_concern_majority_journal_default: bool,
    /// `members`.
    pub members: Vec<MemberConfig>,
    /// `settings`.
    pub settings: ReplicaSetSettings,
}

impl ReplicaSetConfig {
    /// A first configuration of these members.
    pub fn new(set_name: impl Into<String>, members: Vec<MemberConfig>) -> Self {
        Self {
            set_name: set_name.into(),
            version: 1,
            term: None,
            protocol_version: 1,
            write_concern_majority_journal_default: true,
            members,
            settings: ReplicaSetSettings::default(),
        }
    }

    /// Its version and term.
    pub fn config_version(&self) -> ConfigVersion {
        ConfigVersion { term: self.term, version: self.version }
    }

    /// The member of an id.
    pub fn member(&self, id: MemberId) -> Option<&MemberConfig> {
        self.members.iter().find(|member| member.id == id)
    }

    /// The member that listens at an address.
    pub fn member_at(&self, address: &ServerAddress) -> Option<&MemberConfig> {
        self.members.iter().find(|member| member.host == *address)
    }

    /// The members whose vote counts now.
    pub fn voters(&self) -> impl Iterator<Item = &MemberConfig> {
        self.members.iter().filter(|member| member.is_voter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(term: Option<i64>, version: i64) -> ConfigVersion {
        ConfigVersion { term: term.map(Term), version }
    }

    #[test]
    fn configs_order_by_term_then_version() {
        assert!(version(Some(2), 1).is_newer_than(version(Some(1), 9)));
        assert!(version(Some(2), 2).is_newer_than(version(Some(2), 1)));
        assert!(!version(Some(2), 2).is_newer_than(version(Some(2), 2)));
    }

    #[test]
    fn a_forced_config_orders_by_version_alone() {
        assert!(version(None, 10_000).is_newer_than(version(Some(7), 3)));
        assert!(version(Some(1), 10_001).is_newer_than(version(None, 10_000)));
    }

    #[test]
    fn a_newly_added_member_neither_votes_nor_stands() {
        let address = ServerAddress::tcp("a", 1).unwrap();
        let mut member = MemberConfig::new(MemberId(0), address);
        assert!(member.is_voter() && member.is_electable());
        member.newly_added = true;
        assert!(!member.is_voter() && !member.is_electable());
    }
}
