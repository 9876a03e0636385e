//! The world: a clock, a queue of what will happen, and the loop that lets it happen.
//!
//! Owns time, the queue, starting and crashing of processes, clients, and the end of a run. What
//! members say to each other is in `cluster`, what they copy in `data`, what goes wrong in `faults`.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;
use std::time::Duration;

use quorate_member::Replica;
use quorate_node::{Client, Context, Interrupt, Now};
use quorate_protocol::{
    ElectionReason, MemberState, MonotonicTime, ObjectId, ReplicaSetConfig, ServerAddress, WallTime,
};
use quorate_replication::{Event, Input, MemberOptions, Memory, Request, SeededRandom, Ticket};

use crate::disk::{Disk, Entry};
use crate::following::Followers;
use crate::hardship::Hardship;
use crate::judges::{Judges, Life, Verdict};
use crate::machines::{self, Machines};
use crate::network::Network;
use crate::process::{Asker, Message, Process, StreamId, Told};
use crate::reading::Readers;
use crate::story::Story;
use crate::transacting::Transactors;
use crate::watching::{Watchers, Watching};
use crate::writing::Writers;

/// The calendar when a world begins.
const EPOCH_MILLIS: i64 = 1_700_000_000_000;
/// Events in one run; more means that the world does not settle.
const MAX_EVENTS: u64 = 3_000_000;
/// How long a world may take to agree after everything is repaired.
const PATIENCE: Duration = Duration::from_secs(300);
/// How long it must stay agreed. Shorter than the periodic no-op less the delays of delayed members.
const CALM: Duration = Duration::from_secs(1);

/// How large a world is and how long it suffers.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Processes, configured or not.
    pub nodes: usize,
    /// How long faults happen.
    pub turmoil: Duration,
    /// Between two writes of a client.
    pub think: Duration,
    /// Clients.
    pub clients: usize,
    /// Between two faults, on average.
    pub between_faults: Duration,
    /// How many of a hundred ordered writes take very long.
    pub slow_disk_percent: u64,
}

/// What a run did, so that a test can see that it did something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Inputs handled.
    pub inputs: u64,
    /// Terms with a primary.
    pub terms: usize,
    /// Entries committed.
    pub committed: usize,
    /// Writes acknowledged by a majority.
    pub acknowledged: usize,
    /// Writes tried.
    pub tried: u64,
    /// Reads answered.
    pub reads: u64,
    /// Transactions of several statements that were acknowledged.
    pub transactions: u64,
    /// Transactions that were run more than once.
    pub repeated_transactions: u64,
    /// Transactions that a member committed and a rollback undid.
    pub undone_transactions: u64,
    /// Commits of which a member said, with a majority behind it, that they never were.
    pub unknown_commits: u64,
    /// Statements that a member refused because another member ran those before.
    pub strange_statements: u64,
    /// Events that consumers of change streams were given.
    pub events: u64,
    /// Rollbacks.
    pub rollbacks: u64,
    /// Initial syncs that finished.
    pub initial_syncs: u64,
    /// Configurations installed, on all members.
    pub configs: u64,
    /// Crashes.
    pub crashes: u64,
    /// Processes that were paused.
    pub sleeps: u64,
    /// Processes that stayed away when a world calmed down.
    pub left_behind: u64,
    /// Processes that found the directory of the last release.
    pub upgrades: u64,
    /// How long the world lasted.
    pub lasted: Duration,
    /// Vetoed dry runs.
    pub vetoes: u64,
    /// Elections in which a member asked for real votes because its primary's process was gone.
    pub crash_elections: u64,
    /// Elections after a crash that no candidate won.
    pub crash_elections_lost: u64,
    /// Oplogs that dropped entries.
    pub truncations: u64,
    /// Members that could not follow any more.
    pub too_stale: u64,
    /// Disks that were replaced.
    pub wipes: u64,
    /// Descriptions that watching clients published.
    pub published: u64,
    /// How long the members took to agree after everything was repaired.
    pub agreed_after: Duration,
}

