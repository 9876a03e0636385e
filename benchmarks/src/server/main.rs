//! Measures our server beside SQLite, in one run: `cargo xtask bench server`.
//!
//! ```text
//!   this process ──loopback──▶ our server, a process of its own   (each caller a connection)
//!   this process ──library───▶ SQLite, in this process             (each caller a connection)
//! ```
//!
//! SQLite has no network to cross, so a ratio below one is no surprise for reads of one document;
//! what it shows is how much of the way is the server's. Both keep the same records: a key, two
//! numbers, one of them indexed, and a text, about 200 bytes. "Durable" is `j: true` here and
//! `synchronous=FULL` there; "not synced" is `w: 1` here and `synchronous=NORMAL` there.

#![allow(clippy::unwrap_used, reason = "a benchmark may panic")]
#![allow(clippy::print_stdout, reason = "the figures are what it is for")]

mod ours;
mod sqlite;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How many records are loaded before anything is read, unless told otherwise.
const RECORDS: i64 = 1_000_000;

/// How many records go into one bulk insert.
const BATCH: i64 = 1_000;

/// How long each rate is measured.
const MEASURE: Duration = Duration::from_secs(3);

/// How many records a range holds.
const RANGE: i64 = 1_000;

/// How many groups the aggregation finds.
const GROUPS: i64 = 100;

/// How many connections are opened to see what an idle one costs.
const IDLE_CONNECTIONS: usize = 1_000;

/// The text of a record.
const TEXT: &str = "a text of about one hundred and fifty bytes, as long as what an ordinary record \
                    of an ordinary application holds beside its numbers: a name, a place.";

/// One kind of request. Every request but the scan and the aggregation touches one record.
#[derive(Clone, Copy, Debug)]
enum Request {
    Insert { durable: bool },
    Read,
    Update { durable: bool },
    Range,
    Aggregate,
}

/// Somebody who can be asked. Each caller has a connection of its own.
trait Caller: Send + 'static {
    fn ask(&mut self, request: Request, chance: u64);
}

trait Store {
    type Caller: Caller;
    fn caller(&self) -> Self::Caller;
    /// Loads records with bulk inserts.
    fn load(&self, records: i64);
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("serve") => return ours::serve(&arguments[1]),
        _ => {}
    }
    let records = arguments.first().map_or(RECORDS, |records| records.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let ours = ours::Server::start(&folder.path().join("ours"), records);
    let sqlite = sqlite::Database::open(&folder.path().join("sqlite.db"), records);

    println!("{:<46} {:>12} {:>12} {:>12}", "", "ours", "SQLite", "ours/SQLite");
    let empty = ours.resident_kib();
    // First, since a process that has worked has memory to spare for whoever comes.
    let per_connection = ours.idle_connection_kib(IDLE_CONNECTIONS);
    let load = |load: &dyn Fn()| {
        let started = Instant::now();
        load();
        records as f64 / started.elapsed().as_secs_f64()
    };
    let (own, peer) = (load(&|| ours.load(records)), load(&|| sqlite.load(records)));
    line(&format!("bulk insert of {records} records, a second"), own, peer);
    let loaded = ours.resident_kib();

    for callers in [1, 64] {
        let connections = if callers == 1 { "1 connection" } else { "64 connections" };
        for (what, request) in [
            ("inserts a second, durable", Request::Insert { durable: true }),
            ("inserts a second, not synced", Request::Insert { durable: false }),
            ("point reads a second", Request::Read),
            ("updates a second, durable", Request::Update { durable: true }),
            ("updates a second, not synced", Request::Update { durable: false }),
            ("scans of 1,000 by index a second", Request::Range),
        ] {
            let own = rate(&ours, callers, request);
            let peer = rate(&sqlite, callers, request);
            line(&format!("{what}, {connections}"), own, peer);
        }
    }
    let once = |ask: &mut dyn FnMut()| {
        let started = Instant::now();
        ask();
        1.0 / started.elapsed().as_secs_f64()
    };
    let (mut own, mut peer) = (ours.caller(), sqlite.caller());
    let own = once(&mut || own.ask(Request::Aggregate, 0));
    let peer = once(&mut || peer.ask(Request::Aggregate, 0));
    line("groupings of all records a second", own, peer);

    println!();
    println!("memory of the server, empty                    {:>9.1} MiB", empty as f64 / 1024.0);
    println!("memory with {records} records                {:>9.1} MiB", loaded as f64 / 1024.0);
    println!("memory of an idle connection                   {per_connection:>9.1} KiB");
}

fn line(what: &str, ours: f64, sqlite: f64) {
    println!("{what:<46} {ours:>12.1} {sqlite:>12.1} {:>12.2}", ours / sqlite);
}

/// Requests a second by this many callers, each in a thread of its own.
fn rate<S: Store>(store: &S, callers: u64, request: Request) -> f64 {
    let done = Arc::new(AtomicU64::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let threads: Vec<_> = (0..callers)
        .map(|number| {
            let (mut caller, done, stop) = (store.caller(), Arc::clone(&done), Arc::clone(&stop));
            std::thread::spawn(move || {
                let mut chance = number + 1;
                while !stop.load(Ordering::Relaxed) {
                    chance = next_chance(chance);
                    caller.ask(request, chance);
                    done.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    // Connections are made and caches filled before the clock starts.
    std::thread::sleep(MEASURE / 10);
    let (before, started) = (done.load(Ordering::Relaxed), Instant::now());
    std::thread::sleep(MEASURE);
    let requests = done.load(Ordering::Relaxed) - before;
    let elapsed = started.elapsed();
    stop.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().unwrap();
    }
    requests as f64 / elapsed.as_secs_f64()
}

/// Xorshift: good enough to spread keys.
fn next_chance(mut state: u64) -> u64 {
    state ^= state << 13;
    state ^= state >> 7;
    state ^ (state << 17)
}

/// The key of an existing record.
fn any_key(chance: u64, records: i64) -> i64 {
    (chance % records.unsigned_abs()) as i64
}
