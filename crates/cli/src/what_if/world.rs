//! One future of a set: the production replication core of every member around a virtual clock.
//!
//! Pure: the same situation and the same seed give the same future. Messages take half a round trip
//! with some jitter, disks a few milliseconds, and now and then a machine is busy for a moment. Members
//! begin with the positions that the live set has; none of them writes anything but what an election
//! writes.

use std::collections::BTreeMap;
use std::time::Duration;

use quorate_protocol::{
    MonotonicTime, ObjectId, OpTime, OpTimeAndWallTime, ReplicaSetConfig, ServerAddress, Term,
    Timestamp, WallTime,
};
use quorate_replication::{
    Event, FetchFailure, FetchId, FetchedBatch, Input, Member, MemberOptions, Output, Recovered,
    Reply, Request, RequestId, RequestToken, SeededRandom, Ticket, Unreachable,
};

/// The most events of one future. A future of a minute has some ten thousand.
const MAX_EVENTS: u64 = 500_000;

/// How long the set may take to have the primary it begins with.
const SETTLE_WITHIN: Duration = Duration::from_secs(60);

/// When the first primary is asked to stand: its peers have answered a heartbeat by then.
const STAND_AT: Duration = Duration::from_millis(300);

/// How often an open fetch is answered although nothing is new.
const FETCH_EVERY: Duration = Duration::from_millis(500);

/// How long a disk takes to sync, at least and at most.
const SYNC: (u64, u64) = (300, 3_000);

/// A round trip where none was measured, and the shortest that is believed.
const USUAL_TRIP: Duration = Duration::from_millis(1);
const LEAST_TRIP: Duration = Duration::from_micros(100);

/// How long a machine is busy now and then, in microseconds.
const HICCUP: u64 = 15_000;

/// One message in this many meets a busy machine.
const HICCUPS: u64 = 60;

/// The state of the live set from which forecasts start.
#[derive(Clone, Debug)]
pub(super) struct Situation {
    pub(super) config: ReplicaSetConfig,
    pub(super) term: Term,
    pub(super) primary: Option<ServerAddress>,
    /// Members that are up, with their last entry.
    pub(super) up: BTreeMap<ServerAddress, OpTime>,
    /// How fast messages and disks are here.
    pub(super) pace: Pace,
    /// The client that waits, if its share of the time counts.
    pub(super) client: Option<Waiting>,
}

/// How fast messages and disks are, as measured.
#[derive(Clone, Debug, Default)]
pub(super) struct Pace {
    /// Round trips, in no order. Those of a busy machine have a tail, and so has the forecast.
    pub(super) round_trips: Vec<Duration>,
    /// How long disks take to sync; a guess is made if nothing was measured.
    pub(super) syncs: Vec<Duration>,
}

/// A client that writes while the fault happens.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    /// How long it waits for the old primary's last word once it knows a newer one.
    pub(super) patience: Duration,
    /// How long its majority writes take while nothing is broken.
    pub(super) writes: Vec<Duration>,
}

/// The way in which members go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Their processes end: connections are reset and refused.
    Crash,
    /// They fall silent: a host that hangs, a cut cable.
    Silence,
    /// The primary is asked to step down.
    StepDown,
}

/// How a future went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Future {
    /// The primary in the end.
    pub(super) winner: Option<ServerAddress>,
    /// How long no write could be acknowledged by a majority; zero if the primary went on.
    pub(super) without_writes: Option<Duration>,
    /// How many elections were begun.
    pub(super) elections: u32,
    /// How many dry runs were vetoed or lost.
    pub(super) dry_runs_lost: u32,
    /// Whether the winner had to fetch entries first.
    pub(super) caught_up: bool,
}

#[derive(Debug)]
enum Happening {
    Tick(usize),
    Request { from: usize, to: usize, id: RequestId, request: Request, deadline: MonotonicTime },
    Reply { to: usize, id: RequestId, reply: Reply, sent: MonotonicTime },
    Unreachable { to: usize, id: RequestId, cause: Unreachable },
    Persisted { at: usize, ticket: Ticket },
    Fetch { at: usize, fetch: FetchId },
    Fetched { at: usize, fetch: FetchId, batch: FetchedBatch },
    FetchFailed { at: usize, fetch: FetchId },
    LogMoved { at: usize, last: OpTimeAndWallTime },
    Reset { at: usize, peer: ServerAddress },
    RollBack { at: usize, input: Input },
}

