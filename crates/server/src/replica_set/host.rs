//! The owner of the member: inputs in, outputs carried out, one turn at a time (`inbox`).

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bson::RawDocumentBuf;
use quorate_node::{
    Author, Decided, Horizons, LogPositions, Node, Now, Published, Standing, entry_position,
};
use quorate_protocol::{
    ConfigVersion, HelloReply, MemberId, MemberState, MonotonicTime, OpTime, OpTimeAndWallTime,
    ServerAddress, Term, TopologyVersion,
};
use quorate_replication::quorum::{ImplicitDefault, implicit_default_write_concern};
use quorate_replication::{
    Event, FetchId, Input, Member, MemberOptions, NoopReason, Output, Recovered, Request,
    RequestToken, WaiterId, WriteConcernError,
};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::time::Instant;

use super::clone_progress::CloneProgress;
use super::fetching::{Fetch, Fetched, Wanted};
use super::initial_sync::InitialSync;
use super::peers::Peers;
use super::threads::{Applier, Entries, Syncer, Worker};
use super::write_concern::Acknowledgement;
use super::{Answer, Inbox, Message, RoleView, SetView, copying, fetching};
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
    pub(super) appended: watch::Sender<OpTimeAndWallTime>,
    pub(super) standing: watch::Sender<Standing>,
    pub(super) topology: watch::Sender<()>,
    /// Wakes cursors that wait for documents.
    pub(super) commits: watch::Sender<u64>,
    pub(super) farewells: watch::Sender<u64>,
    pub(super) gate: Arc<WriteGate>,
}

/// Runs a member until its process ends or it cannot go on.
pub(super) async fn run(parts: Parts) -> Result<(), String> {
    let thread_failed = |error: std::io::Error| format!("a thread cannot be started: {error}");
    let Parts { node, inbox, .. } = &parts;
    let worker = |name| Worker::start(name, Arc::clone(node), inbox.clone());
    let gate = Arc::clone(&parts.gate);
    let applier = Applier::start(Arc::clone(node), inbox.clone(), parts.clock, gate);
    let applier = applier.map_err(thread_failed)?;
    let persister = worker("persist").map_err(thread_failed)?;
    let syncer = Syncer::default();
    syncer.start(Arc::clone(node), inbox.clone()).map_err(thread_failed)?;
    let (appended, standing) = (parts.appended.clone(), parts.standing.clone());
    node.on_standing(Box::new(move |now| {
        standing.send_replace(*now);
        appended.send_if_modified(|last| std::mem::replace(last, now.last) != now.last);
    }));
    let failing = syncer.clone();
    node.on_disk_failure(Box::new(move |why| failing.fail(why)));
    let wake = syncer.clone();
    let (commits, known) = (parts.commits.clone(), Arc::downgrade(node));
    node.on_append(Box::new(move |_, author| {
        if commits.receiver_count() > 0
            && let Some(node) = known.upgrade()
        {
            commits.send_replace(node.durability().0.as_u64());
        }
        if author == Author::Here {
            wake.wake();
        }
    }));
    let now = parts.clock.now();
    let seed = now.wall.as_millis().unsigned_abs() ^ (u64::from(std::process::id()) << 32);
    let positions = node.log_positions();
    let member = Member::new(parts.member_options.clone(), parts.recovered, seed, now.monotonic);
    let inbox = parts.inbox.clone();
    let host = Host {
        member,
        runtime: Handle::current(),
        messages: VecDeque::new(),
        armed: None,
        rearmed: None,
        started: false,
        ending_at: None,
        ended: false,
        node: parts.node,
        clock: parts.clock,
        dialer: parts.dialer.clone(),
        rollback_directory: parts.rollback_directory,
        peers: Peers::new(parts.inbox.clone(), parts.dialer),
        inbox: parts.inbox,
        view: parts.view,
        role: parts.role,
        topology: parts.topology,
        farewells: parts.farewells,
        gate: parts.gate,
        applier,
        persister,
        syncer,
        answers: BTreeMap::new(),
        waiters: BTreeMap::new(),
        fetching: None,
        buffer: fetching::buffer(),
        initial_sync: InitialSync::new(parts.clone_progress),
        known: positions,
        writable: false,
        led: false,
        config_version: None,
        majority_by_default: true,
        shown: None,
        commit_point: OpTimeAndWallTime::default(),
        next_number: 1,
        broken: None,
        asked_successor: false,
    };
    inbox.run(host).await
}

