//! Three members, their disks, and what is under way between them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use quorate_protocol::{
    MemberState, MonotonicTime, ObjectId, OpTime, OpTimeAndWallTime, ReplicaSetConfig, Term,
};

use crate::election::LastVote;
use crate::input::{
    FetchFailure, FetchId, FetchedBatch, Input, MemberOptions, Recovered, Reply, Request,
    RequestId, RequestToken, Ticket, Unreachable,
};
use crate::member::Member;
use crate::outbox::AfterPersist;
use crate::output::{Change, Output};
use crate::testing::{config, member, stamp};

/// How many members the set has.
pub(super) const MEMBERS: usize = 3;

/// What one `Elapse` adds to a member's clock: more than the election timeout with its random part.
const A_LONG_WHILE: Duration = Duration::from_secs(12);

/// Inputs that one action may cause before the model calls it an endless loop.
const MAX_SETTLING: usize = 1000;

/// The administrator's requests, whose answers nothing waits for.
const ADMINISTRATOR: RequestToken = RequestToken(u64::MAX);

/// One start of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Life {
    pub(super) node: usize,
    pub(super) epoch: u64,
}

/// A token that says who waits for the answer, so that the model needs no table of its own.
fn token(from: Life, id: RequestId) -> RequestToken {
    RequestToken(from.node as u64 + 4 * (from.epoch + 16 * id.0))
}

fn asker(token: RequestToken) -> (Life, RequestId) {
    let life = Life { node: (token.0 % 4) as usize, epoch: token.0 / 4 % 16 };
    (life, RequestId(token.0 / 64))
}

/// A message under way. Heartbeats and progress reports arrive and are answered at once unless an end of
/// them is cut off; requests for votes and their answers travel on their own.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Message {
    Ask { from: Life, to: usize, id: RequestId, request: Request },
    Vote { by: usize, to: Life, id: RequestId, reply: Reply },
}

impl Message {
    pub(super) fn is_about_votes(&self) -> bool {
        matches!(self, Self::Vote { .. } | Self::Ask { request: Request::Vote(_), .. })
    }
}

/// Copying, at the member that copies.
#[derive(Clone, Copy, Debug)]
struct Copying {
    id: FetchId,
    source: Life,
    first: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Process {
    pub(super) member: Option<Member>,
    pub(super) epoch: u64,
    now: MonotonicTime,
    pub(super) log: Vec<OpTimeAndWallTime>,
    pub(super) synced: usize,
    facts: Recovered,
    disk: VecDeque<(Ticket, Change)>,
    copying: Option<Copying>,
    /// A crash took a vote along that was being stored.
    pub(super) lost_vote: bool,
    /// What the judge saw of this life.
    commit_point: OpTime,
    was_primary: bool,
}

impl Process {
    fn last(&self) -> OpTimeAndWallTime {
        self.log.last().copied().unwrap_or_default()
    }

    /// A write that a promise hangs on is under way.
    pub(super) fn stores_a_vote(&self) -> bool {
        self.disk.iter().any(|(_, change)| matches!(change, Change::LastVote(_)))
    }

    pub(super) fn is_writable(&self) -> bool {
        self.member.as_ref().is_some_and(|member| member.status().is_writable())
    }

    pub(super) fn is_primary(&self) -> bool {
        self.member.as_ref().is_some_and(|m| m.status().state() == MemberState::Primary)
    }

    pub(super) fn term(&self) -> Term {
        self.member.as_ref().map_or(self.facts.term, |member| member.status().term())
    }
}

/// The set, the network, and what the judges remember.
#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) processes: Vec<Process>,
    pub(super) messages: Vec<Message>,
    pub(super) primaries: BTreeMap<Term, Life>,
    /// The longest history that any member called committed.
    pub(super) committed: Vec<OpTimeAndWallTime>,
    /// The first broken rule, in words.
    pub(super) broken: Option<&'static str>,
    /// The member that no message reaches or leaves.
    pub(super) cut: Option<usize>,
    pub(super) cuts: usize,
    pub(super) writes: usize,
    pub(super) crashes: usize,
    pub(super) losses: usize,
    pub(super) stands: usize,
    pub(super) elapsed: usize,
    /// Whether a member has undone an entry.
    pub(super) undone: bool,
}

