//! What members say to each other, and the disk that remembers for them.

use std::collections::VecDeque;
use std::time::Duration;

use quorate_replication::election::LastVote;
use quorate_replication::{Change, Event, Input, Output, Reply, Request, Ticket, Unreachable};

use crate::host::{Host, Operation};
use crate::judges::{Life, Verdict};
use crate::node::{Asker, Message};
use crate::world::{Happening, World};

/// How long a refused connection takes to be refused.
const REFUSAL: Duration = Duration::from_micros(300);
/// How often a crash hits a vote that is being stored.
const VOTE_CRASH_PERCENT: u64 = 6;
/// How often it hits any other ordered write.
const PERSIST_CRASH_PERCENT: u64 = 2;
/// A crash resets this share of connections before anything else is noticed.
const RESET_PERCENT: u64 = 80;

impl<H: Host + Default> World<H> {
    pub(crate) fn carry_out(&mut self, index: usize, output: Output, inputs: &mut VecDeque<Input>) {
        match output {
            Output::Event(event) => {
                self.count_event(index, &event);
                if matches!(event, Event::TooStale { .. }) {
                    self.became_too_stale(index);
                }
                self.seize_the_moment(index, &event);
                let quiet = matches!(event, Event::CommitPointAdvanced(_));
                if !quiet {
                    self.note(Some(index), || event.to_string());
                }
            }
            Output::Persist { ticket, change } => {
                let slow = if self.random.chance(self.scale.slow_disk_percent) { 300 } else { 10 };
                let delay = self.random.duration_up_to(Duration::from_millis(slow));
                let is_vote = matches!(change, Change::LastVote(_));
                let node = &mut self.nodes[index];
                node.disk.push_back((ticket, change));
                let life = node.life;
                self.schedule(delay, Happening::DiskDone { life, ticket });
                self.maybe_crash_at_persist(life, delay, is_vote);
            }
            Output::Send { request, to, message, .. } => {
                let from = self.nodes[index].life;
                let Some(to) = self.nodes.iter().position(|node| node.address == to) else {
                    return;
                };
                if let Some(vote) = real_vote(&message) {
                    self.judge_promise(index, vote);
                }
                let sent = self.now;
                let message = Message::Request { from, id: request, sent, request: message };
                self.transmit(index, to, message);
            }
            Output::Respond { token, reply } => {
                let asked = self.nodes[index].asked_votes.remove(&token);
                if let (Some(vote), Ok(Reply::Vote(told))) = (asked, &reply)
                    && told.vote_granted
                {
                    self.judge_promise(index, vote);
                }
                let reply = reply.unwrap_or_else(|error| Reply::Refused {
                    code: error.code(),
                    message: error.to_string(),
                });
                match self.nodes[index].askers.remove(&token) {
                    Some(Asker::Peer { life, id, sent }) => {
                        let message = Message::Reply { to: life, id, sent, reply };
                        self.transmit(index, life.node, message);
                    }
                    Some(Asker::Admin(what)) => {
                        self.note(Some(index), || format!("answers {what}: {reply:?}"));
                    }
                    None => {
                        self.verdict = Err(Verdict(format!("n{index} answered {token:?} twice")));
                    }
                }
            }
            Output::AppendNoop { term, .. } => {
                let entry = self.append_own(index, term.0, Operation::Noop);
                inputs.push_back(Input::EntriesAppended { last: entry.position });
            }
            Output::Acknowledge { waiter, result } => self.acknowledged(waiter, result.is_ok()),
            Output::StopWrites => {}
            Output::Halt(fatal) => {
                self.verdict = Err(Verdict(format!("n{index} must end: {fatal}")));
            }
            Output::FetchFrom { fetch, source, after } => {
                self.begin_fetch(index, fetch, &source, after);
            }
            Output::CancelFetch { fetch } => {
                self.nodes[index].fetching.take_if(|fetching| fetching.id == fetch);
            }
            Output::ApplyThrough { through, delay } => self.apply_through(index, through, delay),
            Output::FindCommonPoint { fetch, source } => {
                self.find_common_point(index, fetch, &source)
            }
            Output::RollBackTo { common_point } => self.roll_back(index, common_point),
            Output::InitialSync { attempt, step } => self.initial_sync_step(index, attempt, step),
        }
    }

    fn judge_promise(&mut self, index: usize, vote: LastVote) {
        let stored = self.nodes[index].host.last_vote();
        let judged = self.judges.promised(index, vote, stored);
        self.verdict = self.verdict.clone().and(judged);
    }

