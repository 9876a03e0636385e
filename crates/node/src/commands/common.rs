//! What several commands share: write concerns, filters, and opening cursors.

use std::cell::OnceCell;
use std::sync::Arc;

use bson::spec::BinarySubtype;
use bson::{Bson, DateTime, Document, RawDocument, RawDocumentBuf};
use quorate_query::expression::{Compiler, Variables};
use quorate_query::matcher::Matcher;
use quorate_query::value::DocumentRef;
use quorate_storage::CommitSequence;
use quorate_wire::{raw_fields, to_bson_timestamp};

use crate::body::CommandBody;
use crate::catalog::Collection;
use crate::change_stream::ChangeStream;
use crate::context::{Command, Durable, Outcome, Reply};
use crate::cursors::{BatchName, Cursor, DEFAULT_FIRST_BATCH, DocumentStream};
use crate::dispatch::Request;
use crate::error::Result;
use crate::fields::{Fields, to_raw, whole_number};
use crate::finder::InterruptSlot;
use crate::namespace::Namespace;
use crate::records::DocumentBytes;
use crate::replication::Commit;
use crate::sort::Room;
use crate::tail::Tail;
use crate::users::session_owner;

/// A reply made of a document.
pub(super) fn reply(document: &Document) -> Result<Outcome> {
    Ok(Outcome::Reply(to_raw(document)?.into()))
}

/// What a client wants to be sure of before a write is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct WriteConcern {
    /// The write must survive a crash.
    journal: bool,
}

impl WriteConcern {
    /// Reads `writeConcern`. A member without a set can acknowledge for itself only.
    pub(crate) fn parse(command: &Command) -> Result<Self> {
        if let Some(usual) = command.given_write_concern().and_then(Self::usual) {
            return Ok(usual);
        }
        let Some(concern) = command.write_concern()? else { return Ok(Self::default()) };
        let concern_fields = Fields::new(concern, "writeConcern");
        let mut journal = concern_fields.flag("j")?;
        match concern.get("w") {
            None => {}
            Some(Bson::String(mode)) if mode == "majority" => journal = true,
            Some(Bson::String(mode)) => {
                refuse!(
                    UNKNOWN_REPL_WRITE_CONCERN,
                    "No write concern mode named '{mode}' found in replica set \
                             configuration"
                );
            }
            Some(number) => match whole_number(number) {
                Some(0) if journal => {
                    refuse!(BAD_VALUE, "cannot use non-acknowledged write concern with j: true");
                }
                Some(0 | 1) => {}
                Some(number) if (2..=50).contains(&number) => {
                    refuse!(BAD_VALUE, "cannot use 'w' > 1 when a host is not replicated");
                }
                _ => {
                    refuse!(
                        FAILED_TO_PARSE,
                        "w has to be a non-negative number and not greater than 50; or \"majority\""
                    );
                }
            },
        }
        Ok(Self { journal })
    }

    /// A concern of `w: 1` and `j` or one of them, which is what most clients send, read where it came.
    fn usual(concern: &RawDocument) -> Option<Self> {
        let (mut w, mut journal) = (None, None);
        for field in raw_fields(concern) {
            match field.key() {
                b"w" if w.is_none() && field.int32() == Some(1) => w = Some(1),
                b"j" if journal.is_none() => journal = Some(field.boolean()?),
                _ => return None,
            }
        }
        Some(Self { journal: journal.unwrap_or(false) })
    }

    /// What a reply waits for on the disk, if the client asked for it.
    pub(crate) fn durable(self, commit: Option<CommitSequence>) -> Option<Durable> {
        self.journal.then(|| commit.map_or(Durable::All, Durable::Commit))
    }

    /// A reply that waits for the disk if the client asked for it.
    pub(super) fn reply(self, body: RawDocumentBuf, commit: Option<Commit>) -> Outcome {
        let durable = self.durable(commit.map(|commit| commit.sequence));
        Outcome::Reply(Reply { body, durable, op_time: commit.and_then(|commit| commit.op_time) })
    }
}

