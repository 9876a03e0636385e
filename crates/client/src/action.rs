//! Operations in the making: the arguments and options of a helper, until it is awaited.
//!
//! A helper such as `collection.find(filter)` returns an action. Options are set on it one by one,
//! an explicit session among them, and awaiting it runs it:
//!
//! ```text
//!   collection.find(filter).sort(doc! { "a": 1 }).session(&mut session).await
//! ```
//!
//! Owns what all actions share: the list of options, each written once (`options!`), and the draft
//! of a command. The actions themselves are below, by what they do; how a command is run is in
//! `operation`.

pub(crate) mod admin;
pub(crate) mod read;
pub(crate) mod write;

use std::sync::Arc;
use std::time::Duration;

use bson::raw::{CStr, RawBson, RawDocumentBuf, cstr};
use quorate_client_session::{TransactionError, WriteConcern};
use quorate_protocol::ReadPreference;

use crate::client::Client;
use crate::cursor::{Cursor, CursorSettings};
use crate::error::{Error, ErrorKind};
use crate::operation::{Deadline, Operation, Purpose, Reply, Retry, Target};
use crate::session::Session;
use crate::value::{IntoRaw, IntoValue};

/// The options of operations that set none of their own: handed down from client to database to
/// collection.
#[derive(Clone, Debug)]
pub(crate) struct Defaults {
    pub(crate) read_preference: ReadPreference,
    pub(crate) read_concern: Option<String>,
    pub(crate) write_concern: WriteConcern,
    pub(crate) timeout: Option<Duration>,
}

impl Defaults {
    pub(crate) fn of(client: &Client) -> Self {
        let options = &client.inner().options;
        Self {
            read_preference: options.read_preference.clone(),
            read_concern: options.read_concern.clone(),
            write_concern: options.write_concern.clone(),
            timeout: options.timeout,
        }
    }
}

/// Named values, and the first of them that could not be turned into bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Arguments {
    values: Vec<(&'static CStr, RawBson)>,
    failure: Option<Error>,
}

impl Arguments {
    /// Sets a value, replacing an earlier one of the name.
    pub(crate) fn set(&mut self, name: &'static CStr, value: impl IntoValue) {
        match value.into_value() {
            Ok(value) => match self.values.iter_mut().find(|(known, _)| *known == name) {
                Some((_, known)) => *known = value,
                None => self.values.push((name, value)),
            },
            Err(error) => self.fail(error),
        }
    }

    pub(crate) fn fail(&mut self, error: Error) {
        self.failure.get_or_insert(error);
    }

    /// Adds the values to a document.
    pub(crate) fn append_to(self, document: &mut RawDocumentBuf) -> Result<(), Error> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        for (name, value) in self.values {
            document.append(name, value);
        }
        Ok(())
    }
}

/// A command that is being put together.
#[derive(Debug)]
pub(crate) struct Draft<'a> {
    pub(crate) client: &'a Client,
    database: &'a str,
    name: &'static CStr,
    /// What the command is about: the value of its name.
    subject: RawBson,
    pub(crate) arguments: Arguments,
    pub(crate) defaults: Defaults,
    pub(crate) cursor: CursorSettings,
    session: Option<&'a mut Session>,
    given: Given,
}

/// What the application set on the action itself. What it is for the whole collection, a
/// transaction overrides; on a single operation of one, it is an error.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Given {
    pub(crate) timeout: bool,
    pub(crate) write_concern: bool,
    pub(crate) read_preference: bool,
}

impl<'a> Draft<'a> {
    pub(crate) fn new(
        client: &'a Client,
        database: &'a str,
        defaults: &Defaults,
        name: &'static CStr,
        subject: impl Into<RawBson>,
    ) -> Self {
        Self {
            client,
            database,
            name,
            subject: subject.into(),
            arguments: Arguments::default(),
            defaults: defaults.clone(),
            cursor: CursorSettings::default(),
            session: None,
            given: Given::default(),
        }
    }

