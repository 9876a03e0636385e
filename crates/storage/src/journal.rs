//! The journal: segments of records, appended by one writer at a time.
//!
//! Records gather in memory until a sync, a reader or a client that does not wait for a sync needs them in the file: one write
//! to the file for a group of commits.
//!
//! Owns where a record goes and when a segment ends. Which sequence a record has and what it does to
//! trees and logs is the store's. The layout is in `docs/storage-format.md`.

mod checksums;
pub(crate) mod folder;
pub(crate) mod log;
pub(crate) mod record;
pub(crate) mod recovery;
pub(crate) mod segment;

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::files::FileHandle;
use crate::store::{CommitError, KeyspaceError};
use folder::Folder;
use record::Encoded;
use segment::{Header, Location, SEGMENT_HEADER, Segment, Summary};

/// Bytes of records that gather in memory before they are written to the file in any case.
const MAX_GATHERED: usize = 256 * 1024;

/// A record of this length is written to the file at once, without a copy.
const LONG_RECORD: usize = 64 * 1024;

/// What the writer, the thread that prepares segments and those that sync have in common.
pub(crate) struct Shared {
    folder: Arc<Folder>,
    /// Held by the thread that writes to the newest segment's file, with a buffer for it. Taken before `state`.
    writing: Mutex<Vec<u8>>,
    state: Mutex<State>,
    /// Told when the next segment is no longer being made.
    made: Condvar,
}

struct State {
    /// The newest segment's file.
    newest: Arc<dyn FileHandle>,
    /// Where the journal ends.
    appended: Location,
    /// Up to where the file has it.
    written: Location,
    /// Up to where a thread has taken it to write it to the file.
    taken: Location,
    /// What comes behind that, and the mark of the end.
    gathered: Vec<u8>,
    /// A write to the file has failed: what it holds is unknown.
    is_broken: bool,
    /// Up to where it is known to be on the disk.
    synced: Location,
    /// The file of the segment after the newest.
    spare: Option<Spare>,
    /// Whether a thread is making the next segment; another must not touch its file.
    making: bool,
    /// Segments that were sealed and have no summary beside them yet.
    sealed: Vec<(u64, Summary)>,
}

struct Spare {
    number: u64,
    file: Arc<dyn FileHandle>,
    size: u32,
}

/// A thread is making the next segment, or uses the file of it, until this is dropped.
struct Making<'s> {
    shared: &'s Shared,
    /// The spare segment, which is one again at the end.
    spare: Option<Spare>,
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.making = false;
        state.spare = self.spare.take();
        drop(state);
        self.shared.made.notify_all();
    }
}

/// A record was not appended.
pub(crate) enum AppendError {
    /// The file of another segment could not be made. Nothing has changed.
    Short(Shortage),
    /// What the file holds is unknown.
    Failed(io::Error),
}

/// Appends records. There is one, under the store's commit lock.
pub(crate) struct Writer {
    shared: Arc<Shared>,
    segment: Arc<Segment>,
    file: Arc<dyn FileHandle>,
    offset: u32,
    size: u32,
    last_sequence: u64,
    pub(crate) summary: Summary,
}

impl Writer {
    /// Begins a new segment behind those that there are.
    pub(crate) fn begin(folder: Arc<Folder>, header: Header) -> io::Result<Self> {
        let (file, size) = folder.make(header.number, folder.first_size())?;
        file.write_at(&header.encode(), 0)?;
        file.sync()?;
        let segment = Segment::new(&folder, &header, size);
        let start = Location::new(header.number, SEGMENT_HEADER);
        let state = State {
            newest: Arc::clone(&file),
            appended: start,
            written: start,
            taken: start,
            gathered: Vec::new(),
            is_broken: false,
            synced: start,
            spare: None,
            making: false,
            sealed: Vec::new(),
        };
        let shared = Arc::new(Shared {
            folder,
            writing: Mutex::default(),
            state: Mutex::new(state),
            made: Condvar::new(),
        });
        Ok(Self {
            shared,
            segment: Arc::new(segment),
            file,
            offset: SEGMENT_HEADER,
            size,
            last_sequence: header.after,
            summary: Summary::default(),
        })
    }

