//! The network between members: delay, loss, duplication, links that are slow, and cuts in one direction or both.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use quorate_replication::SeededRandom;

/// How late a message can be that is late.
const LATEST: Duration = Duration::from_secs(3);

/// How the network treats messages.
#[derive(Clone, Debug)]
pub(crate) struct Network {
    shortest: Duration,
    pub(crate) jitter: Duration,
    pub(crate) drop_percent: u64,
    pub(crate) duplicate_percent: u64,
    /// How many of a hundred messages are late by up to [`LATEST`].
    pub(crate) late_percent: u64,
    /// Links on which messages take longer.
    slow: BTreeMap<(usize, usize), Duration>,
    /// Links that drop every message.
    cut: BTreeSet<(usize, usize)>,
}

impl Network {
    pub(crate) fn new(random: &mut SeededRandom) -> Self {
        Self {
            shortest: Duration::from_micros(100 + random.below(2_000)),
            jitter: Duration::from_micros(500 + random.below(20_000)),
            drop_percent: 0,
            duplicate_percent: 0,
            late_percent: 0,
            slow: BTreeMap::new(),
            cut: BTreeSet::new(),
        }
    }

    /// When each copy of a message arrives; empty if it is lost. Jitter makes messages overtake.
    pub(crate) fn deliveries(
        &self,
        random: &mut SeededRandom,
        from: usize,
        to: usize,
    ) -> Vec<Duration> {
        if self.is_cut(from, to) || random.chance(self.drop_percent) {
            return Vec::new();
        }
        let way = self.slow.get(&(from, to)).copied().unwrap_or_default();
        let copies = if random.chance(self.duplicate_percent) { 2 } else { 1 };
        (0..copies)
            .map(|_| {
                let late = self.late_percent > 0 && random.chance(self.late_percent);
                let longest = if late { LATEST } else { self.jitter };
                way + self.shortest + random.duration_up_to(longest)
            })
            .collect()
    }

    pub(crate) fn is_cut(&self, from: usize, to: usize) -> bool {
        self.cut.contains(&(from, to))
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.cut.is_empty() && self.drop_percent == 0
    }

    pub(crate) fn cut_one_way(&mut self, from: usize, to: usize) {
        self.cut.insert((from, to));
    }

    /// Makes a link slower, in one direction.
    pub(crate) fn slow_down(&mut self, from: usize, to: usize, by: Duration) {
        self.slow.insert((from, to), by);
    }

    /// Separates one side from the rest.
    pub(crate) fn partition(&mut self, side: &BTreeSet<usize>, all: usize) {
        for one in side {
            for other in (0..all).filter(|other| !side.contains(other)) {
                self.cut.insert((*one, other));
                self.cut.insert((other, *one));
            }
        }
    }

    pub(crate) fn repair(&mut self) {
        self.cut.clear();
    }

    pub(crate) fn calm(&mut self) {
        self.repair();
        self.slow.clear();
        self.drop_percent = 0;
        self.duplicate_percent = 0;
        self.late_percent = 0;
    }
}
