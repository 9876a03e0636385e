//! The pool of one server: the sans-I/O [`PoolMachine`] with sockets, tasks and a clock around it.
//!
//! The machine decides, this shell does: it starts establishments as tasks, keeps the connections
//! that are idle, wakes callers, and emits events in the machine's order. When to mark a pool
//! ready or clear it is decided by the discovery core; how a connection is established, by the type that
//! implements [`Establish`].

mod event;
mod interrupt;
mod machine;
mod options;

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use quorate_protocol::{Lock, MonotonicTime, ObjectId, ServerAddress};
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};

use crate::clock::{Clock, wake_at_deadlines};

pub use event::{CheckOutFailureReason, CloseReason, ConnectionId, PoolEvent, PoolEventKind};
use interrupt::Interrupt;
use machine::{Output, PoolMachine, Refusal, Ticket};
pub use options::{
    DEFAULT_MAINTENANCE_INTERVAL, DEFAULT_MAX_CONNECTING, DEFAULT_MAX_POOL_SIZE, PoolOptions,
    PoolOptionsError,
};
pub use quorate_server_discovery::PoolGeneration;

/// Hears the events of a pool, in order. It is called while the pool is locked: it must return at
/// once and must not call the pool.
pub type PoolEventListener = Arc<dyn Fn(PoolEvent) + Send + Sync>;

/// Hears the events of a pool, in order, as [`PoolEventListener`] does, and may leave them unbuilt.
pub(crate) trait PoolWatcher: Send + Sync {
    /// Every event.
    fn count(&self, _kind: &PoolEventKind) {}

    /// Counts a check-out that did not wait. Whether its events are to be told.
    fn count_at_once(&self) -> bool {
        true
    }

    /// Whether the event that was counted last is to be told.
    fn listens(&self) -> bool {
        true
    }

    fn tell(&self, event: PoolEvent);
}

impl PoolWatcher for PoolEventListener {
    fn tell(&self, event: PoolEvent) {
        self(event);
    }
}

/// Makes connections for a pool.
pub trait Establish: Send + Sync + 'static {
    /// What it makes.
    type Connection: Pooled;
    /// Why it could not.
    type Error: Clone + Send + Sync + fmt::Display + 'static;

    /// Opens a connection, shakes hands and authenticates.
    fn establish(
        &self,
        connection: ConnectionId,
        generation: PoolGeneration,
    ) -> impl Future<Output = Result<Established<Self::Connection>, Self::Error>> + Send;

    /// A connection could not be established, for a caller or in the background. Runs before the
    /// caller gets the error, so that what it decides (clearing the pool) is in force by then.
    fn on_failure(&self, error: &Self::Error, generation: PoolGeneration);
}

/// A connection that a pool can keep.
pub trait Pooled: Send + 'static {
    /// Whether another operation can run on it.
    fn is_usable(&self) -> bool;
}

/// A connection, ready for use.
#[derive(Debug)]
pub struct Established<C> {
    /// The connection.
    pub connection: C,
    /// The service that a load balancer led to.
    pub service_id: Option<ObjectId>,
}

/// The pool of one server. Cheap to clone; all clones are the same pool.
pub struct Pool<E: Establish> {
    shared: Arc<Shared<E>>,
}

impl<E: Establish> Clone for Pool<E> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<E: Establish> fmt::Debug for Pool<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({})", self.shared.address)
    }
}

struct Shared<E: Establish> {
    address: ServerAddress,
    options: PoolOptions,
    clock: Clock,
    /// Kept, because a connection may be dropped, and so checked in, outside of the runtime.
    runtime: Handle,
    establisher: E,
    watcher: Box<dyn PoolWatcher>,
    inner: Lock<Inner<E>>,
    /// Wakes the maintenance task when its next deadline may have changed.
    changed: Arc<Notify>,
}

