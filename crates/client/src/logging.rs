//! Structured log messages through `tracing`.
//!
//! Sentences and keys are the specifications' ("Log Messages" of the SDAM, server selection, pooling
//! and command monitoring specifications). The components are the targets `quorate::topology`,
//! `quorate::serverSelection`, `quorate::connection` and `quorate::command`. Every message also has
//! the `topologyId` of the client that it comes from. Nothing is put into words where no subscriber
//! listens.

use std::time::Duration;

use bson::raw::RawDocument;
use quorate_protocol::ServerAddress;
use quorate_server_discovery::{DiscoveryEvent, LogLevel, LogMessage, TopologyId};
use tracing::{Level, Span, debug, debug_span, enabled, info, warn};

use crate::command_event::{CommandEvent, CommandEventKind, OperationId};
use crate::discovery::Discovery;
use crate::error::{Error, ErrorKind};
use crate::extended_json;
use crate::operation::{Operation, Target};
use crate::options::DEFAULT_LOGGED_DOCUMENT_LENGTH;
use crate::pool::{PoolEvent, PoolEventKind};

const TOPOLOGY: &str = "quorate::topology";
const SELECTION: &str = "quorate::serverSelection";
const CONNECTION: &str = "quorate::connection";
const COMMAND: &str = "quorate::command";

/// The span around everything that one operation does, retries included. Messages of the other
/// components that are told on its way are inside it.
pub(crate) fn span(operation: &Operation<'_>) -> Span {
    debug_span!(
        target: COMMAND,
        "operation",
        commandName = operation.name(),
        databaseName = operation.database
    )
}

/// Says how long a logged document may be, in characters.
const LENGTH_VARIABLE: &str = "MONGODB_LOG_MAX_DOCUMENT_LENGTH";

pub(crate) fn discovery(topology: TopologyId, event: &DiscoveryEvent) {
    let warning = matches!(event, DiscoveryEvent::Warning(_));
    if !warning && !enabled!(target: TOPOLOGY, Level::DEBUG) {
        return;
    }
    let Some(told) = LogMessage::from_event(topology, event) else { return };
    if told.level == LogLevel::Warn {
        return warn!(target: TOPOLOGY, topologyId = topology.0, "{told}");
    }
    debug!(
        target: TOPOLOGY,
        topologyId = topology.0,
        serverHost = told.text("serverHost"),
        serverPort = told.integer("serverPort"),
        driverConnectionId = told.integer("driverConnectionId"),
        serverConnectionId = told.integer("serverConnectionId"),
        awaited = told.truth("awaited"),
        durationMS = told.millis("durationMS"),
        reply = told.text("reply"),
        failure = told.text("failure"),
        previousDescription = told.text("previousDescription"),
        newDescription = told.text("newDescription"),
        "{}", told.message
    );
}

