//! Serves a member of a replica set on loopback and prints its port:
//! `member --replset NAME [--port P] [--data DIR]`.
//!
//! Without a directory everything is kept in memory. For tests and for trying out.

#![allow(clippy::print_stdout, reason = "the port is what the example is for")]
#![allow(clippy::print_stderr, reason = "logs go to stderr")]

use std::error::Error;
use std::net::Ipv4Addr;

use quorate_server::{Place, Server, StartOptions};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Box<dyn Error>> {
    if std::env::var_os("QUORATE_LOG").is_some() {
        tracing::subscriber::set_global_default(Stderr)?;
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let option = |name: &str| {
        let place = arguments.iter().position(|argument| argument == name)?;
        arguments.get(place + 1)
    };
    let port: u16 = option("--port").map_or(Ok(0), |port| port.parse())?;
    let place = option("--data").map_or(Place::Memory, |data| Place::Directory(data.into()));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    let mut options = StartOptions::new(place);
    options.replica_set = option("--replset").cloned();
    let running = Server::start(listener, options).await?;
    println!("{}", running.address().port());
    let mut terminated = signal(SignalKind::terminate())?;
    terminated.recv().await;
    running.stop().await?;
    Ok(())
}

/// Prints what the member tells, for those who ask with `QUORATE_LOG`.
struct Stderr;

impl tracing::Subscriber for Stderr {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::DEBUG && metadata.target().starts_with("quorate")
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        let at = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let at = at.map_or(0, |since| since.as_millis() % 10_000_000);
        eprintln!("{}.{:03} [{}]{}", at / 1000, at % 1000, std::process::id(), line.0);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

struct Line(String);

impl tracing::field::Visit for Line {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        use std::fmt::Write;
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.0, " {value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}
