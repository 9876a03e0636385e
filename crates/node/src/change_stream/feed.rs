//! The newest committed entries, decoded once for all streams.
//!
//! A stream that keeps up finds what it needs here; reading the oplog again for each of a thousand
//! streams would cost a thousand scans. One that is further behind reads the store by itself.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bson::Document;
use quorate_change_events::{
    Event, FullDocument, NoImages, Options, TransactionPart, events, transaction_events,
};
use quorate_protocol::{Lock, Timestamp};
use quorate_wire::timestamp_from;

use super::room::SharedRoom;
use super::{history_lost, transaction_key};
use crate::error::Result;
use crate::node::Node;
use crate::replication::entry_position;

/// Entries that are kept decoded.
const MAX_ENTRIES: usize = 4096;

/// Bytes of entries that are kept decoded, as they are in the oplog.
const MAX_BYTES: usize = 8 * 1024 * 1024;

/// Bytes of entries that are read in one go.
const READ_BYTES: usize = 4 * 1024 * 1024;

/// Ways to open a stream for which events are kept, and how many entries of each.
const MAX_WAYS: usize = 16;
const MAX_TRANSLATED: usize = 256;

/// What an entry tells to streams that were opened in one way; none if each stream has to look at it by itself.
pub(super) type Told = Option<Arc<Vec<Event>>>;

/// Entries with their times.
type Entries = Vec<(u64, Arc<Document>)>;

/// What all streams of a member share.
#[derive(Default)]
pub(crate) struct Feed {
    recent: Lock<Recent>,
    /// Entries that were read from the oplog and decoded since the start.
    decoded: AtomicU64,
    /// The streams that wait.
    room: Arc<SharedRoom>,
}

#[derive(Default)]
struct Recent {
    /// Everything committed after `from` and up to the last of these is here.
    from: u64,
    entries: VecDeque<(u64, usize, Arc<Document>)>,
    bytes: usize,
    /// How often the log had been cut when these were read.
    cuts: u64,
    /// The events of the newest entries, for each way to open a stream.
    translated: Vec<(Options, BTreeMap<u64, Told>)>,
}

impl Feed {
    /// Committed entries after a time, at most so many; none if there are none.
    pub(crate) fn after(&self, node: &Node, position: u64, most: usize) -> Result<Entries> {
        let standing = node.standing();
        let committed = standing.commit_point.op_time.timestamp.as_u64();
        if committed <= position {
            return Ok(Vec::new());
        }
        let mut recent = self.recent.lock();
        if recent.cuts != standing.cuts {
            *recent = Recent { cuts: standing.cuts, ..Recent::default() };
        }
        if recent.end() <= position {
            // The first stream to come reads for all.
            if recent.end() < position {
                *recent = Recent { from: position, cuts: recent.cuts, ..Recent::default() };
            }
            let read = self.read(node, recent.end().max(position), committed, most)?;
            recent.extend(read);
        }
        if recent.from <= position && !recent.entries.is_empty() {
            return Ok(recent.after(position, most));
        }
        drop(recent);
        let read = self.read(node, position, committed, most)?;
        Ok(read.into_iter().map(|(time, _, entry)| (time, entry)).collect())
    }

    /// Committed entries after a time that streams opened like this may read, at most so many; none if there are none.
    pub(super) fn readable_after(
        &self,
        node: &Node,
        position: u64,
        options: &Options,
        most: usize,
    ) -> Result<Entries> {
        let mut entries = self.after(node, position, most)?;
        let until = readable_until(node, options);
        entries.truncate(entries.partition_point(|(time, _)| *time <= until));
        Ok(entries)
    }

    /// What committed entries after a time tell to streams that were opened like this and need no images.
    pub(super) fn events_after(
        &self,
        node: &Node,
        position: u64,
        options: &Options,
        most: usize,
    ) -> Result<Vec<(u64, Told)>> {
        let entries = self.readable_after(node, position, options, most)?;
        let mut recent = self.recent.lock();
        let (from, end) = (recent.from, recent.end());
        let told = recent.told_to(options);
        let events = entries.into_iter().map(|(time, entry)| {
            // Events hold documents: they are kept no longer than their entries.
            if time <= from || time > end {
                return (time, translate(&entry, options));
            }
            let events = told.entry(time).or_insert_with(|| translate(&entry, options));
            (time, events.clone())
        });
        let events = events.collect();
        while told.len() > MAX_TRANSLATED
            || told.first_key_value().is_some_and(|(time, _)| *time <= from)
        {
            told.pop_first();
        }
        Ok(events)
    }

