//! Reading the journal when a store is opened.
//!
//! The rules are in `docs/storage-format.md`, "Recovery".

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::files::read_all;
use crate::format::OpenError;
use crate::journal::checksums::Checksums;
use crate::journal::folder::Folder;
use crate::journal::log::{Last, LogState};
use crate::journal::record::{ALIGNMENT, Found, Operation, RECORD_HEADER, Record, Salt};
use crate::journal::segment::{
    Header, Item, Location, Mark, SEGMENT_HEADER, Segment, Summary, number_of, segment_path,
    summary_path,
};
use crate::store::LogTotals;

/// Sequences rise by small steps. Bytes that only look like a record give themselves away by this.
const MAX_SEQUENCE_STEP: u64 = 1 << 32;

/// The number of the first segment of a store.
const FIRST_SEGMENT: u64 = 1;

/// The end of the journal that a crash left unfinished, and that was cut off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TornTail {
    /// The segment.
    pub journal: PathBuf,
    /// Where the whole records end.
    pub offset: u64,
}

/// What the journal holds.
pub(crate) struct Recovered {
    pub(crate) segments: Vec<Arc<Segment>>,
    pub(crate) logs: BTreeMap<u32, LogState>,
    /// The header of the segment to go on in.
    pub(crate) next: Header,
    pub(crate) torn: Option<TornTail>,
}

/// What is done with the operations on trees.
pub(crate) type Replay<'r> = dyn FnMut(u64, &Operation<'_>) + 'r;

pub(crate) struct Recovery<'r> {
    pub(crate) folder: &'r Arc<Folder>,
    /// Whether a program of format 2 wrote all that is there.
    pub(crate) is_of_format_2: bool,
    /// Segments below this are left over and go.
    pub(crate) first_segment: u64,
    /// Operations on trees matter from this segment on.
    pub(crate) replay_from: u64,
    /// What is known of the logs: their names, and where they were trimmed.
    pub(crate) logs: BTreeMap<u32, LogState>,
    pub(crate) replay: &'r mut Replay<'r>,
}

