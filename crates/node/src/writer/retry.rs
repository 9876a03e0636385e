//! Retryable writes: the result of each statement is stored in the batch of its change.
//!
//! ```text
//!   sessions   <16 bytes of session> 00                           →  see `transactions/rows.rs`
//!              <16 bytes of session> 01 <number, 8> <statement, 4>  →  the result, as BSON
//! ```
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

use bson::raw::cstr;
use bson::spec::BinarySubtype;
use bson::{Binary, Document, RawDocument, RawDocumentBuf, rawdoc};
use quorate_protocol::{OpTime, OpTimeAndWallTime};
use quorate_storage::key::RecordId;
use quorate_storage::{Batch, Direction, KeyRange};
use quorate_transactions::{Arrival, Kind, Refusal, Verdict};
use quorate_wire::to_bson_timestamp;

use super::Writer;
use crate::error::{CommandError, ErrorCode};
use crate::fields::to_raw;
use crate::records::{EMPTY_DOCUMENT, View, parse_record};
use crate::replication::entry_position;
use crate::sessions::SessionId;
use crate::transactions::{SessionRow, number_key, previous_of, refused};

const RESULT_ROW: u8 = 1;

/// Bytes of a statement's number, with which the key of a result ends.
const STATEMENT_BYTES: usize = size_of::<i32>();

/// A write that may be repeated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RetryableWrite {
    pub(crate) session: SessionId,
    pub(crate) number: i64,
}

/// How far a retryable write has come.
pub(super) struct Retry {
    pub(super) session: SessionId,
    pub(super) number: i64,
    /// Whether the store knows of this number.
    announced: bool,
    done: BTreeMap<i32, Document>,
    /// The statement whose change is being put together, and its result.
    current: Option<(i32, Document)>,
    /// Which image of the document that result holds, if it is that of a findAndModify.
    image: Option<&'static str>,
    /// The last entry of this number; none before the first, or without a set.
    last: Option<OpTimeAndWallTime>,
    /// The row of the session's number before this one.
    before: Option<SessionRow>,
    /// Whether no statement but the first has a result.
    is_single: bool,
}

/// The most statements of one number, as many as one command has.
const MAX_STATEMENTS: usize = 100_000;

/// What is named as the entry before the first one.
const NO_ENTRY: OpTime = OpTime::NULL;