/// A broken rule, and how to see it again.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The world's seed.
    pub seed: u64,
    /// What the world was about.
    pub story: Story,
    /// The time.
    pub at: MonotonicTime,
    /// The verdict.
    pub verdict: Verdict,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "seed {} at {:?}: {}", self.seed, self.at, self.verdict)?;
        write!(f, "replay: cargo run -p quorate-simulator --example replay -- {}", self.seed)?;
        match self.story {
            Story::Everything => Ok(()),
            story => write!(f, " {story}"),
        }
    }
}

/// What will happen.
#[derive(Debug)]
pub(crate) enum Happening {
    Tick(Life),
    Deliver { to: usize, message: Message },
    Persisted { life: Life, ticket: Ticket },
    LogSynced(Life),
    MakeChange(Life),
    ChangeSynced { life: Life, told: Told },
    ServeExpired { life: Life, stream: StreamId, sequence: u64 },
    StreamTimeout { life: Life, number: u64, sequence: u64 },
    CopyTimeout { life: Life, number: u64 },
    Maintain(Life),
    Local { life: Life, input: Box<Input> },
    ClientWrites { client: usize },
    ClientReads { client: usize },
    Transact { client: usize },
    Follow { follower: usize },
    Fault,
    InitiateAgain,
    Crash(Life),
    StepUp(Life),
    Stand(Life),
    Reconfigure(Life),
    WriteAt(Life),
    Restart { node: usize },
    Machine,
    Wake(Life),
    DiskHasRoom(Life),
    Repair,
    Watch(Watching),
    Hardship,
    Resync(Life),
}

impl Happening {
    /// The process that acts, if one does by itself: not while it is paused.
    fn process(&self) -> Option<usize> {
        match self {
            Self::Deliver { to, .. } => Some(*to),
            Self::Watch(watching) => watching.process(),
            Self::Crash(_) | Self::Wake(_) | Self::Resync(_) => None,
            _ => self.life().map(|life| life.node),
        }
    }

    /// The life of a process that it belongs to: it does not happen once that has ended.
    fn life(&self) -> Option<Life> {
        match self {
            Self::Tick(life)
            | Self::Persisted { life, .. }
            | Self::LogSynced(life)
            | Self::MakeChange(life)
            | Self::ChangeSynced { life, .. }
            | Self::ServeExpired { life, .. }
            | Self::StreamTimeout { life, .. }
            | Self::CopyTimeout { life, .. }
            | Self::Maintain(life)
            | Self::Local { life, .. }
            | Self::Crash(life)
            | Self::StepUp(life)
            | Self::Stand(life)
            | Self::Reconfigure(life)
            | Self::WriteAt(life)
            | Self::Wake(life)
            | Self::DiskHasRoom(life)
            | Self::Resync(life) => Some(*life),
            _ => None,
        }
    }
}

/// A seeded world.
pub struct World {
    pub(crate) seed: u64,
    pub(crate) story: Story,
    pub(crate) scale: Scale,
    pub(crate) now: MonotonicTime,
    pub(crate) random: SeededRandom,
    pub(crate) network: Network,
    pub(crate) nodes: Vec<Process>,
    pub(crate) judges: Judges,
    pub(crate) figures: Figures,
    pub(crate) verdict: Result<(), Verdict>,
    pub(crate) turmoil: bool,
    queue: BinaryHeap<Reverse<(MonotonicTime, u64)>>,
    happenings: BTreeMap<u64, Happening>,
    next_happening: u64,
    pub(crate) writers: Writers,
    pub(crate) first_config: Option<ReplicaSetConfig>,
    /// When the network is to be whole again.
    pub(crate) repair_due: MonotonicTime,
    pub(crate) watchers: Watchers,
    pub(crate) readers: Readers,
    pub(crate) transactors: Transactors,
    pub(crate) followers: Followers,
    pub(crate) hardship: Hardship,
    pub(crate) machines: Machines,
    /// Processes that never come back.
    pub(crate) gone: BTreeSet<usize>,
    /// Processes that do not come back before everything is repaired.
    pub(crate) lost: BTreeSet<usize>,
    trace: Option<Trace>,
}

/// Takes the trace, line by line.
pub type Trace = Box<dyn FnMut(&str)>;

