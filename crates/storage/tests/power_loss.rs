//! The store after a power failure: what was synced is there, no batch is there in part, and the rest
//! is a prefix; whatever part of what was not synced reached the disk, and in whatever order.
//!
//! The journal and the manifest are on a simulated disk. The trees are on the file system, which keeps
//! what they wrote: so a tree that was flushed before the journal was synced shows as a batch in part.

#![allow(clippy::unwrap_used, reason = "a panic is the report")]

use std::collections::BTreeMap;
use std::ops::Bound;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use proptest::prelude::*;
use quorate_storage::{
    Batch, Bytes, CommitError, CommitSequence, Direction, DiskOptions, DiskStore, Fate, KeyRange,
    KeyspaceError, OpenError, ReadError, SimulatedFiles, Snapshot, Store, SyncError,
};

const SMALL: DiskOptions =
    DiskOptions { cache_bytes: 1 << 20, memtable_bytes: 2_000, segment_bytes: 16 << 20 };

fn open(files: &SimulatedFiles, directory: &Path) -> Result<DiskStore, OpenError> {
    DiskStore::open_on(Arc::new(files.clone()), directory, SMALL)
}

/// Writes a number to two trees and to the log, in one batch.
fn write(store: &DiskStore, number: u64) {
    let (one, two) = (store.create_keyspace("one").unwrap(), store.create_keyspace("two").unwrap());
    let log = store.create_log("log").unwrap();
    let mut batch = Batch::new();
    batch.append_to_log(log, number, vec![number as u8; 300]);
    batch.insert(one, &number.to_be_bytes(), vec![number as u8; 200]);
    // The second tree is written to rarely enough to be flushed at other times than the first.
    if number.is_multiple_of(3) {
        batch.insert(two, &number.to_be_bytes(), vec![number as u8; 900]);
    }
    store.commit(batch).unwrap();
}

/// The numbers that are there, checked to be a prefix and whole.
fn numbers(store: &DiskStore) -> Vec<u64> {
    let snapshot = store.snapshot();
    let keys = |name: &str, value: usize| -> Vec<u64> {
        let found = store.keyspaces();
        let Some((_, id)) = found.iter().find(|(known, _)| known == name) else {
            return Vec::new();
        };
        let written = KeyRange { start: Bound::Unbounded, end: Bound::Excluded(vec![INGESTED]) };
        let pairs = snapshot.scan(*id, written, Direction::Forward).unwrap();
        let number = |pair: Result<(quorate_storage::Bytes, quorate_storage::Bytes), _>| {
            let (key, bytes) = pair.unwrap();
            let number = u64::from_be_bytes((&key[..]).try_into().unwrap());
            assert_eq!(&bytes[..], &vec![number as u8; value][..]);
            number
        };
        pairs.map(number).collect()
    };
    let log = keys("log", 300);
    assert_eq!(keys("one", 200), log, "a batch is there in part");
    let thirds: Vec<_> = log.iter().copied().filter(|number| number.is_multiple_of(3)).collect();
    assert_eq!(keys("two", 900), thirds, "a batch is there in part");
    assert_eq!(log, (0..log.len() as u64).collect::<Vec<_>>(), "not a prefix");
    log
}

/// The first byte of keys that are ingested.
const INGESTED: u8 = 0xFF;

/// Ingests pairs, in turns into a tree that is written to as well and into one that is not.
fn ingest(store: &DiskStore, round: u64, count: u8) {
    let name = ["one", "apart"][usize::from(!round.is_multiple_of(2))];
    let keyspace = store.create_keyspace(name).unwrap();
    let key = |n: u8| [&[INGESTED][..], &round.to_be_bytes(), &[n]].concat();
    let mut pairs = (0..count).map(|n| (Bytes::from(key(n)), Bytes::from(vec![n; 50])));
    store.ingest(keyspace, &mut pairs).unwrap();
}

