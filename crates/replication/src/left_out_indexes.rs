//! Data that was copied without indexes.
//!
//! A member with `buildIndexes: false` builds no index that is created, so its data lacks them for ever, unique ones too.
//! A configuration cannot change that setting, but a member can be removed and added again with another. If it
//! went on with its data it could be elected, and would take duplicates. So a member remembers on disk that indexes were left
//! out, and copies everything anew under a configuration that wants them. What it held no longer counts as a
//! replica, and its memory is lost, as if its disk had been replaced.

use crate::event::Event;
use crate::member::Member;
use crate::outbox::AfterPersist;
use crate::output::Change;

impl Member {
    /// A configuration is in force: from now on indexes may be left out.
    pub(crate) fn note_left_out_indexes(&mut self) {
        let leaves_out = self.own_config().is_some_and(|own| !own.build_indexes);
        if leaves_out && !self.indexes_left_out {
            self.indexes_left_out = true;
            self.outbox.persist(Change::IndexesLeftOut(true), AfterPersist::Nothing);
        }
    }

    /// All data is gone, and with it what was left out.
    pub(crate) fn forget_left_out_indexes(&mut self) {
        let builds = self.own_config().is_some_and(|own| own.build_indexes);
        if builds && self.indexes_left_out {
            self.indexes_left_out = false;
            self.outbox.persist(Change::IndexesLeftOut(false), AfterPersist::Nothing);
        }
    }

    /// Whether the configuration wants indexes that the data does not have.
    pub(crate) fn lacks_indexes(&self) -> bool {
        self.indexes_left_out && self.own_config().is_some_and(|own| own.build_indexes)
    }

    /// Begins an initial sync, because the data lacks indexes.
    pub(crate) fn copy_again_with_indexes(&mut self) {
        self.emit(Event::IndexesLacking);
        self.lose_memory();
        self.become_initial_syncing();
    }
}