impl World {
    /// The world of a seed that tells this story.
    pub fn new(seed: u64, story: Story, trace: Option<Trace>) -> Self {
        let mut random = SeededRandom::new(seed);
        let scale = Scale {
            nodes: 3 + random.below(4) as usize,
            turmoil: Duration::from_secs(30 + random.below(60)),
            think: Duration::from_millis(50 + random.below(300)),
            clients: 1 + random.below(3) as usize,
            between_faults: Duration::from_millis(1_000 + random.below(6_000)),
            slow_disk_percent: 2 + random.below(20),
        };
        let mut network = Network::new(&mut random);
        let scale = story.shape(seed, scale, &mut network);
        let mut hardship = Hardship::new(seed, story);
        let mut machines = Machines::new(seed, story);
        let nodes = (0..scale.nodes)
            .map(|index| {
                let skew = random.below(1_000) as i64 - 500;
                let disk = Disk::new(hardship.oplog_bytes(), machines.uses_files(seed));
                let mut process = Process::new(index, address_of(index), disk, skew);
                process.drift = machines.drift();
                process
            })
            .collect();
        let mut world = Self {
            seed,
            story,
            scale,
            now: MonotonicTime::ZERO,
            random,
            network,
            nodes,
            judges: Judges::default(),
            figures: Figures::default(),
            verdict: Ok(()),
            turmoil: true,
            queue: BinaryHeap::new(),
            happenings: BTreeMap::new(),
            next_happening: 0,
            writers: Writers::new(scale.clients),
            first_config: None,
            repair_due: MonotonicTime::ZERO,
            watchers: Watchers::new(seed, scale.nodes),
            readers: Readers::new(seed, story, scale.clients),
            transactors: Transactors::new(seed, story),
            followers: Followers::new(seed, story),
            hardship,
            machines,
            gone: BTreeSet::new(),
            lost: BTreeSet::new(),
            trace,
        };
        for node in 0..world.nodes.len() {
            world.start(node);
        }
        world.initiate();
        for client in 0..world.scale.clients {
            world.schedule(Duration::from_secs(1), Happening::ClientWrites { client });
            world.expect_read(client);
        }
        world.begin_watching();
        world.begin_transactions();
        world.begin_following();
        world.expect_hardship();
        world.expect_machine_fault();
        let first_fault = world.scale.between_faults;
        world.schedule(first_fault, Happening::Fault);
        world
    }

    /// Lets the world suffer, then repairs everything and waits until the members agree. The error
    /// is the rule that was broken.
    pub fn run(mut self) -> Result<Figures, Failure> {
        let end = MonotonicTime::ZERO + self.scale.turmoil;
        self.run_until(end)?;
        self.calm_down();
        let calm_since = self.now;
        let deadline = calm_since + PATIENCE;
        let mut agreed_since = None;
        while self.now < deadline {
            let next = self.now + Duration::from_millis(500);
            self.run_until(next)?;
            if let Some(why) = self.disagreement() {
                self.note(None, || format!("not yet agreed: {why}"));
                agreed_since = None;
            } else if self.now.since(*agreed_since.get_or_insert(self.now)) >= CALM {
                self.figures.agreed_after = self.now.since(calm_since);
                self.figures.lasted = self.now.since(MonotonicTime::ZERO);
                return self.judge_the_end();
            }
        }
        let why = self.disagreement().unwrap_or_default();
        self.fail(format!("members agree within {PATIENCE:?} of calm: {why}"))
    }

    fn run_until(&mut self, end: MonotonicTime) -> Result<(), Failure> {
        while let Some(Reverse((at, number))) = self.queue.peek().copied() {
            if at > end {
                break;
            }
            self.queue.pop();
            self.now = at;
            if let Some(happening) = self.happenings.remove(&number) {
                self.happen(happening);
            }
            if let Err(verdict) = self.verdict.clone() {
                return self.fail(verdict.0);
            }
            if self.next_happening > MAX_EVENTS {
                return self.fail(format!("more than {MAX_EVENTS} events"));
            }
        }
        self.now = end;
        Ok(())
    }

