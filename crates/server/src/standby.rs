//! Lets a worker of the runtime wait for a quick disk.
//!
//! Moving the other tasks of the worker to another thread takes longer than such a wait, so it keeps them. But it may be the
//! only worker that is awake, and the disk may stall: then no connection would be served, and other members would take this
//! one for dead. A thread looks from time to time, and has another worker woken if a wait is not over by its next look.
//! One worker always stays out of such waits: the wait that would take the last one moves the tasks of its worker.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, Thread};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::block_in_place;

/// A disk that takes longer for a sync is not waited for by workers.
pub(crate) const QUICK: Duration = Duration::from_millis(2);

/// The interval between two looks of the thread while workers wait now and then.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// Looks without a wait after which the thread rests until there is one.
const QUIET_LOOKS: u32 = 20;

/// What workers and the thread have in common. The thread ends with the last clone.
#[derive(Clone)]
pub(crate) struct Standby(Option<Arc<Owner>>);

struct Owner {
    waits: Arc<Waits>,
    thread: Thread,
    /// How many workers may wait and keep their tasks: all but one.
    most: usize,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.waits.is_over.store(true, Ordering::SeqCst);
        self.thread.unpark();
    }
}

#[derive(Default)]
struct Waits {
    begun: AtomicU64,
    ended: AtomicU64,
    /// The workers that wait.
    waiting: AtomicUsize,
    /// Whether the thread rests.
    rests: AtomicBool,
    is_over: AtomicBool,
}

/// Ends a wait, even if it panics.
struct Waiting<'w>(&'w Waits);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::SeqCst);
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Standby {
    /// For the workers of the runtime that this thread belongs to. One worker cannot be relieved.
    pub(crate) fn start() -> io::Result<Self> {
        let Ok(runtime) = Handle::try_current() else { return Ok(Self(None)) };
        let most = runtime.metrics().num_workers().saturating_sub(1);
        if most == 0 {
            return Ok(Self(None));
        }
        let waits = Arc::<Waits>::default();
        let watched = Arc::clone(&waits);
        let relieve = move || drop(runtime.spawn(async {}));
        let thread = thread::Builder::new()
            .name("quorate-standby".to_owned())
            .spawn(move || watched.watch(&relieve))?;
        let thread = thread.thread().clone();
        Ok(Self(Some(Arc::new(Owner { waits, thread, most }))))
    }

    /// Whether a worker may wait for a quick disk.
    pub(crate) fn is_there(&self) -> bool {
        self.0.is_some()
    }

    /// Runs what waits for the disk on this worker.
    pub(crate) fn wait<T>(&self, wait: impl FnOnce() -> T) -> T {
        let Some(owner) = &self.0 else { return block_in_place(wait) };
        if owner.waits.waiting.fetch_add(1, Ordering::SeqCst) >= owner.most {
            owner.waits.waiting.fetch_sub(1, Ordering::SeqCst);
            return block_in_place(wait);
        }
        owner.waits.begun.fetch_add(1, Ordering::SeqCst);
        let _waiting = Waiting(&owner.waits);
        if owner.waits.rests.load(Ordering::SeqCst) {
            owner.thread.unpark();
        }
        wait()
    }
}

impl Waits {
    /// Relieves a worker that is still waiting after a look, until all is over.
    fn watch(&self, relieve: &impl Fn()) {
        let mut quiet = 0;
        while !self.is_over.load(Ordering::SeqCst) {
            let begun = self.begun.load(Ordering::SeqCst);
            quiet = if begun == self.ended.load(Ordering::SeqCst) { quiet + 1 } else { 0 };
            if quiet > QUIET_LOOKS {
                self.rest(begun);
                quiet = 0;
                continue;
            }
            thread::park_timeout(LOOK_INTERVAL);
            if self.ended.load(Ordering::SeqCst) < begun {
                relieve();
            }
        }
    }

    /// Returns once there may be a wait beyond so many.
    fn rest(&self, begun: u64) {
        self.rests.store(true, Ordering::SeqCst);
        // A wait that began before it could see that is waited for by looks.
        if self.begun.load(Ordering::SeqCst) == begun && !self.is_over.load(Ordering::SeqCst) {
            thread::park();
        }
        self.rests.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpStream};
    use std::sync::mpsc::channel;

    use tokio::net::TcpListener;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// How often a connection is served while a worker waits: not each time is the other one asleep.
    const ROUNDS: usize = 50;

    /// The worker that a connection has woken waits, and the other one sleeps: nothing else would wake it.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_connection_is_served_while_a_worker_waits_for_long() {
        let standby = Standby::start().unwrap();
        assert!(standby.is_there());
        let bind = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
        let (waiting, serving) = (bind().await.unwrap(), bind().await.unwrap());
        let (first, second) = (waiting.local_addr().unwrap(), serving.local_addr().unwrap());
        let (serve, served) = channel();
        tokio::spawn(
            async move { while serving.accept().await.is_ok() && serve.send(()).is_ok() {} },
        );
        let waits = tokio::spawn(async move {
            for round in 0..ROUNDS {
                waiting.accept().await.unwrap();
                standby.wait(|| {
                    drop(TcpStream::connect(second).unwrap());
                    served.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("round {round}"));
                });
            }
        });
        for _ in 0..ROUNDS {
            drop(TcpStream::connect(first).unwrap());
        }
        waits.await.unwrap();
    }

    #[tokio::test]
    async fn one_worker_does_not_wait() {
        assert!(!Standby::start().unwrap().is_there());
    }

    #[test]
    fn a_thread_that_rests_looks_again_when_there_is_a_wait() {
        let waits = Arc::<Waits>::default();
        let watched = Arc::clone(&waits);
        let (relieved, is_relieved) = channel();
        let watching = thread::spawn(move || watched.watch(&|| relieved.send(()).unwrap()));
        let thread = watching.thread().clone();
        let standby = Standby(Some(Arc::new(Owner { waits, thread, most: 1 })));
        let waits = Arc::clone(&standby.0.as_ref().unwrap().waits);
        for _ in 0..2 {
            while !waits.rests.load(Ordering::SeqCst) {
                thread::yield_now();
            }
            standby.wait(|| is_relieved.recv_timeout(PATIENCE).expect("it looks"));
            while is_relieved.try_recv().is_ok() {}
        }
        drop(standby);
        watching.join().unwrap();
    }
}
