//! TLS, configured: certificate files and `tls*` options in, configurations of rustls out.
//!
//! Both clients use [`client_config`], servers [`server_config`]; the streams are theirs. The crypto
//! provider is ring. Follows the URI options specification: `tlsInsecure` is
//! `tlsAllowInvalidCertificates` and `tlsAllowInvalidHostnames` together.
//!
//! Reading files blocks: do it while starting.

mod client;
mod files;
mod server;

use std::path::{Path, PathBuf};

pub use client::{TlsOptions, client_config, server_name};
pub use files::{read_certificates, read_private_key};
pub use rustls;
pub use server::{ClientCertificates, ServerTlsOptions, server_config};

/// Why TLS could not be configured. The files or options are at fault.
#[derive(Clone, Debug, thiserror::Error)]
pub enum TlsError {
    /// A file without what it should hold.
    #[error("{} does not hold {expected} in PEM format: {reason}", .path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// What it should hold.
        expected: &'static str,
        /// Why it does not.
        reason: String,
    },
    /// A private key that is protected by a password.
    #[error(
        "the private key in {} is encrypted, and tlsCertificateKeyFilePassword is not supported; \
         write a key without a password with: openssl pkey -in FILE -out PLAIN",
        .0.display()
    )]
    EncryptedKey(PathBuf),
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
    Config(rustls::Error),
}

impl TlsError {
    fn pem(path: &Path, expected: &'static str, reason: impl std::fmt::Display) -> Self {
        Self::Pem { path: path.to_owned(), expected, reason: reason.to_string() }
    }
}
