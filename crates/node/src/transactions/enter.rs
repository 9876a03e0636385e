//! Commands with a transaction number on their way in, and statements on their way out.

use std::sync::Arc;

use bson::{Bson, RawBsonRef};
use quorate_transactions::{Arrival, Kind, Place, Refusal, Stored, Verdict, labels};
use quorate_wire::find_field;

use quorate_protocol::Lock;

use super::rows::SessionRow;
use super::stage::Stage;
use super::{Body, refused};
use crate::body::CommandBody;
use crate::command_table::{CommandFacts, Effect, InTransaction};
use crate::context::{Command, Context, Outcome};
use crate::dispatch::Request;
use crate::error::{CommandError, ErrorCode, Result};
use crate::fields::Fields;
use crate::generic_arguments::wanted_snapshot;
use crate::moments::Moment;
use crate::node::Node;
use crate::replication::not_writable;
use crate::sessions::SessionId;
use crate::writer::{RetryableWrite, StatementIds, Writer};

/// Stages that look at more than a snapshot, or write.
const FORBIDDEN_STAGES: [&str; 10] = [
    "$changeStream", "$collStats", "$currentOp", "$indexStats", "$listLocalSessions",
    "$listSessions", "$merge", "$out", "$planCacheStats", "$unionWith",
];

/// What a transaction number makes of a command.
pub(crate) enum Numbered {
    /// There is none.
    No,
    /// A write that may be repeated.
    Retryable(RetryableWrite),
    /// A statement of this transaction.
    Statement(Arc<Body>),
    /// The end of the transaction with this number.
    End(i64),
}

/// Looks at the transaction fields of a command, and begins or goes on with its transaction.
pub(crate) fn enter(
    node: &Node,
    context: &Context,
    facts: &CommandFacts,
    command: &Command,
    session: Option<&SessionId>,
) -> Result<Numbered> {
    let fields = Fields::new(&command.body, facts.name);
    let Some(number) = fields.long("txnNumber")? else {
        let half = match (fields.has("autocommit"), fields.has("startTransaction")) {
            (true, _) => Some("autocommit"),
            (false, true) => Some("startTransaction"),
            (false, false) => None,
        };
        return match half {
            None if is_end(facts) => Err(invalid(format!("{} needs a txnNumber", facts.name))),
            None => Ok(Numbered::No),
            Some(name) => Err(invalid(format!("{name} needs a txnNumber beside it"))),
        };
    };
    refuse_if!(node.oplog().is_none() => ILLEGAL_OPERATION,
        "Transaction numbers are only allowed on a replica set member or mongos");
    let Some(session) = session else {
        return Err(invalid("Transaction number requires a session ID to also be specified"));
    };
    if number < 0 {
        return Err(invalid("Transaction number cannot be negative"));
    }
    let starts = starts(&fields)?;
    match fields.boolean("autocommit")? {
        None if starts => return Err(invalid("startTransaction needs autocommit: false")),
        None if is_end(facts) => {
            return Err(invalid(format!("{} needs autocommit: false", facts.name)));
        }
        None if !facts.retryable => {
            return Err(invalid(format!("{} cannot be retried; leave txnNumber out", facts.name)));
        }
        None => {
            let (session, statements) = (*session, StatementIds::of(&fields)?);
            return Ok(Numbered::Retryable(RetryableWrite { session, number, statements }));
        }
        Some(true) => return Err(invalid("autocommit must be false wherever it is given")),
        Some(false) => {}
    }
    if is_end(facts) {
        return match starts {
            true => Err(invalid(format!("{} starts no transaction", facts.name))),
            false => Ok(Numbered::End(number)),
        };
    }
    check_statement(facts, command, &fields, starts)?;
    if node.replication().is_some_and(|known| known.writable_term().is_none()) {
        return Err(not_writable());
    }
    let kind = if starts { Kind::Start } else { Kind::Continue };
    begin_or_proceed(node, context, session, Arrival { number, kind }, command)
        .map(Numbered::Statement)
}