struct Inner<E: Establish> {
    machine: PoolMachine,
    established: HashMap<ConnectionId, Place<E::Connection>, BuildHasherDefault<IdHasher>>,
    establishing: HashMap<ConnectionId, AbortHandle>,
    /// Why the establishment that just ended failed, until its caller is refused in the same call.
    failure: Option<E::Error>,
    callers: HashMap<Ticket, oneshot::Sender<CheckOutResult<E>>>,
    maintenance: Option<AbortHandle>,
    /// When maintenance wakes. Only an earlier deadline has to tell it: most operations bring none.
    armed: Option<MonotonicTime>,
}

/// The place of an established connection.
struct Place<C> {
    /// `None` while it is in use. Boxed, because it moves with every operation.
    idle: Option<Box<Held<C>>>,
    interrupt: Arc<Interrupt>,
}

/// A connection, and what its operations know of it without asking the pool.
struct Held<C> {
    connection: C,
    id: ConnectionId,
    generation: PoolGeneration,
    service_id: Option<ObjectId>,
    interrupt: Arc<Interrupt>,
}

/// Numbers that a pool gives out itself need no hash that withstands an adversary.
#[derive(Default)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        // Fibonacci hashing: the table looks at the highest and the lowest bits.
        self.0 = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

type CheckOutResult<E> = Result<PooledConnection<E>, CheckOutError<<E as Establish>::Error>>;

/// A caller that was let in.
enum Entry<E: Establish> {
    /// The caller has its answer.
    Answered(CheckOutResult<E>),
    /// The caller waits for its answer.
    Waiting(Ticket, oneshot::Receiver<CheckOutResult<E>>),
}

/// Effects to run after the lock is released, in order.
struct Aftermath<E: Establish> {
    /// Most changes answer one caller, or none: that takes no memory.
    answer: Option<(Ticket, CheckOutResult<E>)>,
    further_answers: Vec<(Ticket, CheckOutResult<E>)>,
    /// Sockets to close; closing is left to their `Drop`.
    closed: Vec<Box<Held<E::Connection>>>,
}

impl<E: Establish> Aftermath<E> {
    fn answer(&mut self, ticket: Ticket, result: CheckOutResult<E>) {
        match &self.answer {
            None => self.answer = Some((ticket, result)),
            Some(_) => self.further_answers.push((ticket, result)),
        }
    }

    /// Takes the answer of one caller out.
    fn take(&mut self, caller: Ticket) -> Option<CheckOutResult<E>> {
        if let Some((_, result)) = self.answer.take_if(|(ticket, _)| *ticket == caller) {
            return Some(result);
        }
        let place = self.further_answers.iter().position(|(ticket, _)| *ticket == caller)?;
        Some(self.further_answers.swap_remove(place).1)
    }
}

impl<E: Establish> Pool<E> {
    /// A paused pool. Does no I/O.
    ///
    /// # Panics
    ///
    /// Outside of a runtime.
    pub fn new(
        address: ServerAddress,
        options: PoolOptions,
        clock: Clock,
        establisher: E,
        listener: PoolEventListener,
    ) -> Self {
        let watcher = Box::new(listener);
        Self::within(&Handle::current(), address, options, clock, establisher, watcher)
    }

    /// As [`new`](Self::new), with the runtime that its tasks run on.
    pub(crate) fn within(
        runtime: &Handle,
        address: ServerAddress,
        options: PoolOptions,
        clock: Clock,
        establisher: E,
        watcher: Box<dyn PoolWatcher>,
    ) -> Self {
        let needs_task = options.maintenance_interval.is_some()
            && (options.min_pool_size > 0 || options.max_idle_time.is_some());
        let inner = Inner {
            machine: PoolMachine::new(options.clone()),
            established: HashMap::default(),
            establishing: HashMap::new(),
            failure: None,
            callers: HashMap::new(),
            maintenance: None,
            armed: None,
        };
        let shared = Arc::new(Shared {
            address,
            options,
            clock,
            runtime: runtime.clone(),
            establisher,
            watcher,
            inner: Lock::new(inner),
            changed: Arc::new(Notify::new()),
        });
        if needs_task {
            let (owner, changed) = (Arc::downgrade(&shared), Arc::clone(&shared.changed));
            let task = wake_at_deadlines(owner, changed, Shared::arm, Shared::tick);
            let task = shared.runtime.spawn(task);
            shared.inner.lock().maintenance = Some(task.abort_handle());
        }
        shared.act(|_| ());
        Self { shared }
    }

