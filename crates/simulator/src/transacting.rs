//! Clients that run transactions of several statements, and repeat them as drivers do.
//!
//! Between two statements time passes, so that primaries crash, step down and are cut off inside a transaction, between
//! the commit and its answer, and between two attempts of a commit. Each statement goes to a member that takes writes
//! by then, which may be another one than before, or the same one in a later term. A transaction that a member refused
//! is run again under the next number; a commit without an answer is sent again. Some answers are lost on the way: a
//! client that misses the answer to a statement aborts, and begins again. Some transactions are aborted on purpose.
//!
//! Between transactions a session is used for a single write that is repeated under one number until it is answered.
//! Only such writes change the list of their client, in a collection of their own, so that none ever waits for a
//! transaction.
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
use quorate_protocol::{ErrorCode, MonotonicTime, OpTime};
use quorate_replication::{SeededRandom, WaiterId, WriteConcern};

use crate::judges::{Life, Verdict};
use crate::story::Story;
use crate::world::{Happening, World};

/// Makes this luck another one than the world's.
const LUCK: u64 = 0x0054_5841_4354;
/// Clients.
const CLIENTS: usize = 6;
/// This one thinks for long within each of its transactions, after it has changed the list below: meanwhile its
/// primary may lose its office and be elected again.
const THINKER: usize = 0;
const THINKERS_LIST: i64 = 1_000_000;
/// These and those after them only read, where a transaction was just committed: what they see may be undone.
const FIRST_READER: usize = 4;
/// Lists that are in use at a time, and how many values they take before others come.
const LISTS: u64 = 3;
const VALUES_PER_ERA: i64 = 120;
/// The most steps of a transaction.
const MAX_STEPS: u64 = 4;
/// Between two steps of a client, at most; and now and then.
const PAUSE: Duration = Duration::from_millis(80);
const LONG_PAUSE: Duration = Duration::from_secs(4);
/// So long may an application think before it goes on.
const THOUGHT: Duration = Duration::from_secs(25);
/// How many of a hundred pauses are long, and how many are for thought.
const LONG_PERCENT: u64 = 4;
const THOUGHT_PERCENT: u64 = 2;
/// How many of a hundred answers are lost: to statements, and to commits.
const LOST_STATEMENT_PERCENT: u64 = 2;
const LOST_COMMIT_PERCENT: u64 = 15;
/// How many of a hundred transactions are aborted on purpose, and how many are single writes instead.
const ABORT_PERCENT: u64 = 5;
const SINGLE_PERCENT: u64 = 10;
/// How long a client waits for the answer to a commit.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often a commit is sent, and how often a transaction is run.
const MAX_COMMITS: u32 = 12;
const MAX_ATTEMPTS: u32 = 8;
/// Waiters of commits are numbered from here, far above those of reads.
pub(crate) const FIRST_WAITER: u64 = 1 << 41;
/// The label of an error after which the transaction did nothing.
const TRANSIENT: &str = "TransientTransactionError";

/// TransactionTooOld.
const TOO_OLD: i32 = ErrorCode::TRANSACTION_TOO_OLD.0;
/// What the first statement of a number that is in use already is refused with: NoSuchTransaction,
/// TransactionCommitted, ConflictingOperationInProgress.
const NOT_FREE: [i32; 3] = [
    ErrorCode::NO_SUCH_TRANSACTION.0,
    ErrorCode::TRANSACTION_COMMITTED.0,
    ErrorCode::CONFLICTING_OPERATION_IN_PROGRESS.0,
];

/// How far a client is.
#[derive(Clone, Copy, Debug)]
enum Phase {
    /// The client looks for a member that takes writes.
    Beginning,
    /// The client has run steps on this member.
    Running { life: Life, place: usize },
    /// The client sends the commit, or the single write; the first time to the member that ran the steps.
    Committing { life: Life, sent: u32 },
    /// The client waits for the answer to the commit.
    Waiting { life: Life, sent: u32, waiter: WaiterId, until: MonotonicTime, committed: bool },
}

