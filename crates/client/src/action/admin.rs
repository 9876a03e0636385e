//! Commands of the application's own, and what makes, lists and drops databases, collections and
//! indexes.
//!
//! Follows the Run Command, Enumerate Databases, Enumerate Collections and Index Management
//! specifications.

use std::time::Duration;

use bson::raw::{RawBsonRef, RawDocument, RawDocumentBuf, cstr};
use bson::rawdoc;

use super::{Arguments, Draft, HasDraft, HasStatement, action, long, setters};
use crate::cursor::{Cursor, key, malformed};
use crate::error::Error;
use crate::operation::{Operation, Target};
use crate::value::IntoRaw;
use quorate_protocol::ErrorCode;
use quorate_wire::AppendSome;

action! {
    /// A command of the application's: sent as it is, once.
    RunCommand<'a> { draft: Draft<'a>, command: Result<RawDocumentBuf, Error> } => RawDocumentBuf,
    draft: draft, options: session, read_preference, timeout
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

action! {
    /// A command of the application's that opens a cursor.
    RunCursorCommand<'a> { draft: Draft<'a>, command: Result<RawDocumentBuf, Error> } => Cursor,
    draft: draft, options: session, read_preference, timeout, batch_size, comment
}

impl<'a> RunCursorCommand<'a> {
    pub(crate) fn new(draft: Draft<'a>, command: impl IntoRaw) -> Self {
        Self { draft, command: command.into_raw() }
    }

    setters! {
        /// `maxTimeMS` of each `getMore`: on a tailable cursor, how long the server waits for more.
        max_time(limit: Duration) |action| action.draft.cursor.max_time = Some(limit);
    }

    async fn run(self) -> Result<Cursor, Error> {
        self.draft.check()?;
        let operation = self.draft.own_command(self.command?);
        self.draft.open(operation).await
    }
}

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

action! {
    /// Makes a collection, or changes one.
    CreateCollection<'a> { draft: Draft<'a> } => (),
    draft: draft, options: session, write_concern, timeout, max_time, comment, collation
}

impl<'a> CreateCollection<'a> {
    pub(crate) fn new(draft: Draft<'a>) -> Self {
        Self { draft }
    }

    setters! {
        /// Whether the collection keeps the newest documents only, up to this many bytes.
        capped(bytes: u64) |action| {
            action.draft.arguments.set(cstr!("capped"), true);
            action.draft.arguments.set(cstr!("size"), long(bytes));
        };

        /// How many documents a capped collection keeps.
        max_documents(count: u64) |action| action.draft.arguments.set(cstr!("max"), long(count));

        /// What documents must look like.
        validator(validator: impl IntoRaw)
            |action| action.draft.set_document(cstr!("validator"), validator);

        /// Makes a view of another collection instead.
        view(on: &str, pipeline: impl IntoIterator<Item = impl IntoRaw>) |action| {
            action.draft.arguments.set(cstr!("viewOn"), on);
            action.draft.arguments.set_array(cstr!("pipeline"), pipeline);
        };

        /// Which changes keep the document as it was, for change streams.
        change_stream_pre_and_post_images(options: impl IntoRaw)
            |action| action.draft.set_document(cstr!("changeStreamPreAndPostImages"), options);
    }

    async fn run(mut self) -> Result<(), Error> {
        self.draft.administer().await.map(drop)
    }
}

action! {
    /// Drops a collection, a database or an index.
    Drop<'a> { draft: Draft<'a> } => (),
    draft: draft, options: session, write_concern, timeout, max_time, comment
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

action! {
    /// Makes an index.
    CreateIndex<'a> {
        draft: Draft<'a>,
        keys: Result<RawDocumentBuf, Error>,
        name: Option<String>,
        index: Arguments,
    } => String,
    draft: draft, statement: index, options: session, write_concern, timeout, max_time, comment,
        collation
}

impl<'a> CreateIndex<'a> {
    pub(crate) fn new(draft: Draft<'a>, keys: impl IntoRaw) -> Self {
        Self { draft, keys: keys.into_raw(), name: None, index: Arguments::default() }
    }

    setters! {
        /// The name; made of the keys if absent.
        name(name: &str) |action| action.name = Some(name.to_owned());

        /// Whether no two documents may have the same keys.
        unique(unique: bool) |action| action.index.set(cstr!("unique"), unique);

        /// Whether documents without the keys are left out.
        sparse(sparse: bool) |action| action.index.set(cstr!("sparse"), sparse);

        /// Which documents are in it.
        partial_filter(filter: impl IntoRaw)
            |action| action.index.set_document(cstr!("partialFilterExpression"), filter);

        /// How long after the date in its key a document is removed.
        expire_after(age: Duration) |action| {
            let seconds = long(age.as_secs());
            action.index.set(cstr!("expireAfterSeconds"), seconds);
        };
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

action! {
    /// Lists collections or indexes.
    List<'a> { draft: Draft<'a> } => Cursor,
    draft: draft, options: filter, session, timeout, max_time, comment, batch_size
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
        cursor.append_some(cstr!("batchSize"), self.draft.cursor.batch_size.map(i64::from));
        self.draft.arguments.set(cstr!("cursor"), cursor);
        self.draft.open_list().await
    }
}

fn name_of(listed: &RawDocument, cursor: &Cursor) -> Result<String, Error> {
    let name = listed.get_str("name").map(str::to_owned);
    name.map_err(|_| malformed(cursor.server(), "something listed has no name"))
}

action! {
    /// Lists databases.
    ListDatabases<'a> { draft: Draft<'a> } => Vec<RawDocumentBuf>,
    draft: draft, options: filter, session, timeout, max_time, comment
}

impl<'a> ListDatabases<'a> {
    pub(crate) fn new(draft: Draft<'a>) -> Self {
        Self { draft }
    }

    setters! {
        /// Whether only those that the user may see are listed.
        authorized_databases(only: bool)
            |action| action.draft.arguments.set(cstr!("authorizedDatabases"), only);
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
        names
            .collect::<Result<_, _>>()
            .map_err(|_| Error::bad_command("a database was listed without its name"))
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

/// The name that every driver gives an index: `a_1_b_-1`.
fn index_name(keys: &RawDocument) -> Result<String, Error> {
    let mut parts = Vec::new();
    for element in keys {
        let unreadable = |error: bson::error::Error| {
            Error::bad_command(format!("the keys cannot be read: {error}"))
        };
        let (name, value) = element.map_err(unreadable)?;
        let direction = match value {
            RawBsonRef::Int32(number) => number.to_string(),
            RawBsonRef::Int64(number) => number.to_string(),
            RawBsonRef::Double(number) => number.to_string(),
            RawBsonRef::String(text) => text.to_owned(),
            _ => {
                let reason = format!("the direction of {:?} is no number or text", name.as_str());
                return Err(Error::bad_command(reason));
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
