//! All servers of a deployment, found and asked.
//!
//! The discovery core decides which servers to ask: the probes are its checks. What it believes in the end is
//! what every driver that follows the specification believes, with its reasons.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use quorate_connection_string::ConnectionString;
use quorate_protocol::{MemberState, ServerAddress};
use quorate_server_discovery::{
    CheckFailure, CheckFailureKind, CheckId, DiscoveryOptions, Input, MonitorCommand, OptionsError,
    Output, ServerDescription, ServerType, Topology, TopologyDescription, TopologyId, TopologyType,
};

use super::probe::{Answer, HelloFault, PortFault, Prober, ServerProbe};
use crate::clock;
use crate::remedy;

/// How many servers are asked. A set has at most 50 members.
pub(crate) const MAX_PROBED: usize = 64;

/// The check of a server that the core did not ask for. The core numbers its own from 1.
const UNASKED: CheckId = CheckId(0);

/// The facts, and the topology that follows from them.
#[derive(Debug)]
pub(crate) struct Examination {
    /// The examined connection string.
    pub(crate) uri: ConnectionString,
    /// The hosts given.
    pub(crate) seeds: Vec<ServerAddress>,
    /// Every server that was asked.
    pub(crate) probes: BTreeMap<ServerAddress, ServerProbe>,
    /// The topology of a client that has asked each of them once.
    pub(crate) topology: Arc<TopologyDescription>,
}

impl Examination {
    /// The replies, of whichever way was answered the way the connection string wants it.
    pub(crate) fn answers(&self) -> impl Iterator<Item = (&ServerAddress, &Answer)> {
        self.probes.values().filter_map(|probe| Some((&probe.address, probe.answer()?)))
    }

    /// The state that a member claims in its own hello.
    pub(crate) fn own_word(&self, address: &ServerAddress) -> Option<MemberState> {
        let answer = self.probes.get(address)?.answer()?;
        match ServerType::from_reply(&answer.reply) {
            ServerType::RsPrimary => Some(MemberState::Primary),
            ServerType::RsSecondary => Some(MemberState::Secondary),
            ServerType::RsArbiter => Some(MemberState::Arbiter),
            _ => None,
        }
    }

    /// Whether a write finds a server that takes it. A direct connection sends writes to its one server, whatever
    /// that is.
    pub(crate) fn takes_writes(&self) -> bool {
        let refuses = |server: &Arc<ServerDescription>| {
            matches!(
                server.server_type(),
                ServerType::RsSecondary
                    | ServerType::RsArbiter
                    | ServerType::RsOther
                    | ServerType::RsGhost
            )
        };
        let is_direct = self.topology.topology_type() == TopologyType::Single;
        self.topology.has_writable_server()
            && !(is_direct && self.topology.servers().iter().any(refuses))
    }

    /// `mongosh` with this script on the deployment that was examined.
    pub(crate) fn mongosh(&self, script: &str) -> String {
        remedy::mongosh(&self.uri.to_string(), script)
    }

    /// `mongosh` with this script on one member of it.
    pub(crate) fn mongosh_on(&self, member: &ServerAddress, script: &str) -> String {
        let uri = remedy::member_uri(&self.uri.to_string(), member.as_str());
        remedy::mongosh(&uri, script)
    }

    /// A command of ours on the deployment that was examined.
    pub(crate) fn quorate(&self, command: &str) -> String {
        remedy::quorate(command, &self.uri.to_string())
    }

    /// Whether the connection string names this address.
    pub(crate) fn is_seed(&self, address: &ServerAddress) -> bool {
        self.seeds.contains(address)
    }

    /// How far each secondary is behind the primary, where both tell of their last write.
    pub(crate) fn lags(&self) -> Vec<(ServerAddress, Duration)> {
        let date = |server: &ServerDescription| Some(server.last_write_date()?.as_millis());
        let newest = self.topology.primary().and_then(|primary| date(primary));
        let servers = self.topology.servers().iter();
        let secondaries = servers.filter(|server| server.server_type() == ServerType::RsSecondary);
        secondaries
            .filter_map(|server| {
                let behind = newest?.saturating_sub(date(server)?).max(0).unsigned_abs();
                Some((server.address().clone(), Duration::from_millis(behind)))
            })
            .collect()
    }

    /// The server that advertises this address: the first that answered and lists it.
    pub(crate) fn advertised_by(&self, address: &ServerAddress) -> Option<&ServerAddress> {
        self.answers()
            .find(|(_, answer)| answer.reply.members().any(|member| member == address))
            .map(|(by, _)| by)
    }
}

#[cfg(test)]
impl Examination {
    /// An examination without any answer, for tests of the printed text.
    #[allow(clippy::unwrap_used, reason = "a panic is the report of a test")]
    pub(crate) fn unasked(uri: &str) -> Self {
        let uri = ConnectionString::parse(uri).unwrap();
        let options = DiscoveryOptions::from_connection_string(&uri);
        let topology = Topology::new(&options, TopologyId(1), 0, clock::now()).unwrap();
        let topology = Arc::clone(topology.description());
        Self { uri, seeds: options.seeds, probes: BTreeMap::new(), topology }
    }
}

