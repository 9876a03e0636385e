//! Clients that run transactions of several statements, and repeat them as drivers do.
//!
//! Between two statements time passes, so that primaries crash, step down and are cut off inside a transaction, between
//! the commit and its answer, and between two attempts of a commit. A transaction that a member refused is run again
//! under the next number; a commit without an answer is sent again, to whichever member takes writes by then. Some
//! answers are lost on the way.
//!
//! The transactions append to lists and read them. What the clients were told is a history, and
//! `quorate-checker` judges it at the end: snapshot isolation, nothing done twice, nothing acknowledged lost.
//! Only worlds of the story `transactions` have these clients: what they write makes another world.

use std::collections::BTreeMap;
use std::time::Duration;

use bson::spec::BinarySubtype;
use bson::{Binary, Document, RawBsonRef, RawDocument, doc};
use quorate_checker::list_append::{self, Model};
use quorate_checker::{Action, History, MicroOperation, Operation, Outcome};
use quorate_node::Reply;
use quorate_protocol::{MonotonicTime, OpTime};
use quorate_replication::{Input, SeededRandom, WaiterId, WriteConcern};

use crate::judges::Life;
use crate::story::Story;
use crate::world::{Happening, World};

/// Makes this luck another one than the world's.
const LUCK: u64 = 0x0054_5841_4354;
/// Clients.
const CLIENTS: usize = 4;
/// Lists that are in use at a time, and how many values they take before others come.
const LISTS: u64 = 3;
const VALUES_PER_ERA: i64 = 120;
/// The most steps of a transaction.
const MAX_STEPS: u64 = 4;
/// Between two steps of a client, at most; and now and then.
const PAUSE: Duration = Duration::from_millis(80);
const LONG_PAUSE: Duration = Duration::from_secs(4);
/// How long a client waits for the answer to a commit.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often a commit is sent, and how often a transaction is run.
const MAX_COMMITS: u32 = 12;
const MAX_ATTEMPTS: u32 = 8;
/// Waiters of commits are numbered from here, far above those of reads.
pub(crate) const FIRST_WAITER: u64 = 1 << 41;
/// The label of an error after which the transaction did nothing.
const TRANSIENT: &str = "TransientTransactionError";

/// How far a client is.
#[derive(Clone, Copy, Debug)]
enum Phase {
    /// It looks for a member that takes writes.
    Beginning,
    /// It has run so many steps there.
    Running { life: Life, place: usize },
    /// It sends the commit; the first time to the member that ran the steps.
    Committing { life: Life, sent: u32 },
    /// It waits for the answer to the commit.
    Waiting { life: Life, sent: u32, waiter: WaiterId, until: MonotonicTime, committed: bool },
}

/// A transaction that is not over.
#[derive(Clone, Debug)]
struct Work {
    /// Its place among the operations.
    operation: usize,
    steps: Vec<MicroOperation>,
    attempts: u32,
    phase: Phase,
}

#[derive(Clone, Debug, Default)]
struct Transactor {
    number: i64,
    work: Option<Work>,
}

/// The clients, and what the judge remembers.
pub(crate) struct Transactors {
    random: SeededRandom,
    clients: Vec<Transactor>,
    value: i64,
    next_waiter: u64,
    operations: Vec<Operation>,
    /// What was committed where, by any member. Not all of it lasts.
    written: BTreeMap<OpTime, Vec<i64>>,
}

impl Transactors {
    pub(crate) fn new(seed: u64, story: Story) -> Self {
        let clients = if story == Story::Transactions { CLIENTS } else { 0 };
        Self {
            random: SeededRandom::new(seed ^ LUCK),
            clients: vec![Transactor::default(); clients],
            value: 0,
            next_waiter: FIRST_WAITER,
            operations: Vec::new(),
            written: BTreeMap::new(),
        }
    }

