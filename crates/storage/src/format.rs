//! The directory of a store: who may open it, and whether this program can read it.
//!
//! ```text
//!   <data>/LOCK     locked while a process has the store open
//!   <data>/FORMAT   "QUORATE" and one version byte
//!   <data>/…        what `docs/storage-format.md` describes
//! ```

use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::files::{DIRECTORY_MODE, FILE_MODE, Files, RealFiles, replace};

/// The newest layout of keys and values this program reads and writes.
pub const FORMAT_VERSION: u8 = 3;

/// The layout of release 0.1, which is migrated.
pub(crate) const FIRST_FORMAT: u8 = 1;

const MAGIC: &[u8; 7] = b"QUORATE";
const LOCK_FILE: &str = "LOCK";
const FORMAT_FILE: &str = "FORMAT";
const FORMAT_DRAFT: &str = "FORMAT.new";

/// A store could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process has it open.
    #[error("{} is in use by another process; stop it or choose another directory", .directory.display())]
    Locked {
        /// The directory asked for.
        directory: PathBuf,
    },
    /// A newer program wrote it.
    #[error(
        "{} has storage format {found}, and this program reads up to {FORMAT_VERSION}; \
         use the newer program that wrote it", .directory.display()
    )]
    NewerFormat {
        /// The directory asked for.
        directory: PathBuf,
        /// The version byte found.
        found: u8,
    },
    /// There is something else in the directory.
    #[error("{} is not a data directory of this program; choose an empty one", .directory.display())]
    Foreign {
        /// The directory asked for.
        directory: PathBuf,
    },
    /// The file system refused.
    #[error(
        "cannot use {}: {source}; {}",
        .path.display(), remedy_of(source)
    )]
    Io {
        /// The file or directory at fault.
        path: PathBuf,
        /// What the file system said.
        #[source]
        source: io::Error,
    },
    /// A record in the middle of the journal is damaged.
    #[error(
        "{} is damaged at byte {offset}, and whole records follow; restore the files from a copy or \
         resync the member", .journal.display()
    )]
    DamagedJournal {
        /// The journal.
        journal: PathBuf,
        /// Where the first damaged record begins.
        offset: u64,
    },
    /// A file of the journal is not there.
    #[error("{} is missing; restore the files from a copy or resync the member", .segment.display())]
    MissingSegment {
        /// The file.
        segment: PathBuf,
    },
    /// The engine could not recover its files.
    #[error("the files in {} are damaged; restore them from a copy or resync the member", .directory.display())]
    Engine {
        /// The directory asked for.
        directory: PathBuf,
        /// What the engine said.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// A data directory that no other process can open while this value lives.
pub(crate) struct DataDirectory {
    path: PathBuf,
    /// The version byte that was found, or written into an empty directory.
    found: u8,
    /// Closing the file releases the lock, also when the process is killed.
    _lock: File,
}

impl DataDirectory {
    pub(crate) fn open(path: &Path) -> Result<Self, OpenError> {
        RealFiles.create_directory(path).map_err(|source| io_error(path, source))?;
        let lock = lock(path)?;
        let mut directory = Self { path: path.to_owned(), found: FORMAT_VERSION, _lock: lock };
        directory.found = directory.check_or_write_format()?;
        let closed = fs::set_permissions(path, Permissions::from_mode(DIRECTORY_MODE));
        closed.map_err(|source| io_error(path, source))?;
        Ok(directory)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The version of the files in it.
    pub(crate) fn found_format(&self) -> u8 {
        self.found
    }

    fn check_or_write_format(&self) -> Result<u8, OpenError> {
        let path = self.path.join(FORMAT_FILE);
        match fs::read(&path) {
            Ok(bytes) => self.check_format(&bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.refuse_foreign_files()?;
                self.write_format()?;
                Ok(FORMAT_VERSION)
            }
            Err(source) => Err(io_error(&path, source)),
        }
    }

    fn check_format(&self, bytes: &[u8]) -> Result<u8, OpenError> {
        match bytes.split_last() {
            Some((&found, magic)) if magic == MAGIC => {
                if (FIRST_FORMAT..=FORMAT_VERSION).contains(&found) {
                    Ok(found)
                } else {
                    Err(OpenError::NewerFormat { directory: self.path.clone(), found })
                }
            }
            _ => Err(OpenError::Foreign { directory: self.path.clone() }),
        }
    }

    /// Without a format file only what a first start leaves behind when it is killed may be here.
    fn refuse_foreign_files(&self) -> Result<(), OpenError> {
        let entries = fs::read_dir(&self.path).map_err(|source| io_error(&self.path, source))?;
        for entry in entries {
            let name = entry.map_err(|source| io_error(&self.path, source))?.file_name();
            // A file system of its own often comes with this directory.
            let harmless = [LOCK_FILE, FORMAT_DRAFT, "lost+found"];
            if !harmless.iter().any(|known| name == *known) {
                return Err(OpenError::Foreign { directory: self.path.clone() });
            }
        }
        Ok(())
    }

    /// Says that the files are of this program's version. Written aside and renamed, so that a crash
    /// leaves the old format file or the new one.
    pub(crate) fn write_format(&self) -> Result<(), OpenError> {
        let bytes = [&MAGIC[..], &[FORMAT_VERSION]].concat();
        replace(&RealFiles, &self.path, (FORMAT_DRAFT, FORMAT_FILE), &bytes)
            .map_err(|source| io_error(&self.path.join(FORMAT_FILE), source))
    }
}

fn lock(directory: &Path) -> Result<File, OpenError> {
    let path = directory.join(LOCK_FILE);
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(FILE_MODE)
        .open(&path)
        .map_err(|source| io_error(&path, source))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenError::Locked { directory: directory.to_owned() }),
        Err(TryLockError::Error(source)) => Err(io_error(&path, source)),
    }
}

