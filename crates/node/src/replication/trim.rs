//! What is written in order and removed from the oldest on: entries of the log, and with them undo rows and images.
//!
//! The store keeps a mark for each removed row until it merges its trees. A search for the oldest row passes over all
//! of these marks, and it is made under the write lock. So a member remembers how far it has removed rows, and searches
//! from there.

use std::collections::BTreeMap;
use std::ops::Bound;

use quorate_change_events::TransactionPart;
use quorate_protocol::Lock;
use quorate_storage::key::RecordId;
use quorate_storage::{Batch, Bytes, Direction, KeyRange};

use super::Replication;
use crate::error::Result;
use crate::records::parse_record;
use crate::writer::{Growth, Totals, Writer, oplog_namespace};

/// Entries removed under one hold of the write lock: the store keeps no mark of each of them.
const ENTRY_STEP: usize = 1_000;

/// Rows removed under one hold of the write lock, so that writers wait for a millisecond and not for ten.
const TRIM_STEP: usize = 1_000;

/// The newest row of each kind that was removed, by the first byte of its key.
#[derive(Debug, Default)]
pub(crate) struct Trimmed(Lock<BTreeMap<u8, Bytes>>);

impl Trimmed {
    /// The rows of a kind that may be there.
    pub(crate) fn rest(&self, kind: u8) -> KeyRange {
        let all = KeyRange::prefix(&[kind]);
        match self.0.lock().get(&kind) {
            Some(removed) => KeyRange { start: Bound::Excluded(removed.to_vec()), ..all },
            None => all,
        }
    }

    fn note(&self, kind: u8, removed: Bytes) {
        self.0.lock().insert(kind, removed);
    }

    /// Another log begins, with other rows.
    pub(super) fn forget(&self) {
        self.0.lock().clear();
    }
}

impl Writer<'_> {
    /// Removes some of the oldest entries of the history if it is over its limit. Returns whether
    /// there is more to do.
    pub(crate) fn trim_oplog(&mut self) -> Result<bool> {
        let Some(oplog) = self.collection(&oplog_namespace()) else { return Ok(false) };
        let Some(capped) = oplog.capped else { return Ok(false) };
        if let Some(replication) = self.node().replication() {
            replication.set_oplog_size(capped.bytes);
        }
        let totals = self.totals(&oplog)?;
        if totals.bytes <= capped.bytes {
            return Ok(false);
        }
        let kept_from = self.oldest_needed_entry()?;
        let retention =
            self.node().replication().map(Replication::min_retention).unwrap_or_default();
        let now = (self.now().wall.as_millis() / 1000).unsigned_abs();
        let retained_from = now.saturating_sub(retention.as_secs());
        let mut batch = Batch::new();
        let (mut excess, mut removed) = (totals.bytes - capped.bytes, Totals::default());
        let mut trimmed_below = None;
        for pair in self.view().scan_records(oplog.ident, Direction::Forward)?.take(ENTRY_STEP) {
            let (key, value) = pair?;
            let record = RecordId::from_suffix(&key).map_or(u64::MAX, |record| record.0);
            let too_young = !retention.is_zero() && record >> 32 >= retained_from;
            if too_young || kept_from.is_some_and(|needed| record >= needed) {
                excess = 0;
                break;
            }
            trimmed_below = Some(record + 1);
            removed.documents += 1;
            removed.bytes += value.len() as u64;
            excess = excess.saturating_sub(value.len() as u64);
            if excess == 0 {
                break;
            }
        }
        if let Some(below) = trimmed_below {
            batch.trim_log(self.node().keyspaces().oplog, below);
        }
        self.commit(batch)?;
        self.adjust_totals(oplog.ident, Growth::default().without(removed.growth()));
        Ok(excess > 0)
    }

    /// The oldest entry that this member may need itself; none outside of a set. What is not committed may have to be
    /// undone, which takes its entry. If the commit point stands within a transaction, that takes all of its entries, and
    /// so does applying the last one of them.
    fn oldest_needed_entry(&self) -> Result<Option<u64>> {
        let Some(replication) = self.node().replication() else { return Ok(None) };
        let committed = replication.commit_point().op_time.timestamp.as_u64();
        let until = (Bound::Unbounded, Bound::Included(RecordId(committed)));
        let Some(pair) = self.view().scan_oplog(until, Direction::Backward)?.next() else {
            return Ok(Some(committed));
        };
        let newest = parse_record(&pair?.1)?;
        if TransactionPart::of_raw(&newest) != Some(TransactionPart::Partial) {
            return Ok(Some(committed));
        }
        Ok(Some(self.first_of_chain(&newest)?.min(committed)))
    }

    /// Removes rows of a kind whose keys are below `limit`, the oldest first. Returns whether there is more to do.
    pub(crate) fn trim_rows(&mut self, kind: u8, limit: &[u8]) -> Result<bool> {
        let Some(replication) = self.node().replication() else { return Ok(false) };
        let range = replication.trimmed.rest(kind);
        let scan = self.view().snapshot.scan(replication.keyspace, range, Direction::Forward)?;
        let (mut batch, mut newest) = (Batch::new(), None);
        for pair in scan.take(TRIM_STEP) {
            let (key, _) = pair?;
            if key[..] >= *limit {
                break;
            }
            newest = Some(key.clone());
            batch.remove(replication.keyspace, key);
        }
        let Some(newest) = newest else { return Ok(false) };
        let more = batch.len() == TRIM_STEP;
        self.commit(batch)?;
        replication.trimmed.note(kind, newest);
        Ok(more)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use quorate_protocol::{MonotonicTime, WallTime};
    use quorate_storage::ModelStore;

    use super::*;
    use crate::context::Now;
    use crate::node::{Node, NodeOptions};

    const KIND: u8 = b'u';

    fn row(number: usize) -> Vec<u8> {
        [&[KIND][..], &(number as u64).to_be_bytes()].concat()
    }

    /// Rows are removed in steps, and each search begins behind what the one before it has removed.
    #[test]
    fn removed_rows_are_not_searched_again() {
        let now = Now { wall: WallTime(1), monotonic: MonotonicTime::ZERO };
        let options = NodeOptions { oplog_bytes: Some(1 << 20), ..NodeOptions::default() };
        let node = Node::open(Arc::new(ModelStore::new()), options, now).unwrap();
        node.join_replica_set(now).unwrap();
        let replication = node.replication().unwrap();
        let mut writer = node.write(now);
        let mut batch = Batch::new();
        (0..2 * TRIM_STEP).for_each(|n| batch.insert(replication.keyspace, row(n), &[0; 1]));
        writer.commit(batch).unwrap();

        let limit = row(TRIM_STEP + 3);
        assert!(writer.trim_rows(KIND, &limit).unwrap(), "there is more");
        let behind = |number| Bound::Excluded(row(number));
        assert_eq!(replication.trimmed.rest(KIND).start, behind(TRIM_STEP - 1));
        assert!(!writer.trim_rows(KIND, &limit).unwrap());
        assert_eq!(replication.trimmed.rest(KIND).start, behind(TRIM_STEP + 2));
        assert!(!writer.trim_rows(KIND, &limit).unwrap());
        assert_eq!(replication.trimmed.rest(KIND).start, behind(TRIM_STEP + 2));
        let left = writer.view().snapshot.scan(
            replication.keyspace,
            KeyRange::prefix(&[KIND]),
            Direction::Forward,
        );
        assert_eq!(left.unwrap().count(), TRIM_STEP - 3);

        drop(writer);
        node.wipe(now).unwrap();
        assert_eq!(replication.trimmed.rest(KIND), KeyRange::prefix(&[KIND]), "another log");
    }
}
