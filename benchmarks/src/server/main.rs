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
//!
//! `server inside [records]`: what each request costs in the server without the network.
//! `server growth`: memory, reads and restarts with more documents, and memory with more connections.
//! `server [records] [--ours] [word…]`: with words, only the measures whose names have one of them;
//! with `--ours`, without SQLite, for those who look where the server's time goes.

#![allow(clippy::unwrap_used, reason = "a benchmark may panic")]
#![allow(clippy::print_stdout, reason = "the figures are what it is for")]

mod growth;
mod inside;
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

/// How many records a sort returns.
const TOP: i64 = 10;

/// How many connections are opened to see what an idle one costs.
const IDLE_CONNECTIONS: usize = 1_000;

/// How many connections are opened at once.
const STORM: usize = 10_000;

/// The text of a record.
const TEXT: &str = "a text of about one hundred and fifty bytes, as long as what an ordinary record \
                    of an ordinary application holds beside its numbers: a name, a place.";

/// One kind of request. Inserts, reads and updates touch one record.
#[derive(Clone, Copy, Debug)]
enum Request {
    Insert {
        durable: bool,
    },
    Read,
    Update {
        durable: bool,
    },
    Range,
    Aggregate,
    /// The few records of a kind with a small number, by looking at all.
    Filter,
    /// How many records are of a kind, by looking at all.
    Count,
    /// The ten records with the greatest kinds, by looking at all.
    Top,
}

/// A contestant that can be asked. Each caller has a connection of its own.
trait Caller: Send + 'static {
    fn ask(&mut self, request: Request, chance: u64);
}

trait Store {
    type Caller: Caller;
    fn caller(&self) -> Self::Caller;
    /// Loads records with bulk inserts.
    fn load(&self, records: i64);
    /// The processor time that it has taken, where that can be told from the callers'.
    fn cpu(&self) -> Duration;
}

/// How fast requests were answered.
#[derive(Clone, Copy)]
struct Rate {
    a_second: f64,
    /// Processor time for each: what stays comparable when others use the machine too.
    cpu: Duration,
}

/// What a run was asked to measure.
struct Wanted {
    records: i64,
    ours_only: bool,
    words: Vec<String>,
}

impl Wanted {
    fn read(arguments: &[String]) -> Self {
        let mut wanted = Self { records: RECORDS, ours_only: false, words: Vec::new() };
        for argument in arguments {
            match argument.parse() {
                Ok(records) => wanted.records = records,
                Err(_) if argument == "--ours" => wanted.ours_only = true,
                Err(_) => wanted.words.push(argument.clone()),
            }
        }
        wanted
    }

    fn has(&self, what: &str) -> bool {
        self.words.is_empty() || self.words.iter().any(|word| what.contains(word))
    }
}

