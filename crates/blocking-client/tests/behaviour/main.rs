//! The blocking client against scripted members on real sockets.
//!
//! Time is a clock of the tests' own, so nothing waits for a heartbeat or a cooldown.

// The members are test code too, but the lint does not know that of functions outside a test.
// They have threads and sockets, so that the client needs none of the former.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::disallowed_types)]

mod closing;
mod cursors;
mod discovery;
mod failover;
mod fake;
mod misbehaviour;
mod operations;
mod selection;
mod transactions;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quorate_blocking_client::{Client, ClientOptions, Clock};
use quorate_connection_string::ConnectionString;
use quorate_protocol::MonotonicTime;

/// A clock that only moves when told to, or when the client sleeps on it.
#[derive(Clone, Debug, Default)]
struct TestClock {
    nanos: Arc<AtomicU64>,
    slept: Arc<AtomicU64>,
}

impl TestClock {
    fn advance(&self, interval: Duration) {
        self.nanos.fetch_add(interval.as_nanos() as u64, Ordering::SeqCst);
    }

    /// How long the client has slept since the last call.
    fn take_slept(&self) -> Duration {
        Duration::from_nanos(self.slept.swap(0, Ordering::SeqCst))
    }
}

impl Clock for TestClock {
    fn now(&self) -> MonotonicTime {
        MonotonicTime::from_nanos(self.nanos.load(Ordering::SeqCst))
    }

    fn sleep(&self, interval: Duration) {
        self.slept.fetch_add(interval.as_nanos() as u64, Ordering::SeqCst);
        self.advance(interval);
    }
}

/// A client, its clock, and what it told.
struct Bench {
    client: Client,
    clock: TestClock,
    events: Rc<RefCell<Vec<String>>>,
}

impl Bench {
    fn new(uri: &str) -> Self {
        Self::with(uri, |_| ())
    }

    fn with(uri: &str, change: impl FnOnce(&mut ClientOptions)) -> Self {
        let string: ConnectionString = uri.parse().unwrap();
        let mut options = ClientOptions::from_connection_string(&string).unwrap();
        options.seed = 7;
        change(&mut options);
        let clock = TestClock::default();
        let events = Rc::new(RefCell::new(Vec::new()));
        let told = Rc::clone(&events);
        let listener =
            Box::new(move |event: &_| told.borrow_mut().push(ToString::to_string(event)));
        let client = Client::with(options, Box::new(clock.clone()), listener).unwrap();
        Self { client, clock, events }
    }

    fn take_events(&self) -> Vec<String> {
        self.events.take()
    }

    /// How many checks were begun since the events were last taken.
    fn checks_begun(&self) -> usize {
        let begun = |event: &String| event.starts_with("heartbeat started");
        self.take_events().iter().filter(|event| begun(event)).count()
    }
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}
