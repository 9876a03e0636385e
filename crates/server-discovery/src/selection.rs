//! Which server an operation goes to.
//!
//! Follows "Rules for server selection" in the Server Selection specification, steps 2 to 8 of the
//! multi-threaded algorithm, and the Max Staleness specification. Everything here is a function of a
//! published [`TopologyDescription`]: the caller brings the random bits, the operation counts and
//! the time, and owns waiting, the timeout and the request for a check when nothing is suitable.
//!
//! ```text
//!   request ─▶ check ─▶ suitable ─▶ selector ─▶ latency window ─▶ choice of two ─▶ server
//!                │          │ (none)    │ (none)
//!                ▼          └─────┬─────┘
//!          SelectionError      Ok(None): wait; after the timeout, a SelectionFailure explains
//! ```
//!
//! Without tags, staleness, selector or deprioritized servers, the window is computed once per
//! description and kept there, so that picking costs no more than two look-ups and takes no lock.

mod failure;
mod failure_kind;
mod read_preference_argument;
mod suitable;
#[cfg(test)]
mod test_topology;
#[cfg(test)]
mod tests;
mod text;
mod verdict;
mod verdict_text;
mod window;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use quorate_protocol::{ReadPreference, ReadPreferenceMode, ServerAddress, TagSet};

use crate::server_description::ServerDescription;
use crate::topology_description::TopologyDescription;
use crate::types::{ServerType, TopologyType};

pub use failure::{MAX_CAUSE_LENGTH, MAX_REPORTED_SERVERS, SelectionFailure, ServerReport};
pub use failure_kind::FailureKind;
pub use read_preference_argument::{
    OpQueryReadPreference, ReadPreferenceArgument, read_preference_for_op_msg,
    read_preference_for_op_query,
};
pub use suitable::Shortcoming;
pub use verdict::Verdict;
pub use window::{choose, latency_window};

/// `idleWritePeriodMS`: how often an idle primary writes, and so how stale a secondary that lags not
/// at all may look.
pub const IDLE_WRITE_PERIOD: Duration = Duration::from_secs(10);

/// `smallestMaxStalenessSeconds`.
pub const SMALLEST_MAX_STALENESS: Duration = Duration::from_secs(90);

/// What an operation asks of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SelectionCriteria<'a> {
    /// A server that takes writes.
    Write,
    /// A server that this read preference admits.
    Read(&'a ReadPreference),
}

impl<'a> SelectionCriteria<'a> {
    /// The read preference; `None` for writes.
    pub const fn read_preference(self) -> Option<&'a ReadPreference> {
        match self {
            Self::Write => None,
            Self::Read(preference) => Some(preference),
        }
    }

    /// Whether nothing but the primary of a replica set will do.
    fn wants_primary(self) -> bool {
        self.read_preference()
            .is_none_or(|preference| preference.mode == ReadPreferenceMode::Primary)
    }

    /// Whether neither tags nor staleness restrict the members of a replica set. An empty tag set in
    /// the first place is on every member, so that those behind it are never tried.
    fn is_unrestricted(self) -> bool {
        self.read_preference().is_none_or(|preference| {
            preference.max_staleness.is_none()
                && preference.tag_sets.first().is_none_or(TagSet::is_empty)
        })
    }
}

impl fmt::Display for SelectionCriteria<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Write => f.write_str("a write"),
            Self::Read(preference) => write!(f, "a read from {preference}"),
        }
    }
}

/// A function of the application's that removes servers from the suitable ones.
///
/// It cannot add any: by its type, what it returns comes from what it was given.
pub type ServerSelector = dyn for<'t> Fn(Vec<&'t Arc<ServerDescription>>) -> Vec<&'t Arc<ServerDescription>>
    + Send
    + Sync;

/// What to select for, and what the caller knows better than the topology does.
#[derive(Clone, Copy)]
pub struct SelectionRequest<'a> {
    /// What the operation needs.
    pub criteria: SelectionCriteria<'a>,
    /// Servers on which this operation has failed before: used only if nothing else is suitable.
    pub deprioritized: &'a [ServerAddress],
    /// The application's own filter.
    pub selector: Option<&'a ServerSelector>,
}

impl<'a> SelectionRequest<'a> {
    /// For a write.
    pub const WRITE: Self =
        Self { criteria: SelectionCriteria::Write, deprioritized: &[], selector: None };

    /// For a read.
    pub const fn read(preference: &'a ReadPreference) -> Self {
        Self { criteria: SelectionCriteria::Read(preference), deprioritized: &[], selector: None }
    }
}