fn first_config() -> ReplicaSetConfig {
    let mut first = config((0..MEMBERS as i32).map(member).collect());
    first.term = Some(Term(0));
    first
}

fn options(node: usize) -> MemberOptions {
    MemberOptions {
        set_name: "rs0".to_owned(),
        own_addresses: vec![member(node as i32).host],
        process_id: ObjectId::from_bytes([node as u8; 12]),
        new_replica_set_id: ObjectId::from_bytes([9; 12]),
        allowances: Default::default(),
    }
}

impl World {
    /// A healthy set: member 0 was elected in term 1, and the others have everything it wrote.
    pub(super) fn begin() -> Self {
        let facts = || Recovered { config: Some(first_config()), ..Recovered::default() };
        let process = || Process {
            member: None,
            epoch: 0,
            now: MonotonicTime::from_millis(1),
            log: vec![stamp(0, 1)],
            synced: 1,
            facts: facts(),
            disk: VecDeque::new(),
            copying: None,
            lost_vote: false,
            commit_point: OpTime::NULL,
            was_primary: false,
        };
        let mut world = Self {
            processes: (0..MEMBERS).map(|_| process()).collect(),
            messages: Vec::new(),
            primaries: BTreeMap::new(),
            committed: Vec::new(),
            broken: None,
            cut: None,
            cuts: 0,
            writes: 0,
            crashes: 0,
            losses: 0,
            stands: 0,
            elapsed: 0,
            undone: false,
        };
        (0..MEMBERS).for_each(|node| world.start(node));
        world.calm();
        world.stand(0, true);
        world.calm();
        world.stands = 0;
        assert!(world.processes[0].is_writable(), "member 0 leads: {world:#?}");
        assert_eq!(world.committed.len(), 2, "its first entry is committed: {world:#?}");
        world
    }

    /// The first primary is cut off and has written an entry that no other member has; the others have elected
    /// member 1.
    pub(super) fn divided() -> Self {
        let mut world = Self::begin();
        world.cut(Some(0));
        world.write(0);
        world.stand(1, true);
        world.calm();
        // The winner gives up asking the old primary for entries that it lacks.
        let asks = |message: &Message| {
            !message.is_about_votes()
                && matches!(message, Message::Ask { from, .. } if from.node == 1)
        };
        while let Some(index) = world.messages.iter().position(asks) {
            world.lose(index);
        }
        // So does the other one copying from it.
        if let Some(Copying { id: fetch, .. }) = world.processes[2].copying.take() {
            let cause = FetchFailure::Connection;
            world.settle(2, Some(Input::FetchFailed { fetch, cause }));
        }
        world.calm();
        (world.cuts, world.writes, world.stands, world.losses) = (0, 0, 0, 0);
        let (old, new) = (&world.processes[0], &world.processes[1]);
        assert!(old.is_primary() && new.is_writable(), "two members lead: {world:#?}");
        assert_ne!(old.log.last(), world.committed.last(), "an entry is to be undone: {world:#?}");
        world
    }

    /// Lets everything arrive until nothing is under way that can.
    fn calm(&mut self) {
        for _ in 0..MAX_SETTLING {
            if let Some(index) = self.messages.iter().position(|message| self.passes(message)) {
                self.deliver(index);
            } else if let Some(node) = (0..MEMBERS).find(|node| self.can_sync(*node)) {
                self.sync(node);
            } else if let Some(node) = (0..MEMBERS).find(|n| !self.processes[*n].disk.is_empty()) {
                self.store(node);
            } else if let Some(node) = (0..MEMBERS).find(|node| self.copy_brings_news(*node)) {
                self.copy(node);
            } else {
                return;
            }
        }
        panic!("the set does not come to rest: {self:#?}");
    }

    // -- What can happen -------------------------------------------------------------------------

