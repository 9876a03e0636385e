//! The tokio shell around the discovery core.
//!
//! Owns the one [`Topology`] of a client, and does what it says in the order in which it says it:
//! publishes descriptions, emits events, starts and cancels checks, opens, readies, clears and
//! closes pools. It decides nothing itself. All inputs go through [`Discovery::handle`], which
//! returns only when everything they cause has been started: an operation that failed finds the
//! topology updated before it tries again.
//!
//! Locks are taken in one order, the core's before a pool's, and never held across an await.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use quorate_protocol::{HelloCommand, Lock, MonotonicTime, ObjectId, ServerAddress};
use quorate_server_discovery::{
    CheckId, CheckKind, DiscoveryEvent, DiscoveryOptions, Input, MonitorCommand, OptionsError,
    Output, PoolCommand, RecordingStart, SelectionRequest, ServerDescription, Topology,
    TopologyDescription, TopologyId, TopologyType,
};
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::clock::{Clock, wake_at_deadlines};
use crate::command_event::CommandEvent;
use crate::connection::Connection;
use crate::establish::ServerEstablisher;
use crate::handshake::Handshake;
use crate::listeners::{Listeners, call_out};
use crate::logging;
use crate::metrics::{Counters, Metrics, ServerCounters, ServerTable as ServerCounterTable};
use crate::monitor::{self, Check};
use crate::net::{Connector, Stream};
use crate::pool::{Pool, PoolEvent, PoolEventKind, PoolGeneration, PoolOptions, PoolWatcher};
use crate::tap::{OptionalTap, Tap};

/// Something that happened in a client.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ClientEvent {
    /// In its view of the deployment.
    Discovery(DiscoveryEvent),
    /// In one of its pools.
    Pool(PoolEvent),
    /// To one of its commands.
    Command(CommandEvent),
}

/// Hears the events of a client, in order. It is called while the client's state is locked: it
/// must return at once and must not call the client. If it panics over an event of discovery or of a
/// pool, the client goes on; over a command, the operation panics.
pub type EventListener = Arc<dyn Fn(ClientEvent) + Send + Sync>;

/// How connections are made.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Opens streams.
    pub(crate) connector: Connector,
    /// Says hello.
    pub(crate) handshake: Handshake,
    /// `connectTimeoutMS`.
    pub(crate) connect_timeout: Option<Duration>,
    /// The options of every pool.
    pub(crate) pool_options: PoolOptions,
}

/// A server that operations can use.
#[derive(Debug)]
pub(crate) struct ServerHandle {
    pool: Pool<ServerEstablisher>,
    operations: AtomicU64,
}

impl ServerHandle {
    pub(crate) fn pool(&self) -> &Pool<ServerEstablisher> {
        &self.pool
    }

    /// How many operations are running on it.
    pub(crate) fn operation_count(&self) -> u64 {
        self.operations.load(Ordering::Relaxed)
    }

    /// Counts an operation until the guard is dropped.
    pub(crate) fn begin_operation(&self) -> OperationGuard<'_> {
        self.operations.fetch_add(1, Ordering::Relaxed);
        OperationGuard(self)
    }
}

/// Counts one running operation.
#[derive(Debug)]
pub(crate) struct OperationGuard<'a>(&'a ServerHandle);

