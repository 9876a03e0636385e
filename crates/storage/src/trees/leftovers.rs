//! Table files that a flush or a merge has begun and not finished, because the disk was full or no file could be opened.
//!
//! The engine removes them when it is opened. Until then they would keep the room that a later attempt needs.
//!
//! The engine writes a list of the tables, gives it its name, and syncs the directory. If it fails behind the name, the list on
//! the disk is not the one in memory, and the next attempt would write over it. So the name is given back to the list in memory
//! right after a failure. If that fails too, it is done before the next change begins. The list in memory is whole on the disk
//! under a number of its own, so it counts whatever a change that was under way has made of the other one.

use std::fs;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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

/// Whether there are any.
#[derive(Default)]
pub(crate) struct Leftovers {
    may_be_there: AtomicBool,
    /// The changes of the tables that have failed. Each may have left a list on the disk that is not the one in memory.
    failures: AtomicU64,
    /// Those after which the list on the disk was compared with the one in memory.
    checked: AtomicU64,
    /// Held by those that write table files, or read some that are not needed any more.
    used: RwLock<()>,
}

impl Leftovers {
    /// No file is removed until this is dropped.
    pub(crate) fn keep_all(&self) -> RwLockReadGuard<'_, ()> {
        self.used.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn note_failure(&self) {
        self.may_be_there.store(true, Ordering::Release);
        self.failures.fetch_add(1, Ordering::AcqRel);
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
            // If this fails, the next change tries it again.
            let _ = self.check_list();
            self.note_tables();
        })
    }

    /// Sees to it that the list of tables on the disk is the one in memory. Tables may be written meanwhile.
    fn check_list(&self) -> io::Result<()> {
        let Leftovers { failures, checked, .. } = &self.leftovers;
        let failed = failures.load(Ordering::Acquire);
        if checked.load(Ordering::Acquire) < failed {
            self.restore_list()?;
            checked.fetch_max(failed, Ordering::AcqRel);
        }
        Ok(())
    }

    /// Gives the name to the list in memory, if another list on the disk has it.
    fn restore_list(&self) -> io::Result<()> {
        let listed = self.listed.get();
        let known = self.tree.current_version().id();
        // The engine writes and names lists under this lock, and does not tell the newest one to its holder.
        let _none_is_written = self.tree.get_version_history_lock();
        if self.listed.get() != listed {
            // Another list has come to memory. It was named and synced before that.
            return Ok(());
        }
        let name = self.name_of_list(known)?;
        if fs::read(self.path.join(CURRENT))? == name {
            // An attempt to restore it may have failed before the directory was synced.
            return fs::File::open(&self.path)?.sync_all();
        }
        self.name_list(&name)
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
    use std::path::PathBuf;
    use std::sync::Arc;

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

    fn tree() -> (tempfile::TempDir, Arc<Tree>) {
        let directory = tempfile::tempdir().unwrap();
        let context = TreeContext::new(directory.path().to_owned(), DiskOptions::default());
        let tree = context.open(1, "k").unwrap();
        (directory, tree)
    }

    fn fail(tree: &Tree) {
        let failed = tree.change_tables(|| Err::<(), _>(io::Error::other("a failure").into()));
        failed.unwrap_err();
    }

    /// Does what the engine does before it opens the directory to sync it. Returns the path of the list.
    fn name_another_list(tree: &Tree) -> PathBuf {
        let next = tree.tree.current_version().id() + 1;
        let list = tree.path.join(format!("v{next}"));
        fs::write(&list, b"another list").unwrap();
        tree.name_list(&tree.name_of_list(next).unwrap()).unwrap();
        list
    }

    #[test]
    fn a_list_of_tables_that_is_not_in_memory_loses_its_name() {
        let (_directory, tree) = tree();
        let named = || fs::read(tree.path.join(CURRENT)).unwrap();
        let before = named();
        fail(&tree);
        assert_eq!(named(), before);
        name_another_list(&tree);
        assert_ne!(named(), before);
        fail(&tree);
        assert_eq!(named(), before, "it is restored right after the failure");
        fs::write(tree.path.join(CURRENT), b"no name of a list").unwrap();
        fail(&tree);
        assert_eq!(named(), before, "the list in memory is whole, whatever the name has become");
    }

    /// A merge or an ingest may take minutes, and a flush of the same tree may fail meanwhile.
    #[test]
    fn a_list_loses_its_name_while_another_change_is_under_way() {
        let (_directory, tree) = tree();
        let named = || fs::read(tree.path.join(CURRENT)).unwrap();
        let before = named();
        let change = || {
            name_another_list(&tree);
            fail(&tree);
            assert_eq!(named(), before);
            tree.change_tables(|| Ok(()))
        };
        tree.change_tables(change).unwrap();
    }

    /// A flush fails behind the name of its list. A merge that was under way writes a list of the same number over it, and fails
    /// before it names that one: the name then has the checksum of the list of the flush.
    #[test]
    fn a_list_that_was_written_over_by_another_change_loses_its_name() {
        let (_directory, tree) = tree();
        let named = || fs::read(tree.path.join(CURRENT)).unwrap();
        let before = named();
        let merge = || {
            let list = name_another_list(&tree);
            // No descriptor is left to restore the name now.
            tree.leftovers.note_failure();
            fs::write(list, b"the list of the merge").unwrap();
            Err::<(), _>(io::Error::other("a failure").into())
        };
        tree.change_tables(merge).unwrap_err();
        tree.change_tables(|| Ok(())).unwrap();
        assert_eq!(named(), before);
    }

    /// Without a descriptor the name cannot be given back at once.
    #[test]
    fn no_change_begins_before_the_list_in_memory_has_its_name() {
        let (_directory, tree) = tree();
        let (current, list) = (tree.path.join(CURRENT), tree.path.join("v0"));
        let before = fs::read(&current).unwrap();
        assert_eq!(tree.tree.current_version().id(), 0);
        name_another_list(&tree);
        let aside = tree.path.join("aside");
        fs::rename(&list, &aside).unwrap();
        fail(&tree);
        tree.change_tables(|| -> Result<(), _> { panic!("it is changed") }).unwrap_err();
        fs::rename(&aside, &list).unwrap();
        tree.change_tables(|| Ok(())).unwrap();
        assert_eq!(fs::read(&current).unwrap(), before);
    }
}
