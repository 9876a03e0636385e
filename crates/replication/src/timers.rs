//! The deadlines of a member, in one table: `next_deadline` has one answer.

use std::collections::BTreeMap;

use quorate_protocol::{MemberId, MonotonicTime};

/// What is to happen at a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// Send the next heartbeat to a member, or give up the one under way.
    Heartbeat(MemberId),
    /// Stand for election unless a heartbeat or a batch of a primary arrives.
    Election,
    /// Decide the dry run or the vote with the answers that are there.
    Campaign,
    /// Step down unless a majority answers.
    Liveness,
    /// Replace a primary of lower priority.
    PriorityTakeover,
    /// Replace a primary that does not catch up.
    CatchUpTakeover,
    /// Stop catching up.
    CatchUp,
    /// Decide an attempted step-down.
    StepDown,
    /// May stand again.
    Unfreeze,
    /// Look for a sync source.
    SyncSource,
    /// The source was silent for too long.
    FetchSilence,
    /// Report progress even without any.
    PositionReport,
    /// Give up the report under way.
    PositionReportSilence,
    /// Write a no-op if nothing else was written.
    PeriodicNoop,
    /// The nearest `wtimeout`.
    Waiters,
    /// Decide the poll of a reconfiguration.
    ReconfigPoll,
    /// The nearest end of a wait for a configuration to spread.
    ConfigSpread,
    /// Try the initial sync again.
    InitialSync,
}

/// The deadlines that are set.
#[derive(Clone, Debug, Default)]
pub(crate) struct TimerTable(BTreeMap<Timer, MonotonicTime>);

impl TimerTable {
    pub(crate) fn set(&mut self, timer: Timer, at: MonotonicTime) {
        self.0.insert(timer, at);
    }

    /// Sets it, unless it is set to something earlier.
    pub(crate) fn set_no_later(&mut self, timer: Timer, at: MonotonicTime) {
        let entry = self.0.entry(timer).or_insert(at);
        *entry = (*entry).min(at);
    }

    /// Puts it off, if it is set to something earlier.
    pub(crate) fn set_no_earlier(&mut self, timer: Timer, at: MonotonicTime) {
        if let Some(due) = self.0.get_mut(&timer) {
            *due = (*due).max(at);
        }
    }

    pub(crate) fn cancel(&mut self, timer: Timer) {
        self.0.remove(&timer);
    }

    pub(crate) fn is_set(&self, timer: Timer) -> bool {
        self.0.contains_key(&timer)
    }

    pub(crate) fn next(&self) -> Option<MonotonicTime> {
        self.0.values().min().copied()
    }

    /// Takes out the earliest one that is due.
    pub(crate) fn pop_due(&mut self, now: MonotonicTime) -> Option<Timer> {
        let (timer, at) =
            self.0.iter().map(|(timer, at)| (*timer, *at)).min_by_key(|(t, at)| (*at, *t))?;
        (at <= now).then(|| {
            self.0.remove(&timer);
            timer
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn due_timers_come_out_in_order_of_time() {
        let at = MonotonicTime::from_millis;
        let mut table = TimerTable::default();
        table.set(Timer::Election, at(30));
        table.set(Timer::Liveness, at(10));
        table.set_no_later(Timer::Election, at(20));
        table.set_no_later(Timer::Election, at(25));
        assert_eq!(table.next(), Some(at(10)));
        assert_eq!(table.pop_due(at(9)), None);
        assert_eq!(table.pop_due(at(50)), Some(Timer::Liveness));
        assert_eq!(table.next(), Some(at(20)));
        assert_eq!(table.pop_due(at(50)), Some(Timer::Election));
        assert_eq!(table.pop_due(at(50)), None);
    }
}
