//! Which servers an operation may go to, and what speaks against the others.
//!
//! Follows the sections "Topology type: …", "maxStalenessSeconds" and "tag_sets" of the Server
//! Selection specification. [`suitable`] is the specification's algorithm on sets of servers;
//! [`shortcoming`] says about one server what a person wants to read. A property test keeps the two
//! from contradicting each other.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use quorate_protocol::{
    MonotonicTime, ReadPreference, ReadPreferenceMode, ServerAddress, WallTime,
};

use super::SelectionCriteria;
use crate::server_description::ServerDescription;
use crate::topology_description::TopologyDescription;
use crate::types::{ServerType, TopologyType};

const NANOS_PER_MILLI: i128 = 1_000_000;

/// Step 3: the suitable servers among those not deprioritized, or among all if there are none.
pub(super) fn suitable<'t>(
    topology: &'t TopologyDescription,
    criteria: SelectionCriteria<'_>,
    deprioritized: &[ServerAddress],
) -> Vec<&'t Arc<ServerDescription>> {
    let preferred = suitable_among(topology, criteria, deprioritized);
    match preferred.is_empty() && !deprioritized.is_empty() {
        true => suitable_among(topology, criteria, &[]),
        false => preferred,
    }
}

fn suitable_among<'t>(
    topology: &'t TopologyDescription,
    criteria: SelectionCriteria<'_>,
    deprioritized: &[ServerAddress],
) -> Vec<&'t Arc<ServerDescription>> {
    let of_kind = |is_candidate: fn(ServerType) -> bool| -> Vec<_> {
        topology
            .servers
            .iter()
            .filter(|server| is_candidate(server.server_type()))
            .filter(|server| !deprioritized.contains(server.address()))
            .collect()
    };
    match topology.topology_type {
        TopologyType::Unknown => Vec::new(),
        TopologyType::Single => of_kind(ServerType::is_known),
        TopologyType::LoadBalanced => of_kind(|_| true),
        TopologyType::Sharded => of_kind(|kind| kind == ServerType::Mongos),
        TopologyType::ReplicaSetNoPrimary | TopologyType::ReplicaSetWithPrimary => {
            let primary = || of_kind(|kind| kind == ServerType::RsPrimary);
            let eligible_secondaries = |preference| {
                eligible(topology, preference, of_kind(|kind| kind == ServerType::RsSecondary))
            };
            match criteria {
                SelectionCriteria::Write => match topology.topology_type {
                    TopologyType::ReplicaSetWithPrimary => primary(),
                    _ => Vec::new(),
                },
                SelectionCriteria::Read(preference) => match preference.mode {
                    ReadPreferenceMode::Primary => primary(),
                    ReadPreferenceMode::Secondary => eligible_secondaries(preference),
                    ReadPreferenceMode::PrimaryPreferred => {
                        or_else(primary(), || eligible_secondaries(preference))
                    }
                    ReadPreferenceMode::SecondaryPreferred => {
                        or_else(eligible_secondaries(preference), primary)
                    }
                    ReadPreferenceMode::Nearest => {
                        eligible(topology, preference, of_kind(bears_replicated_data))
                    }
                },
            }
        }
    }
}

fn or_else<T>(first: Vec<T>, second: impl FnOnce() -> Vec<T>) -> Vec<T> {
    if first.is_empty() { second() } else { first }
}

fn bears_replicated_data(kind: ServerType) -> bool {
    matches!(kind, ServerType::RsPrimary | ServerType::RsSecondary)
}

/// The candidates that are fresh enough, and among these, those that the first useful tag set
/// matches.
fn eligible<'t>(
    topology: &TopologyDescription,
    preference: &ReadPreference,
    mut candidates: Vec<&'t Arc<ServerDescription>>,
) -> Vec<&'t Arc<ServerDescription>> {
    if let Some(max) = preference.max_staleness {
        let clock = StalenessClock::of(topology);
        candidates.retain(|server| clock.admits(server, max));
    }
    if preference.tag_sets.is_empty() {
        return candidates;
    }
    for tags in &preference.tag_sets {
        let matches = |server: &&Arc<ServerDescription>| tags.is_subset_of(server.tags());
        if candidates.iter().any(matches) {
            candidates.retain(matches);
            return candidates;
        }
    }
    Vec::new()
}

