//! Starting a whole server in one call: a store, a member over it, a listener, and a way to stop.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use quorate_node::{Node, NodeOptions};
use quorate_protocol::ServerAddress;
use quorate_storage::{LsmOptions, LsmStore, ModelStore, Store};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::clock::Clock;
use crate::net::TcpListener;
use crate::replica_set::ReplicaSetOptions;
use crate::server::{Server, ServerOptions};

/// The size of the oplog unless told otherwise.
const DEFAULT_OPLOG_BYTES: u64 = 990 * 1024 * 1024;

/// Where a server keeps its data.
#[derive(Clone, Debug)]
pub enum Place {
    /// In memory, for as long as it runs.
    Memory,
    /// In a directory, made if it does not exist.
    Directory(PathBuf),
}

/// What a server is started with.
#[derive(Clone, Debug)]
pub struct StartOptions {
    /// Where it keeps its data.
    pub place: Place,
    /// The name of its replica set; none for a server by itself.
    pub replica_set: Option<String>,
    /// Further addresses by which others may list it, besides the one it listens on.
    pub own_addresses: Vec<ServerAddress>,
    /// How many bytes of history to keep.
    pub oplog_bytes: u64,
    /// How it behaves.
    pub server: ServerOptions,
}

impl StartOptions {
    /// Options for this place, and otherwise the defaults.
    pub fn new(place: Place) -> Self {
        Self {
            place,
            replica_set: None,
            own_addresses: Vec::new(),
            oplog_bytes: DEFAULT_OPLOG_BYTES,
            server: ServerOptions::default(),
        }
    }
}

/// A server that runs.
pub struct Running {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<io::Result<()>>,
}

impl Server {
    /// Opens the data and serves on the listener until told to stop.
    ///
    /// # Errors
    ///
    /// If the data cannot be opened or the listener has no address.
    pub async fn start(listener: TcpListener, options: StartOptions) -> io::Result<Running> {
        let address = listener.local_addr()?;
        let clock = Clock::new();
        let server = tokio::task::block_in_place(|| open(address, clock, options))?;
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(server.run(listener, async {
            // Without anybody left to stop it, the server goes on.
            if stopped.await.is_err() {
                std::future::pending::<()>().await;
            }
        }));
        Ok(Running { address, stop: Some(stop), task })
    }
}

fn open(address: SocketAddr, clock: Clock, options: StartOptions) -> io::Result<Server> {
    let (store, directory): (Arc<dyn Store>, _) = match options.place {
        Place::Memory => (Arc::new(ModelStore::new()), None),
        Place::Directory(directory) => {
            let store = LsmStore::open(&directory, LsmOptions::default());
            (Arc::new(store.map_err(io::Error::other)?), Some(directory))
        }
    };
    let now = clock.now();
    let host = match address.ip() {
        ip if ip.is_loopback() || ip.is_unspecified() => format!("127.0.0.1:{}", address.port()),
        ip => format!("{ip}:{}", address.port()),
    };
    let node_options = NodeOptions {
        seed: now.wall.as_millis().unsigned_abs() ^ (u64::from(std::process::id()) << 40),
        host: host.clone(),
        compressors: ["zstd", "snappy", "zlib"].map(str::to_owned).to_vec(),
        oplog_bytes: options.replica_set.as_ref().map(|_| options.oplog_bytes),
        authentication: false,
        max_connections: options.server.max_connections,
    };
    let node = Arc::new(Node::open(store, node_options, now).map_err(io::Error::other)?);
    let Some(set_name) = options.replica_set else {
        return Server::new(node, clock, options.server);
    };
    let mut own_addresses: Vec<ServerAddress> = host.parse().into_iter().collect();
    own_addresses.extend(format!("localhost:{}", address.port()).parse().ok());
    own_addresses.extend(options.own_addresses);
    let replica_set = ReplicaSetOptions {
        set_name,
        own_addresses,
        rollback_directory: directory.map(|directory| directory.join("rollback")),
    };
    Server::new_member(node, clock, options.server, replica_set)
}

impl Running {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Asks it to hand over and stop, and waits until it has.
    ///
    /// # Errors
    ///
    /// If it failed before, or cannot sync what was written.
    pub async fn stop(mut self) -> io::Result<()> {
        if let Some(stop) = self.stop.take() {
            // A server that has ended already needs no asking.
            let _ = stop.send(());
        }
        self.ended().await
    }

    /// Waits until it ends by itself: a client ended it, or it failed.
    ///
    /// # Errors
    ///
    /// If it failed.
    pub async fn ended(self) -> io::Result<()> {
        match self.task.await {
            Ok(result) => result,
            Err(panic) => Err(io::Error::other(panic)),
        }
    }
}
