//! The writes of the client that is watched with: how many are acknowledged, and for how long none.
//!
//! A gap is the time between two acknowledgements with trouble in between: a write that failed, a
//! primary that was lost or replaced, or a silence longer than [`SILENCE`] and than [`PACES`] times the
//! writer's own recent pace. So a slow machine makes no gaps, and a failover always makes one.

use std::time::Duration;

use quorate_protocol::MonotonicTime;

use super::ring::Ring;

/// Without other trouble, only a longer pause than this is a gap.
pub(crate) const SILENCE: Duration = Duration::from_secs(1);

/// A pause within so many times the usual one is how this writer writes.
const PACES: u32 = 8;

/// How many pauses the usual one is taken from.
const MAX_PAUSES: usize = 32;

/// How many gaps are kept.
const MAX_GAPS: usize = 50;

/// How many seconds of throughput are kept.
pub(crate) const MAX_SECONDS: usize = 120;

/// A time without acknowledged writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gap {
    /// The last acknowledgement before it.
    pub(crate) from: MonotonicTime,
    /// The first acknowledgement after it.
    pub(crate) to: MonotonicTime,
}

impl Gap {
    /// How long it was.
    pub(crate) fn length(self) -> Duration {
        self.to.since(self.from)
    }
}

/// The record of the writes.
#[derive(Clone, Debug)]
pub(crate) struct Writes {
    last_acknowledged: Option<MonotonicTime>,
    trouble: bool,
    /// The pauses between the latest acknowledgements.
    pauses: Ring<Duration>,
    gaps: Ring<Gap>,
    /// Acknowledgements in each whole second, the last one still being counted.
    seconds: Ring<u32>,
    second_began: Option<MonotonicTime>,
    acknowledged: u64,
    failed: u64,
}

impl Default for Writes {
    fn default() -> Self {
        Self {
            last_acknowledged: None,
            trouble: false,
            pauses: Ring::new(MAX_PAUSES),
            gaps: Ring::new(MAX_GAPS),
            seconds: Ring::new(MAX_SECONDS),
            second_began: None,
            acknowledged: 0,
            failed: 0,
        }
    }
}

impl Writes {
    /// A write was acknowledged. Returns the gap that it ends.
    pub(crate) fn on_acknowledged(&mut self, now: MonotonicTime) -> Option<Gap> {
        self.advance(now);
        self.acknowledged += 1;
        match self.seconds.last_mut() {
            Some(count) => *count += 1,
            None => {
                self.second_began = Some(now);
                self.seconds.push(1);
            }
        }
        let from = self.last_acknowledged.replace(now);
        let trouble = std::mem::take(&mut self.trouble);
        let gap = Gap { from: from?, to: now };
        let longest = self.longest_pause();
        self.pauses.push(gap.length());
        if !trouble && gap.length() <= longest {
            return None;
        }
        self.gaps.push(gap);
        Some(gap)
    }

    /// The longest pause that is no gap.
    fn longest_pause(&self) -> Duration {
        let mut pauses: Vec<Duration> = self.pauses.iter().copied().collect();
        pauses.sort_unstable();
        let usual = pauses.get(pauses.len() / 2).copied().unwrap_or_default();
        SILENCE.max(usual * PACES)
    }

    pub(crate) fn on_failed(&mut self) {
        self.failed += 1;
        self.trouble = true;
    }

    /// The primary was lost or replaced.
    pub(crate) fn on_primary_changed(&mut self) {
        self.trouble = true;
    }

    /// Time has passed: whole seconds are closed.
    pub(crate) fn advance(&mut self, now: MonotonicTime) {
        let Some(began) = &mut self.second_began else { return };
        let passed = now.since(*began).as_secs();
        // More entries than the ring holds would overwrite each other.
        for _ in 0..passed.min(MAX_SECONDS as u64) {
            self.seconds.push(0);
        }
        *began = *began + Duration::from_secs(passed);
    }

    /// Whether anything writes through this client.
    pub(crate) fn any(&self) -> bool {
        self.acknowledged + self.failed > 0
    }

