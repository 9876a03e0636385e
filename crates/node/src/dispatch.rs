//! What happens to every command before its own code runs, and to its errors.

use std::sync::{Arc, OnceLock};

use bson::{Bson, RawBsonRef, RawDocumentBuf, doc};
use quorate_protocol::Timestamp;
use quorate_query::Meter;

use crate::body::CommandBody;
use crate::catalog::{Catalog, Collection};
use crate::command_table::{CommandFacts, Effect};
use crate::context::{Client, Command, Context, Outcome, Reply};
use crate::error::{CommandError, Result};
use crate::fields::{to_raw, whole_number};
use crate::finder::{Examined, InterruptSlot};
use crate::generic_arguments::{self, ReadsAt};
use crate::moments::Moment;
use crate::namespace::{Namespace, check_database_name};
use crate::node::Node;
use crate::not_offered;
use crate::profile::Work;
use crate::protected;
use crate::records::View;
use crate::replication::{Commit, check_role};
use crate::sessions::SessionId;
use crate::transactions::{self, Body, Numbered, has_made_up_collections, made_up_collection};
use crate::users::{EXTERNAL, check_access, session_owner};
use crate::writer::{RetryableWrite, Totals, Writer};

/// A command that has passed the common checks.
pub(crate) struct Request<'a> {
    pub(crate) node: &'a Node,
    pub(crate) context: &'a Context,
    /// The name under which it was called.
    pub(crate) name: &'a str,
    pub(crate) database: &'a str,
    pub(crate) session: Option<SessionId>,
    /// Set if it reads the data of one moment: a snapshot, what a majority has, or the newest data
    /// after a time that its client has seen.
    pub(crate) moment: Option<Arc<Moment>>,
    /// Which data it reads.
    pub(crate) reads_at: ReadsAt,
    /// Set if the client may repeat this write.
    pub(crate) retryable: Option<RetryableWrite>,
    /// The transaction that it is a statement of.
    pub(crate) transaction: Option<Arc<Body>>,
    /// Set once its transaction may go on with the next statement.
    pub(crate) has_ended: OnceLock<()>,
    /// The number of the transaction that it ends.
    pub(crate) ends: Option<i64>,
    /// What its loops look at; a cursor that it opens hands it on to the commands that read on.
    pub(crate) interrupt: InterruptSlot,
    /// What counts its steps and its memory, made when first needed; see [`Request::meter`].
    pub(crate) meter: OnceLock<Meter>,
}

impl Request<'_> {
    /// What counts the steps and the memory of this operation, and of the cursor that it opens.
    pub(crate) fn meter(&self) -> &Meter {
        self.meter.get_or_init(|| {
            let interrupt = Arc::new(self.interrupt.clone());
            Meter::of_operation(interrupt, Arc::clone(self.node.memory()))
        })
    }

    /// A collection and the store as this command sees them.
    pub(crate) fn read(&self, namespace: &Namespace) -> Result<(Option<Arc<Collection>>, View)> {
        if let Some(transaction) = &self.transaction {
            return transaction.read(self.node, &self.context.interrupt, namespace);
        }
        let (collection, view) = match &self.moment {
            Some(moment) => moment.read(namespace),
            None => self.node.read(namespace),
        };
        match made_up_collection(self.node.facts_keyspace(), namespace, &view)? {
            Some((collection, view)) => Ok((Some(collection), view)),
            None => Ok((collection, view)),
        }
    }

    /// The same, by names that were checked.
    pub(crate) fn read_named(
        &self,
        (database, collection): (&str, &str),
    ) -> Result<(Option<Arc<Collection>>, View)> {
        let is_newest = self.transaction.is_none() && self.moment.is_none();
        match is_newest && !has_made_up_collections(database) {
            true => Ok(self.node.read(&(database, collection))),
            false => self.read(&Namespace::new(database, collection)?),
        }
    }

    /// Waits for the write lock. The changes are the transaction's, if the command is part of one.
    pub(crate) fn write(&self) -> Writer<'_> {
        let mut writer = self.node.write_in(self.transaction.as_ref(), self.context.now);
        writer.work_for(&self.context.interrupt);
        writer
    }

    /// How much a collection holds.
    pub(crate) fn totals(&self, collection: &Collection) -> Result<Totals> {
        self.node.totals(collection, &self.interrupt, self.context.now)
    }

    /// All is written. A statement of a transaction that succeeded ends while it holds the write lock.
    pub(crate) fn end_writes(&self, mut writer: Writer<'_>, succeeded: bool) -> Option<Commit> {
        if let (Some(body), true) = (&self.transaction, succeeded)
            && writer.state.transactions.table.finish(body.id, true).is_ok()
        {
            self.has_ended.get_or_init(|| ());
        }
        writer.last_commit()
    }

    /// `atClusterTime` of the reply, if the command reads a snapshot.
    pub(crate) fn at_cluster_time(&self) -> Option<Timestamp> {
        let moment = self.moment.as_ref();
        moment.filter(|_| matches!(self.reads_at, ReadsAt::Snapshot(_))).map(|moment| moment.time)
    }

    /// All collections as this command sees them.
    pub(crate) fn catalog(&self) -> Arc<Catalog> {
        if let Some(transaction) = &self.transaction {
            return transaction.catalog();
        }
        match &self.moment {
            Some(moment) => Arc::clone(&moment.catalog),
            None => self.node.catalog(),
        }
    }

    /// The collection that the first field names.
    pub(crate) fn namespace(&self, command: &Command) -> Result<Namespace> {
        match command.body.first_text() {
            Some(collection) => Namespace::new(self.database, collection),
            None => self.collection_named(command.body.first()),
        }
    }

    pub(crate) fn collection_named(&self, name: Option<&Bson>) -> Result<Namespace> {
        match name {
            Some(Bson::String(collection)) => Namespace::new(self.database, collection),
            other => Err(fail!(
                INVALID_NAMESPACE,
                "collection name has invalid type {}",
                other.map_or("missing", quorate_query::value::type_name_of)
            )),
        }
    }
}

