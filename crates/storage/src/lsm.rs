//! The store on disk: fjall's log-structured merge trees behind one journal.
//!
//! This file owns how our contract maps to the engine:
//!
//! - A batch is one journal record with a checksum over all keyspaces, so it is whole or absent.
//! - The engine hands each commit to the operating system at once. Forcing it to the disk is
//!   ours: the engine's own call holds the journal lock while the disk works, which would make
//!   every writer wait for every sync. Syncing the same file through a second descriptor does not.
//! - Sealing a journal syncs it before the next one is created, so the newest journal is the only
//!   one that can hold unsynced bytes.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use fjall::config::{BlockSizePolicy, PinningPolicy};
use fjall::{Database, KeyspaceCreateOptions, Readable};

use crate::format::{DataDirectory, OpenError};
use crate::group_commit::{GroupCommit, SyncLog};
use crate::store::{
    Batch, Bytes, CommitError, CommitSequence, Direction, KeyRange, KeyspaceError, KeyspaceId,
    ReadError, Scan, Snapshot, Store, StoreStatistics, SyncError, check_keyspace_name,
};
use crate::torn::{TornTail, cut_torn_tail};

/// The engine's smallest allowance for journals. More would only lengthen recovery.
const MAX_JOURNAL_BYTES: u64 = 64 * 1024 * 1024;

/// One thread may compact while another flushes; more would compete with the commands.
const WORKER_THREADS: usize = 2;

/// Open table files kept at hand. Far below the usual limit of 1,024 descriptors per process.
const MAX_CACHED_FILES: usize = 256;

/// How much memory a store may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LsmOptions {
    /// For blocks read from disk, filled as they are read.
    pub cache_bytes: u64,
    /// For writes to one keyspace before they move to a table on disk.
    pub memtable_bytes: u64,
}

impl Default for LsmOptions {
    fn default() -> Self {
        Self { cache_bytes: 32 * 1024 * 1024, memtable_bytes: 8 * 1024 * 1024 }
    }
}

/// A store on disk. See the module's opening comment for how it keeps the contract.
pub struct LsmStore {
    database: Database,
    options: LsmOptions,
    group: GroupCommit,
    /// Makes the order of sequences the order of the journal.
    commit_order: Mutex<()>,
    keyspaces: RwLock<Arc<Keyspaces>>,
    torn_tail: Option<TornTail>,
    /// Last, so that the lock outlives the engine's background threads.
    directory: DataDirectory,
}

#[derive(Clone, Default)]
struct Keyspaces {
    by_id: BTreeMap<KeyspaceId, (String, fjall::Keyspace)>,
    next_id: u64,
}

impl Keyspaces {
    fn find(&self, name: &str) -> Option<KeyspaceId> {
        self.by_id.iter().find(|(_, (known, _))| known == name).map(|(&id, _)| id)
    }

    fn add(&mut self, name: String, keyspace: fjall::Keyspace) -> KeyspaceId {
        let id = KeyspaceId(self.next_id);
        self.next_id += 1;
        self.by_id.insert(id, (name, keyspace));
        id
    }
}

impl LsmStore {
    /// Opens the store in this directory, creating or recovering it.
    pub fn open(directory: impl AsRef<Path>, options: LsmOptions) -> Result<Self, OpenError> {
        let directory = DataDirectory::open(directory.as_ref())?;
        let sync_log = Box::new({
            let mut journal = JournalFile::new(directory.engine_path());
            move || journal.sync()
        });
        Self::open_with(directory, options, sync_log)
    }

    /// The directory it lives in.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The bytes its files take on disk. The journal is counted at its full reserved size.
    pub fn disk_bytes(&self) -> Result<u64, ReadError> {
        self.database.disk_space().map_err(|error| ReadError::Engine(Box::new(error)))
    }

