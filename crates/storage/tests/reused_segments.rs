//! Segments that are written over: `docs/storage-format.md`, "Reused segments".
//!
//! Without a log nothing needs a segment once the trees are flushed, and with small segments one is written over after a few
//! dozen commits.

#![allow(clippy::unwrap_used, reason = "a panic is the report")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use quorate_storage::{
    Batch, CommitError, Direction, DiskOptions, DiskStore, Fate, Files, KeyRange, KeyspaceId,
    OpenError, SimulatedFiles, Store,
};

const SEGMENT_BYTES: u32 = 4096;
const SMALL: DiskOptions =
    DiskOptions { cache_bytes: 1 << 20, memtable_bytes: 1_000, segment_bytes: SEGMENT_BYTES };

const SEGMENT_HEADER: usize = 40;

/// What stands before the value in a record of one pair whose key has eight bytes and whose value has two bytes of length.
const BEFORE_VALUE: usize = 20 + 1 + 1 + 1 + 8 + 2;

fn open(files: &SimulatedFiles, directory: &Path) -> DiskStore {
    DiskStore::open_on(Arc::new(files.clone()), directory, SMALL).unwrap()
}

fn keyspace(store: &DiskStore) -> KeyspaceId {
    store.create_keyspace("k").unwrap()
}

fn put(store: &DiskStore, number: u64, value: Vec<u8>) {
    let mut batch = Batch::new();
    batch.insert(keyspace(store), &number.to_be_bytes(), value);
    store.commit(batch).unwrap();
    store.write_out_through(store.last_committed()).unwrap();
}

/// The numbers of the keys, and the lengths of the values.
fn pairs(store: &DiskStore) -> Vec<(u64, usize)> {
    let keyspace = keyspace(store);
    let scan = store.snapshot().scan(keyspace, KeyRange::all(), Direction::Forward).unwrap();
    scan.map(|pair| {
        let (key, value) = pair.unwrap();
        (u64::from_be_bytes((&key[..]).try_into().unwrap()), value.len())
    })
    .collect()
}

/// The segments, and the number that each says it has.
fn segments(files: &SimulatedFiles) -> Vec<(PathBuf, Option<u64>)> {
    let is_segment = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "seg");
    let paths = files.paths().into_iter().filter(is_segment);
    let says = |path: PathBuf| {
        // The store may rename or remove it meanwhile.
        let (file, mut bytes) = (files.open(&path).ok()?, [0; 16]);
        file.read_at(&mut bytes, 0).ok()?;
        let has_header = bytes.starts_with(b"QRTSEG");
        Some((path, has_header.then(|| u64::from_le_bytes(bytes[8..].try_into().unwrap()))))
    };
    paths.filter_map(says).collect()
}

fn number_of(path: &Path) -> u64 {
    u64::from_str_radix(path.file_stem().unwrap().to_str().unwrap(), 16).unwrap()
}

/// The file of the next segment, if it is one that held another.
fn reused(files: &SimulatedFiles) -> Option<PathBuf> {
    let found = segments(files);
    let (path, says) = found.last()?;
    says.is_some_and(|says| says < number_of(path)).then(|| path.clone())
}

fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}");
        std::thread::yield_now();
    }
}

/// Its record is 280 bytes long, as the others are that are written before a segment is reused.
const VALUE_OF_K: usize = 254;

/// A record of format 2, which removes the key `k` of the first keyspace.
fn forged() -> Vec<u8> {
    let (sequence, synced, body) = (1_000_000_u64, 4000_u32, [3, 1, 1, b'k']);
    let fields = [&sequence.to_le_bytes()[..], &synced.to_le_bytes()].concat();
    let checksum = crc32c::crc32c_append(crc32c::crc32c(&body), &fields);
    let head = [(body.len() as u32).to_le_bytes(), checksum.to_le_bytes()].concat();
    [&head[..], &fields, &body].concat()
}

/// A value that makes its record 280 bytes long and holds whole records, each at a multiple of eight bytes.
fn value_of_records() -> Vec<u8> {
    let pad = (BEFORE_VALUE.next_multiple_of(8)) - BEFORE_VALUE;
    [vec![0; pad], forged().repeat(10)].concat()
}

/// A store whose newest segment is written over another one that held such values, with one record of 512 bytes. Returns
/// the segment, too.
fn one_record_over_others() -> (tempfile::TempDir, SimulatedFiles, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let files = SimulatedFiles::new();
    let store = open(&files, directory.path());
    let mut batch = Batch::new();
    batch.insert(keyspace(&store), b"k", vec![b'v'; VALUE_OF_K]);
    store.commit(batch).unwrap();
    let mut next = 0;
    let path = wait_for("no segment is used again", || {
        put(&store, next, value_of_records());
        next += 1;
        reused(&files)
    });
    wait_for("the segment is not begun", || {
        put(&store, next, vec![7; 512 - BEFORE_VALUE]);
        next += 1;
        reused(&files).is_none_or(|spare| spare != path).then_some(())
    });
    let crashed = files.crash(|| Fate::Kept);
    drop(store);
    (directory, crashed, path)
}

