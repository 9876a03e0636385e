//! A segment of the journal: its file, its header, and what is known of its content without reading
//! it.
//!
//! The layout is in `docs/storage-format.md`, "Segments".

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::files::{FileHandle, Files, read_all};
use crate::journal::folder::Folder;
use crate::journal::record::{Operation, Salt, put_number, take_number};
use crate::manifest::take;
use crate::store::LogTotals;

/// The bytes of a segment before its first record.
pub(crate) const SEGMENT_HEADER: u32 = 40;

/// One item of the index covers about this much of the journal.
const GRANULE: u32 = 16 * 1024;

const MAGIC: &[u8; 8] = b"QRTSEG\0\x03";
/// Of format 2, whose records have no salt.
const UNSALTED_MAGIC: &[u8; 8] = b"QRTSEG\0\x02";
const SUMMARY_MAGIC: &[u8; 8] = b"QRTIDX\0\x02";
const EXTENSION: &str = ".seg";
const SUMMARY_EXTENSION: &str = ".idx";

/// Where a record begins: the segment's number above, the offset in it below.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Location(u64);

impl Location {
    pub(crate) const START: Self = Self(0);
    pub(crate) const END: Self = Self(u64::MAX);

    pub(crate) fn new(segment: u64, offset: u32) -> Self {
        Self(segment << 32 | u64::from(offset))
    }

    pub(crate) fn segment(self) -> u64 {
        self.0 >> 32
    }

    pub(crate) fn offset(self) -> u32 {
        self.0 as u32
    }
}

/// What the header of a segment says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) number: u64,
    /// The sequence of the last record before it.
    pub(crate) after: u64,
    /// Where the records of the segment before it end.
    pub(crate) previous_end: u64,
    /// Whether the checksums of its records cover a salt: not in format 2.
    pub(crate) is_salted: bool,
}

impl Header {
    pub(crate) fn encode(self) -> Vec<u8> {
        let mut bytes = if self.is_salted { MAGIC } else { UNSALTED_MAGIC }.to_vec();
        bytes.extend(self.number.to_le_bytes());
        bytes.extend(self.after.to_le_bytes());
        bytes.extend(self.previous_end.to_le_bytes());
        bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
        bytes.resize(SEGMENT_HEADER as usize, 0);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (head, mut rest) = bytes.split_at_checked(32)?;
        let checksum = u32::from_le_bytes(take(&mut rest)?);
        let (magic, mut fields) = head.split_first_chunk::<8>()?;
        let is_salted = magic == MAGIC;
        if !is_salted && magic != UNSALTED_MAGIC {
            return None;
        }
        if crc32c::crc32c(head) != checksum {
            return None;
        }
        Some(Self {
            number: u64::from_le_bytes(take(&mut fields)?),
            after: u64::from_le_bytes(take(&mut fields)?),
            previous_end: u64::from_le_bytes(take(&mut fields)?),
            is_salted,
        })
    }
}

pub(crate) fn segment_path(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("{number:016x}{EXTENSION}"))
}

pub(crate) fn summary_path(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("{number:016x}{SUMMARY_EXTENSION}"))
}

/// The number in the name of a segment or of a summary.
pub(crate) fn number_of(name: &str) -> Option<(u64, bool)> {
    let (number, is_segment) = match name.strip_suffix(EXTENSION) {
        Some(number) => (number, true),
        None => (name.strip_suffix(SUMMARY_EXTENSION)?, false),
    };
    (number.len() == 16)
        .then(|| u64::from_str_radix(number, 16).ok())
        .flatten()
        .map(|n| (n, is_segment))
}

/// A place of a log from which it can be read: a record that appends to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) offset: u32,
    /// The position of the record's first entry.
    pub(crate) position: u64,
    /// What was appended to the log before the record, since the first segment that there is.
    pub(crate) before: LogTotals,
}

