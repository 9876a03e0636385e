//! Retryable writes: the result of each statement is stored in the batch of its change.
//!
//! ```text
//!   sessions   <16 bytes of session> 00                           →  see `transactions/rows.rs`
//!              <16 bytes of session> 01 <number, 8> <statement, 4>  →  the result, as BSON
//! ```
//!
//! The session's row holds the result of the first statement if that is short. Other results have rows of
//! their own.
//!
//! The entries of one number form a chain: each names the one before it (`prevOpTime`), and the
//! session's row names the last. The first holds the row that the session had before (`sessionBefore`),
//! so that a rollback can bring it back; the results that belong to that row are then read from its
//! chain.
//!
//! A client that repeats a command with the same number gets the stored results; what was not
//! done yet is done now. A greater number forgets the results of the smaller one. Specification:
//! `retryable-writes/retryable-writes.md`.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use bson::raw::cstr;
use bson::spec::BinarySubtype;
use bson::{Binary, Bson, Document, RawDocument, RawDocumentBuf};
use quorate_protocol::{OpTime, OpTimeAndWallTime};
use quorate_storage::key::RecordId;
use quorate_storage::{Batch, Bytes, Direction, KeyRange};
use quorate_transactions::{Arrival, Kind, Refusal, Verdict};

use super::Writer;
use crate::error::{ErrorCode, Result};
use crate::fields::{Fields, whole_number};
use crate::records::{EMPTY_DOCUMENT, View, parse_record};
use crate::replication::entry_position;
use crate::sessions::SessionId;
use crate::transactions::{SessionRow, number_key, previous_of, refused};

const RESULT_ROW: u8 = 1;

/// The longest result that the session's row holds. A longer one, such as the document of a findAndModify, would be
/// copied whenever the row is.
const MAX_RESULT_IN_ROW: usize = 512;

/// Bytes of a statement's number, with which the key of a result ends.
const STATEMENT_BYTES: usize = size_of::<i32>();

/// A write that may be repeated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RetryableWrite {
    pub(crate) session: SessionId,
    pub(crate) number: i64,
    pub(crate) statements: StatementIds,
}

/// The numbers of a write's statements. Several commands may share a transaction number if their statements have
/// different numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StatementIds {
    /// They are counted from this one: `stmtId`, or nought.
    From(i32),
    /// Each has its own: `stmtIds`.
    Listed(Arc<[i32]>),
}

impl Default for StatementIds {
    fn default() -> Self {
        Self::From(0)
    }
}

impl StatementIds {
    /// Reads `stmtId` and `stmtIds`.
    pub(crate) fn of(fields: &Fields<'_>) -> Result<Self> {
        let number = |given: i64| {
            i32::try_from(given)
                .ok()
                .filter(|given| *given >= 0)
                .ok_or_else(|| fail!(BAD_VALUE, "{given} is no number of a statement"))
        };
        match (fields.integer("stmtId")?, fields.array("stmtIds")?) {
            (None, None) => Ok(Self::default()),
            (Some(first), None) => number(first).map(Self::From),
            (None, Some(listed)) => {
                let read = |given: &Bson| match whole_number(given) {
                    Some(given) => number(given),
                    None => Err(fields.wrong_type("stmtIds", given, "int")),
                };
                Ok(Self::Listed(listed.iter().map(read).collect::<Result<_, _>>()?))
            }
            (Some(_), Some(_)) => Err(fail!(
                INVALID_OPTIONS,
                "May not specify both stmtId and stmtIds in a write command"
            )),
        }
    }

    fn check_count(&self, statements: usize) -> Result<()> {
        match self {
            Self::Listed(listed) if listed.len() != statements => Err(fail!(
                INVALID_LENGTH,
                "Number of statement ids must match the number of batch entries. Got {} \
                     statement ids but {statements} entries",
                listed.len()
            )),
            _ => Ok(()),
        }
    }

    fn id(&self, place: usize) -> Option<i32> {
        match self {
            Self::From(first) => first.checked_add(i32::try_from(place).ok()?),
            Self::Listed(listed) => listed.get(place).copied(),
        }
    }
}

