//! Clients that read, and the judges of what they were told.
//!
//! Reads are `find` commands with a read concern, run once the member's [`Standing`] shows the time
//! that the client comes after; a `linearizable` read on a primary is answered when an entry that was
//! written after it is committed. Each client is a session: it asks for no less than it has seen.
//!
//! The judges know when each write was acknowledged and where it stands in the history:
//!
//! - a majority read of a session shows its own majority writes, and never goes back;
//! - a linearizable read shows every majority write that was acknowledged, and everything another
//!   linearizable read was told, before it was asked;
//! - a read shows no value that was never written to its key.
//!
//! Their luck is their own, so that a seed's other events stay as they are. Only linearizable reads
//! write, and only worlds of the stories `delays` and `machines` have them. Those hardly ever hold a primary that does not
//! know of its successor: the tests below let worlds of `usurpers`, which do, have them too.

use std::collections::BTreeMap;
use std::time::Duration;

use bson::doc;
use quorate_node::Standing;
use quorate_protocol::{MonotonicTime, OpTime, Timestamp};
use quorate_replication::{SeededRandom, WaiterId, WriteConcern};
use quorate_wire::to_bson_timestamp;

use crate::judges::{Life, Verdict};
use crate::story::Story;
use crate::world::{Happening, World};
use crate::writing::{Deed, KEYS};

/// Makes this luck another one than the world's.
const LUCK: u64 = 0x0052_4541_4453;
/// How long a client waits for an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two reads of a client, on average.
const PAUSE: Duration = Duration::from_millis(400);
/// Reads that wait, in the whole world.
const MAX_WAITING: usize = 256;
/// Waiters of reads are numbered from here, far above those of writes.
const FIRST_WAITER: u64 = 1 << 40;

/// The rules that the judges name.
const LINEARIZABLE: &str = "a linearizable read shows what was acknowledged before it";
const SESSION: &str = "a session's majority reads show its own writes and never go back";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Local,
    Majority,
    Linearizable,
}

/// A read that is not answered yet.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    life: Life,
    client: usize,
    key: u64,
    level: Level,
    after: Timestamp,
    until: MonotonicTime,
    /// How the member stood when it was asked.
    began: Standing,
    /// The oldest place in the history that the answer may be of.
    floor: OpTime,
    /// A linearizable read has its answer, and waits for this to be acknowledged.
    settled: Option<(WaiterId, OpTime)>,
}

/// The causal session of one client.
#[derive(Clone, Debug, Default)]
struct Session {
    operation_time: Timestamp,
    /// The newest place of each key that a majority read may not go behind.
    seen: BTreeMap<u64, OpTime>,
}

/// A rule of the read path that a test has members break, to see the judges notice.
#[cfg_attr(not(test), allow(dead_code, reason = "members break no rule outside of tests"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    /// Majority reads do not wait for `afterClusterTime`.
    HastyMajority,
    /// Linearizable reads do not wait for their proof.
    UnprovedLinearizable,
}

/// The clients, what they wait for, and what the judges remember.
pub(crate) struct Readers {
    random: SeededRandom,
    linearizable_percent: u64,
    sessions: Vec<Session>,
    waiting: Vec<Waiting>,
    /// What every linearizable read that is asked from now on shows, at least.
    told: BTreeMap<u64, OpTime>,
    next_waiter: u64,
    /// None but in tests of the judges.
    flaw: Option<Flaw>,
}

impl Readers {
    pub(crate) fn new(seed: u64, story: Story, clients: usize) -> Self {
        Self {
            random: SeededRandom::new(seed ^ LUCK),
            linearizable_percent: match story {
                Story::Delays | Story::Machines => 20,
                _ => 0,
            },
            sessions: vec![Session::default(); clients],
            waiting: Vec::new(),
            told: BTreeMap::new(),
            next_waiter: FIRST_WAITER,
            flaw: None,
        }
    }

    /// A write was acknowledged by a majority.
    pub(crate) fn acknowledged(&mut self, client: Option<usize>, key: u64, at: OpTime) {
        raise(&mut self.told, key, at);
        if let Some(session) = client.and_then(|client| self.sessions.get_mut(client)) {
            raise(&mut session.seen, key, at);
            session.operation_time = session.operation_time.max(at.timestamp);
        }
    }
}

