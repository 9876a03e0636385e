//! Starting a whole server in one call: a store, a member over it, a listener, and a way to stop.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use quorate_node::{Block, CommandError, IndexPrefetch, Node, NodeOptions, Scratch};
use quorate_protocol::ServerAddress;
use quorate_protocol::remedy::CHECK_LIMITS;
use quorate_storage::{DiskOptions, DiskStore, Files, FillableFiles, ModelStore, OpenError, Store};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::accepting::Listeners;
use crate::clock::Clock;
use crate::descriptors::Descriptors;
use crate::memory::allocator_name;
use crate::privacy::{close_to_others, keep_files_private, make_directory};
use crate::replica_set::{Cut, ReplicaSetOptions};
use crate::scratch::ScratchDirectory;
use crate::security::{Membership, Security, SecurityError};
use crate::server::{Machine, Server, ServerOptions};
use crate::tls::TlsOptions;
use crate::write_turns;

/// The size of the oplog unless told otherwise.
pub(crate) const DEFAULT_OPLOG_BYTES: u64 = 990 * 1024 * 1024;

/// The same for a member in memory, where an entry takes several times its size.
const DEFAULT_MEMORY_OPLOG_BYTES: u64 = 64 * 1024 * 1024;

/// How long a server that has stopped waits for its store to be closed. A client of this crate may hold the node longer.
const MAX_CLOSING: Duration = Duration::from_secs(5);

/// The compressors offered, best first.
const COMPRESSORS: [&str; 3] = ["zstd", "snappy", "zlib"];

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
    /// The address by which clients and other members reach it, where that is not the one it listens on.
    pub advertise: Option<ServerAddress>,
    /// Further addresses by which others may list it, besides the one it listens on.
    pub own_addresses: Vec<ServerAddress>,
    /// How many bytes of history a member of a set keeps.
    pub oplog_bytes: u64,
    /// What a member of a set reads ahead of applying.
    pub index_prefetch: IndexPrefetch,
    /// Whether clients must log in, and may do only what their roles allow.
    pub authentication: bool,
    /// How members of its set know each other; anything but [`Membership::Unchecked`] implies
    /// `authentication`.
    pub membership: Membership,
    /// How it encrypts, if it does.
    pub tls: Option<TlsOptions>,
    /// Whether the commands that are for tests can be run: fail points.
    pub test_commands: bool,
    /// Where nonces, salts and identifiers come from; none draws one from the operating system, as
    /// a client that guesses it can pretend to be another.
    pub seed: Option<u64>,
    /// How it behaves.
    pub server: ServerOptions,
}

impl StartOptions {
    /// Options for this place, and otherwise the defaults.
    pub fn new(place: Place) -> Self {
        let oplog_bytes = match place {
            Place::Memory => DEFAULT_MEMORY_OPLOG_BYTES,
            Place::Directory(_) => DEFAULT_OPLOG_BYTES,
        };
        Self {
            place,
            replica_set: None,
            advertise: None,
            own_addresses: Vec::new(),
            oplog_bytes,
            index_prefetch: IndexPrefetch::default(),
            authentication: false,
            membership: Membership::Unchecked,
            tls: None,
            test_commands: false,
            seed: None,
            server: ServerOptions::default(),
        }
    }
}

