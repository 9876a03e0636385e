//! A server on port 0, in this process.

#![allow(dead_code, clippy::unwrap_used, reason = "each test binary uses a part")]

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use quorate_node::{Node, NodeOptions};
use quorate_server::{Clock, Server, ServerOptions};
use quorate_storage::{LsmOptions, LsmStore, Store};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

pub(crate) struct TestServer {
    pub(crate) address: SocketAddr,
    pub(crate) node: Arc<Node>,
    stop: Option<oneshot::Sender<()>>,
    running: JoinHandle<std::io::Result<()>>,
    _directory: TempDir,
}

impl TestServer {
    pub(crate) async fn start() -> Self {
        Self::start_with(ServerOptions::default()).await
    }

    /// A server whose clients must log in.
    pub(crate) async fn start_guarded() -> Self {
        Self::launch(ServerOptions::default(), true).await
    }

    pub(crate) async fn start_with(options: ServerOptions) -> Self {
        Self::launch(options, false).await
    }

    async fn launch(options: ServerOptions, authentication: bool) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> =
            Arc::new(LsmStore::open(directory.path(), LsmOptions::default()).unwrap());
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let clock = Clock::new();
        let node_options = NodeOptions {
            seed: 1,
            host: address.to_string(),
            compressors: ["zstd", "snappy", "zlib"].map(str::to_owned).to_vec(),
            authentication,
            oplog_bytes: None,
            max_connections: options.max_connections,
        };
        let node = Arc::new(Node::open(store, node_options, clock.now()).unwrap());
        let server = Server::new(Arc::clone(&node), clock, options).unwrap();
        let (stop, stopped) = oneshot::channel();
        let running = tokio::spawn(server.run(listener, async {
            let _ = stopped.await;
        }));
        Self { address, node, stop: Some(stop), running, _directory: directory }
    }

    /// Ends the server as a signal would, and waits for it.
    pub(crate) async fn stop(mut self) {
        // A server that a client has ended no longer listens for this.
        let _ = self.stop.take().unwrap().send(());
        self.running.await.unwrap().unwrap();
    }
}
