//! The host of a member: carries out what the [`Replica`] orders, one turn at a time (`inbox`).
//!
//! Which entries follow which, what clients see and when the gate for writes opens is decided in
//! `quorate-member`. Here are the sockets, threads and clocks that it lacks.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use quorate_member::{CloneProgress, Order, Replica, SetView};
use quorate_node::{Author, Node, Now, Standing};
use quorate_protocol::{
    MemberState, MonotonicTime, OpTime, OpTimeAndWallTime, ServerAddress, Term,
};
use quorate_replication::{
    Change, Event, FetchId, Input, MemberOptions, NoopReason, Recovered, Request, RequestToken,
    Ticket, WaiterId, WriteConcernError,
};
use tokio::runtime::Handle;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::time::Instant;

use super::fetching::{Fetch, Wanted};
use super::initial_sync::InitialSync;
use super::log_sync::Syncer;
use super::peers::Peers;
use super::source::Followers;
use super::threads::{Applier, Worker};
use super::write_concern::Acknowledgement;
use super::{Answer, Inbox, Message, RoleView, copying, fetching};
use crate::clock::Clock;
use crate::dialer::Dialer;
use crate::write_gate::WriteGate;

/// How long handing over may take when the process ends.
const HAND_OVER: Duration = Duration::from_secs(1);

/// What a host is made of.
pub(super) struct Parts {
    pub(super) clone_progress: CloneProgress,
    pub(super) node: Arc<Node>,
    pub(super) clock: Clock,
    pub(super) dialer: Dialer,
    pub(super) member_options: MemberOptions,
    pub(super) rollback_directory: Option<PathBuf>,
    pub(super) recovered: Recovered,
    pub(super) inbox: Inbox,
    pub(super) view: watch::Sender<SetView>,
    pub(super) role: watch::Sender<RoleView>,
    pub(super) followers: Arc<Followers>,
    pub(super) standing: watch::Sender<Standing>,
    /// The commit point alone, for tasks that wait for nothing else.
    pub(super) committed: watch::Sender<OpTimeAndWallTime>,
    /// Tells that the commit point has moved while change streams wait.
    pub(super) streams: Arc<Notify>,
    pub(super) syncer: Syncer,
    pub(super) topology: watch::Sender<()>,
    /// Wakes cursors that wait for documents.
    pub(super) commits: watch::Sender<u64>,
    pub(super) farewells: watch::Sender<u64>,
    pub(super) gate: Arc<WriteGate>,
}

/// Publishes how the log stands: all of it, and the commit point.
fn tell_standing(node: &Node, parts: &Parts) {
    let standing = parts.standing.clone();
    let (committed, streams) = (parts.committed.clone(), Arc::clone(&parts.streams));
    let known = Arc::downgrade(&parts.node);
    node.on_standing(Box::new(move |now| {
        standing.send_replace(*now);
        let point = now.commit_point;
        let moved = committed.send_if_modified(|known| std::mem::replace(known, point) != point);
        // A task that is woken for each write would cost it more than its change of data does.
        if moved && known.upgrade().is_some_and(|node| node.has_waiting_streams()) {
            streams.notify_one();
        }
    }));
}

/// Tells of entries that were appended: the commands that wait for commits, the followers, and the
/// syncing thread.
fn tell_appends(node: &Node, parts: &Parts) {
    let (commits, followers) = (parts.commits.clone(), Arc::clone(&parts.followers));
    let syncer = parts.syncer.clone();
    let known = Arc::downgrade(&parts.node);
    node.on_append(Box::new(move |_, author| {
        let Some(node) = known.upgrade() else { return };
        if commits.receiver_count() > 0 {
            commits.send_replace(node.durability().0.as_u64());
        }
        // The followers come first: sending, applying and syncing there takes longer than a sync
        // here.
        followers.push(&node);
        if author == Author::Here {
            syncer.log_has_grown();
        }
    }));
}

