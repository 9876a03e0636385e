//! The newest entries of the oplog, in memory.
//!
//! A member that follows closely wants what was written a moment ago. Reading that from the store
//! would cost a snapshot and a search for every few entries and every follower. Owns nothing that is
//! not in the store too.

use std::collections::VecDeque;

use bson::RawDocumentBuf;
use quorate_protocol::{OpTime, OpTimeAndWallTime};
use quorate_storage::Bytes;

use super::oplog::OplogEntries;

/// Bytes of entries that are kept.
const MAX_RECENT_BYTES: usize = 1024 * 1024;

/// Entries that are kept.
const MAX_RECENT_ENTRIES: usize = 8192;

#[derive(Default)]
pub(super) struct Recent {
    entries: VecDeque<(OpTimeAndWallTime, Bytes)>,
    bytes: usize,
}

impl Recent {
    /// Entries were appended to the log.
    pub(super) fn extend(&mut self, entries: Vec<(OpTimeAndWallTime, Bytes)>) {
        for (position, entry) in entries {
            self.bytes += entry.len();
            self.entries.push_back((position, entry));
        }
        while self.bytes > MAX_RECENT_BYTES || self.entries.len() > MAX_RECENT_ENTRIES {
            let Some((_, gone)) = self.entries.pop_front() else { return };
            self.bytes -= gone.len();
        }
    }

    /// The log was cut or replaced.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// What follows this entry; none if the entry is not kept here.
    pub(super) fn after(
        &self,
        previous: OpTime,
        most: usize,
        most_bytes: usize,
    ) -> Option<OplogEntries> {
        let known = |entry: &(OpTimeAndWallTime, Bytes)| entry.0.op_time;
        let start = self.entries.partition_point(|entry| known(entry) <= previous);
        let before = self.entries.get(start.checked_sub(1)?)?;
        if known(before) != previous {
            return None;
        }
        let mut found = OplogEntries::default();
        let mut bytes = 0;
        for (position, entry) in self.entries.range(start..).take(most) {
            found.entries.push(RawDocumentBuf::from_bytes(entry.to_vec()).ok()?);
            found.last = Some(*position);
            bytes += entry.len();
            if bytes >= most_bytes {
                break;
            }
        }
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;
    use quorate_protocol::{Timestamp, WallTime};

    use super::*;

    fn entry(seconds: u32, padding: usize) -> (OpTimeAndWallTime, Bytes) {
        let op_time = OpTime::new(1, Timestamp { seconds, increment: 1 });
        let entry = rawdoc! { "n": i64::from(seconds), "padding": "x".repeat(padding) };
        (OpTimeAndWallTime { op_time, wall_time: WallTime(0) }, entry.into_bytes().into())
    }

    fn at(seconds: u32) -> OpTime {
        OpTime::new(1, Timestamp { seconds, increment: 1 })
    }

    fn after(recent: &Recent, seconds: u32) -> Option<usize> {
        recent.after(at(seconds), 100, usize::MAX).map(|found| found.entries.len())
    }

    #[test]
    fn only_those_who_follow_closely_are_served() {
        let mut recent = Recent::default();
        assert_eq!(after(&recent, 1), None);
        recent.extend((1..=4).map(|seconds| entry(seconds, 10)).collect());
        assert_eq!(after(&recent, 0), None, "what came before the oldest is not known");
        assert_eq!(after(&recent, 1), Some(3));
        assert_eq!(after(&recent, 4), Some(0));
        assert_eq!(recent.after(at(1), 2, usize::MAX).unwrap().entries.len(), 2);
        assert_eq!(recent.after(at(1), 9, 1).unwrap().entries.len(), 1);
        let other_term = OpTime::new(2, Timestamp { seconds: 2, increment: 1 });
        assert!(recent.after(other_term, 9, 1).is_none(), "an entry that was never here");
        let between = OpTime::new(1, Timestamp { seconds: 2, increment: 7 });
        assert!(recent.after(between, 9, 1).is_none(), "an entry that was never here");
        recent.clear();
        assert_eq!(after(&recent, 4), None);
    }

    #[test]
    fn old_entries_make_room_for_new_ones() {
        let mut recent = Recent::default();
        for seconds in 1..=20 {
            recent.extend(vec![entry(seconds, MAX_RECENT_BYTES / 10)]);
        }
        assert!(recent.bytes <= MAX_RECENT_BYTES);
        assert_eq!(after(&recent, 1), None);
        assert_eq!(after(&recent, 19), Some(1));
    }
}
