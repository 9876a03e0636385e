//! Table files that a flush or a merge has begun and not finished, because the disk was full or no file could be opened.
//!
//! The engine removes them when it is opened. Until then they would keep the room that a later attempt needs.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use lsm_tree::AbstractTree;

use super::{Snapshots, Tree};

/// The directory of a tree's table files.
const TABLES: &str = "tables";

/// Whether there are any.
#[derive(Default)]
pub(crate) struct Leftovers {
    may_be_there: AtomicBool,
    /// Held by those that write table files, or read some that are not needed any more.
    used: RwLock<()>,
}

impl Leftovers {
    /// No file is removed until this is dropped.
    pub(crate) fn keep_all(&self) -> RwLockReadGuard<'_, ()> {
        self.used.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does what writes table files, which stay behind if it fails.
    pub(super) fn note<T, E>(&self, write: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let _used = self.keep_all();
        let written = write();
        if written.is_err() {
            self.may_be_there.store(true, Ordering::Release);
        }
        written
    }
}

impl Tree {
    /// Removes the files of attempts that have failed, unless tables are being written, or a snapshot may read others than the
    /// newest: then this is for a later call.
    pub(crate) fn remove_leftovers(&self, snapshots: &Snapshots) -> Result<(), lsm_tree::Error> {
        if !self.leftovers.may_be_there.load(Ordering::Acquire) {
            return Ok(());
        }
        let Ok(_unused) = self.leftovers.used.try_write() else { return Ok(()) };
        self.forget_older(snapshots)?;
        let reads_newest = snapshots.oldest() >= self.newest().since;
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
        tree.leftovers.note(|| Err::<(), ()>(())).unwrap_err();
        tree.remove_leftovers(&snapshots(&[sequence])).unwrap();
        assert!(begun.exists(), "a snapshot may read tables that the newest list does not name");
        let writes = tree.leftovers.keep_all();
        tree.remove_leftovers(&snapshots(&[])).unwrap();
        assert!(begun.exists(), "it may be written");
        drop(writes);
        tree.remove_leftovers(&snapshots(&[])).unwrap();
        assert!(!begun.exists());
        assert_eq!(tree.get(b"key", now).unwrap(), Some(key));
        assert_eq!(tree.verify().unwrap(), []);
    }
}