    /// New steps, none of which has learnt anything.
    fn draw(&mut self) -> Vec<MicroOperation> {
        let count = 1 + self.random.below(MAX_STEPS);
        let steps = (0..count).map(|_| {
            self.value += 1;
            let era = self.value / VALUES_PER_ERA * LISTS as i64;
            let key = era + self.random.below(LISTS) as i64;
            match self.random.chance(50) {
                true => MicroOperation::Append { key, value: self.value },
                false => MicroOperation::Read { key, list: None },
            }
        });
        steps.collect()
    }
}

/// The session of a client.
fn session(client: usize) -> Document {
    let mut bytes = vec![7; 16];
    (bytes[0], bytes[1]) = (client as u8, 4);
    doc! { "id": Binary { subtype: BinarySubtype::Uuid, bytes } }
}

fn is_fine(reply: &Reply) -> bool {
    reply.body.get_f64("ok").is_ok_and(|ok| ok == 1.0)
        && reply.body.get_array("writeErrors").is_err()
}

fn is_transient(reply: &Reply) -> bool {
    let labels = reply.body.get_array("errorLabels").into_iter().flatten();
    labels.flatten().any(|label| label == RawBsonRef::String(TRANSIENT))
}

/// The list of the first document of a batch; empty if there is none.
fn list_of(reply: &RawDocument) -> Vec<i64> {
    let Ok((_, documents)) = quorate_member::batch_of(reply) else { return Vec::new() };
    let Some(document) = documents.first() else { return Vec::new() };
    let values = document.get_array("list").into_iter().flatten().flatten();
    values.filter_map(RawBsonRef::as_i64).collect()
}

impl World {
    pub(crate) fn begin_transactions(&mut self) {
        for client in 0..self.transactors.clients.len() {
            self.schedule(Duration::from_secs(1), Happening::Transact { client });
        }
    }

    /// A client takes its next step.
    pub(crate) fn transact(&mut self, client: usize) {
        if !self.turmoil {
            return;
        }
        let random = &mut self.transactors.random;
        let longest = if random.chance(4) { LONG_PAUSE } else { PAUSE };
        let pause = random.duration_up_to(longest);
        self.schedule(pause, Happening::Transact { client });
        let work = match self.transactors.clients[client].work.take() {
            Some(work) => work,
            None => self.new_work(client),
        };
        let kept = match work.phase {
            Phase::Beginning => self.begin_transaction(client, work),
            Phase::Running { life, place } => self.run_step(client, work, life, place),
            Phase::Committing { life, sent } => self.send_commit(client, work, life, sent),
            Phase::Waiting { life, sent, until, .. } if until <= self.now => {
                Some(Work { phase: Phase::Committing { life, sent }, ..work })
            }
            Phase::Waiting { .. } => Some(work),
        };
        // An answer may have come while the commit was sent.
        if let Some(kept) = kept {
            self.transactors.clients[client].work = Some(kept);
        }
    }

    fn new_work(&mut self, client: usize) -> Work {
        let transactors = &mut self.transactors;
        let steps = transactors.draw();
        let operation = transactors.operations.len();
        transactors.operations.push(Operation {
            index: operation,
            process: client as u64,
            invoked: self.now.as_nanos(),
            completed: None,
            outcome: Outcome::Unknown,
            action: Action::Transaction(steps.clone()),
        });
        Work { operation, steps, attempts: 0, phase: Phase::Beginning }
    }

    /// A member that takes writes, as the client finds it.
    fn some_primary(&mut self) -> Option<usize> {
        let found: Vec<usize> =
            (0..self.nodes.len()).filter(|index| self.nodes[*index].is_writable()).collect();
        let place = self.transactors.random.below(found.len().max(1) as u64) as usize;
        found.get(place).copied()
    }

    fn begin_transaction(&mut self, client: usize, mut work: Work) -> Option<Work> {
        if let Some(index) = self.some_primary() {
            self.transactors.clients[client].number += 1;
            work.attempts += 1;
            work.phase = Phase::Running { life: self.nodes[index].life, place: 0 };
        }
        Some(work)
    }

