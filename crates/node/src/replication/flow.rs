//! Flow control: a primary slows its writers while a majority of its set falls behind.
//!
//! A writer that does not wait for a majority can write faster than the other members copy. What no
//! majority has stays in the oplog, however large the oplog becomes, and would be rolled back if the
//! primary failed. So the primary compares what no majority has with two limits: half the size of the
//! oplog, and [`TARGET_LAG`]. From half of a limit on, writes are let through one by one, in steps that
//! grow with the pressure, up to [`LONGEST_STEP`]. Writes never stop: where no majority can be reached,
//! nothing is slowed at all, because waiting would not help it.
//!
//! The value takes positions, bytes and the time, and gives pauses. It knows no clock.

use std::collections::VecDeque;
use std::time::Duration;

use bson::{Document, doc};
use quorate_protocol::{MonotonicTime, OpTime, OpTimeAndWallTime};

use super::standing::keep_every_second;
use crate::context::Now;

/// How old the oldest entry may become that no majority has; the manual's
/// `flowControlTargetLagSeconds`.
const TARGET_LAG: Duration = Duration::from_secs(10);

/// The share of a limit from which writers are slowed.
const EASE: f64 = 0.5;

/// Between two writes when slowing begins, and when a limit is reached.
const SHORTEST_STEP: Duration = Duration::from_micros(10);
const LONGEST_STEP: Duration = Duration::from_millis(10);

/// Bytes of the log that count as one write: a bulk write takes as many steps as it wrote pieces.
const PIECE: u64 = 4 * 1024;

/// The longest that one write is held back.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// A mark stands for so many bytes or for so much time.
const MARK_BYTES: u64 = 64 * 1024;
const MARK_MILLIS: i64 = 100;

/// When there are more marks, every second one goes, and from then on each stands for twice as much.
const MAX_MARKS: usize = 1024;

/// Where a stretch of entries begins.
#[derive(Clone, Copy, Debug)]
struct Mark {
    first: OpTimeAndWallTime,
    /// Bytes of the entries before it.
    before: u64,
}

/// What a primary has that no majority has, and the pace of its writers.
#[derive(Debug)]
pub(super) struct FlowControl {
    enabled: bool,
    /// Whether enough members are in sight for the commit point to move.
    can_commit: bool,
    /// Bytes that may be without a majority before writers have the slowest pace.
    limit: u64,
    /// Bytes of all entries so far.
    total: u64,
    last: OpTime,
    /// The stretches that are not committed yet, oldest first.
    marks: VecDeque<Mark>,
    /// What a mark stands for, as a multiple of the least.
    coarseness: u32,
    /// When the next write may pass.
    next: MonotonicTime,
    /// Bytes that were counted when the last write passed.
    counted: u64,
    /// Since when writers are slowed.
    slowed_since: Option<MonotonicTime>,
    figures: Figures,
}

/// What `serverStatus` tells.
#[derive(Clone, Copy, Debug, Default)]
struct Figures {
    step: Duration,
    paused: Duration,
    paused_writes: u64,
    slowed: Duration,
    slowed_count: u64,
}

impl Default for FlowControl {
    fn default() -> Self {
        Self {
            enabled: true,
            can_commit: false,
            limit: u64::MAX,
            total: 0,
            last: OpTime::NULL,
            marks: VecDeque::new(),
            coarseness: 1,
            next: MonotonicTime::ZERO,
            counted: 0,
            slowed_since: None,
            figures: Figures::default(),
        }
    }
}

impl FlowControl {
    pub(super) fn is_enabled(&self) -> bool {
        self.enabled
    }

    pub(super) fn set_enabled(&mut self, enabled: bool) {
        self.enabled = enabled;
    }

    /// The oplog may have so many bytes.
    pub(super) fn set_oplog_size(&mut self, bytes: u64) {
        self.limit = bytes / 2;
    }

    /// Entries were appended.
    pub(super) fn append(&mut self, first: OpTimeAndWallTime, last: OpTime, bytes: u64) {
        if self.marks.is_empty() {
            self.coarseness = 1;
        }
        let is_new = self.marks.back().is_none_or(|mark| {
            let millis = first.wall_time.as_millis() - mark.first.wall_time.as_millis();
            self.total - mark.before >= MARK_BYTES * u64::from(self.coarseness)
                || millis >= MARK_MILLIS * i64::from(self.coarseness)
        });
        if is_new {
            if self.marks.len() >= MAX_MARKS {
                keep_every_second(&mut self.marks);
                self.coarseness = self.coarseness.saturating_mul(2);
            }
            self.marks.push_back(Mark { first, before: self.total });
        }
        self.total += bytes;
        self.last = last;
    }

