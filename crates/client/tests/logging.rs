//! What a subscriber of `tracing` hears of one command.

// A panic in the functions that the tests share is a report, as it is in the tests.
#![allow(clippy::unwrap_used)]

use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use bson::rawdoc;
use quorate_client::Client;
use quorate_test_support::FakeServer;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Keeps the target and the message of every event, and the name of every span.
#[derive(Clone, Default)]
struct Ear(Arc<Mutex<Vec<(String, String)>>>);

struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

impl Subscriber for Ear {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("quorate::")
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let metadata = attributes.metadata();
        let told = (metadata.target().to_owned(), format!("span {}", metadata.name()));
        self.0.lock().unwrap().push(told);
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut message = Message(String::new());
        event.record(&mut message);
        self.0.lock().unwrap().push((event.metadata().target().to_owned(), message.0));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[tokio::test]
async fn each_component_tells_its_part() {
    let ear = Ear::default();
    let _listening = tracing::subscriber::set_default(ear.clone());
    let server = FakeServer::start().await.unwrap();
    let client = Client::with_uri(&server.uri()).unwrap();
    client.run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap();
    client.close().await;
    let heard = ear.0.lock().unwrap().clone();
    let of = |target: &str| -> Vec<_> {
        heard.iter().filter(|(other, _)| other == target).map(|(_, text)| text.as_str()).collect()
    };
    let connection = of("quorate::connection");
    assert_eq!(
        connection[..5],
        [
            "Connection pool created", "Connection pool ready", "Connection checkout started",
            "Connection created", "Connection ready",
        ]
    );
    assert_eq!(connection.last(), Some(&"Connection pool closed"));
    let command = of("quorate::command");
    assert_eq!(command[..3], ["span operation", "Command started", "Command succeeded"]);
    assert!(of("quorate::topology").iter().any(|text| text.contains("topology")), "{heard:?}");
}
