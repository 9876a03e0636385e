//! The watcher: a core for each deployment, and workers that handle one message after another.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use quorate_protocol::{HelloReply, MonotonicTime, ServerAddress, SplitMix64};
use quorate_server_discovery::{
    CheckFailure, CheckFailureKind, CheckId, CheckKind, DiscoveryOptions, Input, MonitorCommand,
    Output, Topology, TopologyId,
};

use crate::deployment::{Deployment, MEMBERS, address_of, member_at};

/// What a message costs the watcher, reckoned: the client's benchmark takes 1.62 s of processor time a minute over
/// 1,000 deployments, and three members of each send two messages in 10 s.
const MESSAGE_COST: Duration = Duration::from_micros(45);

/// What a new connection costs it, its handshake included. Assumed, as in the crowd.
const CONNECT_COST: Duration = Duration::from_micros(250);

/// Between the watcher and a member, one way.
const SHORTEST_WAY: Duration = Duration::from_micros(250);
const LONGEST_WAY: Duration = Duration::from_millis(20);

/// The fleet has come to rest when a story begins.
const BEGINS: Duration = Duration::from_secs(90);

/// From the loss of a primary to the next one.
const ELECTION: Duration = Duration::from_secs(1);

/// How long the watcher's own network is gone.
const SILENCE: Duration = Duration::from_secs(30);

/// How long a story is watched.
const WATCHED: Duration = Duration::from_secs(90);

/// One primary in so many crashes.
const CRASHES_ONE_IN: u32 = 100;

/// The site that is lost: the first member of every deployment.
const SITE: usize = 0;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    pub(crate) deployments: u32,
    pub(crate) seed: u64,
    pub(crate) workers: u32,
    pub(crate) heartbeat: Duration,
    /// The cores start within this time.
    pub(crate) spread: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Story {
    Start,
    Crashes,
    Site,
    Silence,
}

impl Story {
    pub(crate) const ALL: [Self; 4] = [Self::Start, Self::Crashes, Self::Site, Self::Silence];

    pub(crate) fn file_name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Crashes => "crashes",
            Self::Site => "site",
            Self::Silence => "silence",
        }
    }
}

impl fmt::Display for Story {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Start => "the watcher starts",
            Self::Crashes => "one primary in a hundred crashes",
            Self::Site => "a site with a third of all members is lost",
            Self::Silence => "the watcher's network is gone for 30 s",
        })
    }
}

#[derive(Clone, Debug)]
enum Event {
    Start(u32),
    Tick(u32),
    /// A request reaches its member.
    Arrived(Request),
    AwaitOver(Request),
    /// An answer reaches the watcher.
    Came(Request, Result<Arc<HelloReply>, CheckFailureKind>),
    /// A worker has handled it.
    Handled(Request, Result<Arc<HelloReply>, CheckFailureKind>),
    Elect(u32),
    NetworkIsBack,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Connect,
    Poll,
    Await(Duration),
    Measure,
}

#[derive(Clone, Copy, Debug)]
struct Request {
    deployment: u32,
    member: usize,
    check: CheckId,
    kind: Kind,
    sent: MonotonicTime,
}

/// What the watcher has of one deployment.
struct Watched {
    topology: Topology,
    tick_at: Option<MonotonicTime>,
    waiting: [Option<CheckId>; MEMBERS],
    measures: [bool; MEMBERS],
    /// Streamed hellos that wait at the members.
    awaiting: [Option<Request>; MEMBERS],
    told: [i64; MEMBERS],
    /// Whether it is to be learnt who leads, and when that was.
    wanted: bool,
    known: Option<MonotonicTime>,
}

pub(crate) struct Watcher {
    setting: Setting,
    now: MonotonicTime,
    queue: BinaryHeap<Reverse<(MonotonicTime, u64)>>,
    events: BTreeMap<u64, Event>,
    next_event: u64,
    fleet: Vec<Deployment>,
    watched: Vec<Watched>,
    random: SplitMix64,
    /// When the workers have handled everything that has come.
    busy_until: MonotonicTime,
    longest_wait: Duration,
    silent: bool,
    connects: Vec<u64>,
    messages: Vec<u64>,
}