    pub(crate) fn fail<T>(&mut self, what: String) -> Result<T, Failure> {
        for index in 0..self.nodes.len() {
            let life = self.nodes[index].life;
            let summary = self.nodes[index].member.as_ref().map(|member| {
                let status = member.status();
                format!(
                    "(start {}) {} in {:?}, written {}, durable {}, committed {}, source {:?}, {:?}",
                    life.epoch,
                    status.state(),
                    status.term(),
                    status.written(),
                    status.durable(),
                    status.commit_point(),
                    status.sync_source(),
                    status.initial_sync(),
                )
            });
            self.note(Some(index), || summary.unwrap_or_else(|| "is down".to_owned()));
        }
        Err(Failure { seed: self.seed, story: self.story, at: self.now, verdict: Verdict(what) })
    }

    pub(crate) fn schedule(&mut self, after: Duration, happening: Happening) {
        self.schedule_at(self.now + after, happening);
    }

    pub(crate) fn schedule_at(&mut self, at: MonotonicTime, happening: Happening) {
        self.next_happening += 1;
        self.happenings.insert(self.next_happening, happening);
        self.queue.push(Reverse((at, self.next_happening)));
    }

    fn happen(&mut self, happening: Happening) {
        if let Some(node) = happening.process().filter(|node| self.nodes[*node].asleep) {
            return self.nodes[node].held.push(happening);
        }
        if happening.life().is_some_and(|life| !self.is_alive(life)) {
            return;
        }
        match happening {
            Happening::Tick(life) => {
                // One that was put forward since has ticked already.
                if self.nodes[life.node].tick_at == Some(self.now) {
                    self.nodes[life.node].tick_at = None;
                    self.drive(life.node, |member, now| member.tick(now));
                }
            }
            Happening::Deliver { to, message } => self.deliver(to, message),
            Happening::Persisted { life, ticket } => self.persisted(life, ticket),
            Happening::LogSynced(life) => {
                self.sync_log(life.node);
                self.drive(life.node, |member, now| member.log_moved(now));
            }
            Happening::MakeChange(life) => self.make_change(life),
            Happening::ChangeSynced { life, told } => self.change_synced(life, told),
            Happening::ServeExpired { life, stream, sequence } => {
                self.serve_expired(life, stream, sequence);
            }
            Happening::StreamTimeout { life, number, sequence } => {
                self.stream_timeout(life, number, sequence);
            }
            Happening::CopyTimeout { life, number } => self.copy_timeout(life, number),
            Happening::Maintain(life) => self.maintain(life),
            Happening::Local { life, input } => self.feed(life.node, *input),
            Happening::ClientWrites { client } => self.client_writes(client),
            Happening::ClientReads { client } => self.client_reads(client),
            Happening::Transact { client } => self.transact(client),
            Happening::Follow { follower } => self.follow(follower),
            Happening::Fault => self.fault(),
            Happening::InitiateAgain => self.initiate_again(),
            Happening::Crash(life) => {
                if self.turmoil || self.nodes[life.node].disk_failed {
                    self.crash(life.node);
                }
            }
            Happening::StepUp(life) => {
                self.administer(life.node, "step up", Request::StepUp { skip_dry_run: false });
            }
            Happening::Stand(life) if self.turmoil => self.stand_at_once(life.node),
            Happening::Reconfigure(life) if self.turmoil => self.change_votes_at(life.node),
            Happening::Stand(_) | Happening::Reconfigure(_) => {}
            Happening::WriteAt(life) => {
                if self.nodes[life.node].is_writable() {
                    self.set_a_key(life.node, None);
                }
            }
            Happening::Restart { node } => self.start(node),
            Happening::Machine => self.machine_fault(),
            Happening::Wake(life) => self.wake(life),
            Happening::DiskHasRoom(life) => self.disk_has_room(life),
            Happening::Watch(watching) => self.watch(watching),
            Happening::Hardship => self.suffer_hardship(),
            Happening::Resync(life) => self.resync(life),
            Happening::Repair => {
                if self.now >= self.repair_due {
                    self.network.repair();
                    self.note(None, || "network repaired".to_owned());
                }
            }
        }
    }

