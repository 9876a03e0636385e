//! A disk in memory that loses, tears and reorders what was not synced, fails and fills up.
//!
//! Owns what a crash may leave of files and names. It draws no random numbers: the caller that
//! simulates a crash decides about every write that was not synced.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::files::{FileHandle, Files};

/// What a disk writes at once; a write may be torn between two of these.
const SECTOR: usize = 512;

/// What became of a sector of a write that was not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It reached the disk.
    Kept,
    /// It did not.
    Lost,
}

/// A disk in memory. Clones are the same disk.
#[derive(Clone, Default)]
pub struct SimulatedFiles {
    disk: Arc<Mutex<Disk>>,
}

#[derive(Default)]
struct Disk {
    files: BTreeMap<u64, Content>,
    next_file: u64,
    names: BTreeMap<PathBuf, u64>,
    /// The names that survive a crash.
    synced_names: BTreeMap<PathBuf, u64>,
    directories: BTreeSet<PathBuf>,
    /// Bytes that files may still take; none is no limit.
    room: Option<u64>,
    fail_writes: bool,
    fail_syncs: bool,
    /// Whether every call that opens a file or a directory fails.
    has_no_descriptor: bool,
    /// Syncs that pretend to be done.
    ignore_syncs: bool,
    power: Power,
}

/// Whether what is written may reach the disk.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Power {
    #[default]
    On,
    /// It fails in the middle of the next sync.
    FailsAtSync,
    /// It has failed. The program that still runs sees what it writes, and nothing of it survives.
    Off,
}

impl Disk {
    fn sync_does_nothing(&mut self) -> bool {
        if self.power == Power::FailsAtSync {
            self.power = Power::Off;
        }
        self.ignore_syncs || self.power == Power::Off
    }
}

#[derive(Clone, Default)]
struct Content {
    /// As readers see it.
    bytes: Vec<u8>,
    /// As it is on the disk for sure.
    synced: Vec<u8>,
    /// What was written since, in order.
    writes: Vec<(usize, Vec<u8>)>,
}

impl SimulatedFiles {
    /// An empty disk.
    pub fn new() -> Self {
        Self::default()
    }

    /// From now on files may take this many bytes more. `None` lifts the limit.
    pub fn limit_room(&self, room: Option<u64>) {
        self.lock().room = room;
    }

    /// From now on writes fail, or succeed again.
    pub fn fail_writes(&self, fail: bool) {
        self.lock().fail_writes = fail;
    }

    /// From now on syncs fail, or succeed again.
    pub fn fail_syncs(&self, fail: bool) {
        self.lock().fail_syncs = fail;
    }

    /// From now on no file and no directory can be opened, as in a process that has used up its descriptors, or they can
    /// again.
    pub fn use_up_descriptors(&self, used_up: bool) {
        self.lock().has_no_descriptor = used_up;
    }

    /// From now on syncs of files and directories do nothing, as if the program had forgotten them or the power
    /// had failed in the middle of its work.
    pub fn ignore_syncs(&self, ignore: bool) {
        self.lock().ignore_syncs = ignore;
    }

    /// The power fails in the middle of the next sync. What was written before it may survive or not; what the program
    /// writes after it, in the belief that the sync was done, does not.
    pub fn fail_power_at_sync(&self) {
        self.lock().power = Power::FailsAtSync;
    }

    /// The disk after a power failure. `fate` is asked about each sector of each write that was not
    /// synced, in order. Names that were not synced are lost. From now on syncs of the disk before
    /// the failure fail: a program that still runs on it can promise nothing more.
    #[must_use]
    pub fn crash(&self, fate: impl FnMut() -> Fate) -> Self {
        self.fail_syncs(true);
        self.survivor(fate)
    }

    /// What a power failure would leave now. This disk goes on.
    #[must_use]
    pub fn survivor(&self, mut fate: impl FnMut() -> Fate) -> Self {
        let disk = self.lock();
        let mut after = Disk { next_file: disk.next_file, ..Disk::default() };
        after.directories.clone_from(&disk.directories);
        for (path, number) in &disk.synced_names {
            let Some(content) = disk.files.get(number) else { continue };
            let mut bytes = content.synced.clone();
            for (offset, written) in &content.writes {
                for (place, sector) in written.chunks(SECTOR).enumerate() {
                    if fate() == Fate::Kept {
                        overwrite(&mut bytes, offset + place * SECTOR, sector);
                    }
                }
            }
            let (synced, writes) = (bytes.clone(), Vec::new());
            after.files.insert(*number, Content { bytes, synced, writes });
            after.names.insert(path.clone(), *number);
            after.synced_names.insert(path.clone(), *number);
        }
        Self { disk: Arc::new(Mutex::new(after)) }
    }

    /// The same files in another directory.
    #[must_use]
    pub fn moved(self, from: &Path, to: &Path) -> Self {
        let place =
            |path: PathBuf| path.strip_prefix(from).map(|rest| to.join(rest)).unwrap_or(path);
        let mut disk = self.lock();
        let names = std::mem::take(&mut disk.names);
        disk.names = names.into_iter().map(|(path, number)| (place(path), number)).collect();
        let names = std::mem::take(&mut disk.synced_names);
        disk.synced_names = names.into_iter().map(|(path, number)| (place(path), number)).collect();
        let directories = std::mem::take(&mut disk.directories);
        disk.directories = directories.into_iter().map(place).collect();
        drop(disk);
        self
    }

