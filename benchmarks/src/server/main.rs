//! Measures our server beside SQLite, PostgreSQL and Redis, in one run: `cargo xtask bench server`.
//!
//! ```text
//!   this process ──loopback──▶ our server, PostgreSQL, Redis: processes of their own
//!   this process ──library───▶ SQLite, in this process
//! ```
//!
//! Each caller is a thread with a connection, and exists only while its contestant's turn lasts. All
//! keep the same records: a key, two numbers, one of them indexed, and a text, about 200 bytes; SQLite
//! as columns, PostgreSQL as jsonb under a primary key, Redis as JSON under a key. Callers of servers
//! send bytes that are mostly written beforehand, since they share the processors with the servers.
//! SQLite has no network to cross, so a ratio below one is no surprise for reads of one document; what
//! it shows is how much of the way is the server's.
//!
//! | | durable | not synced |
//! |---|---|---|
//! | ours | `j: true` | `w: 1` |
//! | SQLite | `synchronous=FULL` | `synchronous=NORMAL` |
//! | PostgreSQL | `synchronous_commit=on` | `synchronous_commit=off` |
//! | Redis | `appendfsync always` | takes no part |
//!
//! A bulk insert ends with a durable batch; Redis, whose log is always synced, syncs all the way.
//! Mixes are those of YCSB's workloads A and B with keys that are equally likely. Every figure is the
//! median of seven rounds of a second in which the contestants take turns, with the lowest and the
//! highest beside it; ratios are those of medians. A peer that cannot be installed or started is named,
//! and left out; a measure that a peer does not have is an empty cell.
//!
//! `server [records] [--ours] [--quick] [word…]`: with words, only the measures whose names have one of
//! them; with `--ours`, without the peers, for those who look where the server's time goes; `--quick`
//! takes two rounds of 0.3 s, which show that everything works and measure little.
//! `server inside [records]`: what each request costs in the server without the network.
//! `server growth`: memory, reads and restarts with more documents, and memory with more connections.

#![allow(clippy::unwrap_used, reason = "a benchmark may panic")]
#![allow(clippy::print_stdout, reason = "the figures are what it is for")]

#[path = "../shared/figures.rs"]
mod figures;
mod growth;
mod inside;
mod measuring;
mod ours;
mod postgres;
#[path = "../shared/programs.rs"]
mod programs;
mod redis;
mod sqlite;
mod table;
mod wire;

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use measuring::{Job, Turn};
use table::Table;

/// How many records are loaded before anything is read, unless told otherwise.
const RECORDS: i64 = 200_000;

/// How many records go into one bulk insert.
const BATCH: i64 = 1_000;

/// How often each contestant has its turn, and how long that is.
const THOROUGH: (usize, Duration) = (7, Duration::from_secs(1));
const QUICK: (usize, Duration) = (2, Duration::from_millis(300));

/// How long a contestant may take to forget the connections of a storm before the next has its turn.
const AFTER_STORM: Duration = Duration::from_secs(2);

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
    /// The first request of a connection, which touches no record.
    Hello,
    Insert {
        durable: bool,
    },
    Read,
    Update {
        durable: bool,
    },
    Range,
    Aggregate,
    /// The records of a kind with a text that none has, by looking at all.
    Filter,
    /// How many records are of a kind, by looking at all.
    Count,
    /// The ten records with the greatest kinds, by looking at all.
    Top,
    /// An index on the kind of all records, and its end.
    BuildIndex,
    DropIndex,
}

/// A connection to a contestant.
trait Caller: Send {
    fn ask(&mut self, request: Request, chance: u64);
}

/// A contestant.
trait Store: Sync {
    fn name(&self) -> &'static str;
    /// Whether it has such requests.
    fn answers(&self, request: Request) -> bool;
    fn caller(&self) -> Box<dyn Caller>;
    /// Loads records with bulk inserts, of which the last is durable.
    fn load(&self, records: i64);
    /// Removes all records, and leaves it as it was before the first load.
    fn clear(&self);
    /// Does after the load what would otherwise disturb the turns of others.
    fn settle(&self) {}
    /// The processor time that it has taken, where that can be told from the callers'.
    fn cpu(&self) -> Duration;
}

/// What a run was asked to measure.
struct Wanted {
    records: i64,
    ours_only: bool,
    rounds: usize,
    window: Duration,
    words: Vec<String>,
}

impl Wanted {
    fn read(arguments: &[String]) -> Self {
        let (rounds, window) = THOROUGH;
        let mut wanted =
            Self { records: RECORDS, ours_only: false, rounds, window, words: Vec::new() };
        for argument in arguments {
            match argument.parse() {
                Ok(records) => wanted.records = records,
                Err(_) if argument == "--ours" => wanted.ours_only = true,
                Err(_) if argument == "--quick" => (wanted.rounds, wanted.window) = QUICK,
                Err(_) => wanted.words.push(argument.clone()),
            }
        }
        assert!(wanted.records > RANGE, "a range of {RANGE} needs more records");
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
    programs::allow_many_files();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("serve") => ours::serve(&arguments[1]),
        Some("growth") => growth::run(),
        Some("inside") => inside(&Wanted::read(&arguments[1..])),
        _ => run(&Wanted::read(&arguments)),
    }
}