/// A segment that holds records. Its file goes with the last reader once it is obsolete.
pub(crate) struct Segment {
    pub(crate) number: u64,
    /// The sequence of the last record before it.
    pub(crate) after: u64,
    pub(crate) path: PathBuf,
    pub(crate) salt: Salt,
    folder: Arc<Folder>,
    /// The size of its file, if another segment may be written over it.
    size: u32,
    /// Where its records end; it moves while the segment is the newest.
    end: AtomicU32,
    items: Mutex<BTreeMap<u32, Vec<Item>>>,
    obsolete: AtomicBool,
}

impl Segment {
    /// The file has this size, or 0 if no other segment may be written over it.
    pub(crate) fn new(folder: &Arc<Folder>, header: &Header, size: u32) -> Self {
        Self {
            number: header.number,
            after: header.after,
            path: segment_path(&folder.path, header.number),
            salt: folder.salt(header),
            folder: Arc::clone(folder),
            size,
            end: AtomicU32::new(SEGMENT_HEADER),
            items: Mutex::default(),
            obsolete: AtomicBool::new(false),
        }
    }

    pub(crate) fn end(&self) -> u32 {
        self.end.load(Ordering::Acquire)
    }

    pub(crate) fn set_end(&self, end: u32) {
        self.end.store(end, Ordering::Release);
    }

    pub(crate) fn items(&self) -> MutexGuard<'_, BTreeMap<u32, Vec<Item>>> {
        self.items.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn open(&self) -> io::Result<Arc<dyn FileHandle>> {
        self.folder.files.open(&self.path)
    }

    /// From now on only its present readers need it.
    pub(crate) fn make_obsolete(&self) {
        self.obsolete.store(true, Ordering::Release);
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        if self.obsolete.load(Ordering::Acquire) {
            self.folder.give_back(self.number, self.size);
        }
    }
}

/// Something that the index of a log learns from a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// A place to read from; its counts are those within the segment.
    Item(Item),
    Trim(u64),
    Cut(u32, u64),
}

/// What a segment holds, as far as recovery must know. Grows with the segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) end: u32,
    pub(crate) last_sequence: u64,
    pub(crate) marks: Vec<(u32, Mark)>,
    pub(crate) totals: BTreeMap<u32, LogTotals>,
    /// Of each log: where the last item lies, unless the next entry must have one of its own.
    last_items: BTreeMap<u32, u32>,
}

impl Summary {
    /// A record at this offset does this. Returns what the index must learn.
    pub(crate) fn note(&mut self, offset: u32, operation: &Operation<'_>) -> Option<(u32, Mark)> {
        let (log, mark) = match *operation {
            Operation::Append { log, position, entry } => {
                let totals = self.totals.entry(log).or_default();
                let before = *totals;
                totals.entries += 1;
                totals.bytes += entry.len() as u64;
                if self.last_items.get(&log).is_some_and(|&last| offset - last < GRANULE) {
                    return None;
                }
                self.last_items.insert(log, offset);
                (log, Mark::Item(Item { offset, position, before }))
            }
            Operation::Trim { log, below } => (log, Mark::Trim(below)),
            Operation::Cut { log, from } => {
                self.last_items.remove(&log);
                (log, Mark::Cut(offset, from))
            }
            Operation::Put { .. } | Operation::Remove { .. } => return None,
        };
        self.marks.push((log, mark));
        Some((log, mark))
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        let numbers = [u64::from(self.end), self.last_sequence, self.totals.len() as u64];
        numbers.into_iter().for_each(|number| put_number(&mut body, number));
        for (&log, totals) in &self.totals {
            for number in [u64::from(log), totals.entries, totals.bytes] {
                put_number(&mut body, number);
            }
        }
        put_number(&mut body, self.marks.len() as u64);
        for &(log, mark) in &self.marks {
            let fields = match mark {
                Mark::Item(Item { offset, position, before }) => {
                    [0, u64::from(offset), position, before.entries, before.bytes]
                }
                Mark::Trim(below) => [1, 0, below, 0, 0],
                Mark::Cut(offset, from) => [2, u64::from(offset), from, 0, 0],
            };
            put_number(&mut body, u64::from(log));
            fields.into_iter().for_each(|number| put_number(&mut body, number));
        }
        let mut bytes = SUMMARY_MAGIC.to_vec();
        bytes.extend(crc32c::crc32c(&body).to_le_bytes());
        bytes.extend(body);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let rest = bytes.strip_prefix(SUMMARY_MAGIC)?;
        let (checksum, mut body) = rest.split_first_chunk::<4>()?;
        if crc32c::crc32c(body) != u32::from_le_bytes(*checksum) {
            return None;
        }
        let body = &mut body;
        let mut summary = Self {
            end: u32::try_from(take_number(body)?).ok()?,
            last_sequence: take_number(body)?,
            ..Self::default()
        };
        for _ in 0..take_number(body)? {
            let log = u32::try_from(take_number(body)?).ok()?;
            let totals = LogTotals { entries: take_number(body)?, bytes: take_number(body)? };
            summary.totals.insert(log, totals);
        }
        for _ in 0..take_number(body)? {
            let log = u32::try_from(take_number(body)?).ok()?;
            let (kind, offset) = (take_number(body)?, u32::try_from(take_number(body)?).ok()?);
            let position = take_number(body)?;
            let before = LogTotals { entries: take_number(body)?, bytes: take_number(body)? };
            let mark = match kind {
                0 => Mark::Item(Item { offset, position, before }),
                1 => Mark::Trim(position),
                2 => Mark::Cut(offset, position),
                _ => return None,
            };
            summary.marks.push((log, mark));
        }
        body.is_empty().then_some(summary)
    }

