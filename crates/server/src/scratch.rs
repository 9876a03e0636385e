//! A directory for what a sort cannot hold in memory.

use std::fs::{File, create_dir_all, remove_file};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use quorate_node::{Scratch, ScratchFile};

/// Files without a name: each loses its own as soon as it is open, so that nothing is left behind
/// however the process ends.
#[derive(Debug)]
pub(crate) struct ScratchDirectory {
    directory: PathBuf,
    next: AtomicU64,
}

impl ScratchDirectory {
    /// The directory is made when it is needed.
    pub(crate) fn new(directory: PathBuf) -> Self {
        Self { directory, next: AtomicU64::new(0) }
    }
}

impl Scratch for ScratchDirectory {
    fn create(&self) -> io::Result<Box<dyn ScratchFile>> {
        create_dir_all(&self.directory)?;
        let path = self.directory.join(self.next.fetch_add(1, Ordering::Relaxed).to_string());
        // A file that a crash has left under this name is of no use.
        let file =
            File::options().read(true).write(true).create(true).truncate(true).open(&path)?;
        remove_file(&path)?;
        Ok(Box::new(file))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek, SeekFrom, Write};

    use super::*;

    #[test]
    fn files_are_gone_from_the_directory_and_still_of_use() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("scratch");
        let scratch = ScratchDirectory::new(path.clone());
        let mut files: Vec<_> = (0..2_u8).map(|_| scratch.create().unwrap()).collect();
        for (number, file) in files.iter_mut().enumerate() {
            file.write_all(&[number as u8]).unwrap();
        }
        assert_eq!(std::fs::read_dir(path).unwrap().count(), 0);
        for (number, file) in files.iter_mut().enumerate() {
            file.seek(SeekFrom::Start(0)).unwrap();
            let mut read = Vec::new();
            file.read_to_end(&mut read).unwrap();
            assert_eq!(read, [number as u8]);
        }
    }
}
