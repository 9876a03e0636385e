//! Accepting connections, background work, and the end of both.

use std::future::Future;
use std::io;
use std::num::NonZero;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use quorate_node::{Helpers, Node, Progress};
use quorate_storage::FillableFiles;
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::accepting::{Listeners, accept};
use crate::clock::Clock;
use crate::deadlines::Deadlines;
use crate::dialer::Dialer;
use crate::disk;
use crate::durability::Durability;
use crate::memory::{FreedMemory, LOOK_INTERVAL, wake_workers};
use crate::replica_set::{Cut, ReplicaSet, ReplicaSetOptions, Surroundings};
use crate::security::Security;
use crate::standby::Standby;
use crate::write_gate::{Passage, WriteGate};
use crate::write_turns::WriteTurns;

/// The most connections at once, unless told otherwise.
pub const MAX_CONNECTIONS: usize = 20_000;

/// How long connections may take to finish their command at the end.
const GRACE: Duration = Duration::from_secs(5);

/// How long a member of a set may take to hand over at the end.
const HAND_OVER: Duration = Duration::from_secs(2);

/// How often the log tells how far long work is.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(3);

/// How a server behaves.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Connections beyond this are closed at once.
    pub max_connections: usize,
    /// How long an unacknowledged write may stay out of the disk.
    pub journal_interval: Duration,
    /// How often cursors and sessions time out and garbage is removed.
    pub maintenance_interval: Duration,
    /// How often expired documents are removed.
    pub expiry_interval: Duration,
    /// A client that does not take its reply for this long is cut off.
    pub write_timeout: Duration,
    /// Where logins are required: a client that has not logged in finishes a message within this time,
    /// once it has begun it.
    pub stranger_timeout: Duration,
    /// How long, at the end, clients are told to go elsewhere before their connections close.
    pub quiesce: Duration,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            max_connections: MAX_CONNECTIONS,
            journal_interval: Duration::from_millis(100),
            maintenance_interval: Duration::from_secs(1),
            expiry_interval: Duration::from_secs(60),
            write_timeout: Duration::from_secs(60),
            stranger_timeout: Duration::from_secs(10),
            quiesce: Duration::ZERO,
        }
    }
}

/// Long writes, and as many other long commands, that run at once on threads of their own; others wait for one to end. Below
/// the number of threads that the runtime lends out (512), so that a few are left for its other uses.
const MAX_LONG_COMMANDS: usize = 128;

/// Lends as many threads to long commands as there are processors beside the one that each runs on.
fn helpers() -> Helpers {
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    let permits = Arc::new(Semaphore::new(processors - 1));
    Helpers::new(move |job| {
        let (Ok(permit), Ok(runtime)) =
            (Arc::clone(&permits).try_acquire_owned(), Handle::try_current())
        else {
            return false;
        };
        runtime.spawn_blocking(move || {
            job();
            drop(permit);
        });
        true
    })
}

/// What all connections share.
pub(crate) struct Shared {
    pub(crate) node: Arc<Node>,
    pub(crate) clock: Clock,
    /// The files of the store, whose disk a fail point fills.
    pub(crate) files: FillableFiles,
    pub(crate) durability: Durability,
    /// Permits of commands that run on a thread of their own.
    pub(crate) long_commands: Semaphore,
    /// Those of writes outside of transactions. A write may wait for a transaction while it has one, so that the statements
    /// of transactions, and reads, need none of them.
    pub(crate) long_writes: Semaphore,
    /// Turns of short commands that write.
    pub(crate) writers: WriteTurns,
    /// Threads that long commands borrow.
    pub(crate) helpers: Arc<Helpers>,
    /// What every write passes.
    pub(crate) gate: Arc<WriteGate>,
    /// The time limits of running commands.
    pub(crate) deadlines: Deadlines,
    /// Changes whenever waiting `hello` commands should look again.
    pub(crate) topology: watch::Sender<()>,
    /// The newest commit that waiting commands were told of.
    pub(crate) commits: watch::Sender<u64>,
    /// Changes whenever a command was told to stop.
    pub(crate) kills: watch::Sender<()>,
    /// Counts the step-downs after which clients' connections end.
    pub(crate) farewells: watch::Sender<u64>,
    /// Whether every `hello` is answered with the error that the server is about to end.
    pub(crate) quiescing: AtomicBool,
    /// A client asks for the end of the server. The member hands over first, over connections that are still there.
    pub(crate) end_wanted: Notify,
    /// Becomes true when the server ends.
    pub(crate) ending: watch::Sender<bool>,
    /// The set that this member belongs to.
    pub(crate) replica_set: Option<Arc<ReplicaSet>>,
    pub(crate) security: Arc<Security>,
    pub(crate) write_timeout: Duration,
    pub(crate) stranger_timeout: Duration,
    next_connection: AtomicI64,
}