/// How far a retryable write has come.
pub(super) struct Retry {
    pub(super) session: SessionId,
    pub(super) number: i64,
    statements: StatementIds,
    /// Whether the store knows of this number.
    announced: bool,
    /// What earlier tries of the write did.
    done: BTreeMap<i32, Document>,
    /// The statement whose change is being put together, and its result.
    current: Option<(i32, RawDocumentBuf)>,
    /// Which image of the document that result holds, if it is that of a findAndModify.
    image: Option<&'static str>,
    /// The last entry of this number; none before the first, or without a set.
    last: Option<OpTimeAndWallTime>,
    /// The row that a rollback of this number's first entry brings back.
    before: Option<SessionRow>,
    /// The result of the first statement, if the session's row holds it.
    in_row: Vec<u8>,
    /// Whether other results stand in rows of their own.
    has_rows: bool,
}

/// The most statements of one number, as many as one command has.
const MAX_STATEMENTS: usize = 100_000;

/// What a retryable write adds to an entry besides its result.
const RETRY_BYTES: usize = 256;

/// What is named as the entry before the first one.
const NO_ENTRY: OpTime = OpTime::NULL;

impl Writer<'_> {
    /// Says which retryable write the coming changes of so many statements belong to.
    pub(crate) fn begin_retryable(
        &mut self,
        write: Option<&RetryableWrite>,
        statements: usize,
    ) -> Result<()> {
        let Some(write) = write else { return Ok(()) };
        write.statements.check_count(statements)?;
        let arrival = Arrival { number: write.number, kind: Kind::RetryableWrite };
        let row = self.session_row(&write.session)?;
        let known = row.as_deref().and_then(SessionRow::from_bytes);
        let verdict = self.arrive(&write.session, arrival, known.map(SessionRow::stored));
        if let Verdict::Refuse(refusal) = verdict {
            return Err(match refusal {
                Refusal::TooOld { .. } => known_retry(write, row.as_deref()).err(),
                _ => None,
            }
            .unwrap_or_else(|| refused(refusal)));
        }
        self.retry = Some(self.known_results(write, row)?);
        Ok(())
    }

    /// Learns what a repetition of this write did while the lock was free.
    pub(crate) fn look_for_repetition(&mut self) -> Result<()> {
        let Some(retry) = &self.retry else { return Ok(()) };
        let write = RetryableWrite {
            session: retry.session,
            number: retry.number,
            statements: retry.statements.clone(),
        };
        let known = self.known_results(&write, self.session_row(&write.session)?)?;
        if let Some(retry) = &mut self.retry {
            (retry.announced, retry.done, retry.last) = (known.announced, known.done, known.last);
            (retry.in_row, retry.has_rows) = (known.in_row, known.has_rows);
        }
        Ok(())
    }

    /// A write with its earlier results, if it is not too old.
    fn known_results(&self, write: &RetryableWrite, row: Option<Bytes>) -> Result<Retry> {
        let mut retry = known_retry(write, row.as_deref())?;
        if !retry.announced {
            return Ok(retry);
        }
        if !retry.in_row.is_empty() {
            retry.done.insert(0, Document::from_reader(&retry.in_row[..])?);
        }
        if retry.has_rows {
            let keyspace = self.node.keyspaces().sessions;
            let range = KeyRange::prefix(&result_prefix(&retry.session, retry.number));
            for pair in self.view().snapshot.scan(keyspace, range, Direction::Forward)? {
                let (key, value) = pair?;
                if let Some(statement) = key.last_chunk() {
                    let result = Document::from_reader(&value[..])?;
                    retry.done.insert(i32::from_be_bytes(*statement), result);
                }
            }
        }
        Ok(retry)
    }

    /// Puts what another member answered for a statement into the batch of its change.
    ///
    /// What the session did before is not read: an insert of thousands of documents has as many
    /// statements, and reading all earlier ones for each would take time without end.
    pub(crate) fn replay_statement(
        &mut self,
        batch: &mut Batch,
        write: &RetryableWrite,
        (statement, at): (i32, OpTimeAndWallTime),
        result: &[u8],
    ) -> Result<()> {
        let same = |retry: &Retry| retry.session == write.session && retry.number == write.number;
        let retry = match self.replayed.take().filter(same) {
            Some(retry) => retry,
            None => match known_retry(write, self.session_row(&write.session)?.as_deref()) {
                Ok(retry) => retry,
                // An older number than the one known here is of no use.
                Err(error) if error.code == ErrorCode::TRANSACTION_TOO_OLD => return Ok(()),
                Err(error) => return Err(error),
            },
        };
        self.retry = Some(Retry { last: Some(at), ..retry });
        let recorded = self.record(batch, statement, result);
        // The next entry is applied whatever this session has done before.
        self.replayed = self.retry.take();
        recorded
    }

    /// The number of the statement at a place of a retryable write.
    pub(crate) fn statement_id(&self, place: usize) -> Option<i32> {
        self.retry.as_ref()?.statements.id(place)
    }

    /// What came of the statement at a place the first time, if it was done.
    pub(crate) fn earlier_result(&self, place: usize) -> Option<&Document> {
        self.retry.as_ref()?.done.get(&self.statement_id(place)?)
    }

    /// Says what will have come of a statement once its change is committed.
    pub(crate) fn enter_statement(
        &mut self,
        place: usize,
        result: impl FnOnce() -> RawDocumentBuf,
    ) {
        let statement = self.statement_id(place);
        if let (Some(retry), Some(statement)) = (&mut self.retry, statement) {
            retry.current = Some((statement, result()));
            retry.image = None;
        }
    }

    /// Says which image of the document the result of the current statement holds.
    pub(crate) fn enter_image(&mut self, image: &'static str) {
        if let Some(retry) = &mut self.retry {
            retry.image = Some(image);
        }
    }

    /// Adds to an entry what a retryable write's has.
    pub(super) fn append_retry(&self, entry: &mut RawDocumentBuf, statement: Option<i32>) {
        let (Some(retry), Some(statement)) = (&self.retry, statement) else { return };
        retry.session.append_to(entry);
        entry.append(cstr!("txnNumber"), retry.number);
        entry.append(cstr!("stmtId"), statement);
        let previous = retry.last.map_or(NO_ENTRY, |last| last.op_time);
        if let Ok(previous) = RawDocument::from_bytes(&raw_op_time(previous)) {
            entry.append(cstr!("prevOpTime"), previous);
        }
        if let (None, Some(before)) = (retry.last, retry.before) {
            let bytes = before.to_bytes();
            let before = Binary { subtype: BinarySubtype::Generic, bytes };
            entry.append(cstr!("sessionBefore"), before);
        }
        if let Some((_, result)) = &retry.current {
            // What a repeated write is answered with, by the member that is primary then.
            entry.append(cstr!("retryResult"), &**result);
        }
        if let Some(image) = retry.image {
            entry.append(cstr!("needsRetryImage"), image);
        }
    }

    /// The current statement's entry has this place.
    pub(super) fn retry_logged(&mut self, statement: Option<i32>, at: OpTimeAndWallTime) {
        if let (Some(retry), Some(_)) = (&mut self.retry, statement) {
            retry.last = Some(at);
        }
    }

    /// What a retryable write adds to an entry.
    pub(super) fn retry_bytes(&self) -> usize {
        let result =
            |retry: &Retry| retry.current.as_ref().map_or(0, |(_, result)| result.as_bytes().len());
        self.retry.as_ref().map_or(0, |retry| RETRY_BYTES + result(retry))
    }

    pub(super) fn current_statement(&self) -> Option<i32> {
        self.retry.as_ref()?.current.as_ref().map(|(statement, _)| *statement)
    }

    pub(super) fn is_retryable(&self) -> bool {
        self.retry.is_some()
    }

    /// Forgets that a statement was done, because its entry is undone. The row of the session becomes
    /// what it was before.
    pub(crate) fn forget_statement(
        &self,
        batch: &mut Batch,
        write: &RetryableWrite,
        statement: i32,
        entry: &RawDocument,
    ) -> Result<()> {
        let keyspace = self.node.keyspaces().sessions;
        batch.remove(keyspace, result_key(&write.session, write.number, statement));
        let bytes = self.session_row(&write.session)?;
        let row = bytes.as_deref().and_then(SessionRow::from_bytes);
        let Some(row) = row.filter(|row| row.number == write.number) else {
            // The session is further.
            return Ok(());
        };
        let result = bytes.as_deref().and_then(SessionRow::result_in);
        let result = result.filter(|_| statement != 0).unwrap_or_default();
        let stays = |written| SessionRow { written, ..row }.with_result(result);
        let row = match (previous_of(entry), entry.get_binary("sessionBefore")) {
            // The entry is of a version that does not tell what came before.
            _ if entry.get_document("prevOpTime").is_err() => stays(row.written),
            (Some(previous), _) => {
                let previous = self.entry_at(previous)?;
                stays(previous.as_deref().and_then(|entry| entry_position(entry).ok()))
            }
            (None, Ok(before)) => match self.bring_back(batch, &write.session, before.bytes)? {
                Some(before) => before,
                None => stays(None),
            },
            (None, Err(_)) => {
                batch.remove(keyspace, &number_key(&write.session));
                return Ok(());
            }
        };
        batch.insert(keyspace, &number_key(&write.session), row);
        Ok(())
    }

    /// The row that a session had before the transaction of this number. A later number may have removed the rows with
    /// its results. If they cannot be brought back, the session stays at this number.
    pub(crate) fn row_before(
        &self,
        batch: &mut Batch,
        session: &SessionId,
        number: i64,
        before: &[u8],
    ) -> Result<Vec<u8>> {
        let row = SessionRow::from_bytes(before);
        let has_rows = |row: &SessionRow| row.has_rows && row.written.is_some();
        if row.filter(has_rows).is_none() {
            return Ok(before.to_vec());
        }
        let stays = SessionRow { number, committed: None, written: None, has_rows: false };
        Ok(self.bring_back(batch, session, before)?.unwrap_or_else(|| stays.to_bytes()))
    }

    /// The row that a session had. Brings back the results that belong to it. If they are not all in the log any more
    /// there is none, and the session stays at its number: a write of the number before is refused then, and not
    /// done twice.
    fn bring_back(
        &self,
        batch: &mut Batch,
        session: &SessionId,
        before: &[u8],
    ) -> Result<Option<Vec<u8>>> {
        let Some(mut row) = SessionRow::from_bytes(before) else { return Ok(None) };
        if row.committed.is_some() {
            return Ok(Some(row.to_bytes()));
        }
        let mut results = Vec::new();
        let mut next = row.written.map(|at| at.op_time.timestamp.as_u64());
        if next.is_none() {
            return Ok(None);
        }
        while let Some(at) = next {
            let entry = self.entry_at(at)?.filter(|_| results.len() < MAX_STATEMENTS);
            let Some(entry) = entry else { return Ok(None) };
            let Ok(statement) = entry.get_i32("stmtId") else { return Ok(None) };
            let result = entry.get_document("retryResult").map(RawDocument::as_bytes);
            results.push((statement, result.unwrap_or(&EMPTY_DOCUMENT).to_vec()));
            next = previous_of(&entry);
        }
        let keyspace = self.node.keyspaces().sessions;
        let mut in_row = Vec::new();
        row.has_rows = false;
        for (statement, result) in results {
            if is_kept_in_row(statement, &result) {
                in_row = result;
            } else {
                row.has_rows = true;
                batch.insert(keyspace, result_key(session, row.number, statement), result);
            }
        }
        Ok(Some(row.with_result(&in_row)))
    }

    pub(crate) fn entry_at(&self, timestamp: u64) -> Result<Option<RawDocumentBuf>> {
        let at = Bound::Included(RecordId(timestamp));
        let found = self.view().scan_oplog((at, at), Direction::Forward)?.next();
        found.map(|pair| Ok((*parse_record(&pair?.1)?).to_owned())).transpose()
    }

    /// Puts the result of the current statement into the batch of its change.
    pub(super) fn record_current(&mut self, batch: &mut Batch) -> Result<()> {
        let current = self.retry.as_mut().and_then(|retry| retry.current.take());
        match current {
            Some((statement, result)) => self.record(batch, statement, result.as_bytes()),
            None => Ok(()),
        }
    }

    /// Puts the result of a statement into the batch of its change.
    pub(crate) fn record(
        &mut self,
        batch: &mut Batch,
        statement: i32,
        result: &[u8],
    ) -> Result<()> {
        let keyspace = self.node.keyspaces().sessions;
        let Some(retry) = &self.retry else { return Ok(()) };
        self.node.fail_points().on_transactional_write(&retry.session)?;
        if !retry.announced && retry.before.is_some_and(|before| before.has_rows) {
            forget_results(self.view(), &retry.session, batch)?;
        }
        let Some(retry) = &mut self.retry else { return Ok(()) };
        retry.announced = true;
        let (number, written) = (retry.number, retry.last);
        if is_kept_in_row(statement, result) {
            retry.in_row = result.to_vec();
        } else {
            retry.has_rows = true;
            let key = result_key(&retry.session, number, statement);
            batch.insert(keyspace, key, result.to_vec());
        }
        let row = SessionRow { number, committed: None, written, has_rows: retry.has_rows };
        batch.insert(keyspace, &number_key(&retry.session), row.with_result(&retry.in_row));
        Ok(())
    }
}