/// Refuses a command that there is not, that the client may not run, that has fields which no such
/// command has, or that would change what clients may not change.
pub(crate) fn admit(
    node: &Node,
    client: &Client,
    command: &Command,
) -> Result<&'static CommandFacts> {
    let facts = match command.facts() {
        Some(facts) if !facts.test_only || node.options().test_commands => facts,
        known => return Err(not_found(command.name(), known.is_some())),
    };
    let database = command.database();
    // The users of other authorities have a database that holds nothing else.
    if database != EXTERNAL {
        check_database_name(database)?;
    }
    refuse_if!(facts.admin_only && database != "admin" => UNAUTHORIZED,
        "{} may only be run against the admin database.", command.name());
    check_access(node, client, facts, command)?;
    generic_arguments::check_fields(facts, &command.body)?;
    protected::check(node, facts, command)?;
    Ok(facts)
}

fn not_found(name: &str, is_for_tests: bool) -> CommandError {
    let way = match not_offered::way_around(name) {
        _ if is_for_tests => {
            "; it is for tests, start the server with --enable-test-commands".to_owned()
        }
        Some(way) => format!("; MongoDB's command is not offered here: {way}"),
        None => String::new(),
    };
    fail!(COMMAND_NOT_FOUND, "no such command: '{name}'{way}")
}

/// The answer to a client that asks what a command is for, with `help: true` beside its name; none to one that wants
/// it done. Shells ask so for every command, also for those that end the server or drop a database.
pub(crate) fn help(node: &Node, command: &Command) -> Option<RawDocumentBuf> {
    let asked = match command.body.get("help")? {
        Bson::Boolean(asked) => *asked,
        number => whole_number(number).is_some_and(|number| number != 0),
    };
    let facts = command.facts().filter(|facts| !facts.test_only || node.options().test_commands)?;
    let text = format!("help for: {} {}", facts.name, facts.help);
    asked.then(|| to_raw(&doc! { "help": text, "ok": 1.0 }).unwrap_or_default())
}

/// Runs a command: errors become replies.
pub(crate) fn run(node: &Node, context: &Context, command: Command) -> Outcome {
    if let Some(help) = help(node, &command) {
        return Outcome::Reply(help.into());
    }
    let body = Arc::clone(&command.body);
    let result = prepare(node, context, &command, &body).and_then(|(facts, request)| {
        let writes = node.replication().filter(|_| facts.effect == Effect::Writes);
        let _running = writes.map(|replication| replication.writer_runs(&context.interrupt));
        let aside = facts.effect == Effect::Writes && context.may_look_at.is_none();
        let _long = aside.then(|| node.long_write_runs());
        node.counters().command(facts, &command);
        let checked = transactions::check_target(&request, facts, &command);
        let outcome = checked.and_then(|()| (facts.run)(&request, command));
        if request.interrupt.has_given_way() {
            return Ok(Outcome::Long);
        }
        let outcome = transactions::conclude(&request, outcome);
        let examined = request.interrupt.take_examined();
        node.counters().ran(facts, outcome.is_err(), examined);
        if examined != Examined::default() {
            let plan = request.interrupt.plan_summary();
            context.interrupt.tell_work(Work { examined, plan });
        }
        // A statement that was cut short is the command's failure, not the statement's.
        if let Err(interrupted) = context.interrupt.check()
            && was_cut_short(&outcome, &interrupted)
        {
            return Err(interrupted);
        }
        outcome
    });
    match result {
        Ok(outcome) => outcome,
        Err(mut error) => {
            if let Some(replication) = node.replication() {
                replication.complete(&mut error);
            }
            transactions::label(&mut error, &body);
            Outcome::Reply(error_reply(&error))
        }
    }
}

