//! The way of one command from its arrival to its reply.
//!
//! ```text
//!   admit ──▶ run ──▶ durable ──▶ acknowledge
//! ```
//!
//! A command is admitted (faults on request, the components that answer it themselves, its concerns),
//! run by the member (here if it is short, aside on a thread of its own if it is long), held until the
//! disk has what it wrote, and acknowledged as its write concern asks. Each step may end the command.
//! The client's document is never changed: the concerns that count are kept beside it.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bson::{Bson, Document, RawDocument, RawDocumentBuf, doc};
use quorate_node::{
    Answerer, Awaited, Command, CommandBody, CommandError, CommandFacts, Context, Durable,
    ErrorCode, Injection, Interrupt, Interruption, Outcome, Registered, Reply, WaitFor,
    tell_duration, tells_of_state_change,
};
use quorate_protocol::OpTimeAndWallTime;
use quorate_protocol::bson_length::length_prefix;
use tokio::sync::{Notify, watch};

use crate::connection::{Connection, ConnectionError, error_body, is_hello, read_more};
use crate::host_info::host_info;
use crate::logging::get_log;
use crate::memory::set_thrift;
use crate::patience::Patience;
use crate::replica_set::{
    ReadConcern, ReplicaSet, Unforced, Wanted, is_statement, write_concern_error,
};
use crate::server::Shared;
use crate::write_gate::{Entered, Passage};

/// Documents that a command may look at before it counts as long and runs aside.
const SHORT_DOCUMENTS: u64 = 256;

/// The command whose argument the set checks before the member keeps it.
const SET_DEFAULTS: &str = "setDefaultRWConcern";

/// A command ends before its last step.
pub(crate) enum Ended {
    /// With this reply.
    Reply(RawDocumentBuf),
    /// Without one: the connection is closed.
    Close,
    /// The socket failed while the command waited.
    Failed(ConnectionError),
}

impl From<CommandError> for Ended {
    fn from(error: CommandError) -> Self {
        Self::Reply(error_body(&error))
    }
}

impl From<ConnectionError> for Ended {
    fn from(error: ConnectionError) -> Self {
        Self::Failed(error)
    }
}

/// What a command may wait for.
struct Events {
    topology: watch::Receiver<()>,
    commits: watch::Receiver<u64>,
    kills: watch::Receiver<()>,
    commit_point: CommitPoint,
}

/// The commit point, and what a command has seen of it.
struct CommitPoint {
    /// Where it is, on a member of a set.
    committed: Option<watch::Receiver<OpTimeAndWallTime>>,
    seen: OpTimeAndWallTime,
}

impl CommitPoint {
    /// Returns when the commit point is another than the command has seen.
    async fn moved(&mut self) {
        let seen = self.seen;
        match &mut self.committed {
            Some(committed) => match committed.wait_for(|now| *now != seen).await.map(|now| *now) {
                Ok(moved) => self.seen = moved,
                Err(_) => std::future::pending().await,
            },
            None => std::future::pending().await,
        }
    }
}

impl Events {
    fn of(shared: &Shared) -> Self {
        let committed = shared.replica_set.as_ref().map(|set| set.commit_points());
        let seen = committed.as_ref().map(|now| *now.borrow()).unwrap_or_default();
        Self {
            topology: shared.topology.subscribe(),
            commits: shared.commits.subscribe(),
            kills: shared.kills.subscribe(),
            commit_point: CommitPoint { committed, seen },
        }
    }
}

/// What the client of a command that may run wants to be sure of.
struct Admitted<'s> {
    writes: bool,
    retryable: bool,
    /// The session of a retryable write: only that can meet the fail point that cuts it off.
    session: Option<Arc<CommandBody>>,
    read_concern: Option<ReadConcern>,
    write_concern: Option<Wanted>,
    /// Entries of the command that this connection forces to disk.
    unforced: Option<Unforced>,
    patience: Patience<'s>,
    /// How much time the client gives it, and since when.
    limit: Option<(Duration, Instant)>,
}

