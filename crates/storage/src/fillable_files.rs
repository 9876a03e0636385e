//! The files of the operating system on a disk that is full when told to be.
//!
//! A test of a whole process has no small disk without the rights of an administrator. Here no file can be made while
//! the disk counts as full; what is there is written to as before, as on a disk that has no block left.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::files::{FileHandle, Files, RealFiles};

/// Files of the operating system. Clones are on the same disk.
#[derive(Clone, Debug, Default)]
pub struct FillableFiles {
    full: Arc<AtomicBool>,
}

impl FillableFiles {
    /// Says whether the disk is full.
    pub fn set_full(&self, full: bool) {
        self.full.store(full, Ordering::Relaxed);
    }

    /// Whether it is.
    pub fn is_full(&self) -> bool {
        self.full.load(Ordering::Relaxed)
    }
}

impl Files for FillableFiles {
    fn create_directory(&self, path: &Path) -> io::Result<()> {
        RealFiles.create_directory(path)
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        RealFiles.list(directory)
    }

    fn create(&self, path: &Path, zeros: u64) -> io::Result<Arc<dyn FileHandle>> {
        match self.is_full() {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => RealFiles.create(path, zeros),
        }
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn FileHandle>> {
        RealFiles.open(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealFiles.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        RealFiles.remove(path)
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        RealFiles.sync_directory(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_file_is_made_while_the_disk_is_full_and_those_that_are_there_are_written_to() {
        let directory = tempfile::tempdir().unwrap();
        let files = FillableFiles::default();
        let file = files.create(&directory.path().join("a"), 8).unwrap();
        files.clone().set_full(true);
        let refused = files.create(&directory.path().join("b"), 8).err().unwrap();
        assert_eq!(refused.kind(), io::ErrorKind::StorageFull);
        file.write_at(b"x", 0).unwrap();
        files.set_full(false);
        assert!(files.create(&directory.path().join("b"), 8).is_ok());
    }
}
