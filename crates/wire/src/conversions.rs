//! Between the values of the `bson` crate and those of `quorate-protocol`.
//!
//! Functions rather than `From`: both sides of each conversion belong to other crates.

use bson::raw::RawDocumentBuf;
use bson::{Document, doc, rawdoc};
use quorate_protocol::{ObjectId, Timestamp, TopologyVersion, WallTime};

/// The identifier as the protocol crate has it.
pub fn object_id_from(id: bson::oid::ObjectId) -> ObjectId {
    ObjectId::from_bytes(id.bytes())
}

/// The identifier as BSON has it.
pub fn to_bson_object_id(id: ObjectId) -> bson::oid::ObjectId {
    bson::oid::ObjectId::from_bytes(id.bytes())
}

/// The timestamp as the protocol crate has it.
pub fn timestamp_from(timestamp: bson::Timestamp) -> Timestamp {
    Timestamp::new(timestamp.time, timestamp.increment)
}

/// The timestamp as BSON has it.
pub fn to_bson_timestamp(timestamp: Timestamp) -> bson::Timestamp {
    bson::Timestamp { time: timestamp.seconds, increment: timestamp.increment }
}

/// The date as the protocol crate has it.
pub fn date_time_from(date: bson::DateTime) -> WallTime {
    WallTime(date.timestamp_millis())
}

/// The date as BSON has it.
pub fn to_bson_date_time(time: WallTime) -> bson::DateTime {
    bson::DateTime::from_millis(time.as_millis())
}

/// A topology version as documents hold it.
pub fn to_bson_topology_version(version: TopologyVersion) -> Document {
    doc! { "processId": to_bson_object_id(version.process_id), "counter": version.counter }
}

/// A topology version as requests and replies carry it.
pub fn topology_version_document(version: TopologyVersion) -> RawDocumentBuf {
    rawdoc! {
        "processId": to_bson_object_id(version.process_id),
        "counter": version.counter,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversions_are_inverse() {
        let id = ObjectId::from_bytes([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
        assert_eq!(object_id_from(to_bson_object_id(id)), id);
        let timestamp = Timestamp::new(u32::MAX, 1);
        assert_eq!(timestamp_from(to_bson_timestamp(timestamp)), timestamp);
        for time in [WallTime(-1), WallTime(i64::MAX), WallTime(0)] {
            assert_eq!(date_time_from(to_bson_date_time(time)), time);
        }
    }
}
