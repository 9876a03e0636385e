//! Streams that wait for changes, in groups that were opened in the same way.
//!
//! A committed entry is translated once for each group. A group to which the entry is irrelevant advances as
//! one, without a look at its streams. Otherwise the filter of each stream of the group is evaluated, and a stream is
//! woken only if it shows the event, or if the filter cannot decide.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard};

use bson::Document;
use quorate_change_events::{Event, NoImages, Options, TransactionPart, transaction_events};
use quorate_query::pipeline::Pipeline;

use quorate_protocol::Lock;

use super::feed::{Told, is_whole, readable_until, translate};
use super::{Outlook, READ_STEP, earlier_entries, transaction_key};
use crate::node::Node;

/// Wakes a waiting stream: it has new events.
pub type Wake = Box<dyn Fn() + Send>;

/// Batches of entries that one turn reads. More of them wait for the next commit point.
const MAX_BATCHES: usize = 64;

/// Transactions whose last entry has not come that a group remembers. With more of them its streams look by themselves.
const MAX_UNFINISHED: usize = 64;

/// The room, and how many commands wait in it or are about to.
#[derive(Default)]
pub(super) struct SharedRoom {
    room: Lock<Room>,
    /// Read under the lock of the standing, which the lock of the room encloses.
    awaiting: AtomicUsize,
}

impl SharedRoom {
    pub(super) fn lock(&self) -> MutexGuard<'_, Room> {
        self.room.lock()
    }
}

/// The waiting streams, and how much work they caused.
#[derive(Default)]
pub(super) struct Room {
    groups: Vec<Group>,
    /// Filters that were asked about an event.
    asked: u64,
    /// Streams that were woken.
    woken: u64,
}

/// Streams that were opened in the same way.
struct Group {
    options: Options,
    /// Every entry up to here is dealt with.
    position: u64,
    /// The place before the first entry of each transaction whose last one has not come: nothing of it was shown, so
    /// no stream may go on behind it.
    unfinished: BTreeMap<Vec<u8>, u64>,
    streams: BTreeMap<i64, Waiter>,
}

struct Waiter {
    pipeline: Pipeline,
    /// It has read everything up to here by itself.
    since: u64,
    passed: Passed,
    wake: Wake,
}

/// Up to where nothing was for a stream while it waited; 0 until it is known.
#[derive(Clone, Debug, Default)]
pub(super) struct Passed(Arc<AtomicU64>);

impl Passed {
    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    fn set(&self, position: u64) {
        self.0.store(position, Ordering::Release);
    }
}

/// A stream that waits, until this is dropped.
#[must_use]
pub struct StreamWait {
    room: Counted,
    cursor: i64,
}

impl Drop for StreamWait {
    fn drop(&mut self) {
        self.room.0.lock().leave(self.cursor);
    }
}

/// The room, whose counter has one more until this is dropped.
struct Counted(Arc<SharedRoom>);

impl Counted {
    fn begin(room: Arc<SharedRoom>) -> Self {
        room.awaiting.fetch_add(1, Ordering::AcqRel);
        Self(room)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.awaiting.fetch_sub(1, Ordering::AcqRel);
    }
}

/// What there is for a stream that would wait.
#[must_use]
pub enum Awaited {
    /// It waits, and is woken by news.
    Waits(StreamWait),
    /// There is news now.
    News,
    /// Only a command can tell, at each commit point.
    Unknown,
}

impl Room {
    fn leave(&mut self, cursor: i64) {
        for group in &mut self.groups {
            if let Some(waiter) = group.streams.remove(&cursor) {
                waiter.passed.set(group.reached().max(waiter.since));
            }
        }
        self.groups.retain(|group| !group.streams.is_empty());
    }

    fn enter(&mut self, cursor: i64, options: &Options, waiter: Waiter) {
        let known = self.groups.iter().position(|group| group.options == *options);
        let place = known.unwrap_or_else(|| {
            let (options, position) = (options.clone(), waiter.since);
            let (unfinished, streams) = (BTreeMap::new(), BTreeMap::new());
            self.groups.push(Group { options, position, unfinished, streams });
            self.groups.len() - 1
        });
        let group = &mut self.groups[place];
        // The first of them may have begun at an entry that is not committed yet, and another before that.
        group.position = group.position.min(waiter.since);
        group.streams.insert(cursor, waiter);
    }

    /// Where streams are that wait.
    pub(super) fn positions(&self) -> BTreeMap<i64, u64> {
        let groups = self.groups.iter();
        let streams = groups.flat_map(|group| {
            group.streams.iter().map(|(id, waiter)| (*id, group.reached().max(waiter.since)))
        });
        streams.collect()
    }

    pub(super) fn figures(&self) -> (u64, u64) {
        (self.asked, self.woken)
    }

    fn wake_all(&mut self) {
        for group in &mut self.groups {
            self.woken += group.streams.len() as u64;
            group.wake_all();
        }
        self.groups.clear();
    }

    /// From where on there may be entries for a group; none if no group may be told of more.
    fn least_position(&self, node: &Node) -> Option<u64> {
        let open = |group: &&Group| group.position < readable_until(node, &group.options);
        self.groups.iter().filter(open).map(|group| group.position).min()
    }

    fn tell(&mut self, node: &Node, entries: &[(u64, Arc<Document>)]) {
        for group in &mut self.groups {
            let until = readable_until(node, &group.options);
            let start = entries.partition_point(|(time, _)| *time <= group.position);
            let told = entries[start..].iter().take_while(|(time, _)| *time <= until);
            for (time, entry) in told {
                let (asked, woken) = group.tell(node, *time, entry);
                self.asked += asked;
                self.woken += woken;
            }
        }
        self.groups.retain(|group| !group.streams.is_empty());
    }
}