impl Drop for OperationGuard<'_> {
    fn drop(&mut self) {
        self.0.operations.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A server, and where operations on it run.
type Usable = (Arc<ServerDescription>, Arc<ServerHandle>);

/// What the client believes, and the server that most operations go to.
pub(crate) struct View {
    description: Arc<TopologyDescription>,
    /// The only server that takes writes, which operations use without a lookup. `None` if no server or
    /// several take writes.
    writable: Option<Usable>,
}

impl View {
    pub(crate) fn description(&self) -> &Arc<TopologyDescription> {
        &self.description
    }

    /// The only server that takes writes, if there is one.
    pub(crate) fn writable(&self) -> Option<&ServerDescription> {
        self.writable.as_ref().map(|(server, _)| &**server)
    }
}

/// The server that an attempt goes to. Holds no more than the view if that is the one of most
/// operations: every count of references is shared by all callers.
pub(crate) struct Selected {
    view: Arc<View>,
    way: Way,
}

/// How operations reach a server.
pub(crate) enum Way {
    /// It is the one of the view that takes writes.
    Writable,
    /// Another one.
    Other(Arc<ServerDescription>, Arc<ServerHandle>),
}

impl Selected {
    /// A server of this view.
    pub(crate) fn new(view: Arc<View>, way: Way) -> Self {
        Self { view, way }
    }

    pub(crate) fn description(&self) -> &TopologyDescription {
        &self.view.description
    }

    pub(crate) fn server(&self) -> &ServerDescription {
        match &self.way {
            Way::Writable => &self.writable().0,
            Way::Other(server, _) => server,
        }
    }

    pub(crate) fn handle(&self) -> &ServerHandle {
        match &self.way {
            Way::Writable => &self.writable().1,
            Way::Other(_, handle) => handle,
        }
    }

    fn writable(&self) -> &Usable {
        self.view.writable.as_ref().expect("the way leads to the server that takes writes")
    }
}

/// Tells the topologies of this process apart.
static TOPOLOGIES: AtomicU64 = AtomicU64::new(1);

type ServerTable = BTreeMap<ServerAddress, Arc<ServerHandle>>;

/// How many parts the table of servers has. Each change copies one part: with 1,000 servers that
/// are discovered one after the other, copying the whole table each time would cost a million
/// entries.
const TABLE_PARTS: usize = 64;

/// The servers that operations can use, read without a lock.
struct Servers {
    parts: [ArcSwap<ServerTable>; TABLE_PARTS],
}

impl Servers {
    fn new() -> Self {
        Self { parts: std::array::from_fn(|_| ArcSwap::default()) }
    }

    fn part(&self, address: &ServerAddress) -> &ArcSwap<ServerTable> {
        // FNV-1a: addresses differ in their last characters.
        let hash = address.as_str().bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        &self.parts[(hash % TABLE_PARTS as u64) as usize]
    }

    fn get(&self, address: &ServerAddress) -> Option<Arc<ServerHandle>> {
        self.part(address).load().get(address).cloned()
    }

    fn operation_count(&self, address: &ServerAddress) -> u64 {
        self.part(address).load().get(address).map_or(0, |server| server.operation_count())
    }

    /// Changes the part of one server. Only called under the lock of the state, so that no change is
    /// lost.
    fn change<T>(&self, address: &ServerAddress, change: impl FnOnce(&mut ServerTable) -> T) -> T {
        let part = self.part(address);
        let mut table = ServerTable::clone(&part.load());
        let result = change(&mut table);
        part.store(Arc::new(table));
        result
    }
}

/// A client's view of a deployment, alive.
pub(crate) struct Discovery {
    id: TopologyId,
    clock: Clock,
    runtime: Handle,
    settings: Settings,
    listeners: Arc<Listeners>,
    tap: OptionalTap,
    counters: Counters,
    state: Lock<State>,
    published: ArcSwap<View>,
    servers: Servers,
    /// Changes whenever a description is published.
    revision: watch::Sender<u64>,
    /// Wakes the timer when the next deadline may have changed.
    deadline_changed: Arc<Notify>,
    me: Weak<Discovery>,
}

struct State {
    topology: Topology,
    monitors: BTreeMap<ServerAddress, MonitorState>,
    counted: ServerCounterTable,
    timer: Option<AbortHandle>,
    /// When the timer wakes. Only an earlier deadline has to tell it.
    armed: Option<MonotonicTime>,
    /// The check whose answer the core is being told, and its task, which makes the server's next
    /// check as well: most replies are followed by one, and a task for each would cost more than
    /// the reply.
    answering: Option<(ServerAddress, AbortHandle)>,
    /// The next check of that task.
    continued: Option<(CheckId, Check)>,
    /// Cloned into every task, so that closing can wait until the last one is gone.
    alive: Option<mpsc::Sender<Infallible>>,
    all_gone: Option<mpsc::Receiver<Infallible>>,
}

/// The connections and running checks of one server's monitor.
#[derive(Default)]
struct MonitorState {
    check: Option<(CheckId, AbortHandle)>,
    connection: Option<Connection<Stream>>,
    measurement: Option<(CheckId, AbortHandle)>,
    measuring_connection: Option<Connection<Stream>>,
}

impl MonitorState {
    fn cancel_check(&mut self) {
        if let Some((_, task)) = self.check.take() {
            task.abort();
        }
        self.connection = None;
    }

    fn stop_measuring(&mut self) {
        if let Some((_, task)) = self.measurement.take() {
            task.abort();
        }
        self.measuring_connection = None;
    }
}

impl Drop for MonitorState {
    fn drop(&mut self) {
        self.cancel_check();
        self.stop_measuring();
    }
}

impl fmt::Debug for Discovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Discovery({})", self.published.load().description)
    }
}