/// How many pairs there are of each round.
fn ingested(store: &DiskStore) -> BTreeMap<u64, u8> {
    let (range, mut rounds) = (KeyRange::prefix(&[INGESTED]), BTreeMap::new());
    for (_, keyspace) in store.keyspaces().into_iter().filter(|(name, _)| name != "log") {
        for pair in store.snapshot().scan(keyspace, range.clone(), Direction::Forward).unwrap() {
            let (key, value) = pair.unwrap();
            assert_eq!(&*value, &[key[9]; 50]);
            *rounds.entry(u64::from_be_bytes(key[1..9].try_into().unwrap())).or_default() += 1;
        }
    }
    rounds
}

/// Writes until a tree has been flushed.
fn write_until_flushed(store: &DiskStore, directory: &Path) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    for number in 0.. {
        write(store, number);
        // A few more than fill a memtable; then the flush is waited for.
        while number >= 12 && !has_tables(&directory.join("trees")) {
            assert!(std::time::Instant::now() < deadline, "nothing was flushed");
            std::thread::yield_now();
        }
        if has_tables(&directory.join("trees")) {
            return;
        }
    }
}

fn has_tables(trees: &Path) -> bool {
    std::fs::read_dir(trees).unwrap().any(|tree| {
        let tables = tree.unwrap().path().join("tables");
        std::fs::read_dir(tables).is_ok_and(|tables| tables.count() > 0)
    })
}

#[derive(Clone, Debug)]
enum Step {
    Write(u8),
    WriteOut,
    Sync,
    Ingest(u8),
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_was_synced_survives_and_the_rest_is_a_prefix(
        lives in proptest::collection::vec(
            (proptest::collection::vec(
                prop_oneof![
                    3 => (1_u8..12).prop_map(Step::Write),
                    2 => Just(Step::WriteOut),
                    1 => Just(Step::Sync),
                    1 => (1_u8..40).prop_map(Step::Ingest),
                ], 1..12),
             proptest::collection::vec(any::<bool>(), 64)),
            1..4),
    ) {
        let directory = tempfile::tempdir().unwrap();
        let mut files = SimulatedFiles::new();
        let mut next = 0;
        let mut rounds = BTreeMap::new();
        for (steps, fates) in lives {
            let store = open(&files, directory.path()).unwrap();
            let mut promised = next;
            for step in steps {
                match step {
                    Step::Write(count) => {
                        for _ in 0..count {
                            write(&store, next);
                            next += 1;
                        }
                    }
                    Step::WriteOut => drop(store.write_out_through(store.last_committed()).unwrap()),
                    Step::Sync => {
                        store.sync_through(store.last_committed()).unwrap();
                        promised = next;
                    }
                    // A tree keeps nothing that is newer than what the journal has.
                    Step::Ingest(count) => {
                        let round = rounds.len() as u64;
                        write(&store, next);
                        next += 1;
                        ingest(&store, round, count);
                        rounds.insert(round, count);
                        promised = next;
                    }
                }
            }
            let mut fates = fates.into_iter().cycle();
            // The power fails before the threads of the store end.
            let crashed = files.crash(|| if fates.next().unwrap() { Fate::Kept } else { Fate::Lost });
            drop(store);
            files = crashed;
            let store = open(&files, directory.path()).unwrap();
            let found = numbers(&store).len() as u64;
            prop_assert!(found >= promised, "{found} of {promised} that were synced");
            prop_assert!(found <= next);
            next = found;
            if !rounds.is_empty() {
                prop_assert_eq!(ingested(&store), rounds.clone());
            }
            prop_assert_eq!(store.verify().unwrap(), []);
        }
    }
}

