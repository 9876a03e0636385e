//! Why a server is no longer part of the topology.
//!
//! The specification lets a client forget a removed server. A person cannot: "I gave you this host,
//! why do you not use it?" is the question behind half of all connection problems. So the last few
//! removals are kept beside the servers, for selection errors and for `quorate doctor`.

use std::fmt;
use std::sync::Arc;

use quorate_protocol::{MonotonicTime, ServerAddress};

use crate::types::{ServerType, TopologyType};

/// How many removals a topology remembers.
pub const MAX_REMEMBERED_REMOVALS: usize = 8;

/// A server that was dropped, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removal {
    /// The server.
    pub address: ServerAddress,
    /// Why it was dropped.
    pub reason: RemovalReason,
    /// The time.
    pub at: MonotonicTime,
}

impl Removal {
    /// The latest removals, oldest first.
    pub(crate) fn remember(earlier: &Arc<[Self]>, latest: &[Self]) -> Arc<[Self]> {
        if latest.is_empty() {
            return Arc::clone(earlier);
        }
        // A server that was dropped twice is told once.
        let mut all: Vec<Self> = earlier
            .iter()
            .filter(|old| latest.iter().all(|new| new.address != old.address))
            .cloned()
            .collect();
        all.extend_from_slice(latest);
        let excess = all.len().saturating_sub(MAX_REMEMBERED_REMOVALS);
        all.into_iter().skip(excess).collect()
    }
}

/// Why a server was dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RemovalReason {
    /// A standalone among several seeds: the others must be the deployment.
    StandaloneAmongSeeds,
    /// A kind of server that has no place in this kind of deployment.
    WrongKind {
        /// What it is.
        found: ServerType,
        /// What the deployment is.
        expected: TopologyType,
    },
    /// A member of another set.
    WrongSetName {
        /// The name given by the user, or discovered first.
        expected: String,
        /// The name it reported.
        found: Option<String>,
    },
    /// The primary, which has the say, does not list it.
    NotListedByPrimary {
        /// The primary.
        primary: ServerAddress,
        /// What the primary calls itself.
        me: Option<ServerAddress>,
    },
    /// The set knows it under another name.
    CalledOtherwise {
        /// The name that the set uses.
        me: ServerAddress,
    },
    /// DNS no longer lists it.
    NotInSrvRecords,
    /// The client is closing.
    Closing,
}

impl fmt::Display for RemovalReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StandaloneAmongSeeds => {
                f.write_str("it is a standalone, but several hosts were given")
            }
            Self::WrongKind { found, expected } => {
                write!(
                    f,
                    "it is of type {found}, which has no place in a topology of type {expected}"
                )
            }
            Self::WrongSetName { expected, found: Some(found) } => {
                write!(f, "it is a member of set {found}, not of {expected}")
            }
            Self::WrongSetName { expected, found: None } => {
                write!(f, "it belongs to no set, and {expected} is wanted")
            }
            Self::NotListedByPrimary { primary, .. } => {
                write!(f, "the primary {primary} does not list it as a member")
            }
            Self::CalledOtherwise { me } => write!(f, "the set knows it as {me}"),
            Self::NotInSrvRecords => f.write_str("DNS no longer lists it"),
            Self::Closing => f.write_str("the client is closing"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn removal(number: usize) -> Removal {
        Removal {
            address: format!("host{number}").parse().unwrap(),
            reason: RemovalReason::NotInSrvRecords,
            at: MonotonicTime::ZERO,
        }
    }

    #[test]
    fn only_the_latest_are_remembered_and_each_server_once() {
        let none: Arc<[Removal]> = Arc::new([]);
        let some = Removal::remember(&none, &(0..20).map(removal).collect::<Vec<_>>());
        assert_eq!(some.len(), MAX_REMEMBERED_REMOVALS);
        assert_eq!(some[0], removal(12));
        let again = Removal::remember(&some, &[removal(12)]);
        assert_eq!(again.len(), MAX_REMEMBERED_REMOVALS);
        assert_eq!(again.last(), Some(&removal(12)));
    }
}
