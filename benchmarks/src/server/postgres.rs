//! PostgreSQL with its default settings: a table of a key and a jsonb document, one index on a number
//! in it, statements prepared once for each connection.
//!
//! Callers speak the protocol as bytes: a statement's first use sends Parse before it, every use is
//! Bind, Execute and Sync in one piece with parameters in binary. "Not synced" is
//! `synchronous_commit = off`.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tempfile::TempDir;

use crate::measuring::any_key;
use crate::programs::{self, Process, free_ports, retry};
use crate::wire::Wire;
use crate::{BATCH, Caller, GROUPS, RANGE, Request, Store, TOP, write_json};

/// Version 3.0 of the protocol.
const PROTOCOL: i32 = 196_608;

/// The first byte of a jsonb in binary: its version.
const JSONB: u8 = 1;

const CREATE: &str = "CREATE TABLE c (id bigint PRIMARY KEY, doc jsonb NOT NULL); \
                      CREATE INDEX c_n ON c (((doc->>'n')::bigint))";

/// What is asked, with the place of its statement in a connection's list.
#[derive(Clone, Copy)]
enum Statement {
    Insert,
    Read,
    Update,
    Range,
    Aggregate,
    Filter,
    Count,
    Top,
}

const STATEMENTS: usize = 8;

impl Statement {
    /// Limits are constants, so that PostgreSQL plans for them.
    fn sql(self) -> String {
        let sql = match self {
            Self::Insert => "INSERT INTO c VALUES ($1, $2)",
            Self::Read => "SELECT doc FROM c WHERE id = $1",
            Self::Update => {
                "UPDATE c SET doc = jsonb_set(doc, '{n}', to_jsonb((doc->>'n')::bigint + 1)) \
                 WHERE id = $1"
            }
            Self::Range => &format!(
                "SELECT doc FROM c WHERE (doc->>'n')::bigint >= $1 \
                 ORDER BY (doc->>'n')::bigint LIMIT {RANGE}"
            ),
            Self::Aggregate => {
                "SELECT (doc->>'kind')::bigint, count(*), sum((doc->>'n')::bigint) FROM c \
                 GROUP BY 1 ORDER BY 1"
            }
            Self::Filter => "SELECT doc FROM c WHERE doc->>'kind' = $1 AND doc->>'text' = 'none'",
            Self::Count => "SELECT count(*) FROM c WHERE doc->>'kind' = $1",
            Self::Top => {
                &format!("SELECT doc FROM c ORDER BY (doc->>'kind')::bigint DESC LIMIT {TOP}")
            }
        };
        sql.to_owned()
    }
}

/// The process, ended when dropped, before its directory is removed.
pub struct Postgres {
    _process: Process,
    _directory: TempDir,
    address: SocketAddr,
    records: i64,
    next: Arc<AtomicI64>,
}

impl Postgres {
    /// The error says why it cannot be installed or started.
    pub fn start(records: i64) -> Result<Self, String> {
        quorate_provision::debian(&["postgresql"]).map_err(|error| error.to_string())?;
        let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
        let programs = programs::Postgres::in_directory(directory.path())?;
        programs.create("data")?;
        let port = free_ports(1)[0];
        let postgres = Self {
            _process: programs.serve("data", port)?,
            _directory: directory,
            address: (Ipv4Addr::LOCALHOST, port).into(),
            records,
            next: Arc::new(AtomicI64::new(records)),
        };
        retry(|| postgres.try_connect())?.query(CREATE)?;
        Ok(postgres)
    }

    fn try_connect(&self) -> Result<Connection, String> {
        let mut connection = Connection {
            wire: Wire::open(self.address).map_err(|error| error.to_string())?,
            request: Vec::new(),
            document: Vec::new(),
            prepared: [false; STATEMENTS],
            durable: None,
            records: self.records,
            next: Arc::clone(&self.next),
        };
        let mut greeting = PROTOCOL.to_be_bytes().to_vec();
        greeting.extend(b"user\0postgres\0database\0postgres\0\0");
        connection.request.extend((greeting.len() as i32 + 4).to_be_bytes());
        connection.request.extend(greeting);
        connection.exchange()?;
        Ok(connection)
    }

