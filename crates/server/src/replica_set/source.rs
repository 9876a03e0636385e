//! The sending end of an oplog stream: entries are pushed to a follower as they are written.

use std::ops::Bound;
use std::time::Duration;

use bson::RawDocumentBuf;
use quorate_node::{CommandError, ErrorCode, Node};
use quorate_protocol::{OpTime, OpTimeAndWallTime, Timestamp};
use tokio::sync::watch;

use super::stream::{MAX_BATCH_BYTES, MAX_BATCH_ENTRIES, batch_document};
use super::{ReplicaSet, SetView};

/// A follower hears of us at least this often, or takes us for dead.
const KEEP_ALIVE: Duration = Duration::from_secs(2);

/// A commit point that moved travels with the next entry, unless none comes for so long.
const COMMIT_POINT_PATIENCE: Duration = Duration::from_millis(2);

/// One follower's stream.
pub(crate) struct OplogStream {
    view: watch::Receiver<SetView>,
    appended: watch::Receiver<OpTimeAndWallTime>,
    position: Bound<Timestamp>,
    told: Option<SetView>,
    rollback_id: i32,
    oldest: OpTime,
    ended: bool,
    /// The last batch was full: more is waiting.
    behind: bool,
}

impl OplogStream {
    /// A stream that begins with the entry at this position.
    ///
    /// # Errors
    ///
    /// If this member is in no state to be copied from.
    pub(crate) fn open(set: &ReplicaSet, node: &Node, from: OpTime) -> Result<Self, CommandError> {
        let mut view = set.view();
        let now = *view.borrow_and_update();
        if !now.state.is_readable() {
            return Err(CommandError::new(
                ErrorCode::NOT_PRIMARY_OR_SECONDARY,
                format!("a member in state {} cannot be copied from", now.state),
            ));
        }
        Ok(Self {
            view,
            appended: set.appended(),
            position: Bound::Included(from.timestamp),
            told: None,
            rollback_id: now.rollback_id,
            oldest: node.oldest_entry()?,
            ended: false,
            behind: false,
        })
    }

    /// Whether nothing follows.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    /// What there is to tell now; none if there is nothing new.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub(crate) fn next_batch(
        &mut self,
        node: &Node,
        say_something: bool,
    ) -> Result<Option<RawDocumentBuf>, CommandError> {
        self.appended.borrow_and_update();
        let view = *self.view.borrow_and_update();
        let found = node.read_oplog(self.position, MAX_BATCH_ENTRIES, MAX_BATCH_BYTES)?;
        let bytes: usize = found.entries.iter().map(|entry| entry.as_bytes().len()).sum();
        // Also when there is nothing to tell, or whoever asks would never wait again.
        self.behind = found.entries.len() >= MAX_BATCH_ENTRIES || bytes >= MAX_BATCH_BYTES;
        let first = self.told.is_none();
        let news = first || say_something || self.told != Some(view);
        if found.entries.is_empty() && !news {
            return Ok(None);
        }
        if let Some(last) = found.last {
            self.position = Bound::Excluded(last.op_time.timestamp);
        }
        self.told = Some(view);
        // The log was cut: the follower must look again, at whomever.
        self.ended = view.rollback_id != self.rollback_id;
        let last = node.log_positions().written;
        Ok(Some(batch_document(found.entries, first, self.oldest, last, &view)))
    }

    /// Returns when there may be something to tell; true if it is time to say something anyway.
    pub(crate) async fn news(&mut self) -> bool {
        if self.behind {
            return false;
        }
        tokio::select! {
            biased;
            _ = self.appended.changed() => false,
            _ = self.view.changed() => {
                tokio::select! {
                    biased;
                    _ = self.appended.changed() => {}
                    () = tokio::time::sleep(COMMIT_POINT_PATIENCE) => {}
                }
                false
            }
            () = tokio::time::sleep(KEEP_ALIVE) => true,
        }
    }
}