    /// The server.
    pub fn address(&self) -> &ServerAddress {
        &self.shared.address
    }

    /// The generation of connections made now.
    pub fn generation(&self) -> PoolGeneration {
        self.shared.inner.lock().machine.generation()
    }

    /// The counts that monitoring shows.
    pub fn counts(&self) -> PoolCounts {
        let inner = self.shared.inner.lock();
        PoolCounts {
            total: inner.machine.total_connection_count(),
            available: inner.machine.available_connection_count(),
            pending: inner.machine.pending_connection_count(),
            waiting: inner.callers.len(),
        }
    }

    /// The connection that [`check_out`](Self::check_out) would give at once, if one is idle and there is nothing else to do.
    /// `None` changes nothing.
    pub(crate) fn check_out_idle(&self) -> Option<PooledConnection<E>> {
        let now = self.shared.clock.now();
        self.shared.idle(&mut self.shared.inner.lock(), now)
    }

    /// A connection for the caller alone, which goes back when it is dropped.
    ///
    /// # Errors
    ///
    /// If the pool is paused, cleared or closed, time runs out, or the connection cannot be
    /// established.
    pub async fn check_out(&self) -> CheckOutResult<E> {
        let (ticket, mut answer) = match self.shared.act_for_caller() {
            Entry::Answered(result) => return result,
            Entry::Waiting(ticket, answer) => (ticket, answer),
        };
        // From here on the caller may go away at any time.
        let mut waiting = Waiting { shared: &self.shared, ticket: Some(ticket) };
        let result = match self.shared.options.wait_queue_timeout {
            None => (&mut answer).await,
            Some(limit) => match timeout(limit, &mut answer).await {
                Ok(result) => result,
                Err(_) => {
                    self.shared.act(|inner| {
                        let now = self.shared.clock.now();
                        inner.machine.on_wait_timeout(now, ticket);
                    });
                    // Refused just now, or its connection is being established.
                    answer.await
                }
            },
        };
        waiting.ticket = None;
        // The sender is dropped unused only when the pool itself is gone.
        result.unwrap_or_else(|_| Err(self.shared.refusal_error(Refusal::Closed)))
    }

    /// Marks the pool as ready.
    pub fn ready(&self) {
        self.shared.act(|inner| inner.machine.ready(self.shared.clock.now()));
    }

    /// Makes every connection stale and pauses the pool. Connections made from now on are of this
    /// generation.
    pub fn clear(&self, generation: PoolGeneration, interrupt_in_use_connections: bool) {
        let now = self.shared.clock.now();
        self.shared.act(|inner| {
            inner.machine.clear(now, generation, interrupt_in_use_connections);
        });
    }

    /// Makes the connections of one service behind a load balancer stale.
    pub fn clear_service(&self, service_id: ObjectId, generation: PoolGeneration) {
        let now = self.shared.clock.now();
        self.shared.act(|inner| inner.machine.clear_service(now, service_id, generation));
    }

    /// Closes the pool. Connections in use are closed when they come back.
    pub fn close(&self) {
        self.shared.act(|inner| {
            inner.machine.close(self.shared.clock.now());
            if let Some(task) = inner.maintenance.take() {
                task.abort();
            }
        });
    }
}

/// How many connections a pool has, and how many callers wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct PoolCounts {
    /// Pending, available and in use.
    pub total: usize,
    /// Waiting to be used.
    pub available: usize,
    /// Being established.
    pub pending: usize,
    /// Callers without a connection.
    pub waiting: usize,
}

/// Tells the machine when a caller gives up.
struct Waiting<'a, E: Establish> {
    shared: &'a Arc<Shared<E>>,
    ticket: Option<Ticket>,
}

impl<E: Establish> Drop for Waiting<'_, E> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            let now = self.shared.clock.now();
            self.shared.act(|inner| {
                inner.callers.remove(&ticket);
                inner.machine.on_caller_gone(now, ticket);
            });
        }
    }
}