impl Shared {
    pub(crate) fn next_connection_id(&self) -> i64 {
        self.next_connection.fetch_add(1, Ordering::Relaxed)
    }

    /// Does to the machine and to copying what the fail points say now.
    pub(crate) fn break_as_told(&self) {
        let faults = self.node.machine_faults();
        self.files.set_full(faults.disk_full);
        self.clock.move_calendar(faults.clock_moved);
        if let Some(set) = &self.replica_set {
            set.stop_copying(self.node.copying_is_stopped());
        }
    }
}

/// What fail points may break under a member.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    pub(crate) clock: Clock,
    /// The files of the store.
    pub(crate) files: FillableFiles,
}

/// A member that listens.
pub struct Server {
    shared: Arc<Shared>,
    options: ServerOptions,
    /// The directory whose disk is watched.
    directory: Option<PathBuf>,
}

impl Server {
    /// A server by itself, or for a member of a replica set, which was opened with a history.
    pub(crate) fn prepare(
        node: Arc<Node>,
        machine: Machine,
        options: ServerOptions,
        security: Security,
        replica_set: Option<ReplicaSetOptions>,
    ) -> io::Result<Self> {
        let Machine { clock, files } = machine;
        let security = Arc::new(security);
        let topology = watch::Sender::new(());
        let commits = watch::Sender::new(0);
        let farewells = watch::Sender::new(0);
        let gate = Arc::new(WriteGate::default());
        let standby = Standby::start()?;
        let replica_set = match replica_set {
            Some(set) => {
                let surroundings = Surroundings {
                    dialer: Dialer::new(Arc::clone(&security)),
                    topology: topology.clone(),
                    commits: commits.clone(),
                    farewells: farewells.clone(),
                    gate: Arc::clone(&gate),
                    standby: standby.clone(),
                };
                let set = ReplicaSet::new(Arc::clone(&node), clock.clone(), set, surroundings);
                Some(Arc::new(set.map_err(io::Error::other)?))
            }
            None => None,
        };
        let durability = Durability::start(Arc::clone(&node), options.journal_interval, standby)?;
        let workers = Handle::try_current().map_or(1, |runtime| runtime.metrics().num_workers());
        let shared = Shared {
            node,
            clock,
            files,
            durability,
            long_commands: Semaphore::new(MAX_LONG_COMMANDS),
            long_writes: Semaphore::new(MAX_LONG_COMMANDS),
            writers: WriteTurns::new(workers),
            helpers: Arc::new(helpers()),
            gate,
            deadlines: Deadlines::start()?,
            topology,
            commits,
            kills: watch::Sender::new(()),
            farewells,
            quiescing: AtomicBool::new(false),
            end_wanted: Notify::new(),
            ending: watch::Sender::new(false),
            replica_set,
            security,
            write_timeout: options.write_timeout,
            stranger_timeout: options.stranger_timeout,
            next_connection: AtomicI64::new(1),
        };
        Ok(Self { shared: Arc::new(shared), options, directory: None })
    }

    /// Watches the room on the disk of this directory.
    pub(crate) fn watching(self, directory: Option<PathBuf>) -> Self {
        Self { directory, ..self }
    }

    pub(crate) fn cut(&self) -> Option<Cut> {
        self.shared.replica_set.as_ref().map(|set| set.cut())
    }

    #[cfg(test)]
    pub(crate) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }

    pub(crate) fn node(&self) -> Arc<Node> {
        Arc::clone(&self.shared.node)
    }

    pub(crate) fn requires_tls(&self) -> bool {
        self.shared.security.tls.as_ref().is_some_and(|tls| tls.is_required())
    }

    /// Serves connections until `shutdown` is done or a client asks for it, then lets running
    /// commands finish and syncs what was written. Fails if the last sync fails.
    pub(crate) async fn run(
        self,
        listeners: impl Into<Listeners>,
        shutdown: impl Future<Output = ()>,
    ) -> io::Result<()> {
        let listeners = listeners.into();
        let mut connections = JoinSet::new();
        let background = tokio::spawn(maintain(Arc::clone(&self.shared), self.options.clone()));
        let disk = self
            .directory
            .clone()
            .map(|directory| tokio::spawn(disk::watch(directory, Arc::clone(&self.shared))));
        let reports = tokio::spawn(report_progress(Arc::clone(&self.shared)));
        let streams = tokio::spawn(tell_streams(Arc::clone(&self.shared)));
        let set = self.shared.replica_set.clone();
        let host = set.clone();
        let mut host = tokio::spawn(async move {
            match host {
                Some(host) => host.run().await,
                None => std::future::pending().await,
            }
        });
        let mut failure = None;
        {
            let limit = self.options.max_connections;
            let accepting = accept(&self.shared, limit, &listeners, &mut connections);
            tokio::pin!(accepting);
            tokio::select! {
                () = &mut accepting => {}
                () = shutdown => {}
                () = self.shared.end_wanted.notified() => {}
                ended = &mut host => failure = Some(failure_of(ended)),
            }
            if let (Some(set), None) = (&set, &failure) {
                // Other connections are still answered while a successor is chosen.
                set.shut_down();
                tokio::select! {
                    () = &mut accepting => {}
                    _ = tokio::time::timeout(HAND_OVER, &mut host) => {}
                }
            }
        }
        host.abort();
        drop(listeners);
        // Waiting hellos answer with the news; clients move on before their connections close.
        self.shared.quiescing.store(true, Ordering::SeqCst);
        self.shared.node.raise_topology_version();
        self.shared.topology.send_replace(());
        tokio::time::sleep(self.options.quiesce).await;
        self.shared.ending.send_replace(true);
        background.abort();
        reports.abort();
        streams.abort();
        if let Some(disk) = disk {
            disk.abort();
        }
        // Entries that wait for room wait no longer: the threads end.
        self.shared.gate.end();
        let finished = async { while connections.join_next().await.is_some() {} };
        if tokio::time::timeout(GRACE, finished).await.is_err() {
            tracing::warn!("connections did not end in time and are cut off");
            connections.abort_all();
        }
        let synced = sync_the_last(&self.shared).await;
        // The failure that ended the member is reported before a failed last sync.
        failure.map_or(synced, Err)
    }
}