fn raise(places: &mut BTreeMap<u64, OpTime>, key: u64, at: OpTime) {
    let known = places.entry(key).or_insert(at);
    *known = (*known).max(at);
}

impl World {
    pub(crate) fn expect_read(&mut self, client: usize) {
        let pause = self.readers.random.duration_up_to(PAUSE * 2);
        self.schedule(pause, Happening::ClientReads { client });
    }

    /// A client reads a key from any member that serves reads.
    pub(crate) fn client_reads(&mut self, client: usize) {
        if !self.turmoil {
            return;
        }
        self.expect_read(client);
        self.readers.waiting.retain(|read| read.until > self.now);
        let luck = self.readers.random.below(100);
        let level = match luck {
            0..20 => Level::Local,
            _ if luck < 20 + self.readers.linearizable_percent => Level::Linearizable,
            _ => Level::Majority,
        };
        let serves = |index: &usize| {
            let node = &self.nodes[*index];
            match level {
                _ if node.asleep => false,
                Level::Linearizable => node.is_writable(),
                _ => node.member.as_ref().is_some_and(|m| m.status().state().is_readable()),
            }
        };
        let servers: Vec<usize> = (0..self.nodes.len()).filter(serves).collect();
        if servers.is_empty() || self.readers.waiting.len() >= MAX_WAITING {
            return;
        }
        let index = servers[self.readers.random.below(servers.len() as u64) as usize];
        let key = self.readers.random.below(KEYS);
        let session = &self.readers.sessions[client];
        let floor = match level {
            Level::Local => OpTime::NULL,
            Level::Majority => session.seen.get(&key).copied().unwrap_or(OpTime::NULL),
            Level::Linearizable => self.readers.told.get(&key).copied().unwrap_or(OpTime::NULL),
        };
        let after = match level {
            Level::Linearizable => Timestamp::default(),
            _ => session.operation_time,
        };
        let (life, until) = (self.nodes[index].life, self.now + PATIENCE);
        let Some(began) = self.nodes[index].data().map(|data| data.standing()) else { return };
        let read = Waiting { life, client, key, level, after, until, began, floor, settled: None };
        if level == Level::Linearizable {
            return self.read_and_prove(read);
        }
        self.readers.waiting.push(read);
        self.answer_readers(index);
    }

    /// A linearizable read: the answer counts once an entry that was written after it is committed.
    fn read_and_prove(&mut self, mut read: Waiting) {
        let index = read.life.node;
        let Some(data) = self.nodes[index].data() else { return };
        let Some(place) = self.look_up(&read) else { return };
        if self.readers.flaw == Some(Flaw::UnprovedLinearizable) {
            return self.judge_read(&read, place, LINEARIZABLE);
        }
        let Ok(proof) = data.append_proof(self.now_at(index)) else { return };
        self.written_here(index);
        self.readers.next_waiter += 1;
        let waiter = WaiterId(self.readers.next_waiter);
        read.settled = Some((waiter, place));
        self.readers.waiting.push(read);
        self.await_acknowledgement(index, waiter, proof.op_time, WriteConcern::majority());
    }

    /// The no-op of a linearizable read is acknowledged, or cannot be any more.
    pub(crate) fn read_proved(&mut self, waiter: WaiterId, fine: bool) {
        let known = |read: &Waiting| read.settled.is_some_and(|(expected, _)| expected == waiter);
        let Some(found) = self.readers.waiting.iter().position(known) else { return };
        let read = self.readers.waiting.swap_remove(found);
        if let (true, Some((_, place))) = (fine && read.until > self.now, read.settled) {
            self.judge_read(&read, place, LINEARIZABLE);
            raise(&mut self.readers.told, read.key, place);
        }
    }

    /// Answers the reads that wait at a member and can be answered now.
    pub(crate) fn answer_readers(&mut self, index: usize) {
        let life = self.nodes[index].life;
        if !self.readers.waiting.iter().any(|read| read.life.node == index) {
            return;
        }
        let waiting = std::mem::take(&mut self.readers.waiting);
        for read in waiting {
            if read.life.node != index || read.settled.is_some() {
                self.readers.waiting.push(read);
                continue;
            }
            let Some(data) = self.nodes[index].data().filter(|_| read.life == life) else {
                continue;
            };
            let standing = data.standing();
            if standing.ends_reads_of(&read.began) {
                // The client is told to go elsewhere.
                continue;
            }
            let position = match read.level {
                Level::Majority => standing.majority,
                Level::Local | Level::Linearizable => standing.last.op_time,
            };
            let early = position.timestamp < read.after && !self.is_hasty(&read);
            if position.is_null() || early {
                self.readers.waiting.push(read);
                continue;
            }
            let Some(place) = self.look_up(&read) else { continue };
            self.figures.reads += 1;
            self.judge_read(&read, place, SESSION);
            let session = &mut self.readers.sessions[read.client];
            if read.level == Level::Majority {
                raise(&mut session.seen, read.key, place);
                session.operation_time = session.operation_time.max(position.timestamp);
            }
        }
    }

