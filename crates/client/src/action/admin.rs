//! Commands of the application's own, and what makes, lists and drops databases, collections and
//! indexes.
//!
//! Follows the Run Command, Enumerate Databases, Enumerate Collections and Index Management
//! specifications.

use std::pin::Pin;
use std::time::Duration;

use bson::raw::{RawBsonRef, RawDocument, RawDocumentBuf, cstr};
use bson::rawdoc;

use super::{Arguments, Draft, HasDraft, HasStatement, awaited, options, plain};
use crate::cursor::{Cursor, key, malformed};
use crate::error::{Error, ErrorKind};
use crate::operation::{Operation, Target};
use crate::value::IntoRaw;
use quorate_protocol::ErrorCode;

/// A command of the application's: sent as it is, once.
#[derive(Debug)]
#[must_use = "an action runs when it is awaited"]
pub struct RunCommand<'a> {
    draft: Draft<'a>,
    command: Result<RawDocumentBuf, Error>,
}

impl<'a> RunCommand<'a> {
    pub(crate) fn new(draft: Draft<'a>, command: impl IntoRaw) -> Self {
        Self { draft, command: command.into_raw() }
    }

    async fn run(self) -> Result<RawDocumentBuf, Error> {
        self.draft.check()?;
        let operation = self.draft.own_command(self.command?);
        let client = self.draft.client.inner();
        client.execute(&operation, self.draft.session()).await.map(|reply| reply.body)
    }
}

options!(RunCommand: session, read_preference, timeout);

/// A command of the application's that opens a cursor.
#[derive(Debug)]
#[must_use = "an action runs when it is awaited"]
pub struct RunCursorCommand<'a> {
    draft: Draft<'a>,
    command: Result<RawDocumentBuf, Error>,
}

impl<'a> RunCursorCommand<'a> {
    pub(crate) fn new(draft: Draft<'a>, command: impl IntoRaw) -> Self {
        Self { draft, command: command.into_raw() }
    }

    /// `maxTimeMS` of each `getMore`: on a tailable cursor, how long the server waits for more.
    pub fn max_time(mut self, limit: Duration) -> Self {
        self.draft.cursor.max_time = Some(limit);
        self
    }

    async fn run(self) -> Result<Cursor, Error> {
        self.draft.check()?;
        let operation = self.draft.own_command(self.command?);
        self.draft.open(&operation).await
    }
}

options!(RunCursorCommand: session, read_preference, timeout, batch_size, comment);

impl Draft<'_> {
    /// A command that is the application's, so that neither read concern nor read preference of the
    /// database concern it.
    fn own_command(&self, command: RawDocumentBuf) -> Operation<'_> {
        Operation {
            target: Target::Read(self.read_preference()),
            deadline: self.deadline(),
            ..Operation::new(self.database(), command)
        }
    }
}

/// Makes a collection, or changes one.
#[derive(Debug)]
#[must_use = "an action runs when it is awaited"]
pub struct CreateCollection<'a> {
    draft: Draft<'a>,
}

impl<'a> CreateCollection<'a> {
    pub(crate) fn new(draft: Draft<'a>) -> Self {
        Self { draft }
    }

    /// Whether the collection keeps the newest documents only, up to this many bytes.
    pub fn capped(mut self, bytes: u64) -> Self {
        self.draft.arguments.set(cstr!("capped"), true);
        self.draft.arguments.set(cstr!("size"), i64::try_from(bytes).unwrap_or(i64::MAX));
        self
    }

    /// How many documents a capped collection keeps.
    pub fn max_documents(mut self, count: u64) -> Self {
        self.draft.arguments.set(cstr!("max"), i64::try_from(count).unwrap_or(i64::MAX));
        self
    }

    /// What documents must look like.
    pub fn validator(mut self, validator: impl IntoRaw) -> Self {
        self.draft.set_document(cstr!("validator"), validator);
        self
    }

    /// Makes a view of another collection instead.
    pub fn view(mut self, on: &str, pipeline: impl IntoIterator<Item = impl IntoRaw>) -> Self {
        self.draft.arguments.set(cstr!("viewOn"), on);
        self.draft.arguments.set_array(cstr!("pipeline"), pipeline);
        self
    }

