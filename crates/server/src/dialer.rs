//! Calling other members: a connection that is ready for commands.

use std::io;
use std::sync::Arc;

use quorate_protocol::ServerAddress;

use crate::net::{Stream, TcpStream};
use crate::security::Security;

/// Opens connections to other members. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Dialer {
    security: Arc<Security>,
}

impl Dialer {
    pub(crate) fn new(security: Arc<Security>) -> Self {
        Self { security }
    }

    /// Opens a connection. A reply is awaited for every request, so nothing is gained by delaying it.
    pub(crate) async fn connect(&self, address: &ServerAddress) -> io::Result<Stream> {
        let port = address.port().unwrap_or(quorate_protocol::DEFAULT_PORT);
        let socket = TcpStream::connect((address.host(), port)).await?;
        socket.set_nodelay(true)?;
        match &self.security.tls {
            Some(tls) => tls.call(address.host(), socket).await,
            None => Ok(socket.into()),
        }
    }
}
