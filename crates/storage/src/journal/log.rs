//! Reading a log keyspace out of the journal.
//!
//! ```text
//!   segments  ──▶ items (places to read from) ──▶ blocks of records ──▶ entries ──▶ live ones
//! ```
//!
//! Entries are in the journal in the order they were appended. Which of them are live is a short
//! list of extents: one, plus one for each rollback that the history still reaches back to. Live
//! entries have rising positions.

use std::io;
use std::sync::Arc;

use crate::files::FileHandle;
use crate::journal::record::{Found, Operation, Record};
use crate::journal::segment::{Item, Location, Segment};
use crate::store::{Bytes, Damage, Direction, LogTotals, POSITION_LENGTH, ReadError};

/// A run of records whose entries are live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// The first record.
    start: Location,
    /// Behind the last record.
    end: Location,
    /// The position of its first entry, once it has one.
    first: Option<u64>,
    /// Positions below this are trimmed.
    from: u64,
    /// Positions from here on were cut off.
    below: Option<u64>,
}

impl Extent {
    fn holds(&self, at: Location, position: u64) -> bool {
        self.start <= at
            && at < self.end
            && self.from <= position
            && self.below.is_none_or(|below| position < below)
    }
}

/// What of a log is live.
#[derive(Clone, Debug)]
pub(crate) struct LogState {
    pub(crate) extents: Arc<Vec<Extent>>,
    /// The position of the last entry, unless a cut made it unknown.
    pub(crate) last: Last,
    /// All that was appended, since the first segment that there is.
    pub(crate) appended: LogTotals,
    /// Positions below this are trimmed.
    pub(crate) trimmed: u64,
}

/// The position of the last live entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Last {
    Known(Option<u64>),
    /// To be looked up.
    Unknown,
}

impl LogState {
    pub(crate) fn new(trimmed: u64) -> Self {
        let open = Extent {
            start: Location::START,
            end: Location::END,
            first: None,
            from: trimmed,
            below: None,
        };
        let (last, appended) = (Last::Known(None), LogTotals::default());
        Self { extents: Arc::new(vec![open]), last, appended, trimmed }
    }

    /// There is a new place to read from. It is told before the entries that it begins with.
    pub(crate) fn item(&mut self, position: u64) {
        if self.extents.last().is_some_and(|open| open.first.is_none())
            && let Some(open) = Arc::make_mut(&mut self.extents).last_mut()
        {
            open.first = Some(position);
        }
    }

    pub(crate) fn append(&mut self, position: u64, length: usize) {
        self.last = Last::Known(Some(position));
        self.appended.entries += 1;
        self.appended.bytes += length as u64;
    }

    pub(crate) fn trim(&mut self, below: u64) {
        self.trimmed = self.trimmed.max(below);
        if let Last::Known(last) = &mut self.last {
            *last = last.filter(|&last| last >= below);
        }
        let extents = Arc::make_mut(&mut self.extents);
        extents.iter_mut().for_each(|extent| extent.from = extent.from.max(below));
        extents.retain(|extent| extent.below.is_none_or(|end| extent.from < end));
    }

    /// The record at this place cuts the log.
    pub(crate) fn cut(&mut self, at: Location, from: u64) {
        self.last = Last::Unknown;
        let extents = Arc::make_mut(&mut self.extents);
        // Those that begin above it, or not at all, are gone.
        while extents.last().is_some_and(|last| last.first.is_none_or(|first| first >= from)) {
            extents.pop();
        }
        if let Some(last) = extents.last_mut() {
            last.end = last.end.min(at);
            last.below = Some(last.below.map_or(from, |below| below.min(from)));
        }
        let (start, end) = (at, Location::END);
        extents.push(Extent { start, end, first: None, from: self.trimmed, below: None });
    }

    /// The oldest segment that a live entry may be in.
    pub(crate) fn oldest_segment(&self, log: u32, segments: &[Arc<Segment>]) -> Option<u64> {
        let view = LogView {
            log,
            segments: segments.iter().cloned().collect(),
            state: self.clone(),
            end: Location::END,
        };
        let place = view.place_before(self.trimmed).or_else(|| view.first_place())?;
        Some(segments[place.segment].number)
    }
}

/// A log at one moment.
#[derive(Clone)]
pub(crate) struct LogView {
    pub(crate) log: u32,
    pub(crate) segments: Arc<[Arc<Segment>]>,
    pub(crate) state: LogState,
    /// Where the journal ended.
    pub(crate) end: Location,
}

/// An item, and where it is among the others.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// Among the segments of the view.
    segment: usize,
    /// Among the items of the segment.
    item: usize,
}

