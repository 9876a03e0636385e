//! The client's side: whom to trust, and what to show.

use std::path::PathBuf;
use std::sync::Arc;

use quorate_connection_string::ConnectionString;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, InvalidDnsNameError, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};

use crate::TlsError;
use crate::files::{read_certificates, read_private_key};

/// The `tls*` options of a client.
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
    /// `tlsCertificateKeyFilePassword` was given. It is not supported, and [`client_config`] says so.
    pub has_key_file_password: bool,
}

impl TlsOptions {
    /// What a connection string says; `None` if it wants plain text.
    pub fn from_connection_string(string: &ConnectionString) -> Option<Self> {
        let options = string.options();
        let insecure = options.tls_insecure == Some(true);
        string.tls_enabled().then(|| Self {
            ca_file: options.tls_ca_file.as_ref().map(PathBuf::from),
            certificate_key_file: options.tls_certificate_key_file.as_ref().map(PathBuf::from),
            allow_invalid_certificates: insecure
                || options.tls_allow_invalid_certificates == Some(true),
            allow_invalid_hostnames: insecure || options.tls_allow_invalid_hostnames == Some(true),
            has_key_file_password: options.tls_certificate_key_file_password.is_some(),
        })
    }
}

/// Reads the files and makes a configuration of them.
///
/// # Errors
///
/// If a file cannot be read or does not hold what it should. The error names the file.
pub fn client_config(options: &TlsOptions) -> Result<Arc<ClientConfig>, TlsError> {
    if options.has_key_file_password {
        return Err(TlsError::Unsupported {
            option: "tlsCertificateKeyFilePassword",
            next_step: "remove it, and write a key without a password with: openssl pkey -in FILE \
                        -out PLAIN",
        });
    }
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Config)?;
    let verifier = server_verifier(options, provider)?;
    let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
    let config = match &options.certificate_key_file {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let (chain, key) = (read_certificates(path)?, read_private_key(path)?);
            builder.with_client_auth_cert(chain, key).map_err(TlsError::Config)?
        }
    };
    Ok(Arc::new(config))
}

/// The name that a server's certificate must be made out to.
///
/// # Errors
///
/// If the host is neither a name nor an address.
pub fn server_name(host: &str) -> Result<ServerName<'static>, InvalidDnsNameError> {
    ServerName::try_from(host.to_owned())
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
        Some(path) => {
            for certificate in read_certificates(path)? {
                roots.add(certificate).map_err(TlsError::Config)?;
            }
        }
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
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