/// Waits until everything that was written is on the disk.
async fn sync_the_last(shared: &Shared) -> io::Result<()> {
    let (committed, _) = shared.node.durability();
    shared.durability.wait(committed).await.map_err(|error| {
        io::Error::other(format!("the last writes could not be synced: {error}; check the disk"))
    })
}

/// Why a member could not go on.
fn failure_of(ended: Result<Result<(), String>, tokio::task::JoinError>) -> io::Error {
    let why = match ended {
        Ok(Ok(())) => "the replica set host ended".to_owned(),
        Ok(Err(why)) => why,
        Err(panic) => format!("the replica set host failed: {panic}"),
    };
    tracing::error!(why, "this member cannot go on");
    io::Error::other(why)
}

/// Wakes the change streams that have news, once for each move of the commit point, until the task is aborted.
async fn tell_streams(shared: Arc<Shared>) {
    let Some(set) = &shared.replica_set else { return };
    loop {
        set.stream_news().await;
        shared.node.tell_streams();
    }
}

/// Tells how far long work is, such as the building of an index.
async fn report_progress(shared: Arc<Shared>) {
    let mut due = interval(PROGRESS_INTERVAL);
    due.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        due.tick().await;
        for progress in shared.node.progress() {
            let Progress { operation, namespace, done, total } = progress;
            tracing::info!(opid = operation.0, namespace, done, total, "an index is being built");
        }
    }
}

async fn maintain(shared: Arc<Shared>, options: ServerOptions) {
    let mut maintenance = interval(options.maintenance_interval);
    let mut expiry = interval(options.expiry_interval);
    maintenance.set_missed_tick_behavior(MissedTickBehavior::Delay);
    expiry.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut memory = interval(LOOK_INTERVAL);
    memory.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut freed = FreedMemory::default();
    loop {
        let result = tokio::select! {
            _ = maintenance.tick() => aside(&shared, |shared| {
                // What is not done now is done the next time. Writes within the gate may wait for a transaction whose
                // time is over.
                while let Some(_entered) = shared.gate.try_enter_as(Passage::OfOpenTransaction)
                    && shared.node.maintain(shared.clock.now())?
                {}
                Ok(())
            }).await,
            _ = memory.tick() => {
                let is_due;
                (freed, is_due) = aside(&shared, move |shared| {
                    let is_due = freed.look(shared.node.memory().used() as u64);
                    (freed, is_due)
                }).await;
                if is_due {
                    wake_workers();
                }
                Ok(())
            }
            _ = expiry.tick() => aside(&shared, |shared| match shared.gate.try_enter() {
                Some(_entered) => shared.node.remove_expired(shared.clock.now()).map(drop),
                None => Ok(()),
            }).await,
        };
        if let Err(error) = result {
            let error: quorate_node::CommandError = error;
            tracing::error!(%error, "background work failed");
        }
    }
}

/// Runs work that may wait for the disk or for a lock on one of the threads that the runtime keeps for that. A worker that
/// ran it would have to leave its tasks to another thread, a new one as often as not.
async fn aside<T: Send + 'static>(
    shared: &Arc<Shared>,
    work: impl FnOnce(&Shared) -> T + Send + 'static,
) -> T {
    let shared = Arc::clone(shared);
    match tokio::task::spawn_blocking(move || work(&shared)).await {
        Ok(done) => done,
        Err(failed) if failed.is_panic() => std::panic::resume_unwind(failed.into_panic()),
        // The runtime ends, and this task with it.
        Err(_) => std::future::pending().await,
    }
}
