//! Our client, as an application uses it.

use std::sync::Arc;
use std::time::Duration;

use bson::raw::{RawDocumentBuf, cstr};
use quorate_client::{Client, ClientEvent, ClientOptions};
use quorate_server_discovery::{DiscoveryEvent, TopologyDescription};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

fn is_complete(description: &TopologyDescription, members: usize) -> bool {
    description.primary().is_some()
        && description.servers().len() == members
        && description.servers().iter().all(|server| server.server_type().is_known())
}

/// A client that knows every member.
pub async fn connected(uri: &str, members: usize) -> Client {
    let client = Client::with_uri(uri).unwrap();
    let mut events = client.events();
    while !is_complete(&client.topology(), members) {
        let _ = events.recv().await;
    }
    client
}

/// A client that knows every one of these seeds.
pub async fn knowing_all(uri: &str, servers: usize) -> Client {
    let client = Client::with_uri(uri).unwrap();
    let mut events = client.events();
    let knows = |client: &Client| {
        let description = client.topology();
        description.servers().len() == servers
            && description.servers().iter().all(|server| server.server_type().is_known())
    };
    while !knows(&client) {
        let _ = events.recv().await;
    }
    client
}

/// A client whose callback notes when it was told of which primary, as the official driver's does.
pub struct Watched {
    pub client: Client,
    primaries: UnboundedReceiver<(u64, String)>,
}

pub async fn watched(uri: &str, members: usize) -> Watched {
    let mut options = ClientOptions::from_connection_string(&uri.parse().unwrap());
    let (sender, primaries) = unbounded_channel();
    options.listener = Some(Arc::new(move |event| {
        if let ClientEvent::Discovery(DiscoveryEvent::TopologyDescriptionChanged { new, .. }) =
            event
            && let Some(primary) = new.primary()
        {
            let _ = sender.send((crate::now_ns(), primary.address().to_string()));
        }
    }));
    let client = Client::with_options(options).unwrap();
    while !is_complete(&client.topology(), members) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Watched { client, primaries }
}

impl Watched {
    /// When the callback was told of this primary.
    pub async fn primary_is(&mut self, wanted: &str) -> u64 {
        loop {
            let (at, address) = self.primaries.recv().await.unwrap();
            if address == wanted {
                return at;
            }
        }
    }
}

pub fn ping() -> RawDocumentBuf {
    let mut body = RawDocumentBuf::new();
    body.append(cstr!("ping"), 1);
    body
}
