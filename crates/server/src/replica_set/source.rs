//! The sending end of an oplog stream: entries are pushed to a follower as they are written.

use std::time::Duration;

use bson::RawDocumentBuf;
use quorate_member::EntrySource;
use quorate_node::{CommandError, Node};
use quorate_protocol::{OpTime, OpTimeAndWallTime};
use tokio::sync::watch;

use super::stream::batch_document;
use super::{ReplicaSet, RoleView, SetView};

/// The longest interval between two batches to a follower, which takes a silent source for failed.
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
    source: EntrySource,
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
        let source = EntrySource::open(&now, node, from)?;
        Ok(Self { view, role: set.role(), appended: set.appended(), source })
    }

    /// Whether nothing follows.
    pub(crate) fn has_ended(&self) -> bool {
        self.source.has_ended()
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
        Ok(self.source.next_batch(node, view, say_something)?.map(|batch| batch_document(&batch)))
    }

    /// Returns when there may be something to tell; true if it is time to say something anyway.
    pub(crate) async fn news(&mut self) -> bool {
        if self.source.is_behind() {
            return false;
        }
        // The commit point moves with every write and travels with the next entry, so it is not worth
        // waking up for. It is sent alone only if no entry follows.
        let owed = self
            .source
            .told()
            .is_some_and(|told| Some(told.commit_point.op_time) < self.source.sent());
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
        let (sent, role) = (self.source.sent(), self.role.borrow().to_owned());
        let settled =
            |view: &SetView| Some(view.commit_point.op_time) >= sent || view.role() != role;
        if settled(&self.view.borrow()) {
            return;
        }
        // Either way the next batch goes out now.
        let _ = tokio::time::timeout(GATHERING, self.view.wait_for(settled)).await;
    }
}