/// As the program has it.
#[global_allocator]
static ALLOCATOR: quorate_server::Allocator = quorate_server::Allocator;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == "serve") {
        return ours::serve(&arguments[1]);
    }
    if arguments.first().is_some_and(|first| first == "growth") {
        return growth::run();
    }
    if arguments.first().is_some_and(|first| first == "inside") {
        return inside(&Wanted::read(&arguments[1..]));
    }
    let wanted = Wanted::read(&arguments);
    let records = wanted.records;
    let folder = tempfile::tempdir().unwrap();
    let ours = ours::Server::start(&folder.path().join("ours"), records);
    let sqlite = (!wanted.ours_only)
        .then(|| sqlite::Database::open(&folder.path().join("sqlite.db"), records));

    println!(
        "{:<46} {:>12} {:>12} {:>12} {:>12}",
        "", "ours", "its CPU, µs", "SQLite", "ours/SQLite"
    );
    let empty = ours.resident_kib();
    // First, since a process that has worked has memory to spare for new connections.
    let per_connection = ours.idle_connection_kib(IDLE_CONNECTIONS);
    let load = |load: &dyn Fn()| {
        let started = Instant::now();
        load();
        records as f64 / started.elapsed().as_secs_f64()
    };
    let before = ours.cpu();
    let own = load(&|| ours.load(records));
    let own = Rate { a_second: own, cpu: (ours.cpu() - before) / records as u32 };
    let peer = sqlite.as_ref().map(|sqlite| load(&|| sqlite.load(records)));
    line(&format!("bulk insert of {records} records, a second"), own, peer);
    let loaded = ours.resident_kib();

    let tell = |what: &str, callers: u64, request: Request| {
        if wanted.has(what) {
            let own = rate(&ours, callers, request);
            let peer = sqlite.as_ref().map(|sqlite| rate(sqlite, callers, request).a_second);
            line(what, own, peer);
        }
    };
    // Reads first, of as many records for both.
    for (callers, connections) in [(1, "1 connection"), (64, "64 connections")] {
        tell(&format!("point reads a second, {connections}"), callers, Request::Read);
        tell(&format!("scans of 1,000 by index a second, {connections}"), callers, Request::Range);
    }
    tell("groupings of all records a second", 1, Request::Aggregate);
    tell("filters over all records a second", 1, Request::Filter);
    tell("counts with a filter over all records a second", 1, Request::Count);
    tell("sorts of all records with a limit a second", 1, Request::Top);
    for (callers, connections) in [(1, "1 connection"), (64, "64 connections")] {
        for (what, request) in [
            ("inserts a second, durable", Request::Insert { durable: true }),
            ("inserts a second, not synced", Request::Insert { durable: false }),
            ("updates a second, durable", Request::Update { durable: true }),
            ("updates a second, not synced", Request::Update { durable: false }),
        ] {
            tell(&format!("{what}, {connections}"), callers, request);
        }
    }

    tell_storm(&wanted, &ours);
    println!();
    println!("memory of the server, empty                    {:>9.1} MiB", empty as f64 / 1024.0);
    println!("memory with {records} records                {:>9.1} MiB", loaded as f64 / 1024.0);
    println!("memory of an idle connection                   {per_connection:>9.1} KiB");
}

/// Tells what many connections at once cost.
fn tell_storm(wanted: &Wanted, ours: &ours::Server) {
    if wanted.has("connections opened at once") {
        let storm = ours.storm(STORM);
        let rate = Rate { a_second: storm.a_second, cpu: storm.cpu };
        line(&format!("{STORM} connections opened at once, a second"), rate, None);
        let mebibytes = |kib: u64| kib as f64 / 1024.0;
        println!(
            "memory with them open                          {:>9.1} MiB",
            mebibytes(storm.open_kib)
        );
        println!(
            "memory after they have closed                  {:>9.1} MiB",
            mebibytes(storm.closed_kib)
        );
    }
}

/// Tells what requests cost without the network.
fn inside(wanted: &Wanted) {
    let folder = tempfile::tempdir().unwrap();
    let mut member = inside::Inside::open(folder.path(), wanted.records);
    let tell = |what: &str, cost: Duration| {
        println!("{what:<46} {:>12.2} µs", cost.as_nanos() as f64 / 1000.0);
    };
    tell("one record of a bulk insert", member.load());
    for (what, request) in [
        ("insert", Request::Insert { durable: false }),
        ("point read", Request::Read),
        ("update", Request::Update { durable: false }),
        ("scan of 1,000 by index", Request::Range),
        ("grouping of all records", Request::Aggregate),
        ("filter over all records", Request::Filter),
        ("count with a filter over all records", Request::Count),
        ("sort of all records with a limit", Request::Top),
    ] {
        if wanted.has(what) {
            tell(what, member.cost(request));
        }
    }
}

fn line(what: &str, ours: Rate, sqlite: Option<f64>) {
    let Rate { a_second, cpu } = ours;
    print!("{what:<46} {a_second:>12.1} {:>12.1}", cpu.as_nanos() as f64 / 1000.0);
    match sqlite {
        Some(sqlite) => println!(" {sqlite:>12.1} {:>12.2}", a_second / sqlite),
        None => println!(),
    }
}

/// Requests a second by this many callers, each in a thread of its own.
fn rate<S: Store>(store: &S, callers: u64, request: Request) -> Rate {
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
    let (before, cpu, started) = (done.load(Ordering::Relaxed), store.cpu(), Instant::now());
    std::thread::sleep(MEASURE);
    // A request that takes long is counted only once it is done.
    while done.load(Ordering::Relaxed) == before {
        std::thread::sleep(MEASURE / 100);
    }
    let requests = done.load(Ordering::Relaxed) - before;
    let (elapsed, cpu) = (started.elapsed(), store.cpu() - cpu);
    stop.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().unwrap();
    }
    Rate { a_second: requests as f64 / elapsed.as_secs_f64(), cpu: cpu / requests as u32 }
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
