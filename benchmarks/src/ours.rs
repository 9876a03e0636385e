//! Our client, as an application uses it.

use bson::raw::{RawDocumentBuf, cstr};
use quorate_client::{Client, ClientEvent};
use quorate_server_discovery::{DiscoveryEvent, TopologyDescription};

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

/// Waits for the event that tells of this primary.
pub async fn primary_is(
    events: &mut tokio::sync::broadcast::Receiver<ClientEvent>,
    address: &str,
) -> u64 {
    loop {
        if let Ok(ClientEvent::Discovery(DiscoveryEvent::TopologyDescriptionChanged {
            new, ..
        })) = events.recv().await
            && new.primary().is_some_and(|primary| primary.address().as_str() == address)
        {
            return crate::now_ns();
        }
    }
}

pub fn ping() -> RawDocumentBuf {
    let mut body = RawDocumentBuf::new();
    body.append(cstr!("ping"), 1);
    body
}