/// A fetch under way, and what it brought that is not ordered yet.
struct Fetching {
    id: FetchId,
    _thread: Fetch,
    after: OpTime,
    /// The last entry that was handed on, or the one to begin with.
    previous: OpTime,
    waiting: VecDeque<(Vec<RawDocumentBuf>, Option<OwnedSemaphorePermit>)>,
}

pub(super) struct Host {
    member: Member,
    /// Where tasks run, whoever's turn starts them.
    pub(super) runtime: Handle,
    /// Room for messages, used again in every turn.
    pub(super) messages: VecDeque<Message>,
    /// The deadline that the host's own task knows.
    armed: Option<MonotonicTime>,
    /// An earlier one that it has yet to be told.
    rearmed: Option<Instant>,
    started: bool,
    /// When the process ends at the latest.
    ending_at: Option<MonotonicTime>,
    ended: bool,
    pub(super) node: Arc<Node>,
    pub(super) clock: Clock,
    pub(super) dialer: Dialer,
    rollback_directory: Option<PathBuf>,
    peers: Peers,
    pub(super) inbox: Inbox,
    pub(super) view: watch::Sender<SetView>,
    role: watch::Sender<RoleView>,
    topology: watch::Sender<()>,
    farewells: watch::Sender<u64>,
    gate: Arc<WriteGate>,
    pub(super) applier: Applier,
    persister: Worker,
    syncer: Syncer,
    answers: BTreeMap<RequestToken, oneshot::Sender<Answer>>,
    waiters: BTreeMap<WaiterId, oneshot::Sender<Result<(), WriteConcernError>>>,
    fetching: Option<Fetching>,
    buffer: Arc<Semaphore>,
    pub(super) initial_sync: InitialSync,
    /// What the member knows of the log.
    known: LogPositions,
    writable: bool,
    /// Whether it was writable once: then its end is news for the others.
    led: bool,
    config_version: Option<ConfigVersion>,
    majority_by_default: bool,
    /// The version and the primary that clients were shown last.
    shown: Option<(TopologyVersion, Option<MemberId>)>,
    commit_point: OpTimeAndWallTime,
    next_number: u64,
    broken: Option<String>,
    /// Whether another member was asked to take over.
    asked_successor: bool,
}

impl Host {
    /// Lets the member do what is due. Gives how the host ends, if it does.
    pub(super) fn settle(&mut self) -> Option<Result<(), String>> {
        if self.ended {
            return None;
        }
        if !self.started {
            self.started = true;
            self.after_input();
        }
        let mut now = self.clock.now().monotonic;
        if self.member.next_deadline().is_some_and(|deadline| deadline <= now) {
            self.feed(Input::Tick);
            now = self.clock.now().monotonic;
        }
        let ending = self.ending_at.is_some() || self.broken.is_some();
        if !ending || self.ending_at.is_some_and(|at| at > now && !self.has_handed_over()) {
            self.arm(now);
            return None;
        }
        let end = self.broken.take().map_or(Ok(()), Err);
        self.end();
        Some(end)
    }

    /// Has the host's own task woken for the next deadline, if it would sleep longer.
    fn arm(&mut self, now: MonotonicTime) {
        let deadlines = self.member.next_deadline().into_iter().chain(self.ending_at);
        let Some(next) = deadlines.min() else { return };
        if self.armed.is_none_or(|armed| next < armed) {
            self.armed = Some(next);
            self.rearmed = Some(Instant::now() + next.since(now));
        }
    }

    /// When to wake the host's own task, if that has changed.
    pub(super) fn rearm(&mut self) -> Option<Instant> {
        self.rearmed.take()
    }

    /// Whether the set can do without this member: it does not lead, and somebody else may.
    fn has_handed_over(&self) -> bool {
        let status = self.member.status();
        let alone = status.config().is_none_or(|config| config.members.len() < 2);
        alone
            || (status.state() != MemberState::Primary && status.primary() != status.me())
                && (status.primary().is_some() || !self.led)
    }

