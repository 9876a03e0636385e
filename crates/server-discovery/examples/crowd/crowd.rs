//! The clients, and the queue of what happens next.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use std::time::Duration;

use quorate_protocol::{HelloReply, MonotonicTime, ServerAddress, SplitMix64};
use quorate_server_discovery::{
    ApplicationError, CheckFailure, CheckFailureKind, CheckId, CheckKind, DiscoveryOptions,
    HandshakeProgress, Input, MonitorCommand, Output, PoolCommand, PoolGeneration, Topology,
    TopologyId,
};

use crate::members::{MEMBERS, Members, address_of};
use crate::story::{BEGINS, Step, Story};

/// The clients start within this time, as those of a fleet do.
const ARRIVAL: Duration = Duration::from_secs(30);

/// Between a client and a member, one way.
const SHORTEST_WAY: Duration = Duration::from_micros(250);
const LONGEST_WAY: Duration = Duration::from_millis(2);

/// Every second client has an operation under way all the time.
const ACTIVE: u64 = 2;

/// A story is over when every client knows, or after this.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Clone, Debug)]
enum Event {
    Start(u32),
    Tick(u32),
    Step(Step),
    /// A request reaches a member.
    Arrived(Request),
    /// An awaited hello has waited long enough.
    AwaitOver(Request),
    /// An answer reaches a client.
    Answered(Request, Result<Arc<HelloReply>, CheckFailureKind>),
    Measured(Request),
    /// An operation of a client meets the end of its connection.
    OperationFailed(u32, usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Request {
    client: u32,
    member: usize,
    check: CheckId,
    kind: Kind,
    sent: MonotonicTime,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Connect,
    Poll,
    /// Streamed: answered when the member changes, or after so long.
    Await(Duration),
    Measure,
}

/// One client.
struct Client {
    topology: Option<Topology>,
    tick_at: Option<MonotonicTime>,
    /// The check under way at each member.
    waiting: [Option<CheckId>; MEMBERS],
    /// The process at the other end of each monitoring connection.
    connected: [Option<u64>; MEMBERS],
    measures: [bool; MEMBERS],
    /// The counter that the member has told this client last.
    told: [i64; MEMBERS],
    generation: [PoolGeneration; MEMBERS],
    knows: Option<MonotonicTime>,
}

/// The clients, the members, and what happens next.
pub(crate) struct Crowd {
    now: MonotonicTime,
    queue: BinaryHeap<Reverse<(MonotonicTime, u64)>>,
    events: BTreeMap<u64, Event>,
    next_event: u64,
    clients: Vec<Client>,
    members: Members,
    /// Streamed hellos that wait at each member, by client.
    awaiting: Vec<BTreeMap<u32, Request>>,
    random: SplitMix64,
    /// The primary that the clients must learn of, once it leads.
    wanted: Option<usize>,
    ignorant: usize,
}

/// What a story showed.
pub(crate) struct Told {
    pub(crate) most_connects: u64,
    pub(crate) most_hellos: u64,
    pub(crate) most_connections: i64,
    pub(crate) ignorant: usize,
    /// When each client knew the last primary, after it began to lead.
    known: Vec<Duration>,
    /// Connections and hellos of all members in each second, from the beginning of the story on.
    pub(crate) connects: Vec<u64>,
    pub(crate) hellos: Vec<u64>,
}

impl Told {
    pub(crate) fn known_by(&self, share: f64) -> Duration {
        let last = self.known.len().saturating_sub(1);
        self.known.get((last as f64 * share) as usize).copied().unwrap_or_default()
    }

    /// The share of the clients that knew so long after the primary began to lead.
    pub(crate) fn share_after(&self, time: Duration) -> f64 {
        self.known.partition_point(|known| *known <= time) as f64 / self.known.len().max(1) as f64
    }
}

/// Bytes that a discovery core holds which knows all members, as the allocator would count them.
pub(crate) fn bytes_of_a_client(seed: u64) -> usize {
    const CLIENTS: usize = 5_000;
    let before = resident();
    let mut crowd = Crowd::new(CLIENTS, seed);
    crowd.run_until(MonotonicTime::ZERO + BEGINS, |_| false);
    resident().saturating_sub(before) / CLIENTS
}

/// Resident memory of this process; 0 where the system does not tell.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0) * 4096
}

impl Crowd {
    pub(crate) fn new(clients: usize, seed: u64) -> Self {
        let client = |_| Client {
            topology: None,
            tick_at: None,
            waiting: [None; MEMBERS],
            connected: [None; MEMBERS],
            measures: [false; MEMBERS],
            told: [0; MEMBERS],
            generation: [PoolGeneration(0); MEMBERS],
            knows: None,
        };
        let mut crowd = Self {
            now: MonotonicTime::ZERO,
            queue: BinaryHeap::new(),
            events: BTreeMap::new(),
            next_event: 0,
            clients: (0..clients).map(client).collect(),
            members: Members::new(),
            awaiting: vec![BTreeMap::new(); MEMBERS],
            random: SplitMix64::new(seed),
            wanted: None,
            ignorant: clients,
        };
        for client in 0..clients as u32 {
            let at = crowd.up_to(ARRIVAL);
            crowd.after(at, Event::Start(client));
        }
        crowd
    }

