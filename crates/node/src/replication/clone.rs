//! The receiving end of an initial sync: everything is replaced by a copy of another member.
//!
//! Nothing here is logged. The copy is consistent only after the entries that were written
//! meanwhile have been applied with [`Node::apply_cloned`]. docs/replication-rules.md#initial-sync.

use std::sync::Arc;

use bson::spec::BinarySubtype;
use bson::{Binary, Bson, Document, RawDocumentBuf};
use quorate_protocol::OpTimeAndWallTime;
use quorate_storage::{Batch, Direction, KeyRange, KeyspaceId};
use sha2::{Digest, Sha256};

use super::oplog::UNDO_ROW;
use crate::catalog::Collection;
use crate::change_stream::IMAGE_ROW;
use crate::context::Now;
use crate::error::Result;
use crate::namespace::Namespace;
use crate::node::Node;
use crate::writer::Writer;

/// Keys removed in one batch.
const WIPE_STEP: usize = 10_000;

impl Node {
    /// Removes all data but what is this member's own, and the log, and forces that to disk. Blocks.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub fn wipe(&self, now: Now) -> Result<()> {
        let Some(replication) = self.replication() else { return Ok(()) };
        let mut writer = self.write(now);
        replication.begin_cut(OpTimeAndWallTime::default());
        self.forget_moments();
        writer.begin_cloning();
        let mut batch = Batch::new();
        writer.forget_commit_point(&mut batch);
        writer.commit(batch)?;
        let collections: Vec<_> = self.catalog().collections().map(Arc::clone).collect();
        for collection in collections {
            if !collection.namespace.is_unreplicated() {
                writer.drop_collection(&collection)?;
            }
        }
        writer.clear_history()?;
        for row in [UNDO_ROW, IMAGE_ROW] {
            writer.remove_all(replication.keyspace, &KeyRange::prefix(&[row]))?;
        }
        // What sessions did in the history that goes is not what they did in the one that comes.
        writer.remove_all(self.keyspaces().sessions, &KeyRange::all())?;
        replication.trimmed.forget();
        replication.deferred_indexes.lock().clear();
        replication.partial_copies.lock().clear();
        replication.missing_copies.lock().clear();
        writer.empty_totals(replication.oplog);
        let (committed, _) = self.durability();
        self.sync_through(committed)?;
        replication.end_cut(OpTimeAndWallTime::default(), None);
        Ok(())
    }

    /// Makes a collection like another member's. It counts as copied in part until
    /// [`copied_whole`](Self::copied_whole).
    ///
    /// # Errors
    ///
    /// If the store fails or the description is wrong.
    pub fn clone_collection(
        &self,
        namespace: &Namespace,
        uuid: Binary,
        options: Document,
        now: Now,
    ) -> Result<()> {
        let mut writer = self.write(now);
        self.forget_moments();
        writer.begin_cloning();
        // A source tells no UUIDs of views, which are never renamed. One that all views shared would make them one.
        let is_view = options.contains_key("viewOn");
        let uuid = if is_view { uuid_of_view(namespace) } else { uuid };
        // An interrupted copy may have left it under the name that it had then.
        let left = self.catalog().collections().find(|left| left.uuid == uuid).cloned();
        for existing in writer.collection(namespace).into_iter().chain(left) {
            if writer.collection(&existing.namespace).is_some() {
                writer.drop_collection(&existing)?;
            }
        }
        if let Some(replication) = self.replication().filter(|_| !is_view) {
            replication.partial_copies.lock().push(uuid.clone());
        }
        writer.create_with_uuid(namespace, options, uuid).map(drop)
    }

    /// Puts copied documents into a collection. A document that is there already is replaced.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub fn clone_documents(
        &self,
        namespace: &Namespace,
        documents: Vec<RawDocumentBuf>,
        now: Now,
    ) -> Result<()> {
        let mut writer = self.write(now);
        self.forget_moments();
        writer.begin_cloning();
        let Some(mut collection) = writer.collection(namespace) else { return Ok(()) };
        let results = writer.insert(&mut collection, documents.clone(), false, true)?;
        for (result, document) in results.into_iter().zip(documents) {
            if result.is_err() {
                writer.put(&mut collection, document)?;
            }
        }
        Ok(())
    }

    /// Puts rows of sessions into the copy, as a page of `local.replset.sessions.` shows them: what a
    /// client repeats after a failover is then known here as well.
    ///
    /// # Errors
    ///
    /// If the store fails or a row is not one.
    pub fn clone_sessions(&self, rows: &[Document], now: Now) -> Result<()> {
        let mut writer = self.write(now);
        writer.begin_cloning();
        let mut batch = Batch::new();
        for row in rows {
            let bytes = |name: &str| row.get_binary_generic(name).cloned();
            match (bytes("_id"), bytes("row")) {
                (Ok(key), Ok(row)) => batch.insert(self.keyspaces().sessions, key, row),
                _ => {
                    refuse!(
                        OPERATION_FAILED,
                        "the source sent a session that cannot be read; the copy begins again"
                    );
                }
            }
        }
        writer.commit(batch)
    }

    /// All documents of the collection were read, whatever its name was meanwhile.
    pub fn copied_whole(&self, uuid: &Binary) {
        if let Some(replication) = self.replication() {
            replication.partial_copies.lock().retain(|known| known != uuid);
        }
    }

    /// Builds an index of a copied collection.
    ///
    /// # Errors
    ///
    /// If the store fails or the documents do not allow the index.
    pub fn clone_index(&self, namespace: &Namespace, spec: Document, now: Now) -> Result<()> {
        let mut writer = self.write(now);
        self.forget_moments();
        writer.begin_cloning();
        let Some(mut collection) = writer.collection(namespace) else { return Ok(()) };
        let known = spec.get_str("name").is_ok_and(|name| collection.index(name).is_some());
        if known || writer.builds_no_indexes() || writer.defer_index(&collection, &spec) {
            return Ok(());
        }
        writer.build_index(&mut collection, spec, || Ok(()))
    }

    /// Applies entries that were written while the data was copied, and logs them.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub fn apply_cloned(
        &self,
        entries: Vec<RawDocumentBuf>,
        now: Now,
    ) -> Result<OpTimeAndWallTime> {
        self.apply_over_copy(&entries, now)
    }

    /// Builds what had to wait for consistent data, remembers that it is consistent from this entry
    /// on, and forces all to disk. Blocks.
    ///
    /// # Errors
    ///
    /// If the store fails, or the log does not end with this entry.
    pub fn finish_clone(&self, at: OpTimeAndWallTime, now: Now) -> Result<()> {
        {
            let mut writer = self.write(now);
            let last = self.log_positions().written.op_time;
            refuse_if!(last != at.op_time => OPERATION_FAILED,
                "the copy ends at {last} instead of {}; it begins again", at.op_time);
            writer.check_that_all_are_whole()?;
            writer.build_deferred_indexes()?;
            let mut batch = Batch::new();
            writer.put_min_valid(&mut batch, at)?;
            writer.commit(batch)?;
            // Views of the copy before this are not consistent.
            if let Some(replication) = self.replication() {
                let last = replication.standing().last;
                replication.replace_views(last.op_time, writer.moment(last.op_time));
            }
        }
        self.sync_log().map(drop)
    }
}