    /// The number that were acknowledged.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// The number that failed.
    pub(crate) fn failed(&self) -> u64 {
        self.failed
    }

    /// Acknowledgements in the last whole second.
    pub(crate) fn per_second(&self) -> Option<u32> {
        let whole = self.seconds.len().checked_sub(2)?;
        self.seconds.iter().nth(whole).copied()
    }

    /// Acknowledgements in each whole second, the oldest first.
    pub(crate) fn history(&self) -> impl Iterator<Item = u32> {
        self.seconds.iter().copied().take(self.seconds.len().saturating_sub(1))
    }

    /// The gaps, the oldest first.
    pub(crate) fn gaps(&self) -> impl DoubleEndedIterator<Item = Gap> {
        self.gaps.iter().copied()
    }

    /// How long no write has been acknowledged, if that is a gap in the making.
    pub(crate) fn open_gap(&self, now: MonotonicTime) -> Option<Duration> {
        let silence = now.since(self.last_acknowledged?);
        (self.trouble || silence > self.longest_pause()).then_some(silence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> MonotonicTime {
        MonotonicTime::from_millis(millis)
    }

    #[test]
    fn trouble_between_two_acknowledgements_makes_a_gap() {
        let mut writes = Writes::default();
        assert_eq!(writes.on_acknowledged(at(0)), None, "nothing came before the first");
        assert_eq!(writes.on_acknowledged(at(900)), None, "a slow machine is no gap");
        writes.on_primary_changed();
        assert_eq!(writes.open_gap(at(950)), Some(Duration::from_millis(50)));
        let gap = writes.on_acknowledged(at(1000)).unwrap();
        assert_eq!((gap.from, gap.to), (at(900), at(1000)));
        assert_eq!(writes.on_acknowledged(at(1010)), None);
        writes.on_failed();
        assert_eq!(writes.on_acknowledged(at(1200)).unwrap().length(), Duration::from_millis(190));
        assert_eq!(writes.gaps().count(), 2);
    }

    #[test]
    fn a_long_silence_is_a_gap_even_without_another_sign() {
        let mut writes = Writes::default();
        writes.on_acknowledged(at(0));
        assert_eq!(writes.open_gap(at(1000)), None);
        assert!(writes.open_gap(at(1001)).is_some());
        assert!(writes.on_acknowledged(at(1500)).is_some());
    }

    /// A writer that is slow all the time makes no gaps; when it stops, it does.
    #[test]
    fn a_pause_is_judged_by_the_writers_own_pace() {
        let mut writes = Writes::default();
        let gaps = (0..60).filter(|n| writes.on_acknowledged(at(n * 1_500)).is_some()).count();
        assert!(gaps <= 1, "{gaps}: the pace is known after the first pause");
        assert_eq!(writes.open_gap(at(59 * 1_500 + 4_000)), None);
        let silence = Some(Duration::from_secs(13));
        assert_eq!(writes.open_gap(at(59 * 1_500 + 13_000)), silence);
        writes.on_failed();
        assert!(writes.on_acknowledged(at(60 * 1_500)).is_some(), "trouble is a gap at any pace");
    }

    #[test]
    fn throughput_counts_whole_seconds() {
        let mut writes = Writes::default();
        for millis in [0, 10, 20, 1005, 1500] {
            writes.on_acknowledged(at(millis));
        }
        assert_eq!(writes.per_second(), Some(3));
        writes.advance(at(4000));
        assert_eq!(writes.history().collect::<Vec<_>>(), [3, 2, 0, 0]);
        assert_eq!(writes.per_second(), Some(0));
        assert_eq!((writes.acknowledged(), writes.failed(), writes.any()), (5, 0, true));
    }

    #[test]
    fn a_long_sleep_costs_no_more_than_the_ring() {
        let mut writes = Writes::default();
        writes.on_acknowledged(at(0));
        writes.advance(MonotonicTime::from_nanos(u64::MAX));
        assert_eq!(writes.history().count(), MAX_SECONDS - 1);
    }
}
