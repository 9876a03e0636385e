//! The official Rust driver, as an application uses it.

use std::sync::{Arc, Mutex};

use mongodb::Client;
use mongodb::event::EventHandler;
use mongodb::event::sdam::SdamEvent;
use mongodb::options::ClientOptions;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// A topology: (address, known, primary) of each server.
type Servers = Vec<(String, bool, bool)>;

pub struct Watched {
    pub client: Client,
    pub events: UnboundedReceiver<(u64, Servers)>,
}

/// Each topology with the time of its event.
pub async fn watched(uri: &str) -> Watched {
    let mut options = ClientOptions::parse(uri).await.unwrap();
    let (sender, events) = unbounded_channel();
    let sender = Arc::new(Mutex::new(sender));
    options.sdam_event_handler = Some(EventHandler::callback(move |event| {
        if let SdamEvent::TopologyDescriptionChanged(changed) = event {
            let at = crate::now_ns();
            let servers = changed.new_description.servers();
            let servers = servers
                .iter()
                .map(|(address, info)| {
                    use mongodb::ServerType;
                    let kind = info.server_type();
                    let known = kind != ServerType::Unknown;
                    (address.to_string(), known, kind == ServerType::RsPrimary)
                })
                .collect();
            let _ = sender.lock().unwrap().send((at, servers));
        }
    }));
    Watched { client: Client::with_options(options).unwrap(), events }
}

pub async fn connected(uri: &str, members: usize) -> Watched {
    let mut watched = watched(uri).await;
    loop {
        let (_, servers) = watched.events.recv().await.unwrap();
        if servers.len() == members
            && servers.iter().all(|(_, known, _)| *known)
            && servers.iter().any(|(_, _, primary)| *primary)
        {
            return watched;
        }
    }
}

pub async fn primary_is(watched: &mut Watched, wanted: &str) -> u64 {
    loop {
        let (at, servers) = watched.events.recv().await.unwrap();
        if servers.iter().any(|(address, _, primary)| *primary && address == wanted) {
            return at;
        }
    }
}

/// A client that knows every one of these seeds.
pub async fn knowing_all(uri: &str, servers: usize) -> Watched {
    let mut watched = watched(uri).await;
    loop {
        let (_, known) = watched.events.recv().await.unwrap();
        if known.len() == servers && known.iter().all(|(_, known, _)| *known) {
            return watched;
        }
    }
}
