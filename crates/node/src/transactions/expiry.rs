//! Rows about sessions go when they are of no use any more.
//!
//! Every session that wrote leaves a row, by which a repeated write is recognised. A driver does not use a session
//! that was idle for as long as sessions live, so a row goes when this member has had its last entry for that
//! long, and has not heard of the session meanwhile. A row without an entry tells no time, and stays until its session
//! writes again: a rollback may have made it a moment ago. Each member removes its own rows; none is told of it. Time
//! is the process's own: calendars jump.
//!
//! ```text
//!   mark: the end of the log ──── as long as a session lives ────▶ rows of entries up to the mark go, step by step
//!     ▲                                                                    │
//!     └──────────────────────────── a new mark ◀───────────────────────────┘
//! ```

use std::ops::Bound;

use quorate_protocol::{MonotonicTime, OpTime};
use quorate_storage::{Batch, Direction, KeyRange};

use super::rows::{SessionRow, session_of};
use crate::error::Result;
use crate::sessions::{SESSION_TIMEOUT, SessionId};
use crate::writer::Writer;

/// Rows that are examined under one hold of the write lock.
const ROWS_AT_ONCE: usize = 1000;

/// How far the removal of rows has come.
#[derive(Debug, Default)]
pub(crate) struct Expiry {
    /// The end of the log at some time.
    mark: Option<(MonotonicTime, OpTime)>,
    /// The last row that was examined since the mark was old enough.
    after: Option<Vec<u8>>,
}

impl Writer<'_> {
    /// Removes some of the rows of sessions that have not written for as long as a session lives. Returns whether
    /// there is more to do.
    pub(crate) fn expire_session_rows(&mut self) -> Result<bool> {
        let now = self.now().monotonic;
        let end = self.node().log_positions().written.op_time;
        let Expiry { mark, after } = &mut self.state.transactions.expiry;
        let (since, mark) = *mark.get_or_insert((now, end));
        if now.since(since) < SESSION_TIMEOUT {
            return Ok(false);
        }
        let after = after.take();
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let (node, keyspace) = (self.node(), self.node().keyspaces().sessions);
        let range = KeyRange { start, end: Bound::Unbounded };
        let mut batch = Batch::new();
        // The session whose rows are being examined, and whether they go.
        let mut current: Option<(SessionId, bool)> = None;
        let (mut seen, mut last) = (0, None);
        for pair in
            self.view().snapshot.scan(keyspace, range, Direction::Forward)?.take(ROWS_AT_ONCE)
        {
            let (key, value) = pair?;
            let known = current.as_ref().filter(|(session, _)| key.starts_with(session.bytes()));
            let goes = match (session_of(&key), known) {
                (Some(session), _) => {
                    let row = SessionRow::from_bytes(&value);
                    let at = row.and_then(|row| row.committed.or(row.written));
                    let goes = at.is_some_and(|at| at.op_time <= mark)
                        && !node.sessions().is_alive(&session);
                    current = Some((session, goes));
                    goes
                }
                (None, Some((_, goes))) => *goes,
                // Results whose session's row was at the end of the page before this one.
                (None, None) => {
                    let session = key.first_chunk().copied().map(SessionId::from_bytes);
                    let row = session.map(|session| SessionRow::of(self.view(), &session));
                    let goes = row.transpose()?.flatten().is_none();
                    current = session.map(|session| (session, goes));
                    goes
                }
            };
            if goes {
                batch.remove(keyspace, key.to_vec());
            }
            seen += 1;
            last = Some(key.to_vec());
        }
        let expiry = &mut self.state.transactions.expiry;
        match last.filter(|_| seen >= ROWS_AT_ONCE) {
            Some(last) => expiry.after = Some(last),
            None => *expiry = Expiry { mark: Some((now, end)), after: None },
        }
        let more = expiry.after.is_some();
        self.commit(batch)?;
        Ok(more)
    }
}