    pub(crate) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }

    pub(crate) fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    /// Where the next record goes, if the segment has room for it.
    pub(crate) fn end(&self) -> Location {
        Location::new(self.segment.number, self.offset)
    }

    /// Makes room for a record. Returns the new segment if one was begun.
    pub(crate) fn make_room(
        &mut self,
        record: &Encoded,
    ) -> Result<Option<Arc<Segment>>, AppendError> {
        if record.length() <= (self.size - self.offset) as usize {
            return Ok(None);
        }
        let needed = u32::try_from(record.length() + SEGMENT_HEADER as usize)
            .map_err(|_| AppendError::Failed(io::Error::other("a record is too long")))?;
        let shared = Arc::clone(&self.shared);
        let mut making = shared.begin_making();
        self.begin_segment(making.spare.take(), needed).map(Some)
    }

    fn begin_segment(
        &mut self,
        spare: Option<Spare>,
        needed: u32,
    ) -> Result<Arc<Segment>, AppendError> {
        let number = self.segment.number + 1;
        let (file, size) = match spare {
            Some(spare) if spare.number == number && spare.size >= needed => {
                (spare.file, spare.size)
            }
            _ => {
                let folder = &self.shared.folder;
                let least = folder.first_size().max(needed);
                let size = match folder.is_short() {
                    true => least,
                    false => folder.next_size(self.size).max(needed),
                };
                match folder.make(number, size) {
                    Ok(made) => made,
                    // A disk without room for a long segment may have some for a vote.
                    Err(error) if matches!(Shortage::of(&error), Some(Shortage::Room)) => {
                        folder.make(number, least).map_err(create_error)?
                    }
                    Err(error) => return Err(create_error(error)),
                }
            }
        };
        // Only the newest segment may hold unsynced bytes.
        self.shared.write_out().map_err(AppendError::Failed)?;
        self.file.sync().map_err(AppendError::Failed)?;
        let (after, previous_end) = (self.last_sequence, u64::from(self.offset));
        let header = Header { number, after, previous_end, is_salted: true };
        file.write_at(&header.encode(), 0).map_err(AppendError::Failed)?;
        let mut summary = std::mem::take(&mut self.summary);
        summary.end = self.offset;
        summary.last_sequence = self.last_sequence;
        let segment = Segment::new(&self.shared.folder, &header, size);
        let mut state = self.shared.state();
        state.sealed.push((self.segment.number, summary));
        state.newest = Arc::clone(&file);
        state.appended = Location::new(number, SEGMENT_HEADER);
        (state.written, state.taken) = (state.appended, state.appended);
        drop(state);
        (self.file, self.size, self.offset) = (file, size, SEGMENT_HEADER);
        self.segment = Arc::new(segment);
        Ok(Arc::clone(&self.segment))
    }

    /// Appends a record for which there is room. Returns where it lies. It is in memory, until it is
    /// [written out](Shared::write_out).
    pub(crate) fn append(&mut self, record: &mut Encoded, sequence: u64) -> io::Result<Location> {
        let at = self.end();
        let synced = self.shared.state().synced;
        let synced = if synced.segment() == at.segment() { synced.offset() } else { 0 };
        let (salt, room) = (self.segment.salt, (self.size - self.offset) as usize);
        let length = record.length();
        let bytes = record.finish(sequence, synced, salt, room);
        self.offset += length as u32;
        self.last_sequence = sequence;
        self.shared.append(bytes, length, self.end())?;
        self.segment.set_end(self.offset);
        Ok(at)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // What no client was promised may be lost.
        let _ = self.shared.write_out();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends a record of this length, with the mark of the end behind it. Called by the writer alone.
    fn append(&self, bytes: &[u8], length: usize, end: Location) -> io::Result<()> {
        if length >= LONG_RECORD {
            return self.write_through(bytes, length, end);
        }
        let mut state = self.state();
        if state.is_broken {
            return Err(broken());
        }
        let gathered = (state.appended.offset() - state.taken.offset()) as usize;
        // The record takes the place of the mark.
        state.gathered.truncate(gathered);
        state.gathered.extend_from_slice(bytes);
        state.appended = end;
        drop(state);
        if gathered + length >= MAX_GATHERED {
            self.write_out()?;
        }
        Ok(())
    }

    fn write_through(&self, bytes: &[u8], length: usize, end: Location) -> io::Result<()> {
        let (file, written) = self.write_out()?;
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        debug_assert_eq!(written.offset() as usize + length, end.offset() as usize);
        let result = file.write_at(bytes, u64::from(written.offset()));
        let mut state = self.state();
        state.is_broken |= result.is_err();
        (state.appended, state.written, state.taken) = (end, end, end);
        result
    }

    /// Writes all records that were appended before the call to the file. Returns the file, and up to where it has them.
    pub(crate) fn write_out(&self) -> io::Result<(Arc<dyn FileHandle>, Location)> {
        let mut buffer = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let (file, from, end) = {
            let mut state = self.state();
            if state.is_broken {
                return Err(broken());
            }
            std::mem::swap(&mut state.gathered, &mut *buffer);
            state.taken = state.appended;
            (Arc::clone(&state.newest), state.written, state.appended)
        };
        if from == end {
            return Ok((file, end));
        }
        let result = file.write_at(&buffer, u64::from(from.offset()));
        buffer.clear();
        let mut state = self.state();
        match result {
            // The writer appends meanwhile, and begins no segment before this is done.
            Ok(()) => state.written = end,
            Err(error) => {
                state.is_broken = true;
                return Err(error);
            }
        }
        Ok((file, end))
    }

    /// Sees to it that the file has all records before a place.
    pub(crate) fn write_out_through(&self, end: Location) -> io::Result<()> {
        if self.state().written >= end {
            return Ok(());
        }
        self.write_out().map(drop)
    }

    /// Returns once every record appended before the call is on the disk.
    pub(crate) fn sync(&self) -> io::Result<()> {
        let (file, written) = self.write_out()?;
        file.sync()?;
        let mut state = self.state();
        state.synced = state.synced.max(written);
        Ok(())
    }

    /// Takes the spare segment, once no other thread is making one.
    fn begin_making(&self) -> Making<'_> {
        let mut state = self.state();
        while state.making {
            state = self.made.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.making = true;
        Making { shared: self, spare: state.spare.take() }
    }

    /// Says whether the disk has little room. Then the files that are there for later segments go.
    pub(crate) fn set_short(&self, is_short: bool) {
        self.folder.set_short(is_short);
        if is_short {
            let mut making = self.begin_making();
            if let Some(spare) = making.spare.take() {
                self.folder.remove(spare.number);
            }
        }
    }

    /// Makes the file of the next segment, unless it is there.
    pub(crate) fn prepare(&self) -> io::Result<()> {
        if self.state().spare.is_some() || self.folder.is_short() {
            return Ok(());
        }
        self.make_ahead(self.begin_making())
    }

    fn make_ahead(&self, mut making: Making<'_>) -> io::Result<()> {
        // The disk may have become short since. If it does so from here on, `set_short` waits for the file and removes it.
        if making.spare.is_none() && !self.folder.is_short() {
            making.spare = Some(self.make_spare()?);
        }
        Ok(())
    }

    fn make_spare(&self) -> io::Result<Spare> {
        let (number, newest) = {
            let state = self.state();
            (state.appended.segment() + 1, Arc::clone(&state.newest))
        };
        let newest = u32::try_from(newest.length()?).unwrap_or(u32::MAX);
        let (file, size) = self.folder.make(number, self.folder.next_size(newest))?;
        Ok(Spare { number, file, size })
    }

    pub(crate) fn disk_bytes(&self) -> u64 {
        self.folder.disk_bytes()
    }

    /// Puts summaries beside the segments that were sealed. They only save time, so an error is ignored.
    pub(crate) fn write_summaries(&self) {
        let sealed = std::mem::take(&mut self.state().sealed);
        for (number, summary) in sealed {
            let _ = summary.write(&*self.folder.files, &self.folder.path, number);
        }
    }
}