/// A transaction that is not over.
#[derive(Clone, Debug)]
struct Work {
    /// Its place among the operations.
    operation: usize,
    steps: Vec<MicroOperation>,
    attempts: u32,
    /// Whether it is one write of its own, without a transaction.
    single: bool,
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
    /// The values that transactions committed at each position, on any member. A rollback may undo some.
    written: BTreeMap<OpTime, Vec<i64>>,
    /// Where a transaction was committed last.
    last_written: Option<Life>,
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
            last_written: None,
        }
    }

    /// New steps, none of which has learnt anything; and whether they are a single write.
    fn draw(&mut self, client: usize) -> (Vec<MicroOperation>, bool) {
        if client == THINKER {
            self.value += 1;
            let (key, value) = (THINKERS_LIST, self.value);
            let steps = vec![
                MicroOperation::Append { key, value },
                MicroOperation::Read { key, list: None },
            ];
            return (steps, false);
        }
        if client >= FIRST_READER {
            let era = self.value / VALUES_PER_ERA * LISTS as i64;
            let keys = (era..era + LISTS as i64).chain([THINKERS_LIST]);
            let reads = keys.map(|key| MicroOperation::Read { key, list: None });
            return (reads.collect(), false);
        }
        if self.random.chance(SINGLE_PERCENT) {
            self.value += 1;
            return (
                vec![MicroOperation::Append { key: own_list(client), value: self.value }],
                true,
            );
        }
        let count = 1 + self.random.below(MAX_STEPS);
        let steps = (0..count).map(|_| {
            self.value += 1;
            let era = self.value / VALUES_PER_ERA * LISTS as i64;
            let key = match self.random.below(12) {
                0 => THINKERS_LIST,
                _ => era + self.random.below(LISTS) as i64,
            };
            match self.random.below(10) {
                0..5 => MicroOperation::Append { key, value: self.value },
                5 => {
                    let key = own_list(self.random.below(CLIENTS as u64) as usize);
                    MicroOperation::Read { key, list: None }
                }
                _ => MicroOperation::Read { key, list: None },
            }
        });
        (steps.collect(), false)
    }
}

/// The list that only single writes of this client change.
fn own_list(client: usize) -> i64 {
    -1 - client as i64
}

/// The collection of a list.
fn collection_of(key: i64) -> &'static str {
    if key < 0 { "singles" } else { "lists" }
}

