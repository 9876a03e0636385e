//! Writes to many documents, in steps: between two of them other writers get their turn.
//!
//! Each step is one batch of the store, with its entries of the history. The documents to change
//! are those that matched when the statement began; a command that changed one of them in between is
//! respected: it is looked at again, and left alone if it is gone or matches no longer.

use std::sync::Arc;

use quorate_query::matcher::Matcher;

use crate::catalog::Collection;
use crate::error::{CommandError, ErrorCode};
use crate::finder::Found;
use crate::writer::Writer;

/// Documents that are changed under one hold of the write lock.
const STEP_DOCUMENTS: usize = 128;

/// How far a statement has come.
pub(super) struct Steps {
    in_step: usize,
    gave_way: bool,
}

impl Steps {
    /// Begins a statement; one for many documents commits them together. [`end`](Self::end) it,
    /// whatever comes of it.
    pub(super) fn begin(writer: &mut Writer<'_>, collection: &Collection, many: bool) -> Self {
        if many && commits_together(collection) {
            writer.defer();
        }
        Self { in_step: 0, gave_way: false }
    }

    /// The document as it is now, if it still is to be changed.
    pub(super) fn next(
        &mut self,
        writer: &mut Writer<'_>,
        collection: &mut Arc<Collection>,
        matcher: &Matcher,
        found: Found,
    ) -> Result<Option<Found>, CommandError> {
        if self.in_step == STEP_DOCUMENTS {
            writer.give_way()?;
            (self.in_step, self.gave_way) = (0, true);
            *collection = current(writer, collection)?;
            if !commits_together(collection) {
                writer.settle()?;
            }
        }
        self.in_step += 1;
        if !self.gave_way {
            return Ok(Some(found));
        }
        let Some(document) = writer.view().record(collection, found.record)? else {
            return Ok(None);
        };
        if document.as_bytes() == found.document.as_bytes() {
            return Ok(Some(found));
        }
        let details = matcher.matches_with_details(&*document)?;
        Ok(details.map(|details| Found { record: found.record, document, details }))
    }

    /// Changes a document. If a transaction holds a key of it, waits until that transaction ends and
    /// looks at the document again; it is left alone if it is gone or matches no longer.
    pub(super) fn change(
        &mut self,
        writer: &mut Writer<'_>,
        collection: &mut Arc<Collection>,
        matcher: &Matcher,
        found: Found,
        mut change: impl FnMut(
            &mut Writer<'_>,
            &mut Arc<Collection>,
            &Found,
        ) -> Result<(), CommandError>,
    ) -> Result<(), CommandError> {
        let mut found = found;
        loop {
            let error = match change(writer, collection, &found) {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            if !writer.wait_if_blocked()? {
                return Err(error);
            }
            (self.in_step, self.gave_way) = (0, true);
            *collection = current(writer, collection)?;
            match self.next(writer, collection, matcher, found)? {
                Some(again) => found = again,
                None => return Ok(()),
            }
        }
    }

    /// Ends a statement: what it changed is committed, even if it failed on the way.
    pub(super) fn end<T>(
        writer: &mut Writer<'_>,
        result: Result<T, CommandError>,
    ) -> Result<T, CommandError> {
        let settled = writer.settle();
        result.and_then(|value| settled.map(|()| value))
    }
}

/// Whether documents of one batch cannot be in each other's way: whether a key is taken is looked up
/// in what is committed.
fn commits_together(collection: &Collection) -> bool {
    collection.indexes.iter().all(|index| !index.unique || index.is_id())
}

fn current(writer: &Writer<'_>, collection: &Collection) -> Result<Arc<Collection>, CommandError> {
    let found = writer.collection(&collection.namespace);
    found.filter(|found| found.uuid == collection.uuid).ok_or_else(|| {
        CommandError::new(
            ErrorCode::QUERY_PLAN_KILLED,
            format!(
                "collection dropped or renamed while it was written to: '{}'",
                collection.namespace
            ),
        )
    })
}
