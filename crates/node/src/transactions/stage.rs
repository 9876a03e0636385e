//! A writer over a stage: its changes go to an overlay instead of the store.
//!
//! The same writer checks documents, keeps indexes and finds duplicate keys; it only commits elsewhere.
//! A transaction's stage lives as long as the transaction and claims the keys it changes. A stage
//! without a transaction serves applying and undoing: it lives under one hold of the write lock, and
//! what it gathers becomes one batch.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bson::raw::cstr;
use bson::{RawDocument, RawDocumentBuf};
use quorate_storage::key::RecordId;
use quorate_storage::{Batch, Snapshot};
use quorate_transactions::TransactionId;

use quorate_protocol::Lock;

use super::chain::Undoable;
use super::overlay::Overlay;
use super::{Body, refused};
use crate::catalog::{Catalog, Collection, Ident};
use crate::change_stream::keeps_images;
use crate::context::Now;
use crate::error::Result;
use crate::namespace::Namespace;
use crate::node::Node;
use crate::records::View;
use crate::writer::{Entry, Operation, Writer, with_room_for};

/// What an operation costs besides its bytes.
const OPERATION_OVERHEAD: usize = 128;

/// Identifiers that one change of the catalog may need.
const IDENTS_AT_ONCE: u64 = 4;

/// Changes that are not in the store.
pub(crate) struct Stage {
    pub(super) overlay: Arc<Overlay>,
    pub(super) catalog: Arc<Catalog>,
    /// The collections that it creates.
    pub(super) created: BTreeSet<Namespace>,
    /// The operations, as entries of the log without their places, and how to take each back.
    pub(super) operations: Vec<Undoable>,
    /// By how many documents and bytes collections grow.
    pub(super) growth: BTreeMap<Ident, (i64, i64)>,
    /// The records that change, for index builds of their collections.
    pub(super) records: Vec<(Ident, RecordId)>,
    /// Whether the catalog is another one than before.
    pub(super) changes_catalog: bool,
    /// The collections whose documents it changes.
    pub(super) names: BTreeSet<Namespace>,
    /// Whether one of them keeps documents as they were before a change.
    pub(super) keeps_images: bool,
}

impl Stage {
    pub(super) fn new(catalog: Arc<Catalog>) -> Self {
        Self {
            overlay: Arc::default(),
            catalog,
            created: BTreeSet::new(),
            operations: Vec::new(),
            growth: BTreeMap::new(),
            records: Vec::new(),
            changes_catalog: false,
            names: BTreeSet::new(),
            keeps_images: false,
        }
    }

    fn add(&mut self, collection: &Collection, operation: Undoable, changes_document: bool) {
        if changes_document && !self.names.contains(&collection.namespace) {
            self.names.insert(collection.namespace.clone());
            self.keeps_images |= keeps_images(collection);
        }
        self.operations.push(operation);
    }
}

/// Where a writer's changes go if not to the store.
#[derive(Clone)]
pub(crate) struct Staging {
    pub(super) stage: Arc<Lock<Stage>>,
    base: Arc<dyn Snapshot>,
    /// The transaction that they belong to.
    pub(super) transaction: Option<Arc<Body>>,
    /// The operation of another member's transaction that the next change is.
    replayed: Option<RawDocumentBuf>,
}

impl Staging {
    pub(crate) fn id(&self) -> Option<TransactionId> {
        self.transaction.as_ref().map(|body| body.id)
    }

    /// What the next change sees.
    pub(crate) fn view(&self, node: &Node) -> View {
        let snapshot = self.stage.lock().overlay.view(&self.base);
        node.view_of(snapshot)
    }
}

impl Node {
    /// Waits for the write lock. The changes are a transaction's, if one is given.
    pub(crate) fn write_in(&self, transaction: Option<&Arc<Body>>, now: Now) -> Writer<'_> {
        let mut writer = self.write(now);
        if let Some(body) = transaction {
            let staging = Staging {
                stage: Arc::clone(&body.stage),
                base: Arc::clone(&body.moment.view.snapshot),
                transaction: Some(Arc::clone(body)),
                replayed: None,
            };
            writer.stage_on(staging);
        }
        writer
    }
}

