//! The connector against a TLS server on a real socket.

// A panic in the functions that the tests share is a report, as it is in the tests.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use quorate_client::TlsOptions;
use quorate_client::dial::{
    ConnectError, ConnectErrorKind, Connector, ConnectorOptions, Stream, Tls,
};
use quorate_protocol::ServerAddress;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/tls").join(name)
}

/// A server that shakes hands with every client, and wants a certificate if it is told to.
async fn server(wants_certificate: bool) -> ServerAddress {
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .unwrap();
    let builder = if wants_certificate {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(file("ca.pem")).unwrap()).unwrap();
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        builder.with_client_cert_verifier(verifier.build().unwrap())
    } else {
        builder.with_no_client_auth()
    };
    let certificate = CertificateDer::from_pem_file(file("server.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(file("server.pem")).unwrap();
    let config = builder.with_single_cert(vec![certificate], key).unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string().parse().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                use tokio::io::AsyncWriteExt;
                // The byte tells the client that its certificate was accepted.
                if let Ok(mut stream) = acceptor.accept(stream).await {
                    let _ = stream.write_all(b"!").await;
                    let _ = stream.shutdown().await;
                }
            });
        }
    });
    address
}

fn trusting() -> TlsOptions {
    TlsOptions { ca_file: Some(file("ca.pem")), ..TlsOptions::default() }
}

/// Connects to the server as `advertised`, which the host map leads to it.
async fn connect(
    advertised: &str,
    server: &ServerAddress,
    options: &TlsOptions,
) -> Result<Stream, ConnectError> {
    let advertised: ServerAddress = advertised.parse().unwrap();
    let connector = Connector::new(ConnectorOptions {
        host_map: BTreeMap::from([(advertised.clone(), server.clone())]),
        tls: Some(Tls::new(options).unwrap()),
        ..ConnectorOptions::default()
    });
    connector.connect(&advertised).await
}

async fn hears_the_server(stream: &mut Stream) -> bool {
    use tokio::io::AsyncReadExt;
    matches!(stream.read_u8().await, Ok(b'!'))
}

#[tokio::test]
async fn a_trusted_server_with_the_right_name_is_accepted() {
    let server = server(false).await;
    let mut stream = connect("localhost:1", &server, &trusting()).await.unwrap();
    assert!(format!("{stream:?}").starts_with("TlsStream"), "{stream:?}");
    assert!(hears_the_server(&mut stream).await);
}

#[tokio::test]
async fn an_unknown_authority_is_refused_and_not_taken_for_overload() {
    let server = server(false).await;
    let error = connect("localhost:1", &server, &TlsOptions::default()).await.unwrap_err();
    assert!(matches!(error.kind, ConnectErrorKind::Tls(_)), "{error}");
    assert!(!error.may_be_overload());
    assert!(error.to_string().contains("tlsCAFile"), "{error}");
}

#[tokio::test]
async fn another_name_is_refused_unless_names_do_not_matter() {
    let server = server(false).await;
    let error = connect("db.example:1", &server, &trusting()).await.unwrap_err();
    assert!(matches!(error.kind, ConnectErrorKind::Tls(_)), "{error}");
    let lenient = TlsOptions { allow_invalid_hostnames: true, ..trusting() };
    assert!(connect("db.example:1", &server, &lenient).await.is_ok());
    // The chain still matters then.
    let stranger = TlsOptions { allow_invalid_hostnames: true, ..TlsOptions::default() };
    assert!(connect("db.example:1", &server, &stranger).await.is_err());
}

#[tokio::test]
async fn any_certificate_will_do_if_the_user_says_so() {
    let server = server(false).await;
    let careless = TlsOptions { allow_invalid_certificates: true, ..TlsOptions::default() };
    assert!(connect("db.example:1", &server, &careless).await.is_ok());
}

#[tokio::test]
async fn a_client_certificate_is_shown_to_servers_that_want_one() {
    let server = server(true).await;
    let with_certificate =
        TlsOptions { certificate_key_file: Some(file("client.pem")), ..trusting() };
    let mut stream = connect("localhost:1", &server, &with_certificate).await.unwrap();
    assert!(hears_the_server(&mut stream).await);
    // Without one, a TLS 1.3 server complains after the handshake, so that reading fails.
    match connect("localhost:1", &server, &trusting()).await {
        Ok(mut stream) => assert!(!hears_the_server(&mut stream).await),
        Err(error) => assert!(matches!(error.kind, ConnectErrorKind::Tls(_)), "{error}"),
    }
}

#[tokio::test]
async fn a_server_without_tls_is_told_from_one_with_a_bad_certificate() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let plain = listener.local_addr().unwrap().to_string().parse().unwrap();
    tokio::spawn(async move { while listener.accept().await.is_ok() {} });
    let error = connect("localhost:1", &plain, &trusting()).await.unwrap_err();
    assert!(matches!(error.kind, ConnectErrorKind::TlsStream(_)), "{error}");
    assert!(error.may_be_overload());
}

#[test]
fn files_that_do_not_hold_what_they_should_are_named() {
    let missing = TlsOptions { ca_file: Some(file("none.pem")), ..TlsOptions::default() };
    assert!(Tls::new(&missing).unwrap_err().to_string().contains("none.pem"));
    let no_key = TlsOptions { certificate_key_file: Some(file("ca.pem")), ..trusting() };
    assert!(Tls::new(&no_key).unwrap_err().to_string().contains("a private key"));
    let empty = TlsOptions { ca_file: Some(file("README.md")), ..TlsOptions::default() };
    assert!(Tls::new(&empty).unwrap_err().to_string().contains("a certificate"));
}