    pub(crate) fn database(&self) -> &'a str {
        self.database
    }

    pub(crate) fn session(&self) -> Option<&Session> {
        self.session.as_deref()
    }

    pub(crate) fn deadline(&self) -> Option<Deadline> {
        let shared = self.session().and_then(|session| session.lock().deadline);
        shared.or_else(|| self.defaults.timeout.map(Deadline::after))
    }

    fn in_transaction(&self) -> bool {
        self.session().is_some_and(Session::in_transaction)
    }

    /// Whether what was set on the action itself agrees with the transaction that it runs in.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let Some(session) = self.session() else { return Ok(()) };
        let state = session.lock();
        if state.deadline.is_some() && self.given.timeout {
            let reason = "an operation inside with_transaction shares the timeout of the whole; \
                          set none on it";
            return Err(Error::new(ErrorKind::BadCommand(reason.to_owned())));
        }
        if state.transaction.is_open() && self.given.write_concern {
            return Err(TransactionError::WriteConcern.into());
        }
        Ok(())
    }

    /// The write concern that the command carries: in a transaction none, which is for the commit.
    pub(crate) fn write_concern(&self) -> WriteConcern {
        match self.in_transaction() {
            true => WriteConcern::default(),
            false => self.defaults.write_concern.clone(),
        }
    }

    /// The read preference: in a transaction the primary, unless the action itself has another,
    /// which is then refused.
    pub(crate) fn read_preference(&self) -> ReadPreference {
        match self.in_transaction() && !self.given.read_preference {
            true => ReadPreference::PRIMARY,
            false => self.defaults.read_preference.clone(),
        }
    }

    /// The command so far, which is empty afterwards.
    fn body(&mut self) -> Result<RawDocumentBuf, Error> {
        self.check()?;
        let mut body = RawDocumentBuf::new();
        body.append(self.name, self.subject.clone());
        std::mem::take(&mut self.arguments).append_to(&mut body)?;
        Ok(body)
    }

    /// The same for a command that takes a write concern.
    pub(crate) fn body_with_write_concern(&mut self) -> Result<RawDocumentBuf, Error> {
        let mut body = self.body()?;
        if let Some(concern) = self.write_concern().document() {
            body.append(cstr!("writeConcern"), concern);
        }
        Ok(body)
    }

    /// Runs it as a read that may be sent again.
    async fn read(&mut self) -> Result<Reply, Error> {
        let body = self.body()?;
        let operation = Operation {
            target: Target::Read(self.read_preference()),
            retry: Retry::Read,
            ..self.read_operation(body)
        };
        self.client.inner().execute(&operation, self.session()).await
    }

    /// A read with the read concern and the time limit of this draft.
    fn read_operation(&self, body: RawDocumentBuf) -> Operation<'_> {
        Operation {
            purpose: Purpose::Read,
            read_concern: Some(self.defaults.read_concern.as_deref().unwrap_or_default()),
            deadline: self.deadline(),
            ..Operation::new(self.database, body)
        }
    }

    /// Runs it on the primary as a read without read concern: listings take none.
    async fn list(&mut self) -> Result<Reply, Error> {
        let body = self.body()?;
        let operation = self.list_operation(body);
        self.client.inner().execute(&operation, self.session()).await
    }

    /// The same for a listing that opens a cursor.
    async fn open_list(&mut self) -> Result<Cursor, Error> {
        let body = self.body()?;
        self.open(&self.list_operation(body)).await
    }

    fn list_operation(&self, body: RawDocumentBuf) -> Operation<'_> {
        Operation {
            purpose: Purpose::Read,
            retry: Retry::Read,
            deadline: self.deadline(),
            ..Operation::new(self.database, body)
        }
    }

    /// Runs it on the primary, once, as a command that changes something.
    async fn administer(&mut self) -> Result<Reply, Error> {
        let operation = Operation {
            purpose: Purpose::Write,
            target: Target::Write,
            read_concern: Some(""),
            deadline: self.deadline(),
            ..Operation::new(self.database, self.body_with_write_concern()?)
        };
        self.client.inner().execute(&operation, self.session()).await
    }

    /// Runs an operation that opens a cursor, in the session that the cursor goes on in.
    async fn open(&self, operation: &Operation<'_>) -> Result<Cursor, Error> {
        let session = match self.session() {
            Some(session) => session.share(),
            None => Session::implicit(Arc::clone(&self.client.inner().sessions)),
        };
        let reply = self.client.inner().execute(operation, Some(&session)).await?;
        Cursor::open(self.client.clone(), session, &reply, self.cursor.clone())
    }
}

