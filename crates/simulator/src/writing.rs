//! Clients that write: real commands, and what their clients were told.
//!
//! | deed | command | judged by |
//! |---|---|---|
//! | set a key | `update` with `upsert`, whose documents pass unique slots to each other | reads, and the end |
//! | count | `update` with `$inc`, repeated under its number until it is acknowledged | the end: exactly once |
//! | transfer | a transaction over two accounts | every read of the accounts: the sum is zero |
//! | other | inserts, deletes and updates of many, indexes, collections that come and go | the end: equal everywhere |

use std::time::Duration;

use bson::spec::BinarySubtype;
use bson::{Binary, Document, doc};
use quorate_node::{Command, Outcome, Reply};
use quorate_protocol::{MonotonicTime, OpTime};
use quorate_replication::{Input, WaiterId, WriteConcern};

use crate::judges::Verdict;
use crate::transacting;
use crate::world::{Happening, World};

/// Keys that clients set.
pub(crate) const KEYS: u64 = 50;
/// Values of the unique field: a few more than keys, so that they are taken over quickly.
const SLOTS: u64 = 56;
/// Accounts of transfers.
const ACCOUNTS: u64 = 6;
/// How long a client waits before it repeats a count.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a write was about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    Set { key: u64 },
    Count,
    Other,
}

/// A write that a client tried.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempt {
    pub(crate) deed: Deed,
    /// The client that wrote it, if one did.
    pub(crate) client: Option<usize>,
    /// Where it stands in the history; null if it was refused.
    pub(crate) op_time: OpTime,
    pub(crate) majority: bool,
    pub(crate) acknowledged: bool,
    /// The session and the number under which it was sent.
    pub(crate) session: Option<(SessionKey, i64)>,
}

/// A client, and what it uses a session for.
pub(crate) type SessionKey = (u8, u8);

/// How far a client has counted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counting {
    /// Counts that were acknowledged by a majority.
    pub(crate) counted: i64,
    /// The count that is not: its waiter, and when it is repeated.
    pub(crate) open: Option<(WaiterId, MonotonicTime)>,
    /// Whether it was ever tried.
    pub(crate) tried: bool,
}

/// The clients that write.
pub(crate) struct Writers {
    /// The number of an attempt is the value that it writes.
    pub(crate) attempts: Vec<Attempt>,
    pub(crate) counting: Vec<Counting>,
    /// The next number of each client's other sessions.
    numbers: Vec<i64>,
    inserted: i64,
}

impl Writers {
    pub(crate) fn new(clients: usize) -> Self {
        Self {
            attempts: Vec::new(),
            counting: vec![Counting::default(); clients],
            numbers: vec![0; clients],
            inserted: 0,
        }
    }
}

/// The session of a client for one purpose.
fn session(client: usize, purpose: u8) -> Document {
    let mut bytes = vec![7; 16];
    (bytes[0], bytes[1]) = (client as u8, purpose);
    doc! { "id": Binary { subtype: BinarySubtype::Uuid, bytes } }
}

impl World {
    pub(crate) fn client_writes(&mut self, client: usize) {
        if !self.turmoil {
            return;
        }
        let pause = self.random.duration_up_to(self.scale.think * 2);
        self.schedule(pause, Happening::ClientWrites { client });
        // Clients may be cut off with an old primary: any member that takes writes will do. Some do not
        // know better and ask one that takes none.
        let astray = self.random.chance(8);
        let asked: Vec<usize> = (0..self.nodes.len())
            .filter(|index| self.nodes[*index].is_running())
            .filter(|index| astray || self.nodes[*index].is_writable())
            .collect();
        if asked.is_empty() {
            return;
        }
        let index = asked[self.random.below(asked.len() as u64) as usize];
        match self.random.below(100) {
            0..60 => self.set_a_key(index, Some(client)),
            60..75 => self.count(index, client),
            75..83 => self.transfer(index, client),
            _ => self.other_deed(index),
        }
    }

    /// Runs a command of a client. None if the process is down or the command was refused.
    fn run_write(&mut self, index: usize, command: Document) -> Option<Reply> {
        let reply = self.run_client(index, command)?;
        let fine = reply.body.get_f64("ok").is_ok_and(|ok| ok == 1.0)
            && reply.body.get_array("writeErrors").is_err();
        fine.then_some(reply)
    }

