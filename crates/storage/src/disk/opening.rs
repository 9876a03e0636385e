//! Opening a store: migration, manifest, trees, and the journal that completes them.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, Weak};

use super::background::{Background, Work};
use super::{CommitState, DiskOptions, DiskStore, Keyspace, Keyspaces, Living, Published, Shared};
use crate::files::{Files, RealFiles, read_all};
use crate::format::{DataDirectory, FIRST_FORMAT, FORMAT_VERSION, OpenError};
use crate::group_commit::GroupCommit;
use crate::journal::Writer;
use crate::journal::folder::Folder;
use crate::journal::log::LogState;
use crate::journal::record::{Found, Operation, Record};
use crate::journal::recovery::{Recovered, Recovery};
use crate::journal::segment::{Header, SEGMENT_HEADER, Segment};
use crate::manifest::{Kind, Manifest};
use crate::migration;
use crate::store::{Bytes, Damage, KeyspaceId, ReadError};
use crate::trees::{Stamp, Tree, TreeContext};

const JOURNAL_DIRECTORY: &str = "journal";
pub(crate) const TREES_DIRECTORY: &str = "trees";

impl DiskStore {
    /// Opens the store in this directory, creating, migrating or recovering it.
    pub fn open(directory: impl AsRef<Path>, options: DiskOptions) -> Result<Self, OpenError> {
        Self::open_on(Arc::new(RealFiles), directory, options)
    }

    /// Opens a store whose journal and manifest are on other files than those of the operating
    /// system. The trees are on the latter always.
    pub fn open_on(
        files: Arc<dyn Files>,
        directory: impl AsRef<Path>,
        options: DiskOptions,
    ) -> Result<Self, OpenError> {
        let directory = DataDirectory::open(directory.as_ref())?;
        let migrated_tail = if directory.found_format() == FIRST_FORMAT {
            migration::migrate(&directory, &*files)?
        } else {
            None
        };
        migration::finish(directory.path())?;
        let root = directory.path().to_owned();
        let failed = |source: io::Error| OpenError::Io { path: root.clone(), source };
        let journal = root.join(JOURNAL_DIRECTORY);
        for path in [&journal, &root.join(TREES_DIRECTORY)] {
            RealFiles.create_directory(path).map_err(failed)?;
        }
        files.create_directory(&journal).map_err(failed)?;
        let unreadable = |source: io::Error| match source.kind() {
            io::ErrorKind::InvalidData => {
                OpenError::Engine { directory: root.clone(), source: Box::new(source) }
            }
            _ => failed(source),
        };
        let found = Manifest::read(&*files, &root).map_err(unreadable)?;
        let mut manifest =
            found.unwrap_or_else(|| Manifest { next_keyspace: 1, ..Manifest::default() });
        // An older program must not find what it would misread.
        if (FIRST_FORMAT + 1..FORMAT_VERSION).contains(&directory.found_format()) {
            directory.write_format()?;
        }
        let secret = manifest.secret.unwrap_or_else(|| files.secret());
        let context = TreeContext::new(root.join(TREES_DIRECTORY), options);
        let trees = open_trees(&context, &manifest, &root)?;
        let folder = Folder::new(Arc::clone(&files), &journal, secret, options.segment_bytes);
        let folder = Arc::new(folder);
        let recovered = recover(&folder, &manifest, &trees)?;
        // Before the first record that has a salt.
        if manifest.secret.is_none() {
            manifest.secret = Some(secret);
            manifest.write(&*files, &root).map_err(failed)?;
        }
        context.sequences.fetch_max(recovered.next.after.max(manifest.sequence) + 1);
        let torn_tail = recovered.torn.clone().or(migrated_tail);
        let shared =
            assemble(folder, root.clone(), context, manifest, trees, recovered).map_err(failed)?;
        let shared = Arc::new(shared);
        let background = Background::start(&shared).map_err(failed)?;
        // The next segment is prepared, and what a crash left behind is given back.
        shared.work.wake();
        Ok(Self { shared, _background: background, torn_tail, directory, at_close: None })
    }
}

type Trees = BTreeMap<u32, Arc<Tree>>;

/// Opens the trees that the manifest names, and removes the others.
fn open_trees(context: &TreeContext, manifest: &Manifest, root: &Path) -> Result<Trees, OpenError> {
    let is_tree = |number: u32| {
        manifest.keyspaces.get(&number).is_some_and(|described| described.kind == Kind::Tree)
    };
    let failed = |source: io::Error| OpenError::Io { path: context.directory.clone(), source };
    for entry in fs::read_dir(&context.directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
        if !number.is_some_and(is_tree) {
            fs::remove_dir_all(entry.path()).map_err(failed)?;
        }
    }
    let mut trees = BTreeMap::new();
    for (&number, described) in &manifest.keyspaces {
        if described.kind == Kind::Tree {
            let tree = context.open(number, &described.name).map_err(|error| {
                OpenError::Engine { directory: root.to_owned(), source: Box::new(error) }
            })?;
            trees.insert(number, tree);
        }
    }
    Ok(trees)
}