    pub(super) fn start(&mut self, node: usize) {
        let process = &mut self.processes[node];
        process.epoch += 1;
        let found = Recovered { last: process.last(), ..process.facts.clone() };
        process.member = Some(Member::new(options(node), found, node as u64 + 1, process.now));
        process.commit_point = OpTime::NULL;
        process.was_primary = false;
        self.settle(node, None);
    }

    /// The process ends. Writes that were not finished are lost, and so is the log that was not synced.
    pub(super) fn crash(&mut self, node: usize) {
        self.crashes += 1;
        let process = &mut self.processes[node];
        process.lost_vote |= process.stores_a_vote();
        process.member = None;
        process.disk.clear();
        process.copying = None;
        process.log.truncate(process.synced);
        self.messages
            .retain(|message| !matches!(message, Message::Vote { to, .. } if to.node == node));
    }

    pub(super) fn can_sync(&self, node: usize) -> bool {
        let process = &self.processes[node];
        process.member.is_some() && process.synced < process.log.len()
    }

    /// The log reaches the disk.
    pub(super) fn sync(&mut self, node: usize) {
        let process = &mut self.processes[node];
        process.synced = process.log.len();
        let last = process.last();
        self.settle(node, Some(Input::EntriesDurable { last }));
    }

    /// Everything that is on its way to a disk reaches it.
    pub(super) fn finish_writes(&mut self) {
        for _ in 0..MAX_SETTLING {
            if let Some(node) = (0..MEMBERS).find(|node| self.can_sync(*node)) {
                self.sync(node);
            } else if let Some(node) = (0..MEMBERS).find(|n| self.processes[*n].stores_a_vote()) {
                self.store(node);
            } else {
                return;
            }
            self.pump();
        }
        self.broken = Some("members write without end");
    }

    /// The ordered writes reach the disk, in their order.
    pub(super) fn store(&mut self, node: usize) {
        while let Some((ticket, change)) = self.processes[node].disk.pop_front() {
            self.remember(node, &change);
            self.settle(node, Some(Input::Persisted(ticket)));
        }
    }

    fn remember(&mut self, node: usize, change: &Change) {
        let facts = &mut self.processes[node].facts;
        match change {
            Change::LastVote(vote) => {
                facts.last_vote = Some(*vote);
                facts.term = facts.term.max(vote.term);
            }
            Change::Term(term) => facts.term = facts.term.max(*term),
            Change::Config(config) => facts.config = Some(ReplicaSetConfig::clone(config)),
            Change::RollbackId(id) => facts.rollback_id = *id,
            Change::Memory(memory) => facts.memory = *memory,
            Change::IndexesLeftOut(left_out) => facts.indexes_left_out = *left_out,
            Change::Initiate(_) | Change::InitialSync(_) => {
                self.broken = Some("a member with data and a configuration begins anew");
            }
        }
    }

    /// No message reaches or leaves this member; with none, every one does again.
    pub(super) fn cut(&mut self, node: Option<usize>) {
        self.cuts += usize::from(node.is_some());
        self.cut = node;
    }

    /// Whether the network lets a message through.
    pub(super) fn passes(&self, message: &Message) -> bool {
        let (from, to) = match message {
            Message::Ask { from, to, .. } => (from.node, *to),
            Message::Vote { by, to, .. } => (*by, to.node),
        };
        self.cut != Some(from) && self.cut != Some(to)
    }

    /// What is no step of its own arrives at once.
    pub(super) fn pump(&mut self) {
        for _ in 0..MAX_SETTLING {
            let quick = self.messages.iter().position(|m| !m.is_about_votes() && self.passes(m));
            let Some(index) = quick else { return };
            self.deliver(index);
        }
        self.broken = Some("members talk to each other without end");
    }

    /// A client writes an entry.
    pub(super) fn write(&mut self, node: usize) {
        self.writes += 1;
        let term = self.processes[node].term();
        self.append(node, term);
    }

