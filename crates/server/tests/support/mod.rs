//! A server on port 0, in this process.

#![allow(dead_code, clippy::unwrap_used, reason = "each test binary uses a part")]

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use quorate_node::Node;
use quorate_server::{Place, Running, Server, ServerOptions, StartOptions};
use tempfile::TempDir;
use tokio::net::TcpListener;

pub(crate) struct TestServer {
    pub(crate) address: SocketAddr,
    pub(crate) node: Arc<Node>,
    running: Running,
    _directory: TempDir,
}

impl TestServer {
    pub(crate) async fn start() -> Self {
        Self::start_with(ServerOptions::default()).await
    }

    /// A server whose clients must log in.
    pub(crate) async fn start_guarded() -> Self {
        Self::launch(|options| options.authentication = true).await
    }

    pub(crate) async fn start_with(server: ServerOptions) -> Self {
        Self::launch(|options| options.server = server).await
    }

    pub(crate) async fn launch(change: impl FnOnce(&mut StartOptions)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut options = StartOptions::new(Place::Directory(directory.path().to_owned()));
        options.test_commands = true;
        options.seed = Some(1);
        change(&mut options);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let running = Server::start(listener, options).await.unwrap();
        let node = Arc::clone(running.node());
        Self { address: running.address(), node, running, _directory: directory }
    }

    /// Ends the server as a signal would, and waits for it.
    pub(crate) async fn stop(self) {
        // The server waits until its data is not in use any more.
        drop(self.node);
        self.running.stop().await.unwrap();
    }
}