    pub(crate) fn is_alive(&self, life: Life) -> bool {
        let node = &self.nodes[life.node];
        node.life == life && node.is_up()
    }

    // -- Processes -------------------------------------------------------------------------------

    pub(crate) fn start(&mut self, index: usize) {
        let seed = self.random.next_u64();
        let process: u64 = self.random.next_u64();
        let node = &mut self.nodes[index];
        let stays_away = (self.turmoil && self.lost.contains(&index)) || self.gone.contains(&index);
        if node.is_up() || stays_away {
            return;
        }
        node.life.epoch += 1;
        let mut id = [0; 12];
        id[..8].copy_from_slice(&process.to_be_bytes());
        let options = MemberOptions {
            set_name: "rs0".to_owned(),
            own_addresses: vec![node.address.clone()],
            process_id: ObjectId::from_bytes(id),
            new_replica_set_id: ObjectId::from_bytes([9; 12]),
            allowances: Default::default(),
        };
        let now = self.now_at(index);
        let aged = self.upgrade(index);
        let (data, recovered) = match aged.and_then(|()| self.nodes[index].disk.open(seed, now)) {
            Ok(found) => found,
            Err(error) => return self.must_end(index, &error.message),
        };
        if self.seed.is_multiple_of(4) {
            // Batches of these worlds are small, and threads are to prepare some of them.
            data.prepare_from(2);
        }
        if self.story == Story::Transactions && self.seed.is_multiple_of(2) {
            // Every operation of a transaction of these worlds has an entry of its own.
            data.split_transactions_at(1);
        }
        // What it had learned may not have reached the disk.
        self.nodes[index].memory_lost = recovered.memory == Memory::Lost;
        let progress = Default::default();
        let member = Replica::new(options, recovered, data, progress, seed, now);
        self.nodes[index].member = Some(member);
        self.note(Some(index), || "starts".to_owned());
        // Some of it may have been written while the process before it ended.
        let log = self.nodes[index].disk.log().to_vec();
        self.judge_appended(index, &log);
        let life = self.nodes[index].life;
        self.maintain(life);
        self.feed(index, Input::Tick);
    }

    pub(crate) fn crash(&mut self, index: usize) {
        if !self.nodes[index].is_up() {
            return;
        }
        self.figures.crashes += 1;
        self.note(Some(index), || "crashes".to_owned());
        self.work_until_the_crash(index);
        let mut random = self.random.clone();
        let node = &mut self.nodes[index];
        let crashed = node.disk.crash(&mut random);
        node.forget_volatile();
        let awaiting = std::mem::take(&mut node.awaiting);
        self.random = random;
        if let Err(error) = crashed {
            self.must_end(index, &error.message);
        }
        self.reset_watchers(awaiting);
        self.reset_connections_to(index);
    }

    /// The power fails in the middle of the work of two threads: any of their commits may be the last
    /// one that reached the disk.
    fn work_until_the_crash(&mut self, index: usize) {
        let Some(data) = self.nodes[index].data() else { return };
        let now = self.now_at(index);
        self.nodes[index].disk.ignore_syncs();
        let stored = self.random.below(self.nodes[index].persisting.len() as u64 + 1) as usize;
        let persisting = std::mem::take(&mut self.nodes[index].persisting);
        // What cannot be done any more is not done: the process is over.
        let _ = persisting.iter().take(stored).try_for_each(|(_, done)| data.persist(done, now));
        if self.random.chance(50)
            && let Some(change) = self.take_change(index)
        {
            let _ = change.make(&data, now, &mut |_| Ok(()));
        }
    }

    /// Gives one input to a member, and carries out everything that follows.
    pub(crate) fn feed(&mut self, index: usize, input: Input) {
        self.drive(index, |member, now| member.handle(now, input));
    }