impl Admitted<'_> {
    /// Whether this connection may force the command's entries to disk: it has nothing else to do
    /// until other members have them. A client with a time limit is answered when that is over,
    /// however long the disk takes.
    fn may_force(&self) -> bool {
        self.limit.is_none() && self.write_concern.as_ref().is_some_and(|wanted| !wanted.is_timed())
    }
}

/// Frees what an interrupted command leaves, on another thread and after the reply: that may take
/// longer than the client should wait.
struct After(Arc<Interrupt>);

impl Drop for After {
    fn drop(&mut self) {
        let Some(remains) = self.0.take_remains() else { return };
        // A task may be dropped after its runtime has ended: then this thread frees it.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn_blocking(move || drop(remains));
        }
    }
}

impl Connection {
    /// Runs a command to its reply; none if the connection must be closed instead. Members of a set
    /// add their clock, and every error that tells of a change of state the topology version.
    pub(crate) async fn execute(
        &mut self,
        command: Command,
    ) -> Result<Option<RawDocumentBuf>, ConnectionError> {
        let facts = command.facts();
        (self.reads_majority, self.is_injected) = (false, false);
        let mut context = Context {
            now: self.shared.clock.now(),
            client: Arc::clone(&self.client),
            may_wait: true,
            may_look_at: Some(SHORT_DOCUMENTS),
            interrupt: Arc::new(Interrupt::default()),
        };
        let started = context.now.monotonic;
        let operation = self.shared.node.register(&context, &command);
        let after = After(Arc::clone(&context.interrupt));
        // One clone for each command: all workers contend for the counter of references.
        let shared = Arc::clone(&self.shared);
        let answered = self.answer(&shared, command, &mut context).await;
        drop(after);
        let mut body = match answered {
            Ok(body) | Err(Ended::Reply(body)) => body,
            Err(Ended::Close) => return Ok(None),
            Err(Ended::Failed(error)) => return Err(error),
        };
        if !is_hello(operation.name()) {
            let took = self.shared.clock.monotonic().since(started);
            tell_duration(&mut body, operation.name(), took);
            self.shared.node.count_time(&operation, facts, took);
            // Intentional waits are not slow.
            if !operation.has_waited() {
                self.tell(&operation, took, &body);
            }
        }
        drop(operation);
        // An injected error carries no topology version: with the present one its client would take
        // it for stale.
        if !self.is_injected && !is_cursor_alone(&body) {
            self.shared.node.tell_topology_version(&mut body);
        }
        // Messages between members carry times in fields of their own.
        let internal = facts.is_some_and(CommandFacts::is_between_members);
        if let (Some(set), false) = (&self.shared.replica_set, internal) {
            set.tell_time(&mut body, self.reads_majority);
        }
        Ok(Some(body))
    }

    /// Writes a command that has ended to the profile and to the log, if it was slow enough.
    fn tell(&self, operation: &Registered, took: Duration, body: &RawDocumentBuf) {
        if !self.shared.node.may_be_told(took) {
            return;
        }
        let now = self.shared.clock.now();
        let entered = self.shared.gate.try_enter();
        match self.shared.node.finish(operation, now, took, body, entered.is_some()) {
            Ok(false) => {}
            Ok(true) => {
                let (connection, millis) = (self.client.connection_id, took.as_millis() as u64);
                let (name, namespace) = (operation.name(), operation.namespace());
                tracing::info!(command = name, namespace, connection, millis, "slow command");
            }
            Err(error) => tracing::warn!(%error, "the profile cannot be written"),
        }
    }