    fn connect(&self) -> Connection {
        self.try_connect().unwrap()
    }
}

impl Store for Postgres {
    fn name(&self) -> &'static str {
        "PostgreSQL"
    }

    fn answers(&self, request: Request) -> bool {
        !matches!(request, Request::Hello)
    }

    fn caller(&self) -> Box<dyn Caller> {
        Box::new(self.connect())
    }

    /// COPY of a batch at a time. Only the last waits for the disk, and with it all before it are there.
    fn load(&self, records: i64) {
        let mut connection = self.connect();
        let mut rows = Vec::new();
        for first in (0..records).step_by(BATCH as usize) {
            let last = (first + BATCH).min(records);
            connection.set_durable(last == records);
            rows.clear();
            for id in first..last {
                rows.extend_from_slice(id.to_string().as_bytes());
                rows.push(b'\t');
                write_json(&mut rows, id, id % GROUPS);
                rows.push(b'\n');
            }
            connection.request.clear();
            connection.message(b'Q', |body| body.extend(b"COPY c FROM STDIN\0"));
            connection.message(b'd', |body| body.extend_from_slice(&rows));
            connection.message(b'c', |_| {});
            connection.exchange().unwrap();
        }
    }

    fn clear(&self) {
        self.connect().query(&format!("DROP TABLE c; {CREATE}")).unwrap();
    }

    /// Does what it would otherwise do later, in the turns of others.
    fn settle(&self) {
        let mut connection = self.connect();
        connection.query("VACUUM ANALYZE c").unwrap();
        connection.query("CHECKPOINT").unwrap();
    }

    /// Only ours is told.
    fn cpu(&self) -> Duration {
        Duration::ZERO
    }
}

struct Connection {
    wire: Wire,
    request: Vec<u8>,
    document: Vec<u8>,
    prepared: [bool; STATEMENTS],
    durable: Option<bool>,
    records: i64,
    next: Arc<AtomicI64>,
}

/// What an answer had until "ready for query".
#[derive(Default)]
struct Answer {
    rows: i64,
    changed_one: bool,
    refusal: Option<String>,
}

impl Connection {
    /// Appends a message of this kind to the request.
    fn message(&mut self, kind: u8, write_body: impl FnOnce(&mut Vec<u8>)) {
        self.request.push(kind);
        let start = self.request.len();
        self.request.extend_from_slice(&[0; 4]);
        write_body(&mut self.request);
        let length = (self.request.len() - start) as i32;
        self.request[start..start + 4].copy_from_slice(&length.to_be_bytes());
    }

    /// Sends the request and reads its answer.
    fn exchange(&mut self) -> Result<Answer, String> {
        let (mut at, mut answer) = (0, Answer::default());
        let complete = |bytes: &[u8]| {
            while let Some([kind, length @ ..]) = bytes.get(at..).and_then(<[u8]>::first_chunk::<5>)
            {
                let end = at + 1 + u32::from_be_bytes(*length) as usize;
                let body = bytes.get(at + 5..end)?;
                match kind {
                    b'D' => answer.rows += 1,
                    b'C' => answer.changed_one = body.ends_with(b" 1\0"),
                    b'E' => answer.refusal = Some(String::from_utf8_lossy(body).into_owned()),
                    _ => {}
                }
                at = end;
                // Ready for query; a refused greeting is answered by an error and nothing more.
                if *kind == b'Z' {
                    return Some(end);
                }
            }
            None
        };
        let outcome = self.wire.exchange(&self.request, complete).map(drop);
        match (outcome, answer.refusal.take()) {
            (_, Some(refusal)) => Err(refusal),
            (Err(error), None) => Err(error.to_string()),
            (Ok(()), None) => Ok(answer),
        }
    }

