//! TLS with our own client: modes, certificates of clients, and logins by certificate.

#![allow(clippy::unwrap_used, reason = "a panic is the report")]

mod support;

use std::path::Path;
use std::time::Duration;

use bson::{RawDocumentBuf, rawdoc};
use quorate_client::Client;
use quorate_server::{Place, SecurityError, Server, StartError, StartOptions, TlsMode, TlsOptions};
use quorate_test_support::Authority;
use support::TestServer;
use tokio::net::TcpListener;

const PATIENCE: Duration = Duration::from_secs(30);

fn tls_options(authority: &Authority, mode: TlsMode) -> TlsOptions {
    let certificate = authority.issue("server", "Quorate");
    TlsOptions {
        key: certificate.clone(),
        certificate,
        authority: Some(authority.ca()),
        mode,
        require_client_certificate: false,
    }
}

fn uri(server: &TestServer, options: &[(&str, &Path)]) -> String {
    let mut uri = format!("mongodb://{}/?serverSelectionTimeoutMS=3000", server.address);
    for (name, path) in options {
        uri += &format!("&{name}={}", path.display());
    }
    uri
}

async fn run(uri: &str, database: &str, command: RawDocumentBuf) -> Result<String, String> {
    let work = async {
        let client = Client::with_uri(uri).map_err(|error| error.to_string())?;
        let reply = client.run_command(database, &command).await;
        client.close().await;
        reply.map(|reply| format!("{reply:?}")).map_err(|error| error.to_string())
    };
    tokio::time::timeout(PATIENCE, work).await.expect("it takes too long")
}

async fn ping(uri: &str) -> Result<String, String> {
    run(uri, "admin", rawdoc! { "ping": 1 }).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_requires_tls_tells_plain_clients_so() {
    let authority = Authority::new();
    let server =
        TestServer::launch(|options| options.tls = Some(tls_options(&authority, TlsMode::Require)))
            .await;
    let ca = authority.ca();
    ping(&uri(&server, &[("tls", Path::new("true")), ("tlsCAFile", &ca)])).await.unwrap();
    let refusal = ping(&uri(&server, &[])).await.unwrap_err();
    assert!(refusal.contains("speaks TLS only"), "{refusal}");
    // A certificate of an unknown authority.
    let stranger = Authority::new();
    let refusal =
        ping(&uri(&server, &[("tls", Path::new("true")), ("tlsCAFile", &stranger.ca())])).await;
    assert!(refusal.is_err());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_prefers_tls_takes_both_and_a_disabled_one_neither_file_nor_tls() {
    let authority = Authority::new();
    let ca = authority.ca();
    let server =
        TestServer::launch(|options| options.tls = Some(tls_options(&authority, TlsMode::Prefer)))
            .await;
    ping(&uri(&server, &[("tls", Path::new("true")), ("tlsCAFile", &ca)])).await.unwrap();
    ping(&uri(&server, &[])).await.unwrap();
    server.stop().await;
    let server = TestServer::launch(|options| {
        options.tls = Some(tls_options(&authority, TlsMode::Disabled))
    })
    .await;
    ping(&uri(&server, &[])).await.unwrap();
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_log_in_with_their_certificates() {
    let authority = Authority::new();
    let (ca, alice, bob) =
        (authority.ca(), authority.issue("alice", "Quorate"), authority.issue("bob", "Quorate"));
    let server = TestServer::launch(|options| {
        options.tls = Some(tls_options(&authority, TlsMode::Require));
        options.authentication = true;
    })
    .await;
    let tls = ("tls", Path::new("true"));
    let plain = uri(&server, &[tls, ("tlsCAFile", &ca)]);
    let admin = rawdoc! {
        "createUser": "admin", "pwd": "secret", "roles": ["root"],
    };
    run(&plain, "admin", admin).await.unwrap();
    let login = |file| {
        let x509 = ("authMechanism", Path::new("MONGODB-X509"));
        uri(&server, &[tls, ("tlsCAFile", &ca), ("tlsCertificateKeyFile", file), x509])
    };
    let find = || rawdoc! { "find": "orders" };
    let refusal = run(&login(&alice), "shop", find()).await.unwrap_err();
    assert!(refusal.contains("Authentication failed"), "{refusal}");
    let root = plain.replace("mongodb://", "mongodb://admin:secret@");
    let user = rawdoc! {
        "createUser": "CN=alice,O=Quorate", "roles": [{ "role": "read", "db": "shop" }],
    };
    run(&root, "$external", user).await.unwrap();
    run(&login(&alice), "shop", find()).await.unwrap();
    let insert = rawdoc! { "insert": "orders", "documents": [{ "x": 1 }] };
    let refusal = run(&login(&alice), "shop", insert).await.unwrap_err();
    assert!(refusal.contains("not authorized"), "{refusal}");
    assert!(run(&login(&bob), "shop", find()).await.is_err(), "bob is no user");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_of_clients_can_be_demanded() {
    let authority = Authority::new();
    let (ca, alice) = (authority.ca(), authority.issue("alice", "Quorate"));
    let server = TestServer::launch(|options| {
        let tls = tls_options(&authority, TlsMode::Require);
        options.tls = Some(TlsOptions { require_client_certificate: true, ..tls });
    })
    .await;
    let tls = ("tls", Path::new("true"));
    let with = uri(&server, &[tls, ("tlsCAFile", &ca), ("tlsCertificateKeyFile", &alice)]);
    ping(&with).await.unwrap();
    assert!(ping(&uri(&server, &[tls, ("tlsCAFile", &ca)])).await.is_err());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_files_are_named() {
    let authority = Authority::new();
    let start = async |tls: TlsOptions, replica_set: Option<&str>| {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut options = StartOptions::new(Place::Memory);
        options.tls = Some(tls);
        options.replica_set = replica_set.map(str::to_owned);
        match Server::start(listener, options).await {
            Ok(_) => panic!("it starts"),
            Err(error) => error,
        }
    };
    let good = tls_options(&authority, TlsMode::Require);
    let absent = TlsOptions { certificate: "absent.pem".into(), ..good.clone() };
    let error = start(absent, None).await.to_string();
    assert!(error.contains("absent.pem cannot be read"), "{error}");
    let foreign = TlsOptions { key: authority.issue("other", "Quorate"), ..good.clone() };
    let error = start(foreign, None).await.to_string();
    assert!(error.contains("belong together"), "{error}");
    let alone = TlsOptions { authority: None, ..good };
    assert!(matches!(
        start(alone, Some("rs0")).await,
        StartError::Security(SecurityError::NoAuthority)
    ));
}