/// Where options that concern the whole command go.
pub(crate) trait HasDraft<'a> {
    fn draft(&mut self) -> &mut Draft<'a>;
}

/// Where options go that concern one write of a command, or the command if it is only one.
pub(crate) trait HasStatement {
    fn statement(&mut self) -> &mut Arguments;
}

/// One option, written once for every action that takes it.
macro_rules! option {
    ($lifetime:lifetime session) => {
        /// Runs in a session of the application's.
        pub fn session(mut self, session: &$lifetime mut $crate::session::Session) -> Self {
            self.draft().set_session(session);
            self
        }
    };
    ($lifetime:lifetime read_preference) => {
        /// Which servers may answer.
        pub fn read_preference(mut self, preference: quorate_protocol::ReadPreference) -> Self {
            self.draft().set_read_preference(preference);
            self
        }
    };
    ($lifetime:lifetime write_concern) => {
        /// How widely the write must be known before it counts.
        pub fn write_concern(mut self, concern: quorate_client_session::WriteConcern) -> Self {
            self.draft().set_write_concern(concern);
            self
        }
    };
    ($lifetime:lifetime timeout) => {
        /// `timeoutMS`: how long the whole may take, retries included.
        pub fn timeout(mut self, limit: std::time::Duration) -> Self {
            self.draft().set_timeout(limit);
            self
        }
    };
    ($lifetime:lifetime max_time) => {
        /// `maxTimeMS`: how long the server may work on it.
        pub fn max_time(mut self, limit: std::time::Duration) -> Self {
            let limit = i64::try_from(limit.as_millis()).unwrap_or(i64::MAX);
            self.draft().arguments.set(cstr!("maxTimeMS"), limit);
            self
        }
    };
    ($lifetime:lifetime comment) => {
        /// A comment for the server's logs; any value.
        pub fn comment(mut self, comment: impl $crate::value::IntoValue) -> Self {
            self.draft().set_comment(comment);
            self
        }
    };
    ($lifetime:lifetime let_vars) => {
        /// `let`: variables for expressions.
        pub fn let_vars(mut self, variables: impl $crate::value::IntoRaw) -> Self {
            self.draft().set_document(cstr!("let"), variables);
            self
        }
    };
    ($lifetime:lifetime batch_size) => {
        /// How many results to fetch at once.
        pub fn batch_size(mut self, size: u32) -> Self {
            self.draft().cursor.batch_size = Some(size);
            self
        }
    };
    ($lifetime:lifetime filter) => {
        /// Which to list.
        pub fn filter(mut self, filter: impl $crate::value::IntoRaw) -> Self {
            self.draft().set_document(cstr!("filter"), filter);
            self
        }
    };
    ($lifetime:lifetime projection) => {
        /// The fields to return.
        pub fn projection(mut self, projection: impl $crate::value::IntoRaw) -> Self {
            self.draft().set_document(cstr!("projection"), projection);
            self
        }
    };
    ($lifetime:lifetime skip) => {
        /// How many results to leave out.
        pub fn skip(mut self, count: u64) -> Self {
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            self.draft().arguments.set(cstr!("skip"), count);
            self
        }
    };
    ($lifetime:lifetime allow_disk_use) => {
        /// Whether the server may write temporary files.
        pub fn allow_disk_use(mut self, allow: bool) -> Self {
            self.draft().arguments.set(cstr!("allowDiskUse"), allow);
            self
        }
    };
    ($lifetime:lifetime max_await_time) => {
        /// `maxAwaitTimeMS`: how long the server waits for more before it answers.
        pub fn max_await_time(mut self, limit: std::time::Duration) -> Self {
            self.draft().cursor.max_time = Some(limit);
            self
        }
    };
    ($lifetime:lifetime ordered) => {
        /// Whether the first write that fails ends it, which it does unless told otherwise.
        pub fn ordered(mut self, ordered: bool) -> Self {
            self.writes.ordered = ordered;
            self
        }
    };
    ($lifetime:lifetime bypass_document_validation) => {
        /// Whether documents need not be valid by the collection's rules.
        pub fn bypass_document_validation(mut self, bypass: bool) -> Self {
            self.draft().arguments.set(cstr!("bypassDocumentValidation"), bypass);
            self
        }
    };
    ($lifetime:lifetime sort) => {
        /// The order.
        pub fn sort(mut self, order: impl $crate::value::IntoRaw) -> Self {
            self.statement().set_document(cstr!("sort"), order);
            self
        }
    };
    ($lifetime:lifetime collation) => {
        /// How texts compare.
        pub fn collation(mut self, collation: impl $crate::value::IntoRaw) -> Self {
            self.statement().set_document(cstr!("collation"), collation);
            self
        }
    };
    ($lifetime:lifetime hint) => {
        /// The index to use: its name or its keys.
        pub fn hint(mut self, index: impl $crate::value::IntoValue) -> Self {
            self.statement().set(cstr!("hint"), index);
            self
        }
    };
    ($lifetime:lifetime upsert) => {
        /// Whether a document is inserted if none matches.
        pub fn upsert(mut self, upsert: bool) -> Self {
            self.statement().set(cstr!("upsert"), upsert);
            self
        }
    };
    ($lifetime:lifetime array_filters) => {
        /// Which elements of arrays `$[name]` means.
        pub fn array_filters(
            mut self,
            filters: impl IntoIterator<Item = impl $crate::value::IntoRaw>,
        ) -> Self {
            self.statement().set_array(cstr!("arrayFilters"), filters);
            self
        }
    };
}

