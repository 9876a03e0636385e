//! What every client must be able to do, and against which server.

use std::time::Duration;

use quorate_test_support::Authority;

use crate::clients::Client;
use crate::server::TestServer;
use crate::witness::Witness;

/// How long a client may take for its parts. They take seconds; on a machine under load, more.
const PATIENCE: Duration = Duration::from_secs(300);

pub(crate) async fn works_standalone(client: Client) {
    let server = TestServer::standalone().await;
    run(client, &server.uri(), &["documents", "retries"]).await;
    server.stop().await;
}

/// In a set writes are retried too.
pub(crate) async fn works_in_a_set(client: Client) {
    let server = TestServer::member().await;
    run(client, &server.uri(), &["documents", "retries"]).await;
    server.stop().await;
}

/// A set of one member is enough for transactions.
pub(crate) async fn transacts(client: Client) {
    let server = TestServer::member().await;
    run(client, &server.uri(), &["transactions"]).await;
    server.stop().await;
}

/// Also for change streams.
pub(crate) async fn watches(client: Client) {
    let server = TestServer::member().await;
    run(client, &server.uri(), &["watch"]).await;
    server.stop().await;
}

pub(crate) async fn logs_in(client: Client) {
    let server = TestServer::guarded().await;
    run(client, &server.uri(), &["login"]).await;
    server.stop().await;
}

/// Offered one compressor, the client must use it.
pub(crate) async fn compresses(client: Client) {
    let server = TestServer::standalone().await;
    for compressor in client.compressors() {
        let witness = Witness::before(server.address).await;
        let uri = format!("mongodb://{}/?compressors={compressor}", witness.address);
        run(client, &uri, &["round-trip"]).await;
        witness.saw_messages_both_ways(compressor);
    }
    server.stop().await;
}

/// With the authority that vouches for the server, and not with another.
pub(crate) async fn encrypts(client: Client) {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let server = TestServer::encrypted(&authority).await;
    let uri = |authority: &Authority| {
        let file = authority.ca().display().to_string();
        let address = server.address;
        format!("mongodb://{address}/?tls=true&tlsCAFile={file}&serverSelectionTimeoutMS=20000")
    };
    run(client, &uri(&authority), &["round-trip"]).await;
    // There is nothing to wait for.
    let distrustful = uri(&stranger).replace("20000", "2000");
    let running = client.run(&distrustful, &["round-trip"]);
    let refused = tokio::time::timeout(PATIENCE, running).await.expect("the client does not end");
    let said = refused.expect_err("the client trusts a certificate of an unknown authority");
    assert!(said.to_lowercase().contains("certificate"), "{said}");
    server.stop().await;
}

/// A client that shows the certificate of a user is that user; other certificates give no user.
pub(crate) async fn logs_in_by_certificate(client: Client) {
    let authority = Authority::new();
    let server = TestServer::encrypted_and_guarded(&authority).await;
    server.add_user_with_certificate(&authority, "CN=alice,O=Quorate").await;
    let uri = |name: &str| {
        let (ca, certificate) = (authority.ca(), authority.issue(name, "Quorate"));
        format!(
            "mongodb://{}/?tls=true&tlsCAFile={}&tlsCertificateKeyFile={}\
             &authMechanism=MONGODB-X509&serverSelectionTimeoutMS=20000",
            server.address,
            ca.display(),
            certificate.display()
        )
    };
    run(client, &uri("alice"), &["certificate"]).await;
    let stranger = uri("bob");
    let running = client.run(&stranger, &["certificate"]);
    let refused = tokio::time::timeout(PATIENCE, running).await.expect("the client does not end");
    let said = refused.expect_err("a client without a user is let in");
    assert!(said.to_lowercase().contains("authentication failed"), "{said}");
    server.stop().await;
}

async fn run(client: Client, uri: &str, parts: &[&str]) {
    let running = tokio::time::timeout(PATIENCE, client.run(uri, parts)).await;
    let checks = running.expect("the client does not end");
    assert!(checks.unwrap_or_else(|said| panic!("{said}")) > 0, "{client:?} checked nothing");
}
