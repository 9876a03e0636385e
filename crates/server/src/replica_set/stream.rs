//! The oplog as a stream: what a source sends and what a fetch reads.
//!
//! A fetch is a `find` on `local.oplog.rs` with `exhaustAllowed`: the source pushes every entry as
//! soon as it is written, and its commit point, term and rollback id in `$replData` with it.
//! docs/replication-rules.md §8.

use bson::raw::{RawArrayBuf, cstr};
use bson::{Document, RawBsonRef, RawDocument, RawDocumentBuf, doc, rawdoc};
use quorate_node::entry_position;
use quorate_protocol::{OpTime, OpTimeAndWallTime, Term};
use quorate_replication::FetchedBatch;
use quorate_wire::replica_set::{append_optime, optime_document, parse_optime};
use quorate_wire::{to_bson_date_time, to_bson_timestamp};

use super::SetView;

/// Entries in one message.
pub(super) const MAX_BATCH_ENTRIES: usize = 5000;
/// Bytes of entries in one message, about.
pub(super) const MAX_BATCH_BYTES: usize = 4 * 1024 * 1024;

/// The command that starts a stream at an entry.
pub(super) fn find_command(after: OpTime, term: Term) -> Document {
    doc! {
        "find": "oplog.rs",
        "filter": { "ts": { "$gte": to_bson_timestamp(after.timestamp) } },
        "tailable": true,
        "awaitData": true,
        "term": term.0,
        "$oplogQueryData": 1,
        "$replData": optime_document(after),
        "$readPreference": { "mode": "secondaryPreferred" },
        "$db": "local",
    }
}

/// Where the stream that a command asks for begins; none if it asks for none.
pub(super) fn wanted(command: &Document) -> Option<OpTime> {
    let is_stream = command.get_str("find").is_ok_and(|name| name == "oplog.rs")
        && command.get_str("$db").is_ok_and(|database| database == "local")
        && command.contains_key("$oplogQueryData");
    if !is_stream {
        return None;
    }
    parse_optime(command.get_document("$replData").ok()?).ok()
}

/// What the source's log says of a batch.
pub(super) struct Place {
    /// The entry that the batch follows; none in the first batch, which begins with it.
    pub(super) previous: Option<OpTime>,
    /// The source's oldest entry.
    pub(super) oldest: OpTime,
    /// The source's newest entry.
    pub(super) last: OpTimeAndWallTime,
}

/// One message of the stream.
pub(super) fn batch_document(
    entries: Vec<RawDocumentBuf>,
    place: &Place,
    view: &SetView,
) -> RawDocumentBuf {
    let Place { previous, oldest, last } = *place;
    let mut batch = RawArrayBuf::new();
    for entry in entries {
        batch.push(entry);
    }
    let mut cursor = rawdoc! { "id": 1_i64, "ns": "local.oplog.rs" };
    cursor.append(if previous.is_none() { cstr!("firstBatch") } else { cstr!("nextBatch") }, batch);
    let mut data = rawdoc! { "term": view.term.0, "rbid": view.rollback_id };
    data.append(cstr!("isPrimary"), view.is_primary);
    append_optime(&mut data, cstr!("lastOpCommitted"), view.commit_point.op_time);
    data.append(cstr!("lastCommittedWall"), to_bson_date_time(view.commit_point.wall_time));
    append_optime(&mut data, cstr!("lastOpVisible"), last.op_time);
    data.append(cstr!("lastVisibleWall"), to_bson_date_time(last.wall_time));
    append_optime(&mut data, cstr!("oldest"), oldest);
    if let Some(previous) = previous {
        append_optime(&mut data, cstr!("previous"), previous);
    }
    let mut body = RawDocumentBuf::new();
    body.append(cstr!("cursor"), cursor);
    body.append(cstr!("$replData"), data);
    body.append(cstr!("ok"), 1.0);
    body
}

/// A message of the stream, read.
pub(super) struct Batch {
    pub(super) entries: Vec<RawDocumentBuf>,
    pub(super) facts: FetchedBatch,
}

/// Reads a message of the stream; none if it is no such message.
pub(super) fn parse_batch(body: &RawDocument) -> Option<Batch> {
    let cursor = body.get_document("cursor").ok()?;
    let batch = cursor.get_array("firstBatch").or_else(|_| cursor.get_array("nextBatch")).ok()?;
    let mut entries = Vec::new();
    for item in batch {
        let RawBsonRef::Document(entry) = item.ok()? else { return None };
        entries.push(entry.to_owned());
    }
    let data = Document::try_from(body.get_document("$replData").ok()?).ok()?;
    let position = |op_time: &str, wall: Option<&str>| -> Option<OpTimeAndWallTime> {
        let op_time = parse_optime(data.get_document(op_time).ok()?).ok()?;
        let wall = wall.and_then(|name| data.get_datetime(name).ok());
        let wall_time = wall.map(|wall| quorate_wire::date_time_from(*wall)).unwrap_or_default();
        Some(OpTimeAndWallTime { op_time, wall_time })
    };
    let previous = data.contains_key("previous").then(|| position("previous", None)).flatten();
    let first = entries.first().map(|entry| entry_position(entry)).transpose().ok()?;
    let last = entries.last().map(|entry| entry_position(entry)).transpose().ok()?;
    let facts = FetchedBatch {
        first: first.map(|first| first.op_time),
        previous: previous.map(|previous| previous.op_time),
        last,
        source_oldest: position("oldest", None)?.op_time,
        source_last: position("lastOpVisible", Some("lastVisibleWall"))?,
        commit_point: position("lastOpCommitted", Some("lastCommittedWall"))?,
        term: Term(data.get_i64("term").ok()?),
        source_is_primary: data.get_bool("isPrimary").ok()?,
        rollback_id: data.get_i32("rbid").ok()?,
    };
    Some(Batch { entries, facts })
}
