//! What the store keeps about a session's newest number.
//!
//! ```text
//!   sessions   <16 bytes of session> 00  →  <number, 8> 01 <term, 8> <time, 8> <wall, 8>            a transaction
//!                                           <number, 8> 04 <flags> <term, 8> <time, 8> <wall, 8> …  a retryable write
//!                                           <number, 8>                                             earlier versions'
//!                                           <number, 8> 02 <term, 8> <time, 8> <wall, 8> …          earlier versions'
//! ```
//!
//! A transaction's row is in the batch of its commit, so it goes back with it. The three numbers are the place of
//! the last entry; a member without a set has none for retryable writes, and writes zeros. What follows them in the
//! row of a retryable write is the result of its first statement, if that is short: most have no other, and a row
//! less is a third of what a session costs. The flags say whether there is a last entry, and whether results stand
//! in rows of their own; those of earlier versions always do.

use bson::{Document, doc};
use quorate_protocol::{OpTime, OpTimeAndWallTime, Timestamp, WallTime};
use quorate_storage::Bytes;
use quorate_transactions::{Stored, StoredState};
use quorate_wire::replica_set::optime_document;
use quorate_wire::to_bson_date_time;

use crate::error::Result;
use crate::records::View;
use crate::sessions::{SessionId, UUID_BYTES};

const NUMBER_ROW: u8 = 0;

/// Marks the number of a committed transaction.
const COMMITTED: u8 = 1;

/// Marks the number of a retryable write of an earlier version whose last entry is known.
const WRITTEN: u8 = 2;

/// Marks the number of a retryable write.
const RETRYABLE: u8 = 4;

/// The retryable write has a last entry.
const HAS_ENTRY: u8 = 1;

/// Results of the retryable write stand in rows of their own.
const HAS_ROWS: u8 = 2;

/// Where the result begins in the row of a retryable write.
const RESULT_AT: usize = 8 + 2 + 24;

/// A session's newest number in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SessionRow {
    pub(crate) number: i64,
    /// The last entry of the transaction that it was; none of a retryable write.
    pub(crate) committed: Option<OpTimeAndWallTime>,
    /// The last entry of the retryable write that it was.
    pub(crate) written: Option<OpTimeAndWallTime>,
    /// Whether results may stand in rows of their own, those of an earlier number included.
    pub(crate) has_rows: bool,
}

pub(crate) fn number_key(session: &SessionId) -> [u8; UUID_BYTES + 1] {
    let mut key = [NUMBER_ROW; UUID_BYTES + 1];
    key[..UUID_BYTES].copy_from_slice(session.bytes());
    key
}

/// The bytes of a session's row, if it has one.
pub(crate) fn row_of(view: &View, session: &SessionId) -> Result<Option<Bytes>> {
    Ok(view.snapshot.get(view.keyspaces.sessions, &number_key(session))?)
}

impl SessionRow {
    /// The row of a session, if it has one.
    pub(crate) fn of(view: &View, session: &SessionId) -> Result<Option<Self>> {
        Ok(row_of(view, session)?.and_then(|bytes| Self::from_bytes(&bytes)))
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let number = i64::from_be_bytes(*bytes.first_chunk()?);
        let mut row = Self { number, committed: None, written: None, has_rows: true };
        match bytes.get(8..)? {
            [COMMITTED, place @ ..] => row.committed = Some(place_from(place)?),
            [WRITTEN, place @ ..] => row.written = Some(place_from(place)?),
            [RETRYABLE, flags, place @ ..] => {
                row.has_rows = flags & HAS_ROWS != 0;
                row.written = if flags & HAS_ENTRY != 0 { Some(place_from(place)?) } else { None };
            }
            _ => {}
        }
        Some(row)
    }

    /// The result of the first statement, if the row holds it.
    pub(crate) fn result_in(bytes: &[u8]) -> Option<&[u8]> {
        let is_retryable = bytes.get(8) == Some(&RETRYABLE);
        bytes.get(RESULT_AT..).filter(|result| is_retryable && !result.is_empty())
    }

    pub(crate) fn to_bytes(self) -> Vec<u8> {
        self.with_result(&[])
    }

