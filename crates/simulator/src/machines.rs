//! Misfortunes of machines: processes that are paused and wake with old beliefs, clocks that drift and jump, links
//! that are slow in one direction, disks that are full or fail to sync.
//!
//! Their luck is their own, and only worlds of the story `machines` have them. A paused process does nothing; what
//! reaches it waits in its sockets. When it wakes, clients' writes that waited there may run before it looks at its
//! clock. A disk that fails to sync ends its process; nothing else may end one.
//!
//! Members of every third of these worlds have the store of real servers, over files that lose, tear and reorder what
//! was not synced. Some of their starts are upgrades: what the process before left is in the format of the last
//! release, and the store migrates it.
//!
//! At the end of some of these worlds not everything comes back: a minority of the voters stays away, and the rest
//! must agree without it.

use std::collections::BTreeSet;
use std::time::Duration;

use quorate_protocol::{MonotonicTime, ReplicaSetConfig};
use quorate_replication::{Request, SeededRandom};

use crate::judges::Life;
use crate::process::Process;
use crate::story::Story;
use crate::world::{Happening, World};

/// Makes this luck another one than the world's.
const LUCK: u64 = 0x4d41_4348_494e_4553;
/// Makes the luck of upgrades another one than that.
const UPGRADES: u64 = 0x5550_4752_4144_4553;
/// How often a process that starts has run the last release before.
const UPGRADE_PERCENT: u64 = 30;
/// Between two misfortunes of machines, on average.
const PAUSE: Duration = Duration::from_millis(2_500);
/// How long a process is paused, at most.
const LONGEST_SLEEP: Duration = Duration::from_secs(20);
/// How far a calendar jumps, at most.
const LONGEST_JUMP_MILLIS: u64 = 30_000;
/// How fast or slow clocks run, at most, in millionths.
const MAX_DRIFT: u64 = 20_000;
/// How slow a link becomes, at most.
const SLOWEST_LINK: Duration = Duration::from_millis(700);
/// How long a disk stays full, at most.
const LONGEST_FULL: Duration = Duration::from_secs(15);
/// How long a member with a full disk does not stand, as in the server.
const INELIGIBLE: Duration = Duration::from_secs(60);
/// How long its primary waits for a successor, as in the server.
const HAND_OVER: Duration = Duration::from_secs(10);

/// The misfortunes of machines.
pub(crate) struct Machines {
    random: SeededRandom,
    active: bool,
    /// Which processes have run the last release before they start.
    upgrades: SeededRandom,
}

impl Machines {
    pub(crate) fn new(seed: u64, story: Story) -> Self {
        let random = SeededRandom::new(seed ^ LUCK);
        let upgrades = SeededRandom::new(seed ^ UPGRADES);
        Self { random, active: story == Story::Machines, upgrades }
    }

    /// Whether the members of a world have the store of real servers, over simulated files.
    pub(crate) fn uses_files(&self, seed: u64) -> bool {
        self.active && seed.is_multiple_of(3)
    }

    /// How much faster than the world's the next process's clock runs, in millionths.
    pub(crate) fn drift(&mut self) -> i64 {
        if self.active { self.random.below(2 * MAX_DRIFT) as i64 - MAX_DRIFT as i64 } else { 0 }
    }
}

/// The clock of a process whose clock is off by so many millionths.
pub(crate) fn drifted(now: MonotonicTime, drift: i64) -> MonotonicTime {
    let nanos = i128::from(now.as_nanos());
    let drifted = nanos + nanos * i128::from(drift) / 1_000_000;
    MonotonicTime::ZERO + Duration::from_nanos(u64::try_from(drifted).unwrap_or(0))
}

/// When the clock of such a process shows this time, at the earliest.
pub(crate) fn undrifted(shown: MonotonicTime, drift: i64) -> MonotonicTime {
    if drift == 0 {
        return shown;
    }
    let nanos = i128::from(shown.as_nanos()) * 1_000_000 / i128::from(1_000_000 + drift);
    // Rounded, so that the deadline has passed then.
    let nanos = u64::try_from(nanos).unwrap_or(u64::MAX - 2) + 2;
    MonotonicTime::ZERO + Duration::from_nanos(nanos)
}

