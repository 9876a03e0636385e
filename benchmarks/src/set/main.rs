//! Measures a replica set of ours beside a bare replicated log and beside etcd, Redis and PostgreSQL,
//! in one run: `cargo xtask bench set [measure…] [--quick] [--alone]`.
//!
//! ```text
//! writes      durable writes on a majority, 1 to 256 clients, all contestants in turns
//! failover    kill -9 of the primary, a planned step-down, a fresh set: until the next majority write
//! growth      replication lag under load, apply rate, initial sync, memory
//! read-ahead  what replIndexPrefetch saves a secondary that catches up
//! transactions of two updates, beside PostgreSQL; conflicts; plain writes beside them and behind them
//! streams     change streams beside the tail of the oplog: delay, rate, growth with their number
//! fan-out     a state change to 1,000 and 10,000 clients that await a streamed hello
//! ```
//!
//! All processes run on loopback with ports of their own and end with the run. A contestant that
//! cannot be installed or started is named, and left out. Each figure is the median of several rounds,
//! with the lowest and the highest beside it. `--quick` shows that everything works and measures
//! little; `--alone` leaves the peers out, and keeps the floor.

#![allow(clippy::unwrap_used, reason = "a benchmark may panic")]

mod dialects;
mod failover;
mod fan_out;
#[path = "../shared/figures.rs"]
mod figures;
mod floor_log;
mod growth;
mod load;
mod members;
mod peers;
#[path = "../shared/programs.rs"]
mod programs;
mod read_ahead;
mod streams;
mod table;
mod transactions;
mod writes;

use std::time::Duration;

/// How much to measure.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    pub rounds: usize,
    pub load: Duration,
    pub records: usize,
    pub watchers: &'static [usize],
    /// Whether etcd, Redis and PostgreSQL take part.
    pub peers: bool,
    /// How many clients write at once; each number has its rows.
    pub clients: &'static [usize],
}

const THOROUGH: Effort = Effort {
    rounds: 7,
    load: Duration::from_secs(3),
    records: 100_000,
    watchers: &[1_000, 10_000],
    peers: true,
    clients: &[1, 16, 64, 256],
};

const QUICK: Effort = Effort {
    rounds: 2,
    load: Duration::from_millis(500),
    records: 5_000,
    watchers: &[200],
    peers: true,
    clients: &[1, 16, 64],
};

const MEASURES: [&str; 8] = [
    "writes", "transactions", "streams", "stream-growth", "failover", "growth", "read-ahead",
    "fan-out",
];

/// As the program has it.
#[global_allocator]
static ALLOCATOR: quorate_server::Allocator = quorate_server::Allocator;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["member", rest @ ..] => return members::serve(rest),
        ["floor-leader", rest @ ..] => return floor_log::lead(rest),
        ["floor-follower", rest @ ..] => return floor_log::follow(rest),
        _ => {}
    }
    let mut effort = if words.contains(&"--quick") { QUICK } else { THOROUGH };
    effort.peers &= !words.contains(&"--alone");
    // A number of clients alone, for a profile.
    if let Some(only) = words.iter().find_map(|word| word.strip_prefix("--clients=")) {
        let only = only.parse().unwrap_or_else(|_| panic!("{only} is no number of clients"));
        effort.clients = vec![only].leak();
    }
    let wanted: Vec<&str> = words.iter().copied().filter(|word| !word.starts_with('-')).collect();
    if let Some(unknown) = wanted.iter().find(|word| !MEASURES.contains(word)) {
        eprintln!("no such measure: {unknown}; there are {}", MEASURES.join(", "));
        std::process::exit(2);
    }
    programs::allow_many_files();
    let is = |name: &str| wanted.is_empty() || wanted.contains(&name);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        table::head();
        if is("writes") {
            writes::run(effort).await;
        }
        if is("transactions") {
            transactions::run(effort).await;
        }
        if is("streams") {
            streams::run(effort).await;
        }
        if is("stream-growth") {
            streams::run_growth(effort).await;
        }
        if is("failover") {
            failover::run(effort).await;
        }
        if is("growth") {
            growth::run(effort).await;
        }
        if is("read-ahead") {
            read_ahead::run(effort).await;
        }
        if is("fan-out") {
            fan_out::run(effort).await;
        }
    });
}
