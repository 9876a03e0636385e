//! A directory of format 1 or 2 opens, with what was in tables and what was only in the journal.

#![allow(clippy::unwrap_used, reason = "a panic is the report")]

use std::fs;
use std::path::Path;

use fjall::{Database, KeyspaceCreateOptions, PersistMode};
use quorate_storage::{
    Batch, Direction, DiskOptions, DiskStore, KeyRange, KeyspaceId, OpenError, Store,
};

const FLUSHED: u32 = 500;
const ALL: u32 = 800;

/// Writes what release 0.1 would have written.
fn write_format_1(directory: &Path) {
    fs::create_dir_all(directory).unwrap();
    fs::write(directory.join("FORMAT"), b"QUORATE\x01").unwrap();
    fs::write(directory.join("LOCK"), b"").unwrap();
    let database = Database::builder(directory.join("engine")).open().unwrap();
    let records = database.keyspace("records", KeyspaceCreateOptions::default).unwrap();
    let removed = database.keyspace("removed", KeyspaceCreateOptions::default).unwrap();
    removed.insert("a", "b").unwrap();
    database.delete_keyspace(removed).unwrap();
    let sessions = database.keyspace("sessions", KeyspaceCreateOptions::default).unwrap();
    for number in 0..ALL {
        records.insert(number.to_be_bytes(), number.to_le_bytes()).unwrap();
        if number + 1 == FLUSHED {
            records.rotate_memtable_and_wait().unwrap();
        }
    }
    records.remove(7_u32.to_be_bytes()).unwrap();
    sessions.insert("session", "row").unwrap();
    database.persist(PersistMode::SyncAll).unwrap();
}

fn keyspace(store: &DiskStore, name: &str) -> KeyspaceId {
    let found = store.keyspaces();
    found.iter().find(|(known, _)| known == name).map(|(_, id)| *id).unwrap()
}

fn check(store: &DiskStore) {
    let names: Vec<_> = store.keyspaces().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["records", "sessions"]);
    let snapshot = store.snapshot();
    let records = keyspace(store, "records");
    let pairs = snapshot.scan(records, KeyRange::all(), Direction::Forward).unwrap();
    let found: Vec<u32> = pairs
        .map(|pair| {
            let (key, value) = pair.unwrap();
            let number = u32::from_be_bytes((&key[..]).try_into().unwrap());
            assert_eq!(&value[..], number.to_le_bytes());
            number
        })
        .collect();
    assert_eq!(found, (0..ALL).filter(|&number| number != 7).collect::<Vec<_>>());
    let row = snapshot.get(keyspace(store, "sessions"), b"session").unwrap();
    assert_eq!(row.as_deref(), Some(&b"row"[..]));
}

#[test]
fn a_directory_of_format_1_opens_with_all_it_holds_and_stays_usable() {
    let directory = tempfile::tempdir().unwrap();
    write_format_1(directory.path());
    let store = DiskStore::open(directory.path(), DiskOptions::default()).unwrap();
    check(&store);
    assert_eq!(fs::read(directory.path().join("FORMAT")).unwrap(), b"QUORATE\x03");
    assert!(!directory.path().join("engine").exists());
    drop(store);
    let store = DiskStore::open(directory.path(), DiskOptions::default()).unwrap();
    check(&store);
    let log = store.create_log("oplog").unwrap();
    let mut batch = Batch::new();
    batch.insert(keyspace(&store, "records"), &7_u32.to_be_bytes(), &7_u32.to_le_bytes());
    batch.append_to_log(log, 1, b"entry");
    store.commit(batch).unwrap();
    drop(store);
    let store = DiskStore::open(directory.path(), DiskOptions::default()).unwrap();
    let records = keyspace(&store, "records");
    let value = store.snapshot().get(records, &7_u32.to_be_bytes()).unwrap();
    assert_eq!(value.as_deref(), Some(&7_u32.to_le_bytes()[..]), "newer than what was migrated");
}

#[test]
fn a_crash_after_the_format_file_leaves_the_rest_to_the_next_start() {
    let directory = tempfile::tempdir().unwrap();
    write_format_1(directory.path());
    drop(DiskStore::open(directory.path(), DiskOptions::default()).unwrap());
    // As it is between the two steps.
    fs::create_dir_all(directory.path().join("engine")).unwrap();
    fs::write(directory.path().join("engine/0.jnl"), b"left over").unwrap();
    fs::rename(directory.path().join("trees"), directory.path().join("engine/keyspaces")).unwrap();
    let store = DiskStore::open(directory.path(), DiskOptions::default()).unwrap();
    check(&store);
    assert!(!directory.path().join("engine").exists());
}

