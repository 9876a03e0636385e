//! How a contestant is measured: callers in threads of their own that exist only while its turn lasts.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::{Caller, Request, Store};

/// Threads that open connections at the same time.
const OPENERS: usize = 100;

/// What one turn found.
pub struct Turn {
    /// Requests a second, or what the measure counts instead.
    pub figure: f64,
    pub requests: u64,
    /// Processor time of the contestant for all of them, as far as it can be told.
    pub cpu: Duration,
}

impl Turn {
    /// Processor time for each: what stays comparable when others use the machine too.
    pub fn cpu_each(&self) -> Duration {
        self.cpu.div_f64(self.requests.max(1) as f64)
    }
}

/// What the callers of a turn ask for.
#[derive(Clone, Copy)]
pub enum Job {
    One(Request),
    /// So many reads in a hundred requests; the others are durable updates.
    Mix {
        reads: u64,
    },
}

impl Job {
    fn request(self, chance: u64) -> Request {
        match self {
            Self::One(request) => request,
            // Other bits than those that the key is made of.
            Self::Mix { reads } if (chance >> 32) % 100 < reads => Request::Read,
            Self::Mix { .. } => Request::Update { durable: true },
        }
    }

    /// Asks for each kind of request once, so that statements are prepared and caches filled.
    fn warm_up(self, caller: &mut dyn Caller, chance: u64) {
        match self {
            Self::One(request) => caller.ask(request, chance),
            Self::Mix { .. } => {
                caller.ask(Request::Read, chance);
                caller.ask(Request::Update { durable: true }, chance);
            }
        }
    }

    /// Whether a contestant can do it.
    pub fn suits(self, store: &dyn Store) -> bool {
        match self {
            Self::One(request) => store.answers(request),
            Self::Mix { .. } => {
                store.answers(Request::Read) && store.answers(Request::Update { durable: true })
            }
        }
    }
}

/// Turns that were taken, so that each asks for other records.
static TURNS: AtomicU64 = AtomicU64::new(0);

/// Requests a second by this many callers. The clock starts and stops when some request is answered, so
/// that a single caller's requests are counted whole.
pub fn turn(store: &dyn Store, callers: usize, job: Job, window: Duration) -> Turn {
    let seed = TURNS.fetch_add(1, Ordering::Relaxed) + 1;
    let (done, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let mut open: Vec<_> = (0..callers).map(|_| store.caller()).collect();
    // One after another, since some would wait long for their first answer while the others work.
    open.iter_mut().for_each(|caller| job.warm_up(&mut **caller, seed));
    std::thread::scope(|scope| {
        let start = |(number, caller): (usize, _)| {
            let (chance, done, over) = (seed << 16 | (number as u64 + 1), &done, &over);
            scope.spawn(move || work(caller, job, chance, done, over))
        };
        let threads: Vec<_> = open.into_iter().enumerate().map(start).collect();
        // A thread that has ended has failed: joining it says so.
        let next_answer = || {
            let before = done.load(Ordering::Relaxed);
            while done.load(Ordering::Relaxed) == before
                && !threads.iter().any(|thread| thread.is_finished())
            {
                std::thread::sleep(window / 5000);
            }
            (Instant::now(), done.load(Ordering::Relaxed), store.cpu())
        };
        std::thread::sleep(window / 10);
        let (start, done_before, cpu_before) = next_answer();
        std::thread::sleep(window);
        let (end, done_after, cpu_after) = next_answer();
        over.store(true, Ordering::Relaxed);
        // Their connections close after all have ended.
        let _open: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        let requests = done_after - done_before;
        let figure = requests as f64 / (end - start).as_secs_f64();
        Turn { figure, requests, cpu: cpu_after - cpu_before }
    })
}

/// Asks until the turn is over.
fn work(
    mut caller: Box<dyn Caller>,
    job: Job,
    mut chance: u64,
    done: &AtomicU64,
    over: &AtomicBool,
) -> Box<dyn Caller> {
    while !over.load(Ordering::Relaxed) {
        chance = next_chance(chance);
        caller.ask(job.request(chance), chance);
        done.fetch_add(1, Ordering::Relaxed);
    }
    caller
}

/// Seconds that one request takes.
pub fn time(store: &dyn Store, request: Request) -> Turn {
    let mut caller = store.caller();
    let (before, start) = (store.cpu(), Instant::now());
    caller.ask(request, 1);
    Turn { figure: start.elapsed().as_secs_f64(), requests: 1, cpu: store.cpu() - before }
}

/// Opens many connections at once, as clients do that come back after a failover, and has each
/// answered once. They stay open until the second result is dropped.
pub fn storm(store: &dyn Store, connections: usize) -> (Turn, Vec<Box<dyn Caller>>) {
    let (before, start) = (store.cpu(), Instant::now());
    let openers = OPENERS.min(connections);
    let some = || {
        let greeted = |_| {
            let mut caller = store.caller();
            caller.ask(Request::Hello, 1);
            caller
        };
        (0..connections.div_ceil(openers)).map(greeted).collect::<Vec<_>>()
    };
    let open: Vec<_> = std::thread::scope(|scope| {
        let openers: Vec<_> = (0..openers).map(|_| scope.spawn(some)).collect();
        openers.into_iter().flat_map(|opener| opener.join().unwrap()).collect()
    });
    let figure = open.len() as f64 / start.elapsed().as_secs_f64();
    (Turn { figure, requests: open.len() as u64, cpu: store.cpu() - before }, open)
}

/// Xorshift: good enough to spread keys.
pub fn next_chance(mut state: u64) -> u64 {
    state ^= state << 13;
    state ^= state >> 7;
    state ^ (state << 17)
}

/// The key of an existing record, if there are records.
pub fn any_key(chance: u64, records: i64) -> i64 {
    (chance % records.unsigned_abs().max(1)) as i64
}
