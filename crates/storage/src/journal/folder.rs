//! The directory of the journal, and the file in it that the next segment may be written over.
//!
//! A file of the right size that holds zeros, or records that nothing needs any more, takes a record without a change of
//! metadata. Filling a new one costs as much as writing the records, so the last file that became free is kept.
//! Why old records in it are never taken for new ones is in `docs/storage-format.md`, "Reused segments".

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::files::{FileHandle, Files};
use crate::journal::record::Salt;
use crate::journal::segment::{Header, segment_path, summary_path};

/// The size of the first segment after a start.
const FIRST_SIZE: u32 = 1 << 20;

/// The directory of the journal.
pub(crate) struct Folder {
    pub(crate) files: Arc<dyn Files>,
    pub(crate) path: PathBuf,
    /// What the salts of its segments are made from.
    secret: u64,
    /// The size that segments grow to.
    max_size: u32,
    free: Mutex<Free>,
}

#[derive(Default)]
struct Free {
    /// The segment whose file is kept. Its number is below that of the first segment in the manifest: if it is never
    /// used, the next start removes it.
    segment: Option<(u64, u32)>,
    /// The least size that is of use.
    wanted: u32,
    /// Whether the disk has little room: then no file is kept, none is made ahead, and none is larger than it must be.
    is_short: bool,
}

impl Folder {
    pub(crate) fn new(files: Arc<dyn Files>, path: &Path, secret: u64, max_size: u32) -> Self {
        let max_size = max_size.max(1);
        let free = Mutex::new(Free { segment: None, wanted: max_size, is_short: false });
        Self { files, path: path.to_owned(), secret, max_size, free }
    }

    pub(crate) fn salt(&self, header: &Header) -> Salt {
        if header.is_salted { self.salt_of(header.number) } else { Salt::NONE }
    }

    /// The salt of a segment that this program writes.
    pub(crate) fn salt_of(&self, number: u64) -> Salt {
        Salt::of(self.secret, number)
    }

    pub(crate) fn first_size(&self) -> u32 {
        FIRST_SIZE.min(self.max_size)
    }

    /// The size of the segment after one of this size.
    pub(crate) fn next_size(&self, size: u32) -> u32 {
        size.saturating_mul(2).clamp(self.first_size(), self.max_size)
    }

    /// A segment is not needed any more. Its records are on the disk, and nothing reads them.
    pub(crate) fn give_back(&self, number: u64, size: u32) {
        // What cannot be removed now is removed by the next start.
        let _ = self.files.remove(&summary_path(&self.path, number));
        let mut free = self.free();
        let is_of_use = free.segment.is_none() && !free.is_short;
        if is_of_use && (free.wanted..=self.max_size).contains(&size) {
            free.segment = Some((number, size));
            return;
        }
        drop(free);
        self.remove(number);
    }

    /// Makes the file of a segment that has this size or more, under a name that survives a crash. Returns its size, too.
    pub(crate) fn make(&self, number: u64, size: u32) -> io::Result<(Arc<dyn FileHandle>, u32)> {
        let path = segment_path(&self.path, number);
        let made = match self.take(size) {
            Some((old, size)) => {
                self.files.rename(&segment_path(&self.path, old), &path)?;
                (self.files.open(&path)?, size)
            }
            None => (self.files.create(&path, u64::from(size))?, size),
        };
        self.files.sync_directory(&self.path)?;
        Ok(made)
    }

    /// What its files take on disk, whatever they are for. One that is removed meanwhile does not count.
    pub(crate) fn disk_bytes(&self) -> u64 {
        let length = |name: String| self.files.open(&self.path.join(name))?.length();
        let names = self.files.list(&self.path).unwrap_or_default();
        names.into_iter().filter_map(|name| length(name).ok()).sum()
    }

    /// Removes the file of a segment that nothing needs. What cannot be removed now is removed by the next start.
    pub(crate) fn remove(&self, number: u64) {
        let _ = self.files.remove(&segment_path(&self.path, number));
    }

    pub(crate) fn is_short(&self) -> bool {
        self.free().is_short
    }

    /// Says whether the disk has little room. Then no file is kept.
    pub(crate) fn set_short(&self, is_short: bool) {
        let mut free = self.free();
        free.is_short = is_short;
        let kept = if is_short { free.segment.take() } else { None };
        drop(free);
        if let Some((number, _)) = kept {
            self.remove(number);
        }
    }

    /// Takes the file that is kept if it is large enough.
    fn take(&self, size: u32) -> Option<(u64, u32)> {
        let mut free = self.free();
        free.wanted = self.next_size(size);
        let kept = free.segment.take()?;
        if kept.1 >= size {
            return Some(kept);
        }
        drop(free);
        self.remove(kept.0);
        None
    }

    fn free(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
