//! Committing: everything a transaction did becomes one batch of the store.

use std::sync::Arc;

use quorate_protocol::OpTimeAndWallTime;
use quorate_storage::Batch;
use quorate_transactions::Refusal;

use super::stage::Stage;
use super::{Body, LastCommitted, refused};
use crate::catalog::Catalog;
use crate::error::Result;
use crate::writer::Writer;

impl Writer<'_> {
    /// Commits a transaction. Returns the place of its last entry; none if it changed nothing.
    pub(super) fn commit_transaction(&mut self, body: &Body) -> Result<Option<OpTimeAndWallTime>> {
        let catalog = Arc::clone(&body.stage.lock().catalog);
        let stage = std::mem::replace(&mut *body.stage.lock(), Stage::new(catalog));
        if stage.operations.is_empty() {
            return Ok(None);
        }
        self.term_of_entry()?;
        self.check_descriptions(&stage)?;
        let mut batch = stage.overlay.to_batch();
        let changed = self.created_by(&stage, &mut batch)?;
        let (session, number) = (&body.session, body.number);
        self.node.fail_points().on_transactional_write(session)?;
        let position = self.log_transaction(&mut batch, session, number, &stage)?;
        self.commit_staged(batch, changed, &stage)?;
        let bytes = stage.operations.iter().map(|(operation, _)| operation.as_bytes().len());
        self.state.transactions.last_committed = Some(LastCommitted {
            operations: stage.operations.len(),
            bytes: bytes.sum(),
            write_concern: None,
        });
        Ok(Some(position))
    }

    /// Commits the batch of a stage, with the catalog that goes with it. Without a catalog it is deferred if changes
    /// are.
    pub(super) fn commit_staged(
        &mut self,
        batch: Batch,
        catalog: Option<Catalog>,
        stage: &Stage,
    ) -> Result<()> {
        match catalog {
            Some(catalog) => {
                self.flush()?;
                let sequence = self.node.commit_catalog(batch, catalog)?;
                self.after_commit(sequence);
            }
            None => self.commit_or_defer(batch)?,
        }
        for (&ident, &(documents, bytes)) in &stage.growth {
            self.grow_totals(ident, documents, bytes);
        }
        for &(ident, record) in &stage.records {
            self.note_change(ident, record);
        }
        Ok(())
    }

    /// The keys of a stage fit the indexes that its collections had, and its documents their options; if those have
    /// changed, it cannot be committed.
    fn check_descriptions(&self, stage: &Stage) -> Result<()> {
        let conflict = || refused(Refusal::WriteConflict);
        let catalog = self.node.catalog();
        for namespace in &stage.names {
            if stage.created.contains(namespace) {
                continue;
            }
            let (now, then) = (catalog.get(namespace), stage.catalog.get(namespace));
            let (Some(now), Some(then)) = (now, then) else { return Err(conflict()) };
            let (has, had) = (now.indexes.iter(), then.indexes.iter());
            let same_indexes = has.map(|index| index.ident).eq(had.map(|index| index.ident));
            if now.uuid != then.uuid || now.options != then.options || !same_indexes {
                return Err(conflict());
            }
        }
        Ok(())
    }

    /// The catalog with the collections that a stage creates, if it creates any.
    fn created_by(&self, stage: &Stage, batch: &mut Batch) -> Result<Option<Catalog>> {
        if stage.created.is_empty() {
            return Ok(None);
        }
        let mut catalog = (*self.node.catalog()).clone();
        for namespace in &stage.created {
            if catalog.get(namespace).is_some() {
                return Err(refused(Refusal::WriteConflict));
            }
            if let Some(created) = stage.catalog.get(namespace) {
                catalog.put((**created).clone(), self.node.keyspaces().catalog, batch)?;
            }
        }
        Ok(Some(catalog))
    }
}