/// Bytes of `{ts: <timestamp>, t: <term>}`: its length, two fields and the end.
const OP_TIME_BYTES: usize = 4 + (1 + 3 + 8) + (1 + 2 + 8) + 1;

/// `{ts: <timestamp>, t: <term>}` as BSON.
fn raw_op_time(at: OpTime) -> [u8; OP_TIME_BYTES] {
    let mut bytes = *b"\x1C\0\0\0\x11ts\0________\x12t\0________\0";
    bytes[8..16].copy_from_slice(&at.timestamp.as_u64().to_le_bytes());
    bytes[19..27].copy_from_slice(&at.term.to_le_bytes());
    bytes
}

/// Whether the session's row holds this result.
fn is_kept_in_row(statement: i32, result: &[u8]) -> bool {
    statement == 0 && result.len() <= MAX_RESULT_IN_ROW
}

/// A write without its earlier results, if it is not too old for its session's row.
fn known_retry(write: &RetryableWrite, row: Option<&[u8]>) -> Result<Retry> {
    let RetryableWrite { session, number, statements } = write;
    let known = row.and_then(SessionRow::from_bytes);
    if let Some(known) = known.map(|row| row.number).filter(|known| number < known) {
        refuse!(
            TRANSACTION_TOO_OLD,
            "Retryable write with txnNumber {number} is prohibited on this session because a \
                 newer retryable write with txnNumber {known} has already started"
        );
    }
    let same = known.filter(|row| row.number == *number);
    let in_row = row.filter(|_| same.is_some()).and_then(SessionRow::result_in);
    Ok(Retry {
        session: *session,
        number: *number,
        statements: statements.clone(),
        announced: same.is_some(),
        done: BTreeMap::new(),
        current: None,
        image: None,
        last: same.and_then(|row| row.written),
        // A number without an entry is what a rollback could not bring back further: to be kept by the next, too.
        before: known.filter(|row| row.number != *number || row.written.is_none()),
        in_row: in_row.unwrap_or_default().to_vec(),
        has_rows: same.is_some_and(|row| row.has_rows),
    })
}