fn is_end(facts: &CommandFacts) -> bool {
    matches!(facts.name, "commitTransaction" | "abortTransaction")
}

fn starts(fields: &Fields<'_>) -> Result<bool> {
    match fields.boolean("startTransaction")? {
        None => Ok(false),
        Some(true) => Ok(true),
        Some(false) => Err(invalid("Specifying startTransaction: false is not allowed")),
    }
}

fn begin_or_proceed(
    node: &Node,
    context: &Context,
    session: &SessionId,
    arrival: Arrival,
    command: &Command,
) -> Result<Arc<Body>> {
    let fields = Fields::new(&command.body, command.name());
    let past = match wanted_snapshot(command)?.and_then(|snapshot| snapshot.at) {
        Some(at) => Some(node.moment(Some(at), context.now.monotonic)?),
        None => None,
    };
    let mut writer = node.write(context.now);
    // The member may have stepped down since it was asked.
    if node.replication().is_some_and(|known| known.writable_term().is_none()) {
        return Err(not_writable());
    }
    match writer.arrive_for_transaction(session, arrival)? {
        Verdict::Begin(id) => {
            let time = node.log_positions().written.op_time.timestamp;
            let (catalog, view) = (node.catalog(), writer.view().clone());
            let present = Moment { time, catalog, view };
            let is_of_the_past = past.as_ref().is_some_and(|past| past.time != time);
            let moment = past.unwrap_or_else(|| Arc::new(present));
            let body = Arc::new(Body {
                id,
                session: *session,
                number: arrival.number,
                is_of_the_past,
                read_concern: fields.document("readConcern")?.cloned().unwrap_or_default(),
                began: context.now.wall,
                stage: Arc::new(Lock::new(Stage::new(Arc::clone(&moment.catalog)))),
                uses: Lock::default(),
                moment,
            });
            writer.state.transactions.bodies.insert(id, Arc::clone(&body));
            Ok(body)
        }
        Verdict::Proceed(id) => {
            let body = writer.state.transactions.bodies.get(&id).cloned();
            body.ok_or_else(|| refused(Refusal::Aborted { number: arrival.number }))
        }
        Verdict::Refuse(refusal) | Verdict::CommitUnknown(refusal) => Err(refused(refusal)),
        // The table answers a statement with one of the above.
        _ => Err(refused(Refusal::NoSuch { number: arrival.number, newest: -1 })),
    }
}

impl Writer<'_> {
    /// A command of a transaction is here.
    pub(crate) fn arrive_for_transaction(
        &mut self,
        session: &SessionId,
        arrival: Arrival,
    ) -> Result<Verdict> {
        // The log says nothing newer about an open transaction.
        let stored = match self.state.transactions.table.has_open(session, arrival.number) {
            true => None,
            false => SessionRow::of(&self.newest_view(), session)?.map(SessionRow::stored),
        };
        Ok(self.arrive(session, arrival, stored))
    }

    /// A command with a transaction number is here. `stored` is what the log says about its session.
    pub(crate) fn arrive(
        &mut self,
        session: &SessionId,
        arrival: Arrival,
        stored: Option<Stored>,
    ) -> Verdict {
        let last = self.node.log_positions().written.op_time;
        let now = self.now().monotonic;
        let verdict = self.state.transactions.table.arrive(session, arrival, stored, last, now);
        self.forget_ended();
        verdict
    }

    /// Lets go of what ended transactions held.
    pub(crate) fn forget_ended(&mut self) {
        let ended = self.state.transactions.table.take_ended();
        if !ended.is_empty() {
            self.drop_bodies(&ended);
        }
    }

    /// Ends the transactions of sessions that are gone.
    pub(crate) fn end_transactions(&mut self, gone: impl Fn(&SessionId) -> bool) {
        self.state.transactions.table.forget_sessions(gone);
        self.forget_ended();
    }

    /// Ends transactions that have lived too long.
    pub(crate) fn expire_transactions(&mut self) {
        let now = self.now().monotonic;
        self.state.transactions.table.expire(now);
        self.forget_ended();
    }

    /// The member is not primary any more, or not yet: no transaction is open, and every number that is
    /// not in the log is forgotten.
    pub(crate) fn forget_transactions(&mut self) {
        self.state.transactions.table.step_down();
        self.forget_ended();
    }
}