impl Writer<'_> {
    fn stage_on(&mut self, staging: Staging) {
        self.staging = Some(staging);
        self.forget_view();
    }

    /// From now on changes gather until [`take_staged`](Self::take_staged).
    pub(crate) fn begin_stage(&mut self) {
        let stage = Arc::new(Lock::new(Stage::new(self.node.catalog())));
        let base = self.newest_view().snapshot;
        self.stage_on(Staging { stage, base, transaction: None, replayed: None });
    }

    /// The next change is this operation of another member's transaction.
    pub(super) fn replay_operation(&mut self, operation: &RawDocument) {
        if let Some(staging) = &mut self.staging {
            staging.replayed = Some(operation.to_owned());
        }
    }

    /// Puts the operation on the stage that the change is, with how to take it back. Returns false if it is a new one.
    pub(crate) fn stage_replayed(
        &mut self,
        undo: Option<&RawDocument>,
        collection: Option<&Collection>,
    ) -> bool {
        let (Some(staging), Some(collection)) = (&mut self.staging, collection) else {
            return false;
        };
        let Some(operation) = staging.replayed.take() else { return false };
        let operation = (operation, undo.map(ToOwned::to_owned));
        staging.stage.lock().add(collection, operation, true);
        true
    }

    /// Puts the operation on the stage that was replayed, if it has changed nothing here: operations and the ways to
    /// take them back stand at the same places.
    pub(super) fn stage_unapplied(&mut self) {
        let Some(staging) = &mut self.staging else { return };
        if let Some(operation) = staging.replayed.take() {
            staging.stage.lock().operations.push((operation, None));
        }
    }

    /// What has gathered. From now on changes go to the store again.
    pub(crate) fn take_staged(&mut self) -> Option<Stage> {
        let staging = self.staging.take()?;
        self.forget_view();
        let catalog = Arc::clone(&staging.stage.lock().catalog);
        Some(std::mem::replace(&mut *staging.stage.lock(), Stage::new(catalog)))
    }

    pub(crate) fn is_staging(&self) -> bool {
        self.staging.is_some()
    }

    /// The transaction that the changes belong to.
    pub(crate) fn transaction(&self) -> Option<&Arc<Body>> {
        self.staging.as_ref()?.transaction.as_ref()
    }

    /// The newest data of the store, which a transaction does not see.
    pub(crate) fn newest_view(&self) -> View {
        match self.staging {
            Some(_) => self.node.view(),
            None => self.view().clone(),
        }
    }

    /// Puts changes on the stage.
    pub(crate) fn stage(&mut self, batch: Batch) -> Result<()> {
        let Some(staging) = &self.staging else { return Ok(()) };
        if let Some(id) = staging.id() {
            self.state.transactions.table.grow(id, batch.byte_size()).map_err(refused)?;
        }
        staging.stage.lock().overlay.apply(batch);
        self.forget_view();
        Ok(())
    }

    /// A key of a record or of a unique index is about to change. A transaction claims it; a plain
    /// write is told that it has to wait, or notes the change for open transactions: they are told with the commit.
    pub(crate) fn reserve(&mut self, key: &[u8]) -> Result<()> {
        if self.state.transactions.table.is_idle() || self.is_replaying() {
            return Ok(());
        }
        match self.staging.as_ref().map(Staging::id) {
            Some(Some(id)) => {
                if self.transaction().is_some_and(|body| body.is_of_the_past) {
                    return Err(refused(quorate_transactions::Refusal::WriteConflict));
                }
                self.state.transactions.table.claim(id, key).map_err(refused)
            }
            Some(None) => Ok(()),
            None => {
                if let Some(holder) = self.state.transactions.table.holder(key) {
                    return Err(self.blocked_by(holder));
                }
                self.reserved.push(key.to_vec());
                Ok(())
            }
        }
    }

    /// Tells open transactions which keys a plain write changes that is about to be committed.
    pub(crate) fn tell_changed(&mut self) {
        for key in std::mem::take(&mut self.reserved) {
            let ended = self.state.transactions.table.changed(&key);
            self.drop_bodies(&ended);
        }
    }

    /// Notes by how much a collection grows once the stage is committed. Returns false without one.
    pub(crate) fn stage_growth(&mut self, ident: Ident, documents: i64, bytes: i64) -> bool {
        let Some(staging) = &self.staging else { return false };
        let mut stage = staging.stage.lock();
        let growth = stage.growth.entry(ident).or_default();
        *growth = (growth.0 + documents, growth.1 + bytes);
        true
    }

    /// Notes a record for the index builds of its collection. Returns false without a stage.
    pub(crate) fn stage_record(&mut self, ident: Ident, record: RecordId) -> bool {
        let Some(staging) = &self.staging else { return false };
        staging.stage.lock().records.push((ident, record));
        true
    }

    /// Puts an operation on the stage instead of into the log. Returns false without a stage.
    pub(crate) fn stage_operation(
        &mut self,
        entry: &Entry<'_>,
        undo: Option<&RawDocument>,
    ) -> Result<bool> {
        let Some(staging) = &self.staging else { return Ok(false) };
        let Some(collection) = entry.collection else { return Ok(true) };
        let mut operation = with_room_for(entry.object.as_bytes().len() + OPERATION_OVERHEAD);
        operation.append(cstr!("op"), entry.operation.letter());
        let namespace = match entry.operation {
            Operation::Command => format!("{}.$cmd", collection.namespace.database),
            _ => collection.namespace.to_string(),
        };
        operation.append(cstr!("ns"), namespace);
        operation.append(cstr!("ui"), collection.uuid.clone());
        operation.append(cstr!("o"), entry.object);
        if let Some(target) = entry.target {
            operation.append(cstr!("o2"), target);
        }
        let undo = undo.map(ToOwned::to_owned);
        if let Some(id) = staging.id() {
            let bytes = |document: &RawDocumentBuf| document.as_bytes().len();
            let size = bytes(&operation) + undo.as_ref().map_or(0, bytes) + OPERATION_OVERHEAD;
            self.state.transactions.table.grow(id, size).map_err(refused)?;
        }
        let changes_document = entry.operation != Operation::Command;
        staging.stage.lock().add(collection, (operation, undo), changes_document);
        Ok(true)
    }

    /// The catalog that changes are made to: a stage's, or the member's.
    pub(crate) fn catalog(&self) -> Arc<Catalog> {
        match &self.staging {
            Some(staging) => Arc::clone(&staging.stage.lock().catalog),
            None => self.node.catalog(),
        }
    }

    /// A copy of the stage's catalog to change. Identifiers that a transaction takes are its own, even
    /// if another collection is created before it commits.
    pub(crate) fn staged_catalog(&mut self) -> Catalog {
        let mut catalog = (*self.catalog()).clone();
        if self.transaction().is_some() {
            catalog.use_idents_from(self.node.reserve_idents(IDENTS_AT_ONCE));
        }
        catalog
    }

    /// Puts a change of the catalog on the stage.
    pub(crate) fn stage_catalog(
        &mut self,
        catalog: Catalog,
        batch: Batch,
        namespace: &Namespace,
        command: Option<&str>,
    ) -> Result<()> {
        if self.transaction().is_some() {
            match command {
                Some("create") => self.reserve(&namespace_key(namespace))?,
                Some("createIndexes") | None => {}
                Some(other) => {
                    refuse!(
                        OPERATION_NOT_SUPPORTED_IN_TRANSACTION,
                        "{other} cannot be run in a multi-document transaction"
                    );
                }
            }
        }
        let Some(staging) = &self.staging else { return Ok(()) };
        let mut stage = staging.stage.lock();
        stage.catalog = Arc::new(catalog);
        stage.changes_catalog = true;
        if command == Some("create") {
            stage.created.insert(namespace.clone());
        }
        // A transaction's rows are made when it commits, over the catalog of that time.
        if staging.transaction.is_none() {
            stage.overlay.apply(batch);
        }
        Ok(())
    }

    /// Runs something that goes to the store at once, although a transaction is being staged.
    pub(crate) fn beside_stage<T>(
        &mut self,
        run: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        let staging = self.staging.take();
        self.forget_view();
        let result = run(self);
        if let Some(staging) = staging {
            self.stage_on(staging);
        }
        result
    }

    /// Whether only this writer's transaction knows a collection.
    pub(crate) fn is_created_here(&self, namespace: &Namespace) -> bool {
        self.staging.as_ref().is_some_and(|known| known.stage.lock().created.contains(namespace))
    }

    /// Forgets transactions that have ended, and wakes the commands that wait for their end.
    pub(crate) fn drop_bodies(&mut self, ended: &[TransactionId]) {
        if ended.is_empty() {
            return;
        }
        for id in ended {
            self.state.transactions.bodies.remove(id);
        }
        self.node.cursors().kill_transactions(ended);
        self.node.end_queue().transactions_ended(ended);
    }
}

/// What a transaction that creates a collection holds, so that another cannot create it too.
pub(crate) fn namespace_key(namespace: &Namespace) -> Vec<u8> {
    // No identifier of a collection or an index begins so.
    let mut key = vec![0xff; 8];
    key.extend(namespace.to_string().as_bytes());
    key
}
