//! Removing the keys of what was dropped, a step at a time.
//!
//! ```text
//!   row d    few keys are left        → remove them                                → none is left → the row goes
//!   row d    many keys or bytes are   → the store drops whole tables, once         → few are left, as above
//!            whose keys were dropped  → the row goes when recovery cannot bring them back
//! ```
//!
//! The row that calls keys garbage also keeps their ident from being used again. A store that drops tables leaves
//! nothing in its journal that says so, and recovery may replay what put the keys there: so the row outlives the part of
//! the journal that is replayed. What is found at a start may have been dropped before it.

use std::ops::Bound;

use quorate_storage::{Batch, Direction, KeyRange, ReplayPoint};

use super::Writer;
use crate::catalog::Ident;
use crate::error::Result;

/// Keys that are removed in one step. With no more nothing else is tried.
const PURGE_STEP: usize = 1000;

/// Bytes of documents that one step looks at. What has more is worth dropping tables for, however few its keys are.
const PURGE_BYTES: usize = 1024 * 1024;

/// An ident whose tables were dropped.
#[derive(Clone, Copy, Debug)]
pub(super) struct Discarded {
    /// When the last of them had gone.
    since: ReplayPoint,
    /// Whether no key is left.
    is_empty: bool,
}

impl Writer<'_> {
    /// What was dropped before the start may have lost tables then.
    pub(crate) fn note_dropped_before(&mut self) {
        let since = self.node.store().replay_point();
        let dropped = self
            .node
            .catalog()
            .dropped()
            .map(|ident| (ident, Discarded { since, is_empty: false }))
            .collect();
        self.state.discarded = dropped;
    }

    /// Removes some keys of what was dropped. Returns whether there is more to do.
    pub(crate) fn purge_step(&mut self) -> Result<bool> {
        let catalog = self.node.catalog();
        if catalog.first_dropped().is_none() {
            return Ok(false);
        }
        let held = self.restorable()?;
        let is_garbage = |ident: &Ident| !held.contains(ident) && !self.is_being_built(*ident);
        let garbage: Vec<Ident> = catalog.dropped().filter(is_garbage).collect();
        let Some(&ident) = garbage.iter().find(|ident| self.can_be_purged(**ident)) else {
            return Ok(false);
        };
        let keyspaces = self.node.keyspaces();
        let (mut batch, mut bytes) = (Batch::new(), 0);
        for keyspace in [keyspaces.records, keyspaces.indexes] {
            let range = KeyRange::prefix(&ident.prefix());
            let scan = self.view().snapshot.scan(keyspace, range, Direction::Forward)?;
            for pair in scan.take(PURGE_STEP - batch.len()) {
                let (key, value) = pair?;
                bytes += value.len();
                batch.remove(keyspace, key);
                if bytes >= PURGE_BYTES {
                    break;
                }
            }
        }
        let is_large = batch.len() == PURGE_STEP || bytes >= PURGE_BYTES;
        if batch.is_empty() {
            self.forget_dropped(ident)?;
        } else if is_large && !self.state.discarded.contains_key(&ident) {
            self.discard(ident, &garbage)?;
        } else {
            self.commit(batch)?;
        }
        Ok(true)
    }

    /// Whether there is something to do about the keys of an ident.
    fn can_be_purged(&self, ident: Ident) -> bool {
        match self.state.discarded.get(&ident) {
            Some(discarded) if discarded.is_empty => self.node.store().is_settled(discarded.since),
            _ => true,
        }
    }

    /// No key of an ident is left. Its row goes, unless recovery may bring keys back.
    fn forget_dropped(&mut self, ident: Ident) -> Result<()> {
        if let Some(discarded) = self.state.discarded.get_mut(&ident) {
            discarded.is_empty = true;
            if !self.node.store().is_settled(discarded.since) {
                return Ok(());
            }
        }
        let keyspaces = self.node.keyspaces();
        let mut batch = Batch::new();
        if keyspaces.history == Some(ident) {
            batch.cut_log(keyspaces.oplog, 0);
        }
        let mut catalog = (*self.node.catalog()).clone();
        catalog.forget(ident, keyspaces.catalog, &mut batch);
        self.state.greatest_keys.remove(&ident);
        self.state.discarded.remove(&ident);
        let sequence = self.node.commit_catalog(batch, catalog)?;
        self.after_commit(sequence);
        Ok(())
    }

    /// Drops the tables of an ident and of those that follow it without a gap: a collection and its indexes were given
    /// theirs together, and the entries of the indexes lie in the same tables.
    fn discard(&mut self, ident: Ident, garbage: &[Ident]) -> Result<()> {
        let is_next = |(place, found): &(u64, &Ident)| {
            found.0 == ident.0 + place && !self.state.discarded.contains_key(found)
        };
        let others = garbage.iter().filter(|found| **found >= ident);
        let group: Vec<Ident> =
            (0..).zip(others).take_while(is_next).map(|(_, found)| *found).collect();
        let Some(last) = group.last() else { return Ok(()) };
        let range = KeyRange {
            start: Bound::Included(ident.prefix().to_vec()),
            end: KeyRange::prefix(&last.prefix()).end,
        };
        let node = self.node;
        self.aside(|| {
            let keyspaces = node.keyspaces();
            [keyspaces.records, keyspaces.indexes]
                .into_iter()
                .try_for_each(|keyspace| node.discard(keyspace, &range))
        })?;
        let since = self.node.store().replay_point();
        for ident in group {
            self.state.discarded.insert(ident, Discarded { since, is_empty: false });
        }
        Ok(())
    }
}