/// Measures ours beside its peers.
fn run(wanted: &Wanted) {
    let folder = tempfile::tempdir().unwrap();
    let ours = ours::Server::start(&folder.path().join("ours"), wanted.records);
    let peers = if wanted.ours_only { Vec::new() } else { start_peers(folder.path(), wanted) };
    let contestants: Vec<&dyn Store> =
        std::iter::once::<&dyn Store>(&ours).chain(peers.iter().map(|peer| &**peer)).collect();

    // Soon after its start the server lets go of the code that only the start needed.
    let idle = ours.resident_at_rest();
    // First, since a process that has worked has memory to spare for new connections.
    let connection = ours.idle_connection(IDLE_CONNECTIONS);
    let table = Table::new(wanted, contestants.clone());
    load(wanted, &table, &contestants);
    let loaded = ours.resident();
    // Reads first, of as many records for all.
    tell_reads(&table);
    table.row("index build over all records, seconds", |store, _| {
        store.answers(Request::BuildIndex).then(|| {
            let turn = measuring::time(store, Request::BuildIndex);
            store.caller().ask(Request::DropIndex, 1);
            turn
        })
    });
    tell_writes(&table);
    let worked = ours.resident_at_rest();
    let storm = format!("{STORM} connections opened at once, a second");
    table.row(&storm, |store, _| {
        store.answers(Request::Hello).then(|| {
            let (turn, open) = measuring::storm(store, STORM);
            drop(open);
            std::thread::sleep(AFTER_STORM);
            turn
        })
    });

    println!();
    println!("| memory of our server | MiB |");
    println!("|---|--:|");
    println!("| idle, without records | {idle:.1} |");
    println!("| right after the load of {} records | {loaded:.1} |", wanted.records);
    println!("| after all of these jobs | {worked:.1} |");
    if wanted.has(&storm) {
        let storm = ours.storm(STORM);
        println!("| with {STORM} connections open | {:.1} |", storm.open);
        println!("| after they have closed | {:.1} |", storm.closed);
    }
    println!("| an idle connection, KiB | {connection:.1} |");
}

/// Every peer that can be installed and started here. Those that cannot are named.
fn start_peers(folder: &Path, wanted: &Wanted) -> Vec<Box<dyn Store>> {
    let records = wanted.records;
    let sqlite = sqlite::Database::open(&folder.join("sqlite.db"), records);
    let mut peers: Vec<Box<dyn Store>> = vec![Box::new(sqlite)];
    match postgres::Postgres::start(records) {
        Ok(postgres) => peers.push(Box::new(postgres)),
        Err(why) => eprintln!("NOT MEASURED: PostgreSQL: {why}"),
    }
    match redis::Redis::start(records) {
        Ok(redis) => peers.push(Box::new(redis)),
        Err(why) => eprintln!("NOT MEASURED: Redis: {why}"),
    }
    peers
}

/// Loads the records that all other measures need: in every round, if that is a measure that is wanted.
fn load(wanted: &Wanted, table: &Table<'_>, contestants: &[&dyn Store]) {
    let what = format!("bulk insert of {} records, durable at its end, a second", wanted.records);
    table.row(&what, |store, round| {
        if round > 0 {
            store.clear();
        }
        let (before, start) = (store.cpu(), Instant::now());
        store.load(wanted.records);
        let figure = wanted.records as f64 / start.elapsed().as_secs_f64();
        let cpu = store.cpu() - before;
        Some(Turn { figure, requests: wanted.records.unsigned_abs(), cpu })
    });
    for store in contestants {
        if !wanted.has(&what) {
            store.load(wanted.records);
        }
        store.settle();
    }
}

fn tell_reads(table: &Table<'_>) {
    for (callers, connections) in [(1, "1 connection"), (64, "64 connections")] {
        for (what, request) in [
            ("point reads a second", Request::Read),
            ("scans of 1,000 by index a second", Request::Range),
        ] {
            table.rate(&format!("{what}, {connections}"), callers, Job::One(request));
        }
    }
    table.rate("groupings of all records a second", 1, Job::One(Request::Aggregate));
    table.rate("filters over all records a second", 1, Job::One(Request::Filter));
    table.rate("counts with a filter over all records a second", 1, Job::One(Request::Count));
    table.rate("sorts of all records with a limit a second", 1, Job::One(Request::Top));
}

fn tell_writes(table: &Table<'_>) {
    for (callers, connections) in [(1, "1 connection"), (64, "64 connections")] {
        for (what, request) in [
            ("inserts a second, durable", Request::Insert { durable: true }),
            ("inserts a second, not synced", Request::Insert { durable: false }),
            ("updates a second, durable", Request::Update { durable: true }),
            ("updates a second, not synced", Request::Update { durable: false }),
        ] {
            table.rate(&format!("{what}, {connections}"), callers, Job::One(request));
        }
    }
    for (reads, name) in [(50, "A"), (95, "B")] {
        let what =
            format!("{reads} % reads, durable updates (YCSB-{name}) a second, 64 connections");
        table.rate(&what, 64, Job::Mix { reads });
    }
}

/// Appends a record without its key, as JSON.
fn write_json(out: &mut Vec<u8>, n: i64, kind: i64) {
    write!(out, "{{\"n\":{n},\"kind\":{kind},\"text\":\"{TEXT}\"}}").unwrap();
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
