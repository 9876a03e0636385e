//! How a server grows: with documents, and with connections. `server growth`.

use std::time::Instant;

use crate::ours::Server;
use crate::{Request, Store, rate};

/// How many documents there are.
const DOCUMENTS: [i64; 2] = [10_000, 1_000_000];

/// How many connections there are at once.
const CONNECTIONS: [usize; 4] = [10, 100, 1_000, 10_000];

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
        let reads = rate(&server, 1, Request::Read);
        let memory = server.resident_kib() as f64 / 1024.0;
        drop(server);
        let started = Instant::now();
        let again = Server::start(&directory, documents);
        let restart = started.elapsed().as_secs_f64() * 1e3;
        drop(again);
        let (a_second, cpu) = (reads.a_second, reads.cpu.as_nanos() as f64 / 1000.0);
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
        let empty = server.resident_kib();
        let storm = server.storm(connections);
        let mebibytes = |kib: u64| kib as f64 / 1024.0;
        println!(
            "| {connections} | {:.0} | {:.1} | {:.1} | {:.1} | {:.1} |",
            storm.a_second,
            storm.cpu.as_nanos() as f64 / 1000.0,
            mebibytes(storm.open_kib),
            storm.open_kib.saturating_sub(empty) as f64 / connections as f64,
            mebibytes(storm.closed_kib),
        );
    }
}
