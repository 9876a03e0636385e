//! The member: inputs in, orders out, and the data told what the rules decide.
//!
//! Owns the core, the chain of fetched batches, and what the data knows of the member: the gate for
//! writes, the standing and what `hello` says.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bson::RawDocumentBuf;
use quorate_node::{Decided, Horizons, LogPositions, Node, Now, Published, entry_position};
use quorate_protocol::{
    ConfigVersion, HelloReply, MemberId, MemberState, MonotonicTime, OpTime, OpTimeAndWallTime,
    ServerAddress, Term, TopologyVersion,
};
use quorate_replication::{
    Change, Event, FetchId, FetchedBatch, ImplicitDefault, InitialSyncStep, Input, Member,
    MemberOptions, NoopReason, Output, Recovered, Reply, Request, RequestError, RequestId,
    RequestToken, Status, Ticket, WaiterId, WriteConcernError, implicit_default_write_concern,
};

use crate::change::{DataChange, Entries};
use crate::copying::CopyWork;
use crate::progress::CloneProgress;
use crate::view::SetView;

/// Entries from a source.
#[derive(Clone, Debug)]
pub struct Fetched<R> {
    /// The fetch.
    pub fetch: FetchId,
    /// What the source says of them.
    pub batch: FetchedBatch,
    /// The entries.
    pub entries: Vec<RawDocumentBuf>,
    /// Room in the buffer, given back when the entries are applied.
    pub room: Option<R>,
}

/// What the host is to do. Orders are carried out in their order.
#[derive(Debug)]
pub enum Order<R> {
    /// Something worth telling. No duty follows from it.
    Tell(Event),
    /// Connections see this from now on.
    View(SetView),
    /// A majority has the log up to here.
    Committed(OpTime),
    /// Waiting `hello` commands look again.
    TopologyChanged,
    /// Connections of clients end, each after the reply that is due.
    Farewell,
    /// Store this with [`Node::persist`], then tell [`Input::Persisted`]. In the order given.
    Persist {
        /// What to tell when it is done.
        ticket: Ticket,
        /// What to store.
        change: Change,
    },
    /// Send a request to another member.
    Send {
        /// Its number, for the answer.
        request: RequestId,
        /// The receiver.
        to: ServerAddress,
        /// The request.
        message: Request,
        /// The answer is of no use after this.
        timeout: Duration,
    },
    /// Answer a request.
    Respond {
        /// The request that is answered.
        token: RequestToken,
        /// The answer.
        reply: Result<Reply, RequestError>,
    },
    /// A waiting client has its answer.
    Acknowledge {
        /// The waiting client.
        waiter: WaiterId,
        /// The answer.
        result: Result<(), WriteConcernError>,
    },
    /// Copy entries from this source. Takes the place of any other fetch.
    Fetch {
        /// Its number.
        fetch: FetchId,
        /// The source.
        source: ServerAddress,
        /// The entry to begin with.
        after: OpTime,
        /// The term of this member.
        term: Term,
    },
    /// End the fetch under way.
    EndFetch,
    /// Change the data, in the order given, and force it to disk.
    Change(DataChange<R>),
    /// Append an entry that changes nothing, with [`Node::append_noop`].
    AppendNoop {
        /// The reason that the entry states.
        reason: NoopReason,
        /// Its term.
        term: Term,
    },
    /// Walk our log and the source's back to the last entry that they share.
    FindCommonPoint {
        /// The number of the search.
        fetch: FetchId,
        /// The source.
        source: ServerAddress,
    },
    /// Do a step of the copy of everything. Takes the place of any other step.
    Copy(CopyWork),
    /// End the step of the copy that is under way, and forget the entries that were kept for it.
    EndCopy,
    /// End the process: going on would break promises.
    Halt(String),
}

/// A fetch under way, and what it brought that is not ordered yet.
struct Fetching<R> {
    id: FetchId,
    after: OpTime,
    /// The last entry that was handed on, or the one to begin with.
    previous: OpTime,
    waiting: VecDeque<(Vec<RawDocumentBuf>, Option<R>)>,
}

/// A member: the rules and the data.
pub struct Replica<R> {
    core: Member,
    node: Arc<Node>,
    orders: VecDeque<Order<R>>,
    fetching: Option<Fetching<R>>,
    /// The source of the copy under way, and where its entries begin.
    copied_from: Option<ServerAddress>,
    begin_applying: OpTime,
    progress: CloneProgress,
    /// What the core knows of the log.
    known: LogPositions,
    writable: bool,
    led: bool,
    config_version: Option<ConfigVersion>,
    majority_by_default: bool,
    view: Option<SetView>,
    /// The version and the primary that clients were shown last.
    shown: Option<(TopologyVersion, Option<MemberId>)>,
    /// The addresses of other networks that were shown last.
    horizons: Option<Horizons>,
    commit_point: OpTimeAndWallTime,
}

