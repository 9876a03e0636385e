//! TLS for the metrics. Handshakes run side by side, so that a slow client delays no other.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::serve::Listener;
use quorate_tls_config::{FileError, read_authorities, read_certificates, read_key};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{Error, ServerConfig};
use tokio_rustls::server::TlsStream;

use crate::task::Task;

/// How long a handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// How many handshakes run at once; further clients wait to be accepted.
const MAX_HANDSHAKES: usize = 32;

/// The pause after a connection that could not be accepted: descriptors may have run out.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(100);

/// The files that TLS takes.
#[derive(Clone, Debug)]
pub(crate) struct TlsFiles {
    /// The certificate, with those that vouch for it after it.
    pub(crate) certificate: PathBuf,
    /// Its private key.
    pub(crate) key: PathBuf,
    /// The authorities that vouch for clients. If given, a client without a certificate is refused.
    pub(crate) authority: Option<PathBuf>,
}

/// The files are of no use.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("certificate and key do not work: {0}; check that they belong together")]
    Config(#[from] Error),
}

/// Reads the files.
pub(super) fn acceptor(files: &TlsFiles) -> Result<TlsAcceptor, TlsError> {
    let chain = read_certificates(&files.certificate)?;
    let key = read_key(&files.key)?;
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()?;
    let builder = match &files.authority {
        None => builder.with_no_client_auth(),
        Some(file) => {
            let authorities = Arc::new(read_authorities(file)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(authorities, provider);
            let verifier = verifier.build().map_err(|error| Error::General(error.to_string()))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    Ok(TlsAcceptor::from(Arc::new(builder.with_single_cert(chain, key)?)))
}

/// A listener that gives connections whose handshake is done.
pub(super) struct TlsListener {
    agreed: mpsc::Receiver<(TlsStream<TcpStream>, SocketAddr)>,
    address: SocketAddr,
    _task: Task,
}

impl TlsListener {
    pub(super) fn new(listener: TcpListener, acceptor: TlsAcceptor) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let (agree, agreed) = mpsc::channel(MAX_HANDSHAKES);
        let task = Task::spawn(accept(listener, acceptor, agree));
        Ok(Self { agreed, address, _task: task })
    }
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        match self.agreed.recv().await {
            Some(client) => client,
            // The task that accepts ends only with this value.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        Ok(self.address)
    }
}

async fn accept(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    agree: mpsc::Sender<(TlsStream<TcpStream>, SocketAddr)>,
) {
    let places = Arc::new(Semaphore::new(MAX_HANDSHAKES));
    while let Ok(place) = Arc::clone(&places).acquire_owned().await {
        let Ok((stream, address)) = listener.accept().await else {
            sleep(PAUSE_AFTER_FAILURE).await;
            continue;
        };
        let (acceptor, agree) = (acceptor.clone(), agree.clone());
        tokio::spawn(async move {
            let _place = place;
            if let Ok(Ok(stream)) = timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
                // If the endpoint is gone, so is the client's reason to be here.
                let _ = agree.send((stream, address)).await;
            }
        });
    }
}
