//! The client's view of the whole deployment.
//!
//! Follows "TopologyDescription" in the Server Discovery And Monitoring specification. How it comes
//! from the one before is the business of `transition.rs`; which server to pick from it, that of
//! `selection`.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use quorate_protocol::{AddressList, ElectionId, ServerAddress, SetVersion};

use crate::removal::Removal;
use crate::server_description::ServerDescription;
use crate::servers::{Servers, Sessions};
use crate::types::TopologyType;

/// Everything the client believes about a deployment. Immutable, shared, cheap to replace.
#[derive(Debug)]
pub struct TopologyDescription {
    pub(crate) topology_type: TopologyType,
    pub(crate) set_name: Option<Arc<str>>,
    pub(crate) max_election_id: Option<ElectionId>,
    pub(crate) max_set_version: Option<SetVersion>,
    pub(crate) servers: Servers,
    pub(crate) stale: bool,
    pub(crate) compatibility_error: Option<Arc<str>>,
    pub(crate) logical_session_timeout_minutes: Option<i64>,
    /// The position of the RSPrimary among the servers.
    pub(crate) primary: Option<usize>,
    pub(crate) removals: Arc<[Removal]>,
    /// The lists whose members were all added last, while none was removed since.
    pub(crate) adopted: Option<[AddressList; 3]>,
    pub(crate) selection: SelectionSettings,
    /// Filled on first use: most descriptions are replaced before an operation selects from them, and
    /// those that are used are used many times.
    pub(crate) windows: Windows,
}

/// What selection needs to know besides the servers; the same for the life of a topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SelectionSettings {
    /// `localThresholdMS`: the width of the latency window.
    pub local_threshold: Duration,
    /// `heartbeatFrequencyMS`: how old a server's knowledge may be; bounds `maxStalenessSeconds`.
    pub heartbeat_frequency: Duration,
}

impl Default for SelectionSettings {
    fn default() -> Self {
        Self {
            local_threshold: Duration::from_millis(15),
            heartbeat_frequency: Duration::from_secs(10),
        }
    }
}

/// Positions of the servers within the latency window, for the criteria without tags or staleness.
#[derive(Debug, Default)]
pub(crate) struct Windows {
    pub(crate) secondaries: OnceLock<Box<[usize]>>,
    pub(crate) nearest: OnceLock<Box<[usize]>>,
    pub(crate) mongoses: OnceLock<Box<[usize]>>,
}

impl TopologyDescription {
    /// The description that comes before every other: of type Unknown, without servers.
    pub fn empty(selection: SelectionSettings) -> Self {
        Self {
            topology_type: TopologyType::Unknown,
            set_name: None,
            max_election_id: None,
            max_set_version: None,
            servers: Servers::empty(),
            stale: false,
            compatibility_error: None,
            logical_session_timeout_minutes: None,
            primary: None,
            removals: Arc::new([]),
            adopted: None,
            selection,
            windows: Windows::default(),
        }
    }

    /// A description put together by hand: for tests, examples and tools that ask "what if".
    pub fn assemble(
        topology_type: TopologyType,
        servers: impl IntoIterator<Item = ServerDescription>,
        selection: SelectionSettings,
    ) -> Self {
        let servers = Servers::from_descriptions(servers.into_iter().map(Arc::new));
        let mut description = Self { topology_type, servers, ..Self::empty(selection) };
        description.derive_from_servers();
        description
    }

    /// Computes what follows from the servers alone: the primary and the session timeout.
    pub(crate) fn derive_from_servers(&mut self) {
        self.primary = self.servers.primary();
        self.logical_session_timeout_minutes = match self.servers.summary().sessions {
            Sessions::Least(minutes) => Some(minutes),
            Sessions::NoServer | Sessions::Unsupported => None,
        };
    }

    /// What kind of deployment it is.
    pub fn topology_type(&self) -> TopologyType {
        self.topology_type
    }

    /// The name of the replica set, given or discovered.
    pub fn set_name(&self) -> Option<&str> {
        self.set_name.as_deref()
    }

    /// The largest election id that a primary ever reported.
    pub fn max_election_id(&self) -> Option<ElectionId> {
        self.max_election_id
    }

    /// The set version that goes with it.
    pub fn max_set_version(&self) -> Option<SetVersion> {
        self.max_set_version
    }

    /// The servers, by address.
    pub fn servers(&self) -> &Servers {
        &self.servers
    }

    /// One server.
    pub fn server(&self, address: &ServerAddress) -> Option<&Arc<ServerDescription>> {
        self.servers.get(address)
    }