/// An entry as it lies in the journal.
struct Entry {
    at: Location,
    position: u64,
    bytes: Bytes,
    /// What was appended before it.
    before: LogTotals,
}

impl LogView {
    fn is_live(&self, at: Location, position: u64) -> bool {
        self.state.extents.iter().any(|extent| extent.holds(at, position))
    }

    /// An item may be of entries that are trimmed while those behind it are not.
    fn is_of_extent(&self, at: Location, position: u64) -> bool {
        let holds = |extent: &Extent| Extent { from: 0, ..*extent }.holds(at, position);
        self.state.extents.iter().any(holds)
    }

    fn with_items<T>(&self, segment: usize, read: impl FnOnce(&[Item]) -> T) -> T {
        let segment = &self.segments[segment];
        let items = segment.items();
        let items = items.get(&self.log).map_or(&[][..], Vec::as_slice);
        let visible = items.partition_point(|item| self.at(segment, item.offset) < self.end);
        read(&items[..visible])
    }

    fn at(&self, segment: &Segment, offset: u32) -> Location {
        Location::new(segment.number, offset)
    }

    /// The last item whose first entry is not above a position.
    fn place_before(&self, position: u64) -> Option<Place> {
        (0..self.segments.len()).rev().find_map(|segment| {
            let number = &self.segments[segment];
            let fits = |item: &Item| {
                item.position <= position
                    && self.is_of_extent(self.at(number, item.offset), item.position)
            };
            let item = self.with_items(segment, |items| items.iter().rposition(fits))?;
            Some(Place { segment, item })
        })
    }

    /// The first item with live entries.
    fn first_place(&self) -> Option<Place> {
        (0..self.segments.len()).find_map(|segment| {
            let number = &self.segments[segment];
            let fits = |item: &Item| self.is_of_extent(self.at(number, item.offset), item.position);
            let item = self.with_items(segment, |items| items.iter().position(fits))?;
            Some(Place { segment, item })
        })
    }

    /// The first item from here on.
    fn place_from(&self, segment: usize, item: usize) -> Option<Place> {
        let exists = |place: Place| {
            self.with_items(place.segment, |items| place.item < items.len()).then_some(place)
        };
        exists(Place { segment, item }).or_else(|| {
            (segment + 1..self.segments.len())
                .find_map(|segment| exists(Place { segment, item: 0 }))
        })
    }

    fn place_after(&self, place: Place) -> Option<Place> {
        self.place_from(place.segment, place.item + 1)
    }

    fn place_preceding(&self, place: Place) -> Option<Place> {
        if let Some(item) = place.item.checked_sub(1) {
            return Some(Place { item, ..place });
        }
        (0..place.segment).rev().find_map(|segment| {
            let item = self.with_items(segment, |items| items.len().checked_sub(1))?;
            Some(Place { segment, item })
        })
    }

    /// All entries of the log from an item to the next, live or not.
    fn block(&self, place: Place, open: &mut OpenSegment) -> Result<Vec<Entry>, ReadError> {
        let segment = &self.segments[place.segment];
        let Some((item, next)) = self.with_items(place.segment, |items| {
            Some((*items.get(place.item)?, items.get(place.item + 1).map(|next| next.offset)))
        }) else {
            return Ok(Vec::new());
        };
        let end = match next {
            Some(next) => next,
            None if self.end.segment() == segment.number => self.end.offset(),
            None => segment.end(),
        };
        let bytes = open.read(segment, item.offset, end)?;
        let mut entries = Vec::new();
        let (mut offset, mut before) = (0, item.before);
        while offset < bytes.len() {
            let damaged = || damaged(segment, item.offset as usize + offset);
            let Found::Whole(record) = Record::read(&bytes[offset..], segment.salt) else {
                return Err(damaged());
            };
            let at = self.at(segment, item.offset + offset as u32);
            for operation in record.operations() {
                match operation.ok_or_else(damaged)? {
                    Operation::Append { log, position, entry } if log == self.log => {
                        let start = entry.as_ptr() as usize - bytes.as_ptr() as usize;
                        let entry = bytes.slice(start..start + entry.len());
                        let length = entry.len() as u64;
                        entries.push(Entry { at, position, bytes: entry, before });
                        before.entries += 1;
                        before.bytes += length;
                    }
                    _ => {}
                }
            }
            offset += record.length;
        }
        Ok(entries)
    }