/// What a story showed, from its beginning on.
pub(crate) struct Told {
    pub(crate) connects: Vec<u64>,
    pub(crate) messages: Vec<u64>,
    /// The share of the workers' time that is used, in each second.
    pub(crate) busy: Vec<f64>,
    pub(crate) longest_wait: Duration,
    pub(crate) ignorant: usize,
    pub(crate) bytes: usize,
    known: Vec<Duration>,
}

impl Told {
    pub(crate) fn most(&self, counts: &[u64]) -> u64 {
        counts.iter().copied().max().unwrap_or(0)
    }

    pub(crate) fn busiest(&self) -> f64 {
        self.busy.iter().copied().fold(0.0, f64::max)
    }

    /// Messages a second in the last ten seconds.
    pub(crate) fn at_rest(&self) -> u64 {
        self.messages.iter().rev().take(10).sum::<u64>() / 10
    }

    pub(crate) fn busy_at_rest(&self) -> f64 {
        self.busy.iter().rev().take(10).sum::<f64>() / 10.0
    }

    pub(crate) fn known_by(&self, share: f64) -> Duration {
        let last = self.known.len().saturating_sub(1);
        self.known.get((last as f64 * share) as usize).copied().unwrap_or_default()
    }

    pub(crate) fn share_after(&self, time: Duration) -> f64 {
        let all = (self.known.len() + self.ignorant).max(1);
        self.known.partition_point(|known| *known <= time) as f64 / all as f64
    }
}

/// Resident memory of this process; 0 where the system does not tell.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0) * 4096
}

impl Watcher {
    pub(crate) fn new(setting: Setting) -> Self {
        let fleet = (0..setting.deployments).map(Deployment::new).collect();
        Self {
            setting,
            now: MonotonicTime::ZERO,
            queue: BinaryHeap::new(),
            events: BTreeMap::new(),
            next_event: 0,
            fleet,
            watched: Vec::new(),
            random: SplitMix64::new(setting.seed),
            busy_until: MonotonicTime::ZERO,
            longest_wait: Duration::ZERO,
            silent: false,
            connects: Vec::new(),
            messages: Vec::new(),
        }
    }

    /// Plays a story to its end.
    pub(crate) fn play(&mut self, story: Story) -> Told {
        let before = resident();
        self.start();
        let mut begins = MonotonicTime::ZERO;
        let mut counted_from = begins;
        if story == Story::Start {
            self.watched.iter_mut().for_each(|watched| watched.wanted = true);
        } else {
            begins = begins + BEGINS;
            self.run_until(begins);
            self.now = begins;
            self.longest_wait = Duration::ZERO;
            counted_from = self.begin(story);
        }
        self.run_until(begins + WATCHED);
        let bytes = resident().saturating_sub(before);
        self.told(begins, counted_from, bytes)
    }

    /// A core for each deployment.
    fn start(&mut self) {
        for number in 0..self.setting.deployments {
            let options = DiscoveryOptions {
                set_name: Some(format!("d{number}")),
                heartbeat_frequency: Some(self.setting.heartbeat),
                ..DiscoveryOptions::with_seeds((0..MEMBERS).map(|m| address_of(number, m)))
            };
            let (id, seed) = (TopologyId(u64::from(number)), self.random.next_u64());
            let topology = Topology::new(&options, id, seed, self.now).unwrap();
            self.watched.push(Watched {
                topology,
                tick_at: None,
                waiting: [None; MEMBERS],
                measures: [false; MEMBERS],
                awaiting: [None; MEMBERS],
                told: [0; MEMBERS],
                wanted: false,
                known: None,
            });
            let share = self.share();
            self.after(self.setting.spread.mul_f64(share), Event::Start(number));
        }
    }

    /// Breaks what the story breaks. Returns the moment from which the watcher's knowledge is counted.
    fn begin(&mut self, story: Story) -> MonotonicTime {
        match story {
            Story::Start => self.now,
            Story::Crashes | Story::Site => {
                for number in 0..self.setting.deployments {
                    let lost = match story {
                        Story::Site => Some(SITE),
                        _ if number % CRASHES_ONE_IN == 0 => self.fleet[number as usize].primary,
                        _ => None,
                    };
                    let Some(member) = lost else { continue };
                    let led = self.fleet[number as usize].primary == Some(member);
                    self.fleet[number as usize].end(member);
                    self.reset(number, member);
                    if led {
                        self.watched[number as usize].wanted = true;
                        self.after(ELECTION, Event::Elect(number));
                    }
                }
                self.now + ELECTION
            }
            Story::Silence => {
                self.silent = true;
                for number in 0..self.setting.deployments {
                    for member in 0..MEMBERS {
                        self.reset(number, member);
                    }
                    self.watched[number as usize].wanted = true;
                }
                self.after(SILENCE, Event::NetworkIsBack);
                self.now + SILENCE
            }
        }
    }