impl Writer<'_> {
    /// Says which retryable write the coming changes belong to.
    pub(crate) fn begin_retryable(
        &mut self,
        write: Option<&RetryableWrite>,
    ) -> Result<(), CommandError> {
        let Some(write) = write else { return Ok(()) };
        let arrival = Arrival { number: write.number, kind: Kind::RetryableWrite };
        if let Verdict::Refuse(refusal) = self.arrive(&write.session, arrival)? {
            return Err(match refusal {
                Refusal::TooOld { .. } => self.known_retry(write).err(),
                _ => None,
            }
            .unwrap_or_else(|| refused(refusal)));
        }
        self.retry = Some(self.known_results(write)?);
        Ok(())
    }

    /// Learns what a repetition of this write did while the lock was free.
    pub(crate) fn look_for_repetition(&mut self) -> Result<(), CommandError> {
        let Some(retry) = &self.retry else { return Ok(()) };
        let write = RetryableWrite { session: retry.session.clone(), number: retry.number };
        let known = self.known_results(&write)?;
        if let Some(retry) = &mut self.retry {
            (retry.announced, retry.done, retry.last) = (known.announced, known.done, known.last);
            retry.is_single = known.is_single;
        }
        Ok(())
    }

    /// A write with its earlier results, if it is not too old.
    fn known_results(&self, write: &RetryableWrite) -> Result<Retry, CommandError> {
        let mut retry = self.known_retry(write)?;
        if retry.announced {
            let keyspace = self.node.keyspaces().sessions;
            let range = KeyRange::prefix(&result_prefix(&retry.session, retry.number));
            for pair in self.view.snapshot.scan(keyspace, range, Direction::Forward)? {
                let (key, value) = pair?;
                if let Some(statement) = key.last_chunk() {
                    let result = Document::from_reader(&value[..])?;
                    retry.done.insert(i32::from_be_bytes(*statement), result);
                }
            }
        }
        Ok(retry)
    }

    /// A write without its earlier results, if it is not too old.
    fn known_retry(&self, write: &RetryableWrite) -> Result<Retry, CommandError> {
        let RetryableWrite { session, number } = write;
        let row = SessionRow::of(&self.view, session)?;
        let known = row.map(|row| row.number);
        if let Some(known) = known.filter(|known| number < known) {
            return Err(CommandError::new(
                ErrorCode::TRANSACTION_TOO_OLD,
                format!(
                    "Retryable write with txnNumber {number} is prohibited on this session because \
                     a newer retryable write with txnNumber {known} has already started"
                ),
            ));
        }
        Ok(Retry {
            session: session.clone(),
            number: *number,
            announced: known == Some(*number),
            done: BTreeMap::new(),
            current: None,
            image: None,
            last: row.filter(|row| row.number == *number).and_then(|row| row.written),
            before: row.filter(|row| row.number != *number),
            is_single: row.is_none_or(|row| row.number != *number || row.is_single),
        })
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
        result: Document,
    ) -> Result<(), CommandError> {
        let same = |retry: &Retry| retry.session == write.session && retry.number == write.number;
        let retry = match self.replayed.take().filter(same) {
            Some(retry) => retry,
            None => match self.known_retry(write) {
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

    /// What came of a statement the first time, if it was done.
    pub(crate) fn earlier_result(&self, statement: usize) -> Option<&Document> {
        let statement = i32::try_from(statement).ok()?;
        self.retry.as_ref()?.done.get(&statement)
    }

    /// Says what will have come of a statement once its change is committed.
    pub(crate) fn enter_statement(&mut self, statement: usize, result: Document) {
        if let (Some(retry), Ok(statement)) = (&mut self.retry, i32::try_from(statement)) {
            retry.current = Some((statement, result));
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
    pub(super) fn append_retry(
        &self,
        entry: &mut RawDocumentBuf,
        statement: Option<i32>,
    ) -> Result<(), CommandError> {
        let (Some(retry), Some(statement)) = (&self.retry, statement) else { return Ok(()) };
        entry.append(cstr!("lsid"), to_raw(&retry.session.to_lsid())?);
        entry.append(cstr!("txnNumber"), retry.number);
        entry.append(cstr!("stmtId"), statement);
        let previous = retry.last.map_or(NO_ENTRY, |last| last.op_time);
        let time = to_bson_timestamp(previous.timestamp);
        entry.append(cstr!("prevOpTime"), rawdoc! { "ts": time, "t": previous.term });
        if let (None, Some(before)) = (retry.last, retry.before) {
            let bytes = before.to_bytes();
            let before = Binary { subtype: BinarySubtype::Generic, bytes };
            entry.append(cstr!("sessionBefore"), before);
        }
        if let Some((_, result)) = &retry.current {
            // What a repeated write is answered with, by the member that is primary then.
            entry.append(cstr!("retryResult"), to_raw(result)?);
        }
        if let Some(image) = retry.image {
            entry.append(cstr!("needsRetryImage"), image);
        }
        Ok(())
    }

    /// The current statement's entry has this place.
    pub(super) fn retry_logged(&mut self, statement: Option<i32>, at: OpTimeAndWallTime) {
        if let (Some(retry), Some(_)) = (&mut self.retry, statement) {
            retry.last = Some(at);
        }
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
    ) -> Result<(), CommandError> {
        let keyspace = self.node.keyspaces().sessions;
        batch.remove(keyspace, result_key(&write.session, write.number, statement));
        let newest = SessionRow::of(&self.view, &write.session)?.map(|row| row.number);
        if newest != Some(write.number) || entry.get_document("prevOpTime").is_err() {
            // The session is further, or the entry is of a version that does not tell.
            return Ok(());
        }
        if let Some(previous) = previous_of(entry) {
            if let Some(at) =
                self.entry_at(previous)?.as_deref().and_then(|entry| entry_position(entry).ok())
            {
                // Which statements are left is not looked up.
                let (number, written) = (write.number, Some(at));
                let row = SessionRow { number, committed: None, written, is_single: false };
                batch.insert(keyspace, number_key(&write.session), row.to_bytes());
            }
            return Ok(());
        }
        match entry.get_binary("sessionBefore") {
            Ok(before) => self.bring_back(batch, &write.session, before.bytes),
            Err(_) => {
                batch.remove(keyspace, number_key(&write.session));
                Ok(())
            }
        }
    }

    /// Brings back the row that a session had, and the results that belong to it. If they are not all
    /// in the log any more, the session stays at its number: a repeated write is refused then, and not
    /// done twice.
    fn bring_back(
        &self,
        batch: &mut Batch,
        session: &SessionId,
        before: &[u8],
    ) -> Result<(), CommandError> {
        let Some(row) = SessionRow::from_bytes(before) else { return Ok(()) };
        let mut results = Vec::new();
        let mut next = row.written.map(|at| at.op_time.timestamp.as_u64());
        if next.is_none() && row.committed.is_none() {
            return Ok(());
        }
        while let Some(at) = next {
            let entry = self.entry_at(at)?.filter(|_| results.len() < MAX_STATEMENTS);
            let Some(entry) = entry else { return Ok(()) };
            let Ok(statement) = entry.get_i32("stmtId") else { return Ok(()) };
            let result = entry.get_document("retryResult").map(RawDocument::as_bytes);
            results.push((statement, result.unwrap_or(&EMPTY_DOCUMENT).to_vec()));
            next = previous_of(&entry);
        }
        let keyspace = self.node.keyspaces().sessions;
        for (statement, result) in results {
            batch.insert(keyspace, result_key(session, row.number, statement), result);
        }
        batch.insert(keyspace, number_key(session), before.to_vec());
        Ok(())
    }

    pub(crate) fn entry_at(&self, timestamp: u64) -> Result<Option<RawDocumentBuf>, CommandError> {
        let at = Bound::Included(RecordId(timestamp));
        let found = self.view.scan_oplog((at, at), Direction::Forward)?.next();
        found.map(|pair| Ok((*parse_record(&pair?.1)?).to_owned())).transpose()
    }

    /// Puts the result of the current statement into the batch of its change.
    pub(super) fn record_current(&mut self, batch: &mut Batch) -> Result<(), CommandError> {
        let current = self.retry.as_mut().and_then(|retry| retry.current.take());
        match current {
            Some((statement, result)) => self.record(batch, statement, result),
            None => Ok(()),
        }
    }

    /// Puts the result of a statement into the batch of its change.
    pub(crate) fn record(
        &mut self,
        batch: &mut Batch,
        statement: i32,
        result: Document,
    ) -> Result<(), CommandError> {
        let keyspace = self.node.keyspaces().sessions;
        let Some(retry) = &mut self.retry else { return Ok(()) };
        self.node.fail_points().on_transactional_write(&retry.session)?;
        if !retry.announced {
            retry.announced = true;
            match retry.before {
                None => {}
                Some(before) if before.is_single => {
                    batch.remove(keyspace, result_key(&retry.session, before.number, 0));
                }
                Some(_) => forget_results(&self.view, &retry.session, batch)?,
            }
        }
        retry.is_single &= statement == 0;
        let (number, written, is_single) = (retry.number, retry.last, retry.is_single);
        let row = SessionRow { number, committed: None, written, is_single };
        batch.insert(keyspace, number_key(&retry.session), row.to_bytes());
        let key = result_key(&retry.session, number, statement);
        batch.insert(keyspace, key, to_raw(&result)?.into_bytes());
        retry.done.insert(statement, result);
        Ok(())
    }
}

/// Removes the results of the session's last retryable write, which a newer number makes useless, where the session's
/// row does not tell which they are.
///
/// Only that write has results: each number removes those of the one before it. They are looked for from the
/// end, because the store passes over every removed row on its way to one that is there, and a session leaves
/// one behind with each write.
fn forget_results(view: &View, session: &SessionId, batch: &mut Batch) -> Result<(), CommandError> {
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