/// What helps against a refusal of the file system.
fn remedy_of(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "make room on its file system, or choose another directory"
        }
        io::ErrorKind::ReadOnlyFilesystem => {
            "mount its file system for writing, or choose another directory"
        }
        _ => "check the path, and that this user may write there",
    }
}

fn io_error(path: &Path, source: io::Error) -> OpenError {
    OpenError::Io { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_opened_once_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let first = DataDirectory::open(directory.path()).unwrap();
        assert!(matches!(DataDirectory::open(directory.path()), Err(OpenError::Locked { .. })));
        drop(first);
        DataDirectory::open(directory.path()).unwrap();
    }

    #[test]
    fn a_newer_format_is_refused_by_name() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(FORMAT_FILE), b"QUORATE\x04").unwrap();
        let error = DataDirectory::open(directory.path()).err().unwrap();
        assert!(error.to_string().contains("storage format 4"), "{error}");
    }

    #[test]
    fn the_next_step_fits_the_refusal() {
        let told = |kind: io::ErrorKind| io_error(Path::new("data"), kind.into()).to_string();
        assert!(told(io::ErrorKind::StorageFull).ends_with("another directory"));
        assert!(told(io::ErrorKind::StorageFull).contains("make room"));
        assert!(told(io::ErrorKind::ReadOnlyFilesystem).contains("for writing"));
        assert!(told(io::ErrorKind::PermissionDenied).contains("this user may write"));
    }

    #[test]
    fn files_of_another_program_are_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("WiredTiger.wt"), b"").unwrap();
        assert!(matches!(DataDirectory::open(directory.path()), Err(OpenError::Foreign { .. })));
        assert!(!directory.path().join(FORMAT_FILE).exists());
    }

    #[test]
    fn the_format_file_is_eight_bytes_and_only_the_owner_may_look() {
        let directory = tempfile::tempdir().unwrap();
        DataDirectory::open(directory.path()).unwrap();
        assert_eq!(fs::read(directory.path().join(FORMAT_FILE)).unwrap(), b"QUORATE\x03");
        let mode = |name| fs::metadata(directory.path().join(name)).unwrap().permissions().mode();
        assert_eq!(mode(FORMAT_FILE) & 0o777, 0o600);
        assert_eq!(mode(LOCK_FILE) & 0o777, 0o600);
        assert_eq!(mode(".") & 0o777, 0o700);
    }
}