    /// A command of a client's transaction. None if the process is down.
    fn run_within(&mut self, client: usize, index: usize, mut command: Document) -> Option<Reply> {
        command.insert("lsid", session(client));
        command.insert("txnNumber", self.transactors.clients[client].number);
        command.insert("autocommit", false);
        self.run_client(index, command)
    }

    fn run_step(
        &mut self,
        client: usize,
        mut work: Work,
        life: Life,
        place: usize,
    ) -> Option<Work> {
        let Some(step) = work.steps.get(place).cloned() else {
            return self.send_commit(client, work, life, 0);
        };
        let mut command = match step {
            MicroOperation::Append { key, value } => doc! { "update": "lists", "updates": [{
                "q": { "_id": key }, "u": { "$push": { "list": value } }, "upsert": true,
            }] },
            MicroOperation::Read { key, .. } => doc! { "find": "lists", "filter": { "_id": key } },
        };
        if place == 0 {
            command.insert("startTransaction", true);
            command.insert("readConcern", doc! { "level": "snapshot" });
        }
        let reply = match self.is_alive(life) {
            true => self.run_within(client, life.node, command),
            false => None,
        };
        let Some(reply) = reply.filter(is_fine) else {
            return self.run_again(client, work);
        };
        if let MicroOperation::Read { key, .. } = step {
            let list = Some(list_of(&reply.body));
            work.steps[place] = MicroOperation::Read { key, list };
        }
        work.phase = Phase::Running { life, place: place + 1 };
        Some(work)
    }

    /// The transaction did nothing: the client runs it again, or gives it up.
    fn run_again(&mut self, client: usize, mut work: Work) -> Option<Work> {
        if work.attempts >= MAX_ATTEMPTS {
            self.finish_work(client, work, Outcome::Fail);
            return None;
        }
        for step in &mut work.steps {
            if let MicroOperation::Read { list, .. } = step {
                *list = None;
            }
        }
        work.phase = Phase::Beginning;
        Some(work)
    }

    fn send_commit(
        &mut self,
        client: usize,
        mut work: Work,
        life: Life,
        sent: u32,
    ) -> Option<Work> {
        if sent >= MAX_COMMITS {
            self.finish_work(client, work, Outcome::Unknown);
            return None;
        }
        let there = if sent == 0 && self.is_alive(life) { Some(life.node) } else { None };
        let Some(index) = there.or_else(|| self.some_primary()) else {
            work.phase = Phase::Committing { life, sent: sent.max(1) };
            return Some(work);
        };
        let commit = doc! {
            "commitTransaction": 1, "writeConcern": { "w": "majority" }, "$db": "admin",
        };
        let reply = self.run_within(client, index, commit);
        work.phase = Phase::Committing { life, sent: sent + 1 };
        let Some(reply) = reply else { return Some(work) };
        let committed = is_fine(&reply);
        if let (true, Some(op_time)) = (committed, reply.op_time) {
            self.note_commit(op_time, &work);
        }
        let lost = self.transactors.random.chance(15);
        match reply.op_time {
            _ if lost => Some(work),
            Some(op_time) => self.await_commit(client, index, work, op_time, committed),
            None if committed => {
                self.finish_work(client, work, Outcome::Ok);
                None
            }
            None if is_transient(&reply) => self.run_again(client, work),
            None => Some(work),
        }
    }

    fn note_commit(&mut self, op_time: OpTime, work: &Work) {
        let values: Vec<i64> = work
            .steps
            .iter()
            .filter_map(|step| match step {
                MicroOperation::Append { value, .. } => Some(*value),
                MicroOperation::Read { .. } => None,
            })
            .collect();
        if !values.is_empty() {
            self.transactors.written.insert(op_time, values);
        }
    }