impl Discovery {
    /// Starts watching a deployment. Does no I/O itself: the tasks that it starts do. Fails if the
    /// options contradict each other.
    ///
    /// # Panics
    ///
    /// Outside of a runtime.
    pub(crate) fn start(
        options: &DiscoveryOptions,
        settings: Settings,
        seed: u64,
        listeners: Arc<Listeners>,
        tap: Option<Arc<dyn Tap>>,
    ) -> Result<Arc<Self>, OptionsError> {
        let clock = Clock::start();
        let id = TopologyId(TOPOLOGIES.fetch_add(1, Ordering::Relaxed));
        let start = RecordingStart { options: options.clone(), id, seed, at: clock.began() };
        let topology = start.topology()?;
        if let Some(tap) = &tap {
            tap.on_start(&start);
        }
        Ok(Self::begin(topology, clock, settings, listeners, tap))
    }

    /// The same with a core of the caller's, made at the time when the clock began. The tap is not
    /// told the beginning, which the caller knows.
    ///
    /// # Panics
    ///
    /// Outside of a runtime.
    pub(crate) fn begin(
        topology: Topology,
        clock: Clock,
        settings: Settings,
        listeners: Arc<Listeners>,
        tap: Option<Arc<dyn Tap>>,
    ) -> Arc<Self> {
        // Nothing is ever sent: the channel closes when the last task is gone.
        let (alive, all_gone) = mpsc::channel(1);
        let discovery = Arc::new_cyclic(|me| Self {
            id: topology.id(),
            clock,
            runtime: Handle::current(),
            settings,
            listeners,
            tap: OptionalTap(tap),
            counters: Counters::default(),
            published: ArcSwap::from_pointee(View {
                description: Arc::clone(topology.description()),
                writable: None,
            }),
            state: Lock::new(State {
                topology,
                monitors: BTreeMap::new(),
                counted: ServerCounterTable::default(),
                timer: None,
                armed: None,
                answering: None,
                continued: None,
                alive: Some(alive),
                all_gone: Some(all_gone),
            }),
            servers: Servers::new(),
            revision: watch::Sender::new(0),
            deadline_changed: Arc::new(Notify::new()),
            me: me.clone(),
        });
        let changed = Arc::clone(&discovery.deadline_changed);
        let owner = Weak::clone(&discovery.me);
        let timer =
            wake_at_deadlines(owner, changed, Self::arm, |discovery| discovery.tick_if_due());
        let timer = discovery.runtime.spawn(timer);
        let mut state = discovery.state.lock();
        state.timer = Some(timer.abort_handle());
        discovery.drain(&mut state, clock.began());
        drop(state);
        discovery
    }

    /// Tells the core something and does all that follows from it.
    pub(crate) fn handle(&self, input: Input) {
        let mut state = self.state.lock();
        self.tell_core(&mut state, input);
    }

    /// What the client believes now. Takes no lock.
    pub(crate) fn description(&self) -> Arc<TopologyDescription> {
        Arc::clone(&self.published.load().description)
    }