    /// The connections to a member end.
    fn reset(&mut self, number: u32, member: usize) {
        let watched = &mut self.watched[number as usize];
        watched.measures[member] = false;
        if let Some(request) = watched.awaiting[member].take() {
            let way = self.way();
            self.after(way, Event::Came(request, Err(CheckFailureKind::Network)));
        }
    }

    fn told(&self, begins: MonotonicTime, from: MonotonicTime, bytes: usize) -> Told {
        let wanted = || self.watched.iter().filter(|watched| watched.wanted);
        let known = wanted().filter_map(|watched| Some(watched.known?.since(from)));
        let mut known: Vec<Duration> = known.collect();
        known.sort_unstable();
        let first = begins.since(MonotonicTime::ZERO).as_secs() as usize;
        let after = |counts: &[u64]| -> Vec<u64> {
            let shown = WATCHED.as_secs() as usize;
            (first..first + shown).map(|at| counts.get(at).copied().unwrap_or(0)).collect()
        };
        let (connects, messages) = (after(&self.connects), after(&self.messages));
        let workers = f64::from(self.setting.workers);
        let busy = connects.iter().zip(&messages).map(|(connects, messages)| {
            let used = CONNECT_COST.as_secs_f64() * *connects as f64
                + MESSAGE_COST.as_secs_f64() * *messages as f64;
            used / workers
        });
        Told {
            busy: busy.collect(),
            connects,
            messages,
            longest_wait: self.longest_wait,
            ignorant: wanted().count() - known.len(),
            bytes,
            known,
        }
    }