impl ServerProbe {
    /// The reply that the connection string's way gave.
    pub(crate) fn answer(&self) -> Option<&Answer> {
        self.hello.as_ref()?.as_ref().ok()
    }
}

/// Called with each round of probes as they come in, so that something is seen while others wait.
pub(crate) type Witness<'a> = &'a mut dyn FnMut(&ServerProbe) -> std::io::Result<()>;

/// Asks the seeds, then the members that they advertise, each once. Fails if the options contradict
/// each other, or the witness cannot tell what it sees.
pub(crate) async fn examine(
    uri: ConnectionString,
    seeds: Vec<ServerAddress>,
    prober: &Prober,
    witness: Witness<'_>,
) -> Result<Examination, ExaminationError> {
    let options = DiscoveryOptions { seeds, ..DiscoveryOptions::from_connection_string(&uri) };
    let mut topology = Topology::new(&options, TopologyId(1), 0, clock::now())?;
    let mut probes = BTreeMap::new();
    let mut waiting = wanted_checks(&mut topology);
    // Each round asks servers that were not asked before, and their number is bounded.
    while !waiting.is_empty() && probes.len() < MAX_PROBED {
        waiting.retain(|(server, _)| !probes.contains_key(server));
        waiting.truncate(MAX_PROBED - probes.len());
        let asked = ask(prober, std::mem::take(&mut waiting)).await;
        for (check, probe) in asked {
            witness(&probe)?;
            topology.handle(clock::now(), input(check, &probe));
            probes.insert(probe.address.clone(), probe);
            waiting.extend(wanted_checks(&mut topology));
        }
        waiting.retain(|(server, _)| !probes.contains_key(server));
    }
    if options.load_balanced {
        // The core takes a load balancer on trust; the doctor asks it.
        let whom = options.seeds.iter().map(|seed| (seed.clone(), UNASKED)).collect();
        for (_, probe) in ask(prober, whom).await {
            witness(&probe)?;
            probes.insert(probe.address.clone(), probe);
        }
    }
    let description = Arc::clone(topology.description());
    Ok(Examination { uri, seeds: options.seeds, probes, topology: description })
}

/// Why a deployment could not be examined.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExaminationError {
    /// The connection string asks for two things at once.
    #[error("{0}")]
    Options(#[from] OptionsError),
    /// The results could not be written.
    #[error(transparent)]
    Output(#[from] std::io::Error),
}

fn wanted_checks(topology: &mut Topology) -> Vec<(ServerAddress, CheckId)> {
    let mut wanted = Vec::new();
    while let Some(output) = topology.poll_output() {
        if let Output::Monitor { server, command: MonitorCommand::Check { check, .. } } = output {
            wanted.push((server, check));
        }
    }
    wanted
}

/// Asks all of them at once; the answers keep the order of the questions.
async fn ask(prober: &Prober, whom: Vec<(ServerAddress, CheckId)>) -> Vec<(CheckId, ServerProbe)> {
    let mut tasks = Vec::new();
    for (server, check) in whom {
        let prober = prober.clone();
        tasks.push((check, tokio::spawn(async move { prober.probe(&server).await })));
    }
    let mut answers = Vec::new();
    for (check, task) in tasks {
        // A task that panicked is a mistake of ours, and must not be taken for a server's silence.
        match task.await {
            Ok(probe) => answers.push((check, probe)),
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
    answers
}

fn input(check: CheckId, probe: &ServerProbe) -> Input {
    let server = probe.address.clone();
    match &probe.hello {
        Some(Ok(answer)) => Input::HelloReceived {
            server,
            check,
            reply: Arc::clone(&answer.reply),
            round_trip: answer.round_trip,
            more_to_come: false,
        },
        failed => {
            let fault = failed.as_ref().and_then(|result| result.as_ref().err());
            Input::CheckFailed { server, check, failure: failure(probe, fault) }
        }
    }
}

fn failure(probe: &ServerProbe, fault: Option<&HelloFault>) -> CheckFailure {
    let (kind, message) = match (fault, &probe.resolved) {
        (Some(fault @ HelloFault::Silent), _) => {
            (CheckFailureKind::NetworkTimeout, fault.to_string())
        }
        (Some(fault @ HelloFault::Refused { .. }), _) => {
            (CheckFailureKind::Command, fault.to_string())
        }
        (Some(fault @ HelloFault::Malformed(_)), _) => {
            (CheckFailureKind::Malformed, fault.to_string())
        }
        (Some(fault), _) => (CheckFailureKind::Network, fault.to_string()),
        (None, Some(Err(reason))) => {
            (CheckFailureKind::Network, format!("its name does not resolve: {reason}"))
        }
        (None, _) => port_failure(probe),
    };
    CheckFailure::new(kind, message)
}

fn port_failure(probe: &ServerProbe) -> (CheckFailureKind, String) {
    let silent = probe.ports.iter().all(|(_, result)| *result == Err(PortFault::Silent));
    match silent {
        true => (CheckFailureKind::NetworkTimeout, "no answer while connecting".to_owned()),
        false => (CheckFailureKind::Network, "connection refused".to_owned()),
    }
}