impl<E: Establish> Shared<E> {
    /// The machine's next deadline, noted so that an earlier one wakes the timer.
    fn arm(&self) -> Option<Instant> {
        let mut inner = self.inner.lock();
        inner.armed = inner.machine.next_deadline();
        inner.armed.map(|deadline| self.clock.instant(deadline))
    }

    fn tick(self: &Arc<Self>) {
        self.act(|inner| inner.machine.on_tick(self.clock.now()));
    }

    /// Changes the machine, does what it then asks for, and answers callers.
    fn act(self: &Arc<Self>, change: impl FnOnce(&mut Inner<E>)) {
        let aftermath = {
            let mut inner = self.inner.lock();
            change(&mut inner);
            self.drain(&mut inner)
        };
        self.finish(aftermath);
    }

    /// Lets a caller in, and returns its answer if there is one already.
    fn act_for_caller(self: &Arc<Self>) -> Entry<E> {
        let now = self.clock.now();
        let mut inner = self.inner.lock();
        if let Some(pooled) = self.idle(&mut inner, now) {
            return Entry::Answered(Ok(pooled));
        }
        let own = inner.machine.check_out(now);
        let mut aftermath = self.drain(&mut inner);
        let entry = match aftermath.take(own) {
            Some(answer) => Entry::Answered(answer),
            None => {
                let (sender, answer) = oneshot::channel();
                inner.callers.insert(own, sender);
                Entry::Waiting(own, answer)
            }
        };
        drop(inner);
        self.finish(aftermath);
        entry
    }

    /// An idle connection, if there is nothing else to do.
    fn idle(
        self: &Arc<Self>,
        inner: &mut Inner<E>,
        now: MonotonicTime,
    ) -> Option<PooledConnection<E>> {
        let id = inner.machine.check_out_at_once(now)?;
        if self.watcher.count_at_once() {
            // Told first: a listener that panics must not find a connection that is to be checked in.
            self.tell(inner, PoolEventKind::CheckOutStarted);
            let duration = Duration::ZERO;
            self.tell(inner, PoolEventKind::CheckedOut { connection: id, duration });
        }
        self.take_idle(inner, id)
    }

    fn emit(&self, inner: &Inner<E>, kind: PoolEventKind) {
        self.watcher.count(&kind);
        if self.watcher.listens() {
            self.tell(inner, kind);
        }
    }

    #[cold]
    fn tell(&self, inner: &Inner<E>, kind: PoolEventKind) {
        let failed = inner.failure.as_ref().filter(|_| kind.is_failure());
        let error = failed.map(ToString::to_string);
        self.watcher.tell(PoolEvent { address: self.address.clone(), kind, error });
    }

    fn drain(self: &Arc<Self>, inner: &mut Inner<E>) -> Aftermath<E> {
        let mut aftermath =
            Aftermath { answer: None, further_answers: Vec::new(), closed: Vec::new() };
        while let Some(output) = inner.machine.poll_output() {
            match output {
                Output::Event(kind) => self.emit(inner, kind),
                Output::Establish { connection, generation } => {
                    let task =
                        self.runtime.spawn(establish(Arc::clone(self), connection, generation));
                    inner.establishing.insert(connection, task.abort_handle());
                }
                Output::Grant { ticket, connection } => {
                    if let Some(pooled) = self.take_idle(inner, connection) {
                        aftermath.answer(ticket, Ok(pooled));
                    }
                }
                Output::Refuse { ticket, refusal } => {
                    let failure = inner.failure.clone();
                    let error = match failure.filter(|_| refusal == Refusal::NotEstablished) {
                        Some(error) => CheckOutError::NotEstablished(error),
                        None => self.refusal_error(refusal),
                    };
                    aftermath.answer(ticket, Err(error));
                }
                Output::Close { connection } => {
                    let place = inner.established.remove(&connection);
                    aftermath.closed.extend(place.and_then(|place| place.idle));
                    if let Some(task) = inner.establishing.remove(&connection) {
                        task.abort();
                    }
                }
                Output::Interrupt { connection } => {
                    if let Some(place) = inner.established.get(&connection) {
                        place.interrupt.fire();
                    }
                }
            }
        }
        inner.failure = None;
        let next = inner.machine.next_deadline();
        if next.is_some_and(|next| inner.armed.is_none_or(|armed| next < armed)) {
            inner.armed = next;
            self.changed.notify_one();
        }
        aftermath
    }