    /// The four steps.
    async fn answer(
        &mut self,
        shared: &Arc<Shared>,
        mut command: Command,
        context: &mut Context,
    ) -> Result<RawDocumentBuf, Ended> {
        if let Some(help) = shared.node.help(&command) {
            return Ok(help);
        }
        // Most commands pass each step at once, and a future that is not made costs nothing.
        let injection = match shared.node.intercept(context, &command) {
            Some(injection) => Some(self.inject(injection).await?),
            None => None,
        };
        if let Some(answering) = self.answer_here(&command, context)? {
            answering.await?;
        }
        let mut admitted = self.admit(shared, &mut command, context).await?;
        let reply = self.run_admitted(&mut admitted, command, context).await?;
        let op_time = reply.op_time;
        let mut body = match (&reply.durable, admitted.writes) {
            (None, false) => reply.body,
            _ => self.durable(reply, &admitted).await?,
        };
        if let Some(set) = &shared.replica_set {
            if let Some(concern) = admitted.read_concern {
                admitted.patience.wait(set.confirm(concern)).await?;
            }
            // A member that refused the command because of its state has nothing to wait for.
            let refused = op_time.is_none() && tells_of_state_change(&body);
            if let Some(wanted) = admitted.write_concern.take().filter(|_| !refused) {
                let unforced = admitted.unforced.take();
                let acknowledged = async { Ok(set.acknowledge(wanted, op_time, unforced).await) };
                // The write is done even if the wait fails.
                let waited = self.unless_left(admitted.patience.wait(acknowledged)).await?;
                let was_done = op_time.is_some() || admitted.retryable;
                let error =
                    waited.unwrap_or_else(|why| was_done.then(|| write_concern_error(&why)));
                if let Some(error) = error {
                    append_write_concern_error(&mut body, error, admitted.retryable, &[]);
                }
            }
        }
        if let Some(Injection { write_concern_error: Some(error), labels, .. }) = injection {
            self.is_injected = true;
            append_write_concern_error(&mut body, error, admitted.retryable, &labels);
        }
        Ok(body)
    }

    /// Waits for something that may never come, unless the client that waits for the answer leaves.
    async fn unless_left<T>(&mut self, what: impl Future<Output = T>) -> Result<T, Ended> {
        let mut what = std::pin::pin!(what);
        loop {
            tokio::select! {
                biased;
                done = &mut what => return Ok(done),
                // What is sent ahead is read up to one message.
                read = read_more(&mut self.stream, &mut self.decoder),
                    if self.is_read_from && self.decoder.missing().is_ok_and(|missing| missing > 0) =>
                {
                    if read? == 0 {
                        return Err(Ended::Close);
                    }
                }
            }
        }
    }

    /// Does to the command what an active fail point says.
    async fn inject(&mut self, injection: Injection) -> Result<Injection, Ended> {
        if let Some(block) = injection.block {
            tokio::time::sleep(block).await;
        }
        if injection.close_connection {
            return Err(Ended::Close);
        }
        match &injection.error {
            Some(error) => {
                self.is_injected = true;
                Err(Ended::Reply(error_body(error)))
            }
            None => Ok(injection),
        }
    }

