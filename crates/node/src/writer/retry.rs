//! Retryable writes: the result of each statement is stored in the batch of its change.
//!
//! ```text
//!   sessions   <16 bytes of session> 00                           →  see `transactions/rows.rs`
//!              <16 bytes of session> 01 <number, 8> <statement, 4>  →  the result, as BSON
//! ```
//!
//! A client that repeats a command with the same number gets the stored results; what was not
//! done yet is done now. A greater number forgets the results of the smaller one. Specification:
//! `retryable-writes/retryable-writes.md`.

use std::collections::BTreeMap;

use bson::Document;
use quorate_storage::{Batch, Direction, KeyRange};
use quorate_transactions::{Arrival, Kind, Refusal, Verdict};

use super::Writer;
use crate::error::{CommandError, ErrorCode};
use crate::fields::to_raw;
use crate::sessions::SessionId;
use crate::transactions::{SessionRow, number_key, refused};

const RESULT_ROW: u8 = 1;

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
}

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
        self.retry = Some(retry);
        Ok(())
    }

    /// A write without its earlier results, if it is not too old.
    fn known_retry(&self, write: &RetryableWrite) -> Result<Retry, CommandError> {
        let RetryableWrite { session, number } = write;
        let known = SessionRow::of(&self.view, session)?.map(|row| row.number);
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
        statement: i32,
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
        self.retry = Some(retry);
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
        }
    }

    pub(super) fn current_statement(&self) -> Option<i32> {
        self.retry.as_ref()?.current.as_ref().map(|(statement, _)| *statement)
    }

    pub(super) fn current_result(&self) -> Option<&Document> {
        self.retry.as_ref()?.current.as_ref().map(|(_, result)| result)
    }

    pub(super) fn is_retryable(&self) -> bool {
        self.retry.is_some()
    }

    /// Forgets that a statement was done, because it is undone.
    pub(crate) fn forget_statement(
        &self,
        batch: &mut Batch,
        write: &RetryableWrite,
        statement: i32,
    ) {
        let mut key = result_prefix(&write.session, write.number);
        key.extend(statement.to_be_bytes());
        batch.remove(self.node.keyspaces().sessions, key);
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
            let old = KeyRange::prefix(&[retry.session.bytes(), &[RESULT_ROW]].concat());
            for pair in self.view.snapshot.scan(keyspace, old, Direction::Forward)? {
                batch.remove(keyspace, pair?.0);
            }
            batch.insert(keyspace, number_key(&retry.session), retry.number.to_be_bytes().to_vec());
        }
        let mut key = result_prefix(&retry.session, retry.number);
        key.extend(statement.to_be_bytes());
        batch.insert(keyspace, key, to_raw(&result)?.into_bytes());
        retry.done.insert(statement, result);
        Ok(())
    }
}

fn result_prefix(session: &SessionId, number: i64) -> Vec<u8> {
    [session.bytes(), &[RESULT_ROW], &number.to_be_bytes()].concat()
}
