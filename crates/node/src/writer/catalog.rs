//! Changing what exists: collections and indexes come, go and change under the write lock.

use std::collections::BTreeSet;
use std::sync::Arc;

use bson::{Binary, Document, doc};
use quorate_storage::{Batch, KeyspaceId};

use super::Writer;
use super::oplog::oplog_namespace;
use crate::catalog::{Catalog, Collection, ID_INDEX, Ident, Index};
use crate::error::Result;
use crate::namespace::Namespace;
use crate::replication::takes_back;
use crate::transactions::namespace_key;

impl Writer<'_> {
    /// The collection of this name, created without options if it does not exist.
    pub(crate) fn collection_or_create(
        &mut self,
        namespace: &Namespace,
    ) -> Result<Arc<Collection>> {
        match self.collection(namespace) {
            Some(collection) => collection.refuse_view().map(|()| collection),
            None => self.create_collection(namespace, Document::new()),
        }
    }

    pub(crate) fn create_collection(
        &mut self,
        namespace: &Namespace,
        options: Document,
    ) -> Result<Arc<Collection>> {
        self.catalog().check_case(&namespace.database)?;
        let uuid = self.state.generator.uuid();
        self.create_with_uuid(namespace, options, uuid)
    }

    /// Creates a collection that is the same one as another member's.
    pub(crate) fn create_with_uuid(
        &mut self,
        namespace: &Namespace,
        options: Document,
        uuid: Binary,
    ) -> Result<Arc<Collection>> {
        while let Err(error) = self.reserve(&namespace_key(namespace)) {
            if !self.wait_if_blocked()? {
                return Err(error);
            }
            if let Some(created) = self.collection(namespace) {
                return Ok(created);
            }
        }
        let namespace = namespace.clone();
        let mut command = doc! { "create": &namespace.collection };
        command.extend(options.clone());
        let command = Some(command);
        self.change_catalog(command, move |catalog, keyspace, batch| {
            let ident = catalog.allocate_ident();
            let mut collection = Collection::new(namespace, ident, uuid, options)?;
            if collection.view.is_none() {
                let spec = bson::doc! { "v": 2, "key": { "_id": 1 }, "name": ID_INDEX };
                let index = Index::from_spec(catalog.allocate_ident(), spec)?;
                collection.indexes.push(Arc::new(index));
            }
            let collection = catalog.put(collection, keyspace, batch)?;
            Ok((Arc::clone(&collection), collection))
        })
    }

    /// Creates the collection that holds the history of the member: its records have no `_id`.
    pub(crate) fn create_oplog(&mut self, bytes: u64) -> Result<Arc<Collection>> {
        let uuid = self.state.generator.uuid();
        let options = doc! { "capped": true, "size": bytes as i64 };
        self.change_catalog(None, move |catalog, keyspace, batch| {
            let ident = catalog.allocate_ident();
            let collection = Collection::new(oplog_namespace(), ident, uuid, options)?;
            let collection = catalog.put(collection, keyspace, batch)?;
            Ok((Arc::clone(&collection), collection))
        })
    }

    /// Gives a capped collection another limit. What is over it goes with the next maintenance.
    pub(crate) fn resize_capped(&mut self, collection: &Collection, bytes: u64) -> Result<()> {
        let mut options = collection.options.clone();
        options.insert("size", bytes as i64);
        let mut resized = Collection::new(
            collection.namespace.clone(),
            collection.ident,
            collection.uuid.clone(),
            options,
        )?;
        resized.indexes = collection.indexes.clone();
        self.alter_collection(resized, None).map(drop)
    }

    /// Removes a collection, and ends its cursors. Its keys are purged later, by [`purge_step`](Self::purge_step).
    pub(crate) fn drop_collection(&mut self, collection: &Collection) -> Result<()> {
        let mut command = doc! { "drop": &collection.namespace.collection };
        // Change streams tell views from collections.
        if let Some(source) = collection.options.get("viewOn") {
            command.insert("viewOn", source.clone());
        }
        let logged = Arc::new(collection.clone());
        self.change_catalog(Some(command), |catalog, keyspace, batch| {
            remove(catalog, collection, keyspace, batch);
            Ok(((), logged))
        })?;
        self.is_gone(collection);
        Ok(())
    }

    /// Gives a collection another name, in place of any collection that has it, and ends the cursors of both. One entry
    /// tells of all that: neither a crash nor a failover comes between.
    pub(crate) fn rename_collection(
        &mut self,
        collection: &Collection,
        target: &Namespace,
    ) -> Result<()> {
        let mut command = doc! {
            "renameCollection": collection.namespace.to_string(),
            "to": target.to_string(),
            "stayTemp": false,
        };
        let replaced = self.collection(target);
        if let Some(replaced) = &replaced {
            command.insert("dropTarget", replaced.uuid.clone());
        }
        let renamed = Collection { namespace: target.clone(), ..collection.clone() };
        self.change_catalog(Some(command), |catalog, keyspace, batch| {
            if let Some(replaced) = &replaced {
                remove(catalog, replaced, keyspace, batch);
            }
            catalog.take(&collection.namespace, keyspace, batch);
            catalog.put(renamed, keyspace, batch).map(|renamed| ((), renamed))
        })?;
        if let Some(replaced) = &replaced {
            self.is_gone(replaced);
        }
        self.end_cursors("renamed", &collection.namespace);
        Ok(())
    }

    /// Takes a rename back: the collection gets its old name, and the one that gave way to it is there again.
    pub(crate) fn rename_back(
        &mut self,
        collection: &Collection,
        target: &Namespace,
        replaced: Option<Collection>,
    ) -> Result<()> {
        let renamed = Collection { namespace: target.clone(), ..collection.clone() };
        self.change_catalog(Some(Document::new()), |catalog, keyspace, batch| {
            catalog.take(&collection.namespace, keyspace, batch);
            if let Some(replaced) = replaced {
                bring_back(catalog, replaced, keyspace, batch)?;
            }
            catalog.put(renamed, keyspace, batch).map(|renamed| ((), renamed))
        })?;
        self.end_cursors("renamed", &collection.namespace);
        Ok(())
    }

    /// Nothing is known about a collection that was dropped, and its cursors end.
    fn is_gone(&mut self, collection: &Collection) {
        self.state.collections.remove(&collection.ident);
        self.end_cursors("dropped", &collection.namespace);
    }

    fn end_cursors(&self, why: &'static str, namespace: &Namespace) {
        self.node.cursors().kill_namespaces(why, |gone| gone == namespace);
    }

    /// Replaces the description of a collection: its options or indexes.
    pub(crate) fn alter_collection(
        &mut self,
        collection: Collection,
        command: Option<Document>,
    ) -> Result<Arc<Collection>> {
        // Other members take the result, not the way to it.
        let command = command.map(|mut command| {
            command.extend(takes_back::description(&collection));
            command
        });
        self.change_catalog(command, |catalog, keyspace, batch| {
            let collection = catalog.put(collection, keyspace, batch)?;
            Ok((Arc::clone(&collection), collection))
        })
    }

    /// Changes the catalog in the store and in memory, or neither. The command describes the
    /// change in the history; the collection it concerns comes with the result.
    pub(super) fn change_catalog<T>(
        &mut self,
        command: Option<Document>,
        change: impl FnOnce(&mut Catalog, KeyspaceId, &mut Batch) -> Result<(T, Arc<Collection>)>,
    ) -> Result<T> {
        // The order of the log is the order of the commits.
        self.flush()?;
        let keyspace = self.node.keyspaces().catalog;
        let mut batch = Batch::new();
        if self.is_staging() {
            let mut catalog = self.staged_catalog();
            let (result, collection) = change(&mut catalog, keyspace, &mut batch)?;
            let name = command.as_ref().and_then(|command| command.keys().next().cloned());
            if let Some(command) = command {
                let mut logged = Batch::new();
                self.log_command(&mut logged, &collection, &command)?;
            }
            self.stage_catalog(catalog, batch, &collection.namespace, name.as_deref())?;
            return Ok(result);
        }
        let mut catalog = (*self.node.catalog()).clone();
        let (result, collection) = change(&mut catalog, keyspace, &mut batch)?;
        if let Some(command) = command {
            self.log_command(&mut batch, &collection, &command)?;
        }
        let sequence = self.node.commit_catalog(batch, catalog)?;
        self.after_commit(sequence);
        Ok(result)
    }

    /// Brings a dropped collection back, whose keys are still there.
    pub(crate) fn restore_collection(&mut self, collection: Collection) -> Result<()> {
        let command = doc! { "create": &collection.namespace.collection };
        self.change_catalog(Some(command), |catalog, keyspace, batch| {
            bring_back(catalog, collection, keyspace, batch).map(|collection| ((), collection))
        })
    }

    pub(crate) fn drop_index(
        &mut self,
        collection: &mut Arc<Collection>,
        name: &str,
    ) -> Result<()> {
        let mut altered = (**collection).clone();
        let Some(place) = altered.indexes.iter().position(|index| index.name == name) else {
            return Ok(());
        };
        let index = altered.indexes.remove(place);
        let command =
            doc! { "dropIndexes": &collection.namespace.collection, "index": &index.name };
        *collection = self.change_catalog(Some(command), |catalog, keyspace, batch| {
            catalog.discard(index.ident, keyspace, batch);
            let collection = catalog.put(altered, keyspace, batch)?;
            Ok((Arc::clone(&collection), collection))
        })?;
        Ok(())
    }

    pub(super) fn note_multikey(
        &mut self,
        collection: &mut Arc<Collection>,
        places: &BTreeSet<usize>,
    ) -> Result<()> {
        if places.is_empty() {
            return Ok(());
        }
        let mut altered = (**collection).clone();
        for &place in places {
            Arc::make_mut(&mut altered.indexes[place]).multikey = true;
        }
        // That an index may hold arrays is true whatever becomes of a transaction.
        if self.transaction().is_some() && !self.is_created_here(&collection.namespace) {
            let idents: BTreeSet<_> =
                places.iter().map(|&place| altered.indexes[place].ident).collect();
            self.beside_stage(|writer| writer.note_multikey_now(&collection.namespace, &idents))?;
        }
        *collection = self.alter_collection(altered, None)?;
        Ok(())
    }

    /// Notes that indexes of a collection, as it is now, may hold arrays.
    fn note_multikey_now(&mut self, namespace: &Namespace, idents: &BTreeSet<Ident>) -> Result<()> {
        let Some(collection) = self.collection(namespace) else { return Ok(()) };
        let mut altered = (*collection).clone();
        for index in &mut altered.indexes {
            if idents.contains(&index.ident) {
                Arc::make_mut(index).multikey = true;
            }
        }
        self.alter_collection(altered, None).map(drop)
    }

    /// Adds an index to a collection that a stage has created and that holds nothing yet.
    pub(crate) fn add_staged_index(
        &mut self,
        collection: &mut Arc<Collection>,
        spec: Document,
    ) -> Result<()> {
        let is_new = self.transaction().is_none() || self.is_created_here(&collection.namespace);
        if !is_new || self.few_documents(collection)? != Some(0) {
            refuse!(
                OPERATION_NOT_SUPPORTED_IN_TRANSACTION,
                "Cannot create new indexes on existing collection {} in a multi-document \
                     transaction; create them before",
                collection.namespace
            );
        }
        let mut command = doc! { "createIndexes": &collection.namespace.collection };
        command.extend(spec.clone());
        let mut altered = (**collection).clone();
        *collection = self.change_catalog(Some(command), move |catalog, keyspace, batch| {
            let index = Index::from_spec(catalog.allocate_ident(), spec)?;
            altered.indexes.push(Arc::new(index));
            let collection = catalog.put(altered, keyspace, batch)?;
            Ok((Arc::clone(&collection), collection))
        })?;
        Ok(())
    }
}

/// Takes a collection out of the catalog. Its keys and those of its indexes are garbage.
fn remove(catalog: &mut Catalog, collection: &Collection, keyspace: KeyspaceId, batch: &mut Batch) {
    catalog.take(&collection.namespace, keyspace, batch);
    catalog.discard(collection.ident, keyspace, batch);
    for index in &collection.indexes {
        catalog.discard(index.ident, keyspace, batch);
    }
}

/// Puts a collection that was removed into the catalog again. Its keys are still there.
fn bring_back(
    catalog: &mut Catalog,
    collection: Collection,
    keyspace: KeyspaceId,
    batch: &mut Batch,
) -> Result<Arc<Collection>> {
    catalog.forget(collection.ident, keyspace, batch);
    for index in &collection.indexes {
        catalog.forget(index.ident, keyspace, batch);
    }
    catalog.put(collection, keyspace, batch)
}