/// Runs a member until its process ends or it cannot go on.
pub(super) async fn run(parts: Parts) -> Result<(), String> {
    let thread_failed = |error: std::io::Error| format!("a thread cannot be started: {error}");
    let Parts { node, inbox, .. } = &parts;
    let worker = |name| Worker::start(name, Arc::clone(node), inbox.clone());
    let gate = Arc::clone(&parts.gate);
    let directory = parts.rollback_directory.clone();
    let applier =
        Applier::start(Arc::clone(node), inbox.clone(), parts.clock.clone(), gate, directory);
    let applier = applier.map_err(thread_failed)?;
    let persister = worker("persist").map_err(thread_failed)?;
    let syncer = parts.syncer.clone();
    syncer.start(Arc::clone(node), inbox.clone()).map_err(thread_failed)?;
    tell_standing(node, &parts);
    let failing = syncer.clone();
    node.on_disk_failure(Box::new(move |why| failing.fail(why)));
    tell_appends(node, &parts);
    let now = parts.clock.now();
    let seed = now.wall.as_millis().unsigned_abs() ^ (u64::from(std::process::id()) << 32);
    let (options, progress) = (parts.member_options.clone(), parts.clone_progress.clone());
    let recovered = parts.recovered.clone();
    let replica = Replica::new(options, recovered, Arc::clone(node), progress, seed, now);
    let inbox = parts.inbox.clone();
    let (followers, known) = (Arc::clone(&parts.followers), Arc::clone(&parts.node));
    let host = Host {
        replica,
        runtime: Handle::current(),
        messages: VecDeque::new(),
        armed: None,
        rearmed: None,
        ending_at: None,
        ended: false,
        node: parts.node,
        clock: parts.clock,
        dialer: parts.dialer.clone(),
        peers: Peers::new(parts.inbox.clone(), parts.dialer),
        inbox: parts.inbox,
        view: parts.view,
        is_view_new: false,
        followers: parts.followers,
        role: parts.role,
        topology: parts.topology,
        farewells: parts.farewells,
        gate: parts.gate,
        applier,
        persister,
        syncer,
        answers: BTreeMap::new(),
        waiters: BTreeMap::new(),
        fetch: None,
        buffer: fetching::buffer(),
        initial_sync: InitialSync::default(),
        next_number: 1,
        broken: None,
        asked_successor: false,
    };
    tokio::select! {
        end = inbox.run(host) => end,
        never = followers.keep_pace(&known) => match never {},
    }
}

/// A commit point that moved, or a change of the member's role.
pub(super) struct FollowerNews(Arc<Followers>, Arc<Node>);

impl FollowerNews {
    /// Sends what followers were kept waiting for.
    pub(super) fn push(self) {
        self.0.push(&self.1);
    }
}

pub(super) struct Host {
    replica: Replica<OwnedSemaphorePermit>,
    /// Where tasks run, whichever thread has the turn that starts them.
    pub(super) runtime: Handle,
    /// Room for messages, used again in every turn.
    pub(super) messages: VecDeque<Message>,
    /// The deadline that the host's own task knows.
    armed: Option<MonotonicTime>,
    /// An earlier one that it has yet to be told.
    rearmed: Option<Instant>,
    /// When the process ends at the latest.
    ending_at: Option<MonotonicTime>,
    ended: bool,
    pub(super) node: Arc<Node>,
    pub(super) clock: Clock,
    pub(super) dialer: Dialer,
    peers: Peers,
    pub(super) inbox: Inbox,
    view: watch::Sender<SetView>,
    /// Whether followers may have to hear of it.
    is_view_new: bool,
    followers: Arc<Followers>,
    role: watch::Sender<RoleView>,
    topology: watch::Sender<()>,
    farewells: watch::Sender<u64>,
    gate: Arc<WriteGate>,
    pub(super) applier: Applier,
    persister: Worker,
    syncer: Syncer,
    answers: BTreeMap<RequestToken, oneshot::Sender<Answer>>,
    waiters: BTreeMap<WaiterId, oneshot::Sender<Result<(), WriteConcernError>>>,
    /// The thread that reads a source's stream; it ends when this is dropped.
    fetch: Option<Fetch>,
    buffer: Arc<Semaphore>,
    pub(super) initial_sync: InitialSync,
    next_number: u64,
    broken: Option<String>,
    /// Whether another member was asked to take over.
    asked_successor: bool,
}

