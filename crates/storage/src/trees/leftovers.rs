//! Table files that a flush or a merge has begun and not finished, because the disk was full or no file could be opened.
//!
//! The engine removes them when it is opened. Until then they would keep the room that a later attempt needs.
//!
//! The engine writes a list of the tables, gives it its name, and syncs the directory. If it fails behind the name, the list on
//! the disk is not the one in memory, and the next attempt would write over it. So the name is looked at after a failure, before
//! anything else is done to the tables, and given back to the list in memory. Both lists are whole: a crash may leave either.

use std::fs;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use lsm_tree::AbstractTree;

use super::{Snapshots, Tree};

/// The directory of a tree's table files.
const TABLES: &str = "tables";

/// The file that names the list of tables that counts: its number, a checksum, and which checksum that is.
const CURRENT: &str = "current";
const CURRENT_DRAFT: &str = "current.new";

/// Which checksum it is.
const XXH3: u8 = 0;

/// The error of a process that can open no other file.
const EMFILE: i32 = 24;

/// Whether there are any.
#[derive(Default)]
pub(crate) struct Leftovers {
    may_be_there: AtomicBool,
    /// Whether the list of tables on the disk may be another than the one in memory.
    is_unsure: AtomicBool,
    /// Held by those that write table files, or read some that are not needed any more.
    used: RwLock<()>,
}

impl Leftovers {
    /// No file is removed until this is dropped.
    pub(crate) fn keep_all(&self) -> RwLockReadGuard<'_, ()> {
        self.used.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_failure(&self) {
        self.may_be_there.store(true, Ordering::Release);
        self.is_unsure.store(true, Ordering::Release);
    }
}

impl Tree {
    /// Changes the tables. If that fails, files stay behind.
    pub(super) fn change_tables<T>(
        &self,
        change: impl FnOnce() -> Result<T, lsm_tree::Error>,
    ) -> Result<T, lsm_tree::Error> {
        self.check_list()?;
        let _used = self.leftovers.keep_all();
        change().inspect_err(|_| {
            self.leftovers.note_failure();
            self.note_tables();
        })
    }

    /// Sees to it that the list of tables on the disk is the one in memory. Refused while tables are written.
    fn check_list(&self) -> io::Result<()> {
        if !self.leftovers.is_unsure.load(Ordering::Acquire) {
            return Ok(());
        }
        let Ok(_unused) = self.leftovers.used.try_write() else {
            return Err(io::Error::from_raw_os_error(EMFILE));
        };
        let present = fs::read(self.path.join(CURRENT))?;
        let known = self.tree.current_version().id();
        let named = present.first_chunk().copied().map_or(0, u64::from_le_bytes);
        if named != known {
            if present != self.name_of_list(named)? {
                return Err(io::Error::other("the list of tables on the disk is damaged"));
            }
            self.name_list(&self.name_of_list(known)?)?;
        }
        self.leftovers.is_unsure.store(false, Ordering::Release);
        Ok(())
    }

    /// What the file says that names a list.
    fn name_of_list(&self, number: u64) -> io::Result<Vec<u8>> {
        let list = fs::read(self.path.join(format!("v{number}")))?;
        let checksum = xxhash_rust::xxh3::xxh3_128(&list);
        Ok([&number.to_le_bytes()[..], &checksum.to_le_bytes(), &[XXH3]].concat())
    }

    /// Names a list. Every file that this needs is open before anything is changed.
    fn name_list(&self, name: &[u8]) -> io::Result<()> {
        let directory = fs::File::open(&self.path)?;
        let draft = self.path.join(CURRENT_DRAFT);
        let mut file = fs::File::create(&draft)?;
        file.write_all(name)?;
        file.sync_all()?;
        fs::rename(&draft, self.path.join(CURRENT))?;
        directory.sync_all()
    }

