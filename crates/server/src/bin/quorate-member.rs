//! Serves a member of a replica set and prints its port, for tests, benchmarks and trying out:
//! `quorate-member --replset NAME [--bind IP] [--port P] [--data DIR] [--own HOST:PORT]…
//! [--oplog-bytes N] [--leash]`.
//!
//! Without a directory everything is kept in memory. `--own` names an address under which others
//! list it, such as that of a proxy. With `--leash` the process ends when its standard input does, so
//! that it does not outlive a test that was killed. `quorate serve` is the program for everything else.

#![allow(clippy::print_stdout, reason = "the port is what the program is for")]

use std::error::Error;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr};

use quorate_server::{LogFormat, Place, Server, StartOptions, log_to_stderr};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

#[global_allocator]
static ALLOCATOR: quorate_server::Allocator = quorate_server::Allocator;

const USAGE: &str = "\
Serve a member of a replica set and print its port, for tests and benchmarks. For everything else: quorate serve

Usage: quorate-member [OPTIONS]

Options:
      --replset <NAME>      The set it belongs to; a single server without it
      --bind <IP>           The address it listens on, 127.0.0.1 unless given
      --port <P>            Its port; any that is free unless given
      --data <DIR>          Where its data are; in memory without it
      --own <HOST:PORT>     An address under which others list it, such as that of a proxy; may be repeated
      --oplog-bytes <N>     How much history it keeps
      --leash               End when the standard input does
  -h, --help                Print help";

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Box<dyn Error>> {
    if std::env::var_os("QUORATE_LOG").is_some() {
        log_to_stderr(tracing::Level::DEBUG, LogFormat::Text);
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--help" || argument == "-h") {
        println!("{USAGE}");
        return Ok(());
    }
    let options = |name: &'static str| {
        let pairs = arguments.iter().zip(arguments.iter().skip(1));
        pairs.filter(move |(option, _)| *option == name).map(|(_, value)| value)
    };
    let option = |name| options(name).next();
    let port: u16 = option("--port").map_or(Ok(0), |port| port.parse())?;
    let bind: IpAddr = option("--bind").map_or(Ok(Ipv4Addr::LOCALHOST.into()), |ip| ip.parse())?;
    let place = option("--data").map_or(Place::Memory, |data| Place::Directory(data.into()));
    let mut start = StartOptions::new(place);
    start.replica_set = option("--replset").cloned();
    start.test_commands = true;
    if let Some(bytes) = option("--oplog-bytes") {
        start.oplog_bytes = bytes.parse()?;
    }
    for address in options("--own") {
        start.own_addresses.push(address.parse()?);
    }
    let listener = TcpListener::bind((bind, port)).await?;
    let mut running = Server::start(listener, start).await?;
    println!("{}", running.address().port());
    if arguments.iter().any(|argument| argument == "--leash") {
        std::thread::spawn(end_with_standard_input);
    }
    let mut terminated = signal(SignalKind::terminate())?;
    let ended = tokio::select! {
        ended = running.ended() => ended,
        _ = terminated.recv() => running.stop().await,
    };
    Ok(ended?)
}

fn end_with_standard_input() {
    let mut byte = [0];
    while std::io::stdin().read(&mut byte).is_ok_and(|read| read > 0) {}
    std::process::exit(1);
}
