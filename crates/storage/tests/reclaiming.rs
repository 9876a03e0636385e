//! A full disk gets the room of removed keys back without a merge that it has no room for.

#![allow(clippy::unwrap_used, reason = "a panic is the report")]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use quorate_storage::{
    Batch, Direction, DiskOptions, DiskStore, KeyRange, KeyspaceId, MAX_KEY_LENGTH, Store,
};

const MEMTABLE: u64 = 16 * 1024;

fn open(path: &Path) -> (DiskStore, KeyspaceId) {
    let options = DiskOptions { memtable_bytes: MEMTABLE, ..DiskOptions::default() };
    let store = DiskStore::open(path, options).unwrap();
    let keyspace = store.create_keyspace("k").unwrap();
    (store, keyspace)
}

fn key(number: u32) -> Vec<u8> {
    [&7_u64.to_be_bytes()[..], &number.to_be_bytes()].concat()
}

fn put(store: &DiskStore, keyspace: KeyspaceId, numbers: impl Iterator<Item = u32>) {
    for number in numbers {
        let mut batch = Batch::new();
        batch.insert(keyspace, key(number), vec![number as u8; 1000]);
        store.commit(batch).unwrap();
    }
}

fn remove(store: &DiskStore, keyspace: KeyspaceId, numbers: impl Iterator<Item = u32>) {
    let mut batch = Batch::new();
    numbers.for_each(|number| batch.remove(keyspace, key(number)));
    store.commit(batch).unwrap();
}

fn content(store: &DiskStore, keyspace: KeyspaceId) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let scan = store.snapshot().scan(keyspace, KeyRange::all(), Direction::Forward).unwrap();
    scan.map(|pair| pair.unwrap()).map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
}

/// What the tables take once `is_enough` of it is given back.
fn wait_for_room(store: &DiskStore, room: u64, is_enough: impl Fn(u64) -> bool) -> u64 {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        store.reclaim(room, &|| false).unwrap();
        let bytes = store.statistics().table_bytes;
        if is_enough(bytes) {
            return bytes;
        }
        assert!(Instant::now() < deadline, "{bytes} bytes stay");
        std::thread::yield_now();
    }
}

#[test]
fn removed_keys_give_their_room_back_where_there_is_none_left() {
    let directory = tempfile::tempdir().unwrap();
    let (store, keyspace) = open(directory.path());
    put(&store, keyspace, 0..500);
    let before = store.statistics().table_bytes;
    assert!(before > 300_000, "{before}");
    remove(&store, keyspace, 0..500);
    wait_for_room(&store, 0, |bytes| bytes < before / 10);
    assert_eq!(content(&store, keyspace), BTreeMap::new());
    drop(store);
    let (store, keyspace) = open(directory.path());
    assert_eq!(content(&store, keyspace), BTreeMap::new(), "they do not come back");
}

#[test]
fn a_table_that_is_kept_in_part_takes_the_room_that_there_is() {
    let directory = tempfile::tempdir().unwrap();
    let (store, keyspace) = open(directory.path());
    put(&store, keyspace, 0..500);
    let before = store.statistics().table_bytes;
    remove(&store, keyspace, (0..500).filter(|number| number % 4 != 0));
    let expected = content(&store, keyspace);
    let old = store.snapshot();
    store.reclaim(1000, &|| false).unwrap();
    assert!(store.statistics().table_bytes > before / 2, "there is no room for a table");
    wait_for_room(&store, 1 << 20, |bytes| bytes < before / 2);
    assert_eq!(content(&store, keyspace), expected);
    assert_eq!(old.get(keyspace, &key(4)).unwrap().as_deref(), Some(&[4; 1000][..]));
    assert_eq!(store.verify().unwrap(), []);
    drop((old, store));
    let (store, keyspace) = open(directory.path());
    assert_eq!(content(&store, keyspace), expected);
}

