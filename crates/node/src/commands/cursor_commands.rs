//! `getMore` and `killCursors`.

use std::sync::Arc;

use bson::{Bson, doc};

use super::common::reply;
use crate::context::{Command, Outcome};
use crate::cursors::cursor_reply;
use crate::dispatch::Request;
use crate::error::{CommandError, ErrorCode};
use crate::fields::Fields;
use crate::namespace::Namespace;

pub(super) fn get_more(request: &Request<'_>, command: Command) -> Result<Outcome, CommandError> {
    let fields = Fields::new(&command.body, "getMore");
    let Some(Bson::Int64(id)) = command.body.get("getMore") else {
        return Err(CommandError::type_mismatch("getMore must be the id of a cursor, a long"));
    };
    let namespace = cursor_namespace(request, fields.required_string("collection")?)?;
    let size = match fields.integer("batchSize")? {
        None | Some(0) => usize::MAX,
        Some(size) => usize::try_from(size).map_err(|_| {
            CommandError::bad_value(format!(
                "Batch size for getMore must be non-negative, but received: {size}"
            ))
        })?,
    };
    let mut cursor = request.node.cursors().check_out(*id, &namespace, request.session.as_ref())?;
    cursor.interrupt.set(Arc::clone(&request.context.interrupt));
    let batch = match cursor.next_batch(size) {
        Ok(batch) => batch,
        Err(error) => {
            request.node.cursors().kill(*id);
            return Err(error);
        }
    };
    let mut cursors = request.node.cursors();
    let id = if batch.exhausted {
        cursors.kill(*id);
        0
    } else {
        cursors.check_in(*id, cursor, request.context.now.monotonic);
        *id
    };
    drop(cursors);
    let name = bson::raw::cstr!("nextBatch");
    let body = cursor_reply(id, &namespace.to_string(), name, batch.documents);
    Ok(Outcome::Reply(body.into()))
}

pub(super) fn kill_cursors(
    request: &Request<'_>,
    command: Command,
) -> Result<Outcome, CommandError> {
    let fields = Fields::new(&command.body, "killCursors");
    let namespace = cursor_namespace(request, fields.required_string("killCursors")?)?;
    let ids = fields.array("cursors")?.unwrap_or_default();
    if ids.is_empty() {
        return Err(CommandError::bad_value("Must specify at least one cursor id to kill"));
    }
    let (mut killed, mut missing) = (Vec::new(), Vec::new());
    let mut cursors = request.node.cursors();
    for id in ids {
        let Bson::Int64(number) = id else {
            return Err(fields.wrong_type("cursors", id, "long"));
        };
        if cursors.is_open_on(*number, &namespace) {
            cursors.kill(*number);
            killed.push(id.clone());
        } else {
            missing.push(id.clone());
        }
    }
    drop(cursors);
    reply(&doc! {
        "cursorsKilled": killed,
        "cursorsNotFound": missing,
        "cursorsAlive": [],
        "cursorsUnknown": [],
        "ok": 1.0,
    })
}

/// Cursors of commands such as `listCollections` belong to `$cmd.<command>`.
fn cursor_namespace(request: &Request<'_>, collection: &str) -> Result<Namespace, CommandError> {
    if collection.is_empty() {
        return Err(CommandError::new(
            ErrorCode::INVALID_NAMESPACE,
            "Collection names cannot be empty",
        ));
    }
    Namespace::new(&request.database, collection)
}