#[test]
fn a_forgotten_sync_loses_what_was_promised() {
    // This is what the test above would see if the store did not sync.
    let directory = tempfile::tempdir().unwrap();
    let files = SimulatedFiles::new();
    let store = open(&files, directory.path()).unwrap();
    write(&store, 0);
    files.ignore_syncs(true);
    write(&store, 1);
    store.sync_through(store.last_committed()).unwrap();
    let after = files.crash(|| Fate::Lost);
    drop(store);
    assert!(numbers(&open(&after, directory.path()).unwrap()).len() < 2);
}

#[test]
fn a_tree_never_keeps_what_the_journal_may_lose() {
    let directory = tempfile::tempdir().unwrap();
    let files = SimulatedFiles::new();
    let store = open(&files, directory.path()).unwrap();
    write_until_flushed(&store, directory.path());
    let after = files.crash(|| Fate::Lost);
    drop(store);
    let store = open(&after, directory.path()).unwrap();
    assert!(!numbers(&store).is_empty(), "what a tree holds was synced before");
}

#[test]
fn a_segment_is_on_the_disk_before_the_next_one_is_used() {
    let directory = tempfile::tempdir().unwrap();
    let files = SimulatedFiles::new();
    let roomy = DiskOptions { memtable_bytes: 64 << 20, ..SMALL };
    let store = DiskStore::open_on(Arc::new(files.clone()), directory.path(), roomy).unwrap();
    let log = store.create_log("big").unwrap();
    // More than the first segment holds; only the last sync is ours.
    for position in 0..30 {
        let mut batch = Batch::new();
        batch.append_to_log(log, position, vec![7; 100_000]);
        store.commit(batch).unwrap();
    }
    store.sync_through(store.last_committed()).unwrap();
    let after = files.crash(|| Fate::Lost);
    drop(store);
    let store = DiskStore::open_on(Arc::new(after), directory.path(), roomy).unwrap();
    let log = store.create_log("big").unwrap();
    assert_eq!(store.snapshot().log_totals(log).unwrap().entries, 30);
}

/// A store with three synced batches, and one more that is not.
fn three_and_one() -> (tempfile::TempDir, SimulatedFiles) {
    let directory = tempfile::tempdir().unwrap();
    let files = SimulatedFiles::new();
    let store = open(&files, directory.path()).unwrap();
    for number in 0..3 {
        write(&store, number);
        store.sync_through(store.last_committed()).unwrap();
    }
    write(&store, 3);
    store.write_out_through(store.last_committed()).unwrap();
    let kept = files.crash(|| Fate::Kept);
    drop(store);
    (directory, kept)
}

fn segment(files: &SimulatedFiles) -> PathBuf {
    let is_segment = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "seg");
    let mut segments: Vec<_> = files.paths().into_iter().filter(is_segment).collect();
    // Behind it there may be one that is prepared and not used.
    segments.retain(|path| {
        let mut used = false;
        files.damage(path, |bytes| used = bytes.starts_with(b"QRTSEG"));
        used
    });
    segments.pop().unwrap()
}

/// Where the records of a segment begin.
fn records(bytes: &[u8]) -> Vec<usize> {
    let (mut starts, mut offset) = (Vec::new(), 40);
    loop {
        let length = u32::from_le_bytes(bytes[offset..offset + 4].try_into().unwrap()) as usize;
        if length == 0 {
            return starts;
        }
        starts.push(offset);
        offset += (20 + length).next_multiple_of(8);
    }
}

#[test]
fn a_damaged_last_record_is_cut_off_and_told() {
    let (directory, files) = three_and_one();
    let path = segment(&files);
    let mut starts = Vec::new();
    files.damage(&path, |bytes| {
        starts = records(bytes);
        bytes[starts[3] + 100] ^= 1;
    });
    let store = open(&files, directory.path()).unwrap();
    assert_eq!(numbers(&store), [0, 1, 2]);
    let torn = store.torn_tail().unwrap();
    assert_eq!((&torn.journal, torn.offset), (&path, starts[3] as u64));
    write(&store, 3);
    drop(store);
    let store = open(&files, directory.path()).unwrap();
    assert_eq!(numbers(&store), [0, 1, 2, 3]);
    assert_eq!(store.torn_tail(), None);
}

