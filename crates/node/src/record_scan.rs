//! Reads the records of a collection in their order, on more than one thread once a scan proves long.
//!
//! ```text
//!   records   1 … 2,048 │ part 0 │ part 1 │ part 2 │ part 3 │ …
//!   read by   reader      reader   helper   helper   reader
//! ```
//!
//! The reader, which is the thread that runs the command, begins alone. After [`ALONE`] records it divides
//! the rest into parts by record id, and asks the host for helpers. A helper takes the next part that has no
//! reader, examines its records and leaves what it found. The reader gets the parts in their order: those
//! that helpers have read are taken over, a part that has no reader is read in place. While a helper is at
//! the part that comes next, the reader takes a later one.
//!
//! A helper never waits: if it finds nothing that it may read, it goes back to the host. The reader waits
//! only for a part that a helper is reading.

use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, PoisonError};

use quorate_storage::key::RecordId;
use quorate_storage::{Direction, ScanWalk, Walk};

use quorate_protocol::Lock;

use crate::catalog::Ident;
use crate::error::{CommandError, ErrorCode, Result};
use crate::finder::InterruptSlot;
use crate::helpers::Helpers;
use crate::records::{LentDocument, View};

/// Records that a reader examines before it asks for help: dividing a scan takes longer than to read a few.
const ALONE: u64 = if cfg!(test) { 8 } else { 2048 };

/// Records of a part, if no record is missing.
const PART: u64 = if cfg!(test) { 4 } else { 4096 };

/// Parts of a scan at most: records that are missing make the parts longer.
const MAX_PARTS: u64 = 4096;

/// Bytes that are found in a part before a helper leaves the rest of it to the reader.
const PART_BYTES: usize = if cfg!(test) { 4096 } else { 1024 * 1024 };

/// What an item takes beside the bytes of its document.
const ITEM_BYTES: usize = 128;

/// Parts that are read ahead of the reader.
const MAX_AHEAD: usize = 8;

/// Helpers of one scan.
const MAX_HELPERS: usize = 7;

/// Records examined between two checks of the interrupt.
const INTERRUPT_INTERVAL: u64 = 64;

/// Bytes of records examined between two checks of it: large documents take as long as many small ones.
const INTERRUPT_BYTES: usize = 1024 * 1024;

/// What a scan is for.
pub(crate) trait Examiner: Send + Sync + 'static {
    /// What becomes of a document that is wanted.
    type Item: Send + 'static;

    /// Looks at a document; none if it is not wanted.
    fn examine(&self, record: RecordId, document: LentDocument<'_>) -> Result<Option<Self::Item>>;
}

/// Which records are read.
pub(crate) struct Records {
    pub(crate) view: View,
    pub(crate) collection: Ident,
    /// The record after which it begins; at one end of the collection without it.
    pub(crate) after: Option<RecordId>,
    pub(crate) direction: Direction,
}

/// The items of a collection, in the order of its records.
pub(crate) struct RecordScan<E: Examiner> {
    source: Arc<Source<E>>,
    /// Found in the part at hand by its reader.
    items: std::vec::IntoIter<E::Item>,
    /// Read by the caller's thread after the items.
    walk: Option<Box<dyn Walk>>,
    /// Where it ends, after the items.
    failure: Option<CommandError>,
    parts: Option<Parts<E>>,
    pace: Pace,
    /// The last record that was read here.
    last: RecordId,
    /// Whether the scan may be divided.
    divides: bool,
}

/// What readers and helpers share and do not change.
struct Source<E> {
    view: View,
    collection: Ident,
    examiner: E,
    interrupt: InterruptSlot,
}

/// Counts what one thread examines, and checks the interrupt from time to time.
#[derive(Default)]
pub(crate) struct Pace {
    examined: u64,
    /// Bytes since the last look.
    unasked: usize,
}

impl Pace {
    /// Counts a document for the thread that runs the command.
    pub(crate) fn step(&mut self, bytes: usize, interrupt: &InterruptSlot) -> Result<()> {
        interrupt.count_documents(1);
        if self.is_over(bytes) {
            interrupt.check()?;
            // One document that is read alone is not heavy.
            interrupt.check_room(self.unasked >= INTERRUPT_BYTES && self.examined > 1)?;
            self.unasked = 0;
        }
        Ok(())
    }