fn broken() -> io::Error {
    io::Error::other("an earlier write to the journal has failed")
}

/// What it means that the file of a segment could not be made. Nothing has been written to it: the next attempt makes it
/// anew, and a start in between removes it.
fn create_error(error: io::Error) -> AppendError {
    Shortage::of(&error).map_or(AppendError::Failed(error), AppendError::Short)
}

/// What is used up, so that a file could not be made. It was not begun, and may be made later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shortage {
    /// The disk, or what this user may use of it.
    Room,
    /// The file descriptors of the process or the system.
    Descriptors,
}

impl Shortage {
    pub(crate) fn of(error: &io::Error) -> Option<Self> {
        const ENFILE: i32 = 23;
        const EMFILE: i32 = 24;
        match (error.kind(), error.raw_os_error()) {
            (io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded, _) => Some(Self::Room),
            (_, Some(ENFILE | EMFILE)) => Some(Self::Descriptors),
            _ => None,
        }
    }
}

impl From<Shortage> for CommitError {
    fn from(shortage: Shortage) -> Self {
        match shortage {
            Shortage::Room => Self::DiskFull,
            Shortage::Descriptors => Self::TooManyFiles,
        }
    }
}

impl From<Shortage> for KeyspaceError {
    fn from(shortage: Shortage) -> Self {
        match shortage {
            Shortage::Room => Self::DiskFull,
            Shortage::Descriptors => Self::TooManyFiles,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::SimulatedFiles;
    use crate::files::Files;

    /// The flushing thread looks whether the disk is short, and begins to make the file a moment later.
    #[test]
    fn no_segment_is_made_ahead_once_the_disk_is_short() {
        let (files, path) = (Arc::new(SimulatedFiles::new()), Path::new("/journal"));
        files.create_directory(path).unwrap();
        let folder = Folder::new(Arc::clone(&files) as Arc<dyn Files>, path, 7, 1 << 16);
        let header = Header { number: 1, after: 0, previous_end: 0, is_salted: true };
        let shared = Writer::begin(Arc::new(folder), header).unwrap().shared();
        shared.set_short(true);
        shared.make_ahead(shared.begin_making()).unwrap();
        assert!(shared.state().spare.is_none());
        assert_eq!(files.list(path).unwrap().len(), 1);
        shared.set_short(false);
        shared.make_ahead(shared.begin_making()).unwrap();
        assert!(shared.state().spare.is_some());
        assert_eq!(files.list(path).unwrap().len(), 2);
    }
}
