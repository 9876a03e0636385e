//! `delete`: documents out.

use bson::rawdoc;

use super::common::{LazyCompiler, WriteConcern, check_collation};
use super::insert::{check_writable, counted_reply, retried_statements, statements};
use super::steps::{Asked, Query, Search, Steps, Wanted};
use crate::body::CommandBody;
use crate::context::{Command, Outcome};
use crate::dispatch::Request;
use crate::error::Result;
use crate::fields::{Fields, check_known};
use crate::finder::Found;
use crate::namespace::Namespace;
use crate::writer::Writer;

/// The fields of a statement.
pub(super) const STATEMENT_FIELDS: [&str; 4] = ["q", "limit", "collation", "hint"];

pub(super) fn delete(request: &Request<'_>, mut command: Command) -> Result<Outcome> {
    let namespace = request.namespace(&command)?;
    check_writable(&namespace)?;
    let statements = statements(&mut command, "deletes", "delete")?;
    for statement in &statements {
        check_known(statement.keys(), "delete.deletes", &STATEMENT_FIELDS)?;
        check_limit(statement)?;
    }
    let fields = Fields::new(&command.body, "delete");
    let ordered = fields.boolean("ordered")?.unwrap_or(true);
    let concern = WriteConcern::parse(&command)?;

    let mut writer = request.write();
    writer.begin_retryable(request.retryable.as_ref(), statements.len())?;
    let retried = retried_statements(&writer, statements.len());
    let mut results = Vec::with_capacity(statements.len());
    for (place, statement) in statements.iter().enumerate() {
        writer.give_way_if_long()?;
        let result = match writer.earlier_result(place) {
            Some(earlier) => Ok(earlier.get_i32("n").unwrap_or(1) as u64),
            None => {
                writer.enter_statement(place, || rawdoc! { "n": 1 });
                let target = (&namespace, &fields, place);
                delete_statement(request, &mut writer, target, statement)
            }
        };
        let failed = result.is_err();
        results.push(result);
        if failed && ordered {
            break;
        }
    }
    let commit = request.end_writes(writer, results.iter().all(Result::is_ok));

    let deleted: u64 = results.iter().flatten().sum();
    request.node.counters().deleted(deleted);
    Ok(concern.reply(counted_reply(deleted as i32, &results, &retried)?, commit))
}

/// Refuses the whole command for a statement that does not say whether it deletes one document or all.
fn check_limit(statement: &CommandBody) -> Result<()> {
    match Fields::new(statement, "delete.deletes").integer("limit")? {
        Some(0 | 1) => Ok(()),
        Some(other) => Err(fail!(
            FAILED_TO_PARSE,
            "The limit field in delete objects must be 0 or 1. Got {other}"
        )),
        None => Err(fail!(
            MISSING_FIELD,
            "BSON field 'delete.deletes.limit' is missing but a required field"
        )),
    }
}

fn delete_statement(
    request: &Request<'_>,
    writer: &mut Writer<'_>,
    (namespace, command, place): (&Namespace, &Fields<'_>, usize),
    statement: &CommandBody,
) -> Result<u64> {
    let fields = Fields::new(statement, "delete.deletes");
    check_collation(&fields)?;
    let compiler = LazyCompiler::new(request, *command);
    let query = Query::read((&fields, statement), "q", &compiler)?.ok_or_else(|| {
        fail!(MISSING_FIELD, "BSON field 'delete.deletes.q' is missing but a required field")
    })?;
    let wanted = match fields.integer("limit")? {
        Some(0) if request.retryable.is_some() => {
            refuse!(INVALID_OPTIONS, "Cannot use (or request) retryable writes with limit=0");
        }
        Some(0) => Wanted::All,
        _ => Wanted::One,
    };
    let Some(mut collection) = writer.collection(namespace) else { return Ok(0) };
    collection.refuse_view()?;
    let (query, hint) = (&query, fields.raw("hint"));
    let asked = Asked { query, hint, sort: None, wanted, upserts: false, statement: place };
    let search = Search::new(writer, &collection, &asked, request.interrupt.clone())?;
    let mut deleted = 0;
    let mut steps = Steps::begin(writer, &collection, wanted);
    let evaluate = |_: &Found| Ok(());
    let result =
        steps.each(writer, &mut collection, search, evaluate, |writer, collection, found, ()| {
            writer.remove(collection, found.record, &found.document)?;
            deleted += 1;
            Ok(())
        });
    Steps::end(writer, result)?;
    // A repetition of the command may have done it while others had their turn.
    let done = writer.earlier_result(place).and_then(|done| done.get_i32("n").ok());
    Ok(done.map_or(deleted, |done| done as u64))
}
