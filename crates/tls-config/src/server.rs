//! The server's side: what to show, and whom to ask for a certificate.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::server::WebPkiClientVerifier;
use rustls::{Error, RootCertStore, ServerConfig};

use crate::TlsError;
use crate::files::{read_certificates, read_private_key};

/// The TLS options of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerTlsOptions {
    /// The server's certificate, and those between it and an authority, in a PEM file.
    pub certificate_file: PathBuf,
    /// Its private key; may be the same file.
    pub key_file: PathBuf,
    /// Which clients must show a certificate.
    pub client_certificates: ClientCertificates,
}

/// Which clients must show a certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ClientCertificates {
    /// None is asked for one.
    #[default]
    NotAsked,
    /// Those who show one are checked against these authorities; others are let in.
    Optional(PathBuf),
    /// Everybody, signed by these authorities.
    Required(PathBuf),
}

/// Reads the files and makes a configuration of them.
///
/// # Errors
///
/// If a file cannot be read or does not hold what it should. The error names the file.
pub fn server_config(options: &ServerTlsOptions) -> Result<Arc<ServerConfig>, TlsError> {
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Config)?;
    let verifier = |path: &PathBuf| {
        let mut roots = RootCertStore::empty();
        for certificate in read_certificates(path)? {
            roots.add(certificate).map_err(TlsError::Config)?;
        }
        let provider = Arc::clone(&provider);
        Ok(WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider))
    };
    let refused = |error: rustls::server::VerifierBuilderError| {
        TlsError::Config(Error::General(error.to_string()))
    };
    let verifier = match &options.client_certificates {
        ClientCertificates::NotAsked => WebPkiClientVerifier::no_client_auth(),
        ClientCertificates::Optional(path) => {
            verifier(path)?.allow_unauthenticated().build().map_err(refused)?
        }
        ClientCertificates::Required(path) => verifier(path)?.build().map_err(refused)?,
    };
    let chain = read_certificates(&options.certificate_file)?;
    let key = read_private_key(&options.key_file)?;
    let config = builder
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .map_err(TlsError::Config)?;
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{TlsOptions, client_config, server_name};
    use rustls::{ClientConnection, ServerConnection};

    struct Files {
        _directory: tempfile::TempDir,
        server: ServerTlsOptions,
        client: TlsOptions,
    }

    /// One certificate that signs itself, for both sides.
    fn files() -> Files {
        let directory = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(["db.example".to_owned()]).unwrap();
        let both = directory.path().join("both.pem");
        let text = format!("{}{}", made.cert.pem(), made.signing_key.serialize_pem());
        std::fs::write(&both, text).unwrap();
        let server = ServerTlsOptions {
            certificate_file: both.clone(),
            key_file: both.clone(),
            client_certificates: ClientCertificates::NotAsked,
        };
        let client = TlsOptions { ca_file: Some(both), ..TlsOptions::default() };
        Files { _directory: directory, server, client }
    }

    /// Shakes hands in memory.
    fn shake(server: &ServerTlsOptions, client: &TlsOptions, name: &str) -> Result<(), Error> {
        let name = server_name(name).unwrap();
        let mut client = ClientConnection::new(client_config(client).unwrap(), name).unwrap();
        let mut server = ServerConnection::new(server_config(server).unwrap()).unwrap();
        while client.is_handshaking() || server.is_handshaking() {
            let mut bytes = Vec::new();
            client.write_tls(&mut bytes).unwrap();
            server.read_tls(&mut &bytes[..]).unwrap();
            server.process_new_packets()?;
            bytes.clear();
            server.write_tls(&mut bytes).unwrap();
            client.read_tls(&mut &bytes[..]).unwrap();
            client.process_new_packets()?;
        }
        Ok(())
    }

    #[test]
    fn both_sides_understand_each_other() {
        let files = files();
        assert_eq!(shake(&files.server, &files.client, "db.example"), Ok(()));
        assert!(shake(&files.server, &files.client, "other.example").is_err());
        let lenient = TlsOptions { allow_invalid_hostnames: true, ..files.client.clone() };
        assert_eq!(shake(&files.server, &lenient, "other.example"), Ok(()));
        let strict = TlsOptions { ca_file: None, ..files.client };
        assert!(shake(&files.server, &strict, "db.example").is_err());
    }

    #[test]
    fn a_client_certificate_is_asked_for_where_it_is_required() {
        let files = files();
        let authority = files.server.certificate_file.clone();
        for (client_certificates, needed) in [
            (ClientCertificates::Optional(authority.clone()), false),
            (ClientCertificates::Required(authority.clone()), true),
        ] {
            let server = ServerTlsOptions { client_certificates, ..files.server.clone() };
            assert_eq!(shake(&server, &files.client, "db.example").is_err(), needed);
        }
    }

    #[test]
    fn encrypted_keys_are_named_with_a_next_step() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key.pem");
        for text in [
            "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n",
            "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES\n\nAAAA\n\
             -----END RSA PRIVATE KEY-----\n",
        ] {
            std::fs::write(&path, text).unwrap();
            let error = read_private_key(&path).unwrap_err();
            assert!(matches!(error, TlsError::EncryptedKey(_)), "{error}");
            assert!(error.to_string().contains("openssl pkey"), "{error}");
        }
        let options = TlsOptions { has_key_file_password: true, ..TlsOptions::default() };
        let error = client_config(&options).unwrap_err().to_string();
        assert!(error.starts_with("tlsCertificateKeyFilePassword is not supported"), "{error}");
    }
}