impl Recovery<'_> {
    pub(crate) fn run(mut self) -> Result<Recovered, OpenError> {
        let (headers, unused) = self.headers()?;
        self.check_reached(&headers, &unused)?;
        let mut segments: Vec<Arc<Segment>> = Vec::new();
        let (mut sequence, mut torn) = (headers.first().map_or(0, |first| first.after), None);
        for (place, header) in headers.iter().enumerate() {
            let next = headers.get(place + 1);
            if header.after != sequence {
                return Err(self.damaged(header.number, 0));
            }
            // It is cut behind its records, so its file is of no use for another segment.
            let segment = Segment::new(self.folder, header, 0);
            let summary = match next {
                Some(next) => self.sealed(&segment, next)?,
                None => {
                    let (summary, tail) = self.newest(&segment)?;
                    torn = tail;
                    summary
                }
            };
            segment.set_end(summary.end);
            sequence = summary.last_sequence;
            self.learn(&segment, &summary);
            segments.push(Arc::new(segment));
        }
        for number in unused {
            self.remove_unused(number, sequence)?;
        }
        let next = Header {
            number: headers.last().map_or(FIRST_SEGMENT, |last| last.number + 1),
            after: sequence,
            previous_end: segments.last().map_or(0, |last| u64::from(last.end())),
            is_salted: true,
        };
        Ok(Recovered { segments, logs: self.logs, next, torn })
    }

    /// The headers of the segments that hold records, and the files that were prepared and not used.
    fn headers(&self) -> Result<(Vec<Header>, Vec<u64>), OpenError> {
        let mut numbers = Vec::new();
        let mut summaries = Vec::new();
        let Folder { files, path: directory, .. } = &**self.folder;
        let names = files.list(directory).map_err(|source| self.io(source))?;
        for (number, is_segment) in names.iter().filter_map(|name| number_of(name)) {
            if is_segment && number < self.first_segment {
                let path = segment_path(directory, number);
                files.remove(&path).map_err(|source| self.io(source))?;
            } else if is_segment {
                numbers.push(number);
            } else {
                summaries.push(number);
            }
        }
        numbers.sort_unstable();
        let first = self.first_segment.max(FIRST_SEGMENT);
        if numbers.first().is_some_and(|&number| number != first) {
            return Err(OpenError::MissingSegment { segment: segment_path(directory, first) });
        }
        let (mut headers, mut unused): (Vec<Header>, _) = (Vec::new(), Vec::new());
        for (place, &number) in numbers.iter().enumerate() {
            if place > 0 && numbers[place - 1] + 1 != number {
                let segment = segment_path(directory, numbers[place - 1] + 1);
                return Err(OpenError::MissingSegment { segment });
            }
            match self.header(number)? {
                Some(header) if header.number == number && headers.len() == place => {
                    headers.push(header);
                }
                // What it was before it was to be written over.
                Some(header) if header.number < number => unused.push(number),
                Some(_) => return Err(self.damaged(number, 0)),
                None => unused.push(number),
            }
        }
        for number in summaries.into_iter().filter(|number| !numbers.contains(number)) {
            let path = summary_path(directory, number);
            files.remove(&path).map_err(|source| self.io(source))?;
        }
        Ok((headers, unused))
    }

    /// The manifest names only segments whose headers are on the disk.
    fn check_reached(&self, headers: &[Header], unused: &[u64]) -> Result<(), OpenError> {
        let reached = self.first_segment.max(self.replay_from);
        match headers.last().map_or(0, |newest| newest.number) {
            newest if newest >= reached => Ok(()),
            _ if unused.contains(&reached) => Err(self.damaged(reached, 0)),
            _ => {
                Err(OpenError::MissingSegment { segment: segment_path(&self.folder.path, reached) })
            }
        }
    }

    fn header(&self, number: u64) -> Result<Option<Header>, OpenError> {
        let path = segment_path(&self.folder.path, number);
        let file = self.folder.files.open(&path).map_err(|source| self.io(source))?;
        let mut bytes = [0; SEGMENT_HEADER as usize];
        match file.read_at(&mut bytes, 0) {
            Ok(()) => Ok(Header::decode(&bytes)),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(source) => Err(OpenError::Io { path, source }),
        }
    }

    /// Removes a segment without a header of its own, unless something in it was promised. The journal before it ends with
    /// this sequence.
    fn remove_unused(&self, number: u64, sequence: u64) -> Result<(), OpenError> {
        let path = segment_path(&self.folder.path, number);
        let bytes = self.read(&path)?;
        let salt = if self.is_of_format_2 { Salt::NONE } else { self.folder.salt_of(number) };
        if behind(&bytes, 0, sequence, salt) == Behind::Promised {
            return Err(self.damaged(number, 0));
        }
        self.folder.files.remove(&path).map_err(|source| OpenError::Io { path, source })
    }

    /// A segment that is followed by another must be whole.
    fn sealed(&mut self, segment: &Segment, next: &Header) -> Result<Summary, OpenError> {
        if segment.number < self.replay_from
            && let Some(summary) =
                Summary::read(&*self.folder.files, &self.folder.path, segment.number)
            && u64::from(summary.end) == next.previous_end
            && summary.last_sequence == next.after
        {
            return Ok(summary);
        }
        let bytes = self.read(&segment.path)?;
        let summary = self.scan(segment, &bytes)?;
        if u64::from(summary.end) != next.previous_end {
            return Err(self.damaged(segment.number, summary.end));
        }
        // It only saves time, so that an error here is none.
        let _ = summary.write(&*self.folder.files, &self.folder.path, segment.number);
        Ok(summary)
    }

    /// The newest segment may end in what a crash left unfinished. It is cut off.
    fn newest(&mut self, segment: &Segment) -> Result<(Summary, Option<TornTail>), OpenError> {
        let bytes = self.read(&segment.path)?;
        let summary = self.scan(segment, &bytes)?;
        let end = summary.end as usize;
        let behind = behind(&bytes, end, summary.last_sequence, segment.salt);
        if behind == Behind::Promised {
            return Err(self.damaged(segment.number, summary.end));
        }
        // Without a torn record the mark of the end stands here, whatever the file held before.
        let is_marked = matches!(Record::read(&bytes[end..], segment.salt), Found::End);
        let is_torn = !is_marked || behind == Behind::Unpromised;
        let torn = is_torn.then(|| TornTail { journal: segment.path.clone(), offset: end as u64 });
        let cut = || {
            let file = segment.open()?;
            file.set_length(end as u64)?;
            file.sync()
        };
        cut().map_err(|source| OpenError::Io { path: segment.path.clone(), source })?;
        let _ = summary.write(&*self.folder.files, &self.folder.path, segment.number);
        Ok((summary, torn))
    }

    /// Reads records up to the first that is not whole.
    fn scan(&mut self, segment: &Segment, bytes: &[u8]) -> Result<Summary, OpenError> {
        let mut summary = Summary::default();
        summary.last_sequence = segment.after;
        let mut offset = SEGMENT_HEADER as usize;
        while let Some(rest) = bytes.get(offset..) {
            let Found::Whole(record) = Record::read(rest, segment.salt) else { break };
            // A file that is written over holds older records.
            if record.sequence <= summary.last_sequence {
                break;
            }
            for operation in record.operations() {
                let operation =
                    operation.ok_or_else(|| self.damaged(segment.number, offset as u32))?;
                summary.note(offset as u32, &operation);
                if segment.number >= self.replay_from {
                    (self.replay)(record.sequence, &operation);
                }
            }
            summary.last_sequence = record.sequence;
            offset += record.length;
        }
        // The last record may lack the zeros that pad it, if the file was cut behind it.
        summary.end = offset.min(bytes.len().max(SEGMENT_HEADER as usize)) as u32;
        Ok(summary)
    }

    /// Tells the logs what a segment holds of them.
    fn learn(&mut self, segment: &Segment, summary: &Summary) {
        for &(log, mark) in &summary.marks {
            let Some(state) = self.logs.get_mut(&log) else { continue };
            match mark {
                Mark::Item(item) => {
                    let before = LogTotals {
                        entries: state.appended.entries + item.before.entries,
                        bytes: state.appended.bytes + item.before.bytes,
                    };
                    state.item(item.position);
                    segment.items().entry(log).or_default().push(Item { before, ..item });
                }
                Mark::Trim(below) => state.trim(below),
                Mark::Cut(offset, from) => state.cut(Location::new(segment.number, offset), from),
            }
        }
        for (log, totals) in &summary.totals {
            let Some(state) = self.logs.get_mut(log) else { continue };
            state.appended.entries += totals.entries;
            state.appended.bytes += totals.bytes;
            state.last = Last::Unknown;
        }
    }

    fn read(&self, path: &Path) -> Result<Vec<u8>, OpenError> {
        let read = || read_all(&*self.folder.files.open(path)?);
        read().map_err(|source| OpenError::Io { path: path.to_owned(), source })
    }

    fn damaged(&self, number: u64, offset: u32) -> OpenError {
        let (journal, offset) = (segment_path(&self.folder.path, number), u64::from(offset));
        OpenError::DamagedJournal { journal, offset }
    }

    fn io(&self, source: io::Error) -> OpenError {
        OpenError::Io { path: self.folder.path.clone(), source }
    }
}

