//! TLS for streams, by rustls with the ring provider.
//!
//! Owns reading the certificate files and the `tls*` options of the connection string. Follows the
//! URI options specification: `tlsInsecure` is `tlsAllowInvalidCertificates` and
//! `tlsAllowInvalidHostnames` together.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use quorate_certificates::{FileError, read_authorities, read_certificates, read_key};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};

use crate::net::ConnectErrorKind;

/// The `tls*` options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsOptions {
    /// `tlsCAFile`: the authorities that are trusted instead of the usual ones.
    pub ca_file: Option<PathBuf>,
    /// `tlsCertificateKeyFile`: the client's certificate and its key, in one PEM file.
    pub certificate_key_file: Option<PathBuf>,
    /// `tlsAllowInvalidCertificates`: any certificate will do.
    pub allow_invalid_certificates: bool,
    /// `tlsAllowInvalidHostnames`: a good certificate for any name will do.
    pub allow_invalid_hostnames: bool,
}

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
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Config)?;
        let verifier = server_verifier(options, provider)?;
        let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
        let config = match &options.certificate_key_file {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let (chain, key) = (read_certificates(path)?, read_key(path)?);
                builder.with_client_auth_cert(chain, key).map_err(TlsError::Config)?
            }
        };
        Ok(Self { connector: TlsConnector::from(Arc::new(config)) })
    }

    pub(crate) async fn connect(
        &self,
        host: &str,
        stream: TcpStream,
    ) -> Result<TlsStream<TcpStream>, ConnectErrorKind> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|error| ConnectErrorKind::Tls(format!("{host:?}: {error}")))?;
        self.connector.connect(name, stream).await.map_err(classify)
    }
}

/// Tells a broken stream, which an overloaded server may cause, from a handshake that failed for
/// reasons of its own.
fn classify(error: io::Error) -> ConnectErrorKind {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
        Some(reason) => ConnectErrorKind::Tls(reason.to_string()),
        None => ConnectErrorKind::TlsStream(Arc::new(error)),
    }
}

fn server_verifier(
    options: &TlsOptions,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn ServerCertVerifier>, TlsError> {
    if options.allow_invalid_certificates {
        return Ok(Arc::new(Lenient { provider, chain: None }));
    }
    let mut roots = RootCertStore::empty();
    match &options.ca_file {
        Some(path) => roots = read_authorities(path)?,
        None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
    }
    let chain = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
        .build()
        .map_err(|error| TlsError::Config(Error::General(error.to_string())))?;
    if options.allow_invalid_hostnames {
        return Ok(Arc::new(Lenient { provider, chain: Some(chain) }));
    }
    Ok(chain)
}

/// Accepts more than a careful client would, because the user said so.
#[derive(Debug)]
struct Lenient {
    provider: Arc<CryptoProvider>,
    /// Whose judgement on everything but the name still counts; `None` accepts anything.
    chain: Option<Arc<WebPkiServerVerifier>>,
}

impl ServerCertVerifier for Lenient {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(chain) = &self.chain else { return Ok(ServerCertVerified::assertion()) };
        let judged =
            chain.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match judged {
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        tokio_rustls::rustls::crypto::verify_tls12_signature(
            message,
            certificate,
            signature,
            algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        tokio_rustls::rustls::crypto::verify_tls13_signature(
            message,
            certificate,
            signature,
            algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Why TLS could not be configured. The files or options are at fault.
#[derive(Clone, Debug, thiserror::Error)]
pub enum TlsError {
    /// A file is of no use.
    #[error(transparent)]
    File(#[from] FileError),
    /// rustls refused.
    #[error("the TLS options do not work: {0}")]
    Config(Error),
}