    fn take_idle(
        self: &Arc<Self>,
        inner: &mut Inner<E>,
        id: ConnectionId,
    ) -> Option<PooledConnection<E>> {
        let held = inner.established.get_mut(&id)?.idle.take();
        let since = inner.machine.latest_grant();
        held.is_some().then(|| PooledConnection { held, since, shared: Arc::clone(self) })
    }

    fn finish(&self, aftermath: Aftermath<E>) {
        drop(aftermath.closed);
        for (ticket, answer) in aftermath.answer.into_iter().chain(aftermath.further_answers) {
            let caller = self.inner.lock().callers.remove(&ticket);
            // A caller that is gone drops the connection, which checks it in.
            match caller {
                Some(caller) => drop(caller.send(answer)),
                None => drop(answer),
            }
        }
    }

    fn refusal_error(&self, refusal: Refusal) -> CheckOutError<E::Error> {
        let address = self.address.clone();
        match refusal {
            Refusal::Closed => CheckOutError::PoolClosed { address },
            Refusal::TimedOut => CheckOutError::TimedOut { address },
            Refusal::Cleared | Refusal::NotEstablished => CheckOutError::PoolCleared { address },
        }
    }
}

/// Establishes one connection and reports to the machine.
async fn establish<E: Establish>(
    shared: Arc<Shared<E>>,
    id: ConnectionId,
    generation: PoolGeneration,
) {
    let result = shared.establisher.establish(id, generation).await;
    let now = shared.clock.now();
    match result {
        Ok(Established { connection, service_id }) => shared.act(|inner| {
            // One that was closed meanwhile is dropped right here.
            if inner.establishing.remove(&id).is_some() {
                inner.machine.on_established(now, id, service_id);
                // One that is stale by now is closed with the outputs that follow.
                let told = inner.machine.generation_of(id);
                let (generation, service_id) = told.unwrap_or((generation, service_id));
                let interrupt = Arc::<Interrupt>::default();
                let own = Arc::clone(&interrupt);
                let held = Held { connection, id, generation, service_id, interrupt: own };
                inner.established.insert(id, Place { idle: Some(Box::new(held)), interrupt });
            }
        }),
        Err(error) => {
            let aftermath = {
                let mut inner = shared.inner.lock();
                if inner.establishing.remove(&id).is_none() {
                    return;
                }
                inner.failure = Some(error.clone());
                inner.machine.on_establishment_failed(now, id);
                shared.drain(&mut inner)
            };
            shared.establisher.on_failure(&error, generation);
            shared.finish(aftermath);
        }
    }
}

/// A connection that is checked out. Dropping it checks it in; if it was left in the middle of an
/// operation, it is closed.
pub struct PooledConnection<E: Establish> {
    /// `None` only while it is being dropped.
    held: Option<Box<Held<E::Connection>>>,
    /// When it was checked out.
    since: MonotonicTime,
    shared: Arc<Shared<E>>,
}

impl<E: Establish> PooledConnection<E> {
    /// Its number in the pool.
    pub fn id(&self) -> ConnectionId {
        self.held().id
    }

    /// When it was checked out.
    pub(crate) fn since(&self) -> MonotonicTime {
        self.since
    }

    fn held(&self) -> &Held<E::Connection> {
        self.held.as_ref().expect("the connection is taken out only by drop")
    }

    /// The server.
    pub fn address(&self) -> &ServerAddress {
        &self.shared.address
    }

    /// The pool's generation when it was made.
    pub fn generation(&self) -> PoolGeneration {
        self.held().generation
    }

    /// The service that a load balancer led to.
    pub fn service_id(&self) -> Option<ObjectId> {
        self.held().service_id
    }

