//! Misfortunes beyond crashes and cuts: oplogs that drop their oldest entries until a member is too
//! stale, voters whose disk is replaced, and a majority that is lost for good.
//!
//! Their luck is their own, so that a seed's other events stay as they are. A member that is too stale
//! is wiped by an administrator some seconds later. A voter is wiped only while everything else is
//! well, since it takes its votes and its copy of committed entries with it; nothing else is broken
//! until it follows again. A lost majority is answered by a forced reconfiguration, which may lose
//! committed writes by design: from then on only the agreement at the end is judged.

use std::time::Duration;

use quorate_protocol::{MemberState, MonotonicTime};
use quorate_replication::{Request, SeededRandom};

use crate::judges::Life;
use crate::process::Process;
use crate::story::Story;
use crate::world::{Happening, World};

/// Makes this luck another one than the world's.
const LUCK: u64 = 0x0048_4152_4453_4849;
/// The least time between two rounds of periodic work.
const MAINTENANCE: Duration = Duration::from_secs(1);
/// Steps of one look.
const MAX_STEPS: u32 = 100;
/// The size of oplogs where history is to be kept.
const LARGE_OPLOG: u64 = 1 << 30;
/// How long an administrator takes to notice that a member is too stale.
const NOTICE: Duration = Duration::from_secs(5);
/// How long the rest of the world holds still for a wiped voter, at most.
const TRUCE: Duration = Duration::from_secs(20);

/// Which hardships a world knows, and how it stands with them.
pub(crate) struct Hardship {
    random: SeededRandom,
    truncates: bool,
    wipes: bool,
    /// Whether a majority is to be lost, once.
    loses_majority: bool,
    truce: Option<(Life, MonotonicTime)>,
}

impl Hardship {
    pub(crate) fn new(seed: u64, story: Story) -> Self {
        let mut random = SeededRandom::new(seed ^ LUCK);
        let (truncates, wipes) = (random.chance(50), random.chance(50));
        let loses_majority = story == Story::MajorityLost;
        let (truncates, wipes) = (truncates && !story.is_aimed(), wipes && !story.is_aimed());
        Self { random, truncates, wipes, loses_majority, truce: None }
    }

    /// Whether members may become too stale.
    pub(crate) fn truncates(&self) -> bool {
        self.truncates
    }

    /// The size of the next process's oplog.
    pub(crate) fn oplog_bytes(&mut self) -> u64 {
        if self.truncates { 4_000 + self.random.below(20_000) } else { LARGE_OPLOG }
    }
}

impl World {
    /// Lets the next hardship come, some time from now.
    pub(crate) fn expect_hardship(&mut self) {
        let pause = self.hardship.random.duration_up_to(Duration::from_secs(12));
        self.schedule(Duration::from_secs(3) + pause, Happening::Hardship);
    }

    pub(crate) fn suffer_hardship(&mut self) {
        if !self.turmoil {
            return;
        }
        self.expect_hardship();
        if self.hardship.loses_majority && self.now > MonotonicTime::ZERO + self.scale.turmoil / 2 {
            self.hardship.loses_majority = false;
            return self.lose_majority();
        }
        if self.hardship.wipes {
            self.wipe_a_voter();
        }
    }

    /// Periodic work of a process: an oplog over its size drops committed entries.
    pub(crate) fn maintain(&mut self, life: Life) {
        if !self.is_alive(life) {
            return;
        }
        let index = life.node;
        let pause = MAINTENANCE + self.hardship.random.duration_up_to(MAINTENANCE);
        self.schedule(pause, Happening::Maintain(life));
        let Some(data) = self.nodes[index].data() else { return };
        let oldest = data.oldest_entry();
        let now = self.now_at(index);
        let kept = (0..MAX_STEPS).try_for_each(|_| match data.maintain(now) {
            Ok(true) => Ok(()),
            Ok(false) => Err(None),
            Err(error) => Err(Some(error)),
        });
        if let Err(Some(error)) = kept {
            return self.must_end(index, &error.message);
        }
        if let (Ok(before), Ok(oldest)) = (oldest, data.oldest_entry())
            && before != oldest
        {
            self.figures.truncations += 1;
            self.note(Some(index), || format!("its oplog now begins at {oldest}"));
        }
    }