    /// Removes the files of attempts that have failed, unless tables are being written, or a snapshot may read others than the
    /// newest: then this is for a later call.
    pub(crate) fn remove_leftovers(&self, snapshots: &Snapshots) -> Result<(), lsm_tree::Error> {
        if !self.leftovers.may_be_there.load(Ordering::Acquire) {
            return Ok(());
        }
        self.check_list()?;
        let Ok(_unused) = self.leftovers.used.try_write() else { return Ok(()) };
        self.forget_older(snapshots)?;
        let reads_newest = snapshots.oldest() >= self.tables().since;
        if !reads_newest || self.tree.version_free_list_len() > 0 {
            return Ok(());
        }
        let version = self.tree.current_version();
        for entry in fs::read_dir(self.path.join(TABLES))? {
            let entry = entry?;
            let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
            let is_needed = |number: u64| version.iter_tables().any(|table| table.id() == number);
            if number.is_some_and(|number| !is_needed(number)) {
                fs::remove_file(entry.path())?;
            }
        }
        self.leftovers.may_be_there.store(false, Ordering::Release);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::DiskOptions;
    use crate::store::Bytes;
    use crate::trees::{Stamp, TreeContext};

    #[test]
    fn files_of_failed_attempts_go_when_no_snapshot_reads_older_tables() {
        let directory = tempfile::tempdir().unwrap();
        let context = TreeContext::new(directory.path().to_owned(), DiskOptions::default());
        let tree = context.open(1, "k").unwrap();
        let sequence = context.sequences.next();
        let stamp = Stamp { sequence, shown: sequence };
        let key = Bytes::from(&b"key"[..]);
        tree.put(key.clone(), Some(key.clone()), stamp);
        tree.seal();
        tree.flush(sequence + 1, None).unwrap();
        let begun = tree.path.join(TABLES).join("1000");
        fs::write(&begun, b"a part of a table").unwrap();
        let now = context.sequences.get();
        let snapshots = |below: &[u64]| Snapshots { below: below.to_vec(), next: now };

        tree.remove_leftovers(&snapshots(&[])).unwrap();
        assert!(begun.exists(), "nothing has failed");
        tree.leftovers.note_failure();
        tree.remove_leftovers(&snapshots(&[sequence])).unwrap();
        assert!(begun.exists(), "a snapshot may read tables that the newest list does not name");
        let writes = tree.leftovers.keep_all();
        tree.remove_leftovers(&snapshots(&[])).unwrap();
        assert!(begun.exists(), "it may be written");
        drop(writes);
        tree.remove_leftovers(&snapshots(&[])).unwrap();
        assert!(!begun.exists());
        assert_eq!(tree.get(b"key", now, false).unwrap(), Some(key));
        assert_eq!(tree.verify().unwrap(), []);
    }

    /// The engine has given a new list its name and could not open the directory to sync it.
    #[test]
    fn a_list_of_tables_that_is_not_in_memory_loses_its_name() {
        let directory = tempfile::tempdir().unwrap();
        let context = TreeContext::new(directory.path().to_owned(), DiskOptions::default());
        let tree = context.open(1, "k").unwrap();
        let fail = || tree.change_tables(|| Err::<(), _>(io::Error::other("a failure").into()));
        let current = tree.path.join(CURRENT);
        let before = fs::read(&current).unwrap();
        fail().unwrap_err();
        tree.change_tables(|| Ok(())).unwrap();
        assert_eq!(fs::read(&current).unwrap(), before);
        let next = tree.tree.current_version().id() + 1;
        fs::write(tree.path.join(format!("v{next}")), b"another list").unwrap();
        tree.name_list(&tree.name_of_list(next).unwrap()).unwrap();
        fail().unwrap_err();
        let writes = tree.leftovers.keep_all();
        tree.change_tables(|| Ok(())).unwrap_err();
        drop(writes);
        tree.change_tables(|| Ok(())).unwrap();
        assert_eq!(fs::read(&current).unwrap(), before);
        fs::write(&current, b"no name of a list").unwrap();
        fail().unwrap_err();
        tree.change_tables(|| -> Result<(), _> { panic!("it is changed") }).unwrap_err();
    }
}
