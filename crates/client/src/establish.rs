//! Establishes pooled connections to one server, and reports failures to discovery.

use std::sync::{Arc, Weak};

use quorate_protocol::{HelloReply, ObjectId, ServerAddress};
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
        let mut service = None;
        let told = |hello: &HelloReply| {
            service = hello.service_id.map(|id| (id, discovery.generation_of(&self.address, id)));
        };
        let opening = settings.handshake.open_telling(connector, &self.address, limit, told);
        let opened = opening.await;
        if let (Err(error @ EstablishError::Authentication(_)), Some((id, Some(generation)))) =
            (&opened, service)
        {
            self.report(&discovery, error, generation, Some(id));
        }
        let (connection, facts) = opened?;
        let service_id = facts.hello.service_id;
        let reply = Arc::new(facts.hello.clone());
        discovery.handle(Input::HandshakeReceived { server: self.address.clone(), reply });
        let connection = ServerConnection { connection, facts: Arc::new(facts), login_lost: false };
        Ok(Established { connection, service_id })
    }

    /// Behind a load balancer this says nothing: what an error means for a service is told when that is
    /// known.
    fn on_failure(&self, error: &EstablishError, generation: PoolGeneration) {
        if let Some(discovery) = self.discovery.upgrade() {
            self.report(&discovery, error, generation, None);
        }
    }
}

impl ServerEstablisher {
    fn report(
        &self,
        discovery: &Discovery,
        error: &EstablishError,
        generation: PoolGeneration,
        service_id: Option<ObjectId>,
    ) {
        discovery.handle(Input::ApplicationFailed {
            server: self.address.clone(),
            generation,
            service_id,
            handshake: error.progress(),
            max_wire_version: 0,
            overloaded: error.is_overload(),
            cause: error.to_application_error(),
        });
    }
}
