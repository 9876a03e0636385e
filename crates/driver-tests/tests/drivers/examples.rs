//! The programs of the documentation: the pages show exactly these files, and each works.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bson::{Document, doc};
use mongodb::Collection;
use quorate_provision::{npm, python};
use tempfile::TempDir;
use tokio::sync::mpsc;

use crate::server::TestServer;

#[path = "../../../../docs/examples/consumer.rs"]
mod consumer;
#[path = "../../../../docs/examples/transfer.rs"]
mod transfer;

/// How long an event may take. It takes milliseconds; on a machine under load, more.
const PATIENCE: Duration = Duration::from_secs(120);

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

fn program(name: &str) -> Command {
    let mut command = match name.ends_with(".py") {
        true => Command::new(python(&["pymongo[snappy,zstd]==4.19.0"]).unwrap()),
        false => {
            let mut node = Command::new("node");
            node.env("NODE_PATH", npm(&["mongodb@7.8.0", "snappy@7.4.3"]).unwrap());
            node
        }
    };
    command.arg(docs().join("examples").join(name));
    command
}

#[test]
fn the_pages_show_the_files() {
    let pages = [("change-streams.md", "consumer"), ("transactions.md", "transfer")];
    for (page, name) in pages {
        let text = std::fs::read_to_string(docs().join(page)).unwrap();
        for (ending, language) in [("py", "python"), ("cjs", "js"), ("rs", "rust,ignore")] {
            let file = docs().join("examples").join(format!("{name}.{ending}"));
            let code = std::fs::read_to_string(&file).unwrap();
            let block = format!("```{language}\n{code}```\n");
            assert!(text.contains(&block), "{page} does not show {}", file.display());
        }
    }
}

/// A consumer as a process: what it prints, until it is killed.
struct Life {
    process: Child,
    output: BufReader<ChildStdout>,
}

impl Life {
    fn start(name: &str, uri: &str, place: &Path) -> Self {
        let mut command = program(name);
        let mut process = command.arg(uri).arg(place).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        Self { process, output }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        // It has ended by itself, or it is ended here.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

async fn orders(uri: &str) -> Collection<Document> {
    let client = mongodb::Client::with_uri_str(uri).await.unwrap();
    client.database("shop").collection("orders")
}

/// Inserts numbers until the consumer tells of one: it may still be opening its stream.
async fn first_seen(orders: &Collection<Document>, seen: impl Future<Output = String>) -> i32 {
    let mut next = 0;
    let mut seen = std::pin::pin!(seen);
    loop {
        orders.insert_one(doc! { "_id": next }).await.unwrap();
        next += 1;
        tokio::select! {
            line = &mut seen => {
                assert!(line.starts_with("insert "), "{line}");
                return next;
            }
            () = tokio::time::sleep(Duration::from_millis(20)) => {}
        }
    }
}

async fn consumer_program_goes_on(name: &'static str) {
    let server = TestServer::member().await;
    let folder = TempDir::new().unwrap();
    let place = folder.path().join("place");
    let (uri, orders) = (server.uri(), orders(&server.uri()).await);
    let mut life = Life::start(name, &uri, &place);
    let seen = tokio::task::spawn_blocking(move || (life.line(), life));
    let mut life = None;
    let next = first_seen(&orders, async {
        let (line, told) = seen.await.unwrap();
        life = Some(told);
        line
    })
    .await;
    // It stores its place after it has told of a change.
    while !place.exists() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(life);
    for number in next..next + 5 {
        orders.insert_one(doc! { "_id": number }).await.unwrap();
    }
    let mut life = Life::start(name, &uri, &place);
    let last = format!("insert {}", next + 4);
    let rest = tokio::task::spawn_blocking(move || {
        let mut lines = Vec::new();
        while lines.last() != Some(&last) {
            lines.push(life.line());
        }
        lines
    });
    let rest = tokio::time::timeout(PATIENCE, rest).await.expect("the rest is told").unwrap();
    let expected: Vec<String> = (next..next + 5).map(|n| format!("insert {n}")).collect();
    assert!(rest.ends_with(&expected), "{rest:?}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_consumer_in_python_goes_on() {
    consumer_program_goes_on("consumer.py").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_consumer_in_javascript_goes_on() {
    consumer_program_goes_on("consumer.cjs").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_consumer_in_rust_goes_on() {
    let server = TestServer::member().await;
    let folder = TempDir::new().unwrap();
    let place = Arc::new(folder.path().join("place"));
    let (uri, orders) = (server.uri(), orders(&server.uri()).await);
    let start = || {
        let (sender, receiver) = mpsc::unbounded_channel();
        let (uri, place) = (uri.clone(), Arc::clone(&place));
        let tell = move |event: &Document| {
            let id = event.get_document("documentKey").unwrap().get_i32("_id").unwrap();
            let _ = sender.send(format!("{} {id}", event.get_str("operationType").unwrap()));
        };
        (tokio::spawn(async move { consumer::follow(&uri, &place, tell).await }), receiver)
    };
    let (life, mut told) = start();
    let next = first_seen(&orders, async { told.recv().await.unwrap() }).await;
    while !place.exists() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    life.abort();
    let _ = life.await;
    for number in next..next + 5 {
        orders.insert_one(doc! { "_id": number }).await.unwrap();
    }
    let (life, mut told) = start();
    let rest = async {
        let mut rest = Vec::new();
        while rest.last() != Some(&format!("insert {}", next + 4)) {
            rest.push(told.recv().await.unwrap());
        }
        rest
    };
    let rest = tokio::time::timeout(PATIENCE, rest).await.expect("the rest is told");
    let expected: Vec<String> = (next..next + 5).map(|n| format!("insert {n}")).collect();
    assert!(rest.ends_with(&expected), "{rest:?}");
    life.abort();
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_transfers_move_and_refuse() {
    let server = TestServer::member().await;
    let uri = server.uri();
    let client = mongodb::Client::with_uri_str(&uri).await.unwrap();
    let accounts = client.database("bank").collection::<Document>("accounts");
    let both = [doc! { "_id": "ann", "balance": 15 }, doc! { "_id": "bob", "balance": 0 }];
    accounts.insert_many(both).await.unwrap();
    let balances = async || {
        let mut balances = Vec::new();
        for name in ["ann", "bob"] {
            let found = accounts.find_one(doc! { "_id": name }).await.unwrap().unwrap();
            balances.push(found.get_i32("balance").unwrap());
        }
        balances
    };
    let run = async |name: &'static str| {
        let uri = uri.clone();
        let run = move || program(name).arg(uri).output().unwrap();
        tokio::task::spawn_blocking(run).await.unwrap()
    };
    for (name, expected) in [("transfer.py", [10, 5]), ("transfer.cjs", [5, 10])] {
        let output = run(name).await;
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(balances().await, expected);
    }
    transfer::transfer(&uri).await.unwrap();
    assert_eq!(balances().await, [0, 15]);
    assert_eq!(transfer::transfer(&uri).await.unwrap_err().to_string(), "ann has less than 5");
    for name in ["transfer.py", "transfer.cjs"] {
        let output = run(name).await;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains("ann has less than 5"), "{said}");
    }
    assert_eq!(balances().await, [0, 15]);
    server.stop().await;
}
