//! What a topology is told once, at its start.
//!
//! Follows "Configuration" in the Server Discovery And Monitoring specification and the options of
//! the Server Monitoring specification. Connection strings are parsed in `quorate-connection-string`.

use std::ops::RangeInclusive;
use std::time::Duration;

use quorate_connection_string::{ConnectionString, Limit, Seeds};
use quorate_protocol::{ServerAddress, ServerMonitoringMode};

use crate::function_platform::FunctionPlatform;
use crate::topology_description::SelectionSettings;
use crate::types::TopologyType;

/// `minHeartbeatFrequencyMS`: the pause between two checks of one server is never shorter, except
/// where the specification says "at once". Not configurable.
pub const MIN_HEARTBEAT_FREQUENCY: Duration = Duration::from_millis(500);

/// `cooldownMS`: a single-threaded client leaves a server alone for this long after a network error.
/// Not configurable.
pub const COOLDOWN: Duration = Duration::from_millis(5000);

/// `socketCheckIntervalMS`: a single-threaded client checks a server again before it uses a
/// connection that was idle for this long.
pub const SOCKET_CHECK_INTERVAL: Duration = Duration::from_millis(5000);

/// `heartbeatFrequencyMS` of a multi-threaded or asynchronous client, unless told otherwise.
pub const DEFAULT_HEARTBEAT_FREQUENCY: Duration = Duration::from_secs(10);

/// `heartbeatFrequencyMS` of a single-threaded client, unless told otherwise.
pub const DEFAULT_SCAN_FREQUENCY: Duration = Duration::from_secs(60);

/// `connectTimeoutMS`, unless told otherwise.
pub const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a displaced primary may stay silent, unless told otherwise: many round trips within a
/// continent, and little beside an election.
pub const DEFAULT_DISPLACED_PATIENCE: Duration = Duration::from_millis(250);

/// The wire versions our own client speaks: MongoDB 3.6, the first with OP_MSG, and later.
pub const SUPPORTED_WIRE_VERSIONS: RangeInclusive<i32> = 6..=29;

/// What a topology is told once, at its start.
#[derive(Clone, Debug, PartialEq)]
pub struct DiscoveryOptions {
    /// The seed list. None at all is allowed and warned about.
    pub seeds: Vec<ServerAddress>,
    /// `directConnection`: use the one seed, whatever it is.
    pub direct_connection: bool,
    /// `loadBalanced`: the one seed is a load balancer.
    pub load_balanced: bool,
    /// `replicaSet`: the only set to accept.
    pub set_name: Option<String>,
    /// How servers are checked: by monitors, or by scans of the client's own thread.
    pub threading: Threading,
    /// `heartbeatFrequencyMS`; `None` is the default for the threading.
    pub heartbeat_frequency: Option<Duration>,
    /// `connectTimeoutMS`; `None` is unlimited, which a connection string writes as 0.
    pub connect_timeout: Option<Duration>,
    /// `serverMonitoringMode`.
    pub server_monitoring_mode: ServerMonitoringMode,
    /// Where the client runs, if that is a function platform.
    pub function_platform: Option<FunctionPlatform>,
    /// Whether a stable API version is requested, which implies `hello`.
    pub stable_api: bool,
    /// How long a primary that a newer one has displaced may stay silent before the operations
    /// that wait for it are interrupted; `None` lets them wait until a check of it fails. Ours, not
    /// the specification's.
    pub displaced_patience: Option<Duration>,
    /// `localThresholdMS`.
    pub local_threshold: Duration,
    /// `srvMaxHosts`: how many of the resolved seeds to use; `None` is all of them.
    pub srv_max_hosts: Option<usize>,
    /// The wire versions the client speaks.
    pub wire_versions: RangeInclusive<i32>,
    /// How the client calls itself in error texts.
    pub driver_name: String,
}

impl Default for DiscoveryOptions {
    fn default() -> Self {
        Self {
            seeds: Vec::new(),
            direct_connection: false,
            load_balanced: false,
            set_name: None,
            threading: Threading::default(),
            heartbeat_frequency: None,
            connect_timeout: Some(DEFAULT_CONNECT_TIMEOUT),
            server_monitoring_mode: ServerMonitoringMode::default(),
            function_platform: None,
            stable_api: false,
            displaced_patience: Some(DEFAULT_DISPLACED_PATIENCE),
            local_threshold: SelectionSettings::default().local_threshold,
            srv_max_hosts: None,
            wire_versions: SUPPORTED_WIRE_VERSIONS,
            driver_name: "Quorate".to_owned(),
        }
    }
}

impl DiscoveryOptions {
    /// The defaults with these seeds.
    pub fn with_seeds(seeds: impl IntoIterator<Item = ServerAddress>) -> Self {
        Self { seeds: seeds.into_iter().collect(), ..Self::default() }
    }

