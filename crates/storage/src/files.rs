//! The files under the journal and the manifest, behind a trait.
//!
//! The store reaches its journal and its manifest only through [`Files`], so that a test can lose,
//! tear and reorder what was not synced, and can let the disk fail or fill up. [`RealFiles`] is the
//! file system; [`SimulatedFiles`](crate::SimulatedFiles) is a disk in memory. The trees write their
//! own files.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

/// The mode of files: only their owner reads and writes them.
pub(crate) const FILE_MODE: u32 = 0o600;

/// The mode of directories.
pub(crate) const DIRECTORY_MODE: u32 = 0o700;

/// How much of a new file is filled with zeros by one call.
const ZERO_CHUNK: usize = 256 * 1024;

/// A file system, as far as the journal and the manifest need one.
pub trait Files: Send + Sync + 'static {
    /// Makes a directory that only the owner may enter, if there is none.
    ///
    /// # Errors
    ///
    /// What the file system says.
    fn create_directory(&self, path: &Path) -> io::Result<()>;

    /// The names of the files in a directory.
    ///
    /// # Errors
    ///
    /// What the file system says.
    fn list(&self, directory: &Path) -> io::Result<Vec<String>>;

    /// Makes a file of this many zeros, in place of any other. The zeros are on the disk when it
    /// returns; the name is once its directory is synced.
    ///
    /// # Errors
    ///
    /// What the file system says; the file is not left behind half-made.
    fn create(&self, path: &Path, zeros: u64) -> io::Result<Arc<dyn FileHandle>>;

    /// Opens a file to read and to write.
    ///
    /// # Errors
    ///
    /// What the file system says.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn FileHandle>>;

    /// Gives a file another name, in place of any other file of that name.
    ///
    /// # Errors
    ///
    /// What the file system says.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    ///
    /// What the file system says.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Returns once the names in a directory would survive a crash.
    ///
    /// # Errors
    ///
    /// What the file system says.
    fn sync_directory(&self, path: &Path) -> io::Result<()>;

    /// A number that a client of the store cannot guess.
    fn secret(&self) -> u64 {
        RandomState::new().hash_one(())
    }
}

/// An open file.
pub trait FileHandle: Send + Sync {
    /// Writes all bytes at this offset.
    ///
    /// # Errors
    ///
    /// What the file system says.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Fills the buffer from this offset on.
    ///
    /// # Errors
    ///
    /// What the file system says; a file that ends before is `UnexpectedEof`.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;

    /// How long the file is.
    ///
    /// # Errors
    ///
    /// What the file system says.
    fn length(&self) -> io::Result<u64>;

    /// Cuts or extends the file.
    ///
    /// # Errors
    ///
    /// What the file system says.
    fn set_length(&self, length: u64) -> io::Result<()>;

    /// Returns once everything written would survive a crash.
    ///
    /// # Errors
    ///
    /// What the file system says. What the disk holds is then unknown.
    fn sync(&self) -> io::Result<()>;
}

/// The whole content of a file.
pub(crate) fn read_all(file: &dyn FileHandle) -> io::Result<Vec<u8>> {
    let length = usize::try_from(file.length()?).map_err(io::Error::other)?;
    let mut bytes = vec![0; length];
    file.read_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// Writes a small file aside and renames it, so that a crash leaves the old one or the new one.
pub(crate) fn replace(
    files: &dyn Files,
    directory: &Path,
    (draft, name): (&str, &str),
    bytes: &[u8],
) -> io::Result<()> {
    let draft = directory.join(draft);
    let file = files.create(&draft, bytes.len() as u64)?;
    file.write_at(bytes, 0)?;
    file.sync()?;
    // Its descriptor is the one that the directory's sync needs.
    drop(file);
    files.rename(&draft, &directory.join(name))?;
    // The file has its name, though a crash may take it back: whatever failed, this was not refused as a whole.
    files.sync_directory(directory).map_err(io::Error::other)
}

/// The files of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealFiles;

impl Files for RealFiles {
    fn create_directory(&self, path: &Path) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(path)
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(directory)? {
            names.extend(entry?.file_name().into_string());
        }
        names.sort();
        Ok(names)
    }

    fn create(&self, path: &Path, zeros: u64) -> io::Result<Arc<dyn FileHandle>> {
        let file = OpenOptions::new()
            .create(true)
            .truncate(true)
            .read(true)
            .write(true)
            .mode(FILE_MODE)
            .open(path)?;
        // Written zeros, not reserved blocks: on ext4 the first write to a reserved block changes
        // metadata, which every sync would then have to write too.
        let filled = fill(&file, zeros).and_then(|()| file.sync_all());
        if let Err(error) = filled {
            drop(file);
            // The error that counts is the first one.
            let _ = fs::remove_file(path);
            return Err(error);
        }
        Ok(Arc::new(RealFile(file)))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn FileHandle>> {
        Ok(Arc::new(RealFile(OpenOptions::new().read(true).write(true).open(path)?)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }
}

fn fill(file: &File, zeros: u64) -> io::Result<()> {
    let chunk = vec![0; ZERO_CHUNK.min(usize::try_from(zeros).unwrap_or(ZERO_CHUNK))];
    let mut offset = 0;
    while offset < zeros {
        let part = (zeros - offset).min(chunk.len() as u64) as usize;
        file.write_all_at(&chunk[..part], offset)?;
        offset += part as u64;
    }
    Ok(())
}

struct RealFile(File);

impl FileHandle for RealFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_exact_at(buffer, offset)
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn set_length(&self, length: u64) -> io::Result<()> {
        self.0.set_len(length)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}