    /// The live entries from `start` on and below `end`.
    pub(crate) fn scan(self, start: u64, end: Option<u64>, direction: Direction) -> LogScan {
        let start = start.max(self.state.trimmed);
        let next = match direction {
            Direction::Forward => self.place_before(start).or_else(|| self.first_place()),
            Direction::Backward => match end.map(|end| end.checked_sub(1)) {
                None => self.place_before(u64::MAX),
                Some(Some(last)) => self.place_before(last),
                Some(None) => None,
            },
        };
        let (open, block) = (OpenSegment::default(), Vec::new().into_iter());
        LogScan { view: self, start, end, direction, next, open, block }
    }

    pub(crate) fn get(self, position: u64) -> Result<Option<Bytes>, ReadError> {
        let mut scan = self.scan(position, position.checked_add(1), Direction::Forward);
        // A copy, so that a single entry does not keep a whole block alive.
        Ok(scan.next_entry()?.map(|entry| Bytes::from(&entry.bytes[..])))
    }

    pub(crate) fn totals(&self) -> Result<LogTotals, ReadError> {
        let mut totals = LogTotals::default();
        for extent in self.state.extents.iter() {
            let mut only = self.clone();
            only.state.extents = Arc::new(vec![*extent]);
            let edge = |direction| only.clone().scan(0, None, direction).next_entry();
            let (Some(first), Some(last)) = (edge(Direction::Forward)?, edge(Direction::Backward)?)
            else {
                continue;
            };
            totals.entries += last.before.entries + 1 - first.before.entries;
            totals.bytes += last.before.bytes + last.bytes.len() as u64 - first.before.bytes;
        }
        Ok(totals)
    }
}

/// Live entries in the order of their positions, or the reverse.
pub(crate) struct LogScan {
    view: LogView,
    start: u64,
    end: Option<u64>,
    direction: Direction,
    /// The block to be read next.
    next: Option<Place>,
    open: OpenSegment,
    block: std::vec::IntoIter<Entry>,
}

impl LogScan {
    fn next_entry(&mut self) -> Result<Option<Entry>, ReadError> {
        loop {
            if let Some(entry) = self.block.next() {
                return Ok(Some(entry));
            }
            let Some(place) = self.next else { return Ok(None) };
            let entries = self.view.block(place, &mut self.open)?;
            // Live entries rise, so one outside of the range on the far side ends the scan.
            let past = |entry: &Entry| match self.direction {
                Direction::Forward => self.end.is_some_and(|end| entry.position >= end),
                Direction::Backward => entry.position < self.start,
            };
            let live: Vec<_> = entries
                .into_iter()
                .filter(|entry| self.view.is_live(entry.at, entry.position))
                .collect();
            let ends = live.iter().any(past);
            let mut wanted: Vec<_> = live
                .into_iter()
                .filter(|entry| {
                    entry.position >= self.start && self.end.is_none_or(|end| entry.position < end)
                })
                .collect();
            self.next = match self.direction {
                _ if ends => None,
                Direction::Forward => self.view.place_after(place),
                Direction::Backward => self.view.place_preceding(place),
            };
            if self.direction == Direction::Backward {
                wanted.reverse();
            }
            self.block = wanted.into_iter();
        }
    }
}

impl Iterator for LogScan {
    type Item = Result<(Bytes, Bytes), ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.next_entry() {
            Ok(entry) => {
                let entry = entry?;
                Some(Ok((Bytes::from(&entry.position.to_be_bytes()), entry.bytes)))
            }
            Err(error) => {
                self.next = None;
                Some(Err(error))
            }
        }
    }
}

const _: () = assert!(POSITION_LENGTH == size_of::<u64>());

/// The file of the segment that was read last.
#[derive(Default)]
struct OpenSegment {
    file: Option<(u64, Arc<dyn FileHandle>)>,
}

impl OpenSegment {
    fn read(&mut self, segment: &Segment, from: u32, to: u32) -> Result<Bytes, ReadError> {
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::UnexpectedEof => damaged(segment, from as usize),
            _ => ReadError::Engine(Box::new(error)),
        };
        let file = match &self.file {
            Some((number, file)) if *number == segment.number => Arc::clone(file),
            _ => {
                let file = segment.open().map_err(failed)?;
                self.file = Some((segment.number, Arc::clone(&file)));
                file
            }
        };
        let mut bytes = vec![0; to.saturating_sub(from) as usize];
        file.read_at(&mut bytes, u64::from(from)).map_err(failed)?;
        Ok(Bytes::from(bytes))
    }
}

fn damaged(segment: &Segment, offset: usize) -> ReadError {
    let (file, offset) = (segment.path.clone(), Some(offset as u64));
    ReadError::Damaged(Damage { file, offset, keyspace: None })
}