/// A copy under way.
#[derive(Clone, Copy, Debug)]
struct Fetching {
    id: FetchId,
    source: usize,
    after: OpTime,
    is_first: bool,
}

struct Node {
    address: ServerAddress,
    /// `None` if it is down from the beginning, or went.
    member: Option<Member>,
    /// The last entry, and those before it that matter: newest last.
    log: Vec<OpTimeAndWallTime>,
    fetching: Option<Fetching>,
    askers: BTreeMap<RequestToken, (usize, RequestId, MonotonicTime)>,
    next_token: u64,
    ticks_at: Option<MonotonicTime>,
}

struct World {
    nodes: Vec<Node>,
    queue: BTreeMap<(MonotonicTime, u64), Happening>,
    next: u64,
    now: MonotonicTime,
    random: SeededRandom,
    pace: Pace,
    fate: Fate,
    elections: u32,
    dry_runs_lost: u32,
    caught_up: bool,
}

/// Plays one future: the members settle, these go, and what follows is watched.
pub(super) fn play(situation: &Situation, down: &[ServerAddress], fate: Fate, seed: u64) -> Future {
    let mut world = World::new(situation, fate, seed);
    world.settle(situation);
    let timeout = situation.config.settings.election_timeout();
    let heartbeat = situation.config.settings.heartbeat_interval();
    // The moment of the fault falls anywhere between two heartbeats.
    let phase = heartbeat.mul_f64(2.0) + world.within(heartbeat);
    world.run_until(world.now + phase, |_| false);
    (world.elections, world.dry_runs_lost, world.caught_up) = (0, 0, false);
    let before = world.leader();
    let began = world.now;
    match fate {
        Fate::StepDown => world.step_down(before),
        Fate::Crash | Fate::Silence => world.take_away(down),
    }
    if !world.majority_is_up(&situation.config) {
        // No member can be elected, and a primary that is left steps down: there is nothing to wait for.
        return world.future(None, None);
    }
    let keeps =
        fate != Fate::StepDown && before.is_some_and(|leader| world.nodes[leader].member.is_some());
    let horizon = began + timeout * 6 + Duration::from_secs(5);
    if keeps {
        // A primary that loses its majority notices within the election timeout.
        world.run_until(began + timeout * 2 + heartbeat * 2, |_| false);
        let stays = world.leader() == before;
        let winner = world.leader().map(|leader| world.nodes[leader].address.clone());
        let without_writes =
            (stays && world.majority_is_up(&situation.config)).then_some(Duration::ZERO);
        return world.future(winner, without_writes);
    }
    let old_term = before.map_or(situation.term, |_| world.highest_term());
    world.run_until(horizon, |world| world.leads_in_a_term_after(old_term).is_some());
    let writable = world.now;
    world.run_until(horizon, |world| world.committed_in_a_term_after(old_term).is_some());
    let winner = world.committed_in_a_term_after(old_term);
    let acknowledged = world.acknowledged(writable, situation.client.as_ref());
    let without_writes = winner.map(|_| acknowledged.since(began));
    let winner = winner.map(|winner| world.nodes[winner].address.clone());
    world.future(winner, without_writes)
}

impl World {
    fn new(situation: &Situation, fate: Fate, seed: u64) -> Self {
        let now = MonotonicTime::from_millis(1_000);
        let mut random = SeededRandom::new(seed);
        let mut entries: Vec<OpTime> = situation.up.values().copied().collect();
        entries.sort_unstable();
        entries.dedup();
        let entry = |op_time: OpTime| OpTimeAndWallTime { op_time, wall_time: WallTime(0) };
        let committed = situation.up.values().min().copied().unwrap_or(OpTime::NULL);
        let nodes = situation.config.members.iter().enumerate().map(|(index, configured)| {
            let address = configured.host.clone();
            let last = situation.up.get(&address).copied();
            let member = last.map(|last| {
                let last = if configured.arbiter_only { OpTime::NULL } else { last };
                let recovered = Recovered {
                    config: Some(situation.config.clone()),
                    term: situation.term,
                    last: entry(last),
                    commit_point: entry(committed.min(last)),
                    ..Recovered::default()
                };
                let options = MemberOptions {
                    set_name: situation.config.set_name.clone(),
                    own_addresses: vec![address.clone()],
                    process_id: identifier(index),
                    new_replica_set_id: identifier(index),
                    allowances: Default::default(),
                };
                Member::new(options, recovered, random.next_u64(), now)
            });
            let log = entries.iter().filter(|op_time| Some(**op_time) <= last);
            Node {
                address,
                member,
                log: log.map(|op_time| entry(*op_time)).collect(),
                fetching: None,
                askers: BTreeMap::new(),
                next_token: 0,
                ticks_at: None,
            }
        });
        let nodes = nodes.collect();
        let mut world = Self {
            nodes,
            queue: BTreeMap::new(),
            next: 0,
            now,
            random,
            pace: situation.pace.clone(),
            fate,
            elections: 0,
            dry_runs_lost: 0,
            caught_up: false,
        };
        for index in 0..world.nodes.len() {
            world.drain(index);
        }
        world
    }