    /// Reads a key: where its value was written; null if it has none. None if the read is refused.
    fn look_up(&mut self, read: &Waiting) -> Option<OpTime> {
        let (level, index) = (read.level, read.life.node);
        let mut concern = match level {
            Level::Majority => doc! { "level": "majority" },
            Level::Local => doc! { "level": "local" },
            Level::Linearizable => doc! { "level": "linearizable" },
        };
        let waits = level != Level::Linearizable && read.after != Timestamp::default();
        if waits && !self.is_hasty(read) {
            concern.insert("afterClusterTime", to_bson_timestamp(read.after));
        }
        let mode = if level == Level::Linearizable { "primary" } else { "nearest" };
        let find = doc! {
            "find": "keys", "filter": { "_id": read.key as i64 }, "readConcern": concern.clone(),
            "$readPreference": { "mode": mode }, "$db": "test",
        };
        let reply = self.run_command(index, find)?;
        let (_, documents) = quorate_member::batch_of(&reply).ok()?;
        if self.readers.random.chance(10)
            && let Err(why) = self.judge_accounts(index, concern)
        {
            self.verdict = self.verdict.clone().and(Err(Verdict(why)));
        }
        let Some(document) = documents.first() else { return Some(OpTime::NULL) };
        let value = document.get_i64("value").unwrap_or(-1);
        let found = usize::try_from(value).ok().and_then(|v| self.writers.attempts.get(v));
        match found {
            Some(attempt) if attempt.deed == (Deed::Set { key: read.key }) => Some(attempt.op_time),
            _ => {
                let what = format!("n{index} tells {value} of key {}", read.key);
                let judged = Err(Verdict(format!("a read shows what was written: {what}")));
                self.verdict = self.verdict.clone().and(judged);
                None
            }
        }
    }

    /// Whether a flaw lets a read be answered before its time.
    fn is_hasty(&self, read: &Waiting) -> bool {
        self.readers.flaw == Some(Flaw::HastyMajority) && read.level == Level::Majority
    }

    fn judge_read(&mut self, read: &Waiting, place: OpTime, rule: &str) {
        if place < read.floor && !self.judges.is_forgiving() {
            let verdict = format!(
                "{rule}: client {} was told of key {} as it was at {place} by n{}, after {}",
                read.client, read.key, read.life.node, read.floor
            );
            self.verdict = self.verdict.clone().and(Err(Verdict(verdict)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs worlds with linearizable reads until one fails, and says whether a judge named this rule.
    fn is_noticed(flaw: Option<Flaw>, rule: &str, story: Story, seeds: u64) -> bool {
        (0..seeds).any(|seed| {
            let mut world = World::new(seed, story, None);
            world.readers.linearizable_percent = if rule == LINEARIZABLE { 70 } else { 20 };
            world.readers.flaw = flaw;
            match world.run() {
                Ok(_) => false,
                Err(failure) if failure.to_string().contains(rule) => true,
                Err(failure) => panic!("another rule is broken: {failure}"),
            }
        })
    }

    #[test]
    fn majority_reads_that_do_not_wait_for_the_cluster_time_are_noticed() {
        assert!(is_noticed(Some(Flaw::HastyMajority), SESSION, Story::Delays, 8));
    }

    /// Only a primary that another one has replaced without its knowledge tells an old value.
    #[test]
    fn linearizable_reads_that_prove_nothing_are_noticed() {
        let flaw = Some(Flaw::UnprovedLinearizable);
        assert!(is_noticed(flaw, LINEARIZABLE, Story::Usurpers, 400));
    }

    #[test]
    fn linearizable_reads_that_are_proved_show_what_was_acknowledged() {
        assert!(!is_noticed(None, LINEARIZABLE, Story::Usurpers, 8));
    }
}