    /// Counts a document. Whether it is time to look.
    fn is_over(&mut self, bytes: usize) -> bool {
        self.examined += 1;
        self.unasked += bytes;
        self.examined.is_multiple_of(INTERRUPT_INTERVAL) || self.unasked >= INTERRUPT_BYTES
    }

    pub(crate) fn examined(&self) -> u64 {
        self.examined
    }
}

impl<E: Examiner> RecordScan<E> {
    pub(crate) fn new(records: Records, examiner: E, interrupt: InterruptSlot) -> Result<Self> {
        let Records { view, collection, after, direction } = records;
        let walk = match (after, direction) {
            (Some(record), _) => {
                view.walk_records(collection, (Bound::Excluded(record), Bound::Unbounded))?
            }
            (None, Direction::Forward) => {
                view.walk_records(collection, (Bound::Unbounded, Bound::Unbounded))?
            }
            (None, Direction::Backward) => {
                Box::new(ScanWalk::from(view.scan_records(collection, direction)?))
            }
        };
        let is_stored = collection != Ident::MADE_UP && !view.is_history(collection);
        let divides = direction == Direction::Forward && is_stored;
        Ok(Self {
            source: Arc::new(Source { view, collection, examiner, interrupt }),
            items: Vec::new().into_iter(),
            walk: Some(walk),
            failure: None,
            parts: None,
            pace: Pace::default(),
            last: RecordId(0),
            divides,
        })
    }

    pub(crate) fn next(&mut self) -> Result<Option<E::Item>> {
        loop {
            if let Some(item) = self.items.next() {
                return Ok(Some(item));
            }
            if let Some(item) = self.read_here()? {
                return Ok(Some(item));
            }
            if let Some(failure) = self.failure.take() {
                return Err(failure);
            }
            if !self.begin_part()? {
                return Ok(None);
            }
        }
    }

    /// How many records were examined, those of helpers included once their part was taken over.
    pub(crate) fn examined(&self) -> u64 {
        self.pace.examined
    }

    /// The next item of what this thread reads itself.
    fn read_here(&mut self) -> Result<Option<E::Item>> {
        while let Some(walk) = &mut self.walk {
            let Some((key, value)) = walk.next()? else {
                self.walk = None;
                break;
            };
            let (record, document) = (record_of_key(key)?, LentDocument::new(value)?);
            self.pace.step(document.as_bytes().len(), &self.source.interrupt)?;
            self.last = record;
            let item = self.source.examiner.examine(record, document)?;
            if self.pace.examined.is_multiple_of(ALONE) && self.parts.is_none() && self.divides {
                self.divide()?;
            }
            if item.is_some() {
                return Ok(item);
            }
        }
        Ok(None)
    }

    /// Divides what comes after the last record, if the host has helpers and there is enough left.
    fn divide(&mut self) -> Result<()> {
        let Some(helpers) = self.source.interrupt.helpers() else { return Ok(()) };
        let Some(last) = self.source.view.last_record(self.source.collection)? else {
            return Ok(());
        };
        let left = last.0.saturating_sub(self.last.0);
        if left < 2 * PART {
            return Ok(());
        }
        let division = Division {
            next: self.last.0 + 1,
            last: last.0,
            span: PART.max(left / MAX_PARTS + 1),
            front: 0,
            ahead: VecDeque::new(),
            helpers: 0,
        };
        let parts = Parts(Arc::new(Shared {
            source: Arc::clone(&self.source),
            division: Lock::new(division),
            is_read: Condvar::new(),
            is_over: AtomicBool::new(false),
            helpers,
        }));
        // Without an idle thread the scan goes on as it is, and asks again later.
        if parts.0.invite() {
            self.parts = Some(parts);
            self.walk = None;
        }
        Ok(())
    }

