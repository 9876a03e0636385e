//! Turns of short writes.
//!
//! A member has one write lock. A worker of the runtime that meets it taken sleeps, and answers no client
//! until it is woken, which costs as much as the write. So commands wait for their turn before they run,
//! and the worker does other work meanwhile. Half of the workers may run writes at a time.
//!
//! A write that waits for a transaction to end gives its turn back: the transaction needs one to end. What it has
//! written so far is forced to disk by another thread.

use std::cell::Cell;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::replica_set::withdraw_offer;

thread_local! {
    /// The turn of the write that runs on this thread.
    static TURN: Cell<Option<OwnedSemaphorePermit>> = const { Cell::new(None) };
}

/// Who may write.
pub(crate) struct WriteTurns(Arc<Semaphore>);

impl WriteTurns {
    /// Turns for a runtime with so many workers.
    pub(crate) fn new(workers: usize) -> Self {
        Self(Arc::new(Semaphore::new((workers / 2).max(1))))
    }

    /// Runs a write when it is its turn.
    pub(crate) async fn run<T>(&self, write: impl FnOnce() -> T) -> T {
        // Only a closed semaphore refuses, and this one is never closed.
        let turn = Arc::clone(&self.0).acquire_owned().await.ok();
        TURN.set(turn);
        let _end = EndOfTurn;
        write()
    }
}

/// Ends the turn of this thread, even if the write panics.
struct EndOfTurn;

impl Drop for EndOfTurn {
    fn drop(&mut self) {
        TURN.take();
    }
}

/// Blocks this thread for a command. Other tasks of its worker go on, and so do other writes.
pub(crate) fn block(run: &mut dyn FnMut()) {
    drop(TURN.take());
    withdraw_offer();
    tokio::task::block_in_place(run);
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::mpsc::{Receiver, channel};
    use std::task::Poll;

    use super::*;

    /// Starts a write that ends when it is told to. Returns once it runs.
    async fn hold(
        turns: &Arc<WriteTurns>,
        blocks: bool,
    ) -> (std::sync::mpsc::Sender<()>, impl Future) {
        let (end, ended): (_, Receiver<()>) = channel();
        let (begin, begun) = tokio::sync::oneshot::channel();
        let turns = Arc::clone(turns);
        let held = tokio::spawn(async move {
            let write = move || {
                begin.send(()).unwrap();
                match blocks {
                    true => block(&mut || ended.recv().unwrap()),
                    false => ended.recv().unwrap(),
                }
            };
            turns.run(write).await;
        });
        begun.await.unwrap();
        (end, held)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 3)]
    async fn a_write_waits_for_the_one_before_it() {
        let turns = Arc::new(WriteTurns::new(2));
        let (end, held) = hold(&turns, false).await;
        let mut second = std::pin::pin!(turns.run(|| ()));
        let looked = poll_fn(|context| Poll::Ready(second.as_mut().poll(context))).await;
        assert_eq!(looked, Poll::Pending);
        end.send(()).unwrap();
        held.await;
        second.await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 3)]
    async fn a_write_that_blocks_lets_others_write() {
        let turns = Arc::new(WriteTurns::new(1));
        let (end, held) = hold(&turns, true).await;
        turns.run(|| ()).await;
        end.send(()).unwrap();
        held.await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 3)]
    async fn a_write_that_panics_ends_its_turn() {
        let turns = Arc::new(WriteTurns::new(1));
        let failing = Arc::clone(&turns);
        let panicked = tokio::spawn(async move { failing.run(|| panic!("this is meant")).await });
        assert!(panicked.await.is_err());
        turns.run(|| ()).await;
    }

    #[tokio::test]
    async fn half_of_the_workers_write_at_a_time() {
        for (workers, writers) in [(1, 1), (2, 1), (3, 1), (4, 2), (9, 4)] {
            assert_eq!(WriteTurns::new(workers).0.available_permits(), writers);
        }
    }
}