    /// Runs statements without parameters.
    fn query(&mut self, sql: &str) -> Result<Answer, String> {
        self.request.clear();
        self.message(b'Q', |body| {
            body.extend_from_slice(sql.as_bytes());
            body.push(0);
        });
        self.exchange()
    }

    /// Runs a statement, which is prepared when it is used for the first time.
    fn execute(&mut self, statement: Statement, parameters: &[&[u8]]) -> Answer {
        let name = [b'a' + statement as u8, 0];
        self.request.clear();
        if !std::mem::replace(&mut self.prepared[statement as usize], true) {
            self.message(b'P', |body| {
                body.extend_from_slice(&name);
                body.extend_from_slice(statement.sql().as_bytes());
                // The types of its parameters follow from their places.
                body.extend_from_slice(&[0, 0, 0]);
            });
        }
        self.message(b'B', |body| {
            // The portal without a name.
            body.push(0);
            body.extend_from_slice(&name);
            // One format for all parameters: binary.
            body.extend_from_slice(&[0, 1, 0, 1]);
            body.extend_from_slice(&(parameters.len() as i16).to_be_bytes());
            for parameter in parameters {
                body.extend_from_slice(&(parameter.len() as i32).to_be_bytes());
                body.extend_from_slice(parameter);
            }
            // Results as text.
            body.extend_from_slice(&[0, 0]);
        });
        // All rows of the portal without a name.
        self.message(b'E', |body| body.extend_from_slice(&[0; 5]));
        self.message(b'S', |_| {});
        self.exchange().unwrap()
    }

    fn set_durable(&mut self, durable: bool) {
        if self.durable.replace(durable) != Some(durable) {
            let mode = if durable { "on" } else { "off" };
            self.query(&format!("SET synchronous_commit = {mode}")).unwrap();
        }
    }

    fn insert(&mut self, id: i64) {
        let mut document = std::mem::take(&mut self.document);
        document.clear();
        document.push(JSONB);
        write_json(&mut document, id, id % GROUPS);
        let answer = self.execute(Statement::Insert, &[&id.to_be_bytes(), &document]);
        assert!(answer.changed_one);
        self.document = document;
    }
}

impl Caller for Connection {
    fn ask(&mut self, request: Request, chance: u64) {
        let key = any_key(chance, self.records);
        let id = key.to_be_bytes();
        let kind = || (key % GROUPS).to_string();
        match request {
            Request::Hello => unreachable!("PostgreSQL does not take part in {request:?}"),
            Request::Insert { durable } => {
                self.set_durable(durable);
                let id = self.next.fetch_add(1, Ordering::Relaxed);
                self.insert(id);
            }
            Request::Read => assert_eq!(self.execute(Statement::Read, &[&id]).rows, 1),
            Request::Update { durable } => {
                self.set_durable(durable);
                assert!(self.execute(Statement::Update, &[&id]).changed_one);
            }
            Request::Range => {
                let first = key.min(self.records - RANGE).to_be_bytes();
                assert_eq!(self.execute(Statement::Range, &[&first]).rows, RANGE);
            }
            Request::Aggregate => {
                assert_eq!(self.execute(Statement::Aggregate, &[]).rows, GROUPS);
            }
            Request::Filter => {
                assert_eq!(self.execute(Statement::Filter, &[kind().as_bytes()]).rows, 0);
            }
            Request::Count => {
                assert_eq!(self.execute(Statement::Count, &[kind().as_bytes()]).rows, 1);
            }
            Request::Top => {
                assert_eq!(self.execute(Statement::Top, &[]).rows, TOP);
            }
            Request::BuildIndex => {
                self.query("CREATE INDEX c_kind ON c (((doc->>'kind')::bigint))").unwrap();
            }
            Request::DropIndex => drop(self.query("DROP INDEX c_kind").unwrap()),
        }
    }
}