    fn run_until(&mut self, end: MonotonicTime) {
        while let Some(&Reverse((at, number))) = self.queue.peek()
            && at < end
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
            Event::Start(number) => self.carry_out(number),
            Event::Tick(number) => {
                self.watched[number as usize].tick_at = None;
                self.tell(number, Input::Tick);
            }
            Event::Arrived(request) => self.arrived(request),
            Event::AwaitOver(request) => {
                let waiting = &mut self.watched[request.deployment as usize].awaiting;
                if waiting[request.member].is_some_and(|known| known.check == request.check) {
                    waiting[request.member] = None;
                    self.answer(request);
                }
            }
            Event::Came(request, answer) => self.came(request, answer),
            Event::Handled(request, answer) => self.handled(request, answer),
            Event::Elect(number) => {
                self.fleet[number as usize].elect();
                for member in 0..MEMBERS {
                    let waiting = &mut self.watched[number as usize].awaiting[member];
                    if let Some(request) = waiting.take() {
                        self.answer(request);
                    }
                }
            }
            Event::NetworkIsBack => self.silent = false,
        }
    }

    fn arrived(&mut self, request: Request) {
        let Request { deployment, member, kind, .. } = request;
        let is_up = self.fleet[deployment as usize].is_up[member];
        if !is_up || self.silent {
            let way = self.way();
            return self.after(way, Event::Came(request, Err(CheckFailureKind::Network)));
        }
        if let Kind::Await(patience) = kind {
            let told = self.watched[deployment as usize].told[member];
            if self.fleet[deployment as usize].counter[member] <= told {
                self.watched[deployment as usize].awaiting[member] = Some(request);
                return self.after(patience, Event::AwaitOver(request));
            }
        }
        self.answer(request);
    }

    fn answer(&mut self, request: Request) {
        let reply = self.fleet[request.deployment as usize].reply(request.member);
        let way = self.way();
        self.after(way, Event::Came(request, Ok(reply)));
    }

    /// A worker takes it when those before it are done.
    fn came(&mut self, request: Request, answer: Result<Arc<HelloReply>, CheckFailureKind>) {
        let measures = &mut self.watched[request.deployment as usize].measures[request.member];
        let connects = match request.kind {
            Kind::Connect => true,
            Kind::Measure => !std::mem::replace(measures, answer.is_ok()),
            Kind::Poll | Kind::Await(_) => false,
        };
        let cost = if connects { CONNECT_COST } else { MESSAGE_COST } / self.setting.workers;
        let begun = self.busy_until.max(self.now);
        self.longest_wait = self.longest_wait.max(begun.since(self.now));
        self.busy_until = begun + cost;
        let second = self.busy_until.since(MonotonicTime::ZERO).as_secs() as usize;
        let counts = if connects { &mut self.connects } else { &mut self.messages };
        if counts.len() <= second {
            counts.resize(second + 1, 0);
        }
        counts[second] += 1;
        self.at(self.busy_until, Event::Handled(request, answer));
    }

    fn handled(&mut self, request: Request, answer: Result<Arc<HelloReply>, CheckFailureKind>) {
        let Request { deployment, member, check, kind, sent } = request;
        let server = address_of(deployment, member);
        let round_trip = self.now.since(sent);
        if kind == Kind::Measure {
            let round_trip = answer.is_ok().then_some(round_trip);
            return self.tell(deployment, Input::RoundTripMeasured { server, check, round_trip });
        }
        let watched = &mut self.watched[deployment as usize];
        if watched.waiting[member] != Some(check) {
            return;
        }
        watched.waiting[member] = None;
        let input = match answer {
            Ok(reply) => {
                watched.told[member] = reply.topology_version.map_or(0, |version| version.counter);
                let more_to_come = matches!(kind, Kind::Await(_));
                Input::HelloReceived { server, check, reply, round_trip, more_to_come }
            }
            Err(kind) => {
                let failure = CheckFailure::new(kind, "the story said so");
                Input::CheckFailed { server, check, failure }
            }
        };
        self.tell(deployment, input);
    }

    fn tell(&mut self, number: u32, input: Input) {
        self.watched[number as usize].topology.handle(self.now, input);
        self.carry_out(number);
    }

    fn carry_out(&mut self, number: u32) {
        while let Some(output) = self.watched[number as usize].topology.poll_output() {
            match output {
                Output::Monitor { server, command } => self.monitor(number, &server, command),
                Output::Publish(description) => {
                    let primary =
                        description.primary().and_then(|known| member_at(known.address()));
                    self.note(number, primary);
                }
                Output::Event(_) | Output::Pool { .. } => {}
            }
        }
        let watched = &mut self.watched[number as usize];
        if let Some(deadline) = watched.topology.next_deadline()
            && watched.tick_at.is_none_or(|at| deadline < at)
        {
            watched.tick_at = Some(deadline);
            let at = deadline.max(self.now);
            self.at(at, Event::Tick(number));
        }
    }

    /// Notes that the watcher believes in the primary that leads.
    fn note(&mut self, number: u32, primary: Option<usize>) {
        let leads = self.fleet[number as usize].primary;
        let watched = &mut self.watched[number as usize];
        if watched.wanted && !self.silent && primary.is_some() && primary == leads {
            watched.known.get_or_insert(self.now);
        }
    }

    fn monitor(&mut self, number: u32, server: &ServerAddress, command: MonitorCommand) {
        let Some(member) = member_at(server) else { return };
        let watched = &mut self.watched[number as usize];
        let (check, kind) = match command {
            MonitorCommand::Check { check, kind, .. } => {
                watched.waiting[member] = Some(check);
                let kind = match kind {
                    CheckKind::Connect => Kind::Connect,
                    CheckKind::Poll => Kind::Poll,
                    CheckKind::Await { max_await_time, .. } => Kind::Await(max_await_time),
                    CheckKind::ReadNext => Kind::Await(self.setting.heartbeat),
                };
                (check, kind)
            }
            MonitorCommand::MeasureRoundTrip { check, .. } => (check, Kind::Measure),
            MonitorCommand::Cancel | MonitorCommand::Stop => {
                watched.waiting[member] = None;
                watched.awaiting[member] = None;
                return;
            }
            MonitorCommand::Start | MonitorCommand::StopMeasuring => return,
        };
        let request = Request { deployment: number, member, check, kind, sent: self.now };
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
        let share = self.share();
        SHORTEST_WAY + (LONGEST_WAY - SHORTEST_WAY).mul_f64(share)
    }

    /// Any number from 0 to 1.
    fn share(&mut self) -> f64 {
        (self.random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }
}