/// A server could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The listener is of no use.
    #[error("the listener has no address: {0}; {CHECK_LIMITS}")]
    Listener(#[source] io::Error),
    /// Clients or members could not know each other.
    #[error(transparent)]
    Security(#[from] SecurityError),
    /// Members would let each other in without asking, and clients not.
    #[error(
        "members of a set that asks for logins must know each other; give --keyfile, or \
         --cluster-auth x509 with --tls-cert and --tls-ca"
    )]
    MembersUnknown,
    /// The directory is of no use.
    #[error("cannot open the data: {0}")]
    Open(#[source] OpenError),
    /// What the directory holds is of no use.
    #[error("the data cannot be read: {0}; restore the directory, or give another")]
    Damaged(#[source] CommandError),
    /// The system failed while the data was opened: nothing is known to be wrong with the data.
    #[error(
        "the system failed while the data was opened: {0}; check the disk (dmesg), its room and the \
         limits of this process, and start again"
    )]
    System(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// There is no seed.
    #[error("this machine gives no random numbers: {0}; check /dev/urandom")]
    Random(#[source] getrandom::Error),
    /// The system gives no thread, or a member's memory of its set is damaged.
    #[error("cannot start: {0}; {CHECK_LIMITS}")]
    Prepare(#[source] io::Error),
}

/// A server that runs.
pub struct Running {
    address: SocketAddr,
    node: Arc<Node>,
    cut: Option<Cut>,
    requires_tls: bool,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<io::Result<()>>,
    /// Ends when the store is closed. None if it is in memory.
    closed: Option<Closed>,
}

/// Its sender goes with the store.
type Closed = oneshot::Receiver<Infallible>;

impl Server {
    /// Opens the data and serves on the listener until told to stop.
    ///
    /// # Errors
    ///
    /// If the data cannot be opened, or the system gives no threads or random numbers.
    pub async fn start(
        listeners: impl Into<Listeners>,
        options: StartOptions,
    ) -> Result<Running, StartError> {
        begin(listeners.into(), options)
    }
}

/// Opens the data and begins to serve. Neither generic nor asynchronous, so that this crate's own build holds, and
/// optimises, all that serves a client: the body of an asynchronous function is built by the crate that awaits it.
fn begin(listeners: Listeners, options: StartOptions) -> Result<Running, StartError> {
    listeners.deepen().map_err(StartError::Listener)?;
    let address = listeners.main.local_addr().map_err(StartError::Listener)?;
    let addresses = listeners.addresses().map_err(StartError::Listener)?;
    let clock = Clock::new();
    let (server, closed) =
        tokio::task::block_in_place(|| open(address, &addresses, clock, options))?;
    let (node, cut, requires_tls) = (server.node(), server.cut(), server.requires_tls());
    let (stop, stopped) = oneshot::channel();
    let task = tokio::spawn(server.run(listeners, async {
        // If the handle that stops it is gone, the server goes on.
        if stopped.await.is_err() {
            std::future::pending::<()>().await;
        }
    }));
    Ok(Running { address, node, cut, requires_tls, stop: Some(stop), task, closed })
}

fn open(
    address: SocketAddr,
    addresses: &[SocketAddr],
    clock: Clock,
    mut options: StartOptions,
) -> Result<(Server, Option<Closed>), StartError> {
    keep_files_private();
    options.server.max_connections = Descriptors::claim().grant(options.server.max_connections);
    // Before the data: a bad file must not leave a directory behind.
    let in_set = options.replica_set.is_some();
    let security = Security::new(options.tls.as_ref(), &options.membership, in_set)?;
    // Members that prove who they are imply clients that do.
    let authentication = options.authentication || options.membership != Membership::Unchecked;
    if authentication && in_set && options.membership == Membership::Unchecked {
        return Err(StartError::MembersUnknown);
    }
    let files = FillableFiles::default();
    let Opened { store, directory, closed } = open_store(options.place, &files)?;
    let seed = match options.seed {
        Some(seed) => seed,
        None => getrandom::u64().map_err(StartError::Random)?,
    };
    let host = match &options.advertise {
        Some(advertised) => advertised.to_string(),
        None => reached_as(address).to_string(),
    };
    let node_options = NodeOptions {
        seed,
        host: host.clone(),
        compressors: COMPRESSORS.map(str::to_owned).to_vec(),
        oplog_bytes: options.replica_set.as_ref().map(|_| options.oplog_bytes),
        authentication,
        member_keys: security.keys.clone(),
        test_commands: options.test_commands,
        max_connections: options.server.max_connections,
        index_prefetch: options.index_prefetch,
        allocator: Some(allocator_name()),
        block: Block(write_turns::block),
        scratch: directory.as_ref().map(|directory| {
            Arc::new(ScratchDirectory::new(directory.join("scratch"))) as Arc<dyn Scratch>
        }),
    };
    let node = Node::open(store, node_options, clock.now()).map_err(|error| {
        match error.code.is_of_disk() {
            true => StartError::System(Box::new(error)),
            false => StartError::Damaged(error),
        }
    })?;
    let node = Arc::new(node);
    let machine = Machine { clock, files };
    let Some(set_name) = options.replica_set else {
        return Server::prepare(node, machine, options.server, security, None)
            .map(|server| (server.watching(directory), closed))
            .map_err(StartError::Prepare);
    };
    let mut own_addresses: Vec<ServerAddress> = host.parse().into_iter().collect();
    own_addresses.extend(format!("localhost:{}", address.port()).parse().ok());
    let bound =
        addresses.iter().filter_map(|address| reached_as(*address).to_string().parse().ok());
    own_addresses.extend(bound);
    own_addresses.extend(options.own_addresses);
    let replica_set = ReplicaSetOptions {
        set_name,
        own_addresses,
        rollback_directory: directory.as_ref().map(|directory| directory.join("rollback")),
    };
    Server::prepare(node, machine, options.server, security, Some(replica_set))
        .map(|server| (server.watching(directory), closed))
        .map_err(StartError::Prepare)
}

/// A store, and the directory that it is in.
struct Opened {
    store: Arc<dyn Store>,
    directory: Option<PathBuf>,
    closed: Option<Closed>,
}

fn open_store(place: Place, files: &FillableFiles) -> Result<Opened, StartError> {
    let Place::Directory(directory) = place else {
        return Ok(Opened { store: Arc::new(ModelStore::new()), directory: None, closed: None });
    };
    let failed = |source| StartError::Open(OpenError::Io { path: directory.clone(), source });
    make_directory(&directory).map_err(failed)?;
    let on_disk: Arc<dyn Files> = Arc::new(files.clone());
    let store = DiskStore::open_on(on_disk, &directory, DiskOptions::default());
    let mut store = store.map_err(not_opened)?;
    // Not before: a directory of something else is refused, and keeps its mode.
    close_to_others(&directory).map_err(failed)?;
    if let Some(torn) = store.torn_tail() {
        tracing::warn!(
            journal = %torn.journal.display(),
            offset = torn.offset,
            "the last record of the journal was not whole, as after a power failure; \
             it was cut off, and nothing that was synced is lost"
        );
    }
    let (open, closed) = oneshot::channel();
    store.drop_at_close(open);
    Ok(Opened { store: Arc::new(store), directory: Some(directory), closed: Some(closed) })
}

/// An engine that the system failed is not a damaged one.
fn not_opened(error: OpenError) -> StartError {
    let OpenError::Engine { directory, source } = &error else { return StartError::Open(error) };
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(source.as_ref());
    while let Some(known) = cause {
        let system = known.downcast_ref::<io::Error>();
        if let Some(system) = system.filter(|system| system.raw_os_error().is_some()) {
            // The engine's own words call the files damaged, which the system did not say.
            let told = format!("{}: {system}", directory.display());
            return StartError::System(Box::new(io::Error::new(system.kind(), told)));
        }
        cause = known.source();
    }
    StartError::Open(error)
}

/// The address by which clients on this machine reach a listener.
fn reached_as(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

impl Running {
    /// Where clients on this machine reach it.
    pub fn address(&self) -> SocketAddr {
        reached_as(self.address)
    }

    /// The member that is served.
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// Cuts a member of a set off from the others, or joins it to them again: requests between
    /// them stand still, and clients are served as before. For drills; nothing for a server that
    /// is in no set.
    pub fn set_cut_off(&self, is_cut: bool) {
        if let Some(cut) = &self.cut {
            cut.set(is_cut);
        }
    }

    /// Whether clients must use TLS.
    pub fn requires_tls(&self) -> bool {
        self.requires_tls
    }

    /// Asks it to hand over and stop, and waits until it has, and until its directory is free.
    ///
    /// # Errors
    ///
    /// If it failed before, or cannot sync what was written.
    pub async fn stop(mut self) -> io::Result<()> {
        if let Some(stop) = self.stop.take() {
            // Ignore send errors: the server has ended already.
            let _ = stop.send(());
        }
        let ended = self.ended().await;
        let Self { node, closed, .. } = self;
        drop(node);
        // Tasks and threads that were told to end keep the store open for a moment.
        if let Some(closed) = closed
            && tokio::time::timeout(MAX_CLOSING, closed).await.is_err()
        {
            tracing::warn!("the data is still in use after the server has ended");
        }
        ended
    }

    /// Waits until it ends by itself: a client ended it, or it failed. Once it has, there is nothing
    /// left to wait for or to stop.
    ///
    /// # Errors
    ///
    /// If it failed.
    pub async fn ended(&mut self) -> io::Result<()> {
        match (&mut self.task).await {
            Ok(result) => result,
            Err(panic) => Err(io::Error::other(panic)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// EIO while the files are read says nothing about what they hold.
    #[test]
    fn a_disk_that_fails_at_the_start_is_not_called_damage() {
        let engine = |source: io::Error| OpenError::Engine {
            directory: PathBuf::from("data"),
            source: Box::new(source),
        };
        const EIO: i32 = 5;
        let failed = not_opened(engine(io::Error::from_raw_os_error(EIO)));
        assert!(matches!(failed, StartError::System(_)));
        let told = failed.to_string();
        assert!(told.contains("check the disk") && !told.contains("restore"), "{told}");
        let damaged = not_opened(engine(io::Error::new(io::ErrorKind::InvalidData, "checksum")));
        assert!(matches!(damaged, StartError::Open(_)), "{damaged}");
    }
}
