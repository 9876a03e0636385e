//! The client's side: the authorities to trust, and the certificate to present.

use std::path::PathBuf;
use std::sync::Arc;

use quorate_connection_string::ConnectionString;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{InvalidDnsNameError, ServerName};
use rustls::{ClientConfig, Error, RootCertStore};

use crate::certificates::{FileError, read_authorities, read_certificates, read_key};
use crate::lenient::Lenient;

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
            let (chain, key) = (read_certificates(path)?, read_key(path)?);
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
    let roots = match &options.ca_file {
        Some(path) => read_authorities(path)?,
        None => RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() },
    };
    let chain = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
        .build()
        .map_err(|error| TlsError::Config(Error::General(error.to_string())))?;
    if options.allow_invalid_hostnames {
        return Ok(Arc::new(Lenient { provider, chain: Some(chain) }));
    }
    Ok(chain)
}

/// Why TLS could not be configured. The files or options are at fault.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file is of no use.
    #[error(transparent)]
    File(#[from] FileError),
    /// An option that is not supported.
    #[error("{option} is not supported; {next_step}")]
    Unsupported {
        /// The option, as connection strings name it.
        option: &'static str,
        /// What to do instead.
        next_step: &'static str,
    },
    /// rustls refused.
    #[error("the TLS options do not work: {0}")]
    Config(Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_string_may_imply_tls() {
        let options =
            |uri: &str| TlsOptions::from_connection_string(&ConnectionString::parse(uri).unwrap());
        assert_eq!(options("mongodb://a"), None);
        assert_eq!(options("mongodb://a/?tls=true"), Some(TlsOptions::default()));
        let implied = options("mongodb://a/?tlsCAFile=ca.pem").unwrap();
        assert_eq!(implied.ca_file, Some(PathBuf::from("ca.pem")));
        let insecure = options("mongodb://a/?tls=true&tlsInsecure=true").unwrap();
        assert!(insecure.allow_invalid_certificates && insecure.allow_invalid_hostnames);
    }

    #[test]
    fn passwords_of_key_files_are_refused_by_name() {
        let options = TlsOptions { has_key_file_password: true, ..TlsOptions::default() };
        let error = client_config(&options).unwrap_err().to_string();
        assert!(error.starts_with("tlsCertificateKeyFilePassword is not supported"), "{error}");
        assert!(error.contains("openssl pkey"), "{error}");
    }
}
