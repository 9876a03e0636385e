//! Transactions of two updates each, ours and PostgreSQL's in turns, with documents of their own and with documents
//! that all clients want; what two updates cost without a transaction; what open transactions cost plain writers; and
//! how soon a plain write goes on that waited for a transaction.
//!
//! Both contestants give snapshot isolation, take three round trips for a transaction, and acknowledge a commit that a
//! second process has on its disk. After a conflict a client waits as drivers do: a random share of a time that grows.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bson::raw::cstr;
use bson::spec::BinarySubtype;
use bson::{Binary, RawDocumentBuf, doc, rawdoc};

use crate::dialects::Dialect;
use crate::load::Connection;
use crate::members::{Set, Talk, wait};
use crate::table::{Figures, line};
use crate::{Effort, peers};

/// How many documents all clients share in the runs with contention.
const SHARED: u64 = 16;

/// The first pause after a conflict, and the longest.
const PAUSE: f64 = 0.005;
const LONGEST_PAUSE: f64 = 0.5;

/// How many transactions stay open while plain clients write, and how many such clients.
const OPEN: usize = 64;
const WRITERS: usize = 16;

/// How often the wake-up is measured in a round.
const WAKE_UPS: usize = 200;

static NEXT_SESSION: AtomicU64 = AtomicU64::new(1);

/// How a run went.
struct Outcome {
    latencies: Vec<Duration>,
    conflicts: usize,
    elapsed: f64,
}

impl Outcome {
    fn per_second(&self) -> f64 {
        self.latencies.len() as f64 / self.elapsed
    }

    fn at(&self, share: f64) -> f64 {
        let mut sorted = self.latencies.clone();
        sorted.sort_unstable();
        let place = (sorted.len() as f64 * share) as usize;
        sorted.get(place).map_or(f64::NAN, |latency| latency.as_secs_f64() * 1e6)
    }
}

/// Chance without a library: the pauses need not be good.
struct Dice(u64);

