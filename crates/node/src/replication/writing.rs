//! What the holder of the write lock knows about logging: which entry comes next, and in which of
//! four ways a change is logged.

use std::collections::VecDeque;

use bson::RawDocumentBuf;
use quorate_protocol::{OpTime, OpTimeAndWallTime, Timestamp};
use quorate_storage::CommitSequence;
use quorate_wire::to_bson_timestamp;

use super::oplog::{Session, entry_position};
use crate::catalog::{Collection, Ident};
use crate::error::CommandError;
use crate::writer::{Totals, Writer};

/// A commit: what waits for the disk, and what waits for other members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Commit {
    pub(crate) sequence: CommitSequence,
    /// The last oplog entry that it wrote.
    pub(crate) op_time: Option<OpTime>,
}

/// How changes are logged.
#[derive(Default)]
enum Mode {
    /// As new entries.
    #[default]
    Append,
    /// As these entries, which another member wrote.
    Replay(VecDeque<RawDocumentBuf>),
    /// Not at all: the data is a copy.
    Clone,
    /// By taking this entry out.
    Undo(OpTime),
    /// The entry is out; nothing else may change before the next.
    Undone,
}

#[derive(Default)]
pub(crate) struct LogState {
    mode: Mode,
    /// The last entry of the batch that is being made.
    pending: Option<OpTimeAndWallTime>,
    /// The last entry that this writer committed.
    last: Option<OpTime>,
    session: Option<Session>,
}

impl Writer<'_> {
    #[expect(dead_code, reason = "retryable writes are stamped by the commands to come")]
    /// Everything written from here on is of this retryable write.
    pub(crate) fn begin_statement(&mut self, session: Option<Session>) {
        self.log_state.session = session;
    }

    pub(super) fn take_statement(&mut self) -> Option<Session> {
        self.log_state.session.clone()
    }

    /// The changes that follow are those of these entries, in order.
    pub(super) fn replay(&mut self, entries: VecDeque<RawDocumentBuf>) -> Result<(), CommandError> {
        self.log_state.mode = Mode::Replay(entries);
        Ok(())
    }

    pub(super) fn has_replayed(&self) -> bool {
        matches!(&self.log_state.mode, Mode::Replay(entries) if !entries.is_empty())
    }

    /// Whether entries come from elsewhere, with all that they imply.
    pub(crate) fn is_replaying(&self) -> bool {
        !matches!(self.log_state.mode, Mode::Append)
    }

    /// The entry that the next change belongs to.
    pub(super) fn take_replayed(
        &mut self,
    ) -> Result<Option<(RawDocumentBuf, OpTimeAndWallTime)>, CommandError> {
        let Mode::Replay(entries) = &mut self.log_state.mode else { return Ok(None) };
        let Some(entry) = entries.pop_front() else { return Ok(None) };
        let position = entry_position(&entry)?;
        self.advance_timestamp(position.op_time.timestamp);
        Ok(Some((entry, position)))
    }

    pub(super) fn begin_cloning(&mut self) {
        self.log_state.mode = Mode::Clone;
    }

    pub(super) fn is_cloning(&self) -> bool {
        matches!(self.log_state.mode, Mode::Clone)
    }

    pub(super) fn begin_undo(&mut self, at: OpTime) {
        self.log_state.mode = Mode::Undo(at);
    }

    pub(super) fn is_undoing(&self) -> bool {
        matches!(self.log_state.mode, Mode::Undo(_))
    }

    /// The entry to take out with the next change; `Some(None)` if it is out already.
    pub(super) fn take_undone(&mut self) -> Option<Option<OpTime>> {
        match self.log_state.mode {
            Mode::Undo(at) => {
                self.log_state.mode = Mode::Undone;
                Some(Some(at))
            }
            Mode::Undone => Some(None),
            _ => None,
        }
    }

    pub(super) fn note_position(&mut self, position: OpTimeAndWallTime) {
        self.log_state.pending = Some(position);
    }

    /// The batch is committed: tell of the entries in it.
    pub(crate) fn after_commit(&mut self, sequence: CommitSequence) {
        if let Some(position) = self.log_state.pending.take() {
            self.log_state.last = Some(position.op_time);
            if let Some(replication) = self.node.replication() {
                replication.appended(sequence, position);
            }
        }
    }

    /// The newest commit of this writer.
    pub(crate) fn last_commit(&self) -> Option<Commit> {
        let op_time = self.log_state.last;
        self.last_sequence.map(|sequence| Commit { sequence, op_time })
    }

    /// Timestamps given out from now on are above this one.
    pub(crate) fn advance_timestamp(&mut self, timestamp: Timestamp) {
        let timestamp = to_bson_timestamp(timestamp);
        if timestamp > self.state.last_timestamp {
            self.state.last_timestamp = timestamp;
        }
    }

    pub(super) fn note_oplog_bytes(&mut self, oplog: Ident, bytes: u64) {
        let state = self.state.collections.entry(oplog).or_default();
        if let Some(totals) = state.totals.as_mut() {
            totals.documents += 1;
            totals.bytes += bytes;
        }
    }

    pub(super) fn note_removed(&mut self, collection: &Collection, documents: u64, bytes: u64) {
        self.adjust_totals(collection, |totals: &mut Totals| {
            totals.documents = totals.documents.saturating_sub(documents);
            totals.bytes = totals.bytes.saturating_sub(bytes);
        });
    }

    pub(super) fn forget_oplog_totals(&mut self, oplog: Ident) {
        self.state.collections.remove(&oplog);
    }
}