/// Refuses every collation but the simple one.
pub(super) fn check_collation(fields: &Fields<'_>) -> Result<()> {
    match fields.document("collation")? {
        Some(collation) if !collation.is_empty() => match collation.get_str("locale") {
            Ok("simple") => Ok(()),
            Ok(locale) => Err(fail!(
                COMMAND_NOT_SUPPORTED,
                "collation '{locale}' is not supported; use locale 'simple'"
            )),
            Err(_) => Err(fail!(
                MISSING_FIELD,
                "BSON field 'collation.locale' is missing but a required field"
            )),
        },
        _ => Ok(()),
    }
}

/// The variables that every expression of a command sees, those of the views that it reads too: the time, the time
/// of the set, and the roles of the user.
pub(super) fn system_variables(request: &Request<'_>) -> Variables {
    let now = DateTime::from_millis(request.context.now.wall.as_millis());
    let seed = request.node.next_seed();
    let mut variables = Variables::metered(seed, request.meter().clone()).with_now(now);
    if let Some(roles) = request.context.client.login.state().roles.clone() {
        variables = variables.with_user_roles(roles);
    }
    match request.node.newest_time() {
        Some(time) => variables.with_cluster_time(to_bson_timestamp(time)),
        None => variables,
    }
}

/// The same, and those of the command's `let`.
pub(super) fn command_variables(request: &Request<'_>, fields: &Fields<'_>) -> Result<Variables> {
    let mut variables = system_variables(request);
    if let Some(definitions) = fields.document("let")? {
        // Definitions may use constants and operators, not the document or each other.
        let compiler = Compiler::new(variables.clone());
        let nothing = Document::new();
        for (name, definition) in definitions {
            let value = compiler.compile(definition)?.evaluate(DocumentRef::Parsed(&nothing))?;
            match value {
                Some(value) => variables.set(name, value),
                None => variables.set_missing(name),
            }
        }
    }
    Ok(variables)
}

/// What compiles the expressions of a command.
pub(super) fn command_compiler(request: &Request<'_>, fields: &Fields<'_>) -> Result<Compiler> {
    Ok(Compiler::new(command_variables(request, fields)?))
}

/// The same, made once something is compiled.
pub(super) struct LazyCompiler<'c> {
    request: &'c Request<'c>,
    command: Fields<'c>,
    made: OnceCell<Compiler>,
}

impl<'c> LazyCompiler<'c> {
    pub(super) fn new(request: &'c Request<'c>, command: Fields<'c>) -> Self {
        Self { request, command, made: OnceCell::new() }
    }

    /// Whether the command defines variables. Their definitions are checked, whether or not they are used.
    pub(super) fn has_variables(&self) -> bool {
        self.command.has("let")
    }

    pub(super) fn get(&self) -> Result<&Compiler> {
        if let Some(made) = self.made.get() {
            return Ok(made);
        }
        let made = command_compiler(self.request, &self.command)?;
        Ok(self.made.get_or_init(|| made))
    }

    /// One that sees these constants besides.
    pub(super) fn with_constants(&self, constants: &Document) -> Result<Compiler> {
        let mut variables = command_variables(self.request, &self.command)?;
        for (name, value) in constants {
            variables.set(name, value.clone());
        }
        Ok(Compiler::new(variables))
    }
}

/// The query of a command; all documents if there is none.
pub(super) fn parse_filter(
    request: &Request<'_>,
    fields: &Fields<'_>,
    name: &str,
) -> Result<Arc<Matcher>> {
    match fields.document(name)? {
        Some(filter) => {
            let compiler = command_compiler(request, fields)?;
            Ok(Arc::new(Matcher::parse_with(filter, &compiler)?))
        }
        None => Ok(Arc::new(Matcher::match_all())),
    }
}

/// How much the sorts of a command may hold, and whether they may put the rest on disk: they may unless
/// the client says otherwise.
pub(super) fn sort_room(request: &Request<'_>, fields: &Fields<'_>) -> Result<Room> {
    let allowed = fields.boolean("allowDiskUse")?.unwrap_or(true);
    let scratch = request.node.options().scratch.clone().filter(|_| allowed);
    Ok(Room { scratch, meter: request.meter().clone() })
}

/// How a new cursor is to be handed out.
pub(super) struct CursorOptions {
    pub(super) batch_size: Option<u64>,
    pub(super) limit: Option<u64>,
    pub(super) single_batch: bool,
    pub(super) no_timeout: bool,
    pub(super) tail: Option<Tail>,
    pub(super) interrupt: InterruptSlot,
}

