//! What commands cost inside the server: a member in this process, without sockets or a runtime.
//!
//! Tells the processor time of the thread that runs them, the least of some rounds, so that the
//! figures stay the same while others use the machine.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bson::{Document, RawDocumentBuf, doc};
use quorate_node::{Client, Command, Context, Interrupt, Node, NodeOptions, Now, Outcome};
use quorate_protocol::{MonotonicTime, WallTime};
use quorate_storage::{DiskOptions, DiskStore};
use rustix::time::{ClockId, clock_gettime};

use crate::measuring::{any_key, next_chance};
use crate::ours::{command_of, record};
use crate::{BATCH, Request};

/// How often each measure is taken.
const ROUNDS: usize = 7;

/// How much processor time a round takes at least.
const ROUND: Duration = Duration::from_millis(100);

pub struct Inside {
    node: Node,
    next: i64,
    records: i64,
}

impl Inside {
    pub fn open(directory: &Path, records: i64) -> Self {
        let store = Arc::new(DiskStore::open(directory, DiskOptions::default()).unwrap());
        let node = Node::open(store, NodeOptions::default(), now()).unwrap();
        let inside = Self { node, next: records, records };
        let indexes = vec![doc! {"key": {"n": 1}, "name": "n_1"}];
        inside.run(&raw(&doc! {"createIndexes": "c", "indexes": indexes, "$db": "bench"}));
        inside
    }

    /// Loads the records; the processor time for each.
    pub fn load(&self) -> Duration {
        let mut taken = Duration::ZERO;
        for first in (0..self.records).step_by(BATCH as usize) {
            let last = (first + BATCH).min(self.records);
            let documents = (first..last).map(|id| raw(&record(id))).collect();
            let command = raw(&doc! {"insert": "c", "$db": "bench"});
            let started = thread_time();
            self.run_with(&command, vec![("documents".to_owned(), documents)]);
            taken += thread_time() - started;
        }
        taken / self.records as u32
    }

    /// The processor time of one request.
    pub fn cost(&mut self, request: Request) -> Duration {
        let mut chance = 1;
        let mut least = Duration::MAX;
        for _ in 0..ROUNDS {
            let (mut taken, mut requests) = (Duration::ZERO, 0);
            while taken < ROUND {
                chance = next_chance(chance);
                let key = any_key(chance, self.records);
                let command = raw(&command_of(request, key, self.records, || {
                    self.next += 1;
                    self.next
                }));
                let started = thread_time();
                self.run(&command);
                taken += thread_time() - started;
                requests += 1;
            }
            least = least.min(taken / requests);
        }
        least
    }

    fn run(&self, command: &RawDocumentBuf) {
        self.run_with(command, Vec::new());
    }

    fn run_with(&self, command: &RawDocumentBuf, sequences: Vec<(String, Vec<RawDocumentBuf>)>) {
        let context = Context {
            now: now(),
            client: Arc::new(Client::default()),
            may_wait: false,
            may_look_at: None,
            interrupt: Arc::new(Interrupt::default()),
        };
        let command = Command::from_raw(command, sequences).unwrap();
        let _operation = self.node.register(&context, &command);
        let Outcome::Reply(reply) = self.node.run(&context, command) else { panic!("it waits") };
        assert_eq!(reply.body.get_f64("ok").unwrap(), 1.0, "{:?}", reply.body);
    }
}

fn raw(command: &Document) -> RawDocumentBuf {
    RawDocumentBuf::try_from(command).unwrap()
}

fn now() -> Now {
    Now { wall: WallTime(1_700_000_000_000), monotonic: MonotonicTime::ZERO }
}

fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
