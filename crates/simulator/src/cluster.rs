//! What members say to each other, and the disk that remembers for them.

use std::time::Duration;

use quorate_member::Order;
use quorate_replication::{
    Change, Event, Input, LastVote, Reply, Request, RequestToken, Ticket, Unreachable,
};

use crate::judges::{Life, Verdict};
use crate::process::{Asker, Message};
use crate::world::{Happening, World};

/// How long a refused connection takes to be refused.
const REFUSAL: Duration = Duration::from_micros(300);
/// How often a crash hits a vote that is being stored.
const VOTE_CRASH_PERCENT: u64 = 6;
/// How often it hits any other ordered write.
const PERSIST_CRASH_PERCENT: u64 = 2;
/// A crash resets this share of connections before anything else is noticed.
const RESET_PERCENT: u64 = 80;

impl World {
    pub(crate) fn carry_out(&mut self, index: usize, order: Order<()>) {
        match order {
            Order::Tell(event) => {
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
            Order::View(_) | Order::Committed(_) | Order::TopologyChanged | Order::Farewell => {}
            Order::Persist { ticket, change } => {
                let slow = if self.random.chance(self.scale.slow_disk_percent) { 300 } else { 10 };
                let delay = self.random.duration_up_to(Duration::from_millis(slow));
                let is_vote = matches!(change, Change::LastVote(_));
                let node = &mut self.nodes[index];
                node.persisting.push_back((ticket, change));
                let life = node.life;
                self.schedule(delay, Happening::Persisted { life, ticket });
                self.maybe_crash_at_persist(life, delay, is_vote);
            }
            Order::Send { request, to, message, .. } => {
                let from = self.nodes[index].life;
                let Some(to) = self.index_at(&to) else { return };
                if let Some(vote) = real_vote(&message) {
                    self.judge_promise(index, vote);
                }
                let sent = self.now;
                let message = Message::Request { from, id: request, sent, request: message };
                self.transmit(index, to, message);
            }
            Order::Respond { token, reply } => self.respond(index, token, reply),
            Order::AppendNoop { reason, term } => {
                let Some(data) = self.nodes[index].data() else { return };
                if let Err(error) = data.append_noop(reason, term, self.now_at(index)) {
                    return self.must_end(index, &error.message);
                }
                self.written_here(index);
                let now = self.now_at(index);
                if let Some(member) = &mut self.nodes[index].member {
                    member.log_moved(now);
                }
            }
            Order::Acknowledge { waiter, result } => self.acknowledged(waiter, result.is_ok()),
            Order::Halt(why) => self.must_end(index, &why),
            Order::Fetch { fetch, source, after, .. } => {
                self.begin_fetch(index, fetch, &source, after);
            }
            Order::EndFetch => self.end_fetch(index),
            Order::Change(change) => self.order_change(index, change),
            Order::FindCommonPoint { fetch, source } => {
                self.find_common_point(index, fetch, &source)
            }
            Order::Copy(work) => self.begin_copy(index, work),
            Order::EndCopy => self.end_copy(index),
        }
    }

    fn respond(
        &mut self,
        index: usize,
        token: RequestToken,
        reply: Result<Reply, quorate_replication::RequestError>,
    ) {
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

    /// A member cannot go on, which no misfortune of these worlds may bring about.
    pub(crate) fn must_end(&mut self, index: usize, why: &str) {
        if self.nodes[index].disk.take_failure() {
            self.nodes[index].disk_failed = true;
            self.note(Some(index), || format!("ends, since its disk failed: {why}"));
            let life = self.nodes[index].life;
            self.schedule(Duration::ZERO, Happening::Crash(life));
            let pause = self.random.duration_up_to(Duration::from_secs(8));
            return self.schedule(pause, Happening::Restart { node: index });
        }
        if self.nodes[index].disk_failed {
            return;
        }
        let judged = Err(Verdict(format!("n{index} must end: {why}")));
        self.verdict = self.verdict.clone().and(judged);
    }

    /// A promise counts if a process that starts after a crash finds it.
    fn judge_promise(&mut self, index: usize, vote: LastVote) {
        let judged = match self.nodes[index].disk.vote_after_crash(self.now_at(index)) {
            Ok(stored) => self.judges.promised(index, vote, stored),
            Err(error) => return self.must_end(index, &error.message),
        };
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
            Message::Entries(request) => self.serve_entries(to, request),
            Message::EntriesSent(reply) => self.entries_sent(to, *reply),
            Message::Command { from, number, command } => {
                self.serve_command(to, from, number, command);
            }
            Message::CommandAnswered { to: life, number, reply } => {
                self.command_answered(to, life, number, &reply);
            }
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

    /// Each peer of a process that dies may see its connection reset.
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
    pub(crate) fn persisted(&mut self, life: Life, ticket: Ticket) {
        let index = life.node;
        while let Some((done, change)) = self.nodes[index].persisting.pop_front() {
            let Some(data) = self.nodes[index].data() else { return };
            let stored = data.persist(&change, self.now_at(index));
            if let Err(error) = stored.and_then(|()| data.sync_log()) {
                return self.must_end(index, &error.message);
            }
            self.look_at_log(index);
            self.feed(index, Input::Persisted(done));
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
