//! A server that ends and begins again on the same directory, in one process.

#![allow(clippy::unwrap_used, reason = "a panic is the report")]

use std::fs::Permissions;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use bson::{Document, RawDocumentBuf, doc};
use quorate_client::Client;
use quorate_server::{Place, Running, Server, StartOptions};
use tokio::net::TcpListener;

const PATIENCE: Duration = Duration::from_secs(60);

/// Starts on one directory, one after the other.
const STARTS: usize = 10;

async fn run(to: &Running, command: Document) {
    let uri = format!("mongodb://{}/?directConnection=true", to.address());
    let client = Client::with_uri(&uri).unwrap();
    let raw = RawDocumentBuf::try_from(&command).unwrap();
    let reply = tokio::time::timeout(PATIENCE, client.run_command("admin", &raw)).await;
    reply.expect("an answer in time").unwrap();
    client.close().await;
}

/// When a stop has returned, no task and no thread keeps the store open.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_directory_is_free_once_the_server_has_stopped() {
    for set in [None, Some("rs0".to_owned())] {
        let directory = tempfile::tempdir().unwrap();
        for start in 0..STARTS {
            let mut options = StartOptions::new(Place::Directory(directory.path().to_owned()));
            options.replica_set.clone_from(&set);
            options.server.quiesce = Duration::ZERO;
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
            let running = Server::start(listener, options).await;
            let running = running.unwrap_or_else(|error| panic!("{set:?}, start {start}: {error}"));
            let first = set.is_some() && start == 0;
            let command = if first { "replSetInitiate" } else { "ping" };
            run(
                &running,
                doc! { command: if first { bson::Bson::from(doc! {}) } else { 1.into() } },
            )
            .await;
            running.stop().await.unwrap();
        }
    }
}

/// The operator may name a directory by mistake that others work in. It is refused as it is.
#[tokio::test(flavor = "multi_thread")]
async fn only_a_data_directory_is_closed_to_others() {
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    for (has_file, expected) in [(true, 0o755), (false, 0o700)] {
        let directory = tempfile::tempdir().unwrap();
        std::fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
        if has_file {
            std::fs::write(directory.path().join("letter.txt"), "dear").unwrap();
        }
        let options = StartOptions::new(Place::Directory(directory.path().to_owned()));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let started = Server::start(listener, options).await;
        assert_eq!(started.is_err(), has_file);
        assert_eq!(mode(directory.path()), expected, "with a file of another program: {has_file}");
        if let Ok(running) = started {
            running.stop().await.unwrap();
        }
    }
}