    /// Lets the set elect the primary that it has.
    fn settle(&mut self, situation: &Situation) {
        let limit = self.now + SETTLE_WITHIN;
        let wanted = situation.primary.as_ref().and_then(|primary| self.index_of(primary));
        self.run_until(self.now + STAND_AT, |_| false);
        if let Some(wanted) = wanted {
            self.command(wanted, Request::StepUp { skip_dry_run: false });
        }
        self.run_until(limit, |world| match (wanted, world.leader()) {
            (Some(wanted), Some(leader)) => leader == wanted || world.now > limit,
            (None, Some(_)) => true,
            (_, None) => false,
        });
    }

    fn index_of(&self, address: &ServerAddress) -> Option<usize> {
        self.nodes.iter().position(|node| node.address == *address)
    }

    /// The member that takes writes.
    fn leader(&self) -> Option<usize> {
        let writable =
            |node: &Node| node.member.as_ref().is_some_and(|member| member.status().is_writable());
        self.nodes.iter().position(writable)
    }

    fn highest_term(&self) -> Term {
        let terms = self.nodes.iter().filter_map(|node| node.member.as_ref());
        terms.map(|member| member.status().term()).max().unwrap_or_default()
    }

    /// A member that takes writes in a later term.
    fn leads_in_a_term_after(&self, term: Term) -> Option<usize> {
        let leader = self.leader()?;
        let status = self.nodes[leader].member.as_ref()?.status();
        (status.term() > term).then_some(leader)
    }

    /// A member that leads in a later term, an entry of which is committed.
    fn committed_in_a_term_after(&self, term: Term) -> Option<usize> {
        let leader = self.leads_in_a_term_after(term)?;
        let status = self.nodes[leader].member.as_ref()?.status();
        (Term(status.commit_point().op_time.term) > term).then_some(leader)
    }

    /// When the first write is acknowledged: at once, or to a client that has to hear of the new
    /// primary first and then writes.
    fn acknowledged(&mut self, writable: MonotonicTime, client: Option<&Waiting>) -> MonotonicTime {
        let Some(client) = client else { return self.now };
        let heard = writable + self.half_trip() + client.patience;
        let write = self.sample(&client.writes).unwrap_or_default();
        self.now.max(heard + write)
    }

    /// One of the measured spans.
    fn sample(&mut self, spans: &[Duration]) -> Option<Duration> {
        let number = self.random.next_u64();
        let length = u64::try_from(spans.len()).ok().filter(|length| *length > 0)?;
        spans.get((number % length) as usize).copied()
    }

    fn majority_is_up(&self, config: &ReplicaSetConfig) -> bool {
        let (mut all, mut up) = (0, 0);
        for (configured, node) in config.members.iter().zip(&self.nodes) {
            if configured.is_voter() {
                all += 1;
                up += usize::from(node.member.is_some());
            }
        }
        up > all / 2
    }

    fn take_away(&mut self, down: &[ServerAddress]) {
        let gone: Vec<usize> = down.iter().filter_map(|address| self.index_of(address)).collect();
        for index in &gone {
            let node = &mut self.nodes[*index];
            node.member = None;
            node.fetching = None;
            let asked = std::mem::take(&mut node.askers);
            let address = node.address.clone();
            if self.fate != Fate::Crash {
                continue;
            }
            for (to, id, _) in asked.into_values() {
                let cause = Unreachable::Reset;
                let delay = self.half_trip();
                self.schedule(delay, Happening::Unreachable { to, id, cause });
            }
            for at in 0..self.nodes.len() {
                if self.nodes[at].member.is_some() {
                    let delay = self.half_trip();
                    self.schedule(delay, Happening::Reset { at, peer: address.clone() });
                }
            }
        }
        for at in 0..self.nodes.len() {
            if let Some(fetching) = self.nodes[at].fetching
                && gone.contains(&fetching.source)
                && self.fate == Fate::Crash
            {
                let delay = self.half_trip();
                self.schedule(delay, Happening::FetchFailed { at, fetch: fetching.id });
            }
        }
    }

