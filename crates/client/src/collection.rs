//! A collection: typed helpers for ordinary work.
//!
//! Follows the CRUD and Index Management specifications. Each helper returns an action, which takes
//! options and runs when it is awaited; the actions are in `action`.

use std::time::Duration;

use bson::raw::{CStr, cstr};
use quorate_client_session::WriteConcern;
use quorate_protocol::ReadPreference;

use crate::action::admin::{CreateIndex, Drop, List};
use crate::action::read::{Aggregate, Count, CountDocuments, Distinct, Find, FindOne};
use crate::action::write::{BulkWrite, Delete, FindAndModify, InsertMany, InsertOne, Update};
use crate::action::{Defaults, Draft};
use crate::bulk::WriteModel;
use crate::client::Client;
use crate::database::defaults;
use crate::value::{IntoRaw, IntoValue};
use crate::watch::Watch;

/// A collection of one deployment.
#[derive(Clone, Debug)]
pub struct Collection {
    client: Client,
    database: String,
    name: String,
    defaults: Defaults,
}

defaults!(Collection);

impl Collection {
    pub(crate) fn new(client: Client, database: &str, name: &str, defaults: Defaults) -> Self {
        Self { client, database: database.to_owned(), name: name.to_owned(), defaults }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The client that it belongs to.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The name of its database.
    pub fn database_name(&self) -> &str {
        &self.database
    }

    /// The write concern of its writes.
    pub fn write_concern(&self) -> &WriteConcern {
        &self.defaults.write_concern
    }

    /// Inserts a document and returns its `_id`, which is made if there is none.
    pub fn insert_one(&self, document: impl IntoRaw) -> InsertOne<'_> {
        InsertOne::new(self.draft(cstr!("insert")), &self.name, document)
    }

    /// Inserts documents and returns their `_id`s. The first one that fails ends it; those before it
    /// are inserted.
    pub fn insert_many(&self, documents: impl IntoIterator<Item = impl IntoRaw>) -> InsertMany<'_> {
        InsertMany::new(self.draft(cstr!("insert")), &self.name, documents)
    }

    /// Runs many writes of any kind.
    pub fn bulk_write(&self, writes: impl IntoIterator<Item = WriteModel>) -> BulkWrite<'_> {
        BulkWrite::new(self.draft(cstr!("insert")), &self.name, writes)
    }

    /// Changes the first document that matches, by operators or a pipeline.
    pub fn update_one(&self, filter: impl IntoRaw, update: impl IntoValue) -> Update<'_> {
        self.update(WriteModel::update_one(filter, update))
    }

    /// Changes every document that matches. Not retried: a server cannot tell what was done already.
    pub fn update_many(&self, filter: impl IntoRaw, update: impl IntoValue) -> Update<'_> {
        self.update(WriteModel::update_many(filter, update))
    }

    /// Replaces the first document that matches.
    pub fn replace_one(&self, filter: impl IntoRaw, replacement: impl IntoRaw) -> Update<'_> {
        self.update(WriteModel::replace_one(filter, replacement))
    }

    /// Deletes the first document that matches; returns how many were deleted.
    pub fn delete_one(&self, filter: impl IntoRaw) -> Delete<'_> {
        Delete::new(self.draft(cstr!("delete")), &self.name, WriteModel::delete_one(filter))
    }

    /// Deletes every document that matches; returns how many were deleted.
    pub fn delete_many(&self, filter: impl IntoRaw) -> Delete<'_> {
        Delete::new(self.draft(cstr!("delete")), &self.name, WriteModel::delete_many(filter))
    }

    /// Changes the first document that matches and returns it.
    pub fn find_one_and_update(
        &self,
        filter: impl IntoRaw,
        update: impl IntoValue,
    ) -> FindAndModify<'_> {
        FindAndModify::updating(self.draft(cstr!("findAndModify")), filter, update)
    }

    /// Replaces the first document that matches and returns it.
    pub fn find_one_and_replace(
        &self,
        filter: impl IntoRaw,
        replacement: impl IntoRaw,
    ) -> FindAndModify<'_> {
        FindAndModify::replacing(self.draft(cstr!("findAndModify")), filter, replacement)
    }

    /// Deletes the first document that matches and returns it.
    pub fn find_one_and_delete(&self, filter: impl IntoRaw) -> FindAndModify<'_> {
        FindAndModify::deleting(self.draft(cstr!("findAndModify")), filter)
    }

    /// The documents that match.
    pub fn find(&self, filter: impl IntoRaw) -> Find<'_> {
        Find::new(self.draft(cstr!("find")), filter)
    }

    /// The first document that matches.
    pub fn find_one(&self, filter: impl IntoRaw) -> FindOne<'_> {
        FindOne::new(self.find(filter))
    }

    /// Runs a pipeline. One that writes (`$out`, `$merge`) is sent once.
    pub fn aggregate(&self, pipeline: impl IntoIterator<Item = impl IntoRaw>) -> Aggregate<'_> {
        Aggregate::new(self.draft(cstr!("aggregate")), pipeline)
    }

    /// The different values of a field among the documents that match.
    pub fn distinct(&self, field: &str, filter: impl IntoRaw) -> Distinct<'_> {
        Distinct::new(self.draft(cstr!("distinct")), field, filter)
    }

    /// How many documents match, counted.
    pub fn count_documents(&self, filter: impl IntoRaw) -> CountDocuments<'_> {
        CountDocuments::new(self.draft(cstr!("aggregate")), filter)
    }

    /// How many documents there are, by the collection's metadata.
    pub fn estimated_document_count(&self) -> Count<'_> {
        Count::new(self.draft(cstr!("count")))
    }

    /// How many documents match, by the `count` command. The CRUD specification deprecates it:
    /// [`count_documents`](Self::count_documents) is exact after a crash and in sharded clusters.
    pub fn count(&self, filter: impl IntoRaw) -> Count<'_> {
        Count::matching(self.draft(cstr!("count")), filter)
    }

    /// Makes an index and returns its name.
    pub fn create_index(&self, keys: impl IntoRaw) -> CreateIndex<'_> {
        CreateIndex::new(self.draft(cstr!("createIndexes")), keys)
    }

    /// Watches what happens in the collection. The pipeline filters and shapes the changes; their
    /// `_id` must stay.
    pub fn watch(&self, pipeline: impl IntoIterator<Item = impl IntoRaw>) -> Watch<'_> {
        Watch::new(self.draft(cstr!("aggregate")), self.name.as_str(), pipeline)
    }

    /// Removes an index by its name.
    pub fn drop_index(&self, name: &str) -> Drop<'_> {
        let mut draft = self.draft(cstr!("dropIndexes"));
        draft.arguments.set(cstr!("index"), name);
        Drop::new(draft)
    }

    /// The indexes.
    pub fn list_indexes(&self) -> List<'_> {
        List::new(self.draft(cstr!("listIndexes")))
    }

    /// Drops the collection and its indexes. One that does not exist is dropped already.
    pub fn drop_collection(&self) -> Drop<'_> {
        Drop::new(self.draft(cstr!("drop")))
    }

    fn update(&self, model: WriteModel) -> Update<'_> {
        Update::new(self.draft(cstr!("update")), &self.name, model)
    }

    fn draft(&self, command: &'static CStr) -> Draft<'_> {
        Draft::new(&self.client, &self.database, &self.defaults, command, self.name.as_str())
    }
}