/// Whole records behind a place at which the journal seems to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behind {
    Nothing,
    /// They arrived before what they follow, which was not synced.
    Unpromised,
    /// One says that the journal was synced beyond the place.
    Promised,
}

/// Looks for records of this segment behind a place. The last record before it has this sequence.
fn behind(bytes: &[u8], end: usize, sequence: u64, salt: Salt) -> Behind {
    let plausible = |record: &[u8]| {
        let (Some(length), Some(found)) = (record.first_chunk::<4>(), record.get(8..16)) else {
            return false;
        };
        let length = u32::from_le_bytes(*length) as usize;
        let found = u64::from_le_bytes(found.try_into().unwrap_or_default());
        let rises = found > sequence && found - sequence < MAX_SEQUENCE_STEP;
        length > 0 && RECORD_HEADER + length <= record.len() && rises
    };
    let first = (end + 1).next_multiple_of(ALIGNMENT).max(SEGMENT_HEADER as usize);
    let mut behind = Behind::Nothing;
    let mut checksums = None;
    for place in (first..bytes.len()).step_by(ALIGNMENT) {
        let record = &bytes[place..];
        if !plausible(record) {
            continue;
        }
        let checksums = checksums.get_or_insert_with(|| Checksums::new(bytes));
        let body = place + RECORD_HEADER;
        match Record::read_with(record, salt, |found| checksums.of(body..body + found.len())) {
            Found::Whole(found) if found.synced as usize > end => return Behind::Promised,
            Found::Whole(_) => behind = Behind::Unpromised,
            Found::End | Found::Torn => {}
        }
    }
    behind
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that is written over holds what clients stored before. A document of one number again and again, which is a
    /// length and a sequence at each place, must not keep a member from starting.
    #[test]
    fn bytes_that_look_like_long_records_everywhere_are_passed_over_at_once() {
        const LENGTH: u64 = 16 << 20;
        let bytes = LENGTH.to_le_bytes().repeat(2 * LENGTH as usize / ALIGNMENT);
        let found = behind(&bytes, SEGMENT_HEADER as usize, 1, Salt::of(7, 1));
        assert_eq!(found, Behind::Nothing);
    }
}