    fn open_with(
        directory: DataDirectory,
        options: LsmOptions,
        sync_log: SyncLog,
    ) -> Result<Self, OpenError> {
        let engine_error = |source: fjall::Error| OpenError::Engine {
            directory: directory.path().to_owned(),
            source: Box::new(source),
        };
        let journals = JournalFile::new(directory.engine_path());
        let torn_tail = match journals.find_newest() {
            Ok(Some(number)) => cut_torn_tail(&directory.engine_path(), number)?,
            Ok(None) => None,
            Err(source) => return Err(OpenError::Io { path: directory.engine_path(), source }),
        };
        let database = Database::builder(directory.engine_path())
            .cache_size(options.cache_bytes)
            .max_journaling_size(MAX_JOURNAL_BYTES)
            .worker_threads(WORKER_THREADS)
            .max_cached_files(Some(MAX_CACHED_FILES))
            .open()
            .map_err(engine_error)?;
        let mut names: Vec<_> =
            database.list_keyspace_names().iter().map(|name| name.to_string()).collect();
        names.sort();
        let mut keyspaces = Keyspaces::default();
        for name in names {
            let keyspace =
                database.keyspace(&name, || keyspace_options(options)).map_err(engine_error)?;
            keyspaces.add(name, keyspace);
        }
        Ok(Self {
            database,
            options,
            group: GroupCommit::new(sync_log),
            commit_order: Mutex::new(()),
            keyspaces: RwLock::new(Arc::new(keyspaces)),
            torn_tail,
            directory,
        })
    }

    /// The record that a power failure left unfinished, if one was cut off when the store was opened.
    pub fn torn_tail(&self) -> Option<&TornTail> {
        self.torn_tail.as_ref()
    }

    fn current_keyspaces(&self) -> Arc<Keyspaces> {
        Arc::clone(&self.keyspaces.read().unwrap_or_else(PoisonError::into_inner))
    }
}

fn keyspace_options(options: LsmOptions) -> KeyspaceCreateOptions {
    KeyspaceCreateOptions::default()
        .max_memtable_size(options.memtable_bytes)
        .data_block_size_policy(BlockSizePolicy::all(4 * 1024))
        // Pinned blocks are outside the cache's limit: only the small, hot first level may be.
        .index_block_pinning_policy(PinningPolicy::new([true, false]))
        .filter_block_pinning_policy(PinningPolicy::new([true, false]))
}

impl Store for LsmStore {
    fn create_keyspace(&self, name: &str) -> Result<KeyspaceId, KeyspaceError> {
        check_keyspace_name(name)?;
        let mut keyspaces = self.keyspaces.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(id) = keyspaces.find(name) {
            return Ok(id);
        }
        if self.group.has_failed() {
            return Err(KeyspaceError::Poisoned);
        }
        let keyspace = self
            .database
            .keyspace(name, || keyspace_options(self.options))
            .map_err(|error| KeyspaceError::Engine(Box::new(error)))?;
        Ok(Arc::make_mut(&mut keyspaces).add(name.to_owned(), keyspace))
    }

    fn drop_keyspace(&self, keyspace: KeyspaceId) -> Result<(), KeyspaceError> {
        let mut keyspaces = self.keyspaces.write().unwrap_or_else(PoisonError::into_inner);
        let Some((_, handle)) = keyspaces.by_id.get(&keyspace) else {
            return Err(KeyspaceError::Unknown);
        };
        if self.group.has_failed() {
            return Err(KeyspaceError::Poisoned);
        }
        self.database
            .delete_keyspace(handle.clone())
            .map_err(|error| KeyspaceError::Engine(Box::new(error)))?;
        Arc::make_mut(&mut keyspaces).by_id.remove(&keyspace);
        Ok(())
    }

    fn keyspaces(&self) -> Vec<(String, KeyspaceId)> {
        let keyspaces = self.current_keyspaces();
        let mut listed: Vec<_> =
            keyspaces.by_id.iter().map(|(&id, (name, _))| (name.clone(), id)).collect();
        listed.sort();
        listed
    }