    /// Runs an operation on the connection, giving it up if the pool is cleared with
    /// `interruptInUseConnections`.
    ///
    /// # Errors
    ///
    /// [`Interrupted`] if it was given up. The connection is closed when it is dropped.
    pub async fn run<T>(
        &mut self,
        operation: impl AsyncFnOnce(&mut E::Connection) -> T,
    ) -> Result<T, Interrupted> {
        let result = match self.held.as_deref_mut() {
            Some(Held { connection, interrupt, .. }) => {
                interrupt.unless_fired(operation(connection)).await
            }
            None => None,
        };
        result.ok_or_else(|| Interrupted { address: self.shared.address.clone() })
    }

    /// As [`run`](Self::run), one poll at a time. `waits` is false before the first.
    pub(crate) fn poll_run<T>(
        &mut self,
        waits: &mut bool,
        context: &mut Context<'_>,
        work: impl FnOnce(&mut E::Connection, &mut Context<'_>) -> Poll<T>,
    ) -> Poll<Result<T, Interrupted>> {
        let result = match self.held.as_deref_mut() {
            Some(Held { connection, interrupt, .. }) => {
                ready!(interrupt.poll(waits, context, |context| work(connection, context)))
            }
            None => None,
        };
        Poll::Ready(result.ok_or_else(|| Interrupted { address: self.shared.address.clone() }))
    }
}

impl<E: Establish> Deref for PooledConnection<E> {
    type Target = E::Connection;

    fn deref(&self) -> &E::Connection {
        &self.held().connection
    }
}

impl<E: Establish> DerefMut for PooledConnection<E> {
    fn deref_mut(&mut self) -> &mut E::Connection {
        let held = self.held.as_mut().expect("the connection is taken out only by drop");
        &mut held.connection
    }
}

impl<E: Establish> fmt::Debug for PooledConnection<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PooledConnection({} to {})", self.held().id, self.shared.address)
    }
}

impl<E: Establish> Drop for PooledConnection<E> {
    fn drop(&mut self) {
        let Some(held) = self.held.take() else { return };
        let id = held.id;
        let usable = held.connection.is_usable() && !held.interrupt.has_fired();
        let mut inner = self.shared.inner.lock();
        if let Some(place) = inner.established.get_mut(&id) {
            place.idle = Some(held);
        }
        if usable && inner.machine.check_in_at_once(self.since, id) {
            return self.shared.emit(&inner, PoolEventKind::CheckedIn { connection: id });
        }
        let now = match inner.machine.check_in_takes_time() {
            true => self.shared.clock.now(),
            false => self.since,
        };
        inner.machine.check_in(now, id, usable);
        let aftermath = self.shared.drain(&mut inner);
        drop(inner);
        self.shared.finish(aftermath);
    }
}

/// Why no connection could be had.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckOutError<E: fmt::Display> {
    /// The pool is closed: the client is shut down, or the server left the deployment.
    ///
    /// The specification prescribes the beginning of this text.
    #[error(
        "Attempted to check out a connection from closed connection pool of {address}; the client \
         is shut down, or the server left the deployment"
    )]
    PoolClosed {
        /// The server.
        address: ServerAddress,
    },
    /// The pool is paused because the server failed a check, or was cleared meanwhile. Try again;
    /// this says nothing new about the server.
    #[error("the connection pool of {address} was cleared after an error; try again")]
    PoolCleared {
        /// The server.
        address: ServerAddress,
    },
    /// `waitQueueTimeoutMS` passed. The specification prescribes the beginning of this text.
    #[error(
        "Timed out while checking out a connection from connection pool of {address}; \
         raise maxPoolSize or waitQueueTimeoutMS, or run fewer operations at once"
    )]
    TimedOut {
        /// The server.
        address: ServerAddress,
    },
    /// The connection could not be established.
    #[error("{0}")]
    NotEstablished(E),
}

/// The operation was given up because the server's monitor lost the server. Try again.
///
/// The specification prescribes this text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Connection to {address} interrupted due to server monitor timeout")]
pub struct Interrupted {
    /// The server.
    pub address: ServerAddress,
}

#[cfg(test)]
mod tests;
