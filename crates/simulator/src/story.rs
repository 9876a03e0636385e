//! What a world is about: every misfortune at once, or a few that are aimed at one rule.
//!
//! The general worlds hold everything and find the unforeseen. A rule that needs several
//! unlikely things in a row is hardly ever tested by them; the aimed stories let just those things
//! happen, with the same members, network, disks and judges. Their configurations are plain (all
//! members alike, hurried settings) so that luck is spent on the aim alone.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use quorate_protocol::{MemberConfig, MemberState, ReplicaSetConfig};
use quorate_replication::{Event, Request, SeededRandom};

use crate::faults::ordinary;
use crate::network::Network;
use crate::process::Process;
use crate::world::{Happening, Scale, World};

/// Makes this luck another one than the world's.
const LUCK: u64 = 0x0053_544f_5259;

/// How many of a hundred messages are late by seconds, where the story is about that.
const LATE_PERCENT: u64 = 3;

/// What a world is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Story {
    /// Every misfortune.
    #[default]
    Everything,
    /// The same, a few of a hundred messages are late by seconds, and some reads are linearizable.
    Delays,
    /// The same, and a majority is lost for good: a configuration is forced.
    MajorityLost,
    /// Primaries crash under load, and nothing else goes wrong: how soon is there another one?
    Crashes,
    /// Two primaries of two terms, and a third member that hears both.
    Usurpers,
    /// Configurations are changed while primaries are cut off and replaced.
    Configurations,
    /// Several members stand at once, and crash while their votes are being written.
    Votes,
    /// Every misfortune, most often of primaries that are cut off or lose their office and get it back, with clients
    /// that run transactions of several statements and repeat them, and consumers of change streams.
    Transactions,
    /// Every misfortune, and those of machines: processes that are paused, clocks that drift and jump, links that are
    /// slow, disks that are full or fail; some reads are linearizable, and in the end some members stay away.
    Machines,
}

/// Every story and its name.
const NAMES: [(Story, &str); 9] = [
    (Story::Everything, "everything"),
    (Story::Delays, "delays"),
    (Story::MajorityLost, "forced"),
    (Story::Crashes, "crashes"),
    (Story::Usurpers, "usurpers"),
    (Story::Configurations, "configurations"),
    (Story::Votes, "votes"),
    (Story::Transactions, "transactions"),
    (Story::Machines, "machines"),
];

impl fmt::Display for Story {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = NAMES.iter().find(|(story, _)| story == self).map_or("", |(_, name)| name);
        f.write_str(name)
    }
}

impl FromStr for Story {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = NAMES.iter().find(|(_, name)| *name == text).map(|(story, _)| *story);
        known.ok_or_else(|| {
            let names: Vec<&str> = NAMES.iter().map(|(_, name)| *name).collect();
            format!("no story is called {text:?}; there are {}", names.join(", "))
        })
    }
}

impl Story {
    /// Whether only a few misfortunes happen.
    pub(crate) fn is_aimed(self) -> bool {
        matches!(self, Self::Crashes | Self::Usurpers | Self::Configurations | Self::Votes)
    }

    /// How often a crash hits a vote that is being stored, and any other ordered write, if not as in
    /// the general worlds.
    pub(crate) fn crash_percents(self) -> Option<(u64, u64)> {
        match self {
            Self::Everything
            | Self::Delays
            | Self::MajorityLost
            | Self::Transactions
            | Self::Machines => None,
            Self::Votes => Some((5, 0)),
            Self::Crashes | Self::Usurpers | Self::Configurations => Some((0, 0)),
        }
    }

    /// How large the world is and how its network is; general worlds stay as their seed made them.
    pub(crate) fn shape(self, seed: u64, scale: Scale, network: &mut Network) -> Scale {
        if self == Self::Delays {
            network.late_percent = LATE_PERCENT;
        }
        if !self.is_aimed() {
            return scale;
        }
        let mut random = SeededRandom::new(seed ^ LUCK);
        let millis = Duration::from_millis;
        let (nodes, think, between_faults) = match self {
            Self::Crashes => (3 + 2 * random.below(2), millis(40), millis(5_000)),
            Self::Usurpers => (3, millis(300), millis(2_500)),
            Self::Configurations => (3 + random.below(2), millis(60), millis(4_000)),
            Self::Votes => (3, millis(200), millis(1_500)),
            _ => return scale,
        };
        if self == Self::Votes {
            // Requests that overtake each other reach members that have crashed since.
            network.jitter = millis(5 + random.below(50));
        }
        Scale {
            nodes: nodes as usize,
            turmoil: Duration::from_secs(60),
            think,
            clients: 2,
            between_faults,
            slow_disk_percent: if self == Self::Votes { 60 } else { 5 },
        }
    }