/// What staleness is measured against. Deprioritized servers still tell the time.
#[derive(Clone, Copy)]
enum StalenessReference {
    Primary {
        updated: MonotonicTime,
        wrote: WallTime,
    },
    FreshestSecondary {
        wrote: WallTime,
    },
    /// No server has said when it last wrote.
    Missing,
}

/// Estimates how far secondaries lag, by the two formulas of the Max Staleness specification.
pub(super) struct StalenessClock {
    reference: StalenessReference,
    heartbeat_frequency: Duration,
}

impl StalenessClock {
    pub(super) fn of(topology: &TopologyDescription) -> Self {
        let reference = match topology.topology_type {
            TopologyType::ReplicaSetWithPrimary => topology.primary().and_then(|primary| {
                let (updated, wrote) = (primary.last_update_time()?, primary.last_write_date()?);
                Some(StalenessReference::Primary { updated, wrote })
            }),
            _ => topology
                .servers
                .iter()
                .filter(|server| server.server_type() == ServerType::RsSecondary)
                .filter_map(|server| server.last_write_date())
                .max()
                .map(|wrote| StalenessReference::FreshestSecondary { wrote }),
        };
        Self {
            reference: reference.unwrap_or(StalenessReference::Missing),
            heartbeat_frequency: topology.selection.heartbeat_frequency,
        }
    }

    /// The estimate in nanoseconds, which may be negative; `None` if a date is missing. Servers that
    /// are no secondaries are not stale at all.
    fn estimate(&self, server: &ServerDescription) -> Option<i128> {
        if server.server_type() != ServerType::RsSecondary {
            return Some(0);
        }
        let wrote = server.last_write_date()?;
        let behind = |newest: WallTime| {
            (i128::from(newest.as_millis()) - i128::from(wrote.as_millis())) * NANOS_PER_MILLI
        };
        let lag = match self.reference {
            StalenessReference::Primary { updated, wrote } => {
                let later = i128::from(server.last_update_time()?.as_nanos())
                    - i128::from(updated.as_nanos());
                later + behind(wrote)
            }
            StalenessReference::FreshestSecondary { wrote } => behind(wrote),
            StalenessReference::Missing => return None,
        };
        // Lossless for every Duration: its nanoseconds need 94 bits.
        Some(lag + self.heartbeat_frequency.as_nanos() as i128)
    }

    /// A server of unknown staleness is not known to be fresh, so it is refused.
    pub(super) fn admits(&self, server: &ServerDescription, max: Duration) -> bool {
        self.estimate(server).is_some_and(|stale| stale <= max.as_nanos() as i128)
    }

    /// The estimate for people: never negative, capped at what a [`Duration`] of nanoseconds holds.
    pub(super) fn told(&self, server: &ServerDescription) -> Option<Duration> {
        self.estimate(server)
            .map(|stale| Duration::from_nanos(u64::try_from(stale.max(0)).unwrap_or(u64::MAX)))
    }
}

/// Why one server does not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Shortcoming {
    /// No check of the server has ended, neither well nor badly.
    NeverChecked,
    /// The server is Unknown since a check or an operation failed; the cause says more.
    Failing,
    /// A secondary, and only a primary would do.
    NotPrimary,
    /// The primary, and only secondaries would do.
    NotSecondary,
    /// An arbiter, which holds no data.
    Arbiter,
    /// Hidden, starting up or recovering.
    NotReadable,
    /// A member that waits for its configuration.
    NotInitiated,
    /// The secondary is too far behind, or does not say when it last wrote.
    TooStale {
        /// How far behind it may be, heartbeat included.
        estimate: Option<Duration>,
    },
    /// The server has none of the wanted tag sets.
    TagsDiffer,
    /// The server does not belong to this kind of deployment.
    WrongKind,
}

