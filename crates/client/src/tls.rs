//! TLS for streams, by rustls.
//!
//! `quorate-tls-config` makes the configuration; this file opens streams with it.

use std::io;

use quorate_tls_config::rustls::Error;
use quorate_tls_config::{client_config, server_name};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::net::ConnectErrorKind;

pub use quorate_tls_config::{TlsError, TlsOptions};

/// TLS, configured. Cheap to clone.
#[derive(Clone)]
pub struct Tls {
    connector: TlsConnector,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls")
    }
}

impl Tls {
    /// Reads the files and makes a configuration of them. Blocking: call it while starting.
    ///
    /// # Errors
    ///
    /// If a file cannot be read or does not hold what it should. The error names the file.
    pub fn new(options: &TlsOptions) -> Result<Self, TlsError> {
        Ok(Self { connector: TlsConnector::from(client_config(options)?) })
    }

    pub(crate) async fn connect(
        &self,
        host: &str,
        stream: TcpStream,
    ) -> Result<TlsStream<TcpStream>, ConnectErrorKind> {
        let name = server_name(host)
            .map_err(|error| ConnectErrorKind::Tls(format!("{host:?}: {error}")))?;
        self.connector.connect(name, stream).await.map_err(classify)
    }
}

/// Tells a broken stream, which an overloaded server may cause, from a handshake that failed for
/// reasons of its own.
fn classify(error: io::Error) -> ConnectErrorKind {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
        Some(reason) => ConnectErrorKind::Tls(reason.to_string()),
        None => ConnectErrorKind::TlsStream(std::sync::Arc::new(error)),
    }
}