    /// Runs a command of a client, whatever it is answered. None if the process is down.
    pub(crate) fn run_client(&mut self, index: usize, mut command: Document) -> Option<Reply> {
        if !command.contains_key("$db") {
            command.insert("$db", "test");
        }
        let data = self.nodes[index].data().filter(|_| self.nodes[index].is_running())?;
        let before = data.standing();
        let Outcome::Reply(reply) = data.run(&self.context(index), Command::new(command)) else {
            return None;
        };
        if data.standing().last != before.last {
            let writable = self.nodes[index].is_writable();
            if !writable {
                let what = format!("n{index} took a write and is no primary: {:?}", reply.body);
                self.verdict = self.verdict.clone().and(Err(Verdict(what)));
            }
            self.written_here(index);
        }
        Some(reply)
    }

    /// A client waits for its write to be acknowledged.
    fn await_write(
        &mut self,
        index: usize,
        deed: Deed,
        client: Option<usize>,
        session: Option<(SessionKey, i64)>,
        reply: Option<&Reply>,
    ) {
        let majority = deed == Deed::Count || self.random.chance(60);
        let waiter = WaiterId(self.writers.attempts.len() as u64);
        self.figures.tried += 1;
        let data = self.nodes[index].data();
        let last = data.map(|data| data.standing().last.op_time).unwrap_or_default();
        // A write that changed nothing has read the current value.
        let op_time = reply.map(|reply| reply.op_time.unwrap_or(last));
        let (at, acknowledged) = (op_time.unwrap_or_default(), false);
        let attempt = Attempt { deed, client, op_time: at, majority, acknowledged, session };
        self.writers.attempts.push(attempt);
        if let Some(op_time) = op_time {
            let concern = if majority { WriteConcern::majority() } else { WriteConcern::number(1) };
            self.await_acknowledgement(index, waiter, op_time, concern);
        }
    }

    /// Asks a member to say when an entry is acknowledged.
    pub(crate) fn await_acknowledgement(
        &mut self,
        index: usize,
        waiter: WaiterId,
        op_time: OpTime,
        concern: WriteConcern,
    ) {
        let input = Input::AcknowledgementWanted { waiter, op_time, concern };
        self.drive(index, |member, now| {
            member.log_moved(now);
            member.handle_waiter(now, input);
        });
    }

    pub(crate) fn set_a_key(&mut self, index: usize, client: Option<usize>) {
        if self.random.chance(5) {
            let index_of_slots = doc! { "key": { "slot": 1 }, "name": "slot_1", "unique": true };
            let _ = self
                .run_write(index, doc! { "createIndexes": "keys", "indexes": [index_of_slots] });
        }
        let key = self.random.below(KEYS);
        let value = self.writers.attempts.len() as i64;
        let slot = self.random.below(SLOTS) as i64;
        let change = doc! { "$set": { "value": value, "slot": slot } };
        let mut command = doc! {
            "update": "keys",
            "updates": [{ "q": { "_id": key as i64 }, "u": change, "upsert": true }],
        };
        if let Some(client) = client {
            self.writers.numbers[client] += 1;
            command.insert("lsid", session(client, 1));
            command.insert("txnNumber", self.writers.numbers[client]);
        }
        let reply = self.run_write(index, command);
        let known = client.map(|client| ((client as u8, 1), self.writers.numbers[client]));
        self.await_write(index, Deed::Set { key }, client, known, reply.as_ref());
    }

    /// A client counts by one, or repeats its count where it was not told that it is done.
    fn count(&mut self, index: usize, client: usize) {
        let counting = self.writers.counting[client];
        if counting.open.is_some_and(|(_, until)| until > self.now) {
            return;
        }
        let command = doc! {
            "update": "counters",
            "updates": [{
                "q": { "_id": client as i64 }, "u": { "$inc": { "n": 1_i64 } }, "upsert": true,
            }],
            "lsid": session(client, 2),
            "txnNumber": counting.counted + 1,
        };
        let reply = self.run_write(index, command);
        self.writers.counting[client].tried = true;
        // The answer may come at once.
        let waiter = WaiterId(self.writers.attempts.len() as u64);
        self.writers.counting[client].open = Some((waiter, self.now + PATIENCE));
        let known = ((client as u8, 2), counting.counted + 1);
        self.await_write(index, Deed::Count, Some(client), Some(known), reply.as_ref());
    }

