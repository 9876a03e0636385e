//! Where two logs part, as a value: what to ask the source next, and what to do with its answer.
//!
//! Both logs are read backward, the newest entry first. The newer of the two entries at hand is passed over until both
//! are the same one. The way to the source belongs to the host. docs/replication-rules.md#rollback.

use bson::{Document, RawDocument, doc};
use quorate_node::{Node, entry_position};
use quorate_protocol::{OpTime, OpTimeAndWallTime};
use quorate_replication::{FetchId, Input};

use crate::copying::{CopyFailure, batch_of};

/// Entries of either log that are read in one go.
pub const COMPARED_AT_ONCE: usize = 1000;

/// The most entries of either log that are compared; an oplog of usual size holds far fewer.
const MAX_COMPARED: usize = 100_000_000;

/// What the search needs next.
#[derive(Clone, Debug, PartialEq)]
pub enum SearchAsk {
    /// The source's reply to this command, for [`CommonPointSearch::take_reply`].
    Command(Document),
    /// Nothing: this is the input of the member.
    Done(Input),
}

/// A search for the newest entry that the log of this member and that of a source share.
#[derive(Debug)]
pub struct CommonPointSearch {
    fetch: FetchId,
    at_once: usize,
    /// The source's cursor; none before its first reply, 0 at the end of its log.
    cursor: Option<i64>,
    /// Entries of the source that are yet to be compared, the next one last.
    theirs: Vec<OpTimeAndWallTime>,
    their_oldest: OpTime,
    /// The same of this member.
    ours: Vec<OpTimeAndWallTime>,
    our_oldest: Option<quorate_protocol::Timestamp>,
    compared: usize,
    ended: Option<Input>,
}

impl CommonPointSearch {
    /// Begins a search that reads so many entries of either log at once.
    pub fn new(fetch: FetchId, at_once: usize) -> Self {
        Self {
            fetch,
            at_once: at_once.max(1),
            cursor: None,
            theirs: Vec::new(),
            their_oldest: OpTime::NULL,
            ours: Vec::new(),
            our_oldest: None,
            compared: 0,
            ended: None,
        }
    }

    /// What the search needs now.
    pub fn ask(&self) -> SearchAsk {
        if let Some(ended) = &self.ended {
            return SearchAsk::Done(ended.clone());
        }
        let batch = i32::try_from(self.at_once).unwrap_or(i32::MAX);
        SearchAsk::Command(match self.cursor {
            Some(cursor) => doc! {
                "getMore": cursor, "collection": "oplog.rs", "batchSize": batch, "$db": "local",
            },
            None => doc! {
                "find": "oplog.rs", "sort": { "$natural": -1 }, "batchSize": batch,
                "projection": { "ts": 1, "t": 1, "wall": 1 },
                "$readPreference": { "mode": "secondaryPreferred" }, "$db": "local",
            },
        })
    }

    /// The source's reply to what was asked last, which is no error. Reads the log of this member; blocks.
    ///
    /// # Errors
    ///
    /// If the reply cannot be used, the store fails, or the logs are too long: the search has failed.
    pub fn take_reply(&mut self, reply: &RawDocument, node: &Node) -> Result<(), CopyFailure> {
        let (cursor, documents) = batch_of(reply)?;
        self.cursor = Some(cursor);
        // Also an empty batch counts, so that a source which sends nothing else ends the search.
        self.compared += 1;
        self.theirs.clear();
        for document in documents.iter().rev() {
            self.theirs.push(entry_position(document)?);
        }
        self.compare(node)
    }

    /// Compares until the entries of the source are used up, or the search has ended.
    fn compare(&mut self, node: &Node) -> Result<(), CopyFailure> {
        while self.compared < MAX_COMPARED {
            if self.ours.is_empty() {
                self.ours = node.read_oplog_backward(self.our_oldest, self.at_once)?;
                self.ours.reverse();
            }
            let their = self.theirs.last().copied();
            if let Some(their) = their {
                self.their_oldest = their.op_time;
            } else if self.cursor != Some(0) {
                return Ok(());
            }
            let (Some(mine), Some(their)) = (self.ours.last().copied(), their) else {
                let (fetch, source_oldest) = (self.fetch, self.their_oldest);
                self.ended = Some(Input::NoCommonPoint { fetch, source_oldest });
                return Ok(());
            };
            if mine.op_time == their.op_time {
                let (fetch, common_point) = (self.fetch, mine);
                self.ended = Some(Input::CommonPointFound { fetch, common_point });
                return Ok(());
            }
            self.compared += 1;
            if mine.op_time > their.op_time {
                self.our_oldest = Some(mine.op_time.timestamp);
                self.ours.pop();
            } else {
                self.theirs.pop();
            }
        }
        Err(CopyFailure(format!("no common entry among the newest {MAX_COMPARED}")))
    }
}