    /// The row with the result of the first statement, which only that of a retryable write can hold.
    pub(crate) fn with_result(self, result: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(RESULT_AT + result.len());
        bytes.extend(self.number.to_be_bytes());
        if self.committed.is_some() {
            bytes.push(COMMITTED);
        } else {
            let has_entry = if self.written.is_some() { HAS_ENTRY } else { 0 };
            let has_rows = if self.has_rows { HAS_ROWS } else { 0 };
            bytes.extend([RETRYABLE, has_entry | has_rows]);
        }
        let place = self.committed.or(self.written).unwrap_or_default();
        bytes.extend(place.op_time.term.to_be_bytes());
        bytes.extend(place.op_time.timestamp.as_u64().to_be_bytes());
        bytes.extend(place.wall_time.as_millis().to_be_bytes());
        if self.committed.is_none() {
            bytes.extend(result);
        }
        bytes
    }

    pub(crate) fn stored(self) -> Stored {
        let state = match self.committed {
            Some(at) => StoredState::Committed(at.op_time),
            None => StoredState::RetryableWrite,
        };
        Stored { number: self.number, state }
    }

    /// The row as `config.transactions` shows it.
    pub(super) fn shown(self, session: &SessionId) -> Document {
        let mut shown = doc! { "_id": session.to_lsid(), "txnNum": self.number };
        if let Some(at) = self.committed.or(self.written) {
            shown.insert("lastWriteOpTime", optime_document(at.op_time));
            shown.insert("lastWriteDate", to_bson_date_time(at.wall_time));
        }
        if self.committed.is_some() {
            shown.insert("state", "committed");
        }
        shown
    }
}

fn place_from(bytes: &[u8]) -> Option<OpTimeAndWallTime> {
    let eight = |place: usize| bytes.get(place..place + 8)?.try_into().ok();
    let term = i64::from_be_bytes(eight(0)?);
    let timestamp = Timestamp::from_u64(u64::from_be_bytes(eight(8)?));
    let wall_time = WallTime(i64::from_be_bytes(eight(16)?));
    Some(OpTimeAndWallTime { op_time: OpTime::new(term, timestamp), wall_time })
}

/// The session of a row, if the row is about its number.
pub(super) fn session_of(key: &Bytes) -> Option<SessionId> {
    match key.split_last() {
        Some((&NUMBER_ROW, session)) => session.try_into().ok().map(SessionId::from_bytes),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_as_they_were_written() {
        let op_time = OpTime::new(3, Timestamp::new(10, 2));
        let at = OpTimeAndWallTime { op_time, wall_time: WallTime(-5) };
        for row in [
            SessionRow { number: 7, committed: None, written: None, has_rows: false },
            SessionRow { number: 7, committed: None, written: None, has_rows: true },
            SessionRow { number: 8, committed: None, written: Some(at), has_rows: false },
            SessionRow { number: 8, committed: None, written: Some(at), has_rows: true },
        ] {
            assert_eq!(SessionRow::from_bytes(&row.to_bytes()), Some(row));
            assert_eq!(SessionRow::result_in(&row.to_bytes()), None);
            let bytes = row.with_result(b"result");
            assert_eq!(SessionRow::from_bytes(&bytes), Some(row));
            assert_eq!(SessionRow::result_in(&bytes), Some(&b"result"[..]));
        }
        let committed =
            SessionRow { number: i64::MAX, committed: Some(at), written: None, has_rows: true };
        assert_eq!(SessionRow::from_bytes(&committed.to_bytes()), Some(committed));
        assert_eq!(SessionRow::result_in(&committed.to_bytes()), None);
        assert_eq!(SessionRow::from_bytes(&[1, 2]), None);
    }

    #[test]
    fn rows_of_earlier_versions_are_read() {
        let number = 7_i64.to_be_bytes();
        let place = [3_i64.to_be_bytes(), (10_u64 << 32 | 2).to_be_bytes(), (-5_i64).to_be_bytes()];
        let at = Some(OpTimeAndWallTime {
            op_time: OpTime::new(3, Timestamp::new(10, 2)),
            wall_time: WallTime(-5),
        });
        for (mark, rest, written) in [
            (&[][..], &[][..], None),
            (&[3][..], &[][..], None),
            (&[2][..], &[][..], at),
            (&[2][..], &[1][..], at),
        ] {
            let place = if written.is_some() { place.concat() } else { Vec::new() };
            let bytes = [&number[..], mark, &place, rest].concat();
            let row = SessionRow { number: 7, committed: None, written, has_rows: true };
            assert_eq!(SessionRow::from_bytes(&bytes), Some(row), "{bytes:?}");
            assert_eq!(SessionRow::result_in(&bytes), None, "{bytes:?}");
        }
    }
}
