//! Members of the last release: a directory in storage format 1, which the store of this one migrates.
//!
//! Format 1 kept every keyspace in fjall, the entries of the oplog among the records (`docs/storage-format.md`,
//! "Migration from format 1"). A process that is to have run the last release finds all that its disk holds written
//! that way. What it does then is the store's own code.

use std::fs;
use std::path::Path;

use fjall::{Database, KeyspaceCreateOptions, PersistMode};
use quorate_node::{CommandError, ErrorCode};
use quorate_storage::{Direction, DiskStore, KeyRange, Snapshot, Store};

/// The keyspace of the entries of the oplog in this format, and that of the documents.
const OPLOG: &str = "oplog";
const RECORDS: &str = "records";

/// The row of the catalog that tells under which number the oplog is kept.
const OPLOG_ROW: &[u8] = b"clocal\0oplog.rs";

/// Writes everything of a store into an empty directory, as the last release would have.
pub(crate) fn write_first_format(store: &DiskStore, directory: &Path) -> Result<(), CommandError> {
    fs::create_dir_all(directory).map_err(failed)?;
    fs::write(directory.join("FORMAT"), b"QUORATE\x01").map_err(failed)?;
    fs::write(directory.join("LOCK"), b"").map_err(failed)?;
    let database = Database::builder(directory.join("engine")).open().map_err(failed)?;
    let snapshot = store.snapshot();
    let prefix = oplog_prefix(store, &*snapshot)?;
    for (number, (name, id)) in store.keyspaces().into_iter().enumerate() {
        let (place, prefix) = match (name.as_str(), &prefix) {
            (OPLOG, Some(prefix)) => (RECORDS, &prefix[..]),
            // A log without a collection has no entries.
            (OPLOG, None) => continue,
            (name, _) => (name, &[][..]),
        };
        let keyspace = database.keyspace(place, KeyspaceCreateOptions::default).map_err(failed)?;
        for pair in snapshot.scan(id, KeyRange::all(), Direction::Forward).map_err(failed)? {
            let (key, value) = pair.map_err(failed)?;
            keyspace.insert([prefix, &key[..]].concat(), &value[..]).map_err(failed)?;
        }
        // Some of it is in tables, the rest in the journal alone.
        if number % 2 == 0 {
            keyspace.rotate_memtable_and_wait().map_err(failed)?;
        }
    }
    database.persist(PersistMode::SyncAll).map_err(failed)
}

/// What the keys of the oplog's entries begin with; none if there is no oplog.
fn oplog_prefix(
    store: &DiskStore,
    snapshot: &dyn Snapshot,
) -> Result<Option<[u8; 8]>, CommandError> {
    let keyspaces = store.keyspaces();
    let Some((_, catalog)) = keyspaces.iter().find(|(name, _)| name == "catalog") else {
        return Ok(None);
    };
    let Some(row) = snapshot.get(*catalog, OPLOG_ROW).map_err(failed)? else { return Ok(None) };
    let row = bson::RawDocument::from_bytes(&row).map_err(failed)?;
    Ok(Some(row.get_i64("ident").map_err(failed)?.to_be_bytes()))
}

fn failed(error: impl std::fmt::Display) -> CommandError {
    let what = format!("a directory of the last release cannot be written: {error}");
    CommandError::new(ErrorCode::INTERNAL_ERROR, what)
}

/// Copies what a store at rest has on the file system: its trees and the file that tells its format.
pub(crate) fn copy_trees(from: &Path, to: &Path) -> std::io::Result<()> {
    for (name, copy) in [("FORMAT", copy_file as fn(&Path, &Path) -> _), ("trees", copy_all)] {
        if fs::exists(from.join(name))? {
            copy(&from.join(name), &to.join(name))?;
        }
    }
    Ok(())
}

fn copy_file(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::copy(from, to).map(drop)
}

fn copy_all(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => copy_all(&entry.path(), &target)?,
            false => copy_file(&entry.path(), &target)?,
        }
    }
    Ok(())
}