    fn step_down(&mut self, leader: Option<usize>) {
        if let Some(leader) = leader {
            let (period, catch_up_period) = (Duration::from_secs(20), Duration::from_secs(10));
            self.command(leader, Request::StepDown { period, catch_up_period, force: false });
        }
    }

    /// A command of an administrator, whose answer is of no interest.
    fn command(&mut self, at: usize, request: Request) {
        self.nodes[at].next_token += 1;
        let token = RequestToken(self.nodes[at].next_token);
        self.feed(at, Input::RequestReceived { token, request });
    }

    fn future(&self, winner: Option<ServerAddress>, without_writes: Option<Duration>) -> Future {
        Future {
            winner,
            without_writes,
            elections: self.elections,
            dry_runs_lost: self.dry_runs_lost,
            caught_up: self.caught_up,
        }
    }

    fn within(&mut self, span: Duration) -> Duration {
        let micros = u64::try_from(span.as_micros()).unwrap_or(u64::MAX).max(1);
        Duration::from_micros(self.random.next_u64() % micros)
    }

    /// How long a message travels.
    fn half_trip(&mut self) -> Duration {
        let pace = std::mem::take(&mut self.pace);
        let base = self.sample(&pace.round_trips).unwrap_or(USUAL_TRIP).max(LEAST_TRIP) / 2;
        self.pace = pace;
        let mut delay = base.mul_f64(0.7) + self.within(base.mul_f64(0.6));
        delay += Duration::from_micros(50 + self.random.next_u64() % 250);
        if self.random.next_u64().is_multiple_of(HICCUPS) {
            delay += Duration::from_micros(self.random.next_u64() % HICCUP);
        }
        delay
    }

    /// How long a disk takes.
    fn sync(&mut self) -> Duration {
        let pace = std::mem::take(&mut self.pace);
        let measured = self.sample(&pace.syncs);
        self.pace = pace;
        let (least, most) = SYNC;
        let guessed = least + self.random.next_u64() % (most - least);
        measured.unwrap_or(Duration::from_micros(guessed))
    }

    fn schedule(&mut self, after: Duration, happening: Happening) {
        self.next += 1;
        self.queue.insert((self.now + after, self.next), happening);
    }