/// What was in a reused segment before is no part of the journal, and its end is not called torn.
#[test]
fn a_reused_segment_ends_where_its_own_records_end() {
    let (directory, files, path) = one_record_over_others();
    let end = SEGMENT_HEADER + 512;
    files.damage(&path, |bytes| {
        assert_eq!(u64::from_le_bytes(bytes[8..16].try_into().unwrap()), number_of(&path));
        assert_eq!(bytes[end..end + 8], [0; 8], "the mark of the end");
        assert_eq!(bytes[end + 8..end + 24], forged()[8..], "an old value is behind it");
    });
    let store = open(&files, directory.path());
    assert_eq!(store.torn_tail(), None);
    assert_eq!(store.verify().unwrap(), []);
    let value = store.snapshot().get(keyspace(&store), b"k").unwrap();
    assert_eq!(value.as_deref(), Some(&[b'v'; VALUE_OF_K][..]));
}

/// The mark of the end may be lost while the record before it is not: they can be in two sectors.
#[test]
fn bytes_of_an_old_document_never_count_as_a_record() {
    let (directory, files, path) = one_record_over_others();
    let end = SEGMENT_HEADER + 512;
    files.damage(&path, |bytes| bytes[end..end + 8].copy_from_slice(&forged()[..8]));
    let store = open(&files, directory.path());
    let value = store.snapshot().get(keyspace(&store), b"k").unwrap();
    assert_eq!(
        value.as_deref(),
        Some(&[b'v'; VALUE_OF_K][..]),
        "a document was taken for a record"
    );
    let torn = store.torn_tail().unwrap();
    assert_eq!((&torn.journal, torn.offset), (&path, end as u64));
}

/// A crash after a segment was prepared, and before it was begun.
#[test]
fn a_reused_segment_that_was_not_begun_is_removed() {
    let directory = tempfile::tempdir().unwrap();
    let files = SimulatedFiles::new();
    let store = open(&files, directory.path());
    let mut next = 0;
    let path = wait_for("no segment is used again", || {
        put(&store, next, value_of_records());
        next += 1;
        reused(&files)
    });
    store.sync_through(store.last_committed()).unwrap();
    let crashed = files.crash(|| Fate::Kept);
    drop(store);
    let store = open(&crashed, directory.path());
    assert_eq!(pairs(&store).len() as u64, next);
    drop(store);
    let is_newer =
        |(found, says): &(PathBuf, Option<u64>)| *found != path || *says == Some(number_of(&path));
    assert!(segments(&crashed).iter().all(is_newer), "{:?}", segments(&crashed));
}

/// A damaged header of a segment with promised records is told from one that was never written.
#[test]
fn damage_to_the_header_of_a_reused_segment_is_refused() {
    let (directory, files, _) = one_record_over_others();
    let store = open(&files, directory.path());
    let mut number = 1_000_000;
    let path = wait_for("no segment is used again", || {
        put(&store, number, value_of_records());
        number += 1;
        reused(&files)
    });
    wait_for("the segment is not begun", || {
        put(&store, number, value_of_records());
        number += 1;
        reused(&files).is_none_or(|spare| spare != path).then_some(())
    });
    // The second says that the first is on the disk.
    store.sync_through(store.last_committed()).unwrap();
    put(&store, number, vec![1; 200]);
    let files = files.crash(|| Fate::Kept);
    drop(store);
    let mut old = Vec::new();
    files.damage(&path, |bytes| {
        old = bytes.clone();
        bytes[..SEGMENT_HEADER].fill(0);
    });
    let refused = || DiskStore::open_on(Arc::new(files.clone()), directory.path(), SMALL).err();
    assert!(refused().unwrap().to_string().contains("is damaged"));
    // The header of what was there before, as if the new one had never reached the disk.
    let header = |number: u64| {
        let head = [&b"QRTSEG\0\x03"[..], &number.to_le_bytes(), &[0; 16]].concat();
        [&head[..], &crc32c::crc32c(&head).to_le_bytes(), &[0; 4]].concat()
    };
    files.damage(&path, |bytes| {
        bytes[..SEGMENT_HEADER].copy_from_slice(&header(number_of(&path) - 1));
    });
    assert!(refused().unwrap().to_string().contains("is damaged"));
    files.damage(&path, |bytes| *bytes = old);
    assert_eq!(refused().map(|error| error.to_string()), None);
}

