//! Changes of data as other members made them: jobs for one worker, in the order they were given.

use std::time::Duration;

use bson::RawDocumentBuf;
use quorate_node::{CommandError, Node, Now, Undo, entry_position};
use quorate_protocol::{OpTime, OpTimeAndWallTime};
use quorate_replication::{InitialSyncOutcome, Input};

/// Entries of a source that are to be applied, after this one.
#[derive(Clone, Debug)]
pub struct Entries<R> {
    /// The entry that the first one follows.
    pub previous: OpTime,
    /// The entries.
    pub entries: Vec<RawDocumentBuf>,
    /// Room in the buffer of fetched entries, given back when they are applied.
    pub room: Vec<R>,
    /// How old they must be.
    pub delay: Duration,
}

impl<R> Entries<R> {
    /// The position of the last entry.
    pub fn last(&self) -> Option<OpTimeAndWallTime> {
        self.entries.last().and_then(|last| entry_position(last).ok())
    }

    /// Whether these may be applied together with those, in one batch. Entries that do not follow are
    /// left to be refused by themselves.
    pub fn is_followed_by(&self, more: &Self) -> bool {
        self.delay == more.delay && self.last().is_some_and(|last| last.op_time == more.previous)
    }

    /// Adds entries that follow.
    pub fn join(&mut self, more: Self) {
        self.entries.extend(more.entries);
        self.room.extend(more.room);
    }
}

/// A change of data.
#[derive(Clone, Debug)]
pub enum DataChange<R> {
    /// Entries are applied.
    Apply(Entries<R>),
    /// Everything after this entry is undone.
    RollBack {
        /// The last entry to keep.
        common_point: OpTimeAndWallTime,
    },
    /// All data is removed, for a copy.
    Wipe {
        /// The attempt of the initial sync.
        attempt: u32,
    },
}

/// The outcome of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeEnded {
    /// The input that the member gets; for entries the log says it.
    pub input: Option<Input>,
    /// How many entries were undone.
    pub undone: u64,
}

impl<R> DataChange<R> {
    /// Makes the change. What it applies is not forced to disk: [`Node::sync_log`] does that, once for
    /// several changes. Documents that a rollback removes are shown to `keep` before.
    ///
    /// # Errors
    ///
    /// If the store or `keep` fails, or entries do not fit the log. The process should end then.
    pub fn make(
        &self,
        node: &Node,
        now: Now,
        keep: &mut dyn FnMut(Undo<'_>) -> Result<(), CommandError>,
    ) -> Result<ChangeEnded, CommandError> {
        let mut ended = ChangeEnded { input: None, undone: 0 };
        match self {
            Self::Apply(Entries { previous, entries, .. }) => {
                node.apply(*previous, entries, now)?;
            }
            Self::RollBack { common_point } => {
                let done = node.roll_back_to(*common_point, now, keep)?;
                ended.undone = done.entries;
                ended.input = Some(Input::RolledBack { last: done.last });
            }
            Self::Wipe { attempt } => {
                node.wipe(now)?;
                let outcome = InitialSyncOutcome::Wiped;
                ended.input = Some(Input::InitialSync { attempt: *attempt, outcome });
            }
        }
        Ok(ended)
    }
}
