//! Capped collections: they hold the newest documents, in the order in which they came.

use std::sync::Arc;

use bson::RawDocumentBuf;
use quorate_storage::key::RecordId;
use quorate_storage::{Batch, Direction};

use super::{Totals, Writer, keys_of};
use crate::catalog::Collection;
use crate::error::Result;
use crate::records::parse_record;

/// Documents that may go with one batch.
const MAX_TRIMMED: u64 = 1_000;

impl Writer<'_> {
    /// Commits what adds documents, and with it that others go if the collection is capped.
    pub(super) fn commit_and_trim(
        &mut self,
        mut batch: Batch,
        collection: &Collection,
        mut added: Totals,
    ) -> Result<()> {
        // The primary that wrote the entries of others has trimmed, and logged that too.
        let mut trims = !self.is_replaying() && collection.capped.is_some();
        loop {
            let removed = match trims {
                true => self.trim_capped(&mut batch, collection, added)?,
                false => Totals::default(),
            };
            self.commit(std::mem::take(&mut batch))?;
            let growth = added.growth().without(removed.growth());
            self.grow_totals(collection.ident, growth.documents, growth.bytes);
            added = Totals::default();
            trims = removed.documents == MAX_TRIMMED;
            if !trims {
                return Ok(());
            }
        }
    }

    /// Removes the oldest documents of a capped collection, in the batch that takes it over its limits. Returns what
    /// goes.
    fn trim_capped(
        &mut self,
        batch: &mut Batch,
        collection: &Collection,
        added: Totals,
    ) -> Result<Totals> {
        let mut removed = Totals::default();
        let Some(capped) = collection.capped else { return Ok(removed) };
        let held = self.totals(collection)?;
        let view = self.newest_view();
        for pair in view.scan_records(collection.ident, Direction::Forward)? {
            let bytes = held.bytes + added.bytes - removed.bytes;
            let documents = held.documents + added.documents - removed.documents;
            let most = capped.documents.unwrap_or(u64::MAX);
            let is_within = bytes <= capped.bytes && documents <= most;
            if is_within || removed.documents == MAX_TRIMMED {
                break;
            }
            let (key, value) = pair?;
            let Some(record) = RecordId::from_suffix(&key) else { break };
            let document = parse_record(&value)?;
            let keys = keys_of(collection, &document)?;
            self.stage_removal(batch, collection, record, &document, keys)?;
            removed.documents += 1;
            removed.bytes += document.as_bytes().len() as u64;
        }
        Ok(removed)
    }

    /// Puts a document back into the place that it had.
    pub(crate) fn restore_at(
        &mut self,
        collection: &mut Arc<Collection>,
        record: RecordId,
        document: RawDocumentBuf,
    ) -> Result<()> {
        let next = self.next_record(collection)?;
        let ident = collection.ident;
        self.state.collections.entry(ident).or_default().next_record = Some(record);
        let restored = self.insert(collection, vec![document], true, true);
        let state = self.state.collections.entry(ident).or_default();
        state.next_record = Some(next.max(RecordId(record.0 + 1)));
        restored?.into_iter().collect()
    }
}