    /// The member answers once a majority has what the answer rests on.
    fn await_commit(
        &mut self,
        client: usize,
        index: usize,
        mut work: Work,
        op_time: OpTime,
        committed: bool,
    ) -> Option<Work> {
        let Phase::Committing { life, sent } = work.phase else { return Some(work) };
        self.transactors.next_waiter += 1;
        let waiter = WaiterId(self.transactors.next_waiter);
        let until = self.now + PATIENCE;
        work.phase = Phase::Waiting { life, sent, waiter, until, committed };
        self.transactors.clients[client].work = Some(work);
        let concern = WriteConcern::majority();
        let input = Input::AcknowledgementWanted { waiter, op_time, concern };
        self.drive(index, |member, now| {
            member.log_moved(now);
            member.handle_waiter(now, input);
        });
        None
    }

    /// The write concern of a commit is satisfied, or cannot be any more.
    pub(crate) fn commit_answered(&mut self, waiter: WaiterId, fine: bool) {
        let waits = |client: &Transactor| {
            client.work.as_ref().is_some_and(
                |work| matches!(work.phase, Phase::Waiting { waiter: known, .. } if known == waiter),
            )
        };
        let Some(client) = self.transactors.clients.iter().position(waits) else { return };
        let Some(mut work) = self.transactors.clients[client].work.take() else { return };
        let Phase::Waiting { life, sent, committed, .. } = work.phase else { return };
        let kept = match (fine, committed) {
            (true, true) => {
                self.finish_work(client, work, Outcome::Ok);
                None
            }
            (true, false) => self.run_again(client, work),
            (false, _) => {
                work.phase = Phase::Committing { life, sent };
                Some(work)
            }
        };
        self.transactors.clients[client].work = kept;
    }

    fn finish_work(&mut self, _client: usize, work: Work, outcome: Outcome) {
        let now = self.now.as_nanos();
        let operation = &mut self.transactors.operations[work.operation];
        operation.outcome = outcome;
        operation.completed = (outcome != Outcome::Unknown).then_some(now);
        if outcome == Outcome::Ok {
            operation.action = Action::Transaction(work.steps);
            self.figures.transactions += 1;
            self.figures.repeated_transactions += u64::from(work.attempts > 1);
        }
    }

    /// The values that were appended and last, in the order of the log.
    pub(crate) fn lasting_values(&self, leader: usize) -> Vec<i64> {
        let history = self.judges.history(self.nodes[leader].disk.last().op_time);
        let written = self.transactors.written.iter();
        let lasting = written.filter(|(op_time, _)| history.contains(op_time));
        lasting.flat_map(|(_, values)| values.iter().copied()).collect()
    }

    /// What the clients of transactions were told is what snapshot isolation allows.
    pub(crate) fn judge_transactions(&mut self, leader: usize) -> Result<(), String> {
        if self.judges.is_forgiving() || self.transactors.clients.is_empty() {
            return Ok(());
        }
        let mut operations = std::mem::take(&mut self.transactors.operations);
        let local = doc! { "level": "local" };
        for (number, document) in
            self.all_documents(leader, ("test", "lists"), local)?.iter().enumerate()
        {
            let key = document.get_i64("_id").unwrap_or(-1);
            let values = document.get_array("list").into_iter().flatten().flatten();
            let list = Some(values.filter_map(RawBsonRef::as_i64).collect());
            let at = self.now.as_nanos() + 1 + number as u64;
            operations.push(Operation {
                index: operations.len(),
                process: CLIENTS as u64,
                invoked: at,
                completed: Some(at),
                outcome: Outcome::Ok,
                action: Action::Transaction(vec![MicroOperation::Read { key, list }]),
            });
        }
        let verdict = list_append::check(&History::new(operations), Model::SnapshotIsolation);
        match verdict.anomalies.first() {
            None => Ok(()),
            Some(anomaly) => Err(format!("transactions are isolated and done once: {anomaly:?}")),
        }
    }
}
