//! The client: what an application holds.
//!
//! Owns the parts and their life: it starts discovery, keeps sessions and the cluster time, and
//! closes everything. The path of an operation is in `operation`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use bson::raw::{RawArrayBuf, RawDocument, RawDocumentBuf, cstr};
use bson::rawdoc;
use quorate_client_session::SessionOptions;
use quorate_connection_string::{ConnectionString, Seeds};
use quorate_protocol::{Lock, ReadPreference, SplitMix64};
use quorate_server_discovery::{TopologyDescription, TopologyId};
use quorate_wire::{AppendSome, CommandFields, find_field};
use tokio::sync::broadcast;
use tokio::time::timeout;

use crate::clock::Clock;
use crate::command_event::{CommandEvent, OperationId};
use crate::discovery::{ClientEvent, Discovery, Settings};
use crate::error::{ClientError, Error};
use crate::handshake::Handshake;
use crate::listeners::Listeners;
use crate::logging;
use crate::metadata::Environment;
use crate::metrics::Metrics;
use crate::net::{Connector, ConnectorOptions};
use crate::operation::{Deadline, Operation, Target};
use crate::options::ClientOptions;
use crate::pool::PoolCounts;
use crate::session::{Session, SessionPool};
use crate::tls::Tls;

/// How many events a slow listener of [`Client::events`] may lag behind before it misses some.
pub const EVENT_BUFFER: usize = 1024;

/// How many sessions one `endSessions` names.
const MAX_ENDED_SESSIONS: usize = 10_000;

/// How long closing may take to say goodbye to the sessions.
const END_SESSIONS_LIMIT: Duration = Duration::from_secs(1);

/// A client of one deployment. Cheap to clone; all clones are the same client, which closes when the
/// last one is dropped.
#[derive(Clone, Debug)]
pub struct Client {
    inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) options: ClientOptions,
    pub(crate) discovery: Arc<Discovery>,
    pub(crate) sessions: Arc<SessionPool>,
    pub(crate) cluster_time: ClusterTime,
    random: AtomicU64,
    requests: AtomicU64,
    operations: AtomicU64,
}

impl Client {
    /// A client for a `mongodb://` string. Returns at once: servers are contacted in the background.
    /// [`connect`](Self::connect) takes `mongodb+srv://` as well.
    ///
    /// # Errors
    ///
    /// If the string cannot be read or contradicts itself.
    ///
    /// # Panics
    ///
    /// Outside of a runtime.
    pub fn with_uri(uri: &str) -> Result<Self, ClientError> {
        let string = ConnectionString::parse(uri)?;
        if matches!(string.seeds(), Seeds::Srv(_)) {
            return Err(ClientError::UnresolvedSrv);
        }
        Self::with_options(ClientOptions::from_connection_string(&string))
    }