    fn transfer(&mut self, index: usize, client: usize) {
        self.writers.numbers[client] += 1;
        let from = self.random.below(ACCOUNTS) as i64;
        let to = (from + 1 + self.random.below(ACCOUNTS - 1) as i64) % ACCOUNTS as i64;
        let number = self.writers.numbers[client];
        let within = |mut command: Document| {
            command.insert("lsid", session(client, 3));
            command.insert("txnNumber", number);
            command.insert("autocommit", false);
            command
        };
        let update = |account: i64, by: i64| {
            doc! { "update": "accounts", "updates": [{
                "q": { "_id": account }, "u": { "$inc": { "n": by } }, "upsert": true,
            }] }
        };
        let mut first = within(update(from, -1));
        first.insert("startTransaction", true);
        if self.run_write(index, first).is_none() {
            return;
        }
        let second = self.run_write(index, within(update(to, 1)));
        let (end, ends) = match (second, self.random.chance(10)) {
            (Some(_), false) => ("commitTransaction", true),
            _ => ("abortTransaction", false),
        };
        let mut end = within(doc! { end: 1 });
        end.insert("$db", "admin");
        let reply = self.run_write(index, end);
        if let (Some(reply), true) = (reply, ends) {
            let known = ((client as u8, 3), number);
            self.await_write(index, Deed::Other, Some(client), Some(known), Some(&reply));
        }
    }

    /// Something that is only compared at the end.
    fn other_deed(&mut self, index: usize) {
        let below = self.random.below(20) as i64;
        let command = match self.random.below(16) {
            0..6 => {
                let first = self.writers.inserted;
                self.writers.inserted += 1 + self.random.below(8) as i64;
                let documents: Vec<Document> = (first..self.writers.inserted)
                    .map(|id| doc! { "_id": id, "n": (id * 7) % 20, "text": "x".repeat(20) })
                    .collect();
                doc! { "insert": "others", "documents": documents }
            }
            6..9 => doc! { "delete": "others", "deletes": [
                { "q": { "n": { "$lt": below / 4 } }, "limit": 0 },
            ] },
            9..12 => doc! { "update": "others", "updates": [
                { "q": { "n": below }, "u": { "$inc": { "m": 1 } }, "multi": true },
            ] },
            12 => doc! { "createIndexes": "others", "indexes": [
                { "key": { "n": 1, "m": -1 }, "name": "n_m" },
            ] },
            13 => doc! { "dropIndexes": "others", "index": "n_m" },
            14 => doc! { "insert": "passing", "documents": [{ "_id": self.writers.inserted }] },
            _ if below < 8 => doc! { "drop": "passing" },
            _ => doc! {
                "renameCollection": "test.passing", "to": "test.past", "dropTarget": true,
                "$db": "admin",
            },
        };
        if let Some(reply) = self.run_write(index, command)
            && reply.op_time.is_some()
        {
            self.await_write(index, Deed::Other, None, None, Some(&reply));
        }
    }

    /// Answers the waiting client.
    pub(crate) fn acknowledged(&mut self, waiter: WaiterId, fine: bool) {
        if waiter.0 >= transacting::FIRST_WAITER {
            return self.commit_answered(waiter, fine);
        }
        let Some(attempt) = self.writers.attempts.get_mut(waiter.0 as usize) else {
            return self.read_proved(waiter, fine);
        };
        attempt.acknowledged = fine;
        let attempt = *attempt;
        if let (Deed::Count, Some(client)) = (attempt.deed, attempt.client) {
            let counting = &mut self.writers.counting[client];
            if counting.open.is_some_and(|(open, _)| open == waiter) {
                counting.open = (!fine).then_some((waiter, self.now));
                counting.counted += i64::from(fine);
            }
        }
        if fine && attempt.majority {
            self.figures.acknowledged += 1;
            if let Deed::Set { key } = attempt.deed {
                self.readers.acknowledged(attempt.client, key, attempt.op_time);
            }
        }
    }
}