    /// A majority has the log up to here.
    pub(super) fn decide(&mut self, committed: OpTime, can_commit: bool) {
        self.can_commit = can_commit;
        if committed >= self.last {
            self.marks.clear();
        }
        while self.marks.get(1).is_some_and(|mark| mark.first.op_time <= committed) {
            self.marks.pop_front();
        }
    }

    /// The log was cut.
    pub(super) fn cut(&mut self, last: OpTime) {
        self.last = last;
        self.marks.clear();
    }

    /// How long a write that comes now waits before it is done.
    pub(super) fn pause(&mut self, now: Now) -> Duration {
        let step = self.step(now);
        self.figures.step = step;
        let wrote = self.total - std::mem::replace(&mut self.counted, self.total);
        if step.is_zero() {
            self.next = now.monotonic;
            if let Some(since) = self.slowed_since.take() {
                self.figures.slowed += now.monotonic.since(since);
            }
            return Duration::ZERO;
        }
        if self.slowed_since.is_none() {
            self.slowed_since = Some(now.monotonic);
            self.figures.slowed_count += 1;
        }
        let steps = u32::try_from(1 + wrote / PIECE).unwrap_or(u32::MAX);
        let turn = self.next.max(now.monotonic);
        self.next = turn + step.saturating_mul(steps).min(LONGEST_PAUSE);
        let pause = turn.since(now.monotonic).min(LONGEST_PAUSE);
        self.figures.paused += pause;
        self.figures.paused_writes += u64::from(!pause.is_zero());
        pause
    }

    /// What lies between two writes.
    fn step(&self, now: Now) -> Duration {
        if !self.enabled || !self.can_commit {
            return Duration::ZERO;
        }
        let pressure = self.pressure(now);
        if pressure <= EASE {
            return Duration::ZERO;
        }
        let share = ((pressure - EASE) / (1.0 - EASE)).min(1.0);
        let range = LONGEST_STEP.as_secs_f64() / SHORTEST_STEP.as_secs_f64();
        SHORTEST_STEP.mul_f64(range.powf(share))
    }

    /// How much of a limit is used, by the one that is used most.
    fn pressure(&self, now: Now) -> f64 {
        let bytes = self.uncommitted() as f64 / self.limit.max(1) as f64;
        bytes.max(self.lag(now).as_secs_f64() / TARGET_LAG.as_secs_f64())
    }

    fn uncommitted(&self) -> u64 {
        self.marks.front().map_or(0, |mark| self.total - mark.before)
    }

    /// The age of the oldest entry that no majority has.
    fn lag(&self, now: Now) -> Duration {
        let Some(oldest) = self.marks.front() else { return Duration::ZERO };
        let millis = now.wall.as_millis() - oldest.first.wall_time.as_millis();
        Duration::from_millis(u64::try_from(millis).unwrap_or(0))
    }

    /// `flowControl` of `serverStatus`.
    pub(super) fn statistics(&self, now: Now) -> Document {
        let Figures { step, paused, paused_writes, slowed, slowed_count } = self.figures;
        let slowing = self.slowed_since.map(|since| now.monotonic.since(since));
        let rate = if step.is_zero() { f64::MAX } else { 1.0 / step.as_secs_f64() };
        doc! {
            "enabled": self.enabled,
            // Writes a second; MongoDB, too, shows a very large number where nothing is slowed.
            "targetRateLimit": (rate as i64).min(1_000_000_000),
            "timeAcquiringMicros": paused.as_micros() as i64,
            "pausedWrites": paused_writes as i64,
            "isLagged": slowing.is_some(),
            "isLaggedCount": slowed_count as i64,
            "isLaggedTimeMicros": (slowed + slowing.unwrap_or_default()).as_micros() as i64,
            "uncommittedBytes": self.uncommitted() as i64,
            "uncommittedBytesLimit": i64::try_from(self.limit).unwrap_or(i64::MAX),
            "uncommittedMillis": self.lag(now).as_millis() as i64,
        }
    }
}

#[cfg(test)]
mod tests {
    use quorate_protocol::{Timestamp, WallTime};

    use super::*;

    const LIMIT: u64 = 1024 * 1024;

    fn at(millis: u64) -> Now {
        Now { monotonic: MonotonicTime::from_millis(millis), wall: WallTime(millis as i64) }
    }