/// Refuses a statement of a transaction whose command is never a part of one.
pub(crate) fn check_part(facts: &CommandFacts, command: &Command) -> Result<()> {
    let is_statement = command.body.contains_key("autocommit") && !is_end(facts);
    if !is_statement || facts.in_transaction != InTransaction::Refused {
        return Ok(());
    }
    let name = facts.name;
    let way = if name == "count" { "; count with an aggregation" } else { "" };
    Err(not_supported(format!("Cannot run '{name}' in a multi-document transaction{way}.")))
}

/// Refuses what cannot be part of a transaction. The session is left as it was.
fn check_statement(
    facts: &CommandFacts,
    command: &Command,
    fields: &Fields<'_>,
    starts: bool,
) -> Result<()> {
    let name = facts.name;
    check_part(facts, command)?;
    let may_begin = facts.in_transaction == InTransaction::Allowed;
    if starts && !may_begin {
        return Err(not_supported(format!("Cannot start a transaction with '{name}'.")));
    }
    if fields.has("writeConcern") {
        return Err(invalid(
            "writeConcern is not allowed within a multi-statement transaction; give it to \
             commitTransaction",
        ));
    }
    check_read_concern(fields, starts)?;
    let database = command.database();
    if may_begin && matches!(database, "admin" | "config" | "local") {
        return Err(not_supported(format!(
            "Cannot run command against the '{database}' database in a transaction."
        )));
    }
    let target = command.body.get_str(command.name()).unwrap_or_default();
    if facts.effect == Effect::Writes && target.starts_with("system.") {
        return Err(not_supported(format!(
            "Cannot write to '{database}.{target}' in a multi-document transaction."
        )));
    }
    match command.body.get("pipeline").and_then(forbidden_stage) {
        Some(stage) => Err(not_supported(format!(
            "Operation not permitted in transaction :: caused by :: Aggregation stage {stage} cannot \
             run within a multi-document transaction"
        ))),
        None => Ok(()),
    }
}

fn check_read_concern(fields: &Fields<'_>, starts: bool) -> Result<()> {
    let Some(concern) = fields.document("readConcern")? else { return Ok(()) };
    if !starts {
        return Err(invalid("Only the first command in a transaction may specify a readConcern"));
    }
    let concern = Fields::new(concern, "readConcern");
    match concern.string("level")? {
        None | Some("local" | "majority" | "snapshot") => {}
        Some(other) => {
            return Err(invalid(format!(
                "The readConcern level must be either 'local', 'majority' or 'snapshot' in order to \
                 run in a transaction, not '{other}'"
            )));
        }
    }
    if concern.has("afterClusterTime") && concern.has("atClusterTime") {
        return Err(invalid("afterClusterTime and atClusterTime cannot both be given"));
    }
    Ok(())
}

/// A stage that transactions do not have, at any depth.
fn forbidden_stage(value: &Bson) -> Option<String> {
    match value {
        Bson::Array(items) => items.iter().find_map(forbidden_stage),
        Bson::Document(document) => document.iter().find_map(|(name, value)| {
            let is_stage = FORBIDDEN_STAGES.contains(&name.as_str());
            is_stage.then(|| name.clone()).or_else(|| forbidden_stage(value))
        }),
        _ => None,
    }
}

