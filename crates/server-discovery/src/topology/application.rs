//! What an operation's failure says about its server.
//!
//! Follows "Application errors" in the Server Discovery And Monitoring specification.

use std::cmp::Ordering;

use quorate_protocol::{MonotonicTime, ObjectId, TopologyVersion};

use super::Topology;
use super::change::KEEPS_CONNECTIONS;
use crate::command::{HandshakeProgress, Input, PoolGeneration};
use crate::fault::{ApplicationError, ServerError, ServerFault, StateChange, state_change};
use crate::options::Threading;
use crate::server_description::ServerDescription;
use crate::types::TopologyType;

impl Topology {
    pub(super) fn application_failed(&mut self, input: Input, now: MonotonicTime) {
        let Input::ApplicationFailed {
            server,
            generation,
            service_id,
            handshake,
            max_wire_version,
            overloaded,
            cause,
        } = input
        else {
            return;
        };
        let Some(position) = self.description.servers.position(&server) else { return };
        if self.is_older_generation(position, generation, service_id) {
            return;
        }
        let state_change = match &cause {
            ApplicationError::Command(error) => state_change(error),
            _ => None,
        };
        if let Some(change) = state_change {
            let clears =
                change == StateChange::ShuttingDown || max_wire_version < KEEPS_CONNECTIONS;
            self.state_changed(position, change, clears.then_some(service_id), cause, now);
        } else if !overloaded && condemns_server(&cause, handshake) {
            self.server_condemned(position, service_id, cause, now);
        }
    }

    /// "Why ignore errors based on CMAP's generation number?": the pool was cleared since, and
    /// whatever this error tells was dealt with then.
    fn is_older_generation(
        &self,
        position: usize,
        generation: PoolGeneration,
        service_id: Option<ObjectId>,
    ) -> bool {
        let pool = &self.states[position].pool;
        let current = match service_id {
            Some(service) => pool.services.get(&service).copied().unwrap_or_default(),
            None => pool.generation,
        };
        generation < current
    }

    /// "not writable primary" and "node is recovering": the server is there, but not what we think.
    ///
    /// `clears` is the service whose connections are to be cleared (`Some(None)`: the server's).
    fn state_changed(
        &mut self,
        position: usize,
        change: StateChange,
        clears: Option<Option<ObjectId>>,
        cause: ApplicationError,
        now: MonotonicTime,
    ) {
        let received = match &cause {
            ApplicationError::Command(error) => error.topology_version,
            _ => None,
        };
        let known = self.description.servers.at(position).topology_version();
        if TopologyVersion::compare(known, received) != Ordering::Less {
            return;
        }
        let balanced = self.description.topology_type == TopologyType::LoadBalanced;
        if !balanced {
            self.mark_unknown(position, cause, received, now);
        }
        match clears {
            Some(Some(service)) if balanced => self.clear_pool(position, Some(service), false),
            Some(_) if !balanced => self.clear_pool(position, None, false),
            _ => {}
        }
        if balanced {
            return;
        }
        match self.threading {
            Threading::Multi => {
                self.states[position].monitor.request_check(now);
                self.sync_timer(position);
                self.tick(now);
            }
            Threading::Single if change != StateChange::Recovering => self.mark_stale(),
            Threading::Single => {}
        }
    }

    /// A network error, or a handshake that failed.
    fn server_condemned(
        &mut self,
        position: usize,
        service_id: Option<ObjectId>,
        cause: ApplicationError,
        now: MonotonicTime,
    ) {
        if self.description.topology_type == TopologyType::LoadBalanced {
            if service_id.is_some() {
                self.clear_pool(position, service_id, false);
            }
            return;
        }
        self.mark_unknown(position, cause, None, now);
        self.clear_pool(position, None, false);
        self.cancel_check(position, now);
    }

    /// The server keeps its place: Unknown servers are never removed.
    fn mark_unknown(
        &mut self,
        position: usize,
        cause: ApplicationError,
        topology_version: Option<TopologyVersion>,
        now: MonotonicTime,
    ) {
        let address = self.address_at(position);
        let error = ServerError::new(ServerFault::Application(cause), now);
        // Not a check, so "infinity ago": a single-threaded scan need not wait for the cooldown.
        let unknown = ServerDescription::failed(address, error, topology_version, None);
        self.update_server(position, unknown, now);
    }
}

/// Whether a failure that is no state change means that the server cannot be used.
fn condemns_server(cause: &ApplicationError, handshake: HandshakeProgress) -> bool {
    match (cause, handshake) {
        // The pool labels these as signs of overload: the server's description stays.
        (
            ApplicationError::Network(_) | ApplicationError::NetworkTimeout(_),
            HandshakeProgress::Connecting,
        ) => false,
        (ApplicationError::Network(_), _) => true,
        // After the handshake, a timeout may just be a slow operation.
        (ApplicationError::NetworkTimeout(_), HandshakeProgress::Complete) => false,
        (ApplicationError::NetworkTimeout(_), HandshakeProgress::Authenticating) => true,
        (ApplicationError::Command(_) | ApplicationError::Establishment(_), progress) => {
            progress != HandshakeProgress::Complete
        }
    }
}