/// Where the choice of a server has got to.
pub(crate) enum SelectionStep<'a> {
    Started,
    /// Nothing is suitable yet; this much time is left.
    Waiting(Duration),
    Succeeded(&'a ServerAddress),
    Failed(&'a Error),
}

/// Asked before each message, in line: most clients are not logged.
#[inline]
pub(crate) fn selection(
    discovery: &Discovery,
    operation: &Operation<'_>,
    id: OperationId,
    step: SelectionStep<'_>,
) {
    if enabled!(target: SELECTION, Level::INFO) || enabled!(target: SELECTION, Level::DEBUG) {
        tell_selection(discovery, operation, id, step);
    }
}

#[cold]
fn tell_selection(
    discovery: &Discovery,
    operation: &Operation<'_>,
    id: OperationId,
    step: SelectionStep<'_>,
) {
    let topology = discovery.topology_id().0;
    let description = discovery.description().to_string();
    let selector = match &operation.target {
        Target::Write => "a server that takes writes".to_owned(),
        Target::Read(preference) | Target::WritingPipeline(preference) => preference.to_string(),
        Target::Server(address) => address.to_string(),
    };
    let operation = operation.name();
    let (message, server, failure) = match step {
        SelectionStep::Started => ("Server selection started", None, None),
        SelectionStep::Succeeded(server) => ("Server selection succeeded", Some(server), None),
        SelectionStep::Failed(error) => ("Server selection failed", None, Some(reason(error))),
        SelectionStep::Waiting(left) => {
            return info!(
                target: SELECTION,
                topologyId = topology,
                selector,
                operationId = id.0,
                operation,
                topologyDescription = description,
                remainingTimeMS = whole_millis(left),
                "Waiting for suitable server to become available"
            );
        }
    };
    debug!(
        target: SELECTION,
        topologyId = topology,
        selector,
        operationId = id.0,
        operation,
        topologyDescription = description,
        serverHost = server.map(ServerAddress::host),
        serverPort = server.and_then(ServerAddress::port),
        failure,
        "{message}"
    );
}

/// Why no server was chosen, without the description, which has a key of its own.
fn reason(error: &Error) -> String {
    match error.kind() {
        ErrorKind::Selection(failure) => failure.verdict().to_string(),
        _ => error.to_string(),
    }
}

/// Whether the events of pools are logged.
pub(crate) fn wants_pools() -> bool {
    enabled!(target: CONNECTION, Level::DEBUG)
}

pub(crate) fn pool(topology: TopologyId, event: &PoolEvent) {
    if !wants_pools() {
        return;
    }
    let message = event.kind.message();
    let (topology, server) = (topology.0, &event.address);
    let (host, port) = (server.host(), server.port());
    if let PoolEventKind::PoolCreated { options } = &event.kind {
        return debug!(
            target: CONNECTION,
            topologyId = topology,
            serverHost = host,
            serverPort = port,
            maxIdleTimeMS = options.max_idle_time.map(whole_millis),
            minPoolSize = options.min_pool_size,
            maxPoolSize = options.max_pool_size.unwrap_or(0),
            maxConnecting = options.max_connecting,
            waitQueueTimeoutMS = options.wait_queue_timeout.map(whole_millis),
            "{message}"
        );
    }
    let reason = match &event.kind {
        PoolEventKind::ConnectionClosed { reason, .. } => Some(reason.message()),
        PoolEventKind::CheckOutFailed { reason, .. } => Some(reason.message()),
        _ => None,
    };
    let error = event.kind.is_failure().then(|| {
        event.error.as_deref().unwrap_or("the connection broke, or its operation was given up")
    });
    let service = match &event.kind {
        PoolEventKind::PoolCleared { service_id, .. } => service_id.map(|id| id.to_string()),
        _ => None,
    };
    debug!(
        target: CONNECTION,
        topologyId = topology,
        serverHost = host,
        serverPort = port,
        serviceId = service,
        driverConnectionId = event.kind.connection().map(|connection| connection.0),
        reason,
        error,
        durationMS = event.kind.duration().map(millis),
        "{message}"
    );
}

/// Whether commands are worth putting into words.
pub(crate) fn wants_commands() -> bool {
    enabled!(target: COMMAND, Level::DEBUG)
}

pub(crate) fn command(topology: TopologyId, longest: Option<usize>, event: &CommandEvent) {
    if !wants_commands() {
        return;
    }
    let (message, command, reply, failure, duration) = match &event.kind {
        CommandEventKind::Started { command } => {
            ("Command started", Some(document(command, longest)), None, None, None)
        }
        CommandEventKind::Succeeded { duration, reply } => {
            ("Command succeeded", None, Some(document(reply, longest)), None, Some(*duration))
        }
        CommandEventKind::Failed { duration, failure } => {
            ("Command failed", None, None, Some(failure.to_string()), Some(*duration))
        }
    };
    debug!(
        target: COMMAND,
        topologyId = topology.0,
        serverHost = event.address.host(),
        serverPort = event.address.port(),
        serviceId = event.service_id.map(|id| id.to_string()),
        driverConnectionId = event.connection.0,
        serverConnectionId = event.server_connection_id,
        requestId = event.request_id,
        operationId = event.operation_id.0,
        databaseName = event.database,
        commandName = event.command_name,
        command,
        reply,
        failure,
        durationMS = duration.map(millis),
        "{message}"
    );
}

/// A document as extended JSON, cut where it gets long.
fn document(document: &RawDocument, longest: Option<usize>) -> String {
    let limit = longest.or_else(|| std::env::var(LENGTH_VARIABLE).ok()?.parse().ok());
    let mut text = extended_json::relaxed(document);
    let end = text.char_indices().nth(limit.unwrap_or(DEFAULT_LOGGED_DOCUMENT_LENGTH));
    if let Some((end, _)) = end {
        text.truncate(end);
        text.push_str("...");
    }
    text
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

fn whole_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