impl Host {
    /// Runs what is due of the member. Returns how the host ends, if it does.
    pub(super) fn settle(&mut self, now: Now) -> Option<Result<(), String>> {
        if self.ended {
            return None;
        }
        self.replica.tick(now);
        self.carry_out_all();
        let now = now.monotonic;
        let ending = self.ending_at.is_some() || self.broken.is_some();
        let handing_over = |at: MonotonicTime| at > now && !self.replica.has_handed_over();
        if !ending || self.ending_at.is_some_and(handing_over) {
            self.arm(now);
            return None;
        }
        let end = self.broken.take().map_or(Ok(()), Err);
        self.end();
        Some(end)
    }

    /// Has the host's own task woken for the next deadline, if it would sleep longer.
    fn arm(&mut self, now: MonotonicTime) {
        let deadlines = self.replica.next_deadline().into_iter().chain(self.ending_at);
        let Some(next) = deadlines.min() else { return };
        if self.armed.is_none_or(|armed| next < armed) {
            self.armed = Some(next);
            self.rearmed = Some(Instant::now() + next.since(now));
        }
    }

    /// What followers are to hear of when the turn is over, if there is something.
    pub(super) fn take_news(&mut self) -> Option<FollowerNews> {
        let is_new = std::mem::take(&mut self.is_view_new);
        is_new.then(|| FollowerNews(Arc::clone(&self.followers), Arc::clone(&self.node)))
    }

    /// When to wake the host's own task, if that has changed.
    pub(super) fn rearm(&mut self) -> Option<Instant> {
        self.rearmed.take()
    }

    fn end(&mut self) {
        self.ended = true;
        self.syncer.end();
        self.replica.end(self.clock.now());
        self.carry_out_all();
    }

    /// The time on both clocks.
    pub(super) fn now(&self) -> Now {
        self.clock.now()
    }

    pub(super) fn take(&mut self, message: Message, now: Now) {
        if self.ended {
            return;
        }
        match message {
            Message::Input(input) => {
                if matches!(input, Input::ShutdownWanted) {
                    self.ending_at = Some(now.monotonic + HAND_OVER);
                }
                self.replica.handle(now, input);
            }
            Message::Asked(request, answer) => {
                if matches!(request, Request::Reconfig { .. }) {
                    self.tell_default_write_concern();
                }
                let token = RequestToken(self.number());
                self.answers.insert(token, answer);
                self.replica.handle(now, Input::RequestReceived { token, request });
            }
            Message::Wanted(Acknowledgement { waiter, op_time, concern, answer }) => {
                self.waiters.insert(waiter, answer);
                let input = Input::AcknowledgementWanted { waiter, op_time, concern };
                self.replica.handle_waiter(now, input);
            }
            Message::Abandoned(waiter) => {
                if self.waiters.remove(&waiter).is_some() {
                    let input = Input::AcknowledgementAbandoned { waiter };
                    self.replica.handle_waiter(now, input);
                }
            }
            Message::Fetched(fetched) => self.replica.handle_fetched(now, fetched),
            Message::Inspect(look) => {
                self.replica.log_moved(now);
                look(self.replica.status(), self.clock.now());
            }
            Message::LogMoved => self.replica.log_moved(now),
            // Deadlines are checked after every message.
            Message::Tick => self.armed = None,
            Message::Broken(why) => self.break_off(why),
        }
        self.carry_out_all();
    }

    /// The disk failed, or a thread that needs it. What the disk holds is not known from now on: the
    /// member stores, applies and promises nothing more. A primary hands over before the process ends.
    fn break_off(&mut self, why: String) {
        if self.broken.is_some() {
            return;
        }
        tracing::error!("this member must end: {why}");
        self.broken = Some(why);
        if self.replica.status().state() == MemberState::Primary && self.ending_at.is_none() {
            self.asked_successor = false;
            self.replica.handle(self.clock.now(), Input::DiskFailed);
            self.carry_out_all();
            // Without a successor, the end of the process is the earliest sign for the other members.
            let until = self.clock.now().monotonic + HAND_OVER;
            self.ending_at = self.asked_successor.then_some(until);
        }
    }

    /// Whether a chosen write concern keeps a reconfiguration from changing what writes wait for.
    fn tell_default_write_concern(&mut self) {
        match self.node.default_concerns() {
            Ok(defaults) => {
                let set = defaults.is_some_and(|defaults| defaults.write.is_some());
                let now = self.clock.now();
                self.replica.handle(now, Input::DefaultWriteConcernSet(set));
            }
            Err(error) => tracing::warn!(%error, "the default concerns cannot be read"),
        }
    }

    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    fn carry_out_all(&mut self) {
        while let Some(order) = self.replica.poll_order() {
            self.carry_out(order);
        }
    }