/// The disk has room for a manifest and for tables, and for no segment. Memtables are flushed all the same, so that a segment
/// becomes free to be written over.
#[test]
fn a_store_on_a_full_disk_goes_on_in_its_own_segments() {
    const LARGE: DiskOptions = DiskOptions { segment_bytes: 256 * 1024, ..SMALL };
    let directory = tempfile::tempdir().unwrap();
    let files = SimulatedFiles::new();
    let store = DiskStore::open_on(Arc::new(files.clone()), directory.path(), LARGE).unwrap();
    keyspace(&store);
    wait_for("no segment is prepared", || (segments(&files).len() == 2).then_some(()));
    files.limit_room(Some(u64::from(LARGE.segment_bytes) / 2));
    for number in 0..100 {
        wait_for("the store has stopped", || {
            let mut batch = Batch::new();
            batch.insert(keyspace(&store), &u64::to_be_bytes(number), vec![7; 10_000]);
            match store.commit(batch) {
                Ok(_) => Some(()),
                Err(CommitError::DiskFull) => None,
                Err(error) => panic!("{error}"),
            }
        });
    }
    assert_eq!(pairs(&store).len(), 100);
}

/// A process that has used up its descriptors opens no segment. The write is refused, nothing is lost, and later ones
/// succeed: with a file that is kept to be written over, and without one.
#[test]
fn a_store_without_descriptors_refuses_a_batch_and_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let files = SimulatedFiles::new();
    let store = open(&files, directory.path());
    let mut number = 0;
    let mut refusals = 0;
    while refusals < 20 {
        let mut batch = Batch::new();
        batch.insert(keyspace(&store), &u64::to_be_bytes(number), vec![7; 300]);
        // The store makes its next segment ahead, so that several batches are stored all the same.
        files.use_up_descriptors(number % 40 >= 10);
        match store.commit(batch) {
            Ok(_) => number += 1,
            Err(CommitError::TooManyFiles) => {
                refusals += 1;
                files.use_up_descriptors(false);
            }
            Err(error) => panic!("{error}"),
        }
    }
    store.sync_through(store.last_committed()).unwrap();
    assert_eq!(pairs(&store).len() as u64, number);
    let after = files.crash(|| Fate::Lost);
    drop(store);
    assert_eq!(pairs(&open(&after, directory.path())).len() as u64, number);
}

/// A file that is kept to be written over, and one that is prepared, take room on the disk as well.
#[test]
fn all_files_of_the_journal_count_as_used() {
    let directory = tempfile::tempdir().unwrap();
    let files = SimulatedFiles::new();
    let store = open(&files, directory.path());
    let mut next = 0;
    wait_for("no segment is used again", || {
        put(&store, next, vec![7; 200]);
        next += 1;
        reused(&files)
    });
    let journal = |path: &PathBuf| path.parent().is_some_and(|parent| parent.ends_with("journal"));
    let length = |path: PathBuf| files.open(&path).and_then(|file| file.length()).unwrap_or(0);
    wait_for("not all files count", || {
        let used: u64 = files.paths().into_iter().filter(journal).map(length).sum();
        assert!(used >= 2 * u64::from(SEGMENT_BYTES));
        (store.statistics().journal_bytes == used).then_some(())
    });
}

/// The first segment that the manifest needs.
fn first_segment(files: &SimulatedFiles, directory: &Path) -> PathBuf {
    let mut number = [0; 8];
    files.open(&directory.join("MANIFEST")).unwrap().read_at(&mut number, 16).unwrap();
    directory.join(format!("journal/{:016x}.seg", u64::from_le_bytes(number)))
}

/// Neither a store that goes on in its first segment nor one that passes over it would say that something is gone.
#[test]
fn the_first_segment_that_is_needed_is_missed() {
    let (directory, files, _) = one_record_over_others();
    let directory = directory.path();
    let first = first_segment(&files, directory);
    assert!(number_of(&first) > 1);
    let open = |files: SimulatedFiles| DiskStore::open_on(Arc::new(files), directory, SMALL).err();
    let without = files.survivor(|| Fate::Kept);
    without.remove(&first).unwrap();
    let error = open(without).unwrap();
    assert!(
        matches!(&error, OpenError::MissingSegment { segment } if *segment == first),
        "{error}"
    );
    // All that the journal is said to begin with.
    let emptied = files.survivor(|| Fate::Kept);
    for (path, _) in segments(&emptied) {
        emptied.remove(&path).unwrap();
    }
    let error = open(emptied).unwrap();
    assert!(matches!(error, OpenError::MissingSegment { .. }), "{error}");
    let headless = files.survivor(|| Fate::Kept);
    for (path, _) in segments(&headless).into_iter().filter(|(path, _)| *path > first) {
        headless.remove(&path).unwrap();
    }
    headless.damage(&first, |bytes| bytes.fill(0));
    let error = open(headless).unwrap();
    assert!(
        matches!(&error, OpenError::DamagedJournal { journal, offset: 0 } if *journal == first)
            || matches!(error, OpenError::MissingSegment { .. }),
        "{error}"
    );
}

