//! What the holder of the write lock knows about logging: which entry comes next, and in which of
//! four ways a change is logged.

use std::collections::VecDeque;
use std::sync::Arc;

use bson::{RawDocument, rawdoc};
use quorate_protocol::{OpTime, OpTimeAndWallTime, Term, Timestamp};
use quorate_storage::{Batch, Bytes, CommitSequence};
use quorate_wire::{find_field, to_bson_timestamp};

use super::entry::LoggedEntry;
use super::oplog::undo_key;
use super::rollback::{Statement, statement_of};
use super::{Author, not_writable};
use crate::catalog::Collection;
use crate::change_stream::keeps_images;
use crate::error::Result;
use crate::moments::Moment;
use crate::records::{DocumentBytes, EMPTY_DOCUMENT};
use crate::writer::{Entry, Growth, Operation, Writer};

/// A commit: its sequence, for durability, and its optime, for write concerns.
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
    Replay(VecDeque<LoggedEntry>),
    /// Not at all: the data is a copy.
    Clone,
    /// By taking this entry out.
    Undo(OpTime, Option<Statement>),
    /// The entry is out; nothing else may change before the next.
    Undone,
}

impl LogState {
    /// The next entries are the member's own, of this term.
    pub(crate) fn write_as(&mut self, term: Option<Term>) {
        self.noop_term = term;
    }

    /// Whether changes are those of entries that fit the data exactly: what their primary has checked
    /// holds here too.
    pub(crate) fn fits_exactly(&self) -> bool {
        self.exact && matches!(self.mode, Mode::Replay(_))
    }

    /// Whether entries of another member are applied over a copy, which may be newer than they are: what a document
    /// was before them is not known.
    pub(crate) fn is_over_copy(&self) -> bool {
        !self.exact && matches!(self.mode, Mode::Replay(_))
    }

    /// Says that entries which are replayed fit the data exactly.
    pub(super) fn fit_exactly(&mut self) {
        self.exact = true;
    }
}

#[derive(Default)]
pub(crate) struct LogState {
    mode: Mode,
    /// Whether replayed entries fit the data exactly.
    exact: bool,
    /// The entries of the batch that is being made.
    pending: Vec<(OpTimeAndWallTime, Bytes)>,
    /// The last entry that this writer committed.
    last: Option<OpTime>,
    /// The term of an entry that is no client's.
    noop_term: Option<Term>,
}