    /// Plays a story to its end.
    pub(crate) fn play(&mut self, story: Story) -> Told {
        let begins = MonotonicTime::ZERO + BEGINS;
        self.run_until(begins, |_| false);
        self.now = begins;
        for (after, step) in story.steps() {
            self.after(after, Event::Step(step));
        }
        let (after, primary) = story.last_primary();
        let leads = begins + after;
        self.run_until(leads, |_| false);
        self.wanted = Some(primary);
        for client in &mut self.clients {
            client.knows = None;
        }
        self.run_until(leads + PATIENCE, |crowd| crowd.ignorant == 0);
        let last_step = story.steps().last().map_or(Duration::ZERO, |(at, _)| *at);
        self.run_until(begins + last_step + Duration::from_secs(15), |_| false);
        self.told(leads)
    }

    fn told(&self, leads: MonotonicTime) -> Told {
        let mut known: Vec<Duration> =
            self.clients.iter().filter_map(|client| Some(client.knows?.since(leads))).collect();
        known.sort_unstable();
        let begins = BEGINS.as_secs() as usize;
        let after = |counts: &[u64]| counts.get(begins..).unwrap_or_default().to_vec();
        let mut told = Told {
            most_connects: 0,
            most_hellos: 0,
            most_connections: 0,
            ignorant: self.ignorant,
            known,
            connects: Vec::new(),
            hellos: Vec::new(),
        };
        for member in &self.members.members {
            let (connects, hellos) = (after(&member.connects), after(&member.hellos));
            told.most_connects =
                told.most_connects.max(connects.iter().copied().max().unwrap_or(0));
            told.most_hellos = told.most_hellos.max(hellos.iter().copied().max().unwrap_or(0));
            told.most_connections = told.most_connections.max(member.most_connections);
            add(&mut told.connects, &connects);
            add(&mut told.hellos, &hellos);
        }
        told
    }

    fn run_until(&mut self, end: MonotonicTime, is_over: impl Fn(&Self) -> bool) {
        while let Some(&Reverse((at, number))) = self.queue.peek()
            && at < end
            && !is_over(self)
        {
            self.queue.pop();
            self.now = at;
            if let Some(event) = self.events.remove(&number) {
                self.happen(event);
            }
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Start(client) => {
                let options = DiscoveryOptions {
                    set_name: Some("rs0".to_owned()),
                    ..DiscoveryOptions::with_seeds((0..MEMBERS).map(address_of))
                };
                let (id, seed) = (TopologyId(u64::from(client)), self.chance());
                let topology = Topology::new(&options, id, seed, self.now).unwrap();
                self.clients[client as usize].topology = Some(topology);
                self.carry_out(client);
            }
            Event::Tick(client) => {
                self.clients[client as usize].tick_at = None;
                self.tell(client, Input::Tick);
            }
            Event::Step(step) => self.step(step),
            Event::Arrived(request) => self.arrived(request),
            Event::AwaitOver(request) => {
                let waiting = &mut self.awaiting[request.member];
                if waiting.get(&request.client).is_some_and(|known| known.check == request.check) {
                    waiting.remove(&request.client);
                    self.answer(request);
                }
            }
            Event::Answered(request, answer) => self.answered(request, answer),
            Event::Measured(request) => {
                let round_trip = Some(self.now.since(request.sent));
                let (server, check) = (address_of(request.member), request.check);
                self.tell(request.client, Input::RoundTripMeasured { server, check, round_trip });
            }
            Event::OperationFailed(client, member) => {
                let cause = ApplicationError::Network("the connection was reset".to_owned());
                let failed = Input::ApplicationFailed {
                    server: address_of(member),
                    generation: self.clients[client as usize].generation[member],
                    service_id: None,
                    handshake: HandshakeProgress::Complete,
                    max_wire_version: 21,
                    overloaded: false,
                    cause,
                };
                self.tell(client, failed);
            }
        }
    }

