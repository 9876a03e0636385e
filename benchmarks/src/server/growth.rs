//! How a server grows: with documents, and with connections. `server growth`.

use std::time::{Duration, Instant};

use crate::measuring::{Job, turn};
use crate::ours::Server;
use crate::{Request, Store};

/// How many documents there are.
const DOCUMENTS: [i64; 2] = [10_000, 1_000_000];

/// How many connections there are at once.
const CONNECTIONS: [usize; 4] = [10, 100, 1_000, 10_000];

/// How long reads are measured.
const WINDOW: Duration = Duration::from_secs(3);

pub fn run() {
    println!(
        "| documents | bulk insert/s | point reads/s, 1 connection | their CPU, µs | memory, MiB | restart after a kill, ms |"
    );
    println!("|--:|--:|--:|--:|--:|--:|");
    for documents in DOCUMENTS {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("ours");
        let server = Server::start(&directory, documents);
        let started = Instant::now();
        server.load(documents);
        let load = documents as f64 / started.elapsed().as_secs_f64();
        let reads = turn(&server, 1, Job::One(Request::Read), WINDOW);
        let memory = server.resident();
        drop(server);
        let started = Instant::now();
        let again = Server::start(&directory, documents);
        let restart = started.elapsed().as_secs_f64() * 1e3;
        drop(again);
        let (a_second, cpu) = (reads.figure, reads.cpu_each().as_nanos() as f64 / 1000.0);
        println!(
            "| {documents} | {load:.0} | {a_second:.0} | {cpu:.1} | {memory:.1} | {restart:.0} |"
        );
    }
    println!();
    println!(
        "| connections | opened/s | CPU µs each | memory, MiB | KiB each | memory after they have closed, MiB |"
    );
    println!("|--:|--:|--:|--:|--:|--:|");
    for connections in CONNECTIONS {
        let folder = tempfile::tempdir().unwrap();
        let server = Server::start(&folder.path().join("ours"), 0);
        let empty = server.resident();
        let storm = server.storm(connections);
        println!(
            "| {connections} | {:.0} | {:.1} | {:.1} | {:.1} | {:.1} |",
            storm.turn.figure,
            storm.turn.cpu_each().as_nanos() as f64 / 1000.0,
            storm.open,
            (storm.open - empty).max(0.0) * 1024.0 / connections as f64,
            storm.closed,
        );
    }
}