    fn end(&mut self) {
        self.ended = true;
        self.cancel_fetch();
        self.syncer.end();
        self.node.set_writable(None, self.clock.now());
    }

    pub(super) fn take(&mut self, message: Message) {
        if self.ended {
            return;
        }
        // A write that is asked about is in the log by now. One that is waited for need not be known
        // to be: its waiter is looked at whenever the log has moved.
        if !matches!(message, Message::Wanted(_) | Message::Abandoned(_)) {
            self.feed_log();
        }
        match message {
            Message::Input(input) => {
                if matches!(input, Input::ShutdownWanted) {
                    self.ending_at = Some(self.clock.now().monotonic + HAND_OVER);
                }
                self.feed(input);
            }
            Message::Asked(request, answer) => {
                if matches!(request, Request::Reconfig { .. }) {
                    self.tell_default_write_concern();
                }
                let token = RequestToken(self.number());
                self.answers.insert(token, answer);
                self.feed(Input::RequestReceived { token, request });
            }
            Message::Wanted(Acknowledgement { waiter, op_time, concern, answer }) => {
                self.waiters.insert(waiter, answer);
                let input = Input::AcknowledgementWanted { waiter, op_time, concern };
                self.member.handle(self.clock.now().monotonic, input);
                // Waiting changes nothing that clients see.
                self.carry_out_all();
            }
            Message::Abandoned(waiter) => {
                if self.waiters.remove(&waiter).is_some() {
                    let input = Input::AcknowledgementAbandoned { waiter };
                    self.member.handle(self.clock.now().monotonic, input);
                    self.carry_out_all();
                }
            }
            Message::Fetched(fetched) => self.on_fetched(fetched),
            Message::Inspect(look) => look(self.member.status(), self.clock.now()),
            // The log was looked at just now, and deadlines are after every message.
            Message::LogMoved => {}
            Message::Tick => self.armed = None,
            Message::Broken(why) => self.break_off(why),
        }
    }

    /// The disk failed, or a thread that needs it. What the disk holds is not known from now on: the
    /// member stores, applies and promises nothing more. A primary hands over before the process ends.
    fn break_off(&mut self, why: String) {
        if self.broken.is_some() {
            return;
        }
        tracing::error!("this member must end: {why}");
        self.broken = Some(why);
        if self.member.status().state() == MemberState::Primary && self.ending_at.is_none() {
            self.asked_successor = false;
            self.feed(Input::DiskFailed);
            // Without anyone who could follow at once, the others learn soonest from the end itself.
            let until = self.clock.now().monotonic + HAND_OVER;
            self.ending_at = self.asked_successor.then_some(until);
        }
    }

    /// Whether a chosen write concern keeps a reconfiguration from changing what writes wait for.
    fn tell_default_write_concern(&mut self) {
        match self.node.default_concerns() {
            Ok(defaults) => {
                let set = defaults.is_some_and(|defaults| defaults.write.is_some());
                self.feed(Input::DefaultWriteConcernSet(set));
            }
            Err(error) => tracing::warn!(%error, "the default concerns cannot be read"),
        }
    }

    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    pub(super) fn feed(&mut self, input: Input) {
        self.member.handle(self.clock.now().monotonic, input);
        self.after_input();
    }

    /// Tells the member how far the log is, before anything else happens to it.
    fn feed_log(&mut self) {
        if self.member.status().initial_sync().is_some() {
            return;
        }
        let LogPositions { written, durable } = self.node.log_positions();
        // A follower speaks of entries once they are on disk: a report about less would only make
        // the one that counts wait for its answer.
        let leads = self.member.status().state() == MemberState::Primary;
        let written = if leads { written } else { durable };
        let before = std::mem::replace(&mut self.known, LogPositions { written, durable });
        if self.known != before {
            self.feed(Input::LogMoved { written, applied: written, durable });
        }
    }

    /// Shows what changed, then carries out what was ordered.
    fn after_input(&mut self) {
        self.show();
        self.carry_out_all();
    }

    fn carry_out_all(&mut self) {
        while let Some(output) = self.member.poll_output() {
            self.carry_out(output);
        }
    }

    fn feed_log_or_show(&mut self) {
        let LogPositions { written, durable } = self.node.log_positions();
        if written == self.known.written {
            return self.show();
        }
        self.known = LogPositions { written, durable };
        let now = self.clock.now().monotonic;
        self.member.handle(now, Input::LogMoved { written, applied: written, durable });
        self.show();
    }