    fn step(&mut self, step: Step) {
        if let Step::End(member) = step {
            // Every connection to it is reset.
            let waiting = std::mem::take(&mut self.awaiting[member]);
            for request in waiting.into_values() {
                let way = self.way();
                let reset = Err(CheckFailureKind::Network);
                self.after(way, Event::Answered(request, reset));
            }
            for client in 0..self.clients.len() as u32 {
                if u64::from(client) % ACTIVE == 0 && self.believes_in(client) == Some(member) {
                    let way = self.way();
                    self.after(way, Event::OperationFailed(client, member));
                }
                self.clients[client as usize].measures[member] = false;
            }
        }
        for changed in step.change(&mut self.members) {
            let waiting = std::mem::take(&mut self.awaiting[changed]);
            for request in waiting.into_values() {
                self.answer(request);
            }
        }
    }

    fn believes_in(&self, client: u32) -> Option<usize> {
        let topology = self.clients[client as usize].topology.as_ref()?;
        let description = topology.description();
        member_at(description.primary()?.address())
    }

    /// Whether nothing passes between a client and a member.
    fn is_hidden(&self, client: u32, member: usize) -> bool {
        self.members.hidden == Some(member) && client % 2 == 1
    }

    fn arrived(&mut self, request: Request) {
        let Request { client, member, kind, .. } = request;
        let connected = self.clients[client as usize].connected[member];
        let process = self.members.members[member].process;
        let is_there = self.members.members[member].is_up
            && (kind == Kind::Connect || kind == Kind::Measure || connected == Some(process));
        if !is_there {
            let way = self.way();
            return self.after(way, Event::Answered(request, Err(CheckFailureKind::Network)));
        }
        match kind {
            Kind::Connect => {
                self.members.connected(member);
                self.answer(request);
            }
            Kind::Poll => self.answer(request),
            Kind::Measure => {
                let measures = &mut self.clients[client as usize].measures[member];
                let connects = !std::mem::replace(measures, true);
                if connects {
                    self.members.connected(member);
                }
                let answered = self.members.serve(member, self.now, connects);
                let at = answered + self.way();
                self.at(at, Event::Measured(request));
            }
            Kind::Await(patience) => {
                let told = self.clients[client as usize].told[member];
                if self.members.version(member).counter > told {
                    return self.answer(request);
                }
                self.awaiting[member].insert(client, request);
                self.after(patience, Event::AwaitOver(request));
            }
        }
    }

    fn answer(&mut self, request: Request) {
        let Request { client, member, kind, .. } = request;
        let answered = self.members.serve(member, self.now, kind == Kind::Connect);
        if self.is_hidden(client, member) {
            return;
        }
        let at = answered + self.way();
        let reply = self.members.reply(member);
        self.at(at, Event::Answered(request, Ok(reply)));
    }

    fn answered(&mut self, request: Request, answer: Result<Arc<HelloReply>, CheckFailureKind>) {
        let Request { client, member, check, sent, kind } = request;
        let known = &mut self.clients[client as usize];
        if known.waiting[member] != Some(check) {
            return;
        }
        known.waiting[member] = None;
        let server = address_of(member);
        let input = match answer {
            Ok(reply) => {
                known.connected[member] = Some(self.members.members[member].process);
                known.told[member] = reply.topology_version.map_or(0, |version| version.counter);
                let round_trip = self.now.since(sent);
                let more_to_come = matches!(kind, Kind::Await(_));
                Input::HelloReceived { server, check, reply, round_trip, more_to_come }
            }
            Err(kind) => {
                known.connected[member] = None;
                let failure = CheckFailure::new(kind, "the story said so");
                Input::CheckFailed { server, check, failure }
            }
        };
        self.tell(client, input);
    }

    fn tell(&mut self, client: u32, input: Input) {
        let now = self.now;
        let Some(topology) = &mut self.clients[client as usize].topology else { return };
        topology.handle(now, input);
        self.carry_out(client);
    }

