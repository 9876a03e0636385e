//! What goes wrong, and what administrators do meanwhile.

use std::collections::BTreeSet;
use std::time::Duration;

use quorate_protocol::{MemberConfig, MemberId, Priority, ReplicaSetConfig};
use quorate_replication::Request;

use crate::process::Process;
use crate::story::Story;
use crate::world::{Happening, World, address_of};

impl World {
    /// The first configuration: some of the processes, some of them special.
    pub(crate) fn initiate(&mut self) {
        if self.story.is_aimed() {
            self.first_config = Some(self.story.first_config(self.nodes.len()));
            return self.initiate_again();
        }
        let members = 3.min(self.nodes.len()) + self.random.below(2) as usize;
        let members = members.min(self.nodes.len());
        let mut config = ReplicaSetConfig::new("rs0", (0..members).map(ordinary).collect());
        if self.random.chance(60) {
            // A hurried set has more elections in less time.
            config.settings.heartbeat_interval_millis = 500;
            config.settings.heartbeat_timeout_secs = 2;
            config.settings.election_timeout_millis = 2_000;
            config.settings.catch_up_takeover_delay_millis = 5_000;
        }
        config.settings.chaining_allowed = self.random.chance(80);
        if self.random.chance(20) {
            config.settings.catch_up_timeout_millis = self.random.below(3_000) as i64;
        }
        for index in 1..members {
            let kind = self.random.below(12);
            self.specialise(&mut config.members[index], kind);
        }
        if self.random.chance(40) {
            config.members[0].priority = Priority(2.0);
        }
        // At most one arbiter is allowed without asking.
        let mut arbiters = 0;
        for member in &mut config.members {
            arbiters += usize::from(member.arbiter_only);
            if member.arbiter_only && arbiters > 1 {
                *member = ordinary(member.id.0 as usize);
            }
        }
        self.first_config = Some(config);
        self.initiate_again();
    }

    /// A crash can hit the initiation itself; an administrator then tries again.
    pub(crate) fn initiate_again(&mut self) {
        let exists = self.nodes.iter().any(|node| {
            node.member.as_ref().is_some_and(|member| member.status().config().is_some())
        });
        if let Some(config) = self.first_config.clone().filter(|_| !exists) {
            self.administer(0, "initiate", Request::Initiate(Some(Box::new(config))));
            self.schedule(Duration::from_secs(2), Happening::InitiateAgain);
        }
    }

    fn specialise(&mut self, member: &mut MemberConfig, kind: u64) {
        match kind {
            0 => member.priority = Priority::ZERO,
            1 => {
                member.priority = Priority::ZERO;
                member.hidden = true;
            }
            2 => {
                member.priority = Priority::ZERO;
                member.votes = 0;
            }
            3 => *member = MemberConfig::arbiter(member.id, member.host.clone()),
            4 => {
                member.priority = Priority::ZERO;
                member.build_indexes = false;
            }
            5 => {
                member.priority = Priority::ZERO;
                member.secondary_delay_secs = 1 + self.random.below(2) as i64;
            }
            6 => member.priority = Priority(2.0),
            _ => {}
        }
    }

    pub(crate) fn fault(&mut self) {
        if !self.turmoil {
            return;
        }
        if self.has_truce() {
            return self.schedule(Duration::from_secs(1), Happening::Fault);
        }
        let pause = self.random.duration_up_to(self.scale.between_faults * 2);
        self.schedule(pause, Happening::Fault);
        if self.story.is_aimed() {
            return self.aimed_fault();
        }
        if self.story == Story::Transactions && self.random.chance(60) {
            return self.fault_for_transactions();
        }
        let node = self.random.below(self.nodes.len() as u64) as usize;
        match self.random.below(16) {
            0 | 1 => self.crash_for_a_while(node),
            2 => {
                if let Some(leader) = self.nodes.iter().position(Process::is_writable) {
                    self.crash_for_a_while(leader);
                }
            }
            3 | 4 => self.partition(),
            5 => {
                let other = self.random.below(self.nodes.len() as u64) as usize;
                self.network.cut_one_way(node, other);
                self.note(None, || format!("n{node} cannot reach n{other}"));
                self.repair_later();
            }
            6 => {
                self.network.drop_percent = self.random.below(20);
                self.network.duplicate_percent = self.random.below(20);
                let (lost, twice) = (self.network.drop_percent, self.network.duplicate_percent);
                self.note(None, || format!("network loses {lost} %, doubles {twice} %"));
            }
            7 => self.ask_to_step_down(),
            8 => {
                let period = Duration::from_secs(self.random.below(5));
                self.administer(node, "freeze", Request::Freeze(period));
            }
            9 | 13 | 14 => self.usurp(node),
            15 => self.power_cut(),
            10 => {
                let target = address_of(self.random.below(self.nodes.len() as u64) as usize);
                self.administer(node, "sync from another", Request::SyncFrom(target));
            }
            _ => self.reconfigure(),
        }
    }