    fn snapshot(&self) -> Arc<dyn Snapshot> {
        // The keyspaces first: one created in between is merely not seen.
        let keyspaces = self.current_keyspaces();
        Arc::new(LsmSnapshot { keyspaces, snapshot: self.database.snapshot() })
    }

    fn commit(&self, batch: Batch) -> Result<CommitSequence, CommitError> {
        batch.check_keys()?;
        let keyspaces = self.current_keyspaces();
        let mut engine_batch = self.database.batch();
        for operation in batch.operations {
            let (_, keyspace) =
                keyspaces.by_id.get(&operation.keyspace).ok_or(CommitError::UnknownKeyspace)?;
            match operation.value {
                Some(value) => engine_batch.insert(keyspace, operation.key.0, value.0),
                None => engine_batch.remove(keyspace, operation.key.0),
            }
        }
        let _order = self.commit_order.lock().unwrap_or_else(PoisonError::into_inner);
        if self.group.has_failed() {
            return Err(CommitError::Poisoned);
        }
        engine_batch.commit().map_err(|error| match error {
            fjall::Error::Poisoned => CommitError::Poisoned,
            other => CommitError::Engine(Box::new(other)),
        })?;
        Ok(self.group.committed())
    }

    fn sync_through(&self, sequence: CommitSequence) -> Result<(), SyncError> {
        self.group.sync_through(sequence)
    }

    fn last_committed(&self) -> CommitSequence {
        self.group.last_committed()
    }

    fn last_synced(&self) -> CommitSequence {
        self.group.last_synced()
    }

    fn statistics(&self) -> StoreStatistics {
        StoreStatistics { commits: self.group.last_committed().as_u64(), syncs: self.group.syncs() }
    }
}

struct LsmSnapshot {
    keyspaces: Arc<Keyspaces>,
    snapshot: fjall::Snapshot,
}

impl LsmSnapshot {
    fn keyspace(&self, id: KeyspaceId) -> Result<&fjall::Keyspace, ReadError> {
        self.keyspaces
            .by_id
            .get(&id)
            .map(|(_, keyspace)| keyspace)
            .ok_or(ReadError::UnknownKeyspace)
    }
}

impl Snapshot for LsmSnapshot {
    fn get(&self, keyspace: KeyspaceId, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        self.snapshot
            .get(self.keyspace(keyspace)?, key)
            .map(|value| value.map(Bytes))
            .map_err(|error| ReadError::Engine(Box::new(error)))
    }

    fn scan(
        &self,
        keyspace: KeyspaceId,
        range: KeyRange,
        direction: Direction,
    ) -> Result<Scan, ReadError> {
        let keyspace = self.keyspace(keyspace)?;
        if range.is_empty() {
            return Ok(Box::new(std::iter::empty()));
        }
        let pairs = self.snapshot.range::<Vec<u8>, _>(keyspace, (range.start, range.end));
        let read = |guard: fjall::Guard| match guard.into_inner() {
            Ok((key, value)) => Ok((Bytes(key), Bytes(value))),
            Err(error) => Err(ReadError::Engine(Box::new(error))),
        };
        Ok(match direction {
            Direction::Forward => Box::new(pairs.map(read)),
            Direction::Backward => Box::new(pairs.rev().map(read)),
        })
    }
}

/// A second descriptor on the engine's newest journal, `<number>.jnl`.
struct JournalFile {
    engine_directory: PathBuf,
    newest: Option<(u64, File)>,
}

impl JournalFile {
    fn new(engine_directory: PathBuf) -> Self {
        Self { engine_directory, newest: None }
    }

    /// Every commit that returned before this call is on disk when it returns.
    ///
    /// Such a commit is in a journal that already exists. All journals but the newest were synced
    /// when they were sealed, so one sync is enough.
    fn sync(&mut self) -> io::Result<()> {
        self.follow_rotation()?;
        match &self.newest {
            // The file's length only matters up to the last record, and data syncs cover that.
            Some((_, journal)) => journal.sync_data(),
            None => Err(no_journal()),
        }
    }