    /// Opens or closes the log for clients, and publishes what they see.
    fn show(&mut self) {
        let now = self.clock.now();
        let status = self.member.status();
        let version = status.config().map(|config| config.config_version());
        if version != self.config_version {
            self.config_version = version;
            self.majority_by_default = status.config().is_none_or(|config| {
                implicit_default_write_concern(config) == ImplicitDefault::Majority
            });
        }
        let writable = status.is_writable();
        let commit_point = status.commit_point();
        let (term, rollback_id) = (status.term(), status.rollback_id());
        self.node.decide(Decided { term, rollback_id, commit_point });
        if commit_point != self.commit_point {
            self.commit_point = commit_point;
            self.syncer.committed(commit_point.op_time);
        }
        let view = SetView {
            term,
            state: status.state(),
            is_primary: status.me().is_some() && status.primary() == status.me(),
            commit_point,
            rollback_id,
            knows_primary: status.primary().is_some(),
            majority_by_default: self.majority_by_default,
        };
        if self.writable && !writable {
            self.writable = false;
            // A client takes an error for old news unless its topology version is newer than that of
            // every hello that said primary. So hello says it first, and refusals follow.
            self.publish(view.term, now);
            self.node.set_writable(None, now);
            self.show_view(view);
            if self.node.closes_connections_on_step_down() {
                self.farewells.send_modify(|count| *count += 1);
            }
            // A write that came in until now is told before anything follows from the change.
            return self.feed_log_or_show();
        }
        self.show_view(view);
        self.publish(view.term, now);
        self.writable = writable;
        self.led |= writable;
    }

    /// Shows the view of the set to the commands that wait for it or decide by it.
    fn show_view(&mut self, view: SetView) {
        self.view.send_if_modified(|known| {
            let changed = *known != view;
            *known = view;
            changed
        });
        let role = view.role();
        self.role.send_if_modified(|known| std::mem::replace(known, role) != role);
    }

    /// Publishes what `hello` says, if that has changed. A member that becomes writable takes writes
    /// before it says so.
    fn publish(&mut self, term: Term, now: Now) {
        let status = self.member.status();
        let version = status.topology_version();
        let shown = Some((version, status.primary()));
        if self.shown == shown {
            return;
        }
        self.shown = shown;
        let known_version = self.node.topology_version();
        let writable = status.is_writable();
        if writable {
            self.node.set_writable(Some(term), now);
        }
        self.node.publish(Published {
            hello: status.hello(HelloReply::default(), None),
            topology_version: version,
            state: status.state(),
            writable,
            majority_by_default: self.majority_by_default,
            horizons: status.config().map(|config| Horizons::of(config)).unwrap_or_default(),
        });
        if known_version != version {
            self.topology.send_replace(());
        }
    }

    fn carry_out(&mut self, output: Output) {
        match output {
            Output::Event(event) => self.tell(&event),
            Output::Persist { ticket, change } => {
                let (inbox, clock) = (self.inbox.clone(), self.clock);
                self.persister.add(Box::new(move |node| {
                    node.persist(&change, clock.now())?;
                    node.sync_log()?;
                    inbox.post(Message::Input(Input::Persisted(ticket)));
                    Ok(())
                }));
            }
            Output::Send { request, to, message, timeout } => {
                self.peers.send(request, &to, message, timeout);
            }
            Output::Respond { token, reply } => {
                if let Some(answer) = self.answers.remove(&token) {
                    // Whoever asked may have left.
                    let _ = answer.send(reply);
                }
            }
            Output::FetchFrom { fetch, source, after } => self.fetch_from(fetch, source, after),
            Output::CancelFetch { fetch } => {
                if self.fetching.as_ref().is_some_and(|fetching| fetching.id == fetch) {
                    self.cancel_fetch();
                }
            }
            Output::ApplyThrough { through, delay } => self.apply_through(through, delay),
            Output::AppendNoop { reason, term } => {
                // An idle primary that is locked says nothing; a new one must.
                let entered = self.gate.try_enter();
                if entered.is_none() && reason == NoopReason::Periodic {
                    return;
                }
                if let Err(error) = self.node.append_noop(reason, term, self.clock.now()) {
                    self.inbox.post(Message::Broken(error.message));
                }
                self.inbox.post(Message::LogMoved);
            }
            Output::FindCommonPoint { fetch, source } => {
                let (node, inbox) = (Arc::clone(&self.node), self.inbox.clone());
                let (cut, dialer) = (inbox.cut.clone(), self.dialer.clone());
                let search = copying::find_common_point(fetch, source, node, inbox, dialer);
                tokio::spawn(cut.guard(search));
            }
            Output::RollBackTo { common_point } => self.roll_back_to(common_point),
            Output::InitialSync { attempt, step } => self.do_initial_sync_step(attempt, step),
            Output::Acknowledge { waiter, result } => {
                if let Some(answer) = self.waiters.remove(&waiter) {
                    let _ = answer.send(result);
                }
            }
            // The gate was closed before this was read.
            Output::StopWrites => {}
            Output::Halt(fatal) => self.broken = Some(fatal.to_string()),
        }
    }