    /// Lets something happen to a member, and carries out everything that follows.
    pub(crate) fn drive(&mut self, index: usize, act: impl FnOnce(&mut Replica<()>, Now)) {
        self.figures.inputs += 1;
        let now = self.now_at(index);
        let Some(member) = self.nodes[index].member.as_mut() else { return };
        act(member, now);
        while let Some(order) = self.nodes[index].member.as_mut().and_then(Replica::poll_order) {
            self.carry_out(index, order);
        }
        let node = &self.nodes[index];
        if let Some(member) = &node.member {
            let judged = self.judges.observe(node.life, member.status(), node.disk.log());
            self.verdict = self.verdict.clone().and(judged);
        }
        self.schedule_tick(index);
        self.serve_waiting(index);
        self.answer_watchers(index);
        self.answer_readers(index);
    }

    pub(crate) fn now_at(&self, index: usize) -> Now {
        let monotonic = machines::drifted(self.now, self.nodes[index].drift);
        Now { wall: self.wall(index), monotonic }
    }

    /// The surroundings of a command at a member.
    pub(crate) fn context(&self, index: usize) -> Context {
        Context {
            now: self.now_at(index),
            client: Arc::new(Client { connection_id: 1, ..Client::default() }),
            may_wait: false,
            may_look_at: None,
            interrupt: Arc::new(Interrupt::default()),
        }
    }

    pub(crate) fn schedule_tick(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        let Some(deadline) = node.member.as_ref().and_then(Replica::next_deadline) else { return };
        let deadline = machines::undrifted(deadline, node.drift);
        if node.tick_at.is_none_or(|at| deadline < at) {
            let at = deadline.max(self.now);
            node.tick_at = Some(at);
            let life = node.life;
            self.schedule_at(at, Happening::Tick(life));
        }
    }

    pub(crate) fn wall(&self, index: usize) -> WallTime {
        let now = machines::drifted(self.now, self.nodes[index].drift);
        let millis = (now.as_nanos() / 1_000_000) as i64;
        WallTime(EPOCH_MILLIS + millis + self.nodes[index].skew_millis)
    }

    /// Shows the judges what has changed in a log.
    pub(crate) fn look_at_log(&mut self, index: usize) {
        let Some(data) = self.nodes[index].data() else { return };
        let news = match self.nodes[index].disk.refresh(&data) {
            Ok(news) => news.to_vec(),
            Err(error) => return self.must_end(index, &error.message),
        };
        self.judge_appended(index, &news);
    }

    fn judge_appended(&mut self, index: usize, news: &[Entry]) {
        let mut before = self.nodes[index].disk.before_last(news.len());
        for entry in news {
            let judged = self.judges.appended(index, before, entry);
            self.verdict = self.verdict.clone().and(judged);
            before = entry.op_time();
        }
    }

    /// A member wrote to its own log: that will reach the disk some time.
    pub(crate) fn written_here(&mut self, index: usize) {
        self.look_at_log(index);
        let life = self.nodes[index].life;
        let sync = self.disk_time();
        self.schedule(sync, Happening::LogSynced(life));
    }

    /// How long a sync takes.
    pub(crate) fn disk_time(&mut self) -> Duration {
        let slow = if self.random.chance(self.scale.slow_disk_percent) { 400 } else { 15 };
        self.random.duration_up_to(Duration::from_millis(slow))
    }

    pub(crate) fn sync_log(&mut self, index: usize) {
        let Some(data) = self.nodes[index].data() else { return };
        if let Err(error) = data.sync_log() {
            self.must_end(index, &error.message);
        }
    }

    // -- The end ---------------------------------------------------------------------------------

    fn calm_down(&mut self) {
        self.turmoil = false;
        self.network.calm();
        self.note(None, || "all faults end; everything restarts".to_owned());
        self.calm_machines();
        for index in 0..self.nodes.len() {
            self.start(index);
            self.administer(index, "unfreeze", Request::Freeze(Duration::ZERO));
        }
        self.lose_a_minority();
    }

    /// The configuration of the member that takes writes.
    pub(crate) fn final_config(&self) -> Option<(usize, Arc<ReplicaSetConfig>)> {
        let leader = self.nodes.iter().position(Process::is_writable)?;
        let member = self.nodes[leader].member.as_ref()?;
        member.status().config().map(|config| (leader, Arc::clone(config)))
    }