    fn append(&mut self, node: usize, term: Term) {
        let process = &mut self.processes[node];
        // Every entry has its own second, also across branches: positions name entries.
        let seconds = process.last().op_time.timestamp.seconds + 1;
        let last = stamp(term.0, seconds);
        process.log.push(last);
        self.settle(node, Some(Input::EntriesAppended { last }));
        self.settle(node, Some(Input::Applied { last }));
    }

    /// An administrator, or a primary that hands over, tells the member to stand.
    pub(super) fn stand(&mut self, node: usize, skip_dry_run: bool) {
        self.stands += 1;
        let request = Request::StepUp { skip_dry_run };
        self.settle(node, Some(Input::RequestReceived { token: ADMINISTRATOR, request }));
    }

    /// The member's clock moves past every deadline that is set.
    pub(super) fn elapse(&mut self, node: usize) {
        self.elapsed += 1;
        let process = &mut self.processes[node];
        process.now = process.now + A_LONG_WHILE;
        self.settle(node, Some(Input::Tick));
    }

    pub(super) fn deliver(&mut self, index: usize) {
        match self.messages.remove(index) {
            Message::Ask { from, to, id, request } => {
                if self.processes[to].member.is_none() {
                    self.tell_unreachable(from, id, Unreachable::Refused);
                } else {
                    let token = token(from, id);
                    self.settle(to, Some(Input::RequestReceived { token, request }));
                }
            }
            Message::Vote { to, id, reply, .. } => self.answer(to, id, reply),
        }
    }

    /// The message is lost. The member that waits for an answer hears so.
    pub(super) fn lose(&mut self, index: usize) {
        self.losses += 1;
        let (life, id) = match self.messages.remove(index) {
            Message::Ask { from, id, .. } => (from, id),
            Message::Vote { to, id, .. } => (to, id),
        };
        self.tell_unreachable(life, id, Unreachable::TimedOut);
    }

    fn is_alive(&self, life: Life) -> bool {
        self.processes[life.node].member.is_some() && self.processes[life.node].epoch == life.epoch
    }

    fn tell_unreachable(&mut self, life: Life, request: RequestId, cause: Unreachable) {
        if self.is_alive(life) {
            self.settle(life.node, Some(Input::PeerUnreachable { request, cause }));
        }
    }

    fn answer(&mut self, life: Life, request: RequestId, reply: Reply) {
        if self.is_alive(life) {
            let round_trip = Duration::from_millis(1);
            self.settle(life.node, Some(Input::ReplyReceived { request, reply, round_trip }));
        }
    }

    // -- Copying ---------------------------------------------------------------------------------

    pub(super) fn copy_brings_news(&self, node: usize) -> bool {
        let process = &self.processes[node];
        let Some(copying) = process.copying.filter(|_| process.member.is_some()) else {
            return false;
        };
        if self.cut.is_some_and(|cut| cut == node || cut == copying.source.node) {
            return false;
        }
        let source = &self.processes[copying.source.node];
        let told = source.member.as_ref().map(|member| member.status().commit_point().op_time);
        let known = process.member.as_ref().map(|member| member.status().commit_point().op_time);
        copying.first
            || source.last() > process.last()
            || told > known
            || !self.is_alive(copying.source)
    }