impl CursorOptions {
    pub(super) fn new(request: &Request<'_>) -> Self {
        Self {
            batch_size: None,
            limit: None,
            single_batch: false,
            no_timeout: false,
            tail: None,
            interrupt: request.interrupt.clone(),
        }
    }
}

/// Sends the first batch of a stream and keeps the rest as a cursor.
pub(super) fn open_cursor(
    request: &Request<'_>,
    namespace: Namespace,
    stream: DocumentStream,
    options: CursorOptions,
) -> Result<Outcome> {
    open(request, namespace, stream, None, options)
}

/// The first batch of a change stream, which stays open.
pub(super) fn open_change_stream(
    request: &Request<'_>,
    namespace: Namespace,
    stream: ChangeStream,
    options: CursorOptions,
) -> Result<Outcome> {
    open(request, namespace, Box::new(std::iter::empty()), Some(Box::new(stream)), options)
}

fn open(
    request: &Request<'_>,
    namespace: Namespace,
    stream: DocumentStream,
    changes: Option<Box<ChangeStream>>,
    options: CursorOptions,
) -> Result<Outcome> {
    let shown = namespace.to_string();
    let mut cursor = Cursor {
        namespace,
        session: request.session,
        transaction: request.transaction.as_ref().map(|body| body.id),
        owner: session_owner(request.node, &request.context.client),
        stream,
        remaining: options.limit,
        held_back: None,
        interrupt: options.interrupt,
        no_timeout: options.no_timeout,
        tail: options.tail,
        changes,
    };
    let size = options
        .batch_size
        .map_or(DEFAULT_FIRST_BATCH, |size| usize::try_from(size).unwrap_or(usize::MAX));
    let batch = match cursor.changes {
        Some(_) => cursor.next_events(request.node, BatchName::First, size)?,
        None => cursor.next_batch(BatchName::First, size)?,
    };
    request.node.counters().returned(batch.count);
    let id = if batch.exhausted || options.single_batch {
        0
    } else {
        request.node.cursors().add(cursor, request.context.now.monotonic)?
    };
    let body = batch.into_reply(BatchName::First, id, &[&shown], request.at_cluster_time())?;
    Ok(Outcome::Reply(body.into()))
}

/// A cursor over documents that are all known.
pub(super) fn open_list(
    request: &Request<'_>,
    namespace: Namespace,
    documents: Vec<Document>,
    command: &CommandBody,
) -> Result<Outcome> {
    let mut options = CursorOptions::new(request);
    let cursor = Fields::new(command, request.name).document("cursor")?;
    if let Some(cursor) = cursor {
        options.batch_size = Fields::new(cursor, "cursor").count("batchSize")?;
    }
    let raw: Vec<_> =
        documents.iter().map(|document| to_raw(document).map(DocumentBytes::from)).collect();
    open_cursor(request, namespace, Box::new(raw.into_iter()), options)
}

/// Counts a capped collection that may grow, before the write lock is held: a writer that adds to it has to know how much
/// it holds.
pub(super) fn count_capped(request: &Request<'_>, namespace: &Namespace) -> Result<()> {
    match request.node.catalog().get(namespace).filter(|found| found.capped.is_some()) {
        Some(capped) => request.totals(capped).map(drop),
        None => Ok(()),
    }
}

/// Refuses a command that says which collection it means if the name belongs to another one by now, or to
/// none: what it reads then is of that collection, whatever is renamed meanwhile.
pub(super) fn check_uuid(
    fields: &Fields<'_>,
    namespace: &Namespace,
    found: Option<&Collection>,
) -> Result<()> {
    let meant = match fields.raw("collectionUUID") {
        None => return Ok(()),
        Some(Bson::Binary(meant)) if meant.subtype == BinarySubtype::Uuid => meant,
        Some(other) => {
            refuse!(
                TYPE_MISMATCH,
                "collectionUUID must be a UUID, not {}",
                quorate_query::value::type_name_of(other)
            );
        }
    };
    if found.is_some_and(|found| found.view.is_none() && found.uuid == *meant) {
        return Ok(());
    }
    Err(fail!(
        COLLECTION_UUID_MISMATCH,
        "{namespace} is not the collection that the command means by its collectionUUID; it was \
             renamed or dropped: look for it with listCollections"
    ))
}