#[test]
fn damage_to_what_was_synced_is_refused_with_its_place() {
    for (record, place) in [(0, 4), (0, 0), (1, 100), (1, 16), (2, 30)] {
        let (directory, files) = three_and_one();
        let path = segment(&files);
        let mut starts = Vec::new();
        files.damage(&path, |bytes| {
            starts = records(bytes);
            bytes[starts[record] + place] ^= 0xFF;
        });
        match open(&files, directory.path()) {
            Err(OpenError::DamagedJournal { journal, offset }) => {
                assert_eq!((journal, offset), (path, starts[record] as u64), "{record} {place}");
            }
            Err(error) => panic!("{record} {place}: {error}"),
            Ok(_) => panic!("{record} {place}: opened"),
        }
    }
}

#[test]
fn a_length_that_became_zero_in_the_middle_is_refused() {
    let (directory, files) = three_and_one();
    files.damage(&segment(&files), |bytes| {
        let starts = records(bytes);
        bytes[starts[1]..starts[1] + 4].fill(0);
    });
    assert!(matches!(open(&files, directory.path()), Err(OpenError::DamagedJournal { .. })));
}

#[test]
fn damage_is_found_by_verify_while_the_store_runs() {
    let (directory, files) = three_and_one();
    let store = open(&files, directory.path()).unwrap();
    assert_eq!(store.verify().unwrap(), []);
    let segments: Vec<_> = files.paths();
    let path = segments.iter().find(|path| path.extension().is_some_and(|e| e == "seg")).unwrap();
    let mut starts = Vec::new();
    files.damage(path, |bytes| {
        bytes.extend([0; 8]);
        starts = records(bytes);
        bytes[starts[1] + 60] ^= 1;
    });
    let found = store.verify().unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((&found[0].file, found[0].offset), (path, Some(starts[1] as u64)));
    assert!(found[0].to_string().contains("at byte"), "{}", found[0]);
}

#[test]
fn a_flipped_bit_in_a_tree_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let files = SimulatedFiles::new();
    let store = open(&files, directory.path()).unwrap();
    write_until_flushed(&store, directory.path());
    drop(store);
    let store = open(&files, directory.path()).unwrap();
    assert_eq!(store.verify().unwrap(), []);
    let table = std::fs::read_dir(directory.path().join("trees"))
        .unwrap()
        .flat_map(|tree| std::fs::read_dir(tree.unwrap().path().join("tables")).unwrap())
        .map(|table| table.unwrap().path())
        .next()
        .unwrap();
    let mut bytes = std::fs::read(&table).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    std::fs::write(&table, bytes).unwrap();
    let found = store.verify().unwrap();
    assert!(
        found.iter().any(|damage| damage.file == table && damage.keyspace.is_some()),
        "{found:?}"
    );
}

#[test]
fn a_walk_through_a_damaged_table_ends_with_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let files = SimulatedFiles::new();
    let store = open(&files, directory.path()).unwrap();
    let keyspace = store.create_keyspace("rising").unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    for number in 0_u32.. {
        let mut batch = Batch::new();
        batch.insert(keyspace, &number.to_be_bytes(), vec![7; 300]);
        store.commit(batch).unwrap();
        if has_tables(&directory.path().join("trees")) {
            break;
        }
        assert!(std::time::Instant::now() < deadline, "nothing was flushed");
    }
    // What is being flushed is flushed before it is opened again.
    drop(store);
    let store = open(&files, directory.path()).unwrap();
    let failures = || {
        let snapshot = store.snapshot();
        let walked = store.keyspaces().into_iter().map(|(_, keyspace)| {
            let mut walk = snapshot.walk(keyspace, KeyRange::all())?;
            while walk.advance()? {}
            Ok(())
        });
        walked.filter_map(Result::err).collect::<Vec<ReadError>>()
    };
    assert!(failures().is_empty());
    let tables = std::fs::read_dir(directory.path().join("trees"))
        .unwrap()
        .flat_map(|tree| std::fs::read_dir(tree.unwrap().path().join("tables")).unwrap());
    for table in tables.map(|table| table.unwrap().path()) {
        let file = std::fs::File::options().read(true).write(true).open(&table).unwrap();
        // In the pairs of its first block, behind the header.
        let mut byte = [0];
        file.read_exact_at(&mut byte, 60).unwrap();
        file.write_all_at(&[byte[0] ^ 0x10], 60).unwrap();
    }
    let failures = failures();
    assert!(!failures.is_empty());
    assert!(
        failures.iter().all(|failure| matches!(failure, ReadError::Damaged(_))),
        "{failures:?}"
    );
}

