//! The pool of one server as a plain value: no sockets, no tasks, no clock.
//!
//! Follows the Connection Monitoring and Pooling specification ("Connection Pool Behaviors"). The
//! shell in `pool` tells it what happened and drains [`PoolMachine::poll_output`] after each call;
//! events come out in the order in which the specification wants them observed.
//!
//! ```text
//!  pool:        Paused ──ready──▶ Ready ──clear──▶ Paused      any ──close──▶ Closed
//!
//!  connection:  Pending ──established──▶ InUse ──checked in──▶ Available ──▶ InUse …
//!                  │ (for the pool itself: ▶ Available)             │
//!                  └─────────── failed, stale, idle, closed ────────┴──▶ gone
//! ```
//!
//! A caller waits in the queue until it has a connection to itself: an available one, or a pending
//! one made for it. Callers are served in the order of their arrival. The queue has no bound of its
//! own, as the specification asks: there is one entry per caller that waits.

mod members;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use quorate_protocol::{MonotonicTime, ObjectId};
use quorate_server_discovery::PoolGeneration;

use super::event::{CheckOutFailureReason, CloseReason, ConnectionId, PoolEventKind};
use super::options::PoolOptions;
use members::Members;

/// One caller's wish for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Ticket(u64);

/// What the shell must do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Output {
    /// Tell the subscribers.
    Event(PoolEventKind),
    /// Open a connection and shake hands; report with [`PoolMachine::on_established`] or
    /// [`PoolMachine::on_establishment_failed`].
    Establish {
        connection: ConnectionId,
        /// The generation it belongs to.
        generation: PoolGeneration,
    },
    /// Give the caller its connection.
    Grant {
        /// The caller.
        ticket: Ticket,
        connection: ConnectionId,
    },
    /// Tell the caller that there is none.
    Refuse {
        /// The caller.
        ticket: Ticket,
        refusal: Refusal,
    },
    /// Close the socket of a connection that is available or pending. It is not heard of again.
    Close { connection: ConnectionId },
    /// Make the operation on a connection in use fail. It is checked in afterwards as always.
    Interrupt { connection: ConnectionId },
}

/// Why a caller gets no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The pool is closed.
    Closed,
    /// The pool is paused, or was cleared while the caller waited.
    Cleared,
    /// The caller waited too long.
    TimedOut,
    /// Its connection could not be established. The shell knows why.
    NotEstablished,
}

