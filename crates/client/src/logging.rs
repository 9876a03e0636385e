//! Log messages through `tracing`, for whoever has a subscriber.
//!
//! The sentences are the specifications' ("Log Messages" of the SDAM, pooling and command monitoring
//! specifications). All are of level debug, warnings of the core excepted, under the targets
//! `quorate::topology`, `quorate::connection` and `quorate::command`, which are the specifications'
//! components. Nothing is put into words where nobody listens.

use quorate_server_discovery::{DiscoveryEvent, LogLevel, LogMessage, TopologyId};
use tracing::{Level, debug, enabled, warn};

use crate::command_event::{CommandEvent, CommandEventKind};
use crate::pool::{PoolEvent, PoolEventKind};

const TOPOLOGY: &str = "quorate::topology";
const CONNECTION: &str = "quorate::connection";
const COMMAND: &str = "quorate::command";

pub(crate) fn discovery(topology: TopologyId, event: &DiscoveryEvent) {
    let warning = matches!(event, DiscoveryEvent::Warning(_));
    if !warning && !enabled!(target: TOPOLOGY, Level::DEBUG) {
        return;
    }
    let Some(message) = LogMessage::from_event(topology, event) else { return };
    match message.level {
        LogLevel::Debug => debug!(target: TOPOLOGY, topology_id = topology.0, "{message}"),
        LogLevel::Warn => warn!(target: TOPOLOGY, topology_id = topology.0, "{message}"),
    }
}

pub(crate) fn pool(event: &PoolEvent) {
    if !enabled!(target: CONNECTION, Level::DEBUG) {
        return;
    }
    let server = event.address.as_str();
    let connection = event.kind.connection().map(|connection| connection.0);
    let message = event.kind.message();
    match &event.kind {
        PoolEventKind::ConnectionClosed { reason, .. } => {
            debug!(target: CONNECTION, server, connection, reason = reason.name(), "{message}");
        }
        PoolEventKind::CheckOutFailed { reason, duration } => {
            let duration_ms = duration.as_secs_f64() * 1000.0;
            debug!(target: CONNECTION, server, reason = reason.name(), duration_ms, "{message}");
        }
        PoolEventKind::ConnectionReady { duration, .. }
        | PoolEventKind::CheckedOut { duration, .. } => {
            let duration_ms = duration.as_secs_f64() * 1000.0;
            debug!(target: CONNECTION, server, connection, duration_ms, "{message}");
        }
        _ => debug!(target: CONNECTION, server, connection, "{message}"),
    }
}

/// Whether commands are worth putting into words.
pub(crate) fn wants_commands() -> bool {
    enabled!(target: COMMAND, Level::DEBUG)
}

pub(crate) fn command(event: &CommandEvent) {
    if !wants_commands() {
        return;
    }
    let (server, name) = (event.address.as_str(), event.command_name.as_str());
    let (database, request_id) = (event.database.as_str(), event.request_id);
    match &event.kind {
        CommandEventKind::Started { .. } => {
            debug!(target: COMMAND, server, database, name, request_id, "Command started");
        }
        CommandEventKind::Succeeded { duration, .. } => {
            let duration_ms = duration.as_secs_f64() * 1000.0;
            debug!(target: COMMAND, server, database, name, request_id, duration_ms,
                "Command succeeded");
        }
        CommandEventKind::Failed { duration, failure } => {
            let duration_ms = duration.as_secs_f64() * 1000.0;
            debug!(target: COMMAND, server, database, name, request_id, duration_ms,
                failure = %failure, "Command failed");
        }
    }
}