    /// A client with these options.
    ///
    /// # Errors
    ///
    /// If the options contradict each other, or name files that cannot be read.
    ///
    /// # Panics
    ///
    /// Outside of a runtime.
    pub fn with_options(options: ClientOptions) -> Result<Self, ClientError> {
        options.pool.check()?;
        if options.proxy_host.is_some() {
            return Err(ClientError::Unsupported("proxyHost (SOCKS5)"));
        }
        let environment = Environment::of_this_process();
        let mut discovery_options = options.discovery.clone();
        discovery_options.function_platform = environment.function_platform();
        discovery_options.stable_api = options.server_api.is_some();
        let settings = settings(&options, &environment)?;
        let listeners = Arc::new(Listeners::new(options.listener.clone(), EVENT_BUFFER));
        let seed = random_seed()?;
        let tap = options.tap.clone();
        let discovery = Discovery::start(&discovery_options, settings, seed, listeners, tap)?;
        let inner = Inner {
            options,
            discovery,
            sessions: Arc::default(),
            cluster_time: ClusterTime::default(),
            random: AtomicU64::new(seed),
            requests: AtomicU64::new(1),
            operations: AtomicU64::new(1),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// What the client believes about the deployment now.
    pub fn topology(&self) -> Arc<TopologyDescription> {
        self.inner.discovery.description()
    }

    /// The clock of the times in [`topology`](Self::topology).
    pub fn clock(&self) -> Clock {
        self.inner.discovery.clock()
    }

    /// What log messages call this client's view of the deployment.
    pub fn topology_id(&self) -> TopologyId {
        self.inner.discovery.topology_id()
    }

    /// The events from now on. A listener that lags more than [`EVENT_BUFFER`] events behind misses
    /// some, and is told how many.
    pub fn events(&self) -> broadcast::Receiver<ClientEvent> {
        self.inner.discovery.listeners().subscribe()
    }

    /// What was counted so far; [`Metrics::to_prometheus`] puts it into words.
    pub fn metrics(&self) -> Metrics {
        self.inner.discovery.metrics()
    }

    /// The counts of every pool, by server.
    pub fn pools(&self) -> Vec<(quorate_protocol::ServerAddress, PoolCounts)> {
        let description = self.topology();
        let servers = description.servers().iter();
        let pools = servers.filter_map(|server| {
            let handle = self.inner.discovery.server(server.address())?;
            Some((server.address().clone(), handle.pool().counts()))
        });
        pools.collect()
    }

    /// A session whose reads follow its earlier operations.
    pub fn start_session(&self) -> Session {
        match self.start_session_with(SessionOptions::default()) {
            Ok(session) => session,
            Err(error) => unreachable!("the default options do not contradict each other: {error}"),
        }
    }

    /// A session with these options.
    ///
    /// # Errors
    ///
    /// If they contradict each other.
    pub fn start_session_with(&self, options: SessionOptions) -> Result<Session, Error> {
        Session::explicit(self.clone(), options)
    }

    /// Runs a command on the primary (or whatever takes writes) and returns the reply.
    ///
    /// The command is sent as it is, once, with `$db`, the session and the like added.
    ///
    /// # Errors
    ///
    /// If no server is found in time, the connection fails, or the server refuses.
    pub async fn run_command(
        &self,
        database: &str,
        command: &RawDocument,
    ) -> Result<RawDocumentBuf, Error> {
        self.run_command_with(database, command, &ReadPreference::PRIMARY, None).await
    }

    /// Runs a command on a server that a read preference admits, perhaps in a session.
    ///
    /// # Errors
    ///
    /// As [`run_command`](Self::run_command).
    pub async fn run_command_with(
        &self,
        database: &str,
        command: &RawDocument,
        read_preference: &ReadPreference,
        session: Option<&mut Session>,
    ) -> Result<RawDocumentBuf, Error> {
        let operation = Operation {
            target: Target::Read(read_preference.clone()),
            deadline: self.inner.options.timeout.map(Deadline::after),
            ..Operation::new(database, command)
        };
        self.inner
            .execute(&operation, session.map(|session| &*session))
            .await
            .map(|reply| reply.body)
    }

    /// Ends the sessions, closes every monitor, pool and idle socket, and returns when their tasks
    /// are gone. Operations that still run fail or finish, and their sockets close with them.
    pub async fn close(&self) {
        // Best effort: a server forgets sessions by itself.
        let _ = timeout(END_SESSIONS_LIMIT, self.end_sessions()).await;
        self.inner.discovery.close().await;
    }

    async fn end_sessions(&self) {
        let ids = self.inner.sessions.drain();
        let known = self.topology().has_readable_server(Some(&ReadPreference::new(
            quorate_protocol::ReadPreferenceMode::PrimaryPreferred,
        )));
        if !known {
            return;
        }
        for batch in ids.chunks(MAX_ENDED_SESSIONS) {
            let ids = RawArrayBuf::from_iter(batch.iter().cloned());
            let command = rawdoc! { "endSessions": ids };
            let preference =
                ReadPreference::new(quorate_protocol::ReadPreferenceMode::PrimaryPreferred);
            let _ = self.run_command_with("admin", &command, &preference, None).await;
        }
    }

    pub(crate) fn inner(&self) -> &Inner {
        &self.inner
    }
}

/// A number from the operating system, from which the client's random choices follow.
pub(crate) fn random_seed() -> Result<u64, ClientError> {
    let mut seed = [0; 8];
    getrandom::fill(&mut seed).map_err(|_| ClientError::NoRandomness)?;
    Ok(u64::from_le_bytes(seed))
}

fn settings(options: &ClientOptions, environment: &Environment) -> Result<Settings, ClientError> {
    let connect_timeout = options.discovery.connect_timeout;
    let connector = Connector::new(ConnectorOptions {
        connect_timeout,
        host_map: options.host_map.clone(),
        tls: options.tls.as_ref().map(Tls::new).transpose()?,
    });
    let handshake = Handshake {
        compressors: options.compressors.clone(),
        zlib_level: options.zlib_level,
        ..Handshake::of(options, environment)?
    };
    Ok(Settings { connector, handshake, connect_timeout, pool_options: options.pool.clone() })
}

impl Inner {
    /// Whether command events have a subscriber.
    pub(crate) fn has_listener(&self) -> bool {
        self.discovery.listeners().any() || logging::wants_commands()
    }

    /// Tells the subscribers about a command. Holds no lock.
    pub(crate) fn tell_listeners(&self, event: CommandEvent) {
        let longest = self.options.logged_document_length;
        logging::command(self.discovery.topology_id(), longest, &event);
        self.discovery.listeners().tell(ClientEvent::Command(event));
    }

    /// What the events of the next command have in common.
    pub(crate) fn next_request_id(&self) -> u64 {
        self.requests.fetch_add(1, Ordering::Relaxed)
    }

    /// What the events and log messages of the next operation have in common.
    pub(crate) fn next_operation_id(&self) -> OperationId {
        OperationId(self.operations.fetch_add(1, Ordering::Relaxed))
    }

    /// A number that is evenly spread over `[0, 1)`. Fifty-three bits fill the fraction of a double.
    pub(crate) fn random_fraction(&self) -> f64 {
        (self.random_bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Sixty-four bits that need not be secret, only evenly spread.
    pub(crate) fn random_bits(&self) -> u64 {
        let state = self.random.fetch_add(SplitMix64::STEP, Ordering::Relaxed);
        SplitMix64::new(state).next_u64()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.discovery.shut_down();
    }
}

/// The latest `$clusterTime` that any server has told, which goes along with every command.
#[derive(Debug, Default)]
pub(crate) struct ClusterTime {
    latest: ArcSwapOption<RawDocumentBuf>,
    /// Held while comparing and replacing.
    changing: Lock<()>,
}

impl ClusterTime {
    /// Adds it to a command, if one is known.
    pub(crate) fn append_to(&self, body: &mut impl CommandFields) {
        body.append_some(cstr!("$clusterTime"), self.latest.load().as_deref());
    }

    pub(crate) fn advance(&self, told: &RawDocument) {
        let Some(time) = time_of(told) else { return };
        let newer = || {
            let latest = self.latest.load();
            latest.as_ref().and_then(|own| time_of(own)).is_none_or(|own| own < time)
        };
        // Most replies bring nothing newer; they take no lock.
        if newer() {
            let _changing = self.changing.lock();
            if newer() {
                self.latest.store(Some(Arc::new(told.to_owned())));
            }
        }
    }
}

fn time_of(cluster_time: &RawDocument) -> Option<bson::Timestamp> {
    find_field(cluster_time, "clusterTime")?.timestamp()
}