#[test]
fn a_missing_segment_is_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let files = SimulatedFiles::new();
    for number in 0..4 {
        let store = open(&files, directory.path()).unwrap();
        write(&store, number);
    }
    let is_segment = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "seg");
    let segments: Vec<_> = files.paths().into_iter().filter(is_segment).collect();
    quorate_storage::Files::remove(&files, &segments[1]).unwrap();
    let error = open(&files, directory.path()).err().unwrap();
    assert!(matches!(&error, OpenError::MissingSegment { segment } if *segment == segments[1]));
    assert!(error.to_string().contains("missing"), "{error}");
}

#[test]
fn after_a_failed_sync_reads_go_on_and_writes_stop() {
    let directory = tempfile::tempdir().unwrap();
    let files = SimulatedFiles::new();
    let store = open(&files, directory.path()).unwrap();
    write(&store, 0);
    files.fail_syncs(true);
    assert!(matches!(store.sync_through(store.last_committed()), Err(SyncError::Failed(_))));
    files.fail_syncs(false);
    assert!(matches!(store.sync_through(store.last_committed()), Err(SyncError::Poisoned)));
    assert!(matches!(store.commit(Batch::new()), Err(CommitError::Poisoned)));
    assert!(matches!(store.create_keyspace("more"), Err(KeyspaceError::Poisoned)));
    assert_eq!(numbers(&store), [0]);
}

#[test]
fn after_a_failed_write_writes_stop() {
    let directory = tempfile::tempdir().unwrap();
    let files = SimulatedFiles::new();
    let store = open(&files, directory.path()).unwrap();
    write(&store, 0);
    store.write_out_through(store.last_committed()).unwrap();
    files.fail_writes(true);
    store.commit(Batch::new()).unwrap();
    assert!(matches!(store.write_out_through(store.last_committed()), Err(SyncError::Failed(_))));
    files.fail_writes(false);
    assert!(matches!(store.commit(Batch::new()), Err(CommitError::Poisoned)));
    assert!(matches!(store.sync_through(store.last_committed()), Err(SyncError::Poisoned)));
}

#[test]
fn one_write_serves_all_commits_before_it() {
    let directory = tempfile::tempdir().unwrap();
    let files = SimulatedFiles::new();
    let store = open(&files, directory.path()).unwrap();
    let commits = [0, 1, 2].map(|number| {
        write(&store, number);
        store.last_committed()
    });
    store.write_out_through(commits[2]).unwrap();
    write(&store, 3);
    // A write would fail now.
    files.fail_writes(true);
    for commit in commits {
        assert_eq!(store.write_out_through(commit).unwrap(), 0, "the file has it");
    }
    files.fail_writes(false);
    assert_eq!(store.write_out_through(store.last_committed()).unwrap(), 1);
    write(&store, 4);
    write(&store, 5);
    assert_eq!(store.write_out_through(CommitSequence::ZERO).unwrap(), 0);
    assert_eq!(store.write_out_through(store.last_committed()).unwrap(), 2);
    write(&store, 6);
    store.sync_through(store.last_committed()).unwrap();
    assert_eq!(store.write_out_through(store.last_committed()).unwrap(), 0, "it is synced");
}