    /// What transactions fear most: their primary is cut off with what it commits, or it loses its office to another
    /// member and gets it back.
    fn fault_for_transactions(&mut self) {
        let Some(leader) = self.nodes.iter().position(Process::is_writable) else { return };
        if self.random.chance(50) {
            self.network.repair();
            self.network.partition(&BTreeSet::from([leader]), self.nodes.len());
            self.note(None, || format!("network parts n{leader} from the rest"));
            return self.repair_later();
        }
        let request = Request::StepDown {
            period: Duration::from_secs(1),
            catch_up_period: Duration::ZERO,
            force: true,
        };
        self.administer(leader, "step down", request);
        for other in (0..self.nodes.len()).filter(|other| *other != leader) {
            self.often(other, 2, Duration::from_secs(3), Happening::StepUp);
        }
        self.often(leader, 8, Duration::from_secs(12), Happening::StepUp);
    }

    fn crash_for_a_while(&mut self, node: usize) {
        self.crash(node);
        let pause = self.random.duration_up_to(Duration::from_secs(15));
        self.schedule(pause, Happening::Restart { node });
    }

    /// Most machines lose power at once, and with it everything that was not synced.
    fn power_cut(&mut self) {
        for node in 0..self.nodes.len() {
            if self.random.chance(70) {
                self.crash(node);
                let pause = self.random.duration_up_to(Duration::from_secs(4));
                self.schedule(pause, Happening::Restart { node });
            }
        }
    }

    fn partition(&mut self) {
        self.network.repair();
        let all = self.nodes.len();
        let mut side = BTreeSet::new();
        if self.random.chance(50) {
            // The worst place for a cut is around the primary.
            side.extend(self.nodes.iter().position(Process::is_writable));
        }
        for node in 0..all {
            if self.random.chance(30) {
                side.insert(node);
            }
        }
        self.network.partition(&side, all);
        self.note(None, || format!("network parts {side:?} from the rest"));
        self.repair_later();
    }

    /// A secondary that the primary cannot reach is told to take over: for a while two members lead,
    /// in two terms, and a third hears both.
    pub(crate) fn usurp(&mut self, node: usize) {
        if let Some(leader) = self.nodes.iter().position(Process::is_writable) {
            self.network.cut_one_way(leader, node);
            self.network.cut_one_way(node, leader);
            self.note(None, || format!("n{leader} and n{node} lose each other"));
            self.repair_later();
        }
        let life = self.nodes[node].life;
        // Its source hangs with the primary: it needs some seconds to find another and catch up.
        for _ in 0..8 {
            let pause = self.random.duration_up_to(Duration::from_secs(10));
            self.schedule(pause, Happening::StepUp(life));
        }
    }

    pub(crate) fn repair_later(&mut self) {
        // A later cut puts off the repair of an earlier one, so that cuts outlast elections.
        let pause = Duration::from_secs(3) + self.random.duration_up_to(Duration::from_secs(17));
        self.repair_due = self.repair_due.max(self.now + pause);
        self.schedule_at(self.repair_due, Happening::Repair);
    }

    fn ask_to_step_down(&mut self) {
        let Some(leader) = self.nodes.iter().position(Process::is_writable) else { return };
        let request = Request::StepDown {
            period: Duration::from_secs(3),
            catch_up_period: Duration::from_millis(self.random.below(2_500)),
            force: self.random.chance(30),
        };
        self.administer(leader, "step down", request);
    }

    fn reconfigure(&mut self) {
        if let Some(leader) = self.nodes.iter().position(Process::is_writable) {
            self.reconfigure_at(leader);
        }
    }

    /// A member is asked for another configuration than it has.
    fn reconfigure_at(&mut self, leader: usize) {
        let Some((mut new, absent)) = self.next_config(leader) else { return };
        let pick = self.random.below(new.members.len() as u64) as usize;
        let what = match self.random.below(4) {
            0 | 1 if !absent.is_empty() => {
                let index = absent[self.random.below(absent.len() as u64) as usize];
                let mut member = ordinary(index);
                let kind = self.random.below(12);
                self.specialise(&mut member, kind);
                new.members.push(member);
                "reconfig: add a member"
            }
            2 if new.members.len() > 2 => {
                new.members.remove(pick);
                "reconfig: remove a member"
            }
            _ => {
                let member = &mut new.members[pick];
                if !member.arbiter_only && member.votes == 1 && member.build_indexes {
                    member.priority = Priority(self.random.below(3) as f64);
                    member.hidden = false;
                    member.secondary_delay_secs = 0;
                }
                "reconfig: change a priority"
            }
        };
        self.ask_for_config(leader, what, new);
    }

    /// The configuration of a member with the next version, to be changed, and the processes that it does not list.
    pub(crate) fn next_config(&self, node: usize) -> Option<(ReplicaSetConfig, Vec<usize>)> {
        let member = self.nodes[node].member.as_ref()?;
        let mut config = ReplicaSetConfig::clone(member.status().config()?);
        config.version += 1;
        let absent = (0..self.nodes.len())
            .filter(|index| config.member_at(&address_of(*index)).is_none())
            .collect();
        Some((config, absent))
    }

    pub(crate) fn ask_for_config(
        &mut self,
        node: usize,
        what: &'static str,
        config: ReplicaSetConfig,
    ) {
        let request = Request::Reconfig { config: Box::new(config), force: false, max_time: None };
        self.administer(node, what, request);
    }
}

pub(crate) fn ordinary(index: usize) -> MemberConfig {
    MemberConfig::new(MemberId(index as i32), address_of(index))
}
