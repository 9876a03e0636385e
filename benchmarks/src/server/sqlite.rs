//! SQLite, as an application would use it: write-ahead log, one connection per thread, statements
//! prepared once.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use rusqlite::{Connection, params};

use crate::measuring::any_key;
use crate::{BATCH, Caller, GROUPS, RANGE, Request, Store, TEXT, TOP};

/// How long a writer waits for the others: SQLite has one writer at a time.
const BUSY_WAIT: Duration = Duration::from_secs(60);

const CREATE: &str = "CREATE TABLE c (id INTEGER PRIMARY KEY, n INTEGER, kind INTEGER, text TEXT);
     CREATE INDEX c_n ON c (n);";

pub struct Database {
    path: PathBuf,
    records: i64,
    next: Arc<AtomicI64>,
}

impl Database {
    pub fn open(path: &Path, records: i64) -> Self {
        let database =
            Self { path: path.to_owned(), records, next: Arc::new(AtomicI64::new(records)) };
        database.connect().execute_batch(CREATE).unwrap();
        database
    }

    fn connect(&self) -> Connection {
        let connection = Connection::open(&self.path).unwrap();
        connection.busy_timeout(BUSY_WAIT).unwrap();
        connection.pragma_update(None, "journal_mode", "WAL").unwrap();
        connection
    }

    fn thread(&self) -> Thread {
        Thread {
            connection: self.connect(),
            durable: None,
            records: self.records,
            next: Arc::clone(&self.next),
        }
    }
}

impl Store for Database {
    fn name(&self) -> &'static str {
        "SQLite"
    }

    fn answers(&self, request: Request) -> bool {
        !matches!(request, Request::Hello)
    }

    fn caller(&self) -> Box<dyn Caller> {
        Box::new(self.thread())
    }

    /// Only the last batch is synced, and with it all before it.
    fn load(&self, records: i64) {
        let mut thread = self.thread();
        for first in (0..records).step_by(BATCH as usize) {
            let last = (first + BATCH).min(records);
            thread.set_durable(last == records);
            let transaction = thread.connection.transaction().unwrap();
            for id in first..last {
                insert(&transaction, id);
            }
            transaction.commit().unwrap();
        }
    }

    fn clear(&self) {
        self.connect().execute_batch(&format!("DROP TABLE c; {CREATE}")).unwrap();
    }

    /// It runs in the threads of its callers.
    fn cpu(&self) -> Duration {
        Duration::ZERO
    }
}

struct Thread {
    connection: Connection,
    durable: Option<bool>,
    records: i64,
    next: Arc<AtomicI64>,
}

impl Thread {
    fn set_durable(&mut self, durable: bool) {
        if self.durable.replace(durable) != Some(durable) {
            let mode = if durable { "FULL" } else { "NORMAL" };
            self.connection.pragma_update(None, "synchronous", mode).unwrap();
        }
    }
}

impl Caller for Thread {
    fn ask(&mut self, request: Request, chance: u64) {
        let key = any_key(chance, self.records);
        match request {
            Request::Hello => unreachable!("SQLite has no connections to open"),
            Request::Insert { durable } => {
                self.set_durable(durable);
                insert(&self.connection, self.next.fetch_add(1, Ordering::Relaxed));
            }
            Request::Read => {
                let mut read =
                    self.connection.prepare_cached("SELECT * FROM c WHERE id = ?1").unwrap();
                let text: String = read.query_row([key], |row| row.get(3)).unwrap();
                assert_eq!(text.len(), TEXT.len());
            }
            Request::Update { durable } => {
                self.set_durable(durable);
                let statement = "UPDATE c SET n = n + 1 WHERE id = ?1";
                let mut update = self.connection.prepare_cached(statement).unwrap();
                assert_eq!(update.execute([key]).unwrap(), 1);
            }
            Request::Range => {
                let first = any_key(chance, self.records - RANGE);
                let statement = "SELECT * FROM c WHERE n >= ?1 ORDER BY n LIMIT ?2";
                let mut scan = self.connection.prepare_cached(statement).unwrap();
                let mut rows = scan.query([first, RANGE]).unwrap();
                let mut bytes = 0;
                while let Some(row) = rows.next().unwrap() {
                    bytes += row.get_ref(3).unwrap().as_bytes().unwrap().len();
                }
                assert!(bytes > 0);
            }
            Request::Aggregate => {
                let statement = "SELECT kind, count(*), sum(n) FROM c GROUP BY kind ORDER BY kind";
                let mut group = self.connection.prepare_cached(statement).unwrap();
                let groups = group.query_map([], |row| row.get::<_, i64>(1)).unwrap().count();
                assert_eq!(groups as i64, GROUPS);
            }
            Request::Filter => {
                let statement = "SELECT * FROM c WHERE kind = ?1 AND text = 'none'";
                let mut filter = self.connection.prepare_cached(statement).unwrap();
                assert!(filter.query([key % GROUPS]).unwrap().next().unwrap().is_none());
            }
            Request::Count => {
                let statement = "SELECT count(*) FROM c WHERE kind = ?1";
                let mut count = self.connection.prepare_cached(statement).unwrap();
                let found: i64 = count.query_row([key % GROUPS], |row| row.get(0)).unwrap();
                assert!(found > 0);
            }
            Request::Top => {
                let statement = "SELECT * FROM c ORDER BY kind DESC LIMIT ?1";
                let mut top = self.connection.prepare_cached(statement).unwrap();
                let found = top.query_map([TOP], |row| row.get::<_, i64>(0)).unwrap().count();
                assert_eq!(found as i64, TOP);
            }
            Request::BuildIndex => {
                self.set_durable(true);
                self.connection.execute_batch("CREATE INDEX c_kind ON c (kind)").unwrap();
            }
            Request::DropIndex => self.connection.execute_batch("DROP INDEX c_kind").unwrap(),
        }
    }
}

fn insert(connection: &Connection, id: i64) {
    let statement = "INSERT INTO c (id, n, kind, text) VALUES (?1, ?1, ?2, ?3)";
    let mut insert = connection.prepare_cached(statement).unwrap();
    insert.execute(params![id, id % GROUPS, TEXT]).unwrap();
}