    fn carry_out(&mut self, client: u32) {
        let mut wants_primary = false;
        loop {
            let Some(topology) = &mut self.clients[client as usize].topology else { return };
            match topology.poll_output() {
                Some(Output::Monitor { server, command }) => self.monitor(client, &server, command),
                Some(Output::Publish(description)) => {
                    let primary =
                        description.primary().and_then(|known| member_at(known.address()));
                    self.note(client, primary);
                    wants_primary = primary.is_none();
                }
                Some(Output::Pool { server, command: PoolCommand::Clear { generation, .. } }) => {
                    if let Some(member) = member_at(&server) {
                        self.clients[client as usize].generation[member] = generation;
                    }
                }
                Some(Output::Event(_) | Output::Pool { .. }) => {}
                None if wants_primary && u64::from(client) % ACTIVE == 0 => {
                    wants_primary = false;
                    topology.handle(self.now, Input::CheckWanted);
                }
                None => break,
            }
        }
        let known = &mut self.clients[client as usize];
        let deadline = known.topology.as_ref().and_then(Topology::next_deadline);
        if let Some(deadline) = deadline
            && known.tick_at.is_none_or(|at| deadline < at)
        {
            known.tick_at = Some(deadline);
            let at = deadline.max(self.now);
            self.at(at, Event::Tick(client));
        }
    }

    /// Notes that a client believes in the primary of the story.
    fn note(&mut self, client: u32, primary: Option<usize>) {
        let known = &mut self.clients[client as usize];
        if self.wanted.is_some() && primary == self.wanted && known.knows.is_none() {
            known.knows = Some(self.now);
            self.ignorant -= 1;
        }
    }

    fn monitor(&mut self, client: u32, server: &ServerAddress, command: MonitorCommand) {
        let Some(member) = member_at(server) else { return };
        let (check, kind, timeout) = match command {
            MonitorCommand::Check { check, kind, timeout, .. } => {
                self.clients[client as usize].waiting[member] = Some(check);
                let kind = match kind {
                    CheckKind::Connect => Kind::Connect,
                    CheckKind::Poll => Kind::Poll,
                    CheckKind::Await { max_await_time, .. } => Kind::Await(max_await_time),
                    CheckKind::ReadNext => Kind::Await(Duration::from_secs(10)),
                };
                (check, kind, timeout)
            }
            MonitorCommand::MeasureRoundTrip { check, timeout, .. } => {
                (check, Kind::Measure, timeout)
            }
            MonitorCommand::Cancel | MonitorCommand::Stop => {
                self.clients[client as usize].waiting[member] = None;
                self.awaiting[member].remove(&client);
                if self.clients[client as usize].connected[member].take().is_some() {
                    let connections = &mut self.members.members[member].connections;
                    *connections = (*connections - 1).max(0);
                }
                return;
            }
            MonitorCommand::Start | MonitorCommand::StopMeasuring => return,
        };
        let request = Request { client, member, check, kind, sent: self.now };
        if self.is_hidden(client, member) {
            if let (Some(timeout), true) = (timeout, kind != Kind::Measure) {
                let late = Err(CheckFailureKind::NetworkTimeout);
                self.after(timeout, Event::Answered(request, late));
            }
            return;
        }
        // The next reply of a stream comes unasked.
        let way = if matches!(kind, Kind::Await(_)) { Duration::ZERO } else { self.way() };
        self.after(way, Event::Arrived(request));
    }

    fn after(&mut self, delay: Duration, event: Event) {
        self.at(self.now + delay, event);
    }

    fn at(&mut self, at: MonotonicTime, event: Event) {
        self.next_event += 1;
        self.queue.push(Reverse((at, self.next_event)));
        self.events.insert(self.next_event, event);
    }

    fn way(&mut self) -> Duration {
        SHORTEST_WAY + self.up_to(LONGEST_WAY - SHORTEST_WAY)
    }

    fn up_to(&mut self, most: Duration) -> Duration {
        let share = (self.chance() >> 11) as f64 / (1_u64 << 53) as f64;
        most.mul_f64(share)
    }

    fn chance(&mut self) -> u64 {
        self.random.next_u64()
    }
}

fn member_at(address: &ServerAddress) -> Option<usize> {
    let digit = address.host().as_bytes().get(1)?;
    Some(usize::from(digit - b'0'))
}

fn add(sums: &mut Vec<u64>, counts: &[u64]) {
    if sums.len() < counts.len() {
        sums.resize(counts.len(), 0);
    }
    for (sum, count) in sums.iter_mut().zip(counts) {
        *sum += count;
    }
}