    /// The source answers, and what it sent is appended and applied.
    pub(super) fn copy(&mut self, node: usize) {
        let Some(copying) = self.processes[node].copying else { return };
        let fetch = copying.id;
        let after = self.processes[node].last().op_time;
        let source = &self.processes[copying.source.node];
        let serves = source.member.as_ref().filter(|m| m.status().state().is_readable());
        let (Some(status), true) = (serves.map(Member::status), self.is_alive(copying.source))
        else {
            self.processes[node].copying = None;
            let cause = FetchFailure::Connection;
            return self.settle(node, Some(Input::FetchFailed { fetch, cause }));
        };
        let start = source.log.partition_point(|e| e.op_time.timestamp < after.timestamp);
        let first = source.log.get(start).map(|entry| entry.op_time);
        let found = first == Some(after);
        let entries: Vec<_> = source.log[start + usize::from(found)..].to_vec();
        let batch = FetchedBatch {
            first: first.filter(|_| copying.first),
            previous: first.filter(|_| found),
            last: entries.last().copied(),
            source_oldest: source.log[0].op_time,
            source_last: source.last(),
            commit_point: status.commit_point(),
            term: status.term(),
            source_is_primary: status.state() == MemberState::Primary,
            rollback_id: status.rollback_id(),
        };
        if !copying.first && !found {
            self.processes[node].copying = None;
            let cause = FetchFailure::PlaceLost;
            return self.settle(node, Some(Input::FetchFailed { fetch, cause }));
        }
        self.processes[node].copying = Some(Copying { first: false, ..copying });
        let wanted = self.feed(node, Input::EntriesFetched { fetch, batch });
        if let Some(through) = wanted {
            self.processes[node].log.extend(entries.iter().filter(|e| e.op_time <= through));
            let last = self.processes[node].last();
            self.settle(node, Some(Input::EntriesAppended { last }));
            self.settle(node, Some(Input::Applied { last }));
        }
        self.settle(node, None);
    }

    fn find_common_point(&mut self, node: usize, fetch: FetchId, source: usize) {
        let theirs: BTreeSet<OpTime> =
            self.processes[source].log.iter().map(|entry| entry.op_time).collect();
        let common = self.processes[node].log.iter().rev().find(|e| theirs.contains(&e.op_time));
        let input = match common {
            Some(common) => Input::CommonPointFound { fetch, common_point: *common },
            None => Input::CommonPointUnknown { fetch },
        };
        self.settle(node, Some(input));
    }

    // -- The host's loop -------------------------------------------------------------------------

    fn settle(&mut self, node: usize, input: Option<Input>) {
        if let Some(input) = input {
            self.feed(node, input);
        } else {
            self.drain(node);
        }
        // What is due at once happens at once.
        for _ in 0..MAX_SETTLING {
            let process = &self.processes[node];
            let due = process.member.as_ref().and_then(Member::next_deadline);
            if due.is_none_or(|due| due > process.now) {
                break;
            }
            self.feed(node, Input::Tick);
        }
        // Only a vote's way to the disk is a step of its own: nothing hangs on the others.
        if !self.processes[node].stores_a_vote() && !self.processes[node].disk.is_empty() {
            self.store(node);
        }
    }

    /// Through which entry the member wants the fetched ones.
    fn feed(&mut self, node: usize, input: Input) -> Option<OpTime> {
        let process = &mut self.processes[node];
        let member = process.member.as_mut()?;
        member.handle(process.now, input);
        self.drain(node)
    }

    fn drain(&mut self, node: usize) -> Option<OpTime> {
        let mut wanted = None;
        while let Some(output) = self.processes[node].member.as_mut().and_then(Member::poll_output)
        {
            if let Output::ApplyThrough { through, .. } = output {
                wanted = Some(through);
            } else {
                self.carry_out(node, output);
            }
        }
        self.judge(node);
        wanted
    }