    fn follow_rotation(&mut self) -> io::Result<()> {
        let mut number = match &self.newest {
            Some((number, _)) => *number,
            None => self.find_newest()?.ok_or_else(no_journal)?,
        };
        while fs::exists(self.path(number + 1))? {
            number += 1;
        }
        if self.newest.as_ref().is_none_or(|(open, _)| *open != number) {
            self.newest = Some((number, File::open(self.path(number))?));
        }
        Ok(())
    }

    /// The number of the newest journal; none before the first start.
    fn find_newest(&self) -> io::Result<Option<u64>> {
        let entries = match fs::read_dir(&self.engine_directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            entries => entries?,
        };
        let mut newest = None;
        for entry in entries {
            let name = entry?.file_name();
            let number = name.to_str().and_then(|name| name.strip_suffix(".jnl")?.parse().ok());
            newest = newest.max(number);
        }
        Ok(newest)
    }

    fn path(&self, number: u64) -> PathBuf {
        self.engine_directory.join(format!("{number}.jnl"))
    }
}

fn no_journal() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "the engine has no journal")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_failed_sync_reads_go_on_and_writes_stop() {
        let directory = tempfile::tempdir().unwrap();
        let store = LsmStore::open_with(
            DataDirectory::open(directory.path()).unwrap(),
            LsmOptions::default(),
            Box::new(|| Err(io::Error::other("the disk is gone"))),
        )
        .unwrap();
        let keyspace = store.create_keyspace("records").unwrap();
        let mut batch = Batch::new();
        batch.insert(keyspace, b"a", b"1");
        let sequence = store.commit(batch.clone()).unwrap();
        assert!(matches!(store.sync_through(sequence), Err(SyncError::Failed(_))));

        assert!(matches!(store.commit(batch), Err(CommitError::Poisoned)));
        assert!(matches!(store.create_keyspace("more"), Err(KeyspaceError::Poisoned)));
        assert!(matches!(store.drop_keyspace(keyspace), Err(KeyspaceError::Poisoned)));
        assert_eq!(store.snapshot().get(keyspace, b"a").unwrap().as_deref(), Some(&b"1"[..]));
    }

    #[test]
    fn the_journal_is_followed_when_the_engine_starts_a_new_one() {
        let directory = tempfile::tempdir().unwrap();
        let mut journal = JournalFile::new(directory.path().to_owned());
        assert!(journal.sync().is_err());

        fs::write(directory.path().join("9.jnl"), b"").unwrap();
        journal.sync().unwrap();
        assert_eq!(journal.newest.as_ref().unwrap().0, 9);

        fs::write(directory.path().join("10.jnl"), b"").unwrap();
        fs::write(directory.path().join("11.jnl"), b"").unwrap();
        fs::remove_file(directory.path().join("9.jnl")).unwrap();
        journal.sync().unwrap();
        assert_eq!(journal.newest.as_ref().unwrap().0, 11);
    }

    #[test]
    fn the_engine_still_names_its_journals_as_we_expect() {
        let directory = tempfile::tempdir().unwrap();
        let store = LsmStore::open(directory.path(), LsmOptions::default()).unwrap();
        let keyspace = store.create_keyspace("records").unwrap();
        let mut batch = Batch::new();
        batch.insert(keyspace, b"a", b"find me in the journal");
        store.commit(batch).unwrap();
        let mut journal = JournalFile::new(store.directory.engine_path());
        journal.follow_rotation().unwrap();
        let (number, _) = journal.newest.as_ref().unwrap();
        // A commit has reached the operating system, in this very file, when it returns.
        let bytes = fs::read(journal.path(*number)).unwrap();
        let wanted = b"find me in the journal";
        assert!(bytes.windows(wanted.len()).any(|window| window == wanted));
    }
}