#[test]
fn commits_that_are_written_out_survive_the_end_of_the_process() {
    let directory = tempfile::tempdir().unwrap();
    let files = SimulatedFiles::new();
    let store = open(&files, directory.path()).unwrap();
    let survivors = || {
        // The process ends, and the system keeps all that it was given.
        let other = tempfile::tempdir().unwrap();
        let files = files.survivor(|| Fate::Kept).moved(directory.path(), other.path());
        numbers(&open(&files, other.path()).unwrap())
    };
    for number in 0..4 {
        write(&store, number);
    }
    store.write_out_through(store.last_committed()).unwrap();
    assert_eq!(survivors(), [0, 1, 2, 3]);
    write(&store, 4);
    assert_eq!(numbers(&store), [0, 1, 2, 3, 4], "a reader of the log finds what was gathered");
    assert_eq!(survivors(), [0, 1, 2, 3, 4]);
    write(&store, 5);
    drop(store);
    let store = open(&files, directory.path()).unwrap();
    assert_eq!(numbers(&store), [0, 1, 2, 3, 4, 5], "a store that is closed loses nothing");
}

#[test]
fn a_full_disk_refuses_a_batch_and_loses_nothing_and_the_store_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let files = SimulatedFiles::new();
    let roomy = DiskOptions { memtable_bytes: 64 << 20, ..SMALL };
    let store = DiskStore::open_on(Arc::new(files.clone()), directory.path(), roomy).unwrap();
    let log = store.create_log("big").unwrap();
    files.limit_room(Some(0));
    let mut position = 0;
    let mut append = || {
        position += 1;
        let mut batch = Batch::new();
        batch.append_to_log(log, position, vec![7; 100_000]);
        store.commit(batch).map(|_| position)
    };
    let mut stored = Vec::new();
    let refused = loop {
        match append() {
            Ok(position) => stored.push(position),
            Err(error) => break error,
        }
        assert!(stored.len() < 1000, "the disk has no end");
    };
    assert!(matches!(refused, CommitError::DiskFull), "{refused}");
    store.sync_through(store.last_committed()).unwrap();
    files.limit_room(None);
    stored.push(append().unwrap());
    let check = |snapshot: &dyn Snapshot, log| {
        let pairs = snapshot.scan(log, KeyRange::all(), Direction::Forward).unwrap();
        let key = |pair: Result<(quorate_storage::Bytes, _), _>| pair.unwrap().0.to_vec();
        let found: Vec<_> = pairs.map(key).collect();
        let expected: Vec<_> = stored.iter().map(|p: &u64| p.to_be_bytes().to_vec()).collect();
        assert_eq!(found, expected);
    };
    check(&*store.snapshot(), log);
    drop(store);
    let store = DiskStore::open_on(Arc::new(files), directory.path(), roomy).unwrap();
    let log = store.create_log("big").unwrap();
    check(&*store.snapshot(), log);
}

