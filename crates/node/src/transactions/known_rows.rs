//! Rows of sessions in memory, for writes.
//!
//! Every write of a driver belongs to a session, and reads the session's row before it changes it. The rows that were
//! read or written last are kept here, as the newest commit left them: whatever commits a batch tells of the rows in
//! it. Only the holder of the write lock reads them; readers have their snapshots.

use std::collections::BTreeMap;

use quorate_storage::{Batch, Bytes, KeyspaceId};

use super::rows::{row_of, session_of};
use crate::error::Result;
use crate::sessions::SessionId;
use crate::writer::Writer;

/// Rows that are kept, each of less than a kilobyte. When there are more, all are forgotten: those in use are soon
/// known again.
const MAX_ROWS: usize = 4096;

/// The rows that are known; none of a session that has no row.
#[derive(Default)]
pub(crate) struct KnownRows(BTreeMap<SessionId, Option<Bytes>>);

/// The rows that a batch changes, if it is committed.
pub(crate) struct ChangedRows(Vec<(SessionId, Option<Bytes>)>);

impl ChangedRows {
    pub(crate) fn of(batch: &Batch, sessions: KeyspaceId) -> Self {
        let changes = batch.tree_changes(sessions);
        Self(changes.filter_map(|(key, row)| Some((session_of(key)?, row.cloned()))).collect())
    }
}

impl KnownRows {
    /// A batch that has these changes is committed.
    pub(crate) fn committed(&mut self, changed: ChangedRows) {
        for (session, row) in changed.0 {
            self.keep(session, row);
        }
    }

    fn keep(&mut self, session: SessionId, row: Option<Bytes>) {
        if self.0.len() >= MAX_ROWS && !self.0.contains_key(&session) {
            self.0.clear();
        }
        self.0.insert(session, row);
    }
}

impl Writer<'_> {
    /// The row of a session after the newest commit, if it has one.
    pub(crate) fn session_row(&self, session: &SessionId) -> Result<Option<Bytes>> {
        if let Some(known) = self.node.known_rows().0.get(session) {
            return Ok(known.clone());
        }
        // A copy: the store may have lent a part of a larger block.
        let row = row_of(&self.newest_view(), session)?.map(|row| Bytes::from(row.to_vec()));
        self.node.known_rows().keep(*session, row.clone());
        Ok(row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rows_of_many_sessions_are_forgotten_together() {
        let mut known = KnownRows::default();
        let key = |number: usize| SessionId::from_bytes((number as u128).to_be_bytes());
        (0..MAX_ROWS).for_each(|number| known.keep(key(number), None));
        known.keep(key(0), Some(Bytes::from(vec![1])));
        assert_eq!(known.0.len(), MAX_ROWS, "a known row takes no more room");
        known.keep(key(MAX_ROWS), None);
        assert_eq!(known.0.len(), 1);
    }
}
