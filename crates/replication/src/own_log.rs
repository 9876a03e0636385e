//! How far this member's own log is, and how much of it is committed.
//!
//! Owns the positions and what must hold among them: nothing is durable or applied that is not in the log, and nothing
//! that is committed is rolled back. What follows from a position that moves is said in the modules of the roles.
//! docs/replication-rules.md#commit-point.

use quorate_protocol::{OpTime, OpTimeAndWallTime};

/// The positions of this member. The default is an empty log.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OwnLog {
    written: OpTimeAndWallTime,
    durable: OpTimeAndWallTime,
    applied: OpTimeAndWallTime,
    /// The data is consistent once everything up to here is applied.
    min_valid: OpTime,
    commit_point: OpTimeAndWallTime,
}

impl OwnLog {
    /// What a member found on its disk: everything up to the last entry is durable and applied.
    pub(crate) fn recovered(
        last: OpTimeAndWallTime,
        commit_point: OpTimeAndWallTime,
        min_valid: OpTime,
    ) -> Self {
        let commit_point = commit_point.min(last);
        Self { written: last, durable: last, applied: last, min_valid, commit_point }
    }

    /// The last entry.
    pub(crate) fn written(&self) -> OpTimeAndWallTime {
        self.written
    }

    /// The last entry that is safe on disk.
    pub(crate) fn durable(&self) -> OpTimeAndWallTime {
        self.durable
    }

    /// The last entry that reads show.
    pub(crate) fn applied(&self) -> OpTimeAndWallTime {
        self.applied
    }

    /// The last entry that this member knows to be committed. An arbiter, also one that was removed, knows one and has
    /// no log.
    pub(crate) fn commit_point(&self) -> OpTimeAndWallTime {
        self.commit_point
    }

    /// Where the data begins to be consistent.
    pub(crate) fn min_valid(&self) -> OpTime {
        self.min_valid
    }

    /// Whether there is no entry.
    pub(crate) fn is_empty(&self) -> bool {
        self.written.op_time.is_null()
    }

    /// Whether the data is that of one moment.
    pub(crate) fn is_consistent(&self) -> bool {
        self.applied.op_time >= self.min_valid
    }

    /// The log ends here. Says whether that is news.
    pub(crate) fn note_written(&mut self, last: OpTimeAndWallTime) -> bool {
        moves(&mut self.written, last)
    }

    /// The log is safe up to here. What is not (or no longer) in the log is not durable in it.
    pub(crate) fn note_durable(&mut self, last: OpTimeAndWallTime) -> bool {
        moves(&mut self.durable, last.min(self.written))
    }

    /// Reads show the log up to here.
    pub(crate) fn note_applied(&mut self, last: OpTimeAndWallTime) -> bool {
        moves(&mut self.applied, last.min(self.written))
    }

    /// The set has committed the log up to here.
    pub(crate) fn note_committed(&mut self, commit_point: OpTimeAndWallTime) {
        self.commit_point = commit_point;
    }

    /// The data is a copy that ends here.
    pub(crate) fn note_copied(&mut self, last: OpTimeAndWallTime) {
        let commit_point = self.commit_point;
        *self = Self {
            written: last,
            durable: last,
            applied: last,
            min_valid: last.op_time,
            commit_point,
        };
    }

    /// The entries behind this one were undone.
    pub(crate) fn note_rolled_back(&mut self, last: OpTimeAndWallTime) {
        assert!(
            last.op_time >= self.commit_point.op_time,
            "a rollback never reaches below the commit point"
        );
        self.written = last;
        self.durable = self.durable.min(last);
        self.applied = self.applied.min(last);
    }

    /// The entries no longer count as a replica. What is known to be committed stays known.
    pub(crate) fn discard(&mut self) {
        *self = Self { commit_point: self.commit_point, ..Self::default() };
    }

    /// What must hold after every input.
    pub(crate) fn check(&self) {
        assert!(self.durable <= self.written, "durable entries are in the log");
        assert!(self.applied <= self.written, "applied entries are in the log");
        assert!(
            self.commit_point <= self.written || self.is_empty(),
            "what is committed here is in the log"
        );
    }
}

fn moves(position: &mut OpTimeAndWallTime, to: OpTimeAndWallTime) -> bool {
    let moved = to > *position;
    *position = to.max(*position);
    moved
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::stamp;

    fn at(seconds: u32) -> OpTimeAndWallTime {
        stamp(1, seconds)
    }

    #[test]
    fn nothing_is_durable_or_applied_that_is_not_in_the_log() {
        let mut log = OwnLog::recovered(at(5), at(9), OpTime::NULL);
        assert_eq!(log.commit_point(), at(5));
        assert!(!log.note_durable(at(7)) && !log.note_applied(at(7)));
        assert!(log.note_written(at(6)) && log.note_durable(at(7)) && log.note_applied(at(7)));
        assert_eq!((log.durable(), log.applied()), (at(6), at(6)));
        assert!(!log.note_written(at(4)), "an older end is no news");
        log.check();
    }

    #[test]
    fn a_rollback_takes_what_was_durable_and_applied_along() {
        let mut log = OwnLog::recovered(at(5), at(3), OpTime::NULL);
        log.note_rolled_back(at(3));
        assert_eq!((log.written(), log.durable(), log.applied()), (at(3), at(3), at(3)));
        log.discard();
        assert!(log.is_empty());
        assert_eq!(log.commit_point(), at(3));
        log.check();
    }

    #[test]
    #[should_panic(expected = "below the commit point")]
    fn what_is_committed_is_not_rolled_back() {
        OwnLog::recovered(at(5), at(4), OpTime::NULL).note_rolled_back(at(3));
    }
}
