//! Establishes pooled connections to one server, and reports failures to discovery.

use std::sync::{Arc, Weak};

use quorate_protocol::ServerAddress;
use quorate_server_discovery::Input;

use crate::connection::Connection;
use crate::discovery::Discovery;
use crate::handshake::{ConnectionFacts, EstablishError};
use crate::net::Stream;
use crate::pool::{ConnectionId, Establish, Established, PoolGeneration, Pooled};

/// A pooled connection and what its handshake told.
#[derive(Debug)]
pub(crate) struct ServerConnection {
    pub(crate) connection: Connection<Stream>,
    /// What it is good for.
    pub(crate) facts: Arc<ConnectionFacts>,
    /// Whether a login that the server asked for again failed. The connection cannot be used then.
    pub(crate) login_lost: bool,
}

impl Pooled for ServerConnection {
    fn is_usable(&self) -> bool {
        !self.login_lost && self.connection.is_usable()
    }
}

/// Makes connections to one server.
#[derive(Debug)]
pub(crate) struct ServerEstablisher {
    address: ServerAddress,
    /// Weak, because discovery owns the pools that own their establishers.
    discovery: Weak<Discovery>,
}

impl ServerEstablisher {
    pub(crate) fn new(address: ServerAddress, discovery: Weak<Discovery>) -> Self {
        Self { address, discovery }
    }
}

impl Establish for ServerEstablisher {
    type Connection = ServerConnection;
    type Error = EstablishError;

    async fn establish(
        &self,
        _connection: ConnectionId,
        _generation: PoolGeneration,
    ) -> Result<Established<ServerConnection>, EstablishError> {
        let Some(discovery) = self.discovery.upgrade() else {
            // The client is gone: nothing waits for this connection.
            return std::future::pending().await;
        };
        let _alive = discovery.alive();
        let settings = discovery.settings();
        let (connector, limit) = (&settings.connector, settings.connect_timeout);
        let opened = settings.handshake.open(connector, &self.address, limit).await;
        let (connection, facts) = opened?;
        let service_id = facts.hello.service_id;
        let reply = Arc::new(facts.hello.clone());
        discovery.handle(Input::HandshakeReceived { server: self.address.clone(), reply });
        let connection = ServerConnection { connection, facts: Arc::new(facts), login_lost: false };
        Ok(Established { connection, service_id })
    }

    fn on_failure(&self, error: &EstablishError, generation: PoolGeneration) {
        let Some(discovery) = self.discovery.upgrade() else { return };
        discovery.handle(Input::ApplicationFailed {
            server: self.address.clone(),
            generation,
            service_id: None,
            handshake: error.progress(),
            max_wire_version: 0,
            overloaded: error.is_overload(),
            cause: error.to_application_error(),
        });
    }
}