    /// What a connection string says. The seeds of a `mongodb+srv://` string are not resolved here:
    /// set [`seeds`](Self::seeds) to what DNS answered.
    pub fn from_connection_string(string: &ConnectionString) -> Self {
        let options = string.options();
        let defaults = Self::default();
        Self {
            seeds: match string.seeds() {
                Seeds::Hosts(hosts) => hosts.clone(),
                Seeds::Srv(_) => Vec::new(),
            },
            direct_connection: options.direct_connection.unwrap_or(false),
            load_balanced: options.load_balanced.unwrap_or(false),
            set_name: options.replica_set.clone(),
            heartbeat_frequency: options.heartbeat_frequency,
            connect_timeout: options.connect_timeout.map_or(defaults.connect_timeout, Limit::bound),
            server_monitoring_mode: options.server_monitoring_mode.unwrap_or_default(),
            local_threshold: options.local_threshold.unwrap_or(defaults.local_threshold),
            srv_max_hosts: options
                .srv_max_hosts
                .and_then(Limit::bound)
                .map(|most| most.get() as usize),
            ..defaults
        }
    }

    /// The interval between checks (or scans), given or by default.
    pub fn heartbeat_frequency(&self) -> Duration {
        self.heartbeat_frequency.unwrap_or(match self.threading {
            Threading::Multi => DEFAULT_HEARTBEAT_FREQUENCY,
            Threading::Single => DEFAULT_SCAN_FREQUENCY,
        })
    }

    /// Whether servers that can stream are streamed from.
    pub fn streams(&self) -> bool {
        self.threading == Threading::Multi
            && match self.server_monitoring_mode {
                ServerMonitoringMode::Stream => true,
                ServerMonitoringMode::Poll => false,
                ServerMonitoringMode::Auto => self.function_platform.is_none(),
            }
    }

    /// How long to wait for the reply to an awaitable hello; `None` is without limit.
    pub fn awaited_reply_timeout(&self) -> Option<Duration> {
        self.connect_timeout.map(|timeout| timeout + self.heartbeat_frequency())
    }

    /// "Initial TopologyType".
    pub(crate) fn initial_topology_type(&self) -> TopologyType {
        if self.load_balanced {
            TopologyType::LoadBalanced
        } else if self.direct_connection {
            TopologyType::Single
        } else if self.set_name.is_some() {
            TopologyType::ReplicaSetNoPrimary
        } else {
            TopologyType::Unknown
        }
    }

    pub(crate) fn selection_settings(&self) -> SelectionSettings {
        SelectionSettings {
            local_threshold: self.local_threshold,
            heartbeat_frequency: self.heartbeat_frequency(),
        }
    }

    /// "Allowed configuration combinations".
    pub(crate) fn check(&self) -> Result<(), OptionsError> {
        if self.direct_connection && self.seeds.len() > 1 {
            return Err(OptionsError::DirectConnectionToSeveral(self.seeds.len()));
        }
        if self.load_balanced {
            if self.direct_connection {
                return Err(OptionsError::LoadBalancedWith("directConnection=true"));
            }
            if self.set_name.is_some() {
                return Err(OptionsError::LoadBalancedWith("replicaSet"));
            }
            if self.srv_max_hosts.is_some() {
                return Err(OptionsError::LoadBalancedWith("srvMaxHosts"));
            }
            if self.seeds.len() != 1 {
                return Err(OptionsError::SeveralLoadBalancers(self.seeds.len()));
            }
        }
        if self.srv_max_hosts.is_some() && self.set_name.is_some() {
            return Err(OptionsError::SrvMaxHostsWithSetName);
        }
        match self.heartbeat_frequency {
            Some(frequency) if frequency < MIN_HEARTBEAT_FREQUENCY => {
                Err(OptionsError::HeartbeatTooFrequent(frequency))
            }
            _ => Ok(()),
        }
    }
}

/// How servers are checked: by monitors, or by scans of the client's own thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Threading {
    /// Each server has its own monitor, all of them at once: threads or an event loop.
    #[default]
    Multi,
    /// Operations check the servers themselves, one after the other.
    Single,
}