    /// Why the members do not agree, if they do not.
    fn disagreement(&self) -> Option<String> {
        let writable = self.nodes.iter().filter(|node| node.is_writable()).count();
        if writable != 1 {
            return Some(format!("{writable} members take writes"));
        }
        let (leader, config) = self.final_config()?;
        let last = self.nodes[leader].disk.last().op_time;
        for listed in &config.members {
            let index = self.index_at(&listed.host)?;
            if self.gone.contains(&index) {
                continue;
            }
            let Some(member) = &self.nodes[index].member else {
                return Some(format!("{} is down", listed.id));
            };
            let status = member.status();
            if listed.newly_added {
                return Some(format!("{} is still newly added", listed.id));
            }
            if status.config().map(|c| c.config_version()) != Some(config.config_version()) {
                return Some(format!("{} has an older configuration", listed.id));
            }
            let settled = matches!(
                status.state(),
                MemberState::Primary | MemberState::Secondary | MemberState::Arbiter
            );
            if !settled {
                return Some(format!("{} is {}", listed.id, status.state()));
            }
            if !listed.arbiter_only && status.applied().op_time != last {
                return Some(format!("{} is at {}, not {last}", listed.id, status.applied()));
            }
            if !listed.arbiter_only && status.commit_point().op_time != last {
                let known = status.commit_point();
                return Some(format!("{} knows {known} as committed, not {last}", listed.id));
            }
        }
        self.misbelief(leader, &config)
    }

    // -- The trace -------------------------------------------------------------------------------

    pub(crate) fn note(&mut self, node: Option<usize>, text: impl FnOnce() -> String) {
        let Some(trace) = &mut self.trace else { return };
        let seconds = self.now.as_nanos() as f64 / 1e9;
        let who = node.map_or("--".to_owned(), |node| format!("n{node}"));
        trace(&format!("{seconds:10.4}s {who} {}", text()));
    }

    pub(crate) fn count_event(&mut self, index: usize, event: &Event) {
        match event {
            Event::ElectionStarted { reason, .. } => {
                let after_crash = *reason == ElectionReason::PrimaryCrashed;
                self.figures.crash_elections += u64::from(after_crash);
                self.nodes[index].stood_after_crash = after_crash;
            }
            Event::ElectionLost { .. } => {
                let after_crash = self.nodes[index].stood_after_crash;
                self.figures.crash_elections_lost += u64::from(after_crash);
            }
            Event::MemoryLost => self.nodes[index].memory_lost = true,
            Event::MemoryRegained { .. } => self.nodes[index].memory_lost = false,
            Event::RolledBack { .. } => self.figures.rollbacks += 1,
            Event::InitialSyncFinished { .. } => self.figures.initial_syncs += 1,
            Event::ConfigInstalled { .. } => self.figures.configs += 1,
            Event::DryRunVetoed { .. } => self.figures.vetoes += 1,
            _ => {}
        }
    }

    /// An administrator asks something of a member, and reads the answer in the trace.
    pub(crate) fn administer(&mut self, index: usize, what: &'static str, request: Request) {
        if self.nodes[index].is_running() {
            self.note(Some(index), || format!("is asked: {what}"));
            let token = self.nodes[index].token(Asker::Admin(what));
            self.feed(index, Input::RequestReceived { token, request });
        }
    }
}

/// Where a process listens. Its member id is its index.
pub(crate) fn address_of(index: usize) -> ServerAddress {
    ServerAddress::tcp(&format!("node{index}"), 27017)
        .unwrap_or_else(|error| unreachable!("a made-up name is an address: {error}"))
}

/// Runs the world of a seed. The error is the rule that was broken.
pub fn run(seed: u64, story: Story) -> Result<Figures, Failure> {
    World::new(seed, story, None).run()
}

/// Runs the world of a seed and tells its story, line by line, as it happens. The error is the rule
/// that was broken.
pub fn replay(
    seed: u64,
    story: Story,
    trace: impl FnMut(&str) + 'static,
) -> Result<Figures, Failure> {
    World::new(seed, story, Some(Box::new(trace))).run()
}