impl fmt::Debug for SelectionRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SelectionRequest")
            .field("criteria", &self.criteria)
            .field("deprioritized", &self.deprioritized)
            .field("selector", &self.selector.map(|_| "custom"))
            .finish()
    }
}

/// Why waiting cannot help: the request or the deployment is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SelectionError {
    /// The client does not speak the wire versions of a server.
    #[error("{0}; upgrade the older of the two")]
    Incompatible(Arc<str>),
    /// Tags restrict secondaries, and mode primary reads from none.
    #[error(
        "a read preference with tags cannot have mode primary; remove the tags or choose another \
         mode, such as nearest"
    )]
    TagsWithPrimary,
    /// The same for staleness.
    #[error(
        "a read preference with maxStalenessSeconds cannot have mode primary; remove \
         maxStalenessSeconds or choose another mode, such as secondaryPreferred"
    )]
    MaxStalenessWithPrimary,
    /// Less than the estimate of staleness can resolve.
    #[error(
        "maxStalenessSeconds is {}, less than can be measured here; use at least {}",
        asked.as_secs_f64(),
        least.as_secs_f64()
    )]
    MaxStalenessTooSmall {
        /// What the read preference says.
        asked: Duration,
        /// What it must say at least: 90 s, or heartbeatFrequencyMS and 10 s.
        least: Duration,
    },
}