    /// The same, to select a server from. Takes no lock.
    pub(crate) fn view(&self) -> Arc<View> {
        self.published.load_full()
    }

    /// How operations reach a server of a view; `None` if it cannot be used.
    pub(crate) fn way_to(&self, view: &View, server: &Arc<ServerDescription>) -> Option<Way> {
        match view.writable.as_ref().is_some_and(|(known, _)| Arc::ptr_eq(known, server)) {
            true => Some(Way::Writable),
            false => Some(Way::Other(Arc::clone(server), self.server(server.address())?)),
        }
    }

    /// Makes a description the one that operations see. The pools of its servers are open.
    fn publish(&self, description: Arc<TopologyDescription>) {
        let writable = match description.topology_type() {
            // Operations are spread over all routers.
            TopologyType::Sharded => None,
            _ => description.select_with(&SelectionRequest::WRITE, || 0, |_| 0).ok().flatten(),
        };
        let writable =
            writable.and_then(|server| Some((Arc::clone(server), self.server(server.address())?)));
        self.published.store(Arc::new(View { description, writable }));
        self.revision.send_modify(|revision| *revision += 1);
    }

    /// Tells when a description is published.
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.revision.subscribe()
    }

    /// A server that operations can use; `None` if it has no pool (any more). Takes no lock.
    pub(crate) fn server(&self, address: &ServerAddress) -> Option<Arc<ServerHandle>> {
        self.servers.get(address)
    }

    /// The generation of the connections that are made to a service behind a load balancer now.
    pub(crate) fn generation_of(
        &self,
        address: &ServerAddress,
        service: ObjectId,
    ) -> Option<PoolGeneration> {
        self.state.lock().topology.pool_generation(address, Some(service))
    }

    /// How many operations are running on a server.
    pub(crate) fn operation_count(&self, address: &ServerAddress) -> u64 {
        self.servers.operation_count(address)
    }

    /// What log messages call this view.
    pub(crate) fn topology_id(&self) -> TopologyId {
        self.id
    }

    /// What was counted so far.
    pub(crate) fn metrics(&self) -> Metrics {
        let description = self.description();
        Metrics::take(&self.counters, &self.state.lock().counted, &description, self)
    }

    /// The subscribers to events.
    pub(crate) fn listeners(&self) -> &Listeners {
        &self.listeners
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The clock of everything here.
    pub(crate) fn clock(&self) -> Clock {
        self.clock
    }

    /// How connections are made.
    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Closes every monitor, pool and idle socket, and returns when their tasks are gone.
    pub(crate) async fn close(&self) {
        self.shut_down();
        let all_gone = self.state.lock().all_gone.take();
        if let Some(mut all_gone) = all_gone {
            // Nothing is ever sent: this waits for the last clone of the sender to go.
            let _ = all_gone.recv().await;
        }
    }

    /// The same without waiting.
    pub(crate) fn shut_down(&self) {
        self.handle(Input::Close);
        let mut state = self.state.lock();
        state.monitors.clear();
        state.alive = None;
        if let Some(timer) = state.timer.take() {
            timer.abort();
        }
        drop(state);
        // Waiting operations must hear that no other description will come.
        self.revision.send_modify(|revision| *revision += 1);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state.lock().alive.is_none()
    }

    /// Runs something in the background of this client. Closing does not wait for it.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(work);
    }

    pub(crate) fn alive(&self) -> Option<mpsc::Sender<Infallible>> {
        self.state.lock().alive.clone()
    }

    /// The one way into the core.
    fn tell_core(&self, state: &mut State, input: Input) {
        // Read under the lock, so that time never goes back for the core.
        let now = self.clock.now();
        call_out(|| self.tap.input(now, &input));
        state.topology.handle(now, input);
        self.drain(state, now);
    }

    /// When the timer is to wake.
    fn arm(&self) -> Option<Instant> {
        let mut state = self.state.lock();
        state.armed = state.topology.next_deadline();
        state.armed.map(|deadline| self.clock.instant(deadline))
    }

    /// The deadline that the timer slept for may have moved on meanwhile.
    fn tick_if_due(&self) {
        let mut state = self.state.lock();
        let now = self.clock.now();
        if state.topology.next_deadline().is_some_and(|deadline| deadline <= now) {
            self.tell_core(&mut state, Input::Tick);
        }
    }

    fn drain(&self, state: &mut State, now: MonotonicTime) {
        while let Some(output) = state.topology.poll_output() {
            match output {
                Output::Publish(description) => self.publish(description),
                Output::Event(event) => {
                    state.counted.on_event(&event, &self.counters);
                    call_out(|| logging::discovery(self.id, &event));
                    call_out(|| self.tap.event(now, &event));
                    call_out(|| self.listeners.tell(ClientEvent::Discovery(event)));
                }
                Output::Monitor { server, command } => self.command(state, server, command),
                Output::Pool { server, command } => self.command_pool(state, &server, command),
            }
        }
        let next = state.topology.next_deadline();
        if next.is_some_and(|next| state.armed.is_none_or(|armed| next < armed)) {
            state.armed = next;
            self.deadline_changed.notify_one();
        }
    }

    fn command(&self, state: &mut State, server: ServerAddress, command: MonitorCommand) {
        let alive = state.alive.clone();
        match command {
            MonitorCommand::Start => {
                state.monitors.insert(server, MonitorState::default());
            }
            MonitorCommand::Stop => {
                state.monitors.remove(&server);
            }
            MonitorCommand::Cancel => {
                if let Some(monitor) = state.monitors.get_mut(&server) {
                    monitor.cancel_check();
                }
            }
            MonitorCommand::StopMeasuring => {
                if let Some(monitor) = state.monitors.get_mut(&server) {
                    monitor.stop_measuring();
                }
            }
            MonitorCommand::Check { check, kind, hello, timeout, .. } => {
                let (Some(me), Some(monitor)) =
                    (self.me.upgrade(), state.monitors.get_mut(&server))
                else {
                    return;
                };
                let connection = monitor.connection.take().filter(|_| kind != CheckKind::Connect);
                let work = Check { kind, hello, limit: timeout, connection };
                match state.answering.take_if(|(answering, _)| *answering == server) {
                    Some((_, task)) => {
                        state.continued = Some((check, work));
                        monitor.check = Some((check, task));
                    }
                    None => {
                        let task = self.runtime.spawn(run_check(me, server, check, work, alive));
                        monitor.check = Some((check, task.abort_handle()));
                    }
                }
            }
            MonitorCommand::MeasureRoundTrip { check, hello, timeout } => {
                let (Some(me), Some(monitor)) =
                    (self.me.upgrade(), state.monitors.get_mut(&server))
                else {
                    return;
                };
                let connection = monitor.measuring_connection.take();
                let work = Measurement { check, hello, limit: timeout, connection };
                let task = self.runtime.spawn(run_measurement(me, server, work, alive));
                monitor.measurement = Some((check, task.abort_handle()));
            }
        }
    }

    fn command_pool(&self, state: &mut State, server: &ServerAddress, command: PoolCommand) {
        match command {
            PoolCommand::Open => {
                let watcher = ClientPoolWatcher {
                    topology: self.id,
                    counted: Arc::clone(state.counted.of(server)),
                    listeners: Arc::clone(&self.listeners),
                };
                let pool = Pool::within(
                    &self.runtime,
                    server.clone(),
                    self.settings.pool_options.clone(),
                    self.clock,
                    ServerEstablisher::new(server.clone(), Weak::clone(&self.me)),
                    Box::new(watcher),
                );
                let handle = Arc::new(ServerHandle { pool, operations: AtomicU64::new(0) });
                self.servers.change(server, |table| table.insert(server.clone(), handle));
            }
            PoolCommand::MarkReady => {
                if let Some(handle) = self.server(server) {
                    handle.pool.ready();
                }
            }
            PoolCommand::Clear { generation, service_id, interrupt_in_use } => {
                if let Some(handle) = self.server(server) {
                    match service_id {
                        Some(service) => handle.pool.clear_service(service, generation),
                        None => handle.pool.clear(generation, interrupt_in_use),
                    }
                }
            }
            PoolCommand::Close => {
                if let Some(handle) = self.servers.change(server, |table| table.remove(server)) {
                    handle.pool.close();
                }
            }
        }
    }

    /// Takes the connection of an answered check back, and tells the core; unless the core no longer waits for
    /// the answer any more, in which case the connection is closed. Returns the server's next check
    /// if it is to be made at once.
    fn finish_check(
        &self,
        server: &ServerAddress,
        check: CheckId,
        connection: Option<Connection<Stream>>,
        input: Input,
    ) -> Option<(CheckId, Check)> {
        let mut state = self.state.lock();
        let monitor = state.monitors.get_mut(server)?;
        let (_, task) = monitor.check.take_if(|(current, _)| *current == check)?;
        monitor.connection = connection;
        state.answering = Some((server.clone(), task));
        self.tell_core(&mut state, input);
        state.answering = None;
        let continued = state.continued.take();
        // Skip checks that the same step cancelled.
        let current = state.monitors.get(server)?.check.as_ref()?.0;
        continued.filter(|(next, _)| *next == current)
    }

    fn finish_measurement(
        &self,
        server: ServerAddress,
        check: CheckId,
        measured: Option<(Connection<Stream>, Duration)>,
    ) {
        let mut state = self.state.lock();
        let Some(monitor) = state.monitors.get_mut(&server) else { return };
        if monitor.measurement.as_ref().is_none_or(|(current, _)| *current != check) {
            return;
        }
        monitor.measurement = None;
        let (connection, round_trip) = measured.unzip();
        monitor.measuring_connection = connection;
        self.tell_core(&mut state, Input::RoundTripMeasured { server, check, round_trip });
    }
}