#[test]
fn history_is_given_back_by_removing_segments_and_a_snapshot_still_reads_it() {
    let directory = tempfile::tempdir().unwrap();
    let files = SimulatedFiles::new();
    let store = open(&files, directory.path()).unwrap();
    let log = store.create_log("big").unwrap();
    let append = |position: u64| {
        let mut batch = Batch::new();
        batch.append_to_log(log, position, vec![position as u8; 100_000]);
        store.commit(batch).unwrap();
    };
    (1..=100).for_each(append);
    let before = store.snapshot();
    let mut batch = Batch::new();
    batch.trim_log(log, 91);
    store.commit(batch).unwrap();
    let segments =
        || files.paths().iter().filter(|path| path.extension().is_some_and(|e| e == "seg")).count();
    let with_history = segments();
    let count = |snapshot: &dyn Snapshot| {
        snapshot.scan(log, KeyRange::all(), Direction::Forward).unwrap().map(Result::unwrap).count()
    };
    assert_eq!(count(&*store.snapshot()), 10);
    // A new segment makes the store look for what is not needed.
    (101..=300).for_each(append);
    assert_eq!(count(&*before), 100, "a snapshot keeps what it sees");
    drop(before);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let oldest = || {
        let is_segment = |path: &&PathBuf| path.extension().is_some_and(|e| e == "seg");
        files.paths().iter().find(is_segment).cloned()
    };
    let first = directory.path().join("journal/0000000000000001.seg");
    while oldest() == Some(first.clone()) {
        assert!(std::time::Instant::now() < deadline, "{} of {with_history} left", segments());
        std::thread::yield_now();
    }
    assert_eq!(count(&*store.snapshot()), 210);
    drop(store);
    let store = open(&files, directory.path()).unwrap();
    let log = store.create_log("big").unwrap();
    let totals = store.snapshot().log_totals(log).unwrap();
    assert_eq!((totals.entries, totals.bytes), (210, 210 * 100_000));
}

#[test]
fn only_the_owner_may_look_at_files_whatever_their_maker() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let store = DiskStore::open(directory.path(), SMALL).unwrap();
    write_until_flushed(&store, directory.path());
    drop(store);
    let mut left = vec![directory.path().to_owned()];
    while let Some(path) = left.pop() {
        let metadata = std::fs::metadata(&path).unwrap();
        let mode = metadata.permissions().mode() & 0o777;
        assert_eq!(mode, if metadata.is_dir() { 0o700 } else { 0o600 }, "{}", path.display());
        if metadata.is_dir() {
            left.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
}

/// Tables that hold nothing but discarded keys go whole, which the journal does not tell: a start after a crash may find
/// the keys again, until the journal has gone on.
#[test]
fn discarded_keys_may_come_back_until_the_store_is_settled_and_never_after() {
    const PREFIX: u8 = 7;
    let directory = tempfile::tempdir().unwrap();
    let files = SimulatedFiles::new();
    let store = open(&files, directory.path()).unwrap();
    let keyspace = store.create_keyspace("k").unwrap();
    let left = |store: &DiskStore| {
        let range = KeyRange::prefix(&[PREFIX]);
        let scan = store.snapshot().scan(keyspace, range, Direction::Forward).unwrap();
        scan.map(|pair| pair.unwrap().0).collect::<Vec<_>>()
    };
    for number in 0..100 {
        let mut batch = Batch::new();
        batch.insert(keyspace, &[PREFIX, number], vec![number; 200]);
        store.commit(batch).unwrap();
    }
    store.discard(keyspace, &KeyRange::prefix(&[PREFIX])).unwrap();
    let point = store.replay_point();
    assert_eq!(left(&store), [], "all of them were in tables of their own");
    assert!(!store.is_settled(point));
    let crashed = files.crash(|| Fate::Kept);
    drop(store);
    let store = open(&crashed, directory.path()).unwrap();
    assert_eq!(left(&store).len(), 100, "the journal has put them there again");

    store.discard(keyspace, &KeyRange::prefix(&[PREFIX])).unwrap();
    let point = store.replay_point();
    assert_eq!(left(&store), []);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    for number in 0_u32.. {
        if store.is_settled(point) {
            break;
        }
        let mut batch = Batch::new();
        batch.insert(keyspace, &number.to_be_bytes(), vec![0; 20_000]);
        store.commit(batch).unwrap();
        assert!(std::time::Instant::now() < deadline, "the journal does not go on");
    }
    let crashed = crashed.crash(|| Fate::Kept);
    drop(store);
    let store = open(&crashed, directory.path()).unwrap();
    assert_eq!(left(&store), []);
    assert_eq!(store.verify().unwrap(), []);
}