/// What is kept of a table goes to a new one with a key more behind it. There is none behind the longest key, and none that
/// is free behind the one before it.
#[test]
fn a_table_whose_last_key_is_one_of_the_longest_stays() {
    for length in [MAX_KEY_LENGTH, MAX_KEY_LENGTH - 1] {
        let directory = tempfile::tempdir().unwrap();
        let (store, keyspace) = open(directory.path());
        let greatest = [&7_u64.to_be_bytes()[..], &vec![0xFF; length - 8]].concat();
        let mut batch = Batch::new();
        (0..500).for_each(|number| batch.insert(keyspace, key(number), vec![7; 1000]));
        batch.insert(keyspace, greatest.clone(), b"greatest");
        store.commit(batch).unwrap();
        wait_for_room(&store, 0, |bytes| bytes > 500_000);
        let mut batch = Batch::new();
        let removed = (0..500).filter(|number| number % 4 != 0);
        removed.for_each(|number| batch.remove(keyspace, key(number)));
        if length < MAX_KEY_LENGTH {
            batch.insert(keyspace, [&greatest[..], &[0]].concat(), b"behind");
        }
        store.commit(batch).unwrap();
        let expected = content(&store, keyspace);
        store.reclaim(1 << 20, &|| false).unwrap();
        assert_eq!(content(&store, keyspace), expected);
        // More than four memtables: each writer would wait for a thread that is gone.
        put(&store, keyspace, 1000..1200);
        let expected = content(&store, keyspace);
        drop(store);
        let (store, keyspace) = open(directory.path());
        assert_eq!(content(&store, keyspace), expected);
    }
}

/// To look at all tables takes minutes if the disk is large.
#[test]
fn memtables_are_flushed_between_two_tables_of_a_round() {
    let directory = tempfile::tempdir().unwrap();
    let (store, keyspace) = open(directory.path());
    put(&store, keyspace, 0..500);
    remove(&store, keyspace, (0..500).filter(|number| number % 4 != 0));
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let has_written = Cell::new(false);
        let write = || {
            if !has_written.replace(true) {
                // More than four memtables.
                put(&store, keyspace, 1000..1200);
            }
            false
        };
        store.reclaim(1 << 20, &write).unwrap();
        assert!(has_written.get());
        tell.send(content(&store, keyspace).len()).unwrap();
    });
    assert_eq!(told.recv_timeout(Duration::from_secs(60)), Ok(125 + 200));
}

/// A step of a random history.
#[derive(Clone, Debug)]
enum Step {
    Put(u32, u16),
    /// Removes keys from the first on, each of so many.
    Remove(u32, u32, u32),
    Reclaim(u64),
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..400_u32, 1..2000_u16).prop_map(|(number, length)| Step::Put(number, length)),
        3 => (0..400_u32, 1..200_u32, 1..4_u32)
            .prop_map(|(first, count, each)| Step::Remove(first, count, each)),
        3 => prop_oneof![Just(0), Just(5_000), Just(1 << 20)].prop_map(Step::Reclaim),
        1 => Just(Step::Reopen),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn what_is_stored_stays_the_same(steps in prop::collection::vec(step(), 1..250)) {
        let directory = tempfile::tempdir().unwrap();
        let (mut store, mut keyspace) = open(directory.path());
        let mut expected = BTreeMap::new();
        let mut snapshots = Vec::new();
        for step in steps {
            let mut batch = Batch::new();
            match step {
                Step::Put(number, length) => {
                    let value = vec![length as u8; usize::from(length)];
                    // Neighbours, so that tables fill and overlap.
                    for number in number..number + 8 {
                        batch.insert(keyspace, key(number), value.clone());
                        expected.insert(key(number), value.clone());
                    }
                }
                Step::Remove(first, count, each) => {
                    for number in (first..first + count).step_by(each as usize) {
                        batch.remove(keyspace, key(number));
                        expected.remove(&key(number));
                    }
                }
                Step::Reclaim(room) => {
                    snapshots.truncate(3);
                    snapshots.push((store.snapshot(), expected.clone()));
                    store.reclaim(room, &|| false).unwrap();
                }
                Step::Reopen => {
                    snapshots.clear();
                    drop(store);
                    (store, keyspace) = open(directory.path());
                }
            }
            store.commit(batch).unwrap();
            for (snapshot, expected) in &snapshots {
                let scan = snapshot.scan(keyspace, KeyRange::all(), Direction::Forward).unwrap();
                let pairs = scan.map(|pair| pair.unwrap());
                let found: BTreeMap<_, _> =
                    pairs.map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
                prop_assert_eq!(&found, expected);
            }
            prop_assert_eq!(&content(&store, keyspace), &expected);
        }
        for number in 0..700 {
            let found = store.snapshot().get(keyspace, &key(number)).unwrap();
            prop_assert_eq!(found.as_deref(), expected.get(&key(number)).map(|value| &value[..]));
        }
    }
}
