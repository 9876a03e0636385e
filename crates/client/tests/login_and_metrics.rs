//! Logging in again when the server asks for it, what is counted, and what is refused at the start.

// A panic in the functions that the tests share is a report, as it is in the tests.
#![allow(clippy::unwrap_used)]

use std::future::Future;
use std::time::Duration;

use bson::rawdoc;
use quorate_client::{Client, ClientOptions};
use quorate_test_support::{FailPoint, FakeServer};

/// Nothing here takes long; what does is stuck.
const PATIENCE: Duration = Duration::from_secs(60);

async fn soon<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("it takes too long")
}

fn fail_once(command: &str, code: i32) -> Option<FailPoint> {
    let configure = rawdoc! {
        "configureFailPoint": "failCommand", "mode": { "times": 1 },
        "data": { "failCommands": [command], "errorCode": code },
    };
    FailPoint::from_command(&configure).unwrap()
}

/// A client that logs in by a certificate, which takes one command and no TLS here.
fn client_with_login(server: &FakeServer) -> Client {
    let uri = format!("mongodb://{}/?authMechanism=MONGODB-X509&tls=true", server.address());
    let mut options = ClientOptions::from_connection_string(&uri.parse().unwrap());
    options.tls = None;
    Client::with_options(options).unwrap()
}

/// "Reauthentication" of the authentication specification: at once, on the same connection, without
/// hello, and the command is sent once more although it is not retryable.
#[tokio::test]
async fn a_login_that_has_run_out_is_made_again_and_the_command_repeated() {
    let server = FakeServer::start().await.unwrap();
    server.set_reply("authenticate", rawdoc! {});
    server.set_reply("create", rawdoc! {});
    let client = client_with_login(&server);
    soon(client.run_command("admin", &rawdoc! { "ping": 1 })).await.unwrap();
    server.set_fail_point(fail_once("create", 391));
    soon(client.run_command("shop", &rawdoc! { "create": "orders" })).await.unwrap();
    let expected = ["authenticate", "ping", "create", "authenticate", "create"];
    assert_eq!(server.command_names(), expected);
    assert_eq!(client.pools()[0].1.total, 1);
    soon(client.close()).await;
}

/// The repeated command is what was sent before, however large it was and whatever was sent beside it.
#[tokio::test]
async fn a_large_write_is_repeated_whole_after_another_login() {
    const DOCUMENTS: i32 = 3;
    let server = FakeServer::start().await.unwrap();
    server.set_reply("authenticate", rawdoc! {});
    server.set_reply("insert", rawdoc! { "ok": 1, "n": DOCUMENTS });
    server.set_reply("create", rawdoc! {});
    let client = client_with_login(&server);
    soon(client.run_command("admin", &rawdoc! { "ping": 1 })).await.unwrap();
    server.set_fail_point(fail_once("insert", 391));
    let documents = (0..DOCUMENTS).map(|id| rawdoc! { "_id": id, "text": "x".repeat(1 << 20) });
    let orders = client.collection("shop", "orders");
    soon(async { orders.insert_many(documents).await }).await.unwrap();
    server.set_fail_point(fail_once("create", 391));
    let create = rawdoc! { "create": "orders", "comment": "x".repeat(3 << 20) };
    soon(client.run_command("shop", &create)).await.unwrap();
    let expected = [
        "authenticate", "ping", "insert", "authenticate", "insert", "create", "authenticate",
        "create",
    ];
    assert_eq!(server.command_names(), expected);
    for name in ["insert", "create"] {
        let commands = server.commands();
        let mut sent = commands.iter().filter(|command| matches!(command.get(name), Ok(Some(_))));
        let (first, second) = (sent.next().unwrap(), sent.next().unwrap());
        assert!(first.as_bytes().len() > 3 << 20);
        assert_eq!(first, second);
    }
    assert_eq!(client.pools()[0].1.total, 1);
    soon(client.close()).await;
}

#[tokio::test]
async fn a_login_that_is_refused_again_is_told_and_its_connection_closed() {
    let server = FakeServer::start().await.unwrap();
    server.set_reply("authenticate", rawdoc! {});
    let client = client_with_login(&server);
    soon(client.run_command("admin", &rawdoc! { "ping": 1 })).await.unwrap();
    server.set_fail_point(fail_once("ping", 391));
    server.set_reply("authenticate", rawdoc! { "ok": 0, "code": 18, "errmsg": "no" });
    let error = soon(client.run_command("admin", &rawdoc! { "ping": 1 })).await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("authentication failed for the client certificate"), "{text}");
    assert_eq!(client.pools()[0].1.available, 0);
    soon(client.close()).await;
}

#[tokio::test]
async fn what_a_client_does_is_counted() {
    let server = FakeServer::start().await.unwrap();
    let client = Client::with_uri(&server.uri()).unwrap();
    soon(client.run_command("admin", &rawdoc! { "ping": 1 })).await.unwrap();
    soon(client.run_command("admin", &rawdoc! { "unknown": 1 })).await.unwrap_err();
    let metrics = client.metrics();
    assert_eq!(metrics.commands_started, 2);
    assert_eq!((metrics.commands_succeeded, metrics.commands_failed), (1, 1));
    assert_eq!((metrics.selections, metrics.selections_failed), (2, 0));
    assert!(metrics.topology_changes >= 1);
    let counted = &metrics.servers[0];
    assert_eq!(&counted.address, server.address());
    assert!(counted.checks_started >= 1 && counted.checks_succeeded >= 1);
    assert_eq!((counted.connections_created, counted.check_outs), (1, 2));
    assert_eq!((counted.pool.total, counted.pool.available), (1, 1));
    assert!(counted.round_trip_time.is_some());
    let text = metrics.to_prometheus();
    let line = format!("quorate_client_pool_checkouts_total{{server=\"{}\"}} 2", server.address());
    assert!(text.lines().any(|found| found == line), "{text}");

    server.set_fail_point(fail_once("ping", 91));
    soon(client.run_command("admin", &rawdoc! { "ping": 1 })).await.unwrap_err();
    soon(client.run_command("admin", &rawdoc! { "ping": 1 })).await.unwrap();
    assert!(client.metrics().servers[0].check_outs >= 4);
    soon(client.close()).await;
}

/// Going past a proxy may be what the user wanted to avoid, and a password that is not used would
/// leave the key unread: both are said by name.
#[tokio::test]
async fn options_that_are_not_supported_are_refused_by_name() {
    for (uri, named) in [
        ("mongodb://a/?proxyHost=p", "proxyHost"),
        ("mongodb://a/?tls=true&tlsCertificateKeyFilePassword=x", "tlsCertificateKeyFilePassword"),
    ] {
        let error = Client::with_uri(uri).unwrap_err().to_string();
        assert!(error.contains(named) && error.contains("is not supported"), "{error}");
    }
}
