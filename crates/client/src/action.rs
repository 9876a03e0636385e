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
use quorate_wire::AppendSome;

use crate::client::Client;
use crate::cursor::{Cursor, CursorSettings};
use crate::error::Error;
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
            return Err(Error::bad_command(reason));
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
        body.append_some(cstr!("writeConcern"), self.write_concern().document());
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
        self.open(self.list_operation(body)).await
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
    async fn open(&self, operation: Operation<'_>) -> Result<Cursor, Error> {
        let session = match self.session() {
            Some(session) => session.share(),
            None => Session::implicit(Arc::clone(&self.client.inner().sessions)),
        };
        let opened = Cursor::open(self.client, session, operation, self.cursor.clone()).await?;
        Ok(opened.0)
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

/// Methods that change an action and return it.
macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*) |$action:ident| $change:expr;)*) => {
        $($(#[$doc])* pub fn $name(mut self, $($argument: $type),*) -> Self {
            let $action = &mut self;
            $change;
            self
        })*
    };
}

/// One option, written once for every action that takes it.
macro_rules! option {
    ($lifetime:lifetime session) => { $crate::action::setters! {
        /// Runs in a session of the application's.
        session(session: &$lifetime mut $crate::session::Session)
            |action| action.draft().set_session(session);
    } };
    ($lifetime:lifetime read_preference) => { $crate::action::setters! {
        /// Which servers may answer.
        read_preference(preference: quorate_protocol::ReadPreference)
            |action| action.draft().set_read_preference(preference);
    } };
    ($lifetime:lifetime write_concern) => { $crate::action::setters! {
        /// How widely the write must be known before it counts.
        write_concern(concern: quorate_client_session::WriteConcern)
            |action| action.draft().set_write_concern(concern);
    } };
    ($lifetime:lifetime timeout) => { $crate::action::setters! {
        /// `timeoutMS`: how long the whole may take, retries included.
        timeout(limit: std::time::Duration) |action| action.draft().set_timeout(limit);
    } };
    ($lifetime:lifetime max_time) => { $crate::action::setters! {
        /// `maxTimeMS`: how long the server may work on it.
        max_time(limit: std::time::Duration)
            |action| action.draft().arguments.set(cstr!("maxTimeMS"), $crate::action::long(limit.as_millis()));
    } };
    ($lifetime:lifetime comment) => { $crate::action::setters! {
        /// A comment for the server's logs; any value.
        comment(comment: impl $crate::value::IntoValue)
            |action| action.draft().set_comment(comment);
    } };
    ($lifetime:lifetime let_vars) => { $crate::action::setters! {
        /// `let`: variables for expressions.
        let_vars(variables: impl $crate::value::IntoRaw)
            |action| action.draft().set_document(cstr!("let"), variables);
    } };
    ($lifetime:lifetime batch_size) => { $crate::action::setters! {
        /// How many results to fetch at once.
        batch_size(size: u32) |action| action.draft().cursor.batch_size = Some(size);
    } };
    ($lifetime:lifetime filter) => { $crate::action::setters! {
        /// Which to list.
        filter(filter: impl $crate::value::IntoRaw)
            |action| action.draft().set_document(cstr!("filter"), filter);
    } };
    ($lifetime:lifetime projection) => { $crate::action::setters! {
        /// The fields to return.
        projection(projection: impl $crate::value::IntoRaw)
            |action| action.draft().set_document(cstr!("projection"), projection);
    } };
    ($lifetime:lifetime skip) => { $crate::action::setters! {
        /// How many results to leave out.
        skip(count: u64)
            |action| action.draft().arguments.set(cstr!("skip"), $crate::action::long(count));
    } };
    ($lifetime:lifetime allow_disk_use) => { $crate::action::setters! {
        /// Whether the server may write temporary files.
        allow_disk_use(allow: bool)
            |action| action.draft().arguments.set(cstr!("allowDiskUse"), allow);
    } };
    ($lifetime:lifetime max_await_time) => { $crate::action::setters! {
        /// `maxAwaitTimeMS`: how long the server waits for more before it answers.
        max_await_time(limit: std::time::Duration)
            |action| action.draft().cursor.max_time = Some(limit);
    } };
    ($lifetime:lifetime ordered) => { $crate::action::setters! {
        /// Whether the first write that fails ends it, which it does unless told otherwise.
        ordered(ordered: bool) |action| action.writes.ordered = ordered;
    } };
    ($lifetime:lifetime bypass_document_validation) => { $crate::action::setters! {
        /// Whether documents need not be valid by the collection's rules.
        bypass_document_validation(bypass: bool)
            |action| action.draft().arguments.set(cstr!("bypassDocumentValidation"), bypass);
    } };
    ($lifetime:lifetime sort) => { $crate::action::setters! {
        /// The order.
        sort(order: impl $crate::value::IntoRaw)
            |action| action.statement().set_document(cstr!("sort"), order);
    } };
    ($lifetime:lifetime collation) => { $crate::action::setters! {
        /// How texts compare.
        collation(collation: impl $crate::value::IntoRaw)
            |action| action.statement().set_document(cstr!("collation"), collation);
    } };
    ($lifetime:lifetime hint) => { $crate::action::setters! {
        /// The index to use: its name or its keys.
        hint(index: impl $crate::value::IntoValue)
            |action| action.statement().set(cstr!("hint"), index);
    } };
    ($lifetime:lifetime upsert) => { $crate::action::setters! {
        /// Whether a document is inserted if none matches.
        upsert(upsert: bool) |action| action.statement().set(cstr!("upsert"), upsert);
    } };
    ($lifetime:lifetime array_filters) => { $crate::action::setters! {
        /// Which elements of arrays `$[name]` means.
        array_filters(filters: impl IntoIterator<Item = impl $crate::value::IntoRaw>)
            |action| action.statement().set_array(cstr!("arrayFilters"), filters);
    } };
}