    /// The primary of a replica set.
    pub fn primary(&self) -> Option<&Arc<ServerDescription>> {
        self.primary.map(|position| self.servers.at(position))
    }

    /// Whether a single-threaded client must scan again before it selects.
    pub fn is_stale(&self) -> bool {
        self.stale
    }

    /// Whether the client speaks a wire version of every server.
    pub fn is_compatible(&self) -> bool {
        self.compatibility_error.is_none()
    }

    /// Which server the client cannot speak to, and why.
    pub fn compatibility_error(&self) -> Option<&str> {
        self.compatibility_error.as_deref()
    }

    /// The shortest session timeout of all data-bearing servers; `None` if one of them has none.
    pub fn logical_session_timeout_minutes(&self) -> Option<i64> {
        self.logical_session_timeout_minutes
    }

    /// The servers that were dropped last, oldest first; at most
    /// [`MAX_REMEMBERED_REMOVALS`](crate::MAX_REMEMBERED_REMOVALS).
    pub fn removals(&self) -> &[Removal] {
        &self.removals
    }

    /// The settings that selection uses.
    pub fn selection_settings(&self) -> SelectionSettings {
        self.selection
    }

    /// Whether nothing that an event would tell differs.
    pub fn is_equal(&self, other: &Self) -> bool {
        self.topology_type == other.topology_type
            && self.set_name == other.set_name
            && self.max_election_id == other.max_election_id
            && self.max_set_version == other.max_set_version
            && self.compatibility_error == other.compatibility_error
            && self.logical_session_timeout_minutes == other.logical_session_timeout_minutes
            && self.servers.same_members(&other.servers)
            && self.servers.differing(&other.servers).into_iter().all(|(mine, theirs)| {
                mine.server_type() == theirs.server_type() && mine.is_equal(theirs)
            })
    }
}

impl Clone for TopologyDescription {
    /// Shares the servers; the copy fills its own windows, since it is about to differ.
    fn clone(&self) -> Self {
        Self {
            topology_type: self.topology_type,
            set_name: self.set_name.clone(),
            max_election_id: self.max_election_id,
            max_set_version: self.max_set_version,
            servers: self.servers.clone(),
            stale: self.stale,
            compatibility_error: self.compatibility_error.clone(),
            logical_session_timeout_minutes: self.logical_session_timeout_minutes,
            primary: self.primary,
            removals: Arc::clone(&self.removals),
            adopted: self.adopted.clone(),
            selection: self.selection,
            windows: Windows::default(),
        }
    }
}

impl fmt::Display for TopologyDescription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.topology_type.name())?;
        if let Some(name) = &self.set_name {
            write!(f, " {name}")?;
        }
        f.write_str(" [")?;
        for (position, server) in self.servers.iter().enumerate() {
            let comma = if position == 0 { "" } else { ", " };
            write!(f, "{comma}{server}")?;
        }
        f.write_str("]")?;
        match &self.compatibility_error {
            Some(error) => write!(f, " incompatible: {error}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server_description::RoundTrips;
    use quorate_protocol::{HelloReply, MonotonicTime};

    fn mongos(host: &str, timeout: Option<i64>) -> ServerDescription {
        let reply = HelloReply {
            ok: true,
            is_dbgrid: true,
            logical_session_timeout_minutes: timeout,
            ..HelloReply::default()
        };
        ServerDescription::from_reply(
            host.parse().unwrap(),
            Arc::new(reply),
            RoundTrips::default(),
            MonotonicTime::ZERO,
        )
    }

    fn timeout(servers: &[(&str, Option<i64>)]) -> Option<i64> {
        TopologyDescription::assemble(
            TopologyType::Sharded,
            servers
                .iter()
                .map(|(host, timeout)| mongos(host, *timeout))
                .chain([ServerDescription::unknown("z".parse().unwrap())]),
            SelectionSettings::default(),
        )
        .logical_session_timeout_minutes()
    }

    /// "Logical Session Timeout": the smallest, or null if any data-bearing server has none.
    #[test]
    fn the_session_timeout_is_the_smallest_of_all_data_bearing_servers() {
        assert_eq!(timeout(&[]), None);
        assert_eq!(timeout(&[("a", Some(30)), ("b", Some(20))]), Some(20));
        assert_eq!(timeout(&[("a", Some(30)), ("b", None)]), None);
        assert_eq!(timeout(&[("a", None), ("b", Some(30))]), None);
    }
}