    /// What ends the command if another component than the member answers it, or checks it before; none for most.
    fn answer_here<'a>(
        &'a mut self,
        command: &'a Command,
        context: &'a Context,
    ) -> Result<Option<Answering<'a>>, Ended> {
        let answerer = command.facts().map_or(Answerer::Member, CommandFacts::answerer);
        if answerer != Answerer::Member || acts_here(command) {
            self.shared.node.authorize(&self.client, command)?;
        }
        if answerer == Answerer::Process || locks(command) {
            return Ok(Some(Box::pin(self.answer_as_process(command, context))));
        }
        if is_hello(command.name()) && self.shared.quiescing.load(Ordering::SeqCst) {
            return Err(quiescing().into());
        }
        let Some(set) = &self.shared.replica_set else { return Ok(None) };
        set.hear_time(command, &self.client)?;
        let is_for_set = answerer == Answerer::ReplicaSet
            || command.name() == SET_DEFAULTS
            || set.forwards(command);
        Ok(is_for_set.then(|| Box::pin(answer_as_set(set, answerer, command)) as Answering<'a>))
    }

    /// Commands about the process: its log, its end, its lock against writes.
    async fn answer_as_process(
        &mut self,
        command: &Command,
        context: &Context,
    ) -> Result<(), Ended> {
        let shared = Arc::clone(&self.shared);
        let Shared { gate, node, durability, .. } = &*shared;
        let document = match command.name() {
            "getLog" => get_log(command)?,
            "hostInfo" => host_info(context.now.wall, &node.options().host),
            "shutdown" => {
                shared.end_wanted.notify_one();
                return Err(Ended::Close);
            }
            "fsync" => {
                let limit = command.max_time();
                let patience = Patience::start(&shared, limit, &context.interrupt);
                // No other client knows of a lock whose client has left.
                let count = self.unless_left(patience.wait(gate.lock(node))).await??;
                if let Err(error) = durability.wait(node.durability().0).await {
                    gate.unlock(node).await?;
                    return Err(error.into());
                }
                let client = &self.client.address;
                tracing::warn!(count, client, "fsync locks writes out until fsyncUnlock");
                doc! {
                    "info": "now locked against writes, use db.fsyncUnlock() to unlock",
                    "lockCount": count as i64,
                    "ok": 1.0,
                }
            }
            "fsyncUnlock" => {
                let count = gate.unlock(node).await?;
                tracing::warn!(count, "fsyncUnlock: writes go on when no lock is left");
                doc! { "info": "fsyncUnlock completed", "lockCount": count as i64, "ok": 1.0 }
            }
            _ => return Ok(()),
        };
        Err(Ended::Reply(RawDocumentBuf::try_from(&document).unwrap_or_default()))
    }

    /// Decides the command's concerns and waits for the time that it wants to read after.
    async fn admit<'s>(
        &mut self,
        shared: &'s Arc<Shared>,
        command: &mut Command,
        context: &Context,
    ) -> Result<Admitted<'s>, Ended> {
        let writes = command.may_write();
        let write_concern = match &shared.replica_set {
            None => None,
            Some(set) => {
                set.complete_read_concern(command)?;
                set.take_concern(command, writes)?
            }
        };
        let limit = shared.node.time_left(command);
        let patience = Patience::start(shared, limit, &context.interrupt);
        let limit = limit.map(|limit| (limit, Instant::now()));
        let mut read_concern = None;
        if let Some(set) = &shared.replica_set {
            patience.wait(set.wait_for_cluster_time(command)).await?;
            read_concern = ReadConcern::of(command);
        }
        self.reads_majority = read_concern == Some(ReadConcern::Majority) && !writes;
        // Statements of a transaction are not repeated by themselves.
        let retryable = command.body.contains_key("txnNumber") && !is_statement(command);
        let session = retryable.then(|| Arc::clone(&command.body));
        Ok(Admitted {
            writes,
            retryable,
            session,
            read_concern,
            write_concern,
            unforced: None,
            patience,
            limit,
        })
    }

    /// Runs an admitted command, again after each event that it waits for.
    async fn run_admitted(
        &mut self,
        admitted: &mut Admitted<'_>,
        command: Command,
        context: &mut Context,
    ) -> Result<Reply, Ended> {
        let shared = admitted.patience.shared;
        let hello = is_hello(command.name());
        let mut again = command.clone_if_it_may_wait();
        // Subscribe before the command runs, so that no event is missed.
        let mut events = again.as_ref().map(|_| Events::of(shared));
        let entered = match !admitted.writes {
            true => None,
            false => Some(self.enter(shared, admitted, &command, context).await?),
        };
        context.interrupt.set_waiting(false);
        let mut outcome = self.run_command(context, command, admitted).await?;
        drop(entered);
        if let (Some((limit, began)), Outcome::Reply(reply)) = (admitted.limit, &outcome) {
            shared.node.keep_time_left(reply, limit.saturating_sub(began.elapsed()));
        }
        let mut until = None;
        while let (Outcome::Wait { until: event, at_most }, Some(command), Some(events)) =
            (&outcome, again.take(), &mut events)
        {
            let end = *until.get_or_insert_with(|| Instant::now() + *at_most);
            context.interrupt.set_waiting(true);
            let cursor = command.body.get_i64("getMore").ok();
            let news = self.wait_for(events, *event, cursor, end, &context.interrupt).await?;
            context.interrupt.set_waiting(false);
            // An event may concern another command: this one then waits again, until its time is
            // over.
            context.may_wait = news;
            context.now = shared.clock.now();
            again = news.then(|| command.clone());
            outcome = self.run_command(context, command, admitted).await?;
        }
        if admitted.session.take().is_some_and(|command| shared.node.take_cut_off(&command)) {
            return Err(Ended::Close);
        }
        // Quiescing may have begun while the command ran or waited.
        if hello && shared.quiescing.load(Ordering::SeqCst) {
            return Err(quiescing().into());
        }
        match outcome {
            Outcome::Reply(reply) => Ok(reply),
            Outcome::Wait { .. } | Outcome::Long => Err(Ended::Close),
        }
    }

    /// Passes the gate before writes, which `fsync` closes.
    async fn enter<'s>(
        &mut self,
        shared: &'s Arc<Shared>,
        admitted: &Admitted<'_>,
        command: &Command,
        context: &Context,
    ) -> Result<Entered<'s>, Ended> {
        self.keep_pace(shared, admitted, context).await?;
        let passage = passage_of(command);
        if let Some(entered) = shared.gate.try_enter_as(passage) {
            return Ok(entered);
        }
        context.interrupt.set_waiting(true);
        let connection = self.client.connection_id;
        let command = command.name();
        tracing::warn!(connection, command, "a write waits: fsync has locked writes out");
        Ok(self.unless_left(admitted.patience.wait(pass(shared, passage))).await??)
    }

    /// Holds a write back while a majority of the set falls behind.
    async fn keep_pace(
        &self,
        shared: &Shared,
        admitted: &Admitted<'_>,
        context: &Context,
    ) -> Result<(), Ended> {
        let pause = shared.node.write_pause(shared.clock.now());
        if !pause.is_zero() {
            context.interrupt.set_waiting(true);
            let held_back = async {
                tokio::time::sleep(pause).await;
                Ok(())
            };
            admitted.patience.wait(held_back).await?;
        }
        Ok(())
    }

    /// Runs a command once. A short one runs on this worker; one that is long, or turns out to be,
    /// leaves the worker to others and runs aside.
    async fn run_command(
        &mut self,
        context: &Context,
        command: Command,
        admitted: &mut Admitted<'_>,
    ) -> Result<Outcome, Ended> {
        let shared = admitted.patience.shared;
        let node = &shared.node;
        let kills = command.facts().is_some_and(CommandFacts::may_interrupt_others);
        let breaks = command.name() == "configureFailPoint";
        let outcome = match node.is_long(&command) {
            true => self.run_aside(context, command, &admitted.patience).await?,
            false => {
                let again = command.clone_if_it_may_turn_long();
                let outcome = match (command.may_write(), &shared.replica_set) {
                    (true, Some(set)) if admitted.may_force() => {
                        let run = || set.run_write(|| node.run(context, command));
                        let (outcome, unforced) = shared.writers.run(run).await;
                        admitted.unforced = unforced;
                        outcome
                    }
                    (true, _) => shared.writers.run(|| node.run(context, command)).await,
                    (false, _) => node.run(context, command),
                };
                match (outcome, again) {
                    (Outcome::Long, Some(again)) => {
                        self.run_aside(context, again, &admitted.patience).await?
                    }
                    (outcome, _) => outcome,
                }
            }
        };
        if kills {
            shared.kills.send_replace(());
        }
        if breaks {
            shared.break_as_told();
        }
        if shared.commits.receiver_count() > 0 {
            let committed = node.durability().0.as_u64();
            shared.commits.send_if_modified(|known| {
                let news = committed > *known;
                *known = committed.max(*known);
                news
            });
        }
        Ok(outcome)
    }

    /// Runs a command on a thread of its own, and stops it if its client leaves or the server ends.
    async fn run_aside(
        &mut self,
        context: &Context,
        command: Command,
        patience: &Patience<'_>,
    ) -> Result<Outcome, Ended> {
        let shared = patience.shared;
        let permits = match command.may_write() && !command.body.contains_key("autocommit") {
            true => &shared.long_writes,
            false => &shared.long_commands,
        };
        let _permit = patience.wait(async { Ok(permits.acquire().await) }).await?;
        let (node, interrupt) = (Arc::clone(&shared.node), Arc::clone(&context.interrupt));
        let context = Context { may_look_at: None, ..context.clone() };
        context.interrupt.lend(Arc::clone(&shared.helpers));
        let mut running = tokio::task::spawn_blocking(move || {
            set_thrift(node.memory().used() as u64);
            node.run(&context, command)
        });
        let mut ending = shared.ending.subscribe();
        let (mut client_left, mut ends) = (false, false);
        loop {
            tokio::select! {
                biased;
                outcome = &mut running => {
                    let outcome = match outcome {
                        Ok(outcome) => outcome,
                        Err(failed) => std::panic::resume_unwind(failed.into_panic()),
                    };
                    return if client_left { Err(Ended::Close) } else { Ok(outcome) };
                }
                _ = ending.wait_for(|ending| *ending), if !ends => {
                    ends = true;
                    interrupt.set(Interruption::Shutdown);
                }
                // What is sent ahead is read up to one message.
                read = read_more(&mut self.stream, &mut self.decoder),
                    if self.is_read_from && !client_left
                        && self.decoder.missing().is_ok_and(|missing| missing > 0) =>
                {
                    if !matches!(read, Ok(1..)) {
                        client_left = true;
                        interrupt.set(Interruption::Killed);
                    }
                }
            }
        }
    }

    /// The reply, once the writes that it reports are on disk if the client waits for that, and in the journal's file
    /// otherwise: they survive the end of this process. Other members answer for a write that they acknowledge. A write whose
    /// wait failed was applied all the same: its reply carries the write concern error.
    async fn durable(
        &self,
        reply: Reply,
        admitted: &Admitted<'_>,
    ) -> Result<RawDocumentBuf, Ended> {
        let Reply { mut body, durable: Some(durable), .. } = reply else {
            if admitted.writes && admitted.write_concern.is_none() {
                self.shared.durability.write_out().await?;
            }
            return Ok(reply.body);
        };
        let sequence = match durable {
            Durable::Commit(sequence) => sequence,
            Durable::All => self.shared.node.durability().0,
        };
        match admitted.patience.wait(self.shared.durability.wait(sequence)).await {
            Ok(()) => Ok(body),
            Err(error) if admitted.writes && admitted.patience.is_over() => {
                let error = write_concern_error(&error);
                append_write_concern_error(&mut body, error, admitted.retryable, &[]);
                Err(Ended::Reply(body))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Waits for an event until a time. Returns whether it came before, or the command was stopped.
    async fn wait_for(
        &mut self,
        events: &mut Events,
        event: WaitFor,
        cursor: Option<i64>,
        until: Instant,
        interrupt: &Interrupt,
    ) -> Result<bool, Ended> {
        let mut ending = self.shared.ending.subscribe();
        let timeout = tokio::time::sleep_until(until.into());
        tokio::pin!(timeout);
        // A change stream is woken by its own news; most changes are not for most streams.
        let woken = Arc::new(Notify::new());
        let waits = match cursor.filter(|_| event == WaitFor::CommitPoint) {
            None => None,
            Some(cursor) => {
                let woken = Arc::clone(&woken);
                match self.shared.node.await_stream(cursor, Box::new(move || woken.notify_one())) {
                    Awaited::Waits(wait) => Some(wait),
                    Awaited::News => return Ok(true),
                    Awaited::Unknown => None,
                }
            }
        };
        let by_itself = event == WaitFor::CommitPoint && waits.is_none();
        loop {
            tokio::select! {
                () = &mut timeout => return Ok(false),
                () = woken.notified() => return Ok(true),
                _ = events.topology.changed(), if event == WaitFor::TopologyChange => return Ok(true),
                _ = events.commits.changed(), if event == WaitFor::Commit => return Ok(true),
                () = events.commit_point.moved(), if by_itself => return Ok(true),
                _ = events.kills.changed() => {
                    let closed = cursor.is_some_and(|id| !self.shared.node.has_cursor(id));
                    if closed || interrupt.check().is_err() {
                        return Ok(true);
                    }
                }
                _ = ending.wait_for(|ending| *ending) => return Err(Ended::Close),
                // What is sent ahead is read up to one message.
                read = read_more(&mut self.stream, &mut self.decoder),
                    if self.decoder.missing().is_ok_and(|missing| missing > 0) =>
                {
                    if read? == 0 {
                        return Err(Ended::Close);
                    }
                }
            }
        }
    }
}

/// The part of another component than the member.
type Answering<'a> = Pin<Box<dyn Future<Output = Result<(), Ended>> + Send + 'a>>;

/// Ends the command if the set answers it or another member does, or checks it for the member.
async fn answer_as_set(
    set: &ReplicaSet,
    answerer: Answerer,
    command: &Command,
) -> Result<(), Ended> {
    if answerer == Answerer::ReplicaSet
        && let Some(body) = set.answer(command).await
    {
        return Err(Ended::Reply(body));
    }
    if set.forwards(command)
        && let Some(body) = set.forward(command).await
    {
        return Err(Ended::Reply(body));
    }
    if command.name() == SET_DEFAULTS {
        set.check_default(command).await?;
    }
    Ok(())
}

/// Whether a reply is `{cursor: …, ok: 1}`, which tells of no change of a state. Most replies are.
fn is_cursor_alone(reply: &RawDocument) -> bool {
    const BEGIN: &[u8] = b"\x03cursor\0";
    const END: &[u8] = b"\x01ok\0\0\0\0\0\0\0\xF0\x3F\0";
    let fields = reply.as_bytes().get(size_of::<i32>()..);
    let cursor = fields.and_then(|fields| fields.strip_prefix(BEGIN)?.strip_suffix(END));
    cursor.is_some_and(|cursor| length_prefix(cursor) == Some(cursor.len()))
}

/// Tells a client that this server is about to end.
fn quiescing() -> CommandError {
    CommandError::new(
        ErrorCode::SHUTDOWN_IN_PROGRESS,
        "The server is in quiesce mode and will shut down",
    )
}

/// Whether another component acts on the command before the member does, so that its rights are
/// checked here.
fn acts_here(command: &Command) -> bool {
    locks(command) || command.name() == SET_DEFAULTS
}

/// Whether writes that have passed the gate may wait for the transaction of this command.
fn passage_of(command: &Command) -> Passage {
    let starts = command.body.get("startTransaction") == Some(&Bson::Boolean(true));
    match command.body.contains_key("autocommit") && !starts {
        true => Passage::OfOpenTransaction,
        false => Passage::New,
    }
}

/// Waits until a write may pass, or the server ends.
async fn pass(shared: &Shared, passage: Passage) -> Result<Entered<'_>, CommandError> {
    let mut ending = shared.ending.subscribe();
    tokio::select! {
        entered = shared.gate.enter(passage) => Ok(entered),
        _ = ending.wait_for(|ending| *ending) => Err(CommandError::new(
            ErrorCode::INTERRUPTED_AT_SHUTDOWN,
            "the server is shutting down while writes are locked out",
        )),
    }
}

/// Whether it is the `fsync` that locks writes out.
fn locks(command: &Command) -> bool {
    command.name() == "fsync"
        && match command.body.get("lock") {
            Some(Bson::Boolean(lock)) => *lock,
            Some(Bson::Int32(lock)) => *lock != 0,
            Some(Bson::Int64(lock)) => *lock != 0,
            Some(Bson::Double(lock)) => *lock != 0.0,
            _ => false,
        }
}

/// Adds the error of waiting for other members to the reply of a write that was done.
fn append_write_concern_error(
    body: &mut RawDocumentBuf,
    error: Document,
    retryable: bool,
    labels: &[String],
) {
    let Ok(mut reply) = Document::try_from(&**body) else { return };
    // The commit of an unknown transaction was refused, but no majority has confirmed that: an older
    // primary may have it.
    reply.remove("errorLabels");
    let mut labels: Vec<_> = labels.iter().map(|label| Bson::from(label.as_str())).collect();
    // A retry at the next primary is safe, and tells whether the write survived.
    let elsewhere = error
        .get("code")
        .and_then(Bson::as_i32)
        .is_some_and(|code| ErrorCode(code).is_state_change());
    if labels.is_empty() && retryable && elsewhere {
        labels.push("RetryableWriteError".into());
    }
    if !labels.is_empty() {
        reply.insert("errorLabels", labels);
    }
    reply.insert("writeConcernError", error);
    if let Ok(changed) = RawDocumentBuf::try_from(&reply) {
        *body = changed;
    }
}
