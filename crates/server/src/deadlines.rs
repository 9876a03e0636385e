//! Time limits of running commands: one thread watches them all.
//!
//! A command keeps its worker while it runs, so a timer of the runtime could wait behind the very
//! command that it is to stop. There are as many limits as commands, and no more commands than
//! connections.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Condvar, PoisonError};
use std::time::Instant;

use quorate_node::{Interrupt, Interruption};
use quorate_protocol::Lock;

#[derive(Default)]
struct Queue {
    /// By time, and by number where times are equal.
    due: BTreeMap<(Instant, u64), Arc<Interrupt>>,
    next: u64,
    ended: bool,
}

#[derive(Default)]
struct Inner {
    queue: Lock<Queue>,
    changed: Condvar,
}

/// The limits under way. The thread ends when this is dropped.
pub(crate) struct Deadlines(Arc<Inner>);

/// A limit, until it is dropped.
pub(crate) struct Deadline {
    inner: Arc<Inner>,
    key: (Instant, u64),
}

impl Deadlines {
    pub(crate) fn start() -> io::Result<Self> {
        let inner = Arc::new(Inner::default());
        let watched = Arc::clone(&inner);
        std::thread::Builder::new()
            .name("quorate-limits".to_owned())
            .spawn(move || watch(&watched))?;
        Ok(Self(inner))
    }

    /// Stops a command at this time.
    pub(crate) fn add(&self, at: Instant, interrupt: Arc<Interrupt>) -> Deadline {
        let mut queue = self.0.queue.lock();
        queue.next += 1;
        let key = (at, queue.next);
        queue.due.insert(key, interrupt);
        let is_first = queue.due.first_key_value().is_some_and(|(first, _)| *first == key);
        drop(queue);
        if is_first {
            self.0.changed.notify_one();
        }
        Deadline { inner: Arc::clone(&self.0), key }
    }
}

impl Drop for Deadlines {
    fn drop(&mut self) {
        self.0.queue.lock().ended = true;
        self.0.changed.notify_one();
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        self.inner.queue.lock().due.remove(&self.key);
    }
}

fn watch(inner: &Inner) {
    let mut queue = inner.queue.lock();
    while !queue.ended {
        let now = Instant::now();
        let Some(first) = queue.due.first_entry() else {
            queue = inner.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        let at = first.key().0;
        if at <= now {
            first.remove().set(Interruption::MaxTime);
            continue;
        }
        let waited = inner.changed.wait_timeout(queue, at - now);
        queue = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn limits_hold_in_their_order_and_only_for_commands_under_way() {
        let deadlines = Deadlines::start().unwrap();
        let (late, soon, done) =
            (Arc::new(Interrupt::default()), Arc::new(Interrupt::default()), Arc::default());
        let now = Instant::now();
        let _late = deadlines.add(now + Duration::from_secs(3600), Arc::clone(&late));
        drop(deadlines.add(now, Arc::clone(&done)));
        let _soon = deadlines.add(now + Duration::from_millis(1), Arc::clone(&soon));
        while soon.check().is_ok() {
            assert!(now.elapsed() < Duration::from_secs(60));
            std::thread::yield_now();
        }
        assert!(late.check().is_ok());
        assert_eq!(deadlines.0.queue.lock().due.len(), 1);
    }
}
