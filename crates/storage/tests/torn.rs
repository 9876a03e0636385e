//! The journal after a power failure: its last record is whole or forgotten, whatever part of it
//! reached the disk; damage before it is not forgotten.

#![allow(clippy::unwrap_used, reason = "a panic is the report")]

use std::fs;
use std::path::{Path, PathBuf};

use quorate_storage::{Batch, LsmOptions, LsmStore, OpenError, Store};

/// Of how many stores one is written to and opened once more.
const AGAIN: usize = 8;

/// A closed store with three records in its journal.
struct Written {
    directory: tempfile::TempDir,
    journal: Vec<u8>,
    /// Where the records of the batches end.
    ends: Vec<usize>,
}

fn open(directory: &Path) -> Result<LsmStore, OpenError> {
    LsmStore::open(directory, LsmOptions::default())
}

fn journal_of(directory: &Path) -> PathBuf {
    let files = fs::read_dir(directory.join("engine")).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|extension| extension == "jnl")).max().unwrap()
}

/// A record ends in a byte that is not zero; what is reserved behind it is zero.
fn written(journal: &Path) -> Vec<u8> {
    let mut bytes = fs::read(journal).unwrap();
    let end = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    bytes.truncate(end);
    bytes
}

fn put(store: &LsmStore, keys: &[&str]) {
    let keyspace = store.create_keyspace("records").unwrap();
    let mut batch = Batch::new();
    for key in keys {
        batch.insert(keyspace, key.as_bytes(), [b"the value of ", key.as_bytes()].concat());
    }
    store.commit(batch).unwrap();
}

fn has(store: &LsmStore, key: &str) -> bool {
    let keyspace = store.create_keyspace("records").unwrap();
    let value = store.snapshot().get(keyspace, key.as_bytes()).unwrap();
    value.is_some_and(|value| *value == *[b"the value of ", key.as_bytes()].concat())
}

impl Written {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = open(directory.path()).unwrap();
        let mut ends = Vec::new();
        for keys in [&["a"][..], &["b"], &["c", "d"]] {
            put(&store, keys);
            ends.push(written(&journal_of(directory.path())).len());
        }
        drop(store);
        let journal = written(&journal_of(directory.path()));
        assert_eq!(journal.len(), ends[2], "closing writes nothing");
        Self { directory, journal, ends }
    }

    /// A copy of the store with another journal.
    fn with_journal(&self, bytes: &[u8]) -> tempfile::TempDir {
        let copy = tempfile::tempdir().unwrap();
        copy_files(self.directory.path(), copy.path());
        let journal = journal_of(self.directory.path());
        let within = journal.strip_prefix(self.directory.path()).unwrap();
        fs::write(copy.path().join(within), bytes).unwrap();
        copy
    }
}

fn copy_files(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let (path, target) = {
            let entry = entry.unwrap();
            (entry.path(), to.join(entry.file_name()))
        };
        if path.is_dir() {
            copy_files(&path, &target);
        } else if path.extension().is_none_or(|extension| extension != "jnl") {
            fs::copy(&path, &target).unwrap();
        }
    }
}

/// Opens what is left, and sometimes writes and opens it again.
fn check(written: &Written, journal: &[u8], place: usize, what: &str) {
    let what = &format!("{what} {place}");
    let directory = written.with_journal(journal);
    let store = open(directory.path()).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(has(&store, "a") && has(&store, "b"), "{what}: earlier records are lost");
    let (c, d) = (has(&store, "c"), has(&store, "d"));
    assert_eq!(c, d, "{what}: the last record is there by halves");
    if !place.is_multiple_of(AGAIN) {
        return;
    }
    put(&store, &["e"]);
    store.sync_through(store.last_committed()).unwrap();
    drop(store);
    let store = open(directory.path()).unwrap_or_else(|error| panic!("{what}, again: {error}"));
    assert!(
        has(&store, "a") && has(&store, "b") && has(&store, "e"),
        "{what}: later ones are lost"
    );
    assert_eq!((has(&store, "c"), has(&store, "d")), (c, d), "{what}: it came back or went");
    assert_eq!(store.torn_tail(), None, "{what}: it was cut off before");
}

#[test]
fn a_last_record_that_ends_too_early_is_forgotten() {
    let written = Written::new();
    for end in written.ends[1]..=written.ends[2] {
        check(&written, &written.journal[..end], end, "cut at");
    }
}

#[test]
fn a_last_record_whose_rest_was_never_written_is_forgotten() {
    let written = Written::new();
    for from in written.ends[1]..written.ends[2] {
        let mut journal = written.journal.clone();
        journal[from..].fill(0);
        journal.extend([0; 4096]);
        check(&written, &journal, from, "zero from");
    }
}

#[test]
fn a_last_record_with_a_damaged_byte_is_whole_or_forgotten() {
    let written = Written::new();
    for place in written.ends[1]..written.ends[2] {
        let mut journal = written.journal.clone();
        journal[place] ^= 0xFF;
        check(&written, &journal, place, "damage at");
    }
}

#[test]
fn what_was_cut_off_is_told() {
    let written = Written::new();
    let mut journal = written.journal.clone();
    // In the middle of the last value: the end of the record is there.
    journal[written.ends[2] - 16] ^= 0xFF;
    let directory = written.with_journal(&journal);
    let store = open(directory.path()).unwrap();
    let torn = store.torn_tail().unwrap();
    assert_eq!(torn.offset, written.ends[1] as u64);
    assert_eq!(torn.journal, journal_of(directory.path()));
    assert!(!has(&store, "c"));
}

#[test]
fn damage_that_whole_records_follow_is_refused_and_left_as_it_is() {
    let written = Written::new();
    for place in written.ends[0]..written.ends[1] {
        let mut journal = written.journal.clone();
        journal[place] = match journal[place] {
            // A zero where a record begins is the end of the journal.
            byte if place == written.ends[0] => byte | 0x80,
            byte => byte ^ 0xFF,
        };
        let directory = written.with_journal(&journal);
        match open(directory.path()) {
            Err(OpenError::DamagedJournal { offset, .. }) => {
                assert_eq!(offset, written.ends[0] as u64, "byte {place}");
                assert_eq!(fs::read(journal_of(directory.path())).unwrap(), journal);
            }
            Err(error) => panic!("byte {place}: {error}"),
            // The sequence is covered by no checksum, and may still rise.
            Ok(store) => assert!(has(&store, "b"), "byte {place}"),
        }
    }
}
