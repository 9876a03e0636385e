//! What every client must be able to do, and against which server.

use std::time::Duration;

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
        run(client, &uri, &["compression"]).await;
        witness.saw_messages_both_ways(compressor);
    }
    server.stop().await;
}

async fn run(client: Client, uri: &str, parts: &[&str]) {
    let checks = tokio::time::timeout(PATIENCE, client.run(uri, parts)).await;
    assert!(checks.expect("the client does not end") > 0, "{client:?} checked nothing");
}