    /// Reads the summary of a sealed segment, if there is one that can be believed.
    pub(crate) fn read(files: &dyn Files, directory: &Path, number: u64) -> Option<Self> {
        let file = files.open(&summary_path(directory, number)).ok()?;
        Self::decode(&read_all(&*file).ok()?)
    }

    /// Keeps the summary beside its sealed segment. It only saves time, so it need not be synced.
    pub(crate) fn write(&self, files: &dyn Files, directory: &Path, number: u64) -> io::Result<()> {
        let bytes = self.encode();
        files.create(&summary_path(directory, number), bytes.len() as u64)?.write_at(&bytes, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_as_it_was_written_and_damage_is_noticed() {
        for is_salted in [true, false] {
            let header = Header { number: 7, after: 99, previous_end: 1 << 20, is_salted };
            let bytes = header.encode();
            assert_eq!(bytes.len(), SEGMENT_HEADER as usize);
            assert_eq!(Header::decode(&bytes), Some(header));
            for bit in 0..36 * 8 {
                let mut damaged = bytes.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(Header::decode(&damaged), None, "bit {bit}");
            }
        }
        assert_eq!(Header::decode(&[0; 40]), None);
    }

    #[test]
    fn a_summary_is_read_as_it_was_written() {
        let mut summary = Summary { end: 70_000, last_sequence: 12, ..Summary::default() };
        let append = |position| Operation::Append { log: 3, position, entry: b"12345" };
        assert!(summary.note(40, &append(1)).is_some());
        assert!(summary.note(80, &append(2)).is_none(), "close to the item before");
        assert!(summary.note(40 + GRANULE, &append(3)).is_some());
        summary.note(50_000, &Operation::Cut { log: 3, from: 2 });
        assert!(summary.note(50_000, &append(2)).is_some(), "the first after a cut has its own");
        summary.note(60_000, &Operation::Trim { log: 3, below: 2 });
        let read = Summary::decode(&summary.encode()).unwrap();
        assert_eq!((read.end, read.last_sequence), (70_000, 12));
        assert_eq!((read.marks.len(), &read.marks), (5, &summary.marks));
        assert_eq!(read.totals[&3], LogTotals { entries: 4, bytes: 20 });
        let mut damaged = summary.encode();
        *damaged.last_mut().unwrap() ^= 1;
        assert_eq!(Summary::decode(&damaged), None);
    }

    #[test]
    fn names_of_segments_are_told_from_others() {
        assert_eq!(number_of("00000000000000ff.seg"), Some((255, true)));
        assert_eq!(number_of("00000000000000ff.idx"), Some((255, false)));
        assert_eq!(number_of("ff.seg"), None);
        assert_eq!(number_of("README"), None);
    }
}