/// The options of an action.
macro_rules! options {
    ($action:ident: $($option:ident),* $(,)?) => {
        impl<'a> $action<'a> {
            $($crate::action::option!('a $option);)*
        }
    };
}

/// Lets an action run by being awaited.
macro_rules! awaited {
    ($($action:ident => $output:ty),* $(,)?) => {
        $(impl<'a> IntoFuture for $action<'a> {
            type Output = Result<$output, Error>;
            type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

            fn into_future(self) -> Self::IntoFuture {
                Box::pin(self.run())
            }
        })*
    };
}

/// Actions whose options all go into the command.
macro_rules! plain {
    ($($action:ident),* $(,)?) => {
        $(impl<'a> HasDraft<'a> for $action<'a> {
            fn draft(&mut self) -> &mut Draft<'a> {
                &mut self.draft
            }
        }

        impl HasStatement for $action<'_> {
            fn statement(&mut self) -> &mut Arguments {
                &mut self.draft.arguments
            }
        })*
    };
}

pub(crate) use {awaited, option, options, plain};

impl<'a> Draft<'a> {
    pub(crate) fn set_session(&mut self, session: &'a mut Session) {
        self.session = Some(session);
    }

    pub(crate) fn set_read_preference(&mut self, preference: ReadPreference) {
        self.defaults.read_preference = preference;
        self.given.read_preference = true;
    }

    pub(crate) fn set_write_concern(&mut self, concern: WriteConcern) {
        self.defaults.write_concern = concern;
        self.given.write_concern = true;
    }

    pub(crate) fn set_timeout(&mut self, limit: Duration) {
        self.defaults.timeout = Some(limit).filter(|limit| !limit.is_zero());
        self.given.timeout = true;
    }

    /// A comment goes along with `getMore` too.
    pub(crate) fn set_comment(&mut self, comment: impl IntoValue) {
        match comment.into_value() {
            Ok(comment) => {
                self.cursor.comment = Some(comment.clone());
                self.arguments.set(cstr!("comment"), comment);
            }
            Err(error) => self.arguments.fail(error),
        }
    }

    pub(crate) fn set_document(&mut self, name: &'static CStr, document: impl IntoRaw) {
        self.arguments.set_document(name, document);
    }
}

impl Arguments {
    pub(crate) fn set_document(&mut self, name: &'static CStr, document: impl IntoRaw) {
        match document.into_raw() {
            Ok(document) => self.set(name, document),
            Err(error) => self.fail(error),
        }
    }

    pub(crate) fn set_array(
        &mut self,
        name: &'static CStr,
        documents: impl IntoIterator<Item = impl IntoRaw>,
    ) {
        match crate::value::array(documents) {
            Ok(array) => self.set(name, array),
            Err(error) => self.fail(error),
        }
    }
}