    /// The worst moment for a crash is while a promise is being written.
    fn maybe_crash_at_persist(&mut self, life: Life, delay: Duration, is_vote: bool) {
        let general = (VOTE_CRASH_PERCENT, PERSIST_CRASH_PERCENT);
        let (vote, other) = self.story.crash_percents().unwrap_or(general);
        let percent = if is_vote { vote } else { other };
        if self.turmoil && self.random.chance(percent) {
            let moment = self.random.duration_up_to(delay);
            self.schedule(moment, Happening::Crash(life));
            // Often back at once, while the others still remember what it said.
            let longest = if self.random.chance(70) { 60 } else { 8_000 };
            let pause = self.random.duration_up_to(Duration::from_millis(longest));
            self.schedule(delay + pause, Happening::Restart { node: life.node });
        }
    }

    /// Sends a message through the network. A machine without a process refuses requests.
    pub(crate) fn transmit(&mut self, from: usize, to: usize, message: Message) {
        self.transmit_after(Duration::ZERO, from, to, message);
    }

    /// The same, after the sender has worked on it for a while.
    pub(crate) fn transmit_after(
        &mut self,
        work: Duration,
        from: usize,
        to: usize,
        message: Message,
    ) {
        let deliveries = self.network.deliveries(&mut self.random, from, to);
        for delay in deliveries {
            self.schedule(work + delay, Happening::Deliver { to, message: message.clone() });
        }
    }

    pub(crate) fn deliver(&mut self, to: usize, message: Message) {
        if !self.nodes[to].is_up() {
            return self.refuse(to, message);
        }
        match message {
            Message::Request { from, id, sent, request } => {
                let token = self.nodes[to].token(Asker::Peer { life: from, id, sent });
                if let Some(vote) = real_vote(&request) {
                    self.nodes[to].asked_votes.insert(token, vote);
                }
                self.feed(to, Input::RequestReceived { token, request });
            }
            Message::Reply { to: life, .. } if self.nodes[to].life != life => {}
            Message::Reply { id, sent, reply, .. } => {
                let round_trip = self.now.since(sent);
                self.feed(to, Input::ReplyReceived { request: id, reply, round_trip });
            }
            Message::Fetch(request) => self.serve_fetch(to, request),
            Message::Fetched(reply) => self.fetched(to, *reply),
            Message::LogQuery { from, fetch } => self.serve_log_query(to, from, fetch),
            Message::LogAnswer { fetch, op_times } => self.log_answered(to, fetch, &op_times),
            Message::SyncQuery { from, attempt, step } => {
                self.serve_sync_query(to, from, attempt, step);
            }
            Message::SyncAnswer { attempt, step, log, rollback_id } => {
                self.sync_answered(to, attempt, &step, &log, rollback_id);
            }
            Message::SyncRefused { attempt } => self.sync_refused(to, attempt),
        }
    }

    fn refuse(&mut self, to: usize, message: Message) {
        if let Message::Request { from, id, .. } = message
            && self.is_alive(from)
            && !self.network.is_cut(to, from.node)
        {
            let input = Input::PeerUnreachable { request: id, cause: Unreachable::Refused };
            let local = Happening::Local { life: from, input: Box::new(input) };
            self.schedule(REFUSAL, local);
        }
    }

    /// Everybody who is connected to a process that dies may see its connection reset.
    pub(crate) fn reset_connections_to(&mut self, index: usize) {
        let peer = self.nodes[index].address.clone();
        for other in 0..self.nodes.len() {
            let reached = other != index
                && self.nodes[other].is_up()
                && !self.network.is_cut(index, other)
                && self.random.chance(RESET_PERCENT);
            if reached {
                let life = self.nodes[other].life;
                let input = Box::new(Input::ConnectionReset { peer: peer.clone() });
                let delay = self.random.duration_up_to(Duration::from_millis(5));
                self.schedule(delay, Happening::Local { life, input });
            }
        }
    }

    /// The disk finished a write; writes finish in the order they were given.
    pub(crate) fn disk_done(&mut self, life: Life, ticket: Ticket) {
        if !self.is_alive(life) {
            return;
        }
        while let Some((done, change)) = self.nodes[life.node].disk.pop_front() {
            let node = &mut self.nodes[life.node];
            let before = node.host.log().len();
            node.host.store(&change);
            if node.host.log().len() > before {
                let last = node.host.last();
                let entry = node.host.log()[before];
                self.appended(life.node, Default::default(), &entry);
                self.feed(life.node, Input::EntriesAppended { last });
                self.feed(life.node, Input::EntriesDurable { last });
                self.feed(life.node, Input::Applied { last });
            }
            self.feed(life.node, Input::Persisted(done));
            if done >= ticket || !self.is_alive(life) {
                return;
            }
        }
    }
}

/// The vote that a request asks for, unless it is a dry run.
fn real_vote(request: &Request) -> Option<LastVote> {
    match request {
        Request::Vote(asked) if !asked.dry_run => {
            Some(LastVote { term: asked.term, candidate: asked.candidate })
        }
        _ => None,
    }
}