impl World {
    /// Before a process starts: in some worlds the one before it was of the last release, and its directory is in the
    /// format of that.
    pub(crate) fn upgrade(&mut self, index: usize) -> Result<(), quorate_node::CommandError> {
        if !self.machines.uses_files(self.seed) || !self.machines.upgrades.chance(UPGRADE_PERCENT) {
            return Ok(());
        }
        if self.nodes[index].disk.age()? {
            self.figures.upgrades += 1;
            self.note(Some(index), || "its directory is of the last release".to_owned());
        }
        Ok(())
    }

    /// Lets the next misfortune of a machine come, some time from now.
    pub(crate) fn expect_machine_fault(&mut self) {
        if self.machines.active {
            let pause = self.machines.random.duration_up_to(PAUSE * 2);
            self.schedule(pause, Happening::Machine);
        }
    }

    pub(crate) fn machine_fault(&mut self) {
        if !self.turmoil {
            return;
        }
        self.expect_machine_fault();
        if self.has_truce() {
            return;
        }
        let mut index = self.machines.random.below(self.nodes.len() as u64) as usize;
        // Primaries have most to lose.
        if self.machines.random.chance(50)
            && let Some(leader) = self.nodes.iter().position(Process::is_writable)
        {
            index = leader;
        }
        match self.machines.random.below(10) {
            0..4 => self.put_to_sleep(index),
            4..6 => self.jump(index),
            6..8 => {
                let other = self.machines.random.below(self.nodes.len() as u64) as usize;
                let slow = self.machines.random.duration_up_to(SLOWEST_LINK);
                self.network.slow_down(index, other, slow);
                self.note(None, || format!("n{index} reaches n{other} {slow:?} later"));
            }
            8 => self.fill_disk(index),
            _ => {
                if self.nodes[index].is_up() {
                    self.note(Some(index), || "its disk will fail to sync".to_owned());
                    self.nodes[index].disk.fail_next_sync();
                }
            }
        }
    }

    fn put_to_sleep(&mut self, index: usize) {
        if !self.nodes[index].is_running() {
            return;
        }
        let longest =
            if self.machines.random.chance(30) { LONGEST_SLEEP } else { LONGEST_SLEEP / 5 };
        let sleep = self.machines.random.duration_up_to(longest);
        self.nodes[index].asleep = true;
        self.figures.sleeps += 1;
        self.note(Some(index), || format!("is paused for {sleep:?}"));
        let life = self.nodes[index].life;
        self.schedule(sleep, Happening::Wake(life));
    }

    /// A paused process goes on, with everything that has reached it meanwhile.
    pub(crate) fn wake(&mut self, life: Life) {
        if !self.is_alive(life) || !self.nodes[life.node].asleep {
            return;
        }
        let index = life.node;
        self.nodes[index].asleep = false;
        self.note(Some(index), || "goes on".to_owned());
        let held = std::mem::take(&mut self.nodes[index].held);
        if self.turmoil && self.machines.random.chance(60) {
            for _ in 0..1 + self.machines.random.below(3) {
                self.schedule(Duration::ZERO, Happening::WriteAt(life));
            }
        }
        // Its clock may be looked at before its sockets, or after them.
        let clock_first = self.machines.random.chance(50);
        self.nodes[index].tick_at = None;
        if clock_first {
            self.schedule_tick(index);
        }
        for happening in held.into_iter().filter(|held| !matches!(held, Happening::Tick(_))) {
            self.schedule(Duration::ZERO, happening);
        }
        if !clock_first {
            self.schedule_tick(index);
        }
    }

    fn jump(&mut self, index: usize) {
        let by = self.machines.random.below(2 * LONGEST_JUMP_MILLIS) as i64;
        let by = by - LONGEST_JUMP_MILLIS as i64;
        self.nodes[index].skew_millis = by;
        self.note(Some(index), || format!("its calendar is off by {by} ms now"));
    }