/// Whether a command ended because it was interrupted. A member that steps down makes statements fail in
/// other ways as well.
fn was_cut_short(outcome: &Result<Outcome>, interrupted: &CommandError) -> bool {
    let by_state = interrupted.code.is_state_change();
    match outcome {
        Ok(Outcome::Reply(reply)) => {
            let Ok(errors) = reply.body.get_array("writeErrors") else { return false };
            let is_the_same = |error: RawBsonRef<'_>| {
                let code = error.as_document().and_then(|error| error.get_i32("code").ok());
                code == Some(interrupted.code.0)
            };
            by_state || errors.into_iter().flatten().any(is_the_same)
        }
        Ok(Outcome::Wait { .. } | Outcome::Long) => false,
        Err(_) => by_state,
    }
}

/// The reply for an error. A document of our own making always has a BSON form.
pub(crate) fn error_reply(error: &CommandError) -> Reply {
    to_raw(&error.reply()).unwrap_or_else(|_| RawDocumentBuf::new()).into()
}

fn prepare<'a>(
    node: &'a Node,
    context: &'a Context,
    command: &Command,
    body: &'a CommandBody,
) -> Result<(&'static CommandFacts, Request<'a>)> {
    context.interrupt.check()?;
    let facts = admit(node, &context.client, command)?;
    let (name, database) = (body.name(), body.database());
    generic_arguments::check(node, facts, command)?;
    check_role(node, facts.effect, database, command)?;
    check_room(node, facts)?;
    let session = keep_session(node, context, command)?;
    let numbered = transactions::enter(node, context, facts, command, session.as_ref())?;
    let (mut retryable, mut transaction, mut ends) = (None, None, None);
    match numbered {
        Numbered::No => {}
        Numbered::Retryable(write) => retryable = Some(write),
        Numbered::Statement(body) => transaction = Some(body),
        Numbered::End(number) => ends = Some(number),
    }
    // A transaction has its own moment, whatever its first statement says about reading.
    let reads_at = match transaction {
        Some(_) => ReadsAt::Newest,
        None => generic_arguments::reads_at(facts, command)?,
    };
    let moment = node.pin(reads_at, context.now.monotonic)?;
    // A statement cannot be run again: its transaction has begun.
    let may_look_at = context.may_look_at.filter(|_| transaction.is_none());
    let can_run_again = facts.effect == Effect::Reads;
    let interrupt = Arc::clone(&context.interrupt);
    let request = Request {
        node,
        context,
        name,
        database,
        session,
        moment,
        reads_at,
        retryable,
        interrupt: InterruptSlot::within(interrupt, may_look_at, can_run_again),
        transaction,
        ends,
        has_ended: OnceLock::new(),
        meter: OnceLock::new(),
    };
    Ok((facts, request))
}

/// The session that a command names, which is started or kept alive. Where clients log in, one that has not logged in has
/// none: sessions are kept for long, and any client may send commands that need no login.
fn keep_session(node: &Node, context: &Context, command: &Command) -> Result<Option<SessionId>> {
    let Some(session) = SessionId::from_command(&command.body)? else { return Ok(None) };
    let owner = session_owner(node, &context.client);
    if owner.is_none() && node.options().authentication {
        return Ok(None);
    }
    node.sessions().refresh(session, owner, context.now.monotonic)?;
    Ok(Some(session))
}

/// Commands that make room, and so run on a full disk too.
const REMOVING_COMMANDS: [&str; 4] = ["delete", "drop", "dropDatabase", "dropIndexes"];

/// Refuses to add anything where there is no room for it.
fn check_room(node: &Node, facts: &CommandFacts) -> Result<()> {
    let adds = facts.effect == Effect::Writes && !REMOVING_COMMANDS.contains(&facts.name);
    if !adds || !node.disk_is_full() {
        return Ok(());
    }
    Err(fail!(
        OUT_OF_DISK_SPACE,
        "the disk of this member is full; remove something, or give it a larger disk"
    ))
}