/// Counts the events of one pool, and passes them on where they are heard.
struct ClientPoolWatcher {
    topology: TopologyId,
    counted: Arc<ServerCounters>,
    listeners: Arc<Listeners>,
}

impl PoolWatcher for ClientPoolWatcher {
    fn count(&self, kind: &PoolEventKind) {
        self.counted.on_pool_event(kind);
    }

    fn count_at_once(&self) -> bool {
        self.counted.check_out_at_once();
        self.listens()
    }

    fn listens(&self) -> bool {
        self.listeners.any() || logging::wants_pools()
    }

    fn tell(&self, event: PoolEvent) {
        call_out(|| logging::pool(self.topology, &event));
        call_out(|| self.listeners.tell(ClientEvent::Pool(event)));
    }
}

/// Makes the checks of one server for as long as each follows the answer to the last. Ends when the
/// core wants to wait, and when it is aborted.
async fn run_check(
    discovery: Arc<Discovery>,
    server: ServerAddress,
    mut check: CheckId,
    mut work: Check,
    _alive: Option<mpsc::Sender<Infallible>>,
) {
    loop {
        let (connection, input) = match monitor::check(&discovery.settings, &server, work).await {
            Ok(checked) => {
                let input = Input::HelloReceived {
                    server: server.clone(),
                    check,
                    reply: Arc::new(checked.reply),
                    round_trip: checked.round_trip,
                    more_to_come: checked.connection.is_streaming(),
                };
                (Some(checked.connection), input)
            }
            Err(failure) => (None, Input::CheckFailed { server: server.clone(), check, failure }),
        };
        match discovery.finish_check(&server, check, connection, input) {
            Some(next) => (check, work) = next,
            None => return,
        }
    }
}

struct Measurement {
    check: CheckId,
    hello: HelloCommand,
    limit: Option<Duration>,
    connection: Option<Connection<Stream>>,
}

async fn run_measurement(
    discovery: Arc<Discovery>,
    server: ServerAddress,
    work: Measurement,
    _alive: Option<mpsc::Sender<Infallible>>,
) {
    let Measurement { check, hello, limit, connection } = work;
    let measured = monitor::measure(&discovery.settings, &server, hello, limit, connection).await;
    discovery.finish_measurement(server, check, measured);
}