#[test]
fn a_torn_tail_of_format_1_is_cut_off_as_before() {
    let directory = tempfile::tempdir().unwrap();
    write_format_1(directory.path());
    let journal = directory.path().join("engine/0.jnl");
    let mut bytes = fs::read(&journal).unwrap();
    let end = bytes.iter().rposition(|&byte| byte != 0).unwrap() + 1;
    bytes.truncate(end);
    let value = bytes.windows(3).rposition(|window| window == b"row").unwrap();
    bytes[value] ^= 0xFF;
    fs::write(&journal, bytes).unwrap();
    let store = DiskStore::open(directory.path(), DiskOptions::default()).unwrap();
    assert_eq!(store.torn_tail().unwrap().journal, journal);
    let snapshot = store.snapshot();
    assert_eq!(snapshot.get(keyspace(&store, "sessions"), b"session").unwrap(), None);
    let first = snapshot.get(keyspace(&store, "records"), &0_u32.to_be_bytes()).unwrap();
    assert!(first.is_some());
}

/// What a program of format 2 left.
fn copy_format_2(to: &Path) {
    fn copy(from: &Path, to: &Path) {
        fs::create_dir_all(to).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            let target = to.join(entry.file_name());
            match entry.file_type().unwrap().is_dir() {
                true => copy(&entry.path(), &target),
                false => drop(fs::copy(entry.path(), target).unwrap()),
            }
        }
    }
    copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/format-2"), to);
}

fn check_format_2(store: &DiskStore, last: u64) {
    let snapshot = store.snapshot();
    let read = |name: &str, word: &str| -> Vec<u64> {
        let pairs = snapshot.scan(keyspace(store, name), KeyRange::all(), Direction::Forward);
        let number = |(key, value): (quorate_storage::Bytes, quorate_storage::Bytes)| {
            let number = u64::from_be_bytes((&key[..]).try_into().unwrap());
            assert_eq!(&value[..], format!("{word} {number}").as_bytes());
            number
        };
        pairs.unwrap().map(|pair| number(pair.unwrap())).collect()
    };
    assert_eq!(read("oplog", "entry"), (1..=last).collect::<Vec<_>>());
    assert_eq!(read("records", "value"), (1..=last).filter(|&n| n != 7).collect::<Vec<_>>());
    assert_eq!(store.verify().unwrap(), []);
}

#[test]
fn a_directory_of_format_2_opens_with_all_it_holds_and_stays_usable() {
    let directory = tempfile::tempdir().unwrap();
    copy_format_2(directory.path());
    let store = DiskStore::open(directory.path(), DiskOptions::default()).unwrap();
    assert_eq!(store.torn_tail(), None);
    check_format_2(&store, 79);
    assert_eq!(fs::read(directory.path().join("FORMAT")).unwrap(), b"QUORATE\x03");
    let mut batch = Batch::new();
    batch.append_to_log(keyspace(&store, "oplog"), 80, b"entry 80");
    batch.insert(keyspace(&store, "records"), &80_u64.to_be_bytes(), b"value 80");
    store.commit(batch).unwrap();
    drop(store);
    let store = DiskStore::open(directory.path(), DiskOptions::default()).unwrap();
    check_format_2(&store, 80);
}

#[test]
fn a_crash_after_the_format_file_of_format_3_leaves_the_rest_to_the_next_start() {
    let directory = tempfile::tempdir().unwrap();
    copy_format_2(directory.path());
    fs::write(directory.path().join("FORMAT"), b"QUORATE\x03").unwrap();
    let store = DiskStore::open(directory.path(), DiskOptions::default()).unwrap();
    check_format_2(&store, 79);
}

/// Where the records of the newest segment are known by the salt, those of format 2 still are without.
#[test]
fn damage_to_segments_of_format_2_is_refused() {
    const HEADER: usize = 3;
    const FIRST_RECORD: usize = 40 + 30;
    for (segment, place) in [(1, FIRST_RECORD), (2, HEADER)] {
        let directory = tempfile::tempdir().unwrap();
        copy_format_2(directory.path());
        let path = directory.path().join(format!("journal/{segment:016x}.seg"));
        fs::remove_file(path.with_extension("idx")).unwrap_or_default();
        let mut bytes = fs::read(&path).unwrap();
        bytes[place] ^= 0xFF;
        fs::write(&path, bytes).unwrap();
        match DiskStore::open(directory.path(), DiskOptions::default()) {
            Err(OpenError::DamagedJournal { journal, .. }) => assert_eq!(journal, path),
            Err(error) => panic!("{segment} {place}: {error}"),
            Ok(_) => panic!("{segment} {place}: opened"),
        }
    }
}