impl Writer<'_> {
    /// The term of an entry that is written here.
    pub(crate) fn term_of_entry(&self) -> Result<i64> {
        match (self.log_state.noop_term, self.node.replication()) {
            (Some(term), _) => Ok(term.0),
            (None, Some(replication)) => {
                replication.writable_term().map(|term| term.0).ok_or_else(not_writable)
            }
            // Without a set there are no elections.
            (None, None) => Ok(OpTime::NULL.term),
        }
    }

    /// Logs a change in one of the other ways. Returns false if it is to be a new entry.
    pub(crate) fn log_otherwise(
        &mut self,
        batch: &mut Batch,
        undo: Option<&DocumentBytes>,
        collection: Option<&Collection>,
    ) -> Result<bool> {
        if self.is_staging() {
            return Ok(self.stage_replayed(undo.map(|undo| &**undo), collection));
        }
        if let Some(undone) = self.take_undone() {
            if let Some((at, statement)) = undone {
                self.unlog(batch, at, statement.as_ref())?;
            }
            return Ok(true);
        }
        if self.is_cloning() {
            return Ok(true);
        }
        let Some(entry) = self.take_replayed() else { return Ok(false) };
        if entry.has_session {
            self.replay_session(batch, &entry, entry.position)?;
        }
        self.put_entry(batch, entry.bytes(), entry.position, undo, collection);
        Ok(true)
    }

    /// Adds an entry to the batch of its change.
    pub(crate) fn put_entry(
        &mut self,
        batch: &mut Batch,
        entry: Bytes,
        position: OpTimeAndWallTime,
        undo: Option<&DocumentBytes>,
        collection: Option<&Collection>,
    ) {
        let Some(oplog) = self.node.oplog() else { return };
        let timestamp = position.op_time.timestamp;
        if let (Some(replication), Some(undo)) = (self.node.replication(), undo) {
            batch.insert(replication.keyspace, undo_key(timestamp), undo.clone());
        }
        if let (Some(collection), Some(undo)) = (collection, undo)
            && keeps_images(collection)
            && !self.log_state.is_over_copy()
            && let Ok(before) = undo.get_document("before")
        {
            self.keep_image(batch, collection, before, position, 0);
        }
        let size = entry.len() as i64;
        batch.append_to_log(self.node.keyspaces().oplog, timestamp.as_u64(), entry.clone());
        self.adjust_totals(oplog, Growth { documents: 1, bytes: size });
        self.log_state.pending.push((position, entry));
    }

    /// A document that is about to be stored. If the entry logged last holds it, as that of an insert
    /// does, it is a part of that entry, which the journal then holds once.
    pub(crate) fn stored_document(&self, document: impl Into<DocumentBytes>) -> Bytes {
        let document = document.into();
        let bytes = document.as_bytes();
        let shared = self.log_state.pending.last().and_then(|(_, entry)| {
            let object =
                find_field(RawDocument::from_bytes(entry).ok()?, "o")?.document()?.as_bytes();
            let start = object.as_ptr() as usize - entry.as_ptr() as usize;
            let is_it = std::ptr::eq(object, bytes) || object == bytes;
            is_it.then(|| entry.slice(start..start + object.len()))
        });
        shared.unwrap_or_else(|| document.into())
    }

    /// Remembers what a repeated write is answered with, as its primary does.
    fn replay_session(
        &mut self,
        batch: &mut Batch,
        entry: &RawDocument,
        at: OpTimeAndWallTime,
    ) -> Result<()> {
        let Some((write, statement)) = statement_of(entry)? else { return Ok(()) };
        let result = find_field(entry, "retryResult").and_then(|field| field.document());
        let result = result.map_or(&EMPTY_DOCUMENT[..], RawDocument::as_bytes);
        self.replay_statement(batch, &write, (statement, at), result)
    }

    pub(crate) fn append_noop(&mut self, message: &str, term: Term) -> Result<OpTimeAndWallTime> {
        self.log_state.noop_term = Some(term);
        self.log_noop(message)?;
        self.log_state.noop_term = None;
        Ok(self.node.log_positions().written)
    }

    /// Logs what changes nothing: a new entry, or one of the others'.
    pub(crate) fn log_noop(&mut self, message: &str) -> Result<()> {
        let mut batch = Batch::new();
        let object = rawdoc! { "msg": message };
        let entry = Entry {
            operation: Operation::Noop,
            collection: None,
            database: None,
            object: &object,
            target: None,
            statement: None,
        };
        self.log(&mut batch, &entry, None)?;
        self.commit(batch)
    }

    /// Logs that a database is gone, after its collections. The entry changes nothing: it is there for
    /// change streams and for tools that read the oplog.
    pub(crate) fn log_drop_database(&mut self, database: &str) -> Result<()> {
        self.flush()?;
        let mut batch = Batch::new();
        let object = rawdoc! { "dropDatabase": 1 };
        let entry = Entry {
            operation: Operation::DatabaseCommand,
            collection: None,
            database: Some(database),
            object: &object,
            target: None,
            statement: None,
        };
        self.log(&mut batch, &entry, None)?;
        self.commit(batch)
    }

    /// The changes that follow are those of these entries, in order.
    pub(super) fn replay(&mut self, entries: VecDeque<LoggedEntry>) {
        self.log_state.mode = Mode::Replay(entries);
    }

    pub(super) fn has_replayed(&self) -> bool {
        matches!(&self.log_state.mode, Mode::Replay(entries) if !entries.is_empty())
    }

    /// Whether entries come from elsewhere, with all that they imply.
    pub(crate) fn is_replaying(&self) -> bool {
        !matches!(self.log_state.mode, Mode::Append)
    }

    /// The entry that the next change belongs to.
    pub(crate) fn take_replayed(&mut self) -> Option<LoggedEntry> {
        let Mode::Replay(entries) = &mut self.log_state.mode else { return None };
        let entry = entries.pop_front()?;
        self.advance_timestamp(entry.position.op_time.timestamp);
        Some(entry)
    }

    pub(super) fn begin_cloning(&mut self) {
        self.log_state.mode = Mode::Clone;
    }

    /// Changes data without a place in the log; what is being replayed is as it was afterwards.
    pub(super) fn without_logging<T>(&mut self, change: impl FnOnce(&mut Self) -> T) -> T {
        let mode = std::mem::replace(&mut self.log_state.mode, Mode::Clone);
        let done = change(self);
        self.log_state.mode = mode;
        done
    }

    pub(super) fn is_cloning(&self) -> bool {
        matches!(self.log_state.mode, Mode::Clone)
    }

    pub(super) fn begin_undo(&mut self, at: OpTime, statement: Option<Statement>) {
        self.log_state.mode = Mode::Undo(at, statement);
    }

    pub(super) fn is_undoing(&self) -> bool {
        matches!(self.log_state.mode, Mode::Undo(..))
    }

    /// The entry to take out with the next change; `Some(None)` if it is out already.
    pub(crate) fn take_undone(&mut self) -> Option<Option<(OpTime, Option<Statement>)>> {
        match &mut self.log_state.mode {
            Mode::Undo(at, statement) => {
                let undone = (*at, statement.take());
                self.log_state.mode = Mode::Undone;
                Some(Some(undone))
            }
            Mode::Undone => Some(None),
            _ => None,
        }
    }

    /// A batch is committed: see it, and tell of the entries in it.
    pub(crate) fn after_commit(&mut self, sequence: CommitSequence) {
        self.last_sequence = Some(sequence);
        self.forget_view();
        if std::mem::take(&mut self.touches_settings) {
            self.node.defaults_cache().changed(self.now().wall);
        }
        let entries = std::mem::take(&mut self.log_state.pending);
        if let Some(&(last, _)) = entries.last() {
            self.log_state.last = Some(last.op_time);
            if let Some(replication) = self.node.replication() {
                let author = if self.is_replaying() { Author::Elsewhere } else { Author::Here };
                let view = self.moment(last.op_time);
                replication.appended(sequence, entries, view);
                self.announcement.add(last, author);
            }
        }
    }

    /// The data after the newest commit, whose last entry is this.
    pub(super) fn moment(&self, last: OpTime) -> Arc<Moment> {
        let (catalog, view) = (self.node.catalog(), self.view().clone());
        Arc::new(Moment { time: last.timestamp, catalog, view })
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
}
