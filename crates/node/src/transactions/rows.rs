//! What the store keeps about a session's newest number.
//!
//! ```text
//!   sessions   <16 bytes of session> 00  →  <number, 8>                                       a retryable write
//!                                           <number, 8> 01 <term, 8> <time, 8> <wall, 8>      a transaction
//!                                           <number, 8> 02 <term, 8> <time, 8> <wall, 8>      a retryable write
//!                                           <number, 8> 02 <term, 8> <time, 8> <wall, 8> 01   one with one result
//!                                           <number, 8> 03                                    one with one result
//! ```
//!
//! A transaction's row is in the batch of its commit, so it goes back with it. The three numbers at
//! the end are the place of the last entry; a member without a set has none for retryable writes.

use bson::{Document, doc};
use quorate_protocol::{OpTime, OpTimeAndWallTime, Timestamp, WallTime};
use quorate_storage::Bytes;
use quorate_transactions::{Stored, StoredState};
use quorate_wire::replica_set::optime_document;
use quorate_wire::to_bson_date_time;

use crate::error::CommandError;
use crate::records::View;
use crate::sessions::SessionId;

const NUMBER_ROW: u8 = 0;

/// Marks the number of a committed transaction.
const COMMITTED: u8 = 1;

/// Marks the number of a retryable write whose last entry is known.
const WRITTEN: u8 = 2;

/// Marks the number of a retryable write without an entry that has one result. Earlier versions take it for one without
/// a mark.
const SINGLE: u8 = 3;

/// Ends the row of a retryable write with an entry that has one result. Earlier versions pass over it.
const IS_SINGLE: u8 = 1;

/// A session's newest number in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SessionRow {
    pub(crate) number: i64,
    /// The last entry of the transaction that it was; none of a retryable write.
    pub(crate) committed: Option<OpTimeAndWallTime>,
    /// The last entry of the retryable write that it was.
    pub(crate) written: Option<OpTimeAndWallTime>,
    /// Whether a result is stored for its first statement and for no other. Rows of earlier versions do not tell.
    pub(crate) is_single: bool,
}

pub(crate) fn number_key(session: &SessionId) -> Vec<u8> {
    [session.bytes(), &[NUMBER_ROW]].concat()
}

impl SessionRow {
    /// The row of a session, if it has one.
    pub(crate) fn of(view: &View, session: &SessionId) -> Result<Option<Self>, CommandError> {
        let row = view.snapshot.get(view.keyspaces.sessions, &number_key(session))?;
        Ok(row.and_then(|bytes| Self::from_bytes(&bytes)))
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let number = i64::from_be_bytes(*bytes.first_chunk()?);
        let mut row = Self { number, committed: None, written: None, is_single: false };
        let (kind, rest) = match bytes.get(8..)?.split_first() {
            Some((&kind @ (COMMITTED | WRITTEN), rest)) => (kind, rest),
            other => {
                row.is_single = other.is_some_and(|(&kind, _)| kind == SINGLE);
                return Some(row);
            }
        };
        let eight = |place: usize| rest.get(place..place + 8)?.try_into().ok();
        let term = i64::from_be_bytes(eight(0)?);
        let timestamp = Timestamp::from_u64(u64::from_be_bytes(eight(8)?));
        let wall_time = WallTime(i64::from_be_bytes(eight(16)?));
        let op_time = OpTime::new(term, timestamp);
        let at = Some(OpTimeAndWallTime { op_time, wall_time });
        match kind {
            COMMITTED => row.committed = at,
            _ => (row.written, row.is_single) = (at, rest.get(24) == Some(&IS_SINGLE)),
        }
        Some(row)
    }

    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let mut bytes = self.number.to_be_bytes().to_vec();
        if let Some(OpTimeAndWallTime { op_time, wall_time }) = self.committed.or(self.written) {
            bytes.push(if self.committed.is_some() { COMMITTED } else { WRITTEN });
            bytes.extend(op_time.term.to_be_bytes());
            bytes.extend(op_time.timestamp.as_u64().to_be_bytes());
            bytes.extend(wall_time.as_millis().to_be_bytes());
            bytes.extend(self.is_single.then_some(IS_SINGLE));
        } else if self.is_single {
            bytes.push(SINGLE);
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

/// The session of a row, if the row is about its number.
pub(super) fn session_of(key: &Bytes) -> Option<SessionId> {
    match key.split_last() {
        Some((&NUMBER_ROW, session)) if session.len() == 16 => {
            Some(SessionId::from_bytes(session.to_vec()))
        }
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
            SessionRow { number: 7, committed: None, written: None, is_single: false },
            SessionRow { number: 7, committed: None, written: None, is_single: true },
            SessionRow { number: 8, committed: None, written: Some(at), is_single: false },
            SessionRow { number: 8, committed: None, written: Some(at), is_single: true },
            SessionRow { number: i64::MAX, committed: Some(at), written: None, is_single: false },
        ] {
            assert_eq!(SessionRow::from_bytes(&row.to_bytes()), Some(row));
        }
        assert_eq!(SessionRow::from_bytes(&[1, 2]), None);
    }
}