    /// Takes the next part over. False after the last one.
    fn begin_part(&mut self) -> Result<bool> {
        let Some(parts) = &self.parts else { return Ok(false) };
        self.source.interrupt.check()?;
        let Some(part) = parts.0.next_part() else { return Ok(false) };
        self.pace.examined += part.examined;
        self.source.interrupt.count_documents(part.examined);
        self.items = part.items.into_iter();
        match part.rest {
            Rest::Nothing => {}
            Rest::Unread(walk) => self.walk = Some(walk),
            Rest::Failure(failure) => self.failure = Some(failure),
        }
        Ok(true)
    }
}

/// The reader's end of a divided scan. Helpers stop when it is dropped.
struct Parts<E: Examiner>(Arc<Shared<E>>);

impl<E: Examiner> Drop for Parts<E> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
        let ahead = std::mem::take(&mut self.0.division.lock().ahead);
        for slot in ahead {
            if let Slot::Read(part) = slot {
                self.0.helpers.release(part.bytes);
            }
        }
    }
}

struct Shared<E: Examiner> {
    source: Arc<Source<E>>,
    division: Lock<Division<E::Item>>,
    /// Signalled when a helper has read a part.
    is_read: Condvar,
    /// Whether the reader is gone.
    is_over: AtomicBool,
    helpers: Arc<Helpers>,
}

/// How the records that were not read yet are divided.
struct Division<T> {
    /// The first record that is in no part yet.
    next: u64,
    /// The last record of all.
    last: u64,
    /// Record ids of a part.
    span: u64,
    /// The number of the part that the reader gets next.
    front: u64,
    /// That part and those after it that have a reader.
    ahead: VecDeque<Slot<T>>,
    /// Helpers at work.
    helpers: usize,
}

enum Slot<T> {
    Reading,
    Read(Part<T>),
}

/// What was found in a part.
struct Part<T> {
    items: Vec<T>,
    rest: Rest,
    examined: u64,
    /// What the items take.
    bytes: usize,
}

enum Rest {
    Nothing,
    /// The part has more records.
    Unread(Box<dyn Walk>),
    Failure(CommandError),
}

impl<T> Part<T> {
    fn empty(rest: Rest) -> Self {
        Self { items: Vec::new(), rest, examined: 0, bytes: 0 }
    }
}

impl<T> Division<T> {
    /// The next records that have no reader: from the first up to the second, which is in it.
    fn claim(&mut self) -> Option<(u64, u64)> {
        if self.next > self.last {
            return None;
        }
        let first = self.next;
        let last = first.saturating_add(self.span - 1).min(self.last);
        self.next = last + 1;
        Some((first, last))
    }

    /// Claims a part ahead of the reader. Returns its number and its records.
    fn claim_ahead(&mut self, helpers: &Helpers) -> Option<(u64, (u64, u64))> {
        if self.ahead.len() >= MAX_AHEAD || !helpers.may_read_ahead() {
            return None;
        }
        let records = self.claim()?;
        let number = self.front + self.ahead.len() as u64;
        self.ahead.push_back(Slot::Reading);
        Some((number, records))
    }
}

impl<E: Examiner> Shared<E> {
    /// Asks the host for helpers while there are parts for them. Whether one has come.
    fn invite(self: &Arc<Self>) -> bool {
        let mut invited = false;
        // Helpers that end at once must not be asked for ever.
        for _ in 0..MAX_HELPERS {
            let mut division = self.division.lock();
            if division.helpers >= MAX_HELPERS || division.next > division.last {
                break;
            }
            division.helpers += 1;
            drop(division);
            let helper = Helper(Arc::clone(self));
            if !self.helpers.start(Box::new(move || helper.help())) {
                break;
            }
            invited = true;
        }
        invited
    }

    /// The part that comes next; none after the last.
    fn next_part(self: &Arc<Self>) -> Option<Part<E::Item>> {
        let mut division = self.division.lock();
        loop {
            match division.ahead.front() {
                // No reader has it: it is read as it is consumed.
                None => {
                    let (first, last) = division.claim()?;
                    division.front += 1;
                    drop(division);
                    return Some(Part::empty(match self.walk(first, last) {
                        Ok(walk) => Rest::Unread(walk),
                        Err(error) => Rest::Failure(error),
                    }));
                }
                Some(Slot::Read(_)) => {
                    let Some(Slot::Read(part)) = division.ahead.pop_front() else { continue };
                    division.front += 1;
                    let has_room = division.ahead.len() <= MAX_AHEAD / 2;
                    drop(division);
                    self.helpers.release(part.bytes);
                    if has_room {
                        self.invite();
                    }
                    return Some(part);
                }
                Some(Slot::Reading) => match division.claim_ahead(&self.helpers) {
                    Some((number, records)) => {
                        drop(division);
                        Claim { shared: self, number, is_read: false }.read(records);
                        division = self.division.lock();
                    }
                    None => {
                        let waited = self.is_read.wait(division);
                        division = waited.unwrap_or_else(PoisonError::into_inner);
                    }
                },
            }
        }
    }

