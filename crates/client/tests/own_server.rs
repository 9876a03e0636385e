//! The client's ordinary work against our own server, compressed.

// A panic in the functions that the tests share is a report, as it is in the tests.
#![allow(clippy::unwrap_used)]

use std::future::Future;
use std::net::Ipv4Addr;
use std::time::Duration;

use bson::{RawBson, doc, rawdoc};
use quorate_client::{Client, Collection};
use quorate_server::{Place, Running, Server, StartOptions};
use tempfile::TempDir;
use tokio::net::TcpListener;

const PATIENCE: Duration = Duration::from_secs(60);

async fn soon<T>(work: impl IntoFuture<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("it takes too long")
}

struct Deployment {
    uri: String,
    running: Running,
    _directory: TempDir,
}

async fn deploy(authentication: bool) -> Deployment {
    let directory = tempfile::tempdir().unwrap();
    let mut options = StartOptions::new(Place::Directory(directory.path().to_owned()));
    options.test_commands = true;
    options.authentication = authentication;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let running = Server::start(listener, options).await.unwrap();
    let uri = format!("mongodb://{}/?compressors=zstd", running.address());
    Deployment { uri, running, _directory: directory }
}

impl Deployment {
    fn uri_for(&self, user: &str, password: &str) -> String {
        self.uri.replace("mongodb://", &format!("mongodb://{user}:{password}@"))
    }

    async fn end(self) {
        soon(self.running.stop()).await.unwrap();
    }
}

async fn with_collection<F: Future<Output = ()>>(work: impl FnOnce(Client, Collection) -> F) {
    let deployment = deploy(false).await;
    let client = Client::with_uri(&deployment.uri).unwrap();
    let collection = client.collection("shop", "orders");
    soon(work(client.clone(), collection)).await;
    soon(client.close()).await;
    deployment.end().await;
}

/// SCRAM against another implementation of it than ours, in both mechanisms and by negotiation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_log_in_and_strangers_are_named() {
    let deployment = deploy(true).await;
    let first = Client::with_uri(&deployment.uri).unwrap();
    let create = rawdoc! { "createUser": "ann", "pwd": "secret", "roles": ["root"] };
    soon(first.run_command("admin", &create)).await.unwrap();
    soon(first.close()).await;
    for mechanism in ["", "&authMechanism=SCRAM-SHA-256", "&authMechanism=SCRAM-SHA-1"] {
        let uri = format!("{}{mechanism}", deployment.uri_for("ann", "secret"));
        let ann = Client::with_uri(&uri).unwrap();
        soon(ann.collection("shop", "orders").insert_one(doc! { "n": 1 })).await.unwrap();
        soon(ann.close()).await;
    }
    let uri = format!("{}&serverSelectionTimeoutMS=5000", deployment.uri_for("ann", "guess"));
    let stranger = Client::with_uri(&uri).unwrap();
    let error = soon(stranger.run_command("admin", &rawdoc! { "ping": 1 })).await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("authentication failed for user \"ann\""), "{text}");
    assert!(!text.contains("guess"), "{text}");
    soon(stranger.close()).await;
    deployment.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn documents_are_inserted_found_changed_and_deleted() {
    with_collection(async |_client, orders| {
        let documents = (0..500).map(|number| doc! { "_id": number, "n": number % 10 });
        let ids = orders.insert_many(documents).await.unwrap();
        assert_eq!((ids.len(), &ids[499]), (500, &RawBson::Int32(499)));

        let found = orders.find(doc! { "n": 3 }).sort(doc! { "_id": -1 }).batch_size(7).limit(20);
        let found = found.await.unwrap().collect().await.unwrap();
        let numbers: Vec<_> = found.iter().map(|found| found.get_i32("_id").unwrap()).collect();
        let expected: Vec<_> = (0..20).map(|step| 493 - 10 * step).collect();
        assert_eq!(numbers, expected);

        let changed = orders.update_many(doc! { "n": 3 }, doc! { "$set": { "x": 1 } });
        let changed = changed.await.unwrap();
        assert_eq!((changed.matched_count, changed.modified_count), (50, 50));
        let upserted = orders
            .update_one(doc! { "_id": 9999 }, doc! { "$set": { "x": 2 } })
            .upsert(true)
            .await
            .unwrap();
        assert_eq!(upserted.upserted_id, Some(RawBson::Int32(9999)));
        assert_eq!(upserted.matched_count, 0);

        assert_eq!(orders.count_documents(doc! { "x": 1 }).await.unwrap(), 50);
        assert_eq!(orders.delete_one(doc! { "x": 1 }).await.unwrap(), 1);
        assert_eq!(orders.delete_many(doc! { "x": 1 }).await.unwrap(), 49);
        assert_eq!(orders.estimated_document_count().await.unwrap(), 451);
        assert!(orders.find_one(doc! { "x": 1 }).await.unwrap().is_none());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn indexes_are_made_listed_obeyed_and_dropped() {
    with_collection(async |_client, orders| {
        let name = orders.create_index(doc! { "sku": 1 }).unique(true).await.unwrap();
        assert_eq!(name, "sku_1");
        orders.insert_one(doc! { "sku": "a" }).await.unwrap();
        let error = orders.insert_one(doc! { "sku": "a" }).await.unwrap_err();
        assert_eq!(error.code(), Some(11000), "{error}");
        let names = orders.list_indexes().await.unwrap().collect().await.unwrap();
        assert_eq!(names.len(), 2);
        orders.drop_index(&name).await.unwrap();
        orders.insert_one(doc! { "sku": "a" }).await.unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_callers_share_few_connections() {
    with_collection(async |client, orders| {
        let callers = (0..64).map(|caller| {
            let orders = orders.clone();
            tokio::spawn(async move {
                for step in 0..10 {
                    orders.insert_one(doc! { "caller": caller, "step": step }).await.unwrap();
                }
            })
        });
        for caller in callers.collect::<Vec<_>>() {
            caller.await.unwrap();
        }
        assert_eq!(orders.count_documents(doc! {}).await.unwrap(), 640);
        let (_, counts) = client.pools().pop().unwrap();
        assert!(counts.total <= 64 && counts.waiting == 0, "{counts:?}");
        assert_eq!(counts.available, counts.total);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_of_the_server_arrive_with_their_codes() {
    with_collection(async |client, _orders| {
        let error = client.run_command("admin", &rawdoc! { "noSuchCommand": 1 }).await.unwrap_err();
        assert_eq!(error.code(), Some(59), "{error}");
        assert!(error.to_string().contains("127.0.0.1:"), "{error}");
    })
    .await;
}
