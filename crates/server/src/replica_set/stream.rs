//! The oplog as a stream: what a source sends and what a fetch reads.
//!
//! A fetch is a `find` on `local.oplog.rs` with `exhaustAllowed`: the source pushes every entry as
//! soon as it is written, and its commit point, term and rollback id in `$replData` with it.
//! docs/replication-rules.md#sync-source.

use bson::raw::cstr;
use bson::spec::ElementType;
use bson::{Document, RawBsonRef, RawDocument, RawDocumentBuf, doc, rawdoc};
use quorate_member::SentBatch;
use quorate_node::CommandBody;
use quorate_node::entry_position;
use quorate_protocol::{OpTime, OpTimeAndWallTime, Term};
use quorate_replication::FetchedBatch;
use quorate_wire::replica_set::{append_optime, optime_document, parse_optime, read_optime};
use quorate_wire::{append_item_name, to_bson_date_time, to_bson_timestamp};

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
pub(super) fn wanted(command: &CommandBody) -> Option<OpTime> {
    let is_stream = command.get_str("find").is_ok_and(|name| name == "oplog.rs")
        && command.get_str("$db").is_ok_and(|database| database == "local")
        && command.contains_key("$oplogQueryData");
    if !is_stream {
        return None;
    }
    parse_optime(command.get_document("$replData").ok()?).ok()
}

/// One message of the stream. Its entries are copied once, into a buffer that has room for all.
pub(super) fn batch_document(batch: &SentBatch) -> RawDocumentBuf {
    let SentBatch { entries, facts } = batch;
    let (previous, last) = (facts.previous, facts.source_last);
    let mut data = rawdoc! { "term": facts.term.0, "rbid": facts.rollback_id };
    data.append(cstr!("isPrimary"), facts.source_is_primary);
    append_optime(&mut data, cstr!("lastOpCommitted"), facts.commit_point.op_time);
    data.append(cstr!("lastCommittedWall"), to_bson_date_time(facts.commit_point.wall_time));
    append_optime(&mut data, cstr!("lastOpVisible"), last.op_time);
    data.append(cstr!("lastVisibleWall"), to_bson_date_time(last.wall_time));
    append_optime(&mut data, cstr!("oldest"), facts.source_oldest);
    if let Some(previous) = previous {
        append_optime(&mut data, cstr!("previous"), previous);
    }
    let bytes: usize = entries.iter().map(|entry| entry.as_bytes().len() + AROUND_ENTRY).sum();
    let mut body = Vec::with_capacity(bytes + data.as_bytes().len() + AROUND_BATCH);
    let whole = open(&mut body);
    name(&mut body, ElementType::EmbeddedDocument, "cursor");
    let cursor = open(&mut body);
    name(&mut body, ElementType::Int64, "id");
    body.extend(1_i64.to_le_bytes());
    name(&mut body, ElementType::String, "ns");
    body.extend((OPLOG.len() as i32 + 1).to_le_bytes());
    body.extend(OPLOG.as_bytes());
    body.push(0);
    let batch_name = if previous.is_none() { "firstBatch" } else { "nextBatch" };
    name(&mut body, ElementType::Array, batch_name);
    let batch = open(&mut body);
    for (number, entry) in entries.iter().enumerate() {
        body.push(ElementType::EmbeddedDocument as u8);
        append_item_name(&mut body, number);
        body.push(0);
        body.extend(entry.as_bytes());
    }
    close(&mut body, batch);
    close(&mut body, cursor);
    name(&mut body, ElementType::EmbeddedDocument, "$replData");
    body.extend(data.as_bytes());
    name(&mut body, ElementType::Double, "ok");
    body.extend(1.0_f64.to_le_bytes());
    close(&mut body, whole);
    RawDocumentBuf::from_bytes(body).unwrap_or_default()
}

/// What an entry takes besides its bytes: a type, a number of four digits and its end.
const AROUND_ENTRY: usize = 6;

/// What a batch takes besides its entries and `$replData`, and some room.
const AROUND_BATCH: usize = 128;

const OPLOG: &str = "local.oplog.rs";

/// Begins a document or an array, and tells where.
fn open(body: &mut Vec<u8>) -> usize {
    body.extend([0; 4]);
    body.len() - 4
}

/// Ends what was begun there.
fn close(body: &mut Vec<u8>, at: usize) {
    body.push(0);
    let length = (body.len() - at) as i32;
    body[at..at + 4].copy_from_slice(&length.to_le_bytes());
}

fn name(body: &mut Vec<u8>, kind: ElementType, name: &str) {
    body.push(kind as u8);
    body.extend(name.as_bytes());
    body.push(0);
}

/// Reads a message of the stream; none if it is no such message.
pub(super) fn parse_batch(body: &RawDocument) -> Option<SentBatch> {
    let cursor = body.get_document("cursor").ok()?;
    let batch = cursor.get_array("firstBatch").or_else(|_| cursor.get_array("nextBatch")).ok()?;
    let mut entries = Vec::new();
    for item in batch {
        let RawBsonRef::Document(entry) = item.ok()? else { return None };
        entries.push(entry.to_owned());
    }
    let data = body.get_document("$replData").ok()?;
    let position = |op_time: &str, wall: Option<&str>| -> Option<OpTimeAndWallTime> {
        let op_time = read_optime(data.get_document(op_time).ok()?)?;
        let wall = wall.and_then(|name| data.get_datetime(name).ok());
        let wall_time = wall.map(quorate_wire::date_time_from).unwrap_or_default();
        Some(OpTimeAndWallTime { op_time, wall_time })
    };
    let previous = position("previous", None);
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
    Some(SentBatch { entries, facts })
}

#[cfg(test)]
mod tests {
    use quorate_protocol::{Timestamp, WallTime};

    use super::*;

    fn at(seconds: u32) -> OpTimeAndWallTime {
        let op_time = OpTime::new(1, Timestamp { seconds, increment: 1 });
        OpTimeAndWallTime { op_time, wall_time: WallTime(i64::from(seconds) * 1000) }
    }

    fn entry(seconds: u32) -> RawDocumentBuf {
        let at = at(seconds);
        rawdoc! {
            "ts": to_bson_timestamp(at.op_time.timestamp), "t": 1_i64,
            "wall": to_bson_date_time(at.wall_time),
        }
    }

    #[test]
    fn a_message_of_the_stream_survives_a_round_trip() {
        for (count, previous) in [(0, Some(at(5).op_time)), (1, None), (12, Some(at(5).op_time))] {
            let entries: Vec<_> = (0..count).map(|number| entry(6 + number)).collect();
            let position = |entry: &RawDocumentBuf| entry_position(entry).unwrap();
            let facts = FetchedBatch {
                first: entries.first().map(|first| position(first).op_time),
                previous,
                last: entries.last().map(position),
                source_oldest: at(1).op_time,
                source_last: at(99),
                commit_point: at(4),
                term: Term(1),
                source_is_primary: true,
                rollback_id: 7,
            };
            let sent = SentBatch { entries, facts };
            let body = batch_document(&sent);
            let parsed = Document::try_from(&*body).unwrap();
            let cursor = parsed.get_document("cursor").unwrap();
            assert_eq!(cursor.get_str("ns").unwrap(), "local.oplog.rs");
            assert_eq!(parsed.get_f64("ok").unwrap(), 1.0);
            let batch = parse_batch(&body).unwrap();
            assert_eq!(batch.entries, sent.entries);
            assert_eq!(batch.facts, sent.facts);
        }
    }
}