    fn walk(&self, first: u64, last: u64) -> Result<Box<dyn Walk>> {
        let range = (Bound::Included(RecordId(first)), Bound::Included(RecordId(last)));
        self.source.view.walk_records(self.source.collection, range)
    }

    /// Reads a part, or as much of it as may be held.
    fn read(&self, (first, last): (u64, u64)) -> Part<E::Item> {
        let mut part = Part::empty(Rest::Nothing);
        if let Err(error) = self.read_into(&mut part, first, last) {
            part.rest = Rest::Failure(error);
        }
        part
    }

    fn read_into(&self, part: &mut Part<E::Item>, first: u64, last: u64) -> Result<()> {
        let mut walk = self.walk(first, last)?;
        let mut pace = Pace::default();
        while let Some((key, value)) = walk.next()? {
            let bytes = value.len();
            let (record, document) = (record_of_key(key)?, LentDocument::new(value)?);
            part.examined += 1;
            if pace.is_over(bytes) {
                self.source.interrupt.check()?;
                if self.is_over.load(Ordering::Relaxed) {
                    return Ok(());
                }
                pace.unasked = 0;
            }
            if let Some(item) = self.source.examiner.examine(record, document)? {
                part.items.push(item);
                part.bytes += bytes + ITEM_BYTES;
                if part.bytes >= PART_BYTES {
                    part.rest = Rest::Unread(walk);
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

/// A helper, counted until it is dropped: a job that the host never runs counts no longer than others.
struct Helper<E: Examiner>(Arc<Shared<E>>);

impl<E: Examiner> Helper<E> {
    fn help(&self) {
        while !self.0.is_over.load(Ordering::Relaxed) {
            let claimed = self.0.division.lock().claim_ahead(&self.0.helpers);
            let Some((number, records)) = claimed else { return };
            Claim { shared: &self.0, number, is_read: false }.read(records);
        }
    }
}

impl<E: Examiner> Drop for Helper<E> {
    fn drop(&mut self) {
        self.0.division.lock().helpers -= 1;
    }
}

/// A part that a thread has taken to read. It is handed in even if the thread panics, since the reader
/// waits for it.
struct Claim<'s, E: Examiner> {
    shared: &'s Shared<E>,
    number: u64,
    is_read: bool,
}

impl<E: Examiner> Claim<'_, E> {
    fn read(mut self, records: (u64, u64)) {
        let part = self.shared.read(records);
        self.is_read = true;
        self.hand_in(part);
    }

    fn hand_in(&self, part: Part<E::Item>) {
        let mut division = self.shared.division.lock();
        // Nothing is ahead of a reader that is gone.
        let Some(place) = self.number.checked_sub(division.front) else { return };
        if let Some(slot) = division.ahead.get_mut(place as usize) {
            self.shared.helpers.hold(part.bytes);
            *slot = Slot::Read(part);
        }
        drop(division);
        self.shared.is_read.notify_one();
    }
}

impl<E: Examiner> Drop for Claim<'_, E> {
    fn drop(&mut self) {
        if !self.is_read {
            let message = "a thread that read records ended; see the log of the server";
            let failure = CommandError::new(ErrorCode::INTERNAL_ERROR, message);
            self.hand_in(Part::empty(Rest::Failure(failure)));
        }
    }
}

pub(crate) fn record_of_key(key: &[u8]) -> Result<RecordId> {
    RecordId::from_suffix(key)
        .ok_or_else(|| fail!(INTERNAL_ERROR, "a record key is damaged; run validate"))
}

#[cfg(test)]
mod tests;