    fn read(
        &self,
        node: &Node,
        position: u64,
        committed: u64,
        most: usize,
    ) -> Result<Vec<(u64, usize, Arc<Document>)>> {
        let read = read(node, position, committed, most)?;
        self.decoded.fetch_add(read.len() as u64, Ordering::Relaxed);
        Ok(read)
    }

    /// The streams that wait.
    pub(super) fn room(&self) -> Arc<SharedRoom> {
        Arc::clone(&self.room)
    }

    /// How many entries were read from the oplog and decoded since the start, for all streams together.
    pub(super) fn decoded(&self) -> u64 {
        self.decoded.load(Ordering::Relaxed)
    }
}

impl Recent {
    fn end(&self) -> u64 {
        self.entries.back().map_or(self.from, |(time, ..)| *time)
    }

    fn extend(&mut self, read: Vec<(u64, usize, Arc<Document>)>) {
        for entry in read {
            self.bytes += entry.1;
            self.entries.push_back(entry);
        }
        while self.entries.len() > MAX_ENTRIES || self.bytes > MAX_BYTES {
            let Some((time, bytes, _)) = self.entries.pop_front() else { return };
            self.from = time;
            self.bytes -= bytes;
        }
    }

    /// The events that are kept for this way to open a stream.
    fn told_to(&mut self, options: &Options) -> &mut BTreeMap<u64, Told> {
        let place = match self.translated.iter().position(|(known, _)| known == options) {
            Some(place) => place,
            None => {
                if self.translated.len() >= MAX_WAYS {
                    self.translated.remove(0);
                }
                self.translated.push((options.clone(), BTreeMap::new()));
                self.translated.len() - 1
            }
        };
        &mut self.translated[place].1
    }

    fn after(&self, position: u64, most: usize) -> Entries {
        let start = self.entries.partition_point(|(time, ..)| *time <= position);
        let found = self.entries.range(start..).take(most);
        found.map(|(time, _, entry)| (*time, Arc::clone(entry))).collect()
    }
}

/// Up to where streams that were opened like this read committed entries. A document that is looked up must not be older
/// than its event, and what majority reads see may be behind the commit point.
pub(super) fn readable_until(node: &Node, options: &Options) -> u64 {
    match options.full_document {
        FullDocument::UpdateLookup => node.standing().majority.timestamp.as_u64(),
        _ => u64::MAX,
    }
}

/// The events of an entry. A transaction of several entries is put together by each stream; an error is for each
/// stream to meet.
pub(super) fn translate(entry: &Document, options: &Options) -> Told {
    let found = match transaction_key(entry) {
        None => events(entry, &NoImages, options),
        Some(_) if is_whole(entry) => {
            transaction_events(std::slice::from_ref(entry), &NoImages, options)
        }
        Some(_) => return None,
    };
    found.ok().map(Arc::new)
}

/// Whether an entry of a transaction is all of it.
pub(super) fn is_whole(entry: &Document) -> bool {
    let before = entry.get_document("prevOpTime").and_then(|before| before.get_timestamp("ts"));
    let follows = before.is_ok_and(|time| timestamp_from(time).as_u64() > 0);
    !follows && TransactionPart::of(entry) == Some(TransactionPart::Last)
}

/// Reads committed entries after a time, and makes sure that none is missing between.
fn read(
    node: &Node,
    position: u64,
    committed: u64,
    most: usize,
) -> Result<Vec<(u64, usize, Arc<Document>)>> {
    let after = Bound::Excluded(Timestamp::from_u64(position));
    let found = node.read_oplog(after, most, READ_BYTES)?;
    // After the reading: what is still there now was there then.
    let oldest = node.oldest_entry()?.timestamp.as_u64();
    if oldest > position.saturating_add(1) && !node.has_whole_history()? {
        return Err(history_lost());
    }
    let mut entries = Vec::with_capacity(found.entries.len());
    for entry in found.entries {
        let time = entry_position(&entry)?.op_time.timestamp.as_u64();
        if time > committed {
            break;
        }
        let size = entry.as_bytes().len();
        entries.push((time, size, Arc::new(Document::try_from(&*entry)?)));
    }
    Ok(entries)
}