    fn fill_disk(&mut self, index: usize) {
        let Some(data) = self.nodes[index].data() else { return };
        if data.disk_is_full() || self.nodes[index].asleep {
            return;
        }
        data.set_disk_full(true);
        self.note(Some(index), || "its disk is full".to_owned());
        let life = self.nodes[index].life;
        let full = self.machines.random.duration_up_to(LONGEST_FULL);
        self.schedule(full, Happening::DiskHasRoom(life));
        if self.nodes[index].is_writable() {
            let (period, catch_up_period) = (INELIGIBLE, HAND_OVER);
            let request = Request::StepDown { period, catch_up_period, force: true };
            self.administer(index, "step down", request);
        }
        self.administer(index, "freeze", Request::Freeze(INELIGIBLE));
    }

    /// There is room on the disk of a process again.
    pub(crate) fn disk_has_room(&mut self, life: Life) {
        let index = life.node;
        let Some(data) = self.nodes[index].data() else { return };
        if data.disk_is_full() {
            data.set_disk_full(false);
            self.note(Some(index), || "its disk has room again".to_owned());
            self.administer(index, "unfreeze", Request::Freeze(Duration::ZERO));
        }
    }

    /// Everything of these misfortunes that is to be over when a world calms down.
    pub(crate) fn calm_machines(&mut self) {
        if !self.machines.active {
            return;
        }
        for index in 0..self.nodes.len() {
            let life = self.nodes[index].life;
            self.nodes[index].skew_millis = 0;
            self.wake(life);
            self.disk_has_room(life);
        }
    }

    /// In some worlds not everything comes back: takes processes away for good, so that a majority of the voters of every configuration that any disk holds
    /// is left, and a member that may be elected.
    pub(crate) fn lose_a_minority(&mut self) {
        if !self.machines.active || !self.machines.random.chance(40) {
            return;
        }
        let configs: Vec<ReplicaSetConfig> = self
            .nodes
            .iter()
            .filter_map(|node| node.member.as_ref()?.status().config().map(|c| (**c).clone()))
            .collect();
        // What a process that is down knows is not known here. A member that is too stale is wiped, and then waits
        // for every other voter.
        let known = self.nodes.iter().all(Process::is_up) && !self.hardship.truncates();
        if configs.is_empty() || !known {
            return;
        }
        let mut gone = BTreeSet::new();
        for _ in 0..self.nodes.len() {
            let index = self.machines.random.below(self.nodes.len() as u64) as usize;
            gone.insert(index);
            if !configs.iter().all(|config| self.suffices(config, &gone)) {
                gone.remove(&index);
            }
        }
        for index in &gone {
            self.crash(*index);
        }
        self.figures.left_behind += gone.len() as u64;
        self.note(None, || format!("{gone:?} do not come back"));
        self.gone = gone;
    }

    /// Whether a set can go on without these processes.
    fn suffices(&self, config: &ReplicaSetConfig, gone: &BTreeSet<usize>) -> bool {
        let is_left = |listed: &quorate_protocol::MemberConfig| {
            self.index_at(&listed.host).is_some_and(|index| !gone.contains(&index))
        };
        // One that was added newly has no vote that counts yet.
        let voters = config.members.iter().filter(|listed| listed.is_voter());
        let remembers = |listed: &quorate_protocol::MemberConfig| {
            self.index_at(&listed.host).is_some_and(|index| !self.nodes[index].memory_lost)
        };
        let left = voters.clone().filter(|listed| is_left(listed) && remembers(listed));
        let data = left.clone().filter(|listed| {
            let index = self.index_at(&listed.host);
            let state = index.and_then(|index| {
                self.nodes[index].member.as_ref().map(|member| member.status().state())
            });
            !listed.arbiter_only && state.is_some_and(|state| state.is_readable())
        });
        let electable = left.clone().any(|listed| listed.priority.0 > 0.0);
        // A write is committed by a majority of the voters; those that are left hold it.
        left.count() * 2 > voters.clone().count() && data.count() * 2 > voters.count() && electable
    }
}