/// Options that contradict each other. Their author is at fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OptionsError {
    /// One direct connection, several seeds.
    #[error("directConnection=true needs one host, not {0}; remove the others or the option")]
    DirectConnectionToSeveral(usize),
    /// A load balancer hides what the other option asks for.
    #[error("loadBalanced=true cannot be combined with {0}; remove one of the two")]
    LoadBalancedWith(&'static str),
    /// One load balancer at a time.
    #[error("loadBalanced=true needs exactly one host, not {0}")]
    SeveralLoadBalancers(usize),
    /// A set lists its own members.
    #[error("srvMaxHosts cannot be combined with replicaSet; remove one of the two")]
    SrvMaxHostsWithSetName,
    /// The floor is the specification's.
    #[error("heartbeatFrequencyMS must be at least 500, not {}", .0.as_millis())]
    HeartbeatTooFrequent(Duration),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(change: impl FnOnce(&mut DiscoveryOptions)) -> DiscoveryOptions {
        let mut options = DiscoveryOptions::with_seeds(["a".parse().unwrap()]);
        change(&mut options);
        options
    }

    /// "Initial TopologyType", every row.
    #[test]
    fn the_initial_type_follows_the_options() {
        let kind = |change: fn(&mut DiscoveryOptions)| options(change).initial_topology_type();
        let name = Some("rs".to_owned());
        assert_eq!(kind(|_| ()), TopologyType::Unknown);
        assert_eq!(kind(|o| o.direct_connection = true), TopologyType::Single);
        assert_eq!(kind(|o| o.load_balanced = true), TopologyType::LoadBalanced);
        assert_eq!(kind(|o| o.set_name = Some("rs".to_owned())), TopologyType::ReplicaSetNoPrimary);
        let both = options(|o| {
            o.direct_connection = true;
            o.set_name = name;
        });
        assert_eq!(both.initial_topology_type(), TopologyType::Single);
    }

    /// "Allowed configuration combinations".
    #[test]
    fn contradictions_are_refused() {
        let refused = |change: fn(&mut DiscoveryOptions)| options(change).check().unwrap_err();
        assert_eq!(
            refused(|o| {
                o.direct_connection = true;
                o.seeds.push("b".parse().unwrap());
            }),
            OptionsError::DirectConnectionToSeveral(2)
        );
        assert_eq!(
            refused(|o| {
                o.load_balanced = true;
                o.direct_connection = true;
            }),
            OptionsError::LoadBalancedWith("directConnection=true")
        );
        assert_eq!(
            refused(|o| {
                o.load_balanced = true;
                o.set_name = Some("rs".to_owned());
            }),
            OptionsError::LoadBalancedWith("replicaSet")
        );
        assert_eq!(
            refused(|o| {
                o.load_balanced = true;
                o.seeds.push("b".parse().unwrap());
            }),
            OptionsError::SeveralLoadBalancers(2)
        );
        assert_eq!(
            refused(|o| o.heartbeat_frequency = Some(Duration::from_millis(499))).to_string(),
            "heartbeatFrequencyMS must be at least 500, not 499"
        );
        assert_eq!(options(|_| ()).check(), Ok(()));
        assert_eq!(
            options(|o| o.heartbeat_frequency = Some(Duration::from_millis(500))).check(),
            Ok(())
        );
    }

    #[test]
    fn connection_strings_become_options() {
        let parsed = |text: &str| {
            DiscoveryOptions::from_connection_string(&ConnectionString::parse(text).unwrap())
        };
        let options = parsed(
            "mongodb://a,b:1/?replicaSet=rs&connectTimeoutMS=0&heartbeatFrequencyMS=700\
             &serverMonitoringMode=poll&localThresholdMS=3",
        );
        assert_eq!(options.seeds, ["a".parse().unwrap(), "b:1".parse().unwrap()]);
        assert_eq!(options.set_name.as_deref(), Some("rs"));
        assert_eq!(options.connect_timeout, None);
        assert_eq!(options.heartbeat_frequency(), Duration::from_millis(700));
        assert_eq!(options.local_threshold, Duration::from_millis(3));
        assert!(!options.streams());
        assert_eq!(parsed("mongodb://a").connect_timeout, Some(DEFAULT_CONNECT_TIMEOUT));
        assert!(parsed("mongodb+srv://a.b.c/?srvMaxHosts=2").seeds.is_empty());
        assert_eq!(parsed("mongodb+srv://a.b.c/?srvMaxHosts=2").srv_max_hosts, Some(2));
        assert_eq!(parsed("mongodb+srv://a.b.c/?srvMaxHosts=0").srv_max_hosts, None);
    }

    #[test]
    fn streaming_follows_mode_and_platform() {
        assert!(options(|_| ()).streams());
        assert!(!options(|o| o.server_monitoring_mode = ServerMonitoringMode::Poll).streams());
        let lambda = |mode| {
            options(|o| {
                o.function_platform = Some(FunctionPlatform::AwsLambda);
                o.server_monitoring_mode = mode;
            })
        };
        assert!(!lambda(ServerMonitoringMode::Auto).streams());
        assert!(lambda(ServerMonitoringMode::Stream).streams());
        assert!(!options(|o| o.threading = Threading::Single).streams());
    }

    /// "Socket timeout": 0 stays unlimited, everything else grows by the heartbeat frequency.
    #[test]
    fn awaited_replies_get_the_heartbeat_frequency_on_top() {
        assert_eq!(options(|_| ()).awaited_reply_timeout(), Some(Duration::from_secs(20)));
        assert_eq!(options(|o| o.connect_timeout = None).awaited_reply_timeout(), None);
    }
}
