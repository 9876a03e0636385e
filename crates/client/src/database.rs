//! A database: its collections and commands of the application's own.

use std::time::Duration;

use bson::raw::{RawBson, cstr};
use quorate_client_session::WriteConcern;
use quorate_protocol::ReadPreference;

use crate::action::admin::{
    CreateCollection, Drop, List, ListDatabases, RunCommand, RunCursorCommand,
};
use crate::action::read::Aggregate;
use crate::action::{Defaults, Draft};
use crate::client::Client;
use crate::collection::Collection;
use crate::value::IntoRaw;
use crate::watch::Watch;

/// A database of one deployment.
#[derive(Clone, Debug)]
pub struct Database {
    client: Client,
    name: String,
    defaults: Defaults,
}

impl Client {
    /// A database. Nothing is sent.
    pub fn database(&self, name: &str) -> Database {
        Database { client: self.clone(), name: name.to_owned(), defaults: Defaults::of(self) }
    }

    /// A collection. Nothing is sent.
    pub fn collection(&self, database: &str, name: &str) -> Collection {
        self.database(database).collection(name)
    }

    /// Watches what happens in all databases but `admin`, `config` and `local`.
    pub fn watch(&self, pipeline: impl IntoIterator<Item = impl IntoRaw>) -> Watch<'_> {
        let draft = Draft::new(self, "admin", &Defaults::of(self), cstr!("aggregate"), 1);
        Watch::new(draft, 1, pipeline).of_deployment()
    }

    /// The databases of the deployment.
    pub fn list_databases(&self) -> ListDatabases<'_> {
        let defaults = Defaults::of(self);
        ListDatabases::new(Draft::new(self, "admin", &defaults, cstr!("listDatabases"), 1))
    }
}

/// Sets the options of operations that set none of their own.
macro_rules! defaults {
    ($owner:ty) => {
        impl $owner {
            /// The same with another read preference.
            #[must_use]
            pub fn with_read_preference(mut self, preference: ReadPreference) -> Self {
                self.defaults.read_preference = preference;
                self
            }

            /// The same with another read concern level.
            #[must_use]
            pub fn with_read_concern(mut self, level: &str) -> Self {
                self.defaults.read_concern = Some(level.to_owned());
                self
            }

            /// The same with another write concern.
            #[must_use]
            pub fn with_write_concern(mut self, concern: WriteConcern) -> Self {
                self.defaults.write_concern = concern;
                self
            }

            /// The same with another `timeoutMS`; zero is without limit.
            #[must_use]
            pub fn with_timeout(mut self, limit: Duration) -> Self {
                self.defaults.timeout = Some(limit).filter(|limit| !limit.is_zero());
                self
            }
        }
    };
}

pub(crate) use defaults;

defaults!(Database);

impl Database {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A collection. Nothing is sent.
    pub fn collection(&self, name: &str) -> Collection {
        Collection::new(self.client.clone(), &self.name, name, self.defaults.clone())
    }

    /// Runs a command on the primary, or on a server that the action's read preference admits. It is
    /// sent as it is, once.
    pub fn run_command(&self, command: impl IntoRaw) -> RunCommand<'_> {
        RunCommand::new(self.own_draft(), command)
    }

    /// Runs a command that opens a cursor.
    pub fn run_cursor_command(&self, command: impl IntoRaw) -> RunCursorCommand<'_> {
        RunCursorCommand::new(self.own_draft(), command)
    }

    /// Runs a pipeline that needs no collection, such as `$currentOp`.
    pub fn aggregate(&self, pipeline: impl IntoIterator<Item = impl IntoRaw>) -> Aggregate<'_> {
        Aggregate::new(self.draft(cstr!("aggregate"), 1), pipeline)
    }

    /// Watches what happens in the collections of the database.
    pub fn watch(&self, pipeline: impl IntoIterator<Item = impl IntoRaw>) -> Watch<'_> {
        Watch::new(self.draft(cstr!("aggregate"), 1), 1, pipeline)
    }

    /// Makes a collection.
    pub fn create_collection<'a>(&'a self, name: &str) -> CreateCollection<'a> {
        CreateCollection::new(self.draft(cstr!("create"), name))
    }

    /// Changes the options of a collection (`collMod`).
    pub fn modify_collection<'a>(&'a self, name: &str) -> CreateCollection<'a> {
        CreateCollection::new(self.draft(cstr!("collMod"), name))
    }

    /// The collections.
    pub fn list_collections(&self) -> List<'_> {
        List::new(self.draft(cstr!("listCollections"), 1))
    }

    /// The collections with nothing but their names, for
    /// [`names`](crate::action::admin::List::names).
    pub fn list_collection_names(&self) -> List<'_> {
        self.list_collections().name_only()
    }

    /// Drops the database and all that is in it.
    pub fn drop_database(&self) -> Drop<'_> {
        Drop::new(self.draft(cstr!("dropDatabase"), 1))
    }

    /// The application's own commands take no read preference from the database.
    fn own_draft(&self) -> Draft<'_> {
        let defaults =
            Defaults { read_preference: ReadPreference::PRIMARY, ..self.defaults.clone() };
        Draft::new(&self.client, &self.name, &defaults, cstr!("command"), 1)
    }

    fn draft(&self, command: &'static bson::raw::CStr, subject: impl Into<RawBson>) -> Draft<'_> {
        Draft::new(&self.client, &self.name, &self.defaults, command, subject)
    }
}