/// A store whose first segment was never given back has a record of that, too.
#[test]
fn a_journal_that_is_gone_whole_is_missed() {
    // The store notes what it needs in the background, too, which may be before the first record.
    for _ in 0..20 {
        let directory = tempfile::tempdir().unwrap();
        let files = SimulatedFiles::new();
        let store = open(&files, directory.path());
        put(&store, 1, vec![7; 300]);
        store.sync_through(store.last_committed()).unwrap();
        let without = files.survivor(|| Fate::Lost);
        for (path, _) in segments(&without) {
            without.remove(&path).unwrap();
        }
        let first = directory.path().join("journal/0000000000000001.seg");
        drop(store);
        let error = DiskStore::open_on(Arc::new(without), directory.path(), SMALL).err().unwrap();
        assert!(
            matches!(&error, OpenError::MissingSegment { segment } if *segment == first),
            "{error}"
        );
    }
}

/// A snapshot that reads a segment keeps it from being written over.
#[test]
fn a_segment_is_not_reused_while_a_snapshot_reads_it() {
    let directory = tempfile::tempdir().unwrap();
    let files = SimulatedFiles::new();
    let store = open(&files, directory.path());
    let log = store.create_log("log").unwrap();
    let append = |position: u64| {
        let mut batch = Batch::new();
        batch.append_to_log(log, position, vec![position as u8; 300]);
        store.commit(batch).unwrap();
    };
    (1..=60).for_each(append);
    let before = store.snapshot();
    let mut batch = Batch::new();
    batch.trim_log(log, 60);
    store.commit(batch).unwrap();
    let mut position = 60;
    // Others are written over meanwhile.
    wait_for("no segment is used again", || {
        position += 1;
        append(position);
        let mut batch = Batch::new();
        batch.trim_log(log, position);
        store.commit(batch).unwrap();
        reused(&files)
    });
    let found = before.scan(log, KeyRange::all(), Direction::Forward).unwrap();
    let found: Vec<_> = found.map(|pair| pair.unwrap().1).collect();
    let expected: Vec<_> = (1..=60_u8).map(|position| vec![position; 300]).collect();
    assert_eq!(found.iter().map(|entry| entry.to_vec()).collect::<Vec<_>>(), expected);
}

#[derive(Clone, Debug)]
enum Step {
    Write(u8),
    Sync,
    /// Waits until the next segment is one that held another.
    Reuse,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_was_synced_survives_in_reused_segments(
        lives in proptest::collection::vec(
            (proptest::collection::vec(
                prop_oneof![
                    3 => (1_u8..30).prop_map(Step::Write),
                    1 => Just(Step::Sync),
                    1 => Just(Step::Reuse),
                ], 1..10),
             proptest::collection::vec(any::<bool>(), 64)),
            1..4),
    ) {
        let directory = tempfile::tempdir().unwrap();
        let mut files = SimulatedFiles::new();
        let mut next = 0;
        for (steps, fates) in lives {
            let store = open(&files, directory.path());
            let mut promised = next;
            let write = |next: &mut u64| {
                put(&store, *next, value_of_records());
                *next += 1;
            };
            for step in steps {
                match step {
                    Step::Write(count) => (0..count).for_each(|_| write(&mut next)),
                    Step::Sync => {
                        store.sync_through(store.last_committed()).unwrap();
                        promised = next;
                    }
                    Step::Reuse => wait_for("no segment is used again", || {
                        write(&mut next);
                        reused(&files).map(drop)
                    }),
                }
            }
            let mut fates = fates.into_iter().cycle();
            let crashed = files.crash(|| if fates.next().unwrap() { Fate::Kept } else { Fate::Lost });
            drop(store);
            files = crashed;
            let store = open(&files, directory.path());
            let found = pairs(&store);
            prop_assert!(found.len() as u64 >= promised, "{} of {promised}", found.len());
            prop_assert!(found.len() as u64 <= next);
            next = found.len() as u64;
            let length = value_of_records().len();
            prop_assert_eq!(found, (0..next).map(|number| (number, length)).collect::<Vec<_>>());
            prop_assert_eq!(store.verify().unwrap(), []);
        }
    }
}