/// Removes the rows with results of the session's last retryable write, which a newer number makes useless.
///
/// Only that write has results: each number removes those of the one before it. They are looked for from the
/// end, because the store passes over every removed row on its way to one that is there.
fn forget_results(view: &View, session: &SessionId, batch: &mut Batch) -> Result<()> {
    let keyspace = view.keyspaces.sessions;
    let all = KeyRange::prefix(&[session.bytes(), &[RESULT_ROW]].concat());
    let Some(last) = view.snapshot.scan(keyspace, all, Direction::Backward)?.next() else {
        return Ok(());
    };
    let (last, _) = last?;
    let Some((prefix, _)) = last.split_last_chunk::<STATEMENT_BYTES>() else { return Ok(()) };
    for pair in view.snapshot.scan(keyspace, KeyRange::prefix(prefix), Direction::Forward)? {
        batch.remove(keyspace, pair?.0);
    }
    Ok(())
}

fn result_key(session: &SessionId, number: i64, statement: i32) -> Vec<u8> {
    let mut key = result_prefix(session, number);
    key.extend(statement.to_be_bytes());
    key
}

fn result_prefix(session: &SessionId, number: i64) -> Vec<u8> {
    [session.bytes(), &[RESULT_ROW], &number.to_be_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_protocol::Timestamp;
    use quorate_wire::to_bson_timestamp;

    #[test]
    fn a_position_is_written_as_the_library_writes_it() {
        for at in [
            OpTime::NULL,
            OpTime::new(7, Timestamp::new(10, 2)),
            OpTime::new(i64::MAX, Timestamp::new(u32::MAX, 1)),
        ] {
            let expected = bson::rawdoc! { "ts": to_bson_timestamp(at.timestamp), "t": at.term };
            assert_eq!(raw_op_time(at), expected.as_bytes());
        }
    }
}
