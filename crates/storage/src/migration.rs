//! From format 1 to the present one. Format 2 needs no more than another manifest: see `disk/opening.rs`.
//!
//! Format 1 kept its keyspaces in fjall, whose trees are those of `lsm-tree`, as ours are. So fjall
//! writes out what is in its journal, and the trees are taken over as they are. This file is all that
//! still knows fjall. The steps are in `docs/storage-format.md`, "Migration from format 1".

mod torn;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::Path;

use fjall::{Database, KeyspaceCreateOptions};

use crate::disk::TREES_DIRECTORY;
use crate::files::Files;
use crate::format::{DataDirectory, OpenError};
use crate::journal::recovery::TornTail;
use crate::manifest::{Described, Kind, Manifest};
use torn::cut_torn_tail;

/// Where format 1 kept the files of its engine.
const ENGINE_DIRECTORY: &str = "engine";

/// Where fjall keeps the trees, below that.
const KEYSPACES_DIRECTORY: &str = "keyspaces";

/// Makes a directory of format 1 one of this program's. Returns the record that was cut off, if one was.
pub(crate) fn migrate(
    directory: &DataDirectory,
    files: &dyn Files,
) -> Result<Option<TornTail>, OpenError> {
    let root = directory.path();
    let engine = root.join(ENGINE_DIRECTORY);
    let failed = |path: &Path, source: io::Error| OpenError::Io { path: path.to_owned(), source };
    let (mut torn, mut manifest) = (None, Manifest { next_keyspace: 1, ..Manifest::default() });
    if fs::exists(&engine).map_err(|source| failed(&engine, source))? {
        if let Some(newest) = newest_journal(&engine).map_err(|source| failed(&engine, source))? {
            torn = cut_torn_tail(&engine, newest)?;
        }
        let keyspaces = flush_all(&engine).map_err(|source| OpenError::Engine {
            directory: root.to_owned(),
            source: Box::new(source),
        })?;
        manifest.next_keyspace = keyspaces.keys().max().map_or(1, |number| number + 1);
        manifest.keyspaces = keyspaces;
    }
    manifest.write(files, root).map_err(|source| failed(root, source))?;
    directory.write_format()?;
    Ok(torn)
}

/// Does what is left after the format file was written. A crash before its end leaves it to the next start.
pub(crate) fn finish(root: &Path) -> Result<(), OpenError> {
    let engine = root.join(ENGINE_DIRECTORY);
    let finish = || {
        if !fs::exists(&engine)? {
            return Ok(());
        }
        let keyspaces = engine.join(KEYSPACES_DIRECTORY);
        if fs::exists(&keyspaces)? {
            fs::rename(&keyspaces, root.join(TREES_DIRECTORY))?;
            File::open(root)?.sync_all()?;
        }
        fs::remove_dir_all(&engine)
    };
    finish().map_err(|source| OpenError::Io { path: engine.clone(), source })
}

/// Opens fjall, lets it write all memtables to tables, and closes it.
fn flush_all(engine: &Path) -> Result<BTreeMap<u32, Described>, fjall::Error> {
    let database = Database::builder(engine).open()?;
    let mut keyspaces = BTreeMap::new();
    for name in database.list_keyspace_names() {
        let keyspace = database.keyspace(&name, KeyspaceCreateOptions::default)?;
        keyspace.rotate_memtable_and_wait()?;
        let name = name.to_string();
        keyspaces.insert(keyspace.id() as u32, Described { name, kind: Kind::Tree });
    }
    Ok(keyspaces)
}

/// The number of the newest journal, `<number>.jnl`; none before the first start.
fn newest_journal(engine: &Path) -> io::Result<Option<u64>> {
    let mut newest = None;
    for entry in fs::read_dir(engine)? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.strip_suffix(".jnl")?.parse().ok());
        newest = newest.max(number);
    }
    Ok(newest)
}
