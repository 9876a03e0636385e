//! A process is killed in the middle of its writes. What it had synced must be there afterwards,
//! and no batch may be there in part.
//!
//! The test runs itself as the victim: the victim prints a number once the batch of that number is
//! synced, and the parent believes only what it read.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test without the harness")]

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use quorate_storage::{Batch, Direction, DiskOptions, DiskStore, KeyRange, KeyspaceId, Store};

const ROUNDS: u64 = 5;
const WRITERS: u64 = 4;
/// Acknowledged batches after which the victim dies, growing with each round.
const ACKNOWLEDGED_PER_ROUND: u64 = 60;
const KEYSPACES: [&str; 3] = ["documents", "index", "oplog"];
/// Large enough for a batch to span several pages of the journal.
const VALUE_BYTES: usize = 3000;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    match arguments.get(1).map(String::as_str) {
        Some("victim") => {
            write_until_killed(Path::new(&arguments[2]), arguments[3].parse().unwrap())
        }
        // The test runner lists tests first; asked for those that it is to leave out, there is none.
        Some("--list") if arguments.iter().any(|argument| argument == "--ignored") => {}
        Some("--list") => println!("kill: test"),
        _ => survive_rounds(),
    }
}

fn survive_rounds() {
    let directory = tempfile::tempdir().unwrap();
    let mut acknowledged = BTreeSet::new();
    let mut next = 0;
    for round in 1..=ROUNDS {
        acknowledged.extend(run_victim(directory.path(), next, round * ACKNOWLEDGED_PER_ROUND));
        let found = check(directory.path(), &acknowledged);
        println!("round {round}: {} acknowledged, {} found", acknowledged.len(), found.len());
        next = found.last().map_or(0, |last| last + 1);
    }
    println!("kill: ok");
}

fn run_victim(directory: &Path, first: u64, acknowledgements: u64) -> BTreeSet<u64> {
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["victim", directory.to_str().unwrap(), &first.to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(victim.stdout.take().unwrap()).lines();
    let mut acknowledged = BTreeSet::new();
    while (acknowledged.len() as u64) < acknowledgements {
        acknowledged.insert(lines.next().unwrap().unwrap().parse().unwrap());
    }
    victim.kill().unwrap();
    victim.wait().unwrap();
    // A line cut short by the kill was not acknowledged; whole ones in the pipe were.
    acknowledged.extend(lines.map_while(Result::ok).filter_map(whole_number));
    acknowledged
}

/// Numbers have a fixed width, so a torn line does not look like a smaller number.
fn whole_number(line: String) -> Option<u64> {
    (line.len() == 8).then(|| line.parse().ok()).flatten()
}

fn check(directory: &Path, acknowledged: &BTreeSet<u64>) -> BTreeSet<u64> {
    let store = DiskStore::open(directory, DiskOptions::default()).unwrap();
    let snapshot = store.snapshot();
    let numbers = |keyspace: KeyspaceId| -> BTreeSet<u64> {
        let pairs = snapshot.scan(keyspace, KeyRange::all(), Direction::Forward).unwrap();
        pairs
            .map(|pair| {
                let (key, value) = pair.unwrap();
                assert!(value.len() == VALUE_BYTES && value.iter().all(|&byte| byte == key[7]));
                u64::from_be_bytes((&key[..]).try_into().unwrap())
            })
            .collect()
    };
    let found = open_keyspaces(&store).map(numbers);
    assert!(found.iter().all(|numbers| *numbers == found[0]), "a batch is there in part");
    let lost: Vec<_> = acknowledged.difference(&found[0]).collect();
    assert!(lost.is_empty(), "synced but lost: {lost:?}");
    found[0].clone()
}

fn open_keyspaces(store: &DiskStore) -> [KeyspaceId; 3] {
    KEYSPACES.map(|name| store.create_keyspace(name).unwrap())
}

fn write_until_killed(directory: &Path, first: u64) {
    let store = Arc::new(DiskStore::open(directory, DiskOptions::default()).unwrap());
    let keyspaces = open_keyspaces(&store);
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let store = Arc::clone(&store);
            std::thread::spawn(move || {
                for number in (first + writer..).step_by(WRITERS as usize) {
                    let mut batch = Batch::new();
                    for keyspace in keyspaces {
                        let value = vec![number.to_be_bytes()[7]; VALUE_BYTES];
                        batch.insert(keyspace, &number.to_be_bytes(), value);
                    }
                    let sequence = store.commit(batch).unwrap();
                    store.sync_through(sequence).unwrap();
                    // One write call per line: lines of two threads cannot mix.
                    let line = format!("{number:08}\n");
                    std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
                }
            })
        })
        .collect();
    for writer in writers {
        writer.join().unwrap();
    }
}
