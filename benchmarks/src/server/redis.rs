//! Redis with a log that is synced before each write is answered: a key for each record, whose value
//! is the record as JSON. It has no queries, so it takes part in few measures.
//!
//! An update stores the whole value again, as a client does that has just read it. Redis does not
//! rewrite its log while it is measured, so that this work falls into no contestant's turn.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tempfile::TempDir;

use crate::measuring::any_key;
use crate::programs::{self, Process, free_ports, retry};
use crate::wire::Wire;
use crate::{BATCH, Caller, GROUPS, Request, STORM, Store, TEXT, write_json};

const STORED: &[u8] = b"+OK\r\n";

const PONG: &[u8] = b"+PONG\r\n";

/// Connections that Redis keeps for itself and for those of the run that are not part of the storm.
const SPARE_CONNECTIONS: usize = 1_000;

/// The process, ended when dropped, before its directory is removed.
pub struct Redis {
    _process: Process,
    _directory: TempDir,
    address: SocketAddr,
    records: i64,
    next: Arc<AtomicI64>,
}

impl Redis {
    /// The error says why it cannot be installed or started.
    pub fn start(records: i64) -> Result<Self, String> {
        quorate_provision::debian(&["redis-server"]).map_err(|error| error.to_string())?;
        let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
        let port = free_ports(1)[0];
        let mut command = programs::redis(directory.path(), port);
        command.args(["--maxclients", &(STORM + SPARE_CONNECTIONS).to_string()]);
        command.args(["--auto-aof-rewrite-percentage", "0"]);
        let redis = Self {
            _process: Process::start_quietly(&mut command)?,
            _directory: directory,
            address: (Ipv4Addr::LOCALHOST, port).into(),
            records,
            next: Arc::new(AtomicI64::new(records)),
        };
        retry(|| {
            let mut wire = Wire::open(redis.address).map_err(|error| error.to_string())?;
            let answer = wire.exchange(b"PING\r\n", line).map_err(|error| error.to_string())?;
            let refusal = || String::from_utf8_lossy(answer).into_owned();
            if answer == PONG { Ok(()) } else { Err(refusal()) }
        })?;
        Ok(redis)
    }

    fn connect(&self) -> Connection {
        Connection {
            wire: Wire::open(self.address).unwrap(),
            request: Vec::new(),
            value: Vec::new(),
            records: self.records,
            next: Arc::clone(&self.next),
        }
    }
}

impl Store for Redis {
    fn name(&self) -> &'static str {
        "Redis"
    }

    fn answers(&self, request: Request) -> bool {
        matches!(
            request,
            Request::Hello
                | Request::Read
                | Request::Insert { durable: true }
                | Request::Update { durable: true }
        )
    }

    fn caller(&self) -> Box<dyn Caller> {
        Box::new(self.connect())
    }

    fn load(&self, records: i64) {
        let mut connection = self.connect();
        for first in (0..records).step_by(BATCH as usize) {
            connection.request.clear();
            let last = (first + BATCH).min(records);
            for id in first..last {
                connection.write_set(id, id);
            }
            let answers = STORED.len() * (last - first) as usize;
            let complete =
                |bytes: &[u8]| (bytes[0] == b'-' || bytes.len() >= answers).then_some(bytes.len());
            let answer = connection.wire.exchange(&connection.request, complete).unwrap();
            assert_eq!(answer, STORED.repeat((last - first) as usize));
        }
    }

    fn clear(&self) {
        let mut connection = self.connect();
        connection.request.extend_from_slice(b"FLUSHALL\r\n");
        connection.run(STORED);
    }

    /// Only ours is told.
    fn cpu(&self) -> Duration {
        Duration::ZERO
    }
}

struct Connection {
    wire: Wire,
    request: Vec<u8>,
    value: Vec<u8>,
    records: i64,
    next: Arc<AtomicI64>,
}

impl Connection {
    /// Appends a request to store a record.
    fn write_set(&mut self, id: i64, n: i64) {
        self.value.clear();
        write_json(&mut self.value, n, id % GROUPS);
        write!(self.request, "*3\r\n$3\r\nSET\r\n$12\r\n{id:012}\r\n${}\r\n", self.value.len())
            .unwrap();
        self.request.extend_from_slice(&self.value);
        self.request.extend_from_slice(b"\r\n");
    }

    /// Sends the request, which is answered with this line.
    fn run(&mut self, expected: &[u8]) {
        let answer = self.wire.exchange(&self.request, line).unwrap();
        assert_eq!(answer, expected, "{}", String::from_utf8_lossy(answer));
    }
}

impl Caller for Connection {
    fn ask(&mut self, request: Request, chance: u64) {
        let key = any_key(chance, self.records);
        self.request.clear();
        match request {
            Request::Hello => {
                self.request.extend_from_slice(b"*1\r\n$4\r\nPING\r\n");
                self.run(PONG);
            }
            Request::Read => {
                write!(self.request, "*2\r\n$3\r\nGET\r\n$12\r\n{key:012}\r\n").unwrap();
                let answer = self.wire.exchange(&self.request, bulk).unwrap();
                assert!(answer.len() > TEXT.len(), "{}", String::from_utf8_lossy(answer));
            }
            Request::Insert { durable: true } => {
                let id = self.next.fetch_add(1, Ordering::Relaxed);
                self.write_set(id, id);
                self.run(STORED);
            }
            Request::Update { durable: true } => {
                self.write_set(key, key + 1);
                self.run(STORED);
            }
            _ => unreachable!("Redis does not take part in {request:?}"),
        }
    }
}

/// An answer of one line.
fn line(bytes: &[u8]) -> Option<usize> {
    bytes.ends_with(b"\r\n").then_some(bytes.len())
}

/// An answer of a length in a line of its own and as many bytes, or of a line alone.
fn bulk(bytes: &[u8]) -> Option<usize> {
    let end = bytes.iter().position(|byte| *byte == b'\n')? + 1;
    let length = bytes[..end].strip_prefix(b"$")?.trim_ascii_end();
    let length = str::from_utf8(length).unwrap().parse::<i64>().unwrap();
    let whole = if length < 0 { end } else { end + length as usize + 2 };
    (bytes.len() >= whole).then_some(whole)
}