impl Refusal {
    fn reason(self) -> CheckOutFailureReason {
        match self {
            Self::Closed => CheckOutFailureReason::PoolClosed,
            Self::TimedOut => CheckOutFailureReason::Timeout,
            Self::Cleared | Self::NotEstablished => CheckOutFailureReason::ConnectionError,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PoolState {
    /// Nothing may be checked out.
    Paused,
    /// Everything works.
    Ready,
    /// Nothing will ever be checked out again.
    Closed,
}

#[derive(Debug)]
struct Waiter {
    ticket: Ticket,
    since: MonotonicTime,
}

#[derive(Debug)]
enum Stage {
    /// Being established, for a caller or (`None`) for the pool itself.
    Pending {
        wanted_by: Option<Waiter>,
    },
    Available {
        since: MonotonicTime,
    },
    InUse,
}

#[derive(Debug)]
struct Member {
    stage: Stage,
    generation: PoolGeneration,
    service_id: Option<ObjectId>,
    created: MonotonicTime,
}

#[derive(Debug, Default)]
struct Service {
    generation: PoolGeneration,
    connections: usize,
}

impl Member {
    /// Whether it was made before its pool, or its service, was cleared.
    fn is_stale(&self, pool: PoolGeneration, services: &BTreeMap<ObjectId, Service>) -> bool {
        let current = match self.service_id {
            None => pool,
            Some(id) => services.get(&id).map_or(self.generation, |s| s.generation),
        };
        self.generation != current
    }
}

/// The pool of one server.
#[derive(Debug)]
pub(super) struct PoolMachine {
    options: PoolOptions,
    state: PoolState,
    generation: PoolGeneration,
    services: BTreeMap<ObjectId, Service>,
    members: Members,
    /// The available ones, the most recently used last, which is the first to be used again: the
    /// others can grow idle.
    available: VecDeque<ConnectionId>,
    pending: usize,
    queue: VecDeque<Waiter>,
    created: u64,
    tickets: u64,
    /// When the pool may next establish a connection for itself.
    populate_after: MonotonicTime,
    /// When the latest connection was granted.
    latest_grant: MonotonicTime,
    outputs: VecDeque<Output>,
}

impl PoolMachine {
    /// A paused pool.
    pub(super) fn new(options: PoolOptions) -> Self {
        let created = PoolEventKind::PoolCreated { options: Box::new(options.clone()) };
        Self {
            options,
            state: PoolState::Paused,
            generation: PoolGeneration::default(),
            services: BTreeMap::new(),
            members: Members::default(),
            available: VecDeque::new(),
            pending: 0,
            queue: VecDeque::new(),
            created: 0,
            tickets: 0,
            populate_after: MonotonicTime::ZERO,
            latest_grant: MonotonicTime::ZERO,
            outputs: VecDeque::from([Output::Event(created)]),
        }
    }

    /// The next thing to do, in order. Drain it fully after every call.
    pub(super) fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When [`on_tick`](Self::on_tick) has something to do, if nothing else happens before.
    pub(super) fn next_deadline(&self) -> Option<MonotonicTime> {
        if self.options.maintenance_interval.is_none() || self.state == PoolState::Closed {
            return None;
        }
        let idle = self.options.max_idle_time.and_then(|limit| {
            let oldest = self.members.get(*self.available.front()?)?;
            match oldest.stage {
                Stage::Available { since } => Some(since + limit),
                _ => None,
            }
        });
        let populate = self.wants_population().then_some(self.populate_after);
        [idle, populate].into_iter().flatten().min()
    }

    #[cfg(test)]
    pub(super) fn state(&self) -> PoolState {
        self.state
    }

    /// The generation of connections made now.
    pub(super) fn generation(&self) -> PoolGeneration {
        self.generation
    }

    /// The generation of a connection, and the service it leads to.
    pub(super) fn generation_of(
        &self,
        connection: ConnectionId,
    ) -> Option<(PoolGeneration, Option<ObjectId>)> {
        self.members.get(connection).map(|member| (member.generation, member.service_id))
    }

    /// How many connections there are: pending, available and in use.
    pub(super) fn total_connection_count(&self) -> usize {
        self.members.len()
    }

    /// How many connections wait to be used.
    pub(super) fn available_connection_count(&self) -> usize {
        self.available.len()
    }

    /// How many connections are being established.
    pub(super) fn pending_connection_count(&self) -> usize {
        self.pending
    }

    /// A caller wants a connection. The ticket is answered by one `Grant` or `Refuse`.
    pub(super) fn check_out(&mut self, now: MonotonicTime) -> Ticket {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        self.event(PoolEventKind::CheckOutStarted);
        let waiter = Waiter { ticket, since: now };
        match self.state {
            PoolState::Closed => self.refuse(now, waiter, Refusal::Closed),
            PoolState::Paused => self.refuse(now, waiter, Refusal::Cleared),
            PoolState::Ready => {
                self.queue.push_back(waiter);
                self.serve(now);
            }
        }
        ticket
    }

    /// The connection that [`check_out`](Self::check_out) would grant, if there is nothing else to do. `None`
    /// if there is, and then nothing has changed. The only outputs would be the events
    /// `CheckOutStarted` and `CheckedOut`, without a wait: they are left to the shell.
    pub(super) fn check_out_at_once(&mut self, now: MonotonicTime) -> Option<ConnectionId> {
        let busy = !self.queue.is_empty() || !self.outputs.is_empty();
        if self.state != PoolState::Ready || busy || self.options.min_pool_size > 0 {
            return None;
        }
        let connection = *self.available.back()?;
        let member = self.members.get_mut(connection)?;
        if member.is_stale(self.generation, &self.services)
            || has_idled(&member.stage, self.options.max_idle_time, now)
        {
            return None;
        }
        member.stage = Stage::InUse;
        self.available.pop_back();
        self.latest_grant = now;
        Some(connection)
    }

    /// Takes a usable connection back as [`check_in`](Self::check_in) would, if there is nothing else to
    /// do. `false` if there is, and then nothing has changed. The only output would be the event
    /// `CheckedIn`: it is left to the shell. No time is asked for; see
    /// [`check_in_takes_time`](Self::check_in_takes_time).
    pub(super) fn check_in_at_once(
        &mut self,
        since: MonotonicTime,
        connection: ConnectionId,
    ) -> bool {
        let busy = self.check_in_takes_time() || !self.outputs.is_empty();
        if self.state != PoolState::Ready || busy {
            return false;
        }
        let Some(member) = self.members.get_mut(connection) else { return false };
        if member.is_stale(self.generation, &self.services) {
            return false;
        }
        debug_assert!(matches!(member.stage, Stage::InUse), "only what is in use comes back");
        member.stage = Stage::Available { since };
        self.available.push_back(connection);
        true
    }

    /// The caller waited for `waitQueueTimeoutMS`. Returns whether it was still in the queue; one
    /// whose connection is being established has left it, and waits on.
    pub(super) fn on_wait_timeout(&mut self, now: MonotonicTime, ticket: Ticket) -> bool {
        match self.take_from_queue(ticket) {
            Some(waiter) => {
                self.refuse(now, waiter, Refusal::TimedOut);
                true
            }
            None => false,
        }
    }

    /// The caller is gone. A connection that is being established for it goes to the next caller in the queue.
    pub(super) fn on_caller_gone(&mut self, now: MonotonicTime, ticket: Ticket) {
        let waiter = self.take_from_queue(ticket).or_else(|| {
            self.members.iter_mut().find_map(|(_, member)| match &mut member.stage {
                Stage::Pending { wanted_by } => wanted_by.take_if(|by| by.ticket == ticket),
                _ => None,
            })
        });
        if let Some(waiter) = waiter {
            let duration = now.since(waiter.since);
            let reason = CheckOutFailureReason::Timeout;
            self.event(PoolEventKind::CheckOutFailed { reason, duration });
        }
    }

    /// A connection is established. `service_id` is the service that a load balancer led to.
    pub(super) fn on_established(
        &mut self,
        now: MonotonicTime,
        connection: ConnectionId,
        service_id: Option<ObjectId>,
    ) {
        // A connection that was closed meanwhile is not ours any more.
        let Some(member) = self.members.get_mut(connection) else { return };
        let Stage::Pending { wanted_by } = &mut member.stage else { return };
        let wanted_by = wanted_by.take();
        let duration = now.since(member.created);
        self.pending -= 1;
        if let Some(id) = service_id {
            let service = self.services.entry(id).or_default();
            service.connections += 1;
            member.generation = service.generation;
            member.service_id = Some(id);
        }
        // Available before a caller can notice that another may be established: no caller makes a
        // connection while this one is free.
        member.stage = Stage::Available { since: now };
        if self.is_stale(connection) {
            self.close_member(connection, CloseReason::Stale);
            if let Some(waiter) = wanted_by {
                self.refuse(now, waiter, Refusal::Cleared);
            }
        } else {
            self.event(PoolEventKind::ConnectionReady { connection, duration });
            match wanted_by {
                Some(waiter) => self.grant(now, waiter, connection),
                None => self.available.push_back(connection),
            }
        }
        self.serve(now);
    }

    /// A connection could not be established. The caller, if there is one, is refused.
    pub(super) fn on_establishment_failed(&mut self, now: MonotonicTime, connection: ConnectionId) {
        let Some(member) = self.members.get_mut(connection) else { return };
        let Stage::Pending { wanted_by } = &mut member.stage else { return };
        let wanted_by = wanted_by.take();
        self.close_member(connection, CloseReason::Error);
        match wanted_by {
            Some(waiter) => self.refuse(now, waiter, Refusal::NotEstablished),
            None => {
                let pause = self.options.maintenance_interval.unwrap_or_default();
                self.populate_after = now + pause;
            }
        }
        self.serve(now);
    }

    /// Whether a connection that comes back now must be told the time: otherwise the time when it was
    /// checked out will do, and no clock has to be read.
    pub(super) fn check_in_takes_time(&self) -> bool {
        let Self { options, queue, .. } = self;
        options.max_idle_time.is_some() || options.min_pool_size > 0 || !queue.is_empty()
    }

    /// When the latest connection was granted.
    pub(super) fn latest_grant(&self) -> MonotonicTime {
        self.latest_grant
    }

    /// A connection comes back. `usable` is false if it broke or was left in the middle.
    pub(super) fn check_in(&mut self, now: MonotonicTime, connection: ConnectionId, usable: bool) {
        let Some(member) = self.members.get_mut(connection) else { return };
        debug_assert!(matches!(member.stage, Stage::InUse), "only what is in use comes back");
        member.stage = Stage::Available { since: now };
        self.event(PoolEventKind::CheckedIn { connection });
        let perished = if self.state == PoolState::Closed {
            Some(CloseReason::PoolClosed)
        } else if self.is_stale(connection) {
            // Before "error": a connection that was interrupted by a clear is broken as well.
            Some(CloseReason::Stale)
        } else {
            (!usable).then_some(CloseReason::Error)
        };
        match perished {
            Some(reason) => self.close_member(connection, reason),
            None => self.available.push_back(connection),
        }
        self.serve(now);
    }

    /// Marks the pool as ready.
    pub(super) fn ready(&mut self, now: MonotonicTime) {
        if self.state != PoolState::Paused {
            return;
        }
        self.state = PoolState::Ready;
        self.event(PoolEventKind::PoolReady);
        self.populate_after = now;
        self.populate(now);
    }

    /// Makes every connection stale, pauses the pool and refuses waiting callers. `generation` is
    /// that of the connections made from now on; the discovery core counts them.
    pub(super) fn clear(
        &mut self,
        now: MonotonicTime,
        generation: PoolGeneration,
        interrupt_in_use_connections: bool,
    ) {
        if self.state == PoolState::Closed {
            return;
        }
        debug_assert!(generation > self.generation, "generations rise");
        self.generation = generation;
        if self.state == PoolState::Ready {
            self.state = PoolState::Paused;
            let service_id = None;
            self.event(PoolEventKind::PoolCleared { service_id, interrupt_in_use_connections });
        }
        if interrupt_in_use_connections {
            self.interrupt_stale(now);
        }
        while let Some(waiter) = self.queue.pop_front() {
            self.refuse(now, waiter, Refusal::Cleared);
        }
        self.close_perished(now);
    }

    /// Makes the connections of one service stale. The pool stays ready.
    pub(super) fn clear_service(
        &mut self,
        now: MonotonicTime,
        service_id: ObjectId,
        generation: PoolGeneration,
    ) {
        if self.state == PoolState::Closed {
            return;
        }
        self.services.entry(service_id).or_default().generation = generation;
        self.event(PoolEventKind::PoolCleared {
            service_id: Some(service_id),
            interrupt_in_use_connections: false,
        });
        self.close_perished(now);
        self.serve(now);
    }

    /// Closes the pool for good. Connections in use are closed when they are checked in.
    pub(super) fn close(&mut self, now: MonotonicTime) {
        if self.state == PoolState::Closed {
            return;
        }
        self.state = PoolState::Closed;
        let gone: Vec<_> = self.available.iter().copied().collect();
        for connection in gone {
            self.close_member(connection, CloseReason::PoolClosed);
        }
        self.close_pending(now, CloseReason::PoolClosed, Refusal::Closed, |_| true);
        while let Some(waiter) = self.queue.pop_front() {
            self.refuse(now, waiter, Refusal::Closed);
        }
        self.event(PoolEventKind::PoolClosed);
    }

    /// Time passed: closes what has been idle for too long and fills the pool up.
    pub(super) fn on_tick(&mut self, now: MonotonicTime) {
        self.close_perished(now);
        self.serve(now);
    }

    /// Serves callers in their order, then fills the pool up.
    fn serve(&mut self, now: MonotonicTime) {
        if self.state != PoolState::Ready {
            return;
        }
        while !self.queue.is_empty() {
            if let Some(connection) = self.take_available(now) {
                if let Some(waiter) = self.queue.pop_front() {
                    self.grant(now, waiter, connection);
                }
            } else if self.may_create() {
                let wanted_by = self.queue.pop_front();
                self.create(now, wanted_by);
            } else {
                return;
            }
        }
        self.populate(now);
    }

    fn may_create(&self) -> bool {
        self.options.max_pool_size.is_none_or(|max| self.members.len() < max)
            && self.pending < self.options.max_connecting
    }

    /// The most recently used connection that has not perished. Those met that have are closed.
    fn take_available(&mut self, now: MonotonicTime) -> Option<ConnectionId> {
        while let Some(&connection) = self.available.back() {
            match self.perished(now, connection) {
                Some(reason) => self.close_member(connection, reason),
                None => {
                    self.available.pop_back();
                    return Some(connection);
                }
            }
        }
        None
    }

    fn create(&mut self, now: MonotonicTime, wanted_by: Option<Waiter>) {
        self.created += 1;
        let connection = ConnectionId(self.created);
        let generation = self.generation;
        let stage = Stage::Pending { wanted_by };
        self.members
            .insert(connection, Member { stage, generation, service_id: None, created: now });
        self.pending += 1;
        self.event(PoolEventKind::ConnectionCreated { connection });
        self.outputs.push_back(Output::Establish { connection, generation });
    }

    fn wants_population(&self) -> bool {
        self.state == PoolState::Ready
            && self.options.maintenance_interval.is_some()
            && self.members.len() < self.options.min_pool_size
            && self.pending < self.options.max_connecting
            // One at a time: callers come first, and a server that just came back is spared.
            && !self.members.iter().any(|(_, member)| {
                matches!(member.stage, Stage::Pending { wanted_by: None })
            })
    }

    fn populate(&mut self, now: MonotonicTime) {
        if self.wants_population() && now >= self.populate_after {
            self.create(now, None);
        }
    }

    fn grant(&mut self, now: MonotonicTime, waiter: Waiter, connection: ConnectionId) {
        self.latest_grant = now;
        if let Some(member) = self.members.get_mut(connection) {
            member.stage = Stage::InUse;
        }
        let duration = now.since(waiter.since);
        self.event(PoolEventKind::CheckedOut { connection, duration });
        self.outputs.push_back(Output::Grant { ticket: waiter.ticket, connection });
    }

    fn refuse(&mut self, now: MonotonicTime, waiter: Waiter, refusal: Refusal) {
        let duration = now.since(waiter.since);
        self.event(PoolEventKind::CheckOutFailed { reason: refusal.reason(), duration });
        self.outputs.push_back(Output::Refuse { ticket: waiter.ticket, refusal });
    }

    fn take_from_queue(&mut self, ticket: Ticket) -> Option<Waiter> {
        let position = self.queue.iter().position(|waiter| waiter.ticket == ticket)?;
        self.queue.remove(position)
    }

    fn is_stale(&self, connection: ConnectionId) -> bool {
        let Self { members, services, generation, .. } = self;
        members.get(connection).is_none_or(|member| member.is_stale(*generation, services))
    }

    fn perished(&self, now: MonotonicTime, connection: ConnectionId) -> Option<CloseReason> {
        let Some(member) = self.members.get(connection) else { return Some(CloseReason::Stale) };
        if member.is_stale(self.generation, &self.services) {
            return Some(CloseReason::Stale);
        }
        has_idled(&member.stage, self.options.max_idle_time, now).then_some(CloseReason::Idle)
    }

    /// Closes every available connection that has perished: a run of the "background thread".
    fn close_perished(&mut self, now: MonotonicTime) {
        if self.options.maintenance_interval.is_none() {
            return;
        }
        let gone: Vec<_> = self
            .available
            .iter()
            .filter_map(|&connection| Some((connection, self.perished(now, connection)?)))
            .collect();
        for (connection, reason) in gone {
            self.close_member(connection, reason);
        }
    }

    /// Interrupts connections made before this clear: operations fail, pending connections close.
    fn interrupt_stale(&mut self, now: MonotonicTime) {
        let generation = self.generation;
        for (connection, member) in self.members.iter() {
            if matches!(member.stage, Stage::InUse) && member.generation < generation {
                self.outputs.push_back(Output::Interrupt { connection });
            }
        }
        self.close_pending(now, CloseReason::Stale, Refusal::Cleared, |member| {
            member.generation < generation
        });
    }

    fn close_pending(
        &mut self,
        now: MonotonicTime,
        reason: CloseReason,
        refusal: Refusal,
        which: impl Fn(&Member) -> bool,
    ) {
        let mut gone = Vec::new();
        for (connection, member) in self.members.iter_mut() {
            if which(member)
                && let Stage::Pending { wanted_by } = &mut member.stage
            {
                gone.push((connection, wanted_by.take()));
            }
        }
        for (connection, wanted_by) in gone {
            self.close_member(connection, reason);
            if let Some(waiter) = wanted_by {
                self.refuse(now, waiter, refusal);
            }
        }
    }

    /// Removes a connection that is not in use.
    fn close_member(&mut self, connection: ConnectionId, reason: CloseReason) {
        let Some(member) = self.members.remove(connection) else { return };
        match member.stage {
            Stage::Pending { .. } => self.pending -= 1,
            Stage::Available { .. } => self.available.retain(|&other| other != connection),
            Stage::InUse => debug_assert!(false, "what is in use is closed when it comes back"),
        }
        if let Some(id) = member.service_id
            && let Some(service) = self.services.get_mut(&id)
        {
            service.connections -= 1;
            // One that was never cleared is told from a new one by nothing. The count of one that
            // was is kept: the core that counts has not forgotten it either.
            if service.connections == 0 && service.generation == PoolGeneration::default() {
                self.services.remove(&id);
            }
        }
        self.event(PoolEventKind::ConnectionClosed { connection, reason });
        self.outputs.push_back(Output::Close { connection });
    }

    fn event(&mut self, kind: PoolEventKind) {
        self.outputs.push_back(Output::Event(kind));
    }
}

/// Whether a connection has been available for `maxIdleTimeMS`.
fn has_idled(stage: &Stage, limit: Option<Duration>, now: MonotonicTime) -> bool {
    match (stage, limit) {
        (Stage::Available { since }, Some(limit)) => now.since(*since) >= limit,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