    fn carry_out(&mut self, node: usize, output: Output) {
        let from = Life { node, epoch: self.processes[node].epoch };
        let index = |address: &quorate_protocol::ServerAddress| {
            (0..MEMBERS).find(|node| member(*node as i32).host == *address)
        };
        match output {
            Output::Persist { ticket, change } => {
                self.processes[node].disk.push_back((ticket, change));
            }
            Output::Send { request: id, to, message: request, .. } => {
                if let Request::Vote(vote) = &request
                    && !vote.dry_run
                {
                    self.judge_promise(
                        node,
                        LastVote { term: vote.term, candidate: vote.candidate },
                    );
                }
                if let Some(to) = index(&to) {
                    self.messages.push(Message::Ask { from, to, id, request });
                }
            }
            Output::Respond { token: ADMINISTRATOR, .. } => {}
            Output::Respond { token, reply } => {
                let (to, id) = asker(token);
                let reply = reply.unwrap_or_else(|error| Reply::Refused {
                    code: error.code(),
                    message: error.to_string(),
                });
                match reply {
                    Reply::Vote(_) if self.is_alive(to) => {
                        self.messages.push(Message::Vote { by: node, to, id, reply });
                    }
                    reply => self.answer(to, id, reply),
                }
            }
            Output::AppendNoop { term, .. } => self.append(node, term),
            Output::FetchFrom { fetch, source, .. } => {
                self.processes[node].copying = index(&source).map(|source| Copying {
                    id: fetch,
                    source: Life { node: source, epoch: self.processes[source].epoch },
                    first: true,
                });
            }
            Output::CancelFetch { fetch } => {
                self.processes[node].copying.take_if(|copying| copying.id == fetch);
            }
            Output::FindCommonPoint { fetch, source } => {
                if let Some(source) = index(&source) {
                    self.find_common_point(node, fetch, source);
                }
            }
            Output::RollBackTo { common_point } => {
                let process = &mut self.processes[node];
                let undone = process.log.iter().filter(|entry| **entry > common_point);
                if undone.clone().any(|entry| self.committed.contains(entry)) {
                    self.broken = Some("a committed entry was undone");
                }
                self.undone |= undone.count() > 0;
                process.log.retain(|entry| *entry <= common_point);
                process.synced = process.log.len();
                let last = process.last();
                self.settle(node, Some(Input::RolledBack { last }));
            }
            Output::Halt(_) => self.broken = Some("a member had to end itself"),
            Output::InitialSync { .. } => self.broken = Some("a member copies everything"),
            _ => {}
        }
    }

    // -- The judges ------------------------------------------------------------------------------

    fn judge_promise(&mut self, node: usize, vote: LastVote) {
        let stored = self.processes[node].facts.last_vote;
        if stored.is_none_or(|stored| stored.term < vote.term)
            || stored.is_some_and(|stored| stored.term == vote.term && stored != vote)
        {
            self.broken = Some("a vote was spoken before it was stored");
        }
    }

    /// What a granted vote promises is on the voter's disk while its answer is under way.
    pub(super) fn votes_are_stored(&self) -> bool {
        self.messages.iter().all(|message| match message {
            Message::Vote { by, to, id, reply: Reply::Vote(reply) } if reply.vote_granted => {
                let asked =
                    self.processes[to.node].member.as_ref().and_then(|m| m.outbox.asked(*id));
                let real = matches!(asked, Some(crate::outbox::Asked::Vote { dry_run: false, .. }));
                let stored = self.processes[*by].facts.last_vote;
                !real || stored.is_some_and(|stored| stored.term >= reply.term)
            }
            _ => true,
        })
    }

    fn judge(&mut self, node: usize) {
        let process = &self.processes[node];
        let Some(member) = &process.member else { return };
        let status = member.status();
        let life = Life { node, epoch: process.epoch };
        let leads = status.state() == MemberState::Primary;
        let mut broken = None;
        if leads && *self.primaries.entry(status.term()).or_insert(life) != life {
            broken = Some("two primaries of one term");
        }
        if leads && !process.was_primary && !process.log.starts_with(&self.committed) {
            broken = Some("a primary lacks a committed entry");
        }
        let commit_point = status.commit_point().op_time;
        if commit_point < process.commit_point {
            broken = Some("the commit point went back");
        }
        if commit_point > process.commit_point {
            let end = process.log.partition_point(|entry| entry.op_time <= commit_point);
            let shorter = end.min(self.committed.len());
            if process.log[..shorter] != self.committed[..shorter] {
                broken = Some("members disagree on what is committed");
            } else if end == 0 || process.log[end - 1].op_time != commit_point {
                broken = Some("a member lacks what it calls committed");
            } else if end > self.committed.len() {
                self.committed = process.log[..end].to_vec();
            }
        }
        self.broken = self.broken.or(broken);
        let process = &mut self.processes[node];
        process.commit_point = commit_point;
        process.was_primary = leads;
    }

    // -- When two worlds are the same ------------------------------------------------------------

