//! Entries that a source writes while everything is copied from it, kept on disk until their turn.
//!
//! They lie in a keyspace of their own, by timestamp, which is dropped when they are no longer needed
//! and, if the process ended before, when the member starts again: a copy that was begun is begun
//! anew. Nothing is forced to disk for the same reason. docs/replication-rules.md#initial-sync.

use std::ops::Bound;
use std::sync::Arc;

use bson::RawDocumentBuf;
use quorate_protocol::{OpTime, Timestamp};
use quorate_storage::{Batch, Direction, KeyRange, KeyspaceId, Store};

use super::entry::entry_position;
use crate::error::Result;
use crate::node::Node;

/// The keyspace that holds the entries.
const KEYSPACE: &str = "copying";

/// Entries on disk, in the order of the source's log.
pub struct CopyBuffer {
    store: Arc<dyn Store>,
    keyspace: KeyspaceId,
    most_bytes: u64,
    bytes: u64,
    last: Option<OpTime>,
}

impl Node {
    /// An empty buffer that holds so many bytes. There is one at a time: an earlier one is gone.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub fn begin_copy_buffer(&self, most_bytes: u64) -> Result<CopyBuffer> {
        self.drop_copy_buffer()?;
        let store = self.shared_store();
        let keyspace = store.create_keyspace(KEYSPACE)?;
        Ok(CopyBuffer { store, keyspace, most_bytes, bytes: 0, last: None })
    }

    /// Removes what a process that ended has left behind.
    pub(super) fn drop_copy_buffer(&self) -> Result<()> {
        let left = self.store().keyspaces().into_iter().find(|(name, _)| name == KEYSPACE);
        if let Some((_, keyspace)) = left {
            self.store().drop_keyspace(keyspace)?;
        }
        Ok(())
    }
}

impl CopyBuffer {
    /// Keeps entries that follow those before, or begin with the last of them. False if they do not fit; then none of
    /// them is kept.
    ///
    /// # Errors
    ///
    /// If the store fails or an entry is damaged.
    pub fn push(&mut self, entries: &[RawDocumentBuf]) -> Result<bool> {
        let entries = match (entries.split_first(), self.last) {
            (Some((first, rest)), Some(last)) if entry_position(first)?.op_time == last => rest,
            _ => entries,
        };
        let bytes: u64 = entries.iter().map(|entry| entry.as_bytes().len() as u64).sum();
        if self.bytes + bytes > self.most_bytes {
            return Ok(false);
        }
        let mut batch = Batch::new();
        let mut last = self.last;
        for entry in entries {
            let op_time = entry_position(entry)?.op_time;
            batch.insert(self.keyspace, key(op_time.timestamp), entry.as_bytes());
            last = Some(op_time);
        }
        if !batch.is_empty() {
            self.store.commit(batch)?;
        }
        self.bytes += bytes;
        self.last = last;
        Ok(true)
    }

    /// The last entry that is kept.
    pub fn last(&self) -> Option<OpTime> {
        self.last
    }

    /// How many bytes the entries are.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The entries after a timestamp, about so many bytes of them; none after the last.
    ///
    /// # Errors
    ///
    /// If the store fails or an entry is damaged.
    pub fn read(&self, after: Option<Timestamp>, most_bytes: usize) -> Result<Vec<RawDocumentBuf>> {
        let start = after.map_or(Bound::Unbounded, |after| Bound::Excluded(key(after)));
        let range = KeyRange { start, end: Bound::Unbounded };
        let snapshot = self.store.snapshot();
        let mut entries = Vec::new();
        let mut bytes = 0;
        for pair in snapshot.scan(self.keyspace, range, Direction::Forward)? {
            let entry = RawDocumentBuf::from_bytes(pair?.1.to_vec())?;
            bytes += entry.as_bytes().len();
            entries.push(entry);
            if bytes >= most_bytes {
                break;
            }
        }
        Ok(entries)
    }
}

impl Drop for CopyBuffer {
    fn drop(&mut self) {
        // What cannot be removed now is removed at the next start, or by the next buffer.
        let _ = self.store.drop_keyspace(self.keyspace);
    }
}

fn key(timestamp: Timestamp) -> Vec<u8> {
    timestamp.as_u64().to_be_bytes().to_vec()
}
