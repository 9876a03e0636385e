//! The sending end of an oplog stream: entries are pushed to a follower as they are written.

use std::ops::Bound;
use std::time::Duration;

use bson::RawDocumentBuf;
use quorate_node::{CommandError, ErrorCode, Node};
use quorate_protocol::{OpTime, OpTimeAndWallTime};
use tokio::sync::watch;

use super::stream::{MAX_BATCH_BYTES, MAX_BATCH_ENTRIES, Place, batch_document};
use super::{ReplicaSet, RoleView, SetView};

/// A follower hears of us at least this often, or takes us for dead.
const KEEP_ALIVE: Duration = Duration::from_secs(2);

/// A commit point that moved travels with the next entry, unless none comes for so long.
const COMMIT_POINT_PATIENCE: Duration = Duration::from_millis(2);

/// The longest that entries gather, for a message or for a sync, while earlier ones are not committed.
pub(super) const GATHERING: Duration = Duration::from_millis(2);

/// One follower's stream.
pub(crate) struct OplogStream {
    view: watch::Receiver<SetView>,
    /// Changes with what followers decide by, unlike the view, which changes with every write.
    role: watch::Receiver<RoleView>,
    appended: watch::Receiver<OpTimeAndWallTime>,
    /// The entry that the follower asked for.
    asked: OpTime,
    told: Option<SetView>,
    /// The last entry that was sent: the next batch follows it.
    sent: Option<OpTime>,
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
            role: set.role(),
            appended: set.appended(),
            asked: from,
            told: None,
            sent: None,
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
    /// If the store fails, or the oplog no longer holds the last entry that was sent: what comes next
    /// would not follow what the follower has.
    pub(crate) fn next_batch(
        &mut self,
        node: &Node,
        say_something: bool,
    ) -> Result<Option<RawDocumentBuf>, CommandError> {
        self.appended.borrow_and_update();
        self.role.borrow_and_update();
        let view = *self.view.borrow_and_update();
        let found = match self.sent {
            Some(sent) => node
                .read_oplog_after(sent, MAX_BATCH_ENTRIES, MAX_BATCH_BYTES)?
                .ok_or_else(|| place_lost(sent))?,
            None => {
                let from = Bound::Included(self.asked.timestamp);
                node.read_oplog(from, MAX_BATCH_ENTRIES, MAX_BATCH_BYTES)?
            }
        };
        let bytes: usize = found.entries.iter().map(|entry| entry.as_bytes().len()).sum();
        // Also when there is nothing to tell, or whoever asks would never wait again.
        self.behind = found.entries.len() >= MAX_BATCH_ENTRIES || bytes >= MAX_BATCH_BYTES;
        let news = say_something || self.told != Some(view);
        if found.entries.is_empty() && !news {
            return Ok(None);
        }
        let previous = self.sent;
        self.sent = found.last.map(|last| last.op_time).or(self.sent);
        self.told = Some(view);
        // The log was cut: the follower must look again, at whomever.
        self.ended = view.rollback_id != self.rollback_id;
        let last = node.log_positions().written;
        let place = Place { previous, oldest: self.oldest, last };
        Ok(Some(batch_document(&found.entries, &place, &view)))
    }

    /// Returns when there may be something to tell; true if it is time to say something anyway.
    pub(crate) async fn news(&mut self) -> bool {
        if self.behind {
            return false;
        }
        // The commit point moves with every write: it is not worth waking up for, because the next
        // entry takes it along. Only if none comes is it told by itself.
        let owed = self.told.is_some_and(|told| Some(told.commit_point.op_time) < self.sent);
        let patience = if owed { COMMIT_POINT_PATIENCE } else { KEEP_ALIVE };
        tokio::select! {
            biased;
            _ = self.appended.changed() => {
                self.gather().await;
                false
            }
            _ = self.role.changed() => false,
            () = tokio::time::sleep(patience) => !owed,
        }
    }

    /// While the last batch is under way, entries gather for the next: under load that makes few
    /// large messages, applies, syncs and reports out of many small ones. A lone writer never waits
    /// here, because its last write was acknowledged before it sent the next.
    async fn gather(&mut self) {
        let (sent, role) = (self.sent, self.role.borrow().to_owned());
        let settled =
            |view: &SetView| Some(view.commit_point.op_time) >= sent || view.role() != role;
        if settled(&self.view.borrow()) {
            return;
        }
        // Either way the next batch goes out now.
        let _ = tokio::time::timeout(GATHERING, self.view.wait_for(settled)).await;
    }
}

fn place_lost(sent: OpTime) -> CommandError {
    CommandError::new(
        ErrorCode::CAPPED_POSITION_LOST,
        format!(
            "the oplog no longer holds {sent}, the last entry that was sent; give it a larger oplog \
             (replSetResizeOplog)"
        ),
    )
}