    fn entry(number: u32, millis: u64) -> OpTimeAndWallTime {
        let op_time = OpTime::new(1, Timestamp { seconds: 1, increment: number });
        OpTimeAndWallTime { op_time, wall_time: WallTime(millis as i64) }
    }

    fn wrote(flow: &mut FlowControl, number: u32, millis: u64, bytes: u64) {
        let entry = entry(number, millis);
        flow.append(entry, entry.op_time, bytes);
    }

    fn leading() -> FlowControl {
        FlowControl { can_commit: true, limit: LIMIT, ..FlowControl::default() }
    }

    #[test]
    fn writers_are_slowed_before_the_oplog_is_full_of_what_no_majority_has() {
        let mut flow = leading();
        for number in 1..=7 {
            assert_eq!(flow.pause(at(0)), Duration::ZERO, "at {number} of 16");
            wrote(&mut flow, number, 0, LIMIT / 16);
        }
        let mut rates = Vec::new();
        for number in 8..=16 {
            wrote(&mut flow, number, 0, LIMIT / 16);
            flow.pause(at(0));
            rates.push(flow.statistics(at(0)).get_i64("targetRateLimit").unwrap());
        }
        assert!(rates.windows(2).all(|pair| pair[0] > pair[1]), "{rates:?}");
        assert_eq!(*rates.last().unwrap(), 100);
        // Each write gets a later turn than the one before it, but none waits for ever.
        let pauses: Vec<_> = (0..400).map(|_| flow.pause(at(0))).collect();
        assert!(pauses.windows(2).all(|pair| pair[0] <= pair[1]));
        assert_eq!(pauses.last(), Some(&LONGEST_PAUSE));
        // A majority has caught up.
        flow.decide(entry(16, 0).op_time, true);
        assert_eq!(flow.pause(at(0)), Duration::ZERO);
        let told = flow.statistics(at(0));
        assert_eq!(told.get_i64("uncommittedBytes").unwrap(), 0);
        assert!(!told.get_bool("isLagged").unwrap());
        assert_eq!(told.get_i64("isLaggedCount").unwrap(), 1);
    }

    #[test]
    fn a_large_write_takes_as_many_turns_as_it_wrote_pieces() {
        let mut flow = leading();
        wrote(&mut flow, 1, 0, LIMIT);
        flow.pause(at(0));
        let before = flow.next;
        wrote(&mut flow, 2, 0, 10 * PIECE);
        flow.pause(at(0));
        assert_eq!(flow.next.since(before), LONGEST_STEP * 11);
    }

    #[test]
    fn writers_are_slowed_by_the_age_of_the_oldest_entry_not_by_idle_time() {
        let mut flow = leading();
        wrote(&mut flow, 1, 0, 100);
        flow.decide(entry(1, 0).op_time, true);
        // A write after a long silence is not behind.
        wrote(&mut flow, 2, 60_000, 100);
        assert_eq!(flow.pause(at(60_001)), Duration::ZERO);
        flow.pause(at(64_999));
        assert_eq!(flow.pause(at(64_999)), Duration::ZERO);
        flow.pause(at(66_000));
        assert!(flow.pause(at(66_000)) > Duration::ZERO);
    }

    #[test]
    fn nothing_is_slowed_where_no_majority_can_be_reached() {
        let mut flow = leading();
        wrote(&mut flow, 1, 0, 2 * LIMIT);
        flow.decide(OpTime::NULL, false);
        flow.pause(at(20_000));
        assert_eq!(flow.pause(at(20_000)), Duration::ZERO);
        flow.decide(OpTime::NULL, true);
        flow.pause(at(20_000));
        assert_eq!(flow.pause(at(20_000)), LONGEST_STEP);
        flow.set_enabled(false);
        assert_eq!(flow.pause(at(20_000)), Duration::ZERO);
    }

    #[test]
    fn marks_are_bounded_and_still_count_every_byte() {
        let mut flow = leading();
        for number in 1..=10 * MAX_MARKS as u32 {
            wrote(&mut flow, number, 0, MARK_BYTES);
        }
        assert!(flow.marks.len() <= MAX_MARKS);
        assert_eq!(flow.uncommitted(), 10 * MAX_MARKS as u64 * MARK_BYTES);
        // What remains is told with at most one coarse stretch too much.
        flow.decide(entry(5 * MAX_MARKS as u32, 0).op_time, true);
        let left = 5 * MAX_MARKS as u64 * MARK_BYTES;
        assert!((left..=left + 32 * MARK_BYTES).contains(&flow.uncommitted()));
        flow.cut(entry(3, 0).op_time);
        assert_eq!(flow.uncommitted(), 0);
    }
}