/// An action: its fields, what awaiting it gives, where options of the command and of its statement go, and which
/// options it takes.
macro_rules! action {
    ($(#[$doc:meta])* $action:ident<$a:lifetime> { $($fields:tt)* } => $output:ty,
     draft: $($draft:ident).+, options: $($option:ident),+ $(,)?) => {
        $crate::action::action! {
            $(#[$doc])* $action<$a> { $($fields)* } => $output,
            draft: $($draft).+, statement: $($draft).+.arguments, options: $($option),+
        }
    };
    ($(#[$doc:meta])* $action:ident<$a:lifetime> { $($fields:tt)* } => $output:ty,
     draft: $($draft:ident).+, statement: $($statement:ident).+, options: $($option:ident),+ $(,)?) => {
        $(#[$doc])*
        #[derive(Debug)]
        #[must_use = "an action runs when it is awaited"]
        pub struct $action<$a> { $($fields)* }

        impl<$a> $crate::action::HasDraft<$a> for $action<$a> {
            fn draft(&mut self) -> &mut $crate::action::Draft<$a> {
                &mut self.$($draft).+
            }
        }

        impl $crate::action::HasStatement for $action<'_> {
            fn statement(&mut self) -> &mut $crate::action::Arguments {
                &mut self.$($statement).+
            }
        }

        impl<$a> $action<$a> {
            $($crate::action::option!($a $option);)+
        }

        impl<$a> IntoFuture for $action<$a> {
            type Output = Result<$output, $crate::error::Error>;
            type IntoFuture = std::pin::Pin<Box<dyn Future<Output = Self::Output> + Send + $a>>;

            fn into_future(self) -> Self::IntoFuture {
                Box::pin(self.run())
            }
        }
    };
}

pub(crate) use {action, option, setters};

/// A number as commands carry it: the largest that they can if it is larger.
pub(crate) fn long(number: impl TryInto<i64>) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}

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