/// The UUID of a copied view, made of its name.
fn uuid_of_view(namespace: &Namespace) -> Binary {
    let bytes = Sha256::digest(namespace.to_string()).into_iter().take(16).collect();
    Binary { subtype: BinarySubtype::Uuid, bytes }
}

/// What the names of collections begin with that were moved aside.
const ASIDE: &str = "tmp.quorate.aside.";

/// Where a collection of a copy waits for its name.
fn aside_name(collection: &Collection) -> Namespace {
    let uuid = hex::encode(&collection.uuid.bytes);
    let database = collection.namespace.database.clone();
    Namespace { database, collection: format!("{ASIDE}{uuid}") }
}

fn is_aside(collection: &Collection) -> bool {
    collection.namespace.collection.starts_with(ASIDE)
}

/// The collection that gives way to the one that an entry renames.
pub(super) fn replaced_by(command: &Document) -> Option<Binary> {
    match command.get("dropTarget") {
        Some(Bson::Binary(uuid)) => Some(uuid.clone()),
        _ => None,
    }
}

/// Documents of a copy may be ahead of the log that is applied to them, and two of them may hold the
/// same unique key for a while. So unique indexes are built at the end, and so are those that transactions
/// build, which expect an empty collection.
impl Writer<'_> {
    /// Removes all keys of a range, step by step.
    fn remove_all(&mut self, keyspace: KeyspaceId, range: &KeyRange) -> Result<()> {
        loop {
            let scan = self.view().snapshot.scan(keyspace, range.clone(), Direction::Forward)?;
            let mut batch = Batch::new();
            for pair in scan.take(WIPE_STEP) {
                batch.remove(keyspace, pair?.0);
            }
            let done = batch.len() < WIPE_STEP;
            self.commit(batch)?;
            if done {
                return Ok(());
            }
        }
    }

    /// Puts off an index that consistent data alone allows. Whether it was put off.
    pub(super) fn defer_index(&mut self, collection: &Collection, spec: &Document) -> bool {
        let waits = spec.get_bool("unique").unwrap_or(false) || self.is_staging();
        let Some(replication) = self.node().replication().filter(|_| waits) else { return false };
        self.forget_deferred_index(collection, spec.get_str("name").unwrap_or_default());
        replication.deferred_indexes.lock().push((collection.uuid.clone(), spec.clone()));
        true
    }

    /// A collection that was gone from its database when its turn came was dropped, which the entries have told by
    /// now, or moved to another database, where it was not looked for.
    fn check_that_all_are_whole(&self) -> Result<()> {
        let Some(replication) = self.node().replication() else { return Ok(()) };
        let partial = replication.partial_copies.lock();
        let catalog = self.node().catalog();
        let mut collections = catalog.collections();
        let found = collections.find(|found| partial.contains(&found.uuid) || is_aside(found));
        let moved = match found {
            Some(found) => found.namespace.to_string(),
            None if replication.missing_copies.lock().is_empty() => return Ok(()),
            None => "a collection".to_owned(),
        };
        Err(fail!(OPERATION_FAILED, "{moved} was moved while it was copied; the copy begins again"))
    }

    /// Renames a collection as an entry says, over a copy that may be ahead of it.
    pub(super) fn rename_copied(
        &mut self,
        collection: &Arc<Collection>,
        to: &Namespace,
        command: &Document,
    ) -> Result<()> {
        if let Some(replaced) = replaced_by(command) {
            self.no_longer_missing(&replaced);
        }
        match self.collection(to) {
            // What gave way is still here, and goes with the entry.
            Some(other) if Some(&other.uuid) == replaced_by(command).as_ref() => {}
            // In the history the name was free: what has it here got it later. The entry that makes the view follows.
            Some(other) if other.view.is_some() => {
                self.without_logging(|writer| writer.drop_collection(&other))?;
            }
            // The log may tell of that by a rename, and never of its documents. That it makes room is no entry of the
            // log.
            Some(other) => {
                let aside = aside_name(&other);
                self.without_logging(|writer| writer.rename_collection(&other, &aside))?;
            }
            None => {}
        }
        self.rename_collection(collection, to)
    }

    /// An entry renames a collection that the copy does not hold under its old name. What gave way to it goes all the
    /// same. If the copy does not hold it at all, it was dropped before its database was listed, or it has come to a
    /// database that had been listed before.
    pub(super) fn rename_uncopied(&mut self, uuid: &Binary, command: &Document) -> Result<()> {
        let catalog = self.catalog();
        let known = |uuid: &Binary| catalog.collections().find(|known| known.uuid == *uuid);
        if known(uuid).is_none()
            && let Some(replication) = self.node().replication()
        {
            replication.missing_copies.lock().push(uuid.clone());
        }
        let Some(replaced) = replaced_by(command) else { return Ok(()) };
        self.no_longer_missing(&replaced);
        match known(&replaced) {
            Some(replaced) => self.drop_collection(replaced),
            None => Ok(()),
        }
    }

    /// The log drops a collection: the copy need not hold it.
    pub(super) fn no_longer_missing(&mut self, uuid: &Binary) {
        if let Some(replication) = self.node().replication() {
            replication.missing_copies.lock().retain(|known| known != uuid);
        }
    }

    /// A collection of the copy that made room for an earlier one of its name, and waits for the entry that gives it
    /// the name.
    pub(super) fn moved_aside(&self, uuid: &Binary) -> Option<Arc<Collection>> {
        let catalog = self.catalog();
        let found = catalog.collections().find(|known| known.uuid == *uuid && is_aside(known));
        found.cloned()
    }

    /// An index that was put off is dropped. Whether there was one.
    pub(super) fn forget_deferred_index(&mut self, collection: &Collection, name: &str) -> bool {
        let Some(replication) = self.node().replication() else { return false };
        let mut deferred = replication.deferred_indexes.lock();
        let before = deferred.len();
        deferred.retain(|(uuid, spec)| {
            *uuid != collection.uuid || spec.get_str("name").ok() != Some(name)
        });
        deferred.len() < before
    }

    /// The description of a collection changes: indexes that were put off are built as it says.
    pub(super) fn alter_deferred_indexes(&mut self, collection: &Collection, change: &Document) {
        let Some(replication) = self.node().replication() else { return };
        let name_of = |spec: &Document| spec.get_str("name").unwrap_or_default().to_owned();
        let specs = change.get_array("indexes").map(Vec::as_slice).unwrap_or_default();
        for spec in specs.iter().filter_map(Bson::as_document) {
            let mut deferred = replication.deferred_indexes.lock();
            let is_meant = |(uuid, known): &&mut (Binary, Document)| {
                *uuid == collection.uuid && name_of(known) == name_of(spec)
            };
            if let Some((_, known)) = deferred.iter_mut().find(is_meant) {
                known.clone_from(spec);
            }
        }
    }

    fn build_deferred_indexes(&mut self) -> Result<()> {
        let Some(replication) = self.node().replication() else { return Ok(()) };
        let deferred = std::mem::take(&mut *replication.deferred_indexes.lock());
        self.begin_cloning();
        for (uuid, spec) in deferred {
            let found = self.node().catalog().collections().find(|c| c.uuid == uuid).cloned();
            if let Some(mut collection) = found {
                self.build_index(&mut collection, spec, || Ok(()))?;
            }
        }
        Ok(())
    }
}