    fn tell(&mut self, event: &Event) {
        match event {
            Event::CommitPointAdvanced(_) => tracing::trace!("{event}"),
            Event::ConfigInstalled { .. } => {
                tracing::info!("{event}");
                if let Some(config) = self.member.status().config().cloned() {
                    self.peers.retain(|address| config.member_at(address).is_some());
                    for doubt in quorate_replication::config_check::warnings(&config) {
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

    fn fetch_from(&mut self, id: FetchId, source: ServerAddress, after: OpTime) {
        self.cancel_fetch();
        let term = self.member.status().term();
        let (buffer, inbox) = (Arc::clone(&self.buffer), self.inbox.clone());
        let wanted = Wanted { id, source, after, term };
        match Fetch::start(wanted, buffer, inbox, self.dialer.clone()) {
            Ok(thread) => {
                let waiting = VecDeque::new();
                let fetching = Fetching { id, _thread: thread, after, previous: after, waiting };
                self.fetching = Some(fetching);
            }
            Err(error) => self.broken = Some(format!("a thread cannot be started: {error}")),
        }
    }

    fn cancel_fetch(&mut self) {
        self.fetching = None;
    }

    fn on_fetched(&mut self, fetched: Fetched) {
        let Fetched { fetch, mut batch, mut entries, room } = fetched;
        let Some(fetching) = self.fetching.as_mut().filter(|known| known.id == fetch) else {
            return;
        };
        // The first entry is the one we have; it only shows that the logs agree.
        let after = fetching.after;
        if batch.first.is_some_and(|first| first <= after) {
            entries.retain(|entry| entry_position(entry).is_ok_and(|at| at.op_time > after));
        }
        if entries.is_empty() {
            batch.last = None;
        } else {
            fetching.waiting.push_back((entries, room));
        }
        self.feed(Input::EntriesFetched { fetch, batch });
    }

    fn apply_through(&mut self, through: OpTime, delay: Duration) {
        let Some(fetching) = &mut self.fetching else { return };
        while let Some((entries, _)) = fetching.waiting.front() {
            let last = entries.last().and_then(|entry| entry_position(entry).ok());
            if last.is_none_or(|last| last.op_time > through) {
                return;
            }
            let Some((entries, room)) = fetching.waiting.pop_front() else { return };
            let previous = fetching.previous;
            if let Some(last) = last {
                fetching.previous = last.op_time;
            }
            let room = room.into_iter().collect();
            self.applier.apply(Entries { previous, entries, room, delay });
        }
    }

    fn roll_back_to(&mut self, common_point: OpTimeAndWallTime) {
        let (clock, inbox) = (self.clock, self.inbox.clone());
        let directory = self.rollback_directory.clone();
        self.applier.add(Box::new(move |node| {
            let mut files = copying::RollbackFiles::new(directory, clock);
            let done =
                node.roll_back_to(common_point, clock.now(), &mut |undo| files.keep(undo))?;
            files.finish()?;
            tracing::warn!(entries = done.entries, to = %done.last, "rolled back");
            let min_valid = done.last.op_time;
            inbox.post(Message::Input(Input::RolledBack { last: done.last, min_valid }));
            Ok(())
        }));
    }
}