    /// A member cannot follow any more: the operator will empty its disk.
    pub(crate) fn became_too_stale(&mut self, index: usize) {
        self.figures.too_stale += 1;
        let life = self.nodes[index].life;
        self.schedule(NOTICE, Happening::Resync(life));
    }

    /// An administrator empties the disk of a member that is too stale still.
    pub(crate) fn resync(&mut self, life: Life) {
        let stale = self.nodes[life.node].is_in(MemberState::Recovering);
        if stale {
            self.wipe(life.node);
        }
    }

    fn wipe(&mut self, index: usize) {
        self.note(Some(index), || "its disk is replaced".to_owned());
        self.figures.wipes += 1;
        self.crash(index);
        self.nodes[index].disk = self.nodes[index].disk.replacement();
        self.start(index);
    }

    /// Replaces the disk of a secondary, if the set can do without it.
    fn wipe_a_voter(&mut self) {
        if !self.all_is_well() {
            return;
        }
        let index = self.hardship.random.below(self.nodes.len() as u64) as usize;
        let secondary = self.nodes[index].is_in(MemberState::Secondary);
        if secondary && self.hardship.random.chance(50) {
            self.wipe(index);
            self.hardship.truce = Some((self.nodes[index].life, self.now + TRUCE));
        }
    }

    /// Whether a wiped voter is to be left in peace.
    pub(crate) fn has_truce(&mut self) -> bool {
        let Some((life, end)) = self.hardship.truce else { return false };
        let back = self.nodes[life.node].is_in(MemberState::Secondary);
        if (back && self.all_is_well()) || self.now > end {
            self.hardship.truce = None;
        }
        self.hardship.truce.is_some()
    }

    /// Nothing is cut, no member is down, and all follow one primary and have what is committed.
    fn all_is_well(&self) -> bool {
        let Some(leader) = self.nodes.iter().position(Process::is_writable) else { return false };
        let Some(status) = self.nodes[leader].member.as_ref().map(|member| member.status()) else {
            return false;
        };
        let committed = status.commit_point().op_time;
        let quiet = self.network.is_whole() && self.nodes.iter().all(Process::is_up);
        quiet
            && status.config().is_some_and(|config| {
                config.members.iter().all(|listed| {
                    let node = self.nodes.iter().find(|node| node.address == listed.host);
                    let known = node.and_then(|node| node.member.as_ref().map(|m| (node, m)));
                    known.is_some_and(|(node, member)| {
                        let known = member.status();
                        let follows = known.term() == status.term()
                            && known.config().map(|c| c.config_version())
                                == Some(config.config_version());
                        let copied = listed.arbiter_only || node.disk.last().op_time >= committed;
                        follows && copied && !listed.newly_added
                    })
                })
            })
    }

    /// More than half of the voters burn down; on one that is left the configuration is forced.
    fn lose_majority(&mut self) {
        let Some((leader, config)) = self.final_config() else {
            self.hardship.loses_majority = true;
            return;
        };
        // An operator forces no configuration on a member that knows less than those that are gone, which
        // could come back with a higher term, or on one that has no data.
        let term_of = |index: usize| {
            let status = self.nodes[index].member.as_ref()?.status();
            status.state().is_readable().then(|| status.term())
        };
        let leading = term_of(leader);
        let place = |listed: &quorate_protocol::MemberConfig| {
            self.nodes.iter().position(|node| node.address == listed.host)
        };
        let data: Vec<usize> = config
            .members
            .iter()
            .filter(|listed| !listed.arbiter_only && listed.priority.0 > 0.0)
            .filter_map(place)
            .filter(|index| term_of(*index) == leading)
            .collect();
        let Some(survivor) = data.last().copied() else { return };
        let lost: Vec<usize> =
            config.members.iter().filter_map(place).filter(|index| *index != survivor).collect();
        self.note(None, || format!("all but n{survivor} are lost"));
        self.judges.forgive_losses();
        for index in lost {
            self.crash(index);
            self.lost.insert(index);
        }
        self.start(survivor);
        let address = self.nodes[survivor].address.clone();
        let mut new = (*config).clone();
        new.members.retain(|listed| listed.host == address);
        let request = Request::Reconfig { config: Box::new(new), force: true, max_time: None };
        self.administer(survivor, "force a configuration", request);
    }
}