/// The change of an append.
fn append(key: i64, value: i64) -> Document {
    doc! { "update": collection_of(key), "updates": [{
        "q": { "_id": key }, "u": { "$push": { "list": value } }, "upsert": true,
    }] }
}

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
        const LONG: u64 = THOUGHT_PERCENT + LONG_PERCENT;
        let random = &mut self.transactors.random;
        let longest = match random.below(100) {
            0..THOUGHT_PERCENT => THOUGHT,
            THOUGHT_PERCENT..LONG => LONG_PAUSE,
            _ => PAUSE,
        };
        let pause = random.duration_up_to(longest);
        let work = match self.transactors.clients[client].work.take() {
            Some(work) => work,
            None => self.new_work(client),
        };
        let thinks = client == THINKER && matches!(work.phase, Phase::Running { place: 0, .. });
        let pause = if thinks { self.transactors.random.duration_up_to(THOUGHT) } else { pause };
        self.schedule(pause, Happening::Transact { client });
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
        let (steps, single) = transactors.draw(client);
        let operation = transactors.operations.len();
        transactors.operations.push(Operation {
            index: operation,
            process: client as u64,
            invoked: self.now.as_nanos(),
            completed: None,
            outcome: Outcome::Unknown,
            action: Action::Transaction(steps.clone()),
        });
        Work { operation, steps, attempts: 0, single, phase: Phase::Beginning }
    }

    fn takes_writes(&self, index: usize) -> bool {
        self.nodes[index].is_running() && self.nodes[index].is_writable()
    }

    /// A member that takes writes, as the client finds it.
    fn some_primary(&mut self) -> Option<usize> {
        let found: Vec<usize> =
            (0..self.nodes.len()).filter(|index| self.takes_writes(*index)).collect();
        let place = self.transactors.random.below(found.len().max(1) as u64) as usize;
        found.get(place).copied()
    }

    fn begin_transaction(&mut self, client: usize, mut work: Work) -> Option<Work> {
        let written = self.transactors.last_written.filter(|_| client >= FIRST_READER);
        let primary = match written {
            Some(life) => self.primary_for(life),
            None => self.some_primary(),
        };
        if let Some(index) = primary {
            self.transactors.clients[client].number += 1;
            work.attempts += 1;
            let life = self.nodes[index].life;
            work.phase = match work.single {
                true => Phase::Committing { life, sent: 0 },
                false => Phase::Running { life, place: 0 },
            };
        }
        Some(work)
    }

    /// A command of a client's transaction. None if the process is down.
    fn run_within(&mut self, client: usize, index: usize, mut command: Document) -> Option<Reply> {
        command.insert("autocommit", false);
        self.run_numbered(client, index, command)
    }

    /// A command under the number of a client. None if the process is down.
    fn run_numbered(
        &mut self,
        client: usize,
        index: usize,
        mut command: Document,
    ) -> Option<Reply> {
        command.insert("lsid", session(client));
        command.insert("txnNumber", self.transactors.clients[client].number);
        let begins = command.contains_key("startTransaction");
        let reply = self.run_client(index, command)?;
        self.judge_number(client, index, begins, &reply);
        Some(reply)
    }

    /// A client's numbers only grow, so none of them is ever too old, and each is free when it is used first.
    fn judge_number(&mut self, client: usize, index: usize, begins: bool, reply: &Reply) {
        let code = reply.body.get_i32("code").unwrap_or_default();
        if code == TOO_OLD || (begins && NOT_FREE.contains(&code)) {
            let number = self.transactors.clients[client].number;
            let what = format!(
                "n{index} refuses the newest number {number} of client {client}: {:?}",
                reply.body
            );
            self.verdict = self.verdict.clone().and(Err(Verdict(what)));
        }
    }

    /// Where the next statement goes: where the last one went if that member still takes writes or does so again,
    /// otherwise to another one.
    fn primary_for(&mut self, life: Life) -> Option<usize> {
        match self.is_alive(life) && self.takes_writes(life.node) {
            true => Some(life.node),
            false => self.some_primary(),
        }
    }

    fn run_step(
        &mut self,
        client: usize,
        mut work: Work,
        life: Life,
        place: usize,
    ) -> Option<Work> {
        let Some(step) = work.steps.get(place).cloned() else {
            if self.transactors.random.chance(ABORT_PERCENT) {
                self.abort_transaction(client, life);
                self.finish_work(work, Outcome::Fail);
                return None;
            }
            return self.send_commit(client, work, life, 0);
        };
        let mut command = match step {
            MicroOperation::Append { key, value } => append(key, value),
            MicroOperation::Read { key, .. } => {
                doc! { "find": collection_of(key), "filter": { "_id": key } }
            }
        };
        if place == 0 {
            command.insert("startTransaction", true);
            command.insert("readConcern", doc! { "level": "snapshot" });
        }
        let Some(index) = self.primary_for(life) else { return self.run_again(work) };
        let moved = self.nodes[index].life != life;
        let Some(reply) = self.run_within(client, index, command) else {
            return self.run_again(work);
        };
        let lost = self.transactors.random.chance(LOST_STATEMENT_PERCENT);
        if lost || !is_fine(&reply) {
            self.figures.strange_statements += u64::from(moved);
            self.abort_transaction(client, self.nodes[index].life);
            return self.run_again(work);
        }
        let life = self.nodes[index].life;
        if let MicroOperation::Read { key, .. } = step {
            let list = Some(list_of(&reply.body));
            work.steps[place] = MicroOperation::Read { key, list };
        }
        work.phase = Phase::Running { life, place: place + 1 };
        Some(work)
    }

    /// The client aborts, and does not care for the answer.
    fn abort_transaction(&mut self, client: usize, life: Life) {
        if let Some(index) = self.primary_for(life) {
            let abort = doc! { "abortTransaction": 1, "$db": "admin" };
            let _ = self.run_within(client, index, abort);
        }
    }

    /// The transaction did nothing: the client runs it again, or gives it up.
    fn run_again(&mut self, mut work: Work) -> Option<Work> {
        if work.attempts >= MAX_ATTEMPTS {
            self.finish_work(work, Outcome::Fail);
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
            self.finish_work(work, Outcome::Unknown);
            return None;
        }
        let there = if sent == 0 && self.is_alive(life) { Some(life.node) } else { None };
        let Some(index) = there.or_else(|| self.some_primary()) else {
            work.phase = Phase::Committing { life, sent: sent.max(1) };
            return Some(work);
        };
        let reply = match (work.single, work.steps.first()) {
            (true, Some(&MicroOperation::Append { key, value })) => {
                self.run_numbered(client, index, append(key, value))
            }
            _ => {
                let commit = doc! {
                    "commitTransaction": 1, "writeConcern": { "w": "majority" }, "$db": "admin",
                };
                self.run_within(client, index, commit)
            }
        };
        work.phase = Phase::Committing { life, sent: sent + 1 };
        let Some(mut reply) = reply else { return Some(work) };
        let committed = is_fine(&reply);
        if work.single && committed && reply.op_time.is_none() {
            // It was done before, and nothing was written: like the server, the client waits for the newest entry.
            reply.op_time = self.nodes[index].data().map(|data| data.standing().last.op_time);
        }
        if let (true, Some(op_time)) = (committed, reply.op_time) {
            self.note_commit(self.nodes[index].life, op_time, &work);
        }
        let lost = self.transactors.random.chance(LOST_COMMIT_PERCENT);
        match reply.op_time {
            _ if lost => Some(work),
            Some(op_time) => self.await_commit(client, index, work, op_time, committed),
            None if committed => {
                self.finish_work(work, Outcome::Ok);
                None
            }
            None if is_transient(&reply) => self.run_again(work),
            None => Some(work),
        }
    }

    fn note_commit(&mut self, life: Life, op_time: OpTime, work: &Work) {
        let values: Vec<i64> = work
            .steps
            .iter()
            .filter_map(|step| match step {
                MicroOperation::Append { key: 0.., value } => Some(*value),
                MicroOperation::Append { .. } | MicroOperation::Read { .. } => None,
            })
            .collect();
        if !values.is_empty() {
            self.transactors.last_written = Some(life);
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
        self.await_acknowledgement(index, waiter, op_time, WriteConcern::majority());
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
                self.finish_work(work, Outcome::Ok);
                None
            }
            (true, false) => {
                self.figures.unknown_commits += 1;
                self.run_again(work)
            }
            (false, _) => {
                work.phase = Phase::Committing { life, sent };
                Some(work)
            }
        };
        self.transactors.clients[client].work = kept;
    }

    fn finish_work(&mut self, work: Work, outcome: Outcome) {
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
        let history = self.judges.history(self.nodes[leader].disk.last().op_time);
        let written = self.transactors.written.keys();
        self.figures.undone_transactions =
            written.filter(|op_time| !history.contains(op_time)).count() as u64;
        let mut operations = std::mem::take(&mut self.transactors.operations);
        let local = doc! { "level": "local" };
        let mut documents = self.all_documents(leader, ("test", "lists"), local.clone())?;
        documents.extend(self.all_documents(leader, ("test", "singles"), local)?);
        for (number, document) in documents.iter().enumerate() {
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
