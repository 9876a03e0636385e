//! Undoing entries that the set did not keep.
//!
//! Owns the decisions: where to, and whether at all. The host compares the logs, keeps what it
//! removes in files, and cuts. docs/replication-rules.md#rollback.

use quorate_protocol::{MemberId, OpTime, OpTimeAndWallTime};

use crate::event::{Event, SourceLost};
use crate::input::FetchId;
use crate::member::Member;
use crate::outbox::AfterPersist;
use crate::output::{Change, Fatal, Output};
use crate::role::{Role, RollBackStage};
use crate::syncing::DENY_AFTER_FAILURE;

impl Member {
    pub(crate) fn roll_back_against(&mut self, source: MemberId) {
        let Some(peer) = self.peers.get(&source) else { return };
        let address = peer.address.clone();
        self.emit(Event::RollbackStarted { source, last: self.log.written().op_time });
        self.drop_fetch(SourceLost::NoLongerWanted);
        let fetch = self.outbox.next_fetch_id();
        self.become_rolling_back(source, fetch);
        self.outbox.push(Output::FindCommonPoint { fetch, source: address });
    }

    fn is_searching(&self, id: FetchId) -> bool {
        matches!(&self.role, Role::RollBack(roll_back)
            if roll_back.stage == RollBackStage::Searching(id))
    }

    pub(crate) fn on_common_point_found(&mut self, id: FetchId, common_point: OpTimeAndWallTime) {
        if !self.is_searching(id) {
            return;
        }
        self.emit(Event::RollbackFound { common_point: common_point.op_time });
        if common_point.op_time < self.log.commit_point().op_time {
            return self.halt(Fatal::RollbackBeforeCommitPoint {
                common_point: common_point.op_time,
                commit_point: self.log.commit_point().op_time,
            });
        }
        if common_point.op_time < self.log.min_valid() {
            return self.on_common_point_before_copy(common_point.op_time);
        }
        if let Role::RollBack(roll_back) = &mut self.role {
            roll_back.stage = RollBackStage::Undoing;
        }
        // Stored before anything is cut: the members that copy from us must be able to tell.
        self.rollback_id += 1;
        let after = AfterPersist::RollBack { common_point };
        self.outbox.persist(Change::RollbackId(self.rollback_id), after);
    }

    /// The histories part before the entry from which the copied data is consistent. While everything was
    /// copied, documents were read at different times: no state before that entry was ever here, so none
    /// can be restored.
    fn on_common_point_before_copy(&mut self, common_point: OpTime) {
        let Role::RollBack(roll_back) = &self.role else { return };
        let (source, consistent_from) = (roll_back.source, self.log.min_valid());
        self.emit(Event::CommonPointBeforeCopy { common_point, consistent_from });
        self.become_follower();
        self.note_divergence(source, consistent_from);
    }

    /// The source's oplog begins after the point where the histories part. Nothing can be undone with
    /// its help: another source may have a longer oplog, otherwise this member is too stale.
    pub(crate) fn on_no_common_point(&mut self, id: FetchId, source_oldest: OpTime) {
        let Role::RollBack(roll_back) = &self.role else { return };
        if roll_back.stage != RollBackStage::Searching(id) {
            return;
        }
        let source = roll_back.source;
        let last = self.log.written().op_time;
        self.emit(Event::NoCommonPoint { source, last, source_oldest });
        self.become_follower();
        self.note_divergence(source, source_oldest);
    }

    pub(crate) fn on_common_point_unknown(&mut self, id: FetchId) {
        if !self.is_searching(id) {
            return;
        }
        if let Role::RollBack(roll_back) = &self.role {
            self.deny(roll_back.source, DENY_AFTER_FAILURE);
        }
        // The source failed; another may show that nothing needs to be undone.
        self.become_follower();
    }

    pub(crate) fn on_rolled_back(&mut self, last: OpTimeAndWallTime) {
        let undoing = matches!(&self.role, Role::RollBack(roll_back)
            if roll_back.stage == RollBackStage::Undoing);
        if !undoing {
            return;
        }
        self.log.note_rolled_back(last);
        self.sync.restart_at(last.op_time);
        self.emit(Event::RolledBack { last: last.op_time });
        self.become_follower();
    }
}