impl Dice {
    fn new(seed: u64) -> Self {
        Self((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn share(&mut self) -> f64 {
        (self.next() % 1000) as f64 / 1000.0
    }

    /// Two different documents, the lower one first, so that PostgreSQL meets no deadlock.
    fn pair(&mut self, client: usize, contended: bool) -> (i64, i64) {
        if !contended {
            let own = SHARED as i64 + client as i64 * 2;
            return (own, own + 1);
        }
        let first = self.next() % SHARED;
        let second = (first + 1 + self.next() % (SHARED - 1)) % SHARED;
        (first.min(second) as i64, first.max(second) as i64)
    }
}

/// A client that can run transactions.
enum Actor {
    Ours { talk: Talk, session: Binary, number: i64 },
    Postgres(Connection),
}

fn session() -> Binary {
    let number = NEXT_SESSION.fetch_add(1, Ordering::Relaxed);
    let bytes = [number.to_be_bytes(), [7; 8]].concat();
    Binary { subtype: BinarySubtype::Uuid, bytes }
}

fn query(sql: &str) -> Vec<u8> {
    let mut message = vec![b'Q'];
    message.extend((sql.len() as u32 + 5).to_be_bytes());
    message.extend(sql.as_bytes());
    message.push(0);
    message
}

fn update(id: i64) -> RawDocumentBuf {
    rawdoc! {
        "update": "accounts", "$db": "bench",
        "updates": [{ "q": { "_id": id }, "u": { "$inc": { "n": 1 } } }],
    }
}

impl Actor {
    async fn open(dialect: Dialect, to: SocketAddr) -> Self {
        match dialect {
            Dialect::Postgres => Self::Postgres(Connection::open(dialect, to).await.unwrap()),
            _ => Self::Ours { talk: Talk::open(to).await.unwrap(), session: session(), number: 0 },
        }
    }

    /// One attempt. False is a conflict.
    async fn transact(&mut self, (first, second): (i64, i64)) -> bool {
        match self {
            Self::Ours { talk, session, number } => {
                *number += 1;
                for (place, id) in [first, second].into_iter().enumerate() {
                    let mut command = update(id);
                    within(&mut command, session, *number);
                    if place == 0 {
                        command.append(cstr!("startTransaction"), true);
                        command.append(cstr!("readConcern"), rawdoc! { "level": "snapshot" });
                    }
                    if let Err(error) = talk.exchange(&command).await {
                        assert!(error.contains("TransientTransactionError"), "{error}");
                        return false;
                    }
                }
                let mut command = rawdoc! { "commitTransaction": 1, "$db": "admin" };
                within(&mut command, session, *number);
                command.append(cstr!("writeConcern"), rawdoc! { "w": "majority" });
                talk.exchange(&command).await.unwrap();
                true
            }
            Self::Postgres(connection) => {
                let update = |id: i64| format!("UPDATE accounts SET n = n + 1 WHERE id = {id}");
                let begin = format!("BEGIN ISOLATION LEVEL REPEATABLE READ; {}", update(first));
                for sql in [&begin, &update(second), "COMMIT"] {
                    if let Err(error) = connection.exchange_past_errors(&query(sql)).await {
                        assert!(error.contains("could not serialize"), "{error}");
                        connection.exchange(&query("ROLLBACK")).await.unwrap();
                        return false;
                    }
                }
                true
            }
        }
    }
}

/// Gives a command its session and its number.
fn number_in(command: &mut RawDocumentBuf, session: &Binary, number: i64) {
    command.append(cstr!("lsid"), rawdoc! { "id": session.clone() });
    command.append(cstr!("txnNumber"), number);
}

/// Makes a command part of a transaction.
fn within(command: &mut RawDocumentBuf, session: &Binary, number: i64) {
    number_in(command, session, number);
    command.append(cstr!("autocommit"), false);
}

async fn transact(
    dialect: Dialect,
    to: SocketAddr,
    clients: usize,
    contended: bool,
    time: Duration,
) -> Outcome {
    let mut actors = Vec::new();
    for _ in 0..clients {
        actors.push(Actor::open(dialect, to).await);
    }
    let start = Instant::now();
    let end = start + time;
    let tasks = actors.into_iter().enumerate().map(|(client, mut actor)| {
        tokio::spawn(async move {
            let mut dice = Dice::new(client as u64);
            let (mut latencies, mut conflicts, mut attempt) = (Vec::new(), 0, 0);
            let mut began = Instant::now();
            while began < end {
                if actor.transact(dice.pair(client, contended)).await {
                    latencies.push(began.elapsed());
                    attempt = 0;
                    began = Instant::now();
                    continue;
                }
                conflicts += 1;
                let longest = (PAUSE * 1.5_f64.powi(attempt)).min(LONGEST_PAUSE);
                tokio::time::sleep(Duration::from_secs_f64(dice.share() * longest)).await;
                attempt += 1;
                if Instant::now() > end {
                    break;
                }
            }
            (latencies, conflicts)
        })
    });
    let tasks: Vec<_> = tasks.collect();
    let mut outcome = Outcome { latencies: Vec::new(), conflicts: 0, elapsed: 0.0 };
    for task in tasks {
        let (latencies, conflicts) = task.await.unwrap();
        outcome.latencies.extend(latencies);
        outcome.conflicts += conflicts;
    }
    outcome.elapsed = start.elapsed().as_secs_f64();
    outcome
}

/// Updates on a majority outside transactions: `updates` of them count as one. Drivers give each a session and a number.
async fn plain(
    to: SocketAddr,
    clients: usize,
    updates: i64,
    in_session: bool,
    time: Duration,
) -> Outcome {
    let start = Instant::now();
    let end = start + time;
    let tasks = (0..clients).map(|client| {
        tokio::spawn(async move {
            let mut talk = Talk::open(to).await.unwrap();
            let own = SHARED as i64 + client as i64 * 2;
            let (session, mut number) = (session(), 0_i64);
            let mut latencies = Vec::new();
            while Instant::now() < end {
                let began = Instant::now();
                for id in own..own + updates {
                    let mut command = update(id);
                    if in_session {
                        number += 1;
                        number_in(&mut command, &session, number);
                    }
                    command.append(cstr!("writeConcern"), rawdoc! { "w": "majority" });
                    talk.exchange(&command).await.unwrap();
                }
                latencies.push(began.elapsed());
            }
            latencies
        })
    });
    let tasks: Vec<_> = tasks.collect();
    let mut latencies = Vec::new();
    for task in tasks {
        latencies.extend(task.await.unwrap());
    }
    Outcome { latencies, conflicts: 0, elapsed: start.elapsed().as_secs_f64() }
}

pub async fn run(effort: Effort) {
    let set = Set::ready().await;
    let primary = set.primary().await;
    let ours = set.address(primary);
    let documents = SHARED as i64 + 2 * 64 + 2 * OPEN as i64;
    let mut talk = Talk::open(ours).await.unwrap();
    let all: Vec<bson::Bson> = (0..documents).map(|id| doc! { "_id": id, "n": 0 }.into()).collect();
    let insert = doc! {
        "insert": "accounts", "$db": "bench", "documents": all, "writeConcern": { "w": 3 },
    };
    talk.run(insert).await.unwrap();
    let postgres = if effort.peers { peers::start_only("postgresql").await } else { None };
    let mut contestants = vec![("ours", Dialect::Quorate, ours)];
    if let Some(peer) = &postgres {
        let mut connection = Connection::open(peer.dialect, peer.address).await.unwrap();
        let sql = format!(
            "CREATE TABLE accounts (id int PRIMARY KEY, n int) WITH (fillfactor = 50); \
             INSERT INTO accounts SELECT id, 0 FROM generate_series(0, {documents}) AS id"
        );
        connection.exchange(&query(&sql)).await.unwrap();
        contestants.push((peer.name, peer.dialect, peer.address));
    }
    for clients in [1, 64].into_iter().filter(|clients| effort.clients.contains(clients)) {
        for contended in [false, true] {
            if clients > 1 || !contended {
                compare(effort, &set, primary, &contestants, clients, contended).await;
            }
        }
    }
    two_updates(effort, &set, primary).await;
    open_transactions(effort, ours).await;
    wake_up(effort, &set, primary).await;
}

async fn compare(
    effort: Effort,
    set: &Set,
    primary: usize,
    contestants: &[(&'static str, Dialect, SocketAddr)],
    clients: usize,
    contended: bool,
) {
    let none = || vec![Figures::default(); contestants.len()];
    let (mut rates, mut p50, mut p99, mut conflicts) = (none(), none(), none(), none());
    let mut processor = Figures::default();
    for _ in 0..effort.rounds {
        for (place, (_, dialect, address)) in contestants.iter().enumerate() {
            let before = set.process(primary).processor_time();
            let outcome = transact(*dialect, *address, clients, contended, effort.load).await;
            if *dialect == Dialect::Quorate {
                let used = set.process(primary).processor_time() - before;
                processor.push(used.as_secs_f64() * 1e6 / outcome.latencies.len() as f64);
            }
            rates[place].push(outcome.per_second());
            p50[place].push(outcome.at(0.5));
            p99[place].push(outcome.at(0.99));
            conflicts[place].push(outcome.conflicts as f64 / outcome.elapsed);
        }
    }
    let kind = if contended { format!(" on {SHARED} documents") } else { String::new() };
    let told: [(&str, &Vec<Figures>); 4] = [
        ("transactions/s", &rates),
        ("transaction p50, µs", &p50),
        ("transaction p99, µs", &p99),
        ("conflicts/s", &conflicts),
    ];
    for (what, figures) in &told[..if contended { 4 } else { 3 }] {
        let measure = format!("{what}, {clients} clients{kind}");
        for (place, (name, _, _)) in contestants.iter().enumerate() {
            line(&measure, name, &figures[place], (place > 0).then(|| &figures[0]));
        }
    }
    let measure = format!("CPU µs a transaction, primary, {clients} clients{kind}");
    line(&measure, "ours", &processor, None);
}

/// How two updates are sent.
#[derive(Clone, Copy)]
enum Way {
    Transaction,
    Plain,
    /// As drivers send them.
    InSession,
}

impl Way {
    const ALL: [Self; 3] = [Self::Transaction, Self::Plain, Self::InSession];

    fn name(self) -> &'static str {
        match self {
            Self::Transaction => "in a transaction",
            Self::Plain => "alone",
            Self::InSession => "alone, in a session with a number",
        }
    }
}

/// The same two updates with and without a transaction, by one client and by 64: the time, and the processor of the
/// primary and of all members.
async fn two_updates(effort: Effort, set: &Set, primary: usize) {
    let to = set.address(primary);
    for clients in [1, 64].into_iter().filter(|clients| effort.clients.contains(clients)) {
        let mut figures: [[Figures; 3]; 3] = Default::default();
        for _ in 0..effort.rounds {
            for (figures, way) in figures.iter_mut().zip(Way::ALL) {
                let used = || [0, 1, 2].map(|member| set.process(member).processor_time());
                let before = used();
                let outcome = match way {
                    Way::Transaction => {
                        transact(Dialect::Quorate, to, clients, false, effort.load).await
                    }
                    Way::Plain => plain(to, clients, 2, false, effort.load).await,
                    Way::InSession => plain(to, clients, 2, true, effort.load).await,
                };
                let after = used();
                let each = |member: usize| {
                    let used = after[member] - before[member];
                    used.as_secs_f64() * 1e6 / outcome.latencies.len() as f64
                };
                figures[0].push(outcome.at(0.5));
                figures[1].push(each(primary));
                figures[2].push((0..3).map(each).sum());
            }
        }
        for (place, what) in
            ["p50, µs", "CPU µs, primary", "CPU µs, all members"].iter().enumerate()
        {
            let measure = format!("two updates, {what}, {clients} clients");
            for (way, each) in Way::ALL.into_iter().zip(&figures) {
                let inside = (!matches!(way, Way::Transaction)).then(|| &figures[0][place]);
                line(&measure, way.name(), &each[place], inside);
            }
        }
    }
}

/// Plain writers beside no and beside many open transactions that hold other documents.
async fn open_transactions(effort: Effort, to: SocketAddr) {
    let (mut beside, mut alone) = (Figures::default(), Figures::default());
    for _ in 0..effort.rounds {
        alone.push(plain(to, WRITERS, 1, false, effort.load).await.per_second());
        let mut open = Vec::new();
        for place in 0..OPEN as i64 {
            let (mut talk, session) = (Talk::open(to).await.unwrap(), session());
            let mut command = update(SHARED as i64 + 2 * 64 + place);
            within(&mut command, &session, 1);
            command.append(cstr!("startTransaction"), true);
            talk.exchange(&command).await.unwrap();
            open.push((talk, session));
        }
        beside.push(plain(to, WRITERS, 1, false, effort.load).await.per_second());
        for (mut talk, session) in open {
            let mut command = rawdoc! { "abortTransaction": 1, "$db": "admin" };
            within(&mut command, &session, 1);
            talk.exchange(&command).await.unwrap();
        }
    }
    let measure = format!("plain majority updates/s, {WRITERS} clients");
    line(&measure, &format!("beside {OPEN} open transactions"), &beside, None);
    line(&measure, "beside none", &alone, Some(&beside));
}

/// From the end of a transaction to the reply of the plain write that waited for it, and what the same write takes
/// when it waits for nothing; then what waiting costs.
async fn wake_up(effort: Effort, set: &Set, primary: usize) {
    let to = set.address(primary);
    let (mut waited, mut alone) = (Figures::default(), Figures::default());
    let mut watcher = Talk::open(to).await.unwrap();
    let mut writer = Talk::open(to).await.unwrap();
    let mut plain = update(0);
    plain.append(cstr!("writeConcern"), rawdoc! { "w": 1 });
    for _ in 0..effort.rounds {
        let (mut behind, mut free) = (Vec::new(), Vec::new());
        for _ in 0..WAKE_UPS {
            let began = Instant::now();
            writer.exchange(&plain).await.unwrap();
            free.push(began.elapsed());
            let (mut holder, session) = hold(to).await;
            let mut command = plain.clone();
            let sent = tokio::spawn(async move {
                command.append(cstr!("maxTimeMS"), 60_000);
                let mut talk = Talk::open(to).await.unwrap();
                talk.exchange(&command).await.unwrap();
                Instant::now()
            });
            waits(&mut watcher, 1).await;
            let mut abort = rawdoc! { "abortTransaction": 1, "$db": "admin" };
            within(&mut abort, &session, 1);
            let ended = Instant::now();
            holder.exchange(&abort).await.unwrap();
            behind.push(sent.await.unwrap() - ended);
        }
        let median =
            |latencies: Vec<Duration>| Outcome { latencies, conflicts: 0, elapsed: 1.0 }.at(0.5);
        waited.push(median(behind));
        alone.push(median(free));
    }
    let measure = "plain write with w: 1, p50, µs";
    line(measure, "from the abort that it waited for", &waited, None);
    line(measure, "that waits for nothing", &alone, Some(&waited));
    // What waiting costs: as many writers as may wait, for a while in which nothing else happens.
    let mut idle = Figures::default();
    for _ in 0..effort.rounds {
        let (mut holder, session) = hold(to).await;
        let waiting: Vec<_> = (0..64)
            .map(|_| {
                let command = plain.clone();
                tokio::spawn(async move { Talk::open(to).await.unwrap().exchange(&command).await })
            })
            .collect();
        waits(&mut watcher, 64).await;
        let before = set.process(primary).processor_time();
        tokio::time::sleep(effort.load).await;
        let used = set.process(primary).processor_time() - before;
        idle.push(used.as_secs_f64() / effort.load.as_secs_f64() * 100.0);
        let mut abort = rawdoc! { "abortTransaction": 1, "$db": "admin" };
        within(&mut abort, &session, 1);
        holder.exchange(&abort).await.unwrap();
        for task in waiting {
            task.await.unwrap().unwrap();
        }
    }
    line("CPU % of the primary while 64 plain writes wait", "ours", &idle, None);
}

/// A transaction that holds the first document.
async fn hold(to: SocketAddr) -> (Talk, Binary) {
    let (mut talk, session) = (Talk::open(to).await.unwrap(), session());
    let mut command = update(0);
    within(&mut command, &session, 1);
    command.append(cstr!("startTransaction"), true);
    talk.exchange(&command).await.unwrap();
    (talk, session)
}

async fn waits(talk: &mut Talk, writes: i64) {
    wait("writes that wait for a transaction", async || {
        let status = talk.run(doc! { "serverStatus": 1 }).await.ok()?;
        let transactions = status.get_document("transactions").ok()?;
        let waiting = transactions.get("waitingWrites")?;
        let waiting = waiting.as_i64().or(waiting.as_i32().map(i64::from))?;
        (waiting >= writes).then_some(())
    })
    .await;
}