    /// Which changes keep the document as it was, for change streams.
    pub fn change_stream_pre_and_post_images(mut self, options: impl IntoRaw) -> Self {
        self.draft.set_document(cstr!("changeStreamPreAndPostImages"), options);
        self
    }

    async fn run(mut self) -> Result<(), Error> {
        self.draft.administer().await.map(drop)
    }
}

options!(CreateCollection: session, write_concern, timeout, max_time, comment, collation);

/// Drops a collection, a database or an index.
#[derive(Debug)]
#[must_use = "an action runs when it is awaited"]
pub struct Drop<'a> {
    draft: Draft<'a>,
}

impl<'a> Drop<'a> {
    pub(crate) fn new(draft: Draft<'a>) -> Self {
        Self { draft }
    }

    async fn run(mut self) -> Result<(), Error> {
        match self.draft.administer().await {
            // What does not exist needs no dropping.
            Err(error) if error.code() == Some(ErrorCode::NAMESPACE_NOT_FOUND.0) => Ok(()),
            outcome => outcome.map(drop),
        }
    }
}

options!(Drop: session, write_concern, timeout, max_time, comment);

/// Makes an index.
#[derive(Debug)]
#[must_use = "an action runs when it is awaited"]
pub struct CreateIndex<'a> {
    draft: Draft<'a>,
    keys: Result<RawDocumentBuf, Error>,
    name: Option<String>,
    index: Arguments,
}

impl<'a> CreateIndex<'a> {
    pub(crate) fn new(draft: Draft<'a>, keys: impl IntoRaw) -> Self {
        Self { draft, keys: keys.into_raw(), name: None, index: Arguments::default() }
    }

    /// The name; made of the keys if absent.
    pub fn name(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }

    /// Whether no two documents may have the same keys.
    pub fn unique(mut self, unique: bool) -> Self {
        self.index.set(cstr!("unique"), unique);
        self
    }

    /// Whether documents without the keys are left out.
    pub fn sparse(mut self, sparse: bool) -> Self {
        self.index.set(cstr!("sparse"), sparse);
        self
    }

    /// Which documents are in it.
    pub fn partial_filter(mut self, filter: impl IntoRaw) -> Self {
        self.index.set_document(cstr!("partialFilterExpression"), filter);
        self
    }

    /// How long after the date in its key a document is removed.
    pub fn expire_after(mut self, age: Duration) -> Self {
        let seconds = i64::try_from(age.as_secs()).unwrap_or(i64::MAX);
        self.index.set(cstr!("expireAfterSeconds"), seconds);
        self
    }

    async fn run(mut self) -> Result<String, Error> {
        let keys = self.keys?;
        let name = match self.name {
            Some(name) => name,
            None => index_name(&keys)?,
        };
        let mut index = rawdoc! { "key": keys, "name": name.as_str() };
        self.index.append_to(&mut index)?;
        self.draft.arguments.set_array(cstr!("indexes"), [index]);
        self.draft.administer().await?;
        Ok(name)
    }
}

impl<'a> HasDraft<'a> for CreateIndex<'a> {
    fn draft(&mut self) -> &mut Draft<'a> {
        &mut self.draft
    }
}

impl HasStatement for CreateIndex<'_> {
    fn statement(&mut self) -> &mut Arguments {
        &mut self.index
    }
}

options!(CreateIndex: session, write_concern, timeout, max_time, comment, collation);

/// Lists collections or indexes.
#[derive(Debug)]
#[must_use = "an action runs when it is awaited"]
pub struct List<'a> {
    draft: Draft<'a>,
}

impl<'a> List<'a> {
    pub(crate) fn new(draft: Draft<'a>) -> Self {
        Self { draft }
    }

    /// Their names alone.
    ///
    /// # Errors
    ///
    /// If the server refuses, or no server can be reached.
    pub async fn names(self) -> Result<Vec<String>, Error> {
        let mut cursor = self.run().await?;
        let mut names = Vec::new();
        while let Some(listed) = cursor.next().await? {
            names.push(name_of(&listed, &cursor)?);
        }
        Ok(names)
    }

