//! Reading `local.oplog.rs` from a position, in either direction.
//!
//! How entries are made is the writer's business. The record id of an entry is its timestamp, and the
//! entries are a log of the store, so that any position is one seek away.

use std::ops::Bound;

use bson::{RawDocument, RawDocumentBuf, rawdoc};
use quorate_protocol::{OpTime, OpTimeAndWallTime, Timestamp, WallTime};
use quorate_storage::key::RecordId;
use quorate_storage::{Bytes, Direction};
use quorate_wire::{to_bson_date_time, to_bson_timestamp};

use super::entry::{entry_position, object_of, operation_of};
use crate::catalog::Ident;
use crate::error::Result;
use crate::node::Node;
use crate::records::{View, parse_record};

/// The first byte of undo rows among the facts.
pub(super) const UNDO_ROW: u8 = b'u';

/// Entries read in one go, in order.
#[derive(Clone, Debug, Default)]
pub struct OplogEntries {
    /// The entries, as BSON.
    pub entries: Vec<RawDocumentBuf>,
    /// The position of the last one.
    pub last: Option<OpTimeAndWallTime>,
}

impl Node {
    /// Entries from this timestamp on, at most so many and about so many bytes.
    ///
    /// # Errors
    ///
    /// If the store fails or an entry is damaged.
    pub fn read_oplog(
        &self,
        from: Bound<Timestamp>,
        most: usize,
        most_bytes: usize,
    ) -> Result<OplogEntries> {
        self.read_oplog_beyond(from, most, most_bytes, 0)
    }

    /// The bytes of so many entries at the beginning are not counted.
    fn read_oplog_beyond(
        &self,
        from: Bound<Timestamp>,
        most: usize,
        most_bytes: usize,
        uncounted: usize,
    ) -> Result<OplogEntries> {
        if self.replication().is_none() {
            return Ok(OplogEntries::default());
        }
        let view = self.view();
        let start = from.map(|timestamp| RecordId(timestamp.as_u64()));
        let scan = view.scan_oplog((start, Bound::Unbounded), Direction::Forward)?;
        let mut found = OplogEntries::default();
        let mut bytes = 0;
        for pair in scan.take(most) {
            let entry = parse_record(&pair?.1)?;
            if found.entries.len() >= uncounted {
                bytes += entry.as_bytes().len();
            }
            found.last = Some(entry_position(&entry)?);
            found.entries.push(entry);
            if bytes >= most_bytes {
                break;
            }
        }
        Ok(found)
    }

    /// The entries that follow this one, at most so many and about so many bytes; none if the oplog
    /// does not hold this one, so that nothing can be said to follow it: it was trimmed or undone.
    ///
    /// # Errors
    ///
    /// If the store fails or an entry is damaged.
    pub fn read_oplog_after(
        &self,
        previous: OpTime,
        most: usize,
        most_bytes: usize,
    ) -> Result<Option<OplogEntries>> {
        let Some(replication) = self.replication() else { return Ok(None) };
        if let Some(found) = replication.recent.lock().after(previous, most, most_bytes) {
            return Ok(Some(found));
        }
        // The entry and what follows it are of one snapshot: the oplog may be trimmed meanwhile.
        let from = Bound::Included(previous.timestamp);
        // An entry as large as a batch must not keep those after it from being read.
        let mut found = self.read_oplog_beyond(from, most.saturating_add(1), most_bytes, 1)?;
        match found.entries.first().map(|entry| entry_position(entry)).transpose()? {
            Some(first) if first.op_time == previous => {
                found.entries.remove(0);
                found.last = found.last.filter(|_| !found.entries.is_empty());
                Ok(Some(found))
            }
            _ => Ok(None),
        }
    }

    /// The positions of the newest entries, newest first, from this timestamp down.
    ///
    /// # Errors
    ///
    /// If the store fails or an entry is damaged.
    pub fn read_oplog_backward(
        &self,
        below: Option<Timestamp>,
        most: usize,
    ) -> Result<Vec<OpTimeAndWallTime>> {
        if self.replication().is_none() {
            return Ok(Vec::new());
        }
        let below = below.map(|below| RecordId(below.as_u64()));
        let end = below.map_or(Bound::Unbounded, Bound::Excluded);
        let scan = self.view().scan_oplog((Bound::Unbounded, end), Direction::Backward)?;
        scan.take(most).map(|pair| entry_position(&parse_record(&pair?.1)?)).collect()
    }

    /// The oldest entry; null if there is none.
    ///
    /// # Errors
    ///
    /// If the store fails or the entry is damaged.
    pub fn oldest_entry(&self) -> Result<OpTime> {
        let first = self.read_oplog(Bound::Unbounded, 1, usize::MAX)?;
        Ok(first.last.map_or(OpTime::NULL, |position| position.op_time))
    }

    /// Whether the oplog begins with the first entry of the set: nothing was before it.
    pub(crate) fn has_whole_history(&self) -> Result<bool> {
        let first = self.read_oplog(Bound::Unbounded, 1, usize::MAX)?.entries.into_iter().next();
        Ok(first.is_some_and(|entry| is_initiating(&entry)))
    }
}

/// What the first entry of a set says.
const INITIATING: &str = "initiating set";

/// Whether an entry is the first one of its set. Documents may have the field of its object.
fn is_initiating(entry: &RawDocument) -> bool {
    let object = object_of(entry).and_then(|object| Ok(object.get_str("msg")?));
    operation_of(entry).is_ok_and(|operation| operation == "n")
        && object.is_ok_and(|message| message == INITIATING)
}

pub(super) fn last_position(node: &Node, oplog: Ident) -> Result<OpTimeAndWallTime> {
    last_in(&node.view(), Some(oplog))
}

/// The last entry that a view shows; null without any.
pub(crate) fn last_in(view: &View, oplog: Option<Ident>) -> Result<OpTimeAndWallTime> {
    let Some(oplog) = oplog else { return Ok(OpTimeAndWallTime::default()) };
    match view.scan_records(oplog, Direction::Backward)?.next() {
        Some(pair) => entry_position(&parse_record(&pair?.1)?),
        None => Ok(OpTimeAndWallTime::default()),
    }
}

pub(super) fn undo_key(timestamp: Timestamp) -> Bytes {
    Bytes::joined([&[UNDO_ROW], &timestamp.as_u64().to_be_bytes()])
}

/// The first entry of a set: written with its configuration.
pub(super) fn initiating_entry(timestamp: Timestamp, wall: WallTime) -> RawDocumentBuf {
    rawdoc! {
        "op": "n",
        "ns": "",
        "o": { "msg": INITIATING },
        "ts": to_bson_timestamp(timestamp),
        "t": 0_i64,
        "v": 2_i64,
        "wall": to_bson_date_time(wall),
    }
}
