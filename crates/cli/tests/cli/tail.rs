//! The feed of changes and what a resume token says, on sets of our own.

use std::path::Path;

use bson::doc;
use quorate_checker::change_events::{Delivery, check};
use quorate_client::Client;
use serde_json::Value;

use crate::down::RunDirectory;
use crate::live::ready_set;
use crate::support::quorate;

/// Changes before the first fault, and during faults.
const CHANGES: i64 = 300;

/// What one life of a feed printed: the keys and the tokens of changes.
#[derive(Default)]
struct Life(Vec<(i64, String)>);

impl Life {
    fn add(&mut self, event: &Value) {
        if event["event"] == "change" {
            let change = &event["change"];
            let key = change["documentKey"]["_id"].as_i64().unwrap();
            self.0.push((key, change["_id"]["_data"].as_str().unwrap().to_owned()));
        }
    }

    /// What the consumer was given, in the oracle's words. The feed stores its place after it has
    /// printed a change, so that the last one may not be stored.
    fn deliveries(&self, stored: Option<&str>) -> Vec<Delivery> {
        let stored = stored.unwrap_or_default();
        let place = self.0.partition_point(|(_, token)| token.as_str() <= stored);
        let event = |(key, _): &(i64, String)| Delivery::Event(*key);
        let mut deliveries: Vec<_> = self.0[..place].iter().map(event).collect();
        if !stored.is_empty() {
            deliveries.push(Delivery::Stored);
        }
        deliveries.extend(self.0[place..].iter().map(event));
        deliveries
    }
}

fn stored(file: &Path) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    let token: Value = serde_json::from_str(&text).expect(&text);
    Some(token["_data"].as_str().unwrap().to_owned())
}

/// Inserts documents one after the other. A document whose insert was not acknowledged is inserted again;
/// one that is there already was committed.
async fn write(uri: String, keys: std::ops::Range<i64>) {
    let client = Client::with_uri(&uri).unwrap();
    let orders = client.collection("shop", "orders");
    for key in keys {
        loop {
            match orders.insert_one(doc! { "_id": key }).await {
                Ok(_) => break,
                Err(error) if error.to_string().contains("E11000") => break,
                Err(_) => {}
            }
        }
    }
    client.close().await;
}

#[test]
fn a_feed_misses_nothing_when_it_is_killed_and_when_the_primary_is() {
    feed_under_fault("--kill");
}

#[test]
fn a_feed_misses_nothing_when_it_is_killed_and_the_primary_hangs() {
    feed_under_fault("--pause");
}

#[test]
fn a_feed_misses_nothing_when_it_is_killed_and_the_primary_is_cut_off() {
    feed_under_fault("--partition");
}

/// A consumer with a stored place is killed again and again while this happens to the primary.
fn feed_under_fault(fault: &str) {
    let run = RunDirectory::new();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("place");
    let mut set = run.start(&["up", "--port", "0", "--json"]);
    let (_, uri) = ready_set(&mut set, 3);
    let tail = || {
        let file = file.to_str().unwrap();
        let mut feed = run.start(&["tail", "--json", "--resume-file", file, &uri, "shop.orders"]);
        feed.wait_for("tail", |_| true);
        feed
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let first = tail();
    let mut deliveries = Vec::new();
    let mut feed = std::thread::scope(|threads| {
        let mut feed = first;
        let writer = runtime.spawn(write(uri.clone(), 0..CHANGES));
        let drill = threads.spawn(|| run.quorate(&["drill", fault, "--json", &uri]));
        for changes in [10, 40, 80] {
            let mut life = Life::default();
            while life.0.len() < changes {
                life.add(&feed.event());
            }
            feed.kill().iter().for_each(|event| life.add(event));
            deliveries.extend(life.deliveries(stored(&file).as_deref()));
            deliveries.push(Delivery::Restarted);
            feed = tail();
        }
        let drill = drill.join().unwrap();
        assert_eq!(drill.code(), 0, "{} {}", drill.stdout(), drill.stderr());
        runtime.block_on(writer).unwrap();
        feed
    });
    let mut last = Life::default();
    while last.0.last().is_none_or(|(key, _)| *key < CHANGES - 1) {
        last.add(&feed.event());
    }
    deliveries.extend(last.deliveries(None));
    assert_eq!(feed.terminate(), Some(0));
    let committed: Vec<i64> = (0..CHANGES).collect();
    let verdict = check(&committed, &deliveries);
    assert!(verdict.anomalies.is_empty(), "{verdict:#?}");
    assert_eq!(set.terminate(), Some(0));
}

#[test]
fn a_token_is_told_with_whether_the_deployment_can_resume_from_it() {
    let run = RunDirectory::new();
    let mut set = run.start(&["up", "--members", "1", "--port", "0", "--json"]);
    let (_, uri) = ready_set(&mut set, 1);
    let mut feed = run.start(&["tail", "--json", &uri, "shop"]);
    feed.wait_for("tail", |_| true);
    let insert = "{insert: 'orders', documents: [{_id: 7}]}";
    assert_eq!(quorate(&["run", "--database", "shop", &uri, insert]).code(), 0);
    let change = feed.wait_for("change", |_| true);
    let token = change["change"]["_id"].to_string();
    let told = quorate(&["token", "--json", &token, &uri]);
    assert_eq!(told.code(), 0, "{}", told.stderr());
    let [what, verdict] = &told.events()[..] else { panic!("{}", told.stdout()) };
    assert_eq!((&what["kind"], &what["operation"]), (&"event".into(), &"insert".into()));
    assert_eq!(what["documentKey"]["_id"], 7);
    assert_eq!(verdict["resumable"], true);
    // A mark of 2022 is before the first entry, but the set has its whole history.
    let mark = quorate(&["token", "--json", "8263515EAC000000022B0429296E1404", &uri]);
    assert_eq!((mark.code(), &mark.events()[1]["resumable"]), (0, &true.into()));
    // An event of another deployment is at no place.
    let data = change["change"]["_id"]["_data"].as_str().unwrap();
    let other = format!("8263515EAC{}", &data[10..]);
    let lost = quorate(&["token", "--json", &other, &uri]);
    assert_eq!((lost.code(), &lost.events()[1]["resumable"]), (1, &false.into()));
    assert_eq!(feed.terminate(), Some(0));
    assert_eq!(set.terminate(), Some(0));
}