    pub(crate) fn name_only(mut self) -> Self {
        self.draft.arguments.set(cstr!("nameOnly"), true);
        self
    }

    async fn run(mut self) -> Result<Cursor, Error> {
        let mut cursor = RawDocumentBuf::new();
        if let Some(size) = self.draft.cursor.batch_size {
            cursor.append(cstr!("batchSize"), i64::from(size));
        }
        self.draft.arguments.set(cstr!("cursor"), cursor);
        self.draft.open_list().await
    }
}

fn name_of(listed: &RawDocument, cursor: &Cursor) -> Result<String, Error> {
    let name = listed.get_str("name").map(str::to_owned);
    name.map_err(|_| malformed(cursor.server(), "something listed has no name"))
}

options!(List: filter, session, timeout, max_time, comment, batch_size);

/// Lists databases.
#[derive(Debug)]
#[must_use = "an action runs when it is awaited"]
pub struct ListDatabases<'a> {
    draft: Draft<'a>,
}

impl<'a> ListDatabases<'a> {
    pub(crate) fn new(draft: Draft<'a>) -> Self {
        Self { draft }
    }

    /// Whether only those that the user may see are listed.
    pub fn authorized_databases(mut self, only: bool) -> Self {
        self.draft.arguments.set(cstr!("authorizedDatabases"), only);
        self
    }

    /// Their names alone.
    ///
    /// # Errors
    ///
    /// If the server refuses, or no server can be reached.
    pub async fn names(mut self) -> Result<Vec<String>, Error> {
        self.draft.arguments.set(cstr!("nameOnly"), true);
        let listed = self.run().await?;
        let names = listed.iter().map(|database| database.get_str("name").map(str::to_owned));
        names.collect::<Result<_, _>>().map_err(|_| {
            Error::new(ErrorKind::BadCommand("a database was listed without its name".to_owned()))
        })
    }

    async fn run(mut self) -> Result<Vec<RawDocumentBuf>, Error> {
        let reply = self.draft.list().await?;
        let unreadable = || malformed(&reply.server, "there are no databases");
        let databases = reply.body.get_array("databases").map_err(|_| unreadable())?;
        let documents = databases.into_iter().map(|database| match database {
            Ok(RawBsonRef::Document(database)) => Ok(database.to_owned()),
            _ => Err(unreadable()),
        });
        documents.collect()
    }
}

options!(ListDatabases: filter, session, timeout, max_time, comment);

plain!(RunCommand, RunCursorCommand, CreateCollection, Drop, List, ListDatabases);

awaited! {
    RunCommand => RawDocumentBuf,
    RunCursorCommand => Cursor,
    CreateCollection => (),
    Drop => (),
    CreateIndex => String,
    List => Cursor,
    ListDatabases => Vec<RawDocumentBuf>,
}

/// The name that every driver gives an index: `a_1_b_-1`.
fn index_name(keys: &RawDocument) -> Result<String, Error> {
    let mut parts = Vec::new();
    for element in keys {
        let unreadable = |error: bson::error::Error| {
            Error::new(ErrorKind::BadCommand(format!("the keys cannot be read: {error}")))
        };
        let (name, value) = element.map_err(unreadable)?;
        let direction = match value {
            RawBsonRef::Int32(number) => number.to_string(),
            RawBsonRef::Int64(number) => number.to_string(),
            RawBsonRef::Double(number) => number.to_string(),
            RawBsonRef::String(text) => text.to_owned(),
            _ => {
                let reason = format!("the direction of {:?} is no number or text", name.as_str());
                return Err(Error::new(ErrorKind::BadCommand(reason)));
            }
        };
        parts.push(format!("{}_{direction}", name.as_str()));
    }
    key(&parts.join("_")).map(|name| name.as_str().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_are_named_by_their_keys() {
        let name = index_name(&rawdoc! { "a": 1, "b": -1, "c": "text" });
        assert_eq!(name.unwrap(), "a_1_b_-1_c_text");
        assert!(index_name(&rawdoc! { "a": {} }).is_err());
    }
}