impl Shortcoming {
    /// A short name for programs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NeverChecked => "never_checked",
            Self::Failing => "failing",
            Self::NotPrimary => "not_primary",
            Self::NotSecondary => "not_secondary",
            Self::Arbiter => "arbiter",
            Self::NotReadable => "not_readable",
            Self::NotInitiated => "not_initiated",
            Self::TooStale { .. } => "too_stale",
            Self::TagsDiffer => "tags_differ",
            Self::WrongKind => "wrong_kind",
        }
    }
}

impl fmt::Display for Shortcoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NeverChecked => f.write_str("never checked"),
            Self::Failing => f.write_str("failing"),
            Self::NotPrimary => f.write_str("not the primary"),
            Self::NotSecondary => f.write_str("not a secondary"),
            Self::Arbiter => f.write_str("an arbiter holds no data"),
            Self::NotReadable => f.write_str("hidden, starting up or recovering"),
            Self::NotInitiated => f.write_str("started with a set name, never initiated"),
            Self::TooStale { estimate: Some(stale) } => {
                write!(f, "up to {:.0} s stale", stale.as_secs_f64())
            }
            Self::TooStale { estimate: None } => f.write_str("does not say when it last wrote"),
            Self::TagsDiffer => f.write_str("tags do not match"),
            Self::WrongKind => f.write_str("no part of such a deployment"),
        }
    }
}

/// What speaks against a server; `None` if nothing does, though another may be preferred.
pub(super) fn shortcoming(
    topology: &TopologyDescription,
    clock: &StalenessClock,
    criteria: SelectionCriteria<'_>,
    server: &ServerDescription,
) -> Option<Shortcoming> {
    let kind = server.server_type();
    match (topology.topology_type, kind) {
        (TopologyType::LoadBalanced, _) => None,
        (_, ServerType::Unknown | ServerType::PossiblePrimary) => {
            let failed = server.error().is_some() || server.last_update_time().is_some();
            Some(if failed { Shortcoming::Failing } else { Shortcoming::NeverChecked })
        }
        (TopologyType::Single, _) | (TopologyType::Sharded, ServerType::Mongos) => None,
        (_, ServerType::RsArbiter) => Some(Shortcoming::Arbiter),
        (_, ServerType::RsOther) => Some(Shortcoming::NotReadable),
        (_, ServerType::RsGhost) => Some(Shortcoming::NotInitiated),
        (
            TopologyType::ReplicaSetNoPrimary | TopologyType::ReplicaSetWithPrimary,
            ServerType::RsPrimary | ServerType::RsSecondary,
        ) => member_shortcoming(clock, criteria, server),
        _ => Some(Shortcoming::WrongKind),
    }
}

fn member_shortcoming(
    clock: &StalenessClock,
    criteria: SelectionCriteria<'_>,
    server: &ServerDescription,
) -> Option<Shortcoming> {
    let is_primary = server.server_type() == ServerType::RsPrimary;
    let SelectionCriteria::Read(preference) = criteria else {
        return (!is_primary).then_some(Shortcoming::NotPrimary);
    };
    match preference.mode {
        ReadPreferenceMode::Primary if is_primary => return None,
        ReadPreferenceMode::Primary => return Some(Shortcoming::NotPrimary),
        ReadPreferenceMode::Secondary if is_primary => return Some(Shortcoming::NotSecondary),
        ReadPreferenceMode::PrimaryPreferred | ReadPreferenceMode::SecondaryPreferred
            if is_primary =>
        {
            return None;
        }
        _ => {}
    }
    match preference.max_staleness {
        Some(max) if !clock.admits(server, max) => {
            return Some(Shortcoming::TooStale { estimate: clock.told(server) });
        }
        _ => {}
    }
    let matches = preference.tag_sets.is_empty()
        || preference.tag_sets.iter().any(|tags| tags.is_subset_of(server.tags()));
    (!matches).then_some(Shortcoming::TagsDiffer)
}
