//! A store in a process that has used up its file descriptors. Alone in its file, as all tests of a process share them.

#![allow(clippy::unwrap_used, reason = "a panic is the report")]

use std::fs::File;
use std::time::{Duration, Instant};

use quorate_storage::{Batch, CommitError, Direction, DiskOptions, DiskStore, KeyRange, Store};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Few, so that they are used up soon.
const DESCRIPTORS: u64 = 64;

/// Descriptors that are left, so that a flush and a merge fail at different steps.
const LEFT: usize = 6;

const OPTIONS: DiskOptions =
    DiskOptions { cache_bytes: 1 << 20, memtable_bytes: 4_000, segment_bytes: 1 << 20 };

/// Opens files until none is left but for so many.
fn use_up(left: usize) -> Vec<File> {
    let mut files: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    files.truncate(files.len().saturating_sub(left));
    files
}

#[test]
fn a_flush_without_a_descriptor_is_tried_again() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(DESCRIPTORS), maximum }).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let store = DiskStore::open(directory.path(), OPTIONS).unwrap();
    let keyspace = store.create_keyspace("k").unwrap();
    let mut number = 0_u64;
    let put = |number: u64| {
        let mut batch = Batch::new();
        // In no order, so that tables are merged.
        let key = number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes();
        batch.insert(keyspace, &key, number.to_be_bytes().repeat(60));
        store.commit(batch)
    };
    for left in (0..LEFT).cycle().take(4 * LEFT) {
        let taken = use_up(left);
        loop {
            match put(number) {
                Ok(_) if number % 200 == 199 => break,
                Ok(_) => number += 1,
                Err(CommitError::TooManyFiles) => break,
                Err(error) => panic!("{error} with {left} descriptors left"),
            }
        }
        drop(taken);
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            match put(number) {
                Ok(_) => break,
                Err(CommitError::TooManyFiles) => assert!(Instant::now() < deadline),
                Err(error) => panic!("{error} when there were descriptors again"),
            }
            std::thread::yield_now();
        }
        number += 1;
    }
    let count = |store: &DiskStore| {
        let keyspace = store.create_keyspace("k").unwrap();
        let scan = store.snapshot().scan(keyspace, KeyRange::all(), Direction::Forward).unwrap();
        scan.inspect(|pair| assert!(pair.is_ok())).count() as u64
    };
    assert_eq!(count(&store), number);
    assert_eq!(store.verify().unwrap(), []);
    drop(store);
    assert_eq!(count(&DiskStore::open(directory.path(), OPTIONS).unwrap()), number);
}
