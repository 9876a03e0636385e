//! The sending end of copying entries: what is sent to a follower next.

use std::ops::Bound;

use bson::RawDocumentBuf;
use quorate_node::{CommandError, ErrorCode, Node, entry_position};
use quorate_protocol::OpTime;
use quorate_replication::FetchedBatch;

use crate::view::SetView;

/// Entries in one message.
pub const MAX_BATCH_ENTRIES: usize = 5000;
/// Bytes of entries in one message, about.
pub const MAX_BATCH_BYTES: usize = 4 * 1024 * 1024;

/// Entries for a follower, and what is sent with them.
#[derive(Clone, Debug)]
pub struct SentBatch {
    /// The entries.
    pub entries: Vec<RawDocumentBuf>,
    /// What the log of this member says of them.
    pub facts: FetchedBatch,
}

/// One follower's place in the log of this member.
#[derive(Debug)]
pub struct EntrySource {
    /// The entry that the follower asked for.
    asked: OpTime,
    told: Option<SetView>,
    /// The last entry that was sent: the next batch follows it.
    sent: Option<OpTime>,
    rollback_id: i32,
    oldest: OpTime,
    ended: bool,
    behind: bool,
}

impl EntrySource {
    /// Entries from the one at this position on.
    ///
    /// # Errors
    ///
    /// If this member is in no state to be copied from.
    pub fn open(view: &SetView, node: &Node, from: OpTime) -> Result<Self, CommandError> {
        if !view.state.is_readable() {
            return Err(CommandError::new(
                ErrorCode::NOT_PRIMARY_OR_SECONDARY,
                format!("a member in state {} cannot be copied from", view.state),
            ));
        }
        Ok(Self {
            asked: from,
            told: None,
            sent: None,
            rollback_id: view.rollback_id,
            oldest: node.oldest_entry()?,
            ended: false,
            behind: false,
        })
    }

    /// Whether nothing follows: the log was cut since, and the follower must look again.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Whether the last batch was full: more is waiting.
    pub fn is_behind(&self) -> bool {
        self.behind
    }

    /// The last entry that was sent.
    pub fn sent(&self) -> Option<OpTime> {
        self.sent
    }

    /// The state of the set that was sent last.
    pub fn told(&self) -> Option<SetView> {
        self.told
    }

    /// What there is to tell now; none if there is nothing new.
    ///
    /// # Errors
    ///
    /// If the store fails, or the oplog no longer holds the last entry that was sent: what comes next
    /// would not follow what the follower has.
    pub fn next_batch(
        &mut self,
        node: &Node,
        view: SetView,
        say_something: bool,
    ) -> Result<Option<SentBatch>, CommandError> {
        self.next_batch_of(node, view, say_something, MAX_BATCH_BYTES)
    }

    /// As [`next_batch`](Self::next_batch), with about so many bytes of entries at most. What is left makes it
    /// [behind](Self::is_behind).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn next_batch_of(
        &mut self,
        node: &Node,
        view: SetView,
        say_something: bool,
        most_bytes: usize,
    ) -> Result<Option<SentBatch>, CommandError> {
        let found = match self.sent {
            Some(sent) => node
                .read_oplog_after(sent, MAX_BATCH_ENTRIES, most_bytes)?
                .ok_or_else(|| place_lost(sent))?,
            None => {
                let from = Bound::Included(self.asked.timestamp);
                node.read_oplog(from, MAX_BATCH_ENTRIES, most_bytes)?
            }
        };
        let bytes: usize = found.entries.iter().map(|entry| entry.as_bytes().len()).sum();
        // Also when there is nothing to tell, or the sender would never wait again.
        self.behind = found.entries.len() >= MAX_BATCH_ENTRIES || bytes >= most_bytes;
        let news = say_something || self.told != Some(view);
        if found.entries.is_empty() && !news {
            return Ok(None);
        }
        let previous = self.sent;
        self.sent = found.last.map(|last| last.op_time).or(self.sent);
        self.told = Some(view);
        self.ended = view.rollback_id != self.rollback_id;
        let first = found.entries.first().map(|entry| entry_position(entry)).transpose()?;
        let facts = FetchedBatch {
            first: first.map(|first| first.op_time),
            previous,
            last: found.last,
            source_oldest: self.oldest,
            source_last: node.log_positions().written,
            commit_point: view.commit_point,
            term: view.term,
            source_is_primary: view.is_primary,
            rollback_id: view.rollback_id,
        };
        Ok(Some(SentBatch { entries: found.entries, facts }))
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