fn recover(
    folder: &Arc<Folder>,
    manifest: &Manifest,
    trees: &Trees,
) -> Result<Recovered, OpenError> {
    let logs = manifest.keyspaces.iter().filter_map(|(&number, described)| match described.kind {
        Kind::Log { trimmed } => Some((number, LogState::new(trimmed))),
        Kind::Tree => None,
    });
    let mut replay = |sequence: u64, operation: &Operation<'_>| {
        let (Operation::Put { keyspace, .. } | Operation::Remove { keyspace, .. }) = operation
        else {
            return;
        };
        let Some(tree) = trees.get(keyspace).filter(|tree| sequence > tree.persisted) else {
            return;
        };
        // There is no snapshot yet.
        let stamp = Stamp { sequence, shown: sequence };
        match operation {
            Operation::Put { key, value, .. } => {
                tree.put(Bytes::from(*key), Some(Bytes::from(*value)), stamp);
            }
            Operation::Remove { key, .. } => {
                tree.put(Bytes::from(*key), None, stamp);
            }
            _ => {}
        }
    };
    Recovery {
        folder,
        is_of_format_2: manifest.secret.is_none(),
        first_segment: manifest.first_segment,
        replay_from: manifest.replay_from,
        logs: logs.collect(),
        replay: &mut replay,
    }
    .run()
}

fn assemble(
    folder: Arc<Folder>,
    root: std::path::PathBuf,
    context: TreeContext,
    mut manifest: Manifest,
    trees: Trees,
    recovered: Recovered,
) -> io::Result<Shared> {
    let files = Arc::clone(&folder.files);
    let writer = Writer::begin(folder, recovered.next)?;
    // From here on there is a journal to be missed.
    if manifest.first_segment == 0 {
        let first = recovered.segments.first().unwrap_or(writer.segment());
        manifest.first_segment = first.number;
        manifest.write(&*files, &root)?;
    }
    let mut keyspaces = Keyspaces::new();
    for (&number, described) in &manifest.keyspaces {
        let keyspace = match trees.get(&number) {
            Some(tree) => Keyspace::Tree(Arc::clone(tree)),
            None => Keyspace::Log(number),
        };
        keyspaces.insert(KeyspaceId(u64::from(number)), (described.name.clone(), keyspace));
    }
    let segments = recovered.segments.into_iter().chain([Arc::clone(writer.segment())]);
    let published = Published {
        visible: context.sequences.get(),
        end: writer.end(),
        logs: Arc::new(recovered.logs.clone()),
        segments: segments.collect(),
        keyspaces: Arc::new(keyspaces),
        snapshots: Living::default(),
        newest: Weak::new(),
    };
    let journal = writer.shared();
    let sync_log = {
        let journal = Arc::clone(&journal);
        move || journal.sync()
    };
    Ok(Shared {
        files,
        root,
        context,
        group: GroupCommit::new(Box::new(sync_log)),
        journal,
        manifest: Mutex::new(manifest),
        commit: Mutex::new(CommitState { writer, logs: recovered.logs }),
        published: Arc::new(Mutex::new(published)),
        flushing: Mutex::default(),
        work: Work::default(),
    })
}

/// Reads all records of a segment up to `end`. Returns the first place that is damaged.
pub(super) fn verify_segment(segment: &Segment, end: u32) -> Result<Option<Damage>, ReadError> {
    let read = || read_all(&*segment.open()?);
    let bytes = read().map_err(|error| ReadError::Engine(Box::new(error)))?;
    let damage = |offset: usize| {
        let (file, offset) = (segment.path.clone(), Some(offset as u64));
        Ok(Some(Damage { file, offset, keyspace: None }))
    };
    if Header::decode(&bytes).is_none_or(|header| header.number != segment.number) {
        return damage(0);
    }
    let mut offset = SEGMENT_HEADER as usize;
    while offset < end as usize {
        match bytes.get(offset..end as usize).map(|rest| Record::read(rest, segment.salt)) {
            Some(Found::Whole(record)) if record.operations().all(|found| found.is_some()) => {
                offset += record.length;
            }
            _ => return damage(offset),
        }
    }
    Ok(None)
}