/// Refuses a statement whose collection changed after the snapshot, or cannot be written to in a
/// transaction. The statement's failure ends the transaction.
pub(crate) fn check_target(
    request: &Request<'_>,
    facts: &CommandFacts,
    command: &Command,
) -> Result<()> {
    let Some(body) = &request.transaction else { return Ok(()) };
    let Some(Bson::String(_)) = command.body.get(request.name) else { return Ok(()) };
    let namespace = request.namespace(command)?;
    let collection = body.collection(request.node, &request.context.interrupt, &namespace)?;
    let level = body.read_concern.get_str("level").ok();
    if collection.is_some_and(|known| known.capped.is_some()) {
        let what = match facts.effect {
            Effect::Writes => "Writes in transactions",
            _ if level == Some("snapshot") => "Reads with the read concern snapshot",
            _ => return Ok(()),
        };
        return Err(not_supported(format!(
            "Collection '{namespace}' is a capped collection. {what} are not allowed on capped \
             collections."
        )));
    }
    let creates = matches!(facts.name, "create" | "createIndexes");
    if creates && level.is_some_and(|level| level != "local") {
        return Err(not_supported(format!(
            "'{}' needs a transaction with the read concern local.",
            facts.name
        )));
    }
    Ok(())
}

/// A statement has run: its transaction goes on, or ends with the statement's error.
pub(crate) fn conclude(request: &Request<'_>, outcome: Result<Outcome>) -> Result<Outcome> {
    let Some(body) = &request.transaction else { return outcome };
    let outcome = outcome.and_then(raise_conflict);
    let succeeded = outcome.as_ref().is_ok_and(is_success);
    if succeeded && request.has_ended.get().is_some() {
        return outcome;
    }
    let mut writer = request.node.write(request.context.now);
    let finished = writer.state.transactions.table.finish(body.id, succeeded);
    writer.forget_ended();
    match finished {
        // The transaction's end explains more than what the statement stumbled over.
        Err(refusal) => Err(refused(refusal)),
        Ok(()) => outcome,
    }
}

fn is_success(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Reply(reply) => find_field(&reply.body, "writeErrors").is_none(),
        Outcome::Wait { .. } | Outcome::Long => true,
    }
}

/// Errors that end the transaction for reasons of its own are the command's, not a document's.
fn raise_conflict(outcome: Outcome) -> Result<Outcome> {
    const RAISED: [i32; 7] = [24, 112, 246, 251, 263, 290, 388];
    let Outcome::Reply(reply) = &outcome else { return Ok(outcome) };
    if is_success(&outcome) {
        return Ok(outcome);
    }
    let Ok(Some(RawBsonRef::Array(errors))) = reply.body.get("writeErrors") else {
        return Ok(outcome);
    };
    for error in errors.into_iter().flatten() {
        let RawBsonRef::Document(error) = error else { continue };
        let code = error.get_i32("code").unwrap_or_default();
        if RAISED.contains(&code) {
            let message = error.get_str("errmsg").unwrap_or_default().to_owned();
            return Err(CommandError::new(ErrorCode(code), message));
        }
    }
    Ok(outcome)
}

/// Where an error of this command happens.
fn place_of(command: &CommandBody) -> Place {
    let name = command.name();
    if !command.contains_key("txnNumber") {
        Place::Outside
    } else if matches!(name, "commitTransaction" | "abortTransaction") {
        Place::End
    } else if command.contains_key("autocommit") {
        Place::Statement
    } else {
        Place::RetryableWrite
    }
}

/// Gives an error the labels that its code has for this command.
pub(crate) fn label(error: &mut CommandError, command: &CommandBody) {
    for label in labels(error.code.0, place_of(command)) {
        if !error.labels.iter().any(|known| known == label.name()) {
            error.labels.push(label.name().to_owned());
        }
    }
}

fn invalid(message: impl Into<String>) -> CommandError {
    CommandError::new(ErrorCode::INVALID_OPTIONS, message)
}

fn not_supported(message: impl Into<String>) -> CommandError {
    CommandError::new(ErrorCode::OPERATION_NOT_SUPPORTED_IN_TRANSACTION, message)
}