impl TopologyDescription {
    /// Picks the server for an operation: steps 2 to 8 of the algorithm, except that the caller
    /// counts operations.
    ///
    /// `random_bits` is a fresh random number; `operation_count` tells how many operations a server
    /// is executing. `Ok(None)` means that nothing is suitable now: ask for a check and wait for
    /// another description.
    ///
    /// ```
    /// use quorate_protocol::{ReadPreference, ReadPreferenceMode};
    /// use quorate_server_discovery::{
    ///     SelectionCriteria, SelectionRequest, SelectionSettings, TopologyDescription,
    /// };
    ///
    /// let topology = TopologyDescription::empty(SelectionSettings::default());
    /// let preference = ReadPreference::new(ReadPreferenceMode::Nearest);
    /// let request = SelectionRequest {
    ///     criteria: SelectionCriteria::Read(&preference),
    ///     deprioritized: &["busy.example:27017".parse()?],
    ///     selector: Some(&|mut servers| {
    ///         servers.retain(|server| server.tags().get("use") != Some("backup"));
    ///         servers
    ///     }),
    /// };
    /// assert!(topology.select(&request, 4, |_address| 0)?.is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn select(
        &self,
        request: &SelectionRequest<'_>,
        random_bits: u64,
        operation_count: impl Fn(&ServerAddress) -> u64,
    ) -> Result<Option<&Arc<ServerDescription>>, SelectionError> {
        self.select_with(request, || random_bits, operation_count)
    }

    /// [`select`](Self::select), which asks for random bits only where there is a choice: there is none
    /// for what goes to the primary.
    ///
    /// # Errors
    ///
    /// As [`select`](Self::select).
    pub fn select_with(
        &self,
        request: &SelectionRequest<'_>,
        random_bits: impl FnOnce() -> u64,
        operation_count: impl Fn(&ServerAddress) -> u64,
    ) -> Result<Option<&Arc<ServerDescription>>, SelectionError> {
        self.check_request(request.criteria)?;
        if self.is_plain(request) {
            return Ok(match self.plain_window(request.criteria) {
                PlainWindow::One(server) => server,
                PlainWindow::Positions(window) => {
                    window::choose_position(window.len(), random_bits(), |index| {
                        operation_count(self.servers.at(window[index]).address())
                    })
                    .map(|index| self.servers.at(window[index]))
                }
            });
        }
        let suitable = self.find_suitable(request);
        let window = latency_window(&suitable, self.selection.local_threshold);
        Ok(choose(&window, random_bits(), operation_count))
    }

    /// The suitable servers, before the latency window: steps 2 to 4.
    pub fn suitable_servers(
        &self,
        request: &SelectionRequest<'_>,
    ) -> Result<Vec<&Arc<ServerDescription>>, SelectionError> {
        self.check_request(request.criteria)?;
        Ok(self.find_suitable(request))
    }

    /// `hasReadableServer` of the logging and monitoring specification. No read preference means
    /// primary; one that is invalid here finds no server.
    pub fn has_readable_server(&self, preference: Option<&ReadPreference>) -> bool {
        let primary = ReadPreference::PRIMARY;
        let criteria = SelectionCriteria::Read(preference.unwrap_or(&primary));
        self.check_read_preference(criteria).is_ok() && self.has_suitable_server(criteria)
    }

    /// `hasWritableServer` of the logging and monitoring specification.
    pub fn has_writable_server(&self) -> bool {
        self.has_suitable_server(SelectionCriteria::Write)
    }

    fn has_suitable_server(&self, criteria: SelectionCriteria<'_>) -> bool {
        let request = SelectionRequest { criteria, ..SelectionRequest::WRITE };
        if !self.is_plain(&request) {
            return !self.find_suitable(&request).is_empty();
        }
        match self.plain_window(criteria) {
            PlainWindow::One(server) => server.is_some(),
            PlainWindow::Positions(window) => !window.is_empty(),
        }
    }

    fn find_suitable(&self, request: &SelectionRequest<'_>) -> Vec<&Arc<ServerDescription>> {
        let suitable = suitable::suitable(self, request.criteria, request.deprioritized);
        match request.selector {
            Some(selector) => selector(suitable),
            None => suitable,
        }
    }

    fn check_request(&self, criteria: SelectionCriteria<'_>) -> Result<(), SelectionError> {
        match &self.compatibility_error {
            Some(error) => Err(SelectionError::Incompatible(error.clone())),
            None => self.check_read_preference(criteria),
        }
    }

    fn check_read_preference(&self, criteria: SelectionCriteria<'_>) -> Result<(), SelectionError> {
        let Some(preference) = criteria.read_preference() else { return Ok(()) };
        if preference.mode == ReadPreferenceMode::Primary {
            if preference.max_staleness.is_some() {
                return Err(SelectionError::MaxStalenessWithPrimary);
            }
            if !preference.tag_sets.iter().all(TagSet::is_empty) {
                return Err(SelectionError::TagsWithPrimary);
            }
        }
        match preference.max_staleness {
            // Other topologies ignore it, or leave the judgement to mongos.
            Some(asked) if self.topology_type.is_replica_set() => {
                let measurable =
                    self.selection.heartbeat_frequency.saturating_add(IDLE_WRITE_PERIOD);
                let least = measurable.max(SMALLEST_MAX_STALENESS);
                match asked < least {
                    true => Err(SelectionError::MaxStalenessTooSmall { asked, least }),
                    false => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    fn is_plain(&self, request: &SelectionRequest<'_>) -> bool {
        request.deprioritized.is_empty()
            && request.selector.is_none()
            && (request.criteria.is_unrestricted() || !self.topology_type.is_replica_set())
    }

    /// The latency window of a plain request. Must agree with [`suitable::suitable`], which a
    /// property test checks.
    fn plain_window(&self, criteria: SelectionCriteria<'_>) -> PlainWindow<'_> {
        use ReadPreferenceMode as Mode;
        match (self.topology_type, criteria) {
            (TopologyType::Unknown, _) => PlainWindow::One(None),
            (TopologyType::Single, _) => {
                PlainWindow::One(self.servers.iter().next().filter(|s| s.server_type().is_known()))
            }
            (TopologyType::LoadBalanced, _) => PlainWindow::One(self.servers.iter().next()),
            (TopologyType::Sharded, _) => PlainWindow::Positions(self.mongoses()),
            (TopologyType::ReplicaSetNoPrimary, SelectionCriteria::Write) => PlainWindow::One(None),
            (TopologyType::ReplicaSetWithPrimary, SelectionCriteria::Write) => {
                PlainWindow::One(self.primary())
            }
            (_, SelectionCriteria::Read(preference)) => match preference.mode {
                Mode::Primary => PlainWindow::One(self.primary()),
                Mode::PrimaryPreferred => match self.primary() {
                    Some(primary) => PlainWindow::One(Some(primary)),
                    None => PlainWindow::Positions(self.secondaries()),
                },
                Mode::Secondary => PlainWindow::Positions(self.secondaries()),
                Mode::SecondaryPreferred => match self.secondaries() {
                    [] => PlainWindow::One(self.primary()),
                    secondaries => PlainWindow::Positions(secondaries),
                },
                Mode::Nearest => PlainWindow::Positions(self.nearest()),
            },
        }
    }

    fn secondaries(&self) -> &[usize] {
        self.windows
            .secondaries
            .get_or_init(|| window::positions(self, |kind| kind == ServerType::RsSecondary))
    }

    fn nearest(&self) -> &[usize] {
        self.windows.nearest.get_or_init(|| {
            window::positions(self, |kind| {
                matches!(kind, ServerType::RsPrimary | ServerType::RsSecondary)
            })
        })
    }

    fn mongoses(&self) -> &[usize] {
        self.windows
            .mongoses
            .get_or_init(|| window::positions(self, |kind| kind == ServerType::Mongos))
    }
}

/// What a plain request chooses from.
enum PlainWindow<'t> {
    One(Option<&'t Arc<ServerDescription>>),
    Positions(&'t [usize]),
}