    /// Everything that decides what can happen next. Left out are the numbers of requests, tickets and
    /// fetches (a request is named by what it asks), the state of the random numbers and the exact
    /// deadlines (a long while passes them all), and what only explains.
    pub(super) fn text(&self) -> String {
        let mut text = String::with_capacity(4096);
        for process in &self.processes {
            let facts = &process.facts;
            let config = facts.config.as_ref().map(|config| config.config_version());
            let _ = write!(
                text,
                "|{} {:?} {:?} {} {:?} {:?} {:?} {} {:?} {} {:?} {}",
                process.epoch,
                process.now,
                process.log.iter().map(|entry| entry.op_time).collect::<Vec<_>>(),
                process.synced,
                facts.last_vote,
                facts.term,
                config,
                facts.rollback_id,
                process.disk.iter().map(|(_, change)| change_text(change)).collect::<Vec<_>>(),
                process.lost_vote,
                process.copying.map(|copying| (copying.source, copying.first)),
                process.was_primary,
            );
            if let Some(member) = &process.member {
                self.member_text(member, &mut text);
            }
        }
        let mut messages: Vec<String> =
            self.messages.iter().map(|message| self.message_text(message)).collect();
        messages.sort_unstable();
        let _ = write!(
            text,
            "{messages:?}{:?}{:?}{:?}{:?}",
            self.primaries,
            self.committed.len(),
            self.broken,
            (
                self.writes, self.crashes, self.losses, self.stands, self.elapsed, self.cut,
                self.cuts, self.undone
            ),
        );
        text
    }

    fn member_text(&self, member: &Member, text: &mut String) {
        let sync = format!("{:?}", member.sync);
        let sync = match sync.split_once("FetchId(") {
            Some((before, after)) => {
                format!("{before}{}", after.trim_start_matches(|c: char| c.is_ascii_digit()))
            }
            None => sync,
        };
        let mut asked: Vec<String> = member.outbox.under_way().map(|a| format!("{a:?}")).collect();
        asked.sort_unstable();
        let _ = write!(
            text,
            "{:?}{:?}{:?}{:?}{:?}{sync}{asked:?}{:?}{:?}",
            member.ballot.term(),
            member.ballot.last_vote(),
            member.role,
            member.primary(),
            member.log,
            member.candidacy.decisive(),
            member.config.decisive(),
        );
        for after in member.outbox.being_stored() {
            let _ = match after {
                AfterPersist::Vote { token, reply } => {
                    let (life, id) = asker(*token);
                    write!(text, "{life:?}{}{reply:?}", self.request_text(life, id))
                }
                after => write!(text, "{after:?}"),
            };
        }
        for peer in member.peers.values() {
            let _ = write!(
                text,
                ";{:?}{:?}{:?}{:?}{:?}{:?}{:?}{:?}{:?}{:?}{}{}{}",
                peer.contact,
                peer.state,
                peer.term,
                peer.config_version,
                peer.told_primary,
                peer.written.op_time,
                peer.applied.op_time,
                peer.durable.op_time,
                peer.last_heard,
                peer.syncing_to,
                peer.round.is_some(),
                peer.was_reset,
                peer.pings.min(2),
            );
        }
    }

    /// A request by what it asks. One that its sender has given up is like any other such.
    fn request_text(&self, life: Life, id: RequestId) -> String {
        let member = self.processes[life.node].member.as_ref().filter(|_| self.is_alive(life));
        member
            .and_then(|member| member.outbox.asked(id))
            .map_or(String::new(), |a| format!("{a:?}"))
    }

    fn message_text(&self, message: &Message) -> String {
        match message {
            Message::Ask { from, to, id, request } => {
                format!("{}>{to} {} {request:?}", from.node, self.request_text(*from, *id))
            }
            Message::Vote { by, to, id, reply } => {
                format!("{by}>{} {} {reply:?}", to.node, self.request_text(*to, *id))
            }
        }
    }
}

fn change_text(change: &Change) -> String {
    match change {
        Change::Config(config) => format!("{:?}", Arc::as_ref(config).config_version()),
        change => format!("{change:?}"),
    }
}