    fn run_until(&mut self, limit: MonotonicTime, done: impl Fn(&Self) -> bool) {
        let mut events = 0;
        while !done(self) && events < MAX_EVENTS {
            let Some((&(at, number), _)) = self.queue.first_key_value() else { break };
            if at > limit {
                break;
            }
            let Some(happening) = self.queue.remove(&(at, number)) else { break };
            self.now = at;
            self.happen(happening);
            events += 1;
        }
        if !done(self) {
            self.now = self.now.max(limit);
        }
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Tick(at) => {
                self.nodes[at].ticks_at = None;
                self.feed(at, Input::Tick);
            }
            Happening::Request { from, to, id, request, deadline } => {
                self.deliver(from, to, id, request, deadline);
            }
            Happening::Reply { to, id, reply, sent } => {
                let round_trip = self.now.since(sent);
                self.feed(to, Input::ReplyReceived { request: id, reply, round_trip });
            }
            Happening::Unreachable { to, id, cause } => {
                self.feed(to, Input::PeerUnreachable { request: id, cause });
            }
            Happening::Persisted { at, ticket } => self.feed(at, Input::Persisted(ticket)),
            Happening::Fetch { at, fetch } => self.fetch(at, fetch),
            Happening::Fetched { at, fetch, batch } => {
                if self.nodes[at].fetching.is_some_and(|fetching| fetching.id == fetch) {
                    self.feed(at, Input::EntriesFetched { fetch, batch });
                    self.schedule(FETCH_EVERY, Happening::Fetch { at, fetch });
                }
            }
            Happening::FetchFailed { at, fetch } => {
                if self.nodes[at].fetching.is_some_and(|fetching| fetching.id == fetch) {
                    self.nodes[at].fetching = None;
                    self.feed(at, Input::FetchFailed { fetch, cause: FetchFailure::Connection });
                }
            }
            Happening::LogMoved { at, last } => {
                self.feed(at, Input::LogMoved { written: last, applied: last, durable: last });
            }
            Happening::Reset { at, peer } => self.feed(at, Input::ConnectionReset { peer }),
            Happening::RollBack { at, input } => self.feed(at, input),
        }
    }

    fn deliver(
        &mut self,
        from: usize,
        to: usize,
        id: RequestId,
        request: Request,
        deadline: MonotonicTime,
    ) {
        if self.nodes[to].member.is_none() {
            // Members that were down before the fault count as crashed: their hosts refuse.
            let (cause, after) = match self.fate {
                Fate::Silence => (Unreachable::TimedOut, deadline.since(self.now)),
                Fate::Crash | Fate::StepDown => (Unreachable::Refused, self.half_trip()),
            };
            self.schedule(after, Happening::Unreachable { to: from, id, cause });
            return;
        }
        let node = &mut self.nodes[to];
        node.next_token += 1;
        let token = RequestToken(node.next_token);
        node.askers.insert(token, (from, id, self.now));
        self.feed(to, Input::RequestReceived { token, request });
    }

    /// The source of a fetch is asked.
    fn fetch(&mut self, at: usize, fetch: FetchId) {
        let Some(fetching) = self.nodes[at].fetching.filter(|fetching| fetching.id == fetch) else {
            return;
        };
        let source = &self.nodes[fetching.source];
        let Some(member) = source.member.as_ref() else {
            if self.fate != Fate::Silence {
                let delay = self.half_trip();
                self.schedule(delay, Happening::FetchFailed { at, fetch });
            }
            return;
        };
        let status = member.status();
        let has_ours = source.log.iter().any(|entry| entry.op_time == fetching.after)
            || fetching.after == OpTime::NULL;
        let last = source.log.last().copied().unwrap_or_default();
        let batch = FetchedBatch {
            first: match fetching.is_first {
                true if has_ours => Some(fetching.after),
                true => source.log.first().map(|entry| entry.op_time),
                false => None,
            },
            previous: has_ours.then_some(fetching.after),
            last: (last.op_time > fetching.after).then_some(last),
            source_oldest: OpTime::NULL,
            source_last: last,
            commit_point: status.commit_point(),
            term: status.term(),
            source_is_primary: status.is_writable()
                || status.state() == quorate_protocol::MemberState::Primary,
            rollback_id: status.rollback_id(),
        };
        if let Some(fetching) = &mut self.nodes[at].fetching {
            fetching.is_first = false;
            fetching.after = fetching.after.max(last.op_time);
        }
        let delay = self.half_trip();
        self.schedule(delay, Happening::Fetched { at, fetch, batch });
    }

    fn feed(&mut self, at: usize, input: Input) {
        let now = self.now;
        if let Some(member) = self.nodes[at].member.as_mut() {
            member.handle(now, input);
            self.drain(at);
        }
    }

    /// Carries out what a member asks for.
    fn drain(&mut self, at: usize) {
        loop {
            let output = self.nodes[at].member.as_mut().and_then(Member::poll_output);
            let Some(output) = output else { break };
            self.carry_out(at, output);
        }
        let deadline = self.nodes[at].member.as_ref().and_then(Member::next_deadline);
        if let Some(deadline) = deadline
            && self.nodes[at].ticks_at.is_none_or(|ticks_at| ticks_at > deadline)
        {
            let deadline = deadline.max(self.now);
            self.nodes[at].ticks_at = Some(deadline);
            let after = deadline.since(self.now);
            self.schedule(after, Happening::Tick(at));
        }
    }

    fn carry_out(&mut self, at: usize, output: Output) {
        match output {
            Output::Send { request, to, message, timeout } => {
                let Some(to) = self.index_of(&to) else { return };
                let (delay, deadline) = (self.half_trip(), self.now + timeout);
                let (from, id, request) = (at, request, message);
                self.schedule(delay, Happening::Request { from, to, id, request, deadline });
            }
            Output::Respond { token, reply } => self.respond(at, token, reply),
            Output::Persist { ticket, .. } => {
                let delay = self.sync();
                self.schedule(delay, Happening::Persisted { at, ticket });
            }
            Output::FetchFrom { fetch, source, after } => {
                let Some(source) = self.index_of(&source) else { return };
                self.nodes[at].fetching =
                    Some(Fetching { id: fetch, source, after, is_first: true });
                let delay = self.half_trip();
                self.schedule(delay, Happening::Fetch { at, fetch });
            }
            Output::CancelFetch { fetch } => {
                let is_it = |fetching: &mut Fetching| fetching.id == fetch;
                self.nodes[at].fetching.take_if(is_it);
            }
            Output::ApplyThrough { through, delay } => {
                let last = OpTimeAndWallTime { op_time: through, wall_time: WallTime(0) };
                self.append(at, last, delay);
            }
            Output::AppendNoop { term, .. } => {
                let seconds = self.nodes.iter().filter_map(|node| node.log.last());
                let seconds = seconds.map(|entry| entry.op_time.timestamp).max();
                let newest = seconds.unwrap_or(Timestamp::new(1, 1)).as_u64();
                let next = Timestamp::new((newest >> 32) as u32 + 1, 1);
                let last = OpTimeAndWallTime {
                    op_time: OpTime::new(term.0, next),
                    wall_time: WallTime(0),
                };
                self.append(at, last, Duration::ZERO);
            }
            Output::Event(event) => self.note(&event),
            Output::FindCommonPoint { fetch, source } => self.find_common_point(at, fetch, &source),
            Output::RollBackTo { common_point } => {
                let log = &mut self.nodes[at].log;
                log.retain(|entry| *entry <= common_point);
                let last = log.last().copied().unwrap_or_default();
                let input = Input::RolledBack { last };
                let delay = self.sync();
                self.schedule(delay, Happening::RollBack { at, input });
            }
            // Nothing is written that would have to be copied anew or waited for.
            Output::InitialSync { .. } | Output::Acknowledge { .. } | Output::StopWrites => {}
            Output::Halt(_) => self.nodes[at].member = None,
        }
    }

    /// Compares the logs of a member and of its source.
    fn find_common_point(&mut self, at: usize, fetch: FetchId, source: &ServerAddress) {
        let theirs = self.index_of(source).map_or(&[][..], |source| &self.nodes[source].log);
        let common = self.nodes[at].log.iter().rev().find(|entry| theirs.contains(entry));
        let input = match common {
            Some(common_point) => Input::CommonPointFound { fetch, common_point: *common_point },
            None => Input::CommonPointUnknown { fetch },
        };
        let delay = self.half_trip() + self.half_trip();
        self.schedule(delay, Happening::RollBack { at, input });
    }

    fn append(&mut self, at: usize, last: OpTimeAndWallTime, delay: Duration) {
        self.nodes[at].log.push(last);
        let micros = 50 + self.random.next_u64() % 450;
        self.schedule(delay + Duration::from_micros(micros), Happening::LogMoved { at, last });
        // Members that copy from this one hear of it at once.
        for follower in 0..self.nodes.len() {
            if let Some(fetching) = self.nodes[follower].fetching
                && fetching.source == at
            {
                let delay = delay + self.half_trip();
                self.schedule(delay, Happening::Fetch { at: follower, fetch: fetching.id });
            }
        }
    }

    fn respond(
        &mut self,
        at: usize,
        token: RequestToken,
        reply: Result<Reply, quorate_replication::RequestError>,
    ) {
        let Some((to, id, sent)) = self.nodes[at].askers.remove(&token) else { return };
        let reply = reply.unwrap_or_else(|error| Reply::Refused {
            code: error.code(),
            message: error.to_string(),
        });
        let delay = self.half_trip();
        self.schedule(delay, Happening::Reply { to, id, reply, sent });
    }

    fn note(&mut self, event: &Event) {
        match event {
            Event::ElectionStarted { .. } => self.elections += 1,
            Event::DryRunVetoed { .. } | Event::DryRunLost { .. } => self.dry_runs_lost += 1,
            Event::CatchUpStarted { .. } => self.caught_up = true,
            _ => {}
        }
    }
}

fn identifier(index: usize) -> ObjectId {
    let mut bytes = [0; 12];
    bytes[11] = index as u8;
    ObjectId::from_bytes(bytes)
}
