//! `getMore` and `killCursors`.

use std::sync::Arc;
use std::time::Duration;

use bson::{Bson, doc};

use super::common::reply;
use crate::change_stream::with_stream_label;
use crate::command_table::Access;
use crate::context::{Command, Outcome, WaitFor};
use crate::cursors::{Asker, BatchName};
use crate::dispatch::Request;
use crate::error::Result;
use crate::fields::Fields;
use crate::generic_arguments::ReadsAt;
use crate::namespace::Namespace;
use crate::touched::EVERY_DATABASE;
use crate::users::{Rights, session_owner};

/// How long a `getMore` at the end of a collection waits if the client does not say.
const DEFAULT_AWAIT: Duration = Duration::from_secs(1);

pub(super) fn get_more(request: &Request<'_>, command: Command) -> Result<Outcome> {
    let fields = Fields::new(&command.body, "getMore");
    let Some(Bson::Int64(id)) = command.body.get("getMore") else {
        refuse!(TYPE_MISMATCH, "getMore must be the id of a cursor, a long");
    };
    let namespace = cursor_namespace(request, fields.required_string("collection")?)?;
    let size = match fields.integer("batchSize")? {
        None | Some(0) => usize::MAX,
        Some(size) => usize::try_from(size).map_err(|_| {
            fail!(BAD_VALUE, "Batch size for getMore must be non-negative, but received: {size}")
        })?,
    };
    let user = session_owner(request.node, &request.context.client);
    let transaction = request.transaction.as_ref().map(|body| body.id);
    let asker = Asker { session: request.session.as_ref(), user: user.as_ref(), transaction };
    let mut cursor = request.node.cursors().check_out(*id, &namespace, &asker)?;
    cursor.interrupt.set(Arc::clone(&request.context.interrupt));
    let is_stream = cursor.changes.is_some();
    let awaits = is_stream || cursor.tail.as_ref().is_some_and(|tail| tail.awaits);
    if let Some(place) = cursor.changes.as_ref().and_then(|stream| stream.reads())
        && !Rights::of(request.node, &request.context.client)?.allow(Access::Read, place)
    {
        // A role may have been taken away since the stream was opened.
        let place = if place == EVERY_DATABASE { "all databases" } else { place };
        let error = fail!(
            UNAUTHORIZED,
            "not authorized on {place} to go on with a change stream; it takes the role read"
        );
        request.node.cursors().kill(*id);
        return Err(error);
    }
    if let Some(error) = request.node.fail_points().take_get_more() {
        request.node.cursors().kill(*id);
        return Err(if is_stream { with_stream_label(error) } else { error });
    }
    if fields.has("maxTimeMS") && !awaits {
        request.node.cursors().check_in(*id, cursor, request.context.now.monotonic);
        refuse!(BAD_VALUE, "cannot set maxTimeMS on getMore command for a non-awaitData cursor");
    }
    if let Some(tail) = &cursor.tail {
        let reads_at = match tail.reads_at {
            ReadsAt::Majority(_) => ReadsAt::Majority(None),
            _ => ReadsAt::Newest,
        };
        let (collection, view) = match request.node.pin(reads_at, request.context.now.monotonic)? {
            Some(moment) => moment.read(&namespace),
            None => request.node.read(&namespace),
        };
        let gone = collection.is_none_or(|found| found.uuid != tail.collection.uuid);
        if gone {
            request.node.cursors().kill(*id);
            refuse!(QUERY_PLAN_KILLED, "collection dropped. namespace: '{namespace}'");
        }
        if tail.has_lost_its_place(&view)? {
            request.node.cursors().kill(*id);
            refuse!(
                CAPPED_POSITION_LOST,
                "CollectionScan died due to position in capped collection being deleted"
            );
        }
        cursor.stream = tail.stream(view)?;
    }
    let batch = match is_stream {
        true => cursor.next_events(request.node, BatchName::Next, size),
        false => cursor.next_batch(BatchName::Next, size),
    };
    request.interrupt.absorb(&cursor.interrupt);
    let batch = match batch {
        Ok(batch) => batch,
        Err(error) => {
            request.node.cursors().kill(*id);
            return Err(if is_stream { with_stream_label(error) } else { error });
        }
    };
    // A stream that is behind answers at once, so that its client sees it move on.
    let idle = cursor.changes.as_ref().is_none_or(|stream| stream.has_caught_up());
    let wait = awaits && batch.count == 0 && !batch.exhausted && idle && request.context.may_wait;
    let mut cursors = request.node.cursors();
    if wait {
        cursors.check_in(*id, cursor, request.context.now.monotonic);
        let at_most = fields.count("maxTimeMS")?.map_or(DEFAULT_AWAIT, Duration::from_millis);
        let until = if is_stream { WaitFor::CommitPoint } else { WaitFor::Commit };
        return Ok(Outcome::Wait { until, at_most });
    }
    refuse_if!(!cursors.is_open_on(*id, &namespace) => CURSOR_KILLED,
        "cursor {id} was killed while it was read");
    let id = if batch.exhausted {
        cursors.kill(*id);
        0
    } else {
        cursors.check_in(*id, cursor, request.context.now.monotonic);
        *id
    };
    drop(cursors);
    request.node.counters().returned(batch.count);
    let body = batch.into_reply(BatchName::Next, id, &namespace.parts(), None)?;
    Ok(Outcome::Reply(body.into()))
}

pub(super) fn kill_cursors(request: &Request<'_>, command: Command) -> Result<Outcome> {
    let fields = Fields::new(&command.body, "killCursors");
    let namespace = cursor_namespace(request, fields.required_string("killCursors")?)?;
    let ids = fields.array("cursors")?.unwrap_or_default();
    refuse_if!(ids.is_empty() => BAD_VALUE, "Must specify at least one cursor id to kill");
    let user = session_owner(request.node, &request.context.client);
    let any = Rights::of(request.node, &request.context.client)?
        .allow(Access::ClusterAdmin, EVERY_DATABASE);
    let (mut killed, mut missing) = (Vec::new(), Vec::new());
    let mut cursors = request.node.cursors();
    for id in ids {
        let Bson::Int64(number) = id else {
            return Err(fields.wrong_type("cursors", id, "long"));
        };
        refuse_if!(!any && cursors.belongs_to_another(*number, user.as_ref()) => UNAUTHORIZED,
            "not authorized to kill cursor {number}: another user opened it");
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
fn cursor_namespace(request: &Request<'_>, collection: &str) -> Result<Namespace> {
    refuse_if!(collection.is_empty() => INVALID_NAMESPACE, "Collection names cannot be empty");
    Namespace::new(request.database, collection)
}
