//! Clients that store records one after another and wait for each.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::dialects::{self, Dialect, Requests};

/// Makes keys that no other run has.
static NEXT_RUN: AtomicU64 = AtomicU64::new(0);

/// How it went.
pub struct Outcome {
    pub writes: usize,
    pub per_second: f64,
    pub p50_us: f64,
    pub p99_us: f64,
}

/// Lets so many clients write for so long.
pub async fn run(dialect: Dialect, to: SocketAddr, clients: usize, time: Duration) -> Outcome {
    let run = NEXT_RUN.fetch_add(1, Ordering::Relaxed);
    let start = Instant::now();
    let end = start + time;
    let tasks: Vec<_> = (0..clients)
        .map(|client| tokio::spawn(write(dialect, to, format!("{run}-{client}"), end)))
        .collect();
    let mut latencies = Vec::new();
    for task in tasks {
        latencies.extend(task.await.unwrap().unwrap());
    }
    let elapsed = start.elapsed().as_secs_f64();
    latencies.sort_unstable();
    let at = |share: f64| latencies[(latencies.len() as f64 * share) as usize].as_nanos() as f64;
    Outcome {
        writes: latencies.len(),
        per_second: latencies.len() as f64 / elapsed,
        p50_us: at(0.5) / 1e3,
        p99_us: at(0.99) / 1e3,
    }
}

async fn write(
    dialect: Dialect,
    to: SocketAddr,
    name: String,
    end: Instant,
) -> Result<Vec<Duration>, String> {
    let mut connection = Connection::open(dialect, to).await?;
    let mut requests = Requests::new(dialect, name);
    let mut latencies = Vec::new();
    let mut sent = Instant::now();
    while sent < end {
        connection.exchange(requests.nth(latencies.len())).await?;
        let answered = Instant::now();
        latencies.push(answered - sent);
        sent = answered;
    }
    Ok(latencies)
}

/// One client's connection.
pub struct Connection {
    dialect: Dialect,
    stream: TcpStream,
    received: Vec<u8>,
}

impl Connection {
    pub async fn open(dialect: Dialect, to: SocketAddr) -> Result<Self, String> {
        let stream = TcpStream::connect(to).await.map_err(|error| error.to_string())?;
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        let mut connection = Self { dialect, stream, received: Vec::new() };
        if let Some(greeting) = dialect.greeting() {
            connection.exchange(&greeting).await?;
        }
        Ok(connection)
    }

    pub async fn exchange(&mut self, request: &[u8]) -> Result<(), String> {
        let failed = |error: std::io::Error| error.to_string();
        self.stream.write_all(request).await.map_err(failed)?;
        loop {
            if let Some(length) = self.dialect.answered(&self.received)? {
                self.received.drain(..length);
                return Ok(());
            }
            if self.stream.read_buf(&mut self.received).await.map_err(failed)? == 0 {
                return Err("the connection was closed".to_owned());
            }
        }
    }
    /// The same where the contestant may refuse and go on: of PostgreSQL, whose answer ends with "ready for query"
    /// either way.
    pub async fn exchange_past_errors(&mut self, request: &[u8]) -> Result<(), String> {
        let failed = |error: std::io::Error| error.to_string();
        self.stream.write_all(request).await.map_err(failed)?;
        loop {
            if let Some((length, refusal)) = dialects::postgres_answer(&self.received) {
                self.received.drain(..length);
                return refusal.map_or(Ok(()), Err);
            }
            if self.stream.read_buf(&mut self.received).await.map_err(failed)? == 0 {
                return Err("the connection was closed".to_owned());
            }
        }
    }
}