    /// Changes the bytes of a file behind the store's back.
    ///
    /// # Panics
    ///
    /// If there is no such file.
    pub fn damage(&self, path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
        let mut disk = self.lock();
        let number = disk.names.get(path).copied();
        let content = number.and_then(|number| disk.files.get_mut(&number));
        let Some(content) = content else { panic!("no file {}", path.display()) };
        change(&mut content.bytes);
        content.synced.clone_from(&content.bytes);
    }

    /// The paths of all files.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.lock().names.keys().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn overwrite(bytes: &mut Vec<u8>, offset: usize, written: &[u8]) {
    let end = offset + written.len();
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    bytes[offset..end].copy_from_slice(written);
}

impl Disk {
    fn take_room(&mut self, bytes: u64) -> io::Result<()> {
        if let Some(room) = &mut self.room {
            *room = room.checked_sub(bytes).ok_or(io::ErrorKind::StorageFull)?;
        }
        Ok(())
    }

    fn take_descriptor(&self) -> io::Result<()> {
        const EMFILE: i32 = 24;
        match self.has_no_descriptor {
            true => Err(io::Error::from_raw_os_error(EMFILE)),
            false => Ok(()),
        }
    }

    fn number(&self, path: &Path) -> io::Result<u64> {
        self.names.get(path).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Files for SimulatedFiles {
    fn create_directory(&self, path: &Path) -> io::Result<()> {
        self.lock().directories.insert(path.to_owned());
        Ok(())
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        let disk = self.lock();
        let within = disk.names.keys().filter(|path| path.parent() == Some(directory));
        let name = |path: &PathBuf| Some(path.file_name()?.to_str()?.to_owned());
        Ok(within.filter_map(name).collect())
    }

    fn create(&self, path: &Path, zeros: u64) -> io::Result<Arc<dyn FileHandle>> {
        let mut disk = self.lock();
        disk.take_descriptor()?;
        disk.take_room(zeros)?;
        let number = disk.next_file;
        disk.next_file += 1;
        let bytes = vec![0; zeros as usize];
        let synced = bytes.clone();
        disk.files.insert(number, Content { bytes, synced, writes: Vec::new() });
        disk.names.insert(path.to_owned(), number);
        Ok(Arc::new(SimulatedFile { disk: Arc::clone(&self.disk), number }))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn FileHandle>> {
        let disk = self.lock();
        disk.take_descriptor()?;
        let number = disk.number(path)?;
        Ok(Arc::new(SimulatedFile { disk: Arc::clone(&self.disk), number }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut disk = self.lock();
        let number = disk.number(from)?;
        disk.names.remove(from);
        disk.names.insert(to.to_owned(), number);
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut disk = self.lock();
        disk.number(path)?;
        disk.names.remove(path);
        Ok(())
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        let mut disk = self.lock();
        disk.take_descriptor()?;
        if disk.sync_does_nothing() {
            return Ok(());
        }
        let within = |known: &PathBuf| known.parent() == Some(path);
        disk.synced_names.retain(|known, _| !within(known));
        let names: Vec<_> = disk.names.iter().filter(|(known, _)| within(known)).collect();
        let names: Vec<_> =
            names.into_iter().map(|(name, number)| (name.clone(), *number)).collect();
        disk.synced_names.extend(names);
        Ok(())
    }

    fn secret(&self) -> u64 {
        // Runs repeat to the byte.
        0x5EC2_E700_0000_0001
    }
}

struct SimulatedFile {
    disk: Arc<Mutex<Disk>>,
    number: u64,
}

impl SimulatedFile {
    fn with<T>(&self, act: impl FnOnce(&mut Content) -> io::Result<T>) -> io::Result<T> {
        let mut disk = self.lock();
        let content = disk.files.get_mut(&self.number).ok_or(io::ErrorKind::NotFound)?;
        act(content)
    }

    fn lock(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FileHandle for SimulatedFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let (fails, is_off) = {
            let disk = self.lock();
            (disk.fail_writes, disk.power == Power::Off)
        };
        if fails {
            return Err(io::Error::other("the simulated disk failed to write"));
        }
        self.with(|content| {
            overwrite(&mut content.bytes, offset as usize, bytes);
            if !is_off {
                content.writes.push((offset as usize, bytes.to_vec()));
            }
            Ok(())
        })
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.with(|content| {
            let end = offset as usize + buffer.len();
            let found = content.bytes.get(offset as usize..end);
            buffer.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
            Ok(())
        })
    }

    fn length(&self) -> io::Result<u64> {
        self.with(|content| Ok(content.bytes.len() as u64))
    }

    fn set_length(&self, length: u64) -> io::Result<()> {
        // Recovery cuts a file before anything is written to it, and syncs it at once.
        self.with(|content| {
            content.bytes.resize(length as usize, 0);
            content.synced.clone_from(&content.bytes);
            content.writes.clear();
            Ok(())
        })
    }

    fn sync(&self) -> io::Result<()> {
        let (fails, ignores) = {
            let mut disk = self.lock();
            (disk.fail_syncs, disk.sync_does_nothing())
        };
        if fails {
            return Err(io::Error::other("the simulated disk failed to sync"));
        }
        if ignores {
            return Ok(());
        }
        self.with(|content| {
            content.synced.clone_from(&content.bytes);
            content.writes.clear();
            Ok(())
        })
    }
}
