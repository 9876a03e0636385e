//! Copies of a store as a stream of bytes: equal to the store at one moment, and refused when they are not whole.

#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

use std::sync::Arc;

use quorate_storage::{
    Batch, CopyError, CopyReader, CopyWriter, Direction, DiskOptions, DiskStore, KeyRange,
    ModelStore, Store,
};

type Content = Vec<(String, Vec<(Vec<u8>, Vec<u8>)>)>;

fn content(store: &dyn Store) -> Content {
    let snapshot = store.snapshot();
    let mut all = Vec::new();
    for (name, keyspace) in store.keyspaces() {
        let pairs = snapshot.scan(keyspace, KeyRange::all(), Direction::Forward).unwrap();
        let pairs = pairs.map(|pair| pair.unwrap()).map(|(k, v)| (k.to_vec(), v.to_vec()));
        all.push((name, pairs.collect()));
    }
    all
}

/// Two trees, one of them empty, and a log whose beginning was trimmed; a value larger than a piece.
fn filled() -> ModelStore {
    let store = ModelStore::new();
    let (tree, log) = (store.create_keyspace("tree").unwrap(), store.create_log("log").unwrap());
    store.create_keyspace("empty").unwrap();
    for number in 1..=200_u64 {
        let mut batch = Batch::new();
        batch.insert(tree, number.to_be_bytes().to_vec(), vec![number as u8; 3 * number as usize]);
        batch.append_to_log(log, number * 10, vec![7; number as usize]);
        store.commit(batch).unwrap();
    }
    let mut batch = Batch::new();
    batch.trim_log(log, 505);
    batch.insert(tree, b"large", vec![9; 5_000_000]);
    store.commit(batch).unwrap();
    store
}

fn pieces(store: &dyn Store, size: usize) -> Vec<Vec<u8>> {
    let mut reader = CopyReader::new(store);
    std::iter::from_fn(|| reader.next_piece(size).unwrap()).collect()
}

#[test]
fn a_copy_on_disk_is_equal_whatever_the_pieces_and_opens_again() {
    let store = filled();
    for size in [1000, 65_536, 100_000_000] {
        let directory = tempfile::tempdir().unwrap();
        let copy = DiskStore::open(directory.path(), DiskOptions::default()).unwrap();
        let mut writer = CopyWriter::new(Arc::new(copy));
        for piece in pieces(&store, size) {
            assert!(piece.len() <= size);
            writer.take(&piece).unwrap();
        }
        assert_eq!(writer.finish().unwrap(), 200 + 150 + 1);
        let copy = DiskStore::open(directory.path(), DiskOptions::default()).unwrap();
        assert_eq!(content(&copy), content(&store));
        assert_eq!(copy.verify().unwrap(), []);
    }
}

#[test]
fn what_is_written_later_is_not_in_the_copy() {
    let store = filled();
    let before = content(&store);
    let mut reader = CopyReader::new(&store);
    let copy = Arc::new(ModelStore::new());
    let mut writer = CopyWriter::new(copy.clone());
    let tree = store.create_keyspace("tree").unwrap();
    let mut number = 0_u64;
    while let Some(piece) = reader.next_piece(10_000).unwrap() {
        number += 1;
        let mut batch = Batch::new();
        batch.insert(tree, number.to_be_bytes().to_vec(), b"later");
        store.commit(batch).unwrap();
        writer.take(&piece).unwrap();
    }
    writer.finish().unwrap();
    assert_eq!(content(&*copy), before);
}

#[test]
fn a_stream_that_breaks_off_or_is_damaged_is_no_copy() {
    let store = filled();
    let whole: Vec<u8> = pieces(&store, 1 << 20).concat();
    for cut in [0, 5, 8, 1000, whole.len() - 13, whole.len() - 1] {
        let copy = Arc::new(ModelStore::new());
        let mut writer = CopyWriter::new(copy.clone());
        writer.take(&whole[..cut]).unwrap();
        assert!(matches!(writer.finish().unwrap_err(), CopyError::Incomplete), "cut at {cut}");
    }
    for flipped in [0, 40, whole.len() / 2, whole.len() - 1] {
        let mut damaged = whole.clone();
        damaged[flipped] ^= 1;
        let copy = Arc::new(ModelStore::new());
        let mut writer = CopyWriter::new(copy.clone());
        let taken = writer.take(&damaged).and_then(|()| writer.finish());
        assert!(taken.is_err(), "a bit at {flipped}");
    }
}