    fn carry_out(&mut self, order: Order<OwnedSemaphorePermit>) {
        match order {
            Order::Tell(event) => self.tell(&event),
            Order::View(view) => self.show(view),
            Order::Committed(committed) => self.syncer.committed(committed),
            Order::TopologyChanged => self.topology.send_replace(()),
            Order::Farewell => self.farewells.send_modify(|count| *count += 1),
            Order::Persist { ticket, change } => self.persist(ticket, change),
            Order::Send { request, to, message, timeout } => {
                self.peers.send(request, &to, message, timeout);
            }
            Order::Respond { token, reply } => {
                if let Some(answer) = self.answers.remove(&token) {
                    // Ignore send errors: the client may be gone.
                    let _ = answer.send(reply);
                }
            }
            Order::Acknowledge { waiter, result } => {
                if let Some(answer) = self.waiters.remove(&waiter) {
                    let _ = answer.send(result);
                }
            }
            Order::Fetch { fetch, source, after, term } => {
                self.fetch_from(fetch, source, after, term);
            }
            Order::EndFetch => self.fetch = None,
            Order::Change(change) => self.applier.add(change),
            Order::AppendNoop { reason, term } => self.append_noop(reason, term),
            Order::FindCommonPoint { fetch, source } => {
                let (node, inbox) = (Arc::clone(&self.node), self.inbox.clone());
                let (cut, dialer) = (inbox.cut.clone(), self.dialer.clone());
                let search = copying::find_common_point(fetch, source, node, inbox, dialer);
                tokio::spawn(cut.guard(search));
            }
            Order::Copy(work) => self.copy(work),
            Order::EndCopy => self.initial_sync = InitialSync::default(),
            Order::Halt(why) => self.broken = Some(why),
        }
    }

    /// Shows the view of the set to the commands that wait for it or decide by it.
    fn show(&mut self, view: SetView) {
        self.view.send_replace(view);
        self.is_view_new = true;
        let role = view.role();
        self.role.send_if_modified(|known| std::mem::replace(known, role) != role);
    }

    fn persist(&mut self, ticket: Ticket, change: Change) {
        let (inbox, clock) = (self.inbox.clone(), self.clock.clone());
        self.persister.add(Box::new(move |node| {
            node.persist(&change, clock.now())?;
            node.sync_log()?;
            inbox.post(Message::Input(Input::Persisted(ticket)));
            Ok(())
        }));
    }

    fn append_noop(&mut self, reason: NoopReason, term: Term) {
        // While writes are locked out, an idle primary skips its periodic entry; a new primary must
        // write its first.
        let entered = self.gate.try_enter();
        if entered.is_none() && reason == NoopReason::Periodic {
            return;
        }
        if let Err(error) = self.node.append_noop(reason, term, self.clock.now()) {
            self.inbox.post(Message::Broken(error.message));
        }
        self.inbox.post(Message::LogMoved);
    }

    fn tell(&mut self, event: &Event) {
        match event {
            Event::CommitPointAdvanced(_) => tracing::trace!("{event}"),
            Event::ConfigInstalled { .. } => {
                tracing::info!("{event}");
                if let Some(config) = self.replica.status().config().cloned() {
                    self.peers.retain(|address| config.member_at(address).is_some());
                    for doubt in quorate_replication::config_warnings(&config) {
                        tracing::warn!("{doubt}");
                    }
                }
            }
            Event::HandedOff { .. } => {
                self.asked_successor = true;
                tracing::info!("{event}");
            }
            _ => tracing::info!("{event}"),
        }
    }

    fn fetch_from(&mut self, id: FetchId, source: ServerAddress, after: OpTime, term: Term) {
        self.fetch = None;
        let (buffer, inbox) = (Arc::clone(&self.buffer), self.inbox.clone());
        let wanted = Wanted { id, source, after, term };
        match Fetch::start(wanted, buffer, inbox, self.dialer.clone()) {
            Ok(thread) => self.fetch = Some(thread),
            Err(error) => self.broken = Some(format!("a thread cannot be started: {error}")),
        }
    }
}
