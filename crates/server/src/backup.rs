//! Backups: the directory of a member, made from the stream of its `quorateBackup`.
//!
//! ```text
//!   quorateBackup ──pieces──▶ IncomingBackup in DIR.partial ──finish──▶ DIR, which a member opens
//!   entries of an oplog ──▶ Backup::apply ──▶ DIR at a later moment
//! ```
//!
//! A backup forgets which votes its member gave: the member may have voted since. A voter that starts on
//! it gives no vote until every other voter has answered it, like one whose disk was replaced.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bson::RawDocumentBuf;
use quorate_node::{Block, CommandError, Node, NodeOptions};
use quorate_protocol::OpTimeAndWallTime;
use quorate_replication::{Change, Memory};
use quorate_storage::{CopyError, CopyWriter, DiskOptions, DiskStore, OpenError, Store};

use crate::clock::Clock;
use crate::privacy::{keep_files_private, private_directory};
use crate::start::DEFAULT_OPLOG_BYTES;

/// The keyspace that only members of a set have.
const MEMBERS_KEYSPACE: &str = "replication";

/// A backup could not be made or opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    /// The directory holds something already.
    #[error("{} is there already; give another directory, or remove it", .0.display())]
    Exists(PathBuf),
    /// The file system refused.
    #[error("{}: {source}; check the rights and the room of this directory", path.display())]
    Io {
        /// What was touched.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The store could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The stream is not a whole copy, or could not be stored.
    #[error(transparent)]
    Copy(#[from] CopyError),
    /// What the backup holds could not be read or changed.
    #[error("the data of the backup is of no use: {0}; make another backup")]
    Data(#[from] CommandError),
    /// Entries can be applied to the data of a member of a set only.
    #[error("this is the backup of a server without a replica set, which has no oplog")]
    NoOplog,
}

/// Where a backup grows until it is whole.
pub fn partial_of(directory: &Path) -> PathBuf {
    let mut name = directory.file_name().unwrap_or_default().to_owned();
    name.push(".partial");
    directory.with_file_name(name)
}

/// A backup that is being received.
pub struct IncomingBackup {
    directory: PathBuf,
    partial: PathBuf,
    writer: CopyWriter,
}

impl IncomingBackup {
    /// Begins a backup that will be in this directory, which must not be there yet. What an earlier one
    /// left unfinished beside it is removed.
    ///
    /// # Errors
    ///
    /// If the directory is there, or cannot be made.
    pub fn begin(directory: &Path) -> Result<Self, BackupError> {
        keep_files_private();
        if directory.exists() {
            return Err(BackupError::Exists(directory.to_owned()));
        }
        let partial = partial_of(directory);
        let failed = |source| BackupError::Io { path: partial.clone(), source };
        match fs::remove_dir_all(&partial) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => private_directory(&partial).map_err(failed)?,
        }
        let store = DiskStore::open(&partial, DiskOptions::default())?;
        let writer = CopyWriter::new(Arc::new(store));
        Ok(Self { directory: directory.to_owned(), partial, writer })
    }

    /// Takes the next piece.
    ///
    /// # Errors
    ///
    /// If it is not one of a backup, or the disk fails.
    pub fn take(&mut self, piece: &[u8]) -> Result<(), BackupError> {
        Ok(self.writer.take(piece)?)
    }

    /// Gives the backup its name, once all of it is on disk. Returns the last entry of its oplog, if it
    /// has one.
    ///
    /// # Errors
    ///
    /// If pieces are missing, or the disk fails.
    pub fn finish(self) -> Result<Option<OpTimeAndWallTime>, BackupError> {
        let Self { directory, partial, writer } = self;
        writer.finish()?;
        let last = match Backup::open(&partial) {
            Ok(backup) => Some(backup.finish()?),
            Err(BackupError::NoOplog) => None,
            Err(error) => return Err(error),
        };
        let moved = || {
            if directory.exists() {
                return Err(BackupError::Exists(directory.clone()));
            }
            let failed = |source| BackupError::Io { path: directory.clone(), source };
            fs::rename(&partial, &directory).map_err(failed)?;
            let parent = directory.parent().filter(|parent| !parent.as_os_str().is_empty());
            let parent = parent.unwrap_or(Path::new("."));
            File::open(parent).and_then(|parent| parent.sync_all()).map_err(failed)
        };
        moved().map(|()| last)
    }
}

/// The backup of a member of a set, opened to go on to a later moment.
pub struct Backup {
    node: Node,
    clock: Clock,
    last: OpTimeAndWallTime,
}

impl Backup {
    /// Opens a backup. From then on its member has forgotten its votes.
    ///
    /// # Errors
    ///
    /// If it is in use, damaged, or not that of a member of a set.
    pub fn open(directory: &Path) -> Result<Self, BackupError> {
        keep_files_private();
        let store = DiskStore::open(directory, DiskOptions::default())?;
        if !store.keyspaces().iter().any(|(name, _)| name == MEMBERS_KEYSPACE) {
            return Err(BackupError::NoOplog);
        }
        let clock = Clock::new();
        let options = NodeOptions {
            oplog_bytes: Some(DEFAULT_OPLOG_BYTES),
            block: Block(|run| run()),
            ..NodeOptions::default()
        };
        let node = Node::open(Arc::new(store), options, clock.now())?;
        let recovered = node.join_replica_set(clock.now())?;
        if recovered.config.is_some() {
            node.persist(&Change::Memory(Memory::Lost), clock.now())?;
        }
        Ok(Self { node, clock, last: recovered.last })
    }

    /// The last entry of its oplog.
    pub fn last(&self) -> OpTimeAndWallTime {
        self.last
    }

    /// Applies the entries that follow the last one.
    ///
    /// # Errors
    ///
    /// If they do not follow it, or the disk fails.
    pub fn apply(&mut self, entries: Vec<RawDocumentBuf>) -> Result<(), BackupError> {
        if !entries.is_empty() {
            self.last = self.node.apply(self.last.op_time, entries, self.clock.now())?;
        }
        Ok(())
    }

    /// Forces everything to disk and closes the backup. Returns its last entry.
    ///
    /// # Errors
    ///
    /// If the disk fails.
    pub fn finish(self) -> Result<OpTimeAndWallTime, BackupError> {
        self.node.sync_log()?;
        Ok(self.last)
    }
}
