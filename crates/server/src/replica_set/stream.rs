//! The oplog as a stream: what a source sends and what a fetch reads.
//!
//! A fetch is a `find` on `local.oplog.rs` with `exhaustAllowed`: the source pushes every entry as
//! soon as it is written, and its commit point, term and rollback id in `$replData` with it.
//! docs/replication-rules.md#sync-source.

use bson::{Document, RawDocument, RawDocumentBuf, doc};
use quorate_member::SentBatch;
use quorate_node::CommandBody;
use quorate_node::entry_position;
use quorate_protocol::{OpTime, OpTimeAndWallTime, Term};
use quorate_replication::FetchedBatch;
use quorate_wire::replica_set::{optime_document, parse_optime, read_optime};
use quorate_wire::{
    AROUND_ITEM, RawField, find_field, find_fields, raw_document, to_bson_timestamp,
};

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
    let bytes: usize = entries.iter().map(|entry| entry.as_bytes().len() + AROUND_ITEM).sum();
    let batch_name = if facts.previous.is_none() { "firstBatch" } else { "nextBatch" };
    raw_document(bytes + AROUND_BATCH, |fields| {
        fields.document("cursor", |cursor| {
            cursor.int64("id", 1);
            cursor.text("ns", &["local.oplog.rs"]);
            cursor.raw_documents(batch_name, entries.iter().map(|entry| &**entry));
        });
        fields.document("$replData", |data| {
            data.int64("term", facts.term.0);
            data.int32("rbid", facts.rollback_id);
            data.boolean("isPrimary", facts.source_is_primary);
            data.op_time("lastOpCommitted", facts.commit_point.op_time);
            data.date("lastCommittedWall", facts.commit_point.wall_time);
            data.op_time("lastOpVisible", facts.source_last.op_time);
            data.date("lastVisibleWall", facts.source_last.wall_time);
            data.op_time("oldest", facts.source_oldest);
            if let Some(previous) = facts.previous {
                data.op_time("previous", previous);
            }
        });
        fields.double("ok", 1.0);
    })
}

/// What a batch takes besides its entries, about.
const AROUND_BATCH: usize = 512;

/// Reads a message of the stream; none if it is no such message.
pub(super) fn parse_batch(body: &RawDocument) -> Option<SentBatch> {
    let [cursor, data] = find_fields(body, ["cursor", "$replData"]);
    let (cursor, data) = (cursor?.document()?, data?.document()?);
    let batch = find_field(cursor, "firstBatch").or_else(|| find_field(cursor, "nextBatch"))?;
    let entries: Vec<_> = batch.documents()?.into_iter().map(RawDocument::to_owned).collect();
    let position =
        |entry: Option<&RawDocumentBuf>| entry.map(|entry| entry_position(entry)).transpose().ok();
    let first = position(entries.first())?;
    let last = if entries.len() == 1 { first } else { position(entries.last())? };
    let [
        term,
        rollback_id,
        is_primary,
        committed,
        committed_wall,
        visible,
        visible_wall,
        oldest,
        previous,
    ] = find_fields(data, REPLICATION_DATA);
    let op_time = |field: Option<RawField<'_>>| read_optime(field?.document()?);
    let at = |op_time_of, wall: Option<RawField<'_>>| -> Option<OpTimeAndWallTime> {
        let wall = wall.and_then(|wall| wall.date_time());
        let wall_time = wall.map(quorate_wire::date_time_from).unwrap_or_default();
        Some(OpTimeAndWallTime { op_time: op_time(op_time_of)?, wall_time })
    };
    let facts = FetchedBatch {
        first: first.map(|first| first.op_time),
        previous: op_time(previous),
        last,
        source_oldest: op_time(oldest)?,
        source_last: at(visible, visible_wall)?,
        commit_point: at(committed, committed_wall)?,
        term: Term(term?.int64()?),
        source_is_primary: is_primary?.boolean()?,
        rollback_id: rollback_id?.int32()?,
    };
    Some(SentBatch { entries, facts })
}

/// The fields of `$replData`, in their order.
const REPLICATION_DATA: [&str; 9] = [
    "term", "rbid", "isPrimary", "lastOpCommitted", "lastCommittedWall", "lastOpVisible",
    "lastVisibleWall", "oldest", "previous",
];

#[cfg(test)]
mod tests {
    use bson::rawdoc;
    use quorate_protocol::{Timestamp, WallTime};
    use quorate_wire::to_bson_date_time;

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