impl Group {
    fn wake_all(&mut self) {
        let reached = self.reached();
        for waiter in std::mem::take(&mut self.streams).into_values() {
            waiter.passed.set(reached.max(waiter.since));
            (waiter.wake)();
        }
    }

    /// Up to where a stream may go on that was shown nothing.
    fn reached(&self) -> u64 {
        self.unfinished.values().copied().min().unwrap_or(u64::MAX).min(self.position)
    }

    /// What an entry tells. Those of a transaction that come before its last one tell nothing yet.
    fn events_of(&mut self, node: &Node, entry: &Arc<Document>) -> Told {
        let key = match transaction_key(entry) {
            Some(key) if !is_whole(entry) => key,
            _ => return translate(entry, &self.options),
        };
        let part = TransactionPart::of(entry);
        if part == Some(TransactionPart::Abort) {
            self.unfinished.remove(&key);
            return Some(Arc::default());
        }
        if part == Some(TransactionPart::Partial) {
            if self.unfinished.len() >= MAX_UNFINISHED {
                return None;
            }
            self.unfinished.entry(key).or_insert(self.position);
            return Some(Arc::default());
        }
        self.unfinished.remove(&key);
        let mut entries = earlier_entries(node, entry).ok()?;
        entries.push(Arc::clone(entry));
        let entries: Vec<Document> = entries.into_iter().map(Arc::unwrap_or_clone).collect();
        transaction_events(&entries, &NoImages, &self.options).ok().map(Arc::new)
    }

    /// Deals with an entry. Returns how many filters were asked, and how many streams woken.
    fn tell(&mut self, node: &Node, time: u64, entry: &Arc<Document>) -> (u64, u64) {
        let position = self.reached();
        let events = self.events_of(node, entry);
        let (mut asked, waiting) = (0, self.streams.len());
        match events {
            None => self.wake_all(),
            Some(events) if events.is_empty() => {}
            Some(events) => {
                let blind = self.options.shows_images();
                self.streams.retain(|_, waiter| {
                    asked += 1;
                    if waiter.since >= time || !(blind || shows(&waiter.pipeline, &events)) {
                        return true;
                    }
                    waiter.passed.set(position.max(waiter.since));
                    (waiter.wake)();
                    false
                });
            }
        }
        self.position = time;
        (asked, (waiting - self.streams.len()) as u64)
    }
}

/// Whether a stream with this pipeline may show one of these events.
pub(super) fn shows(pipeline: &Pipeline, events: &[Event]) -> bool {
    events
        .iter()
        .any(|event| event.ends_stream || !pipeline.refuses(&event.document).unwrap_or(false))
}

impl Node {
    /// A command has found nothing in the stream of this cursor and waits for news.
    pub fn await_stream(&self, cursor: i64, wake: Wake) -> Awaited {
        // Counted before it looks: the commit point moves before that look, or finds it counted.
        let counted = Counted::begin(self.change_feed().room());
        let mut room = counted.0.lock();
        let Some(mut borrowed) = self.cursors().borrow(cursor) else { return Awaited::News };
        let outlook = match &mut borrowed.changes {
            Some(stream) => stream.outlook(self),
            None => Outlook::Unknown,
        };
        if let (Outlook::Quiet, Some(stream)) = (outlook, &mut borrowed.changes) {
            let passed = Passed::default();
            stream.passed = Some(passed.clone());
            let (pipeline, since) = (stream.pipeline.clone(), stream.position);
            room.enter(cursor, &stream.options, Waiter { pipeline, since, passed, wake });
        }
        self.cursors().give_back(cursor, borrowed);
        drop(room);
        match outlook {
            Outlook::Quiet => Awaited::Waits(StreamWait { room: counted, cursor }),
            Outlook::News => Awaited::News,
            Outlook::Unknown => Awaited::Unknown,
        }
    }

    /// Whether a cursor is a change stream that has read everything there is. A command finds nothing in
    /// it but what happens meanwhile.
    pub(crate) fn is_quiet_stream(&self, cursor: i64) -> bool {
        let Some(mut borrowed) = self.cursors().borrow(cursor) else { return false };
        let is_quiet = borrowed.changes.as_mut().is_some_and(|stream| stream.is_quiet(self));
        self.cursors().give_back(cursor, borrowed);
        is_quiet
    }

    /// Whether a cursor is open. A command that waits for it may find it killed.
    pub fn has_cursor(&self, cursor: i64) -> bool {
        self.cursors().is_open(cursor)
    }

    /// Whether a change stream waits, so that [`tell_streams`](Self::tell_streams) has something to do when the commit
    /// point moves. May be asked under the lock of the standing.
    pub fn has_waiting_streams(&self) -> bool {
        self.change_feed().room().awaiting.load(Ordering::Acquire) > 0
    }

    /// The commit point has moved: wakes the streams that have news.
    pub fn tell_streams(&self) {
        let shared = self.change_feed().room();
        for _ in 0..MAX_BATCHES {
            let mut room = shared.lock();
            let Some(from) = room.least_position(self) else { return };
            match self.change_feed().after(self, from, READ_STEP) {
                Ok(entries) if entries.is_empty() => return,
                Ok(entries) => room.tell(self, &entries),
                // Each of them meets the error by itself.
                Err(_) => room.wake_all(),
            }
        }
    }
}