impl<R> Replica<R> {
    /// A member that has just started, with what its disk remembers.
    pub fn new(
        options: MemberOptions,
        recovered: Recovered,
        node: Arc<Node>,
        progress: CloneProgress,
        seed: u64,
        now: Now,
    ) -> Self {
        let known = node.log_positions();
        let mut replica = Self {
            core: Member::new(options, recovered, seed, now.monotonic),
            node,
            orders: VecDeque::new(),
            fetching: None,
            copied_from: None,
            begin_applying: OpTime::NULL,
            progress,
            known,
            writable: false,
            led: false,
            config_version: None,
            majority_by_default: true,
            view: None,
            shown: None,
            horizons: None,
            commit_point: OpTimeAndWallTime::default(),
        };
        replica.after_input(now);
        replica
    }

    /// The data.
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// What the rules know.
    pub fn status(&self) -> Status<'_> {
        self.core.status()
    }

    /// What connections see.
    pub fn view(&self) -> SetView {
        self.view.unwrap_or_else(|| self.look())
    }

    /// When the member wants to be asked again, at the latest.
    pub fn next_deadline(&self) -> Option<MonotonicTime> {
        self.core.next_deadline()
    }

    /// The next order, oldest first.
    pub fn poll_order(&mut self) -> Option<Order<R>> {
        self.orders.pop_front()
    }

    /// Whether the set can do without this member: it does not lead, and another one may.
    pub fn has_handed_over(&self) -> bool {
        let status = self.core.status();
        let alone = status.config().is_none_or(|config| config.members.len() < 2);
        alone
            || (status.state() != MemberState::Primary && status.primary() != status.me())
                && (status.primary().is_some() || !self.led)
    }

    /// Something happened. The member hears first how far its log is.
    pub fn handle(&mut self, now: Now, input: Input) {
        self.log_moved(now);
        self.feed(now, input);
    }

    /// Does what is due.
    pub fn tick(&mut self, now: Now) {
        if self.core.next_deadline().is_some_and(|deadline| deadline <= now.monotonic) {
            self.feed(now, Input::Tick);
        }
    }

    /// A client waits for its write, or no longer does. That changes nothing that clients see, and the
    /// write need not be known to the member: its waiter is checked whenever the log has moved.
    pub fn handle_waiter(&mut self, now: Now, input: Input) {
        self.core.handle(now.monotonic, input);
        self.take_outputs();
    }

    /// Entries came from the source.
    pub fn handle_fetched(&mut self, now: Now, fetched: Fetched<R>) {
        self.log_moved(now);
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
        self.feed(now, Input::EntriesFetched { fetch, batch });
    }

    /// Tells the member how far the log is.
    pub fn log_moved(&mut self, now: Now) {
        if self.core.status().initial_sync().is_some() {
            return;
        }
        let LogPositions { written, durable } = self.node.log_positions();
        // A follower reports entries once they are on disk: a report about entries in memory would
        // only delay the next one, which counts.
        let leads = self.core.status().state() == MemberState::Primary;
        let written = if leads { written } else { durable };
        let before = std::mem::replace(&mut self.known, LogPositions { written, durable });
        if self.known != before {
            self.feed(now, Input::LogMoved { written, applied: written, durable });
        }
    }

    /// Refuses clients' writes from now on.
    pub fn end(&mut self, now: Now) {
        self.end_fetch();
        self.node.set_writable(None, now);
    }

    fn feed(&mut self, now: Now, input: Input) {
        self.core.handle(now.monotonic, input);
        self.after_input(now);
    }

    /// Shows what changed, then orders what follows from it.
    fn after_input(&mut self, now: Now) {
        self.show(now);
        self.take_outputs();
    }

    fn look(&self) -> SetView {
        let status = self.core.status();
        SetView {
            term: status.term(),
            state: status.state(),
            is_primary: status.me().is_some() && status.primary() == status.me(),
            commit_point: status.commit_point(),
            rollback_id: status.rollback_id(),
            knows_primary: status.primary().is_some(),
            majority_by_default: self.majority_by_default,
        }
    }

    /// Opens or closes the log for clients, and publishes what they see.
    fn show(&mut self, now: Now) {
        let status = self.core.status();
        let version = status.config().map(|config| config.config_version());
        if version != self.config_version {
            self.config_version = version;
            self.majority_by_default = status.config().is_none_or(|config| {
                implicit_default_write_concern(config) == ImplicitDefault::Majority
            });
        }
        let writable = self.core.status().is_writable();
        let view = self.look();
        let SetView { term, rollback_id, commit_point, .. } = view;
        let can_commit = self.core.status().can_commit();
        self.node.decide(Decided { term, rollback_id, commit_point, can_commit });
        if commit_point != self.commit_point {
            self.commit_point = commit_point;
            self.orders.push_back(Order::Committed(commit_point.op_time));
        }
        if self.writable && !writable {
            self.writable = false;
            // A client ignores an error unless its topology version is newer than that of every
            // hello that said primary. So the new hello is published first, and refusals follow.
            self.publish(now, view, writable);
            self.node.set_writable(None, now);
            self.show_view(view);
            if self.node.closes_connections_on_step_down() {
                self.orders.push_back(Order::Farewell);
            }
            // A write that came in until now is told before anything follows from the change.
            return self.hear_last_write_and_show(now);
        }
        self.show_view(view);
        self.publish(now, view, writable);
        self.writable = writable;
        self.led |= writable;
    }

    fn show_view(&mut self, view: SetView) {
        if self.view != Some(view) {
            self.view = Some(view);
            self.orders.push_back(Order::View(view));
        }
    }

    fn hear_last_write_and_show(&mut self, now: Now) {
        let LogPositions { written, durable } = self.node.log_positions();
        if written != self.known.written {
            self.known = LogPositions { written, durable };
            let moved = Input::LogMoved { written, applied: written, durable };
            self.core.handle(now.monotonic, moved);
        }
        self.show(now);
    }

    /// Publishes what `hello` says, if that has changed. A member that becomes writable takes writes
    /// before it says so.
    fn publish(&mut self, now: Now, view: SetView, writable: bool) {
        let status = self.core.status();
        let version = status.topology_version();
        let shown = Some((version, status.primary()));
        if self.shown == shown {
            return;
        }
        if writable {
            self.node.set_writable(Some(view.term), now);
        }
        let horizons = status.config().map(|config| Horizons::of(config));
        let moved = self.horizons.is_some() && self.horizons != horizons;
        self.horizons.clone_from(&horizons);
        let news = self.node.topology_version() != version;
        self.node.publish(Published {
            hello: status.hello(HelloReply::default(), None),
            topology_version: version,
            state: view.state,
            writable,
            majority_by_default: self.majority_by_default,
            horizons: horizons.unwrap_or_default(),
        });
        self.shown = shown;
        if moved {
            // A client that stayed would go on with addresses that are no longer true.
            self.orders.push_back(Order::Farewell);
        }
        if news {
            self.orders.push_back(Order::TopologyChanged);
        }
    }

    fn take_outputs(&mut self) {
        while let Some(output) = self.core.poll_output() {
            self.take_output(output);
        }
    }

    fn take_output(&mut self, output: Output) {
        let order = match output {
            Output::Event(event) => Order::Tell(event),
            Output::Persist { ticket, change } => Order::Persist { ticket, change },
            Output::Send { request, to, message, timeout } => {
                Order::Send { request, to, message, timeout }
            }
            Output::Respond { token, reply } => Order::Respond { token, reply },
            Output::Acknowledge { waiter, result } => Order::Acknowledge { waiter, result },
            Output::FetchFrom { fetch, source, after } => {
                let waiting = VecDeque::new();
                self.fetching = Some(Fetching { id: fetch, after, previous: after, waiting });
                Order::Fetch { fetch, source, after, term: self.core.status().term() }
            }
            Output::CancelFetch { fetch } => {
                if self.fetching.as_ref().is_some_and(|fetching| fetching.id == fetch) {
                    self.end_fetch();
                }
                return;
            }
            Output::ApplyThrough { through, delay } => return self.apply_through(through, delay),
            Output::AppendNoop { reason, term } => {
                // A member that wakes late wants to write it and steps down in one turn. The gate is closed before
                // this is read, and the next fetch begins behind the log as it is now.
                let status = self.core.status();
                if status.state() != MemberState::Primary || status.term() != term {
                    return;
                }
                Order::AppendNoop { reason, term }
            }
            Output::FindCommonPoint { fetch, source } => Order::FindCommonPoint { fetch, source },
            Output::RollBackTo { common_point } => {
                Order::Change(DataChange::RollBack { common_point })
            }
            Output::InitialSync { attempt, step } => return self.copy(attempt, step),
            // The gate was closed before this was read.
            Output::StopWrites => return,
            Output::Halt(fatal) => Order::Halt(fatal.to_string()),
        };
        self.orders.push_back(order);
    }

    fn end_fetch(&mut self) {
        self.fetching = None;
        self.orders.push_back(Order::EndFetch);
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
            let entries = Entries { previous, entries, room, delay };
            self.orders.push_back(Order::Change(DataChange::Apply(entries)));
        }
    }

    /// Orders a step of the copy of everything.
    fn copy(&mut self, attempt: u32, step: InitialSyncStep) {
        match &step {
            InitialSyncStep::Wipe => {
                self.orders.push_back(Order::EndCopy);
                return self.orders.push_back(Order::Change(DataChange::Wipe { attempt }));
            }
            InitialSyncStep::Cancel => return self.orders.push_back(Order::EndCopy),
            InitialSyncStep::ReadSource { source } => self.copied_from = Some(source.clone()),
            InitialSyncStep::Clone { begin_applying, .. } => self.begin_applying = *begin_applying,
            InitialSyncStep::ReadStopPoint { .. }
            | InitialSyncStep::ReadRollbackId { .. }
            | InitialSyncStep::ApplyThrough(_) => {}
        }
        let Some(source) = self.copied_from.clone() else { return };
        let (begin, progress) = (self.begin_applying, self.progress.clone());
        let work = CopyWork { attempt, step, source, begin, progress };
        self.orders.push_back(Order::Copy(work));
    }
}