    /// The first configuration of an aimed world.
    pub(crate) fn first_config(self, nodes: usize) -> ReplicaSetConfig {
        let members: Vec<MemberConfig> = (0..nodes).map(ordinary).collect();
        let mut config = ReplicaSetConfig::new("rs0", members);
        if self != Self::Crashes {
            config.settings.heartbeat_interval_millis = 500;
            config.settings.heartbeat_timeout_secs = 2;
            config.settings.election_timeout_millis = 2_000;
        }
        if matches!(self, Self::Usurpers | Self::Configurations) {
            // A winner that first asks all members for newer entries hides what it lacks.
            config.settings.catch_up_timeout_millis = 0;
        }
        config
    }
}

impl World {
    /// The next misfortune of an aimed world.
    pub(crate) fn aimed_fault(&mut self) {
        let Some(leader) = self.nodes.iter().position(Process::is_writable) else { return };
        let others: Vec<usize> = (0..self.nodes.len()).filter(|node| *node != leader).collect();
        match self.story {
            Story::Crashes => {
                self.crash(leader);
                self.schedule(Duration::from_secs(2), Happening::Restart { node: leader });
            }
            Story::Usurpers => {
                let usurper = others[self.random.below(others.len() as u64) as usize];
                self.usurp(usurper);
            }
            Story::Configurations => self.rival_configurations(leader, &others),
            Story::Votes => {
                for node in others {
                    self.often(node, 1, Duration::from_millis(60), Happening::Stand);
                }
            }
            _ => {}
        }
    }

    /// A primary changes its configuration, a rival that does not know of it changes the one before,
    /// and the first stands again.
    fn rival_configurations(&mut self, leader: usize, others: &[usize]) {
        let rival = others[self.random.below(others.len() as u64) as usize];
        self.change_votes_at(leader);
        self.often(leader, 3, Duration::from_millis(500), Happening::Reconfigure);
        self.often(rival, 5, Duration::from_secs(6), Happening::Stand);
        self.often(rival, 8, Duration::from_secs(9), Happening::Reconfigure);
        self.often(leader, 4, Duration::from_secs(9), Happening::Stand);
        self.repair_later();
    }

    /// Something happened in an aimed world: is it the worst moment for something else?
    pub(crate) fn seize_the_moment(&mut self, node: usize, event: &Event) {
        if !self.turmoil {
            return;
        }
        match (self.story, event) {
            (Story::Configurations, Event::ConfigInstalled { .. } | Event::Writable { .. }) => {
                self.cut_off_with_news(node)
            }
            (Story::Usurpers, Event::VoteGranted { dry_run: false, .. }) => {
                self.write_at_the_old_primary(node);
            }
            (Story::Votes, Event::ElectionWon { .. }) if self.random.chance(60) => {
                let life = self.nodes[node].life;
                self.schedule(Duration::ZERO, Happening::Crash(life));
                let pause = self.random.duration_up_to(Duration::from_millis(5));
                self.schedule(pause, Happening::Restart { node });
            }
            _ => {}
        }
    }

    /// A vote for another primary was given: whatever the old one still writes now may be copied by
    /// the voter, and must not count.
    fn write_at_the_old_primary(&mut self, voter: usize) {
        for leader in (0..self.nodes.len()).filter(|node| *node != voter) {
            if self.nodes[leader].is_writable() {
                let life = self.nodes[leader].life;
                for _ in 0..3 {
                    let pause = self.random.duration_up_to(Duration::from_millis(40));
                    self.schedule(pause, Happening::WriteAt(life));
                }
            }
        }
    }

    /// The worst moment for a cut around a primary is when it has just installed a configuration or
    /// written its first entry: what it knows is nowhere else.
    fn cut_off_with_news(&mut self, node: usize) {
        let leads = self.nodes[node].is_in(MemberState::Primary);
        if !leads || !self.random.chance(60) {
            return;
        }
        for other in (0..self.nodes.len()).filter(|other| *other != node) {
            if self.random.chance(60) {
                self.network.cut_one_way(node, other);
                self.network.cut_one_way(other, node);
                self.note(None, || format!("n{node} and n{other} lose each other"));
            }
        }
        self.repair_later();
        self.often(node, 2, Duration::from_millis(300), Happening::Reconfigure);
    }

    /// A member is asked to take a vote away, or to give one back.
    pub(crate) fn change_votes_at(&mut self, node: usize) {
        let Some((mut new, absent)) = self.next_config(node) else { return };
        match absent.into_iter().max_by_key(|_| self.random.next_u64()) {
            Some(index) if self.random.chance(40) => new.members.push(ordinary(index)),
            _ => {
                new.members.remove(self.random.below(new.members.len() as u64) as usize);
            }
        }
        self.ask_for_config(node, "reconfig: change a vote", new);
    }

    /// Lets something happen to a process a few times within a while.
    pub(crate) fn often(
        &mut self,
        node: usize,
        times: u32,
        within: Duration,
        happening: fn(crate::judges::Life) -> Happening,
    ) {
        let life = self.nodes[node].life;
        for _ in 0..times {
            let pause = self.random.duration_up_to(within);
            self.schedule(pause, happening(life));
        }
    }

    /// A member is told to stand without a dry run.
    pub(crate) fn stand_at_once(&mut self, node: usize) {
        self.administer(node, "stand at once", Request::StepUp { skip_dry_run: true });
    }
}
