//! `commitTransaction` and `abortTransaction`.

use bson::{RawDocumentBuf, doc};
use quorate_protocol::OpTime;
use quorate_transactions::{Arrival, Kind, Verdict};

use super::enter::label;
use super::refused;
use crate::commands::WriteConcern;
use crate::context::{Command, Outcome, Reply};
use crate::dispatch::Request;
use crate::error::{CommandError, Result};
use crate::fields::to_raw;
use crate::replication::not_writable;
use crate::sessions::SessionId;
use crate::writer::Writer;

/// Commits. The reply names the entry that the write concern waits for: the transaction's last; for one
/// that changed nothing, the newest that it may have read; for one that is not known, an entry that
/// changes nothing.
pub(crate) fn commit(request: &Request<'_>, command: Command) -> Result<Outcome> {
    // One that cannot be read is refused before anything is done.
    let concern = WriteConcern::parse(&command)?;
    let mut writer = enter(request)?;
    let (session, number) = ending(request)?;
    match writer.arrive_for_transaction(session, Arrival { number, kind: Kind::Commit })? {
        Verdict::Commit { transaction, read_at } => {
            let Some(body) = writer.state.transactions.bodies.get(&transaction).cloned() else {
                return Err(no_such(number));
            };
            let committed = writer.commit_transaction(&body);
            match committed {
                Ok(position) => {
                    let last = writer.state.transactions.last_committed.as_mut();
                    if let Some(last) = last.filter(|_| position.is_some()) {
                        last.write_concern =
                            command.body.get_document("writeConcern").ok().cloned();
                    }
                    writer.state.transactions.table.committed(transaction);
                    writer.forget_ended();
                    done(&writer, concern, position.map_or(read_at, |at| at.op_time))
                }
                Err(error) => {
                    // The commit was the statement that ran: the table need not keep why it ended.
                    let _ = writer.state.transactions.table.finish(transaction, false);
                    writer.forget_ended();
                    // The fail point of retryable writes fails after the change was made.
                    Err(error)
                }
            }
        }
        Verdict::CommittedBefore(at) => done(&writer, concern, at),
        Verdict::CommitUnknown(refusal) => {
            writer.log_noop("commit of an unknown transaction")?;
            let mut error = refused(refusal);
            label(&mut error, &command.body);
            let body = to_raw(&error.reply())?;
            let op_time = Some(request.node.log_positions().written.op_time);
            Ok(Outcome::Reply(Reply { op_time, ..body.into() }))
        }
        Verdict::Refuse(refusal) => Err(refused(refusal)),
        _ => Err(no_such(number)),
    }
}

pub(crate) fn abort(request: &Request<'_>, command: Command) -> Result<Outcome> {
    let mut writer = enter(request)?;
    let (session, number) = ending(request)?;
    match writer.arrive_for_transaction(session, Arrival { number, kind: Kind::Abort })? {
        Verdict::Aborted(_) => {
            let _ = command;
            Ok(Outcome::Reply(ok()?.into()))
        }
        Verdict::Refuse(refusal) => Err(refused(refusal)),
        _ => Err(no_such(number)),
    }
}

/// The write lock of a member that takes writes.
fn enter<'n>(request: &Request<'n>) -> Result<Writer<'n>> {
    let writer = request.node.write(request.context.now);
    match request.node.replication() {
        Some(replication) if replication.writable_term().is_none() => Err(not_writable()),
        _ => Ok(writer),
    }
}

fn ending<'r>(request: &'r Request<'_>) -> Result<(&'r SessionId, i64)> {
    match (&request.session, request.ends) {
        (Some(session), Some(number)) => Ok((session, number)),
        _ => Err(fail!(
            INVALID_OPTIONS,
            "{} belongs to a transaction; give lsid and txnNumber",
            request.name
        )),
    }
}

fn done(writer: &Writer<'_>, concern: WriteConcern, op_time: OpTime) -> Result<Outcome> {
    let durable = concern.durable(writer.last_sequence);
    Ok(Outcome::Reply(Reply { durable, op_time: Some(op_time), ..ok()?.into() }))
}

fn ok() -> Result<RawDocumentBuf> {
    to_raw(&doc! { "ok": 1.0 })
}

fn no_such(number: i64) -> CommandError {
    refused(quorate_transactions::Refusal::NoSuch { number, newest: -1 })
}
