//! The journal: segments of records, appended by one writer at a time.
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
use folder::Folder;
use record::Encoded;
use segment::{Header, Location, SEGMENT_HEADER, Segment, Summary};

/// What the writer, the thread that prepares segments and those that sync have in common.
pub(crate) struct Shared {
    folder: Arc<Folder>,
    state: Mutex<State>,
    /// Told when the next segment is no longer being made.
    made: Condvar,
}

struct State {
    /// The newest segment's file.
    newest: Arc<dyn FileHandle>,
    /// Where the journal ends.
    written: Location,
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

/// A record was not appended.
pub(crate) enum AppendError {
    /// There is no room for another segment. Nothing has changed.
    Full,
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
            written: start,
            synced: start,
            spare: None,
            making: false,
            sealed: Vec::new(),
        };
        let shared = Arc::new(Shared { folder, state: Mutex::new(state), made: Condvar::new() });
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
        let spare = self.shared.begin_making();
        let begun = self.begin_segment(spare, needed);
        self.shared.end_making(None);
        begun.map(Some)
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
                match folder.make(number, folder.next_size(self.size).max(needed)) {
                    Ok(made) => made,
                    // A disk without room for a long segment may have some for a vote.
                    Err(error) if is_full(&error) => {
                        let least = folder.first_size().max(needed);
                        folder.make(number, least).map_err(create_error)?
                    }
                    Err(error) => return Err(AppendError::Failed(error)),
                }
            }
        };
        // Only the newest segment may hold unsynced bytes.
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
        state.written = Location::new(number, SEGMENT_HEADER);
        drop(state);
        (self.file, self.size, self.offset) = (file, size, SEGMENT_HEADER);
        self.segment = Arc::new(segment);
        Ok(Arc::clone(&self.segment))
    }

    /// Writes a record for which there is room. Returns where it lies.
    pub(crate) fn append(&mut self, record: &mut Encoded, sequence: u64) -> io::Result<Location> {
        let at = self.end();
        let synced = self.shared.state().synced;
        let synced = if synced.segment() == at.segment() { synced.offset() } else { 0 };
        let length = record.length() as u32;
        let (salt, room) = (self.segment.salt, (self.size - self.offset) as usize);
        self.file.write_at(record.finish(sequence, synced, salt, room), u64::from(self.offset))?;
        self.offset += length;
        self.last_sequence = sequence;
        self.segment.set_end(self.offset);
        self.shared.state().written = self.end();
        Ok(at)
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns once every record appended before the call is on the disk.
    pub(crate) fn sync(&self) -> io::Result<()> {
        let (file, written) = {
            let state = self.state();
            (Arc::clone(&state.newest), state.written)
        };
        file.sync()?;
        let mut state = self.state();
        state.synced = state.synced.max(written);
        Ok(())
    }

    /// Takes the spare segment, once no other thread is making one. The caller ends the making.
    fn begin_making(&self) -> Option<Spare> {
        let mut state = self.state();
        while state.making {
            state = self.made.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.making = true;
        state.spare.take()
    }

    fn end_making(&self, spare: Option<Spare>) {
        let mut state = self.state();
        state.making = false;
        state.spare = spare;
        drop(state);
        self.made.notify_all();
    }

    /// Makes the file of the next segment, unless it is there.
    pub(crate) fn prepare(&self) -> io::Result<()> {
        if self.state().spare.is_some() {
            return Ok(());
        }
        if let Some(spare) = self.begin_making() {
            self.end_making(Some(spare));
            return Ok(());
        }
        let spare = self.make_spare();
        match spare {
            Ok(spare) => {
                self.end_making(Some(spare));
                Ok(())
            }
            Err(error) => {
                self.end_making(None);
                Err(error)
            }
        }
    }

    fn make_spare(&self) -> io::Result<Spare> {
        let (number, newest) = {
            let state = self.state();
            (state.written.segment() + 1, Arc::clone(&state.newest))
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

fn create_error(error: io::Error) -> AppendError {
    if is_full(&error) { AppendError::Full } else { AppendError::Failed(error) }
}

/// Whether the disk, or what this user may use of it, is full.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
